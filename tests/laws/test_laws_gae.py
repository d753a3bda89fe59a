"""Advantages: what the buffer computes is the sum that defines them."""

from __future__ import annotations

import numpy as np
import torch as th
from gymnasium import spaces
from hypothesis import strategies as st

from laws.budget import case, law
from laws.strategies import SEEDS
from thrust_pomdp.ppo.buffers import RecurrentRolloutBuffer
from thrust_pomdp.ppo.gae import gae

#: float32 sums of at most 20 steps, of numbers that are mostly below 10.
TOLERANCE = 1e-5


@case
class Rollout:
    #: A row for each env, a letter for each step: "." goes on, "T" terminated, "L" hit the limit.
    ends: tuple[str, ...]
    valid_steps: int | None
    gamma: float
    gae_lambda: float
    scale: float
    seed: int

    @property
    def n_valid(self) -> int:
        return len(self.ends[0]) if self.valid_steps is None else self.valid_steps


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    n_envs, n_steps = draw(st.integers(1, 4)), draw(st.integers(1, 20))
    row = st.text(".TL", min_size=n_steps, max_size=n_steps)
    fractions = st.sampled_from([0.99, 0.0, 0.5, 1.0]) | st.floats(0, 1)
    return Rollout(
        ends=tuple(draw(row) for _ in range(n_envs)),
        valid_steps=draw(st.none() | st.integers(1, n_steps)),
        gamma=draw(fractions),
        gae_lambda=draw(fractions),
        scale=draw(st.sampled_from([1.0, 0.0, 1000.0])),
        seed=draw(SEEDS),
    )


def advantage(
    rewards: list[float],
    values: list[float],
    final_values: list[float],
    ends: str,
    step: int,
    gamma: float,
    gae_lambda: float,
) -> float:
    """Sum up (gamma lambda)^k delta to the end of the episode or of the window.

    :param values: of the observations, and of the one after the last step
    :param final_values: of the observation that a step led to, where the episode ended there
    """
    total, weight = 0.0, 1.0
    for k in range(step, len(rewards)):
        following = {".": values[k + 1], "T": 0.0, "L": final_values[k]}[ends[k]]
        total += weight * (rewards[k] + gamma * following - values[k])
        weight *= gamma * gae_lambda
        if ends[k] != ".":
            break
    return total


@law(rollouts(), fixed=150, long=1500)
def test_advantages_are_the_sum_that_defines_them(case: Rollout) -> None:
    rng = np.random.default_rng(case.seed)
    n_envs, n_steps, n_valid = len(case.ends), len(case.ends[0]), case.n_valid
    rewards, final_values = case.scale * rng.normal(size=(2, n_steps, n_envs)).astype(np.float32)
    values = case.scale * rng.normal(size=(n_steps, n_envs)).astype(np.float32)
    # Not what lies behind the valid steps: that may be of a window before.
    last = case.scale * rng.normal(size=n_envs).astype(np.float32)
    buffer = RecurrentRolloutBuffer(
        n_steps, spaces.Box(-1, 1, (1,)), spaces.Discrete(2), "cpu", n_envs=n_envs,
        gamma=case.gamma, gae_lambda=case.gae_lambda,
    )  # fmt: skip
    ends = np.array([[*row] for row in case.ends]).T
    starts = np.ones(n_envs)
    for step in range(n_steps):
        # As SB3's collect_rollouts: the value of what an episode was cut at goes into its reward.
        shown = rewards[step] + case.gamma * final_values[step] * (ends[step] == "L")
        action = np.zeros((n_envs, 1))
        value = th.as_tensor(values[step])
        buffer.add(np.zeros((n_envs, 1)), action, shown, starts, value, th.zeros(n_envs))
        starts = ends[step] != "."
    dones = ends[n_valid - 1] != "."
    buffer.compute_returns_and_advantage(th.as_tensor(last), dones, case.valid_steps)
    batch = buffer.to_sequence_batch(case.valid_steps)
    bound = TOLERANCE * (1 + 10 * case.scale)
    for env in range(n_envs):
        for step in range(n_valid):
            of_env = [*values[:n_valid, env].tolist(), float(last[env])]
            expected = advantage(
                rewards[:n_valid, env].tolist(), of_env,
                final_values[:, env].tolist(), case.ends[env], step, case.gamma, case.gae_lambda,
            )  # fmt: skip
            assert abs(buffer.advantages[step, env] - expected) <= bound
            assert abs(batch.advantages[env, step].item() - expected) <= bound
            assert abs(batch.returns[env, step].item() - expected - values[step, env]) <= bound


@law(rollouts(), fixed=60, long=500)
def test_envs_and_what_comes_before_an_end_know_nothing_of_the_rest(case: Rollout) -> None:
    """Changing what lies after an end, or in another env, changes no bit."""
    rng = np.random.default_rng(case.seed)
    n_envs, n_steps = len(case.ends), len(case.ends[0])
    rewards = rng.normal(size=(n_steps, n_envs)).astype(np.float32)
    values = rng.normal(size=(n_steps + 1, n_envs)).astype(np.float32)
    goes_on = np.array([[letter == "." for letter in row] for row in case.ends]).T
    once = gae(rewards, values, goes_on.astype(np.float32), case.gamma, case.gae_lambda)
    env = int(rng.integers(n_envs))
    for step in np.flatnonzero(~goes_on[:, env]):
        rewards_, values_ = rewards.copy(), values.copy()
        rewards_[step + 1 :, env] = values_[step + 1 :, env] = 77.0
        rewards_[:, :env] = values_[:, env + 1 :] = -5.0
        again = gae(rewards_, values_, goes_on.astype(np.float32), case.gamma, case.gae_lambda)
        assert (once[: step + 1, env] == again[: step + 1, env]).all()

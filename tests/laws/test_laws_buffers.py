"""Rollout buffers: whatever goes in comes out once an epoch, each part beside the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from hypothesis import strategies as st

from laws.budget import case, law
from laws.strategies import SEEDS
from thrust_pomdp.ppo.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from thrust_pomdp.ppo.minibatch_sizes import minibatch_sizes
from thrust_pomdp.ppo.subsequences import cut_rows, join_rows
from thrust_pomdp.recurrent.sequences import RNNStates

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-9, 9, (3,)),
    "matrix of float64": spaces.Box(-9, 9, (2, 2), np.float64),
    "image": spaces.Box(0, 255, (2, 3, 1), np.uint8),
    "number": spaces.Discrete(7),
    "numbers": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary(3),
    "dict": spaces.Dict(camera=spaces.Box(0, 255, (2, 2, 1), np.uint8), n=spaces.Discrete(5)),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "number": spaces.Discrete(4),
    "vector": spaces.Box(-1, 1, (2,)),
    "half": spaces.Box(-1, 1, (2,), np.float16),
    "matrix": spaces.Box(-1, 1, (2, 2)),
    "numbers": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary(3),
}
#: Parts of the actor's and of the critic's state; the critic's is the actor's where 0.
STATES = {"none": None, "LSTM": (2, 2), "GRU": (1, 1), "shared": (2, 0), "unequal": (2, 1)}


@case
class Window:
    n_steps: int
    n_envs: int
    observations: str
    actions: str
    states: str
    record_states: bool
    sequence_length: int | None
    burn_in: int
    size: int
    batch_size: int | None
    seed: int


@st.composite
def windows(draw: st.DrawFn) -> Window:
    n_steps, n_envs = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    states = draw(st.sampled_from(list(STATES)))
    length, burn_in = None, 0
    if states != "none":
        divisors = [number for number in range(1, n_steps) if n_steps % number == 0]
        length = draw(st.none() | st.sampled_from(divisors)) if divisors else None
        burn_in = draw(st.integers(0, length)) if length else 0
    return Window(
        n_steps=n_steps,
        n_envs=n_envs,
        observations=draw(st.sampled_from(list(OBSERVATIONS))),
        actions=draw(st.sampled_from(list(ACTIONS))),
        states=states,
        record_states=states != "none" and draw(st.booleans()),
        sequence_length=length,
        burn_in=burn_in,
        size=draw(st.integers(1, 8)),
        batch_size=draw(st.none() | st.integers(1, 80)),
        seed=draw(SEEDS),
    )


class Filled:
    """A full buffer, and what was put into it: ``[n_steps, n_envs, ...]``."""

    def __init__(self, case: Window) -> None:
        self.case = case
        rng = np.random.default_rng(case.seed)
        n_steps, n_envs = case.n_steps, case.n_envs
        obs_space, action_space = OBSERVATIONS[case.observations], ACTIONS[case.actions]
        obs_space.seed(case.seed)
        action_space.seed(case.seed)
        is_dict = isinstance(obs_space, spaces.Dict)
        cls = RecurrentDictRolloutBuffer if is_dict else RecurrentRolloutBuffer
        self.buffer = cls(
            n_steps, obs_space, action_space, "cpu", n_envs=n_envs,
            record_states=case.record_states,
        )  # fmt: skip
        self.buffer.seed(case.seed)
        if case.sequence_length is not None:
            self.buffer.cut_windows(case.sequence_length, case.burn_in)
        samples = [[obs_space.sample() for _ in range(n_envs)] for _ in range(n_steps)]
        self.obs: Any = (
            {key: np.array([[o[key] for o in row] for row in samples]) for key in obs_space}
            if is_dict
            else np.array(samples)
        )
        self.actions = np.array(
            [[action_space.sample() for _ in range(n_envs)] for _ in range(n_steps)]
        )
        # Every step has a number of its own: env * n_steps + step.
        self.ids = np.arange(n_envs) * n_steps + np.arange(n_steps)[:, None]
        self.log_probs = rng.normal(size=(n_steps, n_envs)).astype(np.float32)
        self.starts = rng.random((n_steps, n_envs)) < 0.3
        self.states = [self._state(rng) for _ in range(n_steps)]
        for step in range(n_steps):
            obs = {k: v[step] for k, v in self.obs.items()} if is_dict else self.obs[step]
            self.buffer.add(
                obs, self.actions[step], rng.normal(size=n_envs), self.starts[step],
                th.as_tensor(self.ids[step], dtype=th.float32), th.as_tensor(self.log_probs[step]),
                self.states[step],
            )  # fmt: skip
        self.buffer.compute_returns_and_advantage(th.zeros(n_envs), np.ones(n_envs))

    def _state(self, rng: np.random.Generator) -> RNNStates | None:
        parts = STATES[self.case.states]
        if parts is None:
            return None
        pi, vf = (
            tuple(
                th.as_tensor(rng.normal(size=(2, self.case.n_envs, 3)), dtype=th.float32)
                for _ in range(count)
            )
            for count in parts
        )
        return RNNStates(pi, vf or pi)

    def of(self, ids: np.ndarray, array: np.ndarray) -> np.ndarray:
        """Pick what belongs to some steps, ``[n_seq, length, ...]``."""
        env, step = ids // self.case.n_steps, ids % self.case.n_steps
        return array[step, env]


def check_batch(filled: Filled, batch: Any) -> np.ndarray:
    """Hold every part against the steps that the values name; return these."""
    ids = batch.old_values.numpy().astype(int)
    assert (np.diff(ids, axis=1) == 1).all()
    for key, stored in filled.obs.items() if isinstance(filled.obs, dict) else [("", filled.obs)]:
        given = batch.observations[key] if key else batch.observations
        expected = filled.of(ids, stored)
        assert np.array_equal(given.numpy().reshape(expected.shape), expected)
    actions = filled.of(ids, filled.actions)
    assert np.array_equal(batch.actions.numpy().reshape(actions.shape), actions)
    assert batch.actions.ndim == 3
    for name, stored in (
        ("old_log_prob", filled.log_probs),
        ("episode_starts", filled.starts),
        ("advantages", filled.buffer.advantages),
        ("returns", filled.buffer.returns),
    ):
        assert np.array_equal(getattr(batch, name).numpy(), filled.of(ids, stored)), name
    assert np.array_equal(batch.layout.episode_starts.numpy(), batch.episode_starts.numpy())
    check_states(filled, batch.initial_state, ids)
    return ids


def check_states(filled: Filled, given: RNNStates | None, ids: np.ndarray) -> None:
    """Each sequence comes with the state that entered it, or its burn-in."""
    if filled.states[0] is None:
        assert given is None
        return
    assert given is not None
    for row, first in enumerate(ids[:, 0]):
        env, step = divmod(int(first), filled.case.n_steps)
        entered = filled.states[max(step - filled.case.burn_in, 0)]
        assert entered is not None
        for ours, theirs in zip(given, entered, strict=True):
            assert len(ours) == len(theirs)
            for part, whole in zip(ours, theirs, strict=True):
                assert th.equal(part[:, row], whole[:, env])


@law(windows(), fixed=150, long=1200)
def test_every_step_comes_once_an_epoch_with_all_that_belongs_to_it(case: Window) -> None:
    filled = Filled(case)
    length = case.sequence_length or case.n_steps
    n_seq = case.n_envs * case.n_steps // length
    everything = list(range(case.n_envs * case.n_steps))
    for epoch, shuffle in enumerate((True, False, True)):
        size: Any = case.size if epoch < 2 else minibatch_sizes(case.batch_size, length, n_seq)
        batches = list(filled.buffer.to_minibatches(size, shuffle=shuffle))
        met = []
        for batch in batches:
            ids = check_batch(filled, batch)
            assert ids.shape[1] == length
            if batch.burn_in is not None:
                _check_burn_in(filled, batch, ids)
            assert (batch.burn_in is not None) == (case.burn_in > 0)
            met.extend(ids.flatten().tolist())
        assert sorted(met) == everything
        if not shuffle:
            assert met == everything
        sizes = [len(batch.returns) for batch in batches]
        if isinstance(size, int):
            assert set(sizes[:-1]) <= {size}
            assert 1 <= sizes[-1] <= size
        else:
            assert sizes == size


def _check_burn_in(filled: Filled, batch: Any, ids: np.ndarray) -> None:
    burn_in = filled.case.burn_in
    obs, episode_starts, is_first = batch.burn_in
    for row, first in enumerate(ids[:, 0]):
        is_at_start = first % filled.case.n_steps == 0
        assert is_first[row] == is_at_start
        if is_at_start:
            continue
        before = np.arange(first - burn_in, first)
        assert np.array_equal(episode_starts[row].numpy(), filled.of(before, filled.starts))
        if isinstance(obs, dict):
            for key, part in obs.items():
                expected = filled.of(before, filled.obs[key])
                assert np.array_equal(part[row].numpy().reshape(expected.shape), expected)
        else:
            expected = filled.of(before, filled.obs)
            assert np.array_equal(obs[row].numpy().reshape(expected.shape), expected)


@law(windows(), fixed=80, long=600)
def test_flat_samples_are_the_same_steps_one_after_the_other(case: Window) -> None:
    if case.burn_in:
        case = Window(**{**vars(case), "burn_in": 0})
    filled = Filled(case)
    length = case.sequence_length or case.n_steps
    met = []
    for samples in filled.buffer.get(case.batch_size):
        ids = samples.old_values.numpy().astype(int)
        met.extend(ids.tolist())
        rows = ids.reshape(-1, length)
        assert (np.diff(rows, axis=1) == 1).all()
        assert np.array_equal(samples.old_log_prob, filled.of(ids, filled.log_probs))
        assert np.array_equal(samples.episode_starts, filled.of(ids, filled.starts))
        actions = filled.of(ids, filled.actions)
        assert np.array_equal(samples.actions.numpy().reshape(actions.shape), actions)
        assert samples.mask.all()
        assert samples.mask.shape == samples.returns.shape
        check_states(filled, samples.lstm_states, rows)
    assert sorted(met) == list(range(case.n_envs * case.n_steps))


@law(windows(), fixed=80, long=600)
def test_layouts_go_there_and_back(case: Window) -> None:
    filled = Filled(case)
    whole = filled.buffer.to_sequence_batch()
    for part in (whole.actions, whole.returns, whole.episode_starts):
        length = case.sequence_length or case.n_steps
        assert th.equal(join_rows(cut_rows(part, length), case.n_steps), part)
    assert np.array_equal(whole.old_values.numpy().T, filled.ids)
    for steps in range(1, case.n_steps + 1):
        part = filled.buffer.to_sequence_batch(steps)
        assert np.array_equal(part.old_values.numpy(), whole.old_values[:, :steps].numpy())
        assert np.array_equal(part.actions.numpy(), whole.actions[:, :steps].numpy())
    if case.record_states:
        for step, states in enumerate(filled.states):
            assert states is not None
            assert np.array_equal(filled.buffer.hidden[step], states.pi[0].numpy())
            if len(states.pi) > 1:
                assert np.array_equal(filled.buffer.cell[step], states.pi[1].numpy())


@law(windows(), fixed=80, long=600)
def test_a_window_hands_its_memory_to_the_next(case: Window) -> None:
    """What a carried state and its flags become, env by env."""
    filled = Filled(case)
    rng = np.random.default_rng(case.seed)
    dones = rng.random(case.n_envs) < 0.5
    final = filled._state(rng)
    filled.buffer.seed_warm_start(case.n_steps - 1, final, dones)
    assert np.array_equal(filled.buffer.episode_start_carry, dones)
    before = filled.buffer.initial_state
    if before is not None:
        assert th.equal(before.pi[0], filled.states[0].pi[0])
    filled.buffer.reset()
    assert np.array_equal(filled.buffer.episode_start_carry, dones)
    carried = filled.buffer.initial_state
    if final is None:
        assert carried is None
        return
    for ours, theirs in zip(carried, final, strict=True):
        for part, given in zip(ours, theirs, strict=True):
            kept = th.as_tensor(~dones)
            assert th.equal(part[:, kept], given[:, kept])
            assert not part[:, ~kept].any()

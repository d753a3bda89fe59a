"""Small environments and programs the tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from thrust_pomdp.ppo.recurrent_ppo import RecurrentPPO
from thrust_pomdp.ppo.sequence_batch import SequenceBatch
from thrust_pomdp.recurrent.sequences import ResetLayout

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)


#: In a scripted frame (observation, ``info["blanked"]``) this flag leaves the key out.
UNTOLD = object()


def scripted_frame(space: spaces.Space, frame: tuple[Any, Any]) -> tuple[Any, dict[str, Any]]:
    """Turn a written frame into what an environment returns: observation and info."""
    obs, flag = frame
    if isinstance(space, spaces.Dict):
        obs = {key: np.array(part, space[key].dtype) for key, part in obs.items()}
    else:
        obs = np.array(obs, space.dtype)
    return obs, {} if flag is UNTOLD else {"blanked": flag}


class FixedLengthEnv(gym.Env):
    """Random observations; each episode lasts ``length`` steps, ended in turn by termination and
    truncation (``ends="both"``), or always in the one way."""

    def __init__(
        self,
        length: int,
        observation_space: spaces.Space = VECTOR,
        action_space: spaces.Space | None = None,
        ends: str = "both",
    ) -> None:
        self.length = length
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(3) if action_space is None else action_space
        self.ends = ends
        self.episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        self.episode += 1
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        ended = self.steps == self.length
        truncates = self.ends == "truncated" or (self.ends == "both" and self.episode % 2 == 0)
        reward = float(self.np_random.normal())
        obs = self.observation_space.sample()
        return obs, reward, ended and not truncates, ended and truncates, {}


def fixed_length_envs(*lengths: int, **kwargs: Any) -> DummyVecEnv:
    def make(length: int) -> Callable[[], gym.Env]:
        return lambda: FixedLengthEnv(length, **kwargs)

    return DummyVecEnv([make(length) for length in lengths])


def sharpen(model: RecurrentPPO, factor: float = 100.0) -> None:
    """Multiply the action head's weights: at its initial gain of .01 faults hide in rounding."""
    with th.no_grad():
        model.policy.action_net.weight.mul_(factor)


class FirstPass(BaseCallback):
    """Compares each minibatch's recomputed values and log-probabilities with the collected ones.

    Wraps ``evaluate_sequences`` of the model's policy; with learning rate 0 every pass is a first
    pass. ``plant`` changes the inputs of the recomputation, to prove that a fault would be seen.
    """

    def __init__(self, plant: Callable[..., tuple[Any, ...]] | None = None) -> None:
        super().__init__()
        self.plant = plant
        self.log_prob_error = 0.0
        self.value_error = 0.0
        self.minibatches = 0

    def _on_training_start(self) -> None:
        policy, buffer = self.model.policy, self.model.rollout_buffer
        evaluate, to_minibatches = policy.evaluate_sequences, buffer.to_minibatches
        current: list[SequenceBatch] = []

        def remembering(*args: Any, **kwargs: Any):
            for batch in to_minibatches(*args, **kwargs):
                current[:] = [batch]
                yield batch

        def comparing(obs, actions, initial_state, episode_starts):
            if self.plant is not None:
                initial_state, episode_starts = self.plant(initial_state, episode_starts)
            values, log_prob, entropy = evaluate(obs, actions, initial_state, episode_starts)
            (batch,) = current
            error = (log_prob - batch.old_log_prob).abs().max().item()
            self.log_prob_error = max(self.log_prob_error, error)
            error = (values - batch.old_values).abs().max().item()
            self.value_error = max(self.value_error, error)
            self.minibatches += 1
            return values, log_prob, entropy

        policy.evaluate_sequences, buffer.to_minibatches = comparing, remembering

    def _on_step(self) -> bool:
        return True

    @property
    def error(self) -> float:
        return max(self.log_prob_error, self.value_error)


def ignore_resets(initial_state: Any, layout: ResetLayout) -> tuple[Any, ResetLayout]:
    """A planted fault: training that does not reset memory inside the window."""
    no_starts = np.zeros(tuple(layout.episode_starts.shape))
    return initial_state, ResetLayout.from_episode_starts(no_starts)


def zero_initial_state(initial_state: Any, layout: ResetLayout) -> tuple[Any, ResetLayout]:
    """A planted fault: training that forgets the state the window started from."""
    return None, layout

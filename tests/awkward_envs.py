"""An environment as users bring it: without a step limit, without pictures, with odd rewards."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class AwkwardEnv(gym.Env):
    """Ends an episode after some steps, or never.

    :param length: of episodes; None if they do not end
    :param reward: of every step
    """

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int | None = 5, reward: float = 1.0) -> None:
        self.length, self.reward, self.n_steps = length, reward, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n_steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.n_steps += 1
        has_ended = self.n_steps == self.length
        return self.observation_space.sample(), self.reward, has_ended, False, {}


if "Awkward-v0" not in gym.registry:
    gym.register("Awkward-v0", "awkward_envs:AwkwardEnv", reward_threshold=4.5)

"""Small environments with every kind of observation and action, to be wrapped."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

VECTOR = spaces.Box(-9.0, 9.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)

OBSERVATIONS: dict[str, spaces.Space] = {
    "vector": VECTOR,
    "image": IMAGE,
    "number": spaces.Discrete(4),
    "shifted number": spaces.Discrete(4, start=-2),
    "numbers": spaces.MultiDiscrete([3, 5], start=[0, 0]),
    "bits": spaces.MultiBinary(3),
    "dict": spaces.Dict(
        {
            "bits": spaces.MultiBinary(2),
            "camera": spaces.Box(0, 255, (4, 4, 1), np.uint8),
            "gyro": VECTOR,
            "mode": spaces.Discrete(3),
        }
    ),
}

ACTIONS: dict[str, spaces.Space] = {
    "number": spaces.Discrete(3),
    "shifted number": spaces.Discrete(3, start=5),
    "numbers": spaces.MultiDiscrete([3, 2]),
    "bits": spaces.MultiBinary(2),
    "vector": spaces.Box(-1.0, 1.0, (2,), np.float32),
}


class AnyEnv(gym.Env):
    """Random observations without zeros in their arrays; the reward tells the action.

    Episodes end by chance, in either way, after some steps.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self, observation: str = "vector", action: str = "number", render_mode: str | None = None
    ) -> None:
        self.observation_space = OBSERVATIONS[observation]
        self.action_space = ACTIONS[action]
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.options, self.n_steps = options, 0
        return draw(self.observation_space, self.np_random), {"steps": 0}

    def step(self, action: Any):
        self.n_steps += 1
        luck = self.np_random.random() if self.n_steps > 2 else 1.0
        obs = draw(self.observation_space, self.np_random)
        reward = float(np.sum(action))
        return obs, reward, bool(luck < 0.1), bool(0.1 < luck < 0.2), {"steps": self.n_steps}


def draw(space: spaces.Space, rng: np.random.Generator) -> Any:
    """Sample an observation from the environment's own generator."""
    if isinstance(space, spaces.Dict):
        return {key: draw(part, rng) for key, part in space.items()}
    if isinstance(space, spaces.Discrete):
        return np.int64(rng.integers(space.start, space.start + space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(space.start, space.start + space.nvec).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, space.shape).astype(space.dtype)
    return rng.integers(1, space.high.astype(int) + 1).astype(space.dtype)


if "AnyEnv-v0" not in gym.registry:
    gym.register("AnyEnv-v0", "sensor_envs:AnyEnv", max_episode_steps=25)


class ScriptedEnv(gym.Env):
    """Plays written (observation, info) pairs over and over; never ends an episode."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space, frames: list[tuple[Any, dict[str, Any]]]) -> None:
        self.observation_space, self._frames, self._next = space, frames, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._next = 0
        return self._frame()

    def step(self, action: Any):
        return (*self._frame()[:1], 0.0, False, False, self._info)

    def _frame(self):
        obs, self._info = self._frames[self._next % len(self._frames)]
        self._next += 1
        return obs, self._info

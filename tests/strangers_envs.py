"""Environments of somebody else's, some with a state of their own and some without."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Walk(gym.Env[Any, Any]):
    """A random walk with Dict observations, and a generator under a name of its own."""

    observation_space = spaces.Dict(x=spaces.Box(-99, 99, (2,)), n=spaces.Discrete(3))
    action_space = spaces.Discrete(2)
    difficulty = 1.0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.rng = self.np_random
        self.x, self.n = self.rng.normal(size=2), 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self.x, self.n = self.x + self._noise() * self.difficulty + 0.1 * action, self.n + 1
        return self._look(), float(self.x[0]), self.n >= 17, False, {"n": self.n}

    def make_harder(self, factor: float) -> None:
        self.difficulty *= factor

    def _noise(self) -> Any:
        return self.rng.normal(size=2)

    def _look(self) -> Any:
        return {"x": self.x.astype(np.float32), "n": self.n % 3}


class HeldWalk(Walk):
    """One with a state of its own."""

    def get_state(self) -> Any:
        return {"x": self.x, "n": self.n, "rng": self.rng, "difficulty": self.difficulty}

    def set_state(self, state: Any) -> None:
        if state["n"] > 99:
            raise RuntimeError("too far")
        self.x, self.n, self.rng = state["x"], state["n"], state["rng"]
        self.difficulty = state["difficulty"]
        self.np_random = self.rng


class GlobalWalk(Walk):
    """One that draws from everybody's generators."""

    def _noise(self) -> Any:
        return np.random.normal(size=2) + random.random()


class ForgetfulWalk(Walk):
    """One whose pickles lack something."""

    def __getstate__(self) -> Any:
        return {key: value for key, value in vars(self).items() if key != "momentum"}

    def _noise(self) -> Any:
        self.momentum = getattr(self, "momentum", 0.0) * 0.9 + self.rng.normal()
        return np.full(2, self.momentum)


class OutsideWalk(Walk):
    """One that keeps something outside of itself."""

    steps_of_all = 0

    def _noise(self) -> Any:
        OutsideWalk.steps_of_all += 1
        return np.full(2, np.sin(OutsideWalk.steps_of_all))


class BoundWalk(Walk):
    """One that holds what no pickle can."""

    def __init__(self) -> None:
        self.engine = (step for step in range(3))


class Tired(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper that remembers something."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.tiredness = 0.0

    def step(self, action: Any) -> Any:
        self.tiredness += 0.1
        obs, reward, *rest = self.env.step(action)
        return obs, reward - self.tiredness, *rest

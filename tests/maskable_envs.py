"""Environments in which not everything may be done at every step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from helpers import FixedLengthEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from thrust_pomdp.envs.tmaze import TMazeEnv
from thrust_pomdp.envs.tmaze_vector import TMazeVectorEnv
from thrust_pomdp.ppo.maskable.masks import MaskLayout

ACTIONS = {
    "Discrete": spaces.Discrete(4),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2, 4]),
    "MultiBinary": spaces.MultiBinary(3),
}


def random_masks(space: spaces.Space, n: int, rng: np.random.Generator) -> np.ndarray:
    """Half of all entries, and one of each choice: ``[n, width]``."""
    layout = MaskLayout(space)
    masks = rng.random((n, layout.width)) < 0.5
    first = np.cumsum([0, *layout.sizes[:-1]])
    masks[np.arange(n)[:, None], first + rng.integers(0, layout.sizes, (n, len(first)))] = True
    return masks


def as_choices(space: spaces.Space, actions: np.ndarray) -> np.ndarray:
    """Turn ``[n, action_dim]`` actions into positions in a row of masks, ``[n, n_choices]``."""
    first = np.cumsum([0, *MaskLayout(space).sizes[:-1]])
    return np.asarray(actions).reshape(-1, len(first)).astype(int) + first


class ChangingMaskEnv(FixedLengthEnv):
    """Another random mask at every step, which the observation shows; forbidden actions raise."""

    def __init__(self, length: int, action_space: spaces.Space, **kwargs: Any) -> None:
        self.width = MaskLayout(action_space).width
        super().__init__(
            length, spaces.Box(-1, 1, (self.width + 2,), np.float32), action_space, **kwargs
        )

    def action_masks(self) -> np.ndarray:
        return self.mask

    def _show(self, obs: np.ndarray) -> np.ndarray:
        self.mask = self._draw()
        obs[: self.width] = self.mask
        return obs

    def _draw(self) -> np.ndarray:
        return random_masks(self.action_space, 1, self.np_random)[0]

    def reset(self, **kwargs: Any):
        obs, info = super().reset(**kwargs)
        return self._show(obs), info

    def step(self, action: Any):
        choices = as_choices(self.action_space, np.asarray(action)[None])
        if not self.mask[choices].all():
            raise AssertionError(f"action {action} is forbidden by {self.mask}")
        obs, *rest = super().step(action)
        return self._show(obs), *rest


class AllowsEverything(ChangingMaskEnv):
    """The same with masks that are true everywhere."""

    def _draw(self) -> np.ndarray:
        random_masks(self.action_space, 1, self.np_random)
        return np.ones(self.width, bool)


def changing_masks(*lengths: int, action: str = "Discrete", cls=ChangingMaskEnv, **kwargs: Any):
    space = ACTIONS[action]
    return DummyVecEnv([lambda length=length: cls(length, space, **kwargs) for length in lengths])


class DoorsTMaze(gym.Wrapper):
    """A T-maze with three doors in each cell, of which a random one is open; only the mask tells.

    At the junction 0 turns left and 1 right. Who runs against a closed door gets -1 and has to
    start anew: without masks one episode of ``3 ** corridor_length`` gets to the junction.
    """

    action_space = spaces.Discrete(3)

    def __init__(self, env: gym.Env, seed: int = 0) -> None:
        super().__init__(env)
        self._rng = np.random.default_rng(seed)

    def reset(self, **kwargs: Any):
        self._open_a_door()
        return self.env.reset(**kwargs)

    def _open_a_door(self) -> None:
        self._door = self._rng.integers(3)

    def action_masks(self) -> np.ndarray:
        maze = self.unwrapped
        at_junction = maze._cell == maze.corridor_length
        return np.arange(3) != 2 if at_junction else np.arange(3) == self._door

    def step(self, action: int):
        if not self.action_masks()[action]:
            return np.array([0, 0, 1], np.float32), -1.0, True, False, {}
        self._open_a_door()
        return self.env.step(np.int64(action % 2))


def fenced_masks(cells: np.ndarray) -> np.ndarray:
    """In every other cell only action 0 may be taken."""
    return np.stack([np.ones_like(cells, bool), cells % 2 == 0], axis=-1)


class FencedTMaze(TMazeEnv):
    def action_masks(self) -> np.ndarray:
        return fenced_masks(np.array(self._cell))


class FencedTMazeVector(TMazeVectorEnv):
    single_class = FencedTMaze

    def action_masks(self) -> np.ndarray:
        return fenced_masks(self.cells)

"""Environments whose observations say where they belong, and whose episodes end where planned.

What is shown is one of a few *stories*, fixed sequences of random vectors. Several environments
tell the same story, from its beginning and to different lengths, after different others::

    time      0 1 2 3 4 5 6 7 8 9 ...          story A   a0 a1 a2 a3 ...
    env 0     x0 x1 x2 x3 x4|a0 a1 a2 a3/a0    story X   x0 a1 a2 a3 ...
    env 1     a0 a1/x0 x1 x2/a0 a1 a2 ...      |  terminated
    env 2     x0 x1 x2 x3/a0 a1 a2 a3 ...      /  truncated
    env 3     a0 a1 a2 a3 a4 a5 a6 a7 ...

A policy may know an episode by nothing but what that episode has shown. So its value of ``a2`` is
the same number in each of them, the one environment 3 gives. The story X differs from A in its
first vector alone: who tells ``x2`` from ``a2`` remembers. The number a truncated episode is to be
bootstrapped with stands where a longer one goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv

Array = NDArray[Any]

N_ENVS, N_STEPS, N_WINDOWS = 4, 16, 2
N_FEATURES = 6
#: Of a story; longer than any episode that is planned.
_STORY_LENGTH = 40
TERMINATED, TRUNCATED = "terminated", "truncated"
#: "T" is "A" from where environment 0 stands when the second window begins.
LATE = 3


class Episode(NamedTuple):
    """An episode that is planned.

    :param story: its name
    :param length: steps
    :param end: how it ends
    """

    story: str
    length: int
    end: str


#: In each environment, until its last episode, which goes on.
PLAN: tuple[tuple[Episode, ...], ...] = (
    (
        Episode("X", 5, TERMINATED),
        Episode("A", 4, TRUNCATED),
        Episode("A", 3, TERMINATED),
        Episode("A", 1, TRUNCATED),
        Episode("A", 7, TERMINATED),  # from window to window
        Episode("A", 5, TRUNCATED),
        Episode("X", 2, TERMINATED),
        Episode("A", 30, TERMINATED),
    ),
    (
        Episode("A", 2, TRUNCATED),
        Episode("X", 3, TRUNCATED),
        Episode("A", 6, TERMINATED),
        Episode("A", 5, TRUNCATED),  # on the last step of the window
        Episode("A", 4, TRUNCATED),
        Episode("T", 5, TERMINATED),
        Episode("A", 2, TERMINATED),
        Episode("A", 30, TERMINATED),
    ),
    (
        Episode("X", 4, TRUNCATED),
        Episode("A", 7, TRUNCATED),
        Episode("A", 5, TERMINATED),  # on the last step of the window
        Episode("A", 6, TERMINATED),
        Episode("X", 3, TRUNCATED),
        Episode("A", 30, TERMINATED),
    ),
    (
        Episode("A", 16, TERMINATED),
        Episode("A", 9, TRUNCATED),
        Episode("A", 30, TERMINATED),
    ),
)


class Place(NamedTuple):
    """What an environment shows at a step.

    :param env: number of the environment
    :param time: step since the beginning
    :param story: that is told
    :param step: of the episode
    :param last: whether the episode ends with this step
    :param end: how it ends
    :param before: how the episode before ended; nothing for the first
    :param began: time of the episode's first step
    """

    env: int
    time: int
    story: str
    step: int
    last: bool
    end: str
    before: str
    began: int


def places(env: int, steps: int) -> list[Place]:
    """Return what one environment shows at each of the first steps."""
    found: list[Place] = []
    before, time = "", 0
    for story, length, end in PLAN[env]:
        for step in range(length):
            last = step == length - 1
            found.append(Place(env, time + step, story, step, last, end, before, time))
        time, before = time + length, end
    return found[:steps]


#: ``[n_steps of all windows][n_envs]``
PLACES = tuple(zip(*(places(env, N_WINDOWS * N_STEPS) for env in range(N_ENVS)), strict=True))


def stories(other: bool = False) -> dict[str, Array]:
    """Return the observations of each story, ``[length, N_FEATURES]``, float32.

    :param other: X shows other vectors
    """
    rng = np.random.default_rng(26)
    shape = (_STORY_LENGTH, N_FEATURES)
    told, first, others = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    x = others if other else np.concatenate((first[:1], told[1:]))
    return {"A": told, "X": x, "T": told[LATE:]}


class ProbeEnv(gym.Env[Array, Any]):
    """Tells its stories whatever is done, and keeps what was done.

    :param number: of the environment
    :param told: see :func:`stories`
    """

    def __init__(self, number: int, told: dict[str, Array]) -> None:
        self.observation_space = spaces.Box(-8, 8, (N_FEATURES,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._number, self._told = number, told
        self._episode, self._step, self._time = -1, -1, 0
        #: The action of each step.
        self.actions: list[int] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Go on to the next episode, unless nothing has been done in this one."""
        super().reset(seed=seed)
        if self._step != 0:
            self._episode, self._step = self._episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Show the next vector of the story."""
        self.actions.append(int(action))
        reward = reward_at(self._number, self._time)
        self._step, self._time = self._step + 1, self._time + 1
        _, length, end = self._planned()
        ended = self._step == length
        return self._obs(), reward, ended and end == TERMINATED, ended and end == TRUNCATED, {}

    def action_masks(self) -> NDArray[np.bool_]:
        """Allow everything, for algorithms that ask."""
        return np.ones(2, dtype=bool)

    def _planned(self) -> Episode:
        return PLAN[self._number][min(self._episode, len(PLAN[self._number]) - 1)]

    def _obs(self) -> Array:
        shown: Array = self._told[self._planned().story][self._step % (_STORY_LENGTH - LATE)]
        return shown.copy()


def reward_at(env: int, time: int) -> float:
    """Return the reward of a step: another at most steps, and exact in float32."""
    return ((3 * env + 7 * time) % 11 - 4) / 8


def make_env(other: Sequence[int] = ()) -> DummyVecEnv:
    """Make the environments that an algorithm is tried on.

    :param other: numbers of those where X shows other vectors
    """
    return DummyVecEnv(
        [lambda n=n: ProbeEnv(n, stories(n in other)) for n in range(N_ENVS)]  # type: ignore[misc]
    )


def shown(other: Sequence[int] = ()) -> Array:
    """Return the observations of :func:`make_env`, ``[all steps, N_ENVS, N_FEATURES]``."""
    told = [stories(n in other) for n in range(N_ENVS)]
    return np.stack([[told[p.env][p.story][p.step] for p in row] for row in PLACES])


def rewards() -> Array:
    """Return the rewards, ``[all steps, N_ENVS]``, float64."""
    return np.array([[reward_at(p.env, p.time) for p in row] for row in PLACES])


def starts() -> NDArray[np.bool_]:
    """Return where episodes start, ``[all steps, N_ENVS]``."""
    return np.array([[p.step == 0 for p in row] for row in PLACES])

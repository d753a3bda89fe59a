"""Controllers of the T-mazes; they differ in where they remember the cue.

All do the same with what they remember: with a cue they act it, and go on to do so until the turn;
without one they step aside in the corridor, where an active maze has something to see, and flip a
coin at the junction.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.reference.control_laws import Actions, Controller, Flags

#: What is seen of a maze: -1 or 1 for a cue, else 0.
Cues = NDArray[np.float64]

#: Why remembering less than the way to the junction is worth nothing.
SAME_JUNCTION = "all it knows at the junction is the same for both cues"


class MazeController(Controller):
    """Acts the cue that it remembers."""

    def _choose(self, obs: NDArray[Any], visible: Flags) -> Actions:
        coins = self._rng.random(self.n_envs) < 0.5
        cues = self._recall(np.where(visible, obs[:, 0], 0.0))
        in_corridor = visible & (obs[:, 1] > 0)
        actions = np.where(cues != 0, cues > 0, in_corridor | coins).astype(np.int64)
        self._remember(actions)
        return actions

    @abstractmethod
    def _recall(self, cues: Cues) -> Cues:
        """Return the cues that are known, given those that are seen, ``[n_envs]``."""

    def _remember(self, actions: Actions) -> None:
        """Remember the actions just chosen, where the controller may."""


class MemorylessInMaze(MazeController):
    """Knows a cue only while it sees it."""

    information = "memoryless"
    name = "best memoryless found"
    bound = SAME_JUNCTION

    def _recall(self, cues: Cues) -> Cues:
        return cues


class PreviousActionInMaze(MazeController):
    """Keeps the cue in its own last action: a T-maze asks for one bit, and that is one.

    The first frame has no last action and so is told from the corridor's others.
    """

    information = "previous action"
    name = "previous action only"

    def _start(self) -> None:
        self._last: Cues = np.zeros(self.n_envs)

    def _forget(self, ended: Flags) -> None:
        self._last[ended] = 0.0

    def _recall(self, cues: Cues) -> Cues:
        return np.where(cues != 0, cues, self._last)

    def _remember(self, actions: Actions) -> None:
        self._last = np.where(actions == 1, 1.0, -1.0)


class TwoFramesInMaze(MazeController):
    """Sees the newest two frames.

    :param corridor_length: of the maze; in a corridor of one cell two frames are all there is
    :param seed: of the random draws
    """

    information = "two frames"
    name = "two frames"

    def __init__(self, corridor_length: int, seed: int | None = None) -> None:
        super().__init__(seed)
        self.bound = SAME_JUNCTION if corridor_length > 1 else ""

    def _start(self) -> None:
        self._before: Cues = np.zeros(self.n_envs)

    def _forget(self, ended: Flags) -> None:
        self._before[ended] = 0.0

    def _recall(self, cues: Cues) -> Cues:
        known = np.where(cues != 0, cues, self._before)
        self._before = cues
        return known


class Recaller(MazeController):
    """Remembers the cue."""

    information = "exact model"
    name = "perfect recaller"

    def _start(self) -> None:
        self._cues: Cues = np.zeros(self.n_envs)

    def _forget(self, ended: Flags) -> None:
        self._cues[ended] = 0.0

    def _recall(self, cues: Cues) -> Cues:
        self._cues = np.where(cues != 0, cues, self._cues)
        return self._cues

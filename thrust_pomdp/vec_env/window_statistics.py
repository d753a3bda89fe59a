"""Statistics that stay as they are within a window and take it in at its end.

A running mean that is updated at each step makes what one environment is shown depend on what all
others met at that moment. Where statistics change between windows only, an environment's window is
a function of what was known at its start: environments may be stepped by several processes, which
meet once a window. Each environment's moments are kept apart and merged in the environments' order,
so that the sums do not depend on who stepped whom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.errors import ArgumentError, warn_user
from thrust_pomdp.stateful import Names, Stateful
from thrust_pomdp.vec_env.previous import layers
from thrust_pomdp.wrappers.visible_statistics import Mask, RunningStatistics

Array = NDArray[Any]

#: When statistics take in what was met.
UPDATES = ("step", "window")

#: Arrays ``[n_envs, ...]`` of this process's environments -> those of all environments of the
#: training, in their order.
Gather = Callable[[list[Array]], list[Array]]

#: Steps after which it is said that nobody ends the window.
_MOST_STEPS = 100_000


def check_update(update: Any) -> str:
    """Return when statistics are to take in what is met.

    :raises ValueError: for anything but ``"step"`` and ``"window"``
    """
    if update not in UPDATES:
        raise ArgumentError(f"update must be one of {UPDATES}, got {update!r}")
    return str(update)


class WindowMoments(Stateful):
    """Count, mean and sum of squared deviations of each environment's readings in a window.

    Sums are Welford's (1962, https://doi.org/10.1080/00401706.1962.10490022), so that large
    readings that hardly differ lose no digits.

    >>> moments = WindowMoments(n_envs=1, shape=())
    >>> for reading in (9.0, 11.0):
    ...     moments.add(np.array([reading]))
    >>> [array.tolist() for array in moments.arrays()]
    [[2.0], [10.0], [2.0]]

    :param n_envs: number of environments
    :param shape: of one reading
    """

    _shaped_state: Names = ("_count", "_mean", "_squares")

    def __init__(self, n_envs: int, shape: tuple[int, ...]) -> None:
        self._count, self._mean, self._squares = np.zeros((3, n_envs, *shape)).copy()
        #: Steps that were taken in since the window began.
        self._n_steps = 0
        self._has_warned = False

    def add(self, readings: Array, blanked: Mask | None = None) -> None:
        """Take in one reading of each environment.

        :param readings: ``[n_envs, *shape]``
        :param blanked: mask of what to leave out, ``[n_envs]`` or ``[n_envs, *shape]``
        """
        self._n_steps += 1
        if self._n_steps > _MOST_STEPS and not self._has_warned:
            self._has_warned = True
            warn_user(
                f'update="window" has met {_MOST_STEPS} steps and no end of a window, so that its '
                "statistics are those of the beginning: thrust_pomdp.RecurrentPPO ends windows; "
                "with another algorithm call end_window() after each rollout, or take "
                'update="step"'
            )
        deviation = readings - self._mean
        if blanked is None or not blanked.any():
            self._count += 1
            self._mean += deviation / self._count
            self._squares += deviation * (readings - self._mean)
            return
        seen = ~blanked.reshape(blanked.shape + (1,) * (readings.ndim - blanked.ndim))
        self._count += seen
        share = np.where(seen, deviation, 0.0)
        self._mean += share / np.maximum(self._count, 1)
        self._squares += share * np.where(seen, readings - self._mean, 0.0)

    def arrays(self) -> list[Array]:
        """Return counts, means and sums of squared deviations, each ``[n_envs, *shape]``."""
        return [self._count, self._mean, self._squares]

    def clear(self) -> None:
        """Begin the next window."""
        for array in self.arrays():
            array[...] = 0.0
        self._n_steps = 0

    def merge_into(self, statistics: RunningStatistics, gather: Gather | None = None) -> None:
        """Let running statistics take in the window, and begin the next.

        :param statistics: SB3's or Gymnasium's ``RunningMeanStd``
        :param gather: of environments elsewhere, too
        """
        arrays = self.arrays()
        for count, mean, squares in zip(*(arrays if gather is None else gather(arrays)),
                                        strict=True):  # fmt: skip
            _merge(statistics, count, mean, squares)
        self.clear()


def _merge(statistics: RunningStatistics, count: Array, mean: Array, squares: Array) -> None:
    """Let running statistics take in one environment's window."""
    if not np.any(count):
        return
    first = count.flat[0]
    if np.all(count == first):
        statistics.update_from_moments(mean, squares / first, first)
        return
    before = statistics.mean, statistics.var, statistics.count
    statistics.update_from_moments(mean, squares / np.maximum(count, 1), count)
    after = statistics.mean, statistics.var, statistics.count
    seen = count > 0
    statistics.mean, statistics.var, statistics.count = (
        np.where(seen, new, old) for new, old in zip(after, before, strict=True)
    )


def end_windows(venv: VecEnv, gather: Gather | None = None) -> None:
    """Tell all layers around environments that a window has ended.

    A layer of a program's own is told if it has a method ``end_window(gather)``.

    :param venv: the training environment
    :param gather: of environments elsewhere, too; None where there are none
    """
    for layer in layers(venv):
        end = getattr(type(layer), "end_window", None)
        if end is not None:
            end(layer, gather)

"""Statistics of a handful of runs: means that outliers do not move, and honest intervals.

As in Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(NeurIPS 2021), and its library ``rliable``.

Scores are given as one array of run scores per task: ``[[task 0's runs], [task 1's runs], ...]``;
tasks may have different numbers of runs. A statistic takes such a list of arrays
``[..., n_runs]`` and gives ``[...]``, so that thousands of resamples are one call.

Intervals are percentile intervals of the stratified bootstrap: runs are drawn with replacement
within each task. They say what another set of seeds would give on the same tasks.

.. warning::
    A percentile interval of few runs is too short: of three runs it is hardly wider than from the
    worst to the best of them. Of a single run there is none, and then it is None here, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thrust_pomdp.arguments import check_count

Floats: TypeAlias = NDArray[np.float64]

#: From one array ``[..., n_runs]`` per task to ``[...]``.
Statistic: TypeAlias = Callable[[Sequence[Floats]], Floats]

#: Resamples of an interval, and of each point of a curve, where a few more digits show nowhere.
N_RESAMPLES = 20_000
_N_RESAMPLES_OF_CURVE = 2_000


class Estimate(NamedTuple):
    """A statistic and what other seeds might have given.

    :param value: the statistic of the runs at hand
    :param interval: its interval; None where a task has one run, since then nothing is known of how
        runs differ
    """

    value: float
    interval: tuple[float, float] | None


def interquartile_mean(scores: Sequence[Floats]) -> Floats:
    """Return the mean of what is left of all runs of all tasks without the best and worst quarter.

    A quarter of ``n`` scores are ``n // 4``, as in rliable: below four nothing is cut. All scores
    count alike, so a task with more runs counts more.
    """
    pooled = np.sort(np.concatenate(scores, axis=-1), axis=-1)
    cut = pooled.shape[-1] // 4
    return _floats(pooled[..., cut : pooled.shape[-1] - cut].mean(axis=-1))


def mean(scores: Sequence[Floats]) -> Floats:
    """Return the mean over tasks of each task's mean."""
    return _floats(_task_means(scores).mean(axis=-1))


def task_median(scores: Sequence[Floats]) -> Floats:
    """Return the median over tasks of each task's mean, the "median" of rliable.

    With one task this is its mean; :func:`run_median` is the median of its runs.
    """
    return _floats(np.median(_task_means(scores), axis=-1))


def run_median(scores: Sequence[Floats]) -> Floats:
    """Return the median of all runs of all tasks."""
    return _floats(np.median(np.concatenate(scores, axis=-1), axis=-1))


def optimality_gap(scores: Sequence[Floats]) -> Floats:
    """Return by how much normalised scores fall short of 1 on average; what exceeds 1 counts as 1.

    Each task counts alike.
    """
    return 1.0 - mean([np.minimum(task, 1.0) for task in scores])


def _task_means(scores: Sequence[Floats]) -> Floats:
    return np.stack([task.mean(axis=-1) for task in scores], axis=-1)


def _floats(values: Floats) -> Floats:
    return np.asarray(values, np.float64)


def check_scores(name: str, scores: Sequence[ArrayLike]) -> list[Floats]:
    """Return scores as arrays.

    :raises ValueError: unless there are tasks, each with a list of runs, all finite numbers
    """
    tasks = [np.asarray(task, np.float64) for task in scores]
    if not tasks:
        raise ValueError(f"{name} must hold at least one task, got none")
    for number, task in enumerate(tasks):
        if task.ndim != 1 or not task.size:
            raise ValueError(
                f"{name} must be one list of run scores per task, got {task!r} as task {number}"
            )
        if not np.isfinite(task).all():
            raise ValueError(f"{name} must be finite, got {task!r} as task {number}")
    return tasks


def resampled(
    scores: Sequence[ArrayLike],
    statistic: Statistic,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Floats:
    """Return a statistic of resampled runs: drawn with replacement within each task.

    :param scores: run scores of each task
    :param statistic: what to compute
    :param n_resamples: how often
    :param seed: of the draws; equal seeds give equal resamples
    :return: ``[n_resamples]``
    :raises ValueError: for scores that are none
    """
    tasks = check_scores("scores", scores)
    n_resamples = check_count("n_resamples", n_resamples)
    rng = np.random.default_rng(seed)
    draws = [task[rng.integers(task.size, size=(n_resamples, task.size))] for task in tasks]
    return statistic(draws)


def percentile_interval(samples: Floats, level: float = 0.95) -> tuple[float, float]:
    """Return the interval that holds the middle of samples.

    :param samples: ``[n]``
    :param level: share of them inside
    :raises ValueError: if ``level`` is not between 0 and 1
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}")
    tail = (1 - level) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    return float(low), float(high)


def estimate(
    scores: Sequence[ArrayLike],
    statistic: Statistic = interquartile_mean,
    level: float = 0.95,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Return a statistic with its stratified bootstrap interval.

    >>> estimate([[1.0, 2.0, 3.0, 6.0]])
    Estimate(value=2.5, interval=(1.0, 6.0))
    >>> estimate([[3.0]])
    Estimate(value=3.0, interval=None)

    :param scores: run scores of each task
    :param statistic: what to estimate
    :param level: of the interval
    :param n_resamples: resamples behind the interval
    :param seed: of the resampling
    :raises ValueError: for scores that are none, or a level outside (0, 1)
    """
    tasks = check_scores("scores", scores)
    value = float(statistic(tasks))
    if any(task.size == 1 for task in tasks):
        return Estimate(value, None)
    samples = resampled(tasks, statistic, n_resamples, seed)
    return Estimate(value, percentile_interval(samples, level))


def pointwise_estimates(
    values: ArrayLike, seed: int = 0
) -> tuple[Floats, tuple[Floats, Floats] | None]:
    """Return the interquartile mean of curves at each point, and the ends of its 95 % intervals.

    Each point has an interval of its own: the band as a whole holds less than 95 % of curves.

    :param values: ``[n_runs, n_points]``
    :param seed: of the resampling, the same runs at each point
    :return: ``[n_points]``, and low and high ``[n_points]`` or None of a single run
    :raises ValueError: for values that are no finite matrix
    """
    curves = np.asarray(values, np.float64)
    if curves.ndim != 2 or not len(curves) or not np.isfinite(curves).all():
        raise ValueError(f"values must be a finite [n_runs, n_points], got {values!r}")
    centre = interquartile_mean([curves.T])
    if len(curves) == 1:
        return centre, None
    rng = np.random.default_rng(seed)
    draws = rng.integers(len(curves), size=(_N_RESAMPLES_OF_CURVE, len(curves)))
    ends = [percentile_interval(interquartile_mean([point[draws]])) for point in curves.T]
    low, high = np.array(ends).reshape(-1, 2).T
    return centre, (low, high)


def probability_of_improvement(
    first: Sequence[ArrayLike],
    second: Sequence[ArrayLike],
    level: float = 0.95,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Return how probably a run of the first scores above a run of the second, ties half.

    This is Mann and Whitney's U over the number of pairs, on each task, and then the mean over
    tasks; for the interval the runs of both are resampled independently.

    >>> probability_of_improvement([[2.0, 3.0]], [[1.0, 2.0]]).value
    0.875

    :param first: run scores of each task
    :param second: run scores of the same tasks, of any number of runs
    :param level: of the interval
    :param n_resamples: resamples behind the interval
    :param seed: of the resampling
    :raises ValueError: for scores that are none, or of different numbers of tasks
    """
    pairs = _paired(first, second)
    rng = np.random.default_rng(seed)
    values, samples = [], []
    for of_first, of_second in pairs:
        won = _wins(of_first, of_second)
        values.append(won.mean())
        # How often each run is drawn says all that a resample is.
        drawn = [
            rng.multinomial(size, np.full(size, 1 / size), n_resamples) / size for size in won.shape
        ]
        samples.append(((drawn[0] @ won) * drawn[1]).sum(axis=1))
    value = float(np.mean(values))
    if any(task.size == 1 for pair in pairs for task in pair):
        return Estimate(value, None)
    return Estimate(value, percentile_interval(np.mean(samples, axis=0), level))


def _paired(first: Sequence[ArrayLike], second: Sequence[ArrayLike]) -> list[tuple[Floats, Floats]]:
    if len(first) != len(second):
        raise ValueError(
            f"first and second must be of the same tasks, got {len(first)} and {len(second)} tasks"
        )
    return list(zip(check_scores("first", first), check_scores("second", second), strict=True))


def _wins(first: Floats, second: Floats) -> Floats:
    """1 where a run of the first is better, 1/2 where they tie, else 0: ``[n_first, n_second]``."""
    return 0.5 * (1 + np.sign(first[:, None] - second[None, :]))


def mann_whitney_p(first: ArrayLike, second: ArrayLike) -> float:
    """Return the exact two-sided p-value of Mann and Whitney's test, also with ties.

    It is the share of all ways to deal the scores at hand to two groups of these sizes whose rank
    sum is at least as far from its mean. Three runs against three never get below 0.1.

    >>> mann_whitney_p([4, 5, 6], [1, 2, 3])
    0.1

    :param first: run scores
    :param second: run scores
    :raises ValueError: for scores that are none
    """
    groups = check_scores("first", [first]) + check_scores("second", [second])
    ranks = _doubled_ranks(np.concatenate(groups))
    n_first = groups[0].size
    ways = _ways_to_sum(ranks, n_first)
    # Twice the sum's mean is a whole number, so no comparison is a matter of rounding.
    away = np.abs(2 * np.arange(ways.size) * ranks.size - 2 * n_first * ranks.sum())
    observed = away[ranks[:n_first].sum()]
    return float(ways[away >= observed].sum() / ways.sum())


def _doubled_ranks(values: Floats) -> NDArray[np.int64]:
    """Return twice the ranks, ties sharing theirs, as whole numbers."""
    below = (values[None, :] < values[:, None]).sum(axis=1)
    equal = (values[None, :] == values[:, None]).sum(axis=1)
    return np.asarray(2 * below + equal + 1, np.int64)


def _ways_to_sum(ranks: NDArray[np.int64], n_chosen: int) -> Floats:
    """Return in how many ways ``n_chosen`` of the ranks give each sum."""
    highest = int(np.sort(ranks)[-n_chosen:].sum())
    ways = np.zeros((n_chosen + 1, highest + 1))
    ways[0, 0] = 1
    for rank in ranks:
        without = ways.copy()
        ways[1:, rank:] += without[:-1, : highest + 1 - rank]
    return _floats(ways[n_chosen])


class Reached(NamedTuple):
    """What it took a set of runs to reach a threshold.

    :param median: over runs, those that did not reach it counting as later than all others; None
        if it lies among these
    :param missed: runs that did not reach it
    :param n_runs: all runs
    """

    median: float | None
    missed: int
    n_runs: int


def first_reaching(curve: Sequence[tuple[float, float]], threshold: float) -> float | None:
    """Return where a curve first reaches a threshold; None if it does not.

    :param curve: points (steps or seconds, score) in order
    :param threshold: score to reach
    """
    return next((at for at, score in curve if score >= threshold), None)


def median_reaching(found: Sequence[float | None]) -> Reached:
    """Summarise over runs what :func:`first_reaching` found.

    >>> median_reaching([300.0, None, 100.0])
    Reached(median=300.0, missed=1, n_runs=3)
    >>> median_reaching([300.0, None])
    Reached(median=None, missed=1, n_runs=2)

    :raises ValueError: if there is no run
    """
    if not found:
        raise ValueError("found must hold at least one run, got none")
    costs = [math.inf if cost is None else cost for cost in found]
    median = float(np.median(costs))
    missed = sum(cost is None for cost in found)
    return Reached(median if math.isfinite(median) else None, missed, len(found))

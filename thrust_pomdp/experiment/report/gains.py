"""By how much the arms with memory are better than what has none."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from thrust_pomdp.experiment.report.number_format import format_count
from thrust_pomdp.experiment.report.rule import ERROR, MIN_RUNS, Scale
from thrust_pomdp.experiment.report.runs import Contest, Floats, label_of
from thrust_pomdp.experiment.statistics import (
    N_RESAMPLES,
    Estimate,
    interquartile_mean,
    mann_whitney_p,
    percentile_interval,
    probability_of_improvement,
    resampled,
)


@dataclass(frozen=True)
class Gain:
    """By how much an arm with memory is better than a memoryless contestant.

    :param arm: the arm with memory
    :param over: the memoryless arm, or None for the ladder's controller
    :param value: difference of the interquartile means
    :param interval: the error split over the arms with memory
    :param highest: upper end, the error split over the memoryless contestants
    :param improvement: probability that a run of the one beats a run of the other
    :param p: of the exact test of Mann and Whitney
    """

    arm: str
    over: str | None
    value: float
    interval: tuple[float, float]
    highest: float
    improvement: Estimate | None
    p: float | None


class Sides(NamedTuple):
    """Scores of the arms that take part."""

    memory: dict[str, Floats]
    memoryless: dict[str, Floats]


def sides_of(contest: Contest) -> tuple[Sides, list[str]]:
    """Return the arms that take part, and why others do not."""
    sides, left_out = Sides({}, {}), []
    for arm in contest.arms:
        scores, memory = contest.scores(arm), contest.memory_of(arm)
        if memory == "state":
            continue  # it needs no memory: what it earns is what memory could be worth
        if memory == "unknown":
            left_out.append(f"{label_of(arm)}: whether it has memory is not known")
        elif scores.size < MIN_RUNS:
            finished = format_count(scores.size, "finished run")
            left_out.append(f"{label_of(arm)}: {finished}, fewer than {MIN_RUNS}")
        else:
            (sides.memoryless if memory == "none" else sides.memory)[arm] = scores
    return sides, left_out


def gains_of(sides: Sides, scale: Scale) -> list[Gain]:
    """Compare every arm with memory with every memoryless contestant."""
    samples = samples_of(sides.memory | sides.memoryless)
    over: list[str | None] = list(sides.memoryless)
    if scale.floor is not None:
        over.append(None)
    return [
        _gain(sides, scale, samples, arm, contestant, len(over))
        for arm, contestant in product(sides.memory, over)
    ]


def samples_of(scores: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the interquartile means of arms' resampled runs, ``[N_RESAMPLES]`` each."""
    # A seed each, whoever else takes part: two arms of as many runs must not draw the same ones.
    return {
        arm: resampled([of_arm], interquartile_mean, seed=zlib.crc32(arm.encode()))
        for arm, of_arm in scores.items()
    }


def _gain(
    sides: Sides,
    scale: Scale,
    samples: Mapping[str, Floats],
    arm: str,
    over: str | None,
    n_contestants: int,
) -> Gain:
    scores = sides.memory[arm]
    if over is None:
        assert scale.floor is not None
        rng = np.random.default_rng(0)
        base = rng.normal(scale.floor.mean, scale.floor.standard_error, N_RESAMPLES)
        reached, improvement, p = scale.floor.mean, None, None
    else:
        others = sides.memoryless[over]
        base, reached = samples[over], iqm(others)
        improvement = probability_of_improvement([scores], [others])
        p = mann_whitney_p(scores, others)
    gained = samples[arm] - base
    return Gain(
        arm,
        over,
        iqm(scores) - reached,
        percentile_interval(gained, 1 - ERROR / len(sides.memory)),
        percentile_interval(gained, 1 - ERROR / n_contestants)[1],
        improvement,
        p,
    )


def iqm(scores: Floats) -> float:
    """Return the interquartile mean of an arm's scores."""
    return float(interquartile_mean([scores]))

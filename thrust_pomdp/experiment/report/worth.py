"""What memory is worth on an environment, as one number.

*Memory improvability*: of what separates the best arm without memory from an arm that sees the
state, the share that an arm with memory gains,

    (score with memory - best without) / (score with the state - best without).

0 is no better than without memory, 1 as good as seeing everything. The denominator alone is the
*observability gap*: what the sensors hide, in returns. POBAX (Tao et al. 2025) names the former and
chooses tasks by it; POPGym Arcade reports the latter, between twins of a task that show all and
part. Here both come with bootstrap intervals over runs, numerator and denominator of a resample
having the same runs without memory, and the share is told only where the interval of its
denominator lies above 0: a share of what may be nothing says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thrust_pomdp.experiment.report.gains import iqm, samples_of, sides_of
from thrust_pomdp.experiment.report.number_format import format_estimate
from thrust_pomdp.experiment.report.rule import MIN_RUNS
from thrust_pomdp.experiment.report.runs import Contest, label_of
from thrust_pomdp.experiment.statistics import Estimate, percentile_interval


@dataclass(frozen=True)
class Share:
    """What an arm with memory has of what seeing the state gains.

    :param arm: the arm
    :param improvability: its memory improvability; None where nothing to gain was found
    """

    arm: str
    improvability: Estimate | None


@dataclass(frozen=True)
class Worth:
    """What memory is worth on an environment.

    :param without: the best arm without memory
    :param state: the arm that sees the state
    :param gap: the observability gap, in returns
    :param shares: of each arm with memory
    """

    without: str
    state: str
    gap: Estimate
    shares: Sequence[Share]

    @property
    def lines(self) -> list[str]:
        """What is to be told of it."""
        gap = format_estimate(self.gap, max(abs(end) for end in (self.gap.interval or (0.0,))))
        told = (
            f"Observability gap: {label_of(self.state)} gains {gap} over {label_of(self.without)}, "
            "the best without memory."
        )
        given = [
            f"{label_of(share.arm)} {format_estimate(share.improvability, 1.0)}"
            for share in self.shares
            if share.improvability is not None
        ]
        if not given:
            return [f"{told} Nothing to gain was found, so there is no memory improvability."]
        return [f"{told} Memory improvability, the share of it that memory gains: "
                f"{', '.join(given)}."]  # fmt: skip


def worth_of(contest: Contest) -> Worth | str:
    """Return what memory is worth on an environment, or why that cannot be told.

    Like the verdict it takes arms of at least as many runs as the rule asks for.

    :param contest: the environment and its runs
    """
    state = next((arm for arm in contest.arms if contest.memory_of(arm) == "state"), None)
    if state is None:
        return "no arm saw the state (--arms ... state)"
    scores, (sides, _) = contest.scores(state), sides_of(contest)
    if scores.size < MIN_RUNS:
        return f"fewer than {MIN_RUNS} runs saw the state"
    if not sides.memory or not sides.memoryless:
        return f"it takes {MIN_RUNS} runs of an arm with memory and of one without"
    without = max(sides.memoryless, key=lambda arm: iqm(sides.memoryless[arm]))
    samples = samples_of({**sides.memory, **sides.memoryless, state: scores})
    base, floor = samples[without], iqm(sides.memoryless[without])
    gap = Estimate(iqm(scores) - floor, percentile_interval(samples[state] - base))
    assert gap.interval is not None
    shares = []
    for arm, of_arm in sides.memory.items():
        improvability = None
        if gap.interval[0] > 0:
            # Of the few resamples without a gap the share is as large as can be, of either sign.
            with np.errstate(divide="ignore", invalid="ignore"):
                drawn = np.nan_to_num((samples[arm] - base) / (samples[state] - base))
            improvability = Estimate((iqm(of_arm) - floor) / gap.value, percentile_interval(drawn))
        shares.append(Share(arm, improvability))
    return Worth(without, state, gap, shares)


def half_life_of(contest: Contest, arm: str) -> float | None:
    """Return the median over an arm's runs of how long one wrong frame disturbs its memory."""
    lives = [run.half_life for run in contest.arms[arm]]
    known = [np.inf if life is None else life for life in lives]
    median = float(np.median(known)) if known else np.inf
    return median if np.isfinite(median) else None


def format_half_life(steps: float | None) -> str:
    """Write how long one wrong frame disturbs a memory.

    >>> format_half_life(3.0), format_half_life(None)
    ('3 steps', '')
    """
    return "" if steps is None else f"{steps:g} step{'' if steps == 1 else 's'}"

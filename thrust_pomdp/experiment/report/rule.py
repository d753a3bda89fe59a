"""Whether memory pays on an environment, by a rule that stands before any run.

It is written down in :data:`RULE`, and on every page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from thrust_pomdp.experiment.report.runs import Contest
from thrust_pomdp.experiment.statistics import estimate
from thrust_pomdp.reference import Rung

#: Five runs against five, completely separated, have p = .008: enough for up to six arms with
#: memory. Three against three never get below .1.
MIN_RUNS = 5

#: Share of a scale that is the smallest gain that matters.
MARGIN_SHARE = 0.05

#: Chance of a wrong word that the intervals leave.
ERROR = 0.05

RULE = (
    "A run's score is the mean return of its evaluation episodes. Whether an arm acts by its most "
    "likely actions or by sampled ones is chosen for the whole arm, by the mean over its runs.",
    f"Arms with fewer than {MIN_RUNS} finished runs do not take part: of fewer, no outcome is "
    "evidence. An arm that sees its previous action or several frames is one with memory; the best "
    "memoryless controller of the reference ladder, where there is one, is a memoryless "
    "contestant.",
    "The gain of an arm with memory over a memoryless contestant is the difference of their "
    "interquartile means, with a bootstrap interval that resamples the runs of both. The margin is "
    f"the smallest gain that matters: {100 * MARGIN_SHARE:g} % of what separates the exact model "
    f"from random play on the ladder; without a ladder {100 * MARGIN_SHARE:g} % of the largest "
    "interquartile mean of any arm, its sign dropped; another one (--margin) may be given before "
    "the first run.",
    "Useless: each arm with memory has a memoryless contestant over which its gain is below the "
    "margin, the whole interval (95 %, the error split over the memoryless contestants), and where "
    "there is a ladder it agrees: from its best memoryless controller to its exact model is less "
    "than the margin. (Where it disagrees, the arms did not learn to use their memory: not "
    "decided.)",
    "Helps: an arm with memory gains at least the margin over every memoryless contestant, the "
    "whole interval is above 0 (95 %, the error split over the arms with memory), and the exact "
    "test of Mann and Whitney gives p at most 5 % (split likewise) against every memoryless arm.",
    "Needed: memory helps, and only with it the bar is met: the whole 95 % interval of such an arm "
    "is at or above the bar, that of every memoryless contestant below it. The bar is half way "
    "from random play to the exact model; without a ladder it is the environment's registered "
    "reward threshold, and where there is none, needed is never said; another one (--solved) may "
    "be given before the first run.",
    "Otherwise it is not decided with these seeds.",
)


@dataclass(frozen=True)
class Scale:
    """What differences are measured by, known before the runs.

    :param margin: smallest gain that matters
    :param bar: score that counts as doing the task; None if nothing says
    :param margin_source: where the margin is from
    :param bar_source: where the bar is from
    :param floor: the ladder's best memoryless controller
    :param ceiling: the ladder's exact model
    """

    margin: float
    bar: float | None
    margin_source: str
    bar_source: str
    floor: Rung | None = None
    ceiling: Rung | None = None

    @property
    def room(self) -> float | None:
        """What memory can gain by the ladder."""
        if self.floor is None or self.ceiling is None:
            return None
        return self.ceiling.mean - self.floor.mean


def known_before(contest: Contest) -> dict[str, float | None]:
    """Return margin, bar and floor of an environment as far as they are known before any run.

    :param contest: the environment; of its runs nothing is read
    """
    means = {rung.information: rung.mean for rung in contest.ladder}
    if {"nothing", "exact model"} <= means.keys():
        random, ceiling = means["nothing"], means["exact model"]
        margin, bar = MARGIN_SHARE * (ceiling - random), (ceiling + random) / 2
        return {"margin": margin, "bar": bar, "floor": means.get("memoryless")}
    return {"margin": None, "bar": contest.reward_threshold, "floor": None}


def scale_of(
    contest: Contest,
    margin: float | None = None,
    solved: float | None = None,
    kept: Mapping[str, float | None] | None = None,
) -> Scale:
    """Return margin and bar of an environment.

    :param contest: the environment and its runs
    :param margin: smallest gain that matters; by the rule if None
    :param solved: the bar; by the rule if None
    :param kept: what was known before the runs; a ladder of today does not change it
    """
    kept = kept or {}
    means = {rung.information: rung for rung in contest.ladder}
    random, ceiling = means.get("nothing"), means.get("exact model")
    bar: float | None
    if random and ceiling:
        spread, of = ceiling.mean - random.mean, "of the way from random play to the exact model"
        bar, bar_source = (ceiling.mean + random.mean) / 2, "half way from random to exact model"
    else:
        spread = max(abs(estimate([contest.scores(arm)]).value) for arm in contest.arms)
        of = "of the largest interquartile mean"
        bar, bar_source = contest.reward_threshold, "the environment's reward threshold"
    by_rule, margin_source = MARGIN_SHARE * spread, f"{100 * MARGIN_SHARE:g} % {of}"
    by_rule = by_rule if (known := kept.get("margin")) is None else known
    bar = bar if (known := kept.get("bar")) is None else known
    if margin is not None:
        margin_source = "given"
    if solved is not None:
        bar, bar_source = solved, "given"
    return Scale(
        by_rule if margin is None else margin,
        bar,
        margin_source,
        bar_source if bar is not None else "nothing says which score counts as doing the task",
        means.get("memoryless"),
        ceiling,
    )

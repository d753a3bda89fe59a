"""The rule applied: whether memory pays, in a sentence with the figures it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from thrust_pomdp.experiment.report.gains import Gain, Sides, gains_of, iqm, sides_of
from thrust_pomdp.experiment.report.number_format import format_estimate, format_number
from thrust_pomdp.experiment.report.rule import ERROR, MIN_RUNS, Scale, scale_of
from thrust_pomdp.experiment.report.runs import Contest, label_of
from thrust_pomdp.experiment.statistics import Estimate, estimate

Outcome: TypeAlias = Literal["needed", "helps", "useless", "not decided"]


@dataclass(frozen=True)
class Verdict:
    """What the rule says.

    :param outcome: in a word
    :param sentence: in a sentence, with the figures it rests on
    :param scale: margin and bar
    :param gains: all comparisons that took part
    :param left_out: why arms did not take part
    :param origin: how what it goes by came to be
    :param mark: what was not there before the first run, in a few words; nothing if all was
    :param remarks: what else one must know who believes it
    """

    outcome: Outcome
    sentence: str
    scale: Scale
    gains: Sequence[Gain] = ()
    left_out: Sequence[str] = ()
    origin: str = ""
    mark: str = ""
    remarks: Sequence[str] = ()

    @property
    def rule(self) -> str:
        """What it goes by, in a sentence or two."""
        margin = f"margin {format_number(self.scale.margin)} ({self.scale.margin_source})"
        bar = f"no bar ({self.scale.bar_source})"
        if self.scale.bar is not None:
            bar = f"bar {format_number(self.scale.bar)} ({self.scale.bar_source})"
        return f"By the rule with {margin} and {bar}. {self.origin}".rstrip()

    @property
    def lines(self) -> list[str]:
        """All that is to be told of it."""
        return [self.sentence, self.rule, *self.remarks]


def decide(
    contest: Contest,
    margin: float | None = None,
    solved: float | None = None,
    kept: Mapping[str, float | None] | None = None,
) -> Verdict:
    """Apply the rule.

    :param contest: the environment and its runs
    :param margin: smallest gain that matters; by the rule if None
    :param solved: score that counts as doing the task; by the rule if None
    :param kept: margin and bar as they were known before the runs
    :raises ValueError: if the margin is negative
    """
    if margin is not None and not margin >= 0:
        raise ValueError(f"margin must be at least 0, got {margin!r}")
    scale = scale_of(contest, margin, solved, kept)
    sides, left_out = sides_of(contest)
    if not sides.memory or not sides.memoryless:
        return Verdict("not decided", _not_decided(_missing(contest)), scale, (), left_out)
    gains = gains_of(sides, scale)
    if _is_useless(sides, gains, scale):
        outcome, sentence = _without_gain(gains, scale)
    else:
        outcome, sentence = _with_gain(contest, sides, gains, scale)
    return Verdict(outcome, sentence, scale, gains, left_out)


def _of_arm(gains: Sequence[Gain], arm: str) -> list[Gain]:
    return [gain for gain in gains if gain.arm == arm]


def _over_best(gains: Sequence[Gain], arm: str) -> Gain:
    """Return the gain over the memoryless contestant that is hardest to beat."""
    return min(_of_arm(gains, arm), key=lambda gain: gain.value)


def _is_useless(sides: Sides, gains: Sequence[Gain], scale: Scale) -> bool:
    """Whether no arm with memory gains as much as matters."""
    return all(
        any(gain.highest <= scale.margin for gain in _of_arm(gains, arm)) for arm in sides.memory
    )


def _helps(sides: Sides, gain: Gain, scale: Scale) -> bool:
    return (
        gain.value >= scale.margin
        and gain.interval[0] > 0
        and (gain.p is None or gain.p <= ERROR / len(sides.memory))
    )


def _without_gain(gains: Sequence[Gain], scale: Scale) -> tuple[Outcome, str]:
    most = max((_over_best(gains, gain.arm) for gain in gains), key=lambda gain: gain.value)
    margin = format_number(scale.margin)
    if scale.room is not None and scale.room >= scale.margin:
        return "not decided", _not_decided(
            f"no arm with memory gains as much as the margin of {margin} over the best memoryless "
            f"contestant, yet by the ladder an exact model gains {format_number(scale.room)}: "
            "these arms did not learn to use their memory"
        )
    return "useless", (
        "Memory is useless with these arms and this budget: none gains as much as the margin of "
        f"{margin} over the best memoryless contestant. The largest is the {_of_whom(most)}, "
        f"{_value_of(most)}."
    )


def _with_gain(
    contest: Contest, sides: Sides, gains: Sequence[Gain], scale: Scale
) -> tuple[Outcome, str]:
    by_score = sorted(sides.memory, key=lambda arm: -iqm(sides.memory[arm]))
    helping = [
        arm for arm in by_score if all(_helps(sides, gain, scale) for gain in _of_arm(gains, arm))
    ]
    if not helping:
        failing = [g for g in _of_arm(gains, by_score[0]) if not _helps(sides, g, scale)]
        gain = min(failing, key=lambda gain: gain.value)
        return "not decided", _not_decided(
            f"the {_of_whom(gain)} is {_value_of(gain)}, and {_open(gain, scale)}"
        )
    short = {arm: _short_of_needed(sides, arm, scale) for arm in helping}
    needing = [arm for arm in helping if short[arm] is None]
    if needing:
        return "needed", _needed(sides, needing[0], scale) + _with_less(contest, sides, needing)
    best = helping[0]
    gain = _over_best(gains, best)
    return "helps", (
        f"Memory helps: {_reaches(sides, best)}; the {_of_whom(gain)} is {_value_of(gain)}. Is it "
        f"needed? {short[best]}.{_with_less(contest, sides, helping)}"
    )


#: Kinds of memory, from little to much.
_AMOUNTS = ("previous action", "frames", "recurrent")


def _with_less(contest: Contest, sides: Sides, arms: Sequence[str]) -> str:
    """Name the arms that do it with less memory than the best one.

    :param arms: those that do it, the best first
    """
    amount = {arm: _AMOUNTS.index(contest.memory_of(arm)) for arm in arms}
    less = [
        f"{label_of(arm)} {format_estimate(estimate([sides.memory[arm]]))}"
        for arm in arms
        if amount[arm] < amount[arms[0]]
    ]
    return f" Less memory does it too: {', '.join(less)}." if less else ""


def _reaches(sides: Sides, arm: str) -> str:
    return f"{label_of(arm)} reaches {format_estimate(estimate([sides.memory[arm]]))}"


def _needed(sides: Sides, arm: str, scale: Scale) -> str:
    rivals = [
        f"{label_of(rival)} {format_estimate(estimate([scores]))}"
        for rival, scores in sides.memoryless.items()
    ]
    if scale.floor is not None:
        rivals.append(f"the best memoryless controller found {format_number(scale.floor.mean)}")
    assert scale.bar is not None
    return (
        f"Memory is needed: {_reaches(sides, arm)}; without memory: {', '.join(rivals)}. The bar "
        f"is {format_number(scale.bar)}, {scale.bar_source}."
    )


def _short_of_needed(sides: Sides, best: str, scale: Scale) -> str | None:
    """Return why memory that helps is not said to be needed; None if it is."""
    if scale.bar is None:
        return "Unknown, since nothing says which score counts as doing the task (--solved does)"
    bar = f"the bar of {format_number(scale.bar)} ({scale.bar_source})"
    ends = estimate([sides.memory[best]]).interval
    assert ends is not None
    if ends[0] < scale.bar:
        return f"Not shown, since {label_of(best)} does not surely reach {bar}"
    for arm, scores in sides.memoryless.items():
        ends = estimate([scores]).interval
        assert ends is not None
        if ends[1] >= scale.bar:
            return f"Not shown, since {label_of(arm)} may reach {bar} without"
    if scale.floor is not None and scale.floor.interval[1] >= scale.bar:
        return f"No, a memoryless controller may reach {bar} too"
    return None


def _open(gain: Gain, scale: Scale) -> str:
    """Return what keeps a gain from counting."""
    if gain.interval[0] <= 0:
        return "that there is none cannot be ruled out"
    if gain.value < scale.margin:
        return f"whether it reaches the margin of {format_number(scale.margin)} is open"
    return f"the exact test gives p = {gain.p:.2g}, too much for so many arms"


def _of_whom(gain: Gain) -> str:
    over = "the best memoryless controller found" if gain.over is None else label_of(gain.over)
    return f"gain of {label_of(gain.arm)} over {over}"


def _value_of(gain: Gain) -> str:
    size = max(abs(end) for end in (*gain.interval, gain.value))
    return format_estimate(Estimate(gain.value, gain.interval), size)


def _missing(contest: Contest) -> str:
    sides = [
        (what, [arm for arm in contest.arms if contest.memory_of(arm) in kinds])
        for what, kinds in (
            ("with memory", ("previous action", "frames", "recurrent")),
            ("without memory", ("none",)),
        )
    ]
    for what, arms in sides:
        if not arms:
            return f"no arm {what} took part"
    most = [f"{max(len(contest.arms[arm]) for arm in arms)} {what}" for what, arms in sides]
    return (
        f"the rule asks for {MIN_RUNS} finished runs of an arm with memory and of one without; the "
        f"most of one arm are {' and '.join(most)} (compare goes on in the same folder with more "
        "--seeds)"
    )


def _not_decided(reason: str) -> str:
    return f"Not decided with these seeds: {reason}."

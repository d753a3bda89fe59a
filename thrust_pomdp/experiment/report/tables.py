"""The tables of the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from thrust_pomdp.experiment.arms import Memory
from thrust_pomdp.experiment.report.figures import can_normalize
from thrust_pomdp.experiment.report.number_format import (
    format_duration,
    format_estimate,
    format_interval,
    format_number,
    format_reached,
    format_steps,
)
from thrust_pomdp.experiment.report.rule import Scale
from thrust_pomdp.experiment.report.runs import MODES, Contest, Floats, Run, label_of
from thrust_pomdp.experiment.report.verdict import Verdict
from thrust_pomdp.experiment.report.worth import Worth, format_half_life, half_life_of
from thrust_pomdp.experiment.statistics import (
    Statistic,
    estimate,
    first_reaching,
    interquartile_mean,
    mean,
    median_reaching,
    optimality_gap,
    run_median,
    task_median,
)
from thrust_pomdp.reference import normalized

_MEMORY_NAMES: dict[Memory, str] = {
    "none": "none",
    "previous action": "its last action",
    "frames": "a few frames",
    "recurrent": "recurrent",
    "state": "needs none",
    "unknown": "not known",
}


#: Values of one thing that differs between runs, such as when they were started.
_MOST_VALUES = 4


class Marked(NamedTuple):
    """A text that stands out: bold, or as one types it."""

    mark: Literal["b", "code"]
    text: str


#: What a cell shows; of a list each on a line of its own.
Cell: TypeAlias = "str | Marked | Sequence[str | Marked]"


class Table(NamedTuple):
    """A table of the page.

    :param head: the columns' names
    :param rows: cells
    :param words: columns that hold words; the others hold numbers
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: Collection[int] = (0,)


def scores(contest: Contest) -> Table:
    """Return what each arm reaches, both ways of acting, the one that counts in bold."""
    head = [
        "Arm",
        "Most likely: IQM [95\N{NO-BREAK SPACE}%]",
        "Sampled: IQM [95\N{NO-BREAK SPACE}%]",
    ]
    with_gap = can_normalize(contest)
    if with_gap:
        head += [
            "Gap closed: IQM [95\N{NO-BREAK SPACE}%]",
            "Optimality gap [95\N{NO-BREAK SPACE}%]",
        ]
    head += ["Median", "Mean", "Runs", "Memory"]
    rows = [_scores_row(contest, arm, with_gap) for arm in contest.arms]
    return Table(head, rows, words=(0, len(head) - 1))


def _scores_row(contest: Contest, arm: str, with_gap: bool) -> list[Cell]:
    chosen, of_runs, size = contest.mode_of(arm), contest.scores(arm), _size(contest)
    cells: list[Cell] = [label_of(arm)]
    for mode in MODES:
        text = format_estimate(estimate([contest.scores(arm, mode)]), size)
        cells.append(Marked("b", text) if mode == chosen else text)
    if with_gap:
        shares = gap_closed(contest, arm)
        cells += [
            format_estimate(estimate([shares], statistic), 1.0)
            for statistic in (interquartile_mean, optimality_gap)
        ]
    cells += [format_number(float(statistic([of_runs])), size) for statistic in (run_median, mean)]
    return [*cells, str(of_runs.size), _MEMORY_NAMES[contest.memory_of(arm)]]


def _size(contest: Contest) -> float:
    """Return the largest score, by which all of a table are rounded alike."""
    every = (contest.scores(arm, mode) for arm in contest.arms for mode in MODES)
    return float(max(np.abs(scores).max() for scores in every))


def gap_closed(contest: Contest, arm: str) -> Floats:
    """Return the share of the memory gap that each run of an arm closes."""
    return np.array([normalized(score, contest.ladder) for score in contest.scores(arm)])


def gains(verdict: Verdict) -> Table:
    """Return the comparisons a verdict rests on."""
    head = ["With memory", "Without", "Gain in IQM", "Its interval", "Probability of improvement",
            "p"]  # fmt: skip
    rows = []
    for gain in verdict.gains:
        over = "best memoryless controller found" if gain.over is None else label_of(gain.over)
        size = max(abs(end) for end in (*gain.interval, gain.value))
        rows.append(
            [
                label_of(gain.arm),
                over,
                format_number(gain.value, size),
                format_interval(gain.interval, size),
                "" if gain.improvement is None else format_estimate(gain.improvement, 1.0),
                "" if gain.p is None else f"{gain.p:.2g}",
            ]
        )
    return Table(head, rows, words=(0, 1))


def worth(contest: Contest, found: Worth | str) -> Table | None:
    """Return what memory is worth to each arm that has one; None where nothing is known."""
    shares = {} if isinstance(found, str) else {share.arm: share for share in found.shares}
    recurrent = [arm for arm in contest.arms if contest.memory_of(arm) == "recurrent"]
    lives = {arm: format_half_life(half_life_of(contest, arm)) for arm in recurrent}
    arms = [arm for arm in contest.arms if arm in shares or lives.get(arm)]
    if not arms:
        return None
    rows: list[list[Cell]] = []
    for arm in arms:
        value = shares[arm].improvability if arm in shares else None
        told = "" if value is None else format_estimate(value, 1.0)
        rows.append([label_of(arm), told, lives.get(arm, "")])
    improvability = "Memory improvability [95\N{NO-BREAK SPACE}%]"
    return Table(["With memory", improvability, "Half-life of a wrong frame"], rows)


def cost(contest: Contest, scale: Scale) -> Table:
    """Return what training took, and what it took to get somewhere."""
    found = thresholds(contest, scale)
    head = ["Arm", "Steps trained", "Steps per second", "Training time"]
    for name, value in found:
        head.append(f"To {format_number(value)}: {name}")
    return Table(head, [_cost_row(arm, runs, found) for arm, runs in contest.arms.items()])


def _cost_row(arm: str, runs: Sequence[Run], found: Sequence[tuple[str, float]]) -> list[str]:
    def median(of_run: Callable[[Run], float]) -> float:
        return float(np.median([of_run(run) for run in runs]))

    cells = [
        label_of(arm),
        format_steps(median(lambda run: run.timesteps)),
        f"{median(lambda run: run.timesteps / max(run.seconds, 1e-9)):,.0f}",
        format_duration(median(lambda run: run.seconds)),
    ]
    for _, value in found:
        at = [first_reaching([tuple(point) for point in run.curve], value) for run in runs]
        taken = [
            None if step is None else float(run.seconds_at(np.array([step]))[0])
            for run, step in zip(runs, at, strict=True)
        ]
        cells.append(format_reached(median_reaching(at), median_reaching(taken)))
    return cells


def thresholds(contest: Contest, scale: Scale) -> list[tuple[str, float]]:
    """Return the scores whose reaching is timed: from the ladder, or else from the curves."""
    found = [] if scale.bar is None else [(scale.bar_source, scale.bar)]
    if can_normalize(contest):
        assert scale.floor is not None
        assert scale.ceiling is not None
        found.append(("best memoryless controller found", scale.floor.mean))
        most = scale.floor.mean + 0.95 * (scale.ceiling.mean - scale.floor.mean)
        found.append(("95 % of the memory gap", most))
    else:
        found += _shares_of_the_climb(contest)
    return sorted(found, key=lambda named: named[1])


def _shares_of_the_climb(contest: Contest) -> list[tuple[str, float]]:
    curves = {
        arm: [run.curve[:, 1] for run in runs if len(run.curve)]
        for arm, runs in contest.arms.items()
    }
    ends = {
        place: [float(interquartile_mean([np.array([curve[place] for curve in of_arm])]))
                for of_arm in curves.values() if of_arm]
        for place in (0, -1)
    }  # fmt: skip
    if not ends[0]:
        return []
    low, high = min(ends[0]), max(ends[-1])
    if not high > low:
        return []
    return [
        (f"{share:.0%} of the climb from the lowest start to the best end".replace("%", " %"),
         low + share * (high - low))
        for share in (0.5, 0.9)
    ]  # fmt: skip


def runs(contest: Contest) -> Table:
    """Return a row per run."""
    head = ["Arm", "Seed", "Final", "Best", "Most likely", "Sampled", "Steps", "Seconds"]
    size = _size(contest)
    rows = [
        [
            label_of(arm), str(run.spec["seed"]),
            *(format_number(value, size) for value in (run.final, run.best)),
            *(format_number(run.score(mode), size) for mode in MODES),
            f"{run.timesteps:,}", f"{run.seconds:,.1f}",
        ]
        for arm, of_arm in contest.arms.items()
        for run in of_arm
    ]  # fmt: skip
    return Table(head, rows)


def recipes(contest: Contest) -> Table | None:
    """Return how the arms were trained, a column each; None if nothing is known."""
    flat = {arm: distinct([run.recipe for run in of_arm]) for arm, of_arm in contest.arms.items()}
    names = dict.fromkeys(name for recipe in flat.values() for name in recipe)
    if not names:
        return None
    rows = [[name, *(flat[arm].get(name, []) for arm in flat)] for name in names]
    return Table(["", *map(label_of, flat)], rows, words=range(1 + len(flat)))


def done(contests: Sequence[Contest]) -> Table:
    """Return what was run: budget, seeds and episodes, a row for each arm on each environment."""
    head = ["Environment", "Arm", "Seeds", "Steps asked for", "Steps trained",
            "Episodes: most likely, sampled", "Evaluations during training"]  # fmt: skip
    rows = [_done_row(contest, arm) for contest in contests for arm in contest.arms]
    return Table(head, rows, words=(0, 1))


def _done_row(contest: Contest, arm: str) -> list[str]:
    runs = contest.arms[arm]
    asked = {run.budget for run in runs if run.budget is not None}
    episodes = {tuple(run.returns[mode].size for mode in MODES) for run in runs}
    return [
        contest.title,
        label_of(arm),
        ", ".join(str(run.spec["seed"]) for run in runs),
        ", ".join(f"{value:,}" for value in sorted(asked)) or "not known",
        ", ".join(f"{value:,}" for value in sorted({run.timesteps for run in runs})),
        "; ".join(", ".join(map(str, sizes)) for sizes in sorted(episodes)),
        ", ".join(str(value) for value in sorted({len(run.evaluations) for run in runs})),
    ]


def provenance(of: Sequence[Run]) -> Table | None:
    """Return where runs come from; None if nothing is known."""
    known = distinct([run.provenance for run in of])
    if not known:
        return None
    rows = []
    for name, values in known.items():
        shown: list[str | Marked] = [Marked("code", value) for value in values[:_MOST_VALUES]]
        if len(values) > _MOST_VALUES:
            shown.append(f"and {len(values) - _MOST_VALUES} more")
        rows.append([name, shown])
    return Table(["", "Value"], rows, words=(0, 1))


def distinct(mappings: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the values of each key, nested keys joined by dots, every value once.

    >>> distinct([{"a": {"b": 1}, "c": [2]}, {"a": {"b": 3}, "c": [2]}])
    {'a.b': ['1', '3'], 'c': ['[2]']}
    """
    found: dict[str, dict[str, None]] = {}
    for mapping in mappings:
        for name, value in _flat(mapping):
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items()}


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            found.append((f"{prefix}{key}", text))
    return found


#: Name in the table -> statistic of normalised scores, over several environments.
_OVERALL: dict[str, Statistic] = {
    "IQM [95\N{NO-BREAK SPACE}%]": interquartile_mean,
    "Median [95\N{NO-BREAK SPACE}%]": task_median,
    "Mean [95\N{NO-BREAK SPACE}%]": mean,
    "Optimality gap [95\N{NO-BREAK SPACE}%]": optimality_gap,
}


def overall(contests: Sequence[Contest]) -> Table | None:
    """Return what arms reach over all environments that have a ladder; None of one environment."""
    usable = [contest for contest in contests if can_normalize(contest)]
    arms = [arm for arm in usable[0].arms if all(arm in c.arms for c in usable)] if usable else []
    if len(usable) < 2 or not arms:
        return None
    rows = []
    for arm in arms:
        shares = [gap_closed(contest, arm) for contest in usable]
        cells = [format_estimate(estimate(shares, of), 1.0) for of in _OVERALL.values()]
        rows.append([label_of(arm), str(sum(share.size for share in shares)), *cells])
    return Table(["Arm", "Runs", *_OVERALL], rows)

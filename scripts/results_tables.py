"""The tables of the project's own results, in Markdown, from the committed CSV files alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from results_plan import Comparison, PlayedGrid, lines_of, read_grids, rows_of

from thrust_pomdp.experiment.arms import ARM_LABELS
from thrust_pomdp.experiment.report.number_format import format_count
from thrust_pomdp.experiment.report.rule import MIN_RUNS
from thrust_pomdp.experiment.statistics import estimate, interquartile_mean
from thrust_pomdp.reference.figures import stored_ladder

#: How actions are chosen, by the column of summary.csv.
_MODES = {"most_likely": "most likely", "sampled": "sampled"}

#: Where a page has a table: its kind, its name.
MARKS = re.compile(
    r"(<!-- (table|scores|variants|passing|training|grid): (\S+) -->\n).*?(<!-- end -->)", re.DOTALL
)

#: What arms are called at the head of a column.
_SHORT = {
    "mlp": "memoryless PPO",
    "mlp-prev-action": "previous action only",
    "frame-stack": "last few frames",
    "lstm": "LSTM",
    "lstm-prev-action": "LSTM, previous action",
    "gru": "GRU",
    "gru-prev-action": "GRU, previous action",
    "lstm-privileged": "LSTM, privileged critic",
    "lstm-prev-action-privileged": "LSTM, previous action, privileged critic",
}


def filled(page: str, plan: Mapping[str, list[Comparison]]) -> str:
    """Return the page with each table as the CSV files have it."""

    def fill(match: re.Match[str]) -> str:
        if match[2] == "grid":
            lines = grid_table(read_grids()[match[3]])
        else:
            lines = _KINDS[match[2]](plan[match[3]])
        return match[1] + "\n".join([*lines, *_notes(lines)]) + "\n" + match[4]

    return MARKS.sub(fill, page)


def table(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a table in Markdown, a line per arm of each comparison, and what is missing."""
    lines = _heading("environment", "arm", *_HEADS, "without memory, with (ladder)")
    missing = []
    for comparison in comparisons:
        environment, ladder = titled(comparison) + verdict(comparison), ladder_of(comparison)
        for arm in comparison.arms:
            found = score(comparison, arm)
            if found is not None:
                name, cells = ARM_LABELS.get(arm, arm), _cells(found, comparison)
                lines.append(f"| {environment} | {name} | {cells} | {ladder} |")
                environment = ladder = ""
        if lacking := unfinished(comparison):
            missing.append(f"* {comparison.name}: {', '.join(lacking)}")
    return [*lines, "", "Planned, and seeds of it not run yet:", "", *missing] if missing else lines


def verdict(comparison: Comparison) -> str:
    """Return a comparison's goal, and whether the best arm reaches it; nothing without a goal."""
    if comparison.goal is None:
        return ""
    goal = f"<br>goal {number(comparison.goal)}"
    found = [one for arm in comparison.arms if (one := score(comparison, arm)) is not None]
    if not found:
        return goal
    best = max(found, key=lambda one: one.value)
    if best.value >= comparison.goal:
        return f"{goal}: reached{few(len(best.seeds))}"
    return f"{goal}: **missed**" + (" so far" if unfinished(comparison) else "")


def unfinished(comparison: Comparison) -> list[str]:
    """Return the arms of which seeds are missing, by the names that tables have."""
    return [
        ARM_LABELS.get(arm, arm)
        for arm in comparison.arms
        if len(rows_of(comparison, arm)) < comparison.seeds
    ]


def variants(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a table in Markdown, a line per comparison, which is of one arm."""
    lines = _heading("environment", "variant", *_HEADS)
    shown = ""
    for comparison in comparisons:
        (arm,) = comparison.arms
        environment = "" if comparison.env == shown else f"`{comparison.env}`"
        shown = comparison.env
        found = score(comparison, arm)
        cells = _absent(len(_HEADS)) if found is None else _cells(found, comparison)
        lines.append(f"| {environment} | {comparison.note} | {cells} |")
    return lines


def passing(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a table in Markdown, a line per arm: how many of its runs reach the bar."""
    lines = _heading("environment", "arm", "runs that reach it", *_HEADS)
    for comparison in comparisons:
        if comparison.bar is None:
            raise ValueError(f"{comparison.name} needs a bar")
        environment = f"{titled(comparison)}<br>bar {number(comparison.bar)}"
        for arm in comparison.arms:
            found = score(comparison, arm)
            cells = _absent(1 + len(_HEADS))
            if found is not None:
                means = [float(row["most_likely"]) for row in rows_of(comparison, arm)]
                passed = sum(mean >= comparison.bar for mean in means)
                cells = f"**{passed} of {len(means)}** | {_cells(found, comparison)}"
            lines.append(f"| {environment} | {ARM_LABELS.get(arm, arm)} | {cells} |")
            environment = ""
    return lines


def training(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a table in Markdown of what arms reach *while* training, beside what others report.

    ``final`` and ``best`` are means of 100 training episodes, the last ones and the best window;
    their means over the seeds.
    """
    lines = _heading("environment", "arm", "steps", "seeds", "final", "best", "published")
    for comparison in comparisons:
        environment = title(comparison)
        for arm, published in comparison.published.items():
            rows = rows_of(comparison, arm)
            cells = [ARM_LABELS.get(arm, arm), "not run yet", "", "", ""]
            if rows:
                means = [
                    fmean(float(row[key]) for row in rows) for key in ("steps", "final", "best")
                ]
                steps, final, best = means
                marked = [f"{number(value)}{few(len(rows))}" for value in (final, best)]
                cells[1:] = [thousands(steps), str(len(rows)), *marked]
            lines.append(f"| {environment} | {' | '.join(cells)} | {published} |")
            environment = ""
    return lines


def scores(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a table in Markdown, a line per environment and a column per arm.

    Under each score stand the steps of its trainings, and of fewer seeds than are evidence how many
    there were. The best of a line is bold, one of few seeds never; the two ends of the ladder stand
    on the right. What was not run yet is left out.
    """
    found = {
        comparison.name: {
            arm: one for arm in comparison.arms if (one := score(comparison, arm)) is not None
        }
        for comparison in comparisons
    }
    met = dict.fromkeys(arm for values in found.values() for arm in values)
    arms = [arm for arm in _SHORT if arm in met] + [arm for arm in met if arm not in _SHORT]
    heads = ["environment", *(_SHORT.get(arm, arm) for arm in arms), "ladder: without memory, with"]
    lines = _heading(*heads)
    for comparison in comparisons:
        values = found[comparison.name]
        if values:
            enough = [one.value for one in values.values() if is_evidence(one)]
            best = number(max(enough)) if enough else ""
            cells = [_score_cell(values[arm], best) if arm in values else "" for arm in arms]
            lines.append(f"| {title(comparison)} | {' | '.join(cells)} | {ladder_of(comparison)} |")
    return [*lines, "", "Under each score: the environment steps that a run was trained for."]


def _score_cell(one: Score, best: str) -> str:
    """Return a score with its steps, bold if it is the best of the line."""
    text = number(one.value)
    text = f"**{text}**" if text == best and is_evidence(one) else text
    return f"{text}{few(len(one.seeds))}<br><sub>{thousands(one.steps)}</sub>"


def is_evidence(one: Score) -> bool:
    """Return whether there are as many seeds as the rule of a verdict asks for."""
    return len(one.seeds) >= MIN_RUNS


def few(n_seeds: int) -> str:
    """Return the mark of a figure that rests on few seeds; nothing where they are enough."""
    return "" if n_seeds >= MIN_RUNS else f" <sup>{format_count(n_seeds, 'seed')}</sup>"


def _notes(lines: Sequence[str]) -> list[str]:
    """Return what a mark in a table means, where there is one."""
    if not any("</sup>" in line for line in lines):
        return []
    return [
        "",
        f"A small <sup>n seeds</sup> behind a figure: it rests on so few. Of fewer than {MIN_RUNS} "
        "nothing is concluded here, and more may move it far.",
    ]


#: What stands behind a mark in the pages.
_KINDS = {
    "table": table,
    "scores": scores,
    "variants": variants,
    "passing": passing,
    "training": training,
}


def title(comparison: Comparison) -> str:
    """Return what a comparison is called: environment and what is special."""
    details = [f"{name} {value}" for name, value in comparison.env_kwargs.items()]
    if comparison.n_timesteps is not None:
        details.append(f"{thousands(comparison.n_timesteps)} steps")
    details += [comparison.note] if comparison.note else []
    return f"`{comparison.env}`" + (f" ({', '.join(details)})" if details else "")


def titled(comparison: Comparison) -> str:
    """Return the same with the name by which ``run`` knows it."""
    return f"{title(comparison)}<br>{comparison.name}"


def ladder_of(comparison: Comparison) -> str:
    """Return what the best controllers found without and with memory reach."""
    rungs = stored_ladder(comparison.env, **dict(comparison.env_kwargs))
    means = {rung.information: rung.mean for rung in rungs}
    if not means:
        return ""
    return f"{number(means['memoryless'])}, {number(means['exact model'])}"


class Score(NamedTuple):
    """What an arm reaches in a comparison, acting in the better of two ways.

    :param value: interquartile mean over the seeds
    :param ends: of its 95 % interval; None for one seed
    :param mode: how actions are chosen
    :param seeds: of each seed the mean over its evaluation
    :param steps: of the training
    :param seconds: that the training took, the median
    """

    value: float
    ends: tuple[float, float] | None
    mode: str
    seeds: list[float]
    steps: float
    seconds: float


def score(comparison: Comparison, arm: str) -> Score | None:
    """Return what an arm reaches, None where nothing was run yet."""
    rows = rows_of(comparison, arm)
    if not rows:
        return None
    of_mode = {mode: [float(row[mode]) for row in rows] for mode in _MODES}
    found = {mode: estimate([values]) for mode, values in of_mode.items()}
    best = max(found, key=lambda mode: found[mode].value)
    value, ends = found[best]
    return Score(
        value,
        ends,
        _MODES[best],
        of_mode[best],
        steps=float(rows[0]["steps"]),
        seconds=median(float(row["seconds"]) for row in rows),
    )


#: The columns of :func:`_cells`.
_HEADS = ("steps", "seconds", "seeds", "IQM [95 % interval]", "acting", "lowest, highest seed")


def _heading(*columns: str) -> list[str]:
    """Return the head of a table in Markdown and the rule under it."""
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def _absent(n_columns: int) -> str:
    """Return the cells of what was not run yet."""
    return "not run yet" + " |" * (n_columns - 1)


def _cells(found: Score, comparison: Comparison) -> str:
    ends, n_seeds = found.ends, len(found.seeds)
    seeds = str(n_seeds) if n_seeds == comparison.seeds else f"{n_seeds} of {comparison.seeds}"
    span = "" if ends is None else f" [{number(ends[0])}, {number(ends[1])}]"
    value = f"**{number(found.value)}**" if is_evidence(found) else number(found.value)
    return (
        f"{thousands(found.steps)} | {found.seconds:.0f} | {seeds} "
        f"| {value}{few(n_seeds)}{span} | {found.mode} "
        f"| {number(min(found.seeds))}, {number(max(found.seeds))}"
    )


def thousands(steps: float) -> str:
    """Return steps in thousands."""
    return f"{round(steps / 1000)}k"


def number(value: float) -> str:
    """Return a score: steps with a digit, returns of at most 1 with three."""
    return f"{value:.1f}" if abs(value) > 1 else f"{value:.3f}"


def grid_table(played: PlayedGrid) -> list[str]:
    """Return a table in Markdown: lines of arms and of one parameter, columns of the other.

    A cell is the interquartile mean over the runs, and the lowest of them in brackets; an arm acts
    everywhere in the way that is better over the whole grid.
    """
    first, *second = played.grid
    across = second[0] if second else first
    heads = ["arm", *([first] if second else []), "acting"]
    heads += [f"{across} {value}" for value in played.grid[across]]
    lines = _heading(*heads)
    found = lines_of(played.folder / "sweep.csv")
    for arm in played.arms:
        rows = [row for row in found if row["arm"] == arm]
        if not rows:
            lines.append(f"| {ARM_LABELS.get(arm, arm)} | {_absent(len(heads) - 1)} |")
            continue
        mode = max(_MODES, key=lambda mode: sum(float(row[mode] or 0) for row in rows))
        name = ARM_LABELS.get(arm, arm)
        for value in played.grid[first] if second else [None]:
            line = [row for row in rows if value is None or row[first] == str(value)]
            cells = [name, *([str(value)] if second else []), _MODES[mode]]
            for other in played.grid[across]:
                here = [row for row in line if row[across] == str(other)]
                cells.append(_middle_and_lowest([float(row[mode]) for row in here if row[mode]]))
            lines.append(f"| {' | '.join(cells)} |")
            name = ""
    return lines


def _middle_and_lowest(scores: Sequence[float]) -> str:
    if not scores:
        return ""
    middle = number(float(interquartile_mean([np.array(scores)])))
    return f"{middle}{few(len(scores))} ({number(min(scores))})"

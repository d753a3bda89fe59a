"""Tables, CSV files and the learning-curve picture of a comparison."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thrust_pomdp.experiment.recipes import ARM_LABELS
from thrust_pomdp.experiment.training import CURVE_EPISODES, RunResult
from thrust_pomdp.reference import Rung, stored_ladder

#: A colour-blind safe pair and its continuation (Okabe and Ito).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

_COLUMNS = ("arm", "seed", "final", "best", "sampled", "most likely", "steps", "seconds")


def ladder_of(result: RunResult) -> Sequence[Rung]:
    """Return the reference values of a run's environment; none where none are stored."""
    return stored_ladder(result.spec["env_id"], **result.spec["env_kwargs"])


def rows(results: Sequence[RunResult]) -> list[tuple[str, ...]]:
    """Return the table's rows as text: one per run, and a mean per arm where it has several."""
    table = []
    for arm in dict.fromkeys(result.spec["arm"] for result in results):
        runs = [result for result in results if result.spec["arm"] == arm]
        table += [(arm, str(run.spec["seed"]), *_cells([run])) for run in runs]
        if len(runs) > 1:
            table.append((arm, "mean", *_cells(runs)))
    return table


def _cells(runs: Sequence[RunResult]) -> tuple[str, ...]:
    def mean(values: Sequence[float]) -> str:
        return f"{np.mean(values):.1f}"

    return (
        mean([run.final for run in runs]),
        mean([run.best for run in runs]),
        mean([float(np.mean(run.stochastic)) for run in runs]),
        mean([float(np.mean(run.deterministic)) for run in runs]),
        f"{np.mean([run.timesteps for run in runs]):.0f}",
        mean([run.seconds for run in runs]),
    )


def table(results: Sequence[RunResult]) -> str:
    """Return the comparison as text to print, beside the ladder."""
    lines = [_COLUMNS, *rows(results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines]  # fmt: skip
    text.insert(1, "-" * len(text[0]))
    spec = results[0].spec
    kwargs = "".join(f", {key}={value}" for key, value in spec["env_kwargs"].items())
    header = [
        f"{spec['env_id']}{kwargs}: mean return per episode",
        f"final, best: of {CURVE_EPISODES} training episodes; sampled, most likely: of "
        f"{spec['stochastic_episodes']} and {spec['deterministic_episodes']} fresh episodes, "
        "by how actions are chosen",
        "",
    ]
    ladder = ladder_of(results[0])
    footer = ["", "Reference (scripted controllers; best found: a lower bound):"]
    footer += [f"  {rung.controller:<24}{rung.mean:6.4g}  {rung.kind}" for rung in ladder]
    return "\n".join(header + text + (footer if ladder else []))


def write_csv(results: Sequence[RunResult], folder: Path) -> None:
    """Write ``summary.csv`` (a line per run) and ``curves.csv`` (a line per point)."""
    names = [column.replace(" ", "_") for column in _COLUMNS]
    runs = [row for row in rows(results) if row[1] != "mean"]
    _write(folder / "summary.csv", names, runs)
    points = [
        (result.spec["arm"], result.spec["seed"], timesteps, f"{mean:.2f}")
        for result in results
        for timesteps, mean in result.curve
    ]
    _write(folder / "curves.csv", ["arm", "seed", "timesteps", "mean_return"], points)


def _write(path: Path, names: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(lines)


def plot(results: Sequence[RunResult], path: Path) -> None:
    """Draw the learning curves of all runs over the ladder's lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    arms = dict.fromkeys(result.spec["arm"] for result in results)
    for arm, colour in zip(arms, itertools.cycle(_COLOURS), strict=False):
        runs = [result for result in results if result.spec["arm"] == arm]
        for number, run in enumerate(runs):
            steps, means = zip(*run.curve, strict=True) if run.curve else ((), ())
            label = ARM_LABELS.get(arm, arm) if number == 0 else None
            axes.plot(steps, means, color=colour, linewidth=1.8, alpha=0.85, label=label)
    _draw_ladder(axes, ladder_of(results[0]))
    axes.set_xlabel("environment steps")
    axes.set_ylabel(f"return, mean of {CURVE_EPISODES} episodes")
    axes.set_title(results[0].spec["env_id"], loc="left", fontsize=11)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
    axes.spines[["top", "right"]].set_visible(False)
    # Above the axes, where no curve can run.
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, borderpad=0)
    figure.savefig(path)


def _draw_ladder(axes: Any, ladder: Sequence[Rung]) -> None:
    """Draw the reference values as lines, named at the right edge without overlap."""
    for group in _neighbours(ladder):
        for rung in group:
            axes.axhline(rung.mean, color="0.55", linewidth=0.9, linestyle=(0, (4, 3)))
        axes.annotate(
            ", ".join(f"{rung.controller} {rung.mean:.3g}" for rung in group),
            xy=(1.0, group[-1].mean),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8,
            color="0.35",
        )


def _neighbours(ladder: Sequence[Rung]) -> list[list[Rung]]:
    """Group rungs whose lines lie so close that one label must do for them, from low to high."""
    groups: list[list[Rung]] = []
    highest = max((rung.mean for rung in ladder), default=0.0)
    for rung in sorted(ladder, key=lambda rung: rung.mean):
        if groups and rung.mean - groups[-1][-1].mean < 0.05 * highest:
            groups[-1].append(rung)
        else:
            groups.append([rung])
    return groups

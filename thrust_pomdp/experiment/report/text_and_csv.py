"""A comparison as text to print and as CSV files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from thrust_pomdp.experiment import atomic_write
from thrust_pomdp.experiment.report.runs import Run, contests
from thrust_pomdp.experiment.runs import CURVE_EPISODES, RunResult

_COLUMNS = ("arm", "seed", "final", "best", "sampled", "most likely", "steps", "seconds")


def rows(results: Sequence[RunResult | Run]) -> list[tuple[str, ...]]:
    """Return the table's rows as text: one per run, and a mean per arm where it has several."""
    table = []
    every_run = [Run.of(result) for result in results]
    for arm in dict.fromkeys(run.arm for run in every_run):
        runs = [run for run in every_run if run.arm == arm]
        table += [(arm, str(run.spec["seed"]), *_cells([run])) for run in runs]
        if len(runs) > 1:
            table.append((arm, "mean", *_cells(runs)))
    return table


def _cells(runs: Sequence[Run]) -> tuple[str, ...]:
    def score(values: Sequence[float]) -> str:
        mean = float(np.mean(values))
        # Some tasks give a return of 1 at most.
        return f"{mean:.1f}" if abs(mean) >= 10 else f"{mean:.3f}"

    return (
        score([run.final for run in runs]),
        score([run.best for run in runs]),
        score([run.score("stochastic") for run in runs]),
        score([run.score("deterministic") for run in runs]),
        f"{np.mean([run.timesteps for run in runs]):.0f}",
        f"{np.mean([run.seconds for run in runs]):.1f}",
    )


def aligned(results: Sequence[RunResult | Run]) -> list[str]:
    """Return the table's lines, its columns one below the other."""
    lines = [_COLUMNS, *rows(results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines]  # fmt: skip
    return [text[0], "-" * len(text[0]), *text[1:]]


def table(results: Sequence[RunResult | Run]) -> str:
    """Return the comparison on one environment as text to print, beside the ladder."""
    (contest,) = contests([Run.of(result) for result in results])
    first = Run.of(results[0])
    sampled, likely = first.returns["stochastic"].size, first.returns["deterministic"].size
    header = [
        f"{contest.title}: mean return per episode",
        f"final, best: of {CURVE_EPISODES} training episodes; sampled, most likely: of "
        f"{sampled} and {likely} fresh episodes, "
        "by how actions are chosen",
        "",
    ]
    footer = ["", "Reference (scripted controllers; best found: a lower bound):"]
    footer += [f"  {rung.controller:<24}{rung.mean:6.4g}  {rung.kind}" for rung in contest.ladder]
    return "\n".join(header + aligned(results) + (footer if contest.ladder else []))


def write_csv(results: Sequence[RunResult | Run], folder: Path) -> None:
    """Write ``summary.csv`` (a line per run) and ``curves.csv`` (a line per point)."""
    names = [column.replace(" ", "_") for column in _COLUMNS]
    runs = [row for row in rows(results) if row[1] != "mean"]
    atomic_write.write_csv(folder / "summary.csv", names, runs)
    points = [
        (run.arm, run.spec["seed"], int(timesteps), f"{mean:.{2 if abs(mean) >= 10 else 5}f}")
        for run in map(Run.of, results)
        for timesteps, mean in run.curve
    ]
    head = ["arm", "seed", "timesteps", "mean_return"]
    atomic_write.write_csv(folder / "curves.csv", head, points)

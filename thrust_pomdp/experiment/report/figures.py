"""Pictures of a comparison, each in two widths: for a desk and for a phone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from thrust_pomdp.experiment.atomic_write import write_atomically
from thrust_pomdp.experiment.report.figure_style import (
    GREY,
    WIDE,
    Style,
    draw_leaders,
    new_figure,
    png,
    rung_name,
    spread_out,
    styles,
)
from thrust_pomdp.experiment.report.number_format import format_number, format_steps, shorten
from thrust_pomdp.experiment.report.runs import (
    MODES,
    Contest,
    Floats,
    Run,
    contests,
    label_of,
)
from thrust_pomdp.experiment.report.score_figures import draw_gap, draw_scores
from thrust_pomdp.experiment.runs import CURVE_EPISODES, RunResult
from thrust_pomdp.experiment.statistics import estimate, pointwise_estimates
from thrust_pomdp.reference import Rung

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Points of a line from one shape to the next.
_MARKED_EVERY = 16

#: A curve that ends lower than the final score by more than this share of it is explained.
_LAG = 0.1

_Curves: TypeAlias = Mapping[str, Sequence[Floats]]
_Ticks: TypeAlias = Callable[[float], str]

_GRID_POINTS = 100


class Band(NamedTuple):
    """What is drawn of an arm's curves; nothing where they have no common stretch.

    :param at: steps or seconds
    :param centre: interquartile mean of the runs
    :param ends: low and high; None of one run
    """

    at: Floats
    centre: Floats
    ends: tuple[Floats, Floats] | None


def pictures(contest: Contest) -> dict[str, tuple[str, Callable[[float], Figure]]]:
    """Return what there is to draw: name of the file -> (what it shows, how to draw at a width).

    What it shows is told in whole sentences.
    """
    found: dict[str, tuple[str, Callable[[float], Figure]]] = {}

    def add_curves(name: str, about: str, curves: _Curves, xlabel: str, ticks: _Ticks) -> None:
        if any(len(curve) for of_arm in curves.values() for curve in of_arm):
            bands = {arm: _band(of_arm) for arm, of_arm in curves.items()}
            found[name] = about, lambda width: _draw_curves(contest, width, bands, xlabel, ticks)

    curves = {arm: [run.curve for run in runs] for arm, runs in contest.arms.items()}
    add_curves(
        "curves",
        f"Learning curves: mean return of the last {CURVE_EPISODES} training episodes, "
        f"interquartile mean over runs; bands: 95 % intervals. {lag_note(contest)}".strip(),
        curves,
        "environment steps",
        format_steps,
    )
    add_curves(
        "evaluations",
        "Evaluations during training, in the mode that suits each arm best at the end; bands: 95 % "
        "intervals.",
        _evaluations(contest),
        "environment steps",
        format_steps,
    )
    found["scores"] = (
        "Final scores: runs (dots), interquartile means and 95 % intervals.",
        lambda width: draw_scores(contest, width),
    )
    if can_normalize(contest):
        found["gap"] = (
            "The memory gap closed: 0 is the best memoryless controller found, 1 the exact model.",
            lambda width: draw_gap(contest, width),
        )
    add_curves(
        "time",
        "The learning curves against the time they took.",
        _in_time(contest),
        "seconds of training",
        lambda value: f"{value:g}",
    )
    return found


def plot(results: Sequence[RunResult | Run], path: Path) -> None:
    """Draw the learning curves of a comparison on one environment over the ladder's lines.

    :param results: of the runs
    :param path: of a PNG file
    """
    (contest,) = contests([Run.of(result) for result in results])
    bands = {arm: _band([run.curve for run in runs]) for arm, runs in contest.arms.items()}
    figure = _draw_curves(contest, WIDE, bands, "environment steps", format_steps)
    if note := lag_note(contest):
        figure.supxlabel(note, fontsize=7.5, color=GREY, x=0.01, ha="left")
    write_atomically(path, png(figure))


def lag_note(contest: Contest) -> str:
    """Explain curves that end far below the final scores; nothing where none does."""
    lags = []
    for arm, runs in contest.arms.items():
        ends = [float(run.curve[-1, 1]) for run in runs if len(run.curve)]
        if ends:
            end, score = (estimate([np.array(x)]).value for x in (ends, contest.scores(arm)))
            lags.append((score - end, score, end, arm))
    gap, score, end, arm = max(lags, default=(0.0, 0.0, 0.0, ""))
    if gap <= _LAG * abs(score):
        return ""
    return (
        f"Curves: sampled actions while training, mean of the last {CURVE_EPISODES} episodes. "
        "Tables: the policy at the end, in its better mode.\n"
        f"({label_of(arm)} scores {format_number(score)}; its curve ends at {format_number(end)}.)"
    )


def can_normalize(contest: Contest) -> bool:
    """Return whether the ladder leaves memory something to gain."""
    means = {rung.information: rung.mean for rung in contest.ladder}
    return means.get("exact model", -np.inf) > means.get("memoryless", np.inf)


def _evaluations(contest: Contest) -> dict[str, list[Floats]]:
    columns = {arm: [0, 2 + MODES.index(contest.mode_of(arm))] for arm in contest.arms}
    return {
        arm: [run.evaluations[:, columns[arm]] for run in runs]
        for arm, runs in contest.arms.items()
    }


def _in_time(contest: Contest) -> dict[str, list[Floats]]:
    return {
        arm: [np.c_[run.seconds_at(run.curve[:, 0]), run.curve[:, 1]] for run in runs]
        for arm, runs in contest.arms.items()
    }


def _draw_curves(
    contest: Contest,
    width: float,
    bands: Mapping[str, Band | None],
    xlabel: str,
    ticks: _Ticks,
) -> Figure:
    legend_columns = 1 if width < 6 else min(3, len(bands))
    legend_rows = -(-len(bands) // legend_columns)
    figure, axes = new_figure(width, (3.9 if width > 6 else 3.1) + 0.2 * legend_rows)
    for place, (arm, style) in enumerate(styles(list(bands)).items()):
        label = shorten(label_of(arm), 44 if width < 6 else 40)
        _draw_band(axes, bands[arm], style, label, place * _MARKED_EVERY // len(bands))
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: ticks(value) if value else "0")
    axes.xaxis.get_major_locator().set_params(nbins=8 if width > 6 else 4)
    axes.set_xlabel(xlabel, fontsize=9)
    axes.set_ylabel("return", fontsize=9)
    _draw_ladder(axes, contest.ladder)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside upper left", ncols=legend_columns,
        frameon=False, fontsize=9 if legend_columns < 3 else 8.5, handlelength=2.2,
        borderaxespad=0.2, labelspacing=0.35,
    )  # fmt: skip
    return figure


def _band(curves: Sequence[Floats]) -> Band | None:
    """Summarise curves where all of them have points."""
    with_points = [curve for curve in curves if len(curve)]
    start = max((curve[0, 0] for curve in with_points), default=1.0)
    end = min((curve[-1, 0] for curve in with_points), default=0.0)
    if end < start:
        return None
    grid = np.linspace(start, end, _GRID_POINTS if end > start else 1)
    values = [np.interp(grid, curve[:, 0], curve[:, 1]) for curve in with_points]
    return Band(grid, *pointwise_estimates(values))


def _draw_band(axes: Any, band: Band | None, style: Style, label: str, first: int) -> None:
    look = {
        "color": style.colour, "linestyle": style.dashes, "linewidth": 1.9, "label": label,
        "marker": style.marker, "markersize": 6, "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }  # fmt: skip
    if band is None:
        axes.plot([], [], **look)  # named all the same
        return
    # Each arm's shapes at places of their own, so that none hides another's.
    marked = (first, _MARKED_EVERY) if len(band.at) > _MARKED_EVERY else None
    axes.plot(band.at, band.centre, markevery=marked, **look)
    if band.ends is not None:
        axes.fill_between(band.at, *band.ends, color=style.colour, alpha=0.16, linewidth=0)


def _draw_ladder(axes: Any, ladder: Sequence[Rung]) -> None:
    """Draw the reference values as lines, named beside the axes."""
    if not ladder:
        return
    low, high = axes.get_ylim()
    means = [rung.mean for rung in ladder]
    low, high = min(low, *means), max(high, *means)
    room = 0.03 * (high - low)
    low, high = (0.0 if low >= 0 and low < 0.3 * high else low - room), high + room
    axes.set_ylim(low, high)
    places = [(mean - low) / (high - low) for mean in means]
    heights = spread_out(places, 0.062)
    for rung, height in zip(ladder, heights, strict=True):
        axes.axhline(rung.mean, color="0.6", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
        axes.annotate(
            f"{rung_name(rung)} {format_number(rung.mean, high)}",
            xy=(1.025, height), xycoords="axes fraction", ha="left", va="center",
            fontsize=7.5, color=GREY, annotation_clip=False,
        )  # fmt: skip
    draw_leaders(axes, [((1.0, p), (1.02, h)) for p, h in zip(places, heights, strict=True)])

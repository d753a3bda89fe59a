"""Pictures of a comparison, each in two widths: for a desk and for a phone."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from thrust_pomdp.experiment.atomic_write import write_atomically
from thrust_pomdp.experiment.report.number_format import format_number, format_steps, shorten
from thrust_pomdp.experiment.report.runs import (
    ARM_ORDER,
    CURVE_EPISODES,
    MODES,
    Contest,
    Floats,
    Run,
    contests,
    label_of,
)
from thrust_pomdp.experiment.statistics import estimate, pointwise_estimates
from thrust_pomdp.reference import Rung, normalized

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from thrust_pomdp.experiment.training import RunResult

#: Widths in inches at 96 pixels each: the page's column on a desk, and on a phone of 390.
WIDE, NARROW = 8.6, 3.7

#: Okabe and Ito's colours, which everyone can tell apart, without their yellow: too pale for lines.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))

#: Shapes along the lines, for those who see no colours and for print without.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")

#: Points of a line from one shape to the next.
_MARKED_EVERY = 16

#: A curve that ends lower than the final score by more than this share of it is explained.
_LAG = 0.1

#: Arms that are drawn in another one's colour, dashed: it is what they are to be compared with.
_VARIANTS = {
    "lstm-privileged": ("lstm", _DASHES[1]),
    "lstm-prev-action-privileged": ("lstm-prev-action", _DASHES[1]),
    "gru": ("lstm", _DASHES[2]),
    "gru-prev-action": ("lstm-prev-action", _DASHES[2]),
}

#: What the rungs are called where there is little room.
_RUNG_NAMES = {"nothing": "random", "memoryless": "best memoryless"}

_Curves: TypeAlias = Mapping[str, Sequence[Floats]]
_Ticks: TypeAlias = Callable[[float], str]

_GRID_POINTS = 100
_GREY = "0.35"


class Band(NamedTuple):
    """What is drawn of an arm's curves; nothing where they have no common stretch.

    :param at: steps or seconds
    :param centre: interquartile mean of the runs
    :param ends: low and high; None of one run
    """

    at: Floats
    centre: Floats
    ends: tuple[Floats, Floats] | None


class Style(NamedTuple):
    """How an arm is drawn."""

    colour: str
    dashes: Any
    marker: str


def styles(arms: Sequence[str]) -> dict[str, Style]:
    """Return a style for each arm: always the same for the arms of the package.

    Dashes tell apart what colours do not any more, and shapes what those do who see none.
    """
    known = [arm for arm in ARM_ORDER if arm not in _VARIANTS]
    others = [arm for arm in arms if arm not in ARM_ORDER]
    every = [(colour, dashes) for dashes in _DASHES for colour in _COLOURS]
    found = {arm: every[idx % len(every)] for idx, arm in enumerate(known + others)}
    for arm, (original, dashes) in _VARIANTS.items():
        found[arm] = found[original][0], dashes
    shapes = {arm: _MARKERS[i % len(_MARKERS)] for i, arm in enumerate([*ARM_ORDER, *others])}
    return {arm: Style(*found[arm], shapes[arm]) for arm in arms}


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
        lambda width: _draw_scores(contest, width),
    )
    if can_normalize(contest):
        found["gap"] = (
            "The memory gap closed: 0 is the best memoryless controller found, 1 the exact model.",
            lambda width: _draw_gap(contest, width),
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
        figure.supxlabel(note, fontsize=7.5, color=_GREY, x=0.01, ha="left")
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


def png(figure: Figure) -> bytes:
    """Return a picture as a PNG file; the same one makes the same file, byte for byte."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


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


def _new_figure(width: float, height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=144, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8.5)
    return figure, axes


def _draw_curves(
    contest: Contest,
    width: float,
    bands: Mapping[str, Band | None],
    xlabel: str,
    ticks: _Ticks,
) -> Figure:
    legend_columns = 1 if width < 6 else min(3, len(bands))
    legend_rows = -(-len(bands) // legend_columns)
    figure, axes = _new_figure(width, (3.9 if width > 6 else 3.1) + 0.2 * legend_rows)
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
            fontsize=7.5, color=_GREY, annotation_clip=False,
        )  # fmt: skip
    _draw_leaders(axes, [((1.0, p), (1.02, h)) for p, h in zip(places, heights, strict=True)])


def _draw_leaders(
    axes: Any, leaders: Sequence[tuple[tuple[float, float], tuple[float, float]]]
) -> None:
    """Draw lines from what is named to its name, in fractions of the axes."""
    from matplotlib.collections import LineCollection

    axes.add_collection(
        LineCollection(
            leaders, colors="0.7", linewidths=0.6, transform=axes.transAxes, clip_on=False
        ),
        autolim=False,
    )


def rung_name(rung: Rung) -> str:
    """Return a short name of a rung."""
    return _RUNG_NAMES.get(rung.information, rung.information)


def spread_out(places: Sequence[float], distance: float) -> list[float]:
    """Move places in rising order apart, as little as that takes and up to 1 at most.

    >>> spread_out([0.1, 0.5, 0.52, 1.0], 0.1)
    [0.1, 0.46, 0.56, 1.0]

    :param places: in rising order
    :param distance: least between neighbours
    """
    blocks: list[tuple[float, int]] = []  # middle, how many
    for place in places:
        middle, count = place, 1
        while blocks and middle - blocks[-1][0] < distance * (count + blocks[-1][1]) / 2 - 1e-12:
            other, size = blocks.pop()
            middle, count = (middle * count + other * size) / (count + size), count + size
        blocks.append((middle, count))
    found = [
        middle + distance * (place - (count - 1) / 2)
        for middle, count in blocks
        for place in range(count)
    ]
    ceiling = 1.0
    for place in reversed(range(len(found))):
        found[place] = min(found[place], ceiling)
        ceiling = found[place] - distance
    return [round(place, 6) for place in found]


def _draw_scores(contest: Contest, width: float) -> Figure:
    rows = {
        arm: [(contest.scores(arm, mode), mode == "deterministic") for mode in MODES]
        for arm in contest.arms
    }
    most = max((rung.mean for rung in contest.ladder), default=0.0)
    marks = [
        (rung.mean, f"{rung_name(rung)} {format_number(rung.mean, most)}")
        for rung in contest.ladder
    ]
    figure, axes = _draw_rows(rows, marks, width)
    axes.set_xlabel("mean return of the evaluation episodes", fontsize=9)
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=_GREY, marker="o", markersize=6, linestyle="-", label="deterministic"),
        Line2D([], [], color=_GREY, marker="o", markersize=6, linestyle="-", label="stochastic",
               markerfacecolor="white"),
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False, fontsize=9)
    return figure


def _draw_gap(contest: Contest, width: float) -> Figure:
    rows = {
        arm: [
            (
                np.array([normalized(score, contest.ladder) for score in contest.scores(arm)]),
                contest.mode_of(arm) == "deterministic",
            )
        ]
        for arm in contest.arms
    }
    marks = [(0.0, "best memoryless: 0"), (1.0, "exact model: 1")]
    figure, axes = _draw_rows(rows, marks, width)
    axes.set_xlabel("share of the memory gap closed", fontsize=9)
    return figure


def _draw_rows(
    rows: Mapping[str, Sequence[tuple[Floats, bool]]],
    marks: Sequence[tuple[float, str]],
    width: float,
) -> tuple[Figure, Any]:
    """Draw a row per arm: its name, its runs as dots and below them the estimates.

    :param rows: arm -> (scores, whether the mark is filled)
    :param marks: values to draw as lines, and their names
    """
    height = 0.32 + 0.26 * max(len(estimates) for estimates in rows.values())
    figure, axes = _new_figure(width, 1.3 + height * len(rows))
    axes.set_ylim(len(rows) * height, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    for (arm, estimates), style, row in zip(
        rows.items(), styles(list(rows)).values(), range(len(rows)), strict=True
    ):
        top = row * height
        axes.text(
            0.0, top + 0.16, shorten(label_of(arm), 40 if width < 6 else 90), fontsize=9,
            transform=axes.get_yaxis_transform(), va="center", color="0.1", zorder=5,
            bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1},
        )  # fmt: skip
        for place, (scores, filled) in enumerate(estimates):
            _draw_estimate(axes, top + 0.4 + 0.26 * place, scores, style.colour, filled)
    _draw_marks(axes, marks)
    return figure, axes


def _draw_estimate(axes: Any, y: float, scores: Floats, colour: str, filled: bool) -> None:
    found = estimate([scores])
    axes.plot(
        scores, np.full(scores.size, y), "o", color=colour, alpha=0.3, markersize=3.5,
        markeredgewidth=0,
    )  # fmt: skip
    if found.interval is not None:
        axes.plot(found.interval, [y, y], color=colour, linewidth=2.2, solid_capstyle="butt")
    axes.plot(
        found.value, y, "o", markersize=7, markeredgecolor=colour, markeredgewidth=1.6,
        markerfacecolor=colour if filled else "white",
    )  # fmt: skip


def _draw_marks(axes: Any, marks: Sequence[tuple[float, str]]) -> None:
    """Draw vertical lines, named above the axes."""
    if not marks:
        axes.margins(x=0.04)
        return
    for value, _ in marks:
        axes.axvline(value, color="0.6", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    low, high = axes.get_xlim()
    fractions = [(value - low) / (high - low) for value, _ in marks]
    inches = axes.figure.get_figwidth() * 0.9
    places = spread_out(fractions, 0.17 / inches)
    for (_, name), place in zip(marks, places, strict=True):
        axes.annotate(
            name, xy=(place, 1.035), xycoords="axes fraction", rotation=40, ha="left", va="bottom",
            rotation_mode="anchor", fontsize=7.5, color=_GREY, annotation_clip=False,
        )  # fmt: skip
    axes.set_xlim(low, high)
    _draw_leaders(axes, [((f, 1.0), (p, 1.03)) for f, p in zip(fractions, places, strict=True)])

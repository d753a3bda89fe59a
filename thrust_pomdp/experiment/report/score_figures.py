"""Pictures of final scores, a row for each arm: as they are, and as shares of the memory gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from thrust_pomdp.experiment.report.figure_style import (
    GREY,
    draw_leaders,
    new_figure,
    rung_name,
    spread_out,
    styles,
)
from thrust_pomdp.experiment.report.number_format import format_number, shorten
from thrust_pomdp.experiment.report.runs import MODES, Contest, Floats, label_of
from thrust_pomdp.experiment.statistics import estimate
from thrust_pomdp.reference import normalized

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_scores(contest: Contest, width: float) -> Figure:
    """Draw the scores of all arms, acting either way."""
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
        Line2D([], [], color=GREY, marker="o", markersize=6, linestyle="-", label="deterministic"),
        Line2D([], [], color=GREY, marker="o", markersize=6, linestyle="-", label="stochastic",
               markerfacecolor="white"),
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False, fontsize=9)
    return figure


def draw_gap(contest: Contest, width: float) -> Figure:
    """Draw the share of the memory gap that each arm closes, acting as suits it best."""
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
    figure, axes = new_figure(width, 1.3 + height * len(rows))
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
            rotation_mode="anchor", fontsize=7.5, color=GREY, annotation_clip=False,
        )  # fmt: skip
    axes.set_xlim(low, high)
    draw_leaders(axes, [((f, 1.0), (p, 1.03)) for f, p in zip(fractions, places, strict=True)])

"""The ladder as text, as a Markdown table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thrust_pomdp.reference.figures import Ladder
from thrust_pomdp.reference.rungs import Rung, max_return

#: Between these marks a page holds the generated table.
MARKS = ("<!-- ladder: scripts/ladder.py --markdown -->", "<!-- ladder: end -->")

#: Colour-blind safe (Okabe and Ito), with marks of different shape.
_STYLES = {
    "nothing": ("#999999", "x"),
    "memoryless": ("#D55E00", "o"),
    "previous action": ("#E69F00", "s"),
    "two frames": ("#56B4E9", "^"),
    "exact model": ("#0072B2", "D"),
}


def title(ladder: Ladder) -> str:
    """Return the environment's id and the arguments that are not the id's."""
    return " ".join(
        [ladder.env_id, *(f"{name}:{value}" for name, value in ladder.env_kwargs.items())]
    )


def figure(ladder: Ladder, value: float) -> str:
    """Write a return with as many digits as its scale asks for."""
    return f"{value:.1f}" if best_of(ladder) > 10 else f"{value:.3f}"


def best_of(ladder: Ladder) -> float:
    """Return the most that an episode of the environment can give.

    :raises ValueError: for an environment of which this is not known
    """
    best = max_return(ladder.env_id, **ladder.env_kwargs)
    if best is None:
        raise ValueError(
            "ladder must be of an environment of this package, as it was written, got "
            f"{title(ladder)}"
        )
    return best


def text(ladder: Ladder) -> str:
    """Return a ladder as text to print."""
    rows = [("controller", "mean", "95 % interval", "kind", "why", "gains")]
    for rung in ladder.rungs:
        low, high = (figure(ladder, end) for end in rung.interval)
        mean, between = figure(ladder, rung.mean), f"{low} to {high}"
        rows.append((rung.controller, mean, between, rung.kind, rung.reason, rung.gains))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if column in (1, 2) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * max(len(line) for line in lines))
    heading = (
        f"{title(ladder)}: mean return of {ladder.rungs[0].n_episodes} episodes, of at most "
        f"{best_of(ladder):g}"
    )
    return "\n".join([heading, *lines])


def markdown(page: str, ladders: Sequence[Ladder]) -> str:
    """Return a page with the table between its marks written anew.

    :raises ValueError: if the page lacks the marks
    """
    before, mark, rest = page.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (mark and end):
        raise ValueError(f"the page must hold the marks {MARKS}, got neither or one of them")
    return "\n".join([before + mark, "", *_table(ladders), "", end + after])


def _table(ladders: Sequence[Ladder]) -> list[str]:
    columns = ["environment", "at most", "random", *list(_STYLES)[1:]]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for ladder in ladders:
        cells = [_cell(ladder, rung) for rung in ladder.rungs]
        lines.append(f"| `{title(ladder)}` | {best_of(ladder):g} | {' | '.join(cells)} |")
    return lines


def _cell(ladder: Ladder, rung: Rung) -> str:
    mean = figure(ladder, rung.mean)
    spread = "" if rung.standard_error == 0 else f" ± {figure(ladder, 1.96 * rung.standard_error)}"
    return f"**{mean}**{spread}" if rung.kind == "proof" else f"{mean}{spread}"


def draw(ladders: Sequence[Ladder], path: Path) -> None:
    """Draw ladders as rows of marks with 95 % intervals, on the scale of what is possible at most.

    :param ladders: from top to bottom
    :param path: of a PNG file
    """
    from matplotlib.figure import Figure

    height = 1.6 + 0.4 * len(ladders)
    picture = Figure(figsize=(9.5, height), dpi=150, layout="constrained")
    axes = picture.subplots()
    for row, ladder in enumerate(ladders):
        _draw_row(axes, row, ladder)
    names = [title(ladder).replace(" ", "\n", 1) for ladder in ladders]
    axes.set_yticks(range(len(ladders)), names, fontsize=8)
    axes.set_ylim(len(ladders) - 0.4, -0.6)
    axes.set_xlabel("mean return of an episode, share of the most there is (bars: 95 % interval)")
    axes.set_xlim(-0.06, 1.04)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles, labels = axes.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    picture.savefig(path)


def _draw_row(axes: Any, row: int, ladder: Ladder) -> None:
    best, means = best_of(ladder), [rung.mean for rung in ladder.rungs]
    axes.plot([min(means) / best, max(means) / best], [row, row], color="0.85", zorder=1)
    for place, rung in enumerate(ladder.rungs):
        colour, mark = _STYLES[rung.information]
        name = "random" if rung.information == "nothing" else rung.information
        axes.errorbar(
            rung.mean / best,
            row + 0.13 * (place - 2),  # so that none hides another
            xerr=1.96 * rung.standard_error / best,
            color=colour,
            marker=mark,
            markersize=5,
            linestyle="none",
            capsize=2,
            label=name if row == 0 else None,
        )

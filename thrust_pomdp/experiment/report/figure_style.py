"""How pictures of a comparison look: widths, the style of each arm, and where names find room."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from thrust_pomdp.experiment.report.runs import ARM_ORDER
from thrust_pomdp.reference import Rung

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Widths in inches at 96 pixels each: the page's column on a desk, and on a phone of 390.
WIDE, NARROW = 8.6, 3.7

#: Okabe and Ito's colours, which everyone can tell apart, without their yellow: too pale for lines.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (9, 2)),
)

#: Shapes along the lines, for those who see no colours and for print without.
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*", "d", "8", "H", "|")

#: Arms that are drawn in another one's colour, dashed: it is what they are to be compared with.
_VARIANTS: dict[str, tuple[str, Any]] = {
    "lstm-privileged": ("lstm", _DASHES[1]),
    "lstm-prev-action-privileged": ("lstm-prev-action", _DASHES[1]),
    "state": ("mlp", _DASHES[2]),
    "gru": ("lstm", _DASHES[2]),
    "gru-prev-action": ("lstm-prev-action", _DASHES[2]),
    "gtrxl": ("lstm", _DASHES[3]),
    "mingru": ("lstm", _DASHES[5]),
    "lru": ("lstm", _DASHES[4]),
}

#: What the rungs are called where there is little room.
_RUNG_NAMES = {"nothing": "random", "memoryless": "best memoryless"}

#: What explains rather than shows.
GREY = "0.35"


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


def new_figure(width: float, height: float) -> tuple[Figure, Any]:
    """Return an empty figure of a width and height in inches, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=144, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8.5)
    return figure, axes


def png(figure: Figure) -> bytes:
    """Return a picture as a PNG file; the same one makes the same file, byte for byte."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def draw_leaders(
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

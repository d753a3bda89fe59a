"""Pictures of cards dealt one by one, as text and as an array; nothing random."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: A letter for each suit, as POPGym has them: spades, diamonds, clubs, hearts.
SUITS = "sdch"

#: Colours. Those that matter are of M. Okabe and K. Ito's set, which colour-blind people can tell
#: apart; right and wrong are told by signs, too.
TABLE, CARD = (38, 42, 51), (250, 250, 250)
INK = {"s": (30, 30, 30), "d": (213, 94, 0), "c": (0, 114, 178), "h": (204, 121, 167)}
SIGNS = {"?": (240, 228, 66), "=": (0, 158, 115), "x": (213, 94, 0)}

#: 7 x 7 dots of each suit and sign.
_DOTS = {
    "s": "...#... ..###.. .#####. ####### ###.### ...#... ..###..",
    "d": "...#... ..###.. .#####. ####### .#####. ..###.. ...#...",
    "c": "..###.. ..###.. ####### ####### ##.#.## ...#... ..###..",
    "h": ".##.##. ####### ####### .#####. ..###.. ...#... .......",
    "?": "..###.. .##.##. ....##. ...##.. ...##.. ....... ...##..",
    "=": "....... .#####. .#####. ....... .#####. .#####. .......",
    "x": "##...## .##.##. ..###.. ...#... ..###.. .##.##. ##...##",
}

#: Side of a cell in pixels, unless there are so many cards that the picture grows too wide.
CELL_PIXELS, LEAST_CELL_PIXELS, MAX_WIDTH = 24, 8, 1200


class Scene(NamedTuple):
    """What there is to see.

    :param suits: of the cards dealt, the newest last
    :param k: which of the latest cards is asked for, 1 the newest
    :param answer: the suit last named; None where none was asked for
    """

    suits: list[int]
    k: int
    answer: int | None


def plan(scene: Scene) -> list[str]:
    """Lay out signs for the latest cards, what is asked, and the answer to the last question.

    Three rows of ``k + 1`` signs: cards with the newest at the right; ``?`` below the card whose
    suit is to be named next, ``=`` (right) or ``x`` (wrong) below the one that was asked for last;
    and the suit that was named.
    """
    width = scene.k + 1
    cards = "".join(SUITS[suit] for suit in scene.suits[-width:]).rjust(width, ".")
    judged, named = ".", "."
    if scene.answer is not None:
        named = SUITS[scene.answer]
        judged = "=" if named == cards[0] else "x"
    asked = "?" if len(scene.suits) >= scene.k else "."
    return [cards, (judged + asked).ljust(width, "."), named.ljust(width, ".")]


def text(scene: Scene) -> str:
    """Write the cards as three lines of text.

    >>> print(text(Scene(suits=[0, 1, 2, 3, 1], k=3, answer=2)))
    dchd
    x?..
    c...
    """
    return "\n".join(plan(scene))


def picture(scene: Scene) -> NDArray[np.uint8]:
    """Paint the cards, ``[height, width, 3]`` uint8."""
    rows = plan(scene)
    side = max(LEAST_CELL_PIXELS, min(CELL_PIXELS, MAX_WIDTH // len(rows[0])))
    painted = np.empty((side * len(rows), side * len(rows[0]), 3), dtype=np.uint8)
    painted[:] = TABLE
    for y, row in enumerate(rows):
        for x, sign in enumerate(row):
            if sign != ".":
                _paint(painted[y * side : (y + 1) * side, x * side : (x + 1) * side], sign)
    return painted


def _paint(cell: NDArray[np.uint8], sign: str) -> None:
    if sign in INK:
        cell[:-1, :-1] = CARD  # a line of the table is left between cards
    size = (len(cell) - 1) // 7
    start = (len(cell) - 1 - 7 * size) // 2
    dots = np.array([list(row) for row in _DOTS[sign].split()]) == "#"
    inner = cell[start : start + 7 * size, start : start + 7 * size]
    inner[dots.repeat(size, axis=0).repeat(size, axis=1)] = (INK | SIGNS)[sign]

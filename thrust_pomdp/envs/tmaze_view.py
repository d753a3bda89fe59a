"""Pictures of a T-maze from above, as text and as an array; nothing random."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: A sign for each kind of cell, and its colour. Those that matter are of M. Okabe and K. Ito's set,
#: which colour-blind people can tell apart.
COLOURS = {
    "#": (38, 42, 51),  # wall
    ".": (224, 224, 216),  # floor
    "<": (240, 228, 66),  # the cue's cell: turn left
    ">": (240, 228, 66),  # the cue's cell: turn right
    "G": (0, 158, 115),  # goal
    "x": (213, 94, 0),  # the wrong side
    "@": (0, 114, 178),  # agent
}

#: Side of a cell in pixels, unless the corridor is so long that the picture grows too wide.
CELL_PIXELS, MAX_WIDTH = 24, 1200


class Scene(NamedTuple):
    """What there is to see.

    :param corridor_length: number of the junction's cell
    :param first_cell: 0, or -1 if the cue's cell lies aside
    :param cell: where the agent is
    :param cue: -1 for left, 1 for right
    :param turn: what the agent chose at the junction, 0 or 1; None before
    """

    corridor_length: int
    first_cell: int
    cell: int
    cue: int
    turn: int | None


def plan(scene: Scene) -> NDArray[np.str_]:
    """Draw the maze with a sign for each cell, ``[5, corridor_length + 3]``.

    The agent walks from left to right, so its left is up. The cue's cell is the first of the
    corridor, or lies below the crossroads.
    """
    junction = scene.corridor_length + 1
    signs = np.full((5, junction + 2), "#", dtype="<U1")
    signs[2, 1:junction] = "."
    aside = scene.first_cell < 0
    cue_cell = (3, 1) if aside else (2, 1)
    signs[cue_cell], column = ("<", list("G.x")) if scene.cue < 0 else (">", list("x.G"))
    signs[1:4, junction] = column
    signs[_agent(scene, cue_cell)] = "@"
    return signs


def _agent(scene: Scene, cue_cell: tuple[int, int]) -> tuple[int, int]:
    """Find row and column of the agent."""
    if scene.turn is not None:
        return (1 if scene.turn == 0 else 3), scene.corridor_length + 1
    if scene.cell == 0:
        return cue_cell
    return 2, max(scene.cell, 0) + 1


def text(scene: Scene) -> str:
    """Write the maze as five lines of text.

    >>> print(text(Scene(corridor_length=3, first_cell=0, cell=1, cue=1, turn=None)))
    ######
    ####x#
    #>@..#
    ####G#
    ######
    """
    return "\n".join("".join(row) for row in plan(scene))


def picture(scene: Scene) -> NDArray[np.uint8]:
    """Paint the maze, ``[height, width, 3]`` uint8."""
    signs = plan(scene)
    colours = np.array([[COLOURS[str(sign)] for sign in row] for row in signs], dtype=np.uint8)
    side = max(1, min(CELL_PIXELS, MAX_WIDTH // signs.shape[1]))
    painted = colours.repeat(side, axis=0).repeat(side, axis=1)
    for y, x in np.argwhere(signs == "x").tolist():
        cell = painted[y * side : (y + 1) * side, x * side : (x + 1) * side]
        cell[cross(side)] = COLOURS["#"]
    return painted


def cross(side: int) -> NDArray[np.bool_]:
    """Return where a cell of the wrong side is crossed out, for those who see no colours.

    :param side: of the cell in pixels; less than 8 are too few for a cross
    """
    row, column = np.indices((side, side))
    rising, falling = row + column - (side - 1), row - column
    crossed: NDArray[np.bool_] = np.minimum(np.abs(rising), np.abs(falling)) <= 1
    return crossed & (side >= 8)

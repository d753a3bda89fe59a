"""Gymnasium's picture of CartPole, with what the agent saw of it.

pygame is imported when something is painted, as Gymnasium does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.envs.rendering import BLANK, BLIND, Picture, frame_thickness, mark_blind, strip

#: Rows of the caption and of the strip, below the track in the 400 of Gymnasium's picture.
_CAPTION_TOP, _STRIP_ROWS = 336, slice(356, 380)

#: Pixels between the edge and what is written.
_MARGIN = 20

#: Gymnasium's drawing, in pixels: the track's row from below, the cart and the pole's width.
_TRACK_ROW, _CART, _POLE_WIDTH = 100, (50, 30), 10


def add_senses(picture: Picture, blanked: Sequence[bool], hides_velocities: bool) -> Picture:
    """Paint what the agent saw on a picture of the true cart.

    :param picture: Gymnasium's picture, ``[400, 600, 3]`` uint8; left as it is
    :param blanked: flags of the episode's latest frames, the newest last; empty for a sensor that
        blanks nothing
    :param hides_velocities: whether the agent observes positions only, which no picture shows
    :return: a new picture of the same shape
    """
    blind = len(blanked) > 0 and blanked[-1]
    painted = mark_blind(picture) if blind else picture.copy()
    if hides_velocities:
        write(painted, "velocities hidden", _MARGIN, _MARGIN)
    if len(blanked) > 0:
        inside = frame_thickness(picture)
        height, width = _STRIP_ROWS.stop - _STRIP_ROWS.start, painted.shape[1] - 2 * inside
        painted[_STRIP_ROWS, inside:-inside] = strip(blanked, width, height)
        write(painted, "latest frames: dark = blank, newest at the right", _MARGIN, _CAPTION_TOP)
    return painted


def add_ghost(
    picture: Picture, seen: Sequence[float], half_width: float, pole_length: float
) -> Picture:
    """Paint the outline of the cart where a noisy sensor saw it, and say so.

    :param picture: of the true cart, ``[400, 600, 3]`` uint8; left as it is
    :param seen: cart position in m and pole angle in rad, as the agent saw them
    :param half_width: metres from the middle of the picture to its edge
    :param pole_length: in metres
    :return: a new picture of the same shape
    """
    import pygame

    height, width = picture.shape[:2]
    pixels = width / (2 * half_width)
    surface = pygame.surfarray.make_surface(picture.transpose(1, 0, 2))
    middle = width / 2 + seen[0] * pixels, height - 1 - _TRACK_ROW
    for outline in _outlines(middle, seen[1], pole_length * pixels):
        pygame.draw.lines(surface, BLIND.tolist(), True, outline, width=2)
    painted: Picture = pygame.surfarray.array3d(surface).transpose(1, 0, 2).copy()
    write(painted, "outline: as the agent saw it, with noise", _MARGIN, _MARGIN + 20)
    return painted


def _outlines(
    middle: tuple[float, float], angle: float, length: float
) -> Iterator[list[tuple[float, float]]]:
    """Yield the corners of cart and pole, as Gymnasium draws them, in pixels from the top left."""
    x, y = middle
    half, rise = _CART[0] / 2, _CART[1] / 2
    yield [(x - half, y - rise), (x + half, y - rise), (x + half, y + rise), (x - half, y + rise)]
    cos, sin = math.cos(angle), math.sin(angle)
    half, axle = _POLE_WIDTH / 2, y - _CART[1] / 4
    corners = [(-half, -half), (-half, length - half), (half, length - half), (half, -half)]
    yield [(x + across * cos + up * sin, axle + across * sin - up * cos) for across, up in corners]


def write(picture: Picture, text: str, left: int, top: int) -> None:
    """Write a line of text onto a picture, in place."""
    ink = _ink(text)[..., None]
    paper = picture[top : top + ink.shape[0], left : left + ink.shape[1]]
    paper[:] = paper * (1.0 - ink) + BLANK * ink


# The array is kept, not the font, which dies when closing any environment calls pygame.quit().
@lru_cache(maxsize=16)
def _ink(text: str) -> NDArray[np.float32]:
    """Return how much of each pixel a line of text covers, ``[height, width]`` in [0, 1]."""
    import pygame

    pygame.font.init()
    line = pygame.font.Font(None, 20).render(text, True, "white", "black")
    coverage: NDArray[Any] = pygame.surfarray.array3d(line)[..., 0].T / np.float32(255)
    return coverage


class Window:
    """A window on the screen, as that of ``render_mode="human"``."""

    def __init__(self, frames_per_second: int) -> None:
        self.frames_per_second = frames_per_second
        self._screen: Any = None
        self._clock: Any = None

    def show(self, picture: Picture) -> None:
        """Show a picture, and wait for as long as the one before it is to be seen."""
        import pygame

        if self._screen is None:
            pygame.display.init()
            self._screen = pygame.display.set_mode((picture.shape[1], picture.shape[0]))
            self._clock = pygame.time.Clock()
        self._screen.blit(pygame.surfarray.make_surface(picture.transpose(1, 0, 2)), (0, 0))
        pygame.event.pump()
        self._clock.tick(self.frames_per_second)
        pygame.display.flip()

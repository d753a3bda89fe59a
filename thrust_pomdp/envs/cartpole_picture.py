"""Gymnasium's picture of CartPole, with what the agent saw of it.

pygame is imported when something is painted, as Gymnasium does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.painting import BLANK, Picture, frame_thickness, mark_blind, strip

#: Rows of the caption and of the strip, below the track in the 400 of Gymnasium's picture.
_CAPTION_TOP, _STRIP_ROWS = 336, slice(356, 380)

#: Pixels between the edge and what is written.
_MARGIN = 20


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

"""What a sensor showed, painted on pictures of any environment (NumPy only).

A picture shows the truth; these functions add what the agent saw of it. They read flags and draw no
random numbers, so that a watched episode is the episode that an unwatched one is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]

#: About how many frames a strip shows: 1.2 s of CartPole, in cells still 5 pixels wide in a
#: picture of half its size.
STRIP_FRAMES = 60

#: Share of a picture's contrast that is left while the agent is blind.
_CONTRAST = 0.35

#: Its mean brightness then. Not darker: with a frame in two blank it changes 25 times a second, and
#: flashes over a whole picture can harm photosensitive people. A white picture keeps a relative
#: luminance of .80, above which a change is no flash (WCAG 2.2, success criterion 2.3.1).
_BRIGHTNESS = 0.93

#: Vermilion and near-black (Okabe and Ito's colour-blind safe palette), told apart from white and
#: from each other by brightness too.
BLIND = np.array([213, 94, 0], dtype=np.uint8)
BLANK = np.array([30, 30, 30], dtype=np.uint8)
VISIBLE = np.array([250, 250, 250], dtype=np.uint8)
RULE = np.array([140, 140, 140], dtype=np.uint8)


def paint_sensor(picture: Picture, blanked: Sequence[bool]) -> Picture:
    """Fade and frame a picture if its frame was blank, and add the strip below it.

    >>> paint_sensor(np.zeros((210, 160, 3), dtype=np.uint8), [False, True]).shape
    (224, 160, 3)

    :param picture: what there is to see, ``[height, width, 3]`` uint8; left as it is
    :param blanked: flags of the episode's latest frames, that of ``picture`` last
    :return: a higher picture, of an even number of rows more since video codecs take no odd ones
    """
    height, width = picture.shape[:2]
    rows = max(height // 30, 7) // 2 * 2
    marked = mark_blind(picture) if blanked[-1] else picture
    gap = np.full((4, width, 3), 255, dtype=np.uint8)
    return np.concatenate([marked, gap, strip(blanked, width, rows), gap])


def mark_blind(picture: Picture) -> Picture:
    """Fade a picture and put a frame around it, ``[height, width, 3]`` uint8, a new array."""
    # By a table of the 256 values, ten times as fast as arithmetic on all pixels.
    levels = np.arange(256) * _CONTRAST + picture.mean() * (_BRIGHTNESS - _CONTRAST)
    faded: Picture = levels.astype(np.uint8).take(picture)
    thickness = frame_thickness(picture)
    for rows in (faded, faded.swapaxes(0, 1)):
        rows[:thickness] = rows[-thickness:] = BLIND
    return faded


def frame_thickness(picture: Picture) -> int:
    """Return how many pixels the frame of a blind agent's picture is wide."""
    return max(int(min(picture.shape[:2])) // 40, 1)


def strip(blanked: Sequence[bool], width: int, height: int) -> Picture:
    """Draw the latest flags as a row of cells, the newest at the right.

    A visible frame is a hollow cell and a blank one a solid cell, which colour-blind readers and
    black-and-white printers tell apart too.

    :param blanked: flags of the episode's latest frames, newest last
    :param width: width in pixels
    :param height: height in pixels, at least 3
    :return: ``[height, width, 3]`` uint8
    """
    picture = np.full((height, width, 3), 255, dtype=np.uint8)
    cell = max(round(width / STRIP_FRAMES), 1)
    shown = list(blanked)[-(width // cell) :]
    for age, blank in enumerate(reversed(shown)):
        end = width - age * cell
        _draw_cell(picture[:, end - cell : end], blank)
    return picture


def _draw_cell(cell: Picture, blank: bool) -> None:
    cell[:] = BLANK if blank else VISIBLE
    if not blank:
        cell[0] = cell[-1] = BLANK
    if cell.shape[1] > 3:
        cell[:, 0] = RULE

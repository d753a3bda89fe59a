"""Statistics of what is visible, and zeros for what is not (NumPy only).

A *flag* says what of one frame is blanked: a bool for the whole frame, a bool array for single
components, a dict of either for Dict observations, or None where the environment does not tell.
A *mask* holds the flags of a batch of frames: ``[n]`` for whole frames, ``[n, *shape]`` for
components.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Mask = NDArray[np.bool_]


class RunningStatistics(Protocol):
    """What SB3's and Gymnasium's ``RunningMeanStd`` have in common."""

    mean: Any
    var: Any
    count: Any

    def update(self, arr: Any, /) -> None:
        """Take in a batch of samples."""

    def update_from_moments(self, batch_mean: Any, batch_var: Any, batch_count: Any, /) -> None:
        """Take in a batch by its moments."""


def blank_mask(frames: Array, flags: Sequence[Any]) -> Mask:
    """Collect the flags of a batch of frames.

    :param frames: ``[n, *shape]``
    :param flags: one per frame; where it is None an exactly all-zero frame counts as blank
    :return: bool, ``[n]`` or, if any flag names components, ``[n, *shape]``
    :raises ValueError: if a flag is neither a bool nor has the shape of its frame
    """
    if isinstance(flags, np.ndarray) and flags.ndim == 1 and flags.dtype == np.bool_:
        return flags  # a mask already
    if all(isinstance(flag, (bool, np.bool_)) for flag in flags):
        return np.array(flags, dtype=bool)
    if all(flag is None for flag in flags):
        return np.logical_not(frames.reshape(len(frames), -1).any(axis=1))
    masks = [_frame_mask(frame, flag) for frame, flag in zip(frames, flags, strict=True)]
    if all(mask.ndim == 0 for mask in masks):
        return np.array(masks, dtype=bool)
    return np.stack([np.broadcast_to(m, f.shape) for m, f in zip(masks, frames, strict=True)])


def _frame_mask(frame: Array, flag: Any) -> Mask:
    """Return one frame's mask: a single bool, or one per component."""
    if flag is None:
        return np.asarray(not frame.any())
    mask = np.asarray(flag)
    # Anything else has a truth value too: a dict of flags, {"camera": False}, would read as blank.
    if mask.dtype != np.bool_ or (mask.ndim > 0 and mask.shape != frame.shape):
        raise ValueError(
            f'info["blanked"] must be a bool or bools of the shape of the observation, '
            f"{frame.shape}, got {flag!r} of shape {mask.shape}"
        )
    return mask


def key_flags(flags: Sequence[Any], key: str) -> list[Any]:
    """Pick one key's flags; a key that a dict of flags does not name is always visible."""
    return [flag.get(key, False) if isinstance(flag, Mapping) else flag for flag in flags]


def update(statistics: RunningStatistics, samples: Array) -> None:
    """Do ``statistics.update(samples)``, bit for bit.

    On the few numbers of a step ``np.mean`` and ``np.var`` spend ten times what they compute for;
    these are the same sums without them.

    :param samples: ``[n, *shape]``
    """
    if samples.dtype not in (np.float32, np.float64):
        statistics.update(samples)
        return
    count = np.intp(len(samples))
    mean = np.add.reduce(samples, axis=0, keepdims=True)
    np.true_divide(mean, count, out=mean, casting="unsafe")
    deviation = samples - mean
    var = np.add.reduce(np.multiply(deviation, deviation, out=deviation), axis=0, keepdims=True)
    np.true_divide(var, count, out=var, casting="unsafe")
    statistics.update_from_moments(mean[0], var[0], len(samples))


def update_visible(statistics: RunningStatistics, frames: Array, blanked: Mask) -> None:
    """Update running statistics with what is visible; what is blanked leaves them as they are.

    With nothing blanked this is the plain update, bit for bit. Once components are blanked the
    count becomes one number per component.

    :param statistics: SB3's or Gymnasium's ``RunningMeanStd``
    :param frames: ``[n, *shape]``
    :param blanked: mask, ``[n]`` or ``[n, *shape]``
    """
    if not blanked.any():
        update(statistics, frames)
        return
    if blanked.ndim == 1:
        visible = frames[~blanked]
        # An empty batch has mean NaN, and a running mean never recovers from one.
        if len(visible) > 0:
            update(statistics, visible)
        return
    seen = ~blanked
    counts = seen.sum(axis=0)
    before = statistics.mean, statistics.var, statistics.count
    at_least_one = np.maximum(counts, 1)
    mean = np.where(seen, frames, 0).sum(axis=0) / at_least_one
    var = np.square(np.where(seen, frames, mean) - mean).sum(axis=0) / at_least_one
    statistics.update_from_moments(mean, var, counts)
    any_seen = counts > 0
    statistics.mean, statistics.var, statistics.count = (
        np.where(any_seen, new, old)
        for new, old in zip(
            (statistics.mean, statistics.var, statistics.count), before, strict=True
        )
    )

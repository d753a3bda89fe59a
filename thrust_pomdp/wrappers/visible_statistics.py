"""Statistics of what is visible, and zeros for what is not (NumPy only).

A *flag* says what of one frame is blanked: a bool for the whole frame, a bool array for single
components, a dict of either for Dict observations, or None where the environment does not tell.
A *mask* holds the flags of a batch of frames: ``[n]`` for whole frames, ``[n, *shape]`` for
components. Only what is declared blank is blank: what nobody tells of is visible, zeros included,
unless it is said of an environment that its zeros are blanks (``zero_is_blank``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.stateful import Changes, Names, Stateful
from thrust_pomdp.states import State

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


def blank_mask(
    frames: Array,
    flags: Sequence[Any],
    zero_is_blank: bool = False,
    name: str = 'info["blanked"]',
) -> Mask:
    """Collect the flags of a batch of frames.

    :param frames: ``[n, *shape]``
    :param flags: one per frame; where it is None a frame is visible
    :param zero_is_blank: take exactly all-zero frames without a flag for blank
    :param name: of the flags, for the message
    :return: bool, ``[n]`` or, if any flag names components, ``[n, *shape]``
    :raises ValueError: if a flag is neither a bool nor has the shape of its frame
    """
    if isinstance(flags, np.ndarray) and flags.ndim == 1 and flags.dtype == np.bool_:
        return flags  # a mask already
    kinds = set(map(type, flags))
    if kinds <= {bool, np.bool_}:
        return np.array(flags, dtype=bool)
    if kinds == {type(None)}:
        return zero_frames(frames) if zero_is_blank else np.zeros(len(flags), dtype=bool)
    masks = [
        _frame_mask(frame, zero_is_blank and not frame.any() if flag is None else flag, name)
        for frame, flag in zip(frames, flags, strict=True)
    ]
    if all(mask.ndim == 0 for mask in masks):
        return np.array(masks, dtype=bool)
    return np.stack([np.broadcast_to(m, f.shape) for m, f in zip(masks, frames, strict=True)])


def zero_frames(frames: Array) -> Mask:
    """Tell which frames are all exactly zero, ``[n]``."""
    frames = np.asarray(frames)
    return np.logical_not(frames.any(axis=tuple(range(1, frames.ndim))))


def _frame_mask(frame: Array, flag: Any, name: str) -> Mask:
    """Return one frame's mask: a single bool, or one per component."""
    mask = np.asarray(flag)
    # Anything else has a truth value too: a dict of flags, {"camera": False}, would read as blank.
    if mask.dtype != np.bool_ or (mask.ndim > 0 and mask.shape != frame.shape):
        raise ValueError(
            f"{name} must be a bool or bools of the shape of the observation, "
            f"{frame.shape}, got {flag!r} of shape {mask.shape}"
        )
    return mask


def key_flags(flags: Sequence[Any], key: str) -> list[Any]:
    """Pick one key's flags; a key that a dict of flags does not name is always visible."""
    return [flag.get(key, False) if isinstance(flag, Mapping) else flag for flag in flags]


def flags_of_batch(blanked: Any, n_obs: int) -> list[Any]:
    """Split flags given for a batch into one per observation.

    :param blanked: one flag for all, one for each, or a dict of either by key
    :param n_obs: the number of observations
    :raises ValueError: for another number of flags
    """
    if isinstance(blanked, Mapping):
        by_key = {key: flags_of_batch(flags, n_obs) for key, flags in blanked.items()}
        return [{key: flags[idx] for key, flags in by_key.items()} for idx in range(n_obs)]
    if not isinstance(blanked, (list, tuple)) and np.ndim(blanked) == 0:
        return [blanked] * n_obs
    if len(blanked) != n_obs:
        raise ValueError(f"blanked must hold one flag per observation, {n_obs}, got {len(blanked)}")
    return list(blanked)


def tells(flags: Sequence[Any]) -> bool:
    """Tell whether any of these flags is one."""
    if isinstance(flags, np.ndarray) and flags.dtype == np.bool_:
        return len(flags) > 0
    return not set(map(type, flags)) <= {type(None)}


class ZeroWatch(Stateful):
    """Notices frames that look blanked where no environment tells of any.

    Of a sensor that blanks frames everything else is a reading, in which hardly a component is
    exactly zero. Switches, counts, one-hot codes and sparse events are zero in part far more often
    than as a whole, and a single number at zero says nothing: of none of these it is suspected.
    """

    #: Frames looked at in the beginning; whoever showed no blanks by then pays nothing any more.
    FRAMES = 10_000
    #: Blank-looking frames, and their share, that it takes.
    AT_LEAST, SHARE = 100, 0.1
    #: Share of frames that may be zero in part.
    IN_PART = 0.01

    def __init__(self) -> None:
        self._frames = self._zeros = self._in_part = 0

    def suspects(self, frames: Array) -> bool:
        """Look at a batch of frames, ``[n, *shape]``, that do not start an episode."""
        if self._frames >= self.FRAMES or len(frames) == 0:
            return False
        zeros = np.asarray(frames).reshape(len(frames), -1) == 0
        if zeros.shape[1] < 2:
            return False
        whole = zeros.all(axis=1)
        self._frames += len(frames)
        self._zeros += int(whole.sum())
        self._in_part += int((zeros.any(axis=1) & ~whole).sum())
        return (
            self._zeros >= max(self.AT_LEAST, self.SHARE * self._frames)
            and self._zeros < self._frames
            and self._in_part <= self.IN_PART * self._frames
        )


def _watches_state(watches: dict[str | None, ZeroWatch] | None) -> Any:
    """Return what a normaliser's watches, one for each key, have seen."""
    if watches is None:
        return None
    return [[key, watch.get_state()] for key, watch in watches.items()]


def _watches_of(state: Any, where: str) -> dict[str | None, ZeroWatch] | None:
    """Make watches that have seen what :func:`_watches_state` returned.

    :param where: whose they are, for the message
    :raises ValueError: for anything else
    """
    if state is None:
        return None
    if not isinstance(state, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in state
    ):
        raise ValueError(f"state of {where}, 'watches', must be a list of pairs, got {state!r}")
    watches: dict[str | None, ZeroWatch] = {}
    for key, seen in state:
        watches[key] = ZeroWatch()
        watches[key].set_state(seen)
    return watches


class KeepsWatches(Stateful):
    """What normalisers remember of blanks, beside their statistics; mixed in before other bases."""

    _no_state: Names = ("_watches",)
    #: By key, None that of a plain array; None where nothing is watched for any more.
    _watches: dict[str | None, ZeroWatch] | None

    def get_state(self) -> State:
        """Return statistics, switches and what has been noticed of blanks; see ``Stateful``."""
        return {**super().get_state(), "watches": _watches_state(self._watches)}

    def prepare_state(self, state: Any, where: str) -> Changes:
        """Check what :meth:`get_state` returned, and return what is to be done to take it over."""
        rest = dict(state) if isinstance(state, dict) else state
        watches = _watches_of(rest.pop("watches", None) if rest is not state else None, where)
        changes = super().prepare_state(rest, where)
        return [*changes, lambda: vars(self).update(_watches=watches)]


#: What is said about a normaliser that suspects.
LOOKS_BLANKED = (
    "many observations are exactly all zero, and the environment does not tell by info['blanked'] "
    "whether they are blank: {name} takes them for data. If they are blanked frames pass "
    "zero_is_blank=True, or let the environment tell info['blanked']; if they are readings, all is "
    "well"
)

#: What is said about a normaliser saved before there was ``zero_is_blank``.
SAVED_BEFORE = (
    "this {name} was saved by a version that took all-zero observations without a flag for blank, "
    "and goes on doing so (zero_is_blank=True), as what was trained with it is used to. If the "
    "environment flags its blanks or has none, set its attribute zero_is_blank to False and save "
    "it again"
)


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

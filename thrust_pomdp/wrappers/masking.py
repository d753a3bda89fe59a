"""Which components of an observation are dropped or zeroed (pure, single frames and batches)."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from thrust_pomdp.wrappers.blank_symbols import BLANKABLE, check_keys

_Array = spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary


class _PartMask(Protocol):
    """What is done to one array, or one number, of an observation."""

    space: spaces.Space[Any]

    def show(self, part: Any) -> Any:
        """Mask one of them or a batch; what is returned is new."""

    def flags(self, flags: Any, batch_ndim: int) -> Any:
        """Mask their blank flags."""


class ArrayMask:
    """What is dropped from and zeroed in one array.

    :param space: of the array
    :param what: names it in messages
    :param drop: positions along ``axis`` to drop; None for none
    :param zero: positions along ``axis`` to set to zero, or a bool mask of the array's shape
    :param axis: the axis that positions count along
    :raises ValueError: for positions that are not there, named twice, or all of them; for spaces
        without components; for zeros that the space does not hold
    """

    def __init__(
        self, space: spaces.Space[Any], what: str, drop: Any, zero: Any, axis: int
    ) -> None:
        if not isinstance(space, _Array) or space.shape == ():
            raise ValueError(
                f"{what} has no components to mask: arrays have (Box, MultiDiscrete, MultiBinary), "
                f"and a Dict has keys; got {space}"
            )
        self._ndim = len(space.shape)
        # From the end: the same axis with the environments' axis in front.
        self._axis = _axis_from_end(axis, self._ndim, what)
        n_positions = space.shape[self._axis]
        dropped = np.zeros(n_positions, dtype=bool)
        if drop is not None:
            dropped[_positions("drop", drop, n_positions, what)] = True
        zeroed = np.zeros(space.shape, bool) if zero is None else self._mask(zero, space, what)
        if zeroed.compress(dropped, self._axis).any():
            raise ValueError(f"drop and zero must name different components of {what}")
        zeroed = zeroed.compress(~dropped, self._axis)
        if zeroed.all():
            raise ValueError(
                f"drop and zero must leave something to see of {what}, got all of its components: "
                f"{(drop, zero)!r}"
            )
        self._kept = (~dropped).nonzero()[0] if dropped.any() else None
        self._zeroed = zeroed if zeroed.any() else None
        #: The space of what is left.
        self.space = space if self._kept is None else _taken(space, self._kept, self._axis)
        _check_zero(self.space, zeroed, what)
        # An array, since NumPy would convert a number at each step.
        self._zero = np.zeros((), dtype=space.dtype)

    def _mask(self, zero: Any, space: _Array, what: str) -> NDArray[np.bool_]:
        mask = _as_bool_mask(zero)
        if mask is not None:
            if mask.shape != space.shape:
                raise ValueError(
                    f"zero, as a bool mask of {what}, must have the shape {space.shape}, got "
                    f"{mask.shape}"
                )
            return mask
        n_positions = space.shape[self._axis]
        along = np.zeros(n_positions, dtype=bool)
        along[_positions("zero", zero, n_positions, what)] = True
        return np.broadcast_to(along.reshape(-1, *(1,) * (-1 - self._axis)), space.shape)

    def show(self, part: NDArray[Any]) -> NDArray[Any]:
        """Mask one array, or a batch of them; what is returned is new."""
        if self._kept is not None:
            part = part.take(self._kept, axis=self._axis)
        if self._zeroed is not None:
            part = np.where(self._zeroed, self._zero, part)
        return part

    def flags(self, flags: Any, batch_ndim: int) -> Any:
        """Drop the flags of dropped components; a flag for the whole array stays as it is."""
        if self._kept is None or np.ndim(flags) != batch_ndim + self._ndim:
            return flags
        return flags.take(self._kept, axis=self._axis)


class WholeZero:
    """A key of a Dict that shows zeros only.

    :raises ValueError: if its space does not hold them
    """

    def __init__(self, space: spaces.Space[Any], what: str) -> None:
        if not isinstance(space, BLANKABLE):
            raise ValueError(f"{what} cannot be zeroed, it is no array: drop it; got {space}")
        self.space: spaces.Space[Any] = space
        _check_zero(space, np.ones(space.shape or (), dtype=bool), what)

    def show(self, part: Any) -> Any:
        """Return zeros like it."""
        return np.zeros_like(part) if isinstance(part, np.ndarray) else type(part)(0)

    def flags(self, flags: Any, batch_ndim: int) -> Any:
        """Return the flags as they are."""
        return flags


class ObservationMask:
    """What is dropped from and zeroed in an observation; see ``MaskObservation``.

    :param space: the observation space
    :param drop: positions, or keys of a Dict, or a mapping from keys to positions; None for nothing
    :param zero: the like, or bool masks
    :param axis: the axis that positions count along
    :raises ValueError: naming what is wrong
    """

    def __init__(self, space: spaces.Space[Any], drop: Any, zero: Any, axis: int) -> None:
        if drop is None and zero is None:
            raise ValueError("drop or zero must name components to mask, got None for both")
        self._single: _PartMask | None = None
        self._dropped: list[str] = []
        self._parts: dict[str, _PartMask] = {}
        if isinstance(space, spaces.Dict):
            self._mask_keys(space, drop, zero, axis)
            # Pairs keep their order, of a mapping the keys would be sorted.
            shown = [
                (key, self._parts[key].space if key in self._parts else part)
                for key, part in space.items()
                if key not in self._dropped
            ]
            #: The space of what is left.
            self.space: spaces.Space[Any] = spaces.Dict(shown)
        else:
            self._single = ArrayMask(space, "the observation", drop, zero, axis)
            self.space = self._single.space

    def _mask_keys(self, space: spaces.Dict, drop: Any, zero: Any, axis: int) -> None:
        drop_keys, drop_parts = _whole_and_parts("drop", drop, space)
        zero_keys, zero_parts = _whole_and_parts("zero", zero, space)
        whole = [*drop_keys, *zero_keys]
        twice = {key for key in (*drop_parts, *zero_parts) if key in whole}
        twice |= set(drop_keys) & set(zero_keys)
        if twice:
            raise ValueError(f"drop and zero must not both name the keys {sorted(twice)}")
        if len(whole) == len(space.spaces):
            raise ValueError(
                f"drop and zero must leave something to see, got all keys {list(space.spaces)}"
            )
        self._dropped = drop_keys
        for key in zero_keys:
            self._parts[key] = WholeZero(space[key], f"key {key!r} of the observation")
        for key in {**drop_parts, **zero_parts}:
            what, dropped, zeroed = f"key {key!r}", drop_parts.get(key), zero_parts.get(key)
            self._parts[key] = ArrayMask(space[key], what, dropped, zeroed, axis)

    def show(self, obs: Any) -> Any:
        """Mask one observation or a batch of them; what is masked is new."""
        if self._single is not None:
            return self._single.show(obs)
        return {
            key: self._parts[key].show(part) if key in self._parts else part
            for key, part in obs.items()
            if key not in self._dropped
        }

    def flags(self, flags: Any, batch_ndim: int = 0) -> Any:
        """Leave out the blank flags of what is dropped.

        What is zeroed for good keeps its flag: it tells of the sensor, not of the mask.
        """
        if self._single is not None:
            return self._single.flags(flags, batch_ndim)
        if not isinstance(flags, Mapping):
            return flags
        return {
            key: self._parts[key].flags(flag, batch_ndim) if key in self._parts else flag
            for key, flag in flags.items()
            if key not in self._dropped
        }


def _whole_and_parts(name: str, value: Any, space: spaces.Dict) -> tuple[list[str], dict[str, Any]]:
    """Split what is given for a Dict into whole keys and components by key."""
    if value is None:
        return [], {}
    keys = check_keys(name, space, value)
    return ([], {key: value[key] for key in keys}) if isinstance(value, Mapping) else (keys, {})


def _axis_from_end(axis: Any, ndim: int, what: str) -> int:
    try:
        number = operator.index(axis)
    except TypeError:
        number = ndim
    if not -ndim <= number < ndim or isinstance(axis, bool):
        raise ValueError(f"axis must be one of the {ndim} axes of {what}, got {axis!r}")
    return number if number < 0 else number - ndim


def _as_bool_mask(value: Any) -> NDArray[np.bool_] | None:
    """Return a copy of a bool mask; None if it is none."""
    try:
        array = np.array(value)
    except ValueError:  # lists of unequal lengths
        return None
    return array if array.dtype == np.bool_ else None


def _positions(name: str, value: Any, n_positions: int, what: str) -> list[int]:
    rule = f"{name} must list different positions from 0 to {n_positions - 1} of {what}"
    if not isinstance(value, Collection):
        raise ValueError(f"{rule}, got {value!r}")
    try:
        positions = [operator.index(position) for position in value]
    except TypeError:
        raise ValueError(f"{rule}, got {value!r}") from None
    is_bool = any(isinstance(position, (bool, np.bool_)) for position in value)
    inside = all(0 <= position < n_positions for position in positions)
    if is_bool or not inside or not positions or len(set(positions)) < len(positions):
        raise ValueError(f"{rule}, got {value!r}")
    return positions


def _taken(space: _Array, kept: NDArray[np.intp], axis: int) -> spaces.Space[Any]:
    """Return the space of some positions along an axis."""
    dtype: Any = space.dtype
    if isinstance(space, spaces.Box):
        return spaces.Box(space.low.take(kept, axis), space.high.take(kept, axis), dtype=dtype)
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.take(kept, axis), space.start.take(kept, axis)
        return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)
    shape = np.empty(space.shape, dtype=bool).take(kept, axis).shape
    return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)


def _check_zero(space: Any, zeroed: NDArray[np.bool_], what: str) -> None:
    """Refuse zeros that a space does not hold."""
    if isinstance(space, spaces.Box):
        holds = (space.low <= 0) & (space.high >= 0)
    elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        sizes = space.n if isinstance(space, spaces.Discrete) else space.nvec
        holds = (space.start <= 0) & (space.start + sizes > 0)
    else:
        holds = np.ones(space.shape, dtype=bool)
    if not (holds | ~zeroed).all():
        raise ValueError(f"zero needs a space that holds 0 for {what}: drop it; got {space}")

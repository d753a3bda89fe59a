"""Blank flags of layers on one another, and their form in a vector's infos.

A flag is a bool for the whole frame, a bool array for single components, or a dict of either by
key. In a batch every array has the axis of the environments in front. Whatever form a layer uses,
it uses for every frame: infos of a vector are arrays, which could not hold both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from thrust_pomdp.wrappers.visible_statistics import Mask


def union_flags(
    inner: Any, outer: Any, space: spaces.Space[Any], batch: tuple[int, ...] = ()
) -> Any:
    """Tell what is blanked by one layer or the other, in the more detailed of their forms.

    >>> box = spaces.Box(-1.0, 1.0, (2,))
    >>> union_flags(False, np.array([True, False]), box).tolist()
    [True, False]
    >>> union_flags(True, {"gyro": False}, spaces.Dict(camera=box, gyro=box))
    {'camera': True, 'gyro': True}

    :param inner: what the environment tells; None if it does not
    :param outer: what the wrapper adds
    :param space: the observation space of a single environment
    :param batch: ``()`` for one frame, ``(n_envs,)`` for a batch
    :raises ValueError: if ``inner`` has none of the forms
    """
    if inner is None:
        return outer
    if isinstance(inner, bool) and isinstance(outer, bool):
        return inner or outer
    if not isinstance(space, spaces.Dict):
        return _union_of_array(inner, outer, space, batch)
    if not (isinstance(inner, Mapping) or isinstance(outer, Mapping)):
        return _union_of_array(inner, outer, None, batch)
    flags = {}
    for key, part in space.items():
        of_inner, of_outer = (_of_key(flag, key) for flag in (inner, outer))
        if of_inner is not None:
            # A key that one of them does not name is visible to it.
            visible = np.zeros(batch, dtype=bool)
            other = visible if of_outer is None else of_outer
            flags[key] = _union_of_array(of_inner, other, part, batch)
        elif of_outer is not None:
            flags[key] = of_outer
    return flags


def _of_key(flag: Any, key: str) -> Any:
    return flag.get(key) if isinstance(flag, Mapping) else flag


def _union_of_array(inner: Any, outer: Any, space: Any, batch: tuple[int, ...]) -> Any:
    one, other = np.asarray(inner), np.asarray(outer)
    shape = batch if space is None or space.shape is None else batch + space.shape
    if one.dtype != np.bool_ or one.shape not in (batch, shape):
        raise ValueError(
            'info["blanked"] must be a bool, bools of the shape of the observation '
            f"({shape if shape != batch else 'it has none'}), or a dict of these by key of a Dict "
            f"observation, got {inner!r}"
        )
    one, other = spread(one, other.ndim), spread(other, one.ndim)
    flags = one | other
    # An operation on two arrays without axes gives a NumPy bool; flags of frames are Python's.
    return bool(flags) if flags.ndim == 0 else flags


def spread(array: NDArray[Any], ndim: int) -> NDArray[Any]:
    """Append axes of length 1 up to ``ndim``, so that flags of frames meet those of components."""
    return array.reshape(array.shape + (1,) * (ndim - array.ndim))


def heard_flags(infos: dict[str, Any]) -> Any:
    """Take the flags out of a vector's infos: arrays ``[n_envs, ...]`` or a dict of them, or None.

    Environments that do not tell have flags of False.
    """
    return None if "blanked" not in infos else _heard(infos["blanked"])


def _heard(told: Any) -> Any:
    if isinstance(told, dict):
        return {
            key: _heard(flags)
            for key, flags in told.items()
            if not (key.startswith("_") and key[1:] in told)
        }
    # NumPy's bools in the infos of single environments end up in an array of objects.
    if isinstance(told, np.ndarray) and told.dtype == object and _are_bools(told):
        return told.astype(bool)
    return told


def _are_bools(flags: NDArray[Any]) -> bool:
    return all(flag is None or isinstance(flag, (bool, np.bool_)) for flag in flags)


def tell_flags(infos: dict[str, Any], flags: Any, mask: Mask, key: str = "blanked") -> None:
    """Put flags into a vector's infos, in Gymnasium's form.

    :param infos: changed in place
    :param flags: arrays ``[n_envs, ...]`` or a dict of such by key
    :param mask: the environments that tell, bool ``[n_envs]``
    """
    if isinstance(flags, Mapping):
        told: dict[str, Any] = {}
        for part, of_part in flags.items():
            tell_flags(told, of_part, mask, part)
        infos[key] = told
    else:
        infos[key] = flags & spread(mask, flags.ndim)
    infos[f"_{key}"] = mask.copy()


def change_flags(infos: dict[str, Any], function: Callable[[Any], Any]) -> dict[str, Any]:
    """Apply a function to the flags of a vector's infos; what else they tell stays.

    :param infos: not changed
    :param function: from and to arrays ``[n_envs, ...]`` or a dict of such by key
    :return: new infos; the same where there are no flags, or the function leaves them as they are
    """
    flags = heard_flags(infos)
    changed = None if flags is None else function(flags)
    if changed is flags:
        return infos
    told = {**infos}
    tell_flags(told, changed, infos["_blanked"])
    return told

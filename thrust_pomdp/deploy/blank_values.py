"""What a blank looks like to a model, for those who show it readings themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.vec_env.frame_order import stacks_of
from thrust_pomdp.wrappers.blank_symbols import SymbolBox
from thrust_pomdp.wrappers.blanking import BlankingObservation
from thrust_pomdp.wrappers.frame_order import leaves_observations
from thrust_pomdp.wrappers.mask import MaskObservation
from thrust_pomdp.wrappers.vector.blanking import BlankingVectorWrapper
from thrust_pomdp.wrappers.visible_statistics import blank_mask, key_flags

#: Gymnasium's wrappers by which a blank becomes what a function makes of it.
_FUNCTIONS = {"DtypeObservation", "FlattenObservation", "RescaleObservation", "ReshapeObservation"}


def blank_of(env: VecEnv) -> Any:
    """Find what the innermost observations of a VecEnv show when they are blanked.

    :return: one observation, in a dict the keys of which it is known; None if it is not known
    """
    outside: list[Any] = []
    for layer in stacks_of(env)[0]:
        if isinstance(layer, (BlankingObservation, BlankingVectorWrapper)):
            blanks = layer._plan.blanks
            values = {key: blank.value for key, blank in blanks.by_key.items()}
            return _through(outside, blanks.single.value if blanks.single else values)
        outside.append(layer)
    return None


def _through(outside: Sequence[Any], blank: Any) -> Any:
    """Do to a blank what the wrappers around do; None where that is not known."""
    for layer in reversed(outside):
        if leaves_observations(layer):
            continue
        if isinstance(blank, dict):
            return None  # keys may be masked, or flattened
        if type(layer) is MaskObservation:
            blank = layer._mask.show(blank)
        elif type(layer).__name__ in _FUNCTIONS and isinstance(layer, TransformObservation):
            blank = np.asarray(layer.observation(blank))
        else:
            return None
    return blank


class BlankFiller:
    """Shows what is told to be blank as a blank, in a batch of raw observations.

    Of a ``Box`` that is zeros, if nothing else is known; of ``Discrete`` and ``MultiDiscrete``
    numbers the last value, which
    :class:`~thrust_pomdp.FlickerObservation` adds to mean blank.

    :param space: of the observations, as far as it is known: arrays are looked up by key
    :param blank: what :func:`blank_of` found
    """

    def __init__(self, space: spaces.Space[Any], blank: Any = None) -> None:
        self._space, self._blank = space, blank

    def __call__(self, obs: Any, flags: Sequence[Any]) -> Any:
        """Show a batch by its flags.

        :param obs: arrays ``[n, *shape]``, or a dict of such; left as they are
        :param flags: one for each observation
        :raises ValueError: for flags that do not fit
        """
        if all(flag is None or flag is False for flag in flags):
            return obs
        if not isinstance(obs, dict):
            return self._show(obs, flags, self._space, self._blank)
        self._check_keys(obs, flags)
        return {
            key: self._show(part, key_flags(flags, key), *self._of_key(key))
            for key, part in obs.items()
        }

    def _of_key(self, key: str) -> tuple[Any, Any]:
        space = self._space.spaces.get(key) if isinstance(self._space, spaces.Dict) else None
        return space, self._blank.get(key) if isinstance(self._blank, dict) else None

    def _show(self, part: Any, flags: Sequence[Any], space: Any, blank: Any) -> NDArray[Any]:
        mask = blank_mask(part, flags, name="blanked")
        if not mask.any():
            return np.asarray(part)
        shape = part.shape[1:]
        value = _default(space) if blank is None or np.shape(blank) != shape else blank
        shown = np.array(part)
        shown[mask] = np.broadcast_to(np.asarray(value, shown.dtype), shown.shape)[mask]
        return shown

    def _check_keys(self, obs: dict[str, Any], flags: Sequence[Any]) -> None:
        for flag in flags:
            if isinstance(flag, Mapping) and flag and not set(flag) & set(obs):
                raise ValueError(
                    f"blanked must name keys of the observation, {list(obs)}, got {list(flag)}"
                )


def _default(space: Any) -> Any:
    if isinstance(space, spaces.Discrete):
        return space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start + space.nvec - 1
    if isinstance(space, SymbolBox):
        return space.n - 1
    return 0

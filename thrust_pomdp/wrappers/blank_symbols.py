"""What is shown in place of what is blanked: zeros, or a symbol that means nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from thrust_pomdp.errors import ArgumentError

#: What the array or number of an observation may be to be blanked.
BLANKABLE = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def observation_space_of(env: Any) -> spaces.Space[Any]:
    """Return a single environment's observation space.

    :raises ValueError: for what is no environment
    """
    if not isinstance(env, gym.Env):
        hint = ""
        if hasattr(env, "num_envs"):
            hint = (
                ", which is of several: put the wrapper around each single environment "
                "(make_vec_env's wrapper_class), or take its form for gymnasium.vector in "
                "thrust_pomdp.wrappers.vector, or for Stable-Baselines3 a Vec... class of "
                "thrust_pomdp"
            )
        raise ArgumentError(f"env must be a Gymnasium environment, got {env!r}{hint}")
    return env.observation_space


class SymbolBox(spaces.Box):
    """Whole numbers of which the last one means blank, in an array of several axes.

    Stable-Baselines3's networks take no ``MultiDiscrete`` of several axes, and a plain ``Box``
    would be blanked by 0 once more, which is a real value here.

    >>> SymbolBox(3, (2, 2))
    Box(0, 2, (2, 2), int8)

    :param n: how many numbers there are, blanks included
    :param shape: of the array
    """

    def __init__(self, n: int, shape: tuple[int, ...]) -> None:
        super().__init__(0, n - 1, shape, np.int8)
        self.n = n


@dataclass(frozen=True)
class Blank:
    """What one array (or number) of an observation shows when it is blanked.

    :param space: the space with the blank in it
    :param value: the blank, of the array's shape and dtype
    :param dtype: what frames are turned into; None to leave them as they are
    """

    space: spaces.Space[Any]
    value: Any
    dtype: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array, ``()`` for a number."""
        shape: tuple[int, ...] = self.value.shape
        return shape

    def show(self, frame: Any, flag: Any) -> Any:
        """Show one frame; ``flag`` is a bool, or a bool array of its components."""
        if self.dtype is not None:
            frame = np.asarray(frame, self.dtype)
        if isinstance(flag, np.ndarray):
            return np.where(flag, self.value, frame)
        # A copy each time: what is returned is the caller's to keep and to change.
        return self.value.copy() if flag else frame

    def show_batch(self, frames: NDArray[Any], flags: NDArray[np.bool_]) -> NDArray[Any]:
        """Show frames ``[n, *shape]``, each by its flag: ``[n]``, or ``[n, *shape]``."""
        if self.dtype is not None:
            frames = np.asarray(frames, self.dtype)
        missing = frames.ndim - flags.ndim
        return np.where(flags.reshape(flags.shape + (1,) * missing), self.value, frames)


class Blanks:
    """What an observation, or some keys of a Dict observation, show when they are blanked.

    * A ``Box`` shows ``blank_value``, zeros by default.
    * A ``Discrete`` number has no value to spare: the space grows by one at its end, and the new
      value means blank. Likewise each entry of a ``MultiDiscrete``.
    * A ``MultiBinary`` entry of 0 is a real value, so the space becomes a ``MultiDiscrete`` of 0, 1
      and 2 = blank; one of several axes a :class:`SymbolBox` of these.

    :param space: the observation space
    :param keys: keys of a Dict that can be blanked; None for all, or if the space is no Dict
    :param blank_value: what a Box shows: a number or an array; for a Dict, a mapping from keys to
        these will do too
    :raises ValueError: for keys that are not there and for what cannot be blanked, with the reason
    """

    def __init__(self, space: spaces.Space[Any], keys: Any, blank_value: Any) -> None:
        #: The space with the blanks in it; the same object if all were in it already.
        self.space = space
        #: What each blankable key shows, in the order of the space; a single one if no Dict.
        self.by_key: dict[str, Blank] = {}
        self.single: Blank | None = None
        if isinstance(space, spaces.Dict):
            names = _chosen_keys(space, keys)
            values = _values_by_key(names, blank_value)
            self.by_key = {
                key: _blank(space[key], f"key {key!r} of the observation", values.get(key))
                for key in names
            }
            changed = {key: blank.space for key, blank in self.by_key.items()}
            if any(changed[key] is not space[key] for key in changed):
                # Pairs keep their order, of a mapping the keys would be sorted.
                self.space = spaces.Dict(list({**space.spaces, **changed}.items()))
        else:
            if keys is not None:
                raise ValueError(f"keys needs a Dict observation, got {keys!r} for {space}")
            self.single = _blank(space, "the observation", blank_value)
            self.space = self.single.space

    def show(self, obs: Any, flags: Any) -> Any:
        """Show one observation by its flags: one for all of it, or a dict of them by key."""
        if self.single is not None:
            return self.single.show(obs, flags)
        shown = dict(obs)
        for key, blank in self.by_key.items():
            flag = flags[key] if isinstance(flags, dict) else flags
            shown[key] = blank.show(obs[key], flag)
        return shown

    def show_batch(self, obs: Any, flags: Any) -> Any:
        """Show a batch of observations by their flags, ``[n]`` or a dict of such."""
        if self.single is not None:
            return self.single.show_batch(obs, flags)
        shown = dict(obs)
        for key, blank in self.by_key.items():
            of_key = flags[key] if isinstance(flags, dict) else flags
            shown[key] = blank.show_batch(obs[key], of_key)
        return shown


def check_keys(name: str, space: spaces.Dict, keys: Any) -> list[str]:
    """Return keys of a Dict, in the order of the space.

    :raises ValueError: if some are not there or named twice, or there is none
    """
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Collection):
        raise ValueError(f"{name} must be a list of keys of the observation, got {keys!r}")
    chosen, known = list(keys), list(space.spaces)
    if not chosen or any(key not in known for key in chosen):
        raise ValueError(f"{name} must name at least one of the keys {known}, got {chosen!r}")
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"{name} must name each key once, got {chosen!r}")
    return [key for key in known if key in chosen]


def _chosen_keys(space: spaces.Dict, keys: Any) -> list[str]:
    if keys is not None:
        return check_keys("keys", space, keys)
    if not space.spaces:
        raise ValueError(f"env must have an observation to blank, got {space}")
    return list(space.spaces)


def _values_by_key(names: list[str], blank_value: Any) -> Mapping[str, Any]:
    if not isinstance(blank_value, Mapping):
        return dict.fromkeys(names, blank_value)
    unknown = [key for key in blank_value if key not in names]
    if unknown:
        raise ValueError(
            f"blank_value must name keys that are blanked, {names}, got {dict(blank_value)!r}"
        )
    return blank_value


def _blank(space: spaces.Space[Any], what: str, blank_value: Any) -> Blank:
    for kind, make in _MAKERS.items():
        if isinstance(space, kind):
            return make(space, what, blank_value)
    reason = "it is no array of fixed size"
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        reason = "nested observations are not looked into; flatten it first"
    raise ValueError(
        f"{what} cannot be blanked: {reason}. Box, Discrete, MultiDiscrete and MultiBinary can, "
        f"and keys of a Dict that are such (see keys); got {space}"
    )


def _blank_box(space: spaces.Box, what: str, blank_value: Any) -> Blank:
    rule = f"blank_value of {what} must be a finite number, or an array of shape {space.shape}"
    try:
        array = np.asarray(0 if blank_value is None else blank_value)
    except ValueError:  # lists of unequal lengths
        raise ValueError(f"{rule}, got {blank_value!r}") from None
    if array.dtype.kind not in "buif" or not np.isfinite(array).all():
        raise ValueError(f"{rule}, got {blank_value!r}")
    if array.shape not in ((), space.shape):
        raise ValueError(f"{rule}, got shape {array.shape}")
    with np.errstate(all="ignore"):
        value = np.full(space.shape, array).astype(space.dtype)
    # Of floats the nearest one is shown; whole numbers must be what was asked for.
    rounds = np.issubdtype(space.dtype, np.floating)
    shown = value if rounds else np.full(space.shape, array)
    within = (space.low <= shown) & (shown <= space.high) & (rounds | (value == array))
    if not within.all():
        hint = "0 does not lie within its bounds; choose" if blank_value is None else "choose"
        raise ValueError(
            f"{what} cannot be blanked with {0 if blank_value is None else blank_value!r}: {hint} "
            f"a blank_value that its space holds, got {space}"
        )
    return Blank(space, value)


def _blank_discrete(space: spaces.Discrete, what: str, blank_value: Any) -> Blank:
    _refuse_blank_value(what, blank_value, space)
    dtype = np.dtype(space.dtype)
    symbol = int(space.start) + int(space.n)
    _check_room(what, max(symbol, int(space.n) + 1), space)
    # Gymnasium 1.1 has no other type of number.
    other_type: Any = {} if dtype == np.int64 else {"dtype": dtype}
    grown = spaces.Discrete(int(space.n) + 1, start=int(space.start), **other_type)
    return Blank(grown, dtype.type(symbol))


def _blank_multi_discrete(space: spaces.MultiDiscrete, what: str, blank_value: Any) -> Blank:
    _refuse_blank_value(what, blank_value, space)
    sizes = space.nvec.astype(np.int64)
    symbols = space.start + sizes
    _check_room(what, int(np.maximum(symbols, sizes + 1).max()), space)
    dtype: Any = space.dtype
    if (sizes + 1).sum() > np.iinfo(dtype).max:
        dtype = np.int64  # SB3 sums up the sizes in their own type
    grown = spaces.MultiDiscrete(sizes + 1, dtype=dtype, start=space.start)
    return Blank(grown, symbols.astype(dtype), None if dtype == space.dtype else dtype)


def _blank_multi_binary(space: spaces.MultiBinary, what: str, blank_value: Any) -> Blank:
    _refuse_blank_value(what, blank_value, space)
    if len(space.shape) != 1:
        return _symbols(3, space.shape)
    # In the bits' own int8 the sizes' sum, which is the width of SB3's encoding, would overflow.
    grown = spaces.MultiDiscrete(np.full(space.shape, 3), dtype=np.int64)
    return Blank(grown, np.full(space.shape, 2), np.int64)


def _blank_symbols(space: SymbolBox, what: str, blank_value: Any) -> Blank:
    _refuse_blank_value(what, blank_value, space)
    _check_room(what, space.n, space)
    return _symbols(space.n + 1, space.shape)


def _symbols(n: int, shape: tuple[int, ...]) -> Blank:
    return Blank(SymbolBox(n, shape), np.full(shape, n - 1, np.int8))


_MAKERS: dict[type[spaces.Space[Any]], Callable[[Any, str, Any], Blank]] = {
    SymbolBox: _blank_symbols,  # before the Box that it is
    spaces.Box: _blank_box,
    spaces.Discrete: _blank_discrete,
    spaces.MultiDiscrete: _blank_multi_discrete,
    spaces.MultiBinary: _blank_multi_binary,
}


def _refuse_blank_value(what: str, blank_value: Any, space: spaces.Space[Any]) -> None:
    if blank_value is not None:
        raise ValueError(
            f"blank_value is for Box observations; {what} gets a symbol of its own for blank, "
            f"since each of its values means something already; got {blank_value!r} for {space}"
        )


def _check_room(what: str, symbol: int, space: Any) -> None:
    if symbol > np.iinfo(space.dtype).max:
        raise ValueError(f"{what} cannot be blanked: {space.dtype} has no value left in {space}")

"""Observations that have something appended: the last action or reward (pure, batched)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

#: The key of an observation that becomes a dict.
OBSERVATION = "observation"


class Encoding(Protocol):
    """Something about the last step as a float32 vector."""

    #: Where the vectors lie, a Box of one dimension. It holds zeros, which mean that there was no
    #: step yet.
    space: spaces.Box
    size: int

    def __call__(self, values: Any, /) -> NDArray[np.float32]:
        """Encode one value, ``[size]``, or a batch of them, ``[n, size]``; always a new array."""

    def none(self, *batch: int) -> NDArray[np.float32]:
        """Return what is shown before the first step, ``[*batch, size]``."""


class Appender:
    """Appends vectors to observations, single ones or batches.

    A ``Box`` vector gets longer, a ``Dict`` gets a key more; any other observation becomes a
    ``Dict`` of itself, under ``"observation"``, and the vector.

    :param space: the observation space
    :param encoding: of what is appended
    :param key: its key in observations that are or become dicts
    :raises ValueError: if that key is taken, or no string
    """

    def __init__(self, space: spaces.Space[Any], encoding: Encoding, key: str) -> None:
        if not isinstance(key, str) or not key:
            raise ValueError(f"key must be the name of a key, got {key!r}")
        self._key, self._n_appended = key, encoding.size
        self._is_dict = isinstance(space, spaces.Dict)
        #: Whether observations are vectors, which get longer.
        self.makes_longer = isinstance(space, spaces.Box) and len(space.shape) == 1
        self._ndim = 0 if space.shape is None else len(space.shape)
        #: The observation space with the vector in it.
        self.space: spaces.Space[Any]
        if isinstance(space, spaces.Box) and self.makes_longer:
            self.space = _longer(space, encoding.space)
            return
        parts = dict(space.items()) if isinstance(space, spaces.Dict) else {OBSERVATION: space}
        if key in parts:
            raise ValueError(
                f"key must not be one of the observation's, {list(parts)}, got {key!r}"
            )
        self.space = spaces.Dict([*parts.items(), (key, encoding.space)])

    def append(self, obs: Any, encoded: NDArray[np.float32]) -> Any:
        """Append vectors, ``[..., size]``, to an observation or a batch of them."""
        return append(obs, encoded, None if self.makes_longer else self._key)

    def append_to_each(
        self, observations: Sequence[Any], encoded: NDArray[np.float32]
    ) -> list[Any]:
        """Append vectors, ``[n, size]``, to as many single observations."""
        if self.makes_longer and len({_kind(obs) for obs in observations}) == 1:
            return list(self.append(np.stack(observations), encoded))
        return [self.append(obs, row) for obs, row in zip(observations, encoded, strict=True)]

    def names_components(self, flags: Any, batch_ndim: int = 0) -> bool:
        """Tell whether flags are of single components, so that they must follow the observation."""
        is_array = isinstance(flags, np.ndarray) and flags.ndim > batch_ndim
        return is_array and flags.ndim == batch_ndim + self._ndim and not self._is_dict

    def extend_flags(self, flags: Any, batch_ndim: int = 0) -> Any:
        """Tell that what is appended is never blank, where flags are of components.

        A flag of the whole frame stays: it tells of the sensors. A key without a flag is visible.
        """
        if isinstance(flags, Mapping) or not self.names_components(flags, batch_ndim):
            return flags
        if not self.makes_longer:
            return {OBSERVATION: flags}
        appended = np.zeros((*flags.shape[:batch_ndim], self._n_appended), dtype=bool)
        return np.concatenate((flags, appended), axis=-1)


def append(obs: Any, encoded: NDArray[np.float32], key: str | None) -> Any:
    """Append vectors, ``[..., size]``, to an observation or a batch of them.

    :param obs: arrays or a dict of arrays
    :param encoded: the vectors
    :param key: under which to append them; None to make an array longer
    """
    if isinstance(obs, dict):
        return {**obs, key: encoded}
    if key is None:
        return np.concatenate((obs, encoded), axis=-1)
    return {OBSERVATION: obs, key: encoded}


def _kind(array: Any) -> Any:
    """Return what arrays must share to be what they are in a batch; of others nothing is alike."""
    return (array.dtype, array.shape) if type(array) is np.ndarray else object()


def _longer(space: spaces.Box, appended: spaces.Box) -> spaces.Box:
    dtype: Any = np.result_type(space.dtype, np.float32)
    low, high = (
        np.concatenate(pair).astype(dtype)
        for pair in ((space.low, appended.low), (space.high, appended.high))
    )
    return spaces.Box(low, high, dtype=dtype)

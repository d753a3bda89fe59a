"""Actions as numbers to look at (pure, batched)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

#: The key of the previous action in observations that are or become dicts.
PREVIOUS_ACTION = "previous_action"

Encoder = Callable[[Any], NDArray[np.float32]]


class ActionEncoding:
    """Actions as float32 vectors: one-hot, or scaled to [-1, 1].

    * ``Discrete``: one-hot. ``MultiDiscrete``: the one-hot vectors of its entries, one after the
      other. ``MultiBinary``: its bits as they are.
    * ``Box``: each component scaled from its bounds to [-1, 1] and clipped there; one without
      finite bounds as it is.

    >>> ActionEncoding(spaces.Discrete(3, start=1))(np.array([1, 3])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]

    :param space: the action space
    :raises ValueError: for other spaces
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._encode: Encoder
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            self._encode, size = _one_hot(space)
            low, high = np.zeros(size, np.float32), np.ones(size, np.float32)
        elif isinstance(space, spaces.MultiBinary):
            self._encode, size = _Flat(len(space.shape)), int(np.prod(space.shape))
            low, high = np.zeros(size, np.float32), np.ones(size, np.float32)
        elif isinstance(space, spaces.Box):
            scaling = _Scaling(space)
            self._encode, low, high = scaling, scaling.low, scaling.high
        else:
            raise ValueError(
                "action_space must be a Box, Discrete, MultiDiscrete or MultiBinary space to be "
                f"shown to the agent, got {space}"
            )
        #: Where encoded actions lie, a Box of one dimension. It holds zeros, which mean that there
        #: was no action yet.
        self.space: spaces.Box = spaces.Box(
            np.minimum(low, 0.0), np.maximum(high, 0.0), dtype=np.float32
        )
        self.size: int = self.space.shape[0]

    def __call__(self, actions: Any) -> NDArray[np.float32]:
        """Encode one action, ``[size]``, or a batch of them, ``[n, size]``; always a new array."""
        return self._encode(actions)

    def none(self, *batch: int) -> NDArray[np.float32]:
        """Return what is shown before the first action, ``[*batch, size]``."""
        return np.zeros((*batch, self.size), dtype=np.float32)


class _Flat:
    """Arrays as float32 vectors."""

    def __init__(self, ndim: int) -> None:
        self._ndim = ndim

    def __call__(self, actions: Any) -> NDArray[np.float32]:
        array = np.array(actions, dtype=np.float32)
        return array.reshape((*array.shape[: array.ndim - self._ndim], -1))


class _Scaling:
    """Components from their bounds to [-1, 1], those without finite bounds as they are."""

    def __init__(self, space: spaces.Box) -> None:
        self._flat = _Flat(len(space.shape))
        low, high = (bound.astype(np.float64).ravel() for bound in (space.low, space.high))
        bounded = np.isfinite(low) & np.isfinite(high)
        with np.errstate(invalid="ignore", over="ignore"):
            width, centre = high / 2 - low / 2, high / 2 + low / 2
        moves = bounded & (width > 0)
        self._centre = np.where(bounded, centre, 0.0).astype(np.float32)
        self._width = np.where(moves, width, 1.0).astype(np.float32)
        self.low = np.where(bounded, -1.0, low).astype(np.float32)
        self.high = np.where(bounded, 1.0, high).astype(np.float32)

    def __call__(self, actions: Any) -> NDArray[np.float32]:
        scaled = self._flat(actions)
        scaled -= self._centre
        scaled /= self._width
        np.maximum(scaled, self.low, out=scaled)
        np.minimum(scaled, self.high, out=scaled)
        return scaled


class _OneHot:
    def __init__(self, start: int, size: int) -> None:
        self._start = start
        self._rows: NDArray[np.float32] = np.eye(size, dtype=np.float32)

    def __call__(self, actions: Any) -> NDArray[np.float32]:
        if isinstance(actions, (int, np.integer)):
            # What take does with one action, in a third of the time.
            rows = self._rows[actions - self._start].copy()
        else:
            rows = self._rows.take(np.subtract(actions, self._start), axis=0)
        return rows


class _OneHots:
    def __init__(self, space: spaces.MultiDiscrete) -> None:
        nvec = space.nvec.astype(np.int64)
        # Where in the vector the value 0 of each entry is marked.
        self._origins = (np.cumsum(nvec) - nvec.ravel()).reshape(nvec.shape) - space.start
        self.size = int(nvec.sum())
        self._ndim = nvec.ndim

    def __call__(self, actions: Any) -> NDArray[np.float32]:
        marks = np.add(actions, self._origins)
        batch = marks.shape[: marks.ndim - self._ndim]
        vectors = np.zeros((*batch, self.size), dtype=np.float32)
        rows = vectors.reshape(-1, self.size)
        rows[np.arange(len(rows))[:, None], marks.reshape(len(rows), -1)] = 1.0
        return vectors


def _one_hot(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[Encoder, int]:
    if isinstance(space, spaces.Discrete):
        return _OneHot(int(space.start), int(space.n)), int(space.n)
    encoder = _OneHots(space)
    return encoder, encoder.size

"""Rewards as numbers to look at (pure, batched)."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

#: The key of the previous reward in observations that are or become dicts.
PREVIOUS_REWARD = "previous_reward"


class RewardEncoding:
    """Rewards as float32 vectors of one component, their value as it is.

    >>> RewardEncoding()([0.5, -1.0]).tolist()
    [[0.5], [-1.0]]
    """

    size = 1

    def __init__(self) -> None:
        #: Where encoded rewards lie.
        self.space: spaces.Box = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __call__(self, rewards: Any) -> NDArray[np.float32]:
        """Encode one reward, ``[1]``, or a batch of them, ``[n, 1]``; always a new array."""
        return np.array(rewards, dtype=np.float32)[..., None]

    def none(self, *batch: int) -> NDArray[np.float32]:
        """Return what is shown before the first reward, ``[*batch, 1]``."""
        return np.zeros((*batch, 1), dtype=np.float32)

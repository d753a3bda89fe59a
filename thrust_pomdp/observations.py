"""Observations that are arrays or dicts of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def map_obs(function: Callable[[Any], Any], obs: Any) -> Any:
    """Apply ``function`` to an array, or to each array of a dict."""
    if isinstance(obs, dict):
        return {key: function(part) for key, part in obs.items()}
    return function(obs)


def stack_obs(observations: Sequence[Any]) -> Any:
    """Stack single observations into a batch, ``[n, *obs_shape]``, key by key for dicts."""
    first = observations[0]
    if isinstance(first, dict):
        return {key: np.stack([obs[key] for obs in observations]) for key in first}
    return np.stack(observations)

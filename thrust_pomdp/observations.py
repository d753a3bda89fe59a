"""Observations that are arrays or dicts of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from thrust_pomdp.errors import ArgumentError


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


def named_parts(name: str, obs: Any) -> list[tuple[str, Any]]:
    """Name the arrays of observations for a message: ``name``, with the key in a dict."""
    if isinstance(obs, dict):
        return [(f"{name} {key!r}", part) for key, part in obs.items()]
    return [(name, obs)]


def _all_finite(array: Any) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def check_finite(array: Any, name: str, first_step: int = 0) -> None:
    """Refuse an array ``[n_steps, n_envs, ...]`` of floats that holds what is not finite.

    :raises ValueError: naming the environment and the step of the rollout
    """
    if _all_finite(array):
        return
    step, env = (int(idx) for idx in np.argwhere(~np.isfinite(array))[0][:2])
    raise ValueError(
        f"non-finite {name} of environment {env} at step {first_step + step} of the rollout: "
        f"{array[step, env]}"
    )


def check_finite_obs(obs: Any, name: str) -> None:
    """Refuse observations, arrays or dicts of arrays, that hold what is no finite number.

    :raises ValueError: naming them
    """
    for part_name, part in named_parts(name, obs):
        array = np.asarray(part)
        if array.dtype.kind not in "biuf":
            raise ArgumentError(f"{part_name} must be numbers, got {part!r}")
        if not _all_finite(array):
            raise ValueError(f"non-finite {part_name}: {array}")


def check_shapes(batch: Any, space: spaces.Space[Any], what: str) -> None:
    """Refuse a batch of observations of other keys or shapes than those of a space.

    :param batch: ``[n, *obs_shape]``, or a dict of such
    :param space: of one observation
    :param what: the message's beginning
    :raises ValueError: naming what the space has and what there is
    """
    got = {name: part.shape[1:] for name, part in named_parts("array", batch)}
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else space
    wanted = {name: part.shape for name, part in named_parts("array", parts)}
    # Sorted, since SB3 may have put an image's channels first.
    if {name: sorted(shape) for name, shape in got.items()} != {
        name: sorted(shape or ()) for name, shape in wanted.items()
    }:
        raise ValueError(f"{what} {_shapes(wanted)}, got {_shapes(got)}")


def _shapes(shapes: dict[str, Any]) -> str:
    return ", ".join(f"an {name} of shape {shape}" for name, shape in shapes.items())

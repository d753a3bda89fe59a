"""What is done to raw observations before a model sees them: one layer for each wrapper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecNormalize

from thrust_pomdp.observations import check_shapes
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible
from thrust_pomdp.wrappers.appending import Encoding, append


class StepContext(NamedTuple):
    """What is known beside the observations of a step, of ``n`` environments.

    :param actions: what led to the observations, ``[n, *action_shape]``; None before any step
    :param rewards: what came with them, ``[n]``; None where nobody told
    :param starts: whose observation is the first of an episode, bool ``[n]``
    :param flags: what of the observations is blanked, one flag for each
    """

    actions: Any
    rewards: Any
    starts: NDArray[np.bool_]
    flags: list[Any]


#: (observations of n environments, what else is known) -> what is shown of them
Layer = Callable[[Any, StepContext], Any]


class Normalized:
    """Normalises by frozen statistics.

    :param normalizer: SB3's or ours; it needs no environment
    """

    def __init__(self, normalizer: VecNormalize) -> None:
        self._normalizer = normalizer

    def __call__(self, obs: Any, context: StepContext) -> Any:
        """Normalise what is visible."""
        check_shapes(obs, self._normalizer.observation_space, "observation: the normalizer takes")
        if isinstance(self._normalizer, VecNormalizeVisible):
            return self._normalizer.normalize_obs(obs, context.flags)
        return self._normalizer.normalize_obs(obs)


class Previous:
    """Appends the previous action or reward.

    :param encoding: of what is appended
    :param what: ``"action"`` or ``"reward"``
    :param key: its key in a Dict observation; None where a vector gets longer
    """

    def __init__(self, encoding: Encoding, what: str, key: str | None) -> None:
        self._encoding, self._what, self._key = encoding, what, key

    def __call__(self, obs: Any, context: StepContext) -> Any:
        """Append it, zeros at episode starts."""
        starts = context.starts
        values = context.actions if self._what == "action" else context.rewards
        if values is not None:
            encoded = self._encoding(values)
            encoded[starts] = 0.0
        elif starts.all():
            encoded = self._encoding.none(len(starts))
        else:
            raise ValueError(
                f"{self._what} must be given: the model was trained seeing its previous "
                f"{self._what}, and not every observation starts an episode"
            )
        return append(obs, encoded, self._key)


class Stacked:
    """Shows the last few frames, zeros for those from before an episode's start.

    :param n_stack: how many
    :param axis_of: (key, frames of all environments) -> the axis to stack on, 1 or -1
    """

    def __init__(self, n_stack: int, axis_of: Callable[[str | None, Any], int]) -> None:
        self._n_stack, self._axis_of = n_stack, axis_of
        self._frames: dict[str | None, list[NDArray[Any]]] = {}

    def __call__(self, obs: Any, context: StepContext) -> Any:
        """Add frames to the stack."""
        if isinstance(obs, dict):
            return {key: self._push(key, part, context.starts) for key, part in obs.items()}
        return self._push(None, obs, context.starts)

    def _push(self, key: str | None, part: Any, starts: NDArray[np.bool_]) -> NDArray[Any]:
        # What is kept is either all forgotten now, or of as many environments as there are.
        blank = [np.zeros_like(part)] * self._n_stack
        kept = [frame.copy() for frame in (blank if starts.all() else self._frames[key])[1:]]
        for frame in kept:
            frame[starts] = 0
        self._frames[key] = [*kept, np.array(part)]
        return np.concatenate(self._frames[key], axis=self._axis_of(key, part))

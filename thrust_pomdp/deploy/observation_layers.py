"""What may be done to raw observations, one thing a layer."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecNormalize, VecTransposeImage

from thrust_pomdp.array_files import check_trusted, is_safe_file
from thrust_pomdp.observations import check_shapes
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible, read_any_normalizer
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
        #: The normaliser.
        self.normalizer = normalizer

    def __call__(self, obs: Any, context: StepContext) -> Any:
        """Normalise what is visible."""
        check_shapes(obs, self.normalizer.observation_space, "observation: the normalizer takes")
        if isinstance(self.normalizer, VecNormalizeVisible):
            return self.normalizer.normalize_obs(obs, context.flags)
        return self.normalizer.normalize_obs(obs)


class Previous:
    """Appends the previous action or reward.

    :param encoding: of what is appended
    :param what: ``"action"`` or ``"reward"``
    :param key: its key in a Dict observation; None where a vector gets longer
    """

    def __init__(self, encoding: Encoding, what: str, key: str | None) -> None:
        self.encoding, self.what, self.key = encoding, what, key

    def __call__(self, obs: Any, context: StepContext) -> Any:
        """Append it, zeros at episode starts."""
        starts = context.starts
        values = context.actions if self.what == "action" else context.rewards
        if values is not None:
            encoded = self.encoding(values)
            encoded[starts] = 0.0
        elif starts.all():
            encoded = self.encoding.none(len(starts))
        else:
            raise ValueError(
                f"{self.what} must be given: the model was trained seeing its previous "
                f"{self.what}, and not every observation starts an episode"
            )
        return append(obs, encoded, self.key)


class Stacked:
    """Shows the last few frames, zeros for those from before an episode's start.

    :param n_stack: how many
    :param axis_of: (key, frames of all environments) -> the axis to stack on, 1 or -1
    """

    def __init__(self, n_stack: int, axis_of: Callable[[str | None, Any], int]) -> None:
        self.n_stack, self.axis_of = n_stack, axis_of
        self._frames: dict[str | None, list[NDArray[Any]]] = {}

    def __call__(self, obs: Any, context: StepContext) -> Any:
        """Add frames to the stack."""
        if isinstance(obs, dict):
            return {key: self._push(key, part, context.starts) for key, part in obs.items()}
        return self._push(None, obs, context.starts)

    def _push(self, key: str | None, part: Any, starts: NDArray[np.bool_]) -> NDArray[Any]:
        # What is kept is either all forgotten now, or of as many environments as there are.
        blank = [np.zeros_like(part)] * self.n_stack
        kept = [frame.copy() for frame in (blank if starts.all() else self._frames[key])[1:]]
        for frame in kept:
            frame[starts] = 0
        self._frames[key] = [*kept, np.array(part)]
        return np.concatenate(self._frames[key], axis=self.axis_of(key, part))


class KnownAxes:
    """Tells on which axis frames are stacked.

    :param axes: by key; None is the key of a plain array
    """

    def __init__(self, axes: Mapping[str | None, int]) -> None:
        self.axes = dict(axes)

    def __call__(self, key: str | None, part: NDArray[Any]) -> int:
        """Return the axis of a key."""
        return self.axes[key]


class SpaceAxes:
    """Tells whether frames are stacked as images with their channels first, or on the last axis.

    :param space: of what is stacked
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space = space

    def __call__(self, key: str | None, part: NDArray[Any]) -> int:
        """Return the axis for frames of all environments."""
        space = self.space[key or ""] if isinstance(self.space, spaces.Dict) else self.space
        return 1 if part.ndim == 4 and part.shape[2:] == (space.shape or ())[1:] else -1


class Transposed:
    """Puts the channels of images first, as SB3's ``VecTransposeImage`` does.

    :param keys: of the images; None for a plain array
    """

    def __init__(self, keys: Sequence[str] | None) -> None:
        self.keys = None if keys is None else list(keys)

    def __call__(self, obs: Any, context: StepContext) -> Any:
        """Transpose images."""
        if self.keys is None:
            return VecTransposeImage.transpose_image(obs)
        return {
            key: VecTransposeImage.transpose_image(part) if key in self.keys else part
            for key, part in obs.items()
        }


def load_normalizer(normalizer: VecNormalize | str | Path, trusted: bool = True) -> VecNormalize:
    """Return a normaliser, from its file where it is none yet.

    .. warning::
        What ``save`` writes is a pickle, which can run any code when it is loaded: load only what
        you trust. What ``save_safe`` writes runs nothing.

    :param normalizer: the normaliser, or its file
    :param trusted: whether to unpickle a file
    :raises ValueError: if the file holds something else, or is a pickle and not trusted
    """
    if isinstance(normalizer, VecNormalize):
        return normalizer
    if not isinstance(normalizer, (str, Path)):
        raise ValueError(_no_normalizer(normalizer, "neither a file nor a normalizer"))
    if Path(normalizer).is_file() and is_safe_file(normalizer):
        return read_any_normalizer(normalizer)
    check_trusted(normalizer, trusted)
    written = Path(normalizer).read_bytes()
    try:
        loaded = pickle.loads(written)
    except Exception as error:  # a pickle can fail in any way
        raise ValueError(_no_normalizer(normalizer, str(error))) from None
    if not isinstance(loaded, VecNormalize):
        raise ValueError(_no_normalizer(normalizer, f"it holds a {type(loaded).__name__}"))
    return loaded


def _no_normalizer(path: Any, reason: str) -> str:
    return (
        "normalizer must be a VecNormalizeVisible or VecNormalize, or a file saved by one, got "
        f"{path}: {reason}"
    )

"""The last few observations at once, through which can be set what can be read."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.vec_env import VecFrameStack

from thrust_pomdp.stateful import Attributes, Changes, Names, attributes_state, prepare_attributes
from thrust_pomdp.states import State
from thrust_pomdp.vec_env.layer import VecLayer


class VecStackedFrames(VecLayer, VecFrameStack):
    """SB3's ``VecFrameStack``, except that settings of what is inside can be set through it.

    SB3's keeps what is assigned: outermost around a normaliser, ``venv.training = False`` would
    freeze nothing and say so to nobody (:class:`~thrust_pomdp.vec_env.layer.VecLayer`).

    >>> import thrust_pomdp
    >>> venv = thrust_pomdp.make_vec_env(
    ...     "FlickeringCartPole-v0", n_envs=2, normalize=True, frame_stack=4
    ... )
    >>> venv.training = False
    >>> venv.venv.training, venv.reset().shape
    (False, (2, 16))
    """

    _no_state: Names = ("stacked_obs",)

    def get_state(self) -> State:
        """Return the frames that are stacked now; see ``Stateful``."""
        return {**super().get_state(), "frames": frames_state(self.stacked_obs)}

    def prepare_state(self, state: Any, where: str) -> Changes:
        """Check what :meth:`get_state` returned, and return what is to be done to take it over."""
        rest = dict(state) if isinstance(state, dict) else {}
        of_frames = prepare_frames(self.stacked_obs, rest.pop("frames", None), where)
        return [*super().prepare_state(rest, where), *of_frames]


_OF_FRAMES = Attributes(
    frozenset({"observation_space", "stacked_observation_space", "sub_stacked_observations"}),
    frozenset({"n_stack", "channels_first", "stack_dimension", "stacked_shape", "repeat_axis"}),
    frozenset({"stacked_obs"}),
)


def frames_state(frames: Any) -> State:
    """Return what SB3's ``StackedObservations`` has stacked, by key if observations are dicts."""
    by_key = getattr(frames, "sub_stacked_observations", {})
    parts = {key: frames_state(part) for key, part in by_key.items()}
    return {"frames": attributes_state(frames, _OF_FRAMES), "by_key": parts}


def prepare_frames(frames: Any, state: Any, where: str) -> Changes:
    """Check what :func:`frames_state` returned, and return what is to be done to set it.

    :param where: whose frames they are, for messages
    :raises ValueError: naming what does not fit
    """
    by_key = getattr(frames, "sub_stacked_observations", {})
    parts = state.get("by_key") if isinstance(state, dict) else None
    if not isinstance(parts, dict) or parts.keys() != by_key.keys():
        raise ValueError(f"state['frames'] of {where} must be of {list(by_key)}, got {state!r}")
    changes = prepare_attributes(frames, state.get("frames"), _OF_FRAMES, f"{where}, frames")
    for key, part in by_key.items():
        changes += prepare_frames(part, parts[key], f"{where}, {key!r}")
    return changes

"""Running statistics of what is visible, for single environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import NormalizeObservation
from gymnasium.wrappers.utils import RunningMeanStd
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_finite_number, check_flag, check_positive
from thrust_pomdp.errors import ArgumentError, warn_user
from thrust_pomdp.wrappers.blank_symbols import observation_space_of
from thrust_pomdp.wrappers.frame_order import refuse_frame_order
from thrust_pomdp.wrappers.layer import Layer
from thrust_pomdp.wrappers.previous import refuse_previous_inside
from thrust_pomdp.wrappers.visible_statistics import (
    LOOKS_BLANKED,
    SAVED_BEFORE,
    KeepsWatches,
    ZeroWatch,
    blank_mask,
    key_flags,
    update_visible,
)


class NormalizeVisibleObservation(KeepsWatches, Layer):
    """Normalise observations by statistics of the visible frames; blanked ones stay exactly zero.

    :class:`gymnasium.wrappers.NormalizeObservation` counts blank frames as data: with values around
    10, half of them blank, it learns a mean of 5 and shows the agent a blank as -1. Here only what
    is declared blank is blank: by ``info["blanked"]`` (a bool, an array of bools for single
    components, a dict of these for Dict observations), or, where that is missing, by
    ``zero_is_blank=True``, which takes exactly all-zero frames for blank. Where nothing is declared
    blank this is Gymnasium's wrapper with statistics in float64 (its own are of the observations'
    precision, and drift).

    Statistics start anew with each wrapper, as Gymnasium's do; ``update_running_mean`` freezes
    them for evaluation.

    .. warning::
        From outside of another wrapper freeze them by Gymnasium's
        ``env.set_wrapper_attr("update_running_mean", False)``: what is assigned to a Gymnasium
        wrapper is that wrapper's own, and freezes nothing inside. SB3's ``DummyVecEnv.set_attr``
        assigns to the outermost wrapper likewise; with
        ``venv.env_method("set_wrapper_attr", "update_running_mean", False)`` it gets there.

    .. warning::
        Put it outside what blanks frames and inside whatever tells the agent something about
        itself, such as its last action: in here that would be erased on exactly the frames where it
        is needed. Stack or delay frames outside of it: ``info["blanked"]`` tells of the frame as it
        was inside. What is seen to be wrong is refused.

    >>> import gymnasium as gym, thrust_pomdp
    >>> env = NormalizeVisibleObservation(gym.make("FlickeringCartPole-v0", flicker_prob=1.0))
    >>> env.reset(seed=0)[0].tolist()
    [0.0, 0.0, 0.0, 0.0]

    :param env: an environment with a Box observation, or a Dict of Boxes
    :param epsilon: added to the variance
    :param zero_is_blank: take exactly all-zero frames (or keys) for blank where no flag is told
    :raises ValueError: for other spaces, if ``epsilon`` is not positive, if the observation holds
        the previous action or reward already, or if flags tell of other frames than are shown
    """

    def __init__(
        self, env: gym.Env[Any, Any], epsilon: float = 1e-8, zero_is_blank: bool = False
    ) -> None:
        #: Whether all-zero frames without a flag are blank.
        self.zero_is_blank = check_flag("zero_is_blank", zero_is_blank)
        epsilon = check_positive("epsilon", check_finite_number("epsilon", epsilon))
        space = observation_space_of(env)
        gym.utils.RecordConstructorArgs.__init__(
            self, epsilon=epsilon, zero_is_blank=self.zero_is_blank
        )
        gym.Wrapper.__init__(self, env)
        _refuse_normalizers_inside(env)
        refuse_previous_inside(env, type(self).__name__)
        self._order = refuse_frame_order(env, type(self).__name__)
        self.epsilon = epsilon
        #: Whether statistics follow what is seen; set it to False to freeze them.
        self.update_running_mean = True
        self.observation_space = _unbounded(space)
        self.obs_rms: RunningMeanStd | dict[str, RunningMeanStd]
        if isinstance(space, spaces.Dict):
            self.obs_rms = {key: _statistics(sub) for key, sub in space.items()}
        else:
            self.obs_rms = _statistics(space)

        self._watches: dict[str | None, ZeroWatch] | None = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what was pickled, by earlier versions too."""
        self.__dict__.update({"zero_is_blank": True, "_watches": None, **state})
        if "_order" not in state:
            self._order = refuse_frame_order(self.env, type(self).__name__)
        if "zero_is_blank" not in state:
            warn_user(SAVED_BEFORE.format(name=type(self).__name__))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and normalise the first frame."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._observation(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and normalise the frame."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._watches is not None and self.update_running_mean:
            self._watch(obs, info)
        return self._observation(obs, info), reward, terminated, truncated, info

    def _watch(self, obs: Any, info: dict[str, Any]) -> None:
        """Warn once of what looks blanked, where nobody tells and nobody has said."""
        if self.zero_is_blank or info.get("blanked") is not None:
            self._watches = None
            return
        assert self._watches is not None
        for key, frame in obs.items() if isinstance(obs, dict) else [(None, obs)]:
            if self._watches.setdefault(key, ZeroWatch()).suspects(np.asarray(frame)[None]):
                self._watches = None
                warn_user(LOOKS_BLANKED.format(name=type(self).__name__))
                return

    def _observation(self, obs: Any, info: dict[str, Any]) -> Any:
        self._order.check_flags([info.get("blanked")], self.zero_is_blank)
        if isinstance(self.obs_rms, dict):
            return {
                key: self._normalize(obs[key], info, statistics, key)
                for key, statistics in self.obs_rms.items()
            }
        return self._normalize(obs, info, self.obs_rms)

    def _normalize(
        self, frame: Any, info: dict[str, Any], statistics: RunningMeanStd, key: str | None = None
    ) -> NDArray[np.float32]:
        frames, flags = np.asarray(frame)[None], [info.get("blanked")]
        of_frame = self._order.carried(flags, frames) if key is None else key_flags(flags, key)
        blanked = blank_mask(frames, of_frame, self.zero_is_blank)
        self._order.check_frames(key, frames, blanked)
        if self.update_running_mean:
            update_visible(statistics, frames, blanked)
        scaled = (frames - statistics.mean) / np.sqrt(statistics.var + self.epsilon)
        scaled[blanked] = 0.0
        return np.asarray(scaled[0], dtype=np.float32)


def _refuse_normalizers_inside(env: gym.Env[Any, Any]) -> None:
    """Refuse to normalise what is normalised already."""
    layer = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, (NormalizeVisibleObservation, NormalizeObservation)):
            raise ArgumentError(
                f"env has a {type(layer).__name__} inside already, so that observations would be "
                "normalised twice: leave one of the two out"
            )
        layer = layer.env


def _statistics(space: spaces.Space[Any]) -> RunningMeanStd:
    return RunningMeanStd(shape=space.shape)  # type: ignore[no-untyped-call]


def _unbounded(space: spaces.Space[Any]) -> spaces.Space[Any]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _unbounded_box(part, space) for key, part in space.items()})
    return _unbounded_box(space, space)


def _unbounded_box(part: spaces.Space[Any], space: spaces.Space[Any]) -> spaces.Space[Any]:
    if not isinstance(part, spaces.Box):
        raise ValueError(
            "env must have a Box observation space, or a Dict of Boxes, to be normalised, "
            f"got {space}"
        )
    return spaces.Box(-np.inf, np.inf, shape=part.shape, dtype=np.float32)

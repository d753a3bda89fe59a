"""Running statistics of what is visible, for single environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd
from numpy.typing import NDArray

from thrust_pomdp.visible import blank_mask, key_flags, update_visible
from thrust_pomdp.wrappers.previous import refuse_previous_inside


class NormalizeVisibleObservation(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Normalise observations by statistics of the visible frames; blanked ones stay exactly zero.

    :class:`gymnasium.wrappers.NormalizeObservation` counts blank frames as data: with values around
    10, half of them blank, it learns a mean of 5 and shows the agent a blank as -1. Here
    ``info["blanked"]`` decides (a bool, an array of bools for single components, a dict of these
    for Dict observations); where it is missing, an exactly all-zero frame counts as blank.

    Statistics start anew with each wrapper, as Gymnasium's do; :attr:`update_running_mean` freezes
    them for evaluation.

    .. warning::
        Put it outside what blanks frames and inside whatever tells the agent something about
        itself, such as its last action: in here that would be erased on exactly the frames where it
        is needed.

    >>> import gymnasium as gym, thrust_pomdp
    >>> env = NormalizeVisibleObservation(gym.make("FlickeringCartPole-v0", flicker_prob=1.0))
    >>> env.reset(seed=0)[0].tolist()
    [0.0, 0.0, 0.0, 0.0]

    :param env: an environment with a Box observation, or a Dict of Boxes
    :param epsilon: added to the variance
    :raises ValueError: for other spaces, if ``epsilon`` is not positive, or if the observation
        holds the previous action or reward already
    """

    def __init__(self, env: gym.Env[Any, Any], epsilon: float = 1e-8) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, epsilon=epsilon)
        gym.Wrapper.__init__(self, env)
        if not epsilon > 0:
            raise ValueError(f"epsilon must be positive, got {epsilon!r}")
        refuse_previous_inside(env, type(self).__name__)
        self.epsilon = epsilon
        #: Whether statistics follow what is seen; set it to False to freeze them.
        self.update_running_mean = True
        space = env.observation_space
        self.observation_space = _unbounded(space)
        self.obs_rms: RunningMeanStd | dict[str, RunningMeanStd]
        if isinstance(space, spaces.Dict):
            self.obs_rms = {key: _statistics(sub) for key, sub in space.items()}
        else:
            self.obs_rms = _statistics(space)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and normalise the first frame."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._observation(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and normalise the frame."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._observation(obs, info), reward, terminated, truncated, info

    def _observation(self, obs: Any, info: dict[str, Any]) -> Any:
        flag = info.get("blanked")
        if isinstance(self.obs_rms, dict):
            return {
                key: self._normalize(obs[key], key_flags([flag], key)[0], statistics)
                for key, statistics in self.obs_rms.items()
            }
        return self._normalize(obs, flag, self.obs_rms)

    def _normalize(self, frame: Any, flag: Any, statistics: RunningMeanStd) -> NDArray[np.float32]:
        frames = np.asarray(frame)[None]
        blanked = blank_mask(frames, [flag])
        if self.update_running_mean:
            update_visible(statistics, frames, blanked)
        scaled = (frames - statistics.mean) / np.sqrt(statistics.var + self.epsilon)
        scaled[blanked] = 0.0
        return np.asarray(scaled[0], dtype=np.float32)


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

"""What the sensors would show, told beside what they do show."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from thrust_pomdp.stateful import Names
from thrust_pomdp.wrappers.blank_symbols import observation_space_of
from thrust_pomdp.wrappers.layer import Layer


class ExposeObservation(Layer):
    """Tell the observation in the infos too, so that it is there when a wrapper outside covers it.

    For a critic that may see the clean frame (:class:`~thrust_pomdp.VecPrivilegedInfo`), for
    controllers that know everything, and for pictures of what an agent missed. The environments of
    this package need no wrapper for it, they have the argument ``expose_state``.

    >>> import gymnasium as gym, thrust_pomdp
    >>> env = ExposeObservation(gym.make("Pendulum-v1"))
    >>> env = thrust_pomdp.FlickerObservation(env, flicker_prob=1.0)
    >>> obs, info = env.reset(seed=0)
    >>> obs.tolist(), [f"{number:.3f}" for number in info["state"]]
    ([0.0, 0.0, 0.0], ['0.652', '0.758', '-0.460'])

    :param env: an environment whose observations are arrays or numbers; Dict observations have keys
        that a critic can be given as they are
    :param key: the entry's name in the infos
    :raises ValueError: for Dict and other composed observations, and for a key that the environment
        tells something else under
    """

    _fixed_state: Names = ("_key",)

    def __init__(self, env: gym.Env[Any, Any], key: str = "state") -> None:
        gym.utils.RecordConstructorArgs.__init__(self, key=key)
        space = observation_space_of(env)
        kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
        if not isinstance(space, kinds):
            raise ValueError(
                f"observation_space must be a Box, Discrete, MultiDiscrete or MultiBinary space to "
                f"be told in the infos, got {space}"
            )
        if not isinstance(key, str) or not key:
            raise ValueError(f"key must be the name of an entry, got {key!r}")
        gym.Wrapper.__init__(self, env)
        self._key = key

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, self._with(info, obs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, self._with(info, obs)

    def _with(self, info: dict[str, Any], obs: Any) -> dict[str, Any]:
        if self._key in info:
            raise ValueError(f"key must not be told by the environment itself, got {self._key!r}")
        # A copy: an environment may fill its array anew, a wrapper cover it in place.
        return {**info, self._key: np.array(obs)}

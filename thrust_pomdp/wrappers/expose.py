"""What the sensors would show, told beside what they do show, or shown in its place."""

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


class StateObservation(Layer):
    """Show what the infos tell of the state, in place of the observation.

    For the agent that has nothing to remember, since it sees everything: what it earns is what
    memory could be worth at most. No frame is blank, so ``info["blanked"]`` is told no more.

    >>> import gymnasium as gym, thrust_pomdp
    >>> env = gym.make("FlickeringCartPole-v0", flicker_prob=0.9, expose_state=True)
    >>> obs, info = StateObservation(env).reset(seed=0)
    >>> obs.shape, obs.tolist() == info["state"].tolist(), "blanked" in info
    ((4,), True, False)

    :param env: an environment that tells the entry at every reset and step
    :param key: the entry's name
    :param space: where it lies; None for the shape of the first one told, for which the environment
        is reset
    :raises ValueError: for an entry that is not told, or is no number and no array of numbers
    """

    _fixed_state: Names = ("_key",)

    def __init__(
        self,
        env: gym.Env[Any, Any],
        key: str = "state",
        space: spaces.Space[Any] | None = None,
    ) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, key=key, space=space)
        gym.Wrapper.__init__(self, env)
        self._key = key
        if space is None:
            space = space_of_entry(key, entry_of(env.reset()[1], key))
        self.observation_space = space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        return self._shown(self.env.reset(seed=seed, options=options)[1])

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""
        _, reward, terminated, truncated, info = self.env.step(action)
        obs, info = self._shown(info)
        return obs, reward, terminated, truncated, info

    def _shown(self, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        space = self.observation_space
        told = np.array(entry_of(info, self._key), dtype=space.dtype)
        rest = {name: value for name, value in info.items() if name != "blanked"}
        return told.reshape(space.shape or ()), rest


def entry_of(info: dict[str, Any], key: str) -> Any:
    """Return an entry of an info.

    :raises ValueError: if it is not told, with what is
    """
    if key not in info:
        told = ", ".join(map(repr, info)) or "nothing"
        raise ValueError(
            f"info[{key!r}] must be told by the environments at every reset and step, there is "
            f"{told}; the environments of thrust_pomdp tell 'state' when they are made with "
            "expose_state=True"
        )
    return info[key]


def space_of_entry(key: str, entry: Any) -> spaces.Box:
    """Return a space without bounds for what is told under a key; single numbers get an axis.

    :raises ValueError: for what is no number and no array of numbers
    """
    told = np.asarray(entry)
    if told.dtype.kind not in "biuf":
        raise ValueError(f"info[{key!r}] must be a number or an array of numbers, got {entry!r}")
    return spaces.Box(-np.inf, np.inf, told.shape or (1,), np.float32)

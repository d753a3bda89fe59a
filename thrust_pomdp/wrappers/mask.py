"""Sensors that are not there: components of a single environment's observation hidden."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from thrust_pomdp.stateful import Names
from thrust_pomdp.wrappers.blank_symbols import observation_space_of
from thrust_pomdp.wrappers.blanking_plan import as_json
from thrust_pomdp.wrappers.layer import Layer
from thrust_pomdp.wrappers.masking import ObservationMask


class MaskObservation(Layer):
    """Hide components of the observation for good, by dropping them or setting them to zero.

    Components are named by their positions: entries of a vector (``Box``, ``MultiDiscrete``,
    ``MultiBinary``), channels of an image, and with ``axis`` its rows or columns. A ``Dict``
    observation loses whole keys (``drop=["camera"]``) or components of some
    (``drop={"state": [1, 3]}``). ``zero`` also takes a bool mask of an array's shape, to cover part
    of an image.

    Dropped components are gone from the space; where they are zeroed it stays as it is.
    ``info["blanked"]`` loses the flags of what is dropped. What is zeroed for good is not flagged:
    it tells nothing about the frame, and normalising leaves a constant 0 at 0.

    >>> import gymnasium as gym
    >>> env = MaskObservation(gym.make("CartPole-v1"), drop=[1, 3])
    >>> env.reset(seed=0)[0].shape
    (2,)

    :param env: the environment
    :param drop: what to drop: positions, keys of a Dict, or a mapping from keys to positions
    :param zero: what to set to zero: the like, or bool masks of the arrays' shapes
    :param axis: the axis that positions count along; the last by default
    :raises ValueError: for components or keys that are not there, named twice, or all of them; for
        spaces without components; for zeros outside of a space
    """

    _no_state: Names = ("_mask",)

    def __init__(
        self, env: gym.Env[Any, Any], drop: Any = None, zero: Any = None, axis: int = -1
    ) -> None:
        self._mask = ObservationMask(observation_space_of(env), drop, zero, axis)
        gym.utils.RecordConstructorArgs.__init__(
            self, drop=as_json(drop), zero=as_json(zero), axis=as_json(axis)
        )
        gym.Wrapper.__init__(self, env)
        self.observation_space = self._mask.space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and hide what is masked."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._mask.show(obs), self._told(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and hide what is masked."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._mask.show(obs), reward, terminated, truncated, self._told(info)

    def _told(self, info: dict[str, Any]) -> dict[str, Any]:
        flags = info.get("blanked")
        if flags is None or isinstance(flags, bool):
            return info
        return {**info, "blanked": self._mask.flags(flags)}

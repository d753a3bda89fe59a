"""What an agent knows of its own last step, as part of the observation of a single environment."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from thrust_pomdp.stateful import Names
from thrust_pomdp.wrappers.appending import Appender, Encoding
from thrust_pomdp.wrappers.blank_symbols import observation_space_of
from thrust_pomdp.wrappers.layer import Layer


class PreviousObservation(Layer):
    """Base of the wrappers that append something about the last step, zeros where there is none.

    A subclass says what it is (:attr:`appends`, :meth:`_encoding_of`, :meth:`_pick`).

    :param env: the environment
    :param key: the key of what is appended in observations that are or become dicts
    :raises ValueError: for what is no environment, or a key that is taken
    """

    _no_state: Names = ("_encoding", "_appender")

    #: What is appended, for messages and the names of attributes: ``"action"`` or ``"reward"``.
    appends: ClassVar[str]

    def __init__(self, env: gym.Env[Any, Any], key: str) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, key=key)
        space = observation_space_of(env)
        gym.Wrapper.__init__(self, env)
        self._encoding = self._encoding_of(env)
        self._appender = Appender(space, self._encoding, key)
        self.observation_space = self._appender.space

    def _encoding_of(self, env: gym.Env[Any, Any]) -> Encoding:
        raise NotImplementedError

    def _pick(self, action: Any, reward: Any) -> Any:
        """Return what of a step is encoded and appended."""
        raise NotImplementedError

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; there is no step yet."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._appender.append(obs, self._encoding.none()), self._told(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and show what belongs to the step that led here."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        shown = self._appender.append(obs, self._encoding(self._pick(action, reward)))
        return shown, reward, terminated, truncated, self._told(info)

    def _told(self, info: dict[str, Any]) -> dict[str, Any]:
        flags = info.get("blanked")
        if not isinstance(flags, np.ndarray) or not self._appender.names_components(flags):
            return info
        return {**info, "blanked": self._appender.extend_flags(flags)}


def refuse_previous_inside(env: gym.Env[Any, Any], name: str) -> None:
    """Refuse to put a normaliser around the previous action or reward.

    :param env: what is to be normalised
    :param name: the normaliser's
    :raises ValueError: naming the right order
    """
    layer = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, PreviousObservation):
            ours = type(layer).__name__
            raise ValueError(wrong_order(name, ours, layer.appends, ours))
        layer = layer.env


def wrong_order(normalizer: str, inside: str, appends: str, remedy: str) -> str:
    """Say what is wrong with a normaliser around what is appended, and the remedy."""
    return (
        f"{normalizer} must not be put around {inside}: on blank frames it would erase the "
        f"{appends}, which is then all that the agent knows. Put {remedy} around {normalizer} "
        "instead"
    )

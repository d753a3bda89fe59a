"""The last action as part of the observation of a single environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from thrust_pomdp.wrappers.actions import PREVIOUS_ACTION, ActionAppender, ActionEncoding
from thrust_pomdp.wrappers.blanks import observation_space_of


class PreviousActionObservation(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Show the agent what it did last: one-hot or scaled to [-1, 1], zeros at an episode's start.

    A ``Box`` vector gets longer by it and a ``Dict`` observation gets a key more. Any other
    observation (an image, a number) becomes a ``Dict`` with the keys ``"observation"`` and
    ``key``. How actions are encoded is told at
    :class:`~thrust_pomdp.wrappers.actions.ActionEncoding`.

    ``info["blanked"]`` goes on telling of the sensors. Where it names single components it gets an
    entry of False for each number appended.

    .. warning::
        The previous action is one bit of memory or more, so an agent that sees it is not
        memoryless. Put the wrapper outside what blanks and outside the normaliser: inside, the
        action would be erased on exactly the frames where it is needed.
        ``NormalizeVisibleObservation`` and ``VecNormalizeVisible`` refuse to be put around it.

    >>> import gymnasium as gym
    >>> env = PreviousActionObservation(gym.make("MountainCar-v0"))
    >>> env.reset(seed=0)[0][2:].tolist(), env.step(2)[0][2:].tolist()
    ([0.0, 0.0, 0.0], [0.0, 0.0, 1.0])

    :param env: an environment with Discrete, MultiDiscrete, MultiBinary or Box actions
    :param key: the action's key in observations that are or become dicts
    :raises ValueError: for other action spaces, or a key that is taken
    """

    def __init__(self, env: gym.Env[Any, Any], key: str = PREVIOUS_ACTION) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, key=key)
        space = observation_space_of(env)
        gym.Wrapper.__init__(self, env)
        self._encoding = ActionEncoding(env.action_space)
        self._appender = ActionAppender(space, self._encoding, key)
        self.observation_space = self._appender.space
        #: The action's key in Dict observations, for what is put around this wrapper.
        self.previous_action_key = key

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; there is no action yet."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._appender.append(obs, self._encoding.none()), self._told(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and show the action that led here."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        shown = self._appender.append(obs, self._encoding(action))
        return shown, reward, terminated, truncated, self._told(info)

    def _told(self, info: dict[str, Any]) -> dict[str, Any]:
        flags = info.get("blanked")
        if not isinstance(flags, np.ndarray) or not self._appender.names_components(flags):
            return info
        return {**info, "blanked": self._appender.extend_flags(flags)}


def refuse_previous_action_inside(env: gym.Env[Any, Any], name: str) -> None:
    """Refuse to put a normaliser around the previous action.

    :param env: what is to be normalised
    :param name: the normaliser's
    :raises ValueError: naming the right order
    """
    layer = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, PreviousActionObservation):
            ours = PreviousActionObservation.__name__
            raise ValueError(wrong_order(name, ours, ours))
        layer = layer.env


def wrong_order(normalizer: str, inside: str, remedy: str) -> str:
    """Say what is wrong with a normaliser around the previous action, and the remedy."""
    return (
        f"{normalizer} must not be put around {inside}: on blank frames it would erase the action, "
        f"which is then all that the agent knows. Put {remedy} around {normalizer} instead"
    )

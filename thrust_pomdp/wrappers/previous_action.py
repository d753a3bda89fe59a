"""The last action as part of the observation of a single environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from thrust_pomdp.wrappers.actions import PREVIOUS_ACTION, ActionEncoding
from thrust_pomdp.wrappers.previous import PreviousObservation


class PreviousActionObservation(PreviousObservation):
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

    appends = "action"

    def __init__(self, env: gym.Env[Any, Any], key: str = PREVIOUS_ACTION) -> None:
        super().__init__(env, key)
        #: The action's key in Dict observations, for what is put around this wrapper.
        self.previous_action_key = key

    def _encoding_of(self, env: gym.Env[Any, Any]) -> ActionEncoding:
        return ActionEncoding(env.action_space)

    def _pick(self, action: Any, reward: Any) -> Any:
        return action

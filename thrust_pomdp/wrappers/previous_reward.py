"""The last reward as part of the observation of a single environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from thrust_pomdp.wrappers.previous import PreviousObservation
from thrust_pomdp.wrappers.rewards import PREVIOUS_REWARD, RewardEncoding


class PreviousRewardObservation(PreviousObservation):
    """Show the agent its last reward, as the environment gave it; zero at an episode's start.

    A ``Box`` vector gets longer by it and a ``Dict`` observation gets a key more. Any other
    observation (an image, a number) becomes a ``Dict`` with the keys ``"observation"`` and
    ``key``. ``info["blanked"]`` is treated as by
    :class:`~thrust_pomdp.wrappers.PreviousActionObservation`, and the two can be stacked.

    .. warning::
        Shown is what the environment inside returned. Put the wrapper inside of what rescales
        rewards by running statistics, or the agent sees other numbers when it is evaluated without
        them; and outside the normaliser of observations, which would erase it on blank frames and
        refuses to be put around it.

    >>> import gymnasium as gym
    >>> env = PreviousRewardObservation(gym.make("MountainCar-v0"))
    >>> env.reset(seed=0)[0][2:].tolist(), env.step(2)[0][2:].tolist()
    ([0.0], [-1.0])

    :param env: the environment
    :param key: the reward's key in observations that are or become dicts
    :raises ValueError: for what is no environment, or a key that is taken
    """

    appends = "reward"

    def __init__(self, env: gym.Env[Any, Any], key: str = PREVIOUS_REWARD) -> None:
        super().__init__(env, key)
        #: The reward's key in Dict observations, for what is put around this wrapper.
        self.previous_reward_key = key

    def _encoding_of(self, env: gym.Env[Any, Any]) -> RewardEncoding:
        return RewardEncoding()

    def _pick(self, action: Any, reward: Any) -> Any:
        return reward

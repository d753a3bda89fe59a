"""The last reward as part of the observation, for vector environments."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from thrust_pomdp.wrappers.rewards import PREVIOUS_REWARD, RewardEncoding
from thrust_pomdp.wrappers.vector.previous import PreviousObservation


class PreviousRewardObservation(PreviousObservation):
    """Show the last reward; see :class:`thrust_pomdp.wrappers.PreviousRewardObservation`.

    >>> import gymnasium as gym
    >>> import numpy as np
    >>> envs = gym.make_vec("MountainCar-v0", 2, vectorization_mode="sync")
    >>> envs = PreviousRewardObservation(envs)
    >>> _ = envs.reset(seed=0)
    >>> envs.step(np.array([0, 2]))[0][:, 2:].tolist()
    [[-1.0], [-1.0]]

    :param env: the vector environment
    :param key: the reward's key in observations that are or become dicts
    :raises ValueError: as by the single wrapper
    """

    appends = "reward"

    def __init__(self, env: VectorEnv[Any, Any, Any], key: str = PREVIOUS_REWARD) -> None:
        super().__init__(env, key)
        #: The reward's key in Dict observations, for what is put around this wrapper.
        self.previous_reward_key = key

    def _encoding_of(self, env: VectorEnv[Any, Any, Any]) -> RewardEncoding:
        return RewardEncoding()

    def _pick(self, actions: Any, rewards: Any) -> Any:
        return rewards

"""The last action as part of the observation, for vector environments."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from thrust_pomdp.wrappers.actions import PREVIOUS_ACTION, ActionEncoding
from thrust_pomdp.wrappers.vector.previous import PreviousObservation


class PreviousActionObservation(PreviousObservation):
    """Show what was done last; see :class:`thrust_pomdp.wrappers.PreviousActionObservation`.

    >>> import gymnasium as gym
    >>> import numpy as np
    >>> envs = gym.make_vec("MountainCar-v0", 2, vectorization_mode="sync")
    >>> envs = PreviousActionObservation(envs)
    >>> _ = envs.reset(seed=0)
    >>> envs.step(np.array([0, 2]))[0][:, 2:].tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]

    :param env: the vector environment
    :param key: the action's key in observations that are or become dicts
    :raises ValueError: as by the single wrapper
    """

    appends = "action"

    def __init__(self, env: VectorEnv[Any, Any, Any], key: str = PREVIOUS_ACTION) -> None:
        super().__init__(env, key)
        #: The action's key in Dict observations, for what is put around this wrapper.
        self.previous_action_key = key

    def _encoding_of(self, env: VectorEnv[Any, Any, Any]) -> ActionEncoding:
        return ActionEncoding(env.single_action_space)

    def _pick(self, actions: Any, rewards: Any) -> Any:
        return actions

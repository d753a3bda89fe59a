"""The last action as part of the observation, for vector environments."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from thrust_pomdp.visible import Mask
from thrust_pomdp.wrappers.actions import PREVIOUS_ACTION, ActionAppender, ActionEncoding
from thrust_pomdp.wrappers.flags import change_flags
from thrust_pomdp.wrappers.vector.base import Infos, SensorVectorWrapper, single_space_of


class PreviousActionObservation(SensorVectorWrapper):
    """Show what was done last; see :class:`thrust_pomdp.wrappers.PreviousActionObservation`.

    >>> import gymnasium as gym
    >>> envs = gym.make_vec("MountainCar-v0", 2, vectorization_mode="sync")
    >>> envs = PreviousActionObservation(envs)
    >>> _ = envs.reset(seed=0)
    >>> envs.step(np.array([0, 2]))[0][:, 2:].tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]

    :param env: the vector environment
    :param key: the action's key in observations that are or become dicts
    :raises ValueError: as by the single wrapper
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], key: str = PREVIOUS_ACTION) -> None:
        space = single_space_of(env)
        self._encoding = ActionEncoding(env.single_action_space)
        self._appender = ActionAppender(space, self._encoding, key)
        super().__init__(env, self._appender.space)
        self._last = self._encoding.none(self.num_envs)
        #: The action's key in Dict observations, for what is put around this wrapper.
        self.previous_action_key = key

    def _advance(self, actions: Any, restarted: Mask | None) -> None:
        self._last = self._encoding(actions)
        if restarted is not None:
            self._last[restarted] = 0.0

    def _restart(self, indices: NDArray[np.intp]) -> None:
        self._last[indices] = 0.0

    def _show(self, obs: Any) -> Any:
        return self._appender.append(obs, self._last.copy())

    def _show_one(self, obs: Any, idx: int) -> Any:
        return self._appender.append(obs, self._last[idx].copy())

    def _tell(self, infos: Infos, mask: Mask | None) -> Infos:
        return change_flags(infos, lambda flags: self._appender.extend_flags(flags, batch_ndim=1))

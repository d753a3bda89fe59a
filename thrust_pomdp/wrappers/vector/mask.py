"""Components of the observation dropped or zeroed, for vector environments."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorEnv

from thrust_pomdp.stateful import Names
from thrust_pomdp.wrappers.blank_flags import change_flags
from thrust_pomdp.wrappers.masking import ObservationMask
from thrust_pomdp.wrappers.vector.base import Infos, SensorVectorWrapper, single_space_of
from thrust_pomdp.wrappers.visible_statistics import Mask


class MaskObservation(SensorVectorWrapper):
    """Hide components for good; see :class:`thrust_pomdp.wrappers.MaskObservation`.

    >>> import gymnasium as gym
    >>> envs = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    >>> MaskObservation(envs, drop=[1, 3]).reset(seed=0)[0].shape
    (3, 2)

    :param env: the vector environment
    :param drop: what to drop of a single environment's observation: positions, keys of a Dict, or a
        mapping from keys to positions
    :param zero: what to set to zero: the like, or bool masks of the arrays' shapes
    :param axis: the axis that positions count along, as in a single environment's observation
    :raises ValueError: as by the single wrapper
    """

    _no_state: Names = ("_mask",)

    def __init__(
        self, env: VectorEnv[Any, Any, Any], drop: Any = None, zero: Any = None, axis: int = -1
    ) -> None:
        self._mask = ObservationMask(single_space_of(env), drop, zero, axis)
        super().__init__(env, self._mask.space)

    def _show(self, obs: Any) -> Any:
        return self._mask.show(obs)

    def _show_one(self, obs: Any, idx: int) -> Any:
        return self._mask.show(obs)

    def _tell(self, infos: Infos, mask: Mask | None) -> Infos:
        return change_flags(infos, lambda flags: self._mask.flags(flags, batch_ndim=1))

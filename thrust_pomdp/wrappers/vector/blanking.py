"""Sensors that drop frames, keys or single components, for vector environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from thrust_pomdp.stateful import Names
from thrust_pomdp.wrappers.blank_flags import heard_flags, tell_flags, union_flags
from thrust_pomdp.wrappers.blanking_plan import BlankingPlan, dropout_plan, flicker_plan
from thrust_pomdp.wrappers.vector.base import Infos, SensorVectorWrapper, seeds_of, single_space_of
from thrust_pomdp.wrappers.visible_statistics import Mask


class BlankingVectorWrapper(SensorVectorWrapper):
    """Blanks a vector's observations by a plan; base of the two wrappers below.

    :param env: the vector environment
    :param plan: what is blanked, how often and by which draws
    """

    _no_state: Names = ("_plan",)
    _fixed_state: Names = ("n_blanking_layers",)

    def __init__(self, env: VectorEnv[Any, Any, Any], plan: BlankingPlan) -> None:
        super().__init__(env, plan.blanks.space)
        depth = blanking_layers_of_vector(env)
        #: How many layers blank, from here inwards; each draws from streams of its own.
        self.n_blanking_layers = depth + 1
        self._plan, self._processes = plan, plan.processes(self.num_envs, depth)

    def _seed(self, seed: int | Sequence[int | None] | None, indices: NDArray[np.intp]) -> None:
        seeds = seeds_of(seed, self.num_envs)
        for idx in indices.tolist():
            of_env = seeds[idx]
            if of_env is not None:
                self._processes.seed(idx, of_env)

    def _advance(self, actions: Any, rewards: Any, restarted: Mask | None) -> None:
        self._processes.next_frames(restarted)

    def _restart(self, indices: NDArray[np.intp]) -> None:
        self._processes.first_frames(indices)

    def _flags(self) -> Any:
        return self._plan.layout.flags(self._processes.blanked)

    def _show(self, obs: Any) -> Any:
        return self._plan.blanks.show_batch(obs, self._flags())

    def _show_one(self, obs: Any, idx: int) -> Any:
        flags = self._plan.layout.flags(self._processes.blanked[idx])
        return self._plan.blanks.show(obs, flags)

    def _tell(self, infos: Infos, mask: Mask | None) -> Infos:
        mask = self._everyone if mask is None else mask
        space, batch = self.env.single_observation_space, (self.num_envs,)
        told = {**infos}
        tell_flags(told, union_flags(heard_flags(infos), self._flags(), space, batch), mask)
        return told


class FlickerObservation(BlankingVectorWrapper):
    """Sensors that drop whole frames; see :class:`thrust_pomdp.wrappers.FlickerObservation`.

    Every environment has its own stream, that of a single environment with its seed.

    >>> import gymnasium as gym
    >>> envs = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    >>> envs = FlickerObservation(envs, flicker_prob=1.0)
    >>> envs.reset(seed=0)[1]["blanked"].tolist()
    [True, True]

    :param env: the vector environment
    :param flicker_prob: stationary share of blank frames, in [0, 1]
    :param burst_len: mean length of a run of blank frames, >= 1; None blanks each frame
        independently of the others
    :param keys: keys of a Dict observation to blank; all by default
    :param separately: blank each key of a Dict observation by its own draw, not all together
    :param blank_value: what a blank Box shows instead of zeros
    :raises ValueError: as by the single wrapper
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        flicker_prob: float = 0.5,
        burst_len: float | None = None,
        keys: Sequence[str] | None = None,
        separately: bool = False,
        blank_value: Any = None,
    ) -> None:
        space = single_space_of(env)
        plan = flicker_plan(space, flicker_prob, burst_len, keys, separately, blank_value)
        super().__init__(env, plan)


class ElementDropoutObservation(BlankingVectorWrapper):
    """Sensors that fail one by one; see :class:`thrust_pomdp.wrappers.ElementDropoutObservation`.

    >>> import gymnasium as gym
    >>> envs = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    >>> ElementDropoutObservation(envs, 0.5).reset(seed=0)[1]["blanked"].shape
    (2, 4)

    :param env: the vector environment
    :param dropout_prob: share of blank components, in [0, 1]
    :param keys: keys of a Dict observation whose components are blanked; all by default
    :param blank_value: what a blank component of a Box shows instead of 0
    :raises ValueError: as by the single wrapper
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        dropout_prob: float = 0.5,
        keys: Sequence[str] | None = None,
        blank_value: Any = None,
    ) -> None:
        plan = dropout_plan(single_space_of(env), dropout_prob, keys, blank_value)
        super().__init__(env, plan)


def blanking_layers_of_vector(env: VectorEnv[Any, Any, Any]) -> int:
    """Count the layers that blank, those around and those inside of the single environments.

    :raises ValueError: if the single environments do not all have the same number
    """
    layer: Any = env
    while True:
        if "n_blanking_layers" in vars(layer):
            return int(layer.n_blanking_layers)
        if not isinstance(layer, VectorWrapper):
            break
        layer = layer.env
    try:
        told = layer.call("has_wrapper_attr", "n_blanking_layers")
        layers = set(layer.call("get_wrapper_attr", "n_blanking_layers")) if all(told) else {0}
    except AttributeError:
        return 0  # a native vector environment without single ones, and none of ours
    if len(layers) > 1 or any(told) != all(told):
        raise ValueError(
            f"env must have as many blanking layers in each environment, got {told}, {layers}"
        )
    return int(layers.pop())

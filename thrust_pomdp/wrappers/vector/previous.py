"""What agents know of their last step, as part of the observations of vector environments."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from thrust_pomdp.stateful import Names
from thrust_pomdp.wrappers.appending import Appender, Encoding
from thrust_pomdp.wrappers.blank_flags import change_flags
from thrust_pomdp.wrappers.vector.base import Infos, SensorVectorWrapper, single_space_of
from thrust_pomdp.wrappers.visible_statistics import Mask


class PreviousObservation(SensorVectorWrapper):
    """Base of the wrappers that append something about the last step, zeros where there is none.

    :param env: the vector environment
    :param key: the key of what is appended in observations that are or become dicts
    :raises ValueError: as by the single wrapper
    """

    _no_state: Names = ("_encoding", "_appender")
    _shaped_state: Names = ("_last",)

    #: What is appended, for messages: ``"action"`` or ``"reward"``.
    appends: ClassVar[str]

    def __init__(self, env: VectorEnv[Any, Any, Any], key: str) -> None:
        space = single_space_of(env)
        self._encoding = self._encoding_of(env)
        self._appender = Appender(space, self._encoding, key)
        super().__init__(env, self._appender.space)
        self._last = self._encoding.none(self.num_envs)

    def _encoding_of(self, env: VectorEnv[Any, Any, Any]) -> Encoding:
        raise NotImplementedError

    def _pick(self, actions: Any, rewards: Any) -> Any:
        """Return what of a step is encoded and appended."""
        raise NotImplementedError

    def _advance(self, actions: Any, rewards: Any, restarted: Mask | None) -> None:
        self._last = self._encoding(self._pick(actions, rewards))
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

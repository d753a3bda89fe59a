"""T-mazes for many environments at once, equal to the single ones."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_no_options
from thrust_pomdp.envs.env_of_vector import EnvOfVector
from thrust_pomdp.envs.native_vector import (
    Actions,
    Flags,
    Indices,
    Infos,
    NativeVectorEnv,
    Observations,
)
from thrust_pomdp.envs.tmaze import (
    ActiveTMazeEnv,
    TMazeEnv,
    cue_of,
    observe,
    state_of,
    stride,
)
from thrust_pomdp.stateful import Names
from thrust_pomdp.unmodified_classes import remember


class TMazeOfVector(EnvOfVector):
    """One maze of a vector."""

    _vector_env: TMazeVectorEnv
    _idx: int

    def render(self) -> Any:
        """Draw the maze as the single environment does."""
        vector_env, idx = self._vector_env, self._idx
        single = vector_env.single
        single._cue, single._cell = int(vector_env.cues[idx]), int(vector_env.cells[idx])
        over = single._cell > single.corridor_length
        single._turn = int(vector_env.actions[idx]) if over else None
        return single.render()


@remember
class TMazeVectorEnv(NativeVectorEnv):
    """Many T-mazes; see :class:`TMazeEnv` for the task.

    For the same seed or list of seeds it gives, bit for bit, what Gymnasium's ``SyncVectorEnv`` of
    single environments gives: observations, rewards (float64), flags and infos.

    >>> import gymnasium as gym, thrust_pomdp
    >>> envs = gym.make_vec("TMaze-v0", 3, corridor_length=5)
    >>> envs.reset(seed=0)[0][:, 0].tolist()
    [1.0, 1.0, -1.0]

    :param num_envs: the number of environments, >= 1
    :param corridor_length: steps from the cue to the junction, >= 1
    :param render_mode: None, ``"ansi"`` or ``"rgb_array"``
    :param autoreset_mode: ``"NextStep"`` or ``"SameStep"``, a string
    :param max_episode_steps: a time limit; None or -1 sets none
    :param expose_state: add the true states as ``infos["state"]``, ``[num_envs, 3]`` float32
    :raises ValueError: for a bad argument
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's declaration)
        **TMazeEnv.metadata,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }
    env_class = TMazeOfVector
    single_class: ClassVar[type[TMazeEnv]] = TMazeEnv
    _fixed_state: Names = ("_corridor_length", "_first_cell")
    _shaped_state: Names = ("cells", "cues")

    def __init__(
        self,
        num_envs: int = 1,
        corridor_length: int = 10,
        render_mode: str | None = None,
        autoreset_mode: str = "NextStep",
        max_episode_steps: int | None = None,
        expose_state: bool = False,
    ) -> None:
        single = self.single_class(corridor_length, render_mode, expose_state)
        super().__init__(
            single, num_envs, autoreset_mode, max_episode_steps, (), np.random.Generator.random
        )
        self._corridor_length, self._first_cell = single.corridor_length, single.first_cell
        #: Cells, cues and the latest actions, ``[num_envs]``; cues are 0 before the first reset.
        self.cells = np.full(self.num_envs, self._corridor_length + 1)
        self.cues = np.zeros(self.num_envs, dtype=np.int64)
        self.actions: Actions = np.zeros(self.num_envs, dtype=np.int64)

    def _start_options(self, options: dict[str, Any]) -> None:
        check_no_options(options, "a T-maze")

    def _start(self, indices: Indices, options: None) -> NDArray[np.int64]:
        cues: NDArray[np.int64] = cue_of(self.starts.next_of(indices))
        self.cues[indices], self.cells[indices] = cues, self._first_cell
        return cues

    def _sense_starts(self, indices: Indices, starts: NDArray[np.int64]) -> Observations:
        return observe(self.cells[indices], starts, self._corridor_length)

    def _advance(self, actions: Actions) -> tuple[NDArray[np.float64], Flags]:
        turning = self.cells == self._corridor_length
        good = (actions == 1) == (self.cues == 1)
        rewards = np.where(turning, np.where(good, 1.0, -1.0), 0.0)
        self.cells += stride(self.cells, actions)
        self.actions = actions.copy()
        return rewards, turning

    def _observe(self) -> Observations:
        return observe(self.cells, self.cues, self._corridor_length)

    def _infos(self, mask: Flags) -> Infos:
        if not self.single.expose_state:
            return {}
        states = state_of(self.cells, self.cues, self._corridor_length)
        return {"state": np.where(mask[:, None], states, np.float32(0)), "_state": mask.copy()}


@remember
class ActiveTMazeVectorEnv(TMazeVectorEnv):
    """Many T-mazes in which the agent must step aside to see the cue; see :class:`ActiveTMazeEnv`.

    >>> import gymnasium as gym, thrust_pomdp
    >>> envs = gym.make_vec("ActiveTMaze-v0", 2)
    >>> envs.reset(seed=0)[0].tolist()
    [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    >>> envs.step(np.array([1, 0]))[0].tolist()
    [[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]

    :param num_envs: the number of environments, >= 1
    :param corridor_length: steps from the cue, or from the crossroads, to the junction, >= 1
    :param render_mode: None, ``"ansi"`` or ``"rgb_array"``
    :param autoreset_mode: ``"NextStep"`` or ``"SameStep"``, a string
    :param max_episode_steps: a time limit; None or -1 sets none
    :param expose_state: add the true states as ``infos["state"]``, ``[num_envs, 3]`` float32
    :raises ValueError: for a bad argument
    """

    single_class = ActiveTMazeEnv

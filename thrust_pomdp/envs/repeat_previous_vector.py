"""Cards dealt one by one in many environments at once, equal to the single ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_no_options
from thrust_pomdp.envs.env_of_vector import EnvOfVector
from thrust_pomdp.envs.flicker import BlockStreams
from thrust_pomdp.envs.native_vector import (
    Actions,
    Flags,
    Indices,
    Infos,
    NativeVectorEnv,
    Observations,
)
from thrust_pomdp.envs.repeat_previous import (
    RepeatPreviousEnv,
    frames_of,
    shuffled,
    states_of,
)
from thrust_pomdp.stateful import Names
from thrust_pomdp.unmodified_classes import remember


class NothingAhead(BlockStreams):
    """Generators of which nothing is drawn ahead.

    How many draws a shuffle takes is up to the draws, and it may keep half of one: what was drawn
    ahead could not be taken back.
    """

    def prepare(self, n_calls: int) -> None:
        """Leave the generators as they are."""


class RepeatPreviousOfVector(EnvOfVector):
    """One game of a vector."""

    _vector_env: RepeatPreviousVectorEnv
    _idx: int

    def render(self) -> Any:
        """Draw the cards as the single environment does."""
        vector_env, idx = self._vector_env, self._idx
        single, n_dealt = vector_env.single, int(vector_env.n_dealt[idx])
        single._suits, single._n_dealt = vector_env.suits[idx], n_dealt
        asked = n_dealt > single.k
        single._answer = int(vector_env.actions[idx]) if asked else None
        return single.render()


@remember
class RepeatPreviousVectorEnv(NativeVectorEnv):
    """Many games of cards; see :class:`RepeatPreviousEnv` for the task.

    For the same seed or list of seeds it gives, bit for bit, what Gymnasium's ``SyncVectorEnv`` of
    single environments gives: observations, rewards (float64), flags and infos.

    >>> import gymnasium as gym, thrust_pomdp
    >>> envs = gym.make_vec("POPGymRepeatPreviousHard-v0", 3)
    >>> envs.reset(seed=0)[0].argmax(axis=1).tolist()
    [3, 2, 0]
    >>> envs.step(np.array([0, 1, 2]))[1].tolist()  # 64 cards must be dealt before one is asked for
    [0.0, 0.0, 0.0]

    :param num_envs: the number of environments, >= 1
    :param num_decks: decks of 52 cards that are shuffled together, >= 1
    :param k: which of the latest cards to name; 1 is the one on show
    :param render_mode: None, ``"ansi"`` or ``"rgb_array"``
    :param autoreset_mode: ``"NextStep"`` or ``"SameStep"``, a string
    :param max_episode_steps: a time limit; None or -1 sets none
    :param expose_state: add the true states as ``infos["state"]``, ``[num_envs, 8]`` float32
    :raises ValueError: for a bad argument
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's declaration)
        **RepeatPreviousEnv.metadata,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }
    env_class = RepeatPreviousOfVector
    _fixed_state: Names = ("_k", "_reward_scale", "_n_cards")
    _shaped_state: Names = ("suits", "n_dealt")
    _no_state: Names = ("_envs_in_order",)

    def __init__(
        self,
        num_envs: int = 1,
        num_decks: int = 1,
        k: int = 4,
        render_mode: str | None = None,
        autoreset_mode: str = "NextStep",
        max_episode_steps: int | None = None,
        expose_state: bool = False,
    ) -> None:
        single = RepeatPreviousEnv(num_decks, k, render_mode, expose_state)
        draw = np.random.Generator.random
        super().__init__(single, num_envs, autoreset_mode, max_episode_steps, (), draw)
        self.starts = NothingAhead(list(self.np_random), 0, (), draw)
        self._k, self._reward_scale = single.k, single.reward_scale
        self._n_cards = len(single._suits)
        self._envs_in_order = np.arange(self.num_envs)
        #: Suits in the order of dealing, ``[num_envs, n_cards]``, the number of cards dealt, which
        #: is 0 before the first reset, and the latest actions, ``[num_envs]``.
        self.suits = np.zeros((self.num_envs, self._n_cards), dtype=np.int64)
        self.n_dealt = np.zeros(self.num_envs, dtype=np.int64)
        self.actions: Actions = np.zeros(self.num_envs, dtype=np.int64)

    def _start_options(self, options: dict[str, Any]) -> None:
        check_no_options(options, "a game of cards")

    def _start(self, indices: Indices, options: None) -> NDArray[np.int64]:
        for idx in indices.tolist():
            self.suits[idx] = shuffled(self.starts.generator(idx), self._n_cards)
        self.n_dealt[indices] = 1
        starts: NDArray[np.int64] = self.suits[indices, 0]
        return starts

    def _sense_starts(self, indices: Indices, starts: NDArray[np.int64]) -> Observations:
        return frames_of(starts)

    def _advance(self, actions: Actions) -> tuple[NDArray[np.float64], Flags]:
        asked = self.n_dealt >= self._k
        # Where nothing is asked, or the game is over, what is looked up is not used.
        right = actions == self.suits[self._envs_in_order, self.n_dealt - self._k]
        scale = self._reward_scale
        rewards = np.where(asked, np.where(right, scale, -scale), 0.0)
        self.n_dealt += 1
        self.actions = actions.copy()
        return rewards, self.n_dealt >= self._n_cards

    def _observe(self) -> Observations:
        newest = np.minimum(self.n_dealt, self._n_cards) - 1
        return frames_of(self.suits[self._envs_in_order, newest])

    def _infos(self, mask: Flags) -> Infos:
        if not self.single.expose_state:
            return {}
        dealt = np.minimum(self.n_dealt, self._n_cards)
        states = states_of(self.suits, dealt, self._k)
        return {"state": np.where(mask[:, None], states, np.float32(0)), "_state": mask.copy()}

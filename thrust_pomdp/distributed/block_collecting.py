"""Collecting windows block by block, so that no number depends on which process has a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.distributed.blocks import Blocks, joined_states, rows_of_obs, rows_of_states
from thrust_pomdp.distributed.ranks import Ranks
from thrust_pomdp.ppo.action_noise import COLLECTING, ActionNoise, drawing_from, seed_sequence
from thrust_pomdp.ppo.code_between_steps import against_callback
from thrust_pomdp.ppo.collecting import CollectsWindows
from thrust_pomdp.ppo.prepared_step import Step
from thrust_pomdp.recurrent.sequences import RNNStates
from thrust_pomdp.vec_env.step_infos import StepInfos
from thrust_pomdp.vec_env.window_statistics import Array, end_windows

#: An episode that ended: step, number of the environment among all, statistics, success.
Episode = tuple[int, int, Any, Any]


class CollectsInBlocks(CollectsWindows):
    """How :class:`~thrust_pomdp.distributed.DataParallelRecurrentPPO` fills its buffer."""

    _blocks: Blocks
    _ranks: Ranks
    #: Block whose step is being made, among those of this process.
    _present_block = 0

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
    ) -> bool:
        """Fill the buffer with one window of every environment of this process.

        A callback that stops the training stops it at the window's end, for all processes.
        """
        if self._blocks.is_one:
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        self._episodes: list[Episode] = []
        self._late_stop = LateStop(callback)
        told: Any = callback if against_callback(callback) is None else self._late_stop
        super().collect_rollouts(env, told, rollout_buffer, n_rollout_steps)
        return not self._is_stopped

    def _end_window(self, env: VecEnv) -> None:
        """Exchange what the window was for all: statistics, episodes, whether to go on."""
        if self._blocks.is_one:
            super()._end_window(env)
            return
        told = self._ranks.gather_objects((self._late_stop.is_asked, self._episodes))
        self._is_stopped = any(is_asked for is_asked, _ in told)
        episodes = [episode for _, of_rank in told for episode in of_rank]
        assert self.ep_info_buffer is not None
        assert self.ep_success_buffer is not None
        for _, _, statistics, success in sorted(episodes, key=lambda one: one[:2]):
            if statistics is not None:
                self.ep_info_buffer.append(statistics)
            if success is not None:
                self.ep_success_buffer.append(success)
        end_windows(env, self._gather_arrays)

    def _gather_arrays(self, arrays: list[Array]) -> list[Array]:
        """Return arrays ``[n_envs, ...]`` of all environments, in their order."""
        if self._ranks.size == 1:
            return arrays
        shapes = [array.shape[1:] for array in arrays]
        flat = [array.reshape(len(array), -1).astype(np.float64) for array in arrays]
        widths = np.cumsum([part.shape[1] for part in flat])[:-1]
        sent = th.from_numpy(np.concatenate(flat, axis=1))
        whole = np.concatenate([part.numpy() for part in self._ranks.gather(sent)])
        parts = np.split(whole, widths, axis=1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]

    def _update_info_buffer(
        self, infos: list[dict[str, Any]], dones: NDArray[np.bool_] | None = None
    ) -> None:
        """Keep what ended until the window's end, when all processes tell theirs."""
        if self._blocks.is_one:
            super()._update_info_buffer(infos, dones)
            return
        ended = np.zeros(len(infos), dtype=bool) if dones is None else dones
        # Only ended episodes have statistics there, and looking at the other infos builds them.
        looked_at = ended.nonzero()[0] if isinstance(infos, StepInfos) else range(len(infos))
        for idx in map(int, looked_at):
            statistics = infos[idx].get("episode")
            success = infos[idx].get("is_success") if ended[idx] else None
            if statistics is not None or success is not None:
                number = self._blocks.first_env + idx
                self._episodes.append((self._action_noise.step, number, statistics, success))

    def _make_step(self, env: VecEnv, rollout_buffer: Any) -> Step:
        step = super()._make_step(env, rollout_buffer)
        if self._blocks.is_one:
            return step
        return BlockStep(self, step)

    def _final_values(self, obs: Any, states: RNNStates, dones: NDArray[Any]) -> th.Tensor:
        if self._blocks.is_one:
            return super()._final_values(obs, states, dones)
        values = []
        for number, rows in enumerate(self._blocks.rows):
            with self._drawing_for(number, self.policy, 1):
                own = rows_of_states(states, rows)
                values.append(super()._final_values(rows_of_obs(obs, rows), own, dones[rows]))
        return th.cat(values)

    def _bootstrap_truncated(
        self, rewards: NDArray[Any], dones: NDArray[Any], *args: Any
    ) -> NDArray[Any]:
        if self._blocks.is_one or not dones.any():
            return super()._bootstrap_truncated(rewards, dones, *args)
        for number, rows in enumerate(self._blocks.rows):
            ended = np.zeros_like(dones)
            ended[rows] = dones[rows]
            with self._drawing_for(number, self.policy, 2):
                rewards = super()._bootstrap_truncated(rewards, ended, *args)
        return rewards

    @contextmanager
    def _drawing_for(self, number: int, step: Any, purpose: int = 0) -> Iterator[None]:
        """Let what draws from torch's generator draw from one block's numbers.

        That are policies of a program's own; this package's draw from the environments' streams.

        :param number: of the block, among those of this process
        :param step: what acts
        :param purpose: tells draws of one step apart
        """
        self._present_block = number
        if getattr(step, "reason", "unknown") is None:  # prepared, of known parts alone
            yield
            return
        place = (self._blocks.own[number], self._action_noise.step, purpose)
        seed = block_seed(self._action_noise.seed, COLLECTING, *place)
        cuda = [self.device] if self.device.type == "cuda" else []
        with th.random.fork_rng(devices=cuda):
            seed_torch(seed, self.device)
            yield


class BlockStep:
    """The policy's step, made for one block after the other.

    :param model: that collects
    :param step: that of one block
    """

    def __init__(self, model: CollectsInBlocks, step: Step) -> None:
        self._model, self._step = model, step
        self._rows = model._blocks.rows
        noise, size = model._action_noise, model._blocks.envs_of_block
        self._noises = [
            ActionNoise(noise.seed, size, noise.first_env + rows.start) for rows in self._rows
        ]

    def __call__(
        self, obs: Any, states: RNNStates, episode_starts: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor, RNNStates]:
        """Act, as the policy does."""
        model = self._model
        model._ranks.beat()
        if len(self._rows) == 1:
            with model._drawing_for(0, self._step):
                return self._step(obs, states, episode_starts)
        matrices = getattr(model.policy.action_dist, "exploration_matrices", None)
        acted = []
        for number, (rows, noise) in enumerate(zip(self._rows, self._noises, strict=True)):
            noise.step = model._action_noise.step
            own = rows_of_states(states, rows)
            given = rows_of_obs(obs, rows), own, episode_starts[rows].clone()
            with (
                model._drawing_for(number, self._step),
                drawing_from(noise),
                _exploring(model.policy.action_dist, matrices, rows),
            ):
                acted.append(self._step(*given))
        actions, values, log_probs, after = zip(*acted, strict=True)
        return th.cat(actions), th.cat(values), th.cat(log_probs), joined_states(after)


def _exploring(distribution: Any, matrices: th.Tensor | None, rows: slice) -> Any:
    """Let gSDE explore by the matrices of one block's environments."""
    return nullcontext() if matrices is None else _with_matrices(distribution, matrices, rows)


@contextmanager
def _with_matrices(distribution: Any, matrices: th.Tensor, rows: slice) -> Iterator[None]:
    first = distribution.exploration_mat
    distribution.exploration_matrices = matrices[rows].clone()
    distribution.exploration_mat = distribution.exploration_matrices[0]
    try:
        yield
    finally:
        distribution.exploration_matrices, distribution.exploration_mat = matrices, first


class LateStop:
    """Calls a callback through a whole window, and notes whether it asked to stop.

    :param callback: of the training
    """

    def __init__(self, callback: BaseCallback) -> None:
        self.callback, self.is_asked = callback, False

    def on_step(self) -> bool:
        """Call the callback; the window goes on in any case."""
        if not self.callback.on_step():
            self.is_asked = True
        return True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self.callback, name)
        return found


def block_seed(seed: int, purpose: int, *place: int) -> int:
    """Return a seed of torch's generators, for one place in a training."""
    return int(seed_sequence(seed, purpose, *place).generate_state(1, np.uint64)[0] >> 1)


def seed_torch(seed: int, device: th.device) -> None:
    """Seed the generators that computations on a device may draw from."""
    th.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with th.cuda.device(device):
            th.cuda.manual_seed(seed)

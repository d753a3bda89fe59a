"""Checkpoints of a training of many processes: one for all, whoever goes on from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from thrust_pomdp.checkpoint.model_state import random_state
from thrust_pomdp.distributed.blocks import Blocks
from thrust_pomdp.distributed.ranks import Ranks
from thrust_pomdp.distributed.resharding import Sizes, resharded
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.vec_env.states import vec_state

#: What of a model has an entry for each environment, and on which axis.
_AXES = {
    "last_obs": 0,
    "last_original_obs": 0,
    "last_episode_starts": 0,
    "last_lstm_states": 1,
    "carried_state": 1,
    "episode_start_carry": 0,
}

#: What the tree of a checkpoint calls the training's environment.
_TRAINING = "training"

#: Generators that belong to a process, not to the training.
_OF_PROCESS = ("python", "numpy", "torch", "cuda")


class ManyProcesses:
    """What a checkpoint asks of a training of many processes.

    See :class:`thrust_pomdp.checkpoint.processes.OneProcess`.

    :param ranks: the processes
    :param blocks: how environments are divided
    """

    def __init__(self, ranks: Ranks, blocks: Blocks) -> None:
        self._ranks, self._blocks = ranks, blocks
        self.is_writer = ranks.is_first

    def from_writer(self, thing: Any) -> Any:
        """Return what rank 0 hands in."""
        return self._ranks.gather_objects(thing if self.is_writer else None)[0]

    def any_of(self, flag: bool) -> bool:
        """Whether any process says so."""
        return any(self._ranks.gather_objects(flag))

    def whole(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Return on rank 0 the checkpoint of the whole training.

        What belongs to environments is put side by side; their own states are kept for each
        process.
        """
        model, envs = tree["model"], dict(tree["envs"])
        exploration = model["exploration"] or {}
        told = {
            "model": {name: model[name] for name in _AXES},
            "matrices": exploration.get("exploration_matrices"),
            "rank": {_TRAINING: envs.pop(_TRAINING), "random": model["random"]},
        }
        found = self._ranks.gather_objects(told)
        if not self.is_writer:
            return tree
        joined = {
            name: _joined([part["model"][name] for part in found], axis)
            for name, axis in _AXES.items()
        }
        if "exploration_matrices" in exploration:
            matrices = np.concatenate([part["matrices"] for part in found])
            joined["exploration"] = {**exploration, "exploration_matrices": matrices}
        ranks = [part["rank"] for part in found]
        return {**tree, "model": {**model, **joined}, "envs": envs, "ranks": ranks}

    def own(self, tree: dict[str, Any], model: Any) -> dict[str, Any]:
        """Return what this process goes on from.

        :raises ValueError: if the checkpoint is of another number of environments
        """
        kept, blocks = tree["model"], self._blocks
        n_before = len(kept["last_episode_starts"])
        if n_before != blocks.envs_of_all:
            raise ArgumentError(
                f"the checkpoint is of {n_before} environments, got {blocks.envs_of_all}"
            )
        rows = slice(blocks.first_env, blocks.first_env + blocks.n_envs)
        own = {name: _rows(kept[name], rows, axis) for name, axis in _AXES.items()}
        exploration = kept["exploration"] or {}
        if "exploration_matrices" in exploration:
            matrices = exploration["exploration_matrices"][rows]
            own["exploration"] = {**exploration, "exploration_matrices": matrices}
        # A checkpoint of one block or of another algorithm has its environments in one piece.
        ranks = tree.get("ranks") or [
            {_TRAINING: tree["envs"][_TRAINING], "random": kept["random"]}
        ]
        training = self._env_state([of_rank[_TRAINING] for of_rank in ranks], model)
        random = self._random([of_rank["random"] for of_rank in ranks], kept["random"], model)
        return {
            **tree,
            "model": {**kept, **own, "random": random},
            "envs": {**tree["envs"], _TRAINING: training},
        }

    def _env_state(self, states: list[Any], model: Any) -> Any:
        if len(states) == self._ranks.size:
            return states[self._ranks.rank]
        sizes = Sizes(
            self._blocks.envs_of_all // len(states), self._blocks.n_envs, self._blocks.first_env
        )
        model.env.reset()  # only then it has all that it will remember
        return resharded(states, vec_state(model.env), sizes)

    def _random(self, of_ranks: list[Any], first: Mapping[str, Any], model: Any) -> Any:
        """Return where this process's random streams go on.

        Those of the training are the same everywhere, but for where its environments begin. Global
        generators are each process's own.
        """
        rank = self._ranks.rank
        own = of_ranks[rank] if rank < len(of_ranks) else random_state(model)
        of_process = {name: own[name] for name in _OF_PROCESS if name in own}
        collecting = {**first["collecting"], "first_env": self._blocks.first_env}
        return {**first, **of_process, "collecting": collecting}


def _mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to the arrays of observations, or of a memory's states."""
    if isinstance(tree, Mapping):
        return {name: _mapped(part, function) for name, part in tree.items()}
    if isinstance(tree, list):
        return [_mapped(part, function) for part in tree]
    return None if tree is None else function(tree)


def _rows(tree: Any, rows: slice, axis: int) -> Any:
    index = (slice(None),) * axis + (rows,)
    return _mapped(tree, lambda array: array[index].copy())


def _joined(trees: list[Any], axis: int) -> Any:
    """Put the arrays of several trees side by side."""
    first = trees[0]
    if isinstance(first, Mapping):
        return {name: _joined([tree[name] for tree in trees], axis) for name in first}
    if isinstance(first, list):
        return [_joined([tree[idx] for tree in trees], axis) for idx in range(len(first))]
    return None if first is None else np.concatenate(trees, axis=axis)

"""Which environments belong to which block, and which blocks to which process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th

from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.observations import map_obs
from thrust_pomdp.ppo.sequence_batch import combine_states, map_states
from thrust_pomdp.recurrent.sequences import RNNStates


@dataclass(frozen=True)
class Blocks:
    """How the environments of a training are divided.

    Blocks follow one another in the order of the environments, and so do processes::

        environment   0 1 2 3   4 5 6 7   8 9 10 11   12 13 14 15
        block            0         1          2            3
        rank                  0                     1

    :param n_blocks: of all environments
    :param n_ranks: number of processes, which divides that of the blocks
    :param rank: number of this process
    :param n_envs: environments of this process
    """

    n_blocks: int
    n_ranks: int
    rank: int
    n_envs: int

    @property
    def is_one(self) -> bool:
        """Whether nothing is divided."""
        return self.n_blocks == self.n_ranks == 1

    @property
    def n_own(self) -> int:
        """Number of blocks of this process."""
        return self.n_blocks // self.n_ranks

    @property
    def own(self) -> range:
        """The blocks of this process."""
        return range(self.rank * self.n_own, (self.rank + 1) * self.n_own)

    @property
    def envs_of_block(self) -> int:
        """Number of environments of a block."""
        return self.n_envs // self.n_own

    @property
    def envs_of_all(self) -> int:
        """Number of environments of the training."""
        return self.n_envs * self.n_ranks

    @property
    def first_env(self) -> int:
        """Number of this process's first environment among all."""
        return self.rank * self.n_envs

    @property
    def rows(self) -> list[slice]:
        """The environments of each own block, among those of this process."""
        size = self.envs_of_block
        return [slice(start, start + size) for start in range(0, self.n_envs, size)]

    def check(self) -> None:
        """Refuse what cannot be divided.

        :raises ValueError: naming the argument, the rule and the values
        """
        if self.n_blocks % self.n_ranks:
            raise ArgumentError(
                f"gradient_blocks must be a multiple of the {self.n_ranks} processes, got "
                f"{self.n_blocks}"
            )
        if self.envs_of_all % self.n_blocks:
            raise ArgumentError(
                f"the number of environments must be a multiple of gradient_blocks={self.n_blocks},"
                f" got {self.envs_of_all}"
            )


def sizes_in_blocks(sizes: Sequence[int], n_blocks: int) -> list[int]:
    """Return the sizes of minibatches that take equally many sequences from each block.

    There are as many minibatches as there were, if each block has as many sequences.

    >>> sizes_in_blocks([8, 8, 4], n_blocks=4)
    [8, 8, 4]
    >>> sizes_in_blocks([2] * 8, n_blocks=4)  # 4 sequences a block: 4 minibatches
    [4, 4, 4, 4]
    >>> sizes_in_blocks([3, 3, 2], n_blocks=2)
    [4, 2, 2]

    :param sizes: numbers of sequences
    :param n_blocks: divides the number of all sequences; where it does not, which is refused before
        anything is trained, the sizes are left as they are
    """
    if sum(sizes) % n_blocks or not any(size % n_blocks for size in sizes):
        return list(sizes)
    of_block = sum(sizes) // n_blocks
    n_minibatches = min(len(sizes), of_block)
    whole, left = divmod(of_block, n_minibatches)
    return [n_blocks * (whole + (number < left)) for number in range(n_minibatches)]


def rows_of_obs(obs: Any, rows: slice) -> Any:
    """Return some rows of observations; tensors are copied, into memory of their own.

    Matrix products round by where their operands lie.
    """
    return map_obs(lambda part: part[rows].clone() if th.is_tensor(part) else part[rows], obs)


def rows_of_states(states: RNNStates, rows: slice) -> RNNStates:
    """Return the states of some environments, each ``[n_layers, n, ...]``, in own memory."""
    return map_states(states, lambda part: part[:, rows].clone())


def joined_states(parts: Sequence[RNNStates]) -> RNNStates:
    """Put the states of blocks side by side."""
    return combine_states(lambda *tensors: th.cat(tensors, dim=1), *parts)


#: (observations, states, episode starts) -> states
StatesAfter = Callable[[Any, RNNStates, th.Tensor], RNNStates]


def in_blocks(states_after: StatesAfter, blocks: Blocks) -> StatesAfter:
    """Let what runs the policy over all environments run it over each block's.

    A matrix product of other sizes may round otherwise.
    """

    def run(obs: Any, states: RNNStates, starts: th.Tensor) -> RNNStates:
        return joined_states(
            [
                states_after(
                    rows_of_obs(obs, rows), rows_of_states(states, rows), starts[rows].clone()
                )
                for rows in blocks.rows
            ]
        )

    return run


def array_rows(rows: slice) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return a slice's indices."""
    return np.arange(rows.start, rows.stop)

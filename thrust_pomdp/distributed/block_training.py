"""Training on windows block by block: one gradient, the same whoever computes which block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch as th

from thrust_pomdp.distributed.block_collecting import block_seed, seed_torch
from thrust_pomdp.distributed.blocks import Blocks, in_blocks, sizes_in_blocks
from thrust_pomdp.distributed.moments import Array, merged_blocks, merged_rows, moments
from thrust_pomdp.distributed.ranks import RankError, Ranks
from thrust_pomdp.distributed.trees import summed_alone, tree_sum
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.ppo.action_noise import SHUFFLING, TRAINING, seed_sequence
from thrust_pomdp.ppo.losses import Losses
from thrust_pomdp.ppo.minibatch_sizes import sizes_of
from thrust_pomdp.ppo.sequence_batch import SequenceBatch
from thrust_pomdp.ppo.stored_states import burned_in, states_after
from thrust_pomdp.ppo.training import TrainsOnWindows


class Plan(NamedTuple):
    """What is known of an update before its first gradient.

    :param orders: of each epoch and own block the order of its sequences
    :param sizes: sequences of each minibatch in one block
    :param advantages: mean and sum of squared deviations of each minibatch's advantages,
        ``[n_epochs, n_minibatches, 2]``
    :param explained: the share of the returns' variance that the critic foretold
    """

    orders: list[list[np.ndarray[Any, np.dtype[np.intp]]]]
    sizes: list[int]
    advantages: Array
    explained: float


class BlockBatches(NamedTuple):
    """One minibatch: that of each own block, and its place in the update."""

    blocks: list[SequenceBatch]
    epoch: int
    number: int


class LearnsInBlocks(TrainsOnWindows):
    """How :class:`~thrust_pomdp.distributed.DataParallelRecurrentPPO` learns from its buffer."""

    _blocks: Blocks
    _ranks: Ranks
    _plan: Plan
    #: The gradient of the present minibatch, all weights one after the other.
    _gradient: th.Tensor

    def _update(self) -> None:
        if self._blocks.is_one:
            super()._update()
            return
        self._ranks.meet()
        self._first_epoch = self._n_updates
        self._plan = self._make_plan()
        super()._update()
        self._check_weights()

    def _minibatch_sizes(self, length: int) -> list[int]:
        sizes: list[int] = super()._minibatch_sizes(length)  # type: ignore[misc]
        return sizes_in_blocks(sizes, self._blocks.n_blocks)

    def _make_plan(self) -> Plan:
        """Draw the orders of all epochs, and exchange the moments of what they order."""
        sequences, blocks = self.rollout_buffer._sequences(), self._blocks
        n_seq, length = len(sequences.returns) // blocks.n_own, sequences.returns.shape[1]
        wanted = self._sequences_per_minibatch()
        n_all = n_seq * blocks.n_blocks
        sizes = sizes_of(n_all, wanted) if isinstance(wanted, int) else wanted
        sizes = [size // blocks.n_blocks for size in sizes]
        orders = [
            [
                np.random.default_rng(
                    seed_sequence(self._action_noise.seed, SHUFFLING, block, epoch)
                ).permutation(n_seq)
                for block in blocks.own
            ]
            for epoch in range(self._first_epoch, self._first_epoch + self.n_epochs)
        ]
        advantages = sequences.advantages.reshape(blocks.n_own, n_seq, length).cpu().numpy()
        of_epochs = []
        for place, rows in enumerate(blocks.rows):
            of_rows = moments(advantages[place])
            ordered = np.stack([of_rows[orders_of[place]] for orders_of in orders])
            ours = self.rollout_buffer.values[:, rows], self.rollout_buffer.returns[:, rows]
            values, returns = (
                np.ascontiguousarray(part, dtype=np.float64).ravel() for part in ours
            )
            of_critic = np.stack((moments(returns), moments(returns - values)))
            parts = merged_rows(ordered, length, sizes).reshape(-1, 2), of_critic
            of_epochs.append(np.concatenate(parts))
        sent = th.from_numpy(np.stack(of_epochs))
        of_blocks = [part for of_rank in self._ranks.gather(sent) for part in of_rank.numpy()]
        counts = np.tile(np.multiply(sizes, length), self.n_epochs)
        counts = np.append(counts, [values.size] * 2)
        whole = merged_blocks(of_blocks, counts)
        (_, variance), (_, unexplained) = whole[-2:]
        explained = np.nan if variance == 0 else 1 - unexplained / variance
        by_epoch = whole[:-2].reshape(self.n_epochs, len(sizes), 2)
        return Plan(orders, sizes, by_epoch, float(explained))

    def _explained_variance(self) -> Any:
        return super()._explained_variance() if self._blocks.is_one else self._plan.explained

    def _minibatches(self, n_sequences: int | list[int], refresh: bool) -> Iterator[Any]:
        if self._blocks.is_one:
            yield from super()._minibatches(n_sequences, refresh)
            return
        buffer, blocks, epoch = self.rollout_buffer, self._blocks, self._n_updates
        if refresh:
            buffer.refresh_states(in_blocks(partial(states_after, self.policy), blocks))
        sequences = buffer._sequences()
        n_seq = len(sequences.returns) // blocks.n_own
        orders, epoch = self._plan.orders[epoch - self._first_epoch], epoch - self._first_epoch
        own = [
            sequences.select(th.as_tensor(place * n_seq + order, device=self.device))
            for place, order in enumerate(orders)
        ]
        splits = [batch.split(self._plan.sizes) for batch in own]
        for number, parts in enumerate(zip(*splits, strict=True)):
            yield BlockBatches([burned_in(self.policy, part) for part in parts], epoch, number)

    def _loss_normalizes(self) -> bool:
        return self._blocks.is_one and super()._loss_normalizes()

    def _losses(self, batch: Any, *args: Any) -> Losses:
        if self._blocks.is_one:
            return super()._losses(batch, *args)
        self._ranks.beat()
        assert isinstance(batch, BlockBatches)
        vectors = []
        for block, part in zip(self._blocks.own, batch.blocks, strict=True):
            place = (self._first_epoch + batch.epoch, block, batch.number)
            seed_torch(block_seed(self._action_noise.seed, TRAINING, *place), self.device)
            losses = super()._losses(self._normalized(part, batch), *args)
            super()._find_gradients(losses)
            terms = th.stack([term.detach().reshape(()) for term in losses])
            vectors.append(th.cat((packed_gradients(self.policy), terms)))
        sent = th.stack(summed_alone(vectors))
        found = [part for of_rank in self._ranks.gather(sent) for part in of_rank]
        whole = tree_sum(found) / self._blocks.n_blocks
        n_terms = len(Losses._fields)
        self._gradient = whole[:-n_terms]
        return Losses(*whole[-n_terms:])

    def _normalized(self, part: SequenceBatch, batch: BlockBatches) -> SequenceBatch:
        """Normalise a block's advantages by the moments of the whole minibatch."""
        n = self._plan.sizes[batch.number] * part.returns.shape[1] * self._blocks.n_blocks
        if not self.normalize_advantage or n == 1:
            return part
        mean, squares = self._plan.advantages[batch.epoch, batch.number].tolist()
        spread = (squares / (n - 1)) ** 0.5 + 1e-8
        return part._replace(advantages=(part.advantages - mean) / spread)

    def _find_gradients(self, losses: Losses) -> None:
        if self._blocks.is_one:
            super()._find_gradients(losses)
            return
        unpack_gradients(self.policy, self._gradient)

    def _check_weights(self) -> None:
        """Refuse to go on where processes have come to other weights: they compute otherwise."""
        if self._ranks.size == 1:
            return
        told = th.from_numpy(np.frombuffer(weights_digest(self.policy), dtype=np.uint8).copy())
        for rank, digest in enumerate(self._ranks.gather(told)):
            if not th.equal(digest, told):
                raise RankError(
                    f"the weights of rank {rank} and of rank {self._ranks.rank} are not the same "
                    "after an update. Either something in the policy changes by what it is shown "
                    "(as BatchNorm's statistics do), or their processors round otherwise: then "
                    "start all with ATEN_CPU_CAPABILITY=avx2 and DNNL_MAX_CPU_ISA=AVX2"
                )


def packed_gradients(policy: th.nn.Module) -> th.Tensor:
    """Return all gradients one after the other, and which of them there are.

    A weight that a loss does not reach has none, and the optimiser leaves it alone.

    :return: ``[number of weights + number of parameters]``
    """
    parameters = list(policy.parameters())
    given = [parameter.grad is not None for parameter in parameters]
    parts = [
        th.zeros_like(parameter).flatten() if parameter.grad is None else parameter.grad.flatten()
        for parameter in parameters
    ]
    return th.cat([*parts, th.tensor(given, dtype=parts[0].dtype, device=parts[0].device)])


def unpack_gradients(policy: th.nn.Module, packed: th.Tensor) -> None:
    """Give the weights the gradients that :func:`packed_gradients` returned, or a sum of such."""
    parameters = list(policy.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    *parts, given = th.split(packed, [*sizes, len(parameters)])
    for parameter, part, is_given in zip(parameters, parts, given.tolist(), strict=True):
        parameter.grad = part.view_as(parameter).to(parameter.dtype) if is_given else None


def weights_digest(policy: th.nn.Module) -> bytes:
    """Return 16 bytes that differ where weights or statistics of modules do."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in policy.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).numpy().tobytes())
    return digest.digest()


def check_buffer(buffer: Any, plain: type[Any]) -> None:
    """Refuse a buffer that divides its windows otherwise than blocks are.

    :param buffer: the buffer
    :param plain: a class of this package's
    :raises ValueError: naming the method
    """
    for name in ("to_minibatches", "get"):
        if getattr(type(buffer), name) is not getattr(plain, name):
            raise ArgumentError(
                f"rollout_buffer_class must leave {name}() as it is where gradients are computed "
                f"in blocks, which draw minibatches themselves; {type(buffer).__name__} changes it"
            )

"""Whole windows, or subsequences of them, as training takes them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import torch as th

from thrust_pomdp.observations import map_obs
from thrust_pomdp.recurrent.sequences import ResetLayout, RNNStates


class BurnIn(NamedTuple):
    """The steps before some subsequences, to be run for their memory alone.

    :param observations: ``[n_seq, burn_in, *obs_shape]``, or a dict of such
    :param episode_starts: ``[n_seq, burn_in]``, bool
    :param is_first: ``[n_seq]``, bool; a window's first subsequence has nothing before it: what the
        other parts hold for it belongs to another window and is not to be used
    """

    observations: th.Tensor | dict[str, th.Tensor]
    episode_starts: th.Tensor
    is_first: th.Tensor

    def take(self, take: Callable[[th.Tensor], th.Tensor]) -> BurnIn:
        """Return the steps before some of the subsequences, ``take`` giving their rows."""
        return BurnIn(
            map_obs(take, self.observations), take(self.episode_starts), take(self.is_first)
        )


class SequenceBatch(NamedTuple):
    """Whole windows of some environments, as tensors on the policy's device.

    :param observations: ``[n_seq, n_steps, *obs_shape]``, or a dict of such
    :param actions: ``[n_seq, n_steps, action_dim]``, float32 for Box, else the space's integers
    :param old_values: ``[n_seq, n_steps]``
    :param old_log_prob: ``[n_seq, n_steps]``
    :param advantages: ``[n_seq, n_steps]``
    :param returns: ``[n_seq, n_steps]``
    :param episode_starts: ``[n_seq, n_steps]``, bool
    :param initial_state: the states that entered step 0, each ``[n_layers, n_seq, hidden]``;
        None stands for zeros
    :param layout: the same episode starts, as the sequence layer wants them
    :param burn_in: steps to be run from ``initial_state``, for the state that enters step 0, where
        windows are cut into subsequences with burn-in; None for none
    :param action_masks: ``[n_seq, n_steps, width]``, bool, from a buffer that keeps them
    """

    observations: th.Tensor | dict[str, th.Tensor]
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    episode_starts: th.Tensor
    initial_state: RNNStates | None
    layout: ResetLayout
    burn_in: BurnIn | None = None
    action_masks: th.Tensor | None = None

    def select(self, rows: th.Tensor) -> SequenceBatch:
        """Return copies of the windows of some environments, ``rows`` being int64 indices."""
        return self._take(rows, self.layout.select(rows))

    def split(self, sizes: Sequence[int]) -> Generator[SequenceBatch, None, None]:
        """Yield so many windows at a time, without copying."""
        start = 0
        for size, layout in zip(sizes, self.layout.split(sizes), strict=True):
            yield self._take(slice(start, start + size), layout)
            start += size

    def _take(self, rows: th.Tensor | slice, layout: ResetLayout) -> SequenceBatch:
        def take(tensor: th.Tensor, dim: int = 0) -> th.Tensor:
            if isinstance(rows, slice):
                return tensor[rows] if dim == 0 else tensor[:, rows]
            return tensor.index_select(dim, rows)

        state = self.initial_state
        return SequenceBatch(
            observations=map_obs(take, self.observations),
            actions=take(self.actions),
            old_values=take(self.old_values),
            old_log_prob=take(self.old_log_prob),
            advantages=take(self.advantages),
            returns=take(self.returns),
            episode_starts=take(self.episode_starts),
            initial_state=None if state is None else map_states(state, lambda s: take(s, 1)),
            layout=layout,
            burn_in=None if self.burn_in is None else self.burn_in.take(take),
            action_masks=None if self.action_masks is None else take(self.action_masks),
        )


def map_states(states: RNNStates, function: Callable[[th.Tensor], th.Tensor]) -> RNNStates:
    """Apply ``function`` to each state tensor of actor and critic."""
    pi, vf = states
    mapped = tuple(function(part) for part in pi)
    if vf is pi:  # a critic without memory of its own
        return RNNStates(mapped, mapped)
    return RNNStates(mapped, tuple(function(part) for part in vf))


def combine_states(function: Callable[..., th.Tensor], *states: RNNStates) -> RNNStates:
    """Apply ``function`` to the tensors that stand at the same place in several states."""

    def combine(members: tuple[Any, ...]) -> Any:
        return tuple(function(*tensors) for tensors in zip(*members, strict=True))

    pi = combine(tuple(state.pi for state in states))
    if all(state.vf is state.pi for state in states):  # a critic without memory of its own
        return RNNStates(pi, pi)
    return RNNStates(pi, combine(tuple(state.vf for state in states)))

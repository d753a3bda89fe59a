"""Minibatches in the form of ``sb3_contrib``, for programs that write ``train()`` themselves.

Sequences lie one after the other, as ``policy.evaluate_actions`` takes them::

    [n_seq, n_steps, ...]          [n_seq * n_steps, ...]
    a0 a1 a2                       a0
    b0 b1 b2                       a1
                                   a2
                                   b0 ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch as th

from thrust_pomdp.observations import map_obs
from thrust_pomdp.ppo.sequence_batch import SequenceBatch
from thrust_pomdp.recurrent.sequences import RNNStates


class RecurrentRolloutBufferSamples(NamedTuple):
    """``sb3_contrib``'s class of that name.

    :param observations: ``[rows, *obs_shape]``, or a dict of such
    :param actions: ``[rows, action_dim]``
    :param old_values: ``[rows]``, and so are the following three
    :param old_log_prob: of the actions
    :param advantages: of the actions
    :param returns: targets of the values
    :param lstm_states: the states that entered each sequence, ``[n_layers, n_seq, hidden]``; None
        where the buffer was filled without states
    :param episode_starts: ``[rows]``, float32
    :param mask: ``[rows]``, float32: all ones, since nothing is padding
    :param action_masks: ``[rows, width]``, bool, from a buffer that keeps them
    """

    observations: th.Tensor | dict[str, th.Tensor]
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    lstm_states: RNNStates | None
    episode_starts: th.Tensor
    mask: th.Tensor
    action_masks: th.Tensor | None = None


def flat_samples(
    batch: SequenceBatch, zero_states: Callable[[int], RNNStates | None]
) -> RecurrentRolloutBufferSamples:
    """Lay whole sequences one after the other.

    :param batch: ``[n_seq, n_steps, ...]``
    :param zero_states: returns the states of so many sequences that remember nothing
    :raises ValueError: if the sequences have burn-in steps
    """
    if batch.burn_in is not None:
        raise ValueError(
            "get() hands out no burn-in steps: leave burn_in out, or take them from "
            "to_minibatches(), whose batches have burn_in and initial_state"
        )

    def flat(tensor: th.Tensor) -> th.Tensor:
        return tensor.flatten(end_dim=1)

    states, masks = batch.initial_state, batch.action_masks
    return RecurrentRolloutBufferSamples(
        observations=map_obs(flat, batch.observations),
        actions=flat(batch.actions),
        old_values=flat(batch.old_values),
        old_log_prob=flat(batch.old_log_prob),
        advantages=flat(batch.advantages),
        returns=flat(batch.returns),
        lstm_states=zero_states(len(batch.returns)) if states is None else states,
        episode_starts=flat(batch.episode_starts).float(),
        mask=th.ones_like(flat(batch.returns)),
        action_masks=None if masks is None else flat(masks),
    )

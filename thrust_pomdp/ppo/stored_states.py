"""Stored states brought up to the present weights: burn-in and refreshing.

What the policy is run for here is its memory alone. It runs as it did while collecting: without
gradient, without dropout, and without drawing a random number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter

import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs

from thrust_pomdp.observations import map_obs
from thrust_pomdp.ppo.buffers import RecurrentRolloutBuffer
from thrust_pomdp.ppo.policies import RecurrentActorCriticPolicy
from thrust_pomdp.ppo.sequence_batch import SequenceBatch, combine_states
from thrust_pomdp.recurrent.sequences import RNNStates, rows_of_state


def minibatches(
    policy: RecurrentActorCriticPolicy,
    buffer: RecurrentRolloutBuffer,
    n_sequences: int | Sequence[int],
    refresh: bool = False,
) -> Iterator[SequenceBatch]:
    """Yield the minibatches of one epoch, ready to be trained on.

    Burn-in steps are run when their minibatch is asked for, hence with the weights that the
    minibatches before have left.

    :param policy: the policy that is trained
    :param buffer: holds the window
    :param n_sequences: sequences in a minibatch, or in each
    :param refresh: compute the stored states anew first
    """
    if refresh:
        buffer.refresh_states(partial(states_after, policy))
    for batch in buffer.to_minibatches(n_sequences):
        yield burned_in(policy, batch)


def burned_in(policy: RecurrentActorCriticPolicy, batch: SequenceBatch) -> SequenceBatch:
    """Run the burn-in steps of a minibatch, if there are any.

    :return: the minibatch, its ``initial_state`` that of its step 0
    """
    if batch.burn_in is None:
        return batch
    obs, episode_starts, is_first = batch.burn_in
    stored = batch.initial_state
    assert stored is not None
    run = states_after(policy, obs, stored, episode_starts)
    # First subsequences are run along with others' steps, so that sizes are always the same.

    def choose(before: th.Tensor, after: th.Tensor) -> th.Tensor:
        return th.where(rows_of_state(is_first, before), before, after)

    states = combine_states(choose, stored, run)
    return batch._replace(initial_state=states, burn_in=None)


@th.no_grad()
def states_after(
    policy: RecurrentActorCriticPolicy,
    obs: PyTorchObs,
    states: RNNStates,
    episode_starts: th.Tensor,
) -> RNNStates:
    """Return the states that leave some steps, as collecting these steps would compute them.

    :param policy: the policy; training mode is off while it runs
    :param obs: ``[n_seq, n_steps, *obs_shape]``, or a dict of such
    :param states: the states that enter the first step, each ``[n_layers, n_seq, ...]``
    :param episode_starts: ``[n_seq, n_steps]``, bool
    """
    was_training = policy.training
    policy.set_training_mode(False)
    if policy.against("forward") is None:
        flat_obs = map_obs(lambda part: part.flatten(end_dim=1), obs)
        *_, states = policy._recur(flat_obs, states, episode_starts.flatten())
    else:  # a subclass changed what acting is: only stepping it gives its states
        for step, starts in enumerate(episode_starts.unbind(dim=1)):
            step_obs = map_obs(itemgetter((slice(None), step)), obs)
            *_, states = policy(step_obs, states, starts, deterministic=True)
    policy.set_training_mode(was_training)
    return states

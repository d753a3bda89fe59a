"""The policy's step while collecting, with everything that does not change looked up beforehand.

For small networks most of the time of a step goes into finding modules and wrapping numbers.
:func:`make_step` prepares the step of the common policies once per rollout; what it computes is
:meth:`~thrust_pomdp.policies.RecurrentActorCriticPolicy.forward`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor
from torch import nn
from torch.nn.functional import linear

from thrust_pomdp.distributions import (
    PlainCategoricalDistribution,
    PlainDiagGaussianDistribution,
)
from thrust_pomdp.policies import RecurrentActorCriticPolicy
from thrust_pomdp.sequences import LSTMState, RNNStates, lstm_weights, zero_states

#: (obs, states, episode starts) -> (actions, values, log-probabilities, states)
Step = Callable[[Any, RNNStates, th.Tensor], tuple[th.Tensor, th.Tensor, th.Tensor, RNNStates]]

#: Methods whose meaning the prepared step relies on: where a subclass changes one, it is not used.
_METHODS = (
    "forward",
    "extract_features",
    "_both_features",
    "_recur",
    "_process_sequence",
    "_critic_memory",
    "_heads",
    "_get_action_dist_from_latent",
)


def make_step(policy: RecurrentActorCriticPolicy) -> Step:
    """Return the fastest way to call ``policy.forward`` for one step on many environments.

    Prepared for vector observations, Discrete and Box actions and one LSTM layer; anything else is
    left to ``policy.forward`` itself.

    :param policy: must not be replaced or moved while the step is in use; its weights may change
        in place
    """
    if not _is_common(policy):
        return policy
    extractor = policy.mlp_extractor
    pi_memory = lstm_weights(policy.lstm_actor, 0)
    vf_memory = None if policy.lstm_critic is None else lstm_weights(policy.lstm_critic, 0)
    critic = policy.critic
    pi_head, vf_head = _head(extractor.policy_net), _head(extractor.value_net)
    action_net: Any = policy.action_net
    action_weight, action_bias = action_net.weight, action_net.bias
    value_weight, value_bias = policy.value_net.weight, policy.value_net.bias
    on_cpu = policy.device.type == "cpu"
    action_dist: Any = policy.action_dist
    # A Gaussian's spread is a parameter of its own.
    spread = (policy.log_std,) if isinstance(policy.action_space, spaces.Box) else ()
    action_shape = (-1, *(policy.action_space.shape or ()))

    def cell(features: th.Tensor, states: LSTMState, weights: Any) -> tuple[th.Tensor, LSTMState]:
        hidden, c = th.lstm_cell(features, (states[0][0], states[1][0]), *weights)
        return hidden, (hidden[None], c[None])

    def step(
        obs: th.Tensor, states: RNNStates, episode_starts: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor, RNNStates]:
        features = obs.float().flatten(1)
        pi_states, vf_states = states
        starts = episode_starts if episode_starts.dtype is th.bool else episode_starts != 0
        if not on_cpu or starts.any():
            pi_states = zero_states(pi_states, starts)
            if vf_memory is not None:
                vf_states = zero_states(vf_states, starts)
        memory_pi, pi_states = cell(features, pi_states, pi_memory)
        if vf_memory is not None:
            memory_vf, vf_states = cell(features, vf_states, vf_memory)
        else:
            memory_vf, vf_states = memory_pi, pi_states
            if critic is not None:
                memory_vf = critic(features)
        if vf_head is not None:
            memory_vf = vf_head(memory_vf)
        if pi_head is not None:
            memory_pi = pi_head(memory_pi)
        values = linear(memory_vf, value_weight, value_bias)
        parameters = linear(memory_pi, action_weight, action_bias)
        distribution = action_dist.proba_distribution(parameters, *spread)
        actions = distribution.sample()
        log_prob = distribution.log_prob(actions)
        return actions.reshape(action_shape), values, log_prob, RNNStates(pi_states, vf_states)

    return step


def _is_common(policy: RecurrentActorCriticPolicy) -> bool:
    space = policy.observation_space
    return (
        all(
            getattr(type(policy), name) is getattr(RecurrentActorCriticPolicy, name)
            and name not in vars(policy)
            for name in _METHODS
        )
        and isinstance(space, spaces.Box)
        and not is_image_space(space)
        and type(policy.features_extractor) is FlattenExtractor
        and policy.share_features_extractor
        and type(policy.action_dist)
        in (PlainCategoricalDistribution, PlainDiagGaussianDistribution)
        and policy.lstm_actor.num_layers == 1
        and type(policy.lstm_actor) is nn.LSTM
        and type(policy.lstm_critic) in (nn.LSTM, type(None))
        and type(policy.mlp_extractor) is MlpExtractor
        and type(policy.action_net) is type(policy.value_net) is nn.Linear
        and not any(
            module._forward_hooks or module._forward_pre_hooks for module in policy.modules()
        )
    )


def _head(layers: nn.Sequential) -> nn.Sequential | None:
    """Return the layers, None where there are none."""
    return layers if len(layers) > 0 else None

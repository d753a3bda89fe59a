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
from stable_baselines3.common.torch_layers import (
    CombinedExtractor,
    FlattenExtractor,
    MlpExtractor,
)
from torch import nn
from torch.nn.functional import layer_norm, linear

from thrust_pomdp.asymmetric import AsymmetricLstmPolicy, KeysExtractor
from thrust_pomdp.distributions import (
    PlainCategoricalDistribution,
    PlainDiagGaussianDistribution,
)
from thrust_pomdp.policies import RecurrentActorCriticPolicy, unchanged
from thrust_pomdp.recurrent.compiled import CompiledCategoricalHeads, kernels_for
from thrust_pomdp.recurrent.encoder import Encoder
from thrust_pomdp.recurrent.memory import MEMORIES, memory_of, memory_step
from thrust_pomdp.recurrent.sequences import LSTMState, RNNStates, layer_weights

#: (obs, states, episode starts) -> (actions, values, log-probabilities, states)
Step = Callable[[Any, RNNStates, th.Tensor], tuple[th.Tensor, th.Tensor, th.Tensor, RNNStates]]

#: (features, states, starts) -> (output, states)
Cell = Callable[[th.Tensor, LSTMState, th.Tensor], tuple[th.Tensor, LSTMState]]

#: observations -> (what the actor's memory reads, what the critic's does)
Features = Callable[[Any], tuple[th.Tensor, th.Tensor]]

#: (what the actor remembers, what the critic does) -> (actions, values, log-probabilities)
Heads = Callable[[th.Tensor, th.Tensor], tuple[th.Tensor, th.Tensor, th.Tensor]]

#: rows -> rows
Layers = Callable[[th.Tensor], th.Tensor]

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


def make_step(policy: RecurrentActorCriticPolicy, act: Heads | None = None) -> Step:
    """Return the fastest way to call ``policy.forward`` for one step on many environments.

    Prepared for vector observations (also the vectors of an asymmetric policy's keys), Discrete
    and Box actions and one recurrent layer; anything else is left to ``policy.forward`` itself.

    :param policy: must not be replaced or moved while the step is in use; its weights may change
        in place
    :param act: what acts in place of the policy's own heads
    """
    if not is_common(policy):
        return policy
    extractor, critic = policy.mlp_extractor, policy.critic
    features = _make_features(policy)
    beside_memory = isinstance(policy, AsymmetricLstmPolicy) and policy.critic_reads_memory
    pi_cell = _make_cell(policy.lstm_actor)
    vf_cell = None if policy.lstm_critic is None else _make_cell(policy.lstm_critic)
    pi_head, vf_head = _layers(extractor.policy_net), _layers(extractor.value_net)
    act = act or _make_heads(policy)
    action_shape = (-1, *(policy.action_space.shape or ()))

    def step(
        obs: Any, states: RNNStates, episode_starts: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor, RNNStates]:
        pi_features, vf_features = features(obs)
        pi_states, vf_states = states
        starts = episode_starts if episode_starts.dtype is th.bool else episode_starts != 0
        memory_pi, pi_states = pi_cell(pi_features, pi_states, starts)
        if vf_cell is not None:
            memory_vf, vf_states = vf_cell(vf_features, vf_states, starts)
        else:
            memory_vf, vf_states = memory_pi, pi_states
            if critic is not None:
                memory_vf = critic(vf_features)
            elif beside_memory:
                memory_vf = th.cat((memory_pi, vf_features), dim=1)
        if vf_head is not None:
            memory_vf = vf_head(memory_vf)
        if pi_head is not None:
            memory_pi = pi_head(memory_pi)
        actions, values, log_prob = act(memory_pi, memory_vf)
        return actions.reshape(action_shape), values, log_prob, RNNStates(pi_states, vf_states)

    return step


def _make_features(policy: RecurrentActorCriticPolicy) -> Features:
    """Return what makes features of observations."""
    if isinstance(policy, AsymmetricLstmPolicy):
        pi, vf = map(_make_extractor, (policy.features_extractor, policy.vf_features_extractor))
        return lambda obs: (pi(obs), vf(obs))
    encoder = _encoder(policy.features_extractor)

    def both(obs: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        features = obs.float().flatten(1)
        if encoder is not None:
            features = encoder(features)
        return features, features

    return both


def _make_extractor(extractor: nn.Module) -> Callable[[dict[str, th.Tensor]], th.Tensor]:
    """Return what makes features of some keys of Dict observations."""
    keys, encoder = _keys_of(extractor), _encoder(extractor)
    assert keys is not None

    def extract(obs: dict[str, th.Tensor]) -> th.Tensor:
        features = th.cat([obs[key].float().flatten(1) for key in keys], dim=1)
        return features if encoder is None else encoder(features)

    return extract


def _make_cell(rnn: nn.RNNBase) -> Cell:
    """Return one recurrent layer's step."""
    kernels = kernels_for(*layer_weights(rnn, 0))
    if kernels is not None:
        return memory_of(rnn).compiled_step(kernels, rnn, 0)
    return lambda features, states, starts: memory_step(rnn, features, states, starts)


def _make_heads(policy: RecurrentActorCriticPolicy) -> Heads:
    """Return what draws actions and estimates values from what the agent remembers."""
    action_net, value_net, action_dist = policy.action_net, policy.value_net, policy.action_dist
    assert isinstance(action_net, nn.Linear)
    kernels = kernels_for(*action_net.parameters(), *value_net.parameters())
    with_bias = action_net.bias is not None and value_net.bias is not None
    if kernels is not None and with_bias and isinstance(action_dist, PlainCategoricalDistribution):
        return CompiledCategoricalHeads(kernels, action_net, value_net)
    # A Gaussian's spread is a parameter of its own.
    spread = (policy.log_std,) if isinstance(policy.action_space, spaces.Box) else ()
    pi_weights, vf_weights = ((net.weight, net.bias) for net in (action_net, value_net))

    def act(memory_pi: th.Tensor, memory_vf: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        values = linear(memory_vf, *vf_weights)
        distribution: Any = action_dist
        distribution = distribution.proba_distribution(linear(memory_pi, *pi_weights), *spread)
        actions = distribution.sample()
        return actions, values, distribution.log_prob(actions)

    return act


def is_common(policy: RecurrentActorCriticPolicy) -> bool:
    """Tell whether the step of this policy can be prepared."""
    return (
        (_reads_vector(policy) or _reads_vectors_by_key(policy))
        and isinstance(
            policy.action_dist, (PlainCategoricalDistribution, PlainDiagGaussianDistribution)
        )
        and policy.lstm_actor.num_layers == 1
        and type(policy.lstm_actor) in MEMORIES
        and type(policy.lstm_critic) in (*MEMORIES, type(None))
        and type(policy.mlp_extractor) is MlpExtractor
        and type(policy.action_net) is type(policy.value_net) is nn.Linear
        and not any(
            module._forward_hooks or module._forward_pre_hooks for module in policy.modules()
        )
    )


def _reads_vector(policy: RecurrentActorCriticPolicy) -> bool:
    """Tell whether actor and critic have the same features of a vector."""
    return (
        policy._unchanged(*_METHODS)
        and _is_vector(policy.observation_space)
        and type(_before_encoder(policy.features_extractor)) is FlattenExtractor
        and policy.share_features_extractor
    )


def _reads_vectors_by_key(policy: RecurrentActorCriticPolicy) -> bool:
    """Tell whether actor and critic have features of vectors in a Dict, each of keys of its own."""
    if not isinstance(policy, AsymmetricLstmPolicy) or not unchanged(
        policy, _METHODS, AsymmetricLstmPolicy
    ):
        return False
    extractors = (policy.features_extractor, policy.vf_features_extractor)
    return all(_keys_of(extractor) is not None for extractor in extractors)


def _keys_of(extractor: nn.Module) -> list[str] | None:
    """Return the keys whose vectors an extractor puts side by side, None if it does more."""
    extractor = _before_encoder(extractor)
    if type(extractor) is not KeysExtractor or type(extractor.inner) is not CombinedExtractor:
        return None
    of_key, space = extractor.inner.extractors, extractor.inner._observation_space
    assert isinstance(space, spaces.Dict)
    is_plain = all(type(of_key[key]) is nn.Flatten and _is_vector(space[key]) for key in of_key)
    return list(of_key) if is_plain else None


def _is_vector(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and not is_image_space(space)


def _before_encoder(extractor: nn.Module) -> nn.Module:
    return extractor.extractor if type(extractor) is Encoder else extractor


def _encoder(extractor: nn.Module) -> Layers | None:
    """Return the layers before the memory, None where there are none."""
    return _layers(extractor.layers) if type(extractor) is Encoder else None


def _layers(modules: nn.Sequential) -> Layers | None:
    """Return layers without the cost of calling modules, None where there are none."""
    calls: list[Layers] = [
        _FUNCTIONS[type(module)](module) if type(module) in _FUNCTIONS else module
        for module in modules
    ]

    def run(rows: th.Tensor) -> th.Tensor:
        for call in calls:
            rows = call(rows)
        return rows

    return run if calls else None


def _linear(module: Any) -> Layers:
    weight, bias = module.weight, module.bias
    return lambda rows: linear(rows, weight, bias)


def _layer_norm(module: Any) -> Layers:
    rest = (module.normalized_shape, module.weight, module.bias, module.eps)
    return lambda rows: layer_norm(rows, *rest)


#: What makes of a module the function that it stands for.
_FUNCTIONS: dict[type[nn.Module], Callable[[Any], Layers]] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    nn.Tanh: lambda _: th.tanh,
    nn.ReLU: lambda _: th.relu,
}

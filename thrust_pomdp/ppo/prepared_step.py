"""The policy's step while collecting, with everything that does not change looked up beforehand.

For small networks most of the time of a step goes into finding modules and wrapping numbers.
:class:`WatchedStep` prepares the step of the common policies; what it computes is
:meth:`~thrust_pomdp.ppo.policies.RecurrentActorCriticPolicy.forward`, bit for bit. It asks the gate
(:mod:`thrust_pomdp.gate`) before and, since callbacks may change anything between two steps, asks
at every step whether that still holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import (
    CombinedExtractor,
    FlattenExtractor,
    MlpExtractor,
)
from torch import nn
from torch.nn.functional import layer_norm, linear

from thrust_pomdp import gate
from thrust_pomdp.ppo.action_noise import row_uniforms
from thrust_pomdp.ppo.asymmetric_policy import AsymmetricLstmPolicy, KeysExtractor
from thrust_pomdp.ppo.compiled_policy import CompiledPolicy, against_compiled_policy
from thrust_pomdp.ppo.distributions import (
    PLAIN_METHODS,
    PlainCategoricalDistribution,
    against_plain,
)
from thrust_pomdp.ppo.policies import RecurrentActorCriticPolicy
from thrust_pomdp.recurrent.compiled import (
    CompiledCategoricalHeads,
    against_loops,
    load_kernels,
)
from thrust_pomdp.recurrent.encoder import Encoder
from thrust_pomdp.recurrent.large_steps import is_large
from thrust_pomdp.recurrent.memory import memory_step
from thrust_pomdp.recurrent.scanned import ScannedMemory, against_scanned
from thrust_pomdp.recurrent.sequences import LSTMState, RNNStates, layer_weights
from thrust_pomdp.recurrent.torch_layers import torch_layer

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
    "__call__",
    "extract_features",
    "_both_features",
    "_recur",
    "_process_sequence",
    "_critic_memory",
    "_heads",
    "_get_action_dist_from_latent",
)

#: Attributes of the policy that it relies on.
_ATTRIBUTES = (
    "action_dist",
    "action_space",
    "observation_space",
    "share_features_extractor",
    "critic_reads_memory",
)

for _cls in (FlattenExtractor, CombinedExtractor, MlpExtractor, KeysExtractor, Encoder):
    gate.remember(_cls)


class WatchedStep:
    """The fastest way to call ``policy.forward`` for one step on many environments.

    Prepared for vector observations (also the vectors of an asymmetric policy's keys), Discrete
    and Box actions and one recurrent layer; anything else is left to ``policy.forward`` itself, and
    so is what stops being of that kind, until the next window begins.

    :param policy: the policy
    :param heads: makes what acts in place of the policy's own heads
    :param otherwise: what acts where nothing can be prepared; the policy itself by default
    :param alone: nobody else's code runs between the steps, so that there is nothing to watch
    :param next_masks: tells which actions may be taken, where not all may; called once in each step
    """

    def __init__(
        self,
        policy: RecurrentActorCriticPolicy,
        heads: Callable[[Any], Heads] | None = None,
        otherwise: Step | None = None,
        alone: bool = False,
        next_masks: Callable[[], NDArray[np.bool_]] | None = None,
    ) -> None:
        self.policy, self._heads, self._next_masks = policy, heads or _make_heads, next_masks
        self._otherwise: Step = otherwise or policy
        self._is_alone = alone
        self._prepare()

    def _prepare(self) -> None:
        #: Why ``policy.forward`` is called; None where the step is prepared.
        self.reason = against_step(self.policy)
        #: The whole step as one compiled call, where it is that.
        self.compiled: CompiledPolicy | None = None
        if self.reason is not None:
            self._step = self._otherwise
            return
        self._watch = None if self._is_alone else _watch(self.policy)
        if against_one_call(self.policy) is None:
            compare = not self._is_alone
            self._step = self.compiled = CompiledPolicy(self.policy, compare, self._next_masks)
        else:
            self._step = _prepared(self.policy, self._heads(self.policy), self._is_alone)

    def __call__(
        self, obs: Any, states: RNNStates, episode_starts: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor, RNNStates]:
        """Act, as ``policy.forward`` does."""
        self._look()
        return self._step(obs, states, episode_starts)

    def _look(self) -> None:
        """Prepare the step anew if somebody has changed what it was prepared for."""
        if self.reason is None and self._watch is not None and not self._watch.holds():
            self._prepare()

    def looks_compiled(self) -> bool:
        """Tell whether the whole step is one compiled call, as things are now."""
        self._look()
        return self.compiled is not None

    def values(self, obs: Any, states: LSTMState, episode_starts: th.Tensor) -> th.Tensor:
        """Return values, ``[n, 1]``, as ``policy.predict_values`` does."""
        self._look()
        if self.compiled is None or self.policy.against("predict_values") is not None:
            return self.policy.predict_values(obs, states, episode_starts)
        return self.compiled.values(obs, states, episode_starts)


def _watch(policy: RecurrentActorCriticPolicy) -> gate.Watch:
    viewed = list(policy.parameters())
    distribution = policy.action_dist
    drawn_from = distribution, PLAIN_METHODS[type(distribution)]
    return gate.Watch(policy, _METHODS, _ATTRIBUTES, drawn_from, viewed)


def _prepared(policy: RecurrentActorCriticPolicy, act: Heads, alone: bool) -> Step:
    """Return the step, everything looked up.

    :param alone: nobody else can change weights while it is in use
    """
    extractor, critic = policy.mlp_extractor, policy.critic
    features = _make_features(policy)
    beside_memory = isinstance(policy, AsymmetricLstmPolicy) and policy.critic_reads_memory
    pi_cell = _make_cell(policy.lstm_actor, alone)
    vf_cell = None if policy.lstm_critic is None else _make_cell(policy.lstm_critic, alone)
    pi_head, vf_head = _layers(extractor.policy_net), _layers(extractor.value_net)
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
    inner: Any = _before_encoder(extractor).inner
    keys, encoder = list(inner.extractors), _encoder(extractor)

    def extract(obs: dict[str, th.Tensor]) -> th.Tensor:
        features = th.cat([obs[key].float().flatten(1) for key in keys], dim=1)
        return features if encoder is None else encoder(features)

    return extract


def _make_cell(rnn: nn.Module, alone: bool) -> Cell:
    """Return one recurrent layer's step."""
    if against_compiled_cell(rnn) is None:
        kernels = load_kernels()
        assert kernels is not None
        if isinstance(rnn, ScannedMemory):
            return rnn.compiled_step(kernels, compare=not alone)
        return torch_layer(rnn).compiled_step(kernels, rnn, 0, compare=not alone)
    return lambda features, states, starts: memory_step(rnn, features, states, starts)


def _make_heads(policy: RecurrentActorCriticPolicy) -> Heads:
    """Return what draws actions and estimates values from what the agent remembers."""
    action_net, value_net, action_dist = policy.action_net, policy.value_net, policy.action_dist
    assert isinstance(action_net, nn.Linear)
    if against_compiled_heads(policy) is None:
        kernels = load_kernels()
        assert kernels is not None
        return CompiledCategoricalHeads(kernels, action_net, value_net, action_dist, row_uniforms)
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


def against_compiled_cell(rnn: Any) -> str | None:
    """Say why a recurrent layer's step is torch's and not a compiled loop."""
    is_scanned = isinstance(rnn, ScannedMemory)
    weights = tuple(rnn.parameters()) if is_scanned else layer_weights(rnn, 0)
    if is_large(*weights):
        return f"it has {sum(w.numel() for w in weights)} weights, dense products take less time"
    return (rnn.against_compiled_step() if is_scanned else None) or against_loops(*weights)


def against_one_call(policy: RecurrentActorCriticPolicy) -> str | None:
    """Say why the whole step, which can be prepared, is not one compiled call."""
    for rnn in (policy.lstm_actor, policy.lstm_critic):
        reason = None if rnn is None else against_compiled_cell(rnn)
        if reason is not None:
            return reason
    return against_compiled_policy(policy)


def against_compiled_heads(policy: RecurrentActorCriticPolicy) -> str | None:
    """Say why linear heads and the draw of an action are not one compiled loop."""
    nets = (policy.action_net, policy.value_net)
    if not isinstance(policy.action_dist, PlainCategoricalDistribution):
        return "actions are not categorical"
    if any(net.bias is None for net in nets):
        return "a head has no bias"
    return against_loops(*(weight for net in nets for weight in net.parameters()))


def against_step(policy: RecurrentActorCriticPolicy) -> str | None:
    """Say why the step of a policy cannot be prepared."""
    return (
        gate.against_transforms()
        or gate.against_calls(policy)
        or _against_features(policy)
        or against_plain(policy.action_dist)
        or gate.named("lstm_actor", _against_cell(policy.lstm_actor))
        or gate.named("lstm_critic", _against_cell(policy.lstm_critic))
        or gate.named("mlp_extractor", _against_extractor_of_heads(policy.mlp_extractor))
        or gate.named("action_net", gate.against_module(policy.action_net, nn.Linear))
        or gate.named("value_net", gate.against_module(policy.value_net, nn.Linear))
    )


def _against_features(policy: RecurrentActorCriticPolicy) -> str | None:
    """Say why features are not those of a vector, or of the vectors of some keys."""
    if isinstance(policy, AsymmetricLstmPolicy):
        reason = gate.against_methods(policy, _METHODS, AsymmetricLstmPolicy)
        both = (policy.features_extractor, policy.vf_features_extractor)
        return reason or next(filter(None, map(_against_keys, both)), None)
    if not _is_vector(policy.observation_space):
        return "observations are not vectors of numbers"
    if not policy.share_features_extractor:
        return "actor and critic have separate features extractors"
    return policy.against(*_METHODS) or gate.named(
        "features_extractor", _against_extractor(policy.features_extractor, FlattenExtractor)
    )


def _against_extractor(extractor: Any, kind: type[nn.Module]) -> str | None:
    """Say why an extractor is not one of a kind, with an encoder behind it or without."""
    if type(extractor) is Encoder:
        return (
            gate.against_module(extractor, Encoder)
            or gate.against_module(extractor.layers, nn.Sequential)
            or gate.against_module(extractor.extractor, kind)
        )
    return gate.against_module(extractor, kind)


def _against_keys(extractor: Any) -> str | None:
    """Say why an extractor does not put the vectors of its keys side by side."""
    reason = _against_extractor(extractor, KeysExtractor)
    if reason is not None:
        return reason
    inner: Any = _before_encoder(extractor).inner
    reason = gate.against_module(inner, CombinedExtractor)
    if reason is not None:
        return reason
    flat = (gate.against_module(part, nn.Flatten) for part in inner.extractors.values())
    if any(flat) or not all(map(_is_vector, inner._observation_space.values())):
        return "observations are not vectors of numbers by key"
    return None


def _against_cell(rnn: Any) -> str | None:
    if rnn is None:
        return None
    if isinstance(rnn, ScannedMemory):
        return against_scanned(rnn)
    reason = gate.against_layer(rnn)
    if reason is None and rnn.num_layers != 1:
        return f"it has {rnn.num_layers} layers, prepared is one"
    return reason


def _against_extractor_of_heads(extractor: Any) -> str | None:
    return (
        gate.against_module(extractor, MlpExtractor)
        or gate.against_methods(extractor, ("forward_actor", "forward_critic"), MlpExtractor)
        or gate.against_module(extractor.policy_net, nn.Sequential)
        or gate.against_module(extractor.value_net, nn.Sequential)
    )


def _is_vector(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and not is_image_space(space)


def _before_encoder(extractor: Any) -> Any:
    return extractor.extractor if type(extractor) is Encoder else extractor


def _encoder(extractor: nn.Module) -> Layers | None:
    """Return the layers before the memory, None where there are none."""
    return _layers(extractor.layers) if type(extractor) is Encoder else None


def _layers(modules: nn.Sequential) -> Layers | None:
    """Return layers without the cost of calling modules, None where there are none."""
    calls: list[Layers] = [
        module if gate.against_module(module, *_FUNCTIONS) else _FUNCTIONS[type(module)](module)
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
    weight, bias = module.weight, module.bias
    return lambda rows: layer_norm(rows, module.normalized_shape, weight, bias, module.eps)


#: What makes of a module the function that it stands for.
_FUNCTIONS: dict[type[nn.Module], Callable[[Any], Layers]] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    nn.Tanh: lambda _: th.tanh,
    nn.ReLU: lambda _: th.relu,
}

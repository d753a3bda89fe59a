"""One step of a whole policy as one compiled call: layers, memory, heads and the draw of an action.

For vector observations, LSTMs of one layer and Discrete actions. The loops are in
:mod:`thrust_pomdp.recurrent.kernels_policy`; that they compute what the modules do is for
:func:`against_compiled_policy` to say, of a policy whose step can be prepared
(:mod:`thrust_pomdp.ppo.prepared_step`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray
from torch import nn

from thrust_pomdp import gate
from thrust_pomdp.ppo.action_noise import row_uniforms
from thrust_pomdp.ppo.asymmetric_policy import AsymmetricLstmPolicy
from thrust_pomdp.ppo.distributions import PlainCategoricalDistribution
from thrust_pomdp.ppo.policies import RecurrentActorCriticPolicy
from thrust_pomdp.recurrent.compiled import against_loops, check_shapes, load_kernels
from thrust_pomdp.recurrent.compiled_memory import layer_panels
from thrust_pomdp.recurrent.encoder import Encoder
from thrust_pomdp.recurrent.sequences import LSTMState, RNNStates, layer_weights

_NO_ROWS = np.zeros((0, 0), dtype=np.float32)
_ALL = np.zeros((0, 0), dtype=bool)
_NO_BIAS = np.zeros(0, dtype=np.float32)


def against_compiled_policy(policy: RecurrentActorCriticPolicy) -> str | None:
    """Say why the step of a policy, which can be prepared, is not one compiled call."""
    if isinstance(policy, AsymmetricLstmPolicy):
        return "actor and critic see different observations"
    if not isinstance(policy.action_dist, PlainCategoricalDistribution):
        return "actions are not categorical"
    for rnn in filter(None, (policy.lstm_actor, policy.lstm_critic)):
        if type(rnn) is not nn.LSTM:
            return f"the memory is a {type(rnn).__name__}, compiled is the LSTM"
    weights = [weight for rnn in _memories(policy) for weight in layer_weights(rnn, 0)]
    for modules in (_encoder(policy), _actors_layers(policy), _critics_layers(policy)):
        reason = _against_layers(modules)
        if reason is not None:
            return reason
        weights += [weight for module in modules for weight in module.parameters()]
    return against_loops(*weights)


def _memories(policy: Any) -> list[nn.LSTM]:
    return [rnn for rnn in (policy.lstm_actor, policy.lstm_critic) if rnn is not None]


def _encoder(policy: Any) -> list[nn.Module]:
    extractor = policy.features_extractor
    return list(extractor.layers) if type(extractor) is Encoder else []


def _actors_layers(policy: Any) -> list[nn.Module]:
    """Return what leads from the memory to the logits."""
    return [*policy.mlp_extractor.policy_net, policy.action_net]


def _critics_layers(policy: Any) -> list[nn.Module]:
    """Return what leads from the memory, or from the features, to the value."""
    before = [] if policy.critic is None else [policy.critic]
    return [*before, *policy.mlp_extractor.value_net, policy.value_net]


def _against_layers(modules: list[nn.Module]) -> str | None:
    """Say why modules are not dense layers, each with at most one activation behind it."""
    for before, module in zip([None, *modules], modules, strict=False):
        reason = gate.against_module(module, nn.Linear, *_ACTIVATIONS)
        if reason is not None:
            return reason
        if type(module) in _ACTIVATIONS and type(before) is not nn.Linear:
            return f"a {type(module).__name__} does not follow a Linear"
    return None


#: By class: its number among those of the loops.
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.Tanh: 1, nn.ReLU: 2}


def _laid_out(kernels: Any, modules: list[nn.Module]) -> Any:
    table, weights = [], [_NO_BIAS]
    for module in modules:
        if isinstance(module, nn.Linear):
            table.append([module.in_features, module.out_features, 0])
            weight = module.weight.detach().numpy()
            bias = np.zeros(len(weight), np.float32)
            if module.bias is not None:
                bias = module.bias.detach().numpy()
            weights += [weight.T.ravel(), bias]
        else:
            table[-1][2] = _ACTIVATIONS[type(module)]
    return kernels.Layers(np.array(table, dtype=np.int64).reshape(-1, 3), np.concatenate(weights))


class CompiledPolicy:
    """A policy's step and its values, with weights laid out for the loops.

    What is laid out is a copy, and weights may change between any two steps in ways that torch does
    not count (a fused optimiser, ``weight.data``, NumPy): their bytes are compared at each step.

    :param policy: as :func:`against_compiled_policy` knows it; its weights must keep their memory
    :param compare: the weights at each step, since somebody may change them
    :param next_masks: returns which actions may be taken, bool ``[n_envs, n_actions]``; called once
        in each step. All may be without it
    """

    def __init__(
        self,
        policy: RecurrentActorCriticPolicy,
        compare: bool,
        next_masks: Callable[[], NDArray[np.bool_]] | None = None,
    ) -> None:
        kernels = load_kernels()
        assert kernels is not None
        self._policy, self._policy_step = policy, kernels.policy.policy_step
        self._policy_values = kernels.policy.policy_values
        self._next_masks = next_masks
        self._unchanged = kernels.memory.unchanged if compare else None
        modules = (*_memories(policy), *_encoder(policy))
        modules += (*_actors_layers(policy), *_critics_layers(policy))
        # Bit patterns, since a NaN is not equal to itself.
        self._seen = tuple(
            weight.detach().numpy().reshape(-1).view(np.uint32)
            for module in modules
            for weight in module.parameters()
        )
        self._has_own_memory = policy.lstm_critic is not None
        first: Any = (*_encoder(policy), policy.lstm_actor)[0]
        self._n_features: int = getattr(
            first, "in_features" if isinstance(first, nn.Linear) else "input_size"
        )
        self._sizes = [rnn.hidden_size for rnn in _memories(policy)]
        action_net: Any = policy.action_net
        self._n_actions: int = action_net.out_features
        self._take()

    def _take(self) -> None:
        policy: Any = self._policy
        loops: Any = load_kernels()
        kernels = loops.policy
        self._kept = np.concatenate(self._seen)
        actors = layer_panels(loops, 4, *layer_weights(policy.lstm_actor, 0))
        critics: tuple[Any, Any] = (np.zeros((0, 0, 16), np.float32), _NO_BIAS)
        critic = kernels.ACTORS_MEMORY
        if policy.lstm_critic is not None:
            critics = layer_panels(loops, 4, *layer_weights(policy.lstm_critic, 0))
            critic = kernels.OWN_MEMORY
        elif policy.critic is not None:
            critic = kernels.FEATURES
        self._arrays = kernels.Policy(
            _laid_out(kernels, _encoder(policy)),
            *actors,
            critic,
            *critics,
            _laid_out(kernels, _actors_layers(policy)),
            _laid_out(kernels, _critics_layers(policy)),
        )

    def arrays(self) -> Any:
        """Return the weights as the loops take them, as they are now."""
        if self._unchanged is not None and not self._unchanged(self._seen, self._kept):
            self._take()
        return self._arrays

    def __call__(
        self, obs: th.Tensor, states: RNNStates, episode_starts: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor, RNNStates]:
        """Act, without a gradient, as the policy's ``forward`` does."""
        rows, starts = self._rows(obs, episode_starts)
        n_envs = len(rows)
        entering = self.parts_of(states, n_envs)
        leaving = tuple(np.empty_like(part) for part in entering)
        uniforms = row_uniforms(n_envs)
        check_shapes(uniforms=(uniforms, (n_envs,)))
        allowed = _ALL
        if self._next_masks is not None:
            allowed = self._next_masks()
            check_shapes(action_masks=(allowed, (n_envs, self._n_actions)))
        actions = np.empty(n_envs, dtype=np.int64)
        values, log_prob = np.empty(n_envs, np.float32), np.empty(n_envs, np.float32)
        logits = np.empty((n_envs, self._n_actions), dtype=np.float32)
        self._policy_step(
            self.arrays(), rows, entering, starts, uniforms, allowed,
            leaving, actions, values, log_prob, logits,
        )  # fmt: skip
        shown = [th.from_numpy(part) for part in (logits, allowed)[: 1 + (len(allowed) > 0)]]
        self._policy.action_dist.proba_distribution(*shown)
        acted = th.from_numpy(actions), th.from_numpy(values[:, None]), th.from_numpy(log_prob)
        return *acted, self.states_of(leaving)

    def values(self, obs: th.Tensor, states: LSTMState, episode_starts: th.Tensor) -> th.Tensor:
        """Return values, ``[n, 1]``, without a gradient, as ``predict_values`` does."""
        rows, starts = self._rows(obs, episode_starts)
        hidden, cell = self._checked(states, len(rows), self._sizes[-1])
        values = self._policy_values(self.arrays(), rows, hidden, cell, starts)
        return th.from_numpy(values[:, None])

    def _rows(self, obs: th.Tensor, episode_starts: th.Tensor) -> tuple[Any, Any]:
        rows = obs.float().flatten(1).contiguous().numpy()
        starts = (episode_starts != 0).contiguous().numpy()
        if rows.shape[1] != self._n_features or starts.shape != rows.shape[:1]:
            check_shapes(
                features=(rows, (len(rows), self._n_features)),
                episode_starts=(starts, rows.shape[:1]),
            )
        return rows, starts

    def parts_of(self, states: RNNStates, n_envs: int) -> tuple[NDArray[np.float32], ...]:
        """Return states as the loops take them: the actor's two, then the critic's or nothing."""
        parts = self._checked(states.pi, n_envs, self._sizes[0])
        if not self._has_own_memory:
            return *parts, _NO_ROWS, _NO_ROWS
        return *parts, *self._checked(states.vf, n_envs, self._sizes[1])

    def _checked(self, states: LSTMState, n_envs: int, size: int) -> Iterator[NDArray[np.float32]]:
        for name, part in zip(("hidden_state", "cell_state"), states, strict=True):
            array = part.detach().contiguous().numpy()
            if array.shape != (1, n_envs, size):
                check_shapes(**{name: (array, (1, n_envs, size))})
            yield array[0]

    def states_of(self, parts: tuple[NDArray[np.float32], ...]) -> RNNStates:
        """Return states as policies do, of what :meth:`parts_of` returns."""
        hidden_pi, cell_pi, hidden_vf, cell_vf = (th.from_numpy(part[None]) for part in parts)
        actors = hidden_pi, cell_pi
        return RNNStates(actors, (hidden_vf, cell_vf) if self._has_own_memory else actors)

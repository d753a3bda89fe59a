"""One step of a policy's memory, and whole windows of it, whatever kind of memory it is.

:func:`memory_step` advances it by one step, as needed while collecting; :func:`memory_sequences`
runs it over whole windows in which episodes end, as needed in training. Both are exact, forward
and backward: what a loop with state zeroing gives. There are three kinds:

* torch's LSTM, GRU and plain RNN (:mod:`thrust_pomdp.recurrent.torch_layers`), by torch's functions
  or compiled loops where the gate allows it;
* a :class:`~thrust_pomdp.recurrent.protocol.Memory`, of a user's own too, by its step and its
  windows;
* any other module that a program put in place of a layer, by calling it as ``sb3_contrib`` does.

Axes: windows ``[n_seq, n_steps, ...]``, parts of a state ``[n_layers, n_seq, ...]``.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import torch as th
from torch import nn

from thrust_pomdp import gate
from thrust_pomdp.recurrent.compiled import against_loops, kernels_for
from thrust_pomdp.recurrent.protocol import Memory
from thrust_pomdp.recurrent.scanned import ScannedMemory
from thrust_pomdp.recurrent.sequences import LSTMState, ResetLayout, dropout, zero_states
from thrust_pomdp.recurrent.torch_layers import all_weights, torch_layer


def state_names(rnn: nn.Module) -> tuple[str, ...]:
    """Return the names of the parts of a memory's state, ``("hidden", "cell")`` of an LSTM."""
    if isinstance(rnn, Memory):
        return tuple(part.name for part in rnn.state_parts())
    return ("hidden",) if isinstance(rnn, (nn.GRU, nn.RNN)) else ("hidden", "cell")


def initial_state(rnn: nn.Module, n_envs: int) -> LSTMState:
    """Return the state of environments that remember nothing.

    :param rnn: a memory, or a module of the kind of torch's layers
    """
    if isinstance(rnn, Memory):
        return rnn.initial_state(n_envs)
    layer: Any = rnn
    like = next(rnn.parameters(), th.empty(0))
    zeros = like.new_zeros(layer.num_layers, n_envs, layer.hidden_size)
    return (zeros,) * len(state_names(rnn))


def memory_step(
    rnn: nn.Module, features: th.Tensor, states: LSTMState, episode_starts: th.Tensor
) -> tuple[th.Tensor, LSTMState]:
    """Advance the memory by one step for every environment, as needed while collecting.

    :param rnn: any number of layers; dropout between layers applies in training mode. What is no
        layer of torch's, or one that a program changed, is called (:func:`called_sequences`).
    :param features: ``[n_envs, features]``
    :param states: the state before the step, its parts ``[n_layers, n_envs, ...]``
    :param episode_starts: ``[n_envs]``, bool; memory is zeroed first where true
    :return: the top layer's output ``[n_envs, hidden]`` and the state after the step
    """
    if isinstance(rnn, Memory):
        step: tuple[th.Tensor, LSTMState] = rnn(features, states, episode_starts)
        return step
    is_transformed = gate.against_transforms() is not None
    # On most steps no episode starts; on a GPU asking would cost more than masking, and what is
    # traced must not branch.
    if episode_starts.device.type != "cpu" or is_transformed or episode_starts.any():
        states = zero_states(states, episode_starts)
    if is_transformed or gate.against_layer(rnn) is not None:
        output, states = _call(rnn, features[:, None], states)
        return output[:, 0], states
    return _torch_step(rnn, features, states)


def _torch_step(rnn: Any, features: th.Tensor, states: LSTMState) -> tuple[th.Tensor, LSTMState]:
    """Advance a layer of torch's by one step, by torch's cells."""
    memory, output, leaving = torch_layer(rnn), features, []
    for layer in range(rnn.num_layers):
        if layer > 0:
            output = dropout(rnn, output)
        state = memory.step(rnn, layer, output, tuple(part[layer] for part in states))
        output = state[0]
        leaving.append(state)
    if rnn.num_layers == 1:
        return output, tuple(part[None] for part in state)
    return output, tuple(th.stack(parts) for parts in zip(*leaving, strict=True))


def memory_sequences(
    rnn: nn.Module, features: th.Tensor, layout: ResetLayout, states: LSTMState | None = None
) -> tuple[th.Tensor, LSTMState]:
    """Run the memory over whole windows, zeroing it at every episode start.

    Equal to :func:`memory_step` applied step by step, forward and backward, without a loop over
    time in Python.

    >>> import numpy as np
    >>> layout = ResetLayout.from_episode_starts(np.array([[1, 0, 0, 1, 0]]))
    >>> outputs, (hidden,) = memory_sequences(nn.GRU(3, 8), th.zeros(1, 5, 3), layout)
    >>> outputs.shape, hidden.shape
    (torch.Size([1, 5, 8]), torch.Size([1, 1, 8]))

    :param rnn: unidirectional, without projections, any number of layers. What is no layer of
        torch's, or one that a program changed, is called (:func:`called_sequences`).
    :param features: ``[n_seq, n_steps, features]``
    :param layout: the rows' episode starts
    :param states: the state that enters the first step, its parts ``[n_layers, n_seq, hidden]``;
        zeros when None. Where the first step starts an episode it is zeroed.
    :return: the top layer's outputs ``[n_seq, n_steps, hidden]`` and the state after the last step
    """
    if isinstance(rnn, Memory):
        entering = initial_state(rnn, len(features)) if states is None else states
        windows: tuple[th.Tensor, LSTMState] = rnn(features, entering, layout.episode_starts)
        return windows
    if gate.against_transforms() or gate.against_layer(rnn):
        return called_sequences(rnn, features, layout.episode_starts, states)
    layer: Any = rnn
    if against_loops(*all_weights(layer)) is None:
        kernels = kernels_for(features, *(states or ()))
        if kernels is not None:
            return _compiled_sequences(kernels, layer, features, layout, states)
    return torch_layer(rnn).sequences(rnn, features, layout, states)


def against_compiled_memory(rnn: Any) -> str | None:
    """Say why a recurrent module is not run over whole windows by the compiled loops."""
    if isinstance(rnn, ScannedMemory):
        return rnn.against_scan() or against_loops(*rnn.parameters())
    return gate.against_layer(rnn) or against_loops(*all_weights(rnn))


def _compiled_sequences(
    kernels: ModuleType,
    rnn: Any,
    features: th.Tensor,
    layout: ResetLayout,
    states: LSTMState | None,
) -> tuple[th.Tensor, LSTMState]:
    """Run a layer of torch's over whole windows, compiled."""
    memory = torch_layer(rnn)
    if states is None:
        states = initial_state(rnn, len(features))
    output, leaving = features, []
    for layer in range(rnn.num_layers):
        if layer > 0:
            output = dropout(rnn, output)
        entering = (part[layer] for part in states)
        output, *state = memory.compiled_rows(
            kernels, rnn, layer, output, layout.episode_starts, *entering
        )
        leaving.append(state)
    return output, tuple(th.stack(parts) for parts in zip(*leaving, strict=True))


def called_sequences(
    rnn: nn.Module, features: th.Tensor, episode_starts: th.Tensor, states: LSTMState | None
) -> tuple[th.Tensor, LSTMState]:
    """Run any recurrent module over whole windows by calling it.

    That is what is right for a layer whose weights are computed from others, that has hooks or a
    ``forward`` of its own, and for a user's own module. It is called as ``sb3_contrib`` calls its
    LSTM, ``rnn(features, states)`` with time first, once for each stretch of steps before which no
    episode starts: what a loop over the steps gives, provided that running some steps at once is
    running them one by one.

    :param rnn: the module
    :param features: ``[n_seq, n_steps, features]``
    :param episode_starts: ``[n_seq, n_steps]``, bool
    :param states: as for :func:`memory_sequences`; None for zeros needs a layer of torch's kind
    :return: as :func:`memory_sequences`
    """
    if states is None:
        states = initial_state(rnn, len(features))
    begins = [0, *(1 + step for step in _nonzero(episode_starts[:, 1:].any(dim=0)))]
    outputs = []
    for begin, end in itertools.pairwise([*begins, features.shape[1]]):
        states = zero_states(states, episode_starts[:, begin])
        output, states = _call(rnn, features[:, begin:end], states)
        outputs.append(output)
    return th.cat(outputs, dim=1), states


def _nonzero(flags: th.Tensor) -> list[int]:
    steps: list[int] = flags.nonzero().flatten().tolist()
    return steps


def _call(rnn: Any, features: th.Tensor, states: LSTMState) -> tuple[th.Tensor, LSTMState]:
    """Call a module on windows ``[n_seq, n_steps, features]`` in its own layout.

    A state of one part, such as a GRU's, is a tensor and no tuple to it.
    """
    time_first = not getattr(rnn, "batch_first", False)
    inputs = features.transpose(0, 1) if time_first else features
    output, leaving = rnn(inputs, states if len(states) > 1 else states[0])
    if time_first:
        output = output.transpose(0, 1)
    return output, leaving if isinstance(leaving, tuple) else (leaving,)

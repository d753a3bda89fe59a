"""The kinds of memory a policy can have: LSTM, GRU and plain RNN, behind the same functions.

Each is a layer of torch's, whose state is a tuple: ``(h, c)`` for an LSTM, ``(h,)`` for the others.
:func:`memory_step` advances it by one step, as needed while collecting; :func:`memory_sequences`
runs it over whole windows in which episodes end, as needed in training. Both are exact, forward
and backward: what a loop with state zeroing gives.

Axes: windows ``[n_seq, n_steps, ...]``, parts of a state ``[n_layers, n_seq, hidden]``.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any, ClassVar

import torch as th
from torch import nn

from thrust_pomdp import gate
from thrust_pomdp.recurrent.compiled import against_loops, kernels_for
from thrust_pomdp.recurrent.compiled_memory import (
    CompiledCell,
    GRURows,
    LSTMRows,
    RNNRows,
    gru_weights,
    transposed_weights,
)
from thrust_pomdp.recurrent.sequences import (
    LSTMState,
    ResetLayout,
    dropout,
    layer_weights,
    lstm_extended_rows,
    zero_states,
)


class Memory(ABC):
    """What the functions below and the policies need to know of a class of layers.

    :cvar n_gates: square blocks in the recurrent weights
    :cvar state: names of the state's parts
    :cvar options: the layer's arguments that ``lstm_kwargs`` may give
    """

    n_gates: ClassVar[int]
    state: ClassVar[tuple[str, ...]]
    options: ClassVar[tuple[str, ...]] = ("bias", "dropout")

    @abstractmethod
    def step(self, rnn: Any, layer: int, features: th.Tensor, state: LSTMState) -> LSTMState:
        """Advance one layer by one step, by torch's operations.

        :param features: ``[n_envs, features]``
        :param state: ``[n_envs, hidden]`` each; so is the new one, its first part is the output
        """

    @abstractmethod
    def compiled_step(
        self, kernels: ModuleType, rnn: Any, layer: int, compare: bool = True
    ) -> CompiledCell:
        """Return one layer's compiled step.

        :param compare: the weights at each step, since somebody may change them
        """

    @abstractmethod
    def sequences(
        self, rnn: Any, features: th.Tensor, layout: ResetLayout, states: LSTMState | None
    ) -> tuple[th.Tensor, LSTMState]:
        """Run all layers over whole windows, by torch's operations."""

    @abstractmethod
    def compiled_rows(
        self, kernels: ModuleType, rnn: Any, layer: int, *inputs: th.Tensor
    ) -> tuple[th.Tensor, ...]:
        """Run one layer over whole windows, compiled.

        :param inputs: features, episode starts, and the parts of the state
        :return: outputs ``[n_seq, n_steps, hidden]``, and the parts of the last state
        """


class _LSTM(Memory):
    n_gates = 4
    state = ("hidden", "cell")

    def step(self, rnn: nn.LSTM, layer: int, features: th.Tensor, state: LSTMState) -> LSTMState:
        # The fused cell costs half of an nn.LSTM call on one step.
        return th.lstm_cell(features, state, *layer_weights(rnn, layer))

    def compiled_step(
        self, kernels: ModuleType, rnn: nn.LSTM, layer: int, compare: bool = True
    ) -> CompiledCell:
        memory, weights = kernels.memory, layer_weights(rnn, layer)
        return CompiledCell(
            memory.lstm_step, transposed_weights, memory.unchanged if compare else None, weights
        )

    def sequences(
        self, rnn: nn.LSTM, features: th.Tensor, layout: ResetLayout, states: LSTMState | None
    ) -> tuple[th.Tensor, LSTMState]:
        return lstm_extended_rows(rnn, features, layout, states)

    def compiled_rows(
        self, kernels: ModuleType, rnn: nn.LSTM, layer: int, *inputs: th.Tensor
    ) -> tuple[th.Tensor, ...]:
        rows: tuple[th.Tensor, ...] = LSTMRows.apply(  # type: ignore[no-untyped-call]
            kernels, *inputs, *layer_weights(rnn, layer)
        )
        return rows


class _HiddenOnly(Memory):
    """A layer whose output is its whole state."""

    state = ("hidden",)

    @abstractmethod
    def packed(self, rnn: Any, *arguments: Any) -> tuple[th.Tensor, th.Tensor]:
        """Call torch's operation on packed sequences."""

    def sequences(
        self, rnn: nn.RNNBase, features: th.Tensor, layout: ResetLayout, states: LSTMState | None
    ) -> tuple[th.Tensor, LSTMState]:
        n_seq, n_steps, n_features = features.shape
        segments = layout.segments
        n_segments = int(segments.batch_sizes[0])
        entering = features.new_zeros(rnn.num_layers, n_segments, rnn.hidden_size)
        if states is not None:
            (hidden,) = zero_states(states, layout.episode_starts[:, 0])
            entering = entering.index_copy(1, segments.first, hidden)
        rows = features.reshape(n_seq * n_steps, n_features).index_select(0, segments.steps)
        output, hidden = self.packed(
            rnn, rows, segments.batch_sizes, entering, _all_weights(rnn), rnn.bias,
            rnn.num_layers, rnn.dropout, rnn.training, False,
        )  # fmt: skip
        outputs = output.index_select(0, segments.places).view(n_seq, n_steps, -1)
        return outputs, (hidden.index_select(1, segments.last),)


def _all_weights(rnn: Any) -> list[th.Tensor]:
    return [weight for layer in range(rnn.num_layers) for weight in layer_weights(rnn, layer)]


class _GRU(_HiddenOnly):
    n_gates = 3

    def step(self, rnn: nn.GRU, layer: int, features: th.Tensor, state: LSTMState) -> LSTMState:
        return (th.gru_cell(features, *state, *layer_weights(rnn, layer)),)

    def compiled_step(
        self, kernels: ModuleType, rnn: nn.GRU, layer: int, compare: bool = True
    ) -> CompiledCell:
        memory, weights = kernels.memory, layer_weights(rnn, layer)
        return CompiledCell(
            memory.gru_step, gru_weights, memory.unchanged if compare else None, weights
        )

    def packed(self, rnn: nn.GRU, *arguments: Any) -> tuple[th.Tensor, th.Tensor]:
        return th.gru(*arguments)

    def compiled_rows(
        self, kernels: ModuleType, rnn: nn.GRU, layer: int, *inputs: th.Tensor
    ) -> tuple[th.Tensor, ...]:
        rows: tuple[th.Tensor, ...] = GRURows.apply(  # type: ignore[no-untyped-call]
            kernels, *inputs, *layer_weights(rnn, layer)
        )
        return rows


class _RNN(_HiddenOnly):
    n_gates = 1
    options = ("bias", "dropout", "nonlinearity")

    def step(self, rnn: nn.RNN, layer: int, features: th.Tensor, state: LSTMState) -> LSTMState:
        cell = th.rnn_relu_cell if rnn.nonlinearity == "relu" else th.rnn_tanh_cell
        return (cell(features, *state, *layer_weights(rnn, layer)),)

    def compiled_step(
        self, kernels: ModuleType, rnn: nn.RNN, layer: int, compare: bool = True
    ) -> CompiledCell:
        relu, memory = rnn.nonlinearity == "relu", kernels.memory

        def lay_out(*weights: th.Tensor) -> tuple[Any, ...]:
            return (*transposed_weights(*weights), relu)

        weights = layer_weights(rnn, layer)
        return CompiledCell(
            memory.rnn_step, lay_out, memory.unchanged if compare else None, weights
        )

    def packed(self, rnn: nn.RNN, *arguments: Any) -> tuple[th.Tensor, th.Tensor]:
        return (th.rnn_relu if rnn.nonlinearity == "relu" else th.rnn_tanh)(*arguments)

    def compiled_rows(
        self, kernels: ModuleType, rnn: nn.RNN, layer: int, *inputs: th.Tensor
    ) -> tuple[th.Tensor, ...]:
        rows: tuple[th.Tensor, ...] = RNNRows.apply(  # type: ignore[no-untyped-call]
            kernels, rnn.nonlinearity == "relu", *inputs, *layer_weights(rnn, layer)
        )
        return rows


#: By torch's class of layers.
MEMORIES: dict[type[nn.RNNBase], Memory] = {nn.LSTM: _LSTM(), nn.GRU: _GRU(), nn.RNN: _RNN()}


def memory_of(rnn: nn.Module) -> Memory:
    """Return what is to be known of a layer of torch's."""
    return MEMORIES[type(rnn)]  # type: ignore[index]


def memory_step(
    rnn: nn.Module, features: th.Tensor, states: LSTMState, episode_starts: th.Tensor
) -> tuple[th.Tensor, LSTMState]:
    """Advance the memory by one step for every environment, as needed while collecting.

    :param rnn: any number of layers; dropout between layers applies in training mode. What is no
        layer of torch's, or one that a program changed, is called (:func:`called_sequences`).
    :param features: ``[n_envs, features]``
    :param states: the state before the step, its parts ``[n_layers, n_envs, hidden]``
    :param episode_starts: ``[n_envs]``, bool; memory is zeroed first where true
    :return: the top layer's output ``[n_envs, hidden]`` and the state after the step
    """
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
    memory, output, leaving = memory_of(rnn), features, []
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
    if gate.against_transforms() or gate.against_layer(rnn):
        return called_sequences(rnn, features, layout.episode_starts, states)
    layer: Any = rnn
    if against_loops(*_all_weights(layer)) is None:
        kernels = kernels_for(features, *(states or ()))
        if kernels is not None:
            return _compiled_sequences(kernels, layer, features, layout, states)
    return memory_of(rnn).sequences(rnn, features, layout, states)


def against_compiled_memory(rnn: Any) -> str | None:
    """Say why a recurrent module is not run over whole windows by the compiled loops."""
    return gate.against_layer(rnn) or against_loops(*_all_weights(rnn))


def _compiled_sequences(
    kernels: ModuleType,
    rnn: Any,
    features: th.Tensor,
    layout: ResetLayout,
    states: LSTMState | None,
) -> tuple[th.Tensor, LSTMState]:
    """Run a layer of torch's over whole windows, compiled."""
    memory = memory_of(rnn)
    if states is None:
        zeros = features.new_zeros(rnn.num_layers, len(features), rnn.hidden_size)
        states = (zeros,) * len(memory.state)
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
        states = _zeros_of(rnn, features)
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


def _zeros_of(rnn: Any, features: th.Tensor) -> LSTMState:
    """Return the state of a module of torch's kind that remembers nothing."""
    sizes = (rnn.num_layers, len(features), rnn.hidden_size)
    n_parts = 1 if isinstance(rnn, (nn.GRU, nn.RNN)) else 2
    return (features.new_zeros(sizes),) * n_parts


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

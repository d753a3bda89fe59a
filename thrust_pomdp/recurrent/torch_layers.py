"""Torch's own recurrent layers: LSTM, GRU and plain RNN, stepped and run over windows.

Each is described once, in :data:`TORCH_LAYERS`: the parts of its state, its step and its windows by
torch's operations, and the compiled loops that stand in for them where the gate allows it.

Axes: windows ``[n_seq, n_steps, ...]``, parts of a state ``[n_layers, n_seq, hidden]``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import torch as th
from torch import nn

from thrust_pomdp.recurrent.compiled_memory import (
    CompiledCell,
    GRURows,
    LSTMRows,
    RNNRows,
    gru_panels,
    layer_panels,
)
from thrust_pomdp.recurrent.large_steps import large_step
from thrust_pomdp.recurrent.sequences import (
    LSTMState,
    ResetLayout,
    layer_weights,
    lstm_extended_rows,
    zero_states,
)


class TorchLayer(ABC):
    """What is to be known of a class of torch's recurrent layers.

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


class _LSTM(TorchLayer):
    n_gates = 4
    state = ("hidden", "cell")

    def step(self, rnn: nn.LSTM, layer: int, features: th.Tensor, state: LSTMState) -> LSTMState:
        weights = layer_weights(rnn, layer)
        large = large_step("LSTM", features, state, weights)
        # The fused cell costs half of an nn.LSTM call on one step.
        return th.lstm_cell(features, state, *weights) if large is None else large

    def compiled_step(
        self, kernels: ModuleType, rnn: nn.LSTM, layer: int, compare: bool = True
    ) -> CompiledCell:
        memory, weights = kernels.memory, layer_weights(rnn, layer)
        return CompiledCell(
            memory.lstm_step,
            partial(layer_panels, kernels, self.n_gates),
            memory.unchanged if compare else None,
            weights,
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


class _HiddenOnly(TorchLayer):
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
            rnn, rows, segments.batch_sizes, entering, all_weights(rnn), rnn.bias,
            rnn.num_layers, rnn.dropout, rnn.training, False,
        )  # fmt: skip
        outputs = output.index_select(0, segments.places).view(n_seq, n_steps, -1)
        return outputs, (hidden.index_select(1, segments.last),)


def all_weights(rnn: Any) -> list[th.Tensor]:
    """Return the weights of all layers, in torch's order."""
    return [weight for layer in range(rnn.num_layers) for weight in layer_weights(rnn, layer)]


class _GRU(_HiddenOnly):
    n_gates = 3

    def step(self, rnn: nn.GRU, layer: int, features: th.Tensor, state: LSTMState) -> LSTMState:
        weights = layer_weights(rnn, layer)
        large = large_step("GRU", features, state, weights)
        return (th.gru_cell(features, *state, *weights),) if large is None else large

    def compiled_step(
        self, kernels: ModuleType, rnn: nn.GRU, layer: int, compare: bool = True
    ) -> CompiledCell:
        memory, weights = kernels.memory, layer_weights(rnn, layer)
        return CompiledCell(
            memory.gru_step,
            partial(gru_panels, kernels),
            memory.unchanged if compare else None,
            weights,
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
        weights = layer_weights(rnn, layer)
        large = large_step(f"RNN_{rnn.nonlinearity.upper()}", features, state, weights)
        cell = th.rnn_relu_cell if rnn.nonlinearity == "relu" else th.rnn_tanh_cell
        return (cell(features, *state, *weights),) if large is None else large

    def compiled_step(
        self, kernels: ModuleType, rnn: nn.RNN, layer: int, compare: bool = True
    ) -> CompiledCell:
        relu, memory = rnn.nonlinearity == "relu", kernels.memory

        def lay_out(*weights: th.Tensor) -> tuple[Any, ...]:
            return (*layer_panels(kernels, 1, *weights), relu)

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
TORCH_LAYERS: dict[type[nn.Module], TorchLayer] = {
    nn.LSTM: _LSTM(),
    nn.GRU: _GRU(),
    nn.RNN: _RNN(),
}


def torch_layer(rnn: nn.Module) -> TorchLayer:
    """Return what is to be known of a layer of torch's."""
    return TORCH_LAYERS[type(rnn)]

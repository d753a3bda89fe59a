"""The layers that the laws of memory are tried on, and what each of them computes, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch as th
from hypothesis import assume
from memories import LastFrames, OwnGRU, OwnLSTM
from torch import nn

from thrust_pomdp.recurrent import LRU, Memory, MinGRU
from thrust_pomdp.recurrent.sequences import layer_weights

State = tuple[th.Tensor, ...]


def _own(cls: type[Memory]) -> Callable[..., Memory]:
    return lambda *sizes, num_layers, bias: cls(*sizes, num_layers)


def _normalised(cls: type[Memory]) -> Callable[..., Memory]:
    """Return what makes one layer where too few units are normalised to tell rounding apart."""
    return lambda *sizes, num_layers, bias: cls(*sizes, num_layers if sizes[1] > 3 else 1)


#: How layers are made: sizes and options -> module. A class of one's own is added here.
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN": nn.RNN,
    "RNN relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
    "OwnLSTM": _own(OwnLSTM),
    "OwnGRU": _own(OwnGRU),
    "MinGRU": _normalised(MinGRU),
    "LRU": _normalised(LRU),
    "LastFrames": lambda *sizes, num_layers, bias: LastFrames(*sizes),
}


def _gates(x: th.Tensor, weight: th.Tensor, biases: tuple[th.Tensor, ...]) -> th.Tensor:
    gates = x @ weight.T
    return gates + biases[0] if biases else gates


def lstm_cell(x: th.Tensor, state: State, weights: tuple[th.Tensor, ...]) -> State:
    hidden, cell = state
    gates = _gates(x, weights[0], weights[2:3]) + _gates(hidden, weights[1], weights[3:4])
    enter, forget, new, out = gates.chunk(4, dim=1)
    cell = th.sigmoid(forget) * cell + th.sigmoid(enter) * th.tanh(new)
    return th.sigmoid(out) * th.tanh(cell), cell


def gru_cell(x: th.Tensor, state: State, weights: tuple[th.Tensor, ...]) -> State:
    (hidden,) = state
    of_input = _gates(x, weights[0], weights[2:3]).chunk(3, dim=1)
    of_hidden = _gates(hidden, weights[1], weights[3:4]).chunk(3, dim=1)
    reset, update = (th.sigmoid(of_input[gate] + of_hidden[gate]) for gate in (0, 1))
    new = th.tanh(of_input[2] + reset * of_hidden[2])
    return ((1 - update) * new + update * hidden,)


#: A number nearer to 0 than this may round to the other side of it, where a relu's gradient is
#: another one: such cases say nothing.
KINK = 1e-5


def relu(x: th.Tensor) -> th.Tensor:
    assume(not ((x != 0) & (x.abs() < KINK)).any())
    return th.relu(x)


def rnn_cell(function: Callable[[th.Tensor], th.Tensor]) -> Any:
    def cell(x: th.Tensor, state: State, weights: tuple[th.Tensor, ...]) -> State:
        of_hidden = _gates(state[0], weights[1], weights[3:4])
        return (function(_gates(x, weights[0], weights[2:3]) + of_hidden),)

    return cell


#: What one step of one layer is. A layer that is not here is compared with itself, step by step.
CELLS: dict[str, Any] = {
    "LSTM": lstm_cell,
    "GRU": gru_cell,
    "RNN": rnn_cell(th.tanh),
    "RNN relu": rnn_cell(relu),
}
N_PARTS = {"LSTM": 2, "GRU": 1, "RNN": 1, "RNN relu": 1}


def state_parts(kind: str, rnn: Any) -> list[tuple[tuple[int, ...], th.dtype | None]]:
    """Return shape and dtype of each part of the state of one env and one layer."""
    if isinstance(rnn, Memory):
        return [(part.shape, part.dtype) for part in rnn.state_parts()]
    return [((rnn.hidden_size,), None)] * N_PARTS[kind]


def definition(
    kind: str, rnn: Any, features: th.Tensor, starts: th.Tensor, states: State
) -> tuple[th.Tensor, State]:
    """Run a layer of torch's as its formula has it, state zeroed at each start.

    :param rnn: its weights are read, whatever their dtype; gradients reach them
    :param features: ``[n_seq, n_steps, features]``, float64
    :param starts: ``[n_seq, n_steps]``, bool
    :param states: parts ``[n_layers, n_seq, hidden]``, float64
    """
    weights = [
        tuple(part.double() for part in layer_weights(rnn, layer))
        for layer in range(rnn.num_layers)
    ]
    entering = [tuple(part[layer] for part in states) for layer in range(rnn.num_layers)]
    outputs = []
    for step in range(features.shape[1]):
        begins = starts[:, step, None]
        x = features[:, step]
        for layer in range(rnn.num_layers):
            kept = tuple(part.masked_fill(begins, 0.0) for part in entering[layer])
            entering[layer] = CELLS[kind](x, kept, weights[layer])
            x = entering[layer][0]
        outputs.append(x)
    leaving = tuple(th.stack(parts) for parts in zip(*entering, strict=True))
    return th.stack(outputs, dim=1), leaving

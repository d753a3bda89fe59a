"""Run an LSTM over whole windows in which episodes end: exact, and one dense call per layer.

This is what :mod:`thrust_pomdp.recurrent.memory` does where the compiled loops cannot work.

A window of one environment holds several episodes, so the memory must become zero in the middle of
the sequence. Calling the LSTM step by step and zeroing the state is right and slow. Here every
row gets one extra *reset step* before each episode start, and the whole row goes through one dense
call (one fused oneDNN or cuDNN node)::

    steps of the window        a0 a1 a2 | b0 b1 | c0          (| marks an episode start)
    extended row               a0 a1 a2 R b0 b1 R c0 H H      (length rounded up, H holds the state)

A reset step is a step of the same LSTM whose only non-zero input is an extra column with a large
negative weight on the input, forget and output gates. Their sigmoids are then exactly 0, so that
``c = 0 * c + 0 * g`` and ``h = 0 * tanh(c)`` are exactly 0 and so is every gradient that passes
through the step: what a loop with state zeroing computes, bit for bit. A *hold step* closes the
input gate and opens the forget gate in the same way (``c = 1 * c + 0 * g``), so that shorter rows
carry their last cell state to the end unchanged.

The weight is chosen by the layer's own weights, large enough for whatever they add: a forget bias
of 1e6 is reset too. Weights beyond 1e37 (float32) make it infinite, and all outputs NaN. Features
that are not finite spoil their row up to the window's end, not the episode's: 0 * NaN is NaN.

Axes: windows ``[n_seq, n_steps, ...]``, recurrent states ``[n_layers, n_seq, hidden]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch as th
from numpy.typing import NDArray
from torch import nn

from thrust_pomdp.gate import weight_names
from thrust_pomdp.recurrent.compiled import load_kernels
from thrust_pomdp.recurrent.segments import Segments

#: The parts of a state: hidden and cell state of an LSTM, the hidden state alone of a GRU or a
#: plain RNN, each ``[n_layers, n_seq, hidden]``; what a memory of one's own says, ``[n_layers,
#: n_seq, ...]``.
LSTMState = tuple[th.Tensor, ...]

#: sigmoid(-1e4) is exactly 0 and sigmoid(1e4) exactly 1, in float32 and float64.
_SATURATE = 1e4

#: Every new sequence length costs oneDNN the construction of a primitive: keep lengths few.
_LENGTH_MULTIPLE = 8


class RNNStates(NamedTuple):
    """Recurrent states of actor and critic, as ``sb3_contrib``'s class of that name.

    :param pi: the actor's, its parts ``[n_layers, n_envs, ...]``
    :param vf: the critic's; the actor's again where the critic has no memory of its own
    """

    pi: LSTMState
    vf: LSTMState


class _ExtendedRows(NamedTuple):
    """Where the steps of each window lie in its extended row, and which extended steps are flagged.

    :param steps: position of each step in its row, ``[n_seq, n_steps]``, int64
    :param flat_steps: the same in the extended rows laid out time-major and flattened, ``[n_seq *
        n_steps]``: ``steps * n_seq + row``
    :param flags: input columns of the extended rows, ``[length, n_seq, 2]``, float32: 1 in column 0
        at reset steps, 1 in column 1 at hold steps, else 0
    """

    steps: th.Tensor
    flat_steps: th.Tensor
    flags: th.Tensor

    @classmethod
    def of(cls, starts: NDArray[np.bool_], device: th.device | str) -> _ExtendedRows:
        n_seq, n_steps = starts.shape
        resets = starts.copy()
        resets[:, 0] = False  # the initial state is zeroed instead
        steps = np.arange(n_steps) + np.cumsum(resets, axis=1)
        length = int(steps[:, -1].max()) + 1
        if length > n_steps:
            length += -length % _LENGTH_MULTIPLE
        flags = np.zeros((length, n_seq, 2), dtype=np.float32)
        rows, columns = np.nonzero(resets)
        flags[steps[rows, columns] - 1, rows, 0] = 1.0
        flags[:, :, 1] = np.arange(length)[:, None] > steps[:, -1]
        flat_steps = (steps * n_seq + np.arange(n_seq)[:, None]).reshape(-1)
        return cls(*(th.from_numpy(part).to(device) for part in (steps, flat_steps, flags)))

    def select(self, rows: th.Tensor) -> _ExtendedRows:
        steps = self.steps.index_select(0, rows)
        return _ExtendedRows(steps, _flatten(steps), self.flags.index_select(1, rows))

    def split(self, sizes: Sequence[int]) -> list[_ExtendedRows]:
        parts, start = [], 0
        for size in sizes:
            rows = slice(start, start + size)
            steps = self.steps[rows]
            parts.append(_ExtendedRows(steps, _flatten(steps), self.flags[:, rows]))
            start += size
        return parts


class ResetLayout:
    """Where episodes start in a set of windows, as the sequence layer wants to know it.

    The compiled loops read the flags as they are. Without them the layer works on extended rows;
    these are laid out on the host, once per window, and live on the device of the network, so that
    nothing needs to be read back while it runs.

    :param episode_starts: ``[n_seq, n_steps]``, bool
    :param extended: the extended rows, if they are known already
    """

    def __init__(self, episode_starts: th.Tensor, extended: _ExtendedRows | None = None) -> None:
        self.episode_starts = episode_starts
        self._extended = extended
        self._segments: Segments | None = None

    @classmethod
    def from_episode_starts(
        cls, episode_starts: NDArray[np.generic] | th.Tensor, device: th.device | str = "cpu"
    ) -> ResetLayout:
        """Lay out the rows of one or several windows.

        :param episode_starts: ``[n_seq, n_steps]``, non-zero where an episode starts
        :param device: where the network runs
        """
        if isinstance(episode_starts, th.Tensor):
            episode_starts = episode_starts.detach().cpu().numpy()
        starts = np.asarray(episode_starts) != 0
        if th.device(device).type == "cpu" and load_kernels() is not None:
            return cls(th.from_numpy(starts))
        return cls(th.from_numpy(starts).to(device), _ExtendedRows.of(starts, device))

    @property
    def extended(self) -> _ExtendedRows:
        """The extended rows."""
        if self._extended is None:  # on the CPU, but not for the compiled loops
            self._extended = _ExtendedRows.of(self.episode_starts.numpy(), "cpu")
        return self._extended

    @property
    def segments(self) -> Segments:
        """The windows cut at their episode starts."""
        if self._segments is None:
            starts = self.episode_starts
            self._segments = Segments.of(starts.cpu().numpy(), starts.device)
        return self._segments

    def select(self, rows: th.Tensor) -> ResetLayout:
        """Return the layout of some rows, ``rows`` being their indices, int64."""
        extended = None if self._extended is None else self._extended.select(rows)
        return ResetLayout(self.episode_starts.index_select(0, rows), extended)

    def split(self, sizes: Sequence[int]) -> list[ResetLayout]:
        """Split into layouts of so many rows each."""
        starts = th.split(self.episode_starts, list(sizes))
        if self._extended is None:
            return [ResetLayout(part) for part in starts]
        return [
            ResetLayout(*parts) for parts in zip(starts, self._extended.split(sizes), strict=True)
        ]


def _flatten(steps: th.Tensor) -> th.Tensor:
    """Index steps in extended rows laid out time-major and flattened."""
    rows = th.arange(len(steps), device=steps.device)
    return (steps * len(steps) + rows[:, None]).flatten()


def zero_states(states: LSTMState, where: th.Tensor) -> LSTMState:
    """Return the states with the rows named by ``where`` (``[n_seq]``, bool) set to zero."""
    return tuple(part.masked_fill(rows_of_state(where, part), 0) for part in states)


def rows_of_state(rows: th.Tensor, part: th.Tensor) -> th.Tensor:
    """Bring what is told of each environment, ``[n_seq]``, to the axes of a part of the state.

    :param part: ``[n_layers, n_seq, ...]``
    """
    return rows.view(1, -1, *(1,) * (part.ndim - 2))


def lstm_extended_rows(
    lstm: nn.LSTM, features: th.Tensor, layout: ResetLayout, states: LSTMState | None
) -> tuple[th.Tensor, LSTMState]:
    """Run the LSTM over whole windows, by one dense call of torch's a layer.

    :param lstm: unidirectional, without projections, any number of layers
    :param features: ``[n_seq, n_steps, features]``
    :param layout: the rows' episode starts
    :param states: the states that enter the first step, each ``[n_layers, n_seq, hidden]``; zeros
        when None
    :return: the top layer's outputs ``[n_seq, n_steps, hidden]`` and the states after the last step
    """
    hiddens, cells = _run_layers(lstm, features, layout, states)
    outputs = hiddens[-1].index_select(0, layout.extended.flat_steps).view(*features.shape[:2], -1)
    # Hold steps keep the cell state, not the output: that one is read at the last real step.
    last = layout.extended.flat_steps.view(features.shape[:2])[:, -1]
    return outputs, (th.stack([h.index_select(0, last) for h in hiddens]), th.cat(cells))


def _run_layers(
    lstm: nn.LSTM, features: th.Tensor, layout: ResetLayout, states: LSTMState | None
) -> tuple[list[th.Tensor], list[th.Tensor]]:
    """Run all layers over the extended rows.

    :return: each layer's outputs ``[length * n_seq, hidden]``, time-major, and its last cell state
        ``[1, n_seq, hidden]``
    """
    n_seq, n_steps, n_features = features.shape
    extended = layout.extended
    length = len(extended.flags)
    if states is None:
        zeros = features.new_zeros(lstm.num_layers, n_seq, lstm.hidden_size)
        states = (zeros, zeros)
    else:
        states = zero_states(states, layout.episode_starts[:, 0])
    flags = extended.flags.to(features.dtype)
    signs = _flag_columns(lstm.hidden_size, features.dtype, features.device)

    # All inputs of a flagged step other than its flag must be exactly zero. Above the first layer
    # that needs nothing more: outputs of reset steps are zero, what a hold step adds is ignored.
    rows = features.reshape(n_seq * n_steps, n_features)
    empty = features.new_zeros(length * n_seq, n_features)
    output = empty.index_copy(0, extended.flat_steps, rows)
    hiddens, cells = [], []
    for layer in range(lstm.num_layers):
        if layer > 0:
            output = dropout(lstm, output)
        weights = layer_weights(lstm, layer)
        columns = signs * _saturating_weight(lstm, weights, layer)
        output, _, cell = th.lstm(
            th.cat((output.view(length, n_seq, -1), flags), dim=2),
            (states[0][layer : layer + 1], states[1][layer : layer + 1]),
            (th.cat((weights[0], columns), dim=1), *weights[1:]),
            lstm.bias,
            1,  # one layer at a time: each needs the flag columns
            0.0,
            lstm.training,
            False,
            False,
        )
        output = output.view(length * n_seq, -1)
        hiddens.append(output)
        cells.append(cell)
    return hiddens, cells


def layer_weights(rnn: nn.RNNBase, layer: int) -> tuple[Any, ...]:
    """Return one layer's weights: input, recurrent and, unless ``bias=False``, the two biases.

    From where they are declared: the list that torch keeps of them, ``_flat_weights``, is brought
    up to date by ``forward`` alone.
    """
    parameters = rnn._parameters
    return tuple(parameters[name] for name in weight_names(layer, rnn.bias))


def dropout(rnn: nn.RNNBase, output: th.Tensor) -> th.Tensor:
    """Apply the dropout between layers, in training mode."""
    if rnn.dropout == 0.0:
        return output
    return nn.functional.dropout(output, rnn.dropout, rnn.training)


@lru_cache(maxsize=16)
def _flag_columns(hidden_size: int, dtype: th.dtype, device: th.device) -> th.Tensor:
    """Return the signs of the weights of the reset and hold columns, ``[4 * hidden, 2]``.

    torch's gates come in the order input, forget, cell, output.
    """
    columns = th.zeros(4, hidden_size, 2, dtype=dtype, device=device)
    columns[[0, 1, 3], :, 0] = -1
    columns[0, :, 1] = -1
    columns[1, :, 1] = 1
    return columns.view(4 * hidden_size, 2)


@th.no_grad()
def _saturating_weight(lstm: nn.LSTM, weights: tuple[th.Tensor, ...], layer: int) -> th.Tensor:
    """Return what saturates a gate whatever biases and states add to it, a number on the device.

    States are below 1, and so are the inputs of a hold step above the first layer, before dropout
    scales them; all other inputs of flagged steps are 0. What is added is taken twice, so that no
    rounding to its last digits matters.
    """
    inputs, recurrent, *biases = weights
    added = recurrent.abs().sum(dim=1)
    for bias in biases:
        added += bias.abs()
    if layer > 0 and lstm.dropout < 1.0:
        added += inputs.abs().sum(dim=1) / (1.0 - lstm.dropout)
    return _SATURATE + 2.0 * added.max()


def check_windows(
    obs: th.Tensor | dict[str, th.Tensor],
    n_envs: int,
    n_steps: int,
    initial_state: RNNStates | None,
    episode_starts: th.Tensor | ResetLayout,
) -> None:
    """Refuse parts of whole windows whose sizes do not fit together.

    :raises ValueError: naming the part, the size it must have and the size it has
    """
    starts = (
        episode_starts if isinstance(episode_starts, th.Tensor) else episode_starts.episode_starts
    )
    sizes = {
        "obs": next(iter(obs.values())).shape[:2] if isinstance(obs, dict) else obs.shape[:2],
        "episode_starts": starts.shape,
    }
    for name, shape in sizes.items():
        if tuple(shape) != (n_envs, n_steps):
            raise ValueError(
                f"{name} must be of shape [n_envs, n_steps, ...] like actions, ({n_envs}, "
                f"{n_steps}), got {tuple(shape)}"
            )
    if initial_state is not None and initial_state.pi[0].shape[1] != n_envs:
        raise ValueError(
            f"initial_state must be of shape [n_layers, n_envs={n_envs}, hidden], got "
            f"{tuple(initial_state.pi[0].shape)}"
        )


def as_windows(
    values: th.Tensor, log_prob: th.Tensor, entropy: th.Tensor | None, n_envs: int
) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
    """Turn results of ``n_envs * n_steps`` rows into ``[n_envs, n_steps]``."""
    return (
        values.view(n_envs, -1),
        log_prob.view(n_envs, -1),
        None if entropy is None else entropy.view(n_envs, -1),
    )

"""The compiled loops of recurrent layers as torch operations: whole windows, and one step.

There is one operation a class of layers, and each takes and returns the layer's state as torch
does: hidden and cell state of an LSTM, the hidden state alone of a GRU or a plain RNN.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch as th

from thrust_pomdp.recurrent.compiled import check_shapes, first_derivative, over_rows


class LSTMRows(th.autograd.Function):
    """One LSTM layer over whole windows, its state zeroed at every episode start.

    The products with the inputs are one dense operation over all steps; what is left for each step
    is the product with the recurrent weights, the gates and, backward, their gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kernels: ModuleType,
        features: th.Tensor,
        starts: th.Tensor,
        h: th.Tensor,
        c: th.Tensor,
        w_ih: th.Tensor,
        w_hh: th.Tensor,
        *biases: th.Tensor,
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Run the layer.

        :param kernels: the compiled loops
        :param features: ``[n_seq, n_steps, features]``
        :param starts: ``[n_seq, n_steps]``, bool
        :param h: the hidden state that enters step 0, ``[n_seq, hidden]``
        :param c: the cell state likewise
        :param w_ih: torch's ``weight_ih``; the others follow in torch's order
        :return: outputs ``[n_seq, n_steps, hidden]``, last hidden and last cell state
        :raises ValueError: if the sizes do not fit together
        """
        n_seq, n_steps, size = _sizes(features, starts, w_ih, w_hh, hidden_state=h, cell_state=c)
        inputs = _inputs_of(features, h)
        cells, shown, hidden = (features.new_empty(n_seq, n_steps, size) for _ in range(3))
        cells[:, 0] = c
        cell = features.new_empty(n_seq, size)
        gates = features.new_empty(n_seq, n_steps, 4 * size)
        rows = (inputs, starts, cells, gates, shown, hidden, cell)
        over_rows(
            kernels.memory.lstm_forward,
            transposed_weights(w_ih, w_hh, *biases),
            tuple(part.numpy() for part in rows),
            work=gates.numel() * inputs.shape[2],
        )
        ctx.kernels, ctx.with_bias = kernels, len(biases) > 0
        ctx.save_for_backward(inputs, starts, gates, shown, cells, w_ih, w_hh)
        return hidden, hidden[:, -1].clone(), cell

    @staticmethod
    @first_derivative
    def backward(
        ctx: Any, grad_outputs: th.Tensor, grad_h: th.Tensor, grad_c: th.Tensor
    ) -> tuple[th.Tensor | None, ...]:
        """Go back through the layer."""
        inputs, starts, gates, shown, kept, w_ih, w_hh = ctx.saved_tensors
        grad_h, grad_c = grad_h.clone(), grad_c.clone()
        grad_gates = th.empty_like(gates)
        outputs = grad_outputs.contiguous()
        rows = (gates, shown, kept, starts, outputs, grad_h, grad_c, grad_gates)
        over_rows(
            ctx.kernels.memory.lstm_backward,
            (w_hh.detach().numpy(),),
            tuple(part.numpy() for part in rows),
            work=gates.numel() * w_hh.shape[1],
        )
        return (
            None,
            grad_gates @ w_ih if ctx.needs_input_grad[1] else None,
            None,
            grad_h,
            grad_c,
            *_weight_gradients(grad_gates, inputs, w_ih.shape[1], ctx.with_bias),
        )


class GRURows(th.autograd.Function):
    """One GRU layer over whole windows, its state zeroed at every episode start."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: ModuleType,
        features: th.Tensor,
        starts: th.Tensor,
        h: th.Tensor,
        w_ih: th.Tensor,
        w_hh: th.Tensor,
        *biases: th.Tensor,
    ) -> tuple[th.Tensor, th.Tensor]:
        """Run the layer.

        :param kernels: the compiled loops
        :param features: ``[n_seq, n_steps, features]``
        :param starts: ``[n_seq, n_steps]``, bool
        :param h: the hidden state that enters step 0, ``[n_seq, hidden]``
        :param w_ih: torch's ``weight_ih``; the others follow in torch's order
        :return: outputs ``[n_seq, n_steps, hidden]`` and the last hidden state
        :raises ValueError: if the sizes do not fit together
        """
        n_seq, n_steps, size = _sizes(features, starts, w_ih, w_hh, hidden_state=h)
        features = features.contiguous()
        entering, kept, hidden = (features.new_empty(n_seq, n_steps, size) for _ in range(3))
        entering[:, 0] = h
        gates = features.new_empty(n_seq, n_steps, 4 * size)
        over_rows(
            kernels.memory.gru_forward,
            gru_weights(w_ih, w_hh, *biases),
            tuple(part.numpy() for part in (features, starts, entering, gates, kept, hidden)),
            work=3 * hidden.numel() * (features.shape[2] + size),
        )
        ctx.kernels, ctx.with_bias = kernels, len(biases) > 0
        ctx.save_for_backward(features, starts, gates, kept, entering, w_ih, w_hh)
        return hidden, hidden[:, -1].clone()

    @staticmethod
    @first_derivative
    def backward(
        ctx: Any, grad_outputs: th.Tensor, grad_h: th.Tensor
    ) -> tuple[th.Tensor | None, ...]:
        """Go back through the layer."""
        features, starts, gates, kept, entering, w_ih, w_hh = ctx.saved_tensors
        size, grad_h, grad_gates = entering.shape[2], grad_h.clone(), th.empty_like(gates)
        rows = (gates, kept, starts, grad_outputs.contiguous(), grad_h, grad_gates)
        over_rows(
            ctx.kernels.memory.gru_backward,
            (w_hh.detach().numpy(),),
            tuple(part.numpy() for part in rows),
            work=3 * entering.numel() * size,
        )
        # Back from the loops' order of blocks (new, reset, update, recurrent part of new).
        flat = grad_gates.flatten(end_dim=1)
        grad_ih, grad_hh = th.cat((flat[:, size:-size], flat[:, :size]), dim=1), flat[:, size:]
        return (
            None,
            (grad_ih @ w_ih).view_as(features) if ctx.needs_input_grad[1] else None,
            None,
            grad_h,
            grad_ih.t() @ features.flatten(end_dim=1),
            grad_hh.t() @ entering.flatten(end_dim=1),
            *((grad_ih.sum(dim=0), grad_hh.sum(dim=0)) if ctx.with_bias else ()),
        )


class RNNRows(th.autograd.Function):
    """One plain RNN layer over whole windows, its state zeroed at every episode start."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: ModuleType,
        relu: bool,
        features: th.Tensor,
        starts: th.Tensor,
        h: th.Tensor,
        w_ih: th.Tensor,
        w_hh: th.Tensor,
        *biases: th.Tensor,
    ) -> tuple[th.Tensor, th.Tensor]:
        """Run the layer; arguments as for :class:`GRURows`.

        :param relu: the nonlinearity, else it is tanh
        """
        n_seq, n_steps, size = _sizes(features, starts, w_ih, w_hh, hidden_state=h)
        inputs = _inputs_of(features, h)
        slopes, hidden = (features.new_empty(n_seq, n_steps, size) for _ in range(2))
        over_rows(
            kernels.memory.rnn_forward,
            (*transposed_weights(w_ih, w_hh, *biases), relu),
            tuple(part.numpy() for part in (inputs, starts, slopes, hidden)),
            work=hidden.numel() * inputs.shape[2],
        )
        ctx.kernels, ctx.with_bias = kernels, len(biases) > 0
        ctx.save_for_backward(inputs, starts, slopes, w_ih, w_hh)
        return hidden, hidden[:, -1].clone()

    @staticmethod
    @first_derivative
    def backward(
        ctx: Any, grad_outputs: th.Tensor, grad_h: th.Tensor
    ) -> tuple[th.Tensor | None, ...]:
        """Go back through the layer."""
        inputs, starts, slopes, w_ih, w_hh = ctx.saved_tensors
        grad_h, grad_sums = grad_h.clone(), th.empty_like(slopes)
        rows = (slopes, starts, grad_outputs.contiguous(), grad_h, grad_sums)
        over_rows(
            ctx.kernels.memory.rnn_backward,
            (w_hh.detach().numpy(),),
            tuple(part.numpy() for part in rows),
            work=slopes.numel() * slopes.shape[2],
        )
        return (
            None,
            None,
            grad_sums @ w_ih if ctx.needs_input_grad[2] else None,
            None,
            grad_h,
            *_weight_gradients(grad_sums, inputs, w_ih.shape[1], ctx.with_bias),
        )


def _sizes(
    features: th.Tensor,
    starts: th.Tensor,
    w_ih: th.Tensor,
    w_hh: th.Tensor,
    **states: th.Tensor,
) -> tuple[int, int, int]:
    """Return the numbers of sequences, steps and units.

    :raises ValueError: if the sizes do not fit together
    """
    n_seq, n_steps, _ = features.shape
    size = w_hh.shape[1]
    check_shapes(
        features=(features, (n_seq, n_steps, w_ih.shape[1])),
        episode_starts=(starts, (n_seq, n_steps)),
        **{name: (part, (n_seq, size)) for name, part in states.items()},
    )
    return n_seq, n_steps, size


def _inputs_of(features: th.Tensor, h: th.Tensor) -> th.Tensor:
    """Lay out what enters each step: the features, then the hidden state, which of step 0 is known.

    :return: ``[n_seq, n_steps, features + hidden]``
    """
    n_seq, n_steps, n_features = features.shape
    inputs = features.new_empty(n_seq, n_steps, n_features + h.shape[1])
    inputs[..., :n_features] = features
    inputs[:, 0, n_features:] = h
    return inputs


def _weight_gradients(
    grad: th.Tensor, inputs: th.Tensor, n_features: int, with_bias: bool
) -> tuple[th.Tensor, ...]:
    """Return the gradients of one layer's weights, in torch's order.

    :param grad: of what is activated, ``[n_seq, n_steps, gates * hidden]``
    :param inputs: what entered each step, as :func:`_inputs_of` laid it out
    :param n_features: how many of the inputs are features
    :param with_bias: whether the layer has biases
    """
    flat = grad.flatten(end_dim=1)
    weights = flat.t() @ inputs.flatten(end_dim=1)
    biases = (flat.sum(dim=0),) * 2 if with_bias else ()
    return weights[:, :n_features], weights[:, n_features:], *biases


def transposed_weights(w_ih: th.Tensor, w_hh: th.Tensor, *biases: th.Tensor) -> tuple[Any, Any]:
    """Return one layer's weights as the loops want them: ``[features + hidden, gates * hidden]``.

    :return: weights and bias, NumPy arrays
    """
    with th.no_grad():
        weights = th.cat((w_ih, w_hh), dim=1).t().contiguous()
        bias = biases[0] + biases[1] if biases else weights.new_zeros(len(w_hh))
        return weights.numpy(), bias.numpy()


def gru_weights(w_ih: th.Tensor, w_hh: th.Tensor, *biases: th.Tensor) -> tuple[Any, Any, Any]:
    """Return a GRU layer's weights as the loops want them.

    torch's gates come in the order reset, update, new; the loops' blocks in the order new, reset,
    update, recurrent part of new.

    :return: ``[features, 3 * hidden]``, ``[hidden, 3 * hidden]`` and ``[4 * hidden]``, NumPy arrays
    """
    with th.no_grad():
        reset_ih, update_ih, new_ih = w_ih.chunk(3)
        bias = w_ih.new_zeros(4, w_hh.shape[1])
        if biases:
            (reset, update, new), recurrent = (part.view(3, -1) for part in biases)
            bias[0], bias[1], bias[2], bias[3] = new, reset, update, recurrent[2]
            bias[1:3] += recurrent[:2]
        return (
            th.cat((new_ih, reset_ih, update_ih)).t().contiguous().numpy(),
            w_hh.t().contiguous().numpy(),
            bias.flatten().numpy(),
        )


class CompiledCell:
    """One recurrent layer's step, with its weights laid out for the loops.

    What is laid out is a copy, and weights may change between any two steps in ways that torch does
    not count (a fused optimiser, ``weight.data``, NumPy): their bytes are compared at each step.

    :param step: the compiled loop; it takes the weights, the features, the state's parts, where
        episodes start, and the new state's parts to fill
    :param lay_out: turns torch's weights into the loop's
    :param unchanged: the compiled loop that compares them; None where nobody can change them while
        this is in use
    :param weights: ``weight_ih``, ``weight_hh`` and, unless there are none, the two biases; they
        must keep their memory
    """

    def __init__(
        self,
        step: Callable[..., None],
        lay_out: Callable[..., tuple[Any, ...]],
        unchanged: Callable[..., bool] | None,
        weights: tuple[th.Tensor, ...],
    ) -> None:
        self._step = step
        self._lay_out = lay_out
        self._unchanged = unchanged
        self._weights = weights
        # Bit patterns, since a NaN is not equal to itself.
        self._seen = tuple(w.detach().numpy().reshape(-1).view(np.uint32) for w in weights)
        self._n_features, self._size = weights[0].shape[1], weights[1].shape[1]
        self._take()

    def _take(self) -> None:
        self._kept = np.concatenate(self._seen)
        self._arrays = self._lay_out(*self._weights)

    def __call__(
        self, features: th.Tensor, states: tuple[th.Tensor, ...], starts: th.Tensor
    ) -> tuple[th.Tensor, tuple[th.Tensor, ...]]:
        """Advance by one step, without a gradient.

        :param features: ``[n_envs, features]``, float32
        :param states: the state before the step, its parts ``[1, n_envs, hidden]``
        :param starts: ``[n_envs]``, bool; memory is zeroed first where true
        :return: the output ``[n_envs, hidden]`` and the state after the step
        :raises ValueError: if the sizes do not fit together
        """
        if self._unchanged is not None and not self._unchanged(self._seen, self._kept):
            self._take()
        inputs, flags = features.contiguous().numpy(), starts.contiguous().numpy()
        parts = [part.numpy() for part in states]
        n_envs = len(inputs)
        self._check(n_envs, inputs, flags, parts)
        new = [np.empty_like(part) for part in parts]
        self._step(*self._arrays, inputs, *(p[0] for p in parts), flags, *(p[0] for p in new))
        new_states = tuple(th.from_numpy(part) for part in new)
        return new_states[0][0], new_states

    def _check(self, n_envs: int, inputs: Any, flags: Any, parts: list[Any]) -> None:
        shape = (1, n_envs, self._size)
        if (
            inputs.shape == (n_envs, self._n_features)
            and flags.shape == (n_envs,)
            and all(part.shape == shape for part in parts)
        ):
            return  # naming all the parts takes longer than the step
        names = zip(("hidden_state", "cell_state"), parts, strict=False)
        check_shapes(
            features=(inputs, (n_envs, self._n_features)),
            episode_starts=(flags, (n_envs,)),
            **{name: (part, shape) for name, part in names},
        )

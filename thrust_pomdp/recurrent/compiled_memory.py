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
        width = kernels.padded(size)
        inputs = _inputs_of(features, h, width)
        shown, hidden = (features.new_empty(n_seq, n_steps, width) for _ in range(2))
        cells = features.new_empty(n_seq, n_steps + 1, width)
        cells[:, 0] = _padded(c, width)
        gates = features.new_empty(n_seq, n_steps, 4 * width)
        rows = (inputs, starts, cells, gates, shown, hidden)
        over_rows(
            kernels.memory.lstm_forward,
            layer_panels(kernels, 4, w_ih, w_hh, *biases),
            tuple(part.numpy() for part in rows),
            work=gates.numel() * inputs.shape[2],
        )
        ctx.kernels, ctx.with_bias = kernels, len(biases) > 0
        ctx.save_for_backward(inputs, starts, gates, shown, cells, w_ih, w_hh)
        outputs = hidden[..., :size].contiguous()
        return outputs, outputs[:, -1].clone(), cells[:, -1, :size].clone()

    @staticmethod
    @first_derivative
    def backward(
        ctx: Any, grad_outputs: th.Tensor, grad_h: th.Tensor, grad_c: th.Tensor
    ) -> tuple[th.Tensor | None, ...]:
        """Go back through the layer."""
        inputs, starts, gates, shown, kept, w_ih, w_hh = ctx.saved_tensors
        products, grad_gates = ctx.kernels, th.empty_like(gates)
        size, width = w_hh.shape[1], shown.shape[2]
        grad_h, grad_c, outputs = (_padded(part, width) for part in (grad_h, grad_c, grad_outputs))
        rows = (gates, shown, kept, starts, outputs, grad_h, grad_c, grad_gates)
        over_rows(
            products.memory.lstm_backward,
            (_back_panels(products, w_hh, 4),),
            tuple(part.numpy() for part in rows),
            work=gates.numel() * size,
        )
        return (
            None,
            _times(products, grad_gates, w_ih, 4) if ctx.needs_input_grad[1] else None,
            None,
            grad_h[:, :size],
            grad_c[:, :size],
            *_weight_gradients(products, grad_gates, inputs, w_ih, w_hh, 4, ctx.with_bias),
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
        width = kernels.padded(size)
        entering, kept, hidden = (features.new_empty(n_seq, n_steps, width) for _ in range(3))
        entering[:, 0] = _padded(h, width)
        gates = features.new_empty(n_seq, n_steps, 4 * width)
        over_rows(
            kernels.memory.gru_forward,
            gru_panels(kernels, w_ih, w_hh, *biases),
            tuple(part.numpy() for part in (features, starts, entering, gates, kept, hidden)),
            work=3 * hidden.numel() * (features.shape[2] + size),
        )
        ctx.kernels, ctx.with_bias = kernels, len(biases) > 0
        ctx.save_for_backward(features, starts, gates, kept, entering, w_ih, w_hh)
        outputs = hidden[..., :size].contiguous()
        return outputs, outputs[:, -1].clone()

    @staticmethod
    @first_derivative
    def backward(
        ctx: Any, grad_outputs: th.Tensor, grad_h: th.Tensor
    ) -> tuple[th.Tensor | None, ...]:
        """Go back through the layer."""
        features, starts, gates, kept, entering, w_ih, w_hh = ctx.saved_tensors
        products, grad_gates = ctx.kernels, th.empty_like(gates)
        size, width = w_hh.shape[1], kept.shape[2]
        grad_h, outputs = (_padded(part, width) for part in (grad_h, grad_outputs))
        rows = (gates, kept, starts, outputs, grad_h, grad_gates)
        over_rows(
            products.memory.gru_backward,
            (_back_panels(products, w_hh, 3),),
            tuple(part.numpy() for part in rows),
            work=gates.numel() * size,
        )
        # Blocks are new, reset, update, recurrent part of new; torch's are reset, update, new.
        flat = grad_gates.flatten(end_dim=1)
        entered = flat[:, : 3 * width].roll(-width, dims=1)
        with_bias = ctx.with_bias
        of_x = _weight_gradients(products, entered, features, w_ih, w_ih[:, :0], 3, with_bias)
        of_h = _weight_gradients(
            products, flat[:, width:], entering[..., :size], w_hh, w_hh[:, :0], 3, with_bias
        )
        grad_features = None
        if ctx.needs_input_grad[1]:
            grad_features = _times(products, entered, w_ih, 3).view_as(features)
        return (
            None,
            grad_features,
            None,
            grad_h[:, :size],
            of_x[0],
            of_h[0],
            *((of_x[2], of_h[2]) if with_bias else ()),
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
        width = kernels.padded(size)
        inputs = _inputs_of(features, h, width)
        sums, slopes, hidden = (features.new_empty(n_seq, n_steps, width) for _ in range(3))
        over_rows(
            kernels.memory.rnn_forward,
            (*layer_panels(kernels, 1, w_ih, w_hh, *biases), relu),
            tuple(part.numpy() for part in (inputs, starts, sums, slopes, hidden)),
            work=hidden.numel() * inputs.shape[2],
        )
        ctx.kernels, ctx.with_bias = kernels, len(biases) > 0
        ctx.save_for_backward(inputs, starts, slopes, w_ih, w_hh)
        outputs = hidden[..., :size].contiguous()
        return outputs, outputs[:, -1].clone()

    @staticmethod
    @first_derivative
    def backward(
        ctx: Any, grad_outputs: th.Tensor, grad_h: th.Tensor
    ) -> tuple[th.Tensor | None, ...]:
        """Go back through the layer."""
        inputs, starts, slopes, w_ih, w_hh = ctx.saved_tensors
        products, grad_sums = ctx.kernels, th.empty_like(slopes)
        grad_h, outputs = (_padded(part, slopes.shape[2]) for part in (grad_h, grad_outputs))
        rows = (slopes, starts, outputs, grad_h, grad_sums)
        over_rows(
            products.memory.rnn_backward,
            (_back_panels(products, w_hh, 1),),
            tuple(part.numpy() for part in rows),
            work=slopes.numel() * slopes.shape[2],
        )
        return (
            None,
            None,
            _times(products, grad_sums, w_ih, 1) if ctx.needs_input_grad[2] else None,
            None,
            grad_h[:, : w_hh.shape[1]],
            *_weight_gradients(products, grad_sums, inputs, w_ih, w_hh, 1, ctx.with_bias),
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


def _inputs_of(features: th.Tensor, h: th.Tensor, width: int) -> th.Tensor:
    """Lay out what enters each step: the features, then the hidden state, which of step 0 is known.

    :return: ``[n_seq, n_steps, features + width]``
    """
    n_seq, n_steps, n_features = features.shape
    inputs = features.new_empty(n_seq, n_steps, n_features + width)
    inputs[..., :n_features] = features
    inputs[:, 0, n_features:] = _padded(h, width)
    return inputs


def _padded(rows: th.Tensor, width: int) -> th.Tensor:
    """Copy rows ``[..., size]`` into rows of ``[..., width]``, zero beyond."""
    return th.nn.functional.pad(rows, (0, width - rows.shape[-1])).clone(
        memory_format=th.contiguous_format
    )


def _back_panels(products: ModuleType, weight: th.Tensor, n_blocks: int) -> Any:
    """Pack a weight, ``[n_blocks * hidden, outputs]``, for the way back."""
    array = weight.detach().numpy()
    panels = products.back_panels(array, n_blocks)
    products.pack_back(array, n_blocks, panels)
    return panels


def _times(products: ModuleType, grad: th.Tensor, weight: th.Tensor, n_blocks: int) -> th.Tensor:
    """Multiply gradients in padded blocks by a weight, ``[n_blocks * hidden, outputs]``."""
    flat, n_outputs = grad.flatten(end_dim=-2), weight.shape[1]
    out = grad.new_zeros(len(flat), products.padded(n_outputs))
    panels = _back_panels(products, weight, n_blocks)
    products.add_product(flat.numpy(), panels, 0, out.numpy())
    return out[:, :n_outputs].reshape(*grad.shape[:-1], n_outputs)


def _weight_gradients(
    products: ModuleType,
    grad: th.Tensor,
    inputs: th.Tensor,
    w_ih: th.Tensor,
    w_hh: th.Tensor,
    n_blocks: int,
    with_bias: bool,
) -> tuple[th.Tensor, ...]:
    """Return the gradients of one layer's weights, in torch's order.

    :param grad: of what is activated, in padded blocks, ``[..., n_blocks * width]``
    :param inputs: what entered each step, the features and then the state, ``[..., inputs]``
    :param w_ih: the weights; the second may have no columns
    :param w_hh: likewise
    :param n_blocks: of how many blocks the weights are
    :param with_bias: whether the layer has biases
    """
    flat, n_features = grad.flatten(end_dim=-2).numpy(), w_ih.shape[1]
    rows = inputs.flatten(end_dim=-2)[:, : n_features + w_hh.shape[1]].numpy()
    outer = np.zeros((rows.shape[1], flat.shape[1]), dtype=np.float32)
    products.add_outer(rows, flat, outer)
    grad_ih, grad_hh = th.empty_like(w_ih), th.empty_like(w_hh)
    products.unpack_gradient(outer, n_blocks, 0, grad_ih.numpy())
    products.unpack_gradient(outer, n_blocks, n_features, grad_hh.numpy())
    if not with_bias:
        return grad_ih, grad_hh
    sums = np.zeros((n_blocks, flat.shape[1] // n_blocks), dtype=np.float32)
    products.add_sums(flat, sums.reshape(-1))
    bias = th.from_numpy(sums[:, : w_ih.shape[0] // n_blocks].reshape(-1))
    return grad_ih, grad_hh, bias, bias


def layer_panels(
    products: ModuleType, n_blocks: int, w_ih: th.Tensor, w_hh: th.Tensor, *biases: th.Tensor
) -> tuple[Any, Any]:
    """Return one layer's weights as the loops want them.

    :return: packed weights, whose terms are the features and then the state, and the bias in padded
        blocks, ``[n_blocks * width]``
    """
    n_features, size = w_ih.shape[1], w_hh.shape[1]
    panels = products.panels(n_features + size, n_blocks, size)
    products.pack(w_ih.detach().numpy(), n_blocks, 0, panels)
    products.pack(w_hh.detach().numpy(), n_blocks, n_features, panels)
    bias = np.zeros((n_blocks, products.padded(size)), dtype=np.float32)
    if biases:
        first, second = (part.detach().numpy().reshape(n_blocks, size) for part in biases)
        bias[:, :size] = first + second
    return panels, bias.reshape(-1)


def gru_panels(
    products: ModuleType, w_ih: th.Tensor, w_hh: th.Tensor, *biases: th.Tensor
) -> tuple[Any, Any, Any]:
    """Return a GRU layer's weights as the loops want them.

    torch's gates come in the order reset, update, new; the loops' blocks in the order new, reset,
    update, recurrent part of new.

    :return: packed input weights of the first three blocks, packed recurrent weights of the last
        three, and the bias of all in padded blocks, ``[4 * width]``
    """
    n_features, size = w_ih.shape[1], w_hh.shape[1]
    w_x, w_h = (products.panels(terms, 3, size) for terms in (n_features, size))
    rows = w_ih.detach().numpy()
    products.pack(np.concatenate((rows[2 * size :], rows[: 2 * size])), 3, 0, w_x)
    products.pack(w_hh.detach().numpy(), 3, 0, w_h)
    bias = np.zeros((4, products.padded(size)), dtype=np.float32)
    if biases:
        (reset, update, new), recurrent = (
            part.detach().numpy().reshape(3, size) for part in biases
        )
        bias[:, :size] = new, reset + recurrent[0], update + recurrent[1], recurrent[2]
    return w_x, w_h, bias.reshape(-1)


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

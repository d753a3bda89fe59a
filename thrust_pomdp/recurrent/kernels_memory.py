"""The loops over time of recurrent layers: LSTM, GRU and plain RNN, compiled by Numba.

What they compute is torch's. LSTM gates come in torch's order: input, forget, cell, output.
Products with weights are those of :mod:`thrust_pomdp.recurrent.products`, and so is the order of
additions.

All arrays are contiguous. Units are padded to a multiple of 16, the *width* below: a row of gates
is so many blocks of that width, a row of hidden states is one. Units beyond the layer's own have
weights of zero: their states and gradients are zero.

Going forward leaves, in the place of what a gate was given, how much the state changes with that,
and going back only multiplies. Computed from an activation instead, as torch does it, the slope of
a gate that is nearly open has lost its digits: float32 knows 1 - s to 6e-8 only. Here slopes have
theirs (to 4e-6 of themselves) as far as pre-activations of 34 (tanh) and 69 (sigmoid), and stay
what they are there beyond.
"""

from __future__ import annotations

import numpy as np

from thrust_pomdp.recurrent.functions import sigmoid, tanh
from thrust_pomdp.recurrent.jit import compile_exactly as _compile
from thrust_pomdp.recurrent.products import add_product
from thrust_pomdp.recurrent.vectors import PANEL, address, fma, load, spread, store, where_greater

_f32 = np.float32

#: With more inputs than these the weights no longer stay at hand from step to step: the products
#: with the inputs are taken for all steps at once. The digits are the same.
_MOST_INPUTS = 32

#: Bytes of a vector.
_BYTES = 4 * PANEL


@_compile
def _enter_features(bias, panels, inputs, n_features, gates):  # type: ignore[no-untyped-def]
    """Take the products with the features of all steps at once, if there are many of them.

    :param inputs: ``[n, steps, ...]``, the features first
    :param gates: output, ``[n, steps, ...]``: these products and the biases
    :return: the first term of the inputs that is left for the steps
    """
    if n_features <= _MOST_INPUTS:
        return 0
    for n in range(gates.shape[0]):
        for t in range(gates.shape[1]):
            gates[n, t] = bias
        add_product(inputs[n, :, :n_features], panels, 0, gates[n])
    return n_features


@_compile
def _activate(width, gates, cell, shown, hidden, entering):  # type: ignore[no-untyped-def]
    """Advance one row's state, and put derivatives in the place of what they are by.

    All but the width are addresses; the new cell state follows the old one.
    """
    block = 4 * width
    for j in range(0, block, _BYTES):
        i, f, g, o = gates + j, gates + j + block, gates + j + 2 * block, gates + j + 3 * block
        update, slope_i, _ = sigmoid(load(i))
        forget, slope_f, _ = sigmoid(load(f))
        new, slope_g = tanh(load(g))
        output, slope_o, _ = sigmoid(load(o))
        old = load(cell + j)
        c = fma(forget, old, update * new)
        tanh_c, slope_c = tanh(c)
        h = output * tanh_c
        store(i, slope_i * new)
        store(f, slope_f * old)
        store(g, slope_g * update)
        store(o, slope_o * tanh_c)
        store(cell + j, forget)
        store(cell + j + block, c)
        store(shown + j, slope_c * output)
        store(hidden + j, h)
        store(entering + j, h)


@_compile
def lstm_forward(panels, bias, inputs, starts, cells, gates, shown, hidden):  # type: ignore[no-untyped-def]
    """Run the LSTM over whole windows, its state zeroed at every episode start.

    :param panels: packed weights of four blocks; terms are the features, then the hidden state
    :param bias: ``[4 * width]``
    :param inputs: what enters each step, ``[n, steps, features + width]``: the features, then the
        hidden state; this one is given for step 0 and output for the others
    :param starts: ``[n, steps]``, bool
    :param cells: ``[n, steps + 1, width]``; given is the cell state that enters step 0. Output are
        the derivatives of each new cell state by the old one, and last the last cell state
    :param gates: output, derivatives by what each gate was given: the new cell state's, the output
        gate's that of the new hidden state, ``[n, steps, 4 * width]``
    :param shown: output, derivatives of the new hidden state by the new cell state, ``[n, steps,
        width]``
    :param hidden: output, ``[n, steps, width]``
    """
    (n_rows, n_steps), width, n_inputs = starts.shape, hidden.shape[2], inputs.shape[2]
    n_features, n_terms = n_inputs - width, panels.shape[1]
    first = _enter_features(bias, panels, inputs, n_features, gates)
    for t in range(n_steps):
        for n in range(n_rows):
            if starts[n, t]:
                inputs[n, t, n_features:] = _f32(0)
                cells[n, t] = _f32(0)
            if first == 0:
                gates[n, t] = bias
        add_product(inputs[:, t, first:n_terms], panels, first, gates[:, t])
        for n in range(n_rows):
            row = n * n_steps + t
            h = address(hidden) + 4 * row * width
            entering = address(inputs) + 4 * ((row + 1) * n_inputs + n_features)
            _activate(
                width,
                address(gates) + 16 * row * width,
                address(cells) + 4 * (row + n) * width,
                address(shown) + 4 * row * width,
                h,
                entering if t < n_steps - 1 else h,
            )


@_compile
def lstm_step(panels, bias, features, hidden, cell, starts, new_hidden, new_cell):  # type: ignore[no-untyped-def]
    """Advance the LSTM by one step, states zeroed first where an episode starts.

    :param panels: as for :func:`lstm_forward`, and so is the bias
    :param features: ``[n, features]``
    :param hidden: ``[n, hidden]``
    :param cell: ``[n, hidden]``
    :param starts: ``[n]``, bool
    :param new_hidden: output, ``[n, hidden]``
    :param new_cell: output, ``[n, hidden]``
    """
    (n_rows, n_features), size, width = features.shape, hidden.shape[1], len(bias) // 4
    inputs = np.zeros((n_rows, 1, n_features + width), dtype=np.float32)
    cells = np.zeros((n_rows, 2, width), dtype=np.float32)
    gates = np.empty((n_rows, 1, 4 * width), dtype=np.float32)
    shown = np.empty((n_rows, 1, width), dtype=np.float32)
    output = np.empty((n_rows, 1, width), dtype=np.float32)
    for n in range(n_rows):
        inputs[n, 0, :n_features] = features[n]
        inputs[n, 0, n_features : n_features + size] = hidden[n]
        cells[n, 0, :size] = cell[n]
    lstm_forward(panels, bias, inputs, starts.reshape((-1, 1)), cells, gates, shown, output)
    for n in range(n_rows):
        new_hidden[n] = output[n, 0, :size]
        new_cell[n] = cells[n, 1, :size]


@_compile
def _gate_gradients(width, gates, shown, kept, grad_hidden, grad_output, grad_cell, grad_gates):  # type: ignore[no-untyped-def]
    """Go back through one row's step: fill ``grad_gates``, move ``grad_cell`` one step back.

    All but the width are addresses. The hidden state's gradient is used up: it is left at zero for
    what the recurrent weights add.
    """
    block = 4 * width
    for j in range(0, block, _BYTES):
        grad_h = load(grad_hidden + j) + load(grad_output + j)
        grad_c = fma(grad_h, load(shown + j), load(grad_cell + j))
        i, f, o = j, j + block, j + 3 * block
        g = j + 2 * block
        store(grad_gates + i, grad_c * load(gates + i))
        store(grad_gates + f, grad_c * load(gates + f))
        store(grad_gates + g, grad_c * load(gates + g))
        store(grad_gates + o, grad_h * load(gates + o))
        store(grad_cell + j, grad_c * load(kept + j))
        store(grad_hidden + j, spread(_f32(0)))


@_compile
def lstm_backward(panels, gates, shown, kept, starts, grad_outputs, grad_h, grad_c, grad_gates):  # type: ignore[no-untyped-def]
    """Go back through :func:`lstm_forward`.

    :param panels: recurrent weights, packed for the way back
    :param gates: what that left, and so is ``shown``
    :param kept: what that left in ``cells``
    :param starts: ``[n, steps]``, bool
    :param grad_outputs: gradient of the outputs, ``[n, steps, width]``
    :param grad_h: gradient of the last hidden state, ``[n, width]``; that of the state which
        entered step 0 afterwards
    :param grad_c: the cell state's likewise
    :param grad_gates: output, gradient of the pre-activations, ``[n, steps, 4 * width]``; may be
        ``gates``
    """
    (n_rows, n_steps), width = starts.shape, shown.shape[2]
    for t in range(n_steps - 1, -1, -1):
        for n in range(n_rows):
            row = n * n_steps + t
            _gate_gradients(
                width,
                address(gates) + 16 * row * width,
                address(shown) + 4 * row * width,
                address(kept) + 4 * (row + n) * width,
                address(grad_h) + 4 * n * width,
                address(grad_outputs) + 4 * row * width,
                address(grad_c) + 4 * n * width,
                address(grad_gates) + 16 * row * width,
            )
        add_product(grad_gates[:, t], panels, 0, grad_h)
        for n in range(n_rows):
            if starts[n, t]:
                grad_h[n] = _f32(0)
                grad_c[n] = _f32(0)


@_compile
def _activate_gru(width, gates, kept, hidden, new_hidden, entering):  # type: ignore[no-untyped-def]
    """Advance one row's state, and put derivatives in the place of what its gates were given.

    All but the width are addresses.
    """
    block = 4 * width
    for j in range(0, block, _BYTES):
        n, r, z = gates + j, gates + j + block, gates + j + 2 * block
        recurrent = gates + j + 3 * block
        reset, slope_r, _ = sigmoid(load(r))
        keep, slope_z, take = sigmoid(load(z))
        inner, old = load(recurrent), load(hidden + j)
        new, slope_n = tanh(fma(reset, inner, load(n)))
        h = fma(take, new, keep * old)
        store(n, slope_n * take)
        store(r, slope_r * inner)
        store(z, slope_z * (old - new))
        store(recurrent, reset)
        store(kept + j, keep)
        store(new_hidden + j, h)
        store(entering + j, h)


@_compile
def gru_forward(w_x, w_h, bias, features, starts, entering, gates, kept, hidden):  # type: ignore[no-untyped-def]
    """Run the GRU over whole windows, its state zeroed at every episode start.

    Its new gate sees the inputs and, through the reset gate, what the recurrent weights give. The
    two are kept apart, so there are four blocks: new, reset, update, and the recurrent part of new.

    :param w_x: packed input weights of the first three blocks
    :param w_h: packed recurrent weights of the last three
    :param bias: of all four, ``[4 * width]``
    :param features: ``[n, steps, features]``
    :param starts: ``[n, steps]``, bool
    :param entering: the hidden state that enters each step, ``[n, steps, width]``; given for step 0
        and output for the others
    :param gates: output, derivatives ``[n, steps, 4 * width]``: of the new hidden state by what
        the new gate was given, of that by what the reset gate was given, of the new hidden state by
        what the update gate was given, and of what the new gate was given by its recurrent part
    :param kept: output, derivatives of the new hidden state by the old one, ``[n, steps, width]``
    :param hidden: output, ``[n, steps, width]``
    """
    (n_rows, n_steps), width, size = starts.shape, hidden.shape[2], w_h.shape[1]
    first = _enter_features(bias, w_x, features, features.shape[2], gates)
    for t in range(n_steps):
        for n in range(n_rows):
            if starts[n, t]:
                entering[n, t] = _f32(0)
            if first == 0:
                gates[n, t] = bias
        add_product(features[:, t, first:], w_x, first, gates[:, t])
        add_product(entering[:, t, :size], w_h, 0, gates[:, t, width:])
        for n in range(n_rows):
            row = n * n_steps + t
            h, before = address(hidden) + 4 * row * width, address(entering) + 4 * row * width
            _activate_gru(
                width,
                address(gates) + 16 * row * width,
                address(kept) + 4 * row * width,
                before,
                h,
                before + 4 * width if t < n_steps - 1 else h,
            )


@_compile
def gru_step(w_x, w_h, bias, features, hidden, starts, new_hidden):  # type: ignore[no-untyped-def]
    """Advance the GRU by one step, states zeroed first where an episode starts.

    :param w_x: as for :func:`gru_forward`, and so are ``w_h`` and ``bias``
    :param features: ``[n, features]``
    :param hidden: ``[n, hidden]``
    :param starts: ``[n]``, bool
    :param new_hidden: output, ``[n, hidden]``
    """
    (n_rows, size), width = hidden.shape, len(bias) // 4
    entering = np.zeros((n_rows, 1, width), dtype=np.float32)
    gates = np.empty((n_rows, 1, 4 * width), dtype=np.float32)
    kept = np.empty((n_rows, 1, width), dtype=np.float32)
    output = np.empty((n_rows, 1, width), dtype=np.float32)
    for n in range(n_rows):
        entering[n, 0, :size] = hidden[n]
    rows = features.reshape((n_rows, 1, features.shape[1]))
    gru_forward(w_x, w_h, bias, rows, starts.reshape((-1, 1)), entering, gates, kept, output)
    for n in range(n_rows):
        new_hidden[n] = output[n, 0, :size]


@_compile
def _gru_gradients(width, gates, kept, grad_hidden, grad_output, grad_gates):  # type: ignore[no-untyped-def]
    """Go back through one row's step: fill ``grad_gates``, move ``grad_hidden`` past the gates.

    All but the width are addresses.
    """
    block = 4 * width
    for j in range(0, block, _BYTES):
        n, r, z, recurrent = j, j + block, j + 2 * block, j + 3 * block
        grad_h = load(grad_hidden + j) + load(grad_output + j)
        grad_n = grad_h * load(gates + n)
        store(grad_gates + n, grad_n)
        store(grad_gates + r, grad_n * load(gates + r))
        store(grad_gates + z, grad_h * load(gates + z))
        store(grad_gates + recurrent, grad_n * load(gates + recurrent))
        store(grad_hidden + j, grad_h * load(kept + j))


@_compile
def gru_backward(panels, gates, kept, starts, grad_outputs, grad_h, grad_gates):  # type: ignore[no-untyped-def]
    """Go back through :func:`gru_forward`.

    :param panels: recurrent weights of the last three blocks, packed for the way back
    :param gates: what that left, and so is ``kept``
    :param starts: ``[n, steps]``, bool
    :param grad_outputs: gradient of the outputs, ``[n, steps, width]``
    :param grad_h: gradient of the last hidden state, ``[n, width]``; that of the state which
        entered step 0 afterwards
    :param grad_gates: output, gradient of the pre-activations, ``[n, steps, 4 * width]``; may be
        ``gates``
    """
    (n_rows, n_steps), width = starts.shape, kept.shape[2]
    for t in range(n_steps - 1, -1, -1):
        for n in range(n_rows):
            row = n * n_steps + t
            _gru_gradients(
                width,
                address(gates) + 16 * row * width,
                address(kept) + 4 * row * width,
                address(grad_h) + 4 * n * width,
                address(grad_outputs) + 4 * row * width,
                address(grad_gates) + 16 * row * width,
            )
        add_product(grad_gates[:, t, width:], panels, 0, grad_h)
        for n in range(n_rows):
            if starts[n, t]:
                grad_h[n] = _f32(0)


@_compile
def _activate_rnn(width, relu, sums, slopes, hidden, entering):  # type: ignore[no-untyped-def]
    """Advance one row's state; all but the first two are addresses."""
    zero, one = spread(_f32(0)), spread(_f32(1))
    for j in range(0, 4 * width, _BYTES):
        given = load(sums + j)
        if relu:
            h = where_greater(zero, given, zero, given)  # keeps a NaN
            slope = where_greater(given, zero, one, zero) + (given - given)
        else:
            h, slope = tanh(given)
        store(slopes + j, slope)
        store(hidden + j, h)
        store(entering + j, h)


@_compile
def rnn_forward(panels, bias, relu, inputs, starts, sums, slopes, hidden):  # type: ignore[no-untyped-def]
    """Run the plain RNN over whole windows, its state zeroed at every episode start.

    :param panels: packed weights; terms are the features, then the hidden state
    :param bias: ``[width]``
    :param relu: the nonlinearity, else it is tanh
    :param inputs: as for :func:`lstm_forward`
    :param starts: ``[n, steps]``, bool
    :param sums: output, what the nonlinearity is given, ``[n, steps, width]``
    :param slopes: output, derivatives of ``hidden`` by that, likewise
    :param hidden: output, likewise
    """
    (n_rows, n_steps), width, n_inputs = starts.shape, hidden.shape[2], inputs.shape[2]
    n_features, n_terms = n_inputs - width, panels.shape[1]
    first = _enter_features(bias, panels, inputs, n_features, sums)
    for t in range(n_steps):
        for n in range(n_rows):
            if starts[n, t]:
                inputs[n, t, n_features:] = _f32(0)
            if first == 0:
                sums[n, t] = bias
        add_product(inputs[:, t, first:n_terms], panels, first, sums[:, t])
        for n in range(n_rows):
            row = n * n_steps + t
            h = address(hidden) + 4 * row * width
            entering = address(inputs) + 4 * ((row + 1) * n_inputs + n_features)
            _activate_rnn(
                width,
                relu,
                address(sums) + 4 * row * width,
                address(slopes) + 4 * row * width,
                h,
                entering if t < n_steps - 1 else h,
            )


@_compile
def rnn_step(panels, bias, relu, features, hidden, starts, new_hidden):  # type: ignore[no-untyped-def]
    """Advance the plain RNN by one step, states zeroed first where an episode starts.

    :param panels: as for :func:`rnn_forward`, and so are ``bias`` and ``relu``
    :param features: ``[n, features]``
    :param hidden: ``[n, hidden]``
    :param starts: ``[n]``, bool
    :param new_hidden: output, ``[n, hidden]``
    """
    (n_rows, n_features), size, width = features.shape, hidden.shape[1], len(bias)
    inputs = np.zeros((n_rows, 1, n_features + width), dtype=np.float32)
    sums = np.empty((n_rows, 1, width), dtype=np.float32)
    slopes, output = np.empty_like(sums), np.empty_like(sums)
    for n in range(n_rows):
        inputs[n, 0, :n_features] = features[n]
        inputs[n, 0, n_features : n_features + size] = hidden[n]
    rnn_forward(panels, bias, relu, inputs, starts.reshape((-1, 1)), sums, slopes, output)
    for n in range(n_rows):
        new_hidden[n] = output[n, 0, :size]


@_compile
def rnn_backward(panels, slopes, starts, grad_outputs, grad_h, grad_sums):  # type: ignore[no-untyped-def]
    """Go back through :func:`rnn_forward`.

    :param panels: recurrent weights, packed for the way back
    :param slopes: what that left, ``[n, steps, width]``
    :param starts: ``[n, steps]``, bool
    :param grad_outputs: the outputs' gradient, ``[n, steps, width]``
    :param grad_h: gradient of the last hidden state, ``[n, width]``; that of the state which
        entered step 0 afterwards
    :param grad_sums: output, gradient of what the nonlinearity was given, ``[n, steps, width]``
    """
    (n_rows, n_steps), width = starts.shape, slopes.shape[2]
    zero = spread(_f32(0))
    for t in range(n_steps - 1, -1, -1):
        for n in range(n_rows):
            at, h = 4 * (n * n_steps + t) * width, address(grad_h) + 4 * n * width
            for j in range(0, 4 * width, _BYTES):
                grad = load(h + j) + load(address(grad_outputs) + at + j)
                store(address(grad_sums) + at + j, grad * load(address(slopes) + at + j))
                store(h + j, zero)
        add_product(grad_sums[:, t], panels, 0, grad_h)
        for n in range(n_rows):
            if starts[n, t]:
                grad_h[n] = _f32(0)


@_compile
def unchanged(weights, kept):  # type: ignore[no-untyped-def]
    """Tell whether the bits of some arrays are those of one array that holds them in a row.

    :param weights: a tuple of arrays ``[size]``, uint32
    :param kept: ``[sum of the sizes]``, uint32
    """
    start, difference = 0, np.uint32(0)
    for weight in weights:
        part = kept[start : start + len(weight)]
        for k in range(len(weight)):
            difference |= weight[k] ^ part[k]
        start += len(weight)
    return difference == 0

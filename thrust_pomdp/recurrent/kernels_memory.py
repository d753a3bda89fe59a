"""The loops over time of recurrent layers: LSTM, GRU and plain RNN, compiled by Numba.

What they compute is torch's. LSTM gates come in torch's order: input, forget, cell, output. For
how the loops are written see :mod:`thrust_pomdp.recurrent.kernels`, through which to import them.

Going forward leaves, in the place of what a gate was given, how much the state changes with that,
and going back only multiplies. Computed from an activation instead, as torch does it, the slope of
a gate that is nearly open has lost its digits: float32 knows 1 - s to 6e-8 only. Here slopes have
theirs (to 4e-6 of themselves) as far as pre-activations of 34 (tanh) and 69 (sigmoid), and stay
what they are there beyond.
"""

from __future__ import annotations

import numpy as np

from thrust_pomdp.recurrent.jit import compile_in_order as _compile_in_order
from thrust_pomdp.recurrent.jit import compile_loop as _compile

_f32 = np.float32

_LOG2_E = _f32(1.4426950408889634)

#: Beyond, exponentials and their products would leave the range of numbers with all digits.
_BOUND = _f32(100)

#: Added to a number, it leaves its nearest integer plus 127 in the last bits, where the exponent of
#: a float32 goes: 1.5 * 2^23 and an exponent's offset.
_ROUND = _f32(12582912 + 127)


@_compile_in_order
def _power(x):  # type: ignore[no-untyped-def]
    """Return ``2^x`` and ``2^x - 1``, bounded by ``2^-100`` and ``2^100``.

    Made of arithmetic only so that it vectorises. The polynomial is 2^r - 1 for the r in [-1/2,
    1/2] that is left of x, to 1e-8 of it.
    """
    # Comparisons, not min and max: these would turn a NaN into a bound.
    x = _BOUND if x > _BOUND else x
    x = -_BOUND if x < -_BOUND else x
    rounded = _f32(x + _ROUND)
    r = x - (rounded - _ROUND)
    p = r * _f32(0.00015403512225) + _f32(0.0013390735257)
    p = r * p + _f32(0.0096182376146)
    p = r * p + _f32(0.055503573269)
    p = r * p + _f32(0.24022649229)
    p = r * p + _f32(0.69314718246)
    p = r * p
    whole = np.int32(rounded.view(np.int32) << 23).view(np.float32)
    return whole * p + whole, whole * p + (whole - _f32(1))


@_compile_in_order
def _sigmoid(x):  # type: ignore[no-untyped-def]
    """Return the sigmoid, its slope, and what it lacks to 1, each to 4e-6 of itself.

    Not from one another: near 1 a float32 has lost the digits of what is missing, and with them the
    gradient of a gate that is nearly open.
    """
    e, _ = _power(-_LOG2_E * x)
    s = _f32(1) / (_f32(1) + e)
    lack = e * s
    return s, lack * s, lack


@_compile_in_order
def _tanh(x):  # type: ignore[no-untyped-def]
    """Return the tanh, to 3e-7 of itself, and its slope, to 4e-6."""
    e, less = _power(_f32(-2) * _LOG2_E * x)
    s = _f32(1) / (_f32(1) + e)
    return -less * s, _f32(4) * (e * s) * s


@_compile
def _add_product(a, weights, out):  # type: ignore[no-untyped-def]
    """Add ``a @ weights`` to ``out``, one row: four rows of weights a pass."""
    n_inputs, n_outputs = weights.shape
    whole = n_inputs - n_inputs % 4
    for k in range(0, whole, 4):
        w0, w1, w2, w3 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        for j in range(n_outputs):
            out[j] += a0 * w0[j] + a1 * w1[j] + a2 * w2[j] + a3 * w3[j]
    for k in range(whole, n_inputs):
        w0, a0 = weights[k], a[k]
        for j in range(n_outputs):
            out[j] += a0 * w0[j]


@_compile
def _add_products(a, b, weights, out_a, out_b):  # type: ignore[no-untyped-def]
    """Do the same for two rows at once: each weight is loaded once for both."""
    n_inputs, n_outputs = weights.shape
    whole = n_inputs - n_inputs % 4
    for k in range(0, whole, 4):
        w0, w1, w2, w3 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
        for j in range(n_outputs):
            out_a[j] += a0 * w0[j] + a1 * w1[j] + a2 * w2[j] + a3 * w3[j]
            out_b[j] += b0 * w0[j] + b1 * w1[j] + b2 * w2[j] + b3 * w3[j]
    for k in range(whole, n_inputs):
        w0, a0, b0 = weights[k], a[k], b[k]
        for j in range(n_outputs):
            out_a[j] += a0 * w0[j]
            out_b[j] += b0 * w0[j]


@_compile
def _activate(gates, shown, cell, new_hidden, new_cell):  # type: ignore[no-untyped-def]
    """Advance one row's state, and put derivatives in the place of what they are by."""
    size = len(cell)
    # Slices, since an index like `size + j` keeps the loop from being vectorised.
    i, f, g, o = gates[:size], gates[size : 2 * size], gates[2 * size : -size], gates[-size:]
    for j in range(size):
        update, slope_i, _ = _sigmoid(i[j])
        forget, slope_f, _ = _sigmoid(f[j])
        new, slope_g = _tanh(g[j])
        output, slope_o, _ = _sigmoid(o[j])
        c = forget * cell[j] + update * new
        tanh_c, slope_c = _tanh(c)
        i[j] = slope_i * new
        f[j] = slope_f * cell[j]
        g[j] = slope_g * update
        o[j] = slope_o * tanh_c
        cell[j] = forget
        shown[j] = slope_c * output
        new_cell[j] = c
        new_hidden[j] = output * tanh_c


@_compile
def lstm_forward(weights, bias, inputs, starts, cells, gates, shown, hidden, cell):  # type: ignore[no-untyped-def]
    """Run the LSTM over whole windows, its state zeroed at every episode start.

    :param weights: of inputs, transposed: ``[features + hidden, 4 * hidden]``
    :param bias: ``[4 * hidden]``
    :param inputs: what enters each step, ``[n, steps, features + hidden]``: the features, then the
        hidden state; this one is given for step 0 and output for the others
    :param starts: ``[n, steps]``, bool
    :param cells: the cell state that enters step 0, ``[n, steps, hidden]``; derivatives of each new
        cell state by the old one afterwards
    :param gates: output, derivatives by what each gate was given: the new cell state's, the output
        gate's that of the new hidden state, ``[n, steps, 4 * hidden]``
    :param shown: output, derivatives of the new hidden state by the new cell state, ``[n, steps,
        hidden]``
    :param hidden: output, ``[n, steps, hidden]``
    :param cell: output, the last cell state, ``[n, hidden]``
    """
    n_rows, n_steps = starts.shape
    size = cell.shape[1]
    for t in range(n_steps):
        for n in range(n_rows):
            gates[n, t] = bias
            if starts[n, t]:
                inputs[n, t, -size:] = _f32(0)
                cells[n, t] = _f32(0)
        for n in range(0, n_rows - 1, 2):
            _add_products(inputs[n, t], inputs[n + 1, t], weights, gates[n, t], gates[n + 1, t])
        if n_rows % 2 == 1:
            _add_product(inputs[n_rows - 1, t], weights, gates[n_rows - 1, t])
        for n in range(n_rows):
            last = t == n_steps - 1
            new_cell = cell[n] if last else cells[n, t + 1]
            _activate(gates[n, t], shown[n, t], cells[n, t], hidden[n, t], new_cell)
            if not last:
                inputs[n, t + 1, -size:] = hidden[n, t]


@_compile
def lstm_step(weights, bias, features, hidden, cell, starts, new_hidden, new_cell):  # type: ignore[no-untyped-def]
    """Advance the LSTM by one step, states zeroed first where an episode starts.

    :param weights: as for :func:`lstm_forward`, and so is the bias
    :param features: ``[n, features]``
    :param hidden: ``[n, hidden]``
    :param cell: ``[n, hidden]``
    :param starts: ``[n]``, bool
    :param new_hidden: output, ``[n, hidden]``
    :param new_cell: output, ``[n, hidden]``
    """
    (n_rows, n_features), size = features.shape, hidden.shape[1]
    inputs = np.empty((n_rows, 1, n_features + size), dtype=features.dtype)
    cells = np.empty((n_rows, 1, size), dtype=features.dtype)
    gates = np.empty((n_rows, 1, 4 * size), dtype=features.dtype)
    shown, output = np.empty_like(cells), np.empty_like(cells)
    flags = starts.reshape(-1, 1)
    for n in range(n_rows):
        inputs[n, 0, :n_features] = features[n]
        inputs[n, 0, n_features:] = hidden[n]
        cells[n, 0] = cell[n]
    lstm_forward(weights, bias, inputs, flags, cells, gates, shown, output, new_cell)
    new_hidden[:] = output[:, 0]


@_compile
def _gate_gradients(gates, shown, kept, grad_hidden, grad_output, grad_cell, grad_gates):  # type: ignore[no-untyped-def]
    """Go back through one row's step: fill ``grad_gates``, move ``grad_cell`` one step back.

    ``grad_hidden`` is used up: it is left at zero for what the recurrent weights add.
    """
    size = len(grad_hidden)
    i, f, g, o = gates[:size], gates[size : 2 * size], gates[2 * size : -size], gates[-size:]
    grad_i, grad_f = grad_gates[:size], grad_gates[size : 2 * size]
    grad_g, grad_o = grad_gates[2 * size : -size], grad_gates[-size:]
    for j in range(size):
        grad_h = grad_hidden[j] + grad_output[j]
        grad_c = grad_cell[j] + grad_h * shown[j]
        grad_i[j] = grad_c * i[j]
        grad_f[j] = grad_c * f[j]
        grad_g[j] = grad_c * g[j]
        grad_o[j] = grad_h * o[j]
        grad_cell[j] = grad_c * kept[j]
        grad_hidden[j] = _f32(0)


@_compile
def lstm_backward(weights, gates, shown, kept, starts, grad_outputs, grad_h, grad_c, grad_gates):  # type: ignore[no-untyped-def]
    """Go back through :func:`lstm_forward`.

    :param weights: recurrent weights, ``[4 * hidden, hidden]``
    :param gates: what that left, and so is ``shown``
    :param kept: what that left in ``cells``
    :param starts: ``[n, steps]``, bool
    :param grad_outputs: gradient of the outputs, ``[n, steps, hidden]``
    :param grad_h: gradient of the last hidden state, ``[n, hidden]``; that of the state which
        entered step 0 afterwards
    :param grad_c: the cell state's likewise
    :param grad_gates: output, gradient of the pre-activations, ``[n, steps, 4 * hidden]``
    """
    n_rows, n_steps = starts.shape
    for t in range(n_steps - 1, -1, -1):
        for n in range(n_rows):
            _gate_gradients(
                gates[n, t],
                shown[n, t],
                kept[n, t],
                grad_h[n],
                grad_outputs[n, t],
                grad_c[n],
                grad_gates[n, t],
            )
        for n in range(0, n_rows - 1, 2):
            _add_products(grad_gates[n, t], grad_gates[n + 1, t], weights, grad_h[n], grad_h[n + 1])
        if n_rows % 2 == 1:
            _add_product(grad_gates[n_rows - 1, t], weights, grad_h[n_rows - 1])
        for n in range(n_rows):
            if starts[n, t]:
                grad_h[n] = _f32(0)
                grad_c[n] = _f32(0)


@_compile
def _activate_gru(gates, kept, hidden, new_hidden):  # type: ignore[no-untyped-def]
    """Advance one row's state, and put derivatives in the place of what its gates were given."""
    size = len(hidden)
    n, r, z = gates[:size], gates[size : 2 * size], gates[2 * size : -size]
    recurrent = gates[-size:]
    for j in range(size):
        reset, slope_r, _ = _sigmoid(r[j])
        keep, slope_z, take = _sigmoid(z[j])
        new, slope_n = _tanh(n[j] + reset * recurrent[j])
        n[j] = slope_n * take
        r[j] = slope_r * recurrent[j]
        z[j] = slope_z * (hidden[j] - new)
        recurrent[j] = reset
        kept[j] = keep
        new_hidden[j] = take * new + keep * hidden[j]


@_compile
def gru_forward(w_x, w_h, bias, features, starts, entering, gates, kept, hidden):  # type: ignore[no-untyped-def]
    """Run the GRU over whole windows, its state zeroed at every episode start.

    Its new gate sees the inputs and, through the reset gate, what the recurrent weights give. The
    two are kept apart, so there are four blocks: new, reset, update, and the recurrent part of new.

    :param w_x: input weights of the first three blocks, ``[features, 3 * hidden]``
    :param w_h: recurrent weights of the last three, ``[hidden, 3 * hidden]``
    :param bias: of all four, ``[4 * hidden]``
    :param features: ``[n, steps, features]``
    :param starts: ``[n, steps]``, bool
    :param entering: the hidden state that enters each step, ``[n, steps, hidden]``; given for step
        0 and output for the others
    :param gates: output, derivatives ``[n, steps, 4 * hidden]``: of the new hidden state by what
        the new gate was given, of that by what the reset gate was given, of the new hidden state by
        what the update gate was given, and of what the new gate was given by its recurrent part
    :param kept: output, derivatives of the new hidden state by the old one, ``[n, steps, hidden]``
    :param hidden: output, ``[n, steps, hidden]``
    """
    n_rows, n_steps = starts.shape
    size = entering.shape[2]
    for t in range(n_steps):
        for n in range(n_rows):
            gates[n, t] = bias
            if starts[n, t]:
                entering[n, t] = _f32(0)
        for n in range(0, n_rows - 1, 2):
            a, b = gates[n, t], gates[n + 1, t]
            _add_products(features[n, t], features[n + 1, t], w_x, a[:-size], b[:-size])
            _add_products(entering[n, t], entering[n + 1, t], w_h, a[size:], b[size:])
        if n_rows % 2 == 1:
            a = gates[n_rows - 1, t]
            _add_product(features[n_rows - 1, t], w_x, a[:-size])
            _add_product(entering[n_rows - 1, t], w_h, a[size:])
        for n in range(n_rows):
            _activate_gru(gates[n, t], kept[n, t], entering[n, t], hidden[n, t])
            if t < n_steps - 1:
                entering[n, t + 1] = hidden[n, t]


@_compile
def gru_step(w_x, w_h, bias, features, hidden, starts, new_hidden):  # type: ignore[no-untyped-def]
    """Advance the GRU by one step, states zeroed first where an episode starts.

    :param w_x: as for :func:`gru_forward`, and so are ``w_h`` and ``bias``
    :param features: ``[n, features]``
    :param hidden: ``[n, hidden]``
    :param starts: ``[n]``, bool
    :param new_hidden: output, ``[n, hidden]``
    """
    n_rows, size = hidden.shape
    entering = np.empty((n_rows, 1, size), dtype=features.dtype)
    gates = np.empty((n_rows, 1, 4 * size), dtype=features.dtype)
    kept, output = np.empty_like(entering), np.empty_like(entering)
    for n in range(n_rows):
        entering[n, 0] = hidden[n]
    rows = features.reshape((n_rows, 1, features.shape[1]))
    gru_forward(w_x, w_h, bias, rows, starts.reshape((-1, 1)), entering, gates, kept, output)
    new_hidden[:] = output[:, 0]


@_compile
def _gru_gradients(gates, kept, grad_hidden, grad_output, grad_gates):  # type: ignore[no-untyped-def]
    """Go back through one row's step: fill ``grad_gates``, move ``grad_hidden`` past the gates."""
    size = len(kept)
    n, r, z = gates[:size], gates[size : 2 * size], gates[2 * size : -size]
    recurrent = gates[-size:]
    grad_n, grad_r = grad_gates[:size], grad_gates[size : 2 * size]
    grad_z, grad_recurrent = grad_gates[2 * size : -size], grad_gates[-size:]
    for j in range(size):
        grad_h = grad_hidden[j] + grad_output[j]
        grad_n[j] = grad_h * n[j]
        grad_r[j] = grad_n[j] * r[j]
        grad_z[j] = grad_h * z[j]
        grad_recurrent[j] = grad_n[j] * recurrent[j]
        grad_hidden[j] = grad_h * kept[j]


@_compile
def gru_backward(weights, gates, kept, starts, grad_outputs, grad_h, grad_gates):  # type: ignore[no-untyped-def]
    """Go back through :func:`gru_forward`.

    :param weights: recurrent weights of the last three blocks, ``[3 * hidden, hidden]``
    :param gates: what that left, and so is ``kept``
    :param starts: ``[n, steps]``, bool
    :param grad_outputs: gradient of the outputs, ``[n, steps, hidden]``
    :param grad_h: gradient of the last hidden state, ``[n, hidden]``; that of the state which
        entered step 0 afterwards
    :param grad_gates: output, gradient of the pre-activations, ``[n, steps, 4 * hidden]``
    """
    n_rows, n_steps = starts.shape
    size = kept.shape[2]
    for t in range(n_steps - 1, -1, -1):
        for n in range(n_rows):
            _gru_gradients(gates[n, t], kept[n, t], grad_h[n], grad_outputs[n, t], grad_gates[n, t])
        for n in range(0, n_rows - 1, 2):
            a, b = grad_gates[n, t], grad_gates[n + 1, t]
            _add_products(a[size:], b[size:], weights, grad_h[n], grad_h[n + 1])
        if n_rows % 2 == 1:
            _add_product(grad_gates[n_rows - 1, t][size:], weights, grad_h[n_rows - 1])
        for n in range(n_rows):
            if starts[n, t]:
                grad_h[n] = _f32(0)


@_compile
def rnn_forward(weights, bias, relu, inputs, starts, slopes, hidden):  # type: ignore[no-untyped-def]
    """Run the plain RNN over whole windows, its state zeroed at every episode start.

    :param weights: of inputs, transposed: ``[features + hidden, hidden]``
    :param bias: ``[hidden]``
    :param relu: the nonlinearity, else it is tanh
    :param inputs: as for :func:`lstm_forward`
    :param starts: ``[n, steps]``, bool
    :param slopes: output, derivatives of ``hidden`` by what the nonlinearity was given, likewise
    :param hidden: output, ``[n, steps, hidden]``
    """
    n_rows, n_steps = starts.shape
    size, zero, one = hidden.shape[2], _f32(0), _f32(1)
    for t in range(n_steps):
        for n in range(n_rows):
            hidden[n, t] = bias
            if starts[n, t]:
                inputs[n, t, -size:] = zero
        for n in range(0, n_rows - 1, 2):
            _add_products(inputs[n, t], inputs[n + 1, t], weights, hidden[n, t], hidden[n + 1, t])
        if n_rows % 2 == 1:
            _add_product(inputs[n_rows - 1, t], weights, hidden[n_rows - 1, t])
        for n in range(n_rows):
            h, slope = hidden[n, t], slopes[n, t]
            if relu:
                for j in range(size):
                    slope[j] = zero if h[j] <= zero else one
                    h[j] = zero if h[j] < zero else h[j]  # a comparison that keeps a NaN
            else:
                for j in range(size):
                    h[j], slope[j] = _tanh(h[j])
            if t < n_steps - 1:
                inputs[n, t + 1, -size:] = h


@_compile
def rnn_step(weights, bias, relu, features, hidden, starts, new_hidden):  # type: ignore[no-untyped-def]
    """Advance the plain RNN by one step, states zeroed first where an episode starts.

    :param weights: as for :func:`rnn_forward`, and so are ``bias`` and ``relu``
    :param features: ``[n, features]``
    :param hidden: ``[n, hidden]``
    :param starts: ``[n]``, bool
    :param new_hidden: output, ``[n, hidden]``
    """
    (n_rows, n_features), size = features.shape, hidden.shape[1]
    inputs = np.empty((n_rows, 1, n_features + size), dtype=features.dtype)
    output = np.empty((n_rows, 1, size), dtype=features.dtype)
    slopes = np.empty_like(output)
    for n in range(n_rows):
        inputs[n, 0, :n_features] = features[n]
        inputs[n, 0, n_features:] = hidden[n]
    rnn_forward(weights, bias, relu, inputs, starts.reshape((-1, 1)), slopes, output)
    new_hidden[:] = output[:, 0]


@_compile
def rnn_backward(weights, slopes, starts, grad_outputs, grad_h, grad_sums):  # type: ignore[no-untyped-def]
    """Go back through :func:`rnn_forward`.

    :param weights: recurrent weights, ``[hidden, hidden]``
    :param slopes: what that left, ``[n, steps, hidden]``
    :param starts: ``[n, steps]``, bool
    :param grad_outputs: the outputs' gradient, ``[n, steps, hidden]``
    :param grad_h: gradient of the last hidden state, ``[n, hidden]``; that of the state which
        entered step 0 afterwards
    :param grad_sums: output, gradient of what the nonlinearity was given, ``[n, steps, hidden]``
    """
    n_rows, n_steps = starts.shape
    for t in range(n_steps - 1, -1, -1):
        for n in range(n_rows):
            slope, grad, grad_sum = slopes[n, t], grad_h[n], grad_sums[n, t]
            grad_output = grad_outputs[n, t]
            for j in range(len(slope)):
                grad_sum[j] = (grad[j] + grad_output[j]) * slope[j]
                grad[j] = _f32(0)
        for n in range(0, n_rows - 1, 2):
            _add_products(grad_sums[n, t], grad_sums[n + 1, t], weights, grad_h[n], grad_h[n + 1])
        if n_rows % 2 == 1:
            _add_product(grad_sums[n_rows - 1, t], weights, grad_h[n_rows - 1])
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

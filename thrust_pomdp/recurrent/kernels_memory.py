"""The loops over time of recurrent layers: LSTM, GRU and plain RNN, compiled by Numba.

What they compute is torch's. LSTM gates come in torch's order: input, forget, cell, output. For
how the loops are written see :mod:`thrust_pomdp.recurrent.kernels`, through which to import them.
"""

from __future__ import annotations

import numpy as np

from thrust_pomdp.recurrent.jit import compile_loop as _compile

_f32 = np.float32

#: Where the tanh below reaches 1 to float32's precision.
_TANH_BOUND = _f32(7.90531110763549805)


@_compile
def _tanh(x):  # type: ignore[no-untyped-def]
    """Rational approximation to 3e-7, made of arithmetic only so that it vectorises.

    The minimax polynomials are those of Eigen's and XLA's float32 tanh.
    """
    # Comparisons, not min and max: these would turn a NaN into a bound.
    x = _TANH_BOUND if x > _TANH_BOUND else x
    x = -_TANH_BOUND if x < -_TANH_BOUND else x
    s = x * x
    p = s * _f32(-2.76076847742355e-16) + _f32(2.00018790482477e-13)
    p = s * p + _f32(-8.60467152213735e-11)
    p = s * p + _f32(5.12229709037114e-08)
    p = s * p + _f32(1.48572235717979e-05)
    p = s * p + _f32(6.37261928875436e-04)
    p = x * (s * p + _f32(4.89352455891786e-03))
    q = s * _f32(1.19825839466702e-06) + _f32(1.18534705686654e-04)
    q = s * q + _f32(2.26843463243900e-03)
    q = s * q + _f32(4.89352518554385e-03)
    return p / q


@_compile
def _sigmoid(x):  # type: ignore[no-untyped-def]
    half = _f32(0.5)
    return half * _tanh(half * x) + half


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
def _activate(gates, cell, new_hidden, new_cell):  # type: ignore[no-untyped-def]
    """Turn one row's pre-activations into activations, in place, and advance its state."""
    size = len(cell)
    # Slices, since an index like `size + j` keeps the loop from being vectorised.
    i, f, g, o = gates[:size], gates[size : 2 * size], gates[2 * size : -size], gates[-size:]
    for j in range(size):
        i[j] = _sigmoid(i[j])
        f[j] = _sigmoid(f[j])
        g[j] = _tanh(g[j])
        o[j] = _sigmoid(o[j])
        new_cell[j] = f[j] * cell[j] + i[j] * g[j]
        new_hidden[j] = o[j] * _tanh(new_cell[j])


@_compile
def lstm_forward(weights, bias, inputs, starts, cells, gates, hidden, cell):  # type: ignore[no-untyped-def]
    """Run the LSTM over whole windows, its state zeroed at every episode start.

    :param weights: of inputs, transposed: ``[features + hidden, 4 * hidden]``
    :param bias: ``[4 * hidden]``
    :param inputs: what enters each step, ``[n, steps, features + hidden]``: the features, then the
        hidden state; this one is given for step 0 and output for the others
    :param starts: ``[n, steps]``, bool
    :param cells: the cell state that enters each step, ``[n, steps, hidden]``, likewise
    :param gates: output, activations ``[n, steps, 4 * hidden]``
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
            _activate(gates[n, t], cells[n, t], hidden[n, t], new_cell)
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
    output = np.empty((n_rows, 1, size), dtype=features.dtype)
    for n in range(n_rows):
        inputs[n, 0, :n_features] = features[n]
        inputs[n, 0, n_features:] = hidden[n]
        cells[n, 0] = cell[n]
    lstm_forward(weights, bias, inputs, starts.reshape(-1, 1), cells, gates, output, new_cell)
    new_hidden[:] = output[:, 0]


@_compile
def _gate_gradients(gates, cell, grad_hidden, grad_output, grad_cell, grad_gates):  # type: ignore[no-untyped-def]
    """Go back through one row's step: fill ``grad_gates``, move ``grad_cell`` one step back.

    ``grad_hidden`` is used up: it is left at zero for what the recurrent weights add.
    """
    size, one = len(cell), _f32(1)
    i, f, g, o = gates[:size], gates[size : 2 * size], gates[2 * size : -size], gates[-size:]
    grad_i, grad_f = grad_gates[:size], grad_gates[size : 2 * size]
    grad_g, grad_o = grad_gates[2 * size : -size], grad_gates[-size:]
    for j in range(size):
        tanh_c = _tanh(f[j] * cell[j] + i[j] * g[j])
        grad_h = grad_hidden[j] + grad_output[j]
        grad_c = grad_cell[j] + grad_h * o[j] * (one - tanh_c * tanh_c)
        grad_i[j] = grad_c * g[j] * i[j] * (one - i[j])
        grad_f[j] = grad_c * cell[j] * f[j] * (one - f[j])
        grad_g[j] = grad_c * i[j] * (one - g[j] * g[j])
        grad_o[j] = grad_h * tanh_c * o[j] * (one - o[j])
        grad_cell[j] = grad_c * f[j]
        grad_hidden[j] = _f32(0)


@_compile
def lstm_backward(weights, gates, starts, cells, grad_outputs, grad_h, grad_c, grad_gates):  # type: ignore[no-untyped-def]
    """Go back through :func:`lstm_forward`.

    :param weights: recurrent weights, ``[4 * hidden, hidden]``
    :param gates: activations, ``[n, steps, 4 * hidden]``
    :param starts: ``[n, steps]``, bool
    :param cells: the cell state that entered each step, ``[n, steps, hidden]``
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
                cells[n, t],
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
def _activate_gru(gates, hidden, new_hidden):  # type: ignore[no-untyped-def]
    """Turn one row's pre-activations into activations, in place, and advance its state.

    The last block stays as it is: going back needs it too.
    """
    size, one = len(hidden), _f32(1)
    n, r, z = gates[:size], gates[size : 2 * size], gates[2 * size : -size]
    recurrent = gates[-size:]
    for j in range(size):
        r[j] = _sigmoid(r[j])
        z[j] = _sigmoid(z[j])
        n[j] = _tanh(n[j] + r[j] * recurrent[j])
        new_hidden[j] = (one - z[j]) * n[j] + z[j] * hidden[j]


@_compile
def gru_forward(w_x, w_h, bias, features, starts, entering, gates, hidden):  # type: ignore[no-untyped-def]
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
    :param gates: output, activations ``[n, steps, 4 * hidden]``
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
            _activate_gru(gates[n, t], entering[n, t], hidden[n, t])
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
    output = np.empty((n_rows, 1, size), dtype=features.dtype)
    for n in range(n_rows):
        entering[n, 0] = hidden[n]
    rows = features.reshape((n_rows, 1, features.shape[1]))
    gru_forward(w_x, w_h, bias, rows, starts.reshape((-1, 1)), entering, gates, output)
    new_hidden[:] = output[:, 0]


@_compile
def _gru_gradients(gates, hidden, grad_hidden, grad_output, grad_gates):  # type: ignore[no-untyped-def]
    """Go back through one row's step: fill ``grad_gates``, move ``grad_hidden`` past the gates."""
    size, one = len(hidden), _f32(1)
    n, r, z = gates[:size], gates[size : 2 * size], gates[2 * size : -size]
    recurrent = gates[-size:]
    grad_n, grad_r = grad_gates[:size], grad_gates[size : 2 * size]
    grad_z, grad_recurrent = grad_gates[2 * size : -size], grad_gates[-size:]
    for j in range(size):
        grad_h = grad_hidden[j] + grad_output[j]
        grad_n[j] = grad_h * (one - z[j]) * (one - n[j] * n[j])
        grad_r[j] = grad_n[j] * recurrent[j] * r[j] * (one - r[j])
        grad_z[j] = grad_h * (hidden[j] - n[j]) * z[j] * (one - z[j])
        grad_recurrent[j] = grad_n[j] * r[j]
        grad_hidden[j] = grad_h * z[j]


@_compile
def gru_backward(weights, gates, starts, entering, grad_outputs, grad_h, grad_gates):  # type: ignore[no-untyped-def]
    """Go back through :func:`gru_forward`.

    :param weights: recurrent weights of the last three blocks, ``[3 * hidden, hidden]``
    :param gates: activations, ``[n, steps, 4 * hidden]``
    :param starts: ``[n, steps]``, bool
    :param entering: the hidden state that entered each step, ``[n, steps, hidden]``
    :param grad_outputs: gradient of the outputs, ``[n, steps, hidden]``
    :param grad_h: gradient of the last hidden state, ``[n, hidden]``; that of the state which
        entered step 0 afterwards
    :param grad_gates: output, gradient of the pre-activations, ``[n, steps, 4 * hidden]``
    """
    n_rows, n_steps = starts.shape
    size = entering.shape[2]
    for t in range(n_steps - 1, -1, -1):
        for n in range(n_rows):
            _gru_gradients(
                gates[n, t], entering[n, t], grad_h[n], grad_outputs[n, t], grad_gates[n, t]
            )
        for n in range(0, n_rows - 1, 2):
            a, b = grad_gates[n, t], grad_gates[n + 1, t]
            _add_products(a[size:], b[size:], weights, grad_h[n], grad_h[n + 1])
        if n_rows % 2 == 1:
            _add_product(grad_gates[n_rows - 1, t][size:], weights, grad_h[n_rows - 1])
        for n in range(n_rows):
            if starts[n, t]:
                grad_h[n] = _f32(0)


@_compile
def rnn_forward(weights, bias, relu, inputs, starts, hidden):  # type: ignore[no-untyped-def]
    """Run the plain RNN over whole windows, its state zeroed at every episode start.

    :param weights: of inputs, transposed: ``[features + hidden, hidden]``
    :param bias: ``[hidden]``
    :param relu: the nonlinearity, else it is tanh
    :param inputs: as for :func:`lstm_forward`
    :param starts: ``[n, steps]``, bool
    :param hidden: output, ``[n, steps, hidden]``
    """
    n_rows, n_steps = starts.shape
    size = hidden.shape[2]
    for t in range(n_steps):
        for n in range(n_rows):
            hidden[n, t] = bias
            if starts[n, t]:
                inputs[n, t, -size:] = _f32(0)
        for n in range(0, n_rows - 1, 2):
            _add_products(inputs[n, t], inputs[n + 1, t], weights, hidden[n, t], hidden[n + 1, t])
        if n_rows % 2 == 1:
            _add_product(inputs[n_rows - 1, t], weights, hidden[n_rows - 1, t])
        for n in range(n_rows):
            h = hidden[n, t]
            for j in range(size):
                # A comparison that keeps a NaN.
                h[j] = (_f32(0) if h[j] < _f32(0) else h[j]) if relu else _tanh(h[j])
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
    for n in range(n_rows):
        inputs[n, 0, :n_features] = features[n]
        inputs[n, 0, n_features:] = hidden[n]
    rnn_forward(weights, bias, relu, inputs, starts.reshape((-1, 1)), output)
    new_hidden[:] = output[:, 0]


@_compile
def rnn_backward(weights, relu, hidden, starts, grad_outputs, grad_h, grad_sums):  # type: ignore[no-untyped-def]
    """Go back through :func:`rnn_forward`.

    :param weights: recurrent weights, ``[hidden, hidden]``
    :param relu: the nonlinearity, else it is tanh
    :param hidden: the outputs, ``[n, steps, hidden]``
    :param starts: ``[n, steps]``, bool
    :param grad_outputs: their gradient, ``[n, steps, hidden]``
    :param grad_h: gradient of the last hidden state, ``[n, hidden]``; that of the state which
        entered step 0 afterwards
    :param grad_sums: output, gradient of what the nonlinearity was given, ``[n, steps, hidden]``
    """
    n_rows, n_steps = starts.shape
    zero, one = _f32(0), _f32(1)
    for t in range(n_steps - 1, -1, -1):
        for n in range(n_rows):
            h, grad, grad_sum = hidden[n, t], grad_h[n], grad_sums[n, t]
            grad_output = grad_outputs[n, t]
            for j in range(len(h)):
                slope = (zero if h[j] <= zero else one) if relu else one - h[j] * h[j]
                grad_sum[j] = (grad[j] + grad_output[j]) * slope
                grad[j] = zero
        for n in range(0, n_rows - 1, 2):
            _add_products(grad_sums[n, t], grad_sums[n + 1, t], weights, grad_h[n], grad_h[n + 1])
        if n_rows % 2 == 1:
            _add_product(grad_sums[n_rows - 1, t], weights, grad_h[n_rows - 1])
        for n in range(n_rows):
            if starts[n, t]:
                grad_h[n] = zero


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

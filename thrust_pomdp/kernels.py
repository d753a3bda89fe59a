"""Loops over time and rows that NumPy and torch cannot express, compiled by Numba.

Nothing here knows of torch, policies or buffers: plain loops on float32 arrays. They are written
for the compiler's vectoriser: inner loops run over contiguous memory and contain arithmetic only.
Import this file through :func:`thrust_pomdp.compiled.load_kernels`, since Numba is optional.

Gates come in torch's order: input, forget, cell, output. ``fastmath`` allows reordering and fused
multiply-adds, and keeps NaN and infinity: a diverged network must show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

_FASTMATH = {"contract", "nsz", "arcp", "reassoc"}


def _compile(function: Callable[..., Any]) -> Any:
    """Compile at the first call; the result is kept on disk where that is possible."""
    options: dict[str, Any] = {"fastmath": _FASTMATH, "error_model": "numpy", "nogil": True}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written to
        return numba.njit(**options)(function)


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
def _log_softmax(logits, out):  # type: ignore[no-untyped-def]
    """Log-probabilities of one row."""
    greatest = logits[0]
    for a in range(1, len(logits)):
        # Written so that a NaN is kept.
        greatest = greatest if logits[a] <= greatest else logits[a]
    total = _f32(0)
    for a in range(len(logits)):
        total += np.exp(logits[a] - greatest)
    log_total = greatest + np.log(total)
    for a in range(len(logits)):
        out[a] = logits[a] - log_total


@_compile
def categorical_heads(  # type: ignore[no-untyped-def]
    pi_weights, pi_bias, vf_weights, vf_bias, race, memory_pi, memory_vf, actions, log_prob, values
):
    """Draw an action for each row and estimate its value, by linear heads.

    Actions are drawn by the exponential race: argmax of p / E with E ~ Exp(1).

    :param pi_weights: ``[n_actions, size]``
    :param pi_bias: ``[n_actions]``
    :param vf_weights: ``[1, size]``
    :param vf_bias: ``[1]``
    :param race: standard exponential numbers, ``[n, n_actions]``
    :param memory_pi: what the actor's head reads, ``[n, size]``
    :param memory_vf: what the critic's head reads, ``[n, size]``
    :param actions: output, int64 ``[n]``
    :param log_prob: output, ``[n]``
    :param values: output, ``[n, 1]``
    """
    n_actions = len(pi_bias)
    row = np.empty(n_actions, dtype=memory_pi.dtype)
    for n in range(len(memory_pi)):
        values[n, 0] = vf_bias[0] + _dot(vf_weights[0], memory_vf[n])
        for a in range(n_actions):
            row[a] = pi_bias[a] + _dot(pi_weights[a], memory_pi[n])
        _log_softmax(row, row)
        best, winner = np.exp(row[0]) / race[n, 0], 0
        for a in range(1, n_actions):
            score = np.exp(row[a]) / race[n, a]
            if score > best:
                best, winner = score, a
        actions[n] = winner
        log_prob[n] = row[winner]


@_compile
def masked_categorical_heads(  # type: ignore[no-untyped-def]
    pi_weights, pi_bias, vf_weights, vf_bias, allowed,
    race, memory_pi, memory_vf, actions, log_prob, values,
):  # fmt: skip
    """Do the same where not every action can be taken.

    :param allowed: bool ``[n, n_actions]``, at least one in each row
    """
    n_actions = len(pi_bias)
    row = np.empty(n_actions, dtype=memory_pi.dtype)
    for n in range(len(memory_pi)):
        values[n, 0] = vf_bias[0] + _dot(vf_weights[0], memory_vf[n])
        for a in range(n_actions):
            row[a] = pi_bias[a] + _dot(pi_weights[a], memory_pi[n])
            if not allowed[n, a]:
                row[a] = -np.inf
        _log_softmax(row, row)
        best, winner = _f32(-1), -1
        for a in range(n_actions):
            if allowed[n, a]:  # a masked one could win with 0 / 0
                score = np.exp(row[a]) / race[n, a]
                if winner < 0 or score > best:
                    best, winner = score, a
        actions[n] = winner
        log_prob[n] = row[winner]


@_compile
def _dot(a, b):  # type: ignore[no-untyped-def]
    total = _f32(0)
    for j in range(len(a)):
        total += a[j] * b[j]
    return total


@_compile
def categorical_ppo(  # type: ignore[no-untyped-def]
    logits, values, actions, old_log_prob, old_values, advantages, returns,
    clip_range, clip_range_vf, ent_coef, vf_coef, normalize, grad_logits, grad_values, terms,
):  # fmt: skip
    """Compute PPO's loss for categorical actions, with its gradient.

    See :func:`thrust_pomdp.losses.ppo_losses` for the terms; arrays have one entry per step,
    ``[rows]``, logits ``[rows, n_actions]``.

    :param clip_range_vf: infinity for no clipping
    :param grad_logits: output, ``[rows, n_actions]``
    :param grad_values: output, ``[rows]``
    :param terms: output, the sums over rows of the policy's, the critic's and the entropy loss, of
        clipped rows, and of the KL estimate
    """
    n_rows, n_actions = logits.shape
    mean, scale = 0.0, 1.0
    if normalize and n_rows > 1:
        for n in range(n_rows):
            mean += advantages[n]
        mean /= n_rows
        squares = 0.0
        for n in range(n_rows):
            squares += (advantages[n] - mean) ** 2
        scale = 1.0 / (np.sqrt(squares / (n_rows - 1)) + 1e-8)
    log_probs = np.empty(n_actions, dtype=logits.dtype)
    for n in range(n_rows):
        _log_softmax(logits[n], log_probs)
        advantage = (advantages[n] - mean) * scale
        log_ratio = np.float64(log_probs[actions[n]]) - old_log_prob[n]
        ratio = np.exp(log_ratio)
        # Comparisons, here and below, that let a NaN through.
        clipped = ratio
        if ratio > 1.0 + clip_range:
            clipped = 1.0 + clip_range
        elif ratio < 1.0 - clip_range:
            clipped = 1.0 - clip_range
        # A clipped ratio passes no gradient, unless the plain one is the worse of the two.
        plain = not advantage * ratio > advantage * clipped
        surrogate = advantage * (ratio if plain else clipped)
        grad_log_prob = -surrogate / n_rows if plain else 0.0

        minus_entropy = 0.0
        for a in range(n_actions):
            p = np.exp(log_probs[a])
            if p > 0:  # an impossible action adds nothing: 0 * -inf would be NaN
                minus_entropy += p * log_probs[a]
        for a in range(n_actions):
            p = np.exp(log_probs[a])
            grad = -p * grad_log_prob
            if p > 0:
                grad += ent_coef / n_rows * p * (log_probs[a] - minus_entropy)
            grad_logits[n, a] = grad
        grad_logits[n, actions[n]] += grad_log_prob

        change = values[n] - old_values[n]
        value, passes = values[n], 1.0
        if change > clip_range_vf:
            value, passes = old_values[n] + clip_range_vf, 0.0
        elif change < -clip_range_vf:
            value, passes = old_values[n] - clip_range_vf, 0.0
        error = value - returns[n]
        grad_values[n] = passes * 2.0 * vf_coef * error / n_rows

        terms[0] -= surrogate
        terms[1] += error * error
        terms[2] += minus_entropy
        terms[3] += np.abs(ratio - 1.0) > clip_range
        terms[4] += ratio - 1.0 - log_ratio

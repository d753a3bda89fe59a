"""The loops over time of memories that are linear in their state, compiled by Numba.

On one core a loop over the steps is the fastest scan there is: it reads and writes each number
once. For how loops are written see :mod:`thrust_pomdp.recurrent.kernels`, through which to import
these.
"""

from __future__ import annotations

import numpy as np

from thrust_pomdp.recurrent.jit import compile_loop as _compile

_f32 = np.float32


@_compile
def min_gru_forward(update, keep, gates, starts, entering, hidden):  # type: ignore[no-untyped-def]
    """Run the minGRU over whole windows, its state zeroed at every episode start.

    :param update: the share of what is new, ``[n, steps, hidden]``
    :param keep: what it lacks to 1, likewise
    :param gates: ``[n, steps, 2 * hidden]``, of which the second half is what is new
    :param starts: ``[n, steps]``, bool
    :param entering: the state that enters step 0, ``[n, hidden]``
    :param hidden: output, ``[n, steps, hidden]``
    """
    n_rows, n_steps, size = hidden.shape
    for n in range(n_rows):
        before = entering[n]
        for t in range(n_steps):
            z, k, new, h = update[n, t], keep[n, t], gates[n, t, size:], hidden[n, t]
            if starts[n, t]:
                for j in range(size):
                    h[j] = z[j] * new[j]
            else:
                for j in range(size):
                    h[j] = k[j] * before[j] + z[j] * new[j]
            before = h


@_compile
def min_gru_backward(  # type: ignore[no-untyped-def]
    update, keep, gates, starts, entering, hidden, grad_outputs, grad_h, grad_gates,
):  # fmt: skip
    """Go back through :func:`min_gru_forward`.

    :param hidden: what that left
    :param grad_outputs: ``[n, steps, hidden]``
    :param grad_h: output, gradient of the state that entered step 0, ``[n, hidden]``; zeros before
    :param grad_gates: output, gradient of the pre-activation of ``update`` and of what is new,
        ``[n, steps, 2 * hidden]``
    """
    n_rows, n_steps, size = hidden.shape
    for n in range(n_rows):
        grad = grad_h[n]
        for t in range(n_steps - 1, -1, -1):
            z, k, new, told = update[n, t], keep[n, t], gates[n, t, size:], grad_outputs[n, t]
            grad_z, grad_new = grad_gates[n, t, :size], grad_gates[n, t, size:]
            if starts[n, t]:
                for j in range(size):
                    total = grad[j] + told[j]
                    grad_new[j] = total * z[j]
                    grad_z[j] = total * new[j] * (z[j] * k[j])
                    grad[j] = _f32(0)
            else:
                before = hidden[n, t - 1] if t > 0 else entering[n]
                for j in range(size):
                    total = grad[j] + told[j]
                    grad_new[j] = total * z[j]
                    grad_z[j] = total * (new[j] - before[j]) * (z[j] * k[j])
                    grad[j] = total * k[j]


@_compile
def _add_product(x, weights, out):  # type: ignore[no-untyped-def]
    """Add a row times ``[inputs, outputs]`` to ``out``."""
    for k in range(len(x)):
        a, w = x[k], weights[k]
        for j in range(len(out)):
            out[j] += a * w[j]


@_compile
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return _f32(1) / (_f32(1) + np.exp(-x))


@_compile
def min_gru_step(weights, bias, features, hidden, starts, output, new_hidden):  # type: ignore[no-untyped-def]
    """Advance one layer of the minGRU by one step, states zeroed first where an episode starts.

    :param weights: ``[features, 2 * hidden]``
    :param bias: ``[2 * hidden]``
    :param features: ``[n, features]``
    :param hidden: ``[n, hidden]``
    :param starts: ``[n]``, bool
    :param output: output, ``[n, hidden]``
    :param new_hidden: output, the same
    """
    n_rows, size = hidden.shape
    gates = np.empty(2 * size, dtype=hidden.dtype)
    chosen, new = gates[:size], gates[size:]
    for n in range(n_rows):
        gates[:] = bias
        _add_product(features[n], weights, gates)
        for j in range(size):
            before = _f32(0) if starts[n] else hidden[n, j]
            state = _sigmoid(-chosen[j]) * before + _sigmoid(chosen[j]) * new[j]
            output[n, j] = state
            new_hidden[n, j] = state


@_compile
def lru_forward(factor, added, starts, entering, hidden):  # type: ignore[no-untyped-def]
    """Run the linear recurrent unit over whole windows, zeroed at every episode start.

    Complex numbers are pairs: real parts, then imaginary parts.

    :param factor: by which the state is multiplied, ``[2 * size]``
    :param added: ``[n, steps, 2 * size]``
    :param starts: ``[n, steps]``, bool
    :param entering: the state that enters step 0, ``[n, 2 * size]``
    :param hidden: output, ``[n, steps, 2 * size]``
    """
    n_rows, n_steps, width = hidden.shape
    size = width // 2
    a, b = factor[:size], factor[size:]
    for n in range(n_rows):
        before = entering[n]
        for t in range(n_steps):
            h = hidden[n, t]
            if starts[n, t]:
                h[:] = added[n, t]
            else:
                real, imag = h[:size], h[size:]
                new_real, new_imag = added[n, t, :size], added[n, t, size:]
                c, d = before[:size], before[size:]
                for j in range(size):
                    real[j] = a[j] * c[j] - b[j] * d[j] + new_real[j]
                    imag[j] = a[j] * d[j] + b[j] * c[j] + new_imag[j]
            before = h


@_compile
def lru_backward(  # type: ignore[no-untyped-def]
    factor, starts, entering, hidden, grad_outputs, grad_h, grad_added, grad_factor,
):  # fmt: skip
    """Go back through :func:`lru_forward`.

    :param hidden: what that left
    :param grad_outputs: ``[n, steps, 2 * size]``
    :param grad_h: output, gradient of the state that entered step 0, ``[n, 2 * size]``; zeros
        before
    :param grad_added: output, ``[n, steps, 2 * size]``
    :param grad_factor: output, each row's part of it, ``[n, 2 * size]``
    """
    n_rows, n_steps, width = hidden.shape
    size = width // 2
    a, b = factor[:size], factor[size:]
    for n in range(n_rows):
        grad, told_real, told_imag = grad_h[n], grad_factor[n, :size], grad_factor[n, size:]
        real, imag = grad[:size], grad[size:]
        grad_factor[n] = _f32(0)
        for t in range(n_steps - 1, -1, -1):
            g = grad_added[n, t]
            for j in range(width):
                g[j] = grad[j] + grad_outputs[n, t, j]
            if starts[n, t]:
                grad[:] = _f32(0)
            else:
                before = hidden[n, t - 1] if t > 0 else entering[n]
                p, q, c, d = g[:size], g[size:], before[:size], before[size:]
                for j in range(size):
                    told_real[j] += p[j] * c[j] + q[j] * d[j]
                    told_imag[j] += q[j] * c[j] - p[j] * d[j]
                    real[j] = a[j] * p[j] + b[j] * q[j]
                    imag[j] = a[j] * q[j] - b[j] * p[j]


@_compile
def lru_step(  # type: ignore[no-untyped-def]
    factor, enter, tell, direct, mix, mix_bias, skip, skip_bias,
    features, hidden, starts, output, new_hidden,
):  # fmt: skip
    """Advance one layer of the linear recurrent unit, with all that stands around it, by one step.

    Weights are ``[inputs, outputs]``.

    :param factor: as for :func:`lru_forward`
    :param enter: ``[features, 2 * size]``
    :param tell: ``[2 * size, told]``
    :param direct: ``[features, told]``
    :param mix: ``[told, 2 * told]``
    :param mix_bias: ``[2 * told]``
    :param skip: ``[features, told]``
    :param skip_bias: ``[told]``
    :param features: ``[n, features]``
    :param hidden: ``[n, 2 * size]``
    :param starts: ``[n]``, bool: before these the state is zeroed
    :param output: output, ``[n, told]``
    :param new_hidden: output, ``[n, 2 * size]``
    """
    (n_rows, width), n_told = hidden.shape, output.shape[1]
    size = width // 2
    shown, mixed = np.empty(n_told, dtype=hidden.dtype), np.empty(2 * n_told, dtype=hidden.dtype)
    for n in range(n_rows):
        x, h = features[n], new_hidden[n]
        for j in range(size):
            a, b = factor[j], factor[size + j]
            c = _f32(0) if starts[n] else hidden[n, j]
            d = _f32(0) if starts[n] else hidden[n, size + j]
            h[j] = a * c - b * d
            h[size + j] = a * d + b * c
        _add_product(x, enter, h)
        shown[:] = _f32(0)
        _add_product(h, tell, shown)
        _add_product(x, direct, shown)
        for j in range(n_told):
            u = shown[j]
            inner = _f32(0.7978845608028654) * (u + _f32(0.044715) * u * u * u)
            shown[j] = _f32(0.5) * u * (_f32(1) + np.tanh(inner))
        mixed[:] = mix_bias
        _add_product(shown, mix, mixed)
        output[n] = skip_bias
        _add_product(x, skip, output[n])
        for j in range(n_told):
            output[n, j] += mixed[j] * _sigmoid(mixed[n_told + j])

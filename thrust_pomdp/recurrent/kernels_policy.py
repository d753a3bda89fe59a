"""One step of a whole policy, compiled by Numba: layers, memory, heads and the draw of an action.

Everything here is compiled exactly: additions happen in the order in which they are written, each
row by itself, and multiply-adds are fused where it says so. A step therefore gives the same digits
by itself and inside of a loop over many (:mod:`thrust_pomdp.ppo.kernels_collecting`), and a row
gives the same digits whatever the other rows are. Import this file through
:func:`thrust_pomdp.recurrent.compiled.load_kernels`, since Numba is optional.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import intrinsic

from thrust_pomdp.recurrent.jit import compile_exactly as _compile_exactly
from thrust_pomdp.recurrent.kernels_memory import lstm_step

_f32 = np.float32
_LOG2_E = _f32(1.4426950408889634)
_BOUND = _f32(100)
_ROUND = _f32(12582912 + 127)

#: What follows a dense layer.
NOTHING, TANH, RELU = range(3)

#: What the critic's head reads: what the actor remembers, a memory of its own, or the features.
ACTORS_MEMORY, OWN_MEMORY, FEATURES = range(3)


class Layers(NamedTuple):
    """Dense layers.

    :param table: a row for each: inputs, outputs and what follows, int64 ``[n_layers, 3]``
    :param weights: weights ``[inputs, outputs]`` and bias ``[outputs]`` of each, one after the
        other, float32
    """

    table: Any
    weights: Any


class Policy(NamedTuple):
    """The weights of a policy with one LSTM layer and categorical actions, float32 arrays.

    :param encoder: layers before the memory
    :param pi_weights: of the actor's LSTM, as
        :func:`~thrust_pomdp.recurrent.kernels_memory.lstm_step` takes them, and so is the bias
    :param pi_bias: likewise
    :param critic: what its head reads: ``ACTORS_MEMORY``, ``OWN_MEMORY`` or ``FEATURES``
    :param vf_weights: of the critic's LSTM; anything where it has none
    :param vf_bias: likewise
    :param pi_layers: layers from the memory to the logits
    :param vf_layers: layers from what the critic reads to the value
    """

    encoder: Layers
    pi_weights: Any
    pi_bias: Any
    critic: int
    vf_weights: Any
    vf_bias: Any
    pi_layers: Layers
    vf_layers: Layers


@intrinsic
def _fused(context, a, b, c):  # type: ignore[no-untyped-def]
    """Return ``a * b + c``, rounded once."""

    def generate(target, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.fma(*arguments)

    return a(a, a, a), generate


# Numba passes the first argument itself.
_fma: Any = _fused


@_compile_exactly
def _power(x):  # type: ignore[no-untyped-def]
    """Return ``2^x`` and ``2^x - 1``; see :func:`thrust_pomdp.recurrent.functions.power`."""
    x = _BOUND if x > _BOUND else x
    x = -_BOUND if x < -_BOUND else x
    rounded = _f32(x + _ROUND)
    r = x - (rounded - _ROUND)
    p = _fma(r, _f32(0.00015403512225), _f32(0.0013390735257))
    p = _fma(r, p, _f32(0.0096182376146))
    p = _fma(r, p, _f32(0.055503573269))
    p = _fma(r, p, _f32(0.24022649229))
    p = _fma(r, p, _f32(0.69314718246))
    p = r * p
    whole = np.int32(rounded.view(np.int32) << 23).view(np.float32)
    return _fma(whole, p, whole), _fma(whole, p, whole - _f32(1))


@_compile_exactly
def _tanh(x):  # type: ignore[no-untyped-def]
    e, less = _power(_f32(-2) * _LOG2_E * x)
    return -less / (_f32(1) + e)


@_compile_exactly
def _add_row(a, weights, out):  # type: ignore[no-untyped-def]
    """Add ``a @ weights`` to ``out``, one row, input by input."""
    n_inputs, n_outputs = weights.shape
    whole = n_inputs - n_inputs % 4
    for k in range(0, whole, 4):
        w0, w1, w2, w3 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        for j in range(n_outputs):
            total = _fma(a0, w0[j], out[j])
            total = _fma(a1, w1[j], total)
            total = _fma(a2, w2[j], total)
            out[j] = _fma(a3, w3[j], total)
    for k in range(whole, n_inputs):
        w0, a0 = weights[k], a[k]
        for j in range(n_outputs):
            out[j] = _fma(a0, w0[j], out[j])


@_compile_exactly
def _add_two_rows(a, b, weights, out_a, out_b):  # type: ignore[no-untyped-def]
    """Do the same for two rows at once: each weight is loaded once for both."""
    n_inputs, n_outputs = weights.shape
    whole = n_inputs - n_inputs % 4
    for k in range(0, whole, 4):
        w0, w1, w2, w3 = weights[k], weights[k + 1], weights[k + 2], weights[k + 3]
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
        for j in range(n_outputs):
            total_a, total_b = _fma(a0, w0[j], out_a[j]), _fma(b0, w0[j], out_b[j])
            total_a, total_b = _fma(a1, w1[j], total_a), _fma(b1, w1[j], total_b)
            total_a, total_b = _fma(a2, w2[j], total_a), _fma(b2, w2[j], total_b)
            out_a[j], out_b[j] = _fma(a3, w3[j], total_a), _fma(b3, w3[j], total_b)
    for k in range(whole, n_inputs):
        w0, a0, b0 = weights[k], a[k], b[k]
        for j in range(n_outputs):
            out_a[j], out_b[j] = _fma(a0, w0[j], out_a[j]), _fma(b0, w0[j], out_b[j])


@_compile_exactly
def _add_products(rows, weights, out):  # type: ignore[no-untyped-def]
    """Add ``rows @ weights`` to ``out``, each row by itself, input by input."""
    n_rows = len(rows)
    for n in range(0, n_rows - 1, 2):
        _add_two_rows(rows[n], rows[n + 1], weights, out[n], out[n + 1])
    if n_rows % 2 == 1:
        _add_row(rows[n_rows - 1], weights, out[n_rows - 1])


@_compile_exactly
def _run(layers, rows):  # type: ignore[no-untyped-def]
    """Run dense layers over rows; the rows themselves where there are no layers."""
    start = 0
    for number in range(len(layers.table)):
        n_inputs, n_outputs, then = layers.table[number]
        end = start + n_inputs * n_outputs
        weights = layers.weights[start:end].reshape((n_inputs, n_outputs))
        bias = layers.weights[end : end + n_outputs]
        out = np.empty((len(rows), n_outputs), dtype=np.float32)
        for n in range(len(rows)):
            out[n] = bias
        _add_products(rows, weights, out)
        flat = out.reshape(-1)
        if then == TANH:
            for j in range(len(flat)):
                flat[j] = _tanh(flat[j])
        elif then == RELU:
            for j in range(len(flat)):
                flat[j] = _f32(0) if flat[j] < _f32(0) else flat[j]  # a NaN stays one
        rows, start = out, end + n_outputs
    return rows


@_compile_exactly
def _draw(logits, uniform, sums):  # type: ignore[no-untyped-def]
    """Choose an action and return it with its log-probability.

    What :func:`thrust_pomdp.recurrent.kernels.chosen` does, which see.

    :param logits: ``[n_actions]``; log-probabilities afterwards
    :param uniform: from [0, 1)
    :param sums: float64 ``[n_actions]``, to work in
    """
    n_actions = len(logits)
    greatest = logits[0]
    for a in range(1, n_actions):
        greatest = greatest if logits[a] <= greatest else logits[a]  # a NaN is kept
    total = _f32(0)
    for a in range(n_actions):
        total += np.exp(logits[a] - greatest)
    log_total = greatest + np.log(total)
    cumulated = 0.0
    for a in range(n_actions):
        logits[a] -= log_total
        cumulated += np.float64(np.exp(logits[a]))
        sums[a] = cumulated
    mark, action = uniform * cumulated, 0
    while sums[action] <= mark and sums[action] < cumulated:  # a NaN ends it
        action += 1
    return action, logits[action]


@_compile_exactly
def policy_step(  # type: ignore[no-untyped-def]
    policy, obs, states, starts, uniforms, allowed, new_states, actions, values, log_prob, logits
):
    """Act: one step for every environment.

    :param policy: a :class:`Policy`
    :param obs: ``[n, features]``, float32
    :param states: hidden and cell state of the actor's memory, then of the critic's if it has one
        of its own, each ``[n, hidden]``
    :param starts: ``[n]``, bool; memory is zeroed first where true
    :param uniforms: numbers from [0, 1), float64 ``[n]``, that choose the actions
    :param allowed: bool ``[n, n_actions]``, at least one in each row; ``[0, 0]`` for all
    :param new_states: output, as ``states``
    :param actions: output, int64 ``[n]``
    :param values: output, ``[n]``
    :param log_prob: output, ``[n]``
    :param logits: output, before they are masked, ``[n, n_actions]``
    """
    features = _run(policy.encoder, obs)
    lstm_step(
        policy.pi_weights, policy.pi_bias, features, states[0], states[1], starts,
        new_states[0], new_states[1],
    )  # fmt: skip
    memory = new_states[0]
    if policy.critic == OWN_MEMORY:
        lstm_step(
            policy.vf_weights, policy.vf_bias, features, states[2], states[3], starts,
            new_states[2], new_states[3],
        )  # fmt: skip
        memory = new_states[2]
    elif policy.critic == FEATURES:
        memory = features
    values[:] = _run(policy.vf_layers, memory)[:, 0]
    logits[:] = _run(policy.pi_layers, new_states[0])
    log_probs = np.empty(logits.shape[1], dtype=np.float32)
    sums = np.empty(logits.shape[1], dtype=np.float64)
    for n in range(len(obs)):
        log_probs[:] = logits[n]
        if len(allowed) > 0:
            for a in range(len(log_probs)):
                log_probs[a] = log_probs[a] if allowed[n, a] else -np.inf
        actions[n], log_prob[n] = _draw(log_probs, uniforms[n], sums)


@_compile_exactly
def policy_values(policy, obs, hidden, cell, starts):  # type: ignore[no-untyped-def]
    """Return the values of observations, ``[n]``, without acting.

    :param policy: a :class:`Policy`
    :param obs: ``[n, features]``, float32
    :param hidden: of the memory that the critic reads, ``[n, hidden]``
    :param cell: likewise
    :param starts: ``[n]``, bool; memory is zeroed first where true
    """
    features = _run(policy.encoder, obs)
    memory = features
    if policy.critic != FEATURES:
        weights, bias = policy.pi_weights, policy.pi_bias
        if policy.critic == OWN_MEMORY:
            weights, bias = policy.vf_weights, policy.vf_bias
        memory, new_cell = np.empty_like(hidden), np.empty_like(hidden)
        lstm_step(weights, bias, features, hidden, cell, starts, memory, new_cell)
    return _run(policy.vf_layers, memory)[:, 0].copy()

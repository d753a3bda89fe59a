"""Loops over rows that NumPy and torch cannot express, compiled by Numba.

Nothing here knows of torch, policies or buffers: plain loops on float32 arrays. They are written
for the compiler's vectoriser: inner loops run over contiguous memory and contain arithmetic only.
Import this file through :func:`thrust_pomdp.recurrent.compiled.load_kernels`, since Numba is
optional. Those of recurrent layers are in :mod:`thrust_pomdp.recurrent.kernels_memory`, of memories
that are linear in their state in :mod:`thrust_pomdp.recurrent.kernels_scan`.
"""

from __future__ import annotations

import numpy as np

from thrust_pomdp.recurrent import kernels_memory as memory
from thrust_pomdp.recurrent import kernels_policy as policy
from thrust_pomdp.recurrent import kernels_scan as scan
from thrust_pomdp.recurrent.jit import compile_in_order as _compile_in_order
from thrust_pomdp.recurrent.jit import compile_loop as _compile
from thrust_pomdp.recurrent.products import (
    add_outer,
    add_product,
    add_sums,
    back_panels,
    pack,
    pack_back,
    padded,
    panels,
    unpack_gradient,
)

__all__ = [
    "add_outer", "add_product", "add_sums", "back_panels", "categorical_heads", "categorical_ppo",
    "memory", "pack", "pack_back", "padded", "panels", "policy", "scan", "unpack_gradient",
]  # fmt: skip

_f32 = np.float32


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


@_compile_in_order
def chosen(log_probs, uniform, sums):  # type: ignore[no-untyped-def]
    """Return the action on whose share of the cumulated probabilities a uniform number falls.

    What has probability 0 is never chosen. See :func:`thrust_pomdp.ppo.distributions.chosen`.

    :param log_probs: ``[n_actions]``
    :param uniform: from [0, 1)
    :param sums: float64 ``[n_actions]``, to work in
    """
    total = 0.0
    for a in range(len(log_probs)):
        total += np.float64(np.exp(log_probs[a]))
        sums[a] = total
    mark = uniform * total
    action = 0
    # Written so that a NaN ends it.
    while sums[action] <= mark and sums[action] < total:
        action += 1
    return action


@_compile
def categorical_heads(  # type: ignore[no-untyped-def]
    pi_weights, pi_bias, vf_weights, vf_bias,
    uniforms, memory_pi, memory_vf, actions, log_prob, values, logits,
):  # fmt: skip
    """Draw an action for each row and estimate its value, by linear heads.

    :param pi_weights: ``[n_actions, size]``
    :param pi_bias: ``[n_actions]``
    :param vf_weights: ``[1, size]``
    :param vf_bias: ``[1]``
    :param uniforms: numbers from [0, 1), float64 ``[n]``, that choose the actions
    :param memory_pi: what the actor's head reads, ``[n, size]``
    :param memory_vf: what the critic's head reads, ``[n, size]``
    :param actions: output, int64 ``[n]``
    :param log_prob: output, ``[n]``
    :param values: output, ``[n, 1]``
    :param logits: output, ``[n, n_actions]``
    """
    n_actions = len(pi_bias)
    row = np.empty(n_actions, dtype=memory_pi.dtype)
    sums = np.empty(n_actions, dtype=np.float64)
    for n in range(len(memory_pi)):
        values[n, 0] = vf_bias[0] + _dot(vf_weights[0], memory_vf[n])
        for a in range(n_actions):
            logits[n, a] = pi_bias[a] + _dot(pi_weights[a], memory_pi[n])
        _log_softmax(logits[n], row)
        actions[n] = chosen(row, uniforms[n], sums)
        log_prob[n] = row[actions[n]]


@_compile
def masked_categorical_heads(  # type: ignore[no-untyped-def]
    pi_weights, pi_bias, vf_weights, vf_bias, allowed,
    uniforms, memory_pi, memory_vf, actions, log_prob, values, logits,
):  # fmt: skip
    """Do the same where not every action can be taken.

    :param allowed: bool ``[n, n_actions]``, at least one in each row
    :param logits: output, before they are masked
    """
    n_actions = len(pi_bias)
    row = np.empty(n_actions, dtype=memory_pi.dtype)
    sums = np.empty(n_actions, dtype=np.float64)
    for n in range(len(memory_pi)):
        values[n, 0] = vf_bias[0] + _dot(vf_weights[0], memory_vf[n])
        for a in range(n_actions):
            logits[n, a] = pi_bias[a] + _dot(pi_weights[a], memory_pi[n])
            row[a] = logits[n, a] if allowed[n, a] else -np.inf
        _log_softmax(row, row)
        actions[n] = chosen(row, uniforms[n], sums)
        log_prob[n] = row[actions[n]]


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

    See :func:`thrust_pomdp.ppo.losses.ppo_losses` for the terms; arrays have one entry per step,
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

"""PPO's loss for categorical and Gaussian actions with its gradient, compiled by Numba, in vectors.

See :func:`thrust_pomdp.ppo.losses.ppo_losses` for the terms. It is computed in three passes: the
log-probability of each step's action, everything that is one number a step, and the gradient of
what the actor's head gave. Arrays are given by addresses, their rows are steps and padded to
multiples of 16 numbers. Import this file only where Numba is installed.

What passes from one pass to the next lies in *scratch*: rows of as many numbers as there are steps,
rounded up to a multiple of 16.
"""

from __future__ import annotations

import numpy as np

from thrust_pomdp.recurrent.functions import exp, log
from thrust_pomdp.recurrent.jit import compile_exactly as _compile
from thrust_pomdp.recurrent.products import padded
from thrust_pomdp.recurrent.vectors import (
    PANEL,
    address,
    carray,
    first_lanes,
    fma,
    lane,
    load,
    no_less,
    numbers_at,
    spread,
    store,
    total,
    where_greater,
)

_f32 = np.float32
_BYTES = 4 * PANEL

#: Rows of scratch: log-probability of the action and minus the entropy (before their pass: what
#: they are made of); greatest logit, sum of exponentials; the log-probability's gradient; copies of
#: the batch; and the terms.
(
    _LOG_PROB, _MINUS_ENTROPY, _GREATEST, _SUM, _GRAD, _OLD_LOG_PROB, _OLD_VALUE, _ADVANTAGE,
    _RETURN, _VALUE, _POLICY, _CRITIC, _CLIPPED, _KL,
) = range(14)  # fmt: skip
SCRATCH_ROWS = 14

#: Minus the log of a standard normal variable's density at 0, and its differential entropy.
_LOG_NORMALIZER = 0.9189385332046727
_ENTROPY = 1.4189385332046727

_INFINITY = _f32(np.inf)


@_compile
def _rows_of(scratch, n_rows):  # type: ignore[no-untyped-def]
    return carray(numbers_at(scratch), (SCRATCH_ROWS, padded(n_rows)))


@_compile
def categorical_rows(n_rows, n_actions, logits, actions, exps, scratch):  # type: ignore[no-untyped-def]
    """Take exponentials of logits; what is left for the next pass is the same for all rows.

    :param logits: address of ``[n_rows, padded(n_actions)]``
    :param actions: int64 ``[n_rows]``
    :param exps: address of the output, likewise, divided by the greatest one's
    """
    row, zero, least = 4 * padded(n_actions), spread(_f32(0)), spread(-_INFINITY)
    work = _rows_of(scratch, n_rows)
    log_prob, entropy = work[_LOG_PROB], work[_MINUS_ENTROPY]
    greatest, sums = work[_GREATEST], work[_SUM]
    for r in range(n_rows):
        given = logits + r * row
        most = least
        for at in range(0, row, _BYTES):
            most = no_less(most, first_lanes(n_actions - at // 4, load(given + at), least))
        top = lane(most, 0)
        for j in range(1, min(n_actions, PANEL)):
            other = lane(most, j)
            top = top if other <= top else other  # a comparison that keeps a NaN
            if other != other:
                top = other
        shift = spread(top)
        sum_exps, sum_products = zero, zero
        for at in range(0, row, _BYTES):
            shifted = load(given + at) - shift
            e = first_lanes(n_actions - at // 4, exp(shifted), zero)
            store(exps + r * row + at, e)
            sum_exps = sum_exps + e
            # An impossible action adds nothing: 0 * -inf would be NaN.
            sum_products = sum_products + where_greater(e, zero, e * shifted, e)
        sums[r], greatest[r] = total(sum_exps), top
        entropy[r] = total(sum_products)
        log_prob[r] = carray(numbers_at(given), n_actions)[actions[r]] - top
    for r in range(n_rows, padded(n_rows)):
        sums[r], greatest[r], entropy[r], log_prob[r] = _f32(1), _f32(0), _f32(0), _f32(0)
    size = 4 * padded(n_rows)
    for at in range(scratch, scratch + size, _BYTES):
        sum_exps = load(at + _SUM * size)
        log_sum = log(sum_exps)
        store(at + _LOG_PROB * size, load(at + _LOG_PROB * size) - log_sum)
        mean = load(at + _MINUS_ENTROPY * size) / sum_exps
        store(at + _MINUS_ENTROPY * size, mean - log_sum)
        store(at + _GREATEST * size, load(at + _GREATEST * size) + log_sum)


@_compile
def categorical_gradient(n_rows, n_actions, logits, actions, exps, ent_coef, scratch):  # type: ignore[no-untyped-def]
    """Put the gradient of the logits in the place of their exponentials."""
    row, zero, work = 4 * padded(n_actions), spread(_f32(0)), _rows_of(scratch, n_rows)
    entropy, sums = work[_MINUS_ENTROPY], work[_SUM]
    greatest, grads = work[_GREATEST], work[_GRAD]
    weight = spread(_f32(ent_coef / n_rows))
    for r in range(n_rows):
        log_total, share = spread(greatest[r]), spread(_f32(1) / sums[r])
        grad, minus_entropy = spread(-grads[r]), spread(entropy[r])
        for at in range(r * row, (r + 1) * row, _BYTES):
            p = load(exps + at) * share
            gain = (load(logits + at) - log_total) - minus_entropy
            gained = where_greater(p, zero, weight * p * gain, p)
            store(exps + at, fma(p, grad, gained))
        carray(numbers_at(exps + r * row), n_actions)[actions[r]] += grads[r]


@_compile
def _inverse_spreads(log_std, n_actions):  # type: ignore[no-untyped-def]
    """Return one by each standard deviation, zeros beyond."""
    width = padded(n_actions)
    numbers = np.zeros(width, dtype=np.float32)
    numbers[:n_actions] = carray(numbers_at(log_std), n_actions)
    place = address(numbers)
    for at in range(0, 4 * width, _BYTES):
        inverse = exp(spread(_f32(0)) - load(place + at))
        store(place + at, first_lanes(n_actions - at // 4, inverse, spread(_f32(0))))
    return numbers


@_compile
def gaussian_rows(n_rows, n_actions, means, actions, log_std, scaled, scratch):  # type: ignore[no-untyped-def]
    """Compute the log-densities of actions.

    :param means: address of ``[n_rows, padded(n_actions)]``
    :param actions: address of ``[n_rows, n_actions]``
    :param log_std: address of ``[n_actions]``
    :param scaled: address of the output, like the means: actions in units of the spread from them
    """
    width, inverse = padded(n_actions), _inverse_spreads(log_std, n_actions)
    work = _rows_of(scratch, n_rows)
    taken, out = (
        carray(numbers_at(actions), (n_rows, n_actions)),
        carray(numbers_at(scaled), (n_rows, width)),
    )
    spreads, total_log = carray(numbers_at(log_std), n_actions), _f32(0)
    for j in range(n_actions):
        total_log += spreads[j]
    normalizer = total_log + _f32(n_actions * _LOG_NORMALIZER)
    log_prob = work[_LOG_PROB]
    entropy = work[_MINUS_ENTROPY]
    for r in range(n_rows):
        out[r, :n_actions] = taken[r]
        out[r, n_actions:] = _f32(0)
        squares = spread(_f32(0))
        for at in range(0, 4 * width, _BYTES):
            place = 4 * r * width + at
            apart = load(scaled + place) - load(means + place)
            z = first_lanes(
                n_actions - at // 4, apart * load(address(inverse) + at), spread(_f32(0))
            )
            store(scaled + place, z)
            squares = fma(z, z, squares)
        log_prob[r] = total(squares) * _f32(-0.5) - normalizer
        entropy[r] = -(total_log + _f32(n_actions * _ENTROPY))
    log_prob[n_rows:] = _f32(0)
    entropy[n_rows:] = _f32(0)


@_compile
def gaussian_gradient(n_rows, n_actions, scaled, log_std, grad_log_std, ent_coef, scratch):  # type: ignore[no-untyped-def]
    """Put the gradient of the means in the place of scaled actions, and compute that of the spread.

    :param log_std: address of ``[n_actions]``, and so is its gradient
    """
    width, inverse = padded(n_actions), _inverse_spreads(log_std, n_actions)
    grads, sums = _rows_of(scratch, n_rows)[_GRAD], np.zeros(width, dtype=np.float32)
    one, place = spread(_f32(1)), address(sums)
    for r in range(n_rows):
        grad = spread(grads[r])
        for at in range(0, 4 * width, _BYTES):
            z = load(scaled + 4 * r * width + at)
            store(place + at, fma(grad, fma(z, z, spread(_f32(0)) - one), load(place + at)))
            store(scaled + 4 * r * width + at, grad * z * load(address(inverse) + at))
    out = carray(numbers_at(grad_log_std), n_actions)
    for j in range(n_actions):
        out[j] = sums[j] - _f32(ent_coef)


@_compile
def _normalization(advantages, normalize):  # type: ignore[no-untyped-def]
    """Return what is subtracted from advantages, and what they are then multiplied by."""
    n_rows, mean, squares = len(advantages), 0.0, 0.0
    if not normalize or n_rows < 2:  # one number has no spread
        return 0.0, 1.0
    for r in range(n_rows):
        mean += np.float64(advantages[r])
    mean /= n_rows
    for r in range(n_rows):
        apart = np.float64(advantages[r]) - mean
        squares += apart * apart
    return mean, 1.0 / (np.sqrt(squares / (n_rows - 1)) + 1e-8)


@_compile
def step_losses(n_rows, batch, values, grad_values, coefficients, scratch, terms):  # type: ignore[no-untyped-def]
    """Compute what is one number a step: the terms, and gradients of log-probabilities and values.

    :param batch: addresses of old log-probabilities, old values, advantages and returns
    :param values: ``[n_rows, ...]``, a row's first number
    :param grad_values: output, likewise; its other numbers become zero
    :param coefficients: ``clip_range``, ``clip_range_vf`` (infinity for no clipping), ``ent_coef``,
        ``vf_coef``, and whether to normalise advantages
    :param terms: output, means over rows of the policy's, the critic's and the entropy loss, of
        clipped rows, and of the KL estimate, float64
    """
    clip, clip_vf = _f32(coefficients[0]), _f32(coefficients[1])
    work = _rows_of(scratch, n_rows)
    for part in range(4):
        into = work[_OLD_LOG_PROB + part]
        into[:n_rows] = carray(numbers_at(batch[part]), n_rows)
        into[n_rows:] = _f32(0)
    value = work[_VALUE]
    for r in range(n_rows):
        value[r] = values[r, 0]
    value[n_rows:] = _f32(0)
    mean, scale = _normalization(work[_ADVANTAGE][:n_rows], coefficients[4] > 0)

    zero, one = spread(_f32(0)), spread(_f32(1))
    high, low = spread(_f32(1.0 + coefficients[0])), spread(_f32(1.0 - coefficients[0]))
    each, each_value = spread(_f32(-1.0 / n_rows)), spread(_f32(2.0 * coefficients[3] / n_rows))
    size = 4 * padded(n_rows)
    for at in range(scratch, scratch + size, _BYTES):
        advantage = load(at + _ADVANTAGE * size) - spread(_f32(mean))
        advantage = advantage * spread(_f32(scale))
        log_ratio = load(at + _LOG_PROB * size) - load(at + _OLD_LOG_PROB * size)
        ratio = exp(log_ratio)
        # Comparisons, here and below, that let a NaN through.
        clipped = where_greater(ratio, high, high, ratio)
        clipped = where_greater(low, clipped, low, clipped)
        # A clipped ratio passes no gradient, unless the plain one is the worse of the two.
        plain, other = advantage * ratio, advantage * clipped
        surrogate = where_greater(plain, other, other, plain)
        store(at + _GRAD * size, where_greater(plain, other, zero, surrogate * each))
        store(at + _POLICY * size, zero - surrogate)
        apart = ratio - one
        over = where_greater(apart, spread(clip), one, zero)
        over = where_greater(zero - apart, spread(clip), one, over)
        store(at + _CLIPPED * size, over)
        store(at + _KL * size, apart - log_ratio)

        now, old = load(at + _VALUE * size), load(at + _OLD_VALUE * size)
        change, bound = now - old, spread(clip_vf)
        passes = where_greater(change, bound, zero, each_value)
        passes = where_greater(zero - change, bound, zero, passes)
        shown = where_greater(change, bound, old + bound, now)
        shown = where_greater(zero - change, bound, old - bound, shown)
        error = shown - load(at + _RETURN * size)
        store(at + _CRITIC * size, error * error)
        store(at + _VALUE * size, passes * error)
    for r in range(n_rows):
        grad_values[r] = _f32(0)
        grad_values[r, 0] = value[r]
    terms[0] = _mean(work[_POLICY], n_rows)
    terms[1] = _mean(work[_CRITIC], n_rows)
    terms[2] = _mean(work[_MINUS_ENTROPY], n_rows)
    terms[3] = _mean(work[_CLIPPED], n_rows)
    terms[4] = _mean(work[_KL], n_rows)


@_compile
def _mean(numbers, n_rows):  # type: ignore[no-untyped-def]
    result = 0.0
    for r in range(n_rows):
        result += np.float64(numbers[r])
    return result / n_rows

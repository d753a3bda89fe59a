"""Clipping by the global norm, and Adam, compiled by Numba, on torch's own memory.

See Kingma and Ba, https://arxiv.org/abs/1412.6980, and ``torch.optim.Adam``. Import this file only
where Numba is installed.
"""

from __future__ import annotations

import numpy as np

from thrust_pomdp.recurrent.jit import compile_exactly as _compile
from thrust_pomdp.recurrent.vectors import (
    PANEL,
    carray,
    fma,
    load,
    numbers_at,
    root,
    spread,
    store,
    total,
)

_f32 = np.float32

#: Columns of the table of parameters, a row for each: how many numbers, and where they lie, their
#: gradients, Adam's two moments and its count of steps.
PARAMETER = ("numbers", "weight", "grad", "exp_avg", "exp_avg_sq", "step")
_NUMBERS, _WEIGHT, _GRAD, _EXP_AVG, _EXP_AVG_SQ, _STEP = range(len(PARAMETER))

#: Bytes of a vector, and of the numbers whose squares are summed in float32.
_BYTES, _PART = 4 * PANEL, 4 * PANEL * 64


@_compile
def gradient_norm(parameters):  # type: ignore[no-untyped-def]
    """Return the norm of all gradients together."""
    squares = 0.0
    for p in range(len(parameters)):
        grad, end = parameters[p, _GRAD], 4 * parameters[p, _NUMBERS]
        whole = end - end % _BYTES
        for begin in range(0, whole, _PART):
            sums = spread(_f32(0))
            for at in range(begin, min(begin + _PART, whole), _BYTES):
                numbers = load(grad + at)
                sums = fma(numbers, numbers, sums)
            squares += np.float64(total(sums))
        rest = carray(numbers_at(grad + whole), (end - whole) // 4)
        for j in range(len(rest)):
            squares += np.float64(rest[j]) * np.float64(rest[j])
    return np.sqrt(squares)


@_compile
def _power(base, n):  # type: ignore[no-untyped-def]
    """Return ``base^n`` by multiplications only, which are the same everywhere."""
    result = 1.0
    while n > 0:
        if n % 2 == 1:
            result *= base
        base *= base
        n //= 2
    return result


@_compile
def _move(weight, grad, exp_avg, exp_avg_sq, numbers):  # type: ignore[no-untyped-def]
    """Clip, update the moments and move 16 weights, all given by addresses."""
    scale, take_1, keep_2, take_2, root_2, eps, rate = numbers
    g = load(grad) * spread(scale)
    first, second = load(exp_avg), load(exp_avg_sq)
    first = fma(g - first, spread(take_1), first)
    second = fma(g * spread(take_2), g, second * spread(keep_2))
    moved = first / (root(second) / spread(root_2) + spread(eps))
    store(grad, g)
    store(exp_avg, first)
    store(exp_avg_sq, second)
    store(weight, load(weight) - spread(rate) * moved)


@_compile
def adam(parameters, scale, coefficients, scratch):  # type: ignore[no-untyped-def]
    """Clip gradients and take one step of Adam, in place.

    :param parameters: table of addresses, int64 ``[n, len(PARAMETER)]``
    :param scale: what gradients are multiplied by first
    :param coefficients: learning rate, the two betas, epsilon
    :param scratch: address of 64 numbers to work in
    """
    rate, beta_1, beta_2, eps = coefficients[0], coefficients[1], coefficients[2], coefficients[3]
    rest = carray(numbers_at(scratch), (4, PANEL))
    rest[:] = _f32(0)
    for p in range(len(parameters)):
        row = parameters[p]
        step = carray(numbers_at(row[_STEP]), 1)
        step[0] += _f32(1)
        n = np.int64(step[0])
        correction_1, correction_2 = 1.0 - _power(beta_1, n), 1.0 - _power(beta_2, n)
        numbers = (
            _f32(scale),
            _f32(1.0 - beta_1),
            _f32(beta_2),
            _f32(1.0 - beta_2),
            _f32(np.sqrt(correction_2)),
            _f32(eps),
            _f32(rate / correction_1),
        )
        end = 4 * row[_NUMBERS]
        whole = end - end % _BYTES
        for at in range(0, whole, _BYTES):
            _move(
                row[_WEIGHT] + at,
                row[_GRAD] + at,
                row[_EXP_AVG] + at,
                row[_EXP_AVG_SQ] + at,
                numbers,
            )
        n_rest = (end - whole) // 4
        if n_rest > 0:
            for part in range(4):
                rest[part, :n_rest] = carray(numbers_at(row[_WEIGHT + part] + whole), n_rest)
            _move(scratch, scratch + _BYTES, scratch + 2 * _BYTES, scratch + 3 * _BYTES, numbers)
            for part in range(4):
                carray(numbers_at(row[_WEIGHT + part] + whole), n_rest)[:] = rest[part, :n_rest]

"""Exponential, logarithm and the activations of networks, of vectors.

Made of additions, multiplications and divisions only, with each rounding as written: the digits do
not depend on the processor. NaN stays NaN. Import this file only where Numba is installed.
"""

from __future__ import annotations

import numpy as np

from thrust_pomdp.recurrent.jit import compile_exactly as _compile
from thrust_pomdp.recurrent.vectors import exponent, fma, halvings, mantissa, spread, where_greater

_f32 = np.float32

_LOG2_E = _f32(1.4426950408889634)

#: Beyond, exponentials and their products would leave the range of numbers with all digits.
_BOUND = _f32(100)

#: Added to a number, it leaves its nearest integer plus 127 in the last bits, where the exponent of
#: a float32 goes: 1.5 * 2^23 and an exponent's offset.
_ROUND = _f32(12582912 + 127)

#: Beyond, exponentials are infinite, or zero.
_GREATEST, _LEAST = _f32(89), _f32(-104)

#: The logarithm of 2 in two parts, the first of few digits.
_LN2_HIGH, _LN2_LOW = _f32(0.693359375), _f32(-2.12194440e-4)


@_compile
def _less_one(r):  # type: ignore[no-untyped-def]
    """Return ``2^r - 1`` for r in [-1/2, 1/2], to 1e-8."""
    p = fma(r, spread(_f32(0.00015403512225)), spread(_f32(0.0013390735257)))
    p = fma(r, p, spread(_f32(0.0096182376146)))
    p = fma(r, p, spread(_f32(0.055503573269)))
    p = fma(r, p, spread(_f32(0.24022649229)))
    p = fma(r, p, spread(_f32(0.69314718246)))
    return r * p


@_compile
def power(x):  # type: ignore[no-untyped-def]
    """Return ``2^x`` and ``2^x - 1``, bounded by ``2^-100`` and ``2^100``."""
    greatest, least, rounder = spread(_BOUND), spread(-_BOUND), spread(_ROUND)
    # Comparisons, not min and max: these would turn a NaN into a bound.
    x = where_greater(x, greatest, greatest, x)
    x = where_greater(least, x, least, x)
    rounded = x + rounder
    p = _less_one(x - (rounded - rounder))
    whole = exponent(rounded)
    return fma(whole, p, whole), fma(whole, p, whole - spread(_f32(1)))


@_compile
def sigmoid(x):  # type: ignore[no-untyped-def]
    """Return the sigmoid, its slope, and what it lacks to 1, each to 4e-6 of itself.

    Not from one another: near 1 a float32 has lost the digits of what is missing, and with them the
    gradient of a gate that is nearly open.
    """
    e, _ = power(spread(-_LOG2_E) * x)
    one = spread(_f32(1))
    s = one / (one + e)
    lack = e * s
    return s, lack * s, lack


@_compile
def tanh(x):  # type: ignore[no-untyped-def]
    """Return the tanh, to 5e-7 of itself, and its slope, to 4e-6."""
    e, less = power(spread(_f32(-2) * _LOG2_E) * x)
    one = spread(_f32(1))
    s = one / (one + e)
    return (spread(_f32(0)) - less) * s, spread(_f32(4)) * (e * s) * s


@_compile
def exp(x):  # type: ignore[no-untyped-def]
    """Return the exponential, to 2e-7 of itself; infinite and zero where a float32's is."""
    greatest, least, rounder = spread(_GREATEST), spread(_LEAST), spread(_ROUND)
    x = where_greater(x, greatest, greatest, x)
    x = where_greater(least, x, least, x)
    # 2^n comes in two factors, since its exponent alone may be beyond what one can have.
    rounded = x * spread(_LOG2_E) + rounder
    n = rounded - rounder
    r = fma(n, spread(-_LN2_HIGH), x)
    r = fma(n, spread(-_LN2_LOW), r)
    p = _less_one(r * spread(_LOG2_E))
    half = n * spread(_f32(0.5)) + rounder
    whole = exponent(half)
    rest = exponent(n - (half - rounder) + rounder)
    return fma(whole, p, whole) * rest


@_compile
def log(x):  # type: ignore[no-untyped-def]
    """Return the logarithm, to 1e-7 of itself or 1e-7; of positive normal numbers.

    The polynomial is that of Cephes' ``logf``.
    """
    n, z = halvings(x), mantissa(x) - spread(_f32(1))
    p = fma(spread(_f32(7.0376836292e-2)), z, spread(_f32(-1.1514610310e-1)))
    p = fma(p, z, spread(_f32(1.1676998740e-1)))
    p = fma(p, z, spread(_f32(-1.2420140846e-1)))
    p = fma(p, z, spread(_f32(1.4249322787e-1)))
    p = fma(p, z, spread(_f32(-1.6668057665e-1)))
    p = fma(p, z, spread(_f32(2.0000714765e-1)))
    p = fma(p, z, spread(_f32(-2.4999993993e-1)))
    p = fma(p, z, spread(_f32(3.3333331174e-1)))
    square = z * z
    y = fma(n, spread(_LN2_LOW), square * z * p)
    y = fma(square, spread(_f32(-0.5)), y)
    # What is no number, or infinite, gives NaN.
    return fma(n, spread(_LN2_HIGH), z + y) + (x - x)

"""Exponential and activations of vectors: precise from end to end, and NaN stays NaN."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from thrust_pomdp.recurrent.compiled import load_kernels

if load_kernels() is None:
    pytest.skip("Numba is missing or switched off", allow_module_level=True)

import numba

from thrust_pomdp.recurrent import functions, vectors


@numba.njit
def _run(x, exps, tanhs, tanh_slopes, sigmoids, slopes, lacks):
    for at in range(0, 4 * len(x), 64):
        given = vectors.load(vectors.address(x) + at)
        vectors.store(vectors.address(exps) + at, functions.exp(given))
        y, slope = functions.tanh(given)
        vectors.store(vectors.address(tanhs) + at, y)
        vectors.store(vectors.address(tanh_slopes) + at, slope)
        y, slope, lack = functions.sigmoid(given)
        vectors.store(vectors.address(sigmoids) + at, y)
        vectors.store(vectors.address(slopes) + at, slope)
        vectors.store(vectors.address(lacks) + at, lack)


def apply(x: Any) -> list[np.ndarray]:
    """Return exp, tanh and its slope, sigmoid, its slope and what it lacks to 1."""
    numbers = np.zeros(-(-len(x) // 16) * 16, dtype=np.float32)
    numbers[: len(x)] = x
    outputs = [np.empty_like(numbers) for _ in range(6)]
    _run(numbers, *outputs)
    return [output[: len(x)] for output in outputs]


@pytest.fixture(scope="module")
def x():
    small = np.logspace(-30, 1, 1000)
    return np.concatenate([np.linspace(-104, 88.7, 200_001), small, -small]).astype(np.float32)


class TestActivations:
    """In float32's precision of themselves, and so are slopes, from end to end."""

    def test_of_tanh(self, x):
        x = x[np.abs(x) <= 34]
        _, y, slopes, *_ = apply(x)
        exact = x.astype(np.float64)
        np.testing.assert_allclose(y, np.tanh(exact), rtol=5e-7, atol=0)
        np.testing.assert_allclose(slopes, np.cosh(exact) ** -2, rtol=4e-6, atol=0)
        assert np.abs(y).max() <= 1.0

    def test_of_the_sigmoid(self, x):
        x = x[np.abs(x) <= 68]
        *_, y, slopes, lacks = apply(x)
        exact = x.astype(np.float64)
        np.testing.assert_allclose(y, 1 / (1 + np.exp(-exact)), rtol=4e-6, atol=0)
        np.testing.assert_allclose(lacks, 1 / (1 + np.exp(exact)), rtol=4e-6, atol=0)
        np.testing.assert_allclose(slopes, np.cosh(exact / 2) ** -2 / 4, rtol=4e-6, atol=0)
        assert y.max() <= 1.0

    @pytest.mark.parametrize("x", [40.0, 100.0, 1e4, 1e30, math.inf])
    def test_beyond_they_stay_what_they_are(self, x):
        _, y, slope, *_ = apply([x, -x])
        assert y.tolist() == [1.0, -1.0]
        assert slope.tolist() == [pytest.approx(4 * 2.0**-100)] * 2
        *_, y, slope, lack = apply([2 * x, -2 * x])
        assert y.tolist() == [1.0, pytest.approx(2.0**-100)]
        assert lack.tolist() == [pytest.approx(2.0**-100), 1.0]
        assert slope.tolist() == [pytest.approx(2.0**-100)] * 2

    def test_at_zero(self):
        assert [part[0] for part in apply([0.0])] == [1.0, 0.0, 1.0, 0.5, 0.25, 0.5]

    def test_keep_nan(self):
        assert all(
            np.isnan(part).tolist() == [False, True, False] for part in apply([1, np.nan, 2])
        )


class TestExp:
    def test_is_precise_where_it_is_a_normal_number(self, x):
        x = x[x > -87]
        np.testing.assert_allclose(apply(x)[0], np.exp(x.astype(np.float64)), rtol=2e-7)

    def test_ends_where_float32_ends(self):
        x = np.array([88.73, 89, 1e10, np.inf, -104, -1e10, -np.inf], dtype=np.float32)
        assert apply(x)[0].tolist() == [math.inf] * 4 + [0.0] * 3

    def test_small_results_lose_digits_as_float32_does(self):
        x = np.linspace(-103, -87.4, 1000).astype(np.float32)
        exact = np.exp(x.astype(np.float64))
        np.testing.assert_allclose(apply(x)[0], exact, rtol=2e-7, atol=2.0**-149)


@numba.njit
def _logs(x, out):
    for at in range(0, 4 * len(x), 64):
        logs = functions.log(vectors.load(vectors.address(x) + at))
        vectors.store(vectors.address(out) + at, logs)


class TestLog:
    def test_is_precise(self):
        x = np.concatenate([np.linspace(0.5, 2, 10_000), np.logspace(-37, 38, 10_000)])
        x = x[: len(x) // 16 * 16].astype(np.float32)
        out = np.empty_like(x)
        _logs(x, out)
        np.testing.assert_allclose(out, np.log(x.astype(np.float64)), rtol=1.5e-7, atol=1e-7)

    def test_keeps_nan(self):
        x = np.ones(16, dtype=np.float32)
        x[3] = np.nan
        out = np.empty_like(x)
        _logs(x, out)
        assert np.flatnonzero(np.isnan(out)).tolist() == [3]
        assert np.nansum(out) == 0


@numba.njit
def _pick(a, b, out, n):
    first, second = vectors.load(vectors.address(a)), vectors.load(vectors.address(b))
    place = vectors.address(out)
    vectors.store(place, vectors.where_greater(first, second, first, second))
    vectors.store(place + 64, vectors.no_less(first, second))
    vectors.store(place + 128, vectors.first_lanes(n, first, second))
    vectors.store(place + 192, vectors.root(first * first))
    return vectors.total(first), vectors.lane(second, n)


def test_lanes_are_chosen_one_by_one_and_summed_by_halves():
    generator = np.random.default_rng(0)
    a, b = generator.standard_normal((2, 16)).astype(np.float32)
    a[3], b[5] = np.nan, np.nan
    out = np.empty((4, 16), dtype=np.float32)
    with np.errstate(invalid="ignore"):
        _pick(a, b, out, 7)
        np.testing.assert_array_equal(out[0], np.where(a > b, a, b))
        np.testing.assert_array_equal(out[1], np.maximum(a, b))
        np.testing.assert_array_equal(out[2], np.where(np.arange(16) < 7, a, b))
        np.testing.assert_array_equal(out[3], np.sqrt(a * a))
    a[3] = 1e8
    halves = a.copy()
    while len(halves) > 1:
        halves = halves[: len(halves) // 2] + halves[len(halves) // 2 :]
    assert _pick(a, b, out, 7) == (halves[0], b[7])

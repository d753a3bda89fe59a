"""Products of any sizes, in one order of additions."""

from __future__ import annotations

import numpy as np
import pytest

from thrust_pomdp.recurrent.compiled import load_kernels

kernels = load_kernels()
pytestmark = pytest.mark.skipif(kernels is None, reason="Numba is missing or switched off")

SIZES = [
    (rows, terms, size, n_blocks)
    for rows in (1, 2, 3, 4, 5, 8, 11)
    for terms in (0, 1, 5, 68)
    for size, n_blocks in ((1, 1), (16, 1), (17, 3), (33, 4), (64, 1))
] + [(2, 1300, 20, 1), (600, 3, 5, 2)]


def one_by_one(left: np.ndarray, right: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Add term after term; the product of two float32 is exact in float64, and rounded once."""
    total = given.copy()
    for k in range(left.shape[1]):
        product = left[:, k, None].astype(np.float64) * right[k].astype(np.float64)
        # Rounded twice, to float64 and then to float32: the same but in one case of 2^29.
        total = (total + product).astype(np.float32)
    return total


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def in_blocks(rows: np.ndarray, n_blocks: int) -> np.ndarray:
    """Pad each block of columns to a multiple of 16."""
    size = rows.shape[1] // n_blocks
    blocks = rows.reshape(len(rows), n_blocks, size)
    width = kernels.padded(size)
    padded = np.pad(blocks, ((0, 0), (0, 0), (0, width - size)))
    return padded.reshape(len(rows), n_blocks * width)


@pytest.mark.parametrize(("rows", "terms", "size", "n_blocks"), SIZES)
class TestEverySize:
    def test_a_product_is_one_chain_of_additions(self, rows, terms, size, n_blocks):
        left, weight = numbers(1, rows, terms), numbers(2, n_blocks * size, terms)
        panels = kernels.panels(terms, n_blocks, size)
        panels[:] = np.nan
        kernels.pack(weight, n_blocks, 0, panels)
        out = in_blocks(numbers(3, rows, n_blocks * size), n_blocks)
        expected = one_by_one(left, in_blocks(weight.T, n_blocks), out)
        kernels.add_product(left, panels, 0, out)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
        assert (out == expected).mean() > 0.999

    def test_in_two_parts_it_is_the_same(self, rows, terms, size, n_blocks):
        left, weight = numbers(1, rows, terms), numbers(2, n_blocks * size, terms)
        panels = kernels.panels(terms, n_blocks, size)
        cut = terms // 3
        kernels.pack(weight[:, :cut].copy(), n_blocks, 0, panels)
        kernels.pack(weight[:, cut:].copy(), n_blocks, cut, panels)
        once, twice = np.zeros((2, rows, len(panels) * 16), dtype=np.float32)
        kernels.add_product(left, panels, 0, once)
        kernels.add_product(left[:, :cut], panels, 0, twice)
        kernels.add_product(left[:, cut:], panels, cut, twice)
        np.testing.assert_array_equal(once, twice)

    def test_rows_are_alone(self, rows, terms, size, n_blocks):
        left, weight = numbers(1, rows, terms), numbers(2, n_blocks * size, terms)
        panels = kernels.panels(terms, n_blocks, size)
        kernels.pack(weight, n_blocks, 0, panels)
        together, alone = np.zeros((2, rows, len(panels) * 16), dtype=np.float32)
        kernels.add_product(left, panels, 0, together)
        for row in range(rows):
            kernels.add_product(left[row : row + 1], panels, 0, alone[row : row + 1])
        np.testing.assert_array_equal(together, alone)

    def test_back_it_is_multiplied_by_the_weight(self, rows, terms, size, n_blocks):
        if terms == 0:
            pytest.skip("there is nothing to go back to")
        weight, grad = numbers(2, n_blocks * size, terms), numbers(4, rows, n_blocks * size)
        panels = kernels.back_panels(weight, n_blocks)
        kernels.pack_back(weight, n_blocks, panels)
        out = np.zeros((rows, len(panels) * 16), dtype=np.float32)
        kernels.add_product(in_blocks(grad, n_blocks), panels, 0, out)
        np.testing.assert_allclose(out[:, :terms], grad @ weight, rtol=1e-4, atol=1e-4)
        assert not out[:, terms:].any()

    def test_gradients_of_weights_and_biases(self, rows, terms, size, n_blocks):
        left, grad = numbers(1, rows, terms), numbers(4, rows, n_blocks * size)
        blocks = in_blocks(grad, n_blocks)
        outer = np.zeros((terms, blocks.shape[1]), dtype=np.float32)
        kernels.add_outer(left, blocks, outer)
        weight = np.full((n_blocks * size, terms), np.nan, dtype=np.float32)
        kernels.unpack_gradient(outer, n_blocks, 0, weight)
        np.testing.assert_allclose(weight, grad.T @ left, rtol=1e-4, atol=1e-4)
        sums = np.zeros(blocks.shape[1], dtype=np.float32)
        kernels.add_sums(blocks, sums)
        np.testing.assert_allclose(sums, blocks.sum(axis=0), rtol=1e-4, atol=1e-4)


def test_rows_may_lie_apart():
    left, out = numbers(1, 5, 40), np.zeros((5, 3, 32), dtype=np.float32)
    weight = numbers(2, 20, 7)
    panels = kernels.panels(7, 1, 20)
    kernels.pack(weight, 1, 0, panels)
    kernels.add_product(left[:, 11:18], panels, 0, out[:, 1])
    np.testing.assert_allclose(out[:, 1, :20], left[:, 11:18] @ weight.T, rtol=1e-4, atol=1e-5)
    assert not out[:, [0, 2]].any()


def test_a_nan_stays_in_its_row_and_its_output():
    left, weight = numbers(1, 5, 6), numbers(2, 20, 6)
    left[3, 2], weight[7, 1] = np.nan, np.nan
    panels = kernels.panels(6, 1, 20)
    kernels.pack(weight, 1, 0, panels)
    out = np.zeros((5, 32), dtype=np.float32)
    kernels.add_product(left, panels, 0, out)
    expected = np.zeros((5, 32), dtype=bool)
    expected[3], expected[:, 7] = True, True
    np.testing.assert_array_equal(np.isnan(out), expected)

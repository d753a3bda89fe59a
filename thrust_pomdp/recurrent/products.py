"""Matrix products of float32 arrays in an order of additions that the code fixes.

Weights are packed once and used many times: in panels of 16 outputs, one term's 16 weights side by
side, so that a block of four rows and one or two panels stays in registers while the terms go by.
What a product is added to has as many columns as the panels have, at least.

Outputs come in blocks, such as the gates of a recurrent layer, each as wide as ``padded`` says: a
multiple of 16. Columns beyond the block's own are zero in weights.

See :mod:`thrust_pomdp.recurrent.vectors`. Import this file only where Numba is installed.
"""

from __future__ import annotations

import numpy as np

from thrust_pomdp.recurrent.jit import compile_apart
from thrust_pomdp.recurrent.jit import compile_exactly as _compile
from thrust_pomdp.recurrent.vectors import PAIRED, PANEL, address, product_block

__all__ = [
    "add_outer", "add_product", "add_sums", "back_panels", "pack", "pack_back", "padded", "panels",
    "unpack_gradient",
]  # fmt: skip

_four, _three, _two, _one = (product_block(n_rows, 1) for n_rows in (4, 3, 2, 1))
_four_2, _three_2, _two_2, _one_2 = (product_block(n_rows, 2) for n_rows in (4, 3, 2, 1))
_four_4, _three_4, _two_4, _one_4 = (product_block(n_rows, 4) for n_rows in (4, 3, 2, 1))

#: Terms of a panel that a core keeps close: 32 kB.
_TERMS = 512

#: Rows whose gradients are copied into panels at once.
_ROWS = 256


@_compile
def padded(n):  # type: ignore[no-untyped-def]
    """Return the multiple of 16 that holds ``n`` columns."""
    return (n + PANEL - 1) // PANEL * PANEL


@_compile
def panels(n_terms, n_blocks, size):  # type: ignore[no-untyped-def]
    """Return an array for the packed weights of so many blocks of ``size`` outputs each."""
    return np.empty((n_blocks * (padded(size) // PANEL), n_terms, PANEL), dtype=np.float32)


@_compile
def pack(weight, n_blocks, first, packed):  # type: ignore[no-untyped-def]
    """Pack a weight as torch has it: its rows are the outputs.

    :param weight: ``[n_blocks * size, inputs]``
    :param first: the term that the first input is
    :param packed: output, of :func:`panels`
    """
    n_inputs, size = weight.shape[1], weight.shape[0] // n_blocks
    in_block = padded(size) // PANEL
    for panel in range(n_blocks * in_block):
        row = panel // in_block * size + panel % in_block * PANEL
        width = min(PANEL, size - panel % in_block * PANEL)
        for k in range(n_inputs):
            for j in range(width):
                packed[panel, first + k, j] = weight[row + j, k]
            for j in range(width, PANEL):
                packed[panel, first + k, j] = np.float32(0)


@_compile
def back_panels(weight, n_blocks):  # type: ignore[no-untyped-def]
    """Return an array for a weight packed by :func:`pack_back`."""
    size, n_outputs = weight.shape[0] // n_blocks, weight.shape[1]
    shape = (padded(n_outputs) // PANEL, n_blocks * padded(size), PANEL)
    return np.empty(shape, dtype=np.float32)


@_compile
def pack_back(weight, n_blocks, packed):  # type: ignore[no-untyped-def]
    """Pack a weight for the way back: blocks of gradients are multiplied by it as torch has it.

    :param weight: ``[n_blocks * size, outputs]``
    :param packed: output, of :func:`back_panels`
    """
    size, n_outputs = weight.shape[0] // n_blocks, weight.shape[1]
    block_terms = padded(size)
    packed[:] = np.float32(0)
    for panel in range(packed.shape[0]):
        width = min(PANEL, n_outputs - panel * PANEL)
        for block in range(n_blocks):
            for k in range(size):
                for j in range(width):
                    number = weight[block * size + k, panel * PANEL + j]
                    packed[panel, block * block_terms + k, j] = number


@_compile
def unpack_gradient(outer, n_blocks, first, weight):  # type: ignore[no-untyped-def]
    """Lay out what :func:`add_outer` gave as torch has the weight.

    :param outer: ``[terms, n_blocks * padded(size)]``
    :param first: the term that the weight's first input is
    :param weight: output, ``[n_blocks * size, inputs]``
    """
    n_inputs, size = weight.shape[1], weight.shape[0] // n_blocks
    width = padded(size)
    for block in range(n_blocks):
        for begin in range(0, size, PANEL):
            for k in range(n_inputs):
                for j in range(begin, min(begin + PANEL, size)):
                    weight[block * size + j, k] = outer[first + k, block * width + j]


@_compile
def _rows(left, left_row, left_step, n_rows, panels, panel_size, out, out_row, n_terms):  # type: ignore[no-untyped-def]  # fmt: skip
    """Add the product of any number of rows and one panel, all given by addresses."""
    while n_rows >= 4:
        _four(left, left_row, left_step, panels, panel_size, out, out_row, n_terms)
        left, out, n_rows = left + 16 * left_row, out + 16 * out_row, n_rows - 4
    if n_rows == 3:
        _three(left, left_row, left_step, panels, panel_size, out, out_row, n_terms)
    elif n_rows == 2:
        _two(left, left_row, left_step, panels, panel_size, out, out_row, n_terms)
    elif n_rows == 1:
        _one(left, left_row, left_step, panels, panel_size, out, out_row, n_terms)


@_compile
def _rows_2(left, left_row, left_step, n_rows, panels, panel_size, out, out_row, n_terms):  # type: ignore[no-untyped-def]  # fmt: skip
    """Do the same for two panels."""
    while n_rows >= 4:
        _four_2(left, left_row, left_step, panels, panel_size, out, out_row, n_terms)
        left, out, n_rows = left + 16 * left_row, out + 16 * out_row, n_rows - 4
    if n_rows == 3:
        _three_2(left, left_row, left_step, panels, panel_size, out, out_row, n_terms)
    elif n_rows == 2:
        _two_2(left, left_row, left_step, panels, panel_size, out, out_row, n_terms)
    elif n_rows == 1:
        _one_2(left, left_row, left_step, panels, panel_size, out, out_row, n_terms)


@_compile
def _rows_4(left, left_row, left_step, n_rows, panels, panel_size, out, out_row, n_terms):  # type: ignore[no-untyped-def]  # fmt: skip
    """Do the same for four panels."""
    while n_rows >= 4:
        _four_4(left, left_row, left_step, panels, panel_size, out, out_row, n_terms)
        left, out, n_rows = left + 16 * left_row, out + 16 * out_row, n_rows - 4
    if n_rows == 3:
        _three_4(left, left_row, left_step, panels, panel_size, out, out_row, n_terms)
    elif n_rows == 2:
        _two_4(left, left_row, left_step, panels, panel_size, out, out_row, n_terms)
    elif n_rows == 1:
        _one_4(left, left_row, left_step, panels, panel_size, out, out_row, n_terms)


@compile_apart("thrust_pomdp_add_product", 10)
def _add(left, left_row, left_step, n_rows, panels, n_panels, panel_size, out, out_row, n_terms):  # type: ignore[no-untyped-def]  # fmt: skip
    """Do the same for any number of panels."""
    # One row alone leaves registers for more panels.
    fours = n_panels - n_panels % 4 if PAIRED or n_rows == 1 else 0
    for panel in range(0, fours, 4):
        _rows_4(
            left, left_row, left_step, n_rows, panels + 4 * panel * panel_size, panel_size,
            out + 4 * panel * PANEL, out_row, n_terms,
        )  # fmt: skip
    paired = n_panels - n_panels % 2 if PAIRED else fours
    for panel in range(fours, paired, 2):
        _rows_2(
            left, left_row, left_step, n_rows, panels + 4 * panel * panel_size, panel_size,
            out + 4 * panel * PANEL, out_row, n_terms,
        )  # fmt: skip
    for panel in range(paired, n_panels):
        _rows(
            left, left_row, left_step, n_rows, panels + 4 * panel * panel_size, panel_size,
            out + 4 * panel * PANEL, out_row, n_terms,
        )  # fmt: skip


@_compile
def add_product(left, panels, first, out):  # type: ignore[no-untyped-def]
    """Add ``left @ weights`` to ``out``.

    :param left: ``[rows, terms]``; rows may lie apart, numbers of a row may not
    :param panels: packed weights, ``[panels, all terms, 16]``
    :param first: which of all terms is the first of ``left``
    :param out: ``[rows, 16 * panels]`` or wider; rows may lie apart likewise
    """
    n_rows, n_terms = left.shape
    n_panels, n_all = panels.shape[0], panels.shape[1]
    a, w, o = address(left), address(panels) + 4 * first * PANEL, address(out)
    # Sums are put down after some terms, so that a panel's weights are at hand for the next rows.
    for begin in range(0, n_terms, _TERMS):
        some = min(_TERMS, n_terms - begin)
        _add(
            a + 4 * begin, left.strides[0] // 4, 1, n_rows, w + 4 * begin * PANEL, n_panels,
            n_all * PANEL, o, out.strides[0] // 4, some,
        )  # fmt: skip


@_compile
def add_outer(left, right, out):  # type: ignore[no-untyped-def]
    """Add ``left.T @ right`` to ``out``: the gradient of weights, transposed.

    :param left: what entered, ``[rows, inputs]``; rows may lie apart, numbers of a row may not
    :param right: gradients, ``[rows, 16 * panels]``, likewise
    :param out: ``[inputs, 16 * panels]``
    """
    (n_rows, n_inputs), n_panels = left.shape, right.shape[1] // PANEL
    packed = np.empty((n_panels, min(_ROWS, n_rows), PANEL), dtype=np.float32)
    left_row = left.strides[0] // 4
    for begin in range(0, n_rows, _ROWS):
        some = min(_ROWS, n_rows - begin)
        for panel in range(n_panels):
            for k in range(some):
                for j in range(PANEL):
                    packed[panel, k, j] = right[begin + k, panel * PANEL + j]
        _add(
            address(left) + 4 * begin * left_row, 1, left_row, n_inputs, address(packed), n_panels,
            packed.shape[1] * PANEL, address(out), out.strides[0] // 4, some,
        )  # fmt: skip
    packed[0, 0, 0] = 0  # in use until here, else it would be freed once its address is known


@_compile
def add_sums(right, out):  # type: ignore[no-untyped-def]
    """Add the sums over rows to ``out``: the gradient of a bias, row after row.

    :param right: ``[rows, columns]``
    :param out: ``[columns]`` or longer
    """
    for r in range(right.shape[0]):
        for j in range(right.shape[1]):
            out[j] += right[r, j]

"""Means and variances of numbers that lie in several blocks, the same whoever has which block."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.distributed.trees import tree_sum

Array = NDArray[np.float64]


def moments(numbers: NDArray[Any]) -> Array:
    """Return mean and sum of squared deviations along the last axis, ``[..., 2]`` float64."""
    wide = np.asarray(numbers, dtype=np.float64)
    mean = wide.mean(axis=-1, keepdims=True)
    squares = np.square(wide - mean).sum(axis=-1)
    return np.stack((mean[..., 0], squares), axis=-1)


def merged_rows(of_rows: Array, n: int, sizes: Sequence[int]) -> Array:
    """Merge the moments of rows that lie side by side into those of groups of them.

    :param of_rows: ``[..., n_rows, 2]``, each row of ``n`` numbers
    :param n: see there
    :param sizes: numbers of rows of the groups
    :return: ``[..., len(sizes), 2]``
    """
    bounds = np.cumsum([0, *sizes])
    groups = []
    for start, end in itertools.pairwise(bounds.tolist()):
        means, squares = np.moveaxis(of_rows[..., start:end, :], -1, 0)
        mean = means.mean(axis=-1, keepdims=True)
        between = n * np.square(means - mean).sum(axis=-1)
        groups.append(np.stack((mean[..., 0], squares.sum(axis=-1) + between), axis=-1))
    return np.stack(groups, axis=-2)


def merged_blocks(of_blocks: Sequence[Array], n: Any) -> Array:
    """Merge the moments of equally large blocks.

    >>> a, b = moments(np.array([1.0, 3.0])), moments(np.array([5.0, 7.0]))
    >>> merged_blocks([a, b], 2).tolist()  # of 1, 3, 5, 7
    [4.0, 20.0]

    :param of_blocks: of each block, ``[..., 2]``, in the order of the blocks
    :param n: numbers in a block, which broadcasts with ``[...]``
    """
    means = [block[..., 0] for block in of_blocks]
    mean = tree_sum(means) / len(of_blocks)
    squares = [block[..., 1] + n * np.square(block[..., 0] - mean) for block in of_blocks]
    return np.stack((mean, tree_sum(squares)), axis=-1)

"""Sums over blocks in a fixed order, so that rounding does not depend on who computed which block.

Neighbours are added, then neighbours of what that gave, and so on::

    blocks    0   1   2   3   4         rank 0: 0 1, rank 1: 2 3
    level 1    0+1     2+3    4
    level 2       0+..+3      4
    level 3           0+..+4

A process adds up its own blocks as far as the tree does, and sends only that.
"""

from __future__ import annotations

from typing import Any, TypeVar

#: Whatever can be added.
Term = TypeVar("Term", bound=Any)


def next_level(terms: list[Term]) -> list[Term]:
    """Add neighbours; a last one without a neighbour is left as it is."""
    return [
        terms[idx] + terms[idx + 1] if idx + 1 < len(terms) else terms[idx]
        for idx in range(0, len(terms), 2)
    ]


def tree_sum(terms: list[Term]) -> Term:
    """Add up all terms, always in the same order.

    >>> tree_sum([1e16, 1.0, -1e16, 1.0])  # (1e16 + 1) + (-1e16 + 1)
    0.0

    :param terms: at least one, in the order of the blocks
    """
    while len(terms) > 1:
        terms = next_level(terms)
    return terms[0]


def summed_alone(terms: list[Term]) -> list[Term]:
    """Add up the terms of one process as far as the tree of all of them does.

    All processes have equally many terms, so that neighbours at an even number of terms are
    neighbours in the whole. What is left, of all processes one after the other, is a level of the
    tree: :func:`tree_sum` of it is that of all terms.

    >>> summed_alone([1, 2, 3, 4, 5, 6])
    [3, 7, 11]
    """
    while len(terms) % 2 == 0:
        terms = next_level(terms)
    return terms

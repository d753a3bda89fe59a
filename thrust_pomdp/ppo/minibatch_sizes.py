"""How many whole sequences make a minibatch of so many time steps."""

from __future__ import annotations

from thrust_pomdp.arguments import check_count


def minibatch_sizes(batch_size: int | None, length: int, n_seq: int) -> list[int]:
    """Translate a minibatch size in time steps into numbers of whole sequences.

    There are as many minibatches as ``batch_size`` time steps each would make, if there are so many
    sequences.

    >>> minibatch_sizes(256, length=128, n_seq=8)
    [2, 2, 2, 2]
    >>> minibatch_sizes(256, length=128, n_seq=5)  # the last one takes what is left
    [2, 2, 1]
    >>> minibatch_sizes(192, length=128, n_seq=8)  # 1024 steps make six minibatches of 192
    [2, 2, 1, 1, 1, 1]
    >>> minibatch_sizes(64, length=128, n_seq=8)  # never less than one sequence
    [1, 1, 1, 1, 1, 1, 1, 1]

    :param batch_size: time steps; None for all
    :param length: steps of a sequence: a window or a subsequence
    :param n_seq: number of these
    """
    if batch_size is None:
        return [n_seq]
    check_count("batch_size", batch_size)
    if batch_size % length == 0:
        return sizes_of(n_seq, batch_size // length)
    n_minibatches = min(max(-(-n_seq * length // batch_size), 1), n_seq)
    whole, left = divmod(n_seq, n_minibatches)
    return [whole + (number < left) for number in range(n_minibatches)]


def sizes_of(n_seq: int, size: int) -> list[int]:
    """Divide sequences into minibatches of one size, the last one taking what is left."""
    return [min(size, n_seq - start) for start in range(0, n_seq, size)]

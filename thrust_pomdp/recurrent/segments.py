"""Windows cut at their episode starts, packed so that one call of torch's runs all episodes.

A layer that nothing but zero resets (no column of weights can reset a plain RNN) can start every
episode of the windows side by side instead. Longest first, a step takes in every episode that is
still going on, so no step is padding::

    windows                    a0 a1 a2 | b0 b1          (| marks an episode start)
                               c0 | d0 d1 d2 d3

    episodes, longest first    d0 d1 d2 d3
                               a0 a1 a2
                               b0 b1
                               c0

    packed                     d0 a0 b0 c0, d1 a1 b1, d2 a2, d3      (batch sizes 4, 3, 2, 1)

This is torch's ``PackedSequence``; the layer takes as many steps as the longest episode has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch as th
from numpy.typing import NDArray


class Segments(NamedTuple):
    """Where the steps of each window lie in the packed rows.

    Segments are a window's parts between episode starts; its first one need not start an episode.

    :param steps: index of each packed row in the windows, flattened, ``[n_seq * n_steps]``, int64
    :param places: the inverse: where each step of the windows lies in the packed rows
    :param batch_sizes: segments that are still going on at each step; int64, on the host, as torch
        wants it
    :param first: number of each window's first segment, longest first, ``[n_seq]``, int64
    :param last: likewise of its last one
    """

    steps: th.Tensor
    places: th.Tensor
    batch_sizes: th.Tensor
    first: th.Tensor
    last: th.Tensor

    @classmethod
    def of(cls, starts: NDArray[np.bool_], device: th.device | str) -> Segments:
        """Cut windows.

        :param starts: ``[n_seq, n_steps]``
        :param device: where the network runs
        """
        n_seq, n_steps = starts.shape
        cuts = starts.copy()
        cuts[:, 0] = True
        begins = np.flatnonzero(cuts)
        lengths = np.diff(begins, append=starts.size)
        rank = np.empty_like(lengths)
        rank[np.argsort(-lengths, kind="stable")] = np.arange(len(lengths))

        batch_sizes = len(lengths) - np.cumsum(np.bincount(lengths))[:-1]
        step_in_segment = np.arange(starts.size) - np.repeat(begins, lengths)
        row_of_step = np.cumsum(batch_sizes) - batch_sizes
        places = row_of_step[step_in_segment] + np.repeat(rank, lengths)
        borders = np.searchsorted(begins, n_steps * np.arange(n_seq + 1))
        on_device = (np.argsort(places), places, rank[borders[:-1]], rank[borders[1:] - 1])
        steps, places_, first, last = (th.from_numpy(part).to(device) for part in on_device)
        return cls(steps, places_, th.from_numpy(batch_sizes), first, last)

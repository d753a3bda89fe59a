"""Attention over the last steps of an episode, of one step and of whole windows (torch only).

A step attends to itself and to the ``context - 1`` steps before it, as far as they are of its
episode. :class:`BandAttention` computes one of them, or all of a window in blocks, so that time and
memory grow with the length of the window and not with its square: the same numbers.

Positions are relative, in the form of Transformer-XL (Z. Dai et al. 2019, arXiv 1901.02860, section
3.3): what a query ``q`` makes of a step with key ``k`` and distance ``t`` is ``((q + u) k + (q + v)
W R_t) / sqrt(size of a head)``, with sinusoids ``R_t`` and learned ``u``, ``v`` and ``W``.
"""

from __future__ import annotations

import math

import torch as th
from torch import nn
from torch.nn.functional import linear, pad

from thrust_pomdp import gate
from thrust_pomdp.errors import ArgumentError

#: Least number of queries that are computed at once: with fewer most time goes into calls.
_LEAST_BLOCK = 32

#: Segment of what fills up the last block. No step's is so low.
_NOBODYS = -2


@gate.remember
class BandAttention(nn.Module):
    """Multi-head attention in which a step sees a fixed number of steps up to itself.

    It is called with what is to attend: the last of some steps, ``attention(steps, count,
    distances)``, or all steps of windows, ``attention(steps, segments, distances, before)``.

    :param size: numbers of a step
    :param n_heads: heads, of ``size / n_heads`` numbers each
    :param context: steps that a step sees, itself among them
    :raises ValueError: if the heads cannot be of equal size
    """

    def __init__(self, size: int, n_heads: int, context: int) -> None:
        super().__init__()
        if size % n_heads:
            raise ArgumentError(
                f"n_heads must divide lstm_hidden_size, which is {size}, got {n_heads}"
            )
        self.n_heads, self.head_size, self.context = n_heads, size // n_heads, context
        self.query = nn.Linear(size, size, bias=False)
        # No layers: what attends alone has no keys and values for them to be called with.
        self.key = nn.Parameter(th.empty(size, size))
        self.value = nn.Parameter(th.empty(size, size))
        self.position = nn.Linear(size, size, bias=False)
        self.out = nn.Linear(size, size, bias=False)
        of_layers = [layer.weight for layer in (self.query, self.position, self.out)]
        for weight in (self.key, self.value, *of_layers):
            nn.init.xavier_uniform_(weight)
        #: Transformer-XL's ``u`` and ``v``.
        self.content_bias = nn.Parameter(th.zeros(n_heads, self.head_size))
        self.position_bias = nn.Parameter(th.zeros(n_heads, self.head_size))

    def forward(
        self,
        steps: th.Tensor,
        where: th.Tensor,
        distances: th.Tensor,
        before: th.Tensor | None = None,
    ) -> th.Tensor:
        """Let the last step attend, or all steps of windows where it is told what was before."""
        if before is None:
            return self._last(steps, where, distances)
        return self._windows(before, steps, where, distances)

    def _positions(self, distances: th.Tensor) -> th.Tensor:
        """Return what is learned of each distance, ``[n_heads, head_size, context]``.

        :param distances: what is told of them, from the farthest step to the step itself, as they
            lie in time, ``[context, size]``
        """
        learned: th.Tensor = self.position(distances)
        return learned.view(self.context, self.n_heads, self.head_size).permute(1, 2, 0)

    def _last(self, steps: th.Tensor, count: th.Tensor, distances: th.Tensor) -> th.Tensor:
        """Let the last of some steps attend.

        Keys and values are never made: queries are turned into what they look for in the steps, and
        what is seen of the steps is turned into values, which is less to compute for one query.

        :param steps: ``[n, context, size]``, in time order
        :param count: how many steps before the last one are of its episode, ``[n]``
        :param distances: as for :meth:`_positions`
        :return: ``[n, size]``
        """
        heads = self.n_heads, self.head_size
        query = self.query(steps[:, -1]).view(-1, *heads)
        looked_for = _by_head(query + self.content_bias, self.key.view(*heads, -1))
        scores = looked_for @ steps.transpose(1, 2)
        scores = scores + _by_head(query + self.position_bias, self._positions(distances))
        age = th.arange(self.context - 1, -1, -1, device=steps.device)
        unseen = age > count[:, None]
        scores = (scores / math.sqrt(self.head_size)).masked_fill(unseen[:, None], -th.inf)
        seen = scores.softmax(dim=2) @ steps
        values = _by_head(seen, self.value.view(*heads, -1).transpose(1, 2))
        attended: th.Tensor = self.out(values.flatten(1))
        return attended

    def _windows(
        self, before: th.Tensor, steps: th.Tensor, segments: th.Tensor, distances: th.Tensor
    ) -> th.Tensor:
        """Let all steps of windows attend.

        Rows of scores are a band: query ``i`` of a block sees keys ``i`` to ``i + context - 1`` of
        those that lie ``context - 1`` steps before the block to its end::

            query 0   k k k . . .
            query 1   . k k k . .      context 3, block of 4
            query 2   . . k k k .
            query 3   . . . k k k

        :param before: the steps before the windows, ``[n, context - 1, size]``
        :param steps: ``[n, n_steps, size]``
        :param segments: whole numbers of at least -1, equal where steps are of one episode,
            ``[n, context - 1 + n_steps]``
        :param distances: as for :meth:`_positions`
        :return: ``[n, n_steps, size]``
        """
        n, n_steps, size = steps.shape
        block = min(max(self.context, _LEAST_BLOCK), n_steps)
        n_blocks = -(-n_steps // block)
        fill = n_blocks * block - n_steps
        every = pad(th.cat((before, steps), dim=1), (0, 0, 0, fill))
        segments = pad(segments, (0, fill), value=_NOBODYS)

        def keys(of: th.Tensor) -> th.Tensor:
            """Cut into blocks of queries' keys, ``[n, n_blocks, ..., block + context - 1]``."""
            return of.unfold(1, block + self.context - 1, block)

        # What is no number is seen by those that may see it, and by nobody else: zero times NaN.
        # (A sum tells, twenty times as fast as asking all: these numbers come out of a norm.)
        spoilt = ~every.sum(dim=2).isfinite()
        every = every.masked_fill(spoilt[:, :, None], 0.0)
        own = self.context - 1
        query = self.query(every[:, own:]).view(n, n_blocks, block, self.n_heads, self.head_size)
        query = query.transpose(2, 3)
        heads = (n, -1, self.n_heads, self.head_size)
        scores = (query + self.content_bias[:, None]) @ keys(linear(every, self.key).view(heads))
        by_distance = (query + self.position_bias[:, None]) @ self._positions(distances)
        scores = scores + _as_band(by_distance)
        of_queries = segments[:, own:].view(n, n_blocks, block, 1)
        others = of_queries != keys(segments)[:, :, None]
        scores = (scores / math.sqrt(self.head_size)).masked_fill(others[:, :, None], -th.inf)
        values = keys(linear(every, self.value).view(heads)).transpose(-1, -2)
        attended = (scores.softmax(dim=4) @ values).transpose(2, 3).reshape(n, -1, size)
        in_band = th.ones(block, self.context, dtype=th.bool, device=steps.device)
        seen = _as_band(in_band, False) & ~others & keys(spoilt)[:, :, None]
        attended = attended.masked_fill(seen.any(dim=3).view(n, -1, 1), th.nan)
        output: th.Tensor = self.out(attended[:, :n_steps])
        return output


def _by_head(rows: th.Tensor, weights: th.Tensor) -> th.Tensor:
    """Multiply each head's rows by its matrix: ``[n, heads, a]``, ``[heads, a, b]``."""
    return (rows.transpose(0, 1) @ weights).transpose(0, 1)


def _as_band(rows: th.Tensor, outside: float = -math.inf) -> th.Tensor:
    """Shift row ``i`` of a block to the right by ``i``, ``[..., block, block + context - 1]``.

    Rows that are one longer than they shall be, one after the other, are shifted when they are cut
    anew: Transformer-XL's trick.

    :param rows: ``[..., block, context]``
    :param outside: what stands beside the band
    """
    block, context = rows.shape[-2:]
    long = pad(rows, (0, block), value=outside).flatten(-2)
    return long[..., :-block].reshape(*rows.shape[:-2], block, block + context - 1)


def sinusoids(size: int, n_distances: int) -> th.Tensor:
    """Return sines and cosines of distances from 0 on, ``[n_distances, size]``.

    Wave lengths grow from 2 pi to 10,000 times that, as in A. Vaswani et al. 2017.
    """
    table, half = th.empty(n_distances, size), (size + 1) // 2
    angles = th.arange(n_distances)[:, None] / 10_000.0 ** (2 * th.arange(half) / size)
    table[:, :half], table[:, half:] = angles.sin(), angles.cos()[:, : size - half]
    return table

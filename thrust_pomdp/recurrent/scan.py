"""A recurrence that is linear in its state, over whole windows at once, with exact resets.

::

    state[t] = keep[t] * state[t - 1] + added[t]        (nothing is kept where an episode starts)

Steps are combined in any order: what several of them do is told by a flag (does an episode start
among them), the product of what they keep and the state that they end in, and two such triples in a
row make a third. So steps are taken in blocks of eight, all blocks side by side; then blocks are
steps of a window an eighth as long (Blelloch, "Prefix sums and their applications", 1990). That is
about ``2 * n_steps`` products, one after the other only ``8 * log8(n_steps)`` of them.

Nothing is divided and no logarithm is taken, so that nothing overflows however long a window is.
Where an episode starts what came before is left out, not multiplied by zero: no NaN passes, and the
gradient is exactly zero.

Axes: windows ``[n_seq, n_steps, size]``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch as th
from torch.nn.functional import pad

#: (what is kept, a state) -> their product
Product = Callable[[th.Tensor, th.Tensor], th.Tensor]

#: Steps of a block: fewer cost more levels, more cost more steps in a row.
_BLOCK = 8


def complex_product(left: th.Tensor, right: th.Tensor) -> th.Tensor:
    """Multiply complex numbers, each a tensor of real parts and then of imaginary parts.

    >>> complex_product(th.tensor([1.0, 2.0]), th.tensor([3.0, 4.0]))  # (1 + 2i) (3 + 4i)
    tensor([-5., 10.])

    :param left: ``[..., 2 * n]``
    :param right: ``[..., 2 * n]``
    """
    (a, b), (c, d) = left.chunk(2, dim=-1), right.chunk(2, dim=-1)
    return th.cat((a * c - b * d, a * d + b * c), dim=-1)


def scan(
    keep: th.Tensor,
    added: th.Tensor,
    starts: th.Tensor,
    entering: th.Tensor,
    product: Product = th.mul,
) -> th.Tensor:
    """Return the state after each step.

    >>> added, starts = th.ones(1, 4, 1), th.tensor([[False, False, True, False]])
    >>> scan(0.5 * added, added, starts, th.full((1, 1), 8.0)).flatten()
    tensor([5.0000, 3.5000, 1.0000, 1.5000])

    :param keep: ``[n_seq, n_steps, size]``
    :param added: ``[n_seq, n_steps, size]``
    :param starts: ``[n_seq, n_steps]``, bool: before these steps the state is zeroed
    :param entering: the state before the first step, ``[n_seq, size]``
    :param product: of what is kept and a state; :func:`complex_product` for pairs
    :return: ``[n_seq, n_steps, size]``
    """
    flags = starts[:, :, None]
    first = product(keep[:, 0], entering).masked_fill(flags[:, 0], 0.0) + added[:, 0]
    return _scan(keep, th.cat((first[:, None], added[:, 1:]), dim=1), flags, product)


def _scan(keep: th.Tensor, added: th.Tensor, flags: th.Tensor, product: Product) -> th.Tensor:
    """Do so from the zero state.

    :param flags: ``[n_seq, n_steps, 1]``
    """
    n_steps = added.shape[1]
    block = min(_BLOCK, n_steps)
    missing = -n_steps % block
    keep, added, flags = (_in_blocks(part, block, missing) for part in (keep, added, flags))
    starts, kept, states = [flags[:, :, 0]], [keep[:, :, 0]], [added[:, :, 0]]
    for step in range(1, block):
        flag = flags[:, :, step]
        starts.append(starts[-1] | flag)
        before = product(keep[:, :, step], states[-1])
        states.append(before.masked_fill(flag, 0.0) + added[:, :, step])
        kept.append(product(keep[:, :, step], kept[-1]))
    inside = th.stack(states, dim=2)
    if inside.shape[1] == 1:
        return inside.flatten(1, 2)[:, :n_steps]
    ends = _scan(kept[-1], states[-1], starts[-1], product)
    # The state that enters each block: the first one's is in its first step.
    entering = th.cat((th.zeros_like(ends[:, :1]), ends[:, :-1]), dim=1)
    carried = product(th.stack(kept, dim=2), entering[:, :, None])
    carried = carried.masked_fill(th.stack(starts, dim=2), 0.0)
    return (inside + carried).flatten(1, 2)[:, :n_steps]


def _in_blocks(part: th.Tensor, block: int, missing: int) -> th.Tensor:
    """Divide ``[n_seq, n_steps, size]`` into ``[n_seq, n_blocks, block, size]``, zeros behind."""
    filled = pad(part, (0, 0, 0, missing)) if missing else part
    return filled.reshape(filled.shape[0], -1, block, filled.shape[2])

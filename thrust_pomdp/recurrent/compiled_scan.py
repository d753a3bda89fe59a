"""The compiled loops of memories that are linear in their state, as torch operations.

What they compute is what :func:`thrust_pomdp.recurrent.scan.scan` does. :func:`scan_kernels` asks
the gate whether they may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np
import torch as th

from thrust_pomdp import gate
from thrust_pomdp.recurrent.compiled import (
    check_shapes,
    first_derivative,
    kernels_for,
    over_rows,
)


def scan_kernels(*tensors: th.Tensor) -> ModuleType | None:
    """Return the loops if they may work on some tensors, which are contiguous; else None."""
    if gate.against_transforms() is not None or gate.against_kernels(*tensors) is not None:
        return None
    kernels = kernels_for(*tensors)
    return None if kernels is None else kernels.scan


class MinGRURows(th.autograd.Function):
    """The minGRU's recurrence over whole windows, its state zeroed at every episode start."""

    @staticmethod
    def forward(
        ctx: Any, kernels: ModuleType, gates: th.Tensor, starts: th.Tensor, entering: th.Tensor
    ) -> th.Tensor:
        """Run it.

        :param kernels: the compiled loops
        :param gates: pre-activations of the gate, then what is new, ``[n_seq, n_steps, 2 *
            hidden]``
        :param starts: ``[n_seq, n_steps]``, bool
        :param entering: the state before step 0, ``[n_seq, hidden]``
        :return: the state after each step, ``[n_seq, n_steps, hidden]``
        :raises ValueError: if the sizes do not fit together
        """
        (n_seq, n_steps, _), size = gates.shape, entering.shape[1]
        check_shapes(
            gates=(gates, (n_seq, n_steps, 2 * size)),
            episode_starts=(starts, (n_seq, n_steps)),
            hidden_state=(entering, (n_seq, size)),
        )
        chosen = gates[..., :size]
        # Two sigmoids: 1 - s has lost the digits of what is kept where s is nearly 1.
        update, keep, starts = chosen.sigmoid(), chosen.neg().sigmoid_(), starts.contiguous()
        hidden = th.empty_like(update)
        rows = (update, keep, gates, starts, entering, hidden)
        over_rows(kernels.min_gru_forward, (), tuple(part.numpy() for part in rows), hidden.numel())
        ctx.kernels = kernels
        ctx.save_for_backward(*rows)
        return hidden

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad_outputs: th.Tensor) -> tuple[th.Tensor | None, ...]:
        """Go back through it."""
        update, _, gates, _, entering, _ = ctx.saved_tensors
        grad_h, grad_gates = th.zeros_like(entering), th.empty_like(gates)
        rows = (*ctx.saved_tensors, grad_outputs.contiguous(), grad_h, grad_gates)
        over_rows(
            ctx.kernels.min_gru_backward, (), tuple(part.numpy() for part in rows), update.numel()
        )
        return None, grad_gates, None, grad_h


class LRURows(th.autograd.Function):
    """The linear recurrent unit's recurrence over whole windows, zeroed at every episode start."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: ModuleType,
        factor: th.Tensor,
        added: th.Tensor,
        starts: th.Tensor,
        entering: th.Tensor,
    ) -> th.Tensor:
        """Run it; complex numbers are pairs, real parts before imaginary parts.

        :param kernels: the compiled loops
        :param factor: of the state, ``[2 * size]``
        :param added: ``[n_seq, n_steps, 2 * size]``
        :param starts: ``[n_seq, n_steps]``, bool
        :param entering: the state before step 0, ``[n_seq, 2 * size]``
        :return: the state after each step, ``[n_seq, n_steps, 2 * size]``
        :raises ValueError: if the sizes do not fit together
        """
        n_seq, n_steps, width = added.shape
        check_shapes(
            factor=(factor, (width,)),
            episode_starts=(starts, (n_seq, n_steps)),
            hidden_state=(entering, (n_seq, width)),
        )
        starts, hidden = starts.contiguous(), th.empty_like(added)
        rows = tuple(part.numpy() for part in (added, starts, entering, hidden))
        over_rows(kernels.lru_forward, (factor.numpy(),), rows, hidden.numel())
        ctx.kernels = kernels
        ctx.save_for_backward(factor, starts, entering, hidden)
        return hidden

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad_outputs: th.Tensor) -> tuple[th.Tensor | None, ...]:
        """Go back through it."""
        factor, starts, entering, hidden = ctx.saved_tensors
        grad_h, grad_added = th.zeros_like(entering), th.empty_like(hidden)
        grad_factor = th.empty_like(entering)
        rows = (starts, entering, hidden, grad_outputs.contiguous(), grad_h, grad_added)
        over_rows(
            ctx.kernels.lru_backward,
            (factor.numpy(),),
            tuple(part.numpy() for part in (*rows, grad_factor)),
            hidden.numel(),
        )
        return None, grad_factor.sum(dim=0), grad_added, None, grad_h


class CompiledStep:
    """One layer's step, with its weights laid out for the loops.

    What is laid out is a copy: see :class:`thrust_pomdp.recurrent.compiled_memory.CompiledCell`.

    :param step: the compiled loop; it takes what is laid out, features, state, where episodes
        start, and output and new state to fill
    :param lay_out: returns the weights as the loop wants them
    :param weights: that it makes them of; they must keep their memory
    :param sizes: numbers of features, of the output and of the state
    :param unchanged: the compiled loop that compares weights; None where nobody can change them
        while this is in use
    """

    def __init__(
        self,
        step: Callable[..., None],
        lay_out: Callable[[], tuple[th.Tensor, ...]],
        weights: Iterable[th.Tensor],
        sizes: tuple[int, ...],
        unchanged: Callable[..., bool] | None,
    ) -> None:
        self._step, self._lay_out, self._unchanged = step, lay_out, unchanged
        # Bit patterns, since a NaN is not equal to itself.
        self._seen = tuple(w.detach().numpy().reshape(-1).view(np.uint32) for w in weights)
        self._n_features, self._n_told, self._n_state = sizes
        self._take()

    def _take(self) -> None:
        self._kept = np.concatenate(self._seen)
        with th.no_grad():
            self._arrays = [part.contiguous().numpy() for part in self._lay_out()]

    def __call__(
        self, features: th.Tensor, states: tuple[th.Tensor, ...], starts: th.Tensor
    ) -> tuple[th.Tensor, tuple[th.Tensor, ...]]:
        """Advance by one step, without a gradient.

        :param features: ``[n_envs, features]``, float32
        :param states: the state before the step, one part ``[1, n_envs, state]``
        :param starts: ``[n_envs]``, bool
        :return: the output and the state after the step
        :raises ValueError: if the sizes do not fit together
        """
        if self._unchanged is not None and not self._unchanged(self._seen, self._kept):
            self._take()
        (state,), n_envs = states, len(features)
        check_shapes(
            features=(features, (n_envs, self._n_features)),
            episode_starts=(starts, (n_envs,)),
            hidden_state=(state, (1, n_envs, self._n_state)),
        )
        inputs, flags = features.contiguous().numpy(), starts.contiguous().numpy()
        output, new = features.new_empty(n_envs, self._n_told), th.empty_like(state)
        before = state[0].contiguous().numpy()
        self._step(*self._arrays, inputs, before, flags, output.numpy(), new[0].numpy())
        return output, (new,)

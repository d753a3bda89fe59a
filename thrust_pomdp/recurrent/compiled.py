"""The compiled loops as torch operations, where they can be used.

The loops of :mod:`thrust_pomdp.recurrent.kernels` need Numba (the ``fast`` extra) and float32
tensors on the CPU. Everywhere else, and without Numba, the callers' own torch operations compute
the same numbers to rounding. The recurrent layers are in
:mod:`thrust_pomdp.recurrent.compiled_memory`.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import torch as th
from torch import nn

from thrust_pomdp import gate


@functools.cache
def load_kernels() -> ModuleType | None:
    """Return the compiled kernels, None where :func:`against_compiling` says why not."""
    if against_compiling() is not None:
        return None
    return importlib.import_module("thrust_pomdp.recurrent.kernels")


def against_compiling() -> str | None:
    """Say why no loops are compiled on this machine."""
    missing = "Numba is missing or switched off"
    try:
        numba = importlib.import_module("numba")
    except ImportError:
        return missing
    if numba.config.DISABLE_JIT:  # as plain Python the loops would be hundreds of times slower
        return missing
    if not importlib.import_module("thrust_pomdp.recurrent.vectors").has_fma:
        return "the processor has no fused multiply-add"
    return None


def kernels_for(*tensors: th.Tensor) -> ModuleType | None:
    """Return the kernels if they can work on these tensors, however these lie in memory."""
    for tensor in tensors:
        if tensor.dtype is not th.float32 or tensor.device.type != "cpu":
            return None
    return load_kernels()


def against_loops(*weights: th.Tensor) -> str | None:
    """Say why the compiled loops are not used with some weights."""
    if load_kernels() is None:
        return against_compiling() or "there are no compiled loops"
    return gate.against_transforms() or gate.against_kernels(*weights)


#: Multiply-adds that make handing them to another thread worth while: about .4 ms of work.
_WORK_PER_THREAD = 8_000_000


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    """Return the threads that help with the rows of large minibatches."""
    return ThreadPoolExecutor(thread_name_prefix="thrust_pomdp")


# A forked process has the pool's bookkeeping and none of its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.cache_clear)


def check_shapes(**parts: tuple[Any, tuple[int, ...]]) -> None:
    """Refuse sizes that do not fit: the loops would read and write beyond the arrays.

    :param parts: by the part's name, the array or tensor and the shape it must have
    :raises ValueError: naming the part, the shape it must have and the shape it has
    """
    for name, (part, shape) in parts.items():
        if part.shape != shape:
            raise ValueError(f"{name} must be of shape {shape}, got {tuple(part.shape)}")


def over_rows(
    kernel: Callable[..., None], shared: tuple[Any, ...], rows: tuple[Any, ...], work: int
) -> None:
    """Run a kernel over all rows, on as many of torch's threads as the work is worth.

    Rows do not see one another, so the numbers are the same however they are divided; parts have
    an even number of rows since the loops take two at a time.

    :param kernel: releases Python's lock
    :param shared: its first arguments
    :param rows: its other arguments, arrays whose first axis is the rows
    :param work: multiply-adds for all rows
    """
    n_pairs = (len(rows[0]) + 1) // 2
    n_parts = min(th.get_num_threads(), n_pairs, max(work // _WORK_PER_THREAD, 1))
    bounds = [2 * (n_pairs * part // n_parts) for part in range(n_parts)] + [len(rows[0])]
    parts = [tuple(array[start:end] for array in rows) for start, end in itertools.pairwise(bounds)]
    futures = []
    for part in parts[1:]:
        try:
            futures.append(_helpers().submit(kernel, *shared, *part))
        except RuntimeError:  # the main thread has ended, this one goes on: no helpers any more
            kernel(*shared, *part)
    kernel(*shared, *parts[0])
    for future in futures:
        future.result()


#: What :func:`first_derivative` takes and returns.
_Backward = Callable[..., tuple[th.Tensor | None, ...]]


def first_derivative(backward: _Backward) -> _Backward:
    """Let a loop's gradients be what nobody can differentiate again, and say what to do instead.

    Torch's own ``once_differentiable`` names no remedy, and takes a gradient of the plain sum of
    outputs for a constant: a penalty on it would be left out in silence.

    :param backward: of a ``torch.autograd.Function``
    """

    @functools.wraps(backward)
    def wrapped(*args: Any) -> tuple[th.Tensor | None, ...]:
        with th.no_grad():
            gradients = backward(*args)
        if not th.is_grad_enabled():  # as it is unless a graph of the gradient is asked for
            return gradients
        return tuple(
            gradient if gradient is None else _Final.apply(gradient.requires_grad_())  # type: ignore[no-untyped-call]
            for gradient in gradients
        )

    return wrapped


class _Final(th.autograd.Function):
    """A gradient that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: th.Tensor) -> th.Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: th.Tensor) -> None:
        raise RuntimeError(
            "The compiled loops have no second derivative. Torch's own operations have: to use "
            "them, set the environment variable NUMBA_DISABLE_JIT=1 before the program starts."
        )


class CompiledCategoricalHeads:
    """Linear heads of actor and critic, and the draw of an action.

    :param kernels: the compiled loops
    :param action_net: the actor's head, with a bias; its weights must keep their memory
    :param value_net: the critic's head, likewise
    :param distribution: is told the logits of each step, for programs that look into it
    :param uniforms: draws a number from [0, 1) for each of so many rows, float64
    """

    def __init__(
        self,
        kernels: ModuleType,
        action_net: nn.Linear,
        value_net: nn.Linear,
        distribution: Any,
        uniforms: Callable[[int], Any],
    ) -> None:
        self._kernels, self._distribution, self._uniforms = kernels, distribution, uniforms
        weights = (action_net.weight, action_net.bias, value_net.weight, value_net.bias)
        # Changes in place are seen through the views.
        self._views = tuple(weight.detach().numpy() for weight in weights)

    def __call__(
        self, memory_pi: th.Tensor, memory_vf: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Act, without a gradient.

        :param memory_pi: ``[n_envs, size]``
        :param memory_vf: ``[n_envs, size]``
        :return: actions ``[n_envs]``, values ``[n_envs, 1]``, log-probabilities ``[n_envs]``
        :raises ValueError: if the sizes do not fit together
        """
        pi, vf = memory_pi.numpy(), memory_vf.numpy()
        n_envs, (n_actions, size_pi) = len(pi), self._views[0].shape
        size_vf = self._views[2].shape[1]
        if pi.shape != (n_envs, size_pi) or vf.shape != (n_envs, size_vf):
            check_shapes(memory_pi=(pi, (n_envs, size_pi)), memory_vf=(vf, (n_envs, size_vf)))
        uniforms = self._uniforms(n_envs)
        if uniforms.shape != (n_envs,):
            check_shapes(uniforms=(uniforms, (n_envs,)))
        actions = np.empty(n_envs, dtype=np.int64)
        log_prob = np.empty(n_envs, dtype=np.float32)
        values = np.empty((n_envs, 1), dtype=np.float32)
        logits = np.empty((n_envs, n_actions), dtype=np.float32)
        self._run(uniforms, pi, vf, actions, log_prob, values, logits)
        return th.from_numpy(actions), th.from_numpy(values), th.from_numpy(log_prob)

    def _run(self, uniforms: Any, *arrays: Any) -> None:
        self._kernels.categorical_heads(*self._views, uniforms, *arrays)
        self._distribution.proba_distribution(th.from_numpy(arrays[-1]))


class CategoricalPPOLoss(th.autograd.Function):
    """PPO's loss for categorical actions, computed together with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: ModuleType,
        logits: th.Tensor,
        values: th.Tensor,
        batch: tuple[th.Tensor, ...],
        coefficients: tuple[float, float, float, float, bool],
    ) -> tuple[th.Tensor, ...]:
        """Compute the terms, in the order of :class:`thrust_pomdp.ppo.losses.Losses`.

        :param kernels: the compiled loops
        :param logits: ``[rows, n_actions]``
        :param values: ``[rows]``
        :param batch: actions (int64), old log-probabilities, old values, advantages and returns,
            each ``[rows]``
        :param coefficients: ``clip_range``, ``clip_range_vf`` (infinity for none), ``ent_coef``,
            ``vf_coef`` and whether to normalise advantages
        :raises ValueError: if sizes do not fit together or an action does not exist
        """
        rows, n_actions = logits.shape
        names = ("actions", "old_log_prob", "old_values", "advantages", "returns")
        steps = dict(zip(names, batch, strict=True), values=values)
        check_shapes(**{name: (part, (rows,)) for name, part in steps.items()})
        least, greatest = (action.item() for action in batch[0].aminmax())
        if least < 0 or greatest >= n_actions:
            raise ValueError(
                f"actions must be from 0 to {n_actions - 1}, got values from {least} to {greatest}"
            )
        grad_logits, grad_values = th.empty_like(logits), th.empty_like(values)
        sums = th.zeros(5, dtype=th.float64)
        kernels.categorical_ppo(
            logits.detach().numpy(),
            values.detach().numpy(),
            *(part.numpy() for part in batch),
            *coefficients,
            grad_logits.numpy(),
            grad_values.numpy(),
            sums.numpy(),
        )
        means = sums.div_(len(values)).to(logits.dtype)
        policy_loss, value_loss, entropy_loss, clip_fraction, approx_kl = means.unbind()
        _, _, ent_coef, vf_coef, _ = coefficients
        loss = policy_loss + ent_coef * entropy_loss + vf_coef * value_loss
        ctx.save_for_backward(grad_logits, grad_values)
        ctx.set_materialize_grads(False)
        terms = (policy_loss, value_loss, entropy_loss, clip_fraction, approx_kl)
        ctx.mark_non_differentiable(*terms)
        return (loss, *terms)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad_loss: th.Tensor, *_: None) -> tuple[th.Tensor | None, ...]:
        """Scale the gradient that was computed with the loss."""
        grad_logits, grad_values = ctx.saved_tensors
        return None, grad_logits * grad_loss, grad_values * grad_loss, None, None

"""PPO's loss on a minibatch of whole windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch as th
from stable_baselines3.common.distributions import Distribution

from thrust_pomdp import gate
from thrust_pomdp.ppo.distributions import PlainCategoricalDistribution, against_plain
from thrust_pomdp.ppo.policies import RecurrentActorCriticPolicy
from thrust_pomdp.ppo.sequence_batch import SequenceBatch
from thrust_pomdp.recurrent.compiled import (
    CategoricalPPOLoss,
    against_loops,
    first_derivative,
    load_kernels,
)


class Losses(NamedTuple):
    """The terms of one minibatch's loss and what is logged with them, all scalar tensors."""

    loss: th.Tensor
    policy_loss: th.Tensor
    value_loss: th.Tensor
    entropy_loss: th.Tensor
    clip_fraction: th.Tensor
    approx_kl: th.Tensor
    auxiliary_loss: th.Tensor = th.zeros(())


class Coefficients(NamedTuple):
    """What weighs and clips the terms; :func:`ppo_losses` says what each is."""

    clip_range: float
    clip_range_vf: float | None
    ent_coef: float
    vf_coef: float
    normalize_advantage: bool


def ppo_losses(
    policy: RecurrentActorCriticPolicy,
    batch: SequenceBatch,
    *,
    clip_range: float,
    clip_range_vf: float | None,
    ent_coef: float,
    vf_coef: float,
    normalize_advantage: bool,
) -> Losses:
    """Compute SB3's PPO loss. Every step of a window is real, so nothing is masked.

    Paper: https://arxiv.org/abs/1707.06347

    :param policy: evaluates the windows, and may have an ``auxiliary_loss``
    :param batch: whole windows
    :param clip_range: clipping of the probability ratio
    :param clip_range_vf: clipping of the value change; None for no clipping
    :param ent_coef: weight of the entropy bonus
    :param vf_coef: weight of the value loss
    :param normalize_advantage: normalise the minibatch's advantages
    """
    coefficients = Coefficients(clip_range, clip_range_vf, ent_coef, vf_coef, normalize_advantage)
    losses = _losses(policy, batch, coefficients)
    auxiliary = policy.auxiliary_loss()
    if auxiliary is None:
        return losses._replace(auxiliary_loss=losses.loss.new_zeros(()))
    return losses._replace(loss=losses.loss + auxiliary, auxiliary_loss=auxiliary)


def _losses(
    policy: RecurrentActorCriticPolicy, batch: SequenceBatch, coefficients: Coefficients
) -> Losses:
    """Compute the terms, by the compiled loop where it is the same."""
    windows = batch.observations, batch.initial_state, batch.layout
    heads = policy.window_heads(*windows)
    if heads is None:
        evaluated = policy.evaluate_sequences(windows[0], batch.actions, *windows[1:])
        return _torch_losses(*evaluated, batch, coefficients)
    distribution, values = heads
    if against_loop(distribution) is None:
        assert isinstance(distribution, PlainCategoricalDistribution)
        logits = distribution.logits
        if gate.against_kernels(logits, values, batch.advantages) is None:
            return _compiled_losses(logits, values.flatten(), batch, coefficients)
    return _torch_losses(*policy._evaluated(*heads, batch.actions), batch, coefficients)


def _torch_losses(
    values: th.Tensor,
    log_prob: th.Tensor,
    entropy: th.Tensor | None,
    batch: SequenceBatch,
    coefficients: Coefficients,
) -> Losses:
    """Compute the terms with torch's operations.

    :param values: as ``evaluate_sequences`` returns them, ``[n_seq, n_steps]``; so are the others
    """
    clip_range, clip_range_vf, ent_coef, vf_coef, normalize_advantage = coefficients
    advantages = batch.advantages
    if normalize_advantage and advantages.numel() > 1:  # one number has no spread
        std, mean = th.std_mean(advantages)
        advantages = (advantages - mean) / (std + 1e-8)

    log_ratio = log_prob - batch.old_log_prob
    ratio = th.exp(log_ratio)
    clipped_ratio = th.clamp(ratio, 1 - clip_range, 1 + clip_range)
    policy_loss = -th.min(advantages * ratio, advantages * clipped_ratio).mean()

    if clip_range_vf is not None:
        change = th.clamp(values - batch.old_values, -clip_range_vf, clip_range_vf)
        values = batch.old_values + change
    value_loss = th.nn.functional.mse_loss(values, batch.returns)
    # Where the entropy has no closed form, -log_prob estimates it.
    entropy_loss = log_prob.mean() if entropy is None else -entropy.mean()
    loss = policy_loss + ent_coef * entropy_loss + vf_coef * value_loss
    with th.no_grad():
        clip_fraction = ((ratio - 1).abs() > clip_range).float().mean()
        # The low-variance estimator of http://joschu.net/blog/kl-approx.html
        approx_kl = (ratio - 1 - log_ratio).mean()
    return Losses(loss, policy_loss, value_loss, entropy_loss, clip_fraction, approx_kl)


def _compiled_losses(
    logits: th.Tensor, values: th.Tensor, batch: SequenceBatch, coefficients: Coefficients
) -> Losses:
    """Compute the same in one compiled loop over the steps.

    :param logits: of categorical actions, ``[rows, n_actions]``
    :param values: ``[rows]``
    """
    kernels = load_kernels()
    assert kernels is not None
    clip_range, clip_range_vf, ent_coef, vf_coef, normalize_advantage = coefficients
    steps = (batch.old_log_prob, batch.old_values, batch.advantages, batch.returns)
    terms = CategoricalPPOLoss.apply(  # type: ignore[no-untyped-call]
        kernels,
        logits,
        values,
        (batch.actions.long().flatten(), *(part.flatten() for part in steps)),
        (
            float(clip_range),
            math.inf if clip_range_vf is None else float(clip_range_vf),
            float(ent_coef),
            float(vf_coef),
            bool(normalize_advantage),
        ),
    )
    losses = Losses(*terms)

    def by_torch(logits: th.Tensor, values: th.Tensor) -> tuple[th.Tensor, ...]:
        shape, log_probs = batch.returns.shape, logits.log_softmax(dim=-1)
        log_prob = log_probs.gather(-1, batch.actions.long().reshape(-1, 1))
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        parts = values.view(shape), log_prob.view(shape), entropy.view(shape)
        return _torch_losses(*parts, batch, coefficients)[1:4]

    policy_loss, value_loss, entropy_loss = _Terms.apply(  # type: ignore[no-untyped-call]
        by_torch, losses[1:4], logits, values
    )
    return losses._replace(
        policy_loss=policy_loss, value_loss=value_loss, entropy_loss=entropy_loss
    )


class _Terms(th.autograd.Function):
    """The terms of a compiled loss, for programs that add to the loss what is made of them.

    The loop computes the gradient of their sum alone; each one's is found by torch, if it is asked
    for at all.
    """

    @staticmethod
    def forward(
        ctx: Any,
        by_torch: Callable[[th.Tensor, th.Tensor], tuple[th.Tensor, ...]],
        terms: tuple[th.Tensor, ...],
        logits: th.Tensor,
        values: th.Tensor,
    ) -> tuple[th.Tensor, ...]:
        """Return the terms that were computed.

        :param by_torch: computes them from logits and values
        """
        ctx.by_torch = by_torch
        ctx.save_for_backward(logits, values)
        ctx.set_materialize_grads(False)
        return tuple(term.clone() for term in terms)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: th.Tensor | None) -> tuple[th.Tensor | None, ...]:
        """Compute the gradients of those terms that are in the loss once more."""
        with th.enable_grad():
            inputs = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            terms = ctx.by_torch(*inputs)
            told = [pair for pair in zip(terms, gradients, strict=True) if pair[1] is not None]
            found = th.autograd.grad(
                [term for term, _ in told], inputs, [given for _, given in told], allow_unused=True
            )
        return None, None, *found


def against_loop(distribution: Distribution) -> str | None:
    """Say why the loss of actions is not one compiled loop over the steps of windows."""
    if not isinstance(distribution, PlainCategoricalDistribution):
        return f"actions are drawn from a {type(distribution).__name__}"
    return against_plain(distribution) or against_loops()

"""Training on the windows in the buffer: epochs of minibatches, and what is logged of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import (
    explained_variance,
)

from thrust_pomdp import gate
from thrust_pomdp.ppo.action_noise import ActionNoise, seeded_training
from thrust_pomdp.ppo.buffers import RecurrentRolloutBuffer
from thrust_pomdp.ppo.compiled_minibatch import CompiledMinibatch, Numbers, against_minibatch
from thrust_pomdp.ppo.losses import Losses, ppo_losses
from thrust_pomdp.ppo.policies import (
    RecurrentActorCriticPolicy,
)
from thrust_pomdp.ppo.sequence_batch import SequenceBatch
from thrust_pomdp.ppo.stored_states import minibatches


@gate.remember
class TrainsOnWindows(OnPolicyAlgorithm):
    """How :class:`~thrust_pomdp.ppo.recurrent_ppo.RecurrentPPO` learns from its buffer."""

    policy: RecurrentActorCriticPolicy
    rollout_buffer: RecurrentRolloutBuffer
    batch_size: int | None
    n_epochs: int
    clip_range: Any
    clip_range_vf: Any
    normalize_advantage: bool
    target_kl: float | None
    refresh_states: bool
    _action_noise: ActionNoise

    @abstractmethod
    def _sequences_per_minibatch(self) -> int | list[int]:
        """Return how many windows, or subsequences of windows, make each minibatch."""

    def train(self) -> None:
        """Update the policy from the window in the rollout buffer.

        What torch draws meanwhile, such as dropout, is seeded by the model's seed and the number of
        updates; torch's generators are left as they were.
        """
        with seeded_training(self._action_noise.seed, self._n_updates, self.device):
            self._update()

    def _update(self) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        clip_range = self.clip_range(self._current_progress_remaining)
        clip_range_vf = None
        if self.clip_range_vf is not None:
            clip_range_vf = self.clip_range_vf(self._current_progress_remaining)

        self.rollout_buffer.begin_epochs()
        n_sequences = self._sequences_per_minibatch()
        parameters = list(self.policy.parameters())
        compiled = self._compiled_minibatch(clip_range, clip_range_vf)
        history: list[Losses] = []
        epoch_kls: list[th.Tensor] = []
        continue_training = True
        for epoch in range(self.n_epochs):
            epoch_kls = []
            refresh = self.refresh_states and epoch > 0
            for batch in self._minibatches(n_sequences, refresh):
                if compiled is None:
                    losses = self._losses(batch, clip_range, clip_range_vf)
                else:
                    losses = compiled(batch)
                history.append(Losses(*(term.detach() for term in losses)))
                epoch_kls.append(losses.approx_kl)
                if self.target_kl is not None and losses.approx_kl > 1.5 * self.target_kl:
                    continue_training = False
                    if self.verbose >= 1:
                        print(
                            f"Early stopping at step {epoch} due to reaching max kl: "
                            f"{losses.approx_kl:.2f}"
                        )
                    break
                if compiled is not None:
                    continue  # with the step taken
                self._find_gradients(losses)
                th.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
                self.policy.optimizer.step()
            self._n_updates += 1
            if not continue_training:
                break
        self._log_training(history, epoch_kls, clip_range, clip_range_vf)

    def _minibatches(self, n_sequences: int | list[int], refresh: bool) -> Iterator[Any]:
        """Yield the minibatches of one epoch."""
        return minibatches(self.policy, self.rollout_buffer, n_sequences, refresh)

    def _find_gradients(self, losses: Losses) -> None:
        """Give the weights the gradients of a minibatch's loss."""
        self.policy.optimizer.zero_grad()
        losses.loss.backward()  # type: ignore[no-untyped-call]

    def against_compiled_minibatch(self) -> str | None:
        """Say why minibatches are trained on by torch's operations; None where compiled."""
        return against_minibatch(self, TrainsOnWindows)

    def _compiled_minibatch(
        self, clip_range: float, clip_range_vf: float | None
    ) -> Callable[[SequenceBatch], Losses] | None:
        """Return what computes a minibatch's loss and takes the step; None where torch does."""
        if self.against_compiled_minibatch() is not None:
            return None
        numbers = Numbers(
            clip_range=clip_range,
            clip_range_vf=clip_range_vf,
            ent_coef=self.ent_coef,
            vf_coef=self.vf_coef,
            normalize_advantage=self.normalize_advantage,
            max_grad_norm=self.max_grad_norm,
            target_kl=self.target_kl,
        )
        return partial(CompiledMinibatch(self.policy).train, numbers=numbers)

    def _losses(
        self, batch: SequenceBatch, clip_range: float, clip_range_vf: float | None
    ) -> Losses:
        return ppo_losses(
            self.policy,
            batch,
            clip_range=clip_range,
            clip_range_vf=clip_range_vf,
            ent_coef=self.ent_coef,
            vf_coef=self.vf_coef,
            normalize_advantage=self._loss_normalizes(),
        )

    def _loss_normalizes(self) -> bool:
        """Whether the loss is to normalise a minibatch's advantages."""
        return self.normalize_advantage

    def _log_training(
        self,
        history: list[Losses],
        epoch_kls: list[th.Tensor],
        clip_range: float,
        clip_range_vf: float | None,
    ) -> None:
        mean = Losses(*(th.stack(terms).mean() for terms in zip(*history, strict=True)))
        self.logger.record("train/entropy_loss", mean.entropy_loss.item())
        self.logger.record("train/policy_gradient_loss", mean.policy_loss.item())
        self.logger.record("train/value_loss", mean.value_loss.item())
        self.logger.record("train/approx_kl", th.stack(epoch_kls).mean().item())
        self.logger.record("train/clip_fraction", mean.clip_fraction.item())
        if mean.auxiliary_loss:
            self.logger.record("train/auxiliary_loss", mean.auxiliary_loss.item())
        self.logger.record("train/loss", history[-1].loss.item())
        self.logger.record("train/explained_variance", self._explained_variance())
        if hasattr(self.policy, "log_std"):
            self.logger.record("train/std", th.exp(self.policy.log_std).mean().item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/clip_range", clip_range)
        if clip_range_vf is not None:
            self.logger.record("train/clip_range_vf", clip_range_vf)

    def _explained_variance(self) -> Any:
        """Tell how much of the returns' variance the critic foretold."""
        buffer = self.rollout_buffer
        return explained_variance(buffer.values.flatten(), buffer.returns.flatten())

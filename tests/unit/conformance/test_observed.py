"""What training computed, read from what it logs, is what it computed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
from torch import nn

from thrust_pomdp.conformance.observed import (
    CLIP_RANGE_VF,
    ask_each_step,
    collected,
    gradients_of,
    minibatches_of,
    outputs,
    recomputed,
    train_on,
)
from thrust_pomdp.conformance.probe import N_ENVS, N_STEPS
from thrust_pomdp.conformance.report import NotObservableError

SHAPE = N_STEPS, N_ENVS
LOSSES = ("train/policy_gradient_loss", "train/value_loss")


class Trainer:
    """PPO's losses of known ratios and values, in minibatches of known steps."""

    target_kl = None

    def __init__(self, batches=None):
        rng = np.random.default_rng(0)
        self.rollout_buffer = SimpleNamespace(
            observations=np.zeros((*SHAPE, 3)),
            actions=rng.integers(0, 2, (*SHAPE, 1)),
            rewards=np.zeros(SHAPE),
            episode_starts=np.zeros(SHAPE),
            values=rng.normal(size=SHAPE),
            log_probs=np.log(rng.uniform(0.1, 0.9, SHAPE)),
            advantages=rng.normal(size=SHAPE),
            returns=rng.normal(size=SHAPE),
        )
        self.log_probs = self.rollout_buffer.log_probs + rng.normal(size=SHAPE) / 10
        self.values = self.rollout_buffer.values + rng.normal(size=SHAPE) / 10
        self.batches = batches or [slice(None)]
        self.logger = SimpleNamespace(name_to_value={})
        weights = nn.Linear(N_STEPS * N_ENVS, 1, bias=False)
        self.policy = weights
        self.policy.optimizer = th.optim.Adam(weights.parameters(), lr=0.0)

    def train(self):
        found = []
        for rows in self.batches:
            part = {n: a.reshape(N_STEPS * N_ENVS, -1)[rows, 0] for n, a in self._arrays().items()}
            ratio = np.exp(part["now"] - part["log_probs"])
            change = np.clip(part["new"] - part["values"], -CLIP_RANGE_VF, CLIP_RANGE_VF)
            error = part["values"] + change - part["returns"]
            found.append((-(ratio * part["advantages"]).mean(), (error**2).mean()))
            if self.target_kl is not None and (ratio - 1 - np.log(ratio)).mean() > self.target_kl:
                break
            self.policy.optimizer.zero_grad()
            scale = th.zeros(N_STEPS * N_ENVS)
            scale[rows] = th.as_tensor(part["advantages"], dtype=th.float32)
            self.policy(scale).sum().backward()
            self.policy.optimizer.step()
        self.logger.name_to_value.update(zip(LOSSES, np.mean(found, axis=0), strict=True))

    def _arrays(self):
        return {**vars(self.rollout_buffer), "now": self.log_probs, "new": self.values}


class TestRecomputed:
    def test_numbers_are_those_of_training(self):
        trainer = Trainer()
        right = outputs(collected(trainer.rollout_buffer), trainer.values, trainer.log_probs)
        found = recomputed(trainer)
        assert found.values == pytest.approx(right.values)
        assert found.firsts == pytest.approx(right.firsts)

    def test_the_buffer_is_left_as_it_was(self):
        trainer = Trainer()
        before = collected(trainer.rollout_buffer)
        recomputed(trainer)
        minibatches_of(trainer)
        for one, two in zip(before, collected(trainer.rollout_buffer), strict=True):
            assert (one == two).all()


class TestMinibatches:
    EIGHTS = [slice(8 * k, 8 * k + 8) for k in range(8)]

    def test_are_counted(self):
        trainer = Trainer(self.EIGHTS)
        said, number, size = minibatches_of(trainer)
        ratio = np.exp(trainer.log_probs - trainer.rollout_buffer.log_probs)
        assert said.uses == pytest.approx(ratio)
        assert (number, round(size, 6)) == (8, 8)
        assert trainer.target_kl is None

    def test_are_counted_where_each_comes_twice(self):
        _, number, size = minibatches_of(Trainer(2 * self.EIGHTS))
        assert (number, round(size, 6)) == (16, 8)

    def test_uses_are_counted_where_some_come_twice(self):
        trainer = Trainer([*self.EIGHTS[:7], self.EIGHTS[0]])
        trainer.log_probs = trainer.rollout_buffer.log_probs
        uses = ask_each_step(trainer).uses.reshape(-1)
        assert uses[:8] == pytest.approx(2)
        assert uses[8:56] == pytest.approx(1)
        assert uses[56:] == pytest.approx(0)


class TestGradients:
    def test_are_of_the_steps_that_were_asked_for(self):
        asked = np.zeros(SHAPE, dtype=bool)
        asked[3, 1] = True
        (gradient,) = gradients_of(Trainer(), asked).values()
        assert gradient.reshape(SHAPE).nonzero().tolist() == [[3, 1]]

    def test_others_values_are_clipped(self):
        asked = np.zeros(SHAPE, dtype=bool)
        asked[3, 1] = True
        trainer = Trainer()
        losses, train = [], trainer.train

        def watched():
            train()
            losses.append(np.abs(trainer.values - trainer.rollout_buffer.values) > CLIP_RANGE_VF)

        trainer.train = watched
        gradients_of(trainer, asked)
        assert (losses[0] == ~asked).all()


class TestWhatCannotBeSeen:
    def test_is_a_loss_that_is_not_logged(self):
        trainer = Trainer()
        trainer.train = lambda: None
        with pytest.raises(NotObservableError, match="does not log train/policy_gradient_loss"):
            train_on(trainer, lambda buffer: None)

    def test_is_a_buffer_of_another_layout(self):
        trainer = Trainer()
        trainer.rollout_buffer.values = trainer.rollout_buffer.values.T
        with pytest.raises(NotObservableError, match=r"rollout_buffer.values is not .* \(4, 16\)"):
            collected(trainer.rollout_buffer)

    def test_is_a_buffer_without_a_part(self):
        trainer = Trainer()
        del trainer.rollout_buffer.returns
        with pytest.raises(NotObservableError, match="rollout_buffer has no returns"):
            collected(trainer.rollout_buffer)

    def test_is_a_training_that_leaves_no_gradients(self):
        trainer = Trainer()
        with pytest.raises(NotObservableError, match="leaves no gradients"):
            gradients_of(trainer, np.zeros(SHAPE, dtype=bool))

    def test_is_a_buffer_that_cannot_be_copied(self):
        trainer = Trainer()
        trainer.rollout_buffer.generator = (step for step in range(3))
        with pytest.raises(NotObservableError, match="cannot be copied"):
            train_on(trainer, lambda buffer: None)

    def test_is_a_training_that_logs_nothing_where_it_stops(self):
        trainer = Trainer()
        train = trainer.train

        def breaks_first():
            train()
            if trainer.target_kl is not None:
                trainer.logger.name_to_value[LOSSES[0]] = 0.0

        trainer.train = breaks_first
        with pytest.raises(NotObservableError, match="no loss is logged"):
            minibatches_of(trainer)

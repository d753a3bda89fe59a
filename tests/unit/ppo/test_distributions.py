"""The plain distributions against torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch as th
from same_draws import chosen_by_hand
from torch.distributions import Categorical, Independent, Normal

from thrust_pomdp.ppo.distributions import (
    PlainCategoricalDistribution,
    PlainDiagGaussianDistribution,
)

LOGITS = 3 * th.randn(500, 5, generator=th.Generator().manual_seed(0))


def pair(logits: th.Tensor) -> tuple[PlainCategoricalDistribution, Categorical]:
    plain = PlainCategoricalDistribution(5).proba_distribution(logits)
    return plain, Categorical(logits=logits)


def test_log_probabilities_entropy_and_mode():
    plain, torchs = pair(LOGITS)
    actions = th.arange(500) % 5
    th.testing.assert_close(plain.log_prob(actions), torchs.log_prob(actions), rtol=0, atol=1e-5)
    th.testing.assert_close(plain.entropy(), torchs.entropy(), rtol=0, atol=1e-5)
    assert th.equal(plain.mode(), torchs.probs.argmax(dim=1))


def test_gradients():
    weights = th.randn(500)
    gradients = []
    for which in (0, 1):
        logits = LOGITS.clone().requires_grad_()
        distribution = pair(logits)[which]
        actions = th.arange(500) % 5
        loss = (weights * distribution.log_prob(actions)).sum() + distribution.entropy().sum()
        gradients.append(th.autograd.grad(loss, logits)[0])
    th.testing.assert_close(*gradients, rtol=0, atol=1e-5)


def test_draws_follow_torchs_generator_where_no_environment_has_a_say():
    plain, torchs = pair(LOGITS)
    th.manual_seed(3)
    draws = plain.sample()
    th.manual_seed(3)
    assert th.equal(draws, plain.sample())
    th.manual_seed(3)
    expected = chosen_by_hand(torchs.probs.numpy(), th.rand(500, dtype=th.float64).numpy())
    assert np.array_equal(draws, expected)
    assert not th.equal(draws, plain.sample())


def test_frequencies_are_the_probabilities():
    logits = th.tensor([[0.0, 1.0, 2.0, -1.0, -th.inf]]).expand(200_000, 5)
    plain, torchs = pair(logits)
    th.manual_seed(0)
    shares = plain.sample().bincount(minlength=5) / 200_000
    probabilities = torchs.probs[0]
    spread = (probabilities * (1 - probabilities) / 200_000).sqrt()
    assert ((shares - probabilities).abs() <= 5 * spread).all()
    assert shares[4] == 0


def test_an_impossible_action_leaves_entropy_and_gradient_finite():
    logits = th.tensor([[0.0, 0.0, -th.inf]], requires_grad=True)
    entropy = PlainCategoricalDistribution(3).proba_distribution(logits).entropy()
    assert entropy.item() == pytest.approx(th.log(th.tensor(2.0)).item())
    (gradient,) = th.autograd.grad(entropy, logits)
    assert th.isfinite(gradient[0, :2]).all()


def test_programs_may_look_into_the_torch_distribution():
    plain, torchs = pair(LOGITS)
    th.testing.assert_close(plain.distribution.probs, torchs.probs)


class TestGaussian:
    MEAN = th.randn(300, 3, generator=th.Generator().manual_seed(0))
    LOG_STD = th.tensor([0.5, -1.0, 0.1])

    def pair(self, mean, log_std) -> tuple[PlainDiagGaussianDistribution, Independent]:
        plain = PlainDiagGaussianDistribution(3).proba_distribution(mean, log_std)
        return plain, Independent(Normal(mean, log_std.exp().expand_as(mean)), 1)

    def test_log_densities_entropy_and_mode(self):
        plain, torchs = self.pair(self.MEAN, self.LOG_STD)
        actions = th.randn(300, 3)
        th.testing.assert_close(plain.log_prob(actions), torchs.log_prob(actions))
        th.testing.assert_close(plain.entropy(), torchs.entropy())
        assert th.equal(plain.mode(), self.MEAN)
        assert th.equal(plain.distribution.mean, self.MEAN)

    def test_gradients(self):
        actions, weights, gradients = th.randn(300, 3), th.randn(300), []
        for which in (0, 1):
            leaves = [self.MEAN.clone().requires_grad_(), self.LOG_STD.clone().requires_grad_()]
            distribution = self.pair(*leaves)[which]
            loss = (weights * distribution.log_prob(actions)).sum() + distribution.entropy().sum()
            gradients.append(th.autograd.grad(loss, leaves))
        for plain, torchs in zip(*gradients, strict=True):
            th.testing.assert_close(plain, torchs, rtol=1e-4, atol=1e-3)

    def test_draws_are_those_of_torch_for_the_same_seed(self):
        draws = []
        for distribution in self.pair(self.MEAN, self.LOG_STD):
            th.manual_seed(3)
            draws.append(distribution.sample())
        th.testing.assert_close(*draws)

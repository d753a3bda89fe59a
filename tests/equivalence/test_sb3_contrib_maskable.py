"""Masked distributions against ``sb3_contrib``'s, and where theirs are wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch as th
from maskable_envs import ACTIONS, random_masks
from same_draws import chosen_by_hand
from sb3_contrib.common.maskable.distributions import make_masked_proba_distribution

from thrust_pomdp.ppo.maskable.distributions import make_maskable_distribution

N_ROWS = 2_000
N_LOGITS = {"Discrete": 4, "MultiDiscrete": 9, "MultiBinary": 3}


def their_logits(action: str, logits: th.Tensor) -> th.Tensor:
    """They have two logits for each bit: the second minus the first is our one."""
    if action != "MultiBinary":
        return logits
    return th.stack((th.zeros_like(logits), logits), dim=2).flatten(1)


def pair(action: str, scale: float = 2.0, masked: bool = True):
    generator = th.Generator().manual_seed(1)
    logits = scale * th.randn(N_ROWS, N_LOGITS[action], generator=generator)
    masks = random_masks(ACTIONS[action], N_ROWS, np.random.default_rng(1))
    logits.requires_grad_()
    ours = make_maskable_distribution(ACTIONS[action])
    ours.proba_distribution(logits, th.from_numpy(masks) if masked else None)
    theirs = make_masked_proba_distribution(ACTIONS[action])
    theirs.proba_distribution(their_logits(action, logits))
    theirs.apply_masking(masks if masked else None)
    return ours, theirs, logits


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("action", ACTIONS)
class TestOnRandomLogitsAndMasks:
    def test_log_probabilities_entropy_and_mode(self, action, masked):
        ours, theirs, _ = pair(action, masked=masked)
        th.manual_seed(0)
        actions = ours.sample()
        their_actions = actions.long()
        th.testing.assert_close(
            ours.log_prob(actions), theirs.log_prob(their_actions), rtol=1e-5, atol=1e-5
        )
        th.testing.assert_close(ours.entropy(), theirs.entropy(), rtol=1e-5, atol=1e-5)
        assert th.equal(ours.mode().long(), theirs.mode())

    def test_gradients(self, action, masked):
        gradients = []
        ours, theirs, logits = pair(action, masked=masked)
        th.manual_seed(0)
        actions = ours.sample()
        for distribution, given in ((ours, actions), (theirs, actions.long())):
            loss = 2 * distribution.log_prob(given).sum() + distribution.entropy().sum()
            gradients += th.autograd.grad(loss, logits, retain_graph=True)
        th.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)

    def test_the_law_of_sampling(self, action, masked):
        """Ours are where the same random numbers fall on their probabilities."""
        ours, theirs, _ = pair(action, masked=masked)
        th.manual_seed(3)
        draws = ours.sample().long().reshape(N_ROWS, -1)
        choices = [theirs.distribution] if action == "Discrete" else theirs.distributions
        th.manual_seed(3)
        uniforms = th.rand(N_ROWS, len(choices), dtype=th.float64).numpy()
        for number, choice in enumerate(choices):
            probabilities, falls = choice.probs.detach().numpy(), uniforms[:, number]
            if action == "MultiBinary":  # a bit is 1 below its probability
                expected = 1 - chosen_by_hand(probabilities[:, ::-1], falls)
            else:
                expected = chosen_by_hand(probabilities, falls)
            assert np.array_equal(draws[:, number], expected)


def test_their_masked_action_is_drawn_where_the_others_are_less_likely_than_theirs_minus_1e8():
    """Why ours are minus infinity: a network that diverges is not to act illegally."""
    logits, masks = th.tensor([[-1e9, 0.0, -1e9, 0.0]]), np.array([[1, 0, 1, 0]], bool)
    theirs = make_masked_proba_distribution(ACTIONS["Discrete"])
    theirs.proba_distribution(logits)
    theirs.apply_masking(masks)
    assert not masks[0, theirs.mode().item()]
    ours = make_maskable_distribution(ACTIONS["Discrete"])
    ours.proba_distribution(logits, th.from_numpy(masks))
    assert masks[0, ours.mode().item()]
    assert ours.log_prob(th.tensor([1])).exp() == 0

"""Masks that are read and checked, and the distributions on them."""

from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from maskable_envs import ACTIONS, as_choices, random_masks
from stable_baselines3.common.vec_env import DummyVecEnv

from thrust_pomdp.ppo.maskable import get_action_masks, is_masking_supported
from thrust_pomdp.ppo.maskable.distributions import make_maskable_distribution
from thrust_pomdp.ppo.maskable.masks import MaskLayout

N_ROWS = 400
N_LOGITS = {"Discrete": 4, "MultiDiscrete": 9, "MultiBinary": 3}
ALL_ACTIONS = {
    "Discrete": th.arange(4),
    "MultiDiscrete": th.tensor(list(itertools.product(range(3), range(2), range(4)))),
    "MultiBinary": th.tensor(list(itertools.product([0.0, 1.0], repeat=3))),
}


class Telling(gym.Env):
    """Tells whatever mask it is given."""

    observation_space = spaces.Box(-1, 1, (1,))

    def __init__(self, mask, action_space=None):
        self.mask = mask
        self.action_space = spaces.Discrete(3) if action_space is None else action_space

    def action_masks(self):
        return self.mask


def told(*masks, action_space=None):
    return DummyVecEnv([lambda mask=mask: Telling(mask, action_space) for mask in masks])


class TestReadingMasks:
    @pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int64, np.float32, float])
    def test_bools_and_numbers_that_are_0_or_1(self, dtype):
        masks = get_action_masks(told(np.array([1, 0, 1], dtype), np.array([0, 1, 0], dtype)))
        assert masks.dtype == bool
        assert masks.tolist() == [[True, False, True], [False, True, False]]

    def test_lists(self):
        assert get_action_masks(Telling([1, 0, 1])).tolist() == [True, False, True]

    def test_environments_may_use_different_types(self):
        masks = get_action_masks(told([1, 0, 1], np.array([False, True, True]), (0.0, 1.0, 1.0)))
        assert masks.tolist() == [[True, False, True], [False, True, True], [False, True, True]]

    def test_choices_in_rows_of_their_own(self):
        space = spaces.MultiBinary(2)
        masks = get_action_masks(told([[1, 0], [1, 1]], action_space=space))
        assert masks.tolist() == [[True, False, True, True]]

    def test_through_gymnasiums_and_sb3s_wrappers(self):
        env = gym.wrappers.TimeLimit(Telling([1, 0, 0]), 3)
        assert is_masking_supported(env)
        assert get_action_masks(env).tolist() == [True, False, False]

    def test_the_array_is_a_copy_in_order(self):
        masks = get_action_masks(told(np.ones(6, bool)[::2], np.ones(6, bool)[::2]))
        assert masks.flags.c_contiguous

    def test_support(self):
        assert is_masking_supported(told([1, 1, 1]))
        assert not is_masking_supported(gym.make("CartPole-v1"))
        assert not is_masking_supported(DummyVecEnv([lambda: gym.make("CartPole-v1")]))


class TestRefusedMasks:
    @pytest.mark.parametrize(
        ("space", "mask", "message"),
        [
            (None, [0, 0, 0], "environment 1 must allow at least one action, got none"),
            (spaces.MultiDiscrete([2, 3]), [1, 0, 0, 0, 0], "at least one value of choice 1"),
            (spaces.MultiBinary(2), [0, 0, 1, 0], "at least one value of bit 0, got none"),
            (None, [1, 0], r"environment 1 must have 3 entries for Discrete\(3\), got 2"),
            (None, np.ones((2, 3)), "must have 3 entries .* got 6"),
            (None, True, "must have 3 entries .* got 1"),
            (None, [1, 2, 0], "environment 1 must be bools, or numbers that are 0 or 1, got"),
            (None, [1, np.nan, 0], "numbers that are 0 or 1"),
            (None, [1, -1, 0], "numbers that are 0 or 1"),
            (None, ["a", "b", "c"], "numbers that are 0 or 1, got .* of type list"),
            (None, np.array(["a", "b", "c"]), "of type <U1"),
            (None, None, "got None of type NoneType"),
            (None, [1j, 0, 0], "numbers that are 0 or 1"),
            (None, [[1, 1], [1]], "environment 1 must be one array of flags"),
        ],
    )
    def test_the_message_names_the_environment_and_the_rule(self, space, mask, message):
        width = MaskLayout(spaces.Discrete(3) if space is None else space).width
        env = told([1] * width, mask, action_space=space)
        with pytest.raises(ValueError, match=message):
            get_action_masks(env)

    def test_an_environment_without_masks(self):
        with pytest.raises(ValueError, match=r"must have a method action_masks\(\)"):
            get_action_masks(gym.make("CartPole-v1"))

    @pytest.mark.parametrize(
        "space", [spaces.Box(-1, 1, (2,)), spaces.MultiBinary((2, 2)), spaces.Tuple([])]
    )
    def test_spaces_without_masks(self, space):
        with pytest.raises(ValueError, match="use RecurrentPPO, which takes no masks"):
            MaskLayout(space)


def masked(action, logits, masks):
    return make_maskable_distribution(ACTIONS[action]).proba_distribution(logits, masks)


def random_case(action, scale=3.0, dtype=th.float32):
    generator = th.Generator().manual_seed(0)
    logits = scale * th.randn(N_ROWS, N_LOGITS[action], generator=generator, dtype=dtype)
    masks = random_masks(ACTIONS[action], N_ROWS, np.random.default_rng(0))
    return logits, th.from_numpy(masks)


def allowed(action, masks, actions) -> th.Tensor:
    """Whether each action may be taken, ``[rows]``."""
    choices = as_choices(ACTIONS[action], actions.reshape(len(masks), -1).numpy())
    return masks.gather(1, th.from_numpy(choices)).all(dim=1)


def each_action(action, dtype=th.float32):
    """Every action for every row; bits are numbers of the logits' type."""
    actions = ALL_ACTIONS[action]
    actions = actions.to(dtype) if action == "MultiBinary" else actions
    return [one.expand(N_ROWS, *one.shape) for one in actions]


@pytest.mark.parametrize("scale", [1.0, 3.0, 1e4, 1e30])
@pytest.mark.parametrize("action", ACTIONS)
class TestMaskedDistributions:
    def test_a_forbidden_action_has_probability_exactly_0_and_the_others_sum_to_1(
        self, action, scale
    ):
        logits, masks = random_case(action, scale)
        distribution = masked(action, logits, masks)
        total = th.zeros(N_ROWS)
        for actions in each_action(action):
            probability = distribution.log_prob(actions).exp()
            assert (probability[~allowed(action, masks, actions)] == 0).all()
            total += probability
        th.testing.assert_close(total, th.ones(N_ROWS), rtol=0, atol=1e-5)

    def test_it_is_never_drawn_nor_the_most_likely(self, action, scale):
        logits, masks = random_case(action, scale)
        # The forbidden ones would have been preferred.
        if action != "MultiBinary":
            logits = logits.masked_fill(~masks, 3e38)
        distribution = masked(action, logits, masks)
        th.manual_seed(0)
        for _ in range(20):
            assert allowed(action, masks, distribution.sample()).all()
        assert allowed(action, masks, distribution.mode()).all()

    def test_log_probabilities_entropy_and_gradients_are_finite_and_exact(self, action, scale):
        logits, masks = random_case(action, scale)
        logits.requires_grad_()
        distribution = masked(action, logits, masks)
        th.manual_seed(0)
        actions = distribution.sample()
        log_prob, entropy = distribution.log_prob(actions), distribution.entropy()
        assert th.isfinite(log_prob).all()
        assert th.isfinite(entropy).all()
        (gradient,) = th.autograd.grad(log_prob.sum() + entropy.sum(), logits)
        assert th.isfinite(gradient).all()
        if action == "MultiBinary":
            may_be_0, may_be_1 = masks.view(N_ROWS, -1, 2).unbind(dim=2)
            decided = ~(may_be_0 & may_be_1)
        else:
            decided = ~masks
        assert decided.any()
        assert (gradient[decided] == 0).all()


@pytest.mark.parametrize("action", ACTIONS)
class TestDefinition:
    """The distribution is the plain one given that the action is allowed."""

    def test_log_probabilities_and_entropy(self, action):
        logits, masks = random_case(action, dtype=th.float64)
        each = each_action(action, th.float64)
        plain, ours = masked(action, logits, None), masked(action, logits, masks)
        log_joint = th.stack([plain.log_prob(actions) for actions in each])
        may = th.stack([allowed(action, masks, actions) for actions in each])
        log_joint = log_joint.masked_fill(~may, -th.inf)
        expected = log_joint - log_joint.logsumexp(dim=0)
        actual = th.stack([ours.log_prob(actions) for actions in each])
        th.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
        entropy = -(expected.exp() * expected.masked_fill(~may, 0)).sum(dim=0)
        th.testing.assert_close(ours.entropy(), entropy, rtol=1e-12, atol=1e-12)

    def test_gradients_against_finite_differences(self, action):
        logits, masks = (part[:3] for part in random_case(action, dtype=th.float64))
        th.manual_seed(0)
        actions = masked(action, logits, masks).sample()

        def loss(logits):
            distribution = masked(action, logits, masks)
            return (2 * distribution.log_prob(actions) + distribution.entropy()).sum()

        assert th.autograd.gradcheck(loss, logits.requires_grad_())

    def test_the_most_likely_action(self, action):
        logits, masks = random_case(action)
        ours = masked(action, logits, masks)
        log_probs = th.stack([ours.log_prob(actions) for actions in each_action(action)])
        expected = ALL_ACTIONS[action][log_probs.argmax(dim=0)]
        assert th.equal(ours.mode(), expected)

    def test_frequencies_are_the_probabilities(self, action):
        n = 20_000
        logits, masks = (part[:1].expand(n, -1) for part in random_case(action, scale=1.0))
        ours = masked(action, logits, masks)
        th.manual_seed(0)
        draws = ours.sample()
        for one in ALL_ACTIONS[action]:
            p = ours.log_prob(one.expand(n, *one.shape))[0].exp().item()
            share = (draws == one).reshape(n, -1).all(dim=1).float().mean().item()
            assert abs(share - p) <= 5 * (p * (1 - p) / n) ** 0.5

    def test_masks_that_allow_everything_change_no_bit(self, action):
        logits, masks = random_case(action)
        results = []
        for rows in (None, th.ones_like(masks)):
            distribution = masked(action, logits.requires_grad_(), rows)
            th.manual_seed(1)
            actions = distribution.sample()
            terms = (distribution.log_prob(actions), distribution.entropy())
            gradient = th.autograd.grad(terms[0].sum() + 2 * terms[1].sum(), logits)
            results.append((actions, *terms, *gradient, distribution.mode()))
        assert all(th.equal(*pair) for pair in zip(*results, strict=True))

    def test_masks_can_be_exchanged_and_taken_away(self, action):
        logits, masks = random_case(action)
        distribution = masked(action, logits, None)
        plain = distribution.entropy()
        distribution.apply_masking(masks.numpy())
        assert th.equal(distribution.entropy(), masked(action, logits, masks).entropy())
        distribution.apply_masking(None)
        assert th.equal(distribution.entropy(), plain)

    def test_another_number_of_masks_is_refused(self, action):
        logits, masks = random_case(action)
        with pytest.raises(ValueError, match="one row per observation, 400, got 399"):
            masked(action, logits, masks[1:])


class TestNumbersThatComeOutAsZero:
    """Where an exponential random number is exactly 0, 0 / 0 must not win the race."""

    @pytest.mark.parametrize("action", ["Discrete", "MultiDiscrete"])
    def test_a_forbidden_action_is_not_drawn(self, action, monkeypatch):
        logits, masks = random_case(action)
        distribution = masked(action, logits, masks)
        if action == "Discrete":
            monkeypatch.setattr(th.Tensor, "exponential_", th.Tensor.zero_)
        else:
            for one in distribution.distribution:
                one.sample = lambda one=one: one.probs.argmin(dim=1)
            assert not allowed(action, masks, th.stack(
                [one.sample() for one in distribution.distribution], dim=1)).all()  # fmt: skip
        assert allowed(action, masks, distribution.sample()).all()

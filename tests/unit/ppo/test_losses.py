"""PPO's loss against its definition, terms and gradients."""

from __future__ import annotations

import pytest
import torch as th

from thrust_pomdp import RecurrentPPO, make_vec_env
from thrust_pomdp.ppo import losses as losses_module
from thrust_pomdp.ppo.losses import ppo_losses
from thrust_pomdp.ppo.sequence_batch import SequenceBatch

SHAPE = (3, 40)


class FixedOutputs:
    """Stands for a policy: its outputs are leaves, so that their gradients can be read."""

    def __init__(self, batch: SequenceBatch, closed_form: bool) -> None:
        generator = th.Generator().manual_seed(1)

        def near(tensor: th.Tensor) -> th.Tensor:
            moved = tensor + 0.3 * th.randn(SHAPE, generator=generator, dtype=th.float64)
            return moved.requires_grad_()

        self.auxiliary: th.Tensor | None = None
        self.values, self.log_prob = near(batch.old_values), near(batch.old_log_prob)
        self.entropy = near(th.ones(SHAPE, dtype=th.float64)) if closed_form else None

    def window_heads(self, *args):
        return None

    def evaluate_sequences(self, *args):
        return self.values, self.log_prob, self.entropy

    def auxiliary_loss(self):
        return self.auxiliary

    def gradients(self, loss: th.Tensor) -> list[th.Tensor]:
        leaves = [self.log_prob, self.values]
        return list(
            th.autograd.grad(loss, leaves + ([self.entropy] if self.entropy is not None else []))
        )


@pytest.fixture
def batch() -> SequenceBatch:
    generator = th.Generator().manual_seed(0)

    def random() -> th.Tensor:
        return th.randn(SHAPE, generator=generator, dtype=th.float64)

    return SequenceBatch(
        observations=th.zeros(SHAPE), actions=th.zeros(SHAPE), old_values=random(),
        old_log_prob=random(), advantages=random(), returns=random(),
        episode_starts=th.zeros(SHAPE), initial_state=None, layout=None,
    )  # fmt: skip


def definition(policy, batch, clip_range, clip_range_vf, ent_coef, vf_coef, normalize_advantage):
    """SB3's PPO loss, as its train() writes it."""
    advantages = batch.advantages
    if normalize_advantage:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = th.exp(policy.log_prob - batch.old_log_prob)
    clipped = th.clamp(ratio, 1 - clip_range, 1 + clip_range)
    policy_loss = -th.min(advantages * ratio, advantages * clipped).mean()
    values = policy.values
    if clip_range_vf is not None:
        values = batch.old_values + th.clamp(
            values - batch.old_values, -clip_range_vf, clip_range_vf
        )
    value_loss = th.nn.functional.mse_loss(batch.returns, values)
    entropy = policy.entropy
    entropy_loss = -th.mean(-policy.log_prob) if entropy is None else -th.mean(entropy)
    clip_fraction = th.mean((th.abs(ratio - 1) > clip_range).double())
    log_ratio = policy.log_prob - batch.old_log_prob
    approx_kl = th.mean((th.exp(log_ratio) - 1) - log_ratio)
    loss = policy_loss + ent_coef * entropy_loss + vf_coef * value_loss
    return loss, policy_loss, value_loss, entropy_loss, clip_fraction, approx_kl


@pytest.mark.parametrize("clip_range_vf", [None, 0.2])
@pytest.mark.parametrize("ent_coef", [0.0, 0.1])
@pytest.mark.parametrize("normalize_advantage", [True, False])
@pytest.mark.parametrize("closed_form", [True, False])
def test_terms_and_gradients(batch, clip_range_vf, ent_coef, normalize_advantage, closed_form):
    settings = {
        "clip_range": 0.2,
        "clip_range_vf": clip_range_vf,
        "ent_coef": ent_coef,
        "vf_coef": 0.7,
        "normalize_advantage": normalize_advantage,
    }
    policy = FixedOutputs(batch, closed_form)
    ours = ppo_losses(policy, batch, **settings)
    expected = definition(policy, batch, **settings)
    for name, term, expected_term in zip(ours._fields[:6], ours[:6], expected, strict=True):
        th.testing.assert_close(term.double(), expected_term, rtol=0, atol=1e-7, msg=name)
    for gradient, expected_gradient in zip(
        policy.gradients(ours.loss), policy.gradients(expected[0]), strict=True
    ):
        th.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-12)
    assert 0.05 < ours.clip_fraction < 0.95  # both sides of the clip are met


def test_the_gradient_is_scaled_by_what_comes_from_above(batch):
    policy = FixedOutputs(batch, closed_form=True)
    settings = {"clip_range": 0.2, "clip_range_vf": 0.2, "ent_coef": 0.1, "vf_coef": 0.7,
                "normalize_advantage": True}  # fmt: skip
    once = policy.gradients(ppo_losses(policy, batch, **settings).loss)
    thrice = policy.gradients(3 * ppo_losses(policy, batch, **settings).loss)
    for single, triple in zip(once, thrice, strict=True):
        th.testing.assert_close(3 * single, triple)


def test_on_the_first_pass_the_ratio_is_one_and_nothing_is_clipped(batch):
    policy = FixedOutputs(batch, closed_form=True)
    with th.no_grad():
        policy.log_prob.copy_(batch.old_log_prob)
        policy.values.copy_(batch.old_values)
    settings = {"clip_range": 0.2, "clip_range_vf": 0.2, "ent_coef": 0.0, "vf_coef": 1.0,
                "normalize_advantage": False}  # fmt: skip
    ours = ppo_losses(policy, batch, **settings)
    assert ours.clip_fraction == 0
    assert ours.approx_kl == 0
    assert ours.policy_loss.item() == pytest.approx(-batch.advantages.mean().item())
    log_prob, values, _ = policy.gradients(ours.loss)
    th.testing.assert_close(log_prob, -batch.advantages / batch.advantages.numel())
    th.testing.assert_close(values, 2 * (batch.old_values - batch.returns) / values.numel())


def test_what_a_policy_adds_is_in_the_loss_and_beside_the_other_terms(batch):
    policy = FixedOutputs(batch, closed_form=True)
    settings = {"clip_range": 0.2, "clip_range_vf": None, "ent_coef": 0.1, "vf_coef": 0.5}
    plain = ppo_losses(policy, batch, normalize_advantage=True, **settings)
    assert plain.auxiliary_loss == 0
    assert plain.auxiliary_loss.dtype is th.float64  # and on the device of the others
    policy.auxiliary = th.tensor(0.75, dtype=th.float64, requires_grad=True)
    more = ppo_losses(policy, batch, normalize_advantage=True, **settings)
    assert more.loss == plain.loss + 0.75
    assert more[1:] == (*plain[1:6], policy.auxiliary)
    more.loss.backward()
    assert policy.auxiliary.grad == 1


class AddsTerms(RecurrentPPO):
    """A program that changes the loss by what it is made of."""

    def _losses(self, *args):
        losses = super()._losses(*args)
        more = 0.3 * losses.entropy_loss + losses.value_loss**2 - 0.5 * losses.policy_loss
        return losses._replace(loss=losses.loss + more)


@pytest.mark.parametrize("clip_range_vf", [None, 0.2])
def test_terms_added_to_the_loss_by_a_program_have_their_gradients(monkeypatch, clip_range_vf):
    def trained() -> RecurrentPPO:
        venv = make_vec_env("FlickeringCartPole-v0", n_envs=4, seed=0)
        model = AddsTerms(
            "MlpLstmPolicy", venv, n_steps=16, batch_size=32, n_epochs=3, seed=0,
            clip_range_vf=clip_range_vf, policy_kwargs={"optimizer_class": th.optim.SGD},
        )  # fmt: skip
        model.learn(64)
        return model

    compiled = trained()
    monkeypatch.setattr(losses_module.gate, "against_kernels", lambda *args: "tested")
    plain = trained()
    start = RecurrentPPO("MlpLstmPolicy", plain.env, n_steps=16, batch_size=32, seed=0)
    for name, weights in compiled.policy.state_dict().items():
        change = weights - start.policy.state_dict()[name]
        expected = plain.policy.state_dict()[name] - start.policy.state_dict()[name]
        scale = max(expected.abs().max().item(), 1e-9)
        assert (change - expected).abs().max() < 2e-3 * scale + 1e-8, name


def test_one_term_alone_has_its_gradient_and_no_second_one():
    venv = make_vec_env("FlickeringCartPole-v0", n_envs=2, seed=0)
    model = RecurrentPPO("MlpLstmPolicy", venv, n_steps=16, seed=0)
    model.learn(32)
    settings = {"clip_range": 0.2, "clip_range_vf": None, "ent_coef": 0.1, "vf_coef": 0.7,
                "normalize_advantage": True}  # fmt: skip
    batch = model.rollout_buffer.to_sequence_batch()
    policy = model.policy
    ours = ppo_losses(policy, batch, **settings)
    values, log_prob, entropy = policy.evaluate_sequences(
        batch.observations, batch.actions, batch.initial_state, batch.layout
    )
    expected = losses_module._torch_losses(
        values, log_prob, entropy, batch, losses_module.Coefficients(**settings)
    )
    for name in ("loss", "policy_loss", "value_loss", "entropy_loss"):
        parameters = list(policy.parameters())
        kwargs = {"retain_graph": True, "allow_unused": True}
        found = th.autograd.grad(getattr(ours, name), parameters, **kwargs)
        wanted = th.autograd.grad(getattr(expected, name), parameters, **kwargs)
        for one, other in zip(found, wanted, strict=True):
            if other is None:  # as the value is to the policy's head
                assert one is None or not one.any()
            else:
                th.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)

"""The compiled loops against torch's own operations, and where they are left alone."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import math
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from unittest import mock

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import fixed_length_envs, sharpen

from thrust_pomdp import RecurrentPPO
from thrust_pomdp.ppo.action_noise import row_uniforms
from thrust_pomdp.ppo.distributions import PlainCategoricalDistribution, chosen
from thrust_pomdp.ppo.prepared_step import WatchedStep
from thrust_pomdp.recurrent import compiled, jit
from thrust_pomdp.recurrent.compiled import (
    CategoricalPPOLoss,
    CompiledCategoricalHeads,
    kernels_for,
    load_kernels,
)
from thrust_pomdp.recurrent.memory import memory_sequences, memory_step
from thrust_pomdp.recurrent.sequences import ResetLayout
from thrust_pomdp.recurrent.torch_layers import torch_layer

kernels = load_kernels()
pytestmark = pytest.mark.skipif(kernels is None, reason="Numba is missing or switched off")


@pytest.fixture
def without_kernels(monkeypatch):
    """Run a function on torch's own operations."""

    def call(function, *args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "load_kernels", lambda: None)
            return function(*args, **kwargs)

    return call


KINDS = {
    "LSTM": th.nn.LSTM,
    "GRU": th.nn.GRU,
    "RNN": th.nn.RNN,
    "RNN with relu": lambda *args, **kwargs: th.nn.RNN(*args, nonlinearity="relu", **kwargs),
}


def make_states(rnn, *shape: int) -> tuple[th.Tensor, ...]:
    return tuple(th.randn(*shape, requires_grad=True) for _ in torch_layer(rnn).state)


@pytest.mark.parametrize("kind", KINDS)
class TestMemory:
    @pytest.mark.parametrize("n_seq", [1, 2, 3, 5])
    @pytest.mark.parametrize("hidden", [1, 3, 4, 7, 64])
    @pytest.mark.parametrize("n_features", [1, 5])
    def test_every_size_equals_torchs_own(self, without_kernels, kind, n_seq, hidden, n_features):
        th.manual_seed(0)
        rnn = KINDS[kind](n_features, hidden)
        features = th.randn(n_seq, 11, n_features, requires_grad=True)
        states = make_states(rnn, 1, n_seq, hidden)
        layout = ResetLayout.from_episode_starts(np.random.default_rng(0).random((n_seq, 11)) < 0.2)
        weights = th.randn(n_seq, 11, hidden)
        leaves = [features, *states, *rnn.parameters()]

        def run():
            outputs, leaving = memory_sequences(rnn, features, layout, states)
            loss = (outputs * weights).sum() + sum(part.square().sum() for part in leaving)
            return outputs, th.autograd.grad(loss, leaves)

        (outputs, gradients), (expected, expected_gradients) = run(), without_kernels(run)
        th.testing.assert_close(outputs, expected, rtol=1e-6, atol=1e-6)
        for gradient, other in zip(gradients, expected_gradients, strict=True):
            th.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)

    def test_a_graph_can_be_gone_through_twice(self, kind):
        rnn = KINDS[kind](2, 4)
        layout = ResetLayout.from_episode_starts(np.zeros((2, 5)))
        outputs, _ = memory_sequences(rnn, th.randn(2, 5, 2), layout)
        once, again = (
            th.autograd.grad(outputs.sum(), rnn.parameters(), retain_graph=True) for _ in range(2)
        )
        assert all(th.equal(a, b) for a, b in zip(once, again, strict=True))

    @pytest.mark.parametrize("loss", [th.sum, lambda outputs: outputs.square().sum()])
    def test_a_second_derivative_is_refused_with_the_remedy(self, kind, loss):
        rnn = KINDS[kind](2, 4)
        layout = ResetLayout.from_episode_starts(np.zeros((2, 5)))
        outputs, _ = memory_sequences(rnn, th.randn(2, 5, 2), layout)
        expected = th.autograd.grad(loss(outputs), rnn.weight_hh_l0, retain_graph=True)[0]
        gradient = th.autograd.grad(loss(outputs), rnn.weight_hh_l0, create_graph=True)[0]
        assert th.equal(gradient, expected)
        with pytest.raises(RuntimeError, match="no second derivative.*NUMBA_DISABLE_JIT=1"):
            (loss(outputs) + gradient.square().sum()).backward()

    @pytest.mark.parametrize("where", ["weights", "features", "states"])
    def test_a_nan_shows(self, kind, where):
        rnn = KINDS[kind](2, 4)
        features, states = th.randn(1, 5, 2), make_states(rnn, 1, 1, 4)
        with th.no_grad():
            {"weights": rnn.weight_hh_l0, "features": features, "states": states[-1]}[where][:] = (
                math.nan
            )
        layout = ResetLayout.from_episode_starts(np.zeros((1, 5)))
        outputs, _ = memory_sequences(rnn, features, layout, states)
        assert outputs.isnan().all()
        outputs.sum().backward()
        assert rnn.weight_hh_l0.grad.isnan().any()

    def test_frozen_weights_and_features_without_gradient(self, kind):
        th.manual_seed(0)
        rnn = KINDS[kind](2, 4).requires_grad_(False)
        layout = ResetLayout.from_episode_starts(np.zeros((1, 5)))
        assert not memory_sequences(rnn, th.randn(1, 5, 2), layout)[0].requires_grad
        features = th.randn(1, 5, 2, requires_grad=True)
        memory_sequences(rnn, features, layout)[0].sum().backward()
        assert (features.grad != 0).all()

    def test_features_that_are_part_of_a_larger_tensor(self, kind):
        rnn = KINDS[kind](2, 4)
        layout = ResetLayout.from_episode_starts(np.zeros((3, 5)))
        features = th.randn(2, 5, 6).permute(2, 1, 0)[::2]
        outputs, expected = (
            memory_sequences(rnn, rows, layout)[0] for rows in (features, features.contiguous())
        )
        assert th.equal(outputs, expected)


@pytest.mark.parametrize("kind", KINDS)
class TestSizesOfMemoryThatDoNotFit:
    """The loops do not look at bounds: torch would raise here, they would read beyond the end."""

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("features", (2, 5, 3)),
            ("features", (2, 5, 5)),
            ("episode_starts", (3, 5)),
            ("episode_starts", (2, 4)),
            ("hidden_state", (1, 1, 8)),
            ("hidden_state", (1, 2, 1)),
            ("cell_state", (1, 2, 9)),
        ],
    )
    def test_of_windows(self, kind, name, shape):
        rnn = KINDS[kind](4, 8)
        parts = {"features": (2, 5, 4), "episode_starts": (2, 5)}
        parts |= {f"{part}_state": (1, 2, 8) for part in torch_layer(rnn).state}
        if name not in parts:
            pytest.skip("it has no such state")
        features, starts, *states = (th.zeros(size) for size in {**parts, name: shape}.values())
        layout = ResetLayout.from_episode_starts(starts)
        with pytest.raises(ValueError, match=f"{name} must be of shape"):
            memory_sequences(rnn, features, layout, tuple(states))

    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("features", (2, 3)),
            ("features", (3, 4)),
            ("hidden_state", (1, 2, 1)),
            ("cell_state", (1, 1, 8)),
            ("episode_starts", (1,)),
        ],
    )
    def test_of_a_step(self, kind, name, shape):
        rnn = KINDS[kind](4, 8)
        parts = {"features": (2, 4), "episode_starts": (2,)}
        parts |= {f"{part}_state": (1, 2, 8) for part in torch_layer(rnn).state}
        if name not in parts:
            pytest.skip("it has no such state")
        features, starts, *states = (th.zeros(size) for size in {**parts, name: shape}.values())
        cell = torch_layer(rnn).compiled_step(kernels, rnn, 0)
        with th.no_grad(), pytest.raises(ValueError, match="must be of shape"):
            cell(features, tuple(states), starts.bool())


class TestSizesThatDoNotFit:
    @pytest.mark.parametrize(("pi", "vf"), [((2, 5), (2, 6)), ((2, 6), (2, 7)), ((2, 6), (1, 6))])
    def test_of_heads(self, pi, vf):
        _, heads = make_heads(3)
        with pytest.raises(ValueError, match="memory_.f must be of shape|memory_pi must be"):
            heads(th.zeros(pi), th.zeros(vf))

    @pytest.mark.parametrize("part", range(5))
    def test_of_the_loss(self, part):
        logits, values, batch = loss_inputs()
        short = (*batch[:part], batch[part][:-1], *batch[part + 1 :])
        with pytest.raises(ValueError, match="must be of shape"):
            CategoricalPPOLoss.apply(kernels, logits, values, short, (0.2, 0.2, 0.1, 0.7, True))

    @pytest.mark.parametrize("action", [-1, 3])
    def test_an_action_that_does_not_exist(self, action):
        logits, values, batch = loss_inputs(n_actions=3)
        batch[0][5] = action
        with pytest.raises(ValueError, match=f"actions must be from 0 to 2, got .*{action}"):
            CategoricalPPOLoss.apply(kernels, logits, values, batch, (0.2, 0.2, 0.1, 0.7, True))

    def test_observations_of_another_width_given_to_a_policy(self):
        policy = RecurrentPPO("MlpLstmPolicy", fixed_length_envs(5)).policy
        with pytest.raises(ValueError, match="features must be of shape"):
            policy.evaluate_sequences(th.ones(2, 5, 2), th.zeros(2, 5, 1), None, th.zeros(2, 5))


class TestThreads:
    """However the rows are divided, the numbers are the same."""

    @pytest.fixture(autouse=True)
    def eager_threads(self, monkeypatch):
        monkeypatch.setattr(compiled, "_WORK_PER_THREAD", 1)

    @staticmethod
    def outputs(n_seq: int, kind: str = "LSTM") -> list[th.Tensor]:
        th.manual_seed(0)
        rnn = KINDS[kind](3, 16)
        layout = ResetLayout.from_episode_starts(np.random.default_rng(0).random((n_seq, 20)) < 0.1)
        outputs, _ = memory_sequences(rnn, th.randn(n_seq, 20, 3), layout)
        outputs.square().sum().backward()
        return [outputs.detach(), *(weight.grad for weight in rnn.parameters())]

    @pytest.mark.parametrize("n_seq", [1, 2, 3, 7, 8])
    @pytest.mark.parametrize("n_threads", [2, 3, 16])
    @pytest.mark.parametrize("kind", KINDS)
    def test_bit_for_bit(self, monkeypatch, kind, n_seq, n_threads):
        alone = self.outputs(n_seq, kind)
        calls = []
        submit = compiled._helpers().submit
        monkeypatch.setattr(th, "get_num_threads", lambda: n_threads)
        monkeypatch.setattr(
            compiled._helpers(), "submit", lambda *args: calls.append(args) or submit(*args)
        )
        together = self.outputs(n_seq, kind)
        assert all(th.equal(a, b) for a, b in zip(alone, together, strict=True))
        # Forward and backward, each a call less than there are parts.
        assert len(calls) == 2 * (min(n_threads, (n_seq + 1) // 2) - 1)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    def test_a_forked_process_has_threads_of_its_own(self, monkeypatch):
        monkeypatch.setattr(th, "get_num_threads", lambda: 2)
        expected = self.outputs(4)
        parent_pool = compiled._helpers()
        context = multiprocessing.get_context("fork")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forking a process that has threads
            process = context.Process(target=self._in_child, args=(expected,))
            process.start()
        process.join(60)
        assert process.exitcode == 0
        assert compiled._helpers() is parent_pool

    def test_the_main_thread_may_end_while_a_model_trains(self):
        program = """
import threading, numpy as np, torch as th
from thrust_pomdp.recurrent import compiled, memory, sequences
compiled._WORK_PER_THREAD = 1
th.get_num_threads = lambda: 2
main = threading.current_thread()

def run():
    main.join()
    layout = sequences.ResetLayout.from_episode_starts(np.zeros((4, 20)))
    outputs, _ = memory.memory_sequences(th.nn.LSTM(3, 16), th.randn(4, 20, 3), layout)
    outputs.sum().backward()
    print("done")

threading.Thread(target=run).start()
"""
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert result.stdout == "done\n", result.stderr

    def _in_child(self, expected):
        # The products after the loops would wait for OpenMP's threads, which are not here either.
        th.set_num_threads(1)
        th.get_num_threads = lambda: 2
        assert th.equal(self.outputs(4)[0], expected[0])


@pytest.mark.parametrize("kind", KINDS)
class TestCell:
    @pytest.mark.parametrize("n_envs", [1, 2, 3, 16])
    @pytest.mark.parametrize("bias", [True, False])
    def test_equals_torchs_step(self, kind, n_envs, bias):
        rnn = KINDS[kind](3, 5, bias=bias)
        cell = torch_layer(rnn).compiled_step(kernels, rnn, 0)
        starts = th.arange(n_envs) % 3 == 1
        features = th.randn(n_envs, 3)
        with th.no_grad():
            states = make_states(rnn, 1, n_envs, 5)
            given = tuple(state.clone() for state in states)
            states = tuple(state.detach() for state in states)
            expected, expected_states = memory_step(rnn, features, states, starts)
            output, new_states = cell(features, states, starts)
        th.testing.assert_close(output, expected, rtol=0, atol=1e-6)
        th.testing.assert_close(new_states, expected_states, rtol=0, atol=1e-6)
        assert all(th.equal(a, b) for a, b in zip(states, given, strict=True))

    def test_parts_of_larger_arrays(self, kind):
        rnn = KINDS[kind](3, 5)
        cell = torch_layer(rnn).compiled_step(kernels, rnn, 0)
        states = (th.randn(1, 4, 10)[..., ::2], th.randn(5, 4, 1).permute(2, 1, 0))
        states = states[: len(torch_layer(rnn).state)]
        starts, features = th.tensor([0, 0, 1, 0, 0, 0, 1, 1]).bool()[::2], th.randn(3, 4).t()
        with th.no_grad():
            expected, expected_states = memory_step(rnn, features, states, starts)
            output, new_states = cell(features, states, starts)
        th.testing.assert_close(output, expected, rtol=0, atol=1e-6)
        th.testing.assert_close(new_states, expected_states, rtol=0, atol=1e-6)

    def test_is_the_windows_step_bit_for_bit(self, kind):
        rnn = KINDS[kind](3, 16)
        cell, features = torch_layer(rnn).compiled_step(kernels, rnn, 0), th.randn(4, 6, 3)
        starts = th.from_numpy(np.random.default_rng(0).random((4, 6)) < 0.3)
        with th.no_grad():
            outputs, leaving = memory_sequences(rnn, features, ResetLayout(starts))
            states = tuple(th.zeros(1, 4, 16) for _ in leaving)
            for step in range(6):
                output, states = cell(features[:, step], states, starts[:, step])
                assert th.equal(output, outputs[:, step])
        assert all(th.equal(a, b) for a, b in zip(states, leaving, strict=True))


def _in_place(module):
    for parameter in module.parameters():
        parameter.mul_(1.5)


def _loaded(module):
    module.load_state_dict({name: 1.5 * part for name, part in module.state_dict().items()})


def _other_memory(module):
    # What SB3's policy.load_from_vector does.
    vector = th.nn.utils.parameters_to_vector(module.parameters())
    th.nn.utils.vector_to_parameters(1.5 * vector, module.parameters())


class TestWeightsChangedInMidRollout:
    """A callback may change the policy at any step; the next step acts by the new weights."""

    @pytest.mark.parametrize("change", [_in_place, _loaded, _other_memory])
    @pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
    def test_are_used_at_the_next_step(self, change, kind):
        kwargs = {"rnn_class": KINDS[kind]}
        env = fixed_length_envs(5, 7)
        policy = RecurrentPPO("MlpLstmPolicy", env, seed=0, policy_kwargs=kwargs).policy
        step = WatchedStep(policy)
        obs, starts = th.randn(2, 3), th.zeros(2, dtype=th.bool)
        with th.no_grad():
            states = step(obs, policy.zero_states(2), starts)[3]
            change(policy)
            th.manual_seed(0)
            actions, values, log_prob, new_states = step(obs, states, starts)
            th.manual_seed(0)
            expected = policy.forward(obs, states, starts)
        assert th.equal(actions, expected[0])
        th.testing.assert_close((values, log_prob), expected[1:3], rtol=0, atol=1e-6)
        th.testing.assert_close(new_states.pi, expected[3].pi, rtol=0, atol=1e-6)


def loss_inputs(seed: int = 0, n_actions: int = 3, rows: int = 400):
    generator = th.Generator().manual_seed(seed)

    def normal(*shape):
        return th.randn(*shape, generator=generator)

    logits, values = 2 * normal(rows, n_actions), normal(rows)
    actions = th.randint(n_actions, (rows,), generator=generator)
    log_prob = th.log_softmax(logits, 1).gather(1, actions[:, None])[:, 0]
    old_log_prob = log_prob + 0.3 * normal(rows)
    batch = (actions, old_log_prob, values + 0.3 * normal(rows), normal(rows), normal(rows))
    return logits, values, batch


def definition(logits, values, batch, clip_range, clip_range_vf, ent_coef, vf_coef, normalize):
    """SB3's PPO loss, as its train() writes it, in float64."""
    actions, old_log_prob, old_values, advantages, returns = batch
    old_log_prob, old_values, advantages, returns = (
        part.double() for part in (old_log_prob, old_values, advantages, returns)
    )
    distribution = th.distributions.Categorical(logits=logits.double(), validate_args=False)
    values = values.double()
    if normalize:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    log_ratio = distribution.log_prob(actions) - old_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    policy_loss = -th.min(advantages * ratio, advantages * clipped).mean()
    if clip_range_vf < math.inf:
        values = old_values + (values - old_values).clamp(-clip_range_vf, clip_range_vf)
    value_loss = th.nn.functional.mse_loss(returns, values)
    entropy_loss = -distribution.entropy().mean()
    loss = policy_loss + ent_coef * entropy_loss + vf_coef * value_loss
    clip_fraction = ((ratio - 1).abs() > clip_range).double().mean()
    return loss, policy_loss, value_loss, entropy_loss, clip_fraction, (
        ratio - 1 - log_ratio
    ).mean()  # fmt: skip


class TestCategoricalLoss:
    @pytest.mark.parametrize("clip_range_vf", [math.inf, 0.2])
    @pytest.mark.parametrize("ent_coef", [0.0, 0.1])
    @pytest.mark.parametrize("normalize", [True, False])
    @pytest.mark.parametrize("n_actions", [1, 2, 9])
    def test_terms_and_gradients(self, clip_range_vf, ent_coef, normalize, n_actions):
        logits, values, batch = loss_inputs(n_actions=n_actions)
        leaves = (logits.requires_grad_(), values.requires_grad_())
        coefficients = (0.2, clip_range_vf, ent_coef, 0.7, normalize)
        ours = CategoricalPPOLoss.apply(kernels, logits, values, batch, coefficients)
        expected = definition(logits, values, batch, *coefficients)
        for term, other in zip(ours, expected, strict=True):
            th.testing.assert_close(term.double(), other, rtol=1e-5, atol=1e-6)
        gradients = th.autograd.grad(3 * ours[0], leaves)
        expected_gradients = th.autograd.grad(3 * expected[0], leaves)
        for gradient, other in zip(gradients, expected_gradients, strict=True):
            th.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-8)
        assert 0.05 < ours[4] < 0.95  # both sides of the clip are met

    def test_an_impossible_action_adds_nothing(self):
        logits, values, batch = loss_inputs(n_actions=3)
        actions = batch[0].clamp(max=1)
        logits[:, 2] = -math.inf
        coefficients = (0.2, math.inf, 0.1, 0.7, True)

        def run(logits):
            logits = logits.clone().requires_grad_()
            terms = CategoricalPPOLoss.apply(
                kernels, logits, values, (actions, *batch[1:]), coefficients
            )
            return terms, th.autograd.grad(terms[0], logits)[0]

        terms, gradient = run(logits)
        expected, expected_gradient = run(logits[:, :2].contiguous())
        for term, other in zip(terms, expected, strict=True):
            assert th.equal(term, other)
        assert th.equal(gradient[:, :2], expected_gradient)
        assert (gradient[:, 2] == 0).all()

    def test_a_second_derivative_is_refused_with_the_remedy(self):
        logits, values, batch = loss_inputs()
        coefficients = (0.2, math.inf, 0.1, 0.7, True)
        terms = CategoricalPPOLoss.apply(
            kernels, logits.requires_grad_(), values, batch, coefficients
        )
        gradient = th.autograd.grad(terms[0], logits, create_graph=True)[0]
        with pytest.raises(RuntimeError, match="no second derivative.*NUMBA_DISABLE_JIT=1"):
            gradient.square().sum().backward()

    @pytest.mark.parametrize("part", ["logits", "values", "advantages"])
    def test_a_nan_shows(self, part):
        logits, values, batch = loss_inputs()
        {"logits": logits[0], "values": values[:1], "advantages": batch[3][:1]}[part][:] = math.nan
        leaves = (logits.requires_grad_(), values.requires_grad_())
        for clip_range_vf in (math.inf, 0.2):
            loss = CategoricalPPOLoss.apply(
                kernels, *leaves, batch, (0.2, clip_range_vf, 0.1, 0.7, True)
            )[0]
            assert loss.isnan()
            assert any(g.isnan().any() for g in th.autograd.grad(loss, leaves))

    @pytest.mark.parametrize(
        "policy_kwargs",
        [
            {},
            {"n_lstm_layers": 2, "net_arch": []},
            {"shared_lstm": True, "enable_critic_lstm": False},
            {"enable_critic_lstm": False},
            {"rnn_class": th.nn.GRU},
            {"rnn_class": th.nn.RNN, "n_lstm_layers": 2},
        ],
    )
    def test_a_whole_update_equals_torchs(self, without_kernels, policy_kwargs):
        def train():
            model = RecurrentPPO(
                "MlpLstmPolicy",
                fixed_length_envs(5, 7, 40, action_space=spaces.Discrete(3)),
                n_steps=32,
                batch_size=32,
                n_epochs=2,
                ent_coef=0.01,
                clip_range_vf=0.2,
                learning_rate=1e-2,
                seed=0,
                policy_kwargs={"lstm_hidden_size": 8, **policy_kwargs},
            )
            sharpen(model)
            model.learn(96)
            return model

        ours, expected = train(), without_kernels(train)
        for name, weight in ours.policy.state_dict().items():
            other = expected.policy.state_dict()[name]
            th.testing.assert_close(weight, other, rtol=0, atol=2e-4, msg=name)
        logged = ("train/loss", "train/approx_kl", "train/clip_fraction", "train/entropy_loss")
        for key in logged:
            values = [model.logger.name_to_value[key] for model in (ours, expected)]
            assert values[0] == pytest.approx(values[1], rel=1e-2, abs=1e-4), key


def make_heads(n_actions: int, size: int = 6):
    th.manual_seed(0)
    nets = th.nn.Linear(size, n_actions), th.nn.Linear(size, 1)
    distribution = PlainCategoricalDistribution(n_actions)
    return nets, CompiledCategoricalHeads(kernels, *nets, distribution, row_uniforms)


class TestHeads:
    def test_draw_from_the_distribution_and_tell_its_log_probability(self):
        (action_net, _), heads = make_heads(4)
        with th.no_grad():
            action_net.weight.zero_()
            action_net.bias.copy_(th.tensor([0.0, 1.0, -2.0, -math.inf]))
        actions, _, log_prob = heads(th.zeros(200_000, 6), th.zeros(200_000, 6))
        expected = th.softmax(action_net.bias.detach().double(), 0)
        share = th.bincount(actions, minlength=4) / len(actions)
        error = 5 * (expected * (1 - expected) / len(actions)).sqrt()
        assert ((share - expected).abs() <= error).all()
        assert share[3] == 0
        th.testing.assert_close(log_prob, th.log_softmax(action_net.bias.detach(), 0)[actions])

    def test_give_what_the_distribution_and_the_value_net_give(self):
        (action_net, value_net), heads = make_heads(4)
        memory_pi, memory_vf = th.randn(500, 6), th.randn(500, 6)
        th.manual_seed(3)
        actions, values, log_prob = heads(memory_pi, memory_vf)
        th.manual_seed(3)
        with th.no_grad():
            distribution = PlainCategoricalDistribution(4).proba_distribution(action_net(memory_pi))
            assert th.equal(actions, distribution.sample())
            th.testing.assert_close(log_prob, distribution.log_prob(actions), rtol=0, atol=1e-6)
            th.testing.assert_close(values, value_net(memory_vf), rtol=0, atol=1e-6)

    def test_choose_as_the_definition_does(self):
        """On probabilities that are exact, and numbers on and beside the sums."""
        (action_net, _), heads = make_heads(5)
        shares = th.tensor([0.0, 0.25, 0.5, 0.25, 0.0])
        with th.no_grad():
            action_net.weight.zero_()
            action_net.bias.copy_(shares.log())
        edges = [0.0, 0.25, 0.75]
        numbers = np.array([*edges, *np.nextafter(edges[1:], 0), 1 - 2**-53, 0.5])
        heads._uniforms = lambda n_rows: numbers
        actions, *_ = heads(th.zeros(7, 6), th.zeros(7, 6))
        assert actions.tolist() == [1, 2, 3, 1, 2, 3, 2]
        assert th.equal(actions, chosen(shares.expand(7, 5), th.from_numpy(numbers)))

    def test_refuse_numbers_for_other_rows(self):
        _, heads = make_heads(2)
        heads._uniforms = lambda n_rows: np.zeros(n_rows - 1)
        with pytest.raises(ValueError, match=r"uniforms must be of shape \(3,\), got \(2,\)"):
            heads(th.zeros(3, 6), th.zeros(3, 6))

    def test_a_nan_shows(self):
        _, heads = make_heads(2)
        memory = th.full((1, 6), math.nan)
        _, values, log_prob = heads(memory, memory)
        assert values.isnan().all()
        assert log_prob.isnan().all()


TRAINING = """
import hashlib, sys
import torch as th
from torch import nn
from stable_baselines3.common.env_util import make_vec_env
from thrust_pomdp import RecurrentPPO

th.set_num_threads(1)
for rnn_class in (nn.LSTM, nn.GRU, nn.RNN):
    model = RecurrentPPO(
        "MlpLstmPolicy", make_vec_env("CartPole-v1", n_envs=6, seed=0), n_steps=128,
        envs_per_minibatch=3, n_epochs=2, seed=0,
        policy_kwargs=dict(
            rnn_class=rnn_class, lstm_hidden_size=64, net_arch=[], shared_lstm_critic_gradient=True
        ),
    ).learn(6 * 128)
    parameters = nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy()
    print(rnn_class.__name__, hashlib.sha256(parameters.tobytes()).hexdigest())
"""


def test_the_process_that_compiles_trains_as_those_that_load_what_it_kept(tmp_path):
    folder = tmp_path / "cache"
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}

    def train() -> str:
        command = [sys.executable, "-c", TRAINING]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        return done.stdout

    compiling = train()
    kept = {path: path.stat().st_mtime_ns for path in folder.rglob("*.nbc")}
    loading = train()
    assert kept
    assert kept == {path: path.stat().st_mtime_ns for path in folder.rglob("*.nbc")}
    assert compiling == loading
    assert len(compiling.splitlines()) == 3


class TestWhereTheyAreLeftAlone:
    def test_other_types_and_devices(self):
        assert kernels_for(th.zeros(1)) is kernels
        assert kernels_for(th.zeros(1), th.zeros(1, dtype=th.float64)) is None
        assert kernels_for(th.zeros(1, device="meta")) is None

    def test_a_missing_or_disabled_numba(self, monkeypatch):
        import numba

        load = load_kernels.__wrapped__
        assert load() is kernels
        monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
        assert load() is None
        monkeypatch.setitem(sys.modules, "numba", None)
        assert load() is None


LOOP = """
def halves(x):
    return x / 2
"""

WHERE_FILES_ARE_DAMAGED = {
    "empty": lambda data: b"",
    "cut after the version": lambda data: data[:20],
    "cut at half": lambda data: data[: len(data) // 2],
    "without the end": lambda data: data[:-1],
    "zeros": lambda data: bytes(len(data)),
    "garbage": lambda data: b"no compiled code at all",
    "another object": lambda data: pickle.dumps((1, 2, 3)),
}


class TestKeptCode:
    """What cannot be kept or read is done without, and told once."""

    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        import numba

        monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setitem(sys.modules, "halving", None)
        (tmp_path / "halving.py").write_text(LOOP)
        return tmp_path / "cache"

    @pytest.fixture(autouse=True)
    def nothing_said(self, monkeypatch):
        monkeypatch.setattr(jit, "_SAID", bytearray(2))

    @staticmethod
    def start(folder):
        """Make the loop as a new process would."""
        jit._SAID[:] = bytes(2)
        spec = importlib.util.spec_from_file_location("halving", folder.parent / "halving.py")
        module = sys.modules["halving"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return jit.compile_loop(module.halves)

    def warned(self, folder, verb="kept in"):
        """Compile, be warned of the folder and the remedy once, and compile more."""
        loop = self.start(folder)
        with pytest.warns(UserWarning, match=verb) as caught:
            assert loop(3.0) == 1.5
            assert loop(np.float32(3)) == 1.5
            assert self.other(folder)(3) == 1.5
        (warning,) = caught
        assert warning.filename == __file__
        text = str(warning.message)
        assert "NUMBA_CACHE_DIR" in text
        assert "free disk space, delete" in text
        return text

    @staticmethod
    def other(folder):
        said = bytes(jit._SAID)
        loop = TestKeptCode.start(folder)
        jit._SAID[:] = said
        return loop

    def test_is_loaded_in_silence(self, folder, caplog):
        assert self.start(folder)(3.0) == 1.5
        assert [record.getMessage() for record in caplog.records] == [
            "thrust_pomdp: compiling loops for this machine, which takes about half a minute once"
        ]
        caplog.clear()
        loop = self.start(folder)
        assert loop(3.0) == 1.5
        assert sum(loop.stats.cache_hits.values()) == 1
        assert not caplog.records

    @pytest.mark.parametrize("ending", ["nbi", "nbc"])
    @pytest.mark.parametrize("damage", WHERE_FILES_ARE_DAMAGED)
    def test_of_which_a_file_is_damaged_is_compiled_again(self, folder, ending, damage):
        self.start(folder)(3.0)
        (path,) = folder.rglob(f"*.{ending}")
        path.write_bytes(WHERE_FILES_ARE_DAMAGED[damage](path.read_bytes()))
        if (ending, damage) in {("nbi", "another object")}:
            assert self.start(folder)(3.0) == 1.5  # as another version's, which Numba passes over
        else:
            assert str(folder) in self.warned(folder, verb="be read from")
        loop = self.start(folder)
        assert loop(3.0) == 1.5
        assert sum(loop.stats.cache_hits.values()) == 1  # it has been mended

    @pytest.mark.parametrize("ending", ["nbi", "nbc"])
    def test_that_may_not_be_read_is_compiled_again(self, folder, ending, monkeypatch):
        self.start(folder)(3.0)
        (path,) = folder.rglob(f"*.{ending}")
        path.unlink()
        path.mkdir()  # an administrator may read anything, but no folder
        loop = self.start(folder)
        with pytest.warns(UserWarning, match="Compiled loops cannot be .*NUMBA_CACHE_DIR"):
            assert loop(3.0) == 1.5

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
    def test_on_a_disk_that_takes_nothing(self, folder, monkeypatch, number):
        @contextlib.contextmanager
        def refuse(*_):
            raise OSError(number, os.strerror(number))
            yield

        monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._open_for_write", refuse)
        text = self.warned(folder)
        assert str(folder) in text
        assert os.strerror(number) in text

    def test_of_an_older_version_is_not_loaded_after_the_disk_was_full(self, folder, monkeypatch):
        """The index is written before the code; the older code has the same name."""
        self.start(folder)(3.0)
        # Of another length: by that, and by whole seconds, Python tells whether bytecode is old.
        (folder.parent / "halving.py").write_text(LOOP.replace("/ 2", "/  4"))
        from numba.core.caching import IndexDataCacheFile

        with monkeypatch.context() as patch:
            patch.setattr(IndexDataCacheFile, "_save_data", mock.Mock(side_effect=OSError("full")))
            loop = self.start(folder)
            with pytest.warns(UserWarning, match="full"):
                assert loop(3.0) == 0.75
        assert self.start(folder)(3.0) == 0.75

    def test_in_a_folder_that_became_a_file(self, folder):
        loop = self.start(folder)
        shutil.rmtree(folder)
        folder.write_text("")
        with pytest.warns(UserWarning, match=f"from {folder}.*Not a directory"):
            assert loop(3.0) == 1.5

    def test_where_no_folder_can_be_written_to(self, folder, monkeypatch):
        monkeypatch.setattr("tempfile.TemporaryFile", mock.Mock(side_effect=PermissionError))
        text = self.warned(folder)
        assert str(folder.parent / "__pycache__") in text

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    def test_workers_that_are_copies_of_one_process_tell_it_once_together(self):
        program = (
            "import os\nfrom thrust_pomdp.recurrent import jit\n"
            "for _ in range(3):\n"
            "    if os.fork() == 0:\n"
            "        jit._warn('cannot be kept', OSError('full'))\n"
            "        jit._say_compiling()\n"
            "        os._exit(0)\n"
            "    os.wait()\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.stderr.count("UserWarning: Compiled loops cannot be kept") == 1
        assert done.stderr.count("thrust_pomdp: compiling loops") == 1


WINDOWS = """
import hashlib, sys
import numpy as np
import torch as th
from thrust_pomdp.recurrent.memory import memory_sequences
from thrust_pomdp.recurrent.sequences import ResetLayout

th.set_num_threads(1)
th.manual_seed(0)
lstm, features = th.nn.LSTM(5, 64), th.randn(7, 90, 5)
layout = ResetLayout.from_episode_starts(np.random.default_rng(0).random((7, 90)) < 0.1)
outputs, _ = memory_sequences(lstm, features, layout)
outputs.square().sum().backward()
digits = [outputs, *(weight.grad for weight in lstm.parameters())]
print(hashlib.sha256(b"".join(part.detach().numpy().tobytes() for part in digits)).hexdigest())
"""


def test_digits_are_the_same_whether_code_was_kept_damaged_or_could_not_be_kept(tmp_path):
    folder = tmp_path / "cache"

    def run(before: str = "") -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", before + WINDOWS], capture_output=True, text=True, check=True,
            env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
        )  # fmt: skip
        return done.stdout, done.stderr

    # No file may become longer than this: the first of code cannot be written, as on a full disk.
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
    without, said = run(full)
    assert said.count("Compiled loops cannot be kept") == 1
    assert "thrust_pomdp: compiling loops" in said
    kept, said = run()
    assert "cannot" not in said
    for number, path in enumerate(sorted(folder.rglob("*.nb?"))):
        if number % 3 == 0:
            path.write_bytes(path.read_bytes()[: 1000 * (number % 2)])
    damaged, said = run()
    assert said.count("Compiled loops cannot be read from") == 1
    assert run() == (kept, "")
    assert without == damaged == kept

"""Layers before the memory, layer normalisation after it, and the forget gate's bias."""

from __future__ import annotations

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import FirstPass, fixed_length_envs, ignore_resets, sharpen
from torch import nn

from thrust_pomdp import MlpLstmPolicy, RecurrentPPO, from_sb3_contrib, to_sb3_contrib

WINDOW, HIDDEN = 16, 8
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
OPTIONS = {
    "encoder": {"net_arch": {"encoder": [6, 5], "pi": [7], "vf": []}},
    "two encoders": {"net_arch": {"encoder": [6]}, "share_features_extractor": False},
    "layer norm": {"layer_norm": True},
    "layer norm, straight to the heads": {"layer_norm": True, "net_arch": []},
    "layer norm, shared": {"layer_norm": True, "shared_lstm_critic_gradient": True},
    "layer norm, critic without memory": {"layer_norm": True, "enable_critic_lstm": False},
    "forget bias": {"forget_bias": 1.0},
    "all": {"net_arch": {"encoder": [6], "pi": [7]}, "layer_norm": True, "forget_bias": 1.0},
    "GRU": {"net_arch": {"encoder": [6]}, "layer_norm": True, "rnn_class": nn.GRU},
}


def make_model(env=None, policy="MlpLstmPolicy", **policy_kwargs) -> RecurrentPPO:
    return RecurrentPPO(
        policy, fixed_length_envs(5, 6, 7) if env is None else env, n_steps=WINDOW,
        batch_size=WINDOW, n_epochs=2, seed=0,
        policy_kwargs={"lstm_hidden_size": HIDDEN, **policy_kwargs},
    )  # fmt: skip


def first_pass(model: RecurrentPPO, plant=None) -> FirstPass:
    model.learning_rate = 0.0
    model._setup_lr_schedule()
    sharpen(model)
    callback = FirstPass(plant)
    model.learn(2 * WINDOW * model.n_envs, callback=callback)
    assert callback.minibatches == 2 * 2 * model.n_envs
    return callback


@pytest.mark.parametrize("options", OPTIONS)
class TestEachOption:
    @pytest.mark.parametrize("lengths", [(5,), (5, 6, 7)])
    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    def test_first_pass_equals_collection(self, options, lengths, window_state):
        model = make_model(fixed_length_envs(*lengths), **OPTIONS[options])
        model.window_state = window_state
        assert first_pass(model).error < 1e-5

    def test_ignoring_resets_in_training_is_noticed(self, options):
        callback = first_pass(make_model(**OPTIONS[options]), ignore_resets)
        assert callback.log_prob_error > 1e-3

    def test_no_gradient_crosses_an_episode_start(self, options):
        policy = make_model(**OPTIONS[options]).policy
        obs, starts = th.randn(1, 7, 3, requires_grad=True), th.tensor([[1, 0, 0, 0, 1, 0, 0]])
        _, log_prob, _ = policy.evaluate_sequences(obs, th.zeros(1, 7, 1), None, starts)
        gradient = th.autograd.grad(log_prob[0, -1], obs)[0][0]
        assert (gradient[:4] == 0).all()
        assert (gradient[4:].abs().sum(dim=1) > 0).all()

    def test_it_comes_back_from_files_and_goes_on(self, options, tmp_path):
        model = make_model(**OPTIONS[options]).learn(WINDOW * 3)
        model.save(tmp_path / "model")
        model.policy.save(tmp_path / "policy")
        loaded = RecurrentPPO.load(tmp_path / "model", env=fixed_length_envs(5, 6, 7))
        obs = th.ones(2, 3)
        for policy in (loaded.policy, MlpLstmPolicy.load(tmp_path / "policy")):
            for one, other in zip(
                model.policy(obs, model.policy.zero_states(2), th.ones(2), deterministic=True)[:3],
                policy(obs, policy.zero_states(2), th.ones(2), deterministic=True)[:3],
                strict=True,
            ):
                assert th.equal(one, other)
        loaded.learn(WINDOW * 3)

    def test_training_moves_every_weight(self, options):
        model = make_model(**OPTIONS[options])
        before = {name: part.clone() for name, part in model.policy.named_parameters()}
        model.learn(WINDOW * 3)
        assert not [n for n, p in model.policy.named_parameters() if th.equal(p, before[n])]


class TestEncoder:
    def test_its_layers_lie_between_extractor_and_memory(self):
        policy = make_model(net_arch={"encoder": [6, 5], "pi": [7]}, activation_fn=nn.ReLU).policy
        assert [type(layer) for layer in policy.features_extractor.layers] == [
            nn.Linear, nn.ReLU, nn.Linear, nn.ReLU,
        ]  # fmt: skip
        assert policy.lstm_actor.input_size == policy.features_dim == 5
        assert policy.mlp_extractor.latent_dim_pi == 7
        assert policy.mlp_extractor.latent_dim_vf == HIDDEN  # no key, no layers, as in SB3

    def test_is_orthogonal_as_the_heads_are(self):
        weight = make_model(net_arch={"encoder": [6]}).policy.features_extractor.layers[0].weight
        th.testing.assert_close(weight.T @ weight, 2 * th.eye(3), rtol=0, atol=1e-5)

    def test_each_of_two_extractors_has_its_own(self):
        policy = make_model(net_arch={"encoder": [6]}, share_features_extractor=False).policy
        pi, vf = policy.pi_features_extractor.layers, policy.vf_features_extractor.layers
        assert not th.equal(pi[0].weight, vf[0].weight)

    @pytest.mark.parametrize(
        ("policy", "space"),
        [
            ("CnnLstmPolicy", IMAGE),
            ("MultiInputLstmPolicy", spaces.Dict({"image": IMAGE, "number": spaces.Discrete(4)})),
            ("MlpLstmPolicy", spaces.MultiDiscrete([3, 4])),
        ],
    )
    def test_follows_every_extractor(self, policy, space):
        model = make_model(
            fixed_length_envs(5, 6, observation_space=space), policy, net_arch={"encoder": [6]}
        )
        assert model.policy.lstm_actor.input_size == 6
        assert first_pass(model).error < 1e-5


class TestLayerNorm:
    def test_what_the_heads_read_has_mean_0_and_variance_1(self):
        model = make_model(layer_norm=True, net_arch=[])
        seen = []
        for net in (model.policy.action_net, model.policy.value_net):
            net.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        model.policy(th.randn(4, 3), model.policy.zero_states(4), th.ones(4))
        assert len(seen) == 2
        for memory in seen:
            th.testing.assert_close(memory.mean(dim=1), th.zeros(4), rtol=0, atol=1e-6)
            th.testing.assert_close(
                memory.var(dim=1, correction=0), th.ones(4), rtol=1e-2, atol=1e-2
            )

    def test_a_critic_without_memory_has_none_to_normalise(self):
        extractor = make_model(layer_norm=True, enable_critic_lstm=False).policy.mlp_extractor
        assert type(extractor.policy_net[0]) is nn.LayerNorm
        assert type(extractor.value_net[0]) is nn.Linear

    def test_a_detached_shared_memory_is_still_trained_by_the_actor_alone(self):
        policy = make_model(layer_norm=True, shared_lstm=True, enable_critic_lstm=False).policy
        values, log_prob, _ = policy.evaluate_sequences(
            th.randn(1, 5, 3), th.zeros(1, 5, 1), None, th.zeros(1, 5)
        )
        values.sum().backward(retain_graph=True)
        assert policy.lstm_actor.weight_hh_l0.grad is None
        log_prob.sum().backward()
        assert policy.lstm_actor.weight_hh_l0.grad.any()


class TestForgetBias:
    @pytest.mark.parametrize("ortho_init", [True, False])
    def test_the_two_biases_of_the_forget_gate_add_up_to_it(self, ortho_init):
        lstm = make_model(forget_bias=1.5, n_lstm_layers=2, ortho_init=ortho_init).policy.lstm_actor
        for layer in range(2):
            biases = getattr(lstm, f"bias_ih_l{layer}") + getattr(lstm, f"bias_hh_l{layer}")
            i, f, g, o = biases.detach().view(4, HIDDEN)
            assert (f == 1.5).all()
            assert not any((gate == 1.5).any() for gate in (i, g, o))
            assert ortho_init is not bool(i.any())

    def test_the_default_leaves_the_weights_as_they_were(self):
        plain, explicit = make_model(), make_model(forget_bias=0.0, layer_norm=False)
        weights = zip(plain.policy.parameters(), explicit.policy.parameters(), strict=True)
        assert all(th.equal(one, other) for one, other in weights)


class TestRefusals:
    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"forget_bias": 1.0, "rnn_class": nn.GRU}, "needs rnn_class=nn.LSTM: the other layer"),
            ({"forget_bias": 1.0, "rnn_class": nn.RNN}, "have no forget gate"),
            ({"forget_bias": 1.0, "lstm_kwargs": {"bias": False}}, "forget_bias=1.0 needs biases"),
            ({"forget_bias": float("nan")}, "forget_bias must be finite, got nan"),
            ({"forget_bias": "1"}, "forget_bias must be a number, got '1'"),
            ({"layer_norm": 1}, "layer_norm must be True or False, got 1"),
            ({"net_arch": {"encoders": [4]}}, "'encoder', 'pi' and 'vf', got 'encoders'"),
            ({"net_arch": {"encoder": 4}}, r"net_arch\['encoder'\] must be a list of sizes, got 4"),
            ({"net_arch": {"encoder": [0]}}, r"net_arch\['encoder'\] must be at least 1, got 0"),
            ({"net_arch": [{"encoder": [4]}]}, "must be a dict of lists to have an encoder"),
        ],
    )
    def test_what_cannot_work_is_refused_with_the_reason(self, kwargs, message):
        with pytest.raises(ValueError, match=message):
            make_model(**kwargs)


class TestSB3Contrib:
    @pytest.mark.parametrize("options", ["encoder", "layer norm"])
    def test_layers_they_do_not_have_are_refused(self, options):
        with pytest.raises(ValueError, match="neither layer_norm nor net_arch"):
            to_sb3_contrib(make_model(**OPTIONS[options]))

    def test_a_forget_bias_is_in_the_weights_and_needs_no_layer(self, tmp_path):
        model = make_model(forget_bias=1.0, layer_norm=False, rnn_class=nn.LSTM)
        theirs = to_sb3_contrib(model)
        assert (theirs.policy.lstm_actor.bias_ih_l0[HIDDEN : 2 * HIDDEN] == 1).all()
        theirs.save(tmp_path / "theirs")
        back = from_sb3_contrib(tmp_path / "theirs").policy.state_dict()
        ours = model.policy.state_dict()
        assert ours.keys() == back.keys()
        assert all(th.equal(ours[name], back[name]) for name in ours)

"""GRU and plain RNN as the memory of every policy: what holds for the LSTM holds for them."""

from __future__ import annotations

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import FirstPass, fixed_length_envs, ignore_resets, sharpen, zero_initial_state
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from torch import nn

from thrust_pomdp import MlpLstmPolicy, RecurrentPPO, StatefulActor, to_sb3_contrib
from thrust_pomdp.experiment.recipe_values import parse_dict, resolve_classes

WINDOW, HIDDEN = 16, 8
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
KINDS = {
    "GRU": {"rnn_class": nn.GRU},
    "RNN": {"rnn_class": nn.RNN},
    "RNN with relu": {"rnn_class": nn.RNN, "lstm_kwargs": {"nonlinearity": "relu"}},
}
ARRANGEMENTS = {
    "separate": {},
    "two layers": {"n_lstm_layers": 2},
    "no bias": {"lstm_kwargs": {"bias": False}},
    "shared, actor's gradient": {"shared_lstm": True, "enable_critic_lstm": False},
    "shared, both gradients": {"shared_lstm_critic_gradient": True},
    "critic without memory": {"enable_critic_lstm": False},
}


def make_model(kind="GRU", env=None, policy="MlpLstmPolicy", policy_kwargs=None, **kwargs):
    arguments = {"n_steps": WINDOW, "batch_size": WINDOW, "n_epochs": 2, "seed": 0, **kwargs}
    options = {"lstm_hidden_size": HIDDEN, **KINDS[kind], **(policy_kwargs or {})}
    if policy_kwargs and "lstm_kwargs" in policy_kwargs:
        options["lstm_kwargs"] = {**KINDS[kind].get("lstm_kwargs", {}), **options["lstm_kwargs"]}
    env = fixed_length_envs(5, 6, 7) if env is None else env
    return RecurrentPPO(policy, env, policy_kwargs=options, **arguments)


def first_pass(kind, plant=None, **kwargs) -> FirstPass:
    model = make_model(kind, learning_rate=0.0, **kwargs)
    sharpen(model)
    callback = FirstPass(plant)
    model.learn(2 * WINDOW * model.n_envs, callback=callback)
    assert callback.minibatches == 2 * 2 * model.n_envs
    return callback


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window_state", ["zero", "carry"])
class TestFirstPassEqualsCollection:
    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_for_each_arrangement(self, kind, window_state, arrangement):
        policy_kwargs = ARRANGEMENTS[arrangement]
        assert first_pass(kind, window_state=window_state, policy_kwargs=policy_kwargs).error < 1e-5

    def test_with_one_environment(self, kind, window_state):
        assert first_pass(kind, env=fixed_length_envs(5), window_state=window_state).error < 1e-5

    def test_ignoring_resets_in_training_is_noticed(self, kind, window_state):
        callback = first_pass(kind, ignore_resets, window_state=window_state)
        assert callback.log_prob_error > 1e-3
        assert callback.value_error > 1e-3


@pytest.mark.parametrize("kind", KINDS)
class TestWindows:
    def test_forgetting_the_carried_state_in_training_is_noticed(self, kind):
        callback = first_pass(kind, zero_initial_state, window_state="carry")
        assert callback.log_prob_error > 1e-3
        assert callback.value_error > 1e-3

    @pytest.mark.parametrize(
        ("policy", "space"),
        [
            ("CnnLstmPolicy", IMAGE),
            ("MultiInputLstmPolicy", spaces.Dict({"vector": VECTOR, "number": spaces.Discrete(4)})),
        ],
    )
    @pytest.mark.parametrize("action_space", [spaces.Discrete(3), spaces.Box(-1, 1, (2,))])
    def test_other_policies_and_actions(self, kind, policy, space, action_space):
        env = fixed_length_envs(5, 7, observation_space=space, action_space=action_space)
        assert first_pass(kind, env=env, policy=policy, window_state="carry").error < 1e-5

    def test_the_first_steps_state_is_kept_and_all_on_request(self, kind):
        model = make_model(
            kind, window_state="carry", rollout_buffer_kwargs={"record_states": True}
        ).learn(2 * WINDOW * 3)
        buffer = model.rollout_buffer
        assert buffer.hidden.shape == (WINDOW, 1, 3, HIDDEN)
        (initial,) = buffer.initial_state.pi
        assert np.array_equal(buffer.hidden[0], initial.numpy())
        assert initial.any()
        with pytest.raises(ValueError, match=r"^cell is no part .* are hidden, critic_hidden"):
            buffer.cell  # noqa: B018
        with pytest.raises(ValueError, match=r"^critic_cell is no part"):
            buffer.critic_cell  # noqa: B018


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arrangement", ["separate", "shared, both gradients"])
class TestEpisodesAreSeparate:
    """Two episodes in one window, the second from step 4 on."""

    STARTS = th.tensor([[1, 0, 0, 0, 1, 0, 0]])

    def evaluate(self, policy, obs):
        return policy.evaluate_sequences(obs, th.zeros(1, 7, 1), None, self.STARTS)

    def test_no_gradient_crosses_and_none_is_missing(self, kind, arrangement):
        policy = make_model(kind, policy_kwargs=ARRANGEMENTS[arrangement]).policy
        obs = th.randn(1, 7, 3, requires_grad=True)
        for part in self.evaluate(policy, obs)[:2]:
            gradient = th.autograd.grad(part[0, -1], obs, retain_graph=True)[0][0]
            assert (gradient[:4] == 0).all()
            assert (gradient[4:].abs().sum(dim=1) > 0).all()

    def test_another_first_episode_leaves_the_second_bit_equal(self, kind, arrangement):
        policy = make_model(kind, policy_kwargs=ARRANGEMENTS[arrangement]).policy
        obs = th.randn(1, 7, 3)
        other = obs.clone()
        other[:, :4] *= 100
        with th.no_grad():
            for one, two in zip(self.evaluate(policy, obs), self.evaluate(policy, other),
                                strict=True):  # fmt: skip
                assert not th.equal(one[:, :4], two[:, :4])
                assert th.equal(one[:, 4:], two[:, 4:])


@pytest.mark.parametrize("kind", KINDS)
class TestPredict:
    def test_the_state_is_one_array_that_goes_in_and_out(self, kind):
        policy = make_model(kind, policy_kwargs={"n_lstm_layers": 2}).policy
        obs = np.ones((4, 3), np.float32)
        _, state = policy.predict(obs)
        assert isinstance(state, np.ndarray)
        assert state.shape == (2, 4, HIDDEN)
        _, later = policy.predict(obs, state)
        assert not np.array_equal(state, later)
        _, restarted = policy.predict(obs, later, episode_start=np.array([1, 0, 0, 1]))
        assert np.array_equal(restarted[:, [0, 3]], state[:, [0, 3]])
        assert not np.array_equal(restarted[:, 1], state[:, 1])

    def test_a_stateful_actor_acts_as_the_policy_collects(self, kind):
        policy = make_model(kind).policy
        actor, states = StatefulActor(policy, deterministic=True), policy.zero_states(2)
        with th.no_grad():
            policy.action_net.weight.mul_(1000)
        generator = np.random.default_rng(0)
        seen = set()
        for step in range(20):
            obs = generator.normal(size=(2, 3)).astype(np.float32)
            starts = np.array([step == 0, step in (0, 7)])
            with th.no_grad():
                expected, _, _, states = policy.forward(
                    th.as_tensor(obs), states, th.as_tensor(starts), deterministic=True
                )
            actions = actor.act(obs, episode_start=starts)
            assert np.array_equal(actions, expected.numpy())
            seen.update(actions.tolist())
        assert len(seen) > 1  # else the actions say nothing

    def test_sb3_evaluates_it(self, kind, tmp_path):
        model, env = make_model(kind), fixed_length_envs(5, 6)
        callback = EvalCallback(env, eval_freq=8, n_eval_episodes=2, verbose=0)
        with pytest.warns(UserWarning, match="Monitor"):
            model.learn(WINDOW * 3, callback=callback)
        assert np.isfinite(callback.last_mean_reward)
        assert len(evaluate_policy(model, env, 4, warn=False, return_episode_rewards=True)[0]) == 4

    @pytest.mark.parametrize("shape", [(1, 2, HIDDEN), (4, HIDDEN), (1, 4, HIDDEN + 1)])
    def test_a_state_that_does_not_fit_is_refused(self, kind, shape):
        with pytest.raises(ValueError, match=r"state must be the array .* \(1, 4, 8\) for 4 obs"):
            make_model(kind).policy.predict(np.ones((4, 3), np.float32), np.zeros(shape))

    def test_an_lstms_state_is_refused(self, kind):
        pair = (np.zeros((1, 4, HIDDEN)),) * 2
        with pytest.raises(ValueError, match="state must be the array that predict"):
            make_model(kind).policy.predict(np.ones((4, 3), np.float32), pair)


@pytest.mark.parametrize("kind", KINDS)
class TestTraining:
    def test_the_same_seed_gives_the_same_weights_and_another_seed_others(self, kind):
        first, second, other = (
            make_model(kind, seed=seed).learn(WINDOW * 6).policy.parameters_to_vector()
            for seed in (0, 0, 1)
        )
        assert np.array_equal(first, second)
        assert not np.array_equal(first, other)

    def test_it_comes_back_from_a_file_and_goes_on(self, kind, tmp_path):
        model = make_model(kind).learn(WINDOW * 3)
        model.save(tmp_path / "model")
        loaded = RecurrentPPO.load(tmp_path / "model", env=fixed_length_envs(5, 6, 7))
        assert type(loaded.policy.lstm_actor) is KINDS[kind]["rnn_class"]
        obs, state = np.ones((2, 3), np.float32), np.full((1, 2, HIDDEN), 0.5)
        for one, other in zip(model.predict(obs, state, deterministic=True),
                              loaded.predict(obs, state, deterministic=True),
                              strict=True):  # fmt: skip
            assert np.array_equal(one, other)
        loaded.learn(WINDOW * 3)

    def test_a_policy_alone_comes_back_from_a_file(self, kind, tmp_path):
        policy = make_model(kind).policy
        policy.save(tmp_path / "policy")
        loaded = MlpLstmPolicy.load(tmp_path / "policy")
        obs = np.ones((2, 3), np.float32)
        assert np.array_equal(policy.predict(obs)[1], loaded.predict(obs)[1])
        assert loaded.lstm_kwargs == policy.lstm_kwargs

    def test_square_blocks_are_orthogonal_and_biases_zero(self, kind):
        policy = make_model(kind, policy_kwargs={"n_lstm_layers": 2}).policy
        for name, parameter in policy.lstm_actor.named_parameters():
            if name.startswith("bias"):
                assert not parameter.any()
                continue
            for block in parameter.detach().split(HIDDEN):
                gram = block.T @ block  # the 3 features of the first layer's blocks make them tall
                th.testing.assert_close(gram, th.eye(len(gram)), rtol=0, atol=1e-5)


class TestRefusals:
    @pytest.mark.parametrize("rnn_class", ["GRU", nn.Linear, nn.GRUCell, None])
    def test_other_classes(self, rnn_class):
        with pytest.raises(ValueError, match="rnn_class must be nn.LSTM, .* or a subclass"):
            make_model(policy_kwargs={"rnn_class": rnn_class})

    def test_a_nonlinearity_where_there_is_no_choice(self):
        with pytest.raises(ValueError, match="takes 'bias' and 'dropout', got 'nonlinearity'"):
            make_model("GRU", policy_kwargs={"lstm_kwargs": {"nonlinearity": "relu"}})

    def test_what_no_recurrent_layer_may_be_here(self):
        with pytest.raises(ValueError, match="cannot read its future observations"):
            make_model("RNN", policy_kwargs={"lstm_kwargs": {"bidirectional": True}})

    def test_dropout_warns_that_the_first_pass_differs(self):
        kwargs = {"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.5}}
        with pytest.warns(UserWarning, match="dropout=0.5 is active in training"):
            make_model("GRU", policy_kwargs=kwargs)

    def test_what_sb3_contrib_does_not_have(self):
        with pytest.raises(ValueError, match="must have rnn_class=nn.LSTM, got nn.GRU"):
            to_sb3_contrib(make_model("GRU"))


class TestRecipes:
    def test_name_the_class_as_torch_does(self):
        kwargs = resolve_classes(parse_dict("policy_kwargs", "dict(rnn_class=nn.GRU)"))
        assert type(make_model("RNN", policy_kwargs=kwargs).policy.lstm_actor) is nn.GRU

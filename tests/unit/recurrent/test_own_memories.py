"""Memories of a user's own in everything that a policy's memory goes through.

``OwnLSTM`` is torch's LSTM written out: whatever is trained with it must come out as with torch's.
``LastFrames`` has a state of other axes and a count, for which no code can be made by chance.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import (
    FirstPass,
    FixedLengthEnv,
    fixed_length_envs,
    ignore_resets,
    sharpen,
    zero_initial_state,
)
from maskable_envs import changing_masks
from memories import LastFrames, OwnGRU, OwnLSTM
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from thrust_pomdp import (
    MaskableRecurrentPPO,
    RecurrentPPO,
    StatefulActor,
    look_inside,
    to_sb3_contrib,
)
from thrust_pomdp.analysis.trace_figure import plot_burst
from thrust_pomdp.ppo.stored_states import burned_in
from thrust_pomdp.recurrent import LRU, GTrXL, Memory, MinGRU

WINDOW, HIDDEN = 16, 8
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
DICT = spaces.Dict({"vector": VECTOR, "state": spaces.Box(-1.0, 1.0, (2,), np.float32)})
PROGRAMS = {
    "separate": {},
    "carry": {"window_state": "carry"},
    "two layers": {"policy_kwargs": {"n_lstm_layers": 2}},
    "shared": {"policy_kwargs": {"shared_lstm": True, "enable_critic_lstm": False}},
    "shared, both gradients": {"policy_kwargs": {"shared_lstm_critic_gradient": True}},
    "critic without memory": {"policy_kwargs": {"enable_critic_lstm": False}},
    "encoder, layer norm": {
        "policy_kwargs": {"net_arch": {"encoder": [6], "pi": [5], "vf": [5]}, "layer_norm": True}
    },
    "subsequences": {"window_state": "carry", "sequence_length": 4, "batch_size": 16},
    "burn-in": {"window_state": "carry", "sequence_length": 4, "burn_in": 2, "batch_size": 16},
    "refreshed": {"sequence_length": 8, "refresh_states": True, "batch_size": 16},
    "asymmetric": {"policy": "AsymmetricLstmPolicy", "space": DICT},
    "asymmetric, beside": {
        "policy": "AsymmetricLstmPolicy",
        "space": DICT,
        "policy_kwargs": {"shared_lstm_critic_gradient": True, "grounding_coef": 0.5},
    },
    "images": {"policy": "CnnLstmPolicy", "space": IMAGE},
    "dict": {"policy": "MultiInputLstmPolicy", "space": DICT},
    "maskable": {"cls": MaskableRecurrentPPO},
    "Box actions, gSDE": {"actions": spaces.Box(-1, 1, (2,)), "use_sde": True},
}
#: Programs that need no second layer.
SINGLE = [name for name in PROGRAMS if name != "two layers"]


def make(rnn_class, program="separate", policy_kwargs=None, **changes):
    arguments = {
        "n_steps": WINDOW, "batch_size": WINDOW, "n_epochs": 2, "seed": 0,
        **PROGRAMS[program], **changes,
    }  # fmt: skip
    cls = arguments.pop("cls", RecurrentPPO)
    policy, space = arguments.pop("policy", "MlpLstmPolicy"), arguments.pop("space", VECTOR)
    actions = arguments.pop("actions", None)
    if cls is MaskableRecurrentPPO:
        env = changing_masks(5, 6, 7)
    else:
        env = fixed_length_envs(5, 6, 7, observation_space=space, action_space=actions)
    own = {"lstm_hidden_size": HIDDEN, "rnn_class": rnn_class, **arguments.pop("policy_kwargs", {})}
    return cls(policy, env, policy_kwargs={**own, **(policy_kwargs or {})}, **arguments)


def as_tuple(state):
    return state if isinstance(state, tuple) else (state,)


@pytest.mark.parametrize("program", PROGRAMS)
def test_torchs_lstm_written_out_trains_as_torchs(program):
    torchs = make(nn.LSTM, program)
    own = make(OwnLSTM, program)
    own.policy.load_state_dict(torchs.policy.state_dict())
    for model in (torchs, own):
        th.manual_seed(1)  # the two classes drew their first weights differently
        np.random.seed(1)
        model.learn(2 * WINDOW * 3)
    actions, expected = own.rollout_buffer.actions, torchs.rollout_buffer.actions
    assert np.allclose(actions, expected, rtol=0, atol=1e-5)
    weights = own.policy.state_dict()
    for name, weight in torchs.policy.state_dict().items():
        assert th.allclose(weight, weights[name], atol=2e-5), name
    for ours, theirs in zip(own._last_lstm_states, torchs._last_lstm_states, strict=True):
        for left, right in zip(ours, theirs, strict=True):
            assert th.allclose(left, right, atol=2e-5)


def first_pass(plant=None, rnn_class=LastFrames, **arguments) -> FirstPass:
    model = make(rnn_class, learning_rate=0.0, **arguments)
    sharpen(model)
    callback = FirstPass(plant)
    model.learn(2 * WINDOW * model.n_envs, callback=callback)
    assert callback.minibatches > 0
    return callback


class TestAStateOfOtherAxes:
    @pytest.mark.parametrize("program", [name for name in SINGLE if name != "burn-in"])
    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    @pytest.mark.parametrize("rnn_class", [LastFrames, GTrXL])
    def test_the_first_pass_is_what_was_collected(self, rnn_class, program, window_state):
        made = first_pass(rnn_class=rnn_class, program=program, window_state=window_state)
        assert made.error < 1e-5

    @pytest.mark.parametrize("rnn_class", [LastFrames, GTrXL])
    def test_and_so_it_is_after_burning_in(self, rnn_class):
        # Run anew with the same weights, burnt-in states are the ones that were met.
        model = make(rnn_class, "burn-in", learning_rate=0.0).learn(2 * WINDOW * 3)
        buffer, policy = model.rollout_buffer, model.policy
        for batch in buffer.to_minibatches(12, shuffle=False):
            ready = burned_in(policy, batch)
            values, log_prob, _ = policy.evaluate_sequences(
                ready.observations, ready.actions, ready.initial_state, ready.layout
            )
            assert th.allclose(values, ready.old_values, atol=1e-5)
            assert th.allclose(log_prob, ready.old_log_prob, atol=1e-5)

    @pytest.mark.parametrize("plant", [ignore_resets, zero_initial_state])
    def test_faults_of_training_are_noticed(self, plant):
        callback = first_pass(plant, window_state="carry")
        assert callback.log_prob_error > 1e-3
        assert callback.value_error > 1e-3

    def test_states_are_recorded_by_their_names(self):
        model = make(LastFrames, "carry", rollout_buffer_kwargs={"record_states": True})
        model.learn(2 * WINDOW * 3)
        buffer = model.rollout_buffer
        assert buffer.recorded("frames").shape == (WINDOW, 1, 3, 4, HIDDEN)
        count = buffer.recorded("critic_count")
        assert count.dtype == np.int64
        assert count.shape == (WINDOW, 1, 3)
        # The count that entered a step, by hand: steps since the episode's start, 4 at most.
        ages = buffer.initial_state.pi[1][0].numpy().copy()
        for step in range(WINDOW):
            assert np.array_equal(np.minimum(ages, 4), count[step, 0])
            ages = np.where(buffer.episode_starts[step], 1, ages + 1)
        with pytest.raises(ValueError, match="hidden is no part .* recorded are frames, count"):
            buffer.hidden  # noqa: B018

    def test_the_next_window_starts_from_what_was_carried(self):
        model = make(LastFrames, "carry").learn(WINDOW * 3)
        count = model.rollout_buffer.carried_state.pi[1][0]
        ended = model.rollout_buffer.episode_start_carry
        # Episodes of 5, 6 and 7 steps; after 16 steps ages of 1, 4 and 2.
        assert ended.tolist() == [False, False, False]
        assert count.tolist() == [1, 4, 2]


@pytest.mark.parametrize("rnn_class", [MinGRU, LRU])
class TestMemoriesThatRunInParallelOverTime:
    @pytest.mark.parametrize("program", [name for name in PROGRAMS if name != "burn-in"])
    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    def test_the_first_pass_is_what_was_collected(self, rnn_class, program, window_state):
        found = first_pass(rnn_class=rnn_class, program=program, window_state=window_state)
        assert found.error < 1e-5

    @pytest.mark.parametrize("plant", [ignore_resets, zero_initial_state])
    def test_faults_of_training_are_noticed(self, rnn_class, plant):
        found = first_pass(plant, rnn_class=rnn_class, window_state="carry")
        assert found.log_prob_error > 1e-3
        assert found.value_error > 1e-3


class TestActing:
    @pytest.mark.parametrize("rnn_class", [OwnGRU, OwnLSTM, LastFrames, MinGRU, LRU, GTrXL])
    def test_predict_hands_out_and_takes_the_state(self, rnn_class):
        model = make(rnn_class)
        obs = np.random.default_rng(0).normal(size=(9, 2, 3)).astype(np.float32)
        state, starts = None, np.ones(2, dtype=bool)
        states = model.policy.zero_states(2)
        for step in range(9):
            actions, state = model.predict(obs[step], state, starts, deterministic=True)
            with th.no_grad():
                expected, _, _, states = model.policy(
                    th.as_tensor(obs[step]), states, th.as_tensor(starts), deterministic=True
                )
            assert np.array_equal(actions, expected.numpy())
            parts = zip(as_tuple(state), states.pi, strict=True)
            assert all(np.array_equal(left, right) for left, right in parts)
            starts = np.array([step == 3, False])

    def test_a_state_that_does_not_fit_is_refused(self):
        model = make(LastFrames)
        _, state = model.predict(np.zeros((2, 3), np.float32))
        with pytest.raises(ValueError, match=r"frames \(1, 3, 4, 8\), count \(1, 3\) for 3 obs"):
            model.predict(np.zeros((3, 3), np.float32), state)

    @pytest.mark.parametrize("rnn_class", [OwnGRU, LastFrames, MinGRU, LRU, GTrXL])
    def test_a_stateful_actor_and_evaluation(self, rnn_class, tmp_path):
        model = make(rnn_class)
        env = DummyVecEnv([lambda: Monitor(FixedLengthEnv(5)), lambda: Monitor(FixedLengthEnv(6))])
        callback = EvalCallback(
            env, eval_freq=8, best_model_save_path=str(tmp_path), verbose=0, n_eval_episodes=3
        )
        model.learn(WINDOW * 3, callback=callback)
        assert np.isfinite(callback.best_mean_reward)
        mean, _ = evaluate_policy(model, env, n_eval_episodes=4)
        assert np.isfinite(mean)
        actor, state, starts = StatefulActor(model, deterministic=True), None, np.ones(1, bool)
        for obs in np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32):
            expected, state = model.predict(obs[None], state, starts, deterministic=True)
            assert actor.act(obs) == expected[0]
            starts = np.zeros(1, dtype=bool)

    def test_looking_inside(self, tmp_path):
        model = make(LastFrames)
        trace = look_inside(model, fixed_length_envs(5, 6, 7), n_steps=20)
        assert trace.states["frames"].shape == (20, 1, 3, 4, HIDDEN)
        assert trace.critic_states["count"].max() == 4
        assert trace.cell is None
        with pytest.raises(ValueError, match="hidden is no part .* states has frames, count"):
            trace.hidden  # noqa: B018
        blanked = np.ones((20, 3), bool)
        figure = plot_burst(replace(trace, blanked=blanked))
        assert any("frames units" in axes.get_ylabel() for axes in figure.axes)


class TestFiles:
    @pytest.mark.parametrize("rnn_class", [OwnGRU, LastFrames, MinGRU, LRU, GTrXL])
    def test_a_saved_model_acts_and_trains_on(self, rnn_class, tmp_path):
        model = make(rnn_class, "carry").learn(WINDOW * 3)
        model.save(tmp_path / "model.zip")
        loaded = RecurrentPPO.load(tmp_path / "model.zip", env=fixed_length_envs(5, 6, 7))
        obs = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
        expected, expected_state = model.predict(obs, deterministic=True)
        actions, state = loaded.predict(obs, deterministic=True)
        assert np.array_equal(actions, expected)
        for left, right in zip(as_tuple(state), as_tuple(expected_state), strict=True):
            assert np.array_equal(left, right)
        loaded.learn(WINDOW * 3)

    def test_options_are_kept(self, tmp_path):
        model = make(LastFrames, policy_kwargs={"lstm_kwargs": {"context": 2}})
        assert model.policy.lstm_actor.context == 2
        model.save(tmp_path / "model.zip")
        loaded = RecurrentPPO.load(tmp_path / "model.zip")
        assert loaded.policy.lstm_actor.context == 2
        model.policy.save(tmp_path / "policy.pt")
        assert type(model.policy).load(tmp_path / "policy.pt").lstm_actor.context == 2

    def test_sb3_contrib_has_no_such_memory(self):
        with pytest.raises(ValueError, match="must have rnn_class=nn.LSTM, got OwnGRU"):
            to_sb3_contrib(make(OwnGRU))


class TestRefusals:
    def test_an_option_that_the_memory_does_not_take(self):
        with pytest.raises(ValueError, match="lstm_kwargs takes 'context', got 'bias'"):
            make(LastFrames, policy_kwargs={"lstm_kwargs": {"bias": False}})
        with pytest.raises(ValueError, match="lstm_kwargs takes nothing for this memory, got"):
            make(OwnGRU, policy_kwargs={"lstm_kwargs": {"context": 3}})

    def test_what_the_memory_itself_refuses(self):
        with pytest.raises(ValueError, match="n_lstm_layers must be 1 for LastFrames, got 2"):
            make(LastFrames, policy_kwargs={"n_lstm_layers": 2})

    def test_a_forget_bias(self):
        with pytest.raises(ValueError, match="forget_bias=1.0 needs rnn_class=nn.LSTM"):
            make(OwnLSTM, policy_kwargs={"forget_bias": 1.0})

    def test_a_class_without_a_step(self):
        class NoStep(Memory):
            def state_parts(self):
                return ()

        with pytest.raises(ValueError, match="rnn_class must define step, which .*NoStep"):
            make(NoStep)

    def test_a_memory_of_other_sizes(self):
        class Wider(OwnGRU):
            def __init__(self, input_size, hidden_size, num_layers=1):
                super().__init__(input_size, 2 * hidden_size, num_layers)

        with pytest.raises(ValueError, match=r"\(3, 8, 1\), Wider made one with \(3, 16, 1"):
            make(Wider)


def test_dropout_of_a_memory_is_told_of():
    class Drops(OwnGRU):
        def step(self, features, states):
            return super().step(nn.functional.dropout(features, 0.1, self.training), states)

    with pytest.warns(UserWarning, match=r"differ from what was collected.*lstm_actor \(Drops\)"):
        make(Drops).learn(WINDOW * 3)


def test_fast_paths_say_why_the_compiled_loops_do_not_run_it():
    told = make(OwnGRU).fast_paths()
    assert any("OwnGRU is not LSTM or GRU or RNN itself" in str(reason) for reason in told.values())


def test_a_memory_put_in_place_of_an_lstm_brings_its_own_state():
    model = make(nn.LSTM)
    model.policy.lstm_actor = LastFrames(3, HIDDEN)
    model.policy.lstm_critic = OwnGRU(3, HIDDEN)
    model.policy.optimizer = th.optim.Adam(model.policy.parameters())
    model._last_lstm_states = model.policy.zero_states(3)
    model.learn(2 * WINDOW * 3)
    assert [part.shape for part in model._last_lstm_states.pi] == [(1, 3, 4, 8), (1, 3)]
    assert [part.shape for part in model._last_lstm_states.vf] == [(1, 3, 8)]

"""Training on subsequences: what they start from, and that they are what was collected."""

from __future__ import annotations

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import FirstPass, fixed_length_envs, ignore_resets, sharpen, zero_initial_state
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure

from thrust_pomdp import (
    MaskableMlpLstmPolicy,
    MlpLstmPolicy,
    RecurrentPPO,
    RecurrentRolloutBuffer,
)
from thrust_pomdp.ppo import losses, stored_states
from thrust_pomdp.ppo.losses import ppo_losses
from thrust_pomdp.ppo.stored_states import burned_in, states_after
from thrust_pomdp.ppo.subsequences import Subsequences
from thrust_pomdp.recurrent.compiled import load_kernels
from thrust_pomdp.recurrent.sequences import RNNStates

WINDOW = 16
ARRANGEMENTS = {
    "separate": {},
    "shared, actor's gradient": {"shared_lstm": True, "enable_critic_lstm": False},
    "shared, both gradients": {"shared_lstm_critic_gradient": True},
    "critic without memory": {"enable_critic_lstm": False},
}
#: Ways of cutting a window, as arguments of RecurrentPPO.
CUTS = {
    "4": {"sequence_length": 4},
    "4, burn-in": {"sequence_length": 4, "burn_in": 3},
    "4, refreshed": {"sequence_length": 4, "refresh_states": True},
    "8, both": {"sequence_length": 8, "burn_in": 8, "refresh_states": True},
    "1, burn-in": {"sequence_length": 1, "burn_in": 1},
}
DICT = spaces.Dict(
    {"vector": spaces.Box(-1.0, 1.0, (3,), np.float32), "number": spaces.Discrete(5)}
)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)


def make_model(env=None, policy="MlpLstmPolicy", **kwargs) -> RecurrentPPO:
    policy_kwargs = {"lstm_hidden_size": 16, **kwargs.pop("policy_kwargs", {})}
    arguments = {"n_steps": WINDOW, "batch_size": WINDOW, "n_epochs": 2, "seed": 0, **kwargs}
    env = fixed_length_envs(5, 6, 7) if env is None else env
    return RecurrentPPO(policy, env, policy_kwargs=policy_kwargs, **arguments)


def first_pass(plant=None, n_windows=3, **kwargs) -> FirstPass:
    model = make_model(learning_rate=0.0, **kwargs)
    sharpen(model)
    callback = FirstPass(plant)
    model.learn(n_windows * WINDOW * model.n_envs, callback=callback)
    return callback


def collected(**kwargs) -> RecurrentPPO:
    """A model with a full window in its buffer and, after an update, other weights."""
    model = make_model(**{"learning_rate": 0.01, "sequence_length": 4, **kwargs})
    return model.learn(WINDOW * model.n_envs)


def tensors_of(states: RNNStates) -> list[th.Tensor]:
    return [tensor for member in states for tensor in member]


def parameters_of(model: RecurrentPPO) -> th.Tensor:
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach()


class TestFirstPassEqualsCollection:
    """With learning rate 0, what training recomputes is what collection saw, to 1e-5."""

    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    @pytest.mark.parametrize("n_layers", [1, 2])
    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_for_each_arrangement_of_memories(self, arrangement, n_layers, window_state):
        callback = first_pass(
            policy_kwargs={**ARRANGEMENTS[arrangement], "n_lstm_layers": n_layers},
            window_state=window_state, sequence_length=4, burn_in=3, refresh_states=True,
        )  # fmt: skip
        assert callback.minibatches == 3 * 2 * 3  # windows, epochs, minibatches
        assert callback.error < 1e-5

    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    @pytest.mark.parametrize("n_envs", [1, 3])
    @pytest.mark.parametrize("cut", CUTS)
    def test_for_each_cut(self, cut, n_envs, window_state):
        env = fixed_length_envs(*(5, 6, 7)[:n_envs])
        callback = first_pass(env=env, window_state=window_state, **CUTS[cut])
        assert callback.minibatches == 3 * 2 * n_envs
        assert callback.error < 1e-5

    @pytest.mark.parametrize("cut", CUTS)
    @pytest.mark.parametrize("rnn_class", [th.nn.GRU, th.nn.RNN])
    def test_for_other_memories(self, rnn_class, cut):
        policy_kwargs = {"rnn_class": rnn_class, "n_lstm_layers": 2}
        callback = first_pass(policy_kwargs=policy_kwargs, window_state="carry", **CUTS[cut])
        assert callback.error < 1e-5

    @pytest.mark.parametrize("cut", CUTS)
    @pytest.mark.parametrize(
        "action_space",
        [spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([3, 2])],
        ids=["Box", "MultiDiscrete"],
    )
    def test_for_other_actions(self, action_space, cut):
        env = fixed_length_envs(5, 6, 7, action_space=action_space)
        assert first_pass(env=env, window_state="carry", **CUTS[cut]).error < 1e-5

    @pytest.mark.parametrize(
        ("space", "policy", "policy_kwargs"),
        [
            (DICT, "MultiInputLstmPolicy", {}),
            (DICT, "AsymmetricLstmPolicy", {"critic_only": ("number",)}),
            (IMAGE, "CnnLstmPolicy", {}),
        ],
        ids=["Dict", "privileged critic", "image"],
    )
    def test_for_other_observations(self, space, policy, policy_kwargs):
        callback = first_pass(
            env=fixed_length_envs(5, 7, observation_space=space), policy=policy,
            policy_kwargs=policy_kwargs, window_state="carry",
            sequence_length=4, burn_in=2, refresh_states=True,
        )  # fmt: skip
        assert callback.error < 1e-5

    def test_with_state_dependent_exploration(self):
        env = fixed_length_envs(5, 6, 7, action_space=spaces.Box(-1, 1, (2,), np.float32))
        callback = first_pass(env=env, use_sde=True, sde_sample_freq=4, **CUTS["8, both"])
        assert callback.error < 1e-5

    def test_after_a_callback_stopped_in_the_middle_of_a_window(self):
        class StopAt(BaseCallback):
            def _on_step(self):
                return self.n_calls < 10

        model = make_model(learning_rate=0.0, window_state="carry", **CUTS["4, burn-in"])
        sharpen(model)
        model.learn(1000, callback=StopAt())
        callback = FirstPass()
        model.learn(WINDOW * 3, callback=callback, reset_num_timesteps=False)
        assert callback.minibatches == 6
        assert callback.error < 1e-5


class TestFirstPassNoticesFaults:
    def is_noticed(self, plant=None, cut="4, burn-in", **kwargs):
        callback = first_pass(plant, window_state="carry", **CUTS[cut], **kwargs)
        assert callback.log_prob_error > 1e-3
        assert callback.value_error > 1e-3

    @pytest.mark.parametrize("cut", CUTS)
    def test_states_that_are_not_stored(self, cut):
        self.is_noticed(zero_initial_state, cut)

    @pytest.mark.parametrize("cut", ["4", "4, burn-in", "8, both"])
    def test_resets_that_are_ignored_in_training(self, cut):
        self.is_noticed(ignore_resets, cut)

    @pytest.mark.parametrize("cut", ["4", "4, burn-in", "4, refreshed"])
    def test_states_of_the_wrong_step(self, cut, monkeypatch):
        keep = Subsequences.keep

        def keep_too_early(self, step, states):
            """Store what entered a step as if it had entered the next."""
            if step == 0:
                keep(self, 0, states)
            keep(self, step + 1, states)

        monkeypatch.setattr(Subsequences, "keep", keep_too_early)
        self.is_noticed(cut=cut)

    @pytest.mark.parametrize("cut", ["4", "4, burn-in"])
    def test_states_of_the_wrong_environment(self, cut):
        def plant(initial_state, layout):
            turned = [tuple(t.roll(1, dims=1) for t in member) for member in initial_state]
            return RNNStates(*turned), layout

        self.is_noticed(plant, cut)

    @pytest.mark.parametrize("cut", ["4, burn-in", "4, refreshed"])
    def test_burn_in_and_refreshing_that_ignore_resets(self, cut, monkeypatch):
        def without_resets(policy, obs, states, starts):
            return states_after(policy, obs, states, th.zeros_like(starts))

        monkeypatch.setattr(stored_states, "states_after", without_resets)
        self.is_noticed(cut=cut)

    def test_burn_in_that_does_not_start_from_the_stored_states(self, monkeypatch):
        def from_zero(policy, obs, states, starts):
            return states_after(policy, obs, policy.zero_states(len(starts)), starts)

        monkeypatch.setattr(stored_states, "states_after", from_zero)
        self.is_noticed()

    def test_burn_in_that_is_left_out(self, monkeypatch):
        monkeypatch.setattr(
            stored_states, "burned_in", lambda policy, batch: batch._replace(burn_in=None)
        )
        self.is_noticed()


class TestWithTheLengthOfTheWindow:
    """One subsequence a window is the whole window: bit for bit."""

    def train(self, **kwargs) -> th.Tensor:
        model = make_model(learning_rate=0.01, **kwargs)
        return parameters_of(model.learn(3 * WINDOW * model.n_envs))

    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    @pytest.mark.parametrize("n_layers", [1, 2])
    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_the_weights_after_three_updates_are_the_same(
        self, arrangement, n_layers, window_state
    ):
        policy_kwargs = {**ARRANGEMENTS[arrangement], "n_lstm_layers": n_layers}
        arguments = {"policy_kwargs": policy_kwargs, "window_state": window_state}
        whole = self.train(**arguments)
        assert th.equal(whole, self.train(**arguments, sequence_length=WINDOW))

    @pytest.mark.parametrize(
        "arguments",
        [
            {"env": (5, 6, 7, 8), "envs_per_minibatch": 3},
            {"env": (5,)},
            {"batch_size": None, "target_kl": 1e-3},
            {"action_space": spaces.Box(-1, 1, (2,), np.float32), "use_sde": True},
            {"observation_space": DICT, "policy": "MultiInputLstmPolicy"},
        ],
        ids=["envs_per_minibatch", "one environment", "all at once", "gSDE", "Dict"],
    )
    def test_whatever_else_is_asked_for(self, arguments):
        arguments = dict(arguments)
        lengths = arguments.pop("env", (5, 6, 7))
        given = {
            n: arguments.pop(n) for n in ("action_space", "observation_space") if n in arguments
        }
        whole, cut = (
            self.train(env=fixed_length_envs(*lengths, **given), **arguments, **cut)
            for cut in ({}, {"sequence_length": WINDOW})
        )
        assert th.equal(whole, cut)

    def test_a_shorter_length_does_give_other_weights(self):
        assert not th.equal(self.train(), self.train(sequence_length=WINDOW // 2))


class TestCutWhereEpisodesStart:
    def test_loses_no_gradient(self):
        """Where every subsequence starts an episode, cutting takes nothing away."""
        model = collected(env=fixed_length_envs(4, 4, 4), batch_size=None)
        buffer, gradients = model.rollout_buffer, []
        (cut,) = buffer.to_minibatches(100, shuffle=False)
        assert cut.episode_starts[:, 0].all()
        for batch in (cut, buffer.to_sequence_batch()):
            model.policy.optimizer.zero_grad()
            losses = ppo_losses(
                model.policy, batch, clip_range=0.2, clip_range_vf=None, ent_coef=0.1, vf_coef=0.5,
                normalize_advantage=True,
            )  # fmt: skip
            losses.loss.backward()
            gradients.append(model.policy.lstm_actor.weight_hh_l0.grad.clone())
        assert gradients[0].abs().max() > 1e-4
        th.testing.assert_close(*gradients, rtol=0, atol=1e-6)

    def test_elsewhere_it_does(self):
        model = collected(env=fixed_length_envs(50, 50), batch_size=None)
        buffer, gradients = model.rollout_buffer, []
        for batch in (next(buffer.to_minibatches(100)), buffer.to_sequence_batch()):
            model.policy.optimizer.zero_grad()
            model.policy.evaluate_sequences(
                batch.observations, batch.actions, batch.initial_state, batch.layout
            )[0].sum().backward()
            gradients.append(model.policy.lstm_critic.weight_hh_l0.grad.clone())
        assert (gradients[0] - gradients[1]).abs().max() > 1e-2


def stepped(policy, obs, states, starts) -> RNNStates:
    """What acting step by step makes of the states."""
    with th.no_grad():
        for step in range(starts.shape[1]):
            *_, states = policy(obs[:, step], states, starts[:, step])
    return states


class TestPresentWeights:
    """After an update the stored states are stale: both ways bring them up to date."""

    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    def test_burn_in_runs_the_steps_before_from_the_stored_state(self, window_state):
        model = collected(window_state=window_state, burn_in=3)
        batch = next(model.rollout_buffer.to_minibatches(100, shuffle=False))
        before, first = batch.burn_in, batch.burn_in.is_first
        states = burned_in(model.policy, batch).initial_state
        expected = stepped(
            model.policy, before.observations, batch.initial_state, before.episode_starts
        )
        for new, old, right in zip(
            *map(tensors_of, (states, batch.initial_state, expected)), strict=True
        ):
            th.testing.assert_close(new[:, ~first], right[:, ~first], rtol=0, atol=1e-6)
            assert th.equal(new[:, first], old[:, first])

    @pytest.mark.parametrize("burn_in", [0, 3])
    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    def test_refreshing_runs_the_windows_from_their_own_states(self, window_state, burn_in):
        model = collected(window_state=window_state, burn_in=burn_in)
        buffer, policy = model.rollout_buffer, model.policy
        stale = tensors_of(next(buffer.to_minibatches(100, shuffle=False)).initial_state)
        list(stored_states.minibatches(policy, buffer, 100, refresh=True))
        fresh = tensors_of(next(buffer.to_minibatches(100, shuffle=False)).initial_state)
        windows = buffer.to_sequence_batch()
        for number, step in enumerate((0, 4 - burn_in, 8 - burn_in, 12 - burn_in)):
            expected = stepped(
                policy, windows.observations[:, :step],
                windows.initial_state or policy.zero_states(3), windows.episode_starts[:, :step],
            )  # fmt: skip
            for new, old, right in zip(fresh, stale, tensors_of(expected), strict=True):
                th.testing.assert_close(new[:, number::4], right, rtol=0, atol=1e-6)
                if number == 0:
                    assert th.equal(new[:, ::4], old[:, ::4])
                elif not windows.episode_starts[:, step - 1].any():
                    assert (new[:, number::4] - old[:, number::4]).abs().max() > 1e-3

    def test_refreshing_happens_before_each_epoch_after_the_first(self, monkeypatch):
        events = []
        refresh, to_minibatches = (
            getattr(RecurrentRolloutBuffer, name) for name in ("refresh_states", "to_minibatches")
        )
        monkeypatch.setattr(
            RecurrentRolloutBuffer, "refresh_states",
            lambda *args: (events.append("refresh"), refresh(*args))[1],
        )  # fmt: skip
        monkeypatch.setattr(
            RecurrentRolloutBuffer, "to_minibatches",
            lambda *args: (events.append("epoch"), to_minibatches(*args))[1],
        )  # fmt: skip
        make_model(n_epochs=3, **CUTS["4, refreshed"]).learn(2 * WINDOW * 3)
        assert events == ["epoch", "refresh", "epoch", "refresh", "epoch"] * 2
        events.clear()
        make_model(n_epochs=3, **CUTS["4, burn-in"]).learn(WINDOW * 3)
        assert events == ["epoch"] * 3

    def test_burn_in_uses_the_weights_that_the_minibatch_before_left(self):
        model = collected(burn_in=4)
        minibatches = stored_states.minibatches(model.policy, model.rollout_buffer, 6)
        model.rollout_buffer.seed(0)
        next(minibatches)
        with th.no_grad():
            for parameter in model.policy.parameters():
                parameter.mul_(2)
        second = next(minibatches)
        model.rollout_buffer.seed(0)
        _, drawn = model.rollout_buffer.to_minibatches(6)
        expected = burned_in(model.policy, drawn)  # with the doubled weights
        for actual, right in zip(
            tensors_of(second.initial_state), tensors_of(expected.initial_state), strict=True
        ):
            assert th.equal(actual, right)


class TestGradient:
    def test_does_not_flow_into_what_is_run_for_its_memory_alone(self):
        model = collected(burn_in=3)
        batch = next(model.rollout_buffer.to_minibatches(100))
        before = batch.burn_in.observations.requires_grad_()
        ready = burned_in(model.policy, batch)
        assert not any(tensor.requires_grad for tensor in tensors_of(ready.initial_state))
        values, _, _ = model.policy.evaluate_sequences(
            ready.observations, ready.actions, ready.initial_state, ready.layout
        )
        values.sum().backward()
        assert before.grad is None
        # Its numbers do arrive: memory runs through the burn-in.
        moved = burned_in(
            model.policy, batch._replace(burn_in=batch.burn_in._replace(observations=before + 1))
        )
        others, _, _ = model.policy.evaluate_sequences(
            moved.observations, moved.actions, moved.initial_state, moved.layout
        )
        assert (others - values).abs().max() > 1e-4

    @pytest.mark.parametrize("cut", CUTS)
    def test_of_the_loss_is_that_with_the_states_as_constants(self, cut):
        model = collected(**{**CUTS[cut], "batch_size": None})
        policy, settings = model.policy, {
            "clip_range": 0.2, "clip_range_vf": None, "ent_coef": 0.0, "vf_coef": 0.5,
            "normalize_advantage": True,
        }  # fmt: skip
        batches = stored_states.minibatches(
            policy, model.rollout_buffer, 100, refresh=CUTS[cut].get("refresh_states", False)
        )
        (batch,) = batches
        constants = RNNStates(
            *(tuple(t.detach().clone() for t in member) for member in batch.initial_state)
        )
        gradients = []
        for one in (batch, batch._replace(initial_state=constants)):
            policy.optimizer.zero_grad()
            ppo_losses(policy, one, **settings).loss.backward()
            gradients.append([parameter.grad.clone() for parameter in policy.parameters()])
        assert all(th.equal(*pair) for pair in zip(*gradients, strict=True))


class TestNothingLeaks:
    """What a subsequence computes depends on its own episode and window alone."""

    def test_across_an_episode_start_in_the_burn_in(self):
        model = collected(burn_in=4, env=fixed_length_envs(6))
        batch = next(model.rollout_buffer.to_minibatches(100, shuffle=False))
        # Episodes of 6 steps start at steps 6 and 12; the second subsequence is run from step 0.
        assert batch.burn_in.episode_starts[2].tolist() == [False, False, True, False]
        obs = batch.burn_in.observations.clone()
        obs[2, :2] += 100
        states, moved = (
            burned_in(model.policy, one).initial_state
            for one in (
                batch,
                batch._replace(burn_in=batch.burn_in._replace(observations=obs)),
            )
        )
        assert all(
            th.equal(a, b) for a, b in zip(tensors_of(states), tensors_of(moved), strict=True)
        )

    def test_from_one_window_into_another(self):
        model = collected(burn_in=4, window_state="carry")
        policy = model.policy
        batch = next(model.rollout_buffer.to_minibatches(100, shuffle=False))
        obs = batch.burn_in.observations.clone()
        obs[batch.burn_in.is_first] = np.nan
        moved = burned_in(policy, batch._replace(burn_in=batch.burn_in._replace(observations=obs)))
        expected = burned_in(policy, batch)
        for actual, right in zip(
            tensors_of(moved.initial_state), tensors_of(expected.initial_state), strict=True
        ):
            assert th.equal(actual, right)


class TestRandomness:
    @pytest.mark.parametrize("cut", CUTS)
    def test_the_same_seed_gives_bit_identical_parameters(self, cut):
        first, second = (collected(n_epochs=3, **CUTS[cut]) for _ in range(2))
        assert th.equal(parameters_of(first), parameters_of(second))
        other = collected(n_epochs=3, seed=1, **CUTS[cut])
        assert not th.equal(parameters_of(first), parameters_of(other))

    @pytest.mark.filterwarnings("ignore:lstm_kwargs dropout")
    def test_no_number_is_drawn_and_no_dropout_applied(self):
        model = collected(policy_kwargs={"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.5}})
        policy = model.policy
        assert policy.training
        windows = model.rollout_buffer.to_sequence_batch()
        before = th.get_rng_state()
        states = states_after(
            policy, windows.observations, policy.zero_states(3), windows.episode_starts
        )
        assert th.equal(th.get_rng_state(), before)
        assert policy.training
        policy.set_training_mode(False)
        expected = stepped(
            policy, windows.observations, policy.zero_states(3), windows.episode_starts
        )
        for actual, right in zip(tensors_of(states), tensors_of(expected), strict=True):
            th.testing.assert_close(actual, right, rtol=0, atol=1e-6)


class Scaled(MlpLstmPolicy):
    """Reads five times the observation, in every method that sb3_contrib has."""

    def forward(self, obs, lstm_states, episode_starts, deterministic=False):
        return super().forward(5 * obs, lstm_states, episode_starts, deterministic)

    def evaluate_actions(self, obs, actions, lstm_states, episode_starts):
        return super().evaluate_actions(5 * obs, actions, lstm_states, episode_starts)

    def get_distribution(self, obs, lstm_states, episode_starts):
        return super().get_distribution(5 * obs, lstm_states, episode_starts)

    def predict_values(self, obs, lstm_states, episode_starts):
        return super().predict_values(5 * obs, lstm_states, episode_starts)


class Louder(MlpLstmPolicy):
    """Doubles the hidden state that goes on."""

    @staticmethod
    def _process_sequence(features, lstm_states, episode_starts, lstm):
        output, (hidden, *rest) = MlpLstmPolicy._process_sequence(
            features, lstm_states, episode_starts, lstm
        )
        return 2 * output, (hidden, *rest)


class TestClassesOfAUsersOwn:
    @pytest.mark.parametrize("policy", [Scaled, Louder])
    @pytest.mark.parametrize("cut", CUTS)
    def test_policies(self, policy, cut):
        callback = first_pass(policy=policy, window_state="carry", **CUTS[cut])
        assert callback.minibatches == 18
        assert callback.error < 1e-5

    @pytest.mark.parametrize(
        ("cls", "n_steps"),
        [(MlpLstmPolicy, 0), (MaskableMlpLstmPolicy, 0), (Louder, 0), (Scaled, 5)],
    )
    def test_policies_are_stepped_only_where_they_act_in_their_own_way(self, cls, n_steps):
        space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        policy = cls(space, spaces.Discrete(2), lambda _: 0.0, lstm_hidden_size=8)
        steps = []
        policy.register_forward_hook(lambda *_: steps.append(1))
        starts = th.zeros(2, 5, dtype=th.bool)
        states_after(policy, th.ones(2, 5, 3), policy.zero_states(2), starts)
        assert len(steps) == n_steps

    def test_stepping_such_a_policy_draws_no_number(self):
        model = collected(policy=Scaled)
        windows, before = model.rollout_buffer.to_sequence_batch(), th.get_rng_state()
        states_after(
            model.policy, windows.observations, model.policy.zero_states(3), windows.episode_starts
        )
        assert th.equal(th.get_rng_state(), before)

    def test_buffers(self):
        class Mine(RecurrentRolloutBuffer):
            """Halves the advantages, and counts what it is given."""

            added = 0

            def add(self, obs, action, reward, episode_start, value, log_prob, **kwargs):
                self.added += 1
                super().add(obs, action, reward, episode_start, value, log_prob, **kwargs)

            def to_minibatches(self, envs_per_minibatch, shuffle=True):
                for batch in super().to_minibatches(envs_per_minibatch, shuffle):
                    yield batch._replace(advantages=batch.advantages / 2)

        arguments = {"rollout_buffer_class": Mine, "rollout_buffer_kwargs": {"record_states": True}}
        callback = first_pass(window_state="carry", **arguments, **CUTS["8, both"])
        assert callback.error < 1e-5
        buffer = callback.model.rollout_buffer
        assert buffer.added == 3 * WINDOW
        assert buffer.hidden.shape == (WINDOW, 1, 3, 16)


class TestSaveAndLoad:
    def test_a_loaded_model_goes_on_with_another_number_of_environments(self, tmp_path):
        model = make_model(window_state="carry", **CUTS["4, burn-in"], batch_size=8)
        model.learn(2 * WINDOW * 3).save(tmp_path / "model")
        loaded = RecurrentPPO.load(tmp_path / "model", env=fixed_length_envs(5, 6))
        assert (loaded.sequence_length, loaded.burn_in) == (4, 3)
        obs = np.ones((2, 3), np.float32)
        for original, restored in zip(
            model.predict(obs, deterministic=True)[1], loaded.predict(obs, deterministic=True)[1],
            strict=True,
        ):  # fmt: skip
            assert np.array_equal(original, restored)
        loaded.learning_rate, loaded.lr_schedule = 0.0, lambda _: 0.0
        callback = FirstPass()
        loaded.learn(2 * WINDOW, callback=callback, reset_num_timesteps=False)
        assert callback.minibatches == 2 * 2 * WINDOW // 8
        assert callback.error < 1e-5

    def test_the_cut_may_be_changed_in_loading(self, tmp_path):
        make_model(sequence_length=4).save(tmp_path / "model")
        env = fixed_length_envs(5, 6)
        loaded = RecurrentPPO.load(tmp_path / "model", env=env, sequence_length=8, burn_in=2)
        loaded.learn(2 * WINDOW)
        assert next(loaded.rollout_buffer.to_minibatches(100)).returns.shape == (4, 8)
        whole = RecurrentPPO.load(tmp_path / "model", env=env, sequence_length=None)
        whole.learn(2 * WINDOW)
        assert next(whole.rollout_buffer.to_minibatches(100)).returns.shape == (2, WINDOW)
        with pytest.raises(ValueError, match="sequence_length must divide n_steps=16, got 3"):
            RecurrentPPO.load(tmp_path / "model", env=env, sequence_length=3)

    def test_a_file_from_before_there_were_subsequences(self, tmp_path):
        model = make_model()
        for name in ("sequence_length", "burn_in", "refresh_states"):
            delattr(model, name)
        model.save(tmp_path / "model")
        loaded = RecurrentPPO.load(tmp_path / "model", env=fixed_length_envs(5, 6))
        loaded.learn(2 * WINDOW)
        assert loaded.sequence_length is None

    def test_weights_set_from_another_model(self):
        source = collected(seed=5)
        model = make_model(learning_rate=0.0, window_state="carry", **CUTS["8, both"])
        model.set_parameters(source.get_parameters())
        model.policy.optimizer.param_groups[0]["lr"] = 0.0
        callback = FirstPass()
        model.learn(2 * WINDOW * 3, callback=callback)
        assert callback.error < 1e-5
        assert th.equal(parameters_of(model), parameters_of(source))


class TestBatchSize:
    @pytest.mark.parametrize(
        ("batch_size", "subsequences"), [(4, 1), (8, 2), (20, 5), (48, 12), (None, 12), (1000, 12)]
    )
    def test_is_served_by_whole_subsequences(self, batch_size, subsequences):
        model, seen = make_model(batch_size=batch_size, sequence_length=4), []
        to_minibatches = model.rollout_buffer.to_minibatches
        model.rollout_buffer.to_minibatches = lambda n: (seen.append(n), to_minibatches(n))[1]
        model.learn(WINDOW * 3)
        assert seen == [subsequences] * 2

    @pytest.mark.parametrize("batch_size", [3, 11])
    def test_what_is_nearly_served_is_served_without_a_warning(self, batch_size):
        make_model(batch_size=batch_size, sequence_length=4)

    def test_what_is_not_nearly_served_says_what_is_used_instead(self):
        message = "batch_size=2 is served by whole sequences of 4 steps, so by minibatches of 4"
        with pytest.warns(UserWarning, match=message) as caught:
            make_model(batch_size=2, sequence_length=4)
        assert len(caught) == 1
        assert caught[0].filename == __file__

    def test_a_size_that_whole_windows_could_not_serve_is_served_without_a_warning(self):
        make_model(batch_size=8, sequence_length=8)


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"sequence_length": 5}, "sequence_length must divide n_steps=16, got 5: take 4 or 8"),
            ({"sequence_length": 4, "burn_in": 5}, "burn_in must be at most sequence_length=4"),
            ({"burn_in": 5}, "burn_in needs sequence_length"),
            ({"refresh_states": True}, "refresh_states needs sequence_length"),
            (
                {"sequence_length": 4, "envs_per_minibatch": 2},
                "pass the same number of steps as batch_size=32 instead",
            ),
        ],
    )
    def test_are_raised_before_anything_is_built(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            make_model(**arguments)


class TestCompiledLoss:
    def test_training_takes_the_same_path_as_with_whole_windows(self, monkeypatch):
        """The compiled categorical loss is used where it is for whole windows.

        Where a minibatch is not one compiled call, which has a loss of its own.
        """
        monkeypatch.setattr(RecurrentPPO, "against_compiled_minibatch", lambda self: "tested")
        served = []
        compiled = losses._compiled_losses

        def spy(*args):
            served.append(len(args))
            return compiled(*args)

        monkeypatch.setattr(losses, "_compiled_losses", spy)
        counts = []
        for cut in ({}, CUTS["8, both"]):
            model = make_model(**cut)
            model.set_logger(configure(None, []))
            model.learn(WINDOW * 3)
            counts.append(len(served) > 0)
            served.clear()
        assert counts == [load_kernels() is not None] * 2

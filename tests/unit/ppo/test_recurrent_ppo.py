"""RecurrentPPO: what is trained on is what was collected, and everything around it."""

from __future__ import annotations

import warnings

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
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv

from thrust_pomdp import (
    MlpLstmPolicy,
    RecurrentPPO,
    RecurrentRolloutBuffer,
    VecNormalizeVisible,
)

SMALL = {"lstm_hidden_size": 16}
WINDOW = 16
ARRANGEMENTS = {
    "separate": {},
    "shared, actor's gradient": {"shared_lstm": True, "enable_critic_lstm": False},
    "shared, both gradients": {"shared_lstm_critic_gradient": True},
    "critic without memory": {"enable_critic_lstm": False},
}


def make_model(env=None, **kwargs) -> RecurrentPPO:
    policy_kwargs = {**SMALL, **kwargs.pop("policy_kwargs", {})}
    arguments = {"n_steps": WINDOW, "batch_size": WINDOW, "n_epochs": 2, "seed": 0, **kwargs}
    env = fixed_length_envs(5, 6, 7) if env is None else env
    return RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=policy_kwargs, **arguments)


def first_pass(plant=None, n_windows=3, **kwargs) -> FirstPass:
    model = make_model(learning_rate=0.0, **kwargs)
    sharpen(model)
    callback = FirstPass(plant)
    model.learn(n_windows * WINDOW * model.n_envs, callback=callback)
    return callback


class TestFirstPassEqualsCollection:
    """With learning rate 0, what training recomputes is what collection saw, to 1e-5."""

    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    @pytest.mark.parametrize("n_layers", [1, 2])
    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_log_probabilities_and_values(self, arrangement, n_layers, window_state):
        policy_kwargs = {**ARRANGEMENTS[arrangement], "n_lstm_layers": n_layers}
        callback = first_pass(policy_kwargs=policy_kwargs, window_state=window_state)
        assert callback.minibatches == 3 * 2 * 3  # windows, epochs, minibatches
        assert callback.error < 1e-5

    @pytest.mark.parametrize("n_layers", [1, 2])
    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    def test_ignoring_resets_in_training_is_noticed(self, window_state, n_layers):
        callback = first_pass(
            ignore_resets, window_state=window_state, policy_kwargs={"n_lstm_layers": n_layers}
        )
        assert callback.log_prob_error > 1e-3
        assert callback.value_error > 1e-3

    @pytest.mark.parametrize("n_layers", [1, 2])
    def test_forgetting_the_carried_state_in_training_is_noticed(self, n_layers):
        callback = first_pass(
            zero_initial_state, window_state="carry", policy_kwargs={"n_lstm_layers": n_layers}
        )
        assert callback.log_prob_error > 1e-3
        assert callback.value_error > 1e-3

    def test_a_buffer_that_records_all_states_changes_nothing(self):
        callback = first_pass(window_state="carry", rollout_buffer_kwargs={"record_states": True})
        assert callback.error < 1e-5

    @pytest.mark.parametrize(
        "action_space",
        [spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(4)],
        ids=["Box", "Discrete"],
    )
    @pytest.mark.parametrize("n_envs", [1, 3])
    def test_for_each_action_space(self, action_space, n_envs):
        env = fixed_length_envs(*(5, 6, 7)[:n_envs], action_space=action_space)
        assert first_pass(env=env).error < 1e-5

    def test_with_state_dependent_exploration(self):
        env = fixed_length_envs(5, 6, 7, action_space=spaces.Box(-1, 1, (2,), np.float32))
        assert first_pass(env=env, use_sde=True, sde_sample_freq=4).error < 1e-5


class TestPoliciesOfAUsersOwn:
    """Policies written for sb3_contrib change the flat methods: training must follow them."""

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
        """Doubles what the LSTM gives."""

        @staticmethod
        def _process_sequence(features, lstm_states, episode_starts, lstm):
            output, states = MlpLstmPolicy._process_sequence(
                features, lstm_states, episode_starts, lstm
            )
            return 2 * output, states

    @pytest.mark.parametrize("policy", [Scaled, Louder])
    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    @pytest.mark.parametrize("action_space", [spaces.Discrete(3), spaces.Box(-1, 1, (2,))])
    def test_first_pass_equals_collection(self, policy, window_state, action_space):
        env = fixed_length_envs(5, 6, 7, action_space=action_space)
        model = RecurrentPPO(
            policy, env, n_steps=WINDOW, batch_size=WINDOW, n_epochs=2, learning_rate=0.0,
            policy_kwargs=SMALL, window_state=window_state,
        )  # fmt: skip
        sharpen(model)
        callback = FirstPass()
        model.learn(2 * WINDOW * 3, callback=callback)
        assert callback.minibatches == 12
        assert callback.error < 1e-5


class _Recorder(BaseCallback):
    """Notes, per step, the states that entered it, and the flags."""

    def __init__(self):
        super().__init__()
        self.entering, self.starts, self.windows = [], [], []

    def _on_rollout_start(self):
        self.windows.append(len(self.entering))

    def _on_step(self):
        self.entering.append(self.locals["entering_states"])
        self.starts.append(self.locals["episode_starts"].clone())
        return True


class TestWindowStates:
    def test_zero_starts_each_window_from_zero_memory(self):
        model, recorder = make_model(), _Recorder()
        model.learn(3 * WINDOW * 3, callback=recorder)
        assert recorder.windows == [0, WINDOW, 2 * WINDOW]
        for step in recorder.windows:
            assert all((t == 0).all() for pair in recorder.entering[step] for t in pair)
        # Within a window memory is cleared by episode starts alone.
        assert all((recorder.entering[step].pi[0] != 0).any() for step in (1, WINDOW + 1))

    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    def test_the_models_states_are_there_after_a_window_too(self, window_state):
        model = make_model(window_state=window_state).learn(WINDOW * 3)
        shapes = [t.shape for pair in model._last_lstm_states for t in pair]
        assert shapes == [(1, 3, 16)] * 4
        # The final ones, as over there; it is the next window that starts from zero.
        assert all(t.any() for pair in model._last_lstm_states for t in pair)

    def test_carry_goes_on_with_the_memory_of_the_window_before(self):
        model, recorder = make_model(window_state="carry"), _Recorder()
        model.learn(2 * WINDOW * 3, callback=recorder)
        entering = recorder.entering[WINDOW].pi[0]
        # Lengths 5, 6 and 7: after 16 steps nobody starts an episode.
        assert not recorder.starts[WINDOW].any()
        assert (entering.abs().sum(dim=(0, 2)) > 0).all()

    def test_carry_is_cleared_where_an_episode_ended_with_the_window(self):
        model = make_model(fixed_length_envs(8, 7), window_state="carry")
        model.learn(WINDOW * 2)  # 16 steps: the first env ends its second episode exactly there
        assert model.rollout_buffer.episode_start_carry.tolist() == [True, False]
        carried = model.rollout_buffer.carried_state
        ended = [float(t[:, 0].abs().sum()) for pair in carried for t in pair]
        running = [float(t[:, 1].abs().sum()) for pair in carried for t in pair]
        assert ended == [0.0] * 4
        assert all(value > 0 for value in running)

    def test_the_bootstrap_at_the_cut_uses_the_memory_carried_up_to_it(self):
        env = fixed_length_envs(50)  # no episode ends
        model = make_model(env, learning_rate=0.0, gae_lambda=1.0, gamma=0.5)
        model.learn(WINDOW)
        buffer = model.rollout_buffer
        obs = np.concatenate([buffer.observations, model._last_obs[None]])
        starts = th.zeros(1, WINDOW + 1)
        starts[0, 0] = 1
        with th.no_grad():
            values, _, _ = model.policy.evaluate_sequences(
                th.as_tensor(obs.swapaxes(0, 1)), th.zeros(1, WINDOW + 1, 1), None, starts
            )
            forgetful = model.policy.predict_values(
                th.as_tensor(model._last_obs), model.policy.zero_states(1).vf, th.zeros(1)
            )
        expected = buffer.rewards[-1, 0] + 0.5 * values[0, -1].item()
        assert buffer.returns[-1, 0] == pytest.approx(expected, abs=1e-6)
        assert abs(values[0, -1].item() - forgetful.item()) > 1e-4


class TestTruncation:
    def test_the_final_observation_is_valued_with_the_carried_memory(self):
        """Redo by hand what collection added to the reward of a truncated step."""
        env = fixed_length_envs(5, 50, ends="truncated")
        model = make_model(env, n_steps=8, batch_size=8, gamma=0.5)
        final_obs, raw_rewards = {}, []

        class Spy(BaseCallback):
            def _on_step(self):
                raw_rewards.append(self.locals["rewards"].copy())
                for idx, info in enumerate(self.locals["infos"]):
                    if "terminal_observation" in info:
                        final_obs[len(raw_rewards) - 1, idx] = info["terminal_observation"]
                return True

        model.learn(8 * 2, callback=Spy())
        buffer = model.rollout_buffer
        assert list(final_obs) == [(4, 0)]
        added = buffer.rewards - np.array(raw_rewards)
        policy = model.policy
        # The update has changed the weights: replay with the weights of the collection.
        fresh = make_model(fixed_length_envs(5, 50, ends="truncated"), n_steps=8, batch_size=8)
        policy = fresh.policy
        states = policy.zero_states(1)
        with th.no_grad():
            for step in range(5):
                obs = th.as_tensor(buffer.observations[step, :1])
                _, _, _, states = policy(obs, states, th.tensor([step == 0]))
            value = policy.predict_values(
                th.as_tensor(final_obs[4, 0])[None], states.vf, th.zeros(1)
            )
        assert added[4, 0] == pytest.approx(0.5 * value.item(), abs=1e-6)
        added[4, 0] = 0
        assert not added.any()

    def test_the_live_state_is_not_advanced(self):
        """The states that enter the step after a truncation are those that left the one before."""
        model, recorder = make_model(fixed_length_envs(5, ends="truncated")), _Recorder()
        leaving = []

        class Leaving(BaseCallback):
            def _on_step(self):
                leaving.append(self.locals["lstm_states"])
                return True

        model.learn(WINDOW, callback=[recorder, Leaving()])
        for step in range(WINDOW - 1):
            assert recorder.entering[step + 1].pi[0] is leaving[step].pi[0]

    def test_termination_adds_nothing(self):
        raw_rewards = []

        class Spy(BaseCallback):
            def _on_step(self):
                raw_rewards.append(self.locals["rewards"].copy())
                return True

        model = make_model(fixed_length_envs(5, 6, ends="terminated"))
        model.learn(WINDOW * 2, callback=Spy())
        assert np.array_equal(model.rollout_buffer.rewards, np.array(raw_rewards))


class TestActionSpaces:
    def test_squashed_actions_reach_the_environment_unscaled(self):
        seen = []

        class Spy(FixedLengthEnv):
            def step(self, action):
                seen.append(action)
                return super().step(action)

        space = spaces.Box(10.0, 30.0, (1,), np.float32)
        env = DummyVecEnv([lambda: Spy(5, action_space=space)])
        make_model(env, use_sde=True, policy_kwargs={"squash_output": True}).learn(WINDOW)
        # tanh-squashed samples lie in (-1, 1); clipping alone would give 10 at every step.
        assert len({float(action[0]) for action in seen}) > 1
        assert all(10.0 <= action[0] <= 30.0 for action in seen)

    def test_a_half_precision_box_is_stored_as_it_was_drawn(self):
        env = fixed_length_envs(5, 6, action_space=spaces.Box(-1, 1, (2,), np.float16))
        assert first_pass(env=env).error < 1e-5


class TestDeterminism:
    def parameters(self, disturb=False) -> th.Tensor:
        if disturb:
            np.random.seed(123)
            np.random.random(7)
            th.manual_seed(99)
        model = make_model(seed=7)
        if disturb:
            np.random.seed(5)

        class Disturb(BaseCallback):
            def _on_step(self):
                if disturb:
                    np.random.random(3)
                return True

        model.learn(3 * WINDOW * 3, callback=Disturb())
        return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach()

    def test_the_same_seed_gives_bit_identical_parameters(self):
        first, second = self.parameters(), self.parameters(disturb=True)
        assert th.equal(first, second)

    def test_another_seed_gives_others(self):
        models = [make_model(seed=seed).learn(WINDOW * 3) for seed in (0, 1)]
        first, second = (
            th.nn.utils.parameters_to_vector(model.policy.parameters()) for model in models
        )
        assert not th.equal(first, second)


class TestSmallestSizes:
    @pytest.mark.parametrize(("n_envs", "n_steps"), [(1, 1), (3, 1), (1, 2), (2, 2)])
    def test_a_minibatch_of_one_step_never_yields_nan(self, n_envs, n_steps):
        env = fixed_length_envs(*range(5, 5 + n_envs))
        model = make_model(env, n_steps=n_steps, batch_size=1 if n_steps == 1 else n_steps)
        model.learn(4 * n_envs * n_steps)
        assert all(th.isfinite(parameter).all() for parameter in model.policy.parameters())

    def test_one_environment_with_all_defaults_learns_without_a_warning(self):
        RecurrentPPO("MlpLstmPolicy", "thrust_pomdp:FlickeringCartPole-v0").learn(256)

    def test_a_last_smaller_minibatch_is_used(self):
        model = make_model(envs_per_minibatch=2)
        sizes = [len(batch.returns) for batch in _learned(model).rollout_buffer.to_minibatches(2)]
        assert sizes == [2, 1]


def _learned(model: RecurrentPPO) -> RecurrentPPO:
    return model.learn(model.n_steps * model.n_envs)


class TestDefaultType:
    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    def test_a_program_may_change_torchs_default_type(self, window_state):
        model = RecurrentPPO(
            "MlpLstmPolicy",
            fixed_length_envs(5, 7),
            n_steps=8,
            batch_size=16,
            window_state=window_state,
        )
        th.set_default_dtype(th.float64)
        try:
            model.learn(32)
            model.predict(np.zeros((2, 3), np.float32))
        finally:
            th.set_default_dtype(th.float32)


class TestCallbacks:
    def test_stopping_in_mid_window_leaves_model_and_environment_in_step(self):
        class StopAt(BaseCallback):
            def _on_step(self):
                return self.n_calls < 4

        model = make_model(window_state="carry")
        model.learn(1000, callback=StopAt())
        env = model.get_env()
        present = np.stack([env.buf_obs[None][idx] for idx in range(3)])
        assert np.array_equal(model._last_obs, present)
        assert [env.envs[idx].steps for idx in range(3)] == [4, 4, 4]
        # Going on does not reset the environment, and the memory goes on too.
        recorder = _Recorder()
        model.learn(WINDOW * 3, callback=recorder, reset_num_timesteps=False)
        assert not recorder.starts[0].any()
        assert (recorder.entering[0].pi[0] != 0).any()

    def test_locals_hold_the_names_that_sb3_contrib_users_read(self):
        names = set()

        class Spy(BaseCallback):
            def _on_step(self):
                names.update(self.locals)
                return False

        make_model().learn(WINDOW * 3, callback=Spy())
        expected = {
            "env", "callback", "rollout_buffer", "n_rollout_steps", "n_steps", "lstm_states",
            "obs_tensor", "episode_starts", "actions", "values", "log_probs", "clipped_actions",
            "new_obs", "rewards", "dones", "infos",
        }  # fmt: skip
        assert expected <= names

    def test_evaluation_and_checkpoints(self, tmp_path):
        def normalized():
            return VecNormalizeVisible(fixed_length_envs(5, 6, 7), norm_reward=False)

        evaluation = EvalCallback(
            normalized(), n_eval_episodes=3, eval_freq=8, verbose=0, warn=False
        )
        checkpoints = CheckpointCallback(16, str(tmp_path), save_vecnormalize=True)
        model = make_model(normalized())
        model.learn(2 * WINDOW * 3, callback=[evaluation, checkpoints])
        assert np.isfinite(evaluation.last_mean_reward)
        loaded = RecurrentPPO.load(tmp_path / "rl_model_96_steps", env=normalized())
        assert loaded.num_timesteps == 96
        statistics = VecNormalizeVisible.load(
            str(tmp_path / "rl_model_vecnormalize_96_steps.pkl"), fixed_length_envs(5)
        )
        assert isinstance(statistics, VecNormalizeVisible)
        # Two windows of 16 steps in 3 envs; a window's first frame is the last one's next.
        assert statistics.obs_rms.count == pytest.approx(3 * 33, abs=0.01)

    @pytest.mark.parametrize("n_envs", [1, 3, 7])
    def test_evaluate_policy_with_any_number_of_environments(self, n_envs):
        env = fixed_length_envs(*range(3, 3 + n_envs))
        _, lengths = evaluate_policy(
            make_model(), env, n_eval_episodes=7, return_episode_rewards=True, warn=False
        )
        assert len(lengths) == 7

    @pytest.mark.filterwarnings("ignore::tqdm.TqdmExperimentalWarning")  # SB3's choice of bar
    def test_progress_bar(self):
        make_model().learn(2 * WINDOW * 3, progress_bar=True)

    def test_tensorboard_and_csv_logs(self, tmp_path):
        model = make_model(tensorboard_log=str(tmp_path))
        _learned(model)
        assert list(tmp_path.glob("RecurrentPPO_1/events*"))
        model.set_logger(configure(str(tmp_path / "csv"), ["csv"]))
        model.learn(2 * WINDOW * 3)
        model.logger.close()
        header = (tmp_path / "csv" / "progress.csv").read_text().splitlines()[0].split(",")
        assert "train/approx_kl" in header


class TestEvaluationNeverCutsMemory:
    def test_predict_carries_on_beyond_a_window(self):
        model = make_model()
        env = fixed_length_envs(3 * WINDOW)
        obs, state, start = env.reset(), None, np.ones(1, dtype=bool)
        expected = model.policy.zero_states(1)
        for step in range(2 * WINDOW):
            _, state = model.predict(obs, state, start, deterministic=True)
            with th.no_grad():
                _, _, _, expected = model.policy(
                    th.as_tensor(obs), expected, th.tensor([step == 0])
                )
            assert np.array_equal(state[0], expected.pi[0].numpy())
            obs, _, start, _ = env.step([0])


class TestSaveAndLoad:
    def test_a_loaded_model_acts_alike_and_goes_on_with_another_number_of_envs(self, tmp_path):
        model = make_model(envs_per_minibatch=3, window_state="carry", clip_range_vf=0.3)
        model.learn(2 * WINDOW * 3)
        model.save(tmp_path / "model")
        loaded = RecurrentPPO.load(tmp_path / "model", env=fixed_length_envs(5, 6))
        obs = np.ones((2, 3), dtype=np.float32)
        for original, restored in zip(
            model.predict(obs, deterministic=True), loaded.predict(obs, deterministic=True),
            strict=True,
        ):  # fmt: skip
            assert np.array_equal(np.asarray(original), np.asarray(restored))
        assert loaded.window_state == "carry"
        assert loaded.clip_range_vf(1.0) == 0.3
        loaded.learn(2 * WINDOW, reset_num_timesteps=False)
        assert loaded.num_timesteps == 2 * WINDOW * 3 + 2 * WINDOW
        assert loaded.rollout_buffer.n_envs == 2

    def test_going_on_after_loading_marks_the_episodes_as_starting(self, tmp_path):
        """The memory is not saved, so an episode that goes on in mid-flight must start afresh."""
        model = make_model(window_state="carry")
        model.learn(WINDOW * 3)
        model.save(tmp_path / "model")
        loaded = RecurrentPPO.load(tmp_path / "model", env=model.get_env(), force_reset=False)
        recorder = _Recorder()
        loaded.learn(WINDOW * 3, callback=recorder, reset_num_timesteps=False)
        assert recorder.starts[0].all()
        assert all((t == 0).all() for pair in recorder.entering[0] for t in pair)


class TestRefusals:
    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"n_steps": 0}, "n_steps must be at least 1, got 0"),
            ({"n_epochs": 0}, "n_epochs must be at least 1, got 0"),
            ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
            ({"envs_per_minibatch": 0}, "envs_per_minibatch must be at least 1, got 0"),
            ({"envs_per_minibatch": -2}, "envs_per_minibatch must be at least 1, got -2"),
            ({"window_state": "keep"}, r"window_state must be one of \('zero', 'carry'\)"),
            ({"clip_range_vf": -0.1}, "clip_range_vf must be positive"),
            ({"rollout_buffer_class": RolloutBuffer}, "rollout_buffer_class must be a subclass"),
        ],
    )
    def test_bad_arguments_name_themselves(self, kwargs, message):
        with pytest.raises(ValueError, match=message):
            make_model(**kwargs)

    @pytest.mark.parametrize("name", ["MlpPolicy", "CnnPolicy", "MultiInputPolicy"])
    def test_a_memoryless_policy_name_is_answered_with_the_recurrent_one(self, name):
        with pytest.raises(ValueError, match=f'did you mean "{name[:-6]}LstmPolicy"'):
            RecurrentPPO(name, fixed_length_envs(5))

    def test_a_string_that_names_no_policy(self):
        with pytest.raises(ValueError, match="policy must be one of"):
            RecurrentPPO("Lstm", fixed_length_envs(5))

    def test_a_memoryless_policy_class(self):
        memoryless = PPO.policy_aliases["MlpPolicy"]
        with pytest.raises(ValueError, match="ActorCriticPolicy, which has no memory"):
            RecurrentPPO(memoryless, fixed_length_envs(5))

    def test_the_policy_class_of_sb3_contrib(self):
        from sb3_contrib.ppo_recurrent import MlpLstmPolicy as Foreign

        with pytest.raises(ValueError, match="sb3_contrib's RecurrentActorCriticPolicy"):
            RecurrentPPO(Foreign, fixed_length_envs(5))

    def test_a_file_of_sb3_contrib_never_runs_its_policy_class(self, tmp_path):
        from sb3_contrib import RecurrentPPO as Foreign

        Foreign("MlpLstmPolicy", fixed_length_envs(5), n_steps=8).save(tmp_path / "foreign")
        with pytest.raises(ValueError, match="sb3_contrib"):
            RecurrentPPO.load(tmp_path / "foreign")


class _Append:
    def __init__(self, steps: list[int]) -> None:
        self.steps = steps

    def __call__(self, *args) -> None:
        self.steps.append(1)


class TestBatchSize:
    @pytest.mark.parametrize(
        ("batch_size", "windows"), [(16, 1), (32, 2), (48, 3), (None, 3), (1000, 3)]
    )
    def test_is_served_by_whole_windows(self, batch_size, windows):
        model, seen = make_model(batch_size=batch_size), []
        to_minibatches = model.rollout_buffer.to_minibatches
        model.rollout_buffer.to_minibatches = lambda n: (seen.append(n), to_minibatches(n))[1]
        _learned(model)
        assert seen == [windows] * 2

    @pytest.mark.parametrize(
        ("arguments", "length", "sizes"),
        [
            ({"batch_size": 8}, 8, [1] * 6),
            ({"batch_size": 12}, 8, [2, 2, 1, 1]),
            ({"batch_size": 4}, 4, [1] * 12),
            ({"batch_size": 40}, 16, [2, 1]),
            ({"batch_size": 8, "sequence_length": 16}, 16, [1] * 3),
        ],
    )
    @pytest.mark.filterwarnings("ignore:batch_size=8 is served by whole sequences of 16")
    def test_below_a_window_cuts_windows(self, arguments, length, sizes):
        model, seen = make_model(n_epochs=1, **arguments), []
        losses = model._losses
        model._losses = lambda batch, *args: (
            seen.append(batch.returns.shape),
            losses(batch, *args),
        )[1]
        _learned(model)
        assert [tuple(shape) for shape in seen] == [(size, length) for size in sizes]

    def test_the_number_of_gradient_steps_is_sb3_contribs_for_any_setting(self):
        generator = np.random.default_rng(0)
        for _ in range(30):
            n_envs, n_steps, batch_size = generator.integers((1, 2, 2), (7, 65, 200)).tolist()
            n_rows = n_envs * n_steps
            theirs = -(-n_rows // batch_size)
            env = fixed_length_envs(*range(5, 5 + n_envs))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                model = RecurrentPPO(
                    "MlpLstmPolicy", env, n_steps=n_steps, batch_size=batch_size, n_epochs=1,
                    policy_kwargs=SMALL,
                )  # fmt: skip
            steps: list[int] = []
            model.policy.optimizer.register_step_post_hook(_Append(steps))
            model.learn(n_rows)
            assert len(steps) == theirs, (n_envs, n_steps, batch_size)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"n_steps": 31, "batch_size": 8}, "subsequences of 1 steps, the largest divisor"),
            ({"n_steps": 22, "batch_size": 5}, "subsequences of 2 steps"),
            ({"sequence_length": 16, "batch_size": 8}, "so by minibatches of 16"),
        ],
    )
    def test_what_is_not_nearly_served_says_what_is_used_instead(self, arguments, message):
        with pytest.warns(UserWarning, match=message) as caught:
            model = make_model(**arguments)
        assert len(caught) == 1
        _learned(model)  # warns no more

    def test_envs_per_minibatch_wins(self):
        model, seen = make_model(batch_size=16, envs_per_minibatch=2), []
        to_minibatches = model.rollout_buffer.to_minibatches
        model.rollout_buffer.to_minibatches = lambda n: (seen.append(n), to_minibatches(n))[1]
        _learned(model)
        assert seen == [2, 2]


class TestStopsEarly:
    def test_at_the_target_kl(self):
        model = make_model(target_kl=1e-9, n_epochs=10, learning_rate=1e-2, verbose=0)
        model.learn(WINDOW * 3)
        assert model._n_updates == 1

    def test_not_below_it(self):
        model = make_model(target_kl=1e9, n_epochs=10)
        model.learn(WINDOW * 3)
        assert model._n_updates == 10


class TestBufferClass:
    def test_a_users_class_receives_the_real_values_of_each_step(self):
        received = []

        class Mine(RecurrentRolloutBuffer):
            def add(self, obs, action, reward, episode_start, value, log_prob, **kwargs):
                received.append((obs, value.clone(), log_prob.clone(), kwargs["lstm_states"]))
                super().add(obs, action, reward, episode_start, value, log_prob, **kwargs)

        model = make_model(rollout_buffer_class=Mine)
        policy = MlpLstmPolicy(model.observation_space, model.action_space, lambda _: 0.0, **SMALL)
        policy.load_state_dict(model.policy.state_dict())
        _learned(model)
        assert len(received) == WINDOW
        obs, value, _, _ = received[0]
        with th.no_grad():
            expected = policy.predict_values(
                th.as_tensor(obs), policy.zero_states(3).vf, th.ones(3)
            )
        th.testing.assert_close(value, expected)

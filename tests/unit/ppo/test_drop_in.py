"""What a program written for ``sb3_contrib.RecurrentPPO`` relies on."""

from __future__ import annotations

import copy
import inspect
import io
import itertools
import random
import zipfile

import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib
import torch as th
from gymnasium import spaces
from helpers import VECTOR, FixedLengthEnv, fixed_length_envs
from stable_baselines3.common.callbacks import (
    CallbackList,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper, VecNormalize

import thrust_pomdp
from thrust_pomdp import RecurrentPPO, VecNormalizeVisible


def make_model(env=None, **kwargs) -> RecurrentPPO:
    policy_kwargs = {"lstm_hidden_size": 8, **kwargs.pop("policy_kwargs", {})}
    arguments = {"n_steps": 8, "batch_size": 8, "n_epochs": 2, "seed": 0, **kwargs}
    env = fixed_length_envs(5, 6, 7) if env is None else env
    return RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=policy_kwargs, **arguments)


class TestSignatures:
    #: Arguments that are ours alone, and why.
    NEW = {
        "rollout_buffer_class": "SB3's PPO has it",
        "rollout_buffer_kwargs": "SB3's PPO has it",
        "envs_per_minibatch": "the minibatch size in its natural unit, whole windows",
        "window_state": "what becomes of the memory between windows",
        "sequence_length": "windows cut into subsequences",
        "burn_in": "steps run before each subsequence",
        "refresh_states": "stored states computed anew",
    }

    def test_the_constructor_differs_by_keyword_only_arguments_alone(self):
        ours = inspect.signature(RecurrentPPO.__init__).parameters
        theirs = inspect.signature(sb3_contrib.RecurrentPPO.__init__).parameters
        assert list(ours)[: len(theirs)] == list(theirs)
        assert {name: p.default for name, p in ours.items() if name in theirs} == {
            name: p.default for name, p in theirs.items()
        }
        extra = {name: p.kind for name, p in ours.items() if name not in theirs}
        assert set(extra) == set(self.NEW)
        assert set(extra.values()) == {inspect.Parameter.KEYWORD_ONLY}

    @pytest.mark.parametrize("method", ["learn", "predict", "save", "set_env", "get_parameters"])
    def test_methods_take_the_same_arguments(self, method):
        ours = inspect.signature(getattr(RecurrentPPO, method)).parameters
        theirs = inspect.signature(getattr(sb3_contrib.RecurrentPPO, method)).parameters
        assert {n: p.default for n, p in ours.items()} == {n: p.default for n, p in theirs.items()}

    def test_the_policy_differs_by_further_arguments_alone(self):
        from sb3_contrib.ppo_recurrent import MlpLstmPolicy as Theirs

        ours = inspect.signature(thrust_pomdp.MlpLstmPolicy.__init__).parameters
        theirs = inspect.signature(Theirs.__init__).parameters
        assert list(ours)[: len(theirs)] == list(theirs)
        assert set(ours) - set(theirs) == {
            "shared_lstm_critic_gradient", "rnn_class", "forget_bias", "layer_norm",
        }  # fmt: skip
        assert {n: p.default for n, p in ours.items() if n in theirs} == {
            n: p.default for n, p in theirs.items()
        }

    @pytest.mark.parametrize(
        "method", ["forward", "evaluate_actions", "get_distribution", "predict_values", "predict"]
    )
    def test_policy_methods_take_the_same_arguments(self, method):
        from sb3_contrib.ppo_recurrent import MlpLstmPolicy as Theirs

        ours = inspect.signature(getattr(thrust_pomdp.MlpLstmPolicy, method)).parameters
        theirs = inspect.signature(getattr(Theirs, method)).parameters
        assert list(ours) == list(theirs)

    def test_classes_and_attributes_that_programs_reach_for(self):
        from sb3_contrib.common.recurrent.type_aliases import RNNStates as Theirs

        assert thrust_pomdp.RNNStates._fields == Theirs._fields
        model = make_model()
        assert model.policy.lstm_hidden_state_shape == (1, 1, 8)
        assert [t.shape for pair in model._last_lstm_states for t in pair] == [(1, 3, 8)] * 4
        ours, theirs = RecurrentPPO.policy_aliases, sb3_contrib.RecurrentPPO.policy_aliases
        assert set(ours) - set(theirs) == {"AsymmetricLstmPolicy"}
        assert set(theirs) <= set(ours)


#: Arguments that change no weight.
NO_DIFFERENCE = {"stats_window_size", "device", "share_features_extractor"}


class TestConstructorArguments:
    @pytest.mark.parametrize(
        "kwargs",
        [
            {"learning_rate": lambda progress: 1e-3 * progress},
            {"clip_range": lambda progress: 0.2 * progress},
            {"clip_range_vf": lambda progress: 1e-4},
            {"normalize_advantage": False},
            {"target_kl": 1e-7},
            {"stats_window_size": 3},
            {"device": "cpu"},
            {"batch_size": None},
            {"policy_kwargs": {"net_arch": []}},
            {"policy_kwargs": {"net_arch": {"pi": [4], "vf": [4, 4]}}},
            {"policy_kwargs": {"activation_fn": th.nn.ReLU}},
            {"policy_kwargs": {"ortho_init": False}},
            {"policy_kwargs": {"optimizer_class": th.optim.RMSprop}},
            {"policy_kwargs": {"lstm_kwargs": {"bias": False}}},
            {"policy_kwargs": {"share_features_extractor": False}},
        ],
    )
    def test_each_is_taken_and_makes_a_difference(self, kwargs):
        models = [make_model(**kwargs).learn(3 * 8 * 3), make_model().learn(3 * 8 * 3)]
        assert all(th.isfinite(p).all() for model in models for p in model.policy.parameters())
        if not NO_DIFFERENCE & {*kwargs, *kwargs.get("policy_kwargs", {})}:
            assert not np.array_equal(*(model.policy.parameters_to_vector() for model in models))

    @pytest.mark.parametrize("kwargs", [{}, {"sde_sample_freq": 3}])
    def test_state_dependent_exploration(self, kwargs):
        env = fixed_length_envs(5, 6, action_space=spaces.Box(-1, 1, (2,), np.float32))
        policy_kwargs = {"full_std": False, "use_expln": True, "log_std_init": -1.0}
        make_model(env, use_sde=True, policy_kwargs=policy_kwargs, **kwargs).learn(32)

    def test_schedules_reach_the_optimizer_and_the_log(self):
        model = make_model(learning_rate=lambda progress: 1e-3 * progress, clip_range=0.1)
        model.learn(2 * 8 * 3)
        assert model.policy.optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
        assert model.logger.name_to_value["train/clip_range"] == 0.1

    def test_without_setting_up(self):
        model = make_model(_init_setup_model=False)
        assert not hasattr(model, "policy")
        model._setup_model()
        model.learn(8 * 3)


POLICIES = {
    "separate": {},
    "shared": {"shared_lstm": True, "enable_critic_lstm": False},
    "shared, critic's gradient": {"shared_lstm_critic_gradient": True},
    "critic without memory": {"enable_critic_lstm": False},
    "two layers, no bias": {"n_lstm_layers": 2, "lstm_kwargs": {"bias": False}},
    "own extractors": {"share_features_extractor": False},
}


class TestSaveAndLoad:
    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    def test_every_policy_acts_alike_and_goes_on_alike(self, policy, window_state, tmp_path):
        model = make_model(policy_kwargs=POLICIES[policy], window_state=window_state)
        model.learn(2 * 8 * 3)
        model.save(tmp_path / "model")
        obs, state = np.ones((3, 3), np.float32), None
        results = []
        for _ in range(2):
            env = fixed_length_envs(5, 6, 7)
            env.seed(11)
            loaded = RecurrentPPO.load(tmp_path / "model", env=env)
            for _ in range(3):
                expected, expected_state = model.predict(obs, state, deterministic=True)
                actual, actual_state = loaded.predict(obs, state, deterministic=True)
                assert np.array_equal(expected, actual)
                assert np.array_equal(expected_state, actual_state)
            loaded.learn(2 * 8 * 3, reset_num_timesteps=False)
            results.append(loaded.policy.parameters_to_vector())
        assert np.array_equal(*results)  # going on is as deterministic as starting

    @pytest.mark.parametrize("n_envs", [1, 2, 5])
    def test_into_another_number_of_environments(self, n_envs, tmp_path):
        make_model(window_state="carry").learn(8 * 3).save(tmp_path / "model")
        env = fixed_length_envs(*range(4, 4 + n_envs))
        loaded = RecurrentPPO.load(tmp_path / "model", env=env)
        loaded.learn(2 * 8 * n_envs)
        assert loaded._last_lstm_states.pi[0].shape == (1, n_envs, 8)

    def test_the_minibatches_follow_the_number_of_environments(self, tmp_path):
        """What is derived is derived again: 8 steps make one minibatch of 12, 24 make two."""
        make_model(fixed_length_envs(5), batch_size=12).save(tmp_path / "model")
        loaded = RecurrentPPO.load(tmp_path / "model", env=fixed_length_envs(5, 6, 7))
        assert loaded._sequences_per_minibatch() == 2
        assert RecurrentPPO.load(tmp_path / "model", env=fixed_length_envs(5))._cut_length() is None

    def test_set_env(self):
        model = make_model()
        model.learn(8 * 3)
        model.set_env(fixed_length_envs(4, 4, 4))
        model.learn(8 * 3, reset_num_timesteps=False)
        assert model.num_timesteps == 2 * 8 * 3
        with pytest.raises(AssertionError, match="number of environments"):
            model.set_env(fixed_length_envs(4))

    def test_without_an_environment_it_can_act(self, tmp_path):
        make_model().save(tmp_path / "model")
        loaded = RecurrentPPO.load(tmp_path / "model")
        assert loaded.predict(np.ones(3, np.float32))[0].shape == ()

    def test_files_that_are_no_models(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "empty.zip", "w") as file:
            file.writestr("something", "else")
        with pytest.raises(ValueError, match=r"saved by RecurrentPPO\.save"):
            RecurrentPPO.load(tmp_path / "empty.zip")
        broken = tmp_path / "broken.zip"
        broken.write_bytes(b"not a zip file")
        with pytest.raises(ValueError, match="wasn't a zip-file"):
            RecurrentPPO.load(broken)
        with pytest.raises(ValueError, match="wasn't a zip-file"):
            RecurrentPPO.load(io.BytesIO(b"neither"))
        with pytest.raises(FileNotFoundError):
            RecurrentPPO.load(tmp_path / "missing")

    def test_a_file_of_memoryless_ppo_is_refused(self, tmp_path):
        from stable_baselines3 import PPO

        PPO("MlpPolicy", fixed_length_envs(5), n_steps=8, batch_size=8).save(tmp_path / "ppo")
        with pytest.raises(ValueError, match="has no memory"):
            RecurrentPPO.load(tmp_path / "ppo")


def observations_of(model, n_steps=256, **kwargs):
    """Return what a model met in its last rollout of some more steps."""
    model.learn(n_steps, reset_num_timesteps=False, **kwargs)
    return model.rollout_buffer.to_sequence_batch().observations[0].numpy()


class SeedSpy(VecEnvWrapper):
    """Takes down what the environment is seeded with."""

    def __init__(self, venv):
        super().__init__(venv)
        self.seeds = []

    def seed(self, seed=None):
        self.seeds.append(seed)
        return super().seed(seed)

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        return self.venv.step_wait()


def generators():
    """Return the states of the global generators."""
    return (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        th.get_rng_state().tolist(),
    )


class TestResumedRuns:
    """A loaded model goes on; it does not live its first day once more."""

    ID = "thrust_pomdp:MaskedCartPole-v0"

    @pytest.fixture(params=["RecurrentPPO", "MaskableRecurrentPPO"])
    def saved(self, request, tmp_path):
        cls = getattr(thrust_pomdp, request.param)
        more = {"use_masking": False} if cls is not RecurrentPPO else {}
        model = cls("MlpLstmPolicy", self.ID, n_steps=256, batch_size=256, n_epochs=1, seed=3)
        first = observations_of(model, **more)
        model.save(tmp_path / "model")
        return cls, more, first

    def test_an_environment_made_of_its_id_shows_something_new(self, saved, tmp_path):
        """With SB3's way 256 of 256 observations are those of the first rollout."""
        cls, more, first = saved
        met = [observations_of(cls.load(tmp_path / "model", env=self.ID), **more) for _ in range(2)]
        assert not (met[0] == first).all(axis=1).any()
        assert np.array_equal(*met)

    def test_another_length_of_training_goes_on_otherwise(self, tmp_path):
        met = []
        for n_steps in (64, 128):
            model = RecurrentPPO("MlpLstmPolicy", self.ID, n_steps=64, batch_size=64, seed=3)
            model.learn(n_steps).save(tmp_path / "model")
            met.append(observations_of(RecurrentPPO.load(tmp_path / "model", env=self.ID), 64))
        assert not (met[0] == met[1]).all(axis=1).any()

    @pytest.mark.parametrize("in_a_row", [False, True])
    def test_an_environment_handed_in_is_as_its_owner_seeded_it(self, saved, tmp_path, in_a_row):
        """A plain loop over an environment with the same seed meets the same first frames."""
        cls, more, _ = saved
        env = SeedSpy(thrust_pomdp.make_vec_env(self.ID, 1, seed=77))
        loaded = cls.load(tmp_path / "model", env=None if in_a_row else env)
        if in_a_row:
            loaded.set_env(env)
        met = observations_of(loaded, **more)
        plain = thrust_pomdp.make_vec_env(self.ID, 1, seed=77)
        assert np.array_equal(met[0], plain.reset()[0])
        action = loaded.rollout_buffer.actions[0].astype(np.int64).reshape(1)
        assert np.array_equal(met[1], plain.step(action)[0][0])
        assert env.seeds == []

    def test_so_is_a_single_environment(self, saved, tmp_path):
        cls, more, _ = saved
        env, other = gym.make(self.ID), gym.make(self.ID)
        env.reset(seed=5)
        other.reset(seed=5)
        met = observations_of(cls.load(tmp_path / "model", env=env), **more)
        assert np.array_equal(met[0], other.reset()[0])

    def test_sampling_and_shuffling_go_on_by_numbers_of_their_own(self, saved, tmp_path):
        cls, _, _ = saved
        after = []
        for n_draws in (0, 5):  # whatever was drawn before
            set_random_seed(n_draws)
            loaded = cls.load(tmp_path / "model")
            sampled = [loaded.action_space.sample() for _ in range(20)]
            shuffled = loaded.rollout_buffer._generator.permutation(50).tolist()
            after.append((*generators(), sampled, shuffled))
        assert after[0] == after[1]
        new = cls("MlpLstmPolicy", self.ID, n_steps=256, batch_size=256, n_epochs=1, seed=3)
        sampled = [new.action_space.sample() for _ in range(20)]
        shuffled = new.rollout_buffer._generator.permutation(50).tolist()
        for mine, others in zip(after[0], (*generators(), sampled, shuffled), strict=True):
            assert mine != others

    def test_without_a_seed_nothing_is_seeded(self, tmp_path):
        model = RecurrentPPO("MlpLstmPolicy", self.ID, n_steps=64, batch_size=64).learn(64)
        model.save(tmp_path / "model")
        env = SeedSpy(thrust_pomdp.make_vec_env(self.ID, 1))
        set_random_seed(8)
        before = generators()
        RecurrentPPO.load(tmp_path / "model", env=env)
        assert generators()[:2] == before[:2]
        assert env.seeds == []
        loaded = RecurrentPPO.load(tmp_path / "model", env=self.ID)
        assert loaded.env._seeds == [None]

    def test_a_seed_given_at_loading_is_gone_on_from(self, saved, tmp_path):
        cls, more, first = saved
        other, again = (
            observations_of(cls.load(tmp_path / "model", env=self.ID, seed=seed), **more)
            for seed in (4, 3)
        )
        for met in (other, again):
            assert not (met == first).all(axis=1).any()
        assert not np.array_equal(other, again)

    def test_neither_parameters_nor_environments_that_are_set_seed_anything(self, saved, tmp_path):
        cls, _, _ = saved
        loaded = cls.load(tmp_path / "model", env=self.ID)
        env, before = SeedSpy(thrust_pomdp.make_vec_env(self.ID, 1)), generators()
        shuffling = copy.deepcopy(loaded.rollout_buffer._generator.bit_generator.state)
        loaded.set_env(env)
        loaded.set_parameters(tmp_path / "model")
        assert generators() == before
        assert loaded.rollout_buffer._generator.bit_generator.state == shuffling
        assert env.seeds == []

    def test_a_program_can_still_seed_everything(self, saved, tmp_path):
        cls, more, first = saved
        loaded = cls.load(tmp_path / "model", env=self.ID)
        loaded.set_random_seed(3)
        assert np.array_equal(observations_of(loaded, **more)[0], first[0])

    def test_nothing_of_it_stays_in_the_model(self, saved, tmp_path):
        cls, _, _ = saved
        loaded = cls.load(tmp_path / "model", env=self.ID)
        assert not {"_is_loaded", "_made_env"} & vars(loaded).keys()

    def test_a_file_of_sb3_contribs_goes_on_too(self, tmp_path):
        theirs = sb3_contrib.RecurrentPPO(
            "MlpLstmPolicy", self.ID, n_steps=64, batch_size=64, n_epochs=1, seed=3
        )
        theirs.learn(64).save(tmp_path / "theirs")
        first = theirs.rollout_buffer.observations.reshape(64, -1)
        made = thrust_pomdp.from_sb3_contrib(tmp_path / "theirs", env=self.ID)
        assert not (observations_of(made, 64) == first).all(axis=1).any()
        env = SeedSpy(thrust_pomdp.make_vec_env(self.ID, 1, seed=77))
        given = thrust_pomdp.from_sb3_contrib(tmp_path / "theirs", env=env)
        plain = thrust_pomdp.make_vec_env(self.ID, 1, seed=77)
        assert np.array_equal(observations_of(given, 64)[0], plain.reset()[0])
        assert env.seeds == []

    def test_a_new_model_starts_as_sb3s_do(self):
        env = SeedSpy(thrust_pomdp.make_vec_env(self.ID, 1))
        RecurrentPPO("MlpLstmPolicy", env, seed=3)
        assert env.seeds == [3]


class TestEnvironmentIds:
    """An environment may be given by its id wherever one is taken."""

    ID = "thrust_pomdp:FlickeringCartPole-v0"

    def test_at_loading(self, tmp_path):
        RecurrentPPO("MlpLstmPolicy", self.ID, n_steps=8, batch_size=8).save(tmp_path / "model")
        loaded = RecurrentPPO.load(tmp_path / "model", env=self.ID)
        assert loaded.learn(8).num_timesteps == 8


class TestSeeds:
    def parameters(self, seed_globally: bool, **kwargs) -> np.ndarray:
        if seed_globally:
            set_random_seed(3)
        env = fixed_length_envs(5, 6, 7)
        env.seed(1)
        model = make_model(env, seed=None, **kwargs)
        return model.learn(2 * 24).policy.parameters_to_vector()

    def test_a_program_that_seeds_globally_is_repeatable_without_a_seed_of_the_model(self):
        assert np.array_equal(self.parameters(True), self.parameters(True))

    def test_a_model_seeded_later_shuffles_by_that_seed(self):
        orders = []
        for _ in range(2):
            model = make_model(seed=None)
            model.set_random_seed(7)
            orders.append(model.rollout_buffer._generator.permutation(100))
        assert np.array_equal(*orders)


class TestCopies:
    @pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)])
    def test_a_model_can_be_copied_after_learning(self, space):
        model = make_model(fixed_length_envs(5, 6, action_space=space)).learn(32)
        twin = copy.deepcopy(model.policy)
        assert np.array_equal(twin.parameters_to_vector(), model.policy.parameters_to_vector())


class TestCallbacks:
    def test_stopping_on_a_reward_threshold(self):
        stop = StopTrainingOnRewardThreshold(reward_threshold=-1e9)
        evaluation = EvalCallback(
            fixed_length_envs(5, 6, 7), callback_on_new_best=stop, eval_freq=4, n_eval_episodes=3,
            verbose=0, warn=False,
        )  # fmt: skip
        model = make_model()
        model.learn(1000, callback=evaluation)
        assert model.num_timesteps == 4 * 3

    def test_stopping_on_a_number_of_episodes(self):
        model = make_model(DummyVecEnv([lambda: Monitor(FixedLengthEnv(5))]))
        model.learn(1000, callback=StopTrainingOnMaxEpisodes(max_episodes=2))
        assert model.num_timesteps == 10

    @pytest.mark.parametrize(
        "nest",
        [
            lambda evaluation: evaluation,
            lambda evaluation: CallbackList([evaluation]),
            lambda evaluation: EveryNTimesteps(3, evaluation),
        ],
    )
    def test_evaluating_on_the_training_environment_is_refused(self, nest):
        env = fixed_length_envs(5, 6, 7)
        with pytest.raises(ValueError, match="make another one for the EvalCallback"):
            make_model(env).learn(24, callback=nest(EvalCallback(env, warn=False)))

    def test_also_behind_another_wrapper(self):
        env = fixed_length_envs(5, 6, 7)
        evaluation = EvalCallback(VecNormalize(env), warn=False)
        with pytest.raises(ValueError, match="make another one for the EvalCallback"):
            make_model(VecNormalize(env)).learn(24, callback=evaluation)

    def test_an_evaluation_that_takes_other_frames_for_blank_is_refused(self):
        evaluation = EvalCallback(VecNormalizeVisible(fixed_length_envs(5)), warn=False)
        model = make_model(VecNormalizeVisible(fixed_length_envs(5, 6, 7), zero_is_blank=True))
        with pytest.raises(ValueError, match="with zero_is_blank=True, got False"):
            model.learn(24, callback=evaluation)

    def test_an_evaluation_with_another_normaliser_is_refused(self):
        evaluation = EvalCallback(VecNormalize(fixed_length_envs(5)), warn=False)
        model = make_model(VecNormalizeVisible(fixed_length_envs(5, 6, 7)))
        with pytest.raises(ValueError, match="by VecNormalizeVisible, got VecNormalize"):
            model.learn(24, callback=evaluation)

    def test_evaluating_on_the_gymnasium_environment_trained_on_is_refused(self):
        env = Monitor(FixedLengthEnv(5))
        with pytest.raises(ValueError, match="make another one for the EvalCallback"):
            make_model(env).learn(24, callback=EvalCallback(env, warn=False))


class FaultyEnv(gym.Env):
    """Returns ``value`` as observation or reward at its fifth step, or as its final observation."""

    observation_space = VECTOR
    action_space = spaces.Discrete(2)

    def __init__(self, what: str, value: float):
        self.what, self.value = what, value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        obs, reward = np.zeros(3, np.float32), 0.0
        truncated = self.what == "final observation" and self.steps == 5
        if self.steps == 5:
            if self.what == "reward":
                reward = self.value
            else:
                obs[1] = self.value
        return obs, reward, False, truncated, {}


class TestNonFinite:
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize(
        ("what", "message"),
        [
            ("observation", "non-finite observation of environment 1 at step 5 of the rollout"),
            ("reward", "non-finite reward of environment 1 at step 4 of the rollout"),
        ],
    )
    def test_is_named_with_environment_and_step_before_it_reaches_the_weights(
        self, what, message, value
    ):
        env = DummyVecEnv([lambda: FixedLengthEnv(50, VECTOR, spaces.Discrete(2)),
                           lambda: FaultyEnv(what, value)])  # fmt: skip
        model = make_model(env)
        before = model.policy.parameters_to_vector()
        with pytest.raises(ValueError, match=message):
            model.learn(64)
        assert np.array_equal(model.policy.parameters_to_vector(), before)

    def test_the_observation_after_the_last_step_counts_too(self):
        model = make_model(DummyVecEnv([lambda: FaultyEnv("observation", np.inf)]), n_steps=5,
                           batch_size=5)  # fmt: skip
        with pytest.raises(ValueError, match="non-finite observation of environment 0 at step 5"):
            model.learn(20)

    def test_a_final_observation_would_spoil_the_reward_it_is_added_to(self):
        env = DummyVecEnv([lambda: FaultyEnv("final observation", np.nan)])
        message = "non-finite final observation of environment 0 at step 4 of the rollout"
        with pytest.raises(ValueError, match=message):
            make_model(env).learn(20)

    @pytest.mark.parametrize("module", ["action_net", "value_net", "lstm_actor"])
    def test_weights_that_diverged_are_blamed_and_not_the_environment(self, module):
        model = make_model()
        with th.no_grad():
            for parameter in getattr(model.policy, module).parameters():
                parameter.fill_(th.nan)
        with pytest.raises(ValueError, match="weights have diverged"):
            model.learn(24)

    def test_predict_refuses_them_and_keeps_its_memory_clean(self):
        model = make_model()
        with pytest.raises(ValueError, match=r"non-finite observation given to predict\(\)"):
            model.predict(np.array([0.0, np.nan, 0.0], np.float32))
        spoilt = np.full((1, 1, 8), np.nan)
        with pytest.raises(ValueError, match="state must be finite"):
            model.predict(np.zeros(3, np.float32), (spoilt, spoilt))

    def test_keys_of_dicts_are_named(self):
        class FaultyDict(FaultyEnv):
            observation_space = spaces.Dict({"good": VECTOR, "bad": VECTOR})

            def reset(self, **kwargs):
                obs, info = super().reset(**kwargs)
                return {"good": obs * 0, "bad": obs}, info

            def step(self, action):
                obs, *rest = super().step(action)
                return ({"good": np.zeros(3, np.float32), "bad": obs}, *rest)

        model = RecurrentPPO("MultiInputLstmPolicy", FaultyDict("observation", np.nan), n_steps=8,
                             batch_size=8)  # fmt: skip
        with pytest.raises(ValueError, match="non-finite observation 'bad' of environment 0"):
            model.learn(20)

    def test_other_errors_of_the_policy_are_left_as_they_are(self):
        model = make_model()

        def broken(*args, **kwargs):
            raise RuntimeError("something else")

        model.policy.forward = broken
        with pytest.raises(RuntimeError, match="something else"):
            model.learn(24)


class TestRefusals:
    def test_spaces_sb3_does_not_know(self):
        with pytest.raises(ValueError, match=r"action_space .* Text"):
            make_model(FixedLengthEnv(5, action_space=spaces.Text(3)))
        with pytest.raises(ValueError, match=r"observation_space .* Text"):
            make_model(FixedLengthEnv(5, observation_space=spaces.Text(3)))

    @pytest.mark.parametrize(
        ("which", "space"),
        [
            ("observation_space", spaces.Discrete(3, start=2)),
            ("observation_space", spaces.MultiDiscrete([[2, 3], [4, 5]])),
            ("observation_space", spaces.Box(-1, 1, (), np.float32)),
            ("action_space", spaces.Discrete(3, start=1)),
            ("action_space", spaces.MultiBinary([2, 2])),
            ("action_space", spaces.Box(-np.inf, np.inf, (2,), np.float32)),
        ],
    )
    def test_forms_of_spaces_that_sb3_would_trip_over(self, which, space):
        with pytest.raises(ValueError, match=f"{which} must be"):
            make_model(FixedLengthEnv(5, **{which: space}))

    @pytest.mark.parametrize("env", [3, [FixedLengthEnv(5)], None])
    def test_what_is_no_environment(self, env):
        with pytest.raises(ValueError, match="env must be"):
            RecurrentPPO("MlpLstmPolicy", env)

    def test_a_cnn_policy_on_a_vector_is_answered_with_the_right_one(self):
        with pytest.raises(ValueError, match="policy must be MlpLstmPolicy for the observation"):
            RecurrentPPO("CnnLstmPolicy", fixed_length_envs(5))

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"n_steps": 8.0}, "n_steps must be a whole number, got 8.0"),
            ({"n_steps": "8"}, "n_steps must be a whole number, got '8'"),
            ({"n_steps": None}, "n_steps must be a whole number, got None"),
            ({"n_steps": True}, "n_steps must be at least 1, got True"),
            ({"batch_size": 8.5}, "batch_size must be a whole number, got 8.5"),
            ({"envs_per_minibatch": 1.5}, "envs_per_minibatch must be a whole number, got 1.5"),
            ({"n_epochs": 2.5}, "n_epochs must be a whole number, got 2.5"),
            ({"gamma": 1.5}, r"gamma must lie in \[0, 1\], got 1.5"),
            ({"gae_lambda": -1}, r"gae_lambda must lie in \[0, 1\], got -1"),
            ({"clip_range": -1.0}, "clip_range must be positive, got -1.0"),
            ({"clip_range": None}, "clip_range must be a number, got None"),
            ({"target_kl": -1}, "target_kl must be positive, got -1"),
            ({"max_grad_norm": 0}, "max_grad_norm must be positive, got 0"),
            ({"rollout_buffer_class": 3}, "rollout_buffer_class must be a subclass"),
            ({"policy_kwargs": {"lstm_hidden_size": 8.0}}, "lstm_hidden_size must be a whole"),
        ],
    )
    def test_arguments_of_the_wrong_kind_name_themselves(self, kwargs, message):
        with pytest.raises(ValueError, match=message):
            make_model(**kwargs)

    def test_a_buffer_class_of_the_wrong_family(self):
        with pytest.raises(ValueError, match="must be a subclass of RecurrentRolloutBuffer"):
            make_model(rollout_buffer_class=thrust_pomdp.RecurrentDictRolloutBuffer)
        env = FixedLengthEnv(5, observation_space=spaces.Dict({"a": VECTOR}))
        with pytest.raises(ValueError, match="must be a subclass of RecurrentDictRolloutBuffer"):
            RecurrentPPO("MultiInputLstmPolicy", env,
                         rollout_buffer_class=thrust_pomdp.RecurrentRolloutBuffer)  # fmt: skip

    def test_a_class_derived_from_sb3_contribs_policy_is_recognised(self):
        from sb3_contrib.ppo_recurrent import MlpLstmPolicy as Theirs

        class Mine(Theirs):
            pass

        with pytest.raises(ValueError, match="sb3_contrib's Mine"):
            RecurrentPPO(Mine, fixed_length_envs(5))

    def test_sizes_that_do_not_fit_in_the_policys_methods(self):
        policy = make_model().policy
        obs, states = th.zeros(3, 3), policy.zero_states(3)
        for call in (
            lambda: policy(obs, states, th.zeros(2)),
            lambda: policy(obs, policy.zero_states(2), th.zeros(3)),
            lambda: policy.predict_values(obs, states.vf, th.zeros(4)),
            lambda: policy.get_distribution(obs, policy.zero_states(2).pi, th.zeros(3)),
            lambda: policy.evaluate_actions(obs, th.zeros(3), states, th.zeros(2)),
        ):
            with pytest.raises(ValueError, match="must"):
                call()
        windows, actions = th.zeros(2, 5, 3), th.zeros(2, 5, 1)
        for call in (
            lambda: policy.evaluate_sequences(windows, actions, None, th.zeros(2, 4)),
            lambda: policy.evaluate_sequences(windows[:1], actions, None, th.zeros(2, 5)),
            lambda: policy.evaluate_sequences(windows, actions, states, th.zeros(2, 5)),
        ):
            with pytest.raises(ValueError, match="must be of shape"):
                call()

    def test_a_dict_observation_needs_the_policy_for_dicts(self):
        env = FixedLengthEnv(5, observation_space=spaces.Dict({"a": VECTOR}))
        for policy in ("MlpLstmPolicy", "CnnLstmPolicy"):
            with pytest.raises(ValueError, match="MultiInputLstmPolicy"):
                RecurrentPPO(policy, env)

    def test_the_policy_for_dicts_needs_a_dict(self):
        with pytest.raises(ValueError, match="MlpLstmPolicy"):
            RecurrentPPO("MultiInputLstmPolicy", fixed_length_envs(5))

    @pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 2, 3)])
    def test_observations_of_another_size(self, shape):
        with pytest.raises(ValueError, match=r"shape"):
            make_model().predict(np.zeros(shape, np.float32))

    def test_dict_keys_that_are_missing(self):
        env = FixedLengthEnv(5, observation_space=spaces.Dict({"a": VECTOR, "b": VECTOR}))
        model = RecurrentPPO("MultiInputLstmPolicy", env)
        with pytest.raises(ValueError, match=r"observation .* 'b'"):
            model.predict({"a": np.zeros(3, np.float32)})
        with pytest.raises(ValueError, match="observation must be a dict .* got ndarray"):
            model.predict(np.zeros(3, np.float32))


def test_all_combinations_of_window_state_and_minibatches_run():
    for window_state, envs_per_minibatch in itertools.product(("zero", "carry"), (None, 1, 2, 9)):
        make_model(window_state=window_state, envs_per_minibatch=envs_per_minibatch).learn(24)

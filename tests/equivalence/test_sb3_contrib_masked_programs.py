"""Programs written for ``sb3_contrib.MaskablePPO``: each runs on theirs and on ours alike."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np
import pytest
import sb3_contrib
import torch as th
from helpers import fixed_length_envs
from maskable_envs import ACTIONS, ChangingMaskEnv, as_choices, changing_masks
from sb3_contrib.common.maskable import callbacks, evaluation, utils
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EveryNTimesteps
from stable_baselines3.common.logger import KVWriter, Logger

import thrust_pomdp
from thrust_pomdp.ppo import maskable

WINDOW = 16


class Library(NamedTuple):
    algorithm: Any
    policy: str
    evaluate_policy: Any
    eval_callback: Any
    get_action_masks: Any
    is_masking_supported: Any

    def make(self, env: Any, **kwargs: Any) -> Any:
        settings = {"n_steps": WINDOW, "batch_size": WINDOW, "n_epochs": 1, "seed": 0, **kwargs}
        return self.algorithm(self.policy, env, **settings)


THEIRS = Library(
    sb3_contrib.MaskablePPO,
    "MlpPolicy",
    evaluation.evaluate_policy,
    callbacks.MaskableEvalCallback,
    utils.get_action_masks,
    utils.is_masking_supported,
)
OURS = Library(
    thrust_pomdp.MaskableRecurrentPPO,
    "MlpLstmPolicy",
    maskable.evaluate_policy,
    maskable.MaskableEvalCallback,
    maskable.get_action_masks,
    maskable.is_masking_supported,
)
both = pytest.mark.parametrize("library", [THEIRS, OURS], ids=["sb3_contrib", "thrust_pomdp"])


class Keys(KVWriter):
    """Remembers the names of everything that was logged."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def write(self, key_values, key_excluded, step=0) -> None:
        self.seen |= set(key_values)

    def close(self) -> None:
        pass


def with_logger(model):
    keys = Keys()
    model.set_logger(Logger(None, [keys]))
    return keys.seen


TRAINING_KEYS = {
    "rollout/ep_len_mean", "rollout/ep_rew_mean", "time/fps", "time/iterations",
    "time/time_elapsed", "time/total_timesteps", "train/approx_kl", "train/clip_fraction",
    "train/clip_range", "train/entropy_loss", "train/explained_variance", "train/learning_rate",
    "train/loss", "train/n_updates", "train/policy_gradient_loss", "train/value_loss",
}  # fmt: skip


class AllowedFraction(BaseCallback):
    """The commonest one: how much is allowed, and whether what was done was."""

    def _on_step(self) -> bool:
        masks, actions = self.locals["action_masks"], self.locals["actions"]
        self.logger.record("masks/allowed", masks.mean())
        assert masks[np.arange(len(masks)), actions.reshape(-1)].all()
        return True


class MaskStatistics(BaseCallback):
    """Another: statistics of each choice, over the whole rollout, with what is needed of it."""

    def _on_rollout_start(self) -> None:
        self.rows: list[np.ndarray] = []
        self.steps: list[int] = []

    def _on_step(self) -> bool:
        if not self.locals["use_masking"]:
            return True
        masks = self.locals["action_masks"]
        width = masks.shape[1]
        assert np.array_equal(self.locals["obs_tensor"][:, :width].cpu().numpy() == 1, masks)
        chosen = as_choices(self.training_env.action_space, self.locals["actions"])
        assert np.take_along_axis(masks, chosen, axis=1).all()
        self.rows.append(masks)
        self.steps.append(self.locals["n_steps"])
        return True

    def _on_rollout_end(self) -> None:
        kept = self.locals["rollout_buffer"].action_masks
        assert np.array_equal(np.stack(self.rows), kept.reshape(np.shape(self.rows)))
        assert self.steps == list(range(self.locals["n_rollout_steps"]))
        self.logger.record("masks/mean", np.mean(self.rows))


@both
class TestCallbacksThatReadMasks:
    def test_the_fraction_that_is_allowed(self, library):
        model = library.make(changing_masks(5, 6, 7))
        keys = with_logger(model)
        model.learn(2 * WINDOW * 3, callback=AllowedFraction())
        assert keys == {*TRAINING_KEYS, "masks/allowed"} - {"rollout/ep_len_mean",
                                                           "rollout/ep_rew_mean"}  # fmt: skip

    @pytest.mark.parametrize("action", ACTIONS)
    def test_statistics_of_a_rollout_among_other_callbacks(self, library, action):
        model = library.make(changing_masks(5, 6, 7, action=action))
        keys = with_logger(model)
        statistics = MaskStatistics()
        model.learn(2 * WINDOW * 3, CallbackList([EveryNTimesteps(6, BaseStep()), statistics]))
        assert "masks/mean" in keys
        assert len(statistics.rows) == WINDOW

    def test_without_masks_there_are_none(self, library):
        seen = []

        def look(local_names, _):
            seen.append((local_names["action_masks"], local_names["use_masking"]))
            return True

        model = library.make(changing_masks(5, 6, cls=AllowsAnything))
        model.learn(WINDOW * 2)
        model.learn(WINDOW * 2, callback=look, use_masking=False)
        assert seen == [(None, False)] * WINDOW


class BaseStep(BaseCallback):
    def _on_step(self) -> bool:
        return self.locals["action_masks"] is not None


class AllowsAnything(ChangingMaskEnv):
    """Tells masks, but takes what they forbid."""

    def step(self, action):
        self.mask = np.ones_like(self.mask)
        return super().step(action)


@both
class TestLoopsOfOnesOwn:
    def test_many_environments_with_a_state(self, library):
        env = changing_masks(5, 6, 7)  # raises at a forbidden action
        model = library.make(env)
        assert library.is_masking_supported(env)
        obs, state, start = env.reset(), None, np.ones(3, bool)
        for _ in range(20):
            actions, state = model.predict(
                obs, state, start, deterministic=True, action_masks=library.get_action_masks(env)
            )
            obs, _, start, _ = env.step(actions)

    def test_one_environment_and_its_own_method(self, library):
        env = ChangingMaskEnv(9, ACTIONS["MultiDiscrete"])
        model = library.make(env)
        obs, _ = env.reset(seed=1)
        state, start, done = None, True, False
        while not done:
            action, state = model.predict(
                obs, state=state, episode_start=np.array([start]), action_masks=env.action_masks()
            )
            obs, _, terminated, truncated, _ = env.step(action)
            start, done = False, terminated or truncated
        assert env.steps == 9


class TestALoopThatKnowsOfNoState:
    """It runs here too, on an agent that forgets, and is told so."""

    def run(self, library):
        env = changing_masks(5)
        model, obs = library.make(env), env.reset()
        for _ in range(12):
            masks = library.get_action_masks(env)
            action, _states = model.predict(obs, action_masks=masks)
            obs, _, _, _ = env.step(action)

    def test_on_theirs(self):
        self.run(THEIRS)

    def test_on_ours(self):
        with pytest.warns(UserWarning, match="forgot everything each time"):
            self.run(OURS)


class TestLearn:
    def test_takes_the_same_arguments_in_the_same_order(self):
        for ours, theirs in (
            (OURS.algorithm.learn, THEIRS.algorithm.learn),
            (OURS.evaluate_policy, THEIRS.evaluate_policy),
            (OURS.algorithm.predict, THEIRS.algorithm.predict),
        ):
            assert self.order(ours) == self.order(theirs)

    def order(self, function):
        parameters = inspect.signature(function).parameters.values()
        return [(each.name, each.default) for each in parameters if each.name != "tb_log_name"]

    @both
    def test_six_positional_arguments_train_without_masks(self, library):
        model = library.make(fixed_length_envs(5, 6))  # an environment that tells no masks
        keys = with_logger(model)
        model.learn(2 * WINDOW * 2, None, 1, "run", True, False)
        assert keys == TRAINING_KEYS - {"rollout/ep_len_mean", "rollout/ep_rew_mean"}

    @both
    def test_all_positional_arguments(self, library, tmp_path):
        model = library.make(ChangingMaskEnv(5, ACTIONS["Discrete"]), tensorboard_log=str(tmp_path))
        model.learn(2 * WINDOW, AllowedFraction(), 1, "mine", True, True, False)
        model.learn(WINDOW, AllowedFraction(), 1, "mine", False, True, False)
        assert [folder.name for folder in tmp_path.iterdir()] == ["mine_1"]
        assert model.num_timesteps == 3 * WINDOW

    @both
    def test_with_a_monitor_the_same_keys_are_logged(self, library):
        model = library.make(ChangingMaskEnv(5, ACTIONS["Discrete"]))
        keys = with_logger(model)
        model.learn(2 * WINDOW)
        assert keys == TRAINING_KEYS


@both
class TestEvaluating:
    def test_by_positional_arguments(self, library):
        env = changing_masks(5, 6)
        seen = []

        def look(local_names, _):
            seen.append((local_names["action_masks"].shape, local_names["use_masking"]))

        rewards, lengths = library.evaluate_policy(
            library.make(env), env, 4, True, False, look, None, True, False, True
        )
        assert sorted(lengths) == [5, 5, 6, 6]
        assert len(rewards) == 4
        assert set(seen) == {((2, 4), True)}

    def test_on_one_environment_with_a_callback(self, library):
        env = ChangingMaskEnv(5, ACTIONS["MultiBinary"])
        shapes = []
        mean, deviation = library.evaluate_policy(
            library.make(env), env, n_eval_episodes=2, warn=False,
            callback=lambda names, _: shapes.append(names["action_masks"].shape),
        )  # fmt: skip
        assert np.isfinite([mean, deviation]).all()
        assert shapes == [(1, 6)] * 10

    def test_without_masks(self, library):
        env = changing_masks(5, cls=AllowsAnything)
        model = library.make(env)
        model.learn(WINDOW, use_masking=False)
        mean, _ = library.evaluate_policy(
            model, env, 2, True, False, None, None, False, False, False
        )
        assert np.isfinite(mean)

    def test_by_a_callback_while_training(self, library, tmp_path):
        callback = library.eval_callback(
            changing_masks(5, 6), None, None, 4, 8, str(tmp_path), str(tmp_path), True, False, 0,
            False, use_masking=True,
        )  # fmt: skip
        model = library.make(changing_masks(5, 6))
        keys = with_logger(model)
        model.learn(WINDOW * 2 * 2, callback)
        assert {"eval/mean_reward", "eval/mean_ep_length"} < keys
        with np.load(tmp_path / "evaluations.npz") as saved:
            assert set(saved) == {"timesteps", "results", "ep_lengths"}
            assert saved["timesteps"].tolist() == [16, 32, 48, 64]
            assert saved["results"].shape == (4, 4)
        assert (tmp_path / "best_model.zip").exists()
        assert library.algorithm.load(tmp_path / "best_model").num_timesteps > 0

    def test_by_a_callback_that_calls_the_function(self, library):
        env = changing_masks(5, 6)

        class Evaluate(BaseCallback):
            means: list[float] = []

            def _on_step(self) -> bool:
                return True

            def _on_rollout_end(self) -> None:
                mean, _ = library.evaluate_policy(
                    self.model, env, n_eval_episodes=2, deterministic=False, warn=False
                )
                self.logger.record("eval/mine", mean)
                self.means.append(mean)

        model, callback = library.make(changing_masks(5, 6)), Evaluate()
        keys = with_logger(model)
        model.learn(2 * WINDOW * 2, callback=[callback])
        assert "eval/mine" in keys
        assert len(callback.means) == 2


class TestWhatIsToldOfTheirClassesAndFiles:
    @pytest.mark.parametrize("algorithm", ["RecurrentPPO", "MaskableRecurrentPPO"])
    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [
            ("MlpPolicy", "MaskableMlpLstmPolicy"),
            ("CnnPolicy", "MaskableCnnLstmPolicy"),
            ("MultiInputPolicy", "MaskableMultiInputLstmPolicy"),
        ],
    )
    def test_a_masked_policy_class_names_its_counterpart(self, algorithm, theirs, ours):
        from sb3_contrib.ppo_mask import policies

        given = getattr(policies, theirs)
        message = f"give MaskableRecurrentPPO thrust_pomdp.{ours}, which takes masks"
        for policy in (given, type("Mine", (given,), {})):
            with pytest.raises(ValueError, match=message):
                getattr(thrust_pomdp, algorithm)(policy, changing_masks(5))
        assert hasattr(thrust_pomdp, ours)

    @pytest.mark.parametrize("name", ["MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy"])
    def test_a_recurrent_policy_class_names_one_that_exists(self, name):
        from sb3_contrib.ppo_recurrent import policies

        with pytest.raises(ValueError, match=rf"use thrust_pomdp\.{name}, and thrust_pomdp\.from"):
            thrust_pomdp.RecurrentPPO(getattr(policies, name), changing_masks(5))
        assert hasattr(thrust_pomdp, name)

    def test_weights_without_memory_say_what_can_be_done(self, tmp_path):
        THEIRS.make(changing_masks(5)).save(tmp_path / "masked")
        with pytest.raises(ValueError, match="with action masks a MaskableRecurrentPPO, anew"):
            thrust_pomdp.from_sb3_contrib(tmp_path / "masked")
        with pytest.raises(ValueError, match="weights without memory cannot be loaded"):
            OURS.algorithm.load(tmp_path / "masked")

    def test_what_comes_before_the_memory_fits(self):
        from stable_baselines3.common.envs import FakeImageEnv

        images = {"device": "cpu", "n_steps": 8, "batch_size": 8}
        theirs = sb3_contrib.MaskablePPO("CnnPolicy", FakeImageEnv(), **images)
        ours = OURS.algorithm("CnnLstmPolicy", FakeImageEnv(), **images)
        weights = theirs.policy.features_extractor.state_dict()
        ours.policy.features_extractor.load_state_dict(weights)
        image = th.rand(1, 1, 84, 84)
        assert th.equal(*(x.policy.features_extractor(image) for x in (theirs, ours)))

    def test_a_recurrent_model_of_theirs_becomes_a_masked_one(self, tmp_path):
        theirs = sb3_contrib.RecurrentPPO("MlpLstmPolicy", changing_masks(5, cls=AllowsAnything))
        theirs.save(tmp_path / "theirs")
        masked = OURS.make(changing_masks(5))
        loaded = thrust_pomdp.from_sb3_contrib(tmp_path / "theirs")
        masked.set_parameters(loaded.get_parameters())
        obs, everything = np.ones((1, 6), np.float32), np.ones((1, 4), bool)
        expected, _ = loaded.predict(obs, deterministic=True)
        action, _ = masked.predict(obs, deterministic=True, action_masks=everything)
        assert action == expected

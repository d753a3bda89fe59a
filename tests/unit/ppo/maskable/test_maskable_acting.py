"""Acting and evaluating with action masks, files, and what is refused."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from helpers import FixedLengthEnv, fixed_length_envs
from maskable_envs import ACTIONS, ChangingMaskEnv, as_choices, changing_masks
from sb3_contrib.common.maskable import evaluation as theirs
from sb3_contrib.common.maskable.utils import get_action_masks as their_masks
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common import evaluation as sb3
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback

from thrust_pomdp import (
    MaskableRecurrentPPO,
    MlpLstmPolicy,
    RecurrentPPO,
    RecurrentRolloutBuffer,
    StatefulActor,
)
from thrust_pomdp.ppo.maskable import MaskableEvalCallback, evaluate_policy, get_action_masks

WINDOW = 16


def make_model(env=None, policy="MlpLstmPolicy", **kwargs) -> MaskableRecurrentPPO:
    env = changing_masks(5, 6, 7) if env is None else env
    arguments = {"n_steps": WINDOW, "batch_size": WINDOW, "n_epochs": 1, "seed": 0, **kwargs}
    return MaskableRecurrentPPO(policy, env, policy_kwargs={"lstm_hidden_size": 8}, **arguments)


class TestPredict:
    @pytest.mark.parametrize("deterministic", [True, False])
    @pytest.mark.parametrize("action", ACTIONS)
    def test_only_allowed_actions_are_taken(self, action, deterministic):
        env = changing_masks(5, 6, 7, action=action)  # raises at a forbidden action
        model = make_model(env)
        obs, state, start = env.reset(), None, np.ones(3, bool)
        for _ in range(20):
            masks = get_action_masks(env)
            actions, state = model.predict(obs, state, start, deterministic, action_masks=masks)
            assert np.take_along_axis(masks, as_choices(ACTIONS[action], actions), 1).all()
            obs, _, start, _ = env.step(actions)

    def test_one_observation_and_its_mask(self):
        env = ChangingMaskEnv(5, ACTIONS["Discrete"])
        model = make_model(env)
        obs, _ = env.reset(seed=0)
        for mask in (env.action_masks(), env.action_masks()[None], list(env.action_masks())):
            action, _ = model.predict(obs, episode_start=np.ones(1, bool), action_masks=mask)
            assert action.shape == ()
            assert env.action_masks()[action]

    def test_the_most_likely_of_the_allowed_actions(self):
        model, obs = make_model(), np.zeros((4, 6), np.float32)
        first, _ = model.predict(obs, deterministic=True, action_masks=np.ones((4, 4), bool))
        without = np.ones((4, 4), bool)
        without[np.arange(4), first] = False
        second, _ = model.predict(obs, deterministic=True, action_masks=without)
        assert (first != second).all()

    def test_the_memory_does_not_depend_on_the_masks(self):
        model, obs = make_model(), np.ones((1, 6), np.float32)
        states = [
            model.predict(obs, action_masks=mask)[1][0] for mask in ([1, 0, 0, 0], [0, 0, 1, 1])
        ]
        assert np.array_equal(*states)

    @pytest.mark.parametrize(
        ("masks", "message"),
        [
            (np.ones((3, 4)), "one row per observation, 2, got 3"),
            (np.ones(4), "one row per observation, 2, got 1"),
            (np.ones((2, 3)), "environment 0 must have 4 entries"),
            (np.ones((4, 2)), "environment 0 must have 4 entries"),
            ([[1, 1, 1, 1], [0, 0, 0, 0]], "environment 1 must allow at least one action"),
            ([[1, 1, 1, 1], [0, 5, 0, 0]], "environment 1 must be bools"),
            ([[1, 1, 1, 1], [1]], "environment 1 must have 4 entries"),
            ("yes", "environment 0 must be bools"),
        ],
    )
    def test_masks_that_cannot_be(self, masks, message):
        with pytest.raises(ValueError, match=message):
            make_model().predict(np.zeros((2, 6), np.float32), action_masks=masks)

    def test_going_without_masks_warns_once(self):
        model, obs = make_model(), np.zeros((1, 6), np.float32)
        with pytest.warns(UserWarning, match="without action_masks") as caught:
            _, state = model.predict(obs)
            model.predict(obs, state)
        assert len(caught) == 1

    def test_but_not_for_a_model_that_was_trained_without(self):
        model = make_model(fixed_length_envs(5, 6)).learn(WINDOW * 2, use_masking=False)
        model.predict(np.zeros((1, 3), np.float32))


class TestStatefulActor:
    def test_hands_masks_on_and_keeps_the_memory(self):
        env = changing_masks(5, 6, 7)
        model = make_model(env)
        actor, obs, dones, state = StatefulActor(model, True), env.reset(), None, None
        start = np.ones(3, bool)
        for _ in range(12):
            masks = get_action_masks(env)
            actions = actor.act(obs, dones, action_masks=masks)
            expected, state = model.predict(obs, state, start, True, action_masks=masks)
            assert np.array_equal(actions, expected)
            obs, _, dones, _ = env.step(actions)
            start = dones

    def test_a_model_that_takes_no_masks_says_so(self):
        actor = StatefulActor(RecurrentPPO("MlpLstmPolicy", fixed_length_envs(5)))
        with pytest.raises(TypeError, match="action_masks"):
            actor.act(np.zeros(3, np.float32), action_masks=[1, 1, 1])


class Rewarding(ChangingMaskEnv):
    """Deterministic: rewards tell which actions were taken, observations count the steps."""

    def _draw(self):
        mask = np.zeros(self.width, bool)
        mask[[self.steps % self.width, (self.steps + 1) % self.width]] = True
        return mask

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float(action), *rest


class TestEvaluation:
    def by_hand(self, model, env, n_episodes):
        obs, state, start, rewards, total = env.reset(), None, np.ones(1, bool), [], 0.0
        while len(rewards) < n_episodes:
            actions, state = model.predict(
                obs, state, start, True, action_masks=get_action_masks(env)
            )
            obs, reward, start, _ = env.step(actions)
            total += float(reward[0])
            if start[0]:
                rewards.append(total)
                total = 0.0
        return rewards

    def test_gives_what_acting_by_hand_gives(self):
        model, env = make_model(), changing_masks(9, cls=Rewarding)
        env.seed(0)
        expected = self.by_hand(model, env, 4)
        env.seed(0)
        rewards, lengths = evaluate_policy(
            model, env, n_eval_episodes=4, return_episode_rewards=True, warn=False
        )
        assert rewards == pytest.approx(expected)
        assert lengths == [9] * 4

    def test_on_a_single_environment(self):
        model = make_model()
        mean, _ = evaluate_policy(model, Rewarding(9, ACTIONS["Discrete"]), 2, warn=False)
        assert mean > 0

    def test_without_masks_it_is_sb3s(self):
        model = make_model(fixed_length_envs(5)).learn(WINDOW, use_masking=False)
        env = fixed_length_envs(5)
        assert len(evaluate_policy(model, env, 2, warn=False, use_masking=False)) == 2

    def test_an_environment_without_masks(self):
        with pytest.raises(ValueError, match=r"must have a method action_masks\(\)"):
            evaluate_policy(make_model(), fixed_length_envs(5), 2)

    def test_sb3s_own_function_warns(self):
        env = changing_masks(9, cls=Rewarding)
        with pytest.warns(UserWarning, match="without action_masks"), pytest.raises(AssertionError):
            sb3.evaluate_policy(make_model(), env, 50, warn=False, deterministic=False)

    def test_sb3_contribs_function_forgets_the_memory_and_is_told_so(self):
        """Why there is one of our own: theirs drops the state wherever it hands on masks."""
        env = changing_masks(9, cls=Rewarding)
        with pytest.warns(UserWarning, match="forgot everything each time"):
            theirs.evaluate_policy(make_model(), env, 4, warn=False)


class TestEvalCallback:
    def test_evaluates_with_masks_and_saves_the_best_model(self, tmp_path):
        children = []

        class Child(BaseCallback):
            def _on_step(self):
                children.append(self.model)
                return True

        callback = MaskableEvalCallback(
            changing_masks(5, 6), n_eval_episodes=4, eval_freq=8, verbose=0, warn=False,
            best_model_save_path=str(tmp_path), log_path=str(tmp_path), callback_after_eval=Child(),
        )  # fmt: skip
        model = make_model().learn(2 * WINDOW * 3, callback=callback)
        assert len(callback.evaluations_results) == 4
        assert len(children) == 4
        assert all(child is model for child in children)
        assert callback.model is model
        loaded = MaskableRecurrentPPO.load(tmp_path / "best_model")
        assert loaded.predict(np.zeros(6, np.float32), action_masks=[0, 1, 0, 0])[0] == 1

    def test_gives_what_evaluate_policy_gives(self):
        envs = [changing_masks(9, cls=Rewarding) for _ in range(2)]
        for env in envs:
            env.seed(3)
        callback = MaskableEvalCallback(
            envs[0], n_eval_episodes=2, eval_freq=WINDOW, warn=False, verbose=0
        )
        model = make_model(learning_rate=0.0).learn(WINDOW * 3, callback=callback)
        mean, _ = evaluate_policy(model, envs[1], n_eval_episodes=2, warn=False)
        assert callback.last_mean_reward == mean

    def test_an_environment_without_masks(self):
        callback = MaskableEvalCallback(fixed_length_envs(5), warn=False)
        with pytest.raises(ValueError, match=r"must have a method action_masks\(\)"):
            make_model().learn(WINDOW, callback=callback)

    def test_the_training_environment_is_refused_as_ever(self):
        env = changing_masks(5, 6, 7)
        with pytest.raises(ValueError, match="eval_env is the training environment"):
            make_model(env).learn(WINDOW, callback=MaskableEvalCallback(env, warn=False))

    def test_without_masks_it_is_sb3s(self):
        callback = MaskableEvalCallback(
            fixed_length_envs(5), n_eval_episodes=2, eval_freq=8, use_masking=False, warn=False,
            verbose=0,
        )  # fmt: skip
        make_model(fixed_length_envs(5, 6)).learn(WINDOW * 2, callback, use_masking=False)
        assert np.isfinite(callback.last_mean_reward)

    def test_sb3s_own_callback_warns(self):
        callback = EvalCallback(changing_masks(9, cls=Rewarding), eval_freq=8, warn=False)
        with pytest.warns(UserWarning, match="without action_masks"), pytest.raises(AssertionError):
            make_model().learn(WINDOW * 3, callback=callback)


class TestSb3ContribsPrograms:
    def test_their_wrapper_and_their_function_for_masks(self):
        env = ActionMasker(FixedLengthEnv(5), lambda env: np.array([True, False, True]))
        model = make_model(env).learn(WINDOW)
        buffer = model.rollout_buffer
        assert (buffer.actions != 1).all()
        assert np.array_equal(their_masks(model.get_env()), get_action_masks(model.get_env()))


class TestSaveAndLoad:
    @pytest.mark.parametrize("action", ACTIONS)
    def test_a_loaded_model_acts_alike_and_goes_on(self, action, tmp_path):
        model = make_model(changing_masks(5, 6, action=action)).learn(2 * WINDOW * 2)
        model.save(tmp_path / "model")
        env = changing_masks(5, 6, 7, action=action)
        loaded = MaskableRecurrentPPO.load(tmp_path / "model", env=env)
        obs, masks = env.reset(), get_action_masks(env)
        (expected, state), (actual, again) = (
            m.predict(obs, deterministic=True, action_masks=masks) for m in (model, loaded)
        )
        assert np.array_equal(expected, actual)
        assert all(np.array_equal(*pair) for pair in zip(state, again, strict=True))
        loaded.learn(WINDOW * 3, reset_num_timesteps=False)
        assert loaded.rollout_buffer.action_masks.shape[1] == 3

    def test_a_file_of_the_plain_algorithm_is_refused(self, tmp_path):
        RecurrentPPO("MlpLstmPolicy", fixed_length_envs(5)).save(tmp_path / "plain")
        with pytest.raises(ValueError, match="policy must take action masks"):
            MaskableRecurrentPPO.load(tmp_path / "plain")


class Bad(ChangingMaskEnv):
    """Tells an impossible mask at step 3 of an episode."""

    bad = ()

    def action_masks(self):
        return self.bad if self.steps == 3 else super().action_masks()


class TestRefusals:
    @pytest.mark.parametrize(
        ("mask", "message"),
        [
            (np.zeros(4, bool), "environment 0 at step 3 of the rollout must allow at least one"),
            (np.ones(3, bool), "environment 0 at step 3 of the rollout must have 4 entries"),
            (np.full(4, 0.5), "environment 0 at step 3 of the rollout must be bools"),
            (None, "environment 0 at step 3 of the rollout must be bools"),
        ],
    )
    def test_a_mask_that_cannot_be_is_named_with_environment_and_step(self, mask, message):
        model = make_model(changing_masks(9, 10, cls=type("Mine", (Bad,), {"bad": mask})))
        with pytest.raises(ValueError, match=message):
            model.learn(WINDOW * 2)

    def test_nothing_to_choose_in_one_dimension(self):
        nothing = np.array([1, 1, 1, 0, 0, 1, 1, 1, 1], bool)
        cls = type("Mine", (Bad,), {"bad": nothing})
        model = make_model(changing_masks(9, 10, action="MultiDiscrete", cls=cls))
        with pytest.raises(ValueError, match="step 3 .* at least one value of choice 1"):
            model.learn(WINDOW * 2)

    def test_an_environment_without_masks(self):
        model = make_model(fixed_length_envs(5))
        with pytest.raises(ValueError, match="to go without masks pass use_masking=False"):
            model.learn(WINDOW)

    def test_box_actions(self):
        env = fixed_length_envs(5, action_space=spaces.Box(-1, 1, (2,)))
        with pytest.raises(ValueError, match="action_space must be Discrete, .* RecurrentPPO"):
            make_model(env)

    def test_a_policy_that_takes_no_masks(self):
        with pytest.raises(ValueError, match="policy must take action masks"):
            make_model(policy=MlpLstmPolicy)

    def test_a_buffer_that_keeps_no_masks(self):
        with pytest.raises(ValueError, match="a subclass of MaskableRecurrentRolloutBuffer"):
            make_model(rollout_buffer_class=RecurrentRolloutBuffer)

    def test_a_wrong_policy_family(self):
        with pytest.raises(ValueError, match="policy must be MlpLstmPolicy for"):
            make_model(policy="CnnLstmPolicy")


def test_an_id_and_a_wrapper_need_no_vectorised_environment():
    class Fenced(gym.Wrapper):
        def action_masks(self):
            return np.array([True, False])

    model = make_model(Fenced(gym.make("CartPole-v1"))).learn(WINDOW)
    assert not model.rollout_buffer.actions.any()

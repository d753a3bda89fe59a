"""Warnings point at the line of the program, through whatever lies between."""

from __future__ import annotations

import inspect
import io
import warnings
from contextlib import contextmanager

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from helpers import VECTOR, FixedLengthEnv, fixed_length_envs
from maskable_envs import changing_masks
from stable_baselines3.common.evaluation import evaluate_policy

import thrust_pomdp
from thrust_pomdp import MaskableRecurrentPPO, RecurrentPPO, StatefulActor
from thrust_pomdp.errors import ArgumentError, warn_user

SMALL = {"lstm_hidden_size": 8}
DICT = spaces.Dict(sensor=VECTOR, state=VECTOR)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)


def make_model(policy: str, space: spaces.Space = VECTOR) -> RecurrentPPO:
    env = fixed_length_envs(5, observation_space=space)
    return RecurrentPPO(policy, env, n_steps=8, batch_size=8, policy_kwargs=dict(SMALL))


def make_maskable() -> MaskableRecurrentPPO:
    model = MaskableRecurrentPPO("MlpLstmPolicy", changing_masks(5), policy_kwargs=dict(SMALL))
    model._warned_of_missing_masks = True
    return model


MODELS = {
    "MlpLstmPolicy": lambda: make_model("MlpLstmPolicy"),
    "CnnLstmPolicy": lambda: make_model("CnnLstmPolicy", IMAGE),
    "MultiInputLstmPolicy": lambda: make_model("MultiInputLstmPolicy", DICT),
    "AsymmetricLstmPolicy": lambda: make_model("AsymmetricLstmPolicy", DICT),
    "maskable": make_maskable,
}


@contextmanager
def told_at(line: int):
    """Expect one warning, at a line of this file."""
    with pytest.warns(UserWarning, match=".") as caught:
        yield
    assert [(told.filename, told.lineno) for told in caught] == [(__file__, line)]


def here() -> int:
    """Return the number of the line that calls this."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


class TestForgottenState:
    @pytest.mark.parametrize("name", MODELS)
    @pytest.mark.parametrize("of", ["model", "policy"])
    def test_is_told_at_the_users_line_for_every_policy(self, name, of):
        model = MODELS[name]()
        actor = model if of == "model" else model.policy
        obs = model.get_env().reset()
        with told_at(here() + 2):
            for _ in range(12):
                actor.predict(obs)

    def test_is_told_at_the_line_that_calls_a_library_which_forgets(self):
        class Forgetful(RecurrentPPO):
            def predict(self, observation, state=None, episode_start=None, deterministic=False):
                return super().predict(observation)

        env = fixed_length_envs(20)
        model = Forgetful("MlpLstmPolicy", env, policy_kwargs=dict(SMALL))
        # A subclass is the user's own: the line in it is the one to mend.
        with told_at(inspect.getsourcelines(Forgetful.predict)[1] + 1):
            evaluate_policy(model, env, n_eval_episodes=1, warn=False)

    def test_twelve_actors_of_one_model_forget_nothing(self):
        model = make_model("MlpLstmPolicy")
        for _ in range(12):
            StatefulActor(model).act(np.ones(3, np.float32))

    def test_an_actor_that_is_reset_at_each_step_was_told_to(self):
        actor = StatefulActor(make_model("MlpLstmPolicy").policy)
        for _ in range(30):
            actor.reset()
            actor.act(np.ones((2, 3), np.float32), episode_start=[False, False])

    def test_an_actor_does_not_hide_a_user_who_forgets(self):
        model = make_model("MlpLstmPolicy")
        actor, obs = StatefulActor(model), np.ones(3, np.float32)
        with told_at(here() + 3):
            for _ in range(12):
                actor.act(obs)
                model.predict(obs)

    def test_after_an_actor_failed_users_are_told_again(self):
        model = make_model("MlpLstmPolicy")
        with pytest.raises(ValueError, match="non-finite"):
            StatefulActor(model).act(np.full(3, np.nan, np.float32))
        with told_at(here() + 2):
            for _ in range(12):
                model.predict(np.ones(3, np.float32))


class TestUsersLine:
    def test_of_missing_masks(self):
        model = MaskableRecurrentPPO("MlpLstmPolicy", changing_masks(5))
        obs = model.get_env().reset()
        with told_at(here() + 1):
            model.predict(obs)

    def test_of_a_model_that_is_made(self):
        with told_at(here() + 1):
            make_here = RecurrentPPO("MlpLstmPolicy", fixed_length_envs(5), 3e-4, 7, 5)
        with told_at(here() + 1):
            RecurrentPPO.load(saved(make_here), fixed_length_envs(5))
        lstm_kwargs = {"lstm_kwargs": {"dropout": 0.5}, "n_lstm_layers": 2, **SMALL}
        with told_at(here() + 1):
            RecurrentPPO("MlpLstmPolicy", fixed_length_envs(5), policy_kwargs=lstm_kwargs)

    def test_of_zeros_that_look_like_blanks_through_wrappers_of_gymnasium(self):
        class Blinking(FixedLengthEnv):
            def step(self, action):
                obs, *rest = super().step(action)
                return obs * (self.steps % 2), *rest

        env = thrust_pomdp.NormalizeVisibleObservation(Blinking(1000))
        env = gym.wrappers.TimeLimit(env, 1000)
        env.reset(seed=0)
        with told_at(here() + 2):
            for _ in range(500):
                env.step(0)

    def test_of_a_subclass_that_lies_between(self):
        class Mine(RecurrentPPO):
            pass

        with told_at(here() + 1):
            Mine("MlpLstmPolicy", fixed_length_envs(5), 3e-4, 7, 5)

    def test_each_line_is_told_once_as_pythons_own_warnings_are(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(3):
                warn_user("the same")
            warn_user("the same")
        assert len(caught) == 2


def saved(model: RecurrentPPO) -> io.BytesIO:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save(file)
    file.seek(0)
    return file


def test_an_argument_error_is_caught_by_either_name():
    for kind in (ValueError, AssertionError, (AssertionError, ValueError)):
        with pytest.raises(kind, match="told"):
            raise ArgumentError("told")

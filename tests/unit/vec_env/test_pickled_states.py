"""Environments of others in pickles: they go on from them, or the trial tells that they do not."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize
from state_tools import assert_equal
from strangers_envs import (
    BoundWalk,
    ForgetfulWalk,
    GlobalWalk,
    OutsideWalk,
    Tired,
    Walk,
)

import thrust_pomdp
from thrust_pomdp.vec_env.pickled_states import PicklingTrial, pickled_envs, set_pickled_envs
from thrust_pomdp.vec_env.states import set_vec_state, vec_state

N_ENVS = 2
BOTH = pytest.mark.parametrize("cls", [DummyVecEnv, SubprocVecEnv])


def made(cls: Any, env_class: Any = Walk, n_envs: int = N_ENVS) -> Any:
    return cls([lambda: Monitor(env_class()) for _ in range(n_envs)])


def step(venv: Any, n_steps: int, seed: int = 0) -> list[Any]:
    rng, outcomes = np.random.default_rng(seed), []
    for _ in range(n_steps):
        outcomes.append(list(venv.step(rng.integers(2, size=venv.num_envs))))
    return outcomes


def reset(venv: Any, seed: int = 0) -> Any:
    venv.seed(seed)
    venv.reset()
    return venv


class TestPickledEnvs:
    @BOTH
    def test_go_on(self, cls):
        venv, other = reset(made(cls)), reset(made(cls), 5)
        step(venv, 25)
        pickles, state = pickled_envs(venv), vec_state(venv)
        set_pickled_envs(other, pickles)
        set_vec_state(other, state)
        assert_equal(step(venv, 120, 1), step(other, 120, 1))
        assert_equal(venv.reset(), other.reset())
        assert_equal(reset(venv, 9).reset(), reset(other, 9).reset())
        venv.close()
        other.close()

    def test_two_names_of_a_generator_stay_one(self):
        """``self.rng = self.np_random``: a state put back afterwards must not part them."""
        venv, other = reset(made(DummyVecEnv)), reset(made(DummyVecEnv), 5)
        pickles, state = pickled_envs(venv), vec_state(venv)
        set_pickled_envs(other, pickles)
        set_vec_state(other, state)
        for env in other.envs:
            assert env.unwrapped.rng is env.unwrapped.np_random

    def test_files_of_monitors_stay_open_and_whole(self, tmp_path):
        def make(name: str) -> Any:
            walks = [Monitor(Walk(), str(tmp_path / f"{name}{idx}")) for idx in range(N_ENVS)]
            return DummyVecEnv([lambda env=env: env for env in walks])

        venv, other = reset(make("a")), reset(make("b"))
        step(venv, 40)
        pickles, state = pickled_envs(venv), vec_state(venv)
        set_pickled_envs(other, pickles)
        set_vec_state(other, state)
        step(venv, 40, 1), step(other, 40, 1)
        rows = [[line.split(",")[:2] for line in (tmp_path / name).read_text().splitlines()]
                for name in ("a0.monitor.csv", "b0.monitor.csv")]  # fmt: skip
        assert rows[0][1:] == rows[1][1:]
        assert len(rows[0]) > 4
        venv.close()
        other.close()

    def test_of_gymnasiums_vector_go_on(self):
        def make() -> Any:
            options = {"autoreset_mode": AutoresetMode.SAME_STEP}
            envs = gym.vector.SyncVectorEnv([lambda: Tired(gym.make("CartPole-v1"))] * 2, **options)
            return thrust_pomdp.GymnasiumVecEnv(envs)

        venv, other = reset(make()), reset(make(), 4)
        step(venv, 25)
        trial = PicklingTrial(venv)
        set_pickled_envs(other, pickled_envs(venv))
        set_vec_state(other, vec_state(venv))
        assert_equal(
            [outcome[:3] for outcome in step(venv, 120, 1)],
            [outcome[:3] for outcome in step(other, 120, 1)],
        )
        assert trial.finish() is None

    @BOTH
    def test_what_cannot_be_pickled_is_named(self, cls):
        venv = made(cls, BoundWalk)
        with pytest.raises(ValueError, match="BoundWalk cannot be pickled.*generator"):
            pickled_envs(venv)
        venv.close()

    def test_other_environments_are_refused(self):
        pickles = pickled_envs(reset(made(DummyVecEnv)))
        with pytest.raises(ValueError, match="pickles must be one for each of the 3"):
            set_pickled_envs(made(DummyVecEnv, n_envs=3), pickles)
        with pytest.raises(ValueError, match="pickles must be of a .*Tired"):
            set_pickled_envs(DummyVecEnv([lambda: Tired(Walk())] * 2), pickles)

    def test_of_native_vectors_are_refused(self):
        with pytest.raises(ValueError, match="venv must be a DummyVecEnv"):
            pickled_envs(thrust_pomdp.make_vec_env("TMaze-v0", 2))


class TestPicklingTrial:
    @BOTH
    @pytest.mark.parametrize("wrapper", [lambda env: env, Tired])
    def test_finds_that_an_environment_goes_on(self, cls, wrapper):
        venv = reset(cls([lambda: Monitor(wrapper(Walk()))] * N_ENVS))
        trial = PicklingTrial(VecNormalize(venv, norm_obs_keys=["x"]))
        step(venv, 60)
        assert trial.finish() is None
        venv.close()

    @BOTH
    def test_finds_what_a_pickle_lacks(self, cls):
        venv = reset(made(cls, ForgetfulWalk))
        step(venv, 5)
        trial = PicklingTrial(venv)
        step(venv, 30)
        assert (
            "ForgetfulWalk does not go on from a pickle as it went on: in step 1" in trial.finish()
        )
        venv.close()

    @BOTH
    def test_finds_what_is_kept_outside(self, cls):
        venv = reset(made(cls, OutsideWalk))
        step(venv, 5)
        trial = PicklingTrial(venv)
        step(venv, 30)
        assert "OutsideWalk does not go on from a pickle" in trial.finish()
        venv.close()

    def test_everybodys_generators_are_what_they_were(self):
        """Those of this process are held by a checkpoint, those of workers are not."""
        venv = reset(made(DummyVecEnv, GlobalWalk))
        trial = PicklingTrial(venv)
        step(venv, 30)
        before = np.random.get_state()[1].tolist(), random.getstate()
        assert trial.finish() is None
        assert (np.random.get_state()[1].tolist(), random.getstate()) == before
        venv = reset(made(SubprocVecEnv, GlobalWalk))
        trial = PicklingTrial(venv)
        step(venv, 30)
        assert "GlobalWalk does not go on from a pickle" in trial.finish()
        venv.close()

    def test_resets_calls_and_settings_are_done_to_the_copies_too(self):
        venv = reset(made(DummyVecEnv))
        trial = PicklingTrial(venv)
        step(venv, 10)
        venv.env_method("make_harder", 2.0, indices=[1])
        step(venv, 10)
        reset(venv, 33)
        step(venv, 10)
        venv.set_attr("reset_keywords", ())
        venv.reset()
        step(venv, 25)
        assert trial.finish() is None
        assert venv.get_attr("difficulty") == [1.0, 2.0]

    @BOTH
    def test_the_environments_notice_nothing(self, cls):
        venv, other = reset(made(cls)), reset(made(cls))
        before = set(vars(venv))
        trial = PicklingTrial(venv)
        assert_equal(step(venv, 60), step(other, 60))
        trial.finish()
        assert set(vars(venv)) | {"actions"} == before | {"actions"}
        assert_equal(step(venv, 60, 1), step(other, 60, 1))
        venv.close()
        other.close()

    def test_files_get_no_row_of_the_copies(self, tmp_path):
        venv = reset(DummyVecEnv([lambda: Monitor(Walk(), str(tmp_path / "a"))]))
        trial = PicklingTrial(venv)
        step(venv, 60)
        before = (tmp_path / "a.monitor.csv").read_bytes()
        assert trial.finish() is None
        assert (tmp_path / "a.monitor.csv").read_bytes() == before
        venv.close()

    def test_pictures_that_an_environment_fills_anew(self):
        class Filling(gym.Env[Any, Any]):
            observation_space = gym.spaces.Box(-9, 9, (2,))
            action_space = gym.spaces.Discrete(2)
            shown = np.zeros(2, np.float32)

            def reset(self, **kwargs: Any) -> Any:
                super().reset(seed=kwargs.get("seed"))
                self.shown = np.zeros(2, np.float32)
                return self.shown, {}

            def step(self, action: Any) -> Any:
                self.shown += self.np_random.normal()
                return self.shown, 0.0, bool(self.shown[0] > 3), False, {"obs": self.shown}

        venv = reset(DummyVecEnv([Filling]))
        trial = PicklingTrial(venv)
        step(venv, 60)
        assert trial.finish() is None

    def test_without_a_step_nothing_is_known(self):
        trial = PicklingTrial(reset(made(DummyVecEnv)))
        with pytest.raises(ValueError, match="venv must be stepped before"):
            trial.finish()

"""What the sensors would show, told beside what they do show, or shown in its place."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from sensor_envs import AnyEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from thrust_pomdp import (
    ExposeObservation,
    FlickerObservation,
    StateObservation,
    VecPrivilegedInfo,
)


class TestTells:
    def test_what_expose_state_tells_bit_for_bit(self) -> None:
        ours = FlickerObservation(ExposeObservation(gym.make("CartPole-v1")), 0.5)
        theirs = gym.make("thrust_pomdp:FlickeringCartPole-v0", expose_state=True)
        results = [ours.reset(seed=3), theirs.reset(seed=3)]
        rng = np.random.default_rng(0)
        n_ended = 0
        for _ in range(200):
            np.testing.assert_equal(*results)
            assert results[0][-1]["state"].dtype == np.float32
            if len(results[0]) == 5 and results[0][2]:
                n_ended += 1
                results = [env.reset() for env in (ours, theirs)]
            else:
                action = rng.integers(2)
                results = [env.step(action) for env in (ours, theirs)]
        assert n_ended > 3

    @pytest.mark.parametrize("kind", ["vector", "image", "number", "numbers", "bits"])
    def test_the_clean_frame_to_a_critic(self, kind: str) -> None:
        clean = DummyVecEnv([lambda: AnyEnv(kind)] * 2)
        venv = VecPrivilegedInfo(
            DummyVecEnv([lambda: FlickerObservation(ExposeObservation(AnyEnv(kind)), 1.0)] * 2),
            normalize=False,
        )
        for each in (clean, venv):
            each.seed(0)
        expected, shown = clean.reset(), venv.reset()
        for _ in range(20):
            np.testing.assert_array_equal(
                shown["state"].reshape(expected.shape), expected, strict=kind == "image"
            )
            expected, shown = (each.step(np.zeros(2, int))[0] for each in (clean, venv))

    def test_a_copy_of_its_own(self) -> None:
        env = ExposeObservation(AnyEnv("vector"))
        obs, info = env.reset(seed=0)
        obs[:] = 0.0
        assert info["state"].all()

    @pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")
    def test_and_passes_the_checker(self) -> None:
        env = ExposeObservation(gym.make("Acrobot-v1"), key="clean")
        check_env(env, skip_render_check=True)
        assert gym.make(env.spec).reset(seed=0)[1]["clean"].shape == (6,)


class TestRefusals:
    def test_name_the_argument(self) -> None:
        with pytest.raises(ValueError, match="observation_space must be a Box, .* got Dict"):
            ExposeObservation(AnyEnv("dict"))
        with pytest.raises(ValueError, match="key must be the name of an entry, got 3"):
            ExposeObservation(AnyEnv("vector"), key=3)
        with pytest.raises(ValueError, match="told by the environment itself, got 'steps'"):
            ExposeObservation(AnyEnv("vector"), key="steps").reset()


class TestStateObservation:
    def test_it_shows_what_was_covered_and_no_flags(self) -> None:
        clean = gym.make("CartPole-v1")
        covered = gym.make("thrust_pomdp:FlickeringCartPole-v0", expose_state=True)
        env = StateObservation(covered)
        results = [clean.reset(seed=3), env.reset(seed=3)]
        rng = np.random.default_rng(0)
        for _ in range(100):
            assert results[0][0].tolist() == results[1][0].tolist()
            assert results[1][0].dtype == np.float32
            assert "blanked" not in results[1][-1]
            assert results[0][1:-1] == results[1][1:-1]
            action = rng.integers(2)
            over = len(results[0]) == 5 and results[0][2]
            results = [one.reset() if over else one.step(action) for one in (clean, env)]

    @pytest.mark.parametrize("kind", ["vector", "number", "numbers", "bits"])
    def test_of_any_shape(self, kind: str) -> None:
        env = StateObservation(ExposeObservation(AnyEnv(kind)))
        assert env.observation_space.contains(env.reset(seed=0)[0])
        assert env.observation_space.contains(env.step(0)[0])
        assert env.observation_space.shape

    def test_a_space_of_ones_own(self) -> None:
        inner = gym.make("thrust_pomdp:MaskedCartPole-v0", expose_state=True)
        told = inner.reset(seed=0)[1]["state"]
        space = spaces.Box(-9, 9, np.shape(told), np.float64)
        env = StateObservation(inner, space=space)
        assert env.observation_space is space
        assert env.reset(seed=0)[0].dtype == np.float64

    def test_what_is_not_told_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"info\['state'\] must be told .* there is nothing"):
            StateObservation(gym.make("CartPole-v1"))
        with pytest.raises(ValueError, match=r"info\['x'\] must be told .* there is 'state'"):
            StateObservation(ExposeObservation(gym.make("CartPole-v1")), "x")
        words = gym.make("CartPole-v1")
        with pytest.raises(ValueError, match="must be a number or an array of numbers"):
            StateObservation(gym.wrappers.TransformObservation(Telling(words), lambda o: o, None))


class Telling(gym.Wrapper):
    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return obs, {**info, "state": "left"}

"""Both checkers pass on wrapped environments; specs survive JSON with wrappers and arguments."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from sensor_envs import OBSERVATIONS
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from vectors import assert_same

import thrust_pomdp
from thrust_pomdp import GymnasiumVecEnv
from thrust_pomdp.wrappers import (
    ElementDropoutObservation,
    ExposeObservation,
    FlickerObservation,
    MaskObservation,
    NormalizeVisibleObservation,
    PreviousActionObservation,
    PreviousRewardObservation,
)

#: What the checkers say of the environments inside, and of wrappers in general.
NOT_OURS = (
    r".*is different from the unwrapped version",
    r".*A Box observation space (minimum|maximum) value is -?infinity",
    r".*[Ww]e recommend (you to use|using) a symmetric and normalized",
    r".*with a non-zero start",
    r".*The minimal resolution for an image is 36x36",
)

FOREIGN = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0"]
OWN = [f"AnyEnv-v0 {kind}" for kind in OBSERVATIONS]

WRAPPERS: dict[str, Any] = {
    "flicker": FlickerObservation,
    "bursts": lambda env: FlickerObservation(env, 0.3, burst_len=np.float64(6)),
    "dropout": lambda env: ElementDropoutObservation(env, np.float32(0.25)),
    "previous action": PreviousActionObservation,
    "previous reward": PreviousRewardObservation,
    "all": lambda env: PreviousActionObservation(
        FlickerObservation(ElementDropoutObservation(env, 0.1), 0.25)
    ),
}
MASKED: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"drop": np.array([1, 3])},
    "Pendulum-v1": {"zero": (2,)},
    "Acrobot-v1": {"drop": range(4, 6)},
    "MountainCarContinuous-v0": {"drop": [1]},
    "AnyEnv-v0 vector": {"drop": [0], "zero": [2]},
    "AnyEnv-v0 image": {"zero": np.tri(36, 36)[:, :, None].repeat(3, axis=2).astype(bool)},
    "AnyEnv-v0 numbers": {"drop": [0]},
    "AnyEnv-v0 bits": {"zero": [0]},
    "AnyEnv-v0 dict": {"drop": ["camera"], "zero": {"gyro": np.array([1])}},
}


def make(env_id: str) -> gym.Env:
    env_id, _, kind = env_id.partition(" ")
    return gym.make(env_id, observation=kind) if kind else gym.make(env_id)


def wrapped(env_id: str, wrapper: str) -> gym.Env:
    if wrapper == "mask":
        return MaskObservation(make(env_id), **MASKED[env_id])
    return WRAPPERS[wrapper](make(env_id))


CASES = [
    *((env_id, wrapper) for env_id in FOREIGN + OWN for wrapper in WRAPPERS),
    *((env_id, "mask") for env_id in MASKED),
]
each_case = pytest.mark.parametrize(("env_id", "wrapper"), CASES)


class TestCheckers:
    @each_case
    def test_both_pass(self, env_id: str, wrapper: str) -> None:
        with warnings.catch_warnings():
            for message in NOT_OURS:
                warnings.filterwarnings("ignore", message=message, category=UserWarning)
            check_env(wrapped(env_id, wrapper), skip_render_check=True)
            sb3_check_env(wrapped(env_id, wrapper))


class TestSpecThroughJson:
    @each_case
    def test_wrappers_and_arguments_survive(self, env_id: str, wrapper: str) -> None:
        env = wrapped(env_id, wrapper)
        again = gym.make(EnvSpec.from_json(env.spec.to_json()))
        assert type(again) is type(env)
        assert again.observation_space == env.observation_space
        env.action_space.seed(0)
        assert_same(env.reset(seed=4), again.reset(seed=4))
        for _ in range(20):
            action = env.action_space.sample()
            outcome = env.step(action)
            assert_same(outcome, again.step(action))
            if outcome[2] or outcome[3]:
                assert_same(env.reset(), again.reset())

    def test_so_does_everything_that_a_dict_can_be_given(self) -> None:
        env = FlickerObservation(
            make("AnyEnv-v0 dict"),
            burst_len=3,
            keys=("gyro", "camera"),
            separately=True,
            blank_value={"gyro": np.array([1.0, 2.0, 3.0])},
        )
        again = gym.make(EnvSpec.from_json(env.spec.to_json()))
        assert_same(env.reset(seed=0), again.reset(seed=0))
        for _ in range(2):
            assert_same(env.step(0), again.step(0))

    def test_the_public_names_are_those_that_specs_find(self) -> None:
        for name in (
            "ElementDropoutObservation",
            "FlickerObservation",
            "MaskObservation",
            "PreviousActionObservation",
            "PreviousRewardObservation",
        ):
            assert getattr(thrust_pomdp, name) is getattr(thrust_pomdp.wrappers, name)

    def test_gymnasiums_vectors_take_them_as_wrappers(self) -> None:
        envs = gym.make_vec("CartPole-v1", 3, "sync", wrappers=[FlickerObservation])
        native = gym.make_vec("FlickeringCartPole-v0", 3)
        assert_same(envs.reset(seed=0), native.reset(seed=0))


OUTER = {
    "expose": lambda env: ExposeObservation(env, "raw"),
    "mask": lambda env: MaskObservation(env, drop=[1]),
    "Gymnasium's": lambda env: gym.wrappers.TimeLimit(env, 100),
    "SB3's": Monitor,
    **WRAPPERS,
}


class TestSettingsOfAWrapperInside:
    """Gymnasium's convention, which ours keep: ``set_wrapper_attr`` goes where a name is."""

    @staticmethod
    def frozen(env: gym.Env, normalizer: NormalizeVisibleObservation) -> bool:
        count = normalizer.obs_rms.count
        env.reset(seed=0)
        env.step(0)
        return normalizer.obs_rms.count == count

    @pytest.mark.parametrize("outer", OUTER)
    def test_are_set_through_whatever_is_outside(self, outer: str) -> None:
        normalizer = NormalizeVisibleObservation(gym.make("CartPole-v1"))
        env = OUTER[outer](normalizer)
        assert not self.frozen(env, normalizer)
        assert env.set_wrapper_attr("update_running_mean", False)
        assert (
            env.get_wrapper_attr("update_running_mean") is normalizer.update_running_mean is False
        )
        assert "update_running_mean" not in vars(env)
        assert self.frozen(env, normalizer)

    @pytest.mark.parametrize("outer", OUTER)
    def test_are_not_set_by_assigning_to_what_is_outside(self, outer: str) -> None:
        """As with Gymnasium's own ``NormalizeObservation``."""
        for kind in (NormalizeVisibleObservation, gym.wrappers.NormalizeObservation):
            normalizer = kind(gym.make("CartPole-v1"))
            env = OUTER[outer](normalizer)
            env.update_running_mean = False
            assert normalizer.update_running_mean

    def test_are_set_through_vectorised_environments(self) -> None:
        def make_one() -> gym.Env:
            return Monitor(NormalizeVisibleObservation(gym.make("CartPole-v1")))

        envs = SyncVectorEnv([make_one] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
        ours = GymnasiumVecEnv(envs)
        ours.set_attr("update_running_mean", False)
        theirs = DummyVecEnv([make_one] * 2)
        theirs.env_method("set_wrapper_attr", "update_running_mean", False)
        for venv in (ours, theirs):
            assert venv.get_attr("update_running_mean") == [False, False]
            before = [one.count for one in venv.get_attr("obs_rms")]
            venv.reset()
            venv.step(np.zeros(2, dtype=np.int64))
            assert [one.count for one in venv.get_attr("obs_rms")] == before
        ours.set_attr("note", 5, indices=1)  # of nobody: the outermost wrapper's
        assert vars(envs.envs[1])["note"] == 5

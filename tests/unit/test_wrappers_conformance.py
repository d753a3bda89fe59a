"""Both checkers pass on wrapped environments; specs survive JSON with wrappers and arguments."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from sensor_envs import OBSERVATIONS
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from vectors import assert_same

import thrust_pomdp
from thrust_pomdp.wrappers import (
    ElementDropoutObservation,
    FlickerObservation,
    MaskObservation,
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

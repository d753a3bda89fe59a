"""The table of ids: conformance, JSON specs, time limit, and worker processes."""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env as gymnasium_check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

import thrust_pomdp
from thrust_pomdp.vec_normalize import VecNormalizeVisible

#: DESIGN section 3: id -> (observation shape, defaults).
IDS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "MaskedCartPole-v0": ((2,), {}),
    "FlickeringCartPole-v0": ((4,), {"flicker_prob": 0.5}),
    "BurstFlickeringCartPole-v0": ((4,), {"flicker_prob": 0.5, "burst_len": 4}),
    "MaskedFlickeringCartPole-v0": ((2,), {"flicker_prob": 0.5, "hide_velocities": True}),
}

#: Velocities are unbounded, in CartPole-v1 too, of which Gymnasium's checker disapproves.
UNBOUNDED = r".*A Box observation space (minimum|maximum) value is -?infinity"

every_id = pytest.mark.parametrize("env_id", IDS)


def trajectory(env: gym.Env, seed: int, n_steps: int = 60) -> list[Any]:
    """Everything a seeded episode shows, as plain numbers."""
    obs, info = env.reset(seed=seed)
    seen: list[Any] = [obs.tolist(), info]
    for step in range(n_steps):
        obs, reward, terminated, truncated, info = env.step(step // 2 % 2)
        seen += [obs.tolist(), reward, terminated, truncated, info]
        if terminated or truncated:
            env.reset()
    return seen


def balance(state: np.ndarray) -> int:
    """Keep the pole up for ever from the true state (gains within FACTS section 2's ranges)."""
    x, x_dot, theta, theta_dot = state
    return int(theta + 0.45 * theta_dot + 0.1 * x + 0.25 * x_dot > 0)


class TestTableOfIds:
    @every_id
    def test_defaults_and_shapes_are_the_designs(self, env_id: str) -> None:
        shape, kwargs = IDS[env_id]
        assert gym.spec(env_id).kwargs == kwargs
        env = gym.make(env_id)
        assert env.observation_space.shape == shape
        assert env.observation_space.dtype == np.float32
        assert env.action_space == gym.spaces.Discrete(2)

    def test_registering_again_changes_and_warns_nothing(self) -> None:
        before = {env_id: gym.spec(env_id) for env_id in IDS}
        thrust_pomdp.register_envs()
        assert all(gym.spec(env_id) is spec for env_id, spec in before.items())

    def test_keyword_arguments_of_one_environment_never_leak_into_the_next(self) -> None:
        gym.make("FlickeringCartPole-v0", flicker_prob=0.0, burst_len=None)
        assert gym.spec("FlickeringCartPole-v0").kwargs == {"flicker_prob": 0.5}
        flags = {
            gym.make("FlickeringCartPole-v0").reset(seed=seed)[1]["blanked"] for seed in range(20)
        }
        assert flags == {True, False}


class TestConformance:
    @every_id
    def test_gymnasiums_checker_passes(self, env_id: str) -> None:
        with warnings.catch_warnings():
            if IDS[env_id][0] == (4,):
                warnings.filterwarnings("ignore", message=UNBOUNDED, category=UserWarning)
            gymnasium_check_env(gym.make(env_id).unwrapped, skip_render_check=True)

    @every_id
    def test_stable_baselines3s_checker_passes(self, env_id: str) -> None:
        sb3_check_env(gym.make(env_id), warn=True)

    @pytest.mark.parametrize("kwargs", [{"flicker_prob": 1.0}, {"burst_len": 2.5}])
    def test_gymnasiums_checker_passes_with_other_arguments(self, kwargs: dict[str, Any]) -> None:
        env = gym.make("FlickeringCartPole-v0", hide_velocities=True, expose_state=True, **kwargs)
        gymnasium_check_env(env.unwrapped, skip_render_check=True)


class TestTimeLimit:
    @every_id
    @pytest.mark.parametrize("integrator", ["euler", "semi-implicit euler"])
    def test_a_pole_kept_up_is_truncated_at_step_500_and_not_terminated(
        self, env_id: str, integrator: str
    ) -> None:
        env = gym.make(env_id, expose_state=True, kinematics_integrator=integrator)
        _, info = env.reset(seed=0)
        for _ in range(499):
            _, reward, terminated, truncated, info = env.step(balance(info["state"]))
            assert (reward, terminated, truncated) == (1.0, False, False)
        _, reward, terminated, truncated, _ = env.step(balance(info["state"]))
        assert (reward, terminated, truncated) == (1.0, False, True)

    @every_id
    def test_the_limit_and_the_bar_are_cartpoles(self, env_id: str) -> None:
        spec, base = gym.spec(env_id), gym.spec("CartPole-v1")
        assert spec.max_episode_steps == base.max_episode_steps == 500
        assert spec.reward_threshold == base.reward_threshold == 475.0


class TestSpecThroughJson:
    @every_id
    def test_defaults_survive(self, env_id: str) -> None:
        env = gym.make(env_id)
        spec = EnvSpec.from_json(env.spec.to_json())
        assert spec.kwargs == IDS[env_id][1]
        assert spec.max_episode_steps == 500
        assert trajectory(gym.make(spec), seed=5) == trajectory(env, seed=5)

    @pytest.mark.parametrize(
        ("env_id", "kwargs"),
        [
            ("MaskedCartPole-v0", {"kinematics_integrator": "semi-implicit euler"}),
            ("FlickeringCartPole-v0", {"flicker_prob": 0.8, "burst_len": 4, "expose_state": False}),
            ("FlickeringCartPole-v0", {"flicker_prob": 1.0, "hide_velocities": True}),
            ("BurstFlickeringCartPole-v0", {"flicker_prob": 0.3, "burst_len": 6.5}),
            ("BurstFlickeringCartPole-v0", {"burst_len": None}),
            ("MaskedFlickeringCartPole-v0", {"flicker_prob": 0.25}),
        ],
    )
    def test_given_arguments_survive(self, env_id: str, kwargs: dict[str, Any]) -> None:
        env = gym.make(env_id, **kwargs)
        spec = EnvSpec.from_json(env.spec.to_json())
        assert spec.kwargs == {**IDS[env_id][1], **kwargs}
        assert trajectory(gym.make(spec), seed=5) == trajectory(env, seed=5)


class TestImportByPrefix:
    def test_make_with_the_packages_prefix_needs_no_import(self) -> None:
        code = (
            "import sys, gymnasium as gym\n"
            f"for env_id in {list(IDS)!r}:\n"
            "    env = gym.make('thrust_pomdp:' + env_id)\n"
            "    obs, info = env.reset(seed=0)\n"
            "    print(env.spec.id, obs.shape)\n"
        )
        command = [sys.executable, "-W", "error", "-c", code]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        printed = result.stdout.splitlines()
        assert printed == [f"{env_id} {shape}" for env_id, (shape, _) in IDS.items()]


def make_every_id(env_id: str) -> gym.Env:
    """Make all ids, then return one: a single worker process tells of them all."""
    for other in IDS:
        gym.make(f"thrust_pomdp:{other}").reset(seed=0)
    return gym.make(f"thrust_pomdp:{env_id}")


class TestSpawnedWorkers:
    def test_they_make_every_id_and_give_what_this_process_gives(self) -> None:
        # Normalised, since that reads the flag of the reset frame from the worker's reset_infos.
        makers = [
            partial(make_every_id, "FlickeringCartPole-v0"),
            partial(gym.make, "thrust_pomdp:BurstFlickeringCartPole-v0"),
        ]
        here = VecNormalizeVisible(DummyVecEnv(makers))
        there = VecNormalizeVisible(SubprocVecEnv(makers, start_method="spawn"))
        try:
            here.seed(17)
            there.seed(17)
            assert here.reset().tobytes() == there.reset().tobytes()
            n_ended = n_blank_starts = 0
            for step in range(200):
                actions = np.full(2, step % 3 == 0)
                outcomes = [env.step(actions.astype(int)) for env in (here, there)]
                for mine, theirs in zip(outcomes[0][:3], outcomes[1][:3], strict=True):
                    assert mine.tobytes() == theirs.tobytes()
                flags = [[info["blanked"] for info in outcome[3]] for outcome in outcomes]
                assert flags[0] == flags[1]
                done = outcomes[0][2]
                n_ended += int(done.sum())
                n_blank_starts += int((~outcomes[0][0][done].any(axis=1)).sum())
            assert 0 < n_blank_starts < n_ended
            assert there.obs_rms.mean.tobytes() == here.obs_rms.mean.tobytes()
            assert there.obs_rms.var.tobytes() == here.obs_rms.var.tobytes()
        finally:
            there.close()

"""make_vec_env adds what agents see, in the order in which it must be."""

from __future__ import annotations

import copy
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.registration import WrapperSpec
from stable_baselines3.common import env_util
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from thrust_pomdp import (
    GymnasiumVecEnv,
    VecNormalizeVisible,
    VecPreviousAction,
    VecPreviousReward,
    make_vec_env,
)
from thrust_pomdp.envs import cartpole, cartpole_vector, popgym_cartpole, tmaze, tmaze_vector
from thrust_pomdp.envs.registration import ENVIRONMENTS
from thrust_pomdp.vec_env.previous import layers
from thrust_pomdp.vec_env.stacked import VecStackedFrames
from thrust_pomdp.vec_env.substitutes import against_native_vector

FLICKERING = "FlickeringCartPole-v0"
ALL = [VecStackedFrames, VecPreviousReward, VecPreviousAction, VecNormalizeVisible]


class TestWhatAgentsSee:
    @pytest.mark.parametrize("vec_env", [{}, {"wrapper_class": lambda env: env}])
    def test_is_added_in_one_order(self, vec_env: dict[str, Any]) -> None:
        env = make_vec_env(
            FLICKERING, 2, seed=0, **vec_env,
            frame_stack=3, previous_reward=True, previous_action=True, normalize=True,
        )  # fmt: skip
        assert [type(layer) for layer in layers(env)] == ALL
        assert isinstance(env.unwrapped, GymnasiumVecEnv) == (not vec_env)
        assert env.reset().shape == (2, 3 * (4 + 2 + 1))
        assert env.step(np.ones(2, int))[0][:, -3:].tolist() == [[0.0, 1.0, 1.0]] * 2

    @pytest.mark.parametrize(
        ("arguments", "kind"),
        [
            ({"normalize": {"norm_reward": False, "clip_obs": 3.0}}, VecNormalizeVisible),
            ({"previous_action": True}, VecPreviousAction),
            ({"previous_reward": True}, VecPreviousReward),
            ({"frame_stack": 2}, VecStackedFrames),
        ],
    )
    def test_is_only_what_is_asked_for(self, arguments: dict[str, Any], kind: type) -> None:
        env = make_vec_env(FLICKERING, 2, **arguments)
        assert [type(layer) for layer in layers(env)] == [kind]
        if kind is VecNormalizeVisible:
            assert (env.norm_reward, env.clip_obs) == (False, 3.0)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"normalize": "yes"}, "normalize must be True or False, got 'yes'"),
            ({"normalize": {"clip_obs": -1}}, "clip_obs must be positive, got -1"),
            ({"previous_action": 1}, "previous_action must be True or False, got 1"),
            ({"previous_reward": None}, "previous_reward must be True or False, got None"),
            ({"frame_stack": True}, "frame_stack must be at least 1, got True"),
        ],
    )
    def test_cannot_be_anything(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            make_vec_env(FLICKERING, 1, **arguments)


@pytest.fixture
def registry() -> Iterator[dict[str, Any]]:
    """Gymnasium's registry, put back afterwards."""
    before = dict(gym.registry)
    yield gym.registry
    gym.registry.clear()
    gym.registry.update(before)


SINGLE = "thrust_pomdp.envs.cartpole:FlickeringCartPoleEnv"
TWIN = "thrust_pomdp.envs.cartpole_vector:FlickeringCartPoleVectorEnv"


class TimidCartPoleEnv(cartpole.FlickeringCartPoleEnv):
    """Somebody's own task: twice the reward."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return (obs, 2 * reward, *rest)


class DoubledReward(gym.RewardWrapper):
    def reward(self, reward: Any) -> float:
        return 2.0 * float(reward)


def steps_of(venv: VecEnv, n_steps: int = 60) -> list[Any]:
    """Return all that a program sees of a run, in a form that can be compared."""
    rng, rows = np.random.default_rng(0), [venv.reset().tolist()]
    for _ in range(n_steps):
        obs, rewards, dones, infos = venv.step(rng.integers(2, size=venv.num_envs))
        infos = [{k: v for k, v in info.items() if k != "episode"} for info in infos]
        rows.append((obs.tolist(), rewards.tolist(), dones.tolist(), repr(infos)))
    return rows


def assert_is_the_task_of(env_id: str, native: bool = False, **env_kwargs: Any) -> None:
    """Compare with what SB3 makes of an id: single environments, by ``gym.make``."""
    ours, theirs = (
        make(env_id, 3, seed=5, env_kwargs=env_kwargs)
        for make in (make_vec_env, env_util.make_vec_env)
    )
    assert type(ours) is (GymnasiumVecEnv if native else DummyVecEnv)
    assert steps_of(ours) == steps_of(theirs)


def doubled(method: Any) -> Callable[..., Any]:
    def step(self: Any, action: Any) -> Any:
        obs, reward, *rest = method(self, action)
        return (obs, 2 * reward, *rest)

    return step


class TestATaskIsTheUsers:
    @pytest.mark.parametrize("env_id", ENVIRONMENTS)
    def test_the_native_vector_is_that_of_every_id_as_it_was_written(self, env_id: str) -> None:
        assert against_native_vector(gym.spec(env_id), {}) is None
        assert_is_the_task_of(env_id, native=True)

    def test_ids_of_others_are_made_of_single_environments(self) -> None:
        for env_id in ("CartPole-v1", "Acrobot-v1"):
            assert_is_the_task_of(env_id)
        assert "CartPoleVectorEnv is not known to be the same task as" in str(
            against_native_vector(gym.spec("CartPole-v1"), {})
        )

    def test_what_takes_the_place_of_our_id_is_made(self, registry: Any) -> None:
        for entry_point in (TimidCartPoleEnv, f"{__name__}:TimidCartPoleEnv"):
            del registry[FLICKERING]
            gym.register(FLICKERING, entry_point, vector_entry_point=TWIN, max_episode_steps=500)
            assert_is_the_task_of(FLICKERING)

    @pytest.mark.parametrize(
        ("limit", "kwargs"),
        [
            (7, {}),
            (None, {}),
            (500, {"flicker_prob": 0.9, "burst_len": 20}),
            (500, {"kinematics_integrator": "semi-implicit euler", "hide_velocities": True}),
        ],
    )
    def test_an_own_id_of_our_classes_has_its_own_arguments_and_limit(
        self, registry: Any, limit: int | None, kwargs: dict[str, Any]
    ) -> None:
        gym.register("Mine-v0", SINGLE, vector_entry_point=TWIN,
                     kwargs=kwargs, max_episode_steps=limit)  # fmt: skip
        assert_is_the_task_of("Mine-v0", native=True)
        for other in (9, None, -1):
            assert_is_the_task_of("Mine-v0", native=True, max_episode_steps=other)

    def test_an_id_without_a_limit_never_truncates(self, registry: Any) -> None:
        gym.register("Endless-v0", SINGLE, vector_entry_point=TWIN)
        venv = make_vec_env("Endless-v0", 1)
        assert isinstance(venv, GymnasiumVecEnv)
        assert venv.env.unwrapped.max_episode_steps is None

    @pytest.mark.parametrize(
        ("arguments", "reason"),
        [
            ({"additional_wrappers": (
                WrapperSpec("Doubled", f"{__name__}:DoubledReward", {}),)}, "with wrappers"),
            ({"vector_entry_point": "thrust_pomdp.envs.tmaze_vector:TMazeVectorEnv"}, "not known"),
            ({"vector_entry_point": None}, "not known"),
        ],
    )  # fmt: skip
    def test_an_id_with_more_to_it_is_made_of_single_environments(
        self, registry: Any, arguments: dict[str, Any], reason: str
    ) -> None:
        gym.register("Mine-v0", **{"entry_point": SINGLE, "vector_entry_point": TWIN,
                                   "max_episode_steps": 30, **arguments})  # fmt: skip
        assert reason in str(against_native_vector(gym.spec("Mine-v0"), {}))
        assert_is_the_task_of("Mine-v0")

    def test_arguments_that_only_vectors_take_are_refused_as_gymnasium_does(
        self, registry: Any
    ) -> None:
        for name, value in (("autoreset_mode", "SameStep"), ("num_envs", 2), ("wings", 2)):
            spec = gym.spec(FLICKERING)
            assert repr(name) in str(against_native_vector(spec, {name: value}))
            with pytest.raises(TypeError, match=name):
                make_vec_env(FLICKERING, 2, env_kwargs={name: value})
        gym.register("Mine-v0", SINGLE, vector_entry_point=TWIN, kwargs={"max_episode_steps": 9})
        with pytest.raises(TypeError, match="max_episode_steps"):
            make_vec_env("Mine-v0", 2)

    def test_render_modes_that_only_single_environments_have_are_served_by_these(self) -> None:
        spec = gym.spec(FLICKERING)
        for mode in ("human", "rgb_array_list"):
            assert mode in str(against_native_vector(spec, {"render_mode": mode}))
        for mode in (None, "rgb_array"):
            assert against_native_vector(spec, {"render_mode": mode}) is None
        venv = make_vec_env(FLICKERING, 2, env_kwargs={"render_mode": "rgb_array_list"})
        assert type(venv) is DummyVecEnv
        venv.close()

    @pytest.mark.parametrize(
        ("env_id", "cls", "native"),
        [
            (FLICKERING, cartpole.FlickeringCartPoleEnv, False),
            (FLICKERING, cartpole.SensedCartPoleEnv, False),
            (FLICKERING, CartPoleEnv, False),
            (FLICKERING, cartpole_vector.FlickeringCartPoleVectorEnv, False),
            (FLICKERING, cartpole.MaskedCartPoleEnv, True),
            ("POPGymPositionOnlyCartPoleEasy-v0", popgym_cartpole.PositionOnlyCartPoleEnv, False),
            ("ActiveTMaze-v0", tmaze.TMazeEnv, False),
            ("TMaze-v0", tmaze.ActiveTMazeEnv, True),
            ("TMaze-v0", tmaze_vector.TMazeVectorEnv, False),
        ],
    )
    def test_a_method_replaced_on_a_class_is_run(
        self, monkeypatch: pytest.MonkeyPatch, env_id: str, cls: Any, native: bool
    ) -> None:
        monkeypatch.setattr(cls, "step", doubled(cls.step))
        assert_is_the_task_of(env_id, native=native)
        monkeypatch.undo()
        assert_is_the_task_of(env_id, native=True)

    def test_so_are_replaced_constructors_resets_and_constants(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cls = cartpole.FlickeringCartPoleEnv
        init, reset = cls.__init__, cls.reset

        def strong(self: Any, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            self.force_mag = 20.0

        def from_the_left(self: Any, **kwargs: Any) -> Any:
            return reset(self, **{**kwargs, "options": {"low": -0.2, "high": -0.1}})

        for name, value in (("__init__", strong), ("reset", from_the_left)):
            monkeypatch.setattr(cls, name, value)
            assert f"FlickeringCartPoleEnv.{name} was replaced" == against_native_vector(
                gym.spec(FLICKERING), {}
            )
            assert_is_the_task_of(FLICKERING)
            monkeypatch.undo()

    def test_a_class_put_in_the_place_of_ours_is_made(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cartpole, "FlickeringCartPoleEnv", TimidCartPoleEnv)
        assert_is_the_task_of(FLICKERING)


class TestWorkersThatHaveNotImportedThePackage:
    """Processes that are no copies know the ids of Gymnasium alone."""

    PROGRAM = """
import sys
from stable_baselines3.common.vec_env import SubprocVecEnv
from thrust_pomdp import make_vec_env

env = make_vec_env("FlickeringCartPole-v0", 2, seed=0, vec_env_cls=SubprocVecEnv,
                   vec_env_kwargs={"start_method": sys.argv[1]}, previous_action=True)
print(env.reset().shape, *(spec.id for spec in env.get_attr("spec")))
env.close()
"""

    @pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
    def test_find_our_ids(self, start_method: str) -> None:
        if start_method not in multiprocessing.get_all_start_methods():
            pytest.skip("no such start method here")
        command = [sys.executable, "-c", self.PROGRAM, start_method]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout == f"(2, 6) {FLICKERING} {FLICKERING}\n", done.stderr

    def test_are_not_given_ours_for_what_a_program_registered_in_its_place(
        self, registry: Any
    ) -> None:
        asked = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(env_util, "make_vec_env", lambda env_id, *_: asked.append(env_id) or 0)
            patch.setattr("thrust_pomdp.vec_env.make.layered", lambda venv, **_: venv)
            make_vec_env(FLICKERING, vec_env_cls=DummyVecEnv)
            registry[FLICKERING] = copy.deepcopy(registry[FLICKERING])
            registry[FLICKERING].kwargs["flicker_prob"] = 0.1
            make_vec_env(FLICKERING, vec_env_cls=DummyVecEnv)
            make_vec_env("CartPole-v1", vec_env_cls=DummyVecEnv)
        assert asked == [f"thrust_pomdp:{FLICKERING}", FLICKERING, "CartPole-v1"]

"""The adapter from Gymnasium's vector environments equals SB3's DummyVecEnv; make_vec_env."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import PPO
from stable_baselines3.common import env_util
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack

import thrust_pomdp
import thrust_pomdp.wrappers.vector
from thrust_pomdp.envs.cartpole_vector import FlickeringCartPoleVectorEnv
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv, _groups
from thrust_pomdp.vec_env.make import make_vec_env
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible
from thrust_pomdp.vec_env.step_infos import StepInfos, copy_rows, info_rows, rows_of
from thrust_pomdp.vec_env.substitutes import against_later_infos

IDS = [
    "MaskedCartPole-v0",
    "FlickeringCartPole-v0",
    "BurstFlickeringCartPole-v0",
    "MaskedFlickeringCartPole-v0",
]
FLICKERING = IDS[1]
N_ENVS = 4
SAME_STEP = {"autoreset_mode": AutoresetMode.SAME_STEP}


class CameraEnv(gym.Env[Any, Any]):
    """Dict observations, a Box action and every kind of info; episodes of two to six steps."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (2, 3), np.uint8),
                "gyro": spaces.Box(-9.0, 9.0, (1,), np.float32),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.render_mode = render_mode

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 7))
        return self._obs(), {"where": "start", "options": options}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        info: dict[str, Any] = {
            "blanked": {"camera": bool(self.np_random.random() < 0.5), "gyro": False},
            "count": self.left,
            "speed": float(self.np_random.random()),
            "vector": self.np_random.random(2),
        }
        if self.left == 0:
            info["only_at_the_end"] = 1
        reward = float(np.sum(action)) + self.np_random.random() / 3.0
        ended_twice = bool(self.np_random.random() < 0.2) and self.left == 0
        terminated = self.left == 0 and bool(self.np_random.random() < 0.5)
        truncated = (self.left == 0 and not terminated) or ended_twice
        return self._obs(), reward, terminated, truncated, info

    def _obs(self) -> dict[str, Any]:
        return {
            "camera": self.np_random.integers(256, size=(2, 3), dtype=np.uint8),
            "gyro": self.np_random.random(1).astype(np.float32),
        }

    def render(self) -> Any:
        return np.full((2, 2, 3), self.left, dtype=np.uint8)


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    gym.register("Camera-v0", entry_point=CameraEnv)
    yield
    del gym.registry["Camera-v0"]


def synchronous(env_id: str, n_envs: int = N_ENVS, **kwargs: Any) -> GymnasiumVecEnv:
    return GymnasiumVecEnv(
        gym.make_vec(env_id, n_envs, vectorization_mode="sync", vector_kwargs=SAME_STEP, **kwargs)
    )


def assert_same(ours: Any, theirs: Any) -> None:
    """Compare bit for bit; the seconds of an episode are never the same."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key in theirs.keys() - {"t"}:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other)
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs


def assert_same_run(ours: VecEnv, theirs: VecEnv, n_steps: int = 120) -> int:
    """Compare everything over a run with random actions, and return the number of episodes."""
    assert_same(ours.reset(), theirs.reset())
    assert_same(ours.reset_infos, theirs.reset_infos)
    ours.action_space.seed(0)
    n_episodes = 0
    for _ in range(n_steps):
        actions = np.stack([ours.action_space.sample() for _ in range(ours.num_envs)])
        outcome = ours.step(actions)
        assert_same(outcome, theirs.step(actions))
        assert_same(ours.reset_infos, theirs.reset_infos)
        n_episodes += int(outcome[2].sum())
    return n_episodes


class TestEqualsDummyVecEnv:
    @pytest.mark.parametrize("env_id", IDS)
    def test_over_many_episodes_with_all_infos(self, env_id: str) -> None:
        for env_kwargs in ({}, {"expose_state": True, "max_episode_steps": 12}):
            ours = make_vec_env(env_id, N_ENVS, seed=3, env_kwargs=env_kwargs)
            theirs = env_util.make_vec_env(env_id, N_ENVS, seed=3, env_kwargs=env_kwargs)
            assert isinstance(ours, GymnasiumVecEnv)
            assert assert_same_run(ours, theirs) > 12
            # Again, without seeds: the streams go on.
            assert_same_run(ours, theirs, n_steps=30)

    def test_with_a_single_environment(self) -> None:
        ours, theirs = (make(FLICKERING, seed=0) for make in (make_vec_env, env_util.make_vec_env))
        assert assert_same_run(ours, theirs) > 2

    def test_for_a_foreign_vector_with_dict_observations_and_all_kinds_of_infos(self) -> None:
        ours, theirs = synchronous("Camera-v0"), env_util.make_vec_env("Camera-v0", N_ENVS)
        for venv in (ours, theirs):
            venv.seed(5)
        assert assert_same_run(ours, theirs) > 50

    def test_for_pendulum_whose_episodes_are_truncated(self) -> None:
        ours, theirs = synchronous("Pendulum-v1", 2), env_util.make_vec_env("Pendulum-v1", 2)
        for venv in (ours, theirs):
            venv.seed(5)
        assert assert_same_run(ours, theirs, n_steps=405) == 4

    def test_seeds_count_up_and_are_used_once(self) -> None:
        ours, theirs = (
            make(FLICKERING, N_ENVS, seed=9) for make in (make_vec_env, env_util.make_vec_env)
        )
        assert ours.seed(21) == theirs.seed(21) == [21, 22, 23, 24]
        for _ in range(3):
            assert_same(ours.reset(), theirs.reset())

    def test_options_are_used_once_and_may_differ(self) -> None:
        ours, theirs = (
            make(FLICKERING, 3, seed=1) for make in (make_vec_env, env_util.make_vec_env)
        )
        low, high = {"low": -0.2, "high": -0.1}, {"low": 0.1, "high": 0.2}
        for options in ([low, high, low], low, [{}, high, {}], None):
            for venv in (ours, theirs):
                venv.set_options(options)
            for _ in range(2):
                assert_same(ours.reset(), theirs.reset())
                assert_same(ours.reset_infos, theirs.reset_infos)
                told = [info["blanked"] for info in theirs.reset_infos]
                assert ours.blanked.tolist() == told
                actions = np.ones(3, dtype=np.int64)
                assert_same(ours.step(actions), theirs.step(actions))

    def test_options_may_hold_arrays(self) -> None:
        goals = [{"goal": np.array([idx, idx])} for idx in range(N_ENVS)]
        ours, theirs = synchronous("Camera-v0"), env_util.make_vec_env("Camera-v0", N_ENVS)
        for options in (goals[0], goals, [goals[0], *goals[:3]]):
            for venv in (ours, theirs):
                venv.seed(5)
                venv.set_options(options)
            assert_same(ours.reset(), theirs.reset())
            assert_same(ours.reset_infos, theirs.reset_infos)

    def test_options_of_each_are_compared_to_no_others(self) -> None:
        class Counted(gym.vector.VectorWrapper):
            n_resets = 0

            def reset(self, **kwargs: Any) -> Any:
                self.n_resets += 1
                return super().reset(**kwargs)

        venv = GymnasiumVecEnv(Counted(gym.make_vec(FLICKERING, 300, **SAME_STEP)))
        venv.seed(0)
        venv.set_options([{"low": -0.05 - idx // 2, "high": 5.0} for idx in range(300)])
        venv.reset()
        assert venv.env.n_resets == 1 + 150  # a mask needs a vector that has been reset once

    def test_options_are_grouped_where_they_are_equal(self) -> None:
        goal, nothing = np.zeros(2), float("nan")
        options = [
            *({"a": 1, "b": "x"}, {}, {"b": "x", "a": 1.0}, {"goal": [1]}, {"goal": goal}),
            *({"goal": [1]}, {"goal": goal}, {"goal": np.zeros(2)}, {}, {"a": nothing}),
            *({"a": nothing}, {"a": 2}),
        ]
        assert _groups(options) == [[0, 2], [1, 8], [3, 5], [4, 6], [7], [9, 10], [11]]

    def test_action_spaces_sample_alike(self) -> None:
        ours, theirs = (
            make(FLICKERING, 2, seed=7, start_index=3)
            for make in (make_vec_env, env_util.make_vec_env)
        )
        samples = [[venv.action_space.sample() for _ in range(20)] for venv in (ours, theirs)]
        assert samples[0] == samples[1]

    def test_images_are_the_same(self) -> None:
        pytest.importorskip("pygame")
        ours, theirs = (
            make(FLICKERING, 2, seed=0) for make in (make_vec_env, env_util.make_vec_env)
        )
        for venv in (ours, theirs):
            venv.reset()
        assert ours.render_mode == theirs.render_mode == "rgb_array"
        assert_same(ours.get_images(), theirs.get_images())
        assert_same(ours.env_method("render", indices=1), theirs.env_method("render", indices=1))
        assert_same(ours.render(), theirs.render())
        ours.close()
        theirs.close()

    def test_without_a_render_mode_there_are_no_images_but_a_warning(self) -> None:
        venv = make_vec_env(FLICKERING, 2, env_kwargs={"render_mode": None})
        with pytest.warns(UserWarning, match="render_mode must be 'rgb_array'"):
            assert venv.get_images() == [None, None]


class TestBlanked:
    @pytest.mark.parametrize("env_id", IDS[1:])
    def test_tells_of_the_frames_returned_reset_frames_included(self, env_id: str) -> None:
        venv = make_vec_env(env_id, 8, seed=0)
        obs, ended_blank, rng = venv.reset(), 0, np.random.default_rng(0)
        for _ in range(150):
            assert venv.blanked.dtype == np.bool_
            np.testing.assert_array_equal(venv.blanked, ~obs.any(axis=1))
            obs, _, dones, infos = venv.step(rng.integers(2, size=8))
            for idx in range(8):
                described = infos[idx]["terminal_observation"] if dones[idx] else obs[idx]
                assert infos[idx]["blanked"] is not bool(described.any())
                if dones[idx]:
                    assert venv.reset_infos[idx]["blanked"] == venv.blanked[idx]
                    ended_blank += infos[idx]["blanked"] != venv.blanked[idx]
        assert ended_blank > 5

    def test_is_none_where_the_environments_do_not_tell_or_not_in_that_form(self) -> None:
        for venv in (make_vec_env(IDS[0], 2), synchronous("Camera-v0", 2)):
            venv.reset()
            assert venv.blanked is None
            venv.step(np.stack([venv.action_space.sample() for _ in range(2)]))
            assert venv.blanked is None

    @pytest.mark.parametrize("env_id", IDS)
    def test_the_normaliser_gives_the_same_with_it(self, env_id: str) -> None:
        ours, theirs = (
            VecNormalizeVisible(make(env_id, N_ENVS, seed=3))
            for make in (make_vec_env, env_util.make_vec_env)
        )
        assert assert_same_run(ours, theirs) > 12
        assert_same(ours.obs_rms.mean, theirs.obs_rms.mean)
        assert_same(ours.obs_rms.var, theirs.obs_rms.var)

    def test_the_normaliser_builds_no_infos_while_nothing_ends(self) -> None:
        venv = VecNormalizeVisible(make_vec_env(FLICKERING, N_ENVS, seed=0))
        venv.reset()
        infos = venv.step(np.ones(N_ENVS, dtype=np.int64))[3]
        assert all(list.__getitem__(infos, idx) is None for idx in range(N_ENVS))


def unseen_infos() -> StepInfos:
    """Return the infos, the same each time, of a step at which some of the episodes ended."""
    venv = make_vec_env(FLICKERING, N_ENVS, seed=0)
    venv.reset()
    while True:
        _, _, dones, infos = venv.step(np.array([0, 1, 0, 1]))
        if dones.any() and not dones.all():
            assert isinstance(infos, StepInfos)
            return infos


class TestStepInfos:
    def test_it_is_a_list_of_dicts_to_whoever_looks(self) -> None:
        expected = list(unseen_infos())
        assert all(type(info) is dict for info in expected)
        for look in (
            lambda infos: infos[:],
            lambda infos: [infos[idx] for idx in range(len(infos))],
            lambda infos: [infos[idx - len(infos)] for idx in range(len(infos))],
            lambda infos: [infos[np.int64(idx)] for idx in range(len(infos))],
            lambda infos: list(reversed(infos))[::-1],
            lambda infos: list(infos),
            lambda infos: list(tuple(infos)),  # noqa: C414
            lambda infos: [*infos],
            lambda infos: infos.copy(),
            lambda infos: infos + [],  # noqa: RUF005
            lambda infos: [] + infos,  # noqa: RUF005
            lambda infos: copy.copy(infos),
            lambda infos: pickle.loads(pickle.dumps(infos)),
            lambda infos: np.array(infos).tolist(),
            lambda infos: [info for info, _ in zip(infos, range(99), strict=False)],
        ):
            assert_same(look(unseen_infos()), expected)

    def test_copies_are_plain_lists(self) -> None:
        infos = unseen_infos()
        for duplicate in (copy.deepcopy(infos), pickle.loads(pickle.dumps(infos))):
            assert type(duplicate) is list

    def test_comparing_builds_it(self) -> None:
        told = {"speed": np.array([1.0, 2.0]), "_speed": np.array([True, True])}
        expected = [{"speed": v, "TimeLimit.truncated": False} for v in (1.0, 2.0)]
        assert StepInfos([None] * 2, told, None) == expected
        assert expected == StepInfos([None] * 2, told, None)
        assert expected[1] in StepInfos([None] * 2, told, None)
        assert "speed" in repr(StepInfos([None] * 2, told, None))

    def test_what_is_written_to_it_stays_and_the_rest_is_still_there(self) -> None:
        infos, expected = unseen_infos(), list(unseen_infos())
        infos[0]["mark"] = 1
        infos[1] = {"mark": 2}
        assert_same(infos[0], {**expected[0], "mark": 1})
        assert infos[1] == {"mark": 2}
        assert_same(infos[2:], expected[2:])
        with pytest.raises(IndexError):
            infos[N_ENVS]

    def test_an_ended_episode_builds_no_dicts_of_the_others(self) -> None:
        infos, ended = unseen_infos(), ["episode" in info for info in unseen_infos()]
        assert infos[ended.index(True)]["episode"]["l"] > 5
        assert [list.__getitem__(infos, idx) is not None for idx in range(N_ENVS)] == ended

    def test_what_is_written_to_it_never_leaks_into_another_step(self) -> None:
        careful, careless = (make_vec_env(FLICKERING, N_ENVS, seed=0) for _ in range(2))
        obs = [venv.reset() for venv in (careful, careless)]
        rng = np.random.default_rng(0)
        kept: list[tuple[Any, Any]] = []
        for _ in range(80):
            for info in careless.reset_infos:
                info["mark"] = 1
            obs[1][...] = 9.0
            actions = rng.integers(2, size=N_ENVS)
            outcomes = [venv.step(actions) for venv in (careful, careless)]
            assert_same(outcomes[1], outcomes[0])
            kept.append((outcomes[0], copy.deepcopy(outcomes[0])))
            for info in outcomes[1][3]:
                info["blanked"], info["mark"] = None, 1
                info.get("terminal_observation", np.zeros(1))[...] = 9.0
            careless.blanked[...] = True
            obs = [outcome[0] for outcome in outcomes]
        for outcome, as_it_was in kept:
            assert_same(outcome, as_it_was)

    def test_infos_looked_at_long_after_their_step_are_still_right(self) -> None:
        ours, theirs = (
            make(FLICKERING, N_ENVS, seed=3) for make in (make_vec_env, env_util.make_vec_env)
        )
        rng, outcomes = np.random.default_rng(0), []
        for venv in (ours, theirs):
            venv.reset()
        for _ in range(60):
            actions = rng.integers(2, size=N_ENVS)
            outcomes.append([venv.step(actions) for venv in (ours, theirs)])
        for mine, other in outcomes:
            assert_same(mine, other)

    def test_python_numbers_come_out_where_python_numbers_went_in(self) -> None:
        rows = info_rows(
            {"a": np.array([1, 2]), "b": np.array([True, False]), "c": np.array([0.5, 1.5])}, [1]
        )
        assert json.dumps(rows) == '[{"a": 2, "b": false, "c": 1.5}]'

    def test_copied_rows_forget_what_is_no_longer_told(self) -> None:
        everyone, target = np.arange(2), {}
        mask = np.array([True, True])
        copy_rows({"a": np.array([1, 2]), "_a": mask}, target, everyone)
        copy_rows({"b": {"c": np.array([3, 4]), "_c": mask}, "_b": mask}, target, everyone[1:])
        assert info_rows(target, everyone) == [{"a": 1}, {"b": {"c": 4}}]


class ThriftyVectorEnv(VectorEnv[Any, Any, Any]):
    """Somebody's own vector: it fills the same few arrays anew at each step."""

    def __init__(self, n_envs: int = 3) -> None:
        self.num_envs = n_envs
        self.single_observation_space = spaces.Box(-9.0, 99.0, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.copy = lambda: "not what Gymnasium means by it"
        self._count = np.zeros(n_envs, dtype=np.int64)
        self._obs = np.zeros((n_envs, 2), dtype=np.float32)
        self._final_obs = np.zeros((n_envs, 2), dtype=np.float32)
        self._blanked, self._state = np.zeros(n_envs, bool), np.zeros((n_envs, 3))
        self._log: list[int] = []
        everyone = np.ones(n_envs, dtype=bool)
        self._infos = {"blanked": self._blanked, "_blanked": everyone,
                       "state": self._state, "_state": everyone,
                       "log": self._log}  # fmt: skip

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._count[:] = np.arange(self.num_envs)
        self._fill(0)
        return self._obs, self._infos

    def _fill(self, n_steps: int) -> None:
        self._obs[:] = self._count[:, None]
        self._state[:] = 10 * self._count[:, None]
        self._blanked[:] = self._count % 2 == 1
        self._log.append(n_steps)

    def step(self, actions: Any) -> Any:
        self._count += 1
        self._fill(len(self._log))
        ended = self._count >= 5
        infos = dict(self._infos)
        if ended.any():
            self._final_obs[:] = self._obs
            infos |= {"final_obs": self._final_obs, "_final_obs": ended,
                      "final_info": {"state": self._state.copy(), "_state": ended},
                      "_final_info": ended}  # fmt: skip
            self._count[ended] = 0
            self._fill(len(self._log))
        return self._obs, self._count.astype(float), ended, np.zeros_like(ended), infos


class RememberingEnv(gym.Env[Any, Any]):
    """Somebody's own environment, which tells of objects that it goes on changing."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.render_mode = render_mode
        self.path: list[int] = []
        self.told = {"blanked": False, "visits": np.zeros(2)}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.path.clear()
        self.told["visits"][:] = 0
        return np.zeros(1, np.float32), {"path": self.path, **self.told}

    def step(self, action: Any) -> Any:
        self.path.append(int(action))
        self.told["visits"][int(action)] += 1
        info = {"path": self.path, **self.told}
        return np.zeros(1, np.float32), 0.0, len(self.path) == 4, False, info


class Relabelling(VectorWrapper):
    """Somebody's own wrapper, with an array of its own for all steps."""

    def step(self, actions: Any) -> Any:
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        self.seen = vars(self).get("seen", np.zeros(self.num_envs))
        self.seen += rewards
        return obs, rewards, terminations, truncations, {**infos, "seen": self.seen}


def outcomes_and_copies(venv: VecEnv, n_steps: int = 15) -> tuple[list[Any], list[Any]]:
    """Return what the steps gave, as it is in the end and as it was then."""
    kept, then = [venv.reset()], []
    then.append(copy.deepcopy(kept[0]))
    rng = np.random.default_rng(0)
    for _ in range(n_steps):
        kept.append((*venv.step(rng.integers(2, size=venv.num_envs)), venv.reset_infos))
        # Only the containers: looking into lazy infos would make them tell of this very step.
        if not isinstance(kept[-1][3], StepInfos):
            then.append(copy.deepcopy(kept[-1]))
    return kept, then


class TestRowsOf:
    def test_are_those_that_looking_at_each_gives(self) -> None:
        venv = make_vec_env(FLICKERING, 50, seed=0)
        venv.reset()
        n_ended = 0
        for _ in range(30):
            _, _, dones, infos = venv.step(np.ones(50, int))
            ended, others = (flags.nonzero()[0].tolist() for flags in (dones, ~dones))
            rows = rows_of(infos, ended)
            assert all(row is infos[idx] for row, idx in zip(rows, ended, strict=True))
            assert infos._infos is not None, "those of running episodes were built too"
            rows = rows_of(infos, others)
            assert all(row is infos[idx] for row, idx in zip(rows, others, strict=True))
            n_ended += len(ended)
        assert n_ended > 50
        plain = [{"a": 1}, {}, {"b": 2}]
        assert rows_of(plain, [2, 0]) == [{"b": 2}, {"a": 1}]
        assert rows_of(infos, []) == []


class TestInfosOfOthers:
    """What a step told stays what it was, whatever an environment does to its arrays."""

    def test_arrays_filled_anew_do_not_change_what_was_told(self) -> None:
        venv = GymnasiumVecEnv(ThriftyVectorEnv())
        kept, then = outcomes_and_copies(venv)
        assert_same(kept, then)
        obs, _, dones, infos, _ = kept[5]
        assert type(infos) is list
        assert obs[:, 0].tolist() == [0, 1, 2]
        assert [info["state"][0] for info in kept[3][3]] == [30, 40, 50]
        assert [info["terminal_observation"][0] for info in kept[3][3] if "episode" in info] == [5]
        assert kept[3][3][0]["log"] == [0, 1, 2, 3, 4]
        assert dones.tolist() == [True, False, False]

    def test_flags_are_those_of_the_frames_shown(self) -> None:
        venv = GymnasiumVecEnv(ThriftyVectorEnv())
        venv.reset()
        blanked = venv.blanked
        assert blanked is not None
        assert blanked.tolist() == [False, True, False]
        venv.step(np.zeros(3, dtype=np.int64))
        assert blanked.tolist() == [False, True, False]
        assert venv.blanked is not None
        assert venv.blanked.tolist() == [True, False, True]

    def test_objects_that_an_environment_changes_are_those_of_the_step(self) -> None:
        gym.register("Remembering-v0", RememberingEnv, disable_env_checker=True)
        ours, theirs = (
            synchronous("Remembering-v0", 2),
            env_util.make_vec_env("Remembering-v0", 2),
        )
        del gym.registry["Remembering-v0"]
        ours.seed(0)
        (kept, then), (others, _) = (outcomes_and_copies(venv) for venv in (ours, theirs))
        assert_same(kept, then)
        for mine, other in zip(kept[1:], others[1:], strict=True):
            for info, as_sb3 in zip(mine[3], other[3], strict=True):
                if "episode" in info:
                    # SB3 copies infos after the reset, which has emptied the array; Gymnasium
                    # has taken its numbers before.
                    assert info.pop("visits").sum() == 4
                    del as_sb3["visits"]
                assert_same(info, as_sb3)

    def test_what_a_foreign_wrapper_adds_is_that_of_the_step(self) -> None:
        envs = gym.make_vec(FLICKERING, 2, autoreset_mode="SameStep")
        kept, then = outcomes_and_copies(GymnasiumVecEnv(Relabelling(envs)))
        assert_same(kept, then)
        assert [info["seen"] for info in kept[2][3]] == [2.0, 2.0]

    def test_our_wrappers_may_be_looked_at_later_too(self) -> None:
        def make(venv_of: Callable[[str, int], Any]) -> Any:
            envs = thrust_pomdp.wrappers.vector.FlickerObservation(
                venv_of("MaskedFlickeringCartPole-v0", 3).env, 0.4, burst_len=3
            )
            venv = GymnasiumVecEnv(
                thrust_pomdp.wrappers.vector.ElementDropoutObservation(envs, 0.3)
            )
            venv.seed(4)
            return venv

        native, sync = make(make_vec_env), make(synchronous)
        later, _ = outcomes_and_copies(native, 60)
        at_once, _ = outcomes_and_copies(sync, 60)
        assert isinstance(later[1][3], StepInfos)
        for one, other in zip(later[1:], at_once[1:], strict=True):
            assert_same(one[:4], other[:4])

    @pytest.mark.parametrize("what", ["_infos", "step"])
    def test_a_native_vector_that_was_changed_is_no_longer_trusted(
        self, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        cls = FlickeringCartPoleVectorEnv
        envs = gym.make_vec(FLICKERING, 2, autoreset_mode="SameStep")
        assert against_later_infos(envs) is None
        method = getattr(cls, what)
        monkeypatch.setattr(cls, what, lambda self, *args: method(self, *args))
        assert against_later_infos(envs) == f"FlickeringCartPoleVectorEnv.{what} was replaced"
        venv = GymnasiumVecEnv(envs)
        venv.reset()
        assert type(venv.step(np.zeros(2, dtype=np.int64))[3]) is list

    def test_nor_is_a_subclass_of_it(self) -> None:
        class Mine(FlickeringCartPoleVectorEnv):
            pass

        envs = Mine(2, autoreset_mode="SameStep")
        assert against_later_infos(envs) == "Mine is none of the native vectors"

    def test_what_agents_see_is_added_to_plain_lists_too(self) -> None:
        """Of a vector that reuses its arrays, and of one that makes new ones."""

        def run(envs: Any) -> list[Any]:
            venv: VecEnv = thrust_pomdp.VecNormalizeVisible(GymnasiumVecEnv(envs))
            venv = thrust_pomdp.VecPreviousReward(thrust_pomdp.VecPreviousAction(venv))
            return outcomes_and_copies(thrust_pomdp.VecPrivilegedInfo(venv))[0]

        class Fresh(VectorWrapper):
            def step(self, actions: Any) -> Any:
                return copy.deepcopy(self.env.step(actions))

        assert_same(run(ThriftyVectorEnv()), run(Fresh(ThriftyVectorEnv())))

    def test_a_model_learns_the_same_from_a_vector_that_reuses_its_arrays(self) -> None:
        class Fresh(VectorWrapper):
            def step(self, actions: Any) -> Any:
                return copy.deepcopy(self.env.step(actions))

        def train(envs: Any) -> Any:
            model = thrust_pomdp.RecurrentPPO(
                "MlpLstmPolicy", GymnasiumVecEnv(envs), n_steps=16, batch_size=16, seed=0,
                policy_kwargs={"lstm_hidden_size": 8},
            )  # fmt: skip
            return model.learn(96).policy.parameters_to_vector()

        assert np.array_equal(train(ThriftyVectorEnv()), train(Fresh(ThriftyVectorEnv())))


class TestArrays:
    @pytest.mark.parametrize("copies", [True, False])
    def test_can_be_kept_across_steps(self, copies: bool) -> None:
        kwargs = {**SAME_STEP, "copy": copies}
        for env_id in ("Camera-v0", FLICKERING):
            venv = GymnasiumVecEnv(
                gym.make_vec(env_id, 2, vectorization_mode="sync", vector_kwargs=kwargs)
            )
            obs, kept = venv.reset(), []
            for _ in range(12):
                kept.append((obs, copy.deepcopy(obs)))
                actions = np.stack([venv.action_space.sample() for _ in range(2)])
                obs = venv.step(actions)[0]
            for array, as_it_was in kept:
                assert_same(array, as_it_was)

    def test_of_the_native_vector_are_not_copied(self) -> None:
        envs = gym.make_vec(FLICKERING, 2, **{"autoreset_mode": "SameStep"})
        venv, seen = GymnasiumVecEnv(envs), []
        step = envs.step
        envs.step = lambda actions: seen.append(step(actions)) or seen[-1]  # type: ignore[func-returns-value]
        venv.reset()
        obs = venv.step(np.zeros(2, dtype=np.int64))[0]
        assert obs is seen[0][0]


class TestRefusals:
    def test_another_autoreset_mode_is_refused_with_reason_and_remedy(self) -> None:
        for envs in (
            gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"),
            gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"),
            gym.make_vec(FLICKERING, 2),
        ):
            with pytest.raises(ValueError, match=r"in the same step.*NEXT_STEP.*make_vec_env"):
                GymnasiumVecEnv(envs)

    def test_what_is_no_vector_environment_is_refused(self) -> None:
        with pytest.raises(ValueError, match="env must be a gymnasium.vector.VectorEnv, got"):
            GymnasiumVecEnv(gym.make(FLICKERING))  # type: ignore[arg-type]


class TestLookingIntoSingleEnvironments:
    def test_attributes_can_be_read_and_set_for_some(self) -> None:
        for venv in (make_vec_env(FLICKERING, 3), synchronous(FLICKERING, 3)):
            assert venv.get_attr("gravity", indices=[0, 2]) == [9.8, 9.8]
            assert venv.has_attr("gravity")
            assert not venv.has_attr("buoyancy")
            venv.set_attr("mark", 5, indices=1)
            assert venv.get_attr("mark", indices=1) == [5]
            with pytest.raises(AttributeError):
                venv.get_attr("mark", indices=0)
            assert venv.env_method("has_wrapper_attr", "mark") == [False, True, False]
            for force, done in ((False, False), (True, True)):
                said = venv.env_method("set_wrapper_attr", "other", 1, force=force, indices=2)
                assert said == [done]
            assert venv.get_attr("other", indices=2) == [1]

    def test_states_are_those_of_single_environments(self) -> None:
        ours, theirs = (
            make(FLICKERING, 3, seed=1) for make in (make_vec_env, env_util.make_vec_env)
        )
        for venv in (ours, theirs):
            venv.reset()
        assert_same(ours.get_attr("state"), theirs.get_attr("state"))
        assert ours.get_attr("spec")[0].id == theirs.get_attr("spec")[0].id == FLICKERING
        assert ours.get_attr("np_random_seed") == theirs.get_attr("np_random_seed")

    def test_monitor_is_there_and_other_wrappers_only_where_they_are(self) -> None:
        native, sync = make_vec_env(FLICKERING, 2), synchronous(FLICKERING, 2)
        for venv in (native, sync):
            assert venv.env_is_wrapped(Monitor) == [True, True]
            assert venv.env_is_wrapped(Monitor, indices=0) == [True]
        assert native.env_is_wrapped(TimeLimit) == [False, False]
        assert sync.env_is_wrapped(TimeLimit) == [True, True]

    def test_a_vector_without_single_environments_says_so(self) -> None:
        envs = gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
        envs.metadata = {**envs.metadata, **SAME_STEP}
        venv = GymnasiumVecEnv(envs)
        assert venv.get_attr("action_space", indices=1) == [spaces.Discrete(2)]
        assert venv.get_attr("render_mode") == [None, None]
        assert venv.env_is_wrapped(TimeLimit) == [False, False]
        for look in (
            lambda: venv.get_attr("gravity"),
            lambda: venv.set_attr("gravity", 1.0),
            lambda: venv.env_method("render"),
        ):
            with pytest.raises(AttributeError, match="does not give access to single environ"):
                look()

    def test_an_asynchronous_vector_is_asked_over_its_pipes(self) -> None:
        envs = gym.make_vec(
            FLICKERING,
            2,
            vectorization_mode="async",
            vector_kwargs={**SAME_STEP, "context": "spawn"},
        )
        ours, theirs = GymnasiumVecEnv(envs), env_util.make_vec_env(FLICKERING, 2, seed=0)
        ours.seed(0)
        try:
            assert assert_same_run(ours, theirs, n_steps=60) > 2
            assert ours.get_attr("gravity", indices=1) == [9.8]
            ours.set_attr("gravity", 9.0, indices=1)
            assert ours.get_attr("gravity") == [9.8, 9.0]
            assert ours.env_method("has_wrapper_attr", "gravity") == [True, True]
            with pytest.raises(AttributeError):
                ours.env_method("has_wrapper_attr", "gravity", indices=0)
        finally:
            ours.close()


class TestMakeVecEnv:
    def test_takes_the_arguments_of_the_function_it_stands_in_for(self) -> None:
        ours, theirs = (
            inspect.signature(make).parameters for make in (make_vec_env, env_util.make_vec_env)
        )
        assert list(ours)[: len(theirs)] == list(theirs)
        more = list(ours.values())[len(theirs) :]
        assert {parameter.kind for parameter in more} == {inspect.Parameter.KEYWORD_ONLY}
        for name in theirs:
            assert (ours[name].default, ours[name].kind) == (
                theirs[name].default,
                theirs[name].kind,
            )

    def test_is_native_where_that_exists(self) -> None:
        for env_id in (*IDS, f"thrust_pomdp:{FLICKERING}"):
            venv = thrust_pomdp.make_vec_env(env_id, 2)
            assert isinstance(venv, thrust_pomdp.GymnasiumVecEnv)
            assert venv.render_mode == "rgb_array"

    @pytest.mark.parametrize(
        "kwargs",
        [
            {"env_id": "CartPole-v1"},
            {"env_id": "Camera-v0"},
            {"env_id": lambda: gym.make(FLICKERING)},
            {"wrapper_class": gym.wrappers.TimeAwareObservation},
            {"monitor_kwargs": {"allow_early_resets": False}},
            {"vec_env_cls": DummyVecEnv},
            {"env_kwargs": {"disable_env_checker": True}},
            {"env_kwargs": {"render_mode": "human"}},
        ],
    )
    def test_is_stable_baselines3s_elsewhere(self, kwargs: dict[str, Any]) -> None:
        venv = make_vec_env(**{"env_id": FLICKERING, "n_envs": 2, "seed": 0, **kwargs})
        assert type(venv) is DummyVecEnv
        assert venv.num_envs == 2

    def test_writes_monitor_files_where_they_are_asked_for(self, tmp_path: Path) -> None:
        venv = make_vec_env(FLICKERING, 2, monitor_dir=str(tmp_path), start_index=4)
        venv.close()
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "4.monitor.csv",
            "5.monitor.csv",
        ]

    def test_arguments_reach_the_native_environments(self) -> None:
        venv = make_vec_env(FLICKERING, 2, env_kwargs={"flicker_prob": 1.0, "max_episode_steps": 3})
        assert not venv.reset().any()
        for _ in range(3):
            _, _, dones, infos = venv.step(np.zeros(2, dtype=np.int64))
        assert dones.all()
        assert [info["TimeLimit.truncated"] for info in infos] == [True, True]

    def test_bad_arguments_are_told_as_by_stable_baselines3s(self) -> None:
        for make in (make_vec_env, env_util.make_vec_env):
            with pytest.raises(ValueError, match="flicker_prob must be a probability"):
                make(FLICKERING, env_kwargs={"flicker_prob": 2.0})
            with pytest.raises(gym.error.NameNotFound):
                make("NoSuchPole-v0")
            with pytest.raises(TypeError, match="autoreset_mode"):
                make(FLICKERING, env_kwargs={"autoreset_mode": "SameStep"})


class TestWithStableBaselines3:
    def test_training_is_the_same_to_the_last_weight(self) -> None:
        def weights(make: Callable[..., VecEnv]) -> Any:
            env = VecFrameStack(make(FLICKERING, N_ENVS, seed=0), 2)
            model = PPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, seed=0)
            model.learn(300)
            lengths = [episode["l"] for episode in model.ep_info_buffer]
            return [p.tolist() for p in model.policy.parameters()], lengths

        assert weights(make_vec_env) == weights(env_util.make_vec_env)

    def test_evaluation_takes_the_episodes_as_monitored(self) -> None:
        results = []
        for make in (make_vec_env, env_util.make_vec_env):
            env = make(FLICKERING, N_ENVS, seed=0)
            model = PPO("MlpPolicy", env, seed=0)
            results.append(evaluate_policy(model, env, 10, return_episode_rewards=True))
        assert results[0] == results[1]

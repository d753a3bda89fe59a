"""Normalisers whose statistics change between windows only."""

from __future__ import annotations

import io
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

import thrust_pomdp
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible
from thrust_pomdp.vec_env.privileged import VecPrivilegedInfo
from thrust_pomdp.vec_env.states import set_vec_state, vec_state
from thrust_pomdp.vec_env.window_statistics import WindowMoments, end_windows

BOX = spaces.Box(-1000.0, 1000.0, (1,), np.float32)


class Told(gym.Env):
    """Shows written readings; each is (number, blanked); the reward is the number."""

    action_space = spaces.Discrete(2)

    def __init__(self, readings: list[tuple[Any, Any]], space: spaces.Space[Any] = BOX) -> None:
        self.observation_space = space
        self._left = iter(readings)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._next()[:2]

    def step(self, action: Any) -> Any:
        obs, info = self._next()
        return obs, float(obs.flat[0]), False, False, info

    def _next(self) -> tuple[Any, dict[str, Any]]:
        number, blanked = next(self._left)
        told = {"state": np.float32(np.ravel(number)[:1])}
        obs = np.ravel(number).astype(np.float32)
        return obs, told if blanked is None else {**told, "blanked": blanked}


def of_readings(*envs: list[tuple[Any, Any]], **kwargs: Any) -> VecNormalizeVisible:
    """One environment for each list; normalised over windows."""
    space = spaces.Box(-1000.0, 1000.0, np.ravel(envs[0][0][0]).shape, np.float32)
    made = DummyVecEnv([lambda readings=readings: Told(readings, space) for readings in envs])
    return VecNormalizeVisible(made, **{"update": "window", "epsilon": 1e-12, **kwargs})


def played(venv: Any, n_steps: int) -> list[Any]:
    actions = np.zeros(venv.num_envs, dtype=np.int64)
    return [venv.step(actions)[0] for _ in range(n_steps)]


def visible(*numbers: float) -> list[tuple[float, bool]]:
    return [(number, False) for number in numbers]


class TestWindows:
    def test_within_one_statistics_are_those_of_its_start(self):
        venv = of_readings(visible(9, 11, 9, 11, 11), visible(9, 11, 9, 11, 9), clip_obs=100.0)
        # Nothing is known yet: mean 0, variance 1.
        assert venv.reset().ravel().tolist() == [9, 9]
        assert np.ravel(played(venv, 3)).tolist() == [11, 11, 9, 9, 11, 11]
        before = venv.obs_rms.count
        venv.end_window()
        # 8 readings, 9 and 11 in equal shares, beside SB3's 1e-4 readings of 0 and variance 1.
        assert before == 1e-4
        assert venv.obs_rms.count == pytest.approx(8, abs=1e-3)
        assert venv.obs_rms.mean == pytest.approx([10], abs=2e-4)
        assert venv.obs_rms.var == pytest.approx([1], abs=2e-3)
        assert played(venv, 1)[0].ravel() == pytest.approx([1, -1], abs=2e-3)

    def test_blanks_leave_no_trace(self):
        readings = [(9, False), (0, True), (11, False), (0, True)]
        venv = of_readings(readings, [(0, True)] * 4)
        venv.reset()
        played(venv, 3)
        venv.end_window()
        assert venv.obs_rms.count == pytest.approx(2, abs=1e-3)
        assert venv.obs_rms.mean == pytest.approx([10], abs=1e-3)

    def test_a_window_of_blanks_changes_not_one_bit(self):
        venv = of_readings(visible(9, 11) + [(0, True)] * 2)
        venv.reset()
        played(venv, 1)
        venv.end_window()
        before = pickle.dumps(venv.obs_rms)
        played(venv, 2)
        venv.end_window()
        assert pickle.dumps(venv.obs_rms) == before

    def test_components_are_counted_one_by_one(self):
        readings = [
            ((9, 5), np.array([False, True])),
            ((11, 3), np.array([False, False])),
            ((7, 0), np.array([True, True])),
        ]
        venv = of_readings(readings, clip_obs=100.0)
        venv.reset()
        played(venv, 2)
        venv.end_window()
        assert venv.obs_rms.count == pytest.approx([2, 1], abs=1e-3)
        assert venv.obs_rms.mean == pytest.approx([10, 3], abs=1e-3)
        assert venv.obs_rms.var == pytest.approx([1, 0], abs=1e-2)

    def test_rewards_are_scaled_by_the_returns_before_the_window(self):
        venv = of_readings(visible(0, 3, 1, 1), gamma=0.5, norm_obs=False, clip_reward=100.0)
        venv.reset()
        rewards = [venv.step(np.zeros(1, dtype=int))[1].item() for _ in range(2)]
        assert rewards == pytest.approx([3, 1])
        venv.end_window()
        # Returns 3 and 3 / 2 + 1 = 2.5: mean 2.75, variance .0625.
        assert venv.ret_rms.mean == pytest.approx(2.75, abs=1e-3)
        assert venv.ret_rms.var == pytest.approx(0.0625, abs=1e-3)
        reward = venv.step(np.zeros(1, dtype=int))[1].item()
        assert reward == pytest.approx(1 / 0.25, rel=1e-2)

    def test_large_readings_lose_no_digits(self):
        moments = WindowMoments(1, ())
        for number in (1e9 + 1, 1e9 + 3) * 50:
            moments.add(np.array([number]))
        count, mean, squares = moments.arrays()
        assert (count.item(), mean.item(), squares.item() / 100) == (100, 1e9 + 2, 1.0)

    def test_frozen_statistics_stay(self):
        venv = of_readings(visible(9, 11, 9), training=False)
        venv.reset()
        played(venv, 2)
        venv.end_window()
        assert venv.obs_rms.count == venv.ret_rms.count == 1e-4

    def test_one_reading_a_window_is_the_plain_update(self):
        """Of one environment and windows of one step both ways are the same sums."""
        numbers = visible(*np.random.default_rng(0).normal(5, 2, 50))
        one, other = of_readings(numbers), of_readings(numbers, update="step")
        one.reset(), other.reset()
        for _ in range(49):
            one.end_window()
            played(one, 1), played(other, 1)
        one.end_window()
        assert one.obs_rms.mean == pytest.approx(other.obs_rms.mean, rel=1e-12)
        assert one.obs_rms.var == pytest.approx(other.obs_rms.var, rel=1e-12)

    def test_do_not_depend_on_who_steps_whom(self):
        """Four environments in one process, or in two whose arrays are put side by side."""
        rng = np.random.default_rng(0)
        lists = [
            [(number, bool(rng.random() < 0.3)) for number in rng.normal(0, 3, 20)]
            for _ in range(4)
        ]
        whole, halves = of_readings(*lists), [of_readings(*lists[:2]), of_readings(*lists[2:])]
        for venv in (whole, *halves):
            venv.reset()
        for _ in range(3):
            shown = played(whole, 5)
            parts = [played(venv, 5) for venv in halves]
            assert all(map(np.array_equal, shown, map(np.concatenate, zip(*parts, strict=True))))
            whole.end_window()
            # What each would send, before any of them goes on.
            sent: list[list[Any]] = [[], []]
            for venv, told in zip(halves, sent, strict=True):
                moments = [*venv._windows.values(), venv._returns_of_window]
                told.extend([array.copy() for array in one.arrays()] for one in moments)
            for venv in halves:
                merged = iter(
                    [
                        [np.concatenate(pair) for pair in zip(*both, strict=True)]
                        for both in zip(*sent, strict=True)
                    ]
                )
                venv.end_window(lambda _, merged=merged: next(merged))
            for venv in halves:
                for name in ("obs_rms", "ret_rms"):
                    mine, others = getattr(venv, name), getattr(whole, name)
                    for part in ("mean", "var", "count"):
                        assert np.array_equal(getattr(mine, part), getattr(others, part))

    def test_of_dict_observations_are_apart(self):
        space = spaces.Dict({"a": BOX, "b": BOX})

        class Two(gym.Env):
            observation_space, action_space = space, spaces.Discrete(2)

            def reset(self, *, seed: Any = None, options: Any = None) -> Any:
                return {"a": np.float32([4]), "b": np.float32([6])}, {}

            def step(self, action: Any) -> Any:
                return *self.reset()[:1], 0.0, False, False, {"blanked": {"b": True}}

        venv = VecNormalizeVisible(
            DummyVecEnv([Two]), update="window", norm_obs_keys=["a", "b"], clip_obs=100.0
        )
        venv.reset()
        played(venv, 1)
        venv.end_window()
        assert venv.obs_rms["a"].mean == pytest.approx([4], abs=1e-3)
        assert venv.obs_rms["a"].count == pytest.approx(2, abs=1e-3)
        assert venv.obs_rms["b"].count == pytest.approx(1, abs=1e-3)


class TestPrivileged:
    def test_statistics_wait_too(self):
        inside = DummyVecEnv([lambda: Told(visible(9, 11, 9, 11))])
        venv = VecPrivilegedInfo(inside, space=BOX, update="window")
        assert venv.reset()["state"] == pytest.approx(9)
        played(venv, 2)
        assert venv.statistics.count == 1e-4
        end_windows(venv)
        assert venv.statistics.count == pytest.approx(3, abs=1e-3)
        assert venv.statistics.mean == pytest.approx([29 / 3], abs=1e-2)


class TestWhoEndsThem:
    def test_recurrent_ppo_does(self):
        venv = thrust_pomdp.make_vec_env(
            "FlickeringCartPole-v0", 2, seed=0, normalize={"update": "window"}
        )
        counts = []
        model = thrust_pomdp.RecurrentPPO("MlpLstmPolicy", venv, n_steps=16, n_epochs=1, seed=0)

        def look(*_: Any) -> bool:
            counts.append(float(venv.ret_rms.count))
            return True

        model.learn(64, callback=look)
        # Two environments and 16 steps a window.
        assert counts[:16] == [1e-4] * 16
        assert counts[16:] == pytest.approx([32] * 16, abs=1e-3)
        assert venv.ret_rms.count == pytest.approx(64, abs=1e-3)

    def test_the_same_seed_twice_gives_the_same_bits(self):
        def trained() -> tuple[bytes, Any]:
            venv = thrust_pomdp.make_vec_env(
                "FlickeringCartPole-v0", 4, seed=0, normalize={"update": "window"}
            )
            model = thrust_pomdp.RecurrentPPO("MlpLstmPolicy", venv, n_steps=16, n_epochs=1, seed=0)
            model.learn(256)
            return model.policy.action_net.weight.detach().numpy().tobytes(), venv.obs_rms.mean

        (one, mean), (other, others) = trained(), trained()
        assert one == other
        assert np.array_equal(mean, others)

    def test_layers_of_a_program_are_told(self):
        class Mine(VecEnvWrapper):
            ended = 0

            def reset(self) -> Any:
                return self.venv.reset()

            def step_wait(self) -> Any:
                return self.venv.step_wait()

            def end_window(self, gather: Any) -> None:
                self.ended += 1

        mine = Mine(thrust_pomdp.make_vec_env("CartPole-v1", 2))
        thrust_pomdp.RecurrentPPO("MlpLstmPolicy", mine, n_steps=16, n_epochs=1).learn(64)
        assert mine.ended == 2

    def test_who_forgets_is_told(self, monkeypatch):
        monkeypatch.setattr("thrust_pomdp.vec_env.window_statistics._MOST_STEPS", 3)
        venv = of_readings(visible(*range(8)), norm_reward=False)
        venv.reset()
        with pytest.warns(UserWarning, match=r"call end_window\(\) after each rollout"):
            played(venv, 5)


class TestArguments:
    def test_other_ways_are_refused(self):
        with pytest.raises(ValueError, match=r"update must be one of \('step', 'window'\), got 'e"):
            of_readings(visible(0), update="epoch")

    def test_are_in_files(self):
        venv = of_readings(visible(9, 11, 9))
        venv.reset()
        file = io.BytesIO()
        venv.save_safe(file)
        file.seek(0)
        read = VecNormalizeVisible.load_safe(file, DummyVecEnv([lambda: Told(visible(9, 11, 7))]))
        assert read.update == "window"
        read.reset()
        read.end_window()
        assert read.obs_rms.count == pytest.approx(1, abs=1e-3)

    def test_are_in_pickles(self, tmp_path):
        of_readings(visible(9)).save(str(tmp_path / "n.pkl"))
        inside = DummyVecEnv([lambda: Told(visible(9, 11, 7))])
        read = VecNormalizeVisible.load(str(tmp_path / "n.pkl"), inside)
        assert read.update == "window"
        read.reset()
        read.end_window()
        assert read.obs_rms.count == pytest.approx(1, abs=1e-3)

    def test_a_state_in_mid_window_goes_on(self):
        def make() -> Any:
            return thrust_pomdp.make_vec_env(
                "FlickeringCartPole-v0", 3, seed=1, normalize={"update": "window"}
            )

        one, other = make(), make()
        one.reset(), other.reset()
        played(one, 7)
        set_vec_state(other, vec_state(one))
        for venv in (one, other):
            played(venv, 5)
            venv.end_window()
        assert np.array_equal(one.obs_rms.mean, other.obs_rms.mean)
        assert one.obs_rms.count == other.obs_rms.count

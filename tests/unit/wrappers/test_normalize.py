"""NormalizeVisibleObservation: statistics of visible frames, exact zeros for blank ones."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import NormalizeObservation
from gymnasium.wrappers.utils import RunningMeanStd
from helpers import UNTOLD, scripted_frame

import thrust_pomdp  # noqa: F401
from thrust_pomdp.wrappers import NormalizeVisibleObservation

#: Normalised values have no bounds, of which Gymnasium's checker disapproves.
UNBOUNDED = r".*A Box observation space (minimum|maximum) value is -?infinity"

#: (observation, info["blanked"])
Frame = tuple[Any, Any]

NUMBERS = spaces.Box(-200.0, 200.0, (1,), np.float32)
PAIRS = spaces.Box(-200.0, 200.0, (2,), np.float32)
KEYS = spaces.Dict({"camera": PAIRS, "gyro": NUMBERS})


class ScriptedEnv(gym.Env):
    """Plays written frames, from the first again at every reset."""

    def __init__(self, frames: list[Frame], space: spaces.Space = NUMBERS) -> None:
        self.observation_space = space
        self.action_space = spaces.Discrete(2)
        self._frames = frames

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.options = options
        self._left = list(self._frames)
        return self._next()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, info = self._next()
        return obs, 2.5, not self._left, False, info

    def _next(self) -> tuple[Any, dict[str, Any]]:
        return scripted_frame(self.observation_space, self._left.pop(0))


def normalized(
    *frames: Frame, space: spaces.Space = NUMBERS, **options: Any
) -> NormalizeVisibleObservation:
    return NormalizeVisibleObservation(ScriptedEnv(list(frames), space), **options)


def show(env: gym.Env, n_frames: int) -> list[Any]:
    """The observations of one episode's first frames."""
    return [env.reset()[0], *(env.step(0)[0] for _ in range(n_frames - 1))]


def bits(statistics: RunningMeanStd) -> tuple[bytes, bytes, bytes]:
    return tuple(
        np.asarray(x).tobytes() for x in (statistics.mean, statistics.var, statistics.count)
    )


def plain_statistics(*frames: Any) -> RunningMeanStd:
    """Gymnasium's statistics after these frames, one at a time, float32 as the env gives them."""
    statistics = RunningMeanStd(shape=np.shape(frames[0]))
    for frame in frames:
        statistics.update(np.array([frame], np.float32))
    return statistics


class TestNineOrEleven:
    FRAMES = (([9.0], False), ([0.0], True), ([11.0], False), ([0.0], True)) * 1_000

    def test_visible_values_are_centred_and_blanks_are_exactly_zero(self) -> None:
        env = normalized(*self.FRAMES)
        shown = show(env, 4_000)
        assert env.obs_rms.mean[0] == pytest.approx(10.0, abs=1e-4)
        assert env.obs_rms.var[0] == pytest.approx(1.0, abs=1e-4)
        nine, blank, eleven, again = (float(obs[0]) for obs in shown[-4:])
        assert (nine, eleven) == pytest.approx((-1.0, 1.0), abs=2e-3)
        assert (blank, again) == (0.0, 0.0)

    def test_gymnasiums_own_wrapper_takes_the_blanks_for_data(self) -> None:
        env = NormalizeObservation(ScriptedEnv(list(self.FRAMES)))
        shown = show(env, 4_000)
        assert env.obs_rms.mean[0] == pytest.approx(5.0, abs=1e-3)
        assert env.obs_rms.var[0] == pytest.approx(25.5, abs=1e-2)
        last = [float(obs[0]) for obs in shown[-4:]]
        assert last == pytest.approx([0.79, -0.99, 1.19, -0.99], abs=6e-3)


class TestStatistics:
    def test_they_are_those_of_the_visible_frames_alone_bit_for_bit(self) -> None:
        env = normalized(([9.0], False), ([50.0], True), ([4.0], False), ([0.0], False))
        shown = show(env, 4)
        assert bits(env.obs_rms) == bits(plain_statistics([9.0], [4.0], [0.0]))
        assert shown[1].tolist() == [0.0]
        # A true zero is data where the flag says so.
        assert shown[3][0] < -1.0

    def test_a_blank_first_frame_leaves_every_bit(self) -> None:
        env = normalized(([0.0], True), ([1.0], False))
        assert env.reset()[0].tolist() == [0.0]
        assert bits(env.obs_rms) == bits(RunningMeanStd(shape=(1,)))

    FLAGLESS = ([3.0, 0.0], UNTOLD), ([0.0, 0.0], UNTOLD), ([0.0, 5.0], UNTOLD)

    def test_without_a_flag_zeros_are_data(self) -> None:
        env = normalized(*self.FLAGLESS, space=PAIRS)
        shown = show(env, 3)
        assert bits(env.obs_rms) == bits(plain_statistics([3.0, 0.0], [0.0, 0.0], [0.0, 5.0]))
        assert shown[1][0] < -0.5

    def test_without_a_flag_all_zero_frames_are_blank_where_that_is_said(self) -> None:
        env = normalized(*self.FLAGLESS, space=PAIRS, zero_is_blank=True)
        shown = show(env, 3)
        assert bits(env.obs_rms) == bits(plain_statistics([3.0, 0.0], [0.0, 5.0]))
        assert shown[1].tolist() == [0.0, 0.0]
        assert shown[2].all()

    def test_components_are_skipped_and_zeroed_one_by_one(self) -> None:
        flags = [np.array([False, True]), np.array([False, False]), np.array([True, True])]
        frames = [([1.0, 70.0], flags[0]), ([3.0, 7.0], flags[1]), ([9.0, 9.0], flags[2])]
        env = normalized(*frames, space=PAIRS)
        shown = show(env, 3)
        # By hand, with Gymnasium's prior of 1e-4 samples of mean 0.
        assert env.obs_rms.count.tolist() == pytest.approx([2.0001, 1.0001], rel=1e-14)
        assert env.obs_rms.mean.tolist() == pytest.approx([4 / 2.0001, 7 / 1.0001], rel=1e-12)
        assert [(obs == 0).tolist() for obs in shown] == [
            [False, True],
            [False, False],
            [True, True],
        ]

    def test_they_go_on_across_episodes(self) -> None:
        env = normalized(([9.0], False), ([0.0], True))
        for _ in range(3):
            show(env, 2)
        assert bits(env.obs_rms) == bits(plain_statistics([9.0], [9.0], [9.0]))

    def test_frozen_statistics_stay_and_still_normalise(self) -> None:
        env = normalized(([9.0], False), ([0.0], True), ([13.0], False))
        env.obs_rms.mean, env.obs_rms.var = np.array([11.0]), np.array([4.0])
        env.update_running_mean = False
        before = bits(env.obs_rms)
        shown = [obs.item() for obs in show(env, 3)]
        assert shown == pytest.approx([-1.0, 0.0, 1.0], abs=1e-6)
        assert shown[1] == 0.0
        assert bits(env.obs_rms) == before

    def test_freezing_can_be_undone(self) -> None:
        env = normalized(([9.0], False), ([11.0], False))
        assert env.update_running_mean is True
        env.reset()
        env.update_running_mean = False
        env.step(0)
        assert bits(env.obs_rms) == bits(plain_statistics([9.0]))
        env.update_running_mean = True
        env.reset()
        assert bits(env.obs_rms) == bits(plain_statistics([9.0], [9.0]))

    def test_nothing_blanked_is_gymnasiums_wrapper_bit_for_bit(self) -> None:
        ours = NormalizeVisibleObservation(gym.make("FlickeringCartPole-v0", flicker_prob=0.0))
        plain = NormalizeObservation(gym.make("CartPole-v1"))
        # Gymnasium keeps statistics in the observations' precision, which drifts; ours is float64.
        plain.obs_rms = RunningMeanStd(shape=(4,))
        mine, theirs = ours.reset(seed=0)[0], plain.reset(seed=0)[0]
        for step in range(200):
            assert mine.dtype == theirs.dtype == np.float32
            assert mine.tobytes() == theirs.tobytes()
            mine, reward, terminated, _, _ = ours.step(step % 2)
            theirs, *outcome = plain.step(step % 2)
            assert outcome[:2] == [reward, terminated]
            if terminated:
                mine, theirs = ours.reset()[0], plain.reset()[0]
        assert bits(ours.obs_rms) == bits(plain.obs_rms)


class TestPassThrough:
    def test_rewards_ends_infos_and_reset_options_are_the_environments(self) -> None:
        env = normalized(([9.0], False), ([0.0], True))
        _, info = env.reset(seed=1, options={"low": 0})
        assert info == {"blanked": False}
        assert env.unwrapped.options == {"low": 0}
        obs, reward, terminated, truncated, info = env.step(1)
        assert (reward, terminated, truncated, info) == (2.5, True, False, {"blanked": True})
        assert obs.dtype == np.float32

    def test_the_environments_own_array_is_left_as_it_was(self) -> None:
        raw = np.array([3.0], np.float32)
        env = normalized(([3.0], True))
        env.unwrapped._next = lambda: (raw, {"blanked": True})
        obs, _ = env.reset()
        assert obs.tolist() == [0.0]
        assert raw.tolist() == [3.0]
        assert not np.shares_memory(obs, raw)

    def test_blank_frames_never_share_memory(self) -> None:
        first, second = show(normalized(([0.0], True), ([0.0], True)), 2)
        first[:] = 7.0
        assert second.tolist() == [0.0]


class TestDictObservations:
    def test_each_key_is_skipped_and_zeroed_by_its_own_flag(self) -> None:
        env = normalized(
            ({"camera": [1.0, 2.0], "gyro": [50.0]}, {"camera": False, "gyro": True}),
            ({"camera": [0.0, 0.0], "gyro": [0.0]}, {"gyro": False}),
            ({"camera": [70.0, 70.0], "gyro": [4.0]}, {"camera": np.array([True, False])}),
            ({"camera": [80.0, 80.0], "gyro": [8.0]}, True),
            ({"camera": [0.0, 0.0], "gyro": [4.0]}, UNTOLD),
            space=KEYS,
            zero_is_blank=True,
        )
        shown = show(env, 5)
        assert [(obs["camera"] == 0).tolist() for obs in shown] == [
            [False, False],
            [False, False],
            [True, False],
            [True, True],
            [True, True],
        ]
        assert [(obs["gyro"] == 0).tolist() for obs in shown] == [
            [True],
            # The first sample of all is its own mean, a prior of mean 0 included.
            [True],
            [False],
            [True],
            [False],
        ]
        assert env.obs_rms["camera"].count.tolist() == pytest.approx([2.0001, 3.0001], rel=1e-12)
        assert bits(env.obs_rms["gyro"]) == bits(plain_statistics([0.0], [4.0], [4.0]))

    def test_the_space_is_an_unbounded_float_box_for_each_key(self) -> None:
        space = spaces.Dict({"counts": spaces.Box(0, 9, (3,), np.int64), "gyro": NUMBERS})
        env = normalized(({"counts": [1, 2, 3], "gyro": [1.0]}, False), space=space)
        expected = {"counts": (3,), "gyro": (1,)}
        for key, shape in expected.items():
            assert env.observation_space[key] == spaces.Box(-np.inf, np.inf, shape, np.float32)
        assert env.observation_space.contains(env.reset()[0])


class TestIntegerObservations:
    @pytest.mark.parametrize("dtype", [np.uint8, np.int64])
    def test_they_come_out_as_fractions_of_a_float_space(self, dtype: Any) -> None:
        frames = [([9], False), ([11], False), ([0], True), ([10], False)]
        env = normalized(*frames, space=spaces.Box(0, 20, (1,), dtype))
        shown = show(env, 4)
        assert env.observation_space.dtype == np.float32
        assert all(env.observation_space.contains(obs) for obs in shown)
        # Before the last frame mean and variance are 10 and 1, after it 10 and 2/3.
        assert shown[1][0] == pytest.approx(1.0, abs=1e-2)
        assert env.obs_rms.mean[0] == pytest.approx(10.0, abs=1e-2)
        assert env.obs_rms.var[0] == pytest.approx(2 / 3, abs=1e-2)


class TestSpecThroughJson:
    def test_the_wrapper_and_its_arguments_survive(self) -> None:
        env = NormalizeVisibleObservation(
            gym.make("BurstFlickeringCartPole-v0", flicker_prob=0.3, burst_len=6), epsilon=1e-3
        )
        spec = EnvSpec.from_json(env.spec.to_json())
        again = gym.make(spec)
        assert isinstance(again, NormalizeVisibleObservation)
        assert again.epsilon == 1e-3
        assert again.spec.kwargs == {"flicker_prob": 0.3, "burst_len": 6}
        mine, theirs = env.reset(seed=4)[0], again.reset(seed=4)[0]
        for step in range(20):
            assert mine.tobytes() == theirs.tobytes()
            mine, theirs = env.step(step % 2)[0], again.step(step % 2)[0]
        assert env.obs_rms.count == again.obs_rms.count > 5

    def test_gymnasiums_vector_environments_take_it(self) -> None:
        envs = gym.make_vec(
            "FlickeringCartPole-v0",
            num_envs=2,
            vectorization_mode="sync",
            wrappers=[NormalizeVisibleObservation],
        )
        obs, infos = envs.reset(seed=0)
        for _ in range(20):
            assert (~obs.any(axis=1)).tolist() == infos["blanked"].tolist()
            obs, _, _, _, infos = envs.step(np.array([0, 1]))


class TestConformance:
    def test_gymnasiums_checker_passes(self) -> None:
        # The checker compares a seeded reset's observations, which statistics make depend on the
        # past (Gymnasium's own wrapper fails there too): they are frozen for it.
        env = NormalizeVisibleObservation(gym.make("MaskedFlickeringCartPole-v0"))
        env.update_running_mean = False
        with warnings.catch_warnings():
            for message in (UNBOUNDED, r".*is different from the unwrapped version"):
                warnings.filterwarnings("ignore", message=message, category=UserWarning)
            check_env(env, skip_render_check=True)


class TestBadArguments:
    @pytest.mark.parametrize("epsilon", [0.0, -1e-8, float("nan")])
    def test_an_epsilon_that_is_not_positive_is_refused(self, epsilon: float) -> None:
        with pytest.raises(ValueError, match="epsilon must be (positive|finite), got") as caught:
            NormalizeVisibleObservation(ScriptedEnv([]), epsilon=epsilon)
        assert repr(epsilon) in str(caught.value)

    @pytest.mark.parametrize(
        "space",
        [
            spaces.Discrete(3),
            spaces.Tuple((PAIRS, NUMBERS)),
            spaces.MultiBinary(2),
            spaces.Dict({"camera": PAIRS, "mission": spaces.Discrete(5)}),
            spaces.Dict({"nested": spaces.Dict({"camera": PAIRS})}),
        ],
    )
    def test_a_space_without_numbers_to_normalise_is_refused(self, space: spaces.Space) -> None:
        with pytest.raises(ValueError, match="env must have a Box observation space"):
            NormalizeVisibleObservation(ScriptedEnv([], space))

    @pytest.mark.parametrize("flag", [{"camera": True}, [True, False, True], "blank"])
    def test_a_flag_that_fits_no_frame_is_refused(self, flag: Any) -> None:
        with pytest.raises(ValueError, match=r'info\["blanked"\] must be'):
            normalized(([1.0, 2.0], flag), space=PAIRS).reset()

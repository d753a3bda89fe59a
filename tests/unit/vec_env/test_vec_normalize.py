"""VecNormalizeVisible: SB3's VecNormalize on what is visible, exact zeros for what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from helpers import UNTOLD, scripted_frame
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import CallbackList, CheckpointCallback, EvalCallback
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecMonitor,
    VecNormalize,
    sync_envs_normalization,
)

import thrust_pomdp  # noqa: F401
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible

#: (observation, info["blanked"])
Frame = tuple[Any, Any]

NUMBERS = spaces.Box(-200.0, 200.0, (1,), np.float32)
PAIRS = spaces.Box(-200.0, 200.0, (2,), np.float32)
KEYS = spaces.Dict({"camera": PAIRS, "gyro": NUMBERS})


class ScriptedEnv(gym.Env):
    """Plays written episodes over and over; the last frame of each terminates it."""

    def __init__(self, *episodes: list[Frame], space: spaces.Space = NUMBERS) -> None:
        self.observation_space = space
        self.action_space = spaces.Discrete(2)
        self._episodes = self._forever(episodes)

    @staticmethod
    def _forever(episodes: tuple[list[Frame], ...]) -> Iterator[list[Frame]]:
        while True:
            yield from episodes

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._left = list(next(self._episodes))
        return self._next()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, info = self._next()
        return obs, 1.0, not self._left, False, info

    def _next(self) -> tuple[Any, dict[str, Any]]:
        return scripted_frame(self.observation_space, self._left.pop(0))


def play(*scripts: list[list[Frame]], space: spaces.Space = NUMBERS) -> DummyVecEnv:
    """One scripted env per script; a script is a list of episodes."""
    return DummyVecEnv(
        [lambda script=script: ScriptedEnv(*script, space=space) for script in scripts]
    )


def step(env: VecEnv) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
    return env.step(np.zeros(env.num_envs, int))


def bits(statistics: RunningMeanStd) -> tuple[bytes, bytes, bytes]:
    return tuple(
        np.asarray(x).tobytes() for x in (statistics.mean, statistics.var, statistics.count)
    )


def plain_statistics(*batches: Any, shape: tuple[int, ...] = (1,)) -> RunningMeanStd:
    """SB3's statistics after these batches, float32 as a VecEnv gives them."""
    statistics = RunningMeanStd(shape=shape)
    for batch in batches:
        statistics.update(np.array(batch, np.float32))
    return statistics


def scaled(value: Any, statistics: RunningMeanStd) -> np.ndarray:
    """Normalise by hand, with SB3's default epsilon and clip."""
    raw = np.asarray(value, np.float32)
    shown = (raw - statistics.mean) / np.sqrt(statistics.var + 1e-8)
    return np.clip(shown, -10.0, 10.0).astype(np.float32)


def settled(normalizer: type[VecNormalize]) -> VecNormalize:
    """FACTS section 4: visible values 9 or 11, half of the frames blank."""
    values = [([9.0], False), ([0.0], True), ([11.0], False), ([0.0], True)] * 600
    env = normalizer(play([values], [values[1:] + values[:1]]))
    env.reset()
    for _ in range(1_999):
        step(env)
    return env


class TestNineOrEleven:
    def test_visible_values_are_centred_and_blanks_are_exactly_zero(self) -> None:
        env = settled(VecNormalizeVisible)
        assert env.obs_rms.mean[0] == pytest.approx(10.0, abs=1e-4)
        assert env.obs_rms.var[0] == pytest.approx(1.0, abs=1e-4)
        env.training = False
        by_raw = {}
        for _ in range(4):
            obs = step(env)[0]
            for raw, shown in zip(env.get_original_obs(), obs, strict=True):
                by_raw[float(raw[0])] = float(shown[0])
        assert by_raw[0.0] == 0.0
        assert by_raw[9.0] == pytest.approx(-1.0, abs=1e-4)
        assert by_raw[11.0] == pytest.approx(1.0, abs=1e-4)

    def test_plain_vec_normalize_takes_the_blanks_for_data(self) -> None:
        # The contrast: it is the task that is hard here, not the test that is easy.
        env = settled(VecNormalize)
        assert env.obs_rms.mean[0] == pytest.approx(5.0, abs=1e-3)
        assert env.obs_rms.var[0] == pytest.approx(25.5, abs=1e-2)
        shown = env.normalize_obs(np.array([[11.0], [9.0], [0.0]]))
        assert shown[:, 0].tolist() == pytest.approx([1.19, 0.79, -0.99], abs=5e-3)


class TestStatistics:
    def test_they_are_those_of_the_visible_frames_alone_bit_for_bit(self) -> None:
        env = VecNormalizeVisible(
            play(
                [[([9.0], False), ([0.0], True), ([4.0], False)]],
                [[([11.0], False), ([7.0], False), ([0.0], True)]],
                [[([0.0], True), ([8.0], False), ([0.0], True)]],
            )
        )
        env.reset()
        assert bits(env.obs_rms) == bits(plain_statistics([[9.0], [11.0]]))
        step(env)
        assert bits(env.obs_rms) == bits(plain_statistics([[9.0], [11.0]], [[7.0], [8.0]]))

    def test_a_step_on_which_every_env_is_blank_leaves_every_bit(self) -> None:
        episode = [([9.0], False), ([0.0], True), ([0.0], True), ([11.0], False)]
        env = VecNormalizeVisible(play([episode], [episode]))
        env.reset()
        before = bits(env.obs_rms)
        for _ in range(2):
            obs, *_ = step(env)
            assert obs.tolist() == [[0.0], [0.0]]
            assert bits(env.obs_rms) == before
        obs, *_ = step(env)
        assert bits(env.obs_rms) != before
        assert np.isfinite(env.obs_rms.mean).all()
        assert np.isfinite(obs).all()

    def test_an_all_blank_reset_leaves_every_bit(self) -> None:
        env = VecNormalizeVisible(play([[([0.0], True), ([1.0], False)]]))
        assert env.reset().tolist() == [[0.0]]
        assert bits(env.obs_rms) == bits(RunningMeanStd(shape=(1,)))

    def test_whatever_a_blanked_frame_holds_is_shown_as_zero_and_never_counted(self) -> None:
        for junk in (77.0, np.nan, np.inf):
            env = VecNormalizeVisible(play([[([junk], True)] * 3], [[([5.0], False)] * 3]))
            obs = env.reset()
            assert obs[0, 0] == 0.0
            assert bits(env.obs_rms) == bits(plain_statistics([[5.0]]))

    def test_frozen_statistics_stay_and_still_normalise(self) -> None:
        env = VecNormalizeVisible(play([[([9.0], False), ([0.0], True), ([13.0], False)]] * 2))
        env.obs_rms.mean, env.obs_rms.var = np.array([11.0]), np.array([4.0])
        env.training = False
        before, rewards_before = bits(env.obs_rms), bits(env.ret_rms)
        shown = [env.reset(), step(env)[0], step(env)[3][0]["terminal_observation"][None]]
        assert [x.item() for x in shown] == pytest.approx([-1.0, 0.0, 1.0], abs=1e-6)
        assert shown[1].item() == 0.0
        assert bits(env.obs_rms) == before
        assert bits(env.ret_rms) == rewards_before


class TestWhoDecides:
    """The flag does; without one, exact zeros do."""

    def test_a_true_zero_whose_flag_says_visible_is_data(self) -> None:
        env = VecNormalizeVisible(play([[([0.0], False)] * 2], [[([4.0], False)] * 2]))
        obs = env.reset()
        expected = plain_statistics([[0.0], [4.0]])
        assert bits(env.obs_rms) == bits(expected)
        assert obs[0, 0] == scaled(0.0, expected)
        assert obs[0, 0] == pytest.approx(-1.0, abs=1e-3)

    FLAGLESS = [[([0.0, 0.0], UNTOLD)] * 2], [[([0.0, 3.0], UNTOLD)] * 2]

    def test_without_a_flag_zeros_are_data(self) -> None:
        env = VecNormalizeVisible(play(*self.FLAGLESS, space=PAIRS))
        obs = env.reset()
        expected = plain_statistics([[0.0, 0.0], [0.0, 3.0]], shape=(2,))
        assert bits(env.obs_rms) == bits(expected)
        assert obs[0].tolist() == scaled([0.0, 0.0], expected).tolist()

    def test_without_a_flag_an_all_zero_frame_is_blank_where_that_is_said(self) -> None:
        env = VecNormalizeVisible(play(*self.FLAGLESS, space=PAIRS), zero_is_blank=True)
        obs = env.reset()
        expected = plain_statistics([[0.0, 3.0]], shape=(2,))
        assert bits(env.obs_rms) == bits(expected)
        assert obs[0].tolist() == [0.0, 0.0]
        assert obs[1].tolist() == scaled([0.0, 3.0], expected).tolist()

    @pytest.mark.parametrize("zero_is_blank", [False, True])
    def test_one_env_may_tell_while_another_does_not(self, zero_is_blank: bool) -> None:
        scripts = [[[([value], flag)] * 2] for value, flag in (
            (0.0, False), (7.0, True), (0.0, UNTOLD), (4.0, UNTOLD),
        )]  # fmt: skip
        env = VecNormalizeVisible(play(*scripts), zero_is_blank=zero_is_blank)
        obs = env.reset()
        expected = plain_statistics([[0.0], [4.0]] if zero_is_blank else [[0.0], [0.0], [4.0]])
        assert bits(env.obs_rms) == bits(expected)
        assert (obs[:, 0] == 0.0).tolist() == [False, True, zero_is_blank, False]

    @pytest.mark.parametrize("flag", [{"camera": True}, [True, False, True], "blank"])
    def test_a_flag_that_fits_no_frame_is_refused(self, flag: Any) -> None:
        env = VecNormalizeVisible(play([[([1.0, 2.0], flag)] * 2], space=PAIRS))
        with pytest.raises(ValueError, match=r'info\["blanked"\] must be'):
            env.reset()


class TestAutoReset:
    """``infos`` tells of the final frame, the innermost VecEnv's ``reset_infos`` of the first."""

    WRAPPINGS: tuple[Callable[[VecEnv], VecEnv], ...] = (lambda venv: venv, VecMonitor)

    @pytest.fixture(params=WRAPPINGS, ids=["directly", "through-VecMonitor"])
    def wrap(self, request: pytest.FixtureRequest) -> Callable[[VecEnv], VecEnv]:
        # VecMonitor has a reset_infos of its own that nobody ever fills.
        return request.param

    def test_a_visible_first_frame_after_a_blank_final_one_is_data(
        self, wrap: Callable[[VecEnv], VecEnv]
    ) -> None:
        episodes = [[([9.0], False), ([0.0], True)], [([0.0], False), ([1.0], False)]]
        env = VecNormalizeVisible(wrap(play(episodes)))
        env.reset()
        obs, _, dones, infos = step(env)
        assert dones.all()
        assert infos[0]["blanked"] is True
        # A true zero: taken for blank by whoever reads the stale copy, or the final frame's flag.
        expected = plain_statistics([[9.0]], [[0.0]])
        assert bits(env.obs_rms) == bits(expected)
        assert obs[0, 0] == scaled(0.0, expected)
        assert infos[0]["terminal_observation"].tolist() == [0.0]

    def test_a_blank_first_frame_after_a_visible_final_one_is_zero(
        self, wrap: Callable[[VecEnv], VecEnv]
    ) -> None:
        # The blank holds junk, so that only its flag can tell.
        episodes = [[([9.0], False), ([0.0], False)], [([50.0], True), ([1.0], False)]]
        env = VecNormalizeVisible(wrap(play(episodes)))
        env.reset()
        obs, _, dones, infos = step(env)
        assert dones.all()
        assert obs.tolist() == [[0.0]]
        expected = plain_statistics([[9.0]])
        assert bits(env.obs_rms) == bits(expected)
        # The final frame is a true zero that its own flag calls visible.
        assert infos[0]["terminal_observation"].tolist() == scaled([0.0], expected).tolist()
        assert infos[0]["terminal_observation"][0] < -1.0

    def test_only_the_env_that_ended_reads_its_reset_info(
        self, wrap: Callable[[VecEnv], VecEnv]
    ) -> None:
        env = VecNormalizeVisible(
            wrap(
                play(
                    [[([1.0], False), ([2.0], False)], [([3.0], False), ([4.0], False)]],
                    [[([5.0], True), ([6.0], False), ([7.0], False), ([8.0], False)]],
                )
            )
        )
        assert env.reset()[1, 0] == 0.0
        obs, _, dones, _ = step(env)
        assert dones.tolist() == [True, False]
        # The second env's reset_infos still says blank: that was its first frame.
        assert bits(env.obs_rms) == bits(plain_statistics([[1.0]], [[3.0], [6.0]]))
        assert obs[1, 0] != 0.0

    def test_the_first_frame_of_a_reset_reads_reset_infos_too(
        self, wrap: Callable[[VecEnv], VecEnv]
    ) -> None:
        env = VecNormalizeVisible(wrap(play([[([0.0], False)] * 2], [[([50.0], True)] * 2])))
        obs = env.reset()
        assert bits(env.obs_rms) == bits(plain_statistics([[0.0]]))
        assert obs[1, 0] == 0.0

    def test_final_frames_never_enter_the_statistics(
        self, wrap: Callable[[VecEnv], VecEnv]
    ) -> None:
        env = VecNormalizeVisible(wrap(play([[([9.0], False), ([100.0], False)]])))
        env.reset()
        step(env)
        assert bits(env.obs_rms) == bits(plain_statistics([[9.0]], [[9.0]]))


class TestSameAsVecNormalize:
    """With nothing blanked every number is SB3's, bit for bit."""

    @staticmethod
    def compare(make: Callable[[], VecEnv], n_steps: int = 300, **kwargs: Any) -> int:
        ours, plain = VecNormalizeVisible(make(), **kwargs), VecNormalize(make(), **kwargs)
        ours.seed(3)
        plain.seed(3)
        assert ours.reset().tobytes() == plain.reset().tobytes()
        generator = np.random.default_rng(0)
        n_ended = 0
        for count in range(n_steps):
            if count == n_steps // 2:
                # In the middle of episodes, whose returns must not run on.
                assert ours.reset().tobytes() == plain.reset().tobytes()
            actions = generator.integers(2, size=ours.num_envs)
            mine, theirs = ours.step(actions), plain.step(actions)
            for one, other in zip(mine[:3], theirs[:3], strict=True):
                assert one.dtype == other.dtype
                assert one.tobytes() == other.tobytes()
            for one, other in zip(mine[3], theirs[3], strict=True):
                assert ("terminal_observation" in one) == ("terminal_observation" in other)
                if "terminal_observation" in one:
                    n_ended += 1
                    final = one["terminal_observation"], other["terminal_observation"]
                    assert final[0].dtype == final[1].dtype
                    assert final[0].tobytes() == final[1].tobytes()
            assert ours.get_original_obs().tobytes() == plain.get_original_obs().tobytes()
            assert ours.get_original_reward().tobytes() == plain.get_original_reward().tobytes()
        for name in ("obs_rms", "ret_rms"):
            if hasattr(plain, name):
                assert bits(getattr(ours, name)) == bits(getattr(plain, name))
        assert ours.returns.tobytes() == plain.returns.tobytes()
        return n_ended

    @staticmethod
    def cartpoles(flicker_prob: float) -> VecEnv:
        maker = lambda: gym.make("FlickeringCartPole-v0", flicker_prob=flicker_prob)  # noqa: E731
        return DummyVecEnv([maker] * 3)

    @pytest.mark.parametrize(
        "kwargs",
        [
            {},
            {"training": False},
            {"norm_reward": False, "clip_obs": 0.5},
            {"norm_obs": False},
            {"gamma": 0.5, "epsilon": 1e-2, "clip_reward": 0.1},
        ],
    )
    def test_observations_statistics_rewards_and_final_frames(self, kwargs: dict[str, Any]) -> None:
        assert self.compare(lambda: self.cartpoles(0.0), **kwargs) > 10

    def test_environments_that_tell_nothing(self) -> None:
        make = lambda: DummyVecEnv([lambda: gym.make("CartPole-v1")] * 3)  # noqa: E731
        assert self.compare(make) > 10

    def test_rewards_are_sb3s_whatever_is_blanked(self) -> None:
        ours = VecNormalizeVisible(self.cartpoles(0.5))
        plain = VecNormalize(self.cartpoles(0.5))
        for env in (ours, plain):
            env.seed(3)
            env.reset()
        for _ in range(100):
            assert step(ours)[1].tobytes() == step(plain)[1].tobytes()
        assert bits(ours.ret_rms) == bits(plain.ret_rms)
        assert bits(ours.obs_rms) != bits(plain.obs_rms)

    def test_normalize_and_unnormalize_of_given_observations(self) -> None:
        ours, plain = VecNormalizeVisible(self.cartpoles(0.0)), VecNormalize(self.cartpoles(0.0))
        for env in (ours, plain):
            env.seed(0)
            env.reset()
            step(env)
        raw = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
        for one in (raw, raw[0]):
            mine, theirs = ours.normalize_obs(one), plain.normalize_obs(one)
            assert (mine.dtype, mine.tobytes()) == (theirs.dtype, theirs.tobytes())
            mine, theirs = ours.unnormalize_obs(mine), plain.unnormalize_obs(theirs)
            assert (mine.dtype, mine.tobytes()) == (theirs.dtype, theirs.tobytes())

    def test_dict_observations(self) -> None:
        generator = np.random.default_rng(1)
        episode = [
            ({"camera": generator.normal(size=2), "gyro": generator.normal(size=1)}, False)
            for _ in range(7)
        ]
        ours = VecNormalizeVisible(play([episode], [episode[::-1]], space=KEYS))
        plain = VecNormalize(play([episode], [episode[::-1]], space=KEYS))
        seen = [(ours.reset(), plain.reset())]
        for _ in range(20):
            mine, theirs = step(ours), step(plain)
            seen.append((mine[0], theirs[0]))
            if mine[2][0]:
                final = "terminal_observation"
                seen.append((mine[3][0][final], theirs[3][0][final]))
        assert len(seen) > 21
        for mine, theirs in seen:
            assert list(mine) == list(theirs)
            for key in mine:
                assert mine[key].dtype == theirs[key].dtype
                assert mine[key].tobytes() == theirs[key].tobytes()
        for key in ("camera", "gyro"):
            assert bits(ours.obs_rms[key]) == bits(plain.obs_rms[key])


class PassThrough(VecEnvWrapper):
    """Stands between: its own ``reset_infos`` are stale, and it has no array of flags."""

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


class TestNativeVectorEnvironments:
    """The normaliser reads their flags as arrays; what comes out is the same, bit for bit."""

    @pytest.mark.parametrize("wrap", [lambda venv: venv, PassThrough], ids=["directly", "wrapped"])
    @pytest.mark.parametrize("env_id", ["FlickeringCartPole-v0", "BurstFlickeringCartPole-v0"])
    def test_they_equal_single_environments_side_by_side(
        self, env_id: str, wrap: Callable[[VecEnv], VecEnv]
    ) -> None:
        twins = gym.make_vec(
            env_id,
            num_envs=3,
            vectorization_mode="vector_entry_point",
            autoreset_mode="SameStep",
        )
        native = VecNormalizeVisible(wrap(GymnasiumVecEnv(twins)))
        single = VecNormalizeVisible(wrap(DummyVecEnv([lambda: gym.make(env_id)] * 3)))
        for env in (native, single):
            env.seed(5)
        assert native.reset().tobytes() == single.reset().tobytes()
        n_blank_ends = n_ended = 0
        generator = np.random.default_rng(0)
        for _ in range(200):
            actions = generator.integers(2, size=3)
            mine, theirs = native.step(actions), single.step(actions)
            for one, other in zip(mine[:3], theirs[:3], strict=True):
                assert one.tobytes() == other.tobytes()
            for idx in np.flatnonzero(theirs[2]):
                finals = [infos[idx]["terminal_observation"] for infos in (mine[3], theirs[3])]
                assert finals[0].tobytes() == finals[1].tobytes()
                n_ended += 1
                n_blank_ends += not finals[1].any()
        assert 0 < n_blank_ends < n_ended
        assert bits(native.obs_rms) == bits(single.obs_rms)
        assert bits(native.ret_rms) == bits(single.ret_rms)


class TestDictObservations:
    @staticmethod
    def frame(camera: list[float], gyro: float, flag: Any) -> Frame:
        return {"camera": camera, "gyro": [gyro]}, flag

    def test_each_key_is_skipped_and_zeroed_by_its_own_flag(self) -> None:
        env = VecNormalizeVisible(
            play(
                [[self.frame([1.0, 2.0], 50.0, {"camera": False, "gyro": True})] * 2],
                [[self.frame([3.0, 6.0], 0.0, {"gyro": False})] * 2],
                [[self.frame([70.0, 70.0], 4.0, {"camera": True, "gyro": False})] * 2],
                space=KEYS,
            )
        )
        obs = env.reset()
        camera = plain_statistics([[1.0, 2.0], [3.0, 6.0]], shape=(2,))
        gyro = plain_statistics([[0.0], [4.0]])
        assert bits(env.obs_rms["camera"]) == bits(camera)
        assert bits(env.obs_rms["gyro"]) == bits(gyro)
        expected = scaled([[1.0, 2.0], [3.0, 6.0]], camera).tolist()
        assert obs["camera"].tolist() == [*expected, [0.0, 0.0]]
        assert obs["gyro"].tolist() == [[0.0], *scaled([[0.0], [4.0]], gyro).tolist()]

    def test_one_bool_blanks_every_key(self) -> None:
        env = VecNormalizeVisible(
            play(
                [[self.frame([1.0, 2.0], 3.0, False)] * 2],
                [[self.frame([8.0, 9.0], 7.0, True)] * 2],
                space=KEYS,
            )
        )
        obs = env.reset()
        assert bits(env.obs_rms["camera"]) == bits(plain_statistics([[1.0, 2.0]], shape=(2,)))
        assert bits(env.obs_rms["gyro"]) == bits(plain_statistics([[3.0]]))
        assert obs["camera"][1].tolist() == [0.0, 0.0]
        assert obs["gyro"][1].tolist() == [0.0]

    def test_without_flags_each_key_that_is_all_zero_is_blank_where_that_is_said(self) -> None:
        env = VecNormalizeVisible(
            play(
                [[self.frame([0.0, 0.0], 3.0, UNTOLD)] * 2],
                [[self.frame([0.0, 1.0], 0.0, UNTOLD)] * 2],
                space=KEYS,
            ),
            zero_is_blank=True,
        )
        env.reset()
        assert bits(env.obs_rms["camera"]) == bits(plain_statistics([[0.0, 1.0]], shape=(2,)))
        assert bits(env.obs_rms["gyro"]) == bits(plain_statistics([[3.0]]))

    def test_a_key_may_flag_its_components(self) -> None:
        flag = {"camera": np.array([True, False]), "gyro": False}
        env = VecNormalizeVisible(play([[self.frame([40.0, 5.0], 6.0, flag)] * 2], space=KEYS))
        obs = env.reset()
        assert env.obs_rms["camera"].count.tolist() == [1e-4, 1e-4 + 1]
        assert env.obs_rms["camera"].mean[0] == 0.0
        assert obs["camera"][0, 0] == 0.0
        assert obs["camera"][0, 1] != 0.0

    def test_reset_and_final_frames_use_their_own_flags(self) -> None:
        first = [
            self.frame([1.0, 1.0], 1.0, False),
            self.frame([2.0, 2.0], 0.0, {"camera": True, "gyro": False}),
        ]
        second = [self.frame([3.0, 5.0], 9.0, {"camera": False, "gyro": True})] * 2
        env = VecNormalizeVisible(VecMonitor(play([first, second], space=KEYS)))
        env.reset()
        obs, _, _, infos = step(env)
        camera = plain_statistics([[1.0, 1.0]], [[3.0, 5.0]], shape=(2,))
        gyro = plain_statistics([[1.0]])
        assert bits(env.obs_rms["camera"]) == bits(camera)
        assert bits(env.obs_rms["gyro"]) == bits(gyro)
        assert obs["gyro"].tolist() == [[0.0]]
        final = infos[0]["terminal_observation"]
        assert final["camera"].tolist() == [0.0, 0.0]
        assert final["gyro"].tolist() == scaled([0.0], gyro).tolist()
        assert final["gyro"][0] != 0.0

    def test_keys_left_out_pass_through_as_they_are(self) -> None:
        space = spaces.Dict({"camera": PAIRS, "mission": spaces.Discrete(5)})
        frames = [({"camera": [1.0, 2.0], "mission": 3}, False)] * 2
        env = VecNormalizeVisible(play([frames], space=space), norm_obs_keys=["camera"])
        obs = env.reset()
        assert list(env.obs_rms) == ["camera"]
        assert obs["mission"].tolist() == [3]
        final = step(env)[3][0]["terminal_observation"]
        assert final["mission"] == 3
        assert final["camera"].dtype == np.float32
        assert env.observation_space["mission"] == spaces.Discrete(5)

    def test_the_raw_observation_is_left_as_it_was(self) -> None:
        env = VecNormalizeVisible(play([[self.frame([1.0, 2.0], 3.0, True)] * 2], space=KEYS))
        env.reset()
        raw = env.get_original_obs()
        assert raw["camera"].tolist() == [[1.0, 2.0]]
        assert raw["gyro"].tolist() == [[3.0]]


class TestComponentFlags:
    def test_exactly_the_flagged_entries_are_skipped_and_zeroed(self) -> None:
        # By hand, with the prior of 1e-4 samples of mean 0: component 0 sees 1 and 3, component 1
        # sees 7 only.
        env = VecNormalizeVisible(
            play(
                [[([1.0, 55.0], np.array([False, True]))] * 2],
                [[([3.0, 7.0], np.array([False, False]))] * 2],
                space=PAIRS,
            )
        )
        obs = env.reset()
        statistics = env.obs_rms
        assert statistics.count.tolist() == pytest.approx([2.0001, 1.0001], rel=1e-14)
        assert statistics.mean.tolist() == pytest.approx([4 / 2.0001, 7 / 1.0001], rel=1e-14)
        spread = [(1e-4 + 2 + 4 * 2e-4 / 2.0001) / 2.0001, (1e-4 + 49e-4 / 1.0001) / 1.0001]
        assert statistics.var.tolist() == pytest.approx(spread, rel=1e-12)
        assert obs[0, 1] == 0.0
        assert obs[[0, 1, 1], [0, 0, 1]].all()
        assert obs[0, 0] == scaled([1.0, 0.0], statistics)[0]
        assert obs[1].tolist() == scaled([3.0, 7.0], statistics).tolist()

    def test_they_mix_with_whole_frame_flags_over_time_and_envs(self) -> None:
        frames = [
            [([1.0, 2.0], np.array([True, False])), ([3.0, 4.0], False), ([9.0, 9.0], True)],
            [([5.0, 6.0], True), ([7.0, 8.0], np.array([False, True])), ([9.0, 9.0], True)],
        ]
        env = VecNormalizeVisible(
            play(*[[[*script, script[-1]]] for script in frames], space=PAIRS)
        )
        shown = [env.reset(), step(env)[0]]
        # Component 0 saw 3 and 7, component 1 saw 2 and 4.
        assert env.obs_rms.count.tolist() == pytest.approx([2.0001, 2.0001], rel=1e-12)
        assert env.obs_rms.mean.tolist() == pytest.approx([10 / 2.0001, 6 / 2.0001], rel=1e-12)
        assert (shown[0] == 0).tolist() == [[True, False], [True, True]]
        assert (shown[1] == 0).tolist() == [[False, False], [False, True]]
        before = bits(env.obs_rms)
        assert not step(env)[0].any()
        assert bits(env.obs_rms) == before

    def test_nothing_flagged_is_sb3s_vec_normalize_bit_for_bit(self) -> None:
        generator = np.random.default_rng(2)
        clear = np.zeros(2, bool)
        scripts = [[[(generator.normal(size=2), clear) for _ in range(9)]] for _ in range(3)]
        ours = VecNormalizeVisible(play(*scripts, space=PAIRS))
        plain = VecNormalize(play(*scripts, space=PAIRS))
        assert ours.reset().tobytes() == plain.reset().tobytes()
        for _ in range(30):
            assert step(ours)[0].tobytes() == step(plain)[0].tobytes()
        assert bits(ours.obs_rms) == bits(plain.obs_rms)

    def test_final_and_reset_frames_use_their_own_component_flags(self) -> None:
        episodes = [
            [([1.0, 1.0], False), ([2.0, 0.0], np.array([True, False]))],
            [([3.0, 4.0], np.array([False, True]))] * 2,
        ]
        env = VecNormalizeVisible(play(episodes, space=PAIRS))
        env.reset()
        obs, _, _, infos = step(env)
        final = infos[0]["terminal_observation"]
        assert (obs[0] == 0).tolist() == [False, True]
        assert (final == 0).tolist() == [True, False]


class TestGivenObservations:
    """``normalize_obs`` and ``unnormalize_obs``, which never touch the statistics."""

    @pytest.fixture
    def env(self) -> VecNormalizeVisible:
        env = VecNormalizeVisible(play([[([0.0, 0.0], True)] * 2] * 2, space=PAIRS))
        env.obs_rms.mean, env.obs_rms.var = np.array([10.0, -2.0]), np.array([4.0, 25.0])
        return env

    def test_a_single_observation_and_a_batch_give_the_same(self, env: VecNormalizeVisible) -> None:
        raw = np.array([[12.0, -7.0], [0.0, 0.0], [10.0, -2.0]], np.float32)
        flags = [False, True, False]
        batch = env.normalize_obs(raw, flags)
        assert batch.dtype == np.float32
        assert batch == pytest.approx(np.array([[1.0, -1.0], [0.0, 0.0], [0.0, 0.0]]), abs=1e-6)
        for one, flag, expected in zip(raw, flags, batch, strict=True):
            shown = env.normalize_obs(one, flag)
            assert shown.shape == (2,)
            assert shown.tobytes() == expected.tobytes()

    def test_statistics_keep_every_bit(self, env: VecNormalizeVisible) -> None:
        before = bits(env.obs_rms)
        env.normalize_obs(np.ones((3, 2)))
        env.unnormalize_obs(np.ones(2))
        assert bits(env.obs_rms) == before

    def test_the_argument_is_left_as_it_was(self, env: VecNormalizeVisible) -> None:
        raw = np.array([[12.0, -7.0], [3.0, 4.0]])
        env.normalize_obs(raw, [True, False])
        env.unnormalize_obs(raw, np.ones((2, 2), bool))
        assert raw.tolist() == [[12.0, -7.0], [3.0, 4.0]]

    def test_a_given_flag_overrules_the_look_of_a_single_frame(
        self, env: VecNormalizeVisible
    ) -> None:
        zero, junk = np.zeros(2), np.array([12.0, -7.0])
        assert env.normalize_obs(zero, False).tolist() == pytest.approx([-5.0, 0.4])
        assert env.normalize_obs(junk, True).tolist() == [0.0, 0.0]
        assert env.normalize_obs(junk, np.array([True, False])).tolist() == pytest.approx([0, -1])

    def test_flags_of_a_batch_come_one_per_observation_or_one_for_all(
        self, env: VecNormalizeVisible
    ) -> None:
        raw = np.array([[12.0, -7.0], [0.0, 0.0], [12.0, -7.0]])
        shown = env.normalize_obs(raw, np.array([False, False, True]))
        assert shown.ravel().tolist() == pytest.approx([1.0, -1.0, -5.0, 0.4, 0.0, 0.0])
        assert not env.normalize_obs(raw, True).any()
        assert env.normalize_obs(raw, False).all()
        mixed = [np.array([True, False]), True, False]
        shown = env.normalize_obs(raw, mixed)
        assert (shown == 0).tolist() == [[True, False], [True, True], [False, False]]
        components = np.array([[True, False]] * 3)
        assert (env.normalize_obs(raw, components) == 0).tolist() == [[True, False]] * 3
        # Where some are told of, the others are visible.
        shown = env.normalize_obs(raw, [True, None, None])
        assert (shown == 0).all(axis=1).tolist() == [True, False, False]

    def test_unnormalize_undoes_normalize_and_blanks_stay_zero(
        self, env: VecNormalizeVisible
    ) -> None:
        raw = np.array([[12.0, -7.0], [0.0, 0.0], [8.5, 3.25]])
        flags = [False, True, False]
        back = env.unnormalize_obs(env.normalize_obs(raw, flags), flags)
        assert back == pytest.approx(raw, rel=1e-6)
        assert back[1].tolist() == [0.0, 0.0]
        assert env.unnormalize_obs(env.normalize_obs(raw[0])) == pytest.approx(raw[0], rel=1e-6)
        assert env.unnormalize_obs(np.zeros(2), True).tolist() == [0.0, 0.0]

    def test_a_normalised_frame_at_the_mean_is_told_from_a_blank_by_its_flag(
        self, env: VecNormalizeVisible
    ) -> None:
        mean, blank = env.unnormalize_obs(np.zeros((2, 2)), [False, True])
        assert mean.tolist() == [10.0, -2.0]
        assert blank.tolist() == [0.0, 0.0]

    def test_what_the_env_showed_is_what_given_observations_become(self) -> None:
        maker = lambda: gym.make("BurstFlickeringCartPole-v0")  # noqa: E731
        env = VecNormalizeVisible(DummyVecEnv([maker] * 3))
        env.seed(0)
        first, raw = env.reset(), env.get_original_obs()
        with pytest.warns(UserWarning, match="was given observations without their flags"):
            env.normalize_obs(np.zeros(4))  # once
        assert first.tobytes() == env.normalize_obs(raw).tobytes()
        n_blank = 0
        for _ in range(100):
            obs, _, _, _ = step(env)
            raw = env.get_original_obs()
            n_blank += int((~raw.any(axis=1)).sum())
            assert obs.tobytes() == env.normalize_obs(raw).tobytes()
            assert env.unnormalize_obs(obs) == pytest.approx(raw, rel=1e-4, abs=1e-5)
        assert 50 < n_blank < 250

    def test_without_observation_normalisation_both_pass_everything_through(self) -> None:
        env = VecNormalizeVisible(play([[([1.0], True)] * 2]), norm_obs=False)
        assert env.reset().tolist() == [[1.0]]
        raw = np.array([[5.0], [0.0]])
        for given in (env.normalize_obs(raw, [True, True]), env.unnormalize_obs(raw)):
            assert given.tolist() == raw.tolist()
            assert not np.shares_memory(given, raw)

    @pytest.mark.parametrize("flags", [[True], [True, False], np.ones(4, bool)])
    def test_another_number_of_flags_than_observations_is_refused(
        self, env: VecNormalizeVisible, flags: Any
    ) -> None:
        with pytest.raises(ValueError, match="one flag per observation, 3") as caught:
            env.normalize_obs(np.ones((3, 2)), flags)
        assert f"got {len(flags)}" in str(caught.value)

    def test_a_flag_that_fits_no_frame_is_refused(self, env: VecNormalizeVisible) -> None:
        with pytest.raises(ValueError, match="must be a bool or bools of the shape"):
            env.normalize_obs(np.ones(2), [True, False, True])
        with pytest.raises(ValueError, match="must be a bool or bools of the shape"):
            env.normalize_obs(np.ones((3, 2)), np.ones((3, 1), bool))


class TestGivenDictObservations:
    RAW = {
        "camera": np.array([[12.0, 3.0], [0.0, 0.0], [14.0, 5.0]]),
        "gyro": np.array([[2.0], [4.0], [0.0]]),
    }

    @pytest.fixture
    def env(self) -> VecNormalizeVisible:
        frame = ({"camera": [0.0, 0.0], "gyro": [0.0]}, True)
        env = VecNormalizeVisible(play([[frame] * 2], space=KEYS))
        env.obs_rms["camera"].mean = np.array([10.0, 1.0])
        env.obs_rms["gyro"].mean = np.array([3.0])
        return env

    def test_each_key_of_a_single_observation_and_of_a_batch(
        self, env: VecNormalizeVisible
    ) -> None:
        flags = [{"camera": idx == 1, "gyro": idx == 2} for idx in range(3)]
        batch = env.normalize_obs(self.RAW, flags)
        assert batch["camera"].ravel().tolist() == pytest.approx([2.0, 2.0, 0.0, 0.0, 4.0, 4.0])
        assert batch["gyro"].ravel().tolist() == pytest.approx([-1.0, 1.0, 0.0])
        for idx in range(3):
            one = {key: part[idx] for key, part in self.RAW.items()}
            single = env.normalize_obs(one, flags[idx])
            for key in self.RAW:
                assert single[key].tobytes() == batch[key][idx].tobytes()

    @pytest.mark.parametrize(
        "flags",
        [
            {"camera": [True, False, False], "gyro": np.array([False, False, True])},
            {
                "camera": np.array([[True, True], [False, False], [False, False]]),
                "gyro": [0 > 1, 0 > 1, True],
            },
            [{"camera": True}, False, {"gyro": True}],
        ],
    )
    def test_flags_by_key_or_by_observation(self, env: VecNormalizeVisible, flags: Any) -> None:
        shown = env.normalize_obs(self.RAW, flags)
        assert shown["camera"].ravel().tolist() == pytest.approx([0.0, 0.0, -10.0, -1.0, 4.0, 4.0])
        assert shown["gyro"].ravel().tolist() == pytest.approx([-1.0, 1.0, 0.0])

    def test_one_flag_for_all_observations_of_a_key(self, env: VecNormalizeVisible) -> None:
        shown = env.normalize_obs(self.RAW, {"camera": True, "gyro": None})
        assert not shown["camera"].any()
        assert shown["gyro"].ravel().tolist() == pytest.approx([-1.0, 1.0, -3.0])

    def test_another_number_of_flags_than_observations_is_refused(
        self, env: VecNormalizeVisible
    ) -> None:
        for flags in ([True, False], [True] * 4):
            with pytest.raises(ValueError, match="one flag per observation, 3"):
                env.normalize_obs(self.RAW, {"camera": flags})

    def test_unnormalize_undoes_normalize(self, env: VecNormalizeVisible) -> None:
        back = env.unnormalize_obs(env.normalize_obs(self.RAW))
        for key, raw in self.RAW.items():
            assert back[key] == pytest.approx(raw, rel=1e-6, abs=1e-6)


class TestIntegerObservations:
    """A rollout buffer takes its dtype from the space: integers would lose every fraction."""

    FRAMES = ([9, 9], False), ([11, 10], False), ([0, 0], True), ([11, 9], False)

    @pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
    def test_the_space_becomes_float_and_a_rollout_buffer_keeps_fractions(self, dtype: Any) -> None:
        space = spaces.Box(0, 20, (2,), dtype)
        env = VecNormalizeVisible(play([list(self.FRAMES)], space=space))
        assert env.observation_space.dtype == np.float32
        shown = [env.reset()] + [step(env)[0] for _ in range(2)]
        buffer = RolloutBuffer(3, env.observation_space, env.action_space, device="cpu")
        for obs in shown:
            buffer.add(obs, np.zeros(1), np.zeros(1), np.zeros(1), *self.outputs())
        assert buffer.observations.tobytes() == np.stack(shown).tobytes()
        assert (buffer.observations % 1 != 0).any()

    @staticmethod
    def outputs() -> tuple[Any, Any]:
        import torch as th

        return th.zeros(1, 1), th.zeros(1)

    def test_normalised_observations_lie_in_the_space(self) -> None:
        env = VecNormalizeVisible(
            play([list(self.FRAMES)], space=spaces.Box(0, 20, (2,), np.uint8))
        )
        for obs in [env.reset()] + [step(env)[0] for _ in range(6)]:
            assert env.observation_space.contains(obs[0])

    def test_integer_keys_become_float_and_others_stay(self) -> None:
        counts = spaces.Box(0, 9, (1,), np.int64)
        space = spaces.Dict({"counts": counts, "raw": counts, "gyro": NUMBERS})
        frame = ({"counts": [3], "raw": [4], "gyro": [1.0]}, False)
        venv = play([[frame] * 2], space=space)
        env = VecNormalizeVisible(venv, norm_obs_keys=["counts", "gyro"])
        assert env.observation_space["counts"].dtype == np.float32
        assert env.observation_space["raw"] == counts
        assert env.observation_space["gyro"] == NUMBERS
        assert venv.observation_space["counts"] == counts

    def test_float_spaces_and_those_not_normalised_stay_as_they_are(self) -> None:
        assert VecNormalizeVisible(play([[([1.0], False)] * 2])).observation_space == NUMBERS
        counts = spaces.Box(0, 9, (1,), np.int64)
        venv = play([[([1], False)] * 2], space=counts)
        assert VecNormalizeVisible(venv, norm_obs=False).observation_space == counts

    def test_images_are_float_as_in_sb3(self) -> None:
        image = spaces.Box(0, 255, (40, 40, 1), np.uint8)
        venv = play([[(np.full((40, 40, 1), 7), False)] * 2], space=image)
        env = VecNormalizeVisible(venv)
        assert env.observation_space == VecNormalize(venv).observation_space
        assert env.observation_space.dtype == np.float32


class TestSaveAndLoad:
    def test_class_statistics_and_settings_come_back(self, tmp_path: Path) -> None:
        scripts = [[([9.0], False), ([0.0], True), ([11.0], False)]], [[([4.0], False)] * 3]
        env = VecNormalizeVisible(play(*scripts), clip_obs=3.0, gamma=0.9)
        env.reset()
        for _ in range(5):
            step(env)
        env.save(str(tmp_path / "normalizer.pkl"))
        loaded = VecNormalizeVisible.load(str(tmp_path / "normalizer.pkl"), play(*scripts))
        assert type(loaded) is VecNormalizeVisible
        assert (loaded.clip_obs, loaded.gamma) == (3.0, 0.9)
        assert bits(loaded.obs_rms) == bits(env.obs_rms)
        assert bits(loaded.ret_rms) == bits(env.ret_rms)
        before = bits(loaded.obs_rms)
        assert loaded.reset()[1, 0] == scaled(4.0, loaded.obs_rms)
        assert bits(loaded.obs_rms) != before
        assert step(loaded)[0][0, 0] == 0.0

    def test_counts_of_components_and_float_spaces_come_back(self, tmp_path: Path) -> None:
        space = spaces.Box(0, 20, (2,), np.int64)
        script = [[([9, 4], np.array([False, True]))] * 3]
        env = VecNormalizeVisible(play(script, space=space))
        env.reset()
        env.save(str(tmp_path / "normalizer.pkl"))
        loaded = VecNormalizeVisible.load(
            str(tmp_path / "normalizer.pkl"), play(script, script, space=space)
        )
        assert loaded.num_envs == 2
        assert loaded.observation_space.dtype == np.float32
        assert bits(loaded.obs_rms) == bits(env.obs_rms)
        assert (loaded.reset() == 0).tolist() == [[False, True]] * 2


def flickering(n_envs: int, **kwargs: Any) -> VecNormalizeVisible:
    makers = [lambda: gym.make("FlickeringCartPole-v0")] * n_envs
    return VecNormalizeVisible(VecMonitor(DummyVecEnv(makers)), **kwargs)


class TestPlainFiles:
    def test_a_file_of_plain_vec_normalize_is_refused_and_not_taken_for_ours(self, tmp_path: Path):
        VecNormalize(DummyVecEnv([lambda: ScriptedEnv([(1.0, False)])])).save(str(tmp_path / "it"))
        venv = DummyVecEnv([lambda: ScriptedEnv([(1.0, False)])])
        with pytest.raises(ValueError, match="holds a VecNormalize: use VecNormalize.load"):
            VecNormalizeVisible.load(str(tmp_path / "it"), venv)


class TestEvaluation:
    def test_syncing_copies_the_statistics_and_shares_nothing(self) -> None:
        train, evaluation = flickering(2), flickering(1, training=False, norm_reward=False)
        train.seed(0)
        train.reset()
        for _ in range(20):
            step(train)
        assert bits(evaluation.obs_rms) != bits(train.obs_rms)
        sync_envs_normalization(train, evaluation)
        synced = bits(train.obs_rms)
        assert bits(evaluation.obs_rms) == synced
        evaluation.seed(1)
        evaluation.reset()
        step(evaluation)
        assert bits(evaluation.obs_rms) == synced
        step(train)
        assert bits(train.obs_rms) != synced
        assert bits(evaluation.obs_rms) == synced

    def test_eval_and_checkpoint_callbacks_see_a_vec_normalize(self, tmp_path: Path) -> None:
        train, evaluation = flickering(2), flickering(1, training=False, norm_reward=False)
        model = PPO("MlpPolicy", train, n_steps=8, batch_size=16, n_epochs=1, seed=0, device="cpu")
        checkpoints = CheckpointCallback(8, str(tmp_path), save_vecnormalize=True)
        evaluate = EvalCallback(evaluation, n_eval_episodes=1, eval_freq=8, verbose=0)
        model.learn(16, callback=CallbackList([checkpoints, evaluate]))
        assert model.get_vec_normalize_env() is train
        assert bits(evaluation.obs_rms) == bits(train.obs_rms)
        assert evaluation.obs_rms.mean.any()
        (saved,) = tmp_path.glob("*vecnormalize*.pkl")
        loaded = VecNormalizeVisible.load(
            str(saved),
            play([[([1.0] * 4, False)] * 2], space=(spaces.Box(-9.0, 9.0, (4,), np.float32))),
        )
        assert type(loaded) is VecNormalizeVisible
        assert bits(loaded.obs_rms) == bits(train.obs_rms)


class TestMisuse:
    def test_a_space_without_numbers_to_normalise_is_refused(self) -> None:
        venv = play([[(1, False)] * 2], space=spaces.Discrete(3))
        with pytest.raises(ValueError, match=r"only supports .*Box.* not Discrete\(3\)"):
            VecNormalizeVisible(venv)

    def test_a_dict_key_that_is_no_box_is_refused_by_name(self) -> None:
        space = spaces.Dict({"camera": PAIRS, "mission": spaces.Discrete(5)})
        venv = play([[({"camera": [1.0, 2.0], "mission": 3}, False)] * 2], space=space)
        with pytest.raises(ValueError, match="mission"):
            VecNormalizeVisible(venv)

    def test_keys_for_an_observation_without_keys_are_refused(self) -> None:
        with pytest.raises(ValueError, match="norm_obs_keys"):
            VecNormalizeVisible(play([[([1.0], False)] * 2]), norm_obs_keys=["camera"])

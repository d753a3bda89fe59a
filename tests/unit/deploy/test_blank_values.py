"""What is told to be blank is shown as a blank, whatever the reading holds."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import gymnasium.wrappers as gw
import numpy as np
import pytest
from gymnasium import spaces
from sensor_envs import AnyEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from thrust_pomdp import (
    ElementDropoutObservation,
    FlickerObservation,
    GymnasiumVecEnv,
    MaskObservation,
    StatefulActor,
    make_vec_env,
)
from thrust_pomdp.wrappers import vector


class Spy:
    """Acts in any way, and remembers what it was shown."""

    def __init__(self, env: VecEnv) -> None:
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.seen: list[Any] = []

    def predict(self, obs: Any, state: Any, start: Any, deterministic: bool) -> Any:
        self.seen.append(obs)
        n_axes = len(self.first(self.observation_space).shape)
        batch = self.first(obs)
        n_envs = (len(batch),) if np.ndim(batch) > n_axes else ()
        action = self.action_space.sample()
        return np.broadcast_to(action, n_envs + np.shape(action)), state

    @staticmethod
    def first(parts: Any) -> Any:
        is_dict = isinstance(parts, (dict, spaces.Dict))
        return next(iter(parts.values())) if is_dict else parts


def vec(*wrappers: Any, observation: str = "vector", **senses: Any) -> VecEnv:
    def make() -> gym.Env:
        env = AnyEnv(observation)
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    return make_vec_env(make, 2, **senses)


def shown(env: VecEnv, obs: Any, like: bool = True, **given: Any) -> Any:
    spy = Spy(env)
    actor = StatefulActor.like(spy, env) if like else StatefulActor(spy)
    actor.act(obs, **given)
    return spy.seen[-1]


READING = np.array([1.0, 2.0, 3.0], np.float32)
CAMERA = np.full((36, 36, 3), 7, np.uint8)
both = pytest.mark.parametrize("like", [True, False])


@both
class TestZeros:
    @pytest.mark.parametrize("flag", [True, np.True_, np.array(True), np.ones(3, bool), [True] * 3])
    def test_stand_for_a_single_reading(self, like: bool, flag: Any) -> None:
        obs = shown(vec(), READING, like, blanked=flag)
        assert obs.tolist() == [0.0, 0.0, 0.0]
        assert obs.dtype == np.float32
        assert READING.tolist() == [1.0, 2.0, 3.0]

    def test_stand_for_components(self, like: bool) -> None:
        flag = np.array([True, False, True])
        assert shown(vec(), READING, like, blanked=flag).tolist() == [0.0, 2.0, 0.0]

    @pytest.mark.parametrize(
        ("flags", "expected"),
        [
            ([True, False], [[0, 0, 0], [1, 2, 3]]),
            (np.array([False, True]), [[1, 2, 3], [0, 0, 0]]),
            (True, [[0, 0, 0], [0, 0, 0]]),
            ([None, True], [[1, 2, 3], [0, 0, 0]]),
            ([np.array([True, False, False]), False], [[0, 2, 3], [1, 2, 3]]),
            (np.array([[True, False, False]] * 2), [[0, 2, 3]] * 2),
        ],
    )
    def test_stand_for_readings_of_a_batch(self, like: bool, flags: Any, expected: Any) -> None:
        obs = shown(vec(), np.stack([READING, READING]), like, blanked=flags)
        assert obs.tolist() == expected

    def test_stand_for_a_camera_and_keys_that_no_normaliser_touches(self, like: bool) -> None:
        assert not shown(vec(observation="image"), CAMERA, like, blanked=True).any()
        env = vec(observation="dict")
        obs = {key: part[0] for key, part in env.reset().items()}
        dark = shown(
            env, obs, like, blanked={"camera": True, "gyro": np.array([True, False, True])}
        )
        assert not dark["camera"].any()
        assert (dark["gyro"] == 0).tolist() == [True, False, True]
        np.testing.assert_equal([dark["bits"], dark["mode"]], [obs["bits"], obs["mode"]])

    @pytest.mark.parametrize("flag", [None, False, np.zeros(3, bool)])
    def test_do_not_stand_for_what_is_visible(self, like: bool, flag: Any) -> None:
        assert shown(vec(), READING, like, blanked=flag).tolist() == READING.tolist()

    @pytest.mark.parametrize(
        ("flag", "rule"),
        [
            ([True, False], r"blanked must be a bool or bools of the shape"),
            (np.ones((2, 3), bool), r"blanked must be a bool or bools of the shape"),
            ("yes", r"blanked must be a bool or bools of the shape"),
            ({"camera": True}, r"blanked must be a bool or bools of the shape"),
            (1, r"blanked must be a bool or bools of the shape"),
        ],
    )
    def test_need_a_flag_that_fits(self, like: bool, flag: Any, rule: str) -> None:
        with pytest.raises(ValueError, match=rule):
            shown(vec(), READING, like, blanked=flag)

    def test_need_as_many_flags_as_readings_and_keys_that_are_there(self, like: bool) -> None:
        for flags in ([True], [True] * 3, np.ones(3, bool)):
            with pytest.raises(ValueError, match="blanked must hold one flag per observation, 2"):
                shown(vec(), np.stack([READING] * 2), like, blanked=flags)
        env = vec(observation="dict")
        obs = {key: part[0] for key, part in env.reset().items()}
        with pytest.raises(
            ValueError, match=r"blanked must name keys of .*'gyro'.*got \['camra'\]"
        ):
            shown(env, obs, like, blanked={"camra": True})


class TestLayersOutside:
    def test_get_the_blank_before_they_do_anything(self) -> None:
        env = vec(frame_stack=2, previous_action=True)
        spy = Spy(env)
        actor = StatefulActor.like(spy, env)
        actor.act(READING, blanked=True)
        assert spy.seen[-1].tolist() == [0.0] * 12
        actor.act(READING, action=1)
        assert spy.seen[-1].tolist() == [0.0] * 6 + [1.0, 2.0, 3.0, 0.0, 1.0, 0.0]

    def test_normalise_one_key_and_leave_the_dark_camera_to_be_dark(self) -> None:
        env = vec(observation="dict", normalize={"norm_obs_keys": ["gyro"]})
        obs = {key: part[0] for key, part in env.unwrapped.reset().items()}
        dark = shown(env, obs, blanked=True)
        assert not dark["camera"].any()
        assert not dark["gyro"].any()


def value(**blank: Any) -> Any:
    return lambda env: FlickerObservation(env, 0.5, **blank)


class TestTheBlankOfTheTraining:
    @pytest.mark.parametrize("kind", [FlickerObservation, ElementDropoutObservation])
    def test_is_found_inside(self, kind: Any) -> None:
        env = vec(lambda env: kind(env, 0.5, blank_value=[-1.0, 4.0, 5.0]))
        assert shown(env, READING, blanked=True).tolist() == [-1.0, 4.0, 5.0]
        components = np.array([False, True, False])
        assert shown(env, READING, blanked=components).tolist() == [1.0, 4.0, 3.0]

    @pytest.mark.parametrize(
        ("wrap", "reading", "expected"),
        [
            (lambda env: gw.TimeLimit(env, 9), READING, [4.0, 4.0, 4.0]),
            (lambda env: MaskObservation(env, drop=[1]), READING[:2], [4.0, 4.0]),
            (gw.FlattenObservation, READING, [4.0, 4.0, 4.0]),
            (lambda env: gw.RescaleObservation(env, np.float32(0), np.float32(1)), READING,
             [13 / 18] * 3),
            (lambda env: gw.TransformReward(env, lambda reward: -reward), READING, [4.0] * 3),
        ],
    )  # fmt: skip
    def test_is_what_wrappers_around_make_of_it(
        self, wrap: Any, reading: Any, expected: Any
    ) -> None:
        obs = shown(vec(value(blank_value=4.0), wrap), reading, blanked=True)
        assert obs.tolist() == pytest.approx(expected)

    def test_is_zeros_where_a_wrapper_around_is_not_known(self) -> None:
        class Own(gym.ObservationWrapper):
            def __init__(self, env: gym.Env) -> None:
                super().__init__(env)
                self.observation_space = spaces.Box(-9.0, 9.0, (3,), np.float32)

            def observation(self, obs: Any) -> Any:
                return -obs

        def doubled(env: gym.Env) -> gym.Env:
            return gw.TransformObservation(env, lambda obs: 2 * obs, env.observation_space)

        for wrap in (Own, doubled):
            assert not shown(vec(value(blank_value=4.0), wrap), READING, blanked=True).any()

    def test_is_known_by_key(self) -> None:
        env = vec(value(blank_value={"gyro": 2.5}), observation="dict")
        obs = {key: part[0] for key, part in env.reset().items()}
        dark = shown(env, obs, blanked=True)
        assert dark["gyro"].tolist() == [2.5] * 3
        assert not dark["camera"].any()
        assert dark["bits"].tolist() == [2, 2]
        assert dark["mode"] == 3

    def test_is_found_in_vectors_and_in_what_they_hold(self) -> None:
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        def sync(make: Any) -> Any:
            return SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.SAME_STEP)

        outside = vector.FlickerObservation(sync(AnyEnv), 0.5, blank_value=4.0)
        inside = sync(lambda: FlickerObservation(AnyEnv(), 0.5, blank_value=4.0))
        for envs in (outside, inside):
            env = GymnasiumVecEnv(envs)
            assert shown(env, READING, blanked=True).tolist() == [4.0] * 3

    @both
    @pytest.mark.parametrize(
        ("observation", "reading", "expected"),
        [("number", np.int64(1), 4), ("shifted number", np.int64(-2), 2),
         ("numbers", np.array([1, 0]), [3, 5]), ("bits", np.array([1, 0, 1]), [2, 2, 2])],
    )  # fmt: skip
    def test_is_a_symbol_of_its_own_where_zero_means_something(
        self, like: bool, observation: str, reading: Any, expected: Any
    ) -> None:
        env = vec(value(), observation=observation)
        assert np.asarray(shown(env, reading, like, blanked=True)).tolist() == expected

    def test_is_what_the_environment_shows_in_every_flagged_frame(self) -> None:
        for env in (vec(value(blank_value=4.0)), vec(value(separately=True), observation="dict"),
                    vec(value(), observation="numbers")):  # fmt: skip
            env.seed(0)
            spy, actor = Spy(env), None
            actor = StatefulActor.like(spy, env)
            obs, flags = env.reset(), [info["blanked"] for info in env.reset_infos]
            for _ in range(50):
                actor.act(obs, blanked=flags)
                np.testing.assert_equal(spy.seen[-1], obs)
                obs, _, dones, infos = env.step(np.zeros(2, int))
                told = [env.reset_infos[i] if dones[i] else infos[i] for i in range(2)]
                flags = [info["blanked"] for info in told]


class TestAStrangersRobot:
    def test_its_stuck_camera_and_gyro_are_dark_for_the_policy(self) -> None:
        """The driver repeats its last message when the cable is loose, and says so."""
        env = DummyVecEnv([lambda: AnyEnv("dict")])
        spy = Spy(env)
        actor = StatefulActor(spy, deterministic=True)
        rng = np.random.default_rng(0)
        message: dict[str, Any] = {}
        for _ in range(50):
            loose = bool(message) and rng.random() < 0.5
            if not loose:
                message = {k: space.sample() for k, space in env.observation_space.items()}
            actor.act(message, blanked={"camera": loose, "gyro": loose})
            assert spy.seen[-1]["camera"].any() != loose
            assert spy.seen[-1]["gyro"].any() != loose
            np.testing.assert_array_equal(spy.seen[-1]["bits"], message["bits"])

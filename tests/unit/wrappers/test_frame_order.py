"""Flags of one frame are not applied to another: what lies between blanking and normaliser."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import gymnasium.wrappers as gw
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.wrappers import vector as gwv
from stable_baselines3.common.atari_wrappers import FireResetEnv, MaxAndSkipEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from thrust_pomdp import (
    ElementDropoutObservation,
    FlickerObservation,
    GymnasiumVecEnv,
    MaskObservation,
    NormalizeVisibleObservation,
    PreviousActionObservation,
    VecNormalizeVisible,
    VecUnprivileged,
    make_vec_env,
)
from thrust_pomdp.wrappers import vector
from thrust_pomdp.wrappers.frame_order import DECLARED

FLICKERING = "FlickeringCartPole-v0"


class NineOrEleven(gym.Env):
    """Shows 9 and 11 in turn."""

    observation_space = spaces.Box(-20.0, 20.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, tells: bool = False) -> None:
        self._tells = tells

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.n = 0
        return self._see()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n += 1
        obs, info = self._see()
        return obs, 1.0, self.n == 50, False, info

    def _see(self) -> tuple[Any, dict[str, Any]]:
        value = 9.0 if self.n % 2 else 11.0
        return np.full(2, value, np.float32), {"blanked": self.n % 3 == 0} if self._tells else {}


class Camera(NineOrEleven):
    observation_space = spaces.Box(0, 255, (6, 5, 3), np.uint8)

    def _see(self) -> tuple[Any, dict[str, Any]]:
        return np.full((6, 5, 3), 9 + self.n, np.uint8), {}


class Keyed(NineOrEleven):
    observation_space = spaces.Dict(gyro=NineOrEleven.observation_space,
                                    speed=NineOrEleven.observation_space)  # fmt: skip

    def _see(self) -> tuple[Any, dict[str, Any]]:
        obs, info = super()._see()
        return {"gyro": obs, "speed": 3 * obs}, info


def flicker(env: gym.Env | None = None, **kwargs: Any) -> gym.Env:
    return FlickerObservation(NineOrEleven() if env is None else env, 0.5, **kwargs)


def timed(env: gym.Env) -> gym.Env:
    return gw.TimeLimit(env, 100)


HARMFUL: dict[str, Callable[[gym.Env], gym.Env]] = {
    "DelayObservation": lambda env: gw.DelayObservation(env, 1),
    "FrameStackObservation": lambda env: gw.FrameStackObservation(env, 2),
    "TimeAwareObservation": lambda env: gw.TimeAwareObservation(timed(env)),
    "MaxAndSkipObservation": lambda env: gw.MaxAndSkipObservation(env, 2),
    "MaxAndSkipEnv": lambda env: MaxAndSkipEnv(env, 2),
}
HARMLESS: dict[str, Callable[[gym.Env], gym.Env]] = {
    "TimeLimit": timed,
    "Monitor": Monitor,
    "PassiveEnvChecker": gw.PassiveEnvChecker,
    "OrderEnforcing": gw.OrderEnforcing,
    "RecordEpisodeStatistics": gw.RecordEpisodeStatistics,
    "TransformReward": lambda env: gw.TransformReward(env, lambda reward: 2 * reward),
    "RepeatAction": lambda env: gw.RepeatAction(env, 2),
    "FlattenObservation": gw.FlattenObservation,
    "ReshapeObservation": lambda env: gw.ReshapeObservation(env, (2, 1)),
    "RescaleObservation": lambda env: gw.RescaleObservation(env, np.float32(0), np.float32(1)),
    "DtypeObservation": lambda env: gw.DtypeObservation(env, np.int32),
    "MaskObservation": lambda env: MaskObservation(env, drop=[1]),
    "a frame stack inside": lambda env: env,
}


def around(name: str, env: gym.Env) -> gym.Env:
    return (HARMFUL | HARMLESS)[name](env)


#: Ways to put a normaliser around a single environment.
NORMALIZERS: dict[str, Callable[[Callable[[], gym.Env]], Any]] = {
    "single": lambda make: NormalizeVisibleObservation(make()),
    "dummy": lambda make: VecNormalizeVisible(DummyVecEnv([make] * 2)),
    "dummy, wrapped": lambda make: VecNormalizeVisible(VecUnprivileged(DummyVecEnv([make] * 2))),
    "native adapter": lambda make: VecNormalizeVisible(GymnasiumVecEnv(sync(make))),
    "make_vec_env": lambda make: make_vec_env(make, 2, normalize=True),
}
each_normalizer = pytest.mark.parametrize("normalizer", NORMALIZERS.values(), ids=NORMALIZERS)


def sync(make: Callable[[], gym.Env], n_envs: int = 2) -> SyncVectorEnv:
    return SyncVectorEnv([make] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def run(env: Any, n_steps: int = 200) -> Any:
    if isinstance(env, VecEnv):
        env.seed(0)
        env.reset()
        for _ in range(n_steps):
            env.step(np.zeros(env.num_envs, int))
        return env
    env.reset(seed=0)
    for _ in range(n_steps):
        if any(env.step(0)[2:4]):
            env.reset()
    return env


WRONG = "must not be put around {} with blanked frames inside: .*tells of the frame in there"


@each_normalizer
class TestWhatIsKnown:
    @pytest.mark.parametrize("name", HARMFUL)
    @pytest.mark.parametrize("outside", [[], ["TimeLimit", "RecordEpisodeStatistics", "Monitor"]])
    def test_to_show_other_frames_is_refused_at_once(
        self, normalizer: Any, name: str, outside: list[str]
    ) -> None:
        def make() -> gym.Env:
            env = around(name, gw.OrderEnforcing(flicker()))
            for other in outside:
                env = around(other, env)
            return env

        with pytest.raises(ValueError, match=WRONG.format(name)):
            normalizer(make)

    @pytest.mark.parametrize("name", HARMFUL)
    def test_to_show_other_frames_is_fine_without_flags(self, normalizer: Any, name: str) -> None:
        run(normalizer(lambda: around(name, NineOrEleven())), 5)

    @pytest.mark.parametrize("name", HARMFUL)
    def test_to_show_other_frames_is_fine_inside_of_what_blanks(
        self, normalizer: Any, name: str
    ) -> None:
        run(normalizer(lambda: flicker(around(name, NineOrEleven()))), 5)

    @pytest.mark.parametrize("name", HARMFUL)
    def test_to_show_other_frames_is_refused_between_two_layers_that_blank(
        self, normalizer: Any, name: str
    ) -> None:
        with pytest.raises(ValueError, match=WRONG.format(name)):
            normalizer(lambda: flicker(around(name, flicker())))

    @pytest.mark.parametrize("name", HARMFUL)
    def test_to_show_other_frames_is_refused_at_the_first_flag_of_an_env_of_others(
        self, normalizer: Any, name: str
    ) -> None:
        env = normalizer(lambda: around(name, NineOrEleven(tells=True)))
        with pytest.raises(ValueError, match=WRONG.format(name)):
            run(env, 5)

    @pytest.mark.parametrize("name", HARMLESS)
    def test_to_show_the_frame_itself_is_passed(self, normalizer: Any, name: str) -> None:
        env = run(normalizer(lambda: around(name, flicker())))
        plain = run(normalizer(flicker))
        if name not in ("RescaleObservation", "RepeatAction"):
            expected = plain.obs_rms.mean.ravel()[: env.obs_rms.mean.size]
            assert env.obs_rms.mean.ravel() == pytest.approx(expected, rel=1e-9)
            assert env.obs_rms.mean.ravel()[0] == pytest.approx(10.0, abs=0.3)

    def test_to_change_the_shape_alone_takes_flags_of_components_along(
        self, normalizer: Any
    ) -> None:
        def make(wrap: Any) -> gym.Env:
            return wrap(ElementDropoutObservation(NineOrEleven(), 0.5))

        plain = run(normalizer(lambda: make(lambda env: env)))
        for wrap in (
            lambda env: gw.ReshapeObservation(env, (2, 1)),
            lambda env: gw.FlattenObservation(gw.ReshapeObservation(env, (1, 2))),
        ):
            env = run(normalizer(lambda wrap=wrap: make(wrap)))
            np.testing.assert_array_equal(env.obs_rms.mean.ravel(), plain.obs_rms.mean)
            np.testing.assert_array_equal(env.obs_rms.count.ravel(), plain.obs_rms.count)
            assert 30 < env.obs_rms.count.min() < env.obs_rms.count.max()

    def test_an_environment_that_flickers_itself_is_one_that_blanks(self, normalizer: Any) -> None:
        with pytest.raises(ValueError, match=WRONG.format("FrameStackObservation")):
            normalizer(lambda: gw.FrameStackObservation(gym.make(FLICKERING), 3))
        run(normalizer(lambda: gym.make(FLICKERING)), 5)


class TestVectorLayers:
    STACKS: dict[str, Callable[[], VecEnv]] = {
        "native": lambda: make_vec_env(FLICKERING, 2),
        "dummy": lambda: DummyVecEnv([flicker] * 2),
        "monitored": lambda: VecMonitor(DummyVecEnv([flicker] * 2)),
        "vector twin": lambda: GymnasiumVecEnv(vector.FlickerObservation(sync(NineOrEleven))),
    }

    @pytest.mark.parametrize("make", STACKS.values(), ids=STACKS)
    def test_a_stack_of_frames_goes_outside_of_the_normaliser(self, make: Any) -> None:
        with pytest.raises(ValueError, match=WRONG.format("VecFrameStack")):
            VecNormalizeVisible(VecFrameStack(make(), 2))
        run(VecFrameStack(VecNormalizeVisible(make()), 2), 5)
        run(VecNormalizeVisible(VecFrameStack(make(), 2), norm_obs=False), 5)

    def test_a_stack_of_frames_without_flags_is_fine(self) -> None:
        ours = VecNormalizeVisible(VecFrameStack(DummyVecEnv([NineOrEleven]), 2))
        plain = VecNormalize(VecFrameStack(DummyVecEnv([NineOrEleven]), 2))
        np.testing.assert_array_equal(run(ours).obs_rms.mean, run(plain).obs_rms.mean)

    def test_loading_a_file_around_the_wrong_order_is_refused(self, tmp_path: Any) -> None:
        path = str(tmp_path / "it.pkl")
        VecNormalizeVisible(VecFrameStack(DummyVecEnv([NineOrEleven]), 2)).save(path)
        with pytest.raises(ValueError, match=WRONG.format("VecFrameStack")):
            VecNormalizeVisible.load(path, VecFrameStack(DummyVecEnv([flicker]), 2))

    @pytest.mark.parametrize(
        "wrap",
        [
            gwv.RecordEpisodeStatistics,
            lambda envs: gwv.TransformReward(envs, lambda rewards: 2 * rewards),
        ],
    )
    def test_gymnasiums_vector_wrappers_around_our_twins_are_passed(self, wrap: Any) -> None:
        # Those of observations do not reset in the same step.
        for blank in (vector.FlickerObservation, vector.ElementDropoutObservation):
            env = VecNormalizeVisible(GymnasiumVecEnv(wrap(blank(sync(NineOrEleven), 0.5))))
            assert env._order.is_idle
            run(env)

    def test_a_vector_wrapper_of_ones_own_that_delays_is_noticed(self) -> None:
        class Delayed(VectorWrapper):
            def reset(self, **kwargs: Any) -> Any:
                obs, infos = super().reset(**kwargs)
                self.last = obs
                return obs, infos

            def step(self, actions: Any) -> Any:
                obs, *others = super().step(actions)
                self.last, shown = obs, self.last
                return (shown, *others)

        env = VecNormalizeVisible(
            GymnasiumVecEnv(Delayed(vector.FlickerObservation(sync(NineOrEleven))))
        )
        with pytest.raises(ValueError, match="Delayed shows others than FlickerObservation does"):
            run(env)

    def test_native_vectors_pay_nothing(self) -> None:
        for venv in (make_vec_env(FLICKERING, 2), make_vec_env("CartPole-v1", 2),
                     make_vec_env("TMaze-v0", 2)):  # fmt: skip
            assert VecNormalizeVisible(venv)._order.is_idle


class Own(gym.ObservationWrapper):
    """A wrapper of which nothing is known."""

    def __init__(self, env: gym.Env, function: Any, space: Any = None) -> None:
        super().__init__(env)
        self.function = function
        self.observation_space = env.observation_space if space is None else space

    def observation(self, obs: Any) -> Any:
        return self.function(obs)


class Late:
    """Shows the frame before."""

    def __init__(self) -> None:
        self.last: Any = np.zeros(2, np.float32)

    def __call__(self, obs: Any) -> Any:
        self.last, shown = obs, self.last
        return shown


class Pairs(Late):
    def __call__(self, obs: Any) -> Any:
        return np.concatenate([super().__call__(obs), obs])


class Clock:
    def __init__(self) -> None:
        self.n = 0

    def __call__(self, obs: Any) -> Any:
        self.n += 1
        return np.append(obs, np.float32(self.n / 100)).astype(np.float32)


class Forgetful(gym.Wrapper):
    """Passes on no infos of resets, as many do."""

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0], {}


class HoldsLast(gym.Wrapper):
    """Shows what was last visible, and says that it is old."""

    def reset(self, **kwargs: Any) -> Any:
        self.held = np.zeros(2, np.float32)
        return self._hold(*super().reset(**kwargs))

    def step(self, action: Any) -> Any:
        obs, *others, info = super().step(action)
        obs, info = self._hold(obs, info)
        return (obs, *others, info)

    def _hold(self, obs: Any, info: dict[str, Any]) -> Any:
        self.held = self.held if info["blanked"] else obs
        return self.held, info


class Declared(gym.Wrapper):
    flags_are_of_shown_frames = True


def wide(n: int) -> spaces.Box:
    return spaces.Box(-20.0, 20.0, (n,), np.float32)


CHANGED = {"late": (Late, 2), "pairs": (Pairs, 4), "clock": (Clock, 3)}


def own(name: str, env: gym.Env) -> gym.Env:
    function, size = CHANGED[name]
    return Own(env, function(), wide(size))


@each_normalizer
class TestWhatIsNotKnown:
    @pytest.mark.parametrize("name", CHANGED)
    def test_is_refused_at_the_first_contradiction(self, normalizer: Any, name: str) -> None:
        with pytest.raises(ValueError, match="Own shows others than FlickerObservation does"):
            run(normalizer(lambda: timed(own(name, flicker()))))

    @pytest.mark.parametrize("name", CHANGED)
    def test_is_fine_without_flags_or_inside_of_what_blanks(
        self, normalizer: Any, name: str
    ) -> None:
        run(normalizer(lambda: own(name, NineOrEleven())))
        run(normalizer(lambda: flicker(own(name, NineOrEleven()))))
        # An environment may flag what holds stale numbers.
        run(normalizer(lambda: NineOrEleven(tells=True)))

    def test_is_passed_if_it_is_a_function_of_the_frame(self, normalizer: Any) -> None:
        for function in (lambda obs: 2 * obs - 1, lambda obs: obs[::-1], lambda obs: obs * np.nan):
            run(normalizer(lambda function=function: Own(flicker(), function)))
        run(normalizer(lambda: Own(flicker(blank_value=5.0), lambda obs: obs / 2)))

    def test_is_passed_with_components_and_keys(self, normalizer: Any) -> None:
        double = lambda obs: {key: 2 * part for key, part in obs.items()}  # noqa: E731
        run(normalizer(lambda: Own(flicker(Keyed(), separately=True), double)))
        run(normalizer(lambda: Own(ElementDropoutObservation(NineOrEleven(), 0.5), np.negative)))

    def test_is_noticed_with_components_and_keys(self, normalizer: Any) -> None:
        class LateKeys(Late):
            def __call__(self, obs: Any) -> Any:
                self.last, shown = obs, self.last if isinstance(self.last, dict) else obs
                return shown

        for make in (
            lambda: Own(flicker(Keyed(), separately=True), LateKeys()),
            lambda: Own(ElementDropoutObservation(NineOrEleven(), 0.5), Late()),
        ):
            with pytest.raises(ValueError, match="Own shows others"):
                run(normalizer(make))

    def test_must_pass_on_the_flags(self, normalizer: Any) -> None:
        with pytest.raises(ValueError, match="must reach .*and Forgetful does not pass it on"):
            run(normalizer(lambda: Forgetful(flicker())))

    def test_may_declare_that_its_flags_are_right(self, normalizer: Any) -> None:
        with pytest.raises(ValueError, match=f"set the attribute {DECLARED} = True"):
            run(normalizer(lambda: HoldsLast(flicker())))

        class DeclaredHoldsLast(HoldsLast):
            flags_are_of_shown_frames = True

        assert DECLARED == "flags_are_of_shown_frames"
        env = run(normalizer(lambda: DeclaredHoldsLast(flicker())))
        assert env.obs_rms.mean == pytest.approx([10.0, 10.0], abs=0.3)

    def test_lost_flags_are_no_matter_where_zeros_are_blank(self, normalizer: Any) -> None:
        env = NormalizeVisibleObservation(Forgetful(flicker()), zero_is_blank=True)
        assert run(env).obs_rms.mean == pytest.approx([10.0, 10.0], abs=0.3)

    def test_may_be_known_by_what_it_does_not_override(self, normalizer: Any) -> None:
        class Louder(gym.RewardWrapper):
            def reward(self, reward: Any) -> Any:
                return 2 * reward

        class Nothing(gym.Wrapper):
            pass

        run(normalizer(lambda: gw.FlattenObservation(Nothing(Louder(flicker())))))
        with pytest.raises(ValueError, match=WRONG.format("FrameStackObservation")):
            normalizer(lambda: Nothing(Louder(gw.FrameStackObservation(flicker(), 2))))

    def test_may_lie_around_several_layers_that_blank_with_several_values(
        self, normalizer: Any
    ) -> None:
        run(normalizer(lambda: Own(flicker(flicker(), blank_value=5.0), lambda obs: obs)))


class TestSubprocesses:
    """Cannot be looked into."""

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (flicker, None),
            (NineOrEleven, None),
            (partial(NineOrEleven, tells=True), None),
            (partial(around, "ReshapeObservation", flicker()), None),
            (
                partial(around, "FrameStackObservation", flicker()),
                "what is inside of SubprocVecEnv",
            ),
            (partial(around, "DelayObservation", flicker()), "what is inside of SubprocVecEnv"),
        ],
    )
    @pytest.mark.parametrize("n_envs", [1, 2])
    def test_a_contradiction_is_noticed(self, make: Any, message: str | None, n_envs: int) -> None:
        venv = SubprocVecEnv([make] * n_envs, start_method="fork")
        try:
            env = VecNormalizeVisible(venv)
            if message is None:
                run(env, 100)
            else:
                with pytest.raises(ValueError, match=message):
                    run(env, 100)
        finally:
            venv.close()

    def test_a_vector_of_subprocesses_is_watched_too_unless_it_is_declared(self) -> None:
        late = partial(around, "DelayObservation", flicker())
        for make, fails in ((flicker, False), (late, True), (Declared(late()), False)):
            envs = AsyncVectorEnv([make if callable(make) else lambda make=make: make] * 2,
                                  autoreset_mode=AutoresetMode.SAME_STEP)  # fmt: skip
            try:
                env = VecNormalizeVisible(GymnasiumVecEnv(envs))
                if fails:
                    with pytest.raises(ValueError, match="what is inside of AsyncVectorEnv"):
                        run(env)
                else:
                    run(env)
            finally:
                envs.close()

    def test_a_stack_of_frames_around_is_refused_at_once(self) -> None:
        venv = SubprocVecEnv([flicker], start_method="fork")
        try:
            with pytest.raises(ValueError, match=WRONG.format("VecFrameStack")):
                VecNormalizeVisible(VecFrameStack(venv, 2))
        finally:
            venv.close()


class TestKeysOfTheirOwn:
    """What is added under a key that is not normalised does no harm."""

    def test_the_time_beside_the_observation(self) -> None:
        def make() -> gym.Env:
            return gw.TimeAwareObservation(timed(flicker()), flatten=False)

        with pytest.raises(ValueError, match="adds the time, which nothing blanks"):
            VecNormalizeVisible(DummyVecEnv([make]))
        env = VecNormalizeVisible(DummyVecEnv([make]), norm_obs_keys=["obs"])
        assert run(env).obs_rms["obs"].mean == pytest.approx([10.0, 10.0], abs=0.3)
        with pytest.raises(ValueError, match="adds the time, which nothing blanks"):
            NormalizeVisibleObservation(make())


class TestStrangersPrograms:
    def test_the_delay_of_the_issue_by_make_vec_env(self) -> None:
        with pytest.raises(ValueError, match="DelayObservation shows an earlier frame"):
            make_vec_env(
                flicker, 2, normalize=True, wrapper_class=lambda env: gw.DelayObservation(env, 1)
            )
        # The remedy that the message names gives the numbers that were wanted.
        env = make_vec_env(lambda: flicker(gw.DelayObservation(NineOrEleven(), 1)), 2, seed=0,
                           normalize=True)  # fmt: skip
        run(env, 1_000)
        # The delayed frame of a reset is zeros, and true ones.
        assert env.obs_rms.mean == pytest.approx([9.8, 9.8], abs=0.2)

    def test_a_camera_pipeline_that_crops_scales_and_turns(self) -> None:
        crop = lambda obs: obs[1:]  # noqa: E731
        make = lambda: Own(flicker(Camera()), crop, spaces.Box(0, 255, (5, 5, 3), np.uint8))  # noqa: E731
        run(VecNormalizeVisible(VecTransposeImage(DummyVecEnv([make] * 2))))

    def test_a_vec_wrapper_of_ones_own_that_smooths(self) -> None:
        class Smooth(VecEnvWrapper):
            def reset(self) -> Any:
                self.mean = self.venv.reset()
                return self.mean

            def step_wait(self) -> Any:
                obs, *others = self.venv.step_wait()
                self.mean = (self.mean + obs) / 2
                return (self.mean, *others)

        with pytest.raises(ValueError, match="Smooth shows others"):
            run(VecNormalizeVisible(Smooth(make_vec_env(FLICKERING, 2))))
        run(VecNormalizeVisible(Smooth(make_vec_env("CartPole-v1", 2))))

    def test_an_atari_habit_that_drops_infos(self) -> None:
        class Fire(NineOrEleven):
            action_space = spaces.Discrete(3)

            def get_action_meanings(self) -> list[str]:
                return ["NOOP", "FIRE", "LEFT"]

        with pytest.raises(ValueError, match="FireResetEnv does not pass it on"):
            run(VecNormalizeVisible(DummyVecEnv([lambda: FireResetEnv(flicker(Fire()))])))

    def test_the_previous_action_in_a_key_that_is_not_normalised(self) -> None:
        make = lambda: PreviousActionObservation(flicker(Keyed()))  # noqa: E731
        env = VecNormalizeVisible(DummyVecEnv([make]), norm_obs_keys=["gyro", "speed"])
        assert run(env).obs_rms["gyro"].mean == pytest.approx([10.0, 10.0], abs=0.3)

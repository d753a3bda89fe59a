"""The CartPole family: one physics, blank frames drawn beside it, and what the agent is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import error

import thrust_pomdp  # noqa: F401
from thrust_pomdp.envs import FlickeringCartPoleEnv, MaskedCartPoleEnv

#: Written out, not imported: another key would change every schedule anyone has recorded.
KEY = 0x70F1_1C4E

FLICKERING = "FlickeringCartPole-v0"
BURST = "BurstFlickeringCartPole-v0"
MASKED = "MaskedCartPole-v0"
BOTH = "MaskedFlickeringCartPole-v0"

Policy = Callable[[np.ndarray], int]


class Frame(NamedTuple):
    """What one call of ``reset`` or ``step`` gave."""

    start: bool
    obs: np.ndarray
    reward: float | None
    terminated: bool
    truncated: bool
    info: dict[str, Any]


def random_policy(seed: int) -> Policy:
    generator = np.random.default_rng(seed)
    return lambda state: int(generator.integers(2))


def balance(state: np.ndarray) -> int:
    """Keep the pole up for ever from the true state (gains within FACTS section 2's ranges)."""
    x, x_dot, theta, theta_dot = state
    return int(theta + 0.45 * theta_dot + 0.1 * x + 0.25 * x_dot > 0)


def play(env: gym.Env, n_frames: int, policy: Policy, seed: int | None) -> list[Frame]:
    """Record frames across episodes; only the first reset is seeded."""
    frames = []
    ended = True
    for _ in range(n_frames):
        if ended:
            obs, info = env.reset(seed=seed if not frames else None)
            frames.append(Frame(True, obs, None, False, False, info))
            ended = False
            continue
        state = np.asarray(env.unwrapped.state, dtype=np.float32)
        obs, reward, terminated, truncated, info = env.step(policy(state))
        frames.append(Frame(False, obs, reward, terminated, truncated, info))
        ended = terminated or truncated
    return frames


def global_state() -> tuple[bytes, int]:
    """NumPy's global generator: its numbers and how many of them are used up."""
    state = np.random.get_state()
    return state[1].tobytes(), state[2]


def blank_flags(frames: list[Frame]) -> list[bool]:
    return [frame.info["blanked"] for frame in frames]


def first_starts(frames: list[Frame]) -> list[int]:
    return [idx for idx, frame in enumerate(frames) if frame.start]


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )


def same_outcome(one: Frame, other: Frame) -> bool:
    """Compare all but observation and info; types count, so ``True`` is not ``np.True_``."""
    ours = (one.start, one.reward, one.terminated, one.truncated)
    theirs = (other.start, other.reward, other.terminated, other.truncated)
    return ours == theirs and [type(x) for x in ours] == [type(x) for x in theirs]


class TestBaseTrajectory:
    """The sensor is all that differs from CartPole-v1."""

    @pytest.mark.parametrize("policy", ["random", "balancing"])
    @pytest.mark.parametrize(
        ("env_id", "kwargs"),
        [
            (FLICKERING, {}),
            (FLICKERING, {"flicker_prob": 0.9}),
            (BURST, {}),
            (BOTH, {}),
            (MASKED, {}),
        ],
    )
    def test_states_rewards_and_ends_are_those_of_cartpole(
        self, env_id: str, kwargs: dict[str, Any], policy: str
    ) -> None:
        # 1,100 balanced frames cross two truncations, as many random ones some fifty falls.
        pick = (lambda: balance) if policy == "balancing" else (lambda: random_policy(1))
        base = play(gym.make("CartPole-v1"), 1_100, pick(), seed=3)
        ours = play(gym.make(env_id, expose_state=True, **kwargs), 1_100, pick(), seed=3)
        assert len(first_starts(base)) >= 3
        assert any(frame.truncated for frame in base) == (policy == "balancing")
        for frame, reference in zip(ours, base, strict=True):
            assert same_outcome(frame, reference)
            assert same_bits(frame.info["state"], reference.obs)

    @pytest.mark.parametrize("env_id", [FLICKERING, BURST])
    def test_a_visible_frame_is_cartpoles_and_a_blank_one_is_zero(self, env_id: str) -> None:
        base = play(gym.make("CartPole-v1"), 600, random_policy(2), seed=8)
        ours = play(gym.make(env_id), 600, random_policy(2), seed=8)
        assert 200 < sum(blank_flags(ours)) < 400
        for frame, reference in zip(ours, base, strict=True):
            expected = np.zeros(4, np.float32) if frame.info["blanked"] else reference.obs
            assert same_bits(frame.obs, expected)

    def test_probability_zero_is_cartpole_bit_for_bit(self) -> None:
        base = play(gym.make("CartPole-v1"), 600, random_policy(4), seed=5)
        ours = play(gym.make(FLICKERING, flicker_prob=0.0), 600, random_policy(4), seed=5)
        for frame, reference in zip(ours, base, strict=True):
            assert same_outcome(frame, reference)
            assert same_bits(frame.obs, reference.obs)
            assert frame.info == {"blanked": False}

    def test_probability_one_shows_nothing_and_pays_like_cartpole(self) -> None:
        base = play(gym.make("CartPole-v1"), 600, random_policy(4), seed=5)
        ours = play(gym.make(FLICKERING, flicker_prob=1.0), 600, random_policy(4), seed=5)
        for frame, reference in zip(ours, base, strict=True):
            assert same_outcome(frame, reference)
            assert same_bits(frame.obs, np.zeros(4, np.float32))
            assert frame.info == {"blanked": True}

    def test_reset_options_bound_the_start_state_as_in_cartpole(self) -> None:
        options = {"low": -0.01, "high": 0.02}
        expected, _ = gym.make("CartPole-v1").reset(seed=6, options=options)
        for env_id in (FLICKERING, MASKED):
            _, info = gym.make(env_id, expose_state=True).reset(seed=6, options=options)
            assert same_bits(info["state"], expected)

    def test_the_base_generator_is_where_cartpole_leaves_it(self) -> None:
        base, ours = gym.make("CartPole-v1"), gym.make(BURST)
        play(base, 300, random_policy(0), seed=1)
        play(ours, 300, random_policy(0), seed=1)
        assert ours.unwrapped.np_random.random() == base.unwrapped.np_random.random()


class TestBlankingStream:
    """Uniforms are a pure function of (seed, frame number), drawn beside the base generator."""

    def test_the_same_seed_gives_the_same_schedule(self) -> None:
        one = play(gym.make(BURST), 300, random_policy(0), seed=12)
        other = play(gym.make(BURST), 300, random_policy(0), seed=12)
        assert blank_flags(one) == blank_flags(other)

    def test_different_seeds_give_different_schedules(self) -> None:
        schedules = [
            tuple(blank_flags(play(gym.make(FLICKERING), 100, random_policy(0), seed=seed)))
            for seed in range(20)
        ]
        assert len(set(schedules)) == 20

    def test_environments_never_seeded_differ(self) -> None:
        one = play(gym.make(FLICKERING), 128, random_policy(0), seed=None)
        other = play(gym.make(FLICKERING), 128, random_policy(0), seed=None)
        assert blank_flags(one) != blank_flags(other)

    def test_an_independent_schedule_never_depends_on_actions(self) -> None:
        short = play(gym.make(FLICKERING), 600, random_policy(1), seed=2)
        long = play(gym.make(FLICKERING), 600, balance, seed=2)
        assert first_starts(short) != first_starts(long)
        assert blank_flags(short) == blank_flags(long)

    @pytest.mark.parametrize("env_id", [FLICKERING, BOTH, BURST])
    def test_flags_follow_from_the_prescribed_uniforms_one_per_frame(self, env_id: str) -> None:
        frames = play(gym.make(env_id), 600, random_policy(7), seed=31)
        sequence = np.random.SeedSequence(31, spawn_key=(KEY, 0))
        expected, blank = [], False
        for frame, uniform in zip(frames, np.random.default_rng(sequence).random(600), strict=True):
            chain = 0.5 if env_id != BURST else (0.75 if blank else 0.25)
            blank = bool(uniform < (0.5 if frame.start else chain))
            expected.append(blank)
        assert len(first_starts(frames)) > 10
        assert blank_flags(frames) == expected

    def test_reset_without_a_seed_continues_the_stream(self) -> None:
        env = gym.make(FLICKERING)
        reference = blank_flags(play(gym.make(FLICKERING), 40, balance, seed=3))
        flags = [env.reset(seed=3)[1]["blanked"]]
        flags += [env.step(0)[4]["blanked"] for _ in range(4)]
        flags += [env.reset()[1]["blanked"] for _ in range(35)]
        assert flags == reference

    def test_reset_with_a_seed_restarts_it(self) -> None:
        env = gym.make(BURST)
        once = blank_flags(play(env, 60, random_policy(0), seed=4))
        on = blank_flags(play(env, 60, random_policy(0), seed=None))
        again = blank_flags(play(env, 60, random_policy(0), seed=4))
        assert once == again
        assert on != once

    def test_a_seed_gymnasium_refuses_leaves_the_stream_alone(self) -> None:
        env, untouched = gym.make(FLICKERING), gym.make(FLICKERING)
        env.reset(seed=3)
        untouched.reset(seed=3)
        for seed in (-1, "3", 1.5, np.int64(7)):
            with pytest.raises(error.Error, match="Seed must be"):
                env.reset(seed=seed)  # type: ignore[arg-type]
        flags, expected = [], []
        for _ in range(40):
            flags.append(env.reset()[1]["blanked"])
            expected.append(untouched.reset()[1]["blanked"])
        assert flags == expected

    def test_numpys_global_generator_is_left_alone(self) -> None:
        before = global_state()
        play(gym.make(BURST), 100, balance, seed=0)
        assert global_state() == before


class TestFreshResults:
    """Every call returns arrays and dicts of its own."""

    def test_blank_frames_never_share_memory(self) -> None:
        env = gym.make(FLICKERING, flicker_prob=1.0)
        observations = [env.reset(seed=0)[0]]
        observations[0][:] = 7.0
        for _ in range(3):
            observations.append(env.step(0)[0])
            assert not observations[-1].any()
            observations[-1][:] = 7.0
        observations.append(env.reset()[0])
        assert not observations[-1].any()
        for idx, one in enumerate(observations):
            for other in observations[:idx]:
                assert not np.shares_memory(one, other)

    @pytest.mark.parametrize("env_id", [FLICKERING, BURST, MASKED, BOTH])
    def test_what_the_caller_does_to_a_result_never_reaches_the_environment(
        self, env_id: str
    ) -> None:
        kwargs = {"expose_state": True}
        clean = play(gym.make(env_id, **kwargs), 60, balance, seed=1)
        env = gym.make(env_id, **kwargs)
        obs, info = env.reset(seed=1)
        for frame in clean[1:]:
            state = info["state"].copy()
            obs[:] = 99.0
            info["state"][:] = 99.0
            info["blanked"] = "spoilt"
            obs, _, _, _, info = env.step(balance(state))
            assert same_bits(obs, frame.obs)
            assert same_bits(info["state"], frame.info["state"])
            assert info.get("blanked") == frame.info.get("blanked")

    def test_info_dicts_are_new_on_every_call(self) -> None:
        env = gym.make(FLICKERING)
        infos = [env.reset(seed=0)[1], env.step(0)[4], env.step(0)[4], env.reset()[1]]
        assert len({id(info) for info in infos}) == 4

    def test_a_visible_observation_and_the_exposed_state_are_two_arrays(self) -> None:
        obs, info = gym.make(FLICKERING, flicker_prob=0.0, expose_state=True).reset(seed=0)
        assert same_bits(obs, info["state"])
        assert not np.shares_memory(obs, info["state"])


class TestInfo:
    @pytest.mark.parametrize("env_id", [FLICKERING, BURST, BOTH])
    def test_the_flag_is_a_python_bool_on_reset_and_step(self, env_id: str) -> None:
        frames = play(gym.make(env_id), 200, random_policy(0), seed=0)
        for starts in (True, False):
            kinds = {type(f.info["blanked"]) for f in frames if f.start is starts}
            values = {f.info["blanked"] for f in frames if f.start is starts}
            assert kinds == {bool}
            assert values == {True, False}

    @pytest.mark.parametrize("env_id", [FLICKERING, BURST, BOTH])
    def test_the_flag_says_whether_the_frame_is_zero(self, env_id: str) -> None:
        for frame in play(gym.make(env_id), 300, random_policy(0), seed=0):
            assert frame.info["blanked"] == (not frame.obs.any())

    @pytest.mark.parametrize("env_id", [FLICKERING, BURST, BOTH, MASKED])
    def test_the_true_state_is_there_only_when_asked_for(self, env_id: str) -> None:
        for frame in play(gym.make(env_id), 40, random_policy(0), seed=0):
            assert "state" not in frame.info
        for frame in play(gym.make(env_id, expose_state=True), 40, random_policy(0), seed=0):
            assert frame.info["state"].shape == (4,)
            assert frame.info["state"].dtype == np.float32

    def test_the_true_state_is_shown_even_while_the_frame_is_blank(self) -> None:
        env = gym.make(FLICKERING, flicker_prob=1.0, expose_state=True)
        for frame in play(env, 40, random_policy(0), seed=0):
            assert not frame.obs.any()
            assert frame.info["state"].all()


class TestHiddenVelocities:
    @pytest.mark.parametrize("env_id", [MASKED, BOTH])
    def test_position_and_angle_are_what_is_left(self, env_id: str) -> None:
        env = gym.make(env_id, expose_state=True)
        frames = play(env, 300, random_policy(0), seed=0)
        visible = [frame for frame in frames if not frame.info.get("blanked", False)]
        assert len(visible) > 100
        for frame in visible:
            x, _, theta, _ = frame.info["state"]
            assert same_bits(frame.obs, np.array([x, theta], np.float32))

    @pytest.mark.parametrize("env_id", [MASKED, BOTH])
    def test_the_space_has_the_bounds_of_position_and_angle(self, env_id: str) -> None:
        space = gym.make(env_id).observation_space
        base = gym.make("CartPole-v1").observation_space
        expected = gym.spaces.Box(base.low[[0, 2]], base.high[[0, 2]], dtype=np.float32)
        assert space == expected
        assert space.high == pytest.approx([4.8, 24 * np.pi / 180], rel=1e-6)

    def test_a_blank_frame_is_two_zeros(self) -> None:
        obs, info = gym.make(BOTH, flicker_prob=1.0).reset(seed=0)
        assert same_bits(obs, np.zeros(2, np.float32))
        assert info["blanked"] is True

    def test_hiding_leaves_the_blanking_schedule_as_it_is(self) -> None:
        shown = play(gym.make(FLICKERING), 200, random_policy(0), seed=9)
        hidden = play(gym.make(BOTH), 200, random_policy(0), seed=9)
        assert blank_flags(shown) == blank_flags(hidden)

    def test_velocities_are_shown_unless_hidden(self) -> None:
        space = gym.make(FLICKERING).observation_space
        assert space == gym.make("CartPole-v1").observation_space


class TestIntegrator:
    # From rest at the origin, pushed right: temp = 10 / 1.1, thetaacc = -temp / (.5 (4/3 - .1/1.1))
    # = -600/41, xacc = temp + .05 (600/41) / 1.1 = 400/41; the velocities gain .02 times as much.
    X_DOT, THETA_DOT = 8 / 41, -12 / 41

    @pytest.mark.parametrize("env_id", [FLICKERING, MASKED])
    @pytest.mark.parametrize(
        ("integrator", "x", "theta"),
        [("euler", 0.0, 0.0), ("semi-implicit euler", 0.02 * 8 / 41, -0.02 * 12 / 41)],
    )
    def test_one_step_from_rest_by_hand(
        self, env_id: str, integrator: str, x: float, theta: float
    ) -> None:
        env = gym.make(env_id, kinematics_integrator=integrator, expose_state=True)
        env.reset(seed=0)
        env.unwrapped.state = np.zeros(4)
        _, _, _, _, info = env.step(1)
        expected = [x, self.X_DOT, theta, self.THETA_DOT]
        assert env.unwrapped.state.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15)
        assert info["state"].tolist() == pytest.approx(expected, rel=1e-6)

    def test_semi_implicit_is_gymnasiums_own(self) -> None:
        base = gym.make("CartPole-v1")
        base.unwrapped.kinematics_integrator = "semi-implicit euler"
        env = gym.make(FLICKERING, kinematics_integrator="semi-implicit euler", expose_state=True)
        expected = play(base, 600, random_policy(3), seed=2)
        for frame, reference in zip(
            play(env, 600, random_policy(3), seed=2), expected, strict=True
        ):
            assert same_outcome(frame, reference)
            assert same_bits(frame.info["state"], reference.obs)

    @pytest.mark.parametrize("env_id", [FLICKERING, BURST, MASKED, BOTH])
    def test_explicit_euler_is_the_default(self, env_id: str) -> None:
        assert gym.make(env_id).unwrapped.kinematics_integrator == "euler"

    @pytest.mark.parametrize("cls", [FlickeringCartPoleEnv, MaskedCartPoleEnv])
    @pytest.mark.parametrize("name", ["semi-implicit", "Euler", "rk4", "", None])
    def test_an_unknown_one_is_refused_by_name_rule_and_value(
        self, cls: type[FlickeringCartPoleEnv | MaskedCartPoleEnv], name: Any
    ) -> None:
        with pytest.raises(ValueError, match="kinematics_integrator must be one of") as caught:
            cls(kinematics_integrator=name)
        message = str(caught.value)
        assert "'euler', 'semi-implicit euler'" in message
        assert repr(name) in message


class TestBadArguments:
    @pytest.mark.parametrize(
        ("kwargs", "argument", "value"),
        [
            ({"flicker_prob": 1.5}, "flicker_prob", "1.5"),
            ({"flicker_prob": float("nan")}, "flicker_prob", "nan"),
            ({"flicker_prob": "0.5"}, "flicker_prob", "'0.5'"),
            ({"burst_len": 0.5}, "burst_len", "0.5"),
            ({"burst_len": float("inf")}, "burst_len", "inf"),
            ({"flicker_prob": 0.9, "burst_len": 4}, "burst_len", "4"),
            ({"flicker_prob": 0.0, "burst_len": 4}, "burst_len", "4"),
        ],
    )
    def test_they_are_refused_when_the_environment_is_made(
        self, kwargs: dict[str, Any], argument: str, value: str
    ) -> None:
        with pytest.raises(ValueError, match=argument) as caught:
            gym.make(FLICKERING, **kwargs)
        assert value in str(caught.value)

    def test_the_burst_id_refuses_what_its_default_burst_cannot_do(self) -> None:
        with pytest.raises(ValueError, match=r"flicker_prob=0.9.*burst_len=4"):
            gym.make(BURST, flicker_prob=0.9)

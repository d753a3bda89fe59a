"""POPGym's position-only CartPoles: its numbers, without its faults, alone and in vectors."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from vectors import (
    MODES,
    N_ENVS,
    assert_same,
    assert_same_reset,
    assert_same_steps,
    native,
    spoil,
    synchronous,
)

import thrust_pomdp  # noqa: F401
from thrust_pomdp.envs import NoisyPositionOnlyCartPoleEnv, PositionOnlyCartPoleEnv
from thrust_pomdp.envs.noise import SensorNoise, SensorNoises

#: Written out, not imported: another key would change all noise anyone has recorded.
KEY = 0x6A05_51A2

#: POPGym's table (its repository at release 1.0.7).
CAPS = {
    "POPGymPositionOnlyCartPoleEasy-v0": 200,
    "POPGymPositionOnlyCartPoleMedium-v0": 400,
    "POPGymPositionOnlyCartPoleHard-v0": 600,
    "POPGymNoisyPositionOnlyCartPoleEasy-v0": 200,
    "POPGymNoisyPositionOnlyCartPoleMedium-v0": 200,
    "POPGymNoisyPositionOnlyCartPoleHard-v0": 200,
}
SIGMAS = {
    "POPGymNoisyPositionOnlyCartPoleEasy-v0": 0.1,
    "POPGymNoisyPositionOnlyCartPoleMedium-v0": 0.2,
    "POPGymNoisyPositionOnlyCartPoleHard-v0": 0.3,
}
PLAIN = [env_id for env_id in CAPS if env_id not in SIGMAS]
NOISY_EASY = "POPGymNoisyPositionOnlyCartPoleEasy-v0"

every_id = pytest.mark.parametrize("env_id", CAPS)


def balance(state: np.ndarray) -> int:
    """Keep the pole up for ever from the true state (gains within FACTS section 2's ranges)."""
    x, x_dot, theta, theta_dot = state
    return int(theta + 0.45 * theta_dot + 0.1 * x + 0.25 * x_dot > 0)


def frames_of(env: gym.Env, n_frames: int, actions: Any, seed: int | None) -> list[Any]:
    """Observations and infos across episodes, reset frames included."""
    frames, ended = [], True
    for n in range(n_frames):
        if ended:
            obs, info = env.reset(seed=seed if n == 0 else None)
            ended = False
        else:
            obs, _, terminated, truncated, info = env.step(int(actions[n]))
            ended = terminated or truncated
        frames.append((obs, info))
    return frames


class TestRewardAndLength:
    @every_id
    def test_a_pole_kept_up_is_truncated_at_the_cap_with_a_return_of_one(self, env_id: str) -> None:
        env, cap = gym.make(env_id, expose_state=True), CAPS[env_id]
        _, info = env.reset(seed=0)
        rewards = []
        for step in range(cap):
            _, reward, terminated, truncated, info = env.step(balance(info["state"]))
            rewards.append(reward)
            assert (terminated, truncated) == (False, step == cap - 1)
        assert set(rewards) == {1.0 / cap}
        assert sum(rewards) == pytest.approx(1.0)

    @every_id
    def test_the_step_on_which_the_pole_falls_is_paid_like_any_other(self, env_id: str) -> None:
        env = gym.make(env_id)
        env.reset(seed=0)
        rewards, terminated = [], False
        while not terminated:
            _, reward, terminated, truncated, _ = env.step(1)
            rewards.append(reward)
            assert not truncated
        assert rewards == [1.0 / CAPS[env_id]] * len(rewards)
        assert 5 < len(rewards) < 20

    def test_a_fall_on_the_very_last_step_sets_both_flags(self) -> None:
        falls = 0
        env = gym.make(PLAIN[0])
        env.reset(seed=0)
        while not env.step(1)[2]:
            falls += 1
        env = gym.make(PLAIN[0], max_episode_length=falls + 1)
        env.reset(seed=0)
        outcomes = [env.step(1)[2:4] for _ in range(falls + 1)]
        assert outcomes == [(False, False)] * falls + [(True, True)]

    def test_length_and_reward_scale_change_together(self) -> None:
        for env_id in (PLAIN[0], NOISY_EASY):
            env = gym.make(env_id, max_episode_length=7, expose_state=True)
            _, info = env.reset(seed=0)
            outcomes = []
            for _ in range(7):
                *outcome, info = env.step(balance(info["state"]))
                outcomes.append(outcome[1:])
            assert outcomes == [[1 / 7, False, False]] * 6 + [[1 / 7, False, True]]

    def test_the_count_of_steps_starts_anew_with_each_episode(self) -> None:
        env = PositionOnlyCartPoleEnv(max_episode_length=10)
        for n_steps in (4, 9, 10):
            env.reset(seed=0)
            truncated = [env.step(n % 2)[3] for n in range(n_steps)]
            assert truncated == [n == 9 for n in range(n_steps)]


class TestPhysics:
    @every_id
    def test_states_and_falls_are_cartpoles_over_many_episodes(self, env_id: str) -> None:
        base, ours = gym.make("CartPole-v1"), gym.make(env_id, expose_state=True)
        actions = np.random.default_rng(0).integers(2, size=600)
        expected = frames_of(base, 600, actions, seed=3)
        for (_, info), (state, _) in zip(
            frames_of(ours, 600, actions, seed=3), expected, strict=True
        ):
            assert info["state"].tobytes() == state.tobytes()
        assert ours.unwrapped.np_random.random() == base.unwrapped.np_random.random()

    @pytest.mark.parametrize("env_id", PLAIN)
    def test_the_observation_is_position_and_angle_at_reset_too(self, env_id: str) -> None:
        # POPGym's velocity-only CartPole shows positions at reset: a fault of just this kind.
        env = gym.make(env_id, expose_state=True)
        actions = np.random.default_rng(1).integers(2, size=200)
        for obs, info in frames_of(env, 200, actions, seed=0):
            assert obs.tobytes() == info["state"][[0, 2]].tobytes()

    def test_without_noise_the_noisy_environment_is_the_plain_one(self) -> None:
        plain, noisy = gym.make(PLAIN[0]), gym.make(NOISY_EASY, noise_sigma=0.0)
        actions = np.random.default_rng(1).integers(2, size=200)
        for one, other in zip(
            frames_of(plain, 200, actions, 0), frames_of(noisy, 200, actions, 0), strict=True
        ):
            assert one[0].tobytes() == other[0].tobytes()


class TestNoise:
    @pytest.mark.parametrize("env_id", SIGMAS)
    def test_frames_are_truth_plus_the_prescribed_numbers_clipped(self, env_id: str) -> None:
        env = gym.make(env_id, expose_state=True)
        sequence = np.random.SeedSequence(31, spawn_key=(KEY,))
        numbers = np.random.default_rng(sequence).standard_normal((600, 2))
        noise = (SIGMAS[env_id] * numbers).astype(np.float32)
        actions = np.random.default_rng(7).integers(2, size=600)
        bounds = np.array([4.8, 24 * np.pi / 180], dtype=np.float32)
        n_clipped = 0
        for (obs, info), added in zip(frames_of(env, 600, actions, 31), noise, strict=True):
            seen = info["state"][[0, 2]] + added
            n_clipped += int((np.abs(seen) > bounds).any())
            assert obs.dtype == np.float32
            assert obs.tobytes() == np.clip(seen, -bounds, bounds).tobytes()
        # The bounds are far away for the smallest noise only.
        assert (n_clipped > 20) == (SIGMAS[env_id] > 0.1)

    def test_its_law_is_normal_and_independent(self) -> None:
        noise, n = SensorNoise(0.3, 2), 100_000
        noise.seed(0)
        numbers = np.array([noise.next_frame() for _ in range(n)], dtype=np.float64) / 0.3
        five = 5 / np.sqrt(n)
        assert np.abs(numbers.mean(axis=0)).max() < five
        assert np.abs(numbers.var(axis=0) - 1).max() < five * np.sqrt(2)
        assert np.abs((numbers**4).mean(axis=0) - 3).max() < five * np.sqrt(96)
        assert abs((numbers[:, 0] * numbers[:, 1]).mean()) < five
        assert np.abs((numbers[1:] * numbers[:-1]).mean(axis=0)).max() < five

    def test_it_never_depends_on_actions(self) -> None:
        added = []
        for seed in (1, 2):
            env = gym.make(NOISY_EASY, expose_state=True, noise_sigma=0.01)
            actions = np.random.default_rng(seed).integers(2, size=300)
            frames = frames_of(env, 300, actions, seed=5)
            added.append([obs - info["state"][[0, 2]] for obs, info in frames])
        # To the rounding of the difference.
        np.testing.assert_allclose(*added, atol=1e-6)

    def test_reset_with_a_seed_restarts_it_and_without_continues_it(self) -> None:
        env = gym.make(NOISY_EASY)
        actions = np.random.default_rng(0).integers(2, size=60)
        once = frames_of(env, 60, actions, seed=4)
        on = frames_of(env, 60, actions, seed=None)
        again = frames_of(env, 60, actions, seed=4)
        for (first, _), (second, _), (other, _) in zip(once, again, on, strict=True):
            assert first.tobytes() == second.tobytes()
            assert first.tobytes() != other.tobytes()

    def test_environments_never_seeded_differ(self) -> None:
        one, other = (gym.make(NOISY_EASY).reset()[0] for _ in range(2))
        assert one.tobytes() != other.tobytes()

    def test_a_seed_gymnasium_refuses_leaves_it_alone(self) -> None:
        env, untouched = gym.make(NOISY_EASY), gym.make(NOISY_EASY)
        for e in (env, untouched):
            e.reset(seed=3)
        with pytest.raises(gym.error.Error, match="Seed must be"):
            env.reset(seed=-1)
        assert env.step(0)[0].tobytes() == untouched.step(0)[0].tobytes()

    def test_a_vector_draws_the_numbers_of_single_ones(self) -> None:
        together, alone = SensorNoises(0.2, 2, 3), [SensorNoise(0.2, 2) for _ in range(3)]
        for idx, noise in enumerate(alone):
            together.seed(idx, idx)
            noise.seed(idx)
        rng = np.random.default_rng(0)
        # Over two blocks, with the environments at different places in theirs.
        for step in range(2 * SensorNoises.BLOCK + 100):
            if step % 5 == 0:
                indices = np.flatnonzero(rng.random(3) < 0.5)
                expected = [alone[idx].next_frame() for idx in indices]
                assert together.first_frames(indices).tobytes() == b"".join(
                    frame.tobytes() for frame in expected
                )
            expected = [noise.next_frame() for noise in alone]
            assert together.next_frames().tobytes() == np.stack(expected).tobytes()


class TestVectorEqualsSynchronousVector:
    @pytest.mark.parametrize("mode", MODES)
    @every_id
    def test_over_many_episodes_with_all_infos(self, env_id: str, mode: str) -> None:
        kwargs = {"expose_state": True, "max_episode_length": 18}
        ours, theirs = native(env_id, mode, **kwargs), synchronous(env_id, mode, **kwargs)
        assert_same_reset(ours, theirs, {"seed": 3})
        terminated, truncated = assert_same_steps(ours, theirs, 250)
        assert terminated > 20
        assert truncated > 20

    @pytest.mark.parametrize("mode", MODES)
    @every_id
    def test_with_the_arguments_of_the_id_up_to_the_cap(self, env_id: str, mode: str) -> None:
        ours, theirs = native(env_id, mode, 2), synchronous(env_id, mode, 2)
        assert_same_reset(ours, theirs, {"seed": 0})
        truncated = 0
        for _ in range(CAPS[env_id] + 5):
            actions = np.array([balance(ours.envs[0].state), 1])
            outcome = ours.step(actions)
            assert_same(outcome, theirs.step(actions))
            truncated += outcome[3].sum()
        assert truncated == 1

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("limit", [5, 18, 30])
    def test_with_a_time_limit_on_top(self, mode: str, limit: int) -> None:
        kwargs = {"max_episode_length": 18, "max_episode_steps": limit}
        ours, theirs = native(NOISY_EASY, mode, **kwargs), synchronous(NOISY_EASY, mode, **kwargs)
        assert_same_reset(ours, theirs, {"seed": 3})
        assert assert_same_steps(ours, theirs, 80)[1] > 5

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("env_id", [PLAIN[1], NOISY_EASY])
    def test_through_resets_with_seeds_options_and_masks(self, env_id: str, mode: str) -> None:
        ours, theirs = native(env_id, mode), synchronous(env_id, mode)
        mask = np.array([True, False, True, True, False])
        resets: list[dict[str, Any]] = [
            {"seed": [7, 3, 3, 0, 10**20]},
            {},
            {"options": {"low": -0.2, "high": 0.1}},
            {"options": {"reset_mask": mask}},
            {"options": {"reset_mask": ~mask, "high": 0.01}, "seed": 5},
            {"seed": [1, None, 2, None, 3]},
            {"seed": [1, None, 2, None, 3], "options": {"reset_mask": mask, "low": -0.05}},
        ]
        for n, arguments in enumerate(resets):
            assert_same_reset(ours, theirs, arguments)
            assert_same_steps(ours, theirs, 45, seed=n)

    @pytest.mark.parametrize("mode", MODES)
    def test_for_longer_than_a_block_of_random_numbers_lasts(self, mode: str) -> None:
        ours, theirs = native(NOISY_EASY, mode, 2), synchronous(NOISY_EASY, mode, 2)
        assert_same_reset(ours, theirs, {"seed": 3})
        assert_same_steps(ours, theirs, 2 * SensorNoises.BLOCK + 200)

    @pytest.mark.parametrize("mode", MODES)
    def test_in_arrays_that_belong_to_the_caller(self, mode: str) -> None:
        careful, careless = (native(NOISY_EASY, mode, expose_state=True) for _ in range(2))
        outcomes = [envs.reset(seed=0) for envs in (careful, careless)]
        rng = np.random.default_rng(0)
        for _ in range(60):
            spoil(outcomes[1])
            actions = rng.integers(2, size=N_ENVS)
            outcomes = [envs.step(actions) for envs in (careful, careless)]
            assert_same(*outcomes)

    @every_id
    def test_in_spaces(self, env_id: str) -> None:
        ours, theirs = native(env_id), synchronous(env_id)
        for name in ("observation_space", "action_space"):
            assert getattr(ours, name) == getattr(theirs, name)
            assert getattr(ours, f"single_{name}") == getattr(theirs, f"single_{name}")

    @pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
    def test_in_copies(self, copy_of: Any) -> None:
        original = native(NOISY_EASY, "SameStep")
        original.reset(seed=0)
        assert_same_steps(original, copy_of(original), 50)


class TestBadInput:
    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"max_episode_length": 0}, "max_episode_length must be at least 1, got 0"),
            ({"max_episode_length": 2.5}, "max_episode_length must be a whole number, got 2.5"),
            ({"expose_state": "no"}, "expose_state must be True or False, got 'no'"),
            ({"noise_sigma": -0.1}, "noise_sigma must be a finite number >= 0, got -0.1"),
            ({"noise_sigma": float("nan")}, "noise_sigma must be a finite number >= 0, got nan"),
            ({"noise_sigma": float("inf")}, "noise_sigma must be a finite number >= 0, got inf"),
            ({"noise_sigma": "big"}, "noise_sigma must be a number, got 'big'"),
            ({"noise_sigma": [0.1, 0.2]}, r"noise_sigma must be a number, got \[0.1, 0.2\]"),
        ],
    )
    def test_is_refused_alone_and_in_vectors(self, kwargs: dict[str, Any], message: str) -> None:
        for make in (gym.make, native, synchronous):
            with pytest.raises(ValueError, match=message):
                make(NOISY_EASY, **kwargs)

    def test_every_constructor_takes_all_arguments(self) -> None:
        # POPGym's Medium and Hard drop what they are given.
        for env_id in CAPS:
            kwargs = {"noise_sigma": 0.05} if env_id in SIGMAS else {}
            env = gym.make(
                env_id, max_episode_length=9, render_mode="rgb_array", expose_state=True, **kwargs
            ).unwrapped
            assert isinstance(env, PositionOnlyCartPoleEnv)
            assert (env.max_episode_length, env.render_mode) == (9, "rgb_array")
            if isinstance(env, NoisyPositionOnlyCartPoleEnv):
                assert env.noise_sigma == 0.05

"""The previous action and reward: what was done last, and what came of it, as the agent sees it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from sensor_envs import ACTIONS, OBSERVATIONS, VECTOR, AnyEnv, ScriptedEnv

import thrust_pomdp  # noqa: F401
from thrust_pomdp.wrappers import (
    ElementDropoutObservation,
    FlickerObservation,
    NormalizeVisibleObservation,
    PreviousActionObservation,
    PreviousRewardObservation,
)
from thrust_pomdp.wrappers.actions import ActionEncoding


class TestEncoding:
    def test_numbers_are_one_hot(self) -> None:
        encode = ActionEncoding(spaces.Discrete(3, start=5))
        assert encode(np.int64(6)).tolist() == [0.0, 1.0, 0.0]
        assert encode(7).tolist() == encode(np.array(7)).tolist() == [0.0, 0.0, 1.0]
        assert encode(np.array([5, 7])).tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]

    def test_several_numbers_are_one_hot_one_after_the_other(self) -> None:
        encode = ActionEncoding(spaces.MultiDiscrete([2, 3], start=[0, 4]))
        assert encode(np.array([1, 4])).tolist() == [0.0, 1.0, 1.0, 0.0, 0.0]
        batch = encode(np.array([[1, 4], [0, 6]]))
        assert batch.tolist() == [[0.0, 1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 1.0]]
        grid = ActionEncoding(spaces.MultiDiscrete([[2, 2], [2, 2]]))
        assert grid(np.array([[0, 1], [1, 0]])).tolist() == [1, 0, 0, 1, 0, 1, 1, 0]

    def test_bits_stay_as_they_are(self) -> None:
        encode = ActionEncoding(spaces.MultiBinary((2, 2)))
        assert encode(np.array([[1, 0], [1, 1]], np.int8)).tolist() == [1.0, 0.0, 1.0, 1.0]

    def test_bounded_components_are_scaled_and_clipped_and_others_stay(self) -> None:
        low = np.array([-2.0, 0.0, -np.inf, 3.0, 4.0], np.float32)
        high = np.array([2.0, 10.0, np.inf, np.inf, 4.0], np.float32)
        encode = ActionEncoding(spaces.Box(low, high))
        assert encode(np.array([-2.0, 10.0, 77.0, 5.0, 4.0])).tolist() == [-1, 1, 77, 5, 0]
        assert encode(np.array([[1.0, 2.5, -3.0, 3.0, 4.0]])).tolist() == [[0.5, -0.5, -3, 3, 0]]
        assert encode(np.array([-9.0, 99.0, 0.0, 3.0, 4.0])).tolist() == [-1, 1, 0, 3, 0]
        assert encode.space.low.tolist() == [-1.0, -1.0, -np.inf, 0.0, -1.0]

    def test_the_widest_bounds_that_there_are_still_scale(self) -> None:
        bound = np.finfo(np.float32).max
        encode = ActionEncoding(spaces.Box(-bound, bound, (3,), np.float32))
        values = encode(np.array([-bound, 0.0, bound], np.float32)).tolist()
        assert values == pytest.approx([-1.0, 0.0, 1.0])

    def test_arrays_of_more_dimensions_become_vectors(self) -> None:
        encode = ActionEncoding(spaces.Box(-2.0, 2.0, (2, 2), np.float32))
        assert encode(np.array([[2.0, 0.0], [1.0, -2.0]])).tolist() == [1.0, 0.0, 0.5, -1.0]
        assert encode(np.zeros((5, 2, 2))).shape == (5, 4)

    @pytest.mark.parametrize("kind", ACTIONS)
    def test_it_lies_in_its_space_and_batches_equal_single_ones_to_the_bit(self, kind: str) -> None:
        space = ACTIONS[kind]
        encode = ActionEncoding(space)
        space.seed(0)
        actions = [space.sample() for _ in range(20)]
        before = [np.copy(action) for action in actions]
        single = [encode(action) for action in actions]
        assert all(encode.space.contains(row) for row in [*single, encode.none()])
        assert np.stack(single).tobytes() == encode(np.stack(actions)).tobytes()
        for row in single:
            row[:] = 9.0
        assert all((a == b).all() for a, b in zip(actions, before, strict=True))
        assert encode(actions[0]).max() <= 1.0


class TestWhatIsShown:
    @pytest.mark.parametrize("kind", ACTIONS)
    def test_the_action_that_led_here_and_zeros_at_the_start(self, kind: str) -> None:
        env = PreviousActionObservation(AnyEnv("vector", kind))
        bare, encode = AnyEnv("vector", kind), ActionEncoding(ACTIONS[kind])
        bare.reset(seed=0)
        obs, _ = env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(3):
            assert obs[3:].tolist() == [0.0] * encode.size
            assert env.observation_space.contains(obs)
            terminated = truncated = False
            while not (terminated or truncated):
                action = env.action_space.sample()
                obs, reward, terminated, truncated, info = env.step(action)
                expected = bare.step(action)
                assert obs[:3].tobytes() == expected[0].tobytes()
                assert (reward, terminated, truncated, info) == expected[1:]
                assert obs[3:].tolist() == encode(action).tolist()
                assert env.observation_space.contains(obs)
            obs, _ = env.reset()
            bare.reset()

    def test_a_dict_gets_a_key_more(self) -> None:
        env = PreviousActionObservation(AnyEnv("dict"), key="done")
        assert list(env.observation_space) == [*OBSERVATIONS["dict"], "done"]
        obs, _ = env.reset(seed=0)
        assert obs["done"].tolist() == [0.0, 0.0, 0.0]
        obs = env.step(1)[0]
        assert obs["done"].tolist() == [0.0, 1.0, 0.0]
        assert list(obs) == list(env.observation_space)

    @pytest.mark.parametrize("kind", ["image", "number", "numbers", "bits"])
    def test_anything_else_becomes_a_dict(self, kind: str) -> None:
        env, bare = PreviousActionObservation(AnyEnv(kind)), AnyEnv(kind)
        assert env.observation_space["observation"] is OBSERVATIONS[kind]
        (obs, _), (raw, _) = env.reset(seed=0), bare.reset(seed=0)
        assert list(obs) == ["observation", "previous_action"]
        np.testing.assert_array_equal(obs["observation"], raw)
        assert env.step(2)[0]["previous_action"].tolist() == [0.0, 0.0, 1.0]

    @pytest.mark.parametrize(
        ("dtype", "expected"),
        [(np.float32, np.float32), (np.float64, np.float64), (np.uint8, np.float32)],
    )
    def test_the_vector_holds_both_without_rounding(self, dtype: Any, expected: Any) -> None:
        space = spaces.Box(0, 200, (2,), dtype)
        env = PreviousActionObservation(ScriptedEnv(space, [(np.array([3, 200], dtype), {})]))
        obs, _ = env.reset()
        assert obs.dtype == env.observation_space.dtype == expected
        assert env.step(1)[0].tolist() == [3.0, 200.0, 0.0, 1.0]
        assert env.observation_space.contains(obs)

    def test_it_is_new_at_each_call(self) -> None:
        for kind in ("vector", "dict", "image"):
            env = PreviousActionObservation(AnyEnv(kind))
            env.reset(seed=0)
            first, second = env.step(1)[0], env.step(1)[0]
            for key in ("previous_action",) if kind != "vector" else (slice(None),):
                first[key][...] = 7.0
                assert second[key].max() == 1.0 or kind == "vector"
                assert not np.shares_memory(first[key], second[key])


class TestReward:
    @pytest.mark.parametrize("kind", ["vector", "dict", "image", "number"])
    def test_is_shown_as_it_was_given_and_zero_at_the_start(self, kind: str) -> None:
        env, bare = PreviousRewardObservation(AnyEnv(kind)), AnyEnv(kind)
        (obs, _), (raw, _) = env.reset(seed=0), bare.reset(seed=0)
        env.action_space.seed(0)
        last, n_ended = 0.0, 0
        for _ in range(40):
            shown = obs[3:] if kind == "vector" else obs["previous_reward"]
            assert shown.tolist() == [last]
            assert shown.dtype == np.float32
            assert env.observation_space.contains(obs)
            if kind == "vector":
                rest = obs[:3]
            elif kind == "dict":
                rest = {key: obs[key] for key in raw}
            else:
                rest = obs["observation"]
            np.testing.assert_equal(rest, raw)
            action = env.action_space.sample()
            obs, last, terminated, truncated, info = env.step(action)
            raw, *expected = bare.step(action)
            assert [last, terminated, truncated, info] == expected
            if terminated or truncated:
                (obs, _), (raw, _), last = env.reset(), bare.reset(), 0.0
                n_ended += 1
        assert n_ended > 3

    def test_is_added_to_the_action_in_either_order(self) -> None:
        class Paying(ScriptedEnv):
            def step(self, action: Any):
                return (*super().step(action)[:1], 0.1, False, False, {"blanked": self.flag})

        flag = np.array([True, False, True])
        env = Paying(VECTOR, [(np.ones(3, np.float32), {"blanked": flag})])
        env.flag = flag
        for first, second, expected in (
            (PreviousActionObservation, PreviousRewardObservation, [0, 1, np.float32(0.1)]),
            (PreviousRewardObservation, PreviousActionObservation, [np.float32(0.1), 0, 1]),
        ):
            both = second(first(env))
            both.reset()
            obs, _, _, _, info = both.step(1)
            assert obs[3:].tolist() == expected
            assert info["blanked"].tolist() == [True, False, True, False, False, False]
        assert both.get_wrapper_attr("previous_reward_key") == "previous_reward"

    def test_a_key_that_is_taken(self) -> None:
        with pytest.raises(ValueError, match="key must not be one of the observation's"):
            PreviousRewardObservation(AnyEnv("dict"), key="gyro")
        with pytest.raises(ValueError, match="env must be a Gymnasium environment, got 3"):
            PreviousRewardObservation(3)


class TestFlags:
    def told(self, space: spaces.Space, flag: Any) -> Any:
        env = PreviousActionObservation(ScriptedEnv(space, [(space.sample(), {"blanked": flag})]))
        told = env.reset()[1]["blanked"]
        np.testing.assert_equal(env.step(0)[4]["blanked"], told)
        return told

    def test_of_the_whole_frame_stay(self) -> None:
        for flag in (True, False):
            assert self.told(VECTOR, flag) is flag
            assert self.told(OBSERVATIONS["image"], flag) is flag

    def test_of_components_get_false_for_each_number_appended(self) -> None:
        flag = np.array([True, False, True])
        assert self.told(VECTOR, flag).tolist() == [True, False, True, False, False]
        assert flag.shape == (3,)

    def test_of_components_of_what_becomes_a_dict_go_to_its_key(self) -> None:
        flag = np.array([True, False])
        told = self.told(spaces.MultiDiscrete([3, 3]), flag)
        assert list(told) == ["observation"]
        assert told["observation"].tolist() == [True, False]

    def test_of_keys_stay(self) -> None:
        flag = {"gyro": np.array([True, False, True])}
        assert self.told(OBSERVATIONS["dict"], flag) == flag


class TestOrder:
    def test_the_action_survives_blank_frames_outside_of_the_normaliser(self) -> None:
        env = PreviousActionObservation(
            NormalizeVisibleObservation(FlickerObservation(gym.make("CartPole-v1"), 1.0))
        )
        env.reset(seed=0)
        assert env.step(1)[0].tolist() == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]

    @pytest.mark.parametrize("blank", [FlickerObservation, ElementDropoutObservation])
    def test_a_normaliser_around_the_reward_is_refused_too(self, blank: Any) -> None:
        inside = PreviousRewardObservation(blank(gym.make("CartPole-v1")))
        with pytest.raises(ValueError, match="erase the reward, .* Put PreviousRewardObservation"):
            NormalizeVisibleObservation(inside)

    @pytest.mark.parametrize("blank", [FlickerObservation, ElementDropoutObservation])
    def test_a_normaliser_around_it_is_refused_with_the_remedy(self, blank: Any) -> None:
        inside = PreviousActionObservation(blank(gym.make("CartPole-v1")))
        for env in (inside, gym.wrappers.TimeLimit(inside, 20)):
            with pytest.raises(ValueError, match="Put PreviousActionObservation around Normalize"):
                NormalizeVisibleObservation(env)


class TestBadArguments:
    @pytest.mark.parametrize(
        "space", [spaces.Text(3), spaces.Dict(a=VECTOR), spaces.Tuple((VECTOR,))]
    )
    def test_actions_that_are_no_numbers(self, space: spaces.Space) -> None:
        env = AnyEnv()
        env.action_space = space
        with pytest.raises(ValueError, match="action_space must be a Box, Discrete, MultiDiscrete"):
            PreviousActionObservation(env)

    @pytest.mark.parametrize(
        ("kind", "key", "message"),
        [
            ("dict", "gyro", "key must not be one of the observation's, .*, got 'gyro'"),
            ("image", "observation", "key must not be one of the observation's"),
            ("dict", "", "key must be the name of a key, got ''"),
            ("dict", 3, "key must be the name of a key, got 3"),
        ],
    )
    def test_a_key_that_is_taken_or_none(self, kind: str, key: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            PreviousActionObservation(AnyEnv(kind), key=key)

    def test_a_second_one_needs_another_key_in_a_dict(self) -> None:
        once = PreviousActionObservation(AnyEnv("dict"))
        with pytest.raises(ValueError, match="key must not be one"):
            PreviousActionObservation(once)

"""MaskObservation: components that are dropped or zeroed for good."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from sensor_envs import IMAGE, OBSERVATIONS, VECTOR, AnyEnv, ScriptedEnv

import thrust_pomdp  # noqa: F401
from thrust_pomdp.wrappers import (
    ElementDropoutObservation,
    FlickerObservation,
    MaskObservation,
    NormalizeVisibleObservation,
)

#: Every component of it is another number, so that one sees which are left.
PICTURE = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) + 1


def masked(space: spaces.Space, obs: Any, flag: Any = None, **kwargs: Any) -> tuple[Any, Any]:
    """What an observation and its flag become."""
    info = {} if flag is None else {"blanked": flag}
    env = MaskObservation(ScriptedEnv(space, [(obs, info)]), **kwargs)
    shown, told = env.reset(seed=0)
    stepped = env.step(0)
    assert env.observation_space.contains(shown)
    np.testing.assert_equal((stepped[0], stepped[4]), (shown, told))
    return shown, told.get("blanked")


class TestEqualsTheMaskedCartPole:
    def test_bit_for_bit(self) -> None:
        ours = MaskObservation(gym.make("CartPole-v1"), drop=[1, 3])
        theirs = gym.make("MaskedCartPole-v0")
        assert ours.observation_space == theirs.observation_space
        rng = np.random.default_rng(0)
        for seed in (3, None, None):
            mine, other = ours.reset(seed=seed), theirs.reset(seed=seed)
            while True:
                assert mine[0].tobytes() == other[0].tobytes()
                assert mine[1:] == other[1:]
                if len(mine) == 5 and mine[2]:
                    break
                action = int(rng.integers(2))
                mine, other = ours.step(action), theirs.step(action)


class TestWhatIsLeft:
    def test_of_a_vector(self) -> None:
        low, high = np.float32([-1.0, -2.0, -3.0]), np.float32([4.0, 5.0, 6.0])
        space = spaces.Box(low, high)
        obs = np.array([0.5, 1.5, 2.5], np.float32)
        assert masked(space, obs, drop=[1])[0].tolist() == [0.5, 2.5]
        assert masked(space, obs, drop=[2, 0])[0].tolist() == [1.5]
        assert masked(space, obs, zero=[0])[0].tolist() == [0.0, 1.5, 2.5]
        assert masked(space, obs, zero=[False, True, True])[0].tolist() == [0.5, 0.0, 0.0]
        assert masked(space, obs, zero=[0], drop=[1])[0].tolist() == [0.0, 2.5]
        env = MaskObservation(ScriptedEnv(space, []), drop=[1])
        assert env.observation_space == spaces.Box(low[[0, 2]], high[[0, 2]])

    def test_of_an_image(self) -> None:
        space = spaces.Box(0, 255, PICTURE.shape, np.uint8)
        np.testing.assert_array_equal(masked(space, PICTURE, drop=[1])[0], PICTURE[:, :, [0, 2]])
        np.testing.assert_array_equal(masked(space, PICTURE, drop=[0], axis=0)[0], PICTURE[1:])
        np.testing.assert_array_equal(
            masked(space, PICTURE, drop=[0, 3], axis=-2)[0], PICTURE[:, 1:3]
        )
        left_half = PICTURE.copy()
        left_half[:, :2] = 0
        np.testing.assert_array_equal(masked(space, PICTURE, zero=[0, 1], axis=1)[0], left_half)
        mask = np.zeros(PICTURE.shape, bool)
        mask[0, :2, 0] = True
        for given in (mask, mask.tolist()):
            shown, _ = masked(space, PICTURE, zero=given)
            np.testing.assert_array_equal(shown, np.where(mask, 0, PICTURE))
            assert shown.dtype == np.uint8

    def test_of_numbers_and_bits(self) -> None:
        space = spaces.MultiDiscrete([3, 5, 7], dtype=np.int8, start=[0, 2, -1])
        obs = np.array([1, 4, 3], np.int8)
        assert masked(space, obs, drop=[0])[0].tolist() == [4, 3]
        assert masked(space, obs, zero=[0, 2])[0].tolist() == [0, 4, 0]
        left = MaskObservation(ScriptedEnv(space, []), drop=[0]).observation_space
        assert left == spaces.MultiDiscrete([5, 7], dtype=np.int8, start=[2, -1])
        bits = np.array([1, 0, 1], np.int8)
        assert masked(spaces.MultiBinary(3), bits, drop=[1])[0].tolist() == [1, 1]
        assert masked(spaces.MultiBinary(3), bits, zero=[0])[0].tolist() == [0, 0, 1]
        env = MaskObservation(ScriptedEnv(spaces.MultiBinary((2, 3)), []), drop=[1])
        assert env.observation_space == spaces.MultiBinary((2, 2))

    def test_of_a_dict(self) -> None:
        space = OBSERVATIONS["dict"]
        obs, _ = AnyEnv("dict").reset(seed=0)
        shown, _ = masked(space, obs, drop=["camera", "mode"])
        assert list(shown) == ["bits", "gyro"]
        shown, _ = masked(space, obs, zero=["camera", "mode"])
        assert shown["mode"] == 0
        assert type(shown["mode"]) is np.int64
        assert not shown["camera"].any()
        assert shown["camera"].shape == (4, 4, 1)
        assert shown["gyro"] is obs["gyro"]
        shown, _ = masked(space, obs, drop={"gyro": [1], "bits": [0]}, zero={"gyro": [0]})
        assert shown["gyro"].tolist() == [0.0, obs["gyro"][2]]
        assert shown["bits"].tolist() == [obs["bits"][1]]
        shown, _ = masked(space, obs, drop=["camera"], zero={"gyro": [0]})
        assert list(shown) == ["bits", "gyro", "mode"]

    def test_keys_keep_the_order_of_the_space(self) -> None:
        space = spaces.Dict([("b", VECTOR), ("a", VECTOR), ("c", VECTOR)])
        env = MaskObservation(ScriptedEnv(space, []), drop=["c"], zero=["a"])
        assert list(env.observation_space) == ["b", "a"]

    def test_a_space_whose_components_are_zeroed_stays_an_image_for_others(self) -> None:
        env = MaskObservation(AnyEnv("image"), zero=[0])
        assert env.observation_space is IMAGE

    def test_it_is_new_and_the_environments_own_array_is_left_as_it_was(self) -> None:
        obs = np.array([1.0, 2.0, 3.0], np.float32)
        for kwargs in ({"drop": [0]}, {"zero": [0]}):
            env = MaskObservation(ScriptedEnv(VECTOR, [(obs, {})]), **kwargs)
            first, _ = env.reset()
            first[:] = 7.0
            assert obs.tolist() == [1.0, 2.0, 3.0]
            assert env.step(0)[0].tolist()[-2:] == [2.0, 3.0]


class TestFlags:
    def test_of_whole_frames_stay(self) -> None:
        obs = np.ones(3, np.float32)
        for flag in (True, False):
            assert masked(VECTOR, obs, flag, drop=[0])[1] is flag
            assert masked(VECTOR, obs, flag, zero=[0])[1] is flag

    def test_of_dropped_components_go_and_of_zeroed_ones_stay(self) -> None:
        obs, flags = np.ones(3, np.float32), np.array([True, False, False])
        assert masked(VECTOR, obs, flags, drop=[1])[1].tolist() == [True, False]
        assert masked(VECTOR, obs, flags, zero=[0])[1].tolist() == [True, False, False]
        assert masked(VECTOR, obs, flags, drop=[0], zero=[1])[1].tolist() == [False, False]
        picture_flags = PICTURE % 2 == 0
        space = spaces.Box(0, 255, PICTURE.shape, np.uint8)
        told = masked(space, PICTURE, picture_flags, drop=[2], axis=1)[1]
        np.testing.assert_array_equal(told, picture_flags[:, [0, 1, 3]])

    def test_of_dropped_keys_go(self) -> None:
        obs, _ = AnyEnv("dict").reset(seed=0)
        flags = {"camera": True, "gyro": np.array([True, False, True]), "mode": False}
        _, told = masked(OBSERVATIONS["dict"], obs, flags, drop=["camera"])
        assert list(told) == ["gyro", "mode"]
        _, told = masked(OBSERVATIONS["dict"], obs, flags, drop={"gyro": [2]})
        assert told["gyro"].tolist() == [True, False]
        assert told["camera"] is True

    def test_an_environment_that_tells_nothing_goes_on_telling_nothing(self) -> None:
        assert masked(VECTOR, np.ones(3, np.float32), zero=[0])[1] is None

    def test_they_fit_what_is_shown_with_layers_inside_and_outside(self) -> None:
        env = ElementDropoutObservation(
            MaskObservation(ElementDropoutObservation(AnyEnv(), 0.4), drop=[1]), 0.3
        )
        obs, info = env.reset(seed=0)
        for _ in range(50):
            assert info["blanked"].shape == obs.shape == (2,)
            assert ((obs == 0) == info["blanked"]).all()
            obs, _, terminated, truncated, info = env.step(0)
            if terminated or truncated:
                obs, info = env.reset()

    def test_a_constant_zero_is_normalised_to_zero(self) -> None:
        env = NormalizeVisibleObservation(MaskObservation(FlickerObservation(AnyEnv()), zero=[1]))
        shown = [env.reset(seed=0)[0], *(env.step(0)[0] for _ in range(2))]
        assert [obs[1] for obs in shown] == [0.0] * 3


class TestBadArguments:
    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({}, "drop or zero must name components to mask, got None for both"),
            ({"drop": []}, r"drop must list different positions from 0 to 2 .*, got \[\]"),
            ({"drop": [3]}, r"drop must list different positions from 0 to 2 .*, got \[3\]"),
            ({"zero": [-1]}, r"zero must list different positions from 0 to 2 .*, got \[-1\]"),
            ({"zero": [1, 1]}, r"zero must list different positions .*, got \[1, 1\]"),
            ({"drop": [0.5]}, r"drop must list different positions .*, got \[0.5\]"),
            ({"drop": iter([1])}, "drop must list different positions"),
            ({"drop": 1}, "drop must list different positions .*, got 1"),
            ({"drop": "x"}, "drop must list different positions .*, got 'x'"),
            ({"drop": [True, False, True]}, "drop must list different positions"),
            ({"drop": ["gyro"]}, "drop must list different positions"),
            ({"drop": [0, 1, 2]}, "drop and zero must leave something to see of the observation"),
            ({"zero": [0, 1, 2]}, "drop and zero must leave something to see of the observation"),
            ({"drop": [0, 1], "zero": [2]}, "drop and zero must leave something to see"),
            ({"drop": [0, 1], "zero": [1]}, "drop and zero must name different components"),
            ({"zero": [[0], [1, 2]]}, "zero must list different positions"),
            ({"zero": [True, False]}, r"must have the shape \(3,\), got \(2,\)"),
            ({"drop": [0], "axis": 1}, "axis must be one of the 1 axes of the observation, got 1"),
            ({"drop": [0], "axis": "last"}, "axis must be one of the 1 axes .*, got 'last'"),
        ],
    )
    def test_of_a_vector(self, kwargs: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            MaskObservation(AnyEnv(), **kwargs)

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"drop": ["radar"]}, r"drop must name at least one of the keys \['bits', 'camera', "),
            ({"zero": []}, r"zero must name at least one of the keys .*, got \[\]"),
            ({"drop": [0]}, r"drop must name at least one of the keys .*, got \[0\]"),
            ({"drop": ["gyro", "gyro"]}, "drop must name each key once"),
            ({"drop": {"radar": [0]}}, "drop must name at least one of the keys"),
            ({"drop": {"gyro": [7]}}, "positions from 0 to 2 of key 'gyro', got"),
            ({"drop": {"mode": [0]}}, "key 'mode' has no components to mask"),
            ({"drop": ["gyro"], "zero": {"gyro": [0]}}, r"must not both name the keys \['gyro'\]"),
            ({"drop": ["gyro"], "zero": ["gyro"]}, r"must not both name the keys \['gyro'\]"),
            (
                {"drop": ["bits", "camera"], "zero": ["gyro", "mode"]},
                "drop and zero must leave something to see, got all keys",
            ),
        ],
    )
    def test_of_a_dict(self, kwargs: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            MaskObservation(AnyEnv("dict"), **kwargs)

    @pytest.mark.parametrize(
        ("space", "kwargs"),
        [
            (spaces.Discrete(4), {"drop": [0]}),
            (spaces.Text(5), {"drop": [0]}),
            (spaces.Tuple((VECTOR, VECTOR)), {"drop": [0]}),
            (spaces.Box(-1.0, 1.0, ()), {"drop": [0]}),
            (spaces.Dict(a=spaces.Dict(b=VECTOR), c=VECTOR), {"drop": {"a": ["b"]}}),
        ],
    )
    def test_a_space_without_components(self, space: spaces.Space, kwargs: Any) -> None:
        with pytest.raises(ValueError, match="has no components to mask: arrays have"):
            MaskObservation(ScriptedEnv(space, []), **kwargs)

    @pytest.mark.parametrize(
        ("space", "zero"),
        [
            (spaces.Box(1.0, 2.0, (2,)), [0]),
            (spaces.MultiDiscrete([3, 3], start=[0, 1]), [1]),
            (spaces.Dict(a=spaces.Discrete(3, start=1), b=VECTOR), ["a"]),
        ],
    )
    def test_zeros_that_the_space_does_not_hold(self, space: spaces.Space, zero: Any) -> None:
        with pytest.raises(ValueError, match="zero needs a space that holds 0"):
            MaskObservation(ScriptedEnv(space, []), zero=zero)

    def test_zeros_of_what_is_no_array(self) -> None:
        space = spaces.Dict(mission=spaces.Text(5), gyro=VECTOR)
        with pytest.raises(ValueError, match="key 'mission' .* cannot be zeroed, it is no array"):
            MaskObservation(ScriptedEnv(space, []), zero=["mission"])
        assert list(
            MaskObservation(ScriptedEnv(space, []), drop=["mission"]).observation_space
        ) == ["gyro"]

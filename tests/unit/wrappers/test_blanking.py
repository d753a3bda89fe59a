"""FlickerObservation, ElementDropoutObservation: what is blanked, by which draws, told how."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from sensor_envs import OBSERVATIONS, VECTOR, AnyEnv, ScriptedEnv

import thrust_pomdp  # noqa: F401
from thrust_pomdp.envs.rendering import paint_sensor
from thrust_pomdp.wrappers import (
    ElementDropoutObservation,
    FlickerObservation,
    MaskObservation,
    NormalizeVisibleObservation,
    PreviousActionObservation,
)
from thrust_pomdp.wrappers.blanking import _shows_nothing

#: Written out, not imported: another key would change every schedule anyone has recorded.
KEY = 0x70F1_1C4E

DICT = OBSERVATIONS["dict"]


def uniforms(seed: int, n: int, depth: int = 0) -> np.ndarray:
    """The stream that DESIGN section 3 prescribes, from NumPy alone."""
    seed_sequence = np.random.SeedSequence(seed, spawn_key=(KEY, depth))
    return np.random.Generator(np.random.PCG64(seed_sequence)).random(n)


def play(
    env: gym.Env, n_frames: int, seed: int | None = 0, then: Any = lambda value: None
) -> list[tuple[Any, dict[str, Any]]]:
    """(observation, info) of some frames of one or more episodes; ``then`` gets hold of each."""
    env.action_space.seed(0)
    obs, info = env.reset(seed=seed)
    frames, ended = [], False
    while True:
        frames.append(copy.deepcopy((obs, info)))
        then((obs, info))
        if len(frames) == n_frames:
            return frames
        if ended:
            (obs, info), ended = env.reset(), False
        else:
            obs, _, terminated, truncated, info = env.step(env.action_space.sample())
            ended = terminated or truncated


def flags(frames: list[tuple[Any, dict[str, Any]]]) -> list[Any]:
    return [info["blanked"] for _, info in frames]


def same_obs(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_obs(one[k], other[k]) for k in one)
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def pair(kind: str, wrap: Any, n_frames: int = 60, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """The frames of an environment and those of a wrapped one, seeded alike."""
    return play(AnyEnv(kind), n_frames, seed), play(wrap(AnyEnv(kind)), n_frames, seed)


class TestEqualsTheFlickeringCartPole:
    @pytest.mark.parametrize(
        ("env_id", "kwargs"),
        [
            ("FlickeringCartPole-v0", {}),
            ("FlickeringCartPole-v0", {"flicker_prob": 0.8}),
            ("BurstFlickeringCartPole-v0", {"flicker_prob": 0.5, "burst_len": 4}),
        ],
    )
    def test_bit_for_bit_with_infos_over_many_episodes(
        self, env_id: str, kwargs: dict[str, Any]
    ) -> None:
        ours, theirs = (
            FlickerObservation(gym.make("CartPole-v1"), **kwargs),
            gym.make(env_id, **kwargs),
        )
        assert ours.observation_space == theirs.observation_space
        rng, episodes = np.random.default_rng(0), 0
        for seed in (7, None, None, 0, 10**20, None):
            mine, other = ours.reset(seed=seed), theirs.reset(seed=seed)
            while True:
                assert mine[0].tobytes() == other[0].tobytes()
                assert mine[0].dtype == other[0].dtype
                assert mine[1:] == other[1:]
                assert type(mine[-1]["blanked"]) is bool
                if len(mine) == 5 and mine[2]:
                    break
                action = int(rng.integers(2))
                mine, other = ours.step(action), theirs.step(action)
            episodes += 1
        assert episodes == 6

    def test_so_does_the_masked_and_flickering_one_with_a_mask_around(self) -> None:
        ours = MaskObservation(FlickerObservation(gym.make("CartPole-v1")), drop=[1, 3])
        theirs = gym.make("MaskedFlickeringCartPole-v0")
        assert ours.observation_space == theirs.observation_space
        for mine, other in zip(play(ours, 80), play(theirs, 80), strict=True):
            assert mine[0].tobytes() == other[0].tobytes()
            assert mine[1] == other[1]


class TestStream:
    def test_one_uniform_is_drawn_per_frame_the_reset_frames_included(self) -> None:
        told = flags(play(FlickerObservation(AnyEnv(), 0.4), 200, seed=11))
        assert told == (uniforms(11, 200) < 0.4).tolist()

    def test_it_is_a_function_of_the_seed_and_not_of_actions(self) -> None:
        schedules = []
        for action in (0, 1):
            env = FlickerObservation(gym.make("Acrobot-v1"))
            told = [env.reset(seed=5)[1]["blanked"]]
            schedules.append(told + [env.step(action)[4]["blanked"] for _ in range(60)])
        assert schedules[0] == schedules[1]

    def test_a_reset_without_a_seed_goes_on_and_one_with_a_seed_starts_anew(self) -> None:
        env = FlickerObservation(gym.make("Pendulum-v1"))
        told = [env.reset(seed=3)[1]["blanked"]] + [env.reset()[1]["blanked"] for _ in range(49)]
        assert told == (uniforms(3, 50) < 0.5).tolist()
        assert env.reset(seed=3)[1]["blanked"] == told[0]

    def test_environments_that_were_never_seeded_differ(self) -> None:
        schedules = [flags(play(FlickerObservation(AnyEnv()), 64, seed=None)) for _ in range(2)]
        assert schedules[0] != schedules[1]

    @pytest.mark.parametrize("kind", OBSERVATIONS)
    @pytest.mark.parametrize("wrap", [FlickerObservation, ElementDropoutObservation])
    def test_the_environments_own_generator_is_never_touched(self, kind: str, wrap: Any) -> None:
        bare, env = AnyEnv(kind), wrap(AnyEnv(kind))
        play(bare, 60)
        play(env, 60)
        states = [each.unwrapped.np_random.bit_generator.state for each in (bare, env)]
        assert states[0] == states[1]

    def test_stacked_layers_draw_from_streams_of_their_own(self) -> None:
        env = FlickerObservation(FlickerObservation(FlickerObservation(AnyEnv(), 0.3), 0.0), 0.2)
        assert env.n_blanking_layers == 3
        expected = (uniforms(4, 300) < 0.3) | (uniforms(4, 300, depth=2) < 0.2)
        assert flags(play(env, 300, seed=4)) == expected.tolist()

    @pytest.mark.parametrize(
        "between",
        [lambda env: env, lambda env: MaskObservation(env, zero=[1]), NormalizeVisibleObservation],
    )
    def test_a_flickering_environment_of_ours_counts_as_a_layer(self, between: Any) -> None:
        inside = gym.make("FlickeringCartPole-v0", flicker_prob=0.0)
        told = flags(play(FlickerObservation(between(inside)), 100, seed=9))
        assert told == (uniforms(9, 100, depth=1) < 0.5).tolist()

    def test_keys_that_blank_separately_take_turns_in_the_order_of_the_space(self) -> None:
        wrapped = FlickerObservation(AnyEnv("dict"), 0.5, keys=["mode", "bits"], separately=True)
        told = flags(play(wrapped, 100, seed=8))
        rows = (uniforms(8, 200) < 0.5).reshape(100, 2)
        assert told == [{"bits": row[0], "mode": row[1]} for row in rows.tolist()]
        assert {type(flag) for row in told for flag in row.values()} == {bool}

    def test_each_key_has_bursts_of_its_own(self) -> None:
        wrapped = FlickerObservation(
            ScriptedEnv(DICT, [(DICT.sample(), {})]), 0.5, burst_len=4, separately=True
        )
        told = flags(play(wrapped, 400, seed=2))
        numbers, states = uniforms(2, 1600).reshape(400, 4), [None] * 4
        thresholds = {None: 0.5, False: 0.25, True: 0.75}
        for frame, row in zip(told, numbers, strict=True):
            states = [bool(u < thresholds[s]) for u, s in zip(row, states, strict=True)]
            assert list(frame.values()) == states

    def test_a_single_key_sees_the_stream_that_the_whole_frame_would(self) -> None:
        for separately in (False, True):
            wrapped = FlickerObservation(
                AnyEnv("dict"), 0.5, 4, keys=["gyro"], separately=separately
            )
            whole = FlickerObservation(AnyEnv("dict"), 0.5, 4)
            told = [flag["gyro"] for flag in flags(play(wrapped, 200))]
            assert told == flags(play(whole, 200))

    def test_components_take_turns_in_c_order_key_after_key(self) -> None:
        env = ElementDropoutObservation(AnyEnv("dict"), 0.3, keys=["mode", "gyro", "bits"])
        told = flags(play(env, 50, seed=6))
        for frame, row in zip(told, (uniforms(6, 300) < 0.3).reshape(50, 6), strict=True):
            assert list(frame) == ["bits", "gyro", "mode"]
            assert frame["bits"].tolist() == row[:2].tolist()
            assert frame["gyro"].tolist() == row[2:5].tolist()
            assert frame["mode"] is bool(row[5])

    def test_components_of_an_image_are_its_numbers_one_by_one(self) -> None:
        env = ElementDropoutObservation(AnyEnv("image"), 0.3)
        size = 36 * 36 * 3
        for number, flag in enumerate(flags(play(env, 3, seed=6))):
            expected = uniforms(6, 3 * size)[number * size :][:size] < 0.3
            assert flag.shape == (36, 36, 3)
            assert flag.ravel().tolist() == expected.tolist()


class TestWhatIsShown:
    BLANKS: dict[str, Any] = {
        "vector": np.zeros(3, np.float32),
        "image": np.zeros((36, 36, 3), np.uint8),
        "number": np.int64(4),
        "shifted number": np.int64(2),
        "numbers": np.array([3, 5]),
        "bits": np.array([2, 2, 2]),
    }

    @pytest.mark.parametrize("kind", BLANKS)
    def test_visible_frames_pass_and_blank_ones_are_the_blank(self, kind: str) -> None:
        raw, shown = pair(kind, FlickerObservation)
        assert 10 < sum(flags(shown)) < 50
        for (obs, _), (seen, info) in zip(raw, shown, strict=True):
            visible = obs.astype(np.int64) if kind == "bits" else obs
            assert same_obs(seen, self.BLANKS[kind] if info["blanked"] else visible)

    @pytest.mark.parametrize("kind", BLANKS)
    def test_components_are_blanked_one_by_one(self, kind: str) -> None:
        raw, shown = pair(kind, ElementDropoutObservation)
        for (obs, _), (seen, info) in zip(raw, shown, strict=True):
            flag = np.asarray(info["blanked"])
            assert flag.shape == np.shape(obs)
            assert same_obs(seen, np.where(flag, self.BLANKS[kind], obs))

    @pytest.mark.parametrize("kind", OBSERVATIONS)
    @pytest.mark.parametrize("wrap", [FlickerObservation, ElementDropoutObservation])
    def test_it_lies_in_the_space(self, kind: str, wrap: Any) -> None:
        env = wrap(AnyEnv(kind))
        for obs, _ in play(env, 40):
            assert env.observation_space.contains(obs)

    def test_a_space_grows_by_the_symbol_for_blank_and_no_other_changes(self) -> None:
        def space_of(kind: str) -> spaces.Space:
            return FlickerObservation(AnyEnv(kind)).observation_space

        assert space_of("number") == spaces.Discrete(5)
        assert space_of("shifted number") == spaces.Discrete(5, start=-2)
        assert space_of("numbers") == spaces.MultiDiscrete([4, 6])
        assert space_of("bits") == spaces.MultiDiscrete([3, 3, 3])
        assert space_of("vector") is OBSERVATIONS["vector"]
        assert space_of("image") is OBSERVATIONS["image"]

    def test_the_symbol_keeps_start_and_type_of_the_entries(self) -> None:
        space = spaces.MultiDiscrete([[2, 3]], dtype=np.int8, start=[[5, -1]])
        env = FlickerObservation(ScriptedEnv(space, [(np.array([[5, 0]], np.int8), {})]), 1.0)
        obs, _ = env.reset(seed=0)
        assert obs.tolist() == [[7, 2]]
        assert obs.dtype == env.observation_space.dtype == np.int8
        assert env.observation_space.contains(obs)

    def test_keys_that_are_not_chosen_stay(self) -> None:
        raw, shown = pair("dict", lambda env: FlickerObservation(env, keys=["mode", "camera"]))
        env = FlickerObservation(AnyEnv("dict"), keys=["mode", "camera"])
        assert env.observation_space["bits"] == DICT["bits"]
        assert list(env.observation_space) == list(DICT)
        blank = {"mode": np.int64(3), "camera": np.zeros((4, 4, 1), np.uint8)}
        for (obs, _), (seen, info) in zip(raw, shown, strict=True):
            assert list(info["blanked"]) == ["camera", "mode"]
            assert len(set(info["blanked"].values())) == 1
            expected = {**obs, **blank} if info["blanked"]["mode"] else obs
            assert same_obs(seen, expected)

    def test_a_dict_without_chosen_keys_is_blanked_whole(self) -> None:
        _, shown = pair("dict", FlickerObservation)
        for obs, info in shown:
            assert type(info["blanked"]) is bool
            blank = [not obs["gyro"].any(), obs["mode"] == 3, (obs["bits"] == 2).all()]
            assert blank == [info["blanked"]] * 3

    def test_a_chosen_value_is_shown_where_zero_lies_outside(self) -> None:
        space = spaces.Box(np.array([1.0, 0.1], np.float32), 2.0)
        frames = [(np.array([1.5, 1.5], np.float32), {})]
        for value, expected in ((1.0, [1.0, 1.0]), ([2, 0.1], [2.0, 0.1])):
            env = FlickerObservation(ScriptedEnv(space, frames), 1.0, blank_value=value)
            obs, _ = env.reset(seed=0)
            assert obs.tolist() == pytest.approx(expected)
            assert obs.dtype == np.float32
            assert env.observation_space.contains(obs)

    def test_keys_may_each_have_a_value(self) -> None:
        env = FlickerObservation(
            AnyEnv("dict"), 1.0, keys=["camera", "gyro"], blank_value={"gyro": [1, 2, 3]}
        )
        obs, _ = env.reset(seed=0)
        assert obs["gyro"].tolist() == [1.0, 2.0, 3.0]
        assert not obs["camera"].any()


class TestFlagsOfLayers:
    """What layers further in have blanked stays flagged, in the more detailed form."""

    SPACE = spaces.Dict(camera=VECTOR, gyro=VECTOR)

    def told(self, flag: Any, space: spaces.Space, wrap: Any) -> Any:
        env = wrap(ScriptedEnv(space, [(space.sample(), {"blanked": flag})]))
        return env.reset(seed=0)[1]["blanked"]

    @pytest.mark.parametrize(("inner", "p"), [(a, b) for a in (False, True) for b in (0.0, 1.0)])
    def test_whole_frames(self, inner: bool, p: float) -> None:
        for flag in (inner, np.bool_(inner)):
            told = self.told(flag, VECTOR, lambda env: FlickerObservation(env, p))
            assert told is (inner or p == 1.0)

    def test_components_inside_of_a_frame(self) -> None:
        inner = np.array([True, False, False])
        told = self.told(inner, VECTOR, lambda env: FlickerObservation(env, 0.0))
        assert told.tolist() == [True, False, False]
        assert not np.shares_memory(told, inner)
        told = self.told(inner, VECTOR, lambda env: FlickerObservation(env, 1.0))
        assert told.tolist() == [True, True, True]

    def test_a_frame_inside_of_components(self) -> None:
        for inner, expected in ((True, [True] * 3), (False, [False] * 3)):
            told = self.told(inner, VECTOR, lambda env: ElementDropoutObservation(env, 0.0))
            assert told.tolist() == expected

    def test_keys(self) -> None:
        def one_key(env: gym.Env, p: float) -> gym.Env:
            return FlickerObservation(env, p, keys=["gyro"])

        cases: list[tuple[Any, float, Any]] = [
            (True, 0.0, {"camera": True, "gyro": True}),
            (False, 1.0, {"camera": False, "gyro": True}),
            ({"camera": True}, 1.0, {"camera": True, "gyro": True}),
            ({"gyro": True}, 0.0, {"gyro": True}),
        ]
        for inner, p, expected in cases:
            assert self.told(inner, self.SPACE, lambda env, p=p: one_key(env, p)) == expected

    def test_keys_inside_of_a_frame(self) -> None:
        for p, expected in ((0.0, {"gyro"}), (1.0, {"camera", "gyro"})):
            told = self.told(
                {"gyro": True}, self.SPACE, lambda env, p=p: FlickerObservation(env, p)
            )
            assert list(told) == ["camera", "gyro"]
            assert {key for key, flag in told.items() if flag} == expected

    def test_components_of_a_key(self) -> None:
        inner = {"gyro": np.array([True, False, False]), "camera": False}
        told = self.told(inner, self.SPACE, lambda env: ElementDropoutObservation(env, 0.0))
        assert told["gyro"].tolist() == [True, False, False]
        assert told["camera"].tolist() == [False] * 3

    def test_the_form_never_changes_from_frame_to_frame(self) -> None:
        # Gymnasium's vectors keep a key's flags of all environments in one array.
        env = ElementDropoutObservation(FlickerObservation(AnyEnv("dict"), keys=["gyro"]))
        forms = {
            tuple((key, np.shape(flag)) for key, flag in told.items())
            for told in flags(play(env, 60))
        }
        assert len(forms) == 1

    @pytest.mark.parametrize("flag", [{"camera": True}, [True, False], "blank", 1, np.ones(2)])
    def test_a_flag_of_no_form_is_refused(self, flag: Any) -> None:
        with pytest.raises(ValueError, match=r'info\["blanked"\] must be'):
            self.told(flag, VECTOR, FlickerObservation)

    def test_normalising_outside_zeroes_what_any_layer_blanked(self) -> None:
        env = FlickerObservation(ElementDropoutObservation(AnyEnv(), 0.3, blank_value=2.0), 0.3)
        for obs, info in play(NormalizeVisibleObservation(env), 100):
            assert not obs[info["blanked"]].any()


class TestWhatIsReturned:
    @pytest.mark.parametrize("kind", OBSERVATIONS)
    @pytest.mark.parametrize(
        "wrap", [lambda env: FlickerObservation(env, 1.0), ElementDropoutObservation]
    )
    def test_is_new_at_each_call(self, kind: str, wrap: Any) -> None:
        careful = play(wrap(AnyEnv(kind)), 60)
        careless = play(wrap(AnyEnv(kind)), 60, then=_spoil)
        for one, other in zip(careful, careless, strict=True):
            assert same_obs(one[0], other[0])
            assert same_obs(one[1]["blanked"], other[1]["blanked"])

    def test_an_info_that_the_environment_hands_out_again_is_left_alone(self) -> None:
        info: dict[str, Any] = {"level": 3}
        env = FlickerObservation(ScriptedEnv(VECTOR, [(VECTOR.sample(), info)]))
        told = flags(play(env, 100, seed=1))
        # Had the flag been written into it, one blank frame would blank all later ones.
        assert told == (uniforms(1, 100) < 0.5).tolist()
        assert info == {"level": 3}

    def test_an_observation_that_the_environment_keeps_is_left_alone(self) -> None:
        kept = DICT.sample()
        before = {key: np.copy(part) for key, part in kept.items()}
        for wrap in (FlickerObservation, ElementDropoutObservation):
            play(wrap(ScriptedEnv(DICT, [(kept, {})])), 20)
            assert same_obs({key: np.asarray(part) for key, part in kept.items()}, before)

    def test_rewards_ends_and_reset_options_are_the_environments(self) -> None:
        env, bare = FlickerObservation(AnyEnv()), AnyEnv()
        env.reset(seed=3, options={"level": 2})
        bare.reset(seed=3)
        assert env.unwrapped.options == {"level": 2}
        for _ in range(3):
            assert env.step(2)[1:4] == bare.step(2)[1:4]


def _spoil(value: Any) -> None:
    """Overwrite what a user may write to."""
    if isinstance(value, (dict, tuple)):
        for part in value.values() if isinstance(value, dict) else value:
            _spoil(part)
    elif isinstance(value, np.ndarray):
        value[...] = 1


class TestBadArguments:
    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"flicker_prob": 1.5}, r"flicker_prob must be a probability in \[0, 1\], got 1.5"),
            ({"flicker_prob": "half"}, "flicker_prob must be a number, got 'half'"),
            ({"burst_len": 0.5}, "burst_len must be a finite number >= 1, got 0.5"),
            ({"flicker_prob": 0.9, "burst_len": 4}, "no process has flicker_prob=0.9"),
            ({"flicker_prob": 1.0, "burst_len": 4}, "strictly between 0 and 1"),
            ({"separately": "yes"}, "separately must be True or False, got 'yes'"),
            ({"separately": True}, "separately=True needs a Dict observation"),
            ({"keys": ["camera"]}, r"keys needs a Dict observation, got \['camera'\]"),
            ({"blank_value": "dark"}, "must be a finite number"),
            ({"blank_value": np.nan}, "must be a finite number"),
            ({"blank_value": [1, [2]]}, "must be a finite number"),
            ({"blank_value": [1, 2]}, r"array of shape \(3,\), got shape \(2,\)"),
            ({"blank_value": 10}, r"cannot be blanked with 10: choose a blank_value that its spa"),
            ({"blank_value": {"gyro": 1}}, "must be a finite number"),
        ],
    )
    def test_of_a_vector(self, kwargs: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            FlickerObservation(AnyEnv(), **kwargs)

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"keys": ["radar"]}, r"keys must name at least one of the keys \['bits', 'camera', "),
            ({"keys": []}, r"keys must name at least one of the keys .*, got \[\]"),
            ({"keys": ["gyro", "gyro"]}, "keys must name each key once, got"),
            ({"keys": "gyro"}, "keys must be a list of keys of the observation, got 'gyro'"),
            ({"keys": iter(["gyro"])}, "keys must be a list of keys of the observation, got"),
            (
                {"keys": [["gyro"]]},
                r"keys must name at least one of the keys .*, got \[\['gyro'\]\]",
            ),
            ({"keys": 3}, "keys must be a list of keys of the observation, got 3"),
            ({"keys": ["gyro"], "blank_value": {"mode": 1}}, r"keys that are blanked, \['gyro'\]"),
            ({"keys": ["mode"], "blank_value": 1}, "blank_value is for Box observations; key 'mo"),
            ({"keys": ["camera"], "blank_value": 0.5}, "cannot be blanked with 0.5: choose a"),
            ({"keys": ["camera"], "blank_value": 256}, "cannot be blanked with 256: choose a"),
        ],
    )
    def test_of_a_dict(self, kwargs: dict[str, Any], message: str) -> None:
        for wrap in (FlickerObservation, ElementDropoutObservation):
            with pytest.raises(ValueError, match=message):
                wrap(AnyEnv("dict"), **kwargs)

    @pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), "half", None])
    def test_a_dropout_that_is_no_probability(self, value: Any) -> None:
        with pytest.raises(ValueError, match="dropout_prob must be a"):
            ElementDropoutObservation(AnyEnv(), value)

    @pytest.mark.parametrize(
        ("space", "reason"),
        [
            (spaces.Text(5), "it is no array of fixed size"),
            (spaces.Graph(VECTOR, None), "it is no array of fixed size"),
            (spaces.Sequence(VECTOR), "it is no array of fixed size"),
            (spaces.Tuple((VECTOR, VECTOR)), "nested observations are not looked into"),
            (spaces.Dict(outer=spaces.Dict(inner=VECTOR)), "key 'outer' .* nested observations"),
            (spaces.Dict(mission=spaces.Text(5), gyro=VECTOR), "key 'mission' .* no array of fix"),
            (spaces.Dict({}), "must have an observation to blank"),
            (spaces.Box(1.0, 2.0, (2,)), "0 does not lie within its bounds; choose a blank_value"),
            (spaces.MultiDiscrete([255], dtype=np.uint8), "uint8 has no value left"),
        ],
    )
    def test_a_space_that_cannot_be_blanked_is_refused_with_the_reason(
        self, space: spaces.Space, reason: str
    ) -> None:
        for wrap in (FlickerObservation, ElementDropoutObservation):
            with pytest.raises(ValueError, match=reason):
                wrap(ScriptedEnv(space, []))

    def test_a_number_whose_type_has_no_value_left_is_refused(self) -> None:
        if "dtype" not in inspect.signature(spaces.Discrete).parameters:
            pytest.skip("this Gymnasium's numbers are all int64")
        for dtype, n in ((np.int8, 126), (np.int8, 127), (np.uint8, 255)):
            env = ScriptedEnv(spaces.Discrete(n, dtype=dtype), [])
            if n == 126:
                assert FlickerObservation(env).observation_space.dtype == dtype
                continue
            with pytest.raises(ValueError, match=f"{np.dtype(dtype)} has no value left"):
                FlickerObservation(env)

    def test_what_cannot_be_blanked_is_passed_on_where_other_keys_are_chosen(self) -> None:
        space = spaces.Dict(mission=spaces.Text(5), gyro=VECTOR)
        frames = [({"mission": "north", "gyro": np.ones(3, np.float32)}, {})]
        env = FlickerObservation(ScriptedEnv(space, frames), 1.0, keys=["gyro"])
        obs, info = env.reset(seed=0)
        assert obs["mission"] == "north"
        assert not obs["gyro"].any()
        assert info == {"blanked": {"gyro": True}}

    @pytest.mark.parametrize(
        "wrap",
        [
            FlickerObservation,
            ElementDropoutObservation,
            PreviousActionObservation,
            lambda env: MaskObservation(env, drop=[0]),
        ],
    )
    def test_what_is_no_environment_is_refused(self, wrap: Any) -> None:
        for env in ("CartPole-v1", None, gym.make_vec("CartPole-v1", 1)):
            with pytest.raises(ValueError, match="env must be a Gymnasium environment, got"):
                wrap(env)


class TestPictures:
    def make(self, **kwargs):
        return FlickerObservation(gym.make("CartPole-v1", render_mode="rgb_array"), **kwargs)

    def test_are_faded_framed_and_have_the_latest_frames_below(self):
        pytest.importorskip("pygame")
        env = self.make()
        blind = [env.reset(seed=3)[1]["blanked"]]
        for _ in range(8):
            blind.append(env.step(1)[4]["blanked"])
        expected = paint_sensor(env.env.render(), blind)
        assert (env.render() == expected).all()
        assert len(set(blind)) == 2  # both kinds of frame are in the strip
        env.reset()
        assert env.render().shape == expected.shape
        assert (env.render() != expected).any()  # a new episode, a new strip

    def test_flags_of_keys_and_components_count_when_all_are_blank(self):
        assert _shows_nothing({"a": True, "b": np.array([True, True])})
        assert not _shows_nothing({"a": True, "b": np.array([True, False])})

    def test_an_unwatched_environment_keeps_no_flags(self):
        env = FlickerObservation(gym.make("CartPole-v1"))
        env.reset(seed=0)
        env.step(0)
        assert len(env._blind) == 0

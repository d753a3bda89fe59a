"""Values as arrays and JSON-able data, and back again exactly."""

from __future__ import annotations

import io
import json
from collections import OrderedDict, deque
from random import Random

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.running_mean_std import RunningMeanStd
from state_tools import kept_in_file

from thrust_pomdp.stateful import Stateful
from thrust_pomdp.states import NoStateError, packed, packed_entries, unpacked
from thrust_pomdp.vec_env.differences import first_difference

VALUES = [
    *(None, True, 3, 2**130, 0.1, float("nan"), float("inf"), -0.0, "text"),
    *(np.float32(0.1), np.float64("nan"), np.int64(7), np.bool_(True), np.str_("x")),
    *(np.zeros((2, 0)), np.arange(6.0).reshape(2, 3).T, np.array(1.5), np.array([True])),
    *([], [1, [2.5, "x"]], (), (1, (2.0,)), {}, {"a": {"b": [None]}}, {1: "x", None: (2,)}),
    *({"~": "tuple"}, {1, 2}, deque([1.0], 3), deque(), OrderedDict(b=1, a=2)),
    np.array([None, {"a": np.zeros(2)}], dtype=object),
    *(np.array(["one", "three"]), np.array([1 + 2j]), np.arange(3, dtype=">i4"), {"$array": "a"}),
    *(np.array([], dtype="U3"), np.zeros((0, 2), dtype="c8")),
    *(np.longdouble("0.1"), np.arange(24.0).reshape(2, 3, 4).T, np.array([b"x"]), np.complex64(1j)),
]


class TestPacked:
    @pytest.mark.parametrize("value", VALUES, ids=repr)
    def test_comes_back_of_the_same_type(self, value):
        back = unpacked(kept_in_file(packed(value, "value")), "value")
        assert type(back) is type(value)
        assert first_difference([value], [back], "value") is None
        if isinstance(value, deque):
            assert (list(back), back.maxlen) == (list(value), value.maxlen)
        if isinstance(value, np.ndarray) and value.dtype != object:
            # Sums go through memory, so that its order is part of the value.
            assert back.strides == value.strides

    @pytest.mark.parametrize("bits", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
    def test_generators_go_on(self, bits):
        rng = np.random.Generator(getattr(np.random, bits)(7))
        rng.random(11)
        rng.integers(9, dtype=np.int32)  # half of a draw is left
        other = unpacked(kept_in_file(packed(rng, "rng")), "rng")
        assert [rng.integers(9, dtype=np.int32) for _ in range(9)] == [
            other.integers(9, dtype=np.int32) for _ in range(9)
        ]
        assert rng.normal(size=5).tolist() == other.normal(size=5).tolist()

    def test_generators_have_the_same_children(self):
        rng = np.random.default_rng([3, 4])
        rng.bit_generator.seed_seq.spawn(2)
        other = unpacked(kept_in_file(packed(rng, "rng")), "rng")
        children = [g.bit_generator.seed_seq.spawn(1)[0].generate_state(2) for g in (rng, other)]
        assert children[0].tolist() == children[1].tolist()

    def test_older_generators_go_on(self):
        numpys, pythons = np.random.RandomState(3), Random(3)
        numpys.normal(), pythons.gauss(0.0, 1.0)
        others = [unpacked(kept_in_file(packed(rng, "rng")), "rng") for rng in (numpys, pythons)]
        assert numpys.normal(size=4).tolist() == others[0].normal(size=4).tolist()
        assert [pythons.gauss(0, 1) for _ in range(3)] == [others[1].gauss(0, 1) for _ in range(3)]

    def test_shares_no_memory(self):
        array = np.zeros(2)
        state = packed({"a": [array]}, "value")
        back = unpacked(state, "value")
        array += 1
        state["a"][0] += 2
        assert back["a"][0].tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("value", [object(), lambda: 0, {"a": [io.StringIO()]}, type, 1j])
    def test_what_is_no_data_is_refused_by_its_name(self, value):
        with pytest.raises(NoStateError, match="speed of Cart"):
            packed(value, "speed of Cart")

    def test_subclasses_are_refused(self):
        class Count(int):
            """May do anything."""

        with pytest.raises(NoStateError, match="Count"):
            packed(Count(3), "value")

    @pytest.mark.parametrize(
        "data",
        [
            *({"~": "function"}, {"~": "tuple"}, {"~": "number", "value": 3}, {"~": ["x"][0]}),
            {"~": "generator", "bits": {"bit_generator": "eval"}, "seeds": None},
            {"~": "deque", "items": 3, "maxlen": None},
        ],
    )
    def test_what_is_not_packed_is_refused(self, data):
        with pytest.raises(ValueError, match="speed must be"):
            unpacked(data, "speed")

    def test_infos_lose_what_cannot_be_kept(self):
        infos = [{"speed": 1.0, "env": object(), "deep": {"x": np.zeros(1), "f": print}}]
        assert (
            first_difference(
                unpacked(packed_entries(infos, ""), ""),
                [{"speed": 1.0, "deep": {"x": np.zeros(1)}}],
                "infos",
            )
            is None
        )


class Cart(Stateful):
    _no_state = ("window",)
    _fixed_state = ("length",)
    _shaped_state = ("state", "n_steps")

    def __init__(self, length=0.5):
        self.length, self.window = length, object()
        self.state, self.n_steps = np.zeros(3), 0
        self.rng = np.random.default_rng(0)
        self.draws = self.rng
        self.statistics = RunningMeanStd(shape=(2,))
        self.by_key = {"a": RunningMeanStd(shape=(1,))}
        self.space = gym.spaces.Dict(a=gym.spaces.Discrete(9), b=gym.spaces.Box(0, 1, (1,)))

    def step(self):
        self.state = self.state + self.draws.normal(size=3)
        self.n_steps += 1
        self.statistics.update(self.rng.normal(size=(4, 2)))
        self.by_key["a"].update(self.rng.normal(size=(4, 1)))
        return self.state.tolist(), self.statistics.mean.tolist(), self.by_key["a"].var.tolist()


class Racing(Cart):
    """Of somebody else, who forgets to say anything of what it keeps."""

    def reset(self):
        self.speeds = deque([1.0], 2)
        self.best = None


class TestStateful:
    def test_goes_on_as_the_other(self):
        one, other = Cart(), Cart()
        one.space.seed(3)
        [one.step() for _ in range(5)]
        other.set_state(kept_in_file(one.get_state()))
        assert [one.step() for _ in range(9)] == [other.step() for _ in range(9)]
        samples = [[str(cart.space.sample()) for _ in range(5)] for cart in (one, other)]
        assert samples[0] == samples[1]

    def test_objects_inside_stay_the_same_objects(self):
        one, other = Cart(), Cart()
        statistics, of_key = other.statistics, other.by_key["a"]
        one.step()
        other.set_state(one.get_state())
        assert other.statistics is statistics
        assert other.by_key["a"] is of_key

    def test_one_object_of_two_names_is_one_afterwards(self):
        one, other = Cart(), Cart()
        other.draws = np.random.default_rng(5)
        other.set_state(one.get_state())
        assert other.draws is other.rng

    def test_attributes_of_subclasses_are_held_unasked(self):
        one, other = Racing(), Racing()
        one.reset()
        one.speeds.append(2.0)
        other.set_state(one.get_state())
        assert list(other.speeds) == [1.0, 2.0]
        assert other.best is None

    def test_attributes_that_cannot_be_held_are_named(self):
        one = Racing()
        one.engine = object()
        with pytest.raises(NoStateError, match="engine of Racing"):
            one.get_state()

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda state: state.pop("class"), "dict of"),
            (lambda state: state.update({"class": "elsewhere:Cart"}), "'class'.*elsewhere"),
            (lambda state: state["fixed"].update(length=0.7), "length.*0.5, got 0.7"),
            (lambda state: state["attributes"].pop("n_steps"), "'n_steps'"),
            (lambda state: state["attributes"].update(state=np.zeros(4)), r"state.*\(3,\).*\(4,\)"),
            (lambda state: state["attributes"].update(state=np.zeros(3, "f4")), "got .*32"),
            (lambda state: state["attributes"].update(n_steps="x"), "n_steps.*must be a int"),
            (lambda state: state["attributes"].update(window=None), "window"),
            (lambda state: state["attributes"].update(statistics=None), "statistics"),
            (lambda state: state["attributes"]["statistics"].update(mean=np.zeros(3)), "mean.*2"),
            (lambda state: state["attributes"]["by_key"].update(parts=[]), "by_key"),
            (lambda state: state["attributes"].update(draws={"~": "same", "as": "x"}), "draws"),
            (lambda state: state["attributes"]["space"].update(generators=[None]), "3 spaces"),
        ],
    )
    def test_what_does_not_fit_is_refused_and_nothing_changed(self, change, match):
        one, other = Cart(), Cart()
        one.step()
        state, before = one.get_state(), json.dumps(other.get_state(), default=str)
        change(state)
        with pytest.raises(ValueError, match=match):
            other.set_state(state)
        assert json.dumps(other.get_state(), default=str) == before

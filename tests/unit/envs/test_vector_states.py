"""Native vectors, and Gymnasium's, go on bit for bit where another one was."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as gymnasiums
from state_tools import assert_equal, differing_attributes, kept_in_file
from vectors import MODES, native, synchronous

from thrust_pomdp.envs.flicker import BlockStreams
from thrust_pomdp.envs.registration import ENVIRONMENTS
from thrust_pomdp.wrappers import vector as ours
from thrust_pomdp.wrappers.states import missing_layers, set_vector_state, vector_state

N_ENVS = 5


def stepped(envs: Any, n_steps: int, seed: int = 3) -> Any:
    envs.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(n_steps):
        envs.step(rng.integers(2, size=envs.num_envs))
    return envs


def differing(one: Any, other: Any) -> list[str]:
    """Name what differs, but for the single environment, which paints and tells constants."""
    parts = [
        {key: part for key, part in vars(envs).items() if key not in ("single", "envs")}
        for envs in (one, other)
    ]
    return differing_attributes(*parts)


def assert_goes_on(one: Any, other: Any, n_steps: int = 1200, seed: int = 11) -> None:
    """Compare steps, with resets of all and of some and seeds given later."""
    rng = np.random.default_rng(seed)
    for step in range(n_steps):
        actions = rng.integers(2, size=one.num_envs)
        assert_equal(one.step(actions), other.step(actions))
        if step == 400:
            mask = np.arange(one.num_envs) % 2 == 0
            outcomes = [envs.reset(options={"reset_mask": mask.copy()}) for envs in (one, other)]
            assert_equal(*outcomes)
        if step == 600:
            assert_equal(one.reset(), other.reset())
        if step == 800:
            seeds = [7, *[None] * (one.num_envs - 1)]
            assert_equal(one.reset(seed=seeds), other.reset(seed=seeds))
    assert_equal(one.np_random_seed, other.np_random_seed)


class TestNativeVectors:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("env_id", ENVIRONMENTS)
    @pytest.mark.parametrize("n_steps", [0, 1, 137])
    def test_go_on_bit_for_bit(self, env_id, mode, n_steps):
        envs = stepped(native(env_id, mode, N_ENVS), n_steps)
        other = native(env_id, mode, N_ENVS)
        other.set_state(kept_in_file(envs.get_state()))
        assert_goes_on(envs, other)

    @pytest.mark.parametrize("mode", MODES)
    def test_in_the_very_step_that_ended_an_episode(self, mode):
        envs = stepped(native("TMaze-v0", mode, N_ENVS, corridor_length=3), 0)
        for _ in range(12):
            envs.step(np.ones(N_ENVS, dtype=np.int64))
            other = native("TMaze-v0", mode, N_ENVS, corridor_length=3)
            other.set_state(kept_in_file(envs.get_state()))
            assert differing(envs, other) == []
            copied = native("TMaze-v0", mode, N_ENVS, corridor_length=3)
            copied.set_state(other.get_state())
            assert_equal(
                other.step(np.zeros(N_ENVS, dtype=int)), copied.step(np.zeros(N_ENVS, dtype=int))
            )

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("env_id", ENVIRONMENTS)
    def test_nothing_that_they_keep_differs(self, env_id, mode):
        envs = stepped(native(env_id, mode, N_ENVS), 91)
        other = stepped(native(env_id, mode, N_ENVS), 40, seed=8)
        assert differing(envs, other) != []
        other.set_state(envs.get_state())
        assert differing(envs, other) == []

    def test_taking_a_state_changes_nothing(self):
        one, other = (stepped(native("BurstFlickeringCartPole-v0"), 50) for _ in range(2))
        for _ in range(3):
            one.get_state()
        # Spaces have streams that nobody seeded.
        assert [name for name in differing(one, other) if "_space" not in name] == []
        assert_goes_on(one, other, 300)

    def test_a_state_is_not_changed_by_going_on(self):
        envs = stepped(native("BurstFlickeringCartPole-v0"), 50)
        state = envs.get_state()
        stepped(envs, 300)
        other, again = native("BurstFlickeringCartPole-v0"), native("BurstFlickeringCartPole-v0")
        other.set_state(state)
        stepped(other, 30)
        again.set_state(state)
        assert_goes_on(again, stepped(native("BurstFlickeringCartPole-v0"), 50), 200)

    def test_before_the_first_reset(self):
        envs = native("FlickeringCartPole-v0", "SameStep")
        other = stepped(native("FlickeringCartPole-v0", "SameStep"), 9)
        other.set_state(kept_in_file(envs.get_state()))
        with pytest.raises(gym.error.ResetNeeded):
            other.step(np.zeros(N_ENVS, dtype=int))
        assert_equal(envs.reset(), other.reset())
        assert_goes_on(envs, other, 500)

    def test_with_another_pair_of_start_bounds(self):
        envs = native("MaskedCartPole-v0")
        envs.reset(seed=0, options={"low": -0.1, "high": 0.2})
        other = native("MaskedCartPole-v0")
        other.set_state(kept_in_file(envs.get_state()))
        again = {"low": -0.01, "high": 0.2}
        assert_equal(envs.reset(options=again), other.reset(options=again))
        assert_goes_on(envs, other, 300)

    def test_pictures_are_the_same(self):
        envs = stepped(native("BurstFlickeringCartPole-v0", render_mode="rgb_array"), 60)
        other = native("BurstFlickeringCartPole-v0", render_mode="rgb_array")
        other.set_state(kept_in_file(envs.get_state()))
        for _ in range(30):
            for one, copied in zip(envs.render(), other.render(), strict=True):
                assert one.tobytes() == copied.tobytes()
            assert_equal(*(vector.step(np.ones(N_ENVS, dtype=int)) for vector in (envs, other)))

    def test_what_was_set_by_name_is_held(self):
        envs = stepped(native("TMaze-v0"), 3)
        envs.set_attr("difficulty", [1, 2, 3, 4, 5])
        other = native("TMaze-v0")
        other.set_attr("luck", 3)
        other.set_state(kept_in_file(envs.get_state()))
        assert other.get_attr("difficulty") == (1, 2, 3, 4, 5)
        assert not hasattr(other.envs[0], "luck")

    @pytest.mark.parametrize(
        ("kwargs", "match"),
        [
            ({"n_envs": 4}, "num_envs.* 4, got 5"),
            ({"mode": "SameStep"}, "autoreset_mode.*SAME_STEP.*NEXT_STEP"),
            ({"flicker_prob": 0.4}, "law.*flicker_prob=0.4"),
            ({"burst_len": 5.0}, "law.*burst_len=5.0"),
            ({"max_episode_steps": 100}, "100, got 500"),
            ({"hide_velocities": True}, "_sensed_rows"),
            ({"kinematics_integrator": "semi-implicit euler"}, "_semi_implicit"),
        ],
    )
    def test_another_task_is_refused_and_nothing_changed(self, kwargs, match):
        state = stepped(native("BurstFlickeringCartPole-v0"), 9).get_state()
        other = stepped(native("BurstFlickeringCartPole-v0", **kwargs), 9)
        before = other.get_state()
        with pytest.raises(ValueError, match=match):
            other.set_state(state)
        assert_equal(other.get_state(), before)

    @pytest.mark.parametrize("state", [None, {}, {"added": []}, {"layers": []}])
    def test_what_is_no_state_is_refused(self, state):
        with pytest.raises(ValueError, match="state of TMazeVectorEnv"):
            native("TMaze-v0").set_state(state)

    def test_another_class_is_refused(self):
        with pytest.raises(ValueError, match="TMazeVectorEnv.*ActiveTMazeVectorEnv"):
            native("TMaze-v0").set_state(native("ActiveTMaze-v0").get_state())


class TestPlantedFaults:
    """What is forgotten is seen by the tests above."""

    def test_a_forgotten_stream_position(self, monkeypatch):
        monkeypatch.setattr(BlockStreams, "_no_state", ("_draw", "_one_item", "_next"))
        envs = stepped(native("BurstFlickeringCartPole-v0"), 50)
        other = native("BurstFlickeringCartPole-v0")
        other.set_state(envs.get_state())
        assert any("_next" in name for name in differing(envs, other))
        with pytest.raises((AssertionError, IndexError)):
            assert_goes_on(envs, other)

    @pytest.mark.parametrize("name", ["_deadlines", "_n_steps", "cues", "cells", "_ended"])
    def test_a_forgotten_attribute(self, monkeypatch, name):
        cls = type(native("TMaze-v0").unwrapped)
        monkeypatch.setattr(cls, "_no_state", (name,))
        # Episodes of four steps and one that resets.
        task = {"corridor_length": 3, "max_episode_steps": 4}
        envs = stepped(native("TMaze-v0", **task), 79 if name == "_ended" else 77)
        other = stepped(native("TMaze-v0", **task), 3, seed=7)
        other.set_state(envs.get_state())
        assert any(name in found for found in differing(envs, other))
        with pytest.raises(AssertionError):
            assert_goes_on(envs, other)

    def test_an_array_that_was_one_with_another(self, monkeypatch):
        cls = type(native("FlickeringCartPole-v0").unwrapped)
        monkeypatch.setattr(cls, "_after_state", lambda self: None)
        envs = stepped(native("FlickeringCartPole-v0"), 5)
        other = native("FlickeringCartPole-v0")
        other.set_state(envs.get_state())
        assert any("blanked" in name for name in differing(envs, other))


def sensed(env_id: str, mode: str, order: int) -> Any:
    """Layers of this package around a vector, in several orders."""
    make = native if order % 2 else synchronous
    envs = make(env_id, mode, N_ENVS)
    if order < 2:
        envs = ours.FlickerObservation(envs, 0.5, burst_len=3)
        envs = ours.ElementDropoutObservation(envs, 0.3)
        envs = ours.PreviousActionObservation(envs)
        return ours.PreviousRewardObservation(envs)
    envs = ours.PreviousRewardObservation(ours.MaskObservation(envs, drop=[1]))
    return ours.FlickerObservation(ours.PreviousActionObservation(envs), 0.5)


class TestLayersOfVectors:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("order", range(4))
    def test_go_on_bit_for_bit(self, mode, order):
        env_id = "POPGymNoisyPositionOnlyCartPoleHard-v0"
        envs = stepped(sensed(env_id, mode, order), 63)
        other = sensed(env_id, mode, order)
        assert set_vector_state(other, kept_in_file(vector_state(envs))) == []
        assert_goes_on(envs, other)

    @pytest.mark.parametrize("mode", MODES)
    def test_of_gymnasium_go_on_too(self, mode):
        def make() -> Any:
            envs = synchronous("CartPole-v1", mode)
            envs = gymnasiums.NormalizeReward(gymnasiums.RecordEpisodeStatistics(envs))
            return gymnasiums.NormalizeObservation(envs) if mode == "NextStep" else envs

        envs, other = stepped(make(), 63), make()
        assert set_vector_state(other, kept_in_file(vector_state(envs))) == []
        rng = np.random.default_rng(0)
        for _ in range(500):
            actions = rng.integers(2, size=N_ENVS)
            one, copied = list(envs.step(actions)), list(other.step(actions))
            for outcome in (one, copied):
                outcome[4].get("episode", {}).pop("t", None)
                outcome[4].get("final_info", {}).get("episode", {}).pop("t", None)
            assert_equal(one, copied)

    def test_of_other_processes_are_missing(self):
        envs = gym.make_vec("CartPole-v1", 2, vectorization_mode="async")
        try:
            assert missing_layers(vector_state(envs)) == [
                "AsyncVectorEnv has no methods get_state() and set_state(state)"
            ]
        finally:
            envs.close()

    def test_wrong_layers_are_refused(self):
        envs = ours.MaskObservation(native("MaskedCartPole-v0"), drop=[1])
        with pytest.raises(ValueError, match="must be of the layers.*MaskObservation"):
            set_vector_state(envs, vector_state(envs.env))

    def test_autoreset_mode_must_be_equal(self):
        with pytest.raises(ValueError, match="autoreset_mode"):
            set_vector_state(
                synchronous("CartPole-v1", "SameStep"),
                vector_state(synchronous("CartPole-v1", AutoresetMode.NEXT_STEP.value)),
            )

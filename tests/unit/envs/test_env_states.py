"""Single environments and all their layers go on bit for bit where others were."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium import wrappers as gymnasiums
from stable_baselines3.common.monitor import Monitor
from state_tools import assert_equal, differing_attributes, kept_in_file
from strangers_envs import HeldWalk, Tired, Walk

import thrust_pomdp
from thrust_pomdp import wrappers as ours
from thrust_pomdp.envs.registration import ENVIRONMENTS
from thrust_pomdp.stateful import StatefulEnv
from thrust_pomdp.wrappers import known_layers
from thrust_pomdp.wrappers.states import env_state, missing_layers, set_env_state

CLASSIC = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]


def play(env: Any, n_steps: int, actions_seed: int) -> list[Any]:
    """Step with actions that are the same for the same seed, resetting where an episode ends."""
    rng, outcomes = np.random.default_rng(actions_seed), []
    space = env.action_space
    for _ in range(n_steps):
        if isinstance(space, spaces.Discrete):
            action: Any = int(rng.integers(space.n))
        else:
            action = rng.uniform(space.low, space.high).astype(np.float32)
        outcome = env.step(action)
        outcomes.append(outcome)
        if outcome[2] or outcome[3]:
            outcomes.append(env.reset())
    return outcomes


def assert_goes_on(make: Any, n_steps: int = 73, missing: int = 0) -> None:
    env, other = make(), make()
    env.reset(seed=3)
    play(env, n_steps, 0)
    state = kept_in_file(env_state(env))
    assert len(set_env_state(other, state)) == missing
    assert_equal(play(env, 400, 1), play(other, 400, 1))
    assert_equal(env.reset(), other.reset())
    assert_equal(env.reset(seed=8), other.reset(seed=8))
    assert_equal(play(env, 400, 2), play(other, 400, 2))
    assert missing_layers(state) == []


class TestOurs:
    @pytest.mark.parametrize("env_id", [*ENVIRONMENTS, *CLASSIC])
    @pytest.mark.parametrize("n_steps", [0, 73])
    def test_go_on_behind_standard_layers(self, env_id, n_steps):
        assert_goes_on(lambda: Monitor(gym.make(env_id)), n_steps)

    @pytest.mark.parametrize("env_id", ENVIRONMENTS)
    def test_nothing_that_they_keep_differs(self, env_id):
        env, other = gym.make(env_id).unwrapped, gym.make(env_id).unwrapped
        for seed, one in enumerate((env, other)):
            one.reset(seed=seed)
            play(one, 41 + 20 * seed, seed)
        assert differing_attributes(vars(env), vars(other)) != []
        other.set_state(kept_in_file(env.get_state()))
        assert differing_attributes(vars(env), vars(other)) == []

    @pytest.mark.parametrize(
        "layers",
        [
            lambda env: ours.FlickerObservation(env, 0.5, burst_len=3),
            lambda env: ours.ElementDropoutObservation(ours.FlickerObservation(env, 0.2), 0.3),
            lambda env: ours.NormalizeVisibleObservation(ours.FlickerObservation(env, 0.5)),
            lambda env: ours.PreviousRewardObservation(ours.PreviousActionObservation(env)),
            lambda env: ours.FlickerObservation(
                ours.ExposeObservation(ours.MaskObservation(env, drop=[1])), 0.5
            ),
            lambda env: gymnasiums.FrameStackObservation(
                ours.NormalizeVisibleObservation(env, zero_is_blank=True), 3
            ),
        ],
    )
    @pytest.mark.parametrize("env_id", ["BurstFlickeringCartPole-v0", "Pendulum-v1"])
    def test_layers_go_on_in_every_order(self, env_id, layers):
        assert_goes_on(lambda: layers(gym.make(env_id)))
        assert_goes_on(
            lambda: Monitor(layers(gymnasiums.RecordEpisodeStatistics(gym.make(env_id))))
        )

    def test_a_curriculum_is_held(self):
        """A program may change what a task is while it trains."""
        env, other = gym.make("MaskedCartPole-v0"), gym.make("MaskedCartPole-v0")
        env.reset(seed=0)
        env.unwrapped.length = 0.7
        set_env_state(other, env_state(env))
        assert_equal(play(env, 200, 0), play(other, 200, 0))

    def test_another_task_is_refused_and_nothing_changed(self):
        other = gym.make("FlickeringCartPole-p75-v0")
        other.reset(seed=0)
        before = env_state(other)
        env = gym.make("FlickeringCartPole-v0")
        env.reset(seed=5)
        with pytest.raises(ValueError, match=r"law.*flicker_prob=0.75.*flicker_prob=0.5"):
            set_env_state(other, env_state(env))
        assert_equal(env_state(other), before)

    def test_a_subclass_whose_get_state_means_something_else_is_missing(self):
        class Mine(thrust_pomdp.envs.cartpole.MaskedCartPoleEnv):
            def get_state(self) -> Any:
                return np.array(self.state)

        assert missing_layers(env_state(Mine())) == [
            "Mine.get_state() must return a dict, it returned a ndarray"
        ]


class TestGymnasiums:
    @pytest.mark.parametrize(
        "layer",
        [
            lambda env: gymnasiums.StickyAction(env, 0.4),
            lambda env: gymnasiums.DelayObservation(env, 3),
            lambda env: gymnasiums.TimeAwareObservation(env),
            lambda env: gymnasiums.FrameStackObservation(env, 4),
            lambda env: gymnasiums.NormalizeObservation(env),
            lambda env: gymnasiums.NormalizeReward(env),
            lambda env: gymnasiums.MaxAndSkipObservation(env, 2),
            lambda env: gymnasiums.RecordEpisodeStatistics(env, 5),
            lambda env: gymnasiums.TimeLimit(env, 33),
            lambda env: gymnasiums.FlattenObservation(env),
            lambda env: gymnasiums.TransformReward(env, lambda reward: reward * 0.1),
            lambda env: gymnasiums.TransformObservation(
                env, lambda obs: np.clip(obs, -1.0, 1.0), env.observation_space
            ),
        ],
    )
    def test_layers_go_on(self, layer):
        assert_goes_on(lambda: layer(gym.make("Pendulum-v1")))

    @pytest.mark.parametrize("n_steps", [0, 1, 2])
    def test_a_fresh_checker_goes_on(self, n_steps):
        assert_goes_on(lambda: gym.make("CartPole-v1"), n_steps)

    def test_functions_that_may_remember_are_named(self):
        scale = {"mean": 0.0}

        def centred(reward: Any) -> Any:
            scale["mean"] += 0.1 * (reward - scale["mean"])
            return reward - scale["mean"]

        env = gymnasiums.TransformReward(gym.make("Pendulum-v1"), centred)
        assert missing_layers(env_state(env)) == [
            "TransformReward asks a function that may remember something in 'scale'"
        ]

    def test_objects_that_may_remember_are_named(self):
        class Centring:
            def __call__(self, reward: Any) -> Any:
                return reward

        env = gymnasiums.TransformReward(gym.make("Pendulum-v1"), Centring())
        assert missing_layers(env_state(env)) == [
            "TransformReward asks a function that may remember something in 'Centring'"
        ]

    def test_a_class_derived_from_a_known_one_is_not_known(self):
        class MyLimit(gymnasiums.TimeLimit):
            """May do anything."""

        env = MyLimit(gym.make("Pendulum-v1"), 10)
        assert missing_layers(env_state(env)) == [
            "MyLimit has no methods get_state() and set_state(state)"
        ]


class TestMonitor:
    def test_sums_counts_and_file_go_on(self, tmp_path):
        env = Monitor(gym.make("CartPole-v1"), str(tmp_path / "one"), info_keywords=())
        env.reset(seed=0)
        play(env, 130, 0)
        state = kept_in_file(env_state(env))
        before = (tmp_path / "one.monitor.csv").read_bytes()
        play(env, 100, 1)
        after = (tmp_path / "one.monitor.csv").read_bytes()
        assert after.startswith(before)
        assert after != before
        env.close()
        # As a script that is started again does: the file is emptied.
        other = Monitor(gym.make("CartPole-v1"), str(tmp_path / "one"))
        assert (tmp_path / "one.monitor.csv").read_bytes() != before
        assert set_env_state(other, state) == []
        assert (tmp_path / "one.monitor.csv").read_bytes() == before
        play(other, 100, 1)
        again = (tmp_path / "one.monitor.csv").read_text()
        columns = [[line.split(",")[:2] for line in text.splitlines()[1:]]
                   for text in (after.decode(), again)]  # fmt: skip
        assert columns[0] == columns[1]
        assert again.splitlines()[0] == after.decode().splitlines()[0]
        assert other.get_total_steps() == 230
        other.close()

    def test_a_file_that_is_added_to(self, tmp_path):
        path = str(tmp_path / "one.monitor.csv")
        Monitor(gym.make("CartPole-v1"), path).close()
        env = Monitor(gym.make("CartPole-v1"), path, override_existing=False)
        env.reset(seed=0)
        play(env, 60, 0)
        state, before = env_state(env), (tmp_path / "one.monitor.csv").read_bytes()
        play(env, 60, 0)
        env.close()
        other = Monitor(gym.make("CartPole-v1"), path, override_existing=False)
        set_env_state(other, state)
        assert (tmp_path / "one.monitor.csv").read_bytes() == before
        other.close()

    def test_with_and_without_a_file_do_not_fit(self, tmp_path):
        env = Monitor(gym.make("CartPole-v1"), str(tmp_path / "one"))
        with pytest.raises(ValueError, match="results"):
            set_env_state(Monitor(gym.make("CartPole-v1")), env_state(env))
        env.close()


class StatefulWalk(StatefulEnv, Walk):
    """A stranger's that inherits its methods."""


class Scaled(gym.ObservationWrapper[Any, Any, Any]):
    """A stranger's wrapper that only changes what is seen."""

    def observation(self, obs: Any) -> Any:
        return obs * np.float32(0.5)


class TestStrangers:
    def test_an_environment_with_methods_of_its_own_goes_on(self):
        assert_goes_on(lambda: Monitor(gymnasiums.TimeLimit(HeldWalk(), 13)))

    def test_one_without_is_named(self):
        env = Monitor(Walk())
        env.reset(seed=0)
        state = env_state(env)
        assert missing_layers(state) == ["Walk has no methods get_state() and set_state(state)"]
        assert set_env_state(Monitor(Walk()), state) == missing_layers(state)

    def test_of_one_without_the_stream_goes_on_at_the_next_reset(self):
        env, other = Walk(), Walk()
        env.reset(seed=0)
        play(env, 30, 0)
        set_env_state(other, kept_in_file(env_state(env)))
        assert_equal(env.reset(), other.reset())
        assert_equal(play(env, 50, 0), play(other, 50, 0))

    def test_a_wrapper_with_memory_is_named(self):
        env = Tired(gym.make("CartPole-v1"))
        assert missing_layers(env_state(env)) == [
            "Tired has no methods get_state() and set_state(state)"
        ]

    def test_a_wrapper_that_keeps_nothing_needs_no_methods(self):
        assert_goes_on(lambda: Monitor(Scaled(gym.make("Pendulum-v1"))))

    def test_one_that_begins_to_keep_something_is_named(self):
        class Counting(gym.RewardWrapper[Any, Any]):
            count = 0

            def reward(self, reward: Any) -> Any:
                self.count += 1
                return reward

        env = Counting(gym.make("Pendulum-v1"))
        env.reset(seed=0)
        play(env, 3, 0)
        assert missing_layers(env_state(env)) == [
            "Counting has no methods get_state() and set_state(state)"
        ]

    def test_an_environment_that_inherits_the_methods_goes_on(self):
        """As a program would register it: ``gym.make`` adds a spec and layers."""
        gym.register("StatefulWalk-v0", entry_point=lambda: StatefulWalk(), max_episode_steps=13)
        try:
            assert_goes_on(lambda: Monitor(gym.make("StatefulWalk-v0")))
        finally:
            del gym.registry["StatefulWalk-v0"]

    def test_methods_of_other_meaning_are_named(self):
        class Joints(Walk):
            def get_state(self) -> Any:
                return {"qpos": self.x}

            def set_state(self, qpos: Any, qvel: Any) -> None:
                self.x = qpos

        env = Joints()
        env.reset(seed=0)
        assert missing_layers(env_state(env)) == [
            "Joints has other methods than get_state() and set_state(state)"
        ]

    def test_a_state_that_is_no_data_is_named(self):
        class Opaque(HeldWalk):
            def get_state(self) -> Any:
                return {"engine": object()}

        (sentence,) = missing_layers(env_state(Opaque()))
        assert "the state of Opaque['engine']" in sentence

    def test_a_set_state_that_refuses_leaves_all_as_it_was(self):
        env, other = Monitor(HeldWalk()), Monitor(HeldWalk())
        for one in (env, other):
            one.reset(seed=0)
        play(env, 5, 0)
        state, before = env_state(env), env_state(other)
        state["layers"][-1]["own"]["n"] = 100
        with pytest.raises(ValueError, match="state of HeldWalk.*too far"):
            set_env_state(other, state)
        assert_equal(env_state(other), before)


class TestPlantedFaults:
    @pytest.mark.parametrize(
        ("name", "attribute"),
        [("TimeLimit", "_elapsed_steps"), ("Monitor", "rewards"), ("PendulumEnv", "state")],
    )
    def test_a_forgotten_attribute(self, monkeypatch, name, attribute):
        monkeypatch.setitem(known_layers._NO_MEMORY, name, {attribute, "results_writer"})
        with pytest.raises((AssertionError, TypeError, AttributeError)):
            assert_goes_on(lambda: Monitor(gym.make("Pendulum-v1")))

    def test_an_attribute_that_a_later_version_adds_is_held(self):
        env, other = gym.make("CartPole-v1"), gym.make("CartPole-v1")
        env.reset(seed=0)
        env.unwrapped.wind = 0.3
        set_env_state(other, env_state(env))
        assert other.unwrapped.wind == 0.3

    def test_or_named_where_it_cannot_be(self):
        env = gym.make("CartPole-v1")
        env.unwrapped.engine = object.__new__(object)
        (sentence,) = missing_layers(env_state(env))
        assert "engine of CartPoleEnv" in sentence

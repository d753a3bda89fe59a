"""The environments show what was planned, and end when that was planned."""

from __future__ import annotations

import numpy as np
import pytest

from thrust_pomdp.conformance.probe import (
    N_ENVS,
    N_STEPS,
    N_WINDOWS,
    PLACES,
    TRUNCATED,
    ProbeEnv,
    make_env,
    reward_at,
    rewards,
    shown,
    starts,
    stories,
)

STEPS = N_WINDOWS * N_STEPS


@pytest.fixture(scope="module")
def played():
    """Observations, rewards, ends, truncations and final observations of a loop over steps."""
    env = make_env()
    obs, found = env.reset(), []
    for _ in range(STEPS):
        before = obs
        obs, reward, done, infos = env.step(np.zeros(N_ENVS, dtype=int))
        truncated = [info["TimeLimit.truncated"] for info in infos]
        final = [info.get("terminal_observation") for info in infos]
        found.append((before, reward, done, truncated, final))
    return list(zip(*found, strict=True))


class TestWhatIsPlanned:
    def test_is_shown(self, played):
        assert (np.array(played[0]) == shown()).all()
        assert (np.array(played[1]) == rewards()).all()

    def test_ends_as_planned(self, played):
        assert (np.array(played[2]) == [[p.last for p in row] for row in PLACES]).all()
        cut = [[p.last and p.end == TRUNCATED for p in row] for row in PLACES]
        assert (np.array(played[3]) == cut).all()

    def test_goes_on_in_the_final_observation(self, played):
        for row, final in zip(PLACES, played[4], strict=True):
            for place in row:
                if place.last:
                    told = stories()[place.story][place.step + 1]
                    assert (final[place.env] == told).all()

    def test_starts_where_episodes_start(self):
        assert starts()[0].all()
        assert (starts()[1:] == [[p.last for p in row] for row in PLACES[:-1]]).all()

    def test_has_both_ends_on_the_last_step_of_a_window_and_an_episode_across(self):
        ends = {place.end if place.last else "" for place in PLACES[N_STEPS - 1]}
        assert ends == {"terminated", "truncated", ""}


class TestStories:
    def test_a_and_x_differ_in_their_first_vector_alone(self):
        told = stories()
        assert (told["A"][1:] == told["X"][1:]).all()
        assert (told["A"][0] != told["X"][0]).all()

    def test_another_x_differs_in_each(self):
        assert (stories(other=True)["X"] != stories()["X"]).all()
        assert (stories(other=True)["A"] == stories()["A"]).all()

    def test_no_vector_comes_twice(self):
        told = np.concatenate((stories()["A"], stories()["X"][:1], stories(other=True)["X"]))
        assert len(np.unique(told, axis=0)) == len(told)

    def test_others_are_shown_where_that_was_asked_only(self):
        changed = (shown(other=(0,)) != shown()).any(axis=2)
        told_x = np.array([[p.story == "X" for p in row] for row in PLACES])
        assert changed[:, 0].tolist() == told_x[:, 0].tolist()
        assert not changed[:, 1:].any()


class TestProbeEnv:
    def test_steps_as_gymnasium_asks(self):
        env = ProbeEnv(0, stories())
        obs, _ = env.reset(seed=1)
        assert env.observation_space.contains(obs)
        obs, reward, *ends, info = env.step(np.int64(1))
        assert env.observation_space.contains(obs)
        assert isinstance(reward, float)
        assert [type(end) for end in ends] == [bool, bool]
        assert info == {}

    def test_two_resets_at_once_are_one(self):
        env = ProbeEnv(0, stories())
        first, second = env.reset()[0], env.reset()[0]
        assert (first == second).all()

    def test_keeps_what_was_done(self):
        env = make_env()
        env.reset()
        env.step(np.array([0, 1, 1, 0]))
        assert env.get_attr("actions") == [[0], [1], [1], [0]]

    def test_rewards_of_an_environment_are_exact_in_float32(self):
        given = [reward_at(2, time) for time in range(STEPS)]
        assert (np.float32(given) == given).all()
        assert len(set(given)) == 11

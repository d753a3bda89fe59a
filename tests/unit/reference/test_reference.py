"""The reference ladder: what controllers may know, what they reach, and what is said of it."""

from __future__ import annotations

import dataclasses
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import WrapperSpec

import thrust_pomdp  # registers the ids
from thrust_pomdp.envs import cartpole
from thrust_pomdp.envs.cartpole_physics import ALL_ROWS, CartPolePhysics
from thrust_pomdp.envs.registration import ENVIRONMENTS
from thrust_pomdp.reference import (
    LADDER,
    LADDERS,
    Controller,
    Ladder,
    RandomController,
    Rung,
    controllers,
    episodes,
    ladder,
    measure,
    normalized,
    play,
    report,
    stored_ladder,
)
from thrust_pomdp.reference.belief import ExactModel, ModelObserver, transition
from thrust_pomdp.reference.control_laws import Memoryless, PreviousAction, TwoFrames
from thrust_pomdp.reference.figures import FIGURES_FILE, read_figures, write_figures
from thrust_pomdp.reference.search import search
from thrust_pomdp.reference.tasks import CartPoleTask, gains_for, stored_gains, task_of

assert thrust_pomdp
ROOT = Path(__file__).parents[3]
MASKED, FLICKERING = "MaskedCartPole-v0", "FlickeringCartPole-v0"
BURST, BOTH = "BurstFlickeringCartPole-v0", "MaskedFlickeringCartPole-v0"
SEMI = {"kinematics_integrator": "semi-implicit euler"}
NOISY = "POPGymNoisyPositionOnlyCartPoleEasy-v0"


def controller_of(env_id: str, information: str, **env_kwargs) -> Controller:
    (found,) = [c for c in controllers(env_id, **env_kwargs) if c.information == information]
    return found


def frames_of(env_id: str, n_envs: int, n_steps: int, **env_kwargs):
    """Observations and blank flags of some random play, ``n_steps`` pairs."""
    envs = episodes.make_envs(env_id, n_envs, **env_kwargs)
    rng = np.random.default_rng(0)
    obs, infos = envs.reset(seed=0)
    frames = [(obs, infos.get("blanked"))]
    for _ in range(n_steps - 1):
        obs, _, _, _, infos = envs.step(rng.integers(2, size=n_envs))
        frames.append((obs, infos.get("blanked")))
    return frames


def last_actions(controller: Controller, frames) -> np.ndarray:
    """The actions after a history, all draws being those of seed 0."""
    controller.seed(0)
    controller.reset(len(frames[0][0]))
    for obs, blanked in frames:
        actions = controller.act(obs, blanked)
    return actions


class TestWhatAControllerMayKnow:
    """Histories that differ only in what a class of information excludes give equal actions."""

    IDS = (MASKED, FLICKERING, BOTH, NOISY, "TMaze-v0", "ActiveTMaze-v0")

    def swapped(self, env_id: str, n_kept: int):
        """Two histories with the same last frames, the older ones swapped between episodes."""
        frames = frames_of(env_id, 400, 8)
        older = [
            (np.roll(obs, 1, axis=0), None if blanked is None else np.roll(blanked, 1))
            for obs, blanked in frames[:-n_kept]
        ]
        return frames, older + frames[-n_kept:]

    @pytest.mark.parametrize("env_id", IDS)
    def test_memoryless_the_newest_frame_only(self, env_id):
        one, other = self.swapped(env_id, n_kept=1)
        law = controller_of(env_id, "memoryless")
        assert (last_actions(law, one) == last_actions(law, other)).all()

    @pytest.mark.parametrize("env_id", IDS)
    def test_two_frames_the_newest_two_only(self, env_id):
        one, other = self.swapped(env_id, n_kept=2)
        law = controller_of(env_id, "two frames")
        assert (last_actions(law, one) == last_actions(law, other)).all()

    @pytest.mark.parametrize("env_id", [MASKED, FLICKERING, BOTH, NOISY])
    def test_two_frames_make_use_of_the_older_one(self, env_id):
        one, other = self.swapped(env_id, n_kept=1)
        law = controller_of(env_id, "two frames")
        assert (last_actions(law, one) != last_actions(law, other)).any()

    @pytest.mark.parametrize("env_id", IDS)
    def test_previous_action_the_newest_frame_and_the_last_action(self, env_id):
        one, other = self.swapped(env_id, n_kept=1)
        law = controller_of(env_id, "previous action")
        same = last_actions(law, one[:-1]) == last_actions(law, other[:-1])
        after_one, after_other = last_actions(law, one), last_actions(law, other)
        assert 100 < same.sum() < 400 or env_id == "ActiveTMaze-v0"
        assert (after_one[same] == after_other[same]).all()

    @pytest.mark.parametrize("env_id", [MASKED, FLICKERING, BOTH, NOISY])
    @pytest.mark.parametrize("information", ["previous action", "exact model"])
    def test_memory_is_made_use_of(self, env_id, information):
        one, other = self.swapped(env_id, n_kept=1)
        law = controller_of(env_id, information)
        assert (last_actions(law, one) != last_actions(law, other)).any()

    @pytest.mark.parametrize("env_id", [FLICKERING, BOTH])
    def test_what_a_blank_frame_holds_is_never_read(self, env_id):
        frames = frames_of(env_id, 200, 8)
        spoilt = [(np.where(b[:, None], np.float32(np.nan), o), b) for o, b in frames]
        for law in controllers(env_id):
            assert (last_actions(law, frames) == last_actions(law, spoilt)).all()


class TestNothingOfTheStateReachesThem:
    def test_equal_observations_of_other_states_give_equal_actions(self):
        """Hidden velocities: two vectors of carts, the same positions, other velocities."""
        for law in controllers(MASKED):
            actions = []
            for factor in (1.0, -3.0):
                envs = episodes.make_envs(MASKED, 50)
                obs, infos = envs.reset(seed=0)
                for env in envs.unwrapped.envs:
                    env.state = env.state * [1.0, factor, 1.0, factor]
                law.seed(0)
                law.reset(50)
                actions.append(law.act(obs, infos.get("blanked")))
            assert (actions[0] == actions[1]).all()

    @pytest.mark.parametrize("env_id", [MASKED, FLICKERING])
    def test_exposing_the_state_changes_nothing(self, env_id):
        for plain, exposed in zip(
            ladder(env_id, 50), ladder(env_id, 50, expose_state=True), strict=True
        ):
            assert plain == exposed

    def test_they_are_played_without_the_state_and_given_frames_and_flags_alone(self, monkeypatch):
        made = []
        make_vec = gym.make_vec

        def spy(*args, **kwargs):
            envs = make_vec(*args, **kwargs)
            made.append((kwargs, envs))
            return envs

        monkeypatch.setattr(gym, "make_vec", spy)

        class Witness(RandomController):
            def act(self, *args, **kwargs):
                (obs, blanked), () = args, tuple(kwargs)
                assert obs.shape == (20, 4)
                assert blanked.shape == (20,)
                assert not obs[blanked].any()
                return super().act(obs, blanked)

        play(FLICKERING, Witness(2, seed=0), n_episodes=20)
        ((kwargs, envs),) = made
        assert kwargs["vectorization_mode"] == "vector_entry_point"
        assert not envs.unwrapped.single.expose_state


class TestPlaying:
    def test_an_episode_is_the_first_of_the_environment_with_its_seed(self):
        """By hand: single environments, one after the other, acted in by the same controller."""
        law = controller_of(BOTH, "exact model")
        returns = play(BOTH, law, n_episodes=3, seed=5, flicker_prob=0.9)
        for idx, expected in enumerate(returns):
            env = gym.make(BOTH, flicker_prob=0.9)
            obs, info = env.reset(seed=5 + idx)
            law.reset()
            total, over = 0.0, False
            while not over:
                action = law.act(obs[None], [info["blanked"]])[0]
                obs, reward, terminated, truncated, info = env.step(action)
                total, over = total + reward, terminated or truncated
            assert total == expected

    def test_episodes_do_not_depend_on_how_many_are_played_side_by_side(self, monkeypatch):
        law = controller_of(BURST, "exact model", burst_len=16)
        together = play(BURST, law, n_episodes=40, burst_len=16)
        monkeypatch.setattr(episodes, "CHUNK", 7)
        assert (play(BURST, law, n_episodes=40, burst_len=16) == together).all()

    def test_short_episodes_do_not_crowd_out_long_ones(self):
        """Episodes of 1 or 9 steps, a coin each: the first 100 to finish would be mostly short."""

        class Coin(gym.vector.VectorEnv):
            num_envs = 100
            observation_space = gym.spaces.Box(-1, 1, (100, 1))

            def reset(self, *, seed=None, options=None):
                self.rng = np.random.default_rng(0)
                self.lengths = self.first = self.rng.choice([1, 9], 100)
                self.steps = np.zeros(100, int)
                return np.zeros((100, 1)), {}

            def step(self, actions):
                self.steps = self.steps + 1
                ended = self.steps == self.lengths
                self.lengths = np.where(ended, self.rng.choice([1, 9], 100), self.lengths)
                self.steps = np.where(ended, 0, self.steps)
                return np.zeros((100, 1)), np.ones(100), ended, np.zeros(100, bool), {}

        envs = Coin()
        returns = episodes.first_episodes(envs, RandomController(2), range(100))
        assert (returns == envs.first).all()

    def test_a_restart_forgets_the_episode_before(self):
        frames = frames_of(BOTH, 30, 12)
        ended = np.arange(30) % 2 == 0
        for law in controllers(BOTH):
            law.seed(0)
            law.reset(30)
            for frame in frames[:6]:
                law.act(*frame)
            law.restart(ended)
            law.seed(1)
            actions = [law.act(*frame) for frame in frames[6:]]
            law.reset(30)
            law.seed(1)
            fresh = [law.act(*frame) for frame in frames[6:]]
            assert (np.array(actions)[:, ended] == np.array(fresh)[:, ended]).all()

    def test_controllers_are_told_where_an_auto_reset_started_an_episode(self):
        told = []

        class Witness(RandomController):
            def _forget(self, ended):
                told.append(ended.copy())

        envs = episodes.make_envs(MASKED, 20)
        lengths = episodes.first_episodes(envs, Witness(2, seed=0), range(20))
        _, *at_steps = told  # the first one is that of reset
        assert (np.argmax(at_steps, axis=0) + 1 == lengths).all()

    def test_controllers_travel_to_other_processes(self):
        for law in controllers(BOTH):
            copy = pickle.loads(pickle.dumps(law))
            assert (play(BOTH, copy, 20) == play(BOTH, law, 20)).all() or law.name == "random"


class TestBelief:
    @pytest.mark.parametrize("integrator", ["euler", "semi-implicit euler"])
    def test_the_exact_model_knows_the_state_once_it_saw_one_frame(self, integrator):
        kwargs = {"kinematics_integrator": integrator, "flicker_prob": 0.6}
        law = ExactModel([0.1, 0.25, 1.0, 0.45], integrator)
        envs = episodes.make_envs(FLICKERING, 40, expose_state=True, **kwargs)
        obs, infos = envs.reset(seed=0)
        law.reset(40)
        seen = np.zeros(40, dtype=bool)
        for _ in range(60):
            actions = law.act(obs, infos["blanked"])
            seen |= ~infos["blanked"]
            error = np.abs(law.belief - infos["state"])[seen]
            # Frames are rounded to float32, and the pole is unstable: exp(4 / s * 1.2 s).
            assert error.max(initial=0.0) < 1e-4
            obs, _, terminations, _, infos = envs.step(actions)
            assert not terminations.any()
        assert seen.all()

    @pytest.mark.parametrize("integrator", ["euler", "semi-implicit euler"])
    def test_two_positions_give_the_observer_the_velocities(self, integrator):
        kwargs = {"kinematics_integrator": integrator}
        law = ModelObserver([0.1, 0.25, 1.0, 0.45], integrator)
        envs = episodes.make_envs(MASKED, 40, expose_state=True, **kwargs)
        obs, infos = envs.reset(seed=0)
        law.reset(40)
        errors = []
        for _ in range(4):
            actions = law.act(obs)
            errors.append(np.abs(law.belief - infos["state"]).max(axis=0))
            obs, _, _, _, infos = envs.step(actions)
        assert (errors[0][[0, 2]] < 1e-6).all()  # positions as seen
        assert (errors[0][[1, 3]] > 0.03).all()  # velocities unknown, within 0.05 of zero
        assert (errors[3] < 2e-3).all()

    @pytest.mark.parametrize("integrator", ["euler", "semi-implicit euler"])
    def test_the_linearised_step_is_the_environments_for_small_angles(self, integrator):
        env = gym.make(MASKED, kinematics_integrator=integrator).unwrapped
        matrix = transition(env)[..., 0]
        physics = CartPolePhysics(env, 1)
        for part, (position, velocity) in enumerate([(0, 1), (2, 3)]):
            for idx, component in enumerate((position, velocity)):
                ends = []
                for sign in (1, -1):  # the push cancels in the difference
                    state = np.zeros((1, 4))
                    state[0, component] = sign * 1e-4
                    physics.put(np.array([0]), state)
                    physics.advance(np.array([1]))
                    ends.append(physics.sensed(ALL_ROWS)[:, 0])
                change = (ends[0] - ends[1]) / 2e-4
                assert np.allclose(change[[position, velocity]], matrix[:, idx, part], atol=1e-5)

    def test_noise_is_weighed_as_a_kalman_filter_by_matrices_does(self):
        """One cart, its pole at rest: the filter's shares against the textbook's formulas."""
        law = ModelObserver([0, 0, 1, 0], noise=0.1)
        law.reset(1)
        f = transition(gym.make(MASKED).unwrapped)[..., 1, 0]
        p, r = np.eye(2) * 0.05**2 / 3, 0.1**2
        for step in range(5):
            if step:
                p = f @ p @ f.T + np.diag([0.0, 1e-8])
            gain = p[:, 0] / (p[0, 0] + r)
            p = p - np.outer(gain, p[0])
            law.act(np.zeros((1, 2)))
            spread = law._spread[:, 1, 0]
            assert np.allclose(spread, [p[0, 0], p[0, 1], p[1, 1]], rtol=1e-10)


#: Environment, arguments, class of information, what a search of this project's found before, and
#: its standard error (at most .5 where none was noted). Lower bounds; 500 is the most there is.
EXPECTED = [
    (MASKED, {}, "memoryless", 52.6, 0.5),
    (MASKED, {}, "previous action", 148, 0.5),
    (MASKED, {}, "two frames", 500, 0),
    (MASKED, {}, "exact model", 500, 0),
    # 440.6 was noted without gains; our searches, of richer laws too, end at 435 (20,000 episodes).
    (MASKED, SEMI, "memoryless", 435.2, 0.75),
    (MASKED, SEMI, "previous action", 500, 0),
    (MASKED, SEMI, "two frames", 500, 0),
    (MASKED, SEMI, "exact model", 500, 0),
    (FLICKERING, {}, "memoryless", 208, 3),
    (FLICKERING, {}, "previous action", 497, 0.5),
    (FLICKERING, {}, "two frames", 366, 0.5),
    (FLICKERING, {}, "exact model", 500, 0),
    ("FlickeringCartPole-p75-v0", {}, "memoryless", 46.8, 0.5),
    ("FlickeringCartPole-p75-v0", {}, "previous action", 251, 3),
    ("FlickeringCartPole-p75-v0", {}, "exact model", 500, 0),
    (FLICKERING, {"flicker_prob": 0.25}, "memoryless", 484, 0.5),
    (FLICKERING, {"flicker_prob": 0.25}, "previous action", 499.9, 0.5),
    (FLICKERING, {"flicker_prob": 0.25}, "exact model", 500, 0),
    (FLICKERING, {"flicker_prob": 0.9}, "memoryless", 27, 0.5),
    (FLICKERING, {"flicker_prob": 0.9}, "previous action", 65, 0.5),
    (FLICKERING, {"flicker_prob": 0.9}, "exact model", 482, 0.5),
    (BURST, {}, "memoryless", 105.8, 0.6),
    (BURST, {}, "previous action", 478.3, 0.6),
    (BURST, {}, "two frames", 117, 0.5),
    (BURST, {}, "exact model", 500, 0),
    ("BurstFlickeringCartPole-L8-v0", {}, "memoryless", 72.4, 0.5),
    ("BurstFlickeringCartPole-L8-v0", {}, "previous action", 357, 1),
    ("BurstFlickeringCartPole-L8-v0", {}, "exact model", 496.8, 0.5),
    ("BurstFlickeringCartPole-L16-v0", {}, "memoryless", 64, 0.5),
    ("BurstFlickeringCartPole-L16-v0", {}, "previous action", 196, 1),
    ("BurstFlickeringCartPole-L16-v0", {}, "exact model", 474, 0.8),
    (BOTH, {}, "memoryless", 42, 0.5),
    (BOTH, {}, "previous action", 118, 0.5),
    (BOTH, {}, "exact model", 500, 0),
]


def rung_of(rungs, information: str) -> Rung:
    (found,) = [rung for rung in rungs if rung.information == information]
    return found


class TestFigures:
    @pytest.mark.parametrize(("env_id", "env_kwargs", "information", "expected", "error"), EXPECTED)
    def test_stored_ones_meet_what_was_found_before(
        self, env_id, env_kwargs, information, expected, error
    ):
        rung = rung_of(stored_ladder(env_id, **env_kwargs), information)
        assert rung.mean >= expected - 3 * math.hypot(rung.standard_error, error)

    @pytest.mark.parametrize("stored", LADDERS, ids=report.title)
    def test_stored_ones_are_what_is_measured(self, stored):
        """On other episodes, within five standard errors."""
        measured = ladder(stored.env_id, 100, seed=10**6, **stored.env_kwargs)
        for before, now in zip(stored.rungs, measured, strict=True):
            assert (before.controller, before.information) == (now.controller, now.information)
            # A rare failure may be missing among 100 episodes: the spread as it was before, too.
            spread = before.standard_error * math.sqrt(before.n_episodes / 100)
            assert abs(before.mean - now.mean) <= 5 * max(spread, now.standard_error) + 1e-9

    def test_the_same_episodes_give_the_same_figure_to_the_last_digit(self):
        stored = LADDER[MASKED][1]
        again = measure(MASKED, controllers(MASKED)[1], stored.n_episodes)
        assert again == stored

    def test_every_id_has_its_ladder_from_floor_to_ceiling(self):
        assert set(LADDER) == set(ENVIRONMENTS)
        for rungs in LADDER.values():
            means = {rung.information: rung.mean for rung in rungs}
            slack = 3 * max(rung.standard_error for rung in rungs)
            # Who knows more does no worse.
            assert means["nothing"] <= means["memoryless"] + slack
            assert means["memoryless"] <= means["previous action"] + slack
            assert means["memoryless"] <= means["two frames"] + slack
            assert max(means.values()) <= means["exact model"] + slack

    def test_without_blanks_everything_is_visible(self):
        rungs = ladder(FLICKERING, 300, flicker_prob=0.0)
        assert rung_of(rungs, "memoryless").mean == 500
        assert rung_of(rungs, "exact model").mean == 500
        assert rung_of(rungs, "memoryless").kind == "proof"

    def test_with_nothing_but_blanks_nobody_can_do_much(self):
        rungs = ladder(FLICKERING, 300, flicker_prob=1.0)
        coins, random = rung_of(rungs, "memoryless"), rung_of(rungs, "nothing")
        spread = math.hypot(coins.standard_error, random.standard_error)
        assert abs(coins.mean - random.mean) < 5 * spread

    def test_a_smaller_cap_caps(self):
        assert ladder(MASKED, 50, max_episode_steps=100)[-1].mean == 100
        assert ladder(MASKED, 50, max_episode_steps=100)[-1].kind == "proof"

    @pytest.mark.parametrize("length", [200, 600])
    def test_popgyms_rewards_add_up_to_one(self, length):
        rung = ladder("POPGymPositionOnlyCartPoleEasy-v0", 50, max_episode_length=length)[-1]
        assert rung.mean == pytest.approx(1.0, rel=1e-12)
        assert rung.kind == "proof"


class TestTMazes:
    @pytest.mark.parametrize("env_id", ["TMaze-v0", "ActiveTMaze-v0"])
    @pytest.mark.parametrize("corridor_length", [1, 2, 10])
    def test_what_each_class_of_information_reaches(self, env_id, corridor_length):
        rungs = ladder(env_id, 500, corridor_length=corridor_length)
        assert all(rung.kind == "proof" for rung in rungs)
        for rung in rungs:
            remembers = rung.information in ("previous action", "exact model")
            if remembers or (rung.information == "two frames" and corridor_length == 1):
                assert rung.mean == 1.0
            else:  # a coin
                assert abs(rung.mean) < 5 * rung.standard_error


class TestKinds:
    def test_say_what_is_proved_and_why(self):
        rungs = ladder(BURST, 100, flicker_prob=0.5, burst_len=16)
        assert [rung.kind for rung in rungs] == ["proof"] + ["best found"] * 4
        assert rungs[0].reason == "the only policy of its class"
        assert ladder(BURST, 100)[-1].reason == "the most there is, in every episode"

    def test_gains_tell_where_they_come_from(self):
        assert controller_of(FLICKERING, "memoryless").source == "found for this task"
        other = controller_of(FLICKERING, "memoryless", flicker_prob=0.45)
        assert other.source.startswith("found for flicker_prob:0.5")
        assert controllers(FLICKERING)[0].source == ""

    def test_the_interval_is_by_hand(self):
        values = {"n_episodes": 4, "kind": "best found", "reason": ""}
        rung = Rung("a", "memoryless", mean=10.0, standard_error=2.0, **values)
        assert rung.interval == pytest.approx((6.08, 13.92))


class TestTasks:
    @pytest.mark.parametrize(
        ("env_id", "env_kwargs", "expected"),
        [
            (MASKED, {}, CartPoleTask(hide_velocities=True)),
            (BURST, {}, CartPoleTask(flicker_prob=0.5, burst_len=4.0)),
            # Runs of 1 / (1 - p) are independent frames.
            (BURST, {"burst_len": 2}, CartPoleTask(flicker_prob=0.5)),
            (FLICKERING, {"flicker_prob": 0}, CartPoleTask()),
            (BOTH, SEMI, CartPoleTask(True, 0.5, None, 0.0, "semi-implicit euler")),
            ("POPGymPositionOnlyCartPoleHard-v0", {}, CartPoleTask(hide_velocities=True)),
            (NOISY, {"noise_sigma": 0.25}, CartPoleTask(hide_velocities=True, noise=0.25)),
        ],
    )
    def test_are_read_from_the_environment(self, env_id, env_kwargs, expected):
        assert task_of(gym.make(env_id, **env_kwargs).unwrapped) == expected

    def test_every_id_has_gains_of_its_own(self):
        for env_id in ENVIRONMENTS:
            if "TMaze" not in env_id:
                assert set(stored_gains()[task_of(gym.make(env_id).unwrapped)]) == {
                    "memoryless", "previous action", "two frames", "exact model",
                }  # fmt: skip

    def test_borrowed_gains_are_the_best_of_the_stored_ones(self):
        """Under semi-implicit Euler being sure is several times as good as dithering."""
        kwargs = {**SEMI, "flicker_prob": 0.02}
        task = CartPoleTask(True, 0.02, None, 0.0, SEMI["kinematics_integrator"])
        gains, source = gains_for(BOTH, task, "memoryless", **kwargs)
        sure = CartPoleTask(True, kinematics_integrator=SEMI["kinematics_integrator"])
        assert gains == stored_gains()[sure]["memoryless"]
        assert source.startswith(f"found for {sure}, the best of")


class TestLaws:
    def test_memoryless_by_hand(self):
        law = Memoryless([0.0, 2.0, 3.0])
        # u = 2 * 0.5 = 1, lean = 1 + 3 * 1
        assert law._lean(np.array([[7.0], [0.5]]), np.array([True])) == [4.0]

    def test_previous_action_by_hand(self):
        law = PreviousAction([1.0, 2.0, -3.0, 0.5, -50.0])
        law.reset(3)
        law._remember(np.array([True, True, False]))
        frames = np.array([[1.0, 0.0, 0.0], [0.5, 0.0, 0.0]])
        lean = law._lean(frames, np.array([True, False, False]))
        # u = 1 + 1 - 3 = -1, lean = -1 + 0.5 * (-1)
        assert lean.tolist() == [-1.5, -50, 50]

    def test_two_frames_by_hand(self):
        law = TwoFrames([1.0, 10.0, 100.0, 1000.0])
        law.reset(4)
        before = np.array([[2.0, 2.0, 0.0, 0.0]])
        law._lean(before, np.array([True, True, False, False]))
        lean = law._lean(np.array([[3.0, 0.0, 3.0, 0.0]]), np.array([True, False, True, False]))
        assert lean.tolist() == [3 + 20, 2000, 300, 0]

    def test_a_coin_is_fair_and_odds_are_logistic(self):
        n = 20_000
        law = Memoryless([1.0, 0.0], seed=0)
        law.reset(n)
        for lean in (0.0, 1.0):
            share = law.act(np.full((n, 1), lean)).mean()
            expected = 1 / (1 + math.exp(-lean))
            assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / n)


class TestNormalized:
    def test_puts_the_floor_at_0_and_the_ceiling_at_1(self):
        rungs = LADDER[BURST]
        assert normalized(rung_of(rungs, "memoryless").mean, rungs) == 0
        assert normalized(rung_of(rungs, "exact model").mean, rungs) == 1
        assert normalized(0.0, rungs) < 0

    def test_refuses_a_task_in_which_memory_is_worth_nothing(self):
        same = [dataclasses.replace(rung, mean=500.0) for rung in LADDER[MASKED]]
        with pytest.raises(ValueError, match="in which memory is worth something, got 500.0"):
            normalized(400.0, same)


class Timid(cartpole.FlickeringCartPoleEnv):
    """The same class but for its rewards."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return (obs, 2 * reward, *rest)


class Doubled(gym.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


SINGLE = "thrust_pomdp.envs.cartpole:FlickeringCartPoleEnv"
TWIN = "thrust_pomdp.envs.cartpole_vector:FlickeringCartPoleVectorEnv"
DOUBLED = (WrapperSpec("Doubled", f"{__name__}:Doubled", {}),)

#: What a program may have registered: id, arguments of ``gym.register``, of the environment.
OTHER_TASKS = {
    "a limit of 50 under our id": (FLICKERING, {"entry_point": SINGLE, "max_episode_steps": 50}),
    "other arguments under our id": (
        FLICKERING, {"entry_point": SINGLE, "kwargs": {"flicker_prob": 0.1}}),
    "another class under our id": (FLICKERING, {"entry_point": Timid}),
    "the name of another class": (FLICKERING, {"entry_point": f"{__name__}:Timid"}),
    "CartPole under our id": (
        FLICKERING, {"entry_point": "gymnasium.envs.classic_control:CartPoleEnv"}),
    "a factory under our id": (
        FLICKERING, {"entry_point": lambda **kwargs: Timid(**kwargs)}),
    "our id with a wrapper": (
        FLICKERING, {"entry_point": SINGLE, "additional_wrappers": DOUBLED}),
    "an own id with a wrapper": (
        "Mine-v0", {"entry_point": SINGLE, "additional_wrappers": DOUBLED}),
    "an own id of another class": ("Mine-v0", {"entry_point": Timid}),
}  # fmt: skip

#: Those that are played by other rules, not only for longer or through other sensors.
OTHER_RULES = [name for name in OTHER_TASKS if not name.startswith(("a limit", "other arg"))]


@pytest.fixture
def others():
    """Registers one of :data:`OTHER_TASKS`, for a test."""
    before = dict(gym.registry)

    def register(name):
        env_id, arguments = OTHER_TASKS[name]
        gym.registry.pop(env_id, None)
        gym.register(env_id, **{"vector_entry_point": TWIN, "max_episode_steps": 500, **arguments})
        return env_id, {}

    yield register
    gym.registry.clear()
    gym.registry.update(before)


class TestWhatAProgramMadeOfAnId:
    """Figures, controllers and bounds are of what was written, whatever stands under the id."""

    @pytest.mark.parametrize("other", OTHER_RULES)
    def test_has_no_scripted_controllers(self, others, other):
        env_id, env_kwargs = others(other)
        with pytest.raises(ValueError, match=r"of this package, .* got '.*-v0': .* registered"):
            controllers(env_id, **env_kwargs)

    @pytest.mark.parametrize("other", OTHER_TASKS)
    def test_is_what_is_played(self, others, other):
        """By hand, in single environments that ``gym.make`` makes."""
        env_id, env_kwargs = others(other)
        returns = play(env_id, RandomController(2, seed=0), 5, seed=3, **env_kwargs)
        actions = RandomController(2, seed=0)
        envs = gym.vector.SyncVectorEnv(
            [lambda: gym.make(env_id, disable_env_checker=True, **env_kwargs)] * 5,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        )
        assert (episodes.first_episodes(envs, actions, range(3, 8)) == returns).all()

    @pytest.mark.parametrize("other", OTHER_RULES)
    def test_has_no_proofs(self, others, other):
        env_id, env_kwargs = others(other)
        rung = measure(env_id, RandomController(2, seed=0), 10, **env_kwargs)
        assert (rung.kind, rung.reason) == ("best found", "a lower bound")

    def test_may_be_a_task_of_others(self):
        """Gymnasium's own vector is not taken: it is not known to be the same."""
        returns = play("CartPole-v1", RandomController(2, seed=0), 200)
        assert 15 < returns.mean() < 30
        envs = episodes.make_envs("CartPole-v1", 2)
        assert isinstance(envs, gym.vector.SyncVectorEnv)

    @pytest.mark.parametrize("name", ["step", "reset"])
    def test_may_be_a_method_replaced_on_a_class(self, monkeypatch, name):
        plain = getattr(cartpole.FlickeringCartPoleEnv, name)
        replaced = lambda self, *args, **kwargs: plain(self, *args, **kwargs)  # noqa: E731
        monkeypatch.setattr(cartpole.FlickeringCartPoleEnv, name, replaced)
        assert stored_ladder(FLICKERING) == ()
        assert stored_ladder(BURST) == ()
        assert stored_ladder(MASKED) == LADDER[MASKED]
        assert isinstance(episodes.make_envs(FLICKERING, 2), gym.vector.SyncVectorEnv)
        with pytest.raises(ValueError, match=f"{name} was replaced"):
            controllers(FLICKERING)
        with pytest.raises(ValueError, match=f"as it was written, got .*{name} was replaced"):
            task_of(gym.make(FLICKERING).unwrapped)

    def test_of_other_arguments_and_limits_is_measured_as_it_is(self, others):
        env_id, _ = others("a limit of 50 under our id")
        assert [rung.mean for rung in ladder(env_id, 50)][-1] == 50.0


class TestStoredLadders:
    @pytest.mark.parametrize(
        ("env_id", "env_kwargs", "same"),
        [
            (FLICKERING, {}, FLICKERING),
            (FLICKERING, {"flicker_prob": 0.5, "burst_len": None}, FLICKERING),
            (FLICKERING, {"burst_len": 4.0}, BURST),
            (FLICKERING, {"hide_velocities": True, "expose_state": True}, BOTH),
            ("thrust_pomdp:MaskedCartPole-v0", {"kinematics_integrator": "euler"}, MASKED),
        ],
    )
    def test_hold_for_the_same_environment_under_other_names(self, env_id, env_kwargs, same):
        assert stored_ladder(env_id, **env_kwargs) == LADDER[same]

    @pytest.mark.parametrize(
        ("env_id", "env_kwargs"),
        [
            (FLICKERING, {"flicker_prob": 0.3}),
            (FLICKERING, {"max_episode_steps": 200}),
            ("CartPole-v1", {}),
            ("NoSuchEnv-v0", {}),
        ],
    )
    def test_hold_for_no_other(self, env_id, env_kwargs):
        assert stored_ladder(env_id, **env_kwargs) == ()

    @pytest.mark.parametrize("other", OTHER_TASKS)
    def test_hold_for_nothing_that_a_program_made_of_an_id(self, others, other):
        env_id, env_kwargs = others(other)
        assert stored_ladder(env_id, **env_kwargs) == ()
        assert stored_ladder(MASKED) == LADDER[MASKED]

    def test_hold_for_an_own_id_of_the_same_class_and_arguments(self, others):
        for entry_point in (SINGLE, cartpole.FlickeringCartPoleEnv):
            gym.register("Mine-v0", entry_point, kwargs={"burst_len": 4}, max_episode_steps=500)
            assert stored_ladder("Mine-v0") == LADDER[BURST]
            assert stored_ladder("Mine-v0", max_episode_steps=None) == LADDER[BURST]
            assert stored_ladder("Mine-v0", max_episode_steps=-1) == ()
            del gym.registry["Mine-v0"]

    def test_survive_their_file(self, tmp_path):
        write_figures(tmp_path / "figures.csv", LADDERS)
        assert read_figures(tmp_path / "figures.csv") == LADDERS
        assert (tmp_path / "figures.csv").read_text() == FIGURES_FILE.read_text()


class TestSearch:
    def test_finds_a_law_that_balances_and_is_repeatable(self, monkeypatch):
        from thrust_pomdp.reference import search as module

        smaller = {"POPULATION": 16, "EPISODES": 8, "GENERATIONS": 6, "FINAL_EPISODES": 64}
        for name, value in smaller.items():
            monkeypatch.setattr(module, name, value)
        task = CartPoleTask(flicker_prob=0.5)
        first, score = search(FLICKERING, task, "memoryless")
        again, _ = search(FLICKERING, task, "memoryless")
        assert (first == again).all()
        assert score > 120  # random: 22

    def test_stops_where_nothing_is_left_to_find(self):
        task = CartPoleTask(hide_velocities=True)
        gains, score = search(MASKED, task, "exact model", max_episode_steps=50)
        assert score == 50
        assert gains.tolist() == [0.1, 0.25, 1.0, 0.45]


class TestReport:
    SMALL = Ladder(MASKED, {}, LADDER[MASKED])
    SCALED = Ladder("TMaze-v0", {}, LADDER["TMaze-v0"])

    def test_text_tells_mean_interval_and_kind(self):
        text = report.text(self.SMALL)
        assert "MaskedCartPole-v0: mean return of" in text
        assert "of at most 500" in text
        lines = text.splitlines()
        assert lines[-1].split()[:3] == ["model", "observer", "500.0"]
        assert "proof" in lines[-1]
        assert "best found" in lines[4]

    def test_a_page_gets_its_table_between_the_marks(self):
        page = "\n".join(["before", report.MARKS[0], "old", report.MARKS[1], "after"])
        new = report.markdown(page, [self.SMALL, self.SCALED])
        assert "old" not in new
        assert new.startswith("before\n")
        assert new.endswith("\nafter")
        assert "| `TMaze-v0` | 1 |" in new
        assert report.markdown(new, [self.SMALL, self.SCALED]) == new

    def test_a_page_without_marks_is_refused(self):
        with pytest.raises(ValueError, match="the page must hold the marks"):
            report.markdown("nothing", [self.SMALL])

    def test_the_documentation_shows_the_stored_figures(self):
        page = (ROOT / "docs" / "ladder.md").read_text()
        assert report.markdown(page, LADDERS) == page

    def test_the_documentations_examples_run(self, capsys):
        blocks = re.findall(
            r"```python\n(.*?)```", (ROOT / "docs" / "ladder.md").read_text(), flags=re.DOTALL
        )
        assert len(blocks) == 2
        exec("\n".join(blocks).replace("n_episodes=500", "n_episodes=50"), {})
        assert "exact model 500.0" in capsys.readouterr().out

    def test_the_picture_has_a_mark_for_every_rung(self, tmp_path, monkeypatch):
        from matplotlib.figure import Figure

        figures = []
        monkeypatch.setattr(Figure, "savefig", lambda self, path: figures.append((self, path)))
        report.draw([self.SMALL, self.SCALED], tmp_path / "a.png")
        ((figure, _),) = figures
        (axes,) = figure.axes
        assert len(axes.containers) == 10


class TestBadInput:
    def test_a_foreign_environment(self):
        with pytest.raises(ValueError, match="of this package, .* got 'CartPole-v1'"):
            controllers("CartPole-v1")

    def test_an_environment_without_an_end(self):
        with pytest.raises(ValueError, match="max_episode_steps must be at least 1, .* got -1"):
            ladder(MASKED, 10, max_episode_steps=-1)

    def test_an_own_id_without_an_end(self, others):
        others("an own id of another class")
        gym.registry["Mine-v0"].entry_point = SINGLE
        gym.registry["Mine-v0"].max_episode_steps = None
        with pytest.raises(ValueError, match="max_episode_steps must be .* got -1 for Mine-v0"):
            ladder("Mine-v0", 10)
        assert play("Mine-v0", RandomController(2, seed=0), 5, max_episode_steps=9).max() == 9

    def test_a_bad_argument_of_the_environment(self):
        with pytest.raises(ValueError, match="flicker_prob must be a probability"):
            ladder(FLICKERING, 10, flicker_prob=1.5)

    def test_one_episode_has_no_interval(self):
        with pytest.raises(ValueError, match="n_episodes must be at least 2, .* got 1"):
            ladder(MASKED, 1)

    def test_no_episodes(self):
        with pytest.raises(ValueError, match="n_episodes must be at least 1, got 0"):
            play(MASKED, RandomController(2), 0)

    def test_frames_that_do_not_fit(self):
        law = Memoryless([0.0, 1.0, 0.0])
        with pytest.raises(ValueError, match="each of the 0 environments named in reset"):
            law.act(np.zeros((1, 2)))
        law.reset(2)
        with pytest.raises(ValueError, match=r"2 environments .* got shapes \(3, 2\) and \(3,\)"):
            law.act(np.zeros((3, 2)))
        with pytest.raises(ValueError, match=r"got shapes \(2, 2\) and \(1,\)"):
            law.act(np.zeros((2, 2)), [True])
        with pytest.raises(ValueError, match=r"ended must have shape \(2,\)"):
            law.restart([True])


class TestLadderScript:
    def call(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "ladder.py"), *arguments],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--env", "FlickeringCartpole-v0"], "Did you mean"),
            (["--env", "CartPole-v1"], "of this package"),
            (["--env", FLICKERING, "--env-kwargs", "flicker_prob:1.5"], "must be a probability"),
            (["--env", FLICKERING, "--env-kwargs", "flicker_prob=.3"], "expected name:value"),
            (["--env-kwargs", "flicker_prob:0.3"], "need --env"),
            (["--episodes", "0"], "must be at least 1"),
            (["--episodes", "1"], "must be at least 2"),
            (["--env", MASKED, "--seed", "-1"], "argument --seed: must be at least 0, got -1"),
            (["--markdown", str(ROOT / "README.md")], "must hold the marks"),
            (["--markdown", "there-is-no.md"], "there-is-no.md"),
            (["--plot", "ladder.pgn"], "must name a .png file, got ladder.pgn"),
            (["--csv", str(ROOT)], "must name files"),
            (["--csv", str(ROOT / "README.md" / "a.csv")], "README.md"),
        ],
    )
    def test_bad_arguments_exit_with_2_and_a_message(self, arguments, message):
        done = self.call(*arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr

    def test_prints_writes_and_draws_the_same_figures(self, tmp_path):
        done = self.call(
            "--env", FLICKERING, "--env-kwargs", "flicker_prob:0.75", "--episodes", "30", "--jobs",
            "1", "--csv", str(tmp_path / "new" / "a.csv"), "--plot", str(tmp_path / "a.png"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (written,) = read_figures(tmp_path / "new" / "a.csv")
        assert written.env_kwargs == {"flicker_prob": 0.75}
        expected = ladder(FLICKERING, 30, flicker_prob=0.75)
        assert list(written.rungs) == expected
        assert all(f"{r.mean:.1f}" in done.stdout for r in expected)
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

"""Controllers: what they may know, how they are played, and what they believe."""

from __future__ import annotations

import math
import pickle

import gymnasium as gym
import numpy as np
import pytest

from thrust_pomdp.envs.cartpole_physics import ALL_ROWS, CartPolePhysics
from thrust_pomdp.reference import (
    Controller,
    RandomController,
    controllers,
    episodes,
    ladder,
    play,
)
from thrust_pomdp.reference.belief import ExactModel, ModelObserver, transition
from thrust_pomdp.reference.control_laws import Memoryless, PreviousAction, TwoFrames

MASKED, FLICKERING = "MaskedCartPole-v0", "FlickeringCartPole-v0"


BURST, BOTH = "BurstFlickeringCartPole-v0", "MaskedFlickeringCartPole-v0"


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

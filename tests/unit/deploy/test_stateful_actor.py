"""The stateful helper, and the warning for those who forget the state."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from helpers import fixed_length_envs

from thrust_pomdp import RecurrentPPO, StatefulActor


def make_model(*lengths: int) -> RecurrentPPO:
    return RecurrentPPO(
        "MlpLstmPolicy", fixed_length_envs(*lengths), policy_kwargs={"lstm_hidden_size": 8}, seed=0
    )


def by_hand(model: RecurrentPPO, env, n_steps: int) -> list[np.ndarray]:
    """States met when the state is handled as it should be."""
    obs, state, start = env.reset(), None, np.ones(env.num_envs, dtype=bool)
    states = []
    for _ in range(n_steps):
        actions, state = model.predict(obs, state, start, deterministic=True)
        states.append(state[0])
        obs, _, start, _ = env.step(actions)
    return states


class TestStatefulActor:
    @pytest.mark.parametrize("lengths", [(5,), (5, 6, 7)])
    def test_remembers_what_handling_the_state_by_hand_remembers(self, lengths):
        model = make_model(*lengths)
        env = model.get_env()
        env.seed(3)
        expected = by_hand(model, env, 20)
        env.seed(3)
        actor, obs, dones = StatefulActor(model, deterministic=True), env.reset(), None
        for state in expected:
            actions = actor.act(obs, episode_start=dones)
            assert np.array_equal(actor._state[0], state)
            obs, _, dones, _ = env.step(actions)

    def test_one_environment_in_gymnasiums_form(self):
        model = make_model(5)
        actor = StatefulActor(model, deterministic=True)
        obs = np.ones(3, np.float32)
        first = actor.act(obs)
        assert first.shape == ()
        state = actor._state[0]
        actor.act(obs)
        assert not np.array_equal(actor._state[0], state)
        actor.act(obs, episode_start=True)
        assert np.array_equal(actor._state[0], state)
        actor.reset()
        actor.act(obs)
        assert np.array_equal(actor._state[0], state)

    def test_another_number_of_environments_needs_a_reset(self):
        actor = StatefulActor(make_model(5))
        actor.act(np.ones((2, 3), np.float32))
        with pytest.raises(ValueError, match="state must be"):
            actor.act(np.ones((3, 3), np.float32))
        actor.reset()
        actor.act(np.ones((3, 3), np.float32))

    def test_can_be_made_from_a_policy(self):
        assert StatefulActor(make_model(5).policy).act(np.ones(3, np.float32)).shape == ()


class TestForgottenState:
    OBS = np.ones((1, 3), np.float32)

    def test_calls_without_a_state_warn_once(self):
        model = make_model(5)
        with pytest.warns(UserWarning, match="forgot everything each time") as caught:
            for _ in range(30):
                model.predict(self.OBS)
            model.predict(self.OBS, (np.zeros((1, 1, 8)), np.zeros((1, 1, 8))))
            for _ in range(30):
                model.predict(self.OBS)
        assert len(caught) == 1
        assert caught[0].filename == __file__

    def test_episode_starts_do_not_replace_the_state(self):
        model = make_model(5)
        with pytest.warns(UserWarning, match="forgot everything each time"):
            for step in range(30):
                model.predict(self.OBS, episode_start=np.array([step % 5 == 0]))

    def test_right_use_does_not_warn(self):
        model, state = make_model(5), None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(60):
                if step % 5 == 0:
                    state = None  # a new episode
                _, state = model.predict(self.OBS, state)
            for _ in range(30):  # meant: every observation starts an episode
                model.predict(self.OBS, episode_start=np.ones(1))
            by_hand(model, model.get_env(), 30)

"""How long one wrong frame disturbs a memory: memories whose decay is known."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from thrust_pomdp import RecurrentPPO, make_vec_env
from thrust_pomdp.analysis.contamination import disturbance, half_life


class Noise(gym.Env):
    """Every observation is drawn anew; an episode has a length."""

    action_space = spaces.Discrete(2)

    def __init__(self, length=100, space=None, constant=False):
        self.observation_space = space or spaces.Box(-1, 1, (3,), np.float64)
        self.length, self.constant = length, constant

    def _obs(self):
        obs = self.observation_space.sample()
        return np.zeros_like(obs) if self.constant else obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        self.t += 1
        return self._obs(), 0.0, self.t >= self.length, False, {}


class Leaky:
    """Remembers a weighted sum: of what came k steps ago ``kept ** k`` is left, exactly."""

    def __init__(self, kept: float, n_parts: int = 1):
        self.kept, self.n_parts = kept, n_parts

    def predict(self, obs, state, episode_start, deterministic):
        assert deterministic
        parts = list(obs.values()) if isinstance(obs, dict) else [obs]
        seen = np.concatenate([np.reshape(part, (len(part), -1)) for part in parts], axis=1)
        before = 0.0 if state is None else (state if self.n_parts == 1 else state[0])
        after = self.kept * np.where(episode_start[:, None], 0.0, before) + seen[None]
        return np.zeros(len(seen), int), after if self.n_parts == 1 else (after, 0 * after)


def noise(n=5, **kwargs):
    venv = DummyVecEnv([lambda: Noise(**kwargs) for _ in range(n)])
    venv.seed(0)
    return venv


@pytest.mark.parametrize("n_parts", [1, 2])
@pytest.mark.parametrize(
    ("kept", "steps"), [(0.9, 7.0), (0.7, 2.0), (0.5, 1.0), (0.0, 1.0), (0.99, None)]
)
def test_it_is_that_of_a_known_decay(kept, steps, n_parts):
    model = Leaky(kept, n_parts)
    shares = disturbance(model, noise(), 40)
    np.testing.assert_allclose(shares, kept ** np.arange(41.0), atol=1e-12)
    assert half_life(model, noise(), 40) == steps


def test_observations_of_several_parts_are_wrong_in_all_of_them():
    space = spaces.Dict(a=spaces.Box(-1, 1, (2, 2)), b=spaces.Box(-1, 1, (1,)))
    assert half_life(Leaky(0.7), noise(space=space)) == 2.0


def test_only_as_far_as_episodes_go():
    assert len(disturbance(Leaky(0.9), noise(length=30))) == 15  # wrong at 15, the last frame is 29
    assert len(disturbance(Leaky(0.9), noise(length=9))) == 0
    assert half_life(Leaky(0.9), noise(length=9)) is None


def test_where_frames_are_all_the_same_nothing_is_disturbed():
    assert half_life(Leaky(0.9), noise(constant=True)) is None


@pytest.mark.parametrize("kind", [RecurrentPPO, sb3_contrib.RecurrentPPO])
def test_models_of_both_kinds(kind):
    venv = noise(8)
    model = kind("MlpLstmPolicy", venv, n_steps=8, batch_size=8, seed=0)
    with th.no_grad():  # forget gates that keep all but nothing, then all
        for bias, steps in ((-20.0, 1.0), (20.0, None)):
            lstm = model.policy.lstm_actor
            lstm.bias_ih_l0[256:512] = bias
            assert half_life(model, venv, 20) == steps


def test_what_cannot_be_is_told():
    venv = make_vec_env("FlickeringCartPole-v0", n_envs=2)
    with pytest.raises(ValueError, match="model must be recurrent"):
        half_life(PPO("MlpPolicy", venv, n_steps=8, batch_size=16), venv)
    with pytest.raises(ValueError, match="venv must have at least two environments"):
        half_life(Leaky(0.5), noise(1))
    with pytest.raises(ValueError, match="n_steps must be"):
        half_life(Leaky(0.5), noise(), 0)

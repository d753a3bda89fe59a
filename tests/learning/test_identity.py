"""The identity tests of Stable-Baselines3 and sb3-contrib, with their settings, learnt with memory.

The action to take is what is seen, so memory is of no use and only in the way: what is asked is
that actions of every kind, and masks, get their gradients. docs/sb3-contrib.md has the figures
beside those of PPO and MaskablePPO.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sb3_contrib.common.envs import (
    InvalidActionEnvDiscrete,
    InvalidActionEnvMultiBinary,
    InvalidActionEnvMultiDiscrete,
)
from stable_baselines3.common.envs import (
    IdentityEnv,
    IdentityEnvMultiBinary,
    IdentityEnvMultiDiscrete,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

from thrust_pomdp import MaskableRecurrentPPO, RecurrentPPO
from thrust_pomdp.ppo import maskable

#: PPO's defaults in SB3, where the tests leave them; with them windows are cut into pieces of 64.
SETTINGS: dict[str, Any] = {"gamma": 0.4, "n_steps": 2048, "batch_size": 64, "device": "cpu"}

PLAIN = {
    "Discrete": lambda: IdentityEnv(4),
    "MultiDiscrete": lambda: IdentityEnvMultiDiscrete(4),
    "MultiBinary": lambda: IdentityEnvMultiBinary(4),
}
MASKED = {
    "Discrete": lambda: InvalidActionEnvDiscrete(dim=20, n_invalid_actions=19),
    "MultiDiscrete": lambda: InvalidActionEnvMultiDiscrete(dims=[2, 3], n_invalid_actions=3),
    "MultiBinary": lambda: InvalidActionEnvMultiBinary(dims=3, n_invalid_actions=3),
}


def masked_mean(make: Any, n_timesteps: int, seed: int, **kwargs: Any) -> float:
    env = DummyVecEnv([make])
    model = MaskableRecurrentPPO("MlpLstmPolicy", env, seed=seed, **{**SETTINGS, **kwargs})
    if n_timesteps:
        model.learn(n_timesteps)
    mean, _ = maskable.evaluate_policy(model, env, n_eval_episodes=10, warn=False)
    return float(mean)


@pytest.mark.parametrize("action", MASKED)
def test_untrained_takes_the_only_action_that_is_allowed(action: str) -> None:
    """sb3-contrib's: all actions but the good one are masked."""
    assert masked_mean(MASKED[action], 0, seed=8) == 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "n_timesteps"),
    [("Discrete", 3000), ("MultiDiscrete", 10_000), ("MultiBinary", 10_000)],
)
def test_identity_is_learnt_with_sb3s_settings(action: str, n_timesteps: int) -> None:
    """SB3's threshold, in at most 10,000 steps.

    (What goes on after all is learnt overshoots: see docs/sb3-contrib.md.)
    """
    means = []
    for seed in range(3):
        env = DummyVecEnv([PLAIN[action]])
        model = RecurrentPPO("MlpLstmPolicy", env, seed=seed, **SETTINGS).learn(n_timesteps)
        means.append(evaluate_policy(model, env, n_eval_episodes=10, warn=False)[0])
    assert min(means) >= 90, means


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: InvalidActionEnvMultiDiscrete(dims=[4, 4], n_invalid_actions=3),
        lambda: InvalidActionEnvMultiBinary(dims=4, n_invalid_actions=2),
    ],
    ids=["MultiDiscrete", "MultiBinary"],
)
def test_identity_is_learnt_with_some_actions_masked(make: Any) -> None:
    """In the 3,000 steps of sb3-contrib's test, with its threshold."""
    means = [masked_mean(make, 3000, seed) for seed in range(3)]
    assert min(means) >= 90, means


@pytest.mark.slow
def test_one_of_seventy_actions_is_found_with_masks_and_a_higher_learning_rate() -> None:
    """sb3-contrib's: 55 of 70 actions are masked, and without masks a chance of 1 in 70 remains.

    An LSTM learns a table of 70 rows slower than an MLP does: see docs/sb3-contrib.md.
    """

    def make() -> Any:
        return InvalidActionEnvDiscrete(dim=70, n_invalid_actions=55)

    means = [masked_mean(make, 10_000, seed, learning_rate=3e-3) for seed in range(3)]
    assert np.mean(means) >= 80, means

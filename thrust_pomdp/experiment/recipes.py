"""Arms of a comparison and the recipes they are trained with.

A recipe is data: the arguments of the algorithm in SB3's words, and how its environments are made.
Each arm has a recipe of its own for each environment it was tuned on, since one tuned for another
contestant would be an unfair baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """How one arm is trained.

    :param n_timesteps: environment steps, all environments together
    :param n_envs: environments side by side
    :param reward_scale: factor on the rewards the learner sees; results are reported unscaled
    :param learning_rate: its value at the start and at the end, linear in between
    :param hyperparameters: further arguments of the algorithm
    """

    n_timesteps: int
    n_envs: int
    learning_rate: tuple[float, float]
    reward_scale: float = 1.0
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)


def _shared_lstm(hidden_size: int) -> dict[str, Any]:
    """One LSTM for actor and critic, trained by both, straight to linear heads."""
    return {
        "lstm_hidden_size": hidden_size,
        "shared_lstm_critic_gradient": True,
        "net_arch": [],
    }


_LSTM_FLICKERING = Recipe(
    n_timesteps=200_000,
    n_envs=8,
    learning_rate=(3e-3, 0.0),
    reward_scale=0.02,
    hyperparameters={
        "n_steps": 128,
        "envs_per_minibatch": 4,
        "n_epochs": 8,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "ent_coef": 0.003,
        "clip_range_vf": 0.2,
        "policy_kwargs": _shared_lstm(128),
    },
)

_LSTM_MASKED = Recipe(
    n_timesteps=50_000,
    n_envs=8,
    learning_rate=(3e-3, 1.5e-4),
    reward_scale=0.02,
    hyperparameters={
        "n_steps": 256,
        "envs_per_minibatch": 2,
        "n_epochs": 12,
        "gamma": 0.99,
        "gae_lambda": 0.98,
        "ent_coef": 0.003,
        "policy_kwargs": _shared_lstm(64),
    },
)

_LSTM_BURST = Recipe(
    n_timesteps=300_000,
    n_envs=16,
    learning_rate=(1.5e-3, 0.0),
    reward_scale=0.02,
    hyperparameters={
        "n_steps": 256,
        "envs_per_minibatch": 8,
        "n_epochs": 8,
        "gamma": 0.98,
        "gae_lambda": 0.98,
        "ent_coef": 0.0,
        "policy_kwargs": _shared_lstm(64),
    },
)

_MLP = Recipe(
    n_timesteps=200_000,
    n_envs=8,
    learning_rate=(1e-3, 0.0),
    reward_scale=0.02,
    hyperparameters={
        "n_steps": 256,
        "batch_size": 256,
        "n_epochs": 10,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "ent_coef": 0.01,
    },
)

#: arm -> environment id -> recipe; ``"default"`` for environments without one of their own.
RECIPES: dict[str, dict[str, Recipe]] = {
    "lstm": {
        "default": _LSTM_FLICKERING,
        "MaskedCartPole-v0": _LSTM_MASKED,
        "BurstFlickeringCartPole-v0": _LSTM_BURST,
        "MaskedFlickeringCartPole-v0": _LSTM_BURST,
    },
    "mlp": {"default": _MLP},
}

#: What the arms are called in tables and plots.
ARM_LABELS = {"lstm": "LSTM (RecurrentPPO)", "mlp": "memoryless (SB3 PPO)"}


def recipe_for(arm: str, env_id: str) -> Recipe:
    """Return the recipe of an arm on an environment.

    :param arm: a key of :data:`RECIPES`
    :param env_id: an environment id, with or without its ``module:`` prefix
    :raises ValueError: for an unknown arm
    """
    if arm not in RECIPES:
        raise ValueError(f"arm must be one of {tuple(RECIPES)}, got {arm!r}")
    recipes = RECIPES[arm]
    return recipes.get(env_id.rsplit(":", 1)[-1], recipes["default"])

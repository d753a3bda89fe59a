"""Arms as a user would bring them: factories of SB3 algorithms."""

from __future__ import annotations

from typing import Any

from stable_baselines3 import A2C, DQN
from stable_baselines3.common.vec_env import VecEnv


def a2c(env: VecEnv, seed: int, **hyperparameters: Any) -> A2C:
    return A2C("MlpPolicy", env, seed=seed, device="cpu", **hyperparameters)


def dqn(env: VecEnv, seed: int) -> DQN:
    return DQN("MlpPolicy", env, seed=seed, device="cpu", learning_starts=100, buffer_size=1000)


def takes_some(env: VecEnv, seed: int, n_steps: int = 5, policy_kwargs: Any = None) -> A2C:
    return A2C(
        "MlpPolicy", env, n_steps=n_steps, policy_kwargs=policy_kwargs, seed=seed, device="cpu"
    )


def failing(env: VecEnv, seed: int) -> A2C:
    raise RuntimeError("this arm cannot be made")


def leaving(env: VecEnv, seed: int) -> A2C:
    raise SystemExit(7)


def nothing(env: VecEnv, seed: int) -> None:
    return None

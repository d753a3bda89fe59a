"""Arms as a user would bring them: factories of SB3 algorithms."""

from __future__ import annotations

from typing import Any

from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, DQN
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp import MaskableRecurrentPPO


def a2c(env: VecEnv, seed: int, **hyperparameters: Any) -> A2C:
    return A2C("MlpPolicy", env, seed=seed, device="cpu", **hyperparameters)


def dqn(env: VecEnv, seed: int) -> DQN:
    return DQN("MlpPolicy", env, seed=seed, device="cpu", learning_starts=100, buffer_size=1000)


def maskable(env: VecEnv, seed: int) -> MaskableRecurrentPPO:
    return MaskableRecurrentPPO(
        "MlpLstmPolicy", env, n_steps=8, batch_size=8, seed=seed, device="cpu",
        policy_kwargs={"lstm_hidden_size": 8},
    )  # fmt: skip


def maskable_without_memory(env: VecEnv, seed: int) -> MaskablePPO:
    return MaskablePPO("MlpPolicy", env, n_steps=8, batch_size=8, seed=seed, device="cpu")


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

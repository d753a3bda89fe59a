"""Who is measured by scripts/benchmark.py, on which environments, and what one window is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import sb3_contrib
import stable_baselines3 as sb3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

import thrust_pomdp
from thrust_pomdp.envs import FlickeringCartPoleEnv
from thrust_pomdp.envs.cartpole_vector import FlickeringCartPoleVectorEnv
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv


class FixedLength(gym.Wrapper):
    """Terminates every episode after ``length`` steps; the first one starts ``ahead``."""

    def __init__(self, env: gym.Env, length: int, ahead: int) -> None:
        super().__init__(env)
        self.length, self.steps, self.ahead = length, 0, ahead

    def reset(self, **kwargs: Any) -> Any:
        self.steps, self.ahead = self.ahead, 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = self.env.step(action)
        self.steps += 1
        return obs, reward, self.steps >= self.length, False, info


def fixed_length_vector(n_envs: int, length: int) -> FlickeringCartPoleVectorEnv:
    """The native twin, whose carts roll to the end of the track in ``length`` steps.

    They are pushed by nobody and start with the speed that takes them there; the first episode of
    each starts further on. The same equations are computed, by the class that ``make_vec_env``
    makes, so that nothing about it is slower or faster.
    """
    env = FlickeringCartPoleVectorEnv(n_envs, max_episode_steps=10**9, autoreset_mode="SameStep")
    physics = env.physics
    physics._forces_of_actions[:] = physics._gravity[:] = 0.0
    # Half a step before the end, so that rounding decides nothing.
    speed = physics._limits[0, 0] / (physics._tau[0, 0] * (length - 0.5))
    n_ahead = list(np.arange(n_envs) * length // n_envs)

    def starts(rng: Any, count: int) -> Any:
        states = np.zeros((count, 4))
        states[:, 1] = speed
        if n_ahead and count > 1:  # the blocks of all environments are drawn one after the other
            states[0, 0] = n_ahead.pop(0) * speed * physics._tau[0, 0]
        return states

    env.starts._draw = starts
    return env


class PositionOnly(gym.ObservationWrapper):
    """Pendulum without its velocity, an environment that is not ours."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        low, high = env.observation_space.low[:2], env.observation_space.high[:2]
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[:2]


def cartpole() -> gym.Env:
    env = FlickeringCartPoleEnv()
    env.x_threshold = env.theta_threshold_radians = math.inf
    return env


def pendulum() -> gym.Env:
    return PositionOnly(gym.make("Pendulum-v1").unwrapped)


def sb3_env(make: Callable[[], gym.Env], n_envs: int, length: int) -> VecEnv:
    """The vector environment that SB3's users have."""
    fns = [
        lambda rank=rank: Monitor(FixedLength(make(), length, ahead=rank * length // n_envs))
        for rank in range(n_envs)
    ]
    venv = DummyVecEnv(fns)
    venv.seed(0)
    return venv


def our_env(n_envs: int, length: int) -> VecEnv:
    """What ``thrust_pomdp.make_vec_env`` returns for our ids."""
    venv = GymnasiumVecEnv(fixed_length_vector(n_envs, length))
    venv.seed(0)
    return venv


# ------------------------------------------------------------------------------------ settings


@dataclass(frozen=True)
class Setting:
    """One row of the table: everybody does the same amount of work.

    :param label: what it is called in the picture
    :param n_lstms: 1 for a shared LSTM (trained by both losses in ours, by the actor in theirs), 2
    :param sequences: whole windows in a minibatch
    :param ours_everywhere: all contenders on our vector environment
    """

    name: str
    title: str
    label: str
    goal: str
    n_envs: int = 16
    n_steps: int = 128
    hidden: int = 64
    n_lstms: int = 1
    n_epochs: int = 4
    sequences: int = 4
    ours_everywhere: bool = False
    foreign: bool = False
    memoryless: bool = False
    heads: tuple[int, ...] = ()


SETTINGS = (
    Setting("shared", "16 x 128, H=64 shared, each on its own vector env",
            "16 envs, one LSTM,\neach library on\nits own vector env", ">= 25", memoryless=True),
    Setting("shared-our-env", "the same, both on ours",
            "the same,\nboth on ours", ">= 20", ours_everywhere=True),
    Setting("separate", "separate actor and critic LSTMs",
            "actor and critic\nwith an LSTM each", ">= 25", n_lstms=2),
    Setting("defaults", "sb3-contrib's defaults: 8 x 128, H=256, two LSTMs",
            "sb3-contrib's\ndefaults: 8 envs,\ntwo LSTMs of 256", ">= 7", n_envs=8,
            hidden=256, n_lstms=2, n_epochs=10, sequences=1, heads=(64, 64)),
    Setting("64-envs", "64 x 128, H=64 shared, 16 sequences",
            "64 envs,\none LSTM", ">= 20", n_envs=64, sequences=16),
    Setting("foreign", "masked Pendulum (not ours), SB3's vector env",
            "masked Pendulum\non SB3's\nvector env", ">= 5", foreign=True),
)  # fmt: skip


def lstm_kwargs(setting: Setting, library: Any) -> dict[str, Any]:
    kwargs: dict[str, Any] = {
        "lstm_hidden_size": setting.hidden,
        "net_arch": {"pi": list(setting.heads), "vf": list(setting.heads)},
    }
    if setting.n_lstms == 1 and library is thrust_pomdp:
        kwargs["shared_lstm_critic_gradient"] = True
    elif setting.n_lstms == 1:
        kwargs.update(shared_lstm=True, enable_critic_lstm=False)
    return kwargs


def make_model(who: str, setting: Setting, length: int) -> OnPolicyAlgorithm:
    """Make a contender, ready to collect and train."""
    if setting.foreign:
        env = sb3_env(pendulum, setting.n_envs, length)
    elif who == "ours" or setting.ours_everywhere:
        env = our_env(setting.n_envs, length)
    else:
        env = sb3_env(cartpole, setting.n_envs, length)
    common = {
        "env": env,
        "n_steps": setting.n_steps,
        "batch_size": setting.sequences * setting.n_steps,
        "n_epochs": setting.n_epochs,
        "learning_rate": 0.0,
        "seed": 0,
        "device": "cpu",
    }
    if who == "memoryless":
        model: OnPolicyAlgorithm = sb3.PPO("MlpPolicy", **common)
    else:
        library = thrust_pomdp if who == "ours" else sb3_contrib
        model = library.RecurrentPPO(
            "MlpLstmPolicy", policy_kwargs=lstm_kwargs(setting, library), **common
        )
    model.set_logger(configure(None, []))
    _, callback = model._setup_learn(10**9)
    callback.on_training_start({}, {})
    model.benchmark_callback = callback  # type: ignore[attr-defined]
    return model


class Window(NamedTuple):
    """Seconds that one window took."""

    collect: float
    train: float

    @property
    def total(self) -> float:
        return self.collect + self.train


def one_window(model: OnPolicyAlgorithm, threads: int) -> Window:
    th.set_num_threads(threads)
    start = time.perf_counter()
    model.collect_rollouts(model.env, model.benchmark_callback, model.rollout_buffer, model.n_steps)
    collected = time.perf_counter()
    model.train()
    return Window(collected - start, time.perf_counter() - collected)

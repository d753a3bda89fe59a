"""One run of a comparison: train an arm with a seed, then evaluate it on fresh episodes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import LinearSchedule, safe_mean
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from thrust_pomdp import registration
from thrust_pomdp.experiment.recipes import Recipe, recipe_for
from thrust_pomdp.ppo import RecurrentPPO
from thrust_pomdp.vec_env import make_vec_env
from thrust_pomdp.vec_normalize import VecNormalizeVisible

#: Episodes whose mean is a point of the learning curve (SB3's ``stats_window_size``).
CURVE_EPISODES = 100

#: Environments stepped side by side in an evaluation.
_EVALUATION_ENVS = 100

#: arm -> (algorithm, policy)
_ALGORITHMS: dict[str, tuple[type[OnPolicyAlgorithm], str]] = {
    "lstm": (RecurrentPPO, "MlpLstmPolicy"),
    "mlp": (PPO, "MlpPolicy"),
}


@dataclass(frozen=True)
class RunSpec:
    """What one run does; equal specs give equal results on one machine.

    :param arm: a contestant's name
    :param env_id: environment id
    :param env_kwargs: its arguments
    :param seed: number of the run. All arms with the same number see the same streams, and runs of
        different numbers, and training and evaluation, see different ones.
    :param n_timesteps: training budget in environment steps; the recipe's when None
    :param deterministic_episodes: evaluation episodes acting by the most likely action
    :param stochastic_episodes: evaluation episodes acting by sampling
    """

    arm: str
    env_id: str
    seed: int
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    n_timesteps: int | None = None
    deterministic_episodes: int = 100
    stochastic_episodes: int = 1000

    @property
    def name(self) -> str:
        """Name of the run, used for its folder."""
        return f"{self.arm}-seed{self.seed}"

    @property
    def training_seed(self) -> int:
        """First of the consecutive seeds of the training environments."""
        return 10_000 * (self.seed + 1)

    @property
    def evaluation_seed(self) -> int:
        """First of the consecutive seeds of the evaluation environments."""
        return self.training_seed + 5_000

    @property
    def recipe(self) -> Recipe:
        """The arm's recipe for the environment."""
        return recipe_for(self.arm, self.env_id)

    @property
    def total_timesteps(self) -> int:
        """Training budget in environment steps."""
        return self.n_timesteps or self.recipe.n_timesteps


@dataclass
class RunResult:
    """What one run gave.

    :param spec: the run, as a dict
    :param final: mean return of the last 100 training episodes
    :param best: best such mean met on the way
    :param deterministic: returns of the evaluation episodes, most likely actions
    :param stochastic: returns of the evaluation episodes, sampled actions
    :param timesteps: environment steps trained
    :param seconds: wall time of the training
    :param curve: (environment steps, mean return of the last 100 training episodes)
    """

    spec: dict[str, Any]
    final: float
    best: float
    deterministic: list[float]
    stochastic: list[float]
    timesteps: int
    seconds: float
    curve: list[tuple[int, float]]


class VecScaleReward(VecEnvWrapper):
    """Multiply the rewards the learner sees; episode statistics further in stay unscaled."""

    def __init__(self, venv: VecEnv, scale: float) -> None:
        super().__init__(venv)
        self.scale = scale

    def reset(self) -> VecEnvObs:
        """Reset the environments."""
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        """Step the environments and scale the rewards."""
        obs, rewards, dones, infos = self.venv.step_wait()
        return obs, rewards * np.float32(self.scale), dones, infos


class _CurveCallback(BaseCallback):
    """Records the learning curve at the end of each rollout and reports progress."""

    def __init__(self, report: Callable[[int], None]) -> None:
        super().__init__()
        self.report = report
        self.curve: list[tuple[int, float]] = []
        self.best = -math.inf

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        episodes = self.model.ep_info_buffer
        if episodes:
            mean = float(safe_mean([episode["r"] for episode in episodes]))
            self.curve.append((self.num_timesteps, mean))
            # The mean of fewer episodes would be a luckier number.
            if len(episodes) == CURVE_EPISODES:
                self.best = max(self.best, mean)
        self.report(self.num_timesteps)


def make_training_env(spec: RunSpec) -> VecScaleReward:
    """Make the environments of a run: flicker, normaliser of what is visible, scaled rewards."""
    registration.register_envs()
    venv = make_vec_env(
        spec.env_id, spec.recipe.n_envs, seed=spec.training_seed, env_kwargs=spec.env_kwargs
    )
    # The normaliser sits directly around the environments, where it finds their flags at once.
    normalized = VecNormalizeVisible(venv, norm_reward=False)
    return VecScaleReward(normalized, spec.recipe.reward_scale)


def make_model(spec: RunSpec, env: VecEnv) -> OnPolicyAlgorithm:
    """Make the untrained model of a run."""
    algorithm, policy = _ALGORITHMS[spec.arm]
    start, end = spec.recipe.learning_rate
    arguments: dict[str, Any] = {
        **spec.recipe.hyperparameters,
        "learning_rate": LinearSchedule(start, end, 1.0),
        "seed": spec.training_seed,
        "device": "cpu",
        "stats_window_size": CURVE_EPISODES,
    }
    return algorithm(policy, env, **arguments)


def evaluate(
    spec: RunSpec, model: OnPolicyAlgorithm, n_episodes: int, deterministic: bool
) -> list[float]:
    """Play fresh episodes with frozen statistics and memory carried through each episode.

    :return: the episodes' returns, unscaled
    """
    venv = make_vec_env(
        spec.env_id,
        min(n_episodes, _EVALUATION_ENVS),
        seed=spec.evaluation_seed,
        env_kwargs=spec.env_kwargs,
    )
    env = VecNormalizeVisible(venv, training=False, norm_reward=False)
    trained = model.get_vec_normalize_env()
    assert trained is not None
    env.obs_rms = deepcopy(trained.obs_rms)
    returns, _ = evaluate_policy(
        model, env, n_episodes, deterministic=deterministic, return_episode_rewards=True
    )
    env.close()
    assert isinstance(returns, list)
    return [float(value) for value in returns]


def save_model(model: OnPolicyAlgorithm, stem: Path) -> None:
    """Save what acting needs: the model, and the statistics its observations are normalised by."""
    normalizer = model.get_vec_normalize_env()
    assert normalizer is not None
    model.save(stem.with_name(f"{stem.name}.zip"))
    normalizer.save(str(stem.with_name(f"{stem.name}.normalizer.pkl")))


def run(
    spec: RunSpec,
    report: Callable[[int], None] = lambda timesteps: None,
    save_to: Path | None = None,
) -> RunResult:
    """Train and evaluate, on one thread.

    :param spec: what to do
    :param report: called with the environment steps trained so far
    :param save_to: where to save the trained model, without an ending (:func:`save_model`)
    """
    th.set_num_threads(1)
    env = make_training_env(spec)
    model = make_model(spec, env)
    callback = _CurveCallback(report)
    start = time.perf_counter()
    model.learn(spec.total_timesteps, callback=callback)
    seconds = time.perf_counter() - start
    if save_to is not None:
        save_model(model, save_to)
    env.close()
    final = callback.curve[-1][1] if callback.curve else math.nan
    return RunResult(
        spec=asdict(spec),
        final=final,
        best=callback.best if math.isfinite(callback.best) else final,
        deterministic=evaluate(spec, model, spec.deterministic_episodes, deterministic=True),
        stochastic=evaluate(spec, model, spec.stochastic_episodes, deterministic=False),
        timesteps=model.num_timesteps,
        seconds=seconds,
        curve=callback.curve,
    )

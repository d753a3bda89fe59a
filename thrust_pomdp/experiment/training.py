"""One run of a comparison: train an arm with a seed, then evaluate it on fresh episodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from thrust_pomdp.analysis.contamination import half_life
from thrust_pomdp.checkpoint.training_checkpoint import TrainingCheckpoint
from thrust_pomdp.experiment import provenance
from thrust_pomdp.experiment.arms import Arm, find_arm, load_factory
from thrust_pomdp.experiment.callbacks import (
    CurveCallback,
    EvaluationCallback,
    without_side_effects,
)
from thrust_pomdp.experiment.recipe_values import SCHEDULED, Linear, parse_schedule, resolve_classes
from thrust_pomdp.experiment.recipes import Recipe, why_general
from thrust_pomdp.experiment.runs import CURVE_EPISODES, PERIODIC_EPISODES, RunResult, RunSpec
from thrust_pomdp.experiment.saved_models import files_of, files_of_normalizer
from thrust_pomdp.experiment.stopwatch import Stopwatch
from thrust_pomdp.experiment.together import OtherRanks, in_blocks
from thrust_pomdp.experiment.vec_envs import (
    VecScaleReward,
    copy_statistics,
    make_evaluation_env,
    make_training_env,
)
from thrust_pomdp.ppo.averaging import AverageWeights
from thrust_pomdp.ppo.maskable.evaluation import acts_by_masks, evaluate_policy
from thrust_pomdp.ppo.recurrent_ppo import RecurrentPPO
from thrust_pomdp.vec_env.states import missing, vec_state

__all__ = [
    "CURVE_EPISODES",
    "RunResult",
    "RunSpec",
    "Training",
    "VecScaleReward",
    "evaluate",
    "make_model",
    "make_training_env",
    "run",
    "save_model",
]

#: Environments stepped side by side in an evaluation.
_EVALUATION_ENVS = 100

#: Environments in which the half-life of a wrong frame is measured.
_HALF_LIFE_ENVS = 50

#: Checkpoints of a run, from one of which it goes on where it was killed.
_CHECKPOINTS = 20

#: (environment steps, seconds of training, mean with most likely actions, mean with sampled ones)
Evaluation = tuple[int, float, float, float]


def make_model(spec: RunSpec, env: VecEnv, tensorboard_log: str | None = None) -> BaseAlgorithm:
    """Make the untrained model of a run.

    :param spec: the run
    :param env: what :func:`make_training_env` returned
    :param tensorboard_log: folder of the TensorBoard log
    :raises ValueError: for hyperparameters that cannot be
    """
    arm, recipe = find_arm(spec.arm), spec.recipe
    factory = load_factory(arm)
    arguments = algorithm_arguments(recipe)
    if arm.is_users:
        model = factory(env=env, seed=spec.training_seed, **arguments)
        if not isinstance(model, BaseAlgorithm):
            raise ValueError(f"{arm.name} must return an SB3 algorithm, got {model!r}")
        model.tensorboard_log = model.tensorboard_log or tensorboard_log
        return model
    policy = recipe.policy or _policy_name(arm, env.observation_space)
    factory, of_blocks = in_blocks(spec, factory)
    try:
        made: BaseAlgorithm = factory(
            policy,
            env,
            **arguments,
            **of_blocks,
            seed=spec.training_seed,
            device="cpu",
            stats_window_size=CURVE_EPISODES,
            tensorboard_log=tensorboard_log,
        )
    except ValueError:
        raise  # these name what is wrong
    except Exception as error:  # whatever modules and optimisers make of their arguments
        network = recipe.hyperparameters.get("policy_kwargs")
        raise ValueError(
            f"arm {arm.name} cannot be made with policy_kwargs {network!r}: {error}"
        ) from error
    return made


def algorithm_arguments(recipe: Recipe) -> dict[str, Any]:
    """Turn a recipe's data into what an algorithm takes: schedules and classes."""
    arguments = dict(recipe.hyperparameters)
    for key in SCHEDULED:
        schedule = parse_schedule(key, arguments.get(key))
        if isinstance(schedule, Linear):
            arguments[key] = LinearSchedule(schedule.start, schedule.end, 1.0)
    if arguments.get("policy_kwargs"):
        arguments["policy_kwargs"] = resolve_classes(arguments["policy_kwargs"])
    return arguments


def _policy_name(arm: Arm, space: spaces.Space[Any]) -> str:
    """Choose SB3's policy that fits the observations."""
    if arm.privileged:
        return "AsymmetricLstmPolicy"
    if isinstance(space, spaces.Dict):
        kind = "MultiInput"
    else:
        kind = "Cnn" if is_image_space(space) else "Mlp"
    return f"{kind}LstmPolicy" if arm.recurrent else f"{kind}Policy"


def evaluate(
    spec: RunSpec, model: BaseAlgorithm, n_episodes: int, deterministic: bool
) -> list[float]:
    """Play fresh episodes with frozen statistics and memory carried through each episode.

    :return: the episodes' returns, unscaled
    """
    return play_fresh(spec, model, model.get_vec_normalize_env(), n_episodes, deterministic)


def play_fresh(
    spec: RunSpec,
    model: BaseAlgorithm,
    normalizer: VecNormalize | None,
    n_episodes: int,
    deterministic: bool,
) -> list[float]:
    """Return the returns of fresh episodes, seen through a trained normaliser."""
    n_envs = min(n_episodes, _EVALUATION_ENVS)
    env = make_evaluation_env(spec, n_envs, spec.evaluation_seed, normalizer)
    returns = play(model, env, n_episodes, deterministic)
    env.close()
    return returns


def play(model: BaseAlgorithm, env: VecEnv, n_episodes: int, deterministic: bool) -> list[float]:
    """Return the returns of fresh episodes, acting by masks where training did.

    :raises ValueError: if one is infinite or no number: nothing could be said of such an arm
    """
    returns, _ = evaluate_policy(
        model,
        env,
        n_episodes,
        deterministic=deterministic,
        return_episode_rewards=True,
        use_masking=acts_by_masks(model, env),
    )
    assert isinstance(returns, list)
    if not np.isfinite(returns).all():
        raise ValueError(f"returns of evaluation episodes must be finite, got {returns!r}")
    return [float(value) for value in returns]


class _PeriodicEvaluation:
    """Plays the same few episodes at each call, with most likely and with sampled actions."""

    def __init__(self, spec: RunSpec, model: BaseAlgorithm) -> None:
        self.spec = spec
        self.model = model
        self.trained = model.get_vec_normalize_env()
        self.env = make_evaluation_env(
            spec, PERIODIC_EPISODES, spec.periodic_evaluation_seed, self.trained
        )
        self.frozen = unwrap_vec_normalize(self.env)

    def __call__(self) -> tuple[float, float]:
        if self.trained is not None and self.frozen is not None:
            copy_statistics(self.trained, self.frozen)
        return self._mean(deterministic=True), self._mean(deterministic=False)

    def _mean(self, deterministic: bool) -> float:
        self.env.seed(self.spec.periodic_evaluation_seed)
        return float(np.mean(play(self.model, self.env, PERIODIC_EPISODES, deterministic)))


class Training:
    """One run in progress: its environments, its model, and what it gives.

    :param spec: what to do
    :param report: called with the environment steps trained so far
    :param evaluated: called with each evaluation during training; what it raises ends the run
    :param tensorboard_log: folder of the TensorBoard log
    :param checkpoints: folder from which a run that was killed goes on, where that is exact
    """

    def __init__(
        self,
        spec: RunSpec,
        report: Callable[[int], None] = lambda timesteps: None,
        evaluated: Callable[[Evaluation], None] = lambda evaluation: None,
        tensorboard_log: str | None = None,
        checkpoints: str | None = None,
    ) -> None:
        th.set_num_threads(1)
        self.spec = spec
        self.report = report
        self.evaluated = evaluated
        self.checkpoints = checkpoints
        self._others = OtherRanks(spec, checkpoints)
        try:
            self.env = make_training_env(spec)
            self.model = make_model(spec, self.env, tensorboard_log)
        except BaseException:
            self._others.close()
            raise

    def run(self) -> RunResult:
        """Train and evaluate."""
        spec, model = self.spec, self.model
        stopwatch = Stopwatch()
        curve = CurveCallback(self.report, stopwatch)
        periodic = self._periodic(stopwatch)
        callbacks: list[BaseCallback] = [curve] if periodic is None else [curve, periodic]
        if spec.recipe.average_last is not None:  # the last evaluation sees the mean
            callbacks.insert(0, AverageWeights(spec.recipe.average_last))
        callbacks += self._checkpoint()
        try:
            with stopwatch.running():
                model.learn(spec.total_timesteps, callback=callbacks, tb_log_name=spec.name)
                seconds = stopwatch.seconds
        finally:
            self._others.close()
        self.env.close()
        final = curve.curve[-1][1] if curve.curve else math.nan
        return RunResult(
            spec=asdict(spec),
            final=final,
            best=curve.best if math.isfinite(curve.best) else final,
            deterministic=evaluate(spec, model, spec.deterministic_episodes, deterministic=True),
            stochastic=evaluate(spec, model, spec.stochastic_episodes, deterministic=False),
            timesteps=model.num_timesteps,
            seconds=seconds,
            curve=curve.curve,
            evaluations=[] if periodic is None else periodic.evaluations,
            recipe=spec.recipe.as_mapping(),
            provenance=self._provenance(),
            half_life=self._half_life(),
        )

    def train_along(self) -> None:
        """Train as one of several processes that is not the one that evaluates."""
        spec = self.spec
        self.model.learn(spec.total_timesteps, callback=self._checkpoint(), tb_log_name=spec.name)
        self.env.close()

    def _half_life(self) -> float | None:
        """Return how long one wrong frame disturbs the memory of an arm that has one."""
        spec, model = self.spec, self.model
        if not find_arm(spec.arm).recurrent:
            return None
        normalizer = model.get_vec_normalize_env()
        env = make_evaluation_env(spec, _HALF_LIFE_ENVS, spec.evaluation_seed, normalizer)
        try:
            return None if acts_by_masks(model, env) else half_life(model, env)
        finally:
            env.close()

    def _checkpoint(self) -> list[BaseCallback]:
        """Return what lets the run go on where it was killed, where nothing would be lost by it.

        A run that went on from elsewhere would be none of its seed.
        """
        model: Any = self.model
        if self.checkpoints is None or not isinstance(model, RecurrentPPO):
            return []
        if missing(vec_state(self.env)):
            return []
        every = max(1, self.spec.total_timesteps // _CHECKPOINTS)
        return [TrainingCheckpoint(self.checkpoints, every=every)]

    def _periodic(self, stopwatch: Stopwatch) -> EvaluationCallback | None:
        spec = self.spec
        if spec.evaluations == 0:
            return None
        with without_side_effects(self.model):
            evaluation = _PeriodicEvaluation(spec, self.model)
        return EvaluationCallback(
            spec.total_timesteps, spec.evaluations, stopwatch, evaluation, self.evaluated
        )

    def _provenance(self) -> dict[str, Any]:
        kind, reason = type(self.model), why_general(self.spec.env_id)
        return {
            **({} if reason is None else {"recipes": f"none tuned for this task: {reason}"}),
            "algorithm": f"{kind.__module__}:{kind.__qualname__}",
            "parameters": sum(part.numel() for part in self.model.policy.parameters()),
            "versions": provenance.versions(),
            "machine": provenance.machine(),
        }

    def files(self) -> dict[str, bytes]:
        """Return what :func:`save_model` writes, by the ending of the file's name."""
        normalizer = self.model.get_vec_normalize_env()
        return {**files_of(self.model), **files_of_normalizer(normalizer)}


def save_model(model: BaseAlgorithm, stem: Path) -> None:
    """Save what acting needs.

    ``NAME.safetensors`` is the model, for its algorithm's ``load_safe``;
    ``NAME.normalizer.safetensors``, where the observations are normalised, is for
    ``VecNormalizeVisible.load_safe``. A model of the user's own is a ``NAME.zip``.

    :param model: the model
    :param stem: the files' name without an ending
    """
    files = {**files_of(model), **files_of_normalizer(model.get_vec_normalize_env())}
    for ending, content in files.items():
        stem.with_name(f"{stem.name}{ending}").write_bytes(content)


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
    training = Training(spec, report)
    result = training.run()
    if save_to is not None:
        save_model(training.model, save_to)
    return result

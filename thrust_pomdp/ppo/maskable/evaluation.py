"""Evaluating policies that need action masks, with their memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, overload

import gymnasium as gym
import numpy as np
from stable_baselines3.common import evaluation
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.type_aliases import PolicyPredictor
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.arguments import check_count, check_number, check_switch
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.ppo.maskable.masks import (
    Masks,
    get_action_masks,
    is_masking_supported,
    missing_action_masks,
)

#: (local names, global names) of the loop that evaluates
EvaluationCallback = Callable[[dict[str, Any], dict[str, Any]], None]


def acts_by_masks(model: Any, env: gym.Env[Any, Any] | VecEnv) -> bool:
    """Tell whether a model takes action masks, and an environment tells some.

    :param model: anything with SB3's ``predict``, of whatever library
    :param env: where it is to act
    """
    takes = "action_masks" in inspect.signature(model.predict).parameters
    return takes and getattr(model, "use_masking", True) and is_masking_supported(env)


class _WithMasks:
    """A model that gets its masks from the environment by itself."""

    def __init__(self, model: Any, env: gym.Env[Any, Any] | VecEnv) -> None:
        if not is_masking_supported(env):
            raise missing_action_masks(env)
        self._model, self._env = model, env
        self._masks: Masks | None = None

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        self._masks = np.atleast_2d(get_action_masks(self._env))
        return self._model.predict(*args, **kwargs, action_masks=self._masks)

    def shown(self, callback: EvaluationCallback) -> EvaluationCallback:
        """Show a callback the names that it finds in ``sb3_contrib``'s loop."""

        def call(local_names: dict[str, Any], global_names: dict[str, Any]) -> None:
            ours = {"model": self._model, "action_masks": self._masks, "use_masking": True}
            callback({**local_names, **ours}, global_names)

        return call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@overload
def evaluate_policy(
    model: PolicyPredictor,
    env: gym.Env[Any, Any] | VecEnv,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: EvaluationCallback | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: Literal[False] = False,
    warn: bool = True,
    use_masking: bool = True,
) -> tuple[float, float]: ...


@overload
def evaluate_policy(
    model: PolicyPredictor,
    env: gym.Env[Any, Any] | VecEnv,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: EvaluationCallback | None = None,
    reward_threshold: float | None = None,
    *,
    return_episode_rewards: Literal[True],
    warn: bool = True,
    use_masking: bool = True,
) -> tuple[list[float], list[int]]: ...


@overload
def evaluate_policy(
    model: PolicyPredictor,
    env: gym.Env[Any, Any] | VecEnv,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: EvaluationCallback | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
    warn: bool = True,
    use_masking: bool = True,
) -> tuple[float, float] | tuple[list[float], list[int]]: ...


def evaluate_policy(
    model: Any,
    env: gym.Env[Any, Any] | VecEnv,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    render: bool = False,
    callback: EvaluationCallback | None = None,
    reward_threshold: float | None = None,
    return_episode_rewards: bool = False,
    warn: bool = True,
    use_masking: bool = True,
) -> tuple[float, float] | tuple[list[float], list[int]]:
    """Evaluate a model as SB3's ``evaluate_policy`` does, with the environment's action masks.

    The arguments, and their order, are those of ``sb3_contrib``'s function.

    .. warning::
        ``sb3_contrib.common.maskable.evaluation.evaluate_policy`` does not hand the state on from
        step to step where it uses masks: with it a recurrent model acts without memory.

    :param model: a :class:`~thrust_pomdp.ppo.maskable.ppo.MaskableRecurrentPPO`, or its policy
    :param env: with a method ``action_masks``
    :param n_eval_episodes: episodes to play
    :param deterministic: take the most likely actions instead of sampling
    :param render: show the environment
    :param callback: called after each step with the local and global names of the loop, among them
        ``action_masks``, ``[n_envs, width]``
    :param reward_threshold: least mean return; less is an ``AssertionError``
    :param return_episode_rewards: return lists of returns and lengths, not mean and deviation
    :param warn: warn where ``env`` has no ``Monitor``
    :param use_masking: ask for masks; SB3's own function otherwise
    :return: mean and standard deviation of the returns, or lists of returns and lengths
    :raises ValueError: if the environment has no method ``action_masks``, or an argument cannot be
    """
    if not hasattr(model, "predict"):
        raise ArgumentError(f"model must be a model or policy with predict, got {model!r}")
    n_eval_episodes = check_count("n_eval_episodes", n_eval_episodes)
    flags = {
        "deterministic": deterministic,
        "render": render,
        "return_episode_rewards": return_episode_rewards,
        "warn": warn,
        "use_masking": use_masking,
    }
    for name, value in flags.items():
        check_switch(name, value)
    if reward_threshold is not None:
        check_number("reward_threshold", reward_threshold)
    if callback is not None and not callable(callback):
        raise ArgumentError(f"callback must be a function of two dicts, got {callback!r}")
    actor = _WithMasks(model, env) if use_masking else model
    if use_masking and callback is not None:
        callback = actor.shown(callback)
    return evaluation.evaluate_policy(
        actor,
        env,
        n_eval_episodes,
        deterministic,
        render,
        callback,
        reward_threshold,
        return_episode_rewards,
        warn,
    )


class MaskableEvalCallback(EvalCallback):
    """SB3's ``EvalCallback`` with action masks.

    :param eval_env: with a method ``action_masks``
    :param args: SB3's other arguments
    :param use_masking: ask for masks
    :param kwargs: SB3's other arguments
    :raises ValueError: when training begins, if ``eval_env`` has no method ``action_masks``
    """

    def __init__(self, eval_env: Any, *args: Any, use_masking: bool = True, **kwargs: Any) -> None:
        super().__init__(eval_env, *args, **kwargs)
        self.use_masking = use_masking

    def _init_callback(self) -> None:
        super()._init_callback()
        self._masked: Any = _WithMasks(self.model, self.eval_env) if self.use_masking else None

    def _on_step(self) -> bool:
        model = self.model
        self.model = self._masked or model
        try:
            return super()._on_step()
        finally:
            self.model = model

"""What is refused before it does harm, with messages a user can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EventCallback
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from thrust_pomdp.policies import (
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)

#: What SB3 can turn into features, alone or as values of a Dict.
_OBSERVATION_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def check_observation_space(space: spaces.Space[Any]) -> None:
    """Refuse an observation space that SB3 does not know, before it fails inside of it.

    :raises ValueError: naming the space
    """
    subspaces = list(space.values()) if isinstance(space, spaces.Dict) else [space]
    for subspace in subspaces:
        if not isinstance(subspace, (*_OBSERVATION_SPACES, spaces.Dict)):
            raise ValueError(
                "observation_space must be a Box, Discrete, MultiDiscrete or MultiBinary space, or "
                f"a Dict of these, got {space}"
            )


def check_policy_class(
    policy_class: Any, observation_space: spaces.Space[Any] | None, own_extractor: bool
) -> None:
    """Refuse a policy class that is not one of ours, or of the wrong family for the observations.

    :param policy_class: the class
    :param observation_space: of the environment, None where it is not known yet
    :param own_extractor: whether the user chose the features extractor
    :raises ValueError: naming the class and the remedy
    """
    if isinstance(policy_class, type) and issubclass(policy_class, RecurrentActorCriticPolicy):
        takes_dicts = issubclass(policy_class, RecurrentMultiInputActorCriticPolicy)
        is_dict = isinstance(observation_space, spaces.Dict)
        if takes_dicts == is_dict or own_extractor or observation_space is None:
            return
        right = "MultiInputLstmPolicy" if is_dict else "MlpLstmPolicy or CnnLstmPolicy"
        raise ValueError(
            f"policy must be {right} for the observation space {observation_space}, "
            f"got {policy_class.__name__}"
        )
    name = getattr(policy_class, "__name__", repr(policy_class))
    if getattr(policy_class, "__module__", "").startswith("sb3_contrib"):
        raise ValueError(
            f"policy is sb3_contrib's {name}, whose code cannot be run here: use the policy of the "
            "same name from thrust_pomdp, and thrust_pomdp.from_sb3_contrib(path) to load a file "
            "that was saved over there"
        )
    raise ValueError(
        f"policy must be a recurrent policy, such as thrust_pomdp.MlpLstmPolicy, got {name}, "
        "which has no memory"
    )


def check_evaluation_envs(callback: BaseCallback, env: VecEnv) -> None:
    """Refuse an ``EvalCallback`` on the training environment.

    Evaluating resets it in mid-window: training would go on from observations that are no longer
    the environment's, and nothing would fail.

    :raises ValueError: naming the remedy
    """
    for member in _flatten(callback):
        if isinstance(member, EventCallback) and _base_envs(
            getattr(member, "eval_env", None)
        ) & _base_envs(env):
            raise ValueError(
                "eval_env is the training environment, which an evaluation would reset in the "
                "middle of a rollout: make another one for the EvalCallback"
            )


def _flatten(callback: BaseCallback | None) -> list[BaseCallback]:
    """List a callback and all callbacks inside it."""
    if callback is None:
        return []
    members = callback.callbacks if isinstance(callback, CallbackList) else []
    child = callback.callback if isinstance(callback, EventCallback) else None
    return [callback, *(inner for part in (*members, child) for inner in _flatten(part))]


def _base_envs(env: VecEnv | None) -> set[int]:
    """Identify what is stepped in the end: the innermost VecEnv and its Gymnasium envs."""
    if env is None:
        return set()
    base = env.unwrapped
    return {id(base), *(id(single.unwrapped) for single in getattr(base, "envs", ()))}


@contextmanager
def naming_non_finite_obs(obs: Any, step: int) -> Iterator[None]:
    """Where acting fails on an observation that is not finite, say so.

    :param obs: the observations acted on
    :param step: step of the rollout
    :raises ValueError: naming the environment and the step
    """
    try:
        yield
    except (ValueError, RuntimeError):
        _check_finite_obs(obs, step)
        raise


def check_finite_window(
    buffer: RecurrentRolloutBuffer | RecurrentDictRolloutBuffer, next_obs: Any
) -> None:
    """Keep what is not finite from reaching the weights.

    :param buffer: a collected window
    :param next_obs: the observations after its last step
    :raises ValueError: naming what is not finite, the environment and the step of the rollout
    """
    for key, observations in _items(buffer.observations):
        _check_finite(observations, f"observation{key}")
    _check_finite_obs(next_obs, buffer.buffer_size)
    _check_finite(buffer.rewards, "reward (or value estimate of a truncated episode)")
    _check_finite(buffer.values, "value estimate")


def _check_finite_obs(obs: Any, step: int) -> None:
    for key, part in _items(obs):
        _check_finite(np.asarray(part)[None], f"observation{key}", step)


def _items(obs: Any) -> list[tuple[str, Any]]:
    """Split observations into pairs of a name for messages and an array."""
    if isinstance(obs, dict):
        return [(f" {key!r}", value) for key, value in obs.items()]
    return [("", obs)]


def _check_finite(array: NDArray[Any], name: str, first_step: int = 0) -> None:
    """Raise if an array ``[n_steps, n_envs, ...]`` of floats holds what is not finite."""
    if not np.issubdtype(array.dtype, np.floating) or np.isfinite(array).all():
        return
    step, env = (int(idx) for idx in np.argwhere(~np.isfinite(array))[0][:2])
    raise ValueError(
        f"non-finite {name} of environment {env} at step {first_step + step} of the rollout: "
        f"{array[step, env]}"
    )

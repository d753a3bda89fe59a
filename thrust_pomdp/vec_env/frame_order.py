"""What lies between the flags of a vectorised environment and what it shows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.previous import layers
from thrust_pomdp.wrappers.frame_order import DECLARED, FramePath, layers_inwards, path_of
from thrust_pomdp.wrappers.vector.blanking import blanking_layers_of_vector


def paths_of(venv: VecEnv, keys: Collection[str] | None) -> list[FramePath]:
    """Look at the layers of each environment, SB3's, vector and single ones.

    :param venv: what is to be normalised
    :param keys: keys of a Dict observation to which flags are applied; None for all
    """
    outer, stacks = list(layers(venv)), stacks_of(venv)
    if isinstance(stacks[0][-1], gym.Env):
        return [path_of([*outer, *stack], keys) for stack in stacks]
    n_hidden = _n_hidden(venv.unwrapped, stacks[0][-1])
    return [path_of([*outer, *stacks[0]], keys, n_hidden)] * venv.num_envs


def stacks_of(venv: VecEnv) -> list[list[Any]]:
    """List the layers inside of the innermost VecEnv, from the outside in, for each environment.

    :return: one list, the last of which is what cannot be looked into, where that is so
    """
    base = venv.unwrapped
    inner = list(layers_inwards(base.env)) if isinstance(base, GymnasiumVecEnv) else [base]
    singles = _single_envs(inner[-1])
    return [[*inner[:-1], *layers_inwards(env)] for env in singles] or [inner]


def _single_envs(innermost: Any) -> list[gym.Env[Any, Any]]:
    """List the single environments; none where they cannot be looked into."""
    envs = getattr(innermost, "envs", None)
    is_list = isinstance(envs, (list, tuple)) and all(isinstance(env, gym.Env) for env in envs)
    return list(envs) if is_list and envs else []


def _n_hidden(base: VecEnv, innermost: Any) -> int:
    """Count the layers that blank in environments that cannot be looked into."""
    try:
        if isinstance(base, GymnasiumVecEnv):
            is_declared = any(innermost.call("has_wrapper_attr", DECLARED))
            return 0 if is_declared else blanking_layers_of_vector(innermost)
        if not base.has_attr("n_blanking_layers") or base.has_attr(DECLARED):
            return 0
        return int(max(base.get_attr("n_blanking_layers")))
    except (AttributeError, NotImplementedError):
        return 0  # environments of others

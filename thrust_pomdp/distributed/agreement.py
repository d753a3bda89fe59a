"""Whether all processes of a training do the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from thrust_pomdp.checkpoint.arguments import described, versions
from thrust_pomdp.distributed.block_training import weights_digest
from thrust_pomdp.distributed.ranks import Ranks
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible
from thrust_pomdp.vec_env.previous import layers
from thrust_pomdp.vec_env.privileged import VecPrivilegedInfo


def check_agreement(model: Any, arguments: Mapping[str, Any], ranks: Ranks) -> None:
    """Refuse a training that is another one in another process.

    :param model: that is to learn
    :param arguments: of ``learn``
    :param ranks: all processes
    :raises ValueError: in every process, naming the first that differs from rank 0, and by what
    """
    if ranks.size == 1:
        return
    told = {
        "environments of a process": model.n_envs,
        **described(model, arguments),
        **{f"version of {name}": version for name, version in versions().items()},
        "steps done": model.num_timesteps,
        "epochs done": model._n_updates,
        "the weights": weights_digest(model.policy).hex(),
    }
    first, *others = ranks.gather_objects(told)
    for rank, other in enumerate(others, start=1):
        for name in dict.fromkeys([*first, *other]):
            if first.get(name) != other.get(name):
                raise ArgumentError(
                    f"all processes must train the same, {name} is {other.get(name)!r} on rank "
                    f"{rank} and {first.get(name)!r} on rank 0"
                )


def check_env_layers(venv: VecEnv, n_ranks: int) -> None:
    """Refuse statistics that would follow one process's environments.

    :raises ValueError: naming the layer and the remedy
    """
    if n_ranks == 1:
        return
    for layer in layers(venv):
        name = type(layer).__name__
        moves = isinstance(layer, VecNormalize) and layer.training
        if isinstance(layer, VecPrivilegedInfo):
            moves = layer._training and layer.statistics is not None
        if not moves or getattr(layer, "update", "step") == "window":
            continue
        known = isinstance(layer, (VecNormalizeVisible, VecPrivilegedInfo))
        remedy = f'{name}(..., update="window")' if known else "thrust_pomdp.VecNormalizeVisible"
        raise ArgumentError(
            f'{name} updates its statistics at each "step", by the environments of one process '
            f"alone, so that the {n_ranks} processes would show their agents other numbers for the "
            f"same observation: use {remedy}, whose statistics are those of all"
        )
    base = venv.unwrapped
    inside: Any = base.env if isinstance(base, GymnasiumVecEnv) else None
    while isinstance(inside, VectorEnv) and hasattr(inside, "env"):
        if isinstance(inside, gym.wrappers.vector.NormalizeReward):
            raise ArgumentError(
                "NormalizeReward of gymnasium.wrappers.vector keeps statistics of one process's "
                'environments: use thrust_pomdp.VecNormalizeVisible(..., update="window")'
            )
        inside = inside.env

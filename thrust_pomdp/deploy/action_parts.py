"""The choice of an action, and the last one shown again, as operations of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
)

from thrust_pomdp.deploy.network_parts import (
    emit_activation,
    emit_cast,
    emit_flat,
    emit_module,
    emit_one_hot,
    weights_of,
)
from thrust_pomdp.deploy.program import Program
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.ppo.maskable.policies import MaskableRecurrentActorCriticPolicy
from thrust_pomdp.wrappers.actions import ActionEncoding

_DISTRIBUTIONS: tuple[type[Distribution], ...] = (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
)


def emit_action(program: Program, policy: Any, latent: str, outputs: Sequence[str]) -> None:
    """Add the choice of an action from what the actor's head gives.

    :param outputs: what else is to come out
    :raises ValueError: for outputs that there are not, and distributions of a user's own
    """
    distribution, space = policy.action_dist, policy.action_space
    module = type(distribution).__module__.partition(".")[0]
    if not isinstance(distribution, _DISTRIBUTIONS) or module not in (
        "stable_baselines3",
        "thrust_pomdp",
    ):
        raise ArgumentError(
            "model must draw actions from a distribution of Stable-Baselines3 to be exported, got "
            f"a {type(distribution).__name__}"
        )
    parameters = emit_module(program, policy.action_net, latent)
    is_continuous = isinstance(space, spaces.Box)
    offered = ("mean", "log_std") if is_continuous else ("action_logits",)
    for name in outputs:
        if name not in (*offered, "value", "belief"):
            raise ArgumentError(f"outputs must be some of {offered} for {space}, got {name!r}")
    if is_continuous:
        _continuous(program, policy, parameters, outputs)
    else:
        _discrete(program, policy, parameters)
    if "action_logits" in outputs:
        program.output("action_logits", parameters)


def _discrete(program: Program, policy: Any, logits: str) -> None:
    space = policy.action_space
    is_bits = isinstance(space, spaces.MultiBinary)
    sizes = _sizes(space)
    masks = None
    if isinstance(policy, MaskableRecurrentActorCriticPolicy):
        width = 2 * len(sizes) if is_bits else sum(sizes)
        masks = program.input("action_masks", "action_masks", (width,), "bool")
    noise = program.input("noise", "noise", (len(sizes),), "float32")
    shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype or np.int64).name
    if is_bits:
        chosen = program.add("bits", [logits, noise, masks], [(len(sizes),)], dtype)[0]
    else:
        chosen = program.add(
            "choices", [logits, noise, masks], [(len(sizes),)], dtype, sizes=sizes
        )[0]
    program.action = {
        "space": type(space).__name__, "shape": list(shape), "dtype": dtype, "sizes": sizes,
        "value": chosen,
    }  # fmt: skip
    program.output("action", _shaped(program, chosen, shape), "action")


def _sizes(space: Any) -> list[int]:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    return [int(size) for size in space.nvec]


def _continuous(program: Program, policy: Any, mean: str, outputs: Sequence[str]) -> None:
    space = policy.action_space
    shape = tuple(space.shape)
    size = int(np.prod(shape))
    has_noise = isinstance(policy.action_dist, DiagGaussianDistribution)
    action = mean
    if has_noise:
        noise = program.input("noise", "noise", (size,), "float32")
        log_std = weights_of(policy.log_std)
        arrays = {"std": program.array(np.exp(log_std))}
        action = program.add("gaussian", [mean, noise], [(size,)], arrays=arrays)[0]
    if "mean" in outputs:
        program.output("mean", mean)
    if "log_std" in outputs:
        if not has_noise:
            raise ArgumentError(
                "outputs must be without 'log_std' for a model with use_sde=True, whose spread "
                "depends on an exploration matrix: it acts by its mean"
            )
        arrays = {"numbers": program.array(log_std)}
        program.output("log_std", program.add("constant", [mean], [(size,)], arrays=arrays)[0])
    bounds = {
        name: program.array(np.broadcast_to(bound, shape).ravel())
        for name, bound in (("low", space.low), ("high", space.high))
    }
    if policy.squash_output:
        action = emit_activation(program, action, "tanh")
        action = program.add("unscale", [action], [(size,)], arrays=bounds)[0]
    else:
        action = program.add("clip", [action], [(size,)], arrays=bounds)[0]
    program.action = {
        "space": "Box", "shape": list(shape), "dtype": "float32", "sizes": [1] * size,
        "value": action,
    }  # fmt: skip
    program.output("action", _shaped(program, action, shape), "action")


def _shaped(program: Program, value: str, shape: tuple[int, ...]) -> str:
    if program.shapes[value] == shape:
        return value
    return program.add("reshape", [value], [shape], program.dtypes[value], shape=list(shape))[0]


def emit_previous_action(program: Program, space: spaces.Space[Any]) -> str:
    """Add the last action as an input, encoded as the model has learnt to see it.

    It is the action as the environment takes it; :class:`ActionEncoding` says how it is encoded.
    """
    shape = tuple(space.shape or ())
    if isinstance(space, spaces.Box):
        value = program.input("previous_action", "previous_action", shape, "float32")
        scaling: Any = ActionEncoding(space)._encode
        arrays = {
            name: program.array(numbers)
            for name, numbers in {
                "centre": scaling._centre,
                "width": scaling._width,
                "low": scaling.low,
                "high": scaling.high,
            }.items()
        }
        flat = emit_flat(program, value)
        return program.add("scale", [flat], [program.shapes[flat]], arrays=arrays)[0]
    dtype = np.dtype(space.dtype or np.int64).name
    value = program.input("previous_action", "previous_action", shape, dtype)
    if isinstance(space, spaces.MultiBinary):
        return emit_cast(program, emit_flat(program, value))
    return emit_one_hot(program, value, _sizes(space), _starts(space))


def _starts(space: Any) -> list[int]:
    if isinstance(space, spaces.Discrete):
        return [int(space.start)]
    return [int(start) for start in np.ravel(space.start)]

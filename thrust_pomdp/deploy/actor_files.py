"""Actors in files: a policy and what it is shown, to act where nothing else of the training is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import ConstantSchedule, get_device
from stable_baselines3.common.vec_env import VecNormalize

from thrust_pomdp import array_files
from thrust_pomdp.array_files import File, SafeFileError
from thrust_pomdp.deploy.observation_layers import (
    KnownAxes,
    Layer,
    Normalized,
    Previous,
    SpaceAxes,
    Stacked,
    Transposed,
)
from thrust_pomdp.deploy.observation_pipeline import ObservationPipeline
from thrust_pomdp.ppo.maskable.ppo import MaskableRecurrentPPO
from thrust_pomdp.ppo.model_files import naming, tensors_in, versions
from thrust_pomdp.ppo.sized_building import building
from thrust_pomdp.ppo.vocabulary import RECURRENT, ModelReader, ModelWriter
from thrust_pomdp.safe_values import Kind
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible
from thrust_pomdp.vec_env.normalizer_files import STATISTICS, normalizer_of, parts_of
from thrust_pomdp.wrappers.actions import ActionEncoding
from thrust_pomdp.wrappers.rewards import RewardEncoding

#: What an actor's file holds.
KIND = "actor"


class SavedActor(NamedTuple):
    """What makes an actor.

    :param policy: who acts
    :param deterministic: whether by the most likely action
    :param layers: what is done to raw observations; None where they are taken as they are
    :param blank: what a blank looks like
    """

    policy: ActorCriticPolicy
    deterministic: bool
    layers: list[Layer] | None
    blank: Any


def _normalizer_kind(cls: type[VecNormalize]) -> Kind:
    return Kind(cls, parts_of, lambda **parts: normalizer_of(cls, parts))


def _count(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"must be a whole number from 1 on, got {str(value)[:80]}")
    return value


def _known_axes(axes: Any) -> KnownAxes:
    if not all(type(axis) is int for axis in axes.values()):
        raise ValueError("axes must be whole numbers")
    return KnownAxes(axes)


def _of(cls: Any, value: Any) -> Any:
    if not isinstance(value, cls):
        raise ValueError(f"must be of {cls}, got {str(value)[:80]}")
    return value


_VOCABULARY = RECURRENT.extended(
    MaskableRecurrentPPO.vocabulary.classes,
    {
        "RunningMeanStd": STATISTICS,
        "VecNormalize": _normalizer_kind(VecNormalize),
        "VecNormalizeVisible": _normalizer_kind(VecNormalizeVisible),
        "Normalized": Kind(
            Normalized,
            lambda layer: {"normalizer": layer.normalizer},
            lambda normalizer: Normalized(_of(VecNormalize, normalizer)),
        ),
        "KnownAxes": Kind(KnownAxes, lambda axes: {"axes": axes.axes}, _known_axes),
        "SpaceAxes": Kind(
            SpaceAxes,
            lambda axes: {"space": axes.space},
            lambda space: SpaceAxes(_of(spaces.Space, space)),
        ),
        "Stacked": Kind(
            Stacked,
            lambda layer: {"n_stack": layer.n_stack, "axis_of": layer.axis_of},
            lambda n_stack, axis_of: Stacked(_count(n_stack), _of((KnownAxes, SpaceAxes), axis_of)),
        ),
        "Transposed": Kind(Transposed, lambda layer: {"keys": layer.keys}, Transposed),
    },
)


def write_actor(
    file: File,
    model: Any,
    deterministic: bool,
    pipeline: ObservationPipeline | None,
) -> None:
    """Write who acts and what it is shown.

    :raises ValueError: for what acts otherwise than a policy of SB3's kind, and for layers of
        which it is not known what they do
    """
    policy, kwargs = _policy_of(model)
    writer = ModelWriter(_VOCABULARY)
    layers = (
        None
        if pipeline is None
        else [
            _written(writer, layer, policy.action_space, f"layers.{number}")
            for number, layer in enumerate(pipeline.layers)
        ]
    )
    policy_data = {
        "class": writer.write(type(policy), "policy_class"),
        "observation_space": writer.write(policy.observation_space, "observation_space"),
        "action_space": writer.write(policy.action_space, "action_space"),
        "arguments": writer.write(kwargs, "policy_kwargs"),
        "parameters": writer.write(policy.state_dict(), "policy"),
    }
    blank = None if pipeline is None else writer.write(pipeline.looks_of_blank, "blank")
    data = {"policy": policy_data, "deterministic": deterministic, "layers": layers, "blank": blank}
    array_files.write(file, KIND, {**data, "versions": versions()}, writer.arrays)


def _policy_of(model: Any) -> tuple[ActorCriticPolicy, dict[str, Any]]:
    """Return the policy that acts, and the arguments that it was made with."""
    policy = getattr(model, "policy", model)
    known = (BaseAlgorithm.predict, MaskableRecurrentPPO.predict)
    does_otherwise = model is not policy and (
        "predict" in vars(model) or type(model).predict not in known
    )
    if not isinstance(policy, ActorCriticPolicy) or "predict" in vars(policy) or does_otherwise:
        raise ValueError(
            "model must act by an actor-critic policy of Stable-Baselines3's kind to be saved, got "
            f"{type(model).__name__}, which has a predict of its own"
        )
    if isinstance(model, BaseAlgorithm):
        use_sde = getattr(model, "use_sde", False)
        return policy, {"use_sde": use_sde, **model.policy_kwargs}
    kwargs = policy._get_constructor_parameters()
    for name in ("observation_space", "action_space", "lr_schedule"):
        kwargs.pop(name, None)
    return policy, kwargs


def _written(writer: ModelWriter, layer: Layer, space: spaces.Space[Any], path: str) -> Any:
    if type(layer) is not Previous:
        return writer.write(layer, path)
    # What is shown of an action follows from the space of the policy.
    is_plain = type(layer.encoding) is RewardEncoding or (
        type(layer.encoding) is ActionEncoding
        and layer.encoding.space == ActionEncoding(space).space
    )
    if not is_plain:
        raise ValueError(
            f"the previous {layer.what} must be shown as the wrappers of this package do to be "
            f"saved, got {type(layer.encoding).__name__}"
        )
    return {"previous": layer.what, "key": layer.key}


def read_actor(
    file: File, custom_objects: Mapping[str, Any] | None, device: th.device | str
) -> SavedActor:
    """Read what :func:`write_actor` wrote; nothing of it is run.

    :param file: the file
    :param custom_objects: what it cannot hold, by name
    :param device: where the policy acts
    :raises SafeFileError: naming the file and the reason
    """
    data, arrays = array_files.read(file, KIND)
    with naming(file):
        reader = ModelReader(_VOCABULARY, arrays, custom_objects)
        policy = _read_policy(reader, data["policy"], get_device(device))
        deterministic = _of(bool, data["deterministic"])
        layers = data["layers"]
        if layers is not None:
            layers = [
                _read_layer(reader, layer, policy.action_space, f"layers.{number}")
                for number, layer in enumerate(_of(list, layers))
            ]
            _check_stacks(layers, policy.observation_space)
        return SavedActor(policy, deterministic, layers, reader.read(data["blank"], "blank"))


def _check_stacks(layers: list[Layer], space: spaces.Space[Any]) -> None:
    """Refuse to stack more frames than the policy has room for."""
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
    longest = max(size for part in parts for size in (1, *(part.shape or ())))
    n_frames = math.prod(layer.n_stack for layer in layers if isinstance(layer, Stacked))
    if n_frames > longest:
        raise SafeFileError(
            f"stacks {str(n_frames)[:80]} frames for a policy that sees {space}, which cannot be"
        )


def _read_policy(
    reader: ModelReader, data: Mapping[str, Any], device: th.device
) -> ActorCriticPolicy:
    cls = _of(type, reader.read(data["class"], "policy_class"))
    observation_space = reader.read(data["observation_space"], "observation_space")
    action_space = reader.read(data["action_space"], "action_space")
    kwargs = reader.read(data["arguments"], "policy_kwargs")
    parameters = reader.read(data["parameters"], "policy")
    with building(tensors_in(parameters)):
        policy: ActorCriticPolicy = cls(
            _of(spaces.Space, observation_space),
            _of(spaces.Space, action_space),
            ConstantSchedule(0.0),
            **kwargs,
        )
    policy.load_state_dict(parameters)
    policy.set_training_mode(False)
    if policy.use_sde:
        policy.reset_noise()
    return policy.to(device)


def _read_layer(reader: ModelReader, data: Any, space: spaces.Space[Any], path: str) -> Layer:
    if isinstance(data, dict) and "previous" in data:
        key = data["key"]
        if key is not None:
            _of(str, key)
        if data["previous"] == "action":
            return Previous(ActionEncoding(space), "action", key)
        if data["previous"] == "reward":
            return Previous(RewardEncoding(), "reward", key)
    layer: Layer = reader.read(data, path)
    if not callable(layer):
        raise SafeFileError(f"has a layer at {path} that is none")
    return layer

"""What a :class:`~thrust_pomdp.StatefulActor` does in one step, as a program of plain data.

Raw observations go through the layers of the pipeline, the model's network and the choice of an
action, in that order; each is read off the objects that do it while acting. Whatever of them is not
as it was written, or not known, is refused by name: a file that acts differently would be worse
than none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import MlpExtractor
from torch import nn

from thrust_pomdp import gate
from thrust_pomdp.deploy.action_parts import emit_action, emit_previous_action
from thrust_pomdp.deploy.memory_parts import emit_memory
from thrust_pomdp.deploy.network_parts import (
    Parts,
    emit_cast,
    emit_concat,
    emit_features,
    emit_module,
    emit_preprocessed,
    emit_reset,
)
from thrust_pomdp.deploy.observation_layers import Normalized, Previous, Stacked, Transposed
from thrust_pomdp.deploy.program import Program
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.ppo.asymmetric_policy import AsymmetricLstmPolicy
from thrust_pomdp.ppo.maskable.policies import MaskableRecurrentActorCriticPolicy
from thrust_pomdp.ppo.policies import RecurrentActorCriticPolicy
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible
from thrust_pomdp.wrappers.appending import OBSERVATION

#: What comes out beside the action, on request.
EXTRAS = ("action_logits", "mean", "log_std", "value", "belief")

#: Methods by which a policy acts, of which each must be as it was written.
_ACTING = (
    "_predict",
    "get_distribution",
    "_get_action_dist_from_latent",
    "extract_features",
    "obs_to_tensor",
    "unscale_action",
    "set_training_mode",
)
_RECURRENT = (*_ACTING, "predict", "_process_sequence", "_states_to_tensors", "_starts_to_tensor")
_VALUES = ("predict_values", "_critic_memory", "_recur", "_both_features", "_heads")

gate.remember(ActorCriticPolicy)
gate.remember(MlpExtractor)


def describe(actor: Any, outputs: Sequence[str] = (), normalizer_dtype: str = "float64") -> Program:
    """Describe what an actor does in one step.

    :param actor: a :class:`~thrust_pomdp.StatefulActor`
    :param outputs: names of :data:`EXTRAS`
    :param normalizer_dtype: in which the normaliser computes
    :raises ValueError: for what cannot be described, naming it
    """
    policy = getattr(actor.model, "policy", actor.model)
    _check(policy, outputs)
    if normalizer_dtype not in ("float64", "float32"):
        raise ArgumentError(
            f"normalizer_dtype must be 'float64' or 'float32', got {normalizer_dtype!r}"
        )
    program = Program()
    start = program.input("start", "start", (), "bool")
    sight = _Sight(program, actor._pipeline, policy, start, normalizer_dtype)
    parts = sight.shown()
    _Network(program, policy, start, outputs).emit(parts)
    program.action["deterministic"] = bool(actor.deterministic)
    return program


def _check(policy: Any, outputs: Sequence[str]) -> None:
    """Refuse policies that act in ways of their own."""
    if isinstance(outputs, str) or not all(name in EXTRAS for name in outputs):
        raise ArgumentError(f"outputs must be some of {EXTRAS}, got {outputs!r}")
    if not isinstance(policy, ActorCriticPolicy):
        raise ArgumentError(
            "model must be a RecurrentPPO, MaskableRecurrentPPO or PPO, or the policy of one, to "
            f"be exported, got {policy!r}"
        )
    if "value" in outputs and isinstance(policy, AsymmetricLstmPolicy):
        raise ArgumentError(
            "outputs must be without 'value' for an AsymmetricLstmPolicy: its critic reads "
            f"{list(policy.critic_only)}, which is not there while acting"
        )
    reason = _against(policy, "value" in outputs)
    if reason is not None:
        raise ArgumentError(
            f"model must act as the policies of this package do to be exported: {reason}"
        )


def _against(policy: Any, with_value: bool) -> str | None:
    if not isinstance(policy, RecurrentActorCriticPolicy):
        names = (*_ACTING, "predict", *(("predict_values",) if with_value else ()))
        return gate.against_methods(policy, names, ActorCriticPolicy)
    masks = ("predict", "get_distribution", "_get_action_dist_from_latent")
    names = (*_RECURRENT, *(_VALUES if with_value else ()))
    known: type = RecurrentActorCriticPolicy
    if isinstance(policy, MaskableRecurrentActorCriticPolicy):
        reason = gate.against_methods(policy, masks, MaskableRecurrentActorCriticPolicy)
        if reason is not None:
            return reason
        names = tuple(name for name in names if name not in masks)
    if isinstance(policy, AsymmetricLstmPolicy):
        reason = gate.against_methods(policy, ("_checked_keys",), AsymmetricLstmPolicy)
        return reason or gate.against_methods(policy, names, known)
    return gate.against_methods(policy, (*names, "_checked_keys"), known)


class _Sight:
    """What is shown of raw observations."""

    def __init__(
        self, program: Program, pipeline: Any, policy: Any, start: str, normalizer_dtype: str
    ) -> None:
        self._program, self._policy, self._start = program, policy, start
        self._layers = [] if pipeline is None else pipeline.layers
        self._blank = None if pipeline is None else pipeline.looks_of_blank
        self._normalizer_dtype = normalizer_dtype
        self._flags: dict[str | None, str] = {}
        self._space = getattr(policy, "acting_space", policy.observation_space)

    def shown(self) -> Parts:
        """Add inputs and layers; return what the model takes, by key."""
        program = self._program
        shapes = self._raw_shapes()
        parts: Parts = {}
        is_dict = None not in shapes
        visible = [
            layer.normalizer
            for layer in self._layers
            if isinstance(layer, Normalized) and isinstance(layer.normalizer, VecNormalizeVisible)
        ]
        uses_flags = bool(visible) or self._blank is not None
        guesses = any(one.zero_is_blank or one.met_flags for one in visible)
        told = not visible or any(one.met_flags for one in visible) or self._blank is not None
        program.obs = {"is_dict": is_dict, "guess": guesses, "told": told}
        for key, shape in shapes.items():
            name = "obs" if key is None else f"obs_{key}"
            parts[key] = program.input(name, "obs", shape, self._dtype(key), key)
            if uses_flags:
                name = "blanked" if key is None else f"blanked_{key}"
                self._flags[key] = program.input(name, "blanked", shape, "bool", key)
        normalized = {
            key
            for one in visible
            if one.norm_obs
            for key in (one.norm_obs_keys if is_dict else (None,)) or ()
        }
        for key in parts:
            if uses_flags and key not in normalized:
                parts[key] = self._blank_shown(key, parts[key])
        for layer in self._layers:
            parts = self._through(layer, parts)
        return self._for_model(parts)

    def _raw_shapes(self) -> dict[str | None, tuple[int, ...]]:
        """Undo the layers, from the outside in, on the shapes of what the model takes."""
        shapes: dict[str | None, tuple[int, ...]]
        if isinstance(self._space, spaces.Dict):
            shapes = {key: _shape(part) for key, part in self._space.items()}
        else:
            shapes = {None: _shape(self._space)}
        for layer in reversed(self._layers):
            if isinstance(layer, Stacked):
                shapes = {key: _unstacked(layer, key, shape) for key, shape in shapes.items()}
            elif isinstance(layer, Previous) and layer.key is not None:
                del shapes[layer.key]
            elif isinstance(layer, Previous):
                shapes = {None: (shapes[None][0] - layer.encoding.size,)}
            elif isinstance(layer, Transposed):
                shapes = {
                    key: (*shape[1:], shape[0]) if _is_transposed(layer, key) else shape
                    for key, shape in shapes.items()
                }
            elif not isinstance(layer, Normalized):
                raise ArgumentError(
                    "env must have no wrappers around it but those of Stable-Baselines3 and this "
                    f"package to be exported: {layer!r} is not known"
                )
        inner = self._inner_is_plain(shapes)
        return {None: shapes[OBSERVATION]} if inner else shapes

    def _inner_is_plain(self, shapes: dict[str | None, tuple[int, ...]]) -> bool:
        """Tell whether a Dict was made of plain observations by what was appended."""
        appended = any(isinstance(layer, Previous) and layer.key for layer in self._layers)
        normalizers = [x.normalizer for x in self._layers if isinstance(x, Normalized)]
        if normalizers:
            return appended and not isinstance(normalizers[0].observation_space, spaces.Dict)
        return appended and set(shapes) == {OBSERVATION}

    def _dtype(self, key: str | None) -> str:
        """Return the type of raw readings: as of what the model takes."""
        space = self._space
        if isinstance(space, spaces.Dict):
            space = space[OBSERVATION if key is None else key]
        dtype = np.dtype(space.dtype or np.float32)
        return "float32" if dtype == np.float16 else dtype.name

    def _blank_shown(self, key: str | None, value: str) -> str:
        """Show as a blank what is told to be one and is not normalised."""
        from thrust_pomdp.deploy.blank_values import _default

        program, space = self._program, self._space
        if isinstance(space, spaces.Dict):
            space = space[OBSERVATION if key is None else key]
        blank = self._blank.get(key) if isinstance(self._blank, dict) else self._blank
        shape, dtype = program.shapes[value], program.dtypes[value]
        looks = _default(space) if blank is None or np.shape(blank) != shape else blank
        arrays = {"blank": program.array(np.broadcast_to(looks, shape), dtype)}
        return program.add("blank", [value, self._flags[key]], [shape], dtype, arrays)[0]

    def _through(self, layer: Any, parts: Parts) -> Parts:
        if isinstance(layer, Normalized):
            return self._normalized(layer.normalizer, parts)
        if isinstance(layer, Previous):
            return self._appended(layer, parts)
        if isinstance(layer, Stacked):
            return {key: self._stacked(layer, key, value) for key, value in parts.items()}
        return {
            key: self._transposed(value) if _is_transposed(layer, key) else value
            for key, value in parts.items()
        }

    def _normalized(self, normalizer: Any, parts: Parts) -> Parts:
        if not normalizer.norm_obs:
            return parts
        program, shown = self._program, dict(parts)
        is_visible = isinstance(normalizer, VecNormalizeVisible)
        for key in normalizer.norm_obs_keys if None not in parts else (None,):
            rms = normalizer.obs_rms if key is None else normalizer.obs_rms[key]
            value = parts[key]
            shape = program.shapes[value]
            numbers = {"mean": rms.mean, "std": np.sqrt(rms.var + normalizer.epsilon)}
            arrays = {
                name: program.array(np.broadcast_to(part, shape), self._normalizer_dtype)
                for name, part in numbers.items()
            }
            flags = self._flags.get(key) if is_visible else None
            shown[key] = program.add(
                "normalize", [value, flags], [shape], arrays=arrays,
                clip=float(normalizer.clip_obs), precision=self._normalizer_dtype,
            )[0]  # fmt: skip
        return shown

    def _appended(self, layer: Previous, parts: Parts) -> Parts:
        program = self._program
        if layer.what == "action":
            encoded = emit_previous_action(program, self._policy.action_space)
        else:
            encoded = program.input("previous_reward", "previous_reward", (1,), "float32")
        encoded = emit_reset(program, encoded, self._start)
        if layer.key is not None:
            shown: Parts = {OBSERVATION: parts[None]} if None in parts else parts
            return {**shown, layer.key: encoded}
        return {None: emit_concat(program, [emit_cast(program, parts[None]), encoded])}

    def _stacked(self, layer: Stacked, key: str | None, value: str) -> str:
        program = self._program
        if program.dtypes[value] != "uint8":
            value = emit_cast(program, value)
        shape, dtype = program.shapes[value], program.dtypes[value]
        axis = _axis(layer, key, shape)
        whole = list(shape)
        whole[axis] *= layer.n_stack
        before = program.value(whole, dtype)
        known = emit_reset(program, before, self._start)
        kept = list(whole)
        kept[axis] -= shape[axis]
        recent = program.add(
            "slice", [known], [kept], dtype, axis=axis, begin=shape[axis], end=whole[axis]
        )[0]
        frames = emit_concat(program, [recent, value], axis)
        name = "stack" if key is None else f"stack_{key}"
        program.state(name, [before], [frames], "stack")
        return frames

    def _transposed(self, value: str) -> str:
        program = self._program
        height, width, channels = program.shapes[value]
        shape, dtype = (channels, height, width), program.dtypes[value]
        return program.add("transpose", [value], [shape], dtype, axes=[2, 0, 1])[0]

    def _for_model(self, parts: Parts) -> Parts:
        """Give the only key of an actor, or do what SB3 does to observations first of all."""
        program, policy = self._program, self._policy
        if isinstance(policy, AsymmetricLstmPolicy) and None in parts:
            parts = {policy.actor_keys[0]: parts[None]}
        inside = policy.observation_space
        normalize_images = bool(policy.normalize_images)
        return {
            key: emit_preprocessed(
                program, value, inside if key is None else inside[key], normalize_images
            )
            for key, value in parts.items()
        }


def _shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    return tuple(space.shape or ())


def _is_transposed(layer: Transposed, key: str | None) -> bool:
    return key is None or key in (layer.keys or ())


def _axis(layer: Stacked, key: str | None, shape: tuple[int, ...]) -> int:
    """Return the axis of one environment's frames that a stack is along."""
    axis = layer.axis_of(key, np.zeros((1, *shape), np.float32))
    return axis - 1 if axis > 0 else len(shape) + axis


def _unstacked(layer: Stacked, key: str | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    # Which axis that is may depend on the frames' own shape, so each is tried.
    for axis in range(len(shape)):
        if shape[axis] % layer.n_stack == 0:
            single = list(shape)
            single[axis] //= layer.n_stack
            if _axis(layer, key, tuple(single)) == axis:
                return tuple(single)
    raise ArgumentError(f"frame_stack must divide an axis of {shape}, got {layer.n_stack}")


class _Network:
    """What a policy makes of what it is shown."""

    def __init__(self, program: Program, policy: Any, start: str, outputs: Sequence[str]) -> None:
        self._program, self._policy, self._start = program, policy, start
        self._outputs = outputs

    def emit(self, parts: Parts) -> None:
        """Add the network and the choice of an action."""
        program, policy = self._program, self._policy
        is_recurrent = isinstance(policy, RecurrentActorCriticPolicy)
        space = policy.observation_space
        features = emit_features(program, policy.pi_features_extractor, parts, space)
        memory = features
        if is_recurrent:
            memory = emit_memory(program, policy.lstm_actor, features, self._start)
        latent = self._head("forward_actor", "policy_net", memory)
        emit_action(program, policy, latent, self._outputs)
        if "value" in self._outputs:
            self._value(parts, features, memory, is_recurrent)
        if "belief" in self._outputs:
            self._belief(memory)

    def _head(self, method: str, name: str, value: str) -> str:
        extractor = self._policy.mlp_extractor
        if gate.against_module(extractor, MlpExtractor) or gate.against_methods(
            extractor, (method,), MlpExtractor
        ):
            raise ArgumentError(
                "model must have the heads of Stable-Baselines3 to be exported, got a "
                f"{type(extractor).__name__} that was changed or is a class of its own"
            )
        return emit_module(self._program, getattr(extractor, name), value)

    def _value(self, parts: Parts, features: str, memory: str, is_recurrent: bool) -> None:
        program, policy = self._program, self._policy
        if not policy.share_features_extractor:
            extractor: nn.Module = policy.vf_features_extractor
            features = emit_features(program, extractor, parts, policy.observation_space)
        if not is_recurrent:
            memory = features
        elif policy.lstm_critic is not None:
            memory = emit_memory(program, policy.lstm_critic, features, self._start, "critic")
        elif policy.critic is not None:
            memory = emit_module(program, policy.critic, features)
        latent = self._head("forward_critic", "value_net", memory)
        program.output("value", emit_module(program, policy.value_net, latent))

    def _belief(self, memory: str) -> None:
        net = getattr(self._policy, "grounding_net", None)
        if net is None:
            raise ArgumentError(
                "outputs must be without 'belief' for a model without grounding: train an "
                "AsymmetricLstmPolicy with grounding_coef above 0"
            )
        self._program.output("belief", emit_module(self._program, net, memory))

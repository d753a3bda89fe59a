"""Torch's modules as operations of a :class:`~thrust_pomdp.deploy.program.Program`.

What is known is written out; what is not, a module of a user's own or one that was changed, stays a
call of the module, which torch's exporter can follow and nothing else can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN
from torch import nn

from thrust_pomdp import gate
from thrust_pomdp.deploy.program import Program
from thrust_pomdp.ppo.asymmetric_policy import KeysExtractor
from thrust_pomdp.recurrent.encoder import Encoder

#: Activations without options, by their class.
ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.Tanh: "tanh",
    nn.ReLU: "relu",
    nn.Sigmoid: "sigmoid",
    nn.SiLU: "silu",
    nn.Softsign: "softsign",
}
#: Those with a slope, and what it is called.
_SLOPES: dict[type[nn.Module], tuple[str, str]] = {
    nn.ELU: ("elu", "alpha"),
    nn.LeakyReLU: ("leaky_relu", "negative_slope"),
}
_NOTHING: tuple[type[nn.Module], ...] = (nn.Identity, nn.Dropout)
_EXTRACTORS = (Encoder, KeysExtractor, FlattenExtractor, NatureCNN, CombinedExtractor)

for _cls in (*ACTIVATIONS, *_SLOPES, *_NOTHING, nn.Conv2d, nn.ModuleDict, *_EXTRACTORS):
    gate.remember(_cls)

Parts = dict[str | None, str]


class UsersModule(nn.Module):
    """A module of a user's own, called with a dict of observations as values side by side.

    :param users: the module
    :param keys: of the Dict; None where there is none
    """

    def __init__(self, users: nn.Module, keys: Sequence[str] | None) -> None:
        super().__init__()
        self.users, self.keys = users, keys

    def forward(self, *values: th.Tensor) -> th.Tensor:
        """Call it, and return rows of numbers."""
        shown: Any = values[0] if self.keys is None else dict(zip(self.keys, values, strict=True))
        output: th.Tensor = self.users(shown)
        return output if output.ndim > 1 else output[None]


def emit_features(
    program: Program, extractor: nn.Module, parts: Parts, space: spaces.Space[Any]
) -> str:
    """Add a features extractor; return its features, ``[n]``.

    :param parts: what it is shown, after SB3's preprocessing, by key
    :param space: of what it is shown
    """
    if not is_as_written(extractor, *_EXTRACTORS):
        return _users_extractor(program, extractor, parts)
    if isinstance(extractor, Encoder):
        features = emit_features(program, extractor.extractor, parts, space)
        return emit_module(program, extractor.layers, features)
    if isinstance(extractor, KeysExtractor):
        shown: Parts = {key: parts[key] for key in extractor.keys}
        return emit_features(program, extractor.inner, shown, space)
    if isinstance(extractor, FlattenExtractor):
        return emit_module(program, extractor.flatten, parts[None])
    if isinstance(extractor, NatureCNN):
        (image,) = parts.values()
        return emit_module(program, extractor.linear, emit_module(program, extractor.cnn, image))
    assert isinstance(extractor, CombinedExtractor)
    features_of = []
    for key, module in extractor.extractors.items():
        if isinstance(module, NatureCNN):
            features_of.append(emit_features(program, module, {None: parts[key]}, space))
        else:
            features_of.append(emit_module(program, module, parts[key]))
    return emit_concat(program, features_of)


def is_as_written(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Tell whether a module is of one of some classes, and computes what that was written to."""
    return gate.against_module(module, *kinds) is None


def _users_extractor(program: Program, extractor: nn.Module, parts: Parts) -> str:
    keys = None if None in parts else [str(key) for key in parts]
    size = int(getattr(extractor, "features_dim"))  # noqa: B009 (no attribute of every module)
    return emit_call(program, UsersModule(extractor, keys), list(parts.values()), [(size,)])[0]


def emit_call(
    program: Program,
    module: nn.Module,
    inputs: Sequence[str],
    shapes: Sequence[Sequence[int]],
    dtype: str | Sequence[str] = "float32",
) -> tuple[str, ...]:
    """Add a call of a module of a user's own; return its outputs."""
    name = f"m{len(program.modules)}"
    program.modules[name] = module
    return program.add("module", inputs, shapes, dtype, module=name)


def emit_module(program: Program, module: nn.Module, value: str) -> str:
    """Add a module of one input and one output; return its output."""
    if isinstance(module, nn.Sequential) and is_as_written(module, nn.Sequential):
        for part in module:
            value = emit_module(program, part, value)
        return value
    shape = program.shapes[value]
    if is_as_written(module, *_NOTHING):
        return value  # dropout does nothing while acting
    if isinstance(module, nn.Flatten) and is_as_written(module, nn.Flatten):
        return emit_flat(program, value)
    if isinstance(module, nn.Linear) and is_as_written(module, nn.Linear) and len(shape) == 1:
        return _dense(program, module, value)
    if isinstance(module, nn.LayerNorm) and is_as_written(module, nn.LayerNorm):
        size = tuple(module.normalized_shape)
        if size == shape and len(shape) == 1:
            return _layer_norm(program, module, value)
    if isinstance(module, nn.Conv2d) and _is_plain_conv(module):
        return _conv(program, module, value)
    kinds = {**{cls: (kind, "") for cls, kind in ACTIVATIONS.items()}, **_SLOPES}
    if type(module) in kinds and is_as_written(module, *kinds):
        kind, slope = kinds[type(module)]
        options = {"slope": float(getattr(module, slope))} if slope else {}
        return emit_activation(program, value, kind, **options)
    return _users_module(program, module, value)


def _is_plain_conv(module: nn.Conv2d) -> bool:
    plain = module.padding == (0, 0) and module.dilation == (1, 1) and module.groups == 1
    return plain and is_as_written(module, nn.Conv2d)


def _users_module(program: Program, module: nn.Module, value: str) -> str:
    like = next(module.parameters(), th.empty(0))
    with th.no_grad():
        output = module(th.zeros(1, *program.shapes[value], dtype=th.float32, device=like.device))
    return emit_call(program, UsersModule(module, None), [value], [output.shape[1:]])[0]


def weights_of(parameter: th.Tensor) -> Any:
    """Return a parameter's numbers.

    :raises ValueError: if they are not of single precision
    """
    if parameter.dtype is not th.float32:
        raise ValueError(f"model must have weights of torch.float32, got {parameter.dtype}")
    return parameter.detach().cpu().numpy()


def _dense(program: Program, module: nn.Linear, value: str) -> str:
    arrays = {"weight": program.array(weights_of(module.weight))}
    if module.bias is not None:
        arrays["bias"] = program.array(weights_of(module.bias))
    return program.add("dense", [value], [(module.out_features,)], arrays=arrays)[0]


def _layer_norm(program: Program, module: nn.LayerNorm, value: str) -> str:
    arrays = {
        name: program.array(weights_of(parameter)) for name, parameter in module.named_parameters()
    }
    shapes = [program.shapes[value]]
    return program.add("layer_norm", [value], shapes, arrays=arrays, epsilon=float(module.eps))[0]


def _conv(program: Program, module: nn.Conv2d, value: str) -> str:
    arrays = {
        name: program.array(weights_of(parameter)) for name, parameter in module.named_parameters()
    }
    stride = [int(step) for step in module.stride]
    sizes = zip(program.shapes[value][1:], module.kernel_size, stride, strict=True)
    shape = (module.out_channels, *((size - kernel) // step + 1 for size, kernel, step in sizes))
    return program.add("conv", [value], [shape], arrays=arrays, stride=stride)[0]


def emit_activation(program: Program, value: str, kind: str, **options: Any) -> str:
    """Add an activation."""
    shapes = [program.shapes[value]]
    return program.add("activation", [value], shapes, function=kind, **options)[0]


def emit_flat(program: Program, value: str) -> str:
    """Make a vector of a value."""
    shape = program.shapes[value]
    if len(shape) == 1:
        return value
    return program.add("flatten", [value], [(int(np.prod(shape)),)], program.dtypes[value])[0]


def emit_cast(program: Program, value: str, dtype: str = "float32") -> str:
    """Make numbers of single precision of a value."""
    if program.dtypes[value] == dtype:
        return value
    return program.add("cast", [value], [program.shapes[value]], dtype)[0]


def emit_concat(program: Program, values: Sequence[str], axis: int = 0) -> str:
    """Put values one after the other along an axis of one environment's."""
    if len(values) == 1:
        return values[0]
    shape = list(program.shapes[values[0]])
    shape[axis] = sum(program.shapes[value][axis] for value in values)
    return program.add("concat", values, [shape], program.dtypes[values[0]], axis=axis)[0]


def emit_one_hot(program: Program, value: str, sizes: Sequence[int], starts: Sequence[int]) -> str:
    """Mark whole numbers in vectors, one after the other."""
    return program.add("one_hot", [value], [(sum(sizes),)], sizes=list(sizes), starts=list(starts))[
        0
    ]


def emit_reset(program: Program, value: str, start: str) -> str:
    """Make zeros of a value where an episode starts."""
    return program.add("reset", [value, start], [program.shapes[value]], program.dtypes[value])[0]


def emit_preprocessed(
    program: Program, value: str, space: spaces.Space[Any], normalize_images: bool
) -> str:
    """Do what SB3's ``preprocess_obs`` does to one part of an observation."""
    if isinstance(space, spaces.Discrete):
        return emit_one_hot(program, value, [int(space.n)], [0])
    if isinstance(space, spaces.MultiDiscrete):
        sizes = [int(size) for size in space.nvec]
        return emit_one_hot(program, value, sizes, [0] * len(sizes))
    numbers = emit_cast(program, value)
    if isinstance(space, spaces.Box) and normalize_images and is_image_space(space):
        return program.add("divide", [numbers], [program.shapes[numbers]], by=255.0)[0]
    return numbers

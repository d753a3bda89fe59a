"""The one gate of substitutes: whether what is fast may stand in for what a user wrote.

A compiled loop, a prepared step, a plain distribution computes what certain torch modules and
methods say. Each ``against_*`` function looks for something that would make the two differ and
returns it as a sentence's end, or None where there is nothing: then the substitute is the same.
Whoever is told a reason runs what the user wrote.

What the functions look at: exact types, methods (overridden, replaced on an object or on a class),
hooks, parametrisations and pruning, dtypes, devices, layouts, and whatever of torch's is tracing,
exporting or transforming meanwhile.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch as th
from torch import nn
from torch.nn.modules import module as torch_modules

from thrust_pomdp.unmodified_classes import against_class, against_methods, remember

__all__ = [
    "Watch",
    "against_calls",
    "against_class",
    "against_kernels",
    "against_layer",
    "against_methods",
    "against_module",
    "against_transforms",
    "named",
    "remember",
]

#: Torch's recurrent layers.
LAYERS: tuple[type[nn.Module], ...] = (nn.LSTM, nn.GRU, nn.RNN)

for _cls in (*LAYERS, nn.Linear, nn.LayerNorm, nn.Tanh, nn.ReLU, nn.Flatten, nn.Sequential):
    remember(_cls)

#: The parameters of torch's modules that substitutes read.
_WEIGHTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("weight", "bias"),
    nn.LayerNorm: ("weight", "bias"),
}

#: Dicts that are empty as long as nobody hooks into every module there is.
_GLOBAL_HOOKS = tuple(
    hooks
    for name, hooks in vars(torch_modules).items()
    if name.startswith("_global") and name.endswith("hooks") and isinstance(hooks, dict)
)


def named(what: str, reason: str | None) -> str | None:
    """Say of what a reason is told; None where there is none."""
    return None if reason is None else f"{what}: {reason}"


def against_transforms() -> str | None:
    """Say what of torch's is watching or rewriting operations now.

    Traced, a compiled loop would become a constant; under a transform, a mode or autocast its
    numbers would not be those of torch's operations.
    """
    if th._C._get_tracing_state() is not None or th.compiler.is_compiling():
        return "torch is tracing or compiling"
    if th.compiler.is_exporting():
        return "torch is exporting"
    if th._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is active"
    if th.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    if th._C._len_torch_dispatch_stack() or th._C._len_torch_function_stack():
        return "a mode of torch's is active"
    return "autocast is on" if th._C._is_any_autocast_enabled() else None


def against_module(module: nn.Module, *kinds: type[nn.Module]) -> str | None:
    """Say why calling a module is not what its class in torch computes from its parameters.

    :param module: the module
    :param kinds: classes that it may be of, exactly
    """
    cls = type(module)
    if cls not in kinds:
        return f"{cls.__name__} is not {' or '.join(kind.__name__ for kind in kinds)} itself"
    if module._compiled_call_impl is not None:
        return f"the {cls.__name__} is compiled"
    if any(hooks_of(module)) or any(_GLOBAL_HOOKS):
        return f"the {cls.__name__} has hooks"
    reason = against_methods(module, ("forward", "__call__"), cls)
    if reason is None and cls in _WEIGHTS:
        reason = _against_names(module, _WEIGHTS[cls])
    return reason


def against_calls(parent: nn.Module) -> str | None:
    """Say which module of a whole is not simply called: it has hooks, or is compiled."""
    if any(_GLOBAL_HOOKS):
        return "all modules have hooks"
    for name, module in parent.named_modules():
        if any(hooks_of(module)):
            return named(name or type(module).__name__, "it has hooks")
        if module._compiled_call_impl is not None:
            return named(name or type(module).__name__, "it is compiled")
    return None


def hooks_of(module: nn.Module) -> tuple[dict[Any, Any], ...]:
    """Return the dicts of a module's hooks on calls."""
    return (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )


def _against_names(module: nn.Module, names: Sequence[str]) -> str | None:
    """Say which parameter is no longer where torch keeps it: pruned, or computed from others."""
    for name in names:
        if name not in module._parameters:
            return f"{name} of the {type(module).__name__} is no parameter of its own"
    return None


@functools.cache
def weight_names(layer: int, with_bias: bool) -> tuple[str, ...]:
    """Return torch's names of the weights of one recurrent layer, in torch's order."""
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if with_bias else _NO_BIAS
    return tuple(f"{kind}_l{layer}" for kind in kinds)


_NO_BIAS = ("weight_ih", "weight_hh")


def against_layer(rnn: nn.Module) -> str | None:
    """Say why a recurrent module is not what torch's functions compute from its weights.

    Its weights are then where torch declares them, in ``_parameters``: ``_flat_weights`` is a copy
    that only ``forward`` brings up to date.
    """
    reason = against_module(rnn, *LAYERS)
    if reason is not None:
        return reason
    layer: Any = rnn
    if layer.bidirectional or layer.proj_size:
        return f"the {type(rnn).__name__} is bidirectional or has projections"
    for number in range(layer.num_layers):
        reason = _against_names(rnn, weight_names(number, layer.bias))
        if reason is not None:
            return reason
    return None


def against_kernels(*tensors: th.Tensor) -> str | None:
    """Say why the compiled loops cannot work on some tensors."""
    for tensor in tensors:
        if type(tensor) is not th.Tensor and type(tensor) is not nn.Parameter:
            return f"a tensor is a {type(tensor).__name__}"
        if tensor.dtype is not th.float32:
            return f"numbers are {tensor.dtype}, the loops take torch.float32"
        if tensor.device.type != "cpu":
            return f"tensors are on {tensor.device}, the loops run on the CPU"
        if not tensor.is_contiguous():
            return "a tensor is not contiguous"
    return None


class Watch:
    """Notices whatever could make a module's prepared computation another one.

    That is: modules, parameters or hooks that were put in, taken out or exchanged, memory that a
    parameter was given, classes and methods that were replaced. What it costs must be little: it
    is asked at every step, and goes through lists that were made once.

    :param module: all of its modules are watched
    :param methods: its methods that the computation relies on
    :param attributes: its attributes likewise
    :param drawn_from: an object beside the modules, and its methods that the computation relies on
    :param viewed: parameters whose memory is read directly
    """

    def __init__(
        self,
        module: nn.Module,
        methods: Iterable[str],
        attributes: Iterable[str],
        drawn_from: tuple[object, Iterable[str]],
        viewed: Iterable[th.Tensor],
    ) -> None:
        modules = list(module.modules())
        held = [part for m in modules for part in (m._modules, m._parameters)]
        self._modules = modules
        self._empty = [
            *_GLOBAL_HOOKS,
            *(hooks for m in modules for hooks in hooks_of(m)),
            *(part for part in held if not part),
        ]
        self._held = [part for part in held if part]
        self._n_held = sum(map(len, self._held))
        self._holding = list(self._values())
        self._classes = list(map(type, modules))
        self._vars = [vars(m) for m in modules]
        self._n_vars = list(map(len, self._vars))
        self._viewed = list(viewed)
        self._pointers = list(map(th.Tensor.data_ptr, self._viewed))
        names = list(methods)
        self._of_class = [type(module)] * len(names), names
        self._methods = list(map(getattr, *self._of_class))
        self._names = list(attributes)
        self._look_up = vars(module).get
        self._attributes = list(map(self._look_up, self._names))
        self._vars_beside, self._methods_beside = vars(drawn_from[0]), frozenset(drawn_from[1])

    def _values(self) -> Iterable[Any]:
        values: Callable[[Any], Iterable[Any]] = dict.values
        return chain.from_iterable(map(values, self._held))

    def holds(self) -> bool:
        """Tell whether everything is as it was."""
        same = operator.is_
        return (
            not any(self._empty)
            and sum(map(len, self._held)) == self._n_held
            and all(map(same, self._values(), self._holding))
            and all(map(same, map(type, self._modules), self._classes))
            and list(map(len, self._vars)) == self._n_vars
            and list(map(th.Tensor.data_ptr, self._viewed)) == self._pointers
            and all(map(same, map(getattr, *self._of_class), self._methods))
            and all(map(same, map(self._look_up, self._names), self._attributes))
            and self._methods_beside.isdisjoint(self._vars_beside)
            and against_transforms() is None
        )

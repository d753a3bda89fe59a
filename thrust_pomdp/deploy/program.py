"""One step of an actor as plain data: named values, operations on them, and arrays of weights.

Every exported form is made of this and of nothing else, so that what they compute is written down
once. A value has the shape of one environment; those who run batches put an axis before it. What
the operations compute, :mod:`thrust_pomdp.deploy.numpy_actor` says in NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

#: Version of the data, in every file made of it.
FORMAT = 1


@dataclass(frozen=True)
class Port:
    """A value that comes in or goes out by a name of its own.

    :param name: outside
    :param value: inside
    :param kind: ``"obs"``, ``"blanked"``, ``"start"``, ``"previous_action"``,
        ``"previous_reward"``, ``"action_masks"`` or ``"noise"``; of outputs ``"action"`` or
        ``"extra"``
    :param key: of a Dict observation; None where there is no Dict
    """

    name: str
    value: str
    kind: str
    key: str | None = None


@dataclass(frozen=True)
class State:
    """A part of what is remembered from step to step.

    :param name: outside: ``name_in`` goes in, ``name_out`` comes out
    :param before: the value before the step, one for each layer
    :param after: likewise after the step
    :param has_layers: whether there is an axis of layers, ``[n_layers, n_envs, *shape]``; else
        ``[n_envs, *shape]``
    :param kind: ``"memory"`` of the actor, ``"critic"`` or ``"stack"``
    """

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    has_layers: bool
    kind: str


@dataclass(frozen=True)
class Operation:
    """One operation.

    :param kind: its name
    :param inputs: values; None for one that is left out
    :param outputs: values
    :param arrays: names of weights, by their part in it
    :param options: numbers and names
    """

    kind: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    arrays: dict[str, str]
    options: dict[str, Any]


@dataclass
class Program:
    """What an actor does in one step.

    :param shapes: of the values, of one environment
    :param dtypes: of the values, as NumPy names them
    :param modules: modules of a user's own that operations of the kind ``"module"`` call
    :param action: what the actions are: ``space``, ``sizes``, ``n``
    :param obs: what the observations are: ``is_dict``, and whether a zero is a ``guess`` for blank
    """

    inputs: list[Port] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    action: dict[str, Any] = field(default_factory=dict)
    obs: dict[str, Any] = field(default_factory=dict)

    def value(self, shape: Sequence[int], dtype: str = "float32") -> str:
        """Name a new value."""
        name = f"v{len(self.shapes)}"
        self.shapes[name] = tuple(int(size) for size in shape)
        self.dtypes[name] = dtype
        return name

    def input(
        self, name: str, kind: str, shape: Sequence[int], dtype: str, key: str | None = None
    ) -> str:
        """Add an input, and name its value."""
        value = self.value(shape, dtype)
        self.inputs.append(Port(name, value, kind, key))
        return value

    def state(
        self,
        name: str,
        before: Sequence[str],
        after: Sequence[str],
        kind: str,
        has_layers: bool = False,
    ) -> None:
        """Add a part of what is remembered; a name that is taken gets its kind before it."""
        if any(state.name == name for state in self.states):
            name = f"{kind}_{name}"
        self.states.append(State(name, tuple(before), tuple(after), has_layers, kind))

    def output(self, name: str, value: str, kind: str = "extra") -> None:
        """Let a value come out."""
        self.outputs.append(Port(name, value, kind))

    def array(self, numbers: Any, dtype: str = "float32") -> str:
        """Keep weights, and name them."""
        name = f"a{len(self.arrays)}"
        self.arrays[name] = np.ascontiguousarray(numbers, dtype=dtype)
        return name

    def add(
        self,
        kind: str,
        inputs: Sequence[str | None],
        shapes: Sequence[Sequence[int]],
        dtype: str | Sequence[str] = "float32",
        arrays: dict[str, str] | None = None,
        **options: Any,
    ) -> tuple[str, ...]:
        """Add an operation, and name its values.

        :param shapes: of each output
        :param dtype: of all outputs, or of each
        """
        dtypes = [dtype] * len(shapes) if isinstance(dtype, str) else dtype
        outputs = tuple(map(self.value, shapes, dtypes))
        self.operations.append(Operation(kind, tuple(inputs), outputs, arrays or {}, options))
        return outputs

    def find(self, kind: str) -> Port | None:
        """Return the input of a kind; None if there is none."""
        return next((port for port in self.inputs if port.kind == kind), None)

    def own_modules(self) -> list[str]:
        """Return the classes of modules that only torch's exporter can follow."""
        return sorted({type(users_own(module)).__name__ for module in self.modules.values()})

    def as_data(self) -> dict[str, Any]:
        """Return all but the arrays as what JSON can hold."""

        def port(p: Port) -> dict[str, Any]:
            shape, dtype = list(self.shapes[p.value]), self.dtypes[p.value]
            return {**vars(p), "shape": shape, "dtype": dtype}

        return {
            "format": FORMAT,
            "inputs": [port(p) for p in self.inputs],
            "states": [
                {
                    **vars(state),
                    "shape": list(self.shapes[state.before[0]]),
                    "dtype": self.dtypes[state.before[0]],
                }
                for state in self.states
            ],
            "operations": [vars(operation) for operation in self.operations],
            "outputs": [port(p) for p in self.outputs],
            "action": self.action,
            "obs": self.obs,
        }


def users_own(module: nn.Module) -> nn.Module:
    """Return what a user wrote of a module that is called through one of ours."""
    inner = getattr(module, "users", module)
    assert isinstance(inner, nn.Module)
    return inner

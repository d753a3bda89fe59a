"""An actor as an ONNX graph: one step of a batch, with the state going in and coming out.

Every operation becomes a few nodes, written here and not by torch's exporter, whose graph depends
on its version; that exporter is called for modules of a user's own alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from thrust_pomdp.deploy.onnx_builder import OPSET, GraphBuilder
from thrust_pomdp.deploy.onnx_operations import OPERATIONS
from thrust_pomdp.deploy.program import Program
from thrust_pomdp.errors import ArgumentError

#: Version of the file format of that time.
_IR_VERSION = 9


def onnx_model(program: Program, name: str) -> bytes:
    """Return the file.

    :raises ValueError: if the extra ``export`` is not installed, or torch cannot export a module of
        a user's own
    """
    import_onnx()
    from onnx import checker

    model = _Graph(program).model(name)
    checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def import_onnx() -> Any:
    """Import onnx.

    :raises ValueError: if it is not installed
    """
    try:
        import onnx
    except ImportError as error:
        raise ArgumentError(
            "path must end with .npz, .h or .js where onnx is not installed: pip install "
            "'thrust-pomdp[export]' for .onnx"
        ) from error
    return onnx


class _Graph(GraphBuilder):
    def model(self, name: str) -> Any:
        """Return ONNX's model."""
        program, helper = self.program, self.helper
        inputs, outputs = [], []
        for port in program.inputs:
            if port.kind == "blanked" and self.guesses():
                self._guess(port)
                continue
            if port.kind == "noise" and program.action["deterministic"]:
                continue
            value = program.shapes[port.value]
            self.rename(port.value, port.name)
            inputs.append(
                self._info(port.name, program.dtypes[port.value], self._axes(port, value))
            )
        for state in program.states:
            inputs.append(self._state_info(state, "in"))
            outputs.append(self._state_info(state, "out"))
            self._state_in(state)
        for operation in program.operations:
            OPERATIONS[operation.kind](self, operation)
        for state in program.states:
            self._state_out(state)
        made = []
        for port in program.outputs:
            self.node("Identity", [port.value], outputs=[port.name])
            shape = program.shapes[port.value]
            made.append(self._info(port.name, program.dtypes[port.value], ["batch", *shape]))
        graph = helper.make_graph(
            self.nodes, name, inputs, [*made, *outputs], list(self.constants.values())
        )
        opsets = {"": OPSET, **self.opsets}
        model = helper.make_model(
            graph,
            producer_name="thrust_pomdp",
            ir_version=_IR_VERSION,
            opset_imports=[helper.make_opsetid(*pair) for pair in sorted(opsets.items())],
        )
        helper.set_model_props(model, self._metadata())
        return model

    def _metadata(self) -> dict[str, str]:
        data = {**self.program.as_data(), "operations": []}
        return {"opset": str(OPSET), "program": json.dumps(data, separators=(",", ":"))}

    def _guess(self, port: Any) -> None:
        """Take what is zero in all numbers for blank."""
        obs = next(p for p in self.program.inputs if p.kind == "obs" and p.key == port.key)
        axes = self.constant(list(range(1, 1 + len(self.shape(obs.value)))))
        numbers = self.cast(obs.value, "float64")
        zeros = self.node("Equal", [numbers, self.constant(0.0, "float64")])
        count = self.cast(zeros, "int32")
        every = self.node("ReduceMin", [count, axes], keepdims=1)
        self.cast(every, "bool", [port.value])

    def _axes(self, port: Any, shape: Sequence[int]) -> list[int | str]:
        if port.kind == "blanked":  # a flag for all numbers of an observation, or one for each
            return ["batch", *(f"{port.name}_{axis}" for axis in range(len(shape)))]
        return ["batch", *shape]

    def _info(self, name: str, dtype: str, axes: Sequence[int | str]) -> Any:
        kind = self.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.helper.make_tensor_value_info(name, kind, list(axes))

    def _state_info(self, state: Any, end: str) -> Any:
        shape = self.program.shapes[state.before[0]]
        layers: list[int | str] = [len(state.before)] if state.has_layers else []
        axes = [*layers, "batch", *shape]
        return self._info(f"{state.name}_{end}", self.program.dtypes[state.before[0]], axes)

    def _state_in(self, state: Any) -> None:
        name = f"{state.name}_in"
        if not state.has_layers:
            self.rename(state.before[0], name)
        elif len(state.before) == 1:
            self.node("Squeeze", [name, self.constant([0])], outputs=[state.before[0]])
        else:
            for number, value in enumerate(state.before):
                self.node("Gather", [name, self.constant(number)], outputs=[value], axis=0)

    def _state_out(self, state: Any) -> None:
        name = f"{state.name}_out"
        if not state.has_layers:
            self.node("Identity", [state.after[0]], outputs=[name])
            return
        layers = [self.node("Unsqueeze", [value, self.constant([0])]) for value in state.after]
        if len(layers) == 1:
            self.nodes[-1].output[0] = name
        else:
            self.node("Concat", layers, outputs=[name], axis=0)

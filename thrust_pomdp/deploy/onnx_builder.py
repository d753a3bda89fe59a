"""Nodes, constants and weights of an ONNX graph that is being made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thrust_pomdp.deploy.program import Operation, Program

#: Version of ONNX's operators, which ONNX Runtime knows from 1.17 on.
OPSET = 20


class GraphBuilder:
    """What operations add nodes to.

    :param program: what the graph is to compute
    """

    def __init__(self, program: Program) -> None:
        from onnx import helper, numpy_helper

        self.program = program
        self.helper, self._numpy = helper, numpy_helper
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self._n_values = 0
        #: Graphs of modules that torch has exported.
        self.opsets: dict[str, int] = {}

    def _tensor(self, name: str, array: Any) -> Any:
        return self._numpy.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name)

    def rename(self, value: str, name: str) -> None:
        """Let a value of the program be what has another name here."""
        self.node("Identity", [name], outputs=[value])

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str] | None = None,
        n_outputs: int = 1,
        **options: Any,
    ) -> str:
        """Add a node; return its first output."""
        if outputs is None:
            outputs = [f"t{self._n_values + number}" for number in range(n_outputs)]
            self._n_values += n_outputs
        made = self.helper.make_node(kind, list(inputs), list(outputs), **options)
        self.nodes.append(made)
        return outputs[0]

    def constant(self, numbers: Any, dtype: str = "int64") -> str:
        """Return the name of a constant."""
        array = np.array(numbers, dtype)
        name = f"c_{dtype}_{'_'.join(map(str, array.shape))}_{array.tobytes().hex()}"
        if name not in self.constants:
            self.constants[name] = self._tensor(name, array)
        return name

    def weight(self, operation: Operation, part: str) -> str:
        """Return the name of an operation's weights."""
        name = operation.arrays[part]
        self.constants[name] = self._tensor(name, self.program.arrays[name])
        return name

    def shape(self, value: str | None) -> tuple[int, ...]:
        """Return the shape of a value, of one environment."""
        return self.program.shapes[value or ""]

    def dtype(self, value: str | None) -> str:
        """Return the type of a value."""
        return self.program.dtypes[value or ""]

    def cast(self, value: str, dtype: str, outputs: Sequence[str] | None = None) -> str:
        """Cast a value."""
        kind = self.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.node("Cast", [value], outputs, to=kind)

    def product(self, op: Operation, x: str, suffix: str = "") -> str:
        """Multiply by a matrix and add a bias."""
        weight = self.weight(op, f"weight{suffix}")
        inputs = [x, weight]
        if f"bias{suffix}" in op.arrays:
            inputs.append(self.weight(op, f"bias{suffix}"))
        return self.node("Gemm", inputs, transB=1)

    def guesses(self) -> bool:
        """Tell whether zeros are blank and nobody can say otherwise."""
        return bool(self.program.obs["guess"]) and not self.program.obs["told"]

    def is_deterministic(self) -> bool:
        """Tell whether actions are the most likely ones, whatever the noise."""
        return bool(self.program.action["deterministic"])

    def module(self, op: Operation) -> None:
        """Add what torch exports of a module of a user's own."""
        from thrust_pomdp.deploy.torch_export import exported_module

        program = self.program
        module = program.modules[op.options["module"]]
        shapes = [(program.shapes[x or ""], program.dtypes[x or ""]) for x in op.inputs]
        prefix = f"{op.options['module']}_"
        graph, opset = exported_module(module, shapes, prefix, OPSET)
        for tensor in graph.initializer:
            self.constants[tensor.name] = tensor
        for outer, inner in zip(op.inputs, graph.input, strict=True):
            self.node("Identity", [outer or ""], outputs=[inner.name])
        self.nodes.extend(graph.node)
        for outer, inner in zip(op.outputs, graph.output, strict=True):
            self.node("Identity", [inner.name], outputs=[outer])
        self.opsets.update(opset)

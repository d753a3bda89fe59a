"""An actor as an ONNX graph: one step of a batch, with the state going in and coming out.

Every operation becomes a few nodes, written here and not by torch's exporter, whose graph depends
on its version; that exporter is called for modules of a user's own alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thrust_pomdp.deploy.program import Operation, Program
from thrust_pomdp.errors import ArgumentError

#: Version of ONNX's operators, which ONNX Runtime knows from 1.17 on.
OPSET = 20
#: Version of the file format of that time.
_IR_VERSION = 9


def onnx_model(program: Program, name: str) -> bytes:
    """Return the file.

    :raises ValueError: if the extra ``export`` is not installed, or torch cannot export a module of
        a user's own
    """
    import_onnx()
    from onnx import checker

    model = _Graph(program, name).model()
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


class _Graph:
    def __init__(self, program: Program, name: str) -> None:
        from onnx import TensorProto, helper, numpy_helper

        self._program, self._name = program, name
        self._helper, self._numpy, self._types = helper, numpy_helper, TensorProto
        self.nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._n_values = 0
        #: Graphs of modules that torch has exported.
        self._opsets: dict[str, int] = {}

    def model(self) -> Any:
        """Return ONNX's model."""
        program, helper = self._program, self._helper
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
            _OPERATIONS[operation.kind](self, operation)
        for state in program.states:
            self._state_out(state)
        made = []
        for port in program.outputs:
            self.node("Identity", [port.value], outputs=[port.name])
            shape = program.shapes[port.value]
            made.append(self._info(port.name, program.dtypes[port.value], ["batch", *shape]))
        graph = helper.make_graph(
            self.nodes, self._name, inputs, [*made, *outputs], list(self._constants.values())
        )
        opsets = {"": OPSET, **self._opsets}
        model = helper.make_model(
            graph,
            producer_name="thrust_pomdp",
            ir_version=_IR_VERSION,
            opset_imports=[helper.make_opsetid(*pair) for pair in sorted(opsets.items())],
        )
        helper.set_model_props(model, self._metadata())
        return model

    def _metadata(self) -> dict[str, str]:
        data = {**self._program.as_data(), "operations": []}
        return {"opset": str(OPSET), "program": json.dumps(data, separators=(",", ":"))}

    def _guess(self, port: Any) -> None:
        """Take what is zero in all numbers for blank."""
        obs = next(p for p in self._program.inputs if p.kind == "obs" and p.key == port.key)
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

    def _tensor(self, name: str, array: Any) -> Any:
        return self._numpy.from_array(np.ascontiguousarray(array).reshape(np.shape(array)), name)

    def _info(self, name: str, dtype: str, axes: Sequence[int | str]) -> Any:
        kind = self._helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self._helper.make_tensor_value_info(name, kind, list(axes))

    def _state_info(self, state: Any, end: str) -> Any:
        shape = self._program.shapes[state.before[0]]
        layers: list[int | str] = [len(state.before)] if state.has_layers else []
        axes = [*layers, "batch", *shape]
        return self._info(f"{state.name}_{end}", self._program.dtypes[state.before[0]], axes)

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

    # What operations call.

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
        made = self._helper.make_node(kind, list(inputs), list(outputs), **options)
        self.nodes.append(made)
        return outputs[0]

    def constant(self, numbers: Any, dtype: str = "int64") -> str:
        """Return the name of a constant."""
        array = np.array(numbers, dtype)
        name = f"c_{dtype}_{'_'.join(map(str, array.shape))}_{array.tobytes().hex()}"
        if name not in self._constants:
            self._constants[name] = self._tensor(name, array)
        return name

    def weight(self, operation: Operation, part: str) -> str:
        """Return the name of an operation's weights."""
        name = operation.arrays[part]
        self._constants[name] = self._tensor(name, self._program.arrays[name])
        return name

    def shape(self, value: str | None) -> tuple[int, ...]:
        """Return the shape of a value, of one environment."""
        return self._program.shapes[value or ""]

    def dtype(self, value: str | None) -> str:
        """Return the type of a value."""
        return self._program.dtypes[value or ""]

    def cast(self, value: str, dtype: str, outputs: Sequence[str] | None = None) -> str:
        """Cast a value."""
        kind = self._helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
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
        return bool(self._program.obs["guess"]) and not self._program.obs["told"]

    def is_deterministic(self) -> bool:
        """Tell whether actions are the most likely ones, whatever the noise."""
        return bool(self._program.action["deterministic"])

    def module(self, op: Operation) -> None:
        """Add what torch exports of a module of a user's own."""
        from thrust_pomdp.deploy.torch_export import exported_module

        program = self._program
        module = program.modules[op.options["module"]]
        shapes = [(program.shapes[x or ""], program.dtypes[x or ""]) for x in op.inputs]
        prefix = f"{op.options['module']}_"
        graph, opset = exported_module(module, shapes, prefix, OPSET)
        for tensor in graph.initializer:
            self._constants[tensor.name] = tensor
        for outer, inner in zip(op.inputs, graph.input, strict=True):
            self.node("Identity", [outer or ""], outputs=[inner.name])
        self.nodes.extend(graph.node)
        for outer, inner in zip(op.outputs, graph.output, strict=True):
            self.node("Identity", [inner.name], outputs=[outer])
        self._opsets.update(opset)


_FUNCTIONS = {
    "tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid", "softsign": "Softsign", "elu": "Elu",
    "leaky_relu": "LeakyRelu",
}  # fmt: skip


def _activation(graph: _Graph, op: Operation) -> None:
    function, (x,) = op.options["function"], op.inputs
    if function == "silu":
        graph.node("Mul", [str(x), graph.node("Sigmoid", [str(x)])], op.outputs)
        return
    slope = {"alpha": op.options["slope"]} if "slope" in op.options else {}
    graph.node(_FUNCTIONS[function], [str(x)], op.outputs, **slope)


def _blank(graph: _Graph, op: Operation) -> None:
    x, flags = map(str, op.inputs)
    graph.node("Where", [flags, graph.weight(op, "blank"), x], op.outputs)


def _normalize(graph: _Graph, op: Operation) -> None:
    x, flags = op.inputs
    precision = op.options["precision"]
    numbers = graph.cast(str(x), precision)
    centred = graph.node("Sub", [numbers, graph.weight(op, "mean")])
    scaled = graph.node("Div", [centred, graph.weight(op, "std")])
    clip = op.options["clip"]
    bounds = [graph.constant(bound, precision) for bound in (-clip, clip)]
    clipped = graph.node("Clip", [scaled, *bounds])
    if flags is None:
        graph.cast(clipped, "float32", op.outputs)
        return
    shown = graph.cast(clipped, "float32")
    zero = graph.constant(0.0, "float32")
    graph.node("Where", [str(flags), zero, shown], op.outputs)


def _one_hot(graph: _Graph, op: Operation) -> None:
    sizes, starts = op.options["sizes"], op.options["starts"]
    (x,) = op.inputs
    rows = graph.node("Reshape", [graph.cast(str(x), "int64"), graph.constant([-1, len(sizes)])])
    # Each number stands beside all values that its place may have.
    places = np.repeat(np.arange(len(sizes)), sizes)
    values = np.concatenate(
        [np.arange(size) + start for size, start in zip(sizes, starts, strict=True)]
    )
    spread = graph.node("Gather", [rows, graph.constant(places)], axis=1)
    marks = graph.node("Equal", [spread, graph.constant(values)])
    graph.cast(marks, "float32", op.outputs)


def _reset(graph: _Graph, op: Operation) -> None:
    x, start = map(str, op.inputs)
    axes = graph.constant(list(range(1, 1 + len(graph.shape(x)))))
    flags = graph.node("Unsqueeze", [start, axes])
    graph.node("Where", [flags, graph.constant(0, graph.dtype(x)), x], op.outputs)


def _cast(graph: _Graph, op: Operation) -> None:
    graph.cast(str(op.inputs[0]), "float32", op.outputs)


def _concat(graph: _Graph, op: Operation) -> None:
    graph.node("Concat", list(map(str, op.inputs)), op.outputs, axis=op.options["axis"] + 1)


def _slice(graph: _Graph, op: Operation) -> None:
    bounds = [graph.constant([op.options[name]]) for name in ("begin", "end")]
    axis = graph.constant([op.options["axis"] + 1])
    graph.node("Slice", [str(op.inputs[0]), *bounds, axis], op.outputs)


def _divide(graph: _Graph, op: Operation) -> None:
    graph.node("Div", [str(op.inputs[0]), graph.constant(op.options["by"], "float32")], op.outputs)


def _reshaped(graph: _Graph, op: Operation) -> None:
    shape = graph.constant([-1, *graph.shape(op.outputs[0])])
    graph.node("Reshape", [str(op.inputs[0]), shape], op.outputs)


def _transpose(graph: _Graph, op: Operation) -> None:
    axes = [0, *(axis + 1 for axis in op.options["axes"])]
    graph.node("Transpose", [str(op.inputs[0])], op.outputs, perm=axes)


def _dense(graph: _Graph, op: Operation) -> None:
    graph.product(op, str(op.inputs[0]))
    graph.nodes[-1].output[0] = op.outputs[0]


def _conv(graph: _Graph, op: Operation) -> None:
    inputs = [str(op.inputs[0]), *(graph.weight(op, part) for part in op.arrays)]
    graph.node("Conv", inputs, op.outputs, strides=op.options["stride"])


def _layer_norm(graph: _Graph, op: Operation) -> None:
    size = graph.shape(op.inputs[0])
    scale = (
        graph.weight(op, "weight")
        if "weight" in op.arrays
        else graph.constant(np.ones(size), "float32")
    )
    inputs = [str(op.inputs[0]), scale]
    if "bias" in op.arrays:
        inputs.append(graph.weight(op, "bias"))
    epsilon = op.options["epsilon"]
    graph.node("LayerNormalization", inputs, op.outputs, axis=-1, epsilon=epsilon)


def _split(graph: _Graph, value: str, n_parts: int) -> list[str]:
    first = graph.node("Split", [value], n_outputs=n_parts, axis=1, num_outputs=n_parts)
    return [f"t{int(first[1:]) + number}" for number in range(n_parts)]


def _lstm(graph: _Graph, op: Operation) -> None:
    x, h, c = map(str, op.inputs)
    total = graph.node("Add", [graph.product(op, x, "_ih"), graph.product(op, h, "_hh")])
    enters, keeps, new, told = _split(graph, total, 4)
    kept = graph.node("Mul", [graph.node("Sigmoid", [keeps]), c])
    added = graph.node("Mul", [graph.node("Sigmoid", [enters]), graph.node("Tanh", [new])])
    cell = graph.node("Add", [kept, added], [op.outputs[1]])
    graph.node("Mul", [graph.node("Sigmoid", [told]), graph.node("Tanh", [cell])], [op.outputs[0]])


def _gru(graph: _Graph, op: Operation) -> None:
    x, h = map(str, op.inputs)
    reset, keeps, new = _split(graph, graph.product(op, x, "_ih"), 3)
    reset_h, keeps_h, new_h = _split(graph, graph.product(op, h, "_hh"), 3)
    reset = graph.node("Sigmoid", [graph.node("Add", [reset, reset_h])])
    keeps = graph.node("Sigmoid", [graph.node("Add", [keeps, keeps_h])])
    new = graph.node("Tanh", [graph.node("Add", [new, graph.node("Mul", [reset, new_h])])])
    change = graph.node("Mul", [keeps, graph.node("Sub", [h, new])])
    graph.node("Add", [new, change], op.outputs)


def _rnn(graph: _Graph, op: Operation) -> None:
    x, h = map(str, op.inputs)
    total = graph.node("Add", [graph.product(op, x, "_ih"), graph.product(op, h, "_hh")])
    graph.node(_FUNCTIONS[op.options["function"]], [total], op.outputs)


def _choices(graph: _Graph, op: Operation) -> None:
    x, noise, masks = op.inputs
    logits, sizes = str(x), op.options["sizes"]
    if masks is not None:
        logits = graph.node("Where", [masks, logits, graph.constant(-np.inf, "float32")])
    borders = np.cumsum([0, *sizes])
    chosen = []
    for place in range(len(sizes)):
        factor = logits
        if len(sizes) > 1:
            ends = [graph.constant([int(end)]) for end in borders[place : place + 2]]
            factor = graph.node("Slice", [logits, *ends, graph.constant([1])])
        best = graph.node("ArgMax", [factor], axis=1, keepdims=1)
        if graph.is_deterministic():
            chosen.append(best)
            continue
        uniform = str(noise)
        if len(sizes) > 1:
            uniform = graph.node("Gather", [str(noise), graph.constant([place])], axis=1)
        drawn = _drawn(graph, factor, uniform)
        chosen.append(graph.node("Where", [graph.node("IsNaN", [uniform]), best, drawn]))
    joined = graph.node("Concat", chosen, axis=1) if len(chosen) > 1 else chosen[0]
    graph.cast(joined, graph.dtype(op.outputs[0]), op.outputs)


def _drawn(graph: _Graph, logits: str, uniform: str) -> str:
    """Choose by where a uniform number falls on the cumulated probabilities, ``[n, 1]``."""
    log_probs = graph.node("LogSoftmax", [logits], axis=1)
    probabilities = graph.cast(graph.node("Exp", [log_probs]), "float64")
    sums = graph.node("CumSum", [probabilities, graph.constant(1)])
    total = graph.node("ReduceMax", [sums, graph.constant([1])], keepdims=1)
    falls = graph.node("Mul", [graph.cast(uniform, "float64"), total])
    below = graph.node(
        "And",
        [graph.node("LessOrEqual", [sums, falls]), graph.node("Less", [sums, total])],
    )
    count = graph.cast(below, "int64")
    return graph.node("ReduceSum", [count, graph.constant([1])], keepdims=1)


def _bits(graph: _Graph, op: Operation) -> None:
    x, noise, masks = op.inputs
    likely = graph.node("Greater", [str(x), graph.constant(0.0, "float32")])
    ones = likely
    if not graph.is_deterministic():
        drawn = graph.node("Less", [str(noise), graph.node("Sigmoid", [str(x)])])
        ones = _if_else(graph, graph.node("IsNaN", [str(noise)]), likely, drawn)
    if masks is not None:
        n_bits = graph.shape(x)[0]
        columns = [graph.constant(list(range(bit, 2 * n_bits, 2))) for bit in (0, 1)]
        may = [graph.node("Gather", [masks, column], axis=1) for column in columns]
        ones = _if_else(graph, graph.node("And", may), ones, may[1])
    graph.cast(ones, graph.dtype(op.outputs[0]), op.outputs)


def _if_else(graph: _Graph, flag: str, one: str, other: str) -> str:
    # A Where of bools is not known to every version of ONNX Runtime.
    first = graph.node("And", [flag, one])
    second = graph.node("And", [graph.node("Not", [flag]), other])
    return graph.node("Or", [first, second])


def _gaussian(graph: _Graph, op: Operation) -> None:
    mean, noise = map(str, op.inputs)
    if graph.is_deterministic():
        graph.node("Identity", [mean], op.outputs)
        return
    told = graph.node(
        "Where", [graph.node("IsNaN", [noise]), graph.constant(0.0, "float32"), noise]
    )
    graph.node("Add", [mean, graph.node("Mul", [told, graph.weight(op, "std")])], op.outputs)


def _bounded(graph: _Graph, op: Operation, value: str) -> None:
    above = graph.node("Max", [value, graph.weight(op, "low")])
    graph.node("Min", [above, graph.weight(op, "high")], op.outputs)


def _scale(graph: _Graph, op: Operation) -> None:
    centred = graph.node("Sub", [str(op.inputs[0]), graph.weight(op, "centre")])
    _bounded(graph, op, graph.node("Div", [centred, graph.weight(op, "width")]))


def _unscale(graph: _Graph, op: Operation) -> None:
    shifted = graph.node("Add", [str(op.inputs[0]), graph.constant(1.0, "float32")])
    half = graph.node("Mul", [shifted, graph.constant(0.5, "float32")])
    low, high = graph.weight(op, "low"), graph.weight(op, "high")
    scaled = graph.node("Mul", [half, graph.node("Sub", [high, low])])
    graph.node("Add", [low, scaled], op.outputs)


def _constant(graph: _Graph, op: Operation) -> None:
    nothing = graph.node("Mul", [str(op.inputs[0]), graph.constant(0.0, "float32")])
    graph.node("Add", [nothing, graph.weight(op, "numbers")], op.outputs)


_OPERATIONS: dict[str, Callable[[_Graph, Operation], None]] = {
    "activation": _activation,
    "bits": _bits,
    "blank": _blank,
    "cast": _cast,
    "choices": _choices,
    "clip": lambda graph, op: _bounded(graph, op, str(op.inputs[0])),
    "concat": _concat,
    "constant": _constant,
    "conv": _conv,
    "dense": _dense,
    "divide": _divide,
    "flatten": _reshaped,
    "gaussian": _gaussian,
    "gru": _gru,
    "layer_norm": _layer_norm,
    "lstm": _lstm,
    "module": lambda graph, op: graph.module(op),
    "normalize": _normalize,
    "one_hot": _one_hot,
    "reset": _reset,
    "reshape": _reshaped,
    "rnn": _rnn,
    "scale": _scale,
    "slice": _slice,
    "transpose": _transpose,
    "unscale": _unscale,
}

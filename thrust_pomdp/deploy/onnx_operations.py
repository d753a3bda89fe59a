"""The operations of a program as nodes of ONNX."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from thrust_pomdp.deploy.onnx_builder import GraphBuilder
from thrust_pomdp.deploy.program import Operation

_FUNCTIONS = {
    "tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid", "softsign": "Softsign", "elu": "Elu",
    "leaky_relu": "LeakyRelu",
}  # fmt: skip


def _activation(graph: GraphBuilder, op: Operation) -> None:
    function, (x,) = op.options["function"], op.inputs
    if function == "silu":
        graph.node("Mul", [str(x), graph.node("Sigmoid", [str(x)])], op.outputs)
        return
    if function == "gelu":
        _gelu(graph, op)
        return
    slope = {"alpha": op.options["slope"]} if "slope" in op.options else {}
    graph.node(_FUNCTIONS[function], [str(x)], op.outputs, **slope)


def _gelu(graph: GraphBuilder, op: Operation) -> None:
    # ONNX has an operator for it in later versions of its operators only.
    x = str(op.inputs[0])

    def times(left: str, right: str | float) -> str:
        other = right if isinstance(right, str) else graph.constant(right, "float32")
        return graph.node("Mul", [left, other])

    inner = graph.node("Add", [x, times(times(times(x, x), x), 0.044715)])
    bent = graph.node("Tanh", [times(inner, 0.7978845608028654)])
    above = graph.node("Add", [bent, graph.constant(1.0, "float32")])
    graph.node("Mul", [times(x, 0.5), above], op.outputs)


def _blank(graph: GraphBuilder, op: Operation) -> None:
    x, flags = map(str, op.inputs)
    graph.node("Where", [flags, graph.weight(op, "blank"), x], op.outputs)


def _normalize(graph: GraphBuilder, op: Operation) -> None:
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


def _one_hot(graph: GraphBuilder, op: Operation) -> None:
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


def _reset(graph: GraphBuilder, op: Operation) -> None:
    x, start = map(str, op.inputs)
    flags = start
    if graph.shape(x):
        axes = graph.constant(list(range(1, 1 + len(graph.shape(x)))))
        flags = graph.node("Unsqueeze", [start, axes])
    graph.node("Where", [flags, graph.constant(0, graph.dtype(x)), x], op.outputs)


def _cast(graph: GraphBuilder, op: Operation) -> None:
    graph.cast(str(op.inputs[0]), "float32", op.outputs)


def _concat(graph: GraphBuilder, op: Operation) -> None:
    graph.node("Concat", list(map(str, op.inputs)), op.outputs, axis=op.options["axis"] + 1)


def _slice(graph: GraphBuilder, op: Operation) -> None:
    bounds = [graph.constant([op.options[name]]) for name in ("begin", "end")]
    axis = graph.constant([op.options["axis"] + 1])
    graph.node("Slice", [str(op.inputs[0]), *bounds, axis], op.outputs)


def _divide(graph: GraphBuilder, op: Operation) -> None:
    graph.node("Div", [str(op.inputs[0]), graph.constant(op.options["by"], "float32")], op.outputs)


def _reshaped(graph: GraphBuilder, op: Operation) -> None:
    shape = graph.constant([-1, *graph.shape(op.outputs[0])])
    graph.node("Reshape", [str(op.inputs[0]), shape], op.outputs)


def _transpose(graph: GraphBuilder, op: Operation) -> None:
    axes = [0, *(axis + 1 for axis in op.options["axes"])]
    graph.node("Transpose", [str(op.inputs[0])], op.outputs, perm=axes)


def _dense(graph: GraphBuilder, op: Operation) -> None:
    graph.product(op, str(op.inputs[0]))
    graph.nodes[-1].output[0] = op.outputs[0]


def _conv(graph: GraphBuilder, op: Operation) -> None:
    inputs = [str(op.inputs[0]), *(graph.weight(op, part) for part in op.arrays)]
    graph.node("Conv", inputs, op.outputs, strides=op.options["stride"])


def _layer_norm(graph: GraphBuilder, op: Operation) -> None:
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


def _split(graph: GraphBuilder, value: str, n_parts: int) -> list[str]:
    first = graph.node("Split", [value], n_outputs=n_parts, axis=1, num_outputs=n_parts)
    return [f"t{int(first[1:]) + number}" for number in range(n_parts)]


def _lstm(graph: GraphBuilder, op: Operation) -> None:
    x, h, c = map(str, op.inputs)
    total = graph.node("Add", [graph.product(op, x, "_ih"), graph.product(op, h, "_hh")])
    enters, keeps, new, told = _split(graph, total, 4)
    kept = graph.node("Mul", [graph.node("Sigmoid", [keeps]), c])
    added = graph.node("Mul", [graph.node("Sigmoid", [enters]), graph.node("Tanh", [new])])
    cell = graph.node("Add", [kept, added], [op.outputs[1]])
    graph.node("Mul", [graph.node("Sigmoid", [told]), graph.node("Tanh", [cell])], [op.outputs[0]])


def _gru(graph: GraphBuilder, op: Operation) -> None:
    x, h = map(str, op.inputs)
    reset, keeps, new = _split(graph, graph.product(op, x, "_ih"), 3)
    reset_h, keeps_h, new_h = _split(graph, graph.product(op, h, "_hh"), 3)
    reset = graph.node("Sigmoid", [graph.node("Add", [reset, reset_h])])
    keeps = graph.node("Sigmoid", [graph.node("Add", [keeps, keeps_h])])
    new = graph.node("Tanh", [graph.node("Add", [new, graph.node("Mul", [reset, new_h])])])
    change = graph.node("Mul", [keeps, graph.node("Sub", [h, new])])
    graph.node("Add", [new, change], op.outputs)


def _rnn(graph: GraphBuilder, op: Operation) -> None:
    x, h = map(str, op.inputs)
    total = graph.node("Add", [graph.product(op, x, "_ih"), graph.product(op, h, "_hh")])
    graph.node(_FUNCTIONS[op.options["function"]], [total], op.outputs)


def _add(graph: GraphBuilder, op: Operation) -> None:
    graph.node("Add", list(map(str, op.inputs)), op.outputs)


def _glu(graph: GraphBuilder, op: Operation) -> None:
    shown, gate = _split(graph, str(op.inputs[0]), 2)
    graph.node("Mul", [shown, graph.node("Sigmoid", [gate])], op.outputs)


def _min_gru(graph: GraphBuilder, op: Operation) -> None:
    gates, h = map(str, op.inputs)
    gate, new = _split(graph, gates, 2)
    keep = graph.node("Sigmoid", [graph.node("Neg", [gate])])
    added = graph.node("Mul", [graph.node("Sigmoid", [gate]), new])
    graph.node("Add", [graph.node("Mul", [keep, h]), added], op.outputs)


def _lru(graph: GraphBuilder, op: Operation) -> None:
    added, h = map(str, op.inputs)
    a, b = np.split(graph.program.arrays[op.arrays["factor"]], 2)
    c, d = _split(graph, h, 2)

    def times(numbers: object, value: str) -> str:
        return graph.node("Mul", [graph.constant(numbers, "float32"), value])

    real = graph.node("Sub", [times(a, c), times(b, d)])
    imaginary = graph.node("Add", [times(a, d), times(b, c)])
    kept = graph.node("Concat", [real, imaginary], axis=1)
    graph.node("Add", [kept, added], op.outputs)


def _count(graph: GraphBuilder, op: Operation) -> None:
    more = graph.node("Add", [str(op.inputs[0]), graph.constant(1)])
    graph.node("Min", [more, graph.constant(op.options["most"])], op.outputs)


def _attention(graph: GraphBuilder, op: Operation) -> None:
    x, count = map(str, op.inputs)
    n_steps, size = graph.shape(x)
    head_size = graph.program.arrays[op.arrays["content_bias"]].shape[1]
    one, two = graph.constant([1]), graph.constant([2])
    norm = [x, graph.weight(op, "weight"), graph.weight(op, "bias")]
    epsilon = op.options["epsilon"]
    steps = graph.node("LayerNormalization", norm, axis=-1, epsilon=epsilon)
    last = graph.node("Gather", [steps, graph.constant(n_steps - 1)], axis=1)
    # Products are of rows [n, heads, 1, a] and matrices [heads, a, b].
    last = graph.node("Unsqueeze", [last, graph.constant([1, 2])])
    by_head = graph.node("Transpose", [graph.weight(op, "query")], perm=[0, 2, 1])
    query = graph.node("MatMul", [last, by_head])

    def biased(name: str) -> str:
        bias = graph.node("Unsqueeze", [graph.weight(op, name), one])
        return graph.node("Add", [query, bias])

    looked_for = graph.node("MatMul", [biased("content_bias"), graph.weight(op, "key")])
    steps = graph.node("Unsqueeze", [steps, one])
    turned = graph.node("Transpose", [steps], perm=[0, 1, 3, 2])
    scores = graph.node("MatMul", [looked_for, turned])
    by_distance = graph.node("MatMul", [biased("position_bias"), graph.weight(op, "positions")])
    scores = graph.node("Add", [scores, by_distance])
    scores = graph.node("Div", [scores, graph.constant(np.sqrt(head_size), "float32")])
    age = graph.constant(np.arange(n_steps)[::-1])
    unseen = graph.node("Greater", [age, graph.node("Unsqueeze", [count, one])])
    unseen = graph.node("Unsqueeze", [unseen, graph.constant([1, 2])])
    scores = graph.node("Where", [unseen, graph.constant(-np.inf, "float32"), scores])
    seen = graph.node("MatMul", [graph.node("Softmax", [scores], axis=3), steps])
    by_head = graph.node("Transpose", [graph.weight(op, "value")], perm=[0, 2, 1])
    values = graph.node("Squeeze", [graph.node("MatMul", [seen, by_head]), two])
    graph.node("Reshape", [values, graph.constant([-1, size])], op.outputs)


def _gate(graph: GraphBuilder, op: Operation) -> None:
    stream, update = map(str, op.inputs)

    def product(x: str, part: str) -> str:
        return graph.node("Gemm", [x, graph.weight(op, part)], transB=1)

    reset, change, new = _split(graph, product(update, "of_update"), 3)
    reset_by_stream, change_by_stream = _split(graph, product(stream, "of_stream"), 2)
    reset = graph.node("Sigmoid", [graph.node("Add", [reset, reset_by_stream])])
    change = graph.node("Sub", [graph.node("Add", [change, change_by_stream]),
                                graph.weight(op, "bias")])  # fmt: skip
    change = graph.node("Sigmoid", [change])
    kept = product(graph.node("Mul", [reset, stream]), "of_reset")
    new = graph.node("Tanh", [graph.node("Add", [new, kept])])
    taken = graph.node("Mul", [change, graph.node("Sub", [new, stream])])
    graph.node("Add", [stream, taken], op.outputs)


def _choices(graph: GraphBuilder, op: Operation) -> None:
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


def _drawn(graph: GraphBuilder, logits: str, uniform: str) -> str:
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


def _bits(graph: GraphBuilder, op: Operation) -> None:
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


def _if_else(graph: GraphBuilder, flag: str, one: str, other: str) -> str:
    # A Where of bools is not known to every version of ONNX Runtime.
    first = graph.node("And", [flag, one])
    second = graph.node("And", [graph.node("Not", [flag]), other])
    return graph.node("Or", [first, second])


def _gaussian(graph: GraphBuilder, op: Operation) -> None:
    mean, noise = map(str, op.inputs)
    if graph.is_deterministic():
        graph.node("Identity", [mean], op.outputs)
        return
    told = graph.node(
        "Where", [graph.node("IsNaN", [noise]), graph.constant(0.0, "float32"), noise]
    )
    graph.node("Add", [mean, graph.node("Mul", [told, graph.weight(op, "std")])], op.outputs)


def _bounded(graph: GraphBuilder, op: Operation, value: str) -> None:
    above = graph.node("Max", [value, graph.weight(op, "low")])
    graph.node("Min", [above, graph.weight(op, "high")], op.outputs)


def _scale(graph: GraphBuilder, op: Operation) -> None:
    centred = graph.node("Sub", [str(op.inputs[0]), graph.weight(op, "centre")])
    _bounded(graph, op, graph.node("Div", [centred, graph.weight(op, "width")]))


def _unscale(graph: GraphBuilder, op: Operation) -> None:
    shifted = graph.node("Add", [str(op.inputs[0]), graph.constant(1.0, "float32")])
    half = graph.node("Mul", [shifted, graph.constant(0.5, "float32")])
    low, high = graph.weight(op, "low"), graph.weight(op, "high")
    scaled = graph.node("Mul", [half, graph.node("Sub", [high, low])])
    graph.node("Add", [low, scaled], op.outputs)


def _constant(graph: GraphBuilder, op: Operation) -> None:
    nothing = graph.node("Mul", [str(op.inputs[0]), graph.constant(0.0, "float32")])
    graph.node("Add", [nothing, graph.weight(op, "numbers")], op.outputs)


#: What adds an operation to a graph, by its kind.
OPERATIONS: dict[str, Callable[[GraphBuilder, Operation], None]] = {
    "activation": _activation,
    "attention": _attention,
    "add": _add,
    "bits": _bits,
    "blank": _blank,
    "cast": _cast,
    "choices": _choices,
    "clip": lambda graph, op: _bounded(graph, op, str(op.inputs[0])),
    "concat": _concat,
    "constant": _constant,
    "conv": _conv,
    "count": _count,
    "dense": _dense,
    "divide": _divide,
    "flatten": _reshaped,
    "gate": _gate,
    "gaussian": _gaussian,
    "glu": _glu,
    "gru": _gru,
    "layer_norm": _layer_norm,
    "lru": _lru,
    "lstm": _lstm,
    "min_gru": _min_gru,
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

"""The operations of a program in C; ``@`` stands for the name of the actor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from thrust_pomdp.deploy.program import Operation, Program

#: Functions that the operations call.
HELPERS = """
static inline float @_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The most likely value, or where a number from [0, 1) falls on the cumulated probabilities. */
static inline int32_t @_choice(const float *x, int n, const uint8_t *mask, const float *noise)
{
    int best = -1;
    float sum = 0.0f;
    double total = 0.0, running = 0.0;
    for (int i = 0; i < n; i++)
        if ((!mask || mask[i]) && (best < 0 || x[i] > x[best])) best = i;
    if (best < 0) return 0;
    if (!noise) return best;
    for (int i = 0; i < n; i++)
        if (!mask || mask[i]) sum += expf(x[i] - x[best]);
    sum = logf(sum);
    for (int i = 0; i < n; i++)
        if (!mask || mask[i]) total += (double)expf(x[i] - x[best] - sum);
    for (int i = 0; i < n; i++) {
        if (!mask || mask[i]) running += (double)expf(x[i] - x[best] - sum);
        if (running > (double)*noise * total || running >= total) return i;
    }
    return best;
}
"""

#: Activations of a number ``x``; ``{slope}`` where there is one.
_ACTIVATIONS = {
    "gelu": "0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)))",
    "tanh": "tanhf(x)",
    "relu": "x > 0.0f ? x : 0.0f",
    "sigmoid": "@_sigmoid(x)",
    "silu": "x * @_sigmoid(x)",
    "softsign": "x / (1.0f + fabsf(x))",
    "elu": "x > 0.0f ? x : {slope} * expm1f(x)",
    "leaky_relu": "x > 0.0f ? x : {slope} * x",
}

Lines = list[str]


def operation_lines(program: Program, operation: Operation) -> Lines:
    """Return the statements of an operation."""
    lines = [
        f"{_type_of(program, value)} {value}[{_size(program, value)}];"
        for value in operation.outputs
    ]
    return [*lines, *_OPERATIONS[operation.kind](program, operation)]


def _type_of(program: Program, value: str) -> str:
    dtype = program.dtypes[value]
    if value == program.action["value"] or any(
        port.kind == "action" and port.value == value for port in program.outputs
    ):
        return "float" if program.action["space"] == "Box" else "int32_t"
    return {"float32": "float", "float64": "double", "bool": "uint8_t"}.get(dtype, f"{dtype}_t")


def _size(program: Program, value: str | None) -> int:
    return math.prod(program.shapes[value or ""])


def _each(size: int, statement: str) -> str:
    return f"for (int i = 0; i < {size}; i++) {statement}"


def _map(expression: str) -> Callable[[Program, Operation], Lines]:
    """Return what makes each number of one: of ``x``, arrays by ``{part}`` and options."""

    def lines(program: Program, op: Operation) -> Lines:
        (output,) = op.outputs
        arrays = {part: f"@_{name}[i]" for part, name in op.arrays.items()}
        options = {name: _number(option) for name, option in op.options.items()}
        made = expression.format(**arrays, **options)
        kind = _type_of(program, op.inputs[0] or "")
        size = _size(program, output)
        return [_each(size, f"{{ const {kind} x = {op.inputs[0]}[i]; {output}[i] = {made}; }}")]

    return lines


def _number(option: Any) -> str:
    return f"{option!r}f" if isinstance(option, float) else str(option)


def _activation(program: Program, op: Operation) -> Lines:
    expression = _ACTIVATIONS[op.options["function"]]
    return _map(expression)(program, op)


def _blank(program: Program, op: Operation) -> Lines:
    (x, flags), (y,) = op.inputs, op.outputs
    value = f"{flags} && {flags}[i] ? @_{op.arrays['blank']}[i] : {x}[i]"
    return [_each(_size(program, y), f"{y}[i] = {value};")]


def _normalize(program: Program, op: Operation) -> Lines:
    (x, flags), (y,) = op.inputs, op.outputs
    is_double = op.options["precision"] == "float64"
    kind, clip = (
        ("double", op.options["clip"]) if is_double else ("float", f"{op.options['clip']}f")
    )
    mean, std = (f"@_{op.arrays[name]}[i]" for name in ("mean", "std"))
    lines = [
        f"for (int i = 0; i < {_size(program, y)}; i++) {{",
        f"    {kind} x = (({kind}){x}[i] - {mean}) / {std};",
        f"    x = x < -{clip} ? -{clip} : x > {clip} ? {clip} : x;",
        f"    {y}[i] = (float)x;",
    ]
    if flags is not None:
        lines.append(f"    if ({flags} && {flags}[i]) {y}[i] = 0.0f;")
    return [*lines, "}"]


def _one_hot(program: Program, op: Operation) -> Lines:
    (x,), (y,) = op.inputs, op.outputs
    lines, first = [], 0
    for place, (size, start) in enumerate(
        zip(op.options["sizes"], op.options["starts"], strict=True)
    ):
        mark = f"{y}[{first} + i] = {x}[{place}] - {start} == i ? 1.0f : 0.0f;"
        lines.append(_each(size, mark))
        first += size
    return lines


def _reset(program: Program, op: Operation) -> Lines:
    (x, start), (y,) = op.inputs, op.outputs
    return [_each(_size(program, y), f"{y}[i] = {start} ? 0 : {x}[i];")]


def _concat(program: Program, op: Operation) -> Lines:
    (y,), axis = op.outputs, op.options["axis"]
    outer = math.prod(program.shapes[y][:axis])
    width = _size(program, y) // outer
    lines, first = [], 0
    for x in op.inputs:
        inner = _size(program, x) // outer
        lines.append(_copied(f"{y} + {first}", x or "", outer, inner, width, inner))
        first += inner
    return lines


def _slice(program: Program, op: Operation) -> Lines:
    (x,), (y,) = op.inputs, op.outputs
    axis, begin = op.options["axis"], op.options["begin"]
    outer = math.prod(program.shapes[y][:axis])
    after = math.prod(program.shapes[y][axis + 1 :])
    inner, width = _size(program, y) // outer, _size(program, x) // outer
    return [_copied(y, f"{x} + {begin * after}", outer, inner, inner, width)]


def _copied(to: str, of: str, outer: int, inner: int, to_width: int, of_width: int) -> str:
    target = f"({to})[o * {to_width} + i]"
    return (
        f"for (int o = 0; o < {outer}; o++) "
        f"{_each(inner, f'{target} = ({of})[o * {of_width} + i];')}"
    )


def _product(x: str, n_in: int, weight: str, bias: str | None, y: str, n_out: int) -> Lines:
    start = f"@_{bias}[i]" if bias else "0.0f"
    add = _each(n_out, f"{y}[i] += {x}[k] * @_{weight}[k * {n_out} + i];")
    return [
        _each(n_out, f"{y}[i] = {start};"),
        f"for (int k = 0; k < {n_in}; k++) {add}",
    ]


def _dense(program: Program, op: Operation) -> Lines:
    (x,), (y,) = op.inputs, op.outputs
    sizes = _size(program, x), _size(program, y)
    weight, bias = op.arrays["weight"], op.arrays.get("bias")
    return _product(x or "", sizes[0], weight, bias, y, sizes[1])


def _gates(program: Program, op: Operation, kind: str, place: int, n_gates: int) -> Lines:
    x, y = op.inputs[place] or "", f"{kind}_{op.outputs[0]}"
    size = n_gates * _size(program, op.outputs[0])
    weight, bias = op.arrays[f"weight_{kind}"], op.arrays.get(f"bias_{kind}")
    return [f"float {y}[{size}];", *_product(x, _size(program, x), weight, bias, y, size)]


def _lstm(program: Program, op: Operation) -> Lines:
    h, c = op.outputs
    size = _size(program, h)
    gate = [f"ih_{h}[i + {place * size}] + hh_{h}[i + {place * size}]" for place in range(4)]
    return [
        *_gates(program, op, "ih", 0, 4),
        *_gates(program, op, "hh", 1, 4),
        f"for (int i = 0; i < {size}; i++) {{",
        f"    {c}[i] = @_sigmoid({gate[1]}) * {op.inputs[2]}[i]"
        f" + @_sigmoid({gate[0]}) * tanhf({gate[2]});",
        f"    {h}[i] = @_sigmoid({gate[3]}) * tanhf({c}[i]);",
        "}",
    ]


def _gru(program: Program, op: Operation) -> Lines:
    (h,), (_, before) = op.outputs, op.inputs
    size = _size(program, h)
    ih, hh = ([f"{kind}_{h}[i + {place * size}]" for place in range(3)] for kind in ("ih", "hh"))
    return [
        *_gates(program, op, "ih", 0, 3),
        *_gates(program, op, "hh", 1, 3),
        f"for (int i = 0; i < {size}; i++) {{",
        f"    const float n = tanhf({ih[2]} + @_sigmoid({ih[0]} + {hh[0]}) * {hh[2]});",
        f"    {h}[i] = n + @_sigmoid({ih[1]} + {hh[1]}) * ({before}[i] - n);",
        "}",
    ]


def _rnn(program: Program, op: Operation) -> Lines:
    (h,) = op.outputs
    made = _ACTIVATIONS[op.options["function"]]
    statement = f"{{ const float x = ih_{h}[i] + hh_{h}[i]; {h}[i] = {made}; }}"
    return [
        *_gates(program, op, "ih", 0, 1),
        *_gates(program, op, "hh", 1, 1),
        _each(_size(program, h), statement),
    ]


def _add(program: Program, op: Operation) -> Lines:
    (left, right), (y,) = op.inputs, op.outputs
    return [_each(_size(program, y), f"{y}[i] = {left}[i] + {right}[i];")]


def _glu(program: Program, op: Operation) -> Lines:
    (x,), (y,) = op.inputs, op.outputs
    size = _size(program, y)
    return [_each(size, f"{y}[i] = {x}[i] * @_sigmoid({x}[i + {size}]);")]


def _min_gru(program: Program, op: Operation) -> Lines:
    (gates, before), (h,) = op.inputs, op.outputs
    size = _size(program, h)
    kept = f"@_sigmoid(-{gates}[i]) * {before}[i]"
    added = f"@_sigmoid({gates}[i]) * {gates}[i + {size}]"
    return [_each(size, f"{h}[i] = {kept} + {added};")]


def _lru(program: Program, op: Operation) -> Lines:
    (added, before), (h,) = op.inputs, op.outputs
    size = _size(program, h) // 2
    a, b = f"@_{op.arrays['factor']}[i]", f"@_{op.arrays['factor']}[i + {size}]"
    c, d = f"{before}[i]", f"{before}[i + {size}]"
    return [
        f"for (int i = 0; i < {size}; i++) {{",
        f"    {h}[i] = {a} * {c} - {b} * {d} + {added}[i];",
        f"    {h}[i + {size}] = {a} * {d} + {b} * {c} + {added}[i + {size}];",
        "}",
    ]


def _layer_norm(program: Program, op: Operation) -> Lines:
    (x,), (y,) = op.inputs, op.outputs
    size = _size(program, y)
    scale = f" * @_{op.arrays['weight']}[i]" if "weight" in op.arrays else ""
    shift = f" + @_{op.arrays['bias']}[i]" if "bias" in op.arrays else ""
    return [
        "{",
        "    float mean = 0.0f, spread = 0.0f;",
        f"    {_each(size, f'mean += {x}[i];')}",
        f"    mean /= {size}.0f;",
        f"    {_each(size, f'spread += ({x}[i] - mean) * ({x}[i] - mean);')}",
        f"    spread = sqrtf(spread / {size}.0f + {op.options['epsilon']!r}f);",
        f"    {_each(size, f'{y}[i] = ({x}[i] - mean) / spread{scale}{shift};')}",
        "}",
    ]


def _choices(program: Program, op: Operation) -> Lines:
    (x, noise, masks), (y,) = op.inputs, op.outputs
    lines, first = [], 0
    for place, size in enumerate(op.options["sizes"]):
        mask = "NULL" if masks is None else f"{masks} ? {masks} + {first} : NULL"
        uniform = f"{noise} ? {noise} + {place} : NULL"
        lines.append(f"{y}[{place}] = @_choice({x} + {first}, {size}, {mask}, {uniform});")
        first += size
    return lines


def _bits(program: Program, op: Operation) -> Lines:
    (x, noise, masks), (y,) = op.inputs, op.outputs
    one = f"{noise} ? {noise}[i] < @_sigmoid({x}[i]) : {x}[i] > 0.0f"
    if masks is not None:
        may = [f"{masks}[2 * i + {bit}]" for bit in (0, 1)]
        one = f"{masks} && !({may[0]} && {may[1]}) ? {may[1]} != 0 : ({one})"
    return [_each(_size(program, y), f"{y}[i] = {one};")]


def _gaussian(program: Program, op: Operation) -> Lines:
    (x, noise), (y,) = op.inputs, op.outputs
    drawn = f"{x}[i] + ({noise} ? {noise}[i] * @_{op.arrays['std']}[i] : 0.0f)"
    return [_each(_size(program, y), f"{y}[i] = {drawn};")]


def _clip(program: Program, op: Operation) -> Lines:
    bounds = "x < {low} ? {low} : x > {high} ? {high} : x"
    return _map(bounds)(program, op)


def _scale(program: Program, op: Operation) -> Lines:
    (x,), (y,) = op.inputs, op.outputs
    part = {name: f"@_{array}[i]" for name, array in op.arrays.items()}
    low, high = part["low"], part["high"]
    return [
        f"for (int i = 0; i < {_size(program, y)}; i++) {{",
        f"    const float x = ({x}[i] - {part['centre']}) / {part['width']};",
        f"    {y}[i] = x < {low} ? {low} : x > {high} ? {high} : x;",
        "}",
    ]


_OPERATIONS: dict[str, Callable[[Program, Operation], Lines]] = {
    "activation": _activation,
    "add": _add,
    "bits": _bits,
    "blank": _blank,
    "cast": _map("(float)x"),
    "choices": _choices,
    "clip": _clip,
    "concat": _concat,
    "constant": lambda program, op: [
        _each(_size(program, op.outputs[0]), f"{op.outputs[0]}[i] = @_{op.arrays['numbers']}[i];")
    ],
    "dense": _dense,
    "divide": _map("x / {by}"),
    "flatten": _map("x"),
    "gaussian": _gaussian,
    "glu": _glu,
    "gru": _gru,
    "layer_norm": _layer_norm,
    "lru": _lru,
    "lstm": _lstm,
    "min_gru": _min_gru,
    "normalize": _normalize,
    "one_hot": _one_hot,
    "reset": _reset,
    "reshape": _map("x"),
    "rnn": _rnn,
    "scale": _scale,
    "slice": _slice,
    "unscale": _map("{low} + 0.5f * (x + 1.0f) * ({high} - {low})"),
}

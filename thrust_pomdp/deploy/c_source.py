"""An actor as a C99 header that needs nothing but ``math.h``, ``stdint.h`` and ``string.h``.

Sizes are known when it is compiled, nothing is allocated, and one step is one function.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from thrust_pomdp.deploy.c_operations import HELPERS, operation_lines
from thrust_pomdp.deploy.program import Port, Program, State
from thrust_pomdp.errors import ArgumentError

#: C's types by NumPy's names.
TYPES = {
    "float32": "float",
    "float64": "double",
    "bool": "uint8_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}

#: Operations for images, which would need more memory than a microcontroller has.
_OF_IMAGES = ("conv", "transpose")

_KEYWORDS = frozenset(re.findall(r"\w+", """
    auto bool break case catch char class const continue default delete do double else enum
    explicit export extern false float for friend goto if inline int long mutable namespace
    new operator private protected public register restrict return short signed sizeof static
    struct switch template this throw true try typedef typename union unsigned using virtual
    void volatile while
"""))  # fmt: skip


def c_source(program: Program, name: str) -> bytes:
    """Return the header.

    :param name: what functions and types are named after
    :raises ValueError: for what C cannot do, naming it
    """
    refuse_images(program, "C")
    refuse_attention(program, "C")
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        raise ArgumentError(
            f"name must be letters, digits and underscores to name functions in C, got {name!r}"
        )
    text = _Header(program, name).text()
    # Helpers and weights are named after the actor, so that a program may have several.
    return text.replace("@", name).encode("ascii")


def refuse_images(program: Program, runtime: str) -> None:
    """Refuse to export images.

    :raises ValueError: naming them
    """
    if any(operation.kind in _OF_IMAGES for operation in program.operations):
        names = [
            port.name
            for port in program.inputs
            if port.kind == "obs" and len(program.shapes[port.value]) == 3
        ]
        raise ArgumentError(
            f"model must see no images to be exported for {runtime}, got {', '.join(names)}: "
            "export it to .onnx or .npz"
        )


def refuse_attention(program: Program, runtime: str) -> None:
    """Refuse to export attention, which is written for ONNX and NumPy alone.

    :raises ValueError: naming the memory
    """
    if any(operation.kind == "attention" for operation in program.operations):
        raise ArgumentError(
            f"model must have another memory to be exported for {runtime}, got a GTrXL, which "
            "keeps what it was given at many steps: export it to .onnx or .npz"
        )


def identifier(key: str) -> str:
    """Return a key of an observation as a name in a program."""
    found = re.sub(r"[^A-Za-z0-9_]", "_", key)
    if not found or found[0].isdigit():
        found = f"_{found}"
    return f"{found}_" if found in _KEYWORDS else found


def literal(number: Any, dtype: str) -> str:
    """Return a number as C writes it, so that it is read as the same again."""
    if dtype not in ("float32", "float64"):
        return str(int(number))
    suffix = "f" if dtype == "float32" else ""
    if math.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    shortest = np.format_float_scientific(np.dtype(dtype).type(number), unique=True, trim="0")
    return f"{shortest}{suffix}"


class _Header:
    def __init__(self, program: Program, name: str) -> None:
        self._program, self._name = program, name
        self._dicts = program.obs["is_dict"]
        self._obs = [port for port in program.inputs if port.kind == "obs"]
        names = [identifier(port.key or "") for port in self._obs]
        if len(set(names)) < len(names):
            raise ArgumentError(
                f"keys of the observation must be different names in C, got {names}"
            )

    def text(self) -> str:
        name = self._name
        guard = f"{name.upper()}_H"
        parts = [
            f"/* {name}: one step of an actor, written by thrust_pomdp; not to be edited.",
            *(f" * {line}".rstrip() for line in self._manual()),
            " */",
            f"#ifndef {guard}",
            f"#define {guard}",
            "",
            "#include <math.h>",
            "#include <stdint.h>",
            "#include <string.h>",
            "",
            *self._sizes(),
            "",
            *self._types(),
            "",
            *self._weights(),
            HELPERS,
            *self._functions(),
            "",
            f"#endif /* {guard} */",
            "",
        ]
        return "\n".join(parts)

    def _manual(self) -> list[str]:
        lines = ["", f"{self._signature()};", ""]
        kinds = {port.kind for port in self._program.inputs}
        lines.append("obs: as the environment gives it")
        if "blanked" in kinds:
            lines.append("blanked: 1 for each number that is blank; NULL if nobody tells")
        if "previous_reward" in kinds:
            lines.append("reward: what came with obs")
        if "action_masks" in kinds:
            lines.append("action_masks: 1 for each value that may be chosen; NULL for all")
        if "noise" in kinds:
            lines.append(
                "noise: from [0, 1) for each choice or bit, standard normal for each number of"
            )
            lines.append("  the action; NULL for the most likely action")
        return [*lines, "action: what to do", f"Call {self._name}_reset where an episode starts."]

    def _sizes(self) -> list[str]:
        program, upper = self._program, self._name.upper()
        lines = [
            f"#define {upper}_N_{identifier(port.name).upper()} {self._size(port.value)}"
            for port in program.inputs
            if port.kind in ("obs", "action_masks", "noise")
        ]
        return [*lines, f"#define {upper}_N_ACTION {len(program.action['sizes'])}"]

    def _size(self, value: str) -> int:
        return math.prod(self._program.shapes[value])

    def _types(self) -> list[str]:
        program, name = self._program, self._name
        lines: list[str] = []
        if self._dicts:
            for kind, of in (("obs", "obs"), ("blanked", "flags")):
                ports = [port for port in program.inputs if port.kind == kind]
                if ports:
                    lines += ["typedef struct {"]
                    lines += [
                        f"    {TYPES[program.dtypes[port.value]]} {identifier(port.key or '')}"
                        f"[{self._size(port.value)}];"
                        for port in ports
                    ]
                    lines += [f"}} {name}_{of};", ""]
        lines += ["typedef struct {", "    uint8_t runs; /* 0 where an episode starts */"]
        for state in program.states:
            for number, value in enumerate(state.before):
                kind = TYPES[program.dtypes[value]]
                lines.append(f"    {kind} {member_of(state, number)}[{self._size(value)}];")
        lines.append(f"    {self._action_type()} previous_action[{name.upper()}_N_ACTION];")
        lines += [
            f"    float {port.name}[{self._size(port.value)}];"
            for port in program.outputs
            if port.kind == "extra"
        ]
        return [*lines, f"}} {name}_state;"]

    def _action_type(self) -> str:
        return "float" if self._program.action["space"] == "Box" else "int32_t"

    def _weights(self) -> list[str]:
        lines = []
        used: dict[str, bool] = {}  # whether an array is a matrix, by name
        for operation in self._program.operations:
            for part, array in operation.arrays.items():
                used[array] = part.startswith("weight") and operation.kind != "layer_norm"
        for array, is_matrix in used.items():
            numbers = self._program.arrays[array]
            dtype = numbers.dtype.name
            # Matrices are laid out input by input: compilers run along the outputs.
            flat = (numbers.T if is_matrix else numbers).ravel()
            lines.append(f"static const {TYPES[dtype]} @_{array}[{flat.size}] = {{")
            words = [literal(number, dtype) for number in flat]
            lines += [
                f"    {', '.join(words[first : first + 8])}," for first in range(0, len(words), 8)
            ]
            lines.append("};")
        return lines

    def _signature(self) -> str:
        name = self._name
        arguments = [f"{name}_state *state"]
        by_kind = {port.kind: port for port in self._program.inputs}
        obs = TYPES[self._program.dtypes[self._obs[0].value]]
        arguments.append(f"const {f'{name}_obs' if self._dicts else obs} *obs")
        if "blanked" in by_kind:
            arguments.append(f"const {f'{name}_flags' if self._dicts else 'uint8_t'} *blanked")
        if "previous_reward" in by_kind:
            arguments.append("float reward")
        if "action_masks" in by_kind:
            arguments.append("const uint8_t *action_masks")
        if "noise" in by_kind:
            arguments.append("const float *noise")
        arguments.append(f"{self._action_type()} *action")
        return f"void {name}_act({', '.join(arguments)})"

    def _functions(self) -> list[str]:
        name = self._name
        return [
            "/* Forget everything: the next observation starts an episode. */",
            f"static inline void {name}_reset({name}_state *state)",
            "{",
            "    memset(state, 0, sizeof *state);",
            "}",
            "",
            f"/* Tell what was done in the end, if not what {name}_act chose. */",
            f"static inline void {name}_set_previous_action({name}_state *state, "
            f"const {self._action_type()} *action)",
            "{",
            "    memcpy(state->previous_action, action, sizeof state->previous_action);",
            "}",
            "",
            f"static inline {self._signature()}",
            "{",
            *(f"    {line}" if line else "" for line in self._body()),
            "}",
        ]

    def _body(self) -> list[str]:
        program = self._program
        lines = []
        for port in program.inputs:
            lines += self._input(port)
        for state in program.states:
            for number, value in enumerate(state.before):
                kind = TYPES[program.dtypes[value]]
                lines.append(f"const {kind} *{value} = state->{member_of(state, number)};")
        for operation in program.operations:
            lines += operation_lines(program, operation)
        for state in program.states:
            for number, value in enumerate(state.after):
                member = f"state->{member_of(state, number)}"
                lines.append(f"memcpy({member}, {value}, sizeof {member});")
        for port in program.outputs:
            target = "action" if port.kind == "action" else f"state->{port.name}"
            size = self._size(port.value)
            kind = self._action_type() if port.kind == "action" else "float"
            lines.append(f"memcpy({target}, {port.value}, {size} * sizeof({kind}));")
        lines.append("memcpy(state->previous_action, action, sizeof state->previous_action);")
        return [*lines, "state->runs = 1;"]

    def _input(self, port: Port) -> list[str]:
        program, value = self._program, port.value
        size = self._size(value)
        member = f"->{identifier(port.key or '')}" if port.key is not None else ""
        if port.kind == "obs":
            return [f"const {TYPES[program.dtypes[value]]} *{value} = obs{member};"]
        if port.kind == "blanked":
            flags = f"blanked ? blanked{member} : NULL" if member else "blanked"
            lines = [f"const uint8_t *{value} = {flags};"]
            if program.obs["guess"]:
                obs = next(p.value for p in self._obs if p.key == port.key)
                lines += [
                    f"uint8_t zeros_{value}[{size}];",
                    f"if (!{value}) {{",
                    "    uint8_t zero = 1;",
                    f"    for (int i = 0; i < {size}; i++) zero &= {obs}[i] == 0;",
                    f"    memset(zeros_{value}, zero, sizeof zeros_{value});",
                    f"    {value} = zeros_{value};",
                    "}",
                ]
            return lines
        if port.kind == "start":
            return [f"const uint8_t {value} = !state->runs;"] + (
                [] if self._is_read(value) else [f"(void){value};"]
            )
        if port.kind == "previous_action":
            return [f"const {self._action_type()} *{value} = state->previous_action;"]
        if port.kind == "previous_reward":
            return [f"const float *{value} = &reward;"]
        return [f"const {TYPES[program.dtypes[value]]} *{value} = {port.kind};"]

    def _is_read(self, value: str) -> bool:
        return any(value in operation.inputs for operation in self._program.operations)


def member_of(state: State, number: int) -> str:
    """Return the member of C's struct that holds a layer of a state."""
    name = identifier(state.name)
    return f"{name}_{number}" if len(state.before) > 1 else name

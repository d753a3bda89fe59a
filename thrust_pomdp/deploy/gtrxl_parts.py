"""A gated transformer memory as operations of a :class:`~thrust_pomdp.deploy.program.Program`."""

from __future__ import annotations

from typing import Any

import torch as th
from torch import nn

from thrust_pomdp import gate
from thrust_pomdp.deploy.network_parts import (
    emit_activation,
    emit_concat,
    emit_module,
    emit_reset,
    weights_of,
)
from thrust_pomdp.deploy.program import Program
from thrust_pomdp.recurrent.attention import BandAttention
from thrust_pomdp.recurrent.gtrxl import GatedLayer, GRUGate, GTrXL

#: What the operations rely on, of the memory's parts.
_METHODS: dict[type[nn.Module], tuple[str, ...]] = {
    GatedLayer: ("forward",),
    BandAttention: ("forward", "_last", "_positions"),
    GRUGate: ("forward",),
}

#: Values before a step and after it, one of each for each layer.
States = dict[str, tuple[list[str], list[str]]]


def against_gtrxl(rnn: nn.Module) -> str | None:
    """Say why a memory is no GTrXL that computes what it was written to."""
    reason = gate.against_module(rnn, GTrXL)
    if reason is not None:
        return reason
    memory: Any = rnn
    reason = memory.against_bands() or gate.against_calls(rnn)
    for part in rnn.modules():
        kind = type(part)
        if reason is None and kind in _METHODS:
            reason = gate.against_methods(part, _METHODS[kind], kind)
        elif reason is None and part is not rnn and kind is not nn.ModuleList:
            reason = gate.against_module(part, nn.Linear, nn.LayerNorm, nn.Sequential, nn.ReLU)
    return reason


def emit_gtrxl(program: Program, rnn: Any, features: str, start: str) -> tuple[str, States]:
    """Add one step of a gated transformer; return its output and its states by name."""
    inputs, count = rnn.state_parts()
    stream = emit_module(program, rnn.embed, features)
    size = program.shapes[stream]
    states: States = {part.name: ([], []) for part in (inputs, count)}
    for layer in rnn.layers:
        before, n_before = program.value(inputs.shape), program.value((), "int64")
        (row,) = program.add("reshape", [stream], [(1, *size)], shape=[1, *size])
        n_seen = emit_reset(program, n_before, start)
        steps = emit_concat(program, [emit_reset(program, before, start), row])
        length = program.shapes[steps][0]
        seen = _rows(program, steps, length - rnn.context, length)
        attended = emit_module(program, layer.attention.out, _attention(
            program, layer, seen, n_seen, rnn.distances))  # fmt: skip
        attended = emit_activation(program, attended, "relu")
        stream = _gate(program, layer.attention_gate, stream, attended)
        inner = emit_module(program, layer.mlp, emit_module(program, layer.mlp_norm, stream))
        inner = emit_activation(program, inner, "relu")
        stream = _gate(program, layer.mlp_gate, stream, inner)
        most = inputs.shape[0]
        (more,) = program.add("count", [n_seen], [()], "int64", most=most)
        after = {"inputs": _rows(program, steps, 1, length), "count": more}
        for name, old in (("inputs", before), ("count", n_before)):
            states[name][0].append(old)
            states[name][1].append(after[name])
    return stream, states


def _rows(program: Program, value: str, begin: int, end: int) -> str:
    shape = (end - begin, *program.shapes[value][1:])
    if shape == program.shapes[value]:
        return value
    return program.add("slice", [value], [shape], axis=0, begin=begin, end=end)[0]


def _attention(
    program: Program, layer: GatedLayer, seen: str, count: str, distances: th.Tensor
) -> str:
    """Let the last of some steps attend; return the values that it takes of them."""
    norm, attention = layer.attention_norm, layer.attention
    size = norm.weight.shape[0]
    by_head = (attention.n_heads, attention.head_size, size)
    with th.no_grad():
        positions = attention._positions(distances)
    parts = {
        "weight": norm.weight,
        "bias": norm.bias,
        "query": attention.query.weight.view(by_head),
        "key": attention.key.view(by_head),
        "value": attention.value.view(by_head),
        "positions": positions,
        "content_bias": attention.content_bias,
        "position_bias": attention.position_bias,
    }
    arrays = {name: program.array(weights_of(part)) for name, part in parts.items()}
    return program.add(
        "attention", [seen, count], [(size,)], arrays=arrays, epsilon=float(norm.eps)
    )[0]


def _gate(program: Program, module: GRUGate, stream: str, update: str) -> str:
    parts = {
        "of_update": module.of_update.weight,
        "of_stream": module.of_stream.weight,
        "of_reset": module.of_reset.weight,
        "bias": module.bias,
    }
    arrays = {name: program.array(weights_of(part)) for name, part in parts.items()}
    return program.add("gate", [stream, update], [program.shapes[stream]], arrays=arrays)[0]

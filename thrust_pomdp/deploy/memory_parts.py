"""Memories as operations of a :class:`~thrust_pomdp.deploy.program.Program`.

Torch's layers, the minGRU, the LRU and the gated transformer are written out; a memory of a user's
own, or one that was changed, stays a call of the module.
"""

from __future__ import annotations

from typing import Any

import torch as th
from torch import nn

from thrust_pomdp import gate
from thrust_pomdp.deploy.gtrxl_parts import against_gtrxl, emit_gtrxl
from thrust_pomdp.deploy.network_parts import (
    emit_activation,
    emit_call,
    emit_module,
    emit_reset,
    weights_of,
)
from thrust_pomdp.deploy.program import Program
from thrust_pomdp.recurrent.lru import LRULayer
from thrust_pomdp.recurrent.memory import memory_step, state_names
from thrust_pomdp.recurrent.min_gru import MinGRULayer
from thrust_pomdp.recurrent.protocol import Memory
from thrust_pomdp.recurrent.scanned import against_scanned

#: Names of states outside; those of a memory of a user's own are its parts'.
_STATE = {"hidden": "h", "cell": "c"}


class UsersMemory(nn.Module):
    """One step of a memory that is no layer of torch's as it is.

    :param users: the memory
    """

    def __init__(self, users: nn.Module) -> None:
        super().__init__()
        self.users = users

    def forward(self, *values: th.Tensor) -> tuple[th.Tensor, ...]:
        """Advance it.

        :param values: features, whether an episode starts, and the states, each ``[n_envs,
            n_layers, ...]``
        """
        features, start, *states = values
        before = tuple(state.transpose(0, 1) for state in states)
        output, after = memory_step(self.users, features, before, start)
        return output, *(state.transpose(0, 1) for state in after)


def emit_memory(
    program: Program, rnn: nn.Module, features: str, start: str, whose: str = "memory"
) -> str:
    """Add one step of a memory with its states; return what it gives.

    :param whose: ``"memory"`` of the actor, or ``"critic"``
    """
    if against_scanned(rnn) is None:
        return _scanned(program, rnn, features, start, whose)
    if against_gtrxl(rnn) is None:
        output, parts = emit_gtrxl(program, rnn, features, start)
        for name, (olds, news) in parts.items():
            program.state(_state_name(name, whose), olds, news, whose, True)
        return output
    if gate.against_layer(rnn) is not None:
        return _users_memory(program, rnn, features, start, whose)
    layer: Any = rnn
    kind = type(rnn).__name__.lower()
    names = state_names(rnn)
    shape = (int(layer.hidden_size),)
    before: dict[str, list[str]] = {name: [] for name in names}
    after: dict[str, list[str]] = {name: [] for name in names}
    options = {"function": layer.nonlinearity} if kind == "rnn" else {}
    output = features
    for number in range(layer.num_layers):
        parameters = gate.weight_names(number, layer.bias)
        arrays = {
            name.rpartition("_")[0]: program.array(weights_of(getattr(layer, name)))
            for name in parameters
        }
        states = []
        for name in names:
            before[name].append(program.value(shape))
            states.append(emit_reset(program, before[name][-1], start))
        made = program.add(kind, [output, *states], [shape] * len(names), arrays=arrays, **options)
        output = made[0]
        for name, value in zip(names, made, strict=True):
            after[name].append(value)
    for name in names:
        program.state(_state_name(name, whose), before[name], after[name], whose, True)
    return output


def _state_name(name: str, whose: str) -> str:
    short = _STATE.get(name, name)
    return short if whose == "memory" else f"{short}_{whose}"


def _users_memory(program: Program, rnn: nn.Module, features: str, start: str, whose: str) -> str:
    layer: Any = rnn
    if isinstance(rnn, Memory):
        zeros = rnn.initial_state(1)
    else:
        like = next(rnn.parameters(), th.empty(0))
        zeros = (like.new_zeros(layer.num_layers, 1, layer.hidden_size),) * len(state_names(rnn))
    # [n_layers, 1, *shape] of torch; the values here are [n_layers, *shape].
    shapes = [(part.shape[0], *part.shape[2:]) for part in zeros]
    dtypes = [str(part.dtype).removeprefix("torch.") for part in zeros]
    before = list(map(program.value, shapes, dtypes))
    output, *after = emit_call(
        program,
        UsersMemory(rnn),
        [features, start, *before],
        [(int(layer.hidden_size),), *shapes],
        ["float32", *dtypes],
    )
    for name, old, new in zip(state_names(rnn), before, after, strict=True):
        program.state(_state_name(name, whose), [old], [new], whose)
    return output


def _scanned(program: Program, rnn: Any, features: str, start: str, whose: str) -> str:
    """Add the layers of a minGRU or an LRU."""
    output, before, after = features, [], []
    for layer in rnn.layers:
        inputs = output
        read = emit_module(program, layer.norm, inputs)
        before.append(program.value(rnn.state_parts()[0].shape))
        state = emit_reset(program, before[-1], start)
        if isinstance(layer, MinGRULayer):
            output = _min_gru(program, layer, read, state)
            after.append(output)
            if not layer.is_first:
                output = _sum(program, inputs, output)
            continue
        after.append(_lru(program, layer, read, state))
        shown = emit_module(program, layer.tell, after[-1])
        shown = _sum(program, shown, emit_module(program, layer.direct, read))
        mixed = emit_module(program, layer.mix, emit_activation(program, shown, "gelu"))
        (gated,) = program.add("glu", [mixed], [program.shapes[shown]])
        output = _sum(program, emit_module(program, layer.skip, inputs), gated)
    program.state(_state_name("hidden", whose), before, after, whose, True)
    return output


def _min_gru(program: Program, layer: MinGRULayer, read: str, state: str) -> str:
    gates = emit_module(program, layer.gates, read)
    return program.add("min_gru", [gates, state], [program.shapes[state]])[0]


def _lru(program: Program, layer: LRULayer, read: str, state: str) -> str:
    shapes = [program.shapes[state]]
    with th.no_grad():
        weight = program.array(weights_of(layer.entering()))
        factor = program.array(weights_of(layer.factor()))
    (added,) = program.add("dense", [read], shapes, arrays={"weight": weight})
    return program.add("lru", [added, state], shapes, arrays={"factor": factor})[0]


def _sum(program: Program, left: str, right: str) -> str:
    return program.add("add", [left, right], [program.shapes[left]])[0]

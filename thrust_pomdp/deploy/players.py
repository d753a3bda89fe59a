"""Playing what was exported in each runtime that is installed, C and Node among them.

C and JavaScript are played by programs that are written, and for C compiled, into a folder. They
read what environments show, one environment after the other, and write actions and states.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from thrust_pomdp.deploy.c_source import TYPES, identifier, member_of
from thrust_pomdp.deploy.checking import Played, Steps, play
from thrust_pomdp.deploy.numpy_actor import NumpyActor
from thrust_pomdp.deploy.program import Program

WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-O2")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
NODE = shutil.which("node")


def compiled(folder: Path, source: str, compiler: str, *flags: str) -> Path:
    """Compile a C program, warnings being errors.

    :raises RuntimeError: with what the compiler says
    """
    program = folder / "program"
    (folder / "program.c").write_text(source)
    command = [compiler, *WARNINGS, *flags, "-o", str(program), "program.c", "-lm"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{compiler} failed: {done.stderr}")
    return program


def play_in_c(folder: Path, program: Program, steps: Steps, player: Path) -> Played:
    """Play with a compiled player, one environment after the other."""
    n_steps, n_envs = steps.starts.shape
    given = b"".join(records(program, steps))
    (folder / "given").write_bytes(given)
    with open(folder / "given", "rb") as file:
        done = subprocess.run([str(player)], stdin=file, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"the C program failed: {done.stderr.decode()}")
    return as_played(program, done.stdout, n_steps, n_envs)


def as_played(program: Program, told: bytes, n_steps: int, n_envs: int) -> Played:
    """Read what a player has written, environment by environment."""
    is_box = program.action["space"] == "Box"
    n_actions = len(program.action["sizes"])
    fields: list[Any] = [("action", np.float32 if is_box else np.int32, (n_actions,))]
    for state in program.states:
        shape = (len(state.before), *program.shapes[state.before[0]])
        fields.append((state.name, np.dtype(program.dtypes[state.before[0]]), shape))
    rows = np.frombuffer(told, np.dtype(fields)).reshape(n_envs, n_steps).swapaxes(0, 1)
    actions = rows["action"].reshape(n_steps, n_envs, *program.action["shape"])
    states = {
        state.name: np.moveaxis(rows[state.name], 2, 1) if state.has_layers else rows[state.name]
        for state in program.states
    }
    return Played(actions, states)


def records(program: Program, steps: Steps) -> Iterator[bytes]:
    """Lay out what a player reads: environment by environment, step by step."""
    kinds = {port.kind for port in program.inputs}
    for env in range(steps.starts.shape[1]):
        for step in range(len(steps.starts)):
            yield steps.starts[step, env].tobytes()
            for array in steps.obs.values():
                yield array[step, env].tobytes()
            for array in (steps.flags or {}).values():
                yield array[step, env].tobytes()
            if "previous_reward" in kinds:
                yield steps.rewards[step, env].tobytes()
            if steps.masks is not None:
                yield steps.masks[step, env].tobytes()
            if steps.noise is not None:
                yield steps.noise[step, env].tobytes()
            elif "noise" in kinds:
                yield np.full(_size(program, "noise"), np.nan, np.float32).tobytes()


def _size(program: Program, kind: str) -> int:
    port = program.find(kind)
    return 0 if port is None else math.prod(program.shapes[port.value])


def player_source(program: Program, steps: Steps) -> str:
    """Write the program that plays."""
    is_dict = program.obs["is_dict"]
    kinds = {port.kind for port in program.inputs}
    action = "float" if program.action["space"] == "Box" else "int32_t"
    declared, read, arguments = [], [], ["&state"]

    def take(name: str, kind: str, size: int) -> None:
        declared.append(f"static {kind} {name}[{size}];")
        read.append(f"if (fread({name}, sizeof {name}, 1, stdin) != 1) return 2;")

    for group, of, told in (("obs", "obs", True), ("blanked", "flags", steps.flags is not None)):
        ports = [port for port in program.inputs if port.kind == group]
        if not ports:
            continue
        if not told:
            arguments.append("NULL")
        elif is_dict:
            declared.append(f"static actor_{of} {group};")
            for port in ports:
                member = f"{group}.{identifier(port.key or '')}"
                read.append(f"if (fread({member}, sizeof {member}, 1, stdin) != 1) return 2;")
            arguments.append(f"&{group}")
        else:
            (port,) = ports
            size = math.prod(program.shapes[port.value])
            take(group, TYPES[program.dtypes[port.value]], size)
            arguments.append(group)
    if "previous_reward" in kinds:
        take("reward", "float", 1)
        arguments.append("reward[0]")
    for name, kind in (("action_masks", "uint8_t"), ("noise", "float")):
        if name in kinds:
            take(name, kind, _size(program, name))
            arguments.append("isnan(noise[0]) ? NULL : noise" if name == "noise" else name)
    writes = [
        f"fwrite(state.{member}, sizeof state.{member}, 1, stdout);"
        for state in program.states
        for member in (member_of(state, number) for number in range(len(state.before)))
    ]
    body = "\n        ".join(
        [
            "if (fread(&start, 1, 1, stdin) != 1) break;",
            *read,
            "if (start) actor_reset(&state);",
            f"actor_act({', '.join(arguments)}, action);",
            "fwrite(action, sizeof action, 1, stdout);",
            *writes,
        ]
    )
    return f"""#include <stdio.h>
#include "actor.h"

static actor_state state;
{chr(10).join(declared)}

int main(void)
{{
    uint8_t start;
    {action} action[ACTOR_N_ACTION];
    for (;;) {{
        {body}
    }}
    return 0;
}}
"""


PLAYER = """import { readFileSync, writeFileSync } from "node:fs";
import { Actor } from "./actor.mjs";

const told = [];
for (const steps of JSON.parse(readFileSync("given.json", "utf8"))) {
  const actor = new Actor();
  for (const { obs, start, keywords } of steps) {
    if (start) actor.reset();
    const action = [actor.act(obs, keywords)].flat();
    const state = Object.entries(actor.state).map(
      ([name, parts]) => [name, parts.map((part) => Array.from(part))]);
    told.push({ action, state: Object.fromEntries(state) });
  }
}
writeFileSync("told.json", JSON.stringify(told));
"""


def play_in_node(folder: Path, program: Program, steps: Steps) -> Played:
    """Play with ``actor.js`` in a folder, one environment after the other."""
    (folder / "actor.mjs").write_bytes((folder / "actor.js").read_bytes())
    (folder / "player.mjs").write_text(PLAYER)
    n_steps, n_envs = steps.starts.shape
    given = [
        [_for_node(program, steps, step, env) for step in range(n_steps)] for env in range(n_envs)
    ]
    (folder / "given.json").write_text(json.dumps(given))
    command = [NODE or "node", "player.mjs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"node failed: {done.stderr}")
    told = json.loads((folder / "told.json").read_text())
    rows = [told[env * n_steps : (env + 1) * n_steps] for env in range(n_envs)]
    actions = np.array([[row["action"] for row in of_env] for of_env in rows]).swapaxes(0, 1)
    states = {}
    for state in program.states:
        parts = [[row["state"][state.name] for row in of_env] for of_env in rows]
        array = np.array(parts).swapaxes(0, 1)  # [n_steps, n_envs, n_layers, size]
        states[state.name] = np.moveaxis(array, 2, 1) if state.has_layers else array
    return Played(actions.reshape(n_steps, n_envs, *program.action["shape"]), states)


def _for_node(program: Program, steps: Steps, step: int, env: int) -> dict[str, Any]:
    keys = {port.name: port.key for port in program.inputs}

    def shown(arrays: dict[str, Any]) -> Any:
        parts = {keys[name]: array[step, env].tolist() for name, array in arrays.items()}
        return parts if program.obs["is_dict"] else parts[None]

    keywords: dict[str, Any] = {"reward": float(steps.rewards[step, env])}
    if steps.flags is not None:
        keywords["blanked"] = shown(steps.flags)
    if steps.masks is not None:
        keywords["actionMasks"] = steps.masks[step, env].tolist()
    if steps.noise is not None:
        keywords["noise"] = steps.noise[step, env].tolist()
    start = bool(steps.starts[step, env])
    return {"obs": shown(steps.obs), "start": start, "keywords": keywords}


def installed() -> dict[str, Callable[[Path, Program, Steps], Played]]:
    """Return what plays an actor that was exported to a folder, by the ending of its file.

    The file is called ``actor``; what is not installed is not among them.
    """
    found: dict[str, Callable[[Path, Program, Steps], Played]] = {".npz": _in_numpy}
    if find_spec("onnx") and find_spec("onnxruntime"):
        found[".onnx"] = _in_onnx
    if COMPILERS:
        found[".h"] = _in_c
    if NODE:
        found[".js"] = play_in_node
    return found


def _in_numpy(folder: Path, program: Program, steps: Steps) -> Played:
    return play(NumpyActor(folder / "actor.npz"), steps)


def _in_onnx(folder: Path, program: Program, steps: Steps) -> Played:
    from thrust_pomdp.deploy.onnx_actor import OnnxActor

    return play(OnnxActor(folder / "actor.onnx"), steps)


def _in_c(folder: Path, program: Program, steps: Steps) -> Played:
    player = compiled(folder, player_source(program, steps), COMPILERS[0])
    return play_in_c(folder, program, steps, player)

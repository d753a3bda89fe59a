"""Writing an actor as one file for where there is no torch."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thrust_pomdp.deploy.c_source import c_source
from thrust_pomdp.deploy.checking import (
    Difference,
    Played,
    Steps,
    difference,
    play,
    play_original,
    random_steps,
)
from thrust_pomdp.deploy.description import describe
from thrust_pomdp.deploy.js_source import js_source
from thrust_pomdp.deploy.numpy_actor import NumpyActor
from thrust_pomdp.deploy.onnx_graph import onnx_model
from thrust_pomdp.deploy.program import Program
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.whole_files import write_whole

#: Steps that each export is tried on before anything is written.
_CHECKED_STEPS = 12

#: What rounding may come to in large networks; what acts otherwise differs by more.
_ROUNDING = 1e-3


def export_actor(
    actor: Any,
    path: str | Path,
    *,
    outputs: Sequence[str] = (),
    name: str | None = None,
    normalizer_dtype: str = "float64",
) -> None:
    """Write one step of an actor as a file; :meth:`StatefulActor.export` tells what is in it.

    :raises ValueError: for what cannot be exported, naming it
    :raises OSError: naming the file, if it cannot be written
    """
    path = Path(path)
    write = _writer(path)
    program = describe(actor, outputs, normalizer_dtype)
    content = write(program, path.stem if name is None else name)
    _check(actor, program, path, content)
    try:
        write_whole(path, content)
    except OSError as error:
        raise type(error)(error.errno, f"{path} cannot be written: {error.strerror}") from error


def _writer(path: Path) -> Callable[[Program, str], bytes]:
    known = {".onnx": onnx_model, ".npz": _npz, ".h": _c, ".js": _js, ".mjs": _js}
    if path.suffix not in known:
        raise ArgumentError(f"path must end with one of {', '.join(known)}, got {str(path)!r}")
    return known[path.suffix]


def _npz(program: Program, name: str) -> bytes:
    refuse_own_modules(program, "NumPy")
    file = io.BytesIO()
    data = json.dumps(program.as_data(), separators=(",", ":"))
    np.savez(file, program=np.array(data), **program.arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _c(program: Program, name: str) -> bytes:
    refuse_own_modules(program, "C")
    return c_source(program, name)


def _js(program: Program, name: str) -> bytes:
    refuse_own_modules(program, "JavaScript")
    return js_source(program, name)


def refuse_own_modules(program: Program, runtime: str) -> None:
    """Refuse modules that only torch's exporter can follow.

    :raises ValueError: naming them
    """
    own = program.own_modules()
    if own:
        raise ArgumentError(
            f"model must be made of modules that are known to be exported for {runtime}, got "
            f"{', '.join(own)}: export it to .onnx, which follows modules of your own"
        )


def _check(actor: Any, program: Program, path: Path, content: bytes) -> None:
    """Try a few steps against the actor, so that no file that acts differently is written."""
    steps = random_steps(program, _CHECKED_STEPS, 2)
    if program.modules:
        runner: NumpyActor = _onnx_actor(content)
    else:
        runner = NumpyActor.of(program.as_data(), program.arrays)
    found = difference_to(actor, program, runner, steps)
    if found.actions or found.largest > _ROUNDING:
        raise ArgumentError(
            "model must act by its network and its wrappers alone to be exported: what would be "
            f"written to {path} differs from act() in {found.actions} actions of "
            f"{_CHECKED_STEPS * 2}, and by {found.largest:.2g} in what is continuous"
        )


def _onnx_actor(content: bytes) -> NumpyActor:
    try:
        from thrust_pomdp.deploy.onnx_actor import OnnxActor

        return OnnxActor(content)
    except ImportError as error:
        raise ArgumentError(
            "model must have no modules of your own where onnxruntime is not installed, which they "
            "are tried in: pip install 'thrust-pomdp[export]'"
        ) from error


def difference_to(actor: Any, program: Program, runner: Any, steps: Steps) -> Difference:
    """Play an actor and what was exported of it side by side, and compare them."""
    return compared(actor, program, play_original(actor, steps), play(runner, steps), steps)


def compared(
    actor: Any, program: Program, original: Played, other: Played, steps: Steps
) -> Difference:
    """Compare two plays of the same steps; where actions differ, look whether it was a tie."""
    found = difference(program, original, other, None, steps)
    if not found.actions or program.modules:
        return found
    with_logits = describe(actor, ("action_logits",))
    numpy_actor = NumpyActor.of(with_logits.as_data(), with_logits.arrays)
    logits = []
    for keywords in steps:
        numpy_actor.act(**keywords)
        logits.append(numpy_actor.outputs["action_logits"])
    return difference(program, original, other, np.stack(logits), steps)

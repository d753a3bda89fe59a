"""An actor as an ES module without dependency: the program, its weights, and ``js_runtime.js``."""

from __future__ import annotations

import base64
import json
from importlib import resources

import numpy as np

from thrust_pomdp.deploy.c_source import refuse_attention, refuse_images
from thrust_pomdp.deploy.program import Program

#: Whole numbers that JavaScript's numbers are read from.
_WIDE = ("int64", "uint64")


def js_source(program: Program, name: str) -> bytes:
    """Return the module.

    :param name: what its first line says
    :raises ValueError: for images and attention
    """
    refuse_images(program, "JavaScript")
    refuse_attention(program, "JavaScript")
    data = {**program.as_data(), "shapes": {key: list(v) for key, v in program.shapes.items()}}
    arrays = {}
    for key, array in program.arrays.items():
        dtype = array.dtype.name
        stored = (
            array.astype("<f8") if dtype in _WIDE else array.astype(array.dtype.newbyteorder("<"))
        )
        kind = "float64" if dtype in _WIDE else dtype
        arrays[key] = [kind, base64.b64encode(np.ascontiguousarray(stored).tobytes()).decode()]
    runtime = resources.files("thrust_pomdp.deploy").joinpath("js_runtime.js")
    lines = [
        f"// {json.dumps(name)}: one step of an actor, written by thrust_pomdp; not to be edited.",
        f"const PROGRAM = {json.dumps(data, separators=(',', ':'))};",
        f"const ARRAYS = {json.dumps(arrays, separators=(',', ':'))};",
        "",
        runtime.read_text(encoding="utf-8"),
    ]
    return "\n".join(lines).encode()

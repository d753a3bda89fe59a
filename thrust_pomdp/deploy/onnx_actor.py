"""Act with a model that ``StatefulActor.export("model.onnx")`` wrote, with NumPy and ONNX Runtime.

It can be copied together with ``numpy_actor.py`` to where there is no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from thrust_pomdp.deploy.numpy_actor import FORMAT, Array, NumpyActor


class OnnxActor(NumpyActor):
    """Acts for an exported model and keeps memory, frames and the previous action itself.

    ONNX Runtime alone does as well: the file's inputs and outputs say what goes in and comes out.

    :param model: the file, or what is in it
    :param options: ONNX Runtime's ``SessionOptions``
    :raises ValueError: if it is none of this version
    """

    def __init__(self, model: str | Path | bytes, options: Any = None) -> None:
        import onnxruntime

        content = model if isinstance(model, bytes) else str(model)
        self._session = onnxruntime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"]
        )
        told = self._session.get_modelmeta().custom_metadata_map
        program = json.loads(told.get("program", '{"format": null}'))
        if program["format"] != FORMAT:
            raise ValueError(
                f"model must be a file of format {FORMAT} written by StatefulActor.export, got "
                f"one of format {program['format']}"
            )
        self._names = [output.name for output in self._session.get_outputs()]
        self._takes = {value.name for value in self._session.get_inputs()}
        self._take(program, {})

    def step(
        self, inputs: Mapping[str, Any], state: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Do one step, as a pure function; as of :class:`NumpyActor`."""
        values = self._values(inputs)
        for name, port in self._inputs.items():
            if name in self._takes and port["value"] not in values:
                values[port["value"]] = self._left_out(port, len(inputs["start"]))
        feed = {
            name: values[port["value"]].astype(port["dtype"], copy=False)
            for name, port in self._inputs.items()
            if name in self._takes and port["value"] in values
        }
        feed.update({f"{name}_in": array for name, array in state.items()})
        made = dict(zip(self._names, self._session.run(None, feed), strict=True))
        after = {name: made.pop(f"{name}_out") for name in state}
        return made, after

    def _left_out(self, port: dict[str, Any], n_envs: int) -> Array:
        """Return what stands for an input that was left out: nothing is blank, all may be done."""
        shape = (n_envs, *port["shape"])
        if port["kind"] == "noise":
            return np.full(shape, np.nan, np.float32)
        return np.full(shape, port["kind"] == "action_masks")

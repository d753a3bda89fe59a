"""Modules of a user's own as nodes of ONNX, by torch's exporter."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch as th
from torch import nn

from thrust_pomdp.deploy.program import users_own
from thrust_pomdp.errors import ArgumentError

Shape = tuple[tuple[int, ...], str]


def exported_module(
    module: nn.Module, inputs: Sequence[Shape], prefix: str, opset: int
) -> tuple[Any, dict[str, int]]:
    """Return a module's graph, and the versions of operators it needs beside the usual ones.

    :param inputs: shape of one environment and type, of each input
    :param prefix: of all names in the graph
    :raises ValueError: if torch cannot export it
    """
    from onnx import compose

    name = type(users_own(module)).__name__
    model = _exported(module, inputs, opset, name)
    opsets = {one.domain: one.version for one in model.opset_import}
    if opsets.pop("", opset) != opset or model.functions:
        raise ArgumentError(f"model must have a {name} of operators of opset {opset}")
    del model.graph.value_info[:]
    for node in model.graph.node:  # traces of source lines, with paths of this machine
        del node.metadata_props[:]
        node.doc_string = ""
    return compose.add_prefix(model, prefix).graph, opsets


def _exported(module: nn.Module, inputs: Sequence[Shape], opset: int, name: str) -> Any:
    module = module.eval()
    device = next((p.device for p in module.parameters()), th.device("cpu"))
    examples = tuple(
        th.zeros((2, *shape), dtype=getattr(th, dtype), device=device) for shape, dtype in inputs
    )
    batch = th.export.Dim("batch", min=1)
    try:
        with _quietly(), th.no_grad():
            program = th.onnx.export(
                module,
                examples,
                dynamo=True,
                opset_version=opset,
                dynamic_shapes=(tuple({0: batch} for _ in inputs),),
                verbose=False,
            )
        assert program is not None
        program.optimize()
        return program.model_proto
    except Exception as error:  # an exporter can fail in any way
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ArgumentError(
            f"model must be made of modules that torch.onnx.export can follow, {name} is not: "
            f"{reason[0]}"
        ) from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep what torch's exporter has to say of itself from who exports."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

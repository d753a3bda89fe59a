"""What a logger holds and has written, taken out and put back.

SB3 empties its text files when it opens them, and begins another folder of TensorBoard's for each
call of ``learn``. What they held is therefore part of a checkpoint: texts whole, of TensorBoard's
event files their length, to which they are cut back.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.logger import (
    CSVOutputFormat,
    HumanOutputFormat,
    JSONOutputFormat,
    Logger,
    TensorBoardOutputFormat,
)

from thrust_pomdp.errors import warn_user

#: Formats that write a text file of their own.
_TEXTS = (CSVOutputFormat, JSONOutputFormat, HumanOutputFormat)

_EVENTS = "events.out.tfevents.*"


def log_state(logger: Logger) -> dict[str, Any]:
    """Return a logger's values that are not written yet, and what its files hold.

    Values of which nothing can be kept, such as figures, are left out.
    """
    return {
        "values": {
            name: value.detach().cpu().numpy() if isinstance(value, th.Tensor) else value
            for name, value in logger.name_to_value.items()
            if isinstance(value, (bool, int, float, str, np.generic, np.ndarray, th.Tensor))
        },
        "counts": dict(logger.name_to_count),
        "excluded": {name: list(given) for name, given in logger.name_to_excluded.items()},
        "formats": [_format_state(format_) for format_ in logger.output_formats],
    }


def set_log_state(logger: Logger, state: Mapping[str, Any]) -> None:
    """Put a logger and its files where they were.

    :param logger: with the same outputs
    :raises ValueError: if its outputs are others
    """
    before = [kept["class"] for kept in state["formats"]]
    now = [type(format_).__name__ for format_ in logger.output_formats]
    if before != now:
        raise ValueError(f"the logger's outputs were {before} and are {now}")
    for index, kept in enumerate(state["formats"]):
        format_ = logger.output_formats[index]
        if isinstance(format_, TensorBoardOutputFormat):
            logger.output_formats[index] = _continued(format_, kept)
        elif "text" in kept:
            _write_text(format_, kept["text"].tobytes())
        if isinstance(format_, CSVOutputFormat):
            format_.keys = list(kept["keys"])
    for name in ("name_to_value", "name_to_count", "name_to_excluded"):
        getattr(logger, name).clear()
    logger.name_to_value.update(state["values"])
    logger.name_to_count.update(state["counts"])
    logger.name_to_excluded.update(
        {name: tuple(given) for name, given in state["excluded"].items()}
    )


def _format_state(format_: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"class": type(format_).__name__}
    if isinstance(format_, TensorBoardOutputFormat):
        format_.writer.flush()
        folder = Path(format_.writer.log_dir)
        lengths = {path.name: path.stat().st_size for path in sorted(folder.glob(_EVENTS))}
        state.update(folder=str(folder), lengths=lengths)
    elif _own_file(format_) is not None:
        format_.file.flush()
        state["text"] = np.frombuffer(Path(format_.file.name).read_bytes(), dtype=np.uint8)
    if isinstance(format_, CSVOutputFormat):
        state["keys"] = list(format_.keys)
    return state


def _own_file(format_: Any) -> Any:
    """Return the text file that a format has opened itself, None for the screen."""
    if not isinstance(format_, _TEXTS) or not getattr(format_, "own_file", True):
        return None
    return format_.file


def _write_text(format_: Any, text: bytes) -> None:
    file = _own_file(format_)
    if file is None:
        return
    file.seek(0)
    file.truncate()
    file.flush()
    with Path(file.name).open("r+b") as raw:
        raw.write(text)
    file.seek(0, os.SEEK_END)


def _continued(format_: Any, kept: Mapping[str, Any]) -> Any:
    """Return an output that goes on in the folder of before, its files cut back."""
    folder, fresh = Path(kept["folder"]), Path(format_.writer.log_dir)
    if not folder.is_dir():
        warn_user(f"TensorBoard's folder {folder} is gone: what it held is lost, {fresh} goes on")
        return format_
    format_.close()
    if fresh.resolve() != folder.resolve():
        # Made by this call of learn(): its first event is all there is.
        for path in fresh.glob(_EVENTS):
            path.unlink()
        if not any(fresh.iterdir()):
            fresh.rmdir()
    for path in folder.glob(_EVENTS):
        length = kept["lengths"].get(path.name)
        if length is None:
            path.unlink()
        elif path.stat().st_size > length:
            os.truncate(path, length)
    return TensorBoardOutputFormat(str(folder))

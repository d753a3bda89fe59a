"""Files that appear whole or not at all, CSV files among them."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

#: How the names of files end that are not there yet.
UNFINISHED = ".unfinished"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all, whatever happens meanwhile.

    It is on the disk when this returns: a power cut later takes nothing of it.

    :raises OSError: if it cannot be written
    """
    descriptor, unfinished = tempfile.mkstemp(UNFINISHED, f"{path.name}.", path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(unfinished, 0o666 & ~_umask())  # a temporary file is for its owner only
        os.replace(unfinished, path)
        _sync_names(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV, whose lines end alike on every system."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table as a CSV file.

    :raises OSError: if it cannot be written
    """
    write_atomically(path, csv_text(head, rows).encode())


def _sync_names(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system offers that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

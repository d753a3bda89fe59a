"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

#: Ends the names of temporary files, which are left behind only where the power went.
UNFINISHED = ".unfinished"


def write_whole(path: Path, content: bytes) -> None:
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

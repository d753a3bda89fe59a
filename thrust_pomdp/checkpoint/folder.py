"""The files of a training: written whole or not at all, the latest two of each call kept.

``000-000000050000.safetensors`` is the state after 50,000 steps, in the first call of ``learn``;
``000-000000100352-end.safetensors`` the one in which that call ended. Where environments are
pickled, ``000-000000050000-envs.pkl`` lies beside it; the checkpoint holds its SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout  # comes with torch

from thrust_pomdp.errors import ArgumentError, warn_user
from thrust_pomdp.safe_files import DamagedFileError, read_tree, write_tree
from thrust_pomdp.whole_files import write_whole

_NAME = re.compile(r"(\d{3,})-(\d{12,})(-end)?\.safetensors")

KIND = "checkpoint of a training"

#: How many checkpoints of the call that runs are kept.
_KEPT = 2


class CheckpointFile(NamedTuple):
    """One of the files.

    :param path: where it is
    :param call: which call of ``learn`` it belongs to, from 0 on
    :param steps: that were done
    :param is_end: whether that call was done
    """

    path: Path
    call: int
    steps: int
    is_end: bool


class Folder:
    """The folder of a training's checkpoints.

    :param path: made when something is written
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock: FileLock | None = None

    def hold(self) -> None:
        """Keep other processes from using the folder.

        :raises ValueError: if one does
        """
        if self._lock is not None:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / "in-use.lock")
            lock.acquire(timeout=0)
        except Timeout:
            raise ArgumentError(
                f"path must be a folder that no other training uses: {self.path} is in use by "
                "another process"
            ) from None
        except OSError:
            return  # nothing can be written here, which the first checkpoint tells
        self._lock = lock

    def release(self) -> None:
        """Let other processes use the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def files(self, call: int | None = None) -> list[CheckpointFile]:
        """Return the files there are, the latest first.

        :param call: of this call of ``learn``; of all when None
        """
        found = []
        for path in self.path.glob("*.safetensors"):
            match = _NAME.fullmatch(path.name)
            if match is not None and (call is None or int(match[1]) == call):
                found.append(
                    CheckpointFile(path, int(match[1]), int(match[2]), match[3] is not None)
                )
        return sorted(found, key=lambda file: (file.call, file.steps, file.is_end), reverse=True)

    def write(
        self, call: int, steps: int, is_end: bool, tree: dict[str, Any], pickles: bytes | None
    ) -> bool:
        """Write a checkpoint, then remove those that it makes superfluous.

        :param pickles: what is to lie beside it
        :return: whether it could be written; if not, a warning has said why
        """
        name = f"{call:03d}-{steps:012d}{'-end' if is_end else ''}.safetensors"
        path = self.path / name
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if pickles is not None:
                write_whole(beside(path), pickles)
            write_tree(path, KIND, {**tree, "pickles": _digest(pickles)})
        except (OSError, TypeError, ValueError) as error:  # or somebody's state is none to keep
            reason = getattr(error, "strerror", None) or error
            warn_user(
                f"the checkpoint after {steps} steps could not be written into {self.path} "
                f"({reason}): training goes on, and the next iteration tries again"
            )
            return False
        files = self.files()
        kept = [file for file in files if file.call == call][:_KEPT]
        for file in files:
            if not file.is_end if file.call < call else file.call == call and file not in kept:
                _remove(file.path)
        return True

    def read_latest(
        self, call: int, with_pickles: bool
    ) -> tuple[CheckpointFile, dict[str, Any], bytes | None] | None:
        """Return the latest checkpoint of a call that can be read, None if there is none.

        One that is damaged is skipped with a warning.

        :param with_pickles: read what lies beside it, too
        """
        for file in self.files(call):
            try:
                tree, pickles = read_tree(file.path, KIND), None
                if with_pickles and tree["pickles"] is not None:
                    pickles = beside(file.path).read_bytes()
                    if _digest(pickles) != tree["pickles"]:
                        raise DamagedFileError(beside(file.path), "it is not the one written")
                return file, tree, pickles
            except (OSError, DamagedFileError) as error:
                warn_user(f"{error}; the checkpoint before it is taken")
        return None

    def clear(self) -> None:
        """Remove all checkpoints."""
        for file in self.files():
            _remove(file.path)


def beside(path: Path) -> Path:
    """Return where the pickles of a checkpoint lie."""
    return path.with_name(f"{path.stem}-envs.pkl")


def _remove(path: Path) -> None:
    for one in (path, beside(path)):
        with suppress(OSError):
            one.unlink()


def _digest(pickles: bytes | None) -> str | None:
    return None if pickles is None else hashlib.sha256(pickles).hexdigest()

"""A folder of results that one process at a time writes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from thrust_pomdp.experiment.atomic_write import UNFINISHED, write_atomically

LOCK = ".lock"


class ResultsFolder:
    """A folder of results, ``runs/NAME.json``, with a file that says what it was made with.

    :param path: the folder
    """

    #: The file that says what the folder was made with.
    MARKER: ClassVar[str]
    #: What makes such folders, for messages.
    MAKER: ClassVar[str]

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = path / "runs"

    def result_path(self, name: str) -> Path:
        """Return the file of a finished run."""
        return self.runs / f"{name}.json"

    def error_path(self, name: str) -> Path:
        """Return the file that tells why a run failed."""
        return self.runs / f"{name}.error.txt"

    def is_finished(self, name: str) -> bool:
        """Tell whether a run is finished."""
        return self.result_path(name).exists()

    def write_error(self, name: str, reason: str) -> None:
        """Write why a run failed."""
        write_atomically(self.error_path(name), reason.encode())

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Check that results made with these settings may go into this folder.

        :raises ValueError: if it holds something else, or results made with other settings
        """
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise ValueError(f"{self.path} must be a folder, it is a file")
        marker = self.path / self.MARKER
        if marker.exists():
            self._compare(self._read_marker(), as_json(settings))
        elif not (self._is_fresh() or self._is_ours_without_marker()):
            raise ValueError(
                f"{self.path} is not empty and was not made by a {self.MAKER}: choose another "
                "folder"
            )

    def _is_fresh(self) -> bool:
        """Tell whether nothing is in it, or what is left if its maker is killed at once."""
        runs = names_in(self.runs)
        return not runs and names_in(self.path) <= {LOCK, "runs"}

    def _is_ours_without_marker(self) -> bool:
        """Tell whether it is of a version that wrote no marker."""
        return False

    def _compare(self, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        """Check that settings agree."""
        for key in wanted:
            check_same(self.path, key, made.get(key), wanted[key])

    def _joined(self, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the marker says once results of agreeing settings have joined those there."""
        return dict(wanted)

    @contextlib.contextmanager
    def opened_with(
        self, settings: Mapping[str, Any], noted: Callable[[], Mapping[str, Any]] = dict
    ) -> Iterator[None]:
        """Make the folder and keep others out of it.

        The system takes the lock back when this process ends, however it ends.

        :param settings: what it is made with
        :param noted: called once the folder is ours; what else its file is to say
        :raises ValueError: as :meth:`check_settings`, or if another process has it open
        :raises OSError: if it cannot be written
        """
        self.check_settings(settings)
        self.runs.mkdir(parents=True, exist_ok=True)
        with _locked(self.path, self.MAKER):
            self.check_settings(settings)  # again: another process may have been at it until now
            for leftover in self.runs.glob(f"*{UNFINISHED}"):
                leftover.unlink()
            self._write_marker(as_json(settings), as_json(noted()))
            yield

    def _write_marker(self, settings: dict[str, Any], noted: Mapping[str, Any]) -> None:
        marker = self.path / self.MARKER
        content = {"thrust_pomdp": self.MAKER, "settings": settings}
        if marker.exists():
            joined = self._joined(self._read_marker(), settings)
            content = {**json.loads(marker.read_text()), "settings": joined}
        write_atomically(marker, json.dumps({**content, **noted}, indent=1).encode())

    def _read_marker(self) -> dict[str, Any]:
        marker = self.path / self.MARKER
        try:
            content = json.loads(marker.read_text())
            made_by, settings = content["thrust_pomdp"], content["settings"]
        except (ValueError, TypeError, KeyError):
            made_by, settings = None, None
        if made_by != self.MAKER or not isinstance(settings, dict):
            raise ValueError(f"{marker} was not written by a {self.MAKER}: choose another folder")
        return settings


@contextlib.contextmanager
def _locked(path: Path, maker: str) -> Iterator[None]:
    """Keep other processes out of a folder; the lock's file tells them which process it is."""
    from filelock import FileLock, Timeout

    def note(descriptor: int) -> None:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())

    lock = FileLock(path / LOCK, timeout=0, fallback_to_soft=False, on_acquired=note)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"{path} is in use by another {maker}{_holder(path)}: wait for it or choose another "
            "folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    try:
        return f", process {(path / LOCK).read_text()}"
    except OSError:  # on Windows what is locked cannot be read
        return ""


def names_in(path: Path) -> set[str]:
    """Return the names of what is in a folder; none if there is no such folder."""
    return {entry.name for entry in path.iterdir()} if path.is_dir() else set()


def as_json(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping as it comes back from a file."""
    loaded: dict[str, Any] = json.loads(json.dumps(mapping))
    return loaded


def check_same(path: Path, key: str, made: Any, wanted: Any, sign: str = "=") -> None:
    """Check that a setting is what it was.

    :raises ValueError: with both values
    """
    if made != wanted:
        raise ValueError(
            f"{path} was made with {key}{sign}{made!r}, not {wanted!r}: choose another folder"
        )

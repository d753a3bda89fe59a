"""The folder of a comparison: whose it is, what it was made with, and who may write to it."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from thrust_pomdp.experiment.runs import RunResult, RunSpec, curve_text, load_result, result_text

#: Says what a folder is, and with which settings it was made.
MARKER = "comparison.json"

_LOCK = ".lock"
_UNFINISHED = ".unfinished"

#: What a folder of the first version, which had no marker, may contain.
_WITHOUT_MARKER = frozenset({"runs", "summary.csv", "curves.csv", "curves.png", _LOCK})

#: Settings that runs of one folder may differ in.
_OF_ONE_RUN = ("arm", "seed", "hyperparams", "label")


class ComparisonFolder:
    """Results on disk: ``runs/NAME.json``, with the model and the course of the training beside it.

    ==============================  ===========================================================
    ``comparison.json``             what the folder was made with
    ``runs/NAME.json``              a finished run; written last, and whole or not at all
    ``runs/NAME.csv``               its course, a line per rollout
    ``runs/NAME.zip``               its model, for the algorithm's ``load``
    ``runs/NAME.normalizer.pkl``    its normaliser, for ``VecNormalizeVisible.load``
    ``runs/NAME.error.txt``         why it failed
    ``tensorboard/NAME_1``          its TensorBoard log, on request
    ==============================  ===========================================================

    :param path: the folder
    """

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

    def load(self, name: str) -> RunResult:
        """Read the result of a finished run."""
        return load_result(self.result_path(name))

    # ----------------------------------------------------------------------------- whose it is

    def check(self, specs: Sequence[RunSpec]) -> None:
        """Check that runs may go into this folder; nothing is written.

        :raises ValueError: if it holds something else, or runs made with other settings
        """
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise ValueError(f"{self.path} must be a folder, it is a file")
        if self._is_fresh():
            return
        marker = self.path / MARKER
        if marker.exists():
            self._check_settings(_read_marker(marker), _settings(specs))
        elif not self._was_made_without_marker():
            raise ValueError(
                f"{self.path} is not empty and was not made by a comparison: choose another folder"
            )
        for spec in specs:
            if self.is_finished(spec.name):
                self._check_run(spec)

    def _is_fresh(self) -> bool:
        """Tell whether nothing is in it, or what a comparison killed at once leaves."""
        runs = _names(self.runs) if self.runs.is_dir() else set()
        return not runs and _names(self.path) <= {_LOCK, "runs"}

    def _was_made_without_marker(self) -> bool:
        results = list(self.runs.glob("*.json")) if self.runs.is_dir() else []
        return bool(results) and _names(self.path) <= _WITHOUT_MARKER

    def _check_settings(self, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        for key in wanted:
            if key != "recipes":
                _check_same(self.path, key, made.get(key), wanted[key])
        for arm in wanted["recipes"].keys() & made["recipes"].keys():
            _check_recipe(self.path, arm, made["recipes"][arm], wanted["recipes"][arm])

    def _check_run(self, spec: RunSpec) -> None:
        path = self.result_path(spec.name)
        found, wanted = self.load(spec.name), _as_json(vars(spec))
        for key in wanted:
            # What a result of an earlier version does not tell, it did not have.
            default = RunSpec.__dataclass_fields__[key].default
            if key != "hyperparams":
                _check_same(path, key, found.spec.get(key, default), wanted[key])
        if found.recipe:
            _check_recipe(path, spec.arm, found.recipe, _as_json(spec.recipe.as_mapping()))

    # ---------------------------------------------------------------------------------- writing

    @contextlib.contextmanager
    def opened(self, specs: Sequence[RunSpec]) -> Iterator[None]:
        """Make the folder and keep others out of it.

        The system takes the lock back when this process ends, however it ends.

        :raises ValueError: as :meth:`check`, or if another process has it open
        :raises OSError: if it cannot be written
        """
        self.check(specs)
        self.runs.mkdir(parents=True, exist_ok=True)
        with (self.path / _LOCK).open("a+") as file:
            _lock(file, self.path)
            self.check(specs)  # again: another process may have been at it until now
            for leftover in self.runs.glob(f"*{_UNFINISHED}"):
                leftover.unlink()
            self._write_marker(_settings(specs))
            yield

    def _write_marker(self, settings: dict[str, Any]) -> None:
        marker = self.path / MARKER
        made = _read_marker(marker) if marker.exists() else {"recipes": {}}
        recipes = {**made["recipes"], **settings["recipes"]}
        content = {"thrust_pomdp": "comparison", "settings": {**settings, "recipes": recipes}}
        write_whole(marker, json.dumps(content, indent=1).encode())

    def write(self, name: str, result: RunResult, files: Mapping[str, bytes]) -> None:
        """Write what a finished run gave; it counts as finished once its result is there.

        :raises OSError: if it cannot be written
        """
        for ending, content in files.items():
            write_whole(self.runs / f"{name}{ending}", content)
        write_whole(self.runs / f"{name}.csv", curve_text(result).encode())
        save_result(result, self.result_path(name))
        self.error_path(name).unlink(missing_ok=True)

    def write_error(self, name: str, reason: str) -> None:
        """Write why a run failed."""
        write_whole(self.error_path(name), reason.encode())


def save_result(result: RunResult, path: Path) -> None:
    """Write a result; the file appears whole or not at all."""
    write_whole(path, result_text(result).encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all, whatever happens meanwhile.

    :raises OSError: if it cannot be written
    """
    descriptor, unfinished = tempfile.mkstemp(_UNFINISHED, f"{path.name}.", path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.chmod(unfinished, 0o666 & ~_umask())  # a temporary file is for its owner only
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _lock(file: IO[str], path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        _lock_windows(file, path)
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(path, file) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()


def _lock_windows(file: IO[str], path: Path) -> None:
    import msvcrt

    try:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        raise _in_use(path, None) from None


def _in_use(path: Path, file: IO[str] | None) -> ValueError:
    process = ""
    if file is not None:
        file.seek(0)
        process = f", process {file.read().strip()}"
    return ValueError(
        f"{path} is in use by another comparison{process}: wait for it or choose another folder"
    )


def _names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def _read_marker(marker: Path) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads(marker.read_text())["settings"]
        settings["recipes"].keys()
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(
            f"{marker} was not written by a comparison: choose another folder"
        ) from None
    return settings


def _settings(specs: Sequence[RunSpec]) -> dict[str, Any]:
    """Return what all runs of a folder share, and the recipe of each arm."""
    first = _as_json(vars(specs[0])) if specs else {}
    shared = {key: value for key, value in first.items() if key not in _OF_ONE_RUN}
    if any(spec.label for spec in specs):
        shared.pop("env_kwargs")  # its cells differ in these
    recipes = {spec.arm: spec for spec in specs}
    return {
        **shared,
        "recipes": {arm: _as_json(spec.recipe.as_mapping()) for arm, spec in recipes.items()},
    }


def _as_json(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping as it comes back from a file."""
    loaded: dict[str, Any] = json.loads(json.dumps(mapping))
    return loaded


def _check_recipe(path: Path, arm: str, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for key in sorted(made.keys() | wanted.keys()):
        # Absent and None are both the algorithm's default.
        _check_same(path, f"{key} in the recipe of {arm}", made.get(key), wanted.get(key), ": ")


def _check_same(path: Path, key: str, made: Any, wanted: Any, sign: str = "=") -> None:
    if made != wanted:
        raise ValueError(
            f"{path} was made with {key}{sign}{made!r}, not {wanted!r}: choose another folder"
        )

"""Files of arrays and JSON: reading one runs no code, whoever wrote it.

A file is one of the `safetensors <https://github.com/huggingface/safetensors>`_ format, so that
others can read its arrays too. Its metadata hold a JSON text for everything else, the kind of file
it is, and a SHA-256 over both, which tells damage (a forger would write another).

What is kept is a *tree*: dicts (keys are texts), lists, numbers, texts, None, and NumPy arrays and
numbers at the ends. In the JSON an array is named by its place, ``{"$array": "model.weights"}``;
numbers that JSON has no word for are spelt out.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

#: What may stand in metadata, and what must.
_KEYS = frozenset({"thrust_pomdp", "json", "sha256"})

#: Kinds of NumPy's numbers that have a place in safetensors: bools, integers and floats.
_NUMBERS = "biuf"

#: Deeper trees are refused, before Python refuses them with a traceback.
_DEEPEST = 100


class DamagedFileError(ValueError):
    """A file is not what it should be: the message names the file and the reason."""

    def __init__(self, path: Any, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}")
        self.path, self.reason = path, reason

    def __reduce__(self) -> Any:
        return DamagedFileError, (self.path, self.reason)


def write_tree(path: str | os.PathLike[str], kind: str, tree: Any) -> None:
    """Write a tree to a file: whole, or not at all.

    :param path: of the file; one that is there is replaced
    :param kind: what it is, which :func:`read_tree` compares
    :param tree: see above
    :raises TypeError: for what is not of a tree, naming its place
    :raises OSError: if it cannot be written; what was there stays as it is
    """
    from safetensors.numpy import save

    data, arrays = to_data(tree)
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    metadata = {"thrust_pomdp": kind, "json": text, "sha256": _digest(kind, text, arrays)}
    write_whole(Path(path), save(arrays, metadata))


def write_whole(path: Path, contents: bytes) -> None:
    """Write a file whole, or not at all.

    :raises OSError: if it cannot be written; what was there stays as it is
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Have a new name survive a power cut, where the system lets a folder be opened."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def read_tree(path: str | os.PathLike[str], kind: str) -> Any:
    """Read a tree from a file, running nothing of what is in it.

    :param path: of the file
    :param kind: what it must be
    :return: the tree; its arrays are new ones
    :raises DamagedFileError: a ``ValueError``, if it is no such file, or not whole
    :raises OSError: if there is none, or it cannot be read
    """
    data, arrays = _read(path, kind)
    try:
        return from_data(data, arrays)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise DamagedFileError(path, f"its JSON is not of a tree ({error})") from None


def _read(path: str | os.PathLike[str], kind: str) -> tuple[Any, Arrays]:
    from safetensors import SafetensorError, safe_open

    with Path(path).open("rb"):
        pass  # an OSError of its own, where the library has others
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if metadata.keys() != _KEYS:
                raise DamagedFileError(path, "it is not a file of thrust_pomdp")
            if metadata["thrust_pomdp"] != kind:
                raise DamagedFileError(
                    path, f"it holds a {metadata['thrust_pomdp'][:40]!r}, not a {kind!r}"
                )
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except DamagedFileError:
        raise
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise DamagedFileError(path, f"it is no whole safetensors file ({error})") from None
    text = metadata["json"]
    if _digest(kind, text, arrays) != metadata["sha256"]:
        raise DamagedFileError(path, "its contents do not agree with its checksum")
    try:
        return json.loads(text, object_pairs_hook=_once_each, parse_constant=_refused), arrays
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(path, f"its JSON cannot be read ({error})") from None


def _digest(kind: str, text: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    found = hashlib.sha256(json.dumps([kind, text]).encode())
    for name in sorted(arrays):
        array = arrays[name]
        found.update(json.dumps([name, array.dtype.str, list(array.shape)]).encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON's")


def to_data(tree: Any) -> tuple[Any, Arrays]:
    """Part a tree into what JSON holds and its arrays.

    >>> data, arrays = to_data({"a": np.zeros(2), "b": [1, float("inf")]})
    >>> data, list(arrays)
    ({'a': {'$array': 'a'}, 'b': [1, {'$float': 'inf'}]}, ['a'])

    :raises TypeError: for anything that is not of a tree, naming its place
    """
    arrays: Arrays = {}
    return _to_data(tree, "", arrays, 0), arrays


def _to_data(tree: Any, place: str, arrays: Arrays, depth: int) -> Any:
    if depth > _DEEPEST:
        raise TypeError(f"{place[:60]}... is more than {_DEEPEST} levels deep")
    if tree is None or isinstance(tree, (bool, str)):
        return tree
    if isinstance(tree, np.ndarray) and tree.dtype.kind in _NUMBERS:
        # Without a copy where it lies as a file has it; the order of bytes is the file's.
        native = tree.astype(tree.dtype.newbyteorder("="), copy=False)
        while not place or place in arrays:  # {"a.b": ..., "a": {"b": ...}}
            place += "'"
        arrays[place] = np.ascontiguousarray(native).reshape(tree.shape)
        return {"$array": place}
    if isinstance(tree, np.generic) and tree.dtype.kind in _NUMBERS:
        return {"$scalar": [tree.dtype.name, _to_data(tree.item(), place, arrays, depth)]}
    if isinstance(tree, int):
        return int(tree)
    if isinstance(tree, float):
        return float(tree) if math.isfinite(tree) else {"$float": repr(float(tree))}
    if isinstance(tree, (list, tuple)):
        return [
            _to_data(part, f"{place}.{number}", arrays, depth + 1)
            for number, part in enumerate(tree)
        ]
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str) or key.startswith("$"):
                raise TypeError(f"{place or 'the tree'} has a key that is no plain text: {key!r}")
        return {
            key: _to_data(part, f"{place}.{key}".lstrip("."), arrays, depth + 1)
            for key, part in tree.items()
        }
    raise TypeError(
        f"{place or 'the tree'} is a {type(tree).__name__}: what is kept is made of dicts, lists, "
        "numbers, texts and NumPy arrays of numbers"
    )


def from_data(data: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Put a tree together again.

    :raises ValueError: for data that :func:`to_data` does not write
    """
    if isinstance(data, list):
        return [from_data(part, arrays) for part in data]
    if not isinstance(data, dict):
        return data
    marks = [key for key in data if key.startswith("$")]
    if not marks:
        return {key: from_data(part, arrays) for key, part in data.items()}
    if data.keys() == {"$array"} and data["$array"] in arrays:
        return arrays[data["$array"]]
    if data.keys() == {"$float"} and data["$float"] in ("inf", "-inf", "nan"):
        return float(data["$float"])
    if data.keys() == {"$scalar"}:
        name, value = data["$scalar"]
        if name in _SCALARS:
            return _SCALARS[name](from_data(value, arrays))
    raise ValueError(f"{marks[0]} is not understood: {str(data)[:80]}")


_SCALARS: dict[str, type[np.generic]] = {
    np.dtype(cls).name: cls
    for cls in (
        np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32,
        np.uint64, np.float16, np.float32, np.float64,
    )
}  # fmt: skip

"""Trees of data in files: reading one runs no code, whoever wrote it.

The files are those of :mod:`thrust_pomdp.array_files`: safetensors with a JSON text. What is kept
is a *tree*: dicts (keys are texts), lists, numbers, texts, None, and NumPy arrays and numbers at
the ends. In the JSON an array is named by its place, ``{"$array": "model.weights"}``; numbers that
JSON has no word for are spelt out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp import array_files
from thrust_pomdp.array_files import SafeFileError

Arrays = dict[str, NDArray[Any]]

#: NumPy's numbers that have a place in safetensors, by name.
_NUMBERS: dict[str, type[np.generic]] = {
    np.dtype(cls).name: cls
    for cls in (
        np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32,
        np.uint64, np.float16, np.float32, np.float64,
    )
}  # fmt: skip

#: Deeper trees are refused, before Python refuses them with a traceback.
_DEEPEST = 100

#: Lists of so many numbers or more are kept as arrays.
_LONG_LIST = 64


class DamagedFileError(SafeFileError):
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
    :raises ValueError: for more numbers outside of arrays than :func:`read_tree` would take
    :raises OSError: if it cannot be written; what was there stays as it is
    """
    array_files.write(path, kind, *to_data(tree))


def read_tree(path: str | os.PathLike[str], kind: str) -> Any:
    """Read a tree from a file, running nothing of what is in it.

    :param path: of the file
    :param kind: what it must be
    :return: the tree; its arrays are new ones
    :raises DamagedFileError: a ``ValueError``, if it is no such file, or not whole
    :raises OSError: if there is none, or it cannot be read
    """
    try:
        data, arrays = array_files.read(path, kind)
    except SafeFileError as error:
        reason = str(error).removeprefix(f"{os.fspath(path)} ")
        raise DamagedFileError(path, f"it {reason}") from None
    try:
        return from_data(data, arrays)
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise DamagedFileError(path, f"its JSON is not of a tree ({error})") from None


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
    if isinstance(tree, np.ndarray) and tree.dtype.name in _NUMBERS:
        return {"$array": _keep(tree, place, arrays)}
    if isinstance(tree, np.generic) and tree.dtype.name in _NUMBERS:
        return {"$scalar": [tree.dtype.name, _to_data(tree.item(), place, arrays, depth)]}
    if isinstance(tree, int):
        return int(tree)
    if isinstance(tree, float):
        return float(tree) if math.isfinite(tree) else {"$float": repr(float(tree))}
    if isinstance(tree, (list, tuple)):
        numbers = _as_numbers(tree)
        if numbers is not None:
            return {"$list": _keep(numbers, place, arrays)}
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


def _keep(array: NDArray[Any], place: str, arrays: Arrays) -> str:
    """Add an array to those of the file; return its name there."""
    # Without a copy where it lies as a file has it; the order of bytes is the file's.
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    while not place or place in arrays:  # {"a.b": ..., "a": {"b": ...}}
        place += "'"
    arrays[place] = np.ascontiguousarray(native).reshape(array.shape)
    return place


def _as_numbers(items: Sequence[Any]) -> NDArray[Any] | None:
    """Return long lists of Python's numbers of one kind as an array; None for other lists.

    What is noted at each episode of a training would make a long text.
    """
    kinds = {type(item) for item in items} if len(items) >= _LONG_LIST else set()
    if kinds == {float}:
        return np.array(items, dtype=np.float64)
    if kinds == {bool}:
        return np.array(items, dtype=np.bool_)
    if kinds == {int} and min(items) >= -(2**63) and max(items) < 2**63:
        return np.array(items, dtype=np.int64)
    return None


def from_data(data: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Put a tree together again.

    :raises ValueError: for data that :func:`to_data` does not write
    """
    return _from_data(data, arrays, set())


def _from_data(data: Any, arrays: Mapping[str, NDArray[Any]], listed: set[str]) -> Any:
    if isinstance(data, list):
        return [_from_data(part, arrays, listed) for part in data]
    if not isinstance(data, dict):
        return data
    marks = [key for key in data if key.startswith("$")]
    if not marks:
        return {key: _from_data(part, arrays, listed) for key, part in data.items()}
    if data.keys() == {"$array"} and data["$array"] in arrays:
        return arrays[data["$array"]]
    if data.keys() == {"$list"} and data["$list"] in arrays:
        array = arrays[data["$list"]]
        # Each once: many places that name one array would make many times its size.
        is_new = data["$list"] not in listed
        listed.add(data["$list"])
        if is_new and array.ndim == 1 and array.dtype in (np.float64, np.int64, np.bool_):
            return array.tolist()
    if data.keys() == {"$float"} and data["$float"] in ("inf", "-inf", "nan"):
        return float(data["$float"])
    if data.keys() == {"$scalar"}:
        name, value = data["$scalar"]
        number = _from_data(value, {}, listed)
        if name in _NUMBERS and isinstance(number, (bool, int, float)):
            with np.errstate(over="raise"):
                return _NUMBERS[name](number)
    raise ValueError(f"{marks[0]} is not understood: {str(data)[:80]}")

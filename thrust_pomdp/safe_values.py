"""Values as JSON and arrays, and back: by a written-out table of classes, never by import.

What JSON has is itself. Anything else is an object with the key ``"$"``, which names what it is by
a :class:`Vocabulary`: a class of its table, or a kind of object that is made anew of plain parts.
What no vocabulary has (a function, a class of the user's own) is written as a blank that only the
program that reads can fill in, by ``custom_objects``.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from thrust_pomdp.array_files import SafeFileError, is_storable

#: Marks an object of JSON that stands for something else.
MARK = "$"
#: From so many items on a list of numbers is kept as an array.
_LONG = 64
#: What only the program can give.
_YOURS = "yours"


class Kind(NamedTuple):
    """How objects of one class are written and made anew.

    :param cls: the class; those derived from it are others
    :param parts: object -> its parts, values themselves, by name
    :param make: called with the parts by name
    """

    cls: type
    parts: Callable[[Any], dict[str, Any]]
    make: Callable[..., Any]


class Vocabulary:
    """What files may name.

    :param classes: name in the file -> class
    :param kinds: name in the file -> how its objects are written
    """

    def __init__(self, classes: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
        self.classes, self.kinds = dict(classes), dict(kinds)
        self._class_names = {id(cls): name for name, cls in self.classes.items()}
        self._kind_names = {kind.cls: name for name, kind in self.kinds.items()}

    def extended(
        self, classes: Mapping[str, Any] | None = None, kinds: Mapping[str, Kind] | None = None
    ) -> Vocabulary:
        """Return one with more in it."""
        return Vocabulary({**self.classes, **(classes or {})}, {**self.kinds, **(kinds or {})})

    def name_of_class(self, value: Any) -> str | None:
        """Return the name of a class, None if it has none."""
        return self._class_names.get(id(value))

    def kind_of(self, value: Any) -> tuple[str, Kind] | None:
        """Return how an object is written, None if it is of no kind."""
        name = self._kind_names.get(type(value))
        return None if name is None else (name, self.kinds[name])


class NotDataError(Exception):
    """Something that cannot be written as data; its argument says what it is."""


class Writer:
    """Turns values into JSON, and collects their arrays.

    :param vocabulary: what the file may name
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.arrays: dict[str, NDArray[Any]] = {}
        self._names: dict[Any, str] = {}

    def write(self, value: Any, path: str, strict: bool = False) -> Any:
        """Return a value as JSON.

        :param value: anything
        :param path: where it stands, dots between: the names of arrays, and what messages say
        :param strict: raise :class:`NotDataError` instead of leaving a blank
        """
        try:
            return self._write(value, path, strict)
        except NotDataError as error:
            if strict:
                raise
            return {MARK: _YOURS, "is": str(error)}

    def _write(self, value: Any, path: str, strict: bool) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {MARK: "float", "value": repr(value)}
        if type(value) is list:
            return self._write_items(value, path, strict)
        if type(value) in (tuple, deque):
            items = self._write_items(list(value), path, strict)
            if type(value) is tuple:
                return {MARK: "tuple", "items": items}
            return {MARK: "deque", "items": items, "maxlen": value.maxlen}
        if type(value) in (dict, OrderedDict):
            return self._write_dict(value, path, strict)
        is_array = type(value) is np.ndarray
        if (is_array or isinstance(value, np.generic)) and is_storable(value.dtype):
            name = self.keep(np.asarray(value), path)
            return {MARK: "array" if is_array else "number", "name": name}
        if isinstance(value, PurePath):
            return {MARK: "path", "value": str(value)}
        named = self._vocabulary.name_of_class(value)
        if named is not None:
            return {MARK: "class", "name": named}
        found = self._vocabulary.kind_of(value)
        if found is None:
            raise NotDataError(_what(value))
        name, kind = found
        # All of it or nothing: a schedule of somebody's function is theirs as a whole.
        parts = kind.parts(value)
        return {
            MARK: name,
            **{key: self.write(p, f"{path}.{key}", True) for key, p in parts.items()},
        }

    def _write_items(self, items: list[Any], path: str, strict: bool) -> Any:
        """Write a list; long ones of numbers as an array, of like dicts by their keys."""
        kinds = set(map(type, items)) if len(items) >= _LONG else set()
        if kinds == {float}:
            return {MARK: "list", "name": self.keep(np.array(items), path)}
        if kinds == {int} and all(-(2**63) <= number < 2**63 for number in items):
            return {MARK: "list", "name": self.keep(np.array(items, np.int64), path)}
        keys = list(items[0]) if kinds == {dict} else []
        are_texts = all(type(key) is str for key in keys)
        if keys and are_texts and all(list(row) == keys for row in items):
            columns = [
                self._write_items([row[key] for row in items], f"{path}.{key}", strict)
                for key in keys
            ]
            return {MARK: "rows", "keys": keys, "columns": columns}
        return [self.write(item, f"{path}.{n}", strict) for n, item in enumerate(items)]

    def _write_dict(self, value: dict[Any, Any], path: str, strict: bool) -> Any:
        if all(type(key) is str for key in value) and MARK not in value:
            return {key: self.write(v, f"{path}.{key}", strict) for key, v in value.items()}
        items = [
            [self.write(key, f"{path}.{key}", True), self.write(v, f"{path}.{key}", strict)]
            for key, v in value.items()
        ]
        return {MARK: "dict", "items": items}

    def keep(self, array: NDArray[Any], path: str, same_as: Any = None) -> str:
        """Keep an array under the name of its path, and return the name.

        :param array: the array
        :param path: where it stands
        :param same_as: what tells that it is one that is kept already
        """
        if same_as is not None and same_as in self._names:
            return self._names[same_as]
        name, number = path, 1
        while name in self.arrays:
            name, number = f"{path}#{number}", number + 1
        self.arrays[name] = array
        if same_as is not None:
            self._names[same_as] = name
        return name


class Reader:
    """Makes values of JSON and arrays.

    :param vocabulary: what the file may name
    :param arrays: of the file
    :param custom_objects: what the program gives, by the path of its place, or the last name of it
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        arrays: Mapping[str, NDArray[Any]],
        custom_objects: Mapping[str, Any] | None = None,
    ) -> None:
        self._vocabulary, self._arrays = vocabulary, arrays
        self._given = custom_objects or {}
        self._listed: set[str] = set()

    def read(self, data: Any, path: str) -> Any:
        """Return the value of JSON.

        :raises SafeFileError: for what no value is, or that the program must give and did not
        """
        if isinstance(data, list):
            return [self.read(item, f"{path}.{number}") for number, item in enumerate(data)]
        if not isinstance(data, dict):
            return data
        if MARK not in data:
            return {key: self.read(part, f"{path}.{key}") for key, part in data.items()}
        parts = {key: part for key, part in data.items() if key != MARK}
        try:
            return self._read_marked(data[MARK], parts, path)
        except SafeFileError:
            raise
        except Exception as error:  # whatever is wrong with the parts
            raise SafeFileError(
                f"has a {str(data[MARK])[:80]} at {path} that is none: {error}"
            ) from error

    def _read_marked(self, mark: Any, parts: dict[str, Any], path: str) -> Any:
        if mark == _YOURS:
            return self._read_yours(parts, path)
        if mark == "class":
            return self._class(parts["name"], path)
        if mark in ("array", "number"):
            array = self.array(parts["name"], path)
            return array if mark == "array" else array[()]
        if mark == "float":
            return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[parts["value"]]
        if mark == "path":
            return Path(_text(parts["value"]))
        if mark == "list":
            return self._list(parts["name"], path)
        if mark == "rows":
            columns = [self.read(column, path) for column in parts["columns"]]
            rows = zip(*columns, strict=True)
            return [dict(zip(map(_text, parts["keys"]), row, strict=True)) for row in rows]
        if mark in ("tuple", "deque"):
            items = self.read(parts["items"], path)
            if not isinstance(items, list):
                raise ValueError(f"items must be a list, got {str(items)[:80]}")
            return tuple(items) if mark == "tuple" else deque(items, parts["maxlen"])
        if mark == "dict":
            return {self.read(k, path): self.read(v, f"{path}.{k}") for k, v in _items(parts)}
        kind = self._vocabulary.kinds.get(mark) if isinstance(mark, str) else None
        if kind is None:
            raise SafeFileError(f"names {str(mark)[:80]!r} at {path}, which is not known here")
        return kind.make(**{key: self.read(part, f"{path}.{key}") for key, part in parts.items()})

    def _list(self, name: Any, path: str) -> list[Any]:
        array = self.array(name, path)
        # Each once: many places that name one array would make many times its size.
        if name in self._listed or array.ndim != 1 or array.dtype not in (np.float64, np.int64):
            raise ValueError("a list must be an array of one axis, of its own")
        self._listed.add(name)
        found: list[Any] = array.tolist()
        return found

    def _class(self, name: Any, path: str) -> Any:
        if not isinstance(name, str) or name not in self._vocabulary.classes:
            raise SafeFileError(
                f"names the class {str(name)[:80]!r} at {path}, which is not known here"
            )
        return self._vocabulary.classes[name]

    def _read_yours(self, parts: dict[str, Any], path: str) -> Any:
        last = path.rpartition(".")[2]
        name = path if last.isdigit() else last
        for key in (path, name):
            if key in self._given:
                return self._given[key]
        raise SafeFileError(
            f"was written with a {name} of somebody's own, {str(parts.get('is'))[:200]}, which no "
            f"file can hold as data: pass it by custom_objects={{{name!r}: ...}}"
        )

    def array(self, name: Any, path: str) -> NDArray[Any]:
        """Return an array of the file.

        :raises SafeFileError: if it has none of the name
        """
        if not isinstance(name, str) or name not in self._arrays:
            raise SafeFileError(f"has no array {str(name)[:80]!r}, which {path} needs")
        return self._arrays[name]


def _what(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', '?')}.{named.__qualname__}"


def _items(parts: dict[str, Any]) -> list[Any]:
    if not isinstance(parts["items"], list):
        raise ValueError(f"items must be a list, got {str(parts['items'])[:80]}")
    return parts["items"]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a text, got {str(value)[:80]}")
    return value


def _dtype(name: str) -> np.dtype[Any]:
    dtype = np.dtype(_text(name))
    if not is_storable(dtype):
        raise ValueError(f"{name} is no type of numbers")
    return dtype


def _make_box(low: NDArray[Any], high: NDArray[Any], dtype: str) -> spaces.Box:
    kind: Any = _dtype(dtype)
    if low.shape != high.shape or low.dtype != kind or high.dtype != kind:
        raise ValueError(f"bounds of {low.dtype} {low.shape} and {high.dtype} {high.shape}")
    return spaces.Box(low, high, dtype=kind)


def _make_multi_discrete(
    nvec: NDArray[Any], dtype: str, start: NDArray[Any]
) -> spaces.MultiDiscrete:
    kind: Any = _dtype(dtype)
    return spaces.MultiDiscrete(nvec, dtype=kind, start=start)


def _make_discrete(n: int, start: int, dtype: str) -> spaces.Discrete:
    kind: Any = _dtype(dtype)
    return spaces.Discrete(n, start=start, dtype=kind)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"must be a whole number from 1 on, got {str(value)[:80]}")
    return value


def _make_multi_binary(n: Any) -> spaces.MultiBinary:
    return spaces.MultiBinary(_whole(n) if not isinstance(n, list) else [_whole(v) for v in n])


#: The spaces that SB3's networks read.
SPACES = {
    # Whole bounds: a file of big observations is as big as they are, whoever wrote it.
    "Box": Kind(
        spaces.Box,
        lambda box: {"low": box.low, "high": box.high, "dtype": box.dtype.name},
        _make_box,
    ),
    "Discrete": Kind(
        spaces.Discrete,
        lambda space: {"n": int(space.n), "start": int(space.start), "dtype": space.dtype.name},
        _make_discrete,
    ),
    "MultiDiscrete": Kind(
        spaces.MultiDiscrete,
        lambda space: {"nvec": space.nvec, "dtype": space.dtype.name, "start": space.start},
        _make_multi_discrete,
    ),
    "MultiBinary": Kind(
        spaces.MultiBinary,
        lambda space: {"n": space.n if isinstance(space.n, int) else [int(n) for n in space.n]},
        _make_multi_binary,
    ),
    # Pairs, since a space of a plain dict sorts its keys.
    "Dict": Kind(
        spaces.Dict,
        lambda space: {"keys": list(space.spaces), "parts": list(space.spaces.values())},
        lambda keys, parts: spaces.Dict(list(zip(keys, parts, strict=True))),
    ),
    "Tuple": Kind(
        spaces.Tuple, lambda space: {"parts": list(space.spaces)}, lambda parts: spaces.Tuple(parts)
    ),
}

#: What files on every floor may name.
PLAIN = Vocabulary({}, SPACES)

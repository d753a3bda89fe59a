"""Files of arrays and JSON: opening one runs nothing, whoever wrote it.

A file is one safetensors file, which the library of that name reads in any language. Its arrays are
what is big; its metadata holds the rest as JSON, a schema's number, and a SHA-256 over both. What a
file says of sizes is compared with the file's own before anything is made of it, and arrays are
views of the bytes read: opening takes the file's size in memory, and a bounded little more.

The SHA-256 tells of damage. It is no signature: who changes a file on purpose can change it, too.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_switch
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.whole_files import write_whole

#: What a path without a suffix gets.
SUFFIX = ".safetensors"
#: Of the layout of the JSON; a file of a later one is refused.
SCHEMA = 1

#: Names of types in safetensors' header, and NumPy's.
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
}
_SUPPORTED = frozenset(np.dtype(name) for name in _DTYPES.values())
#: Numbers, texts and brackets of JSON that any file may have, and bytes of file for one more: each
#: becomes an object of Python's, which is bigger than the ``[],`` that it may be written as.
_PARTS, _BYTES_PER_PART = 50_000, 16
#: The longest header, in bytes: it is there several times while it is read.
_LONGEST_HEADER = 2**23

Array = NDArray[Any]
#: A path, or an opened binary file.
File = str | os.PathLike[str] | IO[bytes]


class SafeFileError(ArgumentError):
    """A file that is not what it should be, or something that cannot be written as data.

    A ``ValueError``; its message names the file and the reason.
    """


def is_storable(dtype: np.dtype[Any]) -> bool:
    """Tell whether arrays of a type can be written."""
    return dtype.newbyteorder("<") in _SUPPORTED


def write(file: File, kind: str, data: Any, arrays: Mapping[str, Array]) -> None:
    """Write a file, whole or not at all.

    :param file: a path, which gets ``.safetensors`` where it has no suffix, or an opened file
    :param kind: what it holds, for whoever reads it
    :param data: what JSON can hold
    :param arrays: by name, of NumPy's numbers and bools
    :raises SafeFileError: for arrays of anything else, NaN in ``data``, and more in ``data`` than
        :func:`read` would take
    :raises OSError: if it cannot be written
    """
    content = as_bytes(kind, data, arrays)
    if not isinstance(file, (str, os.PathLike)):
        file.write(content)
        return
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path if path.suffix else path.with_name(path.name + SUFFIX), content)


def as_bytes(kind: str, data: Any, arrays: Mapping[str, Array]) -> bytes:
    """Return the content of a file."""
    from safetensors.numpy import save

    ready = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    for name, array in ready.items():
        if not is_storable(array.dtype):
            raise SafeFileError(f"the array {name!r} must be of numbers, got {array.dtype}")
        ready[name] = array.astype(array.dtype.newbyteorder("<"), copy=False)
    try:
        text = json.dumps(
            {"kind": kind, "schema": SCHEMA, "data": data}, allow_nan=False, separators=(",", ":")
        )
    except ValueError as error:
        raise SafeFileError(f"data must be what JSON can hold: {error}") from None
    metadata = {"format": "thrust_pomdp", "json": text, "sha256": _digest(text, ready)}
    content = bytes(save(ready, metadata))
    _check_readable(content)
    return content


def _check_readable(content: bytes) -> None:
    """Refuse to write what would be refused when it is read, when it is too late."""
    length = int.from_bytes(content[:8], "little")
    try:
        _check_length(length)
        _check_parts(content, len(content), "header", 8, 8 + length)
    except SafeFileError as error:
        raise SafeFileError(
            f"the file {error}: it has more in its data than goes without arrays, keep long lists "
            "as arrays of numbers"
        ) from None


def read(file: File, kind: str) -> tuple[Any, dict[str, Array]]:
    """Read what :func:`write` wrote, and check it.

    :param file: a path, with ``.safetensors`` behind it if there is no such file, or an opened file
    :param kind: what it must hold
    :return: data, and arrays by name, which may be written to
    :raises SafeFileError: if the file is anything else
    :raises FileNotFoundError: if there is none
    """
    _, data, arrays = read_kinds(file, (kind,))
    return data, arrays


def read_kinds(file: File, kinds: Sequence[str]) -> tuple[str, Any, dict[str, Array]]:
    """Read a file that may hold one of several kinds, as :func:`read` does.

    :return: the kind, data and arrays
    """
    name, content = _content(file)
    try:
        return _parse(content, kinds)
    except SafeFileError as error:
        raise SafeFileError(f"{name} {error}") from None


def check_trusted(file: Any, trusted: Any) -> None:
    """Refuse to unpickle what is not trusted.

    :param file: a pickle, or what is taken for one
    :param trusted: what the program says
    :raises SafeFileError: naming the file
    """
    if not check_switch("trusted", trusted):
        raise SafeFileError(
            f"{name_of(file)} is read as a pickle, which can run any code, and is not trusted: "
            "have it saved anew by save_safe"
        )


def name_of(file: File) -> str:
    """Return what a file is called in messages."""
    if isinstance(file, (str, os.PathLike)):
        return os.fspath(file)
    return str(getattr(file, "name", "the opened file"))


def is_safe_file(file: str | os.PathLike[str]) -> bool:
    """Tell from its first bytes whether a file is a safetensors file."""
    with open(file, "rb") as opened:
        start = opened.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < os.path.getsize(file)


def _content(file: File) -> tuple[str, bytearray]:
    if not isinstance(file, (str, os.PathLike)):
        return name_of(file), bytearray(file.read())
    path = Path(file)
    if not path.exists() and Path(f"{path}{SUFFIX}").exists():
        path = Path(f"{path}{SUFFIX}")
    if not path.exists():
        raise FileNotFoundError(f"there is no file at {path}, nor with {SUFFIX} behind it")
    if not path.is_file():
        raise SafeFileError(f"{path} must be a file")
    with open(path, "rb") as opened:
        content = bytearray(os.fstat(opened.fileno()).st_size)
        if opened.readinto(content) != len(content):
            raise SafeFileError(f"{path} changed while it was read")
    return str(path), content


def _parse(content: bytearray, kinds: Sequence[str]) -> tuple[str, Any, dict[str, Array]]:
    # A header's length may begin with any bytes; its text does with a bracket.
    is_other = content[8:9] != b"{"
    if is_other and content[:2] == b"PK":
        raise SafeFileError(
            "is a zip file, such as SB3's save() writes: load() reads those, with trusted=False "
            "without running what is in them"
        )
    if is_other and content[:1] == b"\x80":
        raise SafeFileError("is a pickle, which is not read here: it could run any code")
    if len(content) < 8:
        raise SafeFileError(f"must be a safetensors file, has only {len(content)} bytes")
    length = int.from_bytes(content[:8], "little")
    if length > len(content) - 8:
        raise SafeFileError(
            f"must be a safetensors file: it says that its header has {length} bytes, of "
            f"{len(content)} that there are"
        )
    _check_length(length)
    header = parse_json(memoryview(content)[8 : 8 + length], len(content), "header")
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__"), dict):
        raise SafeFileError("was not written by this package: its header has no metadata")
    metadata = header.pop("__metadata__")
    if metadata.get("format") != "thrust_pomdp" or metadata.keys() != {"format", "json", "sha256"}:
        raise SafeFileError("was not written by this package, by what its metadata say")
    text = metadata["json"]
    if not isinstance(text, str):
        raise SafeFileError("must have its JSON as a text")
    arrays = _arrays(header, memoryview(content)[8 + length :])
    if _digest(text, arrays) != metadata["sha256"]:
        raise SafeFileError("is damaged: its SHA-256 is not that of what it holds")
    return *_checked(parse_json(text, len(content), "JSON"), kinds), arrays


def _check_length(length: int) -> None:
    if length > _LONGEST_HEADER:
        raise SafeFileError(
            f"has a header of {length:,} bytes, where {_LONGEST_HEADER:,} are the most"
        )


def _check_parts(
    text: Any, size: int, what: str, start: int | None = None, end: int | None = None
) -> None:
    marks = ",[{:" if isinstance(text, str) else (b",", b"[", b"{", b":")
    n_parts = sum(text.count(mark, start, end) for mark in marks)
    if n_parts > _PARTS + size // _BYTES_PER_PART:
        raise SafeFileError(f"has a {what} of more parts than a file of its size may have")


def _checked(whole: Any, kinds: Sequence[str]) -> tuple[str, Any]:
    if not isinstance(whole, dict) or whole.keys() != {"kind", "schema", "data"}:
        raise SafeFileError("must hold kind, schema and data")
    schema = whole["schema"]
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        raise SafeFileError(
            f"has the schema {schema!r}, this version reads those up to {SCHEMA}: a later version "
            "of thrust_pomdp may have written it"
        )
    if whole["kind"] not in kinds:
        raise SafeFileError(f"must hold {' or '.join(kinds)}, holds {str(whole['kind'])[:80]!r}")
    return whole["kind"], whole["data"]


def parse_json(
    text: str | bytes | bytearray | memoryview, size: int, what: str, takes_constants: bool = False
) -> Any:
    """Read JSON, strictly: each key once, and not more parts than there is memory for.

    :param text: the JSON
    :param size: of the file that it is from
    :param what: what it is, for messages
    :param takes_constants: whether it may have NaN and Infinity, as Python writes them
    :raises SafeFileError: if it is not so
    """
    try:
        decoded = text if isinstance(text, str) else str(text, "utf-8")
    except ValueError as error:
        raise SafeFileError(f"has a {what} that is no JSON: {error}") from None
    _check_parts(decoded, size, what)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            counted = Counter(name for name, _ in pairs)
            twice = counted.most_common(1)[0][0]
            raise SafeFileError(f"has the key {twice[:80]!r} twice in its {what}")
        return found

    def constant(name: str) -> Any:
        if takes_constants:
            return float(name)
        raise SafeFileError(f"has {name} in its {what}, which is no JSON")

    def number(text: str) -> float:
        if math.isinf(found := float(text)) and not takes_constants:
            raise SafeFileError(f"has {text[:40]} in its {what}, which is no finite number")
        return found

    try:
        return json.loads(
            decoded, object_pairs_hook=once, parse_constant=constant, parse_float=number
        )
    except SafeFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise SafeFileError(f"has a {what} that is no JSON: {error}") from None


def _arrays(header: dict[str, Any], buffer: memoryview) -> dict[str, Array]:
    """Make views of the buffer, which they must fill without a gap or an overlap."""
    entries = [(name, *_entry(name, entry)) for name, entry in header.items()]
    found, end = {}, 0
    for name, dtype, shape, begin, stop in sorted(entries, key=lambda entry: entry[3:]):
        if begin != end:
            raise SafeFileError(
                f"must have its arrays one behind the other, {name!r} begins at {begin} instead of "
                f"{end}"
            )
        if stop > len(buffer) or stop - begin != math.prod(shape) * dtype.itemsize:
            raise SafeFileError(
                f"has an array {name!r} of shape {shape} and {dtype.name} in bytes {begin} to "
                f"{stop} of {len(buffer)}, where that does not fit"
            )
        array = np.frombuffer(buffer, dtype, math.prod(shape), begin) if stop > begin else None
        if array is None:
            array = np.empty(0, dtype)
        elif dtype.kind == "b" and array.view(np.uint8).max() > 1:
            raise SafeFileError(f"has an array {name!r} of bools that are neither 0 nor 1")
        found[name] = (array if array.flags.aligned else array.copy()).reshape(shape)
        end = stop
    if end != len(buffer):
        raise SafeFileError(f"has {len(buffer) - end} bytes behind its arrays")
    return found


def _entry(name: str, entry: Any) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    if isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}:
        shape, offsets = entry["shape"], entry["data_offsets"]
        are_lists = isinstance(shape, list) and isinstance(offsets, list)
        are_counts = are_lists and all(type(n) is int and n >= 0 for n in (*shape, *offsets))
        is_known = isinstance(entry["dtype"], str) and entry["dtype"] in _DTYPES
        # NumPy's arrays have no more axes, and their sizes fit a signed number.
        is_possible = are_counts and len(shape) <= 32 and all(n < 2**63 for n in shape)
        if is_known and is_possible and len(offsets) == 2:
            return np.dtype(_DTYPES[entry["dtype"]]), tuple(shape), offsets[0], offsets[1]
    raise SafeFileError(
        f"has an entry for the array {name[:80]!r} that is none: {str(entry)[:200]}"
    )


def _digest(text: str, arrays: Mapping[str, Array]) -> str:
    """Return the SHA-256 of the JSON and of all arrays, their names, types and shapes included."""
    sha = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        sha.update(f"\0{name}\0{array.dtype.name}\0{array.shape}\0".encode())
        sha.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return sha.hexdigest()

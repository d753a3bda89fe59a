"""Values as arrays and JSON-able data, and back again exactly (NumPy only).

What an object remembers can be written to a file that holds no code: :func:`packed` turns values
into nested dicts and lists of arrays, numbers, texts, bools and None, :func:`unpacked` into values
of the very types that they had. What JSON would not tell apart is a dict with the key ``"~"``,
which says what it stands for: a tuple, a NumPy number, a deque, a generator.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

State = dict[str, Any]

#: Says of a dict what it stands for.
KIND = "~"

_PLAIN = (type(None), bool, int, float, str)

#: Arrays that files hold as they are, by the names of their types.
_IN_FILES = frozenset({
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
})  # fmt: skip

#: Kinds of NumPy's types whose bytes are all there is to them.
_OF_BYTES = "biufcmMSU"

#: NumPy's bit generators; a state names one of them, and no other class.
_BITS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


class NoStateError(ValueError):
    """A value that cannot be taken apart into arrays and JSON-able data, and where it was."""


def packed(value: Any, where: str) -> Any:
    """Turn a value into arrays and JSON-able data, sharing no memory with it.

    >>> packed((1, [2.5]), "pair")
    {'~': 'tuple', 'items': [1, [2.5]]}

    :param value: of Python's plain types and containers, NumPy's numbers, arrays and generators
    :param where: what it is, for the message
    :raises NoStateError: for anything else, subclasses of these types included
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return _packed_items(value, where)
    if kind is dict and all(map(_is_plain_key, value)):
        return {key: packed(part, f"{where}[{key!r}]") for key, part in value.items()}
    if kind is np.ndarray and _is_plain_array(value):
        return value.copy()
    if isinstance(value, np.generic) and value.dtype.kind in _OF_BYTES:
        return {KIND: "number", "value": packed(np.array(value), where)}
    if kind in _PACKERS:
        name, pack = _PACKERS[kind]
        return {KIND: name, **pack(value, where)}
    raise NoStateError(
        f"{where} must be made of numbers, texts, arrays and generators to be kept without a "
        f"pickle, it is a {kind.__module__}.{kind.__qualname__}"
    )


def unpacked(data: Any, where: str) -> Any:
    """Turn what :func:`packed` returned into the value again, sharing no memory with it.

    >>> unpacked({'~': 'tuple', 'items': [1, [2.5]]}, "pair")
    (1, [2.5])

    :param where: what it is, for the message
    :raises ValueError: for what :func:`packed` does not return
    """
    kind = type(data)
    if kind in _PLAIN:
        return data
    if kind is list:
        return [unpacked(part, f"{where}[{idx}]") for idx, part in enumerate(data)]
    if kind is np.ndarray:
        return data.copy(order="K")
    if kind is not dict:
        raise ValueError(f"{where} must be arrays and JSON-able data, got {data!r}")
    if KIND not in data:
        return {key: unpacked(part, f"{where}[{key!r}]") for key, part in data.items()}
    if data[KIND] not in _UNPACKERS:
        raise ValueError(f"{where} must be of a kind that is known, got {data[KIND]!r}")
    try:
        return _UNPACKERS[data[KIND]](data, where)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{where} must be a whole {data[KIND]}, got {data!r}: {error}") from error


def _is_plain_key(key: Any) -> bool:
    """Tell whether a key means nothing here, nor in files of trees (``safe_files``)."""
    return type(key) is str and key != KIND and not key.startswith("$")


def _is_plain_array(array: NDArray[Any]) -> bool:
    """Tell whether an array is in a file what it is in memory."""
    return array.dtype.name in _IN_FILES and array.dtype.isnative and array.flags.c_contiguous


def packed_entries(infos: Any, where: str) -> Any:
    """Do what :func:`packed` does with infos, leaving out the entries that cannot be kept.

    :param infos: dicts, and lists and tuples of them
    """
    if type(infos) in (list, tuple):
        return [packed_entries(part, where) for part in infos]
    if not isinstance(infos, dict):
        return packed(infos, where)
    kept: dict[Any, Any] = {}
    for key, part in infos.items():
        if _is_plain_key(key):
            try:
                kept[key] = packed_entries(part, where)
            except NoStateError:
                continue
    return kept


def _packed_items(values: Sequence[Any], where: str) -> list[Any]:
    return [packed(part, f"{where}[{idx}]") for idx, part in enumerate(values)]


def _pack_items(value: Any, where: str) -> State:
    return {"items": _packed_items(list(value), where)}


def _pack_deque(value: deque[Any], where: str) -> State:
    return {"items": _packed_items(list(value), where), "maxlen": value.maxlen}


def _pack_dict(value: dict[Any, Any], where: str) -> State:
    parts = [packed(part, f"{where}[{key!r}]") for key, part in value.items()]
    return {"keys": _packed_items(list(value), where), "values": parts}


def _pack_array(value: NDArray[Any], where: str) -> State:
    """Pack an array of objects, or one that is spelt out: its type, its order and its bytes."""
    shape = list(value.shape)
    if value.dtype == object:
        return {"shape": shape, "items": _packed_items(value.ravel().tolist(), where)}
    if value.dtype.kind not in _OF_BYTES:
        raise NoStateError(f"{where} must be an array of numbers or texts, got {value.dtype}")
    # Sums go through memory, so that its order is part of the value.
    order: Any = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    found = np.array(bytearray(value.tobytes(order)), np.uint8)
    return {"shape": shape, "dtype": value.dtype.str, "order": order, "bytes": found}


def _pack_generator(value: np.random.Generator, where: str) -> State:
    bits = value.bit_generator
    if type(bits).__name__ not in _BITS or type(bits).__module__.partition(".")[0] != "numpy":
        raise NoStateError(f"{where} must draw from bits of NumPy's own, got {bits!r}")
    return {"bits": packed(dict(bits.state), where), "seeds": _seeds(bits)}


def _seeds(bits: np.random.BitGenerator) -> State | None:
    """Return what the generator's own children are made of (``Generator.spawn``)."""
    seeds = getattr(bits, "seed_seq", None)
    if type(seeds) is not np.random.SeedSequence:
        return None
    entropy = seeds.entropy
    whole = entropy is None or isinstance(entropy, (int, np.integer))
    return {
        "entropy": entropy if entropy is None else int(entropy) if whole else _ints(entropy),  # type: ignore[arg-type]
        "spawn_key": _ints(seeds.spawn_key),
        "pool_size": int(seeds.pool_size),
        "n_children_spawned": int(seeds.n_children_spawned),
    }


def _ints(values: Any) -> list[int]:
    return [int(value) for value in values]


def _unpack_generator(data: State, where: str) -> np.random.Generator:
    name = data["bits"]["bit_generator"]
    if name not in _BITS:
        raise ValueError(f"bits must be NumPy's, {_BITS}, got {name!r}")
    seeds = data["seeds"]
    bits = getattr(np.random, name)(None if seeds is None else np.random.SeedSequence(**seeds))
    bits.state = unpacked(data["bits"], where)
    return np.random.Generator(bits)


def _unpack_random_state(data: State, where: str) -> np.random.RandomState:
    state = np.random.RandomState()
    state.set_state(unpacked(data["state"], where))
    return state


def _unpack_random(data: State, where: str) -> Random:
    random = Random()
    random.setstate(unpacked(data["state"], where))
    return random


def _unpack_array(data: State, where: str) -> NDArray[Any]:
    if "bytes" in data:
        dtype = np.dtype(data["dtype"])
        if dtype.kind not in _OF_BYTES:
            raise ValueError(f"dtype must be of numbers or texts, got {dtype}")
        found = data["bytes"].tobytes()
        array: NDArray[Any] = np.ndarray(data["shape"], dtype, found, order=data["order"])
        return array.copy(order="K")
    items = unpacked(data["items"], where)
    array = np.empty(len(items), dtype=object)
    for idx, item in enumerate(items):
        array[idx] = item
    return array.reshape(data["shape"])


def _unpack_number(data: State, where: str) -> Any:
    value = unpacked(data["value"], where)
    if not isinstance(value, np.ndarray) or value.ndim:
        raise ValueError(f"value must be an array without axes, got {value!r}")
    return value[()]


_PACKERS: dict[type, tuple[str, Callable[[Any, str], State]]] = {
    tuple: ("tuple", _pack_items),
    set: ("set", _pack_items),
    deque: ("deque", _pack_deque),
    dict: ("dict", _pack_dict),
    OrderedDict: ("ordered dict", _pack_dict),
    np.ndarray: ("array", _pack_array),
    np.random.Generator: ("generator", _pack_generator),
    np.random.RandomState: (
        "random state",
        lambda value, where: {"state": packed(value.get_state(legacy=False), where)},
    ),
    Random: ("random", lambda value, where: {"state": packed(value.getstate(), where)}),
}


def _items(data: State, where: str) -> Any:
    return unpacked(data["items"], where)


def _pairs(data: State, where: str) -> Any:
    return zip(unpacked(data["keys"], where), unpacked(data["values"], where), strict=True)


_UNPACKERS: dict[str, Callable[[State, str], Any]] = {
    "tuple": lambda data, where: tuple(_items(data, where)),
    "set": lambda data, where: set(_items(data, where)),
    "deque": lambda data, where: deque(_items(data, where), data["maxlen"]),
    "dict": lambda data, where: dict(_pairs(data, where)),
    "ordered dict": lambda data, where: OrderedDict(_pairs(data, where)),
    "array": _unpack_array,
    "generator": _unpack_generator,
    "random state": _unpack_random_state,
    "random": _unpack_random,
    "number": _unpack_number,
}

"""What differs between two outcomes of the same steps, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Keys of times on a clock, in the infos of SB3's and Gymnasium's monitors.
_TIMES = ("t",)


def first_difference(one: Any, other: Any, where: str) -> str | None:
    """Say what differs first between two values, bit for bit; None if nothing does.

    Times of episodes are left out, and so are objects that are equal to themselves only.

    >>> first_difference({"a": np.zeros(2)}, {"a": np.array([0.0, 1.0])}, "info")
    "info['a'] is [0. 1.] and not [0. 0.]"
    """
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return f"{where} has {sorted(map(str, one.keys() ^ other.keys()))} once only"
        pairs = [(f"[{key!r}]", part, other[key]) for key, part in one.items()]
        return _first(pairs if where[-11:] != "['episode']" else _timeless(pairs), where)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return f"{where} has {len(other)} entries and not {len(one)}"
        return _first(
            [(f"[{idx}]", *pair) for idx, pair in enumerate(zip(one, other, strict=True))], where
        )
    if _same(one, other):
        return None
    return f"{where} is {other} and not {one}"


def _first(pairs: list[tuple[str, Any, Any]], where: str) -> str | None:
    found = (first_difference(one, other, where + name) for name, one, other in pairs)
    return next((difference for difference in found if difference is not None), None)


def _timeless(pairs: list[tuple[str, Any, Any]]) -> list[tuple[str, Any, Any]]:
    return [pair for pair in pairs if pair[0] not in [f"[{name!r}]" for name in _TIMES]]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (np.ndarray, np.generic, float)):
        mine, others = np.asarray(one), np.asarray(other)
        if mine.dtype != others.dtype or mine.shape != others.shape:
            return False
        if mine.dtype == object:
            return first_difference(mine.ravel().tolist(), others.ravel().tolist(), "") is None
        return mine.tobytes() == others.tobytes()
    if type(one) is not type(other):
        return False
    equal: Any = type(one).__eq__
    if equal is object.__eq__:
        return True
    try:
        return bool(one == other)
    except Exception:  # of objects of others
        return False

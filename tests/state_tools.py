"""States written to a file of arrays and JSON, as checkpoints do, and objects compared whole."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from thrust_pomdp.safe_files import from_data, to_data
from thrust_pomdp.vec_env.differences import first_difference


def kept_in_file(state: Any) -> Any:
    """Send a state through what a file of arrays and JSON holds; nothing else gets through."""
    data, arrays = to_data(state)
    text = json.dumps(data, allow_nan=False)
    stored = {}
    for name, array in arrays.items():
        assert array.flags.c_contiguous
        stored[name] = np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape).copy()
    return from_data(json.loads(text), stored)


def assert_equal(one: Any, other: Any) -> None:
    """Compare two outcomes bit for bit, times of episodes aside."""
    difference = first_difference(_lists(one), _lists(other), "outcome")
    assert difference is None, difference


def _lists(value: Any) -> Any:
    return list(map(_lists, value)) if isinstance(value, (tuple, list)) else value


def differing_attributes(
    one: Any, other: Any, path: str = "", seen: set[int] | None = None
) -> list[str]:
    """Walk two objects alike and name what differs, wherever it is kept.

    Generators are compared by their states. Only the package's and the tests' own objects, and
    what containers hold, are walked into.
    """
    seen = set() if seen is None else seen
    if id(one) in seen:
        return []
    seen.add(id(one))
    if isinstance(one, np.random.Generator):
        states = [rng.bit_generator.state if rng is not None else None for rng in (one, other)]
        return [] if first_difference(*states, "") is None else [path]
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted(map(str, one.keys() ^ other.keys()))
        found = [f"{path}[{name}]" for name in names]
        for key in one.keys() & other.keys():
            found += differing_attributes(one[key], other[key], f"{path}[{key!r}]", seen)
        return found
    if type(one) in (list, tuple) or type(one).__name__ == "deque":
        if len(one) != len(other):
            return [path]
        return [
            name
            for idx, pair in enumerate(zip(one, other, strict=True))
            for name in differing_attributes(*pair, f"{path}[{idx}]", seen)
        ]
    walked = ("thrust_pomdp", "gymnasium", "stable_baselines3")
    if hasattr(one, "__dict__") and type(one).__module__.partition(".")[0] in walked:
        if type(one) is not type(other):
            return [path]
        return differing_attributes(vars(one), vars(other), f"{path}.", seen)
    return [] if first_difference([one], [other], "") is None else [path]

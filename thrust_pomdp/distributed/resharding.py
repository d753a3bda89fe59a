"""States of environments, divided among other numbers of processes.

What a process's vector of environments remembers is a tree of dicts, lists and arrays. What in it
belongs to single environments has an axis, or a list, of their number. It is recognised by a
*template*: the state of a vector of the new size, in which exactly these have another length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from thrust_pomdp.states import KIND, packed, unpacked

#: Kinds of packed values that are taken apart here.
_ARRAYS = ("array", "number")
_ITEMS = ("tuple", "deque", "list")


class Sizes(NamedTuple):
    """Numbers of environments.

    :param before: of each process that the states are of
    :param now: of this process
    :param first: number of this process's first one among all
    """

    before: int
    now: int
    first: int

    @property
    def rows(self) -> slice:
        """This process's environments among all."""
        return slice(self.first, self.first + self.now)


def resharded(states: Sequence[Any], template: Any, sizes: Sizes) -> Any:
    """Return the state of this process's environments.

    >>> states = [{"place": np.array([0.0, 1.0]), "steps": 7}] * 2
    >>> sizes = Sizes(before=2, now=4, first=0)
    >>> resharded(states, {"place": np.zeros(4), "steps": 0}, sizes)["place"].tolist()
    [0.0, 1.0, 0.0, 1.0]

    :param states: of all processes, in the order of their environments
    :param template: of a vector of ``sizes.now`` environments; None where there is none
    :param sizes: which differ: states of as many environments need nothing
    """
    first = states[0]
    if isinstance(first, dict):
        return _of_dicts(states, template, sizes)
    if isinstance(first, list):
        return _of_lists(states, template, sizes)
    if isinstance(first, np.ndarray):
        return _of_arrays(states, template, sizes)
    if isinstance(first, bool):
        return any(states)  # what one has met or must do again, all have
    if isinstance(first, int):
        if first == sizes.before and template == sizes.now:
            return template
        # Counts are the same everywhere, but for how many steps may go by until something is due.
        return min(states) if all(isinstance(state, int) for state in states) else first
    return first


def _of_dicts(states: Sequence[dict[str, Any]], template: Any, sizes: Sizes) -> Any:
    kind = states[0].get(KIND)
    if kind in _ARRAYS:
        before = None if template is None else unpacked(template, "template")
        values = [unpacked(state, "state") for state in states]
        if not isinstance(values[0], np.ndarray):
            return states[0]
        return packed(_of_arrays(values, before, sizes), "state")
    if kind in _ITEMS:
        inside = template.get("items") if isinstance(template, dict) else None
        items = [state["items"] for state in states]
        return {**states[0], "items": _of_lists(items, inside, sizes, kind != "deque")}
    if kind in ("generator", "random", "random state", "space"):
        return states[0]
    result = {}
    for key in dict.fromkeys(key for state in states for key in state):
        inside = template.get(key) if isinstance(template, dict) else None
        parts = [state.get(key) for state in states]
        if key == "fixed":
            result[key] = {
                name: _fixed(value, (inside or {}).get(name), sizes)
                for name, value in states[0]["fixed"].items()
            }
        elif any(part is None for part in parts):
            result[key] = _with_gaps(parts, inside, sizes)
        else:
            result[key] = resharded(parts, inside, sizes)
    return result


def _fixed(value: Any, template: Any, sizes: Sizes) -> Any:
    """Return what must be equal for a state to fit: arguments, arrays for each environment."""
    if isinstance(value, np.ndarray):
        return value if _axis(value, template, sizes) is None else template
    return template if value == sizes.before and template == sizes.now else value


def _with_gaps(parts: Sequence[Any], template: Any, sizes: Sizes) -> Any:
    """Return what only some processes remember; where others have nothing, zeros stand."""
    known = next((part for part in parts if part is not None), None)
    if isinstance(known, np.ndarray):
        filled = [np.zeros_like(known) if part is None else part for part in parts]
        return resharded(filled, template, sizes)
    return known


def _of_lists(
    states: Sequence[list[Any]], template: Any, sizes: Sizes, may_be_of_envs: bool = True
) -> list[Any]:
    length = len(states[0])
    is_known = isinstance(template, list)
    if may_be_of_envs and length == sizes.before and (not is_known or len(template) == sizes.now):
        return [part for state in states for part in state][sizes.rows]
    inside = template if is_known and len(template) == length else [None] * length
    shortest = min(map(len, states))
    return [
        resharded([state[idx] for state in states], inside[idx], sizes) for idx in range(shortest)
    ]


def _of_arrays(states: Sequence[Any], template: Any, sizes: Sizes) -> Any:
    axis = _axis(states[0], template, sizes)
    if axis is None:
        return states[0]
    whole = np.concatenate(states, axis=axis)
    index: list[slice] = [slice(None)] * whole.ndim
    index[axis] = sizes.rows
    return np.ascontiguousarray(whole[tuple(index)])


def _axis(array: Any, template: Any, sizes: Sizes) -> int | None:
    """Return the axis of an array that has an entry for each environment, None if there is none."""
    candidates = [axis for axis, size in enumerate(array.shape) if size == sizes.before]
    if isinstance(template, np.ndarray) and template.ndim == array.ndim:
        candidates = [
            axis
            for axis in candidates
            if template.shape[axis] == sizes.now
            and all(
                size == other
                for place, (size, other) in enumerate(zip(array.shape, template.shape, strict=True))
                if place != axis
            )
        ]
    return candidates[0] if candidates else None

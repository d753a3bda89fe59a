"""Objects whose memory can be taken out and put back exactly (NumPy only).

All that an object keeps is its state, unless its class says that it is not: an attribute that is
added later, by a subclass or from outside, is held or complained of, and never forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from thrust_pomdp.states import KIND, NoStateError, State, packed, unpacked

#: Names of attributes; of those that a class names, classes derived from it name more.
Names = Iterable[str]

#: What is done once all of a state is known to fit.
Changes = list[Callable[[], None]]


class Attributes(NamedTuple):
    """What of an object's attributes is no plain state.

    :param ignored: not kept: made by the constructor and never changed, or nobody's memory
    :param fixed: what must be equal for a state to fit, such as the constructor's arguments
    :param shaped: arrays that keep their shape and type, numbers that keep their type
    """

    ignored: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    shaped: frozenset[str] = frozenset()


class Stateful:
    """Base of what has a state that can be taken out and put back, as arrays and JSON-able data.

    A subclass need say nothing: what it keeps is its state. Names of what is not go into the class
    attributes below, which add to those of the classes it inherits from.

    >>> class Counter(Stateful):
    ...     def __init__(self, step):
    ...         self.step, self.count = step, 0
    ...     _fixed_state = ("step",)
    >>> counter, other = Counter(2), Counter(2)
    >>> counter.count = 7
    >>> other.set_state(counter.get_state())
    >>> other.count
    7
    """

    #: Attributes that are not kept: constants, and what is nobody's memory, such as windows.
    _no_state: Names = ()
    #: Attributes that must be equal for a state to fit.
    _fixed_state: Names = ()
    #: Arrays that keep their shape and type, lists that keep their length, numbers their type.
    _shaped_state: Names = ()

    def get_state(self) -> State:
        """Return what this object remembers: nested dicts of arrays and JSON-able data.

        :raises NoStateError: a ``ValueError`` naming the attribute, if one cannot be kept so
        """
        return attributes_state(self, _attributes_of(type(self)))

    def set_state(self, state: State) -> None:
        """Take over what :meth:`get_state` of an object made with the same arguments returned.

        :raises ValueError: naming what does not fit; nothing has been changed then
        """
        apply(self.prepare_state(state, type(self).__name__))

    def prepare_state(self, state: Any, where: str) -> Changes:
        """Check a state, and return what is to be done to take it over.

        :param where: what the state is of, for messages
        :raises ValueError: naming what does not fit
        """
        changes = prepare_attributes(self, state, _attributes_of(type(self)), where)
        return [*changes, self._after_state]

    def _after_state(self) -> None:
        """Make attributes one object again that were one."""


class StatefulEnv(Stateful):
    """Base, beside ``gym.Env``, of environments that keep what they remember in attributes.

    That is all it takes for a program's own environment to go on exactly where it was. What is no
    array, number, text, container or NumPy generator, such as a window, has to be named.

    >>> import gymnasium as gym
    >>> class Corridor(StatefulEnv, gym.Env):
    ...     _no_state = ("window",)
    ...     def __init__(self):
    ...         self.cell, self.window = 0, object()
    >>> env, other = Corridor(), Corridor()
    >>> env.cell = 7
    >>> other.set_state(env.get_state())
    >>> other.cell
    7
    """

    _no_state: Names = ("metadata", "render_mode", "spec")


def apply(changes: Changes) -> None:
    """Do what has been prepared."""
    for change in changes:
        change()


def _attributes_of(cls: type) -> Attributes:
    names = ("_no_state", "_fixed_state", "_shaped_state")
    return Attributes(
        *(frozenset(n for base in cls.__mro__ for n in vars(base).get(name, ())) for name in names)
    )


def class_name(thing: Any) -> str:
    """Return module and name of an object's class."""
    return f"{type(thing).__module__}:{type(thing).__qualname__}"


def attributes_state(thing: Any, names: Attributes) -> State:
    """Return an object's attributes as arrays and JSON-able data.

    :param thing: any object with attributes
    :param names: what of them is no plain state
    :raises NoStateError: naming the attribute that cannot be kept so
    """
    state: State = {"class": class_name(thing), "fixed": {}, "attributes": {}}
    known: dict[int, str] = {}
    for name, value in vars(thing).items():
        if name in names.fixed:
            state["fixed"][name] = _fixed(value)
        elif name not in names.ignored:
            where = f"{name} of {type(thing).__name__}"
            # One object under two names is one object afterwards, too.
            first = known.setdefault(id(value), name) if _is_changeable(value) else name
            state["attributes"][name] = (
                part_state(value, where) if first == name else {KIND: "same", "as": first}
            )
    return state


def _is_changeable(value: Any) -> bool:
    kinds = (np.ndarray, np.random.Generator, np.random.RandomState, list, dict, set, deque)
    return isinstance(value, kinds) or _stays(value)


def _fixed(value: Any) -> Any:
    """Return something that is equal for equal values, and can be kept."""
    try:
        return packed(value, "")
    except NoStateError:
        return repr(value)


def part_state(value: Any, where: str) -> Any:
    """Return the state of what an object keeps in an attribute.

    Beside values these are objects that stay, and whose memory is changed in place: those with a
    state of their own, running statistics of SB3's and Gymnasium's, and spaces, which have
    generators. Dicts of them have them too.

    :raises NoStateError: naming what cannot be kept
    """
    if isinstance(value, Stateful):
        return {KIND: "object", "state": value.get_state()}
    if is_statistics(value):
        moments = {name: packed(getattr(value, name), where) for name in _MOMENTS}
        return {KIND: "statistics", **moments}
    if is_space(value):
        return {KIND: "space", "generators": packed(_generators(value), where)}
    if type(value) is dict and any(map(_stays, value.values())):
        parts = [part_state(part, f"{where}[{key!r}]") for key, part in value.items()]
        return {KIND: "parts", "keys": packed(list(value), where), "parts": parts}
    return packed(value, where)


def prepare_attributes(thing: Any, state: Any, names: Attributes, where: str) -> Changes:
    """Check what :func:`attributes_state` returned, and return what is to be done to set it.

    :param where: what the state is of, for messages
    :raises ValueError: naming what does not fit
    """
    check_keys(state, ("class", "fixed", "attributes"), where)
    if state["class"] != class_name(thing):
        raise ValueError(
            f"state['class'] of {where} must be {class_name(thing)!r}, got {state['class']!r}"
        )
    own = vars(thing)
    mine = {name: _fixed(value) for name, value in own.items() if name in names.fixed}
    check_keys(state["fixed"], mine, f"{where}, 'fixed'")
    for name, value in mine.items():
        if not _equal(value, state["fixed"][name]):
            raise ValueError(
                f"state[{name!r}] of {where} must be that of this object, {value!r}, got "
                f"{state['fixed'][name]!r}"
            )
    theirs = state["attributes"]
    if not isinstance(theirs, dict):
        raise ValueError(f"state['attributes'] of {where} must be a dict, got {theirs!r}")
    gone = [name for name in own if name not in {*names.ignored, *names.fixed, *theirs}]
    lacking = [name for name in gone if not hasattr(type(thing), name)]
    if lacking:
        raise ValueError(
            f"state of {where} must hold the attribute {lacking[0]!r}, got {sorted(theirs)}"
        )
    values, changes = {}, Changes()
    same: dict[str, Any] = {}
    for name, data in theirs.items():
        if name in names.ignored or name in names.fixed:
            raise ValueError(f"state of {where} must hold memory only, got the attribute {name!r}")
        of_part = f"{where}, attribute {name!r}"
        current = own.get(name)
        if type(data) is dict and data.get(KIND) == "same":
            same[name] = data.get("as")
            continue
        values[name] = prepare_part(data, current, changes, of_part)
        if name in names.shaped:
            _check_shape(values[name], current, of_part)

    for name, first in same.items():
        if first not in values:
            raise ValueError(f"state of {where}, attribute {name!r}, must be there, got {first!r}")
        values[name] = values[first]

    def change() -> None:
        for name in gone:
            del own[name]
        own.update(values)

    return [change, *changes]


def prepare_part(data: Any, current: Any, changes: Changes, where: str) -> Any:
    """Check the state of one attribute, and return the value that it is to have.

    :param current: its value now
    :param changes: gets what is to be done to objects that stay
    :raises ValueError: naming what does not fit
    """
    kind = data.get(KIND) if type(data) is dict else None
    if kind == "object":
        if not isinstance(current, Stateful):
            raise ValueError(f"state of {where} must be of a value, got that of an object")
        changes.extend(current.prepare_state(data.get("state"), where))
    elif kind == "statistics":
        changes.append(_prepare_statistics(data, current, where))
    elif kind == "space":
        changes.extend(_prepare_space(data, current, where))
    elif kind == "parts":
        keys, parts = unpacked(data.get("keys"), where), data.get("parts")
        mine = list(current) if type(current) is dict else None
        if keys != mine or not isinstance(parts, list) or len(parts) != len(keys):
            raise ValueError(f"state of {where} must be of the parts {mine}, got {keys}")
        return {
            key: prepare_part(part, current[key], changes, f"{where}[{key!r}]")
            for key, part in zip(keys, parts, strict=True)
        }
    else:
        value = unpacked(data, where)
        if _stays(current):
            raise ValueError(f"state of {where} must be an object's, got {value!r}")
        return value
    return current


def check_keys(state: Any, names: Iterable[str], where: str) -> None:
    """Refuse what is no dict with certain keys.

    :raises ValueError: naming the key
    """
    wanted = list(names)
    if not isinstance(state, dict) or set(state) != set(wanted):
        got = sorted(state) if isinstance(state, dict) else state
        raise ValueError(f"state of {where} must be a dict of {sorted(wanted)}, got {got!r}")


_MOMENTS = ("mean", "var", "count")


def is_statistics(value: Any) -> bool:
    """Tell whether something is SB3's or Gymnasium's ``RunningMeanStd`` itself."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return kind.__name__ == "RunningMeanStd" and package in ("gymnasium", "stable_baselines3")


def is_space(value: Any) -> bool:
    """Tell whether something is one of Gymnasium's spaces, or derived from one."""
    return any(
        base.__name__ == "Space" and base.__module__ == "gymnasium.spaces.space"
        for base in type(value).__mro__
    )


def _stays(value: Any) -> bool:
    return isinstance(value, Stateful) or is_statistics(value) or is_space(value)


def _subspaces(space: Any) -> list[Any]:
    parts = getattr(space, "spaces", ())
    parts = list(parts.values()) if hasattr(parts, "values") else list(parts)
    one = [getattr(space, name, None) for name in ("feature_space", "node_space", "edge_space")]
    return parts + [part for part in one if part is not None]


def _generators(space: Any) -> list[Any]:
    """List the generators of a space and of all that it is made of, None for what has none yet."""
    return [part._np_random for part in _in_depth(space)]


def _prepare_space(data: State, current: Any, where: str) -> Changes:
    generators = unpacked(data.get("generators"), where)
    if not is_space(current) or not isinstance(generators, list):
        raise ValueError(f"state of {where} must be of a value, got that of a space")
    ordered = _in_depth(current)
    if len(ordered) != len(generators):
        raise ValueError(
            f"state of {where} must be of {len(ordered)} spaces, got {len(generators)}"
        )

    def change() -> None:
        for space, generator in zip(ordered, generators, strict=True):
            space._np_random = generator

    return [change]


def _in_depth(space: Any) -> list[Any]:
    return [space, *(part for sub in _subspaces(space) for part in _in_depth(sub))]


def _prepare_statistics(data: State, current: Any, where: str) -> Callable[[], None]:
    if not is_statistics(current):
        raise ValueError(f"state of {where} must be of a value, got that of running statistics")
    check_keys(data, (KIND, *_MOMENTS), where)
    moments = {name: unpacked(data[name], f"{where}, {name!r}") for name in _MOMENTS}
    for name in ("mean", "var"):
        if np.shape(moments[name]) != np.shape(current.mean):
            raise ValueError(
                f"state[{name!r}] of {where} must be of shape {np.shape(current.mean)}, got "
                f"{np.shape(moments[name])}"
            )

    def change() -> None:
        for name, value in moments.items():
            setattr(current, name, value)

    return change


def _check_shape(value: Any, current: Any, where: str) -> None:
    if isinstance(current, np.ndarray):
        rule = f"state of {where} must be an array of shape {current.shape}, {current.dtype}"
        if not isinstance(value, np.ndarray):
            raise ValueError(f"{rule}, got {value!r}")
        if (value.shape, value.dtype) != (current.shape, current.dtype):
            raise ValueError(f"{rule}, got {value.shape}, {value.dtype}")
    elif isinstance(current, (list, tuple)):
        if type(value) is not type(current) or len(value) != len(current):
            raise ValueError(
                f"state of {where} must be a {type(current).__name__} of {len(current)}, got "
                f"{value!r}"
            )
    elif current is not None and type(value) is not type(current):
        raise ValueError(f"state of {where} must be a {type(current).__name__}, got {value!r}")


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)

"""Classes as they were written, remembered before a program could change them.

A substitute (a compiled loop, a native vector, a prepared step) computes what certain methods say.
It stands in for them only as long as they say so: a subclass may override one, a program may
replace one on an object or on the class itself.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)

_WRITTEN: dict[type, dict[str, Any]] = {}


def remember(cls: Class) -> Class:
    """Remember a class as it is now, with all it inherits; a decorator for its definition."""
    _WRITTEN[cls] = {name: _attribute(cls, name) for name in dir(cls)}
    return cls


def _attribute(cls: type, name: str) -> Any:
    """Return an attribute of a class; of a class method, made anew each time, its function."""
    found = getattr(cls, name, None)
    return found.__func__ if isinstance(found, MethodType) else found


def against_methods(thing: object, names: Iterable[str], cls: type) -> str | None:
    """Say which of an object's methods is not the one that a class was written with.

    :param thing: the object
    :param names: of the methods
    :param cls: a class that :func:`remember` was called with
    :return: the first that differs, and how; None where none does
    """
    written, found = _WRITTEN[cls], type(thing)
    # A method may call the one it overrides.
    inherited = [base for base in cls.__mro__[1:] if base in _WRITTEN]
    for name in names:
        if getattr(found, name, None) is not written[name]:
            return f"{found.__name__}.{name} is not that of {cls.__name__}"
        if name in vars(thing):
            return f"{name} was replaced on the {found.__name__}"
        for base in inherited:
            if getattr(base, name, None) is not _WRITTEN[base].get(name):
                return f"{base.__name__}.{name} was replaced"
    return None


def against_class(cls: type) -> str | None:
    """Say what of a class is no longer as it was written.

    :param cls: the class
    :return: the first attribute that differs, or that nothing is known of the class because
        :func:`remember` was not called with it; None where all is as it was
    """
    if cls not in _WRITTEN:
        return f"{cls.__name__} is not one of the classes that are known"
    if _is_plainly_unchanged(cls):
        return None
    for name, attribute in _WRITTEN[cls].items():
        found = _attribute(cls, name)
        if found is not attribute and not _moves_by_itself(name, attribute, found):
            return f"{cls.__name__}.{name} was replaced"
    return None


def _is_plainly_unchanged(cls: Any) -> bool:
    """Tell in little time, as most classes are as they were."""
    names, attributes, methods = _compared(cls)
    found = map(getattr, itertools.repeat(cls), names, itertools.repeat(None))
    if not all(map(operator.is_, found, attributes)):
        return False
    return all(_attribute(cls, name) is function for name, function in methods.items())


@functools.cache
def _compared(cls: Any) -> tuple[list[str], list[Any], dict[str, Any]]:
    """Part what is remembered of a class into what is itself each time, and class methods."""
    written = {n: a for n, a in _WRITTEN[cls].items() if not _moves_by_itself(n, a)}
    plain = {n: a for n, a in written.items() if getattr(cls, n, None) is a}
    return list(plain), list(plain.values()), {n: written[n] for n in written.keys() - plain.keys()}


def _moves_by_itself(name: str, *attributes: Any) -> bool:
    """Tell whether an attribute is one that classes keep of themselves, and no method."""
    return name.startswith("__") and not any(isinstance(a, FunctionType) for a in attributes)


def against_family(cls: type) -> str | None:
    """Say what of a class, or of a class that it inherits from, is no longer as it was written.

    A method that calls the one it overrides is as it was where the overridden one is too, which
    the class itself does not show.

    :param cls: the class
    :return: as of :func:`against_class`
    """
    inherited = [base for base in cls.__mro__[1:] if base in _WRITTEN]
    return next(filter(None, map(against_class, [cls, *inherited])), None)


def against_object(thing: object, cls: type[Any]) -> str | None:
    """Say why an object is not one of a class as that was written, with nothing replaced on it.

    :param thing: the object
    :param cls: a class that :func:`remember` was called with
    :return: what differs; None where nothing does
    """
    if type(thing) is not cls:
        return f"a {type(thing).__name__} is not a {cls.__name__} itself"
    known: Any = cls
    replaced = _methods(known).intersection(vars(thing))
    if replaced:
        return f"{min(replaced)} was replaced on the {cls.__name__}"
    return against_family(cls)


@functools.cache
def _methods(cls: Any) -> frozenset[str]:
    """Return the names of a class's methods and properties."""
    written = _WRITTEN[cls].items()
    return frozenset(n for n, a in written if callable(a) or isinstance(a, property))

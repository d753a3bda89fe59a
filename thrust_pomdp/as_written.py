"""Classes as they were written, remembered before a program could change them.

A substitute (a compiled loop, a native vector, a prepared step) computes what certain methods say.
It stands in for them only as long as they say so: a subclass may override one, a program may
replace one on an object or on the class itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)

_WRITTEN: dict[type, dict[str, Any]] = {}


def remember(cls: Class) -> Class:
    """Remember a class as it is now, with all it inherits; a decorator for its definition."""
    _WRITTEN[cls] = {name: getattr(cls, name, None) for name in dir(cls)}
    return cls


def against_methods(thing: object, names: Iterable[str], cls: type) -> str | None:
    """Say which of an object's methods is not the one that a class was written with.

    :param thing: the object
    :param names: of the methods
    :param cls: a class that :func:`remember` was called with
    :return: the first that differs, and how; None where none does
    """
    written, found = _WRITTEN[cls], type(thing)
    for name in names:
        if getattr(found, name, None) is not written[name]:
            return f"{found.__name__}.{name} is not that of {cls.__name__}"
        if name in vars(thing):
            return f"{name} was replaced on the {found.__name__}"
    return None


def against_class(cls: type) -> str | None:
    """Say what of a class is no longer as it was written.

    :param cls: a class that :func:`remember` was called with
    :return: the first attribute that differs; None where none does
    """
    for name, attribute in _WRITTEN[cls].items():
        # What classes keep of themselves moves by itself.
        if not name.startswith("__") and getattr(cls, name, None) is not attribute:
            return f"{cls.__name__}.{name} was replaced"
    return None

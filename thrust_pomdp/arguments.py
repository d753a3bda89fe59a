"""Checks of arguments, with messages that name the argument, the rule and the value."""

from __future__ import annotations

import operator
from typing import Any


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number.

    :raises ValueError: if it is none, or below ``least``
    """
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None
    if isinstance(value, bool) or count < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")
    return count


def check_number(name: str, value: Any) -> float:
    """Return a number.

    :raises ValueError: if it is none
    """
    if isinstance(value, (str, bytes, bool)):
        raise ValueError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None


def check_positive(name: str, value: Any) -> float:
    """Return a positive number.

    :raises ValueError: if it is none
    """
    number = check_number(name, value)
    if not number > 0:
        raise ValueError(f"{name} must be positive, got {value!r}")
    return number


def check_fraction(name: str, value: Any) -> float:
    """Return a number in [0, 1].

    :raises ValueError: if it is none
    """
    number = check_number(name, value)
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value!r}")
    return number


def check_flag(name: str, value: Any) -> bool:
    """Return a bool.

    :raises ValueError: for anything else: ``"no"`` has a truth value too
    """
    if isinstance(value, bool) or (hasattr(value, "dtype") and value.dtype == bool):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {value!r}")

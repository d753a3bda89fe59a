"""Values of recipes as people write them: schedules, ``dict(...)`` and names of torch's classes.

Recipes stay data until a model is made of them, so that they can be saved, compared and shown.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

#: Arguments that may follow a schedule.
SCHEDULED = ("learning_rate", "clip_range", "clip_range_vf")

#: What YAML spells otherwise than Python.
_YAML = {
    spelled: value
    for name, value in (("true", True), ("false", False), ("null", None))
    for spelled in (name, name.upper(), name.capitalize())
} | {"~": None}

_MODULES = ("nn.", "th.", "torch.", "recurrent.")

#: What ``ast`` raises at texts that are no literal: unhashable keys and too many brackets, too.
UNREADABLE = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


class Linear(NamedTuple):
    """A value that changes linearly from the start of the training to its end."""

    start: float
    end: float


def parse_schedule(name: str, value: Any) -> float | Linear | None:
    """Read a constant, or rl-zoo's ``lin_START`` with the end, if it is not 0, after it.

    >>> parse_schedule("learning_rate", "lin_3e-3"), parse_schedule("clip_range", "0.2")
    (Linear(start=0.003, end=0.0), 0.2)
    >>> parse_schedule("learning_rate", "lin_3e-3_1.5e-4")
    Linear(start=0.003, end=0.00015)

    :param name: what it is for, for messages
    :param value: the value in the recipe
    :raises ValueError: for anything else
    """
    if value is None:
        return None
    kind, _, numbers = str(value).partition("_")
    try:
        if kind != "lin":
            return _finite(value)
        start, _, end = numbers.partition("_")
        return Linear(_finite(start), _finite(end or 0.0))
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{name} must be a number, lin_START or lin_START_END, such as lin_3e-3 or "
            f"lin_3e-3_1.5e-4, got {value!r}"
        ) from None


def _finite(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(value)
    return number


def parse_number(value: Any) -> Any:
    """Read a number in a text, which ``1e-3`` is to YAML 1.1; anything else stays as it is."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def parse_dict(name: str, value: Any) -> dict[str, Any]:
    """Read a mapping, or rl-zoo's text ``dict(key=value, ...)``, without running any code.

    Names such as ``nn.ReLU`` stay text until :func:`resolve_classes`.

    >>> parse_dict("policy_kwargs", "dict(net_arch=dict(pi=[64]), activation_fn=nn.ReLU)")
    {'net_arch': {'pi': [64]}, 'activation_fn': 'nn.ReLU'}

    :param name: what it is for, for messages
    :param value: the value in the recipe
    :raises ValueError: for anything else
    """
    if isinstance(value, str):
        try:
            value = _data(_literal(ast.parse(value.strip(), mode="eval").body))
        except UNREADABLE:
            raise ValueError(
                f"{name} must be a mapping or dict(key=value, ...) of numbers, texts, lists and "
                f"names such as nn.ReLU, got {value!r}"
            ) from None
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping, got {value!r}")
    if not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name} must map names to values, got {value!r}")
    return dict(value)


def _literal(node: ast.expr) -> Any:
    """Evaluate what a recipe may contain."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        if node.args or any(keyword.arg is None for keyword in node.keywords):
            raise ValueError("dict takes key=value only")
        return {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = [ast.literal_eval(key) for key in node.keys if key is not None]
        return dict(zip(keys, map(_literal, node.values), strict=True))
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(element) for element in node.elts]
    if isinstance(node, ast.Attribute) and ast.unparse(node).startswith(_MODULES):
        return ast.unparse(node)
    return ast.literal_eval(node)


def resolve_classes(value: Any) -> Any:
    """Replace names such as ``nn.ReLU`` by classes, however deep inside.

    They are torch's, and the memories of ``thrust_pomdp.recurrent``.

    :raises ValueError: if there is no such class
    """
    if isinstance(value, Mapping):
        return {key: resolve_classes(part) for key, part in value.items()}
    if isinstance(value, list):
        return [resolve_classes(part) for part in value]
    if isinstance(value, str) and value.startswith(_MODULES):
        return _class_of(value)
    return value


def _class_of(name: str) -> Any:
    import torch

    from thrust_pomdp import recurrent

    modules = {"nn": torch.nn, "th": torch, "torch": torch, "recurrent": recurrent}
    found: Any = modules[name.partition(".")[0]]
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    if not isinstance(found, type):
        package = "thrust_pomdp" if name.startswith("recurrent.") else "torch"
        raise ValueError(f"{package} has no class {name}")
    return found


def parse_literal(text: str) -> Any:
    """Read a value of the command line: a literal of Python's or YAML's, anything else as text.

    >>> parse_literal("0.5"), parse_literal("None"), parse_literal("lin_3e-3")
    (0.5, None, 'lin_3e-3')
    >>> parse_literal("false"), parse_literal("TRUE"), parse_literal("null")
    (False, True, None)
    """
    if text in _YAML:
        return _YAML[text]
    try:
        return _data(ast.literal_eval(text))
    except UNREADABLE:
        return text


def _data(value: Any) -> Any:
    """Return what a folder can keep; Python has literals of complex numbers, bytes and sets too.

    :raises ValueError: for anything else
    :raises TypeError: likewise
    """
    json.dumps(value)
    return value

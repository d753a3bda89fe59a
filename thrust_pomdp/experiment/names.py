"""Offering what a misspelt name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def with_near_names(message: str, name: str, known: Iterable[str]) -> str:
    """Append the known names that are near to a wrong one, if there are any.

    >>> with_near_names("no arm 'lsmt'", "lsmt", ["lstm", "mlp"])
    "no arm 'lsmt': did you mean lstm?"
    """
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"{message}: did you mean {' or '.join(near)}?" if near else message

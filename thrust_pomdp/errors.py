"""What a program is told that does something wrong: by which error, and at which line."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from types import FrameType

#: Whether who calls ``predict`` keeps the memory: a first call without a state is no oversight.
MEMORY_IS_KEPT: ContextVar[bool] = ContextVar("MEMORY_IS_KEPT", default=False)

#: Packages between a user's line and the code that has something to say about it.
_BETWEEN = frozenset(
    {
        "_frozen_importlib",
        "_frozen_importlib_external",
        "contextlib",
        "gymnasium",
        "importlib",
        "numba",
        "sb3_contrib",
        "stable_baselines3",
        "thrust_pomdp",
        "torch",
    }
)


class ArgumentError(ValueError, AssertionError):
    """An argument that cannot be, where Stable-Baselines3 or ``sb3_contrib`` would assert.

    A ``ValueError``, as all refusals of this package, and an ``AssertionError``, for programs that
    were written for those libraries and catch that.

    >>> try:
    ...     raise ArgumentError("n_steps must be at least 1, got 0")
    ... except AssertionError as error:
    ...     print(error)
    n_steps must be at least 1, got 0
    """


def with_near_names(message: str, name: str, known: Iterable[str]) -> str:
    """Append the known names that are near to a wrong one, if there are any.

    >>> with_near_names("no arm 'lsmt'", "lsmt", ["lstm", "mlp"])
    "no arm 'lsmt': did you mean lstm?"
    """
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"{message}: did you mean {' or '.join(near)}?" if near else message


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the program that uses this package, through whatever it was called.

    A fixed ``stacklevel`` points elsewhere as soon as a subclass or a library's function lies
    between.
    """
    frame = users_frame()
    name = frame.f_globals.get("__name__", "<unknown>")
    # With the registry of the user's module each line is told once, as by warnings.warn.
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        message, category, frame.f_code.co_filename, frame.f_lineno, name, registry
    )


def users_frame() -> FrameType:
    """Return the frame of the program that uses this package."""
    frames = list(_callers())
    return next((frame for frame in frames if not _is_between(frame)), frames[-1])


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_between(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _BETWEEN

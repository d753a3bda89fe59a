"""Telling how things go, which must never end them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


def say(line: str) -> None:
    """Print a line, or not: a log on a full disk or a reader that has left ends no training."""
    with ignore_output_errors():
        print(line, flush=True)


@contextlib.contextmanager
def ignore_output_errors() -> Iterator[None]:
    """Go on where output cannot be written."""
    try:
        yield
    except BrokenPipeError:
        with contextlib.suppress(OSError):  # nobody reads: it goes nowhere from now on
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:
        pass

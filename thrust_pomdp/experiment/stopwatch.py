"""The time that training takes: without evaluations, and without compiling.

Compiled loops are compiled where a program first calls them, which takes half a minute once on a
machine, and is no property of any arm.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Iterator
from typing import Any


class Stopwatch:
    """Seconds since :meth:`running` was entered, without pauses and without compiling."""

    def __init__(self) -> None:
        self._start = 0.0
        self._paused = 0.0
        self._compiling = 0.0
        self._pauses = 0

    @property
    def seconds(self) -> float:
        """What it shows."""
        return time.perf_counter() - self._start - self._paused - self._compiling

    def go_on_from(self, seconds: float) -> None:
        """Show so many seconds now: those of a training that is taken up."""
        self._start = time.perf_counter() - seconds
        self._paused = self._compiling = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start from 0, and notice what is compiled meanwhile."""
        with contextlib.ExitStack() as stack:
            if importlib.util.find_spec("numba") is not None:
                stack.enter_context(_listened(self._add_compiling))
            self._start = time.perf_counter()
            yield

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still."""
        start = time.perf_counter()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self._paused += time.perf_counter() - start

    def _add_compiling(self, seconds: float) -> None:
        if not self._pauses:
            self._compiling += seconds


@contextlib.contextmanager
def _listened(add: Any) -> Iterator[None]:
    """Call a function with the seconds of each compilation; those within another are in it."""
    from numba.core import event

    class Listener(event.Listener):
        depth, start = 0, 0.0

        def on_start(self, event: Any) -> None:
            if self.depth == 0:
                self.start = time.perf_counter()
            self.depth += 1

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if self.depth == 0:
                add(time.perf_counter() - self.start)

    with event.install_listener("numba:compile", Listener()):
        yield

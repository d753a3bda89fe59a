"""Asked to end, a training writes a checkpoint first."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from thrust_pomdp.arguments import check_finite_number
from thrust_pomdp.errors import warn_user

#: With which a training ends that was asked to, and can be taken up: "try again later" of BSD's
#: ``sysexits.h``.
EXIT_CODE = 75

#: Signals that ask for it, where the system has them.
_NAMES = ("SIGTERM", "SIGUSR1")


class EndOnSignal:
    """Takes note of signals, and ends the process if that leads to nothing.

    A second signal, or the first one once the time is up, ends the process at once.

    :param grace_seconds: how long an iteration may still take
    :raises ValueError: if that is no number of at least 0
    """

    def __init__(self, grace_seconds: float) -> None:
        self._grace = check_finite_number("grace_seconds", grace_seconds, minimum=0.0)
        self._timer: threading.Timer | None = None
        self._previous: dict[int, Any] = {}
        #: Whether the training was asked to end.
        self.is_asked = False

    def install(self) -> None:
        """Listen, where no handler of the user's does."""
        if threading.current_thread() is not threading.main_thread():
            warn_user("on_signal=True does nothing here: signals reach the main thread alone")
            return
        for name in _NAMES:
            number = getattr(signal, name, None)
            if number is None:
                continue
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_DFL, None):
                warn_user(
                    f"on_signal=True leaves {name} to the handler that this program has set: "
                    f"{handler!r}"
                )
                continue
            self._previous[number] = handler
            signal.signal(number, self._note)

    def remove(self) -> None:
        """Put everything back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            os._exit(EXIT_CODE)
        self.is_asked = True
        self._timer = threading.Timer(self._grace, os._exit, (EXIT_CODE,))
        self._timer.name = "thrust_pomdp: time that a signal leaves"
        self._timer.daemon = True
        self._timer.start()

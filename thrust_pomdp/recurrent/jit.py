"""How the compiled loops are compiled. Import it only where Numba is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

_FASTMATH = {"contract", "nsz", "arcp", "reassoc"}


def compile_loop(function: Callable[..., Any]) -> Any:
    """Compile at the first call; the result is kept on disk where that is possible.

    What is kept is found by the function's own file: a loop and those it calls belong in one file,
    or a change of the latter would go unnoticed.

    ``fastmath`` allows reordering and fused multiply-adds, and keeps NaN and infinity: a diverged
    network must show.

    ``forceinline`` copies this loop into every loop that calls it. Otherwise the process that
    compiles a caller runs the callee that it compiled before, and a process that loads the caller
    from disk runs the copy kept with it, which the compiler may have ordered in another way: the
    last digits differ, and the first training of a seed would not equal later ones.
    """
    options: dict[str, Any] = {
        "fastmath": _FASTMATH,
        "error_model": "numpy",
        "nogil": True,
        "forceinline": True,
    }
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written to
        return numba.njit(**options)(function)

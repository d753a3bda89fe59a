"""How the compiled loops are compiled. Import it only where Numba is installed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import llvmlite.binding as llvm
import numba
from numba import types
from numba.core import sigutils
from numba.core.ccallback import CFunc

from thrust_pomdp.errors import warn_user

_FASTMATH = {"contract", "nsz", "arcp", "reassoc"}

#: What is said once, by number, and whether it has been. Copies of this process share the memory:
#: workers forked by one server, each doing one run, say a thing once together.
_SAID = mmap.mmap(-1, 2)
_COMPILING, _WITHOUT_CACHE = range(2)

_LOGGER = logging.getLogger(__name__)


def compile_loop(function: Callable[..., Any]) -> Any:
    """Compile at the first call; the result is kept on disk where that is possible.

    What is kept is found by the files of the function and of those it calls. Where nothing can be
    kept, or what was kept cannot be read, loops are compiled all the same, and a warning tells the
    remedy, once.

    ``fastmath`` allows reordering and fused multiply-adds, and keeps NaN and infinity: a diverged
    network must show.

    ``forceinline`` copies this loop into every loop that calls it. Otherwise the process that
    compiles a caller runs the callee that it compiled before, and a process that loads the caller
    from disk runs the copy kept with it, which the compiler may have ordered in another way: the
    last digits differ, and the first training of a seed would not equal later ones.
    """
    return _compile(function, _FASTMATH)


def compile_in_order(function: Callable[..., Any]) -> Any:
    """Do the same for arithmetic that is right in the order in which it is written only."""
    return _compile(function, _FASTMATH - {"reassoc"})


def compile_exactly(function: Callable[..., Any]) -> Any:
    """Do the same for arithmetic whose every rounding is as written.

    Nothing is reordered and nothing fused but where it says so
    (:func:`thrust_pomdp.recurrent.vectors.fma`), so that all copies of a loop and all processors
    give the same digits.
    """
    return _compile(function, set(), forceinline=False)


def compile_apart(name: str, n_arguments: int) -> Callable[[Callable[..., Any]], Any]:
    """Compile exactly, for callers that are linked with it only when they run.

    Numba puts a copy of what a loop calls into the loop and compiles it again there. What is large
    and called from many places is better called where it is.

    :param name: a name of its own among all symbols of the process
    :param n_arguments: how many integers it takes; it returns nothing
    """

    def compile_one(function: Callable[..., Any]) -> Any:
        normalize: Any = sigutils.normalize_signature
        kind = types.void(*(types.intp,) * n_arguments)
        options = {"error_model": "numpy"}
        loop: Any = CFunc(function, normalize(kind), {}, options)
        try:
            loop.enable_caching()
            loop._cache = _Cache(loop._cache, function, None)
        except (RuntimeError, OSError):  # those of other loops warn
            pass
        loop.compile()
        _KEPT.append(loop)
        llvm.add_symbol(name, loop.address)
        return types.ExternalFunction(name, kind)

    return compile_one


#: What symbols stand for must not be freed.
_KEPT: list[Any] = []


def _compile(function: Callable[..., Any], fastmath: set[str], forceinline: bool = True) -> Any:
    options: dict[str, Any] = {
        "fastmath": fastmath or False,
        "error_model": "numpy",
        "nogil": True,
        "forceinline": forceinline,
    }
    try:
        loop, trouble = numba.njit(cache=True, **options)(function), None
    except (RuntimeError, OSError) as error:  # nowhere that Numba knows of can be written to
        loop, trouble = numba.njit(**options)(function), error
    if hasattr(loop, "_cache"):  # not where Numba is switched off
        loop._cache = _Cache(loop._cache, function, trouble)
    return loop


class _Cache:
    """Numba's files of one loop, which are done without where they cannot be used.

    A damaged one may raise anything while it is unpickled. It is forgotten, so that what is then
    compiled can take its place.

    :param cache: Numba's own
    :param function: the loop
    :param trouble: why ``cache`` keeps nothing
    """

    def __init__(self, cache: Any, function: Callable[..., Any], trouble: Exception | None) -> None:
        self._cache = cache
        # Numba's own stamp is of one file: a change of a loop that is called would go unnoticed.
        with contextlib.suppress(OSError, AttributeError):  # no file to read, or nothing is kept
            cache._cache_file._source_stamp = _stamp(function)
        self._trouble = trouble
        beside = Path(function.__code__.co_filename).parent / "__pycache__"
        self._folder = cache.cache_path or f"{beside} or the user's folder of caches"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was kept, None where there is nothing that can be used."""
        found = None
        try:
            found = self._cache.load_overload(sig, target_context)
        except Exception as error:
            self._forget()
            _warn(f"cannot be read from {self._folder}", error)
        if self._trouble is not None:
            _warn(f"cannot be kept in {self._folder}", self._trouble)
        if found is None:
            _say_compiling()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled, if that can be."""
        try:
            self._cache.save_overload(sig, data)
        except Exception as error:
            self._forget()
            _warn(f"cannot be kept in {self._folder}", error)

    def _forget(self) -> None:
        """Remove the index of the files.

        Numba writes it first: with a disk full in between it would give out, as code of this
        version, the file that another one left under the same name.
        """
        with contextlib.suppress(OSError):
            os.unlink(self._cache._cache_file._index_path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def _stamp(function: Callable[..., Any]) -> str:
    """Return a digest of the files of a loop and of all that it calls."""
    files = sorted({each.__code__.co_filename for each in _called(function, [])})
    digests = (_digest(file, os.stat(file).st_mtime_ns, os.stat(file).st_size) for file in files)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _called(function: Any, found: list[Any]) -> list[Any]:
    """Collect a loop and the compiled functions that it names, and so on."""
    if function in found:
        return found
    found.append(function)
    named, known = function.__code__.co_names, function.__globals__
    modules = [part for part in map(known.get, named) if isinstance(part, ModuleType)]
    for called in (names.get(name) for names in (known, *map(vars, modules)) for name in named):
        python = getattr(called, "py_func", None) or getattr(called, "_defn", None)
        if python is not None:
            _called(python, found)
    return found


@functools.cache
def _digest(file: str, changed: int, size: int) -> bytes:
    return hashlib.sha256(Path(file).read_bytes()).digest()


def _first(what: int) -> bool:
    said, _SAID[what] = _SAID[what], 1
    return not said


def _warn(what: str, error: Exception) -> None:
    if _first(_WITHOUT_CACHE):
        warn_user(
            f"Compiled loops {what} ({type(error).__name__}: {error}). They are compiled without, "
            "which takes about half a minute at every start while that is so: free disk space, "
            "delete the folder, or name another one in the environment variable NUMBA_CACHE_DIR."
        )


def _say_compiling() -> None:
    """Say why nothing seems to happen; through logging, which shows it unless told not to."""
    if _first(_COMPILING):
        _LOGGER.warning(
            "thrust_pomdp: compiling loops for this machine, which takes about half a minute once"
        )

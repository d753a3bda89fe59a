"""Torch's operations and the compiled loops, in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch as th

from thrust_pomdp.recurrent.compiled import load_kernels


@contextlib.contextmanager
def numeric_path(is_compiled: bool) -> Iterator[None]:
    """Run with the compiled loops, if there are any, or as ``NUMBA_DISABLE_JIT=1`` does."""
    if is_compiled or load_kernels() is None:
        yield
        return
    import numba

    numba.config.DISABLE_JIT = 1
    load_kernels.cache_clear()
    try:
        yield
    finally:
        numba.config.DISABLE_JIT = 0
        load_kernels.cache_clear()


def assert_near(ours: th.Tensor, theirs: th.Tensor, tolerance: float, what: str) -> None:
    """Compare with float64 numbers: the largest error, relative to the largest number above 1."""
    assert ours.shape == theirs.shape, f"{what}: {tuple(ours.shape)}, not {tuple(theirs.shape)}"
    if theirs.numel() == 0:
        return
    theirs = theirs.detach().double()
    error = (ours.detach().double() - theirs).abs().max().item()
    bound = tolerance * max(1.0, theirs.abs().max().item())
    assert error <= bound, f"{what}: off by {error:.3g}, allowed are {bound:.3g}"

"""Building a network no bigger than the file that it is for.

The sizes of a network follow from numbers in a file's JSON, by code of several libraries and of the
user's extractors. What all of it has in common is that torch makes the tensors; here it is asked
how big each will be, before it is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch as th
from torch.utils._python_dispatch import TorchDispatchMode

from thrust_pomdp.array_files import SafeFileError

#: Numbers that a tensor counts for at least, so that many empty ones are not free.
_LEAST = 1024
#: Parameters that a network has beside those in a file, such as random ones for exploring.
_MORE_TENSORS = 256
#: How often each parameter is made: itself, and what its first values are computed by.
_TIMES = 6

_aten = th.ops.aten
#: Operations that make tensors of sizes that they are told, and where among their arguments.
_MADE_OF_SIZES = {
    _aten.empty.memory_format: 0,
    _aten.empty_strided.default: 0,
    _aten.zeros.default: 0,
    _aten.ones.default: 0,
    _aten.full.default: 0,
    _aten.rand.default: 0,
    _aten.randn.default: 0,
    _aten.eye.default: 0,
    _aten.eye.m: 0,
    _aten.arange.default: 0,
    _aten.new_empty.default: 1,
    _aten.new_empty_strided.default: 1,
    _aten.new_zeros.default: 1,
    _aten.new_ones.default: 1,
    _aten.new_full.default: 1,
}


class _Sized(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses to make more than there is to put in.

    :param numbers: how many there are
    :param tensors: how many hold them
    """

    def __init__(self, numbers: int, tensors: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most = numbers + 64 * _LEAST
        self._left = _TIMES * (self._most + _LEAST * (tensors + _MORE_TENSORS))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        position = _MADE_OF_SIZES.get(func)
        if position is not None:
            self._count(args[position:], func)
        return func(*args, **(kwargs or {}))

    def _count(self, args: Any, func: Any) -> None:
        size = args[0]
        if func is _aten.eye.m:
            size = args[:2]
        elif func is _aten.eye.default:
            size = (size, size)
        numbers = math.prod(size) if isinstance(size, (list, tuple)) else int(size)
        self._left -= max(numbers, _LEAST)
        if numbers > self._most or self._left < 0:
            raise SafeFileError(
                f"says that its network has a tensor of {numbers:,} numbers, or too many of them: "
                "more than it holds"
            )


@contextmanager
def building(tensors: Sequence[th.Tensor]) -> Iterator[None]:
    """Let torch make meanwhile no more than about what the tensors of a file can fill.

    :raises SafeFileError: in the midst of it, otherwise
    """
    # By what is there: one number can be shown as a million, and one array under many names.
    held: dict[int, int] = {}
    for tensor in tensors:
        stored = tensor.untyped_storage().nbytes() // tensor.element_size()
        held[tensor.data_ptr()] = max(held.get(tensor.data_ptr(), 0), min(tensor.numel(), stored))
    with _Sized(sum(held.values()), len(held)):
        yield

"""The arrays of a window: how they lie in memory, and how a step is written into them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

Array = NDArray[Any]

#: Bytes that torch's own memory is aligned to.
_ALIGNMENT = 64


def env_major_zeros(like: Array) -> Array:
    """Return zeros ``[n_steps, n_envs, ...]`` of which each environment's lie side by side.

    :param like: its shape and type
    """
    # As torch aligns its own memory, and not touched before it is used.
    memory = np.zeros(like.nbytes + _ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    n_steps, n_envs, *shape = like.shape
    windows = memory[start : start + like.nbytes].view(like.dtype)
    return windows.reshape(n_envs, n_steps, *shape).swapaxes(0, 1)


def lent_env_major(array: Array) -> th.Tensor | None:
    """Return an array ``[n_steps, n_envs, ...]`` as ``[n_envs, n_steps, ...]``, the same memory.

    :return: None where it does not lie like that, or is not aligned as torch's own memory is:
        matrix products round by where their operands lie
    """
    turned = th.as_tensor(array).transpose(0, 1)
    lies_so = turned.is_contiguous() and turned.data_ptr() % _ALIGNMENT == 0
    return turned if lies_so else None


def put(name: str, row: Array, given: Any) -> None:
    """Write one step's numbers into a row of the storage, whatever their shape."""
    array = np.asarray(given)
    if array.shape != row.shape:
        if array.size != row.size:
            raise ValueError(f"{name} must hold {row.size} numbers, got {array.size}")
        array = array.reshape(row.shape)
    row[...] = array


def on_host(tensor: th.Tensor) -> Array:
    """Return a tensor's numbers; a tensor that is ready for it is spared two copies of itself."""
    if tensor.is_cpu and not tensor.requires_grad:
        return tensor.numpy()
    return tensor.detach().cpu().numpy()

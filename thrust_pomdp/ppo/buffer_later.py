"""A rollout buffer that is made once it is needed.

A buffer is as big as a window of all environments. A model that was read from a file to act needs
none, and how big it would be the file says, not the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer


class BufferLater:
    """Stands where a buffer will be, and becomes it as soon as anything of it is read.

    :param cls: of the buffer
    """

    def __init__(self, cls: Any) -> None:
        self._cls, self._calls = cls, []  # type: ignore[var-annotated]
        self._made: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> BufferLater:
        """Take the constructor's arguments."""
        self._args, self._kwargs = args, kwargs
        return self

    def seed(self, *args: Any) -> None:
        """Seed the buffer that will be."""
        self._calls.append(("seed", args))

    def cut_windows(self, *args: Any) -> None:
        """Have the buffer that will be cut its windows."""
        self._calls.append(("cut_windows", args))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self._calls.append(("__setattr__", (name, value)))

    def made(self) -> Any:
        """Make the buffer, once."""
        if self._made is None:
            self._made = self._cls(*self._args, **self._kwargs)
            for name, args in self._calls:
                getattr(self._made, name)(*args)
        return self._made

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.made(), name)


def made(buffer: Any) -> Any:
    """Return a buffer, made now if it is one for later."""
    return buffer.made() if isinstance(buffer, BufferLater) else buffer


@contextmanager
def buffer_comes_later(model: Any) -> Iterator[None]:
    """Have a model set up meanwhile without making its buffer.

    :param model: an on-policy algorithm of SB3's; one that has the switch
        ``_buffer_comes_later`` is told, for others the class is exchanged
    """
    if hasattr(type(model), "_buffer_comes_later"):
        model._buffer_comes_later = True
        try:
            yield
        finally:
            del model._buffer_comes_later
        return
    is_dict = isinstance(model.observation_space, spaces.Dict)
    default = DictRolloutBuffer if is_dict else RolloutBuffer
    cls = model.rollout_buffer_class or default
    model.rollout_buffer_class = BufferLater(cls)
    try:
        yield
    finally:
        model.rollout_buffer_class = cls

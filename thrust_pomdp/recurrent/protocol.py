"""What a memory of one's own is: its state and its step, and all the rest follows.

>>> class Average(Memory):
...     '''Remembers a running average of the features.'''
...
...     def __init__(self, input_size, hidden_size, num_layers=1):
...         super().__init__(input_size, hidden_size, num_layers)
...         if num_layers != 1:
...             raise ValueError(f"n_lstm_layers must be 1 for Average, got {num_layers}")
...         self.read = nn.Linear(input_size, hidden_size)
...
...     def state_parts(self):
...         return (StatePart("average", (self.hidden_size,)),)
...
...     def step(self, features, states):
...         average = 0.9 * states[0][0] + 0.1 * self.read(features)
...         return average.tanh(), (average[None],)
>>> memory = Average(3, 8)
>>> starts = th.zeros(2, 5, dtype=th.bool)
>>> output, (average,) = memory(th.zeros(2, 5, 3), memory.initial_state(2), starts)
>>> output.shape, average.shape
(torch.Size([2, 5, 8]), torch.Size([1, 2, 8]))

Axes: windows ``[n_seq, n_steps, ...]``, parts of a state ``[n_layers, n_envs, *shape]``.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch as th
from torch import nn

from thrust_pomdp.arguments import check_count
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.recurrent.sequences import LSTMState, zero_states


class StatePart(NamedTuple):
    """One part of what a memory remembers.

    :param name: what recorded states and traces call it
    :param shape: of one environment and one layer
    :param dtype: of its numbers; None for that of the weights
    """

    name: str
    shape: tuple[int, ...]
    dtype: th.dtype | None = None


class Memory(nn.Module, ABC):
    """A memory for ``policy_kwargs=dict(rnn_class=MyMemory)``.

    A subclass says what its state is (:meth:`state_parts`) and how one step changes it
    (:meth:`step`). Where a loop over time is too slow it also says how whole windows are run
    (:meth:`windows`): the same numbers, faster. :func:`thrust_pomdp.recurrent.check_memory` looks
    whether it keeps the laws that recurrent PPO rests on.

    All of a state is zero where an environment remembers nothing. A memory that must begin with
    something else keeps a count of steps in its state and puts what it wants where that is 0
    (``torch.where``).

    :param input_size: numbers in the features of a step
    :param hidden_size: numbers that it gives to the heads, ``lstm_hidden_size``
    :param num_layers: ``n_lstm_layers``
    :raises ValueError: if one of them is no whole number of at least 1
    """

    _like: th.Tensor

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1) -> None:
        super().__init__()
        self.input_size = check_count("input_size", input_size)
        self.hidden_size = check_count("hidden_size", hidden_size)
        self.num_layers = check_count("num_layers", num_layers)
        # Follows the module to its device and dtype, whether it has weights or none.
        self.register_buffer("_like", th.empty(0), persistent=False)

    @abstractmethod
    def state_parts(self) -> tuple[StatePart, ...]:
        """Say what the state consists of."""

    @abstractmethod
    def step(self, features: th.Tensor, states: LSTMState) -> tuple[th.Tensor, LSTMState]:
        """Advance by one step; memory has been zeroed where an episode starts.

        It must not branch on what tensors hold (``if x.any()``), so that it can be exported.

        :param features: ``[n_envs, input_size]``
        :param states: the state before, its parts ``[n_layers, n_envs, *shape]``
        :return: output ``[n_envs, hidden_size]``, and the state after the step
        """

    def windows(
        self, features: th.Tensor, states: LSTMState, episode_starts: th.Tensor
    ) -> tuple[th.Tensor, LSTMState]:
        """Run whole windows; here by a loop of :meth:`step`.

        :param features: ``[n_seq, n_steps, input_size]``
        :param states: the state that enters, its parts ``[n_layers, n_seq, *shape]``
        :param episode_starts: ``[n_seq, n_steps]``, bool; memory is zeroed before these steps, the
            first one among them
        :return: outputs ``[n_seq, n_steps, hidden_size]``, and the state after the last step
        """
        outputs = []
        for step, starts in enumerate(episode_starts.unbind(dim=1)):
            output, states = self.step(features[:, step], self.reset(states, starts))
            outputs.append(output)
        return th.stack(outputs, dim=1), states

    def forward(
        self, features: th.Tensor, states: LSTMState, episode_starts: th.Tensor
    ) -> tuple[th.Tensor, LSTMState]:
        """Run one step or whole windows, as features have two axes or three.

        :param features: ``[n_envs, input_size]`` or ``[n_seq, n_steps, input_size]``
        :param states: the state that enters
        :param episode_starts: ``[n_envs]`` or ``[n_seq, n_steps]``, bool
        :return: what :meth:`step` or :meth:`windows` returns
        """
        if features.ndim == 2:
            return self.step(features, self.reset(states, episode_starts))
        return self.windows(features, states, episode_starts)

    def initial_state(self, n_envs: int) -> LSTMState:
        """Return the state of environments that remember nothing: zeros.

        :raises ValueError: if :meth:`state_parts` returns something else than it should
        """
        parts: Any = self.state_parts()
        if not isinstance(parts, tuple) or not all(isinstance(part, StatePart) for part in parts):
            raise ArgumentError(
                f"state_parts() of {type(self).__name__} must return a tuple of StatePart, got "
                f"{parts!r}" + (": is a comma missing?" if isinstance(parts, StatePart) else "")
            )
        for part in parts:
            if not isinstance(part.shape, tuple):
                raise ArgumentError(
                    f"shape of the StatePart {part.name!r} of {type(self).__name__} must be a "
                    f"tuple, such as (8,), got {part.shape!r}"
                )
        return tuple(
            self._like.new_zeros((self.num_layers, n_envs, *part.shape), dtype=part.dtype)
            for part in parts
        )

    @staticmethod
    def reset(states: LSTMState, where: th.Tensor) -> LSTMState:
        """Return the state with some environments' zeroed, ``where`` being ``[n_envs]``, bool.

        What was there leaves no trace, NaN neither, and no gradient passes.
        """
        return zero_states(states, where)


def against_returned(memory: Any, what: str, returned: Any, axes: tuple[int, ...]) -> str | None:
    """Say why what a memory returned is not what it must be.

    :param memory: a memory, or a layer of torch's, which needs no looking at
    :param what: what was called, ``step`` or ``windows``
    :param returned: by it
    :param axes: of the output before its last one; the first is the number of environments
    """
    if not isinstance(memory, Memory):
        return None
    name = f"{type(memory).__name__}.{what}"
    if not (isinstance(returned, tuple) and len(returned) == 2):
        return f"{name} must return a pair, output and state, it returned {_told(returned)}"
    output, states = returned
    size = (*axes, memory.hidden_size)
    if not isinstance(output, th.Tensor) or tuple(output.shape) != size:
        return f"{name} must return an output of shape {size}, it returned {_told(output)}"
    parts, zeros = memory.state_parts(), memory.initial_state(axes[0])
    if not isinstance(states, (tuple, list)) or len(states) != len(parts):
        got = f"{len(states)}" if isinstance(states, (tuple, list)) else _told(states)
        return (
            f"{name} must return a state of {len(parts)} part(s), a tuple, as state_parts() says, "
            f"it returned {got}"
        )
    for part, zero, state in zip(parts, zeros, states, strict=True):
        if _told(state) != _told(zero):
            return (
                f"{name} must return {part.name} as {_told(zero)} (layers, environments, then the "
                f"shape that state_parts() says), it returned {_told(state)}"
            )
    return None


def _told(value: Any) -> str:
    if isinstance(value, th.Tensor):
        return f"a tensor {tuple(value.shape)} of {value.dtype}"
    return f"a {type(value).__name__}"


def is_memory_class(rnn_class: Any) -> bool:
    """Tell whether something is a class of memories of a user's own."""
    return isinstance(rnn_class, type) and issubclass(rnn_class, Memory)


def options_of(memory_class: type[Memory]) -> tuple[str, ...] | None:
    """Return what ``lstm_kwargs`` may give to a class of memories; None for anything."""
    parameters = inspect.signature(memory_class).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    names = (parameter.name for parameter in parameters)
    return tuple(name for name in names if name not in _SIZES)


_SIZES = ("input_size", "hidden_size", "num_layers")

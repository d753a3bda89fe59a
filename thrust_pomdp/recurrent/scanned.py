"""Memories whose state changes linearly: what they have in common.

A recurrence that is linear in its state runs over all steps of a window at once
(:mod:`thrust_pomdp.recurrent.scan`). Layers of such recurrences are residual, with layer
normalisation before each but the first: this one reads the features as they are, since
normalising would take the size from few numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

import torch as th
from torch import nn

from thrust_pomdp import gate
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.recurrent.compiled_scan import CompiledStep
from thrust_pomdp.recurrent.protocol import Memory, StatePart
from thrust_pomdp.recurrent.sequences import LSTMState

gate.remember(nn.Identity)


def product(rows: th.Tensor, weight: th.Tensor, bias: th.Tensor | None = None) -> th.Tensor:
    """Do what ``torch.nn.functional.linear`` does.

    The gradient of a weight for few inputs, such as four features, takes an eighth of the time if
    the weight is laid out with its inputs first.

    :param rows: ``[..., inputs]``
    :param weight: ``[outputs, inputs]``
    :param bias: ``[outputs]``
    """
    flat, inputs_first = rows.flatten(end_dim=-2), weight.t().contiguous()
    output = flat @ inputs_first if bias is None else th.addmm(bias, flat, inputs_first)
    return output.view(*rows.shape[:-1], len(weight))


def dense(layer: nn.Module, rows: th.Tensor) -> th.Tensor:
    """Call a layer, by :func:`product` where it is torch's linear one as torch made it."""
    if gate.against_module(layer, nn.Linear) is not None:
        output: th.Tensor = layer(rows)
        return output
    linear: Any = layer
    return product(rows, linear.weight, linear.bias)


class ScannedLayer(nn.Module, ABC):
    """One layer: a recurrence, and what is told of it.

    :param input_size: numbers that it reads
    :param is_first: whether it reads the features
    :cvar computes: methods that make up a step
    :cvar of_first: the modules of a first layer, and whether they have a bias
    """

    computes: ClassVar[tuple[str, ...]] = ("forward", "recall", "told")
    of_first: ClassVar[dict[str, tuple[type[nn.Module], bool]]]

    def __init__(self, input_size: int, is_first: bool) -> None:
        super().__init__()
        self.is_first = is_first
        self.norm = nn.Identity() if is_first else nn.LayerNorm(input_size)

    @abstractmethod
    def recall(self, read: th.Tensor, state: th.Tensor) -> th.Tensor:
        """Return the state after one step.

        :param read: what the recurrence reads, ``[n_envs, input_size]``
        :param state: before the step, ``[n_envs, state]``
        """

    @abstractmethod
    def recall_windows(self, read: th.Tensor, state: th.Tensor, starts: th.Tensor) -> th.Tensor:
        """Return the state after each step of whole windows, ``[n_seq, n_steps, state]``.

        :param read: ``[n_seq, n_steps, input_size]``
        :param state: that enters, ``[n_seq, state]``
        :param starts: ``[n_seq, n_steps]``, bool
        """

    @abstractmethod
    def told(self, inputs: th.Tensor, read: th.Tensor, state: th.Tensor) -> th.Tensor:
        """Return what a layer tells in a step or in many, ``[..., hidden_size]``.

        :param inputs: ``[..., input_size]``
        :param read: these normalised
        :param state: after the step, ``[..., state]``
        """

    @abstractmethod
    def laid_out(self) -> tuple[th.Tensor, ...]:
        """Return the weights of a first layer as the compiled step wants them."""

    def forward(
        self, inputs: th.Tensor, state: th.Tensor, starts: th.Tensor | None = None
    ) -> tuple[th.Tensor, th.Tensor]:
        """Run one step, or windows where ``starts`` are given; returns output and last state."""
        read = self.norm(inputs)
        if starts is None:
            state = self.recall(read, state)
            return self.told(inputs, read, state), state
        states = self.recall_windows(read, state, starts)
        return self.told(inputs, read, states), states[:, -1]


class ScannedMemory(Memory):
    """A memory of such layers.

    :param input_size: numbers in the features of a step
    :param hidden_size: numbers that it gives to the heads
    :param num_layers: residual layers
    :param options: further arguments of the layers
    :raises ValueError: for sizes that are no whole numbers of at least 1, and several layers of one
        unit
    :cvar computes: methods that make up a step
    :cvar loop: the compiled step of one layer
    """

    computes: ClassVar[tuple[str, ...]] = ("step", "reset", "_through")
    loop: ClassVar[str]

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, **options: Any
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers)
        if self.num_layers > 1 and self.hidden_size == 1:
            raise ArgumentError(
                f"hidden_size must be at least 2 for {self.num_layers} layers, got 1: layer "
                "normalisation leaves nothing of a single number"
            )
        sizes = [self.input_size, *[self.hidden_size] * (self.num_layers - 1)]
        self.layers: Sequence[ScannedLayer] = nn.ModuleList(  # type: ignore[assignment]
            self.make_layer(size, number == 0, **options) for number, size in enumerate(sizes)
        )

    @abstractmethod
    def make_layer(self, input_size: int, is_first: bool, **options: Any) -> ScannedLayer:
        """Make a layer."""

    @abstractmethod
    def state_parts(self) -> tuple[StatePart]:
        """Say what the state consists of: one part, of one axis."""

    def against_compiled_step(self) -> str | None:
        """Say why a step cannot be one compiled loop."""
        if self.num_layers != 1:
            return f"it has {self.num_layers} layers, compiled is one"
        reason, (layer,) = against_scanned(self), self.layers
        found = {
            name: (type(part), getattr(part, "bias", None) is not None)
            for name, part in layer.named_children()
        }
        if reason is None and found != layer.of_first:
            return f"the {type(layer).__name__} has other modules than it was made with"
        return reason

    def compiled_step(self, kernels: ModuleType, compare: bool = True) -> CompiledStep:
        """Return the step of the only layer there is, compiled.

        :param kernels: the compiled loops
        :param compare: the weights at each step, since somebody may change them
        """
        (layer,), (part,) = self.layers, self.state_parts()
        return CompiledStep(
            getattr(kernels.scan, self.loop),
            layer.laid_out,
            self.parameters(),
            (self.input_size, self.hidden_size, *part.shape),
            kernels.memory.unchanged if compare else None,
        )

    def step(self, features: th.Tensor, states: LSTMState) -> tuple[th.Tensor, LSTMState]:
        """Advance by one step."""
        return self._through(features, states, None)

    def windows(
        self, features: th.Tensor, states: LSTMState, episode_starts: th.Tensor
    ) -> tuple[th.Tensor, LSTMState]:
        """Run whole windows, all steps at once."""
        if self.against_scan() is not None:
            return super().windows(features, states, episode_starts)
        return self._through(features, states, episode_starts)

    def _through(
        self, features: th.Tensor, states: LSTMState, starts: th.Tensor | None
    ) -> tuple[th.Tensor, LSTMState]:
        output, leaving = features, []
        for layer, entering in zip(self.layers, states[0].unbind(), strict=True):
            output, state = layer(output, entering, starts)
            leaving.append(state)
        return output, (th.stack(leaving),)

    def against_scan(self) -> str | None:
        """Say why windows are run step by step: a step is no longer what it was written to be."""
        parts: list[ScannedMemory | ScannedLayer] = [self, *self.layers]
        return next(filter(None, map(_against_methods, parts)), None)


def _against_methods(part: ScannedMemory | ScannedLayer) -> str | None:
    """Say which method that makes up a step is not the one of the class that is known here."""
    known_as = next((cls for cls in type(part).__mro__ if cls in _KNOWN), None)
    if known_as is None:
        return f"{type(part).__name__} is not known"
    return gate.against_methods(part, part.computes, known_as)


#: Classes of memories and layers whose windows are what their steps are.
_KNOWN: set[type] = set()


def known(cls: type) -> type:
    """Remember a class of memories or layers as it is written; a decorator."""
    _KNOWN.add(gate.remember(cls))
    return cls


def against_scanned(rnn: nn.Module) -> str | None:
    """Say why a module does not compute exactly what a class of this package was written to.

    :param rnn: a memory with all of its parts, hooks and parametrisations included
    """
    kinds = tuple(cls for cls in _KNOWN if issubclass(cls, ScannedMemory))
    reason = gate.against_module(rnn, *kinds) or gate.against_calls(rnn)
    for part in rnn.modules():
        if reason is not None:
            break
        if type(part) in _KNOWN:
            assert isinstance(part, (ScannedMemory, ScannedLayer))
            reason = _against_methods(part)
        elif type(part) is not nn.ModuleList:
            reason = gate.against_module(part, nn.Linear, nn.LayerNorm, nn.Identity)
    return reason

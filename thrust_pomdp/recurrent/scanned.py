"""Memories whose state changes linearly, and what stands around such a recurrence.

A recurrence that is linear in its state runs over all steps of a window at once
(:mod:`thrust_pomdp.recurrent.scan`), and is no good alone: what is not linear has to stand beside
it. Both papers that :class:`~thrust_pomdp.recurrent.MinGRU` and
:class:`~thrust_pomdp.recurrent.LRU` are from use residual layers, and so do these, alike::

    features ---- (norm) ---- recurrence ---- GELU ---- linear ---- GLU ---- + ---- output
          \\-------------------------- skip --------------------------------/

The first layer reads the features as they are, since layer normalisation would take the size from
few numbers; there the skip is a linear map to the layer's size. In later ones the skip is the
identity. GELU, gated linear unit and skip are those of the LRU's authors (Orvieto et al. 2023,
https://arxiv.org/abs/2303.06349, section 3); Feng et al. 2024 (https://arxiv.org/abs/2410.01201,
appendix) put a multilayer perceptron in the place of GELU and GLU.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch as th
from torch import nn
from torch.nn.functional import gelu, glu

from thrust_pomdp import gate
from thrust_pomdp.recurrent.protocol import Memory, StatePart
from thrust_pomdp.recurrent.sequences import LSTMState


class ScannedLayer(nn.Module):
    """One residual layer around a recurrence.

    :param input_size: numbers that it reads
    :param hidden_size: numbers that it tells
    :param is_first: whether it reads the features
    """

    def __init__(self, input_size: int, hidden_size: int, is_first: bool) -> None:
        super().__init__()
        self.norm = nn.Identity() if is_first else nn.LayerNorm(input_size)
        self.skip = nn.Linear(input_size, hidden_size) if is_first else nn.Identity()
        self.mix = nn.Linear(hidden_size, 2 * hidden_size)

    def recall(self, inputs: th.Tensor, state: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Do one step of the recurrence.

        :param inputs: ``[n_envs, input_size]``
        :param state: ``[n_envs, state]``
        :return: what it tells, ``[n_envs, hidden_size]``, and the state after the step
        """
        raise NotImplementedError

    def recall_windows(
        self, inputs: th.Tensor, state: th.Tensor, starts: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor]:
        """Run the recurrence over whole windows.

        :param inputs: ``[n_seq, n_steps, input_size]``
        :param state: that enters, ``[n_seq, state]``
        :param starts: ``[n_seq, n_steps]``, bool
        :return: what it tells, ``[n_seq, n_steps, hidden_size]``, and the last state
        """
        raise NotImplementedError

    def forward(
        self, inputs: th.Tensor, state: th.Tensor, starts: th.Tensor | None = None
    ) -> tuple[th.Tensor, th.Tensor]:
        """Run one step, or windows where ``starts`` are given; returns output and state."""
        read = self.norm(inputs)
        if starts is None:
            told, state = self.recall(read, state)
        else:
            told, state = self.recall_windows(read, state, starts)
        output: th.Tensor = self.skip(inputs) + glu(self.mix(gelu(told, approximate="tanh")))
        return output, state


class ScannedMemory(Memory):
    """A memory of such layers.

    :param input_size: numbers in the features of a step
    :param hidden_size: numbers that it gives to the heads
    :param num_layers: residual layers
    :param options: further arguments of the layers
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, **options: Any
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers)
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
        """Say why windows are run step by step: a step is no longer what it was."""
        cls = next(cls for cls in type(self).__mro__ if cls in _KNOWN)
        reason = gate.against_methods(self, ("step", "reset", "_through"), cls)
        for layer in self.layers:
            known = next((cls for cls in type(layer).__mro__ if cls in _KNOWN), None)
            if reason is None and known is not None:
                reason = gate.against_methods(layer, ("forward", "recall"), known)
        return reason


#: Classes of memories and layers whose windows are what their steps are.
_KNOWN: set[type] = set()


def known(cls: type) -> type:
    """Remember a class of memories or layers as it is written; a decorator."""
    _KNOWN.add(gate.remember(cls))
    return cls

"""The minGRU: a gated average whose gate sees the features alone, in parallel over time.

Feng, Tung, Ahmed, Bengio and Hajimirsadeghi 2024, "Were RNNs All We Needed?",
https://arxiv.org/abs/2410.01201.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch as th
from torch import nn

from thrust_pomdp.arguments import check_finite_number
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.recurrent.compiled_scan import MinGRURows, scan_kernels
from thrust_pomdp.recurrent.protocol import StatePart
from thrust_pomdp.recurrent.scan import scan
from thrust_pomdp.recurrent.scanned import ScannedLayer, ScannedMemory, dense, known

#: Least number of steps beyond 1 over which a unit may average at first.
_LEAST = 1e-2


@known
class MinGRULayer(ScannedLayer):
    """One layer of a :class:`MinGRU`."""

    of_first: ClassVar = {"norm": (nn.Identity, False), "gates": (nn.Linear, True)}

    def __init__(
        self, input_size: int, hidden_size: int, is_first: bool, longest: float | None
    ) -> None:
        super().__init__(input_size, is_first)
        self.gates = nn.Linear(input_size, 2 * hidden_size)
        if longest is not None:
            lengths = 1 + (longest - 1) * th.rand(hidden_size)
            with th.no_grad():
                # sigmoid(-log(length - 1)) is 1 / length; of a length of 1 it is finite here.
                self.gates.bias[:hidden_size] = -(lengths - 1).clamp_min(_LEAST).log()

    def recall(self, read: th.Tensor, state: th.Tensor) -> th.Tensor:
        """Return the state after one step."""
        gates: th.Tensor = self.gates(read)
        chosen, new = gates.chunk(2, dim=-1)
        return (-chosen).sigmoid() * state + chosen.sigmoid() * new

    def recall_windows(self, read: th.Tensor, state: th.Tensor, starts: th.Tensor) -> th.Tensor:
        """Return the state after each step of whole windows."""
        gates, entering = dense(self.gates, read).contiguous(), state.contiguous()
        kernels = scan_kernels(gates, entering)
        if kernels is not None:
            states: th.Tensor = MinGRURows.apply(kernels, gates, starts, entering)  # type: ignore[no-untyped-call]
            return states
        chosen, new = gates.chunk(2, dim=-1)
        return scan((-chosen).sigmoid(), chosen.sigmoid() * new, starts, entering)

    def laid_out(self) -> tuple[th.Tensor, ...]:
        """Return the weights for :func:`thrust_pomdp.recurrent.kernels_scan.min_gru_step`."""
        return self.gates.weight.t(), self.gates.bias

    def told(self, inputs: th.Tensor, read: th.Tensor, state: th.Tensor) -> th.Tensor:
        """Return the state; of a later layer together with what it was given."""
        return state if self.is_first else inputs + state


@known
class MinGRU(ScannedMemory):
    """A memory that averages what it reads, by shares that it chooses from what it reads.

    Of the first layer, with the features ``x``::

        z = sigmoid(W_z x + b_z)
        h = (1 - z) h + z (W_h x + b_h)
        y = h

    and of later ones, as in the paper with layer normalisation before and the inputs added behind::

        x' = LayerNorm(x),   z and h of x' likewise,   y = x + h

    The multilayer perceptron that the paper puts behind is the policy's: ``net_arch``.

    This is the paper's plain form: its logarithmic one is for scans that divide by a cumulative
    product, and needs positive states. The scan here never divides, so that float32 will do for
    windows of any length.

    .. warning:: A gate that does not see the state can neither count nor take turns: what is
        remembered only fades. Where that is needed, as for predicting a swinging pole through blank
        frames, take :class:`LRU`, or torch's LSTM and GRU.

    >>> from thrust_pomdp.recurrent import MinGRU
    >>> memory, starts = MinGRU(3, 8), th.zeros(2, 5, dtype=th.bool)
    >>> output, (hidden,) = memory(th.zeros(2, 5, 3), memory.initial_state(2), starts)
    >>> output.shape, hidden.shape
    (torch.Size([2, 5, 8]), torch.Size([1, 2, 8]))

    :param input_size: numbers in the features of a step
    :param hidden_size: numbers that it gives to the heads, and units of the state
    :param num_layers: ``n_lstm_layers``
    :param longest: steps over which the slowest unit averages at first; those of the others are
        uniform between 1 and so many (Tallec and Ollivier 2018, https://arxiv.org/abs/1804.11188).
        None for torch's first biases, with which all average over two
    :raises ValueError: if a size is no whole number of at least 1, for several layers of one unit,
        and unless ``longest`` is a number above 1
    """

    loop = "min_gru_step"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        longest: float | None = None,
    ) -> None:
        if longest is not None:
            check_finite_number("longest", longest)
            if longest <= 1:
                raise ArgumentError(f"longest must be above 1 (steps), got {longest!r}")
        super().__init__(input_size, hidden_size, num_layers, longest=longest)

    def make_layer(self, input_size: int, is_first: bool, **options: Any) -> MinGRULayer:
        """Make a layer."""
        return MinGRULayer(input_size, self.hidden_size, is_first, **options)

    def state_parts(self) -> tuple[StatePart]:
        """Say what the state consists of: the average, ``hidden``."""
        return (StatePart("hidden", (self.hidden_size,)),)

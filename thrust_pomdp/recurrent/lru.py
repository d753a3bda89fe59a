"""The linear recurrent unit: oscillations that fade, in parallel over time.

Orvieto, Smith, Gu, Fernando, Gulcehre, Pascanu and De 2023, "Resurrecting Recurrent Neural Networks
for Long Sequences", https://arxiv.org/abs/2303.06349.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch as th
from torch import nn
from torch.nn.functional import gelu, glu, linear

from thrust_pomdp.arguments import check_count, check_finite_number
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.recurrent.compiled_scan import LRURows, scan_kernels
from thrust_pomdp.recurrent.protocol import StatePart
from thrust_pomdp.recurrent.scan import complex_product, scan
from thrust_pomdp.recurrent.scanned import ScannedLayer, ScannedMemory, dense, known, product

#: How near |lambda| may begin to 0 and to 1, squared: at the bounds themselves nothing is learnt.
_LEAST = 1e-7


@known
class LRULayer(ScannedLayer):
    """One layer of an :class:`LRU`.

    Complex numbers are pairs of real ones, real parts before imaginary parts: so optimisers,
    files and exports of any kind take them.
    """

    computes = (*ScannedLayer.computes, "factor", "entering")
    of_first: ClassVar = {
        "norm": (nn.Identity, False),
        "tell": (nn.Linear, False),
        "direct": (nn.Linear, False),
        "mix": (nn.Linear, True),
        "skip": (nn.Linear, True),
    }

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        is_first: bool,
        state_size: int,
        r_min: float,
        r_max: float,
        max_phase: float,
    ) -> None:
        super().__init__(input_size, is_first)
        squared = th.rand(state_size, dtype=th.float64) * (r_max**2 - r_min**2) + r_min**2
        squared = squared.clamp(_LEAST, 1 - _LEAST)
        phase = max_phase * (1 - th.rand(state_size, dtype=th.float64))

        def parameter(numbers: th.Tensor) -> nn.Parameter:
            return nn.Parameter(numbers.to(th.get_default_dtype()))

        self.nu_log = parameter((-0.5 * squared.log()).log())
        self.theta_log = parameter(phase.log())
        self.gamma_log = parameter(0.5 * (1 - squared).log())
        entered = th.randn(2 * state_size, input_size) / math.sqrt(2 * input_size)
        self.enter = parameter(entered)
        self.tell = nn.Linear(2 * state_size, hidden_size, bias=False)
        nn.init.normal_(self.tell.weight, std=1 / math.sqrt(state_size))
        self.direct = nn.Linear(input_size, hidden_size, bias=False)
        nn.init.normal_(self.direct.weight, std=1 / math.sqrt(input_size))
        self.mix = nn.Linear(hidden_size, 2 * hidden_size)
        self.skip = nn.Linear(input_size, hidden_size) if is_first else nn.Identity()

    def factor(self) -> th.Tensor:
        """Return what the state is multiplied by, of size below 1 whatever the weights are."""
        size, phase = (-self.nu_log.exp()).exp(), self.theta_log.exp()
        return th.cat((size * phase.cos(), size * phase.sin()))

    def entering(self) -> th.Tensor:
        """Return the weights of what is added to the state, ``[2 * state_size, input_size]``."""
        return self.gamma_log.exp().repeat(2)[:, None] * self.enter

    def recall(self, read: th.Tensor, state: th.Tensor) -> th.Tensor:
        """Return the state after one step."""
        return complex_product(self.factor(), state) + linear(read, self.entering())

    def recall_windows(self, read: th.Tensor, state: th.Tensor, starts: th.Tensor) -> th.Tensor:
        """Return the state after each step of whole windows."""
        factor, added = self.factor(), product(read, self.entering()).contiguous()
        entering = state.contiguous()
        kernels = scan_kernels(factor, added, entering)
        if kernels is not None:
            states: th.Tensor = LRURows.apply(kernels, factor, added, starts, entering)  # type: ignore[no-untyped-call]
            return states
        return scan(factor.expand_as(added), added, starts, entering, complex_product)

    def laid_out(self) -> tuple[th.Tensor, ...]:
        """Return the weights for :func:`thrust_pomdp.recurrent.kernels_scan.lru_step`."""
        skip: Any = self.skip
        products = (self.entering(), self.tell.weight, self.direct.weight, self.mix.weight)
        first = (self.factor(), *(weight.t() for weight in products))
        return (*first, self.mix.bias, skip.weight.t(), skip.bias)

    def told(self, inputs: th.Tensor, read: th.Tensor, state: th.Tensor) -> th.Tensor:
        """Return what is read of the state, through a gated linear unit, beside the inputs."""
        shown = gelu(self.tell(state) + dense(self.direct, read), approximate="tanh")
        output: th.Tensor = dense(self.skip, inputs) + glu(self.mix(shown))
        return output


@known
class LRU(ScannedMemory):
    """A memory of fading oscillations, each with a half-life and a frequency of its own.

    Of each layer, with the features ``x`` and complex ``lambda``, ``B`` and ``C``::

        lambda = exp(-exp(nu) + i exp(theta))                     never larger than 1
        h = lambda h + exp(gamma) B x
        y = skip(x) + GLU(W GELU(Re(C h) + D x) + b)

    At first ``lambda`` is uniform on a ring, and ``gamma`` such that states are equally large
    whatever their half-life. What stands around the recurrence is the paper's block (its section 3,
    appendix): the state changes linearly, so what is not linear has to come behind. The skip of the
    first layer is a linear map to its size; later ones add ``x`` itself and read
    ``LayerNorm(x)``.

    >>> from thrust_pomdp.recurrent import LRU
    >>> memory, starts = LRU(3, 8), th.zeros(2, 5, dtype=th.bool)
    >>> output, (hidden,) = memory(th.zeros(2, 5, 3), memory.initial_state(2), starts)
    >>> output.shape, hidden.shape
    (torch.Size([2, 5, 8]), torch.Size([1, 2, 16]))

    :param input_size: numbers in the features of a step
    :param hidden_size: numbers that it gives to the heads
    :param num_layers: ``n_lstm_layers``
    :param state_size: complex units of the state; ``hidden_size`` of them when None
    :param r_min: the ring's inner radius, the least of ``abs(lambda)``
    :param r_max: its outer radius, at most 1; half-lives are ``log(.5) / log(abs(lambda))`` steps
    :param max_phase: the largest angle by which a state turns in one step, radians
    :raises ValueError: for sizes that are no whole numbers of at least 1, and unless ``0 <= r_min
        <= r_max <= 1`` and ``0 < max_phase <= 2 pi``
    """

    loop = "lru_step"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        state_size: int | None = None,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
    ) -> None:
        for name, number in (("r_min", r_min), ("r_max", r_max), ("max_phase", max_phase)):
            check_finite_number(name, number)
        if not 0 <= r_min <= r_max <= 1:
            raise ArgumentError(
                f"r_min and r_max must be 0 <= r_min <= r_max <= 1, got {r_min!r} and {r_max!r}"
            )
        if not 0 < max_phase <= 2 * math.pi:
            raise ArgumentError(f"max_phase must be above 0 and at most 2 pi, got {max_phase!r}")
        size = hidden_size if state_size is None else state_size
        self.state_size = check_count("state_size", size)
        super().__init__(
            input_size, hidden_size, num_layers, r_min=r_min, r_max=r_max, max_phase=max_phase
        )

    def make_layer(self, input_size: int, is_first: bool, **options: Any) -> LRULayer:
        """Make a layer."""
        return LRULayer(input_size, self.hidden_size, is_first, self.state_size, **options)

    def state_parts(self) -> tuple[StatePart]:
        """Say what the state consists of: real, then imaginary parts, ``hidden``."""
        return (StatePart("hidden", (2 * self.state_size,)),)

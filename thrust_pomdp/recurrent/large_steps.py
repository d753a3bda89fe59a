"""One step of torch's layers where their weights outgrow the processor's cache.

A compiled step goes through all weights once for every two rows, and torch's cells multiply by a
library that does half of what some processors can. Where there is oneDNN in torch, its dense
products do better from some size on. They read the weights where these lie: nothing is laid out
beforehand, so that nothing can become stale.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch as th

from thrust_pomdp import gate

#: Numbers in a layer's weights. From here on products by oneDNN take less time than the loops, from
#: 16 rows on (measured with layers of 384 and 512 units, and of 4,000 inputs). Sizes alone decide:
#: digits must depend neither on the number of rows nor on whether somebody watches.
LARGE = 500_000


def is_large(*weights: th.Tensor) -> bool:
    """Tell whether a layer's step is left to dense products."""
    return sum(weight.numel() for weight in weights) >= LARGE


def against_large_step(*tensors: th.Tensor) -> str | None:
    """Say why a step of a large layer is torch's own, and not made of oneDNN's products.

    :param tensors: the features, the state and the weights
    """
    if th.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "a gradient is wanted"
    if _onednn() is None:
        return "this torch has no oneDNN, or it is switched off"
    return gate.against_kernels(*tensors)


def large_step(
    kind: str, features: th.Tensor, state: Sequence[th.Tensor], weights: Sequence[th.Tensor]
) -> tuple[th.Tensor, ...] | None:
    """Advance a large layer of torch's by one step; None where it is not large, or cannot be.

    :param kind: ``"LSTM"``, ``"GRU"``, ``"RNN_TANH"`` or ``"RNN_RELU"``
    :param features: ``[n_envs, features]``
    :param state: its parts, ``[n_envs, hidden]`` each
    :param weights: in torch's order
    :return: the new state's parts
    """
    if not is_large(*weights) or against_large_step(features, *state, *weights) is not None:
        return None
    new_state: tuple[th.Tensor, ...] = _STEPS[kind](features, tuple(state), *weights)
    return new_state


def _lstm(
    features: th.Tensor,
    state: tuple[th.Tensor, ...],
    w_ih: th.Tensor,
    w_hh: th.Tensor,
    b_ih: th.Tensor | None = None,
    b_hh: th.Tensor | None = None,
) -> tuple[th.Tensor, ...]:
    hidden, cell = state
    gates = _product(hidden, w_hh, b_hh, _product(features, w_ih, b_ih))
    update, forget, new, output = gates.chunk(4, dim=1)
    cell = _tanh(new).mul_(th.sigmoid(update)).addcmul_(th.sigmoid(forget), cell)
    return _tanh(cell).mul_(th.sigmoid(output)), cell


def _gru(
    features: th.Tensor,
    state: tuple[th.Tensor, ...],
    w_ih: th.Tensor,
    w_hh: th.Tensor,
    b_ih: th.Tensor | None = None,
    b_hh: th.Tensor | None = None,
) -> tuple[th.Tensor, ...]:
    (hidden,) = state
    of_features, of_hidden = _product(features, w_ih, b_ih), _product(hidden, w_hh, b_hh)
    size = hidden.shape[1]
    reset, update = (of_features[:, : 2 * size] + of_hidden[:, : 2 * size]).sigmoid_().chunk(2, 1)
    new = _tanh(th.addcmul(of_features[:, 2 * size :], reset, of_hidden[:, 2 * size :]))
    return (th.sub(hidden, new).mul_(update).add_(new),)


def _rnn(
    features: th.Tensor,
    state: tuple[th.Tensor, ...],
    w_ih: th.Tensor,
    w_hh: th.Tensor,
    b_ih: th.Tensor | None = None,
    b_hh: th.Tensor | None = None,
) -> th.Tensor:
    return _product(state[0], w_hh, b_hh, _product(features, w_ih, b_ih))


_STEPS: dict[str, Any] = {
    "LSTM": _lstm,
    "GRU": _gru,
    "RNN_TANH": lambda *given: (_tanh(_rnn(*given)),),
    "RNN_RELU": lambda *given: (_rnn(*given).relu_(),),
}


def _tanh(x: th.Tensor) -> th.Tensor:
    """Return the tanh, to 2e-7 of itself, in half of the time that torch's takes."""
    e = x.clamp(min=-10.0).mul_(-2.0).expm1_()  # from -9.1 on the nearest float32 is -1
    return e.div_(e + 2.0).neg_()


def _product(
    rows: th.Tensor, weight: th.Tensor, bias: th.Tensor | None, added: th.Tensor | None = None
) -> th.Tensor:
    """Return ``rows @ weight.T + bias``, and what is added."""
    linear = _onednn()
    product: th.Tensor
    if added is None:
        product = linear(rows, weight, bias, "none", [], "")
    else:
        product = linear.binary(rows, added, weight, bias, "add")
    return product


def _onednn() -> Any:
    """Return oneDNN's linear layer, which torch's compiler uses; None where there is none."""
    return _found() if th._C._get_mkldnn_enabled() else None


@functools.cache
def _found() -> Any:
    if not th._C._has_mkldnn:
        return None
    try:
        linear = th.ops.mkldnn._linear_pointwise
        # Torch may give it other arguments one day.
        one = th.ones(1, 1)
        ok = linear.binary(one, linear(one, one, one[0], "none", [], ""), one, one[0], "add")
    except (AttributeError, RuntimeError, TypeError):
        return None
    return linear if float(ok) == 4.0 else None

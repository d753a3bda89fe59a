"""Checks of arguments, with messages that name the argument, the rule and the value."""

from __future__ import annotations

import math
import operator
from typing import Any

from thrust_pomdp.errors import warn_user

#: Options of torch's recurrent layers that cannot work here, and why.
_REFUSED_LSTM_KWARGS = {
    "proj_size": "the state arrays and the heads assume a hidden state of lstm_hidden_size",
    "bidirectional": "an agent cannot read its future observations",
    "batch_first": "the layout is chosen by the sequence layer",
    "num_layers": "use n_lstm_layers",
    "input_size": "it follows from the features extractor",
    "hidden_size": "use lstm_hidden_size",
}


def check_count(name: str, value: Any, minimum: int = 1) -> int:
    """Return a whole number.

    :raises ValueError: if it is none, or below ``minimum``
    """
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None
    if isinstance(value, bool) or count < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value!r}")
    return count


def check_number(name: str, value: Any) -> float:
    """Return a number.

    :raises ValueError: if it is none
    """
    if isinstance(value, (str, bytes, bool)):
        raise ValueError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None


def check_positive(name: str, value: Any) -> float:
    """Return a positive number.

    :raises ValueError: if it is none
    """
    number = check_number(name, value)
    if not number > 0:
        raise ValueError(f"{name} must be positive, got {value!r}")
    return number


def check_fraction(name: str, value: Any) -> float:
    """Return a number in [0, 1].

    :raises ValueError: if it is none
    """
    number = check_number(name, value)
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value!r}")
    return number


def check_flag(name: str, value: Any) -> bool:
    """Return a bool.

    :raises ValueError: for anything else: ``"no"`` has a truth value too
    """
    if isinstance(value, bool) or (hasattr(value, "dtype") and value.dtype == bool):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {value!r}")


def check_forget_bias(
    forget_bias: float, state: tuple[str, ...], lstm_kwargs: dict[str, Any] | None
) -> None:
    """Refuse a bias of a forget gate where there is none.

    :param state: names of the parts of the memory's state
    :raises ValueError: with the reason
    """
    if not math.isfinite(check_number("forget_bias", forget_bias)):
        raise ValueError(f"forget_bias must be finite, got {forget_bias!r}")
    if forget_bias and "cell" not in state:
        raise ValueError(
            f"forget_bias={forget_bias!r} needs rnn_class=nn.LSTM: the other layers have no forget "
            "gate"
        )
    if forget_bias and not (lstm_kwargs or {}).get("bias", True):
        raise ValueError(f"forget_bias={forget_bias!r} needs biases: leave out lstm_kwargs['bias']")


def check_lstm_arguments(
    lstm_hidden_size: int,
    n_lstm_layers: int,
    shared_lstm: bool,
    enable_critic_lstm: bool,
    lstm_kwargs: dict[str, Any] | None,
    options: tuple[str, ...],
) -> None:
    """Refuse what no recurrent policy can be made of.

    :param options: what ``lstm_kwargs`` may contain
    :raises ValueError: with the reason
    """
    check_count("lstm_hidden_size", lstm_hidden_size)
    check_count("n_lstm_layers", n_lstm_layers)
    if shared_lstm and enable_critic_lstm:
        raise ValueError(
            "shared_lstm=True and enable_critic_lstm=True exclude each other: pass "
            "enable_critic_lstm=False for one shared LSTM, or shared_lstm=False for two"
        )
    for key, value in (lstm_kwargs or {}).items():
        if key in _REFUSED_LSTM_KWARGS:
            if not value:
                continue  # said explicitly, and what it is anyway
            raise ValueError(f"lstm_kwargs[{key!r}] is refused: {_REFUSED_LSTM_KWARGS[key]}")
        if key not in options:
            *first, last = map(repr, options)
            raise ValueError(f"lstm_kwargs takes {', '.join(first)} and {last}, got {key!r}")
        if key == "dropout" and value > 0 and n_lstm_layers > 1:
            warn_user(
                f"lstm_kwargs dropout={value} is active in training and not while collecting: "
                "already the first pass over a window then computes other log-probabilities than "
                "the ones the actions were drawn with, so PPO's ratio starts away from 1"
            )

"""Checks of arguments, with messages that name the argument, the rule and the value."""

from __future__ import annotations

import math
import numbers
import operator
import os
from typing import Any

from thrust_pomdp.errors import ArgumentError, warn_user

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
    """Return a whole number, NumPy's or Python's, as Python's.

    :raises ValueError: if it is none, or below ``minimum``
    """
    try:
        count = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} must be a whole number, got {value!r}") from None
    if isinstance(value, bool) or count < minimum:
        raise ArgumentError(f"{name} must be at least {minimum}, got {value!r}")
    return count


def check_number(name: str, value: Any) -> float:
    """Return a number, NumPy's or Python's, as Python's.

    :raises ValueError: if it is none
    """
    if isinstance(value, (str, bytes, bool)) or getattr(value, "ndim", 0) > 0:
        raise ArgumentError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ArgumentError(f"{name} must be a number, got {value!r}") from None


def check_finite_number(name: str, value: Any, minimum: float = -math.inf) -> float:
    """Return a finite number.

    :raises ValueError: if it is none, or below ``minimum``
    """
    number = check_number(name, value)
    if not math.isfinite(number):
        raise ArgumentError(f"{name} must be finite, got {value!r}")
    if number < minimum:
        raise ArgumentError(f"{name} must be at least {minimum:g}, got {value!r}")
    return number


def check_positive(name: str, value: Any) -> float:
    """Return a positive number.

    :raises ValueError: if it is none
    """
    number = check_number(name, value)
    if not number > 0:
        raise ArgumentError(f"{name} must be positive, got {value!r}")
    return number


def check_fraction(name: str, value: Any) -> float:
    """Return a number in [0, 1].

    :raises ValueError: if it is none
    """
    number = check_number(name, value)
    if not 0 <= number <= 1:
        raise ArgumentError(f"{name} must lie in [0, 1], got {value!r}")
    return number


def check_schedule(name: str, value: Any, minimum: float = -math.inf) -> Any:
    """Return a number of at least ``minimum``, or what is a function of the remaining progress.

    :raises ValueError: if it is neither
    """
    if callable(value) and not isinstance(value, type):
        return value
    if isinstance(value, (str, bytes, bool)) or value is None:
        raise ArgumentError(
            f"{name} must be a number or a function of the remaining progress, got {value!r}"
        )
    return check_finite_number(name, value, minimum)


def check_flag(name: str, value: Any) -> bool:
    """Return a bool.

    :raises ValueError: for anything else: ``"no"`` has a truth value too
    """
    if isinstance(value, bool):
        return value
    if str(getattr(value, "dtype", "")) == "bool" and getattr(value, "ndim", 1) == 0:
        return bool(value)
    raise ArgumentError(f"{name} must be True or False, got {value!r}")


def check_switch(name: str, value: Any) -> bool:
    """Return a bool, for an argument of SB3's, whose users may say 0 and 1.

    :raises ValueError: for anything else
    """
    if not isinstance(value, bool) and isinstance(value, numbers.Integral) and value in (0, 1):
        return bool(value)
    return check_flag(name, value)


def check_seed(name: str, value: Any) -> int | None:
    """Return a seed, None for none.

    :raises ValueError: if NumPy's generators cannot be seeded with it
    """
    if value is None:
        return None
    seed = check_count(name, value, minimum=0)
    if seed >= 2**32:
        raise ArgumentError(f"{name} must be below 2**32, got {value!r}")
    return seed


def check_kind(name: str, value: Any, kinds: type | tuple[type, ...], words: str) -> None:
    """Refuse what is of none of some classes; None is what was left out.

    :param words: what the argument must be, for the message
    :raises ValueError: naming the argument
    """
    if value is not None and not isinstance(value, kinds):
        raise ArgumentError(f"{name} must be {words}, got {value!r}")


def check_file(name: str, path: Any) -> None:
    """Refuse what no model can be loaded from.

    :raises FileNotFoundError: if there is none at the path, as SB3 does, but by the user's path
    :raises ValueError: for what is neither a path nor an opened file
    """
    if isinstance(path, (str, os.PathLike)):
        # SB3 looks for both.
        if not os.path.exists(path) and not os.path.exists(f"{os.fspath(path)}.zip"):
            raise FileNotFoundError(
                f"{name} must be a saved model's, there is no file at {os.fspath(path)}, nor with "
                ".zip behind it"
            )
    elif not hasattr(path, "read"):
        raise ArgumentError(f"{name} must be a path or an opened file, got {path!r}")


def check_forget_bias(
    forget_bias: float, is_lstm: bool, lstm_kwargs: dict[str, Any] | None
) -> None:
    """Refuse a bias of a forget gate where there is none.

    :param is_lstm: whether the memory is torch's LSTM
    :raises ValueError: with the reason
    """
    check_finite_number("forget_bias", forget_bias)
    if forget_bias and not is_lstm:
        raise ArgumentError(
            f"forget_bias={forget_bias!r} needs rnn_class=nn.LSTM: the other layers have no forget "
            "gate, and of a memory of your own none is known"
        )
    if forget_bias and not (lstm_kwargs or {}).get("bias", True):
        raise ArgumentError(
            f"forget_bias={forget_bias!r} needs biases: leave out lstm_kwargs['bias']"
        )


def check_lstm_arguments(
    n_lstm_layers: int,
    shared_lstm: bool,
    enable_critic_lstm: bool,
    lstm_kwargs: dict[str, Any] | None,
    options: tuple[str, ...] | None,
    is_own: bool = False,
) -> None:
    """Refuse what no recurrent policy can be made of.

    :param options: what ``lstm_kwargs`` may contain, None for anything
    :param is_own: they are given to a memory of the user's own, which knows what they mean
    :raises ValueError: with the reason
    """
    check_kind("lstm_kwargs", lstm_kwargs, dict, "a dict")
    if shared_lstm and enable_critic_lstm:
        raise ArgumentError(
            "shared_lstm=True and enable_critic_lstm=True exclude each other: pass "
            "enable_critic_lstm=False for one shared LSTM, or shared_lstm=False for two"
        )
    for key, value in (lstm_kwargs or {}).items():
        if key in _REFUSED_LSTM_KWARGS:
            if not value:
                continue  # said explicitly, and what it is anyway
            raise ArgumentError(f"lstm_kwargs[{key!r}] is refused: {_REFUSED_LSTM_KWARGS[key]}")
        if options is not None and key not in options:
            raise ArgumentError(f"lstm_kwargs takes {_listed(options)}, got {key!r}")
        if is_own:
            continue
        if key == "bias":
            check_switch("lstm_kwargs['bias']", value)
        if (
            key == "dropout"
            and check_fraction("lstm_kwargs['dropout']", value)
            and n_lstm_layers > 1
        ):
            warn_user(
                f"lstm_kwargs dropout={value} is active in training and not while collecting: "
                "already the first pass over a window then computes other log-probabilities than "
                "the ones the actions were drawn with, so PPO's ratio starts away from 1"
            )


def _listed(names: tuple[str, ...]) -> str:
    """List names as a sentence does."""
    if not names:
        return "nothing for this memory"
    *first, last = map(repr, names)
    return f"{', '.join(first)} and {last}" if first else last


def check_no_options(options: dict[str, Any] | None, what: str) -> None:
    """Refuse options of a reset where none would have an effect.

    :param options: as ``reset`` was given them
    :param what: the environment, in a word or two
    :raises ValueError: if there are any
    """
    if options:
        raise ArgumentError(f"options must be None or empty, {what} has none, got {options!r}")

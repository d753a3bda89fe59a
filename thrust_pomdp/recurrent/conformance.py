"""Whether a memory keeps the laws that recurrent PPO rests on: a test for memories of one's own.

Each law is a function that raises ``AssertionError`` where it is broken, with what it saw.
:func:`check_memory` asks all of them.
"""

from __future__ import annotations

import inspect
import os
import re
import traceback
from collections.abc import Callable
from typing import Any

import torch as th
from torch import nn

from thrust_pomdp.arguments import check_count, check_lstm_arguments
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.recurrent.memory import initial_state, memory_step
from thrust_pomdp.recurrent.memory_laws import (
    LAWS,
    N_SEQ,
    N_STEPS,
    Case,
    as_any,
    first_line,
    make_case,
    run_windows,
    trained_weights,
)
from thrust_pomdp.recurrent.protocol import (
    Memory,
    against_returned,
    is_memory_class,
    options_of,
)
from thrust_pomdp.recurrent.sequences import LSTMState
from thrust_pomdp.recurrent.torch_layers import TORCH_LAYERS

#: By how much weights are moved from their first values, where biases may be zero.
_PERTURBATION = 0.1


def check_memory(
    memory_class: type[Memory] | type[nn.RNNBase],
    lstm_kwargs: dict[str, Any] | None = None,
    *,
    input_size: int = 4,
    hidden_size: int = 7,
    n_layers: int | None = None,
) -> None:
    """Look whether a class of memories may be a policy's ``rnn_class``.

    What is asked: its step equals its windows, forward and backward; nothing crosses an episode
    start, no number and no gradient; carrying a state from window to window changes nothing;
    environments do not touch each other; nothing is drawn or altered while collecting; training
    mode computes the same; dtypes, devices, exporting, copies and saved weights.

    >>> check_memory(nn.GRU)

    :param memory_class: a subclass of :class:`~thrust_pomdp.recurrent.Memory`, or a layer of
        torch's
    :param lstm_kwargs: further arguments of the class
    :param input_size: numbers in the features of a step
    :param hidden_size: numbers that it gives to the heads
    :param n_layers: of the memory; both 1 and 2 when None, unless the class refuses 2 with a
        ``ValueError``
    :raises ValueError: for what is no class of memories, and sizes below 1
    :raises AssertionError: naming each law that is broken, and how that shows
    """
    if not is_memory_class(memory_class) and memory_class not in TORCH_LAYERS:
        raise ArgumentError(
            "memory_class must be a subclass of thrust_pomdp.recurrent.Memory, or nn.LSTM, nn.GRU "
            f"or nn.RNN, got {memory_class!r}"
        )
    input_size = check_count("input_size", input_size)
    hidden_size = check_count("hidden_size", hidden_size)
    kwargs, make_any = dict(lstm_kwargs or {}), as_any(memory_class)
    _check_options(memory_class, kwargs)

    def make(layers: int) -> nn.Module:
        memory: nn.Module = make_any(input_size, hidden_size, num_layers=layers, **kwargs)
        with th.no_grad():
            for weight in trained_weights(memory):
                weight.add_(th.randn_like(weight), alpha=_PERTURBATION)
        return memory.eval()

    with th.random.fork_rng(devices=()):
        th.manual_seed(0)
        if n_layers is None:
            _check_laws(lambda: make(1), memory_class, input_size, 1)
            if not _refuses(lambda: make(2)):
                _check_laws(lambda: make(2), memory_class, input_size, 2)
        else:
            n_layers = check_count("n_layers", n_layers)
            _check_laws(lambda: make(n_layers), memory_class, input_size, n_layers)


def _check_options(memory_class: type[Any], kwargs: dict[str, Any]) -> None:
    """Refuse arguments that the class does not take, or that a policy gives it.

    :raises ValueError: naming them
    """
    if not is_memory_class(memory_class):
        return
    taken = inspect.signature(memory_class).parameters
    if "num_layers" not in taken and options_of(memory_class) is not None:
        raise ArgumentError(
            f"{memory_class.__name__} must take num_layers, which is n_lstm_layers, also where it "
            "allows 1 only"
        )
    check_lstm_arguments(1, False, False, kwargs, options_of(memory_class), is_own=True)


def _refuses(make: Callable[[], nn.Module]) -> bool:
    """Tell whether a memory of two layers is refused: on purpose, by a message of its own."""
    try:
        make()
    except ArgumentError:
        return True
    except (ValueError, NotImplementedError) as error:
        # Unpacking one layer's size from two raises a ValueError, too, and is no refusal.
        return (traceback.extract_tb(error.__traceback__)[-1].line or "raise").startswith("raise")
    return False


def _check_laws(
    make: Callable[[], nn.Module], memory_class: type[Any], input_size: int, n_layers: int
) -> None:
    """Try all laws.

    :raises AssertionError: naming the laws that are broken, and how that shows
    """
    th.manual_seed(0)
    name = memory_class.__name__ + (f" with {n_layers} layers" if n_layers > 1 else "")
    memory = make()
    try:
        _try_once(memory, input_size)
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from None
    except Exception as error:
        raise AssertionError(
            f"{name} raises {type(error).__name__}{place_of(error)}: {first_line(error)}"
        ) from error
    broken = []
    for law in LAWS:
        th.manual_seed(0)
        try:
            law(make_case(make, input_size))
        except AssertionError as error:
            broken.append(f"{_name(law)}: {error}")
        except Exception as error:
            kind = type(error).__name__
            broken.append(f"{_name(law)}: it raises {kind}{place_of(error)}: {first_line(error)}")
    if broken:
        raise AssertionError(
            f"{name} breaks {len(broken)} of {len(LAWS)} laws of a memory (the first may explain "
            "the others):\n- " + "\n- ".join(broken)
        )


def _try_once(memory: nn.Module, input_size: int) -> None:
    """Run a step and a window, and compare what they return with what the memory says of itself.

    :raises AssertionError: naming what was returned and what must be
    """
    features, starts = th.zeros(N_SEQ, N_STEPS, input_size), th.zeros(N_SEQ, N_STEPS) != 0
    for name, axes, given in (
        ("step", (), (features[:, 0], starts[:, 0])),
        ("windows", (N_STEPS,), (features, starts)),
    ):
        before = initial_state(memory, N_SEQ)
        reason = against_returned(
            memory, name, _returned(memory, given[0], before, given[1]), (N_SEQ, *axes)
        )
        assert reason is None, reason


def _returned(memory: nn.Module, features: th.Tensor, states: LSTMState, starts: th.Tensor) -> Any:
    if isinstance(memory, Memory):
        return memory(features, states, starts)
    if features.ndim == 2:
        return memory_step(memory, features, states, starts)
    return run_windows(memory, features, states, starts)


def place_of(error: BaseException) -> str:
    """Say in which line of the user's an error came up; nothing where in none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _LIBRARIES.search(frame.filename.replace(os.sep, "/"))]
    if not own:
        return ""
    last = own[-1]
    return f" in {last.name}, {os.path.basename(last.filename)}, line {last.lineno}"


#: Files that are none of the user's.
_LIBRARIES = re.compile(r"/(site-packages|thrust_pomdp)/|/contextlib\.py$|^<")


def _name(law: Callable[[Case], None]) -> str:
    return law.__name__.strip("_").replace("_", " ")

"""What must be the same in the program that takes a training up."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import stable_baselines3
import torch as th

import thrust_pomdp
from thrust_pomdp.recurrent.compiled import load_kernels
from thrust_pomdp.vec_env.previous import layers

#: Arguments of the algorithm that change nothing about what is learnt.
_IDLE = (
    *("self", "policy", "env", "verbose", "device", "tensorboard_log", "_init_setup_model"),
    "timeout",
)

#: Where schedules are compared, in the remaining progress.
_PROGRESS = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1, 0.0)


def described(model: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a model and a call of ``learn``, by names and numbers that can be compared.

    :param model: a ``RecurrentPPO``, whose environment is set
    :param arguments: of ``learn``
    """
    found = {name: describe(value) for name, value in arguments.items()}
    found["algorithm"] = describe(type(model))
    found["policy"] = describe(type(model.policy))
    for cls in type(model).__mro__:
        for name in inspect.signature(cls).parameters:
            if name not in _IDLE and name in vars(model):
                found.setdefault(name, describe(vars(model)[name]))
    found["n_envs"] = model._n_envs_of_training()
    found["observation_space"] = str(model.observation_space)
    found["action_space"] = str(model.action_space)
    around = [*layers(model.env), model.env.unwrapped]
    found["env"] = " of ".join(type(layer).__name__ for layer in around)
    for name, weight in model.policy.state_dict().items():
        found[f"shape of {name}"] = list(weight.shape)
    return found


def describe(value: Any) -> Any:
    """Describe a value by what JSON can hold.

    >>> describe((1, th.nn.ReLU)), describe(lambda progress: 2 * progress)[0]
    ([1, 'torch.nn.modules.activation.ReLU'], 2.0)
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [describe(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): describe(part) for key, part in value.items()}
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if callable(value):
        return _schedule(value)
    return describe(type(value))


def _schedule(function: Callable[[Any], Any]) -> Any:
    """Describe a schedule by its values, whatever it is made of."""
    try:
        return [float(function(progress)) for progress in _PROGRESS]
    except Exception:  # a function of something else
        return f"{function.__module__}.{getattr(function, '__qualname__', type(function))}"


def first_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Name what is not as it was, None if all is."""
    for name in dict.fromkeys([*before, *now]):
        then, today = before.get(name), now.get(name)
        if then != today:
            return f"{name} was {then!r} and is {today!r}"
    return None


def versions() -> dict[str, str]:
    """Return the versions, and the way of computing, that bits depend on."""
    return {
        "thrust_pomdp": thrust_pomdp.__version__,
        "torch": th.__version__,
        "numpy": np.__version__,
        "stable_baselines3": stable_baselines3.__version__,
        "compiled loops": "yes" if load_kernels() is not None else "no",
        "torch threads": str(th.get_num_threads()),
    }

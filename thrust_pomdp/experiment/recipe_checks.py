"""What values an algorithm's keys may have in a recipe: said before the first run, not by it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from thrust_pomdp.arguments import (
    check_count,
    check_finite_number,
    check_flag,
    check_fraction,
    check_positive,
)
from thrust_pomdp.experiment.recipe_values import SCHEDULED, Linear, parse_schedule

#: Keys that may be None, which is no value of theirs or leaves the choice to the algorithm.
_MAY_BE_NONE = frozenset(
    {"batch_size", "clip_range_vf", "target_kl", "policy_kwargs", "envs_per_minibatch",
     "sequence_length"}
)  # fmt: skip


#: As ``thrust_pomdp.ppo.recurrent_ppo`` has them, which loads torch.
WINDOW_STATES = ("zero", "carry")


def check_whole(name: str, value: Any, minimum: int = 1) -> int:
    """Read a count; rl-zoo writes them as ``!!float 1e5``.

    :raises ValueError: if it is none, or below ``minimum``
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None
    return check_count(name, int(number) if number.is_integer() else value, minimum)


def _schedule(name: str, value: Any) -> None:
    parsed = parse_schedule(name, value)
    for end in parsed if isinstance(parsed, Linear) else (parsed,):
        if end is not None and end < 0:
            raise ValueError(f"{name} must be at least 0, got {value!r}")


def _names(name: str, value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{name} must be a list of names, got {value!r}")


def _window_state(name: str, value: Any) -> None:
    if value not in WINDOW_STATES:
        raise ValueError(f"{name} must be one of {', '.join(WINDOW_STATES)}, got {value!r}")


_Check = Callable[[str, Any], Any]

#: How arguments of the algorithms are checked; what is not here, the algorithm checks.
_OF_ALGORITHMS: Mapping[str, _Check] = {
    **dict.fromkeys(SCHEDULED, _schedule),
    **dict.fromkeys(("gamma", "gae_lambda"), check_fraction),
    **dict.fromkeys(("max_grad_norm", "target_kl"), check_positive),
    **dict.fromkeys(("normalize_advantage", "use_sde", "refresh_states"), check_flag),
    "window_state": _window_state,
    "ent_coef": check_finite_number,
    "vf_coef": functools.partial(check_finite_number, minimum=0),
}

#: Counts among them, and the least that they may be.
_COUNTS: Mapping[str, int] = {
    **dict.fromkeys(("n_steps", "batch_size", "n_epochs", "envs_per_minibatch"), 1),
    "sequence_length": 1,
    "burn_in": 0,
    "sde_sample_freq": -1,
}

#: How arguments of ``VecNormalizeVisible`` are checked.
_OF_NORMALIZER: Mapping[str, _Check] = {
    **dict.fromkeys(("norm_obs", "norm_reward", "zero_is_blank"), check_flag),
    **dict.fromkeys(("clip_obs", "clip_reward", "epsilon"), check_positive),
    "gamma": check_fraction,
    "norm_obs_keys": _names,
}

#: Arguments of ``VecNormalizeVisible`` that a recipe may give.
NORMALIZE_KEYS = tuple(_OF_NORMALIZER)


def check_hyperparameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return an algorithm's arguments, counts as whole numbers.

    :raises ValueError: naming the first that cannot be
    """
    found = dict(values)
    for key, value in values.items():
        if value is None and key in _MAY_BE_NONE:
            continue
        if key in _COUNTS:
            found[key] = check_whole(key, value, _COUNTS[key])
        elif key in _OF_ALGORITHMS:
            _OF_ALGORITHMS[key](key, value)
    return found


def check_normalizer(options: Mapping[str, Any]) -> None:
    """Check arguments of ``VecNormalizeVisible``.

    :raises ValueError: naming the first that cannot be
    """
    for key, value in options.items():
        if not (value is None and key == "norm_obs_keys"):
            _OF_NORMALIZER[key](f"{key} in normalize", value)

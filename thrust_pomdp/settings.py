"""What algorithm and policy are told, checked and in Python's own numbers.

NumPy's numbers, such as a search for settings draws them, pass every ``isinstance`` until torch or
a file does not know them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import get_device

from thrust_pomdp.arguments import (
    check_count,
    check_finite_number,
    check_fraction,
    check_kind,
    check_positive,
    check_schedule,
    check_seed,
    check_switch,
)
from thrust_pomdp.errors import ArgumentError

#: Whole numbers of the algorithm and the least of each; those that may be None come second.
_COUNTS = {"n_steps": 1, "n_epochs": 1, "sde_sample_freq": -1, "burn_in": 0}
#: Flags of which SB3 saves None with a policy that does not explore by states.
_NONE_IN_FILES = ("full_std", "use_expln", "squash_output")
_OPTIONAL_COUNTS = ("batch_size", "envs_per_minibatch", "sequence_length")


def check_beforehand(verbose: Any, use_sde: Any, device: Any, policy_kwargs: Any) -> None:
    """Refuse what SB3's constructor would trip over.

    :raises ValueError: naming the argument, the rule and the value
    """
    check_count("verbose", int(verbose) if isinstance(verbose, bool) else verbose, minimum=0)
    check_switch("use_sde", use_sde)
    check_kind("policy_kwargs", policy_kwargs, dict, "a dict")
    check_device(device)


def check_device(device: Any) -> None:
    """Refuse what is no device of torch's.

    :raises ValueError: naming some that are
    """
    try:
        get_device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(
            f'device must be "auto" or one of torch\'s, such as "cpu" or "cuda:0", got {device!r}'
        ) from error


def take_settings(model: Any) -> None:
    """Check the numbers and flags of an algorithm, and leave it Python's own.

    :param model: a ``RecurrentPPO`` whose arguments have become attributes; those of a file, too
    :raises ValueError: naming the argument, the rule and the value
    """
    for name, minimum in _COUNTS.items():
        setattr(model, name, check_count(name, getattr(model, name), minimum))
    for name in _OPTIONAL_COUNTS:
        if getattr(model, name) is not None:
            setattr(model, name, check_count(name, getattr(model, name)))
    if model._stats_window_size is not None:
        model._stats_window_size = check_count("stats_window_size", model._stats_window_size)
    model.verbose, model.seed = int(model.verbose), check_seed("seed", model.seed)
    for name in ("gamma", "gae_lambda"):
        setattr(model, name, check_fraction(name, getattr(model, name)))
    model.ent_coef = check_finite_number("ent_coef", model.ent_coef)
    model.vf_coef = check_finite_number("vf_coef", model.vf_coef, minimum=0)
    model.max_grad_norm = check_positive("max_grad_norm", model.max_grad_norm)
    if model.target_kl is not None:
        model.target_kl = check_positive("target_kl", model.target_kl)
    model.learning_rate = check_schedule("learning_rate", model.learning_rate, minimum=0)
    _take_clip_ranges(model)
    model.normalize_advantage = check_switch("normalize_advantage", model.normalize_advantage)
    model.use_sde = check_switch("use_sde", model.use_sde)
    check_kind("tensorboard_log", model.tensorboard_log, (str, os.PathLike), "a folder's path")
    check_kind("rollout_buffer_kwargs", model.rollout_buffer_kwargs, dict, "a dict")


def _take_clip_ranges(model: Any) -> None:
    for name in ("clip_range", "clip_range_vf"):
        value = getattr(model, name)
        if callable(value) or (value is None and name == "clip_range_vf"):
            continue
        setattr(model, name, check_positive(name, value))


def check_learning(
    total_timesteps: Any,
    callback: Any,
    log_interval: Any,
    tb_log_name: Any,
    flags: Mapping[str, Any],
) -> int:
    """Return the number of steps to learn for; more than whole ones are one more.

    :raises ValueError: naming the argument, the rule and the value
    """
    steps = check_finite_number("total_timesteps", total_timesteps, minimum=0)
    if log_interval is not None:
        check_count("log_interval", log_interval)
    check_kind("tb_log_name", tb_log_name, str, "a name")
    for name, value in flags.items():
        check_switch(name, value)
    _check_callback(callback)
    return math.ceil(steps)


def _check_callback(callback: Any) -> None:
    members = callback if isinstance(callback, list) else [callback]
    for member in members:
        is_one = isinstance(member, BaseCallback) or (member is None and callback is None)
        # SB3 makes callbacks of functions, if they are not in a list.
        is_one = is_one or (member is callback and callable(member))
        if not is_one or isinstance(member, type):
            raise ArgumentError(
                "callback must be a callback of Stable-Baselines3, a list of these, or a function "
                f"of local and global names, got {callback!r}"
            )


def check_policy_arguments(
    flags: Mapping[str, Any], classes: Mapping[str, Any], dicts: Mapping[str, Any]
) -> None:
    """Refuse what SB3's policies would take for something else, or trip over.

    :param flags: by name
    :param classes: by name; functions that make what a class would are classes too
    :param dicts: keyword arguments, None for none
    :raises ValueError: naming the argument, the rule and the value
    """
    for name, value in flags.items():
        if value is not None or name not in _NONE_IN_FILES:
            check_switch(name, value)
    if flags["squash_output"] and not flags["use_sde"]:
        raise ArgumentError("squash_output=True needs use_sde=True, got use_sde=False")
    for name, value in classes.items():
        if not callable(value):
            raise ArgumentError(f"{name} must be a class, not its name or an object, got {value!r}")
    for name, value in dicts.items():
        check_kind(name, value, dict, "a dict")
    if "lr" in (dicts["optimizer_kwargs"] or {}):
        raise ArgumentError("optimizer_kwargs must not have an 'lr': pass learning_rate instead")

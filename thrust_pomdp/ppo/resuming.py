"""What a saved model needs to go on as if it had never stopped, beside its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.errors import warn_user
from thrust_pomdp.vec_env.privileged import VecPrivilegedInfo, wrappers_of_kind

#: Key of a privileged entry -> running statistics of it, in plain lists and numbers.
PrivilegedStatistics = dict[str, dict[str, Any]]


def resumed_seed(seed: int, num_timesteps: int) -> int:
    """Return the seed that a loaded model goes on from.

    With the seed itself it would sample, shuffle and meet once more what it did on its first day.

    >>> resumed_seed(0, 0), resumed_seed(0, 256) != resumed_seed(0, 512)
    (2968811710, True)

    :param seed: of the model
    :param num_timesteps: steps that it has been trained for
    """
    return int(np.random.SeedSequence([seed, num_timesteps]).generate_state(1)[0])


def statistics_of(env: VecEnv) -> PrivilegedStatistics:
    """Collect what an environment knows of privileged entries, where it knows anything."""
    layers = wrappers_of_kind(env, VecPrivilegedInfo)
    return {
        layer.privileged_key: layer.moments()
        for layer in layers
        if layer.statistics is not None and not layer.has_fresh_statistics
    }


def give_statistics(env: VecEnv, saved: PrivilegedStatistics, is_trained: bool) -> None:
    """Give an environment the statistics that it lacks; what its owner gave it is left.

    :param env: the environment to go on with
    :param saved: what :func:`statistics_of` collected
    :param is_trained: warn if there are none, since the critic was trained on others
    """
    fresh = [
        layer for layer in wrappers_of_kind(env, VecPrivilegedInfo) if layer.has_fresh_statistics
    ]
    for layer in fresh:
        if layer.privileged_key in saved:
            layer.take_moments(saved[layer.privileged_key])
    unknown = [layer.privileged_key for layer in fresh if layer.has_fresh_statistics]
    if unknown and is_trained:
        warn_user(
            f"the statistics of the privileged {', '.join(map(repr, unknown))} start anew, which "
            "shows the critic other numbers than it was trained on, and the file of the model has "
            "none: save those of the training environment with "
            "VecPrivilegedInfo.save_statistics(), and give them to this one with "
            "load_statistics() before you load the model or set its environment"
        )


@contextmanager
def lent_statistics(env: VecEnv, saved: PrivilegedStatistics, is_trained: bool) -> Iterator[None]:
    """Show a critic meanwhile the numbers that it was trained on; see :func:`give_statistics`."""
    layers = wrappers_of_kind(env, VecPrivilegedInfo)
    before = [(layer, layer.moments()) for layer in layers if layer.has_fresh_statistics]
    give_statistics(env, saved, is_trained)
    try:
        yield
    finally:
        for layer, moments in before:
            layer.take_moments(moments)

"""Names: of environments in modules, and what a misspelt one may have meant."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec


def env_spec(env_id: str) -> EnvSpec:
    """Return how an environment is registered; ``gym.spec`` is not for ``module:ID``.

    :param env_id: its id
    :raises ImportError: if there is no such module
    :raises gymnasium.error.Error: if there is no such environment
    """
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gym.spec(name)


def with_near_names(message: str, name: str, known: Iterable[str]) -> str:
    """Append the known names that are near to a wrong one, if there are any.

    >>> with_near_names("no arm 'lsmt'", "lsmt", ["lstm", "mlp"])
    "no arm 'lsmt': did you mean lstm?"
    """
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"{message}: did you mean {' or '.join(near)}?" if near else message

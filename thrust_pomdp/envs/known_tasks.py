"""Whether what stands under an id is a task of this package, as it was written.

Figures were measured, recipes tuned and controllers made for certain tasks. An id is only a name: a
program may register something else under it, around it, or change the class behind it. Each
``against_*`` function returns what would make the two differ, as a sentence's end, or None where
nothing does.
"""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from thrust_pomdp.envs.registration import VECTOR_TWINS, against_registration, entry_point_name
from thrust_pomdp.unmodified_classes import against_family


def find_spec(env_id: Any) -> EnvSpec | None:
    """Find what is registered under an id, as ``gym.make`` does; None where nothing is.

    :param env_id: an id; ``module:ID`` imports the module that registers it
    :raises ImportError: if there is no such module
    """
    if not isinstance(env_id, str):
        return None
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gym.registry.get(name)


def against_entry_point(entry_point: str) -> str | None:
    """Say why what stands at a module's name is not the class that was written there."""
    importlib.import_module("thrust_pomdp.envs")  # where Gymnasium's CartPole is remembered
    found: Any = load_env_creator(entry_point)
    if not isinstance(found, type):
        return f"{entry_point} is no class"
    if f"{found.__module__}:{found.__qualname__}" != entry_point:
        return f"{entry_point} was replaced"
    return against_family(found)


def against_our_class(spec: EnvSpec | None) -> str | None:
    """Say why ``gym.make`` would make no environment of this package of what is registered.

    Arguments and time limit may be whatever the user likes.

    :param spec: what is registered under an id; None if nothing is
    """
    if spec is None:
        return "nothing is registered under the id"
    name = entry_point_name(spec.entry_point)
    if name not in VECTOR_TWINS:
        return f"{spec.id} is registered as {name}"
    if spec.additional_wrappers:
        return f"{spec.id} is registered with wrappers"
    return _against_its_class(spec)


def against_known_task(env_id: str) -> str | None:
    """Say why an id does not stand for the task that is known by it here.

    :param env_id: an id of this package or ``CartPole-v1``, with or without a ``module:`` prefix
    """
    try:
        spec = find_spec(env_id)
    except ImportError as error:
        return str(error)
    if spec is None:
        return "nothing is registered under the id"
    return against_registration(spec) or _against_its_class(spec)


def _against_its_class(spec: EnvSpec) -> str | None:
    name = entry_point_name(spec.entry_point)
    reason = against_entry_point(name)
    if reason is None and spec.entry_point not in (name, load_env_creator(name)):
        reason = f"{spec.id} is registered as another {name}"
    return reason

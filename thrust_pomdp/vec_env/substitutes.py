"""Where native vectors, and infos that are built later, stand in for what a user asked for.

Each ``against_*`` function returns what would make the two differ, as a sentence's end, or None
where nothing does. Whoever is told a reason does what the user wrote.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper

from thrust_pomdp.envs.known_tasks import against_entry_point
from thrust_pomdp.envs.registration import VECTOR_TWINS
from thrust_pomdp.unmodified_classes import against_family, against_methods
from thrust_pomdp.wrappers import vector as vector_wrappers

#: What a native vector is made with beside the arguments of a single environment.
_OF_VECTORS = frozenset({"num_envs", "autoreset_mode", "max_episode_steps"})

#: What ``gym.make`` takes for itself, and native vectors understand as it does.
_OF_MAKE = frozenset({"max_episode_steps"})

#: Wrappers that hand on fresh arrays if they get fresh ones.
_WRAPPERS = tuple(getattr(vector_wrappers, name) for name in vector_wrappers.__all__)


def against_native_vector(spec: EnvSpec | None, env_kwargs: Mapping[str, Any]) -> str | None:
    """Say why the native vector would not be the task that ``gym.make`` makes of an id.

    It is the task only for a class of this package and its twin, both as they were written, with
    arguments that both know. Vectors of others may do anything: one clips rewards and shrinks
    frames, another draws all start states from one generator.

    :param spec: what is registered under the id; None if nothing is
    :param env_kwargs: arguments for ``gym.make``
    """
    if spec is None:
        return "nothing is registered under the id"
    single, twin = spec.entry_point, spec.vector_entry_point
    if not (isinstance(single, str) and isinstance(twin, str) and VECTOR_TWINS.get(single) == twin):
        return f"{twin} is not known to be the same task as {single}"
    if spec.additional_wrappers:
        return f"{spec.id} is registered with wrappers"
    return (
        against_entry_point(single)
        or against_entry_point(twin)
        or _against_arguments(single, twin, spec, env_kwargs)
    )


def _against_arguments(
    single: str, twin: str, spec: EnvSpec, env_kwargs: Mapping[str, Any]
) -> str | None:
    both = _parameters(single) & (_parameters(twin) - _OF_VECTORS)
    unknown = (spec.kwargs.keys() - both) | (env_kwargs.keys() - both - _OF_MAKE)
    if unknown:
        return f"not both forms take the argument {min(unknown)!r}"
    render_mode = render_mode_of(env_kwargs)
    vector_class: Any = load_env_creator(twin)
    if render_mode not in (None, *vector_class.metadata["render_modes"]):
        return f"a vector does not render in the mode {render_mode!r}"
    return None


def _parameters(entry_point: str) -> set[str]:
    return set(inspect.signature(load_env_creator(entry_point)).parameters)


def render_mode_of(env_kwargs: Mapping[str, Any]) -> Any:
    """Return the mode that is asked for; as SB3 does, images by default."""
    return env_kwargs.get("render_mode", "rgb_array")


def time_limit_of(spec: EnvSpec, env_kwargs: Mapping[str, Any]) -> int:
    """Return the time limit of what ``gym.make`` makes, in steps; -1 for none."""
    limits = (env_kwargs.get("max_episode_steps"), spec.max_episode_steps)
    return next((limit for limit in limits if limit is not None), -1)


def against_later_infos(env: VectorEnv[Any, Any, Any]) -> str | None:
    """Say why infos of a vector environment must be taken down at once.

    Built later they tell of their step only if nobody fills their arrays anew or changes the
    objects that they hold, which the native vectors and this package's wrappers do not.
    """
    return _against_wrappers(env) or against_native_class(env.unwrapped)


def against_native_class(env: Any) -> str | None:
    """Say why a vector environment is not one of the native ones as they were written."""
    cls = type(env)
    if f"{cls.__module__}:{cls.__qualname__}" not in VECTOR_TWINS.values():
        return f"{cls.__name__} is none of the native vectors"
    return against_family(cls) or against_methods(env, ("reset", "step"), cls)


def against_keeping_arrays(env: VectorEnv[Any, Any, Any]) -> str | None:
    """Say why observations of a vector environment may be overwritten by its next step."""
    reason = _against_wrappers(env)
    base: Any = env.unwrapped
    if reason is None and not (type(base) in (SyncVectorEnv, AsyncVectorEnv) and base.copy is True):
        reason = against_native_class(base)
    return reason


def _against_wrappers(env: Any) -> str | None:
    while isinstance(env, VectorWrapper):
        if type(env) not in _WRAPPERS:
            return f"of a {type(env).__name__} it is not known what it keeps"
        env = env.env
    return None

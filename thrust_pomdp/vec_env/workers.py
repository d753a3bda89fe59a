"""Calling a function with the environments of a ``SubprocVecEnv``, where they are.

SB3's workers call methods of an environment and read its attributes, but no function with it. They
do, however, tell whether it is in a wrapper of some class; a class may answer that as it likes, and
this one takes the opportunity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stable_baselines3.common.vec_env import SubprocVecEnv

from thrust_pomdp.errors import ArgumentError

#: The attribute under which a worker's environment is reached meanwhile.
DOOR = "_thrust_pomdp_door"


class _AnswersItself(type):
    """The class of a class that looks at what it is asked about."""

    def __instancecheck__(cls, env: Any) -> bool:
        vars(env)[DOOR] = _Door(env)
        return True


class _Doorkeeper(metaclass=_AnswersItself):
    """Leaves a door at the outermost wrapper that it is asked about."""


class _Door:
    """Calls functions with an environment, once, and is gone.

    :param env: the environment with its wrappers
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def __call__(self, function: Callable[..., Any], *args: Any) -> tuple[bool, Any]:
        """Return whether the function worked, and what it returned or said."""
        vars(self._env).pop(DOOR, None)
        try:
            return True, function(self._env, *args)
        except Exception as error:  # whatever it is, it must not end the worker
            return False, f"{type(error).__name__}: {error}"


def in_workers(
    venv: SubprocVecEnv,
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]] | None = None,
) -> list[Any]:
    """Call a function with each environment, in the process that it lives in.

    :param venv: the environments, between two steps
    :param function: takes the environment with its wrappers, and what ``arguments`` has for it; it
        is found by its name in its module
    :param arguments: for each environment; None for none
    :return: what it returned, one for each environment
    :raises ValueError: for environments without a wrapper around them (SB3's ``Monitor`` is one),
        and if the function raises
    """
    if not all(venv.env_is_wrapped(_Doorkeeper)):  # type: ignore[arg-type]
        raise ArgumentError(
            "venv must have environments with a wrapper around them to look into its "
            "processes: put stable_baselines3's Monitor around each"
        )
    outcomes = [
        venv.env_method(DOOR, function, *of_env, indices=idx)[0]
        for idx, of_env in enumerate(arguments or [()] * venv.num_envs)
    ]
    for worked, outcome in outcomes:
        if not worked:
            raise ArgumentError(f"{function.__name__} must work in every process: {outcome}")
    return [outcome for _, outcome in outcomes]

"""The table of environment ids."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator

from thrust_pomdp.errors import warn_user

_ENVS = "thrust_pomdp.envs"
_MASKED = f"{_ENVS}.cartpole:MaskedCartPoleEnv"
_FLICKERING = f"{_ENVS}.cartpole:FlickeringCartPoleEnv"
_POSITION_ONLY = f"{_ENVS}.popgym_cartpole:PositionOnlyCartPoleEnv"
_NOISY = f"{_ENVS}.popgym_cartpole:NoisyPositionOnlyCartPoleEnv"
_TMAZE = f"{_ENVS}.tmaze:TMazeEnv"
_ACTIVE_TMAZE = f"{_ENVS}.tmaze:ActiveTMazeEnv"
_REPEAT_PREVIOUS = f"{_ENVS}.repeat_previous:RepeatPreviousEnv"

#: Single environment -> its native vector twin.
VECTOR_TWINS = {
    _MASKED: f"{_ENVS}.cartpole_vector:MaskedCartPoleVectorEnv",
    _FLICKERING: f"{_ENVS}.cartpole_vector:FlickeringCartPoleVectorEnv",
    _POSITION_ONLY: f"{_ENVS}.popgym_cartpole_vector:PositionOnlyCartPoleVectorEnv",
    _NOISY: f"{_ENVS}.popgym_cartpole_vector:NoisyPositionOnlyCartPoleVectorEnv",
    _TMAZE: f"{_ENVS}.tmaze_vector:TMazeVectorEnv",
    _ACTIVE_TMAZE: f"{_ENVS}.tmaze_vector:ActiveTMazeVectorEnv",
    _REPEAT_PREVIOUS: f"{_ENVS}.repeat_previous_vector:RepeatPreviousVectorEnv",
}


class Registration(NamedTuple):
    """What is registered under an id.

    :param entry_point: module and class of the single environment
    :param kwargs: its arguments
    :param reward_threshold: the return that counts as solved: 95 % of what perfect memory is known
        to reach, on T-mazes 90 % correct turns; None where nothing of the kind is known
    :param max_episode_steps: the time limit; None where the environment ends by itself
    """

    entry_point: str
    kwargs: dict[str, Any]
    reward_threshold: float | None
    max_episode_steps: int | None


def _cartpole(entry_point: str, reward_threshold: float = 475.0, **kwargs: Any) -> Registration:
    """Run for 500 steps, as ``CartPole-v1`` does."""
    return Registration(entry_point, kwargs, reward_threshold, 500)


def _popgym(entry_point: str, reward_threshold: float | None, **kwargs: Any) -> Registration:
    """Truncate by itself, since the cap is also the scale of the rewards."""
    return Registration(entry_point, kwargs, reward_threshold, None)


def _tmaze(entry_point: str, corridor_length: int = 10) -> Registration:
    return Registration(entry_point, {"corridor_length": corridor_length}, 0.8, None)


#: What is said of an id that stands for something else.
OTHER_TASK = (
    "{reason}, which is left as it is: thrust_pomdp's task of that name cannot be made. Register "
    "yours under another id to have both"
)

#: The ids. Harder settings of an environment carry the parameters in their names: ``p`` is the
#: share of blank frames in per cent, ``L`` the mean length of a run of blank frames; a number alone
#: is the length of a maze's corridor.
ENVIRONMENTS: dict[str, Registration] = {
    "MaskedCartPole-v0": _cartpole(_MASKED),
    "FlickeringCartPole-v0": _cartpole(_FLICKERING, flicker_prob=0.5),
    "FlickeringCartPole-p75-v0": _cartpole(_FLICKERING, flicker_prob=0.75),
    "BurstFlickeringCartPole-v0": _cartpole(_FLICKERING, flicker_prob=0.5, burst_len=4),
    "BurstFlickeringCartPole-L8-v0": _cartpole(_FLICKERING, 472.0, flicker_prob=0.5, burst_len=8),
    "BurstFlickeringCartPole-L16-v0": _cartpole(_FLICKERING, 450.0, flicker_prob=0.5, burst_len=16),
    "MaskedFlickeringCartPole-v0": _cartpole(_FLICKERING, flicker_prob=0.5, hide_velocities=True),
    "POPGymPositionOnlyCartPoleEasy-v0": _popgym(_POSITION_ONLY, 0.95, max_episode_length=200),
    "POPGymPositionOnlyCartPoleMedium-v0": _popgym(_POSITION_ONLY, 0.95, max_episode_length=400),
    "POPGymPositionOnlyCartPoleHard-v0": _popgym(_POSITION_ONLY, 0.95, max_episode_length=600),
    "POPGymNoisyPositionOnlyCartPoleEasy-v0": _popgym(
        _NOISY, 0.95, noise_sigma=0.1, max_episode_length=200
    ),
    "POPGymNoisyPositionOnlyCartPoleMedium-v0": _popgym(
        _NOISY, None, noise_sigma=0.2, max_episode_length=200
    ),
    "POPGymNoisyPositionOnlyCartPoleHard-v0": _popgym(
        _NOISY, None, noise_sigma=0.3, max_episode_length=200
    ),
    "POPGymRepeatPreviousEasy-v0": _popgym(_REPEAT_PREVIOUS, 0.95, num_decks=1, k=4),
    "POPGymRepeatPreviousMedium-v0": _popgym(_REPEAT_PREVIOUS, 0.95, num_decks=2, k=32),
    "POPGymRepeatPreviousHard-v0": _popgym(_REPEAT_PREVIOUS, 0.95, num_decks=3, k=64),
    "TMaze-v0": _tmaze(_TMAZE),
    "TMaze-100-v0": _tmaze(_TMAZE, 100),
    "TMaze-500-v0": _tmaze(_TMAZE, 500),
    "TMaze-1000-v0": _tmaze(_TMAZE, 1000),
    "ActiveTMaze-v0": _tmaze(_ACTIVE_TMAZE),
}


#: Ids of Gymnasium's that something is known of here.
GYMNASIUMS = {
    "CartPole-v1": _cartpole("gymnasium.envs.classic_control.cartpole:CartPoleEnv"),
}


def entry_point_name(entry_point: Any) -> str:
    """Return ``module:class`` of what is registered, be it text, a class or a function."""
    if isinstance(entry_point, str):
        return entry_point
    kind = entry_point if hasattr(entry_point, "__qualname__") else type(entry_point)
    return f"{kind.__module__}:{kind.__qualname__}"


def creator_of(entry_point: Any) -> Callable[..., Any]:
    """Return the class, or function, that makes an environment."""
    return entry_point if callable(entry_point) else load_env_creator(str(entry_point))


def arguments_of(
    entry_point: Any, kwargs: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all arguments of an environment by name, those that are left at their defaults too.

    :param entry_point: of its registration
    :param kwargs: arguments in its registration
    :param given: arguments in ``gym.make``
    """
    parameters = inspect.signature(creator_of(entry_point)).parameters
    defaults = {
        name: parameter.default
        for name, parameter in parameters.items()
        if parameter.default is not parameter.empty
    }
    return {**defaults, **kwargs, **given}


def registered_as(spec: EnvSpec) -> dict[str, Any]:
    """Return what of a registration makes the environment, as JSON has it.

    What JSON does not have is told by the name of its class, so equal descriptions are a good sign
    and no proof: the code behind an entry point may have changed.
    """
    return {
        "entry_point": entry_point_name(spec.entry_point),
        "kwargs": _as_data(spec.kwargs),
        "max_episode_steps": spec.max_episode_steps,
        "wrappers": [
            {"entry_point": wrapper.entry_point, "kwargs": _as_data(wrapper.kwargs)}
            for wrapper in spec.additional_wrappers
        ],
    }


def _as_data(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _as_data(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_data(part) for part in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _as_data(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)  # one NaN equals no other
    return value if isinstance(value, (str, int, float, type(None))) else entry_point_name(value)


def against_registration(spec: EnvSpec) -> str | None:
    """Say what of a registered environment is not as this package knows it under that id.

    :param spec: what is registered under an id
    :return: the first thing that differs; None where it is the same environment
    """
    known = ENVIRONMENTS | GYMNASIUMS
    ours, name = known.get(spec.id), entry_point_name(spec.entry_point)
    if ours is None:
        return f"{spec.id} is no id of thrust_pomdp"
    if name != ours.entry_point:
        return f"{spec.id} is registered as {name}"
    if spec.additional_wrappers:
        return f"{spec.id} is registered with wrappers"
    if spec.kwargs != ours.kwargs:
        return f"{spec.id} is registered with the arguments {spec.kwargs}"
    if spec.max_episode_steps != ours.max_episode_steps:
        return f"{spec.id} is registered with the time limit {spec.max_episode_steps}"
    return None


def register_envs() -> None:
    """Register every id of this package with Gymnasium; ids already there are left alone.

    ``import thrust_pomdp`` calls this, and ``gym.make("thrust_pomdp:FlickeringCartPole-v0")``
    imports the package by itself, in spawn-started worker processes too. Of an id under which there
    is something else a warning tells.
    """
    for env_id, registration in ENVIRONMENTS.items():
        if env_id not in gym.registry:
            gym.register(
                env_id,
                entry_point=registration.entry_point,
                vector_entry_point=VECTOR_TWINS[registration.entry_point],
                kwargs=dict(registration.kwargs),
                max_episode_steps=registration.max_episode_steps,
                reward_threshold=registration.reward_threshold,
            )
        reason = against_registration(gym.registry[env_id])
        if reason is not None:
            warn_user(OTHER_TASK.format(reason=reason))

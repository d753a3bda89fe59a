"""``make_vec_env``: SB3's vectorised environments, and what agents see of them, in one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from stable_baselines3.common import env_util
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from thrust_pomdp.arguments import check_count, check_flag, check_kind
from thrust_pomdp.envs.known_tasks import find_spec
from thrust_pomdp.envs.registration import ENVIRONMENTS, against_registration
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible, normalizer_options
from thrust_pomdp.vec_env.previous import VecPreviousAction, VecPreviousReward
from thrust_pomdp.vec_env.stacked import VecStackedFrames
from thrust_pomdp.vec_env.substitutes import against_native_vector, render_mode_of, time_limit_of


def make_vec_env(
    env_id: str | Callable[..., gym.Env[Any, Any]],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env_cls: type[DummyVecEnv | SubprocVecEnv] | None = None,
    vec_env_kwargs: dict[str, Any] | None = None,
    monitor_kwargs: dict[str, Any] | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
    *,
    normalize: bool | Mapping[str, Any] = False,
    previous_action: bool = False,
    previous_reward: bool = False,
    frame_stack: int = 1,
) -> VecEnv:
    """Make SB3's vectorised environment, from the native vector environment where there is one.

    A drop-in for the function of that name in ``stable_baselines3.common.env_util``: the same
    arguments, and the same observations, rewards and episodes for the same seed. Tasks of this
    package run many times faster, in their native vector environments; other ids (whether they
    have a vector environment or not), and what needs a Python object per environment (wrappers,
    Monitor files or arguments, ``vec_env_cls``), go to SB3's function, and so does what a program
    made of our ids (:func:`~thrust_pomdp.vec_env.substitutes.against_native_vector`).

    The keywords behind SB3's add what agents see, in the order in which it must be: normaliser,
    previous action, previous reward, stack.

    >>> import thrust_pomdp
    >>> venv = thrust_pomdp.make_vec_env("FlickeringCartPole-v0", n_envs=4, seed=0)
    >>> venv.reset().shape
    (4, 4)
    >>> venv = thrust_pomdp.make_vec_env(
    ...     "FlickeringCartPole-v0", n_envs=4, normalize=True, previous_action=True
    ... )
    >>> venv.reset().shape
    (4, 6)

    :param env_id: the id, or a callable that makes an environment
    :param n_envs: the number of environments
    :param seed: environment ``i`` gets ``seed + i`` at the first reset
    :param start_index: number of the first environment, in file names and action-space seeds
    :param monitor_dir: where to write Monitor files
    :param wrapper_class: put around each single environment
    :param env_kwargs: arguments of the environment
    :param vec_env_cls: SB3's class to use
    :param vec_env_kwargs: its arguments
    :param monitor_kwargs: Monitor's arguments
    :param wrapper_kwargs: the wrapper's arguments
    :param normalize: whether to put ``VecNormalizeVisible`` around them, or its arguments; images,
        and what is no Box, are left as they are unless ``norm_obs`` or ``norm_obs_keys`` say else
    :param previous_action: whether agents see their last action (``VecPreviousAction``)
    :param previous_reward: whether agents see their last reward (``VecPreviousReward``)
    :param frame_stack: how many observations agents see at once (``VecFrameStack``)
    :raises ValueError: for arguments that cannot be
    """
    n_envs = check_count("n_envs", n_envs)
    seed = None if seed is None else check_count("seed", seed, minimum=0)
    start_index = check_count("start_index", start_index, minimum=0)
    _check_kwargs(
        env_kwargs=env_kwargs,
        vec_env_kwargs=vec_env_kwargs,
        monitor_kwargs=monitor_kwargs,
        wrapper_kwargs=wrapper_kwargs,
    )
    _check_classes(env_id, monitor_dir, wrapper_class, vec_env_cls)
    per_env = (monitor_dir, wrapper_class, vec_env_cls)
    needs_single_envs = any(value is not None for value in per_env) or any(
        (vec_env_kwargs, monitor_kwargs, wrapper_kwargs)
    )
    spec, kwargs = find_spec(env_id), env_kwargs or {}
    venv: VecEnv
    if spec is not None and not needs_single_envs and against_native_vector(spec, kwargs) is None:
        venv = _native(spec, n_envs, seed, start_index, kwargs)
    else:
        venv = env_util.make_vec_env(
            _found_by_workers(env_id, spec),
            n_envs,
            seed,
            start_index,
            monitor_dir,
            wrapper_class,
            env_kwargs,
            vec_env_cls,
            vec_env_kwargs,
            monitor_kwargs,
            wrapper_kwargs,
        )
    return layered(
        venv,
        normalize=normalize,
        previous_action=previous_action,
        previous_reward=previous_reward,
        frame_stack=frame_stack,
    )


def layered(
    venv: VecEnv,
    *,
    normalize: bool | Mapping[str, Any] = False,
    previous_action: bool = False,
    previous_reward: bool = False,
    frame_stack: int = 1,
) -> VecEnv:
    """Add what agents see of an environment; the arguments are those of :func:`make_vec_env`.

    :raises ValueError: for arguments that cannot be
    """
    frame_stack = check_count("frame_stack", frame_stack)
    if isinstance(normalize, Mapping) or check_flag("normalize", normalize):
        given = normalize if isinstance(normalize, Mapping) else {}
        venv = VecNormalizeVisible(venv, **normalizer_options(venv.observation_space, given))
    if check_flag("previous_action", previous_action):
        venv = VecPreviousAction(venv)
    if check_flag("previous_reward", previous_reward):
        venv = VecPreviousReward(venv)
    return VecStackedFrames(venv, frame_stack) if frame_stack > 1 else venv


def _found_by_workers(env_id: Any, spec: EnvSpec | None) -> Any:
    """Return an id of ours with the module that registers it: new processes have not imported it.

    Not where the id stands for something else, which the module does not register.
    """
    if spec is None or spec.id not in ENVIRONMENTS or against_registration(spec) is not None:
        return env_id
    return f"thrust_pomdp:{spec.id}"


def _check_kwargs(**given: Any) -> None:
    for name, kwargs in given.items():
        check_kind(name, kwargs, dict, "a dict of keyword arguments")


def _check_classes(env_id: Any, monitor_dir: Any, wrapper_class: Any, vec_env_cls: Any) -> None:
    if not isinstance(env_id, str) and (not callable(env_id) or isinstance(env_id, gym.Env)):
        raise ArgumentError(
            f"env_id must be an id or what makes an environment (lambda: env), got {env_id!r}"
        )
    check_kind("monitor_dir", monitor_dir, (str, os.PathLike), "a folder's path")
    if wrapper_class is not None and not callable(wrapper_class):
        raise ArgumentError(f"wrapper_class must be a class or a function, got {wrapper_class!r}")
    if vec_env_cls is not None and not callable(vec_env_cls):
        raise ArgumentError(
            f"vec_env_cls must be a class, such as SubprocVecEnv, got {vec_env_cls!r}"
        )


def _native(
    spec: EnvSpec, n_envs: int, seed: int | None, start_index: int, env_kwargs: dict[str, Any]
) -> GymnasiumVecEnv:
    kwargs = {
        **env_kwargs,
        # A window for each environment is for single ones.
        "render_mode": render_mode_of(env_kwargs),
        "max_episode_steps": time_limit_of(spec, env_kwargs),
        "autoreset_mode": AutoresetMode.SAME_STEP.value,
    }
    env = gym.make_vec(spec, n_envs, vectorization_mode="vector_entry_point", **kwargs)
    venv = GymnasiumVecEnv(env)
    if seed is not None:
        # As SB3 does, whose action space is the first environment's.
        venv.action_space.seed(seed + start_index)
    venv.seed(seed)
    return venv

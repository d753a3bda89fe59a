"""Episodes of a controller, many side by side, through the public vector environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_count
from thrust_pomdp.envs.known_tasks import find_spec
from thrust_pomdp.envs.registration import ENVIRONMENTS, entry_point_name
from thrust_pomdp.reference.control_laws import Controller
from thrust_pomdp.vec_env.substitutes import against_native_vector, time_limit_of

#: Environments side by side; more no longer fit the processor's cache.
CHUNK = 2048


def play(
    env_id: str, controller: Controller, n_episodes: int = 1000, seed: int = 0, **env_kwargs: Any
) -> NDArray[np.float64]:
    """Return what a controller reaches in each of ``n_episodes`` episodes.

    Episode ``i`` is the first one of an environment seeded with ``seed + i``. Taking the first
    episodes to *finish* instead, as auto-resetting environments deliver them, would favour the
    short ones.

    >>> from thrust_pomdp.reference import RandomController
    >>> play("FlickeringCartPole-v0", RandomController(2, seed=0), n_episodes=100).shape
    (100,)

    :param env_id: an environment id
    :param controller: who acts; it sees observations and blank flags only
    :param n_episodes: the number of episodes
    :param seed: the first episode's
    :param env_kwargs: arguments of the environment
    :return: returns, ``[n_episodes]``
    """
    check_count("n_episodes", n_episodes)
    returns = []
    for first in range(0, n_episodes, CHUNK):
        n_envs = min(CHUNK, n_episodes - first)
        with closing(make_envs(env_id, n_envs, **env_kwargs)) as envs:
            returns.append(
                first_episodes(envs, controller, range(seed + first, seed + first + n_envs))
            )
    return np.concatenate(returns)


def score(
    env_id: str,
    make_controller: Callable[[NDArray[np.float64]], Controller],
    candidates: NDArray[np.float64],
    seeds: Sequence[int],
    **env_kwargs: Any,
) -> NDArray[np.float64]:
    """Return the mean return of some gains, all on the same episodes, side by side.

    :param env_id: an environment id
    :param make_controller: makes a controller from gains, ``[n_gains, n_envs]``
    :param candidates: the gains, ``[n_candidates, n_gains]``
    :param seeds: of the episodes; the first one seeds the controllers' draws, too
    :param env_kwargs: arguments of the environment
    :return: ``[n_candidates]``
    """
    at_once = max(CHUNK // len(seeds), 1)
    means = []
    for first in range(0, len(candidates), at_once):
        some = candidates[first : first + at_once]
        controller = make_controller(np.repeat(some, len(seeds), axis=0).T)
        controller.seed(seeds[0])
        with closing(make_envs(env_id, len(some) * len(seeds), **env_kwargs)) as envs:
            returns = first_episodes(envs, controller, list(seeds) * len(some))
        means.append(returns.reshape(len(some), len(seeds)).mean(axis=1))
    return np.concatenate(means)


def make_single(env_id: str, **env_kwargs: Any) -> gym.Env[Any, Any]:
    """Make a single environment, to be read and not played."""
    return gym.make(env_id, **env_kwargs, disable_env_checker=True)


def make_envs(env_id: str, n_envs: int, **env_kwargs: Any) -> VectorEnv[Any, Any, Any]:
    """Make environments side by side, restarting ended episodes at once.

    They are the native vector of a task of this package that is as it was written, and single
    environments, which ``gym.make`` makes, of everything else.

    :raises ValueError: if the time limit is taken away: a good controller would play for ever
    """
    spec = find_spec(env_id)
    if env_kwargs.get("max_episode_steps") == -1 or _never_ends(spec, env_kwargs):
        raise ValueError(
            "max_episode_steps must be at least 1, since a good controller never ends an episode, "
            f"got -1 for {env_id}"
        )
    if against_native_vector(spec, env_kwargs) is None:
        how: dict[str, Any] = {
            "vectorization_mode": "vector_entry_point",
            "autoreset_mode": AutoresetMode.SAME_STEP.value,
        }
    else:
        how = {
            "vectorization_mode": "sync",
            "vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP},
            "disable_env_checker": True,
        }
    return gym.make_vec(env_id, n_envs, **how, **env_kwargs)


def _never_ends(spec: EnvSpec | None, env_kwargs: Mapping[str, Any]) -> bool:
    """Tell whether an id of whomever makes one of our environments without the limit it needs."""
    if spec is None:
        return False
    need_one = {ours.entry_point for ours in ENVIRONMENTS.values() if ours.max_episode_steps}
    name = entry_point_name(spec.entry_point)
    return name in need_one and time_limit_of(spec, env_kwargs) == -1


def first_episodes(
    envs: VectorEnv[Any, Any, Any], controller: Controller, seeds: Sequence[int]
) -> NDArray[np.float64]:
    """Play one episode in each environment.

    :param envs: environments that restart ended episodes at once
    :param controller: who acts
    :param seeds: of the environments
    :return: returns, ``[n_envs]``
    """
    controller.reset(envs.num_envs)
    # A list is what all of Gymnasium's vector environments take, whatever their base class says.
    obs, infos = envs.reset(seed=list(seeds))  # type: ignore[arg-type]
    returns = np.zeros(envs.num_envs)
    running = np.ones(envs.num_envs, dtype=bool)
    while running.any():
        actions = controller.act(obs, infos.get("blanked"))
        obs, rewards, terminations, truncations, infos = envs.step(actions)
        returns += np.where(running, rewards, 0.0)
        ended = terminations | truncations
        running &= ~ended
        controller.restart(ended)
    return returns

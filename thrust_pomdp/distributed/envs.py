"""Which environments a process makes."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.arguments import check_count
from thrust_pomdp.distributed.ranks import rank_and_size
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.vec_env.make import make_vec_env

#: For how many environments shares were asked for.
_TOTALS: set[int] = set()


def is_first_rank() -> bool:
    """Whether this process logs, saves and evaluates: rank 0, and every plain process.

    >>> is_first_rank()
    True
    """
    return rank_and_size()[0] == 0


def share_of(n_envs: int) -> range:
    """Return the numbers of the environments that this process steps, of all of a training.

    >>> list(share_of(4))  # in a plain process all of them
    [0, 1, 2, 3]
    >>> from stable_baselines3.common.vec_env import DummyVecEnv
    >>> import gymnasium as gym
    >>> venv = DummyVecEnv([lambda: gym.make("CartPole-v1") for _ in share_of(4)])

    :param n_envs: number of environments of the training, a multiple of that of the processes
    :raises ValueError: if it is none
    """
    n_envs = check_count("n_envs", n_envs)
    rank, size = rank_and_size()
    if n_envs % size:
        raise ArgumentError(f"n_envs must be a multiple of the {size} processes, got {n_envs}")
    _TOTALS.add(n_envs)
    share = n_envs // size
    return range(rank * share, (rank + 1) * share)


def check_share(n_envs: int, n_ranks: int) -> None:
    """Refuse environments that are not this process's share of a number that was asked for.

    :param n_envs: of this process
    :param n_ranks: number of processes
    :raises ValueError: with the remedy
    """
    if n_ranks == 1 or n_envs * n_ranks in _TOTALS:
        return
    asked = (
        f"share_of() was asked for shares of {sorted(_TOTALS)}"
        if _TOTALS
        else "nobody asked share_of() how many that is"
    )
    raise ArgumentError(
        f"env must be this process's share of the environments, got {n_envs} in each of "
        f"{n_ranks} processes, and {asked}: make them by "
        "thrust_pomdp.distributed.make_vec_env_share(id, n_envs), n_envs being the number of all, "
        "or one for each number in thrust_pomdp.distributed.share_of(n_envs)"
    )


def make_vec_env_share(
    env_id: Any, n_envs: int = 1, seed: int | None = None, start_index: int = 0, **kwargs: Any
) -> VecEnv:
    """Make this process's share of the environments of a training.

    :func:`thrust_pomdp.make_vec_env` with the same arguments, ``n_envs`` being the number of all:
    environment ``i`` of all gets ``seed + i``, whichever process makes it.

    >>> env = make_vec_env_share("CartPole-v1", n_envs=4, seed=0, normalize={"update": "window"})
    >>> env.num_envs  # in a plain process all of them
    4

    :param env_id: the id, or a callable that makes an environment
    :param n_envs: the number of environments of all processes
    :param seed: of the first of all
    :param start_index: number of the first of all, in file names
    :param kwargs: the other arguments of :func:`thrust_pomdp.make_vec_env`
    :raises ValueError: for arguments that cannot be
    """
    share = share_of(n_envs)
    seed = None if seed is None else check_count("seed", seed, minimum=0) + share.start
    start_index = check_count("start_index", start_index, minimum=0) + share.start
    return make_vec_env(env_id, len(share), seed, start_index, **kwargs)

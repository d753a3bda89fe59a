"""Generalised advantage estimation, on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def gae(
    rewards: Array, values: Array, next_non_terminal: Array, gamma: float, gae_lambda: float
) -> Array:
    """Estimate advantages (Schulman et al. 2016, https://arxiv.org/abs/1506.02438).

    By hand: rewards 1, 1, values 0, 0, 4 and nothing that ends; with gamma .5 and lambda 1 the
    second advantage is 1 + .5 * 4 and the first 1 + .5 * 3.

    >>> ones = np.ones((2, 1), np.float32)
    >>> gae(ones, np.float32([[0], [0], [4]]), ones, gamma=0.5, gae_lambda=1.0).tolist()
    [[2.5], [3.0]]

    :param rewards: ``[n_steps, n_envs]``; that of a truncated step with the value of its final
        observation in it
    :param values: of the observations, and of the one after the last step, ``[n_steps + 1,
        n_envs]``
    :param next_non_terminal: 0 where an episode ended on the step, else 1, ``[n_steps, n_envs]``
    :param gamma: discount factor
    :param gae_lambda: trade-off of bias against variance
    :return: ``[n_steps, n_envs]``, float32
    """
    deltas = rewards + gamma * values[1:] * next_non_terminal - values[:-1]
    decay = gamma * gae_lambda * next_non_terminal
    advantages = np.zeros(rewards.shape, dtype=np.float32)
    advantage = np.zeros(rewards.shape[1], dtype=np.float32)
    for step in reversed(range(len(rewards))):
        advantage = deltas[step] + decay[step] * advantage
        advantages[step] = advantage
    return advantages

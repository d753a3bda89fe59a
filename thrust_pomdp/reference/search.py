"""A search for the gains of a law, by the cross-entropy method on many episodes at once.

R. Y. Rubinstein, "The cross-entropy method for combinatorial and continuous optimization", 1999:
draw gains from a normal distribution, play some episodes with each, fit the distribution to the
best, repeat. What it finds is a lower bound of what the law's class can reach.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.reference.control_laws import Information
from thrust_pomdp.reference.episodes import score
from thrust_pomdp.reference.tasks import CartPoleTask, law_maker, stored_gains_of

#: First seed of the search's episodes, far from those of the figures.
SEARCH_SEED = 2**40

#: Candidates of a generation, episodes each of them plays, candidates the next one is fitted to,
#: and generations.
POPULATION, EPISODES, ELITE, GENERATIONS = 32, 64, 8, 40

#: Share of its spread that the distribution keeps at least from one generation to the next, lest it
#: freeze where noise put it.
LEAST_SPREAD = 0.85

#: Episodes by which the best of the last generations' means is chosen, and how many take part; the
#: beginning and all stored gains take part, too.
FINAL_EPISODES, FINALISTS = 1024, 8

Gains = NDArray[np.float64]


def search(
    env_id: str, task: CartPoleTask, law: Information, seed: int = 0, **env_kwargs: Any
) -> tuple[Gains, float]:
    """Search for the gains with the greatest mean return.

    :param env_id: an environment id
    :param task: what it asks
    :param law: the class of information
    :param seed: of candidates and episodes
    :param env_kwargs: arguments of the environment
    :return: the gains, and their mean return over :data:`FINAL_EPISODES` other episodes
    """
    rng = np.random.default_rng(seed)
    mean, spread = beginning(task, law)
    make, means, first = law_maker(task, law), [mean], SEARCH_SEED + seed * 2**20
    for generation in range(GENERATIONS):
        candidates = rng.normal(mean, spread, (POPULATION, len(mean)))
        candidates[0] = mean
        # The same episodes for all candidates of a generation, others for the next.
        seeds = range(first + generation * EPISODES, first + (generation + 1) * EPISODES)
        scores = score(env_id, make, candidates, seeds, **env_kwargs)
        if scores.min() == scores.max():
            break  # every candidate balances for as long as it is asked to
        elite = candidates[np.argsort(scores)[-ELITE:]]
        mean, spread = elite.mean(axis=0), np.maximum(elite.std(axis=0), LEAST_SPREAD * spread)
        means.append(mean)
    stored = stored_gains_of(task, law).values()
    finalists = np.array([means[0], *means[1:][-FINALISTS:], *stored])
    seeds = range(first + 2**19, first + 2**19 + FINAL_EPISODES)
    scores = score(env_id, make, finalists, seeds, **env_kwargs)
    return finalists[np.argmax(scores)], float(scores.max())


def beginning(task: CartPoleTask, law: Information) -> tuple[Gains, Gains]:
    """Return where a search begins: gains of plausible size and their spread, ``[n_gains]``.

    With velocities hidden a law that dithers is best under explicit Euler, and one that is as sure
    as can be under semi-implicit Euler, so that is where these begin.
    """
    if law == "exact model":
        return np.array([0.1, 0.25, 1.0, 0.45]), np.array([0.1, 0.1, 0.3, 0.15])
    if task.hide_velocities:
        return _positions_only(task, law)
    frame, spread = np.array([3.0, 10.0, 140.0, 45.0]), np.array([5.0, 8.0, 60.0, 25.0])
    if law == "memoryless":
        return np.append(frame, 0.0), np.append(spread, 0.01)
    if law == "previous action":
        return np.append(frame, [0.0, 0.0, -6.0]), np.append(spread, [1.0, 0.01, 3.0])
    older = np.zeros(4)
    return np.concatenate([frame, older, frame, frame]), np.tile(spread, 4)


def _positions_only(task: CartPoleTask, law: Information) -> tuple[Gains, Gains]:
    sure = task.kinematics_integrator != "euler"
    gain = 1e6 if sure else 5.0 if task.noise else 15.0
    frame, spread = np.array([gain / 100 if sure else 0.0, gain]), np.array([gain / 20, gain / 2])
    if law == "memoryless":
        return np.append(frame, 0.0), np.append(spread, 0.0 if sure else 1.0 / gain)
    if law == "previous action":
        # Some of the last push is in the angle already.
        return (
            np.append(3 * frame, [-0.07 * gain, 0.0, -6.0]),
            np.append(2 * spread, [0.05 * gain, 0.0 if sure else 0.3 / gain, 3.0]),
        )
    # theta + 2 (theta - its last value), surely unless it is noise
    sure_of_both = 1.0 if task.noise else 100.0
    return (
        np.concatenate([3 * sure_of_both * frame, -2 * sure_of_both * frame, frame, frame]),
        np.concatenate([sure_of_both * spread, 0.6 * sure_of_both * spread, spread, spread]),
    )

"""How long one wrong frame disturbs a trained memory."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.arguments import check_count
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.observations import map_obs

Floats = NDArray[np.float64]

#: Steps that are played, and the fewest of an episode before and after the wrong frame.
_PLAYED, _BEFORE, _AFTER = 256, 8, 8


def disturbance(model: BaseAlgorithm, venv: VecEnv, n_steps: int = 64) -> Floats:
    """Return how far a memory is from what it would be, step by step after one wrong frame.

    The model plays an episode in each environment by its most likely actions. Then its memory goes
    through the same frames twice, once as they were, and once with one frame in place of which it
    sees what another environment showed at that step: a reading that could have been. The distance
    of the two memories is taken after each frame, over all parts of the state, and divided by what
    it was right after the wrong one. Frames after it are equal: that other actions would lead
    elsewhere is not the memory's affair.

    :param model: a recurrent model of SB3's kind, whose ``predict`` takes and returns a state
    :param venv: at least two environments, wrapped as in training, statistics frozen
    :param n_steps: so many steps after the wrong frame are looked at
    :return: the median over environments of the share that is left, ``[k]``; the first is 1. It
        has at most ``n_steps + 1`` entries, fewer where episodes are short, none where no
        environment has an episode long enough
    :raises ValueError: for a model without a state, or a single environment
    """
    n_steps = check_count("n_steps", n_steps)
    if venv.num_envs < 2:
        raise ArgumentError("venv must have at least two environments, got 1")
    frames, lengths = _played(model, venv)
    lasts = np.minimum(lengths, len(frames))
    # Half way, so that there is something to remember before it and to come after.
    wrong = np.maximum(lasts // 2, _BEFORE)
    usable = lasts - wrong >= _AFTER
    if not usable.any():
        return np.zeros(0)
    swapped = np.roll(np.arange(venv.num_envs), 1)
    distances = np.full((n_steps + 1, venv.num_envs), np.nan)
    starts, right, other = np.ones(venv.num_envs, bool), None, None
    for step, frame in enumerate(frames):
        away = (wrong == step) & usable
        _, right = model.predict(frame, right, starts, deterministic=True)
        seen = map_obs(functools.partial(_with_rows, rows=away, of=swapped), frame)
        _, other = model.predict(seen, other, starts, deterministic=True)
        starts[:] = False
        after = step - wrong
        looked = usable & (after >= 0) & (after <= n_steps) & (step < lasts)
        distances[after[looked], looked] = _distance(right, other)[looked]
    with_effect = distances[0] > 0  # where both frames were the same, nothing was disturbed
    shares = distances[:, with_effect] / distances[0, with_effect]
    # To the end only as far as half of the environments go.
    enough = np.isfinite(shares).sum(axis=1) * 2 > max(1, with_effect.sum())
    n_known = len(shares) if enough.all() else int(np.argmin(enough))
    return np.array([np.nanmedian(row) for row in shares[:n_known]])


def half_life(model: BaseAlgorithm, venv: VecEnv, n_steps: int = 64) -> float | None:
    """Return after how many steps at most half of what one wrong frame did to a memory is left.

    The *contamination half-life*: :func:`disturbance` tells what is measured.

    :return: steps, at least 1; None where it takes longer than is looked at
    :raises ValueError: as :func:`disturbance`
    """
    (below,) = (disturbance(model, venv, n_steps) <= 0.5).nonzero()
    return float(below[0]) if below.size else None


def _played(model: BaseAlgorithm, venv: VecEnv) -> tuple[list[Any], NDArray[np.int64]]:
    """Play an episode in each environment: what was seen step by step, and the lengths."""
    obs: Any = venv.reset()
    frames, state = [], None
    starts, lengths = np.ones(venv.num_envs, bool), np.full(venv.num_envs, _PLAYED)
    for step in range(_PLAYED):
        frames.append(map_obs(np.copy, obs))
        actions, state = model.predict(obs, state, starts, deterministic=True)
        if state is None:
            raise ArgumentError("model must be recurrent, its predict() returns no state")
        obs, _, dones, _ = venv.step(actions)
        starts = np.asarray(dones, bool)
        lengths[starts & (lengths == _PLAYED)] = step + 1
        if (lengths <= step + 1).all():
            break
    return frames, lengths


def _with_rows(part: NDArray[Any], rows: NDArray[np.bool_], of: NDArray[np.intp]) -> NDArray[Any]:
    """Return a batch in which some rows are those of others."""
    return np.where(rows.reshape(-1, *[1] * (part.ndim - 1)), part[of], part)


def _distance(one: Any, other: Any) -> Floats:
    """Return the distance of two states whose parts are ``[layers, n_envs, ...]``, ``[n_envs]``."""
    parts = [one] if isinstance(one, np.ndarray) else one
    others = [other] if isinstance(other, np.ndarray) else other
    total = np.zeros(np.shape(parts[0])[1])
    for part, twin in zip(parts, others, strict=True):
        difference = np.moveaxis(np.asarray(part, np.float64) - np.asarray(twin, np.float64), 1, 0)
        total += np.square(difference.reshape(len(total), -1)).sum(axis=1)
    return np.sqrt(total)

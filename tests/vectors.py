"""Native vector environments beside Gymnasium's synchronous vector of single ones."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

import thrust_pomdp  # noqa: F401

MODES = ["NextStep", "SameStep"]
N_ENVS = 5


def native(env_id: str, mode: str = "NextStep", n_envs: int = N_ENVS, **kwargs: Any) -> Any:
    return gym.make_vec(
        env_id, n_envs, vectorization_mode="vector_entry_point", autoreset_mode=mode, **kwargs
    )


def synchronous(env_id: str, mode: str = "NextStep", n_envs: int = N_ENVS, **kwargs: Any) -> Any:
    vector_kwargs = {"autoreset_mode": AutoresetMode(mode)}
    return gym.make_vec(
        env_id, n_envs, vectorization_mode="sync", vector_kwargs=vector_kwargs, **kwargs
    )


def assert_same(ours: Any, theirs: Any) -> None:
    """Compare bit for bit, types, dtypes and structure included."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, tuple):
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other)
    elif isinstance(ours, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.flags.c_contiguous
        if ours.dtype == object:
            assert_same(tuple(ours), tuple(theirs))
        else:
            assert ours.tobytes() == theirs.tobytes()
    else:
        assert ours == theirs


def assert_same_steps(ours: Any, theirs: Any, n_steps: int, seed: int = 0) -> tuple[int, int]:
    """Compare random steps and the generators they leave; count terminations and truncations."""
    rng, terminated, truncated = np.random.default_rng(seed), 0, 0
    for _ in range(n_steps):
        actions = rng.integers(ours.single_action_space.n, size=ours.num_envs)
        outcome = ours.step(actions)
        assert_same(outcome, theirs.step(actions))
        terminated, truncated = terminated + outcome[2].sum(), truncated + outcome[3].sum()
    assert ours.np_random_seed == theirs.np_random_seed
    states = [[rng.bit_generator.state for rng in envs.np_random] for envs in (ours, theirs)]
    assert states[0] == states[1]
    return terminated, truncated


def assert_same_reset(ours: Any, theirs: Any, arguments: dict[str, Any]) -> None:
    # Copies, since the synchronous vector takes the mask out of the options given.
    assert_same(ours.reset(**copy.deepcopy(arguments)), theirs.reset(**copy.deepcopy(arguments)))


def spoil(outcome: Any) -> None:
    """Overwrite every array that a user may write to."""
    if isinstance(outcome, np.ndarray) and outcome.dtype != object:
        outcome[...] = 0
    elif isinstance(outcome, (dict, tuple, np.ndarray)):
        for part in outcome.values() if isinstance(outcome, dict) else outcome:
            spoil(part)

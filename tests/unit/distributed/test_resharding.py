"""States of environments, divided among other numbers of processes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

import thrust_pomdp
from thrust_pomdp import VecPrivilegedInfo
from thrust_pomdp.distributed.resharding import Sizes, resharded
from thrust_pomdp.vec_env.states import missing, set_vec_state, vec_state
from thrust_pomdp.vec_env.window_statistics import end_windows


def native(n_envs: int, first: int, **kwargs: Any) -> Any:
    given = {"normalize": {"update": "window"}, "previous_action": True, "frame_stack": 2}
    return thrust_pomdp.make_vec_env(
        kwargs.pop("env_id", "FlickeringCartPole-v0"), n_envs, seed=first, **given | kwargs
    )


def bursts(n_envs: int, first: int) -> Any:
    return native(n_envs, first, env_id="BurstFlickeringCartPole-v0", previous_reward=True)


def privileged(n_envs: int, first: int) -> Any:
    told = {"expose_state": True}
    return VecPrivilegedInfo(native(n_envs, first, env_kwargs=told, frame_stack=1), update="window")


def mazes(n_envs: int, first: int) -> Any:
    return native(n_envs, first, env_id="TMaze-v0", env_kwargs={"corridor_length": 6})


def single(n_envs: int, first: int) -> Any:
    made = DummyVecEnv([lambda: Monitor(gym.make("FlickeringCartPole-v0")) for _ in range(n_envs)])
    made.seed(first)
    return thrust_pomdp.VecNormalizeVisible(made, update="window")


def steps(venvs: list[Any], rng: np.random.Generator, n_steps: int) -> list[Any]:
    """Step environments of several processes by the same actions; the outcomes of all."""
    found = []
    for _ in range(n_steps):
        actions = rng.integers(0, venvs[0].action_space.n, sum(venv.num_envs for venv in venvs))
        parts, start = [], 0
        for venv in venvs:
            parts.append(venv.step(actions[start : start + venv.num_envs]))
            start += venv.num_envs
        for idx in range(3):
            of_parts = [part[idx] for part in parts]
            if isinstance(of_parts[0], dict):
                of_parts = [np.concatenate(list(part.values()), axis=1) for part in of_parts]
            found.append(np.concatenate(of_parts))
    return found


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (2, 4), (4, 2), (4, 1), (3, 4)])
@pytest.mark.parametrize("make", [native, bursts, privileged, mazes, single])
def test_environments_go_on_where_they_were(make, before, now):
    n_envs = 12
    whole = make(n_envs, 0)
    parts = [make(n_envs // before, rank * n_envs // before) for rank in range(before)]
    for venv in (whole, *parts):
        venv.reset()
    rngs = np.random.default_rng(0), np.random.default_rng(0)
    for one, other in zip(steps([whole], rngs[0], 70), steps(parts, rngs[1], 70), strict=True):
        assert np.array_equal(one, other)

    def gather(arrays: list[Any]) -> list[Any]:
        return arrays

    # All processes have the statistics of all: here those of the whole, at a window's end.
    end_windows(whole, gather)
    states = [vec_state(venv) for venv in parts]
    shared = vec_state(whole)
    for state in states:
        for mine, of_whole in zip(state["layers"], shared["layers"], strict=True):
            for name in ("obs_rms", "ret_rms", "statistics"):
                attributes = mine.get("state", {}).get("attributes", {})
                if name in attributes:
                    attributes[name] = of_whole["state"]["attributes"][name]
            for name in ("_windows", "_window", "_returns_of_window"):
                attributes = mine.get("state", {}).get("attributes", {})
                if name in attributes and attributes[name] is not None:
                    _clear(attributes[name])
    others = []
    for rank in range(now):
        size = n_envs // now
        other = make(size, 1000)  # of other seeds
        other.reset()
        sizes = Sizes(n_envs // before, size, rank * size)
        state = resharded(states, vec_state(other), sizes)
        assert missing(state) == []
        assert set_vec_state(other, state) == []
        others.append(other)
    for one, other in zip(steps([whole], rngs[0], 150), steps(others, rngs[1], 150), strict=True):
        assert np.array_equal(one, other)


def _clear(state: Any) -> None:
    """Let the moments of a window be those of its beginning."""
    if isinstance(state, dict):
        for name, part in state.items():
            if name in ("_count", "_mean", "_squares"):
                part[...] = 0
            elif name == "_n_steps":
                state[name] = 0
            else:
                _clear(part)
    elif isinstance(state, list):
        for part in state:
            _clear(part)

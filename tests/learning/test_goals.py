"""What the shipped recipes reach. The first test is quick; the goals take minutes (`-m slow`)."""

from __future__ import annotations

import numpy as np
import pytest

from thrust_pomdp.experiment.training import RunResult, RunSpec, run
from thrust_pomdp.reference import LADDER

MASKED, FLICKERING, BURST = (
    "MaskedCartPole-v0",
    "FlickeringCartPole-v0",
    "BurstFlickeringCartPole-v0",
)


def best_memoryless(env_id: str) -> float:
    return next(r.mean for r in LADDER[env_id] if r.controller == "best memoryless found")


def test_memory_is_used_within_30k_steps_of_masked_cartpole():
    """Three times what the best memoryless controller found reaches cannot be had without it."""
    spec = RunSpec("lstm", MASKED, 0, n_timesteps=30_000, deterministic_episodes=50,
                   stochastic_episodes=1)  # fmt: skip
    assert np.mean(run(spec).deterministic) > 3 * best_memoryless(MASKED)


def results(arm: str, env_id: str) -> list[RunResult]:
    return [run(RunSpec(arm, env_id, seed)) for seed in range(5)]


@pytest.mark.slow
class TestGoals:
    @pytest.mark.parametrize(("env_id", "goal"), [(FLICKERING, 480), (MASKED, 490), (BURST, 300)])
    def test_lstm(self, env_id, goal):
        means = [np.mean(result.deterministic) for result in results("lstm", env_id)]
        assert sum(mean >= goal for mean in means) >= 4, means

    @pytest.mark.parametrize(("env_id", "bound"), [(FLICKERING, 218), (MASKED, 60)])
    def test_memoryless(self, env_id, bound):
        means = [np.mean(result.stochastic) for result in results("mlp", env_id)]
        assert all(mean <= bound for mean in means), means

"""Runs of a comparison that are finished at once, for tests of what is done with them."""

from __future__ import annotations

import dataclasses

from thrust_pomdp.experiment.engines import Finished, Progress, Started
from thrust_pomdp.experiment.runs import RunResult, RunSpec

TINY = {"n_timesteps": 2048, "deterministic_episodes": 3, "stochastic_episodes": 4}


def spec(arm="lstm", seed=0, **kwargs) -> RunSpec:
    return RunSpec(arm, "FlickeringCartPole-v0", seed, **{**TINY, **kwargs})


def result(one: RunSpec, **kwargs) -> RunResult:
    values = {
        "final": 100.0,
        "best": 200.0,
        "deterministic": [300.0, 302.0, 304.0],
        "stochastic": [400.0] * 4,
        "timesteps": 2048,
        "seconds": 1.5,
        "curve": [(1024, 50.0), (2048, 100.0)],
        "recipe": one.recipe.as_mapping(),
    }
    return RunResult(spec=dataclasses.asdict(one), **{**values, **kwargs})


class InstantEngine:
    """Finishes every run at once, or does what is said of its arm."""

    def __init__(self, **of_arm: object) -> None:
        self.of_arm = of_arm
        self.jobs = 1
        self.done: list[str] = []

    def run(self, tasks):
        for job in tasks:
            name = job.spec.name
            yield Started(name)
            yield Progress(name, 1024)
            yield None
            outcome = self.of_arm.get(job.spec.arm)
            if isinstance(outcome, BaseException):
                raise outcome
            self.done.append(name)
            yield outcome or Finished(
                name, result(job.spec, provenance=job.provenance), {".zip": b"model"}
            )

"""What the runner costs: beside bare training, on two cores at once, and before the first step.

python scripts/runner_cost.py --pairs 5

Ratios are of neighbours in time, so that a machine that is shared disturbs both alike; the median
is what counts. With 60,000 steps a pair takes about a minute.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thrust_pomdp.experiment.commands.options import make_parser, positive
from thrust_pomdp.experiment.engines import Finished, Job, LocalEngine
from thrust_pomdp.experiment.runs import RunSpec

ROOT = Path(__file__).parents[1]
ENV = "FlickeringCartPole-v0"

#: An environment that tells when it is first stepped, in a module beside the comparison.
CLOCK = """
import os, time
import gymnasium as gym
from thrust_pomdp.envs.cartpole import FlickeringCartPoleEnv

class Clock(FlickeringCartPoleEnv):
    def step(self, action):
        if not os.path.exists("stepped"):
            with open("stepped", "w") as file:
                file.write(str(time.time()))
        return super().step(action)

gym.register("Clock-v0", Clock, max_episode_steps=500)
"""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--pairs", type=positive, default=5, help="of each measurement (5)")
    parser.add_argument(
        "--n-timesteps", type=positive, default=60_000, help="steps of a training (60,000)"
    )
    return parser.parse_args(arguments)


def spec(arm: str, n_timesteps: int, seed: int = 0) -> RunSpec:
    return RunSpec(
        arm, ENV, seed, n_timesteps=n_timesteps, deterministic_episodes=1, stochastic_episodes=1
    )


@contextmanager
def timed(into: list[float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    into.append(time.perf_counter() - start)


def beside_bare_training(arm: str, pairs: int, n_timesteps: int) -> list[float]:
    """Return the processor time of a run over that of training and evaluating the same by hand."""
    from thrust_pomdp.experiment.training import Training, evaluate, make_model, make_training_env

    one = spec(arm, n_timesteps)

    def by_hand() -> None:
        model = make_model(one, make_training_env(one))
        model.learn(n_timesteps)
        for is_deterministic in (True, False):
            evaluate(one, model, 1, is_deterministic)

    def in_runner() -> None:
        training = Training(one, lambda timesteps: None)
        training.run()
        training.files()

    in_runner()  # what is loaded and compiled once
    ratios = []
    for pair in range(pairs):
        seconds = {}
        for do in (by_hand, in_runner)[:: 1 if pair % 2 == 0 else -1]:
            start = time.process_time()
            do()
            seconds[do] = time.process_time() - start
        ratios.append(seconds[in_runner] / seconds[by_hand])
    return ratios


def two_at_once(arm: str, pairs: int, n_timesteps: int) -> list[float]:
    """Return what two runs at once take over what one takes, evaluation and saving included."""

    def take(seconds: list[float], seeds: int) -> None:
        engine = LocalEngine(seeds)
        jobs = [Job(spec(arm, n_timesteps, seed)) for seed in range(seeds)]
        with timed(seconds):
            assert sum(isinstance(event, Finished) for event in engine.run(jobs)) == seeds

    take([], 1)  # what is loaded once
    ratios = []
    for pair in range(pairs):
        one: list[float] = []
        two: list[float] = []
        for seconds, seeds in [(one, 1), (two, 2)][:: 1 if pair % 2 == 0 else -1]:
            take(seconds, seeds)
        ratios.append(two[0] / one[0])
    return ratios


def before_the_first_step(arm: str, pairs: int) -> list[float]:
    """Return the seconds from the start of the command to the first step of the training."""
    found = []
    for _ in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "clock.py").write_text(CLOCK)
            start = time.time()
            subprocess.run(
                [sys.executable, "-m", "thrust_pomdp", "compare", "--env", "clock:Clock-v0",
                 "--arms", arm, "--n-timesteps", "256", "--evaluations", "0", "--eval-episodes",
                 "1", "1", "--jobs", "1", "--out", "out"],
                cwd=folder, check=True, capture_output=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), folder])},
            )  # fmt: skip
            found.append(float((Path(folder) / "stepped").read_text()) - start)
    return found


def told(what: str, values: list[float], goal: str, unit: str = "") -> str:
    low, high = min(values), max(values)
    middle = statistics.median(values)
    return f"{what:<58} {middle:.3f}{unit} ({low:.3f} to {high:.3f}), goal {goal}"


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    steps = args.n_timesteps
    for arm in ("lstm", "mlp"):
        ratios = beside_bare_training(arm, args.pairs, steps)
        print(told(f"{arm}: processor time in the runner / by hand", ratios, "< 1.03"), flush=True)
    ratios = two_at_once("lstm", args.pairs, steps)
    print(told("lstm: two runs at once / one run", ratios, "< 1.15 on two cores"), flush=True)
    seconds = before_the_first_step("lstm", args.pairs)
    print(told("lstm: from the command to the first step", seconds, "< 4 s", " s"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

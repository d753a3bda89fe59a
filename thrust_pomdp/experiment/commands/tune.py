r"""Look for a recipe that compare takes, with Optuna.

    python -m thrust_pomdp tune --arm lstm --env TMaze-v0 --trials 60 --out tmaze.yml
    python -m thrust_pomdp compare --env TMaze-v0 --recipe tmaze.yml --out results/tmaze

Trials are kept in FILE.db beside the recipe: killed and started again it goes on, inside the
trainings that were interrupted (FILE.checkpoints), and the same command on the same file, started
several times, shares the work. A trial's score is the mean return
of fresh episodes after training, with most likely or with sampled actions, whichever is more; one
that is below the median of the others on the way is given up. No seed of a comparison is used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from thrust_pomdp.experiment import provenance
from thrust_pomdp.experiment.arms import find_arm
from thrust_pomdp.experiment.atomic_write import write_atomically
from thrust_pomdp.experiment.commands import options
from thrust_pomdp.experiment.engines import Failed, LocalEngine, Progress, Started
from thrust_pomdp.experiment.folder import environment_of
from thrust_pomdp.experiment.progress_bars import ProgressBars
from thrust_pomdp.experiment.recipes import recipe_for
from thrust_pomdp.experiment.runs import RunSpec
from thrust_pomdp.experiment.tuning import Space, Study, TuneTask, read_space


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = options.make_parser(__doc__, "tune")
    options.add_env_options(made)
    made.add_argument(
        "--arm", type=options.arm_list, default="lstm", metavar="ARM",
        help=f"{options.arms_help()} (%(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--space", type=Path, metavar="FILE.yml",
        help="what to choose from, in place of ranges around the recipes here: for each key of a "
        "recipe a list of values, or {low: 1e-4, high: 1e-2, log: true}; an arm of your own needs "
        "it",
    )  # fmt: skip
    made.add_argument(
        "--trials", type=options.positive, default=50,
        help="trials in all, earlier ones and those of other processes included (%(default)s)",
    )  # fmt: skip
    made.add_argument(
        "--n-timesteps", type=options.positive, help="budget of a run (default: the recipe's)"
    )
    made.add_argument("--seeds", type=options.positive, default=1, help="runs of each trial")
    made.add_argument(
        "--evaluations", type=options.positive, default=8,
        help="evaluations during a training, at which it may be given up (%(default)s)",
    )  # fmt: skip
    made.add_argument("--jobs", type=options.positive, default=options.cpus(),
                      help="trials at the same time (%(default)s, the cores)")  # fmt: skip
    made.add_argument("--out", type=Path, required=True, metavar="FILE.yml", help="the recipe file")
    return made


@options.command("tune")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    args = parser().parse_args(arguments)
    options.check_extra("tune", "optuna", "tqdm", "yaml")
    options.check_env(args.env, dict(args.env_kwargs), [args.arm])
    for line in options.notes_on_general_recipes(args):
        print(line)
    spec = RunSpec(
        args.arm,
        args.env,
        0,
        dict(args.env_kwargs),
        args.n_timesteps,
        deterministic_episodes=100,
        stochastic_episodes=100,
        evaluations=args.evaluations,
    )
    storage = args.out.resolve().with_suffix(".db")
    study = Study(storage, spec, args.seeds, _space(args), environment_of(args.env))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    study.open()
    failed = _do(study, args.trials, args.jobs)
    with suppress(OSError):  # there are others, or trials to go on in
        study.checkpoints.rmdir()
    best = study.best()
    if best is None:
        print("No trial was trained to its end.", file=sys.stderr)
        return 1
    recipe, score, count = best
    write_atomically(args.out, _text(study, dict(recipe), score, count).encode())
    print(f"Best of {count} trials trained to the end: {score:.1f}. Written: {args.out}")
    return 1 if failed else 0


def _space(args: argparse.Namespace) -> Space | None:
    """Return what to choose from, if that is told.

    :raises ValueError: if it must be, or as :func:`read_space`
    """
    arm = find_arm(args.arm)
    if args.space is not None:
        with options.naming("--space"):
            return read_space(args.space, arm, recipe_for(args.arm, args.env))
    if arm.is_users:
        raise ValueError(
            f"arm {args.arm} is your own, so only you know what to choose from: --space FILE.yml, "
            "with lines such as learning_rate: {low: 1e-4, high: 1e-2, log: true} and "
            "n_envs: [4, 8, 16]"
        )
    return None


def _do(study: Study, trials: int, jobs: int) -> bool:
    """Do trials until there are enough; tell whether a process failed."""
    tasks = [TuneTask(f"process{number}", study, trials) for number in range(jobs)]
    bars = ProgressBars({"trials": trials}, 1, "trial", "ending")
    bars.show(Started("trials"))
    failed = False
    with closing(LocalEngine(jobs).run(tasks)) as events, closing(bars):
        try:
            for event in events:
                if isinstance(event, Progress):
                    bars.show(Progress("trials", event.timesteps))
                elif isinstance(event, Failed):
                    failed = True
                    bars.write(f"{event.name}: failed\n{event.reason}")
        except KeyboardInterrupt:
            bars.write("Interrupted: the same command goes on from here.")
    return failed


def _text(study: Study, recipe: dict[str, object], score: float, count: int) -> str:
    """Return the recipe file, which says how it was found: options that were not given too."""
    import yaml

    spec, settings = study.spec, json.dumps(study.settings())  # no space: the built-in ranges
    env_id = spec.env_id.rsplit(":", 1)[-1]
    entry = yaml.safe_dump({spec.arm: {env_id: recipe}}, sort_keys=False)
    return (
        f"# Best of {count} trials trained to the end: {score:.1f}, on streams it was chosen by.\n"
        f"# Settings: {settings}\n# {provenance.command()}\n{entry}"
    )

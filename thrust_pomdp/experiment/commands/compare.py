"""Train contestants on identical streams and show whether memory pays.

    python -m thrust_pomdp compare --env FlickeringCartPole-v0 --arms lstm mlp --out results/demo

Started again in the same folder it goes on where it was interrupted. The exit code is 0 if every
run has a result, 1 if one has not, and 2 if nothing was started since the arguments are wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from thrust_pomdp.experiment.commands import options
from thrust_pomdp.experiment.runner import Runner
from thrust_pomdp.experiment.runs import RunResult, RunSpec


def parser(add_help: bool = True) -> argparse.ArgumentParser:
    """Return the parser of the command's arguments.

    :param add_help: whether it knows ``--help``; who takes over these arguments has their own
    """
    made = argparse.ArgumentParser(
        "compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=add_help,
    )
    options.add_env_options(made)
    made.add_argument(
        "--arms",
        nargs="+",
        type=options.arm_list,
        default=list(options.DEFAULT_ARMS),
        metavar="ARM",
        help=options.arms_help(),
    )
    made.add_argument("--seeds", type=options.positive, default=1, help="runs of each arm")
    made.add_argument(
        "--n-timesteps",
        type=options.positive,
        help="training budget of each run (default: the recipe's)",
    )
    options.add_recipe_options(made)
    made.add_argument(
        "--evaluations",
        type=options.not_negative,
        default=10,
        help="evaluations during each training, whose time does not count (%(default)s)",
    )
    made.add_argument(
        "--eval-episodes",
        type=options.positive,
        nargs=2,
        default=[100, 1000],
        metavar=("MOST_LIKELY", "SAMPLED"),
        help="fresh episodes of the two evaluations at the end",
    )
    made.add_argument("--tensorboard", action="store_true", help="write TensorBoard logs")
    options.add_running_options(made)
    made.add_argument("--out", type=Path, required=True, help="folder of the results")
    return made


@options.command("compare")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    args = parser().parse_args(arguments)
    args.arms = list(dict.fromkeys(args.arms))
    options.check_extra("compare", "matplotlib", "tqdm", "yaml")
    if args.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ImportError("--tensorboard needs tensorboard: pip install tensorboard")
    options.check_env(args.env, dict(args.env_kwargs), args.arms)
    runner = Runner(
        specs(args), args.out, engine=options.make_engine(args), tensorboard=args.tensorboard
    )
    results = runner.run()
    if results:
        write_report(results, args.out)
    failed = runner.failed()
    if failed:
        print(f"No result: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def specs(args: argparse.Namespace) -> list[RunSpec]:
    """Return the runs asked for, seed by seed, so that arms are even whenever one looks."""
    recipes = options.recipes_of(args)
    return [
        RunSpec(
            arm=arm,
            env_id=args.env,
            seed=seed,
            env_kwargs=dict(args.env_kwargs),
            n_timesteps=args.n_timesteps,
            deterministic_episodes=args.eval_episodes[0],
            stochastic_episodes=args.eval_episodes[1],
            evaluations=args.evaluations,
            hyperparams=recipes[arm],
        )
        for seed in range(args.seeds)
        for arm in args.arms
    ]


def write_report(results: Sequence[RunResult], folder: Path) -> None:
    """Print the table and write the files of a comparison."""
    # It reads matplotlib and torch, which only now have to be there.
    from thrust_pomdp.experiment import report

    print(f"\n{report.table(results)}\n", flush=True)
    report.write_csv(results, folder)
    report.plot(results, folder / "curves.png")
    page = report.write_report([folder])
    for verdict in page.verdicts.values():
        print(verdict.sentence)
    print(f"Written: {folder}/summary.csv, {folder}/curves.csv, {folder}/curves.png, {page.page}")

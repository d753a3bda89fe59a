"""Train contestants on identical streams and show whether memory pays.

    python -m thrust_pomdp compare --env FlickeringCartPole-v0 --arms lstm mlp --out results/demo

Started again in the same folder it goes on where it was interrupted. The exit code is 0 if every
run has a result and the page is written, 1 if not, 2 if nothing was started since the arguments are
wrong, and 130 after Ctrl-C outside the runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from thrust_pomdp.experiment.arms import find_arm
from thrust_pomdp.experiment.commands import options
from thrust_pomdp.experiment.console import say
from thrust_pomdp.experiment.report.number_format import format_count, format_number
from thrust_pomdp.experiment.report.rule import MARGIN_SHARE, MIN_RUNS, RULE, known_before
from thrust_pomdp.experiment.report.runs import Contest
from thrust_pomdp.experiment.report.terms import MARKER, read_kept
from thrust_pomdp.experiment.results_folder import as_json
from thrust_pomdp.experiment.runner import Runner
from thrust_pomdp.experiment.runs import RunResult, RunSpec


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = options.make_parser(__doc__, "compare", parents=[training_parser()])
    options.add_verdict_options(made)
    made.add_argument(
        "--ranks",
        type=options.positive,
        default=1,
        help="processes that train each run of a RecurrentPPO together, in as many blocks of "
        "environments; without --jobs so many fewer runs at the same time (%(default)s)",
    )
    return made


def training_parser() -> argparse.ArgumentParser:
    """Return the parser of arguments that are about training, for all who train."""
    made = argparse.ArgumentParser(add_help=False)
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
    made.add_argument(
        "--state-env", metavar="ID",
        help="environment that shows the state itself, for the arm 'state', where the environment "
        "does not tell it in its infos",
    )  # fmt: skip
    options.add_recipe_options(made)
    options.add_memory_options(made)
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
    made.set_defaults(ranks=1)
    made.add_argument("--out", type=Path, required=True, help="folder of the results")
    return made


@options.command("compare")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    args = parser().parse_args(arguments)
    args.arms = list(dict.fromkeys(args.arms))
    options.apply_kept_terms(args)
    _check_ranks(args)
    options.check_extra("compare", "filelock", "jinja2", "matplotlib", "tqdm", "yaml")
    if args.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ImportError("--tensorboard needs tensorboard: pip install tensorboard")
    engine = options.make_engine(args)
    options.check_env(args.env, dict(args.env_kwargs), args.arms, args.state_env)
    runner = Runner(
        run_specs(args),
        args.out,
        engine=engine,
        tensorboard=args.tensorboard,
        terms=options.terms_of(args),
    )
    results = runner.run(lambda: announce(args))
    is_written = not results or _try_to_report(results, args)
    failed = runner.failed()
    if failed:
        print(f"No result: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed or not is_written else 0


def announce(args: argparse.Namespace) -> None:
    """Say what is going to be done, and by which rule it will be judged."""
    arms, seeds = len(args.arms), args.seeds
    say(f"{args.env}: {format_count(arms, 'arm')}, {format_count(seeds, 'seed')} each, "
        f"{args.jobs} at the same time, into {args.out}")  # fmt: skip
    alone = [arm for arm in args.arms if not find_arm(arm).trains_in_ranks]
    if args.ranks > 1:
        say(f"{args.ranks} processes train each run"
            + (f", one process those of {', '.join(alone)}." if alone else "."))  # fmt: skip
    for line in (*options.notes_on_general_recipes(args), *options.notes_on_unmatched_keys(args)):
        say(line)
    if seeds < MIN_RUNS:
        say(f"There will be no verdict: the rule asks for {MIN_RUNS} seeds of an arm.")
        return
    memory = options.memory_of(args)
    for arm in args.arms:
        if find_arm(arm).is_users and arm not in memory:
            say(f"{arm} takes no part in the verdict unless --memoryless or --with-memory says "
                "what it is.")  # fmt: skip
    say(f"The verdict will be by this rule, which is kept in {args.out / MARKER}:")
    for place, paragraph in enumerate(RULE, start=1):
        say(textwrap.fill(paragraph, 100, initial_indent=f"{place}. ", subsequent_indent="   "))
    for line in known_margin_and_bar(args):
        say(line)
    say("")


def known_margin_and_bar(args: argparse.Namespace) -> list[str]:
    """Return margin and bar of the verdict as far as they are known before the runs."""
    known = known_before(Contest(args.env, dict(args.env_kwargs), {}))
    kept = read_kept(args.out)
    if kept is not None:
        known |= kept.measures.get(Contest(args.env, as_json(dict(args.env_kwargs)), {}).title, {})
    share = f"{100 * MARGIN_SHARE:g} %"
    margin = f"{share} of the largest interquartile mean, which the runs will tell"
    if args.margin is not None:
        margin = f"{format_number(args.margin)}, given"
    elif known["margin"] is not None:
        margin = f"{format_number(known['margin'])}, by the ladder"
    bar = "none, so that needed is never said"
    if args.solved is not None:
        bar = f"{format_number(args.solved)}, given"
    elif known["bar"] is not None:
        source = "the environment's reward threshold" if known["margin"] is None else "the ladder"
        bar = f"{format_number(known['bar'])}, by {source}"
    return [f"Margin: {margin}.", f"Bar: {bar}."]


def run_specs(args: argparse.Namespace) -> list[RunSpec]:
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
            state_env=args.state_env,
            ranks=args.ranks if find_arm(arm).trains_in_ranks else 1,
        )
        for seed in range(args.seeds)
        for arm in args.arms
    ]


def _check_ranks(args: argparse.Namespace) -> None:
    """Refuse ranks that cannot be, and let there be no more processes than cores.

    :raises ValueError: naming the arm
    """
    if args.ranks == 1:
        return
    if args.engine != "local":
        raise ValueError("--ranks starts processes on this machine: it needs --engine local")
    for spec in run_specs(args):
        if spec.recipe.n_envs % spec.ranks:
            raise ValueError(
                f"--ranks must divide n_envs of each recipe, {spec.recipe.n_envs} for {spec.arm}, "
                f"got {spec.ranks}"
            )
    if args.jobs == options.cpus():
        args.jobs = max(1, args.jobs // args.ranks)


def _try_to_report(results: Sequence[RunResult], args: argparse.Namespace) -> bool:
    """Write the files of a comparison; tell whether that went well: the results are safe anyway."""
    try:
        write_report(results, args.out)
    except OSError as error:
        print(
            f"compare: all results are saved in {args.out / 'runs'}, but their page cannot be "
            f"written: {error}. Once it can: python -m thrust_pomdp report {args.out}",
            file=sys.stderr,
        )
        return False
    return True


def write_report(results: Sequence[RunResult], folder: Path) -> None:
    """Print the table and write the files of a comparison.

    :param results: of the finished runs
    :param folder: of the comparison, which keeps what the verdict goes by
    :raises OSError: if they cannot be written
    """
    # It reads matplotlib, which only now has to be there.
    from thrust_pomdp.experiment import report

    say(f"\n{report.table(results)}\n")
    report.write_csv(results, folder)
    report.plot(results, folder / "curves.png")
    page = report.write_report([folder])
    for verdict in page.verdicts.values():
        for line in verdict.lines:
            say(line)
    for worth in page.worths.values():
        if not isinstance(worth, str):
            for line in worth.lines:
                say(line)
    say(f"Written: {folder}/summary.csv, {folder}/curves.csv, {folder}/curves.png, {page.page}")

r"""Trained models, or trainings, over a grid of environment parameters: heat maps and CSV.

    python -m thrust_pomdp sweep evaluate results/demo --out results/sweep \
        --grid flicker_prob:0,0.25,0.5,0.75
    python -m thrust_pomdp sweep train --env BurstFlickeringCartPole-v0 --out results/trained \
        --arms lstm mlp --grid flicker_prob:0.25,0.5 burst_len:2,4,8

`evaluate` plays the finished runs of a comparison at every point of the grid; `train` trains every
arm at every point. Points without an environment (a burst law that cannot be) stay empty. Started
again in the same folder, both go on where they were interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from thrust_pomdp.envs.known_tasks import find_spec
from thrust_pomdp.envs.registration import arguments_of
from thrust_pomdp.experiment import sweeps
from thrust_pomdp.experiment.atomic_write import write_atomically
from thrust_pomdp.experiment.commands import compare, options
from thrust_pomdp.experiment.console import say
from thrust_pomdp.experiment.engines import Engine, Failed, Finished
from thrust_pomdp.experiment.folder import (
    MODEL,
    NOT_TRUSTED,
    ComparisonFolder,
    environment_of,
    model_file,
)
from thrust_pomdp.experiment.progress_bars import ProgressBars
from thrust_pomdp.experiment.recipe_values import parse_literal
from thrust_pomdp.experiment.results_folder import ResultsFolder, check_same
from thrust_pomdp.experiment.runner import Runner
from thrust_pomdp.experiment.runs import RunResult, RunSpec, load_result


class SweepFolder(ResultsFolder):
    """Means of runs over a grid: ``runs/NAME.json`` has two for each point."""

    MARKER = "sweep.json"
    MAKER = "sweep"

    def _compare(self, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        for key in wanted.keys() - {"models", "environment"}:
            check_same(self.path, key, made.get(key), wanted[key])
        # Earlier versions noted neither environment nor models.
        if "environment" in made:
            check_same(self.path, "environment", made["environment"], wanted["environment"])
        models = made.get("models", {})
        for name in wanted["models"].keys() & models.keys():
            check_same(self.path, f"the model of {name}", models[name], wanted["models"][name], " ")

    def _joined(self, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
        return {**wanted, "models": {**made.get("models", {}), **wanted["models"]}}


def grid_line(text: str) -> tuple[str, list[Any]]:
    """Parse ``name:value,value,...``."""
    name, separator, values = text.partition(":")
    if not separator or not name or not values:
        raise argparse.ArgumentTypeError(f"expected name:value,value,..., got {text!r}")
    return name, [parse_literal(value) for value in values.split(",")]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = options.make_parser(__doc__, "sweep")
    commands = made.add_subparsers(dest="what", required=True)
    evaluated = commands.add_parser("evaluate", help="play finished runs at every point")
    evaluated.add_argument("comparison", type=Path, help="folder of a comparison")
    evaluated.add_argument("--arms", nargs="+", metavar="ARM", help="of these only")
    _add_grid(evaluated)
    evaluated.add_argument(
        "--eval-episodes",
        type=options.positive,
        nargs=2,
        default=[100, 100],
        metavar=("MOST_LIKELY", "SAMPLED"),
        help="fresh episodes at each point (100 100)",
    )
    options.add_trust_option(evaluated)
    options.add_running_options(evaluated)
    evaluated.add_argument("--out", type=Path, required=True, help="folder of the results")
    trained = commands.add_parser("train", parents=[compare.training_parser()])
    _add_grid(trained)
    return made


def _add_grid(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grid",
        nargs="+",
        type=grid_line,
        required=True,
        metavar="NAME:VALUE,...",
        help="one or two arguments of the environment and their values",
    )


@options.command("sweep")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    args = parser().parse_args(arguments)
    options.check_extra("compare", "filelock", "matplotlib", "tqdm", "yaml")
    args.grid = dict(args.grid)
    return evaluate(args) if args.what == "evaluate" else train(args)


# ------------------------------------------------------------------------------------- evaluating


def evaluate(args: argparse.Namespace) -> int:
    """Play finished runs at every point of a grid."""
    results = finished_runs(args.comparison, args.arms)
    first = RunSpec(**results[0].spec)
    points = _possible_points(args.grid, first.env_id, first.env_kwargs)
    tasks = [_task(args, result, points) for result in results]
    folder = SweepFolder(args.out)
    settings = {
        "comparison": str(args.comparison.resolve()),
        "environment": environment_of(first.env_id),
        "grid": args.grid,
        "episodes": list(args.eval_episodes),
        # Means of a run that was trained anew since are of another one.
        "models": {task.name: _fingerprint(task.stem) for task in tasks},
    }
    with folder.opened_with(settings):
        _play(tasks, folder, options.make_engine(args))
    done = [task for task in tasks if folder.is_finished(task.name)]
    written = True
    if done:
        found = [cell for task in done for cell in _cells_of(task, folder, args.grid)]
        written = _write(found, args.grid, args.out, first.env_id, _trained_at(first))
    missing = [task.name for task in tasks if task not in done]
    if missing:
        print(f"No result: {', '.join(missing)}", file=sys.stderr)
    return 1 if missing or not written else 0


def finished_runs(path: Path, arms: Sequence[str] | None) -> list[RunResult]:
    """Read the finished runs of a comparison, of some arms.

    :raises ValueError: if there are none
    """
    if not (path / ComparisonFolder.MARKER).exists():
        raise ValueError(f"{path} is no folder of a comparison")
    results = [load_result(file) for file in sorted((path / "runs").glob("*.json"))]
    if not results:
        raise ValueError(f"{path} has no finished runs")
    found = [result for result in results if arms is None or result.spec["arm"] in arms]
    if not found:
        there = ", ".join(dict.fromkeys(result.spec["arm"] for result in results))
        raise ValueError(f"{path} has runs of {there}, none of {', '.join(arms or ())}")
    return found


def _task(
    args: argparse.Namespace, result: RunResult, points: list[dict[str, Any]]
) -> sweeps.EvaluationTask:
    spec = RunSpec(**result.spec)
    stem = args.comparison / "runs" / spec.name
    model = model_file(stem)
    if not model.exists():
        raise ValueError(f"{model} is missing: train the run again in another folder")
    if model.suffix != MODEL and not args.trust_pickles:
        raise ValueError(NOT_TRUSTED.format(path=model))
    most_likely, sampled = args.eval_episodes
    return sweeps.EvaluationTask(
        stem.resolve(),
        spec,
        result.provenance["algorithm"],
        tuple(points),
        (most_likely, sampled),
        args.trust_pickles,
    )


def _fingerprint(stem: Path) -> str:
    """Return what tells a model from others."""
    return hashlib.sha256(model_file(stem).read_bytes()).hexdigest()[:12]


def _play(tasks: Sequence[sweeps.EvaluationTask], folder: SweepFolder, engine: Engine) -> None:
    pending = [task for task in tasks if not folder.is_finished(task.name)]
    bars = ProgressBars(
        {task.name: len(task.points) for task in pending}, len(tasks), "point", "done"
    )
    with closing(engine.run(pending)) as events, closing(bars):
        try:
            for event in events:
                if isinstance(event, Finished):
                    write_atomically(
                        folder.result_path(event.name), json.dumps(event.result).encode()
                    )
                elif isinstance(event, Failed):
                    folder.write_error(event.name, event.reason)
                    bars.write(f"{event.name}: failed, see {folder.error_path(event.name)}")
                if event is not None:
                    bars.show(event)
        except KeyboardInterrupt:
            bars.write("Interrupted: keeping the runs that are finished.")


def _cells_of(
    task: sweeps.EvaluationTask, folder: SweepFolder, grid: sweeps.Grid
) -> list[sweeps.Cell]:
    """Return a run's means at all points, NaN where there is no environment."""
    by_label = _means_by_label(task, folder.result_path(task.name))
    spec, nothing = task.spec, (math.nan, math.nan)
    return [
        sweeps.Cell(spec.arm, spec.seed, point, *by_label.get(sweeps.point_label(point), nothing))
        for point in sweeps.grid_points(grid)
    ]


def _means_by_label(task: sweeps.EvaluationTask, path: Path) -> dict[str, tuple[float, float]]:
    """Read the two means at each point.

    :raises ValueError: if the file does not hold them, naming it
    """
    try:
        means = [(float(one), float(other)) for one, other in json.loads(path.read_text())]
        return {sweeps.point_label(p): pair for p, pair in zip(task.points, means, strict=True)}
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} does not hold means of {len(task.points)} points ({error}): move it away to "
            "play them again"
        ) from None


def _trained_at(spec: RunSpec) -> dict[str, Any]:
    """Return the environment's arguments that a run was trained with, those not given included."""
    found = find_spec(spec.env_id)
    assert found is not None  # its points were made
    return arguments_of(found.entry_point, found.kwargs, spec.env_kwargs)


# --------------------------------------------------------------------------------------- training


def train(args: argparse.Namespace) -> int:
    """Train every arm at every point of a grid."""
    args.arms = list(dict.fromkeys(args.arms))
    options.apply_kept_terms(args)
    points = _possible_points(args.grid, args.env, dict(args.env_kwargs), args.arms, args.state_env)
    specs = [
        replace(spec, env_kwargs={**spec.env_kwargs, **point}, label=sweeps.point_label(point))
        for spec in compare.run_specs(args)
        for point in points
    ]
    runner = Runner(
        specs,
        args.out,
        engine=options.make_engine(args),
        tensorboard=args.tensorboard,
        terms=options.terms_of(args),
    )
    for line in options.notes_on_general_recipes(args):
        say(line)
    results = runner.run()
    written = True
    if results:
        means = {RunSpec(**result.spec).name: result for result in results}
        found = [
            _trained_cell(
                spec, point, means.get(replace(spec, label=sweeps.point_label(point)).name)
            )
            for spec in compare.run_specs(args)
            for point in sweeps.grid_points(args.grid)
        ]
        title = f"{args.env}, trained at each point"
        written = _write(found, args.grid, args.out, title, None)
    failed = runner.failed()
    if failed:
        print(f"No result: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed or not written else 0


def _trained_cell(spec: RunSpec, point: dict[str, Any], result: RunResult | None) -> sweeps.Cell:
    if result is None:
        return sweeps.Cell(spec.arm, spec.seed, point, math.nan, math.nan)
    means = [
        math.fsum(values) / len(values) for values in (result.deterministic, result.stochastic)
    ]
    return sweeps.Cell(spec.arm, spec.seed, point, *means)


# ------------------------------------------------------------------------------------------- both


def _possible_points(
    grid: sweeps.Grid,
    env_id: str,
    env_kwargs: dict[str, Any],
    arms: Sequence[str] = (),
    state_env: str | None = None,
) -> list[dict[str, Any]]:
    """Return the points at which there is an environment, and say of the others why not."""
    points, reasons = sweeps.possible_points(
        sweeps.grid_points(grid),
        lambda point: options.check_env(env_id, {**env_kwargs, **point}, arms, state_env),
    )
    for point, reason in reasons.items():
        say(f"{point}: left out, {reason}")
    return points


def _write(
    found: Sequence[sweeps.Cell],
    grid: sweeps.Grid,
    folder: Path,
    title: str,
    trained_at: dict[str, Any] | None,
) -> bool:
    """Write table and maps; tell whether that went well: the results are safe anyway."""
    written = [folder / "sweep.csv"]
    try:
        sweeps.write_csv(found, written[0])
        for kind in sweeps.KINDS:
            written.append(folder / f"sweep-{kind.replace(' ', '-')}.png")
            sweeps.heat_map(found, grid, kind, title, written[-1], trained_at)
    except OSError as error:
        print(
            f"sweep: all results are saved in {folder / 'runs'}, but {written[-1].name} cannot be "
            f"written: {error}. Once it can, start the sweep again: it repeats no run",
            file=sys.stderr,
        )
        return False
    say(f"Written: {', '.join(map(str, written))}")
    return True

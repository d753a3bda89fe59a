"""The project's own results: train what docs/results/plan.yml lists, and write the pages' tables.

    python scripts/results.py run                 # everything; goes on where it was interrupted
    python scripts/results.py run ids             # one table of the plan
    python scripts/results.py run ids/masked      # one comparison
    python scripts/results.py run ids --arms lstm # some arms first
    python scripts/results.py play                # what was trained, in other environments
    python scripts/results.py page                # tables (docs, README) and pictures, from the CSV

Raw results, with models, go to results/TABLE/COMPARISON/; a line per run and thinned learning
curves to docs/results/TABLE/COMPARISON/. Tables and pictures are made of the latter alone. What is
played elsewhere (docs/results/grids.yml) goes to results/grids/ and docs/results/grids/ likewise.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict

from results_plan import (
    DOCS,
    ROOT,
    Comparison,
    kept,
    lines_of,
    read_grids,
    read_plan,
    select,
    signature,
)
from results_tables import filled

from thrust_pomdp.experiment import atomic_write
from thrust_pomdp.experiment.commands import options, sweep
from thrust_pomdp.experiment.report import write_csv
from thrust_pomdp.experiment.report.figures import plot
from thrust_pomdp.experiment.runner import Runner
from thrust_pomdp.experiment.runs import RunResult

#: Points that are kept of a learning curve.
_POINTS = 60

#: Episodes at each point of a grid, for each way to choose actions.
_EPISODES_PER_POINT = 50

#: Pages that have tables of results.
PAGES = (DOCS / "results.md", DOCS / "ablations.md", ROOT / "README.md")


def run(
    wanted: Sequence[str], jobs: int, arms: Sequence[str] = (), seeds: int | None = None
) -> int:
    """Train what is missing of the comparisons wanted, all where none is named.

    :param wanted: tables or comparisons
    :param jobs: runs at the same time
    :param arms: to train, all where none is named; what is committed of others stays
    :param seeds: the first of each arm, all that are planned where None
    :return: how many runs have no result
    :raises ValueError: for an arm that none of the comparisons has
    """
    missing = 0
    comparisons = select(read_plan(), wanted)
    for arm in arms:
        if all(arm not in comparison.arms for comparison in comparisons):
            known = dict.fromkeys(arm for comparison in comparisons for arm in comparison.arms)
            raise ValueError(f"arms must be of {', '.join(known)}, got {arm!r}")
    for comparison in comparisons:
        specs = [
            spec
            for spec in comparison.specs()
            if (not arms or spec.arm in arms) and (seeds is None or spec.seed < seeds)
        ]
        if not specs:
            continue
        print(f"== {comparison.name}", flush=True)
        runner = Runner(specs, ROOT / "results" / comparison.name, jobs=jobs)
        results = runner.run()
        if results:
            keep(results, comparison)
        missing += len(runner.failed())
    return missing


def keep(results: Sequence[RunResult], comparison: Comparison) -> None:
    """Write the CSV files that are committed.

    Lines of other runs stay if they are of what the plan has now.
    """
    for result in results:
        stride = max(-(-len(result.curve) // _POINTS), 1)
        result.curve = result.curve[::-1][::stride][::-1]  # the last point stays
    of_run = {(run.spec["arm"], run.spec["seed"]): run for run in [*kept(comparison), *results]}
    planned = {(spec.arm, spec.seed): signature(asdict(spec)) for spec in comparison.specs()}
    signed = {
        (line["arm"], int(line["seed"])): (line["recipe"], line["revision"])
        for line in lines_of(comparison.folder / "trained.csv")
    } | {
        (run.spec["arm"], run.spec["seed"]): (
            signature(run.spec),
            run.provenance.get("git_revision", "")[:7],
        )
        for run in results
    }
    current = sorted(key for key in of_run if key in signed and signed[key][0] == planned.get(key))
    comparison.folder.mkdir(parents=True, exist_ok=True)
    write_csv([of_run[key] for key in current], comparison.folder)
    atomic_write.write_csv(
        comparison.folder / "trained.csv",
        ["arm", "seed", "recipe", "revision"],
        [(*key, *signed[key]) for key in current],
    )


def play(names: Sequence[str], jobs: int) -> int:
    """Play the runs of the grids wanted, all where none is named; needs their raw results.

    :return: 0 where all were played, what the first one that failed returned
    :raises ValueError: if there is no grid of a name
    """
    grids = read_grids()
    for name in names:
        if name not in grids:
            raise ValueError(f"name must be one of {', '.join(grids)}, got {name!r}")
    for played in (grids[name] for name in names or grids):
        raw = ROOT / "results" / "grids" / played.name
        shutil.rmtree(raw, ignore_errors=True)  # what was played of runs trained anew is old
        lines = [f"{key}:{','.join(map(str, values))}" for key, values in played.grid.items()]
        failed = sweep.main([
            "evaluate", str(ROOT / "results" / played.of), "--arms", *played.arms,
            "--grid", *lines, "--eval-episodes", *[str(_EPISODES_PER_POINT)] * 2,
            "--jobs", str(jobs), "--out", str(raw),
        ])  # fmt: skip
        if failed:
            return failed
        played.folder.mkdir(parents=True, exist_ok=True)
        for path in (raw / "sweep.csv", *raw.glob("sweep-*.png")):
            shutil.copy(path, played.folder)
    return 0


def write_page() -> None:
    """Fill in the tables of the pages, and draw the learning curves."""
    plan = read_plan()
    for path in PAGES:
        path.write_text(filled(path.read_text(encoding="utf-8"), plan), encoding="utf-8")
    for comparison in (one for table in plan.values() for one in table):
        is_variant = comparison.note and len(comparison.arms) == 1
        if not is_variant and (runs := kept(comparison)):
            plot(runs, comparison.folder / "curves.png")


@options.command("results")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = options.make_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="train what is missing")
    running.add_argument("names", nargs="*", metavar="TABLE[/COMPARISON]")
    running.add_argument("--arms", nargs="+", default=[], help="these arms alone")
    running.add_argument(
        "--seeds", type=options.positive, help="the first so many seeds of each arm alone"
    )
    running.add_argument(
        "--jobs", type=options.positive, default=options.cpus(), help="runs at the same time"
    )
    playing = commands.add_parser("play", help="play trained runs in other environments")
    playing.add_argument("names", nargs="*", metavar="GRID")
    playing.add_argument(
        "--jobs", type=options.positive, default=options.cpus(), help="runs at the same time"
    )
    commands.add_parser("page", help="write the tables of the pages")
    args = parser.parse_args(arguments)
    if args.command == "page":
        write_page()
        return 0
    if args.command == "play":
        return play(args.names, args.jobs)
    return 1 if run(args.names, args.jobs, args.arms, args.seeds) else 0


if __name__ == "__main__":
    sys.exit(main())

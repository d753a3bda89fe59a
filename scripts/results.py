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

import argparse
import csv
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from thrust_pomdp.experiment.arms import ARM_LABELS, find_arm
from thrust_pomdp.experiment.commands import options, sweep
from thrust_pomdp.experiment.recipes import Recipe, parse_yaml, recipe_for
from thrust_pomdp.experiment.report import write_csv
from thrust_pomdp.experiment.report.figures import plot
from thrust_pomdp.experiment.report.number_format import format_count
from thrust_pomdp.experiment.report.rule import MIN_RUNS
from thrust_pomdp.experiment.runner import Runner
from thrust_pomdp.experiment.runs import RunResult, RunSpec
from thrust_pomdp.experiment.statistics import estimate, interquartile_mean
from thrust_pomdp.reference.figures import stored_ladder

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PLAN = DOCS / "results" / "plan.yml"
GRIDS = DOCS / "results" / "grids.yml"
PAGES = (DOCS / "results.md", DOCS / "ablations.md", ROOT / "README.md")

#: Points that are kept of a learning curve.
_POINTS = 60

#: Episodes at each point of a grid, for each way to choose actions.
_EPISODES_PER_POINT = 50

#: How actions are chosen, by the column of summary.csv.
_MODES = {"most_likely": "most likely", "sampled": "sampled"}

#: Where a page has a table: its kind, its name.
MARKS = re.compile(
    r"(<!-- (table|scores|variants|passing|training|grid): (\S+) -->\n).*?(<!-- end -->)", re.DOTALL
)

#: What arms are called at the head of a column.
_SHORT = {
    "mlp": "memoryless PPO",
    "mlp-prev-action": "previous action only",
    "frame-stack": "last few frames",
    "lstm": "LSTM",
    "lstm-prev-action": "LSTM, previous action",
    "gru": "GRU",
    "gru-prev-action": "GRU, previous action",
    "lstm-privileged": "LSTM, privileged critic",
    "lstm-prev-action-privileged": "LSTM, previous action, privileged critic",
}


@dataclass(frozen=True)
class Comparison:
    """Some arms on one environment.

    :param name: ``TABLE/COMPARISON``
    :param env: environment id
    :param arms: contestants, each with the keys of its recipe that are changed, or with a whole
        recipe if ``n_timesteps`` is among them
    :param seeds: runs of each arm
    :param env_kwargs: the environment's arguments
    :param n_timesteps: training budget; each recipe's own when None
    :param note: what sets it apart from others on the environment
    :param goal: what this project asks of the best arm
    :param bar: what a run has to reach by its most likely actions to pass
    :param published: what others report, by the arm that is like theirs
    """

    name: str
    env: str
    arms: Mapping[str, Mapping[str, Any]]
    seeds: int
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    n_timesteps: int | None = None
    note: str = ""
    goal: float | None = None
    bar: float | None = None
    published: Mapping[str, str] = field(default_factory=dict)

    def specs(self) -> list[RunSpec]:
        """Return the runs, seed by seed."""
        return [
            RunSpec(
                arm=arm,
                env_id=self.env,
                seed=seed,
                env_kwargs=dict(self.env_kwargs),
                n_timesteps=self.n_timesteps,
                deterministic_episodes=100,
                stochastic_episodes=100,
                hyperparams=self._recipe(arm).as_mapping(),
            )
            for seed in range(self.seeds)
            for arm in self.arms
        ]

    def _recipe(self, arm: str) -> Recipe:
        changes = dict(self.arms[arm])
        if "n_timesteps" in changes:
            return Recipe.from_mapping(find_arm(arm), changes)
        packaged = recipe_for(arm, self.env)
        if "policy_kwargs" in changes:  # what is not named stays as the recipe has it
            kept = packaged.as_mapping().get("policy_kwargs") or {}
            changes["policy_kwargs"] = {**kept, **changes["policy_kwargs"]}
        return packaged.with_changes(find_arm(arm), changes)

    @property
    def folder(self) -> Path:
        """Where the CSV files are."""
        return DOCS / "results" / self.name


def read_plan() -> dict[str, list[Comparison]]:
    """Return the comparisons of each table."""
    plan = parse_yaml(PLAN.read_text(encoding="utf-8"), str(PLAN))
    return {
        table: [_comparison(f"{table}/{name}", values) for name, values in comparisons.items()]
        for table, comparisons in plan.items()
    }


def _comparison(name: str, values: Mapping[str, Any]) -> Comparison:
    arms = values["arms"]
    if not isinstance(arms, Mapping):
        arms = {arm: {} for arm in arms}
    found = Comparison(**{**values, "name": name, "arms": {a: c or {} for a, c in arms.items()}})
    if not found.published.keys() <= found.arms.keys():
        raise ValueError(f"{name}: published must be of its arms {list(arms)}")
    return found


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


def select(plan: Mapping[str, list[Comparison]], wanted: Sequence[str]) -> list[Comparison]:
    """Return the comparisons of these tables or names.

    :raises ValueError: if there is none of a name
    """
    every = [comparison for table in plan.values() for comparison in table]
    if not wanted:
        return every
    for name in wanted:
        if name not in plan and all(comparison.name != name for comparison in every):
            names = ", ".join([*plan, *(comparison.name for comparison in every)])
            raise ValueError(f"name must be one of {names}, got {name!r}")
    return [one for one in every if one.name in wanted or one.name.split("/")[0] in wanted]


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
    with (comparison.folder / "trained.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["arm", "seed", "recipe", "revision"])
        writer.writerows((*key, *signed[key]) for key in current)


def signature(spec: Mapping[str, Any]) -> str:
    """Return a short hash of what is trained: environment, budget and recipe of a run."""
    names = ("env_id", "env_kwargs", "n_timesteps", "hyperparams")
    text = json.dumps({name: spec[name] for name in names}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def kept(comparison: Comparison) -> list[RunResult]:
    """Return the runs of a comparison as the CSV files have them."""
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for line in lines_of(comparison.folder / "curves.csv"):
        point = int(line["timesteps"]), float(line["mean_return"])
        curves.setdefault((line["arm"], line["seed"]), []).append(point)
    spec = {"env_id": comparison.env, "env_kwargs": dict(comparison.env_kwargs)}
    return [
        RunResult(
            spec={**spec, "arm": line["arm"], "seed": int(line["seed"])},
            final=float(line["final"]),
            best=float(line["best"]),
            deterministic=[float(line["most_likely"])],
            stochastic=[float(line["sampled"])],
            timesteps=int(line["steps"]),
            seconds=float(line["seconds"]),
            curve=curves.get((line["arm"], line["seed"]), []),
        )
        for line in read_summary(comparison.folder)
    ]


# ------------------------------------------------------------------ trained runs elsewhere


@dataclass(frozen=True)
class PlayedGrid:
    """Trained runs in environments that they were not trained in.

    :param name: of the folder in ``docs/results/grids/``
    :param of: the comparison that they are runs of
    :param arms: which of them
    :param grid: arguments of the environment, one or two, and their values
    """

    name: str
    of: str
    arms: Sequence[str]
    grid: Mapping[str, Sequence[float]]

    @property
    def folder(self) -> Path:
        """Where the CSV file is."""
        return DOCS / "results" / "grids" / self.name


def read_grids() -> dict[str, PlayedGrid]:
    """Return the grids by name."""
    lines = parse_yaml(GRIDS.read_text(encoding="utf-8"), str(GRIDS))
    return {name: PlayedGrid(name=name, **values) for name, values in lines.items()}


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


def grid_table(played: PlayedGrid) -> list[str]:
    """Return a table in Markdown: lines of arms and of one parameter, columns of the other.

    A cell is the interquartile mean over the runs, and the lowest of them in brackets; an arm acts
    everywhere in the way that is better over the whole grid.
    """
    first, *second = played.grid
    across = second[0] if second else first
    heads = ["arm", *([first] if second else []), "acting"]
    heads += [f"{across} {value}" for value in played.grid[across]]
    lines = _heading(*heads)
    found = lines_of(played.folder / "sweep.csv")
    for arm in played.arms:
        rows = [row for row in found if row["arm"] == arm]
        if not rows:
            lines.append(f"| {ARM_LABELS.get(arm, arm)} | {_absent(len(heads) - 1)} |")
            continue
        mode = max(_MODES, key=lambda mode: sum(float(row[mode] or 0) for row in rows))
        name = ARM_LABELS.get(arm, arm)
        for value in played.grid[first] if second else [None]:
            line = [row for row in rows if value is None or row[first] == str(value)]
            cells = [name, *([str(value)] if second else []), _MODES[mode]]
            for other in played.grid[across]:
                here = [row for row in line if row[across] == str(other)]
                cells.append(_middle_and_lowest([float(row[mode]) for row in here if row[mode]]))
            lines.append(f"| {' | '.join(cells)} |")
            name = ""
    return lines


def _middle_and_lowest(scores: Sequence[float]) -> str:
    if not scores:
        return ""
    middle = number(float(interquartile_mean([np.array(scores)])))
    return f"{middle}{few(len(scores))} ({number(min(scores))})"


# ------------------------------------------------------------------ the page


def write_page() -> None:
    """Fill in the tables of the pages, and draw the learning curves."""
    plan = read_plan()
    for path in PAGES:
        path.write_text(filled(path.read_text(encoding="utf-8"), plan), encoding="utf-8")
    for comparison in (one for table in plan.values() for one in table):
        is_variant = comparison.note and len(comparison.arms) == 1
        if not is_variant and (runs := kept(comparison)):
            plot(runs, comparison.folder / "curves.png")


def filled(page: str, plan: Mapping[str, list[Comparison]]) -> str:
    """Return the page with each table as the CSV files have it."""

    def fill(match: re.Match[str]) -> str:
        if match[2] == "grid":
            lines = grid_table(read_grids()[match[3]])
        else:
            lines = _KINDS[match[2]](plan[match[3]])
        return match[1] + "\n".join([*lines, *_notes(lines)]) + "\n" + match[4]

    return MARKS.sub(fill, page)


def table(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a table in Markdown, a line per arm of each comparison, and what is missing."""
    lines = _heading("environment", "arm", *_HEADS, "without memory, with (ladder)")
    missing = []
    for comparison in comparisons:
        environment, ladder = titled(comparison) + verdict(comparison), ladder_of(comparison)
        for arm in comparison.arms:
            found = score(comparison, arm)
            if found is not None:
                name, cells = ARM_LABELS.get(arm, arm), _cells(found, comparison)
                lines.append(f"| {environment} | {name} | {cells} | {ladder} |")
                environment = ladder = ""
        if lacking := unfinished(comparison):
            missing.append(f"* {comparison.name}: {', '.join(lacking)}")
    return [*lines, "", "Planned, and seeds of it not run yet:", "", *missing] if missing else lines


def verdict(comparison: Comparison) -> str:
    """Return a comparison's goal, and whether the best arm reaches it; nothing without a goal."""
    if comparison.goal is None:
        return ""
    goal = f"<br>goal {number(comparison.goal)}"
    found = [one for arm in comparison.arms if (one := score(comparison, arm)) is not None]
    if not found:
        return goal
    best = max(found, key=lambda one: one.value)
    if best.value >= comparison.goal:
        return f"{goal}: reached{few(len(best.seeds))}"
    return f"{goal}: **missed**" + (" so far" if unfinished(comparison) else "")


def unfinished(comparison: Comparison) -> list[str]:
    """Return the arms of which seeds are missing, by the names that tables have."""
    return [
        ARM_LABELS.get(arm, arm)
        for arm in comparison.arms
        if len(rows_of(comparison, arm)) < comparison.seeds
    ]


def variants(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a table in Markdown, a line per comparison, which is of one arm."""
    lines = _heading("environment", "variant", *_HEADS)
    shown = ""
    for comparison in comparisons:
        (arm,) = comparison.arms
        environment = "" if comparison.env == shown else f"`{comparison.env}`"
        shown = comparison.env
        found = score(comparison, arm)
        cells = _absent(len(_HEADS)) if found is None else _cells(found, comparison)
        lines.append(f"| {environment} | {comparison.note} | {cells} |")
    return lines


def passing(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a table in Markdown, a line per arm: how many of its runs reach the bar."""
    lines = _heading("environment", "arm", "runs that reach it", *_HEADS)
    for comparison in comparisons:
        if comparison.bar is None:
            raise ValueError(f"{comparison.name} needs a bar")
        environment = f"{titled(comparison)}<br>bar {number(comparison.bar)}"
        for arm in comparison.arms:
            found = score(comparison, arm)
            cells = _absent(1 + len(_HEADS))
            if found is not None:
                means = [float(row["most_likely"]) for row in rows_of(comparison, arm)]
                passed = sum(mean >= comparison.bar for mean in means)
                cells = f"**{passed} of {len(means)}** | {_cells(found, comparison)}"
            lines.append(f"| {environment} | {ARM_LABELS.get(arm, arm)} | {cells} |")
            environment = ""
    return lines


def training(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a table in Markdown of what arms reach *while* training, beside what others report.

    ``final`` and ``best`` are means of 100 training episodes, the last ones and the best window;
    their means over the seeds.
    """
    lines = _heading("environment", "arm", "steps", "seeds", "final", "best", "published")
    for comparison in comparisons:
        environment = title(comparison)
        for arm, published in comparison.published.items():
            rows = rows_of(comparison, arm)
            cells = [ARM_LABELS.get(arm, arm), "not run yet", "", "", ""]
            if rows:
                means = [
                    fmean(float(row[key]) for row in rows) for key in ("steps", "final", "best")
                ]
                steps, final, best = means
                marked = [f"{number(value)}{few(len(rows))}" for value in (final, best)]
                cells[1:] = [thousands(steps), str(len(rows)), *marked]
            lines.append(f"| {environment} | {' | '.join(cells)} | {published} |")
            environment = ""
    return lines


def scores(comparisons: Sequence[Comparison]) -> list[str]:
    """Return a table in Markdown, a line per environment and a column per arm.

    Under each score stand the steps of its trainings, and of fewer seeds than are evidence how many
    there were. The best of a line is bold, one of few seeds never; the two ends of the ladder stand
    on the right. What was not run yet is left out.
    """
    found = {
        comparison.name: {
            arm: one for arm in comparison.arms if (one := score(comparison, arm)) is not None
        }
        for comparison in comparisons
    }
    met = dict.fromkeys(arm for values in found.values() for arm in values)
    arms = [arm for arm in _SHORT if arm in met] + [arm for arm in met if arm not in _SHORT]
    heads = ["environment", *(_SHORT.get(arm, arm) for arm in arms), "ladder: without memory, with"]
    lines = _heading(*heads)
    for comparison in comparisons:
        values = found[comparison.name]
        if values:
            enough = [one.value for one in values.values() if is_evidence(one)]
            best = number(max(enough)) if enough else ""
            cells = [_score_cell(values[arm], best) if arm in values else "" for arm in arms]
            lines.append(f"| {title(comparison)} | {' | '.join(cells)} | {ladder_of(comparison)} |")
    return [*lines, "", "Under each score: the environment steps that a run was trained for."]


def _score_cell(one: Score, best: str) -> str:
    """Return a score with its steps, bold if it is the best of the line."""
    text = number(one.value)
    text = f"**{text}**" if text == best and is_evidence(one) else text
    return f"{text}{few(len(one.seeds))}<br><sub>{thousands(one.steps)}</sub>"


def is_evidence(one: Score) -> bool:
    """Return whether there are as many seeds as the rule of a verdict asks for."""
    return len(one.seeds) >= MIN_RUNS


def few(n_seeds: int) -> str:
    """Return the mark of a figure that rests on few seeds; nothing where they are enough."""
    return "" if n_seeds >= MIN_RUNS else f" <sup>{format_count(n_seeds, 'seed')}</sup>"


def _notes(lines: Sequence[str]) -> list[str]:
    """Return what a mark in a table means, where there is one."""
    if not any("</sup>" in line for line in lines):
        return []
    return [
        "",
        f"A small <sup>n seeds</sup> behind a figure: it rests on so few. Of fewer than {MIN_RUNS} "
        "nothing is concluded here, and more may move it far.",
    ]


#: What stands behind a mark in the pages.
_KINDS = {
    "table": table,
    "scores": scores,
    "variants": variants,
    "passing": passing,
    "training": training,
}


def title(comparison: Comparison) -> str:
    """Return what a comparison is called: environment and what is special."""
    details = [f"{name} {value}" for name, value in comparison.env_kwargs.items()]
    if comparison.n_timesteps is not None:
        details.append(f"{thousands(comparison.n_timesteps)} steps")
    details += [comparison.note] if comparison.note else []
    return f"`{comparison.env}`" + (f" ({', '.join(details)})" if details else "")


def titled(comparison: Comparison) -> str:
    """Return the same with the name by which ``run`` knows it."""
    return f"{title(comparison)}<br>{comparison.name}"


def ladder_of(comparison: Comparison) -> str:
    """Return what the best controllers found without and with memory reach."""
    rungs = stored_ladder(comparison.env, **dict(comparison.env_kwargs))
    means = {rung.information: rung.mean for rung in rungs}
    if not means:
        return ""
    return f"{number(means['memoryless'])}, {number(means['exact model'])}"


class Score(NamedTuple):
    """What an arm reaches in a comparison, acting in the better of two ways.

    :param value: interquartile mean over the seeds
    :param ends: of its 95 % interval; None for one seed
    :param mode: how actions are chosen
    :param seeds: of each seed the mean over its evaluation
    :param steps: of the training
    :param seconds: that the training took, the median
    """

    value: float
    ends: tuple[float, float] | None
    mode: str
    seeds: list[float]
    steps: float
    seconds: float


def score(comparison: Comparison, arm: str) -> Score | None:
    """Return what an arm reaches, None where nothing was run yet."""
    rows = rows_of(comparison, arm)
    if not rows:
        return None
    of_mode = {mode: [float(row[mode]) for row in rows] for mode in _MODES}
    found = {mode: estimate([values]) for mode, values in of_mode.items()}
    best = max(found, key=lambda mode: found[mode].value)
    value, ends = found[best]
    return Score(
        value,
        ends,
        _MODES[best],
        of_mode[best],
        steps=float(rows[0]["steps"]),
        seconds=median(float(row["seconds"]) for row in rows),
    )


#: The columns of :func:`_cells`.
_HEADS = ("steps", "seconds", "seeds", "IQM [95 % interval]", "acting", "lowest, highest seed")


def _heading(*columns: str) -> list[str]:
    """Return the head of a table in Markdown and the rule under it."""
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def _absent(n_columns: int) -> str:
    """Return the cells of what was not run yet."""
    return "not run yet" + " |" * (n_columns - 1)


def _cells(found: Score, comparison: Comparison) -> str:
    ends, n_seeds = found.ends, len(found.seeds)
    seeds = str(n_seeds) if n_seeds == comparison.seeds else f"{n_seeds} of {comparison.seeds}"
    span = "" if ends is None else f" [{number(ends[0])}, {number(ends[1])}]"
    value = f"**{number(found.value)}**" if is_evidence(found) else number(found.value)
    return (
        f"{thousands(found.steps)} | {found.seconds:.0f} | {seeds} "
        f"| {value}{few(n_seeds)}{span} | {found.mode} "
        f"| {number(min(found.seeds))}, {number(max(found.seeds))}"
    )


def rows_of(comparison: Comparison, arm: str) -> list[dict[str, str]]:
    """Return an arm's lines of ``summary.csv``, none where nothing was run yet."""
    return [row for row in read_summary(comparison.folder) if row["arm"] == arm]


def thousands(steps: float) -> str:
    """Return steps in thousands."""
    return f"{round(steps / 1000)}k"


def read_summary(folder: Path) -> list[dict[str, str]]:
    """Return the lines of ``summary.csv``, none where nothing was run yet."""
    return lines_of(folder / "summary.csv")


def lines_of(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file, none where there is none."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def number(value: float) -> str:
    """Return a score: steps with a digit, returns of at most 1 with three."""
    return f"{value:.1f}" if abs(value) > 1 else f"{value:.3f}"


@options.command("results")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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

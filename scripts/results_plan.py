"""What the project's own results are to be, docs/results/plan.yml, and what of it is committed.

A line per run and thinned learning curves lie in docs/results/TABLE/COMPARISON/.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thrust_pomdp.experiment.arms import find_arm
from thrust_pomdp.experiment.recipes import Recipe, parse_yaml, recipe_for
from thrust_pomdp.experiment.runs import RunResult, RunSpec

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PLAN = DOCS / "results" / "plan.yml"
GRIDS = DOCS / "results" / "grids.yml"


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


def signature(spec: Mapping[str, Any]) -> str:
    """Return a short hash of what is trained: environment, budget and recipe of a run."""
    names = ("env_id", "env_kwargs", "n_timesteps")
    recipe = dict(spec["hyperparams"])
    if recipe.get("average_last") is None:  # as it was before there was such a key
        recipe.pop("average_last", None)
    told = {**{name: spec[name] for name in names}, "hyperparams": recipe}
    text = json.dumps(told, sort_keys=True, default=str)
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


def rows_of(comparison: Comparison, arm: str) -> list[dict[str, str]]:
    """Return an arm's lines of ``summary.csv``, none where nothing was run yet."""
    return [row for row in read_summary(comparison.folder) if row["arm"] == arm]


def read_summary(folder: Path) -> list[dict[str, str]]:
    """Return the lines of ``summary.csv``, none where nothing was run yet."""
    return lines_of(folder / "summary.csv")


def lines_of(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file, none where there is none."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))

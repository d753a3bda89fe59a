"""The runs of a comparison as the report sees them: of one env, by arm, and those that failed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.envs.known_tasks import find_spec
from thrust_pomdp.experiment.arms import ARM_LABELS, ARMS, Memory
from thrust_pomdp.experiment.failures import headline
from thrust_pomdp.experiment.runs import RunResult
from thrust_pomdp.reference import Rung, stored_ladder
from thrust_pomdp.reference.figures import is_as_registered

Floats: TypeAlias = NDArray[np.float64]

#: How actions are chosen in an evaluation: the most likely one, or drawn.
Mode: TypeAlias = Literal["deterministic", "stochastic"]
MODES: tuple[Mode, Mode] = ("deterministic", "stochastic")

#: The order of the package's arms on a page; arms of the user's own come after them.
ARM_ORDER = (
    "lstm", "mlp", "lstm-prev-action", "lstm-privileged", "lstm-prev-action-privileged",
    "mlp-prev-action", "frame-stack", "sb3-contrib", "gru", "gru-prev-action", "gtrxl",
    "state", "mingru", "lru",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a run gave, from a :class:`~thrust_pomdp.experiment.runs.RunResult` or its file.

    :param spec: what it did; ``arm``, ``env_id``, ``env_kwargs`` and ``seed`` are read
    :param returns: of the evaluation episodes, by mode
    :param curve: (steps, mean return of the last training episodes), ``[n_points, 2]``
    :param evaluations: (steps, seconds of training, deterministic mean, stochastic mean),
        ``[n, 4]``; none where there were none
    :param half_life: of one wrong frame in the memory, in steps; None where that is not known
    :param recipe: how it was trained, if known
    :param provenance: versions, machine, revision and command, if known
    :param source: where it was found, for messages
    """

    spec: Mapping[str, Any]
    final: float
    best: float
    returns: Mapping[Mode, Floats]
    timesteps: int
    seconds: float
    curve: Floats
    evaluations: Floats
    recipe: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    source: str = "a result"
    half_life: float | None = None

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str = "a result") -> Run:
        """Read a result's fields; what the report does not know is left aside.

        :raises ValueError: naming the source, if they are not those of a finished run
        """
        try:
            spec = values["spec"]
            _ = spec["arm"], spec["seed"], spec["env_id"], spec["env_kwargs"]
            run = cls(
                spec=spec,
                final=float(values["final"]),
                best=float(values["best"]),
                returns={mode: np.array(values[mode], np.float64) for mode in MODES},
                timesteps=int(values["timesteps"]),
                seconds=float(values["seconds"]),
                curve=_finite_rows(values["curve"], 2),
                evaluations=_finite_rows(values.get("evaluations") or [], 4),
                recipe=_as_run(values.get("recipe") or {}, spec),
                provenance=values.get("provenance") or {},
                source=source,
                half_life=values.get("half_life"),
            )
        except (KeyError, TypeError, ValueError) as error:
            detail = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{source} is no result of a finished run: {detail}") from None
        for mode, returns in run.returns.items():
            if returns.ndim != 1 or not returns.size or not np.isfinite(returns).all():
                raise ValueError(
                    f"{source}: {mode} must be the finite returns of at least one episode, got "
                    f"{values[mode]!r}"
                )
        return run

    @classmethod
    def of(cls, result: RunResult | Run) -> Run:
        """Return a result as a run of the report."""
        return result if isinstance(result, Run) else cls.from_mapping(vars(result))

    @property
    def budget(self) -> int | None:
        """The environment steps that were asked for, if known."""
        asked = self.spec.get("n_timesteps") or self.recipe.get("n_timesteps")
        return None if asked is None else int(asked)

    @property
    def arm(self) -> str:
        """The contestant's name."""
        return str(self.spec["arm"])

    @property
    def name(self) -> str:
        """The run's name."""
        return f"{self.arm}-seed{self.spec['seed']}"

    def score(self, mode: Mode) -> float:
        """Return the mean return of its evaluation episodes."""
        return float(self.returns[mode].mean())

    def seconds_at(self, timesteps: Floats) -> Floats:
        """Return how long training took to get somewhere.

        Between the moments at which it was measured it is in proportion to the steps.

        :param timesteps: environment steps
        """
        measured = self.evaluations[:, :2]
        known = np.array([[0.0, 0.0], *measured, [self.timesteps, self.seconds]])
        return np.interp(timesteps, known[:, 0], np.maximum.accumulate(known[:, 1]))


def _as_run(recipe: Mapping[str, Any], spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a recipe with the budget of the run, which earlier versions did not put there."""
    if not recipe or spec.get("n_timesteps") is None:
        return recipe
    return {**recipe, "n_timesteps": spec["n_timesteps"]}


def _finite_rows(values: Any, n_columns: int) -> Floats:
    """Return rows of numbers, without those in which one is missing or no number."""
    rows = np.array(values, np.float64).reshape(-1, n_columns)
    return rows[np.isfinite(rows).all(axis=1)]


class Failure(NamedTuple):
    """A run that failed.

    :param name: of the run
    :param message: the line of its traceback that says what happened
    """

    name: str
    message: str


@dataclass(frozen=True)
class Contest:
    """All finished runs on one environment.

    :param env_id: its id
    :param env_kwargs: its arguments
    :param arms: the runs of each arm, by seed
    :param memory: what an arm can remember, where it is not known by its name
    """

    env_id: str
    env_kwargs: Mapping[str, Any]
    arms: Mapping[str, Sequence[Run]]
    memory: Mapping[str, Memory] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The id and the arguments."""
        kwargs = (f"{name}={value}" for name, value in self.env_kwargs.items())
        return ", ".join([self.env_id, *kwargs])

    @property
    def slug(self) -> str:
        """The title, for names of files."""
        kept = (c if c.isalnum() or c in "-_." else "-" for c in self.title.replace(", ", "-"))
        return "".join(kept)

    @property
    def ladder(self) -> tuple[Rung, ...]:
        """The reference values of the environment, from low to high; none where none are stored."""
        rungs = stored_ladder(self.env_id, **self.env_kwargs)
        return tuple(sorted(rungs, key=lambda rung: rung.mean))

    @property
    def reward_threshold(self) -> float | None:
        """The return that counts as solved, where the environment's registration names one.

        It is that of the registered arguments: with others it is another task.
        """
        try:
            spec = find_spec(self.env_id)
            if spec is None or not is_as_registered(spec, self.env_kwargs):
                return None
            return spec.reward_threshold
        except Exception:
            return None  # of a package that is not there where the report is made, or does not work

    def memory_of(self, arm: str) -> Memory:
        """Return what an arm can remember."""
        if arm in self.memory:
            return self.memory[arm]
        if arm in ARMS:
            return ARMS[arm].memory
        recipe = self.arms[arm][0].recipe
        if recipe.get("previous_action"):
            return "previous action"
        return "frames" if (recipe.get("frame_stack") or 1) > 1 else "unknown"

    def mode_of(self, arm: str) -> Mode:
        """Return how an arm acts best, by the mean over all its runs and never run by run.

        The better of two noisy figures of each run would be a luckier number than either; for a
        whole arm this is next to nothing. Most likely actions where both are equal.
        """
        means = {mode: np.mean([run.score(mode) for run in self.arms[arm]]) for mode in MODES}
        return max(MODES, key=lambda mode: float(means[mode]))

    def scores(self, arm: str, mode: Mode | None = None) -> Floats:
        """Return the scores of an arm's runs.

        :param arm: whose
        :param mode: how it acts; as :meth:`mode_of` says by default
        """
        mode = mode or self.mode_of(arm)
        return np.array([run.score(mode) for run in self.arms[arm]])


def label_of(arm: str) -> str:
    """Return what an arm is called in tables and plots."""
    return ARM_LABELS.get(arm, arm)


def contests(runs: Iterable[Run], memory: Mapping[str, Memory] | None = None) -> list[Contest]:
    """Group runs by environment and arm.

    :param runs: of any environments
    :param memory: what arms can remember, where it is not known by their names
    :raises ValueError: for two runs of one arm with one seed on one environment, and for a
        ``memory`` of an arm without runs, or of one of which it is known
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        key = json.dumps([run.spec["env_id"], run.spec["env_kwargs"]], sort_keys=True, default=str)
        groups.setdefault(key, []).append(run)
    found = [_contest(group, memory or {}) for group in groups.values()]
    arms = {arm for contest in found for arm in contest.arms}
    unknown = sorted(set(memory or {}) - arms)
    if unknown:
        raise ValueError(f"memory must be of arms that ran ({', '.join(arms)}), got {unknown[0]!r}")
    known = sorted(set(memory or {}) & ARMS.keys())
    if known:
        raise ValueError(f"memory must be of arms of your own, got {known[0]!r}, of which it is "
                         "known")  # fmt: skip
    return found


def _contest(runs: Sequence[Run], memory: Mapping[str, Memory]) -> Contest:
    arms: dict[str, dict[Any, Run]] = {}
    for run in runs:
        of_arm = arms.setdefault(run.arm, {})
        twin = of_arm.setdefault(run.spec["seed"], run)
        if twin is not run:
            raise ValueError(f"runs must differ, got {run.name} in {twin.source} and {run.source}")
    order = [arm for arm in ARM_ORDER if arm in arms]
    order += sorted(set(arms) - set(order))
    by_seed = {arm: [arms[arm][seed] for seed in sorted(arms[arm])] for arm in order}
    spec = runs[0].spec
    return Contest(
        spec["env_id"],
        spec["env_kwargs"],
        by_seed,
        {arm: known for arm, known in memory.items() if arm in by_seed},
    )


def read_folder(folder: Path) -> tuple[list[Run], list[Failure]]:
    """Read what the runner left in a folder.

    :param folder: holds ``runs/NAME.json`` of finished runs, ``runs/NAME.error.txt`` of failed ones
    :return: the finished runs and the failed ones, by name
    :raises ValueError: if the folder has no ``runs``, or a file in it is no result
    """
    if not (folder / "runs").is_dir():
        raise ValueError(f"folder must be one of a comparison, with runs/ in it, got {folder}")
    paths = sorted((folder / "runs").glob("*.json"))
    runs = [_read_run(path) for path in paths]
    finished = {path.stem for path in paths}
    errors = sorted((folder / "runs").glob("*.error.txt"))
    failures = [
        Failure(name, headline(path.read_text(errors="replace")))
        for path in errors
        if (name := path.name.removesuffix(".error.txt")) not in finished
    ]
    return runs, failures


def _read_run(path: Path) -> Run:
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no result of a finished run: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no result of a finished run: {type(values).__name__} inside")
    return Run.from_mapping(values, str(path))

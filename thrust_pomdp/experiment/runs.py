"""What one run of a comparison does and what it gives, as data (no torch here)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from thrust_pomdp.experiment.arms import find_arm
from thrust_pomdp.experiment.atomic_write import csv_text
from thrust_pomdp.experiment.recipes import Recipe, recipe_for

#: Episodes whose mean is a point of the learning curve (SB3's ``stats_window_size``).
CURVE_EPISODES = 100

#: Episodes of each kind, most likely and sampled actions, of an evaluation during training.
PERIODIC_EPISODES = 20


@dataclass(frozen=True)
class RunSpec:
    """What one run does; equal specs give equal results on one machine.

    :param arm: a contestant's name, or ``module:factory``
    :param env_id: environment id
    :param seed: number of the run. All arms with the same number see the same streams, and runs of
        different numbers, and training and evaluation, see different ones.
    :param env_kwargs: the environment's arguments
    :param n_timesteps: training budget in environment steps; the recipe's when None
    :param deterministic_episodes: evaluation episodes acting by the most likely action
    :param stochastic_episodes: evaluation episodes acting by sampling
    :param evaluations: evaluations during training, evenly spaced, the last at its end; they leave
        the training as it is, bit for bit
    :param hyperparams: a recipe, as the recipe files have it, in place of the arm's own
    :param state_env: id of an environment that shows the state itself, for arms that act by it;
        None where the environment tells it
    :param ranks: processes that train it together, in as many blocks of environments, on which
        the result depends; for arms of this package's ``RecurrentPPO``
    :param label: appended to the name, where one folder holds runs of several environments
    """

    arm: str
    env_id: str
    seed: int
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    n_timesteps: int | None = None
    deterministic_episodes: int = 100
    stochastic_episodes: int = 1000
    evaluations: int = 0
    hyperparams: dict[str, Any] | None = None
    label: str = ""
    ranks: int = 1
    state_env: str | None = None

    @property
    def name(self) -> str:
        """Name of the run, used for its files."""
        return f"{self.arm_in_files}-seed{self.seed}" + (f"-{self.label}" if self.label else "")

    @property
    def arm_in_files(self) -> str:
        """What the arm is called in names of files."""
        return self.arm.replace(":", ".").replace("/", ".")

    @property
    def training_seed(self) -> int:
        """First of the consecutive seeds of the training environments."""
        return 10_000 * (self.seed + 1)

    @property
    def evaluation_seed(self) -> int:
        """First of the consecutive seeds of the evaluation environments."""
        return self.training_seed + 5_000

    @property
    def periodic_evaluation_seed(self) -> int:
        """First of the consecutive seeds of the environments of evaluations during training."""
        return self.training_seed + 7_000

    @property
    def recipe(self) -> Recipe:
        """The recipe the arm is trained with, its budget that of the run."""
        if self.hyperparams is None:
            recipe = recipe_for(self.arm, self.env_id)
        else:
            recipe = Recipe.from_data(find_arm(self.arm), self.hyperparams)
        return replace(recipe, n_timesteps=self.n_timesteps or recipe.n_timesteps)

    @property
    def total_timesteps(self) -> int:
        """Training budget in environment steps."""
        return self.recipe.n_timesteps


@dataclass
class RunResult:
    """What one run gave.

    :param spec: the run, as a dict
    :param final: mean return of the last 100 training episodes
    :param best: best such mean met on the way
    :param deterministic: returns of the evaluation episodes, most likely actions
    :param stochastic: returns of the evaluation episodes, sampled actions
    :param timesteps: environment steps trained
    :param seconds: wall time of the training, without evaluations
    :param curve: (environment steps, mean return of the last 100 training episodes)
    :param evaluations: (environment steps, seconds of training, mean return with most likely
        actions, mean return with sampled ones)
    :param half_life: steps after which half of what one wrong frame does to the memory is gone;
        None where there is no memory, or where that took longer than was looked
    :param recipe: what the arm was trained with, all keys
    :param provenance: versions, machine, git revision, command
    """

    spec: dict[str, Any]
    final: float
    best: float
    deterministic: list[float]
    stochastic: list[float]
    timesteps: int
    seconds: float
    curve: list[tuple[int, float]]
    evaluations: list[tuple[int, float, float, float]] = field(default_factory=list)
    recipe: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    half_life: float | None = None


def result_text(result: RunResult) -> str:
    """Return a result as JSON."""
    return json.dumps(asdict(result))


def load_result(path: Path) -> RunResult:
    """Read a result.

    :raises ValueError: if the file holds none
    """
    try:
        return RunResult(**json.loads(path.read_text()))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} does not hold the result of a run ({error}): move it away to train it again"
        ) from None


def curve_text(result: RunResult) -> str:
    """Return a run's course as CSV: a line per rollout and evaluation, empty where not known."""
    rows: dict[int, dict[str, Any]] = {}
    for timesteps, mean in result.curve:
        rows.setdefault(timesteps, {})["training_return"] = f"{mean:.2f}"
    for timesteps, seconds, deterministic, stochastic in result.evaluations:
        row = rows.setdefault(timesteps, {})
        row["training_seconds"] = f"{seconds:.2f}"
        row["most_likely"], row["sampled"] = f"{deterministic:.2f}", f"{stochastic:.2f}"
    names = ["training_return", "training_seconds", "most_likely", "sampled"]
    lines = ([step, *(rows[step].get(name) for name in names)] for step in sorted(rows))
    return csv_text(["timesteps", *names], lines)

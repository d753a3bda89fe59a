"""Looking for recipes with Optuna: several processes share one study on disk."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from thrust_pomdp.checkpoint.folder import Folder
from thrust_pomdp.experiment.arms import Arm, find_arm
from thrust_pomdp.experiment.engines import Finished
from thrust_pomdp.experiment.folder import checkpoints_name
from thrust_pomdp.experiment.recipes import Recipe, read_yaml, recipe_for
from thrust_pomdp.experiment.results_folder import as_json
from thrust_pomdp.experiment.runs import RunSpec

_log = logging.getLogger(__name__)

#: Number of the first run of a trial: far from those of comparisons, whose streams no recipe may
#: have been chosen by.
FIRST_SEED = 900

#: Trials before any is pruned.
_TRIALS_TO_COMPARE_WITH = 5


class Trial(Protocol):
    """What a search space needs of Optuna's trial."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """Choose a number."""

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """Choose one of several values."""


def suggest(trial: Trial, arm: Arm) -> dict[str, Any]:
    """Choose changes to a recipe.

    The ranges hold this package's tuned recipes of CartPoles. Minibatches are an eighth, a quarter
    or a half of a rollout, whatever its size.
    """
    rate = trial.suggest_float("learning_rate", 3e-4, 1e-2, log=True)
    n_envs = trial.suggest_categorical("n_envs", [8, 16, 32])
    n_steps = trial.suggest_categorical("n_steps", [64, 128, 256])
    share = trial.suggest_categorical("minibatch", [0.125, 0.25, 0.5])
    width = trial.suggest_categorical("width", [64, 128])
    changes: dict[str, Any] = {
        "learning_rate": f"lin_{rate:.2e}",
        "n_envs": n_envs,
        "n_steps": n_steps,
        "n_epochs": trial.suggest_categorical("n_epochs", [4, 8, 12]),
        "gamma": trial.suggest_categorical("gamma", [0.97, 0.98, 0.99, 0.995]),
        "gae_lambda": trial.suggest_categorical("gae_lambda", [0.9, 0.95, 0.98]),
        "ent_coef": trial.suggest_categorical("ent_coef", [0.0, 0.003, 0.01]),
        "clip_range_vf": trial.suggest_categorical("clip_range_vf", [None, 0.2]),
        "policy_kwargs": _network(trial, arm, width),
    }
    if arm.keys is not None and "envs_per_minibatch" in arm.keys:
        changes["envs_per_minibatch"] = int(n_envs * share)
    else:
        changes["batch_size"] = int(n_envs * n_steps * share)
    if arm.stacks_frames:
        changes["frame_stack"] = trial.suggest_categorical("frame_stack", [2, 4, 8])
    return changes


class Range(NamedTuple):
    """Numbers to choose from.

    :param low: the least
    :param high: the greatest
    :param log: whether their logarithms are equally likely
    """

    low: float
    high: float
    log: bool = False


#: What to look for: key of a recipe -> values to choose from.
Space: TypeAlias = Mapping[str, Sequence[Any] | Range]


def read_space(path: Path, arm: Arm, recipe: Recipe) -> Space:
    """Read a file of what to choose from.

    :param path: YAML: a list of values for each key, or ``{low: 1e-4, high: 1e-2, log: true}``
    :param arm: whose recipes are looked for
    :param recipe: what is changed
    :raises ValueError: if it is no such file, or for keys and values that the arm does not take
    """
    loaded = read_yaml(path)
    if not isinstance(loaded, dict) or not loaded:
        raise ValueError(f"{path} must map keys of a recipe to lists of values or ranges")
    space = {key: _choices(f"{path}: {key}", value) for key, value in loaded.items()}
    for key, choices in space.items():
        for value in _examples(choices):
            try:
                recipe.with_changes(arm, {key: value})
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
    return space


def _examples(choices: Sequence[Any] | Range) -> Sequence[Any]:
    """Return values that will be chosen: of a range its ends and one that is no whole number."""
    if not isinstance(choices, Range):
        return choices
    low, high = choices.low, choices.high
    return low, high, low + (high - low) * (math.sqrt(2) - 1)


def _choices(name: str, value: Any) -> Sequence[Any] | Range:
    if isinstance(value, list) and value:
        return value
    try:
        found = Range(**value)
        low, high = float(found.low), float(found.high)
    except (TypeError, ValueError):
        low, high = 1.0, 0.0
    if not low < high or (found.log and low <= 0):
        raise ValueError(
            f"{name} must be a list of values, or low, high and perhaps log: true with low < high "
            f"(and above 0 for log), got {value!r}"
        )
    return Range(low, high, bool(found.log))


def suggest_from(trial: Trial, space: Space) -> dict[str, Any]:
    """Choose changes to a recipe from a space of the user's own."""
    changes = {}
    for key, choices in space.items():
        if isinstance(choices, Range):
            changes[key] = trial.suggest_float(key, choices.low, choices.high, log=choices.log)
        else:  # by their places, since Optuna stores numbers and text alone
            changes[key] = choices[trial.suggest_categorical(key, list(range(len(choices))))]
    return changes


def _network(trial: Trial, arm: Arm, width: int) -> dict[str, Any]:
    if not arm.recurrent:
        return {"net_arch": [width, width]}
    # Values of long bursts are not linear in what is remembered, nor any in a privileged state.
    has_layers = arm.privileged or trial.suggest_categorical("critic_layers", [False, True])
    vf = [64, 64] if has_layers else []
    network: dict[str, Any] = {"lstm_hidden_size": width, "net_arch": {"pi": [], "vf": vf}}
    if arm.privileged:
        network["grounding_coef"] = trial.suggest_float("grounding_coef", 0.1, 2.0, log=True)
    if arm.needs is None:  # ours
        network["shared_lstm_critic_gradient"] = True
    return network


@dataclass(frozen=True)
class Study:
    """What is looked for.

    :param storage: the study's SQLite file
    :param spec: a run: arm, environment, budget, evaluations
    :param seeds: runs of each trial
    :param space: what to choose from; None for the ranges of :func:`suggest`
    :param environment: what is registered under the id, where that is known
    """

    storage: Path
    spec: RunSpec
    seeds: int
    space: Space | None = None
    environment: Mapping[str, Any] | None = None

    @property
    def checkpoints(self) -> Path:
        """The folder of what unfinished trials go on from."""
        return self.storage.with_suffix(".checkpoints")

    def open(self) -> Any:
        """Open the study, made anew if there is none.

        :raises ValueError: if the file holds the study of something else
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{self.storage}",
            # Several processes write; each waits for the others.
            engine_kwargs={"connect_args": {"timeout": 60}},
        )
        study = optuna.create_study(
            storage=storage,
            study_name="recipe",
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(constant_liar=True),
            pruner=optuna.pruners.MedianPruner(
                n_startup_trials=_TRIALS_TO_COMPARE_WITH,
                n_warmup_steps=self.spec.total_timesteps // 4,
            ),
        )
        self._check(study)
        return study

    def _check(self, study: Any) -> None:
        wanted = self.settings()
        made = study.user_attrs.get("settings", wanted)
        made = {"environment": self.environment, **made}  # earlier versions did not note it
        for key in wanted:
            if made.get(key) != wanted[key]:
                raise ValueError(
                    f"{self.storage} was made with {key}={made.get(key)!r}, not {wanted[key]!r}: "
                    "choose another file"
                )
        study.set_user_attr("settings", wanted)

    def settings(self) -> dict[str, Any]:
        """Return what all trials share."""
        return {
            "arm": self.spec.arm,
            "env_id": self.spec.env_id,
            "env_kwargs": self.spec.env_kwargs,
            "environment": self.environment,
            "n_timesteps": self.spec.total_timesteps,
            "evaluations": self.spec.evaluations,
            "seeds": self.seeds,
            "space": None if self.space is None else as_json(self.space),
        }

    def suggest(self, trial: Trial) -> Recipe:
        """Choose a recipe."""
        arm = find_arm(self.spec.arm)
        space = self.space
        changes = suggest(trial, arm) if space is None else suggest_from(trial, space)
        recipe = recipe_for(self.spec.arm, self.spec.env_id).with_changes(arm, changes)
        return replace(recipe, n_timesteps=self.spec.total_timesteps)

    def best(self) -> tuple[Mapping[str, Any], float, int] | None:
        """Return the best trial's recipe, its score and the number of trials trained to the end.

        None if none was.
        """
        study = self.open()
        complete = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
        if not complete:
            return None
        best = max(complete, key=lambda trial: trial.value)
        return best.user_attrs["recipe"], best.value, len(complete)


@dataclass(frozen=True)
class TuneTask:
    """One process's share of a study: trials until there are enough in all.

    A trial whose process was killed is still open in the study; whoever comes next goes on in it,
    from its runs' checkpoints. That its process is gone is told by its folder, which that process
    would keep others from using.

    :param name: of the process
    :param study: the study
    :param trials: trials of all processes together, earlier ones included
    """

    name: str
    study: Study
    trials: int

    def do(self, report: Callable[[int], None]) -> Finished:
        """Do trials; the result is the number of those done here."""
        study, done = self.study.open(), 0
        while self._finished(study) < self.trials:
            with self._held(study) as held:
                if held is None:
                    break
                self._do(study, *held)
                done += 1
                report(self._finished(study))
        return Finished(self.name, done, {})

    @staticmethod
    def _finished(study: Any) -> int:
        return sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))

    @contextmanager
    def _held(self, study: Any) -> Iterator[tuple[Any, Path] | None]:
        """Hold a trial that nobody is at, or a new one: the trial and its folder.

        None if other processes are at all that are left.
        """
        import optuna

        begun = self._open(study)
        for number in begun:
            with self._folder(study, number) as folder:
                # Others may have gone through with it until now.
                if folder is not None and number in self._open(study):
                    trial_id = study.trials[number]._trial_id
                    yield optuna.trial.Trial(study, trial_id), folder
                    return
        if self._finished(study) + len(begun) >= self.trials:
            yield None
            return
        trial = study.ask()
        with self._folder(study, trial.number) as folder:
            yield None if folder is None else (trial, folder)

    @staticmethod
    def _open(study: Any) -> list[int]:
        """Return the numbers of the trials that were begun and are not finished."""
        trials = study.get_trials(deepcopy=False)
        return [trial.number for trial in trials if trial.state.name == "RUNNING"]

    @contextmanager
    def _folder(self, study: Any, number: int) -> Iterator[Path | None]:
        """Keep other processes from a trial; None if one is at it.

        Once it is finished nothing is left of its folder.
        """
        folder = Folder(self.study.checkpoints / f"trial{number}")
        folder.path.mkdir(parents=True, exist_ok=True)  # without it, nothing could be held
        try:
            folder.hold()
        except ValueError:
            yield None
            return
        try:
            yield folder.path
        finally:
            folder.release()
            if number not in self._open(study):
                shutil.rmtree(folder.path, ignore_errors=True)

    def _do(self, study: Any, trial: Any, folder: Path) -> None:
        """Do a trial, or the rest of one."""
        import optuna

        try:
            score = self._objective(trial, folder)
        except optuna.TrialPruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        except Exception:  # a recipe that cannot be trained; the others go on
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            _log.warning("trial %d failed:", trial.number, exc_info=True)
        else:
            study.tell(trial, score)

    def _objective(self, trial: Any, folder: Path) -> float:
        spec = self.study.spec
        recipe = self.study.suggest(trial)  # the values of before, in a trial that goes on
        trial.set_user_attr("recipe", recipe.as_entry(find_arm(spec.arm)))
        spec = replace(spec, hyperparams=recipe.as_mapping())
        scores = [self._score(trial, spec, seed, folder) for seed in range(self.study.seeds)]
        return math.fsum(scores) / len(scores)

    def _score(self, trial: Any, spec: RunSpec, seed: int, folder: Path) -> float:
        import optuna

        from thrust_pomdp.experiment.training import Training

        reported = trial.study.trials[trial.number].intermediate_values

        def evaluated(evaluation: tuple[int, float, float, float]) -> None:
            if seed > 0:  # Optuna compares one value per step; the first run speaks for the trial
                return
            if evaluation[0] not in reported:  # before its process was killed
                trial.report(max(evaluation[2:]), evaluation[0])
            if trial.should_prune():
                raise optuna.TrialPruned

        spec = replace(spec, seed=FIRST_SEED + seed)
        checkpoints = str(folder / checkpoints_name(spec))
        result = Training(spec, evaluated=evaluated, checkpoints=checkpoints).run()
        means = [
            math.fsum(returns) / len(returns)
            for returns in (result.deterministic, result.stochastic)
        ]
        # A memoryless arm plays better when it draws its actions, a recurrent one when it does not.
        return max(means)

"""The folder of a comparison: whose it is, what it was made with, and what lies in it."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from thrust_pomdp.envs.known_tasks import find_spec
from thrust_pomdp.envs.registration import registered_as
from thrust_pomdp.experiment.atomic_write import write_atomically
from thrust_pomdp.experiment.report.terms import (
    MARKER,
    Kept,
    Terms,
    check_unchanged,
    kept_now,
    read_kept,
)
from thrust_pomdp.experiment.results_folder import (
    LOCK,
    ResultsFolder,
    as_json,
    check_same,
    names_in,
)
from thrust_pomdp.experiment.runs import RunResult, RunSpec, curve_text, load_result, result_text

#: What a folder of the first version, which had no marker, may contain.
_WITHOUT_MARKER = frozenset({"runs", "summary.csv", "curves.csv", "curves.png", LOCK})

#: The name of a run: its arm as files have it, and its seed.
_NAME = re.compile(r"(.+?)-seed(\d+)(?:-|$)")

#: Of the names of checkpoints' folders.
_DIGITS = 12

#: Settings that runs of one folder may differ in.
_OF_ONE_RUN = ("arm", "seed", "hyperparams", "label")


#: Endings of files that run nothing, and of those that may run anything.
MODEL, NORMALIZER = ".safetensors", ".normalizer.safetensors"
PICKLED_MODEL, PICKLED_NORMALIZER = ".zip", ".normalizer.pkl"
#: What is said of a file that could run code.
NOT_TRUSTED = (
    "{path} contains pickles, which can run any code when they are loaded (of an earlier version, "
    "or of an arm of somebody's own): pass --trust-pickles if you trust them"
)


def model_file(stem: Path) -> Path:
    """Return the file of a run's model, whether it is there or not."""
    return _first_there(stem, MODEL, PICKLED_MODEL)


def normalizer_file(stem: Path) -> Path:
    """Return the file of a run's normaliser, whether it is there or not."""
    return _first_there(stem, NORMALIZER, PICKLED_NORMALIZER)


def _first_there(stem: Path, *endings: str) -> Path:
    paths = [stem.with_name(f"{stem.name}{ending}") for ending in endings]
    return next((path for path in paths if path.is_file()), paths[0])


class ComparisonFolder(ResultsFolder):
    """Results on disk: ``runs/NAME.json``, with the model and the course of the training beside it.

    ====================================  =====================================================
    ``comparison.json``                   what the folder was made with, and the verdict's rule
    ``runs/NAME.json``                    a finished run; written last, and whole or not at all
    ``runs/NAME.csv``                     its course, a line per rollout
    ``runs/NAME.safetensors``             its model, for the algorithm's ``load_safe``
    ``runs/NAME.normalizer.safetensors``  its normaliser, for ``load_safe``
    ``runs/NAME.error.txt``               why it failed
    ``tensorboard/NAME_1``                its TensorBoard log, on request
    ``checkpoints/NAME-...``              where an unfinished run goes on from
    ====================================  =====================================================

    :param path: the folder
    """

    MARKER = MARKER
    MAKER = "comparison"

    def load(self, name: str) -> RunResult:
        """Read the result of a finished run."""
        return load_result(self.result_path(name))

    def check(self, specs: Sequence[RunSpec], terms: Terms | None = None) -> None:
        """Check that runs may go into this folder; nothing is written.

        :param specs: the runs
        :param terms: what their verdict is to go by
        :raises ValueError: if it holds something else, or runs made with other settings or terms
        """
        self.check_settings(_settings(specs))
        self._kept_now(specs, terms or Terms())
        for spec in specs:
            if self.is_finished(spec.name):
                self._check_run(spec)

    def opened(
        self, specs: Sequence[RunSpec], terms: Terms | None = None
    ) -> AbstractContextManager[None]:
        """Make the folder and keep others out of it.

        :param specs: the runs
        :param terms: what their verdict is to go by
        :raises ValueError: as :meth:`check`, or if another process has it open
        :raises OSError: if it cannot be written
        """
        return self.opened_with(
            _settings(specs), lambda: self._kept_now(specs, terms or Terms()).as_mapping()
        )

    def _kept_now(self, specs: Sequence[RunSpec], terms: Terms) -> Kept:
        """Return what is to be kept of the verdict's rule, once it is seen that nothing changes."""
        kept, found = read_kept(self.path), self._finished_runs(specs)
        check_unchanged(self.path, kept, terms, {arm for arm, _ in found})
        return kept_now(kept, terms, specs, found)

    def _finished_runs(self, specs: Sequence[RunSpec]) -> list[tuple[str, int]]:
        """Return arm and seed of the runs that have results, by the names of their files."""
        arms = {spec.arm_in_files: spec.arm for spec in specs}
        names = (_NAME.match(path.stem) for path in sorted(self.runs.glob("*.json")))
        return [(arms.get(name[1], name[1]), int(name[2])) for name in names if name]

    def _is_ours_without_marker(self) -> bool:
        return any(self.runs.glob("*.json")) and names_in(self.path) <= _WITHOUT_MARKER

    def _compare(self, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        for key in wanted.keys() - {"environment", "recipes"}:
            check_same(self.path, key, made.get(key), wanted[key])
        if "env_id" in wanted and any(self.runs.glob("*.json")):
            _check_environment(self.path, wanted["env_id"], made.get("environment"))
        recipes = made.get("recipes", {})
        for arm in wanted["recipes"].keys() & recipes.keys():
            budget = wanted["n_timesteps"]
            _check_recipe(self.path, arm, recipes[arm], wanted["recipes"][arm], budget)

    def _joined(self, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
        recipes = {**made.get("recipes", {}), **wanted["recipes"]}
        return {"environment": made.get("environment"), **wanted, "recipes": recipes}

    def _check_run(self, spec: RunSpec) -> None:
        path = self.result_path(spec.name)
        found, wanted = self.load(spec.name), as_json(vars(spec))
        for key in wanted:
            # What a result of an earlier version does not tell, it did not have.
            default = RunSpec.__dataclass_fields__[key].default
            if key != "hyperparams":
                check_same(path, key, found.spec.get(key, default), wanted[key])
        _check_environment(path, spec.env_id, found.provenance.get("environment"))
        if found.recipe:
            recipe = as_json(spec.recipe.as_mapping())
            _check_recipe(path, spec.arm, found.recipe, recipe, spec.n_timesteps)

    def write(self, name: str, result: RunResult, files: Mapping[str, bytes]) -> None:
        """Write what a finished run gave; it counts as finished once its result is there.

        :raises OSError: if it cannot be written
        """
        self.runs.mkdir(parents=True, exist_ok=True)  # whoever took it away gets a new one
        for ending, content in files.items():
            write_atomically(self.runs / f"{name}{ending}", content)
        write_atomically(self.runs / f"{name}.csv", curve_text(result).encode())
        save_result(result, self.result_path(name))
        self.error_path(name).unlink(missing_ok=True)

    def checkpoints(self, spec: RunSpec) -> Path:
        """Return the folder of a run's checkpoints, another one for each way of training it."""
        return self._checkpoints / checkpoints_name(spec)

    def remove_checkpoints(self, name: str) -> None:
        """Remove what a finished run no longer needs; what cannot be removed stays."""
        for path in self._checkpoints.glob(f"{glob.escape(name)}-{'?' * _DIGITS}"):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._checkpoints.rmdir()

    @property
    def _checkpoints(self) -> Path:
        return self.path.resolve() / "checkpoints"


def checkpoints_name(spec: RunSpec) -> str:
    """Return the name of the folder of a run's checkpoints: another for each way of training it."""
    told = json.dumps([as_json(vars(spec)), as_json(spec.recipe.as_mapping())], sort_keys=True)
    return f"{spec.name}-{hashlib.sha256(told.encode()).hexdigest()[:_DIGITS]}"


def environment_of(env_id: str) -> dict[str, Any] | None:
    """Return what is registered under an id, as results keep it; None where nothing is."""
    try:
        spec = find_spec(env_id)
    except ImportError:
        return None
    return None if spec is None else registered_as(spec)


def save_result(result: RunResult, path: Path) -> None:
    """Write a result; the file appears whole or not at all."""
    write_atomically(path, result_text(result).encode())


def _settings(specs: Sequence[RunSpec]) -> dict[str, Any]:
    """Return what all runs of a folder share, and the recipe of each arm."""
    first = as_json(vars(specs[0])) if specs else {}
    shared = {key: value for key, value in first.items() if key not in _OF_ONE_RUN}
    if any(spec.label for spec in specs):
        shared.pop("env_kwargs")  # its cells differ in these
    recipes = {spec.arm: spec for spec in specs}
    environment = environment_of(first["env_id"]) if specs else None
    return {
        **shared,
        **({} if environment is None else {"environment": environment}),
        "recipes": {arm: as_json(spec.recipe.as_mapping()) for arm, spec in recipes.items()},
    }


def _check_environment(path: Path, env_id: str, made: Mapping[str, Any] | None) -> None:
    """Check that an id still stands for what results were made in.

    Earlier versions did not note it, and where nothing is registered nothing can be trained.
    """
    wanted = environment_of(env_id)
    if made is not None and wanted is not None:
        for key in wanted:
            check_same(path, f"{key} of {env_id}", made.get(key), wanted[key], ": ")


def _check_recipe(
    path: Path, arm: str, made: Mapping[str, Any], wanted: Mapping[str, Any], budget: int | None
) -> None:
    # A budget said for all runs is compared by itself, and earlier versions did not note it here.
    beside = set() if budget is None else {"n_timesteps"}
    for key in sorted((made.keys() | wanted.keys()) - beside):
        # Absent and None are both the algorithm's default.
        check_same(path, f"{key} in the recipe of {arm}", made.get(key), wanted.get(key), ": ")

"""The folder of a comparison: whose it is, what it was made with, and what lies in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from thrust_pomdp.experiment.files import (
    LOCK,
    ResultsFolder,
    as_json,
    check_same,
    names_in,
    write_whole,
)
from thrust_pomdp.experiment.report.rule import RULE
from thrust_pomdp.experiment.runs import RunResult, RunSpec, curve_text, load_result, result_text

#: What a folder of the first version, which had no marker, may contain.
_WITHOUT_MARKER = frozenset({"runs", "summary.csv", "curves.csv", "curves.png", LOCK})

#: Settings that runs of one folder may differ in.
_OF_ONE_RUN = ("arm", "seed", "hyperparams", "label")


class ComparisonFolder(ResultsFolder):
    """Results on disk: ``runs/NAME.json``, with the model and the course of the training beside it.

    ==============================  ===========================================================
    ``comparison.json``             what the folder was made with, and the rule of the verdict
    ``runs/NAME.json``              a finished run; written last, and whole or not at all
    ``runs/NAME.csv``               its course, a line per rollout
    ``runs/NAME.zip``               its model, for the algorithm's ``load``
    ``runs/NAME.normalizer.pkl``    its normaliser, for ``VecNormalizeVisible.load``
    ``runs/NAME.error.txt``         why it failed
    ``tensorboard/NAME_1``          its TensorBoard log, on request
    ==============================  ===========================================================

    :param path: the folder
    """

    MARKER = "comparison.json"
    MAKER = "comparison"

    def load(self, name: str) -> RunResult:
        """Read the result of a finished run."""
        return load_result(self.result_path(name))

    def check(self, specs: Sequence[RunSpec]) -> None:
        """Check that runs may go into this folder; nothing is written.

        :raises ValueError: if it holds something else, or runs made with other settings
        """
        self.check_settings(_settings(specs))
        for spec in specs:
            if self.is_finished(spec.name):
                self._check_run(spec)

    def opened(self, specs: Sequence[RunSpec]) -> AbstractContextManager[None]:
        """Make the folder and keep others out of it.

        :raises ValueError: as :meth:`check`, or if another process has it open
        :raises OSError: if it cannot be written
        """
        return self.opened_with(_settings(specs))

    def _is_ours_without_marker(self) -> bool:
        return any(self.runs.glob("*.json")) and names_in(self.path) <= _WITHOUT_MARKER

    def _compare(self, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        for key in wanted:
            if key != "recipes":
                check_same(self.path, key, made.get(key), wanted[key])
        recipes = made.get("recipes", {})
        for arm in wanted["recipes"].keys() & recipes.keys():
            _check_recipe(self.path, arm, recipes[arm], wanted["recipes"][arm])

    def _noted_at_first(self) -> dict[str, Any]:
        return {"rule": list(RULE)}  # written down before the first run

    def _joined(self, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
        return {**wanted, "recipes": {**made.get("recipes", {}), **wanted["recipes"]}}

    def _check_run(self, spec: RunSpec) -> None:
        path = self.result_path(spec.name)
        found, wanted = self.load(spec.name), as_json(vars(spec))
        for key in wanted:
            # What a result of an earlier version does not tell, it did not have.
            default = RunSpec.__dataclass_fields__[key].default
            if key != "hyperparams":
                check_same(path, key, found.spec.get(key, default), wanted[key])
        if found.recipe:
            _check_recipe(path, spec.arm, found.recipe, as_json(spec.recipe.as_mapping()))

    def write(self, name: str, result: RunResult, files: Mapping[str, bytes]) -> None:
        """Write what a finished run gave; it counts as finished once its result is there.

        :raises OSError: if it cannot be written
        """
        for ending, content in files.items():
            write_whole(self.runs / f"{name}{ending}", content)
        write_whole(self.runs / f"{name}.csv", curve_text(result).encode())
        save_result(result, self.result_path(name))
        self.error_path(name).unlink(missing_ok=True)


def save_result(result: RunResult, path: Path) -> None:
    """Write a result; the file appears whole or not at all."""
    write_whole(path, result_text(result).encode())


def _settings(specs: Sequence[RunSpec]) -> dict[str, Any]:
    """Return what all runs of a folder share, and the recipe of each arm."""
    first = as_json(vars(specs[0])) if specs else {}
    shared = {key: value for key, value in first.items() if key not in _OF_ONE_RUN}
    if any(spec.label for spec in specs):
        shared.pop("env_kwargs")  # its cells differ in these
    recipes = {spec.arm: spec for spec in specs}
    return {
        **shared,
        "recipes": {arm: as_json(spec.recipe.as_mapping()) for arm, spec in recipes.items()},
    }


def _check_recipe(path: Path, arm: str, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for key in sorted(made.keys() | wanted.keys()):
        # Absent and None are both the algorithm's default.
        check_same(path, f"{key} in the recipe of {arm}", made.get(key), wanted.get(key), ": ")

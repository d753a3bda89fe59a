"""Looking for recipes with Optuna.

pip install -e '.[tune]' && pytest -m external tests/unit/test_experiment_tuning.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from thrust_pomdp.experiment.arms import ARMS
from thrust_pomdp.experiment.recipes import Recipe, read_recipes, recipe_for
from thrust_pomdp.experiment.tuning import FIRST_SEED, suggest

ROOT = Path(__file__).parents[2]
FLICKERING = "FlickeringCartPole-v0"


class FirstChoices:
    def suggest_float(self, name, low, high, *, log=False):
        return low

    def suggest_categorical(self, name, choices):
        return choices[0]


class LastChoices(FirstChoices):
    def suggest_categorical(self, name, choices):
        return choices[-1]


@pytest.mark.parametrize("trial", [FirstChoices(), LastChoices()])
@pytest.mark.parametrize("arm", ARMS.values(), ids=list(ARMS))
def test_every_arm_has_a_space_of_recipes_whose_files_the_runner_takes(arm, trial):
    recipe = recipe_for(arm.name, FLICKERING).with_changes(arm, suggest(trial, arm))
    assert Recipe.from_mapping(arm, recipe.as_entry(arm)) == recipe
    values = recipe.hyperparameters
    share = values.get("envs_per_minibatch", 0) * values["n_steps"] or values["batch_size"]
    assert share * (8 if isinstance(trial, LastChoices) is False else 2) == (
        recipe.n_envs * values["n_steps"]
    )


def test_no_stream_of_a_comparison_is_used():
    assert FIRST_SEED > 100


@pytest.mark.external
class TestOptuna:
    def start(self, out: Path, trials: int, *more: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "thrust_pomdp", "tune", "--arm", "mlp", "--trials",
                   str(trials), "--n-timesteps", "2048", "--evaluations", "2", "--jobs", "1",
                   "--out", str(out), *more]  # fmt: skip
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )

    def finish(self, process: subprocess.Popen, code: int = 0) -> tuple[str, str]:
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, err
        return out, err

    def test_two_processes_share_a_study_and_its_recipe_is_taken(self, tmp_path):
        optuna = pytest.importorskip("optuna")
        path = tmp_path / "recipe.yml"
        self.finish(self.start(path, 1))
        processes = [self.start(path, 7), self.start(path, 7)]
        for process in processes:
            assert "Best of" in self.finish(process)[0]
        study = optuna.load_study(
            study_name="recipe", storage=f"sqlite:///{path.with_suffix('.db')}"
        )
        done = [trial for trial in study.trials if trial.state.is_finished()]
        assert 7 <= len(done) <= 8  # whoever is at it when there are enough finishes
        best = max(trial.value for trial in done if trial.state.name == "COMPLETE")
        recipe = read_recipes(path, ["mlp"], FLICKERING)["mlp"]
        assert recipe.n_timesteps == 2048
        assert f"{best:.1f}, on streams" in path.read_text()
        _, err = self.finish(self.start(path, 7, "--seeds", "2"), code=2)
        assert "was made with seeds=1, not 2: choose another file" in err

"""Looking for recipes with Optuna.

pip install -e '.[tune]' && pytest -m external tests/unit/experiment/test_tuning.py
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean as mean

import pytest

from thrust_pomdp import __main__ as program
from thrust_pomdp.experiment import training
from thrust_pomdp.experiment.arms import ARMS, find_arm
from thrust_pomdp.experiment.commands import options, tune
from thrust_pomdp.experiment.recipes import Recipe, read_recipes, recipe_for
from thrust_pomdp.experiment.runs import RunSpec
from thrust_pomdp.experiment.training import Training
from thrust_pomdp.experiment.tuning import FIRST_SEED, Range, Study, TuneTask, read_space, suggest

ROOT = Path(__file__).parents[3]
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


class TestSpacesOfOnesOwn:
    ARM = find_arm("arms_of_users:takes_some")

    def read(self, tmp_path, text: str):
        (tmp_path / "space.yml").write_text(text)
        return read_space(tmp_path / "space.yml", self.ARM, recipe_for(self.ARM.name, FLICKERING))

    def test_recipes_are_chosen_from_them(self, tmp_path):
        space = self.read(
            tmp_path,
            "reward_scale: {low: 1e-3, high: 1, log: true}\nn_steps: [5, 20]\n"
            "policy_kwargs: [null, {net_arch: [64]}]",
        )
        assert space["reward_scale"] == Range(0.001, 1.0, log=True)
        spec = RunSpec(self.ARM.name, FLICKERING, 0, n_timesteps=100)
        recipe = Study(tmp_path / "x.db", spec, 1, space).suggest(LastChoices())
        assert recipe.reward_scale == 0.001
        assert recipe.hyperparameters == {"n_steps": 20, "policy_kwargs": {"net_arch": [64]}}
        assert recipe.n_timesteps == 100
        assert pickle.loads(pickle.dumps(space)) == space

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("n_stepz: [1]", "takes no 'n_stepz' in a recipe: did you mean n_steps"),
            ("n_envs: [0]", "n_envs must be at least 1, got 0"),
            ("n_steps: 3", "n_steps must be a list of values, or low, high"),
            ("n_steps: []", "n_steps must be a list of values, or low, high"),
            ("reward_scale: {low: 1, high: 1}", "with low < high"),
            ("reward_scale: {low: 0, high: 1, log: true}", "above 0 for log"),
            ("reward_scale: {least: 0}", "must be a list of values"),
            ("[1]", "must map keys of a recipe to lists of values or ranges"),
            ("", "must map keys of a recipe to lists of values or ranges"),
            ("{", "is no YAML"),
        ],
    )
    def test_what_cannot_be_is_told(self, tmp_path, text, message):
        with pytest.raises(ValueError, match=message):
            self.read(tmp_path, text)

    def test_an_arm_of_ones_own_needs_one(self, capsys, monkeypatch):
        monkeypatch.setattr(options, "check_extra", lambda *names: None)
        arguments = ["tune", "--arm", self.ARM.name, "--out", "nowhere.yml"]
        assert program.main(arguments) == 2
        assert "only you know what to choose from: --space FILE.yml" in capsys.readouterr().err


def test_a_range_of_counts_is_refused_since_most_of_it_are_none(tmp_path):
    (tmp_path / "space.yml").write_text("n_steps: {low: 8, high: 64}")
    with pytest.raises(ValueError, match=r"space\.yml: n_steps must be a whole number, got 31\."):
        read_space(tmp_path / "space.yml", ARMS["mlp"], recipe_for("mlp", FLICKERING))
    (tmp_path / "space.yml").write_text("gamma: {low: 0.9, high: 0.99}")
    read_space(tmp_path / "space.yml", ARMS["mlp"], recipe_for("mlp", FLICKERING))


def test_a_recipe_tells_all_settings_it_was_found_with(tmp_path):
    spec = RunSpec("mlp", FLICKERING, 0, {"flicker_prob": 0.25}, 3000, evaluations=2)
    study = Study(tmp_path / "x.db", spec, seeds=2, space={"n_envs": [2, 4]})
    text = tune._text(study, {"n_timesteps": 3000, "n_envs": 4}, 12.0, 3)
    (line,) = re.findall(r"^# Settings: (.*)$", text, re.MULTILINE)
    assert json.loads(line) == study.settings()
    (tmp_path / "x.yml").write_text(text)
    assert read_recipes(tmp_path / "x.yml", ["mlp"], FLICKERING)["mlp"].n_envs == 4


def test_no_stream_of_a_comparison_is_used():
    assert FIRST_SEED > 100


@pytest.mark.external
class TestOptuna:
    def start(self, out: Path, trials: int, *more: str, arm: str = "mlp") -> subprocess.Popen:
        command = [sys.executable, "-m", "thrust_pomdp", "tune", "--arm", arm, "--trials",
                   str(trials), "--n-timesteps", "2048", "--evaluations", "2", "--jobs", "1",
                   "--out", str(out), *more]  # fmt: skip
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
        )  # fmt: skip

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
        assert 7 <= len(done) <= 8  # two may begin the last one at the same moment
        best = max(trial.value for trial in done if trial.state.name == "COMPLETE")
        recipe = read_recipes(path, ["mlp"], FLICKERING)["mlp"]
        assert recipe.n_timesteps == 2048
        assert f"{best:.1f}, on streams" in path.read_text()
        _, err = self.finish(self.start(path, 7, "--seeds", "2"), code=2)
        assert "was made with seeds=1, not 2: choose another file" in err

    def test_a_killed_trial_is_gone_on_in_and_ends_as_it_would_have(self, tmp_path, monkeypatch):
        pytest.importorskip("optuna")
        spec = RunSpec(
            "lstm", FLICKERING, 0, n_timesteps=1024, evaluations=2,
            deterministic_episodes=2, stochastic_episodes=2,
        )  # fmt: skip
        space = {"n_envs": [2], "n_steps": [64], "envs_per_minibatch": [1], "gamma": Range(0.9, 1)}
        study = Study(tmp_path / "x.db", spec, 2, space)
        kills = [(FIRST_SEED, 640), (FIRST_SEED, 1024), (FIRST_SEED + 1, 300), None]
        begun: list[tuple[int, int]] = []

        class Killed(Training):
            def __init__(self, spec, evaluated, checkpoints):
                super().__init__(spec, self.note, evaluated, checkpoints=checkpoints)
                self.is_new = True

            def note(self, steps):
                if self.is_new:
                    begun.append((self.spec.seed, steps))
                self.is_new = False
                if kills[0] is not None and (self.spec.seed, steps) >= kills[0]:
                    raise SystemExit  # no Exception: the trial stays open, as after kill -9

        monkeypatch.setattr(training, "Training", Killed)
        while kills[0] is not None:
            with pytest.raises(SystemExit):
                TuneTask("a", study, 1).do(lambda count: None)
            (trial,) = study.open().trials
            assert trial.state.name == "RUNNING"
            del kills[0]
        counts: list[int] = []
        assert TuneTask("a", study, 1).do(counts.append).result == 1
        assert counts == [1]
        (trial,) = study.open().trials
        assert not list(study.checkpoints.iterdir())
        # What was done was not done again; a run that had ended takes no step.
        assert begun[0] == (FIRST_SEED, 128)
        assert begun[1][1] > 512
        assert [seed for seed, _ in begun][-1] == FIRST_SEED + 1
        assert begun[-1][1] > 128
        monkeypatch.undo()
        recipe = trial.user_attrs["recipe"]
        hyperparams = Recipe.from_mapping(find_arm("lstm"), recipe).as_mapping()
        whole = [
            Training(replace(spec, seed=FIRST_SEED + seed, hyperparams=hyperparams)).run()
            for seed in range(2)
        ]
        means = [max(mean(run.deterministic), mean(run.stochastic)) for run in whole]
        assert trial.value == mean(means)
        assert trial.intermediate_values == {row[0]: max(row[2:]) for row in whole[0].evaluations}

    def test_nobody_goes_on_in_a_trial_that_a_process_is_at(self, tmp_path):
        pytest.importorskip("optuna")
        spec = RunSpec("mlp", FLICKERING, 0, n_timesteps=64)
        study = Study(tmp_path / "x.db", spec, 1, {"n_envs": [2]})
        one, other, opened = TuneTask("a", study, 9), TuneTask("b", study, 9), study.open()
        with one._held(opened) as (first, _):
            with other._held(opened) as (second, _):
                assert (first.number, second.number) == (0, 1)
            with other._held(opened) as (again, _):
                assert again.number == 1
        with other._held(opened) as (freed, folder):
            assert freed.number == 0
            freed.study.tell(freed, 1.0)
        assert not folder.exists()

    def test_no_more_are_begun_than_are_wanted(self, tmp_path):
        pytest.importorskip("optuna")
        spec = RunSpec("mlp", FLICKERING, 0, n_timesteps=64)
        study = Study(tmp_path / "x.db", spec, 1, {"n_envs": [2]})
        task, opened = TuneTask("a", study, 1), study.open()
        with task._held(opened), TuneTask("b", study, 1)._held(opened) as none:
            assert none is None

    def test_a_recipe_that_cannot_be_trained_is_a_failed_trial(self, tmp_path, caplog):
        pytest.importorskip("optuna")
        spec = RunSpec("mlp", FLICKERING, 0, n_timesteps=64, evaluations=1)
        space = {"policy_kwargs": [{"net_arch": "none"}]}
        study = Study(tmp_path / "x.db", spec, 1, space)
        assert TuneTask("a", study, 2).do(lambda count: None).result == 2
        assert [trial.state.name for trial in study.open().trials] == ["FAIL"] * 2
        assert "trial 1 failed" in caplog.text
        assert "net_arch" in caplog.text

    def test_trials_are_of_what_had_the_id(self, tmp_path):
        pytest.importorskip("optuna")
        spec = RunSpec("mlp", FLICKERING, 0, n_timesteps=64)
        storage = tmp_path / "recipe.db"
        study = Study(storage, spec, 1)
        noted = study.settings()
        del noted["environment"]  # as by an earlier version
        study.open().set_user_attr("settings", noted)
        Study(storage, spec, 1, None, {"max_episode_steps": 500}).open()
        Study(storage, spec, 1, None, {"max_episode_steps": 500}).open()
        with pytest.raises(ValueError, match=r"environment=\{'max_episode_steps': 500\}, not"):
            Study(storage, spec, 1, None, {"max_episode_steps": 10}).open()

    def test_an_arm_of_ones_own_is_tuned_in_its_own_space(self, tmp_path):
        pytest.importorskip("optuna")
        arm, path = "arms_of_users:takes_some", tmp_path / "recipe.yml"
        (tmp_path / "space.yml").write_text("policy_kwargs: [{net_arch: [8]}]\nn_envs: [2, 4]")
        space = ("--space", str(tmp_path / "space.yml"))
        self.finish(self.start(path, 2, *space, arm=arm))
        recipe = read_recipes(path, [arm], FLICKERING)[arm]
        assert recipe.hyperparameters == {"policy_kwargs": {"net_arch": [8]}}
        assert recipe.n_envs in (2, 4)
        (tmp_path / "space.yml").write_text("n_envs: [2]")
        _, err = self.finish(self.start(path, 2, *space, arm=arm), code=2)
        assert "was made with space=" in err

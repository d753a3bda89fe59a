"""`python -m thrust_pomdp compare`: what it takes, what it refuses, and with which words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from thrust_pomdp import __main__ as program
from thrust_pomdp.experiment.commands import compare, options
from thrust_pomdp.experiment.recipes import matched_recipe_for, recipe_for

ROOT = Path(__file__).parents[2]
FLICKERING = "FlickeringCartPole-v0"


def refused(capsys, *arguments: str) -> str:
    """Return the message with which the program refuses arguments."""
    try:
        code = program.main(arguments)
    except SystemExit as left:  # argparse
        code = left.code
    assert code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


def specs(*arguments: str):
    args = compare.parser().parse_args([*arguments, "--out", "nowhere"])
    return compare.specs(args)


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--env FlickeringCartpole-v0", "Did you mean: `FlickeringCartPole`"),
            ("--env no_such_module:Env-v0", "env no_such_module:Env-v0: No module named"),
            ("--env-kwargs flicker_prob:1.5", "flicker_prob must be a probability"),
            ("--env-kwargs flicker_probability:.5", "unexpected keyword argument"),
            ("--env-kwargs flicker_prob=1.5", "expected name:value, got 'flicker_prob=1.5'"),
            ("--env Blackjack-v1", "arm lstm cannot take this environment"),
            ("--arms gru", "arm must be one of lstm, "),
            ("--arms lsmt", "did you mean lstm?"),
            ("--arms no_such_module:make", "No module named 'no_such_module'"),
            ("--seeds 0", "must be at least 1, got 0"),
            ("--seeds two", "must be a whole number, got 'two'"),
            ("--n-timesteps -1", "must be at least 1, got -1"),
            ("--evaluations -1", "must be at least 0, got -1"),
            ("--hyperparams n_step:8", "did you mean n_steps"),
            ("--hyperparams gru.n_steps:8", "is of arm 'gru', which is none of lstm, mlp"),
            ("--hyperparams window_state:carry", "lstm.window_state changes it for lstm alone"),
            ("--matched --recipe x.yml", "--matched and --recipe exclude each other"),
            ("--recipe nowhere.yml", "No such file or directory: 'nowhere.yml'"),
            ("--engine spark", "invalid choice: 'spark'"),
        ],
    )
    def test_exits_with_2_and_a_message_and_makes_no_folder(
        self, capsys, tmp_path, arguments, message
    ):
        out = tmp_path / "out"
        assert message in refused(capsys, "compare", *arguments.split(), "--out", str(out))
        assert not out.exists()

    def test_a_folder_that_cannot_be_written(self, capsys, tmp_path):
        (tmp_path / "file").write_text("")
        err = refused(capsys, "compare", "--out", str(tmp_path / "file" / "below"))
        assert "compare: [Errno 20] Not a directory" in err
        (tmp_path / "thesis.tex").write_text("")
        assert "not made by a comparison" in refused(capsys, "compare", "--out", str(tmp_path))

    def test_an_extra_that_is_not_installed_is_told_with_the_command(self, capsys, monkeypatch):
        find = options.importlib.util.find_spec
        monkeypatch.setattr(
            options.importlib.util, "find_spec",
            lambda name: None if name in ("matplotlib", "ray") else find(name),
        )  # fmt: skip
        err = refused(capsys, "compare", "--out", "x")
        assert err == "compare: this needs matplotlib: pip install 'thrust-pomdp[compare]'\n"
        with pytest.raises(ImportError, match=r"pip install 'thrust-pomdp\[ray\]'"):
            options.check_extra("ray", "ray")

    def test_an_unknown_command_is_answered_with_near_names(self, capsys):
        assert "did you mean compare?" in refused(capsys, "compar")
        assert program.main([]) == 2
        assert "compare " in capsys.readouterr().out


class TestSpecs:
    def test_seed_by_seed_with_each_arms_own_recipe(self):
        made = specs("--arms", "lstm", "mlp", "--seeds", "2", "--n-timesteps", "2e3")
        assert [one.name for one in made] == ["lstm-seed0", "mlp-seed0", "lstm-seed1", "mlp-seed1"]
        assert {one.total_timesteps for one in made} == {2000}
        assert made[0].recipe == recipe_for("lstm", FLICKERING)
        assert made[0].evaluations == 10

    def test_changes_are_for_all_arms_or_for_one(self):
        lstm, mlp = specs(
            "--hyperparams", "n_steps:64", "lstm.learning_rate:lin_1e-3_1e-4", "mlp.gamma:.5"
        )
        assert lstm.recipe.hyperparameters["n_steps"] == 64
        assert lstm.recipe.hyperparameters["learning_rate"] == "lin_1e-3_1e-4"
        assert lstm.recipe.hyperparameters["gamma"] == 0.99
        assert mlp.recipe.hyperparameters["n_steps"] == 64
        assert mlp.recipe.hyperparameters["gamma"] == 0.5

    def test_matched(self):
        for one in specs("--matched", "--hyperparams", "n_epochs:3"):
            wanted = {**matched_recipe_for(one.arm, FLICKERING).as_mapping(), "n_epochs": 3}
            assert one.recipe.as_mapping() == wanted

    def test_a_file_of_recipes_replaces_those_it_has(self, tmp_path):
        (tmp_path / "mine.yml").write_text("lstm: {default: {n_timesteps: 7, n_steps: 8}}")
        lstm, mlp = specs("--recipe", str(tmp_path / "mine.yml"), "--hyperparams", "n_envs:2")
        assert lstm.recipe.hyperparameters == {"n_steps": 8}
        assert (lstm.recipe.n_timesteps, lstm.recipe.n_envs) == (7, 2)
        assert mlp.recipe.n_timesteps == 200_000


class TestProgram:
    """The whole of it, with modules that only lie beside the user."""

    MODULE = """
import gymnasium as gym
from stable_baselines3 import A2C

gym.register("Mine-v0", lambda **kwargs: gym.make("FlickeringCartPole-v0", **kwargs))

def make(env, seed, n_steps=5):
    return A2C("MlpPolicy", env, n_steps=n_steps, seed=seed, device="cpu")
"""

    def call(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, str(ROOT / "scripts" / "compare.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)

    def test_an_environment_and_an_arm_of_ones_own(self, tmp_path):
        (tmp_path / "mine.py").write_text(self.MODULE)
        done = self.call(
            tmp_path, "--env", "mine:Mine-v0", "--env-kwargs", "flicker_prob:0.2",
            "--arms", "mine:make", "--n-timesteps", "500", "--eval-episodes", "2", "3",
            "--evaluations", "1", "--hyperparams", "n_steps:10", "n_envs:2", "--tensorboard",
            "--out", "results",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "mine:make     0" in done.stdout
        out = tmp_path / "results"
        found = json.loads((out / "runs" / "mine.make-seed0.json").read_text())
        assert found["recipe"]["n_steps"] == 10
        assert found["provenance"]["algorithm"] == "stable_baselines3.a2c.a2c:A2C"
        assert "--env mine:Mine-v0" in found["provenance"]["command"]
        assert list((out / "tensorboard" / "mine.make-seed0_1").glob("events*"))
        names = {path.name for path in out.iterdir()}
        assert {"summary.csv", "curves.csv", "curves.png", "comparison.json"} <= names

    def test_help_is_there_at_once_and_loads_nothing_heavy(self):
        code = (
            "import sys\nfrom thrust_pomdp.__main__ import main\n"
            "try: main(['compare', '--help'])\nexcept SystemExit: pass\n"
            "print([name for name in ('torch', 'stable_baselines3', 'matplotlib', 'yaml')"
            " if name in sys.modules])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT
        )
        assert done.stdout.splitlines()[-1] == "[]", done.stderr

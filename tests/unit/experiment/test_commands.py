"""`python -m thrust_pomdp compare`: what it takes, what it refuses, and with which words."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
from instant_engine import InstantEngine

from thrust_pomdp import __main__ as program
from thrust_pomdp.experiment.commands import compare, options
from thrust_pomdp.experiment.engines import Failed
from thrust_pomdp.experiment.recipes import matched_recipe_for, recipe_for
from thrust_pomdp.experiment.report.rule import MIN_RUNS, RULE
from thrust_pomdp.experiment.report.terms import read_kept

ROOT = Path(__file__).parents[3]
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
    return compare.run_specs(args)


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--env FlickeringCartpole-v0", "Did you mean: `FlickeringCartPole`"),
            ("--env Recall-v0", "registers it, name that: MODULE:Recall-v0"),
            ("--env no_such_module:Env-v0", "env no_such_module:Env-v0: No module named"),
            ("--env-kwargs flicker_prob:1.5", "flicker_prob must be a probability"),
            ("--env-kwargs flicker_probability:.5", "unexpected keyword argument"),
            ("--env-kwargs flicker_prob=1.5", "expected name:value, got 'flicker_prob=1.5'"),
            ("--env Blackjack-v1", "arm lstm cannot take this environment"),
            ("--arms elman", "arm must be one of lstm, "),
            ("--arms lsmt", "did you mean lstm?"),
            ("--arms no_such_module:make", "No module named 'no_such_module'"),
            ("--seeds 0", "must be at least 1, got 0"),
            ("--seeds two", "must be a whole number, got 'two'"),
            ("--n-timesteps -1", "must be at least 1, got -1"),
            ("--evaluations -1", "must be at least 0, got -1"),
            ("--hyperparams n_step:8", "did you mean n_steps"),
            ("--hyperparams gru.n_steps:8", "is of arm 'gru', which is none of lstm, mlp"),
            ("--hyperparams window_state:carry", "lstm.window_state changes it for lstm alone"),
            (
                "--hyperparams env_wrapper:x.Y",
                "'env_wrapper' is no key of a recipe: what it changes",
            ),
            ("--hyperparams gamma:abc", "gamma must be a number, got 'abc'"),
            ("--hyperparams lstm.n_steps:0", "n_steps must be at least 1, got 0"),
            ("--hyperparams normalize:flase", "normalize must be a mapping"),
            ("--hyperparams env_kwargs:x", "same for every arm: --env-kwargs"),
            ("--hyperparams callback:x", "'callback' is no key of a recipe: the runner does that"),
            ("--margin -1", "--margin: must be at least 0, got -1"),
            ("--solved nan", "--solved: must be finite, got nan"),
            ("--memoryless mlp", "for arms of your own among lstm, mlp, got mlp"),
            ("--with-memory mine:make", "for arms of your own among lstm, mlp, got mine:make"),
            ("--memoryless a:b --with-memory a:b", "a:b cannot be --memoryless and --with-memory"),
            ("--matched --recipe x.yml", "--matched and --recipe exclude each other"),
            (
                "--recipe nowhere.yml",
                "--recipe: [Errno 2] No such file or directory: 'nowhere.yml'",
            ),
            ("--recipe .", "--recipe: [Errno 21] Is a directory: '.'"),
            ("--hyperparams reward_scale:inf", "reward_scale must be finite, got inf"),
            ("--hyperparams policy:Mlp-Policy", "policy must be the name of one, got 'Mlp-Policy'"),
            ("--hyperparams policy_kwargs:{0:1}", "policy_kwargs must map names to values"),
            ("--hyperparams policy_kwargs:dict(a=1j)", "policy_kwargs must be a mapping or dict("),
            ("--hyperparams policy_kwargs:{[]:1}", "policy_kwargs must be a mapping or dict("),
            ("--hyperparams gamma:1j", "gamma must be a number, got '1j'"),
            ("--hyperparams n_steps:0x" + 300 * "f", "n_steps must be a whole number"),
            ("--hyperparams learning_rate:0x" + 300 * "f", "learning_rate must be a number"),
            ("--hyperparams n_steps:0x" + 5000 * "f", "n_steps must be a whole number, got '0xff"),
            ("--hyperparams gamma:" + 3000 * "-" + "1", "gamma must be a number, got '---"),
            ("--hyperparams gamma:{[]:1}", "gamma must be a number, got '{[]:1}'"),
            ("--env-kwargs render_mode:1", "cannot be made with render_mode:1: "),
            ("--engine spark", "invalid choice: 'spark'"),
        ],
    )
    def test_exits_with_2_and_a_message_and_makes_no_folder(
        self, capsys, tmp_path, arguments, message
    ):
        out = tmp_path / "out"
        assert message in refused(capsys, "compare", *arguments.split(), "--out", str(out))
        assert not out.exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--env", "a\nb"), "compare: Malformed environment ID: a b."),
            (("a\nb\x1b[31m",), "compare: error: unrecognized arguments: a b\\x1b[31m\n"),
            (("--recipe", "broken.yml"), "compare: broken.yml is no YAML: while parsing a flow"),
        ],
    )
    def test_is_told_in_one_line(self, capsys, tmp_path, monkeypatch, arguments, message):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "broken.yml").write_text("lstm: [")
        err = refused(capsys, "compare", *arguments, "--out", "out")
        assert message in err
        assert err.endswith("\n")
        assert (
            err[err.index("\ncompare: ") + 1 :].count("\n") == 1
            if "usage" in err
            else (err.count("\n") == 1)
        )

    def test_a_file_of_choices_that_cannot_be_read_is_named_by_its_option(
        self, capsys, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(options, "check_extra", lambda *_: None)
        out = str(tmp_path / "found.yml")
        err = refused(capsys, "tune", "--env", "TMaze-v0", "--space", "nowhere.yml", "--out", out)
        assert "tune: --space: [Errno 2] No such file or directory: 'nowhere.yml'\n" in err

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


class TestRunning:
    """What the command says and how it ends, on results that took no time."""

    @pytest.fixture(autouse=True)
    def instant(self, monkeypatch):
        self.engine = InstantEngine()
        monkeypatch.setattr(options, "make_engine", lambda args: self.engine)

    def call(self, out: Path, *arguments: str) -> int:
        return program.main(["compare", "--out", str(out), *arguments])

    @pytest.fixture
    def pages(self, monkeypatch) -> list:
        """What would be made pages of."""
        found = []
        monkeypatch.setattr(compare, "write_report", lambda *given: found.append(given))
        return found

    def test_the_rule_is_told_before_the_runs(self, tmp_path, capsys, pages):
        assert self.call(tmp_path, "--seeds", str(MIN_RUNS)) == 0
        told = capsys.readouterr().out.partition("lstm-seed0")[0]
        said = " ".join(told.split())
        assert f"{FLICKERING}: 2 arms, {MIN_RUNS} seeds each" in said
        for number, paragraph in enumerate(RULE, start=1):
            assert f"{number}. {paragraph}" in said
        assert len(pages) == 1

    def test_recipes_that_are_not_tuned_for_the_task_are_told_before_the_runs(
        self, tmp_path, capsys, pages, monkeypatch
    ):
        said = "Recipes are the general ones, none was tuned for this environment"
        assert self.call(tmp_path / "ours") == 0
        assert said not in capsys.readouterr().out
        anew = dataclasses.replace(gym.spec(FLICKERING), max_episode_steps=50)
        monkeypatch.setitem(gym.registry, FLICKERING, anew)
        for env_id in (FLICKERING, f"thrust_pomdp:{FLICKERING}"):
            assert self.call(tmp_path / env_id[:5], "--env", env_id) == 0
            told = capsys.readouterr().out.partition("lstm-seed0")[0]
            assert f"{said}: {FLICKERING} is registered with the time limit 50." in told
        (tmp_path / "mine.yml").write_text("lstm: {default: {n_timesteps: 7}}")
        assert self.call(tmp_path / "mine", "--recipe", str(tmp_path / "mine.yml")) == 0
        assert said not in capsys.readouterr().out

    def test_too_few_seeds_for_a_verdict_are_told_before_the_runs(self, tmp_path, capsys, pages):
        assert self.call(tmp_path) == 0
        told = capsys.readouterr().out.partition("lstm-seed0")[0]
        assert "There will be no verdict: the rule asks for 5 seeds of an arm." in told

    def test_a_page_that_cannot_be_written_costs_no_result(self, tmp_path, capsys, monkeypatch):
        replace = os.replace

        def full(source, target):
            if Path(target).name == "scores.png":
                raise OSError(errno.ENOSPC, "No space left on device")
            replace(source, target)

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", full)
            assert self.call(tmp_path) == 1
        err = capsys.readouterr().err
        assert f"compare: all results are saved in {tmp_path / 'runs'}, but their page" in err
        assert (
            f"No space left on device. Once it can: python -m thrust_pomdp report {tmp_path}\n"
            in err
        )
        assert not list(tmp_path.rglob("*.unfinished"))
        assert not (tmp_path / "scores.png").exists()
        assert program.main(["report", str(tmp_path)]) == 0
        assert "(2 runs, " in capsys.readouterr().out
        assert (tmp_path / "report.html").exists()

    def test_ctrl_c_outside_the_runs_leaves_without_a_traceback(
        self, tmp_path, capsys, monkeypatch
    ):
        def interrupted(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr(options, "check_env", interrupted)
        assert self.call(tmp_path) == 130
        assert capsys.readouterr().err == "compare: interrupted\n"

    @pytest.mark.parametrize(
        ("flag", "memory"), [("--memoryless", "none"), ("--with-memory", "recurrent")]
    )
    def test_an_arm_of_ones_own_takes_part_once_its_memory_is_known(
        self, tmp_path, capsys, pages, flag, memory
    ):
        arguments = ["--arms", "lstm", "arms_of_users:a2c", "--seeds", str(MIN_RUNS)]
        assert self.call(tmp_path / "1", *arguments) == 0
        out = capsys.readouterr().out
        assert "arms_of_users:a2c takes no part in the verdict unless --memoryless or" in out
        assert self.call(tmp_path / "2", *arguments, flag, "arms_of_users:a2c") == 0
        assert "takes no part" not in capsys.readouterr().out
        kept = [read_kept(tmp_path / name) for name in "12"]
        assert [one.terms.memory for one in kept] == [{}, {"arms_of_users:a2c": memory}]

    def test_an_arm_of_ones_own_that_failed_keeps_nobody_from_the_page(self, tmp_path, capsys):
        arm = "arms_of_users:failing"
        self.engine.of_arm[arm] = Failed("arms_of_users.failing-seed0", "RuntimeError: no\n")
        assert self.call(tmp_path, "--arms", "lstm", arm, "--memoryless", arm) == 1
        assert "Written: " in capsys.readouterr().out


class TestSpecs:
    def test_seed_by_seed_with_each_arms_own_recipe(self):
        made = specs("--arms", "lstm", "mlp", "--seeds", "2", "--n-timesteps", "2e3")
        assert [one.name for one in made] == ["lstm-seed0", "mlp-seed0", "lstm-seed1", "mlp-seed1"]
        assert {one.total_timesteps for one in made} == {2000}
        recipe = recipe_for("lstm", FLICKERING)
        assert made[0].recipe == dataclasses.replace(recipe, n_timesteps=2000)
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

    def test_matched_gives_an_arm_of_ones_own_what_its_factory_takes(self, capsys):
        arms = ["arms_of_users:a2c", "arms_of_users:dqn", "arms_of_users:takes_some"]
        shared = matched_recipe_for("mlp", FLICKERING).as_mapping()
        every, none, some = specs(
            "--arms", *arms, "--matched", "--memoryless", *arms
        )  # fmt: skip
        assert {**every.recipe.as_mapping()} == shared
        assert none.recipe.hyperparameters == {}
        assert none.recipe.normalize == shared["normalize"]
        assert some.recipe.hyperparameters == {
            key: shared[key] for key in ("n_steps", "policy_kwargs")
        }
        (recurrent,) = specs("--arms", arms[2], "--matched", "--with-memory", arms[2])
        network = matched_recipe_for("lstm", FLICKERING).hyperparameters["policy_kwargs"]
        assert recurrent.recipe.hyperparameters["policy_kwargs"] == network
        (unknown,) = specs("--arms", arms[2], "--matched")
        assert unknown.recipe.hyperparameters.keys() == {"n_steps"}
        args = compare.parser().parse_args(["--arms", "mlp", *arms, "--matched", "--out", "x"])
        lines = options.notes_on_unmatched_keys(args)
        assert len(lines) == 2
        assert lines[1] == (
            "arms_of_users:takes_some takes no batch_size, ent_coef, gae_lambda, gamma, "
            "learning_rate, n_epochs: it is matched in the rest only."
        )

    def test_values_may_be_spelled_as_yaml_does(self):
        lstm, mlp = specs("--hyperparams", "normalize:false", "mlp.normalize:true",
                          "lstm.target_kl:null")  # fmt: skip
        assert (lstm.recipe.normalize, mlp.recipe.normalize) == (None, {})
        assert lstm.recipe.hyperparameters["target_kl"] is None

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
        why = "Mine-v0 is no id of thrust_pomdp"
        assert found["provenance"]["recipes"] == f"none tuned for this task: {why}"
        assert why in (out / "report.html").read_text()
        assert f"general ones, none was tuned for this environment: {why}." in done.stdout
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

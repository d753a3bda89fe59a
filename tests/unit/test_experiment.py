"""The comparison: streams, recipes, the runner's promises, the table and the picture."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3 import PPO

from thrust_pomdp import RecurrentPPO
from thrust_pomdp.experiment import report
from thrust_pomdp.experiment.recipes import RECIPES, recipe_for
from thrust_pomdp.experiment.runner import Runner, load_result, save_result
from thrust_pomdp.experiment.training import RunResult, RunSpec, make_model, make_training_env, run
from thrust_pomdp.reference import LADDER

ROOT = Path(__file__).parents[2]
TINY = {"n_timesteps": 2048, "deterministic_episodes": 3, "stochastic_episodes": 4}


def spec(arm="lstm", seed=0, **kwargs) -> RunSpec:
    return RunSpec(arm, "FlickeringCartPole-v0", seed, **{**TINY, **kwargs})


def result(arm="lstm", seed=0, **kwargs) -> RunResult:
    values = {
        "spec": dataclasses.asdict(spec(arm, seed)),
        "final": 100.0 + seed,
        "best": 200.0 + seed,
        "deterministic": [300.0, 302.0],
        "stochastic": [400.0],
        "timesteps": 2048,
        "seconds": 1.5,
        "curve": [(1024, 50.0), (2048, 100.0)],
    }
    return RunResult(**{**values, **kwargs})


class TestStreams:
    def frames(self, arm: str, seed: int, n_steps: int = 60) -> list[list[bool]]:
        """Blank flags by environment and frame of a stretch of training with the arm's actions.

        An episode's end takes two frames in one step, the final one and the next one's first.
        """
        env = make_training_env(spec(arm, seed, env_kwargs={"flicker_prob": 0.5}))
        model = make_model(spec(arm, seed), env)  # seeds the environments, as training does
        model._setup_learn(1)
        rng = np.random.default_rng(len(arm))
        frames = [[bool((obs == 0).all())] for obs in model._last_obs]
        for _ in range(n_steps):
            obs, _, dones, infos = env.step(rng.integers(0, 2, env.num_envs))
            for idx, of_env in enumerate(frames):
                if dones[idx]:
                    of_env.append(infos[idx]["blanked"])
                of_env.append(bool((obs[idx] == 0).all()))
        return [of_env[:n_steps] for of_env in frames]

    def test_two_arms_see_the_same_blanking_whatever_they_do(self):
        first, second = self.frames("lstm", 0), self.frames("mlp", 0)
        assert first == second
        assert len({tuple(of_env) for of_env in first}) == len(first)  # each env its own

    def test_runs_of_different_numbers_see_different_ones(self):
        assert self.frames("lstm", 0) != self.frames("lstm", 1)

    def test_no_seed_is_used_twice_between_runs_or_for_training_and_evaluation(self):
        used = []
        for seed in range(10):
            one = spec(seed=seed)
            used += [one.training_seed + env for env in range(64)]
            used += [one.evaluation_seed + env for env in range(100)]
        assert len(set(used)) == len(used)


class TestRecipes:
    @pytest.mark.parametrize("arm", RECIPES)
    @pytest.mark.parametrize(
        "env_id",
        ["MaskedCartPole-v0", "thrust_pomdp:BurstFlickeringCartPole-v0", "CartPole-v1"],
    )
    def test_every_arm_has_one_for_every_environment_and_its_arguments_are_taken(self, arm, env_id):
        one = RunSpec(arm, env_id, 0)
        model = make_model(one, make_training_env(one))
        assert isinstance(model, {"lstm": RecurrentPPO, "mlp": PPO}[arm])
        assert model.n_envs == one.recipe.n_envs

    def test_a_prefix_does_not_hide_the_recipe(self):
        assert recipe_for("lstm", "thrust_pomdp:MaskedCartPole-v0") is recipe_for(
            "lstm", "MaskedCartPole-v0"
        )

    def test_an_unknown_arm_is_named(self):
        with pytest.raises(ValueError, match="arm must be one of .* got 'gru'"):
            recipe_for("gru", "CartPole-v1")

    def test_the_learning_rate_falls_to_its_end(self):
        one = spec()
        model = make_model(one, make_training_env(one))
        start, end = one.recipe.learning_rate
        assert (model.lr_schedule(1.0), model.lr_schedule(0.0)) == (start, end)


class TestRun:
    def test_gives_raw_returns_and_is_repeatable(self):
        progress = []
        first, second = run(spec(), progress.append), run(spec())
        assert first.timesteps == 2048
        assert progress[-1] == 2048
        # +1 a step, although the learner sees rewards scaled by .02.
        assert all(value >= 1 and value == int(value) for value in first.deterministic)
        assert len(first.deterministic) == 3
        assert len(first.stochastic) == 4
        for name in ("final", "best", "deterministic", "stochastic", "curve"):
            assert getattr(first, name) == getattr(second, name), name


class TestRunner:
    def test_finished_runs_are_not_repeated(self, tmp_path, capsys):
        specs = [spec(arm) for arm in ("lstm", "mlp")]
        results = Runner(specs, tmp_path, jobs=2).run()
        assert [r.spec["arm"] for r in results] == ["lstm", "mlp"]
        times = [path.stat().st_mtime_ns for path in sorted((tmp_path / "runs").iterdir())]
        again = Runner(specs, tmp_path, jobs=2).run()
        assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "runs").iterdir())] == times
        assert [r.deterministic for r in again] == [r.deterministic for r in results]
        assert "finished before" in capsys.readouterr().out

    def test_a_folder_made_with_other_settings_is_refused_with_the_difference(self, tmp_path):
        (tmp_path / "runs").mkdir()
        save_result(result(), tmp_path / "runs" / "lstm-seed0.json")
        Runner([spec()], tmp_path, jobs=1)
        with pytest.raises(ValueError, match="made with n_timesteps=2048, not 4096"):
            Runner([spec(n_timesteps=4096)], tmp_path, jobs=1)

    def test_a_run_that_fails_is_recorded_and_the_others_go_on(self, tmp_path):
        failing = spec("mlp", env_kwargs={"flicker_prob": 2.0})
        runner = Runner([failing, spec()], tmp_path, jobs=1)
        assert [r.spec["arm"] for r in runner.run()] == ["lstm"]
        assert runner.failed() == ["mlp-seed0"]
        assert "flicker_prob must be" in (tmp_path / "runs" / "mlp-seed0.error.txt").read_text()

    def test_results_survive_their_file(self, tmp_path):
        save_result(result(), tmp_path / "one.json")
        assert json.loads((tmp_path / "one.json").read_text())["final"] == 100.0
        loaded = load_result(tmp_path / "one.json")
        assert report.rows([loaded]) == report.rows([result()])
        assert os.listdir(tmp_path) == ["one.json"]

    def test_needs_a_process(self, tmp_path):
        with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
            Runner([spec()], tmp_path, jobs=0)


class TestReport:
    RESULTS = [result("lstm", 0), result("lstm", 1), result("mlp", 0)]

    def test_rows_by_hand(self):
        assert report.rows(self.RESULTS) == [
            ("lstm", "0", "100.0", "200.0", "400.0", "301.0", "2048", "1.5"),
            ("lstm", "1", "101.0", "201.0", "400.0", "301.0", "2048", "1.5"),
            ("lstm", "mean", "100.5", "200.5", "400.0", "301.0", "2048", "1.5"),
            ("mlp", "0", "100.0", "200.0", "400.0", "301.0", "2048", "1.5"),
        ]

    def test_the_table_stands_beside_the_ladder(self):
        text = report.table(self.RESULTS)
        assert "FlickeringCartPole-v0: mean return per episode" in text
        best_memoryless = LADDER["FlickeringCartPole-v0"][1].mean
        assert f"best memoryless found   {best_memoryless:6.4g}  best found" in text

    def test_the_ladder_holds_for_its_arguments_only(self):
        other = dataclasses.asdict(spec(env_kwargs={"flicker_prob": 0.3}))
        text = report.table([result(spec=other)])
        assert "flicker_prob=0.3" in text
        assert "memoryless found" not in text

    def test_csv_files(self, tmp_path):
        report.write_csv(self.RESULTS, tmp_path)
        with (tmp_path / "summary.csv").open() as file:
            summary = list(csv.DictReader(file))
        assert [(row["arm"], row["seed"]) for row in summary] == [
            ("lstm", "0"), ("lstm", "1"), ("mlp", "0"),
        ]  # fmt: skip
        with (tmp_path / "curves.csv").open() as file:
            curves = list(csv.DictReader(file))
        assert len(curves) == 6
        assert curves[1] == {
            "arm": "lstm", "seed": "0", "timesteps": "2048", "mean_return": "100.00"
        }  # fmt: skip

    def test_the_picture_needs_no_ladder(self, tmp_path):
        other = dataclasses.asdict(spec(env_kwargs={"flicker_prob": 0.3}))
        report.plot([result(spec=other)], tmp_path / "curves.png")
        assert (tmp_path / "curves.png").exists()

    def test_the_picture_shows_every_arm_and_rung(self, tmp_path, monkeypatch):
        from matplotlib.figure import Figure

        figures = []
        savefig = Figure.savefig
        monkeypatch.setattr(
            Figure, "savefig", lambda self, path: (figures.append(self), savefig(self, path))
        )
        report.plot(self.RESULTS, tmp_path / "curves.png")
        assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
        (axes,) = figures[0].axes
        assert len(axes.lines) == 2 + 5
        (legend,) = figures[0].legends
        labels = [text.get_text() for text in legend.get_texts()]
        assert labels == ["LSTM (RecurrentPPO)", "memoryless (SB3 PPO)"]


class TestCompareScript:
    def call(self, *arguments: str, **kwargs) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "compare.py"), *arguments],
            capture_output=True, text=True, timeout=300, **kwargs,
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--env", "FlickeringCartpole-v0"], "Did you mean"),
            (["--env-kwargs", "flicker_prob:1.5"], "flicker_prob must be a probability"),
            (["--env-kwargs", "flicker_prob=1.5"], "expected name:value"),
            (["--arms", "gru"], "invalid choice"),
            (["--seeds", "0"], "must be at least 1"),
            (["--n-timesteps", "-1"], "must be at least 1"),
        ],
    )
    def test_bad_arguments_exit_with_2_and_a_message(self, arguments, message, tmp_path):
        done = self.call(*arguments, "--out", str(tmp_path))
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr

    def test_an_interrupt_keeps_what_is_finished(self, tmp_path):
        (tmp_path / "runs").mkdir()
        save_result(result("mlp"), tmp_path / "runs" / "mlp-seed0.json")
        arguments = ["--arms", "mlp", "lstm", "--n-timesteps", "2048", "--eval-episodes", "3", "4"]
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "compare.py"), *arguments,
             "--out", str(tmp_path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert "finished before" in process.stdout.readline()
        time.sleep(1.0)  # the other run is starting
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does
        out, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "mlp" in out
        assert "No result: lstm-seed0" in err
        assert "Traceback" not in err
        assert (tmp_path / "summary.csv").read_text().count("\n") == 2

"""Sweeps over environment parameters: points, means, files and pictures."""

from __future__ import annotations

import csv
import dataclasses
import doctest
import math
import os
import shutil

import gymnasium as gym
import numpy as np
import pytest
from instant_engine import InstantEngine

from thrust_pomdp import __main__ as program
from thrust_pomdp.experiment import sweeps
from thrust_pomdp.experiment.commands import sweep
from thrust_pomdp.experiment.folder import ComparisonFolder
from thrust_pomdp.experiment.runs import RunSpec
from thrust_pomdp.experiment.sweeps import Cell
from thrust_pomdp.experiment.training import Training, evaluate

GRID = {"flicker_prob": [0.25, 0.75], "burst_len": [None, 2]}


def found() -> list[Cell]:
    """Two runs of one arm and one of another; there is no burst of 2 at p = .75."""
    nothing = (math.nan, math.nan)
    values = {("lstm", 0): 100.0, ("lstm", 1): 200.0, ("mlp", 0): 50.0}
    return [
        Cell(
            arm,
            seed,
            point,
            *(nothing if point == sweeps.grid_points(GRID)[3] else (mean, mean / 2)),
        )
        for (arm, seed), mean in values.items()
        for point in sweeps.grid_points(GRID)
    ]


def read(path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


class TestGrid:
    def test_the_examples_in_the_docstrings_run(self):
        result = doctest.testmod(sweeps)
        assert (result.attempted, result.failed) == (2, 0)

    @pytest.mark.parametrize(
        ("grid", "message"),
        [
            ({}, "grid must have one or two parameters, got none"),
            ({"a": [1], "b": [1], "c": [1]}, "grid must have one or two parameters, got a, b, c"),
            ({"a": []}, r"grid needs different values of a, got \[\]"),
            ({"a": [1, 2, 1]}, r"grid needs different values of a, got \[1, 2, 1\]"),
        ],
    )
    def test_what_is_none_is_refused(self, grid, message):
        with pytest.raises(ValueError, match=message):
            sweeps.grid_points(grid)

    def test_a_label_is_a_name_of_a_file(self):
        assert sweeps.point_label({"path": "../a b"}) == "path=.._a_b"


class TestMeans:
    def test_of_an_arm_over_its_runs_by_hand(self):
        table = sweeps.mean_table(found(), "lstm", GRID, "most likely")
        np.testing.assert_array_equal(table, [[150.0, 150.0], [150.0, math.nan]])
        table = sweeps.mean_table(found(), "mlp", GRID, "sampled")
        np.testing.assert_array_equal(table, [[25.0, 25.0], [25.0, math.nan]])

    def test_one_parameter_is_a_column(self):
        one = [Cell("mlp", 0, {"p": p}, p, p) for p in (1, 2, 3)]
        assert sweeps.mean_table(one, "mlp", {"p": [3, 1, 2]}, "sampled").tolist() == [
            [3],
            [1],
            [2],
        ]

    def test_csv(self, tmp_path):
        sweeps.write_csv(found(), tmp_path / "sweep.csv")
        rows = read(tmp_path / "sweep.csv")
        assert len(rows) == 12
        assert rows[1] == {
            "arm": "lstm", "seed": "0", "flicker_prob": "0.25", "burst_len": "2",
            "most_likely": "100.00", "sampled": "50.00",
        }  # fmt: skip
        assert (rows[3]["burst_len"], rows[3]["most_likely"]) == ("2", "")
        assert rows[0]["burst_len"] == "None"


class TestHeatMap:
    @pytest.fixture
    def figure(self, monkeypatch):
        from matplotlib.figure import Figure

        figures = []
        savefig = Figure.savefig
        monkeypatch.setattr(
            Figure, "savefig", lambda self, *a, **k: (figures.append(self), savefig(self, *a, **k))
        )
        return figures

    def test_a_panel_for_each_arm_with_its_means_and_a_frame(self, figure, tmp_path):
        path = tmp_path / "map.png"
        trained_at = {"flicker_prob": 0.25}  # and no bursts
        sweeps.heat_map(found(), GRID, "most likely", "here", path, trained_at)
        assert path.read_bytes().startswith(b"\x89PNG")
        first, second, _bar = figure[0].axes
        assert [text.get_text() for text in first.texts] == ["150", "150", "150", ""]
        assert [text.get_text() for text in second.texts] == ["50", "50", "50", ""]
        assert first.get_title() == "LSTM (RecurrentPPO)"
        assert [text.get_text() for text in first.get_yticklabels()] == ["0.25", "0.75"]
        assert [text.get_text() for text in first.get_xticklabels()] == ["None", "2"]
        (frame,) = first.patches
        assert frame.get_xy() == (-0.5, -0.5)
        title = figure[0].get_suptitle()
        assert title.startswith("here, most likely actions, mean of 2 runs\nframed: where they")

    def test_nothing_at_all_can_be_drawn(self, figure, tmp_path):
        cells = [Cell("mlp", 0, {"p": 1}, math.nan, math.nan)]
        sweeps.heat_map(cells, {"p": [1]}, "sampled", "here", tmp_path / "map.png", {"p": 2})
        assert not figure[0].axes[0].patches
        assert figure[0].get_suptitle() == "here, sampled actions, 1 run"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A folder with one finished run."""
    path = tmp_path_factory.mktemp("comparison")
    recipe = {"n_timesteps": 256, "n_envs": 2, "n_steps": 64, "batch_size": 64, "n_epochs": 1,
              "normalize": {"norm_reward": False}}  # fmt: skip
    spec = RunSpec("mlp", "FlickeringCartPole-v0", 0, {}, None, 4, 5, hyperparams=recipe)
    folder, training = ComparisonFolder(path), Training(spec)
    with folder.opened([spec]):
        folder.write(spec.name, training.run(), training.files())
    return path, spec, training


class TestEvaluation:
    def call(self, comparison, out, *arguments: str) -> int:
        return program.main(
            ["sweep", "evaluate", str(comparison[0]), "--out", str(out), "--jobs", "1",
             "--eval-episodes", "4", "5", "--grid", *arguments]
        )  # fmt: skip

    def test_a_point_is_the_evaluation_there_and_impossible_ones_stay_empty(
        self, comparison, tmp_path, capsys
    ):
        grid = ("flicker_prob:0.5,0.75", "burst_len:None,2")
        assert self.call(comparison, tmp_path, *grid) == 0
        rows = read(tmp_path / "sweep.csv")
        _, spec, training = comparison
        here = evaluate(spec, training.model, 4, deterministic=True)
        assert rows[0]["most_likely"] == f"{np.mean(here):.2f}"
        # At p = .5 bursts of 2 are none: independent frames.
        assert rows[1]["most_likely"] == rows[0]["most_likely"]
        assert rows[1]["sampled"] == rows[0]["sampled"]
        assert rows[2]["most_likely"] != rows[0]["most_likely"]
        assert rows[3]["most_likely"] == ""
        out = capsys.readouterr().out
        assert "flicker_prob=0.75-burst_len=2: left out" in out
        assert {"sweep-most-likely.png", "sweep-sampled.png"} <= set(os.listdir(tmp_path))
        # Again: nothing is played again, and another grid is refused.
        run = tmp_path / "runs" / "mlp-seed0.json"
        before = run.stat().st_mtime_ns
        assert self.call(comparison, tmp_path, *grid) == 0
        assert run.stat().st_mtime_ns == before
        assert self.call(comparison, tmp_path, "flicker_prob:0.5") == 2
        assert "was made with grid=" in capsys.readouterr().err

    def test_means_of_a_model_that_was_trained_anew_are_not_shown_for_it(
        self, comparison, tmp_path, capsys
    ):
        there, out = tmp_path / "there", tmp_path / "out"
        shutil.copytree(comparison[0], there)
        assert self.call((there,), out, "flicker_prob:0.5") == 0
        assert self.call((there,), out, "flicker_prob:0.5") == 0
        model = there / "runs" / "mlp-seed0.safetensors"
        model.write_bytes(model.read_bytes() + b"of another training")
        capsys.readouterr()
        assert self.call((there,), out, "flicker_prob:0.5") == 2
        assert "was made with the model of mlp-seed0 '" in capsys.readouterr().err

    def test_a_file_that_holds_no_means_is_named(self, comparison, tmp_path, capsys):
        assert self.call(comparison, tmp_path, "flicker_prob:0.5") == 0
        path = tmp_path / "runs" / "mlp-seed0.json"
        for content in ("{", "[]", "[[1, 2], [3, 4]]", "3", '[["a", "b"]]'):
            path.write_text(content)
            assert self.call(comparison, tmp_path, "flicker_prob:0.5") == 2
            assert "mlp-seed0.json does not hold means of 1 points" in capsys.readouterr().err

    def test_an_environment_of_another_module(self, tmp_path, monkeypatch, capsys):
        env_id = "awkward_envs:Awkward-v0"
        recipe = {"n_timesteps": 64, "n_envs": 2, "n_steps": 32, "batch_size": 64, "n_epochs": 1}
        spec = RunSpec("mlp", env_id, 0, {"length": 3}, None, 2, 2, hyperparams=recipe)
        folder, training = ComparisonFolder(tmp_path / "there"), Training(spec)
        with folder.opened([spec]):
            folder.write(spec.name, training.run(), training.files())
        found = tmp_path / "found"
        assert self.call((tmp_path / "there",), found, "length:3,4") == 0
        rows = read(found / "sweep.csv")
        assert sweep._trained_at(spec) == {"length": 3, "reward": 1.0}
        assert [(row["length"], row["sampled"]) for row in rows] == [("3", "3.00"), ("4", "4.00")]
        # Something else gets the id: means are of what had it.
        other = dataclasses.replace(gym.spec("Awkward-v0"), max_episode_steps=2)
        monkeypatch.setitem(gym.registry, "Awkward-v0", other)
        assert self.call((tmp_path / "there",), found, "length:3,4") == 2
        assert "'max_episode_steps': None, " in capsys.readouterr().err
        # Earlier versions did not note what had it.
        marker = found / "sweep.json"
        marker.write_text(marker.read_text().replace('"environment": ', '"another": '))
        assert self.call((tmp_path / "there",), found, "length:3,4") == 0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--grid", "flicker_prob"], "expected name:value,value,..., got 'flicker_prob'"),
            (["--grid", "flick:1"], "there is no environment at any point of the grid"),
            (["--grid", "a:1", "b:1", "c:1"], "grid must have one or two parameters"),
            (["--grid", "flicker_prob:.5", "--arms", "lstm"], "has runs of mlp, none of lstm"),
        ],
    )
    def test_bad_input_is_told(self, comparison, tmp_path, capsys, arguments, message):
        folder = str(comparison[0])
        try:
            code = program.main(
                ["sweep", "evaluate", folder, "--out", str(tmp_path / "out"), *arguments]
            )
        except SystemExit as left:
            code = left.code
        assert code == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()

    def test_a_folder_that_is_none_of_a_comparison(self, tmp_path, capsys):
        arguments = ["sweep", "evaluate", str(tmp_path), "--grid", "a:1", "--out", "x"]
        assert program.main(arguments) == 2
        assert "is no folder of a comparison" in capsys.readouterr().err


class TestTraining:
    def test_every_arm_is_trained_at_every_point(self, tmp_path, capsys, monkeypatch):
        from thrust_pomdp.experiment.commands import options

        engine = InstantEngine()
        monkeypatch.setattr(options, "make_engine", lambda args: engine)
        arguments = ["sweep", "train", "--grid", "flicker_prob:0.25,0.75", "burst_len:1.5,4",
                     "--seeds", "2", "--out", str(tmp_path)]  # fmt: skip
        assert program.main(arguments) == 0
        assert len(engine.done) == 2 * 2 * 3  # no bursts of 1.5 at p = .75
        assert engine.done[0] == "lstm-seed0-flicker_prob=0.25-burst_len=1.5"
        result = ComparisonFolder(tmp_path).load(engine.done[0])
        assert result.spec["env_kwargs"] == {"flicker_prob": 0.25, "burst_len": 1.5}
        rows = read(tmp_path / "sweep.csv")
        (tmp_path / "sweep.csv").unlink()
        assert len(rows) == 2 * 2 * 4
        assert [row["most_likely"] for row in rows[:4]] == ["302.00", "302.00", "", "302.00"]
        with monkeypatch.context() as full:
            full.setattr(sweeps, "write_csv", lambda *given: os.rename("/nowhere", "/here"))
            assert program.main(arguments) == 1
        err = capsys.readouterr().err
        assert f"all results are saved in {tmp_path / 'runs'}, but sweep.csv cannot be" in err
        assert program.main(arguments) == 0
        assert (tmp_path / "sweep.csv").exists()
        assert len(engine.done) == 12

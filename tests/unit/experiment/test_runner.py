"""The runner's promises: what is finished is kept, whatever happens, and nothing is mixed up."""

from __future__ import annotations

import copy
import dataclasses
import errno
import io
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import WrapperSpec
from gymnasium.spaces import Box, Discrete
from instant_engine import TINY, InstantEngine, result, spec

from thrust_pomdp.experiment import folder as folders
from thrust_pomdp.experiment import runner as runners
from thrust_pomdp.experiment.engines import (
    Failed,
)
from thrust_pomdp.experiment.folder import ComparisonFolder
from thrust_pomdp.experiment.recipes import recipe_for
from thrust_pomdp.experiment.report import RULE
from thrust_pomdp.experiment.runner import Runner, load_result, save_result
from thrust_pomdp.experiment.runs import RunResult, RunSpec

ROOT = Path(__file__).parents[3]


def run(specs, path, **of_arm) -> tuple[list[RunResult], InstantEngine, Runner]:
    engine = InstantEngine(**of_arm)
    runner = Runner(specs, path, engine=engine)
    return runner.run(), engine, runner


class TestFinishedRuns:
    def test_are_not_repeated_and_come_in_order(self, tmp_path, capsys):
        specs = [spec(arm) for arm in ("lstm", "mlp")]
        run(specs[1:], tmp_path)
        found, engine, _ = run(specs, tmp_path)
        assert engine.done == ["lstm-seed0"]
        assert [one.spec["arm"] for one in found] == ["lstm", "mlp"]
        assert f"mlp-seed0: finished before, in {tmp_path}" in capsys.readouterr().out

    def test_stand_beside_their_model_and_course(self, tmp_path):
        run([spec()], tmp_path)
        assert (tmp_path / "runs" / "lstm-seed0.zip").read_bytes() == b"model"
        course = (tmp_path / "runs" / "lstm-seed0.csv").read_text()
        assert course.splitlines()[1:] == ["1024,50.00,,,", "2048,100.00,,,"]
        assert sorted(os.listdir(tmp_path)) == [".lock", "comparison.json", "runs"]

    def test_a_run_counts_as_finished_only_once_all_of_it_is_there(self, tmp_path, monkeypatch):
        written = []
        whole = folders.write_atomically
        monkeypatch.setattr(
            folders, "write_atomically", lambda path, _: (written.append(path.name), whole(path, _))
        )
        run([spec()], tmp_path)
        assert written[-1] == "lstm-seed0.json"

    def test_a_file_is_on_the_disk_before_it_has_its_name(self, tmp_path, monkeypatch):
        """A power cut must not leave a name without its content."""
        done = []
        sync, replace = os.fsync, os.replace

        def synced(descriptor):
            done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            sync(descriptor)

        def replaced(source, target):
            done.append(str(target))
            replace(source, target)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", replaced)
        folders.write_atomically(tmp_path / "one.json", b"content")
        assert done[0].startswith(str(tmp_path / "one.json."))
        assert done[1:] == [str(tmp_path / "one.json"), str(tmp_path)]

    def test_the_rule_of_the_verdict_is_there_before_them_and_stays(self, tmp_path):
        marker = tmp_path / "comparison.json"

        class Looks(InstantEngine):
            def run(self, tasks):
                assert json.loads(marker.read_text())["rule"] == list(RULE)
                yield from super().run(tasks)

        Runner([spec()], tmp_path, engine=Looks()).run()
        content = json.loads(marker.read_text())
        assert content["verdict"]["finished_runs_when_written"] == 0
        marker.write_text(json.dumps({**content, "rule": ["that of an earlier version"]}))
        run([spec("mlp")], tmp_path)
        content = json.loads(marker.read_text())
        assert content["rule"] == ["that of an earlier version"]
        assert content["settings"]["recipes"].keys() == {"lstm", "mlp"}

    def test_leftovers_of_a_killed_writer_are_cleared_away(self, tmp_path):
        run([spec()], tmp_path)
        (tmp_path / "runs" / "mlp-seed0.json.x.unfinished").write_text("half")
        run([spec(), spec("mlp")], tmp_path)
        assert not list(tmp_path.rglob("*.unfinished"))

    def test_survive_their_file(self, tmp_path):
        save_result(result(spec()), tmp_path / "one.json")
        loaded = load_result(tmp_path / "one.json")
        assert dataclasses.asdict(loaded) == json.loads(json.dumps(vars(result(spec()))))
        assert os.listdir(tmp_path) == ["one.json"]

    def test_a_spoilt_file_is_named(self, tmp_path):
        run([spec()], tmp_path)
        path = tmp_path / "runs" / "lstm-seed0.json"
        path.write_text(path.read_text()[:100])
        with pytest.raises(ValueError, match=r"lstm-seed0\.json does not hold the result of a run"):
            Runner([spec()], tmp_path)

    def test_those_of_the_first_version_are_taken(self, tmp_path):
        path = tmp_path / "runs" / "lstm-seed0.json"
        path.parent.mkdir()
        old = {key: value for key, value in vars(result(spec())).items() if key != "recipe"}
        for key in ("evaluations", "provenance"):
            old.pop(key)
        for key in ("evaluations", "hyperparams", "label"):
            old["spec"].pop(key)
        path.write_text(json.dumps(old))
        assert run([spec()], tmp_path)[1].done == []


class TestFailedRuns:
    FAILED = Failed("mlp-seed0", "Traceback ...\nValueError: no such thing\n")

    def test_are_recorded_and_the_others_go_on(self, tmp_path, capsys):
        found, _, runner = run([spec("mlp"), spec()], tmp_path, mlp=self.FAILED)
        assert [one.spec["arm"] for one in found] == ["lstm"]
        assert runner.failed() == ["mlp-seed0"]
        assert (tmp_path / "runs" / "mlp-seed0.error.txt").read_text() == self.FAILED.reason
        assert "mlp-seed0: failed (ValueError: no such thing), see" in capsys.readouterr().out

    def test_the_line_says_what_happened_and_not_how_its_message_ends(self, tmp_path, capsys):
        reason = (
            'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    f(\n    ^^^^\n'
            "ValueError: got invalid values:\n  tensor([[nan, nan],\n        [nan, nan]])\n"
        )
        run([spec("mlp")], tmp_path, mlp=Failed("mlp-seed0", reason))
        assert "mlp-seed0: failed (ValueError: got invalid values:), see" in capsys.readouterr().out

    def test_are_tried_again_the_next_time(self, tmp_path):
        run([spec("mlp")], tmp_path, mlp=self.FAILED)
        _, engine, runner = run([spec("mlp")], tmp_path)
        assert engine.done == ["mlp-seed0"]
        assert runner.failed() == []
        assert not (tmp_path / "runs" / "mlp-seed0.error.txt").exists()

    def test_an_interrupt_keeps_what_is_finished(self, tmp_path, capsys):
        found, _, runner = run([spec(), spec("mlp")], tmp_path, mlp=KeyboardInterrupt())
        assert [one.spec["arm"] for one in found] == ["lstm"]
        assert runner.failed() == ["mlp-seed0"]
        assert "Interrupted" in capsys.readouterr().out


class TestNoRoomOnTheDisk:
    """A finished run is hours of work: it waits for room."""

    def full(self, monkeypatch, times: int) -> None:
        left = [times]
        replace = os.replace

        def failing(source, target):
            if str(target).endswith("seed0.json") and left[0] > 0:
                left[0] -= 1
                raise OSError(errno.ENOSPC, "No space left on device", str(target))
            replace(source, target)

        monkeypatch.setattr(os, "replace", failing)

    def test_a_result_is_tried_again_until_it_can_be_written(self, tmp_path, monkeypatch, capsys):
        self.full(monkeypatch, times=5)
        found, _, runner = run([spec(), spec("mlp")], tmp_path)
        assert len(found) == 2
        assert runner.failed() == []
        out = capsys.readouterr().out
        assert out.count("is finished and cannot be saved: [Errno 28] No space left") == 1
        assert not list(tmp_path.rglob("*.unfinished"))

    def test_it_is_said_once_however_the_unfinished_file_is_called(
        self, tmp_path, monkeypatch, capsys
    ):
        left = [5]
        write = ComparisonFolder.write

        def failing(self, name, result, files):
            left[0] -= 1
            if left[0] >= 0:
                raise OSError(errno.ENOSPC, "No space left on device", f"{name}.{left[0]}")
            write(self, name, result, files)

        monkeypatch.setattr(ComparisonFolder, "write", failing)
        assert len(run([spec()], tmp_path)[0]) == 1
        assert capsys.readouterr().out.count("cannot be saved") == 1

    def test_a_folder_that_was_taken_away_meanwhile_is_made_again(self, tmp_path):
        class Takes(InstantEngine):
            def run(self, tasks):
                shutil.rmtree(tmp_path / "out")
                yield from super().run(tasks)

        found = Runner([spec()], tmp_path / "out", engine=Takes()).run()
        assert [one.spec["arm"] for one in found] == ["lstm"]

    def test_whoever_gives_up_finds_it_elsewhere(self, tmp_path, monkeypatch, capsys):
        self.full(monkeypatch, times=2)
        monkeypatch.setattr(runners.tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(runners.ProgressBars, "wait", lambda self: self.interrupt())
        monkeypatch.setattr(
            runners.ProgressBars, "interrupt",
            lambda self: (_ for _ in ()).throw(KeyboardInterrupt),
            raising=False,
        )  # fmt: skip
        save = runners.save_result

        def elsewhere(one, path):
            assert "comparison" not in str(path)
            save(one, path.with_name("saved.json"))

        monkeypatch.setattr(runners, "save_result", elsewhere)
        _, _, runner = run([spec()], tmp_path / "comparison")
        assert runner.failed() == ["lstm-seed0"]
        assert "lstm-seed0: saved without its model as" in capsys.readouterr().out
        assert [load_result(path).final for path in tmp_path.rglob("saved.json")] == [100.0]

    def test_a_reason_that_cannot_be_written_is_printed(self, tmp_path, monkeypatch, capsys):
        def failing(self, name, reason):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(ComparisonFolder, "write_error", failing)
        run([spec("mlp")], tmp_path, mlp=TestFailedRuns.FAILED)
        assert "Traceback ...\nValueError: no such thing" in capsys.readouterr().out


class TestNobodyListens:
    """Output that cannot be written ends no training."""

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EPIPE])
    def test_all_runs_are_done_and_kept(self, tmp_path, monkeypatch, code):
        class Deaf(io.StringIO):
            def write(self, text):
                raise OSError(code, os.strerror(code))

        monkeypatch.setattr("sys.stdout", Deaf())
        specs = [spec(), spec("mlp")]
        for _ in range(2):  # the second time it says that they were finished before
            assert len(run(specs, tmp_path, mlp=TestFailedRuns.FAILED)[0]) == 1

    def test_a_reader_that_has_left_is_told_nothing_more(self):
        code = "from thrust_pomdp.experiment.console import say\nfor _ in range(9): say('x' * 9999)"
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
        )
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait() == 0


class TestWhoseFolder:
    def test_more_seeds_and_arms_may_come_later(self, tmp_path):
        run([spec()], tmp_path)
        run([spec(seed=1), spec("mlp")], tmp_path)
        _, engine, _ = run([spec(), spec(seed=1), spec("mlp")], tmp_path)
        assert engine.done == []
        marker = json.loads((tmp_path / "comparison.json").read_text())
        assert marker["settings"]["recipes"].keys() == {"lstm", "mlp"}

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"n_timesteps": 4096}, "n_timesteps=2048, not 4096"),
            (
                {"env_kwargs": {"flicker_prob": 0.3}},
                r"env_kwargs=\{\}, not \{'flicker_prob': 0.3\}",
            ),
            ({"evaluations": 3}, "evaluations=0, not 3"),
            ({"stochastic_episodes": 5}, "stochastic_episodes=4, not 5"),
        ],
    )
    @pytest.mark.parametrize("arm", ["lstm", "mlp"])  # one that is there, and a new one
    def test_one_made_with_other_settings_is_refused_with_the_difference(
        self, tmp_path, arm, change, message
    ):
        run([spec()], tmp_path)
        with pytest.raises(ValueError, match=f"was made with {message}: choose another folder"):
            Runner([spec(arm, **change)], tmp_path)

    def test_one_made_with_another_recipe_is_refused_with_the_key(self, tmp_path):
        run([spec()], tmp_path)
        other = {**recipe_for("lstm", spec().env_id).as_mapping(), "n_steps": 64}
        with pytest.raises(ValueError, match="with n_steps in the recipe of lstm: 128, not 64"):
            Runner([spec(seed=1, hyperparams=other)], tmp_path)
        # The same recipe said explicitly is no difference.
        Runner([spec(hyperparams={**other, "n_steps": 128})], tmp_path)

    def test_one_that_is_not_ours_is_refused_and_left_as_it_is(self, tmp_path):
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "thesis.tex").write_text("x")
        with pytest.raises(ValueError, match="is not empty and was not made by a comparison"):
            Runner([spec()], tmp_path)
        (tmp_path / "comparison.json").write_text("{}")
        with pytest.raises(ValueError, match=r"comparison\.json was not written by a comparison"):
            Runner([spec()], tmp_path)
        assert sorted(os.listdir(tmp_path)) == ["comparison.json", "runs"]

    def test_what_a_comparison_killed_at_once_leaves_is_ours(self, tmp_path):
        (tmp_path / "runs").mkdir()
        (tmp_path / ".lock").write_text("12")
        assert len(run([spec()], tmp_path)[0]) == 1

    def test_a_file_and_a_folder_below_one_are_refused(self, tmp_path):
        (tmp_path / "file").write_text("x")
        with pytest.raises(ValueError, match="must be a folder, it is a file"):
            Runner([spec()], tmp_path / "file")
        with pytest.raises(OSError, match="Not a directory"):
            Runner([spec()], tmp_path / "file" / "deeper", engine=InstantEngine()).run()

    def test_two_comparisons_at_the_same_time_are_refused(self, tmp_path):
        first, second = Runner([spec()], tmp_path), Runner([spec()], tmp_path)
        with (
            first.folder.opened([spec()]),
            pytest.raises(ValueError, match=f"in use by another comparison, process {os.getpid()}"),
        ):
            second.run()
        second = Runner([spec()], tmp_path, engine=InstantEngine())
        assert len(second.run()) == 1

    def test_whoever_comes_is_told_which_process_has_it_until_that_is_killed(self, tmp_path):
        code = (
            "import sys, time; from pathlib import Path; "
            "from thrust_pomdp.experiment.results_folder import _locked\n"
            "with _locked(Path(sys.argv[1]), 'comparison'):\n"
            "    print('held', flush=True)\n"
            "    time.sleep(60)"
        )
        (tmp_path / "runs").mkdir()
        command = [sys.executable, "-c", code, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout.readline() == "held\n"
            for _ in range(2):  # who was refused leaves what it says
                with pytest.raises(ValueError, match=f"in use by .*, process {other.pid}:"):
                    Runner([spec()], tmp_path).run()
            other.kill()
            other.wait()
        assert len(Runner([spec()], tmp_path, engine=InstantEngine()).run()) == 1

    def test_two_runs_of_one_name_are_refused(self, tmp_path):
        with pytest.raises(ValueError, match="specs must have different names, got lstm-seed0"):
            Runner([spec(), spec()], tmp_path)


class Walled(gym.Env):
    """An environment of the user's, whose registration changes."""

    def __init__(self, width=3, walls=(1, 2)) -> None:
        self.observation_space, self.action_space = Box(-1, 1, (2,)), Discrete(2)


class Open(Walled):
    pass


class TestAnIdThatStandsForSomethingElse:
    """Results are of what was registered when they came, whatever has the id now."""

    ID = "Walled-v0"

    @pytest.fixture(autouse=True)
    def forget(self):
        yield
        gym.registry.pop(self.ID, None)

    def register(self, entry_point=Walled, **kwargs) -> None:
        gym.registry.pop(self.ID, None)
        gym.register(self.ID, entry_point, **kwargs)

    def run(self, path) -> list[str]:
        spec = RunSpec("lstm", self.ID, 0, **TINY)
        return run([spec], path)[1].done

    WRAPPED = (WrapperSpec("Clip", "gymnasium.wrappers:ClipReward", {"min_reward": 0}),)

    @pytest.mark.parametrize(
        ("then", "now", "message"),
        [
            ({}, {"entry_point": Open}, "entry_point of Walled-v0: '.*:Walled', not '.*:Open'"),
            (
                {"kwargs": {"width": 3}},
                {"kwargs": {"width": 4}},
                r"kwargs of Walled-v0: \{'width': 3\}, not \{'width': 4\}",
            ),
            (
                {"max_episode_steps": 10},
                {"max_episode_steps": 20},
                "max_episode_steps of Walled-v0: 10, not 20",
            ),
            ({}, {"additional_wrappers": WRAPPED}, "wrappers of .*, not .*ClipReward"),
        ],
    )
    def test_is_refused_with_the_difference(self, tmp_path, then, now, message):
        self.register(**then)
        self.run(tmp_path)
        self.register(**now)
        with pytest.raises(ValueError, match=f"was made with {message}"):
            self.run(tmp_path)
        # Another arm is not trained beside the one that is there, whatever the file of the folder.
        mlp = [RunSpec("mlp", self.ID, 0, **TINY)]
        with pytest.raises(ValueError, match=f"was made with {message}"):
            run(mlp, tmp_path)
        marker = tmp_path / "comparison.json"
        marker.write_text(marker.read_text().replace('"environment": ', '"another": '))
        with pytest.raises(ValueError, match=f"lstm-seed0.json was made with {message}"):
            self.run(tmp_path)

    @pytest.mark.parametrize(
        "kwargs",
        [
            {"walls": np.arange(2), "width": np.int64(3)},
            {"walls": (math.nan, math.inf)},
            {"walls": object()},  # told by its class: there is nothing else to compare
            {"walls": lambda: 1},
        ],
    )
    def test_is_recognised_whatever_its_arguments(self, tmp_path, kwargs):
        self.register(kwargs=kwargs)
        assert self.run(tmp_path) == ["lstm-seed0"]
        self.register(kwargs=copy.deepcopy(kwargs))
        assert self.run(tmp_path) == []

    def test_may_be_put_right_as_long_as_there_is_no_result(self, tmp_path):
        self.register()
        specs = [RunSpec("lstm", self.ID, 0, **TINY)]
        failed = Failed("lstm-seed0", "Traceback ...\nValueError: no such thing\n")
        assert run(specs, tmp_path, lstm=failed)[0] == []
        self.register(Open)
        assert self.run(tmp_path) == ["lstm-seed0"]
        self.register()
        with pytest.raises(ValueError, match="'.*:Open', not '.*:Walled'"):
            self.run(tmp_path)

    def test_does_not_matter_to_who_trains_nothing(self, tmp_path):
        self.register()
        self.run(tmp_path)
        self.register(Open)
        assert Runner([], tmp_path, engine=InstantEngine()).run() == []

    def test_is_not_known_to_results_of_earlier_versions(self, tmp_path):
        self.register()
        self.run(tmp_path)
        for path in (tmp_path / "comparison.json", tmp_path / "runs" / "lstm-seed0.json"):
            path.write_text(path.read_text().replace('"environment": ', '"another": '))
        self.register(Open)
        assert self.run(tmp_path) == []

    def test_cannot_be_compared_where_nothing_has_it_now(self, tmp_path):
        self.register()
        self.run(tmp_path)
        gym.registry.pop(self.ID)
        assert self.run(tmp_path) == []
        self.register(Open)  # nor is it forgotten
        with pytest.raises(ValueError, match="'.*:Walled', not '.*:Open'"):
            self.run(tmp_path)

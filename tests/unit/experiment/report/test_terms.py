"""What a verdict goes by is kept with the results, and nothing that is chosen later looks alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from html_outline import outline
from instant_engine import InstantEngine
from synthetic_results import drawn, scored, write

from thrust_pomdp import __main__ as program
from thrust_pomdp.experiment.arms import Memory
from thrust_pomdp.experiment.commands import compare, options, sweep
from thrust_pomdp.experiment.report import page, write_report
from thrust_pomdp.experiment.report.rule import RULE
from thrust_pomdp.experiment.report.terms import Kept, Plan, Terms, read_kept
from thrust_pomdp.experiment.runs import RunSpec, load_result

FLICKERING = "FlickeringCartPole-v0"
OWN = "arms_of_users:a2c"
#: Of the ladder of FlickeringCartPole-v0.
MARGIN, BAR = "23.9", "261.2"


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch):
    """Drawing takes most of the time, and words are there without."""
    monkeypatch.setattr(page, "_draw", lambda about, draw, path: None)


@pytest.fixture(autouse=True)
def instant(monkeypatch):
    """Runs that take no time."""
    engine = InstantEngine()
    monkeypatch.setattr(options, "make_engine", lambda args: engine)
    return engine


def call(*arguments: object) -> int:
    return program.main(list(map(str, arguments)))


def text_of(folder: Path) -> str:
    return " ".join(" ".join(outline(folder / "report.html").text).split())


def kept_in(
    folder: Path,
    margin: float | None = None,
    memory: dict[str, Memory] | None = None,
    finished: int = 0,
    plans: tuple[Plan, ...] = (Plan({"lstm": 5, "mlp": 5}),),
    rule: tuple[str, ...] = RULE,
    measures: dict[str, dict[str, float | None]] | None = None,
) -> Path:
    """Write into a folder what it keeps of its verdict's rule."""
    kept = Kept(Terms(margin, None, memory or {}), rule, measures or {}, finished, plans)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"thrust_pomdp": "comparison", "settings": {}, **kept.as_mapping()}
    (folder / "comparison.json").write_text(json.dumps(content))
    return folder


SCORES = {"lstm": [478.0, 479.0, 480.0, 481.0, 482.0], "mlp": [168.0, 169.0, 170.0, 171.0, 172.0]}
#: Options of ``compare`` that change what is done or said, each with another value.
CHANGES = {
    "env": ["--env", "MaskedCartPole-v0"],
    "env_kwargs": ["--env-kwargs", "flicker_prob:0.25"],
    "arms": ["--arms", "lstm", "mlp", OWN, "gru"],
    "seeds": ["--seeds", "2"],
    "n_timesteps": ["--n-timesteps", "3000"],
    "matched": ["--matched"],
    "recipe": ["--recipe", "mine.yml"],
    "hyperparams": ["--hyperparams", "lstm.gamma:0.9"],
    "memoryless": ["--memoryless", OWN],
    "with_memory": ["--with-memory", OWN],
    "evaluations": ["--evaluations", "3"],
    "eval_episodes": ["--eval-episodes", "7", "8"],
    "margin": ["--margin", "40"],
    "solved": ["--solved", "300"],
    "ranks": ["--ranks", "2"],
    "state_env": ["--arms", "lstm", "mlp", OWN, "state", "--state-env", "CartPole-v1"],
}
#: Those that only say where and how runs are done; ``jobs`` is noted with each run.
ABOUT_RUNNING = {"help", "jobs", "engine", "tensorboard", "out"}


class TestEveryOptionIsInAFile:
    def test_an_option_is_one_or_the_other(self):
        known = {action.dest for action in compare.parser()._actions}
        assert known == CHANGES.keys() | ABOUT_RUNNING

    @pytest.mark.parametrize("option", CHANGES)
    def test_what_changes_the_page_changes_the_folders_file(self, tmp_path, monkeypatch, option):
        monkeypatch.chdir(tmp_path)
        Path("mine.yml").write_text("lstm: {default: {n_timesteps: 7, n_steps: 8}}")
        base = ["compare", "--arms", "lstm", "mlp", OWN]
        for out, more in (("plain", []), ("changed", CHANGES[option])):
            assert call(*base, *more, "--out", out) == 0
        plain, changed = (Path(out, "comparison.json").read_text() for out in ("plain", "changed"))
        assert plain != changed

    def test_how_many_ran_at_the_same_time_is_noted_with_the_run(self, tmp_path, monkeypatch):
        noted = []
        engine = InstantEngine()
        monkeypatch.setattr(options, "make_engine", lambda args: engine)
        run = engine.run
        monkeypatch.setattr(
            engine, "run", lambda jobs: (noted.extend(job.provenance for job in jobs), run(jobs))[1]
        )
        engine.jobs = 3
        assert call("compare", "--arms", "mlp", "--out", tmp_path) == 0
        assert noted[0]["runs_at_the_same_time"] == 3


class TestKept:
    def test_it_is_there_before_the_first_run(self, tmp_path, monkeypatch, instant):
        seen = []
        run = instant.run
        monkeypatch.setattr(
            instant, "run", lambda jobs: (seen.append(read_kept(tmp_path)), run(jobs))[1]
        )
        arguments = ("--margin", 40, "--solved", 300, "--arms", "lstm", OWN, "--memoryless", OWN)
        assert call("compare", *arguments, "--out", tmp_path, "--seeds", 2) == 0
        (kept,) = seen
        assert kept.terms == Terms(40.0, 300.0, {OWN: "none"})
        assert tuple(kept.rule) == RULE
        assert kept.finished == 0
        assert kept.plans == (Plan({"lstm": 2, OWN: 2}),)
        measures = kept.measures[FLICKERING]
        assert f"{measures['margin']:.1f}, {measures['bar']:.1f}" == f"{MARGIN}, {BAR}"

    def test_it_is_said_in_the_terminal_before_the_runs(self, tmp_path, capsys):
        assert call("compare", "--seeds", 5, "--out", tmp_path / "1") == 0
        told = capsys.readouterr().out.partition("lstm-seed0")[0]
        assert f"Margin: {MARGIN}, by the ladder.\nBar: {BAR}, by the ladder." in told
        assert str(tmp_path / "1" / "comparison.json") in told.replace("\n", "")
        assert call("compare", "--seeds", 5, "--out", tmp_path / "2", "--margin", 40) == 0
        assert "Margin: 40.0, given." in capsys.readouterr().out.partition("lstm-seed0")[0]

    @pytest.mark.parametrize("command", ["compare", "report", "add seeds"])
    def test_it_is_used_again_where_nothing_is_said(self, tmp_path, capsys, command):
        base = ["compare", "--arms", "lstm", "mlp", OWN, "--out", tmp_path]
        said = ["--margin", 40, "--solved", 300, "--memoryless", OWN, "--matched"]
        assert call(*base, *said, "--seeds", 5) == 0
        before = read_kept(tmp_path)
        capsys.readouterr()
        again = {
            "compare": [*base, "--matched", "--seeds", 5],
            "add seeds": [*base, "--matched", "--seeds", 6],
            "report": ["report", tmp_path],
        }
        assert call(*again[command]) == 0
        after = read_kept(tmp_path)
        assert (after.terms, after.measures, after.finished) == (before.terms, before.measures, 0)
        rule = "By the rule with margin 40.0 (given) and bar 300.0 (given). Written down before the"
        for told in (capsys.readouterr().out, text_of(tmp_path)):
            assert rule in told
            assert "left out" not in told.lower()

    def test_it_may_change_as_long_as_there_is_no_result(self, tmp_path, instant):
        instant.of_arm |= {"lstm": KeyboardInterrupt()}
        base = ["compare", "--arms", "lstm", "--seeds", 5, "--out", tmp_path]
        assert call(*base, "--margin", 40) == 1
        assert call(*base, "--margin", 50, "--seeds", 6) == 1
        kept = read_kept(tmp_path)
        assert (kept.terms.margin, kept.finished) == (50, 0)
        assert kept.plans == (Plan({"lstm": 6}),)

    @pytest.mark.parametrize(
        ("said", "changed"),
        [
            (["--margin", 50], "--margin 50, where it was 40"),
            (["--solved", 1], "--solved 1, where it was by the rule"),
            (["--with-memory", OWN], f"--with-memory {OWN}, where it was --memoryless"),
            (
                ["--memoryless", "arms_of_users:dqn"],
                "--memoryless arms_of_users:dqn, where it was not said",
            ),
        ],
    )
    def test_a_change_is_refused_once_there_are_results(self, tmp_path, capsys, said, changed):
        arms = ["lstm", OWN, "arms_of_users:dqn"]
        base = ["compare", "--arms", *arms, "--out", tmp_path]
        assert call(*base, "--memoryless", OWN, "--margin", 40) == 0
        before = (tmp_path / "comparison.json").read_bytes()
        capsys.readouterr()
        assert call(*base, *said) == 2
        out, err = capsys.readouterr()
        assert changed in err
        assert out == ""
        assert (tmp_path / "comparison.json").read_bytes() == before
        assert call(*base, "--margin", 40) == 0  # the same again is no change

    def test_a_new_arm_may_come_with_its_memory(self, tmp_path):
        assert call("compare", "--arms", "lstm", "--out", tmp_path) == 0
        assert call("compare", "--arms", OWN, "--memoryless", OWN, "--out", tmp_path) == 0
        kept = read_kept(tmp_path)
        assert kept.terms.memory == {OWN: "none"}
        assert kept.plans == (Plan({"lstm": 1}), Plan({OWN: 1}, 1))

    def test_a_sweep_that_trains_keeps_it_too(self, tmp_path):
        arguments = ["train", "--arms", "mlp", OWN, "--memoryless", OWN, "--grid",
                     "flicker_prob:0.25,0.5", "--out", str(tmp_path)]  # fmt: skip
        assert sweep.main(arguments) == 0
        kept = read_kept(tmp_path)
        assert kept.terms.memory == {OWN: "none"}
        assert kept.plans == (Plan({"mlp": 1, OWN: 1}),)
        titles = {f"{FLICKERING}, flicker_prob={prob}" for prob in (0.25, 0.5)}
        assert kept.measures.keys() == titles

    def test_a_file_that_is_none_is_refused(self, tmp_path):
        for content in ("{", "[]", '{"verdict": {}}', '{"verdict": 3, "rule": []}'):
            (tmp_path / "comparison.json").write_text(content)
            with pytest.raises(ValueError, match=r"comparison\.json was not written by a comp"):
                read_kept(tmp_path)


class TestWhatThePageSays:
    def report(self, folder: Path, *arguments: object, capsys=None) -> str:
        assert call("report", folder, *arguments) == 0
        told = " ".join(capsys.readouterr().out.split())
        said = text_of(folder)
        (made,) = write_report([folder], folder / "again").verdicts.values()
        if not arguments:
            for line in made.lines:
                assert line in told
                assert line in said
        return said

    def test_the_rule_it_was_made_by(self, tmp_path, capsys):
        said = self.report(kept_in(write(tmp_path, scored(SCORES))), capsys=capsys)
        assert (
            f"By the rule with margin {MARGIN} (5 % of the way from random play to the exact "
            f"model) and bar {BAR} (half way from random to exact model). Written down before the "
            "first run."
        ) in said
        assert "AFTER" not in said
        assert 'class="verdict needed"' in (tmp_path / "report.html").read_text()

    def test_that_the_rule_was_not_kept(self, tmp_path, capsys):
        said = self.report(write(tmp_path, scored(SCORES)), capsys=capsys)
        assert "The rule was not kept with the results, which an earlier version made" in said
        assert "needed (by a rule that was not kept)" in said
        said = self.report(tmp_path, "--margin", 40, capsys=capsys)
        assert "AFTER the results was said: --margin 40" in said
        assert 'class="verdict marked"' in (tmp_path / "report.html").read_text()

    @pytest.mark.parametrize("kept_margin", [None, 30.0])
    def test_that_a_margin_was_chosen_after_the_results_and_what_it_was(
        self, tmp_path, capsys, kept_margin
    ):
        kept_in(write(tmp_path, scored(SCORES)), margin=kept_margin)
        said = self.report(tmp_path, "--margin", 400, capsys=capsys)
        before = "by the rule" if kept_margin is None else "30"
        assert f"Chosen AFTER the results: --margin 400, where it was {before}." in said
        assert "(by a rule chosen after results)" in said
        assert (
            "By the rule that was written down before the first run: Memory is needed: LSTM"
        ) in said
        assert 'class="verdict marked"' in (tmp_path / "report.html").read_text()
        # Nothing of it stays: the next page is by what was kept.
        assert "AFTER" not in self.report(tmp_path, capsys=capsys)

    def test_that_an_arm_was_let_in_after_the_results(self, tmp_path, capsys):
        scores = {"lstm": SCORES["lstm"], OWN: SCORES["mlp"]}
        kept_in(write(tmp_path, scored(scores)), plans=(Plan({"lstm": 5, OWN: 5}),))
        said = self.report(tmp_path, "--memoryless", OWN, capsys=capsys)
        assert f"AFTER the results: --memoryless {OWN}, where it was not said." in said

    def test_the_same_said_again_is_no_change(self, tmp_path, capsys):
        kept_in(write(tmp_path, scored(SCORES)), margin=30.0)
        assert "AFTER" not in self.report(tmp_path, "--margin", 30, capsys=capsys)

    def test_that_it_was_written_down_when_there_were_results(self, tmp_path, capsys):
        """A folder of an earlier version that is gone on with."""
        said = self.report(kept_in(write(tmp_path, scored(SCORES)), finished=4), capsys=capsys)
        assert "Written down AFTER 4 runs had results." in said

    def test_that_another_rule_was_written_down(self, tmp_path, capsys):
        kept_in(write(tmp_path, scored(SCORES)), rule=("Whatever I like is needed.",))
        said = self.report(tmp_path, capsys=capsys)
        assert "another one was written down before the first run" in said

    def test_which_arms_and_seeds_were_added_after_results(self, tmp_path, capsys):
        plans = (Plan({"lstm": 3, "mlp": 5}), Plan({"lstm": 5}, 8))
        said = self.report(kept_in(write(tmp_path, scored(SCORES)), plans=plans), capsys=capsys)
        assert "Added AFTER 8 runs had results: LSTM (RecurrentPPO) up to 5 seeds." in said
        assert "likelier than the 5 % of the rule" in said
        assert "needed (arms or seeds added after results)" in said
        assert 'class="verdict marked"' in (tmp_path / "report.html").read_text()

    def test_what_was_asked_for_and_is_not_there(self, tmp_path, capsys):
        plans = (Plan({"lstm": 10, "mlp": 5, "gru": 1}),)
        said = self.report(kept_in(write(tmp_path, scored(SCORES)), plans=plans), capsys=capsys)
        assert "finished: LSTM (RecurrentPPO) 5 of 10 seeds, GRU (RecurrentPPO) 0 of 1 s" in said

    def test_margin_and_bar_stay_what_they_were_whatever_the_ladder_is_now(self, tmp_path, capsys):
        measures = {FLICKERING: {"margin": 11.0, "bar": 333.0, "floor": 150.0}}
        kept_in(write(tmp_path, scored(SCORES)), measures=measures)
        said = self.report(tmp_path, capsys=capsys)
        assert "By the rule with margin 11.0 (" in said
        assert "and bar 333.0 (" in said
        assert "reached 150.0 when the rule was written down; 199.6 counts here." in said

    def test_that_trainings_were_not_equally_long(self, tmp_path, capsys):
        results = scored(SCORES)
        for values in results[:5]:
            values["timesteps"] = 51_200
        said = self.report(kept_in(write(tmp_path, results)), capsys=capsys)
        lengths = "LSTM (RecurrentPPO) 51.2k; memoryless (SB3 PPO) 200.7k"
        assert f"Trainings were not equally long, in steps: {lengths}." in said

    def test_folders_that_keep_different_rules_are_refused_together(self, tmp_path):
        results = scored(SCORES)
        one = kept_in(write(tmp_path / "1", results[:5]), margin=30.0)
        other = kept_in(write(tmp_path / "2", results[5:]))
        with pytest.raises(ValueError, match="must keep the same rule, got .*1 and .*2 with marg"):
            write_report([one, other], tmp_path / "both")
        made = write_report([one, other], tmp_path / "both", margin=20.0)
        assert made.verdicts[FLICKERING].mark

    def test_that_runs_of_several_folders_were_put_together(self, tmp_path):
        results = scored(SCORES)
        folders = [kept_in(write(tmp_path / "1", results[:5])),
                   kept_in(write(tmp_path / "2", results[5:]))]  # fmt: skip
        (made,) = write_report(folders, tmp_path / "both").verdicts.values()
        assert "The runs are of 2 folders, which were put together after the" in made.remarks[0]

    def test_each_environment_goes_by_what_its_own_folder_keeps(self, tmp_path):
        two = {"lstm": (480.0, 12.0), "mlp": (165.0, 12.0)}
        other = "MaskedCartPole-v0"
        folders = [kept_in(write(tmp_path / "1", drawn(two, 5)), margin=30.0),
                   kept_in(write(tmp_path / "2", drawn(two, 5, env_id=other)))]  # fmt: skip
        verdicts = write_report(folders, tmp_path / "both").verdicts
        assert "margin 30.0 (given)" in verdicts[FLICKERING].rule
        assert "(5 % of" in verdicts[other].rule
        assert not any(verdict.mark for verdict in verdicts.values())


class TestWhatWasRun:
    """Budget, seeds, episodes and recipe of the page are those of the runs."""

    def test_the_budget_of_a_run_is_the_one_asked_for_wherever_it_stands(self, tmp_path):
        spec = RunSpec("lstm", FLICKERING, 0, n_timesteps=8_000)
        assert spec.total_timesteps == spec.recipe.n_timesteps == 8_000
        assert spec.recipe.as_mapping()["n_timesteps"] == 8_000
        assert call("compare", "--n-timesteps", 8_000, "--out", tmp_path) == 0
        assert "200000" not in (tmp_path / "comparison.json").read_text()
        for file in (tmp_path / "runs").glob("*.json"):
            assert load_result(file).recipe["n_timesteps"] == 8_000
        assert "200000" not in text_of(tmp_path)

    def test_results_of_an_earlier_version_are_shown_with_their_budget(self, tmp_path):
        results = scored(SCORES)
        for values in results:
            values["spec"]["n_timesteps"] = 8_000  # their recipe says 200000
        write_report([write(tmp_path, results)])
        said = text_of(tmp_path)
        assert "n_timesteps 8000 8000" in said
        assert "200000" not in said

    def test_a_folder_of_an_earlier_version_is_gone_on_with(self, tmp_path):
        base = ["compare", "--n-timesteps", 8_000, "--out", tmp_path]
        assert call(*base) == 0
        marker = tmp_path / "comparison.json"
        content = json.loads(marker.read_text())
        for recipe in content["settings"]["recipes"].values():
            recipe["n_timesteps"] = 200_000
        del content["verdict"], content["plans"]
        marker.write_text(json.dumps(content))
        for file in (tmp_path / "runs").glob("*.json"):
            values = json.loads(file.read_text())
            values["recipe"]["n_timesteps"] = 200_000
            file.write_text(json.dumps(values))
        assert call(*base, "--seeds", 2) == 0
        kept = read_kept(tmp_path)
        assert kept.finished == 2
        assert kept.plans == (
            Plan({"lstm": 1, "mlp": 1}, None), Plan({"lstm": 2, "mlp": 2}, 2),
        )  # fmt: skip

    def test_a_budget_of_a_recipe_is_still_compared(self, tmp_path, capsys):
        assert call("compare", "--hyperparams", "n_timesteps:8000", "--out", tmp_path) == 0
        assert call("compare", "--hyperparams", "n_timesteps:9000", "--out", tmp_path) == 2
        assert "n_timesteps in the recipe of" in capsys.readouterr().err

    def test_seeds_steps_and_episodes_stand_on_the_page(self, tmp_path):
        arguments = ("--n-timesteps", 8_000, "--eval-episodes", 7, 8, "--seeds", 3)
        assert call("compare", *arguments, "--out", tmp_path) == 0
        said = text_of(tmp_path)
        # The instant runs trained 2,048 steps and played 3 and 4 episodes, whatever was asked for.
        assert "LSTM (RecurrentPPO) 0, 1, 2 8,000 2,048 3, 4 0" in said

"""docs/results.md says what the CSV files say, and the plan can be carried out."""

from __future__ import annotations

import itertools
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import results  # noqa: E402
import results_plan  # noqa: E402
import results_tables  # noqa: E402

from thrust_pomdp.experiment.report.rule import MIN_RUNS  # noqa: E402
from thrust_pomdp.experiment.runs import RunResult  # noqa: E402

PLAN = results_plan.read_plan()
GRIDS = results_plan.read_grids()
EVERY = [comparison for table in PLAN.values() for comparison in table]


def written(tmp_path: Path, *lines: str) -> results_plan.Comparison:
    """A comparison whose summary has these lines."""
    folder = tmp_path / "table" / "one"
    folder.mkdir(parents=True)
    head = "arm,seed,final,best,sampled,most_likely,steps,seconds"
    (folder / "summary.csv").write_text("\n".join([head, *lines]) + "\n")
    return results_plan.Comparison(
        "table/one", "MaskedCartPole-v0", {"lstm": {}, "mlp": {}}, 4,
        goal=450, bar=350, published={"lstm": "best 422", "mlp": "100"},
    )  # fmt: skip


@pytest.mark.parametrize("path", results.PAGES, ids=lambda path: path.name)
def test_a_page_is_what_the_script_writes(path):
    page = path.read_text(encoding="utf-8")
    assert "<!-- end -->" in page
    assert results_tables.filled(page, PLAN) == page


def test_each_table_of_the_plan_is_on_a_page():
    marks = [
        match
        for path in results.PAGES
        for match in results_tables.MARKS.finditer(path.read_text("utf-8"))
    ]
    tables = {match[3] for match in marks if match[2] in ("table", "variants", "passing")}
    assert tables == PLAN.keys()
    assert {match[3] for match in marks if match[2] == "grid"} == GRIDS.keys()
    assert all(match[2] == "grid" or match[3] in PLAN for match in marks)


@pytest.mark.parametrize("comparison", EVERY, ids=lambda comparison: comparison.name)
def test_a_comparison_of_the_plan_can_be_made(comparison):
    specs = comparison.specs()
    assert len({spec.name for spec in specs}) == len(comparison.arms) * comparison.seeds
    for spec in specs:
        assert spec.total_timesteps == (comparison.n_timesteps or spec.recipe.n_timesteps)


@pytest.mark.parametrize("comparison", EVERY, ids=lambda comparison: comparison.name)
def test_what_was_run_is_what_is_planned(comparison):
    planned = {(s.arm, str(s.seed)): results_plan.signature(asdict(s)) for s in comparison.specs()}
    runs = results_plan.lines_of(comparison.folder / "trained.csv")
    assert all(run["recipe"] == planned[run["arm"], run["seed"]] for run in runs)
    summary = results_plan.read_summary(comparison.folder)
    assert [(r["arm"], r["seed"]) for r in runs] == [(r["arm"], r["seed"]) for r in summary]
    for row in results_plan.read_summary(comparison.folder):
        assert row["arm"] in comparison.arms
        assert int(row["seed"]) < comparison.seeds
        planned = next(s for s in comparison.specs() if s.arm == row["arm"]).total_timesteps
        assert planned <= int(row["steps"]) < planned * 1.05


def test_a_line_is_the_interquartile_mean_of_the_better_way_to_act(tmp_path, monkeypatch):
    monkeypatch.setattr(results_plan, "DOCS", tmp_path)
    rows = (f"lstm,{seed},1,1,{sampled},{likely},50000,9" for seed, sampled, likely in
            [(0, 10, 300), (1, 20, 400), (2, 30, 500), (3, 40, 100)])  # fmt: skip
    comparison = written(tmp_path / "results", *rows)
    _, _, lstm, *missing = results_tables.table([comparison])
    assert "| 50k | 9 | 4 | 350.0 <sup>4 seeds</sup> [" in lstm
    assert "| most likely | 100.0, 500.0 |" in lstm
    start = "| `MaskedCartPole-v0`<br>table/one<br>goal 450.0: **missed** so far | LSTM"
    assert lstm.startswith(start)
    assert missing[1:] == [
        "Planned, and seeds of it not run yet:", "", "* table/one: memoryless (SB3 PPO)"
    ]  # fmt: skip


def test_seeds_that_are_missing_show(tmp_path, monkeypatch):
    monkeypatch.setattr(results_plan, "DOCS", tmp_path)
    rows = ["lstm,0,1,1,10,300,50000,9", "lstm,1,1,1,10,300,50000,9"]
    _, _, lstm, *missing = results_tables.table([written(tmp_path / "results", *rows)])
    assert "| 50k | 9 | 2 of 4 | 300.0 <sup>2 seeds</sup>" in lstm
    assert lstm.startswith("| `MaskedCartPole-v0`<br>table/one<br>goal 450.0: **missed** so far |")
    assert missing[-1] == "* table/one: LSTM (RecurrentPPO), memoryless (SB3 PPO)"


def test_a_run_passes_by_its_most_likely_actions(tmp_path, monkeypatch):
    monkeypatch.setattr(results_plan, "DOCS", tmp_path)
    rows = ["lstm,0,1,1,500,349.9,9,9", "lstm,1,1,1,500,350,9,9", "lstm,2,1,1,100,500,9,15"]
    heads, rule, lstm, mlp = results_tables.passing([written(tmp_path / "results", *rows)])
    start = "| `MaskedCartPole-v0`<br>table/one<br>bar 350.0 | LSTM (RecurrentPPO) | **2 of 3** |"
    assert lstm.startswith(f"{start} 0k | 9 | 3 of 4 |")
    assert mlp.startswith("|  | memoryless (SB3 PPO) | not run yet |")
    assert {heads.count("|"), rule.count("|"), lstm.count("|"), mlp.count("|")} == {10}


def sweep_of(tmp_path: Path, text: str, **grid: list[float]) -> results_plan.PlayedGrid:
    """A played grid of the arms lstm and mlp, whose CSV file has these lines."""
    folder = tmp_path / "results" / "grids" / "one"
    folder.mkdir(parents=True)
    (folder / "sweep.csv").write_text(text)
    return results_plan.PlayedGrid("one", "ids/burst", ["lstm", "mlp"], grid)


def test_a_grid_of_two_parameters_has_a_line_for_each_value_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(results_plan, "DOCS", tmp_path)
    lines = ["arm,seed,flicker_prob,burst_len,most_likely,sampled", "lstm,0,0.5,2,400,500",
             "lstm,1,0.5,2,400,300", "lstm,0,0.5,4,20,10", "lstm,1,0.5,4,40,30", "lstm,0,0.9,2,,",
             "lstm,1,0.9,2,,", "lstm,0,0.9,4,7,9", "lstm,1,0.9,4,7,9"]  # fmt: skip
    played = sweep_of(tmp_path, "\n".join(lines), flicker_prob=[0.5, 0.9], burst_len=[2, 4])
    assert results_tables.grid_table(played) == [
        "| arm | flicker_prob | acting | burst_len 2 | burst_len 4 |",
        "|---|---|---|---|---|",
        "| LSTM (RecurrentPPO) | 0.5 | most likely | 400.0 <sup>2 seeds</sup> (400.0) "
        "| 30.0 <sup>2 seeds</sup> (20.0) |",
        "|  | 0.9 | most likely |  | 7.0 <sup>2 seeds</sup> (7.0) |",
        "| memoryless (SB3 PPO) | not run yet | | | |",
    ]


def test_a_grid_of_one_parameter_has_a_line_for_each_arm(tmp_path, monkeypatch):
    monkeypatch.setattr(results_plan, "DOCS", tmp_path)
    lines = ["arm,seed,flicker_prob,most_likely,sampled", "mlp,0,0.0,30,500", "mlp,0,0.5,20,200"]
    played = sweep_of(tmp_path, "\n".join(lines), flicker_prob=[0.0, 0.5])
    assert results_tables.grid_table(played)[2:] == [
        "| LSTM (RecurrentPPO) | not run yet | | |",
        "| memoryless (SB3 PPO) | sampled | 500.0 <sup>1 seed</sup> (500.0) "
        "| 200.0 <sup>1 seed</sup> (200.0) |",
    ]


@pytest.mark.parametrize("played", GRIDS.values(), ids=lambda played: played.name)
def test_a_grid_is_of_arms_that_are_trained_and_says_what_was_played(played):
    (comparison,) = results_plan.select(PLAN, [played.of])
    assert set(played.arms) <= set(comparison.arms)
    lines = results_plan.lines_of(played.folder / "sweep.csv")
    runs = {(row["arm"], int(row["seed"])) for row in lines}
    if lines:
        assert runs == {(arm, seed) for arm in played.arms for seed in range(comparison.seeds)}
    points = set(itertools.product(*(map(str, values) for values in played.grid.values())))
    for run in runs:
        of_run = [row for row in lines if (row["arm"], int(row["seed"])) == run]
        assert {tuple(row[name] for name in played.grid) for row in of_run} == points
        assert len(of_run) == len(points)


@pytest.mark.parametrize("status", [0, 1])
def test_what_was_played_is_kept_if_all_went_well(tmp_path, monkeypatch, status):
    asked = []

    def evaluate(arguments):
        asked.append(arguments)
        out = Path(arguments[-1])
        assert not out.exists()  # what was played of runs that are trained anew is old
        out.mkdir(parents=True)
        for name in ("sweep.csv", "sweep-sampled.png", "sweep.json"):
            (out / name).write_text(name)
        return status

    monkeypatch.setattr(results_plan, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results.sweep, "main", evaluate)
    (tmp_path / "results" / "grids" / "burst").mkdir(parents=True)
    grids = {
        "burst": results_plan.PlayedGrid("burst", "ids/burst", ["lstm"], {"flicker_prob": [0, 1]})
    }
    monkeypatch.setattr(results, "read_grids", lambda: grids)
    assert results.play([], 2) == status
    (command,) = asked
    assert command[:4] == ["evaluate", str(tmp_path / "results/ids/burst"), "--arms", "lstm"]
    assert "flicker_prob:0,1" in command
    kept = sorted(path.name for path in (tmp_path / "docs").rglob("sweep*"))
    assert kept == ([] if status else ["sweep-sampled.png", "sweep.csv"])


def test_figures_in_the_prose_are_those_of_the_table():
    page = (results_plan.DOCS / "results.md").read_text(encoding="utf-8")
    rows = [row.split(" | ") for row in results_tables.grid_table(GRIDS["burst"])[2:]]
    bursts_of_8 = [row[5].split()[0] for row in rows if row[1] == "0.5"]
    bit, lstm, grounded = bursts_of_8
    said = f"it keeps {grounded} of 500, where the others keep {lstm} and {bit}"
    assert said in " ".join(page.split())


def test_the_readme_tells_who_passes_sb3_contribs_slow_test():
    (slow,) = results_plan.select(PLAN, ["settings/sb3-contrib-slow-test"])
    of_arm = {arm: results_plan.rows_of(slow, arm) for arm in slow.arms}
    passed = {
        arm: sum(float(row["most_likely"]) >= slow.bar for row in rows)
        for arm, rows in of_arm.items()
    }
    theirs, ours = (results_tables.score(slow, arm) for arm in ("sb3-contrib", "lstm"))
    said = (
        f"{passed['lstm']} of {len(ours.seeds)} seeds pass here, {passed['sb3-contrib']} of "
        f"{len(theirs.seeds)} there, after {ours.seconds:.0f} and {theirs.seconds:.0f} seconds"
    )
    assert said in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_grids_that_are_none_are_refused():
    with pytest.raises(ValueError, match="name must be one of flickering, burst, got 'x'"):
        results.play(["x"], 1)


def seeds_of(arm: str, score: float, steps: int, count: int = MIN_RUNS) -> list[str]:
    """Lines of as many seeds that all reach the same."""
    return [f"{arm},{seed},1,1,0,{score},{steps},9" for seed in range(count)]


def test_a_line_of_scores_has_each_arm_its_steps_and_the_best_in_bold(tmp_path, monkeypatch):
    monkeypatch.setattr(results_plan, "DOCS", tmp_path)
    rows = [*seeds_of("lstm", 300, 50_000), *seeds_of("mlp", 40, 200_704)]
    heads, _, line, *notes = results_tables.scores([written(tmp_path / "results", *rows)])
    assert heads.startswith("| environment | memoryless PPO | LSTM | ")
    assert line == (
        "| `MaskedCartPole-v0` | 40.0<br><sub>201k</sub> | **300.0**<br><sub>50k</sub> "
        "| 51.1, 500.0 |"
    )
    assert notes == ["", "Under each score: the environment steps that a run was trained for."]


def test_two_that_are_best_are_both_bold(tmp_path, monkeypatch):
    monkeypatch.setattr(results_plan, "DOCS", tmp_path)
    rows = [*seeds_of("lstm", 500, 50_000), *seeds_of("mlp", 499.99, 50_000)]
    line = results_tables.scores([written(tmp_path / "results", *rows)])[2]
    assert line.count("**500.0**<br><sub>50k</sub>") == 2


def test_a_score_of_few_seeds_is_marked_and_never_bold(tmp_path, monkeypatch):
    monkeypatch.setattr(results_plan, "DOCS", tmp_path)
    rows = [
        *seeds_of("lstm", 300, 50_000),
        *seeds_of("mlp", 400, 50_000, MIN_RUNS - 1),
    ]
    comparison = written(tmp_path / "results", *rows)
    assert (
        "| 400.0 <sup>4 seeds</sup><br><sub>50k</sub> | **300.0**<br>"
        in (results_tables.scores([comparison])[2])
    )
    filled = results_tables.filled("<!-- scores: one -->\n<!-- end -->", {"one": [comparison]})
    assert filled.endswith("and more may move it far.\n<!-- end -->")
    assert "it rests on so few. Of fewer than 5 " in filled


@pytest.mark.parametrize("count", [4, 5])
def test_a_goal_that_few_seeds_reach_is_not_simply_reached(tmp_path, monkeypatch, count):
    monkeypatch.setattr(results_plan, "DOCS", tmp_path)
    comparison = written(tmp_path / "results", *seeds_of("lstm", 460, 50_000, count))
    mark = " <sup>4 seeds</sup>" if count == 4 else ""
    assert results_tables.verdict(comparison) == f"<br>goal 450.0: reached{mark}"


def cells(path: Path, kind: str) -> list[tuple[results_plan.Comparison, dict[str, str]]]:
    """The lines of a page's tables of a kind, by the heads of their columns."""
    found = []
    for match in results_tables.MARKS.finditer(path.read_text(encoding="utf-8")):
        if match[2] != kind:
            continue
        lines = [line for line in match[0].splitlines() if line.startswith("|")]
        heads, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
        comparison = None
        titles = {results_tables.title(one): one for one in PLAN[match[3]]}
        for row in rows:
            comparison = titles.get(row[0].split("<br>")[0], comparison)
            found.append((comparison, dict(zip(heads, row, strict=True))))
    return found


def test_no_unmarked_score_of_the_readme_rests_on_fewer_than_five_seeds_and_all_have_steps():
    checked = 0
    arms = {name: arm for arm, name in results_tables._SHORT.items()}
    for comparison, line in cells(ROOT / "README.md", "scores"):
        for head, cell in line.items():
            rows = results_plan.rows_of(comparison, arms[head]) if head in arms and cell else []
            if rows:
                few = len({row["seed"] for row in rows}) < 5
                assert few == ("<sup>" in cell), (comparison.name, head, cell)
                assert few <= ("**" not in cell), (comparison.name, head, cell)
                thousands = f"<sub>{round(int(rows[0]['steps']) / 1000)}k</sub>"
                assert cell.endswith(thousands), (comparison.name, head, cell)
                checked += 1
    assert checked > 30


@pytest.mark.parametrize("path", results.PAGES, ids=lambda path: path.name)
@pytest.mark.parametrize("kind", ["table", "variants", "passing", "training"])
def test_no_unmarked_figure_of_a_page_rests_on_fewer_than_five_seeds(path, kind):
    for _, line in cells(path, kind):
        seeds = line["seeds"].split(" of ")[0]
        figures = [line[head] for head in ("IQM [95 % interval]", "final", "best") if head in line]
        for figure in figures if seeds else []:
            assert (int(seeds) < 5) == ("<sup>" in figure), line


def test_a_line_of_training_has_means_over_the_seeds_and_what_others_report(tmp_path, monkeypatch):
    monkeypatch.setattr(results_plan, "DOCS", tmp_path)
    rows = [f"lstm,{seed},{100 + 50 * seed},{150 + 50 * seed},1,1,50000,9" for seed in range(5)]
    _, _, lstm, mlp = results_tables.training([written(tmp_path / "results", *rows)])
    assert lstm.endswith("| 50k | 5 | 200.0 | 250.0 | best 422 |")
    assert mlp.endswith("| not run yet |  |  |  | 100 |")


@pytest.mark.parametrize("env", ["masked", "flickering"])
def test_variants_of_the_ablation_differ_in_what_their_names_say_alone(env):
    of = {one.name: one.specs()[0].hyperparams for one in PLAN["ablations"] if env in one.name}
    plain = of.pop(f"ablations/{env}-plain")
    changed = {
        "not-orthogonal": {"ortho_init": False},
        "forget-bias": {"forget_bias": 1.0},
        "layer-norm": {"layer_norm": True},
        "encoder": {"net_arch": {"encoder": [64], "pi": [], "vf": []}},
        "gru": {"rnn_class": "nn.GRU"},
        "rnn": {"rnn_class": "nn.RNN"},
    }
    assert of.keys() == {f"ablations/{env}-{name}" for name in changed}
    for name, change in changed.items():
        expected = {**plain, "policy_kwargs": {**plain["policy_kwargs"], **change}}
        assert of[f"ablations/{env}-{name}"] == expected


def result(comparison: results_plan.Comparison, arm: str, seed: int, mean: float) -> RunResult:
    (spec,) = (one for one in comparison.specs() if (one.arm, one.seed) == (arm, seed))
    curve = [(10 * (point + 1), mean) for point in range(200)]
    return RunResult(asdict(spec), mean, mean, [mean], [mean - 1], 2000, 1.5, curve)


@pytest.fixture
def comparison(tmp_path, monkeypatch):
    monkeypatch.setattr(results_plan, "DOCS", tmp_path)
    return results_plan.Comparison("one/two", "MaskedCartPole-v0", {"lstm": {}, "mlp": {}}, 11)


def shown(comparison: results_plan.Comparison) -> list[tuple[str, str, str]]:
    lines = results_plan.read_summary(comparison.folder)
    return [(line["arm"], line["seed"], line["most_likely"]) for line in lines]


def test_lines_of_runs_that_were_not_done_again_stay(comparison):
    first = [("mlp", 0, 40), ("lstm", 10, 90), ("lstm", 2, 80)]
    results.keep([result(comparison, *run) for run in first], comparison)
    again = [("lstm", 2, 85), ("lstm", 3, 70)]
    results.keep([result(comparison, *run) for run in again], comparison)
    assert shown(comparison) == [
        ("lstm", "2", "85.0"), ("lstm", "3", "70.0"), ("lstm", "10", "90.0"), ("mlp", "0", "40.0")
    ]  # fmt: skip
    curves = {run.spec["seed"]: run.curve for run in results_plan.kept(comparison)}
    assert all(len(curve) <= 60 and curve[-1][0] == 2000 for curve in curves.values())
    assert curves[2][0][1] == 85


def test_lines_of_another_recipe_go(comparison):
    first = [("mlp", 0, 40), ("lstm", 0, 90), ("lstm", 1, 80)]
    results.keep([result(comparison, *run) for run in first], comparison)
    changed = replace(comparison, arms={"lstm": {"n_epochs": 3}, "mlp": {}})
    results.keep([result(changed, "lstm", 1, 70)], changed)
    assert shown(changed) == [("lstm", "1", "70.0"), ("mlp", "0", "40.0")]


def test_arms_are_trained_where_they_are_and_a_typo_is_refused(monkeypatch):
    asked = []

    class Recorded:
        def __init__(self, specs, folder, jobs):
            asked.append((folder.name, [spec.name for spec in specs]))

        def run(self):
            return []

        def failed(self):
            return []

    monkeypatch.setattr(results, "Runner", Recorded)
    assert results.run(["ids"], 1, ["gru"]) == 0
    assert all(name.startswith("gru-seed") for _, names in asked for name in names)
    assert "masked" in dict(asked)
    assert "burst-L8" not in dict(asked)  # it has no such arm
    asked.clear()
    results.run(["ids/tmaze-10"], 1, ["mlp"], 2)
    assert asked == [("tmaze-10", ["mlp-seed0", "mlp-seed1"])]
    with pytest.raises(ValueError, match="arms must be of mlp, .*, got 'grue'"):
        results.run(["ids"], 1, ["grue"])


def test_names_that_are_none_are_refused():
    assert [one.name for one in results_plan.select(PLAN, ["ids/tmaze-10"])] == ["ids/tmaze-10"]
    assert results_plan.select(PLAN, ["ids"]) == PLAN["ids"]
    with pytest.raises(ValueError, match="name must be one of .*ids/tmaze-10.*, got 'ids/x'"):
        results_plan.select(PLAN, ["ids/x"])

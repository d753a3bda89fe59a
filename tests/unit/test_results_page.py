"""docs/results.md says what the CSV files say, and the plan can be carried out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import results  # noqa: E402

PLAN = results.read_plan()
GRIDS = results.read_grids()
EVERY = [comparison for table in PLAN.values() for comparison in table]


def written(tmp_path: Path, *lines: str) -> results.Comparison:
    """A comparison whose summary has these lines."""
    folder = tmp_path / "table" / "one"
    folder.mkdir(parents=True)
    head = "arm,seed,final,best,sampled,most_likely,steps,seconds"
    (folder / "summary.csv").write_text("\n".join([head, *lines]) + "\n")
    return results.Comparison(
        "table/one", "MaskedCartPole-v0", {"lstm": {}, "mlp": {}}, 4,
        goal=450, bar=350, published={"lstm": "best 422", "mlp": "100"},
    )  # fmt: skip


@pytest.mark.parametrize("path", results.PAGES, ids=lambda path: path.name)
def test_a_page_is_what_the_script_writes(path):
    page = path.read_text(encoding="utf-8")
    assert "<!-- end -->" in page
    assert results.filled(page, PLAN) == page


def test_each_table_of_the_plan_is_on_a_page():
    pages = "".join(path.read_text(encoding="utf-8") for path in results.PAGES)
    marks = list(results.MARKS.finditer(pages))
    assert {match[3] for match in marks if match[2] != "grid"} == PLAN.keys()
    assert {match[3] for match in marks if match[2] == "grid"} == GRIDS.keys()


@pytest.mark.parametrize("comparison", EVERY, ids=lambda comparison: comparison.name)
def test_a_comparison_of_the_plan_can_be_made(comparison):
    specs = comparison.specs()
    assert len({spec.name for spec in specs}) == len(comparison.arms) * comparison.seeds
    for spec in specs:
        assert spec.total_timesteps == (comparison.n_timesteps or spec.recipe.n_timesteps)


@pytest.mark.parametrize("comparison", EVERY, ids=lambda comparison: comparison.name)
def test_what_was_run_is_what_is_planned(comparison):
    for row in results.read_summary(comparison.folder):
        assert row["arm"] in comparison.arms
        assert int(row["seed"]) < comparison.seeds
        planned = next(s for s in comparison.specs() if s.arm == row["arm"]).total_timesteps
        assert planned <= int(row["steps"]) < planned * 1.05


def test_a_line_is_the_interquartile_mean_of_the_better_way_to_act(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "DOCS", tmp_path)
    rows = (f"lstm,{seed},1,1,{sampled},{likely},50000,9" for seed, sampled, likely in
            [(0, 10, 300), (1, 20, 400), (2, 30, 500), (3, 40, 100)])  # fmt: skip
    comparison = written(tmp_path / "results", *rows)
    _, _, lstm, *missing = results.table([comparison])
    assert "| 50k | 9 | 4 | **350.0** [" in lstm
    assert "| most likely | 100.0, 500.0 |" in lstm
    assert lstm.startswith("| `MaskedCartPole-v0`<br>goal 450.0: **missed** | LSTM")
    assert missing[1:] == [
        "Planned and not run yet:", "", "* `MaskedCartPole-v0`: memoryless (SB3 PPO)"
    ]  # fmt: skip


def test_a_run_passes_by_its_most_likely_actions(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "DOCS", tmp_path)
    rows = ["lstm,0,1,1,500,349.9,9,9", "lstm,1,1,1,500,350,9,9", "lstm,2,1,1,100,500,9,15"]
    heads, rule, lstm, mlp = results.passing([written(tmp_path / "results", *rows)])
    start = "| `MaskedCartPole-v0`<br>bar 350.0 | LSTM (RecurrentPPO) | **2 of 3** | 0k | 9 | 3 |"
    assert lstm.startswith(start)
    assert mlp.startswith("|  | memoryless (SB3 PPO) | not run yet |")
    assert {heads.count("|"), rule.count("|"), lstm.count("|"), mlp.count("|")} == {10}


def sweep_of(tmp_path: Path, text: str, **grid: list[float]) -> results.PlayedGrid:
    """A played grid of the arms lstm and mlp, whose CSV file has these lines."""
    folder = tmp_path / "results" / "grids" / "one"
    folder.mkdir(parents=True)
    (folder / "sweep.csv").write_text(text)
    return results.PlayedGrid("one", "ids/burst", ["lstm", "mlp"], grid)


def test_a_grid_of_two_parameters_has_a_line_for_each_value_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "DOCS", tmp_path)
    lines = ["arm,seed,flicker_prob,burst_len,most_likely,sampled", "lstm,0,0.5,2,400,500",
             "lstm,1,0.5,2,400,300", "lstm,0,0.5,4,20,10", "lstm,1,0.5,4,40,30", "lstm,0,0.9,2,,",
             "lstm,1,0.9,2,,", "lstm,0,0.9,4,7,9", "lstm,1,0.9,4,7,9"]  # fmt: skip
    played = sweep_of(tmp_path, "\n".join(lines), flicker_prob=[0.5, 0.9], burst_len=[2, 4])
    assert results.grid(played) == [
        "| arm | flicker_prob | acting | burst_len 2 | burst_len 4 |",
        "|---|---|---|---|---|",
        "| LSTM (RecurrentPPO) | 0.5 | most likely | 400.0 | 30.0 |",
        "|  | 0.9 | most likely |  | 7.0 |",
        "| memoryless (SB3 PPO) | not run yet | | | |",
    ]


def test_a_grid_of_one_parameter_has_a_line_for_each_arm(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "DOCS", tmp_path)
    lines = ["arm,seed,flicker_prob,most_likely,sampled", "mlp,0,0.0,30,500", "mlp,0,0.5,20,200"]
    played = sweep_of(tmp_path, "\n".join(lines), flicker_prob=[0.0, 0.5])
    assert results.grid(played)[2:] == [
        "| LSTM (RecurrentPPO) | not run yet | | |",
        "| memoryless (SB3 PPO) | sampled | 500.0 | 200.0 |",
    ]


@pytest.mark.parametrize("played", GRIDS.values(), ids=lambda played: played.name)
def test_a_grid_is_of_arms_that_are_trained_and_says_what_was_played(played):
    (comparison,) = results.select(PLAN, [played.of])
    assert set(played.arms) <= set(comparison.arms)
    for row in results.lines_of(played.folder / "sweep.csv"):
        assert row["arm"] in played.arms
        assert all(row[name] in map(str, values) for name, values in played.grid.items())


def test_grids_that_are_none_are_refused():
    with pytest.raises(ValueError, match="name must be one of flickering, burst, got 'x'"):
        results.play(["x"], 1)


def test_a_line_of_scores_has_each_arm_and_the_best_in_bold(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "DOCS", tmp_path)
    comparison = written(tmp_path / "results", "lstm,0,1,1,10,300,50000,9", "mlp,0,1,1,40,20,9,9")
    heads, _, line = results.scores([comparison])
    assert heads.startswith("| environment | memoryless PPO | LSTM | ")
    assert line == "| `MaskedCartPole-v0` | 40.0 | **300.0** | 51.1, 500.0 |"


def test_a_line_of_training_has_means_over_the_seeds_and_what_others_report(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "DOCS", tmp_path)
    rows = ["lstm,0,100,200,1,1,50000,9", "lstm,1,300,300,1,1,50000,9"]
    _, _, lstm, mlp = results.training([written(tmp_path / "results", *rows)])
    assert lstm.endswith("| 50k | 2 | 200.0 | 250.0 | best 422 |")
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


def result(arm: str, seed: int, mean: float) -> results.RunResult:
    spec = {"arm": arm, "seed": seed, "env_id": "MaskedCartPole-v0", "env_kwargs": {}}
    curve = [(10 * (point + 1), mean) for point in range(200)]
    return results.RunResult(spec, mean, mean, [mean], [mean - 1], 2000, 1.5, curve)


def test_lines_of_runs_that_were_not_done_again_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "DOCS", tmp_path)
    comparison = results.Comparison("one/two", "MaskedCartPole-v0", {"lstm": {}, "mlp": {}}, 11)
    results.keep([result("mlp", 0, 40), result("lstm", 10, 90), result("lstm", 2, 80)], comparison)
    results.keep([result("lstm", 2, 85), result("lstm", 3, 70)], comparison)
    lines = results.read_summary(comparison.folder)
    assert [(line["arm"], line["seed"], line["most_likely"]) for line in lines] == [
        ("lstm", "2", "85.0"), ("lstm", "3", "70.0"), ("lstm", "10", "90.0"), ("mlp", "0", "40.0")
    ]  # fmt: skip
    curves = {run.spec["seed"]: run.curve for run in results.kept(comparison)}
    assert all(len(curve) <= 60 and curve[-1][0] == 2000 for curve in curves.values())
    assert curves[2][0][1] == 85


def test_arms_are_trained_where_they_are_and_a_typo_is_refused(tmp_path, monkeypatch):
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
    assert [one.name for one in results.select(PLAN, ["ids/tmaze-10"])] == ["ids/tmaze-10"]
    assert results.select(PLAN, ["ids"]) == PLAN["ids"]
    with pytest.raises(ValueError, match="name must be one of .*ids/tmaze-10.*, got 'ids/x'"):
        results.select(PLAN, ["ids/x"])

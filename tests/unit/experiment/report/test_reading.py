"""Results that are read, and their scores."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic_results import (
    NOTHING_KNOWN,
    around,
    contest,
    result,
    scored,
    verdict,
    write,
    write_failure,
)

from thrust_pomdp.experiment.arms import ARMS
from thrust_pomdp.experiment.report import (
    Failure,
    Run,
    contests,
    decide,
    read_folder,
    rule,
    tables,
    write_report,
)
from thrust_pomdp.experiment.report.runs import ARM_ORDER
from thrust_pomdp.experiment.runs import RunResult
from thrust_pomdp.reference import LADDER, normalized

FLICKERING = {rung.information: rung.mean for rung in LADDER["FlickeringCartPole-v0"]}


class TestReading:
    def test_a_result_of_the_runner_and_its_file_give_the_same_run(self, tmp_path):
        values = result(extras=False)
        of_result = Run.of(RunResult(**values))
        write(tmp_path, [values])
        (of_file,), _ = read_folder(tmp_path)
        for mode in ("deterministic", "stochastic"):
            assert of_result.returns[mode].tolist() == of_file.returns[mode].tolist()
        assert of_result.curve.tolist() == of_file.curve.tolist() == values["curve"]
        assert of_result.evaluations.shape == of_file.evaluations.shape == (0, 4)

    def test_every_arm_of_the_package_has_its_place(self):
        assert sorted(ARM_ORDER) == sorted(ARMS)

    def test_points_that_are_no_numbers_are_left_out(self):
        nan = float("nan")
        values = {**result(), "curve": [[0, nan], [1, 2.0]], "evaluations": [[1, 1.0, nan, 2.0]]}
        run = Run.from_mapping(values)
        assert run.curve.tolist() == [[1, 2.0]]
        assert not len(run.evaluations)

    def test_fields_of_later_versions_are_left_aside(self):
        Run.from_mapping({**result(), "something_new": 1})

    def test_runs_are_grouped_by_environment_and_its_arguments(self):
        results = [
            result("mlp", 1), result("mlp", 0), result("lstm"),
            result(env_kwargs={"flicker_prob": 0.3}), result(env_id="MaskedCartPole-v0"),
        ]  # fmt: skip
        found = contests(map(Run.from_mapping, results))
        assert [c.title for c in found] == [
            "FlickeringCartPole-v0", "FlickeringCartPole-v0, flicker_prob=0.3", "MaskedCartPole-v0",
        ]  # fmt: skip
        assert [run.name for runs in found[0].arms.values() for run in runs] == [
            "lstm-seed0", "mlp-seed0", "mlp-seed1",
        ]  # fmt: skip

    def test_a_run_that_is_there_twice_is_refused_with_both_places(self, tmp_path):
        for name in "ab":
            write(tmp_path / name, [result()])
        with pytest.raises(ValueError, match=r"got lstm-seed0 in .*a/runs/.* and .*b/runs/"):
            write_report([tmp_path / "a", tmp_path / "b"], tmp_path)

    def test_a_failed_run_tells_what_happened(self, tmp_path):
        write(tmp_path, [result("lstm", 1)])
        write_failure(tmp_path, "lstm-seed0", "MemoryError: much\nof a message\n")
        write_failure(tmp_path, "lstm-seed1", "RuntimeError: of an earlier try")
        (tmp_path / "runs" / "mlp-seed0.error.txt").write_text("")
        _, failures = read_folder(tmp_path)
        assert failures == [
            Failure("lstm-seed0", "MemoryError: much"),
            Failure("mlp-seed0", "no reason was left"),
        ]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "is no result of a finished run: Expecting"),
            ("[]", "is no result of a finished run: list inside"),
            ("{}", "is no result of a finished run: 'spec' is missing"),
            (json.dumps({**result(), "stochastic": []}), "stochastic must be the finite returns"),
            (json.dumps({**result(), "deterministic": [float("nan")]}), "deterministic must be"),
            (json.dumps({**result(), "curve": [1, 2, 3]}), "is no result of a finished run"),
            (json.dumps({**result(), "spec": {"arm": "lstm"}}), "'seed' is missing"),
        ],
    )
    def test_files_that_are_no_results_are_named(self, tmp_path, text, message):
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "lstm-seed0.json").write_text(text)
        with pytest.raises(ValueError, match=rf"lstm-seed0\.json.*{message}"):
            write_report([tmp_path])

    def test_folders_that_are_none_of_ours_are_named(self, tmp_path):
        with pytest.raises(ValueError, match=r"with runs/ in it, got .*nowhere"):
            write_report([tmp_path / "nowhere"])
        (tmp_path / "runs").mkdir()
        with pytest.raises(ValueError, match="folders must hold runs, got none in"):
            write_report([tmp_path])
        with pytest.raises(ValueError, match="folders must hold at least one, got none"):
            write_report([])


class TestScores:
    def test_the_way_of_acting_is_chosen_for_the_arm_and_not_for_each_run(self):
        # Deterministic 10 and 0, stochastic 4 and 4: the best of each run would be 7 on average.
        results = [
            {**result("mlp", seed), "deterministic": [score], "stochastic": [4.0]}
            for seed, score in enumerate((10.0, 0.0))
        ]
        found = contest(results)
        assert found.mode_of("mlp") == "deterministic"
        assert found.scores("mlp").tolist() == [10.0, 0.0]
        results[0]["deterministic"] = [7.0]
        found = contest(results)
        assert found.mode_of("mlp") == "stochastic"
        assert found.scores("mlp").tolist() == [4.0, 4.0]

    def test_the_share_of_the_gap_is_that_of_the_ladder(self):
        floor, ceiling = FLICKERING["memoryless"], FLICKERING["exact model"]
        found = contest(scored({"lstm": [floor, ceiling, (floor + ceiling) / 2]}))
        assert tables.gap_closed(found, "lstm") == pytest.approx([0.0, 1.0, 0.5])
        assert normalized(floor, found.ladder) == 0.0

    def test_time_is_measured_where_it_was_and_in_proportion_elsewhere(self):
        values = {**result(extras=False), "timesteps": 1000, "seconds": 10.0}
        run = Run.from_mapping(values)
        assert run.seconds_at(np.array([0.0, 500.0, 1000.0])).tolist() == [0.0, 5.0, 10.0]
        run = Run.from_mapping({**values, "evaluations": [[500, 8.0, 1.0, 1.0]]})
        assert run.seconds_at(np.array([250.0, 500.0, 750.0])).tolist() == [4.0, 8.0, 9.0]

    def test_thresholds_come_from_the_ladder_or_else_from_the_curves(self):
        ladder = contest(scored({"lstm": [480.0]}))
        floor, ceiling = FLICKERING["memoryless"], FLICKERING["exact model"]
        values = [value for _, value in tables.thresholds(ladder, rule.scale_of(ladder))]
        assert values == pytest.approx(
            [floor, (FLICKERING["nothing"] + ceiling) / 2, floor + 0.95 * (ceiling - floor)]
        )
        curve = [[100, -10.0], [200, 10.0]]
        other = contest([{**result(env_id=NOTHING_KNOWN), "curve": curve}])
        values = [value for _, value in tables.thresholds(other, rule.scale_of(other))]
        assert values == pytest.approx([0.0, 8.0])

    def test_what_an_arm_remembers_follows_from_its_name_its_recipe_or_the_user(self):
        results = [result(arm) for arm in ("lstm", "mlp", "mlp-prev-action", "frame-stack")]
        results += [
            {**result("mine:a"), "recipe": {"previous_action": True}},
            {**result("mine:b"), "recipe": {"frame_stack": 4, "previous_action": False}},
            result("mine:c"),
            result("mine:d"),
        ]
        found = contest(results, memory={"mine:d": "none"})
        assert {arm: found.memory_of(arm) for arm in found.arms} == {
            "lstm": "recurrent", "mlp": "none", "mlp-prev-action": "previous action",
            "frame-stack": "frames", "mine:a": "previous action", "mine:b": "frames",
            "mine:c": "unknown", "mine:d": "none",
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("env_id", "threshold"),
        [("awkward_envs:Awkward-v0", 4.5), ("awkward_envs:No-v0", None), ("no_module:X-v0", None)],
    )
    def test_what_counts_as_solved_is_as_registered_by_its_module(self, env_id, threshold):
        found = contest([result(env_id=env_id)])
        assert found.reward_threshold == threshold

    @pytest.mark.parametrize(
        ("env_kwargs", "threshold"),
        [
            ({"sutton_barto_reward": False, "render_mode": "rgb_array"}, 475.0),
            ({"max_episode_steps": 500}, 475.0),
            ({"sutton_barto_reward": True}, None),  # rewards are 0 and -1
            ({"max_episode_steps": 200}, None),
            ({"gravity": 1.0}, None),  # it knows no such argument
        ],
    )
    def test_what_counts_as_solved_is_known_of_the_registered_arguments(
        self, env_kwargs, threshold
    ):
        found = contest([result(env_id="CartPole-v1", env_kwargs=env_kwargs)])
        assert found.reward_threshold == threshold

    def test_neither_ladder_nor_threshold_is_that_of_other_arguments(self):
        scores, kwargs = {"lstm": around(490), "mlp": around(200)}, {"flicker_prob": 0.3}
        found = verdict(scores, env_kwargs=kwargs)
        assert (found.scale.floor, found.scale.bar) == (None, None)
        assert found.outcome == "helps"
        assert "nothing says which score counts" in found.sentence
        assert verdict(scores, solved=400, env_kwargs=kwargs).outcome == "needed"

    def test_a_bar_that_was_kept_before_the_runs_stays(self):
        found = decide(
            contest(scored({"lstm": around(490), "mlp": around(200)},
                           env_kwargs={"flicker_prob": 0.3})),
            kept={"margin": None, "bar": 475.0, "floor": None},
        )  # fmt: skip
        assert found.scale.bar == 475.0

    def test_memory_of_an_arm_that_did_not_run_is_refused(self):
        with pytest.raises(ValueError, match=r"arms that ran \(lstm\), got 'lstn'"):
            contest([result()], memory={"lstn": "none"})

    def test_memory_of_an_arm_of_the_package_is_what_it_is(self):
        with pytest.raises(ValueError, match="of arms of your own, got 'lstm', of which it is kn"):
            contest([result()], memory={"lstm": "none"})

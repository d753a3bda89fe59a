"""The report: what is read, the verdict by its rule, the figures' parts and the page."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from html_outline import outline
from jinja2 import UndefinedError
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from synthetic_results import (
    PROVENANCE,
    SEVEN_ARMS,
    TWO_ARMS,
    drawn,
    result,
    scored,
    write,
    write_failure,
)

from thrust_pomdp.experiment.arms import ARMS
from thrust_pomdp.experiment.report import (
    Contest,
    Failure,
    Run,
    Verdict,
    contests,
    decide,
    figure_style,
    figures,
    number_format,
    page,
    read_folder,
    rule,
    tables,
    write_report,
)
from thrust_pomdp.experiment.report.runs import ARM_ORDER, label_of
from thrust_pomdp.experiment.report.text_and_csv import table, write_csv
from thrust_pomdp.experiment.runs import RunResult
from thrust_pomdp.experiment.statistics import estimate
from thrust_pomdp.reference import LADDER, normalized

ROOT = Path(__file__).parents[4]
FLICKERING = {rung.information: rung.mean for rung in LADDER["FlickeringCartPole-v0"]}
#: No ladder; a reward threshold of 475; neither.
NO_LADDER, NOTHING_KNOWN = "CartPole-v1", "Pendulum-v1"


def contest(results, **kwargs) -> Contest:
    (found,) = contests([Run.from_mapping(values) for values in results], **kwargs)
    return found


def around(centre: float, n_runs: int = 10, spread: float = 2.0) -> list[float]:
    """Scores that lie evenly about a centre, all different."""
    return (centre + spread * np.linspace(-1, 1, n_runs)).tolist()


def verdict(scores, margin=None, solved=None, memory=None, **kwargs) -> Verdict:
    return decide(contest(scored(scores, **kwargs), memory=memory), margin, solved)


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


class TestVerdict:
    """Each outcome on scores made for it; the ladder of FlickeringCartPole-v0 unless said."""

    def test_needed(self):
        found = verdict({"lstm": around(480), "mlp": around(170)})
        assert found.outcome == "needed"
        assert found.sentence.startswith("Memory is needed: LSTM (RecurrentPPO) reaches 480.0 [")
        assert "without memory: memoryless (SB3 PPO) 170.0 [" in found.sentence
        assert "the best memoryless controller found 199.6" in found.sentence

    def test_arms_that_do_it_with_less_memory_are_named(self):
        one_bit = "previous action only (SB3 PPO) 430.0 [429.0, 431.0]."
        scores = {"lstm": around(480), "mlp": around(170), "mlp-prev-action": around(430)}
        found = verdict({**scores, "frame-stack": around(220), "sb3-contrib": around(470)})
        assert found.outcome == "needed"
        assert found.sentence.endswith(f" Less memory does it too: {one_bit}")
        found = verdict({**scores, "mlp": around(262), "frame-stack": around(490)})
        assert found.outcome == "helps"  # the best arm has less memory than the LSTM
        assert found.sentence.endswith(f" Less memory does it too: {one_bit}")
        assert "Less" not in verdict({"mlp": around(170), "mlp-prev-action": around(430)}).sentence

    def test_helps_where_the_bar_is_not_surely_met(self):
        found = verdict({"lstm": around(255), "mlp": around(170)})
        assert found.outcome == "helps"
        assert "LSTM (RecurrentPPO) does not surely reach the bar of 261.2" in found.sentence

    def test_helps_where_a_memoryless_arm_may_meet_the_bar(self):
        found = verdict({"lstm": around(480), "mlp": around(262)})
        assert found.outcome == "helps"
        assert "memoryless (SB3 PPO) may reach the bar of 261.2" in found.sentence

    def test_helps_where_the_ladders_memoryless_controller_meets_the_bar(self):
        kwargs = {"flicker_prob": 0.25}  # the best memoryless controller gets 480
        found = verdict({"lstm": around(499.9, spread=0.01), "mlp": around(200)}, env_kwargs=kwargs)
        # 16 of 478 are less than the margin of 5 %, however much better than the arm.
        assert found.outcome == "useless"
        found = verdict(
            {"lstm": around(499.9, spread=0.01), "mlp": around(200)}, margin=1, env_kwargs=kwargs
        )
        assert found.outcome == "helps"
        assert "a memoryless controller may reach the bar" in found.sentence

    def test_a_badly_trained_memoryless_arm_does_not_make_memory_help(self):
        # Better than the arm by 100, yet no better than what the ladder reaches without memory.
        found = verdict({"lstm": around(200), "mlp": around(100)})
        assert found.outcome == "not decided"

    def test_useless_without_a_ladder(self):
        found = verdict({"lstm": around(300), "mlp": around(299)}, env_id=NO_LADDER)
        assert found.outcome == "useless"
        assert "none gains as much as the margin of 15.0" in found.sentence
        assert "the gain of LSTM (RecurrentPPO) over memoryless (SB3 PPO), 1.00 [" in found.sentence

    def test_useless_where_memory_hurts(self):
        found = verdict({"lstm": around(200), "mlp": around(299)}, env_id=NO_LADDER)
        assert found.outcome == "useless"

    def test_useless_where_all_scores_are_equal(self):
        for score in (7.0, 0.0):
            found = verdict(
                {"lstm": [score] * 5, "mlp": [score] * 5}, env_id=NOTHING_KNOWN, start=-100.0,
                n_episodes=(1, 1), stochastic_share=-9.0,
            )  # fmt: skip
            assert found.gains[0].interval == (0.0, 0.0)
            assert found.outcome == "useless"

    def test_useless_is_not_said_against_the_ladder(self):
        found = verdict({"lstm": around(150), "mlp": around(150)})
        assert found.outcome == "not decided"
        assert "by the ladder an exact model gains 300.4" in found.sentence
        assert "did not learn to use their memory" in found.sentence

    def test_needed_without_a_ladder_takes_the_reward_threshold(self):
        scores = {"lstm": around(490), "mlp": around(200)}
        found = verdict(scores, env_id=NO_LADDER)
        assert found.outcome == "needed"
        assert "The bar is 475.0, the environment's reward threshold" in found.sentence

    def test_needed_is_never_said_where_nothing_tells_the_bar(self):
        found = verdict({"lstm": around(-200), "mlp": around(-900)}, env_id=NOTHING_KNOWN)
        assert found.outcome == "helps"
        assert "nothing says which score counts" in found.sentence
        found = verdict(
            {"lstm": around(-200), "mlp": around(-900)}, solved=-300, env_id=NOTHING_KNOWN
        )
        assert found.outcome == "needed"

    @pytest.mark.parametrize("n_runs", [1, 2, 4])
    def test_fewer_than_five_runs_decide_nothing(self, n_runs):
        found = verdict({"lstm": around(480, n_runs), "mlp": around(170, n_runs)})
        assert found.outcome == "not decided"
        assert (
            f"most of one arm are {n_runs} with memory and {n_runs} without memory"
            in found.sentence
        )
        assert verdict({"lstm": around(480, 5), "mlp": around(170, 5)}).outcome == "needed"

    @pytest.mark.parametrize(
        ("arms", "missing"),
        [(["lstm", "lstm-prev-action"], "without memory"), (["mlp"], "with memory")],
    )
    def test_one_side_alone_decides_nothing(self, arms, missing):
        found = verdict({arm: around(480) for arm in arms})
        assert found.sentence == f"Not decided with these seeds: no arm {missing} took part."

    def test_an_arm_of_which_nothing_is_known_takes_no_part_until_the_user_says(self):
        scores = {"lstm": around(480), "mine:a": around(100), "mine:b": around(100, 3)}
        found = verdict(scores)
        assert found.outcome == "not decided"
        assert found.left_out[0] == "mine:a: whether it has memory is not known"
        found = verdict(scores, memory={"mine:a": "none", "mine:b": "none"})
        assert found.outcome == "needed"
        assert found.left_out == ["mine:b: 3 finished runs, fewer than 5"]

    def test_not_decided_where_the_gain_may_be_nothing(self):
        found = verdict(
            {"lstm": around(310, spread=60), "mlp": around(290, spread=60)}, env_id=NO_LADDER
        )
        assert found.outcome == "not decided"
        assert "that there is none cannot be ruled out" in found.sentence

    def test_not_decided_where_the_margin_is_in_doubt(self):
        found = verdict(
            {"lstm": around(310, spread=8), "mlp": around(298, spread=8)}, env_id=NO_LADDER
        )
        (gain,) = found.gains
        assert 0 < gain.interval[0] < gain.value < found.scale.margin < gain.highest
        assert found.outcome == "not decided"
        assert "whether it reaches the margin of 15.5 is open" in found.sentence

    def test_the_exact_test_has_a_say_beside_the_interval(self):
        # Of 25 pairs 22 are won: p = 14/252, a little too much.
        lstm, mlp = [1.5, 100.0, 101.0, 102.0, 103.0], [0.0, 1.0, 2.0, 3.0, 4.0]
        scores = {"lstm": lstm, "mlp": mlp}
        found = verdict(scores, env_id=NOTHING_KNOWN, start=0.0, stochastic_share=0.5)
        (gain,) = found.gains
        assert gain.interval[0] > 0
        assert gain.value > found.scale.margin
        assert gain.p == pytest.approx(14 / 252)
        assert found.outcome == "not decided"
        assert "the exact test gives p = " in found.sentence

    def test_every_memoryless_arm_must_be_beaten(self):
        scores = {"lstm": around(400), "mlp": around(170), "mine:a": around(399)}
        found = verdict(scores, memory={"mine:a": "none"}, env_id=NO_LADDER)
        assert found.outcome == "useless"

    def test_one_arm_with_memory_is_enough(self):
        found = verdict({"lstm": around(100), "frame-stack": around(480), "mlp": around(170)})
        assert found.outcome == "needed"
        assert "last few frames" in found.sentence or "frame-stack" in found.sentence

    def test_the_error_is_split_over_the_arms_with_memory(self):
        scores = {"lstm": around(480, 5, 50), "mlp": around(470, 5, 50)}
        (alone,) = verdict(scores, env_id=NO_LADDER).gains
        more = {"frame-stack": around(300), "sb3-contrib": around(300)}
        among = next(g for g in verdict(scores | more, env_id=NO_LADDER).gains if g.arm == "lstm")
        assert among.interval[0] < alone.interval[0] < alone.interval[1] < among.interval[1]
        assert among.highest == alone.highest

    def test_a_previous_action_is_memory_and_never_memoryless(self):
        found = verdict({"lstm": around(480), "mlp-prev-action": around(170)})
        assert found.sentence == "Not decided with these seeds: no arm without memory took part."

    def test_two_equal_arms_are_rarely_called_different(self):
        rng = np.random.default_rng(0)
        wrong = 0
        for _ in range(100):
            scores = {arm: rng.normal(300, 60, 6).tolist() for arm in ("lstm", "mlp")}
            wrong += verdict(scores, env_id=NOTHING_KNOWN, n_episodes=(1, 1)).outcome == "helps"
        # One-sided 2.5 %, kept by the exact test: 2.5 expected, and 5 sigma above it is 10.
        assert wrong <= 10

    def test_the_margin_cannot_be_negative(self):
        with pytest.raises(ValueError, match="margin must be at least 0, got -1"):
            decide(contest([result()]), margin=-1)

    def test_the_rule_on_the_page_is_the_one_in_the_code(self, tmp_path):
        written = write_report([write(tmp_path, [result()])]).page
        words = " ".join(" ".join(outline(written).text).split())
        assert " ".join(rule.RULE) in words
        assert len(rule.RULE) == 7


def _bands(axes) -> list[PolyCollection]:
    return [found for found in axes.collections if isinstance(found, PolyCollection)]


class TestFigures:
    def drawn(self, results, name: str, width: float = figure_style.WIDE):
        _, draw = figures.pictures(contest(results))[name]
        figure = draw(width)
        FigureCanvasAgg(figure).draw()
        return figure

    @pytest.mark.parametrize("width", [figure_style.WIDE, figure_style.NARROW])
    def test_the_curves_have_a_line_per_arm_and_rung_and_a_band_per_arm(self, width):
        figure = self.drawn(drawn(SEVEN_ARMS, 3), "curves", width)
        (axes,) = figure.axes
        assert len(axes.lines) == 7 + 5
        assert len(_bands(axes)) == 7
        assert len({line.get_color() for line in axes.lines[:7]}) == 7
        (legend,) = figure.legends
        assert len(legend.get_texts()) == 7

    def test_the_centre_is_the_interquartile_mean_of_the_runs(self):
        curves = [[[0, 0.0], [100, value]] for value in (1.0, 2.0, 3.0, 100.0)]
        results = [{**result(seed=seed), "curve": curve} for seed, curve in enumerate(curves)]
        figure = self.drawn(results, "curves")
        x, y = figure.axes[0].lines[0].get_data()
        assert (x[0], y[0]) == (0, 0)
        assert (x[-1], y[-1]) == (100, 2.5)

    def test_one_run_has_a_line_and_no_band(self):
        (axes,) = self.drawn([result()], "curves").axes
        assert len(axes.lines) == 1 + 5
        assert not _bands(axes)

    def test_runs_are_summarised_where_all_have_points(self):
        curves = [[[100, 1.0], [300, 3.0]], [[200, 2.0], [500, 5.0]]]
        results = [{**result(seed=seed), "curve": curve} for seed, curve in enumerate(curves)]
        x, y = self.drawn(results, "curves").axes[0].lines[0].get_data()
        assert (x[0], x[-1]) == (200, 300)
        assert y == pytest.approx(x / 100)

    def test_an_arm_of_the_package_looks_the_same_on_every_page(self):
        for arms in itertools.permutations(("mlp", "lstm", "mine:a")):
            styles = figure_style.styles(arms)
            assert styles["lstm"].colour == "#0072B2"
            assert styles["mlp"].colour == "#D55E00"
            assert styles["mine:a"].colour == "#000000"

    def test_a_variant_of_an_arm_has_its_colour_and_other_dashes(self):
        styles = figure_style.styles(
            ["lstm-prev-action", "lstm-prev-action-privileged", "gru-prev-action"]
        )
        assert len({style.colour for style in styles.values()}) == 1
        assert len({style.dashes for style in styles.values()}) == 3

    def test_without_colours_all_arms_of_the_package_differ_by_their_shapes(self):
        styles = figure_style.styles([*ARM_ORDER, "mine:a", "mine:b"])
        assert len({style.marker for style in styles.values()}) == len(styles)
        figure = self.drawn(drawn(SEVEN_ARMS, 3), "curves")
        lines = figure.axes[0].lines[:7]
        assert len({line.get_marker() for line in lines}) == 7
        in_legend = figure.legends[0].get_lines()
        assert [line.get_marker() for line in in_legend] == [line.get_marker() for line in lines]

    @pytest.mark.parametrize(("end", "explained"), [(50.0, True), (99.0, False)])
    def test_curves_that_end_far_below_the_scores_are_explained(self, end, explained, tmp_path):
        values = {**result(), "curve": [[0, 0.0], [100, end]]}
        values["deterministic"], values["stochastic"] = [100.0] * 100, [90.0] * 1000
        note = figures.lag_note(contest([values]))
        about, _ = figures.pictures(contest([values]))["curves"]
        assert bool(note) == explained
        assert ("scores 100.0; its curve ends at 50.0" in note) == explained
        assert ("Tables: the policy at the end" in about) == explained
        figures.plot([Run.from_mapping(values)], tmp_path / "curves.png")
        assert (tmp_path / "curves.png").stat().st_size > 0

    def test_no_two_of_twenty_arms_look_the_same(self):
        styles = figure_style.styles([f"mine:{number}" for number in range(20)])
        assert len(set(styles.values())) == 20

    @pytest.mark.parametrize("width", [figure_style.WIDE, figure_style.NARROW])
    def test_no_words_leave_the_picture_or_cover_each_other(self, width):
        for name in ("curves", "scores", "gap"):
            figure = self.drawn(drawn(SEVEN_ARMS, 2), name, width)
            renderer = figure.canvas.get_renderer()
            (axes,) = figure.axes
            whole = figure.bbox.padded(1)
            for text in axes.texts:
                box = text.get_window_extent(renderer)
                assert whole.x0 <= box.x0, text
                assert box.x1 <= whole.x1, text
                assert whole.y0 <= box.y0, text
                assert box.y1 <= whole.y1, text
            level = [text for text in axes.texts if not text.get_rotation()]
            for one, other in itertools.combinations(level, 2):
                boxes = one.get_window_extent(renderer), other.get_window_extent(renderer)
                assert not boxes[0].overlaps(boxes[1]), (one, other)

    @pytest.mark.parametrize(
        ("curve", "names"),
        [
            ([], {"scores", "gap"}),
            ([[2048, 20.0]], {"curves", "scores", "gap", "time"}),
        ],
    )
    def test_short_curves_and_none_are_no_fault(self, curve, names):
        results = [{**result(arm, extras=False), "curve": curve} for arm in TWO_ARMS]
        found = figures.pictures(contest(results))
        assert set(found) == names
        for _, draw in found.values():
            draw(figure_style.NARROW).canvas.draw()

    def test_evaluations_are_drawn_in_the_mode_of_the_arm(self):
        values = result(stochastic_share=2.0)
        values["evaluations"] = [[0, 0.0, 1.0, 2.0], [10, 1.0, 3.0, 4.0]]
        found = contest([values])
        assert found.mode_of("lstm") == "stochastic"
        y = self.drawn([values], "evaluations").axes[0].lines[0].get_ydata()
        assert (y[0], y[-1]) == (2.0, 4.0)

    @pytest.mark.parametrize(
        ("places", "expected"),
        [
            ([], []),
            ([0.5], [0.5]),
            ([0.2, 0.8], [0.2, 0.8]),
            ([0.5, 0.5, 0.5], [0.4, 0.5, 0.6]),
            ([0.95, 1.0, 1.0], [0.8, 0.9, 1.0]),
            ([0.0, 0.55, 0.6, 0.61], [0.0, 0.486667, 0.586667, 0.686667]),
        ],
    )
    def test_labels_are_moved_as_little_as_it_takes(self, places, expected):
        assert figure_style.spread_out(places, 0.1) == pytest.approx(expected)


@pytest.fixture
def without_pictures(monkeypatch):
    """Drawing takes most of the time, and words are there without."""
    monkeypatch.setattr(page, "_draw", lambda about, draw, path: None)


class TestPage:
    @pytest.mark.parametrize(("arms", "n_seeds"), [(TWO_ARMS, 1), (SEVEN_ARMS, 10)])
    def test_stands_alone_and_shows_all_arms(self, tmp_path, arms, n_seeds):
        report = write_report([write(tmp_path, drawn(arms, n_seeds, n_episodes=(10, 10)))])
        assert report.n_runs == len(arms) * n_seeds
        found = outline(report.page)
        assert found.sources
        assert all(source.startswith("data:image/svg+xml;base64,") for source in found.sources)
        assert "http" not in "".join(found.text)
        text = " ".join(found.text)
        for arm in arms:
            assert label_of(arm) in text
        assert report.verdicts["FlickeringCartPole-v0"].sentence in text
        names = {path.name for path in tmp_path.glob("*.png")}
        assert names == {f"{n}.png" for n in ("curves", "evaluations", "scores", "gap", "time")}
        for name in names:
            assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")

    @pytest.mark.usefixtures("without_pictures")
    def test_tells_rule_versions_machine_revision_command_and_recipes(self, tmp_path):
        text = " ".join(outline(write_report([write(tmp_path, [result()])]).page).text)
        for sentence in rule.RULE:
            assert sentence in text
        assert PROVENANCE["command"] in text
        assert PROVENANCE["revision"] in text
        assert "versions.torch" in text
        assert "policy_kwargs.lstm_hidden_size" in text

    def test_what_is_not_known_is_not_shown(self, tmp_path):
        text = " ".join(outline(write_report([write(tmp_path, [result(extras=False)])]).page).text)
        assert "Recipes" not in text
        assert "versions" not in text
        assert not (tmp_path / "evaluations.png").exists()

    @pytest.mark.usefixtures("without_pictures")
    def test_figures_on_the_page_are_those_of_the_statistics(self, tmp_path):
        results = drawn(TWO_ARMS, 6)
        text = " ".join(outline(write_report([write(tmp_path, results)]).page).text)
        found = contest(results)
        for arm, mode in itertools.product(TWO_ARMS, ("deterministic", "stochastic")):
            assert number_format.format_estimate(estimate([found.scores(arm, mode)])) in text

    @pytest.mark.usefixtures("without_pictures")
    def test_a_quantity_has_one_name_in_terminal_page_and_csv(self, tmp_path):
        results = [Run.from_mapping(values) for values in drawn(TWO_ARMS, 1)]
        (terminal,) = (line for line in table(results).splitlines() if " seed " in line)
        write_csv(results, tmp_path)
        names = (tmp_path / "summary.csv").read_text().splitlines()[0].replace("_", " ").split(",")
        assert terminal.split() == " ".join(names).split()
        on_page = tables.runs(contest(drawn(TWO_ARMS, 1)))
        assert sorted(head.lower() for head in on_page.head) == sorted(names)
        scores = " ".join(tables.scores(contest(drawn(TWO_ARMS, 1))).head)
        assert "Most likely: IQM" in scores
        assert "Sampled: IQM" in scores
        whole = write_report([write(tmp_path, drawn(TWO_ARMS, 1))]).page.read_text().lower()
        assert "stochastic" not in whole
        assert "deterministic" not in whole

    @pytest.mark.usefixtures("without_pictures")
    def test_one_run_has_no_interval_and_no_nan(self, tmp_path):
        text = " ".join(outline(write_report([write(tmp_path, [result()])]).page).text)
        assert "480.0 (one run)" in text
        assert "nan" not in text.lower().replace("finance", "")

    @pytest.mark.usefixtures("without_pictures")
    def test_failed_runs_are_listed_and_markup_in_them_is_text(self, tmp_path):
        write(tmp_path, [result()])
        write_failure(tmp_path, "mlp-seed0", "ValueError: <script>alert(1)</script> & so on")
        report = write_report([tmp_path])
        assert report.failures == [
            Failure("mlp-seed0", "ValueError: <script>alert(1)</script> & so on")
        ]
        assert "<script" not in report.page.read_text()
        text = " ".join(outline(report.page).text)
        assert "1 run failed and took no part:" in text
        assert "ValueError: <script>alert(1)</script> & so on" in text

    def test_only_failed_runs_still_make_a_page(self, tmp_path):
        write_failure(tmp_path, "mlp-seed0", "ValueError: no")
        report = write_report([tmp_path])
        assert report.verdicts == {}
        assert "ValueError: no" in " ".join(outline(report.page).text)

    def test_other_environments_negative_rewards_and_long_names_work(self, tmp_path):
        env_id = "a_package." + "environments." * 12 + "module:Masked<Pendulum>-v1"
        results = scored(
            {"lstm": around(-250, 5), "mlp": around(-900, 7), "a.b:" + "c" * 150: [-500.0]},
            env_id=env_id, env_kwargs={"mask": ["theta"] * 9}, start=-1400.0, extras=False,
        )  # fmt: skip
        write(tmp_path / "a", results[:-1])
        write(tmp_path / "b", drawn(TWO_ARMS, 5))
        report = write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
        assert [v.outcome for v in report.verdicts.values()] == ["helps", "needed"]
        text = " ".join(outline(report.page).text)
        assert env_id in text
        assert len(list((tmp_path / "out").glob("*.png"))) == 3 + 5

    @pytest.mark.usefixtures("without_pictures")
    def test_several_environments_are_summed_up_on_their_ladders(self, tmp_path):
        write(tmp_path / "a", drawn(TWO_ARMS, 5))
        write(tmp_path / "b", drawn(TWO_ARMS, 5, env_id="MaskedCartPole-v0"))
        report = write_report([tmp_path / "a", tmp_path / "b"], tmp_path)
        text = " ".join(outline(report.page).text)
        assert "All environments" in text
        found = [contest(drawn(TWO_ARMS, 5, env_id=env_id))
                 for env_id in ("FlickeringCartPole-v0", "MaskedCartPole-v0")]  # fmt: skip
        both = estimate([tables.gap_closed(one, "lstm") for one in found])
        assert number_format.format_estimate(both, 1.0) in text
        with pytest.raises(ValueError, match="must be None for several environments"):
            write_report([tmp_path / "a", tmp_path / "b"], tmp_path, margin=1.0)

    @pytest.mark.usefixtures("without_pictures")
    def test_versions_that_differ_between_runs_are_all_shown(self, tmp_path):
        results = [result(seed=0), result(seed=1)]
        results[1]["provenance"] = {**PROVENANCE, "revision": "another revision"}
        text = " ".join(outline(write_report([write(tmp_path, results)]).page).text)
        assert PROVENANCE["revision"] in text
        assert "another revision" in text

    def test_of_many_different_values_a_few_are_shown(self):
        runs = [
            Run.from_mapping({**result(), "provenance": {"started": f"at {number} o'clock"}})
            for number in range(10)
        ]
        ((name, shown),) = tables.provenance(runs).rows
        assert name == "started"
        assert [line.text for line in shown[:-1]] == [f"at {number} o'clock" for number in range(4)]
        assert shown[-1] == "and 6 more"

    def test_the_same_results_make_the_same_page(self, tmp_path):
        write(tmp_path, drawn(TWO_ARMS, 2))
        first = write_report([tmp_path], tmp_path / "1").page.read_bytes()
        assert write_report([tmp_path], tmp_path / "2").page.read_bytes() == first

    def test_a_hundred_runs_take_less_than_20_seconds(self, tmp_path):
        arms = {f"mine:{number}": (100.0 * number, 20.0) for number in range(8)} | TWO_ARMS
        write(tmp_path, drawn(arms, 10))
        start = time.process_time()
        report = write_report([tmp_path])
        seconds = time.process_time() - start
        assert report.n_runs == 100
        assert seconds < 20, seconds  # of one core; measured 7 s


class TestCaptions:
    @pytest.mark.parametrize("end", [480.0, 100.0])  # a curve that lags far behind is explained
    def test_are_sentences(self, tmp_path, end):
        results = [{**one, "curve": [[at, end] for at, _ in one["curve"]]} for one in drawn(
            TWO_ARMS, 3, n_episodes=(10, 10))]  # fmt: skip
        text = write_report([write(tmp_path, results)]).page.read_text()
        captions = re.findall("<figcaption>(.*?)</figcaption>", text, re.DOTALL)
        assert len(captions) == 5
        assert ("its curve ends at" in text) == (end == 100.0)
        for caption in captions:
            assert re.fullmatch(r"[A-Z].*[^.](\.|\.\))", caption, re.DOTALL), caption


class TestTemplate:
    def tabulated(self, table: tables.Table) -> str:
        parts = page._template().environment.get_template("parts.html.jinja")
        return "".join(parts.module.tabulated(table).split("\n"))

    def test_text_is_escaped_wherever_it_stands(self):
        text = """<i> & 'so' "on\""""
        safe = "&lt;i&gt; &amp; &#39;so&#39; &#34;on&#34;"
        found = self.tabulated(tables.Table([text], [[text], [tables.Marked("b", text)], [[text]]]))
        assert found.count(safe) == 4
        assert "<i>" not in found

    def test_wide_tables_scroll_in_a_box_of_their_own(self):
        found = self.tabulated(tables.Table(["a", "b"], [["x", "1"]]))
        assert found.startswith('<div class="scroll" tabindex="0"><table>')
        assert '<td class="words">x</td><td class="number">1</td>' in found

    def test_a_cell_has_marks_and_lines(self):
        cells = [tables.Marked("b", "x"), ["y", tables.Marked("code", "z")], []]
        found = self.tabulated(tables.Table([], [cells], words=range(3)))
        shown = ("<b>x</b>", "y<br><code>z</code>", "")
        assert "".join(f'<td class="words">{cell}</td>' for cell in shown) in found

    def test_what_it_asks_for_and_is_not_given_is_an_error(self):
        with pytest.raises(UndefinedError, match="'sections' is undefined"):
            page._template().render(n_arms=1)


class TestScript:
    def call(self, *arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-W", "error", str(ROOT / "scripts" / "report.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    def test_makes_the_page_of_a_folder_and_says_what_it_says(self, tmp_path):
        write(tmp_path, drawn(TWO_ARMS, 5))
        done = self.call(str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert "FlickeringCartPole-v0: Memory is needed" in done.stdout
        assert f"Written: {tmp_path}/report.html (10 runs, " in done.stdout
        assert (tmp_path / "report.html").exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["nowhere"], "folder must be one of a comparison"),
            (["{}", "--memoryless", "lstn"], "got 'lstn'"),
            (["{}", "--margin", "-1"], "--margin: must be at least 0, got -1"),
            (["{}", "--out", "/proc/nowhere"], "No such file or directory"),
            ([], "the following arguments are required: DIR"),
        ],
    )
    def test_bad_arguments_exit_with_2_and_a_message(self, tmp_path, arguments, message):
        write(tmp_path, [result()])
        done = self.call(*(argument.format(tmp_path) for argument in arguments))
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize("module", ["jinja2", "matplotlib"])
    def test_without_it_the_message_tells_what_to_install(self, tmp_path, monkeypatch, module):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=r"pip install 'thrust-pomdp\[compare\]'"):
            write_report([write(tmp_path, [result()])])

    def test_a_page_is_made_without_torch(self, tmp_path):
        write(tmp_path, [result()])
        code = (
            "import sys; from pathlib import Path; from thrust_pomdp.experiment import report; "
            f"report.write_report([Path({str(tmp_path)!r})]); print('torch' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "False", done.stderr

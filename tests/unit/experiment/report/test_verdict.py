"""The verdict by its rule."""

from __future__ import annotations

import numpy as np
import pytest
from html_outline import outline
from synthetic_results import (
    NO_LADDER,
    NOTHING_KNOWN,
    around,
    contest,
    result,
    verdict,
    write,
)

from thrust_pomdp.experiment.report import (
    decide,
    rule,
    write_report,
)


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

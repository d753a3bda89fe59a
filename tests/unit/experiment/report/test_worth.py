"""What memory is worth, as one number: against arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_results import around, contest, scored, write

from thrust_pomdp.experiment.report import worth_of, write_report
from thrust_pomdp.experiment.report.gains import samples_of
from thrust_pomdp.experiment.report.worth import format_half_life, half_life_of


def of(scores, **kwargs):
    return worth_of(contest(scored(scores, **kwargs)))


def test_it_is_the_share_of_the_gap():
    worth = of({"lstm": around(400), "mlp": around(100), "state": around(500)})
    (share,) = worth.shares
    assert (worth.without, worth.state, share.arm) == ("mlp", "state", "lstm")
    assert worth.gap.value == pytest.approx(400)
    assert share.improvability.value == pytest.approx(0.75)
    low, high = share.improvability.interval
    assert 0.74 < low < 0.75 < high < 0.76


def test_numerator_and_denominator_have_the_same_runs_without_memory():
    # With memory as good as the state, run by run, all that varies is what both are taken from.
    scores = {"lstm": [500.0] * 10, "mlp": around(100, spread=90), "state": [500.0] * 10}
    worth = of(scores)
    assert worth.gap.interval[1] - worth.gap.interval[0] > 20
    assert worth.shares[0].improvability.interval == pytest.approx((1.0, 1.0))


def test_the_interval_is_that_of_the_resamples():
    scores = {"lstm": around(400, 7, 60), "mlp": around(100, 9, 30), "state": around(450, 5, 20)}
    runs = contest(scored(scores))
    drawn = samples_of({arm: np.array(runs.scores(arm)) for arm in scores})
    ratio = (drawn["lstm"] - drawn["mlp"]) / (drawn["state"] - drawn["mlp"])
    (share,) = worth_of(runs).shares
    assert share.improvability.interval == pytest.approx(np.quantile(ratio, [0.025, 0.975]))


def test_the_best_without_memory_is_what_counts():
    worth = of({
        "lstm": around(400), "mlp": around(100), "mlp-prev-action": around(300),
        "state": around(500),
    })  # fmt: skip
    assert worth.without == "mlp"
    shares = {share.arm: share.improvability.value for share in worth.shares}
    # The previous action is some memory.
    assert shares == {"lstm": pytest.approx(0.75), "mlp-prev-action": pytest.approx(0.5)}


@pytest.mark.parametrize("state", [100.0, 101.0, 60.0])
def test_a_share_of_what_may_be_nothing_is_not_told(state):
    worth = of({"lstm": around(110), "mlp": around(100, spread=20), "state": around(state)})
    assert worth.gap.interval[0] <= 0
    assert worth.shares[0].improvability is None
    assert "Nothing to gain was found" in worth.lines[0]


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        ({"lstm": around(1), "mlp": around(0)}, "no arm saw the state"),
        ({"lstm": around(1), "mlp": around(0), "state": [1.0, 2.0]}, "fewer than 5 runs"),
        ({"lstm": [1.0], "mlp": around(0), "state": around(1)}, "takes 5 runs"),
        ({"state": around(1)}, "takes 5 runs"),
    ],
)
def test_without_arms_it_is_said_what_is_missing(scores, reason):
    assert reason in of(scores)


def test_the_state_takes_no_part_in_the_verdict(tmp_path):
    scores = {"lstm": around(480), "mlp": around(160)}
    first = write_report([write(tmp_path / "a", scored(scores))]).verdicts
    scores["state"] = around(500)
    report = write_report([write(tmp_path / "b", scored(scores))])
    (one,), (other,) = first.values(), report.verdicts.values()
    assert one.sentence == other.sentence
    assert other.left_out == []
    page = report.page.read_text()
    assert "Observability gap: sees the state (SB3 PPO) gains 340.0 [" in page
    assert "LSTM (RecurrentPPO) 0.94 [" in page


def test_half_lives_of_runs(tmp_path):
    results = scored({"lstm": around(480, 5), "mlp": around(160, 5)})
    for values, life in zip(results, [1.0, 3.0, 2.0, None, None] + [None] * 5, strict=True):
        values["half_life"] = life
    found = contest(results)
    assert half_life_of(found, "lstm") == 3.0  # longer than was looked counts as longest
    assert half_life_of(found, "mlp") is None
    assert "3 steps" in write_report([write(tmp_path, results)]).page.read_text()
    assert format_half_life(1.0) == "1 step"
    assert format_half_life(2.5) == "2.5 steps"

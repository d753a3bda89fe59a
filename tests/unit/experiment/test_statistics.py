"""Statistics of few runs: values by hand, those of rliable, and the edge cases."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import time

import numpy as np
import pytest
from scipy import stats

from thrust_pomdp.experiment import statistics
from thrust_pomdp.experiment.statistics import (
    Estimate,
    Reached,
    estimate,
    first_reaching,
    interquartile_mean,
    mann_whitney_p,
    mean,
    median_reaching,
    optimality_gap,
    percentile_interval,
    pointwise_estimates,
    probability_of_improvement,
    resampled,
    run_median,
    task_median,
)

AGGREGATES = (interquartile_mean, mean, task_median, optimality_gap)


def value(statistic, *tasks) -> float:
    return float(statistic([np.array(task, float) for task in tasks]))


class TestAggregatesByHand:
    def test_interquartile_mean_drops_the_best_and_worst_quarter(self):
        assert value(interquartile_mean, [1, 2, 3, 100, -50, 4, 5, 6]) == 3.5  # 2 3 4 5

    def test_a_quarter_is_rounded_down_so_below_four_runs_it_is_the_mean(self):
        assert value(interquartile_mean, [0, 0, 9]) == 3
        assert value(interquartile_mean, [0, 1, 2, 3, 100, 101, 102]) == (1 + 2 + 3 + 100 + 101) / 5

    def test_interquartile_mean_pools_the_runs_of_all_tasks(self):
        assert value(interquartile_mean, [0, 10], [4, 6]) == 5  # 4 6 remain

    def test_mean_weighs_tasks_alike_whatever_their_runs(self):
        assert value(mean, [0, 0, 0, 4], [5]) == 3

    def test_the_median_over_tasks_is_of_their_means(self):
        assert value(task_median, [0, 2], [9, 11], [3, 3]) == 3
        assert value(task_median, [0, 0, 9]) == 3  # one task: its mean

    def test_the_median_over_runs_is_of_single_runs(self):
        assert value(run_median, [0, 0, 9]) == 0
        assert value(run_median, [0, 1], [2, 10]) == 1.5

    def test_optimality_gap_gives_no_credit_beyond_1(self):
        assert value(optimality_gap, [0.5, 1.5]) == 0.25
        assert value(optimality_gap, [0.5, 1.5], [-1.0]) == pytest.approx(1.125)

    @pytest.mark.parametrize("statistic", [*AGGREGATES, run_median])
    def test_a_batch_is_what_its_rows_are_one_by_one(self, statistic):
        rng = np.random.default_rng(0)
        batch = [rng.normal(size=(50, 5)), rng.normal(size=(50, 8))]
        together = statistic(batch)
        assert together.shape == (50,)
        for row in range(50):
            assert together[row] == pytest.approx(float(statistic([b[row] for b in batch])))


class TestProbabilityOfImprovement:
    def test_counts_pairs_and_ties_half(self):
        # Of (1, 2, 4) against (2, 3): losses 1-2 1-3 2-3, a tie 2-2, wins 4-2 4-3.
        assert probability_of_improvement([[1, 2, 4]], [[2, 3]]).value == 2.5 / 6

    def test_is_the_mean_over_tasks(self):
        one = probability_of_improvement([[2, 3], [0]], [[1], [0, 1]], n_resamples=10)
        assert one.value == (1 + 0.25) / 2

    def test_both_ways_sum_to_1(self):
        rng = np.random.default_rng(1)
        first, second = [rng.integers(0, 9, 7)], [rng.integers(0, 9, 4)]
        there = probability_of_improvement(first, second).value
        assert there + probability_of_improvement(second, first).value == pytest.approx(1)

    def test_its_interval_resamples_the_runs_of_both(self):
        # Enumerated: each of 4 draws from (0, 2) against each of 4 from (1, 1): 0, 1/2, 1/2, 1.
        found = probability_of_improvement([[0, 2]], [[1, 1]])
        assert found == Estimate(0.5, (0.0, 1.0))
        found = probability_of_improvement([[0, 2]], [[1, 1]], level=0.4)
        assert found == Estimate(0.5, (0.5, 0.5))

    def test_other_tasks_are_refused(self):
        with pytest.raises(ValueError, match="of the same tasks, got 1 and 2 tasks"):
            probability_of_improvement([[1.0]], [[1.0], [2.0]])


class TestMannWhitney:
    def by_enumeration(self, first, second) -> float:
        """All ways to deal the scores, and how far apart the groups are by U."""
        scores = [*first, *second]

        def u(chosen):
            others = [i for i in range(len(scores)) if i not in chosen]
            return sum(np.sign(scores[i] - scores[j]) for i in chosen for j in others)

        deals = list(itertools.combinations(range(len(scores)), len(first)))
        observed = abs(u(range(len(first))))
        return sum(abs(u(deal)) >= observed for deal in deals) / len(deals)

    @pytest.mark.parametrize("sizes", [(1, 1), (3, 3), (5, 3), (2, 6), (4, 4)])
    def test_equals_the_enumeration_with_ties_and_without(self, sizes):
        rng = np.random.default_rng(2)
        for spread in (3, 4, 5, 6, 1000):
            first, second = (rng.integers(0, spread, size).tolist() for size in sizes)
            expected = self.by_enumeration(first, second)
            assert mann_whitney_p(first, second) == pytest.approx(expected)

    @pytest.mark.parametrize("n_runs", [2, 3, 4, 5, 10])
    def test_complete_separation_is_one_deal_in_all_each_way(self, n_runs):
        low, high = np.arange(n_runs), 100 + np.arange(n_runs)
        assert mann_whitney_p(low, high) == pytest.approx(2 / math.comb(2 * n_runs, n_runs))

    def test_equal_scores_say_nothing(self):
        assert mann_whitney_p([1.0, 1.0], [1.0, 1.0, 1.0]) == 1.0

    def test_many_runs_agree_with_the_normal_approximation(self):
        first, second = np.arange(60.0), np.arange(60.0) + 6.5
        u = np.sign(first[:, None] - second[None, :]).sum() / 2
        z = abs(u) / math.sqrt(60 * 60 * 121 / 12)
        assert mann_whitney_p(first, second) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.05)


class TestIntervals:
    def test_of_two_runs_by_enumeration(self):
        # Means of two draws from (0, 1): 0, 1/2, 1/2, 1.
        samples = resampled([[0.0, 1.0]], mean)
        shares = [(samples == point).mean() for point in (0, 0.5, 1)]
        assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.02)  # 5 sigma of 20,000

    def test_tasks_are_strata(self):
        # Were runs drawn across tasks, the mean would vary.
        assert estimate([[0.0, 0.0, 0.0], [9.0, 9.0]], mean) == Estimate(4.5, (4.5, 4.5))

    def test_one_run_has_none(self):
        assert estimate([[7.0]]) == Estimate(7.0, None)
        assert estimate([[7.0, 8.0], [7.0]], mean) == Estimate(7.25, None)
        assert probability_of_improvement([[7.0]], [[1.0, 2.0]]) == Estimate(1.0, None)

    @pytest.mark.parametrize("statistic", [interquartile_mean, mean, run_median])
    def test_equal_runs_have_a_point(self, statistic):
        assert estimate([[3.0] * 5], statistic) == Estimate(3.0, (3.0, 3.0))

    def test_are_repeatable_and_follow_the_seed(self):
        scores = [np.random.default_rng(3).normal(size=9)]
        assert estimate(scores, mean) == estimate(scores, mean)
        assert estimate(scores, mean) != estimate(scores, mean, seed=1)

    def test_a_higher_level_is_wider(self):
        scores = [np.random.default_rng(3).normal(size=9)]
        (low, high), (lower, higher) = (
            estimate(scores, level=level).interval for level in (0.8, 0.99)
        )
        assert lower < low < high < higher

    def test_hold_the_true_value_about_as_often_as_they_say(self):
        rng = np.random.default_rng(4)
        held = 0
        for _ in range(1000):
            low, high = estimate([rng.normal(size=20)], mean, n_resamples=500).interval
            held += low <= 0 <= high
        # Of 20 runs the percentile interval holds it in 92 to 93 %; 5 sigma are 4 %.
        assert 0.885 < held / 1000 < 0.97

    def test_percentiles_by_hand(self):
        assert percentile_interval(np.arange(101.0), 0.9) == pytest.approx((5.0, 95.0))


class TestCurves:
    def test_each_point_is_the_estimate_of_its_runs(self):
        values = np.random.default_rng(5).normal(size=(8, 4))
        centre, (low, high) = pointwise_estimates(values)
        for point in range(4):
            one = estimate([values[:, point]], n_resamples=2000)
            assert centre[point] == one.value
            assert (low[point], high[point]) == one.interval  # the same seed, the same draws

    def test_one_run_has_no_band(self):
        centre, band = pointwise_estimates([[1.0, 2.0]])
        assert centre.tolist() == [1.0, 2.0]
        assert band is None

    def test_no_points_are_no_fault(self):
        centre, (low, high) = pointwise_estimates(np.zeros((3, 0)))
        assert centre.shape == low.shape == high.shape == (0,)


class TestThresholds:
    CURVE = [(100, 1.0), (200, 5.0), (300, 4.0), (400, 9.0)]

    def test_the_first_point_at_or_above_counts(self):
        assert first_reaching(self.CURVE, 5.0) == 200
        assert first_reaching(self.CURVE, 5.1) == 400
        assert first_reaching(self.CURVE, 10.0) is None
        assert first_reaching([], 0.0) is None

    @pytest.mark.parametrize(
        ("found", "expected"),
        [
            ([300.0], Reached(300.0, 0, 1)),
            ([100.0, 300.0], Reached(200.0, 0, 2)),
            ([100.0, None, 300.0], Reached(300.0, 1, 3)),
            ([100.0, None, None], Reached(None, 2, 3)),
            ([100.0, None], Reached(None, 1, 2)),
            ([None], Reached(None, 1, 1)),
            ([None, None], Reached(None, 2, 2)),
            ([0.0], Reached(0.0, 0, 1)),
        ],
    )
    def test_runs_that_miss_count_as_later_than_all_others(self, found, expected):
        assert median_reaching(found) == expected


class TestBadInput:
    @pytest.mark.parametrize(
        ("scores", "message"),
        [
            ([], "scores must hold at least one task, got none"),
            ([[]], r"scores must be one list of run scores per task, got array\(\[\].* as task 0"),
            ([[1.0], []], "as task 1"),
            ([1.0, 2.0], "scores must be one list of run scores per task"),
            ([[1.0, math.nan]], "scores must be finite"),
            ([[1.0, math.inf]], "scores must be finite"),
        ],
    )
    def test_scores_that_are_none_are_refused(self, scores, message):
        with pytest.raises(ValueError, match=message):
            estimate(scores)

    def test_levels_and_numbers_are_checked(self):
        with pytest.raises(ValueError, match=r"level must lie between 0 and 1, got 95"):
            estimate([[1.0, 2.0]], level=95)
        with pytest.raises(ValueError, match=r"n_resamples must be at least 1, got 0"):
            estimate([[1.0, 2.0]], n_resamples=0)

    def test_curves_are_a_finite_matrix(self):
        for values in ([1.0, 2.0], [[1.0, math.nan]], np.zeros((0, 3))):
            with pytest.raises(ValueError, match=r"values must be a finite \[n_runs, n_points\]"):
                pointwise_estimates(values)

    def test_no_run_reaches_nothing(self):
        with pytest.raises(ValueError, match="found must hold at least one run"):
            median_reaching([])


class TestRliable:
    """The library of the paper on the same numbers."""

    def scores(self, seed: int, n_runs: int) -> np.ndarray:
        return np.random.RandomState(seed).gamma(2.0, 0.3, (n_runs, 3)).round(3)

    @property
    def pair(self) -> tuple[np.ndarray, np.ndarray]:
        first, second = self.scores(7, 10), self.scores(8, 7)
        first[0] = second[0]  # ties
        return first, second

    def test_its_recorded_values_are_met(self):
        """rliable 1.2.0: point estimates exactly, intervals (50,000 resamples) to their error."""
        first, second = self.pair
        recorded = [
            (interquartile_mean, 0.549625, (0.4089984375, 0.6711890625)),
            (mean, 0.5679333333333333, (0.4484658333333334, 0.6934)),
            (task_median, 0.5457, (0.3851, 0.7646)),
            (optimality_gap, 0.4602, (0.358, 0.5619)),
        ]
        for statistic, point, interval in recorded:
            found = estimate(first.T, statistic)
            assert found.value == pytest.approx(point, abs=1e-14)
            assert found.interval == pytest.approx(interval, abs=0.008)
        found = probability_of_improvement(first.T, second.T)
        assert found.value == pytest.approx(0.4928571428571429, abs=1e-14)
        # Of 5,000 resamples.
        assert found.interval == pytest.approx((0.3142261904761907, 0.6643452380952372), abs=0.015)

    def theirs(self) -> tuple:
        metrics = pytest.importorskip("rliable.metrics")
        return (
            metrics.aggregate_iqm,
            metrics.aggregate_mean,
            metrics.aggregate_median,
            metrics.aggregate_optimality_gap,
        )

    def test_it_agrees_on_other_numbers(self):
        metrics, theirs = pytest.importorskip("rliable.metrics"), self.theirs()
        for seed in range(20):
            first, second = self.scores(seed, 3 + seed), self.scores(100 + seed, 5)
            for ours, their in zip(AGGREGATES, theirs, strict=True):
                assert value(ours, *first.T) == pytest.approx(their(first), abs=1e-14)
            expected = metrics.probability_of_improvement(first, second)
            found = probability_of_improvement(first.T, second.T, n_resamples=10)
            assert found.value == pytest.approx(expected, abs=1e-14)

    def test_its_intervals_are_met(self):
        """Its library works with rliable==1.2.0, arch==6.3.0, numpy<2, pandas<2.2, scipy<1.12."""
        rly, theirs = pytest.importorskip("rliable.library"), self.theirs()
        first = self.scores(19, 22)
        np.random.seed(0)
        _, intervals = rly.get_interval_estimates(
            {"all": first}, lambda x: np.array([their(x) for their in theirs]), reps=10_000
        )
        for ours, ends in zip(AGGREGATES, intervals["all"].T, strict=True):
            assert estimate(first.T, ours).interval == pytest.approx(tuple(ends), abs=0.01)


class TestScipy:
    """What scipy.stats has of these; docs/architecture.md says why it is no dependency."""

    def test_it_agrees_on_the_exact_p_value_where_no_scores_tie(self):
        rng = np.random.default_rng(6)
        for sizes in ((3, 4), (10, 10), (7, 12)):
            first, second = (rng.normal(size=size) for size in sizes)
            expected = stats.mannwhitneyu(first, second, method="exact").pvalue
            assert mann_whitney_p(first, second) == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("first", "second", "exact", "theirs"),
        [  # runs that reach the most an episode can give; exact: by going through all deals
            ([500] * 10, [500] * 5 + [480, 470, 460, 450, 440], 0.0325, 0.0630),
            ([500] * 5, [500] * 2 + [480, 470, 460], 0.1667, 0.1508),
        ],
    )
    def test_its_exact_p_value_knows_no_ties_and_errs_both_ways(self, first, second, exact, theirs):
        found = stats.mannwhitneyu(first, second, method="exact").pvalue
        assert found == pytest.approx(theirs, abs=5e-5)
        assert mann_whitney_p(first, second) == pytest.approx(exact, abs=5e-5)

    def test_its_bootstrap_draws_the_same_runs_of_the_same_seed(self):
        tasks = [np.random.default_rng(7).normal(size=size) for size in (5, 3)]
        found = stats.bootstrap(
            tasks,
            lambda *draws, axis: interquartile_mean(draws),
            n_resamples=2000,
            vectorized=True,
            paired=False,
            method="percentile",
            rng=np.random.default_rng(0),
        )
        samples = resampled(tasks, interquartile_mean, n_resamples=2000)
        np.testing.assert_array_equal(found.bootstrap_distribution, samples)
        assert percentile_interval(samples) == pytest.approx(tuple(found.confidence_interval))

    def test_its_trimmed_mean_is_the_interquartile_mean(self):
        rng = np.random.default_rng(8)
        for n_runs in range(1, 14):
            scores = rng.normal(size=(50, n_runs))
            expected = stats.trim_mean(scores, 0.25, axis=-1)
            assert interquartile_mean([scores]) == pytest.approx(expected, abs=1e-14)


class TestCost:
    def test_a_hundred_intervals_of_ten_runs_take_seconds(self):
        scores = [np.random.default_rng(7).normal(size=10)]
        estimate(scores)
        start = time.process_time()
        for _ in range(100):
            estimate(scores)
        assert time.process_time() - start < 10  # measured 1.6 s

    def test_no_torch_is_loaded(self):
        code = f"import sys, {statistics.__name__}; print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "False"

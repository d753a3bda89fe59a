"""Masks from flags, and running statistics of what is visible, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.wrappers.utils import RunningMeanStd as GymnasiumStatistics
from stable_baselines3.common.running_mean_std import RunningMeanStd as SB3Statistics

from thrust_pomdp.wrappers.visible_statistics import blank_mask, key_flags, tells, update_visible

#: Both libraries' running statistics start from one 1e-4th of a sample of mean 0 and variance 1.
PRIOR = 1e-4

each_library = pytest.mark.parametrize("statistics_of", [SB3Statistics, GymnasiumStatistics])


def bits(statistics: Any) -> tuple[bytes, bytes, bytes]:
    return tuple(
        np.asarray(x).tobytes() for x in (statistics.mean, statistics.var, statistics.count)
    )


def by_hand(*samples: float) -> tuple[float, float, float]:
    """Mean, variance and count of a prior and one batch of samples."""
    n = len(samples)
    mean = sum(samples) / n
    var = sum((sample - mean) ** 2 for sample in samples) / n
    total = n + PRIOR
    spread = PRIOR + var * n + mean**2 * PRIOR * n / total
    return mean * n / total, spread / total, total


class TestBlankMask:
    FRAMES = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]])

    def test_flags_for_whole_frames_become_one_bool_per_frame(self) -> None:
        mask = blank_mask(self.FRAMES, [True, False, np.bool_(True)])
        assert mask.dtype == bool
        assert mask.tolist() == [True, False, True]

    def test_zero_dimensional_arrays_are_flags_for_whole_frames(self) -> None:
        mask = blank_mask(self.FRAMES, [np.array(True), np.array(False), False])
        assert mask.tolist() == [True, False, False]

    def test_without_a_flag_nothing_is_blank(self) -> None:
        assert blank_mask(self.FRAMES, [None, None, None]).tolist() == [False] * 3
        assert blank_mask(self.FRAMES, [None, None, True]).tolist() == [False, False, True]

    def test_without_a_flag_exactly_all_zero_frames_are_blank_where_that_is_said(self) -> None:
        assert blank_mask(self.FRAMES, [None] * 3, True).tolist() == [False, True, False]
        assert blank_mask(self.FRAMES, [None, None, True], True).tolist() == [False, True, True]

    @pytest.mark.parametrize("zero_is_blank", [False, True])
    def test_a_flag_overrules_what_the_frame_looks_like(self, zero_is_blank: bool) -> None:
        mask = blank_mask(self.FRAMES, [True, False, None], zero_is_blank)
        assert mask.tolist() == [True, False, False]

    def test_nan_minus_zero_and_the_smallest_number_are_told_apart_from_zero(self) -> None:
        frames = np.array([[np.nan], [-0.0], [5e-324]])
        assert blank_mask(frames, [None] * 3, True).tolist() == [False, True, False]

    def test_flags_for_components_keep_the_shape_of_the_frame(self) -> None:
        mask = blank_mask(self.FRAMES, [[True, False], np.array([False, True]), (True, True)])
        assert mask.tolist() == [[True, False], [False, True], [True, True]]

    def test_whole_frame_flags_beside_component_flags_spread_over_the_frame(self) -> None:
        for flags in ([np.array([True, False]), True, False], [[True, False], None, False]):
            mask = blank_mask(self.FRAMES, flags, zero_is_blank=True)
            assert mask.tolist() == [[True, False], [True, True], [False, False]]

    def test_images_and_single_numbers_are_frames_too(self) -> None:
        images = np.zeros((2, 3, 3, 1), np.uint8)
        images[1, 0, 0, 0] = 1
        assert blank_mask(images, [None, None], True).tolist() == [True, False]
        assert blank_mask(np.array([0.0, 3.0]), [None] * 2, True).tolist() == [True, False]

    @pytest.mark.parametrize("flag", [[True], [True] * 3, [[True, False]], np.ones((2, 1), bool)])
    def test_a_flag_of_another_shape_is_refused_with_both_shapes(self, flag: Any) -> None:
        with pytest.raises(ValueError, match=r'info\["blanked"\] must be .* \(2,\)') as caught:
            blank_mask(self.FRAMES, [flag, False, False])
        assert str(np.shape(flag)) in str(caught.value)

    @pytest.mark.parametrize("flag", [{"camera": False}, {}, "False", b"", object()])
    def test_a_flag_that_is_no_bool_is_refused_and_never_taken_for_its_truth(
        self, flag: Any
    ) -> None:
        # bool({"camera": False}) is True: every frame would be thrown away without a word.
        with pytest.raises(ValueError, match=r'info\["blanked"\] must be') as caught:
            blank_mask(self.FRAMES, [flag, False, False])
        assert repr(flag) in str(caught.value)


class TestKeyFlags:
    def test_a_dict_of_flags_gives_each_key_its_own(self) -> None:
        flags = [{"a": True, "b": False}, {"a": False}]
        assert key_flags(flags, "a") == [True, False]

    def test_a_key_that_a_dict_does_not_name_is_visible(self) -> None:
        assert key_flags([{"a": True}, {}], "b") == [False, False]

    def test_one_flag_for_the_whole_observation_is_every_keys(self) -> None:
        assert key_flags([True, None, False], "b") == [True, None, False]


class TestWholeFrames:
    @each_library
    def test_only_visible_frames_count(self, statistics_of: Any) -> None:
        statistics = statistics_of(shape=(1,))
        frames = np.array([[9.0], [0.0], [11.0], [123.0]])
        update_visible(statistics, frames, np.array([False, True, False, True]))
        mean, var, count = by_hand(9.0, 11.0)
        assert statistics.mean[0] == pytest.approx(mean, rel=1e-14)
        assert statistics.var[0] == pytest.approx(var, rel=1e-14)
        assert statistics.count == pytest.approx(count, rel=1e-14)
        assert mean == pytest.approx(10.0, abs=1e-3)

    @each_library
    def test_a_batch_of_blanks_leaves_every_bit(self, statistics_of: Any) -> None:
        statistics = statistics_of(shape=(2,))
        statistics.update(np.array([[1.0, 2.0], [4.0, -3.0]]))
        before = bits(statistics)
        update_visible(statistics, np.zeros((3, 2)), np.ones(3, bool))
        assert bits(statistics) == before

    @each_library
    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
    def test_nothing_blanked_is_the_plain_update_bit_for_bit(
        self, statistics_of: Any, dtype: type
    ) -> None:
        ours, plain = statistics_of(shape=(3,)), statistics_of(shape=(3,))
        for seed in range(5):
            frames = (np.random.default_rng(seed).random((7, 3)) * 200).astype(dtype)
            update_visible(ours, frames, np.zeros(7, bool))
            plain.update(frames)
        assert bits(ours) == bits(plain)


class TestComponents:
    @each_library
    def test_each_component_counts_its_own_visible_entries(self, statistics_of: Any) -> None:
        statistics = statistics_of(shape=(3,))
        frames = np.array([[1.0, 5.0, -2.0], [3.0, 7.0, 77.0]])
        blanked = np.array([[False, True, True], [False, False, True]])
        update_visible(statistics, frames, blanked)
        for component, samples in enumerate([(1.0, 3.0), (7.0,)]):
            mean, var, count = by_hand(*samples)
            assert statistics.mean[component] == pytest.approx(mean, rel=1e-14)
            assert statistics.var[component] == pytest.approx(var, rel=1e-12)
            assert statistics.count[component] == pytest.approx(count, rel=1e-14)
        assert (statistics.mean[2], statistics.var[2], statistics.count[2]) == (0.0, 1.0, PRIOR)

    @each_library
    def test_a_component_nobody_sees_keeps_every_bit_while_another_moves(
        self, statistics_of: Any
    ) -> None:
        # var * count / count, were it computed, would lose a bit in a tenth of these components.
        generator = np.random.default_rng(0)
        statistics = statistics_of(shape=(2, 100))
        statistics.mean, statistics.var, statistics.count = *generator.random((2, 2, 100)), 7.0001
        mean, var, count = statistics.mean[0].copy(), statistics.var[0].copy(), statistics.count
        blanked = np.zeros((3, 2, 100), bool)
        blanked[:, 0] = True
        update_visible(statistics, generator.random((3, 2, 100)), blanked)
        assert statistics.mean[0].tobytes() == mean.tobytes()
        assert statistics.var[0].tobytes() == var.tobytes()
        assert (statistics.count[0] == count).all()
        assert (statistics.count[1] == count + 3).all()
        assert not np.isin(statistics.mean[1], mean).any()

    @each_library
    def test_a_batch_of_blank_components_leaves_every_bit(self, statistics_of: Any) -> None:
        statistics = statistics_of(shape=(100,))
        generator = np.random.default_rng(0)
        statistics.mean, statistics.var, statistics.count = *generator.random((2, 100)), 7.0001
        mean, var, count = statistics.mean.tobytes(), statistics.var.tobytes(), statistics.count
        update_visible(statistics, np.ones((2, 100)), np.ones((2, 100), bool))
        assert statistics.mean.tobytes() == mean
        assert statistics.var.tobytes() == var
        assert (np.broadcast_to(statistics.count, 100) == count).all()

    @each_library
    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
    def test_nothing_blanked_is_the_plain_update_bit_for_bit(
        self, statistics_of: Any, dtype: type
    ) -> None:
        ours, plain = statistics_of(shape=(3,)), statistics_of(shape=(3,))
        for seed in range(5):
            frames = (np.random.default_rng(seed).random((7, 3)) * 200).astype(dtype)
            update_visible(ours, frames, np.zeros((7, 3), bool))
            plain.update(frames)
        assert bits(ours) == bits(plain)

    @each_library
    def test_whole_frame_updates_go_on_after_components_were_counted(
        self, statistics_of: Any
    ) -> None:
        statistics = statistics_of(shape=(2,))
        update_visible(statistics, np.array([[9.0, 4.0]]), np.array([[False, True]]))
        update_visible(statistics, np.array([[11.0, 6.0], [0.0, 0.0]]), np.array([False, True]))
        assert statistics.count.tolist() == pytest.approx([2 + PRIOR, 1 + PRIOR], rel=1e-14)
        assert statistics.mean.tolist() == pytest.approx([10.0, 6.0], abs=1e-2)

    @each_library
    def test_many_batches_of_components_equal_one_pass_over_what_was_seen(
        self, statistics_of: Any
    ) -> None:
        generator = np.random.default_rng(0)
        frames = generator.normal(5.0, 3.0, (40, 6, 2, 3)).astype(np.float32)
        blanked = generator.random((40, 6, 2, 3)) < 0.6
        statistics = statistics_of(shape=(2, 3))
        for batch, mask in zip(frames, blanked, strict=True):
            update_visible(statistics, batch, mask)
        for where in np.ndindex(2, 3):
            entry = (slice(None), slice(None), *where)
            seen = frames[entry][~blanked[entry]].astype(np.float64)
            mean, var, count = by_hand(*seen.tolist())
            assert statistics.mean[where] == pytest.approx(mean, rel=1e-6)
            assert statistics.var[where] == pytest.approx(var, rel=1e-6)
            assert statistics.count[where] == pytest.approx(count, rel=1e-12)


class TestWhatIsHiddenNeverLeaks:
    @each_library
    @pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 1e300])
    @pytest.mark.parametrize("by_component", [False, True])
    def test_junk_in_a_blanked_entry_changes_no_bit(
        self, statistics_of: Any, junk: float, by_component: bool
    ) -> None:
        mask = np.array([[True, by_component is False], [False, False]])
        results = []
        for hidden in (0.0, junk):
            statistics = statistics_of(shape=(2,))
            frames = np.array([[hidden, 1.0 if by_component else hidden], [2.0, 5.0]])
            update_visible(statistics, frames, mask if by_component else mask[:, 0])
            results.append(bits(statistics))
        assert results[0] == results[1]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], False),
        ([None, None], False),
        ([None, False], True),
        ([np.False_, None], True),
        ([None, {"gyro": True}], True),
        ([np.array([True, False]), None], True),
        (np.array([False, False]), True),
    ],
)
def test_any_flag_tells(flags: Any, told: bool) -> None:
    assert tells(flags) is told

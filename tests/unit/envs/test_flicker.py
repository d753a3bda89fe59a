"""The blanking process: its law on the process itself, its stream of uniforms, and bad input."""

from __future__ import annotations

import math
from functools import lru_cache

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.seeding import np_random

import thrust_pomdp  # noqa: F401
from thrust_pomdp.envs.flicker import (
    FlickerLaw,
    FlickerProcess,
    FlickerProcesses,
    SeparateFlickerProcesses,
    blanking_layers,
    flicker_generator,
)

#: Written out, not imported: another key would change every schedule anyone has recorded.
KEY = 0x70F1_1C4E

#: (flicker_prob, burst_len): the check values of FACTS section 1, both i.i.d. forms, both edges.
LAWS = [(0.5, None), (0.3, None), (0.9, None), (0.5, 4), (0.3, 6), (0.5, 2), (0.8, 4), (0.9, 9)]
N_FRAMES = 100_000

#: No float holds it.
HUGE = pytest.param(10**400, id="huge")


def stream(seed: int, n: int, depth: int = 0) -> np.ndarray:
    """The uniforms DESIGN section 3 prescribes, from NumPy alone."""
    seed_sequence = np.random.SeedSequence(seed, spawn_key=(KEY, depth))
    return np.random.Generator(np.random.PCG64(seed_sequence)).random(n)


def global_state() -> tuple[bytes, int]:
    """NumPy's global generator: its numbers and how many of them are used up."""
    state = np.random.get_state()
    return state[1].tobytes(), state[2]


def draw(process: FlickerProcess, starts: list[bool]) -> list[bool]:
    """Draw one flag per frame; ``starts`` says which frames begin an episode."""
    return [process.first_frame() if start else process.next_frame() for start in starts]


def one_episode(n: int) -> list[bool]:
    return [True] + [False] * (n - 1)


@lru_cache
def long_run(flicker_prob: float, burst_len: float | None) -> np.ndarray:
    """One endless episode, so that no run is cut short."""
    process = FlickerProcess(FlickerLaw(flicker_prob, burst_len))
    process.seed(2024)
    return np.array(draw(process, one_episode(N_FRAMES)))


def run_lengths(flags: np.ndarray, of: bool) -> np.ndarray:
    """Lengths of the complete runs of blank (or visible) frames; the first and last are cut."""
    edges = np.flatnonzero(np.diff(flags.astype(int))) + 1
    lengths = np.diff(edges)
    values = flags[edges[:-1]]
    return lengths[values == of]


def mean_burst(flicker_prob: float, burst_len: float | None) -> float:
    return 1.0 / (1.0 - flicker_prob) if burst_len is None else float(burst_len)


def rho_of(flicker_prob: float, burst_len: float | None) -> float:
    return 1.0 - 1.0 / (mean_burst(flicker_prob, burst_len) * (1.0 - flicker_prob))


def within_five_sigma(measured: float, expected: float, sigma: float) -> bool:
    return abs(measured - expected) <= 5.0 * sigma


class TestProbabilities:
    def test_half_blank_in_bursts_of_four_goes_blank_at_a_quarter_and_stays_at_three(self) -> None:
        law = FlickerLaw(0.5, 4)
        assert (law.after_reset, law.after_visible, law.after_blank) == (0.5, 0.25, 0.75)

    def test_three_tenths_blank_in_bursts_of_six_goes_blank_once_in_fourteen(self) -> None:
        law = FlickerLaw(0.3, 6)
        assert law.after_reset == 0.3
        assert law.after_visible == pytest.approx(1 / 14, abs=1e-15)
        assert law.after_blank == pytest.approx(5 / 6, abs=1e-15)

    @pytest.mark.parametrize(("p", "burst"), LAWS)
    def test_the_stationary_share_is_a_fixed_point_of_the_chain(
        self, p: float, burst: float | None
    ) -> None:
        law = FlickerLaw(p, burst)
        assert p * law.after_blank + (1 - p) * law.after_visible == pytest.approx(p, abs=1e-15)

    def test_independent_frames_have_one_probability_whatever_came_before(self) -> None:
        law = FlickerLaw(0.3)
        assert (law.after_reset, law.after_visible, law.after_blank) == (0.3, 0.3, 0.3)

    @pytest.mark.parametrize("p", [0.5, 0.75, 0.875])
    def test_bursts_of_one_over_one_minus_p_are_exactly_the_bernoulli_law(self, p: float) -> None:
        burst, bernoulli = FlickerLaw(p, 1 / (1 - p)), FlickerLaw(p)
        assert burst.after_reset == bernoulli.after_reset
        assert burst.after_visible == bernoulli.after_visible
        assert burst.after_blank == bernoulli.after_blank

    @pytest.mark.parametrize("p", [0.1, 0.3, 0.6, 0.9])
    def test_that_equality_holds_to_rounding_where_the_quotient_is_inexact(self, p: float) -> None:
        law = FlickerLaw(p, 1 / (1 - p))
        assert law.after_visible == pytest.approx(p, abs=4e-16)
        assert law.after_blank == pytest.approx(p, abs=4e-16)

    def test_bursts_of_one_frame_are_never_followed_by_a_blank(self) -> None:
        law = FlickerLaw(0.25, 1)
        assert law.after_blank == 0.0
        assert law.after_visible == pytest.approx(1 / 3, abs=1e-15)


class TestStationaryRate:
    @pytest.mark.parametrize(("p", "burst"), LAWS)
    def test_the_share_of_blank_frames_is_flicker_prob(self, p: float, burst: float | None) -> None:
        rho = rho_of(p, burst)
        sigma = math.sqrt(p * (1 - p) / N_FRAMES * (1 + rho) / (1 - rho))
        assert within_five_sigma(float(long_run(p, burst).mean()), p, sigma)

    def test_the_rate_of_half_blank_bursts_of_four_spreads_three_times_as_far(self) -> None:
        p, rho, length, n_blocks = 0.5, 0.5, 100, 1_000
        rates = long_run(p, 4).reshape(n_blocks, length).mean(axis=1)
        inflation = float(rates.var(ddof=1)) / (p * (1 - p) / length)
        # (1 + rho) / (1 - rho) = 3, less the end effect of blocks of finite length.
        expected = 3.0 - 2 * rho * (1 - rho**length) / (length * (1 - rho) ** 2)
        assert within_five_sigma(inflation, expected, expected * math.sqrt(2 / (n_blocks - 1)))

    def test_probability_zero_never_blanks(self) -> None:
        process = FlickerProcess(FlickerLaw(0.0))
        process.seed(0)
        assert not any(draw(process, [True, *[False] * 9] * 200))

    def test_probability_one_always_blanks(self) -> None:
        process = FlickerProcess(FlickerLaw(1.0))
        process.seed(0)
        assert all(draw(process, [True, *[False] * 9] * 200))


class TestRunLengths:
    @pytest.mark.parametrize(("p", "burst"), LAWS)
    def test_blank_runs_last_burst_len_frames_on_average(
        self, p: float, burst: float | None
    ) -> None:
        mean = mean_burst(p, burst)
        runs = run_lengths(long_run(p, burst), of=True)
        assert within_five_sigma(float(runs.mean()), mean, math.sqrt(mean * (mean - 1) / len(runs)))

    @pytest.mark.parametrize(("p", "burst"), LAWS)
    def test_visible_runs_last_burst_len_times_the_odds_of_seeing(
        self, p: float, burst: float | None
    ) -> None:
        mean = mean_burst(p, burst) * (1 - p) / p
        runs = run_lengths(long_run(p, burst), of=False)
        # At the edge of what can exist the mean is 1, and every visible run is one frame long.
        spread = math.sqrt(max(mean * (mean - 1), 0.0) / len(runs))
        assert within_five_sigma(float(runs.mean()), mean, spread + 1e-9)

    @pytest.mark.parametrize(("p", "burst"), LAWS)
    def test_blank_runs_are_geometric(self, p: float, burst: float | None) -> None:
        end = 1 / mean_burst(p, burst)
        runs = run_lengths(long_run(p, burst), of=True)
        for length in (1, 2, 3):
            share = end * (1 - end) ** (length - 1)
            sigma = math.sqrt(share * (1 - share) / len(runs))
            assert within_five_sigma(float((runs == length).mean()), share, sigma)


class TestAutocorrelation:
    @pytest.mark.parametrize("lag", [1, 2, 3, 5])
    @pytest.mark.parametrize(("p", "burst"), LAWS)
    def test_the_correlation_of_frames_k_apart_is_rho_to_the_k(
        self, p: float, burst: float | None, lag: int
    ) -> None:
        # Every k-th frame of the chain is a Markov chain with correlation rho^k, so its
        # transitions are independent given where they start and their spread is binomial.
        flags = long_run(p, burst)[::lag]
        before, after = flags[:-1], flags[1:]
        from_blank, from_visible = after[before], after[~before]
        rho_k = rho_of(p, burst) ** lag
        stay, go = p + (1 - p) * rho_k, p - p * rho_k
        spread = stay * (1 - stay) / len(from_blank) + go * (1 - go) / len(from_visible)
        measured = float(from_blank.mean() - from_visible.mean())
        assert within_five_sigma(measured, rho_k, math.sqrt(max(spread, 0.0)) + 1e-9)


class TestFirstFrame:
    @pytest.mark.parametrize(("p", "burst"), [(0.5, 4), (0.3, 6), (0.8, 4)])
    def test_it_is_stationary_whatever_the_last_episode_ended_with(
        self, p: float, burst: float
    ) -> None:
        process = FlickerProcess(FlickerLaw(p, burst))
        process.seed(11)
        n_episodes = 20_000
        flags = np.array(draw(process, [True, False, False] * n_episodes))
        first, last = flags[0::3][1:], flags[2::3][:-1]
        for ended_blank in (False, True):
            chosen = first[last == ended_blank]
            sigma = math.sqrt(p * (1 - p) / len(chosen))
            assert within_five_sigma(float(chosen.mean()), p, sigma)

    def test_a_first_frame_compares_with_p_where_a_later_one_compares_with_the_chain(self) -> None:
        law = FlickerLaw(0.5, 4)
        uniforms = stream(3, 64)
        between = int(np.flatnonzero((uniforms > 0.5) & (uniforms < 0.75))[0])
        as_first, as_next = FlickerProcess(law), FlickerProcess(law)
        for process in (as_first, as_next):
            process.seed(3)
            draw(process, [True] * between)
            process.blanked = True
        assert as_first.first_frame() is False
        assert as_next.next_frame() is True


class TestStreamOfUniforms:
    """A schedule is a pure function of the seed, the depth and the frame's number."""

    STARTS = (True, *[False] * 6, True, False, True, True, *[False] * 9)

    @pytest.mark.parametrize("depth", [0, 1, 2])
    @pytest.mark.parametrize(("p", "burst"), LAWS)
    def test_flags_follow_from_the_prescribed_uniforms_one_per_frame(
        self, p: float, burst: float | None, depth: int
    ) -> None:
        starts = list(self.STARTS) * 20
        process = FlickerProcess(FlickerLaw(p, burst), depth)
        process.seed(42)
        mean = mean_burst(p, burst)
        expected, blank = [], False
        for start, uniform in zip(starts, stream(42, len(starts), depth), strict=True):
            chain = 1 - 1 / mean if blank else p / (mean * (1 - p))
            blank = bool(uniform < (p if start else chain))
            expected.append(blank)
        assert draw(process, starts) == expected
        assert any(expected)
        assert not all(expected)

    @pytest.mark.parametrize(("p", "burst"), [(0.0, None), (1.0, None), *LAWS])
    def test_every_frame_uses_one_uniform_even_when_its_flag_is_certain(
        self, p: float, burst: float | None
    ) -> None:
        process = FlickerProcess(FlickerLaw(p, burst))
        process.seed(5)
        draw(process, list(self.STARTS))
        reference = flicker_generator(5)
        reference.random(len(self.STARTS))
        # Flags alone cannot show this where p is 0 or 1, hence the look inside.
        assert process._generator.random() == reference.random()

    def test_the_generator_is_the_seed_sequence_with_the_packages_spawn_key(self) -> None:
        for seed in (0, 7, 2**40):
            for depth in (0, 1):
                drawn = flicker_generator(seed, depth).random(8)
                assert drawn.tolist() == stream(seed, 8, depth).tolist()

    def test_depths_seeds_and_the_environments_own_generator_all_differ(self) -> None:
        streams = [
            flicker_generator(0, 0),
            flicker_generator(1, 0),
            flicker_generator(0, 1),
            np_random(0)[0],
            np.random.default_rng(0),
        ]
        # Gymnasium's generator is default_rng of the seed: these two are one and the same.
        assert len({generator.random() for generator in streams}) == 4

    def test_seeding_again_restarts_the_schedule(self) -> None:
        process = FlickerProcess(FlickerLaw(0.5, 4))
        process.seed(9)
        first = draw(process, one_episode(64))
        rest = draw(process, one_episode(64))
        process.seed(9)
        assert draw(process, one_episode(64)) == first
        assert first != rest

    def test_half_blank_bursts_of_two_equal_independent_frames_flag_for_flag(self) -> None:
        burst, independent = FlickerProcess(FlickerLaw(0.5, 2)), FlickerProcess(FlickerLaw(0.5))
        burst.seed(1)
        independent.seed(1)
        starts = list(self.STARTS) * 10
        assert draw(burst, starts) == draw(independent, starts)

    def test_without_a_seed_every_process_is_different(self) -> None:
        schedules = [
            draw(FlickerProcess(FlickerLaw(0.5)), one_episode(128)),
            draw(FlickerProcess(FlickerLaw(0.5)), one_episode(128)),
        ]
        assert schedules[0] != schedules[1]

    def test_numpys_global_generator_is_left_alone(self) -> None:
        before = global_state()
        process = FlickerProcess(FlickerLaw(0.5, 4))
        draw(process, one_episode(32))
        process.seed(0)
        draw(process, one_episode(32))
        assert global_state() == before

    def test_flags_are_python_bools(self) -> None:
        process = FlickerProcess(FlickerLaw(0.5, 4))
        assert {type(flag) for flag in draw(process, one_episode(32))} == {bool}


class TestBurstsThatCannotExist:
    @pytest.mark.parametrize(
        ("p", "burst"), [(0.8, 4), (0.9, 9), (0.5, 1), (0.75, 3), (0.95, 19), (1e-9, 1)]
    )
    def test_the_edge_itself_is_accepted(self, p: float, burst: float) -> None:
        # p / (1 - p) <= L in exact arithmetic; the divided form loses the first two to rounding.
        assert FlickerLaw(p, burst).burst_len == burst

    def test_every_whole_number_edge_is_accepted(self) -> None:
        for length in range(1, 500):
            assert FlickerLaw(length / (length + 1), length).after_visible == pytest.approx(1.0)

    @pytest.mark.parametrize(("p", "burst"), [(0.9, 4), (0.51, 1), (0.8, 3.99), (0.99, 98)])
    def test_beyond_it_the_message_names_arguments_rule_and_values(
        self, p: float, burst: float
    ) -> None:
        with pytest.raises(ValueError, match="burst_len") as caught:
            FlickerLaw(p, burst)
        message = str(caught.value)
        for part in (
            f"flicker_prob={p!r}",
            f"burst_len={burst!r}",
            "flicker_prob * (1 + burst_len) <= burst_len",
            f"{p / (1 - p):.6g}",
        ):
            assert part in message

    @pytest.mark.parametrize("p", [0, 1, 0.0, 1.0])
    def test_never_and_always_blank_have_no_bursts(self, p: float) -> None:
        with pytest.raises(ValueError, match="strictly between 0 and 1") as caught:
            FlickerLaw(p, 4)
        assert f"flicker_prob={float(p)!r}" in str(caught.value)
        assert "burst_len=4" in str(caught.value)


class TestBadNumbers:
    @pytest.mark.parametrize("value", [-0.1, 1.1, -1e-12, math.nan, math.inf, -math.inf])
    def test_a_probability_outside_zero_to_one_is_refused(self, value: float) -> None:
        with pytest.raises(ValueError, match=r"flicker_prob must be .*\[0, 1\]") as caught:
            FlickerLaw(value)
        assert repr(value) in str(caught.value)

    @pytest.mark.parametrize("value", ["0.5", b"0.5", None, True, [0.5], {}, HUGE])
    def test_a_probability_that_is_no_number_is_refused(self, value: object) -> None:
        with pytest.raises(ValueError, match="flicker_prob must be a number, got") as caught:
            FlickerLaw(value)  # type: ignore[arg-type]
        assert repr(value) in str(caught.value)

    @pytest.mark.parametrize("value", [0.999, 0, -3, math.nan, math.inf, -math.inf])
    def test_a_burst_shorter_than_one_frame_or_not_finite_is_refused(self, value: float) -> None:
        with pytest.raises(ValueError, match="burst_len must be a finite number >= 1") as caught:
            FlickerLaw(0.5, value)
        assert repr(value) in str(caught.value)

    @pytest.mark.parametrize("value", ["4", True, [4], HUGE])
    def test_a_burst_that_is_no_number_is_refused(self, value: object) -> None:
        with pytest.raises(ValueError, match="burst_len must be a number, got") as caught:
            FlickerLaw(0.5, value)  # type: ignore[arg-type]
        assert repr(value) in str(caught.value)

    def test_numpy_numbers_and_integers_are_numbers(self) -> None:
        law = FlickerLaw(np.float32(0.5), np.int64(4))  # type: ignore[arg-type]
        assert law == FlickerLaw(0.5, 4.0)
        assert FlickerLaw(1) == FlickerLaw(1.0)


class TestPartsOfAFrame:
    """Several processes that read one stream in turns."""

    @pytest.mark.parametrize(("p", "burst"), LAWS)
    def test_each_part_is_a_chain_of_its_own_on_every_third_uniform(
        self, p: float, burst: float | None
    ) -> None:
        law, starts = FlickerLaw(p, burst), [frame % 50 == 0 for frame in range(200)]
        processes = SeparateFlickerProcesses(law, n_parts=3, depth=1)
        processes.seed(4)
        drawn = np.array(draw(processes, starts))
        for part, uniforms in enumerate(stream(4, 600, depth=1).reshape(200, 3).T):
            blank = False
            for frame, uniform in enumerate(uniforms):
                usual = law.after_blank if blank else law.after_visible
                blank = bool(uniform < (law.after_reset if starts[frame] else usual))
                assert drawn[frame, part] == blank

    def test_a_single_part_is_the_process_of_a_whole_frame(self) -> None:
        law, starts = FlickerLaw(0.5, 4), one_episode(500)
        one, whole = SeparateFlickerProcesses(law, n_parts=1), FlickerProcess(law)
        one.seed(3)
        whole.seed(3)
        assert np.array(draw(one, starts))[:, 0].tolist() == draw(whole, starts)

    @pytest.mark.parametrize("n_parts", [1, 3, 2_000])
    def test_a_vector_of_environments_gives_what_each_would_alone(self, n_parts: int) -> None:
        # 2,000 parts leave a block for two frames only.
        law, everyone = FlickerLaw(0.5, 4), np.arange(2)
        together = FlickerProcesses(law, n_envs=2, depth=2, parts=(n_parts,))
        alone = [SeparateFlickerProcesses(law, n_parts, depth=2) for _ in range(2)]
        for idx, process in enumerate(alone):
            together.seed(idx, idx)
            process.seed(idx)
        first = together.first_frames(everyone)
        assert first.tolist() == [process.first_frame().tolist() for process in alone]
        for frame in range(20):
            restarted = np.array([frame % 7 == 0, False])
            expected = [
                (process.first_frame() if begins else process.next_frame()).tolist()
                for process, begins in zip(alone, restarted, strict=True)
            ]
            assert together.next_frames(restarted).tolist() == expected

    def test_an_environment_that_never_blanks_has_no_layers(self) -> None:
        assert blanking_layers(gym.make("CartPole-v1")) == 0
        assert blanking_layers(gym.make("MaskedCartPole-v0")) == 0
        assert blanking_layers(gym.make("FlickeringCartPole-v0")) == 1

"""What is reached with some of the cards, counted and held against counting everything."""

from __future__ import annotations

import doctest
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest

from thrust_pomdp.reference import controllers, ladder, play, repeat_controllers
from thrust_pomdp.reference.repeat_controllers import LastCards, best_return, best_shifts

EASY = "POPGymRepeatPreviousEasy-v0"


def best_by_trying(k: int, n_frames: int, n_suits: int, cards_per_suit: int) -> Fraction:
    """Try every deterministic rule of what is seen, on every order of a small pack.

    Rules are chosen for each thing seen by itself, as nothing an agent does changes the cards: for
    each the suit that was right most often.
    """
    pack = [card % n_suits for card in range(n_suits * cards_per_suit)]
    right: dict[tuple[int, ...], list[int]] = {}
    asked = 0
    for order in set(permutations(pack)):
        for n_dealt in range(k, len(pack)):
            asked += 1
            seen = order[n_dealt - n_frames : n_dealt]
            right.setdefault(seen, [0] * n_suits)[order[n_dealt - k]] += 1
    return 2 * Fraction(sum(map(max, right.values())), asked) - 1


class TestCounting:
    def test_the_examples_run(self) -> None:
        result = doctest.testmod(repeat_controllers)
        assert (result.attempted, result.failed) == (2, 0)

    @pytest.mark.parametrize(("n_suits", "cards_per_suit"), [(2, 3), (3, 2), (2, 2)])
    @pytest.mark.parametrize(("k", "n_frames"), [(1, 1), (2, 1), (3, 1), (3, 2), (2, 2)])
    def test_is_what_trying_everything_finds(
        self, n_suits: int, cards_per_suit: int, k: int, n_frames: int
    ) -> None:
        counted = best_return(k, n_frames, cards_per_suit, n_suits)
        assert counted == best_by_trying(k, n_frames, n_suits, cards_per_suit)

    def test_one_card_by_hand(self) -> None:
        assert best_return(4, 1) == 2 * Fraction(13, 51) - 1
        assert best_return(32, 1, 26) == 2 * Fraction(26, 103) - 1

    @pytest.mark.parametrize("n_frames", [1, 2, 3, 5, 8])
    def test_is_what_the_controller_reaches(self, n_frames: int) -> None:
        returns = play(EASY, LastCards(9, 1, n_frames), n_episodes=2000, k=9)
        error = returns.std() / np.sqrt(len(returns))
        assert abs(returns.mean() - best_return(9, n_frames)) < 4 * error

    @pytest.mark.parametrize("k", [1, 2, 3, 4])
    def test_shifts_are_the_best_of_all_with_independent_cards(self, k: int) -> None:
        def share(shifts: tuple[int, ...]) -> float:
            """By running through all histories of ``k`` cards, from any answer before them."""
            right = 0
            for last, *cards in product(range(4), repeat=k + 1):
                answer = last
                for card in cards:
                    answer = (answer + shifts[(card - answer) % 4]) % 4
                right += answer == cards[0]
            return right / 4 ** (k + 1)

        shares = {shifts: share(shifts) for shifts in product(range(4), repeat=4)}
        assert shares[best_shifts(k)] == max(shares.values())


class TestLadder:
    @pytest.mark.parametrize("kwargs", [{}, {"k": 1}, {"k": 2}, {"num_decks": 2, "k": 20}])
    def test_who_knows_more_does_no_worse_and_proofs_are_met(self, kwargs: dict[str, int]) -> None:
        k, decks = kwargs.get("k", 4), kwargs.get("num_decks", 1)
        rungs = {rung.information: rung for rung in ladder(EASY, 1000, **kwargs)}
        for information, n_frames in {"memoryless": 1, "two frames": 2, "exact model": k}.items():
            rung = rungs[information]
            best = float(best_return(k, n_frames, 13 * decks))
            assert rung.kind == "proof"
            assert abs(rung.mean - best) <= 4 * rung.standard_error
        assert rungs["exact model"].mean == 1.0
        before, memoryless = rungs["previous action"], rungs["memoryless"]
        assert before.mean >= memoryless.mean - 3 * before.standard_error

    def test_a_time_limit_takes_rewards_away(self) -> None:
        perfect = ladder(EASY, 20, max_episode_steps=27)[-1]
        assert (perfect.mean, perfect.kind) == (0.5, "proof")

    def test_blank_cards_are_not_read(self) -> None:
        frames = np.eye(4)[[0, 1, 2, 3, 0]]
        spoilt = np.where(np.arange(5)[:, None] == 2, np.nan, frames)
        for law in controllers(EASY, k=2)[1:]:
            acted = []
            for rows in (frames, spoilt):
                law.reset()
                acted.append([law.act(row[None], [i == 2])[0] for i, row in enumerate(rows)])
            assert acted[0] == acted[1]

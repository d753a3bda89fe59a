"""Controllers that name the suit of an earlier card; they differ in which cards they still see.

What the best of each class reaches is counted, not searched for: see :func:`best_return`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.envs.repeat_previous import CARDS_PER_SUIT, N_SUITS
from thrust_pomdp.reference.control_laws import Actions, Controller, Flags

#: A suit that is not known.
UNKNOWN = -1


def best_return(
    k: int, n_frames: int, cards_per_suit: int = CARDS_PER_SUIT, n_suits: int = N_SUITS
) -> Fraction:
    """Count the best mean return of whoever sees the last ``n_frames`` cards and nothing else.

    The card asked for is the k-th latest. With ``n_frames >= k`` it is seen, and the return is 1.
    Else it is any of the ``n - n_frames`` cards that are not among those seen, each as likely as
    the others, and is of suit ``a`` with probability ``(c - seen_a) / (n - n_frames)``, ``n`` cards
    there being and ``c`` of each suit, however many steps have gone by. So nothing is better than
    to name the suit least seen, and it is right with the mean of ``(c - min seen) / (n -
    n_frames)`` over all ways in which ``n_frames`` of ``n`` cards can be drawn. Each of the rewards
    of an episode, which add up to 1 at most, has that mean.

    >>> [round(float(best_return(4, n_frames)), 3) for n_frames in (1, 2, 3, 4)]
    [-0.49, -0.48, -0.469, 1.0]

    :param k: which of the latest cards is asked for, 1 the newest
    :param n_frames: cards seen, >= 1
    :param cards_per_suit: in the whole pack
    :param n_suits: the number of suits
    """
    if n_frames >= k:
        return Fraction(1)
    n_cards = cards_per_suit * n_suits
    ways = right = 0
    for seen in _counts(n_frames, n_suits, cards_per_suit):
        weight = 1
        for count in seen:
            weight *= comb(cards_per_suit, count)
        ways += weight
        right += weight * (cards_per_suit - min(seen))
    return 2 * Fraction(right, ways * (n_cards - n_frames)) - 1


def _counts(total: int, n_suits: int, most: int) -> Iterator[tuple[int, ...]]:
    """List the ways to share a number of cards among suits, each having so many at most."""
    if n_suits == 1:
        if total <= most:
            yield (total,)
        return
    for count in range(min(total, most) + 1):
        for rest in _counts(total - count, n_suits - 1, most):
            yield (count, *rest)


class LastCards(Controller):
    """Sees the last ``n_frames`` cards, and names the k-th latest or the suit least seen.

    :param k: which of the latest cards is asked for
    :param num_decks: decks of the pack
    :param n_frames: the cards it sees
    :param seed: of the random draws, of which there are none
    """

    def __init__(self, k: int, num_decks: int, n_frames: int, seed: int | None = None) -> None:
        super().__init__(seed)
        self.k, self.n_frames = k, n_frames
        best = best_return(k, n_frames, CARDS_PER_SUIT * num_decks)
        self.bound = "" if best == 1 else f"{float(best):.4f} by counting what the last cards tell"

    def _start(self) -> None:
        #: Suits, the newest last, ``[n_envs, n_frames]``.
        self._suits = np.full((self.n_envs, self.n_frames), UNKNOWN)

    def _forget(self, ended: Flags) -> None:
        self._suits[ended] = UNKNOWN

    def _choose(self, obs: NDArray[Any], visible: Flags) -> Actions:
        newest = np.where(visible, obs.argmax(axis=1), UNKNOWN)
        self._suits = np.column_stack([self._suits[:, 1:], newest])
        seen = (self._suits[:, :, None] == np.arange(N_SUITS)).sum(axis=1)
        guess: Actions = seen.argmin(axis=1)
        if self.k > self.n_frames:
            return guess
        known = self._suits[:, -self.k]
        return np.where(known == UNKNOWN, guess, known)


class LastCard(LastCards):
    """Sees the card on show."""

    information = "memoryless"
    name = "best memoryless"

    def __init__(self, k: int, num_decks: int, seed: int | None = None) -> None:
        super().__init__(k, num_decks, 1, seed)


class TwoCards(LastCards):
    """Sees the newest two cards."""

    information = "two frames"
    name = "two frames"

    def __init__(self, k: int, num_decks: int, seed: int | None = None) -> None:
        super().__init__(k, num_decks, 2, seed)


class AllCards(LastCards):
    """Remembers all that is asked for."""

    information = "exact model"
    name = "perfect recaller"

    def __init__(self, k: int, num_decks: int, seed: int | None = None) -> None:
        super().__init__(k, num_decks, k, seed)


class PreviousAnswer(Controller):
    """Knows the card on show and its own last answer: two bits of memory.

    It goes on from its last answer by a number of suits that depends on how far the card's suit is
    from that answer. Answers so keep some trace of earlier cards, which fades with ``k``.

    :param k: which of the latest cards is asked for
    :param seed: of the random draws, of which there are none
    """

    information = "previous action"
    name = "previous action only"

    def __init__(self, k: int, seed: int | None = None) -> None:
        super().__init__(seed)
        self.shifts = np.array(best_shifts(k))

    def _start(self) -> None:
        self._last = np.zeros(self.n_envs, dtype=np.int64)

    def _forget(self, ended: Flags) -> None:
        self._last[ended] = 0

    def _choose(self, obs: NDArray[Any], visible: Flags) -> Actions:
        ahead = (obs.argmax(axis=1) - self._last) % N_SUITS
        self._last = (self._last + np.where(visible, self.shifts[ahead], 0)) % N_SUITS
        return self._last.copy()


#: With ``k`` beyond it a trace of the card asked for counts less than that cards dealt are gone.
_LONGEST_TRACE = 10

#: Keeps to an answer until a card of that suit comes: one that has not come for long is the
#: likeliest to be among the cards that are not seen.
_KEEP = (1, 0, 0, 0)


def best_shifts(k: int) -> tuple[int, ...]:
    """Return by how many suits to go on, for each distance from the last answer to the card's suit.

    The best of all 256 such rules with endless decks, where cards are independent: seen from the
    card asked for, the answer before it is of any suit, its own step depends on that, and the steps
    after it are a walk with four equally likely lengths.

    >>> best_shifts(1), best_shifts(2), best_shifts(32)
    ((0, 1, 2, 3), (0, 0, 0, 3), (1, 0, 0, 0))
    """
    if k > _LONGEST_TRACE:
        return _KEEP
    suits = range(N_SUITS)

    def chance(shifts: tuple[int, ...]) -> Fraction:
        answers = [Fraction(0)] * N_SUITS
        for before in suits:
            answers[(before + shifts[-before % N_SUITS]) % N_SUITS] += Fraction(1, N_SUITS)
        for _ in range(k - 1):
            answers = [
                sum((answers[(a - s) % N_SUITS] for s in shifts), Fraction(0)) / N_SUITS
                for a in suits
            ]
        return answers[0]

    return max(product(suits, repeat=N_SUITS), key=chance)

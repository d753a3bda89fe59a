"""The blanking process: which frames of an environment are replaced by zeros.

A two-state Markov chain, the *simple Gilbert channel* (E. N. Gilbert, "Capacity of a burst-noise
channel", Bell System Technical Journal 39, 1960), described by two numbers a user can think in:

* ``flicker_prob`` = p, the share of frames that are blank;
* ``burst_len`` = L, the mean length of a run of blank frames.

They fix the chain: ``P(blank -> visible) = 1 / L`` and ``P(visible -> blank) = p / (L (1 - p))``.
``burst_len=None`` blanks every frame independently (an i.i.d. Bernoulli process), which is the same
law as ``burst_len = 1 / (1 - p)``.

This file knows nothing of environments: it turns uniform numbers into blank flags, so that the
single environment, the wrapper and the vector environment all share one process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

#: Sets the blanking stream apart from every other use of an environment's seed.
FLICKER_KEY = 0x70F1_1C4E


def flicker_generator(seed: int | None, depth: int = 0) -> np.random.Generator:
    """Make the generator of one blanking layer's uniforms.

    The stream is a pure function of ``seed`` and ``depth``: an environment, a wrapper and a vector
    environment that are seeded alike draw the same numbers, layers stacked on one another draw
    different ones, and the base environment's own generator is never touched.

    :param seed: the seed given to ``reset``; None takes fresh entropy
    :param depth: the number of blanking layers below this one
    """
    if seed is None:
        return np.random.default_rng()
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(FLICKER_KEY, depth)))


def check_probability(name: str, value: float) -> float:
    """Return ``value`` as a float.

    :raises ValueError: if it is not a number in [0, 1]
    """
    number = _as_number(name, value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name} must be a probability in [0, 1], got {value!r}")
    return number


def _as_number(name: str, value: float) -> float:
    if isinstance(value, (str, bytes, bool)):
        raise ValueError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None


@dataclass(frozen=True)
class FlickerLaw:
    """The probabilities of the blanking process.

    A frame is blank when its uniform number is below the probability that belongs to what came
    before it: the start of an episode, a visible frame or a blank one. One uniform is used per
    frame in every case.

    >>> law = FlickerLaw(flicker_prob=0.5, burst_len=4)
    >>> law.after_reset, law.after_visible, law.after_blank
    (0.5, 0.25, 0.75)

    :param flicker_prob: stationary share of blank frames, in [0, 1]
    :param burst_len: mean length of a run of blank frames, in frames; None for independent frames
    :raises ValueError: if no such process exists. With bursts, ``0 < p < 1``, ``L >= 1`` and
        ``p (1 + L) <= L`` are needed; the last says that the chance of going blank cannot exceed 1.
        Nothing is ever clamped, since a clamp would change the blank rate silently.
    """

    flicker_prob: float
    burst_len: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "flicker_prob", check_probability("flicker_prob", self.flicker_prob)
        )
        if self.burst_len is not None:
            object.__setattr__(self, "burst_len", self._checked_burst_len())

    def _checked_burst_len(self) -> float:
        p, length = self.flicker_prob, _as_number("burst_len", self.burst_len)  # type: ignore[arg-type]
        if not (length >= 1.0 and math.isfinite(length)):
            raise ValueError(f"burst_len must be a finite number >= 1, got {self.burst_len!r}")
        if not 0.0 < p < 1.0:
            raise ValueError(
                f"flicker_prob must lie strictly between 0 and 1 when burst_len is given, got "
                f"flicker_prob={p!r} with burst_len={self.burst_len!r}; leave burst_len=None for "
                "frames that are never or always blank"
            )
        # As a product: the divided form L >= p / (1 - p) wrongly rejects p=.8 L=4 and p=.9 L=9.
        if p * (1.0 + length) > length:
            raise ValueError(
                f"no process has flicker_prob={p!r} and burst_len={self.burst_len!r}: "
                "flicker_prob * (1 + burst_len) <= burst_len is needed, so burst_len must be at "
                f"least flicker_prob / (1 - flicker_prob) = {p / (1.0 - p):.6g}"
            )
        return length

    @property
    def after_reset(self) -> float:
        """Probability that the first frame of an episode is blank (the stationary law)."""
        return self.flicker_prob

    @property
    def after_visible(self) -> float:
        """Probability that a frame is blank when the one before it was visible."""
        if self.burst_len is None:
            return self.flicker_prob
        return self.flicker_prob / (self.burst_len * (1.0 - self.flicker_prob))

    @property
    def after_blank(self) -> float:
        """Probability that a frame is blank when the one before it was blank."""
        if self.burst_len is None:
            return self.flicker_prob
        return 1.0 - 1.0 / self.burst_len


class FlickerProcess:
    """One environment's blanking process: a law and its stream of uniform numbers.

    >>> process = FlickerProcess(FlickerLaw(0.5))
    >>> process.seed(7)
    >>> flags = [process.first_frame(), process.next_frame()]

    :param law: the probabilities
    :param depth: the number of blanking layers below this one
    """

    def __init__(self, law: FlickerLaw, depth: int = 0) -> None:
        self.law = law
        self.depth = depth
        self.blanked = False
        self._after_visible, self._after_blank = law.after_visible, law.after_blank
        self._generator = flicker_generator(None)

    def seed(self, seed: int) -> None:
        """Restart the stream of uniforms from ``seed``."""
        self._generator = flicker_generator(seed, self.depth)

    def first_frame(self) -> bool:
        """Draw the flag of the frame that ``reset`` returns, from the stationary law."""
        self.blanked = bool(self._generator.random() < self.law.after_reset)
        return self.blanked

    def next_frame(self) -> bool:
        """Draw the flag of the frame that ``step`` returns."""
        threshold = self._after_blank if self.blanked else self._after_visible
        self.blanked = bool(self._generator.random() < threshold)
        return self.blanked

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

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_number
from thrust_pomdp.stateful import Changes, Names, Stateful
from thrust_pomdp.states import State

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
    number = check_number(name, value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{name} must be a probability in [0, 1], got {value!r}")
    return number


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
        p, length = self.flicker_prob, check_number("burst_len", self.burst_len)
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

    @property
    def is_independent(self) -> bool:
        """Whether a frame's flag has nothing to do with those before it."""
        return self.after_visible == self.after_blank == self.after_reset


class FlickerProcess(Stateful):
    """One environment's blanking process: a law and its stream of uniform numbers.

    >>> process = FlickerProcess(FlickerLaw(0.5))
    >>> process.seed(7)
    >>> flags = [process.first_frame(), process.next_frame()]

    :param law: the probabilities
    :param depth: the number of blanking layers below this one
    """

    _no_state: Names = ("_after_visible", "_after_blank")
    _fixed_state: Names = ("law", "depth")

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


class SeparateFlickerProcesses(Stateful):
    """The blanking processes of the parts of one environment's frames, all from one stream.

    Part ``j`` of ``n`` takes uniform number ``f * n + j`` for frame ``f``, so that a single part
    sees what a :class:`FlickerProcess` would give.

    >>> processes = SeparateFlickerProcesses(FlickerLaw(0.5), n_parts=3)
    >>> processes.seed(7)
    >>> processes.first_frame().shape
    (3,)

    :param law: the probabilities, the same for all
    :param n_parts: the number of parts
    :param depth: the number of blanking layers below this one
    """

    _no_state: Names = ("_after_visible", "_after_blank", "_independent")
    _fixed_state: Names = ("law", "n_parts", "depth")
    _shaped_state: Names = ("blanked",)

    def __init__(self, law: FlickerLaw, n_parts: int, depth: int = 0) -> None:
        self.law = law
        self.n_parts = n_parts
        self.depth = depth
        #: Flags of the latest frame, bool ``[n_parts]``; a new array for each frame.
        self.blanked: NDArray[np.bool_] = np.zeros(n_parts, dtype=bool)
        self._independent = law.is_independent
        # Arrays, since NumPy would convert numbers at each step.
        self._after_visible = np.full(n_parts, law.after_visible)
        self._after_blank = np.full(n_parts, law.after_blank)
        self._generator = flicker_generator(None)

    def seed(self, seed: int) -> None:
        """Restart the stream of uniforms from ``seed``."""
        self._generator = flicker_generator(seed, self.depth)

    def first_frame(self) -> NDArray[np.bool_]:
        """Draw the flags of the frame that ``reset`` returns, bool ``[n_parts]``."""
        self.blanked = self._generator.random(self.n_parts) < self.law.after_reset
        return self.blanked

    def next_frame(self) -> NDArray[np.bool_]:
        """Draw the flags of the frame that ``step`` returns, bool ``[n_parts]``."""
        uniforms = self._generator.random(self.n_parts)
        if self._independent:
            self.blanked = uniforms < self._after_visible
        else:
            thresholds = np.where(self.blanked, self._after_blank, self._after_visible)
            self.blanked = uniforms < thresholds
        return self.blanked


class BlockStreams(Stateful):
    """One random stream per environment, drawn in blocks and read one item at a time.

    ``Generator.random(k)`` gives the numbers of ``k`` single draws, so an environment of a vector
    sees the stream that it would see alone, while most steps cost one array look-up.

    :param generators: one per environment, of PCG64 bits (Gymnasium's and NumPy's default)
    :param block: items drawn ahead for each environment
    :param item_shape: shape of one item; each number of it must take one draw of the generator
    :param draw: maps a generator and a number of items to ``[count, *item_shape]``
    """

    _no_state: Names = ("_draw", "_one_item", "_ends")
    _fixed_state: Names = ("_block", "_numbers_per_item")
    _shaped_state: Names = ("_generators", "_items", "_next", "_safe_calls")

    def __init__(
        self,
        generators: list[np.random.Generator],
        block: int,
        item_shape: tuple[int, ...],
        draw: Callable[[np.random.Generator, int], NDArray[np.float64]],
    ) -> None:
        n_envs = len(generators)
        self._generators, self._block, self._draw = list(generators), block, draw
        self._numbers_per_item = math.prod(item_shape)
        # Block after block, and where in it each environment's next item and its block's end are.
        self._items = np.zeros((n_envs * block, *item_shape))
        self._ends = block * (1 + np.arange(n_envs))
        self._next = self._ends.copy()
        self._one_item = np.ones_like(self._next)
        # So many calls can be served before anyone's block may be used up.
        self._safe_calls = 0

    def get_state(self) -> State:
        """Return the streams; each for itself, wherever it stands among the others."""
        state = super().get_state()
        kept = state["attributes"]
        for name, turned in self._for_itself(kept.get("_items"), kept.get("_next")).items():
            kept[name] = turned
        return state

    def _for_itself(self, items: Any, places: Any) -> dict[str, Any]:
        """Turn places among all items into places among each environment's own."""
        turned: dict[str, Any] = {}
        if items is not None:
            turned["_items"] = items.reshape(len(self._ends), self._block, *items.shape[1:])
        if places is not None:
            turned["_next"] = places - (self._ends - self._block)
        return turned

    def prepare_state(self, state: Any, where: str) -> Changes:
        """Check what :meth:`get_state` returned, and return what is to be done to take it over."""
        given = state.get("attributes") if isinstance(state, dict) else None
        if isinstance(given, dict):
            given = dict(given)
            shape = (len(self._ends), self._block, *self._items.shape[1:])
            items: Any = given.get("_items")
            places: Any = given.get("_next")
            if np.shape(items) == shape:
                given["_items"] = items.reshape(self._items.shape)
            if np.shape(places) == shape[:1]:
                given["_next"] = places + (self._ends - self._block)
            state = {**state, "attributes": given}
        return super().prepare_state(state, where)

    def set_generator(self, idx: int, generator: np.random.Generator) -> None:
        """Start one environment's stream anew; what was drawn ahead is dropped."""
        self._generators[idx] = generator
        self._next[idx] = self._ends[idx]
        self._safe_calls = 0

    def generator(self, idx: int) -> np.random.Generator:
        """Return one environment's generator as if nothing had been drawn ahead."""
        generator = self._generators[idx]
        unread = int(self._ends[idx] - self._next[idx]) * self._numbers_per_item
        if unread > 0:
            bit_generator = generator.bit_generator
            assert isinstance(bit_generator, np.random.PCG64)
            bit_generator.advance(-unread)
        self.set_generator(idx, generator)
        return generator

    def prepare(self, n_calls: int) -> None:
        """Draw ahead, if need be, so that the coming calls need not: 1 or 2 of them.

        Who takes many steps at once draws between these.
        """
        if self._safe_calls < n_calls:
            self._refill()

    def next_of_all(self) -> NDArray[np.float64]:
        """Read the next item of every stream, ``[n_envs, *item_shape]``."""
        self.prepare(1)
        self._safe_calls -= 1
        items = self._items.take(self._next, axis=0)
        self._next += self._one_item
        return items

    def next_of(self, indices: NDArray[np.intp]) -> NDArray[np.float64]:
        """Read the next item of some streams, ``[len(indices), *item_shape]``."""
        self.prepare(1)
        self._safe_calls -= 1
        positions = self._next[indices]
        self._next[indices] = positions + 1
        return self._items.take(positions, axis=0)

    def _refill(self) -> None:
        """Top up every block that is half used; the others last until the next time."""
        unread = self._ends - self._next
        for idx in np.flatnonzero(2 * unread <= self._block).tolist():
            start, kept = idx * self._block, int(unread[idx])
            block = self._items[start : start + self._block]
            block[:kept] = block[self._block - kept :]
            block[kept:] = self._draw(self._generators[idx], self._block - kept)
            self._next[idx] = start
        self._safe_calls = self._block // 2


def _uniforms(
    parts: tuple[int, ...], generator: np.random.Generator, count: int
) -> NDArray[np.float64]:
    return generator.random((count, *parts))


class FlickerProcesses(Stateful):
    """The blanking processes of a vector of environments, each with its own stream.

    Environment ``i`` gets the flags that a :class:`FlickerProcess` seeded alike gives.

    >>> processes = FlickerProcesses(FlickerLaw(0.5), n_envs=2)
    >>> processes.seed(0, 7)
    >>> processes.first_frames(np.array([0, 1])).shape
    (2,)

    :param law: the probabilities, the same for all
    :param n_envs: the number of environments
    :param depth: the number of blanking layers below this one
    :param parts: ``()`` blanks whole frames, ``(n,)`` each of ``n`` parts by its own draw, as
        :class:`SeparateFlickerProcesses` does; flags then have the shape ``[n_envs, n]``
    """

    #: Frames drawn ahead for each environment, 8 kB. Refilling costs 4 us, so this makes it some
    #: ns per frame; not a power of two, since then all next frames would fall on the same few
    #: lines of the processor's cache. Fewer frames of many parts, since memory is what they cost.
    BLOCK = 1000

    _no_state: Names = ("_after_visible", "_after_blank", "_after_reset", "_independent")
    _fixed_state: Names = ("law", "depth")
    _shaped_state: Names = ("blanked",)

    def __init__(
        self, law: FlickerLaw, n_envs: int, depth: int = 0, parts: tuple[int, ...] = ()
    ) -> None:
        self.law = law
        self.depth = depth
        shape = (n_envs, *parts)
        #: Flags of the latest frames, ``[n_envs]`` or ``[n_envs, n]``, bool; a new array for each
        #: step.
        self.blanked: NDArray[np.bool_] = np.zeros(shape, dtype=bool)
        generators = [flicker_generator(None) for _ in range(n_envs)]
        block = max(2, self.BLOCK // max(1, math.prod(parts)))
        self._streams = BlockStreams(generators, block, parts, functools.partial(_uniforms, parts))
        self._independent = law.is_independent
        # Arrays, since NumPy would convert numbers at each step.
        self._after_visible = np.full(shape, law.after_visible)
        self._after_blank = np.full(shape, law.after_blank)
        self._after_reset = np.array(law.after_reset)

    def seed(self, idx: int, seed: int) -> None:
        """Restart one environment's stream of uniforms from ``seed``."""
        self._streams.set_generator(idx, flicker_generator(seed, self.depth))

    def first_frames(self, indices: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Draw the flags of the frames that a reset of some environments returns."""
        first: NDArray[np.bool_] = self._streams.next_of(indices) < self._after_reset
        self.blanked[indices] = first
        return first

    def next_frames(self, restarted: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
        """Draw the flags of the frames that a step returns, ``[n_envs]`` or ``[n_envs, n]``.

        :param restarted: environments whose frame is the first of an episode, ``[n_envs]``, bool
        """
        self._streams.prepare(2)  # the first frames of episodes may follow
        uniforms = self._streams.next_of_all()
        if self._independent:
            self.blanked = uniforms < self._after_visible
            return self.blanked
        thresholds = np.where(self.blanked, self._after_blank, self._after_visible)
        if restarted is not None:
            thresholds[restarted] = self._after_reset
        self.blanked = uniforms < thresholds
        return self.blanked


def blanking_layers(env: Any) -> int:
    """Count the layers of an environment that blank frames, which is the depth of the next one.

    What blanks says so by an attribute ``n_blanking_layers``: how many layers blank from there
    inwards. Only this package's streams need to be told apart, so other people's layers count for
    nothing.

    :param env: a single environment
    """
    if env.has_wrapper_attr("n_blanking_layers"):
        return int(env.get_wrapper_attr("n_blanking_layers"))
    return 0

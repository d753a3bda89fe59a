"""The random numbers behind actions: one stream per environment.

An action of this package's distributions is a function of what the policy computed and of a few
random numbers: a uniform number for each categorical choice or bit, a standard normal one for each
Gaussian dimension. They are a function of a seed, the environment's number and the step, and of
nothing else: of no global generator, of no callback, of no other environment, and not of how
environments are divided among processes.

Numbers come from Philox, which computes them from a key and a counter (Salmon et al. 2011,
https://doi.org/10.1145/2063384.2063405), so that the whole state of a stream is three integers. The
key is made of the seed, and the counter of where in the stream the numbers belong::

    counter   [running, block or step, environment, draw]

The first draw of each step is made in blocks of so many steps, which costs next to nothing a step.
Whoever draws again in the same step (a policy that draws twice) gets numbers of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_count
from thrust_pomdp.errors import ArgumentError

#: Sets these streams apart from others of the same seed.
ACTION_KEY = 0x3C1D_90B7

#: What the numbers are for; each has streams of its own.
COLLECTING, ACTING, TRAINING, SHUFFLING = range(4)

#: Steps that are drawn at once. Another number would make other streams.
_BLOCK = 64

#: The place of exploration matrices among the draws of a step.
_MATRICES = 2**32

#: The largest seed is this less one.
_SEEDS = 2**63

Numbers = NDArray[np.float64]

#: [steps, n_envs, width] -> the same numbers in another form
Conversion = Callable[[Numbers], Any]


class ActionNoise:
    """The random numbers of some environments, step by step.

    >>> whole, half = ActionNoise(0, n_envs=4), ActionNoise(0, n_envs=2, first_env=2)
    >>> bool((whole.uniforms(1)[2:] == half.uniforms(1)).all())
    True

    :param seed: of the streams, from 0 to 2**63 - 1
    :param n_envs: number of environments; each call gives them a row each
    :param first_env: number of the first one among all environments of a training, where those of
        several processes are counted through
    :param purpose: ``COLLECTING`` or ``ACTING``
    :raises ValueError: for numbers below 0, or no environment
    """

    def __init__(
        self, seed: int, n_envs: int, first_env: int = 0, purpose: int = COLLECTING
    ) -> None:
        self.n_envs = check_count("n_envs", n_envs)
        #: Steps that were taken so far.
        self.step = 0
        self._purpose = purpose
        self.set_state({"seed": seed, "first_env": first_env, "step": 0})

    def get_state(self) -> dict[str, int]:
        """Return all that the numbers to come depend on: seed, first environment and step."""
        return {"seed": self.seed, "first_env": self.first_env, "step": self.step}

    def set_state(self, state: dict[str, int]) -> None:
        """Go on from a state that :meth:`get_state` returned.

        :raises ValueError: if it is none
        """
        names = ("seed", "first_env", "step")
        if not isinstance(state, dict) or set(state) != set(names):
            raise ArgumentError(f"state must be a dict with the keys {names}, got {state!r}")
        checked = {name: check_count(name, state[name], minimum=0) for name in names}
        for name, number in checked.items():
            if number >= _SEEDS:
                raise ArgumentError(f"{name} must be below 2**63, got {number}")
        self.seed, self.first_env, self.step = (checked[name] for name in names)
        key = seed_sequence(self.seed, self._purpose).generate_state(2, np.uint64)
        bits = np.random.Philox(key=key)
        # Setting the state of one generator takes a sixth of the time that making one does.
        self._generator, self._state = np.random.Generator(bits), bits.state
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be drawn again: a conversion is a function that nobody can pickle."""
        return {**vars(self), "_blocks": {}}

    def _forget(self) -> None:
        #: (kind, width, conversion) -> the block that is kept, of how many environments it is, and
        #: its numbers step by step, [n_envs, width] each.
        self._blocks: dict[tuple[str, int, Conversion | None], tuple[int, int, list[Any]]] = {}
        self._n_draws = 0

    def begin(self) -> None:
        """Begin the step, or begin it again: the next draw is its first."""
        self._n_draws = 0

    def advance(self, n_steps: int = 1) -> None:
        """Go on to the next step, or by many."""
        self.step += n_steps

    def uniforms_ahead(self, n_steps: int) -> Numbers:
        """Return the first uniform number of each coming step, ``[n_steps, n_envs]``."""
        present, parts, missing = self.step, [], n_steps
        while missing > 0:
            self.begin()
            self.uniforms(1)  # makes the step's block be there
            rows = self._blocks["random", 1, None][2][self.step % _BLOCK :][:missing]
            parts.extend(rows)
            missing -= len(rows)
            self.step += len(rows)
        self.step = present
        return np.stack(parts)[:, :, 0]

    def uniforms(self, width: int, how: Conversion | None = None) -> Any:
        """Draw uniform numbers from [0, 1), ``[n_envs, width]``.

        :param width: numbers for each environment
        :param how: makes of a block of numbers what the caller works with: of NumPy's array another
            one, or a tensor, of as many rows. A block is converted once.
        :return: the numbers of this step, float64 unless converted, which are not to be changed
        """
        return self._draw("random", width, how)

    def normals(self, width: int, how: Conversion | None = None) -> Any:
        """Draw standard normal numbers, ``[n_envs, width]``, as :meth:`uniforms` does."""
        return self._draw("standard_normal", width, how)

    def matrices(self, size: int) -> Numbers:
        """Draw the standard normal numbers of the step's exploration matrices, ``[n_envs, size]``.

        They are the same however often they are drawn in a step.
        """
        numbers: Numbers = self._generate("standard_normal", 1, size, self.step, _MATRICES)[0]
        return numbers

    def _draw(self, kind: str, width: int, how: Conversion | None) -> Any:
        draw = self._n_draws
        self._n_draws += 1
        if draw:
            numbers = self._generate(kind, 1, width, self.step, draw)
            return numbers[0] if how is None else how(numbers)[0]
        block = self.step // _BLOCK
        kept = self._blocks.get((kind, width, how))
        if kept is None or kept[0] != block or kept[1] != self.n_envs:
            numbers = self._generate(kind, _BLOCK, width, block, 0)
            kept = block, self.n_envs, [*(numbers if how is None else how(numbers))]
            self._blocks[kind, width, how] = kept
        return kept[2][self.step % _BLOCK]

    def _generate(self, kind: str, n_steps: int, width: int, place: int, draw: int) -> Numbers:
        numbers = np.empty((n_steps, self.n_envs, width))
        draw_numbers: Any = getattr(self._generator, kind)
        for env in range(self.n_envs):
            self._state["state"]["counter"][:] = 0, place, self.first_env + env, draw
            self._generator.bit_generator.state = self._state
            numbers[:, env] = draw_numbers((n_steps, width))
        return numbers


def seed_sequence(seed: int, purpose: int, *more: int) -> np.random.SeedSequence:
    """Return what the generators of one purpose are seeded with.

    :param seed: of the model
    :param purpose: ``COLLECTING``, ``ACTING``, ``TRAINING`` or ``SHUFFLING``
    :param more: numbers that tell further generators apart
    """
    return np.random.SeedSequence(seed, spawn_key=(ACTION_KEY, purpose, *more))


def fresh_seed() -> int:
    """Draw a seed from torch's generator, for who was given none.

    A program that seeds torch is then repeatable without a seed of the model.
    """
    return int(th.randint(_SEEDS - 1, ()))


#: What distributions draw from at present; None for torch's generator.
_PRESENT: ContextVar[ActionNoise | None] = ContextVar("thrust_pomdp_action_noise", default=None)


@contextmanager
def drawing_from(noise: ActionNoise) -> Iterator[None]:
    """Let this package's distributions draw from an environment's streams inside.

    It belongs around one step of a policy and nothing else: what callbacks or environments draw is
    no part of the streams.
    """
    noise.begin()
    token = _PRESENT.set(noise)
    try:
        yield
    finally:
        _PRESENT.reset(token)


def present_noise(n_rows: int) -> ActionNoise | None:
    """Return what is to be drawn from for so many rows; None for torch's generator.

    There is nothing for another number of rows than there are environments.
    """
    noise = _PRESENT.get()
    return noise if noise is not None and noise.n_envs == n_rows else None


def row_uniforms(n_rows: int) -> Numbers:
    """Draw one uniform number for each row, ``[n_rows]``."""
    noise = present_noise(n_rows)
    if noise is None:
        uniforms: Numbers = th.rand(n_rows, dtype=th.float64).numpy()
        return uniforms
    numbers: Numbers = noise.uniforms(1).reshape(-1)
    return numbers


@contextmanager
def seeded_training(seed: int, n_updates: int, device: th.device) -> Iterator[None]:
    """Seed torch's generators for one update, and leave them afterwards as they were.

    What a training draws from them (dropout) is then a function of its seed and of how many updates
    there were.

    :param seed: of the model's streams
    :param n_updates: epochs that the model was trained for so far
    :param device: of the model
    """
    number = int(seed_sequence(seed, TRAINING, n_updates).generate_state(1, np.uint64)[0] >> 1)
    cuda = [device] if device.type == "cuda" else []
    with th.random.fork_rng(devices=cuda):
        th.default_generator.manual_seed(number)
        for one in cuda:
            with th.cuda.device(one):
                th.cuda.manual_seed(number)
        yield

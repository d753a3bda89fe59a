"""Gaussian sensor noise: which numbers are added to what an environment shows.

As with the blanking process (:mod:`thrust_pomdp.envs.flicker`) the noise has a random stream of its
own, a pure function of the seed: it never disturbs the start states, and a single environment and
its vector twin see the same numbers.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_number
from thrust_pomdp.envs.flicker import BlockStreams
from thrust_pomdp.stateful import Names, Stateful

#: Sets the noise stream apart from every other use of an environment's seed.
NOISE_KEY = 0x6A05_51A2


def noise_generator(seed: int | None) -> np.random.Generator:
    """Make the generator of one environment's noise.

    :param seed: the seed given to ``reset``; None takes fresh entropy
    """
    if seed is None:
        return np.random.default_rng()
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(NOISE_KEY,)))


def check_sigma(name: str, value: float) -> float:
    """Return a standard deviation.

    :raises ValueError: if it is not a finite number >= 0
    """
    sigma = check_number(name, value)
    if not (sigma >= 0.0 and math.isfinite(sigma)):
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")
    return sigma


class SensorNoise(Stateful):
    """One environment's noise: independent normal numbers, one per component and frame.

    >>> noise = SensorNoise(sigma=0.1, n_components=2)
    >>> noise.seed(7)
    >>> noise.next_frame().shape
    (2,)

    :param sigma: standard deviation
    :param n_components: components of an observation
    """

    _fixed_state: Names = ("sigma", "n_components")
    _shaped_state: Names = ("latest",)

    def __init__(self, sigma: float, n_components: int) -> None:
        self.sigma, self.n_components = sigma, n_components
        #: Noise of the latest frame, ``[n_components]``, float32.
        self.latest: NDArray[np.float32] = np.zeros(n_components, dtype=np.float32)
        self._generator = noise_generator(None)

    def seed(self, seed: int) -> None:
        """Restart the stream from ``seed``."""
        self._generator = noise_generator(seed)

    def next_frame(self) -> NDArray[np.float32]:
        """Draw the noise of the next frame, ``[n_components]``."""
        drawn = self.sigma * self._generator.standard_normal(self.n_components)
        self.latest = drawn.astype(np.float32)
        return self.latest


class SensorNoises(Stateful):
    """The noise of a vector of environments, each with its own stream.

    Environment ``i`` gets the numbers that a :class:`SensorNoise` seeded alike gives.

    >>> noises = SensorNoises(sigma=0.1, n_components=2, n_envs=3)
    >>> noises.next_frames().shape
    (3, 2)

    :param sigma: standard deviation, the same for all
    :param n_components: components of an observation
    :param n_envs: the number of environments
    """

    #: Frames drawn ahead for each environment, 8 kB with two components; no power of two, as
    #: :attr:`~thrust_pomdp.envs.flicker.FlickerProcesses.BLOCK`.
    BLOCK = 500

    _fixed_state: Names = ("sigma",)
    _shaped_state: Names = ("latest",)

    def __init__(self, sigma: float, n_components: int, n_envs: int) -> None:
        self.sigma = sigma
        #: Noise of the latest frames, ``[n_envs, n_components]``, float32.
        self.latest: NDArray[np.float32] = np.zeros((n_envs, n_components), dtype=np.float32)
        # A normal number takes one draw of the generator or several, so these streams could not be
        # wound back (``BlockStreams.generator``); nobody asks for that.
        self._streams = BlockStreams(
            [noise_generator(None) for _ in range(n_envs)],
            self.BLOCK,
            (n_components,),
            partial(_standard_normals, n_components),
        )

    def seed(self, idx: int, seed: int) -> None:
        """Restart one environment's stream from ``seed``."""
        self._streams.set_generator(idx, noise_generator(seed))

    def first_frames(self, indices: NDArray[np.intp]) -> NDArray[np.float32]:
        """Draw the noise of the frames that a reset of some environments returns."""
        first = (self.sigma * self._streams.next_of(indices)).astype(np.float32)
        self.latest[indices] = first
        return first

    def next_frames(self) -> NDArray[np.float32]:
        """Draw the noise of the frames that a step returns, ``[n_envs, n_components]``."""
        self.latest = (self.sigma * self._streams.next_of_all()).astype(np.float32)
        return self.latest


def _standard_normals(
    n_components: int, rng: np.random.Generator, count: int
) -> NDArray[np.float64]:
    return rng.standard_normal((count, n_components))

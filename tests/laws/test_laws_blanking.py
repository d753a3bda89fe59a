"""The blanking process and sensor noise: what the uniform and normal numbers of a seed make."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

from laws.budget import case, law
from laws.strategies import SEEDS
from thrust_pomdp.envs.flicker import (
    FLICKER_KEY,
    FlickerLaw,
    FlickerProcess,
    FlickerProcesses,
    SeparateFlickerProcesses,
)
from thrust_pomdp.envs.noise import NOISE_KEY, SensorNoise, SensorNoises
from thrust_pomdp.wrappers import ElementDropoutObservation, FlickerObservation

#: How often the counting laws may fail of themselves: never, in the life of this project.
CHANCE = 1e-12


@case
class Process:
    flicker_prob: float
    burst_len: float | None
    n_parts: int
    depth: int
    n_envs: int
    #: Uniforms drawn ahead for each env.
    ahead: int
    #: For each frame after the first, which envs start an episode there, as digits.
    restarts: tuple[str, ...]
    seed: int


@st.composite
def probabilities(draw: st.DrawFn) -> tuple[float, float | None]:
    """Probability and length of a process that exists."""
    if draw(st.booleans()):
        return draw(st.sampled_from([0.5, 0.0, 1.0]) | st.floats(0, 1)), None
    p = draw(st.sampled_from([0.5, 0.25, 0.8]) | st.floats(0.001, 0.99))
    least = max(1.0, p / (1 - p) * (1 + 1e-12))
    return p, draw(st.sampled_from([1.0, 2.0, 4.0]).map(lambda n: max(n, least))
                   | st.floats(least, least + 30))  # fmt: skip


@st.composite
def processes(draw: st.DrawFn) -> Process:
    p, length = draw(probabilities())
    n_envs = draw(st.integers(1, 4))
    frames = draw(st.integers(1, 40))
    digits = "".join(map(str, range(n_envs)))
    return Process(
        flicker_prob=p,
        burst_len=length,
        n_parts=draw(st.integers(0, 3)),
        depth=draw(st.integers(0, 2)),
        n_envs=n_envs,
        ahead=draw(st.sampled_from([7, 2, 1000])),
        restarts=tuple(draw(st.text(digits, max_size=2)) for _ in range(frames)),
        seed=draw(SEEDS),
    )


def below(uniform: float, probability: Fraction) -> bool:
    return Fraction(uniform) < probability


class Chain:
    """The transition law of a simple Gilbert channel, in fractions, on the uniforms of a seed."""

    def __init__(self, case: Process, seed: int) -> None:
        sequence = np.random.SeedSequence(seed, spawn_key=(FLICKER_KEY, case.depth))
        self._rng = np.random.default_rng(sequence)
        self._n = max(1, case.n_parts)
        self._p = Fraction(case.flicker_prob)
        self._length = None if case.burst_len is None else Fraction(case.burst_len)
        self.blank = [False] * self._n

    def _probability(self, was_blank: bool, is_first: bool) -> Fraction:
        if self._length is None or is_first:
            return self._p
        return 1 - 1 / self._length if was_blank else self._p / (self._length * (1 - self._p))

    def frame(self, is_first: bool) -> list[bool]:
        uniforms = [float(self._rng.random()) for _ in range(self._n)]
        self.blank = [
            below(uniform, self._probability(was, is_first))
            for uniform, was in zip(uniforms, self.blank, strict=True)
        ]
        return self.blank


@law(processes(), fixed=120, long=1000)
def test_flags_are_what_the_transition_law_makes_of_the_uniforms(case: Process) -> None:
    """Of one process, one of several parts, and a vector of them some of which start anew."""
    law_ = FlickerLaw(case.flicker_prob, case.burst_len)
    chains = [Chain(case, case.seed + env) for env in range(case.n_envs)]
    parts = (case.n_parts,) if case.n_parts else ()
    with mock.patch.object(FlickerProcesses, "BLOCK", case.ahead):
        vector = FlickerProcesses(law_, case.n_envs, case.depth, parts)
    alone: list[Any] = [
        SeparateFlickerProcesses(law_, case.n_parts, case.depth)
        if case.n_parts
        else FlickerProcess(law_, case.depth)
        for _ in range(case.n_envs)
    ]
    for env in range(case.n_envs):
        vector.seed(env, case.seed + env)
        alone[env].seed(case.seed + env)
    expected = [chain.frame(is_first=True) for chain in chains]
    first = vector.first_frames(np.arange(case.n_envs))
    assert first.reshape(case.n_envs, -1).tolist() == expected
    assert [np.ravel(process.first_frame()).tolist() for process in alone] == expected
    for envs in case.restarts:
        starts = np.array([str(env) in envs for env in range(case.n_envs)])
        expected = [chain.frame(bool(starts[env])) for env, chain in enumerate(chains)]
        flags = vector.next_frames(starts if starts.any() else None)
        assert flags.reshape(case.n_envs, -1).tolist() == expected
        for env, process in enumerate(alone):
            drawn = process.first_frame() if starts[env] else process.next_frame()
            assert np.ravel(drawn).tolist() == expected[env]


@law(probabilities(), fixed=200, long=1000)
def test_the_chain_has_the_share_and_the_length_that_were_asked_for(
    case: tuple[float, float | None],
) -> None:
    p, length = case
    law_ = FlickerLaw(p, length)
    for probability in (law_.after_reset, law_.after_visible, law_.after_blank):
        assert 0.0 <= probability <= 1.0
    share = p * law_.after_blank + (1 - p) * law_.after_visible
    assert abs(share - p) <= 1e-14
    assert law_.after_reset == p
    if length is not None:
        assert abs((1 - law_.after_blank) * length - 1.0) <= 1e-14 * length


@law(st.tuples(st.floats(0, 1), st.floats(0.5, 50)), fixed=200, long=1000)
def test_a_process_is_refused_exactly_where_there_is_none(case: tuple[float, float]) -> None:
    p, length = case
    chance = None if p in (0.0, 1.0) else Fraction(p) / (Fraction(length) * (1 - Fraction(p)))
    exists = chance is not None and length >= 1 and chance <= 1
    nearly = chance is not None and abs(chance - 1) < Fraction(1, 10**12)
    refusal = ""
    try:
        FlickerLaw(p, length)
    except ValueError as error:
        refusal = str(error)
    assert bool(refusal) is not exists or nearly
    assert not refusal or "flicker_prob" in refusal or "burst_len" in refusal


@case
class Count:
    flicker_prob: float
    burst_len: float | None
    seed: int


COUNTS = st.builds(lambda law_, seed: Count(*law_, seed), probabilities(), SEEDS)


def assert_share(flags: np.ndarray, probability: float) -> None:
    """Hold a count of independent flags against Hoeffding's bound, which is passed by chance."""
    bound = math.sqrt(math.log(2 / CHANCE) / (2 * len(flags)))
    assert abs(flags.mean() - probability) <= bound


@law(COUNTS, fixed=30, long=300)
def test_counts_of_what_follows_what(case: Count) -> None:
    """Each visible and each blank frame is a draw of its own, whatever came before it."""
    law_ = FlickerLaw(case.flicker_prob, case.burst_len)
    vector = FlickerProcesses(law_, n_envs=4)
    for env in range(4):
        vector.seed(env, case.seed + env)
    frames = [vector.first_frames(np.arange(4))]
    frames += [vector.next_frames() for _ in range(3000)]
    before, after = np.array(frames[:-1]), np.array(frames[1:])
    for was_blank, probability in ((True, law_.after_blank), (False, law_.after_visible)):
        # The first so many: how many there are in all depends on the draws themselves.
        draws = after.T[was_blank == before.T]
        for count in (500, 2000, 8000):
            if len(draws) >= count:
                assert_share(draws[:count], probability)
    runs = np.diff(np.flatnonzero(np.diff(after[:, 0].astype(int))))
    first_is_blank = bool(after[0, 0])
    blank_runs = runs[0 if not first_is_blank else 1 :: 2]
    if case.burst_len is not None and len(blank_runs) >= 100:
        # A run that goes on for longer than k has the chance after_blank ** k.
        for k in (1, 2, 5):
            assert_share(blank_runs[:100] > k, law_.after_blank**k)


@law(COUNTS, fixed=30, long=300)
def test_counts_of_first_frames(case: Count) -> None:
    """Resets draw from the stationary law, whatever was blank before."""
    law_ = FlickerLaw(case.flicker_prob, case.burst_len)
    process = FlickerProcess(law_)
    process.seed(case.seed)
    first = []
    for _ in range(1000):
        first.append(process.first_frame())
        process.next_frame()
    assert_share(np.array(first), case.flicker_prob)


@case
class Sensor:
    n: int
    dropout: bool
    flicker_prob: float
    layers: int
    episodes: tuple[int, ...]
    seed: int


class Ones(gym.Env[Any, Any]):
    """Shows ones, and ends never."""

    action_space = spaces.Discrete(2)

    def __init__(self, n: int) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (n,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.ones(self.observation_space.shape, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(self.observation_space.shape, np.float32), 0.0, False, False, {}


@law(
    st.builds(
        Sensor, n=st.integers(1, 4), dropout=st.booleans(), flicker_prob=st.floats(0, 1),
        layers=st.integers(1, 3),
        episodes=st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple), seed=SEEDS,
    ),
    fixed=80, long=600,
)  # fmt: skip
def test_what_a_wrapper_shows_is_blank_exactly_where_its_layers_say(case: Sensor) -> None:
    env: Any = Ones(case.n)
    for _ in range(case.layers):
        cls: Any = ElementDropoutObservation if case.dropout else FlickerObservation
        env = cls(env, case.flicker_prob)
    sizes = {"n_parts": case.n if case.dropout else 0, "n_envs": 1, "ahead": 7, "restarts": ()}
    chains = [
        Chain(Process(case.flicker_prob, None, depth=depth, seed=0, **sizes), case.seed)  # type: ignore[arg-type]
        for depth in range(case.layers)
    ]
    for number, n_steps in enumerate(case.episodes):
        for step in range(n_steps + 1):
            seed = case.seed if number == 0 else None
            obs, info = env.reset(seed=seed) if step == 0 else env.step(0)[::4]
            drawn = np.array([chain.frame(is_first=step == 0) for chain in chains]).any(axis=0)
            blank = np.broadcast_to(drawn, (case.n,))
            assert np.array_equal(obs, np.where(blank, 0.0, 1.0))
            assert np.array_equal(np.broadcast_to(info["blanked"], (case.n,)), blank)


@case
class Noise:
    sigma: float
    n_components: int
    ahead: int
    #: For each frame, which envs reset before the others go on.
    resets: tuple[int | None, ...]
    seed: int


@law(
    st.builds(
        Noise, sigma=st.floats(0, 10), n_components=st.integers(1, 3),
        ahead=st.sampled_from([2, 5, 1000]),
        resets=st.lists(st.none() | st.integers(0, 2), max_size=8).map(tuple), seed=SEEDS,
    ),
    fixed=60, long=400,
)  # fmt: skip
def test_noise_is_the_seeds_normal_numbers_one_after_the_other(case: Noise) -> None:
    with mock.patch.object(SensorNoises, "BLOCK", case.ahead):
        vector = SensorNoises(case.sigma, case.n_components, n_envs=3)
    alone = [SensorNoise(case.sigma, case.n_components) for _ in range(3)]
    plain = []
    for env in range(3):
        vector.seed(env, case.seed + env)
        alone[env].seed(case.seed + env)
        sequence = np.random.SeedSequence(case.seed + env, spawn_key=(NOISE_KEY,))
        plain.append(np.random.default_rng(sequence))

    def drawn(env: int) -> np.ndarray:
        return (case.sigma * plain[env].standard_normal(case.n_components)).astype(np.float32)

    for reset in case.resets:
        if reset is not None:
            expected = drawn(reset)
            assert np.array_equal(vector.first_frames(np.array([reset]))[0], expected)
            assert np.array_equal(alone[reset].next_frame(), expected)
        frames = vector.next_frames()
        for env in range(3):
            expected = drawn(env)
            assert np.array_equal(frames[env], expected)
            assert np.array_equal(alone[env].next_frame(), expected)

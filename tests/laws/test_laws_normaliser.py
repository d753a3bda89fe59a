"""Normalisers: what they know is what a plain loop knows that looks at what is visible."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers.utils import RunningMeanStd as GymnasiumsStatistics
from hypothesis import strategies as st
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from laws.budget import case, law
from laws.strategies import SEEDS
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible
from thrust_pomdp.wrappers import NormalizeVisibleObservation
from thrust_pomdp.wrappers.visible_statistics import update_visible

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "vector": {"": (3,)},
    "one number": {"": (1,)},
    "matrix": {"": (2, 2)},
    "dict": {"a": (2,), "b": (1, 3)},
}
#: What infos tell of a frame; "untold" frames have no flag.
FLAGS = ("untold", "frame", "components", "either", "by key")
#: SB3's and Gymnasium's: the weight of the mean 0 and variance 1 that statistics start from.
PRIOR = 1e-4

Frame = dict[str, Any]


@case
class Scene:
    shape: str
    dtype: str
    flags: str
    share: float
    zero_is_blank: bool
    only_key: bool
    offset: float
    #: A row for each env, a letter for each step: "." goes on, "T" terminated, "L" hit the limit.
    ends: tuple[str, ...]
    seed: int

    @property
    def n_steps(self) -> int:
        return len(self.ends[0])

    @property
    def is_dict(self) -> bool:
        return self.shape == "dict"

    @property
    def keys(self) -> list[str]:
        """Those that are normalised."""
        return ["a"] if self.is_dict and self.only_key else list(SHAPES[self.shape])

    @property
    def space(self) -> spaces.Space[Any]:
        parts = {
            key: spaces.Box(-1000, 1000, shape, np.dtype(self.dtype).type)
            for key, shape in SHAPES[self.shape].items()
        }
        return spaces.Dict(parts) if self.is_dict else parts[""]

    def frames(self, env: int) -> Iterator[tuple[Frame, Frame, Any]]:
        """Yield frames by key, what of them is blank by key, and the flag that is told."""
        rng = np.random.default_rng([self.seed, env])
        while True:
            frame = {
                key: np.rint(self.offset + 3 * rng.normal(size=shape)).astype(self.dtype)
                if self.dtype.startswith("int")
                else (self.offset + 3 * rng.normal(size=shape)).astype(self.dtype)
                for key, shape in SHAPES[self.shape].items()
            }
            yield frame, *self._flagged(rng, frame)

    def _flagged(self, rng: np.random.Generator, frame: Frame) -> tuple[Frame, Any]:
        whole, kind = bool(rng.random() < self.share), self.flags
        if kind == "either":
            kind = ("frame", "components", "untold")[rng.integers(3)]
        if kind == "untold":
            blank = {}
            for key, part in frame.items():
                if whole:
                    part[...] = 0
                is_zero = self.zero_is_blank and not part.any()
                blank[key] = np.full(part.shape, is_zero)
            return blank, None
        if kind == "frame":
            return {key: np.full(part.shape, whole) for key, part in frame.items()}, whole
        by_key = {key: rng.random(part.shape) < self.share for key, part in frame.items()}
        if not self.is_dict:
            return by_key, by_key[""]
        if kind == "by key":
            by_key["b"] = np.full(frame["b"].shape, whole)
            told: dict[str, Any] = {"a": by_key["a"], "b": whole}
            if rng.random() < 0.3:  # what is not named is visible
                del told["b"]
                by_key["b"] = np.zeros(frame["b"].shape, dtype=bool)
            return by_key, told
        return by_key, dict(by_key)


class Played(gym.Env[Any, Any]):
    """Plays a scene's frames; rewards are its seed's."""

    action_space = spaces.Discrete(2)

    def __init__(self, scene: Scene, env: int, junk: bool = False) -> None:
        self.observation_space = scene.space
        self._scene, self._ends, self._junk = scene, scene.ends[env], junk
        self._frames, self._step = scene.frames(env), 0
        self._rewards = np.random.default_rng([scene.seed, env, 1])

    def _look(self) -> tuple[Any, dict[str, Any]]:
        frame, blank, told = next(self._frames)
        if self._junk:
            for key in frame:
                if told is not None:
                    frame[key][blank[key]] = 777
        info = {} if told is None else {"blanked": told}
        return (frame if self._scene.is_dict else frame[""]), info

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._look()

    def step(self, action: Any) -> Any:
        obs, info = self._look()
        end = self._ends[self._step]
        self._step += 1
        return obs, float(self._rewards.normal()), end == "T", end == "L", info


@st.composite
def scenes(draw: st.DrawFn, flags: tuple[str, ...] = FLAGS) -> Scene:
    n_envs, n_steps = draw(st.integers(1, 4)), draw(st.integers(1, 15))
    row = st.text(".TL", min_size=n_steps, max_size=n_steps)
    kind = draw(st.sampled_from(flags))
    return Scene(
        shape="dict" if kind == "by key" else draw(st.sampled_from(list(SHAPES))),
        dtype=draw(st.sampled_from(["float64", "float32", "int32"])),
        flags=kind,
        share=draw(st.sampled_from([0.5, 0.0, 1.0, 0.1, 0.9])),
        zero_is_blank=draw(st.booleans()),
        only_key=draw(st.booleans()),
        offset=draw(st.sampled_from([0.0, 10.0, -100.0])),
        ends=tuple(draw(row) for _ in range(n_envs)),
        seed=draw(SEEDS),
    )


class PlainLoop:
    """Statistics of one component's visible readings, kept as a list."""

    def __init__(self) -> None:
        self.readings: list[float] = []

    def moments(self) -> tuple[float, float]:
        n = len(self.readings)
        if n == 0:
            return 0.0, 1.0
        readings = np.array(self.readings, dtype=np.float64)
        mean, weight = readings.mean(), PRIOR + n
        squares = np.square(readings - mean).sum() + mean**2 * PRIOR * n / weight
        return mean * n / weight, (PRIOR + squares) / weight


class Loops:
    """A plain loop for each component of each key."""

    def __init__(self, scene: Scene, clip: float) -> None:
        self.scene, self.clip = scene, clip
        self.loops = {
            (key, place): PlainLoop()
            for key in scene.keys
            for place in np.ndindex(SHAPES[scene.shape][key])
        }
        # Of float32 the mean of a batch is float32: an error of some last digits of the largest.
        self.epsilon = 1e-15 if scene.dtype != "float32" else 6e-8
        self.largest = abs(scene.offset) + 20

    def see(self, frame: Frame, blank: Frame) -> None:
        for (key, place), loop in self.loops.items():
            if not blank[key][place]:
                loop.readings.append(float(frame[key][place]))

    def check(self, shown: Any, frame: Frame, blank: Frame) -> None:
        """Hold what is shown against the loops."""
        for key in frame:
            part = shown[key] if self.scene.is_dict else shown
            if key not in self.scene.keys:
                assert np.array_equal(part, frame[key])
        for (key, place), loop in self.loops.items():
            part = (shown[key] if self.scene.is_dict else shown)[place]
            if blank[key][place]:
                assert part == 0.0
                continue
            mean, var = loop.moments()
            std = np.sqrt(var + 1e-8)
            expected = (float(frame[key][place]) - mean) / std
            # 20: batches, each with an error of its own; and what is shown is float32.
            bound = (20 * self.epsilon * self.largest / std + 1e-6) * (1 + abs(expected))
            clipped = max(-self.clip, min(self.clip, expected))
            assert abs(part - clipped) <= bound, (key, place, float(part), clipped, bound)

    def check_statistics(self, of_keys: Any) -> None:
        for (key, place), loop in self.loops.items():
            statistics = of_keys[key] if self.scene.is_dict else of_keys
            mean, var = loop.moments()
            error = 20 * self.epsilon * self.largest
            assert abs(statistics.mean[place] - mean) <= error
            assert abs(statistics.var[place] - var) <= 2 * error * (np.sqrt(var) + error) + 1e-12
            count = np.broadcast_to(statistics.count, statistics.mean.shape)[place]
            assert abs(count - PRIOR - len(loop.readings)) < 1e-9


def vector_of(scene: Scene, junk: bool = False) -> DummyVecEnv:
    return DummyVecEnv(
        [lambda env=env: Played(scene, env, junk) for env in range(len(scene.ends))]  # type: ignore[misc]
    )


def normalised(scene: Scene, **kwargs: Any) -> VecNormalizeVisible:
    keys = scene.keys if scene.is_dict else None
    venv = VecNormalizeVisible(
        vector_of(scene, **kwargs), norm_obs_keys=keys, zero_is_blank=scene.zero_is_blank
    )
    venv._watches = None  # the warning of zeros that nobody tells of has tests of its own
    return venv


@law(scenes(), fixed=120, long=1000)
def test_what_is_shown_is_what_a_plain_loop_shows(case: Scene) -> None:
    venv, loops = normalised(case), Loops(case, clip=10.0)
    scripts = [case.frames(env) for env in range(len(case.ends))]
    returns, of_returns = np.zeros(len(scripts)), PlainLoop()

    def compare(shown: Any, frames: list[tuple[Frame, Frame, Any]]) -> None:
        for frame, blank, _ in frames:
            loops.see(frame, blank)
        for env, (frame, blank, _) in enumerate(frames):
            of_env = {k: v[env] for k, v in shown.items()} if case.is_dict else shown[env]
            loops.check(of_env, frame, blank)

    compare(venv.reset(), [next(script) for script in scripts])
    rewards_of = [np.random.default_rng([case.seed, env, 1]) for env in range(len(scripts))]
    for step in range(case.n_steps):
        shown, rewards, dones, infos = venv.step(np.zeros(len(scripts), dtype=int))
        frames = [next(script) for script in scripts]
        ended = [row[step] != "." for row in case.ends]
        assert dones.tolist() == ended
        last = frames
        frames = [
            next(script) if end else frame
            for script, end, frame in zip(scripts, ended, frames, strict=True)
        ]
        compare(shown, frames)
        for env, end in enumerate(ended):
            if end:
                loops.check(infos[env]["terminal_observation"], last[env][0], last[env][1])
        raw = np.array([rng.normal() for rng in rewards_of])
        returns = 0.99 * returns + raw
        of_returns.readings.extend(returns.tolist())
        expected = np.clip(raw / np.sqrt(of_returns.moments()[1] + 1e-8), -10, 10)
        assert np.abs(rewards - expected).max() <= 1e-5  # VecNormalize's are float32
        returns[ended] = 0.0
    loops.check_statistics(venv.obs_rms)


@law(scenes(), fixed=60, long=500)
def test_a_single_environment_is_shown_what_a_plain_loop_shows(case: Scene) -> None:
    case = Scene(**{**vars(case), "only_key": False})
    env = NormalizeVisibleObservation(Played(case, 0), zero_is_blank=case.zero_is_blank)
    env._watches = None
    loops, script = Loops(case, clip=np.inf), case.frames(0)
    for step in range(case.n_steps + 1):
        shown = env.reset()[0] if step == 0 else env.step(0)[0]
        frame, blank, _ = next(script)
        loops.see(frame, blank)
        loops.check(shown, frame, blank)
    loops.check_statistics(env.obs_rms)


@law(scenes(flags=("frame", "components", "either", "by key")), fixed=60, long=500)
def test_what_is_hidden_reaches_nothing(case: Scene) -> None:
    """Other values under the blanks change no bit of anything."""
    case = Scene(**{**vars(case), "only_key": False, "zero_is_blank": False})
    runs = [normalised(case), normalised(case, junk=True)]
    outcomes: list[Any] = [run.reset() for run in runs]
    for step in range(case.n_steps + 1):
        first, second = outcomes
        assert_same_bits(first, second)
        if step < case.n_steps:
            outcomes = [run.step(np.zeros(len(case.ends), dtype=int)) for run in runs]
    for name in ("mean", "var", "count"):
        for key in case.keys:
            ours, theirs = (r.obs_rms[key] if case.is_dict else r.obs_rms for r in runs)
            assert np.array_equal(getattr(ours, name), getattr(theirs, name))


@law(scenes(flags=("untold",)), fixed=40, long=400)
def test_where_nothing_is_told_it_is_stable_baselines3s(case: Scene) -> None:
    case = Scene(**{**vars(case), "zero_is_blank": False})
    keys = case.keys if case.is_dict else None
    runs = [normalised(case), VecNormalize(vector_of(case), norm_obs_keys=keys)]
    outcomes: list[Any] = [run.reset() for run in runs]
    for step in range(case.n_steps + 1):
        assert_same_bits(*outcomes)
        if step < case.n_steps:
            outcomes = [run.step(np.zeros(len(case.ends), dtype=int)) for run in runs]


def assert_same_bits(ours: Any, theirs: Any) -> None:
    if isinstance(ours, dict):
        # What the environment told is compared by what comes of it.
        for key in (ours.keys() | theirs.keys()) - {"blanked"}:
            assert_same_bits(ours[key], theirs[key])
    elif isinstance(ours, (tuple, list)):
        for mine, other in zip(ours, theirs, strict=True):
            assert_same_bits(mine, other)
    elif isinstance(ours, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs


@case
class Division:
    n_frames: int
    shape: tuple[int, ...]
    by_component: bool
    share: float
    #: Frames at which a batch ends.
    cuts: tuple[int, ...]
    shuffled: bool
    gymnasiums: bool
    seed: int


@st.composite
def divisions(draw: st.DrawFn) -> Division:
    n_frames = draw(st.integers(1, 40))
    return Division(
        n_frames=n_frames,
        shape=draw(st.sampled_from([(3,), (1,), (2, 2), ()])),
        by_component=draw(st.booleans()),
        share=draw(st.sampled_from([0.5, 0.0, 1.0, 0.95])),
        cuts=tuple(sorted(draw(st.sets(st.integers(1, n_frames), max_size=6)))),
        shuffled=draw(st.booleans()),
        gymnasiums=draw(st.booleans()),
        seed=draw(SEEDS),
    )


@law(divisions(), fixed=100, long=1000)
def test_statistics_do_not_depend_on_how_frames_are_divided(case: Division) -> None:
    """By batches of several envs, one by one, in another order: the same but for rounding."""
    rng = np.random.default_rng(case.seed)
    frames = 10 + 3 * rng.normal(size=(case.n_frames, *case.shape))
    sizes = frames.shape if case.by_component else frames.shape[:1]
    blanked = rng.random(sizes) < case.share

    def statistics() -> Any:
        return (GymnasiumsStatistics if case.gymnasiums else RunningMeanStd)(shape=case.shape)

    one_by_one, divided, at_once = (statistics() for _ in range(3))
    update_visible(at_once, frames, blanked)
    for idx in range(case.n_frames):
        before = copy.deepcopy(vars(one_by_one))
        update_visible(one_by_one, frames[idx : idx + 1], blanked[idx : idx + 1])
        if blanked[idx].all():
            for name, value in before.items():
                # A count may become one for each component.
                assert np.all(vars(one_by_one)[name] == value), "blanks leave every bit"
    order = rng.permutation(case.n_frames) if case.shuffled else np.arange(case.n_frames)
    for part in np.split(order, case.cuts):
        if len(part) > 0:
            update_visible(divided, frames[part], blanked[part])
    for name in ("mean", "var", "count"):
        expected = np.broadcast_to(getattr(at_once, name), case.shape)
        for other in (one_by_one, divided):
            found = np.broadcast_to(getattr(other, name), case.shape)
            # float64, and sums of 40 numbers below 30
            assert np.abs(found - expected).max() <= 1e-11


@law(divisions(), fixed=60, long=500)
def test_merged_statistics_are_those_of_all_frames(case: Division) -> None:
    """Statistics of each part, merged as ranks would do it."""
    rng = np.random.default_rng(case.seed)
    frames = 10 + 3 * rng.normal(size=(case.n_frames, *case.shape))
    sizes = frames.shape if case.by_component else frames.shape[:1]
    blanked = rng.random(sizes) < case.share
    at_once, merged = (RunningMeanStd(shape=case.shape) for _ in range(2))
    update_visible(at_once, frames, blanked)
    for part in np.split(np.arange(case.n_frames), case.cuts):
        own = RunningMeanStd(epsilon=1e-9, shape=case.shape)
        if len(part) > 0:
            update_visible(own, frames[part], blanked[part])
        merged.update_from_moments(own.mean, own.var, own.count)
    for name in ("mean", "var", "count"):
        found = np.broadcast_to(getattr(merged, name), case.shape)
        expected = np.broadcast_to(getattr(at_once, name), case.shape)
        # Seven parts, each with a prior of weight 1e-9 of its own, at most 20 from the readings.
        assert np.abs(found - expected).max() <= 1e-5

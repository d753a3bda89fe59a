"""Whether an exported actor acts as the one it was made from, by playing both side by side."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from thrust_pomdp.deploy.observation_layers import Stacked
from thrust_pomdp.deploy.program import Port, Program

#: How near two numbers must be, relative above magnitude 1.
TOLERANCE = 1e-5

#: Two best logits nearer than this are a tie, whose winner rounding decides.
TIE = 2e-5

#: Share of steps that start an episode, of those that begin a burst of blanks, and that end one.
_START, _BLANK, _VISIBLE = 0.02, 0.1, 0.4

Array = NDArray[Any]


class Runner(Protocol):
    """What plays an exported actor step by step, as :class:`NumpyActor` does."""

    def act(self, obs: Any, **keywords: Any) -> Array:
        """Return the actions."""


@dataclass
class Steps:
    """What some environments show over some steps, ``[n_steps, n_envs, ...]``.

    :param obs: by the name of the input
    :param flags: likewise; None where nobody tells what is blanked
    :param starts: whose observation starts an episode
    """

    program: Program
    obs: dict[str, Array]
    flags: dict[str, Array] | None
    starts: Array
    rewards: Array
    masks: Array | None
    noise: Array | None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Go through the keywords of ``act``."""
        is_dict = self.program.obs["is_dict"]
        for step, starts in enumerate(self.starts):
            keywords = {"obs": self._at(self.obs, step, is_dict), "episode_start": starts}
            if self.flags is not None:
                keywords["blanked"] = self._at(self.flags, step, is_dict)
            if self.program.find("previous_reward"):
                keywords["reward"] = self.rewards[step]
            if self.masks is not None:
                keywords["action_masks"] = self.masks[step]
            if self.noise is not None:
                keywords["noise"] = self.noise[step]
            yield keywords

    def _at(self, arrays: Mapping[str, Array], step: int, is_dict: bool) -> Any:
        keys = {port.name: port.key for port in self.program.inputs}
        shown = {keys[name]: array[step] for name, array in arrays.items()}
        return shown if is_dict else shown[None]


def random_steps(
    program: Program, n_steps: int, n_envs: int, seed: int = 0, with_noise: bool = False
) -> Steps:
    """Make up what environments show: episodes, bursts of blanks, readings as in training."""
    rng = np.random.default_rng(seed)
    size = (n_steps, n_envs)
    starts = rng.random(size) < _START
    starts[0] = True
    blanks = _bursts(rng, size)
    obs = {port.name: _readings(program, port, rng, size) for port in _of(program, "obs")}
    flags: dict[str, Array] | None = None
    ports = _of(program, "blanked")
    if ports and program.obs["told"]:
        flags = {port.name: _flags(program, port, rng, blanks) for port in ports}
    elif ports:
        for array in obs.values():
            array[blanks] = 0
    masks = program.find("action_masks")
    noise = program.find("noise") if with_noise else None
    return Steps(
        program,
        obs,
        flags,
        starts,
        rng.normal(size=size).astype(np.float32),
        None if masks is None else _masks(program, rng, size),
        None if noise is None else _noise(program, noise, rng, size),
    )


def _of(program: Program, kind: str) -> list[Port]:
    return [port for port in program.inputs if port.kind == kind]


def _bursts(rng: np.random.Generator, size: tuple[int, int]) -> Array:
    blanks = np.zeros(size, bool)
    draws = rng.random(size)
    for step in range(1, size[0]):
        stays = draws[step] >= _VISIBLE
        blanks[step] = np.where(blanks[step - 1], stays, draws[step] < _BLANK)
    return blanks


def _readings(
    program: Program, port: Port, rng: np.random.Generator, size: tuple[int, int]
) -> Array:
    shape, dtype = (*size, *program.shapes[port.value]), np.dtype(program.dtypes[port.value])
    reader = _reader(program, port.value)
    if reader is not None and reader.kind == "normalize":
        mean, std = (program.arrays[reader.arrays[name]] for name in ("mean", "std"))
        return (mean + 2 * std * rng.normal(size=shape)).astype(dtype)
    if reader is not None and reader.kind == "one_hot":
        sizes = np.array(reader.options["sizes"]).reshape(program.shapes[port.value])
        return rng.integers(0, np.broadcast_to(sizes, shape), dtype=dtype)
    if dtype == np.uint8:
        return rng.integers(0, 256, shape, dtype)
    if dtype.kind == "f":
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _reader(program: Program, value: str) -> Any:
    """Return the operation that makes something of a reading, behind what only moves it."""
    for operation in program.operations:
        if value in operation.inputs and operation.inputs[0] == value:
            if operation.kind in ("blank", "flatten", "reshape"):
                return _reader(program, operation.outputs[0])
            return operation
    return None


def _flags(program: Program, port: Port, rng: np.random.Generator, blanks: Array) -> Array:
    shape = program.shapes[port.value]
    whole = np.broadcast_to(
        blanks.reshape(*blanks.shape, *(1,) * len(shape)), (*blanks.shape, *shape)
    )
    # Sometimes single components are blank, too.
    single = rng.random(whole.shape) < rng.choice([0.0, 0.1], blanks.shape).reshape(
        *blanks.shape, *(1,) * len(shape)
    )
    return whole | single if len(shape) == 1 else whole.copy()


def _masks(program: Program, rng: np.random.Generator, size: tuple[int, int]) -> Array:
    rows = []
    for n_values in program.action["sizes"]:
        allowed = rng.random((*size, n_values)) < 0.6
        index = rng.integers(0, n_values, size)[..., None]
        np.put_along_axis(allowed, index, True, axis=-1)
        rows.append(allowed)
    return np.concatenate(rows, axis=-1)


def _noise(program: Program, port: Port, rng: np.random.Generator, size: tuple[int, int]) -> Array:
    shape = (*size, *program.shapes[port.value])
    if program.action["space"] == "Box":
        return rng.normal(size=shape).astype(np.float32)
    return rng.random(shape, dtype=np.float32)


class Played(NamedTuple):
    """What was done in some steps, ``[n_steps, n_envs, ...]``; states are those after each step."""

    actions: Array
    states: dict[str, Array]


def shadow_of(actor: Any) -> Any:
    """Return an actor that acts alike and remembers by itself, nothing yet."""
    shadow = copy.copy(actor)
    shadow.deterministic = True  # where there is no noise
    shadow._state = None
    if actor._pipeline is not None:
        shadow._pipeline = copy.copy(actor._pipeline)
        shadow._pipeline.layers = [
            Stacked(layer.n_stack, layer.axis_of) if isinstance(layer, Stacked) else layer
            for layer in actor._pipeline.layers
        ]
    shadow.reset()
    return shadow


def play_original(actor: Any, steps: Steps) -> Played:
    """Let the actor itself play; its own memory stays as it is."""
    shadow, actions, states = shadow_of(actor), [], []
    for keywords in steps:
        actions.append(np.array(shadow.act(**keywords)))
        state = shadow._state
        parts = state if isinstance(state, (tuple, list)) else () if state is None else (state,)
        states.append([np.array(part) for part in parts])
    memory = [state for state in steps.program.states if state.kind == "memory"]
    found = {}
    for place, state in enumerate(memory):
        array = np.stack([parts[place] for parts in states])
        # A memory of a user's own has its layers behind the environments there.
        found[state.name] = array if state.has_layers else array.swapaxes(1, 2)
    return Played(np.stack(actions), found)


class Difference(NamedTuple):
    """How two plays differ.

    :param actions: discrete actions that differ, without ties
    :param ties: those that differ and are ties
    :param largest: of all that is continuous, relative above magnitude 1
    """

    actions: int
    ties: int
    largest: float

    @property
    def is_small(self) -> bool:
        """Whether both act alike."""
        return self.actions == 0 and self.largest <= TOLERANCE


def distance(one: Array, other: Array) -> float:
    """Return the largest difference, relative above magnitude 1."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    if not one.size:
        return 0.0
    return float(np.max(np.abs(one - other) / np.maximum(1.0, np.abs(one))))


def difference(
    program: Program, original: Played, other: Played, logits: Array | None, steps: Steps
) -> Difference:
    """Compare two plays.

    :param logits: of the actions, ``[n_steps, n_envs, n]``; None for continuous ones
    """
    largest = [
        distance(original.states[name], other.states[name].reshape(original.states[name].shape))
        for name in original.states
        if name in other.states
    ]
    if program.action["space"] == "Box":
        largest.append(distance(original.actions, other.actions))
        return Difference(0, 0, max(largest, default=0.0))
    n_steps, n_envs = original.actions.shape[:2]
    rows = (n_steps, n_envs, len(program.action["sizes"]))
    differs = original.actions.reshape(rows) != other.actions.reshape(rows)
    ties = 0
    if differs.any() and logits is not None:
        for step, env, place in np.argwhere(differs):
            ties += _is_tie(program, logits[step, env], place, steps, (step, env))
    return Difference(int(differs.sum()) - ties, ties, max(largest, default=0.0))


def _is_tie(program: Program, logits: Array, place: int, steps: Steps, at: tuple[int, int]) -> bool:
    """Tell whether rounding decides a choice."""
    sizes = program.action["sizes"]
    if program.action["space"] == "MultiBinary":
        ends = np.array([0.0, logits[place]])
    else:
        ends = np.split(logits.astype(np.float64), np.cumsum(sizes)[:-1])[place]
        if steps.masks is not None:
            ends = ends[np.split(steps.masks[at], np.cumsum(sizes)[:-1])[place]]
    if steps.noise is None:
        best = np.sort(ends)[-2:]
        return bool(best[-1] - best[0] < TIE)
    probabilities = np.exp(ends - ends.max())
    probabilities /= probabilities.sum()
    borders = probabilities[1:] if program.action["space"] == "MultiBinary" else probabilities
    return bool(np.min(np.abs(np.cumsum(borders) - steps.noise[at][place])) < TIE)


def play(runner: Any, steps: Steps) -> Played:
    """Let an exported actor play, whose runner keeps its state as ``NumpyActor`` does."""
    runner.reset()
    actions, states = [], []
    for keywords in steps:
        actions.append(np.array(runner.act(**keywords)))
        states.append({name: np.array(part) for name, part in runner._state.items()})
    return Played(
        np.stack(actions),
        {name: np.stack([parts[name] for parts in states]) for name in states[0]},
    )


def is_discrete(space: spaces.Space[Any]) -> bool:
    """Tell whether actions are choices."""
    return not isinstance(space, spaces.Box)

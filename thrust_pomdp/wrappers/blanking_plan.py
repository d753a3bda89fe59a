"""What is blanked by which draws: the one plan that single and vector wrappers follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_flag
from thrust_pomdp.envs.flicker import (
    FlickerLaw,
    FlickerProcess,
    FlickerProcesses,
    SeparateFlickerProcesses,
    check_probability,
)
from thrust_pomdp.wrappers.blank_symbols import Blanks


class Layout(Protocol):
    """How the draws of a frame become its flags."""

    @property
    def parts(self) -> tuple[int, ...]:
        """Shape of one frame's draws: ``()`` for one draw, ``(n,)`` for ``n``."""

    def flags(self, drawn: Any) -> Any:
        """Turn what was drawn, ``parts`` or ``[n_envs, *parts]``, into flags."""


@dataclass(frozen=True)
class WholeFrame:
    """One draw, one flag."""

    parts: tuple[int, ...] = ()

    def flags(self, drawn: Any) -> Any:
        """Return what was drawn."""
        return drawn


@dataclass(frozen=True)
class KeysTogether:
    """One draw for all the keys."""

    keys: tuple[str, ...]
    parts: tuple[int, ...] = ()

    def flags(self, drawn: Any) -> dict[str, Any]:
        """Return the same flag for each key."""
        return dict.fromkeys(self.keys, drawn)


@dataclass(frozen=True)
class KeysSeparately:
    """A draw for each key, in the order of the keys."""

    keys: tuple[str, ...]

    @property
    def parts(self) -> tuple[int, ...]:
        """As many draws as keys."""
        return (len(self.keys),)

    def flags(self, drawn: NDArray[np.bool_]) -> dict[str, Any]:
        """Return one column for each key."""
        columns = drawn.tolist() if drawn.ndim == 1 else drawn.T
        return dict(zip(self.keys, columns, strict=True))


@dataclass(frozen=True)
class Components:
    """A draw for each component of an array, in C order.

    :param shape: the array's
    """

    shape: tuple[int, ...]

    @property
    def parts(self) -> tuple[int, ...]:
        """As many draws as components."""
        return (math.prod(self.shape),)

    def flags(self, drawn: NDArray[np.bool_]) -> Any:
        """Give the draws the shape of the array."""
        if len(self.shape) == 1:
            return drawn
        flags = drawn.reshape(drawn.shape[:-1] + self.shape)
        return bool(flags) if flags.ndim == 0 else flags


@dataclass(frozen=True)
class ComponentsByKey:
    """A draw for each component of each array, key after key.

    :param by_key: the components of each key
    """

    by_key: dict[str, Components]

    @property
    def parts(self) -> tuple[int, ...]:
        """As many draws as components."""
        return (sum(components.parts[0] for components in self.by_key.values()),)

    def flags(self, drawn: NDArray[np.bool_]) -> dict[str, Any]:
        """Cut the row of draws into one piece for each key."""
        flags, start = {}, 0
        for key, components in self.by_key.items():
            end = start + components.parts[0]
            flags[key] = components.flags(drawn[..., start:end])
            start = end
        return flags


@dataclass(frozen=True)
class BlankingPlan:
    """What is blanked (:class:`Blanks`), how often (the law), and by which draws (the layout)."""

    blanks: Blanks
    law: FlickerLaw
    layout: Layout

    def process(self, depth: int) -> FlickerProcess | SeparateFlickerProcesses:
        """Make the process of a single environment, with ``depth`` blanking layers below it."""
        if self.layout.parts:
            return SeparateFlickerProcesses(self.law, self.layout.parts[0], depth)
        return FlickerProcess(self.law, depth)

    def processes(self, n_envs: int, depth: int) -> FlickerProcesses:
        """Make the processes of a vector of environments."""
        return FlickerProcesses(self.law, n_envs, depth, self.layout.parts)


def flicker_plan(
    space: spaces.Space[Any],
    flicker_prob: float,
    burst_len: float | None,
    keys: Sequence[str] | None,
    separately: bool,
    blank_value: Any,
) -> BlankingPlan:
    """Plan to blank whole frames, or whole keys; see ``FlickerObservation`` for the arguments."""
    law = FlickerLaw(flicker_prob, burst_len)
    if check_flag("separately", separately) and not isinstance(space, spaces.Dict):
        raise ValueError(f"separately=True needs a Dict observation, got {space}")
    blanks = Blanks(space, keys, blank_value)
    names = tuple(blanks.by_key)
    if separately:
        return BlankingPlan(blanks, law, KeysSeparately(names))
    return BlankingPlan(blanks, law, WholeFrame() if keys is None else KeysTogether(names))


def dropout_plan(
    space: spaces.Space[Any], dropout_prob: float, keys: Sequence[str] | None, blank_value: Any
) -> BlankingPlan:
    """Plan to blank single components; see ``ElementDropoutObservation`` for the arguments."""
    law = FlickerLaw(check_probability("dropout_prob", dropout_prob))
    blanks = Blanks(space, keys, blank_value)
    if blanks.single is not None:
        return BlankingPlan(blanks, law, Components(blanks.single.shape))
    by_key = {key: Components(blank.shape) for key, blank in blanks.by_key.items()}
    return BlankingPlan(blanks, law, ComponentsByKey(by_key))


def as_json(value: Any) -> Any:
    """Turn arrays and NumPy numbers among a wrapper's arguments into what a spec can be saved with.

    >>> as_json({"speed": np.zeros(2)}), as_json(np.float32(0.5))
    ({'speed': [0.0, 0.0]}, 0.5)
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, dict):
        return {key: as_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, range, set, frozenset)):
        return [as_json(part) for part in value]
    return value

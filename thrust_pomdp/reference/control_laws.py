"""Controllers of many episodes side by side, and the laws that push a cart on what is seen now.

A controller is given what an agent is given, the observation and whether it is blank, and remembers
what its class of information allows it to, its own actions included. Nothing else reaches it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thrust_pomdp.arguments import check_count

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Actions = NDArray[np.int64]

#: What a controller knows, from nothing to all there is to know.
Information = Literal["nothing", "memoryless", "previous action", "two frames", "exact model"]


class Controller(ABC):
    """A scripted controller of ``n_envs`` episodes side by side.

    On a single environment (``obs`` and ``info`` are what ``reset`` and ``step`` return)::

        controller.reset()
        action = controller.act(obs[None], [info.get("blanked", False)])[0]

    and on a vector of environments ``controller.restart(terminations | truncations)`` before the
    first frame of an episode that an auto-reset started.

    :param seed: of the random draws; None takes fresh entropy
    """

    #: What the controller knows.
    information: ClassVar[Information]
    #: What tables and pictures call it.
    name: str
    #: Where its gains come from; empty where it has none.
    source: str = ""
    #: Why nothing that knows no more can do better; empty where nobody can tell.
    bound: str = ""

    def __init__(self, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self.n_envs = 0

    def seed(self, seed: int | None) -> None:
        """Start the random draws anew."""
        self._rng = np.random.default_rng(seed)

    def reset(self, n_envs: int = 1) -> None:
        """Start new episodes in ``n_envs`` environments and forget all others."""
        self.n_envs = check_count("n_envs", n_envs)
        self._start()
        self.restart(np.ones(self.n_envs, dtype=bool))

    def restart(self, ended: ArrayLike) -> None:
        """Forget what was remembered of some environments, whose next frame starts an episode.

        :param ended: the environments, ``[n_envs]``, bool
        """
        mask = np.asarray(ended, dtype=bool)
        if self.n_envs == 0 or mask.shape != (self.n_envs,):
            raise ValueError(
                f"ended must have shape ({self.n_envs},), one flag per environment named in "
                f"reset, got shape {mask.shape}"
            )
        self._forget(mask)

    def act(self, obs: ArrayLike, blanked: ArrayLike | None = None) -> Actions:
        """Choose the next action of every environment.

        :param obs: what is seen, ``[n_envs, *shape]``; blank rows are never read
        :param blanked: ``info["blanked"]``, ``[n_envs]``, bool; None for sensors that never blank
        :return: actions, ``[n_envs]``, int64
        :raises ValueError: if the arrays do not fit the number given to :meth:`reset`
        """
        frames: NDArray[Any] = np.asarray(obs)
        visible = ~np.asarray(np.zeros(len(frames)) if blanked is None else blanked, dtype=bool)
        if self.n_envs == 0 or len(frames) != self.n_envs or visible.shape != (self.n_envs,):
            raise ValueError(
                f"obs and blanked must hold one row for each of the {self.n_envs} environments "
                f"named in reset, got shapes {frames.shape} and {visible.shape}"
            )
        return self._choose(frames, visible)

    def _start(self) -> None:  # noqa: B027 (not all remember something)
        """Make what is remembered, for ``n_envs`` environments."""

    def _forget(self, ended: Flags) -> None:  # noqa: B027 (as above)
        """Clear what is remembered of some environments."""

    @abstractmethod
    def _choose(self, obs: NDArray[Any], visible: Flags) -> Actions:
        """Choose the next actions and remember what is needed."""


class RandomController(Controller):
    """Draws every action uniformly.

    >>> controller = RandomController(n_actions=2, seed=0)
    >>> controller.reset(n_envs=3)
    >>> controller.act([[0.0], [0.0], [0.0]]).shape
    (3,)

    :param n_actions: the number of actions
    :param seed: of the random draws
    """

    information = "nothing"
    name = "random"
    bound = "the only policy of its class"

    def __init__(self, n_actions: int, seed: int | None = None) -> None:
        super().__init__(seed)
        self.n_actions = check_count("n_actions", n_actions)

    def _choose(self, obs: NDArray[Any], visible: Flags) -> Actions:
        return self._rng.integers(self.n_actions, size=self.n_envs)


class PushController(Controller):
    """Pushes right with probability ``sigmoid(lean)``, where its law says how much it leans.

    Laws are antisymmetric, as the task is: mirroring all that was seen and done mirrors the action.

    :param gains: the law's constants, ``[n_gains]``, or ``[n_gains, n_envs]`` to try others in each
        environment
    :param seed: of the random draws
    """

    def __init__(self, gains: ArrayLike, seed: int | None = None) -> None:
        super().__init__(seed)
        values = np.asarray(gains, dtype=np.float64)
        #: ``[n_gains, 1]`` or ``[n_gains, n_envs]``
        self.gains: Floats = values.reshape(len(values), -1)

    def _choose(self, obs: NDArray[Any], visible: Flags) -> Actions:
        # One draw a frame whatever the law says; P(lean > logistic noise) = sigmoid(lean).
        noise = self._rng.logistic(size=self.n_envs)
        # What a blank frame holds is nobody's business.
        lean = self._lean(np.where(visible[:, None], obs, 0.0).T, visible)
        pushes_right = lean > noise
        self._remember(pushes_right)
        return pushes_right.astype(np.int64)

    @abstractmethod
    def _lean(self, frames: Floats, visible: Flags) -> Floats:
        """Return the log-odds of a push to the right.

        :param frames: what is seen, ``[components, n_envs]``, zero where blank
        :param visible: ``[n_envs]``, bool
        """

    def _remember(self, pushes_right: Flags) -> None:
        """Remember the actions just chosen, where the law may."""


class Memoryless(PushController):
    """Leans by ``u + c u**3`` on visible frames, ``u`` linear, and flips a coin on blank ones.

    The cube lets it dither while the pole is upright and push surely when it leans.

    ``gains``: one per component of the observation, then ``c``.
    """

    information = "memoryless"
    name = "best memoryless found"

    def _lean(self, frames: Floats, visible: Flags) -> Floats:
        seen = linear(self.gains[:-1], frames)
        lean: Floats = seen + self.gains[-1] * seen**3
        return lean


class PreviousAction(PushController):
    """Knows its last action besides what is seen: one bit of memory.

    On visible frames it leans by ``u + c u**3``, as :class:`Memoryless`.

    ``gains``: one per component of the observation, then what the last action (-1 or 1, 0 at the
    start) adds to ``u`` on visible frames, ``c``, and what it counts on blank ones, where far below
    zero alternates.
    """

    information = "previous action"
    name = "previous action only"

    def _start(self) -> None:
        self._last = np.zeros(self.n_envs)

    def _forget(self, ended: Flags) -> None:
        self._last[ended] = 0.0

    def _lean(self, frames: Floats, visible: Flags) -> Floats:
        on_visible, cube, on_blank = self.gains[-3:]
        seen = linear(self.gains[:-3], frames) + on_visible * self._last
        lean: Floats = np.where(visible, seen + cube * seen**3, on_blank * self._last)
        return lean

    def _remember(self, pushes_right: Flags) -> None:
        self._last = np.where(pushes_right, 1.0, -1.0)


class TwoFrames(PushController):
    """Sees the newest two frames, as a stack of two shows them, and not its own actions.

    Three linear laws: on both frames, on the newest if the other is blank (as before an episode's
    first), on the older if the newest is blank; a coin where both are.

    ``gains``: one per component for each of: newest of both, older of both, newest alone, older
    alone.
    """

    information = "two frames"
    name = "two frames"

    def _start(self) -> None:
        self._older: Floats | None = None
        self._older_visible = np.zeros(self.n_envs, dtype=bool)

    def _forget(self, ended: Flags) -> None:
        self._older_visible[ended] = False

    def _lean(self, frames: Floats, visible: Flags) -> Floats:
        newest_of_both, older_of_both, newest, older = np.split(self.gains, 4)
        before = np.zeros_like(frames) if self._older is None else self._older
        before_visible = self._older_visible
        lean = np.where(
            visible,
            np.where(
                before_visible,
                linear(newest_of_both, frames) + linear(older_of_both, before),
                linear(newest, frames),
            ),
            np.where(before_visible, linear(older, before), 0.0),
        )
        self._older, self._older_visible = frames, visible.copy()
        return lean


def linear(weights: Floats, frames: Floats) -> Floats:
    """Return the weighted sum of components, ``[n_envs]``.

    :param weights: ``[components, 1]`` or ``[components, n_envs]``
    :param frames: ``[components, n_envs]``
    """
    result: Floats = (weights * frames).sum(axis=0)
    return result

"""The partially observable CartPoles for many environments at once, equal to the single ones."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.utils import maybe_parse_reset_bounds
from numpy.typing import NDArray

from thrust_pomdp.envs.cartpole import (
    FlickeringCartPoleEnv,
    MaskedCartPoleEnv,
    SensedCartPoleEnv,
    check_start_options,
)
from thrust_pomdp.envs.cartpole_physics import ALL_ROWS, POSITION_ROWS, CartPolePhysics
from thrust_pomdp.envs.cartpole_view import CartPoleOfVector
from thrust_pomdp.envs.flicker import FlickerLaw, FlickerProcesses
from thrust_pomdp.envs.native_vector import (
    Actions,
    Flags,
    Indices,
    Infos,
    NativeVectorEnv,
    Observations,
)
from thrust_pomdp.envs.rendering import STRIP_FRAMES
from thrust_pomdp.stateful import Names
from thrust_pomdp.unmodified_classes import remember

#: Bounds of a start state without reset options, as in Gymnasium's CartPole.
DEFAULT_BOUNDS = (-0.05, 0.05)

_ZERO = np.zeros((), dtype=np.float32)


@remember
class SensedCartPoleVectorEnv(NativeVectorEnv):
    """Many CartPoles seen through the same kind of sensor.

    :param single: a single environment with the wanted arguments
    """

    default_max_episode_steps: int | None = 500
    env_class = CartPoleOfVector
    #: Flags of the frames last returned, ``[num_envs]``; None if none is ever blanked.
    blanked: Flags | None = None
    _fixed_state: Names = ("_sensed_rows", "_sensed_components", "_rewards")

    def __init__(
        self,
        single: SensedCartPoleEnv,
        num_envs: int,
        autoreset_mode: str,
        max_episode_steps: int | None,
    ) -> None:
        super().__init__(single, num_envs, autoreset_mode, max_episode_steps, (4,), _default_starts)
        self.physics = CartPolePhysics(single, self.num_envs)
        self._sensed_rows = POSITION_ROWS if single.hide_velocities else ALL_ROWS
        self._sensed_components = slice(None, None, 2 if single.hide_velocities else 1)
        self._rewards = np.ones(self.num_envs)

    def _start_options(self, options: dict[str, Any]) -> tuple[float, float]:
        """Read ``low`` and ``high``, the bounds of the start states."""
        check_start_options(options)
        bounds: tuple[float, float] = maybe_parse_reset_bounds(options, *DEFAULT_BOUNDS)
        return bounds

    def _start(self, indices: Indices, options: tuple[float, float] | None) -> NDArray[np.float64]:
        if options is None or options == DEFAULT_BOUNDS:
            starts = self.starts.next_of(indices)
        else:
            generators = [self.starts.generator(idx) for idx in indices.tolist()]
            starts = np.stack([rng.uniform(*options, size=4) for rng in generators])
        self.physics.put(indices, starts)
        return starts

    def _sense_starts(self, indices: Indices, starts: NDArray[np.float64]) -> Observations:
        return starts[:, self._sensed_components].astype(np.float32)

    def _advance(self, actions: Actions) -> tuple[NDArray[np.float64], Flags]:
        self.starts.prepare(1)  # episodes may begin at the end of the step
        self.physics.advance(actions)
        return self._rewards.copy(), self.physics.fallen()

    def _observe(self) -> Observations:
        return self._frames().T.copy()

    def _frames(self) -> NDArray[np.float32]:
        """Return what the sensors show, ``[components, num_envs]``, as states are kept."""
        return self.physics.sensed(self._sensed_rows).astype(np.float32)

    def latest_flags(self, idx: int) -> list[bool]:
        """Return the flags of the latest frames of one environment's episode, newest last.

        Known with a ``render_mode`` only, for the picture; empty where nothing is ever blanked.
        """
        return []

    def tell_painter(self, idx: int) -> None:
        """Let the single environment, which paints, know what the sensors of one of many did."""
        self.single._flags.clear()
        self.single._flags.extend(self.latest_flags(idx))

    def _infos(self, mask: Flags) -> Infos:
        infos: Infos = {}
        everyone, blanked = mask is self._everyone, self.blanked
        mask = mask.copy() if everyone else mask
        if self.single.expose_state:
            states = self.physics.sensed(ALL_ROWS).T.astype(np.float32, order="C")
            infos["state"] = states if everyone else np.where(mask[:, None], states, _ZERO)
            infos["_state"] = mask
        if blanked is not None:
            infos["blanked"], infos["_blanked"] = (
                (blanked.copy() if everyone else blanked & mask),
                mask,
            )
        return infos


@remember
class MaskedCartPoleVectorEnv(SensedCartPoleVectorEnv):
    """Many CartPoles without their velocities; see :class:`MaskedCartPoleEnv` for the task.

    For the same seed or list of seeds it gives, bit for bit, what Gymnasium's ``SyncVectorEnv`` of
    single environments gives: observations, rewards (float64), flags and infos.

    >>> import gymnasium as gym, thrust_pomdp
    >>> envs = gym.make_vec("MaskedCartPole-v0", 3, autoreset_mode="SameStep")
    >>> envs.reset(seed=0)[0].shape
    (3, 2)

    :param num_envs: the number of environments, >= 1
    :param kinematics_integrator: ``"euler"`` (explicit, Gymnasium's) or ``"semi-implicit euler"``
    :param expose_state: add the true observations as ``infos["state"]``, ``[num_envs, 4]`` float32
    :param render_mode: None or ``"rgb_array"``
    :param autoreset_mode: ``"NextStep"`` or ``"SameStep"``. A string, since Gymnasium refuses
        ``vector_kwargs`` here and an enum does not survive ``EnvSpec.to_json``.
    :param max_episode_steps: the time limit; None takes the 500 steps of the registered id, -1
        sets none
    :raises ValueError: for a bad argument
    """

    def __init__(
        self,
        num_envs: int = 1,
        kinematics_integrator: str = "euler",
        expose_state: bool = False,
        render_mode: str | None = None,
        autoreset_mode: str = "NextStep",
        max_episode_steps: int | None = None,
    ) -> None:
        single = MaskedCartPoleEnv(kinematics_integrator, expose_state, render_mode)
        super().__init__(single, num_envs, autoreset_mode, max_episode_steps)


@remember
class FlickeringCartPoleVectorEnv(SensedCartPoleVectorEnv):
    """Many CartPoles through sensors that drop frames; see :class:`FlickeringCartPoleEnv`.

    Every environment has its own streams of start states and of blanking, those of a single
    environment with its seed. For the same seed or list of seeds it gives, bit for bit, what
    ``gymnasium.vector.SyncVectorEnv`` of single environments gives: observations, rewards
    (float64), flags and infos.

    >>> import gymnasium as gym, thrust_pomdp
    >>> envs = gym.make_vec("FlickeringCartPole-v0", 3, flicker_prob=1.0)
    >>> obs, infos = envs.reset(seed=0)
    >>> infos["blanked"].tolist()
    [True, True, True]

    :param num_envs: the number of environments, >= 1
    :param flicker_prob: stationary share of blank frames, in [0, 1]
    :param burst_len: mean length of a run of blank frames, >= 1; None blanks each frame
        independently of the others
    :param hide_velocities: observe positions only
    :param kinematics_integrator: ``"euler"`` (explicit, Gymnasium's) or ``"semi-implicit euler"``
    :param expose_state: add the true observations as ``infos["state"]``, ``[num_envs, 4]`` float32
    :param render_mode: None or ``"rgb_array"``
    :param autoreset_mode: ``"NextStep"`` or ``"SameStep"``, a string
    :param max_episode_steps: the time limit; None takes the 500 steps of the registered id, -1
        sets none
    :raises ValueError: for a bad argument
    """

    def __init__(
        self,
        num_envs: int = 1,
        flicker_prob: float = 0.5,
        burst_len: float | None = None,
        hide_velocities: bool = False,
        kinematics_integrator: str = "euler",
        expose_state: bool = False,
        render_mode: str | None = None,
        autoreset_mode: str = "NextStep",
        max_episode_steps: int | None = None,
    ) -> None:
        single = FlickeringCartPoleEnv(
            flicker_prob,
            burst_len,
            hide_velocities,
            kinematics_integrator,
            expose_state,
            render_mode,
        )
        super().__init__(single, num_envs, autoreset_mode, max_episode_steps)
        self._flicker = FlickerProcesses(FlickerLaw(flicker_prob, burst_len), self.num_envs)
        self.n_blanking_layers = 1
        # Flags of the frames last returned and of those before them.
        self._latest_flags: deque[Flags] = deque(maxlen=STRIP_FRAMES)

    _fixed_state: Names = ("n_blanking_layers",)
    # One array with what the process and the latest flags hold.
    _no_state: Names = ("blanked",)

    def _after_state(self) -> None:
        super()._after_state()
        if self._started:
            self.blanked = self._flicker.blanked
            if self._latest_flags:
                self._latest_flags[-1] = self.blanked
        else:
            vars(self).pop("blanked", None)

    def _seed_one(self, idx: int, seed: int) -> None:
        super()._seed_one(idx, seed)
        self._flicker.seed(idx, seed)

    def _draw_frames(self, restarted: Flags | None) -> None:
        self._take_flags(self._flicker.next_frames(restarted))

    def _take_flags(self, flags: Flags) -> None:
        # The flags of first frames are written into the array of the step that ended an episode.
        if self.render_mode is not None and flags is not self.blanked:
            self._latest_flags.append(flags)
        self.blanked = flags

    def latest_flags(self, idx: int) -> list[bool]:
        """Return the flags of the latest frames of one environment's episode, newest last."""
        n_frames = 1 + self._n_steps - int(self._deadlines[idx] - self._limit)
        return [bool(flags[idx]) for flags in self._latest_flags][-n_frames:]

    def _observe(self) -> Observations:
        # Not a product with 0: that would turn negative values into -0.0.
        return np.where(self._flicker.blanked, _ZERO, self._frames()).T.copy()

    def _sense_starts(self, indices: Indices, starts: NDArray[np.float64]) -> Observations:
        blanked = self._flicker.first_frames(indices)
        self._take_flags(self._flicker.blanked)
        return np.where(blanked, _ZERO, super()._sense_starts(indices, starts).T).T


def _default_starts(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    starts: NDArray[np.float64] = rng.uniform(*DEFAULT_BOUNDS, size=(count, 4))
    return starts

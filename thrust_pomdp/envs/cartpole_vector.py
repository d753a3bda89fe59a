"""The partially observable CartPoles for many environments at once, equal to the single ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.utils import maybe_parse_reset_bounds
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_count
from thrust_pomdp.envs.cartpole import FlickeringCartPoleEnv, MaskedCartPoleEnv
from thrust_pomdp.envs.cartpole_physics import ALL_ROWS, POSITION_ROWS, CartPolePhysics
from thrust_pomdp.envs.cartpole_view import CartPoleOfVector
from thrust_pomdp.envs.flicker import BlockStreams, FlickerLaw, FlickerProcesses
from thrust_pomdp.painting import STRIP_FRAMES

Observations = NDArray[np.float32]
Flags = NDArray[np.bool_]
Infos = dict[str, Any]

#: The time limit that every id of this package is registered with.
DEFAULT_MAX_EPISODE_STEPS = 500

#: Bounds of a start state without reset options, as in Gymnasium's CartPole.
DEFAULT_BOUNDS = (-0.05, 0.05)

#: More steps than anyone takes, and still an int64 when added to a number of steps.
NO_LIMIT = 2**62

_ZERO = np.zeros((), dtype=np.float32)


class SensedCartPoleVectorEnv(VectorEnv[Observations, NDArray[np.integer[Any]], Any]):
    """Many CartPoles seen through the same kind of sensor.

    :param single: a single environment with the wanted arguments; its spaces and constants hold
        for all, and it paints their frames
    :param law: the blanking law; None for a sensor that never blanks and tells nothing
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's declaration)
        "render_modes": ["rgb_array"],
        "render_fps": 50,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }
    #: As with ``SyncVectorEnv(copy=True)``: the arrays returned are the caller's to keep.
    copy = True

    def __init__(
        self,
        single: MaskedCartPoleEnv | FlickeringCartPoleEnv,
        law: FlickerLaw | None,
        num_envs: int,
        autoreset_mode: str,
        max_episode_steps: int | None,
    ) -> None:
        self.num_envs = check_count("num_envs", num_envs)
        self.autoreset_mode = _checked_autoreset_mode(autoreset_mode)
        self.metadata = {**type(self).metadata, "autoreset_mode": self.autoreset_mode}
        #: The time limit in steps; None if there is none.
        self.max_episode_steps = _checked_time_limit(max_episode_steps)
        self.render_mode = single.render_mode
        if self.render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(
                f"render_mode must be None or 'rgb_array' for a vector environment, got "
                f"{self.render_mode!r}"
            )
        self.single_action_space = single.action_space
        self.single_observation_space = single.observation_space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single = single
        self.physics = CartPolePhysics(single, self.num_envs)
        self._sensed_rows = POSITION_ROWS if single.hide_velocities else ALL_ROWS
        self._sensed_components = slice(None, None, 2 if single.hide_velocities else 1)
        self._flicker = None if law is None else FlickerProcesses(law, self.num_envs)
        #: Flags of the frames last returned, ``[num_envs]``; None if none is ever blanked.
        self.blanked: Flags | None = None
        # Those and the ones before them; kept for pictures only.
        self._latest_flags: deque[Flags] = deque(maxlen=STRIP_FRAMES)
        seeded = [seeding.np_random() for _ in range(self.num_envs)]
        self.seeds = [seed for _, seed in seeded]
        # 100 episodes ahead, 3 kB: drawing so many start states takes twice the time of one.
        self.starts = BlockStreams([rng for rng, _ in seeded], 100, (4,), _default_starts)
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._started = False
        self._n_steps = 0
        self._limit = NO_LIMIT if self.max_episode_steps is None else self.max_episode_steps
        # Number of the step at which each environment's episode reaches the time limit.
        self._deadlines = np.zeros(self.num_envs, dtype=np.int64)
        self._rewards = np.ones(self.num_envs)
        self._everyone = np.ones(self.num_envs, dtype=bool)
        #: The single environments as others see them (``SyncVectorEnv`` has the real ones here).
        self.envs = [CartPoleOfVector(self, idx) for idx in range(self.num_envs)]

    # ------------------------------------------------------------------ Gymnasium's vector API

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, Infos]:
        """Start new episodes in all environments, or in some.

        :param seed: None continues every environment's streams, an int ``s`` seeds environment
            ``i`` with ``s + i``, a list gives each its own seed or None
        :param options: ``low`` and ``high``, the bounds of the start states of these episodes (not
            of those that an auto-reset starts); ``reset_mask``, bool ``[num_envs]``, the
            environments to reset
        :raises ValueError: if seeds or mask do not fit the number of environments
        """
        seeds = self._seeds_of(seed)
        mask = self._reset_mask(options)
        bounds = maybe_parse_reset_bounds(options, *DEFAULT_BOUNDS)
        if not (self._started or mask.all()):
            raise gym.error.ResetNeeded("reset all environments before you reset some of them")
        indices = mask.nonzero()[0]
        for idx in indices.tolist():
            self._seed_one(idx, seeds[idx])
        self._started, self._ended = True, self._ended & ~mask
        self._restart(indices, bounds)
        if self._flicker is not None:
            self._flicker.first_frames(indices)
            self._take_flags(self._flicker.blanked)
        return self._observe(), self._infos(mask.copy())

    def step(
        self, actions: NDArray[np.integer[Any]]
    ) -> tuple[Observations, NDArray[np.float64], Flags, Flags, Infos]:
        """Advance every environment by one step of 0.02 s and sense the outcome.

        :param actions: 0 or 1 for each environment, ``[num_envs]``, integers
        :return: observations ``[num_envs, *shape]`` float32, rewards float64, terminations,
            truncations (each ``[num_envs]``), infos
        :raises ValueError: for other actions
        """
        if not self._started:
            raise gym.error.ResetNeeded("call reset before step")
        self.physics.advance(self._checked_actions(actions))
        self._n_steps += 1
        terminations, truncations = self.physics.fallen(), self._deadlines <= self._n_steps
        rewards = self._rewards.copy()
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            obs, infos = self._sense_and_reset(terminations, truncations)
        else:
            obs, infos = self._reset_or_sense(rewards, terminations, truncations)
        return obs, rewards, terminations, truncations, infos

    def _reset_or_sense(
        self, rewards: NDArray[np.float64], terminations: Flags, truncations: Flags
    ) -> tuple[Observations, Infos]:
        """Restart what ended at the step before; for these the action meant nothing."""
        ended = self._ended
        indices = ended.nonzero()[0]
        if len(indices) > 0:
            self._restart(indices)
            for outcome in (rewards, terminations, truncations):
                outcome[indices] = 0
        if self._flicker is not None:
            self._take_flags(self._flicker.next_frames(ended if len(indices) > 0 else None))
        self._ended = terminations | truncations
        return self._observe(), self._infos(self._everyone)

    def _sense_and_reset(
        self, terminations: Flags, truncations: Flags
    ) -> tuple[Observations, Infos]:
        """Sense the outcome of the step, then restart what ended at it."""
        if self._flicker is not None:
            self._take_flags(self._flicker.next_frames())
        obs = self._observe()
        self._ended = terminations | truncations
        indices = self._ended.nonzero()[0]
        if len(indices) == 0:
            return obs, self._infos(self._everyone)
        final_infos = self._final_infos(indices, obs)
        starts = self._restart(indices)
        first = None if self._flicker is None else self._flicker.first_frames(indices)
        obs[indices] = _frames(starts.T[self._sensed_components], first).T
        return obs, final_infos | self._infos(self._everyone)

    def render(self) -> tuple[Any, ...]:
        """Paint each environment as the single one would, ``[height, width, 3]`` uint8 each."""
        return tuple(env.render() for env in self.envs)

    def latest_flags(self, idx: int) -> list[bool]:
        """Return the flags of the latest frames of one environment's episode, newest last."""
        n_frames = 1 + self._n_steps - int(self._deadlines[idx] - self._limit)
        return [bool(flags[idx]) for flags in self._latest_flags][-n_frames:]

    def close_extras(self, **kwargs: Any) -> None:
        """Close the window surface."""
        # Gymnasium 1.1 closes on deletion also what its constructor refused.
        if hasattr(self, "single"):
            self.single.close()  # type: ignore[no-untyped-call]

    # --------------------------------------------------------- as SyncVectorEnv, for its users

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generators of the start states, one per environment."""
        return tuple(self.starts.generator(idx) for idx in range(self.num_envs))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the start states, one per environment."""
        return tuple(self.seeds)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment, or read an attribute."""
        values = self.get_attr(name)
        return tuple(value(*args, **kwargs) if callable(value) else value for value in values)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of every environment."""
        return tuple(env.get_wrapper_attr(name) for env in self.envs)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment; a list or tuple holds a value for each."""
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        for env, value in zip(self.envs, values, strict=True):
            setattr(env, name, value)

    # --------------------------------------------------------------------------------- parts

    def _observe(self) -> Observations:
        """Look at all environments through their sensors, ``[num_envs, *shape]`` float32."""
        return _frames(self.physics.sensed(self._sensed_rows), self.blanked).T.copy()

    def _take_flags(self, flags: Flags) -> None:
        """Keep the flags of the frames to be returned.

        Those of frames that a reset returns are written into the same array later.
        """
        if self.render_mode is not None and flags is not self.blanked:
            self._latest_flags.append(flags)
        self.blanked = flags

    def _infos(self, mask: Flags) -> Infos:
        """Collect what the single environments' infos tell, for those in the mask."""
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

    def _final_infos(self, indices: NDArray[np.intp], obs: Observations) -> Infos:
        """Collect the last frames of ended episodes, as ``SyncVectorEnv`` does."""
        final_obs = np.empty(self.num_envs, dtype=object)
        final_obs[indices] = np.fromiter(obs.take(indices, axis=0), object, len(indices))
        # One array for all three masks; a new one takes its place at the next step.
        ended = self._ended
        return {
            "final_obs": final_obs,
            "_final_obs": ended,
            "final_info": self._infos(ended),
            "_final_info": ended,
        }

    def _restart(
        self, indices: NDArray[np.intp], bounds: tuple[float, float] = DEFAULT_BOUNDS
    ) -> NDArray[np.float64]:
        """Put some carts into fresh start states, and return these, ``[k, 4]``."""
        if bounds == DEFAULT_BOUNDS:
            starts = self.starts.next_of(indices)
        else:
            generators = [self.starts.generator(idx) for idx in indices.tolist()]
            starts = np.stack([rng.uniform(*bounds, size=4) for rng in generators])
        self.physics.put(indices, starts)
        self._deadlines[indices] = self._n_steps + self._limit
        return starts

    def _seed_one(self, idx: int, seed: int | None) -> None:
        if seed is None:
            return
        generator, self.seeds[idx] = seeding.np_random(seed)
        self.starts.set_generator(idx, generator)
        if self._flicker is not None:
            self._flicker.seed(idx, seed)

    def _seeds_of(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int):
            return [seed + idx for idx in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(
                f"seed must hold one seed per environment, {self.num_envs}, got {len(seed)}"
            )
        return seed

    def _reset_mask(self, options: dict[str, Any] | None) -> Flags:
        if options is None or "reset_mask" not in options:
            return self._everyone
        mask = options["reset_mask"]
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"options['reset_mask'] must be a bool array, got {mask!r}")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"options['reset_mask'] must have shape ({self.num_envs},) and select at least one "
                f"environment, got {mask!r}"
            )
        return mask

    def _checked_actions(self, actions: Any) -> NDArray[np.integer[Any]]:
        checked: NDArray[Any] = np.asarray(actions)
        if checked.shape != (self.num_envs,) or checked.dtype.kind not in "iu":
            raise ValueError(
                f"actions must be integers of shape ({self.num_envs},), got {actions!r}"
            )
        # One pass finds any bit but the lowest, the sign bit included.
        if int(np.bitwise_or.reduce(checked)) & ~1:
            raise ValueError(f"actions must be 0 or 1, got {actions!r}")
        return checked


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
        super().__init__(single, None, num_envs, autoreset_mode, max_episode_steps)


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
        law = FlickerLaw(flicker_prob, burst_len)
        super().__init__(single, law, num_envs, autoreset_mode, max_episode_steps)


def _frames(sensed: NDArray[np.float64], blanked: Flags | None) -> NDArray[np.float32]:
    """Turn what is sensed into what sensors show, ``[components, n]``, rounded and blanked."""
    frames = sensed.astype(np.float32)
    # Not a product with 0: that would turn negative values into -0.0.
    return frames if blanked is None else np.where(blanked, _ZERO, frames)


def _default_starts(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    starts: NDArray[np.float64] = rng.uniform(*DEFAULT_BOUNDS, size=(count, 4))
    return starts


def _checked_time_limit(value: int | None) -> int | None:
    if value is None:
        return DEFAULT_MAX_EPISODE_STEPS
    return None if value == -1 else check_count("max_episode_steps", value)


def _checked_autoreset_mode(value: str) -> AutoresetMode:
    if value in ("Disabled", AutoresetMode.DISABLED):
        raise ValueError(
            "autoreset_mode must not be 'Disabled': all environments advance in one operation, so "
            "those that ended cannot wait for a reset; got 'Disabled'"
        )
    try:
        return AutoresetMode(value)
    except ValueError:
        raise ValueError(
            f"autoreset_mode must be 'NextStep' or 'SameStep', got {value!r}"
        ) from None

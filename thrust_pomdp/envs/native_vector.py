"""Vector environments whose environments advance in one operation, equal to single ones.

What every one of them has in common: seeds, resets of all or some, the time limit, auto-reset in
the next or in the same step, infos in Gymnasium's form, and what programs ask of ``SyncVectorEnv``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_count
from thrust_pomdp.envs.env_of_vector import EnvOfVector
from thrust_pomdp.envs.flicker import BlockStreams
from thrust_pomdp.stateful import Changes, Names, Stateful
from thrust_pomdp.states import State, packed, unpacked
from thrust_pomdp.unmodified_classes import remember

Observations = NDArray[np.float32]
Actions = NDArray[np.integer[Any]]
Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]
Infos = dict[str, Any]

#: More steps than anyone takes, and still an int64 when added to a number of steps.
NO_LIMIT = 2**62

#: Episodes whose start states are drawn ahead: drawing so many takes twice the time of one.
STARTS_AHEAD = 100


@remember
class NativeVectorEnv(Stateful, VectorEnv[Observations, Actions, Any], ABC):
    """Many environments of one kind with two or four actions and a Box observation.

    A subclass says what a task is: :meth:`_start`, :meth:`_advance`, :meth:`_observe` and
    :meth:`_sense_starts`, and :meth:`_draw_frames` and :meth:`_infos` where sensors are random or
    infos tell something. For the same seed or list of seeds the result must be, bit for bit, what
    Gymnasium's ``SyncVectorEnv`` of single environments gives.

    :param single: a single environment with the wanted arguments; its spaces and constants hold
        for all, and it paints their frames
    :param num_envs: the number of environments, >= 1
    :param autoreset_mode: ``"NextStep"`` or ``"SameStep"``. A string, since Gymnasium refuses
        ``vector_kwargs`` here and an enum does not survive ``EnvSpec.to_json``.
    :param max_episode_steps: the time limit; None takes that of the registered id, -1 sets none
    :param start_shape: shape of the random numbers that start an episode
    :param draw_starts: maps a generator and a number of episodes to ``[count, *start_shape]``; each
        number must take one draw
    :raises ValueError: for a bad argument
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's declaration)
        "render_modes": ["rgb_array"],
        "render_fps": 50,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }
    #: As with ``SyncVectorEnv(copy=True)``: the arrays returned are the caller's to keep.
    copy = True
    #: The time limit that the ids of this class are registered with; None if episodes end anyway.
    default_max_episode_steps: int | None = None
    #: How others see one of the environments.
    env_class: type[EnvOfVector]

    # What was set on the environments by name is kept apart; the single one paints only.
    _no_state: Names = (
        *("metadata", "render_mode", "spec", "single", "envs", "closed", "_everyone"),
        "_no_action_bits",
        *("_np_random", "_np_random_seed"),
    )
    _fixed_state: Names = ("num_envs", "autoreset_mode", "max_episode_steps", "_limit")
    _shaped_state: Names = ("seeds", "_ended", "_started", "_n_steps", "_deadlines")

    def __init__(
        self,
        single: gym.Env[Any, Any],
        num_envs: int,
        autoreset_mode: str,
        max_episode_steps: int | None,
        start_shape: tuple[int, ...],
        draw_starts: Callable[[np.random.Generator, int], NDArray[np.float64]],
    ) -> None:
        self.num_envs = check_count("num_envs", num_envs)
        self.autoreset_mode = _checked_autoreset_mode(autoreset_mode)
        self.metadata = {**type(self).metadata, "autoreset_mode": self.autoreset_mode}
        #: The time limit in steps; None if there is none.
        self.max_episode_steps = self._checked_time_limit(max_episode_steps)
        self.render_mode = self._checked_render_mode(single.render_mode)
        self.single_action_space = single.action_space
        # Of a power of two of actions, so that one pass finds any other number.
        self._no_action_bits = ~(int(self.single_action_space.n) - 1)  # type: ignore[attr-defined]
        self.single_observation_space = single.observation_space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        # Typed Any: subclasses know what it is.
        self.single: Any = single
        seeded = [seeding.np_random() for _ in range(self.num_envs)]
        self.seeds = [seed for _, seed in seeded]
        self.starts = BlockStreams(
            [rng for rng, _ in seeded], STARTS_AHEAD, start_shape, draw_starts
        )
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._started = False
        self._n_steps = 0
        self._limit = NO_LIMIT if self.max_episode_steps is None else self.max_episode_steps
        # Number of the step at which each environment's episode reaches the time limit.
        self._deadlines = np.zeros(self.num_envs, dtype=np.int64)
        self._everyone = np.ones(self.num_envs, dtype=bool)
        #: The single environments as others see them (``SyncVectorEnv`` has the real ones here).
        self.envs = [self.env_class(self, idx) for idx in range(self.num_envs)]

    # ----------------------------------------------------------------------- what the task is

    @abstractmethod
    def _start(self, indices: Indices, options: Any) -> NDArray[Any]:
        """Put some environments into fresh start states, and return these, ``[k, ...]``.

        :param options: what :meth:`_start_options` returned; None at an auto-reset
        """

    def _start_options(self, options: dict[str, Any]) -> Any:
        """Read the options of a reset, ``reset_mask`` excluded."""
        return None

    @abstractmethod
    def _sense_starts(self, indices: Indices, starts: NDArray[Any]) -> Observations:
        """Sense the first frames of some episodes, ``[k, *shape]``, a fresh array.

        :param starts: what :meth:`_start` returned
        """

    @abstractmethod
    def _advance(self, actions: Actions) -> tuple[NDArray[np.float64], Flags]:
        """Move every environment on by one step; return rewards and terminations, fresh arrays.

        In next-step mode also where the episode is over: what comes of it is not used.
        """

    def _draw_frames(self, restarted: Flags | None) -> None:
        """Draw what random sensors need for the frames of a step.

        :param restarted: environments whose frame is the first of an episode, ``[num_envs]``
        """

    @abstractmethod
    def _observe(self) -> Observations:
        """Look at all environments with what the sensors last drew, a fresh array."""

    def _infos(self, mask: Flags) -> Infos:
        """Collect what the single environments' infos tell, for those in the mask."""
        return {}

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
        :param options: those of the single environment, for these episodes and not for those that
            an auto-reset starts; ``reset_mask``, bool ``[num_envs]``, the environments to reset
        :raises ValueError: if seeds or mask do not fit the number of environments
        """
        seeds = self._seeds_of(seed)
        mask = self._reset_mask(options)
        others = {key: value for key, value in (options or {}).items() if key != "reset_mask"}
        start_options = self._start_options(others)
        if not (self._started or mask.all()):
            raise gym.error.ResetNeeded("reset all environments before you reset some of them")
        indices = mask.nonzero()[0]
        for idx in indices.tolist():
            if seeds[idx] is not None:
                self._seed_one(idx, seeds[idx])
        self._started, self._ended = True, self._ended & ~mask
        self._sense_starts(indices, self._restart(indices, start_options))
        return self._observe(), self._infos(mask.copy())

    def step(
        self, actions: Actions
    ) -> tuple[Observations, NDArray[np.float64], Flags, Flags, Infos]:
        """Advance every environment by one step and sense the outcome.

        :param actions: an action for each environment, ``[num_envs]``, integers
        :return: observations ``[num_envs, *shape]`` float32, rewards float64, terminations,
            truncations (each ``[num_envs]``), infos
        :raises ValueError: for other actions
        """
        if not self._started:
            raise gym.error.ResetNeeded("call reset before step")
        rewards, terminations = self._advance(self._checked_actions(actions))
        self._n_steps += 1
        truncations = self._deadlines <= self._n_steps
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
        self._draw_frames(ended if len(indices) > 0 else None)
        self._ended = terminations | truncations
        return self._observe(), self._infos(self._everyone)

    def _sense_and_reset(
        self, terminations: Flags, truncations: Flags
    ) -> tuple[Observations, Infos]:
        """Sense the outcome of the step, then restart what ended at it."""
        self._draw_frames(None)
        obs = self._observe()
        self._ended = terminations | truncations
        indices = self._ended.nonzero()[0]
        if len(indices) == 0:
            return obs, self._infos(self._everyone)
        final_infos = self._final_infos(indices, obs)
        obs[indices] = self._sense_starts(indices, self._restart(indices))
        return obs, final_infos | self._infos(self._everyone)

    def render(self) -> tuple[Any, ...]:
        """Paint each environment as the single one would."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close what the single environment opened."""
        # Gymnasium 1.1 closes on deletion also what its constructor refused.
        if hasattr(self, "single"):
            self.single.close()

    # ---------------------------------------------------------------------------------- state

    def get_state(self) -> State:
        """Return all that these environments remember, in mid-episode and mid-burst too.

        Physics, step counts, what ended and is to be reset, and every stream with what was drawn
        ahead: nested dicts of arrays and JSON-able data.

        :raises ValueError: naming an attribute that a program has added and that cannot be kept so
        """
        added = [dict(vars(env)) for env in self.envs]
        for attributes in added:
            del attributes["_vector_env"], attributes["_idx"]
        return {**super().get_state(), "added": packed(added, "what was set on the environments")}

    def set_state(self, state: State) -> None:
        """Go on, bit for bit, where a vector made with the same arguments was.

        The generators of :attr:`np_random` are other objects afterwards.

        :param state: what :meth:`get_state` returned
        :raises ValueError: naming what does not fit; nothing has been changed then
        """
        super().set_state(state)

    def prepare_state(self, state: Any, where: str) -> Changes:
        """Check a state, and return what is to be done to take it over."""
        if not isinstance(state, dict) or "added" not in state:
            raise ValueError(f"state of {where} must be a dict with the key 'added', got {state!r}")
        rest = {key: part for key, part in state.items() if key != "added"}
        changes = super().prepare_state(rest, where)
        added = unpacked(state["added"], f"{where}, 'added'")
        if not isinstance(added, list) or len(added) != self.num_envs:
            raise ValueError(
                f"state['added'] of {where} must be a list of {self.num_envs}, got {added!r}"
            )

        def change() -> None:
            for env, attributes in zip(self.envs, added, strict=True):
                own = vars(env)
                for name in own.keys() - {"_vector_env", "_idx"}:
                    del own[name]
                own.update(attributes)

        return [*changes, change]

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

    def _final_infos(self, indices: Indices, obs: Observations) -> Infos:
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

    def _restart(self, indices: Indices, options: Any = None) -> NDArray[Any]:
        """Start new episodes in some environments, and return their start states."""
        self._deadlines[indices] = self._n_steps + self._limit
        return self._start(indices, options)

    def _seed_one(self, idx: int, seed: Any) -> None:
        """Start all streams of one environment anew."""
        generator, self.seeds[idx] = seeding.np_random(seed)
        self.starts.set_generator(idx, generator)

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

    def _checked_actions(self, actions: Any) -> Actions:
        checked: NDArray[Any] = np.asarray(actions)
        if checked.shape != (self.num_envs,) or checked.dtype.kind not in "iu":
            raise ValueError(
                f"actions must be integers of shape ({self.num_envs},), got {actions!r}"
            )
        # One pass finds any bit that no action has, the sign bit included.
        if int(np.bitwise_or.reduce(checked)) & self._no_action_bits:
            allowed = "0 or 1" if self._no_action_bits == ~1 else f"0 to {~self._no_action_bits}"
            raise ValueError(f"actions must be {allowed}, got {actions!r}")
        return checked

    def _checked_render_mode(self, render_mode: str | None) -> str | None:
        allowed = (None, *self.metadata["render_modes"])
        if render_mode not in allowed:
            raise ValueError(
                f"render_mode must be {' or '.join(map(repr, allowed))} for a vector environment, "
                f"got {render_mode!r}"
            )
        return render_mode

    def _checked_time_limit(self, value: int | None) -> int | None:
        if value is None:
            return self.default_max_episode_steps
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

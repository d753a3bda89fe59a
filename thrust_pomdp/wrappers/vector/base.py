"""When a vector's frames are shown: the order of events in each auto-reset mode, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from thrust_pomdp.stateful import Names, Stateful
from thrust_pomdp.wrappers.visible_statistics import Mask

Infos = dict[str, Any]


if TYPE_CHECKING:
    AnyVectorWrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    AnyVectorWrapper = VectorWrapper  # which takes no type arguments in Gymnasium 1.1


class SensorVectorWrapper(Stateful, AnyVectorWrapper):
    """Shows a vector's frames through a sensor; base of the wrappers of this package.

    What happens on a step, in order:

    1. :meth:`_advance`: every environment has a new frame. In next-step mode that of an environment
       which ended at the step before is the first of an episode.
    2. In same-step mode only, where environments ended: this frame was their last, which goes into
       ``final_obs`` and ``final_info``; then :meth:`_restart`, they have another frame, the first
       of the next episode.
    3. :meth:`_show` and :meth:`_tell`: observations and infos of the frames that are returned.

    :param env: the vector environment
    :param single_observation_space: what a single environment's observation becomes
    :raises ValueError: if the environment does not say when it resets what ended
    """

    _no_state: Names = ("env", "_metadata", "_everyone", "_same_step", "_next_step")
    _shaped_state: Names = ("_ended",)

    def __init__(
        self, env: VectorEnv[Any, Any, Any], single_observation_space: spaces.Space[Any]
    ) -> None:
        super().__init__(env)
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ValueError(
                "env must say in metadata['autoreset_mode'] when it resets what ended, with a "
                f"gymnasium.vector.AutoresetMode, got {mode!r} from {env}"
            )
        self._same_step = mode is AutoresetMode.SAME_STEP
        self._next_step = mode is AutoresetMode.NEXT_STEP
        if single_observation_space is not env.single_observation_space:
            self.single_observation_space = single_observation_space
            self.observation_space = batch_space(single_observation_space, self.num_envs)
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._everyone = np.ones(self.num_envs, dtype=bool)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, Infos]:
        """Reset all environments, or those of ``options["reset_mask"]``."""
        # Gymnasium's vectors take the mask out of the dict that they are given.
        mask = (options or {}).get("reset_mask", self._everyone)
        obs, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        indices = mask.nonzero()[0]
        self._seed(seed, indices)
        self._ended &= ~mask
        self._restart(indices)
        return self._show(obs), self._tell(infos, mask)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Infos]:
        """Step all environments and look at them through the sensor."""
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        ended = terminations | truncations
        self._advance(actions, rewards, self._ended if self._next_step else None)
        self._ended = ended
        if self._same_step:
            indices = ended.nonzero()[0]
            if len(indices) > 0:
                infos = self._with_final_frames(infos, indices)
                self._restart(indices)
        return self._show(obs), rewards, terminations, truncations, self._tell(infos, None)

    def _with_final_frames(self, infos: Infos, indices: NDArray[np.intp]) -> Infos:
        final_obs = infos["final_obs"].copy()
        for idx in indices.tolist():
            final_obs[idx] = self._show_one(final_obs[idx], idx)
        final_info = self._tell(infos.get("final_info", {}), self._ended)
        return {**infos, "final_obs": final_obs, "final_info": final_info}

    def _seed(self, seed: int | Sequence[int | None] | None, indices: NDArray[np.intp]) -> None:
        """Start anew the streams of the environments that are given a seed."""

    def _advance(self, actions: Any, rewards: Any, restarted: Mask | None) -> None:
        """Go on to the next frame of every environment.

        :param actions: that led to it
        :param rewards: that came with it, ``[n_envs]``
        :param restarted: the environments whose frame is the first of an episode, ``[n_envs]``
        """

    def _restart(self, indices: NDArray[np.intp]) -> None:
        """Go on to the first frame of an episode in some environments."""

    def _show(self, obs: Any) -> Any:
        """Show the present frames of all environments."""
        raise NotImplementedError

    def _show_one(self, obs: Any, idx: int) -> Any:
        """Show the present frame of one environment."""
        raise NotImplementedError

    def _tell(self, infos: Infos, mask: Mask | None) -> Infos:
        """Return the infos with the flags of the present frames.

        :param mask: the environments that tell, ``[n_envs]``; None for all
        """
        raise NotImplementedError


def single_space_of(env: Any) -> spaces.Space[Any]:
    """Return the observation space of a vector's single environments.

    :raises ValueError: for what is no vector environment
    """
    if not isinstance(env, VectorEnv):
        raise ValueError(f"env must be a gymnasium.vector.VectorEnv, got {env!r}")
    return env.single_observation_space


def seeds_of(seed: int | Sequence[int | None] | None, n_envs: int) -> Sequence[int | None]:
    """Return each environment's seed, as Gymnasium hands them out."""
    if seed is None:
        return [None] * n_envs
    return [seed + idx for idx in range(n_envs)] if isinstance(seed, int) else seed

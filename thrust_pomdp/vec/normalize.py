"""VecNormalize for observations of which parts are blanked."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from thrust_pomdp.arguments import check_fraction, check_positive
from thrust_pomdp.observations import map_obs, stack_obs
from thrust_pomdp.vec.env import GymnasiumVecEnv
from thrust_pomdp.vec.previous import previous_inside
from thrust_pomdp.vec.privileged import VecPrivilegedInfo, layers_like
from thrust_pomdp.visible import Mask, blank_mask, key_flags, update, update_visible
from thrust_pomdp.wrappers.previous import wrong_order

Array = NDArray[Any]


class VecNormalizeVisible(VecNormalize):
    """SB3's ``VecNormalize``, skipping what is blanked and keeping it exactly zero.

    Plain ``VecNormalize`` takes blank frames for data. With visible values 9 and 11, half of the
    frames blank, it settles at mean 5 and variance 25.5 and shows the policy 11 as 1.19, 9 as .79
    and a blank as -.99; here the mean is 10, the variance 1, and a blank is 0.

    What is blanked is told by ``info["blanked"]``: a bool for the frame, a bool array for single
    components, a dict of these for Dict observations. Where an environment does not tell, an
    exactly all-zero frame (or key) counts as blank. A true zero whose flag says visible is data.

    Saving, loading, ``EvalCallback``'s syncing of statistics, reward normalisation and frozen
    statistics (``training=False``) are SB3's.

    .. warning::
        Put it directly outside what blanks frames. Append the last action and reward, or whatever
        else tells the agent something about itself, outside of it: inside, it would be erased on
        exactly the frames where it is needed.

    >>> from stable_baselines3.common.env_util import make_vec_env
    >>> import thrust_pomdp
    >>> env = VecNormalizeVisible(make_vec_env("FlickeringCartPole-v0", n_envs=2))
    >>> env.reset().shape
    (2, 4)

    :param venv: the vectorised environment
    :param training: update the statistics
    :param norm_obs: normalise observations
    :param norm_reward: normalise rewards by the spread of the discounted return
    :param clip_obs: bound of normalised observations
    :param clip_reward: bound of normalised rewards
    :param gamma: discount factor of the return
    :param epsilon: added to the variance
    :param norm_obs_keys: keys of a Dict observation to normalise; all by default
    :raises ValueError: for bounds or ``epsilon`` that are not positive, spaces that cannot be
        normalised, or observations that hold the previous action or reward (a key of them that
        ``norm_obs_keys`` leaves out does no harm)
    """

    def __init__(
        self,
        venv: VecEnv,
        training: bool = True,
        norm_obs: bool = True,
        norm_reward: bool = True,
        clip_obs: float = 10.0,
        clip_reward: float = 10.0,
        gamma: float = 0.99,
        epsilon: float = 1e-8,
        norm_obs_keys: list[str] | None = None,
    ) -> None:
        for name, value in (
            ("clip_obs", clip_obs),
            ("clip_reward", clip_reward),
            ("epsilon", epsilon),
        ):
            check_positive(name, value)
        check_fraction("gamma", gamma)
        super().__init__(
            venv,
            training,
            norm_obs,
            norm_reward,
            clip_obs,
            clip_reward,
            gamma,
            epsilon,
            norm_obs_keys,
        )
        if norm_obs:
            self._refuse_inside(venv)
            self._announce_floats()

    def _announce_floats(self) -> None:
        """Declare what comes out: a rollout buffer of the space's integers would truncate it."""
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            subspaces = dict(space.spaces)
            for key in self.norm_obs_keys or ():
                subspaces[key] = _as_float_box(subspaces[key])
            self.observation_space = spaces.Dict(subspaces)
        else:
            self.observation_space = _as_float_box(space)

    def set_venv(self, venv: VecEnv) -> None:
        """Take the environment to wrap, after loading.

        :raises ValueError: if it holds the previous action or reward, or does not fit
        """
        if self.norm_obs:
            self._refuse_inside(venv)
        super().set_venv(venv)

    def _refuse_inside(self, venv: VecEnv) -> None:
        self._refuse_previous(venv)
        for layer in layers_like(venv, VecPrivilegedInfo):
            if layer.privileged_key in (self.norm_obs_keys or ()):
                raise ValueError(
                    "VecNormalizeVisible must not be put around VecPrivilegedInfo: on blank frames "
                    "it would erase what only the critic sees. Put VecPrivilegedInfo, which has "
                    "statistics of its own, around VecNormalizeVisible instead"
                )

    def _refuse_previous(self, venv: VecEnv) -> None:
        is_dict = isinstance(venv.observation_space, spaces.Dict)
        for by, what, key in previous_inside(venv):
            if is_dict and key not in (self.norm_obs_keys or ()):
                continue
            remedy = f"VecPrevious{what.capitalize()}"
            raise ValueError(wrong_order(type(self).__name__, by, what, remedy))

    @staticmethod
    def load(load_path: str, venv: VecEnv) -> VecNormalizeVisible:
        """Load what :meth:`save` wrote, and wrap ``venv`` with it.

        :raises ValueError: if the file holds a plain ``VecNormalize``, whose statistics have taken
            blank frames for data
        """
        loaded = VecNormalize.load(load_path, venv)
        if not isinstance(loaded, VecNormalizeVisible):
            raise ValueError(
                f"load_path must be a file saved by VecNormalizeVisible, {load_path} holds a "
                f"{type(loaded).__name__}: use {type(loaded).__name__}.load for it"
            )
        return loaded

    def step_wait(self) -> VecEnvStepReturn:
        """Step, and normalise what is visible of frames, final frames and rewards."""
        obs, rewards, dones, infos = self.venv.step_wait()
        self.old_obs, self.old_reward = obs, rewards  # type: ignore[assignment]
        normalized = self._observe(obs, self._flags(infos, dones))
        if self.training:
            self._update_reward(rewards)
        rewards = self.normalize_reward(rewards)
        self._normalize_final_frames([infos[idx] for idx in dones.nonzero()[0]])
        self.returns[dones] = 0
        return normalized, rewards, dones, infos

    def _normalize_final_frames(self, infos: list[dict[str, Any]]) -> None:
        """Normalise the last frames of episodes that ended, each by its own flag."""
        infos = [info for info in infos if "terminal_observation" in info]
        if not infos:
            return
        frames = stack_obs([info["terminal_observation"] for info in infos])
        flags = [info.get("blanked") for info in infos]
        normalized = self._masked(frames, flags, self._normalize_obs)
        for idx, info in enumerate(infos):
            info["terminal_observation"] = map_obs(operator.itemgetter(idx), normalized)

    def _update_reward(self, reward: Array) -> None:
        self.returns = self.returns * self.gamma + reward
        update(self.ret_rms, self.returns)

    def reset(self) -> VecEnvObs:  # type: ignore[override]
        """Reset all environments and normalise what is visible of the first frames."""
        obs = self.venv.reset()
        self.old_obs = obs  # type: ignore[assignment]
        self.returns = np.zeros(self.num_envs)
        reset_infos = self.venv.unwrapped.reset_infos
        flags = self._flags(reset_infos, np.ones(self.num_envs, dtype=bool))
        normalized: VecEnvObs = self._observe(obs, flags)
        return normalized

    def _flags(self, infos: list[dict[str, Any]], dones: Mask) -> Sequence[Any]:
        """Collect the flags of the frames last returned."""
        if isinstance(self.venv, GymnasiumVecEnv):
            if self.venv.blanked is not None:
                return self.venv.blanked  # type: ignore[return-value]
            if not self.venv.tells_blanked:
                return [None] * self.num_envs
        # On an auto-reset step infos[i] describes the final frame of the episode that ended; the
        # frame returned is the next episode's first, which reset_infos of the innermost VecEnv
        # (a wrapper's own copy is never updated) describes.
        reset_infos = self.venv.unwrapped.reset_infos
        return [
            (reset_infos[idx] if done else infos[idx]).get("blanked")
            for idx, done in enumerate(dones)
        ]

    def _observe(self, obs: Any, flags: Sequence[Any]) -> Any:
        """Update the statistics with a batch of frames, then normalise it."""
        if not self.norm_obs:
            return deepcopy(obs)
        parts = self._parts(obs, flags)
        masks = {key: blank_mask(frames, of_key) for key, frames, of_key in parts}
        if self.training:
            for key, frames, _ in parts:
                update_visible(self._statistics(key), frames, masks[key])
        return self._transform(obs, masks, self._normalize_obs)

    def _parts(
        self, obs: Any, flags: Sequence[Any]
    ) -> list[tuple[str | None, Array, Sequence[Any]]]:
        """Split a batch into what has statistics of its own: the frame, or the normalised keys."""
        if isinstance(obs, dict):
            return [(key, obs[key], key_flags(flags, key)) for key in self.norm_obs_keys or ()]
        return [(None, obs, flags)]

    def _statistics(self, key: str | None) -> RunningMeanStd:
        return self.obs_rms if key is None else self.obs_rms[key]  # type: ignore[return-value]

    def _transform(self, obs: Any, masks: dict[str | None, Mask], function: Any) -> Any:
        """Apply ``function(frames, statistics)`` to a batch, leaving blanked entries zero."""
        result = dict(deepcopy(obs)) if isinstance(obs, dict) else None
        for key, mask in masks.items():
            frames = np.asarray(function(obs if key is None else obs[key], self._statistics(key)))
            frames[mask] = 0.0
            if result is None:
                return frames
            result[key] = frames
        return result

    def _normalize_obs(self, obs: Array, obs_rms: RunningMeanStd) -> Array:
        # SB3's numbers, without the overhead of np.clip.
        scaled = (obs - obs_rms.mean) / np.sqrt(obs_rms.var + self.epsilon)
        return np.minimum(np.maximum(scaled, -self.clip_obs), self.clip_obs).astype(np.float32)

    def normalize_obs(self, obs: Any, blanked: Any = None) -> Any:
        """Normalise observations without updating the statistics.

        :param obs: one observation or a batch of them
        :param blanked: its flag, or one flag per observation (a dict holds flags by key); where
            None, exactly all-zero frames count as blank
        """
        return self._without_update(obs, blanked, self._normalize_obs)

    def unnormalize_obs(self, obs: Any, blanked: Any = None) -> Any:
        """Undo :meth:`normalize_obs`; blanks stay zero.

        :param obs: one normalised observation or a batch of them
        :param blanked: as for :meth:`normalize_obs`
        """
        return self._without_update(obs, blanked, self._unnormalize_obs)

    def _without_update(self, obs: Any, blanked: Any, function: Any) -> Any:
        if not self.norm_obs:
            return deepcopy(obs)
        if self._is_single(obs):
            batch = map_obs(lambda part: np.asarray(part)[None], obs)
            return map_obs(lambda part: part[0], self._masked(batch, [blanked], function))
        n_obs = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        return self._masked(obs, _flags_of_batch(blanked, n_obs), function)

    def _masked(self, batch: Any, flags: Sequence[Any], function: Any) -> Any:
        """Apply ``function`` to what is visible of a batch, one flag per observation."""
        if not self.norm_obs:
            return batch
        masks = {key: blank_mask(part, of_key) for key, part, of_key in self._parts(batch, flags)}
        return self._transform(batch, masks, function)

    def _is_single(self, obs: Any) -> bool:
        if isinstance(obs, dict):
            space = self.observation_space
            assert isinstance(space, spaces.Dict)
            key = next(iter(obs))
            return bool(np.ndim(obs[key]) == len(space[key].shape or ()))
        return bool(np.ndim(obs) == len(self.observation_space.shape or ()))


def _as_float_box(space: spaces.Space[Any]) -> spaces.Space[Any]:
    assert isinstance(space, spaces.Box)
    if np.issubdtype(space.dtype, np.floating):
        return space
    return spaces.Box(-np.inf, np.inf, shape=space.shape, dtype=np.float32)


def _flags_of_batch(blanked: Any, n_obs: int) -> list[Any]:
    """Split flags given for a batch into one per observation."""
    if isinstance(blanked, Mapping):
        by_key = {key: _flags_of_batch(flags, n_obs) for key, flags in blanked.items()}
        return [{key: flags[idx] for key, flags in by_key.items()} for idx in range(n_obs)]
    if not isinstance(blanked, (list, tuple)) and np.ndim(blanked) == 0:
        return [blanked] * n_obs
    if len(blanked) != n_obs:
        raise ValueError(f"blanked must hold one flag per observation, {n_obs}, got {len(blanked)}")
    return list(blanked)

"""VecNormalize for observations of which parts are blanked."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from thrust_pomdp.arguments import (
    check_finite_number,
    check_flag,
    check_fraction,
    check_positive,
    check_switch,
)
from thrust_pomdp.array_files import File, read_kinds
from thrust_pomdp.errors import ArgumentError, warn_user
from thrust_pomdp.observations import map_obs, stack_obs
from thrust_pomdp.vec_env.frame_order import paths_of
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.layer import VecLayer, check_venv, own_attributes
from thrust_pomdp.vec_env.normalizer_files import NormalizerFiles, kind_of_file, made_normalizer
from thrust_pomdp.vec_env.previous import previous_inside
from thrust_pomdp.vec_env.privileged import VecPrivilegedInfo, wrappers_of_kind
from thrust_pomdp.vec_env.step_infos import rows_of
from thrust_pomdp.vec_env.window_statistics import Gather, WindowMoments, check_update
from thrust_pomdp.wrappers.frame_order import FrameOrder
from thrust_pomdp.wrappers.normalize import NormalizeVisibleObservation
from thrust_pomdp.wrappers.previous import wrong_order
from thrust_pomdp.wrappers.visible_statistics import (
    LOOKS_BLANKED,
    KeepsWatches,
    Mask,
    ZeroWatch,
    blank_mask,
    flags_of_batch,
    key_flags,
    tells,
    update,
    update_visible,
)

Array = NDArray[Any]


class VecNormalizeVisible(KeepsWatches, NormalizerFiles, VecLayer):
    """SB3's ``VecNormalize``, skipping what is blanked and keeping it exactly zero.

    Plain ``VecNormalize`` takes blank frames for data. With visible values 9 and 11, half of the
    frames blank, it settles at mean 5 and variance 25.5 and shows the policy 11 as 1.19, 9 as .79
    and a blank as -.99; here the mean is 10, the variance 1, and a blank is 0.

    **Only what is declared blank is blank**: by ``info["blanked"]``, a bool for the frame, a bool
    array for single components, a dict of these for Dict observations; or, for environments without
    such flags whose blanks are zeros, by ``zero_is_blank=True``: where there is no flag, an exactly
    all-zero frame (or key) then counts as blank. A zero whose flag says visible is data.

    Where nothing is declared blank this is SB3's ``VecNormalize``, bit for bit, but for one thing:
    an observation space of integers becomes one of floats here, since a rollout buffer of the
    integers would cut off every fraction of what is normalised.

    Saving, loading, ``EvalCallback``'s syncing of statistics, reward normalisation and frozen
    statistics (``training=False``) are SB3's. Whether flags were ever met is saved too: for
    observations given without any (:meth:`normalize_obs`), see there. A file from before there was
    ``zero_is_blank`` loads with True, which its statistics were made with, and says so.

    .. warning::
        Put it directly outside what blanks frames. Append the last action and reward, or whatever
        else tells the agent something about itself, outside of it: inside, it would be erased on
        exactly the frames where it is needed. Stack frames outside of it too: inside, or delayed,
        they are other frames than those of which ``info["blanked"]`` tells. What is seen to be so
        is refused.

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
    :param zero_is_blank: take exactly all-zero frames (or keys) for blank where no flag is told
    :param update: ``"step"``: statistics take in each step as it comes, SB3's way. ``"window"``:
        they stay as they are until :meth:`end_window`, which ``RecurrentPPO`` calls after each
        window, and take in all of it then, environment by environment; what one environment is
        shown does not depend on what others meet meanwhile, so that several processes can share
        them. The first window is then shown as it is, within the bounds
    :raises ValueError: for bounds or ``epsilon`` that are not positive, spaces that cannot be
        normalised, observations that hold the previous action or reward (a key of them that
        ``norm_obs_keys`` leaves out does no harm), or flags that tell of other frames than shown
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
        zero_is_blank: bool = False,
        update: str = "step",
    ) -> None:
        check_venv("venv", venv)
        update = check_update(update)
        clip_obs = check_positive("clip_obs", clip_obs)
        clip_reward = check_positive("clip_reward", clip_reward)
        epsilon = check_positive("epsilon", check_finite_number("epsilon", epsilon))
        gamma = check_fraction("gamma", gamma)
        training = check_switch("training", training)
        norm_obs = check_switch("norm_obs", norm_obs)
        norm_reward = check_switch("norm_reward", norm_reward)
        _check_keys(venv.observation_space, norm_obs_keys)
        inside = venv.observation_space
        parts = dict(inside.spaces) if isinstance(inside, spaces.Dict) else {}
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
        if isinstance(inside, spaces.Dict):
            # SB3 announces normalised images in the very Dict of the environments.
            self.observation_space = spaces.Dict(list(inside.spaces.items()))
            inside.spaces.update(parts)
        #: Whether all-zero frames without a flag are blank.
        self.zero_is_blank = check_flag("zero_is_blank", zero_is_blank)
        #: Whether an environment has ever told what is blanked.
        self.met_flags = False
        #: Whether it was said that blanks are guessed; True for nobody to be told.
        self.warned_of_guess = False
        self._watches: dict[str | None, ZeroWatch] | None = {}
        self._order = self._examine(venv)
        #: When statistics take in what is met: at each ``"step"``, or at the end of a ``"window"``.
        self.update = update
        self._begin_windows()
        if norm_obs:
            self._announce_floats()

    def _begin_windows(self) -> None:
        """Begin to take note of each environment's windows, where that is wanted."""
        #: Of what is observed, by key (None for a plain array), and of the discounted returns.
        self._windows: dict[str | None, WindowMoments] = {}
        self._returns_of_window: WindowMoments | None = None
        if self.update == "step":
            return
        self._returns_of_window = WindowMoments(self.num_envs, ())
        if self.norm_obs:
            keys = self.norm_obs_keys if isinstance(self.obs_rms, dict) else (None,)
            self._windows = {
                key: WindowMoments(self.num_envs, self._statistics(key).mean.shape)
                for key in keys or ()
            }

    def end_window(self, gather: Gather | None = None) -> None:
        """Let the statistics take in the window, with ``update="window"``.

        Each environment's moments are merged in the environments' order. Without anything met, as
        with ``training=False``, nothing changes.

        :param gather: returns for arrays ``[n_envs, ...]`` of these environments those of all
            environments of a training, where some are stepped by other processes
        """
        for key, moments in self._windows.items():
            moments.merge_into(self._statistics(key), gather)
        if self._returns_of_window is not None:
            self._returns_of_window.merge_into(self.ret_rms, gather)

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

        :raises ValueError: as the constructor does, or if it does not fit
        """
        check_venv("venv", venv)
        order = self._examine(venv)
        with own_attributes(self):
            super().set_venv(venv)
        self._order = order
        self._begin_windows()

    def _examine(self, venv: VecEnv) -> FrameOrder | None:
        """Refuse environments of which blank frames would be told or shown wrongly."""
        self._refuse_normalizers(venv)
        if not self.norm_obs:
            return None
        self._refuse_previous(venv)
        self._refuse_privileged(venv)
        is_dict = isinstance(venv.observation_space, spaces.Dict)
        paths = paths_of(venv, self.norm_obs_keys or () if is_dict else None)
        return FrameOrder(paths, type(self).__name__)

    def _refuse_normalizers(self, venv: VecEnv) -> None:
        """Refuse to normalise what is normalised already; observations and rewards may be apart."""
        for layer in wrappers_of_kind(venv, VecNormalize):
            keys = set(self.norm_obs_keys or (None,)) & set(layer.norm_obs_keys or (None,))
            twice = {
                "observations": self.norm_obs and layer.norm_obs and keys,
                "rewards": self.norm_reward and layer.norm_reward,
            }
            what = [name for name, is_twice in twice.items() if is_twice]
            if what:
                switches = [
                    f"norm_{'obs' if name == 'observations' else 'reward'}" for name in what
                ]
                raise ArgumentError(
                    f"venv has a {type(layer).__name__} inside already, and its "
                    f"{' and '.join(what)} would be normalised twice: leave one of the two out, or "
                    f"pass {' and '.join(f'{switch}=False' for switch in switches)} to one"
                )
        if self.norm_obs and _has_normalizing_envs(venv):
            raise ArgumentError(
                "venv has environments in NormalizeVisibleObservation already, whose observations "
                "would be normalised twice: leave one of the two out"
            )

    def _refuse_privileged(self, venv: VecEnv) -> None:
        for layer in wrappers_of_kind(venv, VecPrivilegedInfo):
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

    def step_wait(self) -> VecEnvStepReturn:
        """Step, and normalise what is visible of frames, final frames and rewards."""
        obs, rewards, dones, infos = self.venv.step_wait()
        self.old_obs, self.old_reward = obs, rewards  # type: ignore[assignment]
        normalized = self._observe(obs, self._flags(infos, dones), dones)
        if self.training:
            self._update_reward(rewards)
        rewards = self.normalize_reward(rewards)
        self._normalize_final_frames(rows_of(infos, dones.nonzero()[0].tolist()))
        self.returns[dones] = 0
        return normalized, rewards, dones, infos

    def _normalize_final_frames(self, infos: list[dict[str, Any]]) -> None:
        """Normalise the last frames of episodes that ended, each by its own flag."""
        infos = [info for info in infos if "terminal_observation" in info]
        if not self.norm_obs:
            for info in infos:
                info["terminal_observation"] = deepcopy(info["terminal_observation"])
        if not self.norm_obs or not infos:
            return
        frames = stack_obs([info["terminal_observation"] for info in infos])
        flags = [info.get("blanked") for info in infos]
        assert self._order is not None
        masks = self._masks(frames, self._order.carried(flags, frames), self.zero_is_blank)
        normalized = self._transform(frames, masks, self._normalize_obs)
        for idx, info in enumerate(infos):
            info["terminal_observation"] = map_obs(operator.itemgetter(idx), normalized)

    def _update_reward(self, reward: Array) -> None:
        self.returns = self.returns * self.gamma + reward
        if self._returns_of_window is None:
            update(self.ret_rms, self.returns)
        else:
            self._returns_of_window.add(self.returns)

    def reset(self) -> VecEnvObs:  # type: ignore[override]
        """Reset all environments and normalise what is visible of the first frames."""
        if self.venv is None:
            raise ArgumentError(
                "venv must be set, got None: as SB3's, a normaliser's copies and files have no "
                "environments. Call set_venv(venv) first, of a copied model model.set_env(env)"
            )
        obs = self.venv.reset()
        self.old_obs = obs  # type: ignore[assignment]
        self.returns = np.zeros(self.num_envs)
        reset_infos = self.venv.unwrapped.reset_infos
        everyone = np.ones(self.num_envs, dtype=bool)
        normalized: VecEnvObs = self._observe(obs, self._flags(reset_infos, everyone), everyone)
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
        flags = [info.get("blanked") for info in infos]
        for idx in dones.nonzero()[0].tolist():
            flags[idx] = reset_infos[idx].get("blanked")
        return flags

    def _observe(self, obs: Any, flags: Sequence[Any], starts: Mask) -> Any:
        """Update the statistics with a batch of frames, then normalise it."""
        if not self.norm_obs:
            return deepcopy(obs)
        if not self.met_flags:
            self.met_flags = tells(flags)
        masks = self._checked_masks(obs, flags)
        if self.training:
            for key, frames, _ in self._parts(obs, flags):
                if self.update == "step":
                    update_visible(self._statistics(key), frames, masks[key])
                else:
                    self._windows[key].add(frames, masks[key])
            if self._watches is not None:
                self._watch(obs, flags, starts)
        return self._transform(obs, masks, self._normalize_obs)

    def _checked_masks(self, obs: Any, flags: Sequence[Any]) -> dict[str | None, Mask]:
        """Collect the masks of the frames last returned, if flags are of these frames."""
        order = self._order
        assert order is not None
        if order.is_idle:
            return self._masks(obs, flags, self.zero_is_blank)
        order.check_flags(flags, self.zero_is_blank)
        masks = self._masks(obs, order.carried(flags, obs), self.zero_is_blank)
        for key, frames, _ in self._parts(obs, flags):
            order.check_frames(key, frames, masks[key])
        return masks

    def _masks(self, obs: Any, flags: Sequence[Any], zero_is_blank: bool) -> dict[str | None, Mask]:
        return {
            key: blank_mask(frames, of_key, zero_is_blank)
            for key, frames, of_key in self._parts(obs, flags)
        }

    def _watch(self, obs: Any, flags: Sequence[Any], starts: Mask) -> None:
        """Warn once of what looks blanked, where nobody tells and nobody has said."""
        if self.met_flags or self.zero_is_blank:
            self._watches = None
            return
        assert self._watches is not None
        for key, frames, _ in self._parts(obs, flags):
            # Many an episode starts at the origin.
            if self._watches.setdefault(key, ZeroWatch()).suspects(frames[~starts]):
                self._watches = None
                warn_user(LOOKS_BLANKED.format(name=type(self).__name__))
                return

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
            None, nothing is blank, but exactly all-zero frames are with ``zero_is_blank``, and if
            the environments have ever told flags: what was trained has learnt that blanks are
            zeros, and a warning says once that they were guessed
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
        is_single = self._is_single(obs)
        batch = map_obs(lambda part: np.asarray(part)[None], obs) if is_single else obs
        n_obs = len(next(iter(batch.values())) if isinstance(batch, dict) else batch)
        flags = [blanked] if is_single else flags_of_batch(blanked, n_obs)
        is_guess = self.met_flags and not self.zero_is_blank and not tells(flags)
        masks = self._masks(batch, flags, self.zero_is_blank or is_guess)
        if is_guess and not self.warned_of_guess and any(mask.any() for mask in masks.values()):
            self._warn_of_guess()
        result = self._transform(batch, masks, function)
        return map_obs(lambda part: part[0], result) if is_single else result

    def _warn_of_guess(self) -> None:
        self.warned_of_guess = True
        warn_user(
            f"{type(self).__name__} was given observations without their flags, though its "
            "environments tell them: what is exactly all zero was taken for blank. Pass "
            "blanked=info['blanked'], or blanked=False for what is visible (the replay buffers of "
            "Stable-Baselines3, which keep no flags, cannot)"
        )

    def _is_single(self, obs: Any) -> bool:
        if isinstance(obs, dict):
            space = self.observation_space
            assert isinstance(space, spaces.Dict)
            key = next(iter(obs))
            return bool(np.ndim(obs[key]) == len(space[key].shape or ()))
        return bool(np.ndim(obs) == len(self.observation_space.shape or ()))


def _has_normalizing_envs(venv: VecEnv) -> bool:
    try:
        return any(venv.unwrapped.env_is_wrapped(NormalizeVisibleObservation))
    except NotImplementedError:
        return False  # environments of others that cannot be looked into


def _check_keys(space: spaces.Space[Any], keys: Any) -> None:
    if keys is None:
        return
    if not isinstance(keys, (list, tuple)) or not all(isinstance(key, str) for key in keys):
        raise ArgumentError(f"norm_obs_keys must be a list of keys, got {keys!r}")
    unknown = [key for key in keys if isinstance(space, spaces.Dict) and key not in space.spaces]
    if unknown:
        raise ArgumentError(
            f"norm_obs_keys must be keys of the observation, {list(space.spaces)}, got {unknown}"  # type: ignore[attr-defined]
        )


def _as_float_box(space: spaces.Space[Any]) -> spaces.Space[Any]:
    assert isinstance(space, spaces.Box)
    if np.issubdtype(space.dtype, np.floating):
        return space
    return spaces.Box(-np.inf, np.inf, shape=space.shape, dtype=np.float32)


def normalizer_options(space: spaces.Space[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the options of a normaliser: what is left open is not done to images.

    A network takes normalised images for vectors, since they are no bytes any more, and flattens
    them; and what is no Box cannot be normalised. Rewards are normalised whatever is seen.

    >>> camera = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    >>> normalizer_options(camera, {}), normalizer_options(camera, {"norm_obs": True})
    ({'norm_obs': False}, {'norm_obs': True})
    >>> normalizer_options(spaces.Dict(camera=camera, gyro=spaces.Box(-1.0, 1.0, (3,))), {})
    {'norm_obs': True, 'norm_obs_keys': ['gyro']}

    :param space: of the observations
    :param options: arguments of :class:`VecNormalizeVisible`; what they say holds
    :return: the same with ``norm_obs`` and, for a Dict, ``norm_obs_keys``
    """
    parts = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
    keys = [
        key
        for key, part in parts.items()
        if isinstance(part, spaces.Box) and not is_image_space(part)
    ]
    completed = {"norm_obs": bool(keys or options.get("norm_obs_keys")), **options}
    if isinstance(space, spaces.Dict) and completed["norm_obs"] and keys:
        completed.setdefault("norm_obs_keys", keys)
    return completed


def read_any_normalizer(path: File) -> VecNormalize:
    """Read the file of a normaliser, ours or SB3's plain one; it has no environments.

    :raises ValueError: naming the file and the reason
    """
    kinds: dict[str, type[VecNormalize]] = {
        kind_of_file(cls): cls for cls in (VecNormalizeVisible, VecNormalize)
    }
    kind, data, arrays = read_kinds(path, tuple(kinds))
    return made_normalizer(kinds[kind], path, data, arrays)

"""What the critic may see and the actor may not, for SB3's vectorised environments."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from thrust_pomdp.arguments import check_flag, check_positive
from thrust_pomdp.array_files import File, check_trusted
from thrust_pomdp.stateful import Names
from thrust_pomdp.vec_env.layer import VecLayer, check_venv, owner_of
from thrust_pomdp.vec_env.normalizer_files import read_statistics, write_statistics
from thrust_pomdp.vec_env.previous import layers
from thrust_pomdp.vec_env.step_infos import Infos, StepInfos, rows_of
from thrust_pomdp.vec_env.window_statistics import Gather, WindowMoments, check_update
from thrust_pomdp.wrappers.appending import OBSERVATION
from thrust_pomdp.wrappers.expose import entry_of, space_of_entry
from thrust_pomdp.wrappers.visible_statistics import update

Array = NDArray[Any]
Layer = TypeVar("Layer", bound=VecEnvWrapper)

#: Added to the variance, as SB3's ``VecNormalize`` does.
_EPSILON = 1e-8


class VecUnprivileged(VecLayer):
    """Pass everything through: for evaluation, where training has :class:`VecPrivilegedInfo`.

    SB3's ``EvalCallback`` copies a normaliser's statistics only between environments that are
    wrapped in the same number of layers. This is a layer that does nothing, so that an environment
    without privileged information can stand beside one with it.

    >>> import thrust_pomdp
    >>> plain = thrust_pomdp.make_vec_env("FlickeringCartPole-v0", n_envs=2)
    >>> VecUnprivileged(thrust_pomdp.VecNormalizeVisible(plain)).reset().shape
    (2, 4)

    :param venv: the vectorised environment
    :raises ValueError: for what is none
    """

    def __init__(self, venv: VecEnv, *args: Any, **kwargs: Any) -> None:
        check_venv("venv", venv)
        super().__init__(venv, *args, **kwargs)

    def reset(self) -> VecEnvObs:
        """Reset all environments."""
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments."""
        return self.venv.step_wait()


class VecPrivilegedInfo(VecUnprivileged):
    """Put an entry of the infos into the observation, for the critic alone to see.

    A ``Dict`` observation gets the key more; any other becomes a ``Dict`` with the keys
    ``"observation"`` and ``key``. Numbers on a scale are normalised by running statistics of their
    own, which know of no blanks: what is blanked for the actor is not for the critic. The entry of
    the first frame of an episode comes from the reset's info, and ``terminal_observation`` holds
    the last frame's.

    .. warning::
        Put this outermost, around the normaliser and the previous action. What is inside is then
        exactly what the actor sees: statistics, files and evaluation are those of the plain
        environment. ``VecNormalizeVisible`` refuses to be put around it, and ``RecurrentPPO``
        refuses policies whose actor would see it: train
        :class:`~thrust_pomdp.ppo.asymmetric_policy.AsymmetricLstmPolicy`.

    >>> import thrust_pomdp
    >>> venv = thrust_pomdp.make_vec_env(
    ...     "FlickeringCartPole-v0", n_envs=2, env_kwargs={"expose_state": True}
    ... )
    >>> venv = VecPrivilegedInfo(thrust_pomdp.VecNormalizeVisible(venv))
    >>> {key: part.shape for key, part in venv.reset().items()}
    {'observation': (2, 4), 'state': (2, 4)}

    :param venv: vectorised environments whose infos, those of resets included, have the entry
    :param key: its name in the infos, and in the observations
    :param space: where it lies: a Box, Discrete, MultiDiscrete or MultiBinary space; None for the
        shape of the first one told, for which the environments are reset if they have not been
    :param normalize: scale a ``Box`` that is no image to mean 0 and variance 1
    :param clip: bound of what is normalised
    :param training: update the statistics
    :param update: when they take in what is told: at each ``"step"``, or at the end of a
        ``"window"``, as ``VecNormalizeVisible`` has it
    :raises ValueError: for a key that is taken or that the environments do not tell, or a space
        that it does not fit
    """

    _training = True
    _no_state: Names = ("_told_space", "_is_dict")
    _fixed_state: Names = ("privileged_key",)

    def __init__(
        self,
        venv: VecEnv,
        key: str = "state",
        space: spaces.Space[Any] | None = None,
        normalize: bool = True,
        clip: float = 10.0,
        training: bool = True,
        update: str = "step",
    ) -> None:
        check_venv("venv", venv)
        inside = venv.observation_space
        parts = dict(inside.items()) if isinstance(inside, spaces.Dict) else {OBSERVATION: inside}
        if not isinstance(key, str) or not key or key in parts:
            raise ValueError(
                f"key must be a name other than the observation's {list(parts)}, got {key!r}"
            )
        self._is_dict = isinstance(inside, spaces.Dict)
        #: The key that only a critic may see.
        self.privileged_key = key
        self._told_space = _told_space(venv, key) if space is None else _checked_space(space)
        self._clip = check_positive("clip", clip)
        self._training = check_flag("training", training)
        #: Running mean and variance of what is normalised; None where nothing is.
        self.statistics: RunningMeanStd | None = None
        shown = self._told_space
        if check_flag("normalize", normalize) and _is_on_a_scale(shown):
            self.statistics = RunningMeanStd(shape=shown.shape or ())
            shown = spaces.Box(-self._clip, self._clip, shown.shape, np.float32)
        super().__init__(venv, observation_space=spaces.Dict([*parts.items(), (key, shown)]))
        self._fresh_moments = self.moments()
        #: When statistics take in what is told, ``"step"`` or ``"window"``.
        self.update = check_update(update)
        self._window: WindowMoments | None = None
        if update == "window" and self.statistics is not None:
            self._window = WindowMoments(self.num_envs, self.statistics.mean.shape)

    def end_window(self, gather: Gather | None = None) -> None:
        """Let the statistics take in the window, with ``update="window"``.

        :param gather: as for :meth:`VecNormalizeVisible.end_window
            <thrust_pomdp.vec_env.normalize.VecNormalizeVisible.end_window>`
        """
        if self._window is not None:
            assert self.statistics is not None
            self._window.merge_into(self.statistics, gather)

    @property
    def training(self) -> bool:
        """Whether the statistics follow what is told.

        It is set to False to evaluate, and nothing that is seen then shall move: a normaliser
        inside is set likewise.
        """
        return self._training

    @training.setter
    def training(self, training: bool) -> None:
        inside: Any = owner_of(self.venv, "training")
        if inside is not None:
            getattr(self.venv, "training")  # noqa: B009  raises where it is ambiguous
            inside.training = training
        self._training = training

    def getattr_depth_check(self, name: str, already_found: bool) -> str | None:
        """Say whether an attribute hides another; the switch hides none, it is for all of them."""
        if name == "training" and not already_found:
            return None
        return super().getattr_depth_check(name, already_found)

    def reset(self) -> VecEnvObs:
        """Reset all environments."""
        obs = self.venv.reset()
        told = self._stack(self.venv.unwrapped.reset_infos)
        was_fresh = self.has_fresh_statistics
        shown: VecEnvObs = self._with(obs, self._observe(told))
        if was_fresh:
            self._fresh_moments = self.moments()
        return shown

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments, and add what is told of frames and final frames."""
        obs, rewards, dones, infos = self.venv.step_wait()
        shown = self._with(obs, self._observe(self._of_frames(infos, dones)))
        ended = rows_of(infos, dones.nonzero()[0].tolist())
        ended = [info for info in ended if "terminal_observation" in info]
        if ended:
            for info, told in zip(ended, self._scaled(self._stack(ended)), strict=True):
                info["terminal_observation"] = self._with(info["terminal_observation"], told)
        return shown, rewards, dones, infos

    def _with(self, obs: Any, told: Array) -> Any:
        if self._is_dict:
            return {**obs, self.privileged_key: told}
        return {OBSERVATION: obs, self.privileged_key: told}

    def _of_frames(self, infos: Sequence[Infos], dones: NDArray[np.bool_]) -> Array:
        """Collect what is told of the frames returned, ``[num_envs, *shape]``."""
        column = infos.column(self.privileged_key) if isinstance(infos, StepInfos) else None
        if column is not None:
            return self._fitted(column)
        # On an auto-reset step infos[i] describes the final frame of the episode that ended; the
        # frame returned is the next episode's first, which reset_infos of the innermost VecEnv
        # (a wrapper's own copy is never updated) describes.
        reset_infos = self.venv.unwrapped.reset_infos
        return self._stack(
            [reset_infos[idx] if done else infos[idx] for idx, done in enumerate(dones)]
        )

    def _stack(self, infos: Sequence[Infos]) -> Array:
        """Read the entry of some infos, ``[n, *shape]``."""
        return self._fitted([np.asarray(entry_of(info, self.privileged_key)) for info in infos])

    def _fitted(self, told: Array | list[Array]) -> Array:
        """Bring values into their space, as a new array."""
        shape = self._told_space.shape or ()
        shapes = {told.shape[1:]} if isinstance(told, np.ndarray) else {v.shape for v in told}
        # A space of single numbers is of shape (1,): SB3's networks take no Box without axes.
        unfit = shapes - {shape, *([()] if shape == (1,) else [])}
        if unfit:
            raise ValueError(
                f"info[{self.privileged_key!r}] must be of the shape of space, {shape}, "
                f"got {min(unfit)}"
            )
        return np.array(told, dtype=self._told_space.dtype).reshape(len(told), *shape)

    def _observe(self, told: Array) -> Array:
        """Update the statistics with what is told of a batch of frames, and scale it."""
        if self.statistics is not None and self._training:
            if self._window is None:
                update(self.statistics, told)
            else:
                self._window.add(told)
        return self._scaled(told)

    def _scaled(self, told: Array) -> Array:
        if self.statistics is None:
            return told
        scaled = (told - self.statistics.mean) / np.sqrt(self.statistics.var + _EPSILON)
        return np.clip(scaled, -self._clip, self._clip).astype(np.float32)

    @property
    def has_fresh_statistics(self) -> bool:
        """Whether there are statistics, of nothing but the first frames of resets."""
        return self.statistics is not None and self.moments() == self._fresh_moments

    def moments(self) -> dict[str, Any]:
        """Return the statistics in plain lists and numbers; nothing where there are none."""
        if self.statistics is None:
            return {}
        names = ("mean", "var", "count")
        return {name: np.asarray(getattr(self.statistics, name)).tolist() for name in names}

    def take_moments(self, moments: dict[str, Any]) -> None:
        """Go on with statistics that :meth:`moments` returned."""
        assert self.statistics is not None
        statistics = RunningMeanStd(shape=self.statistics.mean.shape)
        statistics.mean, statistics.var = np.array(moments["mean"]), np.array(moments["var"])
        statistics.count = moments["count"]
        self.statistics = statistics

    def save_statistics(self, path: str | Path) -> None:
        """Save the statistics, for another model; a model's own file has them already.

        .. warning::
            The file is a pickle: who loads it runs what is in it. :meth:`save_safe` writes one
            that nobody needs to trust.
        """
        Path(path).write_bytes(pickle.dumps(self.statistics))

    def load_statistics(self, path: str | Path, trusted: bool = True) -> None:
        """Take over what :meth:`save_statistics` wrote.

        .. warning::
            The file is a pickle, which can run any code when it is loaded: load only what you
            trust. :meth:`load_safe` reads files that run nothing.

        :param path: the file
        :param trusted: whether to unpickle it
        :raises ValueError: if the file holds something else, or statistics of another shape, and
            with ``trusted=False``
        """
        check_trusted(path, trusted)
        try:
            loaded = pickle.loads(Path(path).read_bytes())
        except Exception as error:  # a pickle can fail in any way
            raise ValueError(
                f"path must be a file saved by VecPrivilegedInfo, got {path}: {error}"
            ) from None
        mine = None if self.statistics is None else self.statistics.mean.shape
        if getattr(getattr(loaded, "mean", None), "shape", None) != mine:
            raise ValueError(
                f"path must be a file saved by VecPrivilegedInfo with statistics of shape {mine}, "
                f"{path} holds {loaded!r}"
            )
        self.statistics = loaded

    def save_safe(self, path: File) -> None:
        """Save the statistics to a file of arrays and JSON, which runs nothing.

        :param path: a path, which gets ``.safetensors`` where it has no suffix, or an opened file
        """
        write_statistics(path, self.statistics)

    def load_safe(self, path: File) -> None:
        """Take over what :meth:`save_safe` wrote; nothing of it is run.

        :param path: the file
        :raises ValueError: naming the file and the reason, if it is damaged or holds something
            else, or statistics of another shape
        """
        shape = None if self.statistics is None else self.statistics.mean.shape
        self.statistics = read_statistics(path, shape)


def wrappers_of_kind(venv: VecEnv, kind: type[Layer]) -> list[Layer]:
    """List the wrappers of a kind around a vectorised environment, the outermost first."""
    return [layer for layer in layers(venv) if isinstance(layer, kind)]


def _told_space(venv: VecEnv, key: str) -> spaces.Space[Any]:
    """Make a space for what the environments tell at a reset."""
    base: Any = venv.unwrapped
    if not all(key in info for info in base.reset_infos):
        # Seeds and options serve one reset; the real first one must not go without.
        seeds, options = base._seeds, base._options
        base.reset()
        base._seeds, base._options = seeds, options
    entry = entry_of(base.reset_infos[0], key)
    told = np.asarray(entry)
    image = spaces.Box(0, 255, told.shape, np.uint8) if told.dtype == np.uint8 else None
    return image if image is not None and is_image_space(image) else space_of_entry(key, entry)


def _checked_space(space: Any) -> spaces.Space[Any]:
    kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if not isinstance(space, kinds):
        raise ValueError(
            f"space must be a Box, Discrete, MultiDiscrete or MultiBinary space, got {space!r}"
        )
    return space


def _is_on_a_scale(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and not is_image_space(space)

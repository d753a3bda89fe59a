"""Normalisers in files: as arrays and JSON, and as SB3's pickles."""

from __future__ import annotations

import os
import pickle
from typing import Any, Self, TypeVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from thrust_pomdp import array_files
from thrust_pomdp.arguments import check_finite_number, check_fraction, check_positive
from thrust_pomdp.array_files import File, SafeFileError
from thrust_pomdp.errors import ArgumentError, warn_user
from thrust_pomdp.safe_values import PLAIN, Kind, Reader, Writer
from thrust_pomdp.vec_env.layer import check_venv
from thrust_pomdp.vec_env.window_statistics import check_update
from thrust_pomdp.wrappers.visible_statistics import SAVED_BEFORE

Normalizer = TypeVar("Normalizer", bound=VecNormalize)

_NUMBERS = {
    "clip_obs": check_positive,
    "clip_reward": check_positive,
    "epsilon": check_positive,
    "gamma": check_fraction,
}
_FLAGS = ("training", "norm_obs", "norm_reward")
#: Of ``VecNormalizeVisible`` alone.
_MORE_FLAGS = ("zero_is_blank", "met_flags")


def _moments(mean: Any, var: Any, count: Any) -> RunningMeanStd:
    for part in (mean, var):
        if not isinstance(part, np.ndarray) or part.dtype.kind != "f" or part.shape != mean.shape:
            raise ValueError("mean and variance must be arrays of one shape")
    if not (np.isfinite(mean).all() and np.isfinite(var).all() and (var >= 0).all()):
        raise ValueError("mean and variance must be finite, and no variance negative")
    statistics = RunningMeanStd(shape=mean.shape)
    statistics.mean, statistics.var = np.array(mean), np.array(var)
    statistics.count = check_positive("count", count)
    return statistics


STATISTICS = Kind(
    RunningMeanStd,
    lambda rms: {"mean": np.asarray(rms.mean), "var": np.asarray(rms.var), "count": rms.count},
    _moments,
)
_VOCABULARY = PLAIN.extended(kinds={"RunningMeanStd": STATISTICS})


def parts_of(normalizer: VecNormalize) -> dict[str, Any]:
    """Return what a normaliser is, without its environments, as plain values."""
    flags = [*_FLAGS, *(name for name in _MORE_FLAGS if hasattr(normalizer, name))]
    names = [*flags, *_NUMBERS, "norm_obs_keys", "observation_space", "action_space", "ret_rms"]
    parts = {name: getattr(normalizer, name) for name in names}
    parts["obs_rms"] = getattr(normalizer, "obs_rms", None)
    if isinstance(normalizer, NormalizerFiles):
        parts["update"] = normalizer.update
    return parts


def normalizer_of(cls: type[Normalizer], parts: dict[str, Any]) -> Normalizer:
    """Make a normaliser of :func:`parts_of`; it has no environments yet.

    :param cls: its class
    :param parts: by name
    :raises ValueError: for anything else
    """
    flags = (*_FLAGS, *(_MORE_FLAGS if issubclass(cls, NormalizerFiles) else ()))
    if issubclass(cls, NormalizerFiles):
        # Files from before there was another way do not tell.
        update = check_update(parts.get("update", "step"))
        parts = {name: part for name, part in parts.items() if name != "update"}
    names = {*flags, *_NUMBERS, "norm_obs_keys", "observation_space", "action_space", "ret_rms"}
    if parts.keys() != names | {"obs_rms"}:
        raise ValueError(f"must have {sorted(names | {'obs_rms'})}, got {sorted(parts)}")
    for name in flags:
        if type(parts[name]) is not bool:
            raise ValueError(f"{name} must be True or False, got {str(parts[name])[:80]}")
    numbers = {name: check(name, parts[name]) for name, check in _NUMBERS.items()}
    check_finite_number("epsilon", parts["epsilon"])
    space = parts["observation_space"]
    for name in ("observation_space", "action_space"):
        if not isinstance(parts[name], spaces.Space):
            raise ValueError(f"{name} must be a space")
    _check_statistics(parts, space)
    state = {**parts, **numbers, "old_reward": np.array([]), "num_envs": 0, "render_mode": None}
    state.update(reset_infos=[], _seeds=[], _options=[], metadata={})
    if isinstance(space, spaces.Dict):
        state["obs_spaces"] = space.spaces
    if parts["obs_rms"] is None:
        del state["obs_rms"]
    if issubclass(cls, NormalizerFiles):
        state["update"] = update
    made = cls.__new__(cls)
    made.__setstate__(state)
    return made


def _check_statistics(parts: dict[str, Any], space: spaces.Space[Any]) -> None:
    ret_rms, obs_rms, keys = parts["ret_rms"], parts["obs_rms"], parts["norm_obs_keys"]
    if not isinstance(ret_rms, RunningMeanStd) or ret_rms.mean.shape != ():
        raise ValueError("ret_rms must be statistics of single numbers")
    if keys is not None and not (isinstance(keys, list) and all(type(k) is str for k in keys)):
        raise ValueError("norm_obs_keys must be a list of names")
    if not parts["norm_obs"] and obs_rms is None:
        return
    if isinstance(space, spaces.Dict):
        known = {key: space.spaces[key].shape for key in keys or ()}
        found = {key: rms.mean.shape for key, rms in obs_rms.items()}
    else:
        known, found = {"": space.shape}, {"": obs_rms.mean.shape}
    if known != found:
        raise ValueError(f"statistics of shapes {found} must be for observations of {known}")


class NormalizerFiles(VecNormalize):
    """How ``VecNormalizeVisible`` is saved and loaded."""

    update: str

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to the environments, if there are any, and what was warned of."""
        left_out = (
            *("venv", "class_attributes", "returns", "_order", "_watches", "warned_of_guess"),
            *("_windows", "_returns_of_window"),
        )
        return {key: part for key, part in vars(self).items() if key not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what was pickled, by earlier versions too; :meth:`set_venv` comes next."""
        is_old = "zero_is_blank" not in state
        before = {"met_flags": False, "warned_of_guess": False, "_watches": {}, "update": "step"}
        before |= {"_windows": {}, "_returns_of_window": None}
        super().__setstate__({**before, "zero_is_blank": True, **state})
        if is_old and self.norm_obs:
            warn_user(SAVED_BEFORE.format(name=type(self).__name__))

    def save(self, save_path: str) -> None:
        """Save to a pickle, as SB3's ``VecNormalize`` does.

        .. warning::
            Who loads it runs what is in it. :meth:`save_safe` writes a file that nobody needs to
            trust.
        """
        super().save(save_path)

    @staticmethod
    def load(load_path: str, venv: VecEnv, trusted: bool = True) -> Any:
        """Load what ``save`` wrote, and wrap ``venv`` with it.

        .. warning::
            The file is a pickle, which runs whatever code whoever wrote it has put in: load only
            what you trust. :meth:`load_safe` reads files that run nothing.

        :param load_path: the file
        :param venv: the vectorised environment
        :param trusted: whether to unpickle it
        :raises ValueError: if the file holds something else: a plain ``VecNormalize`` has taken
            blank frames for data; and with ``trusted=False``
        """
        check_venv("venv", venv)
        if not isinstance(load_path, (str, os.PathLike)):
            raise ArgumentError(f"load_path must be the path of a file, got {load_path!r}")
        array_files.check_trusted(load_path, trusted)
        with open(load_path, "rb") as file:
            try:
                loaded: Any = pickle.load(file)
            except Exception as error:  # a pickle can fail in any way
                raise ArgumentError(
                    f"load_path must be a file saved by VecNormalizeVisible, got {load_path}, "
                    f"which is none: {error}"
                ) from error
        if not isinstance(loaded, NormalizerFiles):
            kind = type(loaded).__name__
            hint = f": use {kind}.load for it" if isinstance(loaded, VecNormalize) else ""
            raise ArgumentError(
                f"load_path must be a file saved by VecNormalizeVisible, {load_path} holds a "
                f"{kind}{hint}"
            )
        loaded.set_venv(venv)
        return loaded

    def save_safe(self, path: File) -> None:
        """Save the statistics and the arguments to a file of arrays and JSON, which runs nothing.

        :param path: a path, which gets ``.safetensors`` where it has no suffix, or an opened file
        """
        write_normalizer(path, self)

    @classmethod
    def load_safe(cls, path: File, venv: VecEnv) -> Self:
        """Load what :meth:`save_safe` wrote, and wrap ``venv`` with it; nothing of it is run.

        :param path: the file
        :param venv: the vectorised environment
        :raises ValueError: naming the file and the reason, if it is damaged or holds something
            else, or if ``venv`` does not fit
        """
        check_venv("venv", venv)
        loaded = read_normalizer(cls, path)
        loaded.set_venv(venv)
        n_envs = venv.num_envs
        loaded.reset_infos = [{} for _ in range(n_envs)]
        # As SB3's constructor sets it.
        modes = {None: [], "rgb_array": ["human", "rgb_array"]}.get(
            venv.render_mode, [venv.render_mode]
        )
        loaded.metadata = {"render_modes": modes}
        loaded._seeds, loaded._options = [None] * n_envs, [{} for _ in range(n_envs)]
        return loaded


def kind_of_file(cls: type) -> str:
    """Return what the file of a normaliser holds, by its class."""
    return "VecNormalizeVisible" if issubclass(cls, NormalizerFiles) else "VecNormalize"


def write_normalizer(path: File, normalizer: VecNormalize) -> None:
    """Write a normaliser, SB3's plain one too, as arrays and JSON."""
    writer = Writer(_VOCABULARY)
    parts = {name: writer.write(part, name) for name, part in parts_of(normalizer).items()}
    array_files.write(path, kind_of_file(type(normalizer)), parts, writer.arrays)


def read_normalizer(cls: type[Normalizer], path: File) -> Normalizer:
    """Read what :func:`write_normalizer` wrote; it has no environments yet.

    :param cls: ``VecNormalizeVisible``, ``VecNormalize`` or a class derived from these
    :param path: the file
    :raises ValueError: naming the file and the reason
    """
    _, data, arrays = array_files.read_kinds(path, (kind_of_file(cls),))
    return made_normalizer(cls, path, data, arrays)


def made_normalizer(
    cls: type[Normalizer], path: File, data: Any, arrays: dict[str, Any]
) -> Normalizer:
    """Make a normaliser of what was read from a file; see :func:`read_normalizer`."""
    try:
        reader = Reader(_VOCABULARY, arrays)
        if not isinstance(data, dict):
            raise SafeFileError("must hold the parts of a normaliser")
        return normalizer_of(cls, {name: reader.read(part, name) for name, part in data.items()})
    except SafeFileError as error:
        raise SafeFileError(f"{array_files.name_of(path)} {error}") from error.__cause__
    except Exception as error:  # whatever the parts are
        raise SafeFileError(
            f"{array_files.name_of(path)} does not hold a normaliser: {error}"
        ) from error


def write_statistics(path: File, statistics: RunningMeanStd | None) -> None:
    """Write running statistics, or that there are none."""
    writer = Writer(_VOCABULARY)
    array_files.write(path, "statistics", writer.write(statistics, "statistics"), writer.arrays)


def read_statistics(path: File, shape: tuple[int, ...] | None) -> RunningMeanStd | None:
    """Read what :func:`write_statistics` wrote.

    :param path: the file
    :param shape: of what they must be of; None if there must be none
    :raises ValueError: naming the file and the reason
    """
    data, arrays = array_files.read(path, "statistics")
    name = array_files.name_of(path)
    try:
        found = Reader(_VOCABULARY, arrays).read(data, "statistics")
    except SafeFileError as error:
        raise SafeFileError(f"{name} {error}") from error.__cause__
    its = found.mean.shape if isinstance(found, RunningMeanStd) else None
    if its != shape or not (found is None or isinstance(found, RunningMeanStd)):
        raise SafeFileError(f"{name} must hold statistics of shape {shape}, holds those of {its}")
    return found

"""Models of runs in files: arrays and JSON for the arms of this package, pickles of earlier times.

What is read is of a written-out table of algorithms; a name in a file is imported only where the
user says that the folder is trusted.
"""

from __future__ import annotations

import importlib
import io
import pickle
from pathlib import Path
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from thrust_pomdp.array_files import SafeFileError, is_safe_file
from thrust_pomdp.deploy.observation_layers import load_normalizer
from thrust_pomdp.distributed.data_parallel import (
    DataParallelMaskableRecurrentPPO,
    DataParallelRecurrentPPO,
)
from thrust_pomdp.experiment.folder import (
    MODEL,
    NORMALIZER,
    NOT_TRUSTED,
    PICKLED_MODEL,
    PICKLED_NORMALIZER,
)
from thrust_pomdp.ppo.maskable.ppo import MaskableRecurrentPPO
from thrust_pomdp.ppo.model_files import algorithm_in, read_model, write_model
from thrust_pomdp.ppo.recurrent_ppo import RecurrentPPO
from thrust_pomdp.ppo.sb3_contrib import from_sb3_contrib
from thrust_pomdp.ppo.vocabulary import MODELS
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible
from thrust_pomdp.vec_env.normalizer_files import write_normalizer

#: Name in a file -> algorithm.
_ALGORITHMS: dict[str, type[BaseAlgorithm]] = {
    "DataParallelMaskableRecurrentPPO": DataParallelMaskableRecurrentPPO,
    "DataParallelRecurrentPPO": DataParallelRecurrentPPO,
    "MaskableRecurrentPPO": MaskableRecurrentPPO,
    "PPO": PPO,
    "RecurrentPPO": RecurrentPPO,
}
_PATH_OF_THEIRS = "sb3_contrib.ppo_recurrent.ppo_recurrent"


def files_of(model: BaseAlgorithm) -> dict[str, bytes]:
    """Return the files that keep a model and its normaliser, by the ending of their names.

    An algorithm of the user's own is kept as its own ``save`` does: what it is made of only its
    own ``load`` knows.
    """
    file = io.BytesIO()
    if type(model).__module__ == _PATH_OF_THEIRS and type(model).__name__ == "RecurrentPPO":
        model.save(file)
        file.seek(0)
        # The same network and numbers as one of ours, which acts without that library.
        model, file = from_sb3_contrib(file, device="cpu"), io.BytesIO()
    if type(model) not in _ALGORITHMS.values():
        model.save(file)
        return {PICKLED_MODEL: file.getvalue()}
    if isinstance(model, RecurrentPPO):
        model.save_safe(file)
    else:
        write_model(file, model, MODELS)
    return {MODEL: file.getvalue()}


def files_of_normalizer(normalizer: VecNormalize | None) -> dict[str, bytes]:
    """Return the file that keeps a normaliser, by the ending of its name; none for none."""
    if normalizer is None:
        return {}
    if type(normalizer) not in (VecNormalize, VecNormalizeVisible):
        return {PICKLED_NORMALIZER: pickle.dumps(normalizer)}
    file = io.BytesIO()
    write_normalizer(file, normalizer)
    return {NORMALIZER: file.getvalue()}


def load_safe_model(path: Path) -> BaseAlgorithm:
    """Load a model of any of the algorithms in the table; nothing of the file is run.

    :raises ValueError: naming the file and the reason
    """
    name = algorithm_in(path)
    if name not in _ALGORITHMS:
        known = ", ".join(_ALGORITHMS)
        raise SafeFileError(f"{path} holds a model of {name[:80]!r}, not of one of {known}")
    algorithm = _ALGORITHMS[name]
    if issubclass(algorithm, RecurrentPPO):
        return algorithm.load_safe(path, device="cpu")
    return read_model(algorithm, path, MODELS, device="cpu")


def check_trusted(path: Path, trusted: bool) -> None:
    """Refuse files that could run code, unless they are trusted.

    :raises ValueError: naming the option
    """
    if not trusted and not is_safe_file(path):
        raise ValueError(NOT_TRUSTED.format(path=path))


def load_run_model(path: Path, algorithm: str, trusted: bool) -> Any:
    """Load the model of a run.

    .. warning::
        With ``trusted`` this imports the module that the folder names, and unpickles what is in a
        zip file: say so only of folders that you trust.

    :param path: the model's file
    :param algorithm: ``module:class`` as the folder has it; of zip files
    :param trusted: whether the folder is trusted
    :raises ValueError: if it cannot be loaded
    """
    if is_safe_file(path):
        return load_safe_model(path)
    check_trusted(path, trusted)
    module, _, name = algorithm.partition(":")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is a model of {algorithm}: {error}") from error
    return cls.load(path, device="cpu")


def load_run_normalizer(path: Path, trusted: bool) -> VecNormalize:
    """Load the normaliser of a run, without an environment.

    .. warning::
        With ``trusted`` this unpickles files of earlier versions.

    :raises ValueError: if it cannot be loaded
    """
    check_trusted(path, trusted)
    return load_normalizer(path)

"""Models as files of arrays and JSON: what is written, and how a model is made of it again.

Any on-policy algorithm of SB3's kind can be written and read; the methods of ``RecurrentPPO`` are
in :mod:`thrust_pomdp.ppo.saving`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import PurePath
from typing import Any, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import check_for_correct_spaces

from thrust_pomdp import array_files
from thrust_pomdp.array_files import File, SafeFileError
from thrust_pomdp.errors import ArgumentError, warn_user
from thrust_pomdp.ppo.asymmetric_policy import explain_missing_keys
from thrust_pomdp.ppo.buffer_later import BufferLater, buffer_comes_later
from thrust_pomdp.ppo.sized_building import building
from thrust_pomdp.ppo.untrusted import is_of_library, policy_of, read_without_pickles
from thrust_pomdp.ppo.vocabulary import PARTS, ModelReader, ModelWriter
from thrust_pomdp.safe_values import Vocabulary

Algorithm = TypeVar("Algorithm", bound=BaseAlgorithm)

#: What a model's file holds.
KIND = "model"
#: Attributes that follow from others.
_DERIVED = ("lr_schedule",)
#: Steps of a window, of one environment and of all, that a file may ask for: how it is parted into
#: minibatches is listed when a model is made.
_MOST_STEPS, _MOST_STEPS_OF_ALL = 2**20, 2**22
#: What belongs to the run that was saved: written where it is data, and not missed.
_OF_THE_RUN = (
    "_last_obs",
    "_last_original_obs",
    "_last_episode_starts",
    "ep_info_buffer",
    "ep_success_buffer",
)
#: What optimisers keep of a parameter in a single number; all else has the parameter's shape.
_SINGLE = ("step", "eta", "mu", "mu_product")


def write_model(
    file: File, model: BaseAlgorithm, vocabulary: Vocabulary, exclude: Any = None
) -> None:
    """Write a model as arrays and JSON.

    :param file: a path or an opened file
    :param model: the model
    :param vocabulary: what the file may name
    :param exclude: names of attributes to leave out
    """
    left_out = {*model._excluded_save_params(), *_DERIVED, *(exclude or ())}
    left_out |= {name.split(".")[0] for names in model._get_torch_save_params() for name in names}
    writer = ModelWriter(vocabulary)
    attributes = {}
    for name, value in vars(model).items():
        if name not in left_out:
            written = writer.write(value, name)
            if not (name in _OF_THE_RUN and _has_blanks(written)):
                attributes[name] = written
    parameters = {name: writer.write(part, name) for name, part in model.get_parameters().items()}
    data = {"algorithm": family_of(type(model)), "attributes": attributes, "parameters": parameters}
    array_files.write(file, KIND, {**data, "versions": versions()}, writer.arrays)


def _has_blanks(written: Any) -> bool:
    if isinstance(written, list):
        return any(map(_has_blanks, written))
    if isinstance(written, dict):
        return written.get("$") == "yours" or any(map(_has_blanks, written.values()))
    return False


def versions() -> dict[str, str]:
    """Return what a file was written with, for people to read."""
    packages = ("thrust-pomdp", "stable-baselines3", "torch", "gymnasium", "numpy")
    found = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def family_of(algorithm: type) -> str:
    """Return the name of the algorithm of a library that a class is, or is derived from."""
    libraries = ("thrust_pomdp", "stable_baselines3", "sb3_contrib")
    known = (cls for cls in algorithm.__mro__ if cls.__module__.partition(".")[0] in libraries)
    return next(known, algorithm).__name__


def algorithm_in(file: File) -> str:
    """Return which algorithm's model a file says that it holds.

    :raises SafeFileError: if it is no file of a model
    """
    data, _ = array_files.read(file, KIND)
    return str(data.get("algorithm") if isinstance(data, dict) else None)


def read_model(
    algorithm: type[Algorithm],
    file: File,
    vocabulary: Vocabulary,
    env: Any = None,
    custom_objects: Mapping[str, Any] | None = None,
    device: th.device | str = "auto",
    force_reset: bool = True,
    **changes: Any,
) -> Algorithm:
    """Make a model of what :func:`write_model` wrote; nothing of the file is run.

    :param algorithm: the class of the model, an on-policy algorithm of SB3's kind
    :param file: a path or an opened file
    :param vocabulary: what the file may name
    :param env: the environment to go on with; not needed for acting
    :param custom_objects: what the file cannot hold, by name of the attribute or the argument; of
        attributes, also what is to replace the file's
    :param device: where the network runs
    :param force_reset: let training begin by a reset
    :param changes: attributes to change
    :raises SafeFileError: naming the file and the reason
    """
    data, arrays = array_files.read(file, KIND)
    given = dict(custom_objects or {})
    with naming(file):
        _check_data(data, algorithm)
        reader = ModelReader(vocabulary, arrays, given)
        attributes = {
            name: given[name] if name in given else reader.read(part, name)
            for name, part in data["attributes"].items()
        }
        _check_attributes(attributes, algorithm)
        _check_window({**attributes, **changes}, {*given, *changes}, env)
        parameters = {name: reader.read(part, name) for name, part in data["parameters"].items()}
    return build(algorithm, file, attributes, parameters, env, device, force_reset, changes)


@contextlib.contextmanager
def naming(file: File) -> Iterator[None]:
    """Say which file it is that something is wrong with, whatever that raises."""
    try:
        yield
    except SafeFileError as error:
        raise SafeFileError(f"{array_files.name_of(file)} {error}") from error.__cause__
    except Exception as error:
        raise SafeFileError(
            f"{array_files.name_of(file)} does not hold what a model can be made of: {error}"
        ) from error


def _check_data(data: Any, algorithm: type) -> None:
    keys = {"algorithm", "attributes", "parameters", "versions"}
    if not isinstance(data, dict) or data.keys() != keys:
        raise SafeFileError(f"must hold {sorted(keys)}")
    if data["algorithm"] != family_of(algorithm):
        raise SafeFileError(
            f"holds a model of {str(data['algorithm'])[:80]}, not of {family_of(algorithm)}: load "
            "it by that class"
        )
    if not all(isinstance(data[name], dict) for name in ("attributes", "parameters")):
        raise SafeFileError("must have attributes and parameters by name")


def _check_attributes(attributes: dict[str, Any], algorithm: type[BaseAlgorithm]) -> None:
    """Refuse names that would hide a method, and paths that lead anywhere."""
    needed = {"observation_space", "action_space", "policy_class", "policy_kwargs", "n_envs"}
    if missing := sorted(needed - attributes.keys()):
        raise SafeFileError(f"must have the attributes {missing}")
    for name in attributes:
        there = getattr(algorithm, name, None)
        is_code = callable(there) or isinstance(there, property) or name == "policy_aliases"
        if is_code or name.startswith("__") or name in ("policy", "env", "rollout_buffer"):
            raise SafeFileError(f"has an attribute {name[:80]!r}, which no file may change")
    for name in ("observation_space", "action_space"):
        if not isinstance(attributes[name], spaces.Space):
            raise SafeFileError(f"has a {name} that is none")
    if not isinstance(attributes["policy_class"], type):
        raise SafeFileError("has a policy_class that is none")
    if not isinstance(attributes["policy_kwargs"], dict):
        raise SafeFileError("has policy_kwargs that are no dict")
    n_envs, starts = attributes["n_envs"], attributes.get("_last_episode_starts")
    if type(n_envs) is not int or n_envs < 1 or (starts is not None and len(starts) != n_envs):
        raise SafeFileError(f"was written with {str(n_envs)[:80]} environments, which cannot be")
    n_steps = attributes.get("n_steps", 1)
    is_count = isinstance(n_steps, (int, np.integer)) and not isinstance(n_steps, bool)
    if not is_count or n_steps < 1:
        raise SafeFileError(f"was written with n_steps={str(n_steps)[:80]}, which cannot be")
    _check_log(attributes)


def _check_window(attributes: Mapping[str, Any], given: set[str], env: Any) -> None:
    """Refuse a window that nobody has memory or time for, unless the program asks for it."""
    n_steps, n_envs = attributes.get("n_steps"), getattr(env, "num_envs", attributes["n_envs"])
    if not isinstance(n_steps, (int, np.integer)) or "n_steps" in given:
        return
    if n_steps > _MOST_STEPS or n_steps * n_envs > _MOST_STEPS_OF_ALL:
        raise SafeFileError(
            f"says that a window has {n_steps:,} steps of {n_envs:,} environments, which is not "
            "taken from a file: pass n_steps"
        )


def _check_log(attributes: dict[str, Any]) -> None:
    """Leave out a folder that is not below the one the program runs in."""
    log = attributes.get("tensorboard_log")
    if log is None:
        return
    path = PurePath(log)
    if path.is_absolute() or ".." in path.parts:
        attributes["tensorboard_log"] = None
        warn_user(
            f"the file names the folder {str(log)[:200]} for TensorBoard's logs, which a file may "
            "not choose: pass tensorboard_log=... to write there, or anywhere"
        )


def build(
    algorithm: type[Algorithm],
    file: Any,
    attributes: dict[str, Any],
    parameters: dict[str, Any],
    env: Any,
    device: th.device | str,
    force_reset: bool,
    changes: Mapping[str, Any],
    is_made_here: bool = False,
) -> Algorithm:
    """Make a model of its parts, as SB3's ``load`` does, but no bigger than its parameters.

    :param algorithm: its class
    :param file: where they are from, for messages
    :param attributes: by name
    :param parameters: state dicts by name
    :param env: the environment, None for none
    :param device: where the network runs
    :param force_reset: let training begin by a reset
    :param changes: attributes to change
    :param is_made_here: whether the environment was made of an id on the way
    :raises SafeFileError: if they do not fit each other
    """
    is_made_here = is_made_here or isinstance(env, str)
    _check_changes(attributes, changes)
    if env is not None:
        env = algorithm._wrap_env(env, attributes.get("verbose", 0))
        _check_spaces(env, attributes)
        attributes = {**attributes, "n_envs": env.num_envs}
        if force_reset:
            attributes["_last_obs"] = None
    make: Any = algorithm
    with naming(file):
        with building(tensors_in(parameters)):
            model = make(
                policy=attributes["policy_class"], env=env, device=device, _init_setup_model=False
            )
            if "seed" in changes:
                attributes.pop("_noise_state", None)
            vars(model).update(attributes, **changes)
            if hasattr(algorithm, "_is_loaded"):
                vars(model).update(_is_loaded=True, _made_env=is_made_here)
            with buffer_comes_later(model):
                model._setup_model()
        _check_optimizer(model, parameters)
        model.set_parameters(parameters, exact_match=True, device=device)
    if env is not None:
        be_ready_to_train(model)
    if model.use_sde:
        model.policy.reset_noise()
    loaded: Algorithm = model
    return loaded


def be_ready_to_train(model: Any) -> None:
    """Make what a model read from a file does without until it has an environment."""
    if isinstance(model.rollout_buffer, BufferLater):
        model.rollout_buffer = model.rollout_buffer.made()
        if hasattr(model, "_last_lstm_states"):
            model._last_lstm_states = model.policy.zero_states(model.n_envs)


def _check_changes(attributes: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    wanted = changes.get("policy_kwargs", attributes["policy_kwargs"])
    if wanted != attributes["policy_kwargs"]:
        raise ArgumentError(
            f"policy_kwargs must be those of the file, {attributes['policy_kwargs']}, got {wanted}"
        )


def _check_spaces(env: Any, attributes: Mapping[str, Any]) -> None:
    try:
        check_for_correct_spaces(env, attributes["observation_space"], attributes["action_space"])
    except ValueError as error:
        explain_missing_keys(error, attributes["policy_class"], attributes["policy_kwargs"])
        raise


def tensors_in(parameters: Any) -> list[th.Tensor]:
    """List the tensors of state dicts."""
    if isinstance(parameters, th.Tensor):
        return [parameters]
    if isinstance(parameters, dict):
        return [tensor for part in parameters.values() for tensor in tensors_in(part)]
    return []


def _check_optimizer(model: Any, parameters: dict[str, Any]) -> None:
    """Refuse a state that does not fit, and give the optimiser memory of its own.

    torch looks at no shapes here, and its fused kernels would read and write beyond what is there.
    """
    saved = parameters.get("policy.optimizer")
    if saved is None:
        return
    optimizer = model.policy.optimizer
    kept = [part for group in optimizer.param_groups for part in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    if numbers != list(range(len(kept))) or not set(saved["state"]) <= set(numbers):
        raise SafeFileError("has an optimiser of other parameters than the policy's")
    is_known = type(optimizer) in PARTS.values()
    for index, state in saved["state"].items():
        for name, part in state.items():
            if not isinstance(part, th.Tensor):
                continue
            is_single = part.numel() == 1 and (name in _SINGLE or not is_known)
            if not is_single and part.shape != kept[index].shape:
                raise SafeFileError(
                    f"has a {name} of shape {tuple(part.shape)} for a parameter of shape "
                    f"{tuple(kept[index].shape)}"
                )
            state[name] = part.clone()


def attributes_of_zip(
    algorithm: type[BaseAlgorithm],
    path: Any,
    env: Any,
    device: th.device | str,
    given: dict[str, Any],
    changes: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Collect the attributes and parameters of a model from a zip file of SB3's and the program.

    :param algorithm: the class of the model
    :param path: the file
    :param env: where the spaces are taken from
    :param device: where the weights go
    :param given: attributes that the program gives
    :param changes: attributes that the program changes
    :raises SafeFileError: naming what is needed and was not given
    """
    for name in ("observation_space", "action_space"):
        if name not in given:
            if env is None:
                raise SafeFileError(
                    f"{array_files.name_of(path)} has its {name} pickled: pass env, whose spaces "
                    "are taken with trusted=False"
                )
            given = {**given, name: getattr(env, name)}
    plain = read_without_pickles(path, device, given)
    with naming(path):
        attributes = dict(plain.data)
        weights = plain.parameters.get("policy")
        if not isinstance(weights, dict):
            raise SafeFileError("must have the weights of a policy")
        if "policy_class" not in given:
            attributes["policy_class"] = policy_of(
                algorithm.policy_aliases,
                plain.pickled.get("policy_class", ""),
                weights,
                given["observation_space"],
            )
        _check_nothing_is_missing(algorithm, plain.pickled, {*given, *changes})
        attributes.setdefault("rollout_buffer_class", None)
        _check_attributes(attributes, algorithm)
        _check_window({**attributes, **changes}, {*given, *changes}, env)
    return attributes, plain.parameters


def _check_nothing_is_missing(
    algorithm: type[BaseAlgorithm], pickled: Mapping[str, str], given: set[str]
) -> None:
    """Refuse, by name, what only unpickling would tell."""
    arguments = inspect.signature(algorithm.__init__).parameters.keys() - {"tensorboard_log"}
    for name, module in pickled.items():
        is_ours = name == "rollout_buffer_class" and is_of_library(module)
        if name in arguments and name not in given and not is_ours:
            raise SafeFileError(
                f"has its {name} pickled, which is needed and not read with trusted=False: pass "
                f"custom_objects={{{name!r}: ...}}"
            )

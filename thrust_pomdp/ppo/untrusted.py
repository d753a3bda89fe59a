"""SB3's zip files, read without unpickling anything.

Such a file has its numbers as JSON and its weights as torch's files, which
``torch.load(weights_only=True)`` reads; whatever else it holds is pickled: spaces, the policy's
class, schedules. Beside each pickle SB3 notes in plain words what was in it. From these words what
is in a written-out table is taken; the rest must come from the program.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch as th
from gymnasium import spaces
from stable_baselines3.common.save_util import open_path
from stable_baselines3.common.utils import (
    ConstantSchedule,
    FloatSchedule,
    LinearSchedule,
    get_device,
)

from thrust_pomdp.array_files import SafeFileError, name_of, parse_json
from thrust_pomdp.ppo.vocabulary import PARTS

#: What belongs to the run that was saved; a model goes on without.
_OF_THE_RUN = frozenset(
    {
        "_custom_logger",
        "_last_episode_starts",
        "_last_lstm_states",
        "_last_obs",
        "_last_original_obs",
        "action_noise",
        "ep_info_buffer",
        "ep_success_buffer",
        "lr_schedule",
    }
)
_NAMES_OF_CLASSES = {str(cls): cls for cls in PARTS.values()}
_NUMBER = r"([-+]?[0-9.]+(?:e[-+]?[0-9]+)?)"
_CONSTANT = re.compile(rf"ConstantSchedule\(val={_NUMBER}\)")
_LINEAR = re.compile(rf"LinearSchedule\(start={_NUMBER}, end={_NUMBER}, end_fraction={_NUMBER}\)")
#: Bytes of JSON and of torch's files that may be in a file beside its own size.
_SLACK = 1 << 20


class PlainZip(NamedTuple):
    """What of SB3's zip is plain, or was recognised.

    :param data: attributes by name
    :param pickled: names of the attributes that are not, and the module of their class, if told
    :param parameters: state dicts by name
    """

    data: dict[str, Any]
    pickled: dict[str, str]
    parameters: dict[str, Any]


def read_without_pickles(
    path: Any, device: th.device | str, given: Mapping[str, Any] | None = None
) -> PlainZip:
    """Read a zip file that ``save`` of SB3's algorithms wrote.

    :param path: the file
    :param device: where the weights go
    :param given: what the program gives by name, in place of what the file has
    :raises SafeFileError: if the file is anything else, or more is needed than is plain in it
    """
    file = open_path(path, "r", suffix="zip")
    try:
        return _read(file, get_device(device), given or {})
    except SafeFileError as error:
        raise SafeFileError(f"{name_of(path)} {error}") from None
    except Exception as error:  # zip files and torch's own can be broken in any way
        raise SafeFileError(
            f"{name_of(path)} must be a zip file saved by save() of SB3's kind: {error}"
        ) from error
    finally:
        if file is not path:
            file.close()


def _read(file: Any, device: th.device, given: Mapping[str, Any]) -> PlainZip:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        _check_sizes(archive, size)
        try:
            text = archive.read("data")
        except KeyError:
            raise SafeFileError("must hold a model: it has no data") from None
        data, pickled = _plain(parse_json(text, size, "JSON", takes_constants=True), given)
        parameters = {
            name.removesuffix(".pth"): _tensors(archive, name, size, device)
            for name in archive.namelist()
            if name.endswith(".pth") and name not in ("pytorch_variables.pth", "tensors.pth")
        }
    return PlainZip(data, pickled, parameters)


def _check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Refuse archives that grow: SB3 and torch compress nothing."""
    names = archive.namelist()
    if len(set(names)) != len(names):
        raise SafeFileError("has two parts of one name")
    if sum(entry.file_size for entry in archive.infolist()) > size + _SLACK:
        raise SafeFileError("is bigger unpacked than SB3 makes such files")


def _tensors(archive: zipfile.ZipFile, name: str, size: int, device: th.device) -> Any:
    content = io.BytesIO(archive.read(name))
    if zipfile.is_zipfile(content):
        with zipfile.ZipFile(content) as inner:
            _check_sizes(inner, size)
    content.seek(0)
    return th.load(content, map_location=device, weights_only=True)


def _plain(saved: Any, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Split attributes into those that are plain, or recognised, and those that are pickled."""
    if not isinstance(saved, dict):
        raise SafeFileError("must hold a model: its data is no JSON object")
    data: dict[str, Any] = {}
    pickled: dict[str, str] = {}
    for name, value in saved.items():
        if name in given or name in _OF_THE_RUN:
            continue
        if not (isinstance(value, dict) and ":serialized:" in value):
            data[name] = value
        elif name == "policy_kwargs":
            data[name] = _policy_kwargs(value)
        elif (schedule := _schedule(value)) is not None:
            data[name] = schedule
        else:
            pickled[name] = str(value.get("__module__", ""))
    return {**data, **given}, pickled


def _schedule(words: Mapping[str, Any]) -> Any:
    """Return the schedule that SB3 wrote in words, None for one that it had no words for."""
    inside = words.get("value_schedule")
    if words.get(":type:") != str(FloatSchedule) or not isinstance(inside, str):
        return None
    if constant := _CONSTANT.fullmatch(inside):
        return FloatSchedule(ConstantSchedule(float(constant[1])))
    if linear := _LINEAR.fullmatch(inside):
        return FloatSchedule(LinearSchedule(*map(float, linear.groups())))
    return None


def _policy_kwargs(words: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a policy, of which SB3 pickles all if one is no JSON."""
    found = {}
    for name, value in words.items():
        if name in (":type:", ":serialized:"):
            continue
        if isinstance(value, str):
            if value not in _NAMES_OF_CLASSES:
                raise SafeFileError(
                    f"has policy_kwargs[{name!r}] pickled, {value[:200]}, which is needed and not "
                    "read without trust: pass custom_objects={'policy_kwargs': {...}} with all of "
                    "them"
                )
            value = _NAMES_OF_CLASSES[value]
        found[name] = value
    return found


def is_of_library(module: str) -> bool:
    """Tell whether a module is one of SB3's, of sb3-contrib or of this package."""
    return module.partition(".")[0] in ("stable_baselines3", "sb3_contrib", "thrust_pomdp")


def policy_of(
    aliases: Mapping[str, Any],
    module: str,
    weights: Mapping[str, Any],
    observation_space: spaces.Space[Any],
) -> Any:
    """Tell which policy weights belong to.

    :param aliases: the policies that there are, by name
    :param module: of the policy's class, as the file names it
    :param weights: by name
    :param observation_space: what the policy reads
    :raises SafeFileError: if it is none of these
    """
    if not is_of_library(module):
        raise SafeFileError(
            f"has a policy_class of the module {module[:80]!r}, which is needed and pickled: pass "
            "it by policy, or custom_objects={'policy_class': ...}"
        )
    if any(name.startswith("vf_features_extractor.inner") for name in weights) or (
        "asymmetric" in module.lower()
    ):
        return aliases["AsymmetricLstmPolicy"]
    if isinstance(observation_space, spaces.Dict):
        return aliases["MultiInputLstmPolicy"]
    is_cnn = any(".cnn." in name for name in weights)
    return aliases["CnnLstmPolicy" if is_cnn else "MlpLstmPolicy"]

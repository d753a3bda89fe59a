"""Layers of Gymnasium and Stable-Baselines3 of which it is known that their attributes are all.

Known is the class itself: one derived from it may do anything. Of what a known one keeps all is
held but for functions, windows and the like, so that a version of theirs which keeps something
more is held too, or complained of. Of others a wrapper is known that keeps nothing at all, as most
of those that only change what is seen.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorWrapper
from numpy.typing import NDArray

from thrust_pomdp.stateful import Attributes, Changes, is_space
from thrust_pomdp.states import NoStateError, packed, unpacked

#: What every wrapper has, and nobody needs to go on.
_OF_ALL = frozenset({
    *("env", "venv", "_cached_spec", "spec", "_metadata", "metadata", "render_mode"),
    *("_saved_kwargs", "class_attributes", "close_called"),
})  # fmt: skip

_GYMNASIUM = {
    "Autoreset", "ClipAction", "ClipReward", "DelayObservation", "DiscretizeAction",
    "DiscretizeObservation", "DtypeObservation", "FilterObservation", "FlattenObservation",
    "FrameStackObservation", "GrayscaleObservation", "HumanRendering", "MaxAndSkipObservation",
    "NormalizeObservation", "NormalizeReward", "OrderEnforcing", "PassiveEnvChecker",
    "RecordEpisodeStatistics", "RecordVideo", "RenderCollection", "RepeatAction",
    "RescaleAction", "RescaleObservation", "ReshapeObservation", "ResizeObservation",
    "StickyAction", "TimeAwareObservation", "TimeLimit", "TransformAction",
    "TransformObservation", "TransformReward",
}  # fmt: skip

#: Its own environments that are all attributes and ``np_random``.
_CLASSIC = {
    "AcrobotEnv", "CartPoleEnv", "Continuous_MountainCarEnv", "MountainCarEnv", "PendulumEnv",
}  # fmt: skip

_SB3 = {
    "ClipRewardEnv", "DummyVecEnv", "EpisodicLifeEnv", "FireResetEnv", "MaxAndSkipEnv", "Monitor",
    "NoopResetEnv", "StickyActionEnv", "SubprocVecEnv", "VecCheckNan", "VecExtractDictObs",
    "VecFrameStack", "VecMonitor", "VecNormalize", "VecTransposeImage", "VecVideoRecorder",
    "WarpFrame",
}  # fmt: skip

#: Packages, and what is known in them.
_KNOWN = {
    "gymnasium.wrappers": _GYMNASIUM,
    "gymnasium.envs.classic_control": _CLASSIC,
    "gymnasium.vector.sync_vector_env": {"SyncVectorEnv"},
    "stable_baselines3.common": _SB3,
    "sb3_contrib.common": {"ActionMasker", "TimeFeatureWrapper"},
}

#: What is no memory, beside functions and types: windows, pipes, and what is filled before it is
#: read. What is treated in a way of its own is here too.
_NO_MEMORY = {
    "PassiveEnvChecker": {"_previous_data"},
    "HumanRendering": {"window", "clock", "screen_size"},
    "RecordEpisodeStatistics": {"episode_start_time", "episode_start_times"},
    "Monitor": {"results_writer"},
    "VecMonitor": {"results_writer"},
    "VecFrameStack": {"stacked_obs"},
    "VecVideoRecorder": {"env"},
    "DummyVecEnv": {"envs", "buf_obs", "buf_dones", "buf_rews", "buf_infos", "reset_infos"},
    "SubprocVecEnv": {
        "remotes", "work_remotes", "processes", "waiting", "closed", "reset_infos",
    },
    "SyncVectorEnv": {
        "envs", "env_fns", "_env_obs", "_observations", "_rewards", "observation_mode",
    },
}  # fmt: skip
_WINDOWS = {"screen", "clock", "surf", "isopen", "viewer", "_np_random", "_np_random_seed"}

#: What must be equal for a state to fit, and arrays that keep their shape.
_FIXED = {"num_envs", "autoreset_mode", "_autoreset_mode"}
_SHAPED = {"returns", "episode_returns", "episode_lengths", "_autoreset_envs"}

#: What all of SB3's wrappers of vectorised environments have.
_OF_VEC_ENVS = {
    "_options", "_seeds", "action_space", "num_envs", "observation_space", "reset_infos",
}  # fmt: skip

#: Functions of the user's that are asked at each step.
_ASKED = {
    "TransformAction": "func", "TransformObservation": "func", "TransformReward": "func",
    "ActionMasker": "_action_mask_fn",
}  # fmt: skip


def known_attributes(layer: Any) -> Attributes | None:
    """Say what of a layer's attributes is no plain state; None for layers that are not known."""
    kind = type(layer)
    name, module = kind.__name__, kind.__module__
    if not any(name in names and module.startswith(where) for where, names in _KNOWN.items()):
        return Attributes(_OF_ALL, frozenset(_FIXED)) if _keeps_nothing(layer) else None
    ignored = _OF_ALL | _NO_MEMORY.get(name, set()) | (_WINDOWS if name in _CLASSIC else set())
    constants = {key for key, value in vars(layer).items() if _is_no_memory(value)}
    arrays = {key for key in _SHAPED if isinstance(vars(layer).get(key), np.ndarray)}
    return Attributes(frozenset(ignored | constants), frozenset(_FIXED), frozenset(arrays))


def _keeps_nothing(layer: Any) -> bool:
    """Tell whether a wrapper of others has nothing but what every wrapper has."""
    if hasattr(type(layer), "get_state") or hasattr(type(layer), "set_state"):
        return False  # it is its own business
    is_vec_env = any(
        base.__name__ == "VecEnvWrapper" and base.__module__.startswith("stable_baselines3")
        for base in type(layer).__mro__
    )
    if not (is_vec_env or isinstance(layer, (gym.Wrapper, VectorWrapper))):
        return False
    of_all = _OF_ALL | (_OF_VEC_ENVS if is_vec_env else set())
    own = {name: value for name, value in vars(layer).items() if name not in of_all}
    # A space has a generator, which is held.
    return all(value is None or is_space(value) for value in own.values())


def _is_no_memory(value: Any) -> bool:
    return callable(value) or isinstance(value, (np.dtype, ModuleType))


# -------------------------------------------------- what is treated in a way of its own


def extra(layer: Any) -> Any:
    """Return what a known layer remembers beside its attributes, None if nothing."""
    name = type(layer).__name__
    if name in ("Monitor", "VecMonitor"):
        return {"results": _results(layer.results_writer)}
    if name == "RecordEpisodeStatistics":
        # Of a clock that starts with the computer.
        start = getattr(layer, _start_name(layer))
        started = np.ndim(start) > 0 or start != -1
        return {"seconds": packed(time.perf_counter() - start, name) if started else None}
    return None


def _start_name(layer: Any) -> str:
    return next(str(key) for key in vars(layer) if key.startswith("episode_start_time"))


def prepare_extra(layer: Any, state: Any, where: str) -> Changes:
    """Check what :func:`extra` returned, and return what is to be done to set it."""
    name = type(layer).__name__
    if name in ("Monitor", "VecMonitor"):
        return _prepare_results(layer.results_writer, (state or {}).get("results"), where)
    if name == "RecordEpisodeStatistics":
        seconds = unpacked((state or {}).get("seconds"), where)
        start = -1 if seconds is None else time.perf_counter() - seconds
        return [lambda: setattr(layer, _start_name(layer), start)]
    if name == "PassiveEnvChecker" and hasattr(layer, "checked_data_reuse"):
        return [lambda: _skip_comparison(layer)]
    return []


def _skip_comparison(layer: Any) -> None:
    """Let a checker that compares what two calls return go on without what came before."""
    if layer.checked_step:
        layer.checked_data_reuse = True
    elif layer.checked_reset:
        layer._previous_data = (None, {})


def _results(writer: Any) -> NDArray[np.uint8] | None:
    """Read the whole results file: who makes a Monitor anew empties it."""
    if writer is None:
        return None
    if not writer.file_handler.closed:
        writer.file_handler.flush()
    try:
        return np.frombuffer(Path(writer.file_handler.name).read_bytes(), dtype=np.uint8).copy()
    except OSError:
        return np.zeros(0, dtype=np.uint8)  # taken away; nothing can be given back


def _prepare_results(writer: Any, text: Any, where: str) -> Changes:
    if (writer is None) != (text is None):
        has, had = ("none", "one") if writer is None else ("one", "none")
        raise ValueError(f"state of {where} must be of one with {has} of results' files, got {had}")
    if writer is None:
        return []
    if not isinstance(text, np.ndarray) or text.dtype != np.uint8:
        raise ValueError(f"state['results'] of {where} must be bytes of a file, got {text!r}")
    handler = writer.file_handler
    if handler.closed or not len(text):
        return []
    decoded = text.tobytes().decode(handler.encoding)

    def change() -> None:
        handler.seek(0)
        handler.truncate()
        handler.write(decoded)
        handler.flush()

    return [change]


# ------------------------------------------------------------------ functions of the user's


def against_functions(layer: Any) -> None:
    """Refuse a layer that asks a function which may remember something.

    :raises NoStateError: naming the function and what it may remember
    """
    function = vars(layer).get(_ASKED.get(type(layer).__name__, ""))
    if function is None or isinstance(function, str):
        return
    memory = _memory_of(function, ())
    if memory is not None:
        raise NoStateError(
            f"{type(layer).__name__} asks a function that may remember something in {memory}"
        )


def _memory_of(function: Any, seen: tuple[Any, ...]) -> str | None:
    """Name what a function reaches that is no constant; None if there is nothing."""
    if isinstance(function, (BuiltinFunctionType, np.ufunc)) or function in seen:
        return None
    if not isinstance(function, FunctionType):
        return repr(type(function).__name__)
    if _package(function.__module__) in _TRUSTED:
        return None
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    reached = {name: cell.cell_contents for name, cell in cells}
    for name in _names(function.__code__):
        if name in function.__globals__:
            reached[name] = function.__globals__[name]
    for idx, value in enumerate(function.__defaults__ or ()):
        reached[f"default {idx}"] = value
    for name, value in {**reached, **(function.__kwdefaults__ or {})}.items():
        if not _is_constant(value, (*seen, function)):
            return repr(name)
    return None


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names(part)


#: Packages whose functions and classes remember nothing.
_TRUSTED = {"builtins", "gymnasium", "math", "numpy", "operator"}


def _package(module: Any) -> str:
    return str(module).partition(".")[0]


def _is_constant(value: Any, seen: tuple[Any, ...]) -> bool:
    if value is None or isinstance(value, (bool, int, float, str, bytes, np.generic, np.dtype)):
        return True
    if isinstance(value, (tuple, frozenset)):
        return all(_is_constant(part, seen) for part in value)
    if isinstance(value, ModuleType):
        return _package(value.__name__) in _TRUSTED
    if isinstance(value, type):
        return _package(value.__module__) in _TRUSTED
    if isinstance(value, FunctionType):
        return _memory_of(value, seen) is None
    return isinstance(value, (BuiltinFunctionType, np.ufunc)) or is_space(value)

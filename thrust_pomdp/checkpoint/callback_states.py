"""What callbacks remember, taken out and put back.

SB3's own are known here by name. A user's own says it itself, by ``get_state()``, which returns
dicts, lists, numbers, texts and NumPy arrays, and ``set_state(state)``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    ProgressBarCallback,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)

from thrust_pomdp.ppo.maskable.evaluation import MaskableEvalCallback
from thrust_pomdp.ppo.resumable_learning import TakesUpTraining, each_callback

_EVALUATION = (
    "best_mean_reward",
    "last_mean_reward",
    "evaluations_results",
    "evaluations_timesteps",
    "evaluations_length",
    "evaluations_successes",
    "_is_success_buffer",
)

#: What callbacks of SB3's remember beside their calls, by class.
_KNOWN: dict[type[BaseCallback], tuple[str, ...]] = {
    CallbackList: (),
    CheckpointCallback: (),
    ConvertCallback: (),
    EvalCallback: _EVALUATION,
    MaskableEvalCallback: _EVALUATION,
    EveryNTimesteps: ("last_time_trigger",),
    LogEveryNTimesteps: ("last_time_trigger",),
    ProgressBarCallback: (),
    StopTrainingOnMaxEpisodes: ("n_episodes",),
    StopTrainingOnNoModelImprovement: ("last_best_mean_reward", "no_improvement_evals"),
    StopTrainingOnRewardThreshold: (),
}

#: What all callbacks have.
_OF_ALL = frozenset(vars(ConvertCallback(None))) | {"model", "callback", "callbacks"}


def without_state(callback: BaseCallback) -> list[str]:
    """Name the callbacks that remember something and do not say what."""
    return [
        type(part).__name__
        for _, part in each_callback(callback)
        if not _says(part) and type(part) not in _KNOWN and not isinstance(part, TakesUpTraining)
        and not vars(part).keys() <= _OF_ALL
    ]  # fmt: skip


def _says(callback: BaseCallback) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(
        getattr(callback, "set_state", None)
    )


def callback_states(callback: BaseCallback) -> dict[str, Any]:
    """Return what all callbacks remember, by where they are."""
    found: dict[str, Any] = {}
    for path, part in each_callback(callback):
        state: dict[str, Any] = {
            "class": type(part).__name__,
            "n_calls": part.n_calls,
            "num_timesteps": part.num_timesteps,
            "attributes": {name: _compact(getattr(part, name)) for name in _attributes(part)},
        }
        if _says(part):
            state["own"] = part.get_state()  # type: ignore[attr-defined]
        found[path] = state
    return found


def set_callback_states(callback: BaseCallback, states: Mapping[str, Any]) -> None:
    """Give all callbacks what they remembered.

    :raises ValueError: if they are others than those whose states are given
    """
    parts = dict(each_callback(callback))
    now = [f"{path} {type(part).__name__}".strip() for path, part in parts.items()]
    before = [f"{path} {state['class']}".strip() for path, state in states.items()]
    if now != before:
        raise ValueError(f"callback was {', '.join(before)} and is {', '.join(now)}")
    for path, part in parts.items():
        state = states[path]
        part.n_calls, part.num_timesteps = state["n_calls"], state["num_timesteps"]
        for name, value in state["attributes"].items():
            setattr(part, name, value.tolist() if isinstance(value, np.ndarray) else value)
        if "own" in state:
            part.set_state(state["own"])  # type: ignore[attr-defined]
        if isinstance(part, ProgressBarCallback):
            counters = part.model
            part.pbar.update(counters.num_timesteps - counters._num_timesteps_at_start)
        if isinstance(part, EvalCallback) and part.log_path is not None:
            _write_evaluations(part)


def _compact(value: Any) -> Any:
    """Return as an array what is a row of numbers for each evaluation of a long training."""
    if not isinstance(value, list) or not value or not isinstance(value[0], list):
        return value
    kinds = {type(number) for row in value for number in row}
    lengths = {len(row) for row in value}
    return np.array(value) if len(lengths) == 1 and kinds in ({float}, {int}, {bool}) else value


def _attributes(callback: BaseCallback) -> tuple[str, ...]:
    known = (names for cls, names in _KNOWN.items() if isinstance(callback, cls))
    return tuple(dict.fromkeys(name for names in known for name in names))


def _write_evaluations(callback: EvalCallback) -> None:
    """Bring the file of evaluations to what had been evaluated then."""
    assert callback.log_path is not None
    path = f"{callback.log_path}.npz"
    if not callback.evaluations_timesteps:
        if os.path.exists(path):
            os.remove(path)
        return
    kwargs: dict[str, Any] = {}
    if callback.evaluations_successes:
        kwargs["successes"] = callback.evaluations_successes
    np.savez(
        callback.log_path,
        timesteps=callback.evaluations_timesteps,
        results=callback.evaluations_results,
        ep_lengths=callback.evaluations_length,
        **kwargs,
    )

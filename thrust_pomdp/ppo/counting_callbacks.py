"""Callbacks that only count most steps: how many of the coming ones nobody looks at.

Whoever is to act at a step is called there, as at every step of a callback that is not known here;
the steps before may be taken many at once, and counted afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EventCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    ProgressBarCallback,
    StopTrainingOnMaxEpisodes,
)

from thrust_pomdp.unmodified_classes import Class, against_methods, remember

#: More steps than anyone takes.
NEVER = 2**62

#: By which a callback is told of a step.
_METHODS = ("on_step", "_on_step", "update_locals", "update_child_locals", "__setattr__")


class _Rule(NamedTuple):
    """What is known of a class of callbacks.

    :param unseen: (callback, number of environments) -> coming steps that it only counts
    :param has_count: (callback, steps, environments, episodes ended) -> None, has it count
    """

    unseen: Callable[[Any, int], int]
    has_count: Callable[[Any, int, int, int], None]


def _counts_nothing(callback: Any, n_steps: int, n_envs: int, n_ended: int) -> None:
    """Do nothing: the numbers of calls and of steps, which all have, are seen to elsewhere."""


def _never(callback: Any, n_envs: int) -> int:
    return NEVER


def _until_every(frequency: int, n_calls: int) -> int:
    return frequency - 1 - n_calls % frequency if frequency > 0 else NEVER


def _until_trigger(callback: EveryNTimesteps, n_envs: int) -> int:
    missing = callback.last_time_trigger + callback.n_steps - callback.model.num_timesteps
    return max(-(-missing // n_envs) - 1, 0)


def _until_max_episodes(callback: StopTrainingOnMaxEpisodes, n_envs: int) -> int:
    return max(callback._total_max_episodes - callback.n_episodes - 1, 0) // n_envs


def _count_episodes(callback: Any, n_steps: int, n_envs: int, n_ended: int) -> None:
    callback.n_episodes += n_ended


def _move_bar(callback: Any, n_steps: int, n_envs: int, n_ended: int) -> None:
    callback.pbar.update(n_steps * n_envs)


def _until_function(callback: ConvertCallback, n_envs: int) -> int:
    return NEVER if callback.callback is None else 0


def _until_any(callback: CallbackList, n_envs: int) -> int:
    return min((steps_unseen(part, n_envs) for part in callback.callbacks), default=NEVER)


def _count_all(callback: CallbackList, n_steps: int, n_envs: int, n_ended: int) -> None:
    for part in callback.callbacks:
        count_unseen(part, n_steps, n_envs, n_ended)


_RULES: dict[type[BaseCallback], _Rule] = {
    CallbackList: _Rule(_until_any, _count_all),
    ConvertCallback: _Rule(_until_function, _counts_nothing),
    CheckpointCallback: _Rule(
        lambda callback, _: _until_every(callback.save_freq, callback.n_calls), _counts_nothing
    ),
    EvalCallback: _Rule(
        lambda callback, _: _until_every(callback.eval_freq, callback.n_calls), _counts_nothing
    ),
    EventCallback: _Rule(_never, _counts_nothing),
    EveryNTimesteps: _Rule(_until_trigger, _counts_nothing),
    LogEveryNTimesteps: _Rule(_until_trigger, _counts_nothing),
    ProgressBarCallback: _Rule(_never, _move_bar),
    StopTrainingOnMaxEpisodes: _Rule(_until_max_episodes, _count_episodes),
}
remember(BaseCallback)
for _cls in _RULES:
    remember(_cls)


def idle_between_windows(cls: Class) -> Class:
    """Say of a class of callbacks that it does nothing at steps; a decorator."""
    _RULES[cls] = _Rule(_never, _counts_nothing)
    return remember(cls)


def steps_unseen(callback: BaseCallback, n_envs: int) -> int:
    """Return how many of the coming steps a callback only counts.

    :param callback: of a class known here, or of a subclass that leaves alone how it is told of
        steps; of any other it is none
    :param n_envs: number of environments
    """
    rule = _rule(callback)
    if rule is None or not all(map(_leaves_locals, _children(callback))):
        return 0
    return rule.unseen(callback, n_envs)


def count_unseen(callback: BaseCallback, n_steps: int, n_envs: int, n_ended: int) -> None:
    """Let a callback count steps that it was not called at.

    :param callback: whose :func:`steps_unseen` were at least as many
    :param n_steps: steps taken; the model has counted them
    :param n_envs: number of environments
    :param n_ended: episodes that ended at them
    """
    rule = _rule(callback)
    assert rule is not None
    callback.n_calls += n_steps
    callback.num_timesteps = callback.model.num_timesteps
    rule.has_count(callback, n_steps, n_envs, n_ended)


def _rule(callback: BaseCallback) -> _Rule | None:
    known = next((cls for cls in type(callback).__mro__ if cls in _RULES), None)
    if known is None or hasattr(type(callback), "n_calls"):
        return None
    return _RULES[known] if against_methods(callback, _METHODS, known) is None else None


def _children(callback: Any) -> list[Any]:
    """Return the callbacks inside of one that it calls when it acts."""
    found = [getattr(callback, name, None) for name in ("callback", "callback_on_new_best")]
    return [child for child in found if isinstance(child, BaseCallback)]


def _leaves_locals(callback: BaseCallback) -> bool:
    """Tell whether a callback that is not called at a step does nothing with its local names."""
    known = next((cls for cls in type(callback).__mro__ if cls in _RULES), BaseCallback)
    names = ("update_locals", "update_child_locals")
    within = callback.callbacks if isinstance(callback, CallbackList) else _children(callback)
    return against_methods(callback, names, known) is None and all(map(_leaves_locals, within))

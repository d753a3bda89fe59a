"""The loop of learning, for a callback that takes training up where it was interrupted.

A callback of SB3's cannot do that by itself: before it is asked for the first time SB3 has reset
environment, counters and logger; the number of the iteration is a local name of ``learn``; and
nothing is called after ``train()``. So ``learn`` runs the loop below where such a callback is among
those it was given. Without one SB3's own loop runs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EventCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from thrust_pomdp.errors import ArgumentError


class TakesUpTraining(BaseCallback):
    """What the loop asks of the callback for whose sake it is run."""

    @abstractmethod
    def begin(self, model: Any, arguments: dict[str, Any]) -> None:
        """Be told of a call of ``learn``, before anything else is done.

        :param model: that is to learn
        :param arguments: of ``learn``, without the callback
        """

    @abstractmethod
    def restore(self, callback: BaseCallback) -> tuple[int, bool]:
        """Put everything where it was, after all callbacks were told that training starts.

        :param callback: all callbacks, as ``learn`` calls them
        :return: the number of iterations that are done, and whether that was all
        """

    @abstractmethod
    def after_iteration(self, iteration: int) -> None:
        """Be told that a window was collected and trained on."""

    @abstractmethod
    def after_learning(self, iteration: int) -> None:
        """Be told that ``learn`` is done."""

    @abstractmethod
    def leave(self) -> None:
        """Let go of whatever was held, however ``learn`` ends."""


def each_callback(callback: Any, path: str = "") -> Iterator[tuple[str, BaseCallback]]:
    """Go through callbacks and those inside them.

    :param callback: a callback, a list of such, or anything else, which is none
    :return: each with where it is, such as ``0.callback``
    """
    if isinstance(callback, (list, tuple)):
        for number, part in enumerate(callback):
            yield from each_callback(part, f"{path}{number}.")
        return
    if not isinstance(callback, BaseCallback):
        return
    yield path.rstrip("."), callback
    if isinstance(callback, CallbackList):
        yield from each_callback(callback.callbacks, path)
    if isinstance(callback, EventCallback):
        yield from each_callback(callback.callback, f"{path}callback.")
        on_new_best = getattr(callback, "callback_on_new_best", None)
        yield from each_callback(on_new_best, f"{path}callback_on_new_best.")


def find_taking_up(callback: Any) -> TakesUpTraining | None:
    """Return the callback that takes training up, if there is one.

    :raises ValueError: if there are several
    """
    found = [part for _, part in each_callback(callback) if isinstance(part, TakesUpTraining)]
    if len(set(map(id, found))) > 1:
        raise ArgumentError(
            f"callback must hold at most one {type(found[0]).__name__}, got {len(found)}"
        )
    return found[0] if found else None


class LearnsResumably(OnPolicyAlgorithm):
    """How :class:`~thrust_pomdp.ppo.recurrent_ppo.RecurrentPPO` learns with such a callback."""

    def _learn_resumably(
        self,
        checkpoint: TakesUpTraining,
        total_timesteps: int,
        callback: Any,
        log_interval: int,
        tb_log_name: str,
        reset_num_timesteps: bool,
        progress_bar: bool,
    ) -> None:
        """Do what ``OnPolicyAlgorithm.learn`` does, and tell the callback of it."""
        arguments = {
            "total_timesteps": total_timesteps,
            "log_interval": log_interval,
            "reset_num_timesteps": reset_num_timesteps,
        }
        try:
            checkpoint.begin(self, arguments)
            # Users' callbacks read the names of this function as those of SB3's.
            iteration, is_done = 0, False
            total_timesteps, callback = self._setup_learn(
                total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
            )
            callback.on_training_start(locals(), globals())
            assert self.env is not None
            iteration, is_done = checkpoint.restore(callback)
            total_timesteps = self._total_timesteps
            while self.num_timesteps < total_timesteps and not is_done:
                continue_training = self.collect_rollouts(
                    self.env, callback, self.rollout_buffer, n_rollout_steps=self.n_steps
                )
                if not continue_training:
                    break
                iteration += 1
                self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
                if log_interval is not None and iteration % log_interval == 0:
                    self.dump_logs(iteration)
                self.train()
                checkpoint.after_iteration(iteration)
            callback.on_training_end()
            if not is_done:
                checkpoint.after_learning(iteration)
        finally:
            checkpoint.leave()

"""What is noted while a run trains: learning curve and evaluations, at no cost to the training."""

from __future__ import annotations

import contextlib
import copy
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import safe_mean

from thrust_pomdp.experiment.runs import CURVE_EPISODES
from thrust_pomdp.experiment.stopwatch import Stopwatch
from thrust_pomdp.ppo.counting_callbacks import idle_between_windows

#: Points of a learning curve, at most; off-policy algorithms have a rollout every few steps.
_MOST_POINTS = 2000


@idle_between_windows
class CurveCallback(BaseCallback):
    """Records the learning curve at the end of each rollout and reports progress.

    :param report: called with the steps so far
    :param stopwatch: the training's, which a training that is taken up goes on with
    """

    def __init__(self, report: Callable[[int], None], stopwatch: Stopwatch | None = None) -> None:
        super().__init__()
        self.report = report
        self._stopwatch = Stopwatch() if stopwatch is None else stopwatch
        self.curve: list[tuple[int, float]] = []
        self.best = -math.inf
        self._next = 0.0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.num_timesteps < self._next:
            return
        self._next = self.num_timesteps + self.model._total_timesteps / _MOST_POINTS
        episodes = self.model.ep_info_buffer
        if episodes:
            mean = float(safe_mean([episode["r"] for episode in episodes]))
            self.curve.append((self.num_timesteps, mean))
            # The mean of fewer episodes would be a luckier number.
            if len(episodes) == CURVE_EPISODES:
                self.best = max(self.best, mean)
        self.report(self.num_timesteps)

    def get_state(self) -> dict[str, Any]:
        """Return what was recorded, for a checkpoint."""
        return {
            "curve": self.curve,
            "best": self.best,
            "next": self._next,
            "seconds": self._stopwatch.seconds,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.curve = [(step, mean) for step, mean in state["curve"]]
        self.best, self._next = state["best"], state["next"]
        self._stopwatch.go_on_from(state["seconds"])


@idle_between_windows
class EvaluationCallback(BaseCallback):
    """Evaluates between rollouts, evenly over the training, and keeps the time that takes.

    A policy is evaluated after it has learnt from all the steps so far, which is where the next
    rollout starts, and once more at the end.

    :param total: the training's budget in environment steps
    :param count: number of evaluations
    :param stopwatch: the training's, which stands still here
    :param evaluate: returns the means with most likely and with sampled actions
    :param report: called with each evaluation
    """

    def __init__(
        self,
        total: int,
        count: int,
        stopwatch: Stopwatch,
        evaluate: Callable[[], tuple[float, float]],
        report: Callable[[tuple[int, float, float, float]], None],
    ) -> None:
        super().__init__()
        self._marks = [total * (number + 1) / count for number in range(count)]
        self._stopwatch = stopwatch
        self._evaluate = evaluate
        self._report = report
        self.evaluations: list[tuple[int, float, float, float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        # The last mark is for the end, when the policy has learnt from the last rollout too.
        if len(self._marks) > 1 and self.num_timesteps >= self._marks[0]:
            while len(self._marks) > 1 and self.num_timesteps >= self._marks[0]:
                self._marks.pop(0)
            self._note()

    def _on_training_end(self) -> None:
        if self._marks:
            self._note()

    def _note(self) -> None:
        trained = self._stopwatch.seconds
        with self._stopwatch.paused(), without_side_effects(self.model):
            deterministic, stochastic = self._evaluate()
        self.evaluations.append((self.num_timesteps, trained, deterministic, stochastic))
        self._report(self.evaluations[-1])

    def get_state(self) -> dict[str, Any]:
        """Return what was evaluated, for a checkpoint."""
        return {"marks": self._marks, "evaluations": self.evaluations}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._marks = state["marks"]
        self.evaluations = [tuple(evaluation) for evaluation in state["evaluations"]]


@contextlib.contextmanager
def without_side_effects(model: BaseAlgorithm) -> Iterator[None]:
    """Leave generators and the policy's mode as they were: training goes on with them."""
    policy, actions = model.policy, model.action_space.np_random.bit_generator
    acting = copy.deepcopy(getattr(policy, "_acting_noise", None))  # a recurrent policy's own
    mode, drawing = policy.training, actions.state  # DQN explores by its action space
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with th.random.fork_rng(devices=[]):
            yield
    finally:
        policy.set_training_mode(mode)
        if acting is not None:
            policy._acting_noise = acting
        actions.state = drawing
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002

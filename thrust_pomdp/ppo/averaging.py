"""Weights averaged over the end of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from thrust_pomdp.arguments import check_finite_number
from thrust_pomdp.errors import ArgumentError

#: A share of steps is reached when it is, whatever its last digit.
_ROUNDING = 1e-9


class AverageWeights(BaseCallback):
    """Leave the model, at the end of ``learn``, with the mean of its weights over the last steps.

    The policy of the last update is a draw from those around it, some of which act badly; their
    mean acts like the middle of them. This is the averaging of iterates of Polyak and Juditsky
    (1992), for networks that of Izmailov et al. (2018), "Averaging Weights Leads to Wider Optima
    and Better Generalization". No evaluation chooses anything. Every update counts alike, and
    training itself is as without. Each call of ``learn`` averages its own end.

    >>> from thrust_pomdp import AverageWeights
    >>> model.learn(200_000, callback=AverageWeights(last=0.2))  # doctest: +SKIP

    Evaluations while training see the weights as they are. To train on from those of the last
    update, ``model.policy.load_state_dict(callback.last_weights)``.

    :param last: share of the steps over whose updates the mean is taken, above 0 and at most 1
    :raises ValueError: for another share
    """

    def __init__(self, last: float = 0.2) -> None:
        super().__init__()
        self.last = check_finite_number("last", last)
        if not 0 < self.last <= 1:
            raise ArgumentError(f"last must be above 0 and at most 1, got {last!r}")
        #: How many updates are in the mean.
        self.n_updates = 0
        #: The weights after the last update, which the mean took the place of.
        self.last_weights: dict[str, th.Tensor] = {}
        self._sums: dict[str, th.Tensor] = {}
        self._n_seen = 0

    def _on_training_start(self) -> None:
        self.n_updates, self._sums, self.last_weights = 0, {}, {}
        self._n_seen = self._updates_done()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._take_up()

    def _on_training_end(self) -> None:
        self._take_up()
        if not self.n_updates:
            return
        policy = self.model.policy
        weights = policy.state_dict()
        self.last_weights = {name: tensor.clone() for name, tensor in weights.items()}
        means = {name: total / self.n_updates for name, total in self._sums.items()}
        policy.load_state_dict({**weights, **means})

    def _take_up(self) -> None:
        """Add the weights of the update that was made since, if it belongs to the last ones."""
        done = self._updates_done()
        is_new, self._n_seen = done != self._n_seen, done
        model: Any = self.model
        if not is_new or model._current_progress_remaining > self.last + _ROUNDING:
            return
        for name, tensor in model.policy.state_dict().items():
            if tensor.is_floating_point():  # counters and flags have no mean
                told = tensor.detach().double()
                self._sums[name] = self._sums[name] + told if self.n_updates else told.clone()
        self.n_updates += 1

    def _updates_done(self) -> int:
        updates: int = getattr(self.model, "_n_updates", 0)
        return updates

    def get_state(self) -> dict[str, Any]:
        """Return what was summed up, for a checkpoint."""
        sums = {name: total.cpu().numpy() for name, total in self._sums.items()}
        return {"n_updates": self.n_updates, "n_seen": self._n_seen, "sums": sums}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`get_state` returned."""
        self.n_updates, self._n_seen = state["n_updates"], state["n_seen"]
        device = self.model.device
        self._sums = {
            name: th.as_tensor(np.array(total), device=device)
            for name, total in state["sums"].items()
        }

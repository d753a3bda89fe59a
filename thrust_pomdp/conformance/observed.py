"""How the inside of a training is seen from outside.

By SB3's own means alone, so that an algorithm runs as it always does: a callback finds the rollout
buffer as it was collected; ``train()`` is called on copies of it in which numbers were planted; and
what training made of them is read from the log. With a learning rate of 0 that changes nothing.

With the advantage 1 at one step and 0 at all others, and the old log-probability there lowered by
ln 2, PPO's policy loss is ``-2 * ratio / n`` of that step; with a return that is the old value plus
1 there, and the old value elsewhere, the value loss tells the new value of that step. Asking so for
each step gives the log-probabilities and values that training computed.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback

from thrust_pomdp.conformance.probe import N_ENVS, N_STEPS
from thrust_pomdp.conformance.report import NotObservableError

Array = NDArray[Any]

POLICY_LOSS, VALUE_LOSS = "train/policy_gradient_loss", "train/value_loss"
#: Value changes beyond this are clipped, so that a planted old value can silence a step.
CLIP_RANGE_VF = 100.0


class Collected(NamedTuple):
    """A window as it was collected; each ``[n_steps, n_envs, ...]``."""

    observations: Array
    actions: Array
    rewards: Array
    episode_starts: Array
    values: Array
    log_probs: Array
    advantages: Array
    returns: Array


class Outputs(NamedTuple):
    """What a policy made of a window's observations.

    :param values: ``[n_steps, n_envs]``
    :param firsts: probability of the first of two actions, ``[n_steps, n_envs]``
    """

    values: Array
    firsts: Array


def collected(buffer: Any) -> Collected:
    """Read a buffer that has just been filled.

    :raises NotObservableError: if it is not laid out as SB3's
    """
    parts = []
    for name in Collected._fields:
        if not hasattr(buffer, name):
            raise NotObservableError(f"rollout_buffer has no {name}, which SB3's has")
        part = np.array(getattr(buffer, name))
        if part.shape[:2] != (N_STEPS, N_ENVS):
            raise NotObservableError(
                f"rollout_buffer.{name} is not [n_steps={N_STEPS}, n_envs={N_ENVS}, ...] after "
                f"collecting, as SB3's is, but {part.shape}"
            )
        parts.append(part)
    return Collected(*parts)


def outputs(window: Collected, values: Array | None = None, log_probs: Array | None = None) -> Any:
    """Return what the policy made of a window: while collecting, or with other numbers for it."""
    log_probs = window.log_probs if log_probs is None else log_probs
    is_first = window.actions.reshape(N_STEPS, N_ENVS) == 0
    firsts = np.where(is_first, np.exp(log_probs), -np.expm1(log_probs))
    return Outputs(window.values if values is None else values, firsts)


class AtWindowsEnd(BaseCallback):
    """Calls a function when a window is full, before the algorithm trains on it.

    :param look: is given the model; what it returns is kept
    """

    def __init__(self, look: Callable[[Any], Any]) -> None:
        super().__init__()
        self._look = look
        self.found: list[Any] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.found.append(self._look(self.model))


@contextmanager
def generators_kept() -> Iterator[None]:
    """Leave the global generators as they were."""
    state: Any = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with th.random.fork_rng(devices=()):
            yield
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])  # noqa: NPY002


def train_on(model: Any, change: Callable[[Any], None]) -> tuple[float, float]:
    """Let the model train on a changed copy of its buffer.

    :param model: whose buffer is full, and has not been trained on
    :param change: is given the copy
    :return: policy loss and value loss
    :raises NotObservableError: if the buffer cannot be copied, or the losses are not logged
    """
    whole, logged = model.rollout_buffer, model.logger.name_to_value
    try:
        model.rollout_buffer = copy.deepcopy(whole)
    except Exception as error:
        raise NotObservableError(f"its rollout_buffer cannot be copied ({error})") from error
    try:
        change(model.rollout_buffer)
        for name in (POLICY_LOSS, VALUE_LOSS):
            logged.pop(name, None)
        with generators_kept():  # the next copy is cut and shuffled as this one
            model.train()
        if POLICY_LOSS not in logged or VALUE_LOSS not in logged:
            raise NotObservableError(f"train() does not log {POLICY_LOSS} and {VALUE_LOSS}")
        return float(logged[POLICY_LOSS]), float(logged[VALUE_LOSS])
    finally:
        model.rollout_buffer = whole


class Spoken(NamedTuple):
    """What training said of each step when it was asked for that step alone.

    :param uses: how often it was used times its ratio, by the policy loss, ``[n_steps, n_envs]``
    :param value_uses: how often, by the value loss, times the square of 1 minus what the value
        changed by
    :param value_errors: what the value changed by, if each step is used once
    """

    uses: Array
    value_uses: Array
    value_errors: Array


class Minibatches(NamedTuple):
    """How training cuts a window into minibatches.

    :param said: what it said of each step
    :param number: of minibatches in an epoch
    :param size: steps of the first of them
    """

    said: Spoken
    number: int
    size: float


def minibatches_of(model: Any) -> Minibatches:
    """Ask training how it cuts a window.

    :raises NotObservableError: if it has no ``policy.optimizer`` that counts its steps
    """
    before = _optimizer_steps(model)
    train_on(model, lambda buffer: None)
    number = _optimizer_steps(model) - before
    said = ask_each_step(model)
    return Minibatches(said, number, _first_size(model, said.uses))


def _optimizer_steps(model: Any) -> int:
    optimizer = getattr(model.policy, "optimizer", None)
    if optimizer is None:
        raise NotObservableError("it has no policy.optimizer")
    return max((int(state.get("step", 0)) for state in optimizer.state.values()), default=0)


def _first_size(model: Any, ratios: Array) -> float:
    """Return the size of an epoch's first minibatch: the only one where training is stopped early.

    All ratios are planted to be far from 1. A step that is in it then has a share of its loss.
    Steps that are not used, or whose ratio is no number, say nothing.

    :param ratios: of the steps, without what is planted
    """
    kept, model.target_kl = model.target_kl, 1e-3
    shares: list[float] = []
    try:
        for place in map(tuple, np.argwhere(ratios > 1e-3)):

            def single_out(buffer: Any, place: tuple[int, ...] = place) -> None:
                buffer.advantages[...] = 0
                buffer.advantages[place] = 1
                buffer.log_probs[...] -= math.log(2)

            shares.append(-train_on(model, single_out)[0] / (2 * ratios[place]))
    finally:
        model.target_kl = kept
    if max(shares, default=0) < 1e-3:
        raise NotObservableError("where target_kl stops its training no loss is logged")
    return float(1 / max(shares))


def ask_each_step(model: Any) -> Spoken:
    """Ask training for each step by itself."""
    size = N_STEPS * N_ENVS

    def silence(buffer: Any) -> None:
        buffer.advantages[...] = 0
        buffer.returns[...] = buffer.values

    _, rest = train_on(model, silence)
    uses, value_uses = np.zeros((N_STEPS, N_ENVS)), np.zeros((N_STEPS, N_ENVS))
    for place in np.ndindex(N_STEPS, N_ENVS):

        def single_out(buffer: Any, place: tuple[int, ...] = place) -> None:
            silence(buffer)
            buffer.advantages[place] = 1
            buffer.log_probs[place] -= math.log(2)
            buffer.returns[place] += 1

        policy_loss, value_loss = train_on(model, single_out)
        uses[place] = -policy_loss * size / 2
        value_uses[place] = (value_loss - rest) * size
    return Spoken(uses, value_uses, (1 - value_uses) / 2)


def recomputed(model: Any) -> Outputs:
    """Return what training computes of the window, with weights as they were while collecting."""
    window, said = collected(model.rollout_buffer), ask_each_step(model)
    with np.errstate(all="ignore"):  # a ratio that is not above 0 shows as NaN
        log_probs = window.log_probs + np.log(said.uses)
    found: Outputs = outputs(window, window.values + said.value_errors, log_probs)
    return found


def gradients_of(model: Any, asked: NDArray[np.bool_]) -> dict[str, th.Tensor]:
    """Return the gradient that some steps of the window give by themselves.

    :param asked: which steps, ``[n_steps, n_envs]``
    :raises NotObservableError: if ``train()`` leaves no gradients behind
    """
    weights = np.random.default_rng(1).uniform(1, 2, asked.shape)

    def silence_others(buffer: Any) -> None:
        buffer.advantages[...] = np.where(asked, weights, 0)
        buffer.returns[...] = buffer.values - weights
        # The clipped change of a value has no gradient.
        buffer.values[...] = np.where(asked, buffer.values, buffer.values + 10 * CLIP_RANGE_VF)

    train_on(model, silence_others)
    named = model.policy.named_parameters()
    found = {name: p.grad.clone() for name, p in named if p.grad is not None}
    if not any(bool(gradient.any()) for gradient in found.values()):
        raise NotObservableError("train() leaves no gradients in policy.parameters()")
    return found

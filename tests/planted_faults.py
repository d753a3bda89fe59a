"""Faults that recurrent PPO is known for, to be planted in any algorithm of SB3's kind.

Each is a change of a model, its policy or its buffer that goes by SB3's names, so that the same
fault is planted in sb3-contrib's algorithm and in ours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch as th


def _laid_over(known, mixin):
    """Return a twin of an object, with further methods."""
    faulty = type(f"Faulty{type(known).__name__}", (mixin, type(known)), {})
    twin = faulty.__new__(faulty)
    vars(twin).update(vars(known))
    return twin


def with_policy(model, mixin):
    """Give a model's policy further methods."""
    model.policy = _laid_over(model.policy, mixin)
    return model


def with_buffer(model, mixin):
    """Give a model's buffer further methods."""
    model.rollout_buffer = _laid_over(model.rollout_buffer, mixin)
    return model


with_methods = _laid_over


def map_states(function, states):
    return type(states)(*(tuple(function(part) for part in member) for member in states))


class StartsComeLate:
    """Episode starts are those of the step before."""

    @property
    def _last_episode_starts(self):
        return vars(self).get("_late")

    @_last_episode_starts.setter
    def _last_episode_starts(self, starts):
        before = vars(self).get("_given")
        vars(self).update(_given=starts, _late=starts if before is None else before)


class _StartsAfterSome:
    """Some episodes end without the next one beginning."""

    forgets_truncated = False

    @property
    def _last_episode_starts(self):
        return vars(self).get("_starts")

    @_last_episode_starts.setter
    def _last_episode_starts(self, starts):
        if starts is not None and vars(self).get("_starts") is not None:
            truncated = [info.get("TimeLimit.truncated", False) for info in self.env.buf_infos]
            starts = starts & (np.array(truncated) != self.forgets_truncated)
        vars(self)["_starts"] = starts


class TruncatedGoesOn(_StartsAfterSome):
    forgets_truncated = True


class TerminatedGoesOn(_StartsAfterSome):
    """Memory outlives termination."""


class EarlyInTraining:
    """Training clears memory one step before episodes start, too."""

    def evaluate_actions(self, obs, actions, lstm_states, episode_starts):
        early = th.maximum(episode_starts, th.roll(episode_starts, -1))
        return super().evaluate_actions(obs, actions, lstm_states, early)


class ForgetsStoredStates:
    """Training starts each sequence from zero, whatever entered it."""

    def evaluate_actions(self, obs, actions, lstm_states, episode_starts):
        zeros = map_states(th.zeros_like, lstm_states)
        return super().evaluate_actions(obs, actions, zeros, episode_starts)


class RollsStates:
    """While collecting each environment gets another's memory."""

    def forward(self, obs, lstm_states=None, episode_starts=None, deterministic=False):
        rolled = map_states(lambda part: th.roll(part, 1, dims=1), lstm_states)
        return super().forward(obs, rolled, episode_starts, deterministic)


class Leaks:
    """Clearing leaves a millionth of the memory."""

    def forward(self, obs, lstm_states=None, episode_starts=None, deterministic=False):
        kept = 1 - 0.999999 * episode_starts.float()
        states = map_states(lambda part: part * kept[:, None], lstm_states)
        return super().forward(obs, states, th.zeros_like(episode_starts), deterministic)


class _FinalValues:
    """Values of fewer observations than there are environments are those of final ones."""

    n_envs = 4

    def final_values(self, obs, lstm_states, episode_starts):
        raise NotImplementedError

    def predict_values(self, obs, lstm_states, episode_starts):
        if len(obs) < self.n_envs:
            return self.final_values(obs, lstm_states, episode_starts)
        return super().predict_values(obs, lstm_states, episode_starts)


class NoBootstrap(_FinalValues):
    def final_values(self, obs, lstm_states, episode_starts):
        return th.zeros(len(obs), 1)


class BootstrapsWithoutMemory(_FinalValues):
    def final_values(self, obs, lstm_states, episode_starts):
        beyond = super(_FinalValues, self)
        return beyond.predict_values(obs, lstm_states, th.ones_like(episode_starts))


class BootstrapsTheDead:
    """The window's last values count also where episodes ended on its last step."""

    def compute_returns_and_advantage(self, last_values, dones):
        super().compute_returns_and_advantage(last_values, np.zeros_like(dones))


class GoesOnAfterEnds:
    """Returns go on from an episode into the next one."""

    def compute_returns_and_advantage(self, last_values, dones):
        kept, self.episode_starts = self.episode_starts, np.zeros_like(self.episode_starts)
        super().compute_returns_and_advantage(last_values, dones)
        self.episode_starts = kept


class StoresEarlierStates:
    """The states that are stored are those of the step before."""

    _states = None

    def add(self, *args, lstm_states=None, **kwargs):
        stored = lstm_states if self._states is None else self._states
        super().add(*args, lstm_states=stored, **kwargs)
        self._states = lstm_states


class LosesTheLastEnd:
    """An episode that ends on a window's last step does not start the next one."""

    def collect_rollouts(self, env, *args, **kwargs):
        if self.num_timesteps:
            self._last_episode_starts = np.zeros(env.num_envs, dtype=bool)
        return super().collect_rollouts(env, *args, **kwargs)


class TheirsTwice:
    """Each of sb3-contrib's minibatches comes twice."""

    def get(self, batch_size=None):
        for samples in super().get(batch_size):
            yield samples
            if batch_size and batch_size < self.buffer_size * self.n_envs:
                yield samples


class OursTwice:
    """Our minibatches come twice, others instead not at all."""

    def to_minibatches(self, envs_per_minibatch, shuffle=True):
        batches = list(super().to_minibatches(envs_per_minibatch, shuffle))
        yield from (batches[0], *batches[:-1])


class TheirsTransposed:
    """sb3-contrib's flat rows run over environments first."""

    @staticmethod
    def swap_and_flatten(arr):
        return arr.reshape(-1, *arr.shape[2:] or (1,))


class OursTransposed:
    """Our windows are rows of the storage, whatever they hold."""

    def _env_major(self, array):
        steps, envs = array.shape[:2]
        return th.as_tensor(array).reshape(envs, steps, *array.shape[2:]).clone()


class AdvantagesElsewhere:
    """Advantages and returns belong to other steps than the rest."""

    def swap_and_flatten(self, arr):
        if arr is self.advantages:
            return arr.reshape(-1, 1)
        return super().swap_and_flatten(arr)

    def to_sequence_batch(self, valid_steps=None):
        batch = super().to_sequence_batch(valid_steps)
        return batch._replace(advantages=batch.advantages.roll(1, dims=1))


class StoresLateRewards:
    """Rewards are stored a step late."""

    _reward = 0.0

    def add(self, obs, action, reward, *args, **kwargs):
        super().add(obs, action, self._reward + 0 * reward, *args, **kwargs)
        self._reward = reward


class StaleEvaluation:
    """``predict`` goes on from what it remembers of earlier calls where no state is given."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        if state is None and vars(self).get("_stale") is not None:
            state, episode_start = self._stale, None
        action, state = super().predict(observation, state, episode_start, deterministic)
        self._stale = state if np.shape(state[0])[1] == 4 else None
        return action, state


class EvaluationForgetsStarts:
    """``predict`` keeps its memory from episode to episode."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        if state is not None:
            episode_start = None
        return super().predict(observation, state, episode_start, deterministic)


class EvaluationChangesWeights:
    """``predict`` changes a weight."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        with th.no_grad():
            next(iter(self.policy.parameters())).mul_(0.999)
        return super().predict(observation, state, episode_start, deterministic)


class LosesMemoryWeights:
    """``load`` leaves the memory's weights as they are made."""

    @classmethod
    def load(cls, path, env=None, **kwargs):
        model = super().load(path, env=env, **kwargs)
        with th.no_grad():
            for name, weight in model.policy.named_parameters():
                if "lstm" in name:
                    weight.uniform_(-0.2, 0.2)
        return model


class Planted(NamedTuple):
    """A fault that is planted.

    :param law: that names it
    :param theirs: what is laid over sb3-contrib's algorithm, and where
    :param ours: what is laid over ours
    """

    law: str
    theirs: tuple
    ours: tuple


def _both(law, plant, mixin):
    return Planted(law, (plant, mixin), (plant, mixin))


def with_seed(model_of, seed):
    """Make models whose seed is always the same."""
    return lambda env, **kwargs: model_of(env, **{**kwargs, "seed": seed})


def planted_in(make_model, planted, library):
    """Return what makes models with a fault.

    :param library: ``"theirs"`` or ``"ours"``
    """
    plant, what = getattr(planted, library)
    if plant is with_seed:
        return with_seed(make_model, what)
    return lambda env, **kwargs: plant(make_model(env, **kwargs), what)


PLANTED = {
    "memory is cleared one step late": _both(
        "reset at the right step", with_methods, StartsComeLate
    ),
    "training clears memory one step early, too": _both(
        "reset at the right step", with_policy, EarlyInTraining
    ),
    "memory outlives truncation": _both("reset on truncated", with_methods, TruncatedGoesOn),
    "memory outlives termination": _both("reset on terminated", with_methods, TerminatedGoesOn),
    "no bootstrap at truncation": _both("bootstrap at truncation", with_policy, NoBootstrap),
    "a bootstrap without memory": _both(
        "bootstrap at truncation", with_policy, BootstrapsWithoutMemory
    ),
    "a bootstrap after termination at a window's end": _both(
        "returns and advantages", with_buffer, BootstrapsTheDead
    ),
    "returns go on into the next episode": _both(
        "returns and advantages", with_buffer, GoesOnAfterEnds
    ),
    "an end on a window's last step is lost": _both(
        "reset on terminated", with_methods, LosesTheLastEnd
    ),
    "stored states are those of the step before": _both(
        "first pass", with_buffer, StoresEarlierStates
    ),
    "training starts sequences from zero": _both("first pass", with_policy, ForgetsStoredStates),
    "environments get each other's memory": _both("axis order of state", with_policy, RollsStates),
    "the batch is transposed": Planted(
        "axis order of batch", (with_buffer, TheirsTransposed), (with_buffer, OursTransposed)
    ),
    "advantages belong to other steps": _both(
        "axis order of batch", with_buffer, AdvantagesElsewhere
    ),
    "rewards are stored a step late": _both("axis order of batch", with_buffer, StoresLateRewards),
    "minibatches come twice": Planted(
        "one use of each step", (with_buffer, TheirsTwice), (with_buffer, OursTwice)
    ),
    "a millionth of memory outlives episodes": _both("no leak", with_policy, Leaks),
    "evaluation starts with stale memory": _both(
        "memory at evaluation", with_methods, StaleEvaluation
    ),
    "evaluation never clears memory": _both(
        "memory at evaluation", with_methods, EvaluationForgetsStarts
    ),
    "evaluation changes weights": _both(
        "memory at evaluation", with_methods, EvaluationChangesWeights
    ),
    "the seed is not used": _both("determinism", with_seed, None),
    "all seeds are one": _both("determinism", with_seed, 3),
    "the memory's weights are not loaded": _both("save and load", with_methods, LosesMemoryWeights),
}

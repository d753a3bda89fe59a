"""SB3's categorical and Gaussian distributions in plain tensor operations.

SB3 builds and validates a torch distribution object at every call, which costs more than the
network of a small policy. The numbers here are the same to rounding, and torch's global generator
is used alike.
"""

from __future__ import annotations

import math
from typing import Any, Self

import torch as th
from stable_baselines3.common.distributions import (
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    sum_independent_dims,
)
from torch.distributions import Categorical, Normal

from thrust_pomdp.as_written import against_methods, remember


def _checked(given: Any, kind: type[Any]) -> Any:
    if type(given) is not kind:
        raise ValueError(
            f"distribution must be a torch.distributions.{kind.__name__}, got {given!r}: for "
            "another kind give the policy an action_dist of its own"
        )
    return given


class PlainCategoricalDistribution(CategoricalDistribution):
    """What SB3's ``CategoricalDistribution`` gives, without a torch ``Categorical`` per call."""

    def proba_distribution(self, action_logits: th.Tensor) -> Self:
        """Set the logits, ``[rows, n_actions]``."""
        self.logits = action_logits
        self._log_probs: th.Tensor | None = None
        return self

    @property
    def log_probs(self) -> th.Tensor:
        """The log-probabilities of all actions, ``[rows, n_actions]``."""
        if self._log_probs is None:
            self._log_probs = th.log_softmax(self.logits, dim=-1)
        return self._log_probs

    @property
    def distribution(self) -> Categorical:
        """The torch distribution, for programs that look into it; another may be assigned."""
        return Categorical(logits=self.log_probs)

    @distribution.setter
    def distribution(self, given: Categorical) -> None:
        self.proba_distribution(_checked(given, Categorical).logits)

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        """Return the log-probabilities of ``[rows]`` actions.

        Shapes broadcast as torch's ``Categorical`` has it: one row of logits serves many actions.
        """
        index, log_probs = actions.long().unsqueeze(-1), self.log_probs
        if index.shape[:-1] != log_probs.shape[:-1]:
            index, log_probs = th.broadcast_tensors(index, log_probs)  # type: ignore[no-untyped-call]
            index = index[..., :1]
        return log_probs.gather(-1, index).squeeze(-1)

    def entropy(self) -> th.Tensor:
        """Return the entropies, ``[rows]``."""
        # An impossible action has log-probability -inf and adds nothing: 0 * -inf would be NaN.
        finite = self.log_probs.clamp(min=th.finfo(self.log_probs.dtype).min)
        return -(finite * finite.exp()).sum(dim=-1)

    def sample(self) -> th.Tensor:
        """Draw actions, ``[rows]``."""
        # The exponential race: argmax of p / E with E ~ Exp(1) draws from p. It is what
        # th.multinomial does for one sample, without its checks of the probabilities.
        race = th.empty_like(self.log_probs).exponential_()
        return self.log_probs.detach().exp().div_(race).argmax(dim=-1)

    def mode(self) -> th.Tensor:
        """Return the most likely actions, ``[rows]``."""
        return self.log_probs.argmax(dim=-1)


#: Differential entropy of a standard normal variable, and minus the log of its density at 0.
_ENTROPY = 0.5 + 0.5 * math.log(2 * math.pi)
_LOG_NORMALIZER = 0.5 * math.log(2 * math.pi)


class PlainDiagGaussianDistribution(DiagGaussianDistribution):
    """What SB3's ``DiagGaussianDistribution`` gives, without a torch ``Normal`` per call."""

    def proba_distribution(self, mean_actions: th.Tensor, log_std: th.Tensor) -> Self:
        """Set means ``[rows, action_dim]`` and log standard deviations.

        :param log_std: ``[action_dim]``, or whatever broadcasts with the means: a spread of its own
            for each row
        """
        if log_std.ndim != 1 or log_std.shape != mean_actions.shape[1:]:
            mean_actions, log_std = th.broadcast_tensors(  # type: ignore[no-untyped-call]
                mean_actions, log_std
            )
        self.mean, self.log_std = mean_actions, log_std
        return self

    @property
    def distribution(self) -> Normal:
        """The torch distribution, for programs that look into it; another may be assigned."""
        return Normal(self.mean, self.log_std.exp().expand_as(self.mean))

    @distribution.setter
    def distribution(self, given: Normal) -> None:
        normal = _checked(given, Normal)
        self.proba_distribution(normal.loc, normal.scale.log())

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        """Return the log-densities of ``[rows, action_dim]`` actions."""
        scaled = (actions - self.mean) * (-self.log_std).exp()
        if self.log_std.ndim == 1 < scaled.ndim:  # one spread for all rows: its sum is one number
            normalizer = self.log_std.sum() + len(self.log_std) * _LOG_NORMALIZER
            return scaled.square().sum(dim=1) * -0.5 - normalizer
        return sum_independent_dims(scaled.square() * -0.5 - self.log_std - _LOG_NORMALIZER)

    def entropy(self) -> th.Tensor:
        """Return the entropies, ``[rows]``."""
        if self.log_std.ndim == 1 < self.mean.ndim:  # the same number for all
            entropy = self.log_std.sum() + len(self.log_std) * _ENTROPY
            return entropy.expand(len(self.mean))
        return sum_independent_dims(self.log_std + _ENTROPY)

    def sample(self) -> th.Tensor:
        """Draw actions, ``[rows, action_dim]``."""
        return self.mean + th.empty_like(self.mean).normal_() * self.log_std.exp()

    def mode(self) -> th.Tensor:
        """Return the most likely actions, ``[rows, action_dim]``."""
        return self.mean


#: Methods of a plain distribution for which faster ways stand in, by its class.
PLAIN_METHODS: dict[type[Distribution], tuple[str, ...]] = dict.fromkeys(
    map(remember, (PlainCategoricalDistribution, PlainDiagGaussianDistribution)),
    ("proba_distribution", "log_prob", "entropy", "sample", "mode", "get_actions"),
)


def is_plain_object(distribution: Distribution) -> bool:
    """Tell whether a distribution is SB3's or one of this package, its methods those of its class.

    A copy then does what the object does.
    """
    is_known = type(distribution).__module__.split(".")[0] in ("stable_baselines3", "thrust_pomdp")
    return is_known and not any(map(callable, vars(distribution).values()))


def against_plain(distribution: Distribution) -> str | None:
    """Say why a distribution is not one of this package's plain ones, as they were written."""
    methods = PLAIN_METHODS.get(type(distribution))
    if methods is None:
        return f"actions are drawn from a {type(distribution).__name__}"
    return against_methods(distribution, methods, type(distribution))

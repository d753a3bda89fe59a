"""SB3's categorical distribution in plain tensor operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch as th
from stable_baselines3.common.distributions import CategoricalDistribution
from torch.distributions import Categorical

if TYPE_CHECKING:
    from typing_extensions import Self


class PlainCategoricalDistribution(CategoricalDistribution):
    """What SB3's ``CategoricalDistribution`` gives, without a torch ``Categorical`` per call.

    Building and validating that object costs more than the network of a small policy. The numbers
    are the same to rounding, and torch's global generator is used alike.
    """

    def proba_distribution(self, action_logits: th.Tensor) -> Self:
        """Set the logits, ``[rows, n_actions]``."""
        self.log_probs = th.log_softmax(action_logits, dim=-1)
        return self

    @property
    def distribution(self) -> Categorical:  # type: ignore[override]
        """The torch distribution, for programs that look into it."""
        return Categorical(logits=self.log_probs)

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        """Return the log-probabilities of ``[rows]`` actions."""
        index = actions.long().reshape(-1, 1)
        return self.log_probs.gather(1, index).squeeze(1)

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
        return self.log_probs.argmax(dim=1)

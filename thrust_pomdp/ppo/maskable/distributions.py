"""Distributions of actions some of which cannot be taken.

They are those of the plain policies on logits that are minus infinity where masked, so that a
masked action has probability exactly 0, whatever the other logits are. (``sb3_contrib`` writes
-1e8, which an allowed logit may fall below.) With masks that allow everything, every number is the
plain policy's, bit for bit.
"""

from __future__ import annotations

from typing import Any, Self

import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution

from thrust_pomdp.ppo.distributions import (
    DRAWING_METHODS,
    PLAIN_METHODS,
    DrawnBernoulliDistribution,
    DrawnMultiCategoricalDistribution,
    PlainCategoricalDistribution,
)
from thrust_pomdp.unmodified_classes import remember


class MaskableDistribution(Distribution):
    """What the distributions have in common; mixed in before SB3's class."""

    #: What may be done, ``[rows, width]`` bool; None where everything may.
    masks: th.Tensor | None = None
    _unmasked: th.Tensor

    def proba_distribution(self, action_logits: th.Tensor, masks: th.Tensor | None = None) -> Self:
        """Set logits ``[rows, ...]`` and masks ``[rows, width]``, bool."""
        if masks is not None and len(masks) != len(action_logits):
            raise ValueError(
                f"action_masks must have one row per observation, {len(action_logits)}, got "
                f"{len(masks)}"
            )
        self._unmasked, self.masks = action_logits, masks
        return super().proba_distribution(self._masked(action_logits))  # type: ignore[safe-super]

    def apply_masking(self, masks: Any) -> None:
        """Put other masks on the same logits; None takes them away."""
        if masks is not None:
            masks = th.as_tensor(masks, dtype=th.bool, device=self._unmasked.device)
            masks = masks.reshape(len(self._unmasked), -1)
        self.proba_distribution(self._unmasked, masks)

    def _masked(self, action_logits: th.Tensor) -> th.Tensor:
        if self.masks is None:
            return action_logits
        return action_logits.masked_fill(~self.masks, -th.inf)


class MaskableCategoricalDistribution(MaskableDistribution, PlainCategoricalDistribution):
    """For Discrete actions."""


class MaskableMultiCategoricalDistribution(MaskableDistribution, DrawnMultiCategoricalDistribution):
    """For MultiDiscrete actions: single choices that know nothing of one another."""


class MaskableBernoulliDistribution(MaskableDistribution, DrawnBernoulliDistribution):
    """For MultiBinary actions: a bit that may take one value only is certain of it.

    There is one logit for each bit, as in the plain policies; ``sb3_contrib``'s have two.
    """

    def _masked(self, action_logits: th.Tensor) -> th.Tensor:
        # An infinite logit for a certain bit would make torch compute inf * 0.
        if self.masks is not None:
            may_be_0, may_be_1 = self.masks.view(len(action_logits), -1, 2).unbind(dim=2)
            self._free, self._certain = may_be_0 & may_be_1, may_be_1.to(action_logits.dtype)
        return action_logits

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        """Return the log-probabilities of ``[rows, n_bits]`` actions."""
        if self.masks is None:
            return super().log_prob(actions)
        certain = th.zeros_like(self._certain).masked_fill(actions != self._certain, -th.inf)
        free: th.Tensor = self.distribution.log_prob(actions)  # type: ignore[no-untyped-call]
        return th.where(self._free, free, certain).sum(dim=1)

    def entropy(self) -> th.Tensor:
        """Return the entropies, ``[rows]``."""
        if self.masks is None:
            return super().entropy()
        free: th.Tensor = self.distribution.entropy()  # type: ignore[no-untyped-call]
        return free.masked_fill(~self._free, 0.0).sum(dim=1)

    def sample(self) -> th.Tensor:
        """Draw actions, ``[rows, n_bits]``."""
        return self._with_certain(super().sample())

    def mode(self) -> th.Tensor:
        """Return the most likely actions, ``[rows, n_bits]``."""
        return self._with_certain(super().mode())

    def _with_certain(self, actions: th.Tensor) -> th.Tensor:
        return actions if self.masks is None else th.where(self._free, actions, self._certain)


def make_maskable_distribution(action_space: spaces.Space[Any]) -> MaskableDistribution:
    """Return the distribution for an action space.

    :param action_space: one that :class:`~thrust_pomdp.ppo.maskable.masks.MaskLayout` takes
    """
    if isinstance(action_space, spaces.Discrete):
        return MaskableCategoricalDistribution(int(action_space.n))
    if isinstance(action_space, spaces.MultiDiscrete):
        return MaskableMultiCategoricalDistribution([int(size) for size in action_space.nvec])
    assert isinstance(action_space, spaces.MultiBinary)
    assert isinstance(action_space.n, int)
    return MaskableBernoulliDistribution(action_space.n)


_MASKING = ("apply_masking", "_masked")
PLAIN_METHODS[remember(MaskableCategoricalDistribution)] = (
    *PLAIN_METHODS[PlainCategoricalDistribution],
    *_MASKING,
)
for _cls in (
    MaskableCategoricalDistribution,
    MaskableMultiCategoricalDistribution,
    MaskableBernoulliDistribution,
):
    DRAWING_METHODS[remember(_cls)] = (*DRAWING_METHODS[PlainCategoricalDistribution], *_MASKING)

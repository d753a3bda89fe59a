"""SB3's distributions, drawn by the random numbers of this package's: the definition, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
)

from thrust_pomdp.ppo.action_noise import ActionNoise, present_noise


def chosen_by_hand(probabilities: Any, uniforms: Any) -> NDArray[np.int64]:
    """Return where uniform numbers ``[rows]`` fall on cumulated probabilities ``[rows, n]``."""
    choices = []
    for row, uniform in zip(np.asarray(probabilities, np.float64), uniforms, strict=True):
        sums = np.cumsum(row)
        choices.append(np.searchsorted(sums, uniform * sums[-1], side="right"))
    return np.array(choices)


def drawn_by_hand(distribution: Distribution, noise: ActionNoise) -> th.Tensor:
    """Return the actions that SB3's distribution gives by the numbers of a step."""
    inner: Any = distribution.distribution
    if isinstance(distribution, CategoricalDistribution):
        probabilities = inner.probs.detach().numpy()
        return th.from_numpy(chosen_by_hand(probabilities, noise.uniforms(1)[:, 0]))
    if isinstance(distribution, MultiCategoricalDistribution):
        numbers = noise.uniforms(len(inner)).T
        choices = [
            chosen_by_hand(one.probs.detach().numpy(), u)
            for one, u in zip(inner, numbers, strict=True)
        ]
        return th.from_numpy(np.stack(choices, axis=1))
    if isinstance(distribution, BernoulliDistribution):
        bits = noise.uniforms(inner.probs.shape[1]) < inner.probs.detach().numpy()
        return th.from_numpy(bits.astype(np.float32))
    assert isinstance(distribution, DiagGaussianDistribution)
    numbers = th.from_numpy(noise.normals(inner.loc.shape[1])).to(inner.loc.dtype)
    return inner.loc + inner.scale * numbers


def draw_alike(distribution: Any, noise: ActionNoise | None = None) -> Any:
    """Let an object draw by the numbers that this package's distributions draw by.

    :param distribution: SB3's; it is changed
    :param noise: whose numbers, a step of them for each draw; those of the step that a policy of
        this package takes just then by default
    """
    theirs = type(distribution)

    class DrawsAlike(theirs):
        def sample(self) -> th.Tensor:
            if noise is not None:
                noise.begin()
                actions = drawn_by_hand(self, noise)
                noise.advance()
                return actions
            inner = self.distribution
            rows = len(inner.mean if hasattr(inner, "mean") else inner[0].probs)
            present = present_noise(rows)
            return super().sample() if present is None else drawn_by_hand(self, present)

    distribution.__class__ = DrawsAlike
    return distribution

"""Acting by random numbers that the caller has drawn, in the place of the policy's own streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.ppo.action_noise import Conversion, drawing_from
from thrust_pomdp.ppo.distributions import against_ours, ours_for
from thrust_pomdp.ppo.prediction import PredictingPolicy

Numbers = NDArray[np.float64]


class GivenNoise:
    """Random numbers of one step, where ``ActionNoise`` is expected.

    :param numbers: ``[n_envs, width]``
    """

    def __init__(self, numbers: Numbers) -> None:
        self._numbers, self.n_envs = numbers, len(numbers)
        self.was_used = False

    def begin(self) -> None:
        """Begin the step."""

    def advance(self) -> None:
        """Go on: there is no next step."""

    def uniforms(self, width: int, how: Conversion | None = None) -> Any:
        """Return the numbers, for choices and bits."""
        return self._given(width, how)

    def normals(self, width: int, how: Conversion | None = None) -> Any:
        """Return the numbers, for continuous actions."""
        return self._given(width, how)

    def _given(self, width: int, how: Conversion | None) -> Any:
        if self.was_used or self._numbers.shape[1] != width:
            raise ArgumentError(
                f"noise must be None for a policy that draws more than an action in a step: it "
                f"asks for {width} more numbers"
            )
        self.was_used = True
        return self._numbers if how is None else how(self._numbers)


@contextmanager
def acting_by(model: Any, noise: Any, n_envs: int) -> Iterator[None]:
    """Let a model's next action be decided by given numbers.

    :param model: a model or a policy
    :param noise: ``[n_envs, width]``, or ``[width]`` of one environment: a uniform number from
        [0, 1) for each choice or bit, a standard normal one for each continuous dimension
    :raises ValueError: for numbers that do not fit, and models that draw otherwise
    """
    policy: Any = getattr(model, "policy", model)
    given: Any = GivenNoise(_checked(policy, noise, n_envs))
    before = policy.action_dist
    if isinstance(policy, PredictingPolicy):
        stream, policy._acting_noise = policy._acting_noise, given
        try:
            yield
        finally:
            policy._acting_noise = stream
    else:
        policy.action_dist = ours_for(before)
        try:
            with drawing_from(given):
                yield
        finally:
            policy.action_dist = before
    if not given.was_used:
        raise ArgumentError("noise must be None for a model that does not sample its actions by it")


def _checked(policy: Any, noise: Any, n_envs: int) -> Numbers:
    distribution = getattr(policy, "action_dist", None)
    if distribution is None:
        raise ArgumentError(f"noise must be None for a model without distribution, got {policy!r}")
    if getattr(policy, "use_sde", False):
        raise ArgumentError(
            "noise must be None for a model with use_sde=True, whose noise depends on a matrix"
        )
    reason = against_ours(ours_for(distribution))
    if reason is not None:
        raise ArgumentError(f"noise must be None for this model: {reason}")
    width = _width(policy.action_space)
    try:
        numbers = np.asarray(noise, np.float64).reshape(n_envs, width)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"noise must be numbers of shape ({n_envs}, {width}), got {noise!r}"
        ) from None
    is_uniform = not isinstance(policy.action_space, spaces.Box)
    if not np.isfinite(numbers).all() or (is_uniform and not _is_uniform(numbers)):
        what = "from [0, 1)" if is_uniform else "finite"
        raise ArgumentError(f"noise must be {what}, got {noise!r}")
    return numbers


def _is_uniform(numbers: Numbers) -> bool:
    return bool(((numbers >= 0) & (numbers < 1)).all())


def _width(space: Any) -> int:
    if isinstance(space, spaces.Discrete):
        return 1
    return int(np.prod(space.shape))

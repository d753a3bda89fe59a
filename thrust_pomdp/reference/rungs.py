"""The reference ladder: what each kind of controller reaches on an environment."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_count
from thrust_pomdp.envs.known_tasks import against_our_class, find_spec
from thrust_pomdp.envs.popgym_cartpole import PositionOnlyCartPoleEnv
from thrust_pomdp.envs.repeat_previous import RepeatPreviousEnv
from thrust_pomdp.envs.tmaze import TMazeEnv
from thrust_pomdp.reference.catalogue import controllers
from thrust_pomdp.reference.control_laws import Controller, Information
from thrust_pomdp.reference.episodes import make_single, play

#: Whether a figure is the best that its class of information can reach, or only the best found.
Kind = Literal["proof", "best found"]

#: Standard errors on either side of the mean that make a 95 % interval.
_TWO_SIDED_95 = 1.96


@dataclass(frozen=True)
class Rung:
    """One rung of the ladder.

    :param controller: the controller's name
    :param information: what it knows
    :param mean: mean return of an episode
    :param standard_error: of the mean
    :param n_episodes: the episodes it was measured on
    :param kind: ``"proof"`` if nothing of the class can do better, ``"best found"`` if the figure
        is a lower bound from a search: a trained network of the same class may exceed it
    :param reason: why it is of that kind
    :param gains: where the controller's gains come from; empty where it has none
    """

    controller: str
    information: Information
    mean: float
    standard_error: float
    n_episodes: int
    kind: Kind
    reason: str
    gains: str = ""

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean, by the normal approximation.

        Where all episodes were alike this is a point, although a rare failure may have been missed:
        one that happens in 3.7 of ``n_episodes`` episodes stays unseen with a chance of 2.5 %.
        """
        half = _TWO_SIDED_95 * self.standard_error
        return self.mean - half, self.mean + half


def ladder(env_id: str, n_episodes: int = 4000, seed: int = 0, **env_kwargs: Any) -> list[Rung]:
    """Measure what each controller of :func:`controllers` reaches, on the same episodes for all.

    >>> rungs = ladder("MaskedCartPole-v0", n_episodes=100)
    >>> rungs[-1].controller, rungs[-1].mean, rungs[-1].kind
    ('model observer', 500.0, 'proof')

    :param env_id: an id of this package
    :param n_episodes: episodes of each controller
    :param seed: of the first episode, and of the controllers' draws
    :param env_kwargs: arguments of the environment
    """
    return [
        measure(env_id, controller, n_episodes, seed, **env_kwargs)
        for controller in controllers(env_id, seed, **env_kwargs)
    ]


def measure(
    env_id: str, controller: Controller, n_episodes: int = 4000, seed: int = 0, **env_kwargs: Any
) -> Rung:
    """Measure one controller; see :func:`ladder`.

    :raises ValueError: for a single episode, whose interval would seem to have no width
    """
    if check_count("n_episodes", n_episodes) < 2:
        raise ValueError(f"n_episodes must be at least 2, to tell the spread, got {n_episodes}")
    # 200 rewards of 1 / 200 add up to 1 but for rounding.
    returns = play(env_id, controller, n_episodes, seed, **env_kwargs).round(12)
    kind, reason = _judge(controller, returns, max_return(env_id, **env_kwargs))
    return Rung(
        controller.name,
        controller.information,
        _six_digits(returns.mean()),
        _six_digits(returns.std() / math.sqrt(n_episodes)),
        n_episodes,
        kind,
        reason,
        controller.source,
    )


def _six_digits(number: np.float64) -> float:
    """Round to more digits than there is truth in, so that files and pages hold all of them."""
    return float(f"{number:.6g}")


def _judge(
    controller: Controller, returns: NDArray[np.float64], best: float | None
) -> tuple[Kind, str]:
    if best is None:
        return "best found", "a lower bound"  # proofs are of the tasks that are known
    if controller.bound:
        return "proof", controller.bound
    if (returns == round(best, 12)).all():
        return "proof", "the most there is, in every episode"
    return "best found", "a lower bound"


def max_return(env_id: str, **env_kwargs: Any) -> float | None:
    """Return the most that an episode can give; None where this package did not write the rewards.

    :param env_id: an environment id
    :param env_kwargs: arguments of the environment
    """
    if against_our_class(find_spec(env_id)) is not None:
        return None
    env = make_single(env_id, **env_kwargs)
    if isinstance(env.unwrapped, TMazeEnv):
        return 1.0
    assert env.spec is not None
    limit = env.spec.max_episode_steps
    if isinstance(env.unwrapped, RepeatPreviousEnv):
        first, scale = env.unwrapped.k - 1, env.unwrapped.reward_scale
        return 1.0 if limit is None else min(max(limit - first, 0) * scale, 1.0)
    if not isinstance(env.unwrapped, PositionOnlyCartPoleEnv):
        assert limit is not None  # or the episode, with a good controller, would never have ended
        return float(limit)
    length = env.unwrapped.max_episode_length
    return 1.0 if limit is None else min(limit / length, 1.0)


def normalized(mean: float, rungs: Iterable[Rung]) -> float:
    """Return a mean return on the scale 0 = best memoryless found, 1 = exact-model memory.

    Below 0 an agent does worse than one without memory can; above 1 it beats the best found.

    :param mean: mean return of an episode
    :param rungs: the environment's
    :raises ValueError: if memory is worth nothing there
    """
    means = {rung.information: rung.mean for rung in rungs}
    floor, ceiling = means["memoryless"], means["exact model"]
    if not ceiling > floor:
        raise ValueError(
            f"rungs must be of an environment in which memory is worth something, got {floor} "
            f"without it and {ceiling} with it"
        )
    return (mean - floor) / (ceiling - floor)

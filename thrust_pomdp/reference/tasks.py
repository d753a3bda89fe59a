"""What a CartPole asks of a controller, and the gains that were found for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thrust_pomdp.envs.cartpole import FlickeringCartPoleEnv, SensedCartPoleEnv
from thrust_pomdp.envs.flicker import FlickerLaw
from thrust_pomdp.envs.popgym_cartpole import NoisyPositionOnlyCartPoleEnv
from thrust_pomdp.reference.belief import ExactModel, ModelObserver
from thrust_pomdp.reference.control_laws import (
    Information,
    Memoryless,
    PreviousAction,
    PushController,
    TwoFrames,
)
from thrust_pomdp.reference.episodes import score
from thrust_pomdp.unmodified_classes import against_family

#: Written by ``scripts/ladder.py --search``.
GAINS_FILE = Path(__file__).with_name("gains.json")

#: Classes of information with gains to find, from least to most.
LAWS: tuple[Information, ...] = ("memoryless", "previous action", "two frames", "exact model")

#: Episodes by which gains of other tasks are chosen for a task without its own, and their first
#: seed, far from those of figures and of the search.
CHOICE_EPISODES, CHOICE_SEED = 128, 2**41


@dataclass(frozen=True)
class CartPoleTask:
    """What decides which gains are good.

    :param hide_velocities: positions only
    :param flicker_prob: share of blank frames
    :param burst_len: mean length of a blank run; None for independent frames
    :param noise: standard deviation of the noise on the positions
    :param kinematics_integrator: the environment's
    """

    hide_velocities: bool = False
    flicker_prob: float = 0.0
    burst_len: float | None = None
    noise: float = 0.0
    kinematics_integrator: str = "euler"

    @property
    def n_components(self) -> int:
        """Components of an observation."""
        return 2 if self.hide_velocities else 4

    def __str__(self) -> str:
        changed = [f"{name}:{value}" for name, value in asdict(self).items()
                   if value != getattr(CartPoleTask, name)]  # fmt: skip
        return " ".join(changed) or "everything visible"


def task_of(cart: SensedCartPoleEnv) -> CartPoleTask:
    """Read from a single environment what it asks of a controller.

    :raises ValueError: for one that was derived from those of this package, or changed: it may ask
        for anything
    """
    reason = against_family(type(cart))
    if reason is not None:
        raise ValueError(
            f"cart must be an environment of this package, as it was written, got {cart}: {reason}"
        )
    law = cart._flicker.law if isinstance(cart, FlickeringCartPoleEnv) else FlickerLaw(0.0)
    independent = law.after_visible == law.after_blank
    return CartPoleTask(
        hide_velocities=cart.hide_velocities,
        flicker_prob=law.flicker_prob,
        burst_len=None if independent else law.burst_len,
        noise=cart.noise_sigma if isinstance(cart, NoisyPositionOnlyCartPoleEnv) else 0.0,
        kinematics_integrator=cart.kinematics_integrator,
    )


def law_maker(task: CartPoleTask, law: Information) -> Callable[[ArrayLike], PushController]:
    """Return what makes a controller of a class of information from gains."""
    if law == "exact model":
        if task.hide_velocities:
            return lambda gains: ModelObserver(gains, task.kinematics_integrator, task.noise)
        return lambda gains: ExactModel(gains, task.kinematics_integrator)
    laws = {"memoryless": Memoryless, "previous action": PreviousAction, "two frames": TwoFrames}
    return laws[law]


@cache
def stored_gains() -> dict[CartPoleTask, dict[str, list[float]]]:
    """Return the gains found by the search, by task and class of information."""
    entries = json.loads(GAINS_FILE.read_text())
    return {CartPoleTask(**entry["task"]): entry["gains"] for entry in entries}


def stored_gains_of(task: CartPoleTask, law: Information) -> dict[CartPoleTask, list[float]]:
    """Return the stored gains that could serve a task, by the task they were found for."""
    return {
        other: gains[law]
        for other, gains in stored_gains().items()
        if law in gains and (other.n_components == task.n_components or law == "exact model")
    }


def store_gains(task: CartPoleTask, law: Information, gains: NDArray[np.float64]) -> None:
    """Put gains into the file, in place of those it may hold for the task and class."""
    table = stored_gains()
    # Four digits are more than the search can tell apart.
    table.setdefault(task, {})[law] = [float(f"{gain:.4g}") for gain in gains]
    entries = [{"task": asdict(one), "gains": table[one]} for one in sorted(table, key=str)]
    lines = ",\n ".join(json.dumps(entry) for entry in entries)
    GAINS_FILE.write_text(f"[{lines}]\n")


def gains_for(
    env_id: str, task: CartPoleTask, law: Information, **env_kwargs: Any
) -> tuple[list[float], str]:
    """Return gains for a task and where they come from.

    A task without its own takes those of the stored ones that do best on
    :data:`CHOICE_EPISODES` episodes of it.

    :param env_id: an environment id
    :param task: what it asks
    :param law: the class of information
    :param env_kwargs: arguments of the environment
    """
    own = stored_gains().get(task, {}).get(law)
    if own is not None:
        return own, "found for this task"
    others = stored_gains_of(task, law)
    scores = score(
        env_id,
        law_maker(task, law),
        np.array(list(others.values())),
        range(CHOICE_SEED, CHOICE_SEED + CHOICE_EPISODES),
        **env_kwargs,
    )
    best = list(others)[int(np.argmax(scores))]
    return others[best], f"found for {best}, the best of {len(others)} stored here"

"""The ladder's measured figures, as ``scripts/ladder.py --csv`` wrote them."""

from __future__ import annotations

import csv
import inspect
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from thrust_pomdp.reference.rungs import Rung

FIGURES_FILE = Path(__file__).with_name("figures.csv")

_COLUMNS = (
    "env_id", "env_kwargs", "controller", "information", "mean", "standard_error", "n_episodes",
    "kind", "reason", "gains",
)  # fmt: skip

#: Arguments that change nothing about the task.
_FOR_WATCHING = ("expose_state", "render_mode")


class Ladder(NamedTuple):
    """The rungs of an environment.

    :param env_id: its id
    :param env_kwargs: arguments other than the id's
    :param rungs: from the least informed to the most
    """

    env_id: str
    env_kwargs: dict[str, Any]
    rungs: tuple[Rung, ...]


def write_figures(path: Path, ladders: Iterable[Ladder]) -> None:
    """Write figures, one line per rung."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        for ladder in ladders:
            for rung in ladder.rungs:
                env_kwargs = json.dumps(ladder.env_kwargs)
                writer.writerow({"env_id": ladder.env_id, "env_kwargs": env_kwargs, **asdict(rung)})


def read_figures(path: Path) -> list[Ladder]:
    """Read what :func:`write_figures` wrote."""
    rungs: dict[tuple[str, str], list[Rung]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            values: dict[str, Any] = dict(row)
            key = values.pop("env_id"), values.pop("env_kwargs")
            for name in ("mean", "standard_error"):
                values[name] = float(values[name])
            values["n_episodes"] = int(values["n_episodes"])
            rungs.setdefault(key, []).append(Rung(**values))
    return [Ladder(key[0], json.loads(key[1]), tuple(found)) for key, found in rungs.items()]


#: All ladders that are stored.
LADDERS = read_figures(FIGURES_FILE) if FIGURES_FILE.exists() else []

#: Environment id, with its default arguments -> rungs from floor to ceiling.
LADDER: dict[str, tuple[Rung, ...]] = {
    ladder.env_id: ladder.rungs for ladder in LADDERS if not ladder.env_kwargs
}


def stored_ladder(env_id: str, **env_kwargs: Any) -> tuple[Rung, ...]:
    """Return the stored rungs of an environment; none if nothing is stored for these arguments.

    >>> stored_ladder("FlickeringCartPole-v0", burst_len=4) == LADDER["BurstFlickeringCartPole-v0"]
    True

    :param env_id: an environment id, with or without its ``module:`` prefix
    :param env_kwargs: arguments of the environment
    """
    wanted = _identity(env_id.rsplit(":", 1)[-1], env_kwargs)
    if wanted is not None:
        for ladder in LADDERS:
            if _identity(ladder.env_id, ladder.env_kwargs) == wanted:
                return ladder.rungs
    return ()


def _identity(env_id: str, env_kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return what makes two environments the same: class, all arguments and time limit."""
    spec = gym.registry.get(env_id)
    if spec is None or not isinstance(spec.entry_point, str):
        return None
    parameters = inspect.signature(load_env_creator(spec.entry_point)).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    arguments = {**defaults, **spec.kwargs, **env_kwargs}
    limit = arguments.pop("max_episode_steps", spec.max_episode_steps)
    for name in _FOR_WATCHING:
        arguments.pop(name, None)
    return spec.entry_point, limit, arguments

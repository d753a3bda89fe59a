"""The ladder's measured figures, as ``scripts/ladder.py --csv`` wrote them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from gymnasium.envs.registration import EnvSpec

from thrust_pomdp.envs.known_tasks import against_our_class, find_spec
from thrust_pomdp.envs.registration import ENVIRONMENTS, arguments_of, entry_point_name
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
    """Return the stored rungs of an environment; none if nothing is stored for it.

    They are of environments of this package as they were written: what a program registered anew,
    wrapped or changed has none.

    >>> stored_ladder("FlickeringCartPole-v0", burst_len=4) == LADDER["BurstFlickeringCartPole-v0"]
    True

    :param env_id: an environment id, with or without its ``module:`` prefix
    :param env_kwargs: arguments of the environment
    """
    try:
        spec = find_spec(env_id)
    except ImportError:
        return ()
    if spec is None or against_our_class(spec) is not None:
        return ()
    found = Registered(entry_point_name(spec.entry_point), spec.kwargs, spec.max_episode_steps)
    wanted = _identity(found, env_kwargs)
    for ladder in LADDERS:
        ours = ENVIRONMENTS[ladder.env_id]
        measured = Registered(ours.entry_point, ours.kwargs, ours.max_episode_steps)
        if _identity(measured, ladder.env_kwargs) == wanted:
            return ladder.rungs
    return ()


def is_as_registered(spec: EnvSpec, env_kwargs: Mapping[str, Any]) -> bool:
    """Tell whether arguments leave a registered environment what it is.

    They do if each is what is registered, or left at its default, anyway.

    :param spec: what is registered under an id
    :param env_kwargs: arguments in ``gym.make``
    """
    made = Registered(spec.entry_point, spec.kwargs, spec.max_episode_steps)
    return not env_kwargs or _identity(made, env_kwargs) == _identity(made, {})


class Registered(NamedTuple):
    """What of a registration makes the environment.

    :param entry_point: ``module:class``, or what makes it
    :param kwargs: its arguments
    :param max_episode_steps: the time limit
    """

    entry_point: Any
    kwargs: Mapping[str, Any]
    max_episode_steps: int | None


def _identity(made: Registered, env_kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what makes two environments the same: class, all arguments and time limit."""
    arguments = arguments_of(made.entry_point, made.kwargs, env_kwargs)
    # None is for the registered one, as gym.make has it.
    limit = arguments.pop("max_episode_steps", None)
    for name in _FOR_WATCHING:
        arguments.pop(name, None)
    return made.entry_point, made.max_episode_steps if limit is None else limit, arguments

r"""RL Zoo's own command lines, with RecurrentPPO of this package as their algorithm ppo_lstm.

    python -m thrust_pomdp zoo train --algo ppo_lstm --env MaskedCartPole-v0 --conf-file mine.yml
    python -m thrust_pomdp zoo enjoy --algo ppo_lstm --env MaskedCartPole-v0 --folder logs
    python -m thrust_pomdp zoo optimize --algo ppo_lstm --env MaskedCartPole-v0 --conf-file mine.yml

The arguments are RL Zoo's (zoo train --help); optimize is its train --optimize-hyperparameters. The
ids of this package are registered, and the other algorithms are RL Zoo's.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from thrust_pomdp.errors import with_near_names
from thrust_pomdp.experiment.commands import options

#: Command -> RL Zoo's module, which has a function of that name, and arguments to add.
SCRIPTS: dict[str, tuple[str, list[str]]] = {
    "train": ("train", []),
    "enjoy": ("enjoy", []),
    "optimize": ("train", ["--optimize-hyperparameters"]),
}


@options.command("zoo")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    :param arguments: ``train``, ``enjoy`` or ``optimize`` and RL Zoo's arguments; those of the
        command line by default
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(f"usage: zoo {{{','.join(SCRIPTS)}}} ...\n\n{__doc__}")
        return 0 if given else 2
    name = given[0]
    if name not in SCRIPTS:
        message = f"no command {name!r}; there are {', '.join(SCRIPTS)}"
        raise ValueError(with_near_names(message, name, SCRIPTS))
    options.check_extra("zoo", "rl_zoo3", "pandas", "requests")
    script, more = SCRIPTS[name]
    with _ours_in_place_of_theirs(), _command_line(name, [*more, *given[1:]]):
        getattr(importlib.import_module(f"rl_zoo3.{script}"), script)()
    return 0


@contextmanager
def _ours_in_place_of_theirs() -> Iterator[None]:
    """Let RL Zoo's table of algorithms name this package's RecurrentPPO."""
    from thrust_pomdp.ppo.recurrent_ppo import RecurrentPPO

    table = importlib.import_module("rl_zoo3").ALGOS
    theirs = table["ppo_lstm"]
    table["ppo_lstm"] = RecurrentPPO
    try:
        yield
    finally:
        table["ppo_lstm"] = theirs


@contextmanager
def _command_line(name: str, arguments: list[str]) -> Iterator[None]:
    """Give RL Zoo's parsers, which read nothing else, their arguments."""
    before = sys.argv
    sys.argv = [f"zoo {name}", *arguments]
    try:
        yield
    finally:
        sys.argv = before

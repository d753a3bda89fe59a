"""``python -m thrust_pomdp COMMAND``: what the scripts of the repository do, once installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from thrust_pomdp.errors import with_near_names

#: Command -> what it does; each is a module of ``thrust_pomdp.experiment.commands``.
COMMANDS = {
    "compare": "train contestants on identical streams and show whether memory pays",
    "sweep": "models or trainings over a grid of environment parameters, as heat maps",
    "report": "the page of finished comparisons again, of one environment or several",
    "tune": "look for a recipe that compare takes",
    "export": "a trained model as a file for ONNX Runtime, NumPy, C or JavaScript",
    "zoo": "RL Zoo's train, enjoy and optimize with RecurrentPPO as ppo_lstm",
}


def usage() -> str:
    """Return the list of commands."""
    lines = [f"  {name:<10} {what}" for name, what in COMMANDS.items()]
    head = "usage: python -m thrust_pomdp COMMAND ...\n\nCommands (COMMAND --help tells more):"
    return "\n".join([head, *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    :param arguments: its name and its arguments; those of the command line by default
    :return: the exit code
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(usage())
        return 0 if given else 2
    name = given[0]
    if name not in COMMANDS:
        message = f"no command {name!r}; there are {', '.join(COMMANDS)}"
        print(f"thrust_pomdp: {with_near_names(message, name, COMMANDS)}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"thrust_pomdp.experiment.commands.{name}")
    code: int = module.main(given[1:])
    return code


if __name__ == "__main__":
    sys.exit(main())

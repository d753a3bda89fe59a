"""Put what `make demo` printed into README.md, and where that came from.

    rm -rf results/demo
    make demo VENV=/tmp/demo-venv   # as a newcomer has it: an environment that holds nothing else
    python scripts/demo.py          # of results/demo, between the marks of README.md

Refused are results of other arguments than the command has, of changed sources, and of an
installation that the command does not make.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from thrust_pomdp.experiment.atomic_write import write_atomically
from thrust_pomdp.experiment.commands import compare, options
from thrust_pomdp.experiment.commands.options import make_parser
from thrust_pomdp.experiment.report.runs import Run, read_folder
from thrust_pomdp.experiment.report.text_and_csv import aligned
from thrust_pomdp.experiment.results_folder import as_json

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
MAKEFILE = ROOT / "Makefile"

#: Columns of the README's prose.
_WIDTH = 119

#: Where the README has it.
MARKS = re.compile(r"(<!-- demo -->\n).*?(<!-- end -->)", re.DOTALL)


def block(folder: Path, makefile: str) -> str:
    """Return what the README says of a demo.

    :param folder: of its results
    :param makefile: the text of the Makefile, which says what the command installs
    :raises ValueError: if they are not those of the command
    """
    runs, _ = read_folder(folder)
    check_arguments(runs, folder)
    revision = _one_of(runs, folder, "git_revision")
    if revision == "None" or revision.endswith("+"):
        raise ValueError(
            f"{folder} must be of a revision without changes, got {revision}: commit, remove the "
            "folder and run `make demo` again"
        )
    check_numba(runs[0], folder, makefile)
    order = sorted(runs, key=lambda run: options.DEFAULT_ARMS.index(run.arm))
    said = textwrap.fill(f"{_origin(runs[0], revision)}{_most_likely(runs)}", _WIDTH)
    return "\n".join(["```", *aligned(order), "```", "", said, ""])


def check_arguments(runs: Sequence[Run], folder: Path) -> None:
    """Check that runs are those of `make demo` without further arguments.

    :raises ValueError: naming what differs
    """
    args = compare.parser().parse_args(["--out", str(folder)])
    wanted = {spec.name: as_json(asdict(spec)) for spec in compare.run_specs(args)}
    found = {run.name: dict(run.spec) for run in runs}
    if found.keys() != wanted.keys():
        raise ValueError(
            f"{folder} must hold the runs {', '.join(wanted)}, got {', '.join(found) or 'none'}"
        )
    for name, spec in wanted.items():
        for key, value in spec.items():
            if found[name].get(key) != value:
                raise ValueError(
                    f"{folder}: {name} must have {key}={value!r}, got {found[name].get(key)!r}"
                )


def check_numba(run: Run, folder: Path, makefile: str) -> None:
    """Check that Numba was there if and only if the command installs it.

    :raises ValueError: if not
    """
    there, installed = "numba" in run.provenance["versions"], installs_numba(makefile)
    if there != installed:
        said = {True: "with Numba", False: "without Numba"}
        raise ValueError(
            f"{folder} was made {said[there]}, and `make demo` installs {said[installed]}: run it "
            "in an environment of its own, make demo VENV=/tmp/demo-venv"
        )


def installs_numba(makefile: str) -> bool:
    """Return whether `make demo` installs the extra with Numba."""
    (extras,) = re.findall(r"^\$\(VENV\)/\.demo:.*\n\t\$\(PIP\) -e '\.\[(.*?)\]'", makefile, re.M)
    return "fast" in extras.split(",")


def _one_of(runs: Sequence[Run], folder: Path, key: str) -> str:
    """Return what all runs were made with.

    :raises ValueError: if they differ
    """
    found = list(dict.fromkeys(str(run.provenance.get(key)) for run in runs))
    if len(found) > 1:
        raise ValueError(f"{folder}: runs must be of one {key}, got {', '.join(found)}")
    return found[0]


def _origin(run: Run, revision: str) -> str:
    versions: dict[str, Any] = run.provenance["versions"]
    machine: dict[str, Any] = run.provenance["machine"]
    numba = f"with Numba {versions['numba']}" if "numba" in versions else (
        "without Numba, which the command does not install (the `fast` extra)"
    )  # fmt: skip
    return (
        f"Printed at revision {revision[:7]}, {numba}, with PyTorch {versions['torch']} on "
        f"{machine['cpus']} cores of this processor: {machine['processor']}. Digits depend on the "
        "processor and on versions: others round otherwise, and a training goes another way from "
        "there."
    )


def _most_likely(runs: Sequence[Run]) -> str:
    """Return what the memoryless policy does by its most likely action, if that is the worse."""
    (mlp,) = (run for run in runs if run.arm == "mlp")
    likely, sampled = mlp.score("deterministic"), mlp.score("stochastic")
    if likely >= sampled:
        return ""
    return (
        f" The memoryless policy gets {likely:.0f} by its most likely action, not {sampled:.0f}: "
        "on blank frames that is one and the same action."
    )


def filled(page: str, text: str) -> str:
    """Return a page with the block between its marks.

    :raises ValueError: if it has no marks
    """
    if not MARKS.search(page):
        raise ValueError("README.md must have a line <!-- demo --> and below it <!-- end -->")
    return MARKS.sub(lambda match: match[1] + text + match[2], page)


@options.command("demo")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = make_parser(__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "demo", metavar="DIR")
    args = parser.parse_args(arguments)
    text = block(args.results, MAKEFILE.read_text(encoding="utf-8"))
    write_atomically(README, filled(README.read_text(encoding="utf-8"), text).encode())
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

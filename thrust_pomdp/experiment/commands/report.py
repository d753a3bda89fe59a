"""Make the page of finished comparisons again, of one environment or several.

    python -m thrust_pomdp report results/demo

What is not finished takes no part. The verdict goes by what the folder keeps from before the first
run; what the options say in its place comes after the results, and the page says so. The exit code
is 2 if no page was written.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from thrust_pomdp.experiment.commands import options
from thrust_pomdp.experiment.console import say


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = options.make_parser(__doc__, "report")
    made.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="folders that comparisons were written to",
    )
    made.add_argument(
        "--out", type=Path, help="folder of the page and its pictures (default: the first DIR)"
    )
    options.add_memory_options(made)
    options.add_verdict_options(made)
    return made


@options.command("report")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    args = parser().parse_args(arguments)
    from thrust_pomdp.experiment.report import write_report

    start = time.perf_counter()
    memory = options.memory_of(args)
    made = write_report(args.folders, args.out, memory, args.margin, args.solved)
    for title, verdict in made.verdicts.items():
        first, *others = verdict.lines
        say(f"{title}: {first}")
        for line in others:
            say(line)
    for name, message in made.failures:
        say(f"{name} failed: {message}")
    seconds = time.perf_counter() - start
    say(f"Written: {made.page} ({made.n_runs} runs, {seconds:.1f} s)")
    return 0

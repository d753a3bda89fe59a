"""Make the page of finished comparisons again, of one environment or several.

python scripts/report.py results/demo
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from thrust_pomdp.experiment.report import Memory, write_report


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR",
                        help="folders that comparisons were written to")  # fmt: skip
    parser.add_argument(
        "--out", type=Path, help="folder of the page and its pictures (default: the first DIR)"
    )
    parser.add_argument("--memoryless", nargs="+", default=[], metavar="ARM",
                        help="arms of your own that have no memory")  # fmt: skip
    parser.add_argument("--with-memory", nargs="+", default=[], metavar="ARM",
                        help="arms of your own that have some")  # fmt: skip
    parser.add_argument("--margin", type=float, metavar="RETURN",
                        help="smallest gain that matters (default: by the rule)")  # fmt: skip
    parser.add_argument(
        "--solved", type=float, metavar="RETURN",
        help="score that counts as doing the task (default: by the rule)",
    )  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    memory: dict[str, Memory] = dict.fromkeys(args.memoryless, "none")
    memory |= dict.fromkeys(args.with_memory, "recurrent")
    start = time.perf_counter()
    try:
        report = write_report(args.folders, args.out, memory, args.margin, args.solved)
    except (ValueError, OSError, ImportError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    for title, verdict in report.verdicts.items():
        print(f"{title}: {verdict.sentence}")
    for name, message in report.failures:
        print(f"{name} failed: {message}")
    seconds = time.perf_counter() - start
    print(f"Written: {report.page} ({report.n_runs} runs, {seconds:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

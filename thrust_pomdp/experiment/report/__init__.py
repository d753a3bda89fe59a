"""The report of a comparison: text, CSV files, pictures, a page and a verdict.

Nothing here loads torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from thrust_pomdp.experiment.arms import Memory
from thrust_pomdp.experiment.report.figures import plot
from thrust_pomdp.experiment.report.page import write_page
from thrust_pomdp.experiment.report.rule import RULE
from thrust_pomdp.experiment.report.runs import (
    CURVE_EPISODES,
    Contest,
    Failure,
    Run,
    contests,
    read_folder,
)
from thrust_pomdp.experiment.report.text import rows, table, write_csv
from thrust_pomdp.experiment.report.verdict import Outcome, Verdict, decide

__all__ = [
    "CURVE_EPISODES",
    "RULE",
    "Contest",
    "Failure",
    "Memory",
    "Outcome",
    "Report",
    "Run",
    "Verdict",
    "contests",
    "decide",
    "plot",
    "read_folder",
    "rows",
    "table",
    "write_csv",
    "write_page",
    "write_report",
]


class Report(NamedTuple):
    """What was written.

    :param page: path of the HTML page; the pictures lie beside it
    :param verdicts: by environment
    :param n_runs: finished runs in it
    :param failures: runs that failed
    """

    page: Path
    verdicts: dict[str, Verdict]
    n_runs: int
    failures: list[Failure]


def write_report(
    folders: Sequence[Path],
    out: Path | None = None,
    memory: Mapping[str, Memory] | None = None,
    margin: float | None = None,
    solved: float | None = None,
) -> Report:
    """Write the page of the results in folders, of one environment or several.

    :param folders: of comparisons, as the runner leaves them
    :param out: folder to write to; the first of them by default
    :param memory: what arms can remember, where it is not known by their names
    :param margin: smallest gain that matters, in returns; by the rule if None
    :param solved: score that counts as doing the task; by the rule if None
    :raises ValueError: if there is nothing to report, a file is no result, runs are there twice, or
        a margin is given for several environments at once
    :raises ImportError: if matplotlib is missing, with the command that installs it
    """
    _check_installed()
    if not folders:
        raise ValueError("folders must hold at least one, got none")
    runs: list[Run] = []
    failures: list[Failure] = []
    for folder in folders:
        finished, failed = read_folder(folder)
        runs += finished
        failures += failed
    if not runs and not failures:
        raise ValueError(f"folders must hold runs, got none in {', '.join(map(str, folders))}")
    found = contests(runs, memory)
    if len(found) > 1 and not (margin is None and solved is None):
        raise ValueError(
            "margin and solved must be None for several environments, whose returns differ, got "
            f"{margin} and {solved} for {', '.join(contest.title for contest in found)}"
        )
    verdicts = [decide(contest, margin, solved) for contest in found]
    page = write_page(found, verdicts, failures, out or folders[0])
    titles = [contest.title for contest in found]
    return Report(page, dict(zip(titles, verdicts, strict=True)), len(runs), failures)


def _check_installed() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "the report draws with matplotlib: pip install 'thrust-pomdp[compare]'"
        ) from error

"""The report of a comparison: text, CSV files, pictures, a page and a verdict.

Nothing here loads torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from thrust_pomdp.experiment.arms import Memory
from thrust_pomdp.experiment.report.basis import judge
from thrust_pomdp.experiment.report.figures import plot
from thrust_pomdp.experiment.report.page import write_page
from thrust_pomdp.experiment.report.rule import RULE
from thrust_pomdp.experiment.report.runs import (
    Contest,
    Failure,
    Run,
    contests,
    read_folder,
)
from thrust_pomdp.experiment.report.terms import Kept, Terms, read_kept
from thrust_pomdp.experiment.report.text_and_csv import rows, table, write_csv
from thrust_pomdp.experiment.report.verdict import Outcome, Verdict, decide
from thrust_pomdp.experiment.report.worth import Worth, worth_of
from thrust_pomdp.experiment.runs import CURVE_EPISODES

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
    "Worth",
    "contests",
    "decide",
    "plot",
    "read_folder",
    "rows",
    "table",
    "worth_of",
    "write_csv",
    "write_page",
    "write_report",
]


class Report(NamedTuple):
    """What was written.

    :param page: path of the HTML page; the pictures lie beside it
    :param verdicts: by environment
    :param worths: what memory is worth, by environment, or why that cannot be told
    :param n_runs: finished runs in it
    :param failures: runs that failed
    """

    page: Path
    verdicts: dict[str, Verdict]
    worths: dict[str, Worth | str]
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

    What the verdict goes by is what the folders keep from before the first run. What is given here
    in its place comes after the results, and the page says so.

    :param folders: of comparisons, as the runner leaves them
    :param out: folder to write to; the first of them by default
    :param memory: what arms can remember, where it is not known by their names
    :param margin: smallest gain that matters, in returns; as it was kept if None
    :param solved: score that counts as doing the task; as it was kept if None
    :raises ValueError: if there is nothing to report, a file is no result, runs are there twice, a
        margin is given for several environments at once, or folders of one environment keep
        different rules
    :raises ImportError: if Jinja2 or matplotlib is missing, with the command that installs it
    """
    _check_installed()
    if not folders:
        raise ValueError("folders must hold at least one, got none")
    runs: list[Run] = []
    failures: list[Failure] = []
    folder_of: dict[str, Path] = {}
    for folder in folders:
        finished, failed = read_folder(folder)
        folder_of |= {run.source: folder for run in finished}
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
    given = Terms(margin, solved, memory or {})
    judged = [judge(contest, _kept_in(contest, folder_of), given) for contest in found]
    found, verdicts = [one for one, _ in judged], [verdict for _, verdict in judged]
    worths = [worth_of(contest) for contest in found]
    page = write_page(found, verdicts, worths, failures, out or folders[0])
    titles = [contest.title for contest in found]
    return Report(
        page,
        dict(zip(titles, verdicts, strict=True)),
        dict(zip(titles, worths, strict=True)),
        len(runs),
        failures,
    )


def _kept_in(contest: Contest, folder_of: Mapping[str, Path]) -> dict[Path, Kept | None]:
    """Return what each folder keeps that has runs of a contest."""
    sources = (run.source for runs in contest.arms.values() for run in runs)
    return {folder: read_kept(folder) for folder in dict.fromkeys(folder_of[s] for s in sources)}


def _check_installed() -> None:
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "the report needs Jinja2 and matplotlib: pip install 'thrust-pomdp[compare]'"
        ) from error

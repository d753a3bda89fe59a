"""The page: one file with everything a colleague needs to know whether memory pays.

What it says and where is ``page.html.jinja``, how it looks ``page.css``; here it is filled.
"""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from thrust_pomdp.experiment.atomic_write import write_atomically
from thrust_pomdp.experiment.report import tables
from thrust_pomdp.experiment.report.figure_style import NARROW, WIDE, png
from thrust_pomdp.experiment.report.figures import pictures
from thrust_pomdp.experiment.report.number_format import format_count, format_number
from thrust_pomdp.experiment.report.rule import RULE
from thrust_pomdp.experiment.report.runs import Contest, Failure
from thrust_pomdp.experiment.report.verdict import Verdict
from thrust_pomdp.experiment.report.worth import Worth
from thrust_pomdp.experiment.runs import CURVE_EPISODES

if TYPE_CHECKING:
    from jinja2 import Template


class Picture(NamedTuple):
    """A figure that comes in two widths.

    :param about: what it shows
    :param wide: SVG for a desk, base64
    :param narrow: SVG for a phone
    """

    about: str
    wide: str
    narrow: str


def write_page(
    contests: Sequence[Contest],
    verdicts: Sequence[Verdict],
    worths: Sequence[Worth | str],
    failures: Sequence[Failure],
    out: Path,
) -> Path:
    """Write ``report.html`` and its pictures as PNG files.

    :param contests: the finished runs by environment
    :param verdicts: of each
    :param worths: what memory is worth on each, or why that cannot be told
    :param failures: runs that failed
    :param out: folder to write to
    :return: path of the page
    """
    out.mkdir(parents=True, exist_ok=True)
    sections, told = [], zip(contests, verdicts, worths, strict=True)
    for place, (contest, verdict, worth) in enumerate(told, start=1):
        prefix = f"{place}-{contest.slug[:60]}-" if len(contests) > 1 else ""
        sections.append(_section(contest, verdict, worth, out, prefix))
    runs = [run for contest in contests for of_arm in contest.arms.values() for run in of_arm]
    page = _template().render(
        sections=sections,
        failures=failures,
        n_arms=len({arm for contest in contests for arm in contest.arms}),
        n_runs=len(runs),
        overall=tables.overall(contests),
        done=tables.done(contests) if runs else None,
        provenance=tables.provenance(runs),
        rule=RULE,
        curve_episodes=CURVE_EPISODES,
    )
    path = out / "report.html"
    write_atomically(path, page.encode())
    return path


@functools.cache
def _template() -> Template:
    # Here, since a comparison starts before there is anything to tell.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"counted": format_count, "number": format_number}
    return environment.get_template("page.html.jinja")


def _section(
    contest: Contest, verdict: Verdict, worth: Worth | str, out: Path, prefix: str
) -> dict[str, Any]:
    """Return what the template says of a contest."""
    return {
        "title": contest.title,
        "verdict": verdict,
        "pictures": {
            name: _draw(about, draw, out / f"{prefix}{name}.png")
            for name, (about, draw) in pictures(contest).items()
        },
        "scores": tables.scores(contest),
        "gains": tables.gains(verdict) if verdict.gains else None,
        "worth": {
            "lines": [f"Not told: {worth}."] if isinstance(worth, str) else worth.lines,
            "table": tables.worth(contest, worth),
        },
        "cost": tables.cost(contest, verdict.scale),
        "runs": tables.runs(contest),
        "recipes": tables.recipes(contest),
    }


def _draw(about: str, draw: Any, path: Path) -> Picture | None:
    """Draw in both widths; the wide one is a PNG file, too."""
    from matplotlib import rc_context

    drawings = []
    # The same results make the same file, byte for byte.
    with rc_context({"svg.hashsalt": "thrust_pomdp"}):
        for width in (WIDE, NARROW):
            figure, drawing = draw(width), io.BytesIO()
            figure.savefig(drawing, format="svg", metadata={"Date": None})
            drawings.append(base64.b64encode(drawing.getvalue()).decode())
            if width == WIDE:
                figure.set_layout_engine("none")  # it is laid out, and that takes long
                write_atomically(path, png(figure))
    return Picture(about, *drawings)

"""The page: one file with everything a colleague needs to know whether memory pays."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thrust_pomdp.experiment.files import write_whole
from thrust_pomdp.experiment.report import tables
from thrust_pomdp.experiment.report.figures import NARROW, WIDE, pictures, png
from thrust_pomdp.experiment.report.markup import (
    Html,
    document,
    element,
    joined,
    listed,
    picture,
)
from thrust_pomdp.experiment.report.rule import RULE
from thrust_pomdp.experiment.report.runs import CURVE_EPISODES, Contest, Failure
from thrust_pomdp.experiment.report.verdict import Verdict
from thrust_pomdp.experiment.report.wording import counted, number

_HOW_TO_READ = (
    "Figures are mean returns of evaluation episodes: interquartile means over runs of different "
    "seeds, with 95 % intervals in brackets. A run with another seed is another training."
)

_METHODS = (
    "Every arm of one run number trains on the same streams of randomness, and all are evaluated "
    "alike on other ones, with memory carried through each episode.",
    "IQM is the interquartile mean: the mean of the runs without their best and worst quarter "
    "(rounded down, so of fewer than four runs it is the mean).",
    "Intervals are 95 % percentile intervals of the stratified bootstrap: runs are resampled "
    "within each environment. They say what other seeds might give. Of few runs they are too "
    "short, of one run there are none.",
    "Whether an arm acts by its most likely actions or by sampled ones is chosen for the arm, by "
    "the mean over its runs, and never run by run; the choice is in bold in the tables.",
    "The probability of improvement is the chance that a run of the one arm scores above a run of "
    "the other, ties counting half.",
    "The memory gap is the way from the best memoryless controller found (0) to the exact model "
    "(1); the optimality gap is what is missing to 1 on average, where nothing counts more than 1.",
    f"Steps and time to a score are where the mean of the last {CURVE_EPISODES} training episodes "
    "first reaches it: the median over runs, those that never do counting as later than all "
    "others. Times depend on how many runs shared the machine.",
    "These statistics are those of Agarwal et al., Deep Reinforcement Learning at the Edge of the "
    "Statistical Precipice, NeurIPS 2021.",
)


def write_page(
    contests: Sequence[Contest],
    verdicts: Sequence[Verdict],
    failures: Sequence[Failure],
    out: Path,
) -> Path:
    """Write ``report.html`` and its pictures as PNG files.

    :param contests: the finished runs by environment
    :param verdicts: of each
    :param failures: runs that failed
    :param out: folder to write to
    :return: path of the page
    """
    out.mkdir(parents=True, exist_ok=True)
    sections: list[Html] = []
    for place, (contest, verdict) in enumerate(zip(contests, verdicts, strict=True), start=1):
        prefix = f"{place}-{contest.slug[:60]}-" if len(contests) > 1 else ""
        sections += [element("h2", contest.title), *_contest(contest, verdict, out, prefix)]
    path = out / "report.html"
    page = document(
        "Does memory pay?",
        *_summary(contests, verdicts, failures),
        *sections,
        *_overall(contests),
        *_background(contests),
    )
    write_whole(path, page.encode())
    return path


def _summary(
    contests: Sequence[Contest], verdicts: Sequence[Verdict], failures: Sequence[Failure]
) -> list[Html]:
    n_runs = sum(len(runs) for contest in contests for runs in contest.arms.values())
    n_arms = len({arm for contest in contests for arm in contest.arms})
    of = [counted(n_arms, "arm"), counted(len(contests), "environment"),
          counted(n_runs, "finished run")]  # fmt: skip
    found = [element("h1", "Does memory pay?"), element("p", ", ".join(of) + ".", class_="soft")]
    found += [
        _verdict(verdict, contest.title if len(contests) > 1 else "")
        for contest, verdict in zip(contests, verdicts, strict=True)
    ]
    found.append(element("p", _HOW_TO_READ, class_="soft"))
    if failures:
        items = [
            joined(element("b", name), ": ", element("code", message)) for name, message in failures
        ]
        head = element("b", f"{counted(len(failures), 'run')} failed and took no part:")
        found.append(element("div", head, listed(items), class_="failed"))
    return found


def _verdict(verdict: Verdict, title: str) -> Html:
    word = f"{title}: {verdict.outcome}" if title else verdict.outcome
    kind = verdict.outcome.replace(" ", "-")
    if verdict.mark:  # it must not look like one of which all stood before the first run
        word, kind = f"{word} ({verdict.mark})", "marked"
    inside = [element("span", word, class_="word"), element("p", verdict.sentence)]
    inside += [element("p", line, class_="soft") for line in verdict.lines[1:]]
    return element("div", *inside, class_=f"verdict {kind}")


def _contest(contest: Contest, verdict: Verdict, out: Path, prefix: str) -> list[Html]:
    drawn = {
        name: _draw(about, draw, out / f"{prefix}{name}.png")
        for name, (about, draw) in pictures(contest).items()
    }
    empty = Html("")
    return [
        drawn.get("curves", element("p", "No training episode ended: there are no curves.")),
        drawn.get("evaluations", empty),
        element("h3", "Final scores"),
        drawn["scores"],
        tables.scores(contest),
        drawn.get("gap", empty),
        element("h3", "How the verdict came about"),
        *_evidence(verdict),
        element("h3", "What it cost"),
        tables.cost(contest, verdict.scale),
        drawn.get("time", empty),
        *_folded("Every run", tables.runs(contest)),
        *_folded("Recipes", tables.recipes(contest)),
    ]


def _draw(about: str, draw: Any, path: Path) -> Html:
    """Draw in both widths; the wide one is a PNG file, too."""
    from matplotlib import rc_context

    drawings = []
    # The same results make the same file, byte for byte.
    with rc_context({"svg.hashsalt": "thrust_pomdp"}):
        for width in (WIDE, NARROW):
            figure, drawing = draw(width), io.BytesIO()
            figure.savefig(drawing, format="svg", metadata={"Date": None})
            drawings.append(drawing.getvalue())
            if width == WIDE:
                figure.set_layout_engine("none")  # it is laid out, and that takes long
                write_whole(path, png(figure))
    return picture(about, *drawings)


def _evidence(verdict: Verdict) -> list[Html]:
    scale = verdict.scale
    bar = scale.bar_source if scale.bar is None else f"{number(scale.bar)}, {scale.bar_source}"
    facts = [f"Margin: {number(scale.margin)}, {scale.margin_source}.", f"Bar: {bar}."]
    if scale.room is not None:
        facts.append(
            f"By the ladder an exact model gains {number(scale.room)} over the best memoryless "
            "controller found."
        )
    facts += [f"Left out: {why}." for why in verdict.left_out]
    return [listed(facts), *([tables.gains(verdict)] if verdict.gains else [])]


def _folded(title: str, content: Html | None) -> list[Html]:
    return [] if content is None else [element("details", element("summary", title), content)]


def _overall(contests: Sequence[Contest]) -> list[Html]:
    content = tables.overall(contests)
    if content is None:
        return []
    about = "Share of the memory gap closed, over all environments that have a ladder."
    return [element("h2", "All environments"), element("p", about), content]


def _background(contests: Sequence[Contest]) -> list[Html]:
    runs = [run for contest in contests for of_arm in contest.arms.values() for run in of_arm]
    made = tables.provenance(runs)
    found = [element("h2", "How this was made")]
    if runs:
        found.append(tables.done(contests))
    if made is not None:
        found.append(made)
    found += [element("h3", "The rule behind the verdict"), listed(RULE, "ol")]
    return [*found, element("h3", "How the figures are computed"), listed(_METHODS)]

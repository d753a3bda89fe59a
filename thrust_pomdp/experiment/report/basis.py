"""How what a verdict goes by came to be: before the results, or after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np

from thrust_pomdp.experiment.report.number_format import format_count, format_number, format_steps
from thrust_pomdp.experiment.report.rule import ERROR, RULE, known_before
from thrust_pomdp.experiment.report.runs import Contest, label_of
from thrust_pomdp.experiment.report.terms import Kept, Plan, Terms
from thrust_pomdp.experiment.report.verdict import Verdict, decide

_NOT_KEPT = (
    "The rule was not kept with the results, which an earlier version made: whether margin, bar "
    "and arms were chosen before them cannot be told."
)

#: Trainings that differ by less in length are equally long: budgets are rounded up to rollouts.
_ALIKE = 1.05


@dataclass(frozen=True)
class Basis:
    """What a contest is judged by.

    :param terms: what the rule leaves open
    :param kept: what is kept with the results; None where a version kept nothing
    :param changes: what is said now and was not so before the results
    """

    terms: Terms
    kept: Kept | None
    changes: Sequence[str]


def judge(
    contest: Contest, kept_in: Mapping[Path, Kept | None], given: Terms
) -> tuple[Contest, Verdict]:
    """Decide by what is kept with the results, or by what is said now in its place.

    :param contest: the environment and its runs
    :param kept_in: what each folder that has runs of it keeps
    :param given: terms that are said now, with the results there
    :return: the contest, with what its arms can remember, and the verdict, which tells what it
        goes by
    :raises ValueError: if the folders keep different terms, and nothing is said in their place
    """
    basis = _basis(contest, kept_in, given)
    contest, verdict = _decided(contest, basis.terms, basis.kept)
    origin, mark = _origin(basis)
    if not mark and any(_added(kept) for kept in kept_in.values() if kept):
        mark = "arms or seeds added after results"
    remarks = [
        *_by_what_was_kept(contest, basis),
        *_put_together(kept_in),
        *(line for kept in kept_in.values() if kept for line in _of_plans(contest, kept)),
        *_of_another_ladder(contest, basis.kept),
        *_unequal(contest),
    ]
    return contest, replace(verdict, origin=origin, mark=mark, remarks=remarks)


def _basis(contest: Contest, kept_in: Mapping[Path, Kept | None], given: Terms) -> Basis:
    said = {arm: memory for arm, memory in given.memory.items() if arm in contest.arms}
    given = replace(given, memory=said)
    folders = {folder: kept for folder, kept in kept_in.items() if kept is not None}
    _check_agree(contest, {f: given.over(kept.terms) for f, kept in folders.items()})
    terms = reduce(lambda found, kept: found.over(kept.terms), folders.values(), Terms())
    kept = None
    if folders and len(folders) == len(kept_in):
        latest = max(folders.values(), key=lambda kept: kept.finished)
        kept = replace(latest, terms=terms)
    return Basis(given.over(terms), kept, given.changes(terms, contest.arms))


def _check_agree(contest: Contest, terms: Mapping[Path, Terms]) -> None:
    """Check that folders of one environment are judged alike.

    :raises ValueError: naming two that are not
    """
    for (one, first), (other, second) in zip(terms.items(), [*terms.items()][1:], strict=False):
        changes = second.changes(first, first.memory.keys() & contest.arms.keys())
        if changes or (first.margin, first.solved) != (second.margin, second.solved):
            raise ValueError(
                f"folders of one environment must keep the same rule, got {one} and {other} with "
                f"margin {first.margin} and {second.margin}, solved {first.solved} and "
                f"{second.solved}, memory {dict(first.memory)} and {dict(second.memory)}: say "
                "them here, and the page says that they were chosen after the results"
            )


def _decided(contest: Contest, terms: Terms, kept: Kept | None) -> tuple[Contest, Verdict]:
    memory = {arm: known for arm, known in terms.memory.items() if arm in contest.arms}
    contest = replace(contest, memory=memory)
    measures = None if kept is None else kept.measures.get(contest.title)
    return contest, decide(contest, terms.margin, terms.solved, measures)


def _origin(basis: Basis) -> tuple[str, str]:
    """Return when the rule was chosen, and the mark of a verdict if not before the first run."""
    kept, changes, after = basis.kept, basis.changes, "by a rule chosen after results"
    if kept is None:
        said = f" AFTER the results was said: {'; '.join(changes)}." if changes else ""
        return f"{_NOT_KEPT}{said}", after if changes else "by a rule that was not kept"
    if changes:
        return f"Chosen AFTER the results: {'; '.join(changes)}.", after
    if kept.finished:
        return f"Written down AFTER {format_count(kept.finished, 'run')} had results.", after
    if tuple(kept.rule) != RULE:
        return (
            "The rule is this version's, AFTER the results: another one was written down before "
            "the first run, by an earlier version, and stands in comparison.json."
        ), after
    return "Written down before the first run.", ""


def _by_what_was_kept(contest: Contest, basis: Basis) -> list[str]:
    """Return the verdict without what is said now, where something is."""
    if basis.kept is None or not basis.changes:
        return []
    _, verdict = _decided(contest, basis.kept.terms, basis.kept)
    when = "as it was kept" if basis.kept.finished else "that was written down before the first run"
    return [f"By the rule {when}: {verdict.sentence}"]


def _put_together(kept_in: Mapping[Path, Kept | None]) -> list[str]:
    if len(kept_in) < 2:
        return []
    return [f"The runs are of {len(kept_in)} folders, which were put together after the results."]


def _of_plans(contest: Contest, kept: Kept) -> list[str]:
    """Return what was added once results were there, and what is not there yet."""
    found = [
        f"Added AFTER {format_count(plan.finished or 0, 'run')} had results: {_seeds(plan)}."
        for plan in _added(kept)
    ]
    if found:
        found.append("Arms and seeds that are added after a look make a word by chance likelier "
                     f"than the {100 * ERROR:g} % of the rule.")  # fmt: skip
    asked: dict[str, int] = {}
    for plan in kept.plans:
        if plan.finished is not None:
            asked |= plan.seeds
    missing = [
        f"{label_of(arm)} {there} of {count} seeds"
        for arm, count in asked.items()
        if (there := len(contest.arms.get(arm, ()))) < count
    ]
    if missing:
        found.append(f"Not all that was asked for is finished: {', '.join(missing)}.")
    return found


def _added(kept: Kept) -> list[Plan]:
    return [plan for plan in kept.plans[1:] if plan.finished]


def _seeds(plan: Plan) -> str:
    return ", ".join(
        f"{label_of(arm)} up to {format_count(count, 'seed')}" for arm, count in plan.seeds.items()
    )


def _of_another_ladder(contest: Contest, kept: Kept | None) -> list[str]:
    """Return that the best memoryless controller is another one than before the runs."""
    measures = {} if kept is None else kept.measures.get(contest.title, {})
    before, now = measures.get("floor"), known_before(contest)["floor"]
    if not measures or before == now:
        return []
    was, is_now = ("none" if value is None else format_number(value) for value in (before, now))
    return [f"The best memoryless controller found reached {was} when the rule was written down; "
            f"{is_now} counts here."]  # fmt: skip


def _unequal(contest: Contest) -> list[str]:
    """Return that trainings were not equally long, with their lengths."""
    trained = {arm: [run.timesteps for run in runs] for arm, runs in contest.arms.items()}
    every = [value for of_arm in trained.values() for value in of_arm]
    if not every or max(every) <= _ALIKE * min(every):
        return []
    lengths = []
    for arm, of_arm in trained.items():
        is_one = max(of_arm) <= _ALIKE * min(of_arm)
        text = (format_steps(float(np.median(of_arm))) if is_one
                else f"{format_steps(min(of_arm))} to {format_steps(max(of_arm))}")  # fmt: skip
        lengths.append(f"{label_of(arm)} {text}")
    return [f"Trainings were not equally long, in steps: {'; '.join(lengths)}."]

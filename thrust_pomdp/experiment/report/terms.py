"""The terms of a verdict: what its rule leaves open, and what was asked for, kept with the results.

A margin, a bar or an arm that is chosen once results are there can be chosen to suit them. So all
of it is written into the folder's ``comparison.json`` before the first run, and what is changed or
added later is told from what stood there before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from thrust_pomdp.experiment.arms import Memory
from thrust_pomdp.experiment.report.rule import RULE, known_before
from thrust_pomdp.experiment.report.runs import Contest
from thrust_pomdp.experiment.results_folder import as_json
from thrust_pomdp.experiment.runs import RunSpec

#: The file of a comparison's folder that the terms are kept in.
MARKER = "comparison.json"

#: The options that say a term, for messages.
OPTIONS = {"margin": "--margin", "solved": "--solved"}


@dataclass(frozen=True)
class Terms:
    """What the rule of the verdict does not know of an environment and of a user's arms.

    :param margin: smallest gain that matters; by the rule if None
    :param solved: score that counts as doing the task; by the rule if None
    :param memory: what arms of the user's own can remember
    """

    margin: float | None = None
    solved: float | None = None
    memory: Mapping[str, Memory] = field(default_factory=dict)

    def over(self, others: Terms) -> Terms:
        """Return these terms, and those of others where nothing is said here."""
        return Terms(
            others.margin if self.margin is None else self.margin,
            others.solved if self.solved is None else self.solved,
            {**others.memory, **self.memory},
        )

    def changes(self, made: Terms, ran: Iterable[str]) -> list[str]:
        """Return what these terms change of others, in words.

        :param made: the others
        :param ran: arms that have results; what a new arm remembers changes nothing
        """
        found = [
            f"{OPTIONS[name]} {_given(now)}, where it was {_given(before)}"
            for name in ("margin", "solved")
            if (now := getattr(self, name)) is not None and now != (before := getattr(made, name))
        ]
        with_results = set(ran)
        for arm, memory in self.memory.items():
            before = made.memory.get(arm, "unknown")
            if arm in with_results and memory != before:
                found.append(f"{_said(memory)} {arm}, where it was {_said(before)}")
        return found


def _given(value: float | None) -> str:
    return "by the rule" if value is None else f"{value:g}"


def _said(memory: Memory) -> str:
    options = {"none": "--memoryless", "recurrent": "--with-memory", "unknown": "not said"}
    return options.get(memory, f"memory ({memory}) of")


@dataclass(frozen=True)
class Plan:
    """What was asked for at some time.

    :param seeds: how many of each arm
    :param finished: runs that had results then; None where it was before plans were kept
    """

    seeds: Mapping[str, int]
    finished: int | None = 0


@dataclass(frozen=True)
class Kept:
    """What a folder keeps of its verdict's rule.

    :param terms: what the rule leaves open
    :param rule: its text, as it was then
    :param measures: margin, bar and floor of each environment, as far as they were known before any
        run; by the environment's title
    :param finished: runs that had results when all this was written
    :param plans: what was asked for, the first and all that was more
    """

    terms: Terms
    rule: Sequence[str]
    measures: Mapping[str, Mapping[str, float | None]]
    finished: int
    plans: Sequence[Plan]

    def as_mapping(self) -> dict[str, Any]:
        """Return it as the file has it."""
        return {
            "rule": list(self.rule),
            "verdict": {
                **asdict(self.terms),
                "measures": self.measures,
                "finished_runs_when_written": self.finished,
            },
            "plans": [asdict(plan) for plan in self.plans],
        }

    @classmethod
    def from_mapping(cls, content: Mapping[str, Any]) -> Kept | None:
        """Read what :meth:`as_mapping` returned; None where an earlier version kept none of it.

        :raises TypeError: or KeyError, if it is anything else
        """
        if not isinstance(content, Mapping):
            raise TypeError(type(content).__name__)
        if "verdict" not in content:
            return None
        said = content["verdict"]
        return cls(
            Terms(said["margin"], said["solved"], dict(said["memory"])),
            tuple(content["rule"]),
            {title: dict(values) for title, values in said["measures"].items()},
            said["finished_runs_when_written"],
            tuple(Plan(dict(plan["seeds"]), plan["finished"]) for plan in content["plans"]),
        )


def read_kept(folder: Path) -> Kept | None:
    """Read what a folder keeps of its verdict's rule.

    :param folder: of a comparison
    :return: None where there is no such file, or it is of a version that kept nothing
    :raises ValueError: if the file was not written by a comparison
    """
    path = folder / MARKER
    if not path.is_file():
        return None
    try:
        return Kept.from_mapping(json.loads(path.read_text(encoding="utf-8")))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f"{path} was not written by a comparison: choose another folder") from None


def check_unchanged(path: Path, kept: Kept | None, given: Terms, ran: Iterable[str]) -> None:
    """Check that terms are those that results were made under.

    :param path: the folder
    :param kept: what it keeps
    :param given: what is asked for now
    :param ran: arms that have results
    :raises ValueError: naming what would change, if there are results
    """
    with_results = set(ran)
    if kept is None or not with_results:
        return
    changes = given.changes(kept.terms, with_results)
    if changes:
        raise ValueError(
            f"{path} has results, and its verdict's rule stood before them: it cannot be changed "
            f"to {'; '.join(changes)}. Choose another folder; or leave it out here and say it to "
            f"`report {path}`, whose page then says that it was chosen after the results"
        )


def kept_now(
    kept: Kept | None, given: Terms, specs: Sequence[RunSpec], found: Sequence[tuple[str, int]]
) -> Kept:
    """Return what a folder is to keep once these runs are asked for.

    :param kept: what it keeps so far
    :param given: terms that are asked for now
    :param specs: the runs asked for
    :param found: arm and seed of the runs that have results
    """
    wanted: dict[str, int] = {}
    for spec in specs:
        wanted[spec.arm] = max(wanted.get(spec.arm, 0), spec.seed + 1)
    if not found:  # nothing was seen: what was meant before binds nobody
        terms = given if kept is None else given.over(kept.terms)
        return Kept(terms, RULE, _measures(specs, {}), 0, (Plan(wanted),))
    if kept is None:
        earlier: dict[str, int] = {}
        for arm, seed in found:
            earlier[arm] = max(earlier.get(arm, 0), seed + 1)
        kept = Kept(given, RULE, {}, len(found), (Plan(earlier, None),))
    more = {arm: count for arm, count in wanted.items() if count > planned(kept.plans).get(arm, 0)}
    return Kept(
        given.over(kept.terms),
        kept.rule,
        _measures(specs, kept.measures),
        kept.finished,
        (*kept.plans, *([Plan(more, len(found))] if more else [])),
    )


def planned(plans: Iterable[Plan]) -> dict[str, int]:
    """Return how many seeds of each arm were asked for in all."""
    found: dict[str, int] = {}
    for plan in plans:
        for arm, count in plan.seeds.items():
            found[arm] = max(found.get(arm, 0), count)
    return found


def _measures(
    specs: Sequence[RunSpec], made: Mapping[str, Mapping[str, float | None]]
) -> dict[str, Mapping[str, float | None]]:
    contests = (Contest(spec.env_id, as_json(spec.env_kwargs), {}) for spec in specs)
    of_title = {contest.title: contest for contest in contests}
    new = {title: contest for title, contest in of_title.items() if title not in made}
    return {**made, **{title: known_before(contest) for title, contest in new.items()}}

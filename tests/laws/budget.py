"""How many cases of each law are run, how many were, and the program that repeats one.

A law is a function of one *case*, a frozen dataclass of plain values whose ``repr`` is Python. What
a case does not say it draws from its ``seed``, so the case is the whole experiment.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

#: For every law the cases of ``make test`` and of ``make test-long``.
BUDGETS: dict[str, tuple[int, int]] = {}
#: Cases that ran to their end in this process.
DONE: Counter[str] = Counter()

_COMMON: dict[str, Any] = {
    "deadline": None,  # machines are shared, and loops are compiled at their first call
    "database": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
# The same cases each time: what passes here passes in CI.
settings.register_profile("fixed", derandomize=True, **_COMMON)
settings.register_profile("long", derandomize=False, **_COMMON)


def case(cls: type) -> type:
    """Make a dataclass of plain values."""
    return dataclasses.dataclass(frozen=True)(cls)


def program(check: Callable[[Any], None], case: Any) -> str:
    """Return what runs one case alone, pasted into a shell in the root of the repository."""
    return (
        "PYTHONPATH=.:tests python - <<'END'\n"
        f"from {check.__module__} import *\n"
        f"{check.__name__}.check({case!r})\n"
        "END"
    )


def law(cases: st.SearchStrategy[Any], *, fixed: int, long: int) -> Callable[..., Any]:
    """Make a test of a function of one case.

    :param cases: where the cases come from
    :param fixed: how many are run by ``make test``, the same ones each time
    :param long: how many by ``make test-long``, others each time; ``LAW_CASES`` overrides it
    """

    def decorate(check: Callable[[Any], None]) -> Callable[..., Any]:
        name = f"{check.__module__.rpartition('.')[2]}::{check.__name__}"
        BUDGETS[name] = fixed, long

        def run(case: Any) -> None:
            note(f"\n{program(check, case)}\n")
            check(case)
            DONE[name] += 1

        run.__name__, run.__module__, run.__doc__ = check.__name__, check.__module__, check.__doc__
        is_long = settings.get_current_profile_name() == "long"
        n_cases = int(os.environ.get("LAW_CASES", long)) if is_long else fixed
        test: Any = settings(max_examples=n_cases)(given(case=cases)(run))
        test.check = check
        return test

    return decorate

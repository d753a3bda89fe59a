"""Which cases are run, and the count of those that were."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

from laws.budget import DONE


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--hypothesis-profile", None) is None:
        settings.load_profile("fixed")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    before = sum(DONE.values())
    yield
    # In the report, so that it comes from the processes of pytest-xdist too.
    if hasattr(getattr(item, "obj", None), "check"):  # a law
        item.user_properties.append(("law_cases", sum(DONE.values()) - before))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = {
        report.nodeid: count
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, count in report.user_properties
        if name == "law_cases" and count > 0
    }
    if not counts:
        return
    terminalreporter.section("cases of laws")
    for nodeid, count in counts.items():
        terminalreporter.write_line(f"{count:8,d}  {nodeid.partition('laws/')[2]}")
    terminalreporter.write_line(f"{sum(counts.values()):8,d}  cases of {len(counts)} laws")

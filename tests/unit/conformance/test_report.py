"""A report tells what was found, and raises where a law is broken."""

from __future__ import annotations

import pytest

from thrust_pomdp.conformance import Finding, Report

REPORT = Report(
    "lib.PPO",
    (
        Finding("first pass", "held", "largest difference 1e-07"),
        Finding("no leak", "broken", "values at step 3 change"),
        Finding("one use", "not observable", "nothing is logged"),
        Finding("determinism", "held"),
    ),
)


def test_is_printed_a_line_a_law():
    assert str(REPORT).splitlines() == [
        "lib.PPO: 2 held, 1 broken, 1 not observable",
        "- first pass: held: largest difference 1e-07",
        "- no leak: broken: values at step 3 change",
        "- one use: not observable: because nothing is logged",
        "- determinism: held",
    ]


def test_names_what_is_broken():
    assert REPORT.broken == ("no leak",)
    assert REPORT.not_observable == ("one use",)
    with pytest.raises(AssertionError, match="lib.PPO breaks 1 of 4 laws") as raised:
        REPORT.raise_if_broken()
    assert "\n- no leak: broken: values at step 3 change" in str(raised.value)
    assert "one use" not in str(raised.value)


def test_is_silent_where_nothing_is_broken():
    Report("lib.PPO", (Finding("one use", "not observable", "nothing"),)).raise_if_broken()


def test_gives_the_finding_of_a_law():
    assert REPORT["no leak"].verdict == "broken"
    with pytest.raises(KeyError, match="'no leek' was not looked at"):
        REPORT["no leek"]

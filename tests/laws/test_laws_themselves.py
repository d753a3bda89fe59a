"""The laws themselves: how many cases there are, and that a printed program is the case."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import laws
from laws.budget import BUDGETS, DONE, case, law, program

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _all_laws() -> None:
    for path in sorted(Path(laws.__file__).parent.glob("test_*.py")):
        __import__(f"laws.{path.stem}")


def test_the_long_mode_has_at_least_ten_thousand_cases() -> None:
    assert sum(long for _, long in BUDGETS.values()) >= 10_000
    assert all(fixed < long for fixed, long in BUDGETS.values())


def test_every_law_of_the_issue_has_a_file() -> None:
    files = {name.partition("::")[0] for name in BUDGETS}
    assert files == {
        f"test_laws_{name}"
        for name in ("memory", "gae", "buffers", "losses", "normaliser", "blanking",
                     "native_vectors", "wrappers", "commands")
    }  # fmt: skip


@case
class Two:
    number: int
    text: str


def check_two(two: Two) -> None:
    assert two.number < 10


def test_a_failure_prints_a_small_program_that_fails_alike() -> None:
    def broken(two: Two) -> None:
        """A law that does not hold."""
        check_two(two)

    before = dict(BUDGETS), DONE.copy()
    # As this module would have it: the program imports it by its name.
    broken.__name__ = "check_two"
    test = law(st.builds(Two, number=st.integers(), text=st.text()), fixed=200, long=200)(broken)
    with pytest.raises(AssertionError) as raised:
        test()
    BUDGETS.clear()
    BUDGETS.update(before[0])
    DONE.clear()
    DONE.update(before[1])
    notes = "\n".join(raised.value.__notes__)
    assert program(broken, Two(10, "")) in notes


def test_a_program_runs_in_a_shell() -> None:
    from laws import test_laws_gae

    some: list[object] = []

    @settings(max_examples=1, database=None, derandomize=True)
    @given(test_laws_gae.rollouts())
    def draw(drawn: object) -> None:
        some.append(drawn)

    draw()
    check = test_laws_gae.test_advantages_are_the_sum_that_defines_them.check
    lines = program(check, some[0]).splitlines()
    assert lines[0] == "PYTHONPATH=.:tests python - <<'END'"
    assert lines[-1] == "END"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines[1:-1])],
        cwd=ROOT,
        env={"PYTHONPATH": ".:tests"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr

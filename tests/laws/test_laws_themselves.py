"""The laws themselves: how many cases there are, and that a printed program is the case."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture
def _uncounted() -> Iterator[None]:
    """Forget the laws that a test makes, and their cases."""
    budgets, done = dict(BUDGETS), DONE.copy()
    yield
    BUDGETS.clear()
    BUDGETS.update(budgets)
    DONE.clear()
    DONE.update(done)


TWOS = st.builds(Two, number=st.integers(), text=st.text())


@pytest.mark.usefixtures("_uncounted")
def test_a_failure_prints_a_small_program_that_fails_alike() -> None:
    def broken(two: Two) -> None:
        check_two(two)

    # As this module would have it: the program imports it by its name.
    broken.__name__ = "check_two"
    with pytest.raises(AssertionError) as raised:
        law(TWOS, fixed=200, long=200)(broken)()
    assert program(broken, Two(10, "")) in "\n".join(raised.value.__notes__)


@pytest.mark.usefixtures("_uncounted")
def test_cases_are_the_same_each_time_but_in_the_long_mode() -> None:
    met: list[list[Two]] = []

    def recording(two: Two) -> None:
        met[-1].append(two)

    test = law(TWOS, fixed=20, long=20)(recording)
    for _ in range(2):
        met.append([])
        test()
    assert len(met[0]) == 20
    assert DONE["test_laws_themselves::recording"] == 40
    is_long = settings.get_current_profile_name() == "long"
    assert (met[0] == met[1]) is not is_long


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

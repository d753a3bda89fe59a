"""The faults that scripts/mutate.py plants: they are small, they parse, and they stay drawn."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from mutants import drawn, mutants_of  # noqa: E402

SOURCE = '''"""A docstring with 1 + 1."""

from __future__ import annotations

import numpy as np

__all__ = ["f"]
Name: TypeAlias = dict[str, int]


def f(x: int = 3, *, on: bool = True) -> float:
    """Return 2 * x."""
    assert x > 0
    if x < 4 and not on:
        raise ValueError(f"x must be {x + 1}" + "!")
    for _ in range(x):
        x += 1
        if on:
            break
    print(x, end="ä")
    return min(-x, np.zeros(2, dtype=float).sum() * 0.5)
'''


def changed() -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for mutant in mutants_of("a.py", SOURCE):
        found.setdefault((mutant.function, mutant.kind), []).append(mutant.after)
    return found


def test_each_kind_of_change_is_made_where_it_can_be():
    assert {key: sorted(after) for key, after in changed().items()} == {
        ("f", "constant"): sorted(["4", "False", "5", "2", "3", "0.75"]),
        ("f", "comparison"): ["(x <= 4)"],
        ("f", "and/or"): ["(x < 4 or not on)"],
        ("f", "not"): ["(on)"],
        ("f", "arithmetic"): sorted(["x -= 1", "(np.zeros(2, dtype=float).sum() / 0.5)"]),
        ("f", "condition"): sorted(["(not (x < 4 and (not on)))", "(not (on))"]),
        ("f", "loop"): ["continue"],
        ("f", "statement"): ["pass"],
        ("f", "keyword"): sorted(["print(x)", "np.zeros(2)"]),
        ("f", "opposite"): sorted(
            ["max(-x, np.zeros(2, dtype=float).sum() * 0.5)", "np.ones(2, dtype=float)"]
        ),
        ("f", "sign"): ["(x)"],
    }


def test_a_change_is_in_its_place_alone():
    whole = ast.unparse(ast.parse(SOURCE))
    for mutant in mutants_of("a.py", SOURCE):
        text = mutant.applied(SOURCE)
        ast.parse(text)
        assert ast.unparse(ast.parse(text)) != whole
        first, _, last, _ = mutant.span
        assert text.splitlines()[: first - 1] == SOURCE.splitlines()[: first - 1]
        after = SOURCE.splitlines()[last:]
        assert text.splitlines()[len(text.splitlines()) - len(after) :] == after


def test_its_key_stays_while_other_code_changes():
    moved = SOURCE.replace("import numpy as np\n", "import numpy as np\n\nTWO = 2\n")
    keys = {mutant.key for mutant in mutants_of("a.py", SOURCE)}
    assert len(keys) == len(mutants_of("a.py", SOURCE))
    assert keys < {mutant.key for mutant in mutants_of("a.py", moved)}
    assert not keys & {mutant.key for mutant in mutants_of("b.py", SOURCE)}


@pytest.mark.parametrize("count", [5, 20])
def test_more_of_them_hold_the_fewer(count, tmp_path):
    folder = tmp_path / "thrust_pomdp" / "ppo"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text(SOURCE)
    some = drawn(count, 0, tmp_path)
    assert [m.key for m in drawn(100, 0, tmp_path)][: len(some)] == [m.key for m in some]
    assert [m.key for m in drawn(count, 1, tmp_path)] != [m.key for m in some]

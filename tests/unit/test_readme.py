"""The README's Python blocks run, with smaller budgets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
SMALLER = {"200_000": "1_024", "n_eval_episodes=100": "n_eval_episodes=2", "range(500)": "range(5)"}


def test_nothing_is_left_to_fill_in():
    assert "PLACEHOLDER" not in README.read_text()


def test_blocks_run_one_after_the_other(capsys):
    code = "\n".join(BLOCKS)
    for number, smaller in SMALLER.items():
        assert number in code, f"{number} is no longer in the README: mend this test"
        code = code.replace(number, smaller)
    namespace: dict[str, object] = {}
    exec(compile(code, str(README), "exec"), namespace)
    assert namespace["model"].num_timesteps == 1_024
    assert capsys.readouterr().out.startswith("(")


@pytest.mark.parametrize("name", re.findall(r"`((?:scripts|tests|docs|thrust_pomdp)/[\w/.]+)`?",
                                            README.read_text()))  # fmt: skip
def test_files_it_names_exist(name):
    assert (README.parent / name).exists()


@pytest.mark.parametrize("page", [README, *README.parent.glob("docs/**/*.md")],
                         ids=lambda page: str(page.relative_to(README.parent)))  # fmt: skip
def test_files_that_pages_link_to_or_show_exist(page):
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    for target in targets:
        if "://" not in target:
            assert (page.parent / target).exists(), target

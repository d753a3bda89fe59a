"""What is said of every script: it can be read, and tells what it does."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
#: What hatch calls, and no program of its own.
HOOKS = {"long_description"}
PROGRAMS = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem not in HOOKS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_says_what_it_does(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(SCRIPTS)
    main = importlib.import_module(name).main
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    assert f"{name}" in capsys.readouterr().out

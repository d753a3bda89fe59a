"""What is said of every script: it can be read, and tells what it does."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
PROGRAMS = sorted(
    path.stem
    for path in SCRIPTS.glob("*.py")
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_says_what_it_does(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(SCRIPTS)
    main = importlib.import_module(name).main
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    assert f"{name}" in capsys.readouterr().out

"""The Python of the README, with smaller budgets, and which files beside it are there."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
#: Whether this is an unpacked sdist, which leaves out pictures that no test compares.
IS_SDIST = (README.parent / "PKG-INFO").exists()
SMALLER = {
    "2_000_000": "1_024",
    "200_000": "1_024",
    "n_eval_episodes=100": "n_eval_episodes=2",
    "range(500)": "range(5)",
}


def readme_program() -> str:
    """Return the README's blocks one after the other, as one program that takes seconds."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), flags=re.DOTALL))
    for number, smaller in SMALLER.items():
        assert number in code, f"{number} is no longer in the README: mend this file"
        code = code.replace(number, smaller)
    return code


def is_there(path: Path) -> bool:
    """Tell whether a file is there that pages link to or show, or is rightly left out."""
    return path.exists() or (IS_SDIST and path.suffix in {".gif", ".png"})

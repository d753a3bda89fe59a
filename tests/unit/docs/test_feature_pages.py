"""The Python blocks of the pages on features run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [*sorted((DOCS / "features").glob("*.md")), DOCS / "checkpoints.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks(page: Path) -> list[str]:
    """A page's blocks, each below as many empty lines as there are lines above it in the page."""
    text = page.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, found.start(1)) + found[1] for found in BLOCK.finditer(text)]


@each_page
class TestPages:
    def test_blocks_run_in_one_namespace(
        self, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        code = blocks(page)
        assert code, f"{page.name} has no ```python block"
        namespace: dict[str, object] = {"__name__": page.stem}
        for block in code:
            exec(compile(block, str(page), "exec"), namespace)

    def test_examples_are_short(self, page: Path) -> None:
        assert all(len(block.strip().splitlines()) < 40 for block in blocks(page))


def test_a_block_that_fails_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n```python\na = 1\n```\n\n```bash\nfalse\n```\n```python\n1 / 0\n```\n"
    )
    first, second = blocks(page)
    namespace: dict[str, object] = {}
    exec(first, namespace)
    assert namespace["a"] == 1
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile(second, str(page), "exec"), namespace)
    assert caught.tb.tb_next.tb_lineno == 11  # the line of the page


class TestDifferencesFromSB3Contrib:
    """Each difference is pinned by a test that exists."""

    PAGE = DOCS / "sb3-contrib.md"
    ROW = re.compile(r"^\| (\d+) \|.*\| (.*) \|$", re.MULTILINE)

    def rows(self) -> list[tuple[int, list[str]]]:
        found = self.ROW.findall(self.PAGE.read_text())
        return [(int(number), re.findall(r"`([^`]+)`", tests)) for number, tests in found]

    def test_are_numbered(self) -> None:
        assert [number for number, _ in self.rows()] == list(range(1, len(self.rows()) + 1))
        assert len(self.rows()) > 10

    def test_are_pinned(self) -> None:
        tests = Path(__file__).parents[2]
        for number, names in self.rows():
            assert names, number
            for name in names:
                path, _, what = name.partition("::")
                text = (tests / path).read_text()
                assert re.search(rf"^(class|def) {what}\b", text, re.MULTILINE), name

"""The site of the documentation: every public name is on it, and it is built without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import thrust_pomdp
from thrust_pomdp import conformance, distributed, recurrent
from thrust_pomdp.ppo import maskable

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
FRONT = DOCS / "index.md"
REFERENCE = {
    f"reference/{path.name}": path.read_text(encoding="utf-8")
    for path in sorted((DOCS / "reference").glob("*.md"))
}

PUBLIC = {
    **{name: f"thrust_pomdp.{name}" for name in thrust_pomdp.__all__},
    **{name: f"thrust_pomdp.recurrent.{name}" for name in recurrent.__all__},
    **{
        name: f"thrust_pomdp.conformance.{name}"
        for name in conformance.__all__
        if name not in recurrent.__all__
    },
    **{name: f"thrust_pomdp.distributed.{name}" for name in distributed.__all__},
    "NumpyActor": "thrust_pomdp.deploy.numpy_actor.NumpyActor",
    "OnnxActor": "thrust_pomdp.deploy.onnx_actor.OnnxActor",
    **{
        name: f"thrust_pomdp.ppo.maskable.{name}"
        for name in maskable.__all__
        if name not in thrust_pomdp.__all__
    },
}
every_name = pytest.mark.parametrize("name", PUBLIC)


def navigation() -> set[str]:
    """Pages that the trees of the front page list, as paths in docs/ without a suffix."""
    found: set[str] = set()
    for tree in re.findall(r"^```\{toctree\}\n(.*?)^```", FRONT.read_text(), re.DOTALL | re.M):
        for entry in tree.splitlines():
            if entry and not entry.startswith(":"):
                pages = DOCS.glob(f"{entry}.md")
                found |= {page.relative_to(DOCS).with_suffix("").as_posix() for page in pages}
    return found


def pages_of(name: str) -> list[str]:
    """Pages of the reference that show a name's docstring below a heading of that name."""
    entry = rf"^## {name}\n\n```\{{eval-rst\}}\n\.\. auto(class|function):: {PUBLIC[name]}\n"
    return [page for page, text in REFERENCE.items() if re.search(entry, text, re.MULTILINE)]


class TestReference:
    @every_name
    def test_shows_each_public_name_on_one_page(self, name: str) -> None:
        assert len(pages_of(name)) == 1

    @every_name
    def test_is_one_click_from_the_front_page(self, name: str) -> None:
        (page,) = pages_of(name)
        assert f"[`{name}`]({page}#{name.lower()})" in FRONT.read_text(encoding="utf-8")

    def test_shows_nothing_that_is_gone(self) -> None:
        text = "\n".join(REFERENCE.values())
        assert set(re.findall(r"^## (.*)", text, re.MULTILINE)) == PUBLIC.keys()


def test_every_page_is_in_the_navigation() -> None:
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert navigation() == pages - {"index"}


def build(docs: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build a site in folder/html as `make docs` does."""
    pytest.importorskip("sphinx")
    options = ["-q", "-W", "-E", "-b", "html", "-d", str(folder / "doctrees")]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(docs), str(folder / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this revision."""
    folder = tmp_path_factory.mktemp("site")
    done = build(DOCS, folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder / "html"


@pytest.mark.external
class TestSite:
    @every_name
    def test_has_each_docstring_where_the_front_page_leads(self, name: str, site: Path) -> None:
        (page,) = pages_of(name)
        target = f"{page.removesuffix('.md')}.html"
        anchor = name.lower().replace("_", "-")  # as docutils makes them
        assert f'href="{target}#{anchor}"' in (site / "index.html").read_text("utf-8")
        html = (site / target).read_text("utf-8")
        assert f'id="{anchor}"' in html
        assert f'id="{PUBLIC[name]}"' in html

    def test_has_the_demo_which_leads_to_the_tutorial(self, site: Path) -> None:
        assert 'href="demo/index.html"' in (site / "index.html").read_text("utf-8")
        (link,) = re.findall('<a href="([^"]*)"', (site / "demo/index.html").read_text("utf-8"))
        assert (site / "demo" / link).read_text("utf-8").count("<h1>") == 1

    def test_needs_nothing_from_the_network(self, site: Path) -> None:
        for page in site.rglob("*.html"):
            text = page.read_text("utf-8")
            assert not re.findall(r'<(?:script|img|link)[^>]* (?:src|href)="https?:', text), page


@pytest.mark.external
@pytest.mark.parametrize(
    ("written", "built"),
    [
        ("[here](#a-title) {py:meth}`thrust_pomdp.RecurrentPPO.learn`", True),
        ("{py:class}`gymnasium.Env` {py:func}`minibatch_sizes`", True),
        ("[a page](nowhere.md)", False),
        ("[a heading](#nowhere)", False),
        ("![a picture](nowhere.png)", False),
        ("{py:class}`thrust_pomdp.Nowhere`", False),
        ("{py:meth}`RecurrentPPO.nowhere`", False),
    ],
)
def test_what_leads_nowhere_stops_the_build(written: str, built: bool, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(DOCS / "conf.py", docs)
    reference = "```{eval-rst}\n.. autoclass:: thrust_pomdp.RecurrentPPO\n```"
    (docs / "index.md").write_text(f"# A title\n\n{written}\n\n{reference}\n")
    done = build(docs, tmp_path)
    assert (done.returncode == 0) == built, done.stderr
    assert (done.stderr == "") == built

"""What a release holds: the built files, what they say about themselves, and that they install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import yaml
from hatchling import build
from readme_program import readme_program

#: Later releases of Python 3.11 ask for it, the first ones do not know it.
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from long_description import long_description  # noqa: E402

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
VERSION = PROJECT["version"]
LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist and a wheel."""
    folder = tmp_path_factory.mktemp("dist")
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        build.build_sdist(str(folder))
        build.build_wheel(str(folder))
    finally:
        os.chdir(before)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def in_wheel(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    name = f"thrust_pomdp-{VERSION}.dist-info/METADATA"
    return message_from_bytes(zipfile.ZipFile(wheel).read(name))


@pytest.fixture(scope="module")
def in_sdist(built: Path) -> set[str]:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def files(folder: str) -> set[str]:
    """Files of a folder of the repository that are somebody's work."""
    paths = [path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()]
    return {
        path.as_posix()
        for path in paths
        if not any(part.startswith((".", "__pycache__")) for part in path.parts)
    }


def is_picture(name: str) -> bool:
    return name.endswith((".gif", ".jpg", ".mp4", ".png", ".svg"))


class TestBuiltFiles:
    def test_the_wheel_has_the_package_and_nothing_else(self, in_wheel: set[str]) -> None:
        about = {name for name in in_wheel if name.startswith(f"thrust_pomdp-{VERSION}.dist-info/")}
        assert in_wheel - about == files("thrust_pomdp")
        assert f"thrust_pomdp-{VERSION}.dist-info/licenses/LICENSE" in about

    def test_the_sdist_has_all_that_the_commands_of_the_readme_need(
        self, in_sdist: set[str]
    ) -> None:
        folders = ("docs", "scripts", "tests", "thrust_pomdp")
        needed = {name for folder in folders for name in files(folder) if not is_picture(name)}
        assert needed - in_sdist == set()
        assert {"Makefile", "README.md", "constraints.txt", "pyproject.toml"} <= in_sdist
        assert {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE"} <= in_sdist

    def test_of_the_pictures_it_has_those_that_a_test_compares(self, in_sdist: set[str]) -> None:
        pictures = {name for name in in_sdist if is_picture(name)}
        compared = files("docs/envs") | files("docs/media/tutorial")
        assert pictures == {name for name in compared if is_picture(name)}

    def test_a_wheel_of_the_sdist_is_the_same(
        self, built: Path, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
            archive.extractall(tmp_path, **SAFELY)
        monkeypatch.chdir(tmp_path / f"thrust_pomdp-{VERSION}")
        again = tmp_path / build.build_wheel(str(tmp_path))
        assert again.read_bytes() == wheel.read_bytes()


class TestWhatItSaysOfItself:
    def test_no_link_of_the_long_description_leads_to_a_file(self, metadata: Message) -> None:
        text = metadata.get_payload()
        assert isinstance(text, str)
        targets = LINK.findall(text)
        assert targets != []
        assert [target for target in targets if not target.startswith("https://")] == []
        # Apart from those it is the README.
        assert "## In twenty lines" in text

    def test_links_become_text_or_absolute(self) -> None:
        readme = "[![Fast](a.png)](b.md) [c](docs/c.md#d), [e](#f), [g](https://h.example/i)."
        assert long_description(readme) == "*Fast* c, e, [g](https://h.example/i)."
        absolute = "[*Fast*](https://x.example/b.md) [c](https://x.example/docs/c.md#d), "
        absolute += "[e](https://x.example/#f), [g](https://h.example/i)."
        assert long_description(readme, "https://x.example/") == absolute

    def test_the_version_is_everywhere_the_same(self) -> None:
        init = (ROOT / "thrust_pomdp" / "__init__.py").read_text(encoding="utf-8")
        assert f'__version__ = "{VERSION}"' in init

    def test_the_last_release_is_cited_and_code_after_it_says_that_it_is_another(self) -> None:
        """Files tell which code wrote them: between releases it is a development version."""
        citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
        sections = re.findall(
            r"^## \[(.+?)\](.*?)(?=^## |\Z)",
            (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
            re.DOTALL | re.MULTILINE,
        )
        assert sections[0][0] == "Unreleased"
        released = sections[1][0]
        assert str(citation["version"]) == released
        if sections[0][1].strip():
            assert re.fullmatch(r"\d+\.\d+\.\d+\.dev\d+", VERSION)
            number = [int(part) for part in VERSION.split(".")[:3]]
            assert number > [int(part) for part in released.split(".")]
        else:
            assert released == VERSION

    def test_the_citation_names_the_same_work(self) -> None:
        citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
        assert citation["title"] == f"thrust_pomdp: {PROJECT['description']}"
        assert citation["license"] == PROJECT["license"]
        assert citation["authors"] == PROJECT["authors"]
        assert citation["keywords"] == PROJECT["keywords"]

    def test_the_oldest_python_is_everywhere_the_same(self) -> None:
        named = "Programming Language :: Python :: "
        versions = [c.removeprefix(named) for c in PROJECT["classifiers"] if c.startswith(named)]
        oldest = min((v for v in versions if "." in v), key=lambda v: tuple(map(int, v.split("."))))
        assert PROJECT["requires-python"] == f">={oldest}"
        assert PYPROJECT["tool"]["mypy"]["python_version"] == oldest
        assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
        for page in ("README.md", "constraints.txt"):
            assert f"Python {oldest} " in (ROOT / page).read_text(encoding="utf-8")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command, without what variables tell the Python, pip or make that runs this test."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "COV_", "MAKE", "MFLAGS")) and name != "VIRTUAL_ENV"
    }
    result = subprocess.run(
        list(map(str, command)), cwd=cwd, env=kept, capture_output=True, text=True, timeout=1800
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_wheel_in_an_empty_environment_runs_the_readme(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    where = run(python, "-c", "import thrust_pomdp; print(thrust_pomdp.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path / "env")
    printed = run(python, "-W", "error", "-c", readme_program(), cwd=tmp_path)
    assert re.fullmatch(r"\(.+, .+\)\n", printed)


MAKE_HELP = run("make", "help", cwd=ROOT)
TARGETS = re.findall(r"^make (\S+) +(.+)$", MAKE_HELP, flags=re.MULTILINE)


class TestMake:
    def test_help_names_every_target(self) -> None:
        (phony,) = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [target for target, _ in TARGETS] == phony.split()
        assert len(MAKE_HELP.splitlines()) == len(TARGETS)

    @pytest.mark.parametrize("target", [target for target, _ in TARGETS])
    def test_each_can_be_read(self, target: str) -> None:
        assert run("make", "-n", target, cwd=ROOT) != ""

    def test_pre_commit_runs_what_lint_runs(self) -> None:
        config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
        (repo,) = config["repos"]
        entries = [hook["entry"] for hook in repo["hooks"]]
        lint = run("make", "-n", "-o", ".venv/.dev", "lint", cwd=ROOT).splitlines()
        assert lint == entries

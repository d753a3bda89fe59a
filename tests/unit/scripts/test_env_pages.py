"""The pages of the environments say what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from thrust_pomdp.envs import MaskedCartPoleEnv
from thrust_pomdp.envs.registration import ENVIRONMENTS
from thrust_pomdp.reference import Rung

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "envs"

every_id = pytest.mark.parametrize("env_id", ENVIRONMENTS)


@pytest.fixture(scope="module")
def env_pages():
    spec = importlib.util.spec_from_file_location("env_pages", ROOT / "scripts" / "env_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table_rows(page: str, section: str) -> list[list[str]]:
    """The cells of the first table of a section, its head left out."""
    text = page.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


class TestUpToDate:
    """If one of these fails: python scripts/env_pages.py"""

    def test_the_committed_pages_are_what_the_script_writes(self, env_pages) -> None:
        written = env_pages.pages()
        committed = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
        assert committed == written

    @every_id
    def test_the_committed_pictures_are_what_the_script_paints(self, env_id, env_pages) -> None:
        pytest.importorskip("pygame")
        painted = env_pages.picture(env_id)
        with Image.open(FOLDER / f"{env_id}.png") as file:
            committed = np.asarray(file.convert("RGB"))
        assert committed.shape == painted.shape
        # Another version of pygame may smooth edges and letters in another way.
        assert np.abs(committed.astype(int) - painted).mean() < 1

    def test_there_are_no_pictures_of_ids_that_are_gone(self) -> None:
        assert {path.stem for path in FOLDER.glob("*.png")} == set(ENVIRONMENTS)

    def test_a_changed_docstring_changes_the_page(self, env_pages, monkeypatch) -> None:
        before = env_pages.page("MaskedCartPole-v0")
        doc = MaskedCartPoleEnv.__doc__.replace("* v0: initial version", "* v1: another one")
        monkeypatch.setattr(MaskedCartPoleEnv, "__doc__", doc)
        assert env_pages.page("MaskedCartPole-v0") == before.replace(
            "* v0: initial version", "* v1: another one"
        )

    def test_the_script_writes_a_page_and_a_picture_per_id(self, env_pages, tmp_path) -> None:
        pytest.importorskip("pygame")
        assert env_pages.main(["--out", str(tmp_path / "new")]) == 0
        names = {path.name for path in (tmp_path / "new").iterdir()}
        files = {f"{env_id}.{ending}" for env_id in ENVIRONMENTS for ending in ("md", "png")}
        assert names == files | {"README.md"}


class TestContent:
    @every_id
    def test_every_page_has_gymnasiums_parts(self, env_id: str, env_pages) -> None:
        page = env_pages.page(env_id)
        assert page.startswith(f"# {env_id}\n")
        titles = re.findall(r"^## (.*)$", page, flags=re.MULTILINE)
        for title in ("Description", "Action space", "Observation space", "Arguments"):
            assert title in titles
        assert any(title.startswith("Reward") for title in titles)
        assert any(title.endswith("end") for title in titles)
        assert titles[-2:] == ["What memory is worth", "Version history"]

    @every_id
    def test_no_restructured_text_is_left_over(self, env_id: str, env_pages) -> None:
        page = env_pages.page(env_id)
        assert not re.search(r"(?<!`)``(?!`)", page)
        assert not re.search(r":\w+:`|^:\w+ ?\w*:", page, flags=re.MULTILINE)
        assert page.count("```") % 2 == 0

    @every_id
    def test_every_argument_is_explained_with_the_ids_value(self, env_id: str, env_pages) -> None:
        rows = table_rows(env_pages.page(env_id), "Arguments")
        here = {row[0].strip("`"): row[1].strip("`") for row in rows}
        assert (
            here.items()
            >= {name: repr(value) for name, value in gym.spec(env_id).kwargs.items()}.items()
        )
        assert "render_mode" in here
        assert all(len(row) == 3 and row[2] for row in rows)

    @every_id
    def test_links_lead_somewhere(self, env_id: str, env_pages) -> None:
        links = re.findall(r"\]\((\S+?)\)", env_pages.page(env_id) + env_pages.index([env_id]))
        assert links
        for link in links:
            assert (FOLDER / link).exists(), link

    @every_id
    def test_bounds_in_the_docstring_are_those_of_the_space(self, env_id: str, env_pages) -> None:
        rows = table_rows(env_pages.page(env_id), "Observation space")
        space = gym.make(env_id).observation_space
        if len(rows) != len(space.low):  # velocities are dropped: a column tells which
            rows = [row for row in rows if row[-1].startswith("index")]
        assert len(rows) == len(space.low)
        for row, low, high in zip(rows, space.low, space.high, strict=True):
            if len(row) >= 5:  # others list values
                np.testing.assert_allclose([float(row[2]), float(row[3])], [low, high], atol=1e-3)

    def test_a_blanking_law_in_numbers_by_hand(self, env_pages) -> None:
        # p = .5, L = 8: q = p / (L (1 - p)) = 1/8, correlation 1 - 1/(L (1 - p)) = 3/4.
        rows = dict(table_rows(env_pages.page("BurstFlickeringCartPole-L8-v0"), "Blanking law"))
        assert rows == {
            "share of blank frames": "0.5",
            "chance that an episode's first frame is blank": "0.5",
            "chance of a blank after a visible frame": "0.125",
            "chance of a blank after a blank frame": "0.875",
            "mean run of blank frames": "8",
            "mean run of visible frames": "8",
            "correlation of neighbouring flags": "0.75",
        }

    def test_only_what_blanks_has_a_blanking_law(self, env_pages) -> None:
        for env_id, flickers in (("MaskedCartPole-v0", False), ("FlickeringCartPole-v0", True)):
            assert ("## Blanking law" in env_pages.page(env_id)) == flickers

    def test_floor_and_ceiling_are_the_ladders(self, env_pages, monkeypatch) -> None:
        rungs = (
            Rung("best law", "memoryless", 52.61, 0.25, 4000, "best found", "a lower bound"),
            Rung("observer", "exact model", 500.0, 0.0, 4000, "proof", "the most there is"),
        )
        monkeypatch.setitem(env_pages.LADDER, "MaskedCartPole-v0", rungs)
        rows = table_rows(env_pages.page("MaskedCartPole-v0"), "What memory is worth")
        assert rows == [
            ["memoryless", "best law", "52.61 ± 0.49", "best found: a lower bound"],
            ["exact model", "observer", "500", "proof: the most there is"],
        ]
        index = env_pages.index(["MaskedCartPole-v0"])
        assert index.splitlines()[-1].endswith("| 52.61 ± 0.49 | 500 (proof) |")

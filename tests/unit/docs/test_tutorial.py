"""The tutorial's code runs and prints what the page shows, and the notebook is the same."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from PIL import Image
from readme_program import is_there

from thrust_pomdp.experiment.commands.compare import parser
from thrust_pomdp.reference import LADDER

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "tutorial.md"
NOTEBOOK = DOCS / "tutorial.ipynb"

TEXT = PAGE.read_text()
#: The prose without line breaks, to look for phrases in.
PROSE = " ".join(TEXT.split())


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("tutorial", DOCS.parent / "scripts/tutorial.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tutorial = load_script()


def code_cells() -> list[dict[str, Any]]:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def printed_in(cell: dict[str, Any]) -> str:
    """What the committed notebook says that a cell printed."""
    streams = [output for output in cell["outputs"] if output["output_type"] == "stream"]
    return "".join("".join(stream["text"]) for stream in streams)


class TestAgreement:
    """If one of these fails: python scripts/tutorial.py --prose"""

    def test_the_committed_notebook_is_what_the_script_makes_of_the_page(self):
        assert NOTEBOOK.read_text() == tutorial.notebook(tutorial.read(TEXT))

    def test_the_notebook_has_the_pages_blocks_as_cells_in_the_same_order(self):
        blocks = re.findall(r"^```python\n(.*?)\n```$", TEXT, flags=re.DOTALL | re.MULTILINE)
        assert ["".join(cell["source"]) for cell in code_cells()] == blocks

    def test_the_notebook_shows_the_outputs_that_the_page_shows(self):
        outputs = re.findall(r"^```text.*?\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)
        assert [text for cell in code_cells() if (text := printed_in(cell))] == outputs

    def test_the_notebook_has_all_prose(self):
        cells = json.loads(NOTEBOOK.read_text())["cells"]
        prose = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        fences = re.compile(r"^```(?:python|text).*?^```$|^!\[.*?\)$", re.DOTALL | re.MULTILINE)
        assert " ".join(" ".join(prose).split()) == " ".join(fences.sub("", TEXT).split())

    def test_cells_have_different_ids(self):
        ids = [cell["id"] for cell in json.loads(NOTEBOOK.read_text())["cells"]]
        assert len(set(ids)) == len(ids)


class TestScript:
    PAGE = "Prose\n\n```python\nx = 1\nprint(x)\n```\n\n```text measured\n1\n```\n\nMore prose\n"

    def test_a_page_taken_apart_and_put_together_is_the_same(self):
        assert tutorial.write(tutorial.read(TEXT)) == TEXT
        assert tutorial.write(tutorial.read(self.PAGE)) == self.PAGE

    def test_outputs_are_put_in(self, tmp_path):
        stale = self.PAGE.replace("\n1\n", "\nstale\n")
        assert tutorial.write(tutorial.with_outputs(tutorial.read(stale), tmp_path)) == self.PAGE

    @pytest.mark.parametrize(
        "page",
        [
            "```python\nprint(1)\n```\n\nNothing tells what it prints.\n",
            "```python\nx = 1\n```\n\n```text\n1\n```\n",
        ],
    )
    def test_outputs_and_places_for_them_must_come_together(self, page, tmp_path):
        with pytest.raises(ValueError, match="a text block must follow what prints"):
            tutorial.with_outputs(tutorial.read(page), tmp_path)


@pytest.fixture
def calm(monkeypatch, tmp_path):
    """Draw on no screen, write into a temporary folder, and leave torch's threads as they were."""
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("Agg")
    n_threads = th.get_num_threads()
    yield
    th.set_num_threads(n_threads)
    plt.close("all")


def test_the_notebook_runs_from_top_to_bottom_and_gives_what_the_page_shows(calm, tmp_path):
    """If the outputs differ: python scripts/tutorial.py"""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = code_cells()
    printed = tutorial.run(["".join(cell["source"]) for cell in cells], namespace)
    for page_cell, cell in zip(tutorial.read(TEXT)[1::2], cells, strict=True):
        output = next(printed)
        if not page_cell.measured:
            assert output == printed_in(cell)
    check_measured(namespace)
    check_pictures(tmp_path / "pictures")


def check_measured(page: dict[str, Any]) -> None:
    """What the prose says of trainings and long games holds here too, whatever the digits are."""
    reached = page["reached"]
    for rung in LADDER["FlickeringCartPole-v0"]:
        assert abs(reached[rung.controller] - rung.mean) < 25  # over 5 standard errors
    assert reached["fixed action on blanks"] < 35
    assert 100 < reached["repeat"] < 200 < 480 < reached["alternate"]
    assert page["means"].max() > page["returns"].mean() + 15
    assert page["right"] < 1e-5
    assert page["faulty"] > 1e-2
    assert page["carried"] < 1e-5
    assert page["dropped"] > 1e-2
    assert page["remembering"] > 200  # four times the best memoryless controller
    assert page["sampling"] > 100
    assert page["forgetting"] < 60
    assert "a state" in str(page["told"][0].message)
    assert abs(page["maze_returns"][4, "zero"]) < 0.3
    assert page["maze_returns"][4, "carry"] > 0.7
    assert page["maze_returns"][32, "zero"] > 0.7


def check_pictures(drawn: Path) -> None:
    committed = {path.name: path for path in (DOCS / "media" / "tutorial").iterdir()}
    assert {path.name for path in drawn.iterdir()} == committed.keys()
    for name, path in committed.items():
        with Image.open(path) as one, Image.open(drawn / name) as other:
            assert one.size == other.size
            # Another version of matplotlib may smooth lines and letters in another way.
            before, now = (np.asarray(image.convert("L"), float) for image in (one, other))
        assert np.abs(before - now).mean() < 3


def rung(env_id: str, information: str) -> float:
    return next(r.mean for r in LADDER[env_id] if r.information == information)


def trained(name: str, arm: str, column: str) -> list[float]:
    with (DOCS / "results" / "ids" / name / "summary.csv").open() as file:
        return [float(row[column]) for row in csv.DictReader(file) if row["arm"] == arm]


class TestFiguresInTheProse:
    @pytest.mark.parametrize(
        ("env_id", "information", "phrase"),
        [
            ("FlickeringCartPole-v0", "nothing", "it reads {:.1f} for random play"),
            ("FlickeringCartPole-v0", "memoryless", "**{:.1f}** without memory"),
            ("FlickeringCartPole-v0", "two frames", "{:.1f} with two frames"),
            ("FlickeringCartPole-v0", "previous action", "{:.1f} with the previous action"),
            ("FlickeringCartPole-v0", "exact model", "**{:.0f}** with an exact model"),
            ("FlickeringCartPole-v0", "previous action", "{:.0f} of 500 on `Flickering"),
            ("MaskedCartPole-v0", "previous action", "and {:.0f} on `MaskedCartPole-v0`"),
            ("BurstFlickeringCartPole-v0", "two frames", "they bring {:.0f}, since"),
            ("BurstFlickeringCartPole-v0", "previous action", "one bit of memory reaches {:.0f}"),
            ("MaskedCartPole-v0", "memoryless", "memoryless controller found {:.0f}, exact"),
        ],
    )
    def test_of_the_ladder(self, env_id, information, phrase):
        assert phrase.format(rung(env_id, information)) in PROSE

    def test_of_trained_policies(self):
        burst = trained("burst", "lstm", "most_likely")
        assert f"five LSTMs reached {min(burst):.0f} to {max(burst):.0f} in 300,000" in PROSE
        assert len(burst) == 5
        masked = trained("masked", "lstm", "most_likely")
        assert f"end between {min(masked):.1f} and {max(masked):.1f} by their most" in PROSE
        assert len(masked) == 5
        assert "Five trained ones did not on average" in PROSE
        memoryless = trained("flickering", "mlp", "sampled")
        assert np.mean(memoryless) < rung("FlickeringCartPole-v0", "memoryless")
        assert len(memoryless) == 5

    def test_of_the_masking_page(self):
        assert "k, tau = 167.2, 0.02" in TEXT
        assert "k = 167.2 1/s²" in (DOCS / "masking.md").read_text()


class TestReferences:
    @pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", TEXT))
    def test_links_lead_somewhere(self, link):
        assert is_there(DOCS / link)

    @pytest.mark.parametrize("name", re.findall(r"`((?:scripts|docs)/[\w/.-]+)`?", TEXT))
    def test_files_it_names_exist(self, name):
        assert (DOCS.parent / name).exists()

    @pytest.mark.parametrize(
        "command", re.findall(r"^python -m thrust_pomdp compare (--.+)", TEXT, re.MULTILINE)
    )
    def test_commands_are_understood(self, command):
        assert parser().parse_args(shlex.split(command)).env

    def test_sections_it_refers_to_exist(self):
        sections = set(re.findall(r"^## (\d+)\.", TEXT, re.MULTILINE))
        assert set(re.findall(r"section (\d+)", PROSE)) <= sections
        exercises = re.findall(r"^(\d+)\. \*(?:By hand|Code)", TEXT, re.MULTILINE)
        assert set(re.findall(r"exercise (\d+)", PROSE)) <= set(exercises)
        assert re.findall(r"^### Answer (\d+)", TEXT, re.MULTILINE) == exercises

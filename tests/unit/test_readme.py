"""The README's Python blocks run, with smaller budgets."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from readme_program import README, is_there, readme_program

from thrust_pomdp.experiment.commands import compare

sys.path.insert(0, str(README.parent / "scripts"))

import demo

MAKEFILE = (README.parent / "Makefile").read_text()


def test_nothing_is_left_to_fill_in():
    assert "PLACEHOLDER" not in README.read_text()


def test_blocks_run_one_after_the_other(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a block writes a folder
    namespace: dict[str, object] = {}
    exec(compile(readme_program(), str(README), "exec"), namespace)
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
            assert is_there(page.parent / target), target


class TestDemo:
    """What the README says that `make demo` prints."""

    REVISION = "0123456789abcdef"

    def made(self, folder: Path, numba: bool, changes: dict | None = None, **provenance) -> Path:
        """Results of the demo that took no time."""
        (folder / "runs").mkdir(parents=True)
        args = compare.parser().parse_args(["--out", str(folder)])
        versions = {"torch": "2.13.0+cpu", **({"numba": "0.68.1"} if numba else {})}
        noted = {
            "git_revision": self.REVISION,
            "versions": versions,
            "machine": {"cpus": 2, "processor": "of mine"},
            **provenance,
        }
        for spec in compare.run_specs(args):
            values = {
                "spec": {**asdict(spec), **(changes or {})}, "final": 1.0, "best": 2.0,
                "deterministic": [26.0], "stochastic": [181.0], "timesteps": 200_704,
                "seconds": 3.0, "curve": [], "provenance": noted,
            }  # fmt: skip
            (folder / "runs" / f"{spec.name}.json").write_text(json.dumps(values))
        return folder

    def block(self, folder: Path) -> str:
        return demo.block(folder, MAKEFILE)

    def test_it_has_the_table_and_where_that_came_from(self, tmp_path):
        numba = demo.installs_numba(MAKEFILE)
        text = self.block(self.made(tmp_path, numba))
        lines = [line.split() for line in text.splitlines()[:6]]
        assert lines[1][:5] == ["arm", "seed", "final", "best", "sampled"]
        assert lines[4] == ["mlp", "0", "1.000", "2.000", "181.0", "26.0", "200704", "3.0"]
        assert lines[0] == lines[5] == ["```"]
        said = " ".join(text.split())
        assert f"Printed at revision 0123456, {'with' if numba else 'without'} Numba" in said
        assert "on 2 cores of this processor: of mine. Digits depend on the processor" in said
        assert "gets 26 by its most likely action, not 181" in said

    def test_an_installation_that_the_command_does_not_make_is_refused(self, tmp_path):
        numba = demo.installs_numba(MAKEFILE)
        with pytest.raises(ValueError, match=r"`make demo` installs with(out)? Numba: run it in"):
            self.block(self.made(tmp_path, not numba))

    @pytest.mark.parametrize("extras", ["compare", "compare,fast", "fast,compare"])
    def test_what_the_command_installs_is_read_from_the_makefile(self, extras):
        makefile = re.sub(r"-e '\.\[compare[^\]]*\]'", f"-e '.[{extras}]'", MAKEFILE)
        assert demo.installs_numba(makefile) == ("fast" in extras)

    @pytest.mark.parametrize("revision", [None, "0123456789abcdef+"])
    def test_changed_sources_are_refused(self, tmp_path, revision):
        folder = self.made(tmp_path, demo.installs_numba(MAKEFILE), git_revision=revision)
        with pytest.raises(ValueError, match="must be of a revision without changes, got "):
            self.block(folder)

    @pytest.mark.parametrize(
        "change", [{"n_timesteps": 2000}, {"env_kwargs": {"flicker_prob": 0.1}}, {"evaluations": 0}]
    )
    def test_other_arguments_are_refused(self, tmp_path, change):
        folder = self.made(tmp_path, demo.installs_numba(MAKEFILE), change)
        (key,) = change
        with pytest.raises(ValueError, match=f"lstm-seed0 must have {key}="):
            self.block(folder)
        for path in (folder / "runs").glob("mlp*"):
            path.unlink()
        with pytest.raises(ValueError, match="must hold the runs lstm-seed0, mlp-seed0, got lstm"):
            self.block(folder)

    def test_the_readme_has_what_the_script_writes(self):
        (found,) = demo.MARKS.finditer(README.read_text())
        said = " ".join(found[0].split())
        numba = "with Numba" if demo.installs_numba(MAKEFILE) else "without Numba"
        assert re.search(rf"Printed at revision [0-9a-f]{{7}}, {numba}", said)
        assert "Digits depend on the processor" in said
        assert demo.filled(README.read_text(), "x\n") != README.read_text()

    def test_a_page_without_marks_is_refused(self):
        with pytest.raises(ValueError, match="must have a line <!-- demo -->"):
            demo.filled("no marks", "x")

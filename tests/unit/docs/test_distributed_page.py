"""The program of the page on many processes runs, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")


def program(n_steps: int) -> str:
    """The page's program, with fewer steps."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert "learn(200_000" in code
    return code.replace("200_000", str(n_steps))


def test_runs_in_one_process(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "train"}
    exec(compile(program(4096), "train.py", "exec"), names)
    assert "total_timesteps" in capsys.readouterr().out
    assert (tmp_path / "flickering.zip").exists()
    assert names["model"].num_timesteps == 4096


@pytest.mark.distributed
def test_runs_by_its_one_command(tmp_path):
    (command,) = re.findall(r"^torchrun --nproc-per-node 2 .*$", PAGE, re.MULTILINE)
    (tmp_path / "train.py").write_text(program(4096))
    words = [sys.executable, "-m", "torch.distributed.run", *command.split()[1:]]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "flickering.zip").exists()
    assert done.stdout.count("total_timesteps") == 2  # two windows, told by rank 0 alone


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+\.md)", PAGE):
        assert (ROOT / "docs" / link).exists(), link

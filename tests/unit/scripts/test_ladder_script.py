"""``scripts/ladder.py``: what it measures and writes, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from thrust_pomdp.reference import (
    ladder,
)
from thrust_pomdp.reference.figures import read_figures

ROOT = Path(__file__).parents[3]


MASKED, FLICKERING = "MaskedCartPole-v0", "FlickeringCartPole-v0"


class TestLadderScript:
    def call(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "ladder.py"), *arguments],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--env", "FlickeringCartpole-v0"], "Did you mean"),
            (["--env", "CartPole-v1"], "of this package"),
            (["--env", FLICKERING, "--env-kwargs", "flicker_prob:1.5"], "must be a probability"),
            (["--env", FLICKERING, "--env-kwargs", "flicker_prob=.3"], "expected name:value"),
            (["--env-kwargs", "flicker_prob:0.3"], "need --env"),
            (["--episodes", "0"], "must be at least 1"),
            (["--episodes", "1"], "must be at least 2"),
            (["--env", MASKED, "--seed", "-1"], "argument --seed: must be at least 0, got -1"),
            (["--markdown", str(ROOT / "README.md")], "must hold the marks"),
            (["--markdown", "there-is-no.md"], "there-is-no.md"),
            (["--plot", "ladder.pgn"], "must name a .png file, got ladder.pgn"),
            (["--csv", str(ROOT)], "must name files"),
            (["--csv", str(ROOT / "README.md" / "a.csv")], "README.md"),
        ],
    )
    def test_bad_arguments_exit_with_2_and_a_message(self, arguments, message):
        done = self.call(*arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr

    def test_prints_writes_and_draws_the_same_figures(self, tmp_path):
        done = self.call(
            "--env", FLICKERING, "--env-kwargs", "flicker_prob:0.75", "--episodes", "30", "--jobs",
            "1", "--csv", str(tmp_path / "new" / "a.csv"), "--plot", str(tmp_path / "a.png"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        (written,) = read_figures(tmp_path / "new" / "a.csv")
        assert written.env_kwargs == {"flicker_prob": 0.75}
        expected = ladder(FLICKERING, 30, flicker_prob=0.75)
        assert list(written.rungs) == expected
        assert all(f"{r.mean:.1f}" in done.stdout for r in expected)
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

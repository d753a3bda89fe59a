"""The page on files: its program runs, and each loader that can run code says so where it is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from thrust_pomdp import (
    RecurrentPPO,
    StatefulActor,
    VecNormalizeVisible,
    VecPrivilegedInfo,
    from_sb3_contrib,
)
from thrust_pomdp.deploy.observation_layers import load_normalizer
from thrust_pomdp.experiment import playback, saved_models

PAGE = Path(__file__).parents[3] / "docs" / "files.md"


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    found: dict[str, Any] = {}
    exec(program, found)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "actor.safetensors",
        "model.safetensors",
        "normalizer.safetensors",
    ]
    raw = found["venv"].unwrapped.reset()
    assert found["actor"].act(raw, blanked=[False] * 4).shape == (4,)
    assert found["model"].num_timesteps == 256


@pytest.mark.parametrize(
    "loader",
    [
        RecurrentPPO.load,
        RecurrentPPO.save,
        from_sb3_contrib,
        VecNormalizeVisible.load,
        VecNormalizeVisible.save,
        VecPrivilegedInfo.load_statistics,
        VecPrivilegedInfo.save_statistics,
        StatefulActor,
        load_normalizer,
        playback.load_model,
        playback.SavedRun.load,
        saved_models.load_run_model,
        saved_models.load_run_normalizer,
    ],
)
def test_what_can_run_code_warns(loader: Any) -> None:
    text = inspect.getdoc(loader) or ""
    warning = text.partition(".. warning::")[2]
    assert re.search(r"pickle|runs what|run any code", " ".join(warning.split()))


@pytest.mark.parametrize(
    "loader", [RecurrentPPO.load, from_sb3_contrib, VecNormalizeVisible.load, StatefulActor]
)
def test_and_can_be_told_not_to(loader: Any) -> None:
    assert inspect.signature(loader).parameters["trusted"].default is True
    assert "trusted=False" in PAGE.read_text(encoding="utf-8")

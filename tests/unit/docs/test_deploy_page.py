"""What the page on deployment tells is run: a short training stands for that of `make demo`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from thrust_pomdp.deploy.numpy_actor import NumpyActor
from thrust_pomdp.deploy.players import COMPILERS, NODE
from thrust_pomdp.experiment.commands import export
from thrust_pomdp.experiment.folder import save_result
from thrust_pomdp.experiment.runs import RunSpec
from thrust_pomdp.experiment.training import run

PAGE = Path(__file__).parents[3] / "docs" / "deploy.md"
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Train what the page's commands start from, for a moment."""
    path = tmp_path_factory.mktemp("deploy")
    stem = path / "results/demo/runs/lstm-seed0"
    stem.parent.mkdir(parents=True)
    spec = RunSpec(
        "lstm", "FlickeringCartPole-v0", 0, n_timesteps=512, deterministic_episodes=1,
        stochastic_episodes=1, evaluations=0,
    )  # fmt: skip
    result = run(spec, save_to=stem)
    save_result(result, stem.with_suffix(".json"))
    return path


def in_shell(commands: str, folder: Path) -> str:
    """Run a block's lines."""
    commands = commands.replace("python -m", f"{sys.executable} -m")
    if not shutil.which("cc"):
        commands = commands.replace("cc -", f"{COMPILERS[0]} -")
    done = subprocess.run(
        ["sh", "-e"], input=commands, cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not COMPILERS, reason="there is no C compiler")
def test_from_a_run_to_a_program_in_c(folder):
    first, build = blocks("bash")
    told = in_shell(first, folder)
    for runtime in ("NumPy", "C", *(["Node"] if NODE else [])):
        assert re.search(rf"^{runtime}: 1,000 steps, 0 different actions", told, re.MULTILINE)
    (source,) = blocks("c")
    (folder / "pole.c").write_text(source)
    lengths = [int(line) for line in in_shell(build, folder).split()]
    assert lengths == lengths_in_python(folder)


def lengths_in_python(folder: Path) -> list[int]:
    """Do what pole.c does."""
    same = folder / "same.npz"
    assert export.main([str(folder / "results/demo/runs/lstm-seed0"), str(same)]) == 0
    actor, state, lengths = NumpyActor(same), 1, []

    def uniform() -> float:
        nonlocal state
        state = (state * 1664525 + 1013904223) % 2**32
        return state / 2**32

    for _ in range(10):
        cart, steps, up = np.array([0.1 * uniform() - 0.05 for _ in range(4)]), 0, True
        actor.reset()
        while up and steps < 500:
            blank = uniform() < 0.5
            action = actor.act(0 * cart if blank else cart, blanked=blank)
            up, steps = moved(cart, action), steps + 1
        lengths.append(steps)
    return lengths


def moved(cart: np.ndarray, action: int) -> bool:
    sine, cosine = np.sin(cart[2]), np.cos(cart[2])
    push = ((10.0 if action else -10.0) + 0.05 * cart[3] ** 2 * sine) / 1.1
    turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
    cart += 0.02 * np.array([cart[1], push - 0.05 * turn * cosine / 1.1, cart[3], turn])
    return bool(abs(cart[0]) <= 2.4 and abs(cart[2]) <= 12 * 2 * np.pi / 360)


def test_blocks_in_python_and_javascript_run(folder, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(folder)
    namespace: dict[str, object] = {"__name__": "deploy"}
    for block in blocks("python"):
        exec(compile(block, str(PAGE), "exec"), namespace)
    (page,) = blocks("js")
    (folder / "page.mjs").write_text(page)
    if NODE:
        done = subprocess.run([NODE, "page.mjs"], cwd=folder, capture_output=True, text=True)
        assert done.stdout.strip() in ("0", "1"), done.stderr


def test_every_block_is_of_a_kind_that_is_run():
    kinds = re.findall(r"^```(\w+)", TEXT, flags=re.MULTILINE)
    assert set(kinds) == {"bash", "c", "python", "js"}

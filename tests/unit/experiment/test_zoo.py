"""`python -m thrust_pomdp zoo`: RL Zoo's programs with our algorithm as ppo_lstm."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from thrust_pomdp import RecurrentPPO, make_vec_env
from thrust_pomdp.experiment.commands import zoo

PAGE = (Path(__file__).parents[3] / "docs" / "rl-zoo.md").read_text(encoding="utf-8")

#: What the page says to put into mine.yml.
(SETTINGS,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)

#: The page's commands, by the words behind `zoo`.
COMMANDS = [
    shlex.split(line)
    for line in PAGE.replace("\\\n", " ").splitlines()
    if line.startswith("python -m thrust_pomdp zoo")
]


class TestWithoutTheExtra:
    def test_the_message_names_it(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert zoo.main(["train", "--algo", "ppo_lstm"]) == 2
        assert "pip install 'thrust-pomdp[zoo]'" in capsys.readouterr().err

    def test_help_needs_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert zoo.main(["--help"]) == 0
        assert "usage: zoo {train,enjoy,optimize}" in capsys.readouterr().out

    def test_no_command_is_an_error(self) -> None:
        assert zoo.main([]) == 2

    def test_a_misspelt_command_is_recognised(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert zoo.main(["optimise"]) == 2
        assert "did you mean optimize?" in capsys.readouterr().err


class TestExchange:
    """On a stand-in for RL Zoo that tells what it found."""

    PROGRAM = """
import sys
from rl_zoo3 import ALGOS, TOLD
def {0}():
    TOLD.append(("{0}", sys.argv, ALGOS["ppo_lstm"], ALGOS["ppo"]))
    if "--fail" in sys.argv:
        raise ValueError("failed")
"""

    @pytest.fixture
    def told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list]:
        package = tmp_path / "rl_zoo3"
        package.mkdir()
        (package / "__init__.py").write_text(
            "ALGOS = {'ppo_lstm': 'theirs', 'ppo': 'their PPO'}\nTOLD = []\n"
        )
        for name in ("train", "enjoy"):
            (package / f"{name}.py").write_text(self.PROGRAM.format(name))
        for name in ("pandas", "requests"):
            (tmp_path / f"{name}.py").write_text("")
        kept = {n: sys.modules.pop(n) for n in list(sys.modules) if n.split(".")[0] == "rl_zoo3"}
        monkeypatch.syspath_prepend(tmp_path)
        yield importlib.import_module("rl_zoo3").TOLD
        for name in [n for n in sys.modules if n.split(".")[0] == "rl_zoo3"]:
            del sys.modules[name]
        sys.modules.update(kept)

    @pytest.mark.parametrize(
        ("name", "module", "more"),
        [
            ("train", "train", []),
            ("enjoy", "enjoy", []),
            ("optimize", "train", ["--optimize-hyperparameters"]),
        ],
    )
    def test_their_program_finds_our_algorithm_and_its_arguments(
        self, name: str, module: str, more: list[str], told: list
    ) -> None:
        assert zoo.main([name, "--env", "TMaze-v0"]) == 0
        assert told == [
            (module, [f"zoo {name}", *more, "--env", "TMaze-v0"], RecurrentPPO, "their PPO")
        ]

    @pytest.mark.parametrize("arguments", [[], ["--fail"]])
    def test_what_was_there_is_there_again(self, arguments: list[str], told: list) -> None:
        before = sys.argv
        assert zoo.main(["train", *arguments]) == (2 if arguments else 0)
        assert sys.argv is before
        assert sys.modules["rl_zoo3"].ALGOS["ppo_lstm"] == "theirs"


def needs_zoo() -> None:
    for module in ("rl_zoo3", "pandas", "requests"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is missing: pip install 'thrust-pomdp[zoo]'")


def run(folder: Path, name: str, env_id: str, *more: str) -> str:
    """Run the page's command, without the network, and return what it prints."""
    (command,) = [words for words in COMMANDS if words[4] == name and env_id in words]
    done = subprocess.run(
        [sys.executable, *command[1:], *more],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's first command has been run."""
    needs_zoo()
    made = tmp_path_factory.mktemp("zoo")
    (made / "mine.yml").write_text(SETTINGS)
    run(made, "train", "MaskedCartPole-v0", "--seed", "1")
    return made


@pytest.mark.external
class TestThePagesCommands:
    def test_train_makes_the_gradient_steps_that_batch_size_asks_for(self, folder: Path) -> None:
        file = folder / "logs" / "ppo_lstm" / "MaskedCartPole-v0_1" / "MaskedCartPole-v0.zip"
        model = RecurrentPPO.load(file)  # sb3-contrib's would be refused
        steps = {int(state["step"]) for state in model.policy.optimizer.state.values()}
        rollouts, epochs, minibatches = 256 // (2 * 64), 10, 2 * 64 // 32
        assert steps == {rollouts * epochs * minibatches}

    def test_enjoy_loads_what_was_trained(self, folder: Path) -> None:
        said = run(folder, "enjoy", "MaskedCartPole-v0")
        assert "Loading logs/ppo_lstm/MaskedCartPole-v0_1/MaskedCartPole-v0.zip" in said
        assert "Mean episode length" in said

    def test_optimize_finishes_a_trial(self, folder: Path) -> None:
        said = run(folder, "optimize", "MaskedCartPole-v0", "--n-trials", "1", "--seed", "1")
        assert "Number of finished trials:  1" in said
        assert list((folder / "logs" / "ppo_lstm").glob("report_*.csv"))

    def test_their_own_settings_need_no_file(self, folder: Path) -> None:
        said = run(folder, "train", "CartPoleNoVel-v1", "-n", "256")
        assert "Saving to logs/ppo_lstm/CartPoleNoVel-v1_1" in said


@pytest.mark.external
def test_each_tuned_batch_size_of_theirs_keeps_its_meaning() -> None:
    needs_zoo()
    (folder,) = importlib.util.find_spec("rl_zoo3").submodule_search_locations
    tuned = yaml.safe_load((Path(folder) / "hyperparams" / "ppo_lstm.yml").read_text())
    asked = {(e.get("n_envs", 1), e["n_steps"], e["batch_size"]) for e in tuned.values()
             if "batch_size" in e and "n_steps" in e}  # fmt: skip
    assert len(asked) > 5
    for n_envs, n_steps, batch_size in asked:
        model = RecurrentPPO(
            "MlpLstmPolicy",
            make_vec_env("MaskedCartPole-v0", n_envs),
            n_steps=n_steps,
            batch_size=batch_size,
            policy_kwargs={"lstm_hidden_size": 2, "net_arch": []},
        )
        length = model._cut_length() or n_steps
        assert model._sequences_per_minibatch() * length == min(batch_size, n_envs * n_steps)

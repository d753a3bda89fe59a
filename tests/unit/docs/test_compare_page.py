"""docs/compare.md: its module works, and the commands take what it says."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path

import gymnasium as gym
import pytest

from thrust_pomdp.experiment.arms import ARMS, find_arm
from thrust_pomdp.experiment.commands import compare, options, report, sweep, tune
from thrust_pomdp.experiment.recipes import recipe_for
from thrust_pomdp.experiment.tuning import Range, read_space

TEXT = (Path(__file__).parents[3] / "docs" / "compare.md").read_text()
(MODULE,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
(SPACE,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
COMMANDS = re.findall(r"^python -m thrust_pomdp (.*)$", TEXT, flags=re.MULTILINE)
PARSERS = {"compare": compare, "report": report, "sweep": sweep, "tune": tune}


@pytest.fixture(autouse=True)
def recall(tmp_path, monkeypatch):
    """The module of the page beside the user."""
    (tmp_path / "recall.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield importlib.import_module("recall")
    sys.modules.pop("recall")
    gym.registry.pop("Recall-v0")


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_taken(command):
    name, *arguments = shlex.split(command)
    args = PARSERS[name].parser().parse_args(arguments)
    if name == "compare":
        options.check_env(args.env, dict(args.env_kwargs), args.arms)
        given = args.recipe is not None  # the file is what the command before it writes
        assert given or len(compare.run_specs(args)) == args.seeds * len(args.arms)


def test_every_command_is_on_the_page():
    assert {command.split()[0] for command in COMMANDS} == PARSERS.keys()


def test_the_environment_rewards_what_was_shown(recall):
    env = gym.make("Recall-v0", wait=3)
    for seed in range(4):
        cue = int(env.reset(seed=seed)[0][0])
        steps = [env.step(int(cue > 0)) for _ in range(4)]
        assert [step[1] for step in steps] == [0.0, 0.0, 0.0, 1.0]
        assert [step[2] for step in steps] == [False, False, False, True]


def test_the_space_is_one_of_the_arm(tmp_path):
    (tmp_path / "space.yml").write_text(SPACE)
    arm = find_arm("recall:a2c")
    space = read_space(tmp_path / "space.yml", arm, recipe_for(arm.name, "Recall-v0"))
    assert space["learning_rate"] == Range(1e-4, 1e-2, log=True)


def test_every_arm_is_on_the_page():
    assert all(f"`{name}`" in TEXT for name in ARMS)

"""What type checkers see of the package: right programs pass, and misspelt names do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RIGHT = """
import io

import gymnasium as gym
import numpy as np
import sb3_contrib

import thrust_pomdp
from thrust_pomdp import (
    MaskableRecurrentPPO,
    RecurrentPPO,
    StatefulActor,
    VecNormalizeVisible,
    VecPreviousAction,
    from_sb3_contrib,
    look_inside,
    make_vec_env,
    to_sb3_contrib,
)
from thrust_pomdp.ppo.maskable import evaluate_policy, get_action_masks

venv = VecPreviousAction(VecNormalizeVisible(make_vec_env("FlickeringCartPole-v0", n_envs=4)))
model = RecurrentPPO("MlpLstmPolicy", venv, n_steps=64, policy_kwargs={"lstm_hidden_size": 8})
model = model.learn(128)
again: RecurrentPPO = RecurrentPPO.load("model.zip", env="FlickeringCartPole-v0")
action, state = model.predict(np.zeros(4), None, np.ones(1), deterministic=True)
actor = StatefulActor(model, deterministic=True, previous_action=True)
actions: np.ndarray = actor.act(np.zeros(4))
actor = StatefulActor.like(model, venv)
trace = look_inside(model, venv, 100)
hidden: np.ndarray = trace.hidden

# from_sb3_contrib's own example
theirs, file = sb3_contrib.RecurrentPPO("MlpLstmPolicy", "CartPole-v1"), io.BytesIO()
theirs.save(file)
loaded = from_sb3_contrib(file, env="CartPole-v1")
back: sb3_contrib.RecurrentPPO = to_sb3_contrib(loaded)

env = thrust_pomdp.FlickerObservation(gym.make("CartPole-v1"), burst_len=4)
masked = MaskableRecurrentPPO("MlpLstmPolicy", env).learn(128)
mean, std = evaluate_policy(masked, env, n_eval_episodes=2)
print(mean + std, get_action_masks(env).all())
returns, lengths = evaluate_policy(masked, env, return_episode_rewards=True)
print(sum(returns) + sum(lengths))
"""

#: Wrong lines, and what a type checker must say of each.
WRONG = {
    "from thrust_pomdp import RecurentPPO": 'has no attribute "RecurentPPO"',
    "import thrust_pomdp": None,
    "thrust_pomdp.VecNormaliseVisible": 'has no attribute "VecNormaliseVisible"',
    "from thrust_pomdp.ppo.maskable import evaluate_policy": None,
    "evaluate_policy(3, None)": 'No overload variant of "evaluate_policy"',
}


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Run mypy once over both programs."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text("\n".join(WRONG))
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--hide-error-context",
    ]
    command += [str(folder / "right.py"), str(folder / "wrong.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def test_a_right_program_passes_a_strict_type_checker(complaints):
    assert [line for line in complaints if "right.py" in line] == []


@pytest.mark.parametrize("line", [line for line in WRONG if WRONG[line]])
def test_a_wrong_one_does_not(complaints, line):
    number = list(WRONG).index(line) + 1
    told = [complaint for complaint in complaints if f"wrong.py:{number}:" in complaint]
    assert len(told) == 1
    assert WRONG[line] in told[0]

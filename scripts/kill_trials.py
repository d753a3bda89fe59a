"""Kill trainings at random moments, start them again, and compare how they end, bit for bit.

    python scripts/kill_trials.py --trials 200 --seed 0

Each trial runs one of the settings below in a process of its own, kills it (``kill -9``) after a
random time, several times over, then lets it end. What is compared with the training that nobody
killed: weights, optimiser, statistics of the normaliser, the CSV log but for its columns of time,
the evaluations. The table says what the process was doing when it was killed.

Processes are forked from one that has torch loaded, so this needs POSIX. Set NUMBA_DISABLE_JIT=1
for the paths without compiled loops.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import mmap
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env as sb3_make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

from thrust_pomdp import RecurrentPPO, TrainingCheckpoint, VecPreviousAction, make_vec_env
from thrust_pomdp.checkpoint import folder as checkpoint_folder

PHASES = ("starting", "collecting", "training", "evaluating", "writing", "ending")
STEPS, N_ENVS, WINDOW = 4_000, 4, 32


class Told(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole that tells its state, as an environment of a user's own may."""

    def get_state(self) -> dict[str, Any]:
        env: Any = self.env.unwrapped
        elapsed: Any = self.env
        return {
            "state": None if env.state is None else np.array(env.state),
            "beyond": env.steps_beyond_terminated,
            "elapsed": elapsed._elapsed_steps,
            "random": env.np_random.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        env: Any = self.env.unwrapped
        elapsed: Any = self.env
        env.state = None if state["state"] is None else np.array(state["state"])
        env.steps_beyond_terminated = state["beyond"]
        elapsed._elapsed_steps = state["elapsed"]
        elapsed._has_reset = elapsed.env._has_reset = True
        env.np_random.bit_generator.state = state["random"]


def told_cartpole() -> gym.Env[Any, Any]:
    return Told(gym.make("CartPole-v1"))


def native(seed: int, **kwargs: Any) -> VecEnv:
    env = make_vec_env("BurstFlickeringCartPole-v0", N_ENVS, seed=seed, normalize=True, **kwargs)
    return VecPreviousAction(env)


def foreign(env_id: Any, seed: int) -> VecEnv:
    return VecNormalize(sb3_make_vec_env(env_id, N_ENVS, seed=seed))


Setting = tuple[Callable[[int], VecEnv], dict[str, Any], dict[str, Any]]

#: Environments, arguments of the algorithm, arguments of the checkpoint.
SETTINGS: dict[str, Setting] = {
    "LSTM, native": (native, {}, {}),
    "GRU, carried, subsequences, native": (
        native,
        {
            "policy_kwargs": {"rnn_class": nn.GRU},
            "window_state": "carry",
            "sequence_length": 8,
            "batch_size": 32,
        },
        {},
    ),
    "LSTM, an env that tells its state": (partial(foreign, told_cartpole), {}, {}),
    "LSTM, gSDE, pickled Pendulum": (
        partial(foreign, "Pendulum-v1"),
        {"use_sde": True, "sde_sample_freq": 4},
        {"pickle_envs": True},
    ),
}


def train(name: str, path: Path, evaluate_first: bool, phase: mmap.mmap) -> None:
    """Be the script that is killed and started again."""
    make, kwargs, options = SETTINGS[name]
    _watch(phase)
    env = make(1)
    policy_kwargs = {"lstm_hidden_size": 16, **kwargs.get("policy_kwargs", {})}
    arguments = {"n_steps": WINDOW, "batch_size": 64, "n_epochs": 2, "seed": 0, **kwargs}
    model = RecurrentPPO("MlpLstmPolicy", env, **{**arguments, "policy_kwargs": policy_kwargs})
    model.set_logger(configure(str(path / "log"), ["csv"]))
    evaluation = EvalCallback(
        make(2), eval_freq=90, n_eval_episodes=3, log_path=str(path / "log"), verbose=0
    )
    checkpoint = TrainingCheckpoint(path / "checkpoints", every=200, **options)
    callbacks = [evaluation, checkpoint] if evaluate_first else [checkpoint, evaluation]
    model.learn(STEPS, callback=callbacks, log_interval=3)
    phase[0] = PHASES.index("ending")
    (path / "digest.txt").write_text(digest(model, path), encoding="utf-8")


def digest(model: RecurrentPPO, path: Path) -> str:
    """Describe all that a training leaves, a line each."""
    lines = []
    for name, weight in model.policy.state_dict().items():
        lines.append(f"weight {name} {_hash(weight)}")
    for key, state in model.policy.optimizer.state_dict()["state"].items():
        lines += [f"optimizer {key} {name} {_hash(part)}" for name, part in state.items()]
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        for what in ("obs_rms", "ret_rms"):
            rms: Any = getattr(normalizer, what)
            lines.append(f"{what} {_hash(rms.mean)} {_hash(rms.var)} {rms.count!r}")
    lines.append(f"steps {model.num_timesteps} updates {model._n_updates}")
    with (path / "log" / "progress.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            kept = {key: value for key, value in sorted(row.items()) if not _is_time(key)}
            lines.append(f"log {kept}")
    with np.load(path / "log" / "evaluations.npz") as found:
        lines += [f"evaluations {name} {_hash(found[name])}" for name in sorted(found.files)]
    return "\n".join(lines) + "\n"


def _is_time(key: str) -> bool:
    return key in ("time/fps", "time/time_elapsed")


def _hash(numbers: Any) -> str:
    array = numbers.numpy() if isinstance(numbers, th.Tensor) else np.asarray(numbers)
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def _watch(phase: mmap.mmap) -> None:
    """Note in shared memory what the process is doing."""

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            before, phase[0] = phase[0], PHASES.index(name)
            try:
                return function(*args, **kwargs)
            finally:
                phase[0] = before

        return call

    model: Any = RecurrentPPO
    model.collect_rollouts = noting("collecting", model.collect_rollouts)
    model.train = noting("training", model.train)
    evaluation: Any = EvalCallback
    evaluation._on_step = noting("evaluating", evaluation._on_step)
    folder: Any = checkpoint_folder.Folder
    folder.write = noting("writing", folder.write)


def start(*args: Any) -> int:
    """Start a training in a process of its own."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        warnings.simplefilter("ignore")
        train(*args)
        code = 0
    finally:
        os._exit(code)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def trial(
    rng: np.random.Generator, name: str, expected: str, seconds: float, path: Path, first: bool
) -> tuple[bool, list[str]]:
    """Kill one training a few times, let it end, and compare."""
    killed: list[str] = []
    for _ in range(int(rng.integers(1, 5))):
        phase = mmap.mmap(-1, 1)
        waits = rng.random() < 0.9
        pid = start(name, path, first, phase)
        # One kill in ten may fall before the training has begun.
        while waits and phase[0] == 0 and not _has_ended(pid):
            time.sleep(0.001)
        time.sleep(float(rng.uniform(0.0, 0.5 * seconds)))
        if not _has_ended(pid):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            killed.append(PHASES[phase[0]])
    pid = start(name, path, first, mmap.mmap(-1, 1))
    _, status = os.waitpid(pid, 0)
    found = path / "digest.txt"
    ended = os.waitstatus_to_exitcode(status) == 0 and found.is_file()
    return ended and found.read_text(encoding="utf-8") == expected, killed


def main(args: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20, help="of all settings together")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--minutes", type=float, default=1e6, help="after which no trial begins")
    given = parser.parse_args(args)
    th.set_num_threads(1)
    rng = np.random.default_rng(given.seed)
    jobs = [(name, first) for name in SETTINGS for first in (True, False)]
    equal: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    phases: dict[str, Counter[str]] = {name: Counter() for name in SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        whole: dict[tuple[str, bool], tuple[str, float]] = {}
        for name, first in jobs:
            path = Path(folder) / f"whole-{len(whole)}"
            begun = time.perf_counter()
            os.waitpid(start(name, path, first, mmap.mmap(-1, 1)), 0)
            digest_ = (path / "digest.txt").read_text(encoding="utf-8")
            whole[name, first] = digest_, time.perf_counter() - begun
        until = time.monotonic() + 60 * given.minutes
        for number in range(given.trials):
            if time.monotonic() > until:
                break
            name, first = jobs[number % len(jobs)]
            path = Path(folder) / "trial"
            is_equal, killed = trial(rng, name, *whole[name, first], path, first)
            tried[name] += 1
            equal[name] += is_equal
            phases[name].update(killed)
            if not is_equal:
                kept = Path(tempfile.mkdtemp(prefix="kill-trial-"))
                shutil.copytree(path, kept / "trial")
                (kept / "expected.txt").write_text(whole[name, first][0], encoding="utf-8")
                print(f"trial {number} ({name}) ended otherwise: see {kept}", flush=True)
            shutil.rmtree(path, ignore_errors=True)
    print(f"{'setting':38} {'equal':>9}  killed while " + ", ".join(PHASES))
    for name in SETTINGS:
        counts = " ".join(str(phases[name][phase]) for phase in PHASES)
        print(f"{name:38} {equal[name]:4} of {tried[name]:2}  {counts}")
    print(f"{'all':38} {equal.total():4} of {tried.total():2}  kills: "
          f"{sum(counter.total() for counter in phases.values())}")  # fmt: skip
    return 0 if equal.total() == tried.total() else 1


if __name__ == "__main__":
    raise SystemExit(main())

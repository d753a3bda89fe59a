"""Speed at sizes beyond the common ones, against sb3-contrib; memory; the vector wrappers' steps.

    python scripts/sizes.py
    python scripts/sizes.py --settings 64x1024 memory --pairs 5

Both libraries run in one process on one thread, window by window in turn, on one and the same cheap
environment that returns frames drawn beforehand, so that neither is measured by an environment.
Ratios are sb3-contrib's time divided by ours, medians of neighbouring windows, collecting and
training apart. The learning rate is 0.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sb3_contrib
import stable_baselines3 as sb3
import torch as th
from benchmark_contenders import one_window
from gymnasium import spaces
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

import thrust_pomdp
from thrust_pomdp.experiment.commands.options import make_parser


@dataclass(frozen=True)
class Setting:
    """A size.

    :param inputs: components of an observation; of images the shape
    :param sequences: whole windows in a minibatch
    """

    title: str
    n_envs: int
    n_steps: int
    hidden: int
    inputs: int | tuple[int, ...]
    sequences: int
    n_epochs: int = 1


SETTINGS = {
    "64x1024": Setting("64 envs, 1,024 units", 64, 16, 1024, 4, 16),
    "256x512": Setting("256 envs, 512 units", 256, 16, 512, 4, 64),
    "8x20000": Setting("8 envs, 20,000 inputs", 8, 64, 64, 20_000, 2),
    "64x10000": Setting("64 envs, 10,000 inputs", 64, 16, 64, 10_000, 16),
    "images": Setting("8 envs, 84 x 84 x 4 images, 256 units", 8, 32, 256, (4, 84, 84), 2),
    "small-images": Setting("16 envs, 36 x 36 x 3 images, 64 units", 16, 64, 64, (3, 36, 36), 4),
}

#: An environment's episodes; they end at different steps.
EPISODE = 50


class FramesDrawnBefore(VecEnv):
    """Returns frames that were drawn when it was made; actions change nothing."""

    def __init__(self, n_envs: int, inputs: int | tuple[int, ...]) -> None:
        generator = np.random.default_rng(0)
        self._n_steps = 0
        if isinstance(inputs, int):
            space = spaces.Box(-10.0, 10.0, (inputs,), np.float32)
            shape = (4, n_envs, inputs)
            self._frames = generator.standard_normal(shape, dtype=np.float32)
        else:
            space = spaces.Box(0, 255, inputs, np.uint8)
            self._frames = generator.integers(0, 256, (4, n_envs, *inputs), dtype=np.uint8)
        self._ends = np.arange(n_envs) * EPISODE // n_envs
        self._actions = np.zeros(n_envs)
        super().__init__(n_envs, space, spaces.Discrete(4))

    def reset(self) -> Any:
        return self._frames[0].copy()

    def step_async(self, actions: Any) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        self._n_steps += 1
        frames = self._frames[self._n_steps % len(self._frames)].copy()
        dones = (self._n_steps + self._ends) % EPISODE == 0
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for idx in dones.nonzero()[0]:
            infos[idx]["terminal_observation"] = frames[idx].copy()
        return frames, self._actions.astype(np.float32), dones, infos

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

    def env_method(self, *args: Any, **kwargs: Any) -> list[Any]:
        return [None] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def close(self) -> None: ...


def make_model(library: Any, setting: Setting, **more: Any) -> Any:
    env = FramesDrawnBefore(setting.n_envs, setting.inputs)
    policy = "MlpLstmPolicy" if isinstance(setting.inputs, int) else "CnnLstmPolicy"
    model = library.RecurrentPPO(
        policy,
        env,
        n_steps=setting.n_steps,
        batch_size=setting.sequences * setting.n_steps,
        n_epochs=setting.n_epochs,
        learning_rate=0.0,
        seed=0,
        device="cpu",
        policy_kwargs={
            "lstm_hidden_size": setting.hidden,
            "net_arch": [],
            "shared_lstm": True,
            "enable_critic_lstm": False,
        },
        **more,
    )
    model.set_logger(configure(None, []))
    _, callback = model._setup_learn(10**9)
    callback.on_training_start({}, {})
    model.benchmark_callback = callback
    return model


def compare(setting: Setting, pairs: int) -> None:
    """Print one line: times of ours and the two ratios, with least and greatest."""
    models = [make_model(library, setting) for library in (thrust_pomdp, sb3_contrib)]
    for model in models:
        one_window(model, 1)
    windows = [[one_window(model, 1) for model in models] for _ in range(pairs)]
    line = []
    for part in ("collect", "train"):
        ours = statistics.median(getattr(pair[0], part) for pair in windows)
        ratios = [getattr(theirs, part) / getattr(own, part) for own, theirs in windows]
        line.append(
            f"{part} {1e3 * ours:8.1f} ms, {statistics.median(ratios):5.2f} x "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
    print(f"{setting.title:40} {'; '.join(line)}", flush=True)


# --------------------------------------------------------------------------------------- memory

#: 64 envs x 128 steps of 6,400 float32 or of 25,600 uint8: 210 MB; a minibatch is a 64th of it, so
#: that what training on one takes counts little.
MEMORY = {
    "vectors": Setting("vectors, whole windows", 64, 128, 16, 6_400, 1, 2),
    "cut": Setting("vectors, ours cut into subsequences", 64, 128, 16, 6_400, 1, 2),
    "images": Setting("images", 64, 128, 16, (4, 80, 80), 1, 1),
}


def resident_mb(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {name}")


def measure_memory(library: str, name: str) -> None:
    """Print what a process grew to at most over a rollout and an update, by its rollout's size."""
    setting = MEMORY[name]
    module = {"ours": thrust_pomdp, "theirs": sb3_contrib}[library]
    th.set_num_threads(1)
    # The same model with a hundredth of the rollout has all that does not grow with it.
    small = Setting("", setting.n_envs, 2, setting.hidden, setting.inputs, 1)
    one_window(make_model(module, small), 1)
    before = resident_mb("VmRSS")
    cut = {"sequence_length": 32} if name == "cut" and library == "ours" else {}
    model = make_model(module, setting, **cut)
    for _ in range(2):
        one_window(model, 1)
    held = model.rollout_buffer.observations
    print(f"{(resident_mb('VmHWM') - before) / (held.nbytes / 2**20):.2f}")


def memory() -> None:
    # glibc keeps holes of what was freed unless big pieces are given back one by one.
    allocators = {"": {}, ", holes given back": {"MALLOC_MMAP_THRESHOLD_": "65536"}}
    for name, setting in MEMORY.items():
        for title, environment in allocators.items():
            grown = {}
            for library in ("ours", "theirs"):
                command = [sys.executable, __file__, "--memory-of", library, name]
                env = {**os.environ, **environment}
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
                grown[library] = float(done.stdout)
            print(
                f"memory, {setting.title}{title}: {grown['ours']:.2f} MB per MB of rollout "
                f"observations, sb3-contrib {grown['theirs']:.2f}",
                flush=True,
            )


# ------------------------------------------------------------------------------------- wrappers


def median_ms(calls: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Time calls in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for taken, call in zip(times, calls, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [1e3 * statistics.median(taken) for taken in times]


def step_of(venv: VecEnv) -> Callable[[], Any]:
    venv.reset()
    generator = np.random.default_rng(0)
    return lambda: venv.step(generator.integers(0, 2, venv.num_envs))


def wrappers(n_envs: int = 4096) -> None:
    def native() -> VecEnv:
        return thrust_pomdp.make_vec_env(
            "FlickeringCartPole-v0", n_envs, seed=0, env_kwargs={"expose_state": True}
        )

    makes: dict[str, Callable[[], VecEnv]] = {
        "native env": native,
        "VecPrivilegedInfo": lambda: thrust_pomdp.VecPrivilegedInfo(native()),
        "VecPreviousAction": lambda: thrust_pomdp.VecPreviousAction(native()),
        "VecNormalizeVisible": lambda: thrust_pomdp.VecNormalizeVisible(native()),
        "foreign env": lambda: FramesDrawnBefore(n_envs, 4),
        "VecNormalize, foreign": lambda: VecNormalize(FramesDrawnBefore(n_envs, 4)),
        "VecNormalizeVisible, foreign": lambda: thrust_pomdp.VecNormalizeVisible(
            FramesDrawnBefore(n_envs, 4)
        ),
        "VecPreviousAction, foreign": lambda: thrust_pomdp.VecPreviousAction(
            FramesDrawnBefore(n_envs, 4)
        ),
    }
    taken = median_ms([step_of(make()) for make in makes.values()], repeats=300)
    for name, ms in zip(makes, taken, strict=True):
        print(f"step of {n_envs} envs: {name:30} {ms:6.2f} ms", flush=True)

    venv = native()
    venv.reset()

    def reset_by_options() -> None:
        venv.set_options([{"low": -0.05 - 1e-6 * idx, "high": 0.05} for idx in range(n_envs)])
        venv.reset()

    (own,) = median_ms([reset_by_options], repeats=3)
    venv.set_options([{"low": -0.05, "high": 0.05} for _ in range(n_envs)])
    alike = median_ms([venv.reset], repeats=1)[0]
    print(f"reset of {n_envs} envs, each with options of its own: {own:.0f} ms; alike {alike:.1f}")


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    names = [*SETTINGS, "memory", "wrappers"]
    parser.add_argument("--settings", nargs="+", choices=names, default=names)
    parser.add_argument("--pairs", type=int, default=5, help="windows of each library")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.memory_of:
        measure_memory(*args.memory_of)
        return 0
    print(f"sb3-contrib {sb3_contrib.__version__}, SB3 {sb3.__version__}, torch {th.__version__}")
    for name in args.settings:
        if name == "memory":
            memory()
        elif name == "wrappers":
            wrappers()
        else:
            compare(SETTINGS[name], args.pairs)
    return 0


if __name__ == "__main__":
    sys.exit(main())

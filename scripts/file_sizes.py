"""Sizes and loading times of files that run nothing, beside those of SB3's zip files.

python scripts/file_sizes.py

Both are loaded in turn, in one run: the ratio tells, the times are this machine's.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

from thrust_pomdp import RecurrentPPO

SIZES = {"LSTM 16": 16, "LSTM 64": 64, "LSTM 256": 256}


class Camera(gym.Env[Any, Any]):
    """Noise to look at."""

    observation_space = spaces.Box(0, 255, (84, 84, 3), np.uint8)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, False, {}


def models() -> dict[str, RecurrentPPO]:
    found = {}
    for name, size in SIZES.items():
        kwargs = {"lstm_hidden_size": size}
        found[name] = RecurrentPPO(
            "MlpLstmPolicy", "FlickeringCartPole-v0", n_steps=64, policy_kwargs=kwargs, device="cpu"
        )
    found["CNN, LSTM 256"] = RecurrentPPO(
        "CnnLstmPolicy", DummyVecEnv([Camera]), n_steps=16, batch_size=16, device="cpu"
    )
    return found


def compare(model: RecurrentPPO, folder: Path, times: int = 15) -> tuple[float, float]:
    """Return size and time of our file, each divided by the zip file's."""
    model.learn(16)
    model.save_safe(folder / "model.safetensors")
    model.save(folder / "model.zip")
    ours, theirs = folder / "model.safetensors", folder / "model.zip"

    def took(load: Callable[[Path], Any], path: Path) -> float:
        start = time.perf_counter()
        load(path)
        return time.perf_counter() - start

    def load_safe(path: Path) -> Any:
        return RecurrentPPO.load_safe(path, device="cpu")

    def load(path: Path) -> Any:
        return RecurrentPPO.load(path, device="cpu")

    found = [(took(load_safe, ours), took(load, theirs)) for _ in range(times)][2:]
    pairs = [median(column) for column in zip(*found, strict=True)]
    return ours.stat().st_size / theirs.stat().st_size, pairs[0] / pairs[1]


def main() -> None:
    argparse.ArgumentParser(prog="file_sizes", description=__doc__).parse_args()
    print("model            size    time to load, by SB3's zip file")
    for name, model in models().items():
        with tempfile.TemporaryDirectory() as folder:
            size, seconds = compare(model, Path(folder))
        print(f"{name:<15}  {size:.3f}   {seconds:.2f}")


if __name__ == "__main__":
    main()

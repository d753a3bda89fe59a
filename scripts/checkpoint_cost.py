"""What a checkpoint costs: seconds to write and to read one, and its share at one a minute.

python scripts/checkpoint_cost.py
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch as th
from stable_baselines3.common.logger import configure

from thrust_pomdp import RecurrentPPO, TrainingCheckpoint, make_vec_env


def measure(hidden: int, n_envs: int, repeats: int) -> tuple[float, float, int]:
    """Return the median seconds of writing and of starting from a checkpoint, and its bytes."""
    env = make_vec_env("FlickeringCartPole-v0", n_envs, seed=0, normalize=True)
    model = RecurrentPPO(
        "MlpLstmPolicy", env, n_steps=128, seed=0, policy_kwargs={"lstm_hidden_size": hidden}
    )
    with tempfile.TemporaryDirectory() as folder:
        model.set_logger(configure(str(Path(folder) / "log"), ["csv", "log"]))
        checkpoint = TrainingCheckpoint(Path(folder) / "checkpoints", every=128 * n_envs)
        model.learn(2 * 128 * n_envs, callback=checkpoint)
        writing = []
        for _ in range(repeats):
            begun = time.perf_counter()
            checkpoint._write(2, is_end=True)
            writing.append(time.perf_counter() - begun)
        reading = []
        for _ in range(repeats):
            begun = time.perf_counter()
            checkpoint.load_into(model)
            reading.append(time.perf_counter() - begun)
        size = checkpoint.folder.files()[0].path.stat().st_size
        model.logger.close()
    return statistics.median(writing), statistics.median(reading), size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20, help="of which medians are taken")
    args = parser.parse_args()
    th.set_num_threads(1)
    print("units  envs  written in  read in    size  at one a minute")
    for hidden, n_envs in ((64, 16), (256, 16), (64, 256)):
        writing, reading, size = measure(hidden, n_envs, args.repeats)
        print(
            f"{hidden:5} {n_envs:5} {1e3 * writing:8.1f} ms {1e3 * reading:5.1f} ms"
            f" {size / 1e6:4.1f} MB {writing / 60:15.3%}"
        )


if __name__ == "__main__":
    main()

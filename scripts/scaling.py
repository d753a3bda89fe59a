"""How cost grows: time against n_envs, n_steps and layers, memory and time against updates.

    python scripts/scaling.py --out results/scaling

Prints the slope of log(time of one window, collected and trained on) against log(size) over the
upper half of each range: 1 is proportional, less is better.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch as th
from stable_baselines3.common.logger import configure

from thrust_pomdp import RecurrentPPO, make_vec_env
from thrust_pomdp.experiment.atomic_write import write_csv
from thrust_pomdp.experiment.commands.options import make_parser

RANGES = {
    "n_envs": (16, 32, 64, 128, 256, 512, 1024),
    "n_steps": (64, 128, 256, 512, 1024, 2048, 4096),
    "n_lstm_layers": (1, 2, 4, 8),
}
UPDATES = 2_000


def make_model(n_envs: int = 16, n_steps: int = 32, n_lstm_layers: int = 1) -> RecurrentPPO:
    model = RecurrentPPO(
        "MlpLstmPolicy",
        make_vec_env("thrust_pomdp:FlickeringCartPole-v0", n_envs, seed=0),
        n_steps=n_steps,
        envs_per_minibatch=max(n_envs // 4, 1),
        n_epochs=2,
        learning_rate=0.0,
        seed=0,
        device="cpu",
        policy_kwargs={
            "lstm_hidden_size": 32,
            "n_lstm_layers": n_lstm_layers,
            "shared_lstm_critic_gradient": True,
            "net_arch": [],
        },
    )
    model.set_logger(configure(None, []))
    _, callback = model._setup_learn(10**9)
    callback.on_training_start({}, {})
    model.scaling_callback = callback  # type: ignore[attr-defined]
    return model


def window(model: RecurrentPPO) -> float:
    start = time.perf_counter()
    model.collect_rollouts(model.env, model.scaling_callback, model.rollout_buffer, model.n_steps)
    model.train()
    return time.perf_counter() - start


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Fit the upper half of the range in logarithms."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(seconds[half:]), 1)[0])


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=3, help="windows timed at each size")
    args = parser.parse_args(arguments)
    th.set_num_threads(1)
    rows: list[tuple[str, int, float]] = []
    for name, sizes in RANGES.items():
        kwargs = {"n_envs": 4} if name == "n_steps" else {}
        seconds = []
        for size in sizes:
            model = make_model(**{**kwargs, name: size})
            window(model)
            seconds.append(statistics.median(window(model) for _ in range(args.windows)))
            rows.append((name, size, seconds[-1]))
        times = ", ".join(f"{n}: {1e3 * t:.1f} ms" for n, t in zip(sizes, seconds, strict=True))
        print(f"{name}: slope {slope(sizes, seconds):.2f} ({times})", flush=True)

    model = make_model(n_envs=4, n_steps=8)
    for _ in range(50):
        window(model)
    before, halves = resident_mb(), []
    for _ in range(2):
        halves.append(statistics.median(window(model) for _ in range(UPDATES // 2)))
    grown = resident_mb() - before
    rows += [("updates, first half", UPDATES // 2, halves[0]),
             ("updates, second half", UPDATES // 2, halves[1])]  # fmt: skip
    print(
        f"{UPDATES} updates: memory grew by {grown:.1f} MB, median window "
        f"{1e3 * halves[0]:.2f} ms in the first half and {1e3 * halves[1]:.2f} ms in the second"
    )
    args.out.mkdir(parents=True, exist_ok=True)
    lines = [(name, size, f"{seconds:.6f}") for name, size, seconds in rows]
    write_csv(args.out / "scaling.csv", ("name", "size", "seconds"), lines)
    print(f"Written: {args.out}/scaling.csv")
    return 0


if __name__ == "__main__":
    sys.exit(main())

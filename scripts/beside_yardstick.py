"""Steps per second beside a compiled JAX trainer that does the same work, in turn, on one core.

    python scripts/beside_yardstick.py --yardstick jax_recurrent_ppo.py --python yard/bin/python

The yardstick is a program of its own, which prints a line of JSON with `steps_per_s`; it takes
`--envs`, `--seqs`, `--steps`, `--lr` and `--episode-length`. Both do 16 x 128 and 64 x 128 steps a
window, one shared LSTM of 64 units, 4 epochs of 4 minibatches. What counts are the ratios of
neighbours.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmark_contenders import SETTINGS, Setting, make_model, one_window

from thrust_pomdp.experiment.commands.options import make_parser

NAMES = ("shared", "64-envs")
SECONDS = 8.0


def setting_of(name: str) -> Setting:
    return replace(next(s for s in SETTINGS if s.name == name), memoryless=False)


def measure_ours(name: str, length: int) -> float:
    """Return the steps per second of whole windows, compilation left out."""
    setting = setting_of(name)
    model = make_model("ours", setting, length)
    for _ in range(3):
        one_window(model, 1)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        one_window(model, 1)
        count += 1
    return count * setting.n_envs * setting.n_steps / (time.perf_counter() - start)


def on_core(core: int, command: list[str]) -> float:
    """Run a program on one core and return the steps per second that it prints."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        ["taskset", "-c", str(core), *command], capture_output=True, text=True, check=True, env=env
    )
    return float(json.loads(run.stdout.strip().splitlines()[-1])["steps_per_s"])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--yardstick", type=Path, help="the program")
    parser.add_argument("--python", type=Path, help="the interpreter that has JAX")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[20, 100, 500])
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--ours", nargs=2, metavar=("SETTING", "LENGTH"), help="measure ours alone")
    args = parser.parse_args()
    if args.ours:
        print(json.dumps({"steps_per_s": measure_ours(args.ours[0], int(args.ours[1]))}))
        return
    print("| setting | episodes of | ours, steps/s | yardstick | ratio (pairs) |")
    print("|---|---|---|---|---|", flush=True)
    for name in NAMES:
        setting = setting_of(name)
        for length in args.lengths:
            theirs = [
                str(args.python), str(args.yardstick), "--lr", "0", "--steps", "1000000",
                "--episode-length", str(length),
                "--envs", str(setting.n_envs), "--seqs", str(setting.sequences),
            ]  # fmt: skip
            ours = [sys.executable, __file__, "--ours", name, str(length)]
            pairs = [
                (on_core(args.core, ours), on_core(args.core, theirs)) for _ in range(args.pairs)
            ]
            ratios = [one / other for one, other in pairs]
            one, other = (statistics.median(side) for side in zip(*pairs, strict=True))
            print(
                f"| {setting.n_envs} x {setting.n_steps} | {length} | {one:,.0f} | {other:,.0f} | "
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""How much faster several processes are, and what their exchange costs.

    python scripts/distributed_speed.py --ranks 1 2 4

Each number of processes is started by torchrun, one thread each, on the same training: 64
environments, 128 steps a window, an LSTM of 128 units for actor and critic each. Seconds are told
by the clock and as processor time of the busiest process, which other programs on the machine
disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--blocks", type=int, help="gradient_blocks; default the ranks")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3, help="trainings of each, one in turn")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def work(args: argparse.Namespace) -> None:
    """Train in this process, and write what it took."""
    from thrust_pomdp.distributed import DataParallelRecurrentPPO, make_vec_env_share

    options = {"update": "window"}
    env = make_vec_env_share("FlickeringCartPole-v0", args.envs, seed=0, normalize=options)
    model = DataParallelRecurrentPPO(
        "MlpLstmPolicy", env, n_steps=128, batch_size=16 * 128, n_epochs=4, seed=0,
        gradient_blocks=args.blocks, policy_kwargs={"lstm_hidden_size": args.hidden},
    )  # fmt: skip
    window = 128 * args.envs
    model.learn(2 * window)  # compiles, and grows what has to be
    ranks, steps = model._ranks, args.updates * window
    before = ranks.seconds, ranks.bytes_received, processor_seconds(), time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    after = ranks.seconds, ranks.bytes_received, processor_seconds(), time.perf_counter()
    waited, received, processor, clock = (b - a for a, b in zip(before, after, strict=True))
    told = {"waited": waited, "received": received, "processor": processor, "clock": clock}
    found = ranks.gather_objects(told) if ranks.size > 1 else [told]
    if ranks.is_first:
        n_weights = sum(weight.numel() for weight in model.policy.parameters())
        args.worker.write_text(json.dumps({"steps": steps, "weights": n_weights, "ranks": found}))


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(n_ranks: int, args: argparse.Namespace) -> dict[str, Any]:
    """Start processes, and return what they wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "told.json"
        options = ["--envs", args.envs, "--hidden", args.hidden, "--updates", args.updates]
        if args.blocks is not None:
            options += ["--blocks", args.blocks]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                   "--nproc-per-node", n_ranks, __file__, "--worker", out, *options]  # fmt: skip
        root = str(Path(__file__).parents[1])
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
        subprocess.run(list(map(str, command)), check=True, env=env)
        told: dict[str, Any] = json.loads(out.read_text())
    return told


def main() -> None:
    args = parsed()
    if args.worker is not None:
        work(args)
        return
    found: dict[int, list[dict[str, Any]]] = {n_ranks: [] for n_ranks in args.ranks}
    for _ in range(args.repeats):
        for n_ranks in args.ranks:
            found[n_ranks].append(measured(n_ranks, args))
    print(f"{args.envs} environments, {args.hidden} units, {args.updates} windows of 128 steps, "
          f"medians of {args.repeats}; {os.cpu_count()} cores")  # fmt: skip
    print("ranks | steps/s by the clock | by processor time | exchange and waiting | "
          "bytes received by a rank in a gradient step")  # fmt: skip
    for n_ranks, runs in found.items():
        clock = statistics.median(run["steps"] / run["ranks"][0]["clock"] for run in runs)
        processor = statistics.median(
            run["steps"] / max(rank["processor"] for rank in run["ranks"]) for run in runs
        )
        share = statistics.median(
            min(rank["waited"] / rank["clock"] for rank in run["ranks"]) for run in runs
        )
        minibatches = args.updates * 4 * max(args.envs // 16, 1)
        received = runs[0]["ranks"][0]["received"] / minibatches
        print(f"{n_ranks} | {clock:,.0f} | {processor:,.0f} | {share:.1%} | {received:,.0f} "
              f"({runs[0]['weights']:,} weights)")  # fmt: skip


if __name__ == "__main__":
    main()

"""Train contestants on identical streams and show who balances the pole.

python scripts/compare.py --env FlickeringCartPole-v0 --arms lstm mlp --out results/demo
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import gymnasium as gym
from options import add_env_options, positive

import thrust_pomdp  # registers the ids
from thrust_pomdp.experiment import recipes, report
from thrust_pomdp.experiment.runner import Runner
from thrust_pomdp.experiment.training import RunSpec


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_env_options(parser, default="FlickeringCartPole-v0")
    parser.add_argument(
        "--arms", nargs="+", default=["lstm", "mlp"], choices=list(recipes.RECIPES),
        help="contestants",
    )  # fmt: skip
    parser.add_argument("--seeds", type=positive, default=1, help="runs of each arm")
    parser.add_argument(
        "--n-timesteps", type=positive, help="training budget of each run (default: the recipe's)"
    )
    parser.add_argument("--eval-episodes", type=positive, nargs=2, default=[100, 1000],
                        metavar=("MOST_LIKELY", "SAMPLED"),
                        help="fresh episodes of the two evaluations")  # fmt: skip
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1,
                        help="runs at the same time, one thread each")  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    try:
        gym.make(args.env, **dict(args.env_kwargs)).close()
        specs = [
            RunSpec(
                arm,
                args.env,
                seed,
                dict(args.env_kwargs),
                args.n_timesteps,
                args.eval_episodes[0],
                args.eval_episodes[1],
            )
            for seed in range(args.seeds)
            for arm in dict.fromkeys(args.arms)
        ]
        runner = Runner(specs, args.out, args.jobs)
    except (gym.error.Error, ValueError, TypeError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    results = runner.run()
    if results:
        print(f"\n{report.table(results)}\n", flush=True)
        report.write_csv(results, args.out)
        report.plot(results, args.out / "curves.png")
        print(f"Written: {args.out}/summary.csv, {args.out}/curves.csv, {args.out}/curves.png")
    failed = runner.failed()
    if failed:
        print(f"No result: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    assert thrust_pomdp
    sys.exit(main())

"""What each option of the memory does to the plain recipe: a matched ablation.

    python scripts/ablations.py --envs FlickeringCartPole-v0 BurstFlickeringCartPole-v0 --seeds 5 \\
        --jobs 2 --out results/ablations

Every variant is the tuned recipe of the arm ``lstm`` with other ``policy_kwargs`` and nothing else;
variants see the same streams. Started again in the same folder it goes on where it was interrupted.
Prints a table of interquartile means over seeds with 95 % intervals, and writes it as ``table.md``
beside ``ablations.csv``, which has a line per run.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thrust_pomdp.experiment.commands.options import positive
from thrust_pomdp.experiment.recipes import recipe_for
from thrust_pomdp.experiment.runner import Runner
from thrust_pomdp.experiment.runs import RunResult, RunSpec
from thrust_pomdp.experiment.statistics import estimate

#: What each variant changes in ``policy_kwargs``, as recipes write it.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ortho_init=False": {"ortho_init": False},
    "forget_bias=1": {"forget_bias": 1.0},
    "layer_norm": {"layer_norm": True},
    "encoder=[64]": {"encoder": [64]},
    "GRU": {"rnn_class": "nn.GRU"},
    "RNN": {"rnn_class": "nn.RNN"},
}
FIELDS = ("env", "variant", "seed", "timesteps", "most_likely", "sampled", "seconds")


def policy_kwargs(plain: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe's ``policy_kwargs`` with a variant's changes."""
    changes = dict(changes)
    encoder = changes.pop("encoder", None)
    if encoder is not None:
        heads = plain.get("net_arch", {"pi": [64, 64], "vf": [64, 64]})
        heads = heads if isinstance(heads, Mapping) else {"pi": heads, "vf": heads}
        changes["net_arch"] = {**heads, "encoder": encoder}
    return {**plain, **changes}


def specs(args: argparse.Namespace, env_id: str, variant: str) -> list[RunSpec]:
    recipe = recipe_for("lstm", env_id).as_mapping()
    recipe["policy_kwargs"] = policy_kwargs(recipe.get("policy_kwargs") or {}, VARIANTS[variant])
    return [
        RunSpec(
            arm="lstm",
            env_id=env_id,
            seed=seed,
            n_timesteps=args.n_timesteps,
            deterministic_episodes=args.eval_episodes[0],
            stochastic_episodes=args.eval_episodes[1],
            evaluations=args.evaluations,
            hyperparams=recipe,
        )
        for seed in range(args.seeds)
    ]


def row(env_id: str, variant: str, result: RunResult) -> dict[str, Any]:
    return {
        "env": env_id,
        "variant": variant,
        "seed": result.spec["seed"],
        "timesteps": result.timesteps,
        "most_likely": f"{np.mean(result.deterministic):.2f}",
        "sampled": f"{np.mean(result.stochastic):.2f}",
        "seconds": f"{result.seconds:.1f}",
    }


def cell(scores: Sequence[float]) -> str:
    value, interval = estimate([scores])
    return f"{value:.1f}" + (f" ({interval[0]:.1f} to {interval[1]:.1f})" if interval else "")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table for each environment."""
    lines: list[str] = []
    for env_id in dict.fromkeys(found["env"] for found in rows):
        of_env = [found for found in rows if found["env"] == env_id]
        steps = ", ".join(sorted({f"{found['timesteps']:,}" for found in of_env}))
        lines += ["", f"{env_id}, {steps} steps:", "",
                  "| variant | seeds | most likely actions | sampled actions | seconds |",
                  "|---|---|---|---|---|"]  # fmt: skip
        for variant in dict.fromkeys(found["variant"] for found in of_env):
            runs = [found for found in of_env if found["variant"] == variant]
            likely, sampled, seconds = (
                [float(run[key]) for run in runs] for key in ("most_likely", "sampled", "seconds")
            )
            lines.append(
                f"| {variant} | {len(runs)} | {cell(likely)} | {cell(sampled)} "
                f"| {np.median(seconds):.0f} |"
            )
    return "\n".join(lines).strip()


def write(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "ablations.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (folder / "table.md").write_text(table(rows) + "\n")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--envs", nargs="+", required=True, metavar="ID", help="environment ids")
    made.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    made.add_argument("--seeds", type=positive, default=5, help="runs of each variant")
    made.add_argument("--n-timesteps", type=positive, help="budget (default: the recipe's)")
    made.add_argument("--eval-episodes", type=positive, nargs=2, default=[100, 1000],
                      metavar=("MOST_LIKELY", "SAMPLED"))  # fmt: skip
    made.add_argument("--evaluations", type=int, default=0, help="during each training")
    made.add_argument("--jobs", type=positive, default=1, help="processes, of one thread each")
    made.add_argument("--out", type=Path, required=True, help="folder of the results")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    rows, failed = [], []
    for env_id in args.envs:
        for variant in args.variants:
            # A folder of its own each: in one folder an arm has one recipe.
            folder = args.out / env_id.rsplit(":", 1)[-1] / variant
            runner = Runner(specs(args, env_id, variant), folder, jobs=args.jobs)
            rows += [row(env_id, variant, result) for result in runner.run()]
            failed += [f"{env_id} {variant} {name}" for name in runner.failed()]
            if rows:
                write(rows, args.out)
    print(f"\n{table(rows)}\n\nWritten: {args.out}/ablations.csv, {args.out}/table.md")
    if failed:
        print(f"No result: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

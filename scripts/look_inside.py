"""A picture of what happens inside a trained model around its longest run of blank frames.

python -m thrust_pomdp compare --env BurstFlickeringCartPole-v0 --arms lstm-prev-action \\
    --out results/burst
python scripts/look_inside.py --run results/burst/runs/lstm-prev-action-seed0 --out inside.png

The run's model plays fresh episodes of its own environment, seen through the frozen statistics of
its training. Runs of earlier versions are pickles: --trust-pickles, of those that you trust.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import thrust_pomdp  # registers the ids
from thrust_pomdp import longest_burst, look_inside, plot_burst
from thrust_pomdp.envs.cartpole import SensedCartPoleEnv
from thrust_pomdp.envs.known_tasks import against_our_class, find_spec
from thrust_pomdp.envs.registration import creator_of
from thrust_pomdp.experiment import playback
from thrust_pomdp.experiment.commands.options import (
    add_trust_option,
    make_parser,
    named_value,
    positive,
)
from thrust_pomdp.experiment.commands.options import not_negative as seed
from thrust_pomdp.experiment.runs import RunSpec
from thrust_pomdp.experiment.vec_envs import make_evaluation_env

CARTPOLE = {"signal_label": "pole angle (°)", "action_names": ["push left", "push right"]}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--run", type=Path, required=True, metavar="FOLDER/runs/NAME",
                        help="a run of scripts/compare.py, of a recurrent arm")  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .png file")
    parser.add_argument("--steps", type=positive, default=500, help="steps of each environment")
    parser.add_argument("--n-envs", type=positive, default=4, help="environments side by side")
    parser.add_argument("--seed", type=seed, default=0, help="of environments and actions")
    parser.add_argument("--margin", type=positive, default=15, help="steps before and after")
    parser.add_argument("--stochastic", action="store_true",
                        help="draw actions instead of the most likely ones")  # fmt: skip
    parser.add_argument("--env-kwargs", nargs="+", type=named_value, default=[],
                        metavar="NAME:VALUE", help="arguments of the environment")  # fmt: skip
    add_trust_option(parser)
    return parser.parse_args(arguments)


def telling(spec: RunSpec, env_kwargs: dict[str, object]) -> RunSpec:
    """Return the run in an environment that tells its true state, if it can."""
    takes = inspect.signature(maker_of(spec.env_id)).parameters
    state = {"expose_state": True} if "expose_state" in takes else {}
    return replace(spec, env_kwargs={**spec.env_kwargs, **state, **env_kwargs})


def maker_of(env_id: str) -> Callable[..., Any]:
    """Return the class, or function, that makes an environment."""
    found = find_spec(env_id)
    assert found is not None  # a run was trained in it
    return creator_of(found.entry_point)


def is_cartpole(env_id: str) -> bool:
    """Tell whether an environment's state is that of this package's CartPoles, whatever its id."""
    is_ours = against_our_class(find_spec(env_id)) is None
    return is_ours and issubclass(maker_of(env_id), SensedCartPoleEnv)


def picture(args: argparse.Namespace) -> str:
    run = playback.find_run(args.run)
    spec = telling(run.spec, dict(args.env_kwargs))
    model = run.load(args.trust_pickles)
    model.set_random_seed(args.seed)
    env = make_evaluation_env(spec, args.n_envs, args.seed, run.load_normalizer(args.trust_pickles))
    trace = look_inside(model, env, args.steps, deterministic=not args.stochastic)
    env.close()
    burst = longest_burst(trace)
    n_blank, about = burst.stop - burst.start, {}
    if trace.env_states is not None and is_cartpole(spec.env_id):
        about = {"signal": np.rad2deg(trace.env_states[:, burst.env, 2]), **CARTPOLE}
    name = spec.env_id.rpartition(":")[2]
    title = f"{name}, {args.run.stem}: {n_blank} blank frames in a row"
    plot_burst(trace, args.out, burst=burst, margin=args.margin, title=title, **about)
    return f"{n_blank} blank frames in a row from step {burst.start} of environment {burst.env}"


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    try:
        print(picture(args))
    except (gym.error.Error, OSError, ValueError, TypeError, ImportError) as error:
        print(f"look_inside: {error}", file=sys.stderr)
        return 2
    print(f"Written: {args.out}, {args.out.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    assert thrust_pomdp
    sys.exit(main())

"""What is reached without memory, with little of it, and with an exact model.

python scripts/ladder.py --env FlickeringCartPole-v0 --env-kwargs flicker_prob:0.75

Without --env: all ids, and the settings of EXTRA. Each figure is a proof (nothing that knows as
little can do better) or the best found by a search, a lower bound. With --search gains are sought
anew for the environment and stored in the package.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym

from thrust_pomdp.envs.registration import ENVIRONMENTS
from thrust_pomdp.experiment.commands.options import add_env_options, make_parser, positive
from thrust_pomdp.experiment.commands.options import not_negative as seed
from thrust_pomdp.reference import Controller, Ladder, Rung, controllers, measure
from thrust_pomdp.reference.episodes import make_single
from thrust_pomdp.reference.figures import write_figures
from thrust_pomdp.reference.report import draw, markdown, text
from thrust_pomdp.reference.search import search
from thrust_pomdp.reference.tasks import LAWS, store_gains, task_of

SEMI_IMPLICIT = {"kinematics_integrator": "semi-implicit euler"}

#: Settings in the full table that have no id of their own.
EXTRA: list[tuple[str, dict[str, Any]]] = [
    ("MaskedCartPole-v0", SEMI_IMPLICIT),
    ("MaskedFlickeringCartPole-v0", SEMI_IMPLICIT),
    ("FlickeringCartPole-v0", {"flicker_prob": 0.25}),
    ("FlickeringCartPole-v0", {"flicker_prob": 0.9}),
]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_env_options(parser, default=None)
    parser.add_argument("--episodes", type=positive, default=6000,
                        help="episodes of each controller (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--seed", type=seed, default=0, help="of the first episode, and of the search"
    )
    parser.add_argument("--jobs", type=positive, default=os.cpu_count() or 1,
                        help="processes (default: one per core)")  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the ladders")
    parser.add_argument("--csv", type=Path, help="write the figures")
    parser.add_argument("--markdown", type=Path, metavar="PAGE",
                        help="put the table between the page's ladder marks")  # fmt: skip
    parser.add_argument("--search", action="store_true", help="seek gains anew first")
    args = parser.parse_args(arguments)
    if args.env is None and (args.env_kwargs or args.search):
        parser.error("--env-kwargs and --search need --env")
    if args.episodes < 2:
        parser.error(f"argument --episodes: must be at least 2, got {args.episodes}")
    return args


def check_outputs(args: argparse.Namespace) -> None:
    """Find out before all is measured, not after, what could not be written.

    :raises ValueError: for a page without marks, or a picture that is no PNG
    :raises OSError: for a page that is not there, or folders that cannot be made
    """
    if args.markdown is not None:
        markdown(args.markdown.read_text(), [])
    if args.plot is not None and args.plot.suffix.lower() != ".png":
        raise ValueError(f"--plot must name a .png file, got {args.plot}")
    for path in (args.csv, args.plot):
        if path is not None:
            if path.is_dir():
                raise ValueError(f"--csv and --plot must name files, got the folder {path}")
            path.parent.mkdir(parents=True, exist_ok=True)


def measured(
    settings: Sequence[tuple[str, dict[str, Any]]], episodes: int, seed: int, jobs: int
) -> list[Ladder]:
    """Measure all controllers of all environments, the processes taking turns."""
    found = [(env_id, kwargs, controllers(env_id, seed, **kwargs)) for env_id, kwargs in settings]
    work = [
        (env_id, kwargs, controller, episodes, seed)
        for env_id, kwargs, of_env in found
        for controller in of_env
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(work)), context) as pool:
        rungs = iter(list(pool.map(_measure, work)))
    return [Ladder(env_id, kwargs, tuple(next(rungs) for _ in of_env))
            for env_id, kwargs, of_env in found]  # fmt: skip


def _measure(work: tuple[str, dict[str, Any], Controller, int, int]) -> Rung:
    env_id, kwargs, controller, episodes, seed = work
    return measure(env_id, controller, episodes, seed, **kwargs)


def search_all(env_id: str, kwargs: dict[str, Any], seed: int) -> None:
    """Seek gains for all classes of information, and store the best: the stored ones compete."""
    task = task_of(make_single(env_id, **kwargs).unwrapped)
    for law in LAWS:
        gains, score = search(env_id, task, law, seed, **kwargs)
        store_gains(task, law, gains)
        print(f"{law}: {score:.4g} in the search with gains {gains.tolist()}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    kwargs = dict(args.env_kwargs)
    settings = [(args.env, kwargs)] if args.env else [*((i, {}) for i in ENVIRONMENTS), *EXTRA]
    try:
        check_outputs(args)
        if args.search:
            search_all(args.env, kwargs, args.seed)
        ladders = measured(settings, args.episodes, args.seed, args.jobs)
    except (gym.error.Error, OSError, ValueError, TypeError) as error:
        print(f"ladder: {error}", file=sys.stderr)
        return 2
    print("\n\n".join(text(ladder) for ladder in ladders))
    if args.csv:
        write_figures(args.csv, ladders)
    if args.markdown:
        args.markdown.write_text(markdown(args.markdown.read_text(), ladders))
    if args.plot:
        draw(ladders, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())

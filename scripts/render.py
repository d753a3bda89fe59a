"""Watch someone act: in a window, or in a GIF or MP4 file.

python scripts/render.py --run results/demo/runs/lstm-seed0 --out lstm.gif
python scripts/render.py --model model.zip --normalizer stats.pkl --env MaskedCartPole-v0 --human
python scripts/render.py --controller random --out random.mp4

Without --env: the environment of the run, or FlickeringCartPole-v0. A model's zip file and a
statistics' pickle may run any code: play only those that you trust. Runs of earlier versions are
such files, and need --trust-pickles.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

import gymnasium as gym

import thrust_pomdp  # registers the ids
from thrust_pomdp.experiment import playback, video
from thrust_pomdp.experiment.commands.options import (
    add_env_options,
    add_trust_option,
    make_parser,
    positive,
)
from thrust_pomdp.experiment.commands.options import not_negative as seed

DEFAULT_ENV = "FlickeringCartPole-v0"

#: What a controller is called here -> what it knows.
CONTROLLERS = {
    "random": "nothing",
    "memoryless": "memoryless",
    "previous-action": "previous action",
    "two-frames": "two frames",
    "exact-model": "exact model",
}


#: What a model of --model may have seen beside the frame; of a --run it is known.
SENSES = ("previous_action", "previous_reward", "frame_stack")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--run", type=Path, metavar="FOLDER/runs/NAME",
                     help="a run of scripts/compare.py, in its own environment")  # fmt: skip
    who.add_argument("--model", type=Path, metavar="ZIP",
                     help="a saved RecurrentPPO (ours or sb3_contrib's) or PPO")  # fmt: skip
    who.add_argument("--controller", choices=list(CONTROLLERS), metavar="NAME",
                     help="a scripted controller of the reference ladder, by what it knows: "
                     f"{', '.join(CONTROLLERS)}")  # fmt: skip
    parser.add_argument("--normalizer", type=Path, metavar="FILE",
                        help="statistics that VecNormalizeVisible or VecNormalize saved with "
                        "the model")  # fmt: skip
    parser.add_argument("--previous-action", action="store_true",
                        help="the model saw its last action, by VecPreviousAction")  # fmt: skip
    parser.add_argument("--previous-reward", action="store_true",
                        help="the model saw its last reward, by VecPreviousReward")  # fmt: skip
    parser.add_argument("--frame-stack", type=positive, default=1, metavar="N",
                        help="the model saw so many frames at once, by VecFrameStack")  # fmt: skip
    add_env_options(parser, default=None)  # the run's, or DEFAULT_ENV
    parser.add_argument("--seed", type=seed, default=0, help="of environment and actions")
    parser.add_argument("--episodes", type=positive, default=1, help="episodes to play")
    parser.add_argument("--max-steps", type=positive, default=1000,
                        help="stop after so many steps of all episodes together")  # fmt: skip
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--deterministic", action="store_true", default=True,
                     help="a model takes its most likely action (default)")  # fmt: skip
    how.add_argument("--stochastic", dest="deterministic", action="store_false",
                     help="a model draws its actions")  # fmt: skip
    add_trust_option(parser)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, metavar="FILE", help="a .gif or .mp4 file")
    where.add_argument("--human", action="store_true", help="a window")
    args = parser.parse_args(arguments)
    for name in ("normalizer", *SENSES):
        if getattr(args, name) != parser.get_default(name) and args.model is None:
            parser.error(f"--{name.replace('_', '-')} belongs to --model")
    return args


def watch(args: argparse.Namespace) -> None:
    env_id, env_kwargs = args.env or DEFAULT_ENV, dict(args.env_kwargs)
    run = None if args.run is None else playback.find_run(args.run)
    if run is not None:
        env_id, env_kwargs = args.env or run.spec.env_id, {**run.spec.env_kwargs, **env_kwargs}
    if args.out is not None:
        video.check_video_path(args.out)
    env = playback.make_env(env_id, args.human, env_kwargs)
    actor: playback.Actor
    if run is not None:
        actor = playback.run_actor(env, run, args.deterministic, args.trust_pickles)
    elif args.model is not None:
        senses = {name: getattr(args, name) for name in SENSES}
        actor = playback.model_actor(env, args.model, args.normalizer, args.deterministic, **senses)
    else:
        knows = CONTROLLERS[args.controller]
        actor = playback.scripted_actor(env, knows, env_id, args.seed, env_kwargs)
    if isinstance(actor, playback.ModelActor):
        actor.seed(args.seed)
    if args.out is not None:
        env = video.record(env, args.out)
    # Closing writes the film: of what has been played, if someone interrupts.
    with closing(env):
        playback.play(
            env, actor, args.episodes, args.max_steps, args.seed,
            lambda length, total: print(f"{length} steps, return {total:g}"),
        )  # fmt: skip
    if args.out is not None:
        print(f"Written: {args.out}, {args.out.stat().st_size / 1000:.0f} kB")


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    try:
        watch(args)
    except gym.error.DependencyNotInstalled as error:
        print(f'render: {error}; or pip install "thrust-pomdp[render]"', file=sys.stderr)
        return 2
    except (gym.error.Error, OSError, ValueError, TypeError, ImportError) as error:
        print(f"render: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    assert thrust_pomdp
    sys.exit(main())

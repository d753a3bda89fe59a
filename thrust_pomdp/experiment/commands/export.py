"""Write a trained model as one file for where there is no torch.

    python -m thrust_pomdp export results/demo/runs/lstm-seed0 pole.h --check
    python -m thrust_pomdp export model.zip pole.onnx --normalizer normalizer.pkl

A run of a comparison brings its normaliser and its wrappers along; of a model's file the options
tell them. The ending of the file says what is written: .onnx, .npz (NumPy), .h (C99) or .js (an ES
module).
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thrust_pomdp.experiment.commands import options
from thrust_pomdp.experiment.console import say

if TYPE_CHECKING:
    from thrust_pomdp.deploy.stateful_actor import StatefulActor

#: Steps that ``--check`` plays in each runtime.
_CHECKED_STEPS = 1000

_RUNTIMES = {".npz": "NumPy", ".onnx": "ONNX Runtime", ".h": "C", ".js": "Node"}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = options.make_parser(__doc__, "export")
    made.add_argument(
        "model",
        type=Path,
        metavar="RUN_OR_MODEL",
        help="a run of a comparison, FOLDER/runs/NAME, the file of a model, or what "
        "StatefulActor.save wrote",
    )
    made.add_argument("out", type=Path, metavar="OUT", help="the file: .onnx, .npz, .h or .js")
    made.add_argument(
        "--normalizer", type=Path, metavar="FILE", help="the normaliser of a model's file"
    )
    made.add_argument(
        "--previous-action", action="store_true", help="a model's file sees its last action"
    )
    made.add_argument(
        "--previous-reward", action="store_true", help="a model's file sees its last reward"
    )
    made.add_argument(
        "--frame-stack",
        type=options.positive,
        default=1,
        metavar="N",
        help="observations that a model's file sees at once (%(default)s)",
    )
    made.add_argument("--name", help="what functions are named after (default: the file)")
    made.add_argument(
        "--outputs",
        nargs="+",
        default=(),
        metavar="NAME",
        help="what else comes out of a step: action_logits, mean, log_std, value, belief",
    )
    made.add_argument(
        "--normalizer-dtype",
        choices=("float64", "float32"),
        default="float64",
        help="in which the normaliser computes (%(default)s)",
    )
    made.add_argument(
        "--check",
        action="store_true",
        help=f"play {_CHECKED_STEPS:,} steps in each runtime that is installed and tell the "
        "largest difference to the model",
    )
    return made


@options.command("export")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    args = parser().parse_args(arguments)
    actor = _actor(args)
    actor.export(
        args.out, outputs=args.outputs, name=args.name, normalizer_dtype=args.normalizer_dtype
    )
    say(f"Written: {args.out} ({args.out.stat().st_size:,} bytes)")
    return _check(actor, args) if args.check else 0


def _actor(args: argparse.Namespace) -> StatefulActor:
    """Return the actor of a run, or of a model's file."""
    from thrust_pomdp.deploy.stateful_actor import StatefulActor
    from thrust_pomdp.experiment.playback import find_run, load_model
    from thrust_pomdp.experiment.vec_envs import make_evaluation_env

    is_told = args.normalizer or args.previous_action or args.previous_reward
    is_told = is_told or args.frame_stack > 1
    is_file = args.model.suffix in (".zip", ".safetensors")
    if is_file and not args.model.with_suffix(".json").is_file():
        if args.model.suffix == ".safetensors" and not is_told:
            with contextlib.suppress(ValueError):  # a model's file is no actor's
                return StatefulActor.load(args.model, device="cpu")
        return StatefulActor(
            load_model(args.model),
            normalizer=args.normalizer,
            previous_action=args.previous_action,
            previous_reward=args.previous_reward,
            frame_stack=args.frame_stack,
        )
    if is_told:
        raise ValueError(
            "--normalizer, --previous-action, --previous-reward and --frame-stack are for the file "
            f"of a model; what the run {args.model} sees is known"
        )
    run = find_run(args.model)
    env = make_evaluation_env(run.spec, 1, run.spec.evaluation_seed, run.load_normalizer())
    try:
        return StatefulActor.like(run.load(), env)
    finally:
        env.close()


def _check(actor: StatefulActor, args: argparse.Namespace) -> int:
    """Play in each runtime; tell how it differs from the model."""
    from thrust_pomdp.deploy.checking import play_original, random_steps
    from thrust_pomdp.deploy.description import describe
    from thrust_pomdp.deploy.export import compared
    from thrust_pomdp.deploy.players import installed

    program = describe(actor, args.outputs, args.normalizer_dtype)
    steps = random_steps(program, _CHECKED_STEPS, 1)
    original, are_small, players = play_original(actor, steps), [], installed()
    for ending, runtime in _RUNTIMES.items():
        if ending not in players:
            say(f"{runtime}: not installed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                actor.export(
                    Path(folder, f"actor{ending}"),
                    outputs=args.outputs,
                    normalizer_dtype=args.normalizer_dtype,
                )
            except ValueError as error:
                say(f"{runtime}: {error}")
                continue
            played = players[ending](Path(folder), program, steps)
        found = compared(actor, program, original, played, steps)
        are_small.append(found.is_small)
        say(
            f"{runtime}: {_CHECKED_STEPS:,} steps, {found.actions} different actions, largest "
            f"difference {found.largest:.1e}"
        )
    return 0 if all(are_small) else 1

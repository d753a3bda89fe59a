"""Build docs/demo/index.html, a page where one sees and feels what memory does.

    python scripts/build_demo.py                # of scripts/demo_page and the actors in its models/

The actors were trained and put there by

    python -m thrust_pomdp compare --env BurstFlickeringCartPole-L8-v0 \
        --arms lstm-prev-action-privileged mlp --jobs 1 --evaluations 4 --out results/page
    python scripts/build_demo.py --runs results/page/runs
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch as th

from thrust_pomdp import AsymmetricLstmPolicy, StatefulActor
from thrust_pomdp.experiment.atomic_write import write_atomically
from thrust_pomdp.experiment.commands.options import command, make_parser
from thrust_pomdp.experiment.console import say
from thrust_pomdp.experiment.playback import find_run
from thrust_pomdp.experiment.vec_envs import make_evaluation_env

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "scripts" / "demo_page"
MODELS = SOURCES / "models"
PAGE = ROOT / "docs" / "demo" / "index.html"

#: In the order in which they need one another.
SCRIPTS = ("random", "flicker", "cartpole", "scene", "settings", "picture", "main")

#: What an agent is called in main.js -> its file, the run it comes from, what else it tells.
AGENTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "MemoryActor": ("memory", "lstm-prev-action-privileged-seed0", ("belief",)),
    "MemorylessActor": ("memoryless", "mlp-seed0", ()),
}

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[\w/]+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=const|function|class)", re.MULTILINE)


def page() -> str:
    """Return the page: one file that asks nothing of the network."""
    agents = "\n".join(map(agent, AGENTS))
    scripts = "\n".join(
        inlined(f"{name}.js", (SOURCES / f"{name}.js").read_text("utf-8")) for name in SCRIPTS
    )
    style = (SOURCES / "style.css").read_text("utf-8")
    parts = {"/*STYLE*/": style, "/*SCRIPT*/": agents + scripts}
    text = (SOURCES / "page.html").read_text("utf-8")
    for mark, part in parts.items():
        before, after = text.split(f"{mark}\n")
        text = f"{before}{part}{after}"
    return text


def agent(name: str) -> str:
    """Return the script that makes a class of that name of an exported actor."""
    file, _, outputs = AGENTS[name]
    source = inlined(f"{file}.js", exported(file, outputs))
    return f"const {name} = (() => {{\n{source}\nreturn Actor;\n}})();\n"


def inlined(name: str, text: str) -> str:
    """Return a module as a part of a script that has all it imports.

    :param name: of its file
    :param text: of the module
    :raises ValueError: if it imports or exports in a way that cannot be taken out
    """
    text = _EXPORT.sub("", _IMPORT.sub("", text))
    if left := re.search(r"^(import|export)\b.*", text, re.MULTILINE):
        raise ValueError(
            f'{name} must have imports like `import {{ a }} from "./b.js";` and exports '
            f"before const, function or class, got: {left[0]}"
        )
    return text


def exported(file: str, outputs: Sequence[str]) -> str:
    """Return a committed actor as an ES module.

    :param file: name of its file, without the ending
    :param outputs: what it tells beside its action
    """
    actor = StatefulActor.load(MODELS / f"{file}.safetensors", device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{file}.js")
        actor.export(path, outputs=outputs)
        return path.read_text("utf-8")


def take(runs: Path) -> None:
    """Keep the actors of trained runs as files for :func:`page`.

    :param runs: folder of the runs
    """
    MODELS.mkdir(exist_ok=True)
    for file, name, _ in AGENTS.values():
        run = find_run(runs / name)
        model = run.load()
        if isinstance(model.policy, AsymmetricLstmPolicy):
            tell_in_units(model.policy, model.privileged_statistics()["state"])
        env = make_evaluation_env(run.spec, 1, run.spec.evaluation_seed, run.load_normalizer())
        with closing(env):
            StatefulActor.like(model, env).save(MODELS / f"{file}.safetensors")


def tell_in_units(policy: AsymmetricLstmPolicy, moments: dict[str, Sequence[float]]) -> None:
    """Have a grounded memory tell the state in m and rad, where it learnt to tell it scaled.

    :param moments: mean and variance by which it was scaled
    """
    mean, spread = (th.from_numpy(np.float32(moments["mean"])),
                    th.from_numpy(np.sqrt(np.float32(moments["var"]))))  # fmt: skip
    with th.no_grad():
        net = policy.grounding_net
        net.weight.mul_(spread[:, None])
        net.bias.mul_(spread).add_(mean)


@command("build_demo")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--runs", type=Path, metavar="DIR", help="first take the actors of these runs"
    )
    args = parser.parse_args(arguments)
    if args.runs is not None:
        take(args.runs)
    PAGE.parent.mkdir(exist_ok=True)
    write_atomically(PAGE, page().encode())
    say(f"Written: {PAGE.relative_to(ROOT)} ({PAGE.stat().st_size:,} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

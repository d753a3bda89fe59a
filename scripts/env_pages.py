"""Write a page and a picture for each environment id: docs/envs/.

python scripts/env_pages.py

What the pages say comes from the code: the class's docstring and signature, the table of ids, the
spaces, the blanking law and the measured reference ladder.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from thrust_pomdp.envs import FlickerLaw
from thrust_pomdp.envs.registration import ENVIRONMENTS
from thrust_pomdp.experiment.commands.options import make_parser
from thrust_pomdp.reference import LADDER
from thrust_pomdp.reference.rungs import Rung

FOLDER = Path(__file__).parents[1] / "docs" / "envs"

INDEX = "README.md"

NOTE = "<!-- Written by scripts/env_pages.py; edit the class's docstring instead. -->"

#: Sections of a docstring that a page shows elsewhere or in another form.
_ELSEWHERE = ("Arguments", "Version history")


class Page(NamedTuple):
    """What is known about an id.

    :param spec: as Gymnasium has it
    :param env: an environment
    :param summary: the first line of its class's docstring
    :param sections: the docstring's sections, by title
    :param arguments: all arguments of the id's environments, by name
    """

    spec: EnvSpec
    env: gym.Env[Any, Any]
    summary: str
    sections: dict[str, str]
    arguments: dict[str, Any]


def read(env_id: str) -> Page:
    """Collect what the code says about an id."""
    env = gym.make(env_id)
    spec = gym.spec(env_id)
    cls = type(env.unwrapped)
    summary, *sections = re.split(r"^## ", inspect.getdoc(cls) or "", flags=re.MULTILINE)
    by_title = dict(section.split("\n", 1) for section in sections)
    defaults = {name: p.default for name, p in inspect.signature(cls).parameters.items()}
    return Page(
        spec, env, _prose(summary.strip().split("\n\n")[0]),
        {title: _prose(text).strip() for title, text in by_title.items()},
        {**defaults, **spec.kwargs},
    )  # fmt: skip


def _prose(text: str) -> str:
    """Turn reST roles and double backticks into Markdown's backticks."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return re.sub(r"(?<!`)``(?!`)", "`", text)


# ------------------------------------------------------------------------------------- one page


def page(env_id: str) -> str:
    """Return the Markdown page of an id."""
    about = read(env_id)
    parts = [f"# {env_id}", NOTE, about.summary, f"![{env_id}]({env_id}.png)", _facts(about)]
    for title, text in about.sections.items():
        if title not in _ELSEWHERE:
            parts.append(f"## {title}\n\n{text}")
        if title == "Blanking law":
            parts.append(_blanking(about))
    parts += [_arguments(about), _worth(env_id)]
    parts.append(f"## Version history\n\n{about.sections['Version history']}")
    return "\n\n".join(parts) + "\n"


def _facts(about: Page) -> str:
    spec = about.spec
    limit = spec.max_episode_steps
    solved = "" if spec.reward_threshold is None else f"a mean return of {spec.reward_threshold:g}"
    rows = [
        ("make it", f'`gymnasium.make("thrust_pomdp:{spec.id}")`'),
        ("many at once", f'`gymnasium.make_vec("thrust_pomdp:{spec.id}", num_envs=16)`'),
        ("class", f"`{spec.entry_point}`"),
        ("its arguments here", _given(spec.kwargs) or "the defaults"),
        ("observations", _space(about.env.observation_space)),
        ("actions", _space(about.env.action_space)),
        ("time limit", f"{limit} steps" if limit else "none: see *end*"),
        ("counts as solved", solved or "not defined: what memory can reach is not known"),
    ]
    return _table(("", ""), [row for row in rows if row[1]])


def _given(kwargs: dict[str, Any]) -> str:
    return ", ".join(f"`{name}={value!r}`" for name, value in kwargs.items())


def _space(space: gym.Space[Any]) -> str:
    if not isinstance(space, gym.spaces.Box):
        return f"`{space}`"
    low, high = (
        [f"{bound:.4g}" for bound in bounds.tolist()] for bounds in (space.low, space.high)
    )
    bounds = f"from `[{', '.join(low)}]` to `[{', '.join(high)}]`"
    return f"`Box` of shape `{space.shape}`, {space.dtype}, {bounds}"


def _blanking(about: Page) -> str:
    """Put the law of this id's arguments into numbers."""
    law = FlickerLaw(about.arguments["flicker_prob"], about.arguments["burst_len"])
    rows = [
        ("share of blank frames", f"{law.flicker_prob:g}"),
        ("chance that an episode's first frame is blank", f"{law.after_reset:g}"),
        ("chance of a blank after a visible frame", f"{law.after_visible:.4g}"),
        ("chance of a blank after a blank frame", f"{law.after_blank:.4g}"),
        ("mean run of blank frames", f"{1 / (1 - law.after_blank):.4g}"),
        ("mean run of visible frames", f"{1 / law.after_visible:.4g}"),
        ("correlation of neighbouring flags", f"{law.after_blank - law.after_visible:.4g}"),
    ]
    return "For this id:\n\n" + _table(("", ""), rows)


def _arguments(about: Page) -> str:
    text = about.sections["Arguments"]
    fields = re.findall(r"^:(param \w+|raises \w+): ((?:.+\n?)(?:[ ]+.+\n?)*)", text, re.MULTILINE)
    told = {key: " ".join(value.split()) for key, value in fields}
    rows = [
        (f"`{name}`", f"`{value!r}`", told[f"param {name}"])
        for name, value in about.arguments.items()
    ]
    rest = re.sub(r"^:(?:param|raises)(?:.+\n?)(?:[ ]+.+\n?)*", "", text, flags=re.MULTILINE)
    rest = rest.replace("```python", "For example:\n\n```python").replace("\n\n```\n", "\n```\n")
    raised = [f"Raises `{key.split()[1]}` {value}." for key, value in told.items()
              if key.startswith("raises")]  # fmt: skip
    table = _table(("argument", "here", "meaning"), rows)
    return "\n\n".join(["## Arguments", table, *raised, rest.strip()])


def _worth(env_id: str) -> str:
    """Tell what each kind of controller reaches."""
    rungs = LADDER.get(env_id, ())
    if not rungs:
        return "## What memory is worth\n\nNot measured yet."
    rows = [
        (rung.information, rung.controller, _figure(rung), f"{rung.kind}: {rung.reason}")
        for rung in rungs
    ]
    table = _table(("it knows", "controller", "mean return", "of its kind"), rows)
    n_episodes = rungs[0].n_episodes
    command = f"python scripts/ladder.py --env {env_id} --episodes {n_episodes}"
    text = (
        f"With the arguments above, over {n_episodes:,} episodes; mean returns with 95 % intervals "
        f"(`{command}`, see [the ladder](../ladder.md)). A figure is a *proof* if nothing that "
        "knows as little can do better, and otherwise the *best found*: a lower bound, which a "
        "trained network may exceed."
    )
    return f"## What memory is worth\n\n{text}\n\n{table}"


def _figure(rung: Rung) -> str:
    half = rung.mean - rung.interval[0]
    return f"{rung.mean:.4g}" + (f" ± {half:.2g}" if half > 0 else "")


# ---------------------------------------------------------------------------------------- index


def index(env_ids: Sequence[str]) -> str:
    """Return the page that lists all ids."""
    rows = []
    for env_id in env_ids:
        about = read(env_id)
        floor, ceiling = _ends(env_id)
        rows.append(
            (f"[`{env_id}`]({env_id}.md)", about.summary, _given(about.spec.kwargs), floor, ceiling)
        )
    text = (
        "Mean return of the best scripted controllers without memory and with an exact model's, "
        "with 95 % intervals. Where nothing can do better that is said; any other figure is the "
        "best found."
    )
    table = _table(("id", "what it is", "arguments", "without memory", "with memory"), rows)
    return f"# The environments\n\n{NOTE}\n\n{text}\n\n{table}\n"


def _ends(env_id: str) -> tuple[str, str]:
    """Return floor and ceiling: what is reached without memory, and with all there is."""
    told = {
        rung.information: _figure(rung) + (" (proof)" if rung.kind == "proof" else "")
        for rung in LADDER.get(env_id, ())
    }
    return told.get("memoryless", ""), told.get("exact model", "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def pages() -> dict[str, str]:
    """Return the text of every page by its file's name."""
    return {INDEX: index(list(ENVIRONMENTS)), **{f"{i}.md": page(i) for i in ENVIRONMENTS}}


# ------------------------------------------------------------------------------------- pictures


def picture(env_id: str) -> np.ndarray:
    """Paint an id: a CartPole kept up for 70 steps and then until it is blank, or a maze."""
    is_cartpole = "CartPole" in env_id
    kwargs = {"expose_state": True} if is_cartpole else {}
    env = gym.make(env_id, render_mode="rgb_array", **kwargs)
    _, info = env.reset(seed=0)
    steps = 0
    while steps < (70 if is_cartpole else 3) or not info.get("blanked", True):
        _, _, _, _, info = env.step(_balance(info["state"]) if is_cartpole else 0)
        steps += 1
    return env.render()


def _balance(state: np.ndarray) -> int:
    x, x_dot, theta, theta_dot = state
    return int(theta + 0.45 * theta_dot + 0.1 * x + 0.25 * x_dot > 0)


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the pages")
    folder = parser.parse_args(arguments).out
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text)
    for env_id in ENVIRONMENTS:
        Image.fromarray(picture(env_id)).save(folder / f"{env_id}.png", optimize=True)
    print(f"Written: {len(ENVIRONMENTS)} pages and pictures in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

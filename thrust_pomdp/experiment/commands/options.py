"""Options that commands share, and the checks of what is given."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import math
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import gymnasium as gym

from thrust_pomdp.arguments import check_finite_number
from thrust_pomdp.experiment.arms import (
    ARMS,
    Memory,
    check_installed,
    check_spaces,
    check_tells_state,
    find_arm,
)
from thrust_pomdp.experiment.engines import Engine, LocalEngine
from thrust_pomdp.experiment.recipe_checks import check_whole
from thrust_pomdp.experiment.recipe_values import parse_literal, parse_number
from thrust_pomdp.experiment.recipes import (
    Recipe,
    matched_recipe_for,
    read_recipes,
    recipe_for,
    unmatched_keys,
    why_general,
)
from thrust_pomdp.experiment.report.terms import Terms, read_kept


class Parser(ArgumentParser):
    """argparse's, which tells in one line what is wrong, whatever the text it was given."""

    def error(self, message: str) -> NoReturn:
        """Leave with 2."""
        super().error(one_line(message))


#: Arms that are trained unless others are named.
DEFAULT_ARMS = ("lstm", "mlp")


def named_value(text: str) -> tuple[str, Any]:
    """Parse ``name:value``, as RL Zoo writes arguments on the command line."""
    name, separator, value = text.partition(":")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"expected name:value, got {text!r}")
    return name, parse_literal(value)


def _parser(check: Callable[..., Any], *arguments: Any) -> Callable[[str], Any]:
    """Make a parser of a check of values; argparse puts the option's name before its message."""

    def parse(text: str) -> Any:
        try:
            return check("", text, *arguments)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error).strip()) from None

    return parse


def _finite(name: str, text: str, minimum: float = -math.inf) -> float:
    return check_finite_number(name, parse_number(text), minimum)


#: Counts, ``2e5`` too, and finite numbers.
positive = _parser(check_whole)
not_negative = _parser(check_whole, 0)
number = _parser(_finite)
not_negative_number = _parser(_finite, 0)


def make_parser(about: str | None, prog: str | None = None, **kwargs: Any) -> ArgumentParser:
    """Return a parser whose help shows a module's docstring as it is written."""
    shown = argparse.RawDescriptionHelpFormatter
    return Parser(prog, description=about, formatter_class=shown, **kwargs)


def add_env_options(parser: ArgumentParser, default: str | None = "FlickeringCartPole-v0") -> None:
    """Add ``--env`` and ``--env-kwargs``.

    :param parser: gets them
    :param default: the environment unless another is named
    """
    about = "environment id; module:ID imports the module that registers it"
    parser.add_argument(
        "--env",
        default=default,
        metavar="ID",
        help=about if default is None else f"{about} (%(default)s)",
    )
    parser.add_argument(
        "--env-kwargs",
        nargs="+",
        type=named_value,
        default=[],
        metavar="NAME:VALUE",
        help="arguments of the environment, such as flicker_prob:0.3",
    )


def add_recipe_options(parser: ArgumentParser) -> None:
    """Add what changes recipes."""
    parser.add_argument(
        "--matched",
        action="store_true",
        help="train all arms with the same learning rate, schedule, epochs, network widths and "
        "normalisation, instead of each with its own tuned recipe",
    )
    parser.add_argument(
        "--recipe",
        type=Path,
        metavar="FILE",
        help="a YAML file of recipes: arm, then environment id (or default), then the keys",
    )
    parser.add_argument(
        "--hyperparams",
        nargs="+",
        type=named_value,
        default=[],
        metavar="[ARM.]KEY:VALUE",
        help="keys of recipes to change, for all arms or for one: n_steps:256 lstm.gamma:0.98",
    )


def add_memory_options(parser: ArgumentParser) -> None:
    """Add what tells which arms of the user's own have memory."""
    parser.add_argument(
        "--memoryless",
        nargs="+",
        default=[],
        metavar="ARM",
        help="arms of your own that have no memory; the verdict asks for that, before their first "
        "result",
    )
    parser.add_argument(
        "--with-memory",
        nargs="+",
        default=[],
        metavar="ARM",
        help="arms of your own that have some",
    )


def add_verdict_options(parser: ArgumentParser) -> None:
    """Add what the rule of the verdict does not know of an environment."""
    parser.add_argument(
        "--margin",
        type=not_negative_number,
        metavar="RETURN",
        help="smallest gain that matters (default: as the folder keeps it, or by the rule)",
    )
    parser.add_argument(
        "--solved",
        type=number,
        metavar="RETURN",
        help="score that counts as doing the task (default: as the folder keeps it, or by the "
        "rule)",
    )


def memory_of(args: argparse.Namespace) -> dict[str, Memory]:
    """Return what is said of arms of the user's own.

    :raises ValueError: if one is said to have memory and to have none
    """
    for arm in args.memoryless:
        if arm in args.with_memory:
            raise ValueError(f"{arm} cannot be --memoryless and --with-memory at once")
    said: dict[str, Memory] = dict.fromkeys(args.memoryless, "none")
    return said | dict.fromkeys(args.with_memory, "recurrent")


def apply_kept_terms(args: argparse.Namespace) -> None:
    """Take what the folder keeps of its verdict's rule, where nothing else is said.

    :raises ValueError: if its file was not written by a comparison
    """
    kept = read_kept(args.out)
    if kept is None:
        return
    for name in ("margin", "solved"):
        if getattr(args, name, 0) is None:
            setattr(args, name, getattr(kept.terms, name))
    for arm, memory in kept.terms.memory.items():
        if arm in args.arms and arm not in (*args.memoryless, *args.with_memory):
            (args.memoryless if memory == "none" else args.with_memory).append(arm)


def terms_of(args: argparse.Namespace) -> Terms:
    """Return what is said of the verdict's rule."""
    margin, solved = getattr(args, "margin", None), getattr(args, "solved", None)
    return Terms(margin, solved, memory_of(args))


def add_running_options(parser: ArgumentParser) -> None:
    """Add what says where runs are done."""
    parser.add_argument(
        "--jobs",
        type=positive,
        default=cpus(),
        help="runs at the same time, one thread each (%(default)s, the cores)",
    )
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="processes on this machine, or a Ray cluster: the one that runs, or a local one",
    )


def cpus() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_engine(args: argparse.Namespace) -> Engine:
    """Make the engine asked for.

    :raises ImportError: with the command that installs what it needs
    """
    if args.engine == "local":
        engine = LocalEngine(args.jobs)
        engine.prepare()
        return engine
    check_extra("ray", "ray")
    from thrust_pomdp.experiment.ray_engine import RayEngine

    return RayEngine(args.jobs)


def check_extra(extra: str, *modules: str) -> None:
    """Check before hours of training that what is needed afterwards is there.

    :raises ImportError: with the command that installs it
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ImportError(f"this needs {', '.join(missing)}: pip install 'thrust-pomdp[{extra}]'")


def check_env(
    env_id: str, env_kwargs: dict[str, Any], arms: Sequence[str], state_env: str | None = None
) -> None:
    """Check that an environment can be made and that the arms can be trained on it.

    :param state_env: what shows its state itself, if anything does
    :raises ValueError: with the reason
    """
    for name in arms:
        check_installed(find_arm(name))
    try:
        env = gym.make(env_id, **env_kwargs)
    except ModuleNotFoundError as error:
        raise ValueError(f"env {env_id}: {error}") from error
    except gym.error.Error as error:
        raise ValueError(f"{error}{_hint_of_module(env_id)}") from error
    except Exception as error:  # whatever environments of others do
        given = "".join(f", {name}:{value!r}" for name, value in env_kwargs.items())
        with_ = f" with {given[2:]}" if given else ""
        raise ValueError(f"env {env_id} cannot be made{with_}: {error}") from error
    try:
        for name in arms:
            check_spaces(find_arm(name), env.observation_space, env.action_space)
            check_tells_state(find_arm(name), env_id, env_kwargs, state_env)
        if state_env is not None:
            _check_state_env(state_env, env, arms)
    finally:
        env.close()


def _check_state_env(state_env: str, env: gym.Env[Any, Any], arms: Sequence[str]) -> None:
    if not any(find_arm(name).sees_state for name in arms):
        raise ValueError("--state-env is for the arm 'state', which is not among --arms")
    try:
        shown = gym.make(state_env)
    except Exception as error:
        raise ValueError(f"--state-env {state_env} cannot be made: {error}") from error
    shown.close()
    if shown.action_space != env.action_space:
        raise ValueError(
            f"--state-env must be the same task, seen whole: its actions are {shown.action_space}, "
            f"not {env.action_space}"
        )


def _hint_of_module(env_id: str) -> str:
    if ":" in env_id:
        return ""
    return f" (Where a package of yours registers it, name that: MODULE:{env_id})"


def recipes_of(args: argparse.Namespace) -> dict[str, dict[str, Any] | None]:
    """Return the recipe of each arm as data; None for its own unchanged one.

    :raises ValueError: for recipes that cannot be
    """
    if args.matched and args.recipe is not None:
        raise ValueError("--matched and --recipe exclude each other")
    for arm in memory_of(args):
        if arm not in args.arms or not find_arm(arm).is_users:
            raise ValueError(
                "--memoryless and --with-memory are for arms of your own among "
                f"{', '.join(args.arms)}, got {arm}"
            )
    given: dict[str, Recipe] = {}
    if args.recipe is not None:
        with naming("--recipe"):
            given = read_recipes(args.recipe, args.arms, args.env)
    for key, _ in args.hyperparams:
        prefix = key.rpartition(".")[0]
        if prefix and prefix not in args.arms:
            raise ValueError(
                f"hyperparams {key!r} is of arm {prefix!r}, which is none of {', '.join(args.arms)}"
            )
    return {name: _recipe(args, name, given.get(name)) for name in args.arms}


def _recipe(args: argparse.Namespace, name: str, recipe: Recipe | None) -> dict[str, Any] | None:
    changes = {
        key.rpartition(".")[2]: value
        for key, value in args.hyperparams
        if key.rpartition(".")[0] in ("", name)
    }
    if args.matched:
        recipe = matched_recipe_for(name, args.env, memory_of(args).get(name, "unknown"))
    if changes:
        recipe = (recipe or recipe_for(name, args.env)).with_changes(find_arm(name), changes)
    return None if recipe is None else recipe.as_mapping()


def notes_on_unmatched_keys(args: argparse.Namespace) -> list[str]:
    """Return what matched recipes cannot match of arms of the user's own."""
    if not args.matched:
        return []
    lines = []
    for name in args.arms:
        left_out = unmatched_keys(name, args.env, memory_of(args).get(name, "unknown"))
        if left_out:
            lines.append(f"{name} takes no {', '.join(left_out)}: it is matched in the rest only.")
    return lines


def notes_on_general_recipes(args: argparse.Namespace) -> list[str]:
    """Return that recipes are the general ones, where none was tuned for the environment."""
    reason = None if getattr(args, "recipe", None) is not None else why_general(args.env)
    if reason is None:
        return []
    return [f"Recipes are the general ones, none was tuned for this environment: {reason}."]


@contextlib.contextmanager
def naming(option: str) -> Iterator[None]:
    """Let a file that cannot be read name the option that it was given to."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{option}: {error}") from error


def one_line(message: str) -> str:
    r"""Lay out a message in one line; what cannot be printed is spelled out.

    >>> one_line("no such folder: a\nb\x1b[31m")
    'no such folder: a b\\x1b[31m'
    """
    joined = " ".join(part.strip() for part in message.splitlines())
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in joined)


def arm_list(text: str) -> str:
    """Parse the name of an arm."""
    try:
        find_arm(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def arms_help() -> str:
    """Describe the arms in a line."""
    return f"contestants: {', '.join(ARMS)}, or module:factory of your own"


def command(name: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a command of a function of its arguments: bad input exits with 2 and a message."""

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def main(arguments: Sequence[str] | None = None) -> int:
            # As `python -m` does: modules beside the user, for module:ID and module:factory.
            if os.getcwd() not in sys.path and "" not in sys.path:
                sys.path.append(os.getcwd())
            try:
                return function(arguments)
            except (ValueError, OSError, ImportError) as error:
                print(f"{name}: {one_line(str(error))}", file=sys.stderr)
                return 2
            except KeyboardInterrupt:
                print(f"{name}: interrupted", file=sys.stderr)
                return 130

        return main

    return decorate


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that lets code in files run."""
    parser.add_argument(
        "--trust-pickles",
        action="store_true",
        help="load models and normalisers that are pickles, which can run any code: of runs by "
        "earlier versions, and of arms of your own",
    )

"""Options the scripts share."""

from __future__ import annotations

import argparse
import ast


def env_kwarg(text: str) -> tuple[str, object]:
    """Parse ``name:value``, as RL Zoo writes environment arguments."""
    name, separator, value = text.partition(":")
    if not separator:
        raise argparse.ArgumentTypeError(f"expected name:value, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def seed(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {value}")
    return value


def add_env_options(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Add ``--env`` and ``--env-kwargs``."""
    parser.add_argument("--env", default=default, help="environment id")
    parser.add_argument(
        "--env-kwargs", nargs="+", type=env_kwarg, default=[], metavar="NAME:VALUE",
        help="arguments of the environment, such as flicker_prob:0.3",
    )  # fmt: skip

"""Where a result comes from: versions, machine, revision, command."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import thrust_pomdp

_PACKAGES = ("torch", "stable_baselines3", "sb3_contrib", "gymnasium", "numpy", "numba")


def versions() -> dict[str, str]:
    """Return the versions of what computes, of what is installed."""
    found = {"thrust_pomdp": thrust_pomdp.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str | int]:
    """Describe the machine; its name stays out of what may be published."""
    return {
        "system": platform.platform(),
        "processor": processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
    }  # fmt: skip


def processor() -> str:
    """Return what the machine's processor is called."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


@functools.cache
def git_revision() -> str | None:
    """Return the revision of this package's sources, with ``+`` if they were changed since.

    None where they are no checkout: an installed copy may lie inside somebody else's repository.
    """
    package = Path(thrust_pomdp.__file__).parent
    try:
        if not _git(package, "ls-files", "__init__.py"):
            return None
        changed = _git(package, "status", "--porcelain", "--untracked-files=no", ".")
        return _git(package, "rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def command() -> str:
    """Return how this process was called."""
    return " ".join([Path(sys.executable).name, *sys.orig_argv[1:]])

"""Where modules of earlier versions are now: their names stay importable, for good.

Saved models and normalisers name the modules of their classes, and so do programs. This is the one
table of both; a finder looks names up in it.
"""

from __future__ import annotations

import dis
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from thrust_pomdp.errors import users_frame, warn_user

_PACKAGE = "thrust_pomdp"

#: Modules of version 0.1.0 and where they are, both without the package's name.
MOVED = {
    "acting": "deploy.stateful_actor",
    "asymmetric": "ppo.asymmetric_policy",
    "buffers": "ppo.buffers",
    "checks": "ppo.checks",
    "distributions": "ppo.distributions",
    "experiment.bars": "experiment.progress_bars",
    "experiment.files": "experiment.results_folder",
    "experiment.films": "experiment.video",
    "experiment.keys": "experiment.recipe_checks",
    "experiment.names": "errors",
    "experiment.output": "experiment.console",
    "experiment.progress": "experiment.callbacks",
    "experiment.report.origin": "experiment.report.basis",
    "experiment.report.text": "experiment.report.text_and_csv",
    "experiment.report.wording": "experiment.report.number_format",
    "experiment.values": "experiment.recipe_values",
    "experiment.watching": "experiment.playback",
    "inside": "analysis.trace",
    "inside_figure": "analysis.trace_figure",
    "interop": "ppo.sb3_contrib",
    "losses": "ppo.losses",
    "maskable": "ppo.maskable",
    "maskable.buffers": "ppo.maskable.buffers",
    "maskable.distributions": "ppo.maskable.distributions",
    "maskable.evaluation": "ppo.maskable.evaluation",
    "maskable.masks": "ppo.maskable.masks",
    "maskable.policies": "ppo.maskable.policies",
    "maskable.ppo": "ppo.maskable.ppo",
    "maskable.stepping": "ppo.maskable.stepping",
    "painting": "envs.rendering",
    "policies": "ppo.policies",
    "recurrent.subsequences": "ppo.subsequences",
    "reference.laws": "reference.control_laws",
    "reference.maze": "reference.tmaze_controllers",
    "reference.playing": "reference.episodes",
    "registration": "envs.registration",
    "seeing": "deploy.observation_pipeline",
    "stepping": "ppo.prepared_step",
    "stored_states": "ppo.stored_states",
    "vec": "vec_env",
    "vec.env": "vec_env.gymnasium_vec_env",
    "vec.making": "vec_env.make",
    "vec.normalize": "vec_env.normalize",
    "vec.previous": "vec_env.previous",
    "vec.privileged": "vec_env.privileged",
    "vec.step_infos": "vec_env.step_infos",
    "visible": "wrappers.visible_statistics",
    "wrappers.blanks": "wrappers.blank_symbols",
    "wrappers.flags": "wrappers.blank_flags",
    "wrappers.plan": "wrappers.blanking_plan",
}

#: Packages that took the name of a module -> where that module is.
REPLACED = {"ppo": "ppo.recurrent_ppo"}


class _Finder(MetaPathFinder):
    """Finds modules that have moved.

    It is asked first: a package that moved has modules of the same names, which Python's own
    finder would load once more under the old ones.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != _PACKAGE or name not in MOVED:
            return None
        return ModuleSpec(fullname, _Loader(f"{_PACKAGE}.{MOVED[name]}"))


class _Loader(Loader):
    """Gives the module that there is, under its old name.

    :param name: the module's name now
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        _tell(spec.name, self._name)
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put the old name's there


def _tell(old: str, new: str) -> None:
    """Tell of a new path whoever wrote an ``import``; who reads a file wrote none."""
    frame = users_frame()
    if frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_NAME"]:
        warn_user(f"{old} has moved to {new}: import it from there", DeprecationWarning)


def attribute_of(package: str, name: str) -> Any:
    """Find what the module had whose name a package took; for the package's ``__getattr__``.

    :raises AttributeError: if it had nothing of that name
    """
    new = f"{_PACKAGE}.{REPLACED[package.removeprefix(f'{_PACKAGE}.')]}"
    if name.startswith("__"):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(new), name)
    except AttributeError:
        raise AttributeError(f"module {package!r} has no attribute {name!r}") from None
    warn_user(f"{package}.{name} has moved to {new}.{name}", DeprecationWarning)
    return found


def keep_old_names() -> None:
    """Make old names importable, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())

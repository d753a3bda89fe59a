"""The rooms of the package: who may import whom, and where things are that have moved."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import thrust_pomdp
from thrust_pomdp import moved

ROOT = Path(thrust_pomdp.__file__).parent

#: From the ground up: a room may import what is below it.
ROOMS = (
    "ground floor", "envs", "wrappers", "vec_env", "reference", "recurrent", "conformance", "ppo",
    "deploy", "analysis", "checkpoint", "distributed", "experiment",
)  # fmt: skip
#: Doors, not rooms: they may lead anywhere.
DOORS = ("", "__main__")


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports(name: str) -> set[str]:
    """Modules of the package that a module imports, for type checkers' eyes only included."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == ROOT.name:
            base = (node.module or "").partition(".")[2]
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                found.add(inner if inner in MODULES else base)
    return found - {name}


IMPORTS = {name: imports(name) for name in MODULES}


def room_of(name: str) -> str:
    first = name.split(".")[0]
    return first if (ROOT / first).is_dir() else "ground floor"


def test_every_module_is_in_a_room():
    assert {room_of(name) for name in MODULES if name not in DOORS} == set(ROOMS)


def test_unit_tests_stand_in_the_rooms_of_what_they_test():
    folders = {path.name for path in Path(__file__).parent.iterdir() if any(path.glob("test_*.py"))}
    assert folders <= {*ROOMS[1:], "docs", "scripts"}
    assert len(folders) > 10


def test_imports_point_down():
    up = [
        f"{name} -> {target}"
        for name, targets in IMPORTS.items()
        if name not in DOORS
        for target in targets
        if target in DOORS or ROOMS.index(room_of(target)) > ROOMS.index(room_of(name))
    ]
    assert up == []


def test_no_two_files_name_each_other():
    """Not by way of others either: what both need has a home below both."""
    below: dict[str, set[str]] = defaultdict(set)

    def reach(name: str, seen: tuple[str, ...] = ()) -> None:
        assert name not in seen, " -> ".join((*seen[seen.index(name) :], name))
        if name in below:
            return
        for target in IMPORTS[name] - set(DOORS):
            reach(target, (*seen, name))
        below[name] = IMPORTS[name]

    for name in IMPORTS:
        if name not in DOORS:
            reach(name)


@pytest.mark.parametrize("room", ROOMS[1:])
def test_each_room_says_what_it_is(room):
    """Three sentences or so: what it owns, what it may import, where to start reading."""
    text = importlib.import_module(f"thrust_pomdp.{room}").__doc__
    assert text is not None
    assert "Start reading" in " ".join(text.split())
    assert "imports" in text


class TestOldNames:
    @pytest.mark.parametrize("old", moved.MOVED)
    def test_are_found(self, old):
        module = importlib.import_module(f"thrust_pomdp.{old}")
        assert module.__name__ == f"thrust_pomdp.{moved.MOVED[old]}"
        assert module is sys.modules[module.__name__]

    def test_lead_to_modules_that_exist(self):
        assert set(moved.MOVED.values()) | set(moved.REPLACED.values()) <= MODULES.keys()
        assert not moved.MOVED.keys() & MODULES.keys()

    def test_tell_people_who_import_them(self):
        program = (
            "import warnings; warnings.simplefilter('error')\n"
            "from thrust_pomdp.policies import MlpLstmPolicy\n"
        )
        told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "thrust_pomdp.policies has moved to thrust_pomdp.ppo.policies" in told.stderr

    def test_are_silent_where_a_file_is_read(self):
        program = (
            "import warnings; warnings.simplefilter('error', DeprecationWarning)\n"
            "import pickle\n"
            "cls = pickle.loads(b'cthrust_pomdp.policies\\nRecurrentActorCriticPolicy\\n.')\n"
            "import thrust_pomdp\n"
            "assert cls is thrust_pomdp.MlpLstmPolicy\n"
        )
        told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert told.returncode == 0, told.stderr

    def test_of_a_module_whose_name_a_room_took(self):
        with pytest.warns(DeprecationWarning, match="has moved to thrust_pomdp.ppo.recurrent_ppo"):
            from thrust_pomdp.ppo import RecurrentPPO
        assert RecurrentPPO is thrust_pomdp.RecurrentPPO

    def test_others_are_missed_as_always(self):
        with pytest.raises(ModuleNotFoundError, match="thrust_pomdp.nothing"):
            importlib.import_module("thrust_pomdp.nothing")
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            importlib.import_module("thrust_pomdp.ppo").nothing  # noqa: B018

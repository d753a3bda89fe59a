"""What importing the package costs, and that every public name is there."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys

import gymnasium as gym
import pytest

import thrust_pomdp
from thrust_pomdp.envs.registration import ENVIRONMENTS

IDS = list(ENVIRONMENTS)
HEAVY = ("torch", "stable_baselines3", "sb3_contrib", "matplotlib", "pandas")


def run(code: str) -> str:
    """Run code in a fresh interpreter in which every warning is an error."""
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def heavy_modules_after(code: str) -> str:
    return run(f"import sys\n{code}\nprint([name for name in {HEAVY!r} if name in sys.modules])")


class TestImportCost:
    """Environment workers never pay for torch or Stable-Baselines3."""

    @pytest.mark.parametrize(
        "module",
        [
            "thrust_pomdp",
            "thrust_pomdp.envs",
            "thrust_pomdp.reference",
            "thrust_pomdp.wrappers.visible_statistics",
            "thrust_pomdp.wrappers",
            "thrust_pomdp.wrappers.vector",
        ],
    )
    def test_modules_for_workers_load_numpy_and_gymnasium_only(self, module: str) -> None:
        assert heavy_modules_after(f"import {module}") == "[]"

    def test_making_and_stepping_every_id_loads_nothing_heavy(self) -> None:
        code = (
            "import gymnasium as gym, thrust_pomdp\n"
            f"for env_id in {IDS!r}:\n"
            "    env = thrust_pomdp.NormalizeVisibleObservation(gym.make(env_id))\n"
            "    env.reset(seed=0)\n"
            "    env.step(0)"
        )
        assert heavy_modules_after(code) == "[]"

    def test_the_public_names_load_neither_sb3_contrib_nor_matplotlib(self) -> None:
        code = "import thrust_pomdp\nfor name in thrust_pomdp.__all__: getattr(thrust_pomdp, name)"
        loaded = heavy_modules_after(code)
        # The probe itself works: it sees what these names do need.
        assert "'torch', 'stable_baselines3'" in loaded
        assert "sb3_contrib" not in loaded
        assert "matplotlib" not in loaded


class TestImportingTwice:
    def test_a_reload_warns_nothing_and_keeps_the_ids(self) -> None:
        code = (
            "import importlib, sys\n"
            "import gymnasium as gym, thrust_pomdp\n"
            "spec = gym.spec('FlickeringCartPole-v0')\n"
            "importlib.reload(thrust_pomdp.envs.registration)\n"
            "importlib.reload(thrust_pomdp)\n"
            "for name in [name for name in sys.modules if name.startswith('thrust_pomdp')]:\n"
            "    del sys.modules[name]\n"
            "import thrust_pomdp\n"
            "print(gym.spec('FlickeringCartPole-v0') is spec, gym.make(spec).reset(seed=0)[1])"
        )
        # Nothing on standard error either: Gymnasium's logger prints there.
        command = [sys.executable, "-W", "error", "-c", code]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert result.stderr == ""
        assert result.stdout.startswith("True {'blanked': ")


class TestPublicNames:
    @pytest.mark.parametrize("name", thrust_pomdp.__all__)
    def test_each_is_found_under_its_own_name(self, name: str) -> None:
        assert name in dir(thrust_pomdp)
        assert getattr(thrust_pomdp, name) is not None

    def test_an_unknown_name_is_an_attribute_error_that_names_it(self) -> None:
        with pytest.raises(AttributeError, match="'thrust_pomdp' has no attribute 'RecurentPPO'"):
            thrust_pomdp.RecurentPPO  # noqa: B018

    def test_importing_registers_the_ids(self) -> None:
        assert set(IDS) <= set(gym.registry)


class TestExamples:
    @pytest.mark.parametrize(
        "module",
        [
            "envs.flicker",
            "envs.cartpole",
            "envs.noise",
            "envs.popgym_cartpole",
            "envs.tmaze",
            "envs.tmaze_vector",
            "wrappers.blanking",
            "wrappers.normalize",
            "vec.normalize",
        ],
    )
    def test_the_examples_in_the_docstrings_run(self, module: str) -> None:
        result = doctest.testmod(importlib.import_module(f"thrust_pomdp.{module}"))
        assert result.attempted >= 3
        assert result.failed == 0

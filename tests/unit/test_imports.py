"""What importing the package costs, and that every public name is there."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

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

    def test_a_model_is_made_and_acts_without_torchs_compiler(self) -> None:
        """An optimiser of torch's loads it when it is made, which takes most of a second."""
        code = (
            "import sys, torch as th, thrust_pomdp\n"
            "env = thrust_pomdp.make_vec_env('FlickeringCartPole-v0', n_envs=2)\n"
            "model = thrust_pomdp.RecurrentPPO('MlpLstmPolicy', env, n_steps=4)\n"
            "model.predict(env.reset())\n"
            "print('torch._dynamo' in sys.modules)\n"
            "method = th.optim.Optimizer.add_param_group.__wrapped__\n"
            "print(hasattr(method, '__dynamo_disable'))\n"
            "th.optim.SGD(model.policy.parameters(), lr=1.0)\n"  # somebody's own
            "print('torch._dynamo' in sys.modules, hasattr(method, '__dynamo_disable'))\n"
            "thrust_pomdp.RecurrentPPO('MlpLstmPolicy', env, n_steps=4)\n"
            "print(hasattr(method, '__dynamo_disable'))\n"
        )
        assert run(code).split("\n") == ["False", "False", "True True", "True"]

    def test_the_public_names_load_neither_sb3_contrib_nor_matplotlib(self) -> None:
        code = "import thrust_pomdp\nfor name in thrust_pomdp.__all__: getattr(thrust_pomdp, name)"
        loaded = heavy_modules_after(code)
        # The probe itself works: it sees what these names do need.
        assert "'torch', 'stable_baselines3'" in loaded
        assert "sb3_contrib" not in loaded
        assert "matplotlib" not in loaded


#: What Python has on POSIX and not on Windows.
POSIX_MODULES = (
    "_posixshmem", "_posixsubprocess", "crypt", "curses", "fcntl", "grp", "nis", "posix", "pty",
    "pwd", "readline", "resource", "spwd", "syslog", "termios", "tty",
)  # fmt: skip
POSIX_NAMES = {
    "os": (
        "chown chroot confstr ctermid fchdir fchmod fchown fork forkpty fpathconf getegid geteuid "
        "getgid getgroups getloadavg getpgid getpgrp getpriority getresgid getresuid getsid getuid "
        "initgroups killpg lchown lockf major makedev memfd_create minor mkfifo mknod nice openpty "
        "pathconf pidfd_open posix_fadvise posix_fallocate posix_spawn posix_spawnp pread preadv "
        "pwrite pwritev register_at_fork sched_getaffinity sched_setaffinity sched_yield sendfile "
        "setegid seteuid setgid setpgid setpriority setsid setuid sync sysconf tcgetpgrp tcsetpgrp "
        "ttyname uname wait wait3 wait4 waitid WNOHANG WIFEXITED WEXITSTATUS WIFSIGNALED WTERMSIG "
        "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC RTLD_GLOBAL RTLD_NOW"
    ),
    "signal": (
        "alarm getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt sigpending "
        "sigwait sigwaitinfo sigtimedwait ITIMER_REAL SIG_BLOCK SIG_UNBLOCK SIG_SETMASK "
        "SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGPROF SIGQUIT SIGRTMAX "
        "SIGRTMIN SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGWINCH SIGXCPU"
    ),
    "mmap": "MAP_ANONYMOUS MAP_PRIVATE MAP_SHARED PROT_READ PROT_WRITE",
    "select": "epoll poll",
    "socket": "AF_UNIX",
    "sys": "getdlopenflags setdlopenflags",
    "time": (
        "CLOCK_MONOTONIC CLOCK_PROCESS_CPUTIME_ID CLOCK_REALTIME clock_getres clock_gettime "
        "clock_gettime_ns pthread_getcpuclockid tzset"
    ),
}

#: Modules that cannot be imported without a library, and that library.
NEED_EXTRAS = {"thrust_pomdp.experiment.ray_engine": "ray"}

LOADED = f"""
import importlib.util, pkgutil, sys, warnings
import thrust_pomdp

names = ["thrust_pomdp"]
names += [m.name for m in pkgutil.walk_packages(thrust_pomdp.__path__, "thrust_pomdp.")]
for name, library in {NEED_EXTRAS!r}.items():
    if importlib.util.find_spec(library) is None:
        names.remove(name)
warnings.simplefilter("ignore")
for name in names:
    importlib.import_module(name)
warnings.simplefilter("error")
for name in [name for name in sys.modules if name.split(".")[0] == "thrust_pomdp"]:
    del sys.modules[name]
"""
WITHOUT_POSIX = f"""
for module, gone in {POSIX_NAMES!r}.items():
    for name in gone.split():
        vars(importlib.import_module(module)).pop(name, None)
for module in {POSIX_MODULES!r}:
    sys.modules[module] = None
"""


class TestOtherSystems:
    """Nothing that exists on POSIX only is touched at import.

    Libraries are loaded beforehand: what they touch is their business.
    """

    def test_every_module_is_imported_without_the_names_of_posix(self) -> None:
        again = "for name in names: importlib.import_module(name)\nprint(*names)"
        imported = run(LOADED + WITHOUT_POSIX + again).split()
        files = len(list(Path(thrust_pomdp.__file__).parent.rglob("*.py")))
        assert files - len(NEED_EXTRAS) <= len(imported) <= files

    @pytest.mark.parametrize(
        "touch",
        [
            "os.register_at_fork(before=print)",
            "os.sched_getaffinity(0)",
            "signal.SIGKILL",
            "import fcntl",
            "from os import fork",
        ],
    )
    def test_touching_them_would_be_seen(self, touch: str) -> None:
        code = (
            f"try: exec({touch!r})\n"
            "except (AttributeError, ImportError) as error: print(type(error).__name__)"
        )
        head = "import importlib, os, signal, sys\n"
        assert run(head + WITHOUT_POSIX + code) in {
            "AttributeError",
            "ImportError",
            "ModuleNotFoundError",
        }


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
            "envs.repeat_previous",
            "envs.repeat_previous_vector",
            "wrappers.blanking",
            "wrappers.normalize",
            "vec.normalize",
        ],
    )
    def test_the_examples_in_the_docstrings_run(self, module: str) -> None:
        result = doctest.testmod(importlib.import_module(f"thrust_pomdp.{module}"))
        assert result.attempted >= 3
        assert result.failed == 0

"""Real processes: the same bits however many there are, and none that is left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import distributed_cases as cases
import pytest
from distributed_cases import CASES

ROOT = Path(__file__).parents[3]
PROGRAM = str(ROOT / "tests" / "distributed_cases.py")
FAULTS = str(ROOT / "tests" / "distributed_faults.py")

#: What a process computes must not depend on what its machine has learnt of others before.
ENV = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "OMP_NUM_THREADS": "1",
}

distributed = pytest.mark.distributed


def torchrun(n_ranks: int, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a program in some processes."""
    command = ["-m", "torch.distributed.run", "--nproc-per-node", str(n_ranks),
               "--master-port", str(free_port())]  # fmt: skip
    if n_ranks == 0:  # a plain process
        command = []
    return subprocess.Popen(
        [sys.executable, *command, *arguments],
        env=ENV | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def done(process: subprocess.Popen[str], seconds: float = 300.0) -> str:
    """Wait until it has ended well, and return what it said."""
    said, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, said
    return said


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    assert one.keys() == other.keys()
    pairs = [(name, part) for name in one for part in one[name]]
    return [f"{name}: {part}" for name, part in pairs if one[name][part] != other[name][part]]


def is_left(group: int) -> bool:
    """Whether a process of a session is still there."""
    found = subprocess.run(["ps", "-o", "pid=,stat=", "-s", str(group)], capture_output=True)
    return any("Z" not in line.split()[1] for line in found.stdout.decode().splitlines())


def wait_for_all(group: int, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while is_left(group):
        assert time.monotonic() < end, f"processes of session {group} are left behind"
        time.sleep(0.1)


class TestTheSameBits:
    def test_two_processes_and_one(self, tmp_path):
        """The short one of ``make test``."""
        names = ["lstm", "state_dependent_exploration"]
        process = torchrun(2, PROGRAM, str(tmp_path / "two.json"), *names)
        one = {name: cases.train(name) for name in names}
        done(process)
        two = json.loads((tmp_path / "two.json").read_text())
        assert differences(json.loads(json.dumps(one)), two) == []

    @distributed
    @pytest.mark.parametrize("n_ranks", [2, 4])
    @pytest.mark.parametrize("numba", ["0", "1"])
    def test_every_case(self, n_ranks, numba, tmp_path):
        found = []
        for n in (0, n_ranks):
            process = torchrun(
                n, PROGRAM, str(tmp_path / f"{n}.json"), *CASES, NUMBA_DISABLE_JIT=numba
            )
            done(process)
            found.append(json.loads((tmp_path / f"{n}.json").read_text()))
        assert differences(*found) == []

    @distributed
    @pytest.mark.parametrize("numba", ["0", "1"])
    def test_a_hundred_updates(self, numba, tmp_path):
        """64 units, 16 environments: 1, 2 and 4 processes, LSTM and GRU, both ways to compute."""
        told = {"UPDATES": "100", "HIDDEN": "64", "ENVS": "16", "NUMBA_DISABLE_JIT": numba}
        found = []
        for n in (0, 2, 4):
            done(torchrun(n, PROGRAM, str(tmp_path / f"{n}.json"), "lstm", "gru", **told), 900)
            found.append(json.loads((tmp_path / f"{n}.json").read_text()))
        assert differences(found[0], found[1]) == differences(found[0], found[2]) == []


class TestFaults:
    """What goes wrong in one process ends all, with an error that names it."""

    @staticmethod
    def run(fault: str, n_ranks: int = 2, timeout: str = "5") -> tuple[list[Any], float]:
        """Start processes without a launcher, and return exit codes, what they said, and how long
        it took from the first end to the last.
        """
        port = str(free_port())
        started = [
            subprocess.Popen(
                [sys.executable, FAULTS, fault, "1", "2", timeout],
                env={**ENV, "RANK": str(rank), "WORLD_SIZE": str(n_ranks), "MASTER_PORT": port,
                     "MASTER_ADDR": "127.0.0.1"},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in range(n_ranks)
        ]  # fmt: skip
        found: dict[int, Any] = {}
        ends: list[float] = []
        deadline = time.monotonic() + 240
        while len(found) < n_ranks and time.monotonic() < deadline:
            for rank, process in enumerate(started):
                if rank not in found and process.poll() is not None:
                    ends.append(time.monotonic())
                    found[rank] = (process.returncode, process.communicate()[0])
            if fault == "hangs" and len(found) == n_ranks - 1 and 1 not in found:
                started[1].kill()
            time.sleep(0.05)
        for process in started:
            process.kill()
        return [found[rank] for rank in range(n_ranks)], ends[-1] - ends[0]

    @distributed
    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ("killed", "rank 1 is dead or hangs: no sign of life for 5 seconds"),
            ("killed in training", "rank 1 is dead or hangs, since an exchange failed"),
            ("hangs", "rank 1 is dead or hangs: no sign of life for 5 seconds"),
            ("raises", "rank 1 has failed: OSError: the robot is unplugged"),
            ("other arguments", "gamma is 0.9 on rank 1 and 0.99 on rank 0"),
            ("other weights", "the weights is"),
        ],
    )
    @pytest.mark.parametrize("n_ranks", [2, 4])
    def test_end_all(self, fault, message, n_ranks):
        found, seconds = self.run(fault, n_ranks)
        for rank, (code, said) in enumerate(found):
            assert code != 0, said
            if rank != 1:
                assert "RankError" in said or "ArgumentError" in said
                assert message in said or "rank 1" in said or "lost" in said, said
        assert message in found[0][1]
        assert seconds < 5 + 15  # the timeout, and what Python takes to end on a busy machine

    @distributed
    @pytest.mark.parametrize("fault", ["slow", "evaluates"])
    def test_who_is_slow_is_not_dead(self, fault):
        """Windows of 13 s and evaluations of 12 s, against a timeout of 8 s."""
        for code, said in self.run(fault, timeout="8")[0]:
            assert code == 0, said

    @distributed
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
    def test_a_launcher_that_ends_takes_all_along(self, number, tmp_path):
        process = torchrun(2, FAULTS, "nothing", "0", "0", "60")
        assert process.stdout is not None
        begun = 0
        while begun < 2:
            line = process.stdout.readline()
            assert line, "the processes ended before they began"
            begun += line.count("begins")  # two may have written into one line
        time.sleep(1)
        os.kill(process.pid, number)
        process.communicate(timeout=60)
        wait_for_all(process.pid)


class TestGoingOn:
    """Killed at some moment and started again, with another number of processes."""

    NAMES = ("lstm", "state_dependent_exploration", "asymmetric")

    @distributed
    @pytest.mark.parametrize("trial", range(int(os.environ.get("KILL_TRIALS", "3"))))
    def test_bits(self, trial, tmp_path):
        rng = random.Random(trial)
        name = rng.choice(self.NAMES)
        told = {"UPDATES": "8"}
        done(torchrun(0, PROGRAM, str(tmp_path / "whole.json"), name, **told))
        told["CHECKPOINTS"] = str(tmp_path / "kept")
        out = tmp_path / "resumed.json"
        story = []
        for _ in range(3):
            n_ranks = rng.choice([1, 2, 4])
            process = torchrun(n_ranks, PROGRAM, str(out), name, **told)
            folder, seen = tmp_path / "kept" / name, rng.randint(1, 3)
            before = len(list(folder.glob("*.safetensors")))
            end = time.monotonic() + 120
            steps = {path.name for path in folder.glob("*.safetensors")}
            while process.poll() is None and time.monotonic() < end and seen:
                now = {path.name for path in folder.glob("*.safetensors")}
                seen, steps = seen - bool(now - steps), now
                time.sleep(0.01)
            time.sleep(rng.random() * 0.5)
            how = rng.choice(["a rank", "the launcher", "Ctrl-C"])
            story.append((n_ranks, how, before))
            if process.poll() is None:
                _end(process, how, rng)
            process.communicate(timeout=90)
            wait_for_all(process.pid)
        n_ranks = rng.choice([0, 2, 4])
        story.append((n_ranks, "to the end", 0))
        done(torchrun(n_ranks, PROGRAM, str(out), name, **told))
        whole, resumed = (json.loads(path.read_text()) for path in (tmp_path / "whole.json", out))
        assert differences(whole, resumed) == [], story


def _end(process: subprocess.Popen[str], how: str, rng: random.Random) -> None:
    if how == "a rank":
        found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
        ranks = [int(pid) for pid in found.stdout.split()]
        if ranks:
            os.kill(rng.choice(ranks), signal.SIGKILL)
    elif how == "the launcher":
        os.kill(process.pid, signal.SIGKILL)
    else:
        os.killpg(process.pid, signal.SIGINT)

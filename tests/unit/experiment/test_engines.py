"""The local engine: what it tells of its processes, and what kill and Ctrl-C leave."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from instant_engine import spec
from tasks import Draws, Sleeps

from thrust_pomdp.experiment.engines import (
    Failed,
    Finished,
    Job,
    LocalEngine,
    Started,
    perform,
)
from thrust_pomdp.experiment.runner import Runner, load_result
from thrust_pomdp.experiment.runs import RunSpec

ROOT = Path(__file__).parents[3]


class TestLocalEngine:
    def worker(self, name: str) -> multiprocessing.Process:
        (found,) = [child for child in multiprocessing.active_children() if child.name == name]
        return found

    def test_results_are_those_of_this_process_bit_for_bit(self, tmp_path):
        specs = [spec(), spec("arms_of_users:failing")]
        runner = Runner(specs, tmp_path, jobs=2)
        by_name = {RunSpec(**one.spec).name: one for one in runner.run()}
        assert runner.failed() == ["arms_of_users.failing-seed0"]
        error = (tmp_path / "runs" / "arms_of_users.failing-seed0.error.txt").read_text()
        assert "RuntimeError: this arm cannot be made" in error
        here = perform(Job(spec()), lambda timesteps: None)
        there = by_name["lstm-seed0"]
        for name in ("deterministic", "stochastic", "final", "best", "timesteps"):
            assert getattr(there, name) == getattr(here.result, name), name
        assert there.provenance.keys() >= {"git_revision", "command", "versions", "machine"}
        assert (tmp_path / "runs" / "lstm-seed0.normalizer.safetensors").exists()

    def test_a_process_that_dies_is_a_failure_and_nobody_waits_for_it(self):
        engine = LocalEngine(2)
        events = []
        for event in engine.run([Job(spec()), Job(spec("mlp"))]):
            events.append(event)
            if isinstance(event, Started) and event.name == "mlp-seed0":
                os.kill(self.worker("lstm-seed0").pid, signal.SIGKILL)
        outcome = {event.name: event for event in events if isinstance(event, Failed | Finished)}
        assert "The process ended with signal SIGKILL" in outcome["lstm-seed0"].reason
        assert outcome["mlp-seed0"].result.timesteps == 2048

    def test_leaving_is_a_failure(self):
        outcome = perform(Job(spec("arms_of_users:leaving")), lambda timesteps: None)
        assert "SystemExit: 7" in outcome.reason

    def test_an_iterator_that_is_closed_ends_its_processes(self):
        events = LocalEngine(1).run([Job(spec(n_timesteps=10**9))])
        next(events)
        worker = self.worker("lstm-seed0")
        events.close()
        assert worker.exitcode == -signal.SIGTERM

    def test_workers_share_what_they_load_and_no_random_numbers(self, tmp_path):
        """Loading torch takes longer than many a run; copies of a process are alike in all."""
        engine = LocalEngine(2)
        engine.prepare()
        outcomes = [e for e in engine.run([Draws("one"), Draws("two")]) if isinstance(e, Finished)]
        first, second = (outcome.result for outcome in outcomes)
        assert first["python"] != second["python"]
        assert first["numpy"] != second["numpy"]
        assert first["threads"] == second["threads"] == "1"
        if sys.platform == "linux":
            assert first["loaded"]
            assert first["parent"] == second["parent"] != os.getpid()

    def test_where_copying_is_not_safe_each_process_starts_anew(self, monkeypatch):
        monkeypatch.setattr("sys.platform", "darwin")
        engine = LocalEngine(1)
        monkeypatch.undo()
        engine.prepare()
        (outcome,) = [e for e in engine.run([Draws("one")]) if isinstance(e, Finished)]
        assert outcome.result["parent"] == os.getpid()
        assert outcome.result["threads"] == "1"

    def test_needs_a_process(self):
        with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
            LocalEngine(0)


def children(process: int, command: bytes) -> list[int]:
    """Return the children of a process whose command contains something (Linux)."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            if command in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
    return found


def workers(process: int) -> list[int]:
    """Return the workers of a process: copies of one that has loaded what they need (Linux)."""
    (server,) = children(process, b"multiprocessing.forkserver") or [None]
    return [] if server is None else children(server, b"multiprocessing.forkserver")


def blocks_ctrl_c(process: int) -> bool:
    """Tell whether a process blocks SIGINT (Linux)."""
    (mask,) = re.findall(r"SigBlk:\s*(\w+)", Path(f"/proc/{process}/status").read_text())
    return bool(int(mask, 16) & 1 << signal.SIGINT - 1)


def interrupt_by_another_thread() -> None:
    def interrupt() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # of this thread alone
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    thread.join()


@pytest.fixture
def heeds_ctrl_c():
    """Let this process, and what it starts, be interrupted, as in a terminal.

    A shell starts what is to run in the background (``make test &``) with SIGINT ignored, and so
    are all processes that are started from there.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
class TestInterruptedWhileAWorkerStarts:
    """Ctrl-C is not lost at that moment, and takes the new worker with it."""

    @pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
    @pytest.mark.parametrize(
        "interrupt",
        [lambda: os.kill(os.getpid(), signal.SIGINT), interrupt_by_another_thread],
        ids=["blocked", "taken by another thread"],
    )
    def test_the_worker_is_ended_and_the_interrupt_raised(self, monkeypatch, interrupt, first):
        processes = []
        kind = type(LocalEngine(1)._context).Process
        start = kind.start

        def interrupted(process):
            processes.append(process)
            if first:
                interrupt()
            start(process)
            if not first:
                interrupt()

        monkeypatch.setattr(kind, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(LocalEngine(1).run([Sleeps("one")]))
        (worker,) = processes
        assert worker.exitcode == -signal.SIGTERM

    @pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
    def test_what_ctrl_c_means_is_afterwards_what_it_was(self, handler):
        signal.signal(signal.SIGINT, handler)
        before = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ())
        events = LocalEngine(1).run([Sleeps("one")])
        assert next(events) == Started("one")
        after = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, ())
        events.close()
        assert after == before


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks into Linux's /proc")
class TestKilled:
    """`kill -9` at any moment, and started again."""

    ARGUMENTS = ("--arms", "mlp", "lstm", "--n-timesteps", "2048", "--eval-episodes", "3", "4",
                 "--evaluations", "0", "--jobs", "1")  # fmt: skip

    def start(self, out: Path) -> subprocess.Popen:
        command = [sys.executable, "-m", "thrust_pomdp", "compare", *self.ARGUMENTS]
        return subprocess.Popen(
            [*command, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True, cwd=ROOT,
        )  # fmt: skip

    def wait_for(self, condition, seconds: float = 240.0):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def test_a_worker_that_has_nothing_to_tell_ends_with_its_parent_too(self):
        code = (
            "from tasks import Sleeps\nfrom thrust_pomdp.experiment.engines import LocalEngine\n"
            "for event in LocalEngine(1).run([Sleeps('one')]): print(event, flush=True)"
        )
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
        }
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
        )
        while "Progress" not in process.stdout.readline():
            assert process.poll() is None
        (worker,) = workers(process.pid)
        (server,) = children(process.pid, b"multiprocessing.forkserver")
        # Ctrl-C at any moment is the parent's alone, also before they can ignore it.
        assert all(map(blocks_ctrl_c, (server, worker)))
        assert not blocks_ctrl_c(process.pid)
        process.kill()
        process.wait()
        process.stdout.close()
        self.wait_for(lambda: not Path(f"/proc/{worker}").exists(), seconds=60)

    def test_it_goes_on_where_it_was_and_no_worker_is_left(self, tmp_path):
        process = self.start(tmp_path)
        first = tmp_path / "runs" / "mlp-seed0.json"
        self.wait_for(first.exists)
        self.wait_for(lambda: workers(process.pid))
        (worker,) = workers(process.pid)
        process.kill()
        process.communicate()
        self.wait_for(lambda: not Path(f"/proc/{worker}").exists(), seconds=60)
        kept = first.read_bytes(), first.stat().st_mtime_ns
        assert not (tmp_path / "runs" / "lstm-seed0.json").exists()
        # The lock does not outlive the process. Ctrl-C reaches the workers too, as in a terminal.
        process = self.start(tmp_path)
        while "mlp-seed0: finished before" not in (line := process.stdout.readline()):
            assert line
        self.wait_for(lambda: workers(process.pid))
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 1, err
        assert "Interrupted" in out
        assert "No result: lstm-seed0" in err
        assert "Traceback" not in err
        process = self.start(tmp_path)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        assert (first.read_bytes(), first.stat().st_mtime_ns) == kept
        result = load_result(tmp_path / "runs" / "lstm-seed0.json")
        assert result.deterministic == perform(Job(spec()), lambda _: None).result.deterministic
        assert (tmp_path / "summary.csv").read_text().count("\n") == 3

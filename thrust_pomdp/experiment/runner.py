"""Run many trainings side by side, each in a process of its own, keeping what is finished."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from tqdm import tqdm

from thrust_pomdp.experiment.training import RunResult, RunSpec, run

#: Seconds between looks at the worker processes.
_POLL_SECONDS = 0.2


class Runner:
    """Runs a list of trainings and keeps each result in a file as soon as it is finished.

    Beside the result ``runs/NAME.json`` stand the model ``NAME.zip`` and its observation statistics
    ``NAME.normalizer.pkl``, which ``scripts/render.py --run`` plays.

    A run that fails leaves its traceback in ``runs/NAME.error.txt`` and the others go on. Started
    again in the same folder, finished runs are not repeated.

    :param specs: the runs, with different names
    :param folder: where results are kept
    :param jobs: processes at the same time; each uses one thread
    :raises ValueError: if the folder holds a finished run of the same name made with other settings
    """

    def __init__(self, specs: Sequence[RunSpec], folder: Path, jobs: int) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self.specs = list(specs)
        self.folder = folder / "runs"
        self.jobs = jobs
        self._check_finished_runs()

    def _path(self, spec: RunSpec) -> Path:
        return self.folder / f"{spec.name}.json"

    def _check_finished_runs(self) -> None:
        for spec in self.specs:
            if not self._path(spec).exists():
                continue
            found = load_result(self._path(spec)).spec
            wanted = asdict(spec)
            different = [key for key in wanted if wanted[key] != found.get(key)]
            if different:
                key = different[0]
                raise ValueError(
                    f"{self._path(spec)} was made with {key}={found.get(key)!r}, not "
                    f"{wanted[key]!r}: choose another folder"
                )

    def run(self) -> list[RunResult]:
        """Run what is not finished yet.

        An interrupt (Ctrl-C) ends the running processes and returns what is finished.

        :return: the results of all finished runs, in the order of the specs
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        pending = [spec for spec in self.specs if not self._path(spec).exists()]
        for spec in self.specs:
            if spec not in pending:
                print(f"{spec.name}: finished before, in {self._path(spec)}")
        if pending:
            _Pool(self.folder, pending, self.jobs).run()
        return [load_result(self._path(s)) for s in self.specs if self._path(s).exists()]

    def failed(self) -> list[str]:
        """Return the names of the runs that have no result."""
        return [spec.name for spec in self.specs if not self._path(spec).exists()]


class _Pool:
    """Worker processes, their progress bars and their events."""

    def __init__(self, folder: Path, pending: list[RunSpec], jobs: int) -> None:
        self.folder = folder
        self.pending = list(pending)
        self.jobs = min(jobs, len(pending))
        self.context = multiprocessing.get_context("spawn")
        self.events: Any = self.context.Queue()
        self.running: dict[str, SpawnProcess] = {}
        self.bars: dict[str, Any] = {}

    def run(self) -> None:
        try:
            while self.pending or self.running:
                while self.pending and len(self.running) < self.jobs:
                    self._start(self.pending.pop(0))
                self._handle_events()
                self._collect_ended()
        except KeyboardInterrupt:
            tqdm.write("Interrupted: keeping the runs that are finished.")
        finally:
            for process in self.running.values():
                process.terminate()
            for process in self.running.values():
                process.join()
            for bar in self.bars.values():
                bar.close()

    def _start(self, spec: RunSpec) -> None:
        process = self.context.Process(target=_work, args=(spec, self.folder, self.events))
        with _interrupts_ignored():
            process.start()
        self.running[spec.name] = process
        self.bars[spec.name] = tqdm(
            total=spec.total_timesteps,
            desc=f"{spec.name:<12}",
            unit="step",
            unit_scale=True,
            disable=None,  # no bars where nobody watches
        )

    def _handle_events(self) -> None:
        try:
            name, timesteps = self.events.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            return
        bar = self.bars[name]
        if timesteps >= bar.total:
            bar.set_description(f"{name:<12} (evaluating)")
        bar.update(min(timesteps, bar.total) - bar.n)

    def _collect_ended(self) -> None:
        for name, process in list(self.running.items()):
            if process.is_alive():
                continue
            process.join()
            del self.running[name]
            self.bars.pop(name).close()
            path = self.folder / f"{name}.json"
            if path.exists():
                result = load_result(path)
                tqdm.write(f"{name}: trained {result.timesteps} steps in {result.seconds:.0f} s")
            else:
                error = self.folder / f"{name}.error.txt"
                where = f", see {error}" if error.exists() else ""
                tqdm.write(f"{name}: failed with exit code {process.exitcode}{where}")


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let a process started here ignore Ctrl-C from its first moment on.

    The terminal sends it to the workers too; what it means is for the parent to decide.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _work(spec: RunSpec, folder: Path, events: Any) -> None:
    """Do one run in a process of its own."""
    error = folder / f"{spec.name}.error.txt"
    error.unlink(missing_ok=True)
    try:
        stem = folder / spec.name
        result = run(spec, lambda timesteps: events.put((spec.name, timesteps)), save_to=stem)
        save_result(result, folder / f"{spec.name}.json")
    except Exception:
        error.write_text(traceback.format_exc())
        raise SystemExit(1) from None


def save_result(result: RunResult, path: Path) -> None:
    """Write a result; the file appears whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(asdict(result)))
    os.replace(unfinished, path)


def load_result(path: Path) -> RunResult:
    """Read a result written by :func:`save_result`."""
    return RunResult(**json.loads(path.read_text()))

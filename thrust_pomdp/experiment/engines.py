"""Where runs are done: an engine takes tasks and tells what becomes of them.

Engines hand results over and write none: one process writes to a comparison's folder.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

import numpy as np

from thrust_pomdp.experiment.runs import RunSpec

#: Seconds after which an engine says that nothing has happened.
IDLE_SECONDS = 0.2

#: What keeps the libraries of one process on one core.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)

#: What a run loads, which takes longer than many a run. Not torch's compiler, which optimisers load
#: at their first step: no first step of an environment should wait for it.
_PRELOADED = ("thrust_pomdp.experiment.training", "thrust_pomdp.recurrent.kernels")


class Task(Protocol):
    """Something to be done in a process of its own; it is sent there by pickling."""

    @property
    def name(self) -> str:
        """What it is called; no two of an engine have the same."""

    def do(self, report: Callable[[int], None]) -> Finished:
        """Do it, telling from time to time how far it has come."""


@dataclass(frozen=True)
class Job:
    """A run to be done: the task of training and evaluating.

    :param spec: what to do
    :param tensorboard_log: folder of the TensorBoard log; None for none
    :param provenance: what to note beside what the worker knows: revision, command
    :param checkpoints: folder from which the run goes on if it was killed; None for none
    """

    spec: RunSpec
    tensorboard_log: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    checkpoints: str | None = None

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.spec.name

    def do(self, report: Callable[[int], None]) -> Finished:
        """Train and evaluate."""
        # Here, since only those who train pay for torch.
        from thrust_pomdp.experiment.training import Training

        training = Training(
            self.spec,
            report,
            tensorboard_log=self.tensorboard_log,
            checkpoints=self.checkpoints,
        )
        result = training.run()
        result.provenance.update(self.provenance)
        return Finished(self.name, result, training.files())


class Started(NamedTuple):
    """A task has begun."""

    name: str


class Progress(NamedTuple):
    """A task has come so far: environment steps of a training, cells of a sweep."""

    name: str
    timesteps: int


class Finished(NamedTuple):
    """A task is done; of a training, ``files`` are model and normaliser by their endings."""

    name: str
    result: Any
    files: dict[str, bytes]


class Failed(NamedTuple):
    """A task gave no result."""

    name: str
    reason: str


Event = Started | Progress | Finished | Failed

#: What happens, and None when nothing did for a moment.
Events = Generator[Event | None, None, None]


class Engine(Protocol):
    """Does tasks somewhere.

    :ivar jobs: tasks at the same time, on which their times depend
    """

    jobs: int

    def run(self, tasks: Sequence[Task]) -> Events:
        """Do the tasks and tell what happens; None when nothing did for a moment.

        Closing the iterator ends what is running.
        """


def perform(task: Task, report: Callable[[int], None]) -> Finished | Failed:
    """Do a task in this process."""
    try:
        return task.do(report)
    except (Exception, SystemExit):  # a user's arm may call sys.exit
        return Failed(task.name, traceback.format_exc())


class LocalEngine:
    """Does each run in a process of its own, with one thread.

    :param jobs: processes at the same time
    :raises ValueError: if there are none
    """

    def __init__(self, jobs: int) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self.jobs = jobs
        self._context = _make_context()

    def prepare(self) -> None:
        """Begin to load what runs need, beside whatever else there is to do before they start."""
        if self._context.get_start_method() == "forkserver":
            from multiprocessing import forkserver

            with _interrupts_blocked(), _one_thread():
                forkserver.ensure_running()

    def run(self, tasks: Sequence[Task]) -> Events:
        """Do the tasks and tell what happens; None when nothing did for a moment."""
        pending, workers = deque(tasks), list[_Worker]()
        try:
            while pending or workers:
                while pending and len(workers) < self.jobs:
                    with _interrupts_later(), _interrupts_blocked(), _one_thread():
                        workers.append(_Worker(self._context, pending.popleft()))
                    yield Started(workers[-1].name)
                yield from _look(workers)
                workers = [worker for worker in workers if not worker.has_ended]
        finally:
            for worker in workers:
                worker.process.terminate()
            for worker in workers:
                worker.process.join()


def _make_context() -> BaseContext:
    """Return how processes are started.

    Where that is safe they are copies of one process that has loaded what all of them need, and
    started no thread. (What a program has said to multiprocessing before stays as it is.)
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    return context


def _look(workers: Sequence[_Worker]) -> Iterator[Event | None]:
    """Tell what workers have sent, and which died without a word."""
    by_reader = {worker.reader: worker for worker in workers}
    ready = connection.wait(list(by_reader), timeout=IDLE_SECONDS)
    for reader in ready:
        event = by_reader[reader].receive()  # type: ignore[index]
        if event is not None:
            yield event
    if not ready:
        yield None


class _Worker:
    """A process doing one run.

    Each has a pipe of its own: were one killed while it writes, a queue shared with the others
    would stay locked for all.
    """

    def __init__(self, context: BaseContext, task: Task) -> None:
        self.name = task.name
        self.reader, writer = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=_work, args=(task, writer), name=self.name, daemon=False
        )
        self.process.start()
        writer.close()  # so that its end is seen once the process has ended
        self.has_ended = False

    def receive(self) -> Event | None:
        """Return what the process sent; a failure if it ended without a result."""
        try:
            event: Event = self.reader.recv()
        except (EOFError, OSError):
            self.process.join()
            event = Failed(self.name, f"The process ended with {_how(self.process.exitcode)}.\n")
        if not isinstance(event, Progress):
            self.has_ended = True
            self.process.join()
            self.reader.close()
        return event


def _how(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"signal {name}{hint}"
    return f"exit code {exitcode}"


def _work(task: Task, writer: connection.Connection) -> None:
    """Do one run in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it is not blocked already
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(_ONE_THREAD)
    np.random.seed()  # noqa: NPY002 - copies of one process would all draw the same numbers
    name = task.name
    # A parent that is gone takes this process with it; its pipe may break a moment earlier.
    with contextlib.suppress(BrokenPipeError):
        writer.send(perform(task, lambda timesteps: writer.send(Progress(name, timesteps))))
        writer.close()


def _end_with_parent() -> None:
    """End this process when its parent has, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Let Ctrl-C wait until a new worker is among those it ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if held:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Let a process started here never see Ctrl-C: what is blocked stays so in children.

    The terminal sends it to the workers too; what it means is for the parent to decide.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # started later, it would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let a process started here compute with one thread."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

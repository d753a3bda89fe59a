"""Runs on a Ray cluster: the same tasks as on one machine, wherever there is a core.

Every machine of the cluster needs this package, and what a user's own modules need; modules beside
the user are found where they lie at the same path. Results come back to this process, which writes
them, so the machines need no folder in common (TensorBoard logs are written where the run is done).
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from thrust_pomdp.experiment.engines import (
    IDLE_SECONDS,
    Events,
    Failed,
    Finished,
    Progress,
    Started,
    Task,
    perform,
)

#: How often a run is begun anew when its worker, or the machine it is on, is lost.
MOST_RETRIES = 5


class RayEngine:
    """Does each task on one core of a Ray cluster.

    A cluster that runs is used (the one of ``RAY_ADDRESS`` or of this machine); otherwise a local
    one is started and ended. On equal processors results are those of the local engine bit for bit.

    :param jobs: tasks at the same time, on a local cluster; a running one has the cores it has
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    def run(self, tasks: Sequence[Task]) -> Events:
        """Do the tasks and tell what happens; None when nothing did for a moment."""
        with _connected(self.jobs):
            news = ray.remote(num_cpus=0)(_News).remote()
            do = ray.remote(num_cpus=1, max_retries=MOST_RETRIES)(_do)
            pending = {
                do.remote(task.name, pickle.dumps(task), sys.path, news): task.name
                for task in tasks
            }
            try:
                yield from _follow(pending, news)
            finally:
                for reference in pending:
                    ray.cancel(reference, force=True)


@contextlib.contextmanager
def _connected(jobs: int) -> Iterator[None]:
    """Be connected to a cluster."""
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address="auto", log_to_driver=False)
    except ConnectionError:
        ray.init(num_cpus=jobs, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def _follow(pending: dict[Any, str], news: Any) -> Events:
    """Tell what happens to the tasks and forget those that have ended."""
    seen: dict[str, int] = {}
    while pending:
        ended, _ = ray.wait(list(pending), timeout=IDLE_SECONDS)
        for name, progress in ray.get(news.all.remote()).items():
            if name not in seen:
                yield Started(name)
            if name in pending.values() and progress > seen.get(name, 0):
                yield Progress(name, progress)
            seen[name] = progress
        for reference in ended:
            name = pending.pop(reference)
            if name not in seen:  # it ended before it was seen to begin
                seen[name] = 0
                yield Started(name)
            yield _outcome(reference, name)
        if not ended:
            yield None


def _outcome(reference: Any, name: str) -> Finished | Failed:
    try:
        outcome: Finished | Failed = ray.get(reference)
    except RayError:  # lost too often, or what it needs is not on that machine
        return Failed(name, traceback.format_exc())
    return outcome


def _do(name: str, pickled: bytes, path: list[str], news: Any) -> Finished | Failed:
    """Do a task somewhere in the cluster.

    :param pickled: the task; unpickled here, where the modules beside the user are found
    :param path: where the process that hands out work finds modules
    """
    sys.path += [folder for folder in path if folder not in sys.path]
    tell = functools.partial(news.tell.remote, name)
    tell(0)
    return perform(pickle.loads(pickled), tell)


class _News:
    """How far tasks have come; an actor, which all of the cluster can reach."""

    def __init__(self) -> None:
        self._progress: dict[str, int] = {}

    def tell(self, name: str, progress: int) -> None:
        """Take note of how far a task has come; a task begun anew starts from 0."""
        self._progress[name] = progress

    def all(self) -> dict[str, int]:
        """Return how far all have come."""
        return self._progress

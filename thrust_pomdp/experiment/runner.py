"""Do many trainings, keeping what is finished."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from thrust_pomdp.experiment import provenance
from thrust_pomdp.experiment.console import say
from thrust_pomdp.experiment.engines import (
    Engine,
    Events,
    Failed,
    Finished,
    Job,
    LocalEngine,
)
from thrust_pomdp.experiment.failures import headline
from thrust_pomdp.experiment.folder import ComparisonFolder, environment_of, save_result
from thrust_pomdp.experiment.progress_bars import ProgressBars
from thrust_pomdp.experiment.report.terms import Terms
from thrust_pomdp.experiment.runs import RunResult, RunSpec, load_result

__all__ = ["Runner", "load_result", "save_result"]


class Runner:
    """Does a list of trainings and keeps each result in a file as soon as it is finished.

    A run that fails leaves its traceback in ``runs/NAME.error.txt`` and the others go on. Killed at
    any moment and started again in the same folder, finished runs are not repeated. What the folder
    holds is told at :class:`~thrust_pomdp.experiment.folder.ComparisonFolder`.

    :param specs: the runs, with different names
    :param folder: where results are kept
    :param jobs: processes at the same time; each uses one thread
    :param engine: where runs are done, instead of in so many processes here
    :param tensorboard: write TensorBoard logs
    :param terms: what the verdict is to go by where its rule leaves it open; kept in the folder
    :raises ValueError: if two runs have one name, or the folder is not ours or was made with other
        settings or terms
    """

    def __init__(
        self,
        specs: Sequence[RunSpec],
        folder: Path,
        jobs: int = 1,
        engine: Engine | None = None,
        tensorboard: bool = False,
        terms: Terms | None = None,
    ) -> None:
        self.specs = list(specs)
        self.engine = LocalEngine(jobs) if engine is None else engine
        self.tensorboard = tensorboard
        self.folder = ComparisonFolder(folder)
        self.terms = Terms() if terms is None else terms
        self.folder.check(self.specs, self.terms)
        self._unsaved: list[Finished] = []
        names = [spec.name for spec in self.specs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"specs must have different names, got {name} twice")

    def run(self, announce: Callable[[], None] = lambda: None) -> list[RunResult]:
        """Do what is not finished yet.

        An interrupt (Ctrl-C) ends the running processes and returns what is finished. A result that
        cannot be written, since the disk is full, is kept and tried again until it can be.

        :param announce: called once the folder is ours, before anything is done
        :return: the results of all finished runs, in the order of the specs
        :raises ValueError: if another process is doing runs in the folder
        :raises OSError: if the folder cannot be written
        """
        with self.folder.opened(self.specs, self.terms):
            announce()
            pending = [spec for spec in self.specs if not self.folder.is_finished(spec.name)]
            for spec in self.specs:
                if spec not in pending:
                    path = self.folder.result_path(spec.name)
                    say(f"{spec.name}: finished before, in {path}")
            if pending:
                self._do(pending)
        return self.results()

    def results(self) -> list[RunResult]:
        """Return the results of the finished runs, in the order of the specs."""
        names = [spec.name for spec in self.specs]
        return [self.folder.load(name) for name in names if self.folder.is_finished(name)]

    def failed(self) -> list[str]:
        """Return the names of the runs that have no result."""
        return [spec.name for spec in self.specs if not self.folder.is_finished(spec.name)]

    def _do(self, pending: Sequence[RunSpec]) -> None:
        for spec in pending:
            self.folder.error_path(spec.name).unlink(missing_ok=True)
        bars = ProgressBars({spec.name: spec.total_timesteps for spec in pending}, len(self.specs))
        with closing(self.engine.run([self._job(spec) for spec in pending])) as events:
            try:
                self._follow(events, bars)
            except KeyboardInterrupt:
                bars.write("Interrupted: keeping the runs that are finished.")
            finally:
                bars.close()
        for finished in self._unsaved:
            self._save_elsewhere(finished)

    def _job(self, spec: RunSpec) -> Job:
        log = str(self.folder.path.resolve() / "tensorboard") if self.tensorboard else None
        environment = environment_of(spec.env_id)
        noted = {
            **({} if environment is None else {"environment": environment}),
            "git_revision": provenance.git_revision(),
            "command": provenance.command(),
            "runs_at_the_same_time": self.engine.jobs,
        }
        return Job(spec, log, noted, str(self.folder.checkpoints(spec)))

    def _follow(self, events: Events, bars: ProgressBars) -> None:
        for event in events:
            if isinstance(event, Finished):
                self._unsaved.append(event)
            elif isinstance(event, Failed):
                self._note_failure(event, bars)
            if event is not None:
                bars.show(event)
            self._save(bars)
        while self._unsaved:
            bars.wait()
            self._save(bars)

    def _save(self, bars: ProgressBars) -> None:
        """Write what is finished; what cannot be written is kept for the next time."""
        for finished in list(self._unsaved):
            try:
                self.folder.write(finished.name, finished.result, finished.files)
            except OSError as error:
                why = OSError(error.errno, error.strerror)  # without the name, another each time
                bars.write_once(
                    f"{finished.name} is finished and cannot be saved: {why}. Nothing is lost: "
                    "it is tried again until there is room, or until you press Ctrl-C."
                )
                return
            self._unsaved.remove(finished)
            self.folder.remove_checkpoints(finished.name)
            result = finished.result
            bars.write(
                f"{finished.name}: trained {result.timesteps} steps in {result.seconds:.0f} s"
            )

    def _note_failure(self, failed: Failed, bars: ProgressBars) -> None:
        where = f"see {self.folder.error_path(failed.name)}"
        try:
            self.folder.write_error(failed.name, failed.reason)
        except OSError as error:
            where = f"and why cannot be saved ({error}):\n{failed.reason}"
        bars.write(f"{failed.name}: failed ({headline(failed.reason)}), {where}")

    def _save_elsewhere(self, finished: Finished) -> None:
        """Do the last thing possible for a result: put it where temporary files go."""
        path = Path(tempfile.mkdtemp(prefix="thrust_pomdp-")) / f"{finished.name}.json"
        save_result(finished.result, path)
        say(f"{finished.name}: saved without its model as {path}")

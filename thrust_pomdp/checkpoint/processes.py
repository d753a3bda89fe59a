"""Who writes the checkpoint of a training, and what of it belongs to which process."""

from __future__ import annotations

from typing import Any


class OneProcess:
    """A training of one process: all that is written is its own.

    Trainings of several processes have another one in its place
    (:class:`thrust_pomdp.distributed.checkpoints.ManyProcesses`), which their model tells as
    ``_checkpoint_processes``.
    """

    #: Whether this process reads and writes files, and has the callbacks and the log.
    is_writer = True

    def from_writer(self, thing: Any) -> Any:
        """Return what the process that writes hands in."""
        return thing

    def any_of(self, flag: bool) -> bool:
        """Whether any process says so."""
        return flag

    def whole(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Return the checkpoint of the whole training, of those of all processes."""
        return tree

    def own(self, tree: dict[str, Any], model: Any) -> dict[str, Any]:
        """Return what this process is to go on from, of the checkpoint of the whole training."""
        return tree


def processes_of(model: Any) -> Any:
    """Return who trains a model."""
    return getattr(model, "_checkpoint_processes", None) or OneProcess()

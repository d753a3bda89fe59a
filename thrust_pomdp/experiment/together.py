"""One run of a comparison, trained by several processes of its machine.

The process that does the run is rank 0. It starts the others, which train with it and end; it alone
evaluates and hands over the result.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
from typing import Any

from thrust_pomdp.distributed.data_parallel import DataParallelRecurrentPPO
from thrust_pomdp.distributed.envs import share_of
from thrust_pomdp.distributed.ranks import WATCHED, leave
from thrust_pomdp.experiment.runs import RunSpec

#: Seconds that the others have to end once training has.
_SECONDS_TO_END = 30.0


class OtherRanks:
    """The other processes of a run; this one becomes rank 0 of it until they are closed.

    In a process that is one of the others itself, and for a run of one process, there are none.

    :param spec: the run
    :param checkpoints: folder from which it goes on if it was killed; None for none
    """

    def __init__(self, spec: RunSpec, checkpoints: str | None) -> None:
        self._started: list[subprocess.Popen[bytes]] = []
        self._names: list[str] = []
        if spec.ranks == 1 or "RANK" in os.environ:
            return
        told = {"WORLD_SIZE": str(spec.ranks), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(_free_port())}  # fmt: skip
        command = [sys.executable, "-m", "thrust_pomdp.experiment.other_rank"]
        for rank in range(1, spec.ranks):
            env = {**os.environ, **told, "RANK": str(rank), "LOCAL_RANK": str(rank), WATCHED: "1"}
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=env)
            self._started.append(process)
            assert process.stdin is not None
            with process.stdin, contextlib.suppress(BrokenPipeError):
                pickle.dump((spec, checkpoints), process.stdin)
        self._names = [*told, "RANK", "LOCAL_RANK"]
        os.environ.update(told, RANK="0", LOCAL_RANK="0")

    def close(self) -> None:
        """Wait for the others to end, end those that do not, and be a plain process again."""
        for process in self._started:
            try:
                process.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._started:
            leave()
        for name in self._names:
            os.environ.pop(name, None)
        self._started, self._names = [], []


def envs_of(spec: RunSpec) -> tuple[int, int]:
    """Return the number of environments that this process makes, and the seed of the first."""
    n_envs, seed = spec.recipe.n_envs, spec.training_seed
    if spec.ranks == 1:
        return n_envs, seed
    share = share_of(n_envs)
    return len(share), seed + share.start


def in_blocks(spec: RunSpec, factory: Any) -> tuple[Any, dict[str, Any]]:
    """Return the algorithm that trains a run, and its arguments beside the recipe's."""
    if spec.ranks == 1:
        return factory, {}
    return DataParallelRecurrentPPO, {"gradient_blocks": spec.ranks}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port

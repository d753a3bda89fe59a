"""Tasks for engines, which unpickle them in processes of their own."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from thrust_pomdp.experiment.engines import Finished


@dataclass(frozen=True)
class DiesOnce:
    """Kills the process that does it; the next one survives."""

    name: str
    mark: Path

    def do(self, report) -> Finished:
        report(1)
        with self.mark.open("a") as file:
            file.write("tried\n")
        if self.mark.read_text().count("\n") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return Finished(self.name, os.environ["OMP_NUM_THREADS"], {})


@dataclass(frozen=True)
class Sleeps:
    """Takes long and tells nothing on the way."""

    name: str

    def do(self, report) -> Finished:
        report(1)
        time.sleep(600)
        return Finished(self.name, None, {})


@dataclass(frozen=True)
class Draws:
    """Tells what its process is like, and what a program draws there that seeds nothing."""

    name: str

    def do(self, report) -> Finished:
        found = {
            "loaded": "torch" in sys.modules,
            "parent": os.getppid(),
            "threads": os.environ["OMP_NUM_THREADS"],
            "python": random.random(),
            "numpy": np.random.random(),
        }
        return Finished(self.name, found, {})

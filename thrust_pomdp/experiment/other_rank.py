"""What a process does that trains a run of a comparison along with rank 0, which started it."""

from __future__ import annotations

import pickle
import sys

from thrust_pomdp.experiment.training import Training


def main() -> None:
    """Train as one of the others."""
    # Written by rank 0, which has started this process.
    spec, checkpoints = pickle.load(sys.stdin.buffer)
    Training(spec, checkpoints=checkpoints).train_along()


if __name__ == "__main__":
    main()

"""Measure what a window costs a gated transformer memory, by its length and by the context.

    python scripts/attention_cost.py

2 environments, 64 units, 4 heads, one layer, on one thread, in the processor's time: the median
time of a window with its gradient, and what is kept for the gradient meanwhile; beside them torch's
LSTM as this package runs it. The last table is of one step of 8 environments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch as th
from torch import nn

from thrust_pomdp.experiment.commands.options import make_parser, positive
from thrust_pomdp.recurrent import GTrXL
from thrust_pomdp.recurrent.memory import initial_state, memory_sequences, memory_step
from thrust_pomdp.recurrent.sequences import ResetLayout

N_SEQ, N_ENVS, HIDDEN, FEATURES = 2, 8, 64, 4
LENGTHS = (128, 512, 1024, 4096)
MEMORIES: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(FEATURES, HIDDEN),
    **{f"GTrXL, context {n}": lambda n=n: GTrXL(FEATURES, HIDDEN, context=n)
       for n in (16, 64, 256)},
}  # fmt: skip


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call after a first one."""
    run()
    took = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        took.append(time.process_time() - start)
    return 1e3 * median(took)


class Window:
    """A window of random features in which an episode starts, and the gradient of its outputs."""

    def __init__(self, memory: nn.Module, n_steps: int) -> None:
        starts = th.zeros(N_SEQ, n_steps, dtype=th.bool)
        starts[0, n_steps // 3] = True
        self.memory, self.features = memory, th.randn(N_SEQ, n_steps, FEATURES)
        self.layout = ResetLayout.from_episode_starts(starts)

    def __call__(self) -> None:
        output, _ = memory_sequences(self.memory, self.features, self.layout)
        output.square().sum().backward()

    def kept(self) -> int:
        """Return the bytes that torch keeps for the gradient."""
        tensors: dict[int, int] = {}

        def keep(tensor: th.Tensor) -> th.Tensor:
            storage = tensor.untyped_storage()
            tensors[storage.data_ptr()] = storage.nbytes()
            return tensor

        with th.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output, _ = memory_sequences(self.memory, self.features, self.layout)
        weights = {p.untyped_storage().data_ptr() for p in self.memory.parameters()}
        del output
        return sum(size for where, size in tensors.items() if where not in weights)


def step_of(memory: nn.Module) -> Callable[[], object]:
    """Return one step of some environments."""
    features, states = th.randn(N_ENVS, FEATURES), initial_state(memory, N_ENVS)
    starts = th.zeros(N_ENVS, dtype=th.bool)

    def run() -> None:
        with th.no_grad():
            memory_step(memory, features, states, starts)

    return run


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = make_parser(__doc__)
    parser.add_argument("--repeats", type=positive, default=15)
    repeats = parser.parse_args(arguments).repeats
    th.set_num_threads(1)
    th.manual_seed(0)
    made = {name: make() for name, make in MEMORIES.items()}
    head = "".join(f"{f'{length} steps':>12}" for length in LENGTHS)
    print(f"{'ms with gradient':20}{head}")
    for name, memory in made.items():
        row = [milliseconds(Window(memory, length), repeats) for length in LENGTHS]
        print(f"{name:20}" + "".join(f"{cell:12.1f}" for cell in row), flush=True)
    print(f"\n{'MB kept':20}{head}")
    for name, memory in made.items():
        row = [Window(memory, length).kept() / 1e6 for length in LENGTHS]
        print(f"{name:20}" + "".join(f"{cell:12.1f}" for cell in row))
    print(f"\n{f'a step of {N_ENVS}':20}{'ms':>12}")
    for name, memory in made.items():
        print(f"{name:20}{milliseconds(step_of(memory), 20 * repeats):12.3f}")


if __name__ == "__main__":
    main()

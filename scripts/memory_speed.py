"""Measure how long memories take, alone and in training, over short windows and long ones.

    python scripts/memory_speed.py --out docs/results/speed
    NUMBA_DISABLE_JIT=1 python scripts/memory_speed.py

The first table: forward and backward of one layer over 4,096 steps of 4 features, in windows of
128, of 1,024 and of 4,096, an episode starting every 100 steps. LSTM and GRU are torch's layers as
this package runs them, by its compiled loops where there is Numba; "by torch" is what it does
without. The second: collecting a window of FlickeringCartPole-v0 and training on it, 4,096 steps in
all, 4 epochs, 1,024 steps in a minibatch, one memory of 64 units for actor and critic.

All on one thread, in turn, in the processor's time, so that a machine that is shared slows all
alike: medians, and medians of the ratios of the LSTM's time to theirs in the same round (above 1 is
faster than the LSTM).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch as th
from stable_baselines3.common.logger import configure
from torch import nn

from thrust_pomdp import RecurrentPPO, gate, make_vec_env
from thrust_pomdp.experiment.atomic_write import write_csv
from thrust_pomdp.experiment.commands.options import make_parser, positive
from thrust_pomdp.recurrent import LRU, MinGRU
from thrust_pomdp.recurrent.compiled import load_kernels
from thrust_pomdp.recurrent.memory import memory_sequences
from thrust_pomdp.recurrent.sequences import ResetLayout
from thrust_pomdp.recurrent.torch_layers import torch_layer

N_STEPS, N_FEATURES, EPISODE, HIDDEN = 4096, 4, 100, 64
WINDOWS = (128, 1024, 4096)
MEMORIES: dict[str, type[nn.Module]] = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "minGRU": MinGRU,
    "LRU": LRU,
}
PLAIN = "LSTM"
_BY_TORCH = ", by torch"


@contextmanager
def by_torch() -> Iterator[None]:
    """Use no compiled loop of memories that run in parallel over time."""
    with mock.patch.object(gate, "against_kernels", return_value="by torch"):
        yield


def layer_passes(hidden: int, window: int) -> dict[str, Callable[[], None]]:
    """Return what runs each layer forward and backward over windows of a length."""
    rows = N_STEPS // window
    features = th.randn(rows, window, N_FEATURES)
    starts = th.zeros(rows, window, dtype=th.bool)
    starts[:, ::EPISODE] = True
    layout = ResetLayout.from_episode_starts(starts)
    # With the compiled loops nothing is laid out for torch's operations.
    extended = ResetLayout(starts)
    passes: dict[str, Callable[[], None]] = {}
    for name, make in MEMORIES.items():
        memory: Any = make(N_FEATURES, hidden)

        def run(memory: Any = memory) -> None:
            memory_sequences(memory, features, layout)[0].sum().backward()

        def run_by_torch(memory: Any = memory) -> None:
            if isinstance(memory, nn.RNNBase):
                output, _ = torch_layer(memory).sequences(memory, features, extended, None)
                output.sum().backward()
                return
            with by_torch():
                run(memory)

        passes[name] = run
        if load_kernels() is not None:
            passes[name + _BY_TORCH] = run_by_torch
    return passes


def trainings(hidden: int, window: int) -> dict[str, tuple[Callable[[], None], ...]]:
    """Return what collects a window and what trains on it, for each memory."""
    return {name: _training(make, hidden, window) for name, make in MEMORIES.items()}


def _training(make: Any, hidden: int, window: int) -> tuple[Callable[[], None], ...]:
    n_envs = N_STEPS // window
    policy_kwargs = {
        "rnn_class": make, "lstm_hidden_size": hidden, "net_arch": [],
        "shared_lstm_critic_gradient": True,
    }  # fmt: skip
    model = RecurrentPPO(
        "MlpLstmPolicy", make_vec_env("FlickeringCartPole-v0", n_envs, seed=0), n_steps=window,
        envs_per_minibatch=max(1024 // window, 1), n_epochs=4, learning_rate=0.0, seed=0,
        device="cpu", policy_kwargs=policy_kwargs,
    )  # fmt: skip
    model.set_logger(configure(None, []))
    _, callback = model._setup_learn(10**9)
    callback.on_training_start({}, {})

    def collect() -> None:
        assert model.env is not None
        model.collect_rollouts(model.env, callback, model.rollout_buffer, window)

    return collect, model.train


def timed(parts: dict[str, tuple[Callable[[], None], ...]], repeats: int) -> dict[str, Any]:
    """Return the times of each part in each round, ``[part][round]``; the first compiles."""
    found: dict[str, Any] = {name: [[] for _ in calls] for name, calls in parts.items()}
    for number in range(repeats + 2):
        for name, calls in parts.items():
            for times, call in zip(found[name], calls, strict=True):
                start = time.process_time()
                call()
                if number > 1:
                    times.append(time.process_time() - start)
    return found


def cells(mine: list[float], plain: list[float]) -> tuple[str, str]:
    """Return milliseconds, and the ratio of the LSTM's time to these."""
    return (
        f"{1e3 * median(mine):.2f}",
        f"{median(p / m for m, p in zip(mine, plain, strict=True)):.2f}",
    )


def rows_of(kind: str, window: int, found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row of the table for each memory and part."""
    rows = []
    for name, parts in found.items():
        for what, mine, plain in zip(_PARTS[kind], parts, found[PLAIN], strict=True):
            rows.append((what, str(window), name, *cells(mine, plain)))
    return rows


_PARTS = {"layer": ("layer",), "training": ("collecting", "training")}


def main(arguments: list[str] | None = None) -> None:
    """Measure all memories in turn."""
    parser = make_parser(__doc__)
    parser.add_argument("--repeats", type=positive, default=15)
    parser.add_argument("--hidden", type=positive, default=HIDDEN, help="units of each memory")
    parser.add_argument("--windows", type=positive, nargs="+", default=list(WINDOWS))
    parser.add_argument("--out", type=Path, help="folder for memory_speed.csv")
    args = parser.parse_args(arguments)
    th.set_num_threads(1)
    head = ("what", "window", "memory", "ms", "times_lstm")
    rows: list[tuple[str, ...]] = []
    print(" ".join(cell.rjust(18) for cell in head))
    for window in args.windows:
        passes = {name: (run,) for name, run in layer_passes(args.hidden, window).items()}
        for kind, parts in (("layer", passes), ("training", trainings(args.hidden, window))):
            rows += rows_of(kind, window, timed(parts, args.repeats))
            for row in rows[-len(parts) * len(_PARTS[kind]) :]:
                print(" ".join(cell.rjust(18) for cell in row), flush=True)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        write_csv(args.out / "memory_speed.csv", head, rows)


if __name__ == "__main__":
    main()

"""Split the time of an update of RecurrentPPO into its parts.

    python scripts/where_time_goes.py

Each part of training is timed by itself on one minibatch, and each part of collecting inside real
rollouts, on one thread; medians. What is not listed is the difference to the whole. Where a
minibatch is one compiled call, that call is listed, and below it what torch's operations around the
compiled layers would take. The products of the LSTM are timed beside dense products of the same
sizes by torch's and NumPy's libraries. Collecting is shown twice: a window as it is where nobody
looks at single steps, and one whose steps a callback looks at.
"""

from __future__ import annotations

import functools
import statistics
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch as th
from benchmark_contenders import SETTINGS, Setting, make_model, one_window
from stable_baselines3.common.callbacks import BaseCallback

from thrust_pomdp.experiment.commands.options import make_parser
from thrust_pomdp.ppo.compiled_minibatch import CompiledMinibatch, Numbers
from thrust_pomdp.ppo.losses import ppo_losses
from thrust_pomdp.ppo.prepared_step import WatchedStep
from thrust_pomdp.ppo.unseen_gate import loops
from thrust_pomdp.recurrent.compiled import load_kernels
from thrust_pomdp.recurrent.memory import memory_sequences

REPEATS = 60


def medians_ms(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Time all calls in turn, so that a machine that drifts slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(taken) for name, taken in times.items()}


def training_parts(model: Any) -> Iterator[tuple[str, float]]:
    """Milliseconds of one minibatch."""
    policy, buffer = model.policy, model.rollout_buffer
    n_sequences = model.batch_size // model.n_steps
    n_minibatches = -(-model.n_envs // n_sequences)
    batch = next(buffer.to_minibatches(n_sequences))
    coefficients = {
        "clip_range": 0.2, "clip_range_vf": None, "ent_coef": 0.0, "vf_coef": 0.5,
        "normalize_advantage": True,
    }  # fmt: skip
    parameters = list(policy.parameters())

    def layers(backward: bool) -> None:
        policy.optimizer.zero_grad()
        for lstm in filter(None, (policy.lstm_actor, policy.lstm_critic)):
            outputs, _ = memory_sequences(lstm, batch.observations, batch.layout)
            if backward:
                outputs.backward(gradient)

    gradient = th.randn(n_sequences, model.n_steps, policy.lstm_actor.hidden_size)

    def loss() -> None:
        policy.optimizer.zero_grad()
        ppo_losses(policy, batch, **coefficients).loss.backward()

    calls: dict[str, Callable[[], Any]] = {}
    if model.against_compiled_minibatch() is None:
        numbers = Numbers(**coefficients, max_grad_norm=0.5, target_kl=None)
        compiled = CompiledMinibatch(policy)
        calls["compiled"] = lambda: compiled.train(batch, numbers)
    ms = medians_ms(
        {
            **calls,
            "forward": lambda: layers(False),
            "both": lambda: layers(True),
            "everything": loss,
            "clip": lambda: th.nn.utils.clip_grad_norm_(parameters, 0.5),
            "adam": policy.optimizer.step,
            "minibatches": lambda: list(buffer.to_minibatches(n_sequences)),
        }
    )
    if "compiled" in ms:
        yield "all of it in one compiled call; torch's parts would take:", ms["compiled"]
    yield "LSTM, forward", ms["forward"]
    yield "LSTM, backward", ms["both"] - ms["forward"]
    yield "heads and loss, forward and backward", ms["everything"] - ms["both"]
    yield "clipping gradients", ms["clip"]
    yield "Adam", ms["adam"]
    yield "taking the minibatch from the buffer", ms["minibatches"] / n_minibatches


def products(setting: Setting, n_features: int) -> Iterator[tuple[str, dict[str, float]]]:
    """GFLOP/s of the LSTM's products, by whom: the best of many, since others share the core."""
    kernels = load_kernels()
    if kernels is None:
        return
    hidden, n_seq = setting.hidden, setting.sequences
    n_inputs, n_gates = n_features + hidden, 4 * hidden
    sizes = {
        "a step forward": (n_seq, n_inputs, n_gates),
        "a step back": (n_seq, n_gates, hidden),
        "the weights' gradient": (n_inputs, n_seq * setting.n_steps, n_gates),
    }
    for name, (rows, terms, outputs) in sizes.items():
        rng = np.random.default_rng(0)
        left, right = rng.random((rows, terms), "f"), rng.random((terms, outputs), "f")
        out = np.zeros((rows, outputs), dtype=np.float32)
        tensors = tuple(map(th.from_numpy, (left, right, out)))
        if name == "the weights' gradient":
            turned = np.ascontiguousarray(left.T)
            ours = functools.partial(kernels.add_outer, turned, right, out)
        else:
            panels = kernels.panels(terms, 1, outputs)
            kernels.pack(np.ascontiguousarray(right.T), 1, 0, panels)
            ours = functools.partial(kernels.add_product, left, panels, 0, out)
        calls = {
            "compiled": ours,
            "torch": functools.partial(th.mm, *tensors[:2], out=tensors[2]),
            "NumPy": functools.partial(np.matmul, left, right, out=out),
        }
        seconds = {who: best(call) for who, call in calls.items()}
        yield name, {who: 2e-9 * rows * terms * outputs / s for who, s in seconds.items()}


def best(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of many calls."""
    call()
    return min(timeit.repeat(call, number=10, repeat=REPEATS)) / 10


def collecting_parts(model: Any) -> dict[str, float]:
    """Microseconds of one step."""
    spent: dict[str, list[float]] = {}

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            spent.setdefault(name, []).append(time.perf_counter() - start)
            return result

        return call

    act = WatchedStep.__call__
    WatchedStep.__call__ = timed("policy step", act)  # type: ignore[method-assign]
    model.env.step = timed("environments", model.env.step)
    model.rollout_buffer.add = timed("storing the step", model.rollout_buffer.add)
    for _ in range(10):
        one_window(model, threads=1)
    WatchedStep.__call__ = act  # type: ignore[method-assign]
    del model.env.step, model.rollout_buffer.add
    return {name: 1e6 * statistics.median(times) for name, times in spent.items()}


class Looks(BaseCallback):
    """Is called at each step."""

    def _on_step(self) -> bool:
        return True


def unseen_ms(model: Any) -> float:
    """Milliseconds of a window's compiled loop, what it is made of and goes back to left out."""
    if load_kernels() is None:
        return 0.0
    kernels, spent = loops(), [0.0]
    take_steps = kernels.take_steps

    def timed(*args: Any) -> Any:
        start = time.perf_counter()
        taken = take_steps(*args)
        spent[-1] += 1e3 * (time.perf_counter() - start)
        return taken

    kernels.take_steps = timed
    for _ in range(20):
        spent.append(0.0)
        one_window(model, threads=1)
    kernels.take_steps = take_steps
    return statistics.median(spent[1:])


def report(setting: Setting, length: int) -> None:
    th.set_num_threads(1)
    model = make_model("ours", setting, length)
    windows = [one_window(model, threads=1) for _ in range(10)]
    train = 1e3 * statistics.median(window.train for window in windows)
    collect = 1e6 * statistics.median(window.collect for window in windows)
    n_minibatches = setting.n_epochs * -(-setting.n_envs // setting.sequences)
    print(f"\n{setting.title}; episodes of {length} steps")
    print(f"  a minibatch, of {n_minibatches} an update: {train / n_minibatches:.2f} ms")
    for name, ms in training_parts(model):
        print(f"    {ms:6.2f} ms  {name}")
    for name, rates in products(setting, model.policy.lstm_actor.input_size):
        told = ", ".join(f"{who} {rate:.0f}" for who, rate in rates.items())
        print(f"    GFLOP/s of {name}: {told}")
    print(f"  a window of {setting.n_steps} steps that nobody looks at: {collect / 1e3:.2f} ms")
    print(f"    {unseen_ms(model):6.2f} ms  steps taken at once")
    model.benchmark_callback = Looks()
    model.benchmark_callback.init_callback(model)
    windows = [one_window(model, threads=1) for _ in range(10)]
    collect = 1e6 * statistics.median(window.collect for window in windows)
    print(f"  a step that somebody looks at: {collect / setting.n_steps:.0f} us")
    for name, us in collecting_parts(model).items():
        print(f"    {us:6.0f} us  {name}")


def main() -> None:
    parser = make_parser(__doc__)
    names = [setting.name for setting in SETTINGS if not setting.foreign]
    parser.add_argument("--settings", nargs="+", choices=names, default=["shared", "64-envs"])
    parser.add_argument("--length", type=int, default=100, help="steps of an episode")
    args = parser.parse_args()
    print(f"compiled loops: {'yes' if load_kernels() else 'no'}")
    for setting in SETTINGS:
        if setting.name in args.settings:
            report(setting, args.length)


if __name__ == "__main__":
    main()

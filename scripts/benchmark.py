"""Measure training speed against sb3-contrib's RecurrentPPO and SB3's memoryless PPO.

    python scripts/benchmark.py --out results/benchmark
    python scripts/benchmark.py --settings shared --lengths 100 --pairs 3 --out results/quick
    python scripts/benchmark.py --redraw --out docs/results/speed

All contenders run in one process, in turn, window by window, so that a machine that drifts slows
all alike; what counts are ratios of neighbouring windows. Episodes last exactly 20, 100 or 500
steps and the learning rate is 0, so that speed does not depend on who learns faster. Each contender
is measured with one and with two torch threads and the better of the two counts.
"""

from __future__ import annotations

import csv
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from benchmark_contenders import SETTINGS, Setting, Window, make_model, one_window
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

import thrust_pomdp
from thrust_pomdp.experiment import provenance
from thrust_pomdp.experiment.atomic_write import write_csv
from thrust_pomdp.experiment.commands.options import make_parser
from thrust_pomdp.recurrent.memory import memory_sequences
from thrust_pomdp.recurrent.sequences import ResetLayout

LENGTHS = (20, 100, 500)
THREADS = (1, 2)


# ---------------------------------------------------------------------------------- measuring


class Row(NamedTuple):
    """One contender in one setting at one episode length, with its better number of threads.

    Ratios are theirs divided by ours, medians over pairs of neighbouring windows with their least
    and greatest; ``ratio_collect`` and ``ratio_train`` are of the two parts.
    """

    setting: str
    length: int
    who: str
    threads: int
    steps_per_second: float
    collect_ms: float
    train_ms: float
    ratio: float
    ratio_min: float
    ratio_max: float
    ratio_collect: float
    ratio_train: float


def measure(setting: Setting, length: int, pairs: int) -> list[Row]:
    """Run all contenders of a setting in turn."""
    names = ["ours", "sb3-contrib", *(["memoryless"] if setting.memoryless else [])]
    models = {who: make_model(who, setting, length) for who in names}
    for model in models.values():
        one_window(model, 1)  # the first one builds primitives and caches
    windows: dict[tuple[str, int], list[Window]] = {}
    for _ in range(pairs):
        for who, model in models.items():
            for threads in THREADS:
                windows.setdefault((who, threads), []).append(one_window(model, threads))
    for model in models.values():
        assert model.env is not None
        model.env.close()

    def best(who: str) -> int:
        return min(THREADS, key=lambda n: statistics.median(w.total for w in windows[who, n]))

    ours = windows["ours", best("ours")]
    steps = setting.n_envs * setting.n_steps
    rows = []
    for who in names:
        theirs = windows[who, best(who)]
        ratios = [b.total / a.total for a, b in zip(ours, theirs, strict=True)]
        parts = [
            statistics.median(getattr(b, part) / getattr(a, part)
                              for a, b in zip(ours, theirs, strict=True))
            for part in ("collect", "train")
        ]  # fmt: skip
        rows.append(
            Row(
                setting.name,
                length,
                who,
                best(who),
                steps / statistics.median(w.total for w in theirs),
                1e3 * statistics.median(w.collect for w in theirs),
                1e3 * statistics.median(w.train for w in theirs),
                statistics.median(ratios),
                min(ratios),
                max(ratios),
                *parts,
            )
        )
    return rows


# ------------------------------------------------------------------------------------- the parts


def seconds(call: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def paired(ours: Callable[[], Any], other: Callable[[], Any], repeats: int, pairs: int = 41) -> str:
    """Median and quartiles of the time of ``other`` over that of ``ours``, block by block."""
    seconds(ours, repeats), seconds(other, repeats)
    ratios = sorted(seconds(other, repeats) / seconds(ours, repeats) for _ in range(pairs))
    low, middle, high = (ratios[round(q * (pairs - 1))] for q in (0.25, 0.5, 0.75))
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def layer_parts() -> Iterator[str]:
    """The sequence layer's time over that of a dense call without resets, forward and backward."""
    for rnn_class in (th.nn.LSTM, th.nn.GRU, th.nn.RNN):
        yield from layer_parts_of(rnn_class)


def layer_parts_of(rnn_class: type[th.nn.RNNBase]) -> Iterator[str]:
    rnn: Any = rnn_class(4, 64)
    dense_inputs, dense_gradient = th.randn(128, 4, 4), th.randn(128, 4, 64)
    inputs, gradient = dense_inputs.transpose(0, 1), dense_gradient.transpose(0, 1)

    def dense() -> None:
        rnn.zero_grad()
        rnn(dense_inputs)[0].backward(dense_gradient)

    for steps in (20, 60, 500):
        starts = np.arange(4 * 128).reshape(4, 128) % steps == steps - 1
        layout = ResetLayout.from_episode_starts(starts)

        def layer(layout: ResetLayout = layout) -> None:
            rnn.zero_grad()
            memory_sequences(rnn, inputs, layout)[0].backward(gradient)

        name = f"layer / dense nn.{rnn_class.__name__}, one reset per {steps} steps"
        yield f"{name}: {paired(dense, layer, 10)}"


def env_parts() -> Iterator[str]:
    """SB3's DummyVecEnv of Monitor-wrapped environments over the native one, random actions."""
    for n_envs in (16, 64, 256):
        env_id = "thrust_pomdp:FlickeringCartPole-v0"
        native = thrust_pomdp.make_vec_env(env_id, n_envs, seed=0)
        dummy = make_vec_env(env_id, n_envs, seed=0)
        actions = np.random.default_rng(0).integers(0, 2, (1000, n_envs))

        def step(env: VecEnv, actions: Any = actions, count: list[int] = [0]) -> None:  # noqa: B006
            count[0] += 1
            env.step(actions[count[0] % 1000])

        native.reset(), dummy.reset()
        ratio = paired(lambda e=native: step(e), lambda e=dummy: step(e), 20)
        yield f"DummyVecEnv / native, {n_envs} environments: {ratio}"


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def summary(rows: Sequence[Row], settings: Sequence[Setting]) -> str:
    """The table of docs/performance.md: ratios, geometric mean over the episode lengths."""
    lines = [
        "| setting | against | goal | ratio | by episode length | collecting | training |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting in settings:
        for who, goal in (("sb3-contrib", setting.goal), ("memoryless", ">= 1")):
            chosen = [row for row in rows if (row.setting, row.who) == (setting.name, who)]
            if not chosen:
                continue
            by_length = ", ".join(
                f"{row.length}: {row.ratio:.1f} ({row.ratio_min:.1f}-{row.ratio_max:.1f})"
                for row in chosen
            )
            against = "SB3's memoryless PPO" if who == "memoryless" else who
            lines.append(
                f"| {setting.title} | {against} | {goal} "
                f"| **{geometric_mean([row.ratio for row in chosen]):.1f}** | {by_length} "
                f"| {geometric_mean([row.ratio_collect for row in chosen]):.1f} "
                f"| {geometric_mean([row.ratio_train for row in chosen]):.1f} |"
            )
    return "\n".join(lines)


def machine() -> str:
    names = ("torch", "numpy", "gymnasium", "stable_baselines3", "sb3_contrib")
    versions = ", ".join(f"{name} {sys.modules[name].__version__}" for name in names)
    return (
        f"{platform.system()} {platform.machine()}, {provenance.processor()}, "
        f"Python {platform.python_version()}, {versions}"
    )


def plot(rows: Sequence[Row], settings: Sequence[Setting], path: Path) -> None:
    """Bars of steps per second, each contender in each setting, mean over the episode lengths."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    # Hatched for those who see no colours and for print without.
    looks: dict[str, dict[str, Any]] = {
        "ours": {"color": "#0072B2", "label": "thrust_pomdp RecurrentPPO"},
        "sb3-contrib": {"color": "#D55E00", "label": "sb3-contrib RecurrentPPO",
                        "hatch": "///", "edgecolor": "white"},
        "memoryless": {"color": "0.65", "label": "SB3 PPO (no memory)",
                       "hatch": "...", "edgecolor": "white"},
    }  # fmt: skip
    for number, setting in enumerate(settings):
        names = list(dict.fromkeys(row.who for row in rows if row.setting == setting.name))
        for position, who in enumerate(names):
            speed = geometric_mean(
                [r.steps_per_second for r in rows if (r.setting, r.who) == (setting.name, who)]
            )
            x = number + 0.28 * (position - (len(names) - 1) / 2)
            bar = axes.bar(x, speed, width=0.26, linewidth=0, **{**looks[who], "label": None})
            axes.bar_label(bar, [f"{speed / 1000:.1f}k"], fontsize=7, padding=2)
    names = [setting.label for setting in settings]
    axes.set_xticks(range(len(settings)), names, fontsize=8.5)
    axes.set_ylabel("environment steps per second")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        handles=[axes.bar(0, 0, linewidth=0, **look) for look in looks.values()],
        frameon=False,
    )
    figure.savefig(path)


def read_rows(path: Path) -> list[Row]:
    """Read what an earlier run measured."""
    with path.open(newline="") as file:
        next(file)  # the machine
        return [
            Row(line["setting"], int(line["length"]), line["who"], int(line["threads"]),
                *(float(line[name]) for name in Row._fields[4:]))
            for line in csv.DictReader(file)
        ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    by_name = {setting.name: setting for setting in SETTINGS}
    parser.add_argument("--settings", nargs="+", choices=list(by_name), default=list(by_name))
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--pairs", type=int, default=5, help="windows of each contender")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--redraw", action="store_true",
                        help="measure nothing: draw what is in the folder again")  # fmt: skip
    args = parser.parse_args(arguments)
    settings = [by_name[name] for name in args.settings]
    args.out.mkdir(parents=True, exist_ok=True)
    if args.redraw:
        plot(read_rows(args.out / "speed.csv"), settings, args.out / "speed.png")
        return 0
    print(machine(), flush=True)
    th.set_num_threads(1)
    parts = [*layer_parts(), *env_parts()]
    print(*parts, sep="\n", flush=True)
    rows: list[Row] = []
    for setting in settings:
        for length in args.lengths:
            rows += measure(setting, length, args.pairs)
            print(*(f"{r.setting} {r.length} {r.who}: {r.steps_per_second:,.0f} steps/s "
                    f"({r.threads} thread(s); collect {r.collect_ms:.0f} ms, train "
                    f"{r.train_ms:.0f} ms)" for r in rows[-3:] if r.length == length
                    and r.setting == setting.name), sep="\n", flush=True)  # fmt: skip
    (args.out / "parts.txt").write_text("\n".join([machine(), *parts, ""]))
    lines = [[f"{v:.4g}" if isinstance(v, float) else v for v in row] for row in rows]
    write_csv(args.out / "speed.csv", ["# " + machine()], [Row._fields, *lines])
    plot(rows, settings, args.out / "speed.png")
    print(f"\n{summary(rows, settings)}\n\nWritten: {args.out}/speed.csv, {args.out}/speed.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())

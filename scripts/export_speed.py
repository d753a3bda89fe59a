"""Time one step of an exported actor beside StatefulActor.act, on one thread.

    python scripts/export_speed.py

The actor is the LSTM of FlickeringCartPole-v0 with 64 units, normalised, untrained: weights cost
what they cost. Runtimes take turns, and the best of several rounds counts. C is compiled with -O2.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch as th

from thrust_pomdp import RecurrentPPO, StatefulActor, make_vec_env
from thrust_pomdp.deploy.numpy_actor import NumpyActor
from thrust_pomdp.deploy.onnx_actor import OnnxActor
from thrust_pomdp.deploy.players import COMPILERS, NODE, compiled

HIDDEN = 64

C_PLAYER = """#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "actor.h"

int main(int argc, char **argv)
{
    static actor_state state;
    const int n = argc > 1 ? atoi(argv[1]) : 1;
    float obs[4] = {0.1f, 0.2f, 0.03f, 0.4f};
    const uint8_t blanked[4] = {0, 0, 0, 0};
    struct timespec begin, end;
    int32_t action[1];
    long sum = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < n; i++) {
        obs[0] = 0.001f * (float)(i % 100);
        actor_act(&state, obs, blanked, NULL, action);
        sum += action[0];
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.9f %ld", ((double)(end.tv_sec - begin.tv_sec)
        + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec)) / n, sum);
    return 0;
}
"""

JS_PLAYER = """import { Actor } from "./actor.mjs";
const actor = new Actor(), n = Number(process.argv[2]);
const begin = process.hrtime.bigint();
for (let i = 0; i < n; i++)
  actor.act([0.001 * (i % 100), 0.2, 0.03, 0.4], { blanked: false });
console.log(Number(process.hrtime.bigint() - begin) / 1e9 / n, 0);
"""


def make_actor() -> StatefulActor:
    env = make_vec_env("FlickeringCartPole-v0", 1, seed=0, normalize=True)
    kwargs = {"lstm_hidden_size": HIDDEN}
    model = RecurrentPPO("MlpLstmPolicy", env, n_steps=64, seed=0, policy_kwargs=kwargs)
    return StatefulActor.like(model, env, deterministic=True)


def of_python(act: Callable[..., object], n: int) -> Callable[[], float]:
    readings = [np.float32([0.001 * (i % 100), 0.2, 0.03, 0.4]) for i in range(n)]

    def once() -> float:
        begin = time.perf_counter()
        for reading in readings:
            act(reading, blanked=False)
        return (time.perf_counter() - begin) / n

    return once


def of_program(command: list[str], folder: Path) -> Callable[[], float]:
    def once() -> float:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        return float(done.stdout.split()[0])

    return once


def of_session(path: Path, n: int) -> Callable[[], float]:
    """ONNX Runtime as a program of its own would call it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = OnnxActor(path, options)._session
    names = ["action", "h_out", "c_out"]

    def once() -> float:
        h = c = np.zeros((1, 1, HIDDEN), np.float32)
        fixed = {"blanked": np.zeros((1, 4), bool), "start": np.zeros(1, bool)}
        begin = time.perf_counter()
        for i in range(n):
            obs = np.float32([[0.001 * (i % 100), 0.2, 0.03, 0.4]])
            _, h, c = session.run(names, {"obs": obs, "h_in": h, "c_in": c, **fixed})
        return (time.perf_counter() - begin) / n

    return once


def measure(n: int, rounds: int) -> dict[str, float]:
    """Return seconds of a step, by runtime."""
    th.set_num_threads(1)
    actor = make_actor()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for ending in (".onnx", ".npz", ".h", ".js"):
            actor.export(folder / f"actor{ending}")
        ways = {
            "StatefulActor.act": of_python(actor.act, n),
            "ONNX Runtime": of_session(folder / "actor.onnx", n),
            "NumpyActor": of_python(NumpyActor(folder / "actor.npz").act, n),
        }
        for compiler in COMPILERS:
            (folder / compiler).mkdir()
            (folder / compiler / "actor.h").write_bytes((folder / "actor.h").read_bytes())
            program = compiled(folder / compiler, C_PLAYER, compiler)
            ways[f"C, {compiler} -O2"] = of_program([str(program), str(20 * n)], folder)
        if NODE:
            (folder / "actor.mjs").write_bytes((folder / "actor.js").read_bytes())
            (folder / "player.mjs").write_text(JS_PLAYER)
            ways["Node"] = of_program([NODE, "player.mjs", str(5 * n)], folder)
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(rounds):
            for way, once in ways.items():
                best[way] = min(best[way], once())
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000, help="of a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="%(default)s")
    args = parser.parse_args()
    found = measure(args.steps, args.rounds)
    for way, seconds in found.items():
        part = found["StatefulActor.act"] / seconds
        print(f"{way:<20} {1e6 * seconds:8.1f} us  1/{part:.0f}")


if __name__ == "__main__":
    main()

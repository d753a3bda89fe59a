"""Measure what training on subsequences costs beside training on whole windows.

    python scripts/subsequences.py

One update of 16 environments x 128 steps, LSTM 64 shared by actor and critic, 4 epochs, 512 steps
in a minibatch, on one thread. All ways are timed in turn, in the processor's time, so that a
machine that drifts or is shared slows all alike; medians, and medians of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch as th
from options import positive
from stable_baselines3.common.logger import configure

from thrust_pomdp import RecurrentPPO, make_vec_env

N_STEPS = 128
WHOLE = "whole windows"
CUTS: dict[str, dict[str, Any]] = {WHOLE: {}}
for length in (16, 32, 64, 128):
    cut = {"sequence_length": length}
    CUTS[f"sequence_length={length}"] = cut
    if length < N_STEPS:
        CUTS[f"sequence_length={length}, burn_in={length // 2}"] = {**cut, "burn_in": length // 2}
        CUTS[f"sequence_length={length}, refresh_states=True"] = {**cut, "refresh_states": True}


def make_model(cut: dict[str, Any]) -> RecurrentPPO:
    """Make a model with a full window."""
    model = RecurrentPPO(
        "MlpLstmPolicy",
        make_vec_env("FlickeringCartPole-v0", 16, seed=0),
        n_steps=N_STEPS,
        batch_size=4 * N_STEPS,
        n_epochs=4,
        learning_rate=0.0,
        policy_kwargs={
            "lstm_hidden_size": 64, "net_arch": [], "shared_lstm_critic_gradient": True,
        },
        seed=0,
        device="cpu",
        **cut,
    )  # fmt: skip
    model.set_logger(configure(None, []))
    _, callback = model._setup_learn(10**9)
    callback.on_training_start({}, {})
    model.collect_rollouts(model.env, callback, model.rollout_buffer, N_STEPS)
    return model


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=positive, default=100)
    repeats = parser.parse_args(arguments).repeats
    th.set_num_threads(1)
    models = {name: make_model(cut) for name, cut in CUTS.items()}
    times: dict[str, list[float]] = {name: [] for name in CUTS}
    for model in models.values():
        model.train()
    for _ in range(repeats):
        for name, model in models.items():
            start = time.process_time()
            model.train()
            times[name].append(time.process_time() - start)
    print(f"{'training on':<45}    ms  of whole windows")
    for name, taken in times.items():
        ratios = [mine / whole for mine, whole in zip(taken, times[WHOLE], strict=True)]
        print(f"{name:<45}{1e3 * statistics.median(taken):6.1f}{statistics.median(ratios):8.2f}")


if __name__ == "__main__":
    main()

"""Seconds of training until an evaluation reaches a mean, against sb3-contrib's RecurrentPPO.

    python scripts/time_to_threshold.py --seeds 5 --out results/threshold

FlickeringCartPole-v0, each contender on the vector environment it comes with, all with the same
normaliser and reward scale. sb3-contrib runs with its better network (separate LSTMs) twice: with
hyperparameters it is known to do well with here, and with ours. Every 8,192 steps 20 fresh episodes
are played with the most likely actions and memory carried through each episode; their time does not
count. Our recipe was found on other seeds than those measured.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import sb3_contrib
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env as sb3_make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule

from thrust_pomdp import RecurrentPPO, VecNormalizeVisible, make_vec_env
from thrust_pomdp.experiment.atomic_write import write_csv
from thrust_pomdp.experiment.commands.options import make_parser
from thrust_pomdp.experiment.training import RunSpec, VecScaleReward

ENV_ID = "thrust_pomdp:FlickeringCartPole-v0"
THRESHOLDS = (300, 450)
EVERY, EPISODES = 8_192, 20


class UntilThresholds(BaseCallback):
    """Evaluates now and then, and notes when each threshold was first reached."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self.reached: dict[int, tuple[float, int]] = {}
        self.excluded = 0.0

    def _on_training_start(self) -> None:
        self.start = time.perf_counter()
        self.next = EVERY

    def _on_step(self) -> bool:
        return len(self.reached) < len(THRESHOLDS)

    def _on_rollout_end(self) -> None:
        if self.num_timesteps < self.next:
            return
        self.next += EVERY
        paused = time.perf_counter()
        mean = self.evaluate()
        for threshold in THRESHOLDS:
            if mean >= threshold and threshold not in self.reached:
                seconds = paused - self.start - self.excluded
                self.reached[threshold] = (seconds, self.num_timesteps)
        self.excluded += time.perf_counter() - paused

    def evaluate(self) -> float:
        env = VecNormalizeVisible(
            make_vec_env(ENV_ID, EPISODES, seed=self.seed + 5_000 + self.num_timesteps),
            training=False,
            norm_reward=False,
        )
        trained = self.model.get_vec_normalize_env()
        assert trained is not None
        env.obs_rms = deepcopy(trained.obs_rms)
        mode = self.model.policy.training
        mean, _ = evaluate_policy(self.model, env, EPISODES)
        self.model.policy.set_training_mode(mode)
        env.close()
        return float(mean)


#: What both libraries can be given alike.
KNOWN = {"learning_rate": LinearSchedule(1.5e-3, 7.5e-5, 1.0), "batch_size": 512, "ent_coef": 0.01}
FAST = {
    "learning_rate": LinearSchedule(5e-3, 0.0, 1.0),
    "batch_size": 1024,
    "ent_coef": 0.003,
    "gamma": 0.98,
}
COMMON = {"n_steps": 128, "n_epochs": 4, "clip_range_vf": 0.2, "device": "cpu"}

#: contender -> (algorithm, hyperparameters, network, budget in steps)
CONTENDERS: dict[str, tuple[Any, dict[str, Any], dict[str, Any], int]] = {
    "ours": (RecurrentPPO, FAST, {"shared_lstm_critic_gradient": True}, 200_000),
    "sb3-contrib": (sb3_contrib.RecurrentPPO, KNOWN, {}, 600_000),
    "sb3-contrib, our recipe": (sb3_contrib.RecurrentPPO, FAST, {}, 200_000),
}


def run(job: tuple[str, int]) -> tuple[str, int, dict[int, tuple[float, int]]]:
    who, number = job
    th.set_num_threads(1)
    algorithm, hyperparameters, network, budget = CONTENDERS[who]
    seed = RunSpec("lstm", ENV_ID, number).training_seed
    make = make_vec_env if who == "ours" else sb3_make_vec_env
    env = VecScaleReward(VecNormalizeVisible(make(ENV_ID, 16, seed=seed), norm_reward=False), 0.02)
    model = algorithm(
        "MlpLstmPolicy",
        env,
        seed=seed,
        policy_kwargs={"lstm_hidden_size": 64, "net_arch": [], **network},
        **COMMON,
        **hyperparameters,
    )
    callback = UntilThresholds(seed)
    model.learn(budget, callback=callback)
    return who, number, callback.reached


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    # In turn, so that a machine that drifts slows all alike.
    jobs = [(who, seed) for seed in range(args.seeds) for who in CONTENDERS]
    rows: list[tuple[str, int, int, float, float]] = []
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for who, seed, reached in pool.map(run, jobs):
            for threshold in THRESHOLDS:
                seconds, steps = reached.get(threshold, (math.inf, math.inf))
                rows.append((who, seed, threshold, seconds, steps))
                print(f"{who} seed {seed}: {threshold} after {seconds:.1f} s, {steps} steps",
                      flush=True)  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    head = ("contender", "seed", "threshold", "seconds", "steps")
    lines = [(*row[:3], f"{row[3]:.1f}", row[4]) for row in rows]
    write_csv(args.out / "threshold.csv", head, lines)
    for threshold in THRESHOLDS:
        median = {
            who: statistics.median(row[3] for row in rows if (row[0], row[2]) == (who, threshold))
            for who in CONTENDERS
        }
        for who in list(CONTENDERS)[1:]:
            ours, theirs = median["ours"], median[who]
            print(
                f"{threshold}: {ours:.1f} s against {theirs:.1f} s of {who}, {theirs / ours:.1f} x"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

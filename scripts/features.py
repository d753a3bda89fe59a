"""Measure what each feature costs beside the plain LSTM: collecting a window and training on it.

    python scripts/features.py --out docs/results/speed

16 environments x 128 steps, memory of 64 units shared by actor and critic (where a row says nothing
else), 4 epochs, 512 steps in a minibatch, on one thread. All are timed in turn, in the processor's
time, so that a machine that drifts or is shared slows all alike: medians, and medians of the ratios
to the plain LSTM's time of the same round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch as th
from gymnasium.vector import VectorWrapper
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from thrust_pomdp import (
    GymnasiumVecEnv,
    MaskableRecurrentPPO,
    RecurrentPPO,
    VecPrivilegedInfo,
    make_vec_env,
)
from thrust_pomdp.experiment.atomic_write import write_csv
from thrust_pomdp.experiment.commands.options import make_parser, positive

N_ENVS, N_STEPS, HIDDEN = 16, 128, 64
ENV = "thrust_pomdp:FlickeringCartPole-v0"
PLAIN = "plain LSTM"


class AllowsEverything(VectorWrapper):
    """Masks that allow all actions."""

    def action_masks(self) -> np.ndarray:
        """Return a mask for each environment."""
        return np.ones((self.num_envs, 2), dtype=bool)


def seen(**layers: bool) -> Callable[[], VecEnv]:
    """Return a maker of environments that also show what was done or paid last."""
    return lambda: make_vec_env(ENV, N_ENVS, seed=0, **layers)


def privileged() -> VecEnv:
    """Make environments that tell the critic the state."""
    return VecPrivilegedInfo(make_vec_env(ENV, N_ENVS, seed=0, env_kwargs={"expose_state": True}))


def masked() -> VecEnv:
    """Make environments with action masks."""
    return GymnasiumVecEnv(AllowsEverything(make_vec_env(ENV, N_ENVS, seed=0).env))


def with_policy(**changes: Any) -> dict[str, Any]:
    """Return arguments whose policy differs from the plain one."""
    kwargs = {"lstm_hidden_size": HIDDEN, "net_arch": [], "shared_lstm_critic_gradient": True}
    return {"policy_kwargs": {**kwargs, **changes}}


#: What is measured: what makes the environments, and the algorithm's arguments.
FEATURES: dict[str, tuple[Callable[[], VecEnv], dict[str, Any]]] = {
    PLAIN: (seen(), {}),
    "GRU": (seen(), with_policy(rnn_class=nn.GRU)),
    "plain RNN": (seen(), with_policy(rnn_class=nn.RNN)),
    "encoder of 64": (seen(), with_policy(net_arch={"encoder": [64], "pi": [], "vf": []})),
    "heads of 64": (seen(), with_policy(net_arch={"pi": [64], "vf": [64]})),
    "layer norm": (seen(), with_policy(layer_norm=True)),
    "previous action": (seen(previous_action=True), {}),
    "previous action and reward": (seen(previous_action=True, previous_reward=True), {}),
    "privileged critic, beside the memory": (privileged, {"policy": "AsymmetricLstmPolicy"}),
    "the same, grounded": (
        privileged,
        {"policy": "AsymmetricLstmPolicy", **with_policy(grounding_coef=0.5)},
    ),
    "action masks": (masked, {"cls": MaskableRecurrentPPO}),
    **{
        f"sequence_length={length}{name}": (seen(), {"sequence_length": length, **more})
        for length in (16, 32, 64)
        for name, more in (
            ("", {}),
            (f", burn_in={length // 2}", {"burn_in": length // 2}),
            (", refresh_states=True", {"refresh_states": True}),
        )
    },
}


class Measured:
    """A model whose windows are timed.

    :param make_env: makes its environments
    :param arguments: of the algorithm
    """

    def __init__(self, make_env: Callable[[], VecEnv], arguments: dict[str, Any]) -> None:
        given = {"policy": "MlpLstmPolicy", **with_policy(), **arguments}
        make: Any = given.pop("cls", RecurrentPPO)
        self.model = make(
            env=make_env(), n_steps=N_STEPS, batch_size=4 * N_STEPS, n_epochs=4,
            learning_rate=0.0, seed=0, device="cpu", **given,
        )  # fmt: skip
        self.model.set_logger(configure(None, []))
        _, self.callback = self.model._setup_learn(10**9)
        self.callback.on_training_start({}, {})
        self.collecting: list[float] = []
        self.training: list[float] = []
        self.window()
        self.collecting, self.training = [], []  # the first one compiles

    def window(self) -> None:
        """Collect a window and train on it."""
        model = self.model
        start = time.process_time()
        model.collect_rollouts(model.env, self.callback, model.rollout_buffer, N_STEPS)
        between = time.process_time()
        model.train()
        self.collecting.append(between - start)
        self.training.append(time.process_time() - between)

    def whole(self) -> list[float]:
        """Return the times of collecting and training together."""
        return [sum(pair) for pair in zip(self.collecting, self.training, strict=True)]


def ratio(mine: list[float], plain: list[float]) -> float:
    """Return the median ratio of times of the same rounds."""
    return median(one / other for one, other in zip(mine, plain, strict=True))


def rows(measured: dict[str, Measured]) -> list[tuple[str, ...]]:
    """Return a row of the table for each feature."""
    plain = measured[PLAIN]
    return [
        (
            name,
            f"{1e3 * median(one.collecting):.1f}",
            f"{1e3 * median(one.training):.1f}",
            f"{ratio(one.collecting, plain.collecting):.2f}",
            f"{ratio(one.training, plain.training):.2f}",
            f"{ratio(one.whole(), plain.whole()):.2f}",
        )
        for name, one in measured.items()
    ]


def main(arguments: list[str] | None = None) -> None:
    """Measure all features in turn."""
    parser = make_parser(__doc__)
    parser.add_argument("--repeats", type=positive, default=30)
    parser.add_argument("--out", type=Path, help="folder for features.csv")
    args = parser.parse_args(arguments)
    th.set_num_threads(1)
    measured = {name: Measured(*feature) for name, feature in FEATURES.items()}
    for _ in range(args.repeats):
        for one in measured.values():
            one.window()
    head = ("feature", "collecting_ms", "training_ms", "collecting", "training", "together")
    found = rows(measured)
    for row in (head, *found):
        print(row[0].ljust(42), *(cell.rjust(13) for cell in row[1:]))
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        write_csv(args.out / "features.csv", head, found)


if __name__ == "__main__":
    main()

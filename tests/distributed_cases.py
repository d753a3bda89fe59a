"""Trainings in blocks, to be done by one process and by several: the program that torchrun starts.

``python tests/distributed_cases.py OUT CASE...`` trains each case in four blocks and writes, on
rank 0, what came of it. ``UPDATES``, ``ENVS`` and ``HIDDEN`` in the environment say how many, and
``CHECKPOINTS`` in which folder they are kept to be gone on with.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import CategoricalDistribution
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from thrust_pomdp import (
    AverageWeights,
    MlpLstmPolicy,
    TrainingCheckpoint,
    VecNormalizeVisible,
    VecPreviousAction,
    VecPrivilegedInfo,
)
from thrust_pomdp.distributed import (
    DataParallelMaskableRecurrentPPO,
    DataParallelRecurrentPPO,
    make_vec_env_share,
    share_of,
)
from thrust_pomdp.stateful import StatefulEnv
from thrust_pomdp.vec_env.previous import layers

#: Small ones, unless the environment says otherwise.
N_ENVS, HIDDEN, UPDATES = (
    int(os.environ.get(name, given))
    for name, given in (("ENVS", "8"), ("HIDDEN", "8"), ("UPDATES", "3"))
)
BLOCKS, N_STEPS = 4, 16

#: Name -> what makes the model of a case; keyword arguments change its algorithm's.
CASES: dict[str, Callable[..., DataParallelRecurrentPPO]] = {}


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    CASES[function.__name__] = function
    return function


def make(policy: Any, env: Any, cls: Any = DataParallelRecurrentPPO, **kwargs: Any) -> Any:
    given = {
        "n_steps": N_STEPS,
        "batch_size": 4 * N_STEPS,
        "n_epochs": 2,
        "seed": 5,
        "gradient_blocks": BLOCKS,
        "learning_rate": 3e-3,
        "policy_kwargs": {"lstm_hidden_size": HIDDEN},
    }
    given["policy_kwargs"] |= kwargs.pop("policy_kwargs", {})
    return cls(policy, env, **given | kwargs)


def flickering(**kwargs: Any) -> Any:
    given = {"normalize": {"update": "window"}, "previous_action": True}
    return make_vec_env_share("FlickeringCartPole-v0", N_ENVS, seed=3, **given | kwargs)


@case
def lstm(**kwargs: Any) -> Any:
    return make("MlpLstmPolicy", flickering(), **kwargs)


@case
def gru(**kwargs: Any) -> Any:
    return make("MlpLstmPolicy", flickering(), policy_kwargs={"rnn_class": nn.GRU}, **kwargs)


@case
def kl_stop_and_value_clip(**kwargs: Any) -> Any:
    more = {"target_kl": 1e-3, "clip_range_vf": 0.2, "n_epochs": 6, "learning_rate": 1e-2}
    return make("MlpLstmPolicy", flickering(), **more | kwargs)


class Drift(StatefulEnv, gym.Env):
    """A number that drifts, and actions in [-1, 1]; ends by time or by leaving.

    :param number: of the environment among all, which its episodes' lengths tell
    """

    _fixed_state = ("number",)
    observation_space = spaces.Dict(
        {"seen": spaces.Box(-9, 9, (2,), np.float32), "number": spaces.Discrete(N_ENVS)}
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, number: int) -> None:
        self.number = number

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.place = 0, self.np_random.normal(size=2)
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.place = self.place + action + 0.3 * self.np_random.normal(size=2)
        reward = -float(np.abs(self.place).sum())
        has_left, is_late = bool(np.abs(self.place).max() > 4), self.steps >= 5 + self.number
        info = {"is_success": not has_left} if has_left or is_late else {}
        return self._shown(), reward, has_left, is_late and not has_left, info

    def _shown(self) -> Any:
        return {"seen": np.float32(self.place), "number": self.number}


def drifting() -> Any:
    made = DummyVecEnv(
        [lambda number=number: Monitor(Drift(number)) for number in share_of(N_ENVS)]
    )
    return VecNormalizeVisible(made, update="window", norm_obs_keys=["seen"])


@case
def state_dependent_exploration(**kwargs: Any) -> Any:
    more = {"use_sde": True, "sde_sample_freq": 4, "window_state": "carry"}
    return make("MultiInputLstmPolicy", drifting(), **more | kwargs)


@case
def pieces_with_burn_in(**kwargs: Any) -> Any:
    more = {"sequence_length": 4, "burn_in": 2, "refresh_states": True, "batch_size": 32}
    return make("MultiInputLstmPolicy", drifting(), **more | kwargs)


class OwnDistribution(CategoricalDistribution):
    """A user's own: it draws from torch's global generator."""


class OwnPolicy(MlpLstmPolicy):
    """Drops features in training, and has a loss of its own that not all weights are in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.action_dist = OwnDistribution(self.action_space.n)
        self.unused = nn.Linear(2, 2)
        self.foretold = nn.Linear(self.lstm_output_dim, 1)
        self.optimizer = th.optim.Adam(self.parameters(), lr=3e-3)

    def extract_features(self, *args: Any, **kwargs: Any) -> Any:
        features = super().extract_features(*args, **kwargs)
        return nn.functional.dropout(features, 0.25, self.training)

    def auxiliary_loss(self) -> Any:
        return 1e-2 * self.foretold.weight.square().sum()


@case
def own_policy(**kwargs: Any) -> Any:
    return make(OwnPolicy, flickering(), **kwargs)


class Fenced(gym.Wrapper):
    """A cart that may not leave on its own accord."""

    def action_masks(self) -> list[bool]:
        position = self.unwrapped.state[0]
        return [position > -0.02, position < 0.02]


@case
def masked(**kwargs: Any) -> Any:
    env = DummyVecEnv([lambda: Monitor(Fenced(gym.make("CartPole-v1"))) for _ in share_of(N_ENVS)])
    return make("MlpLstmPolicy", env, DataParallelMaskableRecurrentPPO, **kwargs)


@case
def asymmetric(**kwargs: Any) -> Any:
    env = flickering(env_kwargs={"expose_state": True}, previous_action=False)
    env = VecPrivilegedInfo(VecPreviousAction(env), update="window")
    return make("AsymmetricLstmPolicy", env, **kwargs)


class Watch(BaseCallback):
    """Notes what is logged, but for times."""

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[dict[str, float]] = []

    def _on_step(self) -> bool:
        return True

    def get_state(self) -> Any:
        return {"logged": self.logged}

    def set_state(self, state: Any) -> None:
        self.logged = state["logged"]

    def note(self) -> dict[str, float]:
        values = self.logger.name_to_value.items()
        return {name: float(value) for name, value in values if not name.startswith("time/")}

    def _on_rollout_end(self) -> None:
        self.logged.append(self.note())


def digest(tree: Any) -> str:
    """Return a digest of nested numbers, arrays and tensors."""
    found = hashlib.sha256()

    def take(part: Any) -> None:
        if isinstance(part, dict):
            for key in sorted(part, key=str):
                found.update(str(key).encode())
                take(part[key])
        elif isinstance(part, (list, tuple)):
            for entry in part:
                take(entry)
        elif isinstance(part, th.Tensor):
            found.update(part.detach().contiguous().numpy().tobytes())
        else:
            found.update(np.asarray(part).tobytes())

    take(tree)
    return found.hexdigest()[:16]


def outcome(model: Any, watch: Watch) -> dict[str, Any]:
    """Return all that must not depend on the number of processes."""
    statistics = []
    for layer in layers(model.env):
        for name in ("obs_rms", "ret_rms", "statistics"):
            rms = vars(layer).get(name)
            for one in rms.values() if isinstance(rms, dict) else [rms]:
                if one is not None:
                    statistics.append([one.mean, one.var, one.count])
    episodes = [[one["r"], one["l"]] for one in model.ep_info_buffer]
    return {
        "weights": digest(model.policy.state_dict()),
        "optimizer": digest(model.policy.optimizer.state_dict()["state"]),
        "statistics": digest(statistics),
        "episodes": digest([episodes, list(model.ep_success_buffer)]),
        "n_episodes": len(episodes),
        "logs": digest(watch.logged),
        "last log": watch.note(),
        "counts": [model.num_timesteps, model._n_updates],
    }


def train(name: str, checkpoints: str | None = None, **kwargs: Any) -> dict[str, Any]:
    """Do one case and return what came of it.

    :param checkpoints: folder in which it is kept, and from which it goes on
    """
    watch = Watch()
    model = CASES[name](**kwargs)
    callbacks: list[BaseCallback] = [watch]
    if checkpoints is not None:
        callbacks.append(TrainingCheckpoint(checkpoints, every=N_ENVS * N_STEPS))
    is_averaged = name == "lstm" and checkpoints is None
    if is_averaged:
        callbacks.append(AverageWeights(0.5))
    model.learn(UPDATES * N_ENVS * N_STEPS, callback=callbacks, log_interval=1000)
    if is_averaged:  # from weights that rank 0 alone has made
        model.learn(N_ENVS * N_STEPS, callback=watch, log_interval=1000)
    return outcome(model, watch) if model._ranks.is_first else {}


def main() -> None:
    out = Path(sys.argv[1])
    kept = os.environ.get("CHECKPOINTS")
    found = {name: train(name, kept and f"{kept}/{name}") for name in sys.argv[2:]}
    if os.environ.get("RANK", "0") == "0":
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()

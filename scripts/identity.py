"""Run the identity tests of Stable-Baselines3 and sb3-contrib with and without memory.

    python scripts/identity.py
    python scripts/identity.py --tasks "masked Discrete" --contenders ours --learning-rate 3e-3
    python scripts/identity.py --tasks Discrete --contenders ours --target-kl 0.03

The action to take is what is seen (100 of 100 steps are paid at best), with the tests' settings:
gamma 0.4 and PPO's defaults, 2,048 steps a rollout and minibatches of 64. Contenders are SB3's PPO
(MaskablePPO where actions are masked), our RecurrentPPO (MaskableRecurrentPPO) and sb3-contrib's
RecurrentPPO, which has no masks: there they are read from the observation, and the network is shown
the rest. (It takes neither MultiBinary actions nor MultiDiscrete observations.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import sb3_contrib
import torch as th
from gymnasium import spaces
from sb3_contrib.common.envs import (
    InvalidActionEnvDiscrete,
    InvalidActionEnvMultiBinary,
    InvalidActionEnvMultiDiscrete,
)
from sb3_contrib.common.maskable import evaluation as their_masked
from sb3_contrib.ppo_recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3 import PPO
from stable_baselines3.common.envs import (
    IdentityEnv,
    IdentityEnvMultiBinary,
    IdentityEnvMultiDiscrete,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv

import thrust_pomdp
from thrust_pomdp.experiment.commands.options import make_parser
from thrust_pomdp.ppo import maskable

TASKS: dict[str, Callable[[], gym.Env]] = {
    "Discrete": lambda: IdentityEnv(4),
    "MultiDiscrete": lambda: IdentityEnvMultiDiscrete(4),
    "MultiBinary": lambda: IdentityEnvMultiBinary(4),
    "masked Discrete": lambda: InvalidActionEnvDiscrete(dim=70, n_invalid_actions=55),
    "masked MultiDiscrete": lambda: InvalidActionEnvMultiDiscrete([4, 4], n_invalid_actions=3),
    "masked MultiBinary": lambda: InvalidActionEnvMultiBinary(4, n_invalid_actions=2),
}
CONTENDERS = ("PPO", "ours", "sb3-contrib")
SETTINGS: dict[str, Any] = {"gamma": 0.4, "n_steps": 2048, "batch_size": 64, "device": "cpu"}


class ShowsItsMask(gym.Wrapper):
    """Shows the state as a one-hot vector, and beside it what may be done."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0, 1, (2 * env.action_space.n,), np.float32)

    def _shown(self, state: int) -> np.ndarray:
        one_hot = np.arange(self.env.action_space.n) == state
        return np.concatenate([one_hot, self.env.action_masks()]).astype(np.float32)

    def reset(self, **kwargs: Any) -> Any:
        state, info = self.env.reset(**kwargs)
        return self._shown(state), info

    def step(self, action: Any) -> Any:
        state, *rest = self.env.step(action)
        return self._shown(state), *rest


class WithoutMask(BaseFeaturesExtractor):
    """Lets the network see the state, and keeps the mask aside."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__(space, space.shape[0] // 2)

    def forward(self, obs: th.Tensor) -> th.Tensor:
        state, self.mask = obs.chunk(2, dim=1)
        return state


class MaskedByHand(RecurrentActorCriticPolicy):
    """sb3-contrib's recurrent policy with the mask laid over its logits."""

    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> Any:
        forbidden = self.features_extractor.mask == 0
        return self.action_dist.proba_distribution(
            self.action_net(latent_pi).masked_fill(forbidden, -1e8)
        )


def contender(who: str, task: str, seed: int, **given: Any) -> tuple[Any, Callable[[], Any]]:
    """Return a new model and what evaluates it."""
    is_masked, policy_kwargs = task.startswith("masked"), {}
    make, evaluate = TASKS[task], evaluate_policy
    if who == "ours":
        cls = thrust_pomdp.MaskableRecurrentPPO if is_masked else thrust_pomdp.RecurrentPPO
        policy: Any = "MlpLstmPolicy"
        evaluate = maskable.evaluate_policy if is_masked else evaluate_policy
    elif who == "PPO":
        cls, policy = (sb3_contrib.MaskablePPO if is_masked else PPO), "MlpPolicy"
        evaluate = their_masked.evaluate_policy if is_masked else evaluate_policy
    else:
        cls, policy = sb3_contrib.RecurrentPPO, "MlpLstmPolicy"
        if is_masked:
            policy, policy_kwargs = MaskedByHand, {"features_extractor_class": WithoutMask}
            make = lambda: ShowsItsMask(TASKS[task]())  # noqa: E731
    model = cls(policy, DummyVecEnv([make]), seed=seed,
                policy_kwargs=policy_kwargs, **SETTINGS, **given)  # fmt: skip
    return model, lambda: evaluate(model, DummyVecEnv([make]), n_eval_episodes=20, warn=False)[0]


def can_take(who: str, task: str) -> bool:
    """Tell whether sb3-contrib's recurrent policy has such spaces, or we such a stand-in."""
    return who != "sb3-contrib" or task in ("Discrete", "masked Discrete")


def means(who: str, task: str, seed: int, steps: Sequence[int], **given: Any) -> list[float]:
    """Return the mean return after so many steps, rounded up to whole rollouts."""
    model, evaluate = contender(who, task, seed, **given)
    found: list[float] = []
    for target in steps:
        model.learn(target - model.num_timesteps, reset_num_timesteps=False)
        found.append(float(evaluate()))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--steps", nargs="+", type=int, default=[3000, 10_000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--target-kl", type=float)
    args = parser.parse_args(arguments)
    given = {"learning_rate": args.learning_rate, "target_kl": args.target_kl}
    th.set_num_threads(1)
    print(f"| task | contender | {' | '.join(f'{steps:,} steps' for steps in args.steps)} |")
    print("|---|---|" + "---|" * len(args.steps), flush=True)
    for task in args.tasks:
        for who in [who for who in args.contenders if can_take(who, task)]:
            rows = [means(who, task, seed, args.steps, **given) for seed in range(args.seeds)]
            cells = [
                ", ".join(f"{mean:.1f}" for mean in column) for column in zip(*rows, strict=True)
            ]
            print(f"| {task} | {who} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

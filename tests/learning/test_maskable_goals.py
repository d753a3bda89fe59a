"""What masks and memory together reach; minutes on a busy machine (`-m slow`)."""

from __future__ import annotations

import numpy as np
import pytest
from maskable_envs import DoorsTMaze

from thrust_pomdp import MaskableRecurrentPPO, make_vec_env
from thrust_pomdp.ppo.maskable import evaluate_policy


@pytest.mark.slow
def test_masks_and_memory_together_pass_the_maze_with_doors():
    """30k steps. Without masks one episode in 59,049 gets to the junction (so -1 is expected, what-
    ever is learnt), without memory the turn is right half of the time (0)."""
    means = []
    for seed in range(3):
        env = make_vec_env(
            "TMaze-v0", 16, seed=seed, env_kwargs={"corridor_length": 10},
            wrapper_class=DoorsTMaze, wrapper_kwargs={"seed": seed},
        )  # fmt: skip
        model = MaskableRecurrentPPO(
            "MlpLstmPolicy", env, n_steps=32, learning_rate=5e-3, ent_coef=0.01, seed=seed,
            policy_kwargs={
                "lstm_hidden_size": 32, "net_arch": [], "shared_lstm_critic_gradient": True,
            },
        )  # fmt: skip
        model.learn(30_000)
        rewards, _ = evaluate_policy(
            model, env, n_eval_episodes=160, deterministic=False, return_episode_rewards=True
        )
        means.append(np.mean(rewards))
    assert min(means) >= 0.9, means

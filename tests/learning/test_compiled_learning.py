"""Training by compiled minibatches learns as training by torch's operations does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from thrust_pomdp import RecurrentPPO, make_vec_env
from thrust_pomdp.recurrent.compiled import load_kernels

SEEDS, STEPS = range(20), 50_000


def mean_return(seed: int) -> float:
    """Train on flickering CartPole and return the mean of the last 100 episodes."""
    env = make_vec_env("FlickeringCartPole-v0", 16, seed=seed, normalize=True)
    model = RecurrentPPO(
        "MlpLstmPolicy",
        env,
        learning_rate=1.5e-3,
        n_steps=128,
        batch_size=512,
        n_epochs=4,
        ent_coef=0.01,
        seed=seed,
        policy_kwargs={
            "lstm_hidden_size": 64, "net_arch": [], "shared_lstm_critic_gradient": True,
        },
    )  # fmt: skip
    model.learn(STEPS)
    assert model.ep_info_buffer is not None
    return float(np.mean([info["r"] for info in model.ep_info_buffer]))


@pytest.mark.slow
@pytest.mark.skipif(load_kernels() is None, reason="Numba is missing or switched off")
def test_twenty_seeds_learn_alike(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    compiled = np.array([mean_return(seed) for seed in SEEDS])
    monkeypatch.setattr("thrust_pomdp.ppo.training.against_minibatch", lambda *_: "a test says so")
    by_torch = np.array([mean_return(seed) for seed in SEEDS])
    with capsys.disabled():
        for name, returns in (("compiled", compiled), ("torch", by_torch)):
            error = returns.std(ddof=1) / np.sqrt(len(returns))
            print(f"\n{name}: {returns.mean():.1f} (s.e. {error:.1f})", np.sort(returns).round())
    spread = np.hypot(compiled.std(ddof=1), by_torch.std(ddof=1)) / np.sqrt(len(SEEDS))
    assert abs(compiled.mean() - by_torch.mean()) <= 3 * spread
    assert compiled.mean() > 60  # it has learnt

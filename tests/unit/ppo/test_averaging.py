"""Weights averaged over the end of a training: the mean of those that were there."""

from __future__ import annotations

import numpy as np
import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

from thrust_pomdp import AverageWeights, RecurrentPPO, TrainingCheckpoint, make_vec_env


class Weights(BaseCallback):
    """Notes the weights after each update; SB3 tells of the last one at the end only."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.after, self.stop_at = [], stop_at

    def _note(self):
        weights = self.model.policy.state_dict()
        self.after.append({name: tensor.double().clone() for name, tensor in weights.items()})

    def _on_step(self):
        if self.stop_at is not None and self.num_timesteps >= self.stop_at:
            raise KeyboardInterrupt
        return True

    def _on_rollout_start(self):
        if self.num_timesteps:
            self._note()

    def _on_training_end(self):
        self._note()

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


def made(kind=RecurrentPPO, **kwargs):
    venv = make_vec_env("FlickeringCartPole-v0", n_envs=2, seed=0)
    policy = "MlpLstmPolicy" if kind is RecurrentPPO else "MlpPolicy"
    return kind(policy, venv, n_steps=16, batch_size=16, n_epochs=1, seed=0, **kwargs)


@pytest.mark.parametrize("kind", [RecurrentPPO, PPO])
@pytest.mark.parametrize(("last", "updates"), [(0.2, 3), (0.5, 6), (1.0, 10), (0.01, 1)])
def test_the_model_ends_with_the_mean_of_the_last_updates(kind, last, updates):
    model, noted, averaging = made(kind), Weights(), AverageWeights(last)
    model.learn(320, callback=[noted, averaging])  # 10 updates
    assert averaging.n_updates == updates
    for name, tensor in model.policy.state_dict().items():
        mean = th.stack([weights[name] for weights in noted.after[-updates:]]).mean(dim=0)
        np.testing.assert_allclose(tensor, mean, rtol=1e-6, atol=1e-9)
        np.testing.assert_array_equal(averaging.last_weights[name], noted.after[-1][name].float())


def test_training_is_as_without():
    noted, plain = Weights(), Weights()
    made().learn(160, callback=[noted, AverageWeights(1.0)])
    made().learn(160, callback=plain)
    for one, other in zip(noted.after, plain.after, strict=True):
        assert all(th.equal(one[name], other[name]) for name in one)


def test_each_call_of_learn_averages_its_own_end():
    model, averaging, noted = made(), AverageWeights(1.0), Weights()
    model.learn(64, callback=averaging)
    model.policy.load_state_dict(averaging.last_weights)
    model.learn(64, callback=[noted, averaging], reset_num_timesteps=False)
    assert averaging.n_updates == 2
    name = next(iter(averaging.last_weights))
    mean = (noted.after[-1][name] + noted.after[-2][name]) / 2
    np.testing.assert_allclose(model.policy.state_dict()[name], mean, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("stop_at", [100, 200, 300])
def test_a_killed_training_ends_with_the_same_mean(stop_at, tmp_path):
    whole = made()
    whole.learn(320, callback=AverageWeights(0.5))
    with pytest.raises(KeyboardInterrupt):
        made().learn(320, callback=[
            AverageWeights(0.5), TrainingCheckpoint(tmp_path, every=32), Weights(stop_at),
        ])  # fmt: skip
    for _ in range(2):  # the second time there is nothing left to train
        model = made()
        model.learn(320, callback=[
            AverageWeights(0.5), TrainingCheckpoint(tmp_path, every=32), Weights(),
        ])  # fmt: skip
        for one, other in zip(
            whole.policy.state_dict().values(), model.policy.state_dict().values(), strict=True
        ):
            assert th.equal(one, other)


@pytest.mark.parametrize("last", [0, -0.1, 1.5, "x", None, float("nan")])
def test_another_share_is_refused(last):
    with pytest.raises(ValueError, match="last must be"):
        AverageWeights(last)

"""Where an array lies in memory changes no number: matrix products of torch's round by that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as th
from helpers import fixed_length_envs
from memories import LastFrames
from stable_baselines3.common.vec_env import VecEnvWrapper
from torch import nn

from thrust_pomdp import RecurrentPPO
from thrust_pomdp.recurrent import LRU, GTrXL, MinGRU

OFFSETS = range(0, 16, 3)


def moved(array: np.ndarray, offset: int) -> np.ndarray:
    """Copy an array to memory that begins so many numbers after a border of 64 bytes."""
    whole = np.zeros(array.size + 64, array.dtype)
    start = (-whole.ctypes.data % 64) // array.itemsize + offset
    place = whole[start : start + array.size].reshape(array.shape)
    place[...] = array
    return place


class Moves(VecEnvWrapper):
    """Shows observations from somewhere else in memory."""

    def __init__(self, venv: Any, offset: int) -> None:
        super().__init__(venv)
        self.offset = offset

    def reset(self) -> np.ndarray:
        return moved(self.venv.reset(), self.offset)

    def step_wait(self) -> Any:
        obs, *rest = self.venv.step_wait()
        return moved(obs, self.offset), *rest


def test_torch_rounds_by_it():
    """Else the tests below could not fail."""
    th.manual_seed(0)
    layer, rows = nn.Linear(7, 8), np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    found = {layer(th.from_numpy(moved(rows, offset))).detach().numpy().tobytes()
             for offset in OFFSETS}  # fmt: skip
    if len(found) == 1:
        pytest.skip("on this processor products of matrices do not depend on where they lie")


@pytest.mark.parametrize(
    "arguments",
    [
        {"policy_kwargs": {"net_arch": {"encoder": [6], "pi": [5], "vf": [5]}}},
        {"policy_kwargs": {"rnn_class": LastFrames}, "window_state": "carry"},
        {"policy_kwargs": {"rnn_class": MinGRU}},
        {"policy_kwargs": {"rnn_class": LRU, "n_lstm_layers": 2}, "window_state": "carry"},
        {"policy_kwargs": {"rnn_class": GTrXL}, "window_state": "carry"},
        {"policy_kwargs": {"enable_critic_lstm": False}, "sequence_length": 4, "burn_in": 2},
        {"policy_kwargs": {"rnn_class": nn.GRU, "n_lstm_layers": 2}, "sequence_length": 8,
         "refresh_states": True},
    ],
)  # fmt: skip
def test_a_training_does_not_depend_on_it(arguments):
    found = set()
    for offset in OFFSETS:
        kwargs = {"lstm_hidden_size": 8, **arguments["policy_kwargs"]}
        model = RecurrentPPO(
            "MlpLstmPolicy", Moves(fixed_length_envs(5, 6, 7), offset), n_steps=16, batch_size=16,
            n_epochs=2, seed=0, **{**arguments, "policy_kwargs": kwargs},
        ).learn(2 * 48)  # fmt: skip
        found.add(b"".join(part.detach().numpy().tobytes() for part in model.policy.parameters()))
    assert len(found) == 1


@pytest.mark.parametrize("rnn_class", [nn.LSTM, LastFrames])
def test_nor_does_predict(rnn_class):
    kwargs = {"lstm_hidden_size": 8, "rnn_class": rnn_class, "net_arch": {"encoder": [6]}}
    model = RecurrentPPO("MlpLstmPolicy", fixed_length_envs(5, 6, 7), policy_kwargs=kwargs, seed=0)
    obs = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    found = set()
    for offset in OFFSETS:
        _, state = model.predict(moved(obs, offset), deterministic=True)
        state = tuple(moved(part, offset) for part in state)
        _, state = model.predict(moved(obs, offset), state, deterministic=True)
        found.add(b"".join(part.tobytes() for part in state))
    assert len(found) == 1

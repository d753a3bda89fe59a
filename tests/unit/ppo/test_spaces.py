"""Every space SB3 knows: training runs, and its first pass equals collection."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from helpers import FirstPass, fixed_length_envs, sharpen
from stable_baselines3.common.evaluation import evaluate_policy

from thrust_pomdp import RecurrentPPO

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)

ACTIONS = {
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2, 4]),
    "MultiBinary": spaces.MultiBinary(4),
    "Box": spaces.Box(-1, 1, (2,), np.float32),
    "Box of two dimensions": spaces.Box(-2, 3, (2, 3), np.float32),
    "Box float64": spaces.Box(-1, 1, (1,), np.float64),
    "Box float16": spaces.Box(-1, 1, (2,), np.float16),
}
OBSERVATIONS = {
    "vector": (VECTOR, "MlpLstmPolicy"),
    "float64 vector": (spaces.Box(-1.0, 1.0, (3,), np.float64), "MlpLstmPolicy"),
    "several dimensions": (spaces.Box(-1.0, 1.0, (2, 3, 2), np.float32), "MlpLstmPolicy"),
    "Discrete": (spaces.Discrete(5), "MlpLstmPolicy"),
    "MultiDiscrete": (spaces.MultiDiscrete([3, 4]), "MlpLstmPolicy"),
    "MultiBinary": (spaces.MultiBinary(4), "MlpLstmPolicy"),
    "image": (IMAGE, "CnnLstmPolicy"),
    "Dict": (
        spaces.Dict(
            {
                "vector": VECTOR,
                "image": IMAGE,
                "discrete": spaces.Discrete(5),
                "multi_discrete": spaces.MultiDiscrete([3, 4]),
                "multi_binary": spaces.MultiBinary(4),
            }
        ),
        "MultiInputLstmPolicy",
    ),
}


def first_pass(observation_space, action_space, policy, n_envs, window_state) -> RecurrentPPO:
    env = fixed_length_envs(
        *(5, 6, 7)[:n_envs], observation_space=observation_space, action_space=action_space
    )
    model = RecurrentPPO(
        policy, env, n_steps=16, batch_size=16, n_epochs=2, learning_rate=0.0, seed=0,
        policy_kwargs={"lstm_hidden_size": 8}, window_state=window_state,
    )  # fmt: skip
    sharpen(model)
    callback = FirstPass()
    model.learn(2 * 16 * n_envs, callback=callback)
    assert callback.minibatches == 2 * 2 * n_envs
    assert callback.error < 1e-5
    return model


@pytest.mark.parametrize("window_state", ["zero", "carry"])
@pytest.mark.parametrize("n_envs", [1, 3])
class TestFirstPassEqualsCollection:
    @pytest.mark.parametrize("action", ACTIONS)
    def test_for_actions(self, action, n_envs, window_state):
        model = first_pass(VECTOR, ACTIONS[action], "MlpLstmPolicy", n_envs, window_state)
        assert len(evaluate_policy(model, model.get_env(), 2, warn=False)) == 2

    @pytest.mark.parametrize("observation", OBSERVATIONS)
    def test_for_observations(self, observation, n_envs, window_state):
        space, policy = OBSERVATIONS[observation]
        model = first_pass(space, ACTIONS["Discrete"], policy, n_envs, window_state)
        assert len(evaluate_policy(model, model.get_env(), 2, warn=False)) == 2


class TestTraining:
    @pytest.mark.parametrize("action", ACTIONS)
    def test_learning_changes_the_weights_and_keeps_them_finite(self, action, tmp_path):
        env = fixed_length_envs(5, 6, action_space=ACTIONS[action])
        model = RecurrentPPO(
            "MlpLstmPolicy", env, n_steps=8, batch_size=8, policy_kwargs={"lstm_hidden_size": 8}
        )
        before = model.policy.parameters_to_vector()
        model.learn(32)
        after = model.policy.parameters_to_vector()
        assert np.isfinite(after).all()
        assert not np.array_equal(before, after)
        model.save(tmp_path / "model")
        loaded = RecurrentPPO.load(tmp_path / "model")
        obs = np.ones((2, 3), np.float32)
        expected, actual = (m.predict(obs, deterministic=True)[0] for m in (model, loaded))
        assert np.array_equal(expected, actual)
        assert all(ACTIONS[action].contains(a.astype(ACTIONS[action].dtype)) for a in actual)

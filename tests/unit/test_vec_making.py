"""make_vec_env adds what agents see, in the order in which it must be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.vec_env import VecFrameStack

from thrust_pomdp import (
    GymnasiumVecEnv,
    VecNormalizeVisible,
    VecPreviousAction,
    VecPreviousReward,
    make_vec_env,
)
from thrust_pomdp.vec.previous import layers

FLICKERING = "FlickeringCartPole-v0"
ALL = [VecFrameStack, VecPreviousReward, VecPreviousAction, VecNormalizeVisible]


class TestWhatAgentsSee:
    @pytest.mark.parametrize("vec_env", [{}, {"wrapper_class": lambda env: env}])
    def test_is_added_in_one_order(self, vec_env: dict[str, Any]) -> None:
        env = make_vec_env(
            FLICKERING, 2, seed=0, **vec_env,
            frame_stack=3, previous_reward=True, previous_action=True, normalize=True,
        )  # fmt: skip
        assert [type(layer) for layer in layers(env)] == ALL
        assert isinstance(env.unwrapped, GymnasiumVecEnv) == (not vec_env)
        assert env.reset().shape == (2, 3 * (4 + 2 + 1))
        assert env.step(np.ones(2, int))[0][:, -3:].tolist() == [[0.0, 1.0, 1.0]] * 2

    @pytest.mark.parametrize(
        ("arguments", "kind"),
        [
            ({"normalize": {"norm_reward": False, "clip_obs": 3.0}}, VecNormalizeVisible),
            ({"previous_action": True}, VecPreviousAction),
            ({"previous_reward": True}, VecPreviousReward),
            ({"frame_stack": 2}, VecFrameStack),
        ],
    )
    def test_is_only_what_is_asked_for(self, arguments: dict[str, Any], kind: type) -> None:
        env = make_vec_env(FLICKERING, 2, **arguments)
        assert [type(layer) for layer in layers(env)] == [kind]
        if kind is VecNormalizeVisible:
            assert (env.norm_reward, env.clip_obs) == (False, 3.0)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"normalize": "yes"}, "normalize must be True or False, got 'yes'"),
            ({"normalize": {"clip_obs": -1}}, "clip_obs must be positive, got -1"),
            ({"previous_action": 1}, "previous_action must be True or False, got 1"),
            ({"previous_reward": None}, "previous_reward must be True or False, got None"),
            ({"frame_stack": True}, "frame_stack must be at least 1, got True"),
        ],
    )
    def test_cannot_be_anything(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            make_vec_env(FLICKERING, 1, **arguments)

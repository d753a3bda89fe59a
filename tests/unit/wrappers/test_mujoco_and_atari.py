"""The wrappers on a MuJoCo and an Atari environment (extras ``mujoco`` and ``atari``).

pip install -e '.[mujoco,atari]' && pytest -m external
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.vec_env import DummyVecEnv
from vectors import assert_same

from thrust_pomdp import RecurrentPPO, VecNormalizeVisible, VecPreviousAction, wrappers
from thrust_pomdp.wrappers import vector

pytestmark = [
    pytest.mark.external,
    # Of other people's packages.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*obs_type.*:UserWarning"),
]

#: What the checkers say of these environments without a wrapper, too.
NOT_OURS = (
    r".*is different from the unwrapped version",
    r".*A Box observation space (minimum|maximum) value is -?infinity",
    r".*[Ww]e recommend (you to use|using) a symmetric and normalized",
)

IDS = ["HalfCheetah-v5", "InvertedPendulum-v5", "ALE/Pong-v5"]

LAYERS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "flicker": [("FlickerObservation", {})],
    "bursts": [("FlickerObservation", {"burst_len": 4})],
    "dropout": [("ElementDropoutObservation", {"dropout_prob": 0.2})],
    "drop": [("MaskObservation", {"drop": [1]})],
    "zero": [("MaskObservation", {"zero": [0]})],
    "all": [
        ("ElementDropoutObservation", {"dropout_prob": 0.1}),
        ("FlickerObservation", {}),
        ("PreviousActionObservation", {}),
    ],
}

each_env = pytest.mark.parametrize("env_id", IDS)
each_wrapping = pytest.mark.parametrize("wrapping", LAYERS)


def make(env_id: str) -> gym.Env:
    if env_id.startswith("ALE/"):
        gym.register_envs(pytest.importorskip("ale_py", reason="needs the extra atari"))
        return gym.make(env_id, max_episode_steps=12)
    pytest.importorskip("mujoco", reason="needs the extra mujoco")
    return gym.make(env_id, max_episode_steps=12)


def wrap(env: Any, module: Any, wrapping: str) -> Any:
    for name, arguments in LAYERS[wrapping]:
        env = getattr(module, name)(env, **arguments)
    return env


@each_env
@each_wrapping
class TestWrapped:
    def test_both_checkers_pass(self, env_id: str, wrapping: str) -> None:
        with warnings.catch_warnings():
            for message in NOT_OURS:
                warnings.filterwarnings("ignore", message=message, category=UserWarning)
            check_env(wrap(make(env_id), wrappers, wrapping), skip_render_check=True)
            sb3_check_env(wrap(make(env_id), wrappers, wrapping))

    def test_the_spec_survives_json(self, env_id: str, wrapping: str) -> None:
        env = wrap(make(env_id), wrappers, wrapping)
        again = gym.make(EnvSpec.from_json(env.spec.to_json()))
        assert_same(again.reset(seed=1), env.reset(seed=1))
        env.action_space.seed(0)
        for _ in range(10):
            action = env.action_space.sample()
            assert_same(again.step(action), env.step(action))

    @pytest.mark.parametrize("mode", AutoresetMode)
    def test_the_vector_wrapper_equals_single_ones(
        self, env_id: str, wrapping: str, mode: AutoresetMode
    ) -> None:
        def bare() -> gym.Env:
            return make(env_id)

        def wrapped() -> gym.Env:
            return wrap(make(env_id), wrappers, wrapping)

        ours = wrap(SyncVectorEnv([bare] * 2, autoreset_mode=mode), vector, wrapping)
        theirs = SyncVectorEnv([wrapped] * 2, autoreset_mode=mode)
        assert_same(ours.reset(seed=0), theirs.reset(seed=0))
        theirs.action_space.seed(0)
        n_ended = 0
        for _ in range(16):
            actions = theirs.action_space.sample()
            outcome = ours.step(actions)
            assert_same(outcome, theirs.step(actions))
            ended = outcome[2] | outcome[3]
            n_ended += ended.sum()
            if ended.any() and mode is AutoresetMode.DISABLED:
                resets = [
                    envs.reset(options={"reset_mask": ended.copy()}) for envs in (ours, theirs)
                ]
                assert_same(*resets)
        assert n_ended >= 2


class TestWhatIsShown:
    def test_a_blank_picture_is_black_and_a_visible_one_the_games(self) -> None:
        env, bare = wrappers.FlickerObservation(make(IDS[2])), make(IDS[2])
        frames = [(env.reset(seed=0), bare.reset(seed=0))]
        frames += [(env.step(2)[::4], bare.step(2)[::4]) for _ in range(11)]
        assert 0 < sum(info["blanked"] for (_, info), _ in frames) < 12
        for (shown, info), (picture, _) in frames:
            assert shown.dtype == np.uint8
            np.testing.assert_array_equal(shown, 0 * picture if info["blanked"] else picture)

    def test_a_cheetah_without_velocities_has_its_positions(self) -> None:
        env = wrappers.MaskObservation(make(IDS[0]), drop=range(8, 17))
        np.testing.assert_array_equal(env.reset(seed=0)[0], make(IDS[0]).reset(seed=0)[0][:8])

    def test_a_recurrent_agent_trains_on_it(self) -> None:
        venv = DummyVecEnv([lambda: wrappers.FlickerObservation(make(IDS[1]))] * 2)
        model = RecurrentPPO(
            "MlpLstmPolicy",
            VecPreviousAction(VecNormalizeVisible(venv)),
            n_steps=16,
            batch_size=16,
            policy_kwargs={"lstm_hidden_size": 8},
        )
        assert model.learn(64).num_timesteps == 64

"""Images are not normalised unless it is asked for, by make_vec_env and by recipes alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers import FixedLengthEnv
from stable_baselines3.common.torch_layers import NatureCNN

from thrust_pomdp import RecurrentPPO, VecNormalizeVisible, make_vec_env
from thrust_pomdp.experiment.recipes import Recipe
from thrust_pomdp.experiment.vec_envs import _normalized


class Seen(FixedLengthEnv):
    """Shows something of a space."""

    def __init__(self, space: spaces.Space) -> None:
        super().__init__(5, space)


CAMERA = spaces.Box(0, 255, (36, 36, 3), np.uint8)
GYRO = spaces.Box(-20.0, 20.0, (3,), np.float32)
SPACES = {
    "image": CAMERA,
    "channels first": spaces.Box(0, 255, (3, 36, 36), np.uint8),
    "vector": GYRO,
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "float image": spaces.Box(0.0, 1.0, (36, 36, 3), np.float32),
    "number": spaces.Discrete(4),
    "dict": spaces.Dict(camera=CAMERA, gyro=GYRO, mode=spaces.Discrete(3)),
    "dict of images": spaces.Dict(left=CAMERA, right=CAMERA),
}
#: What is normalised by default: all of an observation, none of it, or keys.
NORMALIZED: dict[str, Any] = {
    "image": False, "channels first": False, "vector": True, "bytes": True, "float image": True,
    "number": False, "dict": ["gyro"], "dict of images": False,
}  # fmt: skip


def normalized_by(normalizer: VecNormalizeVisible) -> Any:
    return normalizer.norm_obs and (normalizer.norm_obs_keys or True)


class TestImages:
    """Are left as they are by default, everywhere alike, so that a network sees an image."""

    @staticmethod
    def by_make_vec_env(space: spaces.Space, **options: Any) -> VecNormalizeVisible:
        return make_vec_env(lambda: Seen(space), 2, seed=0, normalize=options or True)

    @staticmethod
    def by_a_recipe(space: spaces.Space, **options: Any) -> VecNormalizeVisible:
        inside = make_vec_env(lambda: Seen(space), 2, seed=0)
        return _normalized(inside, Recipe(n_timesteps=1, normalize=options))

    both = pytest.mark.parametrize("make", [by_make_vec_env, by_a_recipe])

    @both
    @pytest.mark.parametrize("name", SPACES)
    def test_with_all_that_is_no_number_on_a_scale(self, make: Any, name: str) -> None:
        env = make(SPACES[name])
        assert normalized_by(env) == NORMALIZED[name]
        before = SPACES[name]
        if isinstance(before, spaces.Dict):
            untouched = [key for key in before if key not in (NORMALIZED[name] or [])]
            assert all(env.observation_space[key] == before[key] for key in untouched)
        elif not NORMALIZED[name]:
            assert env.observation_space == before

    @both
    @pytest.mark.parametrize("name", ["image", "dict", "dict of images", "number"])
    def test_and_rewards_are_normalised_as_ever(self, make: Any, name: str) -> None:
        env = make(SPACES[name])
        env.reset()
        for _ in range(20):
            rewards = env.step(np.zeros(2, int))[1]
        assert env.ret_rms.count == pytest.approx(40, abs=1e-3)
        assert rewards.tolist() != env.get_original_reward().tolist()
        obs = env.get_original_obs()
        part = "camera" if name == "dict" else "left"
        seen = env.step(np.zeros(2, int))[0]
        original = env.get_original_obs()
        if isinstance(obs, dict):
            seen, original = seen[part], original[part]
        assert (seen.dtype, seen.tobytes()) == (original.dtype, original.tobytes())

    @both
    @pytest.mark.parametrize(
        ("name", "options", "expected"),
        [
            ("image", {"norm_obs": True}, True),
            ("vector", {"norm_obs": False}, False),
            ("dict", {"norm_obs": False}, False),
            ("dict", {"norm_obs_keys": ["camera"]}, ["camera"]),
            ("dict of images", {"norm_obs_keys": ["left"]}, ["left"]),
            ("dict of images", {"norm_obs": True}, ["left", "right"]),
            ("dict", {"norm_obs": True, "clip_obs": 3.0}, ["gyro"]),
            ("dict", {"norm_reward": False}, ["gyro"]),
        ],
    )
    def test_unless_it_is_said_otherwise(
        self, make: Any, name: str, options: dict[str, Any], expected: Any
    ) -> None:
        assert normalized_by(make(SPACES[name], **options)) == expected

    def test_a_camera_gets_the_network_of_a_camera(self) -> None:
        for space, policy in ((CAMERA, "CnnLstmPolicy"), (SPACES["dict"], "MultiInputLstmPolicy")):
            env = make_vec_env(lambda space=space: Seen(space), 1, normalize=True)
            model = RecurrentPPO(policy, env, n_steps=8, batch_size=8,
                                 policy_kwargs={"lstm_hidden_size": 8})  # fmt: skip
            extractor = model.policy.features_extractor
            if policy == "MultiInputLstmPolicy":
                extractor = extractor.extractors["camera"]
            assert type(extractor) is NatureCNN
            model.learn(8)

    def test_options_given_are_not_changed(self) -> None:
        options = {"gamma": 0.9}
        make_vec_env(lambda: Seen(SPACES["dict"]), 1, normalize=options)
        assert options == {"gamma": 0.9}

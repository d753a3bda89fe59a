"""Bits whose 0 is a real value: sensors of them drop out, and networks take what is shown."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from helpers import FixedLengthEnv

from thrust_pomdp import (
    ElementDropoutObservation,
    FlickerObservation,
    GymnasiumVecEnv,
    RecurrentPPO,
    StatefulActor,
)
from thrust_pomdp.wrappers import vector

IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
SPACES = {
    "5": spaces.MultiBinary(5),
    "42": spaces.MultiBinary(42),
    "43": spaces.MultiBinary(43),
    "60": spaces.MultiBinary(60),
    "200": spaces.MultiBinary(200),
    "numbers": spaces.MultiDiscrete([2] * 45, dtype=np.int8),
    "2-D": spaces.MultiBinary((3, 4)),
    "3-D": spaces.MultiBinary((2, 3, 4)),
    "5 beside an image": spaces.Dict(bits=spaces.MultiBinary(5), camera=IMAGE),
    "200 beside an image": spaces.Dict(bits=spaces.MultiBinary(200), camera=IMAGE),
    "2-D beside an image": spaces.Dict(bits=spaces.MultiBinary((3, 4)), camera=IMAGE),
}
WRAPPERS = [
    (FlickerObservation, vector.FlickerObservation),
    (ElementDropoutObservation, vector.ElementDropoutObservation),
]


def make(space: spaces.Space) -> FixedLengthEnv:
    # Spaces draw from generators of their own.
    return FixedLengthEnv(5, copy.deepcopy(space))


def same_step(space: spaces.Space, n_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: make(space)] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def parts(obs) -> dict[str, np.ndarray]:
    return obs if isinstance(obs, dict) else {"bits": obs}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize(("single", "of_vector"), WRAPPERS)
class TestEndToEnd:
    def test_recurrent_ppo_trains_a_window(self, name, single, of_vector):
        space = SPACES[name]
        policy = "MultiInputLstmPolicy" if isinstance(space, spaces.Dict) else "MlpLstmPolicy"
        env = single(make(space))
        kwargs = {"lstm_hidden_size": 4}
        model = RecurrentPPO(policy, env, n_steps=8, n_epochs=1, seed=0, policy_kwargs=kwargs)
        model.learn(8)
        stored = parts(model.rollout_buffer.observations)["bits"]
        assert set(np.unique(stored)) == {0, 1, 2}

    def test_frames_lie_in_the_space_and_are_of_its_type(self, name, single, of_vector):
        env = single(make(SPACES[name]))
        for seed in range(4):
            obs, _ = env.reset(seed=seed)
            assert obs in env.observation_space
            for key, part in parts(obs).items():
                shown = env.observation_space
                assert part.dtype == (shown[key] if isinstance(shown, spaces.Dict) else shown).dtype

    def test_single_environments_and_the_vector_agree(self, name, single, of_vector):
        env = single(make(SPACES[name]))
        envs = of_vector(same_step(SPACES[name], 1))
        assert envs.single_observation_space == env.observation_space
        assert type(envs.single_observation_space) is type(env.observation_space)
        one, told = env.reset(seed=3)
        several, infos = envs.reset(seed=3)
        for step in range(4):
            if step > 0:
                one, _, _, _, told = env.step(0)
                several, _, _, _, infos = envs.step([0])
            for key, part in parts(one).items():
                batch = parts(several)[key]
                assert np.array_equal(batch[0], part)
                assert batch.dtype == part.dtype
            flags = told["blanked"]
            for key in flags if isinstance(flags, dict) else ():
                assert np.array_equal(infos["blanked"][key][0], flags[key])
            if not isinstance(flags, dict):
                assert np.array_equal(infos["blanked"][0], flags)


@pytest.mark.parametrize("shape", [(5,), (3, 4)])
class TestSymbols:
    def test_a_bit_that_is_shown_is_itself_and_a_blank_is_neither(self, shape):
        env = ElementDropoutObservation(make(spaces.MultiBinary(shape)))
        shown = set()
        for seed in range(5):
            obs, info = env.reset(seed=seed)
            assert (obs[info["blanked"]] == 2).all()
            shown |= set(obs[~info["blanked"]].tolist())
        assert shown == {0, 1}

    def test_layers_on_one_another_add_a_symbol_each(self, shape):
        env = FlickerObservation(make(spaces.MultiBinary(shape)), 1.0)
        env = FlickerObservation(env, 1.0)
        obs, _ = env.reset(seed=0)
        assert (obs == 3).all()
        assert obs in env.observation_space

    def test_they_are_no_box_that_zeros_could_blank(self, shape):
        env = FlickerObservation(make(spaces.MultiBinary(shape)))
        with pytest.raises(ValueError, match="blank_value is for Box observations"):
            FlickerObservation(env, blank_value=0)

    def test_the_space_survives_pickling(self, shape):
        space = FlickerObservation(make(spaces.MultiBinary(shape))).observation_space
        again = pickle.loads(pickle.dumps(space))
        assert again == space
        assert type(again) is type(space)

    def test_an_actor_shows_readings_as_the_environment_does(self, shape):
        env = GymnasiumVecEnv(vector.FlickerObservation(same_step(spaces.MultiBinary(shape), 1)))
        model = RecurrentPPO("MlpLstmPolicy", env, n_steps=8, policy_kwargs={"lstm_hidden_size": 4})
        model.learn(8)
        seen = []
        model.predict = lambda obs, *args: (seen.append(obs), (np.zeros(1), None))[1]
        bits = np.ones(shape, np.int8)
        for actor in (StatefulActor.like(model, env), StatefulActor(model)):
            actor.act(bits, blanked=False)
            actor.act(bits, blanked=True)
        assert [np.unique(obs).tolist() for obs in seen] == [[1], [2]] * 2


def test_a_wrapper_between_is_made_from_a_spec():
    env = gym.make("CartPole-v1")
    env = gym.wrappers.TransformObservation(
        env, lambda obs: (obs > 0).astype(np.int8).reshape(2, 2), spaces.MultiBinary((2, 2))
    )
    assert FlickerObservation(env).reset(seed=0)[0].shape == (2, 2)

"""Acting on raw observations: what the model sees is what its training environment would show."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import sharpen
from sensor_envs import ACTIONS, AnyEnv
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    unwrap_vec_normalize,
)

from thrust_pomdp import (
    FlickerObservation,
    MaskObservation,
    RecurrentPPO,
    StatefulActor,
    VecNormalizeVisible,
    VecPreviousAction,
    VecPreviousReward,
    VecPrivilegedInfo,
    VecUnprivileged,
    make_vec_env,
)
from thrust_pomdp.deploy import observation_pipeline
from thrust_pomdp.experiment.vec_envs import VecEndingEpisodes, VecScaleReward
from thrust_pomdp.vec_env.make import layered
from thrust_pomdp.vec_env.previous import layers
from thrust_pomdp.vec_env.stacked import VecStackedFrames

FLICKERING = "FlickeringCartPole-v0"
SMALL = {"lstm_hidden_size": 8}
BOTH = {"previous_action": True, "previous_reward": True}
GYRO = {"norm_obs_keys": ["gyro"]}


def blinking(observation: str, action: str) -> Callable[[], Any]:
    """Any environment, of which half of the frames are blank; in a dict each key for itself."""
    if observation != "dict":
        return lambda: FlickerObservation(AnyEnv(observation, action), 0.5, burst_len=3)
    return lambda: FlickerObservation(
        MaskObservation(AnyEnv("dict", action), drop=["camera"]), 0.5, separately=True
    )


def trained(env: VecEnv, policy: str = "MlpLstmPolicy") -> RecurrentPPO:
    """A model, whose actions depend on what it sees, and a normaliser that has seen something."""
    model = RecurrentPPO(
        policy, env, n_steps=16, batch_size=16, n_epochs=1, seed=0,
        policy_kwargs={"lstm_hidden_size": 8},
    )  # fmt: skip
    model.learn(16 * env.num_envs)
    sharpen(model, 30.0)
    return model


class Spy:
    """A model that remembers what it was shown."""

    def __init__(self, model: Any) -> None:
        self.model, self.seen = model, []
        self.observation_space, self.action_space = model.observation_space, model.action_space

    def predict(self, obs: Any, state: Any, episode_start: Any, deterministic: bool) -> Any:
        self.seen.append(obs)
        return self.model.predict(obs, state, episode_start, deterministic)


def loop_in_the_stack(model: Any, env: VecEnv, n_steps: int = 60) -> tuple[list, list]:
    """What a model sees and does in the environment that it was trained on."""
    model.policy.seed_actions(0)
    env.seed(7)
    obs, dones, actor, seen, done = env.reset(), None, StatefulActor(model), [], []
    for _ in range(n_steps):
        seen.append(obs)
        done.append(actor.act(obs, dones))
        obs, _, dones, _ = env.step(done[-1])
    return seen, done


def loop_on_raw(actor: StatefulActor, env: VecEnv, n_steps: int = 60) -> list:
    """What an actor does that is given what the innermost environment returns."""
    getattr(actor.model, "model", actor.model).policy.seed_actions(0)  # of what a Spy watches
    env.seed(7)
    obs, dones, rewards, done = env.reset(), None, None, []
    flags = [info.get("blanked") for info in env.reset_infos]
    for _ in range(n_steps):
        done.append(actor.act(obs, dones, reward=rewards, blanked=flags))
        obs, rewards, dones, infos = env.step(done[-1])
        told = [env.reset_infos[i] if dones[i] else infos[i] for i in range(env.num_envs)]
        flags = [info.get("blanked") for info in told]
    return done


def frozen(env: VecEnv) -> VecEnv:
    normalizer = unwrap_vec_normalize(env)
    if normalizer is not None:
        normalizer.training = normalizer.norm_reward = False
    return env


def compare(observation: str, action: str, n_envs: int, policy: str, **senses: Any) -> None:
    """Compare the loops in the training's environment and on raw observations, to the bit."""
    make = blinking(observation, action)
    env = layered(DummyVecEnv([make] * n_envs), **senses)
    model = trained(env, policy)
    seen, done = loop_in_the_stack(model, frozen(env))
    assert len({np.asarray(a).tobytes() for a in done}) > 1
    for make_actor in (StatefulActor.like, by_name):
        spy = Spy(model)
        actor = make_actor(spy, env)
        again = loop_on_raw(actor, DummyVecEnv([make] * n_envs))
        np.testing.assert_equal(spy.seen, seen)
        np.testing.assert_equal(again, done)


def by_name(model: Any, env: VecEnv) -> StatefulActor:
    """An actor that is told by keywords what is around the environment."""
    arguments: dict[str, Any] = {}
    for layer in layers(env):
        if isinstance(layer, VecFrameStack):
            arguments["frame_stack"] = layer.stacked_obs.n_stack
        elif isinstance(layer, VecNormalize):
            arguments["normalizer"] = pickle.loads(pickle.dumps(layer))
        elif isinstance(layer, (VecPreviousAction, VecPreviousReward)):
            arguments[f"previous_{layer.appends}"] = True
    return StatefulActor(model, **arguments)


@pytest.mark.parametrize("n_envs", [1, 3])
class TestEqualsTheTrainingStack:
    @pytest.mark.parametrize("action", [kind for kind in ACTIONS if kind != "shifted number"])
    def test_for_every_kind_of_action(self, action: str, n_envs: int) -> None:
        compare("vector", action, n_envs, "MlpLstmPolicy", normalize=True, **BOTH)

    @pytest.mark.parametrize(
        ("observation", "normalize"), [("image", False), ("numbers", False), ("dict", GYRO)]
    )
    def test_for_every_kind_of_observation(
        self, observation: str, normalize: Any, n_envs: int
    ) -> None:
        compare(observation, "number", n_envs, "MultiInputLstmPolicy", normalize=normalize, **BOTH)

    @pytest.mark.parametrize(
        ("observation", "policy", "senses"),
        [
            ("vector", "MlpLstmPolicy", {"normalize": True, **BOTH}),
            ("image", "CnnLstmPolicy", {}),
            ("image", "MultiInputLstmPolicy", BOTH),
        ],
    )
    def test_for_stacked_frames(
        self, observation: str, policy: str, senses: dict[str, Any], n_envs: int
    ) -> None:
        compare(observation, "number", n_envs, policy, frame_stack=3, **senses)


class TestOneEnvironment:
    def test_in_gymnasiums_form_equals_a_vector_of_one(self) -> None:
        make = blinking("vector", "vector")
        env = layered(DummyVecEnv([make]), normalize=True, frame_stack=2, **BOTH)
        model = trained(env)
        seen, done = loop_in_the_stack(model, frozen(env))
        spy = Spy(model)
        actor, raw = StatefulActor.like(spy, env), make()
        model.policy.seed_actions(0)
        (obs, info), reward, n_episodes = raw.reset(seed=7), None, 1
        for action in done:
            mine = actor.act(obs, reward=reward, blanked=info["blanked"])
            assert mine.tobytes() == action[0].tobytes()
            obs, reward, terminated, truncated, info = raw.step(mine)
            if terminated or truncated:
                n_episodes += 1
                obs, info = raw.reset()
                actor.reset()
        assert n_episodes > 3
        np.testing.assert_equal(np.stack(spy.seen), np.stack(seen)[:, 0])

    def test_from_files_in_three_lines(self, tmp_path: Path) -> None:
        env = make_vec_env(FLICKERING, 2, normalize=True, previous_action=True)
        model = trained(env)
        model.save(tmp_path / "model.zip")
        model.get_vec_normalize_env().save(str(tmp_path / "normalizer.pkl"))

        again = RecurrentPPO.load(tmp_path / "model.zip")
        actor = StatefulActor(
            again, True, normalizer=tmp_path / "normalizer.pkl", previous_action=True
        )
        readings = [[0.01, 0.02 * step, 0.3 - 0.03 * step, -0.01] for step in range(20)]
        done = [int(actor.act(reading)) for reading in readings]

        obs = np.array(readings, np.float32)
        obs, state, last, expected = frozen(env).normalize_obs(obs), None, np.zeros(2), []
        for row in obs:
            action, state = model.predict(np.append(row, last), state, deterministic=True)
            last = np.eye(2)[action]
            expected.append(int(action))
        assert done == expected
        assert set(done) == {0, 1}

    def test_a_model_without_memory_can_act_too(self) -> None:
        env = make_vec_env(FLICKERING, 2, previous_action=True, previous_reward=True)
        actor = StatefulActor.like(
            spy := Spy(PPO("MlpPolicy", env, n_steps=16, batch_size=32)), env, True
        )
        last = [0.0, 0.0]
        for step in range(3):
            action = actor.act(np.ones(4, np.float32), reward=float(step))
            assert spy.seen[-1].tolist() == [1.0, 1.0, 1.0, 1.0, *last, step]
            last = np.eye(2)[action].tolist()


class TestWhatWasDone:
    def actor(self, **senses: Any) -> StatefulActor:
        env = layered(DummyVecEnv([lambda: AnyEnv("vector", "vector")] * 2), **senses)
        model = RecurrentPPO(
            "MlpLstmPolicy", env, n_steps=8, batch_size=8, policy_kwargs=SMALL, seed=0
        )
        return StatefulActor.like(Spy(model), env)

    def test_can_be_told_where_it_was_something_else(self) -> None:
        actor, obs = self.actor(previous_action=True), np.ones((2, 3), np.float32)
        actor.act(obs)
        applied = np.array([[0.25, -0.5], [9.0, 0.0]])
        actor.act(obs, action=applied, episode_start=[False, False])
        assert actor.model.seen[-1][:, 3:].tolist() == [[0.25, -0.5], [1.0, 0.0]]
        actor.act(obs, action=applied, episode_start=[True, False])
        assert actor.model.seen[-1][:, 3:].tolist() == [[0.0, 0.0], [1.0, 0.0]]

    def test_is_remembered_though_the_caller_overwrites_the_actions(self) -> None:
        actor, obs = self.actor(previous_action=True), np.ones((2, 3), np.float32)
        actions = actor.act(obs)
        expected = actions.tolist()
        actions[:] = 0.0
        actor.act(obs)
        assert actor.model.seen[-1][:, 3:].tolist() == expected

    def test_is_forgotten_at_a_reset_with_everything_else(self) -> None:
        actor = self.actor(previous_action=True, previous_reward=True, frame_stack=2)
        obs = np.ones((2, 3), np.float32)
        actor.act(obs)
        actor.act(obs, reward=[3.0, 4.0])
        assert actor.model.seen[-1][:, [6, 11]].tolist() == [[1.0, 3.0], [1.0, 4.0]]
        actor.reset()
        actor.act(obs)
        np.testing.assert_equal(actor.model.seen[-1], actor.model.seen[0])
        actor.reset()
        actor.act(obs[:1])
        np.testing.assert_equal(actor.model.seen[-1], actor.model.seen[0][:1])


class TestLayers:
    def test_statistics_are_not_updated_and_are_those_of_the_moment(self) -> None:
        env = make_vec_env(FLICKERING, 2, normalize=True)
        model, normalizer = trained(env), unwrap_vec_normalize(env)
        actor = StatefulActor.like(spy := Spy(model), env)
        before = normalizer.obs_rms.mean.copy()
        actor.act(np.ones(4, np.float32))
        np.testing.assert_array_equal(normalizer.obs_rms.mean, before)
        normalizer.obs_rms.mean += 1.0
        actor.act(np.ones(4, np.float32))
        assert (spy.seen[0] > spy.seen[1]).all()

    def test_a_true_zero_is_told_from_a_blank_by_its_flag(self) -> None:
        env = make_vec_env(FLICKERING, 2, normalize=True)
        actor = StatefulActor.like(spy := Spy(trained(env)), env)
        zeros = np.zeros((2, 4), np.float32)
        for flags in (np.array([True, False]), [True, False]):
            actor.act(zeros, blanked=flags)
            assert spy.seen[-1].any(axis=1).tolist() == [False, True]
        with pytest.warns(UserWarning, match="Pass blanked=info"):
            actor.act(zeros)
        assert not spy.seen[-1].any()
        actor.act(zeros)
        actor.reset()
        for flag in (True, False, np.True_, np.array([True, True, False, True])):
            actor.act(zeros[0], blanked=flag)
            assert spy.seen[-1].any() == (not np.all(flag))

    def test_what_does_not_touch_observations_is_passed_and_images_are_turned(self) -> None:
        make = blinking("image", "number")
        env = VecTransposeImage(VecMonitor(VecCheckNan(DummyVecEnv([make] * 2))))
        env = VecFrameStack(env, 2)
        seen, _ = loop_in_the_stack(model := trained(env, "CnnLstmPolicy"), env, 10)
        loop_on_raw(StatefulActor.like(spy := Spy(model), env), DummyVecEnv([make] * 2), 10)
        np.testing.assert_equal(spy.seen, seen)

    def test_a_plain_normaliser_takes_blank_frames_for_data_here_too(self) -> None:
        make = blinking("vector", "number")
        env = VecPreviousAction(VecNormalize(DummyVecEnv([make] * 2)))
        model = trained(env)
        seen, _ = loop_in_the_stack(model, frozen(env), 10)
        loop_on_raw(StatefulActor.like(spy := Spy(model), env), DummyVecEnv([make] * 2), 10)
        np.testing.assert_equal(spy.seen, seen)

    def test_a_wrapper_of_ones_own_is_refused_until_it_is_told_what_it_does(self) -> None:
        class Doubled(VecEnvWrapper):
            def reset(self) -> Any:
                return 2 * self.venv.reset()

            def step_wait(self) -> Any:
                obs, *others = self.venv.step_wait()
                return (2 * obs, *others)

        env = Doubled(make_vec_env(FLICKERING, 1))
        model = RecurrentPPO("MlpLstmPolicy", env, n_steps=8, batch_size=8, policy_kwargs=SMALL)
        with pytest.raises(ValueError, match="env has a Doubled around it, and what that does"):
            StatefulActor.like(model, env)
        observation_pipeline.layer_of.register(Doubled, lambda wrapper: lambda obs, moment: 2 * obs)
        StatefulActor.like(spy := Spy(model), env).act(np.ones(4, np.float32))
        assert spy.seen[0].tolist() == [2.0] * 4


def make_dict_model(env: VecEnv) -> RecurrentPPO:
    arguments = {"n_steps": 8, "batch_size": 8, "policy_kwargs": SMALL, "seed": 0}
    return RecurrentPPO("MultiInputLstmPolicy", env, **arguments)


@pytest.fixture(scope="module")
def model() -> RecurrentPPO:
    env = make_vec_env(FLICKERING, 1, normalize=True, previous_action=True, previous_reward=True)
    return RecurrentPPO("MlpLstmPolicy", env, n_steps=8, batch_size=8, policy_kwargs=SMALL, seed=0)


#: Wrappers of which it is known what they do to observations, and what makes one.
KNOWN: dict[str, tuple[type, Callable[[Any, VecEnv], VecEnv]]] = {
    "VecCheckNan": (VecCheckNan, lambda cls, venv: cls(venv)),
    "VecMonitor": (VecMonitor, lambda cls, venv: cls(venv)),
    "VecNormalize": (VecNormalize, lambda cls, venv: cls(venv)),
    "VecNormalizeVisible": (VecNormalizeVisible, lambda cls, venv: cls(venv)),
    "VecFrameStack": (VecFrameStack, lambda cls, venv: cls(venv, 2)),
    "VecStackedFrames": (VecStackedFrames, lambda cls, venv: cls(venv, 2)),
    "VecPreviousAction": (VecPreviousAction, lambda cls, venv: cls(venv)),
    "VecPreviousReward": (VecPreviousReward, lambda cls, venv: cls(venv)),
    "VecUnprivileged": (VecUnprivileged, lambda cls, venv: cls(venv)),
    "VecPrivilegedInfo": (VecPrivilegedInfo, lambda cls, venv: cls(venv)),
    "VecScaleReward": (VecScaleReward, lambda cls, venv: cls(venv, 2.0)),
    "VecEndingEpisodes": (VecEndingEpisodes, lambda cls, venv: cls(venv, 100)),
}


@pytest.mark.filterwarnings("ignore:The environment is already wrapped with a `Monitor`")
class TestWrappersDerivedFromKnownOnes:
    """A subclass may show anything: it is not taken for the class that it comes from."""

    def layers_of(self, name: str, change: Callable[[type], type]) -> list[Any]:
        cls, make = KNOWN[name]
        venv = make_vec_env(FLICKERING, 2, env_kwargs={"expose_state": True})
        return observation_pipeline.layers_of(make(change(cls), venv))

    @pytest.mark.parametrize("name", KNOWN)
    @pytest.mark.parametrize("method", ["reset", "step_wait"])
    def test_are_refused_where_they_show_something_else(self, name: str, method: str) -> None:
        def change(cls: type) -> type:
            return type("Mine", (cls,), {method: lambda self: getattr(cls, method)(self)})

        with pytest.raises(ValueError, match="a Mine around it, and what that does"):
            self.layers_of(name, change)

    @pytest.mark.parametrize("name", KNOWN)
    def test_are_known_where_they_show_the_same(self, name: str) -> None:
        derived = self.layers_of(name, lambda cls: type("Mine", (cls,), {"note": 1}))
        plain = self.layers_of(name, lambda cls: cls)
        assert list(map(type, derived)) == list(map(type, plain))

    def test_are_refused_where_an_object_was_changed(self) -> None:
        venv = VecMonitor(make_vec_env(FLICKERING, 2))
        venv.reset = lambda: 0.0 * venv.venv.reset()
        with pytest.raises(ValueError, match="a VecMonitor around it, and what that does"):
            StatefulActor.like(trained(make_vec_env(FLICKERING, 2)), venv)

    def test_are_what_they_are_registered_for(self) -> None:
        class Doubled(VecMonitor):
            def step_wait(self) -> Any:
                obs, *rest = super().step_wait()
                return (2 * obs, *rest)

        observation_pipeline.layer_of.register(Doubled, lambda wrapper: lambda obs, moment: 2 * obs)
        assert len(observation_pipeline.layers_of(Doubled(make_vec_env(FLICKERING, 2)))) == 1


class TestBadArguments:
    def test_environments_that_are_none(self, model: RecurrentPPO) -> None:
        with pytest.raises(ValueError, match="env must be the VecEnv that the model was trained"):
            StatefulActor.like(model, AnyEnv())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"previous_action": 1}, "previous_action must be True or False, got 1"),
            ({"previous_reward": "no"}, "previous_reward must be True or False, got 'no'"),
            ({"normalizer": 3}, "got 3: neither a file nor a normalizer"),
            ({"frame_stack": 0}, "frame_stack must be at least 1, got 0"),
            ({"normalizer": __file__}, "normalizer must be a VecNormalizeVisible or VecN"),
        ],
    )
    def test_keywords(self, model: RecurrentPPO, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            StatefulActor(model, **arguments)

    def test_a_pickle_of_something_else(self, model: RecurrentPPO, tmp_path: Path) -> None:
        (tmp_path / "other.pkl").write_bytes(pickle.dumps([1]))
        with pytest.raises(ValueError, match=r"got .*other\.pkl: it holds a list"):
            StatefulActor(model, normalizer=tmp_path / "other.pkl")
        with pytest.raises(FileNotFoundError):
            StatefulActor(model, normalizer=tmp_path / "none.pkl")

    @pytest.mark.parametrize(
        ("obs", "arguments", "message"),
        [
            (np.ones((2, 4)), {"reward": [0.0, 0.0]}, r"obs must be of 1 environment\(s\) as be"),
            (np.ones(4), {}, "reward must be given: the model was trained seeing its previous rew"),
            (np.ones(4), {"reward": [1.0, 2.0]}, r"reward must be of shape \(1,\), got \(2,\)"),
            (np.ones(4), {"reward": 1.0, "action": [1, 0]}, r"action must be of shape \(1,\)"),
            (np.ones(4), {"reward": 1.0, "episode_start": [1, 0]}, "episode_start must be of"),
            (np.ones(3), {"reward": 1.0}, r"the normalizer takes an array of shape \(4,\), got"),
            (np.ones((1, 2, 4)), {}, "obs must be one observation or a batch of them, of 1 axes"),
            ((np.ones(4), {}), {}, "obs must be an observation for Box"),
            ({"a": np.ones(4)}, {}, "obs must be an observation for Box"),
        ],
    )  # fmt: skip
    def test_observations_and_what_comes_with_them(
        self, model: RecurrentPPO, obs: Any, arguments: dict[str, Any], message: str
    ) -> None:
        actor = StatefulActor.like(model, model.get_env())
        actor.act(np.ones(4, np.float32))
        with pytest.raises(ValueError, match=message):
            actor.act(obs, **arguments)

    def test_dicts_of_other_keys_or_shapes(self) -> None:
        env = DummyVecEnv([blinking("dict", "number")])
        dicts = make_dict_model(env)
        obs = {key: part[0] for key, part in env.reset().items()}
        with pytest.raises(ValueError, match=r"the model takes .*, got .*'previous_action'"):
            StatefulActor(dicts, previous_action=True).act(obs)
        actor = StatefulActor.like(dicts, env)
        with pytest.raises(ValueError, match=r"an array 'gyro' of shape \(3,\), .*got .*\(2,\)"):
            actor.act({**obs, "gyro": np.ones(2, np.float32)})
        for other in ({"gyro": obs["gyro"]}, {**obs, "other": obs["gyro"]}):
            with pytest.raises(ValueError, match="the model takes an array 'bits' of shape"):
                actor.act(other)

    def test_senses_that_the_model_does_not_have(self, model: RecurrentPPO) -> None:
        with pytest.raises(ValueError, match=r"the model takes an array of shape \(7,\), got .*6"):
            StatefulActor(model, previous_action=True).act(np.ones(4, np.float32))


class TestPrivilegedCritics:
    """What only the critic sees is no part of acting."""

    def test_raw_observations_are_enough(self):
        inside = make_vec_env(
            "FlickeringCartPole-v0", 3, seed=1, env_kwargs={"expose_state": True},
            normalize=True, previous_action=True,
        )  # fmt: skip
        env = VecPrivilegedInfo(inside)
        model = trained(env, "AsymmetricLstmPolicy")
        _, done = loop_in_the_stack(model, frozen(env))
        assert len({np.asarray(a).tobytes() for a in done}) > 1
        raw = list(layers(env))[-1].venv
        actors = [
            StatefulActor.like(model, env),
            StatefulActor(model, normalizer=unwrap_vec_normalize(env), previous_action=True),
        ]
        for actor in actors:
            np.testing.assert_array_equal(loop_on_raw(actor, raw), done)

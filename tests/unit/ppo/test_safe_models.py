"""Models, normalisers and actors in files that run nothing: what comes back is what was saved."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import FixedLengthEnv, fixed_length_envs
from maskable_envs import ChangingMaskEnv
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize
from torch import nn

import thrust_pomdp
from thrust_pomdp import (
    MaskableRecurrentPPO,
    MlpLstmPolicy,
    RecurrentPPO,
    StatefulActor,
    VecNormalizeVisible,
    VecPreviousAction,
    VecPreviousReward,
    VecPrivilegedInfo,
)
from thrust_pomdp.deploy.observation_layers import Previous
from thrust_pomdp.recurrent import LRU, GTrXL, MinGRU
from thrust_pomdp.recurrent.protocol import Memory, StatePart
from thrust_pomdp.vec_env.normalizer_files import read_normalizer, write_normalizer

IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
OBSERVATIONS = {
    "vector": VECTOR,
    "unbounded": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "discrete": spaces.Discrete(4),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(3),
    "image": IMAGE,
    "dict": spaces.Dict([("z", VECTOR), ("a", spaces.Discrete(3)), ("camera", IMAGE)]),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(2),
    "box": spaces.Box(-1.0, 2.0, (2,), np.float32),
}
MEMORIES = {
    "lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN, "mingru": MinGRU, "lru": LRU, "gtrxl": GTrXL,
}  # fmt: skip
POLICY = {"image": "CnnLstmPolicy", "dict": "MultiInputLstmPolicy"}
SMALL = {"lstm_hidden_size": 8, "net_arch": {"pi": [8], "vf": [8]}}


def settings(**more: Any) -> dict[str, Any]:
    return {"n_steps": 8, "batch_size": 16, "n_epochs": 2, "seed": 3, "device": "cpu", **more}


def envs(obs: str, action: str) -> VecEnv:
    return fixed_length_envs(
        5, 7, observation_space=OBSERVATIONS[obs], action_space=ACTIONS[action]
    )


def masked_envs() -> VecEnv:
    return DummyVecEnv([lambda: ChangingMaskEnv(5, spaces.Discrete(3))] * 2)


def a_model(obs: str = "vector", action: str = "discrete", **more: Any) -> RecurrentPPO:
    kwargs = {**SMALL, **more.pop("policy_kwargs", {})}
    if obs in POLICY:
        small = {"features_dim": 8} if obs == "image" else {"cnn_output_dim": 8}
        kwargs["features_extractor_kwargs"] = small
    policy = POLICY.get(obs, "MlpLstmPolicy")
    model = RecurrentPPO(policy, envs(obs, action), policy_kwargs=kwargs, **settings(**more))
    return model.learn(16)


def through_file(model: Any, **kwargs: Any) -> Any:
    file = io.BytesIO()
    model.save_safe(file)
    file.seek(0)
    return type(model).load_safe(file, device="cpu", **kwargs)


def draw(space: spaces.Space, n_envs: int) -> Any:
    drawn = [space.sample() for _ in range(n_envs)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([obs[key] for obs in drawn]) for key in space}
    return np.stack(drawn)


def assert_acts_alike(one: Any, other: Any, n_steps: int = 1000, masks: Any = None) -> None:
    """Actions and states are the same bits, most likely and sampled ones."""
    space = one.observation_space
    space.seed(0)
    states: list[Any] = [None, None]
    more = {} if masks is None else {"action_masks": masks}
    for step in range(n_steps):
        obs, starts = draw(space, 2), np.array([step % 9 == 0, step % 7 == 0])
        found = []
        for number, model in enumerate((one, other)):
            th.manual_seed(step)
            model.policy.seed_actions(step)
            if getattr(model, "use_sde", False):
                model.policy.reset_noise()
            actions, states[number] = model.predict(
                obs, states[number], starts, deterministic=step % 2 == 0, **more
            )
            found.append(actions)
        np.testing.assert_array_equal(*found)
        np.testing.assert_equal(states[0], states[1])


def assert_same_parameters(one: Any, other: Any) -> None:
    mine, others = one.get_parameters(), other.get_parameters()
    assert mine.keys() == others.keys()
    for name, tensor in mine["policy"].items():
        assert th.equal(tensor, others["policy"][name]), name
    optimizers = mine["policy.optimizer"], others["policy.optimizer"]
    assert optimizers[0]["param_groups"] == optimizers[1]["param_groups"]
    for index, state in optimizers[0]["state"].items():
        for name, part in state.items():
            assert th.equal(th.as_tensor(part), th.as_tensor(optimizers[1]["state"][index][name]))


def assert_same_attributes(one: Any, other: Any) -> None:
    """As SB3's ``load`` restores them, one by one."""
    left_out = {"env", "policy", "rollout_buffer", "_logger", "_vec_normalize_env"}
    if one.env is None:  # no memory of environments that there are not
        left_out.add("_last_lstm_states")
    else:  # both have been trained since
        left_out.add("start_time")
    assert vars(one).keys() == vars(other).keys()
    for name in vars(one).keys() - left_out:
        mine, others = getattr(one, name), getattr(other, name)
        if name in ("_last_obs", "_last_original_obs") and isinstance(mine, dict):
            mine, others = dict(mine), dict(others)
        assert type(mine) is type(others), name
        if name == "_action_noise":
            assert mine.get_state() == others.get_state()
        elif callable(mine) and not isinstance(mine, type):
            assert [mine(x) for x in (1, 0.3, 0)] == [others(x) for x in (1, 0.3, 0)], name
        elif name == "_last_lstm_states":
            parts = zip(itertools.chain(*mine), itertools.chain(*others), strict=True)
            assert all(th.equal(ours, theirs) for ours, theirs in parts)
        elif name.startswith("_last"):
            np.testing.assert_equal(mine, others, err_msg=name)
        else:
            assert mine == others or repr(mine) == repr(others), name


# Each space, action space and memory, and each memory with each kind of action.
CASES = [
    *((obs, "discrete", "lstm") for obs in OBSERVATIONS),
    *((("vector", action, memory)) for action in ACTIONS for memory in MEMORIES),
    ("dict", "box", "gru"),
]
EVERY_CASE = sorted(set(itertools.product(OBSERVATIONS, ACTIONS, MEMORIES)) - set(CASES))


def check_round_trip(obs: str, action: str, memory: str, tmp_path: Path) -> None:
    model = a_model(obs, action, policy_kwargs={"rnn_class": MEMORIES[memory]})
    again = through_file(model)
    assert_same_parameters(model, again)
    assert_acts_alike(model, again)
    model.save(tmp_path / "model.zip")
    by_zip = RecurrentPPO.load(tmp_path / "model.zip", device="cpu")
    assert_same_attributes(by_zip, again)
    found = []
    for load in (
        lambda: RecurrentPPO.load(tmp_path / "model.zip", env=envs(obs, action), device="cpu"),
        lambda: through_file(model, env=envs(obs, action)),
    ):
        loaded = load()
        loaded.env.seed(1)
        found.append(loaded.learn(32, reset_num_timesteps=False))
    assert_same_attributes(*found)
    assert_same_parameters(*found)
    assert not th.equal(found[0].policy.action_net.weight, model.policy.action_net.weight)


class TestModels:
    @pytest.mark.parametrize(("obs", "action", "memory"), CASES)
    def test_come_back_and_go_on_bit_for_bit(self, obs, action, memory, tmp_path):
        check_round_trip(obs, action, memory, tmp_path)

    @pytest.mark.slow
    @pytest.mark.parametrize(("obs", "action", "memory"), EVERY_CASE)
    def test_come_back_whatever_they_are_of(self, obs, action, memory, tmp_path):
        check_round_trip(obs, action, memory, tmp_path)

    @pytest.mark.parametrize(
        "more",
        [
            {"use_sde": True, "sde_sample_freq": 4},
            {"window_state": "carry"},
            {"sequence_length": 4, "burn_in": 2, "refresh_states": True},
            {"learning_rate": LinearSchedule(1e-3, 1e-4, 0.9), "clip_range": 0.1},
            {"clip_range_vf": LinearSchedule(0.3, 0.1, 1.0), "target_kl": 0.5},
            {"batch_size": None, "ent_coef": 0.01, "max_grad_norm": float("inf")},
            {"policy_kwargs": {"n_lstm_layers": 2, "lstm_kwargs": {"bias": False}}},
            {
                "policy_kwargs": {
                    "rnn_class": GTrXL,
                    "n_lstm_layers": 2,
                    "lstm_kwargs": {"context": 5, "n_heads": 2, "mlp_size": 3},
                }
            },
            {"policy_kwargs": {"layer_norm": True, "forget_bias": 1.0, "ortho_init": False}},
            {"policy_kwargs": {"net_arch": {"encoder": [8], "pi": [], "vf": [8, 8]}}},
            {"policy_kwargs": {"shared_lstm": True, "enable_critic_lstm": False}},
            {"policy_kwargs": {"enable_critic_lstm": False, "activation_fn": nn.ELU}},
            {"policy_kwargs": {"shared_lstm_critic_gradient": True}},
            {
                "policy_kwargs": {
                    "optimizer_class": th.optim.RMSprop,
                    "optimizer_kwargs": {"momentum": 0.5},
                }
            },
            {"policy_kwargs": {"optimizer_class": th.optim.AdamW}},
        ],
    )
    def test_have_every_setting(self, more, tmp_path):
        action = "box" if "use_sde" in more else "discrete"
        model = a_model(action=action, **more)
        again = through_file(model)
        model.save(tmp_path / "model.zip")
        assert_same_attributes(RecurrentPPO.load(tmp_path / "model.zip", device="cpu"), again)
        assert_same_parameters(model, again)
        assert_acts_alike(model, again, 50)
        found = []
        for loaded in (model, again):
            loaded = through_file(loaded, env=envs("vector", action))
            loaded.env.seed(1)
            found.append(loaded.learn(32, reset_num_timesteps=False))
        assert_same_parameters(*found)

    def test_with_masks(self):
        model = MaskableRecurrentPPO(
            "MlpLstmPolicy",
            masked_envs(),
            policy_kwargs=SMALL,
            **settings(),
        ).learn(16)
        again = through_file(model)
        masks = np.ones((2, model.policy.mask_layout.width), bool)
        masks[:, 0] = False
        assert_acts_alike(model, again, 200, masks)
        assert_same_parameters(model, again)
        file = io.BytesIO()
        model.save_safe(file)
        file.seek(0)
        with pytest.raises(ValueError, match="holds a model of MaskableRecurrentPPO"):
            RecurrentPPO.load_safe(file)

    def test_with_a_critic_that_sees_more(self):
        def make() -> VecEnv:
            venv = thrust_pomdp.make_vec_env(
                "FlickeringCartPole-v0", 2, seed=0, env_kwargs={"expose_state": True}
            )
            return VecPrivilegedInfo(VecNormalizeVisible(venv))

        kwargs = {**SMALL, "grounding_coef": 0.5}
        model = RecurrentPPO("AsymmetricLstmPolicy", make(), policy_kwargs=kwargs, **settings())
        model.learn(64)
        again = through_file(model, env=make())
        assert again.privileged_statistics() == model.privileged_statistics()
        assert again.env.statistics.mean.tolist() == model.env.statistics.mean.tolist()
        assert_acts_alike(model, again, 100)
        with pytest.raises(ValueError, match="put VecPrivilegedInfo around it"):
            through_file(model, env="FlickeringCartPole-v0")

    def test_go_on_in_another_number_of_environments(self):
        again = through_file(a_model(), env=fixed_length_envs(5, 7, 9))
        assert again.learn(48).n_envs == 3

    def test_get_their_environment_later(self):
        model = a_model()
        early, late = through_file(model, env=envs("vector", "discrete")), through_file(model)
        with pytest.raises(ValueError, match="number of environments"):
            late.set_env(fixed_length_envs(5))
        late.set_env(envs("vector", "discrete"))
        for loaded in (early, late):
            loaded.env.seed(1)
            loaded.set_random_seed(5)
            loaded.env.seed(1)
            loaded.learn(32)
        assert_same_parameters(early, late)

    def test_read_their_buffer_before_they_have_an_environment(self):
        again = through_file(a_model())
        assert again.rollout_buffer.observations.shape == (8, 2, 3)

    def test_are_one_file_that_others_read(self, tmp_path):
        from safetensors.numpy import load_file

        model = a_model()
        model.save_safe(tmp_path / "there" / "model")
        (path,) = tmp_path.rglob("*.*")
        assert path.name == "model.safetensors"
        weights = load_file(path)["policy.action_net.weight"]
        np.testing.assert_array_equal(weights, model.policy.action_net.weight.detach().numpy())
        assert_same_parameters(model, RecurrentPPO.load_safe(tmp_path / "there" / "model"))
        with pytest.raises(ValueError, match="use load_safe"):
            RecurrentPPO.load(path)

    def test_of_windows_that_nobody_has_memory_for(self):
        model = a_model()
        model.n_steps = 2**31
        with pytest.raises(ValueError, match=r"window has 2,147,483,648 steps .* pass n_steps"):
            through_file(model)
        assert through_file(model, n_steps=16).n_steps == 16
        model.n_envs, model._last_episode_starts = 2**40, None
        with pytest.raises(ValueError, match="pass n_steps"):
            through_file(model)

    def test_of_half_precision(self):
        model = a_model()
        model.policy.to(th.bfloat16)
        assert through_file(model).policy.value_net.weight.shape == (1, 8)
        file = io.BytesIO()
        model.save_safe(file)
        file.seek(0)
        from thrust_pomdp.array_files import read
        from thrust_pomdp.ppo.vocabulary import RECURRENT, ModelReader

        data, arrays = read(file, "model")
        weights = ModelReader(RECURRENT, arrays).read(data["parameters"]["policy"], "policy")
        assert weights["value_net.weight"].dtype is th.bfloat16
        assert th.equal(weights["value_net.weight"], model.policy.value_net.weight)


class Halved(BaseFeaturesExtractor):
    """Somebody's extractor."""

    def __init__(self, observation_space: spaces.Box, features_dim: int = 4) -> None:
        super().__init__(observation_space, features_dim)
        self.layer = nn.Linear(3, features_dim)
        self.register_buffer("scale", th.rand(features_dim, dtype=th.float64))

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.layer(observations) * self.scale.float()


class Mine(MlpLstmPolicy):
    """Somebody's policy."""

    def __init__(self, *args: Any, note: str = "none", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.note = note


class MyPPO(RecurrentPPO):
    """Somebody's algorithm."""

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return super().learn(*args, **kwargs)


class TestWhatIsTheUsersOwn:
    @pytest.mark.parametrize(
        ("name", "given", "make"),
        [
            ("policy_class", Mine, {"policy": Mine}),
            (
                "features_extractor_class",
                Halved,
                {"policy_kwargs": {"features_extractor_class": Halved}},
            ),
            ("learning_rate", lambda left: 1e-3 * left, {"learning_rate": None}),
            ("clip_range", lambda left: 0.2 * left, {"clip_range": None}),
            (
                "activation_fn",
                type("Swish", (nn.SiLU,), {}),
                {"policy_kwargs": {"activation_fn": None}},
            ),
        ],
    )
    def test_is_named_in_the_program(self, name, given, make, tmp_path):
        make = {"policy": "MlpLstmPolicy", **make}
        kwargs = {**SMALL, **make.pop("policy_kwargs", {})}
        if name in kwargs:
            kwargs[name] = given
        make = {key: given if value is None else value for key, value in make.items()}
        model = RecurrentPPO(
            env=envs("vector", "discrete"), policy_kwargs=kwargs, **{**settings(), **make}
        ).learn(16)
        model.save_safe(tmp_path / "model")
        with pytest.raises(ValueError, match=rf"model.* {name} .*custom_objects=\{{'.*{name}': "):
            RecurrentPPO.load_safe(tmp_path / "model")
        again = RecurrentPPO.load_safe(
            tmp_path / "model", env=envs("vector", "discrete"), custom_objects={name: given}
        )
        assert_same_parameters(model, again)
        assert_acts_alike(model, again, 20)
        assert again.learn(16, reset_num_timesteps=False).num_timesteps == 32

    def test_replaces_what_the_file_has(self):
        again = through_file(a_model(), custom_objects={"learning_rate": 0.125})
        assert again.learning_rate == again.lr_schedule(0.5) == 0.125
        assert through_file(a_model(), n_epochs=7).n_epochs == 7

    def test_of_an_algorithm_of_ones_own(self):
        model = MyPPO("MlpLstmPolicy", envs("vector", "discrete"), **settings()).learn(16)
        again = through_file(model, env=envs("vector", "discrete"))
        assert type(again) is MyPPO
        assert again.learn(16).calls == 2

    def test_an_attribute_of_ones_own(self):
        model = a_model()
        model.notes = [1, (2.5, None), {"at": np.arange(3)}, {3: "three"}]
        notes = through_file(model).notes
        assert notes[:2] == model.notes[:2]
        assert notes[3] == {3: "three"}
        np.testing.assert_array_equal(notes[2]["at"], [0, 1, 2])
        model.helper = object()
        with pytest.raises(ValueError, match="a helper of somebody's own, builtins.object"):
            through_file(model)
        assert through_file(model, custom_objects={"helper": 5}).helper == 5
        file = io.BytesIO()
        model.save_safe(file, exclude=["helper"])
        file.seek(0)
        assert not hasattr(RecurrentPPO.load_safe(file), "helper")

    def test_a_log_outside_of_where_the_program_runs_is_not_the_files_to_choose(self, tmp_path):
        model = a_model()
        for folder, kept in (("logs/here", "logs/here"), ("../logs", None), (str(tmp_path), None)):
            model.tensorboard_log = folder
            if kept is None:
                with pytest.warns(UserWarning, match="which a file may not choose"):
                    assert through_file(model).tensorboard_log is None
            else:
                assert through_file(model).tensorboard_log == kept


def flickering(n_envs: int = 2, **kwargs: Any) -> VecEnv:
    return thrust_pomdp.make_vec_env("FlickeringCartPole-v0", n_envs, seed=0, **kwargs)


class DictEnv(FixedLengthEnv):
    """Observations by key, one of them blanked now and then."""

    def __init__(self) -> None:
        space = spaces.Dict(
            gyro=spaces.Box(-np.inf, np.inf, (2,), np.float32),
            mode=spaces.Box(0, 1, (3,), np.float32),
        )
        super().__init__(6, observation_space=space)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        blanked = {"gyro": self.steps % 3 == 0}
        if blanked["gyro"]:
            obs["gyro"][:] = 0
        return obs, reward, terminated, truncated, {"blanked": blanked}


def dict_envs() -> VecEnv:
    return VecNormalizeVisible(DummyVecEnv([DictEnv, DictEnv]), norm_obs_keys=["gyro"])


def assert_normalises_alike(one: VecNormalize, other: VecNormalize) -> None:
    found = []
    for venv in (one, other):
        venv.seed(4)
        seen = [venv.reset()]
        for step in range(40):
            venv.step_async(np.full(2, step % 2))
            obs, rewards, *_ = venv.step_wait()
            seen += [obs, rewards]
        found.append(seen)
    for mine, others in zip(*found, strict=True):
        np.testing.assert_equal(mine, others)


class TestNormalisers:
    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize(
        ("make", "inside"),
        [
            (lambda: VecNormalizeVisible(flickering(), clip_obs=3.0, gamma=0.9), flickering),
            (lambda: VecNormalizeVisible(flickering(), norm_reward=False), flickering),
            (lambda: VecNormalizeVisible(flickering(), norm_obs=False), flickering),
            (lambda: VecNormalizeVisible(flickering(), zero_is_blank=True), flickering),
            (dict_envs, lambda: DummyVecEnv([DictEnv, DictEnv])),
        ],
    )
    def test_go_on_as_a_pickle_does(self, make, inside, training, tmp_path):
        venv = make()
        venv.reset()
        for _ in range(30):
            venv.step(np.zeros(2, int))
        venv.training = training
        venv.save_safe(tmp_path / "normalizer")
        venv.save(str(tmp_path / "normalizer.pkl"))
        safe = VecNormalizeVisible.load_safe(tmp_path / "normalizer", inside())
        pickled = VecNormalizeVisible.load(str(tmp_path / "normalizer.pkl"), inside())
        known = vars(pickled).keys() - {"old_obs"}
        assert vars(safe).keys() == known
        others = {"obs_rms", "ret_rms", "venv", "_order", "class_attributes", "old_reward"}
        for name in known - others:
            np.testing.assert_equal(getattr(safe, name), getattr(pickled, name), err_msg=name)
        assert_normalises_alike(pickled, safe)

    def test_know_how_their_environments_are_painted(self, tmp_path):
        venv = DummyVecEnv([lambda: gym.make("CartPole-v1", render_mode="rgb_array")])
        made = VecNormalizeVisible(venv)
        made.save_safe(tmp_path / "normalizer")
        loaded = VecNormalizeVisible.load_safe(tmp_path / "normalizer", venv)
        assert loaded.render_mode == made.render_mode == "rgb_array"
        assert loaded.metadata == made.metadata

    def test_of_sb3(self, tmp_path):
        venv = VecNormalize(flickering())
        venv.reset()
        write_normalizer(tmp_path / "plain", venv)
        again = read_normalizer(VecNormalize, tmp_path / "plain")
        again.set_venv(flickering())
        assert type(again) is VecNormalize
        with pytest.raises(ValueError, match="must hold VecNormalizeVisible"):
            VecNormalizeVisible.load_safe(tmp_path / "plain", flickering())

    def test_of_other_observations_are_refused(self, tmp_path):
        VecNormalizeVisible(flickering()).save_safe(tmp_path / "four")
        with pytest.raises((ValueError, AssertionError)):
            VecNormalizeVisible.load_safe(tmp_path / "four", fixed_length_envs(5))

    def test_of_a_class_of_ones_own(self, tmp_path):
        class Own(VecNormalizeVisible):
            pass

        Own(flickering()).save_safe(tmp_path / "own")
        assert type(Own.load_safe(tmp_path / "own", flickering())) is Own

    def test_privileged_statistics(self, tmp_path):
        def make() -> VecPrivilegedInfo:
            return VecPrivilegedInfo(flickering(env_kwargs={"expose_state": True}))

        venv = make()
        venv.reset()
        venv.step(np.zeros(2, int))
        venv.save_safe(tmp_path / "statistics")
        again = make()
        again.load_safe(tmp_path / "statistics")
        assert again.moments() == venv.moments()
        other = VecPrivilegedInfo(flickering(env_kwargs={"expose_state": True}), normalize=False)
        with pytest.raises(ValueError, match=r"statistics.* must hold statistics of shape None"):
            other.load_safe(tmp_path / "statistics")
        with pytest.raises(ValueError, match="is read as a pickle"):
            again.load_statistics(tmp_path / "statistics.safetensors", trusted=False)


def a_stack() -> VecEnv:
    venv = VecNormalizeVisible(flickering())
    return VecFrameStack(VecPreviousReward(VecPreviousAction(venv)), 3)


def dict_stack() -> VecEnv:
    return VecFrameStack(VecPreviousAction(dict_envs()), 2)


def raw_steps(n_steps: int, make: Any) -> Any:
    env = make()
    env.action_space.seed(0)
    obs, info = env.reset(seed=0)
    reward = None
    for _ in range(n_steps):
        yield obs, reward, info.get("blanked")
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            obs, info = env.reset()


class TestActors:
    @pytest.mark.parametrize(
        ("stack", "env", "policy"),
        [
            (a_stack, lambda: gym.make("FlickeringCartPole-v0"), "MlpLstmPolicy"),
            (flickering, lambda: gym.make("FlickeringCartPole-v0"), "MlpLstmPolicy"),
            (dict_stack, DictEnv, "MultiInputLstmPolicy"),
            (
                lambda: fixed_length_envs(
                    5, 6, observation_space=spaces.Box(0, 255, (36, 36, 3), np.uint8)
                ),
                lambda: FixedLengthEnv(5, spaces.Box(0, 255, (36, 36, 3), np.uint8)),
                "CnnLstmPolicy",
            ),
        ],
    )
    @pytest.mark.parametrize("of", ["model", "policy"])
    def test_act_as_those_that_were_saved(self, stack, env, policy, of, tmp_path):
        model = RecurrentPPO(policy, stack(), policy_kwargs=SMALL, **settings()).learn(64)
        who = model if of == "model" else model.policy
        actor = StatefulActor.like(who, model.env, deterministic=True)
        actor.save(tmp_path / "actor")
        again = StatefulActor.load(tmp_path / "actor", device="cpu")
        assert again.deterministic
        for obs, reward, blanked in raw_steps(300, env):
            given = {"reward": reward, "blanked": blanked}
            action = actor.act(obs, **given)
            np.testing.assert_array_equal(again.act(obs, **given), action)
            for mine, others in zip(actor._state, again._state, strict=True):
                np.testing.assert_array_equal(mine, others)

    def test_by_keywords_and_a_safe_normaliser(self, tmp_path):
        venv = VecFrameStack(VecPreviousAction(VecNormalizeVisible(flickering())), 2)
        model = RecurrentPPO("MlpLstmPolicy", venv, **settings()).learn(16)
        model.get_vec_normalize_env().save_safe(tmp_path / "normalizer")
        actor = StatefulActor(
            model,
            True,
            normalizer=tmp_path / "normalizer.safetensors",
            previous_action=True,
            frame_stack=2,
            trusted=False,
        )
        actor.save(tmp_path / "actor")
        again = StatefulActor.load(tmp_path / "actor")
        for obs, _, blanked in raw_steps(50, lambda: gym.make("FlickeringCartPole-v0")):
            assert actor.act(obs, blanked=blanked) == again.act(obs, blanked=blanked)

    def test_sampled_ones_with_masks(self, tmp_path):
        model = MaskableRecurrentPPO("MlpLstmPolicy", masked_envs(), **settings())
        StatefulActor(model).save(tmp_path / "actor")
        again = StatefulActor.load(tmp_path / "actor")
        masks = np.zeros(model.policy.mask_layout.width, bool)
        masks[-1] = True
        obs = model.observation_space.sample()
        assert (
            again.act(obs, action_masks=masks) == StatefulActor(model).act(obs, action_masks=masks)
        ).all()

    def test_with_classes_of_ones_own(self, tmp_path):
        kwargs = {**SMALL, "features_extractor_class": Halved, "note": "mine"}
        model = RecurrentPPO(Mine, envs("vector", "discrete"), policy_kwargs=kwargs, **settings())
        StatefulActor(model, True).save(tmp_path / "actor")
        with pytest.raises(ValueError, match="policy_class of somebody's own"):
            StatefulActor.load(tmp_path / "actor")
        own = {"policy_class": Mine, "features_extractor_class": Halved}
        again = StatefulActor.load(tmp_path / "actor", own)
        assert again.model.note == "mine"
        obs = VECTOR.sample()
        assert again.act(obs) == StatefulActor(model, True).act(obs)

    def test_who_act_otherwise_are_refused(self, tmp_path):
        class Otherwise(RecurrentPPO):
            def predict(self, *args: Any, **kwargs: Any) -> Any:
                return np.array(0), None

        model = Otherwise("MlpLstmPolicy", envs("vector", "discrete"), **settings())
        with pytest.raises(ValueError, match="Otherwise, which has a predict of its own"):
            StatefulActor(model).save(tmp_path / "actor")
        model = a_model()
        model.predict = lambda *args, **kwargs: (np.array(0), None)  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="has a predict of its own"):
            StatefulActor(model).save(tmp_path / "actor")

    def test_a_layer_of_ones_own_is_named(self, tmp_path):
        actor = StatefulActor.like(a_model(), envs("vector", "discrete"))
        actor._pipeline.layers.append(lambda obs, context: obs)
        actor.save(tmp_path / "actor")
        with pytest.raises(ValueError, match=r"a layers\.0 of somebody's own"):
            StatefulActor.load(tmp_path / "actor")
        assert StatefulActor.load(tmp_path / "actor", {"layers.0": lambda obs, context: obs}).act(
            VECTOR.sample()
        ) in (0, 1, 2)

    def test_an_encoding_of_ones_own_is_refused(self, tmp_path):
        actor = StatefulActor.like(a_model(), envs("vector", "discrete"))
        actor._pipeline.layers.append(Previous(lambda actions: actions, "action", None))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="previous action must be shown as the wrappers"):
            actor.save(tmp_path / "actor")


class Trace(Memory):
    """Somebody's memory: a running mean."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1) -> None:
        super().__init__(input_size, hidden_size, num_layers)
        self.read = nn.Linear(input_size, hidden_size)

    def state_parts(self) -> tuple[StatePart, ...]:
        return (StatePart("trace", (self.hidden_size,)),)

    def step(self, features: th.Tensor, states: Any) -> Any:
        trace = 0.5 * states[0][0] + self.read(features)
        return trace, (trace[None],)


class TestProgramsOfStrangers:
    """Each as somebody might write it, held against SB3's zip file."""

    def held_against_zip(self, model: Any, tmp_path: Path, env: Any = None, **own: Any) -> Any:
        model.save(tmp_path / "model.zip")
        model.save_safe(tmp_path / "model")
        by_zip = type(model).load(tmp_path / "model.zip", device="cpu")
        safe = type(model).load_safe(tmp_path / "model", custom_objects=own, device="cpu")
        assert_same_attributes(by_zip, safe)
        assert_same_parameters(by_zip, safe)
        assert_acts_alike(by_zip, safe, 50)
        if env is None:
            return safe
        found = []
        for loaded in (by_zip, safe):
            venv = env()
            loaded.set_env(venv)
            venv.seed(3)
            loaded.set_random_seed(3)
            venv.seed(3)
            found.append(loaded.learn(64, reset_num_timesteps=False))
        assert_same_parameters(*found)
        return safe

    def test_a_memory_of_ones_own(self, tmp_path):
        kwargs = {**SMALL, "rnn_class": Trace}
        model = RecurrentPPO(
            "MlpLstmPolicy", envs("vector", "discrete"), policy_kwargs=kwargs, **settings()
        ).learn(16)
        self.held_against_zip(model, tmp_path, lambda: envs("vector", "discrete"), rnn_class=Trace)

    def test_a_stack_of_wrappers(self, tmp_path):
        model = RecurrentPPO("MlpLstmPolicy", a_stack(), policy_kwargs=SMALL, **settings())
        model.learn(64)
        model.get_vec_normalize_env().save_safe(tmp_path / "normalizer")

        def again() -> VecEnv:
            venv = VecNormalizeVisible.load_safe(tmp_path / "normalizer", flickering())
            return VecFrameStack(VecPreviousReward(VecPreviousAction(venv)), 3)

        self.held_against_zip(model, tmp_path, again)

    def test_a_schedule_that_is_a_class(self, tmp_path):
        class Cosine:
            def __call__(self, left: float) -> float:
                return 1e-3 * (1 + np.cos(np.pi * (1 - left))) / 2

        globals()["Cosine"] = Cosine
        model = a_model(learning_rate=Cosine())
        self.held_against_zip(model, tmp_path, learning_rate=Cosine())

    def test_a_policy_with_a_head_more(self, tmp_path):
        class Predicting(MlpLstmPolicy):
            def _build(self, lr_schedule: Any) -> None:
                super()._build(lr_schedule)
                self.more = nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 1))

        model = RecurrentPPO(
            Predicting, envs("vector", "box"), policy_kwargs=SMALL, **settings(use_sde=True)
        ).learn(16)
        safe = self.held_against_zip(
            model, tmp_path, lambda: envs("vector", "box"), policy_class=Predicting
        )
        assert th.equal(safe.policy.more[0].bias, model.policy.more[0].bias)

    def test_saved_in_the_midst_by_a_callback(self, tmp_path):
        from stable_baselines3.common.callbacks import BaseCallback

        class Saving(BaseCallback):
            def _on_step(self) -> bool:
                if self.n_calls == 5:
                    self.model.save_safe(tmp_path / "midst")  # type: ignore[attr-defined]
                    self.model.save(tmp_path / "midst.zip")
                return True

        model = RecurrentPPO("MlpLstmPolicy", flickering(), policy_kwargs=SMALL, **settings())
        model.learn(32, callback=Saving())
        by_zip = RecurrentPPO.load(tmp_path / "midst.zip", env=flickering(), device="cpu")
        safe = RecurrentPPO.load_safe(tmp_path / "midst", env=flickering(), device="cpu")
        assert safe.num_timesteps == by_zip.num_timesteps == 10
        assert_same_parameters(by_zip, safe)

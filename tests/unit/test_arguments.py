"""Wrong arguments are told by name, rule and value, and NumPy's numbers are numbers."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib
import torch as th
from gymnasium import spaces
from helpers import VECTOR, FixedLengthEnv, fixed_length_envs
from maskable_envs import changing_masks
from stable_baselines3.common.buffers import DictRolloutBuffer
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import thrust_pomdp
from thrust_pomdp import (
    ElementDropoutObservation,
    ExposeObservation,
    FlickerObservation,
    GymnasiumVecEnv,
    MaskableRecurrentPPO,
    MaskObservation,
    NormalizeVisibleObservation,
    PreviousActionObservation,
    PreviousRewardObservation,
    RecurrentDictRolloutBuffer,
    RecurrentPPO,
    RecurrentRolloutBuffer,
    StatefulActor,
    Trace,
    VecNormalizeVisible,
    VecPreviousAction,
    VecPreviousReward,
    VecPrivilegedInfo,
    VecUnprivileged,
    from_sb3_contrib,
    longest_burst,
    look_inside,
    make_vec_env,
    plot_burst,
    to_sb3_contrib,
)
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.ppo.maskable import evaluate_policy

ID = "FlickeringCartPole-v0"
NAN, INF = float("nan"), float("inf")
DICT = spaces.Dict(a=VECTOR, state=VECTOR)


def make_model(policy: Any = "MlpLstmPolicy", env: Any = None, **kwargs: Any) -> RecurrentPPO:
    policy_kwargs = kwargs.pop("policy_kwargs", {})
    if isinstance(policy_kwargs, dict):
        policy_kwargs = {"lstm_hidden_size": 4, **policy_kwargs}
    arguments = {"n_steps": 8, "batch_size": 8, "n_epochs": 1, "policy_kwargs": policy_kwargs}
    env = fixed_length_envs(5) if env is None else env
    return RecurrentPPO(policy, env, **{**arguments, **kwargs})


def is_told(call: Callable[[], Any], name: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} {rule}") as caught:
        call()
    assert "\n" not in str(caught.value)


NUMBER, WHOLE = "must be a number", "must be a whole number"
FLAG, DICT_RULE = "must be True or False, got", "must be a dict, got"
AT_LEAST = "must be at least"

#: Argument of the algorithm -> wrong values, and how the message goes on after the name.
ALGORITHM = {
    "learning_rate": {"x": NUMBER, None: NUMBER, NAN: "must be finite", -1: AT_LEAST},
    "n_steps": {"x": WHOLE, None: WHOLE, 0: AT_LEAST, 8.0: WHOLE, True: AT_LEAST, NAN: WHOLE},
    "batch_size": {"x": WHOLE, 0: AT_LEAST, 2.5: WHOLE},
    "n_epochs": {"x": WHOLE, None: WHOLE, 0: AT_LEAST},
    "gamma": {"x": NUMBER, None: NUMBER, NAN: "must lie in", 1.5: "must lie in"},
    "gae_lambda": {"x": NUMBER, None: NUMBER, NAN: "must lie in", -0.1: "must lie in"},
    "clip_range": {"x": NUMBER, None: NUMBER, NAN: "must be positive", 0: "must be positive"},
    "clip_range_vf": {"x": NUMBER, NAN: "must be positive", -1: "must be positive"},
    "normalize_advantage": {"no": FLAG, None: FLAG, 2: FLAG, NAN: FLAG},
    "ent_coef": {"x": NUMBER, None: NUMBER, NAN: "must be finite", INF: "must be finite"},
    "vf_coef": {"x": NUMBER, None: NUMBER, NAN: "must be finite", -1: AT_LEAST},
    "max_grad_norm": {"x": NUMBER, None: NUMBER, NAN: "must be positive", 0: "must be positive"},
    "use_sde": {"no": FLAG, None: FLAG, 2: FLAG},
    "sde_sample_freq": {"x": WHOLE, None: WHOLE, -2: AT_LEAST},
    "target_kl": {"x": NUMBER, NAN: "must be positive", 0: "must be positive"},
    "stats_window_size": {"x": WHOLE, NAN: WHOLE, 0: AT_LEAST},
    "tensorboard_log": {3: "must be a folder's path", NAN: "must be a folder's path"},
    "policy_kwargs": {"x": DICT_RULE, 3: DICT_RULE},
    "verbose": {"x": WHOLE, None: WHOLE, -1: AT_LEAST},
    "seed": {"x": WHOLE, NAN: WHOLE, -1: AT_LEAST, 2**32: "must be below", True: AT_LEAST},
    "device": {"gpu": 'must be "auto" or', None: 'must be "auto" or', 3.5: 'must be "auto" or'},
    "rollout_buffer_class": {"x": "must be a subclass", list: "must be a subclass"},
    "rollout_buffer_kwargs": {"x": DICT_RULE},
    "envs_per_minibatch": {"x": WHOLE, 0: AT_LEAST},
    "window_state": {"x": "must be one of", None: "must be one of"},
    "sequence_length": {"x": WHOLE, 0: AT_LEAST, 3: "must divide"},
    "burn_in": {"x": WHOLE, None: WHOLE, -1: AT_LEAST},
    "refresh_states": {"no": FLAG, None: FLAG},
}

#: The same of the policy.
POLICY = {
    "net_arch": {"x": "must be a list of sizes", 64: "must be a list of sizes"},
    "activation_fn": {"tanh": "must be a class", None: "must be a class"},
    "ortho_init": {"no": FLAG, None: FLAG},
    "log_std_init": {"x": NUMBER, None: NUMBER, NAN: "must be finite"},
    "full_std": {"no": FLAG},
    "use_expln": {"no": FLAG},
    "squash_output": {"no": FLAG, True: "needs|=True needs"},
    "features_extractor_class": {"x": "must be a class"},
    "features_extractor_kwargs": {"x": DICT_RULE},
    "share_features_extractor": {"no": FLAG},
    "normalize_images": {"no": FLAG},
    "optimizer_class": {"adam": "must be a class"},
    "optimizer_kwargs": {"x": DICT_RULE},
    "lstm_hidden_size": {"x": WHOLE, None: WHOLE, 0: AT_LEAST, 4.0: WHOLE},
    "n_lstm_layers": {"x": WHOLE, 0: AT_LEAST, NAN: WHOLE},
    "shared_lstm": {"no": FLAG},
    "enable_critic_lstm": {"no": FLAG},
    "lstm_kwargs": {"x": DICT_RULE},
    "shared_lstm_critic_gradient": {"no": FLAG},
    "rnn_class": {"GRU": "must be nn.LSTM", None: "must be nn.LSTM"},
    "forget_bias": {"x": NUMBER, None: NUMBER, NAN: "must be finite"},
    "layer_norm": {"no": FLAG, 1: FLAG},
}

#: The same of learn().
LEARN = {
    "total_timesteps": {"x": NUMBER, None: NUMBER, NAN: "must be finite", -1: AT_LEAST},
    "callback": {"x": "must be a callback", 3: "must be a callback"},
    "log_interval": {"x": WHOLE, 0: AT_LEAST},
    "tb_log_name": {3: "must be a name"},
    "reset_num_timesteps": {"no": FLAG, None: FLAG},
    "progress_bar": {"no": FLAG},
}


def entries(table: dict[str, dict[Any, str]]) -> list[tuple[str, Any, str]]:
    return [(name, value, rule) for name, rules in table.items() for value, rule in rules.items()]


class TestAlgorithm:
    @pytest.mark.parametrize(("name", "value", "rule"), entries(ALGORITHM))
    def test_each_argument(self, name, value, rule):
        is_told(lambda: make_model(**{name: value}), name, rule)

    @pytest.mark.parametrize(("name", "value", "rule"), entries(POLICY))
    def test_each_argument_of_the_policy(self, name, value, rule):
        is_told(lambda: make_model(policy_kwargs={name: value}), name, f"?({rule})")

    @pytest.mark.parametrize(("name", "value", "rule"), entries(LEARN))
    def test_each_argument_of_learning(self, name, value, rule):
        model = make_model()
        is_told(lambda: model.learn(**{"total_timesteps": 8, name: value}), name, rule)

    def test_the_tables_leave_no_argument_out(self):
        given = {*inspect.signature(RecurrentPPO).parameters} - {"policy", "env"}
        assert given == {*ALGORITHM, "_init_setup_model"}
        given = {*inspect.signature(thrust_pomdp.MlpLstmPolicy).parameters} - {
            "observation_space", "action_space", "lr_schedule", "use_sde",
        }  # fmt: skip
        assert given == {*POLICY}
        assert {*inspect.signature(RecurrentPPO.learn).parameters} - {"self"} == {*LEARN}

    @pytest.mark.parametrize(
        ("name", "call"),
        [
            ("env", lambda: make_model(env=3)),
            ("env", lambda: make_model(env=gym.make_vec(ID, 2))),
            ("policy", lambda: make_model("MlpPolicy")),
            ("policy", lambda: make_model(3)),
            ("policy", lambda: make_model(dict)),
            ("observation_space", lambda: make_model("CnnLstmPolicy", image_env(7))),
            ("observation_space", lambda: make_model("MultiInputLstmPolicy", image_env(7, True))),
            ("callback", lambda: make_model().learn(8, [3])),
            ("lstm_kwargs", lambda: make_model(policy_kwargs={"lstm_kwargs": {"dropout": "x"}})),
            ("lstm_kwargs", lambda: make_model(policy_kwargs={"lstm_kwargs": {"bias": "no"}})),
            ("net_arch", lambda: make_model(policy_kwargs={"net_arch": [4, "x"]})),
            ("net_arch", lambda: make_model(policy_kwargs={"net_arch": {"pi": [0]}})),
            ("optimizer_kwargs", lambda: make_model(policy_kwargs={"optimizer_kwargs": {"lr": 1}})),
            ("seed", lambda: make_model().set_random_seed("x")),
            ("env", lambda: make_model().set_env(None)),
            ("path", lambda: make_model().save(3)),
            ("path", lambda: RecurrentPPO.load(3)),
            ("device", lambda: RecurrentPPO.load(saved(), device="gpu")),
            ("env", lambda: RecurrentPPO.load(saved(), env=3)),
            ("path", lambda: from_sb3_contrib(None)),
            ("path", lambda: from_sb3_contrib(saved())),
            ("device", lambda: from_sb3_contrib(saved(), device="gpu")),
            ("model", lambda: to_sb3_contrib("m.zip")),
        ],
    )
    def test_objects_of_the_wrong_kind(self, name, call):
        is_told(call, name, "?.*")

    def test_small_images_are_told_with_what_can_be_done(self):
        with pytest.raises(ValueError, match="at least 36 x 36 .* got 7 x 7: enlarge .* flatten"):
            make_model("CnnLstmPolicy", image_env(7))
        make_model("CnnLstmPolicy", image_env(36)).learn(8)
        make_model("MlpLstmPolicy", image_env(7)).learn(8)

    @pytest.mark.parametrize("load", [RecurrentPPO.load, from_sb3_contrib])
    def test_a_missing_file_is_told_by_the_path_that_was_given(self, load, tmp_path):
        path = tmp_path / "nothing.zip"
        with pytest.raises(FileNotFoundError, match=rf"no file at {path}, nor"):
            load(path)

    def test_zero_and_one_are_flags_where_programs_for_sb3_say_so(self):
        model = make_model(normalize_advantage=0, use_sde=0)
        assert (model.normalize_advantage, model.use_sde) == (False, False)
        assert model.learn(8, progress_bar=0).predict(np.zeros(3), deterministic=1)[0].shape == ()


def image_env(side: int, in_dict: bool = False) -> FixedLengthEnv:
    space: spaces.Space = spaces.Box(0, 255, (side, side, 3), np.uint8)
    return FixedLengthEnv(5, spaces.Dict(camera=space) if in_dict else space)


def saved() -> io.BytesIO:
    file = io.BytesIO()
    make_model().save(file)
    file.seek(0)
    return file


OBS = np.zeros(3, np.float32)


class TestActing:
    @pytest.mark.parametrize("of", ["model", "policy"])
    @pytest.mark.parametrize(
        ("arguments", "name"),
        [
            ((np.array(["a", "b", "c"]),), "observation"),
            ((OBS.astype(complex),), "observation"),
            (({"a": OBS},), "observation"),
            ((None,), "observation"),
            ((OBS, "x"), "state"),
            ((OBS, None, "x"), "episode_start"),
            ((OBS, None, [NAN]), "episode_start"),
            ((OBS, None, [1, 0]), "episode_start"),
            ((OBS, None, None, "no"), "deterministic"),
        ],
    )
    def test_predict(self, of, arguments, name):
        model = make_model()
        actor = model if of == "model" else model.policy
        is_told(lambda: actor.predict(*arguments), name, "?.*must (be|have)")

    @pytest.mark.parametrize(
        ("model", "rule"),
        [
            ("m.zip", r"must be a model, got the path 'm\.zip': load it first, .*RecurrentPPO\.lo"),
            (Path("m.zip"), "must be a model, got the path"),
            (RecurrentPPO, "must be a model, got the class RecurrentPPO: make one"),
            (None, "must be a model or policy .* with predict, got None"),
            ({}, "must be a model or policy"),
        ],
    )
    def test_an_actor_of_what_is_no_model(self, model, rule):
        is_told(lambda: StatefulActor(model), "model", rule)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("deterministic", "no"),
            ("normalizer", 3),
            ("previous_action", 1),
            ("previous_reward", "no"),
            ("frame_stack", "2"),
            ("frame_stack", 0),
        ],
    )
    def test_an_actors_arguments(self, name, value):
        is_told(lambda: StatefulActor(make_model(), **{name: value}), name, "must be")

    def test_a_predictor_without_spaces_acts_but_cannot_be_shown_raw_observations(self):
        class Left:
            def predict(self, *args):
                return np.zeros(1), None

        assert StatefulActor(Left()).act(OBS).shape == (1,)
        is_told(lambda: StatefulActor(Left(), frame_stack=2), "model", "must be .* with observ")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("n_eval_episodes", "3"),
            ("n_eval_episodes", 0),
            ("deterministic", "no"),
            ("render", "no"),
            ("callback", 3),
            ("reward_threshold", "x"),
            ("return_episode_rewards", "no"),
            ("warn", "no"),
            ("use_masking", "no"),
        ],
    )
    def test_evaluating_with_masks(self, name, value):
        env = changing_masks(5)
        model = MaskableRecurrentPPO("MlpLstmPolicy", env)
        is_told(lambda: evaluate_policy(model, env, **{name: value}), name, "must be")
        is_told(lambda: evaluate_policy("m.zip", env), "model", "must be a model")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("model", "m.zip"),
            ("model", None),
            ("env", ID),
            ("env", None),
            ("n_steps", "4"),
            ("n_steps", 0),
            ("deterministic", "no"),
        ],
    )
    def test_looking_inside(self, name, value):
        arguments = {"model": make_model(), "env": fixed_length_envs(5), "n_steps": 4, name: value}
        is_told(lambda: look_inside(**arguments), name, "must")


@pytest.fixture(scope="module")
def trace() -> Trace:
    env = make_vec_env(ID, 1, seed=0)
    return look_inside(make_model(env=env), env, n_steps=30)


class TestPictures:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("trace", "x"),
            ("trace", None),
            ("path", 3),
            ("burst", (0, 1)),
            ("burst", "abc"),
            ("burst", (0, 1.5, 3)),
            ("burst", (5, 1, 3)),
            ("margin", "x"),
            ("margin", -1),
            ("signal", "x"),
            ("signal", ["a"] * 30),
            ("signal", [1, 2]),
            ("signal_label", 3),
            ("action_names", "ab"),
            ("action_names", 3),
            ("action_names", ["a"]),
            ("title", 3),
        ],
    )
    def test_of_a_burst(self, trace, name, value):
        pytest.importorskip("matplotlib")
        is_told(lambda: plot_burst(**{"trace": trace, name: value}), name, "must")

    def test_the_longest_burst(self):
        is_told(lambda: longest_burst("x"), "trace", "must be what look_inside returned")


class TestBuffers:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("buffer_size", "x"),
            ("buffer_size", 0),
            ("observation_space", "x"),
            ("observation_space", DICT),
            ("action_space", None),
            ("device", "gpu"),
            ("gae_lambda", 2),
            ("gamma", NAN),
            ("n_envs", 2.5),
            ("record_states", "no"),
        ],
    )
    def test_each_argument(self, name, value):
        arguments = {
            "buffer_size": 4,
            "observation_space": VECTOR,
            "action_space": spaces.Discrete(2),
            name: value,
        }
        is_told(lambda: RecurrentRolloutBuffer(**arguments), name, "must")

    def test_one_of_dicts(self):
        call = lambda: RecurrentDictRolloutBuffer(4, VECTOR, spaces.Discrete(2))  # noqa: E731
        is_told(call, "observation_space", "must be a Dict .* there is RecurrentRolloutBuffer too")


def single() -> gym.Env:
    return gym.make(ID)


def venv() -> DummyVecEnv:
    return DummyVecEnv([single])


SINGLE_WRAPPERS = [
    ElementDropoutObservation,
    ExposeObservation,
    FlickerObservation,
    lambda env: MaskObservation(env, drop=[0]),
    NormalizeVisibleObservation,
    PreviousActionObservation,
    PreviousRewardObservation,
]
VEC_WRAPPERS = [
    VecNormalizeVisible,
    VecPreviousAction,
    VecPreviousReward,
    VecPrivilegedInfo,
    VecUnprivileged,
]


class TestWrappers:
    @pytest.mark.parametrize("wrapper", SINGLE_WRAPPERS)
    def test_single_ones_name_the_remedy_for_several_environments(self, wrapper):
        for env in (venv(), gym.make_vec(ID, 2)):
            is_told(lambda env=env: wrapper(env), "env", "must be .* put the wrapper around each")
        for env in (None, ID):
            is_told(lambda env=env: wrapper(env), "env", "must be a Gymnasium environment, got")

    @pytest.mark.parametrize("wrapper", VEC_WRAPPERS)
    def test_those_of_vecenvs_name_the_remedy_for_others(self, wrapper):
        is_told(lambda: wrapper(single()), "venv", r"must be a VecEnv, got .*DummyVecEnv\(")
        is_told(lambda: wrapper(gym.make_vec(ID, 2)), "venv", r"must be .*\.GymnasiumVecEnv makes")
        is_told(lambda: wrapper(ID), "venv", r"must be a VecEnv, got .*\.make_vec_env")

    def test_the_adapter_names_the_remedy(self):
        is_told(lambda: GymnasiumVecEnv(single()), "env", r"must be .*DummyVecEnv\(\[")
        is_told(lambda: GymnasiumVecEnv(venv()), "env", "must be .* which is a VecEnv already")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("training", "no"),
            ("norm_obs", "no"),
            ("norm_reward", 3),
            ("clip_obs", "x"),
            ("clip_obs", NAN),
            ("clip_reward", 0),
            ("gamma", 2),
            ("epsilon", 0),
            ("epsilon", INF),
            ("norm_obs_keys", "a"),
            ("norm_obs_keys", [3]),
            ("zero_is_blank", "no"),
        ],
    )
    def test_the_normalizers_arguments(self, name, value):
        is_told(lambda: VecNormalizeVisible(venv(), **{name: value}), name, "must")

    def test_keys_that_are_not_there(self):
        env = fixed_length_envs(5, observation_space=DICT)
        is_told(
            lambda: VecNormalizeVisible(env, norm_obs_keys=["a", "b"]), "norm_obs_keys", r".*\['b'"
        )

    @pytest.mark.parametrize("inner", [VecNormalize, VecNormalizeVisible])
    def test_a_normalizer_around_another_would_normalize_twice(self, inner):
        rule = "has a VecNormalize.* inside already, and its observations and rewards would be"
        is_told(lambda: VecNormalizeVisible(inner(venv())), "venv", rule)
        is_told(lambda: VecNormalizeVisible(VecPreviousAction(inner(venv()))), "venv", "has a Vec")
        rewards = inner(venv(), norm_obs=False)
        is_told(lambda: VecNormalizeVisible(rewards), "venv", "has a .* its rewards would be")
        VecNormalizeVisible(rewards, norm_reward=False).reset()
        env = fixed_length_envs(5, observation_space=DICT)
        both = {"norm_reward": False, "norm_obs_keys": ["a"]}
        other = {"norm_reward": False, "norm_obs_keys": ["state"]}
        VecNormalizeVisible(inner(env, **both), **other).reset()

    def test_nor_is_one_set_around_another(self):
        normalizer = pickle.loads(pickle.dumps(VecNormalizeVisible(venv())))
        is_told(lambda: normalizer.set_venv(VecNormalize(venv())), "venv", "has a VecNormalize in")
        is_told(lambda: normalizer.set_venv(single()), "venv", "must be a VecEnv")

    def test_a_single_normalizer_around_another_would_too(self):
        env = NormalizeVisibleObservation(single())
        for inside in (env, gym.wrappers.TimeLimit(env, 5)):
            is_told(lambda inside=inside: NormalizeVisibleObservation(inside), "env", "has a Norm")
        plain = gym.wrappers.NormalizeObservation(single())
        is_told(lambda: NormalizeVisibleObservation(plain), "env", "has a NormalizeObservation")
        several = DummyVecEnv([lambda: env])
        is_told(lambda: VecNormalizeVisible(several), "venv", "has environments in NormalizeVis")
        VecNormalizeVisible(several, norm_obs=False).reset()

    def test_files_that_hold_no_normalizer(self, tmp_path):
        garbage, other = tmp_path / "garbage.pkl", tmp_path / "dict.pkl"
        other.write_bytes(pickle.dumps({}))
        for written in (b"garbage", b"", b"\x80\x04K", b"\x80\x05\x95\xff", b"cos\nnothing\n."):
            garbage.write_bytes(written)
            call = lambda: VecNormalizeVisible.load(str(garbage), venv())  # noqa: E731
            is_told(call, "load_path", "must be a file saved by VecNormalizeVisible, got .*garbage")
            actor = lambda: StatefulActor(make_model(), normalizer=garbage)  # noqa: E731
            is_told(actor, "normalizer", "must be a VecNormalizeVisible or VecNormalize, or a file")
        is_told(lambda: VecNormalizeVisible.load(str(other), venv()), "load_path", ".* holds a di")
        is_told(lambda: VecNormalizeVisible.load(None, venv()), "load_path", "must be the path")
        is_told(lambda: VecNormalizeVisible.load(str(other), None), "venv", "must be a VecEnv")

    def test_a_normalizers_copy_without_environments_says_what_to_do(self):
        copied = copy.deepcopy(VecNormalizeVisible(venv()))
        is_told(copied.reset, "venv", r"must be set, .* set_venv\(venv\)")

    @pytest.mark.parametrize(
        ("call", "name"),
        [
            (lambda: NormalizeVisibleObservation(single(), epsilon="x"), "epsilon"),
            (lambda: NormalizeVisibleObservation(single(), epsilon=NAN), "epsilon"),
            (lambda: NormalizeVisibleObservation(single(), zero_is_blank="no"), "zero_is_blank"),
            (lambda: FlickerObservation(single(), "x"), "flicker_prob"),
            (lambda: FlickerObservation(single(), NAN), "flicker_prob"),
            (lambda: FlickerObservation(single(), None), "flicker_prob"),
            (lambda: FlickerObservation(single(), burst_len="4"), "burst_len"),
            (lambda: FlickerObservation(single(), burst_len=INF), "burst_len"),
            (lambda: FlickerObservation(single(), separately="no"), "separately"),
            (lambda: FlickerObservation(single(), blank_value="x"), "blank_value"),
            (lambda: ElementDropoutObservation(single(), "x"), "dropout_prob"),
            (lambda: ElementDropoutObservation(single(), 1.5), "dropout_prob"),
            (lambda: ExposeObservation(single(), key=3), "key"),
            (lambda: PreviousActionObservation(single(), key=None), "key"),
            (lambda: PreviousRewardObservation(single(), key=""), "key"),
            (lambda: MaskObservation(single(), drop="x"), "drop"),
            (lambda: MaskObservation(single(), drop=[1.5]), "drop"),
            (lambda: MaskObservation(single(), drop=[0], axis="x"), "axis"),
            (lambda: VecPreviousAction(venv(), key=3), "key"),
            (lambda: VecPreviousReward(venv(), key=None), "key"),
            (lambda: VecPrivilegedInfo(venv(), key=3), "key"),
            (lambda: VecPrivilegedInfo(venv(), "blanked", space="x"), "space"),
            (lambda: VecPrivilegedInfo(venv(), "blanked", normalize="no"), "normalize"),
            (lambda: VecPrivilegedInfo(venv(), "blanked", clip="x"), "clip"),
            (lambda: VecPrivilegedInfo(venv(), "blanked", training="no"), "training"),
        ],
    )
    def test_further_arguments(self, call, name):
        is_told(call, name, "?.*must")


class TestMaking:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("env_id", 3),
            ("env_id", single()),
            ("n_envs", "3"),
            ("n_envs", 0),
            ("n_envs", 2.0),
            ("seed", "a"),
            ("seed", -1),
            ("seed", 0.5),
            ("start_index", "x"),
            ("start_index", -1),
            ("monitor_dir", 3),
            ("wrapper_class", "x"),
            ("env_kwargs", "x"),
            ("vec_env_cls", "SubprocVecEnv"),
            ("vec_env_kwargs", "x"),
            ("monitor_kwargs", [1]),
            ("wrapper_kwargs", 3),
            ("normalize", "yes"),
            ("previous_action", "no"),
            ("previous_reward", 2),
            ("frame_stack", "2"),
        ],
    )
    def test_each_argument(self, name, value):
        is_told(lambda: make_vec_env(**{"env_id": ID, name: value}), name, "must be")

    @pytest.mark.parametrize(
        ("env_id", "name", "value"),
        [
            (ID, "flicker_prob", "x"),
            (ID, "burst_len", "4"),
            (ID, "hide_velocities", "no"),
            (ID, "kinematics_integrator", "x"),
            (ID, "expose_state", "no"),
            ("MaskedCartPole-v0", "expose_state", "no"),
            ("TMaze-v0", "corridor_length", "5"),
            ("TMaze-v0", "corridor_length", 2.5),
            ("ActiveTMaze-v0", "corridor_length", 0),
            ("TMaze-v0", "expose_state", "no"),
            ("POPGymRepeatPreviousEasy-v0", "expose_state", "no"),
            ("POPGymPositionOnlyCartPoleEasy-v0", "max_episode_length", "x"),
            ("POPGymNoisyPositionOnlyCartPoleEasy-v0", "noise_sigma", NAN),
            ("POPGymNoisyPositionOnlyCartPoleEasy-v0", "noise_sigma", "x"),
        ],
    )
    def test_environments_one_or_several(self, env_id, name, value):
        is_told(lambda: gym.make(env_id, **{name: value}), name, "must be")
        is_told(lambda: make_vec_env(env_id, 2, env_kwargs={name: value}), name, "must be")


#: What Stable-Baselines3 or sb3-contrib assert: a program that catches AssertionError, for both.
ASSERTED = {
    "actions that are no array": lambda cls: algorithm(
        cls, actions=spaces.Tuple([spaces.Discrete(2)])
    ),
    "actions without bounds": lambda cls: algorithm(cls, actions=spaces.Box(-INF, INF, (2,))),
    "bits of two axes": lambda cls: algorithm(cls, actions=spaces.MultiBinary((2, 2))),
    "learning_rate": lambda cls: algorithm(cls, learning_rate="x"),
    "clip_range": lambda cls: algorithm(cls, clip_range="x"),
    "clip_range_vf": lambda cls: algorithm(cls, clip_range_vf=-1.0),
    "clip_range_vf that is no number": lambda cls: algorithm(cls, clip_range_vf=[1]),
    "one LSTM and two": lambda cls: algorithm(cls, policy_kwargs={"shared_lstm": True}),
    "one LSTM of two extractors": lambda cls: algorithm(
        cls,
        policy_kwargs={
            "shared_lstm": True,
            "enable_critic_lstm": False,
            "share_features_extractor": False,
        },
    ),
    "squash_output": lambda cls: algorithm(
        cls, actions=spaces.Box(-1, 1, (2,)), policy_kwargs={"squash_output": True}
    ),
    "no images": lambda cls: algorithm(cls, "CnnLstmPolicy"),
    "another number of environments": lambda cls: algorithm(cls).set_env(fixed_length_envs(5, 6)),
    "no model in the file": lambda cls: cls.load(empty_file()),
    "a dict to predict from": lambda cls: algorithm(cls).predict({"a": OBS}),
}


def algorithm(cls: Any, policy: Any = "MlpLstmPolicy", actions: Any = None, **kwargs: Any) -> Any:
    env = fixed_length_envs(5, action_space=actions)
    return cls(policy, env, n_steps=8, batch_size=8, **kwargs)


def empty_file() -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("something", "else")
    file.seek(0)
    return file


class TestWhatOthersAssert:
    @pytest.mark.parametrize("fault", ASSERTED)
    def test_is_caught_by_either_name(self, fault):
        with pytest.raises(AssertionError):
            ASSERTED[fault](sb3_contrib.RecurrentPPO)
        with pytest.raises(AssertionError):
            ASSERTED[fault](RecurrentPPO)
        with pytest.raises(ValueError, match="must|needs|exclude|different"):
            ASSERTED[fault](RecurrentPPO)

    def test_a_buffer_of_dicts_for_arrays(self):
        for cls in (DictRolloutBuffer, RecurrentDictRolloutBuffer):
            with pytest.raises(AssertionError):
                cls(4, VECTOR, spaces.Discrete(2))

    def test_box_actions_with_masks(self):
        env = fixed_length_envs(5, action_space=spaces.Box(-1, 1, (2,)))
        for cls, policy in (
            (sb3_contrib.MaskablePPO, "MlpPolicy"),
            (MaskableRecurrentPPO, "MlpLstmPolicy"),
        ):
            with pytest.raises(AssertionError):
                cls(policy, env)

    @pytest.mark.parametrize("name", ["n_steps", "batch_size"])
    def test_sizes(self, name):
        with pytest.raises(ArgumentError, match=f"{name} must be at least 1, got 0"):
            make_model(**{name: 0})


#: NumPy's numbers, as np.random.choice and a search for settings draw them.
NUMPYS = {
    "n_steps": np.random.default_rng(0).choice([8, 8]),
    "batch_size": np.int32(8),
    "n_epochs": np.int64(1),
    "envs_per_minibatch": np.int64(1),
    "sequence_length": np.int64(4),
    "burn_in": np.int8(0),
    "gamma": np.float32(0.9),
    "gae_lambda": np.float64(0.9),
    "learning_rate": np.float32(1e-3),
    "clip_range": np.float32(0.2),
    "clip_range_vf": np.float16(0.2),
    "ent_coef": np.float32(0.01),
    "vf_coef": np.float32(0.5),
    "max_grad_norm": np.float32(0.5),
    "target_kl": np.float32(10),
    "seed": np.int64(3),
    "verbose": np.int64(0),
    "stats_window_size": np.int64(3),
    "sde_sample_freq": np.int64(-1),
    "normalize_advantage": np.bool_(True),
    "use_sde": np.bool_(False),
}
NUMPYS_OF_POLICY = {
    "lstm_hidden_size": np.int64(4),
    "n_lstm_layers": np.int64(2),
    "net_arch": {"encoder": [np.int64(4)], "pi": [np.int32(4)], "vf": []},
    "forget_bias": np.float32(1),
    "log_std_init": np.float64(0),
    "ortho_init": np.bool_(True),
    "layer_norm": np.bool_(True),
}


def pythons(value: Any) -> Any:
    """Return the same in Python's own numbers."""
    if isinstance(value, dict):
        return {key: pythons(part) for key, part in value.items()}
    if isinstance(value, list):
        return [pythons(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def trained(settings: dict[str, Any], of_policy: dict[str, Any]) -> RecurrentPPO:
    model = make_model(env=fixed_length_envs(5, 6), policy_kwargs=of_policy, **settings)
    return model.learn(32)


class TestNumPysNumbers:
    @pytest.mark.parametrize("name", [name for name in NUMPYS if name != "envs_per_minibatch"])
    def test_each_is_the_number_that_it_is(self, name):
        settings = {"seed": 1, name: NUMPYS[name]}
        model = trained(settings, {})
        expected = trained(pythons(settings), {})
        assert np.array_equal(
            model.policy.parameters_to_vector(), expected.policy.parameters_to_vector()
        )

    @pytest.mark.parametrize("name", NUMPYS_OF_POLICY)
    def test_each_of_the_policys_too(self, name):
        settings = {name: NUMPYS_OF_POLICY[name]}
        model, expected = (trained({"seed": 1}, part) for part in (settings, pythons(settings)))
        assert np.array_equal(
            model.policy.parameters_to_vector(), expected.policy.parameters_to_vector()
        )

    def test_envs_per_minibatch(self):
        assert trained({"envs_per_minibatch": np.int64(1)}, {}).envs_per_minibatch == 1

    def test_a_model_of_them_comes_back_from_a_file_and_goes_on(self):
        settings = {name: part for name, part in NUMPYS.items() if name != "envs_per_minibatch"}
        model, file = trained(settings, NUMPYS_OF_POLICY), io.BytesIO()
        kept = {name: getattr(model, name, None) for name in NUMPYS}
        assert not [name for name, value in kept.items() if isinstance(value, np.generic)]
        model.save(file)
        file.seek(0)
        loaded = RecurrentPPO.load(file, env=fixed_length_envs(5, 6))
        assert np.array_equal(loaded.predict(OBS)[1], model.predict(OBS)[1])
        loaded.learn(np.int64(32), log_interval=np.int64(1), reset_num_timesteps=np.bool_(False))
        assert loaded.num_timesteps == 64

    def test_a_file_saved_with_them_by_an_earlier_version_goes_on(self):
        model, file = make_model(), io.BytesIO()
        model.n_steps, model.batch_size, model.gamma = np.int64(8), np.int64(8), np.float32(0.5)
        model.save(file)
        file.seek(0)
        loaded = RecurrentPPO.load(file, env=fixed_length_envs(5)).learn(16)
        assert (type(loaded.n_steps), type(loaded.gamma)) == (int, float)

    def test_environments_are_made_of_them(self):
        made = []
        for kind in (np.int64, int):
            env = make_vec_env(
                ID, n_envs=kind(2), seed=kind(3), start_index=kind(0), frame_stack=kind(2)
            )
            env.seed(kind(5))
            made.append(env.reset())
        assert np.array_equal(*made)
        for env_id, kwargs in (
            (ID, {"flicker_prob": np.float32(0.5), "burst_len": np.int64(4)}),
            ("TMaze-v0", {"corridor_length": np.int64(5)}),
            ("POPGymPositionOnlyCartPoleEasy-v0", {"max_episode_length": np.int32(9)}),
        ):
            gym.make(env_id, **kwargs).reset(seed=0)
            make_vec_env(env_id, np.int64(2), env_kwargs=kwargs).reset()

    def test_wrappers_actors_and_buffers_take_them(self):
        FlickerObservation(single(), np.float32(0.5), np.int64(4)).reset()
        VecNormalizeVisible(venv(), gamma=np.float32(0.9), epsilon=np.float64(1e-8)).reset()
        model = make_model(env=make_vec_env(ID, 1, frame_stack=2))
        StatefulActor(model, np.bool_(True), frame_stack=np.int64(2)).act(np.zeros(4))
        look_inside(model, model.get_env(), np.int64(3), np.bool_(False))
        RecurrentRolloutBuffer(np.int64(4), VECTOR, spaces.Discrete(2), n_envs=np.int64(2))


class Squeezing(FlattenExtractor):
    """A user's extractor, which loses the axis of a single environment."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations).squeeze()


class Keeping(FlattenExtractor):
    """The same without that."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations)


class TestSqueezedFeatures:
    @pytest.mark.parametrize("n_envs", [1, 3])
    @pytest.mark.parametrize("n_steps", [1, 8])
    @pytest.mark.parametrize(
        "policy_kwargs",
        [
            {},
            {"enable_critic_lstm": False},
            {"shared_lstm": True, "enable_critic_lstm": False},
            {"share_features_extractor": False},
            {"net_arch": {"encoder": [4], "pi": [4], "vf": [4]}},
        ],
    )
    def test_are_those_of_the_same_extractor_that_does_not(self, n_envs, n_steps, policy_kwargs):
        vectors = []
        for extractor in (Squeezing, Keeping):
            kwargs = {**policy_kwargs, "features_extractor_class": extractor}
            env = fixed_length_envs(*[5] * n_envs)
            model = make_model(
                env=env, n_steps=n_steps, batch_size=n_steps, seed=0, policy_kwargs=kwargs
            )
            model.learn(2 * n_steps * n_envs)
            vectors.append(model.policy.parameters_to_vector())
            assert model.predict(OBS)[0].shape == ()
        assert np.array_equal(*vectors)


class TestCopies:
    def test_a_copied_model_with_the_previous_action_goes_on_alike(self):
        model = make_model(env=make_vec_env(ID, 2, seed=0, previous_action=True), seed=0).learn(16)
        copied = copy.deepcopy(model)
        assert copied.env is not model.env
        vectors = []
        for each in (model, copied):
            th.manual_seed(3)
            each.learn(16, reset_num_timesteps=False)
            vectors.append(each.policy.parameters_to_vector())
        assert np.array_equal(*vectors)

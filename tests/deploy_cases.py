"""Actors over all that can be exported, each made in a moment and untrained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from helpers import FixedLengthEnv
from maskable_envs import ChangingMaskEnv
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
)
from torch import nn

from thrust_pomdp import (
    MaskableRecurrentPPO,
    RecurrentPPO,
    StatefulActor,
    VecNormalizeVisible,
    VecPreviousAction,
    VecPreviousReward,
    VecPrivilegedInfo,
)
from thrust_pomdp.recurrent import LRU, GTrXL, MinGRU

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
TORQUES = spaces.Box(np.float32([-2, -0.5]), np.float32([2, 3]), dtype=np.float32)
CHOICES = spaces.MultiDiscrete([3, 2, 4])
BITS = spaces.MultiBinary(3)


@dataclass
class Case:
    """What an actor is made of.

    :param layers: around its environments, from the inside out
    :param images: whether it sees images, which C and JavaScript cannot show it
    :param readings: around what raw readings lie, with which spread; None for the environment's
    """

    observation: spaces.Space[Any] = field(default_factory=lambda: VECTOR)
    action: spaces.Space[Any] = field(default_factory=lambda: spaces.Discrete(3))
    policy: str = "MlpLstmPolicy"
    policy_kwargs: dict[str, Any] = field(default_factory=dict)
    layers: tuple[str, ...] = ()
    algorithm: type[Any] = RecurrentPPO
    images: bool = False
    readings: tuple[float, float] | None = None
    env: Callable[..., gym.Env] | None = None
    outputs: tuple[str, ...] = ()

    @property
    def is_for_onnx_and_numpy(self) -> bool:
        """Whether C and JavaScript refuse it."""
        return self.images or self.policy_kwargs.get("rnn_class") is GTrXL


EVERYTHING = ("normalize", "previous_action", "previous_reward", "stack")
TWO_SENSORS = spaces.Dict(gyro=VECTOR, mode=spaces.Discrete(4), wheels=spaces.MultiBinary(2))
WITH_CAMERA = spaces.Dict(camera=IMAGE, gyro=VECTOR)

CASES: dict[str, Case] = {
    "lstm": Case(),
    "lstm, normalised": Case(layers=("normalize",)),
    "a million": Case(layers=("normalize",), readings=(1e6, 1.0)),
    "everything around": Case(layers=EVERYTHING, outputs=("value",)),
    "two layers": Case(layers=("normalize",), policy_kwargs={"n_lstm_layers": 2}),
    "three layers of gru": Case(policy_kwargs={"rnn_class": nn.GRU, "n_lstm_layers": 3}),
    "gru": Case(layers=EVERYTHING, policy_kwargs={"rnn_class": nn.GRU}),
    "attention": Case(
        layers=EVERYTHING, outputs=("value",),
        policy_kwargs={"rnn_class": GTrXL, "lstm_kwargs": {"context": 5}},
    ),
    "two layers of attention": Case(
        policy_kwargs={
            "rnn_class": GTrXL, "n_lstm_layers": 2,
            "lstm_kwargs": {"context": 64, "n_heads": 3, "mlp_size": 7},
        },
    ),
    "attention to one step": Case(
        policy_kwargs={"rnn_class": GTrXL, "lstm_kwargs": {"context": 1, "n_heads": 1}},
    ),
    "rnn": Case(layers=("normalize",), policy_kwargs={"rnn_class": nn.RNN}),
    "min gru": Case(layers=EVERYTHING, policy_kwargs={"rnn_class": MinGRU}),
    "two layers of min gru": Case(policy_kwargs={"rnn_class": MinGRU, "n_lstm_layers": 2}),
    "lru": Case(layers=EVERYTHING, policy_kwargs={"rnn_class": LRU}),
    "two layers of lru": Case(
        policy_kwargs={
            "rnn_class": LRU, "n_lstm_layers": 2, "lstm_kwargs": {"state_size": 5, "r_max": 0.9}
        },
    ),
    "relu rnn": Case(
        policy_kwargs={"rnn_class": nn.RNN, "lstm_kwargs": {"nonlinearity": "relu"}},
    ),
    "without biases": Case(policy_kwargs={"lstm_kwargs": {"bias": False}}),
    "shared lstm": Case(
        policy_kwargs={"shared_lstm": True, "enable_critic_lstm": False}, outputs=("value",)
    ),
    "shared lstm, both gradients": Case(
        policy_kwargs={"shared_lstm_critic_gradient": True}, outputs=("value",)
    ),
    "critic without memory": Case(
        policy_kwargs={"enable_critic_lstm": False}, outputs=("value", "action_logits")
    ),
    "separate extractors": Case(
        policy_kwargs={"share_features_extractor": False, "net_arch": {"encoder": [8]}},
        outputs=("value",),
    ),
    "encoder and layer norm": Case(
        layers=("normalize", "previous_action"),
        policy_kwargs={"net_arch": {"encoder": [16, 8]}, "layer_norm": True, "forget_bias": 1.0},
    ),
    **{
        f"activation {cls.__name__}": Case(policy_kwargs={"activation_fn": cls})
        for cls in (nn.ReLU, nn.ELU, nn.LeakyReLU, nn.SiLU, nn.Sigmoid, nn.Softsign)
    },
    "no heads": Case(policy_kwargs={"net_arch": []}),
    "shifted": Case(action=spaces.Discrete(2), layers=("previous_action", "previous_reward")),
    "choices": Case(action=CHOICES, layers=EVERYTHING, outputs=("action_logits",)),
    "bits": Case(action=BITS, layers=EVERYTHING),
    "torques": Case(action=TORQUES, layers=EVERYTHING, outputs=("mean", "log_std", "value")),
    "torques in a matrix": Case(
        action=spaces.Box(-1.0, 1.0, (2, 2), np.float32), layers=("previous_action",)
    ),
    "gSDE": Case(action=TORQUES, policy_kwargs={"use_sde": True}, layers=EVERYTHING),
    "squashed": Case(
        action=TORQUES, policy_kwargs={"use_sde": True, "squash_output": True}, layers=EVERYTHING
    ),
    "masks": Case(algorithm=MaskableRecurrentPPO, layers=("previous_action",)),
    "masks of choices": Case(algorithm=MaskableRecurrentPPO, action=CHOICES, layers=EVERYTHING),
    "masks of bits": Case(algorithm=MaskableRecurrentPPO, action=BITS, layers=EVERYTHING),
    "memoryless": Case(
        algorithm=PPO, policy="MlpPolicy", layers=EVERYTHING, outputs=("value",)
    ),
    "memoryless torques": Case(algorithm=PPO, policy="MlpPolicy", action=TORQUES),
    "memoryless choices": Case(algorithm=PPO, policy="MlpPolicy", action=CHOICES),
    "memoryless bits": Case(algorithm=PPO, policy="MlpPolicy", action=BITS),
    "memoryless sensors": Case(TWO_SENSORS, algorithm=PPO, policy="MultiInputPolicy"),
    "sensors": Case(
        TWO_SENSORS, policy="MultiInputLstmPolicy",
        layers=("normalize gyro", "previous_action", "previous_reward"), outputs=("value",),
    ),
    "stacked sensors": Case(
        spaces.Dict(gyro=VECTOR, gate=spaces.Box(0.0, 1.0, (2,), np.float64)),
        policy="MultiInputLstmPolicy", layers=("normalize", "stack"),
    ),
    "privileged critic": Case(
        policy="AsymmetricLstmPolicy", layers=("normalize", "previous_action", "privileged"),
        policy_kwargs={"grounding_coef": 0.5}, outputs=("belief",),
    ),
    "a number": Case(
        spaces.Discrete(5), layers=("previous_action",), policy="MultiInputLstmPolicy"
    ),
    "numbers": Case(spaces.MultiDiscrete([3, 4])),
    "switches": Case(spaces.MultiBinary(4)),
    "a matrix": Case(spaces.Box(-1.0, 1.0, (2, 3), np.float32), layers=("normalize",)),
    "double readings": Case(
        spaces.Box(-1.0, 1.0, (3,), np.float64), layers=("normalize", "previous_action")
    ),
    "whole readings": Case(spaces.Box(-90, 90, (3,), np.int16), layers=("normalize",)),
    "whole readings as they are": Case(
        spaces.Box(-9, 9, (3,), np.int16), layers=("previous_action",)
    ),
    "zeros are blank": Case(layers=("normalize zeros", "previous_action")),
    "SB3's normaliser": Case(layers=("plain normalize", "stack")),
    "flicker": Case(
        env=partial(gym.make, "FlickeringCartPole-v0"), layers=("previous_action",)
    ),
    "flicker, normalised": Case(
        env=partial(gym.make, "FlickeringCartPole-v0"), layers=EVERYTHING
    ),
    "camera": Case(IMAGE, policy="CnnLstmPolicy", layers=("transpose",), images=True),
    "stacked camera": Case(
        IMAGE, policy="CnnLstmPolicy", layers=("stack", "transpose"), images=True,
        policy_kwargs={"features_extractor_kwargs": {"features_dim": 16}},
    ),
    "camera and gyro": Case(
        WITH_CAMERA, policy="MultiInputLstmPolicy",
        layers=("normalize gyro", "transpose", "previous_action"), images=True,
        policy_kwargs={"features_extractor_kwargs": {"cnn_output_dim": 8}},
    ),
    "memoryless camera": Case(
        IMAGE, algorithm=PPO, policy="CnnPolicy", layers=("transpose",), images=True
    ),
}  # fmt: skip


class StateEnv(FixedLengthEnv):
    """Tells a state in its infos."""

    STATE = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.info_space = self.STATE

    def reset(self, **kwargs: Any):
        obs, info = super().reset(**kwargs)
        return obs, {**info, "state": np.float32([0.1, 0.2])}

    def step(self, action: Any):
        *rest, info = super().step(action)
        return *rest, {**info, "state": np.float32([0.1, 0.2])}


def make_env(case: Case) -> gym.Env:
    if case.env is not None:
        return case.env()
    if case.algorithm is MaskableRecurrentPPO:
        return ChangingMaskEnv(9, case.action)
    kind = StateEnv if "privileged" in case.layers else FixedLengthEnv
    return kind(9, case.observation, case.action)


def wrapped(case: Case, venv: Any) -> Any:
    for layer in case.layers:
        if layer.startswith("normalize"):
            rest = layer.split()[1:]
            keys = [key for key in rest if key != "zeros"] or None
            venv = VecNormalizeVisible(venv, norm_obs_keys=keys, zero_is_blank="zeros" in rest)
        elif layer == "plain normalize":
            venv = VecNormalize(venv)
        elif layer == "previous_action":
            venv = VecPreviousAction(venv)
        elif layer == "previous_reward":
            venv = VecPreviousReward(venv)
        elif layer == "stack":
            venv = VecFrameStack(venv, 3)
        elif layer == "transpose":
            venv = VecTransposeImage(venv)
        elif layer == "privileged":
            venv = VecPrivilegedInfo(venv, "state", StateEnv.STATE)
    return venv


def has_noise(case: Case) -> bool:
    return not case.policy_kwargs.get("use_sde")


def make_actor(case: Case, seed: int = 0, deterministic: bool = True) -> StatefulActor:
    """Make an actor with random weights and statistics."""
    rng = np.random.default_rng(seed)
    venv = wrapped(case, DummyVecEnv([partial(make_env, case)]))
    kwargs = dict(case.policy_kwargs)
    if case.algorithm is not PPO:
        kwargs.setdefault("lstm_hidden_size", 12)
    kwargs.setdefault("net_arch", [8])
    options = {"use_sde": True} if kwargs.pop("use_sde", False) else {}
    model = case.algorithm(
        case.policy, venv, n_steps=8, batch_size=8, seed=seed, policy_kwargs=kwargs, **options
    )
    with th.no_grad():
        for name, parameter in model.policy.named_parameters():
            # Of an image there are thousands of numbers to sum up.
            if name != "log_std" and not (case.images and "features_extractor" in name):
                noise = th.from_numpy(rng.normal(size=parameter.shape)).float()
                parameter.add_(0.3 * noise)
            if "weight_hh" in name and kwargs.get("rnn_class") is nn.RNN:
                # With larger ones a plain RNN is chaotic: rounding grows from step to step.
                parameter.mul_(0.5)
        model.policy.action_net.weight.mul_(3.0)
    spoil_statistics(case, venv, rng)
    return StatefulActor.like(model, venv, deterministic)


def spoil_statistics(case: Case, venv: Any, rng: np.random.Generator) -> None:
    """Give normalisers statistics as after a training in which blanks were told."""
    layer = venv
    while hasattr(layer, "venv"):
        if hasattr(layer, "obs_rms") and layer.norm_obs:
            every = layer.obs_rms.values() if isinstance(layer.obs_rms, dict) else [layer.obs_rms]
            mean, spread = case.readings or (0.2, 0.7)
            for rms in every:
                rms.mean = mean + 0.1 * spread * rng.normal(size=rms.mean.shape)
                rms.var = spread**2 * rng.uniform(0.5, 1.5, rms.var.shape)
            if isinstance(layer, VecNormalizeVisible) and not layer.zero_is_blank:
                layer.met_flags = True
        layer = layer.venv

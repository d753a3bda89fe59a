"""Images with channels last in memory: the same features, and only for whom it is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import FirstPass, fixed_length_envs, sharpen
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from torch import nn

from thrust_pomdp import CnnLstmPolicy, RecurrentPPO
from thrust_pomdp.ppo.channels_last import in_channels_last

IMAGE = spaces.Box(0, 255, (3, 40, 36), np.uint8)
DICT = spaces.Dict(camera=IMAGE, gyro=spaces.Box(-1.0, 1.0, (2,), np.float32))
ROW = "images with channels last"


class Viewing(NatureCNN):
    """Somebody's own, which needs its images as they come."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations.view(len(observations), 3, -1).view_as(observations))


class Recording(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strides: list[Any] = []

    def forward(self, x: th.Tensor) -> th.Tensor:
        self.strides.append(x.stride())
        return x


class OwnExtraction(CnnLstmPolicy):
    def extract_features(self, obs: Any, features_extractor: Any = None) -> Any:
        return super().extract_features(obs.view(len(obs), -1).view(obs.shape), features_extractor)


def model(space: Any = IMAGE, policy: Any = "CnnLstmPolicy", **kwargs: Any) -> RecurrentPPO:
    env = fixed_length_envs(5, 8, observation_space=space)
    if isinstance(space, spaces.Dict):
        policy = "MultiInputLstmPolicy"
    kwargs = {"lstm_hidden_size": 8, **kwargs}
    return RecurrentPPO(policy, env, n_steps=16, batch_size=16, seed=0, policy_kwargs=kwargs)


def features_and_gradients(made: RecurrentPPO) -> list[th.Tensor]:
    policy = made.policy
    obs = policy.obs_to_tensor(np.stack([IMAGE.sample() for _ in range(4)]))[0]
    features = policy._both_features(obs)[0]
    features.square().sum().backward()
    extractor = policy.pi_features_extractor
    return [features.detach(), *(p.grad for p in extractor.parameters())]


@pytest.mark.parametrize("encoder", [None, {"encoder": [7], "pi": [], "vf": []}])
def test_features_and_gradients_are_those_of_the_common_order(encoder, monkeypatch):
    IMAGE.seed(0)
    fast = features_and_gradients(model(net_arch=encoder))
    monkeypatch.setattr("thrust_pomdp.ppo.policies.in_channels_last", lambda obs, *_: obs)
    IMAGE.seed(0)
    plain = features_and_gradients(model(net_arch=encoder))
    for one, other in zip(fast, plain, strict=True):
        th.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("space", [IMAGE, DICT])
@pytest.mark.parametrize("share", [True, False])
def test_the_order_is_another_and_the_numbers_are_the_same(space, share):
    made = model(space, share_features_extractor=share)
    assert made.fast_paths()[ROW] == "used"
    policy = made.policy
    obs = policy.obs_to_tensor(made.env.reset())[0]
    told = in_channels_last(obs, policy.pi_features_extractor, policy.vf_features_extractor)
    before, after = (part["camera"] if space is DICT else part for part in (obs, told))
    assert th.equal(before, after)
    assert before.is_contiguous()
    assert after.is_contiguous(memory_format=th.channels_last)
    if space is DICT:
        assert told["gyro"] is obs["gyro"]


@pytest.mark.parametrize("space", [IMAGE, DICT])
def test_the_first_pass_equals_collection(space):
    made = model(space, shared_lstm_critic_gradient=True)
    made.lr_schedule = made.learning_rate = lambda _: 0.0
    sharpen(made)
    first_pass = FirstPass()
    made.learn(3 * 16 * 2, callback=first_pass)
    assert first_pass.minibatches > 10
    assert max(first_pass.log_prob_error, first_pass.value_error) < 1e-5


CHANGES: dict[str, tuple[Callable[[], RecurrentPPO], str]] = {}


def changed(reason: str) -> Callable[[Callable[[], RecurrentPPO]], Any]:
    def add(make: Callable[[], RecurrentPPO]) -> None:
        CHANGES[make.__name__] = (make, reason)

    return add


@changed("Viewing is not NatureCNN itself")
def a_cnn_with_a_view() -> RecurrentPPO:
    return model(features_extractor_class=Viewing)


@changed("the Conv2d has hooks")
def a_hook_on_a_convolution() -> RecurrentPPO:
    made = model()
    made.policy.features_extractor.cnn[0].register_forward_hook(lambda *_: None)
    return made


@changed("Recording is not Conv2d or ReLU or Flatten itself")
def a_layer_more() -> RecurrentPPO:
    made = model()
    made.policy.features_extractor.cnn.insert(0, Recording())
    return made


@changed("extract_features is not")
def an_extraction_of_ones_own() -> RecurrentPPO:
    return model(policy=OwnExtraction)


@changed("there are no images")
def another_extractor() -> RecurrentPPO:
    class Pooled(BaseFeaturesExtractor):
        def __init__(self, space: spaces.Space[Any]) -> None:
            super().__init__(space, 3)

        def forward(self, observations: th.Tensor) -> th.Tensor:
            return observations.view(len(observations), 3, -1).mean(dim=2)

    return model(features_extractor_class=Pooled)


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_user_wrote_gets_its_images_as_before(name):
    make, reason = CHANGES[name]
    made = make()
    assert reason in made.fast_paths()[ROW]
    made.learn(2 * 16)
    first = getattr(made.policy.features_extractor, "cnn", [None])[0]
    if isinstance(first, Recording):
        assert {stride[1] for stride in first.strides} == {40 * 36}

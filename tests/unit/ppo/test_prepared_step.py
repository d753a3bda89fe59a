"""The prepared step against ``policy.forward``: the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import CombinedExtractor, MlpExtractor

from thrust_pomdp.ppo.asymmetric_policy import AsymmetricLstmPolicy
from thrust_pomdp.ppo.policies import CnnLstmPolicy, MlpLstmPolicy
from thrust_pomdp.ppo.prepared_step import WatchedStep
from thrust_pomdp.recurrent import LRU, MinGRU
from thrust_pomdp.recurrent.compiled import load_kernels

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
PREPARED = {
    "separate": {},
    "shared": {"shared_lstm": True, "enable_critic_lstm": False},
    "shared, critic's gradient": {"shared_lstm_critic_gradient": True},
    "critic without memory": {"enable_critic_lstm": False},
    "no heads": {"net_arch": []},
    "one head": {"net_arch": {"pi": [7], "vf": []}},
    "no bias": {"lstm_kwargs": {"bias": False}},
    "GRU": {"rnn_class": th.nn.GRU},
    "RNN": {"rnn_class": th.nn.RNN},
    "RNN with relu": {"rnn_class": th.nn.RNN, "lstm_kwargs": {"nonlinearity": "relu"}},
    "minGRU": {"rnn_class": MinGRU},
    "two layers of LRU": {"rnn_class": LRU, "n_lstm_layers": 2},
    "encoder and layer norm": {"net_arch": {"encoder": [6, 5], "pi": [7]}, "layer_norm": True},
}


def make(obs=VECTOR, actions=None, cls=MlpLstmPolicy, **kwargs) -> MlpLstmPolicy:
    th.manual_seed(0)
    policy = cls(
        obs,
        spaces.Discrete(3) if actions is None else actions,
        lambda _: 1e-3,
        **{"lstm_hidden_size": 8, **kwargs},
    )
    with th.no_grad():
        policy.action_net.weight.mul_(100)
    return policy


def outputs(step, policy, obs_shape=(3,), dtype=th.float32):
    """Everything a few steps give, with episodes that start in between."""
    th.manual_seed(5)
    generator = th.Generator().manual_seed(1)
    states, given = policy.zero_states(4), []
    with th.no_grad():
        for number in range(6):
            obs = th.randn(4, *obs_shape, generator=generator).to(dtype)
            starts = th.tensor([number == 0, number == 2, False, number in (2, 3)])
            actions, values, log_prob, states = step(obs, states, starts)
            given += [actions, values, log_prob, *states.pi, *states.vf]
    return given


def assert_same(ours, expected):
    """Bit for bit; to rounding where the compiled loops do the step."""
    for one, other in zip(ours, expected, strict=True):
        if load_kernels() is None:
            assert th.equal(one, other)
        else:
            th.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


ACTIONS = {
    "Discrete": spaces.Discrete(3),
    "Box": spaces.Box(-1, 1, (2,), np.float32),
    "Box of two dimensions": spaces.Box(-1, 1, (2, 3), np.float32),
}


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("case", PREPARED)
def test_gives_what_forward_gives(case, actions):
    policy = make(actions=ACTIONS[actions], **PREPARED[case])
    step = WatchedStep(policy)
    assert step.reason is None  # else nothing is compared
    assert_same(outputs(step, policy), outputs(policy, policy))


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.Box(-1, 1, (2, 3), np.float32), th.float32),
        (spaces.Box(-1, 1, (3,), np.float64), th.float64),
        (spaces.Box(-9, 9, (3,), np.int32), th.int32),
    ],
)
def test_other_vectors(space, dtype):
    policy = make(space)
    step = WatchedStep(policy)
    assert step.reason is None
    assert_same(
        outputs(step, policy, space.shape, dtype), outputs(policy, policy, space.shape, dtype)
    )


def test_weights_that_change_in_place_are_followed():
    policy = make()
    step = WatchedStep(policy)
    before = outputs(step, policy)
    with th.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    after = outputs(step, policy)
    assert not th.equal(before[1], after[1])
    assert_same(after, outputs(policy, policy))


class TestAsymmetric:
    """A critic that sees more: each has features of its own keys."""

    SPACE = spaces.Dict(
        {
            "gyro": VECTOR,
            "state": spaces.Box(-1, 1, (2, 2), np.float64),
            "wheels": spaces.Box(-9, 9, (2,), np.int32),
        }
    )
    ARRANGEMENTS = {
        "separate": {},
        "beside the actor's memory": {"shared_lstm": True, "enable_critic_lstm": False},
        "beside it, both gradients": {"shared_lstm_critic_gradient": True},
        "critic without memory": {"enable_critic_lstm": False},
        "GRUs, encoder, layer norm": {
            "rnn_class": th.nn.GRU,
            "layer_norm": True,
            "net_arch": {"encoder": [6], "pi": [5], "vf": [5]},
        },
        "several keys": {"critic_only": ("state", "wheels"), "shared_lstm_critic_gradient": True},
    }

    @classmethod
    def outputs(cls, step, policy):
        th.manual_seed(5)
        generator = th.Generator().manual_seed(1)
        states, given = policy.zero_states(4), []
        with th.no_grad():
            for number in range(6):
                obs = {
                    key: (3 * th.randn(4, *space.shape, generator=generator)).to(
                        getattr(th, space.dtype.name)
                    )
                    for key, space in cls.SPACE.items()
                }
                starts = th.tensor([number == 0, number == 2, False, number in (2, 3)])
                actions, values, log_prob, states = step(obs, states, starts)
                given += [actions, values, log_prob, *states.pi, *states.vf]
        return given

    @pytest.mark.parametrize("actions", ACTIONS)
    @pytest.mark.parametrize("case", ARRANGEMENTS)
    def test_gives_what_forward_gives(self, case, actions):
        policy = make(self.SPACE, ACTIONS[actions], AsymmetricLstmPolicy, **self.ARRANGEMENTS[case])
        step = WatchedStep(policy)
        assert step.reason is None
        assert_same(self.outputs(step, policy), self.outputs(policy, policy))

    @pytest.mark.parametrize(
        "part", [spaces.Discrete(4), spaces.Box(0, 255, (1, 36, 36), np.uint8)]
    )
    def test_keys_that_are_no_vectors_are_left_to_forward(self, part):
        for key in ("gyro", "state"):
            space = spaces.Dict({**self.SPACE.spaces, key: part})
            policy = make(space, cls=AsymmetricLstmPolicy)
            assert WatchedStep(policy).reason is not None

    def test_so_are_policies_and_extractors_of_a_users_own(self):
        class Mine(AsymmetricLstmPolicy):
            def _critic_memory(self, memory_pi, vf_features):
                return super()._critic_memory(memory_pi, vf_features)

        class Extractor(CombinedExtractor):
            pass

        own = {"features_extractor_class": Extractor}
        for cls, kwargs in ((Mine, {}), (AsymmetricLstmPolicy, own)):
            policy = make(self.SPACE, cls=cls, **kwargs)
            assert WatchedStep(policy).reason is not None


class TestLeftToForward:
    class Mine(MlpLstmPolicy):
        def _heads(self, memory_pi, memory_vf):
            return super()._heads(memory_pi, memory_vf)

    @pytest.mark.parametrize(
        "policy",
        [
            lambda: make(actions=spaces.Box(-1, 1, (2,), np.float32), use_sde=True),
            lambda: make(actions=spaces.MultiBinary(3)),
            lambda: make(spaces.Discrete(4)),
            lambda: make(n_lstm_layers=2),
            lambda: make(share_features_extractor=False),
            lambda: make(spaces.Box(0, 255, (3, 36, 36), np.uint8), cls=CnnLstmPolicy),
            lambda: make(cls=TestLeftToForward.Mine),
        ],
    )
    def test_what_is_not_prepared(self, policy):
        policy = policy()
        assert WatchedStep(policy).reason is not None

    def test_modules_of_a_users_own(self):
        class Extractor(MlpExtractor):
            def forward_actor(self, features):
                return -super().forward_actor(features)

        class Extractors(MlpLstmPolicy):
            def _build_mlp_extractor(self):
                self.mlp_extractor = Extractor(8, net_arch=[8], activation_fn=th.nn.Tanh)

        class Double(th.nn.Linear):
            def forward(self, features):
                return 2 * super().forward(features)

        class Values(MlpLstmPolicy):
            def _build(self, lr_schedule):
                super()._build(lr_schedule)
                self.value_net = Double(self.mlp_extractor.latent_dim_vf, 1)

        for cls in (Extractors, Values):
            policy = make(cls=cls)
            assert WatchedStep(policy).reason is not None

    def test_a_method_replaced_on_the_object(self):
        policy = make()
        policy.forward = policy.forward
        assert WatchedStep(policy).reason is not None

    def test_a_policy_with_hooks(self):
        policy = make()
        policy.action_net.register_forward_hook(lambda *args: None)
        assert WatchedStep(policy).reason is not None

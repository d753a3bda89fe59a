"""Timings of the parts, to compare a later change with.

    pytest tests/benchmarks --benchmark-enable --benchmark-save=before
    pytest tests/benchmarks --benchmark-enable --benchmark-compare=0001

An ordinary test run does each once, without timing it.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from stable_baselines3.common.env_util import make_vec_env as sb3_make_vec_env
from stable_baselines3.common.logger import configure
from torch import nn

from thrust_pomdp import (
    GymnasiumVecEnv,
    MaskableRecurrentPPO,
    RecurrentPPO,
    RecurrentRolloutBuffer,
    StatefulActor,
    VecNormalizeVisible,
    VecPrivilegedInfo,
    look_inside,
    make_vec_env,
    wrappers,
)
from thrust_pomdp.ppo.prepared_step import WatchedStep
from thrust_pomdp.recurrent.memory import memory_sequences
from thrust_pomdp.recurrent.sequences import ResetLayout
from thrust_pomdp.wrappers import vector

N_SEQ, N_STEPS, HIDDEN = 4, 128, 64


@pytest.fixture(autouse=True)
def one_thread():
    before = th.get_num_threads()
    th.set_num_threads(1)
    yield
    th.set_num_threads(before)


@pytest.mark.parametrize("rnn_class", [nn.LSTM, nn.GRU, nn.RNN])
class TestLayer:
    """Forward and backward over a minibatch of 4 x 128 steps, H = 64."""

    @pytest.mark.benchmark(group="layer")
    def test_torchs_dense_call_without_resets(self, benchmark, rnn_class):
        rnn, inputs = rnn_class(4, HIDDEN), th.randn(N_STEPS, N_SEQ, 4)
        gradient = th.randn(N_STEPS, N_SEQ, HIDDEN)

        def forward_and_backward():
            rnn.zero_grad()
            rnn(inputs)[0].backward(gradient)

        benchmark(forward_and_backward)

    @pytest.mark.benchmark(group="layer")
    @pytest.mark.parametrize("steps_per_reset", [20, 60, 500])
    def test_with_resets(self, benchmark, rnn_class, steps_per_reset):
        rnn, inputs = rnn_class(4, HIDDEN), th.randn(N_SEQ, N_STEPS, 4)
        gradient = th.randn(N_SEQ, N_STEPS, HIDDEN)
        starts = np.arange(N_SEQ * N_STEPS).reshape(N_SEQ, N_STEPS) % steps_per_reset == 0
        layout = ResetLayout.from_episode_starts(starts)

        def forward_and_backward():
            rnn.zero_grad()
            memory_sequences(rnn, inputs, layout)[0].backward(gradient)

        benchmark(forward_and_backward)


class TestBuffer:
    @pytest.mark.benchmark(group="buffer")
    def test_one_window_in_and_out(self, benchmark):
        space = spaces.Box(-1, 1, (4,), np.float32)
        buffer = RecurrentRolloutBuffer(N_STEPS, space, spaces.Discrete(2), n_envs=16)
        step = (
            np.zeros((16, 4), np.float32), np.zeros(16, int), np.zeros(16, np.float32),
            np.zeros(16, bool), th.zeros(16), th.zeros(16),
        )  # fmt: skip

        def window():
            buffer.reset()
            for _ in range(N_STEPS):
                buffer.add(*step)
            buffer.compute_returns_and_advantage(th.zeros(16), np.zeros(16))
            return list(buffer.to_minibatches(4))

        assert len(benchmark(window)) == 4


class TestEnvironments:
    @pytest.mark.benchmark(group="env step")
    @pytest.mark.parametrize("n_envs", [16, 64, 256])
    @pytest.mark.parametrize(
        "make",
        [
            sb3_make_vec_env,
            make_vec_env,
            lambda *args, **kwargs: VecNormalizeVisible(make_vec_env(*args, **kwargs)),
            lambda *args, **kwargs: VecPrivilegedInfo(
                make_vec_env(*args, env_kwargs={"expose_state": True}, **kwargs)
            ),
        ],
        ids=["DummyVecEnv", "native", "native, normalised", "native, with its state"],
    )
    def test_a_step_of_all(self, benchmark, make, n_envs):
        env = make("thrust_pomdp:FlickeringCartPole-v0", n_envs, seed=0)
        env.reset()
        actions = iter(np.random.default_rng(0).integers(0, 2, (200_000, n_envs)))
        obs, *_ = benchmark(lambda: env.step(next(actions)))
        assert (obs["state"] if isinstance(obs, dict) else obs).shape == (n_envs, 4)


def make_model(
    n_lstms: int,
    policy_kwargs: dict[str, Any] | None = None,
    cls: Any = RecurrentPPO,
    env: Any = None,
    **arguments,
) -> RecurrentPPO:
    kwargs = {"shared_lstm_critic_gradient": True} if n_lstms == 1 else {}
    model = cls(
        "MlpLstmPolicy",
        env or make_vec_env("thrust_pomdp:FlickeringCartPole-v0", 16, seed=0),
        n_steps=N_STEPS,
        batch_size=4 * N_STEPS,
        n_epochs=4,
        learning_rate=0.0,
        policy_kwargs={
            "lstm_hidden_size": HIDDEN,
            "net_arch": [],
            **kwargs,
            **(policy_kwargs or {}),
        },
        device="cpu",
        **arguments,
    )
    model.set_logger(configure(None, []))
    return model


@pytest.mark.parametrize("n_lstms", [1, 2])
class TestAlgorithm:
    """16 environments x 128 steps, 4 epochs, 4 sequences per minibatch."""

    @pytest.mark.benchmark(group="policy step")
    def test_policy_step(self, benchmark, n_lstms):
        policy = make_model(n_lstms).policy
        step = WatchedStep(policy)
        obs, states, starts = th.zeros(16, 4), policy.zero_states(16), th.zeros(16, dtype=th.bool)
        with th.no_grad():
            benchmark(lambda: step(obs, states, starts))

    @pytest.mark.benchmark(group="window")
    def test_collecting_a_window(self, benchmark, n_lstms):
        model = make_model(n_lstms)
        _, callback = model._setup_learn(10**9)
        callback.on_training_start({}, {})
        assert benchmark(
            lambda: model.collect_rollouts(model.env, callback, model.rollout_buffer, N_STEPS)
        )

    @pytest.mark.benchmark(group="window")
    def test_training_on_a_window(self, benchmark, n_lstms):
        model = make_model(n_lstms)
        _, callback = model._setup_learn(10**9)
        callback.on_training_start({}, {})
        model.collect_rollouts(model.env, callback, model.rollout_buffer, N_STEPS)
        benchmark(model.train)
        assert model._n_updates >= 4


OPTIONS = {
    "LSTM": {},
    "GRU": {"rnn_class": nn.GRU},
    "RNN": {"rnn_class": nn.RNN},
    "layer norm": {"layer_norm": True},
    "encoder": {"net_arch": {"encoder": [64]}},
    "encoder, heads, layer norm": {
        "net_arch": {"encoder": [64], "pi": [64], "vf": [64]}, "layer_norm": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
class TestOptions:
    """One shared memory, 16 environments; the LSTM straight to linear heads is the plain one."""

    @pytest.mark.benchmark(group="policy step, by option")
    def test_policy_step(self, benchmark, options):
        policy = make_model(1, OPTIONS[options]).policy
        step = WatchedStep(policy)
        assert step.reason is None
        obs, states, starts = th.zeros(16, 4), policy.zero_states(16), th.zeros(16, dtype=th.bool)
        with th.no_grad():
            benchmark(lambda: step(obs, states, starts))


CRITICS = {
    "memory of its own": {},
    "beside the actor's memory": {"shared_lstm_critic_gradient": True},
    "grounded": {"shared_lstm_critic_gradient": True, "grounding_coef": 0.5},
    "without memory": {"enable_critic_lstm": False},
}


@pytest.mark.parametrize("critic", CRITICS)
class TestPrivilegedCritic:
    """The sizes of TestAlgorithm, with a critic that sees the state."""

    def ready(self, critic):
        inside = make_vec_env(
            "thrust_pomdp:FlickeringCartPole-v0", 16, seed=0, env_kwargs={"expose_state": True}
        )
        model = RecurrentPPO(
            "AsymmetricLstmPolicy",
            VecPrivilegedInfo(inside),
            n_steps=N_STEPS,
            batch_size=4 * N_STEPS,
            n_epochs=4,
            learning_rate=0.0,
            policy_kwargs={"lstm_hidden_size": HIDDEN, "net_arch": [], **CRITICS[critic]},
            device="cpu",
        )
        model.set_logger(configure(None, []))
        _, callback = model._setup_learn(10**9)
        callback.on_training_start({}, {})
        return model, callback

    @pytest.mark.benchmark(group="window")
    def test_collecting_a_window(self, benchmark, critic):
        model, callback = self.ready(critic)
        assert benchmark(
            lambda: model.collect_rollouts(model.env, callback, model.rollout_buffer, N_STEPS)
        )

    @pytest.mark.benchmark(group="window")
    def test_training_on_a_window(self, benchmark, critic):
        model, callback = self.ready(critic)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, N_STEPS)
        benchmark(model.train)
        assert model._n_updates >= 4


class AllowsEverything(gym.vector.VectorWrapper):
    """Masks that change nothing, so that the episodes are those of the window without."""

    def action_masks(self):
        return np.ones((self.num_envs, 2), bool)


class TestActionMasks:
    """What masks cost is the difference to the same window without (``TestAlgorithm``, 1 LSTM)."""

    def make(self) -> MaskableRecurrentPPO:
        env = make_vec_env("thrust_pomdp:FlickeringCartPole-v0", 16, seed=0)
        masked = GymnasiumVecEnv(AllowsEverything(env.env))
        return make_model(1, cls=MaskableRecurrentPPO, env=masked)

    @pytest.mark.benchmark(group="window")
    def test_collecting_a_window(self, benchmark):
        model = self.make()
        _, callback = model._setup_learn(10**9)
        callback.on_training_start({}, {})
        assert benchmark(
            lambda: model.collect_rollouts(model.env, callback, model.rollout_buffer, N_STEPS)
        )
        assert model.use_masking

    @pytest.mark.benchmark(group="window")
    def test_training_on_a_window(self, benchmark):
        model = self.make()
        _, callback = model._setup_learn(10**9)
        callback.on_training_start({}, {})
        model.collect_rollouts(model.env, callback, model.rollout_buffer, N_STEPS)
        benchmark(model.train)
        assert model._n_updates >= 4


CUTS = {
    "whole windows": {},
    **{f"{length}": {"sequence_length": length} for length in (16, 32, 64, 128)},
    **{
        f"{length}, burn-in {length // 2}": {"sequence_length": length, "burn_in": length // 2}
        for length in (16, 32, 64)
    },
    **{
        f"{length}, refreshed": {"sequence_length": length, "refresh_states": True}
        for length in (16, 32, 64)
    },
}


class TestSubsequences:
    """An update on 16 environments x 128 steps, 4 epochs, 512 steps in a minibatch."""

    @pytest.mark.benchmark(group="training on subsequences")
    @pytest.mark.parametrize("cut", CUTS)
    def test_training_on_a_window(self, benchmark, cut):
        model = make_model(1, **CUTS[cut])
        _, callback = model._setup_learn(10**9)
        callback.on_training_start({}, {})
        model.collect_rollouts(model.env, callback, model.rollout_buffer, N_STEPS)
        benchmark(model.train)
        assert model._n_updates >= 4


class TestActing:
    """What seeing raw observations as in training, and looking inside, add to ``predict``."""

    def model_and_env(self, **seen):
        env = make_vec_env("FlickeringCartPole-v0", 16, seed=0, **seen)
        kwargs = {"lstm_hidden_size": HIDDEN}
        return RecurrentPPO(
            "MlpLstmPolicy", env, n_steps=8, batch_size=8, policy_kwargs=kwargs
        ), env

    @pytest.mark.benchmark(group="act")
    @pytest.mark.parametrize("raw", [False, True], ids=["as trained", "raw"])
    def test_an_action_of_all(self, benchmark, raw):
        seen = {"normalize": True, "previous_action": True, "previous_reward": True}
        model, env = self.model_and_env(**seen if raw else {})
        actor = StatefulActor.like(model, env) if raw else StatefulActor(model)
        obs, rewards = np.ones((16, 4), np.float32), np.ones(16)
        assert benchmark(lambda: actor.act(obs, reward=rewards)).shape == (16,)

    @pytest.mark.benchmark(group="look inside")
    def test_looking_inside_for_50_steps(self, benchmark):
        model, env = self.model_and_env()
        assert benchmark(lambda: look_inside(model, env, 50)).values.shape == (50, 16)


class StillEnv(gym.Env):
    """Costs next to nothing itself, so that what is measured is the wrapper."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.ones(4, np.float32), {}

    def step(self, action):
        return np.ones(4, np.float32), 1.0, False, False, {}


class StillVectorEnv(VectorEnv):
    """The same for many environments at once."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, n_envs):
        self.num_envs = n_envs
        for name in ("observation_space", "action_space"):
            space = getattr(StillEnv, name)
            setattr(self, f"single_{name}", space)
            setattr(self, name, batch_space(space, n_envs))

    def reset(self, *, seed=None, options=None):
        return np.ones((self.num_envs, 4), np.float32), {}

    def step(self, actions):
        flags = np.zeros((2, self.num_envs), bool)
        return np.ones((self.num_envs, 4), np.float32), np.ones(self.num_envs), *flags, {}


WRAPPERS = {
    "bare": None,
    "flicker": ("FlickerObservation", {}),
    "bursts": ("FlickerObservation", {"burst_len": 4}),
    "dropout": ("ElementDropoutObservation", {}),
    "drop": ("MaskObservation", {"drop": [1, 3]}),
    "zero": ("MaskObservation", {"zero": [1, 3]}),
    "previous action": ("PreviousActionObservation", {}),
    "previous reward": ("PreviousRewardObservation", {}),
}


def wrap(env, module, name):
    if WRAPPERS[name] is None:
        return env
    wrapper, arguments = WRAPPERS[name]
    return getattr(module, wrapper)(env, **arguments)


@pytest.mark.parametrize("name", WRAPPERS)
class TestWrappers:
    """What a wrapper costs is the difference to the bare environment."""

    @pytest.mark.benchmark(group="wrapper step")
    def test_a_step_of_one(self, benchmark, name):
        env = wrap(StillEnv(), wrappers, name)
        env.reset(seed=0)
        action = np.int64(1)
        assert benchmark(lambda: env.step(action))[1] == 1.0

    @pytest.mark.benchmark(group="vector wrapper step")
    @pytest.mark.parametrize("n_envs", [16, 64, 256, 1024])
    def test_a_step_of_all(self, benchmark, name, n_envs):
        envs = wrap(StillVectorEnv(n_envs), vector, name)
        envs.reset(seed=0)
        actions = np.ones(n_envs, np.int64)
        assert len(benchmark(lambda: envs.step(actions))[0]) == n_envs

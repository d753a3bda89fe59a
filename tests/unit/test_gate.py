"""The gate of substitutes: what users change runs as they wrote it, on every path."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import fixed_length_envs, sharpen
from same_draws import draw_alike
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
)
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnvWrapper
from torch import nn
from users_changes import CHANGES, Change

from thrust_pomdp import RecurrentPPO, gate, make_vec_env
from thrust_pomdp.ppo.checks import depends_on_mode
from thrust_pomdp.ppo.code_between_steps import against_acting_alone
from thrust_pomdp.ppo.distributions import (
    DrawnBernoulliDistribution,
    DrawnMultiCategoricalDistribution,
    PlainCategoricalDistribution,
    PlainDiagGaussianDistribution,
)
from thrust_pomdp.ppo.prepared_step import WatchedStep
from thrust_pomdp.recurrent import GTrXL
from thrust_pomdp.recurrent.compiled import load_kernels
from thrust_pomdp.recurrent.memory import memory_sequences, memory_step
from thrust_pomdp.recurrent.scanned import ScannedMemory
from thrust_pomdp.recurrent.sequences import ResetLayout

N_STEPS, MOMENT = 24, 9
OBS = spaces.Box(-1.0, 1.0, (4,), np.float32)
ACTIONS = {
    "Discrete": spaces.Discrete(2),
    "Box": spaces.Box(-1.0, 1.0, (1,), np.float32),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
    "MultiBinary": spaces.MultiBinary(2),
}
#: Ours -> what makes SB3's, for which it stands in.
THEIRS: dict[type, Callable[[Any], Any]] = {
    PlainCategoricalDistribution: lambda ours: CategoricalDistribution(ours.action_dim),
    PlainDiagGaussianDistribution: lambda ours: DiagGaussianDistribution(ours.action_dim),
    DrawnMultiCategoricalDistribution: lambda ours: MultiCategoricalDistribution(ours.action_dims),
    DrawnBernoulliDistribution: lambda ours: BernoulliDistribution(ours.action_dims),
}


class Outcome(NamedTuple):
    """All that a change can move."""

    actions: np.ndarray
    values: np.ndarray
    log_probs: np.ndarray
    first_pass: list[th.Tensor]
    parameters: dict[str, th.Tensor]
    logged: dict[str, float]


class InMidRollout(BaseCallback):
    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def _on_step(self) -> bool:
        if self.n_calls == MOMENT:
            self.change.apply(self.model)
            if gate.is_shut:
                use_sb3s_distribution(self.model.policy)
        return True


@contextmanager
def shut_gate(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let nothing stand in: modules are called, methods run, in torch's own operations."""
    with patch.context() as inner:
        inner.setattr(gate, "against_transforms", lambda: "the gate is shut")
        inner.setattr(gate, "against_layer", lambda rnn: "the gate is shut")
        inner.setattr(ScannedMemory, "against_scan", lambda self: "the gate is shut")
        inner.setattr(GTrXL, "against_bands", lambda self: "the gate is shut")
        inner.setattr(gate, "is_shut", True)
        yield


def use_sb3s_distribution(policy: Any) -> None:
    """Put SB3's distribution where ours is its substitute, and nobody else's."""
    ours = policy.action_dist
    if type(ours) in THEIRS and not {"log_prob", "sample"} & vars(ours).keys():
        policy.action_dist = draw_alike(THEIRS[type(ours)](ours))


def outcome(change: Change) -> Outcome:
    """Collect a window, evaluate it, and train on it once."""
    env = fixed_length_envs(7, 10, 30, observation_space=OBS, action_space=ACTIONS[change.actions])
    kwargs = dict(change.kwargs)
    use_sde = kwargs.pop("use_sde", False)
    model = RecurrentPPO(
        change.policy,
        env,
        n_steps=N_STEPS,
        batch_size=None,
        n_epochs=2,
        learning_rate=1e-2,
        ent_coef=0.01,
        seed=3,
        use_sde=use_sde,
        policy_kwargs={"lstm_hidden_size": 8, "net_arch": {"pi": [7], "vf": [7]}, **kwargs},
    )
    model.set_logger(configure(None, []))
    sharpen(model)
    model.undo = None
    try:
        return _outcome(model, change)
    finally:
        if model.undo is not None:
            model.undo.remove()


def _outcome(model: RecurrentPPO, change: Change) -> Outcome:
    callback = InMidRollout(change if change.moment == "mid" else Change())
    if change.moment == "before":
        change.apply(model)
    if gate.is_shut:
        use_sb3s_distribution(model.policy)
    _, callbacks = model._setup_learn(10_000, callback)
    callbacks.on_training_start({}, {})
    th.manual_seed(5)
    model.collect_rollouts(model.env, callbacks, model.rollout_buffer, N_STEPS)
    buffer = model.rollout_buffer
    batch = buffer.to_sequence_batch()
    with th.no_grad():
        first_pass = model.policy.evaluate_sequences(
            batch.observations, batch.actions, batch.initial_state, batch.layout
        )
    model.train()
    return Outcome(
        buffer.actions.copy(),
        buffer.values.copy(),
        buffer.log_probs.copy(),
        [part for part in first_pass if part is not None],
        {name: p.detach().clone() for name, p in model.policy.state_dict().items()},
        {
            name: value
            for name, value in model.logger.name_to_value.items()
            if name.startswith("train/")
        },
    )


@pytest.fixture(autouse=True)
def _open_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "is_shut", False, raising=False)


# What torch's compiler looks at while it compiles the heads.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
class TestUsersChanges:
    def test_are_many(self):
        assert len(CHANGES) >= 100

    @pytest.mark.parametrize("name", CHANGES)
    def test_give_what_the_plain_torch_path_gives(self, name, monkeypatch):
        change = CHANGES[name]
        ours = outcome(change)
        with shut_gate(monkeypatch):
            plain = outcome(change)
        np.testing.assert_allclose(ours.actions, plain.actions, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ours.values, plain.values, rtol=0, atol=1e-5)
        np.testing.assert_allclose(ours.log_probs, plain.log_probs, rtol=1e-5, atol=1e-5)
        th.testing.assert_close(ours.first_pass, plain.first_pass, rtol=1e-5, atol=1e-5)
        assert ours.logged == pytest.approx(plain.logged, rel=1e-3, abs=change.rounding)
        tolerance = 10 * change.rounding
        th.testing.assert_close(ours.parameters, plain.parameters, rtol=tolerance, atol=tolerance)

    @pytest.mark.parametrize(
        "name", [name for number, name in enumerate(CHANGES) if number % 3 == 0]
    )
    def test_give_it_where_layers_are_large(self, name, monkeypatch):
        monkeypatch.setattr("thrust_pomdp.recurrent.large_steps.LARGE", 10)
        self.test_give_what_the_plain_torch_path_gives(name, monkeypatch)

    @pytest.mark.parametrize(
        "name", [name for name, change in CHANGES.items() if change.moment == "before"]
    )
    def test_do_not_break_the_first_pass(self, name):
        if name in ("windows evaluated in one's own way", "a hook on all modules"):
            pytest.skip("the change itself makes it another")
        result = outcome(CHANGES[name])
        values, log_prob = (part.T.numpy() for part in result.first_pass[:2])
        np.testing.assert_allclose(values, result.values, rtol=0, atol=2e-5)
        np.testing.assert_allclose(log_prob, result.log_probs, rtol=1e-5, atol=2e-5)

    def test_the_comparison_would_see_a_stale_weight(self, monkeypatch):
        """What the faults of the first version did: go on with what was laid out before."""
        if load_kernels() is None:
            pytest.skip("nothing is laid out")
        monkeypatch.setattr(
            "thrust_pomdp.ppo.compiled_policy.CompiledPolicy.arrays", lambda self: self._arrays
        )
        with pytest.raises((AssertionError, AttributeError)):
            self.test_give_what_the_plain_torch_path_gives("clamped through .data", monkeypatch)

    def test_the_comparison_would_see_an_unwatched_module(self, monkeypatch):
        monkeypatch.setattr(gate.Watch, "holds", lambda self: True)
        with pytest.raises(AssertionError):
            self.test_give_what_the_plain_torch_path_gives(
                "an action_net of a subclass of Linear, in mid-rollout", monkeypatch
            )


class TestReasons:
    """``model.fast_paths()`` says what is used, and why something is not."""

    @staticmethod
    def model(**kwargs: Any) -> RecurrentPPO:
        arguments = {"policy_kwargs": {"lstm_hidden_size": 8}, **kwargs}
        return RecurrentPPO("MlpLstmPolicy", "FlickeringCartPole-v0", **arguments)

    def test_are_none_where_nothing_was_changed(self):
        said = self.model().fast_paths()
        del said["native vector environment"], said["infos built when looked at"]
        assert "DummyVecEnv" in said.pop("many steps at once") or load_kernels() is None
        compiled = "used" if load_kernels() is not None else "Numba is missing or switched off"
        assert said == {
            "prepared step": "used",
            "compiled memory, actor, step": compiled,
            "compiled memory, actor, windows": compiled,
            "compiled memory, critic, step": compiled,
            "compiled memory, critic, windows": compiled,
            "compiled heads": compiled,
            "compiled step": compiled,
            "compiled loss": compiled,
            "compiled minibatch": compiled,
            "images with channels last": "there are no images, or no NatureCNN to see them",
            "fused optimizer": "used",
        }

    def test_name_what_was_changed(self):
        model = self.model()
        model.policy.lstm_actor.register_forward_hook(lambda *args: None)
        said = model.fast_paths()
        assert said["prepared step"] == "lstm_actor: it has hooks"
        assert said["compiled memory, actor, windows"] == "the LSTM has hooks"
        model = self.model()
        nn.utils.parametrizations.weight_norm(model.policy.lstm_critic, "weight_hh_l0")
        said = model.fast_paths()
        assert said["prepared step"] == (
            "lstm_critic: ParametrizedLSTM is not LSTM or GRU or RNN itself"
        )
        model = self.model(policy_kwargs={"optimizer_class": th.optim.SGD})
        assert "SGD has no fused form" in model.fast_paths()["fused optimizer"]

    def test_are_told_of_environments(self):
        said = self.model().fast_paths()
        assert said["native vector environment"] == "the environment is a DummyVecEnv"

    def test_are_printed_once(self, capsys):
        model = self.model(n_steps=32, batch_size=32, verbose=1)
        model.learn(32)
        model.learn(32)
        assert capsys.readouterr().out.count("prepared step") == 1

    def test_do_not_reach_the_logger(self):
        model = self.model(n_steps=32, batch_size=32)
        model.set_logger(configure(None, []))
        model.learn(32)
        assert not any("fast" in name or "prepared" in name for name in model.logger.name_to_value)


class TestTracing:
    """Traced, a compiled loop would be a constant."""

    @staticmethod
    def inputs(seed: int) -> tuple[Any, ...]:
        generator = th.Generator().manual_seed(seed)
        features = th.randn(2, 3, generator=generator)
        states = tuple(th.randn(1, 2, 5, generator=generator) for _ in range(2))
        return features, states, th.tensor([seed % 2 == 0, True])

    @pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
    @pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # torch's own layer checks sizes
    def test_a_traced_step_follows_its_inputs(self):
        class Step(nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm = nn.LSTM(3, 5)

            def forward(self, features, hidden, cell, starts):
                output, states = memory_step(self.lstm, features, (hidden, cell), starts)
                return output, *states

        def flat(seed):
            features, states, starts = self.inputs(seed)
            return features, *states, starts

        step = Step()
        traced = th.jit.trace(step, flat(1), check_trace=False)
        for seed in (2, 3, 4):
            th.testing.assert_close(traced(*flat(seed)), step(*flat(seed)))

    def test_functional_call_uses_the_weights_it_is_given(self):
        lstm = nn.LSTM(3, 5)
        other = {name: 2 * p.detach() for name, p in lstm.named_parameters()}

        class Windows(nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm = lstm

            def forward(self, features, layout):
                return memory_sequences(self.lstm, features, layout)[0]

        windows, layout = Windows(), ResetLayout(th.tensor([[True, False, True, False]]))
        features = th.randn(1, 4, 3)
        given = th.func.functional_call(
            windows, {f"lstm.{name}": value for name, value in other.items()}, (features, layout)
        )
        th.testing.assert_close(
            windows(features, layout), memory_sequences(lstm, features, layout)[0]
        )
        with th.no_grad():
            for name, parameter in lstm.named_parameters():
                parameter.copy_(other[name])
        th.testing.assert_close(given, windows(features, layout))

    def test_transforms_of_torch_func_get_torchs_operations(self):
        lstm, layout = nn.LSTM(3, 5), ResetLayout(th.tensor([[True, False, True, False]]))
        features = th.randn(1, 4, 3)

        def total(features):
            return memory_sequences(lstm, features, layout)[0].square().sum()

        gradient = th.func.grad(total)(features)
        features.requires_grad_()
        (expected,) = th.autograd.grad(total(features), features)
        th.testing.assert_close(gradient, expected)

    def test_the_layer_is_a_step_by_step_loop_with_resets(self):
        """What is called instead of torch's functions is exact too, forward and backward."""
        starts = th.tensor([[True, False, False, True, False], [False, True, True, False, False]])
        features = th.randn(2, 5, 3)
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            plain = kind(3, 4, num_layers=2)
            hooked = kind(3, 4, num_layers=2)
            hooked.load_state_dict(plain.state_dict())
            hooked.register_forward_hook(lambda *args: None)
            results = []
            for rnn in (plain, hooked):
                output, states = memory_sequences(rnn, features, ResetLayout(starts))
                output.square().sum().backward()
                results.append((output, states, [p.grad for p in rnn.parameters()]))
            th.testing.assert_close(*results)


class TestWatch:
    def test_one_that_is_left_alone_holds(self):
        policy = TestReasons.model().policy
        step = WatchedStep(policy)
        assert step.reason is None
        assert step._watch.holds()

    def test_a_step_that_lost_its_preparation_gets_it_back_with_the_next_window(self):
        model = TestReasons.model()
        step = WatchedStep(model.policy)
        handle = model.policy.action_net.register_forward_hook(lambda *args: None)
        states, starts = model.policy.zero_states(1), th.zeros(1, dtype=th.bool)
        with th.no_grad():
            step(th.zeros(1, 4), states, starts)
        assert step.reason == "action_net: it has hooks"
        handle.remove()
        assert WatchedStep(model.policy).reason is None


class Noisy(nn.Module):
    def forward(self, rows):
        return rows + th.randn_like(rows) if self.training else rows


class TestModulesThatAskForTheMode:
    MODULES = {
        "BatchNorm1d": lambda: nn.BatchNorm1d(64),
        "Dropout": lambda: nn.Dropout(0.1),
        "AlphaDropout": lambda: nn.AlphaDropout(0.1),
        "RReLU": lambda: nn.RReLU(),
        "one of their own": Noisy,
        "LSTM": lambda: nn.LSTM(64, 64, num_layers=2, dropout=0.1),
        "MultiheadAttention": lambda: nn.MultiheadAttention(64, 1, dropout=0.1),
        "spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64)),
    }

    @pytest.mark.parametrize("name", MODULES)
    def test_warn_once_and_are_named(self, name):
        model = TestReasons.model(n_steps=16, batch_size=16)
        model.policy.mlp_extractor.extra = self.MODULES[name]()
        with pytest.warns(UserWarning, match=r"mlp_extractor\.extra"):
            model.learn(16)
        model.learn(16)

    @pytest.mark.parametrize(
        "module",
        [
            nn.Dropout(0.0), nn.LayerNorm(3), nn.Tanh(), nn.GELU(), nn.LSTM(3, 3),
            nn.LSTM(3, 3, dropout=0.0, num_layers=2), nn.InstanceNorm1d(3), nn.Linear(2, 2),
            nn.MultiheadAttention(4, 1),
        ],
    )  # fmt: skip
    def test_others_do_not(self, module):
        assert not any(map(depends_on_mode, module.modules()))

    def test_the_warning_points_at_the_line_that_learns(self):
        model = TestReasons.model(n_steps=16, batch_size=16)
        model.policy.mlp_extractor.policy_net.append(nn.Dropout(0.5))
        with pytest.warns(UserWarning, match="Dropout") as caught:
            model.learn(16)
        assert caught[0].filename == __file__


class TestActingAlone:
    """Nothing is watched where no code of others runs between two steps."""

    @staticmethod
    def why(callback: Any = None, env: Any = None, model: Any = None) -> str | None:
        venv = env or make_vec_env("FlickeringCartPole-v0", 2, normalize=True, previous_action=True)
        made = (model or RecurrentPPO)("MlpLstmPolicy", venv, n_steps=8, batch_size=8)
        _, ready = made._setup_learn(16, callback)
        return against_acting_alone(made, made.env, ready)

    @pytest.fixture
    def one_thread(self, monkeypatch):
        """Other tests leave threads behind, such as a progress bar's."""
        monkeypatch.setattr("thrust_pomdp.ppo.code_between_steps._other_threads", list)

    @pytest.mark.usefixtures("one_thread")
    def test_a_plain_training_is_alone(self):
        assert self.why() is None
        assert self.why([]) is None

    @pytest.mark.usefixtures("one_thread")
    def test_others_are_not(self):
        class Mine(RecurrentPPO):
            pass

        class Layer(VecEnvWrapper):
            def reset(self):
                return self.venv.reset()

            def step_wait(self):
                return self.venv.step_wait()

        assert "Idle is called" in self.why(Idle())
        assert "ConvertCallback is called" in self.why(lambda *args: True)
        assert "Idle is called" in self.why([Idle()])
        assert "DummyVecEnv" in self.why(env=fixed_length_envs(5, 6))
        inner = make_vec_env("FlickeringCartPole-v0", 2)
        assert "Layer around it" in self.why(env=Layer(inner))
        assert "Mine is a class" in self.why(model=Mine)

    def test_another_thread_is_company(self):
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait)
        thread.start()
        try:
            assert self.why() == "other threads run"
        finally:
            stop.set()
            thread.join()

    @pytest.mark.usefixtures("one_thread")
    def test_it_trains_to_the_same_digits(self):
        weights = []
        for callback in (None, Idle()):
            env = make_vec_env("FlickeringCartPole-v0", 4, seed=0)
            model = RecurrentPPO(
                "MlpLstmPolicy", env, n_steps=16, batch_size=32, seed=0,
                policy_kwargs={"lstm_hidden_size": 8},
            )  # fmt: skip
            model.learn(3 * 64, callback=callback)
            weights.append(model.policy.state_dict())
        for name, one in weights[0].items():
            assert th.equal(one, weights[1][name]), name


class Idle(BaseCallback):
    def _on_step(self) -> bool:
        return True

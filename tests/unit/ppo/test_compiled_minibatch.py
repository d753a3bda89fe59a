"""A minibatch in one compiled call against torch's operations, and where it is left alone."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import fixed_length_envs, sharpen
from stable_baselines3.common.logger import configure
from torch import nn

from thrust_pomdp import MlpLstmPolicy, RecurrentPPO, make_vec_env
from thrust_pomdp.ppo.compiled_minibatch import CompiledMinibatch, Numbers, against_minibatch
from thrust_pomdp.ppo.losses import ppo_losses
from thrust_pomdp.ppo.sequence_batch import SequenceBatch
from thrust_pomdp.ppo.training import TrainsOnWindows
from thrust_pomdp.recurrent.compiled import load_kernels
from thrust_pomdp.recurrent.sequences import ResetLayout, RNNStates

pytestmark = pytest.mark.skipif(load_kernels() is None, reason="Numba is missing or switched off")

CRITICS: list[dict[str, bool]] = [
    {},
    {"enable_critic_lstm": False},
    {"shared_lstm": True, "enable_critic_lstm": False},
    {"shared_lstm_critic_gradient": True},
]


def random_policy(rng: np.random.Generator) -> MlpLstmPolicy:
    """Return a policy of any kind that the loops know."""

    def sizes() -> list[int]:
        return rng.integers(1, 40, size=rng.integers(0, 3)).tolist()

    is_box = rng.random() < 0.5
    # Of a density in many dimensions float32 knows little: its log is a large number.
    n_actions = int(rng.integers(1, 10 if is_box else 40))
    th.manual_seed(int(rng.integers(2**31)))
    policy = MlpLstmPolicy(
        spaces.Box(-9, 9, (int(rng.integers(1, 50)),), np.float32),
        spaces.Box(-1, 1, (n_actions,)) if is_box else spaces.Discrete(n_actions),
        lambda _: 1e-3,
        net_arch={"pi": sizes(), "vf": sizes()}
        | ({"encoder": sizes() or [7]} if rng.random() < 0.4 else {}),
        activation_fn=[nn.Tanh, nn.ReLU][rng.integers(2)],
        lstm_hidden_size=int(rng.integers(1, 70)),
        rnn_class=[nn.LSTM, nn.GRU][rng.integers(2)],
        lstm_kwargs={"bias": bool(rng.random() < 0.8)},
        **CRITICS[rng.integers(4)],
    )
    with th.no_grad():
        for parameter in policy.parameters():
            parameter += 0.2 * th.randn_like(parameter)
    return policy


def random_batch(policy: MlpLstmPolicy, rng: np.random.Generator) -> SequenceBatch:
    """Return windows whose log-probabilities and values are near what the policy gives now."""
    shape = (int(rng.integers(1, 7)), int(rng.integers(1, 13)))

    def normal(*more: int) -> th.Tensor:
        return th.as_tensor(rng.normal(size=(*shape, *more)), dtype=th.float32)

    space = policy.action_space
    if isinstance(space, spaces.Discrete):
        actions = th.as_tensor(rng.integers(int(space.n), size=(*shape, 1)))
    else:
        actions = normal(*space.shape)
    starts = th.as_tensor(rng.random(shape) < 0.2)
    states = None
    if rng.random() < 0.5:
        states = policy.zero_states(shape[0])
        pi = tuple(th.randn_like(part) for part in states.pi)
        own = policy.lstm_critic is not None
        states = RNNStates(pi, tuple(th.randn_like(part) for part in states.vf) if own else pi)
    layout, obs = ResetLayout.from_episode_starts(starts), normal(*policy.observation_space.shape)
    with th.no_grad():
        values, log_prob, _ = policy.evaluate_sequences(obs, actions, states, layout)
    return SequenceBatch(
        observations=obs,
        actions=actions,
        old_values=values + 0.3 * normal(),
        old_log_prob=log_prob + 0.3 * normal(),
        advantages=normal() + 0.5,
        returns=values + normal(),
        episode_starts=starts,
        initial_state=states,
        layout=layout,
    )


def random_numbers(rng: np.random.Generator) -> Numbers:
    return Numbers(
        clip_range=float(rng.uniform(0.05, 0.4)),
        clip_range_vf=None if rng.random() < 0.5 else float(rng.uniform(0.1, 0.5)),
        ent_coef=float(rng.choice([0.0, 0.01, 0.3])),
        vf_coef=float(rng.choice([0.0, 0.5, 1.0])),
        normalize_advantage=bool(rng.random() < 0.7),
        max_grad_norm=math.inf,
        target_kl=None,
    )


def by_torch(policy: MlpLstmPolicy, batch: SequenceBatch, numbers: Numbers) -> Any:
    """Return the loss with its terms, by torch's operations alone; gradients are left."""
    *coefficients, _, _ = numbers._asdict().items()
    losses = ppo_losses(policy, batch, **dict(coefficients))
    policy.optimizer.zero_grad()
    losses.loss.backward()
    return losses


class TestGradients:
    @pytest.mark.parametrize("block", range(10))
    def test_of_random_models_are_those_of_torch(self, block, monkeypatch):
        """All kinds of memories, critics, heads and actions; 300 models in all."""
        kinds = set()
        for seed in range(30 * block, 30 * (block + 1)):
            rng = np.random.default_rng(seed)
            policy = random_policy(rng)
            batch, numbers = random_batch(policy, rng), random_numbers(rng)
            before = copy.deepcopy(policy.state_dict())
            with monkeypatch.context() as patch:
                patch.setattr("thrust_pomdp.recurrent.compiled.load_kernels", lambda: None)
                theirs = by_torch(policy, batch, numbers)
            expected = {name: p.grad.clone() for name, p in policy.named_parameters()}
            ours = CompiledMinibatch(policy).train(batch, numbers)
            th.testing.assert_close(ours[:6], tuple(theirs[:6]), rtol=1e-5, atol=2e-6)
            largest = max(grad.abs().max() for grad in expected.values())
            for name, parameter in policy.named_parameters():
                error = (parameter.grad - expected[name]).abs().max()
                assert error <= 1e-5 * largest, f"seed {seed}: {name} is off by {error / largest}"
                moved = (parameter - before[name]).abs()
                assert moved.max() <= 1.001e-3  # Adam's first step is the learning rate at most
            kinds.add((type(policy.lstm_actor), type(policy.action_space)))
        assert len(kinds) == 4

    def test_an_impossible_action_gives_no_nan(self):
        rng = np.random.default_rng(0)
        policy = random_policy(rng)
        while not isinstance(policy.action_space, spaces.Discrete) or policy.action_space.n < 3:
            policy = random_policy(rng)
        batch, numbers = random_batch(policy, rng), random_numbers(rng)
        with th.no_grad():
            policy.action_net.bias[1] = -math.inf
        batch.actions[:] = 0
        batch.old_log_prob[:] = -0.7
        policy.optimizer.param_groups[0]["lr"] = 0.0
        CompiledMinibatch(policy).train(batch, numbers._replace(ent_coef=0.1))
        for name, parameter in policy.named_parameters():
            assert parameter.grad.isfinite().all(), name

    @pytest.mark.parametrize("where", ["observations", "advantages", "old_log_prob", "returns"])
    def test_a_nan_shows(self, where):
        rng = np.random.default_rng(1)
        policy = random_policy(rng)
        batch, numbers = random_batch(policy, rng), random_numbers(rng)
        getattr(batch, where)[0, 0] = math.nan
        losses = CompiledMinibatch(policy).train(
            batch, numbers._replace(max_grad_norm=0.5, vf_coef=0.5)
        )
        assert losses.loss.isnan()
        assert all(parameter.isnan().any() for parameter in policy.parameters())

    def test_an_action_that_does_not_exist_is_refused(self):
        rng = np.random.default_rng(0)
        policy = random_policy(rng)
        while not isinstance(policy.action_space, spaces.Discrete):
            policy = random_policy(rng)
        n = int(policy.action_space.n)
        batch = random_batch(policy, rng)
        batch.actions[:] = 0
        batch.actions[-1, -1] = n
        before = copy.deepcopy(policy.state_dict())
        with pytest.raises(ValueError, match=f"from 0 to {n - 1}, got values from 0 to {n}"):
            CompiledMinibatch(policy).train(batch, random_numbers(rng))
        th.testing.assert_close(policy.state_dict(), before, rtol=0, atol=0)


class TestAdam:
    SIZES = ((1,), (3,), (16,), (17, 5), (64, 64), (1000,))

    @pytest.mark.parametrize("max_grad_norm", [0.5, 1e4])
    def test_from_equal_gradients_steps_are_adams(self, max_grad_norm):
        """Against Adam's definition in float64, to 1e-7 of the largest number."""
        from thrust_pomdp.ppo import kernels_adam

        rng = np.random.default_rng(0)
        ours = [rng.normal(size=size).astype(np.float32) for size in self.SIZES]
        moments = [[np.zeros_like(p), np.zeros_like(p), np.zeros((), np.float32)] for p in ours]
        exact = [p.astype(np.float64) for p in ours]
        first, second = ([np.zeros_like(p) for p in exact] for _ in range(2))
        scratch = np.empty(64, np.float32)
        lr, betas, eps = 1e-3, (0.9, 0.999), 1e-5
        for step in range(1, 31):
            grads = [rng.normal(size=size).astype(np.float32) for size in self.SIZES]
            norm = math.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))
            scale = min(1.0, max_grad_norm / (norm + 1e-6))
            given = [g.copy() for g in grads]
            table = np.array(
                [
                    [p.size, *(part.ctypes.data for part in (p, g, *kept))]
                    for p, g, kept in zip(ours, given, moments, strict=True)
                ]
            )
            assert kernels_adam.gradient_norm(table) == pytest.approx(norm, rel=1e-7)
            kernels_adam.adam(table, scale, np.array([lr, *betas, eps]), scratch.ctypes.data)
            for k, grad in enumerate(grads):
                g = scale * grad.astype(np.float64)
                first[k] = betas[0] * first[k] + (1 - betas[0]) * g
                second[k] = betas[1] * second[k] + (1 - betas[1]) * g * g
                root = np.sqrt(second[k] / (1 - betas[1] ** step))
                exact[k] -= lr / (1 - betas[0] ** step) * first[k] / (root + eps)
        for p, kept, mine, m, v in zip(ours, moments, exact, first, second, strict=True):
            assert kept[2] == 30
            # Thirty steps, each rounded to the last of 24 bits.
            assert np.abs(p - mine).max() <= 30 * 6e-8 * np.abs(mine).max()
            np.testing.assert_allclose(kept[0], m, rtol=2e-6, atol=1e-7 * np.abs(m).max())
            np.testing.assert_allclose(kept[1], v, rtol=2e-6, atol=0)

    def test_one_step_from_equal_gradients_is_torchs_to_the_last_digits(self):
        from thrust_pomdp.ppo import kernels_adam

        th.manual_seed(0)
        theirs = [nn.Parameter(th.randn(size)) for size in self.SIZES]
        optimizer = th.optim.Adam(theirs, lr=1e-3, eps=1e-5, fused=True)
        for _ in range(5):
            for p in theirs:
                p.grad = th.randn_like(p)
            ours = [p.detach().clone() for p in theirs]
            grads = [p.grad.clone() for p in theirs]
            kept = [copy.deepcopy(optimizer.state[p]) for p in theirs]
            for p, state in zip(theirs, kept, strict=True):
                if not state:
                    state |= {
                        "exp_avg": th.zeros_like(p),
                        "exp_avg_sq": th.zeros_like(p),
                        "step": th.zeros(()),
                    }
            norm = th.nn.utils.clip_grad_norm_(theirs, 0.5).item()
            optimizer.step()
            table = np.array(
                [
                    [
                        p.numel(),
                        *(t.data_ptr() for t in (p, g, s["exp_avg"], s["exp_avg_sq"], s["step"])),
                    ]
                    for p, g, s in zip(ours, grads, kept, strict=True)
                ]
            )
            scale = 0.5 / (kernels_adam.gradient_norm(table) + 1e-6)
            assert norm == pytest.approx(kernels_adam.gradient_norm(table), rel=1e-6)
            scratch = th.empty(64)
            kernels_adam.adam(table, scale, np.array([1e-3, 0.9, 0.999, 1e-5]), scratch.data_ptr())
            for p, mine, g in zip(theirs, ours, grads, strict=True):
                assert (p - mine).abs().max() <= 1e-7 * p.abs().max()
                th.testing.assert_close(g, p.grad, rtol=5e-7, atol=0)


def make_model(**kwargs: Any) -> RecurrentPPO:
    arguments: dict[str, Any] = {
        "n_steps": 32,
        "batch_size": 64,
        "n_epochs": 4,
        "learning_rate": 1e-3,
        "ent_coef": 0.01,
        "seed": 3,
        "policy_kwargs": {"lstm_hidden_size": 16, "net_arch": [12]},
    }
    env = fixed_length_envs(7, 10, 30, 25, 40, 12)
    model = RecurrentPPO("MlpLstmPolicy", env, **arguments | kwargs)
    model.set_logger(configure(None, []))
    sharpen(model)
    return model


def collected(model: RecurrentPPO) -> RecurrentPPO:
    """Collect a window."""
    _, callbacks = model._setup_learn(10_000, None)
    callbacks.on_training_start({}, {})
    model.collect_rollouts(model.env, callbacks, model.rollout_buffer, model.n_steps)
    return model


@pytest.fixture
def by_torch_alone(monkeypatch):
    def call(function: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(
                "thrust_pomdp.ppo.training.against_minibatch", lambda *_: "a test says so"
            )
            return function()

    return call


def logged(model: RecurrentPPO) -> dict[str, float]:
    return {k: v for k, v in model.logger.name_to_value.items() if k.startswith("train/")}


class TestUpdates:
    @pytest.mark.parametrize(
        "kwargs",
        [
            {},
            {"clip_range_vf": 0.1, "normalize_advantage": False, "vf_coef": 1.0},
            {"window_state": "carry"},
            {"sequence_length": 8, "burn_in": 4},
            {"batch_size": 96},
            {"target_kl": 1e-3},
            {"learning_rate": lambda left: 1e-3 * left, "max_grad_norm": 5.0},
        ],
        ids=lambda kwargs: ", ".join(kwargs),
    )
    def test_move_parameters_as_torch_does(self, kwargs, by_torch_alone):
        ours, theirs = (collected(make_model(**kwargs)) for _ in range(2))
        assert ours.against_compiled_minibatch() is None
        for _ in range(2):
            ours.train()
            by_torch_alone(theirs.train)
        rate = 1e-3
        for (name, p), q in zip(
            ours.policy.named_parameters(), theirs.policy.parameters(), strict=True
        ):
            assert (p - q).abs().max() <= 0.01 * rate, name
            assert (p.grad - q.grad).abs().max() <= 1e-3 * max(q.grad.abs().max(), 1e-3), name
        assert logged(ours) == pytest.approx(logged(theirs), rel=1e-3, abs=1e-5)
        assert ours._n_updates == theirs._n_updates

    def test_stop_where_torch_stops_and_change_nothing_there(self, by_torch_alone, capsys):
        said = []
        for how in (lambda call: call(), by_torch_alone):
            model = collected(make_model(target_kl=1e-7, verbose=1))
            capsys.readouterr()
            how(model.train)
            said.append((capsys.readouterr().out, model._n_updates))
        assert said[0] == said[1]
        assert "Early stopping" in said[0][0]

    def test_leave_the_optimizer_as_torch_does(self, by_torch_alone):
        ours, theirs = (collected(make_model()) for _ in range(2))
        ours.train()
        by_torch_alone(theirs.train)
        mine, other = (model.policy.optimizer.state_dict() for model in (ours, theirs))
        assert mine["param_groups"] == other["param_groups"]
        assert list(mine["state"]) == list(other["state"])
        for number, state in other["state"].items():
            assert list(mine["state"][number]) == list(state)
            for name, part in state.items():
                assert mine["state"][number][name].dtype is part.dtype
                th.testing.assert_close(mine["state"][number][name], part, rtol=1e-3, atol=1e-6)

    def test_go_on_from_one_another(self, by_torch_alone):
        """Each way finds the optimiser's state as the other left it."""
        plain, mixed = (collected(make_model()) for _ in range(2))
        for compiled in (False, True, False, True):
            by_torch_alone(plain.train)
            mixed.train() if compiled else by_torch_alone(mixed.train)
        for p, q in zip(plain.policy.parameters(), mixed.policy.parameters(), strict=True):
            assert (p - q).abs().max() <= 2e-5

    def test_repeat_to_the_last_bit_after_saving(self, tmp_path):
        model = collected(make_model())
        model.train()
        path = tmp_path / "model.zip"
        model.save(path)
        again = RecurrentPPO.load(path, env=model.env)
        again.set_logger(configure(None, []))
        again.rollout_buffer = copy.deepcopy(model.rollout_buffer)
        model.train(), again.train()
        for p, q in zip(model.policy.parameters(), again.policy.parameters(), strict=True):
            assert th.equal(p, q)

    def test_of_rows_alone_have_the_same_digits(self):
        """What a sequence gives does not depend on how many others there are."""
        rng = np.random.default_rng(5)
        policy = random_policy(rng)
        batch = random_batch(policy, rng)
        while len(batch.returns) < 3:
            batch = random_batch(policy, rng)
        numbers = random_numbers(rng)._replace(normalize_advantage=False)
        policy.optimizer.param_groups[0]["lr"] = 0.0
        losses = CompiledMinibatch(policy).train(batch, numbers)
        parts = [
            CompiledMinibatch(policy).train(part, numbers)
            for part in batch.split([1] * len(batch.returns))
        ]
        assert losses.policy_loss.item() == pytest.approx(
            np.mean([part.policy_loss.item() for part in parts]), rel=1e-6
        )


class Ours(RecurrentPPO):
    def _losses(self, *args: Any) -> Any:
        losses = super()._losses(*args)
        return losses._replace(loss=2 * losses.loss)


class TestReasons:
    @staticmethod
    def why(model: RecurrentPPO) -> str | None:
        return against_minibatch(model, TrainsOnWindows)

    def test_name_what_is_not_known(self):
        assert self.why(make_model()) is None
        model = make_model()
        model.policy.optimizer = th.optim.AdamW(model.policy.parameters())
        assert self.why(model) == "the optimizer is AdamW, compiled is Adam"
        model.policy.optimizer = th.optim.Adam(model.policy.parameters(), weight_decay=0.1)
        assert self.why(model) == "the Adam has weight_decay"
        model.policy.optimizer = th.optim.Adam(model.policy.parameters(), amsgrad=True)
        assert self.why(model) == "the Adam has amsgrad"
        model.policy.optimizer = th.optim.Adam(list(model.policy.parameters())[1:])
        assert "does not train all parameters" in self.why(model)
        model.policy.optimizer = th.optim.Adam(model.policy.parameters(), lr=th.tensor(1e-3))
        assert self.why(model) == "numbers of the Adam are tensors"
        model.policy.optimizer = th.optim.Adam(model.policy.parameters())
        th.optim.lr_scheduler.StepLR(model.policy.optimizer, 1)
        assert self.why(model) == "a method of the Adam was replaced"

    @pytest.mark.parametrize(
        ("kwargs", "said"),
        [
            ({"activation_fn": nn.GELU}, "pi: GELU is not"),
            ({"layer_norm": True}, "pi: LayerNorm is not"),
            ({"n_lstm_layers": 2}, "it has 2 layers"),
            ({"rnn_class": nn.RNN}, "lstm_actor is a RNN"),
            ({"share_features_extractor": False}, "separate features extractors"),
        ],
    )
    def test_name_a_part_of_the_policy(self, kwargs, said):
        assert said in self.why(make_model(policy_kwargs={"lstm_hidden_size": 8, **kwargs}))

    def test_name_the_class_that_counts_its_own_way(self):
        env = make_vec_env("FlickeringCartPole-v0", 2)
        model = Ours("MlpLstmPolicy", env, n_steps=16, batch_size=16)
        assert self.why(model) == "Ours._losses is not that of TrainsOnWindows"

    def test_name_a_hook_on_a_gradient(self):
        model = make_model()
        model.policy.action_net.weight.register_post_accumulate_grad_hook(lambda p: None)
        assert self.why(model) == "a parameter has hooks on its gradient"

    def test_are_told_by_fast_paths(self):
        assert make_model().fast_paths()["compiled minibatch"] == "used"

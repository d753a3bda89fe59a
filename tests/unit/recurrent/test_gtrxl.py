"""Gated transformer memory: by hand, against its formulas, and over long windows."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch as th
from helpers import FirstPass, fixed_length_envs, ignore_resets, sharpen, zero_initial_state
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.flop_counter import FlopCounterMode

from thrust_pomdp import RecurrentPPO, make_vec_env
from thrust_pomdp.recurrent import GTrXL, Memory, check_memory
from thrust_pomdp.recurrent.attention import BandAttention, sinusoids
from thrust_pomdp.recurrent.gtrxl import GRUGate

LN_2 = math.log(2.0)


def one_number_attention(position_bias: float) -> BandAttention:
    """Keys and values are what is seen, which counts ``exp(ln 2 * key + position_bias * R)``."""
    attention = BandAttention(size=1, n_heads=1, context=3)
    with th.no_grad():
        for weight in attention.parameters():
            weight.fill_(1.0)
        attention.query.weight.zero_()
        attention.content_bias.fill_(LN_2)
        attention.position_bias.fill_(position_bias)
    return attention


#: R of a step two back, one back, and of the step itself.
DISTANCES = th.tensor([[2 * LN_2], [LN_2], [0.0]])


class TestAttentionByHand:
    """Steps 5, 1, 2, and an episode that starts at the second."""

    STEPS = th.tensor([[[5.0], [1.0], [2.0]]])

    @pytest.mark.parametrize(
        ("position_bias", "last"),
        [
            (0.0, 5 / 3),  # 1 counts 2, 2 counts 4
            (1.0, 3 / 2),  # what is one step back counts twice that
        ],
    )
    def test_three_steps_with_a_reset(self, position_bias: float, last: float) -> None:
        attention = one_number_attention(position_bias)
        segments = th.tensor([[-1, -1, 0, 1, 1]])
        output = attention(self.STEPS, segments, DISTANCES, th.full((1, 2, 1), 9.0))
        assert th.allclose(output.flatten(), th.tensor([5.0, 1.0, last]))
        for step, (seen, count, expected) in enumerate(
            [([0, 0, 5], 0, 5.0), ([0, 0, 1], 0, 1.0), ([0, 1, 2], 1, last)]
        ):
            steps = th.tensor(seen, dtype=th.float32).view(1, 3, 1)
            output = attention(steps, th.tensor([count]), DISTANCES)
            assert output.item() == pytest.approx(expected), step

    def test_without_one_the_first_step_counts_too(self) -> None:
        attention = one_number_attention(0.0)
        segments = th.tensor([[-1, 0, 0, 0, 0]])  # and a step before the window
        before = th.tensor([[[9.0], [3.0]]])
        output = attention(self.STEPS, segments, DISTANCES, before).flatten().tolist()
        # Weights 2 ** step: 8 and 32; 8, 32 and 2; 32, 2 and 4, since a step sees three.
        expected = [(8 * 3 + 32 * 5) / 40, (8 * 3 + 32 * 5 + 2 * 1) / 42, (160 + 2 + 8) / 38]
        assert output == pytest.approx(expected)

    def test_distances_are_told_by_sines_and_cosines(self) -> None:
        table = sinusoids(4, 3)
        assert table[2].tolist() == pytest.approx(
            [math.sin(2), math.sin(0.02), math.cos(2), math.cos(0.02)]
        )
        assert sinusoids(3, 2)[1].tolist() == pytest.approx(
            [math.sin(1), math.sin(10_000 ** (-2 / 3)), math.cos(1)]
        )


class TestGateByHand:
    def test_the_bias_leaves_the_stream_as_it_is(self) -> None:
        gate = GRUGate(1, bias=2.0)
        with th.no_grad():
            for part in gate.children():
                part.weight.zero_()
        z = 1 / (1 + math.exp(2))
        assert gate(th.tensor([3.0]), th.tensor([7.0])).item() == pytest.approx(3 * (1 - z))

    def test_all_weights(self) -> None:
        gate = GRUGate(1, bias=0.5)
        with th.no_grad():
            gate.of_update.weight.copy_(th.tensor([[0.1], [0.2], [0.3]]))  # of r, z and the new
            gate.of_stream.weight.copy_(th.tensor([[0.4], [0.5]]))
            gate.of_reset.weight.fill_(0.6)
        x, y = 2.0, -1.0
        r = 1 / (1 + math.exp(-(0.1 * y + 0.4 * x)))
        z = 1 / (1 + math.exp(-(0.2 * y + 0.5 * x - 0.5)))
        expected = (1 - z) * x + z * math.tanh(0.3 * y + 0.6 * r * x)
        assert gate(th.tensor([x]), th.tensor([y])).item() == pytest.approx(expected)


def formulas(memory: GTrXL, features: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The paper's formulas for one environment from its first step on, in NumPy's float64.

    Whole lists of what each layer was given; neither caches nor blocks nor masks.

    :param features: ``[n_steps, input_size]``
    """
    weights = {name: w.double().numpy() for name, w in memory.state_dict().items()}

    def linear(x, name):
        return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0.0)

    def norm(x, name):
        scaled = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def gate(x, y, name):
        w_r, w_z, w_g = np.split(weights[f"{name}.of_update.weight"], 3)
        u_r, u_z = np.split(weights[f"{name}.of_stream.weight"], 2)
        r, z = sigmoid(w_r @ y + u_r @ x), sigmoid(w_z @ y + u_z @ x - weights[f"{name}.bias"])
        new = np.tanh(w_g @ y + weights[f"{name}.of_reset.weight"] @ (r * x))
        return (1 - z) * x + z * new

    def attend(seen, name):
        """``seen`` is oldest first."""
        seen = [norm(x, f"{name}_norm") for x in seen]
        n_heads, size = weights[f"{name}.content_bias"].shape
        query = linear(seen[-1], f"{name}.query").reshape(n_heads, size)
        outputs = []
        for head in range(n_heads):
            part, scores = slice(head * size, (head + 1) * size), []
            for distance, x in enumerate(reversed(seen)):
                angles = distance / 10_000 ** (2 * np.arange((hidden + 1) // 2) / hidden)
                wave = np.concatenate([np.sin(angles), np.cos(angles)])[:hidden]
                key = (weights[f"{name}.key"] @ x)[part]
                position = linear(wave, f"{name}.position")[part]
                u, v = weights[f"{name}.content_bias"][head], weights[f"{name}.position_bias"][head]
                score = (query[head] + u) @ key + (query[head] + v) @ position
                scores.append(score / np.sqrt(size))
            counts = np.exp(scores) / np.exp(scores).sum()
            values = [(weights[f"{name}.value"] @ x)[part] for x in reversed(seen)]
            outputs.append(sum(c * v for c, v in zip(counts, values, strict=True)))
        return linear(np.concatenate(outputs), f"{name}.out")

    hidden, outputs = memory.hidden_size, []
    given: list[list[np.ndarray]] = [[] for _ in memory.layers]
    for x, start in zip(features, starts, strict=True):
        stream = linear(x, "embed")
        for number, inputs in enumerate(given):
            if start:
                inputs.clear()
            inputs.append(stream)
            name = f"layers.{number}"
            y = np.maximum(attend(inputs[-memory.context :], f"{name}.attention"), 0)
            stream = gate(stream, y, f"{name}.attention_gate")
            inner = np.maximum(linear(norm(stream, f"{name}.mlp_norm"), f"{name}.mlp.0"), 0)
            y = np.maximum(linear(inner, f"{name}.mlp.2"), 0)
            stream = gate(stream, y, f"{name}.mlp_gate")
        outputs.append(stream)
    return np.array(outputs)


def make(seed: int = 0, hidden: int = 8, layers: int = 1, **options) -> GTrXL:
    """A memory in float64 whose weights are all random."""
    th.manual_seed(seed)
    memory = GTrXL(3, hidden, layers, **options).double()
    with th.no_grad():
        for weight in memory.parameters():
            weight.add_(th.randn_like(weight), alpha=0.3)
    # The table was made in float32, the formulas have none.
    exact = [[t / 10_000 ** (2 * i / hidden) for i in range((hidden + 1) // 2)]
             for t in reversed(range(memory.context))]  # fmt: skip
    angles = th.tensor(exact, dtype=th.float64)
    memory.distances.copy_(th.cat((angles.sin(), angles.cos()), dim=1)[:, :hidden])
    return memory


CASES = {
    "longer windows than its context": {"context": 5},
    "a context beyond the window": {"context": 300},
    "windows of many blocks": {"context": 33, "n_heads": 2},
    "two layers": {"context": 4, "layers": 2},
    "three layers, odd sizes": {"context": 7, "layers": 3, "hidden": 9, "n_heads": 3},
    "a context of one step": {"context": 1, "layers": 2},
    "a context of two": {"context": 2, "mlp_size": 3, "gate_bias": 0.0},
}


@pytest.mark.parametrize("case", CASES)
@th.no_grad()
def test_windows_and_steps_are_the_formulas(case: str) -> None:
    memory = make(**CASES[case])
    n_seq, n_steps = 3, 110
    features = th.randn(n_seq, n_steps, 3, dtype=th.float64)
    starts = th.rand(n_seq, n_steps) < th.tensor([[0.0], [0.05], [0.5]])
    expected = np.stack([
        formulas(memory, x.numpy(), s.numpy()) for x, s in zip(features, starts, strict=True)
    ])  # fmt: skip
    empty = memory.initial_state(n_seq)
    whole, last = memory(features, empty, starts)
    assert np.allclose(whole.numpy(), expected, rtol=0, atol=1e-11)
    stepped, after = Memory.windows(memory, features, empty, starts)
    assert np.allclose(stepped.numpy(), expected, rtol=0, atol=1e-11)
    for cut in (1, 31, 32, 33, 109):
        first, between = memory(features[:, :cut], empty, starts[:, :cut])
        second, end = memory(features[:, cut:], between, starts[:, cut:])
        assert np.allclose(th.cat((first, second), dim=1).numpy(), expected, rtol=0, atol=1e-11)
        for parts in zip(last, after, end, strict=True):
            assert all(th.allclose(part, parts[0], rtol=0, atol=1e-11) for part in parts)


@pytest.mark.parametrize(
    ("lstm_kwargs", "sizes"),
    [
        ({}, {"hidden_size": 8}),
        ({"context": 3, "n_heads": 7, "mlp_size": 5, "gate_bias": 0.0}, {}),
        ({"context": 200, "n_heads": 1}, {"hidden_size": 4, "input_size": 1, "n_layers": 3}),
    ],
)
def test_it_keeps_the_laws(lstm_kwargs, sizes) -> None:
    check_memory(GTrXL, lstm_kwargs, **sizes)


def test_with_a_context_of_one_it_remembers_nothing_and_keeps_all_other_laws() -> None:
    with pytest.raises(AssertionError) as caught:
        check_memory(GTrXL, {"context": 1}, hidden_size=8)
    broken = re.findall(r"^- ([\w ]+):", str(caught.value), re.MULTILINE)
    assert broken == ["it remembers", "gradients reach back"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"context": 0}, "context must be at least 1, got 0"),
            ({"context": 2.5}, "context must be a whole number, got 2.5"),
            ({"n_heads": 3}, "n_heads must divide lstm_hidden_size, which is 8, got 3"),
            ({"n_heads": 0}, "n_heads must be at least 1, got 0"),
            ({"mlp_size": 0}, "mlp_size must be at least 1, got 0"),
            ({"gate_bias": "much"}, "gate_bias must be a number, got 'much'"),
            ({"bias": False}, "lstm_kwargs.*bias"),
        ],
    )
    def test_what_cannot_be(self, options, message: str) -> None:
        kwargs = {"rnn_class": GTrXL, "lstm_hidden_size": 8, "lstm_kwargs": options}
        env = fixed_length_envs(5)
        with pytest.raises(ValueError, match=message):
            RecurrentPPO("MlpLstmPolicy", env, n_steps=8, policy_kwargs=kwargs)


def _hook(memory: GTrXL) -> None:
    memory.layers[0].attention.register_forward_hook(lambda *args: 2 * args[2])


def _hook_on_a_part(memory: GTrXL) -> None:
    memory.layers[0].attention.query.register_forward_hook(lambda *args: 2 * args[2])


def _prune(memory: GTrXL) -> None:
    prune.l1_unstructured(memory.layers[0].attention, "key", amount=0.5)
    with th.no_grad():
        memory.layers[0].attention.key_orig.mul_(2)


def _parametrize(memory: GTrXL) -> None:
    parametrizations.weight_norm(memory.layers[0].attention, "value")
    with th.no_grad():
        memory.layers[0].attention.parametrizations.value.original0.mul_(2)


def _other_norm(memory: GTrXL) -> None:
    memory.layers[0].attention_norm = nn.Tanh()


def _other_gate(memory: GTrXL) -> None:
    class Sum(nn.Module):
        def forward(self, stream, update):
            return stream + update

    memory.layers[0].attention_gate = memory.layers[0].mlp_gate = Sum()


@pytest.mark.parametrize(
    "change", [_hook, _hook_on_a_part, _prune, _parametrize, _other_norm, _other_gate]
)
@th.no_grad()
def test_what_a_program_changes_changes_windows_and_steps_alike(change) -> None:
    memory = make(context=9)
    features = th.randn(2, 40, 3, dtype=th.float64)
    starts = th.zeros(2, 40, dtype=th.bool)
    starts[0, 15] = True
    empty = memory.initial_state(2)
    before, _ = memory(features, empty, starts)
    change(memory)
    windows, _ = memory(features, empty, starts)
    steps, _ = Memory.windows(memory, features, empty, starts)
    assert not th.allclose(windows, before, atol=1e-3)
    assert th.allclose(windows, steps, rtol=0, atol=1e-11)


class Doubled(GTrXL):
    """A step of a user's own."""

    def step(self, features, states):
        output, states = super().step(features, states)
        return 2 * output, states


def _replaced_step(memory: GTrXL) -> None:
    step = memory.step
    memory.step = lambda features, states: step(2 * features, states)


@pytest.mark.parametrize(("cls", "change"), [(Doubled, lambda m: None), (GTrXL, _replaced_step)])
def test_a_step_of_a_users_own_is_what_windows_run(cls, change) -> None:
    memory = cls(3, 8, context=9)
    change(memory)
    assert "step" in memory.against_bands()
    assert GTrXL(3, 8).against_bands() is None
    features, starts = th.randn(2, 12, 3), th.rand(2, 12) < 0.2
    windows, _ = memory(features, memory.initial_state(2), starts)
    steps, _ = Memory.windows(memory, features, memory.initial_state(2), starts)
    assert th.equal(windows, steps)


class TestLongWindows:
    """What a window costs grows with its length, not with its square."""

    @staticmethod
    def cost(n_steps: int) -> tuple[int, int]:
        """Operations of products, and bytes that are kept for the gradient."""
        memory = GTrXL(3, 16, context=64)
        features, starts = th.randn(2, n_steps, 3), th.zeros(2, n_steps, dtype=th.bool)
        starts[0, n_steps // 3] = True
        kept = 0

        def keep(tensor: th.Tensor) -> th.Tensor:
            nonlocal kept
            kept += tensor.nbytes
            return tensor

        counter = FlopCounterMode(display=False)
        with counter, th.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output, _ = memory(features, memory.initial_state(2), starts)
            output.square().sum().backward()
        return counter.get_total_flops(), kept

    def test_time_and_memory_grow_with_the_window(self) -> None:
        flops, kept = self.cost(1024)
        long_flops, long_kept = self.cost(4096)
        assert 3.9 < long_flops / flops < 4.01
        assert 3.9 < long_kept / kept < 4.01

    def test_4096_steps_in_single_precision(self) -> None:
        memory = make(context=64, n_heads=2, layers=2)
        features = th.randn(1, 4096, 3, dtype=th.float64)
        starts = th.zeros(1, 4096, dtype=th.bool)
        starts[0, 1500] = True
        with th.no_grad():
            expected, _ = memory(features, memory.initial_state(1), starts)
            memory.float()
            output, _ = memory(features.float(), memory.initial_state(1), starts)
        assert th.allclose(output.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("rnn_class", [nn.LSTM, GTrXL])
@pytest.mark.parametrize(("n_steps", "n_windows"), [(1024, 2), (4096, 1)])
def test_long_windows_train(rnn_class: type, n_steps: int, n_windows: int) -> None:
    """First pass of windows over a maze's whole corridor, carried on."""
    env = make_vec_env("TMaze-1000-v0", 2, seed=0)
    model = RecurrentPPO(
        "MlpLstmPolicy", env, n_steps=n_steps, n_epochs=1, envs_per_minibatch=2, seed=0,
        window_state="carry", learning_rate=0.0,
        policy_kwargs={"rnn_class": rnn_class, "lstm_hidden_size": 16, "net_arch": []},
    )  # fmt: skip
    sharpen(model)
    callback = FirstPass(None)
    model.learn(n_windows * 2 * n_steps, callback=callback)
    assert callback.minibatches == n_windows
    assert callback.error < 1e-5


PROGRAMS = {
    "zero": {},
    "carry": {"window_state": "carry"},
    "subsequences": {"window_state": "carry", "sequence_length": 4, "batch_size": 16},
    "two layers": {"window_state": "carry", "policy_kwargs": {"n_lstm_layers": 2}},
    "shared": {
        "window_state": "carry",
        "policy_kwargs": {"shared_lstm_critic_gradient": True, "net_arch": []},
    },
    "a context of one": {"policy_kwargs": {"lstm_kwargs": {"context": 1}}},
    "a context beyond the window": {
        "window_state": "carry", "policy_kwargs": {"lstm_kwargs": {"context": 50}},
    },
}  # fmt: skip


def program(name: str, plant=None) -> FirstPass:
    arguments = dict(PROGRAMS[name])
    kwargs = {
        "rnn_class": GTrXL, "lstm_hidden_size": 8, "lstm_kwargs": {"context": 6},
        **arguments.pop("policy_kwargs", {}),
    }  # fmt: skip
    model = RecurrentPPO(
        "MlpLstmPolicy", fixed_length_envs(5, 9, 30), seed=0, learning_rate=0.0,
        **{"n_steps": 16, "batch_size": 16, "n_epochs": 2, **arguments}, policy_kwargs=kwargs,
    )  # fmt: skip
    sharpen(model)
    callback = FirstPass(plant)
    model.learn(3 * 16 * 3, callback=callback)
    assert callback.minibatches > 0
    return callback


class TestFirstPass:
    @pytest.mark.parametrize("name", PROGRAMS)
    def test_is_what_was_collected(self, name: str) -> None:
        assert program(name).error < 1e-5

    @pytest.mark.parametrize("plant", [ignore_resets, zero_initial_state])
    def test_finds_faults_of_training(self, plant) -> None:
        callback = program("carry", plant)
        assert callback.log_prob_error > 1e-3
        assert callback.value_error > 1e-3

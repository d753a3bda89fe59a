"""Memory over whole windows against a plain step-by-step loop, and its exact properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch as th
from torch import nn

from thrust_pomdp.recurrent import sequences
from thrust_pomdp.recurrent.compiled import load_kernels
from thrust_pomdp.recurrent.memory import memory_sequences, memory_step
from thrust_pomdp.recurrent.segments import Segments
from thrust_pomdp.recurrent.sequences import ResetLayout, lstm_extended_rows, zero_states
from thrust_pomdp.recurrent.torch_layers import torch_layer

N_SEQ, N_STEPS, N_FEATURES, HIDDEN = 4, 13, 3, 8


def starts(*where: tuple[int, int]) -> np.ndarray:
    flags = np.zeros((N_SEQ, N_STEPS), dtype=bool)
    for row, step in where:
        flags[row, step] = True
    return flags


PATTERNS = {
    "none": starts(),
    "first step": starts((0, 0), (2, 0)),
    "last step": starts((1, N_STEPS - 1)),
    "two in a row": starts((0, 4), (0, 5), (3, 7)),
    "every step of one row": np.arange(N_SEQ)[:, None].repeat(N_STEPS, 1) == 2,
    "all rows at once": np.arange(N_STEPS)[None].repeat(N_SEQ, 0) == 6,
    "scattered": np.random.default_rng(3).random((N_SEQ, N_STEPS)) < 0.2,
}


KINDS = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN": nn.RNN,
    "RNN with relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
}


def make_rnn(
    kind: str, n_layers: int = 1, bias: bool = True, dtype: th.dtype = th.float32
) -> nn.RNNBase:
    th.manual_seed(0)
    rnn = KINDS[kind](N_FEATURES, HIDDEN, num_layers=n_layers, bias=bias).to(dtype)
    # Far from the small initial weights, gates in use; nothing bounds the state of a relu.
    std = 0.25 if kind == "RNN with relu" else 0.7
    for parameter in rnn.parameters():
        nn.init.normal_(parameter, std=std)
    return rnn


def make_inputs(
    rnn: nn.RNNBase, dtype: th.dtype = th.float32
) -> tuple[th.Tensor, tuple[th.Tensor, ...]]:
    th.manual_seed(1)
    features = th.randn(N_SEQ, N_STEPS, N_FEATURES, dtype=dtype, requires_grad=True)
    states = tuple(
        th.randn(rnn.num_layers, N_SEQ, HIDDEN, dtype=dtype, requires_grad=True)
        for _ in torch_layer(rnn).state
    )
    return features, states


def loop(
    rnn: nn.RNNBase,
    features: th.Tensor,
    episode_starts: np.ndarray,
    states: tuple[th.Tensor, ...],
) -> tuple[th.Tensor, tuple[th.Tensor, ...]]:
    """The definition: torch's own layer, one step at a time, state zeroed at each start."""
    outputs = []
    for step in range(features.shape[1]):
        keep = th.as_tensor(~episode_starts[:, step]).to(features.dtype)[None, :, None]
        kept = tuple(part * keep for part in states)
        output, leaving = rnn(features[:, step][None], kept if len(kept) > 1 else kept[0])
        states = leaving if len(kept) > 1 else (leaving,)
        outputs.append(output[0])
    return th.stack(outputs, dim=1), states


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("n_layers", "bias"), [(1, True), (1, False), (2, True), (3, False)])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(th.float32, 1e-5), (th.float64, 1e-14)], ids=["float32", "float64"]
)
@pytest.mark.parametrize("kind", KINDS)
class TestEqualsTheStepByStepLoop:
    def test_outputs_and_final_states(self, kind, pattern, n_layers, bias, dtype, tolerance):
        rnn = make_rnn(kind, n_layers, bias, dtype)
        features, states = make_inputs(rnn, dtype)
        layout = ResetLayout.from_episode_starts(PATTERNS[pattern])

        outputs, leaving = memory_sequences(rnn, features, layout, states)
        expected, expected_states = loop(rnn, features, PATTERNS[pattern], states)

        th.testing.assert_close(outputs, expected, rtol=0, atol=tolerance)
        for part, other in zip(leaving, expected_states, strict=True):
            th.testing.assert_close(part, other, rtol=0, atol=4 * tolerance)

    def test_gradients(self, kind, pattern, n_layers, bias, dtype, tolerance):
        rnn = make_rnn(kind, n_layers, bias, dtype)
        features, states = make_inputs(rnn, dtype)
        layout = ResetLayout.from_episode_starts(PATTERNS[pattern])
        weights = th.randn(N_SEQ, N_STEPS, HIDDEN, dtype=dtype)

        def gradients(result):
            outputs, leaving = result
            loss = (outputs * weights).sum() + sum(part.square().sum() for part in leaving)
            return th.autograd.grad(loss, [features, *states, *rnn.parameters()])

        ours = gradients(memory_sequences(rnn, features, layout, states))
        expected = gradients(loop(rnn, features, PATTERNS[pattern], states))
        for gradient, expected_gradient in zip(ours, expected, strict=True):
            scale = max(1.0, expected_gradient.abs().max().item())
            th.testing.assert_close(
                gradient, expected_gradient, rtol=0, atol=20 * tolerance * scale
            )

    def test_single_steps_chain_to_the_same_numbers(
        self, kind, pattern, n_layers, bias, dtype, tolerance
    ):
        rnn = make_rnn(kind, n_layers, bias, dtype)
        features, states = make_inputs(rnn, dtype)
        flags = th.from_numpy(PATTERNS[pattern])
        expected, expected_states = loop(rnn, features, PATTERNS[pattern], states)
        for step in range(N_STEPS):
            output, states = memory_step(rnn, features[:, step], states, flags[:, step])
            th.testing.assert_close(output, expected[:, step], rtol=0, atol=tolerance)
        th.testing.assert_close(states, expected_states, rtol=0, atol=4 * tolerance)


@pytest.mark.parametrize("kind", KINDS)
class TestNothingCrossesAnEpisodeStart:
    """Two episodes in each row, the second from step 6 on."""

    PATTERN = PATTERNS["all rows at once"]
    START = 6

    @pytest.mark.parametrize("n_layers", [1, 2])
    def test_the_gradient_is_exactly_zero_across_and_not_within(self, kind, n_layers):
        rnn = make_rnn(kind, n_layers)
        features, states = make_inputs(rnn)
        layout = ResetLayout.from_episode_starts(self.PATTERN)
        outputs, _ = memory_sequences(rnn, features, layout, states)
        gradient, *state_gradients = th.autograd.grad(outputs[:, -1].sum(), [features, *states])
        assert (gradient[:, : self.START] == 0).all()
        assert (gradient[:, self.START :].abs().sum(dim=2) > 0).all()
        assert all((g == 0).all() for g in state_gradients)

        outputs, _ = memory_sequences(rnn, features, layout, states)
        first_episode = outputs[:, self.START - 1].sum()
        gradient, *state_gradients = th.autograd.grad(first_episode, [features, *states])
        assert (gradient[:, : self.START].abs().sum(dim=2) > 0).all()
        assert all((g.abs().sum(dim=2) > 0).all() for g in state_gradients)

    @pytest.mark.parametrize("scale", [1.0, 1e5])
    @pytest.mark.parametrize("n_layers", [1, 2])
    def test_changing_an_episode_leaves_the_next_one_bit_equal(self, kind, n_layers, scale):
        rnn = make_rnn(kind, n_layers)
        features, states = make_inputs(rnn)
        layout = ResetLayout.from_episode_starts(self.PATTERN)
        changed = features.detach().clone()
        changed[:, : self.START] = scale * th.randn_like(changed[:, : self.START])
        before, after = (
            memory_sequences(rnn, inputs, layout, states)[0] for inputs in (features, changed)
        )
        assert not th.equal(before[:, : self.START], after[:, : self.START])
        assert th.equal(before[:, self.START :], after[:, self.START :])

    def test_an_episode_start_at_step_0_forgets_the_initial_state(self, kind):
        rnn = make_rnn(kind)
        features, states = make_inputs(rnn)
        layout = ResetLayout.from_episode_starts(PATTERNS["first step"])
        outputs, _ = memory_sequences(rnn, features, layout, states)
        from_zero, _ = memory_sequences(rnn, features, layout)
        assert th.equal(outputs[[0, 2]], from_zero[[0, 2]])
        assert not th.equal(outputs[[1, 3]], from_zero[[1, 3]])


def with_bias(rnn: nn.RNNBase, gate: int, bias: float) -> nn.RNNBase:
    """Give one gate of every layer a bias."""
    with th.no_grad():
        for layer in range(rnn.num_layers):
            rows = getattr(rnn, f"bias_ih_l{layer}").view(-1, HIDDEN)
            rows[gate] = bias
    return rnn


@pytest.mark.parametrize("windows", [memory_sequences, lstm_extended_rows])
class TestResetsAreExactWhateverTheWeights:
    """A reset step outweighs any bias, and any recurrent weights."""

    PATTERN = PATTERNS["scattered"]

    @pytest.mark.parametrize("dtype", [th.float32, th.float64], ids=["float32", "float64"])
    @pytest.mark.parametrize("n_layers", [1, 2])
    @pytest.mark.parametrize("bias", [-1e6, -1e4, -30.0, 30.0, 1e3, 1e4, 2e4, 1e5, 1e6, 1e30])
    @pytest.mark.parametrize("gate", range(4), ids=["input", "forget", "cell", "output"])
    def test_equals_the_loop_with_any_bias_of_any_gate(self, windows, gate, bias, n_layers, dtype):
        rnn = with_bias(make_rnn("LSTM", n_layers, dtype=dtype), gate, bias)
        features, states = make_inputs(rnn, dtype)
        layout = ResetLayout.from_episode_starts(self.PATTERN)

        def run(outputs, leaving):
            loss = outputs.square().sum() + sum(part.sum() for part in leaving)
            return outputs, *th.autograd.grad(loss, [features, *states, *rnn.parameters()])

        ours = run(*windows(rnn, features, layout, states))
        expected = run(*loop(rnn, features, self.PATTERN, states))
        tolerance = 2e-5 if dtype is th.float32 else 1e-13
        for part, other in zip(ours, expected, strict=True):
            assert part.isfinite().all()
            scale = max(1.0, other.abs().max().item())
            th.testing.assert_close(part, other, rtol=0, atol=tolerance * scale)

    @pytest.mark.parametrize("bias", [0.0, 1e4, 1e6])
    @pytest.mark.parametrize("scale", [1.0, 1e4])
    def test_nothing_of_an_episode_reaches_the_next_one(self, windows, scale, bias):
        rnn = with_bias(make_rnn("LSTM", 2), 1, bias)
        with th.no_grad():
            rnn.weight_hh_l0.mul_(scale)
            rnn.weight_ih_l1.mul_(scale)
        features, states = make_inputs(rnn)
        pattern = PATTERNS["all rows at once"]
        layout = ResetLayout.from_episode_starts(pattern)
        outputs, _ = windows(rnn, features, layout, states)
        gradient, *others = th.autograd.grad(outputs[:, -1].sum(), [features, *states])
        assert (gradient[:, :6] == 0).all()
        assert all((other == 0).all() for other in others)
        changed = features.detach().clone()
        changed[:, :6] += 1
        again, _ = windows(rnn, changed, layout, states)
        assert th.equal(outputs[:, 6:], again[:, 6:])


def test_inputs_that_dropout_scales_do_not_open_a_gate_that_holds(monkeypatch):
    rnn, equal = (make_rnn("LSTM", 2, dtype=th.float64) for _ in range(2))
    with th.no_grad():
        rnn.weight_ih_l1 *= 1e4
        equal.weight_ih_l1 *= 1e5
    rnn.dropout = 0.9
    monkeypatch.setattr(sequences, "dropout", lambda rnn, output: 10 * output)  # drops nothing
    features, states = make_inputs(rnn, th.float64)
    pattern = PATTERNS["two in a row"]
    layout = ResetLayout.from_episode_starts(pattern)
    outputs, leaving = lstm_extended_rows(rnn, features, layout, states)
    expected, expected_states = loop(equal, features, pattern, states)
    th.testing.assert_close(outputs, expected, rtol=0, atol=1e-8)
    th.testing.assert_close(leaving, expected_states, rtol=0, atol=1e-8)


def exact_sigmoid(x: th.Tensor) -> th.Tensor:
    return nn.functional.logsigmoid(x).exp()


def exact_tanh(x: th.Tensor) -> th.Tensor:
    """Return a tanh whose gradient float64 does not lose either (it does beyond 18)."""
    value = x.tanh()
    slope = 4 * exact_sigmoid(2 * x) * exact_sigmoid(-2 * x)
    return value.detach() + slope.detach() * (x - x.detach())


def exact_step(kind: str, features, state, w_ih, w_hh, b_ih, b_hh):
    inputs, recurrent = features @ w_ih.T + b_ih, state[0] @ w_hh.T + b_hh
    if kind == "RNN":
        return (exact_tanh(inputs + recurrent),)
    if kind == "GRU":
        (r, z, n), (r_h, z_h, n_h) = inputs.chunk(3, 1), recurrent.chunk(3, 1)
        new = exact_tanh(n + exact_sigmoid(r + r_h) * n_h)
        return (exact_sigmoid(-z - z_h) * new + exact_sigmoid(z + z_h) * state[0],)
    i, f, g, o = (inputs + recurrent).chunk(4, 1)
    cell = exact_sigmoid(f) * state[1] + exact_sigmoid(i) * exact_tanh(g)
    return exact_sigmoid(o) * exact_tanh(cell), cell


class TestSaturatedGates:
    """All biases at once are moved to where gates open or close for good.

    The loops know a slope to 4e-6 of itself. Torch's operations compute it in float32 from what is
    nearly 1, to 6e-8 of 1: what is left of a gradient there is rounding, and small.
    """

    @pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
    @pytest.mark.parametrize("bias", [*range(-30, 31, 5), -12, -8, 8, 12])
    def test_gradients(self, kind, bias):
        th.manual_seed(0)
        rnn = KINDS[kind](N_FEATURES, HIDDEN)
        with th.no_grad():
            rnn.bias_ih_l0 += bias
        features, states = make_inputs(rnn)
        pattern = PATTERNS["scattered"]
        outputs, leaving = memory_sequences(
            rnn, features, ResetLayout.from_episode_starts(pattern), states
        )
        loss = outputs.sum() + sum(part.sum() for part in leaving)
        ours = th.autograd.grad(loss, [features, *states, *rnn.parameters()])

        leaves = [part.detach().double().requires_grad_() for part in (features, *states)]
        weights = [weight.detach().double().requires_grad_() for weight in rnn.parameters()]
        state, loss = tuple(part[0] for part in leaves[1:]), 0.0
        for step in range(N_STEPS):
            keep = th.from_numpy(~pattern[:, step]).double()[:, None]
            state = exact_step(kind, leaves[0][:, step], [part * keep for part in state], *weights)
            loss = loss + state[0].sum()
        loss = loss + sum(part.sum() for part in state)
        expected = th.autograd.grad(loss, [*leaves, *weights])
        for part, other in zip(ours, expected, strict=True):
            for block, exact in self.blocks(rnn, part.double(), other):
                if load_kernels() is None:
                    th.testing.assert_close(block, exact, rtol=0, atol=2e-5)
                elif exact.abs().max() > 1e-30:  # the range of float32, and of products in it
                    error = (block - exact).abs().max() / exact.abs().max()
                    assert error < 5e-5

    @staticmethod
    def blocks(rnn, *parts):
        """Cut gradients of weights into those of each gate."""
        if parts[0].shape[0] == N_SEQ or parts[0].shape[0] == 1:
            return [parts]
        return zip(*(part.split(HIDDEN) for part in parts), strict=True)


def extended(pattern: np.ndarray):
    return ResetLayout.from_episode_starts(pattern).extended


class TestLayout:
    def test_no_start_inside_the_window_means_no_extra_step(self):
        rows = extended(PATTERNS["first step"])
        assert len(rows.flags) == N_STEPS
        assert not rows.flags.any()

    def test_the_drawing_of_the_docstring(self):
        rows = extended(np.array([[1, 0, 0, 1, 0, 1]]))
        assert rows.steps.tolist() == [[0, 1, 2, 4, 5, 7]]
        assert rows.flags[:, 0, 0].tolist() == [0, 0, 0, 1, 0, 0, 1, 0]
        assert rows.flags[:, 0, 1].tolist() == [0] * 8

    def test_shorter_rows_hold_and_lengths_are_multiples_of_8(self):
        rows = extended(PATTERNS["two in a row"])
        assert rows.flags.shape == (16, N_SEQ, 2)  # 13 steps and at most 2 resets
        last_steps = rows.steps[:, -1]
        assert last_steps.tolist() == [14, 12, 12, 13]
        holds = rows.flags[:, :, 1].sum(dim=0)
        assert holds.tolist() == [1, 3, 3, 2]

    def test_selecting_rows_equals_laying_them_out(self):
        layout = ResetLayout.from_episode_starts(PATTERNS["scattered"])
        rnn = make_rnn("LSTM")
        features, states = make_inputs(rnn)
        outputs, _ = memory_sequences(rnn, features, layout, states)
        rows = th.tensor([2, 0])
        some_states = (states[0][:, rows], states[1][:, rows])
        some, _ = memory_sequences(rnn, features[rows], layout.select(rows), some_states)
        th.testing.assert_close(some, outputs[rows], rtol=0, atol=1e-6)

    @pytest.mark.parametrize("n_rows", [1, 2, 3, 4, 9])
    @pytest.mark.parametrize("laid_out", [True, False])
    def test_splitting_equals_selecting(self, n_rows, laid_out):
        layout = ResetLayout.from_episode_starts(PATTERNS["scattered"])
        if laid_out:
            assert layout.extended is layout.extended
        parts = layout.split([min(n_rows, N_SEQ - row) for row in range(0, N_SEQ, n_rows)])
        assert len(parts) == -(-N_SEQ // n_rows)
        for number, part in enumerate(parts):
            rows = th.arange(N_SEQ)[number * n_rows : (number + 1) * n_rows]
            expected = layout.select(rows)
            assert th.equal(part.episode_starts, expected.episode_starts)
            # Laid out with the others, a row may hold for longer than it would alone.
            assert th.equal(part.extended.steps, expected.extended.steps)
            assert th.equal(part.extended.flat_steps, expected.extended.flat_steps)
            assert th.equal(part.extended.flags, expected.extended.flags)

    def test_every_step_lies_at_a_place_of_its_own(self):
        flat = extended(PATTERNS["scattered"]).flat_steps
        assert len(flat) == N_SEQ * N_STEPS
        assert len(flat.unique()) == len(flat)


class TestSegments:
    def test_the_drawing_of_the_docstring(self):
        starts = np.array([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0]], dtype=bool)
        segments = Segments.of(starts, "cpu")
        a, b, c, d = 0, 3, 5, 6  # where they begin in the flattened windows
        packed = [d, a, b, c, d + 1, a + 1, b + 1, d + 2, a + 2, d + 3]
        assert segments.steps.tolist() == packed
        assert segments.batch_sizes.tolist() == [4, 3, 2, 1]
        assert segments.first.tolist() == [1, 3]  # a is the second longest, c the shortest
        assert segments.last.tolist() == [2, 0]

    @pytest.mark.parametrize("pattern", PATTERNS)
    def test_every_step_lies_at_a_place_of_its_own(self, pattern):
        segments = Segments.of(PATTERNS[pattern], "cpu")
        assert th.equal(segments.steps[segments.places], th.arange(N_SEQ * N_STEPS))
        assert segments.batch_sizes.sum() == N_SEQ * N_STEPS
        assert (segments.batch_sizes.diff() <= 0).all()


class TestZeroStates:
    def test_only_the_named_rows_are_zeroed_and_the_argument_stays(self):
        hidden, cell = th.ones(2, 3, 4), th.ones(2, 3, 4)
        new_hidden, new_cell = zero_states((hidden, cell), th.tensor([False, True, False]))
        assert new_hidden.sum(dim=(0, 2)).tolist() == [8.0, 0.0, 8.0]
        assert th.equal(new_hidden, new_cell)
        assert hidden.sum() == 24

    def test_a_poisoned_state_is_cured_by_an_episode_start(self):
        state = th.full((1, 1, 2), float("nan"))
        hidden, _ = zero_states((state, state), th.tensor([True]))
        assert (hidden == 0).all()


class TestDropout:
    @pytest.mark.parametrize("kind", KINDS)
    def test_acts_between_layers_in_training_and_not_in_evaluation(self, kind):
        rnn = make_rnn(kind, 2)
        rnn.dropout = 0.5
        features, states = make_inputs(rnn)
        layout = ResetLayout.from_episode_starts(PATTERNS["scattered"])
        first, second = (memory_sequences(rnn, features, layout, states)[0] for _ in range(2))
        assert not th.equal(first, second)
        rnn.eval()
        first, second = (memory_sequences(rnn, features, layout, states)[0] for _ in range(2))
        assert th.equal(first, second)


@pytest.mark.skipif(not th.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", KINDS)
class TestOnCuda:
    def test_equals_the_loop_and_leaks_nothing(self, kind):
        rnn = make_rnn(kind, 2).cuda()
        features, states = make_inputs(rnn)
        pattern = PATTERNS["scattered"]
        layout = ResetLayout.from_episode_starts(pattern, "cuda")
        on_gpu = features.detach().cuda(), tuple(state.detach().cuda() for state in states)
        outputs, _ = memory_sequences(rnn, on_gpu[0], layout, on_gpu[1])
        expected, _ = loop(rnn.cpu(), features, pattern, states)
        th.testing.assert_close(outputs.cpu(), expected, rtol=0, atol=1e-4)

"""Steps of large layers by oneDNN's products, against torch's cells in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch as th
from torch import nn

from thrust_pomdp.recurrent import large_steps
from thrust_pomdp.recurrent.large_steps import against_large_step, large_step
from thrust_pomdp.recurrent.memory import initial_state, memory_step
from thrust_pomdp.recurrent.sequences import layer_weights

CELLS = {
    "LSTM": (nn.LSTM, {}, th.lstm_cell),
    "GRU": (nn.GRU, {}, th.gru_cell),
    "RNN_TANH": (nn.RNN, {"nonlinearity": "tanh"}, th.rnn_tanh_cell),
    "RNN_RELU": (nn.RNN, {"nonlinearity": "relu"}, th.rnn_relu_cell),
}
each_kind = pytest.mark.parametrize("kind", CELLS)
N_ENVS, FEATURES, HIDDEN = 5, 7, 6

pytestmark = pytest.mark.skipif(
    not th.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch):
    monkeypatch.setattr(large_steps, "LARGE", 1)


def given(kind: str, bias: bool = True):
    cls, options, _ = CELLS[kind]
    th.manual_seed(0)
    rnn = cls(FEATURES, HIDDEN, bias=bias, **options)
    for weight in rnn.parameters():
        weight.data.normal_()
    state = tuple(th.randn(N_ENVS, HIDDEN) for _ in range(2 if kind == "LSTM" else 1))
    return rnn, th.randn(N_ENVS, FEATURES), state


def by_torch(kind, features, state, weights):
    state = state if kind == "LSTM" else state[0]
    new = CELLS[kind][2](features, state, *weights)
    return new if kind == "LSTM" else (new,)


@each_kind
@pytest.mark.parametrize("bias", [True, False])
@th.no_grad()
def test_equal_torchs_cells(kind, bias):
    rnn, features, state = given(kind, bias)
    weights = layer_weights(rnn, 0)
    new = large_step(kind, features, state, weights)
    double = [part.double() for part in (features, *state, *weights)]
    n_state = len(state)
    expected = by_torch(kind, double[0], double[1 : 1 + n_state], double[1 + n_state :])
    assert len(new) == n_state
    for one, other in zip(new, expected, strict=True):
        th.testing.assert_close(one.double(), other, rtol=2e-6, atol=2e-6)


@each_kind
@th.no_grad()
def test_memory_steps_are_made_of_them(kind, monkeypatch):
    rnn, features, state = given(kind)
    starts = th.zeros(N_ENVS, dtype=th.bool)
    states = tuple(part[None] for part in state)
    large, _ = memory_step(rnn, features, states, starts)
    assert th.equal(large, large_step(kind, features, state, layer_weights(rnn, 0))[0])
    monkeypatch.setattr(large_steps, "LARGE", 10**9)
    small, _ = memory_step(rnn, features, states, starts)
    assert th.equal(small, by_torch(kind, features, state, layer_weights(rnn, 0))[0])


@each_kind
@th.no_grad()
def test_weights_are_read_where_they_lie(kind):
    rnn, features, state = given(kind)
    before = large_step(kind, features, state, layer_weights(rnn, 0))[0]
    rnn.weight_hh_l0.detach().numpy()[:] = 0.0
    rnn.weight_ih_l0.data.zero_()
    after = large_step(kind, features, state, layer_weights(rnn, 0))[0]
    assert not th.equal(before, after)
    rows = large_step(kind, features * 9, (state[0] * 9, *state[1:]), layer_weights(rnn, 0))[0]
    if kind != "GRU":  # which remembers through its update gate
        assert th.equal(rows, after), "the features are multiplied by something"


@each_kind
@th.no_grad()
def test_what_is_given_is_left_as_it_is(kind):
    rnn, features, state = given(kind)
    before = [part.clone() for part in (features, *state, *rnn.parameters())]
    large_step(kind, features, state, layer_weights(rnn, 0))
    assert all(map(th.equal, before, (features, *state, *rnn.parameters())))


@each_kind
@th.no_grad()
def test_rows_are_alone_and_what_is_no_number_shows(kind):
    rnn, features, state = given(kind)
    spoilt = features.clone()
    spoilt[1, 0] = float("nan")
    new = large_step(kind, spoilt, state, layer_weights(rnn, 0))[0]
    good = large_step(kind, features, state, layer_weights(rnn, 0))[0]
    assert new[1].isnan().all()
    others = [0, 2, 3, 4]
    assert th.equal(new[others], good[others])


@each_kind
def test_where_a_gradient_is_wanted_it_is_torchs(kind):
    rnn, features, state = given(kind)
    starts = th.zeros(N_ENVS, dtype=th.bool)
    output, _ = memory_step(rnn, features, tuple(part[None] for part in state), starts)
    output.sum().backward()
    assert rnn.weight_ih_l0.grad.abs().sum() > 0
    weights = layer_weights(rnn, 0)
    assert against_large_step(features, *state, *weights) == "a gradient is wanted"


@th.no_grad()
def test_reasons_against_it():
    rnn, features, state = given("LSTM")
    weights = layer_weights(rnn, 0)
    assert against_large_step(features, *state, *weights) is None
    th._C._set_mkldnn_enabled(False)  # what th.backends.mkldnn.flags does, with a warning of TF32
    try:
        assert "oneDNN" in against_large_step(features, *state, *weights)
        assert large_step("LSTM", features, state, weights) is None
    finally:
        th._C._set_mkldnn_enabled(True)
    assert "float64" in against_large_step(features.double(), *state, *weights)
    wide = th.zeros(N_ENVS, 2 * FEATURES)[:, ::2]
    assert "contiguous" in against_large_step(wide, *state, *weights)
    starts = th.ones(N_ENVS, dtype=th.bool)
    memory_step(rnn, wide, initial_state(rnn, N_ENVS), starts)  # by torch's cell
    memory_step(rnn.double(), features.double(), initial_state(rnn, N_ENVS), starts)


def test_an_operation_that_torch_changed_is_not_used(monkeypatch):
    class Other:
        def __call__(self, *arguments):
            raise TypeError("takes other arguments now")

    large_steps._found.cache_clear()
    monkeypatch.setattr(th.ops.mkldnn, "_linear_pointwise", Other())
    try:
        assert large_steps._found() is None
    finally:
        large_steps._found.cache_clear()


def test_the_tanh_is_right_to_two_ulp():
    x = th.cat([sign * th.logspace(-30, 3, 20_001) for sign in (1.0, -1.0)])
    x = th.cat((x, th.tensor([0.0, float("inf"), -float("inf")])))
    mine, exact = large_steps._tanh(x).double(), th.tanh(x.double())
    error = ((mine - exact).abs() / exact.abs().clamp(min=1e-300)).numpy()
    assert np.nanmax(error) < 2.4e-7
    assert large_steps._tanh(th.tensor([float("nan")])).isnan().all()
    assert large_steps._tanh(th.tensor([-9.2, -1e30, 1e30])).tolist() == [-1.0, -1.0, 1.0]

"""The linear recurrent unit: numbers known by hand, its first ring, refusals."""

from __future__ import annotations

import math

import pytest
import torch as th
from torch.nn.functional import gelu

from thrust_pomdp.recurrent import LRU


def quarter_turns() -> LRU:
    """Return one whose state turns by a quarter and is halved at each step."""
    memory = LRU(1, 1)
    layer = memory.layers[0]
    with th.no_grad():
        layer.nu_log.fill_(math.log(math.log(2)))
        layer.theta_log.fill_(math.log(math.pi / 2))
        layer.gamma_log.zero_()
        layer.enter.copy_(th.tensor([[1.0], [0.0]]))
        layer.tell.weight.copy_(th.tensor([[1.0, -1.0]]))  # Re((1 + i) h)
        layer.direct.weight.zero_()
        layer.skip.weight.fill_(1.0)
        layer.skip.bias.zero_()
        layer.mix.weight.copy_(th.tensor([[1.0], [0.0]]))
        layer.mix.bias.zero_()
    return memory


def test_three_steps_with_a_start_in_the_middle():
    memory = quarter_turns()
    features = th.tensor([[[2.0], [4.0], [8.0]]], requires_grad=True)
    entering = th.tensor([[[6.0, 2.0]]], requires_grad=True)
    output, (state,) = memory(features, (entering,), th.tensor([[False, True, False]]))
    # (6 + 2i) i/2 + 2 = 1 + 3i;  4;  4 i/2 + 8 = 8 + 2i.
    assert state.flatten().tolist() == pytest.approx([8.0, 2.0], abs=1e-5)
    told = th.tensor([1.0 - 3.0, 4.0, 8.0 - 2.0])
    expected = th.tensor([2.0, 4.0, 8.0]) + 0.5 * gelu(told, approximate="tanh")
    assert output.flatten().tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    (of_features, of_entering) = th.autograd.grad(output[:, 1:].sum(), (features, entering))
    assert of_features[0, 0].item() == 0.0
    assert not of_entering.any()
    assert of_features[0, 1:].all()


def test_the_state_of_one_cue_is_the_power_of_what_it_is_multiplied_by():
    memory = LRU(1, 5)
    features = th.zeros(1, 9, 1)
    features[0, 0] = 1.0
    _, (state,) = memory(features, memory.initial_state(1), th.zeros(1, 9, dtype=th.bool))
    layer = memory.layers[0]
    real, imaginary = layer.factor().double().chunk(2)
    first = th.complex(*layer.entering()[:, 0].double().chunk(2))
    expected = first * th.complex(real, imaginary) ** 8
    found = th.complex(*state[0, 0].double().chunk(2))
    th.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


class TestFirstWeights:
    @pytest.mark.parametrize(("r_min", "r_max"), [(0.0, 1.0), (0.9, 0.999), (0.5, 0.5)])
    def test_are_on_the_ring(self, r_min, r_max):
        th.manual_seed(0)
        layer = LRU(2, 4, state_size=2000, r_min=r_min, r_max=r_max, max_phase=0.5).layers[0]
        real, imaginary = layer.factor().double().chunk(2)
        size, phase = th.hypot(real, imaginary), th.atan2(imaginary, real)
        assert size.min() >= r_min - 1e-6
        assert size.max() <= r_max + 1e-6
        # Uniform on the ring's area.
        assert size.square().mean().item() == pytest.approx((r_min**2 + r_max**2) / 2, abs=0.02)
        assert 0 < phase.min() < 0.01
        assert 0.49 < phase.max() < 0.5001
        gamma = layer.gamma_log.exp().double()
        th.testing.assert_close(gamma, (1 - size.square()).sqrt(), rtol=0.05, atol=1e-3)

    def test_make_states_as_large_whatever_their_half_life(self):
        """Of independent inputs of size 1 the mean square of a state is the one of ``B x``: 1."""
        th.manual_seed(0)
        memory = LRU(3, 4, state_size=500, r_min=0.5, r_max=0.99)
        starts = th.zeros(50, 700, dtype=th.bool)
        _, (state,) = memory(th.randn(50, 700, 3), memory.initial_state(50), starts)
        squares = th.stack(state[0].chunk(2, dim=1)).square().sum(dim=0).mean(dim=0)
        size = th.hypot(*memory.layers[0].factor().chunk(2))
        assert squares[size < 0.8].mean().item() == pytest.approx(1.0, abs=0.15)
        assert squares[size > 0.95].mean().item() == pytest.approx(1.0, abs=0.15)

    def test_reach_zero_and_one_by_no_infinite_weight(self):
        for ring in ((0.0, 0.0), (1.0, 1.0)):
            layer = LRU(2, 4, r_min=ring[0], r_max=ring[1]).layers[0]
            assert all(weight.isfinite().all() for weight in layer.parameters())


@pytest.mark.parametrize("value", [-50.0, -5.0, 0.0, 3.0, 80.0])
def test_nothing_grows_whatever_the_weights_are(value):
    memory = LRU(1, 3)
    with th.no_grad():
        memory.layers[0].nu_log.fill_(value)
        memory.layers[0].theta_log.fill_(1.0)
    entering = (th.full((1, 1, 6), 1.0),)
    _, (state,) = memory(th.zeros(1, 4096, 1), entering, th.zeros(1, 4096, dtype=th.bool))
    assert th.hypot(*state[0, 0].chunk(2)).max() <= math.sqrt(2) * (1 + 1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"r_min": -0.1}, "r_min"),
        ({"r_max": 1.1}, "r_max"),
        ({"r_min": 0.9, "r_max": 0.5}, "0 <= r_min <= r_max <= 1, got 0.9 and 0.5"),
        ({"r_max": float("nan")}, "r_max must be finite"),
        ({"max_phase": 0.0}, "max_phase must be above 0"),
        ({"max_phase": 7.0}, "at most 2 pi, got 7"),
        ({"state_size": 0}, "state_size"),
        ({"state_size": 1.5}, "state_size"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        LRU(3, 4, **options)

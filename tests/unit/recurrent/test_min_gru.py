"""The minGRU: numbers known by hand, first weights, refusals."""

from __future__ import annotations

import pytest
import torch as th

from thrust_pomdp.recurrent import MinGRU


def half_and_half() -> MinGRU:
    """Return one that averages what it was and what it reads."""
    memory = MinGRU(1, 1)
    with th.no_grad():
        memory.layers[0].gates.weight.copy_(th.tensor([[0.0], [1.0]]))
        memory.layers[0].gates.bias.zero_()
    return memory


def test_three_steps_with_a_start_in_the_middle():
    memory = half_and_half()
    features = th.tensor([[[2.0], [4.0], [8.0]]], requires_grad=True)
    entering = th.tensor([[[2.0]]], requires_grad=True)
    output, (state,) = memory(features, (entering,), th.tensor([[False, True, False]]))
    assert output.flatten().tolist() == [2.0, 2.0, 5.0]
    assert state.flatten().tolist() == [5.0]
    output.sum().backward()
    assert features.grad.flatten().tolist() == [0.5, 0.75, 0.5]
    assert entering.grad.item() == 0.5
    # dz/dbias is 1/4: of the share of (2 - 2), (4 - 0) and, through the second step, (8 - 2).
    assert memory.layers[0].gates.bias.grad.tolist() == [0.25 * (0 + 4 + 6 + 0.5 * 4), 1.75]


def test_a_step_at_a_time_is_the_same():
    memory, state = half_and_half(), th.tensor([[[2.0]]])
    shown = []
    for feature, start in ((2.0, False), (4.0, True), (8.0, False)):
        output, (state,) = memory(th.tensor([[feature]]), (state,), th.tensor([start]))
        shown.append(output.item())
    assert shown == [2.0, 2.0, 5.0]


def test_a_second_layer_reads_what_is_normalised_and_adds_its_inputs():
    memory = MinGRU(1, 2, num_layers=2)
    with th.no_grad():
        for layer in memory.layers:
            layer.gates.bias.zero_()
            layer.gates.weight.zero_()
        memory.layers[0].gates.weight[2:, 0] = th.tensor([2.0, 6.0])
        memory.layers[1].gates.weight[2:] = th.eye(2)
    output, (state,) = memory(
        th.ones(1, 1, 1), memory.initial_state(1), th.zeros(1, 1, dtype=th.bool)
    )
    # The first tells (1, 3), normalised (-1, 1), of which half is taken.
    assert state.flatten().tolist() == pytest.approx([1.0, 3.0, -0.5, 0.5], abs=1e-4)
    assert output.flatten().tolist() == pytest.approx([0.5, 3.5], abs=1e-4)


def test_the_slowest_unit_averages_over_as_many_steps_as_is_asked():
    th.manual_seed(0)
    bias = MinGRU(3, 1000, longest=50.0).layers[0].gates.bias[:1000]
    lengths = 1 / bias.sigmoid()
    assert 1.0 < lengths.min() < 1.2
    assert 49.0 < lengths.max() <= 50.001
    assert lengths.mean().item() == pytest.approx(25.5, abs=1.5)


@pytest.mark.parametrize("longest", [1, 0.5, float("nan"), float("inf"), "50", True])
def test_no_such_length(longest):
    with pytest.raises((ValueError, TypeError), match="longest"):
        MinGRU(3, 4, longest=longest)


@pytest.mark.parametrize("name", ["input_size", "hidden_size", "num_layers"])
def test_no_such_size(name):
    with pytest.raises(ValueError, match=name):
        MinGRU(**{"input_size": 3, "hidden_size": 4, "num_layers": 1, name: 0})


def test_layers_of_one_unit():
    with pytest.raises(ValueError, match="hidden_size must be at least 2 for 2 layers"):
        MinGRU(3, 1, num_layers=2)

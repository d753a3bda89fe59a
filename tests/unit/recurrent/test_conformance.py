"""check_memory: right memories pass, and each planted fault is found by a law that names it."""

from __future__ import annotations

import re

import pytest
import torch as th
from memories import FAULTS, LastFrames, OwnGRU, OwnLSTM
from torch import nn

from thrust_pomdp.recurrent import LRU, Memory, MinGRU, StatePart, check_memory


@pytest.mark.parametrize(
    ("memory_class", "lstm_kwargs"),
    [
        (nn.LSTM, None),
        (nn.LSTM, {"bias": False}),
        (nn.GRU, None),
        (nn.RNN, {"nonlinearity": "relu"}),
        (OwnLSTM, None),
        (OwnGRU, None),
        (LastFrames, None),
        (LastFrames, {"context": 2}),
        (MinGRU, None),
        (LRU, None),
        (LRU, {"state_size": 3, "r_min": 0.9, "r_max": 0.999, "max_phase": 0.3}),
    ],
)
def test_what_keeps_the_laws_passes(memory_class, lstm_kwargs):
    check_memory(memory_class, lstm_kwargs)


@pytest.mark.parametrize("sizes", [(1, 1), (7, 5)])
def test_other_sizes(sizes):
    check_memory(OwnGRU, input_size=sizes[0], hidden_size=sizes[1], n_layers=3)


@pytest.mark.parametrize("memory_class", [MinGRU, LRU])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 4, 2), (7, 5, 3)])
def test_other_sizes_of_memories_in_parallel_over_time(sizes, memory_class):
    check_memory(memory_class, input_size=sizes[0], hidden_size=sizes[1], n_layers=sizes[2])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault):
    with pytest.raises(AssertionError, match=f"- {FAULTS[fault]}: ") as caught:
        check_memory(fault)
    assert str(caught.value).startswith(f"{fault.__name__} breaks ")


def test_a_fault_of_two_layers_alone_is_found():
    class FirstLayerForgets(OwnGRU):
        def step(self, features, states):
            (hidden,) = states
            upper = hidden[1:].roll(1, dims=1)
            return super().step(features, (th.cat((hidden[:1], upper)),))

    with pytest.raises(AssertionError, match=r"with 2 layers breaks .*\n- environments"):
        check_memory(FirstLayerForgets)
    check_memory(FirstLayerForgets, n_layers=1)


def test_it_says_where(capsys):
    class SpoilsOneStep(OwnGRU):
        def windows(self, features, states, episode_starts):
            output, states = super().windows(features, states, episode_starts)
            return output + th.zeros_like(output).index_fill(1, th.tensor(6), 1e-3), states

    with pytest.raises(AssertionError, match=r"outputs differ by 0.001, most at row \d, step 6"):
        check_memory(SpoilsOneStep)


def test_what_raises_is_told():
    class Raises(OwnGRU):
        def windows(self, features, states, episode_starts):
            raise RuntimeError("no windows here")

    place = r"in windows, test_conformance.py, line \d+: no windows here"
    with pytest.raises(AssertionError, match=f"^Raises raises RuntimeError {place}") as caught:
        check_memory(Raises)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_what_raises_in_a_law_is_told_with_its_line():
    class RaisesLater(OwnGRU):
        def step(self, features, states):
            if features.isnan().any():
                raise RuntimeError("numbers, please")
            return super().step(features, states)

    place = r"in step, test_conformance.py, line \d+: numbers, please"
    with pytest.raises(AssertionError, match=f"forgotten: it raises RuntimeError {place}"):
        check_memory(RaisesLater)


class Returns(OwnGRU):
    """Returns what it is told to."""

    returned = None
    parts = (StatePart("hidden", (7,)),)

    def state_parts(self):
        return self.parts

    def step(self, features, states):
        return type(self).returned(*super().step(features, states))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda output, states: output, "Returns.step must return a pair, .* a tensor"),
        (
            lambda output, states: (output[:, 1:], states),
            r"an output of shape \(5, 7\), .*\(5, 6\)",
        ),
        (
            lambda output, states: (output, states[0]),
            r"a state of 1 part\(s\), a tuple, .* a tensor",
        ),
        (lambda output, states: (output, states * 2), r"a state of 1 part\(s\), .* it returned 2"),
        (lambda output, states: (output, (states[0][0],)), r"hidden as a tensor \(1, 5, 7\) of"),
        (lambda output, states: (output, (states[0].double(),)), "it returned .* of torch.float64"),
        (lambda output, states: (output, (states[0].detach().numpy(),)), "returned a ndarray"),
    ],
)
def test_what_is_returned_must_be_what_was_said(returned, message, monkeypatch):
    monkeypatch.setattr(Returns, "returned", staticmethod(returned))
    with pytest.raises(AssertionError, match=message) as caught:
        check_memory(Returns)
    assert str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (StatePart("hidden", (7,)), "must return a tuple of StatePart, .* is a comma missing"),
        ((StatePart("hidden", 7),), r"must be a tuple, such as \(8,\), got 7"),
    ],
)
def test_parts_are_checked(parts, message, monkeypatch):
    monkeypatch.setattr(Returns, "parts", parts)
    with pytest.raises(AssertionError, match=message):
        check_memory(Returns)


def test_frozen_weights_and_complex_parts_are_allowed():
    class Reservoir(OwnGRU):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.gates[0].weight.requires_grad_(False)

    class Turns(Memory):
        def __init__(self, input_size, hidden_size, num_layers=1):
            super().__init__(input_size, hidden_size, num_layers)
            if num_layers != 1:
                raise NotImplementedError("one layer only")
            self.read = nn.Linear(input_size, hidden_size)

        def state_parts(self):
            return (StatePart("turning", (self.hidden_size,), th.complex64),)

        def step(self, features, states):
            turning = states[0][0] * 0.9j + self.read(features)
            return turning.real + turning.imag, (turning[None],)

    check_memory(Reservoir)
    with pytest.raises(AssertionError) as caught:
        check_memory(Turns)  # complex64 is what it says, whatever the weights are
    assert "breaks 1 of" in str(caught.value)
    assert "dtype" in str(caught.value)


def test_a_fault_of_two_layers_is_no_refusal_of_them():
    class Unpacks(OwnGRU):
        def __init__(self, input_size, hidden_size, num_layers=1):
            (_,) = [hidden_size] * num_layers
            super().__init__(input_size, hidden_size, num_layers)

    with pytest.raises(ValueError, match="too many values to unpack"):
        check_memory(Unpacks)


def test_arguments_of_the_class_are_checked():
    class OneLayer(OwnGRU):
        def __init__(self, input_size, hidden_size):
            super().__init__(input_size, hidden_size)

    with pytest.raises(ValueError, match="OneLayer must take num_layers"):
        check_memory(OneLayer)
    with pytest.raises(ValueError, match="lstm_kwargs takes 'context', got 'contekst'"):
        check_memory(LastFrames, {"contekst": 3})


def test_torchs_generator_is_left_as_it_was():
    th.manual_seed(3)
    expected = th.rand(2)
    th.manual_seed(3)
    check_memory(OwnGRU)
    assert th.equal(th.rand(2), expected)


@pytest.mark.parametrize("given", [nn.Linear, OwnGRU(3, 8), "nn.GRU", None])
def test_what_is_no_class_of_memories_is_refused(given):
    with pytest.raises(ValueError, match="memory_class must be a subclass of"):
        check_memory(given)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="n_layers must be at least 1, got 0"):
        check_memory(OwnGRU, n_layers=0)
    with pytest.raises(ValueError, match="hidden_size must be a whole number, got 'a'"):
        check_memory(OwnGRU, hidden_size="a")


class TestProtocol:
    def test_the_base_is_abstract(self):
        with pytest.raises(TypeError, match="abstract"):
            Memory(3, 8)

    def test_sizes(self):
        with pytest.raises(ValueError, match="hidden_size must be at least 1, got 0"):
            OwnGRU(3, 0)

    def test_the_state_follows_dtype_and_parts(self):
        memory = LastFrames(3, 8).double()
        frames, count = memory.initial_state(5)
        assert frames.shape == (1, 5, 4, 8)
        assert frames.dtype == th.float64
        assert count.shape == (1, 5)
        assert count.dtype == th.int64

    def test_a_memory_without_weights_has_a_state(self):
        class Sums(Memory):
            def state_parts(self):
                return (StatePart("sum", (self.hidden_size,)),)

            def step(self, features, states):
                total = states[0] + features.sum(dim=1)[None, :, None]
                return total[-1], (total,)

        check_memory(Sums, n_layers=1)
        assert Sums(3, 2).to(th.float64).initial_state(1)[0].dtype == th.float64

    def test_reset_zeroes_every_part_of_the_rows(self):
        frames, count = th.ones(1, 3, 4, 8), th.ones(1, 3, dtype=th.int64)
        where = th.tensor([False, True, False])
        frames, count = Memory.reset((frames, count), where)
        assert frames.sum(dim=(0, 2, 3)).tolist() == [32, 0, 32]
        assert count.tolist() == [[1, 0, 1]]

    def test_the_default_windows_are_the_steps(self):
        th.manual_seed(0)
        memory, features = OwnLSTM(3, 8), th.randn(2, 6, 3)
        starts = th.tensor([[0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 1]], dtype=th.bool)
        output, states = memory(features, memory.initial_state(2), starts)
        torchs = nn.LSTM(3, 8, batch_first=True)
        torchs.load_state_dict(memory.state_dict())
        expected, _ = torchs(features[:1, 2:])
        assert th.allclose(output[:1, 2:], expected, atol=1e-6)
        assert th.allclose(states[0][0, 0], expected[0, -1], atol=1e-6)

    def test_hooks_are_run_in_both_passes(self):
        memory, seen = OwnGRU(3, 8), []
        memory.register_forward_hook(lambda _, given, __: seen.append(given[0].ndim))
        from thrust_pomdp.recurrent.memory import memory_sequences, memory_step
        from thrust_pomdp.recurrent.sequences import ResetLayout

        memory_step(memory, th.zeros(2, 3), memory.initial_state(2), th.zeros(2, dtype=th.bool))
        layout = ResetLayout.from_episode_starts(th.zeros(2, 5))
        memory_sequences(memory, th.zeros(2, 5, 3), layout)
        assert seen == [2, 3]


def test_each_law_has_a_fault_that_breaks_it():
    from thrust_pomdp.recurrent import conformance

    names = {conformance._name(law) for law in conformance.LAWS}
    assert set(FAULTS.values()) == names
    assert all(re.fullmatch(r"[a-z ]+", name) for name in names)

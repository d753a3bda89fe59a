"""The laws that recurrent PPO rests on, each a function that raises ``AssertionError`` if broken.

What it says is what it saw. :func:`~thrust_pomdp.recurrent.check_memory` asks all of them; a law's
name, read as a sentence, is what it tells of a broken one.
"""

from __future__ import annotations

import contextlib
import copy
import io
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch as th
from torch import nn

from thrust_pomdp.recurrent.memory import initial_state, memory_sequences, memory_step
from thrust_pomdp.recurrent.protocol import Memory
from thrust_pomdp.recurrent.sequences import LSTMState, ResetLayout

#: How far two orders of the same float32 operations may come apart, of numbers around 1.
_TOLERANCE = 1e-5
#: All sizes differ, so that axes put in each other's place show.
N_SEQ, N_STEPS = 5, 12
#: What divides by a growing product goes wrong in long windows alone.
_LONG = 512
#: The step at which an episode starts in the middle of the windows.
_MIDDLE = 5


class Case(NamedTuple):
    """A memory in evaluation mode, and what it is run on.

    :param make: returns another memory of the same kind, with weights of its own
    :param features: ``[N_SEQ, N_STEPS, input_size]``
    :param states: that enter, after some steps
    :param starts: ``[N_SEQ, N_STEPS]``, bool: at first and last steps, in the middle, twice running
    """

    memory: nn.Module
    make: Callable[[], nn.Module]
    features: th.Tensor
    states: LSTMState
    starts: th.Tensor


def trained_weights(memory: nn.Module) -> list[nn.Parameter]:
    """Return the weights that are trained."""
    return [weight for weight in memory.parameters() if weight.requires_grad]


def as_any(value: Any) -> Any:
    """Return a value of which the type checker need not know more."""
    return value


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return (str(error).strip().splitlines() or [""])[0]


def make_case(make: Callable[[], nn.Module], input_size: int) -> Case:
    """Make a memory, and what it is run on."""
    memory = make()
    starts = th.zeros(N_SEQ, N_STEPS, dtype=th.bool)
    starts[0, [0, 1, 7]] = True
    starts[1, [_MIDDLE, _MIDDLE + 1, N_STEPS - 1]] = True
    states = initial_state(memory, N_SEQ)
    never = th.zeros(N_SEQ, dtype=th.bool)
    with th.no_grad():
        for _ in range(4):
            _, states = memory_step(memory, th.randn(N_SEQ, input_size), states, never)
    return Case(memory, make, th.randn(N_SEQ, N_STEPS, input_size), states, starts)


def run_windows(
    memory: nn.Module, features: th.Tensor, states: LSTMState | None, starts: th.Tensor
) -> tuple[th.Tensor, LSTMState]:
    """Run a memory over windows, as policies do."""
    layout = ResetLayout.from_episode_starts(starts)
    return memory_sequences(memory, features, layout, states)


def _steps(
    memory: nn.Module, features: th.Tensor, states: LSTMState, starts: th.Tensor
) -> tuple[th.Tensor, LSTMState]:
    outputs = []
    for step in range(features.shape[1]):
        output, states = memory_step(memory, features[:, step], states, starts[:, step])
        outputs.append(output)
    return th.stack(outputs, dim=1), states


#: The two ways of running a memory that must be one, by name.
_WAYS = {"step": _steps, "windows": run_windows}


def _reals(tensors: tuple[th.Tensor, ...]) -> tuple[th.Tensor, ...]:
    """Return those that gradients pass through: real and complex numbers."""
    return tuple(tensor for tensor in tensors if _is_inexact(tensor))


def _is_inexact(tensor: th.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _same(what: str, left: th.Tensor, right: th.Tensor, factor: float = 1.0) -> None:
    """Compare numbers up to rounding."""
    assert left.shape == right.shape, f"{what} are of shapes {_size(left)} and {_size(right)}"
    if not _is_inexact(left):
        assert th.equal(left, right), f"{what} differ"
        return
    error = (left - right).detach().abs()
    scale = 1.0 + right.detach().abs().max()
    worst = float(error.nan_to_num(th.inf).max()) if error.numel() else 0.0
    assert worst <= factor * _TOLERANCE * scale, f"{what} differ by {worst:.2g}{_where(error)}"


def _identical(what: str, left: th.Tensor, right: th.Tensor) -> None:
    """Compare numbers bit for bit."""
    differs = ~((left == right) | (left.isnan() & right.isnan()))
    assert not differs.any(), f"{what}{_where(differs.float())}"


def _where(error: th.Tensor) -> str:
    """Name the row and the step of what is worst of windows."""
    if error.ndim != 3:
        return ""
    row, step = divmod(int(error.amax(dim=2).flatten().argmax()), error.shape[1])
    return f", most at row {row}, step {step}"


def _size(tensor: th.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _the_state_is_what_state_parts_says(case: Case) -> None:
    memory: Any = case.memory
    if isinstance(memory, Memory):
        expected = memory.initial_state(N_SEQ)
        parts = memory.state_parts()
        names = [part.name for part in parts]
        assert parts, "state_parts() is empty"
        assert len(set(names)) == len(names), f"two parts have one name: {names}"
        for part, zeros in zip(parts, expected, strict=True):
            assert _size(zeros) == (memory.num_layers, N_SEQ, *part.shape), (
                f"initial_state() gives {part.name} of shape {_size(zeros)}"
            )
            assert not zeros.any(), f"initial_state() gives {part.name} that is not zero"


def _step_equals_windows(case: Case) -> None:
    weights = trained_weights(case.memory)
    results = []
    for run in _WAYS.values():
        features = case.features.clone().requires_grad_()
        states: LSTMState = tuple(_leaf(state) for state in case.states)
        output, leaving = run(case.memory, features, states, case.starts)
        generator = th.Generator().manual_seed(1)
        loss = sum(
            (_real(tensor) * th.randn(_real(tensor).shape, generator=generator)).sum()
            for tensor in (output, *_reals(leaving))
        )
        leaves = [features, *_reals(states), *weights]
        gradients = th.autograd.grad(as_any(loss), leaves, allow_unused=True)
        full = tuple(
            th.zeros_like(leaf) if gradient is None else gradient
            for leaf, gradient in zip(leaves, gradients, strict=True)
        )
        results.append((output, leaving, full))
    (outputs, last, gradients), (w_outputs, w_last, w_gradients) = results
    _same("outputs", outputs, w_outputs)
    for left, right in zip(last, w_last, strict=True):
        _same("states after the last step", left, right)
    n_states = len(_reals(case.states))
    names = ["features", *["the state that enters"] * n_states, *["weights"] * len(weights)]
    for name, left, right in zip(names, gradients, w_gradients, strict=True):
        _same(f"gradients of {name}", left, right)


def _real(tensor: th.Tensor) -> th.Tensor:
    return th.view_as_real(tensor) if tensor.is_complex() else tensor


def _leaf(state: th.Tensor) -> th.Tensor:
    return state.clone().requires_grad_() if _is_inexact(state) else state


@th.no_grad()
def _long_windows_are_steps_too(case: Case) -> None:
    features = th.randn(2, _LONG, case.features.shape[2])
    starts = th.zeros(2, _LONG, dtype=th.bool)
    starts[1, _LONG // 3] = True
    states = initial_state(case.memory, 2)
    (output, last), (w_output, w_last) = (
        run(case.memory, features, states, starts) for run in _WAYS.values()
    )
    _same(f"outputs of {_LONG} steps", w_output, output, factor=10.0)
    for left, right in zip(w_last, last, strict=True):
        _same(f"states after {_LONG} steps", left, right, factor=10.0)


@th.no_grad()
def _one_environment_is_as_many(case: Case) -> None:
    for name, run in _WAYS.items():
        output, leaving = run(case.memory, case.features, case.states, case.starts)
        states = tuple(state[:, :1] for state in case.states)
        alone, alone_leaving = run(case.memory, case.features[:1], states, case.starts[:1])
        _same(f"{name}: outputs of one environment alone", alone, output[:1])
        for left, right in zip(alone_leaving, leaving, strict=True):
            _same(f"{name}: states of one environment alone", left, right[:, :1])


def _training_mode_computes_the_same(case: Case) -> None:
    for name, run in _WAYS.items():
        with th.no_grad():
            output, _ = run(case.memory, case.features, case.states, case.starts)
            kept = copy.deepcopy(dict(case.memory.named_buffers()))
            case.memory.train()
            trained, _ = run(case.memory, case.features, case.states, case.starts)
            case.memory.eval()
        text = f"{name}: outputs in training mode and in evaluation mode"
        _same(f"{text} (PPO takes the difference for a change of the policy)", trained, output)
        for buffer, now in case.memory.named_buffers():
            assert th.equal(kept[buffer], now), f"{name} alters {buffer} in training mode"


def _gradients_reach_back(case: Case) -> None:
    never = th.zeros_like(case.starts)
    for name, run in _WAYS.items():
        features = case.features.clone().requires_grad_()
        output, _ = run(case.memory, features, case.states, never)
        (found,) = th.autograd.grad(output[:, 1].square().sum(), features)
        assert found[:, 0].any(), (
            f"{name}: no gradient of outputs at step 1 reaches features at step 0, so that nothing "
            "is learnt through time (a state that is detached?)"
        )


@th.no_grad()
def _an_episode_starts_from_nothing(case: Case) -> None:
    for name, run in _WAYS.items():
        for first in (0, _MIDDLE, N_STEPS - 1):
            starts = th.zeros_like(case.starts)
            starts[:, first] = True
            output, _ = run(case.memory, case.features, case.states, starts)
            rest = case.features[:, first:]
            fresh, _ = _steps(
                case.memory, rest, initial_state(case.memory, N_SEQ), starts[:, first:] & False
            )
            _same(f"{name}: outputs from the start at step {first} on", output[:, first:], fresh)
            if first > 0:
                before, _ = _steps(case.memory, case.features[:, :first], case.states,
                                   starts[:, :first])  # fmt: skip
                _same(f"{name}: outputs before the start at step {first}", output[:, :first],
                      before)  # fmt: skip


@th.no_grad()
def _no_number_crosses_an_episode_start(case: Case) -> None:
    starts = th.zeros_like(case.starts)
    starts[:, _MIDDLE] = True
    others = case.features.clone()
    others[:, :_MIDDLE] = th.randn(N_SEQ, _MIDDLE, others.shape[2])
    empty = initial_state(case.memory, N_SEQ)
    for name, run in _WAYS.items():
        output, leaving = run(case.memory, case.features, case.states, starts)
        other, other_leaving = run(case.memory, others, empty, starts)
        text = f"{name}: what came before the start at step {_MIDDLE} shows in outputs after it"
        _identical(text, output[:, _MIDDLE:], other[:, _MIDDLE:])
        for left, right in zip(leaving, other_leaving, strict=True):
            _identical(f"{name}: what came before shows in the last state", left, right)


def _no_gradient_crosses_an_episode_start(case: Case) -> None:
    starts = th.zeros_like(case.starts)
    starts[:, _MIDDLE] = True
    for name, run in _WAYS.items():
        features = case.features.clone().requires_grad_()
        states = tuple(_leaf(state) for state in case.states)
        output, _ = run(case.memory, features, states, starts)
        leaves = [features, *_reals(states)]
        after, *of_states = th.autograd.grad(
            output[:, _MIDDLE:].square().sum(), leaves, allow_unused=True, retain_graph=True
        )
        before, *_ = th.autograd.grad(output[:, :_MIDDLE].square().sum(), leaves, allow_unused=True)
        for gradient in (None if after is None else after[:, :_MIDDLE], *of_states):
            assert gradient is None or not gradient.any(), (
                f"{name}: the gradient of outputs after the start at step {_MIDDLE} reaches what "
                "came before"
            )
        assert before is None or not before[:, _MIDDLE:].any(), (
            f"{name}: the gradient of outputs before the start reaches what came after"
        )


@th.no_grad()
def _it_remembers(case: Case) -> None:
    never = th.zeros_like(case.starts)
    others = case.features.clone()
    others[:, 0] += 1.0
    for name, run in _WAYS.items():
        output, _ = run(case.memory, case.features, case.states, never)
        other, _ = run(case.memory, others, case.states, never)
        assert not th.equal(output[:, 1], other[:, 1]), (
            f"{name}: outputs at step 1 do not depend on features at step 0"
        )


@th.no_grad()
def _a_carried_state_goes_on(case: Case) -> None:
    for name, run in _WAYS.items():
        whole, last = run(case.memory, case.features, case.states, case.starts)
        for cut in (1, _MIDDLE, N_STEPS - 1):
            first, between = run(case.memory, case.features[:, :cut], case.states,
                                 case.starts[:, :cut])  # fmt: skip
            second, end = run(case.memory, case.features[:, cut:], between, case.starts[:, cut:])
            text = f"{name}: outputs of windows cut at step {cut} and of whole ones"
            _same(text, th.cat((first, second), dim=1), whole)
            for left, right in zip(end, last, strict=True):
                _same(f"{name}: last states of windows cut at step {cut} and of whole ones", left,
                      right)  # fmt: skip


@th.no_grad()
def _environments_are_independent(case: Case) -> None:
    order = th.arange(N_SEQ).roll(1)
    features, starts = case.features.clone(), case.starts
    features[0] += 1.0
    states = tuple(state.clone() for state in case.states)
    zeros = initial_state(case.memory, N_SEQ)
    for state, zero in zip(states, zeros, strict=True):
        state[:, 0] = zero[:, 0]
    for name, run in _WAYS.items():
        output, leaving = run(case.memory, case.features, case.states, starts)
        turned, turned_leaving = run(
            case.memory, case.features[order], tuple(s[:, order] for s in case.states),
            starts[order],
        )  # fmt: skip
        _same(f"{name}: outputs of environments in another order", turned, output[order])
        other, other_leaving = run(case.memory, features, states, starts)
        _same(f"{name}: outputs of others where one's features changed", other[1:], output[1:])
        for left, right, third in zip(leaving, turned_leaving, other_leaving, strict=True):
            _same(f"{name}: states of environments in another order", right, left[:, order])
            _same(f"{name}: states of others where one's features changed", third[:, 1:],
                  left[:, 1:])  # fmt: skip


def _environments_share_no_gradient(case: Case) -> None:
    for name, run in _WAYS.items():
        features = case.features.clone().requires_grad_()
        states = tuple(_leaf(state) for state in case.states)
        output, _ = run(case.memory, features, states, case.starts)
        leaves = [features, *_reals(states)]
        got = th.autograd.grad(output[0].square().sum(), leaves, allow_unused=True)
        reached = [got[0][1:] if got[0] is not None else None]
        reached += [None if gradient is None else gradient[:, 1:] for gradient in got[1:]]
        assert not any(gradient is not None and gradient.any() for gradient in reached), (
            f"{name}: the gradient of one environment's outputs reaches another's features or state"
        )


@th.no_grad()
def _collecting_draws_and_alters_nothing(case: Case) -> None:
    features, states, starts = case.features.clone(), case.states, case.starts.clone()
    kept = tuple(state.clone() for state in states)
    for name, run in _WAYS.items():
        generator = th.get_rng_state()
        output, _ = run(case.memory, features, states, starts)
        assert th.equal(generator, th.get_rng_state()), (
            f"{name} draws random numbers in evaluation mode"
        )
        given = zip((features, starts, *states), (case.features, case.starts, *kept), strict=True)
        assert all(th.equal(left, right) for left, right in given), (
            f"{name} writes into the features, starts or states that it was given"
        )
        run(case.memory, th.randn_like(features), initial_state(case.memory, N_SEQ), starts)
        again, _ = run(case.memory, features, states, starts)
        _identical(f"{name}: the same call gives another output later", again, output)


@th.no_grad()
def _not_a_number_is_told_and_forgotten(case: Case) -> None:
    starts = th.zeros_like(case.starts)
    starts[:, _MIDDLE] = True
    spoilt = case.features.clone()
    spoilt[0, _MIDDLE - 2] = th.nan
    # Torch's LSTM over windows without the compiled loops resets by weights, which NaN survives.
    ways = _WAYS if isinstance(case.memory, Memory) else {"step": _steps}
    for name, run in ways.items():
        clean, _ = run(case.memory, case.features, case.states, starts)
        output, leaving = run(case.memory, spoilt, case.states, starts)
        assert output[0, _MIDDLE - 2].isnan().any(), (
            f"{name}: features that are NaN give outputs that are none, so that nobody is told"
        )
        _identical(f"{name}: NaN before the start shows after it", output[:, _MIDDLE:],
                   clean[:, _MIDDLE:])  # fmt: skip
        assert output[1:].isfinite().all(), f"{name}: one environment's NaN spoils another's output"
        for part in _reals(leaving):
            assert part.isfinite().all(), f"{name}: NaN before the start is in the last state"


@th.no_grad()
def _numbers_are_of_the_weights_dtype(case: Case) -> None:
    memory = copy.deepcopy(case.memory).double()
    states = tuple(_doubled(state) for state in case.states)
    for name, run in _WAYS.items():
        output, leaving = run(memory, case.features.double(), states, case.starts)
        for what, tensor in (("outputs", output), *(("states", part) for part in _reals(leaving))):
            assert tensor.dtype is th.float64, f"{name}: {what} of a float64 memory {tensor.dtype}"
        single, _ = run(case.memory, case.features, case.states, case.starts)
        _same(f"{name}: outputs in float64 and in float32", output.float(), single)


def _doubled(state: th.Tensor) -> th.Tensor:
    return state.double() if state.is_floating_point() else state


@th.no_grad()
def _it_works_on_another_device(case: Case) -> None:
    # On torch's device without numbers whatever was made on the CPU shows, as on a GPU.
    memory = copy.deepcopy(case.memory).to("meta")
    states = tuple(state.to("meta") for state in case.states)
    features, starts = case.features.to("meta"), case.starts.to("meta")
    output, leaving = memory_step(memory, features[:, 0], states, starts[:, 0])
    made = [output, *leaving, *initial_state(memory, N_SEQ)]
    if isinstance(memory, Memory):  # torch's layers lay windows out on the host
        output, leaving = memory(features, states, starts)
        made += [output, *leaving]
    assert all(tensor.device.type == "meta" for tensor in made), "a tensor stays on the CPU"


class _Step(nn.Module):
    """A memory's step as something to export."""

    def __init__(self, memory: nn.Module) -> None:
        super().__init__()
        self.memory = memory

    def forward(
        self, features: th.Tensor, states: LSTMState, starts: th.Tensor
    ) -> tuple[th.Tensor, LSTMState]:
        return memory_step(self.memory, features, states, starts)


@th.no_grad()
def _its_step_can_be_exported(case: Case) -> None:
    features, starts = case.features, case.starts
    given = (features[:, 2], case.states, starts[:, 2])
    with warnings.catch_warnings():
        # Torch's own layers keep a list of their weights beside them.
        warnings.filterwarnings("ignore", ".*_flat_weights.*were assigned during export")
        try:
            # torch writes a page about what it cannot follow.
            with contextlib.redirect_stderr(io.StringIO()):
                exported = th.export.export(_Step(case.memory), given, strict=False).module()
        except Exception as error:
            raise AssertionError(
                f"torch.export cannot follow it: do not branch on what a tensor holds "
                f"({first_line(error)})"
            ) from None
    for step in (0, _MIDDLE):  # other numbers, and episodes that start
        output, leaving = memory_step(case.memory, features[:, step], case.states, starts[:, step])
        other, other_leaving = exported(features[:, step], case.states, starts[:, step])
        _same("outputs of the step exported by torch.export", other, output)
        for left, right in zip(other_leaving, leaving, strict=True):
            _same("states of the step exported by torch.export", left, right)


@th.no_grad()
def _saved_weights_are_all_there_is(case: Case) -> None:
    loaded = case.make()
    loaded.load_state_dict(case.memory.state_dict())
    for name, other in (("loaded from its state_dict", loaded),
                        ("copied", copy.deepcopy(case.memory))):  # fmt: skip
        for way, run in _WAYS.items():
            output, _ = run(case.memory, case.features, case.states, case.starts)
            found, _ = run(other, case.features, case.states, case.starts)
            _identical(f"{way}: a memory {name} gives other outputs", found, output)


LAWS: tuple[Callable[[Case], None], ...] = (
    _the_state_is_what_state_parts_says,
    _collecting_draws_and_alters_nothing,
    _training_mode_computes_the_same,
    _step_equals_windows,
    _long_windows_are_steps_too,
    _an_episode_starts_from_nothing,
    _no_number_crosses_an_episode_start,
    _no_gradient_crosses_an_episode_start,
    _it_remembers,
    _gradients_reach_back,
    _a_carried_state_goes_on,
    _environments_are_independent,
    _environments_share_no_gradient,
    _one_environment_is_as_many,
    _not_a_number_is_told_and_forgotten,
    _numbers_are_of_the_weights_dtype,
    _it_works_on_another_device,
    _its_step_can_be_exported,
    _saved_weights_are_all_there_is,
)

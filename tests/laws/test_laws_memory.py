"""Memory: a window is what its steps are, nothing crosses an episode start, rows are alone."""

from __future__ import annotations

from typing import Any

import torch as th
from hypothesis import strategies as st

from laws.budget import case, law
from laws.layers import CELLS, LAYERS, State, definition, state_parts
from laws.numeric_paths import assert_near, numeric_path
from laws.strategies import SEEDS, starts
from thrust_pomdp.recurrent.memory import memory_sequences, memory_step
from thrust_pomdp.recurrent.sequences import ResetLayout

DTYPES = {"float32": th.float32, "float64": th.float64, "bfloat16": th.bfloat16}
#: DESIGN's 1e-5 for float32. Of bfloat16, whose numbers have 8 bits, only gross errors of what
#: comes out are seen, and none of gradients.
TOLERANCES = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 0.1}
#: How features lie in memory.
STRIDES = ("contiguous", "time first", "every second", "one row for all", "backwards")


@case
class MemoryCase:
    kind: str
    n_layers: int
    bias: bool
    n_features: int
    hidden: int
    starts: tuple[str, ...]
    with_states: bool
    scale: float
    dtype: str
    strides: str
    weights_lie_transposed: bool
    compiled: bool
    seed: int

    def flags(self) -> th.Tensor:
        return th.tensor([[flag == "1" for flag in row] for row in self.starts])

    def make(self) -> tuple[Any, th.Tensor, State]:
        """Return layer, features and states, all of which take gradients."""
        generator = th.Generator().manual_seed(self.seed)

        def numbers(*sizes: int, scale: float = 1.0) -> th.Tensor:
            return scale * th.randn(sizes, generator=generator, dtype=th.float64)

        rnn: Any = LAYERS[self.kind](
            self.n_features, self.hidden, num_layers=self.n_layers, bias=self.bias
        ).to(DTYPES[self.dtype])
        # Gates in use; nothing bounds the state of a relu.
        scale = 0.25 if self.kind == "RNN relu" else 0.6
        for parameter in rnn.parameters():
            parameter.data.copy_(numbers(*parameter.shape, scale=scale))
            if self.weights_lie_transposed and parameter.ndim == 2:
                parameter.data = parameter.data.T.contiguous().T
        n_seq, n_steps = len(self.starts), len(self.starts[0])
        features = self._laid_out(numbers(n_seq, n_steps, self.n_features, scale=self.scale))
        states = []
        for shape, dtype in state_parts(self.kind, rnn):
            part = numbers(n_seq, rnn.num_layers, *shape).transpose(0, 1)
            # Of whole numbers, which count steps.
            part = part.to(DTYPES[self.dtype]) if dtype is None else (2 * part).abs().to(dtype)
            states.append(part.requires_grad_(part.is_floating_point()))
        return rnn, features.requires_grad_(), tuple(states)

    def _laid_out(self, features: th.Tensor) -> th.Tensor:
        features = features.to(DTYPES[self.dtype])
        if self.strides == "time first":
            return features.transpose(0, 1).contiguous().transpose(0, 1)
        if self.strides == "every second":
            return features.repeat_interleave(2, dim=2)[:, :, ::2]
        if self.strides == "one row for all":
            return features[:1].expand(features.shape)
        if self.strides == "backwards":
            return features.transpose(1, 2).contiguous().transpose(1, 2)
        return features


CASES = st.builds(
    MemoryCase,
    kind=st.sampled_from(list(LAYERS)),
    n_layers=st.integers(1, 3),
    bias=st.booleans(),
    n_features=st.integers(1, 5),
    hidden=st.integers(1, 17),
    starts=starts(),
    with_states=st.booleans(),
    scale=st.sampled_from([1.0, 0.0, 5.0]),
    dtype=st.sampled_from(list(DTYPES)),
    strides=st.sampled_from(STRIDES),
    weights_lie_transposed=st.booleans(),
    compiled=st.booleans(),
    seed=SEEDS,
)


def floating(states: State) -> list[th.Tensor]:
    """Return the parts that take gradients; others count steps."""
    return [part for part in states if part.is_floating_point()]


def window(
    case: MemoryCase, rnn: Any, features: th.Tensor, states: State
) -> tuple[th.Tensor, State]:
    layout = ResetLayout.from_episode_starts(case.flags())
    return memory_sequences(rnn, features, layout, states if case.with_states else None)


def steps(
    case: MemoryCase, rnn: Any, features: th.Tensor, states: State
) -> tuple[th.Tensor, State]:
    if not case.with_states:
        states = tuple(th.zeros_like(part) for part in states)
    outputs = []
    for step, begins in enumerate(case.flags().unbind(dim=1)):
        output, states = memory_step(rnn, features[:, step], states, begins)
        outputs.append(output)
    return th.stack(outputs, dim=1), states


def gradients(
    outputs: th.Tensor, leaving: State, inputs: list[th.Tensor], seed: int
) -> list[th.Tensor]:
    """Return the gradients of a random sum of all that comes out."""
    generator = th.Generator().manual_seed(seed)
    total = sum(
        (part.double() * th.randn(part.shape, generator=generator, dtype=th.float64)).sum()
        for part in floating((outputs, *leaving))
    )
    found = th.autograd.grad(total, inputs, allow_unused=True)
    return [
        th.zeros_like(given) if part is None else part
        for given, part in zip(inputs, found, strict=True)
    ]


@law(CASES, fixed=250, long=1500)
def test_window_and_steps_are_the_definition(case: MemoryCase) -> None:
    with numeric_path(case.compiled):
        rnn, features, states = case.make()
        inputs = [features, *floating(states), *rnn.parameters()]
        if case.kind in CELLS:
            zeros = tuple(th.zeros_like(part) for part in states)
            taken = tuple(part.double() for part in (states if case.with_states else zeros))
            exact = definition(case.kind, rnn, features.double(), case.flags(), taken)
        else:
            exact = steps(case, rnn, features, states)
        exact_gradients = gradients(*exact, inputs, case.seed)
        tolerance = TOLERANCES[case.dtype]
        for name, run in (("window", window), ("steps", steps)):
            outputs, leaving = run(case, rnn, features, states)
            assert outputs.dtype is DTYPES[case.dtype]
            assert_near(outputs, exact[0], tolerance, f"{name}, outputs")
            for ours, theirs in zip(leaving, exact[1], strict=True):
                assert_near(ours, theirs, tolerance, f"{name}, last state")
            if case.dtype == "bfloat16":
                continue
            found = gradients(outputs, leaving, inputs, case.seed)
            for number, (ours, theirs) in enumerate(zip(found, exact_gradients, strict=True)):
                assert_near(ours, theirs, tolerance, f"{name}, gradient {number}")


@st.composite
def cases_with_a_start(draw: Any) -> tuple[MemoryCase, int, int]:
    case = draw(CASES)
    row = draw(st.integers(0, len(case.starts) - 1))
    step = draw(st.integers(0, len(case.starts[0]) - 1))
    flags = case.starts[row]
    rows = [*case.starts]
    rows[row] = f"{flags[:step]}1{flags[step + 1 :]}"
    kwargs = {**vars(case), "starts": tuple(rows), "with_states": True}
    return MemoryCase(**kwargs), row, step


@law(cases_with_a_start(), fixed=150, long=1000)
def test_nothing_crosses_an_episode_start(case: tuple[MemoryCase, int, int]) -> None:
    memory, row, step = case
    with numeric_path(memory.compiled):
        for run in (window, steps):
            rnn, features, states = memory.make()
            outputs, leaving = run(memory, rnn, features, states)
            after = outputs[row, step:].double().sum() + sum(
                part[:, row].double().sum() for part in leaving
            )
            of_features, *of_states = th.autograd.grad(
                after, [features, *floating(states)], allow_unused=True
            )
            if memory.strides != "one row for all":  # there others' steps are the same numbers
                assert not of_features[row, :step].any()
            for part in of_states:
                assert part is None or not part[:, row].any()
            # What came before may have been anything.
            others = features.detach().clone()
            others[row, :step] = 1e4 * (1.0 - others[row, :step])
            changed = tuple(part.detach().clone() for part in states)
            for part in changed:
                part[:, row] = -7 * part[:, row] + 3
            with th.no_grad():
                again, leaving_again = run(memory, rnn, others, changed)
                once, leaving_once = run(memory, rnn, features.detach().clone(), states)
            assert th.equal(again[row, step:], once[row, step:])
            for ours, theirs in zip(leaving_again, leaving_once, strict=True):
                assert th.equal(ours[:, row], theirs[:, row])


@law(st.tuples(CASES, st.integers(0, 4)), fixed=80, long=800)
def test_rows_know_nothing_of_one_another(case: tuple[MemoryCase, int]) -> None:
    memory, row = case[0], case[1] % len(case[0].starts)
    others = [number for number in range(len(memory.starts)) if number != row]
    with numeric_path(memory.compiled):
        for run in (window, steps):
            rnn, features, states = memory.make()
            outputs, leaving = run(memory, rnn, features, states)
            total = outputs[row].double().sum() + sum(p[:, row].double().sum() for p in leaving)
            if memory.strides != "one row for all":
                of_features, *of_states = th.autograd.grad(
                    total, [features, *floating(states)], allow_unused=True
                )
                assert not of_features[others].any()
                for part in of_states:
                    assert part is None or not part[:, others].any()
            plain = features.detach().clone()
            changed, moved = plain.clone(), tuple(part.detach().clone() for part in states)
            changed[row] = 3.0 - 2.0 * changed[row]
            for part in moved:
                part[:, row] += 1
            with th.no_grad():
                once, leaving_once = run(memory, rnn, plain, states)
                again, leaving_again = run(memory, rnn, changed, moved)
            assert th.equal(once[others], again[others])
            for ours, theirs in zip(leaving_once, leaving_again, strict=True):
                assert th.equal(ours[:, others], theirs[:, others])

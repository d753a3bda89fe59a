"""The scan is the loop over its steps, forward and backward, in torch and compiled."""

from __future__ import annotations

import pytest
import torch as th
from torch.autograd import gradcheck, gradgradcheck

from thrust_pomdp.recurrent import LRU, MinGRU
from thrust_pomdp.recurrent.compiled import load_kernels
from thrust_pomdp.recurrent.compiled_scan import LRURows, MinGRURows
from thrust_pomdp.recurrent.scan import complex_product, scan

IN_THE_MIDDLE = th.tensor([[False, True, False]])


def loop(keep, added, starts, entering, product=th.mul):
    states = []
    for step, flags in enumerate(starts.unbind(dim=1)):
        before = th.where(flags[:, None], th.zeros_like(entering), entering)
        entering = product(keep[:, step], before) + added[:, step]
        states.append(entering)
    return th.stack(states, dim=1)


def numbers(n_steps, size, dtype=th.float64, n_seq=3):
    generator = th.Generator().manual_seed(n_steps)

    def draw(*sizes):
        return th.randn(*sizes, generator=generator, dtype=dtype)

    keep, added, entering = (
        draw(n_seq, n_steps, size),
        draw(n_seq, n_steps, size),
        draw(n_seq, size),
    )
    starts = th.rand(n_seq, n_steps, generator=generator) < 0.2
    starts[0] = False
    return keep.sigmoid(), added, starts, entering


class TestByHand:
    def test_three_steps_with_a_start_in_the_middle(self):
        keep = th.tensor([[[0.5], [0.25], [0.5]]], requires_grad=True)
        added = th.tensor([[[1.0], [2.0], [3.0]]], requires_grad=True)
        entering = th.tensor([[8.0]], requires_grad=True)
        states = scan(keep, added, IN_THE_MIDDLE, entering)
        assert states.flatten().tolist() == [5.0, 2.0, 4.0]
        states.sum().backward()
        assert keep.grad.flatten().tolist() == [8.0, 0.0, 2.0]
        assert added.grad.flatten().tolist() == [1.0, 1.5, 1.0]
        assert entering.grad.item() == 0.5

    def test_a_quarter_turn_a_step(self):
        turn = th.tensor([0.0, 1.0]).expand(1, 3, 2)
        added = th.tensor([[[1.0, 0.0], [2.0, 0.0], [0.0, 5.0]]])
        states = scan(turn, added, IN_THE_MIDDLE, th.tensor([[1.0, 0.0]]), complex_product)
        assert states[0].tolist() == [[1.0, 1.0], [2.0, 0.0], [0.0, 7.0]]

    def test_nothing_before_a_start_is_met_however_large_it_is(self):
        keep, added, starts, entering = numbers(20, 2)
        starts[:] = False
        starts[:, 9] = True
        expected = scan(keep, added, starts, entering)[:, 9:]
        keep[:, 4], added[:, 5], entering[:] = th.inf, th.nan, th.nan
        assert th.equal(scan(keep, added, starts, entering)[:, 9:], expected)


@pytest.mark.parametrize("n_steps", [1, 2, 7, 8, 9, 63, 64, 65, 130, 513])
class TestIsTheLoop:
    def test_of_real_numbers(self, n_steps):
        given = numbers(n_steps, 3)
        th.testing.assert_close(scan(*given), loop(*given), rtol=0, atol=1e-12)

    def test_of_complex_numbers(self, n_steps):
        keep, *rest = numbers(n_steps, 4)
        turned = th.cat((keep * 0.7, -keep * 0.7), dim=2).chunk(2, dim=2)
        factor = th.cat((turned[0][..., :2], turned[1][..., 2:]), dim=2)
        expected = loop(factor, *rest, complex_product)
        found = scan(factor, *rest, complex_product)
        th.testing.assert_close(found, expected, rtol=0, atol=1e-12)

    def test_backward(self, n_steps):
        found = []
        for run in (scan, loop):
            keep, added, starts, entering = numbers(n_steps, 3)
            leaves = [part.requires_grad_() for part in (keep, added, entering)]
            weights = th.arange(added.numel(), dtype=added.dtype).cos().view_as(added)
            found.append(th.autograd.grad((run(keep, added, starts, entering) * weights).sum(),
                                          leaves))  # fmt: skip
        th.testing.assert_close(*found, rtol=0, atol=1e-11)


def test_derivatives_of_both_orders():
    keep, added, starts, entering = numbers(11, 2, n_seq=2)

    def run(keep, added, entering):
        return scan(keep, added, starts, entering)

    leaves = tuple(part.requires_grad_() for part in (keep, added, entering))
    assert gradcheck(run, leaves)
    assert gradgradcheck(run, leaves)


def test_in_transforms_of_torch_func():
    keep, added, starts, entering = numbers(11, 2)
    expected = th.stack([scan(k * keep, added, starts, entering) for k in (0.5, 1.0)])
    found = th.vmap(lambda k: scan(k * keep, added, starts, entering))(th.tensor([0.5, 1.0]))
    th.testing.assert_close(found, expected.to(found.dtype))


def min_gru_plain(gates, starts, entering):
    chosen, new = gates.chunk(2, dim=-1)
    return scan((-chosen).sigmoid(), chosen.sigmoid() * new, starts, entering)


def lru_plain(factor, added, starts, entering):
    return scan(factor.expand_as(added), added, starts, entering, complex_product)


@pytest.mark.skipif(load_kernels() is None, reason="there are no compiled loops")
class TestCompiled:
    """The compiled loops against the scan in float64."""

    @staticmethod
    def compare(compiled, plain, leaves, starts):
        found = []
        for run, dtype in ((compiled, th.float32), (plain, th.float64)):
            given = [leaf.to(dtype).requires_grad_() for leaf in leaves]
            states = run(*given[:-1], starts, given[-1])
            weights = th.arange(states.numel()).cos().view_as(states).to(dtype)
            gradients = th.autograd.grad((states * weights).sum(), given)
            found.append([part.double() for part in (states, *gradients)])
        for ours, expected in zip(*found, strict=True):
            error = (ours - expected).abs().max() / (1 + expected.abs().max())
            assert error < 1e-6

    @pytest.mark.parametrize("n_steps", [1, 2, 9, 100])
    def test_min_gru(self, n_steps):
        gates, _, starts, entering = numbers(n_steps, 10)
        gates = 8 * (gates - 0.5)
        kernels = load_kernels().scan
        self.compare(
            lambda *given: MinGRURows.apply(kernels, *given),
            min_gru_plain, (gates, entering[:, :5]), starts,
        )  # fmt: skip

    @pytest.mark.parametrize("n_steps", [1, 2, 9, 100])
    def test_lru(self, n_steps):
        _, added, starts, entering = numbers(n_steps, 10)
        angle = th.arange(5, dtype=th.float64)
        factor = 0.9 * th.cat((angle.cos(), angle.sin()))
        kernels = load_kernels().scan
        self.compare(
            lambda *given: LRURows.apply(kernels, *given),
            lru_plain, (factor, added, entering), starts,
        )  # fmt: skip

    def test_a_gate_that_is_nearly_shut_or_open_has_its_slope(self):
        """To its last digits: 1 - s of a float32 has none left."""
        for chosen, slope in ((-30.0, 9.3576e-14), (30.0, 9.3576e-14)):
            gates = th.tensor([[[chosen, 5.0]]], requires_grad=True)
            states = MinGRURows.apply(
                load_kernels().scan, gates, th.tensor([[False]]), th.tensor([[3.0]])
            )
            (found,) = th.autograd.grad(states.sum(), gates)
            assert found[0, 0, 0].item() == pytest.approx(2.0 * slope, rel=1e-4)

    def test_sizes_that_do_not_fit_are_refused(self):
        kernels = load_kernels().scan
        with pytest.raises(ValueError, match=r"hidden_state must be of shape \(2, 3\)"):
            MinGRURows.apply(
                kernels, th.zeros(2, 4, 6), th.zeros(2, 4, dtype=th.bool), th.zeros(1, 3)
            )
        with pytest.raises(ValueError, match=r"factor must be of shape \(6,\)"):
            LRURows.apply(
                kernels, th.zeros(4), th.zeros(2, 4, 6), th.zeros(2, 4, dtype=th.bool),
                th.zeros(2, 6),
            )  # fmt: skip

    @pytest.mark.parametrize("memory_class", [MinGRU, LRU])
    def test_one_step_is_the_step_by_torch(self, memory_class):
        memory = memory_class(3, 5)
        compiled = memory.compiled_step(load_kernels())
        features, (state,) = th.randn(4, 3), memory.initial_state(4)
        state, starts = th.randn_like(state), th.tensor([False, True, False, True])
        state[0, 1] = th.nan
        for _ in range(2):
            with th.no_grad():
                expected, (leaving,) = memory(features, (state,), starts)
                found, (told,) = compiled(features, (state,), starts)
                th.testing.assert_close(found, expected, rtol=0, atol=1e-6)
                th.testing.assert_close(told, leaving, rtol=0, atol=1e-6)
                for weight in memory.parameters():  # as an optimiser moves them
                    weight.data.mul_(0.9)

    def test_one_step_refuses_sizes_that_do_not_fit(self):
        step = MinGRU(3, 5).compiled_step(load_kernels())
        for sizes in ((4, 2, 4, 4), (4, 3, 3, 4), (4, 3, 4, 3)):
            n, features, flags, n_states = sizes
            with pytest.raises(ValueError, match="must be of shape"):
                step(th.zeros(n, features), (th.zeros(1, n_states, 5),),
                     th.zeros(flags, dtype=th.bool))  # fmt: skip

    def test_second_derivatives_are_refused_with_the_remedy(self):
        gates = th.randn(1, 3, 4, requires_grad=True)
        states = MinGRURows.apply(load_kernels().scan, gates, IN_THE_MIDDLE, th.zeros(1, 2))
        (gradient,) = th.autograd.grad(states.sum(), gates, create_graph=True)
        with pytest.raises(RuntimeError, match="NUMBA_DISABLE_JIT=1"):
            gradient.sum().backward()


@pytest.mark.parametrize("is_compiled", [False, True], ids=["torch", "compiled"])
@pytest.mark.parametrize(
    ("memory_class", "options"),
    [
        (MinGRU, {}),
        (MinGRU, {"longest": 4000.0}),
        (LRU, {}),
        (LRU, {"r_min": 0.9, "r_max": 0.999}),
    ],
)
def test_float32_is_float64_to_1e_4_over_4096_steps(
    memory_class, options, is_compiled, monkeypatch
):
    if is_compiled and load_kernels() is None:
        pytest.skip("there are no compiled loops")
    if not is_compiled:
        for name in ("min_gru", "lru"):
            monkeypatch.setattr(f"thrust_pomdp.recurrent.{name}.scan_kernels", lambda *_: None)
    th.manual_seed(0)
    memory = memory_class(4, 32, num_layers=2, **options)
    features, starts = th.randn(2, 4096, 4), th.zeros(2, 4096, dtype=th.bool)
    starts[1, 1000] = True
    found = []
    for dtype in (th.float32, th.float64):
        memory = memory.to(dtype)
        leaf = features.to(dtype).requires_grad_()
        output, (state,) = memory(leaf, memory.initial_state(2), starts)
        (gradient,) = th.autograd.grad(output[:, -1].sum(), leaf)
        found.append([part.double() for part in (output, state, gradient)])
    for ours, expected in zip(*found, strict=True):
        assert (ours - expected).abs().max() < 1e-4
    assert not found[0][2][1, :1000].any()

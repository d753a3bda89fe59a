"""Who has which environment, in which order blocks are summed, and what is merged of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch as th

from thrust_pomdp.distributed.blocks import Blocks, sizes_in_blocks
from thrust_pomdp.distributed.moments import merged_blocks, merged_rows, moments
from thrust_pomdp.distributed.trees import summed_alone, tree_sum


class TestTree:
    def test_neighbours_are_added_level_by_level(self):
        assert tree_sum(list("abcde")) == "abcde"
        brackets = [f"{letter}" for letter in "abcde"]

        class Term(str):
            def __add__(self, other: str) -> Term:
                return Term(f"({self}{other})")

        assert tree_sum([Term(letter) for letter in brackets]) == "(((ab)(cd))e)"

    @pytest.mark.parametrize("n_blocks", range(1, 25))
    def test_does_not_depend_on_who_adds(self, n_blocks):
        terms = np.random.default_rng(n_blocks).normal(size=n_blocks) * 10.0 ** np.arange(n_blocks)
        whole = tree_sum(list(terms))
        for n_ranks in (n for n in range(1, n_blocks + 1) if n_blocks % n == 0):
            shares = terms.reshape(n_ranks, -1)
            sent = [term for share in shares for term in summed_alone(list(share))]
            assert tree_sum(sent) == whole

    def test_another_order_would_round_otherwise(self):
        """Without this the test above could not fail."""
        terms = list(np.random.default_rng(0).normal(size=8).astype(np.float32))
        sums = {sum(order) for order in itertools.permutations(terms[:6])}
        assert len(sums) > 1

    def test_a_power_of_two_sends_one_term(self):
        assert len(summed_alone([1.0] * 8)) == 1
        assert len(summed_alone([1.0] * 6)) == 3


class TestBlocks:
    def test_are_the_same_environments_whoever_has_them(self):
        envs = {}
        for n_ranks in (1, 2, 4):
            for rank in range(n_ranks):
                blocks = Blocks(4, n_ranks, rank, n_envs=16 // n_ranks)
                assert blocks.envs_of_all == 16
                for block, rows in zip(blocks.own, blocks.rows, strict=True):
                    first = blocks.first_env + rows.start
                    assert envs.setdefault(block, first) == first == 4 * block
                    assert rows.stop - rows.start == 4

    @pytest.mark.parametrize(
        ("blocks", "message"),
        [
            (Blocks(3, 2, 0, 4), "gradient_blocks must be a multiple of the 2 processes, got 3"),
            (Blocks(4, 1, 0, 6), "must be a multiple of gradient_blocks=4, got 6"),
        ],
    )
    def test_what_cannot_be_divided_is_refused(self, blocks, message):
        with pytest.raises(ValueError, match=message):
            blocks.check()

    def test_minibatches_take_as_many_of_each(self):
        rng = np.random.default_rng(0)
        for _ in range(300):
            n_blocks, of_block = int(rng.integers(1, 9)), int(rng.integers(1, 20))
            left, sizes = n_blocks * of_block, []
            while left:
                sizes.append(int(rng.integers(1, left + 1)))
                left -= sizes[-1]
            found = sizes_in_blocks(sizes, n_blocks)
            assert sum(found) == n_blocks * of_block
            assert not any(size % n_blocks for size in found)
            assert min(found) > 0
            assert len(found) == min(len(sizes), of_block)


class TestMoments:
    def test_of_rows_and_blocks_are_those_of_all(self):
        rng = np.random.default_rng(0)
        rows = rng.normal(100, 1, (3, 6, 5)).astype(np.float32)  # blocks, rows, steps
        sizes = [1, 3, 2]
        of_blocks = [merged_rows(moments(block), 5, sizes) for block in rows]
        counts = np.multiply(sizes, 5)
        found = merged_blocks(of_blocks, counts)
        start = 0
        for (mean, squares), size in zip(found, sizes, strict=True):
            numbers = rows[:, start : start + size].astype(np.float64)
            assert mean == pytest.approx(numbers.mean(), rel=1e-14)
            assert squares / numbers.size == pytest.approx(numbers.var(), rel=1e-12)
            std = th.from_numpy(numbers).std().item()  # what the loss divides by
            assert (squares / (numbers.size - 1)) ** 0.5 == pytest.approx(std, rel=1e-12)
            start += size

"""Windows cut into subsequences, on data that can be recognised: values = 100 * env + step."""

from __future__ import annotations

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from thrust_pomdp.ppo.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from thrust_pomdp.ppo.sequence_batch import SequenceBatch, combine_states
from thrust_pomdp.ppo.subsequences import Subsequences, check_subsequences, cut_rows, join_rows
from thrust_pomdp.recurrent.sequences import RNNStates

OBS = spaces.Box(-np.inf, np.inf, (2,), np.float32)
LAYERS, HIDDEN = 2, 3
N_STEPS, N_ENVS = 8, 3


def states(numbers: np.ndarray, shared: bool = False) -> RNNStates:
    """States whose entries are the environments' numbers, .25 more for the cell, negative for the
    critic."""
    hidden = th.as_tensor(numbers, dtype=th.float32)[None, :, None].expand(LAYERS, -1, HIDDEN)
    pi = (hidden.clone(), hidden + 0.25)
    return RNNStates(pi, pi if shared else (-hidden, -hidden - 0.25))


def numbers_of(step: int, n_envs: int = N_ENVS) -> np.ndarray:
    return 100.0 * np.arange(n_envs) + step


def fill(buffer, starts=None, shared=False, with_states=True):
    for step in range(buffer.buffer_size):
        number = numbers_of(step, buffer.n_envs)
        obs = np.stack([number, -number], axis=1)
        if isinstance(buffer, RecurrentDictRolloutBuffer):
            obs = {"a": obs, "b": number[:, None]}
        kwargs = {"lstm_states": states(number, shared)} if with_states else {}
        buffer.add(
            obs, number[:, None], number,
            np.zeros(buffer.n_envs) if starts is None else starts[step],
            th.as_tensor(number), th.as_tensor(-number), **kwargs,
        )  # fmt: skip
    buffer.advantages, buffer.returns = 2 * buffer.values, 3 * buffer.values
    return buffer


def make(sequence_length, burn_in=0, n_steps=N_STEPS, n_envs=N_ENVS, **kwargs):
    buffer = RecurrentRolloutBuffer(n_steps, OBS, spaces.Discrete(1000), n_envs=n_envs, **kwargs)
    buffer.cut_windows(sequence_length, burn_in)
    return buffer


def everything(buffer) -> SequenceBatch:
    (batch,) = buffer.to_minibatches(10_000, shuffle=False)
    return batch


class TestCuttingAndJoining:
    @pytest.mark.parametrize("length", [1, 2, 3, 4, 6, 12])
    @pytest.mark.parametrize("n_envs", [1, 5])
    @pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
    def test_joining_undoes_cutting(self, length, n_envs, shape):
        windows = th.randn(n_envs, 12, *shape)
        rows = cut_rows(windows, length)
        assert rows.shape == (n_envs * 12 // length, length, *shape)
        assert th.equal(join_rows(rows, 12), windows)

    def test_rows_are_environment_major_and_in_time_order(self):
        windows = th.tensor([[0, 1, 2, 3], [100, 101, 102, 103]])
        assert cut_rows(windows, 2).tolist() == [[0, 1], [2, 3], [100, 101], [102, 103]]

    def test_cutting_copies_nothing(self):
        windows = th.zeros(3, 8, 2)
        assert cut_rows(windows, 4).data_ptr() == windows.data_ptr()


class TestCombineStates:
    def test_each_tensor_meets_those_of_its_place(self):
        first, second = states(np.arange(3)), states(10 * np.arange(3))
        both = combine_states(th.add, first, second)
        for pair, expected in zip(both, states(11 * np.arange(3)), strict=True):
            assert th.equal(pair[0], expected[0])
            assert th.equal(pair[1], expected[1] + expected[1].sign() * 0.25)

    def test_a_critic_without_memory_stays_without(self):
        shared = states(np.arange(3), shared=True)
        both = combine_states(th.add, shared, shared)
        assert both.vf is both.pi

    def test_states_may_have_any_number_of_tensors(self):
        one = RNNStates((th.ones(1, 2, 3),), (th.ones(1, 2, 3),) * 3)
        both = combine_states(th.add, one, one)
        assert [len(member) for member in both] == [1, 3]
        assert all((tensor == 2).all() for member in both for tensor in member)


@pytest.mark.parametrize("length", [1, 2, 4, 8])
class TestSubsequences:
    def first_steps(self, length):
        """What the first step of each subsequence is known by, in order."""
        return [100 * env + step for env in range(N_ENVS) for step in range(0, N_STEPS, length)]

    def test_come_environment_by_environment_in_time_order(self, length):
        batch = everything(fill(make(length)))
        assert batch.old_values[:, 0].tolist() == self.first_steps(length)

    @pytest.mark.parametrize("burn_in", [0, 1])
    def test_all_parts_belong_together(self, length, burn_in):
        batch = everything(fill(make(length, 0 if length == N_STEPS else burn_in)))
        number = batch.old_values
        expected = np.array(self.first_steps(length))[:, None] + np.arange(length)
        assert np.array_equal(number, expected)
        assert th.equal(batch.old_log_prob, -number)
        assert th.equal(batch.advantages, 2 * number)
        assert th.equal(batch.returns, 3 * number)
        assert th.equal(batch.actions[..., 0].float(), number)
        assert th.equal(batch.observations, th.stack([number, -number], dim=2))

    @pytest.mark.parametrize("shared", [False, True])
    def test_start_from_the_states_that_entered_them(self, length, shared):
        batch = everything(fill(make(length), shared=shared))
        expected = states(batch.old_values[:, 0].numpy(), shared)
        for member, right in zip(batch.initial_state, expected, strict=True):
            for tensor, right_tensor in zip(member, right, strict=True):
                assert th.equal(tensor, right_tensor)
        assert (batch.initial_state.vf is batch.initial_state.pi) == shared

    @pytest.mark.parametrize("per_minibatch", [1, 3, 4, 1000])
    def test_every_transition_comes_exactly_once_per_epoch(self, length, per_minibatch):
        buffer = fill(make(length))
        for _ in range(3):
            batches = list(buffer.to_minibatches(per_minibatch))
            seen = np.concatenate([batch.old_values.numpy().flatten() for batch in batches])
            assert sorted(seen) == sorted(buffer.values.flatten())
            assert all(len(batch.returns) == per_minibatch for batch in batches[:-1])

    @pytest.mark.parametrize("burn_in", [0, 1])
    def test_shuffled_ones_keep_their_states_and_burn_in(self, length, burn_in):
        burn_in = 0 if length == N_STEPS else burn_in
        for batch in fill(make(length, burn_in)).to_minibatches(2):
            is_first = batch.old_values[:, 0] % 100 == 0
            run_from = batch.old_values[:, 0] - burn_in * ~is_first
            assert th.equal(batch.initial_state.pi[0][1, :, 2], run_from)
            assert th.equal(batch.initial_state.vf[1][0, :, 1], -run_from - 0.25)
            if burn_in:
                assert th.equal(batch.burn_in.is_first, is_first)
                before = batch.burn_in.observations[~is_first][:, 0, 0]
                assert th.equal(before, run_from[~is_first])

    def test_episode_starts_and_their_layout_agree(self, length):
        starts = np.random.default_rng(0).random((N_STEPS, N_ENVS)) < 0.3
        batch = everything(fill(make(length), starts))
        assert np.array_equal(batch.episode_starts, starts.T.reshape(-1, length))
        inside = batch.episode_starts.clone()
        inside[:, 0] = False
        assert th.equal(batch.layout.episode_starts, batch.episode_starts)
        assert th.equal(batch.layout.extended.flags[:, :, 0].sum(dim=0), inside.sum(dim=1).float())

    def test_only_the_states_at_their_starts_are_stored(self, length):
        buffer = fill(make(length))
        assert list(buffer._cut._states) == list(range(0, N_STEPS, length))

    def test_are_shuffled_by_the_buffers_own_generator(self, length):
        buffer = fill(make(length))

        def order():
            return [int(n) for batch in buffer.to_minibatches(2) for n in batch.old_values[:, 0]]

        buffer.seed(0)
        first = [order() for _ in range(4)]
        # One permutation of all subsequences an epoch, as of all environments where windows stay
        # whole.
        generator = np.random.default_rng(0)
        number = np.array(self.first_steps(length))
        assert first == [number[generator.permutation(len(number))].tolist() for _ in range(4)]


class TestBurnIn:
    @pytest.mark.parametrize("burn_in", [1, 2, 4])
    def test_is_made_of_the_steps_before(self, burn_in):
        starts = np.random.default_rng(0).random((N_STEPS, N_ENVS)) < 0.3
        batch = everything(fill(make(4, burn_in), starts))
        second = ~batch.burn_in.is_first
        assert batch.burn_in.is_first.tolist() == [True, False] * N_ENVS
        before = np.arange(4 - burn_in, 4) + 100 * np.arange(N_ENVS)[:, None]
        assert np.array_equal(batch.burn_in.observations[second][..., 0], before)
        assert np.array_equal(batch.burn_in.episode_starts[second], starts.T[:, 4 - burn_in : 4])

    def test_is_run_from_the_states_stored_so_many_steps_earlier(self):
        buffer = fill(make(4, burn_in=3))
        assert list(buffer._cut._states) == [0, 1]
        entered = everything(buffer).initial_state.pi[0][0, :, 0]
        assert entered.tolist() == [0, 1, 100, 101, 200, 201]

    def test_may_be_the_whole_subsequence_before(self):
        buffer = fill(make(2, burn_in=2))
        assert list(buffer._cut._states) == [0, 2, 4]
        entered = everything(buffer).initial_state.pi[0][0, :4, 0]
        assert entered.tolist() == [0, 0, 2, 4]

    def test_there_is_none_unless_asked_for(self):
        assert everything(fill(make(4))).burn_in is None

    def test_of_dict_observations(self):
        space = spaces.Dict({"a": OBS, "b": spaces.Box(-1, 1, (1,))})
        buffer = RecurrentDictRolloutBuffer(N_STEPS, space, spaces.Discrete(1000), n_envs=N_ENVS)
        buffer.cut_windows(4, burn_in=1)
        batch = everything(fill(buffer))
        assert th.equal(batch.observations["a"][..., 0], batch.old_values)
        assert th.equal(batch.observations["b"][..., 0], batch.old_values)
        for part in batch.burn_in.observations.values():
            assert part[1::2, 0, 0].tolist() == [3, 103, 203]


class TestRefreshing:
    """With a policy that adds up what it sees, ``state = state * (no start) + observation``."""

    @staticmethod
    def sum_up(obs, before, starts):
        for step in range(starts.shape[1]):
            seen = obs[:, step, 0][None, :, None]
            kept = (~starts[:, step])[None, :, None]
            before = combine_states(lambda t, k=kept, s=seen: t * k + s, before)
        return before

    @pytest.mark.parametrize(("length", "burn_in"), [(2, 0), (4, 0), (4, 3), (2, 2), (1, 1)])
    def test_replaces_each_state_by_what_the_steps_before_it_give(self, length, burn_in):
        starts = np.zeros((N_STEPS, N_ENVS), bool)
        starts[3, 1] = True
        buffer = fill(make(length, burn_in), starts)
        old = everything(buffer)
        buffer.refresh_states(self.sum_up)
        new = everything(buffer)
        rows = N_STEPS // length
        for row, (was, state) in enumerate(
            zip(old.initial_state.pi[0][0, :, 0], new.initial_state.pi[0][0, :, 0], strict=True)
        ):
            env, step = row // rows, max(row % rows * length - burn_in, 0)
            assert was == 100 * env + step
            since = 3 if env == 1 and step > 3 else 0
            # The window's own state is what the first step adds to.
            expected = sum(100 * env + t for t in range(since, step))
            expected += 100 * env if since == 0 else 0
            assert state == expected
        assert th.equal(new.observations, old.observations)

    def test_lasts_until_the_window_ends(self):
        buffer = fill(make(4))
        buffer.refresh_states(self.sum_up)
        for _ in range(2):
            assert everything(buffer).initial_state.pi[0][0, :2, 0].tolist() == [0, 6]
        buffer.reset()
        assert everything(fill(buffer)).initial_state.pi[0][0, :2, 0].tolist() == [0, 4]

    def test_whole_windows_have_nothing_to_refresh(self):
        buffer = RecurrentRolloutBuffer(N_STEPS, OBS, spaces.Discrete(1000), n_envs=N_ENVS)
        with pytest.raises(ValueError, match=r"call cut_windows\(\) first"):
            fill(buffer).refresh_states(self.sum_up)


class TestTheBufferOtherwise:
    def test_hands_out_whole_windows_as_before(self):
        batch = fill(make(4)).to_sequence_batch()
        assert batch.old_values.shape == (N_ENVS, N_STEPS)
        assert batch.burn_in is None

    def test_get_serves_time_steps_by_whole_subsequences(self):
        buffer = fill(make(2))
        sizes = [len(batch.returns) for batch in buffer.get(11)]
        assert sizes == [8, 8, 8]  # 24 steps make three minibatches of 11
        assert [len(batch.returns) for batch in buffer.get()] == [24]
        assert [len(batch.returns) for batch in buffer.get(1)] == [2] * 12

    def test_records_all_states_too_where_asked(self):
        buffer = fill(make(4, record_states=True))
        expected = np.arange(N_STEPS)[:, None] + 100 * np.arange(N_ENVS)
        assert np.array_equal(buffer.hidden[:, 1, :, 0], expected)
        assert everything(buffer).initial_state.pi[0][0, :2, 0].tolist() == [0, 4]

    def test_later_changes_of_the_states_do_not_reach_it(self):
        buffer, live = make(1, n_steps=2, n_envs=1), states(np.array([5.0]))
        for _ in range(2):
            buffer.add([[0, 0]], [[0]], [0], [0], th.zeros(1), th.zeros(1), lstm_states=live)
        live.pi[0].fill_(-1)
        assert everything(buffer).initial_state.pi[0][0, :, 0].tolist() == [5, 5]

    def test_needs_the_states_of_each_step(self):
        with pytest.raises(ValueError, match=r"cut_windows\(\) needs lstm_states in every call"):
            fill(make(4), with_states=False)

    def test_cannot_be_cut_in_the_middle_of_a_window(self):
        buffer = fill(make(4))
        with pytest.raises(ValueError, match=r"begun \(8 steps\): call cut_windows\(\) before"):
            buffer.cut_windows(2)


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("length", "remedy"),
        [(5, "4 or 6"), (7, "6 or 8"), (9, "8 or 12"), (25, "24"), (100, "24"), (13, "12 or 24")],
    )
    def test_a_length_that_does_not_divide_is_answered_with_the_nearest(self, length, remedy):
        message = f"sequence_length must divide n_steps=24, got {length}: take {remedy}$"
        with pytest.raises(ValueError, match=message):
            Subsequences(24, length)

    @pytest.mark.parametrize("length", [1, 2, 3, 4, 6, 8, 12, 24])
    def test_every_divisor_is_served(self, length):
        assert Subsequences(24, length).steps == list(range(0, 24, length))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"sequence_length": 0}, "sequence_length must be at least 1, got 0"),
            ({"sequence_length": 4.0}, "sequence_length must be a whole number, got 4.0"),
            ({"sequence_length": True}, "sequence_length must be at least 1, got True"),
            ({"sequence_length": 4, "burn_in": -1}, "burn_in must be at least 0, got -1"),
            ({"sequence_length": 4, "burn_in": 1.0}, "burn_in must be a whole number, got 1.0"),
            ({"sequence_length": 4, "burn_in": None}, "burn_in must be a whole number, got None"),
            ({"sequence_length": 4, "burn_in": 5}, "burn_in must be at most sequence_length=4"),
            ({"sequence_length": 4, "refresh_states": 1}, "refresh_states must be True or False"),
            (
                {"sequence_length": None, "burn_in": 2},
                "burn_in needs sequence_length, a divisor of n_steps=8",
            ),
            ({"sequence_length": None, "refresh_states": True}, "refresh_states needs sequence_l"),
            ({"sequence_length": 8, "burn_in": 2}, "burn_in needs a sequence_length below n_st"),
            ({"sequence_length": 8, "refresh_states": True}, "refresh_states needs a sequence_l"),
            (
                {"sequence_length": 4, "envs_per_minibatch": 3},
                "envs_per_minibatch=3 counts whole windows, which sequence_length=4 cuts: pass the "
                "same number of steps as batch_size=24 instead",
            ),
        ],
    )
    def test_names_the_argument_the_rule_and_the_value(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            check_subsequences(8, **arguments)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"sequence_length": None, "envs_per_minibatch": 2},
            {"sequence_length": 8, "envs_per_minibatch": 2},
            {"sequence_length": 4, "burn_in": 4, "refresh_states": True},
            {"sequence_length": np.int64(4), "burn_in": np.int64(0)},
        ],
    )
    def test_what_makes_sense_passes(self, arguments):
        check_subsequences(8, **arguments)

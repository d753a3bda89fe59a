"""The recurrent rollout buffer, on data that can be recognised: values = 10 * step + env."""

from __future__ import annotations

import copy
import inspect
import pickle

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer

from thrust_pomdp import RecurrentPPO, make_vec_env
from thrust_pomdp.ppo.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from thrust_pomdp.ppo.minibatch_sizes import minibatch_sizes, sizes_of
from thrust_pomdp.recurrent.sequences import RNNStates

OBS = spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTIONS = spaces.Discrete(1000)
LAYERS, HIDDEN = 2, 3


def states(n_envs: int, value: float) -> RNNStates:
    """States whose entries are ``value + env``, the cell's 100 more, the critic's 1000 more."""
    base = (value + th.arange(n_envs, dtype=th.float32))[None, :, None].expand(
        LAYERS, n_envs, HIDDEN
    )
    return RNNStates((base.clone(), base + 100), (base + 1000, base + 1100))


def fill(
    buffer: RecurrentRolloutBuffer,
    starts: np.ndarray | None = None,
    steps: int | None = None,
    with_states: bool = False,
) -> RecurrentRolloutBuffer:
    n_envs = buffer.n_envs
    envs = np.arange(n_envs)
    for step in range(buffer.buffer_size if steps is None else steps):
        number = 10.0 * step + envs
        kwargs = {"lstm_states": states(n_envs, 10.0 * step)} if with_states else {}
        buffer.add(
            np.stack([number, -number], axis=1),
            (10 * step + envs).reshape(n_envs, 1),
            number,
            np.zeros(n_envs) if starts is None else starts[step],
            th.as_tensor(number),
            th.as_tensor(-number),
            **kwargs,
        )
    return buffer


def make(n_steps: int = 4, n_envs: int = 3, **kwargs) -> RecurrentRolloutBuffer:
    return RecurrentRolloutBuffer(n_steps, OBS, ACTIONS, n_envs=n_envs, **kwargs)


class TestConstructor:
    def test_takes_exactly_the_arguments_of_sb3_and_one_more(self):
        expected = [*inspect.signature(RolloutBuffer.__init__).parameters]
        kwargs = dict.fromkeys(expected[4:], None)
        buffer = RecurrentRolloutBuffer(
            4, OBS, ACTIONS, **{**kwargs, "device": "cpu", "gae_lambda": 0.9, "gamma": 0.8,
                                "n_envs": 2}
        )  # fmt: skip
        assert (buffer.gae_lambda, buffer.gamma, buffer.n_envs) == (0.9, 0.8, 2)
        assert buffer.record_states is False
        positional = RecurrentRolloutBuffer(4, OBS, ACTIONS, "cpu", 0.9, 0.8, 2)
        assert (positional.gae_lambda, positional.gamma, positional.n_envs) == (0.9, 0.8, 2)

    @pytest.mark.parametrize(("n_steps", "n_envs"), [(0, 3), (4, 0)])
    def test_refuses_empty_sizes(self, n_steps, n_envs):
        with pytest.raises(ValueError, match="must be at least 1, got 0"):
            make(n_steps, n_envs)


class TestSizesThatDoNotFit:
    GOOD = {
        "obs": np.zeros((3, 2)), "action": np.zeros(3), "reward": np.zeros(3),
        "episode_start": np.zeros(3), "value": th.zeros(3), "log_prob": th.zeros(3),
    }  # fmt: skip

    @pytest.mark.parametrize("name", GOOD)
    def test_each_argument_of_add_names_itself(self, name):
        wrong = th.zeros(1) if name in ("value", "log_prob") else np.zeros(1)
        with pytest.raises(ValueError, match=f"{name} must hold . numbers, got 1"):
            make().add(**{**self.GOOD, name: wrong})

    def test_values_and_flags_of_another_number_of_environments(self):
        buffer = fill(make())
        with pytest.raises(ValueError, match="last_values must hold 3 numbers, got 2"):
            buffer.compute_returns_and_advantage(th.zeros(2), np.zeros(3))
        with pytest.raises(ValueError, match="dones must hold 3 numbers, got 2"):
            buffer.compute_returns_and_advantage(th.zeros(3), np.zeros(2))
        with pytest.raises(ValueError, match=r"final_state must be .* n_envs=3"):
            buffer.seed_warm_start(3, states(2, 0.0), np.zeros(3, bool))

    @pytest.mark.parametrize("batch_size", [0, -3, 2.5])
    def test_minibatches_of_no_steps(self, batch_size):
        with pytest.raises(ValueError, match="batch_size must be"):
            fill(make()).get(batch_size)


class TestWindowsStayWhole:
    @pytest.mark.parametrize(("n_steps", "n_envs"), [(4, 3), (3, 3), (1, 4), (5, 1)])
    def test_each_row_is_one_environment_in_time_order(self, n_steps, n_envs):
        buffer = fill(make(n_steps, n_envs))
        batch = buffer.to_sequence_batch()
        number = 10.0 * np.arange(n_steps) + np.arange(n_envs)[:, None]
        assert np.array_equal(batch.old_values, number)
        assert np.array_equal(batch.old_log_prob, -number)
        assert np.array_equal(batch.actions[..., 0], number)
        assert np.array_equal(batch.observations, np.stack([number, -number], axis=2))

    def test_storage_is_left_as_sb3_lays_it_out(self):
        buffer = fill(make())
        list(buffer.to_minibatches(2))
        assert buffer.values.shape == (4, 3)
        assert buffer.observations.shape == (4, 3, 2)
        assert np.array_equal(buffer.values[2], [20, 21, 22])

    def test_observations_are_held_once(self):
        buffer = fill(make())
        (batch,) = buffer.to_minibatches(3, shuffle=False)
        assert buffer._sequences().observations.data_ptr() == buffer.observations.ctypes.data
        held = buffer.observations.copy()
        batch.observations.fill_(-5.0)
        buffer.to_sequence_batch().observations.fill_(-5.0)
        assert np.array_equal(buffer.observations, held), "what is handed out is the caller's"
        given = buffer.to_sequence_batch()
        buffer.observations[:] = 7.0
        assert given.observations[1, 2].tolist() == [21.0, -21.0]

    def test_what_was_handed_out_stays_when_the_next_window_is_filled(self):
        buffer = fill(make())
        whole, minibatches = buffer.to_sequence_batch(), list(buffer.to_minibatches(2, False))
        stored = buffer.observations
        before = [whole.observations.clone(), stored.copy(), minibatches[0].observations.clone()]
        buffer.reset()
        assert not buffer.observations.any()
        buffer.add(np.full((3, 2), 9.0), *np.zeros((3, 3)), th.zeros(3), th.zeros(3))
        after = [whole.observations, stored, minibatches[0].observations]
        assert all(map(np.array_equal, before, after))

    @pytest.mark.parametrize("change", [copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
    def test_copies_hand_out_the_same(self, change):
        buffer = fill(make(5, 4))
        other = change(buffer)
        other.seed(3)
        buffer.seed(3)
        for one, two in zip(buffer.to_minibatches(3), other.to_minibatches(3), strict=True):
            assert th.equal(one.observations, two.observations)
            assert th.equal(one.returns, two.returns)

    def test_observations_that_a_program_replaced_are_handed_out(self):
        buffer = fill(make())
        buffer.observations = np.ascontiguousarray(buffer.observations) + 1.0
        batches = list(buffer.to_minibatches(2, shuffle=False))
        assert batches[1].observations[0, :, 0].tolist() == [3, 13, 23, 33]

    def test_a_subclass_that_changes_the_sequences_is_asked(self):
        class Scaled(RecurrentRolloutBuffer):
            def to_sequence_batch(self, valid_steps=None):
                batch = super().to_sequence_batch(valid_steps)
                return batch._replace(observations=batch.observations * 2)

        buffer = fill(Scaled(4, OBS, ACTIONS, n_envs=3))
        (batch,) = buffer.to_minibatches(3, shuffle=False)
        assert batch.observations[1, 2].tolist() == [42.0, -42.0]
        assert buffer.observations[2, 1].tolist() == [21.0, -21.0]

    @pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float64, np.int64])
    def test_observations_keep_their_type_and_lie_as_torchs(self, dtype):
        space = spaces.Box(0, 100, (3, 2), dtype)
        buffer = RecurrentRolloutBuffer(3, space, ACTIONS, n_envs=2)
        assert buffer.observations.dtype == dtype
        assert buffer.observations.shape == (3, 2, 3, 2)
        assert buffer.observations.ctypes.data % 64 == 0

    def test_only_the_valid_steps_of_a_partial_window(self):
        buffer = fill(make(), steps=3)
        batch = buffer.to_sequence_batch(valid_steps=2)
        assert batch.old_values.tolist() == [[0, 10], [1, 11], [2, 12]]
        with pytest.raises(ValueError, match=r"3 of 4 steps: fill it or pass valid_steps"):
            buffer.to_sequence_batch()
        for wrong in (0, 4):
            with pytest.raises(ValueError, match=f"valid_steps must lie between 1 .* got {wrong}"):
                buffer.to_sequence_batch(valid_steps=wrong)

    def test_an_added_step_is_never_hidden_by_an_earlier_batch(self):
        buffer = fill(make())
        assert next(buffer.to_minibatches(3, shuffle=False)).old_values[0, 0] == 0
        buffer.reset()
        fill(buffer)
        buffer.advantages[:] = 7
        buffer.compute_returns_and_advantage(th.zeros(3), np.zeros(3))
        assert not (next(buffer.to_minibatches(3)).advantages == 7).any()

    def test_a_full_window_takes_no_more(self):
        with pytest.raises(ValueError, match="the window is full"):
            fill(make(), steps=5)


class TestMinibatches:
    @pytest.mark.parametrize("n_envs", [1, 3, 4, 8])
    @pytest.mark.parametrize("envs_per_minibatch", [1, 2, 3, 100])
    def test_every_transition_comes_exactly_once_per_epoch(self, n_envs, envs_per_minibatch):
        buffer = fill(make(n_steps=4, n_envs=n_envs))  # for 4: n_envs == n_steps
        for _ in range(3):
            batches = list(buffer.to_minibatches(envs_per_minibatch))
            seen = np.concatenate([batch.old_values.numpy().flatten() for batch in batches])
            expected = (10 * np.arange(4)[:, None] + np.arange(n_envs)).flatten()
            assert sorted(seen) == sorted(expected)
            assert all(len(batch.old_values) <= envs_per_minibatch for batch in batches)

    def test_never_two_environments_in_one_sequence(self):
        buffer = fill(make(n_steps=4, n_envs=4))
        for batch in buffer.to_minibatches(2):
            envs = batch.old_values.numpy() % 10
            assert (envs == envs[:, :1]).all()
            assert (np.diff(batch.old_values.numpy(), axis=1) == 10).all()

    def test_all_parts_of_a_minibatch_belong_together(self):
        buffer = fill(make(n_envs=5), with_states=True)
        for batch in buffer.to_minibatches(2):
            env = batch.old_values[:, 0]
            assert th.equal(batch.initial_state.pi[0][1, :, 2], env)
            assert th.equal(batch.initial_state.vf[1][0, :, 0], env + 1100)
            assert th.equal(batch.observations[:, 0, 0], env)
            assert th.equal(batch.old_log_prob[:, 0], -env)

    def test_in_order_without_shuffling_and_in_changing_order_with_it(self):
        buffer = fill(make(n_envs=8))
        buffer.seed(0)

        def order(shuffle):
            batches = buffer.to_minibatches(3, shuffle)
            return [int(env) for batch in batches for env in batch.old_values[:, 0]]

        assert order(False) == list(range(8))
        shuffled = [order(True) for _ in range(5)]
        assert len({tuple(one) for one in shuffled}) == 5
        buffer.seed(0)
        np.random.seed(1)  # the global generator has no say
        assert [order(True) for _ in range(5)] == shuffled

    def test_episode_starts_and_their_layout_agree(self):
        starts = np.zeros((4, 3))
        starts[0] = 1
        starts[2, 1] = 1
        buffer = fill(make(), starts)
        for batch in buffer.to_minibatches(2):
            inside = batch.episode_starts.clone()
            inside[:, 0] = False
            assert th.equal(batch.layout.episode_starts, batch.episode_starts)
            assert th.equal(
                batch.layout.extended.flags[:, :, 0].sum(dim=0), inside.sum(dim=1).float()
            )

    def test_refuses_less_than_one_environment(self):
        with pytest.raises(ValueError, match="envs_per_minibatch must be at least 1, got 0"):
            next(fill(make()).to_minibatches(0))


class TestBatchSizeInTimeSteps:
    @pytest.mark.parametrize(
        ("batch_size", "sizes"),
        [
            (None, [8]),
            (1, [1] * 8),
            (128, [1] * 8),
            (192, [2, 2, 1, 1, 1, 1]),
            (255, [2, 2, 2, 1, 1]),
            (256, [2] * 4),
            (384, [3, 3, 2]),
            (9999, [8]),
        ],
    )
    def test_rule(self, batch_size, sizes):
        assert minibatch_sizes(batch_size, length=128, n_seq=8) == sizes

    def test_every_sequence_is_in_one_minibatch_and_their_number_is_what_was_asked_for(self):
        generator = np.random.default_rng(0)
        for _ in range(500):
            length, n_seq, batch_size = generator.integers(1, 60, 3).tolist()
            sizes = minibatch_sizes(batch_size, length, n_seq)
            assert sum(sizes) == n_seq
            assert min(sizes) >= 1
            assert len(sizes) == min(-(-n_seq * length // batch_size), n_seq)
            assert sum(sizes_of(n_seq, batch_size)) == n_seq

    def test_get_serves_whole_windows_in_the_flat_form(self):
        buffer = fill(make(n_steps=4, n_envs=3))
        assert [len(batch.old_values) for batch in buffer.get(8)] == [8, 4]
        assert [len(batch.old_values) for batch in buffer.get()] == [12]


class TestReturnsByHand:
    """Rewards 1,1,1,1; values 0; episode starts 1,0,0,1; gamma .5; lambda 1; last value 4."""

    def returns(self, rewards, starts=(1, 0, 0, 1), dones=(0,), lam=1.0, values=(0, 0, 0, 0)):
        buffer = RecurrentRolloutBuffer(4, OBS, ACTIONS, gae_lambda=lam, gamma=0.5)
        for reward, start, value in zip(rewards, starts, values, strict=True):
            obs, zero = np.zeros((1, 2)), np.zeros((1, 1))
            buffer.add(obs, zero, [reward], [start], th.tensor([float(value)]), th.zeros(1))
        buffer.compute_returns_and_advantage(th.tensor([4.0]), np.array(dones))
        return buffer.returns[:, 0].tolist()

    def test_step_2_truncated_with_value_2_of_its_final_observation(self):
        # The caller has added gamma * V(final) = .5 * 2 to the reward of step 2.
        assert self.returns((1, 1, 2, 1)) == [2, 2, 2, 3]

    def test_step_2_terminated(self):
        assert self.returns((1, 1, 1, 1)) == [1.75, 1.5, 1, 3]

    def test_an_episode_that_ends_on_the_last_step_takes_no_bootstrap(self):
        assert self.returns((1, 1, 1, 1), dones=(1,)) == [1.75, 1.5, 1, 1]

    def test_lambda_0_is_the_one_step_estimate(self):
        # r + gamma V(next), with no value across the end at step 2 and 4 after step 3.
        assert self.returns((1, 1, 1, 1), lam=0.0, values=(8, 6, 4, 2)) == [4, 3, 1, 3]

    def test_agrees_with_sb3_on_random_data(self):
        rng = np.random.default_rng(0)
        ours = RecurrentRolloutBuffer(50, OBS, ACTIONS, gae_lambda=0.9, gamma=0.95, n_envs=4)
        theirs = RolloutBuffer(50, OBS, ACTIONS, gae_lambda=0.9, gamma=0.95, n_envs=4)
        for _ in range(50):
            step = (
                np.zeros((4, 2)), np.zeros((4, 1)), rng.normal(size=4), rng.random(4) < 0.2,
                th.as_tensor(rng.normal(size=4)), th.zeros(4),
            )  # fmt: skip
            ours.add(*step)
            theirs.add(*step)
        last_values, dones = th.as_tensor(rng.normal(size=4)), np.array([0, 1, 0, 1])
        ours.compute_returns_and_advantage(last_values, dones)
        theirs.compute_returns_and_advantage(last_values, dones)
        np.testing.assert_allclose(ours.advantages, theirs.advantages, rtol=0, atol=1e-6)
        np.testing.assert_allclose(ours.returns, theirs.returns, rtol=0, atol=1e-6)

    def test_over_the_valid_steps_only(self):
        whole = RecurrentRolloutBuffer(2, OBS, ACTIONS, gae_lambda=0.9, gamma=0.5, n_envs=3)
        partial = RecurrentRolloutBuffer(4, OBS, ACTIONS, gae_lambda=0.9, gamma=0.5, n_envs=3)
        fill(whole)
        fill(partial, steps=3)
        whole.compute_returns_and_advantage(th.ones(3), np.zeros(3))
        partial.compute_returns_and_advantage(th.ones(3), np.zeros(3), valid_steps=2)
        assert np.array_equal(partial.returns[:2], whole.returns)
        assert not partial.advantages[2:].any()


class TestStates:
    def test_the_first_states_of_the_window_are_kept_without_recording(self):
        buffer = fill(make(), with_states=True)
        pi, vf = buffer.to_sequence_batch().initial_state
        assert pi[0][0, :, 0].tolist() == [0, 1, 2]
        assert vf[1][1, :, 2].tolist() == [1100, 1101, 1102]
        with pytest.raises(ValueError, match="record_states=True"):
            _ = buffer.hidden

    def test_a_new_window_forgets_what_was_recorded(self):
        buffer = fill(make(record_states=True), with_states=True)
        buffer.reset()
        with pytest.raises(ValueError, match="nothing has been added yet"):
            _ = buffer.hidden

    def test_recording_keeps_the_states_that_entered_each_step(self):
        buffer = fill(make(record_states=True), with_states=True)
        arrays = (buffer.hidden, buffer.cell, buffer.critic_hidden, buffer.critic_cell)
        for array, offset in zip(arrays, (0, 100, 1000, 1100), strict=True):
            assert array.shape == (4, LAYERS, 3, HIDDEN)
            expected = 10 * np.arange(4)[:, None] + np.arange(3) + offset
            assert np.array_equal(array[:, 1, :, 0], expected)

    def test_recording_refuses_a_step_without_states(self):
        with pytest.raises(ValueError, match="record_states=True needs lstm_states"):
            fill(make(record_states=True))

    def test_states_of_another_number_of_environments_are_refused(self):
        buffer = make()
        with pytest.raises(ValueError, match=r"n_envs=3, hidden\], got \(2, 2, 3\)"):
            buffer.add(
                np.zeros((3, 2)), np.zeros((3, 1)), np.zeros(3), np.zeros(3), th.zeros(3),
                th.zeros(3), lstm_states=states(2, 0.0),
            )  # fmt: skip

    def test_later_changes_of_the_states_do_not_reach_the_buffer(self):
        buffer, live = make(), states(3, 5.0)
        zeros = (np.zeros((3, 2)), np.zeros((3, 1)), np.zeros(3), np.zeros(3))
        buffer.add(*zeros, th.zeros(3), th.zeros(3), lstm_states=live)
        live.pi[0].fill_(-1)
        assert buffer.initial_state.pi[0][0, :, 0].tolist() == [5, 6, 7]


class TestWarmStart:
    def test_carries_the_final_states_and_clears_those_that_ended(self):
        buffer = fill(make(), with_states=True)
        buffer.seed_warm_start(3, states(3, 50.0), np.array([False, True, False]))
        assert buffer.episode_start_carry.tolist() == [False, True, False]
        # Training still needs the states this window started from ...
        assert buffer.to_sequence_batch().initial_state.pi[0][0, :, 0].tolist() == [0, 1, 2]
        buffer.reset()
        # ... and the next window starts from the carried ones.
        fill(buffer)
        pi, vf = buffer.to_sequence_batch().initial_state
        assert pi[0][0, :, 0].tolist() == [50, 0, 52]
        assert pi[1][0, :, 0].tolist() == [150, 0, 152]
        assert vf[0][1, :, 1].tolist() == [1050, 0, 1052]
        assert buffer.episode_start_carry.tolist() == [False, True, False]

    def test_no_states_means_zero(self):
        buffer = fill(make(), with_states=True)
        buffer.seed_warm_start(3, None, np.array([False, True, False]))
        buffer.reset()
        assert fill(buffer).to_sequence_batch().initial_state is None
        assert buffer.episode_start_carry.tolist() == [False, True, False]

    def test_the_first_window_starts_episodes_everywhere(self):
        assert make().episode_start_carry.tolist() == [True, True, True]

    @pytest.mark.parametrize("last_step", [2, 4, -1])
    def test_another_step_than_the_last_is_noticed(self, last_step):
        with pytest.raises(ValueError, match=f"last step added, 3, got {last_step}"):
            fill(make()).seed_warm_start(last_step, None, np.zeros(3, bool))

    def test_flags_of_another_number_of_environments_are_refused(self):
        with pytest.raises(ValueError, match=r"dones must be of shape \(3,\), got \(2,\)"):
            fill(make()).seed_warm_start(3, None, np.zeros(2, bool))


class TestDictObservations:
    def test_each_key_is_handed_out_as_a_whole_window(self):
        space = spaces.Dict({"a": OBS, "b": spaces.Discrete(100)})
        buffer = RecurrentDictRolloutBuffer(4, space, ACTIONS, n_envs=3)
        for step in range(4):
            number = 10.0 * step + np.arange(3)
            obs = {"a": np.stack([number, -number], axis=1), "b": number.astype(int)}
            zeros = np.zeros((3, 1)), np.zeros(3), np.zeros(3)
            buffer.add(obs, *zeros, th.as_tensor(number), th.zeros(3))
        for batch in buffer.to_minibatches(2):
            assert th.equal(batch.observations["a"][..., 0], batch.old_values)
            assert th.equal(batch.observations["b"].view_as(batch.old_values), batch.old_values)


class TestActionDtypes:
    def test_half_precision_actions_are_kept_as_they_were_drawn(self):
        space = spaces.Box(-1, 1, (1,), np.float16)
        buffer = RecurrentRolloutBuffer(1, OBS, space)
        drawn = np.array([[0.123456789]], dtype=np.float32)
        buffer.add(np.zeros((1, 2)), drawn, [0.0], [1.0], th.zeros(1), th.zeros(1))
        assert buffer.to_sequence_batch().actions[0, 0, 0].item() == drawn[0, 0]


@pytest.mark.parametrize("n_epochs", [1, 2])
def test_a_window_that_a_program_has_changed_is_trained_on_as_it_is(n_epochs):
    """Such as one that scales advantages between two updates of the same window."""

    def trained(is_fresh: bool) -> RecurrentPPO:
        venv = make_vec_env("FlickeringCartPole-v0", n_envs=2, seed=0)
        model = RecurrentPPO("MlpLstmPolicy", venv, n_steps=16, n_epochs=n_epochs, seed=0)
        model.learn(32)
        untouched = copy.deepcopy(model.rollout_buffer)
        untouched._batch = None  # as if no minibatch had ever been drawn from it
        model.train()
        if is_fresh:
            model.rollout_buffer = untouched
        return model

    used, fresh = trained(False), trained(True)
    state = used.rollout_buffer._generator.bit_generator.state
    fresh.rollout_buffer._generator.bit_generator.state = state
    for model in (used, fresh):
        model.rollout_buffer.advantages *= -3.0
        model.rollout_buffer.returns += 1.0
        model.train()
    for one, other in zip(used.policy.parameters(), fresh.policy.parameters(), strict=True):
        assert th.equal(one, other)


def test_flat_minibatches_are_of_the_window_as_it_is():
    venv = make_vec_env("FlickeringCartPole-v0", n_envs=2, seed=0)
    model = RecurrentPPO("MlpLstmPolicy", venv, n_steps=16, seed=0)
    model.learn(32)
    list(model.rollout_buffer.get())
    model.rollout_buffer.advantages[:] = 7.0
    (batch,) = model.rollout_buffer.get()
    assert (batch.advantages == 7.0).all()

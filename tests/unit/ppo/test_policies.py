"""The recurrent policies: initialisation, both passes, predict, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from thrust_pomdp.ppo.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
HIDDEN = 16
ARRANGEMENTS = {
    "separate": {},
    "shared": {"shared_lstm": True, "enable_critic_lstm": False},
    "shared, critic's gradient": {"shared_lstm_critic_gradient": True},
    "critic without memory": {"enable_critic_lstm": False},
}


def make(cls=MlpLstmPolicy, obs=OBS, actions=None, seed=0, **kwargs) -> MlpLstmPolicy:
    th.manual_seed(seed)
    arguments = {"lstm_hidden_size": HIDDEN, **kwargs}
    return cls(obs, spaces.Discrete(2) if actions is None else actions, lambda _: 1e-3, **arguments)


class TestInitialisation:
    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_the_same_seed_gives_bit_identical_weights(self, arrangement):
        first, second = (make(**ARRANGEMENTS[arrangement]).state_dict() for _ in range(2))
        assert first.keys() == second.keys()
        assert all(th.equal(first[key], second[key]) for key in first)
        other = make(seed=1, **ARRANGEMENTS[arrangement]).state_dict()
        assert not all(th.equal(first[key], other[key]) for key in first)

    @pytest.mark.parametrize("n_layers", [1, 2])
    def test_blocks_are_orthogonal_and_biases_zero(self, n_layers):
        policy = make(n_lstm_layers=n_layers)
        for lstm in (policy.lstm_actor, policy.lstm_critic):
            for name, parameter in lstm.named_parameters():
                if name.startswith("bias"):
                    assert not parameter.any()
                    continue
                for block in parameter.detach().chunk(4):
                    # Rows are orthonormal where the block is wide, columns where it is tall.
                    gram = block.T @ block if block.shape[0] >= block.shape[1] else block @ block.T
                    th.testing.assert_close(gram, th.eye(len(gram)), rtol=0, atol=1e-5)

    def test_actor_and_critic_start_from_different_memories(self):
        policy = make()
        assert not th.equal(policy.lstm_actor.weight_hh_l0, policy.lstm_critic.weight_hh_l0)

    def test_torch_initialises_without_ortho_init(self):
        policy = make(ortho_init=False)
        assert policy.lstm_actor.bias_ih_l0.any()

    def test_module_names_are_those_of_sb3_contrib(self):
        from sb3_contrib.ppo_recurrent import MlpLstmPolicy as Theirs

        for name, arrangement in ARRANGEMENTS.items():
            if name == "shared, critic's gradient":
                continue
            ours = make(**arrangement).state_dict()
            theirs = make(Theirs, **arrangement).state_dict()
            assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}


class TestGradients:
    """Which loss trains which memory."""

    def gradients(self, which: str, **kwargs) -> dict[str, bool]:
        policy = make(**kwargs)
        with th.no_grad():
            policy.action_net.weight.mul_(100)
        values, log_prob, _ = policy.evaluate_sequences(
            th.randn(2, 5, 3), th.zeros(2, 5, 1), None, th.zeros(2, 5)
        )
        (values if which == "values" else log_prob).sum().backward()
        names = ("lstm_actor", "lstm_critic")
        return {
            name: getattr(policy, name).weight_hh_l0.grad is not None
            and bool(getattr(policy, name).weight_hh_l0.grad.any())
            for name in names
            if getattr(policy, name) is not None
        }

    def test_separate(self):
        assert self.gradients("values") == {"lstm_actor": False, "lstm_critic": True}
        assert self.gradients("log_prob") == {"lstm_actor": True, "lstm_critic": False}

    def test_shared_is_trained_by_the_actor_alone(self):
        shared = ARRANGEMENTS["shared"]
        assert self.gradients("values", **shared) == {"lstm_actor": False}
        assert self.gradients("log_prob", **shared) == {"lstm_actor": True}

    def test_shared_with_the_critics_gradient_is_trained_by_both(self):
        shared = ARRANGEMENTS["shared, critic's gradient"]
        assert self.gradients("values", **shared) == {"lstm_actor": True}
        assert self.gradients("log_prob", **shared) == {"lstm_actor": True}

    def test_a_critic_without_memory_depends_on_the_present_observation_alone(self):
        policy = make(**ARRANGEMENTS["critic without memory"])
        obs = th.randn(1, 4, 3, requires_grad=True)
        values, _, _ = policy.evaluate_sequences(obs, th.zeros(1, 4, 1), None, th.zeros(1, 4))
        (gradient,) = th.autograd.grad(values[0, 3], obs)
        assert not gradient[0, :3].any()
        assert gradient[0, 3].any()


class TestBothPassesAgree:
    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    @pytest.mark.parametrize("share_features_extractor", [True, False])
    def test_steps_sequences_and_the_flat_form(self, arrangement, share_features_extractor):
        kwargs = ARRANGEMENTS[arrangement]
        if arrangement.startswith("shared") and not share_features_extractor:
            pytest.skip("refused: one LSTM cannot read two sets of features")
        policy = make(**kwargs, share_features_extractor=share_features_extractor)
        with th.no_grad():
            policy.action_net.weight.mul_(100)
        obs, starts = th.randn(3, 7, 3), th.zeros(3, 7)
        starts[:, 0] = 1
        starts[1, 3] = starts[2, 6] = 1
        states, stepped = policy.zero_states(3), []
        with th.no_grad():
            for step in range(7):
                values_only = policy.predict_values(obs[:, step], states.vf, starts[:, step])
                distribution, pi_states = policy.get_distribution(
                    obs[:, step], states.pi, starts[:, step]
                )
                actions, values, log_prob, states = policy(obs[:, step], states, starts[:, step])
                assert th.equal(values, values_only)
                assert th.equal(distribution.log_prob(actions), log_prob)
                assert all(th.equal(a, b) for a, b in zip(pi_states, states.pi, strict=True))
                stepped.append((actions, values[:, 0], log_prob))
            actions, values, log_prob = (
                th.stack(part, dim=1) for part in zip(*stepped, strict=True)
            )
            sequence = policy.evaluate_sequences(obs, actions[..., None], None, starts)
            flat = policy.evaluate_actions(
                obs.flatten(0, 1), actions.flatten(), policy.zero_states(3), starts.flatten()
            )
        th.testing.assert_close(sequence[0], values, rtol=0, atol=1e-5)
        th.testing.assert_close(sequence[1], log_prob, rtol=0, atol=1e-5)
        assert flat[0].shape == (21, 1)
        assert th.equal(flat[0].view(3, 7), sequence[0])
        assert th.equal(flat[1].view(3, 7), sequence[1])
        assert th.equal(flat[2].view(3, 7), sequence[2])


class TestPredict:
    def test_state_in_state_out(self):
        policy = make(n_lstm_layers=2)
        obs = np.ones((4, 3), np.float32)
        _, state = policy.predict(obs)
        assert [part.shape for part in state] == [(2, 4, HIDDEN)] * 2
        _, later = policy.predict(obs, state)
        assert not np.array_equal(state[0], later[0])
        _, restarted = policy.predict(obs, later, episode_start=np.array([1, 0, 0, 1]))
        assert np.array_equal(restarted[0][:, [0, 3]], state[0][:, [0, 3]])
        assert not np.array_equal(restarted[0][:, 1], state[0][:, 1])

    def test_a_single_observation(self):
        action, state = make().predict(np.ones(3, np.float32))
        assert action.shape == ()
        assert state[0].shape == (1, 1, HIDDEN)

    def test_continuous_actions_stay_within_their_bounds(self):
        policy = make(actions=spaces.Box(-0.01, 0.01, (2,), np.float32))
        actions, _ = policy.predict(np.ones((50, 3), np.float32))
        assert np.abs(actions).max() <= 0.01

    @pytest.mark.parametrize(
        "shapes",
        [
            [(1, 2, HIDDEN)] * 2,
            [(2, 4, HIDDEN)] * 2,
            [(1, 4, HIDDEN + 1)] * 2,
            [(1, 4, HIDDEN)],
            [(4, HIDDEN)] * 2,
        ],
    )
    def test_a_state_that_does_not_fit_is_refused(self, shapes):
        state = tuple(np.zeros(shape) for shape in shapes)
        with pytest.raises(ValueError, match=r"state must be .* \(1, 4, 16\) for 4 observation"):
            make().predict(np.ones((4, 3), np.float32), state)

    @pytest.mark.parametrize("size", [1, 3, 5])
    def test_episode_starts_that_do_not_fit_are_refused(self, size):
        with pytest.raises(ValueError, match=f"one flag per observation, 4, got {size}"):
            make().predict(np.ones((4, 3), np.float32), episode_start=np.zeros(size))

    def test_gymnasiums_reset_tuple_is_refused_with_the_remedy(self):
        with pytest.raises(ValueError, match="observation is a tuple"):
            make().predict((np.ones(3, np.float32), {}))


class TestSaveAndLoad:
    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_a_saved_policy_comes_back_with_its_configuration(self, arrangement, tmp_path):
        policy = make(
            n_lstm_layers=2, lstm_kwargs={"bias": False}, net_arch=[8], **ARRANGEMENTS[arrangement]
        )
        policy.save(tmp_path / "policy")
        loaded = MlpLstmPolicy.load(tmp_path / "policy")
        obs = np.ones((2, 3), np.float32)
        expected, actual = (p.predict(obs, deterministic=True)[1] for p in (policy, loaded))
        assert np.array_equal(expected[0], actual[0])
        assert loaded.shared_lstm_critic_gradient == policy.shared_lstm_critic_gradient


class TestRefusals:
    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"lstm_hidden_size": 0}, "lstm_hidden_size must be at least 1, got 0"),
            ({"n_lstm_layers": 0}, "n_lstm_layers must be at least 1, got 0"),
            ({"shared_lstm": True}, "exclude each other"),
            (
                {"shared_lstm_critic_gradient": True, "share_features_extractor": False},
                "needs share_features_extractor=True",
            ),
            ({"lstm_kwargs": {"bidirectional": True}}, "cannot read its future observations"),
            ({"lstm_kwargs": {"proj_size": 4}}, "'proj_size'"),
            ({"lstm_kwargs": {"batch_first": True}}, "'batch_first'"),
            ({"lstm_kwargs": {"num_layers": 2}}, "use n_lstm_layers"),
            ({"lstm_kwargs": {"colour": 1}}, "takes 'bias' and 'dropout', got 'colour'"),
        ],
    )
    def test_what_cannot_work_is_refused_with_the_reason(self, kwargs, message):
        with pytest.raises(ValueError, match=message):
            make(**kwargs)

    def test_what_is_said_explicitly_and_is_so_anyway_is_taken(self):
        policy = make(lstm_kwargs={"bidirectional": False, "batch_first": False, "bias": False})
        assert policy.lstm_kwargs == {"bias": False}

    def test_dropout_warns_that_the_first_pass_differs(self):
        with pytest.warns(UserWarning, match="dropout=0.5 is active in training"):
            make(n_lstm_layers=2, lstm_kwargs={"dropout": 0.5})


class TestOptimizer:
    def test_the_fused_update_equals_the_plain_one(self):
        policies = [make(), make(optimizer_kwargs={"fused": False, "eps": 1e-5})]
        assert policies[0].optimizer.defaults["fused"]
        th.manual_seed(3)
        obs = th.randn(2, 5, 3)
        for _ in range(5):
            for policy in policies:
                values, log_prob, _ = policy.evaluate_sequences(
                    obs, th.zeros(2, 5, 1), None, th.zeros(2, 5)
                )
                policy.optimizer.zero_grad()
                (values.square().mean() - log_prob.mean()).backward()
                policy.optimizer.step()
        first, second = (th.nn.utils.parameters_to_vector(p.parameters()) for p in policies)
        th.testing.assert_close(first, second, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("kwargs", [{"foreach": True}, {"fused": False}])
    def test_a_users_choice_is_left_alone(self, kwargs):
        assert not make(optimizer_kwargs=kwargs).optimizer.defaults["fused"]

    def test_other_optimizers_work(self):
        make(optimizer_class=th.optim.SGD)


class TestOtherObservations:
    def test_images(self):
        space = spaces.Box(0, 255, (3, 36, 36), np.uint8)
        policy = make(CnnLstmPolicy, space)
        actions, _ = policy.predict(np.stack([space.sample() for _ in range(2)]))
        assert actions.shape == (2,)

    def test_dicts(self):
        space = spaces.Dict({"a": OBS, "b": spaces.Discrete(4)})
        policy = make(MultiInputLstmPolicy, space)
        actions, _ = policy.predict({"a": np.ones((2, 3), np.float32), "b": np.array([1, 2])})
        assert actions.shape == (2,)

"""Training with action masks: the masks of the step, in collection and in training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from helpers import FirstPass, ignore_resets, sharpen, zero_initial_state
from maskable_envs import (
    ACTIONS,
    AllowsEverything,
    ChangingMaskEnv,
    FencedTMaze,
    FencedTMazeVector,
    as_choices,
    changing_masks,
)
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from thrust_pomdp import (
    GymnasiumVecEnv,
    MaskableRecurrentPPO,
    RecurrentPPO,
    VecNormalizeVisible,
    VecPreviousAction,
)
from thrust_pomdp.ppo.maskable.policies import (
    MaskableAsymmetricLstmPolicy,
    MaskableCnnLstmPolicy,
    MaskableMlpLstmPolicy,
    MaskableMultiInputLstmPolicy,
)
from thrust_pomdp.ppo.maskable.stepping import make_masked_step
from thrust_pomdp.ppo.policies import MlpLstmPolicy
from thrust_pomdp.ppo.prepared_step import WatchedStep
from thrust_pomdp.recurrent import compiled as compiled_module
from thrust_pomdp.recurrent.compiled import load_kernels

WINDOW = 16
DICT = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)})
SMALL = {"lstm_hidden_size": 8}


def make_model(env: Any, cls=MaskableRecurrentPPO, policy="MlpLstmPolicy", **kwargs):
    policy_kwargs = {**SMALL, **kwargs.pop("policy_kwargs", {})}
    arguments = {"n_steps": WINDOW, "batch_size": WINDOW, "n_epochs": 2, "seed": 0, **kwargs}
    return cls(policy, env, policy_kwargs=policy_kwargs, **arguments)


def parameters(model) -> th.Tensor:
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach()


def first_pass(action, n_envs=3, window_state="zero", plant=None, spoil=None, **kwargs):
    env = changing_masks(*(5, 6, 7)[:n_envs], action=action)
    model = make_model(env, learning_rate=0.0, window_state=window_state, **kwargs)
    sharpen(model)
    if spoil is not None:
        batches = model.rollout_buffer.to_sequence_batch

        def spoilt(*args):
            batch = batches(*args)
            return batch._replace(action_masks=spoil(batch.action_masks))

        model.rollout_buffer.to_sequence_batch = spoilt
    callback = FirstPass(plant)
    model.learn(2 * WINDOW * n_envs, callback=callback)
    assert callback.minibatches == 2 * 2 * n_envs
    return callback


@pytest.mark.parametrize("action", ACTIONS)
class TestFirstPassEqualsCollection:
    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    @pytest.mark.parametrize("n_envs", [1, 3])
    def test_with_masks_that_change_at_every_step(self, action, n_envs, window_state):
        assert first_pass(action, n_envs, window_state).error < 1e-5

    @pytest.mark.parametrize("fault", [ignore_resets, zero_initial_state])
    def test_forgetting_resets_or_the_initial_state_is_noticed(self, action, fault):
        callback = first_pass(action, window_state="carry", plant=fault)
        assert min(callback.log_prob_error, callback.value_error) > 1e-3

    @pytest.mark.parametrize(
        "fault",
        [th.ones_like, lambda masks: masks.roll(1, dims=1), lambda masks: masks.roll(1, dims=0)],
        ids=["no masks", "those of the step before", "those of another environment"],
    )
    def test_training_with_other_masks_is_noticed(self, action, fault):
        assert first_pass(action, spoil=fault).log_prob_error > 1e-1


class TestTogetherWithOtherFeatures:
    @pytest.mark.parametrize(
        "kwargs",
        [
            {"policy_kwargs": {"rnn_class": th.nn.GRU}},
            {"policy_kwargs": {"rnn_class": th.nn.RNN, "shared_lstm_critic_gradient": True}},
            {"sequence_length": 4},
            {"sequence_length": 8, "burn_in": 2, "window_state": "carry"},
            {"sequence_length": 8, "refresh_states": True},
        ],
        ids=["GRU", "RNN", "subsequences", "burn-in", "refreshed"],
    )
    def test_first_pass_equals_collection(self, kwargs):
        assert first_pass("Discrete", **kwargs).error < 1e-5
        spoilt = first_pass("Discrete", spoil=lambda masks: masks.roll(1, dims=1), **kwargs)
        assert spoilt.log_prob_error > 1e-1


class ByParts(RecurrentPPO):
    """Trains as masked ones do: a minibatch is not one compiled call, whose last digits differ."""

    def _losses(self, *args):
        return super()._losses(*args)


@pytest.mark.parametrize("action", ACTIONS)
class TestMasksThatAllowEverything:
    """They change nothing: neither in torch's operations nor in the compiled loops."""

    def learned(self, cls, action, use_masking=None, **kwargs):
        env = changing_masks(5, 6, 7, action=action, cls=AllowsEverything)
        model = make_model(env, cls, ent_coef=0.01, learning_rate=1e-2, **kwargs)
        initial = parameters(model)
        model.learn(3 * WINDOW * 3, **({} if use_masking is None else {"use_masking": use_masking}))
        assert not th.equal(parameters(model), initial)
        return model, initial

    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    def test_give_the_plain_algorithms_weights_bit_for_bit(self, action, window_state):
        plain, initial = self.learned(ByParts, action, window_state=window_state)
        for use_masking in (True, False):
            ours, ours_initial = self.learned(
                MaskableRecurrentPPO, action, use_masking, window_state=window_state
            )
            assert th.equal(initial, ours_initial)
            assert th.equal(parameters(plain), parameters(ours))
            assert np.array_equal(plain.rollout_buffer.actions, ours.rollout_buffer.actions)
            assert np.array_equal(plain.rollout_buffer.log_probs, ours.rollout_buffer.log_probs)


class TestDeterminism:
    @pytest.mark.parametrize("action", ACTIONS)
    def test_the_same_seed_gives_the_same_weights_and_another_others(self, action):
        weights = []
        for seed in (0, 0, 1):
            env = changing_masks(5, 6, action=action)
            weights.append(parameters(make_model(env, seed=seed).learn(2 * WINDOW * 2)))
        assert th.equal(weights[0], weights[1])
        assert not th.equal(weights[0], weights[2])


def wrapped_normalized():
    env = changing_masks(5, 6, 7)
    return VecPreviousAction(VecNormalizeVisible(env, norm_obs=False))


def in_workers():
    return SubprocVecEnv([Maker(length) for length in (5, 6)], start_method="fork")


class Maker:
    def __init__(self, length):
        self.length = length

    def __call__(self):
        return ChangingMaskEnv(self.length, ACTIONS["Discrete"])


class TestMasksOfTheStep:
    """The masks kept are those of the observation that was acted on, at auto-resets too."""

    @pytest.mark.parametrize("make", [lambda: changing_masks(5, 6, 7), wrapped_normalized])
    def test_masks_belong_to_observations(self, make):
        model = make_model(make()).learn(2 * WINDOW * 3)
        buffer = model.rollout_buffer
        assert buffer.episode_starts[1:].any()
        assert not buffer.action_masks.all()
        assert np.array_equal(buffer.observations[..., :4] == 1, buffer.action_masks)

    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_in_worker_processes(self):
        env = in_workers()
        try:
            buffer = make_model(env).learn(WINDOW * 2).rollout_buffer
            assert np.array_equal(buffer.observations[..., :4] == 1, buffer.action_masks)
        finally:
            env.close()

    @pytest.mark.parametrize("action", ACTIONS)
    def test_batches_hold_the_masks_of_their_own_steps(self, action):
        model = make_model(changing_masks(5, 6, 7, action=action)).learn(WINDOW * 3)
        width = model.policy.mask_layout.width
        for batch in model.rollout_buffer.to_minibatches(2):
            masks = batch.action_masks
            assert masks.dtype is th.bool
            assert th.equal(batch.observations[..., :width] == 1, masks)
            choices = as_choices(ACTIONS[action], batch.actions.flatten(0, 1).numpy())
            assert masks.flatten(0, 1).gather(1, th.from_numpy(choices)).all()
        short = model.rollout_buffer.to_sequence_batch(valid_steps=5)
        assert short.action_masks.shape == (3, 5, width)

    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    def test_native_vector_environments_tell_all_masks_at_once(self, window_state):
        """Trained on either form the weights are the same: so were all masks."""
        native = GymnasiumVecEnv(FencedTMazeVector(3, 4, autoreset_mode="SameStep"))
        single = DummyVecEnv([lambda: FencedTMaze(4)] * 3)
        models = [
            make_model(env, window_state=window_state).learn(2 * WINDOW * 3)
            for env in (native, single)
        ]
        masks = [model.rollout_buffer.action_masks for model in models]
        assert np.array_equal(*masks)
        assert not masks[0].all()
        assert th.equal(*(parameters(model) for model in models))

    def test_a_vector_of_single_environments_through_the_adapter(self):
        from gymnasium.vector import SyncVectorEnv

        envs = SyncVectorEnv([Maker(5), Maker(6)], autoreset_mode=AutoresetMode.SAME_STEP)
        buffer = make_model(GymnasiumVecEnv(envs)).learn(WINDOW * 2).rollout_buffer
        assert np.array_equal(buffer.observations[..., :4] == 1, buffer.action_masks)

    def test_a_subset_of_a_native_vector(self):
        env = GymnasiumVecEnv(FencedTMazeVector(3, 4, autoreset_mode="SameStep"))
        env.reset()
        env.step(np.zeros(3, int))
        assert env.has_attr("action_masks")
        assert [m.tolist() for m in env.env_method("action_masks", indices=[2])] == [[True, False]]

    def test_going_on_with_learn_asks_for_the_present_masks(self):
        model = make_model(changing_masks(50, 60)).learn(WINDOW * 2)
        model.learn(WINDOW * 2, reset_num_timesteps=False)
        buffer = model.rollout_buffer
        assert not buffer.episode_starts[0].any()
        assert np.array_equal(buffer.observations[..., :4] == 1, buffer.action_masks)


def make_policy(cls=MaskableMlpLstmPolicy, action="Discrete", **kwargs):
    th.manual_seed(0)
    space = spaces.Box(-1, 1, (3,), np.float32)
    policy = cls(space, ACTIONS[action], lambda _: 1e-3, **{**SMALL, **kwargs})
    with th.no_grad():
        policy.action_net.weight.mul_(100)
    return policy


def steps_of(step, policy, n_steps=6):
    th.manual_seed(5)
    generator = th.Generator().manual_seed(1)
    states, given = policy.zero_states(4), []
    with th.no_grad():
        for number in range(n_steps):
            obs = th.randn(4, 3, generator=generator)
            starts = th.tensor([number == 0, number == 2, False, False])
            *acted, states = step(obs, states, starts)
            given += [*acted, *states.pi, *states.vf]
    return given


def some_masks(n_rows=24, width=4):
    masks = np.random.default_rng(0).random((n_rows, width)) < 0.5
    masks[:, 1] |= ~masks.any(axis=1)
    return masks


class TestPreparedStep:
    CASES = {
        "separate": {},
        "shared": {"shared_lstm": True, "enable_critic_lstm": False},
        "no heads": {"net_arch": []},
        "two layers": {"n_lstm_layers": 2},
    }

    @pytest.mark.parametrize("case", CASES)
    def test_gives_what_forward_gives(self, case):
        policy, masks = make_policy(**self.CASES[case]), some_masks()
        asked = iter(masks.reshape(6, 4, 4))
        prepared = steps_of(make_masked_step(policy, lambda: next(asked)), policy)
        again = iter(masks.reshape(6, 4, 4))
        plain = steps_of(lambda *args: policy.forward(*args, action_masks=next(again)), policy)
        for one, other in zip(prepared, plain, strict=True):
            if load_kernels() is None:
                assert th.equal(one, other)
            else:
                th.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)

    def test_is_the_plain_policys_step_where_everything_is_allowed(self):
        ours, plain = make_policy(), make_policy(MlpLstmPolicy)
        assert WatchedStep(plain).reason is None
        masked = make_masked_step(ours, lambda: np.ones((4, 4), bool))
        for one, other in zip(
            steps_of(masked, ours), steps_of(WatchedStep(plain), plain), strict=True
        ):
            assert th.equal(one, other)

    def test_without_masks_the_plain_step_is_prepared(self):
        policy = make_policy()
        assert WatchedStep(policy).reason is None

    def test_masks_of_another_number_of_environments_are_refused(self):
        policy = make_policy()
        step = make_masked_step(policy, lambda: np.ones((3, 4), bool))
        with pytest.raises(ValueError, match="action_masks must"):
            steps_of(step, policy)

    @pytest.mark.skipif(load_kernels() is None, reason="there are no compiled loops")
    def test_the_compiled_draw_survives_random_numbers_that_are_zero(self, monkeypatch):
        policy, masks = make_policy(), some_masks(4)
        monkeypatch.setattr(th.Tensor, "exponential_", th.Tensor.zero_)
        actions = steps_of(make_masked_step(policy, lambda: masks), policy, 1)[0]
        assert masks[np.arange(4), actions.numpy()].all()


class TestGradients:
    @pytest.mark.parametrize("action", ["Discrete", "MultiDiscrete"])
    def test_none_reaches_the_head_of_an_action_that_was_never_allowed(self, action):
        """Through PPO's whole loss, entropy included."""

        class Never(ChangingMaskEnv):
            def _draw(self):
                return super()._draw() & (np.arange(self.width) != 1) | (np.arange(self.width) == 0)

        env = changing_masks(5, 6, action=action, cls=Never)
        model = make_model(env, ent_coef=0.1, learning_rate=0.0)
        sharpen(model)
        model.learn(WINDOW * 2)
        weight, bias = model.policy.action_net.weight.grad, model.policy.action_net.bias.grad
        assert th.isfinite(weight).all()
        assert not weight[1].any()
        assert not bias[1].any()
        assert weight.any()

    def test_compiled_and_torchs_loss_agree(self, monkeypatch):
        if load_kernels() is None:
            pytest.skip("there are no compiled loops")
        gradients = []
        for compiled in (True, False):
            model = make_model(changing_masks(5, 6, 7), ent_coef=0.1)
            sharpen(model, 300.0)
            _, callback = model._setup_learn(10**6)
            callback.on_training_start({}, {})
            model.collect_rollouts(model.env, callback, model.rollout_buffer, WINDOW)
            if not compiled:
                monkeypatch.setattr(compiled_module, "load_kernels", lambda: None)
            losses = model._losses(model.rollout_buffer.to_sequence_batch(), 0.2, None)
            gradients.append(th.autograd.grad(losses.loss, list(model.policy.parameters())))
            gradients[-1] += tuple(losses)
        for one, other in zip(*gradients, strict=True):
            th.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


class TestPolicies:
    @pytest.mark.parametrize("action", ACTIONS)
    def test_every_way_of_evaluating_gives_the_same(self, action):
        policy = make_policy(action=action)
        masks = np.stack([ChangingMaskEnv(5, ACTIONS[action]).reset(seed=i)[0] for i in range(6)])
        masks = masks[:, : policy.mask_layout.width] == 1
        obs, starts = th.randn(2, 3, 3), th.tensor([[1.0, 0, 0], [1, 0, 1]])
        states = policy.zero_states(2)
        flat = obs.flatten(0, 1)
        with th.no_grad():
            distribution, _ = policy.get_distribution(flat, states.pi, starts.flatten(), masks)
            actions = distribution.sample()
            expected = distribution.log_prob(actions)
            _, log_prob, entropy = policy.evaluate_actions(
                flat, actions, states, starts.flatten(), th.as_tensor(masks).float()
            )
            windows = policy.evaluate_sequences(
                obs, actions.view(2, 3, -1), None, starts, masks.reshape(2, 3, -1)
            )
        th.testing.assert_close(log_prob, expected)
        th.testing.assert_close(windows[1].flatten(), expected)
        th.testing.assert_close(windows[2].flatten(), entropy)
        assert policy._masks is None  # they hold for one call only

    def test_masks_are_gone_after_an_error_too(self):
        policy = make_policy()
        with pytest.raises(ValueError, match="must be of shape"):
            policy.evaluate_sequences(
                th.zeros(2, 3, 3), th.zeros(2, 4, 1), None, th.zeros(2, 4), np.ones((2, 4, 4))
            )
        assert policy._masks is None

    @pytest.mark.parametrize(
        ("name", "cls", "space"),
        [
            ("CnnLstmPolicy", MaskableCnnLstmPolicy, spaces.Box(0, 255, (36, 36, 1), np.uint8)),
            ("MultiInputLstmPolicy", MaskableMultiInputLstmPolicy, DICT),
            ("AsymmetricLstmPolicy", MaskableAsymmetricLstmPolicy, DICT),
        ],
    )
    def test_images_and_dicts(self, name, cls, space):
        class Other(ChangingMaskEnv):
            def __init__(self, length, action_space):
                super().__init__(length, action_space)
                self.observation_space = space

            def _show(self, obs):
                self.mask = self._draw()
                return obs

        policy_kwargs = {"critic_only": ("b",)} if name == "AsymmetricLstmPolicy" else {}
        model = make_model(
            changing_masks(5, 6, cls=Other),
            policy=name,
            learning_rate=0.0,
            policy_kwargs=policy_kwargs,
        )
        sharpen(model)
        assert type(model.policy) is cls
        callback = FirstPass()
        model.learn(WINDOW * 2, callback=callback)
        assert callback.minibatches == 4
        assert callback.error < 1e-5

    def test_a_policy_of_a_users_own(self):
        class Mine(MlpLstmPolicy):
            def evaluate_actions(self, obs, actions, lstm_states, episode_starts):
                return super().evaluate_actions(5 * obs, actions, lstm_states, episode_starts)

            def forward(self, obs, lstm_states, episode_starts, deterministic=False):
                return super().forward(5 * obs, lstm_states, episode_starts, deterministic)

            def predict_values(self, obs, lstm_states, episode_starts):
                return super().predict_values(5 * obs, lstm_states, episode_starts)

        class MyMaskable(MaskableMlpLstmPolicy, Mine):
            pass

        model = make_model(changing_masks(5, 6), policy=MyMaskable, learning_rate=0.0)
        sharpen(model)
        callback = FirstPass()
        model.learn(WINDOW * 2, callback=callback)
        assert callback.error < 1e-5

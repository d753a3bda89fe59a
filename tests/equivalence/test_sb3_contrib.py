"""Our numbers against ``sb3_contrib.RecurrentPPO``'s, on equal weights and data.

Both libraries get the same weights and the same rollout (whole windows, memory zero at the window's
start). What they then compute must be the same: forward pass, GAE, loss terms, gradients, and the
parameters after one full update.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import sb3_contrib
import torch as th
from gymnasium import spaces
from helpers import fixed_length_envs
from same_draws import draw_alike
from stable_baselines3.common.logger import configure
from torch.nn.utils import parametrizations, prune
from users_changes import DoubledLSTM, OwnMemory

from thrust_pomdp import RecurrentPPO
from thrust_pomdp.ppo.action_noise import ActionNoise

N_STEPS, HIDDEN = 16, 16
ARRANGEMENTS = {
    "separate": {},
    "shared": {"shared_lstm": True, "enable_critic_lstm": False},
    "critic without memory": {"enable_critic_lstm": False},
}
ACTION_SPACES = {
    "Discrete": spaces.Discrete(3),
    "Box": spaces.Box(-1, 1, (2,), np.float32),
}


class Pair(NamedTuple):
    ours: RecurrentPPO
    theirs: sb3_contrib.RecurrentPPO


def make_pair(arrangement="separate", action_space="Discrete", n_layers=1, **kwargs) -> Pair:
    """Two models with the same weights, each with a full buffer holding the same rollout."""
    arguments = {
        "n_steps": N_STEPS,
        "batch_size": None,
        "n_epochs": 1,
        "seed": 3,
        "gamma": 0.9,
        "gae_lambda": 0.8,
        "ent_coef": 0.01,
        "clip_range_vf": 0.05,
        "policy_kwargs": {
            "lstm_hidden_size": HIDDEN,
            "n_lstm_layers": n_layers,
            # Their optimiser, so that nothing but the library differs.
            "optimizer_kwargs": {"eps": 1e-5, "fused": False},
            **ARRANGEMENTS[arrangement],
        },
        **kwargs,
    }
    models = []
    for library in (RecurrentPPO, sb3_contrib.RecurrentPPO):
        env = fixed_length_envs(5, 6, 7, action_space=ACTION_SPACES[action_space])
        model = library("MlpLstmPolicy", env, **arguments)
        model.set_logger(configure(None, []))
        models.append(model)
    pair = Pair(*models)
    th.manual_seed(1)
    with th.no_grad():
        for parameter in pair.theirs.policy.parameters():
            parameter.add_(0.1 * th.randn_like(parameter))
    pair.ours.policy.load_state_dict(pair.theirs.policy.state_dict())
    return pair


def collect(pair: Pair, n_windows: int = 1) -> None:
    """Collect windows with each model; theirs draws by our random numbers."""
    draw_alike(pair.theirs.policy.action_dist, ActionNoise(3, pair.theirs.n_envs))
    for model in pair:
        _, callback = model._setup_learn(10_000)
        callback.on_training_start({}, {})
        for _ in range(n_windows):
            model.collect_rollouts(model.env, callback, model.rollout_buffer, N_STEPS)


@pytest.fixture(params=[(a, s, n) for a in ARRANGEMENTS for s in ACTION_SPACES for n in (1, 2)])
def pair(request: pytest.FixtureRequest) -> Pair:
    pair = make_pair(*request.param)
    collect(pair)
    # The value clip and the ratio clip must have something to do.
    with th.no_grad():
        for model in pair:
            th.manual_seed(8)
            for parameter in model.policy.parameters():
                parameter.add_(0.12 * th.randn_like(parameter))
    return pair


def test_the_same_rollout_is_collected_and_the_same_advantages_computed(pair):
    ours, theirs = pair.ours.rollout_buffer, pair.theirs.rollout_buffer
    assert np.array_equal(ours.observations, theirs.observations)
    assert np.array_equal(ours.episode_starts, theirs.episode_starts)
    np.testing.assert_allclose(ours.actions, theirs.actions, rtol=0, atol=1e-6)
    for name in ("rewards", "values", "log_probs", "advantages", "returns"):
        np.testing.assert_allclose(
            getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-5, err_msg=name
        )
    # Truncated episodes made a difference to the rewards.
    assert len(set(ours.episode_starts.flatten())) == 2


def test_the_forward_pass_over_sequences_with_resets(pair):
    batch = pair.ours.rollout_buffer.to_sequence_batch()
    actions = batch.actions.flatten(0, 1)
    if isinstance(pair.ours.action_space, spaces.Discrete):
        actions = actions.flatten()
    with th.no_grad():
        values, log_prob, entropy = pair.ours.policy.evaluate_sequences(
            batch.observations, batch.actions, None, batch.layout
        )
        expected = pair.theirs.policy.evaluate_actions(
            batch.observations.flatten(0, 1),
            actions,
            pair.ours.policy.zero_states(3),
            batch.episode_starts.flatten().float(),
        )
    th.testing.assert_close(values.flatten(), expected[0].flatten(), rtol=0, atol=1e-5)
    th.testing.assert_close(log_prob.flatten(), expected[1], rtol=0, atol=1e-5)
    th.testing.assert_close(entropy.flatten(), expected[2], rtol=0, atol=1e-5)


def gradients(model) -> dict[str, th.Tensor]:
    return {
        name: parameter.grad.clone()
        for name, parameter in model.policy.named_parameters()
        if parameter.grad is not None
    }


def test_loss_terms_gradients_and_one_full_update(pair, monkeypatch):
    """Both take one step on the whole rollout as a single minibatch."""
    # Their buffer rotates the rollout by a random number of steps, which cuts a window in two and
    # restarts its second half from a stored state: rotate by none, to give both the same work.
    monkeypatch.setattr(np.random, "randint", lambda *args, **kwargs: 0)
    before = {name: p.clone() for name, p in pair.ours.policy.state_dict().items()}
    logs = []
    for model in pair:
        model.train()
        logs.append(dict(model.logger.name_to_value))
    ours, theirs = logs
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, abs=2e-5), key
    assert theirs["train/clip_fraction"] > 0

    ours_gradients, theirs_gradients = map(gradients, pair)
    assert ours_gradients.keys() == theirs_gradients.keys()
    for name, gradient in theirs_gradients.items():
        th.testing.assert_close(ours_gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)

    after, expected = (model.policy.state_dict() for model in pair)
    for name, parameter in expected.items():
        # Adam's first step is lr * sign(gradient): compare where the sign is not rounding noise.
        th.testing.assert_close(after[name], parameter, rtol=0, atol=2e-5, msg=name)
    assert any(not th.equal(before[name], after[name]) for name in before)


def test_log_keys_of_a_whole_run():
    keys = []
    for library in (RecurrentPPO, sb3_contrib.RecurrentPPO):
        model = library("MlpLstmPolicy", fixed_length_envs(5, 6), n_steps=8, batch_size=8, seed=0)
        names = set()

        class Writer:
            def write(self, key_values, key_excluded, step=0, names=names):
                names.update(key_values)

            def close(self):
                pass

        logger = configure(None, [])
        logger.output_formats = [Writer()]
        model.set_logger(logger)
        model.learn(3 * 16)
        keys.append(names)
    assert keys[0] == keys[1]


class TestCarriedWindows:
    """``window_state="carry"`` is their way: the same numbers in later windows too."""

    @pytest.fixture(params=ARRANGEMENTS)
    def pair(self, request: pytest.FixtureRequest) -> Pair:
        pair = make_pair(request.param)
        pair.ours.window_state = "carry"
        collect(pair, n_windows=3)
        return pair

    def test_the_same_rollout_is_collected(self, pair):
        ours, theirs = pair.ours.rollout_buffer, pair.theirs.rollout_buffer
        assert ours.initial_state.pi[0].any()
        assert np.array_equal(ours.actions, theirs.actions)
        for name in ("rewards", "values", "log_probs", "advantages", "returns"):
            np.testing.assert_allclose(
                getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-5, err_msg=name
            )

    def test_loss_terms_and_gradients(self, pair, monkeypatch):
        monkeypatch.setattr(np.random, "randint", lambda *args, **kwargs: 0)
        for model in pair:
            model.train()
        ours, theirs = (dict(model.logger.name_to_value) for model in pair)
        for key, value in theirs.items():
            assert ours[key] == pytest.approx(value, abs=2e-5), key
        ours_gradients, theirs_gradients = map(gradients, pair)
        for name, gradient in theirs_gradients.items():
            th.testing.assert_close(ours_gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


class TestLayersThatUsersChanged:
    """What is laid over or put in place of an LSTM, in programs that run on both libraries."""

    CHANGES = {
        "weight_norm": lambda policy: parametrizations.weight_norm(
            policy.lstm_actor, "weight_hh_l0"
        ),
        "spectral_norm": lambda policy: parametrizations.spectral_norm(
            policy.lstm_actor, "weight_hh_l0"
        ),
        "pruning": lambda policy: prune.l1_unstructured(policy.lstm_actor, "weight_ih_l0", 0.5),
        "a hook": lambda policy: policy.lstm_actor.register_forward_hook(
            lambda module, args, output: (3 * output[0], output[1])
        ),
        "a subclass": lambda policy: setattr(policy, "lstm_actor", DoubledLSTM(3, HIDDEN)),
        "a module of one's own": lambda policy: setattr(
            policy, "lstm_critic", OwnMemory(3, HIDDEN)
        ),
        "torch.compile": lambda policy: setattr(
            policy, "lstm_actor", th.compile(policy.lstm_actor, backend="eager")
        ),
    }

    @pytest.mark.filterwarnings("ignore:the first pass of training will differ")
    @pytest.mark.parametrize("change", CHANGES)
    def test_collect_and_learn_as_over_there(self, change, monkeypatch):
        monkeypatch.setattr(np.random, "randint", lambda *args, **kwargs: 0)  # as above
        pair = make_pair(n_epochs=2, learning_rate=1e-2)
        for model in pair:
            th.manual_seed(7)
            self.CHANGES[change](model.policy)
            # Adam would blow up the rounding of gradients near zero.
            model.policy.optimizer = th.optim.SGD(model.policy.parameters(), lr=1e-2)
        collect(pair)
        ours, theirs = (model.rollout_buffer for model in pair)
        np.testing.assert_allclose(ours.values, theirs.values, rtol=0, atol=1e-5)
        np.testing.assert_allclose(ours.log_probs, theirs.log_probs, rtol=0, atol=1e-5)
        before = {name: p.clone() for name, p in pair.ours.policy.named_parameters()}
        for model in pair:
            model.train()
        after = dict(pair.theirs.policy.named_parameters())
        for name, parameter in pair.ours.policy.named_parameters():
            th.testing.assert_close(parameter, after[name], rtol=0, atol=1e-6)
        moved = max((p - before[n]).abs().max() for n, p in pair.ours.policy.named_parameters())
        assert moved > 1e-4

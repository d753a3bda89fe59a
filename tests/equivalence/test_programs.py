"""Programs written for ``sb3_contrib``, run on both libraries by changing one import line.

Each program is a function of the library. Both must give the same logs' keys, and, on equal
weights, the same numbers on the first pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch as th
from gymnasium import spaces
from helpers import fixed_length_envs
from same_draws import draw_alike
from sb3_contrib.ppo_recurrent import policies as their_policies
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

import thrust_pomdp
from thrust_pomdp.ppo.action_noise import ActionNoise

LIBRARIES = {"ours": thrust_pomdp, "theirs": sb3_contrib}
POLICIES = {"ours": thrust_pomdp, "theirs": their_policies}
OURS_AND_THEIRS = pytest.mark.parametrize("whose", LIBRARIES)
SMALL = {"lstm_hidden_size": 8, "net_arch": {"pi": [8], "vf": [8]}}
N_STEPS = 16


def make(whose: str, cls: Any = None, policy: Any = "MlpLstmPolicy", **kwargs: Any) -> Any:
    cls = cls or LIBRARIES[whose].RecurrentPPO
    env = kwargs.pop("env", None) or fixed_length_envs(5, 6, 7)
    arguments = {
        "n_steps": N_STEPS, "batch_size": N_STEPS, "n_epochs": 2, "seed": 0,
        "policy_kwargs": SMALL,
    } | kwargs  # fmt: skip
    model = cls(policy, env, **arguments)
    model.set_logger(configure(None, []))
    return model


# ------------------------------------------------------------------ train() of a user's own


def flat_loop(base: Any) -> Any:
    """A ``train()`` as sb3-contrib writes it, with a penalty of the user's own."""

    class Mine(base):
        first_pass: float | None = None

        def train(self) -> None:
            self.policy.set_training_mode(True)
            self._update_learning_rate(self.policy.optimizer)
            losses = []
            for _ in range(self.n_epochs):
                for data in self.rollout_buffer.get(self.batch_size):
                    actions = data.actions
                    if isinstance(self.action_space, spaces.Discrete):
                        actions = data.actions.long().flatten()
                    mask = data.mask > 1e-8
                    values, log_prob, entropy = self.policy.evaluate_actions(
                        data.observations, actions, data.lstm_states, data.episode_starts
                    )
                    values = values.flatten()
                    advantages = data.advantages
                    advantages = (advantages - advantages[mask].mean()) / (
                        advantages[mask].std() + 1e-8
                    )
                    ratio = th.exp(log_prob - data.old_log_prob)
                    if self.first_pass is None:
                        off = (log_prob - data.old_log_prob)[mask].abs().max()
                        off_values = (values - data.old_values)[mask].abs().max()
                        self.first_pass = max(off.item(), off_values.item())
                    clipped = advantages * th.clamp(ratio, 0.8, 1.2)
                    policy_loss = -th.min(advantages * ratio, clipped)[mask].mean()
                    value_loss = ((data.returns - values) ** 2)[mask].mean()
                    penalty = 0.01 * log_prob[mask].square().mean()
                    loss = policy_loss + 0.5 * value_loss - 0.01 * entropy[mask].mean() + penalty
                    self.policy.optimizer.zero_grad()
                    loss.backward()
                    th.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
                    self.policy.optimizer.step()
                    losses.append(loss.item())
            self._n_updates += self.n_epochs
            self.logger.record("train/loss", float(np.mean(losses)))
            self.logger.record("train/penalty", penalty.item())

    return Mine


@OURS_AND_THEIRS
@pytest.mark.parametrize("batch_size", [8, N_STEPS, 2 * N_STEPS])
@pytest.mark.parametrize("action_space", [spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)])
def test_a_train_method_of_ones_own_loops_over_the_buffer(whose, batch_size, action_space):
    env = fixed_length_envs(5, 6, 7, action_space=action_space)
    cls = flat_loop(LIBRARIES[whose].RecurrentPPO)
    model = make(whose, cls, env=env, batch_size=batch_size)
    before = [p.clone() for p in model.policy.parameters()]
    model.learn(2 * N_STEPS * 3)
    assert model.first_pass < 1e-5
    assert any(not th.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True))


def test_it_gives_their_numbers(monkeypatch):
    """On equal weights and the same rollout, with minibatches of everything."""
    monkeypatch.setattr(np.random, "randint", lambda *args, **kwargs: 0)
    models = []
    for whose, library in LIBRARIES.items():
        model = make(
            whose, flat_loop(library.RecurrentPPO), batch_size=3 * N_STEPS,
            policy_kwargs={**SMALL, "optimizer_class": th.optim.SGD, "optimizer_kwargs": None},
        )  # fmt: skip
        models.append(model)
    ours, theirs = models
    ours.policy.load_state_dict(theirs.policy.state_dict())
    draw_alike(theirs.policy.action_dist, ActionNoise(ours.seed, theirs.n_envs))
    for model in models:
        _, callback = model._setup_learn(10_000)
        callback.on_training_start({}, {})
        model.collect_rollouts(model.env, callback, model.rollout_buffer, N_STEPS)
        model.train()
    for (name, one), other in zip(
        ours.policy.named_parameters(), theirs.policy.parameters(), strict=True
    ):
        th.testing.assert_close(one, other, rtol=0, atol=1e-6, msg=name)
    logs = [model.logger.name_to_value for model in models]
    assert logs[0].keys() == logs[1].keys()
    assert logs[0]["train/loss"] == pytest.approx(logs[1]["train/loss"], abs=1e-5)


@OURS_AND_THEIRS
def test_what_the_buffer_hands_out(whose):
    seen = []

    class Looking(LIBRARIES[whose].RecurrentPPO):
        def train(self) -> None:
            for data in self.rollout_buffer.get(self.batch_size):
                seen.append(data)
            super_train(self)

    super_train = LIBRARIES[whose].RecurrentPPO.train
    make(whose, Looking, n_epochs=1).learn(N_STEPS * 3)
    for data in seen:
        rows = len(data.returns)
        assert data.observations.shape == (rows, 3)
        assert data.actions.shape == (rows, 1)
        for part in (data.old_values, data.old_log_prob, data.advantages, data.mask):
            assert part.shape == (rows,)
        assert data.episode_starts.dtype == data.mask.dtype == th.float32
        hidden, cell = data.lstm_states.pi
        assert hidden.shape == cell.shape == data.lstm_states.vf[0].shape
        assert rows % hidden.shape[1] == 0
        assert hidden.shape[::2] == (1, 8)
    if whose == "ours":
        assert all((data.mask == 1).all() for data in seen)


# ------------------------------------------------------------------ looking while collecting


class Probe(BaseCallback):
    """Writes down what a belief-probing callback reads at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.entering, self.leaving, self.chances, self.dtypes = [], [], [], set()
        self.names: set[str] = set()

    def _on_step(self) -> bool:
        self.entering.append(self.model._last_lstm_states.pi[0].clone())
        self.leaving.append(self.locals["lstm_states"].pi[0].clone())
        distribution = self.model.policy.action_dist.distribution
        assert not distribution.logits.requires_grad
        self.chances.append(distribution.probs.clone())
        self.dtypes.add(self.locals["episode_starts"].dtype)
        if self.n_calls > 1:
            assert isinstance(self.locals["idx"], int)
            assert self.locals["done_"] in (True, False)
        self.names |= self.locals.keys()
        return True

    def _on_rollout_end(self) -> None:
        self.final = self.model._last_lstm_states.pi[0].clone()


@OURS_AND_THEIRS
@pytest.mark.parametrize("kwargs", [{}, {"n_lstm_layers": 2}])
def test_memory_and_chances_are_there_at_each_step(whose, kwargs):
    probe = Probe()
    model = make(whose, policy_kwargs={**SMALL, **kwargs})
    model.learn(N_STEPS * 3, callback=probe)
    for before, after in zip(probe.leaving, probe.entering[1:], strict=False):
        assert th.equal(before, after)
    assert th.equal(probe.final, probe.leaving[-1])
    assert probe.final.any()
    assert probe.dtypes == {th.float32}
    for chances, step in zip(probe.chances, range(N_STEPS), strict=True):
        actions = th.as_tensor(model.rollout_buffer.actions.reshape(N_STEPS, -1)[step]).long()
        log_prob = chances.log().gather(1, actions[:, None])[:, 0]
        expected = th.as_tensor(model.rollout_buffer.log_probs.reshape(N_STEPS, -1)[step])
        if whose == "ours":  # theirs are no longer in the order of the steps
            th.testing.assert_close(log_prob, expected, rtol=0, atol=1e-5)


def test_callbacks_find_the_names_they_know():
    names = {}
    for whose in LIBRARIES:
        probe = Probe()
        make(whose).learn(N_STEPS * 3, callback=probe)
        names[whose] = probe.names
    only_theirs = names["theirs"] - names["ours"]
    # Of a truncated episode; there are several at a time here, which are bootstrapped together.
    assert only_theirs <= {"terminal_obs", "terminal_lstm_state", "terminal_value"}


class Intervention(BaseCallback):
    """Puts another distribution in place between two steps."""

    def _on_step(self) -> bool:
        policy = self.model.policy
        uniform = th.distributions.Categorical(logits=th.zeros(3, 3))
        policy.action_dist.distribution = uniform
        assert policy.action_dist.entropy().sum().item() == pytest.approx(3 * np.log(3))
        return True


@OURS_AND_THEIRS
def test_the_distribution_can_be_assigned(whose):
    make(whose).learn(N_STEPS * 3, callback=Intervention())


# --------------------------------------------------------------------- policies of one's own


class Wide(BaseFeaturesExtractor):
    def __init__(self, observation_space: spaces.Space, width: int = 6) -> None:
        super().__init__(observation_space, width)
        size = sum(int(np.prod(part.shape)) for part in observation_space.spaces.values())
        self.net = nn.Linear(size, width)

    def forward(self, observations: Any) -> th.Tensor:
        return self.net(th.cat([part.flatten(1) for part in observations.values()], dim=1))


@OURS_AND_THEIRS
def test_a_policy_that_chooses_its_extractor_itself(whose):
    class Mine(POLICIES[whose].MlpLstmPolicy):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs["features_extractor_class"] = Wide
            super().__init__(*args, **kwargs)

    box = spaces.Box(-1, 1, (3,), np.float32)
    env = fixed_length_envs(5, 6, observation_space=spaces.Dict(a=box, b=box))
    model = make(whose, policy=Mine, env=env).learn(N_STEPS * 2)
    assert isinstance(model.policy.features_extractor, Wide)


@OURS_AND_THEIRS
@pytest.mark.parametrize("name", ["CnnLstmPolicy", "MultiInputLstmPolicy", "MlpLstmPolicy"])
def test_policies_take_positionally_what_theirs_take(whose, name):
    space: spaces.Space = spaces.Box(0, 255, (3, 36, 36), np.uint8)
    if name == "MultiInputLstmPolicy":
        space = spaces.Dict(a=spaces.Box(-1, 1, (3,), np.float32))
    policy = getattr(POLICIES[whose], name)(
        space, spaces.Discrete(2), lambda _: 1e-3, [], nn.ReLU, False
    )
    assert policy.activation_fn is nn.ReLU
    assert not policy.ortho_init
    expected = {"Cnn": "NatureCNN", "Mul": "CombinedExtractor", "Mlp": "FlattenExtractor"}
    assert type(policy.features_extractor).__name__ == expected[name[:3]]


@OURS_AND_THEIRS
def test_a_way_of_ones_own_to_run_the_memory_that_computes_with_the_flags(whose):
    class Mine(POLICIES[whose].MlpLstmPolicy):
        @staticmethod
        def _process_sequence(features, lstm_states, episode_starts, lstm):
            n_seq = lstm_states[0].shape[1]
            steps = features.reshape(n_seq, -1, lstm.input_size).swapaxes(0, 1)
            starts = episode_starts.reshape(n_seq, -1).swapaxes(0, 1)
            outputs = []
            for step, start in zip(steps, starts, strict=True):
                keep = (1.0 - start).view(1, n_seq, 1)
                output, lstm_states = lstm(step[None], tuple(keep * state for state in lstm_states))
                outputs.append(output)
            output = th.cat(outputs).transpose(0, 1)
            return th.flatten(output, start_dim=0, end_dim=1), lstm_states

    model = make(whose, flat_loop(LIBRARIES[whose].RecurrentPPO), policy=Mine)
    model.learn(N_STEPS * 3)
    assert model.first_pass < 1e-5


@OURS_AND_THEIRS
def test_heads_of_ones_own(whose):
    class Mine(POLICIES[whose].MlpLstmPolicy):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            width = self.mlp_extractor.latent_dim_vf
            self.value_net = nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 1))
            self.optimizer = self.optimizer_class(self.parameters(), lr=1e-3)

        def _get_action_dist_from_latent(self, latent_pi):
            distribution = super()._get_action_dist_from_latent(latent_pi)
            return distribution.proba_distribution(self.action_net(latent_pi) / 2)

    model = make(whose, flat_loop(LIBRARIES[whose].RecurrentPPO), policy=Mine)
    model.learn(N_STEPS * 3)
    assert model.first_pass < 1e-5


# ------------------------------------------------------------------------- envs and predict


def test_whole_numbers_as_rewards():
    """Over there a value that is added to one is cut to a whole number."""

    class WholeRewards(fixed_length_envs(5).__class__):
        def step_wait(self):
            obs, rewards, dones, infos = super().step_wait()
            return obs, np.ones(len(rewards), dtype=np.int64), dones, infos

    envs = fixed_length_envs(5, 6)
    venv = WholeRewards([lambda env=env: env for env in envs.envs])
    model = make("ours", env=venv)
    model.learn(N_STEPS * 2)
    assert not np.allclose(model.rollout_buffer.rewards, 1.0)  # bootstrapped where truncated


@OURS_AND_THEIRS
def test_a_state_that_was_stacked_into_one_array(whose):
    model = make(whose)
    obs = np.zeros((2, 3), np.float32)
    _, state = model.predict(obs)
    one, state_of_one = model.predict(obs, state, deterministic=True)
    other, state_of_other = model.predict(obs, np.stack(state), deterministic=True)
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(state_of_one, state_of_other)


def test_single_environments_of_a_native_vector_can_be_looked_at():
    venv = thrust_pomdp.make_vec_env("FlickeringCartPole-v0", 2, seed=0)
    venv.reset()
    assert len(venv.envs) == 2
    assert venv.envs[0].unwrapped.state is not None
    assert venv.envs[1].spec.id == "FlickeringCartPole-v0"


def test_the_buffers_constructor_names_the_counterpart_of_theirs():
    box, actions = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
    shape = (N_STEPS, 1, 3, 8)
    for arguments in ((shape,), ()):
        kwargs = {} if arguments else {"hidden_state_shape": shape}
        with pytest.raises(ValueError, match="record_states=True keeps those of every step"):
            thrust_pomdp.RecurrentRolloutBuffer(N_STEPS, box, actions, *arguments, **kwargs)


def test_recorded_states_have_their_names():
    model = make("ours", rollout_buffer_kwargs={"record_states": True}).learn(N_STEPS * 3)
    theirs = make("theirs").learn(N_STEPS * 3)
    for name in ("hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf"):
        ours = getattr(model.rollout_buffer, name)
        assert ours.shape == (N_STEPS, 1, 3, 8)
        assert ours.size == getattr(theirs.rollout_buffer, name).size
        assert ours[1].any()

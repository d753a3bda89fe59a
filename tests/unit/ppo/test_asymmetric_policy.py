"""AsymmetricLstmPolicy: the critic sees more, and nothing of it reaches the actor."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import (
    VECTOR,
    FirstPass,
    FixedLengthEnv,
    fixed_length_envs,
    ignore_resets,
    sharpen,
    zero_initial_state,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import nn

from thrust_pomdp import (
    AsymmetricLstmPolicy,
    RecurrentPPO,
    StatefulActor,
    VecPrivilegedInfo,
    make_vec_env,
    to_sb3_contrib,
)
from thrust_pomdp.ppo.losses import ppo_losses

STATE = spaces.Box(-1.0, 1.0, (2,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
SPACE = spaces.Dict({"observation": VECTOR, "state": STATE})
WINDOW = 16
ARRANGEMENTS = {
    "separate": {},
    "beside the actor's memory": {"shared_lstm": True, "enable_critic_lstm": False},
    "beside it, both gradients": {"shared_lstm_critic_gradient": True},
    "critic without memory": {"enable_critic_lstm": False},
    "separate GRUs, encoder, layer norm": {
        "rnn_class": nn.GRU,
        "layer_norm": True,
        "net_arch": {"encoder": [6], "pi": [5], "vf": [5]},
    },
    "beside a plain RNN, encoder, layer norm": {
        "shared_lstm_critic_gradient": True,
        "rnn_class": nn.RNN,
        "layer_norm": True,
        "net_arch": {"encoder": [6], "pi": [], "vf": [5]},
    },
    "grounded, both gradients": {"shared_lstm_critic_gradient": True, "grounding_coef": 0.5},
}
#: What belongs to the critic, by the beginning of the parameters' names.
CRITIC = ("vf_features_extractor", "lstm_critic", "critic.", "mlp_extractor.value_net", "value_net")


def make_policy(space: spaces.Dict = SPACE, actions: Any = None, **kwargs: Any) -> Any:
    th.manual_seed(0)
    policy = AsymmetricLstmPolicy(
        space,
        spaces.Discrete(3) if actions is None else actions,
        lambda _: 1e-3,
        **{"lstm_hidden_size": 8, **kwargs},
    )
    with th.no_grad():
        policy.action_net.weight.mul_(100)
    return policy


def make_model(
    *lengths: int, space: spaces.Dict = SPACE, actions: Any = None, **kwargs: Any
) -> RecurrentPPO:
    env = kwargs.pop("env", None) or fixed_length_envs(
        *(lengths or (5, 6, 7)), observation_space=space, action_space=actions
    )
    policy_kwargs = {"lstm_hidden_size": 8, **kwargs.pop("policy_kwargs", {})}
    arguments = {"n_steps": WINDOW, "batch_size": WINDOW, "n_epochs": 2, "seed": 0, **kwargs}
    return RecurrentPPO("AsymmetricLstmPolicy", env, policy_kwargs=policy_kwargs, **arguments)


def windows(n_envs: int = 2, n_steps: int = 9) -> tuple[dict[str, th.Tensor], Any, th.Tensor]:
    """Observations, actions and episode starts of whole windows."""
    generator = th.Generator().manual_seed(1)
    obs = {
        key: th.randn(n_envs, n_steps, *space.shape, generator=generator)
        for key, space in SPACE.items()
    }
    starts = th.zeros(n_envs, n_steps)
    starts[:, 0] = starts[0, 4] = 1
    return obs, th.randint(3, (n_envs, n_steps, 1), generator=generator), starts


def other_state(obs: dict[str, th.Tensor]) -> dict[str, th.Tensor]:
    return {**obs, "state": 3 - obs["state"]}


class TestFirstPassEqualsCollection:
    """With learning rate 0, what training recomputes is what collection saw, to 1e-5."""

    @staticmethod
    def first_pass(*lengths: int, plant: Any = None, **kwargs: Any) -> FirstPass:
        model = make_model(*lengths, learning_rate=0.0, **kwargs)
        sharpen(model)
        callback = FirstPass(plant)
        model.learn(2 * WINDOW * model.n_envs, callback=callback)
        assert callback.minibatches == 2 * 2 * model.n_envs
        return callback

    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    @pytest.mark.parametrize("lengths", [(5,), (5, 6, 7)], ids=["1 env", "3 envs"])
    @pytest.mark.parametrize("n_layers", [1, 2])
    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_log_probabilities_and_values(self, arrangement, n_layers, lengths, window_state):
        policy_kwargs = {**ARRANGEMENTS[arrangement], "n_lstm_layers": n_layers}
        callback = self.first_pass(*lengths, policy_kwargs=policy_kwargs, window_state=window_state)
        assert callback.error < 1e-5

    @pytest.mark.parametrize("arrangement", list(ARRANGEMENTS)[:3])
    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    def test_ignoring_resets_in_training_is_noticed(self, window_state, arrangement):
        callback = self.first_pass(
            plant=ignore_resets,
            policy_kwargs=ARRANGEMENTS[arrangement],
            window_state=window_state,
        )
        assert callback.log_prob_error > 1e-3
        assert callback.value_error > 1e-3

    @pytest.mark.parametrize("arrangement", list(ARRANGEMENTS)[:3])
    def test_forgetting_the_carried_state_in_training_is_noticed(self, arrangement):
        callback = self.first_pass(
            plant=zero_initial_state,
            policy_kwargs=ARRANGEMENTS[arrangement],
            window_state="carry",
        )
        assert callback.log_prob_error > 1e-3
        assert callback.value_error > 1e-3

    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_with_continuous_actions_and_state_dependent_exploration(self, arrangement):
        callback = self.first_pass(
            actions=spaces.Box(-1, 1, (2,), np.float32),
            policy_kwargs=ARRANGEMENTS[arrangement],
            use_sde=True,
            sde_sample_freq=4,
        )
        assert callback.error < 1e-5

    def test_with_images_and_several_keys_on_both_sides(self):
        space = spaces.Dict(
            {"camera": IMAGE, "gyro": VECTOR, "map": IMAGE, "mode": spaces.Discrete(4)}
        )
        callback = self.first_pass(space=space, policy_kwargs={"critic_only": ["map", "mode"]})
        assert callback.error < 1e-5


class TestTheActorSeesNothingOfIt:
    """Another privileged input leaves every output of the actor as it is, bit for bit."""

    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    @pytest.mark.parametrize(
        "actions",
        [spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)],
        ids=["Discrete", "Box"],
    )
    def test_while_collecting(self, actions, arrangement):
        policy = make_policy(actions=actions, **ARRANGEMENTS[arrangement])
        obs, _, starts = windows()
        runs = []
        for change in (lambda obs: obs, other_state):
            th.manual_seed(3)
            states, given = policy.zero_states(2), []
            for step in range(9):
                now = change({key: part[:, step] for key, part in obs.items()})
                with th.no_grad():
                    *outputs, states = policy(now, states, starts[:, step])
                given.append([*outputs, *states.pi])
            runs.append(given)
        for (action, value, log_prob, *pi), (action_2, value_2, log_prob_2, *pi_2) in zip(
            *runs, strict=True
        ):
            assert th.equal(action, action_2)
            assert th.equal(log_prob, log_prob_2)
            assert all(th.equal(one, other) for one, other in zip(pi, pi_2, strict=True))
            assert not th.equal(value, value_2)

    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_while_training(self, arrangement):
        policy = make_policy(**ARRANGEMENTS[arrangement])
        obs, actions, starts = windows()
        values, log_prob, entropy = policy.evaluate_sequences(obs, actions, None, starts)
        values_2, *actors = policy.evaluate_sequences(other_state(obs), actions, None, starts)
        assert th.equal(log_prob, actors[0])
        assert th.equal(entropy, actors[1])
        assert not th.isclose(values, values_2).any()

    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_when_asked_to_predict_also_after_saving_and_loading(self, arrangement, tmp_path):
        model = make_model(policy_kwargs=ARRANGEMENTS[arrangement]).learn(WINDOW * 3)
        sharpen(model)
        model.save(tmp_path / "model")
        loaded = RecurrentPPO.load(tmp_path / "model")
        rng = np.random.default_rng(0)
        obs, state = rng.normal(size=(2, 3)).astype(np.float32), None
        for _ in range(3):
            model.policy.seed_actions(0)
            plain = model.predict(obs, state)
            variants = [{"observation": obs}]
            variants += [
                {"observation": obs, "state": np.full((2, 2), fill, np.float32)}
                for fill in (0.0, np.nan)
            ]
            for given in variants:
                for asked in (model, loaded):
                    asked.policy.seed_actions(0)
                    np.testing.assert_equal(asked.predict(given, state), plain)
            state = plain[1]

    def test_the_gradient_of_the_actors_loss_ends_at_the_actor(self):
        for arrangement in ARRANGEMENTS.values():
            policy = make_policy(**arrangement)
            obs, actions, starts = windows()
            obs["state"].requires_grad_()
            _, log_prob, entropy = policy.evaluate_sequences(obs, actions, None, starts)
            (log_prob.sum() + entropy.sum()).backward()
            assert obs["state"].grad is None
            for name, parameter in policy.named_parameters():
                if name.startswith(CRITIC):
                    assert parameter.grad is None or not parameter.grad.any(), name

    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_the_value_losss_gradient_reaches_the_actors_memory_only_where_asked(self, arrangement):
        model = make_model(policy_kwargs=ARRANGEMENTS[arrangement], n_epochs=1)
        batches = []
        model.policy.optimizer.step = lambda: None
        to_minibatches = model.rollout_buffer.to_minibatches
        model.rollout_buffer.to_minibatches = lambda n: batches.extend(to_minibatches(n)) or batches
        model.learn(WINDOW * 3)
        # The compiled loss, where there is one, and torch's; without the policy's part.
        batch = batches[0]._replace(advantages=th.zeros_like(batches[0].advantages))
        coefficients = {"clip_range": 0.2, "clip_range_vf": None, "ent_coef": 0.0, "vf_coef": 1.0}
        model.policy.zero_grad()
        ppo_losses(model.policy, batch, normalize_advantage=False, **coefficients).loss.backward()
        reached = {
            name for name, part in model.policy.named_parameters()
            if part.grad is not None and part.grad.any()
        }  # fmt: skip
        actors = {name for name in reached if not name.startswith(CRITIC)}
        before_heads = ("features_extractor", "lstm_actor", "grounding_net")
        expected = {
            name for name, _ in model.policy.named_parameters() if name.startswith(before_heads)
        }
        asked = "shared_lstm_critic_gradient" in ARRANGEMENTS[arrangement]
        assert actors == (expected if asked else set())
        critics = {name for name, _ in model.policy.named_parameters() if name.startswith(CRITIC)}
        assert reached - actors == critics
        assert len(critics) >= 4


class TestNoLeakAcrossEpisodes:
    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_what_was_seen_before_a_start_changes_nothing_after_it(self, arrangement):
        policy = make_policy(**ARRANGEMENTS[arrangement])
        obs, actions, starts = windows()
        before = {key: part.clone() for key, part in obs.items()}
        for part in before.values():
            part[0, :4] += 1
        outputs = [
            policy.evaluate_sequences(each, actions, None, starts)[:2] for each in (obs, before)
        ]
        for one, other in zip(*outputs, strict=True):
            assert th.equal(one[0, 4:], other[0, 4:])
            assert th.equal(one[1], other[1])
            assert not th.isclose(one[0, :4], other[0, :4]).all()

    @pytest.mark.parametrize("arrangement", list(ARRANGEMENTS)[:3])
    def test_within_an_episode_the_value_remembers(self, arrangement):
        policy = make_policy(**ARRANGEMENTS[arrangement])
        obs, actions, starts = windows()
        before = {key: part.clone() for key, part in obs.items()}
        before["observation"][1, 2] += 1
        values, changed = (
            policy.evaluate_sequences(each, actions, None, starts)[0] for each in (obs, before)
        )
        assert th.equal(values[1, :2], changed[1, :2])
        assert not th.isclose(values[1, 2:], changed[1, 2:]).any()

    def test_only_a_critic_with_a_memory_of_its_own_remembers_the_state(self):
        obs, actions, starts = windows()
        before = {key: part.clone() for key, part in obs.items()}
        before["state"][1, 2] += 1
        for name, arrangement in ARRANGEMENTS.items():
            policy = make_policy(**arrangement)
            values, changed = (
                policy.evaluate_sequences(each, actions, None, starts)[0] for each in (obs, before)
            )
            assert not th.isclose(values[1, 2], changed[1, 2])
            assert th.equal(values[1, 3:], changed[1, 3:]) != name.startswith("separate")


class LotteryEnv(FixedLengthEnv):
    """Pays 1 or -1, whatever the agent does; only the state tells which it will be."""

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        self.prize = float(np.sign(obs["state"][0]))
        return obs, info

    def step(self, action):
        prize = self.prize
        obs, _, terminated, truncated, info = super().step(action)
        self.prize = float(np.sign(obs["state"][0]))
        return obs, prize, terminated, truncated, info


class TestValues:
    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_of_single_observations_are_those_met_while_collecting(self, arrangement):
        """Bootstrapping at a window's end and at truncation asks for them one by one."""
        policy = make_policy(**ARRANGEMENTS[arrangement])
        obs, _, starts = windows()
        states = policy.zero_states(2)
        for step in range(9):
            now = {key: part[:, step] for key, part in obs.items()}
            with th.no_grad():
                expected = policy.predict_values(now, states.vf, starts[:, step])
                _, values, _, states = policy(now, states, starts[:, step])
            th.testing.assert_close(values, expected, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_need_what_the_critic_sees(self, arrangement):
        policy = make_policy(**ARRANGEMENTS[arrangement])
        plain = {"observation": th.zeros(1, 3)}
        with pytest.raises(ValueError, match=r"\['state'\] are missing: values need what the crit"):
            policy.predict_values(plain, policy.zero_states(1).vf, th.ones(1))

    def test_training_with_the_state_explains_returns_that_depend_on_it(self):
        """The reward is a number that only the critic sees: with it values can be right."""

        env = DummyVecEnv([lambda: LotteryEnv(8, observation_space=SPACE)] * 4)
        model = make_model(
            env=env, n_steps=64, batch_size=64, n_epochs=10, gamma=0.0, learning_rate=1e-2
        )
        model.learn(64 * 4 * 8)
        buffer = model.rollout_buffer
        error = np.mean((buffer.values - np.sign(buffer.observations["state"][..., 0])) ** 2)
        assert error < 0.3  # 1 for values that know nothing


class TestGrounding:
    """The actor's memory learns to tell what only the critic sees."""

    SETTINGS = {
        "clip_range": 0.2,
        "clip_range_vf": None,
        "ent_coef": 0.1,
        "vf_coef": 0.5,
        "normalize_advantage": True,
    }

    @staticmethod
    def minibatch(model: RecurrentPPO) -> Any:
        model.learn(2 * WINDOW * 3)
        return model.rollout_buffer.to_sequence_batch()

    @pytest.mark.parametrize("actions", [spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)])
    @pytest.mark.parametrize("window_state", ["zero", "carry"])
    @pytest.mark.parametrize("arrangement", list(ARRANGEMENTS)[:6])
    def test_adds_a_mean_squared_error_and_changes_no_other_term(
        self, arrangement, window_state, actions
    ):
        kwargs = {**ARRANGEMENTS[arrangement], "grounding_coef": 0.25}
        model = make_model(
            actions=actions, policy_kwargs=kwargs, learning_rate=0.0, window_state=window_state
        )
        policy, batch = model.policy, self.minibatch(model)
        grounded = ppo_losses(policy, batch, **self.SETTINGS)
        policy.grounding_coef = 0.0
        plain = ppo_losses(policy, batch, **self.SETTINGS)
        assert plain.auxiliary_loss == 0
        assert grounded[1:6] == plain[1:6]
        th.testing.assert_close(grounded.loss, plain.loss + grounded.auxiliary_loss)
        # By hand, step by step.
        assert (batch.initial_state is None) == (window_state == "zero")
        states, errors = batch.initial_state or policy.zero_states(3), []
        for step in range(WINDOW):
            obs = {key: part[:, step] for key, part in batch.observations.items()}
            *_, states = policy(obs, states, batch.layout.episode_starts[:, step].float())
            memory = states.pi[0] if isinstance(states.pi, tuple) else states.pi
            errors.append(policy.grounding_net(memory[-1]) - obs["state"])
        expected = 0.25 * th.stack(errors).square().mean()
        th.testing.assert_close(grounded.auxiliary_loss, expected, rtol=0, atol=1e-6)

    def test_tells_every_key_of_the_critic_side_by_side(self):
        space = spaces.Dict({"gyro": VECTOR, "mode": spaces.Discrete(4), "goal": STATE})
        kwargs = {"critic_only": ["goal", "mode"], "grounding_coef": 1.0}
        model = make_model(space=space, policy_kwargs=kwargs)
        obs = {
            "gyro": th.zeros(1, 2, 3),
            "mode": th.tensor([[[2], [0]]]),
            "goal": th.tensor([[[0.25, 0.5], [0.75, 1.0]]]),
        }
        expected = [[0.25, 0.5, 0, 0, 1, 0], [0.75, 1, 1, 0, 0, 0]]
        assert model.policy._told(obs).tolist() == expected
        assert model.policy.grounding_net.out_features == 6

    @pytest.mark.parametrize("arrangement", ["separate", "beside the actor's memory"])
    def test_its_gradient_reaches_the_actors_memory_and_no_head(self, arrangement):
        policy = make_policy(**ARRANGEMENTS[arrangement], grounding_coef=1.0)
        obs, actions, starts = windows()
        policy.evaluate_sequences(obs, actions, None, starts)
        policy.auxiliary_loss().backward()
        reached = {
            name.split(".")[0] for name, part in policy.named_parameters()
            if part.grad is not None and part.grad.any()
        }  # fmt: skip
        # A Dict of vectors has an extractor without weights.
        assert reached == {"lstm_actor", "grounding_net"}

    @pytest.mark.parametrize("strategy", [{}, {"sequence_length": 8, "burn_in": 4}])
    def test_training_makes_the_memory_tell_the_state_it_saw_before(self, strategy):
        """Signs stand in an episode's first frame alone; at chance half of them are told."""

        class Recall(FixedLengthEnv):
            def reset(self, **kwargs):
                obs, info = super().reset(**kwargs)
                self.kept = np.sign(obs["state"])
                shown = np.append(self.kept, np.float32(1))
                return {"observation": shown, "state": self.kept}, info

            def step(self, action):
                _, *rest = super().step(action)
                return {"observation": np.zeros(3, np.float32), "state": self.kept}, *rest

        # Episodes of 7 steps: most of them reach into the next subsequence of 8.
        env = DummyVecEnv([lambda: Recall(7, observation_space=SPACE)] * 4)
        model = make_model(
            env=env, n_steps=32, batch_size=32, n_epochs=8, learning_rate=1e-2,
            window_state="carry", **strategy,
            policy_kwargs={"grounding_coef": 1.0, "lstm_hidden_size": 16},
        )  # fmt: skip
        model.learn(32 * 4 * 12)
        batch = model.rollout_buffer.to_sequence_batch()
        with th.no_grad():
            memory, _ = model.policy._window_memories(
                batch.observations, batch.initial_state, batch.layout
            )
            told = model.policy.grounding_net(memory).sign()
        assert (told == model.policy._told(batch.observations)).float().mean() > 0.95

    def test_without_it_nothing_is_logged_of_it(self):
        model = make_model()
        model.learn(WINDOW * 3)
        assert "train/loss" in model.logger.name_to_value
        assert "train/auxiliary_loss" not in model.logger.name_to_value

    def test_its_weight_and_layer_come_back_from_a_file(self, tmp_path):
        model = make_model(policy_kwargs={"grounding_coef": 0.5})
        model.learn(WINDOW * 3)
        model.save(tmp_path / "model")
        loaded = RecurrentPPO.load(tmp_path / "model").policy
        assert loaded.grounding_coef == 0.5
        assert th.equal(loaded.grounding_net.weight, model.policy.grounding_net.weight)
        model.policy.save(tmp_path / "policy")
        assert AsymmetricLstmPolicy.load(tmp_path / "policy").grounding_coef == 0.5

    def test_is_of_the_windows_evaluated_last_also_without_a_gradient(self):
        policy = make_policy(grounding_coef=1.0)
        obs, actions, starts = windows()
        policy.evaluate_sequences(obs, actions, None, starts)
        with th.no_grad():
            policy.evaluate_sequences(other_state(obs), actions, None, starts)
            last = policy.auxiliary_loss()
            policy.evaluate_sequences(obs, actions, None, starts)
            assert policy.auxiliary_loss() != last
        assert not last.requires_grad

    def test_a_policy_that_has_just_evaluated_windows_can_be_copied(self):
        policy = make_policy(grounding_coef=1.0)
        obs, actions, starts = windows()
        policy.evaluate_sequences(obs, actions, None, starts)
        copied = copy.deepcopy(policy)
        with th.no_grad():
            expected = policy.evaluate_sequences(obs, actions, None, starts)
            for one, other in zip(
                copied.evaluate_sequences(obs, actions, None, starts), expected, strict=True
            ):
                assert th.equal(one, other)

    def test_a_subclass_that_evaluates_windows_its_own_way_is_told(self):
        class Own(AsymmetricLstmPolicy):
            def evaluate_actions(self, *args: Any) -> Any:
                return super().evaluate_actions(*args)

        env = fixed_length_envs(5, observation_space=SPACE)
        kwargs = {"grounding_coef": 0.5, "lstm_hidden_size": 8}
        model = RecurrentPPO(Own, env, n_steps=8, batch_size=8, policy_kwargs=kwargs)
        with pytest.raises(ValueError, match="must be 0 for a policy that .* as Own does, got 0.5"):
            model.learn(8)

    @pytest.mark.parametrize("coefficient", [-0.1, True, "1", float("nan"), float("inf"), None])
    def test_weights_that_are_none_are_refused(self, coefficient):
        with pytest.raises(ValueError, match="grounding_coef must be a number.*, got"):
            make_policy(grounding_coef=coefficient)

    def test_numpys_numbers_are_numbers(self):
        assert make_policy(grounding_coef=np.float32(0.5)).grounding_coef == 0.5

    @pytest.mark.parametrize("image", [IMAGE, spaces.Box(0, 1, (1, 36, 36), np.float32)])
    def test_images_are_not_to_be_told(self, image):
        space = spaces.Dict({"gyro": VECTOR, "map": image})
        with pytest.raises(ValueError, match=r"grounding_coef must be 0 where .* \['map'\] are"):
            make_policy(space, critic_only=["map"], grounding_coef=0.1)


class TestActingWithoutIt:
    @staticmethod
    def privileged(n_envs: int = 2) -> VecEnv:
        kwargs = {"expose_state": True}
        return VecPrivilegedInfo(
            make_vec_env("FlickeringCartPole-v0", n_envs, 0, env_kwargs=kwargs)
        )

    @staticmethod
    def plain(n_envs: int = 2) -> VecEnv:
        return make_vec_env("FlickeringCartPole-v0", n_envs, 3)

    @pytest.fixture
    def trained(self) -> RecurrentPPO:
        return make_model(env=self.privileged()).learn(WINDOW * 2)

    def test_evaluate_policy_gives_the_same_on_plain_and_privileged_environments(self, trained):
        results = []
        kwargs = {"expose_state": True}
        privileged = VecPrivilegedInfo(
            make_vec_env("FlickeringCartPole-v0", 2, 3, env_kwargs=kwargs)
        )
        for env in (self.plain(), privileged):
            results.append(
                evaluate_policy(trained, env, 6, return_episode_rewards=True, warn=False)
            )
        assert results[0] == results[1]

    def test_a_stateful_actor_acts_as_predict_does(self, trained):
        actor = StatefulActor(trained, deterministic=True)
        env = self.plain()
        obs, state, starts = env.reset(), None, np.ones(2, bool)
        for _ in range(20):
            actions, state = trained.predict(obs, state, starts, deterministic=True)
            assert np.array_equal(actor.act(obs, starts), actions)
            obs, _, starts, _ = env.step(actions)

    def test_one_observation_gets_one_action(self, trained):
        action, state = trained.predict(np.zeros(4, np.float32))
        assert action.shape == ()
        assert state[0].shape == (1, 1, 8)
        action, _ = trained.predict({"observation": np.zeros(4, np.float32)})
        assert action.shape == ()

    def test_an_image_may_come_with_its_channels_last(self):
        space = spaces.Dict({"camera": IMAGE, "state": STATE})
        model = make_model(space=space)
        image = np.random.default_rng(0).integers(0, 255, (2, 36, 36, 1)).astype(np.uint8)
        given = (
            model.predict(image, deterministic=True),
            model.predict({"camera": image.transpose(0, 3, 1, 2)}, deterministic=True),
        )
        np.testing.assert_equal(*given)

    def test_a_saved_model_acts_at_once_and_goes_on_where_the_critic_sees(self, trained, tmp_path):
        trained.save(tmp_path / "model")
        obs = self.plain().reset()
        loaded = RecurrentPPO.load(tmp_path / "model")
        np.testing.assert_equal(
            loaded.predict(obs, deterministic=True), trained.predict(obs, deterministic=True)
        )
        again = RecurrentPPO.load(tmp_path / "model", env=self.privileged(3))
        again.learn(WINDOW * 3, reset_num_timesteps=False)
        assert again.num_timesteps == WINDOW * 5

    def test_going_on_in_a_plain_environment_is_refused_with_the_remedy(self, trained, tmp_path):
        trained.save(tmp_path / "model")
        with pytest.raises(ValueError, match="put VecPrivilegedInfo around it to go on training"):
            RecurrentPPO.load(tmp_path / "model", env=self.plain())
        with (
            (tmp_path / "model.zip").open("rb") as file,
            pytest.raises(ValueError, match="Acting and evaluating need no env: load without one"),
        ):
            RecurrentPPO.load(file, env=self.plain())

    def test_other_models_are_not_told_of_it(self, tmp_path):
        model = RecurrentPPO("MlpLstmPolicy", fixed_length_envs(5), n_steps=8, batch_size=8)
        model.save(tmp_path / "model")
        with pytest.raises(ValueError, match="^Observation spaces do not match"):
            RecurrentPPO.load(tmp_path / "model", env=self.plain())

    def test_a_policy_saved_alone_can_be_loaded(self, trained, tmp_path):
        trained.policy.save(tmp_path / "policy")
        policy = AsymmetricLstmPolicy.load(tmp_path / "policy")
        assert policy.critic_only == ("state",)
        obs = self.plain().reset()
        np.testing.assert_equal(
            policy.predict(obs, deterministic=True), trained.predict(obs, deterministic=True)
        )

    @pytest.mark.parametrize(
        ("obs", "message"),
        [
            ({"state": np.zeros(2)}, r"the keys \['observation'\], with or without the critic's"),
            ({"observation": np.zeros(3), "gyro": np.zeros(3)}, r"got \['observation', 'gyro'\]"),
            ({}, r"got \[\]"),
        ],
    )
    def test_observations_with_other_keys_are_refused(self, obs, message):
        with pytest.raises(ValueError, match=message):
            make_model().predict(obs)

    def test_a_plain_array_for_an_actor_with_several_keys_is_refused(self):
        space = spaces.Dict({"camera": VECTOR, "gyro": VECTOR, "state": STATE})
        with pytest.raises(ValueError, match=r"the keys \['camera', 'gyro'\].* got ndarray"):
            make_model(space=space).predict(np.zeros(3, np.float32))


class TestDeterminism:
    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_the_same_seed_gives_the_same_weights_and_another_seed_others(self, arrangement):
        vectors = [
            make_model(policy_kwargs=ARRANGEMENTS[arrangement], seed=seed)
            .learn(WINDOW * 3)
            .policy.parameters_to_vector()
            for seed in (1, 1, 2)
        ]
        assert np.array_equal(vectors[0], vectors[1])
        assert not np.array_equal(vectors[0], vectors[2])


class TestInitialisation:
    def test_the_actors_first_weights_are_orthogonal_and_learning_changes_all(self):
        model = make_model(policy_kwargs=ARRANGEMENTS["separate"])
        block = model.policy.lstm_critic.weight_hh_l0[:8]
        th.testing.assert_close(block @ block.T, th.eye(8), atol=1e-5, rtol=0)
        before = {name: part.clone() for name, part in model.policy.named_parameters()}
        model.learn(WINDOW * 3)
        for name, part in model.policy.named_parameters():
            assert not th.equal(part, before[name]), name


class TestRefusals:
    @pytest.mark.parametrize(
        ("policy_kwargs", "message"),
        [
            ({"critic_only": ("map",)}, r"keys of critic_only, \['map'\], got \['observation', 's"),
            ({"critic_only": ("state", "observation")}, "must leave the actor a key to read"),
            ({"critic_only": "state"}, "critic_only must be keys, such as .* got 'state'"),
            ({"critic_only": ()}, "critic_only must be keys"),
            ({"share_features_extractor": True}, "share_features_extractor=True is refused"),
            ({"shared_lstm": True}, "exclude each other"),
        ],
    )
    def test_name_the_argument_and_the_remedy(self, policy_kwargs: dict, message: str):
        with pytest.raises(ValueError, match=message):
            make_model(policy_kwargs=policy_kwargs)

    def test_a_plain_environment_is_told_what_to_put_around_it(self):
        with pytest.raises(ValueError, match="put VecPrivilegedInfo around the environment"):
            make_model(env=make_vec_env("FlickeringCartPole-v0", 2))

    @pytest.mark.parametrize(
        ("policy", "policy_kwargs"),
        [
            ("MultiInputLstmPolicy", {}),
            ("MlpLstmPolicy", {}),
            ("AsymmetricLstmPolicy", {"critic_only": ("observation",)}),
        ],
    )
    def test_an_actor_that_would_see_the_critics_part_is_refused(self, policy, policy_kwargs):
        env = TestActingWithoutIt.privileged()
        with pytest.raises(ValueError, match=r"policy must hide from the actor .*\['state'\]: use"):
            RecurrentPPO(policy, env, policy_kwargs=policy_kwargs)

    def test_the_plain_policies_are_not_hidden_anything(self, tmp_path: Path):
        """Whoever trains another policy on all keys gets an actor that reads them all."""
        model = RecurrentPPO("MultiInputLstmPolicy", fixed_length_envs(5, observation_space=SPACE))
        with pytest.raises(ValueError, match=r"the keys \['observation', 'state'\], got \['obs"):
            model.predict({"observation": np.zeros(3, np.float32)})

    def test_there_is_no_such_policy_over_there(self):
        with pytest.raises(ValueError, match="got AsymmetricLstmPolicy"):
            to_sb3_contrib(make_model())

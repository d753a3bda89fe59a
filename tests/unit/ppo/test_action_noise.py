"""The noise behind actions belongs to the environment: nothing else has a say in it."""

from __future__ import annotations

import copy
import json
import math
import pickle
import random
import threading
import zipfile
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import VECTOR, FixedLengthEnv, sharpen
from maskable_envs import ChangingMaskEnv
from same_draws import drawn_by_hand
from scipy import stats
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    SquashedDiagGaussianDistribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.vec_env import DummyVecEnv
from users_changes import Sharper

import thrust_pomdp
from thrust_pomdp import MaskableRecurrentPPO, MlpLstmPolicy, RecurrentPPO, StatefulActor
from thrust_pomdp.ppo.action_noise import (
    ACTING,
    ActionNoise,
    drawing_from,
    present_noise,
    seed_sequence,
)
from thrust_pomdp.ppo.distributions import (
    DrawnBernoulliDistribution,
    DrawnMultiCategoricalDistribution,
    DrawnSquashedDiagGaussianDistribution,
    DrawnStateDependentNoiseDistribution,
    PlainCategoricalDistribution,
    PlainDiagGaussianDistribution,
    chosen,
    ours_for,
)
from thrust_pomdp.ppo.maskable import MaskableEvalCallback
from thrust_pomdp.ppo.resuming import resumed_seed
from thrust_pomdp.recurrent.compiled import load_kernels

SPACES = {
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(-1.0, 1.0, (2,), np.float32),
}
WINDOW = 32


class Given(ActionNoise):
    """Known numbers in place of random ones."""

    def __init__(self, numbers: Any) -> None:
        super().__init__(0, len(numbers))
        self.numbers = np.array(numbers, float)

    def uniforms(self, width: int, how: Any = None) -> Any:
        assert width == self.numbers.shape[1]
        return self.numbers if how is None else how(self.numbers)

    normals = matrices = uniforms


def drawn(distribution: Any, numbers: Any) -> th.Tensor:
    with drawing_from(Given(numbers)):
        return distribution.sample()


class TestActionsOfKnownNumbers:
    """By hand: where a uniform number falls, what a bit is, how far from the mean."""

    def test_of_a_choice(self):
        logits = th.tensor([[0.25, 0.5, 0.0, 0.25]] * 6).log()
        distribution = PlainCategoricalDistribution(4).proba_distribution(logits)
        numbers = [[0.0], [0.24], [0.26], [0.74], [0.76], [1 - 2**-53]]
        assert drawn(distribution, numbers).tolist() == [0, 0, 1, 1, 3, 3]

    def test_of_several_choices(self):
        logits = th.tensor([[0.5, 0.25, 0.25, 0.9, 0.1]] * 3).log()
        distribution = DrawnMultiCategoricalDistribution([3, 2]).proba_distribution(logits)
        actions = drawn(distribution, [[0.49, 0.91], [0.51, 0.89], [0.76, 0.0]])
        assert actions.tolist() == [[0, 1], [1, 0], [2, 0]]

    def test_of_bits(self):
        logits = th.tensor([[0.0, math.log(3.0)]] * 3)  # 1/2 and 3/4
        distribution = DrawnBernoulliDistribution(2).proba_distribution(logits)
        actions = drawn(distribution, [[0.49, 0.76], [0.51, 0.74], [0.0, 0.999]])
        assert actions.tolist() == [[1, 0], [0, 1], [1, 0]]

    def test_of_a_gaussian(self):
        mean, log_std = th.tensor([[1.0, -1.0]] * 2), th.tensor([2.0, 0.5]).log()
        distribution = PlainDiagGaussianDistribution(2).proba_distribution(mean, log_std)
        actions = drawn(distribution, [[0.0, 1.0], [-1.5, 2.0]])
        th.testing.assert_close(actions, th.tensor([[1.0, -0.5], [-2.0, 0.0]]))

    def test_of_a_squashed_gaussian(self):
        mean, log_std = th.tensor([[1.0, -1.0]]), th.tensor([2.0, 0.5]).log()
        distribution = DrawnSquashedDiagGaussianDistribution(2).proba_distribution(mean, log_std)
        actions = drawn(distribution, [[-0.25, 1.0]])
        th.testing.assert_close(actions, th.tensor([[math.tanh(0.5), math.tanh(-0.5)]]))
        # What SB3 computes of it is told of these actions.
        log_prob = distribution.log_prob(actions)
        th.testing.assert_close(log_prob, distribution.log_prob(actions, th.tensor([[0.5, -0.5]])))

    def test_of_exploration_matrices(self):
        distribution = DrawnStateDependentNoiseDistribution(2)
        _, log_std = distribution.proba_distribution_net(3, log_std_init=0.0)
        numbers = np.arange(24).reshape(4, 6) / 10
        with drawing_from(Given(numbers)):
            distribution.sample_weights(log_std + math.log(2.0), batch_size=4)
        matrices = th.tensor(numbers, dtype=th.float32).view(4, 3, 2) * 2
        th.testing.assert_close(distribution.exploration_matrices, matrices)
        latent = th.ones(4, 3)
        distribution.proba_distribution(th.zeros(4, 2), log_std, latent)
        th.testing.assert_close(distribution.sample(), matrices.sum(dim=1))
        th.testing.assert_close(distribution.exploration_mat, matrices[0])

    @pytest.mark.parametrize(("dtype", "step"), [(th.float32, 2**-24), (th.float64, 2**-53)])
    def test_what_has_no_probability_is_not_chosen_by_the_extreme_numbers(self, dtype, step):
        """Whatever the sum of the others is rounded to."""
        generator = th.Generator().manual_seed(0)
        logits = 3 * th.randn(20_000, 6, generator=generator)
        logits[:, [0, 2, 5]] = -th.inf
        probabilities = th.log_softmax(logits, dim=1).exp()
        for number in (0.0, 1 - step):
            actions = chosen(probabilities, th.full((20_000,), number, dtype=dtype))
            assert (probabilities.gather(1, actions[:, None]) > 0).all()

    def test_a_probability_that_single_precision_would_round_away_is_met(self):
        logits = th.tensor([[0.0, -20.0]])
        distribution = PlainCategoricalDistribution(2).proba_distribution(logits)
        p = math.exp(-20.0)
        assert drawn(distribution, [[1 - 2 * p]]).item() == 0
        assert drawn(distribution, [[1 - p / 2]]).item() == 1


class TestTheLaw:
    """Of the numbers, and of what is drawn by them; the seed is fixed."""

    N = 20_000

    def many(self, kind: str, width: int) -> np.ndarray:
        noise, rows = ActionNoise(11, n_envs=20), []
        for _ in range(self.N // 20):
            noise.begin()
            rows.append(getattr(noise, kind)(width).copy())
            noise.advance()
        return np.array(rows)  # [steps, envs, width]

    def test_of_uniform_numbers(self):
        numbers = self.many("uniforms", 2)
        assert ((numbers >= 0) & (numbers < 1)).all()
        assert stats.kstest(numbers.ravel(), "uniform").pvalue > 0.01

    def test_of_normal_numbers(self):
        numbers = self.many("normals", 2)
        assert stats.kstest(numbers.ravel(), "norm").pvalue > 0.01

    @pytest.mark.parametrize("kind", ["uniforms", "normals"])
    def test_neither_environments_nor_steps_nor_dimensions_know_of_one_another(self, kind):
        numbers = self.many(kind, 2)
        pairs = {
            "environments": (numbers[:, :-1], numbers[:, 1:]),
            "steps": (numbers[:-1], numbers[1:]),
            "blocks": (numbers[:-64], numbers[64:]),
            "dimensions": (numbers[..., 0], numbers[..., 1]),
        }
        for name, (one, other) in pairs.items():
            r = stats.pearsonr(one.ravel(), other.ravel())
            assert abs(r.statistic) * one.size**0.5 < 4, name

    def test_of_actions(self):
        probabilities = np.array([0.1, 0.6, 0.05, 0.25])
        numbers = self.many("uniforms", 1).ravel()
        rows = th.tensor(probabilities, dtype=th.float32).expand(self.N, 4)
        counts = chosen(rows, th.from_numpy(numbers)).bincount(minlength=4)
        assert stats.chisquare(counts, self.N * probabilities).pvalue > 0.01


class TestStreams:
    """A function of seed, environment and step, whatever was asked before."""

    @staticmethod
    def numbers(noise: ActionNoise, n_steps: int, kind: str = "uniforms", width: int = 2) -> Any:
        rows = []
        for _ in range(n_steps):
            noise.begin()
            rows.append(getattr(noise, kind)(width).copy())
            noise.advance()
        return np.array(rows)

    @pytest.mark.parametrize("kind", ["uniforms", "normals", "matrices"])
    def test_four_environments_are_two_and_two(self, kind):
        whole, first, second = (
            self.numbers(ActionNoise(5, n, first_env=first_env), 150, kind)
            for n, first_env in ((4, 0), (2, 0), (2, 2))
        )
        assert np.array_equal(whole, np.concatenate((first, second), axis=1))
        assert len(np.unique(whole)) == whole.size

    @pytest.mark.parametrize("kind", ["uniforms", "normals", "matrices"])
    @pytest.mark.parametrize("step", [0, 1, 63, 64, 100])
    def test_any_step_can_be_gone_on_from(self, step, kind):
        noise = ActionNoise(5, 3)
        expected = self.numbers(noise, 130, kind)
        other = ActionNoise(1, 3)
        self.numbers(other, 7, kind)
        other.set_state({"seed": 5, "first_env": 0, "step": step})
        assert np.array_equal(self.numbers(other, 130 - step, kind), expected[step:])
        assert other.get_state() == noise.get_state() == {"seed": 5, "first_env": 0, "step": 130}
        assert all(type(value) is int for value in other.get_state().values())

    def test_are_those_of_philox_at_a_place(self):
        """The definition: key of the seed, counter of block, environment and draw."""
        key = np.random.SeedSequence(5, spawn_key=(0x3C1D_90B7, 0)).generate_state(2, np.uint64)

        def at(*place: int) -> np.random.Generator:
            return np.random.Generator(np.random.Philox(key=key, counter=[0, *place]))

        noise = ActionNoise(5, 2, first_env=7)
        noise.step = 64 + 9
        noise.begin()
        for place, expected in ((7, 0), (8, 1)):
            block = at(1, place, 0).random((64, 3))
            assert np.array_equal(noise.uniforms(3)[expected], block[9])
            noise.begin()
        noise.uniforms(3)
        assert np.array_equal(noise.uniforms(3)[1], at(73, 8, 1).random(3))
        assert np.array_equal(noise.matrices(4)[1], at(73, 8, 2**32).standard_normal(4))

    def test_a_second_draw_of_a_step_is_another_one_and_disturbs_none(self):
        once, twice = ActionNoise(5, 2), ActionNoise(5, 2)
        met = set()
        for _ in range(70):
            for noise in (once, twice):
                noise.begin()
            first = once.uniforms(1)
            assert np.array_equal(first, twice.uniforms(1))
            met |= {*first.ravel(), *twice.uniforms(1).ravel(), *twice.uniforms(1).ravel()}
            once.advance()
            twice.advance()
        assert len(met) == 70 * 2 * 3

    def test_of_seeds_and_purposes_differ(self):
        rows = [
            self.numbers(ActionNoise(seed, 2, purpose=purpose), 3).tobytes()
            for seed in (0, 1, 2**32, 2**63 - 1)
            for purpose in (0, ACTING)
        ]
        assert len(set(rows)) == 8

    def test_more_environments_leave_the_others_alone(self):
        noise, more = ActionNoise(0, 2), ActionNoise(0, 2)
        for n_envs in (2, 5, 1, 3):
            more.n_envs = n_envs
            for one in (noise, more):
                one.begin()
            rows = min(2, n_envs)
            assert np.array_equal(noise.uniforms(1)[:rows], more.uniforms(1)[:rows])
            noise.advance()
            more.advance()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"seed": -1}, "seed must be .* got -1"),
            ({"seed": 2**63}, "seed must be below 2\\*\\*63"),
            ({"n_envs": 0}, "n_envs must be .* got 0"),
            ({"first_env": 1.5}, "first_env must be .* got 1.5"),
        ],
    )
    def test_arguments_that_cannot_be(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            ActionNoise(**{"seed": 0, "n_envs": 1, **arguments})

    @pytest.mark.parametrize("state", [None, {"seed": 0}, {"seed": 0, "first_env": 0, "step": -1}])
    def test_states_that_cannot_be(self, state):
        with pytest.raises(ValueError, match="must be"):
            ActionNoise(0, 1).set_state(state)

    def test_a_block_is_converted_once(self):
        noise, plain, n_calls = ActionNoise(5, 2), ActionNoise(5, 2), []

        def how(numbers: np.ndarray) -> th.Tensor:
            n_calls.append(len(numbers))
            return th.from_numpy(numbers).float()

        for _ in range(130):
            for one in (noise, plain):
                one.begin()
            for _ in range(2):  # the second draw of a step comes alone
                converted, numbers = noise.normals(3, how), plain.normals(3)
                assert np.array_equal(converted, numbers.astype(np.float32))
            noise.advance()
            plain.advance()
        assert sorted(n_calls) == [1] * 130 + [64] * 3

    def test_can_be_copied(self):
        noise = ActionNoise(3, 2)
        self.numbers(noise, 5)
        twin = copy.deepcopy(noise)
        assert np.array_equal(self.numbers(noise, 80), self.numbers(twin, 80))


# ---------------------------------------------------------------------------------- trainings


class Idle(BaseCallback):
    def _on_step(self) -> bool:
        return True


class DrawsFromEverything(BaseCallback):
    """What a callback of a stranger may draw, at every step and between rollouts."""

    def draw(self) -> None:
        random.random()
        np.random.random(3)
        th.rand(5)
        th.randint(7, (2,))
        policy, env = self.model.policy, self.training_env
        obs, _ = policy.obs_to_tensor(self.model._last_obs)
        starts = th.zeros(env.num_envs)
        with th.no_grad():
            policy.forward(obs, policy.zero_states(env.num_envs), starts)
            policy.get_distribution(obs, policy.zero_states(env.num_envs).pi, starts)[0].sample()
        self.model.predict(self.model._last_obs, policy_state(policy, env.num_envs), starts.numpy())
        self.model.action_space.sample()

    def _on_step(self) -> bool:
        self.draw()
        return True

    def _on_rollout_end(self) -> None:
        self.draw()


class SeedsEverything(BaseCallback):
    def _on_step(self) -> bool:
        th.manual_seed(self.n_calls)
        np.random.seed(self.n_calls)
        random.seed(self.n_calls)
        return True


def policy_state(policy: Any, n_envs: int) -> Any:
    parts = tuple(part.numpy() for part in policy.zero_states(n_envs).pi)
    return parts if len(parts) > 1 else parts[0]


class Apart(FixedLengthEnv):
    """Its observations come of a space of its own, so that no other environment draws from it."""

    def __init__(self, length: int, action_space: Any) -> None:
        super().__init__(length, copy.deepcopy(VECTOR), copy.deepcopy(action_space))


def plain_envs(action: str, n_envs: int = 3) -> Any:
    return DummyVecEnv([lambda n=n: Apart(5 + n, SPACES[action]) for n in range(n_envs)])


def masked_envs(action: str) -> Any:
    space = SPACES[action]
    return DummyVecEnv([lambda n=n: ChangingMaskEnv(n, copy.deepcopy(space)) for n in (5, 6, 7)])


def flickering_envs() -> Any:
    return thrust_pomdp.make_vec_env("FlickeringCartPole-v0", 3, seed=0)


def asymmetric_envs() -> Any:
    venv = thrust_pomdp.make_vec_env(
        "FlickeringCartPole-v0", 3, seed=0, env_kwargs={"expose_state": True}
    )
    return thrust_pomdp.VecPrivilegedInfo(venv)


class Case:
    def __init__(self, make_env: Callable[[], Any], cls: Any = RecurrentPPO, **kwargs: Any) -> None:
        self.make_env, self.cls, self.kwargs = make_env, cls, kwargs

    def model(self, **more: Any) -> Any:
        kwargs = {**self.kwargs, **more}
        policy_kwargs = {"lstm_hidden_size": 8, **kwargs.pop("policy_kwargs", {})}
        model = self.cls(
            kwargs.pop("policy", "MlpLstmPolicy"), self.make_env(), n_steps=WINDOW, batch_size=32,
            n_epochs=2, policy_kwargs=policy_kwargs, **{"seed": 3, "learning_rate": 1e-2, **kwargs},
        )  # fmt: skip
        sharpen(model) if not kwargs.get("use_sde") else None
        return model


class Squashing(MlpLstmPolicy):
    """Of SB3's distributions the one that no argument asks for."""

    def _build(self, lr_schedule: Any) -> None:
        self.action_dist = SquashedDiagGaussianDistribution(2)
        super()._build(lr_schedule)


CASES = {
    "squashed Gaussian": Case(lambda: plain_envs("Box"), policy=Squashing),
    **{action: Case(lambda action=action: plain_envs(action)) for action in SPACES},
    "one environment": Case(lambda: plain_envs("Discrete", 1)),
    "native vector": Case(flickering_envs),
    "native vector, 256 units": Case(flickering_envs, policy_kwargs={"lstm_hidden_size": 256}),
    "GRU": Case(flickering_envs, policy_kwargs={"rnn_class": th.nn.GRU}),
    "gSDE": Case(lambda: plain_envs("Box"), use_sde=True),
    "gSDE, drawn anew": Case(lambda: plain_envs("Box"), use_sde=True, sde_sample_freq=4),
    "gSDE, squashed": Case(
        lambda: plain_envs("Box"), use_sde=True, policy_kwargs={"squash_output": True}
    ),
    "gSDE, one environment": Case(lambda: plain_envs("Box", 1), use_sde=True),
    "asymmetric": Case(asymmetric_envs, policy="AsymmetricLstmPolicy"),
    "dropout": Case(
        lambda: plain_envs("Discrete"),
        policy_kwargs={"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.3}},
    ),
    **{
        f"masked {action}": Case(lambda action=action: masked_envs(action), MaskableRecurrentPPO)
        for action in ("Discrete", "MultiDiscrete", "MultiBinary")
    },
}


class Outcome:
    """All of the last window, the weights, and where the streams are."""

    def __init__(self, model: Any) -> None:
        buffer = model.rollout_buffer
        names = ("actions", "rewards", "values", "log_probs", "advantages")
        self.parts = [getattr(buffer, name).copy() for name in names]
        self.parts += [p.detach().numpy() for p in model.policy.parameters()]
        self.noise = model._action_noise.get_state()

    def __eq__(self, other: Any) -> bool:
        same = [np.array_equal(a, b) for a, b in zip(self.parts, other.parts, strict=True)]
        return all(same) and self.noise == other.noise

    __hash__ = None  # type: ignore[assignment]


def trained(case: Case, callback: Any = None, n_windows: int = 2, **kwargs: Any) -> Outcome:
    model = case.model(**kwargs)
    model.learn(n_windows * WINDOW * model.n_envs, callback=callback)
    return Outcome(model)


# Two layers with dropout, and a maskable model asked without masks, are told of: on purpose here.
@pytest.mark.filterwarnings("ignore:.*dropout.*:UserWarning")
@pytest.mark.filterwarnings("ignore:the first pass of training will differ:UserWarning")
@pytest.mark.filterwarnings("ignore:predict\\(\\) was called without action_masks:UserWarning")
@pytest.mark.parametrize("name", CASES)
class TestTrainingsAreEqualToTheLastBit:
    def test_whatever_callbacks_do(self, name):
        case = CASES[name]
        plain = trained(case)
        for callback in (Idle(), DrawsFromEverything(), SeedsEverything()):
            assert plain == trained(case, callback)

    def test_whatever_is_evaluated(self, name, tmp_path):
        case = CASES[name]
        kind = EvalCallback
        if case.cls is MaskableRecurrentPPO:
            kind = MaskableEvalCallback
        plain = trained(case)
        for deterministic in (True, False):
            callback = kind(
                case.make_env(), eval_freq=19, n_eval_episodes=2, verbose=0, warn=False,
                deterministic=deterministic,
            )  # fmt: skip
            assert plain == trained(case, callback)

    def test_and_another_seed_gives_others(self, name):
        assert trained(CASES[name], n_windows=1) != trained(CASES[name], n_windows=1, seed=4)


class TestActionsAreThoseOfTheStreams:
    """SB3's own distributions, told the numbers of (seed, environment, step), choose the same."""

    THEIRS = {
        "Discrete": lambda: CategoricalDistribution(3),
        "MultiDiscrete": lambda: MultiCategoricalDistribution([3, 2]),
        "MultiBinary": lambda: BernoulliDistribution(3),
        "Box": lambda: DiagGaussianDistribution(2),
    }

    @pytest.mark.parametrize("alone", [True, False])
    @pytest.mark.parametrize("action", SPACES)
    def test_in_collecting(self, action, alone):
        model = CASES[action].model(learning_rate=0.0)
        model.learn(2 * WINDOW * 3, callback=None if alone else Idle())
        buffer, noise = model.rollout_buffer, ActionNoise(3, 3)
        noise.step = WINDOW  # the second window's first
        batch = buffer.to_sequence_batch()
        layout = batch.layout
        with th.no_grad():
            model.policy.eval()
            found, _ = model.policy._window_heads(batch.observations, batch.initial_state, layout)
        theirs, inner = self.THEIRS[action](), found.distribution
        for step in range(WINDOW):
            rows = slice(step, None, WINDOW)
            if action == "MultiDiscrete":
                logits = th.cat([one.logits[rows] for one in inner], dim=1)
                theirs.proba_distribution(logits)
            elif action == "Box":
                theirs.proba_distribution(inner.loc[rows], model.policy.log_std)
            else:
                theirs.proba_distribution(inner.logits[rows])
            noise.begin()
            expected = drawn_by_hand(theirs, noise).detach().numpy().reshape(3, -1)
            noise.advance()
            np.testing.assert_allclose(
                buffer.actions[step].reshape(3, -1), expected, rtol=0, atol=1e-5
            )
        assert model._action_noise.step == 2 * WINDOW

    @pytest.mark.parametrize("freq", [-1, 5])
    def test_of_exploration_matrices(self, freq):
        model = CASES["gSDE"].model(sde_sample_freq=freq)
        met = []

        class Look(BaseCallback):
            def _on_step(self) -> bool:
                met.append(self.model.policy.action_dist.exploration_matrices.detach().clone())
                return True

        model.learn(2 * WINDOW * 3, callback=Look())
        log_std, noise = model.policy.log_std, ActionNoise(3, 3)
        for step, matrices in enumerate(met):
            in_window = step % WINDOW
            noise.step = step - (in_window if freq < 0 else in_window % freq)
            numbers = th.from_numpy(noise.matrices(log_std.numel())).float()
            ratio = matrices.flatten(1) / numbers  # the spread, which is learnt
            th.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-4, atol=1e-4)

    def test_of_environments_that_are_divided(self):
        """Two models of two environments each, told their places, act as one model of four."""

        def actions(lengths: list[int], first_env: int) -> np.ndarray:
            env = DummyVecEnv([lambda n=n: Apart(n, SPACES["Box"]) for n in lengths])
            model = Case(lambda: env, learning_rate=0.0).model()
            env.seed(3 + first_env)
            state = {**model._action_noise.get_state(), "first_env": first_env}
            model._action_noise.set_state(state)
            model.learn(WINDOW * len(lengths))
            return model.rollout_buffer.actions

        both = np.concatenate((actions([5, 6], 0), actions([7, 8], 2)), axis=1)
        np.testing.assert_allclose(actions([5, 6, 7, 8], 0), both, rtol=0, atol=1e-5)


class TestTorchsGenerator:
    """It has no say in actions of ours, and all of it where a distribution is a user's."""

    def test_seeding_it_steers_nothing(self):
        actions = []
        for seed in (1, 2):
            model = CASES["Discrete"].model(learning_rate=0.0)
            th.manual_seed(seed)
            model.learn(WINDOW * 3)
            actions.append(model.rollout_buffer.actions.copy())
        assert np.array_equal(*actions)

    def test_is_not_drawn_from(self):
        for name in ("Discrete", "MultiDiscrete", "MultiBinary", "Box", "gSDE"):
            model = CASES[name].model()
            before = th.get_rng_state()
            model.learn(WINDOW * 3)
            model.predict(model._last_obs)
            assert th.equal(before, th.get_rng_state()), name

    @staticmethod
    def replaced(distribution: Any) -> Any:
        plain = distribution.sample
        distribution.sample = lambda: plain()
        return distribution

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Sharper(3),
            lambda: CategoricalDistribution(3),
            lambda: TestTorchsGenerator.replaced(PlainCategoricalDistribution(3)),
        ],
        ids=["a subclass", "SB3's", "replaced on the object"],
    )
    def test_steers_distributions_of_a_users_own(self, make):
        actions = []
        for seed in (1, 2, 1):
            model = CASES["Discrete"].model(learning_rate=0.0)
            model.policy.action_dist = make()
            th.manual_seed(seed)
            model.learn(WINDOW * 3)
            actions.append(model.rollout_buffer.actions.copy())
        assert np.array_equal(actions[0], actions[2])
        assert not np.array_equal(actions[0], actions[1])

    def test_steers_a_forward_that_its_user_compiled(self):
        """A graph must not hold the numbers of the step in which it was made."""
        actions = []
        for seed in (1, 2, 1):
            th.compiler.reset()
            model = CASES["Box"].model(learning_rate=0.0)
            model.policy.forward = th.compile(model.policy.forward, backend="eager")
            th.manual_seed(seed)
            model.learn(WINDOW * 3)
            actions.append(model.rollout_buffer.actions.copy())
        assert np.array_equal(actions[0], actions[2])
        assert not np.isclose(actions[0], actions[1]).any()
        assert len(np.unique(actions[0])) == actions[0].size

    def test_a_distribution_of_ours_that_a_policy_makes_itself_draws_by_the_environments(self):
        class MakesItsOwn(MlpLstmPolicy):
            def _get_action_dist_from_latent(self, latent_pi):
                distribution = PlainCategoricalDistribution(3)
                return distribution.proba_distribution(self.action_net(latent_pi))

        own = Case(lambda: plain_envs("Discrete"), policy=MakesItsOwn)
        assert trained(own) == trained(own, SeedsEverything())

    def test_a_policy_that_draws_twice_draws_two_things(self):
        class DrawsTwice(MlpLstmPolicy):
            def forward(self, *args, **kwargs):
                _, values, _, states = super().forward(*args, **kwargs)
                distribution = self.action_dist
                other = distribution.get_actions()
                return other, values, distribution.log_prob(other), states

        case, plain = (
            Case(lambda: plain_envs("Box"), learning_rate=0.0, **more)
            for more in ({"policy": DrawsTwice}, {})
        )
        twice = trained(case, n_windows=1)
        assert twice == trained(case, DrawsFromEverything(), n_windows=1)
        once = trained(plain, n_windows=1)
        assert not np.isclose(twice.parts[0], once.parts[0]).any()

    def test_steers_what_is_drawn_outside_of_collecting_and_predict(self):
        distribution = PlainCategoricalDistribution(3).proba_distribution(th.zeros(40, 3))
        draws = []
        for seed in (1, 2, 1):
            th.manual_seed(seed)
            draws.append(distribution.sample().tolist())
        assert draws[0] == draws[2] != draws[1]

    def test_nobody_elses_rows_are_drawn_by_the_environments(self):
        """Of 6 rows it is not known to which of 3 environments they belong."""
        with drawing_from(ActionNoise(0, 3)):
            assert present_noise(3) is not None
            assert present_noise(6) is None
        assert present_noise(3) is None


class TestDistributions:
    """SB3's are replaced by ours in a policy, and nobody else's."""

    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [
            (CategoricalDistribution(3), PlainCategoricalDistribution),
            (DiagGaussianDistribution(3), PlainDiagGaussianDistribution),
            (SquashedDiagGaussianDistribution(3), DrawnSquashedDiagGaussianDistribution),
            (MultiCategoricalDistribution([3, 2]), DrawnMultiCategoricalDistribution),
            (BernoulliDistribution(3), DrawnBernoulliDistribution),
            (
                StateDependentNoiseDistribution(3, squash_output=True),
                DrawnStateDependentNoiseDistribution,
            ),
        ],
        ids=lambda given: type(given).__name__,
    )
    def test_of_sb3(self, theirs, ours):
        found = ours_for(theirs)
        assert type(found) is ours
        assert vars(found) == vars(theirs)
        assert ours_for(found) is found

    def test_of_others(self):
        class Own(CategoricalDistribution):
            pass

        changed = CategoricalDistribution(2)
        changed.sample = lambda: th.zeros(1)
        for other in (Own(2), changed):
            assert ours_for(other) is other

    def test_weights_are_what_they_were(self):
        """The first weights are drawn of torch's generator, as SB3 draws them, gSDE's too."""
        for name, kwargs in (("Box", {"use_sde": True}), ("Discrete", {}), ("MultiBinary", {})):
            th.manual_seed(3)
            policy = MlpLstmPolicy(
                spaces.Box(-1, 1, (3,), np.float32), SPACES[name], lambda _: 1e-3, **kwargs
            )
            after = th.rand(3)
            th.manual_seed(3)
            if kwargs:
                StateDependentNoiseDistribution(2).proba_distribution_net(64)
            model = CASES["gSDE" if kwargs else name].cls(
                "MlpLstmPolicy", plain_envs(name), seed=3, n_steps=8, batch_size=8, **kwargs
            )
            for one, other in zip(policy.parameters(), model.policy.parameters(), strict=True):
                assert th.equal(one, other), name
            assert after.shape == (3,)


# ------------------------------------------------------------------------------------- acting


class TestPredict:
    """What is asked from outside has random numbers of its own."""

    OBS = np.zeros((4, 3), np.float32)

    def actions(self, model: Any, n: int = 30, obs: Any = OBS) -> list[Any]:
        starts = np.ones(len(obs), bool)
        return [model.predict(obs, None, starts)[0].tolist() for _ in range(n)]

    def model(self, **kwargs: Any) -> RecurrentPPO:
        return RecurrentPPO(
            "MlpLstmPolicy", plain_envs("Discrete"), n_steps=8, batch_size=8,
            policy_kwargs={"lstm_hidden_size": 8}, **{"seed": 3, **kwargs},
        )  # fmt: skip

    def test_is_seeded_by_the_models_seed(self):
        first, second = self.model(), self.model()
        th.manual_seed(1)
        actions = self.actions(first)
        th.manual_seed(2)
        assert actions == self.actions(second) != self.actions(second)
        assert actions != self.actions(self.model(seed=4))

    def test_set_random_seed_starts_it_anew(self):
        model = self.model()
        first = self.actions(model)
        model.set_random_seed(3)
        assert self.actions(model) == first
        model.set_random_seed(5)
        assert self.actions(model) != first
        model.policy.seed_actions(3)
        assert self.actions(model) == first
        model.set_random_seed(None)
        assert self.actions(model) != first

    def test_stateful_actors_draw_from_it(self):
        model = self.model()
        expected = self.actions(model)
        model.set_random_seed(3)
        actor, met = StatefulActor(model), []
        for _ in range(30):
            actor.reset()
            met.append(actor.act(self.OBS).tolist())
        assert met == expected

    def test_each_observation_has_a_stream_of_its_own(self):
        model = self.model()
        four = self.actions(model)
        model.set_random_seed(3)
        assert self.actions(model, obs=self.OBS[:2]) == [row[:2] for row in four]
        assert len({tuple(column) for column in zip(*four, strict=True)}) == 4

    def test_the_most_likely_action_takes_no_step(self):
        model, other = self.model(), self.model()
        model.predict(self.OBS, None, np.ones(4, bool), deterministic=True)
        assert self.actions(model) == self.actions(other)

    def test_has_no_say_in_collecting_nor_collecting_in_it(self):
        model, other = self.model(learning_rate=0.0), self.model(learning_rate=0.0)
        other.learn(8 * 3)
        assert self.actions(model) == self.actions(other)
        model.learn(8 * 3)
        assert np.array_equal(model.rollout_buffer.actions, other.rollout_buffer.actions)

    def test_a_policy_of_its_own_follows_torchs_generator_when_first_asked(self):
        met = []
        for seed in (1, 2, 1):
            policy = MlpLstmPolicy(
                spaces.Box(-1, 1, (3,), np.float32), SPACES["Discrete"], lambda _: 1e-3
            )
            with th.no_grad():
                policy.action_net.weight.zero_()
            th.manual_seed(seed)
            met.append(self.actions(policy))
        assert met[0] == met[2] != met[1]

    def test_box_actions_are_mean_and_spread_by_it(self):
        model = CASES["Box"].model()
        with th.no_grad():
            model.policy.log_std.fill_(-2.0)
        starts = np.ones(4, bool)
        mean, _ = model.predict(self.OBS, None, starts, deterministic=True)
        actions, _ = model.predict(self.OBS, None, starts)
        numbers = ActionNoise(3, 4, purpose=ACTING).normals(2)
        expected = np.clip(mean + math.exp(-2.0) * numbers, -1, 1)
        np.testing.assert_allclose(actions, expected, rtol=0, atol=1e-6)

    def test_a_policy_that_was_asked_can_be_copied_and_pickled(self):
        model = CASES["Box"].model()
        self.actions(model, 3)
        twins = [copy.deepcopy(model.policy), pickle.loads(pickle.dumps(model.policy))]
        expected = self.actions(model)
        for twin in twins:
            assert self.actions(twin) == expected

    def test_torch_may_be_in_inference_mode_when_numbers_are_made(self):
        model = CASES["Box"].model()
        model.policy.seed_actions(0)
        with th.inference_mode():
            self.actions(model, 1)
        obs = th.zeros(4, 3)
        with model.policy.sampling(4):
            actions, *_ = model.policy.forward(obs, model.policy.zero_states(4), th.ones(4))
        actions.sum().backward()
        assert model.policy.log_std.grad.abs().sum() > 0


class TestWithoutASeed:
    """Fresh numbers, of torch's generator, once and after the weights are made."""

    @staticmethod
    def outcome(seed: int | None, callback: Any = None) -> Outcome:
        if seed is not None:
            th.manual_seed(seed)
        env = plain_envs("Discrete")
        env.seed(0)
        model = RecurrentPPO(
            "MlpLstmPolicy", env, n_steps=WINDOW, batch_size=32, n_epochs=1,
            policy_kwargs={"lstm_hidden_size": 8},
        )  # fmt: skip
        th.manual_seed(99)
        model.learn(2 * WINDOW * 3, callback=callback)
        return Outcome(model)

    def test_a_program_that_seeds_torch_before_is_repeatable(self):
        assert self.outcome(1) == self.outcome(1, DrawsFromEverything())
        assert self.outcome(1) != self.outcome(2)

    def test_others_are_not(self):
        outcomes = []
        for _ in range(2):
            th.seed()
            outcomes.append(self.outcome(None))
        assert outcomes[0] != outcomes[1]


class TestGoingOn:
    def test_learning_again_goes_on(self):
        case, whole = CASES["Box"], []
        model = case.model(learning_rate=0.0)

        class Keep(BaseCallback):
            def _on_step(self) -> bool:
                whole.append(self.locals["actions"].copy())
                return True

        model.learn(2 * WINDOW * 3, callback=Keep())
        once, whole[:] = np.array(whole), []
        model = case.model(learning_rate=0.0)
        for _ in range(2):
            model.learn(WINDOW * 3, callback=Keep(), reset_num_timesteps=False)
        assert np.array_equal(once[:WINDOW], whole[:WINDOW])
        assert model._action_noise.step == 2 * WINDOW
        assert not np.isclose(whole[0], whole[WINDOW]).any()

    def test_a_window_that_is_broken_off_counts_its_steps(self):
        class Stops(BaseCallback):
            def _on_step(self) -> bool:
                return self.n_calls < 7

        model = CASES["Discrete"].model()
        model.learn(WINDOW * 3, callback=Stops())
        assert model._action_noise.step == 7

    def test_set_random_seed_starts_anew_and_keeps_its_place_among_processes(self):
        model = CASES["Discrete"].model()
        model._action_noise.set_state({"seed": 3, "first_env": 6, "step": 0})
        model.learn(WINDOW * 3)
        model.set_random_seed(8)
        assert model._action_noise.get_state() == {"seed": 8, "first_env": 6, "step": 0}
        model.set_random_seed(None)
        assert model._action_noise.get_state()["seed"] == 8

    @pytest.mark.parametrize("seed", [3, None])
    def test_a_loaded_model_goes_on_from_its_step(self, seed, tmp_path):
        model = CASES["Box"].model(learning_rate=0.0, seed=seed)
        model.learn(WINDOW * 3)
        model.save(tmp_path / "model")
        assert "_noise_state" not in vars(model)
        state = model._action_noise.get_state()
        assert state["step"] == WINDOW
        loaded = RecurrentPPO.load(tmp_path / "model", env=plain_envs("Box"))
        assert loaded._action_noise.get_state() == state
        assert "_noise_state" not in vars(loaded)
        model._action_noise.begin()
        numbers = [m._action_noise.normals(2).tolist() for m in (model, loaded)]
        assert numbers[0] == numbers[1]

    def test_the_file_has_plain_numbers(self, tmp_path):
        model = CASES["Discrete"].model()
        model.learn(WINDOW * 3)
        model.save(tmp_path / "model")
        with zipfile.ZipFile(tmp_path / "model.zip") as archive:
            data = json.loads(archive.read("data"))
        assert data["_noise_state"] == {"seed": 3, "first_env": 0, "step": WINDOW}
        assert "_action_noise" not in data

    def test_a_seed_given_at_loading_wins(self, tmp_path):
        model = CASES["Discrete"].model()
        model.learn(WINDOW * 3)
        model.save(tmp_path / "model")
        first, second = (RecurrentPPO.load(tmp_path / "model", seed=5) for _ in range(2))
        assert first._action_noise.get_state() == second._action_noise.get_state()
        assert first._action_noise.step == 0
        assert first._action_noise.seed not in (3, 5)

    def test_a_file_without_numbers_is_seeded_as_before(self, tmp_path):
        """As of 0.1.0: of its seed and its number of steps."""
        model = CASES["Discrete"].model()
        model.learn(WINDOW * 3)
        model.save(tmp_path / "model", exclude=["_noise_state"])
        loaded = RecurrentPPO.load(tmp_path / "model")
        assert loaded._action_noise.step == 0
        assert loaded._action_noise.seed == resumed_seed(3, WINDOW * 3)

    def test_other_numbers_of_environments_go_on_too(self, tmp_path):
        model = CASES["Discrete"].model()
        model.learn(WINDOW * 3)
        model.save(tmp_path / "model")
        loaded = RecurrentPPO.load(tmp_path / "model", env=plain_envs("Discrete", 5))
        assert loaded._action_noise.n_envs == 5
        for one in (loaded, model):
            one._action_noise.begin()
        assert np.array_equal(loaded._action_noise.uniforms(1)[:3], model._action_noise.uniforms(1))
        loaded.learn(WINDOW * 5)


class TestUpdates:
    """What torch draws during an update is seeded, and its generator left as it was."""

    def test_another_update_has_other_numbers(self):
        keys = [seed_sequence(3, 2, n).generate_state(1)[0] for n in range(50)]
        assert len(set(keys)) == 50

    def test_dropout_differs_from_update_to_update(self):
        met = []

        class Noisy(MlpLstmPolicy):
            def auxiliary_loss(self):
                met.append(th.rand(1).item())
                return None

        model = Case(lambda: plain_envs("Discrete"), policy=Noisy).model()
        before = th.get_rng_state()
        model.learn(2 * WINDOW * 3)
        assert th.equal(before, th.get_rng_state())
        assert len(set(met)) == len(met) == 2 * 2 * 3


def test_a_large_layer_is_the_same_one_whoever_watches(monkeypatch):
    case, compiled = CASES["native vector"], load_kernels() is not None
    as_usual = trained(case)
    monkeypatch.setattr("thrust_pomdp.recurrent.large_steps.LARGE", 10)
    alone = trained(case)
    assert alone == trained(case, Idle())
    said = case.model().fast_paths()["compiled memory, actor, step"]
    assert said == "it has 448 weights, dense products take less time"
    # By rounding: else nothing was compared.
    assert (alone != as_usual) == (compiled or th.backends.mkldnn.is_available())


def test_a_thread_that_acts_with_the_model_meanwhile_disturbs_nothing():
    case = CASES["native vector"]
    model, stop, n_acts = case.model(), threading.Event(), []

    def act() -> None:
        policy = copy.deepcopy(model.policy)
        while not stop.is_set():
            n_acts.append(policy.predict(np.zeros((3, 4), np.float32), None, np.ones(3)))

    thread = threading.Thread(target=act)
    thread.start()
    model.learn(2 * WINDOW * 3)
    stop.set()
    thread.join()
    assert n_acts
    assert Outcome(model) == trained(case)


def test_an_environment_that_acts_with_the_model_disturbs_nothing():
    """Self-play: the environment asks the policy itself what an opponent does."""

    class SelfPlay(gym.Wrapper):
        model: Any = None

        def step(self, action):
            obs, *rest = self.env.step(action)
            if self.model is not None:
                self.model.predict(obs, None, np.ones(1, bool))
                th.rand(3)
            return obs, *rest

    def actions(is_played: bool) -> np.ndarray:
        envs = [SelfPlay(gym.make("thrust_pomdp:FlickeringCartPole-v0")) for _ in range(2)]
        venv = DummyVecEnv([lambda env=env: env for env in envs])
        model = Case(lambda: venv).model()
        if is_played:
            for env in envs:
                env.model = model
        model.learn(2 * WINDOW * 2)
        return model.rollout_buffer.actions.copy()

    assert np.array_equal(actions(False), actions(True))

"""A run of a comparison: its streams, what it gives, and how it is told in tables and pictures."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import random
import time

import arms_of_users
import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium.envs.registration import EnvSpec
from instant_engine import spec
from maskable_envs import ChangingMaskEnv
from stable_baselines3.common.vec_env import DummyVecEnv, unwrap_vec_normalize

from thrust_pomdp import RecurrentPPO, VecNormalizeVisible, make_vec_env
from thrust_pomdp.deploy.observation_layers import load_normalizer
from thrust_pomdp.experiment import playback, report, saved_models, training, vec_envs
from thrust_pomdp.experiment.arms import ARMS, find_arm
from thrust_pomdp.experiment.callbacks import without_side_effects
from thrust_pomdp.experiment.recipes import recipe_for
from thrust_pomdp.experiment.runner import save_result
from thrust_pomdp.experiment.runs import curve_text
from thrust_pomdp.experiment.stopwatch import Stopwatch
from thrust_pomdp.experiment.training import (
    RunResult,
    RunSpec,
    Training,
    evaluate,
    make_model,
    make_training_env,
    run,
)
from thrust_pomdp.experiment.vec_envs import make_evaluation_env
from thrust_pomdp.ppo.maskable.evaluation import acts_by_masks
from thrust_pomdp.reference import LADDER


def small(arm: str, env_id: str = "FlickeringCartPole-v0", **kwargs) -> RunSpec:
    """A run of two rollouts of 64 steps in each of two environments."""
    recipe = recipe_for(arm, env_id)
    changes = {"n_envs": 2, "n_timesteps": 256}
    if not find_arm(arm).is_users:
        changes |= {"n_steps": 64, "n_epochs": 2}
        changes |= {"envs_per_minibatch": 1} if arm.startswith("lstm") else {"batch_size": 64}
    data = recipe.with_changes(find_arm(arm), changes).as_mapping()
    episodes = {"deterministic_episodes": 2, "stochastic_episodes": 3}
    return RunSpec(arm, env_id, 0, hyperparams=data, **episodes, **kwargs)


def result(arm="lstm", seed=0, **kwargs) -> RunResult:
    values = {
        "spec": dataclasses.asdict(spec(arm, seed)),
        "final": 100.0 + seed,
        "best": 200.0 + seed,
        "deterministic": [300.0, 302.0],
        "stochastic": [400.0],
        "timesteps": 2048,
        "seconds": 1.5,
        "curve": [(1024, 50.0), (2048, 100.0)],
    }
    return RunResult(**{**values, **kwargs})


class TestStreams:
    def frames(self, arm: str, seed: int, n_steps: int = 60) -> list[list[bool]]:
        """Blank flags by environment and frame of a stretch of training with the arm's actions.

        An episode's end takes two frames in one step, the final one and the next one's first.
        """
        env = make_training_env(spec(arm, seed, env_kwargs={"flicker_prob": 0.5}))
        model = make_model(spec(arm, seed), env)  # seeds the environments, as training does
        model._setup_learn(1)
        rng = np.random.default_rng(len(arm))
        inside = env.unwrapped  # what the arm sees beside the frame is not blanked
        frames = [[bool(blanked)] for blanked in inside.blanked]
        for _ in range(n_steps):
            _, _, dones, infos = env.step(rng.integers(0, 2, env.num_envs))
            for idx, of_env in enumerate(frames):
                if dones[idx]:
                    of_env.append(infos[idx]["blanked"])
                of_env.append(bool(inside.blanked[idx]))
        return [of_env[:n_steps] for of_env in frames]

    @pytest.mark.parametrize("arm", [*sorted(set(ARMS) - {"state"}), "arms_of_users:a2c"])
    def test_all_arms_see_the_same_blanking_whatever_they_do(self, arm):
        first, second = self.frames("lstm", 0), self.frames(arm, 0)
        assert first == second[: len(first)]  # sb3-contrib has 16 environments, the others 8
        assert len({tuple(of_env) for of_env in second}) == len(second)  # each env its own

    def test_runs_of_different_numbers_see_different_ones(self):
        assert self.frames("lstm", 0) != self.frames("lstm", 1)

    def test_no_seed_is_used_twice_between_runs_or_for_training_and_evaluation(self):
        used = []
        for seed in range(10):
            one = spec(seed=seed)
            used += [one.training_seed + env for env in range(64)]
            used += [one.evaluation_seed + env for env in range(100)]
            used += [one.periodic_evaluation_seed + env for env in range(100)]
        assert len(set(used)) == len(used)


class TestRun:
    def test_gives_raw_returns_and_is_repeatable(self):
        progress = []
        first, second = run(spec(), progress.append), run(spec())
        assert first.timesteps == 2048
        assert progress[-1] == 2048
        # +1 a step, although the learner sees rewards scaled by .02.
        assert all(value >= 1 and value == int(value) for value in first.deterministic)
        assert len(first.deterministic) == 3
        assert len(first.stochastic) == 4
        for name in ("final", "best", "deterministic", "stochastic", "curve"):
            assert getattr(first, name) == getattr(second, name), name


def test_a_recipe_may_average_the_last_weights():
    averaged = recipe_for("lstm", "FlickeringCartPole-v0").with_changes(
        ARMS["lstm"], {"average_last": "0.5", "learning_rate": 1e-3}
    )
    assert averaged.average_last == 0.5
    one = spec(hyperparams=averaged.as_mapping())
    plain = spec(hyperparams=dataclasses.replace(averaged, average_last=None).as_mapping())
    trained, other = Training(one), Training(plain)
    first, second = trained.run(), other.run()
    assert first.curve == second.curve  # training is the same, what is left is not
    weights = [next(iter(run.model.policy.parameters())) for run in (trained, other)]
    assert not th.equal(*weights)


class TestEvaluations:
    """Evaluations while training: what they are of, and that the training does not notice."""

    @pytest.mark.parametrize("arm", [*ARMS, "arms_of_users:dqn"])
    def test_training_is_the_same_with_and_without_them_bit_for_bit(self, arm):
        told = []
        plain = Training(small(arm)).run()
        watched = Training(small(arm, evaluations=2), evaluated=told.append).run()
        for name in ("final", "best", "deterministic", "stochastic", "curve", "timesteps"):
            assert getattr(plain, name) == getattr(watched, name), name
        assert plain.evaluations == []
        assert [evaluation[0] for evaluation in told] == [128, 256]
        assert told == watched.evaluations

    def test_they_are_evenly_spaced_and_the_last_is_of_the_finished_policy(self):
        one = Training(small("lstm", evaluations=2))
        result = one.run()
        steps, seconds, deterministic, stochastic = zip(*result.evaluations, strict=True)
        assert steps == (128, 256)
        assert 0 < seconds[0] < seconds[1] <= result.seconds
        assert all(1 <= mean <= 500 for mean in deterministic + stochastic)
        again = one._periodic(Stopwatch())._evaluate()
        assert again[0] == deterministic[1]

    def test_their_time_is_none_of_the_training(self, monkeypatch):
        monkeypatch.setattr(training, "play", lambda *args: time.sleep(0.5) or [1.0])
        one = Training(small("lstm", evaluations=2))
        started = time.perf_counter()
        result = one.run()
        total = time.perf_counter() - started
        # Four pauses within the training and two after it.
        assert result.seconds < total - 2.9

    def test_the_time_of_compiling_is_none_of_the_training(self):
        event = pytest.importorskip("numba.core.event")
        stopwatch = Stopwatch()
        with stopwatch.running():
            time.sleep(0.1)
            with event.trigger_event("numba:compile"):
                time.sleep(0.2)
                with event.trigger_event("numba:compile"):  # of what the former calls
                    time.sleep(0.2)
            with stopwatch.paused(), event.trigger_event("numba:compile"):
                time.sleep(0.2)  # is not taken off twice
            shown = stopwatch.seconds
        assert 0.1 <= shown < 0.2

    def test_a_run_is_timed_by_it(self, monkeypatch):
        event = pytest.importorskip("numba.core.event")
        one = Training(small("mlp"))
        train = one.model.train

        def compiling():
            with event.trigger_event("numba:compile"):
                time.sleep(1.0)
            train()

        monkeypatch.setattr(one.model, "train", compiling)
        start = time.perf_counter()
        result = one.run()
        assert result.seconds < time.perf_counter() - start - 1.9  # of two rollouts

    def test_no_generator_and_no_mode_is_disturbed(self):
        model = make_model(spec("mlp"), make_training_env(spec("mlp")))
        drawn = []
        for disturbs in (False, True):
            model.set_random_seed(0)
            model.policy.set_training_mode(True)
            with without_side_effects(model):
                if disturbs:
                    self.draw(model)
                    model.policy.set_training_mode(False)
            drawn.append(self.draw(model))
            assert model.policy.training
        assert drawn[0] == drawn[1]

    def draw(self, model) -> list[float]:
        actions = [int(model.action_space.sample()) for _ in range(20)]
        return [th.rand(1).item(), random.random(), np.random.rand(), *actions]


class TestEvaluationEnvironments:
    @pytest.mark.parametrize("arm", ["lstm", "mlp-prev-action", "frame-stack"])
    def test_they_show_what_the_policy_was_trained_on_and_the_rewards_as_they_are(self, arm):
        one = Training(small(arm))
        one.run()
        trained = one.model.get_vec_normalize_env()
        env = make_evaluation_env(small(arm), 3, 77, trained)
        frozen = unwrap_vec_normalize(env)
        before = trained.obs_rms.mean.copy()
        assert not np.allclose(before, 0.0)
        assert env.observation_space == one.model.observation_space
        env.reset()
        for _ in range(30):
            _, rewards, _, _ = env.step(np.zeros(3, dtype=int))
            assert (rewards == 1.0).all()
        np.testing.assert_array_equal(frozen.obs_rms.mean, before)
        np.testing.assert_array_equal(frozen.obs_rms.var, trained.obs_rms.var)


class TestEvaluationsThatCannotBe:
    ENV = "awkward_envs:Awkward-v0"

    def test_episodes_that_never_end_are_refused_and_how_they_can_end_is_said(self, monkeypatch):
        monkeypatch.setattr(vec_envs, "_LONG_EPISODE", 300)
        one = small("mlp", self.ENV, env_kwargs={"length": None})
        with pytest.raises(ValueError, match="one did not in 300 steps: give the environment a"):
            run(one)
        limited = {"length": None, "max_episode_steps": 20}
        outcome = run(dataclasses.replace(one, env_kwargs=limited))
        assert outcome.deterministic == [20.0, 20.0]

    def test_many_episodes_may_take_longer_than_one_may(self, monkeypatch):
        monkeypatch.setattr(vec_envs, "_LONG_EPISODE", 0)
        one = small("mlp")  # of 256 steps in all
        env = make_evaluation_env(one, 2, 0, None)
        env.reset()
        for _ in range(600):
            env.step(np.zeros(2, dtype=int))  # falls after about 10

    @pytest.mark.filterwarnings("ignore:.*The reward is a NaN value:UserWarning")
    def test_returns_that_are_no_numbers_are_refused(self):
        recipe = {"n_timesteps": 50, "n_envs": 1, "normalize": False}
        one = RunSpec("arms_of_users:dqn", self.ENV, 0, {"reward": math.nan}, None, 1, 1,
                      hyperparams=recipe)  # fmt: skip
        with pytest.raises(ValueError, match="returns of evaluation episodes must be finite"):
            run(one)


class FencedEnv(ChangingMaskEnv):
    """Another mask at every step; what is forbidden raises."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(7, gym.spaces.Discrete(4))


class TestArmsThatActByMasks:
    ENV = "Fenced-v0"

    @pytest.fixture(autouse=True)
    def _registered(self, monkeypatch):
        monkeypatch.setitem(gym.registry, self.ENV, EnvSpec(self.ENV, FencedEnv))

    @pytest.mark.parametrize("arm", ["maskable", "maskable_without_memory"])
    def test_are_evaluated_by_masks_during_training_and_at_its_end(self, arm, tmp_path):
        recipe = {"n_timesteps": 32, "n_envs": 2, "normalize": True}
        one = RunSpec(f"arms_of_users:{arm}", self.ENV, 0, {}, None, 3, 4, evaluations=1,
                      hyperparams=recipe)  # fmt: skip
        found = run(one, save_to=tmp_path / one.name)
        assert (len(found.deterministic), len(found.stochastic)) == (3, 4)
        assert len(found.evaluations) == 1
        save_result(found, tmp_path / f"{one.name}.json")
        # And are played by masks from their files.
        env = FencedEnv()
        actor = playback.run_actor(env, playback.find_run(tmp_path / one.name), False, True)
        lengths = []
        playback.play(env, actor, 3, 100, 0, lambda length, total: lengths.append(length))
        assert lengths == [7, 7, 7]

    def test_of_others_that_take_none_act_without(self):
        env = DummyVecEnv([FencedEnv])
        taking = arms_of_users.maskable(env, 0)
        assert acts_by_masks(taking, env)
        assert not acts_by_masks(taking, DummyVecEnv([lambda: gym.make("CartPole-v1")]))
        assert not acts_by_masks(arms_of_users.a2c(env, 0), env)
        taking.use_masking = False
        assert not acts_by_masks(taking, env)


class TestFiles:
    @pytest.mark.parametrize(
        "arm", ["lstm-prev-action", "lstm-prev-action-privileged", "frame-stack"]
    )
    def test_a_model_comes_back_from_its_files_and_plays_the_same(self, tmp_path, arm):
        one = Training(small(arm))
        result = one.run()
        files = one.files()
        assert files.keys() == {".safetensors", ".normalizer.safetensors"}
        for ending, content in files.items():
            (tmp_path / f"one{ending}").write_bytes(content)
        model = saved_models.load_safe_model(tmp_path / "one.safetensors")
        assert type(model) is type(one.model)
        normalizer = load_normalizer(tmp_path / "one.normalizer.safetensors", trusted=False)
        assert type(normalizer) is VecNormalizeVisible
        env = make_training_env(small(arm))
        model.set_env(env)
        model.get_vec_normalize_env().obs_rms = normalizer.obs_rms
        assert evaluate(small(arm), model, 2, deterministic=True) == result.deterministic

    def test_run_saves_what_it_trained(self, tmp_path):
        run(spec(), save_to=tmp_path / "one")
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "one.normalizer.safetensors",
            "one.safetensors",
        ]
        model = RecurrentPPO.load_safe(tmp_path / "one")
        assert model.num_timesteps == 2048
        VecNormalizeVisible.load_safe(
            tmp_path / "one.normalizer", make_vec_env("FlickeringCartPole-v0")
        )
        assert model.seed == spec().training_seed

    def test_the_course_of_a_run_as_csv(self):
        one = result(evaluations=[(2048, 1.5, 30.0, 20.0), (2100, 1.6, 31.0, 21.0)])
        assert curve_text(one).splitlines() == [
            "timesteps,training_return,training_seconds,most_likely,sampled",
            "1024,50.00,,,",
            "2048,100.00,1.50,30.00,20.00",
            "2100,,1.60,31.00,21.00",
        ]


class TestProvenance:
    def test_a_result_tells_recipe_versions_machine_and_sizes(self):
        one = run(spec())
        assert one.recipe["learning_rate"] == "lin_3e-3"
        assert one.recipe["n_envs"] == 8
        assert one.provenance["algorithm"] == "thrust_pomdp.ppo.recurrent_ppo:RecurrentPPO"
        assert one.provenance["versions"]["torch"] == th.__version__
        assert one.provenance["machine"]["cpus"] >= 1
        # An LSTM of 128 cells reading 4 numbers (4 gates, two biases) and two linear heads.
        assert one.provenance["parameters"] == 4 * 128 * (4 + 128 + 2) + 3 * 128 + 3
        assert json.loads(json.dumps(one.provenance)) == one.provenance


class TestAnyEnvironment:
    """What the runner must take besides its own environments."""

    @pytest.mark.parametrize("arm", ["lstm", "mlp-prev-action", "sb3-contrib"])
    @pytest.mark.parametrize(
        ("env_id", "env_kwargs"),
        [
            ("Pendulum-v1", {}),
            ("sensor_envs:AnyEnv-v0", {"observation": "number", "action": "vector"}),
            ("sensor_envs:AnyEnv-v0", {"observation": "image", "action": "numbers"}),
        ],
    )
    def test_arms_train_on_it(self, arm, env_id, env_kwargs):
        one = small(arm, env_id, env_kwargs=env_kwargs, evaluations=1)
        outcome = run(one)
        assert outcome.timesteps == 256
        assert len(outcome.deterministic) == 2


class TestReport:
    RESULTS = [result("lstm", 0), result("lstm", 1), result("mlp", 0)]

    def test_rows_by_hand(self):
        assert report.rows(self.RESULTS) == [
            ("lstm", "0", "100.0", "200.0", "400.0", "301.0", "2048", "1.5"),
            ("lstm", "1", "101.0", "201.0", "400.0", "301.0", "2048", "1.5"),
            ("lstm", "mean", "100.5", "200.5", "400.0", "301.0", "2048", "1.5"),
            ("mlp", "0", "100.0", "200.0", "400.0", "301.0", "2048", "1.5"),
        ]

    def test_the_table_stands_beside_the_ladder(self):
        text = report.table(self.RESULTS)
        assert "FlickeringCartPole-v0: mean return per episode" in text
        best_memoryless = LADDER["FlickeringCartPole-v0"][1].mean
        assert f"best memoryless found   {best_memoryless:6.4g}  best found" in text

    def test_the_ladder_holds_for_its_arguments_only(self):
        other = dataclasses.asdict(spec(env_kwargs={"flicker_prob": 0.3}))
        text = report.table([result(spec=other)])
        assert "flicker_prob=0.3" in text
        assert "memoryless found" not in text

    def test_csv_files(self, tmp_path):
        report.write_csv(self.RESULTS, tmp_path)
        with (tmp_path / "summary.csv").open() as file:
            summary = list(csv.DictReader(file))
        assert [(row["arm"], row["seed"]) for row in summary] == [
            ("lstm", "0"), ("lstm", "1"), ("mlp", "0"),
        ]  # fmt: skip
        with (tmp_path / "curves.csv").open() as file:
            curves = list(csv.DictReader(file))
        assert len(curves) == 6
        assert (curves[1]["arm"], curves[1]["seed"]) == ("lstm", "0")
        assert (int(curves[1]["timesteps"]), float(curves[1]["mean_return"])) == (2048, 100.0)

    def test_the_picture_needs_no_ladder(self, tmp_path):
        other = dataclasses.asdict(spec(env_kwargs={"flicker_prob": 0.3}))
        report.plot([result(spec=other)], tmp_path / "curves.png")
        assert (tmp_path / "curves.png").exists()

    def test_the_picture_shows_every_arm_and_rung(self, tmp_path, monkeypatch):
        from matplotlib.figure import Figure

        figures = []
        savefig = Figure.savefig
        monkeypatch.setattr(
            Figure, "savefig", lambda self, *a, **k: (figures.append(self), savefig(self, *a, **k))
        )
        report.plot(self.RESULTS, tmp_path / "curves.png")
        assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
        (axes,) = figures[0].axes
        assert len(axes.lines) == 2 + 5
        (legend,) = figures[0].legends
        labels = [text.get_text() for text in legend.get_texts()]
        assert labels == ["LSTM (RecurrentPPO)", "memoryless (SB3 PPO)"]

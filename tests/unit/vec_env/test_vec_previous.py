"""The last action and reward in SB3's vectorised environments, around the normaliser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from helpers import FirstPass, ignore_resets, sharpen
from sensor_envs import ACTIONS, VECTOR, AnyEnv
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
)

from thrust_pomdp import (
    RecurrentPPO,
    VecNormalizeVisible,
    VecPreviousAction,
    VecPreviousReward,
    make_vec_env,
    wrappers,
)
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.wrappers import vector

N_ENVS = 3


def dummy(make: Any, n_envs: int = N_ENVS) -> DummyVecEnv:
    return DummyVecEnv([make] * n_envs)


def adapted(make: Any, n_envs: int = N_ENVS) -> GymnasiumVecEnv:
    return GymnasiumVecEnv(SyncVectorEnv([make] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP))


def run(venv: VecEnv, n_steps: int = 60, seed: int = 0) -> list[Any]:
    """Observations, ends, final observations and flags of some steps."""
    venv.seed(seed)
    seen: list[Any] = [venv.reset()]
    venv.action_space.seed(seed)
    for _ in range(n_steps):
        actions = np.stack([venv.action_space.sample() for _ in range(venv.num_envs)])
        obs, rewards, dones, infos = venv.step(actions)
        told = [(info.get("blanked"), info.get("terminal_observation")) for info in infos]
        seen += [obs, rewards, dones, told]
    return seen


class LostDigits(VecEnvWrapper):
    """Somebody's own sensor: single components are blank, and the infos say so."""

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait()
        for info in infos:
            info["blanked"] = np.array([True, False, False, False])
        return obs, rewards, dones, infos


class TestFlagsOfOthers:
    @pytest.mark.parametrize("make", [VecPreviousAction, VecPreviousReward])
    @pytest.mark.parametrize("env_id", ["MaskedFlickeringCartPole-v0", "FlickeringCartPole-v0"])
    def test_grow_with_the_observation(self, make: Any, env_id: str) -> None:
        if env_id.startswith("Masked"):
            venv: VecEnv = make(LostDigits(VecFrameStack(make_vec_env(env_id, 2, seed=0), 2)))
        else:
            venv = make(LostDigits(make_vec_env(env_id, 2, seed=0)))
        venv.reset()
        obs, _, _, infos = venv.step(np.ones(2, dtype=np.int64))
        for info in infos:
            assert info["blanked"].tolist() == [True] + [False] * (obs.shape[1] - 1)


class TestEqualsTheSingleWrapper:
    @pytest.mark.parametrize("base", [dummy, adapted])
    @pytest.mark.parametrize("kind", ["vector", "image", "dict", "numbers"])
    def test_for_every_kind_of_observation(self, kind: str, base: Any) -> None:
        ours = VecPreviousAction(base(lambda: AnyEnv(kind)))
        theirs = dummy(lambda: wrappers.PreviousActionObservation(AnyEnv(kind)))
        assert ours.observation_space == theirs.observation_space
        for mine, other in zip(run(ours), run(theirs), strict=True):
            np.testing.assert_equal(mine, other)

    @pytest.mark.parametrize("kind", ACTIONS)
    def test_for_every_kind_of_action(self, kind: str) -> None:
        ours = VecPreviousAction(dummy(lambda: AnyEnv("vector", kind)))
        theirs = dummy(lambda: wrappers.PreviousActionObservation(AnyEnv("vector", kind)))
        seen = run(ours)
        for mine, other in zip(seen, run(theirs), strict=True):
            np.testing.assert_equal(mine, other)
        assert sum(dones.sum() for dones in seen[3::4]) > 5

    @pytest.mark.parametrize("base", [dummy, adapted])
    @pytest.mark.parametrize("kind", ["vector", "numbers", "dict"])
    @pytest.mark.parametrize("layer", ["FlickerObservation", "ElementDropoutObservation"])
    def test_with_flags_of_every_form(self, layer: str, kind: str, base: Any) -> None:
        def sensed() -> gym.Env:
            return getattr(wrappers, layer)(AnyEnv(kind))

        ours = VecPreviousAction(base(sensed))
        theirs = dummy(lambda: wrappers.PreviousActionObservation(sensed()))
        for mine, other in zip(run(ours), run(theirs), strict=True):
            np.testing.assert_equal(mine, other)

    def test_in_processes_of_their_own(self) -> None:
        makers = [lambda: wrappers.ElementDropoutObservation(AnyEnv())] * 2
        ours = VecPreviousAction(SubprocVecEnv(makers, start_method="fork"))
        theirs = VecPreviousAction(DummyVecEnv(makers))
        for mine, other in zip(run(ours, 20), run(theirs, 20), strict=True):
            np.testing.assert_equal(mine, other)
        ours.close()


class TestEnds:
    def test_the_final_observation_has_the_action_that_led_to_it_and_the_first_one_zeros(
        self,
    ) -> None:
        venv = VecPreviousAction(make_vec_env("FlickeringCartPole-v0", N_ENVS, seed=0))
        venv.reset()
        n_ended = 0
        for step in range(60):
            action = step % 2 if step % 3 else 1
            obs, _, dones, infos = venv.step(np.full(N_ENVS, action))
            for idx in range(N_ENVS):
                if dones[idx]:
                    n_ended += 1
                    assert infos[idx]["terminal_observation"][4:].tolist() == [1 - action, action]
                    assert obs[idx, 4:].tolist() == [0.0, 0.0]
                else:
                    assert obs[idx, 4:].tolist() == [1 - action, action]
        assert n_ended > 3

    def test_many_final_observations_at_once_are_what_each_would_be(self) -> None:
        class Ends(gym.Env[Any, Any]):
            """One step of an episode, told in a type of its own."""

            observation_space = spaces.Box(-9.0, 9.0, (2,), np.float32)
            action_space = spaces.Discrete(2)

            def __init__(self, number: float, dtype: Any) -> None:
                self.obs = np.array([number, 1 / 3], dtype)

            def reset(self, *, seed: Any = None, options: Any = None) -> Any:
                return self.obs, {}

            def step(self, action: Any) -> Any:
                return self.obs, 0.0, True, False, {}

        for dtypes in ([np.float32] * 3, [np.float64] * 3, [np.float32, np.float64, np.float32]):
            fns = [lambda n=n, dtype=dtype: Ends(n, dtype) for n, dtype in enumerate(dtypes)]
            venv = VecPreviousAction(DummyVecEnv(fns))
            venv.reset()
            actions = np.array([1, 0, 1])
            finals = [info["terminal_observation"] for info in venv.step(actions)[3]]
            for n, (final, dtype) in enumerate(zip(finals, dtypes, strict=True)):
                shown = np.concatenate(
                    (np.array([n, 1 / 3], dtype), np.eye(2, dtype="f4")[actions[n]])
                )
                assert final.dtype == shown.dtype
                assert final.tolist() == shown.tolist()
            finals[0][:] = -1.0
            assert finals[1][0] == 1.0, "they share their numbers"

    def test_a_reset_in_mid_episode_forgets_the_action(self) -> None:
        venv = VecPreviousAction(dummy(AnyEnv))
        venv.reset()
        venv.step(np.ones(N_ENVS, int))
        assert not venv.reset()[:, 3:].any()

    def test_actions_may_be_overwritten_before_the_step_is_waited_for(self) -> None:
        venv = VecPreviousAction(dummy(AnyEnv))
        venv.reset()
        actions = np.zeros(N_ENVS, int)
        venv.step_async(actions)
        actions[:] = 2
        assert venv.step_wait()[0][:, 3:].tolist() == [[1.0, 0.0, 0.0]] * N_ENVS

    def test_what_is_returned_belongs_to_the_caller(self) -> None:
        venv = VecPreviousAction(dummy(lambda: AnyEnv("dict")))
        first = venv.reset()
        first["previous_action"][:] = 9.0
        assert not venv.reset()["previous_action"].any()
        second = venv.step(np.ones(N_ENVS, int))[0]
        second["previous_action"][:] = 9.0
        assert venv.step(np.ones(N_ENVS, int))[0]["previous_action"].max() == 1.0


class TestReward:
    @pytest.mark.parametrize("base", [dummy, adapted])
    @pytest.mark.parametrize("kind", ["vector", "image", "dict", "numbers"])
    def test_with_the_action_equals_the_single_wrappers(self, kind: str, base: Any) -> None:
        ours = VecPreviousReward(VecPreviousAction(base(lambda: AnyEnv(kind))))
        theirs = dummy(
            lambda: wrappers.PreviousRewardObservation(
                wrappers.PreviousActionObservation(AnyEnv(kind))
            )
        )
        assert ours.observation_space == theirs.observation_space
        for mine, other in zip(run(ours), run(theirs), strict=True):
            np.testing.assert_equal(mine, other)

    @pytest.mark.parametrize("base", [dummy, adapted])
    def test_flags_of_components_follow_both(self, base: Any) -> None:
        def sensed() -> gym.Env:
            return wrappers.ElementDropoutObservation(AnyEnv(), 0.4)

        seen = run(VecPreviousReward(VecPreviousAction(VecNormalizeVisible(base(sensed)))))
        flags = [flag for told in seen[4::4] for flag, _ in told]
        assert {flag.shape for flag in flags} == {(3 + 3 + 1,)}
        assert any(flag[:3].any() for flag in flags)
        assert not any(flag[3:].any() for flag in flags)

    def test_it_is_the_environments_own_whatever_normalises_rewards(self) -> None:
        inside = VecNormalizeVisible(dummy(AnyEnv), gamma=0.5)
        venv = VecPreviousReward(VecNormalize(inside, norm_obs=False))
        venv.seed(0)
        venv.reset()
        n_ended = 0
        for step in range(40):
            actions = np.array([2, 1, step % 3])
            obs, rewards, dones, infos = venv.step(actions)
            assert obs[:, 3].tolist() == (actions * ~dones).tolist()
            n_ended += dones.sum()
            for idx in dones.nonzero()[0]:
                assert infos[idx]["terminal_observation"][3] == actions[idx]
        assert n_ended > 5
        assert not np.array_equal(rewards, actions)

    def test_one_more_wrapper_inside_of_the_normaliser_of_rewards_does_no_harm(self) -> None:
        inside = VecPreviousReward(dummy(lambda: AnyEnv("dict")))
        with pytest.raises(ValueError, match=r"erase the reward, .* Put VecPreviousReward around"):
            VecNormalizeVisible(inside, norm_obs_keys=["gyro", "previous_reward"])
        both = VecPreviousAction(inside)
        with pytest.raises(ValueError, match="must not be put around VecPreviousReward"):
            VecNormalizeVisible(both, norm_obs_keys=["gyro", "previous_reward"])
        VecNormalizeVisible(both, norm_obs_keys=["gyro"]).reset()

    def test_training_sees_it(self) -> None:
        venv = make_vec_env(
            "FlickeringCartPole-v0", 2, normalize=True, previous_action=True, previous_reward=True
        )
        model = RecurrentPPO(
            "MlpLstmPolicy", venv, n_steps=16, batch_size=16, seed=0,
            policy_kwargs={"lstm_hidden_size": 8},
        )  # fmt: skip
        model.learn(32)
        shown = model.rollout_buffer.observations[..., 6]
        np.testing.assert_array_equal(shown, 1.0 - model.rollout_buffer.episode_starts)


@pytest.mark.parametrize("window_state", ["zero", "carry"])
@pytest.mark.parametrize("n_envs", [1, 3])
class TestFirstPassEqualsCollection:
    def error(self, n_envs: int, window_state: str, plant: Any = None) -> float:
        venv = make_vec_env(
            "FlickeringCartPole-v0", n_envs, seed=0,
            normalize=True, previous_action=True, previous_reward=True,
        )  # fmt: skip
        model = RecurrentPPO(
            "MlpLstmPolicy", venv, n_steps=32, batch_size=32, n_epochs=2, learning_rate=0.0, seed=0,
            policy_kwargs={"lstm_hidden_size": 8}, window_state=window_state,
        )  # fmt: skip
        sharpen(model)
        callback = FirstPass(plant)
        model.learn(2 * 32 * n_envs, callback=callback)
        assert callback.minibatches == 2 * 2 * n_envs
        assert model.rollout_buffer.episode_starts[1:].any()
        return callback.error

    def test_with_action_and_reward(self, n_envs: int, window_state: str) -> None:
        assert self.error(n_envs, window_state) < 1e-5

    def test_and_would_not_with_resets_ignored(self, n_envs: int, window_state: str) -> None:
        assert self.error(n_envs, window_state, ignore_resets) > 1e-3


class TestAroundTheNormaliser:
    def test_actions_are_neither_normalised_nor_erased(self) -> None:
        inside = make_vec_env("FlickeringCartPole-v0", N_ENVS, seed=0)
        venv = VecPreviousAction(VecNormalizeVisible(inside))
        alone = VecNormalizeVisible(make_vec_env("FlickeringCartPole-v0", N_ENVS, seed=0))
        venv.reset()
        alone.reset()
        blank = 0
        for step in range(60):
            actions = np.array([0, 1, step % 2])
            obs, rewards, dones, infos = venv.step(actions)
            plain, plain_rewards, _, plain_infos = alone.step(actions)
            np.testing.assert_array_equal(obs[:, :4], plain)
            np.testing.assert_array_equal(rewards, plain_rewards)
            expected = np.eye(2)[actions] * ~dones[:, None]
            np.testing.assert_array_equal(obs[:, 4:], expected)
            blank += (~obs[:, :4].any(axis=1) & ~dones).sum()
            for mine, other in zip(infos, plain_infos, strict=True):
                assert mine["blanked"] == other["blanked"]
        assert blank > 40

    def test_the_adapters_infos_stay_unbuilt_where_nobody_looks(self) -> None:
        venv = VecPreviousAction(
            VecNormalizeVisible(make_vec_env("FlickeringCartPole-v0", N_ENVS, seed=0))
        )
        venv.reset()
        for _ in range(3):
            _, _, dones, infos = venv.step(np.ones(N_ENVS, int))
            assert not dones.any()
            assert [list.__getitem__(infos, idx) for idx in range(N_ENVS)] == [None] * N_ENVS

    def test_the_adapters_flags_can_be_read_from_outside(self) -> None:
        venv = VecPreviousAction(
            VecNormalizeVisible(make_vec_env("FlickeringCartPole-v0", N_ENVS, seed=0))
        )
        venv.reset()
        assert venv.tells_blanked is True
        assert venv.blanked.shape == (N_ENVS,)
        assert VecFrameStack(venv, 2).blanked.shape == (N_ENVS,)

    def test_flags_of_components_fit_the_observation_and_normalising_inside(self) -> None:
        def sensed() -> gym.Env:
            return wrappers.ElementDropoutObservation(AnyEnv(), 0.4)

        runs = [
            run(VecPreviousAction(VecNormalizeVisible(base(sensed)))) for base in (dummy, adapted)
        ]
        for mine, other in zip(*runs, strict=True):
            np.testing.assert_equal(mine, other)
        flags = [flag for told in runs[0][4::4] for flag, _ in told]
        assert {flag.shape for flag in flags} == {(6,)}
        assert not any(flag[3:].any() for flag in flags)

    REFUSED_REWARD = {
        "VecPreviousReward": lambda: VecPreviousReward(dummy(AnyEnv)),
        "single": lambda: dummy(lambda: wrappers.PreviousRewardObservation(AnyEnv())),
        "vector": lambda: GymnasiumVecEnv(
            vector.PreviousRewardObservation(
                gym.make_vec("MaskedCartPole-v0", 2, autoreset_mode="SameStep")
            )
        ),
    }

    @pytest.mark.parametrize("inside", REFUSED_REWARD)
    def test_a_normaliser_around_the_reward_is_refused_too(self, inside: str) -> None:
        with pytest.raises(ValueError, match=r"erase the reward, .* Put VecPreviousReward around"):
            VecNormalizeVisible(self.REFUSED_REWARD[inside]())

    REFUSED = {
        "VecPreviousAction": lambda: VecPreviousAction(dummy(lambda: gym.make("CartPole-v1"))),
        "VecPreviousAction further in": lambda: VecFrameStack(
            VecPreviousAction(dummy(lambda: gym.make("CartPole-v1"))), 2
        ),
        "single": lambda: dummy(
            lambda: wrappers.PreviousActionObservation(gym.make("CartPole-v1"))
        ),
        "single in the adapter": lambda: adapted(
            lambda: wrappers.PreviousActionObservation(gym.make("CartPole-v1"))
        ),
        "vector": lambda: GymnasiumVecEnv(
            vector.FlickerObservation(
                vector.PreviousActionObservation(
                    gym.make_vec("MaskedCartPole-v0", 2, autoreset_mode="SameStep")
                ),
                0.0,
            )
        ),
    }

    @pytest.mark.parametrize("inside", REFUSED)
    def test_a_normaliser_around_it_is_refused_with_the_remedy(self, inside: str) -> None:
        with pytest.raises(ValueError, match=r"VecNormalizeVisible must not be put around \w*Prev"):
            VecNormalizeVisible(self.REFUSED[inside]())
        with pytest.raises(ValueError, match="Put VecPreviousAction around VecNormalizeVisible"):
            VecNormalizeVisible(self.REFUSED[inside]())

    def test_so_it_is_when_statistics_are_loaded(self, tmp_path: Path) -> None:
        path = str(tmp_path / "statistics.pkl")
        box = spaces.Box(-9.0, 9.0, (6,), np.float32)
        env = AnyEnv()
        env.observation_space = box
        VecNormalizeVisible(dummy(lambda: env, 1)).save(path)
        with pytest.raises(ValueError, match="Put VecPreviousAction around VecNormalizeVisible"):
            VecNormalizeVisible.load(path, VecPreviousAction(dummy(AnyEnv)))

    def test_normalising_other_keys_or_rewards_only_does_no_harm(self) -> None:
        inside = VecPreviousAction(dummy(lambda: AnyEnv("dict")))
        with pytest.raises(ValueError, match="must not be put around VecPreviousAction"):
            VecNormalizeVisible(inside, norm_obs_keys=["gyro", "previous_action"])
        venv = VecNormalizeVisible(inside, norm_obs_keys=["gyro"])
        venv.reset()
        assert venv.step(np.ones(N_ENVS, int))[0]["previous_action"].max() == 1.0
        VecNormalizeVisible(VecPreviousAction(dummy(AnyEnv)), norm_obs=False).reset()


class TestInPrograms:
    def venv(self, seed: int, training: bool = True) -> VecEnv:
        inside = make_vec_env("FlickeringCartPole-v0", 2, seed=seed)
        return VecPreviousAction(VecNormalizeVisible(inside, training=training))

    def test_training_evaluating_and_syncing_statistics(self) -> None:
        eval_env = self.venv(1, training=False)
        model = RecurrentPPO(
            "MlpLstmPolicy",
            self.venv(0),
            n_steps=16,
            batch_size=16,
            policy_kwargs={"lstm_hidden_size": 8},
            seed=0,
        )
        callback = EvalCallback(eval_env, n_eval_episodes=1, eval_freq=16, verbose=0, warn=False)
        model.learn(64, callback=callback)
        assert callback.last_mean_reward > 0
        assert eval_env.obs_rms.count == pytest.approx(model.env.obs_rms.count, abs=33)
        assert model.observation_space.shape == (6,)
        returns, lengths = evaluate_policy(
            model, eval_env, 3, return_episode_rewards=True, warn=False
        )
        assert returns == lengths

    def test_an_evaluation_with_another_normaliser_is_refused_through_it(self) -> None:
        plain = VecPreviousAction(VecNormalize(make_vec_env("FlickeringCartPole-v0", 1)))
        model = RecurrentPPO("MlpLstmPolicy", self.venv(0), n_steps=8, batch_size=8)
        with pytest.raises(ValueError, match="normalised as the training environment is"):
            model.learn(16, callback=EvalCallback(plain))

    def test_a_dict_observation_with_a_symbol_for_blank_trains(self) -> None:
        def sensed() -> gym.Env:
            env = wrappers.FlickerObservation(AnyEnv("dict"), 0.5, 4, separately=True)
            return wrappers.MaskObservation(env, drop=["camera"])

        model = RecurrentPPO(
            "MultiInputLstmPolicy",
            VecPreviousAction(dummy(sensed)),
            n_steps=16,
            batch_size=16,
            policy_kwargs={"lstm_hidden_size": 8},
            seed=0,
        )
        before = [parameter.clone() for parameter in model.policy.parameters()]
        model.learn(96)
        after = list(model.policy.parameters())
        assert not any((a == b).all() for a, b in zip(before, after, strict=True) if a.ndim > 1)


class TestBadArguments:
    def test_are_refused_as_by_the_single_wrapper(self) -> None:
        with pytest.raises(ValueError, match="key must not be one of the observation's"):
            VecPreviousAction(dummy(lambda: AnyEnv("dict")), key="gyro")
        with pytest.raises(ValueError, match="venv must be a VecEnv, got"):
            VecPreviousAction(AnyEnv())
        venv = dummy(AnyEnv)
        venv.action_space = spaces.Dict(a=VECTOR)
        with pytest.raises(ValueError, match="action_space must be a Box, Discrete"):
            VecPreviousAction(venv)

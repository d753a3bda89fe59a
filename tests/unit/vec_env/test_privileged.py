"""VecPrivilegedInfo: entries of the infos in the observation, each beside the frame it tells of."""

from __future__ import annotations

import copy
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
)

from thrust_pomdp import (
    MaskableRecurrentPPO,
    RecurrentPPO,
    VecNormalizeVisible,
    VecPreviousAction,
    VecPrivilegedInfo,
    VecUnprivileged,
    look_inside,
    make_vec_env,
    wrappers,
)
from thrust_pomdp.analysis.trace import frozen_statistics
from thrust_pomdp.experiment.vec_envs import VecScaleReward
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.privileged import wrappers_of_kind

N_ENVS = 3


class CountingEnv(gym.Env):
    """Shows its episode and step, and tells the same, 100 more, in the infos."""

    observation_space = spaces.Box(-1e3, 1e3, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 4, entry: Any = None) -> None:
        self.length, self.entry, self.episode = length, entry, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.n_steps = self.episode + 1, 0
        return self._frame()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        ended = self.n_steps == self.length
        odd = self.episode % 2 == 1
        obs, info = self._frame()
        return obs, 1.0, ended and odd, ended and not odd, info

    def _frame(self) -> tuple[Any, dict[str, Any]]:
        obs = np.array([self.episode, self.n_steps], np.float32)
        return obs, {"state": obs + 100 if self.entry is None else self.entry}


def makers(*lengths: int, **kwargs: Any) -> list[Any]:
    return [lambda length=length: CountingEnv(length, **kwargs) for length in lengths]


def adapter(fns: list[Any]) -> GymnasiumVecEnv:
    return GymnasiumVecEnv(SyncVectorEnv(fns, autoreset_mode=AutoresetMode.SAME_STEP))


def subprocesses(fns: list[Any]) -> SubprocVecEnv:
    return SubprocVecEnv(fns, start_method="fork")


BASES = {"DummyVecEnv": DummyVecEnv, "SubprocVecEnv": subprocesses, "adapter": adapter}


def native(n_envs: int = N_ENVS, seed: int = 0, **kwargs: Any) -> VecEnv:
    return make_vec_env(
        "BurstFlickeringCartPole-v0", n_envs, seed, env_kwargs={"expose_state": True, **kwargs}
    )


def frames(venv: VecEnv, n_steps: int, seed: int = 0) -> list[dict[str, Any]]:
    """All frames of a run, final ones included; ``_final`` tells them apart."""
    rng = np.random.default_rng(seed)
    seen = [{key: part[idx] for key, part in venv.reset().items()} for idx in [0]]
    for _ in range(n_steps):
        obs, _, dones, infos = venv.step(rng.integers(0, 2, venv.num_envs))
        for idx in range(venv.num_envs):
            seen.append({key: part[idx] for key, part in obs.items()} | {"_final": False})
            if dones[idx]:
                seen.append(infos[idx]["terminal_observation"] | {"_final": True})
    return seen


class TestEachFrameHasItsOwnEntry:
    """Resets, steps, auto-resets and final frames, wherever the environments run."""

    @pytest.mark.parametrize("base", BASES)
    def test_of_single_environments(self, base: str) -> None:
        venv = VecPrivilegedInfo(BASES[base](makers(2, 3, 5)), normalize=False)
        seen = frames(venv, 30)
        venv.close()
        assert sum(frame.get("_final", False) for frame in seen) == 15 + 10 + 6
        for frame in seen:
            np.testing.assert_array_equal(frame["state"], frame["observation"] + 100)
            assert frame["state"].dtype == np.float32

    def test_of_a_native_vector_environment(self) -> None:
        seen = frames(VecPrivilegedInfo(native(flicker_prob=0.3), normalize=False), 120)
        visible = [frame for frame in seen if frame["observation"].any()]
        assert sum(frame.get("_final", False) for frame in visible) > 5
        for frame in visible:
            np.testing.assert_array_equal(frame["state"], frame["observation"])
        # What is blank for the actor is not for the critic.
        blank = [frame for frame in seen if not frame["observation"].any()]
        assert len(blank) > 50
        assert all(frame["state"].all() for frame in blank)

    def test_native_and_single_environments_give_the_same(self) -> None:
        single = make_vec_env(
            "BurstFlickeringCartPole-v0", N_ENVS, 0,
            env_kwargs={"expose_state": True}, vec_env_cls=DummyVecEnv,
        )  # fmt: skip
        runs = [frames(VecPrivilegedInfo(venv), 80) for venv in (native(), single)]
        np.testing.assert_equal(runs[0], runs[1])

    def test_where_something_inside_has_looked_at_the_infos_already(self) -> None:
        def sensed() -> gym.Env:
            return wrappers.ElementDropoutObservation(CountingEnv(3), 0.0)

        venv = VecPreviousAction(adapter([sensed] * 2))
        for frame in frames(VecPrivilegedInfo(venv, normalize=False), 12):
            np.testing.assert_array_equal(frame["state"], frame["observation"][:2] + 100)

    def test_the_adapters_infos_stay_unbuilt_where_nobody_looks(self) -> None:
        venv = VecPrivilegedInfo(VecNormalizeVisible(native()))
        venv.reset()
        _, _, dones, infos = venv.step(np.ones(N_ENVS, int))
        assert not dones.any()
        assert [list.__getitem__(infos, idx) for idx in range(N_ENVS)] == [None] * N_ENVS

    def test_what_is_returned_belongs_to_the_caller(self) -> None:
        venv = VecPrivilegedInfo(native(), normalize=False)
        venv.reset()["state"][:] = 9.0
        obs, _, _, infos = venv.step(np.ones(N_ENVS, int))
        obs["state"][:] = 9.0
        assert all((info["state"] != 9.0).all() for info in infos)

    def test_a_dict_observation_gets_a_key_more_and_several_can_be_added(self) -> None:
        fns = [lambda: wrappers.PreviousActionObservation(self.Dicts())] * 2
        venv = VecPrivilegedInfo(
            VecPrivilegedInfo(DummyVecEnv(fns), normalize=False), "wind", normalize=False
        )
        assert list(venv.observation_space) == ["gyro", "previous_action", "state", "wind"]
        obs = venv.reset()
        assert obs["wind"].tolist() == [[7.0], [7.0]]
        np.testing.assert_array_equal(obs["state"], obs["gyro"] + 100)

    class Dicts(CountingEnv):
        observation_space = spaces.Dict(gyro=CountingEnv.observation_space)

        def _frame(self) -> tuple[Any, dict[str, Any]]:
            obs, info = super()._frame()
            return {"gyro": obs}, {**info, "wind": 7}


class TestManyEndsAtOnce:
    @pytest.mark.parametrize("base", BASES)
    def test_each_final_frame_has_its_own_entry(self, base: str) -> None:
        space = spaces.Box(0, 1e3, (2,), np.float32)
        venv = VecPrivilegedInfo(BASES[base](makers(2, 3, 2, 2)), space=space, normalize=False)
        venv.reset()
        venv.step(np.zeros(4, int))
        obs, _, dones, infos = venv.step(np.zeros(4, int))
        assert dones.tolist() == [True, False, True, True]
        finals = [infos[idx]["terminal_observation"] for idx in (0, 2, 3)]
        assert [final["state"].tolist() for final in finals] == [[101.0, 102.0]] * 3
        assert [final["observation"].tolist() for final in finals] == [[1.0, 2.0]] * 3
        assert obs["state"].tolist() == [[102, 100], [101, 102], [102, 100], [102, 100]]
        finals[0]["state"][:] = -1.0
        assert finals[1]["state"].tolist() == [101.0, 102.0], "they share their numbers"


class TestStatistics:
    def test_are_of_all_frames_shown_and_apply_to_final_frames(self) -> None:
        raw = VecPrivilegedInfo(DummyVecEnv(makers(2, 3, 5)), normalize=False)
        venv = VecPrivilegedInfo(DummyVecEnv(makers(2, 3, 5)))
        expected = RunningMeanStd(shape=(2,))

        def scaled(told: np.ndarray) -> np.ndarray:
            return ((told - expected.mean) / np.sqrt(expected.var + 1e-8)).astype(np.float32)

        expected.update(raw.reset()["state"])
        assert venv.reset()["state"].dtype == np.float32
        for _ in range(20):
            (raw_obs, _, dones, raw_infos), (obs, _, _, infos) = (
                v.step(np.zeros(3, int)) for v in (raw, venv)
            )
            expected.update(raw_obs["state"])
            np.testing.assert_array_equal(obs["state"], scaled(raw_obs["state"]))
            for idx in dones.nonzero()[0]:
                final = raw_infos[idx]["terminal_observation"]["state"]
                np.testing.assert_array_equal(
                    infos[idx]["terminal_observation"]["state"], scaled(final)
                )

    def test_are_the_same_whether_the_actor_is_blind_or_not(self) -> None:
        runs = []
        for blind in (0.0, 1.0):
            venv = make_vec_env(
                "FlickeringCartPole-v0", N_ENVS, 0,
                env_kwargs={"expose_state": True, "flicker_prob": blind},
            )  # fmt: skip
            seen = frames(VecPrivilegedInfo(VecNormalizeVisible(venv)), 60)
            runs.append([frame["state"] for frame in seen])
        np.testing.assert_array_equal(*runs)

    def test_numbers_are_clipped(self) -> None:
        venv = VecPrivilegedInfo(DummyVecEnv(makers(200)), clip=1.5)
        assert venv.observation_space["state"] == spaces.Box(-1.5, 1.5, (2,), np.float32)
        venv.reset()
        shown = [venv.step(np.zeros(1, int))[0]["state"] for _ in range(50)]
        assert np.max(shown) == 1.5

    def test_can_be_saved_and_gone_on_with(self, tmp_path: Path) -> None:
        venv, path = VecPrivilegedInfo(native()), tmp_path / "critic.pkl"
        frames(venv, 20)
        venv.save_statistics(path)
        other = VecPrivilegedInfo(native())
        other.load_statistics(path)
        np.testing.assert_array_equal(other.statistics.mean, venv.statistics.mean)
        assert other.statistics.count == venv.statistics.count
        narrow = VecPrivilegedInfo(DummyVecEnv(makers(3)))
        with pytest.raises(ValueError, match=r"path must be a file saved by .* of shape \(2,\)"):
            narrow.load_statistics(path)
        path.write_text("no pickle")
        with pytest.raises(ValueError, match="path must be a file saved by VecPrivilegedInfo, got"):
            venv.load_statistics(path)


class TestOrder:
    def test_outermost_it_leaves_what_the_actor_sees_as_it_is(self) -> None:
        def seen(venv: VecEnv) -> VecEnv:
            return VecPreviousAction(VecNormalizeVisible(venv))

        with_state = VecPrivilegedInfo(seen(native()))
        plain = seen(make_vec_env("BurstFlickeringCartPole-v0", N_ENVS, 0))
        np.testing.assert_array_equal(with_state.reset()["observation"], plain.reset())
        for step in range(60):
            actions = np.array([0, 1, step % 2])
            (obs, *ours, infos), (expected, *theirs, plain_infos) = (
                venv.step(actions) for venv in (with_state, plain)
            )
            np.testing.assert_array_equal(obs["observation"], expected)
            np.testing.assert_equal(ours, theirs)
            for idx in ours[1].nonzero()[0]:
                np.testing.assert_array_equal(
                    infos[idx]["terminal_observation"]["observation"],
                    plain_infos[idx]["terminal_observation"],
                )
        assert with_state.obs_rms.count == plain.obs_rms.count

    def test_a_stack_of_frames_and_the_previous_action_may_be_around_it(self) -> None:
        venv = VecFrameStack(VecPreviousAction(VecPrivilegedInfo(native(), normalize=False)), 2)
        venv.reset()
        obs = venv.step(np.ones(N_ENVS, int))[0]
        assert {key: part.shape[1] for key, part in obs.items()} == {
            "observation": 8, "state": 8, "previous_action": 4,
        }  # fmt: skip

    def test_a_normaliser_around_it_is_refused_with_the_remedy(self) -> None:
        inside = VecPrivilegedInfo(native())
        with pytest.raises(ValueError, match="Put VecPrivilegedInfo, .* around VecNormalizeVis"):
            VecNormalizeVisible(inside)
        with pytest.raises(ValueError, match="Put VecPrivilegedInfo, .* around VecNormalizeVis"):
            VecNormalizeVisible(VecPreviousAction(inside), norm_obs_keys=["state"])

    def test_a_normaliser_of_other_keys_around_it_does_no_harm(self) -> None:
        venv = VecNormalizeVisible(VecPrivilegedInfo(native()), norm_obs_keys=["observation"])
        outside = VecPrivilegedInfo(VecNormalizeVisible(native()))
        np.testing.assert_equal(frames(venv, 60), frames(outside, 60))


class TestSpace:
    def test_is_that_of_the_first_entry_and_the_seeds_are_not_used_up(self) -> None:
        for base in (native(), DummyVecEnv([lambda: gym.make("CartPole-v1")])):
            base.seed(5)
            entry = "state" if isinstance(base, GymnasiumVecEnv) else "anything"
            if entry == "anything":
                with pytest.raises(ValueError, match="must be told by the environments"):
                    VecPrivilegedInfo(base, entry)
            else:
                VecPrivilegedInfo(base, entry)
            first = base.reset()
            base.seed(5)
            np.testing.assert_array_equal(first, base.reset())

    def test_environments_that_were_reset_are_not_reset_again(self) -> None:
        base = DummyVecEnv(makers(4))
        base.reset()
        VecPrivilegedInfo(base)
        assert base.envs[0].episode == 1

    @pytest.mark.parametrize(
        ("entry", "space"),
        [
            (3, spaces.Box(-np.inf, np.inf, (1,), np.float32)),
            (True, spaces.Box(-np.inf, np.inf, (1,), np.float32)),
            (np.ones((2, 3)), spaces.Box(-np.inf, np.inf, (2, 3), np.float32)),
            (np.ones((8, 8, 3), np.uint8), spaces.Box(0, 255, (8, 8, 3), np.uint8)),
        ],
        ids=["number", "flag", "array", "image"],
    )
    @pytest.mark.parametrize("base", ["DummyVecEnv", "adapter"])
    def test_fits_what_is_told(self, base: str, entry: Any, space: spaces.Space) -> None:
        venv = VecPrivilegedInfo(BASES[base](makers(2, 3, entry=entry)), normalize=False)
        assert venv.observation_space["state"] == space
        shown = venv.reset()["state"], venv.step(np.zeros(2, int))[0]["state"]
        for part in shown:
            np.testing.assert_array_equal(part, np.full((2, *space.shape), entry))
            assert part.dtype == space.dtype

    def test_images_and_categories_are_never_scaled(self) -> None:
        image = VecPrivilegedInfo(DummyVecEnv(makers(2, entry=np.ones((8, 8, 3), np.uint8))))
        assert image.observation_space["state"].dtype == np.uint8
        number = VecPrivilegedInfo(DummyVecEnv(makers(2, entry=3)), space=spaces.Discrete(5))
        assert number.reset()["state"].tolist() == [3]
        assert number.statistics is None
        assert image.statistics is None


class TestBadArguments:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"key": "observation"}, "key must be a name other than the observation's"),
            ({"key": 3}, "key must be a name"),
            ({"key": "cart"}, r"info\['cart'\] must be told .* there is 'state'; .*expose_state"),
            ({"space": "Box"}, "space must be a Box"),
            ({"clip": 0}, "clip must be positive"),
            ({"normalize": "no"}, "normalize must be True or False"),
        ],
    )
    def test_are_named(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            VecPrivilegedInfo(DummyVecEnv(makers(3)), **arguments)

    def test_an_environment_that_is_no_vecenv(self) -> None:
        with pytest.raises(ValueError, match="venv must be a VecEnv, got"):
            VecPrivilegedInfo(CountingEnv())

    def test_our_environments_without_expose_state_are_told_of_it(self) -> None:
        with pytest.raises(ValueError, match="expose_state=True"):
            VecPrivilegedInfo(make_vec_env("FlickeringCartPole-v0", 2))

    def test_an_entry_that_is_no_number(self) -> None:
        with pytest.raises(ValueError, match="must be a number or an array of numbers, got 'far'"):
            VecPrivilegedInfo(DummyVecEnv(makers(3, entry="far")))

    @pytest.mark.parametrize("base", ["DummyVecEnv", "adapter"])
    def test_an_entry_that_does_not_fit_its_space(self, base: str) -> None:
        space = spaces.Box(-1, 1, (3,), np.float32)
        venv = VecPrivilegedInfo(BASES[base](makers(3)), space=space)
        with pytest.raises(ValueError, match=r"of the shape of space, \(3,\), got \(2,\)"):
            venv.reset()

    def test_an_entry_of_a_native_vector_that_does_not_fit_its_space(self) -> None:
        venv = VecPrivilegedInfo(native(), space=spaces.Box(-1, 1, (3,), np.float32))
        venv.venv.reset()
        with pytest.raises(ValueError, match=r"of the shape of space, \(3,\), got \(4,\)"):
            venv.step(np.zeros(N_ENVS, int))

    def test_an_entry_that_is_gone_in_the_middle(self) -> None:
        class Forgetful(CountingEnv):
            def step(self, action: Any) -> Any:
                return (*super().step(action)[:4], {})

        venv = VecPrivilegedInfo(DummyVecEnv([Forgetful]))
        venv.reset()
        with pytest.raises(ValueError, match="at every reset and step"):
            venv.step(np.zeros(1, int))


class TestEvaluating:
    def model(self) -> RecurrentPPO:
        venv = VecPrivilegedInfo(VecPreviousAction(VecNormalizeVisible(native())))
        return RecurrentPPO(
            "AsymmetricLstmPolicy", venv, n_steps=8, batch_size=8, seed=0,
            policy_kwargs={"lstm_hidden_size": 8},
        )  # fmt: skip

    def plain(self) -> VecEnv:
        inside = make_vec_env("BurstFlickeringCartPole-v0", 2, 1)
        return VecPreviousAction(VecNormalizeVisible(inside, training=False, norm_reward=False))

    def test_on_a_plain_environment_copies_the_actors_statistics(self) -> None:
        model, evaluation = self.model(), VecUnprivileged(self.plain())
        callback = EvalCallback(evaluation, n_eval_episodes=2, eval_freq=8, verbose=0)
        model.learn(2 * 8 * N_ENVS, callback=callback)
        assert callback.last_mean_reward > 0
        trained = model.get_vec_normalize_env()
        assert evaluation.obs_rms.count == pytest.approx(trained.obs_rms.count, abs=N_ENVS)
        assert evaluation.obs_rms.mean.shape == (4,)

    def test_on_a_plain_environment_with_a_layer_less_is_refused_with_the_remedy(self) -> None:
        callback = EvalCallback(self.plain(), n_eval_episodes=1, eval_freq=8, warn=False)
        with (
            pytest.warns(UserWarning, match="not of the same type"),
            pytest.raises(ValueError, match="put thrust_pomdp.VecUnprivileged around it"),
        ):
            self.model().learn(8 * N_ENVS, callback=callback)

    def test_on_a_privileged_environment_works_as_well(self) -> None:
        model = self.model()
        inside = VecNormalizeVisible(native(2, 1), training=False, norm_reward=False)
        evaluation = VecPrivilegedInfo(VecPreviousAction(inside))
        callback = EvalCallback(evaluation, n_eval_episodes=2, eval_freq=8, verbose=0)
        model.learn(8 * N_ENVS, callback=callback)
        assert callback.last_mean_reward > 0


def counts(venv: VecEnv) -> list[float]:
    """How much the statistics of each layer have seen, from the outside in."""
    found = []
    while isinstance(venv, VecEnvWrapper):
        if isinstance(venv, VecPrivilegedInfo):
            found.append(venv.statistics.count)
        elif isinstance(venv, VecNormalize):
            found += [venv.obs_rms.count, venv.ret_rms.count]
        venv = venv.venv
    return found


def five_steps(venv: VecEnv) -> VecEnv:
    venv.reset()
    for _ in range(5):
        venv.step(np.ones(venv.num_envs, dtype=np.int64))
    return venv


#: What may lie around it and in it.
STACKS: dict[str, Callable[[VecEnv], VecEnv]] = {
    "alone": VecPrivilegedInfo,
    "around our normaliser": lambda venv: VecPrivilegedInfo(VecNormalizeVisible(venv)),
    "around SB3's": lambda venv: VecPrivilegedInfo(VecNormalize(venv)),
    "further out": lambda venv: VecPrivilegedInfo(VecPreviousAction(VecNormalizeVisible(venv))),
    "with a layer around it": lambda venv: VecScaleReward(
        VecPrivilegedInfo(VecPreviousAction(VecNormalizeVisible(venv))), 0.5
    ),
    "twice": lambda venv: VecPrivilegedInfo(
        VecPrivilegedInfo(VecNormalizeVisible(venv)), "blanked"
    ),
}
every_stack = pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)


class TestTheTrainingSwitch:
    @every_stack
    def test_freezes_all_statistics_and_thaws_them(self, stack: Callable[[VecEnv], VecEnv]) -> None:
        venv = five_steps(stack(native()))
        before = counts(venv)
        assert min(before) > 1
        assert venv.training
        venv.training = False
        assert counts(five_steps(venv)) == before
        assert not venv.training
        venv.training = True
        assert min(np.subtract(counts(five_steps(venv)), before)) > 0

    def test_of_a_normaliser_inside_is_its_own(self) -> None:
        venv = five_steps(VecPrivilegedInfo(VecNormalizeVisible(native())))
        venv.venv.training = False
        before = counts(venv)
        after = counts(five_steps(venv))
        assert after[0] > before[0]
        assert after[1:] == before[1:]

    def test_can_be_given_to_the_constructor(self) -> None:
        venv = five_steps(VecPrivilegedInfo(VecNormalizeVisible(native()), training=False))
        privileged, *normaliser = counts(venv)
        assert privileged < 1 < min(normaliser)
        assert venv.has_fresh_statistics
        with pytest.raises(ValueError, match="training must be True or False, got 'no'"):
            VecPrivilegedInfo(native(), training="no")

    def test_scales_by_the_frozen_statistics(self) -> None:
        venv = five_steps(VecPrivilegedInfo(native()))
        venv.training = False
        mean, std = venv.statistics.mean, np.sqrt(venv.statistics.var + 1e-8)
        shown = venv.reset()["state"]
        told = np.array([info["state"] for info in venv.unwrapped.reset_infos])
        np.testing.assert_allclose(shown, np.clip((told - mean) / std, -10, 10), rtol=1e-6)

    def test_is_in_copies(self) -> None:
        venv = VecPrivilegedInfo(native(), training=False)
        assert not copy.deepcopy(venv).training
        del vars(venv)["_training"]  # of an earlier version
        assert copy.deepcopy(venv).training


@pytest.fixture(scope="module")
def model() -> RecurrentPPO:
    venv = VecPrivilegedInfo(VecPreviousAction(VecNormalizeVisible(native())))
    return RecurrentPPO(
        "AsymmetricLstmPolicy", venv, n_steps=16, batch_size=16, seed=0,
        policy_kwargs={"lstm_hidden_size": 8},
    ).learn(64 * N_ENVS)  # fmt: skip


class TestLookingInside:
    @staticmethod
    def other() -> VecEnv:
        """Another environment with the normaliser's statistics copied, as users do."""
        return VecPrivilegedInfo(VecPreviousAction(VecNormalizeVisible(native(2, 5))))

    @every_stack
    def test_keeps_statistics_and_switches(self, stack: Callable[[VecEnv], VecEnv]) -> None:
        venv = five_steps(stack(native()))
        before = counts(venv)
        venv.unwrapped.seed(0)
        with frozen_statistics(venv):
            five_steps(venv)
        assert counts(venv) == before
        assert min(np.subtract(counts(five_steps(venv)), before)) > 0
        venv.training = False
        with frozen_statistics(venv):
            pass
        assert not venv.training

    def test_restores_a_normaliser_that_was_frozen_alone(self) -> None:
        venv = VecPrivilegedInfo(VecNormalizeVisible(native(), training=False))
        with frozen_statistics(venv):
            assert (venv.training, venv.venv.training) == (False, False)
        assert (venv.training, venv.venv.training) == (True, False)

    def test_shows_the_critic_of_a_fresh_environment_what_it_was_trained_on(self, model) -> None:
        fresh, given = self.other(), self.other()
        given.take_moments(model.env.moments())
        for env in (fresh, given):
            env.obs_rms = model.env.obs_rms
        traces = [look_inside(model, env, 30, deterministic=True) for env in (fresh, given)]
        assert traces[0].values.tobytes() == traces[1].values.tobytes()
        assert fresh.has_fresh_statistics
        assert given.moments() == model.env.moments()

    def test_of_a_loaded_model_shows_it_too(self, model, tmp_path) -> None:
        model.save(tmp_path / "model.zip")
        loaded = RecurrentPPO.load(tmp_path / "model.zip")
        traces = [look_inside(one, self.other(), 9, deterministic=True) for one in (model, loaded)]
        assert traces[0].values.tobytes() == traces[1].values.tobytes()

    def test_says_so_where_nobody_knows_it(self, model, tmp_path) -> None:
        model.save(tmp_path / "model.zip")
        loaded = RecurrentPPO.load(tmp_path / "model.zip")
        loaded._privileged_statistics = None
        with pytest.warns(UserWarning, match="start anew") as warned:
            look_inside(loaded, self.other(), 2)
        assert warned[0].filename == __file__


class PlainLoop(BaseCallback):
    """What a stranger writes instead of an EvalCallback: statistics copied, memory carried."""

    def __init__(self, env: VecEnv, n_episodes: int) -> None:
        super().__init__()
        self.env, self.n_episodes, self.returns = env, n_episodes, []

    def _on_step(self) -> bool:
        self.env.training, self.env.obs_rms = False, self.training_env.obs_rms
        obs, state, start, total = self.env.reset(), None, np.ones(1, bool), 0.0
        while len(self.returns) < self.n_episodes:
            action, state = self.model.predict(obs, state, start, deterministic=True)
            obs, reward, start, _ = self.env.step(action)
            total += reward[0]
            if start[0]:
                self.returns.append(total)
                total = 0.0
        return True


class TestAStrangersEvaluation:
    def test_gives_the_returns_of_the_callback(self) -> None:
        def plain() -> VecEnv:
            inside = make_vec_env("BurstFlickeringCartPole-v0", 1, seed=3)
            return VecPreviousAction(VecNormalizeVisible(inside, norm_reward=False))

        loop = PlainLoop(plain(), 4)
        evaluation = VecUnprivileged(plain())
        evaluation.training = False
        callback = EvalCallback(
            evaluation, callback_after_eval=loop, n_eval_episodes=4, eval_freq=64, verbose=0
        )
        venv = VecPrivilegedInfo(VecPreviousAction(VecNormalizeVisible(native())))
        RecurrentPPO(
            "AsymmetricLstmPolicy", venv, n_steps=32, batch_size=32, seed=0,
            policy_kwargs={"lstm_hidden_size": 8},
        ).learn(64 * N_ENVS, callback=callback)  # fmt: skip
        assert callback.last_mean_reward == np.mean(loop.returns) > 0


def trained_model(venv: VecEnv, cls: Any = RecurrentPPO, n_steps: int = 40) -> Any:
    critic_only = tuple(layer.privileged_key for layer in wrappers_of_kind(venv, VecPrivilegedInfo))
    model = cls(
        "AsymmetricLstmPolicy", venv, n_steps=8, batch_size=8, n_epochs=1, seed=0,
        policy_kwargs={"lstm_hidden_size": 8, "critic_only": critic_only},
    )  # fmt: skip
    more = {"use_masking": False} if cls is not RecurrentPPO else {}
    return model.learn(n_steps, **more)


def moments(venv: VecEnv) -> dict[str, Any]:
    return {
        layer.privileged_key: layer.moments() for layer in wrappers_of_kind(venv, VecPrivilegedInfo)
    }


class TwoStories(gym.Wrapper):
    """Tells something else beside the state."""

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return obs, {**info, "depth": 3.0, "colour": np.array([1, 2])}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        more = {"depth": float(self.np_random.normal(50.0)), "colour": np.array([1, 2])}
        return obs, reward, terminated, truncated, {**info, **more}


def told_twice(seed: int = 0) -> VecEnv:
    venv = make_vec_env(
        "FlickeringCartPole-v0", 2, seed, wrapper_class=TwoStories,
        env_kwargs={"expose_state": True},
    )  # fmt: skip
    venv = VecPrivilegedInfo(VecPreviousAction(VecNormalizeVisible(venv)), key="depth")
    venv = VecPrivilegedInfo(venv, key="colour", normalize=False)
    return VecPrivilegedInfo(venv)


class TestAModelsFileHasTheStatistics:
    """A critic goes on by the statistics that it was trained with, without anyone's doing."""

    @pytest.mark.parametrize("cls", [RecurrentPPO, MaskableRecurrentPPO])
    def test_of_all_layers_when_it_is_loaded(self, cls: Any, tmp_path: Path) -> None:
        model = trained_model(told_twice(), cls)
        model.save(tmp_path / "model")
        env = told_twice(1)
        loaded = cls.load(tmp_path / "model", env=env)
        assert moments(env) == moments(model.env)
        assert env.statistics.mean.dtype == np.float64
        assert moments(env)["depth"]["mean"] == pytest.approx([48.0], abs=3.0)
        assert moments(env)["colour"] == {}
        loaded.learn(16, reset_num_timesteps=False, **(
            {"use_masking": False} if cls is not RecurrentPPO else {}))  # fmt: skip
        assert env.statistics.count > model.env.statistics.count

    def test_of_a_checkpoint_and_of_the_best_model(self, tmp_path: Path) -> None:
        venv = VecPrivilegedInfo(VecPreviousAction(VecNormalizeVisible(native())))
        plain = VecUnprivileged(VecPreviousAction(VecNormalizeVisible(native(2, 1))))
        checkpoints = CheckpointCallback(8, str(tmp_path), "it", save_vecnormalize=True)
        best = EvalCallback(
            plain, n_eval_episodes=1, eval_freq=8, best_model_save_path=str(tmp_path), verbose=0
        )
        model = RecurrentPPO(
            "AsymmetricLstmPolicy", venv, n_steps=8, batch_size=8, seed=0,
            policy_kwargs={"lstm_hidden_size": 8},
        ).learn(16 * N_ENVS, callback=[checkpoints, best])  # fmt: skip
        for name in (f"it_{16 * N_ENVS}_steps", "best_model"):
            other = VecPrivilegedInfo(VecPreviousAction(VecNormalizeVisible(native())))
            RecurrentPPO.load(tmp_path / name, env=other)
            assert other.statistics.count > N_ENVS
        RecurrentPPO.load(tmp_path / f"it_{16 * N_ENVS}_steps", env=other)
        assert model.num_timesteps == 16 * N_ENVS

    def test_when_its_environment_is_set_later(self, tmp_path: Path) -> None:
        model = trained_model(VecPrivilegedInfo(native()))
        model.save(tmp_path / "model")
        loaded = RecurrentPPO.load(tmp_path / "model")
        loaded.save(tmp_path / "again")  # without an environment on the way
        env = VecPrivilegedInfo(native())
        RecurrentPPO.load(tmp_path / "again").set_env(env)
        assert moments(env) == moments(model.env)

    def test_another_environment_of_a_model_gets_those_of_the_one_before(self) -> None:
        model = trained_model(VecPrivilegedInfo(native()))
        before = moments(model.env)
        env = VecPrivilegedInfo(native())
        model.set_env(env)
        assert moments(env) == before
        model.learn(16, reset_num_timesteps=False)
        assert moments(env) != before

    def test_an_environment_that_was_only_reset_is_fresh(self, tmp_path: Path) -> None:
        model = trained_model(VecPrivilegedInfo(native()))
        model.save(tmp_path / "model")
        env = VecPrivilegedInfo(native())
        for _ in range(2):
            env.reset()
        assert env.has_fresh_statistics
        RecurrentPPO.load(tmp_path / "model", env=env)
        assert moments(env) == moments(model.env)

    @pytest.mark.parametrize("way", ["loaded", "assigned", "changed in place", "played"])
    def test_statistics_that_the_owner_gave_are_left(self, way: str, tmp_path: Path) -> None:
        trained_model(VecPrivilegedInfo(native())).save(tmp_path / "model")
        other, env = VecPrivilegedInfo(native(seed=5)), VecPrivilegedInfo(native())
        frames(other, 5)
        if way == "loaded":
            other.save_statistics(tmp_path / "statistics")
            env.load_statistics(tmp_path / "statistics")
        elif way == "assigned":
            env.statistics = copy.deepcopy(other.statistics)
        elif way == "changed in place":
            env.statistics.mean[:] = 3.0
        else:
            frames(env, 1)
        assert not env.has_fresh_statistics
        given = moments(env)
        RecurrentPPO.load(tmp_path / "model", env=env)
        assert moments(env) == given

    def test_the_file_is_plain_text_about_them(self, tmp_path: Path) -> None:
        model = trained_model(VecPrivilegedInfo(native()))
        model.save(tmp_path / "model")
        with zipfile.ZipFile(tmp_path / "model.zip") as file:
            told = json.loads(file.read("data"))["_privileged_statistics"]
        assert told == moments(model.env)

    def test_an_old_file_has_none_which_is_told_once(self, tmp_path: Path) -> None:
        trained_model(told_twice()).save(tmp_path / "old", exclude=["_privileged_statistics"])
        remedy = r"of the privileged 'state', 'depth' start anew.*save_statistics.*load_statistics"
        with pytest.warns(UserWarning, match=remedy) as told:
            loaded = RecurrentPPO.load(tmp_path / "old", env=told_twice())
        assert len(told) == 1
        assert told[0].filename == __file__
        loaded = RecurrentPPO.load(tmp_path / "old")
        with pytest.warns(UserWarning, match=remedy) as told:
            loaded.set_env(told_twice())
        assert (len(told), told[0].filename) == (1, __file__)

    def test_a_model_that_was_not_trained_yet_needs_none(self, tmp_path: Path) -> None:
        trained_model(VecPrivilegedInfo(native()), n_steps=0).save(tmp_path / "new")
        env = VecPrivilegedInfo(native())
        loaded = RecurrentPPO.load(tmp_path / "new", env=env)
        assert env.has_fresh_statistics
        loaded.set_env(VecPrivilegedInfo(native()))

    def test_a_resumed_critic_sees_what_an_uninterrupted_one_does(self, tmp_path: Path) -> None:
        """A stranger's resume script, held against a plain loop over the same environment."""
        model = trained_model(VecPrivilegedInfo(native()))
        model.save(tmp_path / "model")
        env = VecPrivilegedInfo(native(seed=9))
        RecurrentPPO.load(tmp_path / "model", env=env)
        env.seed(9)
        shown = env.reset()["state"]
        plain = native(seed=9)
        plain.reset()
        states = np.array([info["state"] for info in plain.reset_infos])
        expected = copy.deepcopy(model.env.statistics)
        expected.update(states)
        scaled = (states - expected.mean) / np.sqrt(expected.var + 1e-8)
        np.testing.assert_allclose(shown, scaled, rtol=1e-5)

"""What can be read through our wrappers can be set through them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecFrameStack, VecNormalize

from thrust_pomdp import (
    RecurrentPPO,
    StatefulActor,
    VecNormalizeVisible,
    VecPreviousAction,
    VecPreviousReward,
    VecPrivilegedInfo,
    VecUnprivileged,
    make_vec_env,
)
from thrust_pomdp.analysis.trace import look_inside
from thrust_pomdp.experiment.vec_envs import VecEndingEpisodes, VecScaleReward
from thrust_pomdp.vec_env.privileged import wrappers_of_kind
from thrust_pomdp.vec_env.stacked import VecStackedFrames

FLICKERING = "FlickeringCartPole-v0"

OUTER: dict[str, Callable[[VecEnv], VecEnv]] = {
    "action": VecPreviousAction,
    "reward": VecPreviousReward,
    "unprivileged": VecUnprivileged,
    "privileged": VecPrivilegedInfo,
    "scaled": lambda venv: VecScaleReward(venv, 0.5),
    "ending": lambda venv: VecEndingEpisodes(venv, 1000),
    "normalizer": lambda venv: VecNormalizeVisible(venv, norm_obs=False),
    "three": lambda venv: VecUnprivileged(VecPreviousReward(VecPreviousAction(venv))),
    "stacked": lambda venv: VecStackedFrames(venv, 2),
    "around SB3's": lambda venv: VecUnprivileged(VecFrameStack(venv, 2)),
}
every_outer = pytest.mark.parametrize("outer", OUTER.values(), ids=OUTER)


def envs() -> VecEnv:
    return make_vec_env(FLICKERING, 2, seed=0, env_kwargs={"expose_state": True})


class Tagged(VecEnvWrapper):
    """Somebody's own wrapper, with a setting, a property and something of its class."""

    colour = "red"

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self.volume, self._shade = 1, 1

    @property
    def shade(self) -> int:
        return self._shade

    @shade.setter
    def shade(self, shade: int) -> None:
        self._shade = shade

    @property
    def size(self) -> int:
        return 3

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        return self.venv.step_wait()


class TestWhatIsReadThroughAWrapper:
    @every_outer
    @pytest.mark.parametrize("name", ["volume", "shade", "colour"])
    def test_is_set_where_it_is(self, outer: Callable[[VecEnv], VecEnv], name: str) -> None:
        inner = Tagged(envs())
        venv = outer(inner)
        setattr(venv, name, 7)
        assert getattr(inner, name) == getattr(venv, name) == 7
        assert name not in vars(venv)

    @pytest.mark.parametrize("name", sorted(OUTER.keys() - {"normalizer"}))  # it has its own
    def test_freezes_statistics(self, name: str) -> None:
        outer = OUTER[name]
        inner = VecNormalizeVisible(envs())
        venv = outer(inner)
        venv.training, venv.obs_rms = False, RunningMeanStd(shape=(4,))
        venv.norm_reward = False
        assert (inner.training, inner.norm_reward) == (False, False)
        venv.reset()
        for _ in range(5):
            rewards = venv.step(np.ones(2, dtype=np.int64))[1]
        assert inner.obs_rms.count == pytest.approx(1e-4)
        assert rewards.tolist() == [0.5 if outer is OUTER["scaled"] else 1.0] * 2

    def test_is_set_as_the_pages_of_the_features_do(self) -> None:
        def seen(venv: VecEnv) -> VecEnv:
            return VecPreviousAction(VecNormalizeVisible(venv, norm_reward=False))

        trained = VecPrivilegedInfo(seen(envs()))
        trained.reset()
        plain = seen(make_vec_env(FLICKERING, 2, seed=1))
        plain.training, plain.obs_rms = False, trained.obs_rms
        plain.reset()
        plain.step(np.zeros(2, dtype=np.int64))
        assert plain.venv.obs_rms is trained.venv.venv.obs_rms
        assert plain.obs_rms.count == trained.obs_rms.count > 1

    def test_is_set_in_the_middle_too(self) -> None:
        venv = VecUnprivileged(VecPreviousAction(envs()))
        venv.blanked = np.ones(2, dtype=bool)
        assert venv.unwrapped.blanked.all()

    def test_cannot_be_set_where_it_cannot_be_set_inside(self) -> None:
        with pytest.raises(AttributeError, match="size"):
            VecUnprivileged(Tagged(envs())).size = 4

    def test_is_refused_where_reading_it_is(self) -> None:
        venv = VecUnprivileged(VecPreviousReward(VecPreviousAction(envs())))
        keys = [layer.key for layer in (venv.venv, venv.venv.venv)]
        for access in (lambda: venv.key, lambda: setattr(venv, "key", "x")):
            with pytest.raises(AttributeError, match="key .* is ambiguous and hides attribute"):
                access()
        assert keys == [layer.key for layer in (venv.venv, venv.venv.venv)]


class TestWhatIsAWrappersOwn:
    def test_stays_its_own(self) -> None:
        inner = VecPreviousAction(envs())
        outer = VecPreviousReward(inner)
        assert (outer.key, inner.key) == ("previous_reward", "previous_action")
        outer.key = "mine"
        assert (outer.key, inner.key) == ("mine", "previous_action")

    def test_is_what_nothing_inside_has(self) -> None:
        venv = VecUnprivileged(VecPreviousAction(envs()))
        venv.note = "mine"
        assert vars(venv)["note"] == "mine"
        assert not hasattr(venv.venv, "note")

    def test_is_what_begins_with_an_underscore(self) -> None:
        inner = Tagged(envs())
        venv = VecUnprivileged(inner)
        venv._shade = 9
        assert inner.shade == 1

    @pytest.mark.parametrize("base", [VecPreviousAction, VecUnprivileged, VecNormalizeVisible])
    def test_is_what_a_subclass_of_a_user_has(self, base: Any) -> None:
        class Mine(base):
            loud = True

            def __init__(self, venv: VecEnv) -> None:
                super().__init__(venv)
                self.volume, self.training = 5, "mine"

            def quieten(self) -> None:
                self.volume, self.loud = self.volume - 1, False

        inner = Tagged(VecNormalize(envs(), norm_obs=False, norm_reward=False))
        venv = Mine(inner)
        venv.quieten()
        assert (venv.volume, venv.loud, venv.training) == (4, False, "mine")
        assert (inner.volume, inner.venv.training) == (1, True)

    def test_is_no_longer_kept_after_a_constructor_that_failed(self) -> None:
        class Mine(VecUnprivileged):
            def __init__(self, venv: VecEnv) -> None:
                super().__init__(venv)
                made.append(self)
                raise RuntimeError

        made: list[Any] = []
        inner = Tagged(envs())
        with pytest.raises(RuntimeError):
            Mine(inner)
        made[0].volume = 3
        assert inner.volume == 3


class TestCopies:
    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
    def test_are_wholes_of_their_own(self, duplicate: Callable[[Any], Any]) -> None:
        venv = VecPreviousReward(VecPreviousAction(Untouched(envs())))
        venv.volume = 2
        other = duplicate(venv)
        other.volume = 3
        assert (venv.volume, other.volume, other.venv.venv.volume) == (2, 3, 3)
        other.seed(1)
        venv.seed(1)
        assert other.reset().tobytes() == venv.reset().tobytes()

    def test_of_a_normaliser_go_around_another_stack(self) -> None:
        normalizer = VecNormalizeVisible(VecUnprivileged(envs()), norm_reward=False)
        normalizer.reset()
        copied = pickle.loads(pickle.dumps(normalizer))
        inner = VecUnprivileged(VecNormalize(envs(), norm_obs=False))
        inner.venv.returns += 5.0
        copied.set_venv(inner)
        assert copied.returns.tolist() == [0.0, 0.0]
        assert inner.venv.returns.tolist() == [5.0, 5.0]
        assert copied.reset().shape == (2, 4)

    def test_of_models_have_their_wrappers(self) -> None:
        venv = VecPreviousAction(Untouched(envs()))
        model = RecurrentPPO("MlpLstmPolicy", venv, n_steps=8, batch_size=8, seed=0)
        copied = copy.deepcopy(model).learn(16)
        copied.env.volume = 4
        assert copied.env.venv.volume == 4
        assert venv.volume == 1


class TestMadeEnvironments:
    """Whatever is outermost of what ``make_vec_env`` makes, the normaliser is set through it."""

    SEEN: ClassVar[list[dict[str, Any]]] = [
        {},
        {"previous_action": True},
        {"previous_reward": True},
        {"frame_stack": 4},
        {"previous_action": True, "previous_reward": True, "frame_stack": 3},
    ]

    @pytest.mark.parametrize("seen", SEEN)
    @pytest.mark.parametrize("env_id", [FLICKERING, "CartPole-v1"])
    def test_are_frozen(self, env_id: str, seen: dict[str, Any]) -> None:
        venv = make_vec_env(env_id, 2, seed=0, normalize=True, **seen)
        venv.reset()
        venv.training = False
        (normalizer,) = wrappers_of_kind(venv, VecNormalizeVisible)
        before = normalizer.obs_rms.count, normalizer.ret_rms.count
        for _ in range(5):
            venv.step(np.ones(2, dtype=np.int64))
        assert (normalizer.obs_rms.count, normalizer.ret_rms.count) == before

    def test_show_the_frames_of_sb3s_stack(self) -> None:
        ours = make_vec_env(FLICKERING, 3, seed=0, frame_stack=3)
        theirs = VecFrameStack(make_vec_env(FLICKERING, 3, seed=0), 3)
        assert ours.observation_space == theirs.observation_space
        assert ours.reset().tobytes() == theirs.reset().tobytes()
        for step in range(60):
            one, other = (venv.step(np.full(3, step // 2 % 2)) for venv in (ours, theirs))
            assert one[0].tobytes() == other[0].tobytes()
            for mine, info in zip(one[3], other[3], strict=True):
                final = [one.get("terminal_observation") for one in (mine, info)]
                np.testing.assert_array_equal(*final)

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
    def test_are_copied_with_their_stack(self, duplicate: Callable[[Any], Any]) -> None:
        venv = VecStackedFrames(Untouched(envs()), 3)
        venv.reset()
        other = duplicate(venv)
        other.volume = 3
        assert (venv.venv.volume, other.venv.volume) == (1, 3)
        actions = np.ones(2, dtype=np.int64)
        assert other.step(actions)[0].tobytes() == venv.step(actions)[0].tobytes()

    def test_are_evaluated_looked_into_and_acted_in(self) -> None:
        venv, other = (
            make_vec_env(FLICKERING, 2, seed=seed, normalize=True, frame_stack=3) for seed in (0, 1)
        )
        other.training = False
        model = RecurrentPPO("MlpLstmPolicy", venv, n_steps=16, batch_size=16, seed=0)
        model.learn(32, callback=EvalCallback(other, eval_freq=16, n_eval_episodes=1, verbose=0))
        count = other.obs_rms.count
        assert count > 1  # copied, and no more
        assert look_inside(model, other, 20).observations.shape == (20, 2, 12)
        assert other.obs_rms.count == count
        actor, raw = StatefulActor.like(model, other, deterministic=True), other.unwrapped
        shown, state, starts = other.reset(), None, np.ones(2, dtype=bool)
        for _ in range(30):
            obs = other.get_original_obs()
            mine = actor.act(obs, starts, blanked=raw.blanked)
            actions, state = model.predict(shown, state, starts, deterministic=True)
            assert mine.tolist() == actions.tolist()
            shown, _, starts, _ = other.step(actions)


class Untouched(VecUnprivileged):
    """A wrapper of a user with a setting."""

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self.volume = 1

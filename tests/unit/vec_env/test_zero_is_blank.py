"""Only what is declared blank is blank: zeros of environments that tell nothing are data."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation, NormalizeObservation
from gymnasium.wrappers.utils import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize, unwrap_vec_normalize

from thrust_pomdp import (
    FlickerObservation,
    GymnasiumVecEnv,
    NormalizeVisibleObservation,
    RecurrentPPO,
    StatefulActor,
    VecNormalizeVisible,
    look_inside,
    make_vec_env,
)
from thrust_pomdp.experiment.arms import ARMS
from thrust_pomdp.experiment.recipes import Recipe
from thrust_pomdp.experiment.vec_envs import copy_statistics, wrap_as_trained
from thrust_pomdp.wrappers.visible_statistics import ZeroWatch

DATA = Path(__file__).parents[2] / "data"
FLICKERING = "FlickeringCartPole-v0"


class DrawnEnv(gym.Env):
    """Shows what a function draws, and ends by chance."""

    def __init__(self, space: spaces.Space, draw: Callable[[Any, int], Any]) -> None:
        self.observation_space, self.action_space, self.draw = space, spaces.Discrete(2), draw

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self.draw(self.np_random, 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        luck = self.np_random.random()
        obs = self.draw(self.np_random, self.count)
        return obs, float(self.np_random.normal()), bool(luck < 0.05), bool(luck > 0.97), {}


def box(*shape: int, dtype: Any = np.float32, high: float = 20) -> spaces.Box:
    return spaces.Box(0 if np.dtype(dtype).kind == "u" else -high, high, shape, dtype)


def switch(rng: Any, count: int) -> np.ndarray:
    return np.array([count % 2], np.float32)


def whole_numbers(dtype: Any) -> Callable[[Any, int], np.ndarray]:
    return lambda rng, count: rng.integers(0, 3, 2).astype(dtype)


def holes(rng: Any, count: int) -> np.ndarray:
    """Readings and zeros, and now and then none."""
    frame = (rng.normal(size=3) * (rng.random(3) < 0.5)).astype(np.float32)
    return frame if rng.random() < 0.999 else np.full(3, np.nan, np.float32)


def dicts(rng: Any, count: int) -> dict[str, np.ndarray]:
    camera = rng.integers(0, 2, (36, 36, 1)).astype(np.uint8) * (count % 2)
    return {"camera": camera, "gyro": holes(rng, count), "bump": whole_numbers(int)(rng, count)}


SENSED = spaces.Dict(camera=spaces.Box(0, 255, (36, 36, 1), np.uint8), gyro=box(3),
                     bump=box(2, dtype=np.int64))  # fmt: skip

#: Environments that tell of nothing blanked.
FLAGLESS: dict[str, Callable[[], gym.Env]] = {
    **{
        name: (lambda name=name: gym.make(name))
        for name in ("CartPole-v1", "MountainCar-v0", "Pendulum-v1", "Acrobot-v1")
    },
    "MountainCarContinuous-v0": lambda: gym.make("MountainCarContinuous-v0"),
    "a switch": lambda: DrawnEnv(box(1), switch),
    "int64": lambda: DrawnEnv(box(2, dtype=np.int64), whole_numbers(np.int64)),
    "uint8": lambda: DrawnEnv(box(2, dtype=np.uint8), whole_numbers(np.uint8)),
    "a number without axes": lambda: DrawnEnv(box(), lambda rng, n: np.float32(n % 3)),
    "float64": lambda: DrawnEnv(box(2, dtype=np.float64), lambda rng, n: rng.normal(size=2) * n),
    "an image": lambda: DrawnEnv(SENSED["camera"], lambda rng, n: dicts(rng, n)["camera"]),
    "zeros and NaN": lambda: DrawnEnv(box(3), holes),
    # A copy, since SB3's normaliser changes the space of the environment.
    "a dict": lambda: DrawnEnv(deepcopy(SENSED), dicts),
    "a frame stack": lambda: FrameStackObservation(DrawnEnv(box(3), holes), 3),
}


def assert_same(mine: Any, theirs: Any) -> None:
    """Compare arrays, or dicts of them, to the bit and the dtype."""
    if isinstance(theirs, dict):
        assert list(mine) == list(theirs)
        for key in theirs:
            assert_same(mine[key], theirs[key])
        return
    mine, theirs = np.asarray(mine), np.asarray(theirs)
    assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
    assert mine.tobytes() == theirs.tobytes()


def statistics_of(normalizer: Any) -> dict[str, Any]:
    found = {"return": normalizer.ret_rms}
    if normalizer.norm_obs:
        rms = normalizer.obs_rms
        found |= rms if isinstance(rms, dict) else {"obs": rms}
    return {
        f"{key} {name}": getattr(rms, name)
        for key, rms in found.items()
        for name in ("mean", "var", "count")
    }


def both_normalizers(make: Callable[[], gym.Env], n_steps: int, **options: Any) -> tuple[Any, Any]:
    """Play alike around ours and SB3's normaliser, and compare all that comes out."""
    ours, plain = (kind(DummyVecEnv([make] * 3), **options)
                   for kind in (VecNormalizeVisible, VecNormalize))  # fmt: skip
    for env in (ours, plain):
        env.seed(3)
        env.action_space.seed(0)
    assert_same(ours.reset(), plain.reset())
    for _ in range(n_steps):
        actions = np.array([ours.action_space.sample() for _ in range(3)])
        mine, theirs = ours.step(actions), plain.step(actions)
        for one, other in zip(mine[:3], theirs[:3], strict=True):
            assert_same(one, other)
        for one, other in zip(mine[3], theirs[3], strict=True):
            assert ("terminal_observation" in one) == ("terminal_observation" in other)
            if "terminal_observation" in one:
                assert_same(one["terminal_observation"], other["terminal_observation"])
        assert_same(ours.get_original_obs(), plain.get_original_obs())
    assert_same(statistics_of(ours), statistics_of(plain))
    return ours, plain


class TestNothingDeclaredIsVecNormalize:
    """Bit for bit, on environments of others."""

    @pytest.mark.parametrize("name", FLAGLESS)
    @pytest.mark.filterwarnings("ignore:invalid value")
    @pytest.mark.parametrize(
        "options", [{}, {"training": False}, {"norm_reward": False, "clip_obs": 0.5},
                    {"norm_obs": False}]
    )  # fmt: skip
    def test_for_observations_rewards_final_frames_and_statistics(
        self, name: str, options: dict[str, Any]
    ) -> None:
        both_normalizers(FLAGLESS[name], 250, **options)

    def test_for_some_keys_of_a_dict_and_the_others_as_they_are(self) -> None:
        space = spaces.Dict(gyro=box(3), mode=spaces.Discrete(3))

        def draw(rng: Any, count: int) -> dict[str, Any]:
            return {"gyro": holes(rng, count), "mode": rng.integers(3)}

        make = lambda: DrawnEnv(space, draw)  # noqa: E731
        both_normalizers(make, 100, norm_obs_keys=["gyro"])
        both_normalizers(make, 100, norm_obs=False)

    def test_around_gymnasiums_vectors(self) -> None:
        seen = []
        for kind in (VecNormalizeVisible, VecNormalize):
            makers = [FLAGLESS["float64"]] * 3
            envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
            env = kind(GymnasiumVecEnv(envs))
            env.seed(0)
            seen.append([env.reset(), *(env.step(np.zeros(3, int))[0] for _ in range(100))])
        np.testing.assert_array_equal(*seen)

    @pytest.mark.parametrize("name", FLAGLESS)
    def test_for_observations_that_are_given(self, name: str) -> None:
        ours, plain = both_normalizers(FLAGLESS[name], 30)
        batch = plain.get_original_obs()
        single = {k: v[0] for k, v in batch.items()} if isinstance(batch, dict) else batch[0]
        for obs in (batch, single):
            assert_same(ours.normalize_obs(obs), plain.normalize_obs(obs))
            mine, theirs = ours.normalize_obs(obs), plain.normalize_obs(obs)
            assert_same(ours.unnormalize_obs(mine), plain.unnormalize_obs(theirs))

    @pytest.mark.parametrize("name", FLAGLESS)
    def test_for_spaces_but_for_integers_which_become_floats(self, name: str) -> None:
        ours, plain = both_normalizers(FLAGLESS[name], 1)

        def parts(env: VecEnv) -> dict[str, spaces.Space]:
            space = env.observation_space
            return dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}

        for key, space in parts(plain).items():
            mine = parts(ours)[key]
            assert mine == space or (space.dtype.kind in "iu" and mine.dtype == np.float32)

    def test_but_the_spaces_of_the_environments_stay_as_they_are(self) -> None:
        venv = DummyVecEnv([lambda: DrawnEnv(SENSED, dicts)])
        VecNormalizeVisible(venv)
        assert venv.observation_space["camera"] == spaces.Box(0, 255, (36, 36, 1), np.uint8)

    def test_the_switch_of_the_issue_has_mean_and_variance_of_a_switch(self) -> None:
        env = VecNormalizeVisible(DummyVecEnv([FLAGLESS["a switch"]]), norm_reward=False)
        env.reset()
        for _ in range(2_000):
            env.step([0])
        assert env.obs_rms.mean[0] == pytest.approx(0.5, abs=0.05)
        assert env.obs_rms.var[0] == pytest.approx(0.25, abs=0.05)

    @pytest.mark.parametrize("name", ["CartPole-v1", "a switch", "float64", "zeros and NaN"])
    def test_the_single_wrapper_is_gymnasiums_with_statistics_in_float64(self, name: str) -> None:
        ours = NormalizeVisibleObservation(FLAGLESS[name]())
        plain = NormalizeObservation(FLAGLESS[name]())
        plain.obs_rms = RunningMeanStd(shape=plain.observation_space.shape)
        mine, theirs = ours.reset(seed=0)[0], plain.reset(seed=0)[0]
        for step in range(300):
            assert_same(mine, theirs)
            mine, _, terminated, truncated, _ = ours.step(step % 2)
            theirs = plain.step(step % 2)[0]
            if terminated or truncated:
                mine, theirs = ours.reset()[0], plain.reset()[0]


def blinking(rng: Any, count: int) -> np.ndarray:
    """A sensor that flickers and says nothing."""
    frame = rng.normal(10.0, 1.0, 2).astype(np.float32)
    return frame * (rng.random() < 0.5)


class TestWhatLooksBlanked:
    """Is pointed out once, where nobody tells and nobody has said."""

    @staticmethod
    def run(env: Any, n_steps: int = 400) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if isinstance(env, VecEnv):
                env.seed(0)
                env.reset()
            else:
                env.reset(seed=0)
            for _ in range(n_steps):
                if isinstance(env, VecEnv):
                    env.step(np.zeros(env.num_envs, int))
                elif any(env.step(0)[2:4]):
                    env.reset()
        return [str(warning.message) for warning in caught]

    def test_for_vectors_and_single_environments(self) -> None:
        make = lambda: DrawnEnv(box(2), blinking)  # noqa: E731
        for env in (
            VecNormalizeVisible(DummyVecEnv([make] * 2)),
            NormalizeVisibleObservation(make()),
        ):
            (message,) = self.run(env)
            assert "pass zero_is_blank=True" in message
            assert self.run(env) == []

    def test_for_a_key_of_a_dict(self) -> None:
        def draw(rng: Any, count: int) -> dict[str, Any]:
            return {"gyro": blinking(rng, count), "steps": np.array([count, 1], np.int64)}

        space = spaces.Dict(gyro=box(2), steps=box(2, dtype=np.int64, high=1e6))
        assert len(self.run(VecNormalizeVisible(DummyVecEnv([lambda: DrawnEnv(space, draw)])))) == 1

    @pytest.mark.parametrize("options", [{"zero_is_blank": True}, {"training": False},
                                         {"norm_obs": False}])  # fmt: skip
    def test_not_where_it_is_said_or_does_no_harm(self, options: dict[str, Any]) -> None:
        venv = DummyVecEnv([lambda: DrawnEnv(box(2), blinking)] * 2)
        assert self.run(VecNormalizeVisible(venv, **options)) == []

    @pytest.mark.parametrize(
        "draw",
        [
            lambda rng, count: np.array([count % 2], np.float32),
            lambda rng, count: (rng.random(4) < 0.2).astype(np.float32),  # switches
            lambda rng, count: np.eye(3, dtype=np.float32)[count % 3] * (count % 2),  # one-hot
            lambda rng, count: rng.integers(0, 3, 2).astype(np.float32),  # a place on a grid
            lambda rng, count: rng.normal(size=2).astype(np.float32) * (count > 0),  # an origin
            lambda rng, count: rng.normal(size=2).astype(np.float32) * (count % 20 > 0),
            lambda rng, count: np.zeros(2, np.float32),  # nothing is there at all
            lambda rng, count: np.array([rng.normal(), 0], np.float32) * (count % 2),
        ],
    )
    def test_not_for_what_is_often_zero_by_its_nature(self, draw: Any) -> None:
        make = lambda: DrawnEnv(box(*draw(np.random.default_rng(0), 1).shape), draw)  # noqa: E731
        assert self.run(VecNormalizeVisible(DummyVecEnv([make] * 3))) == []
        assert self.run(NormalizeVisibleObservation(make())) == []

    def test_not_where_flags_are_told(self) -> None:
        assert self.run(VecNormalizeVisible(make_vec_env(FLICKERING, 2))) == []
        assert self.run(NormalizeVisibleObservation(gym.make(FLICKERING))) == []

    def test_the_watch_ends(self) -> None:
        watch = ZeroWatch()
        assert not watch.suspects(np.ones((ZeroWatch.FRAMES, 2)))
        assert not watch.suspects(np.zeros((ZeroWatch.FRAMES, 2)))


def flagged(n_envs: int = 2, **options: Any) -> VecNormalizeVisible:
    env = VecNormalizeVisible(make_vec_env(FLICKERING, n_envs, seed=0), **options)
    env.reset()
    for _ in range(20):
        env.step(np.zeros(n_envs, int))
    return env


def flagless(**options: Any) -> VecNormalizeVisible:
    env = VecNormalizeVisible(DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2), **options)
    env.reset()
    for _ in range(20):
        env.step(np.zeros(2, int))
    return env


def again(env: VecNormalizeVisible) -> VecNormalizeVisible:
    return pickle.loads(pickle.dumps(env))


GUESS = "was given observations without their flags.*blanked=info"
ZERO, READING = np.zeros(4, np.float32), np.ones(4, np.float32)


class TestGivenWithoutFlags:
    """What has met flags takes zeros for blanks and says so once; others take them for data."""

    @pytest.mark.parametrize("copy", [lambda env: env, again])
    @pytest.mark.parametrize("method", ["normalize_obs", "unnormalize_obs"])
    def test_it_is_guessed_where_flags_were_met(self, copy: Any, method: str) -> None:
        function = getattr(copy(flagged()), method)
        function(READING)  # nothing to guess
        with pytest.warns(UserWarning, match=GUESS) as caught:
            assert not function(ZERO).any()
        assert caught[0].filename == __file__
        shown = function(np.stack([ZERO, READING]))
        assert shown.any(axis=1).tolist() == [False, True]

    def test_every_normaliser_says_so_once(self) -> None:
        env = flagged()
        for normalizer in (env, again(env)):
            with pytest.warns(UserWarning, match=GUESS) as caught:
                for _ in range(3):
                    normalizer.normalize_obs(ZERO)
            assert len(caught) == 1

    @pytest.mark.parametrize("flags", [False, [False, False], [None, False], np.zeros(2, bool)])
    def test_it_is_not_guessed_where_a_flag_is_given(self, flags: Any) -> None:
        assert flagged().normalize_obs(np.zeros((2, 4)), flags).any(axis=1).all()

    @pytest.mark.parametrize("copy", [lambda env: env, again])
    def test_zeros_are_data_where_none_was_ever_met(self, copy: Any) -> None:
        assert copy(flagless()).normalize_obs(ZERO).all()

    def test_no_observations_are_no_reason_to_fail(self) -> None:
        for env in (flagged(), flagless(), flagless(zero_is_blank=True)):
            assert env.normalize_obs(np.zeros((0, 4), np.float32)).shape == (0, 4)

    def test_zeros_are_blank_without_a_word_where_that_is_said(self) -> None:
        assert not flagless(zero_is_blank=True).normalize_obs(ZERO).any()
        assert not flagged(zero_is_blank=True).normalize_obs(ZERO).any()

    def test_an_actor_guesses_too(self) -> None:
        for make, guesses in ((flagged, True), (flagless, False)):
            env = make()
            model = small_model(env)
            for actor in (
                StatefulActor.like(model, env),
                StatefulActor(model, normalizer=again(env)),
            ):
                spy = actor.model = Spy(model)
                if guesses:
                    with pytest.warns(UserWarning, match=GUESS):
                        actor.act(ZERO)
                    assert again(env).met_flags
                    env.warned_of_guess = False
                else:
                    actor.act(ZERO)
                assert spy.seen[-1].any() != guesses
                actor.act(ZERO, blanked=False)
                assert spy.seen[-1].any()

    def test_what_knows_the_flags_does_not_guess(self) -> None:
        env = make_vec_env(FLICKERING, 2, seed=0, normalize=True)
        trace = look_inside(small_model(env), env, 200)
        assert trace.blanked.any()
        recipe = Recipe(n_timesteps=1, normalize={})
        evaluation = wrap_as_trained(make_vec_env(FLICKERING, 2, seed=1), recipe, env)
        evaluation.reset()
        for _ in range(100):
            evaluation.step(np.zeros(2, int))


class Spy:
    """A model that remembers what it was shown."""

    def __init__(self, model: Any) -> None:
        self.model, self.seen = model, []
        self.observation_space, self.action_space = model.observation_space, model.action_space

    def predict(self, obs: Any, state: Any, start: Any, deterministic: bool) -> Any:
        self.seen.append(obs)
        return self.model.predict(obs, state, start, deterministic)


def small_model(env: VecEnv) -> RecurrentPPO:
    return RecurrentPPO("MlpLstmPolicy", env, n_steps=8, batch_size=8, seed=0,
                        policy_kwargs={"lstm_hidden_size": 8})  # fmt: skip


class TestFiles:
    def old(self, name: str) -> VecNormalizeVisible:
        """A normaliser that an earlier version saved after 60 steps of two environments."""
        path = DATA / f"normalizer_before_zero_is_blank_{name}.pkl"
        with pytest.warns(UserWarning, match="set its attribute zero_is_blank to False") as caught:
            loaded = pickle.loads(path.read_bytes())
        assert len(caught) == 1
        return loaded

    @pytest.mark.parametrize("name", ["flagless", "flagged"])
    def test_an_old_file_goes_on_taking_zeros_for_blanks(self, name: str) -> None:
        loaded = self.old(name)
        assert loaded.zero_is_blank is True
        assert not loaded.normalize_obs(np.zeros(loaded.obs_rms.mean.shape)).any()
        assert loaded.normalize_obs(np.zeros(loaded.obs_rms.mean.shape), False).any()

    def test_an_old_file_trains_on_as_its_statistics_were_made(self) -> None:
        loaded = self.old("flagless")
        loaded.set_venv(DummyVecEnv([lambda: DrawnEnv(box(2), blinking)] * 2))
        loaded.seed(0)
        loaded.reset()
        mean, count, seen = loaded.obs_rms.mean, loaded.obs_rms.count, []
        for _ in range(200):
            obs, raw = loaded.step(np.zeros(2, int))[0], loaded.get_original_obs()
            assert obs.any(axis=1).tolist() == raw.any(axis=1).tolist()
            seen += list(raw[raw.any(axis=1)])
        assert 100 < len(seen) < 300
        expected = (mean * count + np.sum(seen, axis=0)) / (count + len(seen))
        assert loaded.obs_rms.mean == pytest.approx(expected, rel=1e-6)

    def test_loading_an_old_file_works_by_every_way(self, tmp_path: Path) -> None:
        path = str(DATA / "normalizer_before_zero_is_blank_flagged.pkl")
        with pytest.warns(UserWarning, match="zero_is_blank"):
            loaded = VecNormalizeVisible.load(path, make_vec_env(FLICKERING, 1))
        assert loaded.zero_is_blank
        model = small_model(make_vec_env(FLICKERING, 1, normalize=True))
        with pytest.warns(UserWarning, match="zero_is_blank"):
            StatefulActor(model, normalizer=path).act(ZERO)

    def test_saved_again_it_says_no_more_and_keeps_what_was_set(self) -> None:
        loaded = self.old("flagless")
        assert again(loaded).zero_is_blank is True
        loaded.zero_is_blank = False
        assert again(loaded).zero_is_blank is False
        assert again(loaded).normalize_obs(np.zeros(2)).any()

    @pytest.mark.parametrize("zero_is_blank", [False, True])
    @pytest.mark.parametrize(("make", "met"), [(flagged, True), (flagless, False)])
    def test_a_new_file_remembers_what_was_said_and_met(
        self, zero_is_blank: bool, make: Any, met: bool, tmp_path: Path
    ) -> None:
        make(zero_is_blank=zero_is_blank).save(str(tmp_path / "it.pkl"))
        venv = DummyVecEnv([lambda: gym.make("CartPole-v1")])
        loaded = VecNormalizeVisible.load(str(tmp_path / "it.pkl"), venv)
        assert (loaded.zero_is_blank, loaded.met_flags) == (zero_is_blank, met)
        loaded.reset()
        assert loaded.step([0])[0].shape == (1, 4)

    def test_an_old_single_wrapper_goes_on_too(self) -> None:
        """Pickled around a CartPole after five steps."""
        path = DATA / "single_wrapper_before_zero_is_blank.pkl"
        with pytest.warns(UserWarning, match="set its attribute zero_is_blank to False"):
            env = pickle.loads(path.read_bytes())
        assert env.zero_is_blank
        count = env.obs_rms.count
        env.env = DrawnEnv(box(4), lambda rng, count: np.zeros(4, np.float32))
        assert not env.reset()[0].any()
        assert env.obs_rms.count == count
        env.zero_is_blank = False
        assert env.step(0)[0].any()


class TestRecipes:
    def test_the_option_passes_through_and_is_handed_on(self) -> None:
        mapping = {"n_timesteps": 8, "n_envs": 2, "normalize": {"zero_is_blank": True}}
        recipe = Recipe.from_mapping(ARMS["lstm"], mapping)
        make = lambda: DummyVecEnv([lambda: DrawnEnv(box(2), blinking)] * 2)  # noqa: E731
        trained = VecNormalizeVisible(make(), **recipe.normalize)
        evaluation = unwrap_vec_normalize(wrap_as_trained(make(), recipe, trained))
        assert evaluation.zero_is_blank
        assert not evaluation.normalize_obs(np.zeros(2)).any()

    def test_what_was_met_is_handed_on_at_once_and_later(self) -> None:
        recipe, trained = Recipe(n_timesteps=1, normalize={}), flagged()
        venv = make_vec_env(FLICKERING, 2)
        assert unwrap_vec_normalize(wrap_as_trained(venv, recipe, trained)).met_flags
        fresh = VecNormalizeVisible(make_vec_env(FLICKERING, 2))
        frozen = unwrap_vec_normalize(wrap_as_trained(venv, recipe, fresh))
        assert not frozen.met_flags
        copy_statistics(trained, frozen)
        assert frozen.met_flags

    def test_a_plain_normaliser_takes_zeros_for_data_there_too(self) -> None:
        plain = VecNormalize(make_vec_env("CartPole-v1", 1))
        recipe = Recipe(n_timesteps=1, normalize={})
        frozen = wrap_as_trained(make_vec_env("CartPole-v1", 1), recipe, plain)
        assert not frozen.zero_is_blank


class TestBadArguments:
    @pytest.mark.parametrize("value", [None, 1, "yes"])
    def test_what_is_no_bool_is_refused(self, value: Any) -> None:
        with pytest.raises(ValueError, match="zero_is_blank must be True or False, got"):
            VecNormalizeVisible(make_vec_env(FLICKERING, 1), zero_is_blank=value)
        with pytest.raises(ValueError, match="zero_is_blank must be True or False, got"):
            NormalizeVisibleObservation(gym.make(FLICKERING), zero_is_blank=value)

    def test_the_single_wrappers_option_survives_its_spec(self) -> None:
        env = NormalizeVisibleObservation(gym.make("CartPole-v1"), zero_is_blank=True)
        assert gym.make(env.spec).zero_is_blank is True


class TestStrangersPrograms:
    """What someone might write who has read the front page only."""

    def test_a_robot_whose_bumper_is_a_switch_beside_a_flickering_gyro(self) -> None:
        rng = np.random.default_rng(0)
        frames = [(rng.normal(5, 2, 3).astype(np.float32), np.float32(rng.random() < 0.1),
                   bool(rng.random() < 0.5)) for _ in range(300)]  # fmt: skip

        class Robot(gym.Env):
            observation_space = spaces.Dict(gyro=box(3), bumper=box(1))
            action_space = spaces.Discrete(2)

            def _see(self) -> tuple[Any, dict[str, Any]]:
                gyro, bump, lost = frames[self.n]
                obs = {"gyro": gyro * (not lost), "bumper": np.array([bump])}
                return obs, {"blanked": {"gyro": lost}}

            def reset(self, *, seed: Any = None, options: Any = None) -> Any:
                self.n = 0
                return self._see()

            def step(self, action: Any) -> Any:
                self.n += 1
                obs, info = self._see()
                return obs, 0.0, False, False, info

        env = VecNormalizeVisible(DummyVecEnv([Robot]))
        env.reset()
        for _ in range(len(frames) - 1):
            env.step([0])
        gyro, bumps = [g for g, _, lost in frames if not lost], [b for _, b, _ in frames]
        assert env.obs_rms["gyro"].mean == pytest.approx(np.mean(gyro, axis=0), rel=1e-4)
        assert env.obs_rms["bumper"].mean[0] == pytest.approx(np.mean(bumps), rel=1e-4)

    def test_a_half_equipped_fleet_in_one_vector(self) -> None:
        quiet = lambda: DrawnEnv(box(4), lambda rng, n: np.zeros(4, np.float32))  # noqa: E731
        loud = lambda: FlickerObservation(  # noqa: E731
            DrawnEnv(box(4), lambda rng, n: np.full(4, 3.0, np.float32)), 0.5
        )
        env = VecNormalizeVisible(DummyVecEnv([quiet, loud]), norm_reward=False)
        env.seed(0)
        env.reset()
        seen = [0.0] + ([] if env.unwrapped.reset_infos[1]["blanked"] else [3.0])
        for _ in range(200):
            _, _, dones, infos = env.step([0, 0])
            info = env.unwrapped.reset_infos[1] if dones[1] else infos[1]
            seen += [0.0] + ([] if info["blanked"] else [3.0])
        assert env.obs_rms.mean == pytest.approx([np.mean(seen)] * 4, rel=1e-5)

    def test_an_off_policy_learner_normalises_what_it_stored_as_it_was_shown(self) -> None:
        # SB3's replay buffers keep raw observations and call normalize_obs without flags.
        env = make_vec_env(FLICKERING, 2, seed=0, normalize=True)
        stored, shown = [], []
        obs = env.reset()
        env.training = False
        for _ in range(50):
            stored.append(env.get_original_obs())
            obs = env.step(np.zeros(2, int))[0]
            shown.append(obs)
        with pytest.warns(UserWarning, match=GUESS):
            again = [env.normalize_obs(raw) for raw in [*stored[1:], env.get_original_obs()]]
        np.testing.assert_array_equal(again, shown)

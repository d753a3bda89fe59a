"""What is measured and made is of the tasks that are known, not of what has their names."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import WrapperSpec

from thrust_pomdp.envs import cartpole
from thrust_pomdp.reference import (
    LADDER,
    LADDERS,
    RandomController,
    controllers,
    episodes,
    ladder,
    measure,
    play,
    stored_ladder,
)
from thrust_pomdp.reference.control_laws import Memoryless
from thrust_pomdp.reference.figures import FIGURES_FILE, read_figures, write_figures
from thrust_pomdp.reference.tasks import task_of

MASKED, FLICKERING = "MaskedCartPole-v0", "FlickeringCartPole-v0"


BURST, BOTH = "BurstFlickeringCartPole-v0", "MaskedFlickeringCartPole-v0"


class Timid(cartpole.FlickeringCartPoleEnv):
    """The same class but for its rewards."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return (obs, 2 * reward, *rest)


class Doubled(gym.RewardWrapper):
    def reward(self, reward):
        return 2 * reward


SINGLE = "thrust_pomdp.envs.cartpole:FlickeringCartPoleEnv"


TWIN = "thrust_pomdp.envs.cartpole_vector:FlickeringCartPoleVectorEnv"


DOUBLED = (WrapperSpec("Doubled", f"{__name__}:Doubled", {}),)


#: What a program may have registered: id, arguments of ``gym.register``, of the environment.
OTHER_TASKS = {
    "a limit of 50 under our id": (FLICKERING, {"entry_point": SINGLE, "max_episode_steps": 50}),
    "other arguments under our id": (
        FLICKERING, {"entry_point": SINGLE, "kwargs": {"flicker_prob": 0.1}}),
    "another class under our id": (FLICKERING, {"entry_point": Timid}),
    "the name of another class": (FLICKERING, {"entry_point": f"{__name__}:Timid"}),
    "CartPole under our id": (
        FLICKERING, {"entry_point": "gymnasium.envs.classic_control:CartPoleEnv"}),
    "a factory under our id": (
        FLICKERING, {"entry_point": lambda **kwargs: Timid(**kwargs)}),
    "our id with a wrapper": (
        FLICKERING, {"entry_point": SINGLE, "additional_wrappers": DOUBLED}),
    "an own id with a wrapper": (
        "Mine-v0", {"entry_point": SINGLE, "additional_wrappers": DOUBLED}),
    "an own id of another class": ("Mine-v0", {"entry_point": Timid}),
}  # fmt: skip


#: Those that are played by other rules, not only for longer or through other sensors.
OTHER_RULES = [name for name in OTHER_TASKS if not name.startswith(("a limit", "other arg"))]


@pytest.fixture
def others():
    """Registers one of :data:`OTHER_TASKS`, for a test."""
    before = dict(gym.registry)

    def register(name):
        env_id, arguments = OTHER_TASKS[name]
        gym.registry.pop(env_id, None)
        gym.register(env_id, **{"vector_entry_point": TWIN, "max_episode_steps": 500, **arguments})
        return env_id, {}

    yield register
    gym.registry.clear()
    gym.registry.update(before)


class TestWhatAProgramMadeOfAnId:
    """Figures, controllers and bounds are of what was written, whatever stands under the id."""

    @pytest.mark.parametrize("other", OTHER_RULES)
    def test_has_no_scripted_controllers(self, others, other):
        env_id, env_kwargs = others(other)
        with pytest.raises(ValueError, match=r"of this package, .* got '.*-v0': .* registered"):
            controllers(env_id, **env_kwargs)

    @pytest.mark.parametrize("other", OTHER_TASKS)
    def test_is_what_is_played(self, others, other):
        """By hand, in single environments that ``gym.make`` makes."""
        env_id, env_kwargs = others(other)
        returns = play(env_id, RandomController(2, seed=0), 5, seed=3, **env_kwargs)
        actions = RandomController(2, seed=0)
        envs = gym.vector.SyncVectorEnv(
            [lambda: gym.make(env_id, disable_env_checker=True, **env_kwargs)] * 5,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
        )
        assert (episodes.first_episodes(envs, actions, range(3, 8)) == returns).all()

    @pytest.mark.parametrize("other", OTHER_RULES)
    def test_has_no_proofs(self, others, other):
        env_id, env_kwargs = others(other)
        rung = measure(env_id, RandomController(2, seed=0), 10, **env_kwargs)
        assert (rung.kind, rung.reason) == ("best found", "a lower bound")

    def test_may_be_a_task_of_others(self):
        """Gymnasium's own vector is not taken: it is not known to be the same."""
        returns = play("CartPole-v1", RandomController(2, seed=0), 200)
        assert 15 < returns.mean() < 30
        envs = episodes.make_envs("CartPole-v1", 2)
        assert isinstance(envs, gym.vector.SyncVectorEnv)

    @pytest.mark.parametrize("name", ["step", "reset"])
    def test_may_be_a_method_replaced_on_a_class(self, monkeypatch, name):
        plain = getattr(cartpole.FlickeringCartPoleEnv, name)
        replaced = lambda self, *args, **kwargs: plain(self, *args, **kwargs)  # noqa: E731
        monkeypatch.setattr(cartpole.FlickeringCartPoleEnv, name, replaced)
        assert stored_ladder(FLICKERING) == ()
        assert stored_ladder(BURST) == ()
        assert stored_ladder(MASKED) == LADDER[MASKED]
        assert isinstance(episodes.make_envs(FLICKERING, 2), gym.vector.SyncVectorEnv)
        with pytest.raises(ValueError, match=f"{name} was replaced"):
            controllers(FLICKERING)
        with pytest.raises(ValueError, match=f"as it was written, got .*{name} was replaced"):
            task_of(gym.make(FLICKERING).unwrapped)

    def test_of_other_arguments_and_limits_is_measured_as_it_is(self, others):
        env_id, _ = others("a limit of 50 under our id")
        assert [rung.mean for rung in ladder(env_id, 50)][-1] == 50.0


class TestStoredLadders:
    @pytest.mark.parametrize(
        ("env_id", "env_kwargs", "same"),
        [
            (FLICKERING, {}, FLICKERING),
            (FLICKERING, {"flicker_prob": 0.5, "burst_len": None}, FLICKERING),
            (FLICKERING, {"burst_len": 4.0}, BURST),
            (FLICKERING, {"hide_velocities": True, "expose_state": True}, BOTH),
            ("thrust_pomdp:MaskedCartPole-v0", {"kinematics_integrator": "euler"}, MASKED),
        ],
    )
    def test_hold_for_the_same_environment_under_other_names(self, env_id, env_kwargs, same):
        assert stored_ladder(env_id, **env_kwargs) == LADDER[same]

    @pytest.mark.parametrize(
        ("env_id", "env_kwargs"),
        [
            (FLICKERING, {"flicker_prob": 0.3}),
            (FLICKERING, {"max_episode_steps": 200}),
            ("CartPole-v1", {}),
            ("NoSuchEnv-v0", {}),
        ],
    )
    def test_hold_for_no_other(self, env_id, env_kwargs):
        assert stored_ladder(env_id, **env_kwargs) == ()

    @pytest.mark.parametrize("other", OTHER_TASKS)
    def test_hold_for_nothing_that_a_program_made_of_an_id(self, others, other):
        env_id, env_kwargs = others(other)
        assert stored_ladder(env_id, **env_kwargs) == ()
        assert stored_ladder(MASKED) == LADDER[MASKED]

    def test_hold_for_an_own_id_of_the_same_class_and_arguments(self, others):
        for entry_point in (SINGLE, cartpole.FlickeringCartPoleEnv):
            gym.register("Mine-v0", entry_point, kwargs={"burst_len": 4}, max_episode_steps=500)
            assert stored_ladder("Mine-v0") == LADDER[BURST]
            assert stored_ladder("Mine-v0", max_episode_steps=None) == LADDER[BURST]
            assert stored_ladder("Mine-v0", max_episode_steps=-1) == ()
            del gym.registry["Mine-v0"]

    def test_survive_their_file(self, tmp_path):
        write_figures(tmp_path / "figures.csv", LADDERS)
        assert read_figures(tmp_path / "figures.csv") == LADDERS
        assert (tmp_path / "figures.csv").read_text() == FIGURES_FILE.read_text()


class TestBadInput:
    def test_a_foreign_environment(self):
        with pytest.raises(ValueError, match="of this package, .* got 'CartPole-v1'"):
            controllers("CartPole-v1")

    def test_an_environment_without_an_end(self):
        with pytest.raises(ValueError, match="max_episode_steps must be at least 1, .* got -1"):
            ladder(MASKED, 10, max_episode_steps=-1)

    def test_an_own_id_without_an_end(self, others):
        others("an own id of another class")
        gym.registry["Mine-v0"].entry_point = SINGLE
        gym.registry["Mine-v0"].max_episode_steps = None
        with pytest.raises(ValueError, match="max_episode_steps must be .* got -1 for Mine-v0"):
            ladder("Mine-v0", 10)
        assert play("Mine-v0", RandomController(2, seed=0), 5, max_episode_steps=9).max() == 9

    def test_a_bad_argument_of_the_environment(self):
        with pytest.raises(ValueError, match="flicker_prob must be a probability"):
            ladder(FLICKERING, 10, flicker_prob=1.5)

    def test_one_episode_has_no_interval(self):
        with pytest.raises(ValueError, match="n_episodes must be at least 2, .* got 1"):
            ladder(MASKED, 1)

    def test_no_episodes(self):
        with pytest.raises(ValueError, match="n_episodes must be at least 1, got 0"):
            play(MASKED, RandomController(2), 0)

    def test_frames_that_do_not_fit(self):
        law = Memoryless([0.0, 1.0, 0.0])
        with pytest.raises(ValueError, match="each of the 0 environments named in reset"):
            law.act(np.zeros((1, 2)))
        law.reset(2)
        with pytest.raises(ValueError, match=r"2 environments .* got shapes \(3, 2\) and \(3,\)"):
            law.act(np.zeros((3, 2)))
        with pytest.raises(ValueError, match=r"got shapes \(2, 2\) and \(1,\)"):
            law.act(np.zeros((2, 2)), [True])
        with pytest.raises(ValueError, match=r"ended must have shape \(2,\)"):
            law.restart([True])

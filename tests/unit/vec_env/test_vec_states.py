"""Vectorised environments in all their layers go on bit for bit where others were."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)
from state_tools import assert_equal, differing_attributes, kept_in_file
from strangers_envs import HeldWalk, Tired, Walk

import thrust_pomdp
from thrust_pomdp.envs.registration import ENVIRONMENTS
from thrust_pomdp.safe_files import read_tree, write_tree
from thrust_pomdp.vec_env.layer import VecLayer
from thrust_pomdp.vec_env.privileged import VecUnprivileged
from thrust_pomdp.vec_env.states import missing, set_vec_state, vec_state
from thrust_pomdp.wrappers import known_layers

N_ENVS = 3
LAYERS = {"normalize": True, "previous_action": True, "previous_reward": True, "frame_stack": 3}


def actions_of(venv: Any, rng: np.random.Generator) -> Any:
    space = venv.action_space
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=venv.num_envs)
    return rng.uniform(space.low, space.high, (venv.num_envs, *space.shape)).astype(np.float32)


def stepped(venv: Any, n_steps: int, seed: int = 0) -> Any:
    venv.seed(seed)
    venv.reset()
    rng = np.random.default_rng(seed)
    for _ in range(n_steps):
        venv.step(actions_of(venv, rng))
    return venv


def assert_steps_equal(one: Any, other: Any, n_steps: int, seed: int = 9) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(n_steps):
        actions = actions_of(one, rng)
        outcomes = [list(venv.step(actions)) for venv in (one, other)]
        for outcome in outcomes:
            outcome[3] = [dict(info) for info in outcome[3]]
        assert_equal(*outcomes)


def assert_steps_and_reset_equal(one: Any, other: Any) -> None:
    assert_steps_equal(one, other, 50)
    assert_equal(one.reset(), other.reset())


def assert_goes_on(make: Any, n_steps: int = 67, later: int = 300) -> None:
    """Compare steps, a reset, and a seed given later."""
    venv, other = stepped(make(), n_steps), make()
    assert set_vec_state(other, kept_in_file(vec_state(venv))) == []
    assert_steps_equal(venv, other, later)
    assert_equal(venv.reset(), other.reset())
    assert_steps_equal(venv, other, later // 4)
    for one in (venv, other):
        one.seed(8)
    assert_equal(venv.reset(), other.reset())
    assert_steps_equal(venv, other, later // 4)
    venv.close()
    other.close()


def ours(env_id: str = "BurstFlickeringCartPole-v0", **kwargs: Any) -> Any:
    return thrust_pomdp.make_vec_env(env_id, N_ENVS, **kwargs)


class Camera(gym.ObservationWrapper[Any, Any, Any]):
    """Shows a picture."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)

    def observation(self, obs: Any) -> Any:
        return (np.ones((36, 36, 3)) * 40 * np.abs(obs[0])).astype(np.uint8)


def with_layers(env_id: str) -> list[Any]:
    """Layers of SB3 and of this package, in several orders."""
    return [
        lambda: VecMonitor(VecNormalize(VecCheckNan(VecFrameStack(ours(env_id, **DUMMY), 3)))),
        lambda: VecFrameStack(VecNormalize(VecCheckNan(ours(env_id))), 2),
        lambda: VecNormalize(VecNormalize(ours(env_id), norm_reward=False), norm_obs=False),
        lambda: thrust_pomdp.VecNormalizeVisible(ours(env_id), gamma=0.9, clip_obs=1.0),
        lambda: VecCheckNan(thrust_pomdp.VecPreviousAction(VecNormalize(ours(env_id, **DUMMY)))),
    ]


DUMMY = {"vec_env_cls": DummyVecEnv}


class TestNativeAndDummy:
    @pytest.mark.parametrize("env_id", [*ENVIRONMENTS, "CartPole-v1", "Pendulum-v1"])
    @pytest.mark.parametrize("kwargs", [{}, LAYERS, DUMMY, LAYERS | DUMMY])
    def test_go_on_bit_for_bit(self, env_id, kwargs):
        assert_goes_on(lambda: ours(env_id, **kwargs), later=120)

    @pytest.mark.parametrize("order", range(5))
    @pytest.mark.parametrize("env_id", ["BurstFlickeringCartPole-v0", "Pendulum-v1"])
    @pytest.mark.filterwarnings("ignore:The environment is already wrapped with a `Monitor`")
    def test_go_on_in_every_order_of_layers(self, order, env_id):
        assert_goes_on(with_layers(env_id)[order])

    @pytest.mark.parametrize("kwargs", [{}, DUMMY])
    def test_with_privileged_information(self, kwargs):
        assert_goes_on(
            lambda: thrust_pomdp.VecPrivilegedInfo(
                ours(normalize=True, env_kwargs={"expose_state": True}, **kwargs)
            )
        )

    def test_of_dict_observations(self):
        walks = [lambda: Monitor(HeldWalk()) for _ in range(N_ENVS)]
        assert_goes_on(
            lambda: VecFrameStack(
                VecExtractDictObs(
                    thrust_pomdp.VecNormalizeVisible(DummyVecEnv(walks), norm_obs_keys=["x"]), "x"
                ),
                2,
            )
        )

    def test_of_pictures(self):
        def make() -> Any:
            cameras = [lambda: Monitor(Camera(gym.make("Pendulum-v1"))) for _ in range(N_ENVS)]
            return VecFrameStack(VecTransposeImage(DummyVecEnv(cameras)), 2)

        assert_goes_on(make)

    def test_of_gymnasiums_vector(self):
        def make() -> Any:
            options = {"autoreset_mode": AutoresetMode.SAME_STEP}
            envs = gym.make_vec(
                "CartPole-v1", N_ENVS, vectorization_mode="sync", vector_kwargs=options
            )
            return thrust_pomdp.GymnasiumVecEnv(envs)

        assert_goes_on(make)

    def test_seeds_that_wait_for_a_reset(self):
        venv, other = stepped(ours(), 10), ours()
        venv.seed(123)
        set_vec_state(other, kept_in_file(vec_state(venv)))
        assert_equal(venv.reset(), other.reset())

    def test_options_that_wait_for_a_reset(self):
        for kwargs in ({}, DUMMY):
            venv, other = stepped(ours("MaskedCartPole-v0", **kwargs), 10), ours(**kwargs)
            other = ours("MaskedCartPole-v0", **kwargs)
            venv.set_options({"low": 0.01, "high": 0.02})
            set_vec_state(other, kept_in_file(vec_state(venv)))
            assert_equal(venv.reset(), other.reset())

    def test_reset_infos_are_held(self):
        venv, other = stepped(ours(), 30), ours()
        set_vec_state(other, kept_in_file(vec_state(venv)))
        assert_equal(venv.reset_infos, other.reset_infos)
        assert_equal(venv.blanked, other.blanked)

    def test_frozen_statistics_stay_frozen(self):
        venv, other = stepped(ours(normalize=True), 30), ours(normalize=True)
        venv.training = False
        set_vec_state(other, kept_in_file(vec_state(venv)))
        assert other.training is False
        assert_steps_equal(venv, other, 50)

    def test_a_normaliser_whose_counts_became_arrays(self):
        def make() -> Any:
            venv = DummyVecEnv([lambda: thrust_pomdp.ElementDropoutObservation(
                gym.make("CartPole-v1"), 0.5) for _ in range(N_ENVS)])  # fmt: skip
            return thrust_pomdp.VecNormalizeVisible(venv)

        assert_goes_on(make)

    def test_an_action_space_that_was_seeded_goes_on(self):
        venv, other = stepped(ours(), 5), ours()
        venv.action_space.seed(4)
        venv.action_space.sample()
        set_vec_state(other, kept_in_file(vec_state(venv)))
        assert [venv.action_space.sample() for _ in range(20)] == [
            other.action_space.sample() for _ in range(20)
        ]

    def test_nothing_that_the_layers_keep_differs(self):
        venv, other = stepped(ours(**LAYERS), 67), stepped(ours(**LAYERS), 30, seed=5)
        set_vec_state(other, kept_in_file(vec_state(venv)))
        for one, copied in zip(_chain(venv), _chain(other), strict=True):
            ignored = ("venv", "env", "_base", "class_attributes", "observation_space")
            parts = [{k: v for k, v in vars(layer).items() if k not in ignored}
                     for layer in (one, copied)]  # fmt: skip
            assert differing_attributes(*parts) == []

    def test_taking_a_state_changes_nothing(self):
        one, other = (stepped(ours(**LAYERS), 40) for _ in range(2))
        for _ in range(3):
            vec_state(one)
        assert_steps_equal(one, other, 200)

    def test_watches_for_blanks_go_on(self):
        def make() -> Any:
            return thrust_pomdp.VecNormalizeVisible(ours("CartPole-v1"))

        venv, other = stepped(make(), 20), make()
        set_vec_state(other, kept_in_file(vec_state(venv)))
        counts = [normalizer._watches[None]._frames for normalizer in (venv, other)]
        assert counts[0] == counts[1] > 0


def _chain(venv: Any) -> list[Any]:
    return [venv, *(_chain(venv.venv) if hasattr(venv, "venv") else [])]


class TestFiles:
    def test_of_arrays_and_json_hold_a_state(self, tmp_path):
        venv, other = stepped(ours(**LAYERS), 67), ours(**LAYERS)
        write_tree(tmp_path / "state", "state", vec_state(venv))
        assert set_vec_state(other, read_tree(tmp_path / "state", "state")) == []
        assert_steps_equal(venv, other, 200)

    def test_go_on_in_another_process(self, tmp_path):
        """As a program that was killed and is started again, which made other things before."""
        program = (
            "import sys; import numpy as np, thrust_pomdp\n"
            "from stable_baselines3.common.vec_env import DummyVecEnv\n"
            "from thrust_pomdp.safe_files import read_tree\n"
            "from thrust_pomdp.vec_env.states import set_vec_state\n"
            "for name, cls in (('native', None), ('dummy', DummyVecEnv)):\n"
            "    thrust_pomdp.make_vec_env('TMaze-v0', 2).reset()\n"
            "    venv = thrust_pomdp.make_vec_env('BurstFlickeringCartPole-v0', 3, normalize=True,"
            " previous_action=True, previous_reward=True, frame_stack=3, vec_env_cls=cls)\n"
            "    venv.reset()\n"
            "    assert set_vec_state(venv, read_tree(f'{sys.argv[1]}/{name}', 'state')) == []\n"
            "    for step in range(150):\n"
            "        obs = venv.step(np.arange(3) * step // 2 % 2)[0]\n"
            "    print(obs.tobytes().hex())\n"
        )
        expected = []
        for name, cls in (("native", None), ("dummy", DummyVecEnv)):
            venv = stepped(ours(**LAYERS, vec_env_cls=cls), 67)
            write_tree(tmp_path / name, "state", vec_state(venv))
            for step in range(150):
                obs = venv.step(np.arange(3) * step // 2 % 2)[0]
            expected.append(obs.tobytes().hex())
        told = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
        )
        assert told.stdout.split() == expected, told.stderr

    @pytest.mark.filterwarnings("ignore:The environment is already wrapped with a `Monitor`")
    @pytest.mark.parametrize("kwargs", [{}, DUMMY])
    def test_of_vec_monitor_go_on(self, tmp_path, kwargs):
        path = tmp_path / "vec.monitor.csv"
        venv = stepped(VecMonitor(ours(**kwargs), str(path)), 90)
        state, before = kept_in_file(vec_state(venv)), path.read_bytes()
        assert_steps_equal(venv, stepped(VecMonitor(ours(**kwargs)), 90), 90)
        after = _columns(path)
        venv.close()
        other = VecMonitor(ours(**kwargs), str(path))
        set_vec_state(other, state)
        assert path.read_bytes() == before
        rng = np.random.default_rng(9)
        for _ in range(90):
            other.step(actions_of(other, rng))
        assert _columns(path) == after
        other.close()

    @pytest.mark.parametrize("cls", [DummyVecEnv, SubprocVecEnv])
    def test_of_monitors_go_on(self, tmp_path, cls):
        def make() -> Any:
            return ours(vec_env_cls=cls, monitor_dir=str(tmp_path))

        venv = stepped(make(), 60)
        state = kept_in_file(vec_state(venv))
        files = sorted(tmp_path.iterdir())
        before = [path.read_bytes() for path in files]
        venv.close()
        other = make()
        assert [path.read_bytes() for path in files] != before
        set_vec_state(other, state)
        assert [path.read_bytes() for path in files] == before
        assert len(files) == N_ENVS
        other.close()


def _columns(path: Any) -> list[list[str]]:
    return [line.split(",")[:2] for line in path.read_text().splitlines()[1:]]


class TestWorkers:
    def test_go_on_bit_for_bit(self):
        assert_goes_on(lambda: ours(vec_env_cls=SubprocVecEnv, **LAYERS), later=60)

    def test_of_strangers_are_held_or_named(self):
        venv = SubprocVecEnv([_held_walk, _held_walk, _walk])
        other = SubprocVecEnv([_held_walk, _held_walk, _walk])
        stepped(venv, 20)
        told = set_vec_state(other, kept_in_file(vec_state(venv)))
        assert told == ["Walk has no methods get_state() and set_state(state)"]
        venv.close()
        other.close()

    def test_what_does_not_fit_is_refused_and_nothing_changed(self):
        venv, other = (stepped(ours(vec_env_cls=SubprocVecEnv), 5, seed) for seed in (0, 1))
        state, before = vec_state(venv), vec_state(other)
        state["layers"][0]["envs"][2]["layers"][-1]["state"]["fixed"]["hide_velocities"] = True
        with pytest.raises(ValueError, match="hide_velocities"):
            set_vec_state(other, state)
        assert_equal(vec_state(other), before)
        assert_steps_equal(venv, stepped(ours(vec_env_cls=SubprocVecEnv), 5), 5)
        venv.close()
        other.close()

    def test_in_the_middle_of_a_step_are_refused(self):
        venv = stepped(ours(vec_env_cls=SubprocVecEnv), 2)
        venv.step_async(np.zeros(N_ENVS, dtype=int))
        with pytest.raises(ValueError, match="venv must be between two steps"):
            vec_state(venv)
        venv.step_wait()
        venv.close()

    def test_without_a_wrapper_around_them_are_refused(self):
        venv = SubprocVecEnv([Walk])
        with pytest.raises(ValueError, match="put stable_baselines3's Monitor around each"):
            vec_state(venv)
        venv.close()

    def test_leave_nothing_at_the_environments(self):
        venv = stepped(ours(vec_env_cls=SubprocVecEnv), 2)
        vec_state(venv)
        assert venv.has_attr("_thrust_pomdp_door") is False
        venv.close()


def _held_walk() -> Any:
    return Monitor(HeldWalk())


def _walk() -> Any:
    return Monitor(Walk())


class Halving(VecUnprivileged):
    """A layer of a user's that remembers something, derived from one of this package."""

    def __init__(self, venv: Any) -> None:
        super().__init__(venv)
        self.scales = np.ones(venv.num_envs)

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = super().step_wait()
        self.scales = self.scales * 0.99
        return obs, rewards * self.scales, dones, infos


class TestStrangers:
    def test_a_layer_derived_from_ours_is_held_unasked(self):
        assert issubclass(Halving, VecLayer)
        assert_goes_on(lambda: Halving(ours()))

    def test_a_layer_of_sb3s_kind_is_named(self):
        class Mine(VecNormalize):
            """May do anything."""

        told = missing(vec_state(Mine(ours())))
        assert told == ["Mine has no methods get_state() and set_state(state)"]

    def test_a_wrapper_with_memory_is_named_once(self):
        venv = DummyVecEnv([lambda: Monitor(Tired(gym.make("Pendulum-v1")))] * N_ENVS)
        told = missing(vec_state(venv))
        assert told == ["Tired has no methods get_state() and set_state(state)"]

    def test_environments_with_methods_of_their_own_go_on(self):
        def make() -> Any:
            walks = DummyVecEnv([lambda: Monitor(HeldWalk()) for _ in range(N_ENVS)])
            return thrust_pomdp.VecNormalizeVisible(walks, norm_obs_keys=["x"])

        assert_goes_on(make)

    def test_a_normaliser_that_shares_its_statistics_goes_on_sharing(self):
        venv, other = ours(normalize=True), ours(normalize=True)
        evaluation = ours(normalize=True)
        evaluation.obs_rms = other.obs_rms
        stepped(venv, 30)
        set_vec_state(other, vec_state(venv))
        assert evaluation.obs_rms is other.obs_rms
        assert isinstance(other.obs_rms, RunningMeanStd)
        assert_equal(other.obs_rms.mean, venv.obs_rms.mean)

    @pytest.mark.parametrize("venv", [None, 3, gym.make("CartPole-v1")])
    def test_what_is_no_vec_env_is_refused(self, venv):
        with pytest.raises(ValueError, match="venv must be a VecEnv"):
            vec_state(venv)


class TestRefusals:
    @pytest.mark.parametrize(
        ("make", "match"),
        [
            (lambda: ours(frame_stack=2, normalize=True), "must be of the layers"),
            (lambda: thrust_pomdp.make_vec_env("BurstFlickeringCartPole-v0", 4, **LAYERS), "num_e"),
            (lambda: ours(**{**LAYERS, "frame_stack": 4}), "n_stack.*4, got 3"),
            (lambda: ours(**LAYERS, **DUMMY), "DummyVecEnv"),
            (lambda: ours("MaskedCartPole-v0", **LAYERS), "MaskedCartPoleVectorEnv"),
            (lambda: ours("FlickeringCartPole-v0", **LAYERS), "burst_len=None"),
        ],
    )
    def test_other_environments_are_refused_and_nothing_changed(self, make, match):
        state = vec_state(stepped(ours(**LAYERS), 20))
        other = stepped(make(), 20)
        before = vec_state(other)
        with pytest.raises(ValueError, match=match):
            set_vec_state(other, state)
        assert_equal(vec_state(other), before)

    @pytest.mark.parametrize("state", [None, {}, {"layers": []}, {"layers": [None, None]}, []])
    def test_what_is_no_state_is_refused(self, state):
        with pytest.raises(ValueError, match="state"):
            set_vec_state(ours(), state)


class TestPlantedFaults:
    @pytest.mark.parametrize(
        ("name", "attribute"),
        [("VecNormalize", "returns"), ("VecNormalize", "obs_rms"), ("DummyVecEnv", "_seeds")],
    )
    def test_a_forgotten_attribute(self, monkeypatch, name, attribute):
        before = known_layers._NO_MEMORY.get(name, set())
        monkeypatch.setitem(known_layers._NO_MEMORY, name, {*before, attribute})

        def make() -> Any:
            venv = VecNormalize(ours(**DUMMY))
            venv.venv.seed(int(np.random.default_rng().integers(10**6)))
            return venv

        venv, other = stepped(make(), 50), make()
        venv.seed(3)
        set_vec_state(other, vec_state(venv))
        with pytest.raises(AssertionError):
            assert_steps_and_reset_equal(venv, other)

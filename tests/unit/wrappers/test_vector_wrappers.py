"""The vector wrappers equal Gymnasium's synchronous vector of singly wrapped environments."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from sensor_envs import ACTIONS, OBSERVATIONS, AnyEnv
from vectors import assert_same

import thrust_pomdp
from thrust_pomdp import wrappers
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.wrappers import vector

N_ENVS = 4
MODES = list(AutoresetMode)

#: Name of a wrapper and its arguments, from the inside out.
Layers = list[tuple[str, dict[str, Any]]]

FLICKER, DROPOUT, MASK, ACTION, REWARD = (
    "FlickerObservation",
    "ElementDropoutObservation",
    "MaskObservation",
    "PreviousActionObservation",
    "PreviousRewardObservation",
)

#: (kind of observation, layers)
STACKS: list[tuple[str, Layers]] = [
    *((kind, [(FLICKER, {})]) for kind in OBSERVATIONS),
    *((kind, [(DROPOUT, {"dropout_prob": 0.4})]) for kind in OBSERVATIONS),
    *((kind, [(ACTION, {})]) for kind in OBSERVATIONS),
    *((kind, [(REWARD, {}), (ACTION, {})]) for kind in OBSERVATIONS),
    ("vector", [(FLICKER, {"flicker_prob": 0.5, "burst_len": 4})]),
    ("vector", [(FLICKER, {"blank_value": [1.0, 2.0, 3.0]})]),
    ("vector", [(MASK, {"drop": [1]})]),
    ("vector", [(MASK, {"zero": [1], "drop": [0]})]),
    ("image", [(MASK, {"drop": [0, 5], "axis": 0})]),
    ("image", [(MASK, {"zero": [1]})]),
    ("numbers", [(MASK, {"drop": [1]})]),
    ("bits", [(MASK, {"zero": [2]})]),
    ("dict", [(MASK, {"drop": ["camera"], "zero": ["mode", "bits"]})]),
    ("dict", [(MASK, {"drop": {"gyro": [1]}})]),
    ("dict", [(FLICKER, {"keys": ["gyro", "mode"]})]),
    ("dict", [(FLICKER, {"burst_len": 4, "separately": True})]),
    ("dict", [(DROPOUT, {"keys": ["gyro", "mode"]})]),
    ("vector", [(FLICKER, {}), (FLICKER, {"burst_len": 3}), (ACTION, {})]),
    ("vector", [(DROPOUT, {}), (MASK, {"drop": [0]}), (FLICKER, {}), (ACTION, {}), (REWARD, {})]),
    ("vector", [(FLICKER, {}), (DROPOUT, {}), (ACTION, {}), (MASK, {"drop": [0, 4]})]),
    ("numbers", [(DROPOUT, {}), (ACTION, {}), (FLICKER, {"keys": ["observation"]})]),
    ("dict", [(FLICKER, {"keys": ["gyro"]}), (DROPOUT, {"keys": ["bits"]}), (FLICKER, {})]),
    ("dict", [(FLICKER, {}), (FLICKER, {"keys": ["gyro"]}), (MASK, {"drop": ["gyro"]})]),
    ("dict", [(DROPOUT, {}), (MASK, {"drop": {"gyro": [0]}}), (ACTION, {"key": "done"})]),
]


def names(stack: tuple[str, Layers]) -> str:
    kind, layers = stack
    return f"{kind}: " + ", ".join(
        " ".join([name.removesuffix("Observation"), *arguments]) for name, arguments in layers
    )


each_stack = pytest.mark.parametrize("stack", STACKS, ids=names)
each_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)


def wrap(env: Any, module: Any, layers: Layers) -> Any:
    for name, arguments in layers:
        env = getattr(module, name)(env, **arguments)
    return env


def bare(kind: str, action: str, mode: AutoresetMode, n_envs: int = N_ENVS) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: AnyEnv(kind, action)] * n_envs, autoreset_mode=mode)


def both(
    kind: str, layers: Layers, mode: AutoresetMode, action: str = "number", n_envs: int = N_ENVS
) -> tuple[VectorEnv, VectorEnv]:
    """The vector wrappers around bare environments, and a vector of wrapped ones."""
    ours = wrap(bare(kind, action, mode, n_envs), vector, layers)
    theirs = SyncVectorEnv(
        [lambda: wrap(AnyEnv(kind, action), wrappers, layers)] * n_envs, autoreset_mode=mode
    )
    return ours, theirs


def reset_both(ours: VectorEnv, theirs: VectorEnv, **arguments: Any) -> None:
    if "seed" in arguments:  # also of the actions, by which the number of episodes goes
        theirs.action_space.seed(0)
    # Each with a copy: Gymnasium takes the mask out of the options.
    assert_same(ours.reset(**copy.deepcopy(arguments)), theirs.reset(**copy.deepcopy(arguments)))


def step_both(ours: VectorEnv, theirs: VectorEnv, n_steps: int, n_envs: int = N_ENVS) -> int:
    """Compare some steps; without auto-reset, what ended is reset by a mask. Counts the ends."""
    n_ended = 0
    for _ in range(n_steps):
        actions = theirs.action_space.sample()
        outcome = ours.step(actions)
        assert_same(outcome, theirs.step(actions))
        ended = outcome[2] | outcome[3]
        n_ended += ended.sum()
        if ended.any() and ours.metadata["autoreset_mode"] is AutoresetMode.DISABLED:
            reset_both(ours, theirs, options={"reset_mask": ended})
    return n_ended


class TestEqualsTheSynchronousVector:
    @each_mode
    @each_stack
    def test_over_many_episodes_with_all_infos(
        self, stack: tuple[str, Layers], mode: AutoresetMode
    ) -> None:
        ours, theirs = both(*stack, mode)
        assert ours.single_observation_space == theirs.single_observation_space
        assert ours.observation_space == theirs.observation_space
        theirs.action_space.seed(0)
        reset_both(ours, theirs, seed=3)
        assert step_both(ours, theirs, 40) > 10

    @each_mode
    @pytest.mark.parametrize("action", ACTIONS)
    def test_for_every_kind_of_action(self, action: str, mode: AutoresetMode) -> None:
        ours, theirs = both("vector", [(ACTION, {})], mode, action)
        theirs.action_space.seed(0)
        reset_both(ours, theirs, seed=3)
        assert step_both(ours, theirs, 40) > 10

    @each_mode
    @pytest.mark.parametrize("stack", [STACKS[i] for i in (0, -7, -6, -5, -1)], ids=names)
    def test_through_resets_with_seeds_options_and_masks(
        self, stack: tuple[str, Layers], mode: AutoresetMode
    ) -> None:
        ours, theirs = both(*stack, mode)
        theirs.action_space.seed(0)
        mask = np.array([True, False, True, False])
        resets: list[dict[str, Any]] = [
            {"seed": [7, 3, 3, 10**20]},
            {},
            {"options": {"level": 2}},
            {"options": {"reset_mask": mask}},
            {"options": {"reset_mask": ~mask, "level": 3}, "seed": 5},
            {"seed": [1, None, 2, None]},
            {"seed": [1, None, 2, None], "options": {"reset_mask": mask}},
        ]
        for arguments in resets:
            reset_both(ours, theirs, **arguments)
            # Some episode has just ended when the next reset comes.
            step_both(ours, theirs, 11)
            states = [[rng.bit_generator.state for rng in env.np_random] for env in (ours, theirs)]
            assert states[0] == states[1]

    def test_for_longer_than_a_block_of_random_numbers_lasts(self) -> None:
        layers: Layers = [(FLICKER, {"burst_len": 4}), (DROPOUT, {})]
        ours, theirs = both("vector", layers, AutoresetMode.SAME_STEP, n_envs=2)
        reset_both(ours, theirs, seed=3)
        step_both(ours, theirs, 1_500, n_envs=2)

    @each_mode
    def test_of_flickering_environments_of_ours(self, mode: AutoresetMode) -> None:
        def make() -> gym.Env:
            return gym.make("BurstFlickeringCartPole-v0")

        inner, outer = [(FLICKER, {}), (DROPOUT, {"dropout_prob": 0.2})], [(ACTION, {})]
        # The first two layers around the single environments, the others around the vector.
        ours = wrap(
            SyncVectorEnv([lambda: wrap(make(), wrappers, inner)] * 3, autoreset_mode=mode),
            vector,
            [(FLICKER, {"flicker_prob": 0.1}), *outer],
        )
        theirs = SyncVectorEnv(
            [lambda: wrap(make(), wrappers, [*inner, (FLICKER, {"flicker_prob": 0.1}), *outer])]
            * 3,
            autoreset_mode=mode,
        )
        reset_both(ours, theirs, seed=0)
        assert step_both(ours, theirs, 60) > 3

    @pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
    @pytest.mark.parametrize("env_id", ["FlickeringCartPole-v0", "MaskedCartPole-v0"])
    def test_around_native_vectors(self, env_id: str, mode: str) -> None:
        layers: Layers = [(FLICKER, {}), (DROPOUT, {"dropout_prob": 0.2}), (ACTION, {})]
        ours = wrap(gym.make_vec(env_id, 3, autoreset_mode=mode), vector, layers)
        theirs = SyncVectorEnv(
            [lambda: wrap(gym.make(env_id), wrappers, layers)] * 3,
            autoreset_mode=AutoresetMode(mode),
        )
        theirs.action_space.seed(1)
        reset_both(ours, theirs, seed=0)
        assert step_both(ours, theirs, 80) > 5

    @pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
    def test_the_flickering_cartpoles_vector_is_that_of_plain_ones_wrapped(self, mode: str) -> None:
        ours = vector.FlickerObservation(
            SyncVectorEnv(
                [lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=AutoresetMode(mode)
            ),
            burst_len=4,
        )
        theirs = gym.make_vec("BurstFlickeringCartPole-v0", 3, autoreset_mode=mode)
        theirs.action_space.seed(1)
        reset_both(ours, theirs, seed=0)
        assert step_both(ours, theirs, 80) > 5

    def test_around_environments_in_processes_of_their_own(self) -> None:
        layers: Layers = [(FLICKER, {}), (DROPOUT, {}), (ACTION, {})]

        def make() -> gym.Env:
            return wrappers.FlickerObservation(AnyEnv(), 0.2)

        mode = AutoresetMode.SAME_STEP
        ours = wrap(AsyncVectorEnv([make] * 2, context="fork", autoreset_mode=mode), vector, layers)
        theirs = SyncVectorEnv([lambda: wrap(make(), wrappers, layers)] * 2, autoreset_mode=mode)
        theirs.action_space.seed(0)
        reset_both(ours, theirs, seed=0)
        assert step_both(ours, theirs, 30) > 3
        ours.close()


class TestWhatIsReturned:
    @each_mode
    @pytest.mark.parametrize("stack", [STACKS[i] for i in (-7, -6, -4, -1)], ids=names)
    def test_belongs_to_the_caller(self, stack: tuple[str, Layers], mode: AutoresetMode) -> None:
        careful, careless = (both(*stack, mode)[0] for _ in range(2))
        outcomes = [envs.reset(seed=0) for envs in (careful, careless)]
        careful.action_space.seed(0)
        for _ in range(40):
            assert_same(*outcomes)
            mask = None
            if mode is AutoresetMode.DISABLED and len(outcomes[0]) == 5:
                mask = outcomes[0][2] | outcomes[0][3]
            _spoil(outcomes[1])
            if mask is not None and mask.any():
                outcomes = [
                    envs.reset(options={"reset_mask": mask.copy()}) for envs in (careful, careless)
                ]
            else:
                actions = careful.action_space.sample()
                outcomes = [envs.step(actions) for envs in (careful, careless)]

    def test_copies_go_on_as_the_original_does(self) -> None:
        original, _ = both(*STACKS[-6], AutoresetMode.SAME_STEP)
        original.reset(seed=0)
        duplicate = copy.deepcopy(original)
        for _ in range(20):
            actions = original.action_space.sample()
            assert_same(original.step(actions), duplicate.step(actions))


def _spoil(outcome: Any) -> None:
    """Overwrite every array that a user may write to."""
    if isinstance(outcome, np.ndarray) and outcome.dtype != object:
        outcome[...] = 0
    elif isinstance(outcome, (dict, tuple, np.ndarray)):
        for part in outcome.values() if isinstance(outcome, dict) else outcome:
            _spoil(part)


class TestForStableBaselines:
    def run(self, venv: Any, n_steps: int) -> list[Any]:
        """Observations, rewards, ends, and what the infos tell."""
        seen: list[Any] = [venv.reset()]
        rng = np.random.default_rng(0)
        for _ in range(n_steps):
            obs, rewards, dones, infos = venv.step(rng.integers(0, 2, venv.num_envs))
            told = [(info["blanked"], info.get("terminal_observation")) for info in infos]
            seen += [obs, rewards, dones, told]
        return seen

    def test_the_adapter_gives_what_wrapped_single_environments_give(self) -> None:
        ours = GymnasiumVecEnv(
            vector.FlickerObservation(
                gym.make_vec("MaskedCartPole-v0", 3, autoreset_mode="SameStep"), burst_len=4
            )
        )
        theirs = thrust_pomdp.make_vec_env(
            "MaskedCartPole-v0",
            3,
            seed=5,
            wrapper_class=wrappers.FlickerObservation,
            wrapper_kwargs={"burst_len": 4},
        )
        ours.seed(5)
        for mine, other in zip(self.run(ours, 80), self.run(theirs, 80), strict=True):
            np.testing.assert_equal(mine, other)
        assert ours.blanked is not None
        assert ours.blanked.shape == (3,)

    def test_the_adapter_takes_flags_of_components_and_of_keys(self) -> None:
        mode = AutoresetMode.SAME_STEP
        components = GymnasiumVecEnv(both("vector", [(DROPOUT, {})], mode)[0])
        components.seed(0)
        obs = components.reset()
        assert components.blanked.shape == obs.shape == (N_ENVS, 3)
        assert ((obs == 0) == components.blanked).all()
        keys = GymnasiumVecEnv(both("dict", [(FLICKER, {"separately": True})], mode)[0])
        keys.reset()
        assert keys.blanked is None
        assert keys.tells_blanked

    @pytest.mark.parametrize("kind", ["vector", "dict"])
    def test_the_normaliser_gives_the_same_around_either(self, kind: str) -> None:
        layers: Layers = [(DROPOUT, {"keys": ["gyro", "camera"] if kind == "dict" else None})]
        if kind == "dict":
            layers.insert(0, (MASK, {"drop": ["bits", "mode"]}))
        ours, theirs = (
            thrust_pomdp.VecNormalizeVisible(GymnasiumVecEnv(envs))
            for envs in both(kind, layers, AutoresetMode.SAME_STEP)
        )
        for venv in (ours, theirs):
            venv.seed(2)
        for mine, other in zip(self.run(ours, 40), self.run(theirs, 40), strict=True):
            np.testing.assert_equal(mine, other)


class TestBadInput:
    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            (FLICKER, {"flicker_prob": 1.5}),
            (FLICKER, {"flicker_prob": 0.9, "burst_len": 4}),
            (FLICKER, {"keys": ["gyro"]}),
            (FLICKER, {"separately": True}),
            (FLICKER, {"blank_value": 99}),
            (DROPOUT, {"dropout_prob": -1}),
            (DROPOUT, {"keys": ["gyro"]}),
            (MASK, {}),
            (MASK, {"drop": [3]}),
            (MASK, {"zero": [0, 1, 2]}),
            (MASK, {"drop": [0], "axis": 2}),
            (ACTION, {"key": ""}),
        ],
    )
    def test_is_refused_as_by_the_single_wrapper(self, name: str, arguments: Any) -> None:
        messages = []
        makers: list[Callable[[], Any]] = [
            lambda: getattr(vector, name)(
                bare("vector", "number", AutoresetMode.NEXT_STEP), **arguments
            ),
            lambda: getattr(wrappers, name)(AnyEnv(), **arguments),
        ]
        for make in makers:
            with pytest.raises(ValueError, match=r"\w") as caught:
                make()
            messages.append(str(caught.value))
        assert messages[0] == messages[1]

    def test_a_vector_that_does_not_say_when_it_resets(self) -> None:
        envs = bare("vector", "number", AutoresetMode.NEXT_STEP)
        del envs.metadata["autoreset_mode"]
        with pytest.raises(ValueError, match="env must say in metadata"):
            vector.FlickerObservation(envs)

    def test_a_single_environment(self) -> None:
        for name, arguments in ((FLICKER, {}), (DROPOUT, {}), (ACTION, {}), (MASK, {"drop": [0]})):
            with pytest.raises(ValueError, match=r"env must be a gymnasium.vector.VectorEnv, got"):
                getattr(vector, name)(AnyEnv(), **arguments)

    def test_environments_with_unequal_numbers_of_layers(self) -> None:
        envs = SyncVectorEnv([AnyEnv, lambda: wrappers.FlickerObservation(AnyEnv())])
        with pytest.raises(ValueError, match="as many blanking layers in each environment"):
            vector.FlickerObservation(envs)

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"seed": [1, 2]}, ValueError),
            ({"options": {"reset_mask": [True] * N_ENVS}}, TypeError),
            ({"options": {"reset_mask": np.ones(2, dtype=bool)}}, ValueError),
            ({"options": {"reset_mask": np.zeros(N_ENVS, dtype=bool)}}, ValueError),
        ],
    )
    def test_resets_are_checked_by_the_vector_inside(self, arguments: Any, error: Any) -> None:
        for envs in both("vector", [(FLICKER, {}), (ACTION, {})], AutoresetMode.SAME_STEP):
            envs.reset(seed=0)
            # Gymnasium 1.1 asserts what later versions raise.
            with pytest.raises((error, AssertionError)):
                envs.reset(**copy.deepcopy(arguments))

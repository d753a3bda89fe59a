"""The native vector environments equal Gymnasium's synchronous vector of single environments."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from vectors import MODES, N_ENVS, assert_same, native, spoil, synchronous

from thrust_pomdp.envs.cartpole_physics import ALL_ROWS, CartPolePhysics
from thrust_pomdp.envs.cartpole_vector import FlickeringCartPoleVectorEnv, MaskedCartPoleVectorEnv
from thrust_pomdp.envs.flicker import BlockStreams, FlickerLaw, FlickerProcess, FlickerProcesses

IDS = [
    "MaskedCartPole-v0",
    "FlickeringCartPole-v0",
    "BurstFlickeringCartPole-v0",
    "MaskedFlickeringCartPole-v0",
]


def some_actions(envs: Any, rng: np.random.Generator) -> Any:
    """Keep some poles up for long and let others fall soon."""
    states = np.stack([env.state for env in envs.envs])
    pushes = states @ np.array([0.05, 0.1, 1.0, 0.4])
    noise = rng.normal(size=len(pushes)) * np.linspace(0.0, 1.5, len(pushes))
    return (pushes + noise > 0.0).astype(np.int64)


class TestEqualsSynchronousVector:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("env_id", IDS)
    def test_over_many_episodes_with_all_infos(self, env_id: str, mode: str) -> None:
        kwargs = {"expose_state": True, "max_episode_steps": 40}
        ours, theirs = native(env_id, mode, **kwargs), synchronous(env_id, mode, **kwargs)
        assert_same(ours.reset(seed=3), theirs.reset(seed=3))
        rng, terminated, truncated = np.random.default_rng(0), 0, 0
        for _ in range(300):
            actions = some_actions(ours, rng)
            outcome = ours.step(actions)
            assert_same(outcome, theirs.step(actions))
            terminated, truncated = terminated + outcome[2].sum(), truncated + outcome[3].sum()
        assert terminated > 5
        assert truncated > 5

    @pytest.mark.parametrize("mode", MODES)
    def test_with_the_time_limit_of_the_id(self, mode: str) -> None:
        ours, theirs = native(IDS[1], mode, 2), synchronous(IDS[1], mode, 2)
        assert_same(ours.reset(seed=0), theirs.reset(seed=0))
        rng, truncated = np.random.default_rng(0), 0
        for _ in range(520):
            state = ours.envs[0].state
            actions = np.array([state @ [0.05, 0.1, 1.0, 0.4] > 0, rng.integers(2)], dtype=np.int64)
            outcome = ours.step(actions)
            assert_same(outcome, theirs.step(actions))
            truncated += outcome[3].sum()
        assert truncated == 1

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("env_id", IDS)
    def test_through_resets_with_seeds_options_and_masks(self, env_id: str, mode: str) -> None:
        ours, theirs = native(env_id, mode), synchronous(env_id, mode)
        mask = np.array([True, False, True, True, False])
        resets: list[dict[str, Any]] = [
            {"seed": [7, 3, 3, 0, 10**20]},
            {},
            {"options": {"low": -0.2, "high": 0.1}},
            {"options": {"reset_mask": mask}},
            {"options": {"reset_mask": ~mask, "high": 0.01}, "seed": 5},
            {"seed": [1, None, 2, None, 3]},
            {"seed": [1, None, 2, None, 3], "options": {"reset_mask": mask, "low": -0.05}},
        ]
        rng = np.random.default_rng(1)
        for arguments in resets:
            assert_same(
                ours.reset(**copy.deepcopy(arguments)), theirs.reset(**copy.deepcopy(arguments))
            )
            # Random enough that some episode has just ended when the next reset comes.
            for _ in range(45):
                actions = rng.integers(2, size=N_ENVS)
                assert_same(ours.step(actions), theirs.step(actions))
            assert ours.np_random_seed == theirs.np_random_seed
            states = [[rng.bit_generator.state for rng in env.np_random] for env in (ours, theirs)]
            assert states[0] == states[1]

    def test_when_someone_uses_the_generators_of_the_start_states(self) -> None:
        ours, theirs = native(IDS[1], "SameStep"), synchronous(IDS[1], "SameStep")
        for envs in (ours, theirs):
            envs.reset(seed=0)
            for rng in envs.np_random:
                rng.random()
        assert_same(ours.reset(), theirs.reset())

    def test_for_every_law_and_integrator(self) -> None:
        for kwargs in (
            {"flicker_prob": 0.0},
            {"flicker_prob": 1.0},
            {"flicker_prob": 0.8, "burst_len": 4},
            {"kinematics_integrator": "semi-implicit euler"},
        ):
            ours, theirs = (
                native(IDS[1], "SameStep", **kwargs),
                synchronous(IDS[1], "SameStep", **kwargs),
            )
            assert_same(ours.reset(seed=3), theirs.reset(seed=3))
            rng = np.random.default_rng(2)
            for _ in range(60):
                actions = rng.integers(2, size=N_ENVS)
                assert_same(ours.step(actions), theirs.step(actions))

    def test_for_longer_than_a_block_of_random_numbers_lasts(self) -> None:
        ours, theirs = native(IDS[2], "SameStep", 2), synchronous(IDS[2], "SameStep", 2)
        assert_same(ours.reset(seed=3), theirs.reset(seed=3))
        rng = np.random.default_rng(2)
        n_steps, n_episodes = 2 * FlickerProcesses.BLOCK + 500, 0
        for _ in range(n_steps):
            actions = rng.integers(2, size=2)
            outcome = ours.step(actions)
            assert_same(outcome, theirs.step(actions))
            n_episodes += outcome[2].sum()
        assert n_episodes > 110

    def test_in_what_it_paints(self) -> None:
        pytest.importorskip("pygame")
        ours = native(IDS[1], n_envs=2, render_mode="rgb_array")
        theirs = synchronous(IDS[1], n_envs=2, render_mode="rgb_array")
        for envs in (ours, theirs):
            envs.reset(seed=1)
            envs.step(np.array([0, 1]))
        for mine, other in zip(ours.render(), theirs.render(), strict=True):
            np.testing.assert_array_equal(mine, other)
        ours.close()
        theirs.close()


class TestPhysics:
    @pytest.mark.parametrize("integrator", ["euler", "semi-implicit euler"])
    def test_every_bit_is_that_of_the_single_cart(self, integrator: str) -> None:
        # An odd number of carts, so that a vectorised loop has a remainder, in wide states.
        n_carts, rng = 67, np.random.default_rng(0)
        single = CartPoleEnv()
        single.kinematics_integrator = integrator
        physics = CartPolePhysics(single, n_carts)
        states = rng.normal(size=(n_carts, 4)) * 10.0 ** rng.uniform(-9.0, 1.0, size=(n_carts, 4))
        physics.put(np.arange(n_carts), states)
        for _ in range(250):
            actions = rng.integers(2, size=n_carts)
            physics.advance(actions)
            fallen = []
            for idx, action in enumerate(actions.tolist()):
                single.state, single.steps_beyond_terminated = states[idx], None
                fallen.append(single.step(action)[2])
                states[idx] = single.state
            assert physics.sensed(ALL_ROWS).T.tobytes() == states.tobytes()
            assert physics.fallen().tolist() == fallen

    def test_sines_of_arrays_are_those_of_numbers_at_every_length(self) -> None:
        rng = np.random.default_rng(0)
        for n_angles in range(1, 70):
            angles = rng.uniform(-1.0, 1.0, size=n_angles)
            for function in (np.sin, np.cos):
                one_by_one = np.array([function(angle) for angle in angles])
                assert function(angles).tobytes() == one_by_one.tobytes()


class TestStreams:
    def test_blocks_give_the_numbers_of_single_draws(self) -> None:
        streams = BlockStreams(
            [np.random.default_rng(seed) for seed in (0, 1)], 7, (), np.random.Generator.random
        )
        alone = [np.random.default_rng(seed) for seed in (0, 1)]
        rng = np.random.default_rng(2)
        for _ in range(200):
            if rng.random() < 0.5:
                expected = [generator.random() for generator in alone]
                assert streams.next_of_all().tolist() == expected
            else:
                idx = int(rng.integers(2))
                assert streams.next_of(np.array([idx])).tolist() == [alone[idx].random()]
            if rng.random() < 0.1:
                assert streams.generator(0).bit_generator.state == alone[0].bit_generator.state

    @pytest.mark.parametrize("law", [FlickerLaw(0.3), FlickerLaw(0.5, 4.0)])
    def test_processes_equal_single_processes(self, law: FlickerLaw) -> None:
        together, alone = FlickerProcesses(law, 3), [FlickerProcess(law) for _ in range(3)]
        everyone = np.arange(3)
        for idx, process in enumerate(alone):
            together.seed(idx, idx)
            process.seed(idx)
        assert together.first_frames(everyone).tolist() == [p.first_frame() for p in alone]
        for step in range(100):
            restarted = np.array([step % 7 == 0, False, step % 5 == 0])
            expected = [
                process.first_frame() if begins else process.next_frame()
                for process, begins in zip(alone, restarted, strict=True)
            ]
            assert together.next_frames(restarted).tolist() == expected


class TestWhatIsReturned:
    @pytest.mark.parametrize("mode", MODES)
    def test_belongs_to_the_caller(self, mode: str) -> None:
        # In bursts, where a flag has consequences for the next.
        careful, careless = (native(IDS[2], mode, expose_state=True) for _ in range(2))
        outcomes = [envs.reset(seed=0) for envs in (careful, careless)]
        rng = np.random.default_rng(0)
        for _ in range(60):
            spoil(outcomes[1])
            actions = rng.integers(2, size=N_ENVS)
            outcomes = [envs.step(actions) for envs in (careful, careless)]
            assert_same(*outcomes)

    def test_names_the_autoreset_mode_in_the_metadata(self) -> None:
        for mode in MODES:
            assert native(IDS[0], mode).metadata["autoreset_mode"] is AutoresetMode(mode)
        assert MaskedCartPoleVectorEnv.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP

    def test_spaces_are_those_of_the_synchronous_vector(self) -> None:
        for env_id in IDS:
            ours, theirs = native(env_id), synchronous(env_id)
            for name in ("observation_space", "action_space"):
                assert getattr(ours, name) == getattr(theirs, name)
                assert getattr(ours, f"single_{name}") == getattr(theirs, f"single_{name}")

    @pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
    def test_copies_go_on_as_the_original_does(self, copy_of: Any) -> None:
        original = native(IDS[2], "SameStep")
        original.reset(seed=0)
        for _ in range(10):
            original.step(np.zeros(N_ENVS, dtype=np.int64))
        duplicate = copy_of(original)
        rng = np.random.default_rng(0)
        for _ in range(50):
            actions = rng.integers(2, size=N_ENVS)
            assert_same(original.step(actions), duplicate.step(actions))


class TestSpec:
    def test_survives_json_with_mode_and_arguments(self) -> None:
        ours = native(IDS[2], "SameStep", n_envs=3, max_episode_steps=9, burst_len=5)
        again = gym.make_vec(EnvSpec.from_json(ours.spec.to_json()))
        assert isinstance(again, FlickeringCartPoleVectorEnv)
        assert again.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert again.num_envs == 3
        assert_same(again.reset(seed=0), ours.reset(seed=0))
        for _ in range(30):
            actions = np.ones(3, dtype=np.int64)
            assert_same(again.step(actions), ours.step(actions))

    def test_a_single_environment_of_it_can_be_made(self) -> None:
        envs = native(IDS[1], n_envs=2, flicker_prob=0.25, max_episode_steps=9)
        spec = envs.envs[0].spec
        assert spec.max_episode_steps == 9
        assert gym.make(spec).spec.kwargs["flicker_prob"] == 0.25

    def test_without_a_time_limit_episodes_go_on(self) -> None:
        envs = native(IDS[1], n_envs=1, max_episode_steps=-1, flicker_prob=0.0)
        envs.reset(seed=0)
        for _ in range(600):
            gains = envs.envs[0].state @ [0.05, 0.1, 1.0, 0.4]
            _, _, terminations, truncations, _ = envs.step(np.array([int(gains > 0)]))
            assert not terminations.any()
            assert not truncations.any()


class TestSingleEnvironmentsOfIt:
    def test_state_and_constants_can_be_read(self) -> None:
        ours, theirs = native(IDS[1]), synchronous(IDS[1])
        ours.reset(seed=0)
        theirs.reset(seed=0)
        for name in ("gravity", "render_mode", "metadata", "kinematics_integrator"):
            assert ours.get_attr(name) == theirs.get_attr(name)
        states = np.stack(ours.call("state"))
        np.testing.assert_array_equal(states, np.stack(theirs.get_attr("state")))

    def test_a_state_that_is_set_is_the_one_that_moves_on(self) -> None:
        ours, theirs = native(IDS[1], flicker_prob=0.0), synchronous(IDS[1], flicker_prob=0.0)
        state = np.array([0.1, -0.2, 0.05, 0.3])
        ours.reset(seed=0)
        theirs.reset(seed=0)
        ours.set_attr("state", state)
        for env in theirs.envs:
            env.unwrapped.state = state
        actions = np.zeros(N_ENVS, dtype=np.int64)
        assert_same(ours.step(actions), theirs.step(actions))

    def test_a_shared_constant_cannot_be_set_for_one(self) -> None:
        with pytest.raises(AttributeError, match="'gravity' is shared"):
            native(IDS[1]).envs[0].gravity = 1.0

    def test_what_it_lacks_is_said_with_the_remedy(self) -> None:
        with pytest.raises(AttributeError, match="vectorization_mode='sync'"):
            _ = native(IDS[1]).envs[0].steps_beyond_terminated

    def test_a_mark_that_a_program_leaves_stays(self) -> None:
        envs = native(IDS[1])
        envs.set_attr("mark", list(range(N_ENVS)))
        assert envs.get_attr("mark") == tuple(range(N_ENVS))


class TestBadInput:
    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"flicker_prob": 1.5}, r"flicker_prob must be a probability in \[0, 1\], got 1.5"),
            ({"burst_len": 0.5}, "burst_len must be a finite number >= 1, got 0.5"),
            ({"flicker_prob": 0.9, "burst_len": 4}, "flicker_prob=0.9 and burst_len=4"),
            ({"kinematics_integrator": "rk4"}, "kinematics_integrator must be one of"),
        ],
    )
    def test_is_refused_as_by_the_single_environment(
        self, kwargs: dict[str, Any], message: str
    ) -> None:
        for make in (native, synchronous):
            with pytest.raises(ValueError, match=message):
                make(IDS[1], **kwargs)

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"n_envs": 0}, "num_envs must be at least 1, got 0"),
            ({"mode": "Disabled"}, "autoreset_mode must not be 'Disabled'"),
            ({"mode": "same"}, "autoreset_mode must be 'NextStep' or 'SameStep', got 'same'"),
            ({"max_episode_steps": 0}, "max_episode_steps must be at least 1, got 0"),
            ({"render_mode": "human"}, "render_mode must be None or 'rgb_array'"),
        ],
    )
    def test_of_the_vector_is_refused(self, kwargs: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            native(IDS[0], **kwargs)

    def test_an_unknown_argument_is_refused(self) -> None:
        with pytest.raises(TypeError, match="flicker"):
            native(IDS[0], flicker=0.5)

    @pytest.mark.parametrize(
        ("actions", "message"),
        [
            ([0, 1, 0, 1, 2], "actions must be 0 or 1"),
            ([0, 1, 0, 1, -1], "actions must be 0 or 1"),
            ([0, 1], r"actions must be integers of shape \(5,\)"),
            ([0.0, 1.0, 0.0, 1.0, 0.0], "actions must be integers"),
        ],
    )
    def test_actions_are_checked(self, actions: list[Any], message: str) -> None:
        envs = native(IDS[0])
        envs.reset(seed=0)
        with pytest.raises(ValueError, match=message):
            envs.step(np.array(actions))

    def test_a_step_before_the_first_reset_is_refused(self) -> None:
        with pytest.raises(gym.error.ResetNeeded):
            native(IDS[0]).step(np.zeros(N_ENVS, dtype=np.int64))
        with pytest.raises(gym.error.ResetNeeded):
            native(IDS[0]).reset(options={"reset_mask": np.arange(N_ENVS) == 0})

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"seed": [1, 2]}, ValueError),
            ({"seed": -1}, (ValueError, gym.error.Error)),
            ({"options": {"reset_mask": [True] * N_ENVS}}, TypeError),
            ({"options": {"reset_mask": np.ones(2, dtype=bool)}}, ValueError),
            ({"options": {"reset_mask": np.zeros(N_ENVS, dtype=bool)}}, ValueError),
            ({"options": {"low": 0.1, "high": 0.0}}, ValueError),
        ],
    )
    def test_resets_are_checked_as_by_the_synchronous_vector(
        self, arguments: dict[str, Any], error: Any
    ) -> None:
        for make in (native, synchronous):
            envs = make(IDS[1])
            envs.reset(seed=0)
            with pytest.raises(error):
                envs.reset(**copy.deepcopy(arguments))

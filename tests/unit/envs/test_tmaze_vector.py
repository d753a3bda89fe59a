"""The native T-maze vectors equal Gymnasium's synchronous vector of single mazes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from vectors import (
    MODES,
    N_ENVS,
    assert_same,
    assert_same_reset,
    assert_same_steps,
    native,
    spoil,
    synchronous,
)

IDS = ["TMaze-v0", "ActiveTMaze-v0"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env_id", IDS)
class TestEqualsSynchronousVector:
    @pytest.mark.parametrize(
        "kwargs", [{}, {"corridor_length": 1}, {"corridor_length": 4, "expose_state": True}]
    )
    def test_over_many_episodes(self, env_id: str, mode: str, kwargs: dict[str, Any]) -> None:
        ours, theirs = native(env_id, mode, **kwargs), synchronous(env_id, mode, **kwargs)
        assert_same_reset(ours, theirs, {"seed": 3})
        # More than a block of cues in the short mazes.
        terminated, truncated = assert_same_steps(ours, theirs, 400)
        assert terminated > 100
        assert truncated == 0

    @pytest.mark.parametrize("limit", [3, 4, 5, 6])
    def test_with_a_time_limit_around_the_episodes_length(
        self, env_id: str, mode: str, limit: int
    ) -> None:
        kwargs = {"corridor_length": 3, "max_episode_steps": limit}
        ours, theirs = native(env_id, mode, **kwargs), synchronous(env_id, mode, **kwargs)
        assert_same_reset(ours, theirs, {"seed": 3})
        terminated, truncated = assert_same_steps(ours, theirs, 100)
        assert (terminated > 0) == (limit > 3)
        assert (truncated > 0) == (limit <= (4 if env_id == "TMaze-v0" else 5))

    def test_through_resets_with_seeds_and_masks(self, env_id: str, mode: str) -> None:
        ours, theirs = (make(env_id, mode, corridor_length=3) for make in (native, synchronous))
        mask = np.array([True, False, True, True, False])
        resets: list[dict[str, Any]] = [
            {"seed": [7, 3, 3, 0, 10**20]},
            {},
            {"options": {}},
            {"options": {"reset_mask": mask}},
            {"options": {"reset_mask": ~mask}, "seed": 5},
            {"seed": [1, None, 2, None, 3]},
            {"seed": [1, None, 2, None, 3], "options": {"reset_mask": mask}},
        ]
        for n_steps, arguments in enumerate(resets * 3):
            assert_same_reset(ours, theirs, arguments)
            # Resets come in the corridor, at the junction, and after an end.
            assert_same_steps(ours, theirs, n_steps, seed=n_steps)

    def test_when_someone_uses_the_generators(self, env_id: str, mode: str) -> None:
        ours, theirs = native(env_id, mode), synchronous(env_id, mode)
        for envs in (ours, theirs):
            envs.reset(seed=0)
            for rng in envs.np_random:
                rng.random()
        assert_same_reset(ours, theirs, {})
        assert_same_steps(ours, theirs, 40)

    @pytest.mark.parametrize("render_mode", ["ansi", "rgb_array"])
    def test_in_what_it_paints(self, env_id: str, mode: str, render_mode: str) -> None:
        kwargs = {"render_mode": render_mode, "corridor_length": 2}
        ours, theirs = native(env_id, mode, **kwargs), synchronous(env_id, mode, **kwargs)
        for envs in (ours, theirs):
            with pytest.raises(gym.error.ResetNeeded):
                envs.render()
        assert_same_reset(ours, theirs, {"seed": 1})
        rng = np.random.default_rng(0)
        for _ in range(20):
            assert_same(ours.render(), theirs.render())
            actions = rng.integers(2, size=N_ENVS)
            theirs.step(actions)
            ours.step(actions)
            # The array is the caller's.
            actions ^= 1


class TestWhatIsReturned:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("env_id", IDS)
    def test_belongs_to_the_caller(self, env_id: str, mode: str) -> None:
        careful, careless = (native(env_id, mode, corridor_length=2) for _ in range(2))
        outcomes = [envs.reset(seed=0) for envs in (careful, careless)]
        rng = np.random.default_rng(0)
        for _ in range(40):
            spoil(outcomes[1])
            actions = rng.integers(2, size=N_ENVS)
            given = actions.copy()
            outcomes = [careful.step(actions), careless.step(given)]
            given[:] = 7
            assert_same(*outcomes)

    @pytest.mark.parametrize("env_id", IDS)
    def test_spaces_and_metadata_are_those_of_the_synchronous_vector(self, env_id: str) -> None:
        ours, theirs = native(env_id), synchronous(env_id)
        for name in ("observation_space", "action_space", "metadata", "render_mode"):
            assert getattr(ours, name) == getattr(theirs, name)
        for name in ("corridor_length", "render_mode", "metadata"):
            assert ours.get_attr(name) == theirs.get_attr(name)

    @pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
    def test_copies_go_on_as_the_original_does(self, copy_of: Any) -> None:
        original = native(IDS[1], "SameStep", corridor_length=2)
        original.reset(seed=0)
        duplicate = copy_of(original)
        assert_same_steps(original, duplicate, 50)


class TestSpec:
    @pytest.mark.parametrize("env_id", IDS)
    def test_survives_json_with_mode_and_arguments(self, env_id: str) -> None:
        ours = native(env_id, "SameStep", n_envs=3, corridor_length=4)
        again = gym.make_vec(EnvSpec.from_json(ours.spec.to_json()))
        assert again.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert again.num_envs == 3
        assert_same(again.reset(seed=0), ours.reset(seed=0))
        assert_same_steps(again, ours, 30)

    @pytest.mark.parametrize("env_id", IDS)
    def test_a_single_environment_of_it_can_be_made(self, env_id: str) -> None:
        spec = native(env_id, n_envs=2, corridor_length=4).envs[0].spec
        assert spec.max_episode_steps is None
        assert gym.make(spec).unwrapped.corridor_length == 4


@pytest.mark.parametrize("env_id", IDS)
class TestBadInput:
    def test_is_refused_as_by_the_single_environment(self, env_id: str) -> None:
        for make in (native, synchronous):
            with pytest.raises(ValueError, match="corridor_length must be at least 1, got 0"):
                make(env_id, corridor_length=0)

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"n_envs": 0}, "num_envs must be at least 1, got 0"),
            ({"mode": "Disabled"}, "autoreset_mode must not be 'Disabled'"),
            ({"mode": "same"}, "autoreset_mode must be 'NextStep' or 'SameStep', got 'same'"),
            ({"max_episode_steps": 0}, "max_episode_steps must be at least 1, got 0"),
            ({"render_mode": "human"}, "render_mode must be None or .*'rgb_array'.* got 'human'"),
        ],
    )
    def test_of_the_vector_is_refused(
        self, env_id: str, kwargs: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            native(env_id, **kwargs)

    @pytest.mark.parametrize(
        ("actions", "message"),
        [
            ([0, 1, 0, 1, 2], "actions must be 0 or 1"),
            ([0, 1, 0, 1, -1], "actions must be 0 or 1"),
            ([0, 1], r"actions must be integers of shape \(5,\)"),
            ([0.0, 1.0, 0.0, 1.0, 0.0], "actions must be integers"),
        ],
    )
    def test_actions_are_checked(self, env_id: str, actions: list[Any], message: str) -> None:
        envs = native(env_id)
        envs.reset(seed=0)
        with pytest.raises(ValueError, match=message):
            envs.step(np.array(actions))

    def test_reset_options_are_refused_as_by_the_synchronous_vector(self, env_id: str) -> None:
        mask = np.arange(N_ENVS) < 2
        for make in (native, synchronous):
            envs = make(env_id)
            envs.reset(seed=0)
            for options in ({"cue": 1}, {"cue": 1, "reset_mask": mask}):
                with pytest.raises(ValueError, match=r"got \{'cue': 1\}"):
                    envs.reset(options=options)

    def test_a_step_before_the_first_reset_is_refused(self, env_id: str) -> None:
        with pytest.raises(gym.error.ResetNeeded):
            native(env_id).step(np.zeros(N_ENVS, dtype=np.int64))

"""T-mazes: what is seen, what is paid, and that only memory can use the cue."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest

import thrust_pomdp  # noqa: F401
from thrust_pomdp.envs import ActiveTMazeEnv, TMazeEnv
from thrust_pomdp.envs.tmaze_view import COLOURS, cross

LENGTHS = [1, 2, 3, 10, 37]
CLASSES = [TMazeEnv, ActiveTMazeEnv]

#: Seeds of which the first gives cue -1 and the second cue 1.
SEED_OF_CUE = {-1: 3, 1: 0}

START, CORRIDOR, JUNCTION = (0.0, 1.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


class Episode(NamedTuple):
    frames: list[tuple[float, ...]]
    rewards: list[float]
    infos: list[dict[str, Any]]
    terminated: list[bool]
    truncated: list[bool]


Policy = Callable[[list[tuple[float, ...]]], int]


def play(env: gym.Env, policy: Policy, seed: int | None = None) -> Episode:
    """Play one episode; the policy sees all frames so far."""
    obs, info = env.reset(seed=seed)
    episode = Episode([tuple(obs.tolist())], [], [info], [], [])
    while not (episode.terminated and (episode.terminated[-1] or episode.truncated[-1])):
        obs, reward, terminated, truncated, info = env.step(policy(episode.frames))
        episode.frames.append(tuple(obs.tolist()))
        episode.rewards.append(reward)
        episode.infos.append(info)
        episode.terminated.append(terminated)
        episode.truncated.append(truncated)
    return episode


def recall(frames: list[tuple[float, ...]]) -> int:
    """Look for the cue at the start, and turn to where it pointed."""
    return int(len(frames) == 1 or sum(frame[0] for frame in frames) > 0)


def memoryless_policies() -> list[Policy]:
    """Every deterministic policy of the frame seen: there are only four different frames."""
    frames = [(-1.0, 1.0, 0.0), CORRIDOR, JUNCTION, (1.0, 1.0, 0.0)]
    tables = [
        dict(zip(frames, actions, strict=True)) for actions in itertools.product((0, 1), repeat=4)
    ]
    return [lambda seen, table=table: table[seen[-1]] for table in tables]


@pytest.mark.parametrize("length", LENGTHS)
class TestPassiveMaze:
    @pytest.mark.parametrize("cue", [-1, 1])
    def test_frames_rewards_and_ends_are_these(self, length: int, cue: int) -> None:
        for turn in (0, 1):
            env = gym.make("TMaze-v0", corridor_length=length)
            episode = play(env, lambda frames, turn=turn: turn, SEED_OF_CUE[cue])
            frames = [(float(cue), 1.0, 0.0), *[CORRIDOR] * (length - 1), JUNCTION, JUNCTION]
            assert episode.frames == frames
            correct = (turn, cue) in ((0, -1), (1, 1))
            assert episode.rewards == [0.0] * length + [1.0 if correct else -1.0]
            assert episode.terminated == [False] * length + [True]
            assert not any(episode.truncated)

    def test_an_action_before_the_junction_changes_nothing(self, length: int) -> None:
        rng = np.random.default_rng(0)
        for seed in range(8):
            env = gym.make("TMaze-v0", corridor_length=length)
            still = play(env, lambda frames: 0, seed)
            actions = [*rng.integers(2, size=length).tolist(), 0]
            assert play(env, lambda frames, a=actions: a[len(frames) - 1], seed) == still

    def test_perfect_recall_always_takes_the_correct_turn(self, length: int) -> None:
        env = gym.make("TMaze-v0", corridor_length=length)
        assert {sum(play(env, recall, seed).rewards) for seed in range(20)} == {1.0}


@pytest.mark.parametrize("length", LENGTHS)
class TestActiveMaze:
    @pytest.mark.parametrize("cue", [-1, 1])
    def test_stepping_aside_shows_the_cue_and_costs_one_step(self, length: int, cue: int) -> None:
        env = gym.make("ActiveTMaze-v0", corridor_length=length)
        episode = play(env, recall, SEED_OF_CUE[cue])
        shown = (float(cue), 1.0, 0.0)
        assert episode.frames == [START, shown, *[CORRIDOR] * (length - 1), JUNCTION, JUNCTION]
        assert episode.rewards == [0.0] * (length + 1) + [1.0]
        assert episode.terminated == [False] * (length + 1) + [True]
        assert not any(episode.truncated)

    @pytest.mark.parametrize("cue", [-1, 1])
    def test_walking_on_never_shows_the_cue(self, length: int, cue: int) -> None:
        env = gym.make("ActiveTMaze-v0", corridor_length=length)
        for turn in (0, 1):
            # Wants to step aside wherever there is nothing aside.
            def pass_by(frames: Any, turn: int = turn) -> int:
                return turn if frames[-1] == JUNCTION else int(len(frames) > 1)

            episode = play(env, pass_by, SEED_OF_CUE[cue])
            assert episode.frames == [START, *[CORRIDOR] * (length - 1), JUNCTION, JUNCTION]
            correct = (turn, cue) in ((0, -1), (1, 1))
            assert episode.rewards == [0.0] * length + [1.0 if correct else -1.0]

    def test_after_the_look_it_is_the_passive_maze(self, length: int) -> None:
        active = gym.make("ActiveTMaze-v0", corridor_length=length)
        passive = gym.make("TMaze-v0", corridor_length=length)
        for seed in range(8):
            looked, walked = play(active, recall, seed), play(passive, recall, seed)
            for ours, theirs in zip(looked, walked, strict=True):
                assert ours[1:] == theirs


@pytest.mark.parametrize("maze", CLASSES)
class TestMemoryIsNeeded:
    def test_every_memoryless_policy_is_right_for_exactly_one_of_the_two_cues(
        self, maze: type[TMazeEnv]
    ) -> None:
        # With both cues equally likely that is one half; a random policy is a mixture of these.
        policies = memoryless_policies()
        assert len(policies) == 16
        for policy in policies:
            returns = [sum(play(maze(4), policy, seed).rewards) for seed in SEED_OF_CUE.values()]
            assert sorted(returns) == [-1.0, 1.0]

    def test_frames_after_the_cue_are_bit_identical_for_both_cues(
        self, maze: type[TMazeEnv]
    ) -> None:
        for turn in (0, 1):
            left, right = (
                play(maze(6), lambda frames, t=turn: t, SEED_OF_CUE[cue]) for cue in (-1, 1)
            )
            differing = [a != b for a, b in zip(left.frames, right.frames, strict=True)]
            # Turning 1 looks, in the active maze; turning 0 walks past the cue.
            cues = [f[0] != 0.0 for f in left.frames]
            assert differing == cues
            assert sum(cues) == (0 if maze is ActiveTMazeEnv and turn == 0 else 1)

    def test_neither_reward_nor_info_nor_flags_tell_before_the_turn(
        self, maze: type[TMazeEnv]
    ) -> None:
        left, right = (play(maze(6), lambda frames: 1, SEED_OF_CUE[cue]) for cue in (-1, 1))
        assert left.rewards[:-1] == right.rewards[:-1]
        assert not any(left.rewards[:-1])
        assert left.infos == right.infos
        assert not any(left.infos)
        assert left.terminated == right.terminated
        assert left.truncated == right.truncated

    def test_both_cues_are_equally_likely(self, maze: type[TMazeEnv]) -> None:
        # 5 sigma of 20,000 fair draws; one seed continued, and many seeds.
        env, n_episodes = maze(1), 10_000
        cues = []
        for seed in itertools.chain([0], [None] * (n_episodes - 1), range(n_episodes)):
            env.reset(seed=seed)
            # Turned 1 it is right exactly when the cue is 1.
            rewards = [env.step(1)[1] for _ in range(2 + (maze is ActiveTMazeEnv))]
            cues.append(rewards[-1])
        assert abs(np.mean(cues)) < 5 / np.sqrt(2 * n_episodes)
        # And independent of the one before.
        assert abs(np.mean(np.array(cues[1:]) * cues[:-1])) < 5 / np.sqrt(2 * n_episodes)


@pytest.mark.parametrize("maze", CLASSES)
class TestSeeds:
    def test_the_same_seed_gives_the_same_cues(self, maze: type[TMazeEnv]) -> None:
        def cues(seed: int) -> list[float]:
            env = maze(2)
            return [
                sum(play(env, lambda f: 1, seed if n == 0 else None).rewards) for n in range(40)
            ]

        assert cues(7) == cues(7)
        assert cues(7) != cues(8)

    def test_the_cue_is_one_draw_of_the_environments_own_generator(
        self, maze: type[TMazeEnv]
    ) -> None:
        env = maze(1)
        env.reset(seed=5)
        for _ in range(9):
            play(env, recall)
        expected = gym.utils.seeding.np_random(5)[0]
        expected.random(10)
        assert env.np_random.bit_generator.state == expected.bit_generator.state

    def test_looking_or_not_leaves_the_next_cues_as_they_are(self, maze: type[TMazeEnv]) -> None:
        looks, passes = maze(3), maze(3)
        for env in (looks, passes):
            env.reset(seed=1)
        for _ in range(30):
            turned = [
                sum(
                    play(
                        env, lambda f, env=env: 1 if f[-1] == JUNCTION else int(env is looks)
                    ).rewards
                )
                for env in (looks, passes)
            ]
            assert turned[0] == turned[1]


@pytest.mark.parametrize("maze", CLASSES)
class TestPicture:
    def test_text_shows_agent_and_goal(self, maze: type[TMazeEnv]) -> None:
        env = maze(2, render_mode="ansi")
        env.reset(seed=SEED_OF_CUE[1])
        scenes = {
            TMazeEnv: ["#####\n###x#\n#@..#\n###G#\n#####", "#####\n###x#\n#>@.#\n###G#\n#####"],
            ActiveTMazeEnv: [
                "#####\n###x#\n#@..#\n#>#G#\n#####",
                "#####\n###x#\n#...#\n#@#G#\n#####",
            ],
        }[maze]
        assert env.render() == scenes[0]
        env.step(1)
        assert env.render() == scenes[1]

    def test_the_array_is_the_text_in_colours(self, maze: type[TMazeEnv]) -> None:
        one, other = maze(5, render_mode="ansi"), maze(5, render_mode="rgb_array")
        for env in (one, other):
            env.reset(seed=2)
        for _ in range(6):
            text, picture = one.render(), other.render()
            rows = text.split("\n")
            assert picture.dtype == np.uint8
            assert picture.shape == (24 * len(rows), 24 * len(rows[0]), 3)
            for y, row in enumerate(rows):
                for x, sign in enumerate(row):
                    cell = picture[24 * y : 24 * y + 24, 24 * x : 24 * x + 24]
                    # The wrong side is crossed out, so that no colour need be seen.
                    crossed = cross(24) if sign == "x" else np.zeros((24, 24), bool)
                    assert (cell[~crossed] == COLOURS[sign]).all()
                    assert (cell[crossed] == COLOURS["#"]).all()
            for env in (one, other):
                env.step(1)

    def test_the_agent_ends_on_the_side_it_chose(self, maze: type[TMazeEnv]) -> None:
        for turn, row in ((0, 1), (1, 3)):
            env = maze(3, render_mode="ansi")
            play(env, lambda frames, turn=turn: turn, 0)
            assert env.render().split("\n")[row][4] == "@"

    def test_a_long_corridor_still_fits_a_screen(self, maze: type[TMazeEnv]) -> None:
        env = maze(600, render_mode="rgb_array")
        env.reset(seed=0)
        assert env.render().shape == (5, 603, 3)

    def test_painting_draws_no_random_numbers(self, maze: type[TMazeEnv]) -> None:
        env = maze(3, render_mode="rgb_array")
        env.reset(seed=0)
        before = env.np_random.bit_generator.state
        env.render()
        assert env.np_random.bit_generator.state == before

    def test_before_the_first_reset_there_is_nothing_to_paint(self, maze: type[TMazeEnv]) -> None:
        with pytest.raises(gym.error.ResetNeeded):
            maze(3, render_mode="ansi").render()

    def test_without_a_render_mode_it_says_so(self, maze: type[TMazeEnv]) -> None:
        env = maze(3)
        env.reset(seed=0)
        with pytest.warns(UserWarning, match="without a render_mode"):
            assert env.render() is None


@pytest.mark.parametrize("maze", CLASSES)
def test_who_sees_the_state_needs_no_memory_and_no_look(maze: type[TMazeEnv]) -> None:
    env = maze(4, expose_state=True)
    for episode in range(6):
        obs, info = env.reset(seed=episode)
        reward, over = 0.0, False
        while not over:
            assert info["state"][1:].tolist() == obs[1:].tolist()
            assert abs(info["state"][0]) == 1.0
            at_junction = info["state"][2] == 1
            action = int(info["state"][0] == 1) if at_junction else 0
            obs, reward, over, _, info = env.step(action)
        assert reward == 1.0


@pytest.mark.parametrize("maze", CLASSES)
class TestBadInput:
    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"corridor_length": 0}, "corridor_length must be at least 1, got 0"),
            ({"corridor_length": -3}, "corridor_length must be at least 1, got -3"),
            ({"corridor_length": 2.5}, "corridor_length must be a whole number, got 2.5"),
            ({"corridor_length": "ten"}, "corridor_length must be a whole number, got 'ten'"),
            ({"corridor_length": True}, "corridor_length must be at least 1, got True"),
            ({"expose_state": 2}, "expose_state must be"),
            ({"render_mode": "human"}, "render_mode must be None or one of .* got 'human'"),
        ],
    )
    def test_of_the_constructor_is_refused(
        self, maze: type[TMazeEnv], kwargs: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            maze(**kwargs)

    def test_an_unknown_reset_option_is_refused_and_changes_nothing(
        self, maze: type[TMazeEnv]
    ) -> None:
        env = maze(3)
        env.reset(seed=4, options={})
        before = env.np_random.bit_generator.state
        with pytest.raises(ValueError, match=r"options must be None or empty.* got \{'cue': 1\}"):
            env.reset(seed=5, options={"cue": 1})
        assert env.np_random.bit_generator.state == before
        assert not env.step(0)[2]

    @pytest.mark.parametrize("action", [2, -1, 0.0, None, np.array([1]), "1"])
    def test_another_action_is_refused(self, maze: type[TMazeEnv], action: Any) -> None:
        env = maze(3)
        env.reset(seed=0)
        with pytest.raises(ValueError, match="action must be 0 or 1, got"):
            env.step(action)

    def test_a_step_outside_an_episode_is_refused(self, maze: type[TMazeEnv]) -> None:
        env = maze(2)
        with pytest.raises(gym.error.ResetNeeded):
            env.step(0)
        play(env, recall, 0)
        with pytest.raises(gym.error.ResetNeeded):
            env.step(0)


class TestTimeLimit:
    @pytest.mark.parametrize("env_id", ["TMaze-v0", "ActiveTMaze-v0"])
    def test_there_is_none_unless_asked_for(self, env_id: str) -> None:
        long = play(gym.make(env_id, corridor_length=2000), recall, 0)
        assert sum(long.rewards) == 1.0
        short = play(gym.make(env_id, corridor_length=20, max_episode_steps=5), recall, 0)
        assert short.truncated == [False] * 4 + [True]
        assert not any(short.terminated)

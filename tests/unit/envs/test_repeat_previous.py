"""Cards dealt one by one: what is shown, paid and painted, alone and in vectors."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from vectors import (
    MODES,
    N_ENVS,
    assert_same,
    assert_same_reset,
    assert_same_steps,
    native,
    synchronous,
)

import thrust_pomdp
from thrust_pomdp.envs import RepeatPreviousEnv
from thrust_pomdp.envs.repeat_previous_view import CARD, INK, SIGNS, Scene, picture, text

EASY, MEDIUM, HARD = (f"POPGymRepeatPrevious{level}-v0" for level in ("Easy", "Medium", "Hard"))
IDS = [EASY, MEDIUM, HARD]


class PopgymsRules:
    """POPGym 1.0.7's rules, written from ``popgym/envs/repeat_previous.py`` and ``core/deck.py``.

    A pack of numbers is shuffled by the environment's generator and dealt from its end into a hand;
    the suit of number ``c`` is ``c % 4``.
    """

    def __init__(self, num_decks: int, k: int) -> None:
        self.n_cards, self.k = 52 * num_decks, k

    def reset(self, rng: np.random.Generator) -> int:
        cards = np.arange(self.n_cards)
        rng.shuffle(cards)
        self.pack = cards.tolist()
        self.hand = [self.pack.pop()]
        return self.hand[-1] % 4

    def step(self, action: int) -> tuple[int, float, bool]:
        reward, scale = 0.0, 1 / (self.n_cards - self.k)
        ends = len(self.pack) == 1
        if len(self.hand) >= self.k:
            reward = scale if action == self.hand[-self.k] % 4 else -scale
        self.hand.append(self.pack.pop())
        return self.hand[-1] % 4, reward, ends


def suits_of(env: RepeatPreviousEnv, seed: int) -> list[int]:
    """All suits of an episode, in the order of dealing."""
    obs, _ = env.reset(seed=seed)
    suits, over = [int(obs.argmax())], False
    while not over:
        obs, _, over, _, _ = env.step(0)
        suits.append(int(obs.argmax()))
    return suits


class TestTheGame:
    @pytest.mark.parametrize("kwargs", [{}, {"k": 1}, {"num_decks": 2, "k": 32}, {"k": 51}])
    def test_is_popgyms(self, kwargs: dict[str, int]) -> None:
        env = RepeatPreviousEnv(**kwargs)
        theirs = PopgymsRules(env.num_decks, env.k)
        cards, rng = np.random.default_rng(7), np.random.default_rng(0)
        for episode in range(5):
            obs, _ = env.reset(seed=7 if episode == 0 else None)
            assert obs.tolist() == np.eye(4)[theirs.reset(cards)].tolist()
            over = False
            while not over:
                action = int(rng.integers(4))
                obs, reward, over, truncated, info = env.step(action)
                suit, their_reward, ends = theirs.step(action)
                assert obs.dtype == np.float32
                assert obs.tolist() == np.eye(4)[suit].tolist()
                assert (reward, over, truncated, info) == (their_reward, ends, False, {})
        assert env.np_random.bit_generator.state == cards.bit_generator.state

    def test_by_hand(self) -> None:
        env = RepeatPreviousEnv(k=3)
        suits = suits_of(env, seed=1)
        assert sorted(suits) == [0] * 13 + [1] * 13 + [2] * 13 + [3] * 13
        env.reset(seed=1)
        assert [env.step(0)[1] for _ in range(2)] == [0.0, 0.0]  # one card, then two
        assert env.step(suits[0])[1] == 1 / 49
        assert env.step((suits[1] + 1) % 4)[1] == -1 / 49
        assert env.step(suits[2])[1] == 1 / 49

    @pytest.mark.parametrize("env_id", IDS)
    def test_an_episode_pays_one_at_most(self, env_id: str) -> None:
        env = gym.make(env_id).unwrapped
        suits = suits_of(env, seed=2)
        env.reset(seed=2)
        rewards = [env.step(suits[max(t + 1 - env.k, 0)])[1] for t in range(len(suits) - 1)]
        assert len(suits) == 52 * env.num_decks
        assert np.count_nonzero(rewards) == 52 * env.num_decks - env.k
        assert sum(rewards) == pytest.approx(1.0, rel=1e-12)
        with pytest.raises(gym.error.ResetNeeded):
            env.step(0)

    def test_who_sees_the_state_needs_no_memory(self) -> None:
        env = RepeatPreviousEnv(k=7, expose_state=True)
        for episode in range(3):
            obs, info = env.reset(seed=episode)
            total, over = 0.0, False
            while not over:
                assert info["state"][:4].tolist() == obs.tolist()
                assert info["state"].dtype == np.float32
                obs, reward, over, _, info = env.step(int(info["state"][4:].argmax()))
                total += reward
            assert total == pytest.approx(1.0)

    def test_sensors_blank_its_frames(self) -> None:
        env = thrust_pomdp.FlickerObservation(gym.make(EASY), 0.5)
        seen = [env.reset(seed=0)] + [env.step(0)[:5:4] for _ in range(40)]
        assert {(bool(info["blanked"]), float(obs.sum())) for obs, info in seen} == {
            (True, 0.0),
            (False, 1.0),
        }


class TestBadInput:
    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"num_decks": 0}, "num_decks must be at least 1, got 0"),
            ({"k": 0}, "k must be at least 1, got 0"),
            ({"k": 2.5}, "k must be a whole number, got 2.5"),
            ({"k": 52}, "k must be less than the 52 cards that there are, got 52"),
            ({"num_decks": 2, "k": 200}, "k must be less than the 104 cards"),
            ({"render_mode": "human"}, "render_mode must be None or one of .* got 'human'"),
        ],
    )
    def test_is_refused(self, kwargs: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            RepeatPreviousEnv(**kwargs)
        with pytest.raises(ValueError, match=message.replace(" one of", ".*")):
            native(EASY, **kwargs)

    @pytest.mark.parametrize("action", [4, -1, 0.0, None, "1"])
    def test_another_action_is_refused(self, action: Any) -> None:
        env = RepeatPreviousEnv()
        env.reset(seed=0)
        with pytest.raises(ValueError, match="action must be 0, 1, 2 or 3, got"):
            env.step(action)

    @pytest.mark.parametrize("wrong", [4, -1, 2**40])
    def test_another_action_of_a_vector_is_refused(self, wrong: int) -> None:
        envs = native(EASY)
        envs.reset(seed=0)
        envs.step(np.array([0, 1, 2, 3, 3]))
        with pytest.raises(ValueError, match="actions must be 0 to 3, got"):
            envs.step(np.array([0, 1, wrong, 3, 2]))

    def test_a_step_before_the_first_reset_is_refused(self) -> None:
        with pytest.raises(gym.error.ResetNeeded):
            RepeatPreviousEnv().step(0)


class TestPicture:
    def test_text_shows_cards_question_and_answer(self) -> None:
        assert text(Scene([3, 0], 3, None)) == "..hs\n....\n...."
        assert text(Scene([3, 0, 1], 3, None)) == ".hsd\n.?..\n...."
        assert text(Scene([3, 0, 1, 2], 3, 3)) == "hsdc\n=?..\nh..."
        assert text(Scene([3, 0, 1, 2, 2], 3, 2)) == "sdcc\nx?..\nc..."

    def test_an_environment_shows_its_own(self) -> None:
        env = RepeatPreviousEnv(k=2, render_mode="ansi")
        with pytest.raises(gym.error.ResetNeeded):
            env.render()
        first, second, third = suits_of(env, seed=4)[:3]
        env.reset(seed=4)
        signs = "sdch"
        assert env.render() == f"..{signs[first]}\n...\n..."
        env.step(0)
        assert env.render() == f".{signs[first]}{signs[second]}\n.?.\n..."
        env.step(first)
        shown = f"{signs[first]}{signs[second]}{signs[third]}"
        assert env.render() == f"{shown}\n=?.\n{signs[first]}.."

    def test_the_array_is_the_text_in_colours(self) -> None:
        painted = picture(Scene([3, 0, 1, 2], 3, 2))
        assert painted.shape == (3 * 24, 4 * 24, 3)
        found = [{tuple(c) for c in painted[:24, x : x + 24].reshape(-1, 3)} for x in (0, 24, 48)]
        for letter, colours in zip("hsd", found, strict=True):
            assert {INK[letter], CARD} <= colours
        assert SIGNS["x"] in {tuple(c) for c in painted[24:48, :24].reshape(-1, 3)}

    @pytest.mark.parametrize("k", [64, 400])
    def test_many_cards_fit(self, k: int) -> None:
        assert picture(Scene([0] * 500, k, 0)).shape[0] >= 24

    def test_without_a_render_mode_it_says_so(self) -> None:
        env = RepeatPreviousEnv()
        env.reset(seed=0)
        with pytest.warns(UserWarning, match="without a render_mode"):
            assert env.render() is None


@pytest.mark.parametrize("mode", MODES)
class TestVectorEqualsSynchronousVector:
    @pytest.mark.parametrize(
        ("env_id", "kwargs"),
        [(EASY, {}), (EASY, {"k": 51, "expose_state": True}), (EASY, {"k": 1}), (HARD, {})],
    )
    def test_over_many_episodes(self, env_id: str, mode: str, kwargs: dict[str, Any]) -> None:
        ours, theirs = native(env_id, mode, **kwargs), synchronous(env_id, mode, **kwargs)
        assert_same_reset(ours, theirs, {"seed": 3})
        terminated, truncated = assert_same_steps(ours, theirs, 500)
        assert terminated >= 3 * N_ENVS
        assert truncated == 0

    @pytest.mark.parametrize("limit", [3, 50, 51, 52])
    def test_with_a_time_limit(self, mode: str, limit: int) -> None:
        ours, theirs = (make(EASY, mode, max_episode_steps=limit) for make in (native, synchronous))
        assert_same_reset(ours, theirs, {"seed": 3})
        terminated, truncated = assert_same_steps(ours, theirs, 160)
        assert (terminated > 0, truncated > 0) == (limit >= 51, limit <= 51)

    def test_through_resets_with_seeds_and_masks(self, mode: str) -> None:
        ours, theirs = (make(EASY, mode, k=2) for make in (native, synchronous))
        mask = np.array([True, False, True, True, False])
        resets: list[dict[str, Any]] = [
            {"seed": [7, 3, 3, 0, 10**20]},
            {},
            {"options": {"reset_mask": mask}},
            {"options": {"reset_mask": ~mask}, "seed": 5},
            {"seed": [1, None, 2, None, 3], "options": {"reset_mask": mask}},
        ]
        for n_steps, arguments in enumerate(resets * 4):
            assert_same_reset(ours, theirs, arguments)
            assert_same_steps(ours, theirs, 5 * n_steps, seed=n_steps)

    def test_when_someone_uses_the_generators(self, mode: str) -> None:
        ours, theirs = native(EASY, mode), synchronous(EASY, mode)
        for envs in (ours, theirs):
            envs.reset(seed=0)
            for rng in envs.np_random:
                rng.random()
        assert_same_reset(ours, theirs, {})
        assert_same_steps(ours, theirs, 120)

    @pytest.mark.parametrize("render_mode", ["ansi", "rgb_array"])
    def test_in_what_it_paints(self, mode: str, render_mode: str) -> None:
        kwargs = {"render_mode": render_mode, "k": 3}
        ours, theirs = native(EASY, mode, **kwargs), synchronous(EASY, mode, **kwargs)
        assert_same_reset(ours, theirs, {"seed": 1})
        rng = np.random.default_rng(0)
        for _ in range(60):
            assert_same(ours.render(), theirs.render())
            actions = rng.integers(4, size=N_ENVS)
            theirs.step(actions)
            ours.step(actions)
            actions ^= 1  # the array is the caller's

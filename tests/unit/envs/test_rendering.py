"""Pictures: they show what the agent saw, and nothing else changes because someone is watching."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import HumanRendering, RecordVideo
from stable_baselines3.common.env_util import make_vec_env as sb3_make_vec_env
from stable_baselines3.common.vec_env import VecVideoRecorder

import thrust_pomdp
from thrust_pomdp.envs import rendering as painting
from thrust_pomdp.envs.cartpole_picture import add_senses

pygame = pytest.importorskip("pygame")

MASKED = "MaskedCartPole-v0"
FLICKERING = "FlickeringCartPole-v0"
BURST = "BurstFlickeringCartPole-v0"
BOTH = "MaskedFlickeringCartPole-v0"

NOISY = "POPGymNoisyPositionOnlyCartPoleEasy-v0"

every_id = pytest.mark.parametrize("env_id", [MASKED, FLICKERING, BURST, BOTH, NOISY])

#: A picture with something of every brightness in it.
RAMP = np.linspace(0, 255, 120 * 160 * 3).astype(np.uint8).reshape(120, 160, 3)


@pytest.fixture(autouse=True)
def no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def is_framed(picture: np.ndarray) -> bool:
    edges = (picture[0], picture[-1], picture[:, 0], picture[:, -1])
    return all(bool((edge == painting.BLIND).all()) for edge in edges)


def cells(picture: np.ndarray, count: int) -> list[bool]:
    """Read the newest flags off a CartPole picture: dark cells of 10 pixels, left of 590."""
    middles = [590 - 10 * age - 5 for age in range(count)]
    return [bool(picture[368, column].mean() < 100) for column in middles][::-1]


def relative_luminance(picture: np.ndarray) -> np.ndarray:
    """WCAG 2.2's definition, in [0, 1]."""
    share = picture / 255.0
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def trajectory(env: gym.Env, watch: bool, n_steps: int = 120) -> list[Any]:
    """Everything that happens in some seeded episodes, and where the generators are in the end."""
    obs, info = env.reset(seed=5)
    seen: list[Any] = [obs.tolist(), info]
    for step in range(n_steps):
        if watch:
            env.render()
        obs, reward, terminated, truncated, info = env.step(step // 2 % 2)
        seen += [obs.tolist(), reward, terminated, truncated, info]
        if terminated or truncated:
            seen += [env.reset()[0].tolist()]
    base = env.unwrapped
    seen.append(base.np_random.bit_generator.state)
    if hasattr(base, "_flicker"):
        seen.append(base._flicker._generator.bit_generator.state)
    return seen


class TestPainter:
    """The functions on arrays, which know nothing of CartPole."""

    def test_a_visible_frame_is_the_picture_itself_above_the_strip(self) -> None:
        painted = painting.paint_sensor(RAMP, [True, False])
        np.testing.assert_array_equal(painted[:120], RAMP)
        assert painted.shape[1:] == (160, 3)
        assert (painted.shape[0] - 120) % 2 == 0
        assert painted.dtype == np.uint8

    def test_a_blank_frame_is_framed_and_has_less_contrast(self) -> None:
        before = RAMP.copy()
        painted = painting.paint_sensor(RAMP, [False, True])[:120]
        assert is_framed(painted)
        inside = painted[10:-10, 10:-10].astype(int)
        original = RAMP[10:-10, 10:-10].astype(int)
        assert np.ptp(inside) < 0.4 * np.ptp(original)
        # Order survives: the cart can still be seen.
        assert (np.diff(inside[:, 0, 0]) >= 0).all()
        np.testing.assert_array_equal(RAMP, before)

    @pytest.mark.parametrize("width", [64, 160, 600, 1001])
    def test_the_strip_reads_from_old_to_new_with_the_newest_at_the_right(self, width: int) -> None:
        flags = (np.random.default_rng(0).random(200) < 0.5).tolist()
        picture = painting.strip(flags, width, 9)
        cell = max(round(width / 60), 1)
        count = width // cell
        assert 50 <= count <= 70
        middles = [width - age * cell - (cell + 1) // 2 for age in range(count)]
        shown = [bool(picture[4, column].mean() < 100) for column in middles]
        assert shown[::-1] == flags[-count:]

    def test_frames_there_have_not_been_yet_leave_the_strip_empty(self) -> None:
        picture = painting.strip([True, False], 120, 9)
        assert (picture[:, : 120 - 2 * 2] == 255).all()
        assert (picture[:, -4:-2] < 255).all()

    def test_visible_and_blank_differ_in_brightness_so_that_no_colour_need_be_seen(self) -> None:
        levels = [float(relative_luminance(x)) for x in (painting.VISIBLE, painting.BLANK)]
        assert (levels[0] + 0.05) / (levels[1] + 0.05) > 7  # WCAG's strictest contrast, AAA

    def test_a_white_picture_does_not_flash_when_it_is_blanked_at_every_second_frame(self) -> None:
        white = np.full((400, 600, 3), 255, dtype=np.uint8)
        white[284:315, 274:325] = 0
        inside = relative_luminance(painting.mark_blind(white)[10:-10, 10:-10])
        # WCAG 2.2: no flash where the darker image has a relative luminance of .80 or more, which
        # is met to a hundredth, or the change is less than a tenth of the largest one.
        assert np.median(inside) > 0.79

    def test_small_pictures_are_framed_too(self) -> None:
        assert is_framed(painting.mark_blind(np.zeros((8, 8, 3), dtype=np.uint8)))


class TestPicture:
    """What a CartPole of ours looks like."""

    def test_what_is_seen_is_gymnasiums_picture_above_the_caption(self) -> None:
        base = gym.make("CartPole-v1", render_mode="rgb_array")
        ours = gym.make(FLICKERING, flicker_prob=0.0, render_mode="rgb_array")
        for env in (base, ours):
            env.reset(seed=2)
            env.step(1)
        picture = ours.render()
        assert picture.shape == (400, 600, 3)
        assert picture.dtype == np.uint8
        np.testing.assert_array_equal(picture[:330], base.render()[:330])

    def test_the_frame_and_the_strip_are_the_flags_of_the_infos(self) -> None:
        env = gym.make(FLICKERING, render_mode="rgb_array")
        flags: list[bool] = []
        ended = True
        for step in range(150):
            if ended:
                flags = [env.reset(seed=0 if step == 0 else None)[1]["blanked"]]
                ended = False
            else:
                _, _, terminated, truncated, info = env.step(step % 2)
                flags.append(info["blanked"])
                ended = terminated or truncated
            picture = env.render()
            assert is_framed(picture) == flags[-1]
            shown = flags[-58:]
            assert cells(picture, len(shown)) == shown
            if len(flags) < 58:
                older = picture[356:380, 10 : 590 - 10 * len(flags)]
                assert (older == 255).all()
        assert step == 149

    def test_painting_twice_changes_nothing(self) -> None:
        env = gym.make(BURST, render_mode="rgb_array")
        env.reset(seed=1)
        env.step(0)
        np.testing.assert_array_equal(env.render(), env.render())

    def test_hidden_velocities_are_said_where_nothing_is_ever_blank(self) -> None:
        env = gym.make(MASKED, render_mode="rgb_array")
        base = gym.make("CartPole-v1", render_mode="rgb_array")
        env.reset(seed=1)
        base.reset(seed=1)
        ours, theirs = env.render(), base.render()
        differs = (ours != theirs).any(axis=-1)
        rows, columns = np.nonzero(differs)
        assert 500 < differs.sum() < 3_000  # letters
        assert rows.max() < 60  # and no strip
        assert columns.max() < 300
        assert not is_framed(ours)

    def test_the_masked_and_flickering_one_has_both(self) -> None:
        env = gym.make(BOTH, flicker_prob=1.0, render_mode="rgb_array")
        env.reset(seed=1)
        picture = env.render()
        assert is_framed(picture)
        blank = np.zeros((400, 600, 3), dtype=np.uint8)
        said = add_senses(blank, [True], True)[15:40] != add_senses(blank, [True], False)[15:40]
        assert said.any()
        assert cells(picture, 1) == [True]

    def test_without_a_render_mode_there_is_no_picture_but_gymnasiums_warning(self) -> None:
        env = gym.make(FLICKERING)
        env.reset(seed=0)
        with pytest.warns(UserWarning, match="without specifying any render mode"):
            assert env.unwrapped.render() is None


class TestNoise:
    """A noisy sensor's pictures show the cart that the agent saw as an outline."""

    def outline(self, picture: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = np.nonzero((picture == painting.BLIND).all(axis=-1))
        return rows, columns

    def test_the_outline_is_where_the_observation_says(self) -> None:
        env = gym.make(NOISY, noise_sigma=0.2, render_mode="rgb_array")
        obs, _ = env.reset(seed=3)
        for step in range(12):
            rows, columns = self.outline(env.render())
            x, angle = obs.tolist()
            low = columns[rows > 303]  # below the track there is the cart alone
            assert (low.min() + low.max()) / 2 == pytest.approx(300 + 125 * x, abs=2)
            tip = columns[rows < rows.min() + 4].mean()
            assert tip == pytest.approx(300 + 125 * x + 120 * np.sin(angle), abs=6)
            obs, *_ = env.step(step % 2)

    def test_a_cart_seen_beyond_the_edge_is_painted_as_far_as_it_is_inside(self) -> None:
        env = gym.make(NOISY, noise_sigma=5.0, render_mode="rgb_array")
        seen = []
        for seed in range(20):
            seen.append(env.reset(seed=seed)[0][0])
            is_inside = self.outline(env.render())[0].size > 0
            if abs(seen[-1]) < 2.5 or abs(seen[-1]) > 3.2:  # between them the pole may lean inside
                assert is_inside == (abs(seen[-1]) < 2.5)
        assert min(seen) < -3.2
        assert max(seen) > 3.2

    def test_the_rest_is_the_picture_without_noise(self) -> None:
        pictures = []
        for sigma in (0.0, 0.1):
            env = gym.make(NOISY, noise_sigma=sigma, render_mode="rgb_array")
            env.reset(seed=1)
            pictures.append(env.render())
        assert self.outline(pictures[0])[0].size == 0
        differs = (pictures[0] != pictures[1]).any(axis=-1)
        rows, columns = self.outline(pictures[1])
        differs[rows, columns] = differs[35:60, :320] = False  # the outline, and what explains it
        assert not differs.any()


class TestWatchingChangesNothing:
    @every_id
    @pytest.mark.parametrize("render_mode", ["rgb_array", "human"])
    def test_a_watched_run_is_the_unwatched_one_to_the_last_bit(
        self, env_id: str, render_mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unwatched = trajectory(gym.make(env_id), watch=False)
        # 120 frames at 50 a second would take 2.4 s.
        monkeypatch.setitem(gym.make(env_id).unwrapped.metadata, "render_fps", 10_000)
        env = gym.make(env_id, render_mode=render_mode)
        assert trajectory(env, watch=True) == unwatched
        env.close()

    @pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
    def test_a_watched_vector_is_the_unwatched_one(self, mode: str) -> None:
        def run(watch: bool) -> list[Any]:
            kwargs = {"render_mode": "rgb_array"} if watch else {}
            envs = gym.make_vec(
                BURST, 3, vectorization_mode="vector_entry_point", autoreset_mode=mode, **kwargs
            )
            outcomes = [envs.reset(seed=1)]
            for step in range(120):
                outcomes.append(envs.step(np.array([0, 1, step % 2])))
                if watch:
                    envs.render()
            generators = [generator.bit_generator.state for generator in envs.np_random]
            return [[str(outcome) for outcome in outcomes], generators]

        assert run(True) == run(False)

    def test_numpys_global_generator_is_left_alone(self) -> None:
        env = gym.make(BURST, render_mode="rgb_array")
        env.reset(seed=0)
        before = str(np.random.get_state())
        env.render()
        assert str(np.random.get_state()) == before


class TestVectors:
    """The native vector paints what the single environments would."""

    @every_id
    @pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
    def test_pictures_are_those_of_single_environments(self, env_id: str, mode: str) -> None:
        kwargs = {"render_mode": "rgb_array"}
        ours = gym.make_vec(
            env_id, 2, vectorization_mode="vector_entry_point", autoreset_mode=mode, **kwargs
        )
        theirs = gym.make_vec(
            env_id, 2, vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode(mode)}, **kwargs,
        )  # fmt: skip
        n_ended = 0
        for envs in (ours, theirs):
            envs.reset(seed=3)
        for step in range(90):
            actions = np.array([step % 2, step // 40 % 2])
            for envs in (ours, theirs):
                _, _, terminations, _, _ = envs.step(actions)
            n_ended += int(terminations.sum())
            # A mask resets one environment and leaves the other's strip as it is.
            if step == 70:
                mask = {"reset_mask": np.array([True, False])}
                for envs in (ours, theirs):
                    envs.reset(options=dict(mask))
            if step % 7 == 0 or terminations.any() or step > 68:
                for mine, other in zip(ours.render(), theirs.render(), strict=True):
                    np.testing.assert_array_equal(mine, other)
        assert n_ended >= 2

    def test_without_a_render_mode_no_flags_are_kept(self) -> None:
        envs = gym.make_vec(FLICKERING, 2, vectorization_mode="vector_entry_point")
        envs.reset(seed=0)
        for _ in range(10):
            envs.step(np.array([0, 1]))
        assert envs.unwrapped.latest_flags(0) == []

    def test_stable_baselines3_tiles_them(self) -> None:
        ours = thrust_pomdp.make_vec_env(FLICKERING, 4, seed=0)
        theirs = sb3_make_vec_env(FLICKERING, 4, seed=0)
        for venv in (ours, theirs):
            venv.reset()
            for _ in range(5):
                venv.step(np.array([0, 1, 0, 1]))
        tiles = ours.render()
        assert tiles.shape == (800, 1200, 3)
        np.testing.assert_array_equal(tiles, theirs.render())


class TestHumanMode:
    """The window shows each frame once, with that frame's own flag."""

    @every_id
    def test_every_frame_is_shown_as_rgb_array_would_paint_it(
        self, env_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        human = gym.make(env_id, render_mode="human")
        painted = gym.make(env_id, render_mode="rgb_array")
        shown: list[np.ndarray] = []
        flip = pygame.display.flip

        def remembering() -> None:
            screen = pygame.display.get_surface()
            shown.append(pygame.surfarray.array3d(screen).transpose(1, 0, 2))
            flip()

        monkeypatch.setattr(pygame.display, "flip", remembering)
        expected = []
        human.reset(seed=4)
        painted.reset(seed=4)
        expected.append(painted.render())
        for step in range(12):
            human.step(step % 2)
            painted.step(step % 2)
            expected.append(painted.render())
        assert len(shown) == len(expected)
        for mine, other in zip(shown, expected, strict=True):
            np.testing.assert_array_equal(mine, other)
        human.close()

    def test_it_can_be_closed_and_another_one_opened(self) -> None:
        for _ in range(2):
            env = gym.make(BOTH, render_mode="human")
            env.reset(seed=0)
            env.step(0)
            assert pygame.display.get_init()
            env.close()
            assert not pygame.display.get_init()


class TestOtherPeoplesTools:
    @every_id
    def test_gymnasiums_checker_passes_with_its_render_check(self, env_id: str) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*A Box observation space .*infinity")
            check_env(gym.make(env_id, render_mode="rgb_array").unwrapped)

    def test_human_rendering_shows_our_pictures(self) -> None:
        env = HumanRendering(gym.make(FLICKERING, flicker_prob=1.0, render_mode="rgb_array"))
        env.reset(seed=0)
        env.step(0)
        screen = pygame.surfarray.array3d(pygame.display.get_surface()).transpose(1, 0, 2)
        assert is_framed(screen)
        env.close()

    def test_record_video_writes_a_film(self, tmp_path) -> None:
        pytest.importorskip("moviepy")
        env = RecordVideo(
            gym.make(FLICKERING, render_mode="rgb_array"), str(tmp_path / "films"), lambda _: True
        )
        env.reset(seed=0)
        for _ in range(8):
            env.step(0)
        env.close()
        (film,) = (tmp_path / "films").iterdir()
        assert film.stat().st_size > 1_000

    def test_vec_video_recorder_writes_a_film(self, tmp_path) -> None:
        pytest.importorskip("moviepy")
        venv = thrust_pomdp.make_vec_env(FLICKERING, 2, seed=0)
        recorder = VecVideoRecorder(venv, str(tmp_path), lambda step: step == 0, video_length=5)
        recorder.reset()
        for _ in range(6):
            recorder.step(np.array([0, 1]))
        recorder.close()
        (film,) = tmp_path.iterdir()
        assert film.stat().st_size > 1_000

"""``scripts/render.py``: whoever can act is played as trained, and what cannot be is refused."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib
from maskable_envs import changing_masks
from PIL import Image
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.vec_env import VecNormalize

from thrust_pomdp import (
    MaskableRecurrentPPO,
    RecurrentPPO,
    StatefulActor,
    VecNormalizeVisible,
    make_vec_env,
)
from thrust_pomdp.experiment import playback, video
from thrust_pomdp.experiment.arms import find_arm
from thrust_pomdp.experiment.runner import save_result
from thrust_pomdp.experiment.training import RunSpec, run
from thrust_pomdp.experiment.vec_envs import make_evaluation_env

ROOT = Path(__file__).parents[3]
FLICKERING = "FlickeringCartPole-v0"
SMALL: dict[str, Any] = {"n_steps": 32, "seed": 0}


@pytest.fixture(autouse=True)
def no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each kind, its statistics, and a run of the runner."""
    folder = tmp_path_factory.mktemp("saved")
    venv = VecNormalizeVisible(make_vec_env(FLICKERING, 2, seed=0), norm_reward=False)
    model = RecurrentPPO("MlpLstmPolicy", venv, envs_per_minibatch=2, **SMALL).learn(256)
    model.seed = None  # or loading it would seed torch's generator, which sampling draws from
    model.save(folder / "ours.zip")
    venv.save(str(folder / "visible.pkl"))
    sb3_contrib.RecurrentPPO("MlpLstmPolicy", venv, batch_size=32, **SMALL).save(
        folder / "theirs.zip"
    )
    PPO("MlpPolicy", venv, batch_size=32, **SMALL).save(folder / "ppo.zip")
    A2C("MlpPolicy", venv, **SMALL).save(folder / "a2c.zip")
    plain = VecNormalize(make_vec_env(FLICKERING, 2, seed=0))
    plain.reset()
    plain.save(str(folder / "plain.pkl"))
    (folder / "runs").mkdir()
    spec = RunSpec("lstm", FLICKERING, 0, {"flicker_prob": 0.25}, 1024, 1, 1)
    save_result(run(spec, save_to=folder / "runs" / spec.name), folder / "runs" / "lstm-seed0.json")
    return folder


@pytest.fixture
def render(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("render", ROOT / "scripts" / "render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Recorder(gym.Wrapper):
    """Remembers what happened in an environment."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.actions: list[int] = []
        self.frames: list[tuple[np.ndarray, Any, bool]] = []
        self.seeds: list[int | None] = []

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed, options=options)
        self.seeds.append(seed)
        self.frames.append((obs, info.get("blanked"), True))
        return obs, info

    def step(self, action):
        self.actions.append(int(action))
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.frames.append((obs, info.get("blanked"), False))
        return obs, reward, terminated, truncated, info


class TestPlaying:
    def test_memory_and_statistics_are_carried_as_in_training(self, saved: Path) -> None:
        env = Recorder(gym.make(FLICKERING))
        actor = playback.model_actor(env, saved / "ours.zip", saved / "visible.pkl", True)
        playback.play(env, actor, n_episodes=3, max_steps=1000, seed=7)
        # By hand: the model with its state, the statistics with the frame's flag.
        model = RecurrentPPO.load(saved / "ours.zip")
        normalizer = VecNormalizeVisible.load(str(saved / "visible.pkl"), make_vec_env(FLICKERING))
        expected, state = [], None
        starts = [frame[2] for frame in env.frames]
        for (obs, blanked, start), next_starts in zip(env.frames, [*starts[1:], True], strict=True):
            seen = normalizer.normalize_obs(obs, blanked)
            action, state = model.predict(seen, state, np.array([start]), deterministic=True)
            if not next_starts:  # the last frame of an episode is not acted on
                expected.append(int(action))
        assert env.seeds == [7, None, None]
        assert set(expected) == {0, 1}
        assert env.actions == expected

    @pytest.mark.parametrize("name", ["ours.zip", "theirs.zip", "ppo.zip"])
    @pytest.mark.parametrize("statistics", ["visible.pkl", "plain.pkl", None])
    def test_models_of_all_three_libraries_play(
        self, saved: Path, name: str, statistics: str | None
    ) -> None:
        env = gym.make(FLICKERING)
        path = None if statistics is None else saved / statistics
        actor = playback.model_actor(env, saved / name, path, False)
        lengths = []
        playback.play(env, actor, 2, 1000, 0, lambda length, total: lengths.append((length, total)))
        assert len(lengths) == 2
        assert all(length == total >= 8 for length, total in lengths)

    def test_models_with_masks_are_loaded_with_them_or_refused(self, tmp_path: Path) -> None:
        env = changing_masks(7)
        ours = MaskableRecurrentPPO("MlpLstmPolicy", env, batch_size=8, n_steps=8)
        sb3_contrib.MaskablePPO("MlpPolicy", env, batch_size=8, n_steps=8).save(tmp_path / "theirs")
        for name in ("fresh", "trained"):
            ours.save(tmp_path / name)
            assert type(playback.load_model(tmp_path / f"{name}.zip")) is MaskableRecurrentPPO
            (single,) = changing_masks(7).envs
            actor = playback.model_actor(single, tmp_path / f"{name}.zip", None, False)
            playback.play(single, actor, 5, 100, 0)  # what is forbidden raises
            ours.learn(16)
        with pytest.raises(ValueError, match="or MaskableRecurrentPPO, .* got .*theirs.zip"):
            playback.load_model(tmp_path / "theirs.zip")

    def test_it_stops_after_so_many_steps_and_reports_what_was_cut(self) -> None:
        env = Recorder(gym.make(FLICKERING))
        lengths: list[int] = []
        playback.play(
            env, playback.RandomActor(env, 0), 99, 50, 0,
            lambda length, total: lengths.append(length),
        )  # fmt: skip
        assert sum(lengths) == len(env.actions) == 50
        assert len(lengths) == len(env.seeds)

    def test_a_true_zero_is_told_from_a_blank_by_its_flag(self, saved: Path) -> None:
        class Spy:
            def predict(self, obs, state, episode_start, deterministic):
                self.seen = obs
                return np.array(0), None

        spy, venv = Spy(), make_vec_env(FLICKERING)
        normalizer = VecNormalizeVisible.load(str(saved / "visible.pkl"), venv)
        spy.observation_space, spy.action_space = venv.observation_space, venv.action_space
        actor = playback.ModelActor(StatefulActor.like(spy, normalizer))
        actor.reset()
        for blanked in (True, False):
            actor.act(np.zeros(4, np.float32), None, {"blanked": blanked})
            assert spy.seen.any() != blanked

    def test_statistics_are_not_updated(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        env, loaded = gym.make(FLICKERING), []
        load = playback._load_normalizer
        monkeypatch.setattr(
            playback, "_load_normalizer", lambda *given: loaded.append(load(*given)) or loaded[0]
        )
        actor = playback.model_actor(env, saved / "ours.zip", saved / "visible.pkl", True)
        before = loaded[0].obs_rms.mean.copy()
        playback.play(env, actor, 1, 100, 0)
        np.testing.assert_array_equal(loaded[0].obs_rms.mean, before)


class TestWhatRunsOfEveryArmSee:
    """What an arm sees is known of its run; of a model alone it is said."""

    ARMS = {
        "lstm-prev-action": {},
        "frame-stack": {"n_steps": 32, "batch_size": 32},
        "mlp-prev-action": {"n_steps": 32, "batch_size": 32},
        "arms_of_users:a2c": {},
    }

    @pytest.fixture(scope="module")
    @staticmethod
    def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("runs")
        for arm, changes in TestWhatRunsOfEveryArmSee.ARMS.items():
            spec = RunSpec(arm, FLICKERING, 0, {}, 64, 1, 1)
            recipe = spec.recipe.with_changes(find_arm(arm), {**changes, "n_envs": 2})
            spec = replace(spec, hyperparams=recipe.as_mapping())
            save_result(run(spec, save_to=folder / spec.name), folder / f"{spec.name}.json")
        return folder

    @pytest.mark.parametrize("arm", ARMS)
    def test_they_act_as_in_an_evaluation(self, runs: Path, arm: str) -> None:
        found = playback.find_run(runs / f"{arm.replace(':', '.')}-seed0")
        env = Recorder(gym.make(FLICKERING))
        if ":" in arm:  # of the user's own, saved by its own save()
            with pytest.raises(ValueError, match="pass --trust-pickles"):
                playback.run_actor(env, found, True)
        trusted = ":" in arm
        playback.play(env, playback.run_actor(env, found, True, trusted), 3, 1000, seed=7)
        model, normalizer = found.load(trusted), found.load_normalizer()
        evaluation = make_evaluation_env(found.spec, 1, 7, normalizer)
        obs, state, start, expected = evaluation.reset(), None, np.ones(1, bool), []
        for _ in env.actions:
            actions, state = model.predict(obs, state, start, deterministic=True)
            expected.append(int(actions[0]))
            obs, _, start, _ = evaluation.step(actions)
        assert env.actions == expected

    def test_of_a_model_alone_it_is_said(self, runs: Path, tmp_path, render, capsys) -> None:
        stem = f"{runs}/lstm-prev-action-seed0"
        files = ["--model", f"{stem}.safetensors",
                 "--normalizer", f"{stem}.normalizer.safetensors"]  # fmt: skip
        film = ["--max-steps", "8", "--out", str(tmp_path / "film.gif")]
        assert render.main([*files, *film]) == 2
        assert "does not fit the environment: Observation spaces" in capsys.readouterr().err
        assert render.main([*files, "--previous-action", *film]) == 0

    def test_a_run_played_in_an_environment_it_does_not_fit(self, runs: Path) -> None:
        found = playback.find_run(runs / "frame-stack-seed0")
        with pytest.raises(ValueError, match="does not fit the environment: Observation spaces"):
            playback.run_actor(gym.make("MaskedCartPole-v0"), found, True)


class TestFilms:
    def test_a_gif_holds_every_frame_in_order_at_the_environments_speed(self, tmp_path) -> None:
        path = tmp_path / "new" / "film.gif"
        pictures = []
        env = video.record(gym.make(FLICKERING, render_mode="rgb_array"), path)
        env.reset(seed=0)
        pictures.append(env.render())
        for step in range(11):
            env.step(step % 2)
            pictures.append(env.render())
        env.close()
        with Image.open(path) as film:
            assert film.n_frames == 12
            for number, picture in enumerate(pictures):
                film.seek(number)
                assert film.info["duration"] == 20
                shown = np.asarray(film.convert("RGB")).astype(int)
                assert np.abs(shown - picture).mean() < 1

    def test_an_mp4_holds_every_frame_of_all_episodes(self, tmp_path) -> None:
        moviepy = pytest.importorskip("moviepy")
        path = tmp_path / "film.mp4"
        env = Recorder(video.record(gym.make(FLICKERING, render_mode="rgb_array"), path))
        playback.play(env, playback.RandomActor(env, 0), 2, 1000, 0)
        env.close()
        assert len(env.seeds) == 2
        with moviepy.VideoFileClip(str(path)) as film:
            assert film.size == [600, 400]
            assert round(film.duration * 50) == len(env.frames)
        assert list(tmp_path.iterdir()) == [path]

    def test_other_endings_are_refused(self, tmp_path) -> None:
        with pytest.raises(ValueError, match=r"must end in \.gif or \.mp4, got 'film\.avi'"):
            video.check_video_path(Path("film.avi"))

    @pytest.mark.parametrize(
        ("name", "module", "extra"),
        [("film.gif", "PIL", "render"), ("film.mp4", "moviepy", "video")],
    )
    def test_what_is_not_installed_is_named_with_the_command(
        self, name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf'pip install "thrust-pomdp\[{extra}\]"'):
            video.check_video_path(Path(name))


class TestScript:
    def test_a_run_of_the_runner_is_played_in_its_own_environment(
        self, saved: Path, tmp_path, render, capsys
    ) -> None:
        for ending in ("", ".json", ".safetensors"):
            film = tmp_path / f"film{ending}.gif"
            name = f"{saved}/runs/lstm-seed0{ending}"
            assert render.main(["--run", name, "--max-steps", "8", "--out", str(film)]) == 0
            with Image.open(film) as frames:
                assert frames.n_frames == 9
        assert capsys.readouterr().out.startswith("8 steps, return 8\nWritten: ")
        found = playback.find_run(saved / "runs" / "lstm-seed0")
        assert found.spec.env_kwargs == {"flicker_prob": 0.25}

    def test_the_same_command_gives_the_same_film(self, saved: Path, tmp_path, render) -> None:
        command = ["--model", f"{saved}/ours.zip", "--normalizer", f"{saved}/visible.pkl",
                   "--stochastic", "--max-steps", "30"]  # fmt: skip
        films = []
        for number, seed in enumerate((3, 3, 4)):
            film = tmp_path / f"{number}.gif"
            assert render.main([*command, "--seed", str(seed), "--out", str(film)]) == 0
            films.append(film.read_bytes())
        assert films[0] == films[1] != films[2]

    def test_chance_plays_any_environment_that_can_be_painted(self, tmp_path, render) -> None:
        pytest.importorskip("pygame")
        film = tmp_path / "film.gif"
        command = ["--controller", "random", "--env", "Acrobot-v1", "--max-steps", "3"]
        assert render.main([*command, "--out", str(film)]) == 0
        assert film.exists()

    @pytest.mark.parametrize(
        ("controller", "env_id", "length"),
        [
            ("exact-model", "BurstFlickeringCartPole-v0", 60),
            ("two-frames", "thrust_pomdp:MaskedCartPole-v0", 60),
            ("exact-model", "ActiveTMaze-v0", 12),
        ],
    )
    def test_a_controller_of_the_ladder_balances_and_recalls(
        self, controller: str, env_id: str, length: int, tmp_path, render, capsys
    ) -> None:
        command = ["--controller", controller, "--env", env_id, "--seed", "1"]
        film = str(tmp_path / "film.gif")
        assert render.main([*command, "--max-steps", "60", "--out", film]) == 0
        total = 60 if length == 60 else 1
        assert capsys.readouterr().out.startswith(f"{length} steps, return {total}\n")

    def test_what_is_registered_anew_under_an_id_has_no_controllers(
        self, tmp_path, render, capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Timid(type(gym.make(FLICKERING).unwrapped)):  # type: ignore[misc]
            """A task of its own."""

        other = replace(gym.spec(FLICKERING), entry_point=Timid)
        monkeypatch.setitem(gym.registry, FLICKERING, other)
        for env_id in (FLICKERING, f"thrust_pomdp:{FLICKERING}"):
            command = ["--controller", "exact-model", "--env", env_id]
            assert render.main([*command, "--out", str(tmp_path / "film.gif")]) == 2
            assert "there are no scripted controllers" in capsys.readouterr().err

    def test_an_interrupt_keeps_what_has_been_played(
        self, tmp_path, render, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Impatient(playback.RandomActor):
            n_actions = 0

            def act(self, obs, reward, info):
                self.n_actions += 1
                if self.n_actions == 4:
                    raise KeyboardInterrupt
                return super().act(obs, reward, info)

        monkeypatch.setattr(playback, "RandomActor", Impatient)
        film = tmp_path / "film.gif"
        assert render.main(["--controller", "random", "--out", str(film)]) == 1
        with Image.open(film) as frames:
            assert frames.n_frames == 4

    def test_a_window_shows_it(self, render, capsys) -> None:
        command = ["--controller", "random", "--env", "MaskedCartPole-v0", "--human"]
        assert render.main([*command, "--max-steps", "3"]) == 0
        assert "3 steps" in capsys.readouterr().out

    def test_a_seed_that_cannot_be(self, render, capsys) -> None:
        with pytest.raises(SystemExit):
            render.main(["--controller", "random", "--seed", "-1", "--out", "film.gif"])
        assert "argument --seed: must be at least 0, got -1" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--model", "{saved}/none.zip"], "model must be a file, got {saved}/none.zip"),
            (["--model", "{saved}/visible.pkl"], "model must be a zip file saved by model.save()"),
            (["--model", "{saved}/a2c.zip"], "or stable_baselines3.PPO, got {saved}/a2c.zip"),
            (["--model", "{saved}/ours.zip", "--env", "MaskedCartPole-v0"],
             "ours.zip does not fit the environment: Observation spaces do not match"),
            (["--model", "{saved}/ours.zip", "--normalizer", "{saved}/none.pkl"],
             "normalizer must be a file, got {saved}/none.pkl"),
            (["--model", "{saved}/ours.zip", "--normalizer", "{saved}/ours.zip"],
             "normalizer must be a file saved by VecNormalizeVisible"),
            (["--model", "{saved}/ours.zip", "--normalizer", "{saved}/visible.pkl",
              "--env", "MaskedCartPole-v0"], "fit the environment, got {saved}/visible.pkl"),
            (["--run", "{saved}/runs/mlp-seed0"], "finished in {saved}/runs: lstm-seed0"),
            (["--controller", "exact-model", "--env", "CartPole-v1"],
             "env_id must name an environment of this package"),
            (["--controller", "random", "--env", "FlickeringCartpole-v0"], "Did you mean"),
            (["--controller", "random", "--env-kwargs", "flicker_prob:1.5"],
             "flicker_prob must be a probability"),
            (["--controller", "random", "--env-kwargs", "burst:4"], "unexpected keyword"),
        ],
    )  # fmt: skip
    def test_bad_input_exits_with_2_and_one_line(
        self, arguments: list[str], message: str, saved: Path, tmp_path, render, capsys
    ) -> None:
        film = tmp_path / "film.gif"
        arguments = [argument.format(saved=saved) for argument in arguments]
        assert render.main([*arguments, "--out", str(film)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("render: ")
        assert message.format(saved=saved) in error
        assert not film.exists()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "one of the arguments --run --model --controller is required"),
            (["--controller", "random"], "one of the arguments --out --human is required"),
            (["--controller", "random", "--out", "a.gif", "--human"], "not allowed with"),
            (["--controller", "random", "--out", "a.gif", "--episodes", "0"], "at least 1"),
            (["--controller", "random", "--normalizer", "n.pkl", "--human"],
             "--normalizer belongs to --model"),
            (["--run", "runs/lstm", "--previous-action", "--human"],
             "--previous-action belongs to --model"),
            (["--controller", "random", "--out", "a.gif", "--env-kwargs", "p=1"],
             "expected name:value"),
        ],
    )  # fmt: skip
    def test_bad_arguments_exit_with_2(
        self, arguments: list[str], message: str, render, capsys
    ) -> None:
        with pytest.raises(SystemExit) as exit:
            render.main(arguments)
        assert exit.value.code == 2
        assert message in capsys.readouterr().err

    def test_a_run_made_before_models_were_saved_says_so(
        self, saved: Path, tmp_path, render, capsys
    ) -> None:
        result = tmp_path / "lstm-seed0.json"
        result.write_text((saved / "runs" / "lstm-seed0.json").read_text())
        assert render.main(["--run", str(result), "--out", "film.gif"]) == 2
        assert "lstm-seed0.safetensors is missing" in capsys.readouterr().err

    def test_what_paints_is_named_where_it_is_missing(
        self, tmp_path, render, capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pygame", None)
        for where in (["--human"], ["--out", str(tmp_path / "film.gif")]):
            assert render.main(["--controller", "random", *where]) == 2
            assert 'pip install "thrust-pomdp[render]"' in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    def test_an_environment_nobody_can_paint_says_so(self, tmp_path, render, capsys) -> None:
        class Unseen(gym.Env):
            observation_space = gym.spaces.Box(-1, 1, (1,))
            action_space = gym.spaces.Discrete(2)

        gym.register("Unseen-v0", entry_point=Unseen)
        try:
            command = ["--controller", "random", "--env", "Unseen-v0"]
            assert render.main([*command, "--out", str(tmp_path / "film.gif")]) == 2
            assert "Unseen-v0 cannot be painted" in capsys.readouterr().err
        finally:
            del gym.registry["Unseen-v0"]

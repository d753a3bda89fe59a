"""What runs leave behind is arrays and JSON; what is pickled is read on request only."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import sb3_contrib
import torch as th
from stable_baselines3 import PPO

import thrust_pomdp
from thrust_pomdp import MaskableRecurrentPPO, RecurrentPPO, VecNormalizeVisible
from thrust_pomdp.experiment import playback, saved_models
from thrust_pomdp.experiment.commands import sweep
from thrust_pomdp.experiment.commands.compare import main as compare

DATA = Path(__file__).parents[2] / "data" / "v0_1_0"
FLICKERING = "FlickeringCartPole-v0"


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("comparison")
    recipe = folder / "recipes.yml"
    arms = ("lstm-prev-action", "frame-stack", "sb3-contrib")
    small = "n_envs: 2, n_steps: 32, batch_size: 32, n_timesteps: 64, normalize: true"
    recipe.write_text("".join(f"{arm}:\n  {FLICKERING}: {{{small}}}\n" for arm in arms))
    arguments = [
        "--env", FLICKERING, "--arms", *arms, "--seeds", "1", "--n-timesteps", "64", "--recipe",
        str(recipe), "--eval-episodes", "1", "1", "--jobs", "1", "--out", str(folder / "out"),
    ]  # fmt: skip
    assert compare(arguments) == 0
    return folder / "out"


class TestResultFolders:
    def test_hold_no_pickle(self, comparison):
        kinds = {path.suffix for path in comparison.rglob("*") if path.is_file()}
        assert kinds <= {".json", ".csv", ".safetensors", ".lock", ".html", ".png", ".txt", ""}
        for path in comparison.rglob("*"):
            start = path.read_bytes()[:9] if path.is_file() else b""
            assert start[8:] == b"{" or not start.startswith((b"\x80", b"PK"))

    def test_are_played_without_trust(self, comparison, tmp_path):
        grid = ["--grid", "flicker_prob:0.5", "--eval-episodes", "1", "1", "--jobs", "1"]
        out = ["--out", str(tmp_path / "out")]
        assert sweep.main(["evaluate", str(comparison), *grid, *out]) == 0
        for run in (comparison / "runs").glob("*-seed0.safetensors"):
            if "normalizer" not in run.name:
                found = playback.find_run(run)
                env = playback.make_env(FLICKERING, False, {})
                playback.play(env, playback.run_actor(env, found, True), 1, 5, 0)

    def test_of_earlier_versions_are_read_where_they_are_trusted(self, tmp_path, capsys):
        old = tmp_path / "old"
        shutil.copytree(DATA / "compare", old)
        grid = ["--grid", "flicker_prob:0.5", "--eval-episodes", "1", "1", "--jobs", "1"]
        only = ["--arms", "lstm"]  # of the other its model is not in the fixture
        command = ["evaluate", str(old), *only, *grid, "--out", str(tmp_path / "out")]
        assert sweep.main(command) == 2
        assert "pass --trust-pickles" in capsys.readouterr().err
        assert sweep.main([*command, "--trust-pickles"]) == 0

    @pytest.mark.parametrize("ending", [".zip", ".normalizer.pkl"])
    def test_with_a_song_are_not_heard(self, comparison, ending, tmp_path, capsys):
        bad = tmp_path / "bad"
        shutil.copytree(comparison, bad)
        canary = tmp_path / "canary"
        for run in (bad / "runs").glob("*.json"):
            replaced = ending.replace(".zip", ".safetensors").replace(".pkl", ".safetensors")
            run.with_suffix(replaced).unlink(missing_ok=True)
            run.with_suffix(ending).write_bytes(pickle.dumps(Touch(canary)))
            told = json.loads(run.read_text())
            told["provenance"]["algorithm"] = "thrust_pomdp.experiment.nowhere:Song"
            run.write_text(json.dumps(told))
        grid = ["--grid", "flicker_prob:0.5", "--eval-episodes", "1", "1", "--jobs", "1"]
        assert sweep.main(["evaluate", str(bad), *grid, "--out", str(tmp_path / "out")]) != 0
        found = playback.find_run(bad / "runs" / "lstm-prev-action-seed0")
        with pytest.raises(ValueError, match="pass --trust-pickles"):
            playback.run_actor(playback.make_env(FLICKERING, False, {}), found, True)
        assert not canary.exists()


class TestFiles:
    def test_of_each_algorithm_come_back(self, tmp_path):
        small = {"n_steps": 8, "batch_size": 8, "device": "cpu"}
        for model in (
            RecurrentPPO("MlpLstmPolicy", FLICKERING, **small),
            PPO("MlpPolicy", FLICKERING, **small),
            sb3_contrib.RecurrentPPO("MlpLstmPolicy", FLICKERING, **small),
        ):
            (content,) = saved_models.files_of(model).values()
            (tmp_path / "model.safetensors").write_bytes(content)
            again = saved_models.load_safe_model(tmp_path / "model.safetensors")
            for name, part in again.policy.state_dict().items():
                assert th.equal(part, model.policy.state_dict()[name])
            obs = model.observation_space.sample()
            assert (
                again.predict(obs, deterministic=True)[0]
                == model.predict(obs, deterministic=True)[0]
            )

    def test_of_an_algorithm_that_is_not_in_the_table(self, tmp_path):
        class Own(RecurrentPPO):
            pass

        model = Own("MlpLstmPolicy", FLICKERING, n_steps=8, batch_size=8)
        assert saved_models.files_of(model).keys() == {".zip"}
        assert MaskableRecurrentPPO in saved_models._ALGORITHMS.values()

    def test_of_normalisers(self):
        venv = thrust_pomdp.make_vec_env(FLICKERING, 1)
        own = type("Own", (VecNormalizeVisible,), {})
        globals()["Own"] = own  # pickle finds it by name
        own.__module__, own.__qualname__ = __name__, "Own"
        assert saved_models.files_of_normalizer(None) == {}
        found = [saved_models.files_of_normalizer(cls(venv)) for cls in (VecNormalizeVisible, own)]
        assert [list(files) for files in found] == [
            [".normalizer.safetensors"],
            [".normalizer.pkl"],
        ]

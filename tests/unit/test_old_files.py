"""Files written by version 0.1.0 still load, whatever has moved since.

``tests/data/v0_1_0/make.py`` wrote them, run with that version.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

import thrust_pomdp
from thrust_pomdp.experiment.commands import report

DATA = Path(__file__).parents[1] / "data" / "v0_1_0"
TOLD = json.loads((DATA / "told.json").read_text())
MODELS = sorted(path.stem for path in DATA.glob("*.zip"))


def observations(space: spaces.Space) -> object:
    space.seed(1)
    drawn = [space.sample() for _ in range(3)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([obs[key] for obs in drawn]) for key in space}
    return np.stack(drawn)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_acts_as_it_did(name):
    is_masked = name == "maskable"
    cls = thrust_pomdp.MaskableRecurrentPPO if is_masked else thrust_pomdp.RecurrentPPO
    model = cls.load(DATA / f"{name}.zip", device="cpu")
    masks = {"action_masks": np.ones((3, 2), bool)} if is_masked else {}
    obs = observations(model.observation_space)
    actions, state = model.predict(obs, deterministic=True, **masks)
    np.testing.assert_allclose(actions, TOLD[name]["actions"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.asarray(state), TOLD[name]["state"], rtol=0, atol=1e-6)


def test_they_are_one_of_each_policy():
    classes = {type(thrust_pomdp.RecurrentPPO.load(DATA / f"{name}.zip", device="cpu").policy)
               for name in MODELS if name != "maskable"}  # fmt: skip
    assert {cls.__name__ for cls in classes} == {
        "RecurrentActorCriticPolicy",
        "RecurrentActorCriticCnnPolicy",
        "RecurrentMultiInputActorCriticPolicy",
        "AsymmetricLstmPolicy",
    }


def test_a_normaliser_goes_on():
    venv = thrust_pomdp.make_vec_env("FlickeringCartPole-v0", 2, seed=0)
    with pytest.warns(UserWarning, match="zero_is_blank"):
        loaded = thrust_pomdp.VecNormalizeVisible.load(str(DATA / "visible.pkl"), venv)
    np.testing.assert_array_equal(loaded.obs_rms.mean, TOLD["visible"]["mean"])
    loaded.reset()
    assert loaded.obs_rms.count > TOLD["visible"]["count"]


def test_privileged_statistics_are_read():
    venv = thrust_pomdp.make_vec_env(
        "FlickeringCartPole-v0", 2, seed=0, env_kwargs={"expose_state": True}
    )
    venv = thrust_pomdp.VecPrivilegedInfo(venv)
    venv.load_statistics(DATA / "privileged.pkl")
    np.testing.assert_array_equal(venv.statistics.mean, TOLD["privileged"]["mean"])


def test_a_comparison_is_reported(tmp_path, capsys):
    folder = tmp_path / "compare"
    shutil.copytree(DATA / "compare", folder)
    assert report.main([str(folder)]) == 0
    assert (folder / "report.html").exists()
    assert "(2 runs, " in capsys.readouterr().out

"""python -m thrust_pomdp export; docs/deploy.md's test runs it on a run of a comparison."""

from __future__ import annotations

import re

import numpy as np
import pytest

from thrust_pomdp import RecurrentPPO, StatefulActor, make_vec_env
from thrust_pomdp.deploy import players
from thrust_pomdp.deploy.numpy_actor import NumpyActor
from thrust_pomdp.experiment.commands import export


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with its normaliser, and the actor of both."""
    path = tmp_path_factory.mktemp("export")
    env = make_vec_env(
        "FlickeringCartPole-v0", 2, seed=0, normalize=True, previous_action=True, frame_stack=2
    )
    model = RecurrentPPO("MlpLstmPolicy", env, n_steps=32, seed=0)
    model.learn(64)
    model.save(path / "model.zip")
    model.get_vec_normalize_env().save(str(path / "normalizer.pkl"))
    StatefulActor.like(model, env).save(path / "actor.safetensors")
    return path


ABOUT = ("--previous-action", "--frame-stack", "2")


def call(*arguments):
    return export.main([str(argument) for argument in arguments])


def actions_of(path):
    actor, rng = NumpyActor(path), np.random.default_rng(0)
    return [int(actor.act(rng.normal(size=4), blanked=step % 3 == 0)) for step in range(50)]


def test_a_models_file_with_what_was_around_it_is_the_actors(folder, tmp_path):
    told = (folder / "model.zip", tmp_path / "one.npz", "--normalizer", folder / "normalizer.pkl")
    assert call(*told, *ABOUT) == 0
    assert call(folder / "actor.safetensors", tmp_path / "two.npz") == 0
    actions = actions_of(tmp_path / "one.npz")
    assert actions == actions_of(tmp_path / "two.npz")
    assert 0 < sum(actions) < 50


def test_check_tells_each_runtime(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(players, "NODE", None)
    assert call(folder / "actor.safetensors", tmp_path / "actor.npz", "--check") == 0
    told = capsys.readouterr().out
    assert "NumPy: 1,000 steps, 0 different actions, largest difference" in told
    assert "Node: not installed" in told


def test_check_fails_where_actions_differ(folder, tmp_path, capsys, monkeypatch):
    def contrary(path, program, steps):
        played = players._in_numpy(path, program, steps)
        return played._replace(actions=1 - played.actions)

    monkeypatch.setattr(players, "installed", lambda: {".npz": contrary})
    assert call(folder / "actor.safetensors", tmp_path / "actor.npz", "--check") == 1
    told = capsys.readouterr().out
    assert re.search(r"NumPy: 1,000 steps, (9\d\d|1000) different actions", told)  # but for ties


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.zip", "a.npz"), "missing.zip"),
        (("model.zip", "a.exe"), "path must end with one of"),
        (("runs/lstm-seed0", "a.npz", "--frame-stack", "2"), "are for the file of a model"),
        (("runs/lstm-seed0", "a.npz"), "must name a finished run"),
    ],
)
def test_what_cannot_be_is_said(folder, arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    model, out, *more = arguments
    code = call(model, tmp_path / out, *more)
    told = capsys.readouterr()
    assert code == 2
    assert message in told.err
    assert not (tmp_path / out).exists()

"""Actors in ONNX Runtime act as they do in torch."""

from __future__ import annotations

import pytest
from deploy_cases import CASES, has_noise, make_actor

from thrust_pomdp.deploy.checking import random_steps
from thrust_pomdp.deploy.description import describe
from thrust_pomdp.deploy.export import difference_to

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from thrust_pomdp.deploy.onnx_actor import OnnxActor


def compare(name: str, folder, n_steps: int, n_envs: int, with_noise: bool = False) -> None:
    case = CASES[name]
    actor = make_actor(case, deterministic=not with_noise)
    path = folder / "actor.onnx"
    actor.export(path, outputs=case.outputs)
    program = describe(actor, case.outputs)
    steps = random_steps(program, n_steps, n_envs, with_noise=with_noise)
    found = difference_to(actor, program, OnnxActor(path), steps)
    assert found.is_small, found


@pytest.mark.parametrize("name", CASES)
class TestActsAsInTorch:
    def test_one(self, name, tmp_path):
        compare(name, tmp_path, 150, 1)

    def test_a_batch(self, name, tmp_path):
        compare(name, tmp_path, 60, 8)

    def test_with_noise(self, name, tmp_path):
        if has_noise(CASES[name]):
            compare(name, tmp_path, 60, 4, with_noise=True)

    @pytest.mark.slow
    @pytest.mark.parametrize("with_noise", [False, True], ids=["likely", "noise"])
    @pytest.mark.parametrize("n_envs", [1, 8])
    def test_for_ten_thousand_steps(self, name, tmp_path, n_envs, with_noise):
        compare(name, tmp_path, 10_000, n_envs, with_noise and has_noise(CASES[name]))

"""What is exported acts as the actor it was made from: every actor in every runtime."""

from __future__ import annotations

import functools
import importlib.util

import pytest
from deploy_cases import CASES, has_noise, make_actor

from thrust_pomdp.deploy.checking import play, play_original, random_steps
from thrust_pomdp.deploy.description import describe
from thrust_pomdp.deploy.export import compared
from thrust_pomdp.deploy.numpy_actor import NumpyActor
from thrust_pomdp.deploy.players import (
    COMPILERS,
    NODE,
    SANITIZERS,
    compiled,
    play_in_c,
    play_in_node,
    player_source,
)

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))


@functools.lru_cache(maxsize=4)
def recorded(name: str, n_steps: int, n_envs: int, with_noise: bool):
    """Let the actor itself play."""
    actor = make_actor(CASES[name], deterministic=not with_noise)
    program = describe(actor, CASES[name].outputs)
    steps = random_steps(program, n_steps, n_envs, with_noise=with_noise)
    return actor, program, steps, play_original(actor, steps)


def in_numpy(folder, actor, program, steps, outputs):
    actor.export(folder / "actor.npz", outputs=outputs)
    return [play(NumpyActor(folder / "actor.npz"), steps)]


def in_onnx(folder, actor, program, steps, outputs):
    from thrust_pomdp.deploy.onnx_actor import OnnxActor

    actor.export(folder / "actor.onnx", outputs=outputs)
    return [play(OnnxActor(folder / "actor.onnx"), steps)]


def in_c(folder, actor, program, steps, outputs, ways=((COMPILERS[:1], ()),)):
    actor.export(folder / "actor.h", outputs=outputs)
    source = player_source(program, steps)
    for compilers, flags in ways:
        for compiler in compilers:
            player = compiled(folder, source, compiler, *flags)
            yield play_in_c(folder, program, steps, player)


def in_node(folder, actor, program, steps, outputs):
    actor.export(folder / "actor.js", outputs=outputs)
    return [play_in_node(folder, program, steps)]


RUNTIMES = {"numpy": in_numpy, "onnx": in_onnx, "c": in_c, "node": in_node}
IS_THERE = {"numpy": True, "onnx": HAS_ONNX, "c": bool(COMPILERS), "node": NODE is not None}
#: Those with every kind of operation.
OF_EVERY_KIND = ["everything around", "gru", "encoder and layer norm", "torques", "stacked sensors",
                 "masks of choices", "masks of bits", "zeros are blank", "squashed",
                 "two layers of min gru", "two layers of lru"]  # fmt: skip
#: Compiling takes long: all the others are compiled in the slow test.
COMPILED = {*OF_EVERY_KIND, *list(CASES)[::4]}
PAIRS = [
    pytest.param(name, runtime, id=f"{name}-{runtime}")
    for name, case in CASES.items()
    for runtime in RUNTIMES
    if not (case.is_for_onnx_and_numpy and runtime in ("c", "node"))
    and (runtime != "c" or name in COMPILED)
]


def check(name, runtime, folder, n_steps, n_envs, with_noise, **options) -> None:
    if not IS_THERE[runtime]:
        pytest.skip(f"{runtime} is not installed")
    actor, program, steps, original = recorded(name, n_steps, n_envs, with_noise)
    outputs = CASES[name].outputs
    n_played = 0
    for played in RUNTIMES[runtime](folder, actor, program, steps, outputs, **options):
        assert played.states.keys() >= original.states.keys()
        found = compared(actor, program, original, played, steps)
        assert found.is_small, found
        n_played += 1
    assert n_played


@pytest.mark.parametrize(("name", "runtime"), PAIRS)
def test_most_likely_actions(name, runtime, tmp_path):
    check(name, runtime, tmp_path, 50, 3, with_noise=False)


#: In C only the noise differs from what was compiled above.
WITH_NOISE = [
    pair
    for pair in PAIRS
    if has_noise(CASES[pair.values[0]])
    and (pair.values[1] != "c" or pair.values[0] in OF_EVERY_KIND)
]


@pytest.mark.parametrize(("name", "runtime"), WITH_NOISE)
def test_actions_by_noise(name, runtime, tmp_path):
    check(name, runtime, tmp_path, 50, 3, with_noise=True)


@pytest.mark.parametrize("name", OF_EVERY_KIND[::2])
def test_c_with_sanitizers(name, tmp_path):
    check(name, "c", tmp_path, 50, 3, False, ways=[(COMPILERS[:1], SANITIZERS)])


@pytest.mark.slow
@pytest.mark.parametrize("with_noise", [False, True], ids=["likely", "noise"])
@pytest.mark.parametrize("n_envs", [1, 8])
@pytest.mark.parametrize("name", CASES)
def test_ten_thousand_steps(name, n_envs, with_noise, tmp_path):
    if with_noise and not has_noise(CASES[name]):
        pytest.skip("gSDE acts by its mean")
    runtimes = ["numpy", "onnx"]
    if n_envs == 1 and not CASES[name].is_for_onnx_and_numpy:
        runtimes += ["c", "node"]
    ways = [(COMPILERS, ()), (COMPILERS, SANITIZERS)]
    for runtime in filter(IS_THERE.__getitem__, runtimes):
        options = {"ways": ways} if runtime == "c" else {}
        check(name, runtime, tmp_path, 10_000, n_envs, with_noise, **options)

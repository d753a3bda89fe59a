"""Actors in C act as they do in torch."""

from __future__ import annotations

import pytest
from deploy_cases import CASES, has_noise, make_actor
from deploy_runners import COMPILERS, SANITIZERS, compiled, play_in_c, player_source

from thrust_pomdp.deploy.checking import play_original, random_steps
from thrust_pomdp.deploy.description import describe
from thrust_pomdp.deploy.export import compared

IN_C = [name for name, case in CASES.items() if not case.images]

pytestmark = pytest.mark.skipif(not COMPILERS, reason="there is no C compiler")


def compare(name, folder, n_steps, n_envs, compiler, flags=(), with_noise=(False, True)) -> None:
    case = CASES[name]
    actor = make_actor(case)
    actor.export(folder / "actor.h", outputs=case.outputs)
    program = describe(actor, case.outputs)
    player = None
    for noise in set(with_noise):
        steps = random_steps(program, n_steps, n_envs, with_noise=noise)
        player = player or compiled(folder, player_source(program, steps), compiler, *flags)
        played = play_in_c(folder, program, steps, player)
        found = compared(actor, program, play_original(actor, steps), played, steps)
        assert found.is_small, found


@pytest.mark.parametrize("name", IN_C)
class TestActsAsInTorch:
    def test_with_sanitizers(self, name, tmp_path):
        noise = has_noise(CASES[name])
        compare(name, tmp_path, 60, 2, COMPILERS[0], SANITIZERS, with_noise=[False, noise])

    @pytest.mark.slow
    @pytest.mark.parametrize("flags", [(), SANITIZERS], ids=["plain", "sanitizers"])
    @pytest.mark.parametrize("compiler", COMPILERS)
    def test_for_ten_thousand_steps(self, name, tmp_path, compiler, flags):
        noise = has_noise(CASES[name])
        compare(name, tmp_path, 10_000, 1, compiler, flags, with_noise=[False, noise])


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", ["flicker, normalised", "masks of choices"])
def test_each_compiler(name, tmp_path, compiler):
    compare(name, tmp_path, 500, 1, compiler)

"""A run that is killed goes on inside: what it gives is what it would have given."""

from __future__ import annotations

from pathlib import Path

import pytest

from thrust_pomdp.experiment.arms import find_arm
from thrust_pomdp.experiment.folder import ComparisonFolder
from thrust_pomdp.experiment.recipes import recipe_for
from thrust_pomdp.experiment.runs import RunSpec
from thrust_pomdp.experiment.training import Training


class Killed(Exception):  # noqa: N818, it is no error
    """In place of kill -9."""


def small(arm: str, **kwargs) -> RunSpec:
    changes = {"n_envs": 2, "n_timesteps": 1024, "n_steps": 64, "n_epochs": 1}
    changes |= {"envs_per_minibatch": 1} if arm.startswith("lstm") else {"batch_size": 64}
    recipe = recipe_for(arm, "FlickeringCartPole-v0").with_changes(find_arm(arm), changes)
    return RunSpec(
        arm, "FlickeringCartPole-v0", 0, hyperparams=recipe.as_mapping(), evaluations=2,
        deterministic_episodes=2, stochastic_episodes=3, **kwargs,
    )  # fmt: skip


def kill_at(steps: int):
    def report(now: int) -> None:
        if now >= steps:
            raise Killed

    return report


@pytest.mark.parametrize("arm", ["lstm", "gru"])
def test_it_gives_what_it_would_have_given(arm, tmp_path):
    spec = small(arm)
    whole = Training(spec).run()
    for steps in (whole.timesteps // 2, whole.timesteps):
        with pytest.raises(Killed):
            Training(spec, kill_at(steps), checkpoints=str(tmp_path)).run()
    begun = []
    result = Training(spec, begun.append, checkpoints=str(tmp_path)).run()
    assert begun[0] > whole.curve[0][0]  # it did not start from nothing
    for name in ("final", "best", "deterministic", "stochastic", "timesteps", "curve"):
        assert getattr(result, name) == getattr(whole, name), name
    assert [row[0] for row in result.evaluations] == [row[0] for row in whole.evaluations]
    assert [row[2:] for row in result.evaluations] == [row[2:] for row in whole.evaluations]
    assert result.seconds > 0


def test_an_arm_of_sb3s_starts_anew(tmp_path):
    spec = small("mlp")
    with pytest.raises(Killed):
        Training(spec, kill_at(512), checkpoints=str(tmp_path / "a")).run()
    assert not (tmp_path / "a").exists()


class TestFolder:
    def test_another_way_of_training_has_other_checkpoints(self, tmp_path):
        folder = ComparisonFolder(tmp_path)
        paths = {
            folder.checkpoints(small("lstm")),
            folder.checkpoints(small("gru")),
            folder.checkpoints(small("lstm", env_kwargs={"flicker_prob": 0.25})),
        }
        assert len(paths) == 3
        assert folder.checkpoints(small("lstm")) in paths

    def test_those_of_a_finished_run_are_removed_and_no_others(self, tmp_path):
        folder = ComparisonFolder(tmp_path)
        one, other = folder.checkpoints(small("lstm")), folder.checkpoints(small("gru"))
        for path in (one, other):
            path.mkdir(parents=True)
            Path(path / "a").touch()
        folder.remove_checkpoints(small("lstm").name)
        assert not one.exists()
        assert other.exists()
        folder.remove_checkpoints(small("gru").name)
        assert not other.parent.exists()

"""Runs of a comparison that several processes train together."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch as th

from thrust_pomdp import __main__ as program
from thrust_pomdp.experiment import training
from thrust_pomdp.experiment.commands import compare, options
from thrust_pomdp.experiment.runs import RunSpec
from thrust_pomdp.experiment.saved_models import MODEL, load_safe_model
from thrust_pomdp.experiment.together import OtherRanks
from thrust_pomdp.experiment.training import Training

TASK = "FlickeringCartPole-v0"


def parsed(*arguments: str):
    return compare.parser().parse_args([*arguments, "--out", "nowhere"])


class TestOptions:
    def test_are_for_arms_of_our_recurrent_ppo(self):
        args = parsed("--arms", "lstm", "lstm-privileged", "gru", "mlp", "--ranks", "2")
        assert {spec.arm: spec.ranks for spec in compare.run_specs(args)} == {
            "lstm": 2, "lstm-privileged": 2, "gru": 2, "mlp": 1,
        }  # fmt: skip

    def test_one_process_is_the_default(self):
        assert [spec.ranks for spec in compare.run_specs(parsed())] == [1, 1]

    def test_there_are_no_more_processes_than_cores(self, monkeypatch):
        monkeypatch.setattr(options, "cpus", lambda: 8)
        args = parsed("--ranks", "4")
        compare._check_ranks(args)
        assert args.jobs == 2

    def refused(self, capsys, *arguments: str) -> str:
        assert program.main(["compare", "--out", "nowhere", *arguments]) == 2
        return capsys.readouterr().err

    def test_that_do_not_divide_the_environments_are_refused(self, capsys):
        said = self.refused(capsys, "--arms", "lstm", "--ranks", "3")
        assert "--ranks must divide n_envs of each recipe, 8 for lstm, got 3" in said

    def test_on_a_cluster_are_refused(self, capsys):
        said = self.refused(capsys, "--ranks", "2", "--engine", "ray")
        assert "--ranks starts processes on this machine: it needs --engine local" in said


class TestRuns:
    def test_of_one_process_start_nobody(self):
        before = dict(os.environ)
        others = OtherRanks(RunSpec("lstm", TASK, 0), None)
        assert os.environ == before
        others.close()

    @pytest.mark.distributed
    @pytest.mark.parametrize("arm", ["lstm", "lstm-privileged"])
    def test_are_the_same_whoever_trains_them(self, arm, monkeypatch, tmp_path):
        spec = RunSpec(arm, TASK, 0, n_timesteps=4096, deterministic_episodes=3,
                       stochastic_episodes=3, evaluations=2, ranks=2)  # fmt: skip
        together = Training(spec, checkpoints=str(tmp_path / "kept"))
        found = together.run()
        assert os.environ.keys().isdisjoint({"RANK", "WORLD_SIZE", "MASTER_PORT"})
        # Both blocks in this process.
        monkeypatch.setattr(
            training, "OtherRanks", lambda *_: OtherRanks(RunSpec(arm, TASK, 0), None)
        )
        alone = Training(spec)
        assert alone.env.num_envs == 2 * together.env.num_envs
        other = alone.run()
        for name in ("curve", "deterministic", "stochastic", "timesteps", "final", "half_life"):
            assert getattr(found, name) == getattr(other, name)
        mine, others = (one.model.policy.state_dict() for one in (together, alone))
        assert all(th.equal(mine[name], others[name]) for name in mine)
        mine, others = (one.model.get_vec_normalize_env() for one in (together, alone))
        assert np.array_equal(mine.obs_rms.mean, others.obs_rms.mean)
        path = tmp_path / f"model{MODEL}"
        path.write_bytes(together.files()[MODEL])
        assert load_safe_model(path).gradient_blocks == 2

    @pytest.mark.distributed
    def test_what_fails_in_another_process_fails_the_run(self, monkeypatch):
        monkeypatch.setattr("thrust_pomdp.experiment.together.sys.executable", "/bin/false")
        monkeypatch.setattr("thrust_pomdp.distributed.ranks.START_SECONDS", 5.0)
        spec = RunSpec("lstm", TASK, 0, n_timesteps=1024, ranks=2)
        with pytest.raises(RuntimeError):
            Training(spec).run()
        assert "RANK" not in os.environ

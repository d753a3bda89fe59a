"""What is refused before anything is trained, and whose environments are whose.

Processes are only pretended here: who one is, is told by the environment.
"""

from __future__ import annotations

import distributed_cases as cases
import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import thrust_pomdp
from thrust_pomdp import VecNormalizeVisible, VecPrivilegedInfo, make_vec_env
from thrust_pomdp.distributed import envs, is_first_rank, make_vec_env_share, share_of
from thrust_pomdp.distributed.agreement import check_env_layers
from thrust_pomdp.distributed.ranks import Ranks, rank_and_size


@pytest.fixture
def second_of_two(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(envs, "_TOTALS", set())


class TestShares:
    def test_of_a_plain_process_are_everything(self):
        assert share_of(6) == range(6)
        assert is_first_rank()

    def test_of_one_of_two(self, second_of_two):
        assert share_of(6) == range(3, 6)
        assert not is_first_rank()

    def test_are_equal(self, second_of_two):
        with pytest.raises(ValueError, match="n_envs must be a multiple of the 2 processes, got 5"):
            share_of(5)

    def test_environments_are_those_of_the_whole(self, second_of_two, monkeypatch):
        half = make_vec_env_share("FlickeringCartPole-v0", 4, seed=7)
        monkeypatch.setenv("WORLD_SIZE", "1")
        monkeypatch.setenv("RANK", "0")
        whole = make_vec_env_share("FlickeringCartPole-v0", 4, seed=7)
        assert np.array_equal(whole.reset()[2:], half.reset())
        for _ in range(30):
            of_whole, of_half = whole.step(np.ones(4, int)), half.step(np.ones(2, int))
            assert np.array_equal(of_whole[0][2:], of_half[0])

    def test_the_models_seed_goes_by_numbers_among_all(self, second_of_two):
        model = cases.CASES["lstm"](gradient_blocks=2, seed=11)
        seeded = model.env.unwrapped._seeds
        assert seeded == [11 + 4, 11 + 5, 11 + 6, 11 + 7]
        assert model._action_noise.first_env == 4
        assert model._n_envs_of_training() == cases.N_ENVS

    def test_environments_nobody_shared_are_refused(self, second_of_two):
        env = make_vec_env("FlickeringCartPole-v0", cases.N_ENVS)
        with pytest.raises(ValueError, match=r"got 8 in each of 2 processes, and nobody asked"):
            cases.make("MlpLstmPolicy", env)
        share_of(8)
        with pytest.raises(ValueError, match=r"was asked for shares of \[8\]: make them by thrust"):
            cases.make("MlpLstmPolicy", env)

    @pytest.mark.parametrize(("rank", "size"), [("0", None), (None, "2"), ("one", "2")])
    def test_half_a_word_is_refused(self, rank, size, monkeypatch):
        for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        with pytest.raises(ValueError, match="RANK and WORLD_SIZE must both be numbers"):
            rank_and_size()


class TestRefusals:
    def test_a_model_without_seed(self, second_of_two):
        with pytest.raises(ValueError, match="seed must be given where several processes train"):
            cases.CASES["lstm"](seed=None)

    def test_blocks_that_ranks_do_not_divide(self, second_of_two):
        with pytest.raises(ValueError, match="must be a multiple of the 2 processes, got 1"):
            cases.CASES["lstm"](gradient_blocks=1).learn(1)

    def test_the_default_is_the_number_of_ranks(self, second_of_two):
        assert cases.CASES["lstm"](gradient_blocks=None).gradient_blocks == 2

    @pytest.mark.parametrize(
        ("layer", "remedy"),
        [
            (VecNormalize, "use thrust_pomdp.VecNormalizeVisible, whose"),
            (VecNormalizeVisible, r'use VecNormalizeVisible\(..., update="window"\)'),
            (
                lambda venv: VecPrivilegedInfo(venv, key="state"),
                r'use VecPrivilegedInfo\(..., update="window"\)',
            ),
        ],
    )
    def test_statistics_that_change_at_each_step(self, layer, remedy):
        venv = layer(make_vec_env("FlickeringCartPole-v0", 2, env_kwargs={"expose_state": True}))
        check_env_layers(venv, n_ranks=1)
        with pytest.raises(
            ValueError, match=f'at each "step", by the environments of one.*{remedy}'
        ):
            check_env_layers(venv, n_ranks=2)
        if isinstance(venv, VecNormalize):
            venv.training = False
            check_env_layers(venv, n_ranks=2)

    def test_statistics_of_gymnasiums_vectors(self):
        vector = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync",
                              vector_kwargs={"autoreset_mode": "SameStep"})  # fmt: skip
        venv = thrust_pomdp.GymnasiumVecEnv(gym.wrappers.vector.NormalizeReward(vector))
        with pytest.raises(ValueError, match="NormalizeReward of gymnasium.wrappers.vector"):
            check_env_layers(venv, n_ranks=2)

    def test_statistics_of_windows_and_of_single_environments_are_taken(self):
        single = DummyVecEnv(
            [lambda: thrust_pomdp.NormalizeVisibleObservation(gym.make("CartPole-v1"))]
        )
        check_env_layers(VecNormalizeVisible(single, norm_obs=False, update="window"), n_ranks=2)


class TestOtherRanks:
    def test_neither_save_nor_log(self, second_of_two, tmp_path, capsys):
        model = cases.CASES["lstm"](verbose=2, tensorboard_log=str(tmp_path / "logs"))
        model.save(tmp_path / "model.zip")
        model.save_safe(tmp_path / "model.safetensors")
        assert list(tmp_path.iterdir()) == []
        assert (model.verbose, model.tensorboard_log) == (0, None)

    def test_alone_nothing_is_exchanged(self):
        ranks = Ranks()
        ranks.meet()
        ranks.beat()
        with ranks.together():
            assert ranks.gather_objects("mine") == ["mine"]
        assert ranks.bytes_received == 0

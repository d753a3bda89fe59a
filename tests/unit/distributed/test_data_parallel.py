"""Gradients in blocks in one process: the same sum, and with one block the same bits."""

from __future__ import annotations

import distributed_cases as cases
import numpy as np
import pytest
import torch as th
from distributed_cases import CASES, digest, flickering, make
from helpers import sharpen
from stable_baselines3.common.callbacks import BaseCallback, CallbackList

from thrust_pomdp import RecurrentPPO, RecurrentRolloutBuffer, make_vec_env
from thrust_pomdp.distributed import DataParallelRecurrentPPO
from thrust_pomdp.ppo.maskable import MaskableRecurrentPPO
from thrust_pomdp.recurrent.compiled import load_kernels

STEPS = cases.N_ENVS * cases.N_STEPS


class TestOneBlock:
    """It is RecurrentPPO, bit for bit."""

    @pytest.mark.parametrize("name", sorted(set(CASES)))
    def test_bits(self, name, monkeypatch):
        one = CASES[name](gradient_blocks=1).learn(2 * STEPS)
        plain = MaskableRecurrentPPO if name == "masked" else RecurrentPPO

        def as_plain(policy, env, cls=None, **kwargs):
            kwargs.pop("gradient_blocks")
            given = {"n_steps": 16, "batch_size": 64, "n_epochs": 2, "seed": 5}
            widths = {"lstm_hidden_size": 8, **kwargs.pop("policy_kwargs", {})}
            return plain(policy, env, **{**given, "learning_rate": 3e-3, **kwargs},
                         policy_kwargs=widths)  # fmt: skip

        monkeypatch.setattr(cases, "make", as_plain)
        other = CASES[name](gradient_blocks=1).learn(2 * STEPS)
        assert type(other) is plain
        for part in ("state_dict", "optimizer"):
            mine, others = (getattr(model.policy, part) for model in (one, other))
            if part == "optimizer":
                mine, others = mine.state_dict()["state"], others.state_dict()["state"]
            else:
                mine, others = mine(), others()
            assert digest(mine) == digest(others)

    @pytest.mark.skipif(load_kernels() is None, reason="nothing is compiled")
    def test_what_is_fast_there_is_fast_here(self):
        one, two = (CASES["lstm"](gradient_blocks=n) for n in (1, 2))
        assert one.against_compiled_minibatch() is None
        assert one._against_unseen_steps() is None
        for reason in (two.against_compiled_minibatch(), two._against_unseen_steps()):
            assert reason == "environments are divided into blocks"

        class Mine(DataParallelRecurrentPPO):
            def _losses(self, *args):
                return super()._losses(*args)

        mine = make("MlpLstmPolicy", flickering(), Mine, gradient_blocks=1)
        assert "Mine is derived from" in mine.against_compiled_minibatch()

    def test_is_the_default(self):
        assert DataParallelRecurrentPPO("MlpLstmPolicy", flickering()).gradient_blocks == 1


class TestSums:
    @pytest.mark.parametrize("normalize", [True, False])
    @pytest.mark.parametrize("n_blocks", [2, 4, 8])
    def test_a_step_is_that_of_the_whole_minibatch(self, n_blocks, normalize):
        """Plain gradient descent, so that weights differ as gradients do."""

        def made(cls, **kwargs):
            model = cls(
                "MlpLstmPolicy", flickering(), n_steps=16, batch_size=None, n_epochs=2, seed=5,
                ent_coef=0.1, clip_range_vf=0.1, normalize_advantage=normalize, max_grad_norm=9,
                policy_kwargs={"lstm_hidden_size": 8, "optimizer_class": th.optim.SGD},
                learning_rate=0.05, **kwargs,
            )  # fmt: skip
            sharpen(model)  # as it begins, hardly any gradient reaches the actor's memory
            return model

        def trained(model):
            watch = cases.Watch()
            model.learn(2 * STEPS, callback=watch, log_interval=1000)
            return model, [*watch.logged, watch.note()]

        one, logs = trained(made(RecurrentPPO))
        blocks, others = trained(made(DataParallelRecurrentPPO, gradient_blocks=n_blocks))
        for first, mine, theirs in zip(
            *(model.policy.parameters() for model in (made(RecurrentPPO), one, blocks)), strict=True
        ):
            assert (mine - first).abs().max() > 1e-4
            assert (mine - theirs).abs().max() < 2e-6
        for mine, theirs in zip(logs, others, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-6)

    def test_every_sequence_comes_once_an_epoch_and_as_many_from_each_block(self, monkeypatch):
        model = CASES["lstm"](batch_size=4 * cases.N_STEPS, n_epochs=3)
        seen = []

        def losses(self, batch, *args):
            seen.append([part.returns.clone() for part in batch.blocks])
            return original(self, batch, *args)

        original = DataParallelRecurrentPPO._losses
        monkeypatch.setattr(DataParallelRecurrentPPO, "_losses", losses)
        model.learn(STEPS)
        stored = th.as_tensor(model.rollout_buffer.returns.T.copy())  # [n_envs, n_steps]
        assert len(seen) == 3 * 2
        orders = []
        for epoch in (seen[:2], seen[2:4], seen[4:]):
            for block in range(4):
                rows = th.cat([minibatch[block] for minibatch in epoch])
                of_block = stored[2 * block : 2 * block + 2]
                order = [int((of_block == row).all(dim=1).nonzero()) for row in rows]
                assert sorted(order) == [0, 1]
                orders.append(tuple(order))
        assert len(set(orders)) == 2  # they are drawn

    def test_no_gradient_is_none_where_no_block_has_one(self):
        model = CASES["own_policy"]()
        model.learn(STEPS)
        assert all(weight.grad is None for weight in model.policy.unused.parameters())
        assert model.policy.foretold.weight.grad is not None
        assert model.policy.unused.weight not in model.policy.optimizer.state


class TestBitsAreAFunctionOfBlocks:
    def test_threads_change_nothing(self):
        before = th.get_num_threads()
        found = []
        try:
            for n_threads in (1, 2):
                th.set_num_threads(n_threads)
                model = CASES["lstm"](policy_kwargs={"lstm_hidden_size": 64})
                found.append(digest(model.learn(2 * STEPS).policy.state_dict()))
                assert th.get_num_threads() == n_threads
        finally:
            th.set_num_threads(before)
        assert found[0] == found[1]

    def test_another_number_of_blocks_is_another_training(self):
        two, four = (CASES["lstm"](gradient_blocks=n).learn(STEPS).policy for n in (2, 4))
        assert digest(two.state_dict()) != digest(four.state_dict())

    def test_what_callbacks_draw_changes_nothing(self):
        class Draws(BaseCallback):
            def _on_step(self) -> bool:
                th.rand(3), np.random.rand(3)
                return True

        for name in ("lstm", "own_policy"):
            quiet, loud = (CASES[name]().learn(STEPS, callback=one) for one in (None, Draws()))
            assert digest(quiet.policy.state_dict()) == digest(loud.policy.state_dict())


class TestCallbacks:
    def test_one_that_stops_does_so_at_the_windows_end(self):
        class Stops(BaseCallback):
            def _on_step(self) -> bool:
                return self.n_calls != 20

        calls = Stops()
        model = CASES["lstm"]()
        model.learn(10 * STEPS, callback=CallbackList([calls]))
        assert calls.n_calls == 2 * cases.N_STEPS
        assert model.num_timesteps == 2 * STEPS
        assert model._n_updates == 2  # the first window's epochs

    def test_episodes_are_taken_in_at_the_windows_end(self):
        lengths = []
        model = CASES["pieces_with_burn_in"]()
        model.learn(2 * STEPS, callback=lambda names, _: lengths.append(
            len(names["self"].ep_info_buffer)) or True)  # fmt: skip
        assert lengths[: cases.N_STEPS] == [0] * cases.N_STEPS
        assert set(lengths[cases.N_STEPS :]) == {lengths[-1]} != {0}
        # Environment k ends after 5 + k steps, or earlier by leaving: all of them are there.
        assert len(model.ep_info_buffer) == len(model.ep_success_buffer)


class TestArguments:
    def test_minibatches_that_blocks_cannot_share_are_refused(self):
        with pytest.raises(ValueError, match="multiple of gradient_blocks=4, since minibatches"):
            make("MlpLstmPolicy", flickering(), envs_per_minibatch=2)

    def test_whole_environments_in_blocks(self):
        model = make("MlpLstmPolicy", flickering(), envs_per_minibatch=8, n_epochs=3)
        model.learn(STEPS)
        assert model._plan.sizes == [2]

    @pytest.mark.parametrize("wrong", [0, -1, 1.5, "2"])
    def test_numbers_of_blocks(self, wrong):
        with pytest.raises(ValueError, match="gradient_blocks"):
            make("MlpLstmPolicy", flickering(), gradient_blocks=wrong)

    def test_blocks_without_equal_shares(self):
        with pytest.raises(ValueError, match="must be a multiple of gradient_blocks=3, got 8"):
            make("MlpLstmPolicy", flickering(), gradient_blocks=3)

    def test_a_batch_size_too_small_for_all_blocks_is_told(self):
        with pytest.warns(UserWarning, match="batch_size=16 is served by whole sequences of 16"):
            make("MlpLstmPolicy", flickering(), batch_size=16)

    def test_buffers_that_divide_windows_otherwise_are_refused(self):
        class Mine(RecurrentRolloutBuffer):
            def to_minibatches(self, *args, **kwargs):
                return super().to_minibatches(*args, **kwargs)

        with pytest.raises(ValueError, match=r"leave to_minibatches\(\) as it is"):
            make("MlpLstmPolicy", flickering(), rollout_buffer_class=Mine)
        make("MlpLstmPolicy", flickering(), rollout_buffer_class=Mine, gradient_blocks=1)

    def test_timeout(self):
        with pytest.raises(ValueError, match="timeout"):
            make("MlpLstmPolicy", flickering(), timeout=0)


class TestFiles:
    @pytest.mark.parametrize("how", ["save", "save_safe"])
    def test_hold_the_blocks_and_act_on_any_environments(self, how, tmp_path):
        model = CASES["lstm"]().learn(STEPS)
        path = tmp_path / ("model.zip" if how == "save" else "model.safetensors")
        getattr(model, how)(path)
        load = getattr(DataParallelRecurrentPPO, how.replace("save", "load"))
        loaded = load(path)
        assert loaded.gradient_blocks == 4
        assert digest(loaded.policy.state_dict()) == digest(model.policy.state_dict())
        obs = np.zeros((3, 6), dtype=np.float32)
        assert np.array_equal(
            model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0]
        )
        odd = make_vec_env("FlickeringCartPole-v0", 3, previous_action=True)
        with pytest.raises(ValueError, match="must be a multiple of gradient_blocks=4, got 3"):
            load(path, env=odd).learn(STEPS)
        load(path, env=flickering()).learn(STEPS, reset_num_timesteps=False)

    def test_of_recurrent_ppo_can_be_gone_on_with(self, tmp_path):
        RecurrentPPO("MlpLstmPolicy", flickering(), n_steps=16).save(tmp_path / "plain.zip")
        loaded = DataParallelRecurrentPPO.load(
            tmp_path / "plain.zip", env=flickering(), gradient_blocks=2
        )
        loaded.learn(STEPS)
        assert loaded._plan.sizes

"""Models that somebody made up: sizes and optimisers that are not those of the arrays."""

from __future__ import annotations

import io
import json
import time
import tracemalloc
import zipfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from helpers import fixed_length_envs
from torch import optim

from thrust_pomdp import RecurrentPPO, StatefulActor, array_files
from thrust_pomdp.array_files import SafeFileError
from thrust_pomdp.recurrent import LRU, GTrXL
from thrust_pomdp.safe_files import DamagedFileError, read_tree, write_tree

OPTIMIZERS = [
    optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam, optim.Adagrad, optim.Adadelta,
    optim.RMSprop, optim.SGD, optim.ASGD,
]  # fmt: skip


def make(**policy_kwargs: Any) -> RecurrentPPO:
    kwargs = {"lstm_hidden_size": 8, "net_arch": {"pi": [8], "vf": [8]}, **policy_kwargs}
    return RecurrentPPO(
        "MlpLstmPolicy", fixed_length_envs(5, 7), n_steps=8, batch_size=8, policy_kwargs=kwargs
    )


def forge(path: Path, model: RecurrentPPO, change: Callable[[Any, Any], Any]) -> None:
    """Save a model, and change what the file says, with a SHA-256 that is right again."""
    model.save_safe(path)
    data, arrays = array_files.read(path, "model")
    change(data, arrays)
    array_files.write(path, "model", data, arrays)


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what a load imports at its first time, which is no cost of any file."""
    path = tmp_path_factory.mktemp("first") / "model.safetensors"
    forge(path, make(), lambda data, arrays: data["attributes"].update(n_steps="8"))
    with pytest.raises(SafeFileError):
        RecurrentPPO.load_safe(path, env=fixed_length_envs(5, 7))
    forge(path, make(), lambda data, arrays: None)
    RecurrentPPO.load_safe(path, env=fixed_length_envs(5, 7))


def assert_refused(path: Path, reason: str, with_env: bool = True) -> None:
    env = fixed_length_envs(5, 7) if with_env else None
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(SafeFileError, match=reason) as told:
        RecurrentPPO.load_safe(path, env=env)
    took, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(path) in str(told.value)
    assert took < 1
    assert peak < 2 * path.stat().st_size + 12_000_000


class TestSizes:
    @pytest.mark.parametrize("n_steps", [10**8, 10**12, 10**30, 0, -8, True, 8.0, "8", None])
    def test_of_rollouts(self, tmp_path, n_steps):
        def change(data, arrays):
            data["attributes"]["n_steps"] = n_steps

        forge(tmp_path / "model.safetensors", make(), change)
        assert_refused(tmp_path / "model.safetensors", "n_steps")

    def test_of_many_environments(self, tmp_path):
        def change(data, arrays):
            data["attributes"].update(n_envs=10**9, _last_episode_starts=None)

        forge(tmp_path / "model.safetensors", make(), change)
        assert_refused(tmp_path / "model.safetensors", "environments", with_env=False)

    def test_numpys_numbers_are_numbers(self, tmp_path):
        model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=np.int64(8), batch_size=8)
        model.save_safe(tmp_path / "model")
        assert RecurrentPPO.load_safe(tmp_path / "model").n_steps == 8

    def test_of_a_long_log_of_episodes(self, tmp_path):
        model = make()
        rows = [{"r": 0.5 * n, "l": n, "t": float("nan") if n == 7 else 1.0} for n in range(20_000)]
        model.ep_info_buffer = deque(rows, maxlen=20_000)
        model.ep_success_buffer = deque([True, False] * 50, maxlen=100)
        model.save_safe(tmp_path / "model")
        loaded = RecurrentPPO.load_safe(tmp_path / "model")
        for name in ("ep_info_buffer", "ep_success_buffer"):
            mine, others = getattr(model, name), getattr(loaded, name)
            assert repr(mine) == repr(others)

    def test_of_lists_that_name_one_array(self, tmp_path):
        path = tmp_path / "tree.safetensors"
        write_tree(path, "tree", [0.5] * 100)
        _, arrays = array_files.read(path, "tree")
        (name,) = arrays
        array_files.write(path, "tree", [{"$list": name}], arrays)
        assert read_tree(path, "tree") == [[0.5] * 100]
        array_files.write(path, "tree", [{"$list": name}] * 2, arrays)
        with pytest.raises(DamagedFileError, match=r"\$list is not understood"):
            read_tree(path, "tree")


class TestNoise:
    @pytest.mark.parametrize("name", ["seed", "first_env", "step"])
    @pytest.mark.parametrize("number", [-1, 2**63, 10**30, 1.5, "1", None])
    def test_of_numbers_that_cannot_be(self, tmp_path, name, number):
        def change(data, arrays):
            data["attributes"]["_noise_state"][name] = number

        forge(tmp_path / "model.safetensors", make(), change)
        assert_refused(tmp_path / "model.safetensors", f"{name} must be")


class TestNetworks:
    """A network may be as big as what is there to put in, whatever the file shows it as."""

    def test_of_one_array_under_many_names(self, tmp_path):
        def change(data, arrays):
            policy = data["parameters"]["policy"]
            for number in range(5000):
                policy[f"more.{number}"] = {"$": "tensor", "name": "policy.value_net.bias"}
            data["attributes"]["policy_kwargs"]["net_arch"]["pi"] = [32] * 2500

        path = tmp_path / "model.safetensors"
        forge(path, make(), change)
        assert_refused(path, "too many of them")

    @pytest.mark.parametrize(
        ("name", "value"), [("context", 10**7), ("context", 300_000), ("mlp_size", 10**8)]
    )
    def test_of_a_memory_of_many_steps(self, tmp_path, name, value):
        def change(data, arrays):
            data["attributes"]["policy_kwargs"]["lstm_kwargs"][name] = value

        model = make(rnn_class=GTrXL, lstm_kwargs={"context": 16, "mlp_size": 4})
        forge(tmp_path / "model.safetensors", model, change)
        assert_refused(tmp_path / "model.safetensors", "more than it holds")

    def test_of_a_memory_of_many_units(self, tmp_path):
        def change(data, arrays):
            data["attributes"]["policy_kwargs"]["lstm_kwargs"]["state_size"] = 10**8

        model = make(rnn_class=LRU, lstm_kwargs={"state_size": 4})
        forge(tmp_path / "model.safetensors", model, change)
        assert_refused(tmp_path / "model.safetensors", "more than it holds")

    def test_of_one_number_shown_as_a_million(self, tmp_path):
        model = make()
        model.save(tmp_path / "model.zip")
        with zipfile.ZipFile(tmp_path / "model.zip") as file:
            parts = {name: file.read(name) for name in file.namelist()}
        data = json.loads(parts["data"])
        data["policy_kwargs"] = {"lstm_hidden_size": 3000}
        weights = th.load(io.BytesIO(parts["policy.pth"]), weights_only=True)
        weights["value_net.weight"] = th.zeros(1).expand(3000 * 3000 * 4)
        buffer = io.BytesIO()
        th.save(weights, buffer)
        parts.update({"data": json.dumps(data).encode(), "policy.pth": buffer.getvalue()})
        with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
            for name, part in parts.items():
                file.writestr(name, part)
        assert (tmp_path / "bad.zip").stat().st_size < 500_000
        with pytest.raises(SafeFileError, match=r"bad\.zip says that its network has a tensor"):
            RecurrentPPO.load(tmp_path / "bad.zip", env=fixed_length_envs(5, 7), trusted=False)


def state_of(data: Any) -> Any:
    return data["parameters"]["policy.optimizer"]


def array_name(arrays: Any, ending: str) -> str:
    return next(name for name in arrays if name.endswith(ending) and "optimizer" in name)


class TestOptimisers:
    """A fused kernel looks at no shapes: it would read and write beyond what is there."""

    @pytest.mark.parametrize("shape", [(), (1,), (0,), (1, 1), (7,)], ids=str)
    def test_of_other_shapes(self, tmp_path, shape):
        def change(data, arrays):
            arrays[array_name(arrays, "exp_avg")] = np.zeros(shape, np.float32)

        forge(tmp_path / "model.safetensors", make().learn(16), change)
        assert_refused(tmp_path / "model.safetensors", "has a exp_avg of shape")

    @pytest.mark.parametrize("shape", [(0,), (8,)], ids=str)
    def test_that_count_in_other_shapes(self, tmp_path, shape):
        def change(data, arrays):
            arrays[array_name(arrays, "step")] = np.zeros(shape, np.float32)

        path = tmp_path / "model.safetensors"
        model = make().learn(16)
        forge(path, model, change)
        first = next(iter(model.policy.parameters()))
        if tuple(first.shape) != shape:
            assert_refused(path, "has a step of shape")

    def test_whose_parameters_change_places(self, tmp_path):
        def change(data, arrays):
            state_of(data)["param_groups"][0]["params"].reverse()

        forge(tmp_path / "model.safetensors", make().learn(16), change)
        assert_refused(tmp_path / "model.safetensors", "optimiser of other parameters")

    @pytest.mark.parametrize("number", [-1, 1000, "0"])
    def test_of_parameters_that_are_not_there(self, tmp_path, number):
        def change(data, arrays):
            state_of(data)["state"]["items"][0][0] = number

        forge(tmp_path / "model.safetensors", make().learn(16), change)
        assert_refused(tmp_path / "model.safetensors", r"optimiser|array|tensor")

    @pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda cls: cls.__name__)
    def test_that_are_right_come_back(self, tmp_path, optimizer):
        kwargs = {"momentum": 0.9} if optimizer is optim.SGD else {}
        model = make(optimizer_class=optimizer, optimizer_kwargs=kwargs).learn(16)
        model.save_safe(tmp_path / "model")
        loaded = RecurrentPPO.load_safe(tmp_path / "model", env=fixed_length_envs(5, 7))
        mine, others = (m.policy.optimizer.state_dict()["state"] for m in (model, loaded))
        assert mine.keys() == others.keys()
        for number, state in mine.items():
            for name, part in state.items():
                assert th.equal(th.as_tensor(part), th.as_tensor(others[number][name])), name
        loaded.learn(16)


class TestActors:
    @pytest.mark.parametrize("n_stack", [0, -1, 10**9, 10**30, True, "2", None])
    def test_that_stack_what_they_cannot_see(self, tmp_path, n_stack):
        from stable_baselines3.common.vec_env import VecFrameStack

        venv = VecFrameStack(fixed_length_envs(5, 7), 2)
        model = RecurrentPPO("MlpLstmPolicy", venv, n_steps=8, batch_size=8)
        path = tmp_path / "actor.safetensors"
        StatefulActor.like(model, venv, True).save(path)
        data, arrays = array_files.read(path, "actor")
        data["layers"][0]["n_stack"] = n_stack
        array_files.write(path, "actor", data, arrays)
        with pytest.raises(SafeFileError, match=r"actor\.safetensors"):
            StatefulActor.load(path)

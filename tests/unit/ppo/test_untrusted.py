"""Files of strangers: nothing of them runs unless the program says that it trusts them."""

from __future__ import annotations

import base64
import contextlib
import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib
import torch as th
from gymnasium import spaces
from helpers import fixed_length_envs
from maskable_envs import ChangingMaskEnv
from stable_baselines3 import PPO
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

import thrust_pomdp
from thrust_pomdp import (
    MaskableRecurrentPPO,
    MlpLstmPolicy,
    RecurrentPPO,
    StatefulActor,
    VecNormalizeVisible,
    VecPrivilegedInfo,
    from_sb3_contrib,
)
from thrust_pomdp.array_files import SafeFileError
from thrust_pomdp.experiment.recipes import read_recipes

FLICKERING = "FlickeringCartPole-v0"
SMALL = {"lstm_hidden_size": 8}

#: What of this process runs code of files, told by Python itself.
_unpickled: list[str] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "pickle.find_class":
        _unpickled.append(".".join(map(str, arguments)))


sys.addaudithook(_note)


class Canary:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    path = tmp_path / "canary"
    pickle.loads(pickle.dumps(Canary(path)))
    assert path.exists()  # it does sing
    path.unlink()
    return path


def without_pickles(load: Callable[[], Any]) -> Any:
    """Load, and see that Python unpickled nothing by name but torch's own."""
    _unpickled.clear()
    try:
        return load()
    finally:
        # torch's reader of weights is one of its own, in Python, and finds no class by name.
        assert _unpickled == []


def a_model(**kwargs: Any) -> RecurrentPPO:
    policy_kwargs = {**SMALL, **kwargs.pop("policy_kwargs", {})}
    settings = {"n_steps": 16, "batch_size": 16, "seed": 0, "device": "cpu", **kwargs}
    model = RecurrentPPO("MlpLstmPolicy", FLICKERING, policy_kwargs=policy_kwargs, **settings)
    return model.learn(16)


def poisoned(source: Path, target: Path, replace: dict[str, Any]) -> Path:
    """Copy a zip file of SB3's with other parts."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name in replace:
                content = replace[name](content)
            new.writestr(name, content)
    return target


def with_canary(canary: Path) -> Callable[[bytes], bytes]:
    """Have every pickle of the JSON sing, and one more that nobody asks for."""
    song = base64.b64encode(cloudpickle.dumps(Canary(canary))).decode()

    def change(content: bytes) -> bytes:
        data = json.loads(content)
        for value in data.values():
            if isinstance(value, dict) and ":serialized:" in value:
                value[":serialized:"] = song
        data["one_more"] = {":type:": "<class 'int'>", ":serialized:": song}
        return json.dumps(data).encode()

    return change


class TestZipFiles:
    """The first way of SB3 #2281."""

    def test_sing_where_they_are_trusted(self, canary, tmp_path):
        a_model().save(tmp_path / "model.zip")
        bad = poisoned(tmp_path / "model.zip", tmp_path / "bad.zip", {"data": with_canary(canary)})
        with contextlib.suppress(Exception):
            RecurrentPPO.load(bad)
        assert canary.exists()

    @pytest.mark.parametrize("action", ["FlickeringCartPole-v0", "Pendulum-v1"])
    def test_are_read_without_a_song(self, action, canary, tmp_path):
        kwargs = {"activation_fn": nn.ReLU, "rnn_class": nn.GRU, "net_arch": {"pi": [4], "vf": []}}
        model = RecurrentPPO(
            "MlpLstmPolicy",
            action,
            n_steps=16,
            batch_size=8,
            seed=0,
            use_sde=action == "Pendulum-v1",
            learning_rate=LinearSchedule(1e-3, 1e-4, 0.5),
            clip_range_vf=0.3,
            policy_kwargs={**SMALL, **kwargs},
            device="cpu",
        ).learn(16)
        model.save(tmp_path / "model.zip")
        bad = poisoned(tmp_path / "model.zip", tmp_path / "bad.zip", {"data": with_canary(canary)})
        trusted = RecurrentPPO.load(tmp_path / "model.zip", env=action, device="cpu")
        trusted.learn(32, reset_num_timesteps=False)
        given = {"learning_rate": LinearSchedule(1e-3, 1e-4, 0.5)}
        loaded = without_pickles(
            lambda: RecurrentPPO.load(
                bad, env=action, device="cpu", trusted=False, custom_objects=given
            )
        )
        assert not canary.exists()
        loaded.learn(32, reset_num_timesteps=False)
        for mine, others in zip(
            loaded.policy.state_dict().values(), trusted.policy.state_dict().values(), strict=True
        ):
            assert th.equal(mine, others)

    def test_of_sb3_contrib(self, canary, tmp_path):
        theirs = sb3_contrib.RecurrentPPO(
            "MlpLstmPolicy", "CartPole-v1", n_steps=16, policy_kwargs=SMALL, device="cpu"
        ).learn(16)
        theirs.save(tmp_path / "theirs.zip")
        bad = poisoned(tmp_path / "theirs.zip", tmp_path / "bad.zip", {"data": with_canary(canary)})
        loaded = without_pickles(lambda: from_sb3_contrib(bad, "CartPole-v1", "cpu", trusted=False))
        again = from_sb3_contrib(tmp_path / "theirs.zip", "CartPole-v1", "cpu")
        assert not canary.exists()
        assert loaded.window_state == again.window_state == "carry"
        for model in (loaded, again):
            model.set_random_seed(1)
            model.learn(16)
        for mine, others in zip(loaded.policy.parameters(), again.policy.parameters(), strict=True):
            assert th.equal(mine, others)
        with pytest.raises(ValueError, match="from_sb3_contrib reads those"):
            RecurrentPPO.load(bad, env="CartPole-v1", trusted=False)
        with pytest.raises(ValueError, match="no attribute of RecurrentPPO"):
            from_sb3_contrib(bad, "CartPole-v1", trusted=False, nonsense=1)

        class Mine(MlpLstmPolicy):
            pass

        for trusted in (True, False):
            path = bad if not trusted else tmp_path / "theirs.zip"
            own = from_sb3_contrib(path, "CartPole-v1", policy=Mine, trusted=trusted)
            assert type(own.policy) is Mine

    def test_of_ours_are_none_of_sb3_contribs(self, tmp_path):
        a_model().save(tmp_path / "model.zip")
        with pytest.raises(ValueError, match="RecurrentPPO.load reads those"):
            from_sb3_contrib(tmp_path / "model.zip", FLICKERING, trusted=False)
        PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8).save(tmp_path / "ppo.zip")
        with pytest.raises(ValueError, match="without"):
            from_sb3_contrib(tmp_path / "ppo.zip", "CartPole-v1", trusted=False)

    def test_with_masks_and_with_a_critic_that_sees_more(self, tmp_path):
        envs = DummyVecEnv([lambda: ChangingMaskEnv(5, spaces.Discrete(3))] * 2)
        masked = MaskableRecurrentPPO("MlpLstmPolicy", envs, n_steps=8, batch_size=8, device="cpu")
        masked.save(tmp_path / "masked.zip")
        loaded = without_pickles(
            lambda: MaskableRecurrentPPO.load(tmp_path / "masked.zip", env=envs, trusted=False)
        )
        assert type(loaded.policy) is type(masked.policy)

        venv = VecPrivilegedInfo(
            thrust_pomdp.make_vec_env(FLICKERING, 2, env_kwargs={"expose_state": True})
        )
        seeing = RecurrentPPO("AsymmetricLstmPolicy", venv, n_steps=8, batch_size=8, device="cpu")
        seeing.learn(16).save(tmp_path / "seeing.zip")
        loaded = RecurrentPPO.load(tmp_path / "seeing.zip", env=venv, trusted=False)
        assert type(loaded.policy) is type(seeing.policy)
        assert loaded.privileged_statistics() == seeing.privileged_statistics()

    def test_say_by_name_what_is_needed(self, tmp_path):
        kwargs = {"activation_fn": type("Own", (nn.Tanh,), {})}
        model = a_model(learning_rate=lambda left: 1e-3 * left, policy_kwargs=kwargs)
        model.save(tmp_path / "model.zip")

        def load(**given: Any) -> Any:
            return RecurrentPPO.load(tmp_path / "model.zip", device="cpu", trusted=False, **given)

        with pytest.raises(SafeFileError, match=r"model\.zip has its observation_space pickled"):
            load()
        with pytest.raises(SafeFileError, match=r"policy_kwargs\['activation_fn'\] pickled"):
            load(env=FLICKERING)
        given = {"policy_kwargs": {**SMALL, **kwargs}}
        with pytest.raises(SafeFileError, match="its learning_rate pickled"):
            load(env=FLICKERING, custom_objects=given)
        assert load(env=FLICKERING, custom_objects={**given, "learning_rate": 1e-3})
        assert load(env=FLICKERING, custom_objects=given, learning_rate=1e-3)
        spaces_of_it = {
            "observation_space": model.observation_space,
            "action_space": model.action_space,
        }
        acting = load(custom_objects={**given, **spaces_of_it, "learning_rate": 1e-3})
        obs = model.observation_space.sample()
        assert (
            acting.predict(obs, deterministic=True)[0] == model.predict(obs, deterministic=True)[0]
        )

    def test_of_a_policy_of_ones_own(self, tmp_path):
        class Mine(MlpLstmPolicy):
            pass

        model = RecurrentPPO(Mine, FLICKERING, n_steps=8, batch_size=8, policy_kwargs=SMALL)
        model.save(tmp_path / "model.zip")
        with pytest.raises(SafeFileError, match="policy_class of the module .*test_untrusted"):
            RecurrentPPO.load(tmp_path / "model.zip", env=FLICKERING, trusted=False)
        given = {"policy_class": Mine}
        loaded = RecurrentPPO.load(
            tmp_path / "model.zip", env=FLICKERING, trusted=False, custom_objects=given
        )
        assert type(loaded.policy) is Mine

    def test_of_other_spaces_than_the_environments(self, tmp_path):
        a_model().save(tmp_path / "model.zip")
        with pytest.raises(SafeFileError, match=r"model\.zip"):
            RecurrentPPO.load(tmp_path / "model.zip", env=fixed_length_envs(5), trusted=False)

    def test_that_are_none(self, tmp_path):
        (tmp_path / "a.zip").write_bytes(b"nothing")
        with zipfile.ZipFile(tmp_path / "b.zip", "w") as file:
            file.writestr("nothing", b"")
        with zipfile.ZipFile(tmp_path / "c.zip", "w") as file:
            file.writestr("data", b'{"a": 1, "a": 2}')
        with zipfile.ZipFile(tmp_path / "d.zip", "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("data", b" " * 50_000_000)
        for name, reason in {
            "a": "must be a zip file", "b": "has no data", "c": "twice", "d": "bigger unpacked",
        }.items():  # fmt: skip
            with pytest.raises(SafeFileError, match=rf"{name}\.zip .*{reason}"):
                RecurrentPPO.load(tmp_path / f"{name}.zip", env=FLICKERING, trusted=False)

    def test_with_code_for_weights(self, canary, tmp_path):
        a_model().save(tmp_path / "model.zip")

        def song(content: bytes) -> bytes:
            return pickle.dumps(Canary(canary))

        for part in ("policy.pth", "policy.optimizer.pth", "pytorch_variables.pth"):
            bad = poisoned(tmp_path / "model.zip", tmp_path / "bad.zip", {part: song})
            try:
                RecurrentPPO.load(bad, env=FLICKERING, trusted=False)
            except SafeFileError as error:
                assert "bad.zip" in str(error)  # noqa: PT017
            assert not canary.exists()

    def test_of_huge_numbers(self, tmp_path):
        a_model().save(tmp_path / "model.zip")

        def huge(content: bytes) -> bytes:
            data = json.loads(content)
            data["policy_kwargs"]["lstm_hidden_size"] = 10**6
            return json.dumps(data).encode()

        bad = poisoned(tmp_path / "model.zip", tmp_path / "bad.zip", {"data": huge})
        with pytest.raises(SafeFileError, match=r"bad\.zip says that its network has a tensor"):
            RecurrentPPO.load(bad, env=FLICKERING, trusted=False)


class TestNormalisers:
    """The third way of SB3 #2281; the second, replay buffers, this package has none of."""

    def test_that_are_pickles_are_not_read(self, canary, tmp_path):
        path = tmp_path / "normalizer.pkl"
        path.write_bytes(pickle.dumps(Canary(canary)))
        venv = thrust_pomdp.make_vec_env(FLICKERING, 1)
        model = a_model()
        privileged = VecPrivilegedInfo(
            thrust_pomdp.make_vec_env(FLICKERING, 1, env_kwargs={"expose_state": True})
        )
        for load in (
            lambda: VecNormalizeVisible.load(str(path), venv, trusted=False),
            lambda: StatefulActor(model, normalizer=path, trusted=False),
            lambda: privileged.load_statistics(path, trusted=False),
        ):
            with pytest.raises(SafeFileError, match=r"normalizer\.pkl is read as a pickle"):
                without_pickles(load)
        for load in (
            lambda: VecNormalizeVisible.load_safe(path, venv),
            lambda: RecurrentPPO.load_safe(path),
            lambda: StatefulActor.load(path),
            lambda: privileged.load_safe(path),
        ):
            with pytest.raises(SafeFileError, match=r"normalizer\.pkl is a pickle"):
                without_pickles(load)
        assert not canary.exists()
        with pytest.raises(ValueError, match=r"normalizer\.pkl"):
            StatefulActor(model, normalizer=path)
        assert canary.exists()

    def test_zip_files_are_no_safe_files(self, canary, tmp_path):
        a_model().save(tmp_path / "model.zip")
        bad = poisoned(tmp_path / "model.zip", tmp_path / "bad.zip", {"data": with_canary(canary)})
        with pytest.raises(SafeFileError, match=r"bad\.zip is a zip file, .* trusted=False"):
            without_pickles(lambda: RecurrentPPO.load_safe(bad))
        assert not canary.exists()


class TestRecipes:
    @pytest.mark.parametrize(
        "value",
        [
            "!!python/object/apply:os.mkdir [CANARY]",
            "\"dict(a=__import__('os').mkdir('CANARY'))\"",
            "\"__import__('os').mkdir('CANARY')\"",
        ],
    )
    @pytest.mark.parametrize("key", ["policy_kwargs", "learning_rate", "normalize", "env_wrapper"])
    def test_run_nothing(self, key, value, canary, tmp_path):
        path = tmp_path / "recipe.yml"
        value = value.replace("CANARY", str(canary))
        path.write_text(f"lstm:\n  {FLICKERING}:\n    n_timesteps: 100\n    {key}: {value}\n")
        with pytest.raises(ValueError, match=r"recipe\.yml"):
            read_recipes(path, ["lstm"], FLICKERING)
        assert not canary.exists()


def test_trusted_is_a_switch(tmp_path: Path) -> None:
    a_model().save(tmp_path / "model.zip")
    with pytest.raises(ValueError, match="trusted must be True or False, got 'no'"):
        RecurrentPPO.load(tmp_path / "model.zip", trusted="no")
    assert isinstance(gym.make(FLICKERING), gym.Env)
    assert np.isfinite(RecurrentPPO.load(tmp_path / "model.zip", trusted=True).learning_rate)

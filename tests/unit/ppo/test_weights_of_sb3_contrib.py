"""Weights both ways between this library and sb3_contrib."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import sb3_contrib
import torch as th
from gymnasium import spaces
from helpers import VECTOR, fixed_length_envs

from thrust_pomdp import RecurrentPPO, from_sb3_contrib, to_sb3_contrib

IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
CASES = {
    "separate": ("MlpLstmPolicy", VECTOR, {}),
    "two layers": ("MlpLstmPolicy", VECTOR, {"n_lstm_layers": 2}),
    "shared": ("MlpLstmPolicy", VECTOR, {"shared_lstm": True, "enable_critic_lstm": False}),
    "critic without memory": ("MlpLstmPolicy", VECTOR, {"enable_critic_lstm": False}),
    "image": ("CnnLstmPolicy", IMAGE, {}),
    "dict": ("MultiInputLstmPolicy", spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)}), {}),
}


def make_env(observation_space, n_envs=2, **kwargs):
    return fixed_length_envs(*(5, 6)[:n_envs], observation_space=observation_space, **kwargs)


def make(library, case: str, **kwargs):
    policy, space, policy_kwargs = CASES[case]
    return library(
        policy, make_env(space), n_steps=8, batch_size=8, n_epochs=2, seed=0,
        policy_kwargs={"lstm_hidden_size": 8, **policy_kwargs}, **kwargs,
    )  # fmt: skip


def assert_act_alike(first, second, space) -> None:
    """Same actions, values and log-probabilities, step by step, through episode starts."""
    env = make_env(space)
    if isinstance(space, spaces.Box) and len(space.shape) == 3:
        env = RecurrentPPO._wrap_env(env)  # channels first
    env.seed(1)
    obs, starts = env.reset(), np.ones(2)
    states = [make_zero_states(model) for model in (first, second)]
    for _ in range(15):
        outputs = []
        for idx, model in enumerate((first, second)):
            tensor, _ = model.policy.obs_to_tensor(obs)
            with th.no_grad():
                *output, states[idx] = model.policy(
                    tensor, states[idx], th.as_tensor(starts, dtype=th.float32), deterministic=True
                )
            outputs.append(output)
        for ours, theirs in zip(*outputs, strict=True):
            th.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
        obs, _, starts, _ = env.step(outputs[0][0].numpy())


def make_zero_states(model):
    from sb3_contrib.common.recurrent.type_aliases import RNNStates

    layers, _, hidden = model.policy.lstm_hidden_state_shape
    zeros = th.zeros(layers, 2, hidden)
    return RNNStates((zeros, zeros), (zeros, zeros))


@pytest.mark.parametrize("case", CASES)
class TestRoundTrip:
    def test_theirs_to_ours(self, case, tmp_path):
        theirs = make(sb3_contrib.RecurrentPPO, case, clip_range_vf=0.3, learning_rate=1e-3)
        theirs.learn(32)
        theirs.save(tmp_path / "theirs")
        ours = from_sb3_contrib(tmp_path / "theirs", env=make_env(CASES[case][1]))
        assert_act_alike(ours, theirs, CASES[case][1])
        assert ours.num_timesteps == 32
        assert ours.clip_range_vf(1.0) == 0.3
        assert ours.window_state == "carry"
        assert ours.policy.optimizer.state_dict()["state"]
        ours.learn(32, reset_num_timesteps=False)
        assert ours.num_timesteps == 64

    def test_ours_to_theirs(self, case, tmp_path):
        ours = make(RecurrentPPO, case).learn(32)
        theirs = to_sb3_contrib(ours)
        assert_act_alike(theirs, ours, CASES[case][1])
        theirs.save(tmp_path / "theirs")
        loaded = sb3_contrib.RecurrentPPO.load(tmp_path / "theirs", env=make_env(CASES[case][1]))
        assert_act_alike(loaded, ours, CASES[case][1])
        loaded.learn(32, reset_num_timesteps=False)
        assert_act_alike(ours, from_sb3_contrib(_save(to_sb3_contrib(ours), tmp_path)),
                         CASES[case][1])  # fmt: skip


def _save(model, tmp_path):
    model.save(tmp_path / "again")
    return tmp_path / "again"


class TestOursToTheirs:
    def test_a_shared_lstm_with_the_critics_gradient_acts_alike(self):
        ours = RecurrentPPO(
            "MlpLstmPolicy",
            make_env(VECTOR),
            n_steps=8,
            batch_size=8,
            policy_kwargs={"lstm_hidden_size": 8, "shared_lstm_critic_gradient": True},
        )
        assert_act_alike(to_sb3_contrib(ours), ours, VECTOR)

    def test_without_the_package_the_message_says_how_to_get_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sb3_contrib", None)
        with pytest.raises(ImportError, match="pip install sb3-contrib"):
            to_sb3_contrib(make(RecurrentPPO, "separate"))


class TheirDoubled(sb3_contrib.ppo_recurrent.policies.RecurrentActorCriticPolicy):
    """A policy that a user of theirs derived."""

    def _get_action_dist_from_latent(self, latent):
        return super()._get_action_dist_from_latent(2 * latent)


class TestPoliciesOfTheirUsers:
    @pytest.mark.parametrize("kind", [str, Path, io.BytesIO])
    def test_are_told_of_since_their_methods_are_not_run(self, kind, tmp_path):
        model = sb3_contrib.RecurrentPPO(
            TheirDoubled, make_env(VECTOR), n_steps=8, batch_size=8,
            policy_kwargs={"lstm_hidden_size": 8},
        )  # fmt: skip
        file = io.BytesIO() if kind is io.BytesIO else kind(tmp_path / "theirs")
        model.save(file)
        with pytest.warns(UserWarning, match=f"policy class is one of {__name__}, .* not run"):
            ours = from_sb3_contrib(file)
        weights = ours.policy.state_dict()
        for name, value in model.policy.state_dict().items():
            assert th.equal(weights[name], value)


class TestRefusals:
    def test_load_on_their_file_names_the_function(self, tmp_path):
        make(sb3_contrib.RecurrentPPO, "separate").save(tmp_path / "theirs")
        with pytest.raises(ValueError, match=r"thrust_pomdp\.from_sb3_contrib\(path\)"):
            RecurrentPPO.load(tmp_path / "theirs")

    def test_a_file_of_ours_and_attributes_that_do_not_exist(self, tmp_path):
        make(RecurrentPPO, "separate").save(tmp_path / "ours")
        with pytest.raises(ValueError, match=r"RecurrentPPO\.load reads those"):
            from_sb3_contrib(tmp_path / "ours")
        make(sb3_contrib.RecurrentPPO, "separate").save(tmp_path / "theirs")
        with pytest.raises(ValueError, match="'nsteps' is no attribute"):
            from_sb3_contrib(tmp_path / "theirs", nsteps=16)

    def test_a_file_of_another_algorithm(self, tmp_path):
        from stable_baselines3 import PPO, SAC

        PPO("MlpPolicy", make_env(VECTOR), n_steps=8, batch_size=8).save(tmp_path / "ppo")
        with pytest.raises(ValueError, match="the weights of a policy without .* anew"):
            from_sb3_contrib(tmp_path / "ppo")
        box = spaces.Box(-1, 1, (2,), np.float32)
        SAC("MlpPolicy", make_env(VECTOR, action_space=box), buffer_size=8).save(tmp_path / "sac")
        with pytest.raises(ValueError, match=r"saved by sb3_contrib\.RecurrentPPO"):
            from_sb3_contrib(tmp_path / "sac")

    def test_an_environment_with_other_spaces(self, tmp_path):
        make(sb3_contrib.RecurrentPPO, "separate").save(tmp_path / "theirs")
        with pytest.raises(ValueError, match="env must have the action_space"):
            from_sb3_contrib(
                tmp_path / "theirs", env=make_env(VECTOR, action_space=spaces.Discrete(7))
            )

    def test_their_code_is_not_imported(self, tmp_path):
        """The file can be read where sb3_contrib is not installed."""
        import subprocess

        make(sb3_contrib.RecurrentPPO, "separate").save(tmp_path / "theirs")
        program = (
            "import sys; sys.modules['sb3_contrib'] = None\n"
            "from thrust_pomdp import from_sb3_contrib\n"
            f"model = from_sb3_contrib({str(tmp_path / 'theirs')!r})\n"
            "import numpy as np\n"
            "print(model.predict(np.ones(3, np.float32))[0].shape)\n"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        assert run.stdout.strip() == "()"

"""The files of actors: what is in them, what is refused, and how they are written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch as th
from deploy_cases import CASES, VECTOR, Case, make_actor
from memories import LastFrames, OwnLSTM
from stable_baselines3 import PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnvWrapper
from torch import nn

from thrust_pomdp import RecurrentPPO, StatefulActor, make_vec_env
from thrust_pomdp.deploy import numpy_actor, observation_pipeline
from thrust_pomdp.deploy.checking import random_steps, shadow_of
from thrust_pomdp.deploy.description import describe
from thrust_pomdp.deploy.export import difference_to
from thrust_pomdp.deploy.numpy_actor import NumpyActor
from thrust_pomdp.deploy.players import COMPILERS, NODE, WARNINGS
from thrust_pomdp.ppo.policies import RecurrentActorCriticPolicy
from thrust_pomdp.recurrent import GTrXL
from thrust_pomdp.recurrent.sequences import RNNStates

ENDINGS = (".onnx", ".npz", ".h", ".js")


@pytest.fixture(scope="module")
def actor() -> StatefulActor:
    return make_actor(CASES["everything around"])


class TestFiles:
    @pytest.mark.parametrize("ending", ENDINGS)
    def test_the_same_model_gives_the_same_bytes(self, actor, ending, tmp_path):
        if ending == ".onnx":
            pytest.importorskip("onnx")
        path, again = tmp_path / f"one{ending}", make_actor(CASES["everything around"])
        actor.export(path)
        content = path.read_bytes()
        again.export(path)
        assert path.read_bytes() == content
        # A folder's name or a line of ours would be of this machine.
        assert str(Path.cwd()).encode() not in content
        assert [file.name for file in tmp_path.iterdir()] == [path.name]

    def test_a_file_that_cannot_be_written_is_named(self, actor, tmp_path):
        path = tmp_path / "missing" / "actor.h"
        with pytest.raises(OSError, match=re.escape(f"{path} cannot be written")):
            actor.export(path)

    def test_what_was_there_stays_where_writing_fails(self, actor, tmp_path, monkeypatch):
        path = tmp_path / "actor.h"
        path.write_text("before")

        def fail(*args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="No space left"):
            actor.export(path)
        assert path.read_text() == "before"
        assert [file.name for file in tmp_path.iterdir()] == [path.name]

    def test_another_ending_is_refused(self, actor, tmp_path):
        with pytest.raises(ValueError, match=r"path must end with one of \.onnx, \.npz, \.h"):
            actor.export(tmp_path / "actor.zip")

    def test_exporting_leaves_the_memory_as_it_was(self, tmp_path):
        exported, left = (make_actor(CASES["lstm"]) for _ in range(2))
        for step in range(6):
            obs = np.float32([0.1, 0.2, step])
            assert exported.act(obs) == left.act(obs)
            exported.export(tmp_path / "actor.npz")
            for one, other in zip(exported._state, left._state, strict=True):
                assert np.array_equal(one, other)


class TestNumpyActor:
    def test_needs_numpy_alone(self, actor, tmp_path):
        actor.export(tmp_path / "actor.npz")
        shutil.copy(numpy_actor.__file__, tmp_path)
        program = (
            "import sys\n"
            "from numpy_actor import NumpyActor\n"
            "actor = NumpyActor('actor.npz')\n"
            "print(actor.act([0.1, 0.2, 0.3], reward=1.0), actor.act([0, 0, 0], blanked=True,"
            " reward=0))\n"
            "print(*sorted(m for m in ('torch', 'gymnasium', 'thrust_pomdp') if m in sys.modules))"
        )
        told = subprocess.run(
            [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, '.')\n{program}"],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert told.returncode == 0, told.stderr
        actions, modules = told.stdout.splitlines()
        assert re.fullmatch(r"[012] [012]", actions)
        assert modules == ""

    def test_what_was_done_in_the_end_is_seen(self, tmp_path):
        actor = make_actor(CASES["torques in a matrix"])
        actor.export(tmp_path / "actor.npz")
        other = NumpyActor(tmp_path / "actor.npz")
        obs, done = np.float32([0.1, 0.2, 0.3]), np.float32([[0.5, -0.5], [0.0, 1.0]])
        actor.act(obs), other.act(obs)
        other.set_previous_action(done)
        np.testing.assert_allclose(other.act(obs), actor.act(obs, action=done), atol=1e-5)

    def test_other_files_are_refused(self, tmp_path):
        np.savez(tmp_path / "other.npz", weights=np.zeros(3))
        with pytest.raises(ValueError, match="path must be a file of format 1"):
            NumpyActor(tmp_path / "other.npz")

    @pytest.mark.parametrize("reading", [np.nan, np.inf])
    def test_readings_that_would_spoil_the_memory_are_refused(self, reading, tmp_path):
        make_actor(CASES["lstm, normalised"]).export(tmp_path / "actor.npz")
        actor, obs = NumpyActor(tmp_path / "actor.npz"), np.float32([0.1, reading, 0.3])
        with pytest.raises(ValueError, match="obs must be finite where it is not blanked"):
            actor.act(obs, blanked=False)
        # A sensor that is silent may show anything.
        blank = actor.act(obs, blanked=[False, True, False])
        actor.reset()
        assert blank == actor.act(np.nan_to_num(obs), blanked=[False, True, False])

    def test_a_reward_that_is_needed_is_asked_for(self, actor, tmp_path):
        actor.export(tmp_path / "actor.npz")
        other = NumpyActor(tmp_path / "actor.npz")
        other.act(np.ones(3), blanked=False)  # no reward comes with an episode's first observation
        with pytest.raises(ValueError, match="inputs must have previous_reward"):
            other.act(np.ones(3), blanked=False)

    def test_readings_of_another_shape_are_refused(self, tmp_path):
        make_actor(CASES["lstm"]).export(tmp_path / "actor.npz")
        with pytest.raises(ValueError, match=r"obs must be of shape \(1, 3\), got \(1, 4\)"):
            NumpyActor(tmp_path / "actor.npz").act(np.zeros(4))


def shown_to(actor, keywords):
    """Show what the model sees of a step, and its states before it."""
    show = {name: keywords.get(name) for name in ("reward", "blanked")}
    pipeline = actor._pipeline
    starts = keywords["episode_start"]
    return pipeline.show(keywords["obs"], starts, show["reward"], show["blanked"], None), starts


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.outputs])
def test_what_else_comes_out_is_the_policys(name):
    actor, outputs = make_actor(CASES[name]), CASES[name].outputs
    policy, program = actor.model.policy, describe(actor, outputs)
    found = NumpyActor.of(program.as_data(), program.arrays)
    shadow, logits = shadow_of(actor), []
    policy.action_net.register_forward_hook(lambda module, args, made: logits.append(made))
    states = policy.zero_states(2) if hasattr(policy, "zero_states") else None
    for keywords in random_steps(program, 30, 2):
        obs, starts = shown_to(shadow, keywords)
        action = found.act(**keywords)
        shadow._pipeline.remember(action)
        if hasattr(policy, "actor_keys"):
            (key,) = policy.actor_keys
            obs = {key: obs}
        tensors, _ = policy.obs_to_tensor(obs)
        begins = th.from_numpy(starts).float()
        with th.no_grad():
            told = {}
            if states is None:
                told["value"] = policy.predict_values(tensors)
                distribution = policy.get_distribution(tensors)
            else:
                if "value" in outputs:
                    told["value"] = policy.predict_values(tensors, states.vf, begins)
                distribution, pi = policy.get_distribution(tensors, states.pi, begins)
                if "belief" in outputs:
                    told["belief"] = policy.grounding_net(pi[0][-1])
                    states = RNNStates(pi, pi)
                else:
                    states = policy.forward(tensors, states, begins)[-1]
            told["action_logits"] = told["mean"] = logits[-1]
            if "log_std" in outputs:
                told["log_std"] = policy.log_std.detach().expand_as(distribution.mode())
        for output in outputs:
            np.testing.assert_allclose(
                found.outputs[output], told[output].numpy(), rtol=1e-5, atol=1e-5
            )


class OwnExtractor(BaseFeaturesExtractor):
    def __init__(self, space) -> None:
        super().__init__(space, 5)
        self.dense = nn.Linear(3, 5)

    def forward(self, observations):
        return self.dense(observations).sin()


class DoubledGTrXL(GTrXL):
    """A user's own, of one that is known."""

    def step(self, features, states):
        output, states = super().step(features, states)
        return 2 * output, states


OWN = {
    "OwnExtractor": {"features_extractor_class": OwnExtractor},
    "LastFrames": {"rnn_class": LastFrames},
    "OwnLSTM": {"rnn_class": OwnLSTM, "n_lstm_layers": 2},
    "DoubledGTrXL": {"rnn_class": DoubledGTrXL},
    "GELU": {"activation_fn": nn.GELU},
}


@pytest.mark.parametrize("name", OWN)
class TestModulesOfAUsersOwn:
    def test_go_into_onnx(self, name, tmp_path):
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
        from thrust_pomdp.deploy.onnx_actor import OnnxActor

        actor = make_actor(Case(policy_kwargs=OWN[name], layers=("normalize", "stack")[:1]))
        actor.export(tmp_path / "actor.onnx")
        program = describe(actor)
        steps = random_steps(program, 100, 3)
        assert difference_to(actor, program, OnnxActor(tmp_path / "actor.onnx"), steps).is_small

    def test_are_refused_by_name_elsewhere(self, name, tmp_path):
        actor = make_actor(Case(policy_kwargs=OWN[name]))
        for ending in (".npz", ".h", ".js"):
            with pytest.raises(ValueError, match=rf"got {name}: export it to \.onnx"):
                actor.export(tmp_path / f"actor{ending}")


class BranchingExtractor(OwnExtractor):
    """Asks what a tensor holds, which no exporter follows."""

    def forward(self, observations):
        if observations.sum() > 0:
            return self.dense(observations)
        return self.dense(observations).sin()


def test_a_module_that_cannot_be_followed_is_named(tmp_path):
    pytest.importorskip("onnxscript")
    actor = make_actor(Case(policy_kwargs={"features_extractor_class": BranchingExtractor}))
    with pytest.raises(ValueError, match="can follow, BranchingExtractor is not"):
        actor.export(tmp_path / "actor.onnx")


class Timid(RecurrentActorCriticPolicy):
    """A user's policy that never takes the last action."""

    def get_distribution(self, *args):
        distribution, states = super().get_distribution(*args)
        distribution.logits[:, -1] = -1e9
        return distribution, states


class Doubling(VecEnvWrapper):
    """A user's wrapper, known to the pipeline and to nobody else."""

    def reset(self):
        return 2 * self.venv.reset()

    def step_wait(self):
        obs, *rest = self.venv.step_wait()
        return 2 * obs, *rest


@observation_pipeline.layer_of.register
def _doubled(wrapper: Doubling):
    return lambda obs, context: 2 * obs


class TestWhatIsNotKnownIsRefused:
    def refuse(self, actor, message, tmp_path, ending=".npz", **options):
        path = tmp_path / f"actor{ending}"
        with pytest.raises(ValueError, match=message):
            actor.export(path, **options)
        assert not path.exists()

    def test_policies_of_a_users_own(self, tmp_path):
        env = make_vec_env("FlickeringCartPole-v0", 1, seed=0)
        model = RecurrentPPO(Timid, env, n_steps=8)
        self.refuse(StatefulActor(model), "Timid.get_distribution is not that of", tmp_path)

    def test_methods_replaced_on_a_policy(self, tmp_path):
        actor = make_actor(CASES["lstm"])
        policy = actor.model.policy
        policy._predict = policy._predict
        self.refuse(actor, "_predict was replaced", tmp_path)

    def test_models_that_act_in_ways_of_their_own(self, tmp_path):
        """No method of the policy tells; playing does."""
        actor = make_actor(CASES["lstm"])
        predict = actor.model.predict

        def contrary(*args, **kwargs):
            action, state = predict(*args, **kwargs)
            return 2 - action, state

        actor.model.predict = contrary
        self.refuse(actor, r"differs from act\(\) in \d+ actions", tmp_path)

    def test_wrappers_of_a_users_own(self, tmp_path):
        env = Doubling(make_vec_env("FlickeringCartPole-v0", 1, seed=0))
        actor = StatefulActor.like(RecurrentPPO("MlpLstmPolicy", env, n_steps=8), env)
        self.refuse(actor, "env must have no wrappers", tmp_path)

    @pytest.mark.parametrize("ending", [".h", ".js"])
    def test_images(self, ending, tmp_path):
        self.refuse(make_actor(CASES["camera"]), "no images .*, got obs", tmp_path, ending)

    @pytest.mark.parametrize("ending", [".h", ".js"])
    def test_attention(self, ending, tmp_path):
        message = r"another memory .*, got a GTrXL.* to \.onnx or \.npz"
        self.refuse(make_actor(CASES["attention"]), message, tmp_path, ending)

    def test_weights_of_double_precision(self, tmp_path):
        actor = make_actor(CASES["lstm"])
        actor.model.policy.double()
        self.refuse(actor, "weights of torch.float32, got torch.float64", tmp_path)

    @pytest.mark.parametrize(
        ("name", "outputs", "message"),
        [
            ("lstm", ["mean"], r"outputs must be some of \('action_logits',\)"),
            ("torques", ["action_logits"], r"outputs must be some of \('mean', 'log_std'\)"),
            ("lstm", ["belief"], "without grounding"),
            ("gSDE", ["log_std"], "without 'log_std'"),
            ("privileged critic", ["value"], "without 'value'"),
            ("lstm", "value", "outputs must be some of"),
        ],
    )
    def test_outputs_that_there_are_not(self, name, outputs, message, tmp_path):
        self.refuse(make_actor(CASES[name]), message, tmp_path, outputs=outputs)

    def test_names_that_c_does_not_take(self, tmp_path):
        actor = make_actor(CASES["lstm"])
        self.refuse(actor, "name must be letters", tmp_path, ".h", name="my-pole")


class TestNormalizerInSinglePrecision:
    @pytest.mark.parametrize("ending", ENDINGS)
    def test_is_exported_on_request(self, ending, tmp_path):
        if ending == ".onnx":
            pytest.importorskip("onnx")
        make_actor(CASES["lstm, normalised"]).export(
            tmp_path / f"actor{ending}", normalizer_dtype="float32"
        )
        if ending == ".h":
            assert "double x" not in (tmp_path / "actor.h").read_text()

    def test_loses_what_double_precision_keeps(self, tmp_path):
        actor = make_actor(CASES["a million"])
        double, single = (describe(actor, (), dtype) for dtype in ("float64", "float32"))
        (mean,) = (
            program.arrays[op.arrays["mean"]]
            for program in (double,)
            for op in program.operations
            if op.kind == "normalize"
        )
        assert mean.dtype == np.float64
        assert np.abs(mean - mean.astype(np.float32)).max() > 1e-3
        assert any(array.dtype == np.float32 for array in single.arrays.values())


@pytest.mark.skipif(not COMPILERS, reason="there is no C compiler")
class TestHeader:
    def test_object_is_weights_and_little_else(self, tmp_path):
        """The README's actor."""
        env = make_vec_env("FlickeringCartPole-v0", 1, seed=0, normalize=True)
        model = RecurrentPPO("MlpLstmPolicy", env, n_steps=8)
        actor = StatefulActor.like(model, env)
        actor.export(tmp_path / "pole.h")
        program = describe(actor)
        weights = sum(array.size for array in program.arrays.values())
        source = tmp_path / "pole.c"
        source.write_text(
            '#include "pole.h"\n'
            "void act(pole_state *s, const float *o, const uint8_t *b, const float *n,"
            " int32_t *a)\n{\n    pole_act(s, o, b, n, a);\n}\n"
        )
        command = [COMPILERS[0], *WARNINGS, "-c", "pole.c", "-o", "pole.o"]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=30)
        assert (tmp_path / "pole.o").stat().st_size < 4 * weights + 16_384
        assert weights > 100_000

    def test_two_actors_in_a_program_in_cpp(self, tmp_path):
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            pytest.skip("there is no C++ compiler")
        for name, case in (("pole", "everything around"), ("arm", "sensors")):
            make_actor(CASES[case]).export(tmp_path / f"{name}.h")
        (tmp_path / "both.cpp").write_text(
            '#include "pole.h"\n#include "arm.h"\n'
            "int main() { static pole_state one; static arm_state two;\n"
            "pole_reset(&one); arm_reset(&two); return 0; }\n"
        )
        flags = ["-std=c++11", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([compiler, *flags, "both.cpp"], cwd=tmp_path, check=True)


@pytest.mark.skipif(NODE is None, reason="Node is not installed")
class TestJavaScript:
    def told(self, actor, calls, tmp_path):
        actor.export(tmp_path / "actor.mjs")
        (tmp_path / "page.mjs").write_text(
            f'import {{ Actor }} from "./actor.mjs";\nconst actor = new Actor();\n{calls}\n'
        )
        return subprocess.run([NODE, "page.mjs"], cwd=tmp_path, capture_output=True, text=True)

    @pytest.mark.parametrize(
        ("calls", "message"),
        [
            ("actor.act([1, 2, 3]); actor.act([1, 2, 3]);", "reward must be given"),
            ("actor.act([1, 2]);", "obs must be 3 numbers, got 2"),
            ("actor.act([1, NaN, 3], { blanked: false });", "obs must be finite"),
        ],
    )
    def test_says_what_is_wrong(self, actor, calls, message, tmp_path):
        done = self.told(actor, calls, tmp_path)
        assert done.returncode != 0
        assert message in done.stderr

    def test_what_is_blanked_may_be_anything(self, actor, tmp_path):
        calls = "console.log(actor.act([1, NaN, 3], { blanked: [false, true, false] }));"
        done = self.told(actor, calls, tmp_path)
        assert done.stdout.strip() in ("0", "1", "2"), done.stderr


class TestNoise:
    def test_decides_the_action(self):
        actor = make_actor(CASES["choices"], deterministic=False)
        obs, reward = np.float32([0.1, 0.2, 0.3]), 0.0
        low, high = (
            shadow_of(actor).act(obs, reward=reward, noise=np.full(3, number))
            for number in (0.0, 1 - 1e-12)
        )
        assert low.tolist() == [0, 0, 0]
        assert high.tolist() == [2, 1, 3]

    def test_leaves_the_policys_own_stream_alone(self):
        models = [make_actor(CASES["lstm"], deterministic=False) for _ in range(2)]
        drawn = []
        for place, actor in enumerate(models):
            actor.model.set_random_seed(3)
            for step in range(20):
                if place and step % 2:
                    shadow_of(actor).act(VECTOR.high, noise=[0.3])
                drawn.append(int(actor.act(VECTOR.high)))
        assert drawn[:20] == drawn[20:]

    def test_is_refused_where_it_cannot_be(self):
        actor, obs = make_actor(CASES["lstm"]), VECTOR.high
        with pytest.raises(ValueError, match=r"noise must be numbers of shape \(1, 1\)"):
            actor.act(obs, noise=[0.1, 0.2])
        with pytest.raises(ValueError, match=r"noise must be from \[0, 1\)"):
            actor.act(obs, noise=[1.0])
        with pytest.raises(ValueError, match="use_sde=True"):
            make_actor(CASES["gSDE"]).act(obs, reward=0.0, noise=[0.1, 0.2])

    def test_of_sb3s_ppo_leaves_its_distribution_in_place(self):
        actor = make_actor(CASES["memoryless"])
        assert isinstance(actor.model, PPO)
        before = actor.model.policy.action_dist
        actor.act(np.zeros((2, 3), np.float32), reward=[0, 0], blanked=False, noise=[[0.1], [0.9]])
        assert actor.model.policy.action_dist is before

"""Torch's own exporters on a policy: the right graph or an error, never a wrong graph."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch as th
from deploy_cases import CASES, Case, make_actor
from maskable_envs import random_masks
from torch import nn

from thrust_pomdp.recurrent.sequences import RNNStates


class WithState(nn.Module):
    """One step of a policy as a pure function, as an exporter wants it."""

    def __init__(self, policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs, h, c, h_critic, c_critic, starts):
        states = RNNStates((h, c), (h_critic, c_critic))
        actions, values, log_prob, after = self.policy(obs, states, starts, deterministic=True)
        return actions, values, log_prob, *after.pi, *after.vf


class AsInSB3sPages(nn.Module):
    """https://stable-baselines3.readthedocs.io/en/master/guide/export.html."""

    def __init__(self, policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation):
        return self.policy(observation, deterministic=True)


def traced(step, example):
    return th.jit.trace(step, example)


def exported(step, example):
    return th.export.export(step, example).module()


def onnx_file(step, example, path, **options):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    names = ["obs", "h", "c", "h_critic", "c_critic", "starts"]
    th.onnx.export(step, example, str(path), input_names=names, verbose=False, **options)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}

    def run(*values):
        given = dict(zip(names, values, strict=True))
        assert wanted == set(names)  # an input that is gone is one that is no longer looked at
        made = session.run(None, {name: value.numpy() for name, value in given.items()})
        return [th.from_numpy(np.asarray(array)) for array in made]

    return run


WAYS = {
    "torch.jit.trace": lambda step, example, path: traced(step, example),
    "torch.export": lambda step, example, path: exported(step, example),
    "torch.onnx.export": lambda *a: onnx_file(*a, dynamo=True),
    "torch.onnx.export by tracing": lambda *a: onnx_file(*a, dynamo=False),
}


@pytest.mark.filterwarnings("ignore::Warning")  # what the exporters say of themselves
@pytest.mark.parametrize("way", WAYS)
def test_episode_starts_are_in_the_graph(way, tmp_path):
    policy = make_actor(Case(policy_kwargs={"n_lstm_layers": 2})).model.policy
    policy.set_training_mode(False)
    step = WithState(policy)
    state = [th.zeros(2, 1, 12) for _ in range(4)]
    rng = th.Generator().manual_seed(0)
    with th.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Exported by an example in which no episode starts.
        graph = WAYS[way](step, (th.zeros(1, 3), *state, th.zeros(1)), tmp_path / "step.onnx")
        n_starts = 0
        for _ in range(200):
            starts = (th.rand(1, generator=rng) < 0.1).float()
            obs = th.randn(1, 3, generator=rng)
            wanted, found = step(obs, *state, starts), graph(obs, *state, starts)
            for one, other in zip(wanted, found, strict=True):
                th.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)
            state, n_starts = list(wanted[3:]), n_starts + int(starts.sum())
    assert n_starts > 10


class WithMasks(nn.Module):
    """One step of a policy with masks."""

    def __init__(self, policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs, h, c, starts, masks):
        states = RNNStates((h, c), (h, c))
        return self.policy(obs, states, starts, deterministic=True, action_masks=masks)[:3]


@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize(
    ("name", "way"),
    [
        # torch.export says that it cannot follow torch's distributions, which the others have.
        ("masks", "torch.export"),
        *((name, "torch.jit.trace") for name in ("masks", "masks of choices", "masks of bits")),
    ],
)
def test_masks_are_in_the_graph(name, way, tmp_path):
    policy = make_actor(CASES[name]).model.policy
    policy.set_training_mode(False)
    step, state = WithMasks(policy), [th.zeros(1, 1, 12) for _ in range(2)]
    rng = np.random.default_rng(0)
    width = policy.mask_layout.width
    example = th.zeros(1, *policy.observation_space.shape), *state, th.zeros(1)
    with th.no_grad():
        graph = WAYS[way](step, (*example, th.ones(1, width, dtype=th.bool)), tmp_path)
        for _ in range(50):
            masks = th.from_numpy(random_masks(policy.action_space, 1, rng))
            obs = th.from_numpy(rng.normal(size=example[0].shape).astype(np.float32))
            given = obs, *state, th.zeros(1), masks
            for one, other in zip(step(*given), graph(*given), strict=True):
                th.testing.assert_close(other, one)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("way", ["calling", "torch.jit.trace"])
def test_sb3s_recipe_says_what_to_do_instead(way):
    policy = make_actor(Case()).model.policy
    step = AsInSB3sPages(policy)
    with pytest.raises(TypeError, match=r"StatefulActor\.like\(model, env\)\.export"):
        step(th.zeros(1, 3)) if way == "calling" else traced(step, (th.zeros(1, 3),))

"""Looking inside: a trace holds what predict and forward give, step by step; and its picture."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from helpers import FixedLengthEnv, fixed_length_envs, sharpen
from maskable_envs import ACTIONS as MASKABLE
from maskable_envs import ChangingMaskEnv, as_choices
from PIL import Image
from sensor_envs import AnyEnv
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, unwrap_vec_normalize

from thrust_pomdp import (
    ElementDropoutObservation,
    FlickerObservation,
    MaskableRecurrentPPO,
    MaskObservation,
    RecurrentPPO,
    StatefulActor,
    Trace,
    longest_burst,
    look_inside,
    make_vec_env,
    plot_burst,
)
from thrust_pomdp.analysis.trace_figure import Burst
from thrust_pomdp.experiment.runner import save_result
from thrust_pomdp.experiment.training import RunSpec, run
from thrust_pomdp.ppo.maskable import get_action_masks
from thrust_pomdp.recurrent.sequences import RNNStates

ROOT = Path(__file__).parents[3]
FLICKERING = "FlickeringCartPole-v0"
N_STEPS = 30

ACTIONS = {
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(-0.5, 0.5, (2,), np.float32),
}
POLICIES: dict[str, dict[str, Any]] = {
    "separate critic": {},
    "shared": {"shared_lstm": True, "enable_critic_lstm": False},
    "critic without memory": {"enable_critic_lstm": False},
    "two layers": {"n_lstm_layers": 2},
}


def make_model(env: Any, policy: str = "MlpLstmPolicy", **kwargs: Any) -> RecurrentPPO:
    model = RecurrentPPO(
        policy, env, n_steps=8, batch_size=8, seed=0,
        policy_kwargs={"lstm_hidden_size": 8, **kwargs.pop("policy_kwargs", {})}, **kwargs,
    )  # fmt: skip
    if not isinstance(model.action_space, spaces.Box):
        sharpen(model, 1000.0)
    return model


def by_hand(model: RecurrentPPO, env: Any, deterministic: bool) -> list[dict[str, Any]]:
    """What predict gives, and values and states of forward with the states carried as it says."""
    env.seed(7)
    model.policy.seed_actions(0)
    obs, state, start = env.reset(), None, np.ones(env.num_envs, bool)
    states, rows = model.policy.zero_states(env.num_envs), []
    for _ in range(N_STEPS):
        actions, state = model.predict(obs, state, start, deterministic)
        tensor, _ = model.policy.obs_to_tensor(obs)
        with th.no_grad(), th.random.fork_rng():
            starts = th.as_tensor(start)
            _, values, _, after = model.policy.forward(tensor, states, starts)
            alone = model.policy.predict_values(tensor, states.vf, starts)
        np.testing.assert_array_equal(values, alone)
        row = {"observations": obs, "actions": actions, "episode_starts": start,
               "pi": state, "vf": after.vf, "values": values.numpy()[:, 0]}  # fmt: skip
        states = RNNStates(tuple(map(th.as_tensor, state)), after.vf)
        obs, row["rewards"], start, _ = env.step(actions)
        rows.append(row)
    return rows


def traced(model: Any, env: Any, deterministic: bool = False, n_steps: int = N_STEPS) -> Trace:
    env.seed(7)
    model.policy.seed_actions(0)
    return look_inside(model, env, n_steps, deterministic)


class TestEqualsActing:
    @pytest.mark.parametrize("deterministic", [True, False])
    @pytest.mark.parametrize("lengths", [(5,), (5, 6, 7)])
    @pytest.mark.parametrize("policy", POLICIES)
    def test_states_values_and_actions(
        self, policy: str, lengths: tuple[int, ...], deterministic: bool
    ) -> None:
        env = fixed_length_envs(*lengths)
        model = make_model(env, policy_kwargs=POLICIES[policy])
        rows, trace = by_hand(model, env, deterministic), traced(model, env, deterministic)
        for name in ("observations", "actions", "episode_starts", "rewards", "values"):
            np.testing.assert_array_equal(getattr(trace, name), [row[name] for row in rows])
        np.testing.assert_array_equal(trace.hidden, [row["pi"][0] for row in rows])
        np.testing.assert_array_equal(trace.cell, [row["pi"][1] for row in rows])
        if policy in ("separate critic", "two layers"):
            np.testing.assert_array_equal(trace.critic_hidden, [row["vf"][0] for row in rows])
            np.testing.assert_array_equal(trace.critic_cell, [row["vf"][1] for row in rows])
        else:
            assert trace.critic_hidden is trace.critic_cell is None
        assert trace.hidden.shape == (N_STEPS, 1 + (policy == "two layers"), len(lengths), 8)
        assert trace.episode_starts.sum() == sum(-(-N_STEPS // length) for length in lengths)

    @pytest.mark.parametrize("action", ACTIONS)
    def test_chances_are_those_of_the_actions(self, action: str) -> None:
        env = fixed_length_envs(5, 6, action_space=ACTIONS[action])
        model = make_model(env)
        rows, trace = by_hand(model, env, False), traced(model, env)
        np.testing.assert_array_equal(trace.actions, [row["actions"] for row in rows])
        if action == "Box":
            assert trace.probabilities is None
            assert trace.mean.shape == trace.std.shape == (N_STEPS, 2, 2)
            # Some are beyond the bounds: clipped for the environment, not in the density.
            assert np.abs(trace.actions).max() == 0.5
            inside = (np.abs(trace.actions) < 0.5).all(axis=2)
            z = (trace.actions - trace.mean) / trace.std
            density = -0.5 * z**2 - np.log(trace.std) - 0.5 * np.log(2 * np.pi)
            np.testing.assert_allclose(
                density.sum(axis=2)[inside], trace.log_prob[inside], atol=1e-5
            )
            return
        assert trace.mean is trace.std is None
        if action == "Discrete":
            parts, taken = [trace.probabilities], trace.actions[..., None]
        elif action == "MultiDiscrete":
            assert [part.shape[2] for part in trace.probabilities] == [3, 2]
            parts, taken = list(trace.probabilities), trace.actions
        else:
            assert trace.probabilities.shape == (N_STEPS, 2, 3)
            parts = [np.stack([1 - p, p], axis=2) for p in np.moveaxis(trace.probabilities, 2, 0)]
            taken = trace.actions.astype(int)
        chances = [
            np.take_along_axis(part, taken[..., idx, None], axis=2)[..., 0]
            for idx, part in enumerate(parts)
        ]
        np.testing.assert_allclose(np.prod(chances, axis=0), np.exp(trace.log_prob), rtol=1e-4)
        assert all(np.allclose(part.sum(axis=2), 1.0) for part in parts)
        assert np.ptp(trace.log_prob) > 0.1

    def test_one_environment_is_looked_at_like_a_vector_of_one(self) -> None:
        env = FixedLengthEnv(5)
        model = make_model(DummyVecEnv([lambda: env]))
        expected = traced(model, DummyVecEnv([lambda: env]))
        env.reset(seed=7)
        env.episode = 0
        th.manual_seed(0)
        trace = look_inside(model.policy, env, N_STEPS)
        assert trace.hidden.shape == (N_STEPS, 1, 1, 8)
        np.testing.assert_array_equal(trace.episode_starts, expected.episode_starts)

    def test_images_and_dicts(self) -> None:
        def sensed() -> gym.Env:
            env = MaskObservation(AnyEnv("dict"), drop=["camera"])
            return FlickerObservation(env, 0.5, separately=True)

        env = DummyVecEnv([sensed] * 2)
        trace = traced(make_model(env, "MultiInputLstmPolicy"), env)
        assert trace.observations["gyro"].shape == (N_STEPS, 2, 3)
        assert set(trace.blanked) == {"bits", "gyro", "mode"}
        np.testing.assert_array_equal(
            trace.blanked["gyro"], ~trace.observations["gyro"].any(axis=2)
        )
        expected = np.logical_and.reduce(list(trace.blanked.values()))
        np.testing.assert_array_equal(trace.blind, expected)
        assert 0 < trace.blind.sum() < trace.blanked["gyro"].sum()

        env = VecFrameStack(DummyVecEnv([lambda: AnyEnv("image")] * 2), 2)
        trace = traced(make_model(env, "CnnLstmPolicy"), env, n_steps=4)
        assert trace.observations.shape == (4, 2, 36, 36, 6)
        np.testing.assert_array_equal(
            trace.observations[1, :, :, :, :3][~trace.episode_starts[1]],
            trace.observations[0, :, :, :, 3:][~trace.episode_starts[1]],
        )


class TestWhatTheEnvironmentTells:
    def test_flags_and_states_are_of_the_frame_that_was_acted_on(self) -> None:
        env = make_vec_env(FLICKERING, 3, env_kwargs={"expose_state": True})
        trace = traced(make_model(env), env, n_steps=100)
        assert trace.episode_starts[1:].sum() > 3
        assert trace.blanked.shape == (100, 3)
        np.testing.assert_array_equal(trace.blanked, trace.blind)
        np.testing.assert_array_equal(
            trace.observations, np.where(trace.blind[..., None], 0, trace.env_states)
        )

    def test_flags_of_components_are_blind_where_all_are(self) -> None:
        env = DummyVecEnv([lambda: ElementDropoutObservation(AnyEnv(), 0.7)] * 2)
        trace = traced(make_model(env), env)
        assert trace.blanked.shape == (N_STEPS, 2, 3)
        np.testing.assert_array_equal(trace.blanked, trace.observations == 0)
        np.testing.assert_array_equal(trace.blind, trace.blanked.all(axis=2))
        assert trace.blind.any()

    def test_where_nothing_is_told_nothing_is_blind(self) -> None:
        env = fixed_length_envs(5)
        trace = traced(make_model(env), env)
        assert trace.blanked is trace.env_states is None
        assert trace.blind.shape == (N_STEPS, 1)
        assert not trace.blind.any()

    def test_a_normaliser_keeps_its_statistics_and_rewards_stay_raw(self) -> None:
        env = make_vec_env(FLICKERING, 2, normalize=True, previous_action=True)
        model = make_model(env).learn(64)
        normalizer = unwrap_vec_normalize(env)
        before = normalizer.obs_rms.mean.copy(), normalizer.obs_rms.count, normalizer.ret_rms.mean
        trace = traced(model, env)
        after = normalizer.obs_rms.mean, normalizer.obs_rms.count, normalizer.ret_rms.mean
        np.testing.assert_equal(after, before)
        assert normalizer.training
        assert (trace.rewards == 1.0).all()
        assert not trace.observations[trace.blind][:, :4].any()
        assert trace.observations[1:][trace.blind[1:] & ~trace.episode_starts[1:]][:, 4:].any()


class TestBadArguments:
    def test_are_refused_with_the_remedy(self) -> None:
        env = make_vec_env(FLICKERING, 1)
        model = make_model(env)
        with pytest.raises(ValueError, match="n_steps must be at least 1, got 0"):
            look_inside(model, env, 0)
        with pytest.raises(ValueError, match="env must be a VecEnv, got"):
            look_inside(model, FLICKERING, 5)
        with pytest.raises(ValueError, match="Wrap it as the training environment was"):
            look_inside(model, gym.make("MaskedCartPole-v0"), 5)
        with pytest.raises(
            ValueError, match="a recurrent policy of thrust_pomdp to look into, got"
        ):
            look_inside(PPO("MlpPolicy", env, n_steps=16, batch_size=16), env, 5)


def trace_of(blanked: list[str], starts: list[str], **changes: Any) -> Trace:
    """A trace of written flags: a string per environment, ``#`` blanked, ``|`` an episode start."""
    flags = np.array([[char == "#" for char in row] for row in blanked]).T
    firsts = np.array([[char == "|" for char in row] for row in starts]).T
    n_steps, n_envs = flags.shape
    rng = np.random.default_rng(0)
    fields: dict[str, Any] = {
        "observations": rng.normal(size=(n_steps, n_envs, 4)),
        "actions": rng.integers(2, size=(n_steps, n_envs)),
        "rewards": np.ones((n_steps, n_envs)),
        "episode_starts": firsts,
        "blanked": flags,
        "env_states": None,
        "states": {"hidden": np.tanh(rng.normal(size=(n_steps, 1, n_envs, 8)))},
        "critic_states": None,
        "values": rng.normal(size=(n_steps, n_envs)),
        "log_prob": -np.ones((n_steps, n_envs)),
        "probabilities": np.full((n_steps, n_envs, 2), 0.5),
        "mean": None,
        "std": None,
    }
    return Trace(**{**fields, **changes})


class TestLongestBurst:
    @pytest.mark.parametrize(
        ("blanked", "starts", "expected"),
        [
            (["..##..###."], ["|........."], (0, 6, 9)),
            (["..##..##.."], ["|........."], (0, 2, 4)),  # the first of two
            (["...#......", ".........#"], ["|.........", "|........."], (0, 3, 4)),
            (["..##......", "#####....."], ["|.........", "|........."], (1, 0, 5)),
            (["########.."], ["|.|......."], (0, 2, 8)),  # an episode's end cuts it
            (["..########"], ["|....|...."], (0, 5, 10)),
        ],
    )
    def test_is_found_inside_an_episode(self, blanked, starts, expected) -> None:
        assert longest_burst(trace_of(blanked, starts)) == expected

    def test_needs_a_blank_frame(self) -> None:
        with pytest.raises(ValueError, match="trace must have a blank frame"):
            longest_burst(trace_of(["...."], ["|..."]))


class TestPicture:
    TRACE = (
        ["....####..#....#####....", "..####.................."],
        ["|.....|.................", "|......................."],
    )

    def test_shows_the_longest_burst_with_a_margin_that_ends_with_the_episode(self) -> None:
        figure = plot_burst(trace_of(*self.TRACE), margin=6)
        actions, value, hidden = figure.axes[:3]
        assert value.lines[0].get_xdata().tolist() == list(range(3, 18))  # steps of the episode
        assert figure.get_suptitle() == "Through 5 blank frames in a row"
        assert hidden.images[0].get_array().shape == (8, 15)
        assert sum(patch.get_x() is not None for patch in value.patches) == 1 + 5
        assert len(actions.lines) == 2

    def test_of_a_burst_that_is_named(self) -> None:
        figure = plot_burst(trace_of(*self.TRACE), burst=Burst(0, 6, 8), margin=3)
        assert figure.axes[1].lines[0].get_xdata().tolist() == [0, 1, 2, 3, 4]

    def test_of_something_that_is_true_seen_or_not(self, tmp_path: Path) -> None:
        signal = np.arange(24.0)
        path = tmp_path / "burst.png"
        figure = plot_burst(
            trace_of(*self.TRACE), path, margin=2, signal=signal, signal_label="angle (°)"
        )
        true, seen = figure.axes[0].lines
        assert true.get_ydata().tolist() == list(range(13, 22))
        assert seen.get_ydata().tolist() == [13.0, 14.0, 20.0, 21.0]
        assert figure.axes[0].get_ylabel() == "angle (°)"
        with Image.open(path) as picture:
            assert picture.size[0] == 1290
        with pytest.raises(ValueError, match=r"signal must be of shape \(24,\), got \(5,\)"):
            plot_burst(trace_of(*self.TRACE), signal=signal[:5])

    def test_arguments_that_do_not_fit_the_trace(self) -> None:
        trace = trace_of(*self.TRACE)
        for burst in ((2, 0, 1), (0, 20, 25), (0, 3, 3), (0, -1, 2)):
            with pytest.raises(
                ValueError, match=r"burst must lie within 24 steps of 2 environment"
            ):
                plot_burst(trace, burst=burst)
        with pytest.raises(ValueError, match=r"action_names must be 2 names, got \['left'\]"):
            plot_burst(trace, action_names=["left"])
        with pytest.raises(ValueError, match="margin must be at least 1, got 0"):
            plot_burst(trace, margin=0)

    @pytest.mark.parametrize("action", ACTIONS)
    def test_of_every_kind_of_action(self, action: str) -> None:
        env = DummyVecEnv(
            [lambda: FlickerObservation(FixedLengthEnv(9, action_space=ACTIONS[action]))]
        )
        figure = plot_burst(traced(make_model(env), env))
        assert len(figure.axes[0].lines) == {"MultiDiscrete": 2, "Box": 2}.get(action, 3)

    @pytest.mark.parametrize("n_actions", [3, 7, 18])
    def test_many_actions_are_told_apart_without_colour_and_named_inside_the_picture(
        self, n_actions: int
    ) -> None:
        rng = np.random.default_rng(0)
        trace = trace_of(
            *self.TRACE,
            probabilities=rng.dirichlet(np.ones(n_actions), size=(24, 2)),
            actions=rng.integers(n_actions, size=(24, 2)),
        )
        names = [f"fire and turn {idx}" for idx in range(n_actions)]
        figure = plot_burst(trace, action_names=names)
        figure.canvas.draw()
        axes = figure.axes[0]
        looks = {(line.get_color(), line.get_linestyle(), str(line._dash_pattern))
                 for line in axes.lines}  # fmt: skip
        assert len(looks) == n_actions
        assert len({look[1:] for look in looks}) == min(n_actions, 4)
        box = axes.get_legend().get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert axes.get_window_extent().width > 0.7 * figure.bbox.width
        assert axes.get_window_extent().height > 150

    def test_without_matplotlib_says_what_installs_it(self, monkeypatch) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(ImportError, match=r'pip install "thrust-pomdp\[compare\]"'):
            plot_burst(trace_of(*self.TRACE))


class TestScript:
    @pytest.fixture
    def script(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.syspath_prepend(str(ROOT / "scripts"))
        path = ROOT / "scripts" / "look_inside.py"
        spec = importlib.util.spec_from_file_location("look_inside_script", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def test_draws_a_run_and_refuses_one_without_memory(self, tmp_path, script, capsys) -> None:
        for arm in ("lstm-prev-action", "mlp"):
            spec = RunSpec(arm, FLICKERING, 0, {}, 64, 1, 1)
            save_result(run(spec, save_to=tmp_path / spec.name), tmp_path / f"{spec.name}.json")
        out = tmp_path / "inside.png"
        command = ["--out", str(out), "--steps", "60", "--n-envs", "2", "--run"]
        assert script.main([*command, f"{tmp_path}/lstm-prev-action-seed0"]) == 0
        assert "blank frames in a row from step" in capsys.readouterr().out
        first = out.read_bytes()
        assert script.main([*command, f"{tmp_path}/lstm-prev-action-seed0"]) == 0
        assert out.read_bytes() == first
        assert script.main([*command, f"{tmp_path}/mlp-seed0"]) == 2
        assert "look_inside: model must have a recurrent policy" in capsys.readouterr().err
        assert script.main([*command, f"{tmp_path}/none"]) == 2
        assert "run must name a finished run" in capsys.readouterr().err


def masked_envs(action_space: spaces.Space, *lengths: int) -> DummyVecEnv:
    return DummyVecEnv([lambda n=n: ChangingMaskEnv(n, action_space) for n in lengths])


def masked_model(env: Any, **kwargs: Any) -> MaskableRecurrentPPO:
    model = MaskableRecurrentPPO(
        "MlpLstmPolicy", env, n_steps=8, batch_size=8, seed=0,
        policy_kwargs={"lstm_hidden_size": 8},
    )  # fmt: skip
    sharpen(model, 30.0)
    return model.learn(16, **kwargs)


class TestMasks:
    """A model trained with masks acts by them, in an environment that raises at what is forbidden.

    The masks are shown in the observations, so that a trace tells by itself what they were.
    """

    @pytest.mark.parametrize("deterministic", [False, True])
    @pytest.mark.parametrize("kind", MASKABLE)
    def test_actions_and_probabilities_are_those_of_predict_with_masks(
        self, kind: str, deterministic: bool
    ) -> None:
        model = masked_model(masked_envs(MASKABLE[kind], 5, 6))
        envs = [masked_envs(MASKABLE[kind], 5, 6) for _ in range(2)]
        for env in envs:
            env.seed(7)
        model.policy.seed_actions(0)
        trace = look_inside(model, envs[0], N_STEPS, deterministic)
        shown = trace.observations[..., : trace.action_masks.shape[-1]] == 1
        assert np.array_equal(trace.action_masks, shown)
        model.policy.seed_actions(0)
        obs, state, start = envs[1].reset(), None, np.ones(2, bool)
        for t in range(N_STEPS):
            masks = get_action_masks(envs[1])
            assert np.array_equal(trace.action_masks[t], masks)
            actions, state = model.predict(obs, state, start, deterministic, action_masks=masks)
            assert np.array_equal(trace.actions[t], actions)
            obs, _, start, _ = envs[1].step(actions)

    @pytest.mark.parametrize("kind", MASKABLE)
    def test_what_is_forbidden_has_probability_zero_and_the_rest_one(self, kind: str) -> None:
        space = MASKABLE[kind]
        model = masked_model(masked_envs(space, 5, 6))
        trace = look_inside(model, masked_envs(space, 5, 6), N_STEPS)
        parts = trace.probabilities
        if isinstance(space, spaces.MultiBinary):
            # Of each bit that of being one is told: as a row of masks has it, 0 and 1.
            both = np.stack([1 - parts, parts], axis=-1)
            parts = tuple(np.moveaxis(both, 2, 0))
        elif isinstance(space, spaces.Discrete):
            parts = (parts,)
        for part in parts:
            np.testing.assert_allclose(part.sum(axis=-1), 1.0, rtol=1e-5)
        flat = np.concatenate(parts, axis=-1)
        assert flat.shape == trace.action_masks.shape
        assert (flat[~trace.action_masks] == 0).all()
        assert (flat[trace.action_masks] > 0).any()
        choices = np.stack(
            [as_choices(space, actions) for actions in trace.actions.reshape(N_STEPS, 2, -1)]
        )
        chosen = np.take_along_axis(flat, choices, axis=-1)
        np.testing.assert_allclose(np.log(chosen).sum(axis=-1), trace.log_prob, atol=1e-4)

    def test_a_single_environment_is_asked_through_its_wrappers(self) -> None:
        env = gym.wrappers.TimeLimit(ChangingMaskEnv(50, MASKABLE["Discrete"]), 7)
        trace = look_inside(masked_model(masked_envs(MASKABLE["Discrete"], 5)), env, N_STEPS)
        assert trace.action_masks.shape == (N_STEPS, 1, 4)

    def test_a_policy_is_asked_for_masks_as_a_model_is(self) -> None:
        model = masked_model(masked_envs(MASKABLE["Discrete"], 5))
        trace = look_inside(model.policy, masked_envs(MASKABLE["Discrete"], 5), N_STEPS)
        assert trace.action_masks is not None

    def test_an_environment_without_masks_is_refused(self) -> None:
        space = MASKABLE["Discrete"]
        model, width = masked_model(masked_envs(space, 5)), ChangingMaskEnv(5, space).width
        seen = spaces.Box(-1, 1, (width + 2,), np.float32)
        env = DummyVecEnv([lambda: FixedLengthEnv(5, seen, space)])
        for one in (model, model.policy):
            with pytest.raises(ValueError, match=r"env must have a method action_masks\(\)"):
                look_inside(one, env, N_STEPS)
        model.use_masking = False
        assert look_inside(model, env, N_STEPS).action_masks is None

    def test_models_without_masks_do_not_look_at_any(self) -> None:
        env = fixed_length_envs(5, 6)
        assert look_inside(make_model(env), env, N_STEPS).action_masks is None

    def test_what_a_stranger_writes_around_it_agrees(self) -> None:
        """A masked agent by StatefulActor, by a plain loop over one environment, and here."""
        space = MASKABLE["MultiDiscrete"]
        model = masked_model(masked_envs(space, 5))
        env = masked_envs(space, 5)
        env.seed(7)
        trace = look_inside(model, env, N_STEPS, deterministic=True)
        single = ChangingMaskEnv(5, space)
        actor = StatefulActor(model, deterministic=True)
        obs, _ = single.reset(seed=7)
        for t in range(N_STEPS):
            masks = get_action_masks(single)
            action = actor.act(obs, action_masks=masks)
            assert np.array_equal(trace.observations[t, 0], obs)
            assert np.array_equal(trace.actions[t, 0], action)
            obs, _, terminated, truncated, _ = single.step(action)
            if terminated or truncated:
                obs, _ = single.reset()
                actor.reset()

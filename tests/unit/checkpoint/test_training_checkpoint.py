"""TrainingCheckpoint: a training that was interrupted ends as if it had not been."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from memories import LastFrames
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
)
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from thrust_pomdp import RecurrentPPO, TrainingCheckpoint, VecPreviousAction, make_vec_env
from thrust_pomdp.checkpoint.signals import EXIT_CODE
from thrust_pomdp.recurrent import LRU, GTrXL, MinGRU

N_ENVS, WINDOW, TOTAL = 3, 16, 480


class Killed(Exception):  # noqa: N818, it is no error
    """In place of kill -9, which scripts/kill_trials.py does."""


class KillAt(BaseCallback):
    """Raises in the middle of a window."""

    def __init__(self, steps: int | None) -> None:
        super().__init__()
        self.steps = steps

    def _on_step(self) -> bool:
        if self.steps is not None and self.num_timesteps >= self.steps:
            raise Killed
        return True

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


class Script:
    """What a user's script does; each run is a start of it in a new process's stead."""

    def __init__(self, path: Path, env_id: str = "BurstFlickeringCartPole-v0", **kwargs: Any):
        self.path, self.env_id, self.kwargs = path, env_id, kwargs
        self.log_interval = 3

    def env(self, seed: int) -> Any:
        return VecPreviousAction(make_vec_env(self.env_id, N_ENVS, seed=seed, normalize=True))

    def model(self) -> RecurrentPPO:
        arguments: dict[str, Any] = {
            "n_steps": WINDOW, "batch_size": 16, "n_epochs": 2, "seed": 0, **self.kwargs,
        }  # fmt: skip
        policy_kwargs = {"lstm_hidden_size": 8, **arguments.pop("policy_kwargs", {})}
        model = RecurrentPPO("MlpLstmPolicy", self.env(1), policy_kwargs=policy_kwargs, **arguments)
        self.logger = configure(str(self.path / "log"), ["csv", "json", "log"])
        model.set_logger(self.logger)
        return model

    def callbacks(self, kill_at: int | None, **options: Any) -> list[BaseCallback]:
        checkpoint = TrainingCheckpoint(self.path / "checkpoints", every=96, **options)
        evaluation = EvalCallback(
            self.env(2), eval_freq=20, n_eval_episodes=2, log_path=str(self.path / "log"),
            verbose=0,
        )  # fmt: skip
        return [evaluation, checkpoint, KillAt(kill_at)]

    def run(self, kill_at: int | None = None, total: int = TOTAL, **options: Any) -> RecurrentPPO:
        callbacks = self.callbacks(kill_at, **options)
        return self.learn(total, callback=callbacks, log_interval=self.log_interval)

    def learn(self, *args: Any, **kwargs: Any) -> RecurrentPPO:
        model = self.model()
        try:
            return model.learn(*args, **kwargs)
        finally:
            model.logger.close()

    def interrupted(self, *kills: int) -> RecurrentPPO:
        for kill_at in kills:
            with pytest.raises(Killed):
                self.run(kill_at)
        return self.run()

    def files(self) -> dict[str, Any]:
        with (self.path / "log" / "progress.csv").open(newline="") as file:
            rows = [
                {key: value for key, value in row.items() if key not in TIMES}
                for row in csv.DictReader(file)
            ]
        with np.load(self.path / "log" / "evaluations.npz") as found:
            return {"rows": rows, **{name: found[name].tolist() for name in found.files}}


TIMES = ("time/fps", "time/time_elapsed")


def assert_same(left: RecurrentPPO, right: RecurrentPPO) -> None:
    for model in (left, right):
        assert model.num_timesteps >= TOTAL
    for one, other in zip(_numbers(left), _numbers(right), strict=True):
        assert one[0] == other[0]
        assert np.array_equal(one[1], other[1]), one[0]


def _numbers(model: RecurrentPPO):
    yield from ((name, part.numpy()) for name, part in model.policy.state_dict().items())
    for key, state in model.policy.optimizer.state_dict()["state"].items():
        yield from ((f"{key} {name}", np.asarray(part)) for name, part in state.items())
    normalizer: Any = model.get_vec_normalize_env()
    yield "mean", normalizer.obs_rms.mean
    yield "var", normalizer.obs_rms.var
    yield "count", normalizer.obs_rms.count
    yield "returns", normalizer.returns
    yield "last observation", model._last_obs
    yield "next draw", th.get_rng_state().numpy()
    yield "next shuffle", model.rollout_buffer._generator.integers(100, size=3)


SETTINGS: dict[str, dict[str, Any]] = {
    "LSTM": {},
    "carried GRU in subsequences": {
        "policy_kwargs": {"rnn_class": nn.GRU}, "window_state": "carry", "sequence_length": 4,
    },
    "a memory of one's own": {
        "policy_kwargs": {"rnn_class": LastFrames}, "window_state": "carry",
    },
    "a carried gated transformer": {
        "policy_kwargs": {"rnn_class": GTrXL, "lstm_kwargs": {"context": 20}},
        "window_state": "carry",
    },
    "minGRU": {"policy_kwargs": {"rnn_class": MinGRU}},
    "carried LRU in subsequences": {
        "policy_kwargs": {"rnn_class": LRU}, "window_state": "carry", "sequence_length": 4,
    },
    "schedules": {"learning_rate": lambda progress: 1e-3 * progress, "clip_range": 0.3},
}  # fmt: skip


class TestGoesOn:
    @pytest.mark.parametrize("setting", SETTINGS)
    def test_bit_for_bit(self, setting, tmp_path):
        whole = Script(tmp_path / "whole", **SETTINGS[setting])
        expected = whole.run()
        script = Script(tmp_path / "killed", **SETTINGS[setting])
        assert_same(script.interrupted(130, 260, 270), expected)
        assert script.files() == whole.files()

    @pytest.mark.parametrize("env_id", ["TMaze-v0", "MaskedFlickeringCartPole-v0"])
    def test_in_other_environments(self, env_id, tmp_path):
        expected = Script(tmp_path / "whole", env_id).run()
        assert_same(Script(tmp_path / "killed", env_id).interrupted(230), expected)

    def test_killed_before_the_first_checkpoint(self, tmp_path):
        expected = Script(tmp_path / "whole").run()
        assert_same(Script(tmp_path / "killed").interrupted(50), expected)

    def test_a_finished_training_takes_no_step(self, tmp_path):
        script = Script(tmp_path)
        expected = script.run()
        files = script.files()
        again = script.run(kill_at=1)  # would raise at the first step
        assert_same(again, expected)
        assert script.files() == files

    def test_a_damaged_checkpoint_is_skipped(self, tmp_path):
        whole = Script(tmp_path / "whole")
        expected = whole.run()
        script = Script(tmp_path / "killed")
        with pytest.raises(Killed):
            script.run(400)
        latest = max((tmp_path / "killed" / "checkpoints").glob("*.safetensors"))
        latest.write_bytes(latest.read_bytes()[: latest.stat().st_size // 2])
        with pytest.warns(UserWarning, match=f"{latest.name}.*the checkpoint before it is taken"):
            model = script.run()
        assert_same(model, expected)

    def test_two_files_are_kept(self, tmp_path):
        with pytest.raises(Killed):
            Script(tmp_path).run(470)
        names = sorted(path.name for path in (tmp_path / "checkpoints").glob("*.safetensors"))
        assert names == ["000-000000000288.safetensors", "000-000000000384.safetensors"]
        Script(tmp_path).run()
        names = sorted(path.name for path in (tmp_path / "checkpoints").glob("*.safetensors"))
        assert names == ["000-000000000384.safetensors", "000-000000000480-end.safetensors"]

    @pytest.mark.parametrize("where", ["list", "callback list", "event callback"])
    def test_wherever_it_stands(self, where, tmp_path):
        def run(path, kill_at):
            script = Script(path)
            _, checkpoint, kill = script.callbacks(kill_at)
            callback: Any = [checkpoint, kill]
            if where == "callback list":
                callback = CallbackList([CallbackList([checkpoint]), kill])
            elif where == "event callback":
                callback = [EveryNTimesteps(50, checkpoint), kill]
            return script.learn(TOTAL, callback=callback)

        expected = run(tmp_path / "whole", None)
        with pytest.raises(Killed):
            run(tmp_path / "killed", 300)
        assert_same(run(tmp_path / "killed", None), expected)


class Drifts(gym.Env):
    """An environment of somebody's, which does not tell what it remembers."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.hidden, self.steps = np.zeros(2), 0
        return self.hidden.astype(np.float32), {}

    def step(self, action):
        self.hidden = 0.9 * self.hidden + self.np_random.normal(size=2) + 0.1 * float(action[0])
        self.steps += 1
        reward = -float(np.abs(self.hidden).sum())
        return self.hidden.astype(np.float32), reward, self.steps == 9, False, {}


class TellsItsState(Drifts):
    def get_state(self):
        return {
            "hidden": self.hidden, "steps": self.steps,
            "random": self.np_random.bit_generator.state,
        }  # fmt: skip

    def set_state(self, state):
        self.hidden, self.steps = state["hidden"], state["steps"]
        self.np_random.bit_generator.state = state["random"]


class CountsElsewhere(Drifts):
    """Keeps something that no pickle of it holds."""

    count = 0

    def step(self, action):
        CountsElsewhere.count += 1
        obs, *rest = super().step(action)
        return obs + np.float32(CountsElsewhere.count), *rest


class ForeignScript(Script):
    def __init__(self, path: Path, cls: type[gym.Env] = Drifts, **kwargs: Any) -> None:
        super().__init__(path, **kwargs)
        self.cls = cls

    def env(self, seed: int) -> VecNormalize:
        venv = DummyVecEnv([lambda: Monitor(self.cls()) for _ in range(N_ENVS)])
        venv.seed(seed)
        return VecNormalize(venv)


class TestEnvironmentsOfOthers:
    GSDE: ClassVar[dict[str, Any]] = {"use_sde": True, "sde_sample_freq": 5}

    def test_one_that_tells_its_state_is_exact(self, tmp_path):
        whole = ForeignScript(tmp_path / "whole", TellsItsState, **self.GSDE)
        expected = whole.run()
        script = ForeignScript(tmp_path / "killed", TellsItsState, **self.GSDE)
        assert_same(script.interrupted(130, 300), expected)
        assert script.files() == whole.files()

    def test_pickled_it_is_exact(self, tmp_path):
        whole = ForeignScript(tmp_path / "whole")
        expected = whole.run(pickle_envs=True)
        script = ForeignScript(tmp_path / "killed")
        with pytest.raises(Killed):
            script.run(300, pickle_envs=True)
        assert_same(script.run(pickle_envs=True), expected)
        assert script.files() == whole.files()

    def test_without_a_state_episodes_begin_anew_and_that_is_said(self, tmp_path):
        script = ForeignScript(tmp_path)
        with pytest.warns(UserWarning, match="would begin") as told, pytest.raises(Killed):
            script.run(300)
        assert [str(warning.message)[:40] for warning in told] == [
            "the training environment would begin new",
            "the evaluation (0 EvalCallback) environm",
        ]
        begun = []

        class Look(KillAt):
            def _on_rollout_start(self):
                begun.append(self.model._last_episode_starts.all())
                begun.append(self.model._last_lstm_states is None)

        evaluation, checkpoint, _ = script.callbacks(None)
        Look.__name__ = "KillAt"
        with pytest.warns(UserWarning, match="would begin new episodes"):
            script.learn(TOTAL, callback=[evaluation, checkpoint, Look(None)], log_interval=3)
        assert begun[:2] == [True, True]

    def test_a_pickle_that_is_not_exact_is_told_of(self, tmp_path):
        script = ForeignScript(tmp_path, CountsElsewhere)
        with pytest.warns(UserWarning, match="do not go on as they would have: CountsElsewhere"):
            script.run(pickle_envs=True)

    def test_pickles_are_read_where_that_is_asked_for_alone(self, tmp_path):
        script = ForeignScript(tmp_path)
        with pytest.raises(Killed):
            script.run(300, pickle_envs=True)
        for path in (tmp_path / "checkpoints").glob("*-envs.pkl"):
            path.write_bytes(b"no pickle, and not what was written")
        with pytest.warns(UserWarning, match="is not the one written; the checkpoint before"):
            script.run(pickle_envs=True)
        for path in (tmp_path / "checkpoints").glob("*-envs.pkl"):
            path.write_bytes(b"no pickle, and not what was written")
        with pytest.warns(UserWarning, match="would begin new episodes"):
            model = script.run(kill_at=1)
        assert model.num_timesteps == TOTAL


class TestSeveralCalls:
    """The common loop of learn(n, reset_num_timesteps=False)."""

    def run(self, path: Path, kill_at: int | None, anew: bool) -> tuple[RecurrentPPO, list[Any]]:
        script = Script(path)
        model, told = script.model(), []
        checkpoint = TrainingCheckpoint(path / "checkpoints", every=48)
        try:
            for _ in range(3):
                if anew:
                    checkpoint = TrainingCheckpoint(path / "checkpoints", every=48)
                model.learn(160, callback=[checkpoint, KillAt(kill_at)], reset_num_timesteps=False)
                told.append((model.num_timesteps, model.policy.value_net.bias.item()))
        finally:
            model.logger.close()
        return model, told

    @pytest.mark.parametrize("anew", [True, False])
    @pytest.mark.parametrize("kill_at", [100, 200, 380])
    def test_earlier_ones_return_what_they_had(self, anew, kill_at, tmp_path):
        expected, told = self.run(tmp_path / "whole", None, anew)
        with pytest.raises(Killed):
            self.run(tmp_path / "killed", kill_at, anew)
        model, again = self.run(tmp_path / "killed", None, anew)
        assert again == told
        assert_same(model, expected)


class TestRefusals:
    @pytest.fixture
    def script(self, tmp_path):
        script = Script(tmp_path)
        with pytest.raises(Killed):
            script.run(200)
        return script

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"gamma": 0.9}, "gamma was 0.99 and is 0.9"),
            ({"policy_kwargs": {"rnn_class": nn.GRU}}, "policy_kwargs was .* and is .*GRU"),
            ({"learning_rate": lambda progress: 1e-3 * progress}, r"learning_rate was 0.0003 and"),
            ({"seed": 1}, "seed was 0 and is 1"),
        ],
    )
    def test_another_training(self, script, kwargs, message):
        before = {path: path.read_bytes() for path in script.path.rglob("*") if path.is_file()}
        other = Script(script.path, **kwargs)
        with pytest.raises(ValueError, match=message):
            other.run()
        kept = [path for path in before if "checkpoints" in str(path)]
        assert all(path.read_bytes() == before[path] for path in kept)

    def test_another_target(self, script):
        message = r"total_timesteps was 480 and is 960.*load_into\(model\)"
        with pytest.raises(ValueError, match=message):
            script.run(total=960)
        script.run(total=960, resume=False)

    def test_a_new_training_goes_on_from_there(self, script, tmp_path):
        model = script.model()
        checkpoint = TrainingCheckpoint(script.path / "checkpoints")
        checkpoint.load_into(model)
        assert model.num_timesteps == 192
        assert model.get_vec_normalize_env().obs_rms.count > 100
        model.learn(96, reset_num_timesteps=False)
        assert model.num_timesteps == 288
        model.logger.close()
        # What it does next is what the training that goes on does.
        model = script.model()
        checkpoint.load_into(model)
        _, callback = model._setup_learn(96, None, False)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, WINDOW)
        rewards = model.rollout_buffer.rewards.copy()
        model.logger.close()
        same = script.run()
        assert same.num_timesteps == TOTAL
        assert rewards.shape == (WINDOW, N_ENVS)
        other = Script(tmp_path / "other", policy_kwargs={"lstm_hidden_size": 9}).model()
        with pytest.raises(ValueError, match="model must have the network of the checkpoint"):
            checkpoint.load_into(other)
        other.logger.close()
        with pytest.raises(ValueError, match="path must hold a checkpoint, there is none"):
            TrainingCheckpoint(tmp_path / "empty").load_into(model)

    def test_other_callbacks(self, script):
        with pytest.raises(ValueError, match="callback was .*EvalCallback.* and is"):
            script.learn(
                TOTAL,
                callback=TrainingCheckpoint(script.path / "checkpoints", every=96),
                log_interval=script.log_interval,
            )

    def test_must_needs_something(self, tmp_path, script):
        with pytest.raises(ValueError, match=r'resume="must" needs a checkpoint in .*empty'):
            Script(tmp_path / "empty").run(resume="must")
        script.run(resume="must")

    def test_another_algorithm(self, tmp_path):
        model = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8)
        with pytest.raises(ValueError, match="needs thrust_pomdp.RecurrentPPO.* got a PPO"):
            model.learn(8, callback=TrainingCheckpoint(tmp_path))

    def test_two_of_them(self, tmp_path):
        both = [TrainingCheckpoint(tmp_path / "a"), TrainingCheckpoint(tmp_path / "b")]
        with pytest.raises(ValueError, match="at most one TrainingCheckpoint, got 2"):
            Script(tmp_path).learn(TOTAL, callback=both)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"path": 3}, "path must be a folder's path, got 3"),
            ({"every": 0}, "every must be at least 1, got 0"),
            ({"resume": "maybe"}, "resume must be True, False or \"must\", got 'maybe'"),
            ({"on_signal": 3}, "on_signal must be"),
            ({"grace_seconds": -1}, "grace_seconds must be at least 0, got -1"),
        ],
    )
    def test_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            TrainingCheckpoint(**{"path": "a", **arguments})


class TestFilesystem:
    def test_a_full_disk_ends_no_training(self, tmp_path, monkeypatch):
        expected = Script(tmp_path / "whole").run()
        replace, failed = os.replace, []

        def full(source, target):
            if str(target).endswith(".safetensors") and len(failed) < 2:
                failed.append(target)
                raise OSError(28, "No space left on device")
            return replace(source, target)

        monkeypatch.setattr(os, "replace", full)
        script = Script(tmp_path / "full")
        with pytest.warns(UserWarning, match=r"could not be written .*No space left on device"):
            model = script.run()
        assert_same(model, expected)
        assert len(failed) == 2
        assert not list((tmp_path / "full" / "checkpoints").glob("*.tmp"))
        # The iteration after tried again.
        assert len(list((tmp_path / "full" / "checkpoints").glob("*.safetensors"))) == 2

    def test_where_nothing_can_be_written(self, tmp_path):
        (tmp_path / "checkpoints").write_text("a file in the folder's place")
        with pytest.warns(UserWarning, match="could not be written"):
            Script(tmp_path).run()

    def test_truncated_at_any_length(self, tmp_path):
        script = Script(tmp_path)
        with pytest.raises(Killed):
            script.run(200)
        latest, *others = sorted((tmp_path / "checkpoints").glob("*.safetensors"), reverse=True)
        whole, folder = latest.read_bytes(), script.callbacks(None)[1].folder
        for length in np.random.default_rng(0).integers(0, len(whole), size=50):
            latest.write_bytes(whole[:length])
            with pytest.warns(UserWarning, match="the checkpoint before it is taken"):
                file, _, _ = folder.read_latest(0, with_pickles=False)
            assert file.path == others[0]

    def test_two_processes_do_not_share_a_folder(self, tmp_path):
        program = textwrap.dedent(f"""
            from thrust_pomdp.checkpoint.folder import Folder
            folder = Folder({str(tmp_path)!r})
            folder.hold()
            print("held", flush=True)
            input()
        """)
        other = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert other.stdout is not None
            assert other.stdout.readline().strip() == b"held"
            with pytest.raises(ValueError, match="in use by another process"):
                Script(tmp_path).learn(TOTAL, callback=TrainingCheckpoint(tmp_path))
        finally:
            other.kill()
            other.communicate()
        Script(tmp_path).learn(TOTAL, callback=TrainingCheckpoint(tmp_path))


class Counts(BaseCallback):
    """A user's callback that says what it remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def _on_step(self) -> bool:
        self.seen.append(self.num_timesteps)
        return True

    def get_state(self) -> dict[str, Any]:
        return {"seen": np.array(self.seen)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"].tolist()


class CountsSilently(Counts):
    get_state = None
    set_state = None


class TestCallbacks:
    def test_a_users_own_goes_on(self, tmp_path):
        def run(kill_at: int | None) -> Counts:
            counts = Counts()
            checkpoint = TrainingCheckpoint(tmp_path / "checkpoints", every=96)
            Script(tmp_path).learn(TOTAL, callback=[counts, checkpoint, KillAt(kill_at)])
            return counts

        with pytest.raises(Killed):
            run(200)
        assert run(None).seen == list(range(N_ENVS, TOTAL + 1, N_ENVS))

    def test_what_cannot_be_kept_ends_no_training(self, tmp_path):
        class Strange(Counts):
            def get_state(self):
                return {"seen": object()}

        with pytest.warns(UserWarning, match=r"could not be written .*seen is a object: what is"):
            model = Script(tmp_path).learn(
                96, callback=[Strange(), TrainingCheckpoint(tmp_path / "checkpoints", every=48)]
            )
        assert model.num_timesteps == 96

    def test_one_that_does_not_say_is_told_of(self, tmp_path):
        with pytest.warns(UserWarning, match="^CountsSilently would start anew"):
            Script(tmp_path).learn(
                48, callback=[CountsSilently(), TrainingCheckpoint(tmp_path / "checkpoints")]
            )

    def test_what_stops_training_stops_it_at_the_same_step(self, tmp_path):
        def run(path: Path, kill_at: int | None) -> RecurrentPPO:
            script = Script(path)
            stop = StopTrainingOnNoModelImprovement(max_no_improvement_evals=2)
            evaluation = EvalCallback(
                script.env(2), eval_freq=20, n_eval_episodes=2, verbose=0, callback_after_eval=stop
            )
            callbacks = [
                StopTrainingOnMaxEpisodes(30), evaluation,
                TrainingCheckpoint(path / "checkpoints", every=48), KillAt(kill_at),
            ]  # fmt: skip
            return script.learn(4_800, callback=callbacks)

        expected = run(tmp_path / "whole", None)
        assert expected.num_timesteps < 4_800
        with pytest.raises(Killed):
            run(tmp_path / "killed", expected.num_timesteps - 60)
        model = run(tmp_path / "killed", None)
        assert model.num_timesteps == expected.num_timesteps
        again = run(tmp_path / "killed", 1)
        for one in (model, again):
            for left, right in zip(
                one.policy.parameters(), expected.policy.parameters(), strict=True
            ):
                assert th.equal(left, right)


class TestTensorBoard:
    def test_no_row_is_doubled_and_none_missing(self, tmp_path):
        pytest.importorskip("tensorboard")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        def run(path: Path, kill_at: int | None) -> None:
            script = Script(path, tensorboard_log=str(path / "tensorboard"))
            script.model = lambda: RecurrentPPO(  # type: ignore[method-assign]
                "MlpLstmPolicy", script.env(1), n_steps=WINDOW, seed=0,
                tensorboard_log=str(path / "tensorboard"), policy_kwargs={"lstm_hidden_size": 8},
            )  # fmt: skip
            script.log_interval = 1
            script.run(kill_at)

        run(tmp_path / "whole", None)
        for kill_at in (200, 330):
            with pytest.raises(Killed):
                run(tmp_path / "killed", kill_at)
        run(tmp_path / "killed", None)
        found = []
        for name in ("whole", "killed"):
            folders = sorted((tmp_path / name / "tensorboard").iterdir())
            assert [folder.name for folder in folders] == ["RecurrentPPO_1"]
            events = EventAccumulator(str(folders[0])).Reload()
            tags = [tag for tag in events.Tags()["scalars"] if tag != "time/fps"]
            found.append(
                {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}
            )
        assert found[0] == found[1]


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="a system without these signals")
class TestSignals:
    PROGRAM = """
        import os, signal, sys, time
        sys.path[:0] = {paths!r}
        from test_training_checkpoint import Script, KillAt, TOTAL
        from pathlib import Path
        from stable_baselines3.common.callbacks import BaseCallback

        class Ask(KillAt):
            def _on_step(self):
                if self.num_timesteps == 150:
                    for _ in range({times}):
                        os.kill(os.getpid(), signal.{name})
                return True

        script = Script(Path({path!r}))
        *others, _ = script.callbacks(None, on_signal=True, grace_seconds={grace})
        script.learn(TOTAL, callback=[*others, Ask(None)], log_interval=3)
    """

    def run(self, path: Path, name: str = "SIGTERM", times: int = 1, grace: float = 20.0):
        paths = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
        program = textwrap.dedent(self.PROGRAM).format(
            paths=paths, path=str(path), name=name, times=times, grace=grace
        )
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    @pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
    def test_the_iteration_is_finished_and_written(self, name, tmp_path):
        done = self.run(tmp_path, name)
        assert done.returncode == EXIT_CODE, done.stderr
        names = sorted(path.name for path in (tmp_path / "checkpoints").glob("*.safetensors"))
        assert names[-1] == "000-000000000192.safetensors"

    @pytest.mark.parametrize(("times", "grace"), [(2, 20.0), (1, 0.0)])
    def test_at_a_second_one_or_too_late_it_ends_at_once(self, times, grace, tmp_path):
        done = self.run(tmp_path, times=times, grace=grace)
        assert done.returncode == EXIT_CODE, done.stderr
        assert "Traceback" not in done.stderr

    def test_a_users_handler_is_left_alone(self, tmp_path):
        def handler(*_: Any) -> None:
            pass

        before = signal.signal(signal.SIGTERM, handler)
        try:
            with pytest.warns(UserWarning, match="on_signal=True leaves SIGTERM to the handler"):
                Script(tmp_path).run(on_signal=True)
            assert signal.getsignal(signal.SIGTERM) is handler
        finally:
            signal.signal(signal.SIGTERM, before)
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL

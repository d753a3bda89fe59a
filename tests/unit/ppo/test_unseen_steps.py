"""Steps that nobody looks at are those that are taken one by one, to the last bit."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
import torch as th
from helpers import sharpen
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EventCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
)
from stable_baselines3.common.vec_env import VecEnvWrapper
from torch import nn
from users_changes import CHANGES, Change

from thrust_pomdp import (
    RecurrentPPO,
    TrainingCheckpoint,
    VecNormalizeVisible,
    VecPreviousAction,
    make_vec_env,
)
from thrust_pomdp.envs.cartpole_physics import CartPolePhysics
from thrust_pomdp.ppo import code_between_steps
from thrust_pomdp.ppo.counting_callbacks import NEVER, steps_unseen
from thrust_pomdp.ppo.unseen_gate import against_compiled_steps
from thrust_pomdp.ppo.unseen_steps import UnseenSteps
from thrust_pomdp.recurrent.compiled import load_kernels
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.states import vec_state

N_STEPS = 40
OTHER_THREADS = code_between_steps._other_threads
ARRAYS = ("observations", "actions", "rewards", "values", "log_probs", "episode_starts")

#: Whether there are other threads is asked in one test only.
pytestmark = pytest.mark.usefixtures("one_thread")
needs_loops = pytest.mark.skipif(load_kernels() is None, reason="nothing is compiled")


class Looks(BaseCallback):
    """Defines ``_on_step``, so that every step is an ordinary one."""

    def _on_step(self) -> bool:
        return True


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests leave threads behind, such as those of torch's compiler."""
    monkeypatch.setattr(code_between_steps, "_other_threads", list)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the steps that were taken at once."""
    numbers: list[int] = []
    take = UnseenSteps._take

    def noting(self: UnseenSteps, *arguments: Any) -> int:
        numbers.append(take(self, *arguments))
        return numbers[-1]

    monkeypatch.setattr(UnseenSteps, "_take", noting)
    return numbers


def make_env(
    env_id: str = "FlickeringCartPole-v0",
    n_envs: int = 5,
    normalize: Any = True,
    previous: bool = True,
    **kwargs: Any,
) -> Any:
    env: Any = make_vec_env(env_id, n_envs, seed=3, env_kwargs=kwargs)
    if normalize:
        options = normalize if isinstance(normalize, dict) else {}
        env = VecNormalizeVisible(env, **options)
        # The first frames of a flagless environment are looked at one by one.
        env._watches = None
    return VecPreviousAction(env) if previous else env


def make_model(env: Any, **kwargs: Any) -> RecurrentPPO:
    policy_kwargs = {"lstm_hidden_size": 8, "net_arch": {"pi": [7], "vf": [6]}}
    policy_kwargs |= kwargs.pop("policy_kwargs", {})
    arguments: dict[str, Any] = {
        "n_steps": N_STEPS, "batch_size": None, "n_epochs": 2, "learning_rate": 1e-2, "seed": 1,
    }  # fmt: skip
    model = RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=policy_kwargs, **arguments | kwargs)
    sharpen(model)
    return model


def differences(ours: Any, plain: Any, path: str = "") -> list[str]:
    """Name what differs between two nested things, to the last bit."""
    if isinstance(ours, (list, tuple)):
        ours, plain = dict(enumerate(ours)), dict(enumerate(plain))
    if isinstance(ours, dict):
        if ours.keys() != plain.keys():
            return [path]
        found = (differences(ours[key], plain[key], f"{path}/{key}") for key in ours)
        return list(itertools.chain.from_iterable(found))
    if isinstance(ours, th.Tensor):
        ours, plain = ours.detach().numpy(), plain.detach().numpy()
    if isinstance(ours, np.ndarray):
        same = ours.dtype == plain.dtype and np.array_equal(ours, plain, equal_nan=True)
        return [] if same else [path]
    return [] if type(ours) is type(plain) and ours == plain else [path]


def everything(model: RecurrentPPO) -> dict[str, Any]:
    """Return all that a training has come to, wall time and what nothing draws from left out."""
    state = vec_state(model.env)
    for layer in state["layers"]:
        for part in [layer["state"], *(inner["state"] for inner in _inner(layer))]:
            for name in list(part.get("attributes", ())):
                if name.endswith("_space") or name == "_start_time":
                    del part["attributes"][name]
    buffer = model.rollout_buffer
    base: Any = model.env.unwrapped
    return {
        "buffer": {name: getattr(buffer, name) for name in (*ARRAYS, "advantages", "returns")},
        "initial": buffer.initial_state,
        "weights": dict(model.policy.state_dict()),
        "env": state,
        "obs": model._last_obs,
        "starts": model._last_episode_starts,
        "memory": model._last_lstm_states,
        "steps": (model.num_timesteps, model._action_noise.get_state()),
        "episodes": [(episode["r"], episode["l"]) for episode in model.ep_info_buffer],
        "reset_infos": base.reset_infos,
        "blanked": (base.blanked, getattr(base.env, "blanked", None)),
    }


def _inner(layer: dict[str, Any]) -> list[Any]:
    return layer["vector"]["layers"] if layer.get("vector") else []


def trained(env: Any, callback: Any, windows: int = 4, **kwargs: Any) -> RecurrentPPO:
    model = make_model(env, **kwargs)
    model.learn(windows * N_STEPS * env.num_envs, callback=callback)
    return model


@needs_loops
class TestAreTheStepsTakenOneByOne:
    @staticmethod
    def check(taken: list[int], env: dict[str, Any], **model: Any) -> None:
        ours = everything(trained(make_env(**env), None, **model))
        assert sum(taken) == 4 * (N_STEPS - 1)
        plain = everything(trained(make_env(**env), Looks(), **model))
        assert sum(taken) == 4 * (N_STEPS - 1)
        assert differences(ours, plain) == []
        lengths = [length for _, length in plain["episodes"]]
        assert len(lengths) > 5

    @pytest.mark.parametrize(
        "env_id",
        [
            *("FlickeringCartPole-v0", "BurstFlickeringCartPole-v0", "MaskedCartPole-v0"),
            *("MaskedFlickeringCartPole-v0", "FlickeringCartPole-p75-v0"),
        ],
    )
    @pytest.mark.parametrize("previous", [False, True])
    @pytest.mark.parametrize("normalize", [False, True])
    def test_whatever_the_environment(self, taken, env_id, previous, normalize):
        self.check(taken, {"env_id": env_id, "previous": previous, "normalize": normalize})

    @pytest.mark.parametrize("n_envs", [1, 2, 7, 8, 9, 130, 300])
    def test_however_many_environments(self, taken, n_envs):
        """NumPy adds returns up in eight sums from 8 numbers on, and in halves from 129 on."""
        self.check(taken, {"n_envs": n_envs})

    @pytest.mark.parametrize(
        "options",
        [
            {"norm_obs": False},
            {"norm_reward": False},
            {"training": False},
            {"clip_obs": 0.3, "clip_reward": 0.1, "gamma": 0.9, "epsilon": 1e-3},
        ],
        ids=str,
    )
    def test_however_it_is_normalised(self, taken, options):
        self.check(taken, {"normalize": options})

    @pytest.mark.parametrize("limit", [1, 2, 9])
    @pytest.mark.parametrize("normalize", [False, True])
    def test_where_time_limits_cut_episodes(self, taken, limit, normalize):
        """The value of the final observation is added: often for several environments at once."""
        self.check(taken, {"max_episode_steps": limit, "normalize": normalize})

    @pytest.mark.parametrize(
        "kwargs",
        [
            {"shared_lstm_critic_gradient": True, "net_arch": []},
            {"shared_lstm": True, "enable_critic_lstm": False},
            {"enable_critic_lstm": False, "activation_fn": nn.ReLU},
            {"net_arch": {"encoder": [5, 6], "pi": [], "vf": [9, 3]}},
            {"lstm_kwargs": {"bias": False}, "lstm_hidden_size": 5},
        ],
        ids=str,
    )
    def test_whatever_the_policy(self, taken, kwargs):
        env: dict[str, Any] = {"max_episode_steps": 12}
        self.check(taken, env, policy_kwargs=kwargs)

    @pytest.mark.parametrize("integrator", ["euler", "semi-implicit euler"])
    def test_whatever_the_integrator(self, taken, integrator):
        self.check(taken, {"kinematics_integrator": integrator, "n_envs": 9})

    def test_with_memory_carried_across_windows(self, taken):
        self.check(taken, {}, window_state="carry")

    def test_where_numbers_drawn_ahead_run_out(self, taken, monkeypatch):
        """Blocks are for 5 steps and for 1 step."""
        plain = make_env

        def with_short_blocks(**env: Any) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr("thrust_pomdp.envs.flicker.FlickerProcesses.BLOCK", 11)
                patch.setattr("thrust_pomdp.envs.native_vector.STARTS_AHEAD", 3)
                return plain(**env)

        monkeypatch.setattr("test_unseen_steps.make_env", with_short_blocks)
        self.check(taken, {})

    def test_constants_that_a_program_has_changed(self, taken):
        def env() -> Any:
            made = make_env()
            physics = made.unwrapped.env.physics
            physics._limits[0] = 0.3
            physics._gravity[:] = 3.0
            return made

        ours, plain = trained(env(), None), trained(env(), Looks())
        assert sum(taken) > 0
        assert differences(everything(ours), everything(plain)) == []

    def test_first_pass_is_the_collection(self, taken):
        model = trained(make_env(n_envs=9), None, learning_rate=0.0)
        assert sum(taken) > 0
        batch = model.rollout_buffer.to_sequence_batch()
        with th.no_grad():
            values, log_probs, _ = model.policy.evaluate_sequences(
                batch.observations, batch.actions, batch.initial_state, batch.layout
            )
        np.testing.assert_allclose(values, batch.old_values, rtol=0, atol=1e-5)
        np.testing.assert_allclose(log_probs, batch.old_log_prob, rtol=0, atol=1e-5)

    def test_are_taken_again_after_a_change_of_the_statistics(self, taken):
        """Switches of the normaliser are read anew, and so is what a program puts there."""

        def run(callback: Any) -> Any:
            env = make_env()
            model = trained(env, callback, windows=1)
            env.training = False
            model.learn(2 * N_STEPS * 5, callback=callback, reset_num_timesteps=False)
            env.training, env.norm_reward = True, False
            model.learn(2 * N_STEPS * 5, callback=callback, reset_num_timesteps=False)
            return everything(model)

        ours = run(None)
        assert sum(taken) == 5 * (N_STEPS - 1)
        assert differences(ours, run(Looks())) == []


class Notes(BaseCallback):
    """Notes what a callback is shown."""

    def __init__(self, stop_at: int = 10**9) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.stop_at = stop_at

    def _on_step(self) -> bool:
        names = (*("new_obs", "rewards", "dones", "actions", "values", "log_probs", "n_steps"),
                 *("obs_tensor", "episode_starts", "clipped_actions"))  # fmt: skip
        shown = {name: self.locals[name] for name in names}
        infos = [dict(info) for info in self.locals["infos"]]
        for info in infos:
            info.get("episode", {}).pop("t", None)
        self.seen.append((self.num_timesteps, shown, infos, self.model.rollout_buffer.pos))
        return self.model.num_timesteps < self.stop_at


@needs_loops
class TestCallbacks:
    """Who counts only is called at the steps at which it acts, and shown what it always was."""

    @staticmethod
    def run(callback: BaseCallback, looks: bool, windows: int = 5) -> RecurrentPPO:
        both: Any = [callback, Looks()] if looks else [callback]
        return trained(make_env(), both, windows)

    @pytest.mark.parametrize("every", [1, 7, 35, 101, 10_000])
    def test_every_so_many_steps(self, taken, every):
        ours, plain = Notes(), Notes()
        model = self.run(EveryNTimesteps(every, ours), looks=False)
        assert (sum(taken) > 0) == (every > 25)
        other = self.run(EveryNTimesteps(every, plain), looks=True)
        assert differences(ours.seen, plain.seen) == []
        assert differences(everything(model), everything(other)) == []
        assert ours.n_calls == plain.n_calls == len(plain.seen)

    def test_that_stop_the_training(self, taken):
        runs = []
        for looks in (False, True):
            notes = Notes(stop_at=505)
            runs.append(everything(self.run(EveryNTimesteps(100, notes), looks)))
        assert sum(taken) > 0
        assert runs[0]["steps"][0] == 600
        assert differences(*runs) == []

    def test_that_save_models(self, taken, tmp_path):
        weights = []
        for looks in (False, True):
            folder = tmp_path / str(looks)
            callback = CheckpointCallback(13, str(folder), save_vecnormalize=True)
            self.run(callback, looks)
            files = sorted(path.name for path in folder.iterdir())
            assert len(files) == 2 * (5 * N_STEPS // 13)
            models = [RecurrentPPO.load(folder / n) for n in files if n.endswith("zip")]
            weights.append([(m.num_timesteps, dict(m.policy.state_dict())) for m in models])
            assert callback.n_calls == 5 * N_STEPS
        assert sum(taken) > 0
        assert differences(*weights) == []

    def test_that_evaluate(self, taken, tmp_path):
        results = []
        for looks in (False, True):
            callback = EvalCallback(
                make_env(n_envs=2), eval_freq=30, n_eval_episodes=3, verbose=0,
                log_path=str(tmp_path / str(looks)), callback_after_eval=(notes := Notes()),
            )  # fmt: skip
            model = self.run(callback, looks)
            results.append((notes.seen, callback.evaluations_results, everything(model)))
            assert callback.evaluations_timesteps == [150, 300, 450, 600, 750, 900]
        assert sum(taken) > 0
        assert differences(*results) == []

    @pytest.mark.parametrize("most", [1, 9])
    def test_that_count_episodes(self, taken, most):
        results = []
        for looks in (False, True):
            callback = StopTrainingOnMaxEpisodes(most)
            model = self.run(callback, looks)
            results.append((callback.n_episodes, everything(model)))
        assert (sum(taken) > 0) == (most > 1)
        assert differences(*results) == []

    @pytest.mark.filterwarnings("ignore:rich is experimental")
    def test_progress_bars_reach_the_end(self, taken):
        pytest.importorskip("rich")
        ours = make_model(make_env())
        ours.learn(3 * N_STEPS * 5, progress_bar=True)
        assert sum(taken) == 3 * (N_STEPS - 1)

    def test_checkpoints_of_training(self, taken, tmp_path):
        ours = trained(make_env(), TrainingCheckpoint(tmp_path / "a", every=200))
        assert sum(taken) == 4 * (N_STEPS - 1)
        plain = trained(make_env(), [TrainingCheckpoint(tmp_path / "b", every=200), Looks()])
        assert differences(everything(ours), everything(plain)) == []

    def test_ones_own_see_every_step(self):
        class OwnCheckpoint(CheckpointCallback):
            def _on_step(self) -> bool:
                return True

        class OwnLocals(EventCallback):
            def update_locals(self, locals_: dict[str, Any]) -> None:
                self.locals.update(locals_)

        class OwnEvent(EventCallback):
            def _on_rollout_end(self) -> None:
                pass

        class OwnCount(EventCallback):
            n_calls = property(lambda self: 0, lambda self, value: None)

        replaced = EventCallback()
        replaced._on_step = lambda: True  # type: ignore[method-assign]
        child = EveryNTimesteps(10**6, OwnLocals())
        child.model = type("Model", (), {"num_timesteps": 0})()  # type: ignore[assignment]
        for callback in (Looks(), OwnCheckpoint(10, "x"), OwnLocals(), OwnCount(), replaced, child):
            assert steps_unseen(callback, 4) == 0
            assert steps_unseen(CallbackList([ConvertCallback(None), callback]), 4) == 0
        assert steps_unseen(ConvertCallback(lambda *_: True), 4) == 0
        assert steps_unseen(ConvertCallback(None), 4) == NEVER
        assert steps_unseen(OwnEvent(), 4) == NEVER
        assert steps_unseen(CheckpointCallback(10, "x"), 4) == 9


def in_mid_rollout(change: Change, n_envs: int) -> EveryNTimesteps:
    """Make the change after nine steps, from a callback that acts there only."""

    class Applies(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 1 and change.moment == "mid":
                change.apply(self.model)
            return True

    return EveryNTimesteps(9 * n_envs, Applies())


@needs_loops
# What torch's compiler looks at while it compiles the heads.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
class TestUsersChanges:
    @pytest.mark.parametrize(
        "name", [name for name, change in CHANGES.items() if change.actions == "Discrete"]
    )
    def test_of_policies_hold_at_steps_that_nobody_looks_at(self, name, taken):
        change, outcomes = CHANGES[name], []
        for looks in (False, True):
            kwargs = dict(change.kwargs)
            env = make_env(normalize=False, previous=False)
            model = RecurrentPPO(
                change.policy, env, n_steps=24, batch_size=None, n_epochs=1, seed=3,
                policy_kwargs={"lstm_hidden_size": 8, "net_arch": {"pi": [7], "vf": [7]}, **kwargs},
            )  # fmt: skip
            sharpen(model)
            model.undo = None
            th.manual_seed(5)
            try:
                if change.moment == "before":
                    change.apply(model)
                callbacks = [in_mid_rollout(change, 5), *([Looks()] if looks else [])]
                model.learn(2 * 24 * 5, callback=callbacks)
            finally:
                if model.undo is not None:
                    model.undo.remove()
            buffer = model.rollout_buffer
            outcomes.append([getattr(buffer, part).copy() for part in ARRAYS])
        assert differences(*outcomes) == []

    @staticmethod
    def changes() -> dict[str, Any]:
        def fallen(env: Any) -> None:
            plain = env.unwrapped.env.physics.fallen
            env.unwrapped.env.physics.fallen = lambda: plain() | (np.arange(5) == 3)

        def step(env: Any) -> None:
            plain = env.unwrapped.env.step

            def doubled(actions: Any) -> Any:
                obs, rewards, *rest = plain(actions)
                return obs, 2 * rewards, *rest

            env.unwrapped.env.step = doubled

        def rewards(env: Any) -> None:
            env.venv.normalize_reward = lambda reward: (3 * reward).astype(np.float32)

        def statistics(env: Any) -> None:
            class Frozen(type(env.venv.obs_rms)):
                def update_from_moments(self, *_: Any) -> None:
                    pass

            env.venv.obs_rms = Frozen(shape=(4,))

        def one_update(env: Any) -> None:
            env.venv.ret_rms.update_from_moments = lambda *_: None

        def encoding(env: Any) -> None:
            env.encoding._encode._rows[:] = 0.5

        def streams(env: Any) -> None:
            env.unwrapped.env._flicker.next_frames = lambda restarted=None: np.ones(5, bool)

        def limit(env: Any) -> None:
            env.unwrapped.env._deadlines[:] = 3

        def sensed(env: Any) -> None:
            env.unwrapped.env.physics.sensed = lambda rows: np.ones((4, 5))

        def outer_step(env: Any) -> None:
            plain = env.step
            env.step = lambda actions: plain(1 - actions)

        def state(env: Any) -> None:
            env.unwrapped.env.single.expose_state = True

        return {
            f.__name__: f
            for f in (fallen, step, rewards, statistics, one_update, encoding, streams, limit,
                      sensed, outer_step, state)
        }  # fmt: skip

    @pytest.mark.parametrize("name", sorted(changes()))
    @pytest.mark.parametrize("moment", ["before", "mid"])
    def test_of_environments_hold_at_steps_that_nobody_looks_at(self, name, moment):
        results = []
        for looks in (False, True):
            change = Change(lambda model: self.changes()[name](model.env), moment)
            env = make_env()
            model = make_model(env)
            model.learn(N_STEPS * 5)
            if moment == "before":
                self.changes()[name](model.env)
            callbacks = [in_mid_rollout(change, 5), *([Looks()] if looks else [])]
            model.learn(2 * N_STEPS * 5, callback=callbacks, reset_num_timesteps=False)
            results.append({part: getattr(model.rollout_buffer, part) for part in ARRAYS})
        assert differences(*results) == []

    @pytest.mark.parametrize("name", sorted(changes()))
    def test_of_environments_are_named(self, name):
        model = trained(make_env(), None, windows=1)
        assert against_compiled_steps(model.policy, model.env) is None
        self.changes()[name](model.env)
        reason = against_compiled_steps(model.policy, model.env)
        assert (reason is None) == (name == "limit")


@needs_loops
class TestReasons:
    @staticmethod
    def reason(env: Any, **kwargs: Any) -> str | None:
        model = make_model(env, **kwargs)
        model.env.reset()
        return against_compiled_steps(model.policy, model.env)

    def test_are_none_for_what_the_loop_knows(self):
        assert self.reason(make_env()) is None
        model = make_model(make_env())
        model.env.reset()
        assert model.fast_paths()["many steps at once"] == "used"

    def test_name_what_the_loop_does_not_know(self):
        class OwnWrapper(VecEnvWrapper):
            def reset(self) -> Any:
                return self.venv.reset()

            def step_wait(self) -> Any:
                return self.venv.step_wait()

        class OwnNormaliser(VecNormalizeVisible):
            pass

        inside = make_env(normalize=False, previous=False)
        assert "OwnWrapper" in str(self.reason(OwnWrapper(inside)))
        assert "OwnNormaliser" in str(self.reason(OwnNormaliser(inside)))
        late = VecNormalizeVisible(inside, update="window")
        assert "at their end" in str(self.reason(late))
        assert "TMazeVectorEnv" in str(self.reason(make_vec_env("TMaze-v0", 2)))
        assert "GRU" in str(self.reason(make_env(), policy_kwargs={"rnn_class": nn.GRU}))
        assert "2 layers" in str(self.reason(make_env(), policy_kwargs={"n_lstm_layers": 2}))
        assert "LayerNorm" in str(self.reason(make_env(), policy_kwargs={"layer_norm": True}))

    def test_a_class_that_was_changed_is_named(self, monkeypatch):
        model = make_model(make_env())
        model.env.reset()
        for cls, name in (
            (CartPolePhysics, "fallen"),
            (GymnasiumVecEnv, "step_wait"),
            (VecNormalizeVisible, "_normalize_obs"),
            (VecPreviousAction, "step_wait"),
        ):
            with monkeypatch.context() as patch:
                plain = getattr(cls, name)
                patch.setattr(cls, name, lambda self, *args, plain=plain: plain(self, *args))
                assert f"{name} was replaced" in str(
                    against_compiled_steps(model.policy, model.env)
                )
        assert against_compiled_steps(model.policy, model.env) is None

    def test_windows_cut_into_subsequences_are_taken_step_by_step(self, taken):
        trained(make_env(), None, sequence_length=10)
        assert taken == []

    def test_a_model_of_ones_own_is_asked_at_every_step(self, taken):
        class Own(RecurrentPPO):
            def _update_info_buffer(self, infos: Any, dones: Any = None) -> None:
                super()._update_info_buffer(infos, dones)

        model = Own("MlpLstmPolicy", make_env(), n_steps=N_STEPS, batch_size=None)
        model.learn(N_STEPS * 5)
        assert taken == []

    def test_other_threads_may_change_things(self, taken, monkeypatch):
        monkeypatch.setattr(code_between_steps, "_other_threads", OTHER_THREADS)
        ends = threading.Event()
        thread = threading.Thread(target=ends.wait)
        thread.start()
        try:
            trained(make_env(), None)
        finally:
            ends.set()
            thread.join()
        assert taken == []

    def test_without_compiled_loops_steps_are_ordinary(self, monkeypatch, taken):
        monkeypatch.setattr("thrust_pomdp.recurrent.compiled.load_kernels", lambda: None)
        trained(make_env(), None)
        assert taken == []

    def test_observations_that_are_not_finite_are_named(self, taken):
        env = make_env(normalize=False)
        model = make_model(env)
        model.learn(N_STEPS * 5)
        env.unwrapped.env.physics._limits[:] = np.inf
        env.unwrapped.env.physics._gravity[2] = np.inf
        with pytest.raises(ValueError, match="non-finite observation of environment 2 at step "):
            model.learn(N_STEPS * 5, reset_num_timesteps=False)

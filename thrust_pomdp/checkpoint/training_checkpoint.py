"""The callback that makes a training one that can be killed."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.arguments import check_count, check_flag
from thrust_pomdp.checkpoint.arguments import described, first_difference, versions
from thrust_pomdp.checkpoint.callback_states import (
    callback_states,
    set_callback_states,
    without_state,
)
from thrust_pomdp.checkpoint.folder import Folder
from thrust_pomdp.checkpoint.log_files import log_state, set_log_state
from thrust_pomdp.checkpoint.model_state import (
    model_state,
    restart_episodes,
    set_model_state,
    set_random_state,
)
from thrust_pomdp.checkpoint.processes import OneProcess, processes_of
from thrust_pomdp.checkpoint.signals import EXIT_CODE, EndOnSignal
from thrust_pomdp.errors import ArgumentError, warn_user
from thrust_pomdp.ppo.counting_callbacks import idle_between_windows
from thrust_pomdp.ppo.resumable_learning import TakesUpTraining, each_callback
from thrust_pomdp.vec_env.pickled_states import PicklingTrial, pickled_envs, set_pickled_envs
from thrust_pomdp.vec_env.states import missing, set_vec_state, vec_state

#: What checkpoints call the environment of the training, beside those of evaluations.
_TRAINING = "training"


@idle_between_windows
class TrainingCheckpoint(TakesUpTraining):
    """Lets a script that is killed at any moment and started again end where it would have ended.

    >>> from thrust_pomdp import RecurrentPPO, TrainingCheckpoint
    >>> model = RecurrentPPO("MlpLstmPolicy", env, seed=0)  # doctest: +SKIP
    >>> model.learn(2_000_000, callback=TrainingCheckpoint("runs/a"))  # doctest: +SKIP

    The same script again goes on from the latest checkpoint; once it has ended it takes no step
    and has the trained model. Several calls of ``learn`` are told apart by their order. What is
    held, and what makes it exact, is on the page ``docs/checkpoints.md``.

    Files are arrays and JSON; reading them runs no code. With ``pickle_envs=True`` environments
    that do not tell their state are pickled beside them, and **reading that runs what it holds**:
    only in folders that nobody else writes to.

    :param path: folder of the files
    :param every: steps of all environments together between two checkpoints; written at the end of
        an iteration
    :param resume: True goes on where there is something to go on from; False starts anew and
        removes what is there; "must" refuses to start from nothing
    :param pickle_envs: pickle environments that have no ``get_state`` and ``set_state``
    :param on_signal: at SIGTERM (and SIGUSR1) end the iteration, write, and exit with code 75; at a
        second signal, or after ``grace_seconds``, exit at once
    :param grace_seconds: see there
    :param verbose: 1 tells of each checkpoint
    :raises ValueError: naming the argument, the rule and the value
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        every: int = 50_000,
        *,
        resume: bool | str = True,
        pickle_envs: bool = False,
        on_signal: bool = False,
        grace_seconds: float = 20.0,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentError(f"path must be a folder's path, got {path!r}")
        if not isinstance(resume, bool) and resume != "must":
            raise ArgumentError(f'resume must be True, False or "must", got {resume!r}')
        self.folder = Folder(path)
        self.every = check_count("every", every)
        self.resume = resume
        self.pickle_envs = check_flag("pickle_envs", pickle_envs)
        self.on_signal = check_flag("on_signal", on_signal)
        self._signal = EndOnSignal(grace_seconds)
        self._is_begun = False
        self._call = 0
        self._description: dict[str, Any] = {}
        self._found: Any = None
        self._callback: BaseCallback = self
        self._trial: PicklingTrial | None = None
        self._told_of: set[str] = set()
        #: Steps at the latest checkpoint.
        self._written_at = 0
        self._processes = OneProcess()

    def load_into(self, model: Any) -> None:
        """Put a model and its environment where the latest checkpoint is, for a new training.

        Weights, optimiser, counters, streams, and the statistics and episodes of the environment;
        neither callbacks nor logs. Then ``model.learn(n, reset_num_timesteps=False)`` takes n more
        steps, with schedules and a folder of its own.

        :param model: a ``RecurrentPPO`` with a network and an environment of the same kind
        :raises ValueError: if there is no checkpoint, or it does not fit
        """
        files = self.folder.files()
        found = self.folder.read_latest(files[0].call, self.pickle_envs) if files else None
        if found is None:
            raise ArgumentError(f"path must hold a checkpoint, there is none in {self.folder.path}")
        _, tree, pickles = found
        before = {name: list(part.shape) for name, part in model.policy.state_dict().items()}
        saved = {name: list(part.shape) for name, part in tree["model"]["weights"].items()}
        difference = first_difference(saved, before)
        if difference is not None:
            raise ArgumentError(f"model must have the network of the checkpoint: {difference}")
        tree = processes_of(model).own(tree, model)
        set_model_state(model, tree["model"])
        _set_env_states(model, {_TRAINING: model.env}, tree["envs"], pickles)
        set_random_state(model, tree["model"]["random"])

    # What RecurrentPPO.learn calls.

    def begin(self, model: Any, arguments: dict[str, Any]) -> None:
        """Look what there is, and refuse it if it belongs to another training."""
        self._processes = processes_of(model)
        is_writer = self._processes.is_writer
        if is_writer:
            self.folder.hold()
        # A model counts its calls itself, since each may have been given another callback.
        counts = vars(model).setdefault("_learn_calls", {})
        key = str(self.folder.path.resolve())
        self._call = counts.get(key, 0)
        counts[key] = self._call + 1
        if self._call == 0 and self.resume is False and is_writer:
            self.folder.clear()
        self._description = described(model, arguments)
        found = self.folder.read_latest(self._call, self.pickle_envs) if is_writer else None
        self._found = self._processes.from_writer(found)
        if self._found is None:
            if self._call == 0 and self.resume == "must":
                raise ArgumentError(
                    f'resume="must" needs a checkpoint in {self.folder.path}, there is none'
                )
        else:
            self._check_same(self._found[1])
        self._is_begun = True

    def _check_same(self, tree: Any) -> None:
        """Refuse to go on with other arguments; warn where versions differ."""
        difference = first_difference(tree["description"], self._description)
        if difference is not None:
            raise ArgumentError(
                f"the training in {self.folder.path} was another one: {difference}. Take the same "
                "arguments to go on with it, another folder or resume=False for a new training. A "
                "new training that goes on from where this one is: "
                f'TrainingCheckpoint("{self.folder.path}").load_into(model), then model.learn(..., '
                "reset_num_timesteps=False)"
            )
        difference = first_difference(tree["versions"], versions())
        if difference is not None:
            warn_user(
                f"{difference}: training goes on from the checkpoint, but not bit for bit as it "
                "would have"
            )

    def restore(self, callback: BaseCallback) -> tuple[int, bool]:
        """Put model, environments, callbacks and logger where they were."""
        self._callback = callback
        self._written_at = self.model.num_timesteps
        self._tell_what_is_not_held()
        if self.on_signal:
            self._signal.install()
        if self._found is None:
            self._try_pickling()
            return 0, False
        (file, tree, pickles), self._found = self._found, None
        if self._processes.is_writer:
            set_callback_states(callback, tree["callbacks"])
            set_log_state(self.model.logger, tree["logger"])
        tree = self._processes.own(tree, self.model)
        set_model_state(self.model, tree["model"])
        _set_env_states(self.model, self._envs(), tree["envs"], pickles)
        self._try_pickling()
        # Last, since all of that may draw.
        set_random_state(self.model, tree["model"]["random"])
        self._written_at = file.steps
        if self.verbose >= 1 and self._processes.is_writer:
            print(f"TrainingCheckpoint: goes on after {file.steps} steps, from {file.path}")
        iteration: int = tree["iteration"]
        return iteration, file.is_end

    def after_iteration(self, iteration: int) -> None:
        """Write if it is time, and end if that was asked for."""
        self._tell_of_pickling()
        steps = self.model.num_timesteps
        is_due = steps // self.every > self._written_at // self.every
        # The end, which is written next, makes a checkpoint of it superfluous.
        is_last = steps >= self.model._total_timesteps
        is_asked = self.on_signal and self._processes.any_of(self._signal.is_asked)
        if (is_due and not is_last) or is_asked:
            self._write(iteration, is_end=False)
        if is_asked:
            raise SystemExit(EXIT_CODE)

    def after_learning(self, iteration: int) -> None:
        """Write the state in which a call of ``learn`` ended."""
        self._write(iteration, is_end=True)

    def leave(self) -> None:
        """Let others use the folder, and signals be what they were."""
        if self._trial is not None:
            self._trial.stop()
            self._trial = None
        self._is_begun = False
        self._signal.remove()
        self.folder.release()

    def _write(self, iteration: int, is_end: bool) -> None:
        steps, envs = self.model.num_timesteps, self._envs()
        states = {name: vec_state(env) for name, env in envs.items()}
        self._tell_what_lacks(states)
        lacking = {name: env for name, env in envs.items() if missing(states[name])}
        pickles = None
        if self.pickle_envs and lacking:
            pickles = pickle.dumps({name: pickled_envs(env) for name, env in lacking.items()})
        tree = {
            "description": self._description,
            "versions": versions(),
            "iteration": iteration,
            "model": model_state(self.model),
            "callbacks": callback_states(self._callback),
            "logger": log_state(self.model.logger),
            "envs": states,
        }
        tree = self._processes.whole(tree)
        is_written = False
        if self._processes.is_writer:
            is_written = self.folder.write(self._call, steps, is_end, tree, pickles)
        if self._processes.from_writer(is_written):
            self._written_at = steps
            if self.verbose >= 1 and self._processes.is_writer:
                print(f"TrainingCheckpoint: written after {steps} steps")

    def _envs(self) -> dict[str, VecEnv]:
        """Return the environments that training goes on in: its own, and those of evaluations.

        One in which nothing was evaluated yet is as it was made, and need not tell its state,
        which it may not have before it is reset.
        """
        assert self.model.env is not None
        found = {_TRAINING: self.model.env}
        for path, part in each_callback(self._callback):
            if not isinstance(part, EvalCallback) or part.last_mean_reward == -np.inf:
                continue
            if part.eval_env not in found.values():
                found[f"evaluation ({path} {type(part).__name__})"] = part.eval_env
        return found

    def _tell_what_lacks(self, states: dict[str, Any]) -> None:
        """Warn once of each environment that does not tell its state."""
        for name, state in states.items():
            lacks = missing(state) if name not in self._told_of else []
            self._told_of.add(name)
            if lacks and not self.pickle_envs:
                warn_user(
                    f"the {name} environment would begin new episodes where this training is taken "
                    f"up: {'; '.join(lacks)}. Give it get_state() and set_state(state), or pass "
                    "pickle_envs=True"
                )

    def _try_pickling(self) -> None:
        """Begin to find out whether pickled environments go on exactly, beside one iteration."""
        assert self.model.env is not None
        if self.pickle_envs and missing(vec_state(self.model.env)):
            self._trial = PicklingTrial(self.model.env)

    def _tell_of_pickling(self) -> None:
        if self._trial is None:
            return
        trial, self._trial = self._trial, None
        difference = trial.finish()
        if difference is not None:
            warn_user(
                f"pickled environments do not go on as they would have: {difference}. Where this "
                "training is taken up it will be another one from there"
            )

    def _tell_what_is_not_held(self) -> None:
        """Warn once of what starts anew where training is taken up."""
        assert self.model.env is not None
        self._tell_what_lacks({_TRAINING: vec_state(self.model.env)})
        forgetful = without_state(self._callback)
        if forgetful:
            warn_user(
                f"{', '.join(forgetful)} would start anew where this training is taken up: give "
                "such callbacks get_state() and set_state(state)"
            )

    # Callbacks of SB3's.

    def _on_training_start(self) -> None:
        if not self._is_begun:
            raise ArgumentError(
                f"TrainingCheckpoint needs thrust_pomdp.RecurrentPPO, whose learn() it takes part "
                f"in, got a {type(self.model).__name__}"
            )

    def _on_step(self) -> bool:
        return True


def _set_env_states(
    model: Any, envs: dict[str, VecEnv], states: dict[str, Any], pickles: bytes | None
) -> None:
    """Put environments where they were, the training's to new episodes where that cannot be."""
    pickled = {} if pickles is None else pickle.loads(pickles)
    for name, env in envs.items():
        if name != _TRAINING:
            env.reset()  # as it had been, since a user's get_state may need that
        if name in pickled:
            set_pickled_envs(env, pickled[name])
        lacks = set_vec_state(env, states[name])
        if lacks and name == _TRAINING and name not in pickled:
            restart_episodes(model)

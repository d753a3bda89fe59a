"""Environments that have no state of their own, kept whole in pickles, and whether that is exact.

For environments of others, where somebody asked for it: a pickle runs code when it is read, so
:func:`set_pickled_envs` is for files that the reader wrote. Whether an environment goes on from its
pickle as it would have gone on itself is not a matter of opinion: :class:`PicklingTrial` tries it,
beside a training, on copies.
"""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import torch as th
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.vec_env.differences import first_difference
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.layer import check_venv
from thrust_pomdp.vec_env.workers import DOOR, in_workers
from thrust_pomdp.wrappers.frame_order import layers_inwards

# ------------------------------------------------------------------------ into pickles and back


def pickled_envs(venv: VecEnv) -> list[bytes]:
    """Return every single environment as a pickle, its wrappers included.

    Open results' files of ``Monitor`` stay where they are; ``vec_state`` holds their text.

    :param venv: the vectorised environment, between two steps; it is not changed
    :raises ValueError: naming the environment that cannot be pickled, and for a ``VecEnv`` whose
        single environments are not to be had
    """
    base = _base_of(venv)
    if isinstance(base, SubprocVecEnv):
        return in_workers(base, pickled_env)
    return [pickled_env(env) for env in _envs_of(base)]


def set_pickled_envs(venv: VecEnv, pickles: Sequence[bytes]) -> None:
    """Go on with environments from their pickles.

    The outermost objects stay, all inside of them are others than before. Call
    ``set_vec_state`` afterwards, for the vectorised environment's own layers.

    .. warning::
        A pickle can run any code when it is read: read only what you trust.

    :param venv: a vectorised environment made with the same arguments, between two steps
    :param pickles: what :func:`pickled_envs` returned
    :raises ValueError: for other environments than these, or another number of them
    """
    base = _base_of(venv)
    if len(pickles) != base.num_envs:
        raise ArgumentError(
            f"pickles must be one for each of the {base.num_envs} environments, got {len(pickles)}"
        )
    if isinstance(base, SubprocVecEnv):
        in_workers(base, become_pickled, [(data,) for data in pickles])
        return
    envs = _envs_of(base)
    copies = [_unpickled(data, _writers(env)) for env, data in zip(envs, pickles, strict=True)]
    for env, copy in zip(envs, copies, strict=True):
        _check_class(env, copy)
    for env, copy in zip(envs, copies, strict=True):
        _become(env, copy)


def pickled_env(env: Any) -> bytes:
    """Return one environment and its wrappers as a pickle.

    :raises ValueError: if it cannot be pickled
    """
    file = io.BytesIO()
    try:
        _Pickler(file, _writers(env)).dump(env)
    except Exception as error:  # what cannot be pickled can fail in any way
        raise ArgumentError(
            f"{type(env.unwrapped).__name__} cannot be pickled: {type(error).__name__}: {error}"
        ) from error
    return file.getvalue()


def become_pickled(env: Any, data: bytes) -> None:
    """Let an environment be what :func:`pickled_env` returned of one.

    :raises ValueError: if that was of another class
    """
    copy = _unpickled(data, _writers(env))
    _check_class(env, copy)
    _become(env, copy)


def _check_class(env: Any, copy: Any) -> None:
    if type(copy) is not type(env) and _name(copy) != _name(env):
        raise ArgumentError(f"pickles must be of a {_name(env)}, got one of a {_name(copy)}")


def _name(env: Any) -> str:
    return f"{type(env).__module__}.{type(env).__qualname__}"


def _become(env: Any, copy: Any) -> None:
    own = vars(env)
    own.clear()
    own.update(vars(copy))


def _writers(env: Any) -> list[Any]:
    """List the results' files that are open around an environment, from the outside in."""
    found = [vars(layer).get("results_writer") for layer in layers_inwards(env)]
    return [writer for writer in found if writer is not None]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, writers: list[Any]) -> None:
        super().__init__(file)
        self._writers = writers

    def persistent_id(self, thing: Any) -> int | None:
        """Tell which of the open files something is: they are not pickled."""
        return next((idx for idx, writer in enumerate(self._writers) if writer is thing), None)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, writers: list[Any]) -> None:
        super().__init__(file)
        self._writers = writers

    def persistent_load(self, pid: Any) -> Any:
        """Return the open file; None in a copy that is not to write any."""
        return self._writers[pid] if pid < len(self._writers) else None


def _unpickled(data: bytes, writers: list[Any]) -> Any:
    return _Unpickler(io.BytesIO(data), writers).load()


def _base_of(venv: VecEnv) -> VecEnv:
    check_venv("venv", venv)
    base = venv.unwrapped
    if type(base) is SubprocVecEnv or _envs_of(base) is not None:
        return base
    raise ArgumentError(
        "venv must be a DummyVecEnv, a SubprocVecEnv or a GymnasiumVecEnv around a SyncVectorEnv "
        f"for its environments to be pickled, it is {base!r}"
    )


def _envs_of(base: Any) -> Any:
    if isinstance(base, GymnasiumVecEnv):
        vector = base.env.unwrapped
        return vector.envs if type(vector) is SyncVectorEnv else None
    return base.envs if type(base) is DummyVecEnv else None


# ------------------------------------------------------------------------------- is it exact


class PicklingTrial:
    """Finds out whether environments go on from their pickles as they go on themselves.

    It copies the environments by way of their pickles and looks on while they are stepped, reset
    and called. :meth:`finish` does the same to the copies and compares observations, rewards, ends
    and infos, bit for bit. The environments themselves notice nothing of it. NumPy's, torch's and
    Python's own generators are what they were at each step, as they are in a training that is
    resumed with them; those of other processes are nobody's to resume.

    >>> import gymnasium as gym, numpy as np
    >>> from stable_baselines3.common.vec_env import DummyVecEnv
    >>> venv = DummyVecEnv([lambda: gym.make("Pendulum-v1")])
    >>> _ = venv.reset()
    >>> trial = PicklingTrial(venv)
    >>> for _ in range(300):
    ...     _ = venv.step(np.array([[0.5]], dtype=np.float32))
    >>> print(trial.finish())
    None

    .. warning::
        The copies live in this process. What an environment keeps outside of itself, in a module or
        a running program, is found where it makes a difference here; that it is there in the next
        process is the environment's to see to.

    :param venv: the vectorised environment, between two steps; it must have been reset
    :raises ValueError: as :func:`pickled_envs` does
    """

    def __init__(self, venv: VecEnv) -> None:
        self._base = _base_of(venv)
        self._in_process = not isinstance(self._base, SubprocVecEnv)
        self._copies = [_unpickled(data, []) for data in pickled_envs(venv)]
        self._events: list[_Event] = []
        self._actions: Any = None
        self._watch("step_async", self._step_async)
        self._watch("step_wait", self._step_wait)
        self._watch("reset", self._reset)
        self._watch("env_method", self._env_method)
        self._watch("set_attr", self._set_attr)

    def finish(self) -> str | None:
        """Stop looking on, and do to the copies what has been done.

        :return: the first difference, as a sentence; None where there is none
        :raises ValueError: if no step was taken
        """
        self.stop()
        if not any(event.is_step for event in self._events):
            raise ArgumentError("venv must be stepped before finish(), it took no step")
        before = _global_states()
        try:
            return self._replay()
        finally:
            _set_global_states(before)

    def stop(self) -> None:
        """Stop looking on."""
        for name in ("step_async", "step_wait", "reset", "env_method", "set_attr"):
            vars(self._base).pop(name, None)

    def _watch(self, name: str, method: Callable[..., Any]) -> None:
        vars(self._base)[name] = method

    def _note(self, do: Callable[[], Any], outcome: Any = None, is_step: bool = False) -> None:
        self._events.append(_Event(do, self._globals, outcome, is_step))

    def _take_globals(self) -> None:
        self._globals = _global_states() if self._in_process else None

    def _step_async(self, actions: Any) -> None:
        self._actions = deepcopy(actions)
        type(self._base).step_async(self._base, actions)

    def _step_wait(self) -> Any:
        self._take_globals()
        outcome = type(self._base).step_wait(self._base)
        actions = self._actions
        obs, rewards, dones, infos = outcome
        kept = deepcopy((obs, rewards, dones, list(infos)))
        if isinstance(self._base, GymnasiumVecEnv):
            for info in kept[3]:
                info.pop("episode", None)  # its own sums
        self._note(lambda: self._step_copies(actions), kept, is_step=True)
        return outcome

    def _reset(self) -> Any:
        self._take_globals()
        seeds, options = list(self._base._seeds), deepcopy(self._base._options)
        obs = type(self._base).reset(self._base)
        self._note(lambda: self._reset_copies(seeds, options), deepcopy(obs))
        return obs

    def _env_method(self, name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        self._take_globals()
        given = deepcopy((args, kwargs)) if name != DOOR else ((), {})
        result = type(self._base).env_method(self._base, name, *args, indices=indices, **kwargs)
        if name != DOOR:
            chosen = list(self._base._get_indices(indices))
            self._note(lambda: self._call_copies(name, given, chosen))
        return result

    def _set_attr(self, name: str, value: Any, indices: Any = None) -> None:
        self._take_globals()
        given, chosen = deepcopy(value), list(self._base._get_indices(indices))
        type(self._base).set_attr(self._base, name, value, indices)
        self._note(lambda: self._set_on_copies(name, given, chosen))

    # --------------------------------------------------------------------------- the copies

    def _replay(self) -> str | None:
        n_steps = 0
        for event in self._events:
            if event.globals is not None:
                _set_global_states(event.globals)
            n_steps += event.is_step
            try:
                found = event.do()
            except Exception as error:  # of environments of others, which can fail in any way
                return f"{self._named()} from a pickle: step {n_steps} said {error!r}"
            what = ("observation", "reward", "end", "info") if event.is_step else ("observation",)
            outcome = event.outcome if event.is_step else (event.outcome,)
            if event.outcome is None:
                continue
            for name, live, copied in zip(what, outcome, found, strict=True):
                difference = first_difference(live, copied, name)
                if difference is not None:
                    return (
                        f"{self._named()} does not go on from a pickle as it went on: in step "
                        f"{n_steps} {difference}"
                    )
        return None

    def _named(self) -> str:
        return type(self._copies[0].unwrapped).__name__

    def _step_copies(self, actions: Any) -> Any:
        rows = [self._step_copy(copy, actions[idx]) for idx, copy in enumerate(self._copies)]
        obs, rewards, dones, infos = zip(*rows, strict=True)
        if isinstance(self._base, GymnasiumVecEnv):
            for info in infos:
                info.pop("episode", None)
        # SB3's workers tell rewards as they are.
        dtype = np.float32 if self._in_process else None
        return self._stacked(obs), np.array(rewards, dtype), np.array(dones), list(infos)

    def _step_copy(self, copy: Any, action: Any) -> Any:
        obs, reward, terminated, truncated, info = copy.step(action)
        done = bool(terminated or truncated)
        info["TimeLimit.truncated"] = truncated and not terminated
        if done:
            info["terminal_observation"] = obs
            obs, _ = copy.reset()
        # An environment may fill its arrays anew.
        return deepcopy((obs, reward, done, info))

    def _reset_copies(self, seeds: list[Any], options: list[Any]) -> Any:
        rows = []
        for copy, seed, of_copy in zip(self._copies, seeds, options, strict=True):
            obs, _ = copy.reset(seed=seed, **({"options": of_copy} if of_copy else {}))
            rows.append(deepcopy(obs))
        return (self._stacked(rows),)

    def _call_copies(self, name: str, given: Any, chosen: list[int]) -> None:
        for idx in chosen:
            args, kwargs = deepcopy(given)
            self._copies[idx].get_wrapper_attr(name)(*args, **kwargs)

    def _set_on_copies(self, name: str, value: Any, chosen: list[int]) -> None:
        for idx in chosen:
            setattr(self._copies[idx], name, deepcopy(value))

    def _stacked(self, rows: Sequence[Any]) -> Any:
        space: Any = self._base.observation_space
        if isinstance(rows[0], dict):
            return {key: np.array([row[key] for row in rows], space[key].dtype) for key in rows[0]}
        if isinstance(rows[0], tuple):
            return tuple(np.array(part) for part in zip(*rows, strict=True))
        return np.array(rows, dtype=space.dtype)


class _Event:
    """Something that was done to the environments.

    :param do: does it to the copies
    :param globals_: of NumPy's and Python's generators, the state before it; None if elsewhere
    :param outcome: what the environments returned
    """

    def __init__(self, do: Callable[[], Any], globals_: Any, outcome: Any, is_step: bool) -> None:
        self.do, self.globals, self.outcome, self.is_step = do, globals_, outcome, is_step


def _global_states() -> tuple[Any, ...]:
    """Return the states of everybody's generators, which environments may use."""
    return np.random.get_state(), random.getstate(), th.get_rng_state()  # noqa: NPY002


def _set_global_states(states: tuple[Any, ...]) -> None:
    np.random.set_state(states[0])  # noqa: NPY002
    random.setstate(states[1])
    th.set_rng_state(states[2])

"""What SB3's vectorised environments remember in all of their layers, to go on from exactly.

:func:`vec_state` takes it out, :func:`set_vec_state` puts it back, as arrays and JSON-able data.
What single environments and Gymnasium's vectors remember is told by
:mod:`thrust_pomdp.wrappers.states`.
"""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
)

from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.stateful import Changes, class_name
from thrust_pomdp.states import State, packed_entries, unpacked
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.layer import check_venv
from thrust_pomdp.vec_env.stacked import frames_state, prepare_frames
from thrust_pomdp.vec_env.workers import in_workers
from thrust_pomdp.wrappers.states import (
    apply_all,
    env_state,
    layer_state,
    missing_layers,
    prepare_envs,
    prepare_layer,
    prepare_layers,
    prepare_vector,
    set_env_state,
    vector_state,
)


def vec_state(venv: VecEnv) -> State:
    """Return what a vectorised environment remembers, all its layers and single environments.

    >>> import numpy as np, thrust_pomdp
    >>> def make():
    ...     return thrust_pomdp.make_vec_env("FlickeringCartPole-v0", n_envs=2, normalize=True)
    >>> venv, other = make(), make()
    >>> _ = venv.reset()
    >>> state, first = vec_state(venv), venv.step(np.array([0, 1]))[0]
    >>> set_vec_state(other, state)
    []
    >>> other.step(np.array([0, 1]))[0].tolist() == first.tolist()
    True

    Taken out are streams and episodes of the environments, sums, running statistics and returns,
    stacked frames, pending seeds and options, and the text of results' files. Entries of reset
    infos that are no arrays, numbers, texts and the like are left out.

    :param venv: the vectorised environment, between two steps; it is not changed
    :return: nested dicts of arrays and JSON-able data; :func:`missing` says what they lack
    :raises ValueError: for what is no ``VecEnv``, or one in the middle of a step
    """
    check_venv("venv", venv)
    return {"layers": [_vec_layer_state(layer) for layer in _layers(venv)]}


def set_vec_state(venv: VecEnv, state: State) -> list[str]:
    """Go on where a vectorised environment was that was made with the same arguments.

    What was returned to somebody before, such as generators and arrays of statistics, is no longer
    what the environments go on with.

    .. warning::
        Where something is missing call ``venv.reset()`` next: what is not held would go on from
        elsewhere in the middle of an episode that others remember.

    :param venv: the vectorised environment, between two steps
    :param state: what :func:`vec_state` returned
    :return: what has no state, as :func:`missing` tells it; nothing where it goes on bit for bit
    :raises ValueError: naming what does not fit; nothing has been changed then
    """
    check_venv("venv", venv)
    layers = _layers(venv)
    changes = prepare_layers(layers, state, "", _prepare_vec_layer)
    base = layers[-1]
    if type(base) is SubprocVecEnv:
        # The one part that is checked elsewhere, and all or nothing there.
        before = _set_in_workers(base, state["layers"][-1])
    try:
        apply_all(changes)
    except ValueError:
        if type(base) is SubprocVecEnv:
            in_workers(base, _try_to_set, [(part,) for part in before])
        raise
    return missing(state)


def missing(state: State) -> list[str]:
    """Say which layers have no state, and why, one sentence each; none where all is held.

    :param state: what :func:`vec_state` returned
    """
    return missing_layers(state)


def _layers(venv: VecEnv) -> list[Any]:
    layers: list[Any] = [venv]
    while isinstance(layers[-1], VecEnvWrapper):
        layers.append(layers[-1].venv)
    return layers


def _vec_layer_state(layer: Any) -> State:
    if type(layer) is SubprocVecEnv and layer.waiting:
        raise ArgumentError("venv must be between two steps, it waits for the outcome of one")
    state = layer_state(layer)
    if type(layer) is VecFrameStack:
        state["frames"] = frames_state(layer.stacked_obs)
    if type(layer) in (DummyVecEnv, SubprocVecEnv):
        state["reset_infos"] = packed_entries(layer.reset_infos, "reset_infos")
    if type(layer) is DummyVecEnv:
        state["envs"] = [env_state(env) for env in layer.envs]
    elif type(layer) is SubprocVecEnv:
        state["envs"] = in_workers(layer, env_state)
    elif isinstance(layer, GymnasiumVecEnv):
        state["vector"] = vector_state(layer.env)
    return state


def _prepare_vec_layer(layer: Any, state: Any, where: str) -> Changes:
    changes = prepare_layer(layer, state, where)
    if type(layer) is VecFrameStack:
        changes += prepare_frames(layer.stacked_obs, state.get("frames"), where)
    if type(layer) in (DummyVecEnv, SubprocVecEnv):
        infos = unpacked(state.get("reset_infos"), f"{where}, 'reset_infos'")
        changes.append(lambda: vars(layer).update(reset_infos=infos))
    if type(layer) is DummyVecEnv:
        changes += prepare_envs(layer.envs, state.get("envs"), where)
    elif isinstance(layer, GymnasiumVecEnv):
        changes += prepare_vector(layer.env, state.get("vector"), f"{where}: ")
    return changes


def _set_in_workers(base: SubprocVecEnv, state: State) -> list[State]:
    """Set the states of environments in other processes; return those that they had."""
    states = state.get("envs")
    if not isinstance(states, list) or len(states) != base.num_envs:
        raise ValueError(
            f"state['envs'] of {class_name(base)} must be a list of {base.num_envs}, got {states!r}"
        )
    before = in_workers(base, env_state)
    refusals = in_workers(base, _try_to_set, [(part,) for part in states])
    told = [refusal for refusal in refusals if refusal is not None]
    if told:
        in_workers(base, _try_to_set, [(part,) for part in before])
        raise ValueError(told[0])
    return before


def _try_to_set(env: Any, state: State) -> str | None:
    """Set a state; return why it was refused, since an error would end the worker."""
    try:
        set_env_state(env, state)
    except ValueError as error:
        return str(error)
    return None

"""What an environment remembers in all of its layers, as arrays and JSON-able data.

:func:`env_state` goes through the wrappers of a single environment, :func:`vector_state` through
those of Gymnasium's vectors; ``set_env_state`` and ``set_vector_state`` put back what they return.
Layers of this package have a state, and so has what has methods ``get_state()`` and
``set_state(state)`` of its own; of Gymnasium's and SB3's layers it is known what they keep
(:mod:`thrust_pomdp.wrappers.known_layers`). Of any other layer the state says that it is missing.

A state of its own is of the layer alone, not of what is inside of it, and holds all that the layer
goes on from. Of an environment in the middle its ``np_random`` need not be in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv

from thrust_pomdp.stateful import (
    Changes,
    Stateful,
    attributes_state,
    check_keys,
    class_name,
    prepare_attributes,
)
from thrust_pomdp.states import NoStateError, State, packed, unpacked
from thrust_pomdp.wrappers.frame_order import layers_inwards
from thrust_pomdp.wrappers.known_layers import against_functions, known_attributes, prepare_extra
from thrust_pomdp.wrappers.known_layers import extra as extra_of

#: Where Gymnasium keeps an environment's generator and its seed.
_RANDOM = ("_np_random", "_np_random_seed")


def env_state(env: Any) -> State:
    """Return what a single environment and its wrappers remember.

    >>> import gymnasium as gym, thrust_pomdp
    >>> env = gym.make("BurstFlickeringCartPole-v0")
    >>> _ = env.reset(seed=0)
    >>> state, first = env_state(env), env.step(1)[0]
    >>> other = gym.make("BurstFlickeringCartPole-v0")
    >>> set_env_state(other, state)
    []
    >>> other.step(1)[0].tolist() == first.tolist()
    True

    :param env: the environment; it is not changed
    :return: nested dicts of arrays and JSON-able data; :func:`missing_layers` says what they lack
    """
    return {"layers": [layer_state(layer) for layer in layers_inwards(env)]}


def set_env_state(env: Any, state: State) -> list[str]:
    """Put back what :func:`env_state` returned of an environment made with the same arguments.

    :return: what has no state, as :func:`missing_layers` tells it; where it is not empty the
        environment does not go on exactly, and should be reset
    :raises ValueError: naming what does not fit; nothing has been changed then
    """
    apply_all(prepare_env(env, state))
    return missing_layers(state)


def vector_state(env: Any) -> State:
    """Return what one of Gymnasium's vector environments and its wrappers remember.

    :param env: the vector; of ``AsyncVectorEnv``, whose environments are in other processes, and of
        vectors of others without methods of their own the state is missing
    """
    return {"layers": [_vector_layer_state(layer) for layer in layers_inwards(env)]}


def set_vector_state(env: Any, state: State) -> list[str]:
    """Put back what :func:`vector_state` returned; see :func:`set_env_state`."""
    apply_all(prepare_vector(env, state))
    return missing_layers(state)


def missing_layers(state: Any) -> list[str]:
    """Say which layers have no state, and why, one sentence each; none where all is held.

    :param state: what :func:`env_state`, :func:`vector_state` or ``vec_state`` returned
    """
    found = []
    for layer in state["layers"]:
        if "missing" in layer:
            found.append(str(layer["missing"]))
        for inside in layer.get("envs", []):
            found.extend(sentence for sentence in missing_layers(inside) if sentence not in found)
        if "vector" in layer:
            found.extend(missing_layers(layer["vector"]))
    return list(dict.fromkeys(found))


# ------------------------------------------------------------------------------ one layer


def layer_state(layer: Any) -> State:
    """Return what one layer remembers, or why that cannot be told."""
    state: State = {"class": class_name(layer)}
    is_base_env = isinstance(layer, gym.Env) and not isinstance(layer, gym.Wrapper)
    if is_base_env and "_np_random" in vars(layer):
        # What is no generator of NumPy's own is the environment's to tell.
        with suppress(NoStateError):
            state["random"] = [packed(getattr(layer, name), name) for name in _RANDOM]
    names_of_known = known_attributes(layer)
    try:
        if isinstance(layer, Stateful) and _is_ours(layer):
            state["state"] = layer.get_state()
        elif names_of_known is not None:
            against_functions(layer)
            state["state"] = attributes_state(layer, names_of_known)
            extra = extra_of(layer)
            if extra is not None:
                state["extra"] = extra
        else:
            state["own"] = _own_state(layer)
    except NoStateError as error:
        state["missing"] = str(error)
    return state


def _is_ours(layer: Stateful) -> bool:
    """Tell whether a layer's state is taken by this package's methods, which a user may replace."""
    return all(
        getattr(type(layer), name).__module__.partition(".")[0] == "thrust_pomdp"
        for name in ("get_state", "set_state", "prepare_state")
    )


def _own_state(layer: Any) -> Any:
    """Call a layer's own ``get_state``, if it and ``set_state`` are what is meant here."""
    name = type(layer).__name__
    get, put = (getattr(type(layer), method, None) for method in ("get_state", "set_state"))
    if not (callable(get) and callable(put)):
        raise NoStateError(f"{name} has no methods get_state() and set_state(state)")
    try:
        inspect.signature(layer.get_state).bind()
        inspect.signature(layer.set_state).bind({})
    except TypeError:
        raise NoStateError(
            f"{name} has other methods than get_state() and set_state(state)"
        ) from None
    try:
        state = layer.get_state()
    except Exception as error:  # of a user's method, which may need a reset, and fail in any way
        raise NoStateError(f"{name}.get_state() said {error!r}") from error
    if not isinstance(state, dict):
        raise NoStateError(
            f"{name}.get_state() must return a dict, it returned a {type(state).__name__}"
        )
    return packed(state, f"the state of {name}")


class Put:
    """Giving a layer of others its state: the one change that can fail, so that it is done first.

    :param layer: the layer
    :param state: for its ``set_state``
    """

    def __init__(self, layer: Any, state: Any) -> None:
        self._layer, self._state = layer, state
        self._before: Any = None

    def __call__(self) -> None:
        """Put the state back."""
        # One that was never reset may have none to tell.
        with suppress(Exception):
            self._before = self._layer.get_state()
        self._random = {key: vars(self._layer).get(key) for key in _RANDOM}
        try:
            self._layer.set_state(self._state)
        except Exception as error:  # of a user's method, which can fail in any way
            self.undo()
            raise ValueError(
                f"state of {type(self._layer).__name__} must be one that its set_state takes, "
                f"which said {error!r}"
            ) from error

    def undo(self) -> None:
        """Go back to the state before."""
        if self._before is not None:
            self._layer.set_state(self._before)
            if isinstance(self._layer, gym.Env) and not isinstance(self._layer, gym.Wrapper):
                vars(self._layer).update(self._random)


def apply_all(changes: Changes) -> None:
    """Do what has been prepared, all of it or nothing."""
    puts = [change for change in changes if isinstance(change, Put)]
    done: list[Put] = []
    for put in puts:
        try:
            put()
        except ValueError:
            for before in reversed(done):
                before.undo()
            raise
        done.append(put)
    for change in changes:
        if not isinstance(change, Put):
            change()


def prepare_layer(layer: Any, state: Any, where: str) -> Changes:
    """Check what :func:`layer_state` returned, and return what is to be done to set it."""
    if not isinstance(state, dict) or state.get("class") != class_name(layer):
        got = state.get("class") if isinstance(state, dict) else state
        raise ValueError(f"state of {where} must be of a {class_name(layer)}, got {got!r}")
    changes = Changes()
    if "random" in state:
        changes.append(_prepare_random(layer, state["random"], where))
    names = known_attributes(layer)
    if "state" in state and isinstance(layer, Stateful):
        changes.extend(layer.prepare_state(state["state"], where))
    elif "state" in state and names is not None:
        changes.extend(prepare_attributes(layer, state["state"], names, where))
        changes.extend(prepare_extra(layer, state.get("extra"), where))
    elif "own" in state:
        changes.append(Put(layer, unpacked(state["own"], where)))
    elif "missing" not in state:
        raise ValueError(f"state of {where} must hold one, got {state!r}")
    return changes


def _prepare_random(env: Any, state: Any, where: str) -> Any:
    values = unpacked(state, f"{where}, 'random'")
    if not isinstance(values, list) or len(values) != 2:
        raise ValueError(f"state['random'] of {where} must be a pair, got {state!r}")

    def change() -> None:
        drawn, mine = values[0], vars(env).get("_np_random")
        if _draw_alike(drawn, mine):
            # In place: an environment may have it under a name of its own, too.
            mine.bit_generator.state = drawn.bit_generator.state
            drawn = mine
        vars(env).update(_np_random=drawn, _np_random_seed=values[1])

    return change


def _draw_alike(one: Any, other: Any) -> bool:
    bits = [getattr(generator, "bit_generator", None) for generator in (one, other)]
    return None not in bits and type(bits[0]) is type(bits[1])


# ------------------------------------------------------------------------ all the layers


def prepare_env(env: Any, state: Any, where: str = "") -> Changes:
    """Check what :func:`env_state` returned, and return what is to be done to set it."""
    return prepare_layers(list(layers_inwards(env)), state, where, prepare_layer)


def prepare_layers(layers: Sequence[Any], state: Any, where: str, prepare: Any) -> Changes:
    """Check a state of layers, from the outside in, and return what is to be done to set it."""
    check_keys(state, ("layers",), where or type(layers[0]).__name__)
    states = state["layers"]
    if not isinstance(states, list) or len(states) != len(layers):
        got = states
        if isinstance(states, list):
            got = [part.get("class") if isinstance(part, dict) else part for part in states]
        raise ValueError(
            f"state['layers'] must be of the layers {list(map(class_name, layers))}, got {got!r}"
        )
    changes = Changes()
    # From the inside out: what an outer layer knows of an inner one holds.
    for layer, of_layer in reversed(list(zip(layers, states, strict=True))):
        changes.extend(prepare(layer, of_layer, f"{where}{type(layer).__name__}"))
    return changes


def prepare_vector(env: Any, state: Any, where: str = "") -> Changes:
    """Check what :func:`vector_state` returned, and return what is to be done to set it."""
    return prepare_layers(list(layers_inwards(env)), state, where, _prepare_vector_layer)


def _vector_layer_state(layer: Any) -> State:
    state = layer_state(layer)
    if type(layer) is SyncVectorEnv:
        state["envs"] = [env_state(env) for env in layer.envs]
    return state


def _prepare_vector_layer(layer: Any, state: Any, where: str) -> Changes:
    changes = prepare_layer(layer, state, where)
    if type(layer) is SyncVectorEnv:
        changes.extend(prepare_envs(layer.envs, state.get("envs"), where))
    return changes


def prepare_envs(envs: Sequence[Any], states: Any, where: str) -> Changes:
    """Check the states of some single environments, and return what is to be done to set them."""
    if not isinstance(states, list) or len(states) != len(envs):
        raise ValueError(f"state['envs'] of {where} must be a list of {len(envs)}, got {states!r}")
    pairs: Iterator[tuple[int, tuple[Any, Any]]] = enumerate(zip(envs, states, strict=True))
    return [
        change
        for idx, (env, state) in pairs
        for change in prepare_env(env, state, f"{where}, environment {idx}: ")
    ]

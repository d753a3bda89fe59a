"""All of a model that decides what it does next, taken out and put back.

A state is a tree: dicts, lists, numbers, texts, and NumPy arrays at the ends.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from thrust_pomdp.recurrent.sequences import RNNStates

#: Numbers that SB3 and the algorithm count by.
_COUNTERS = (
    "num_timesteps",
    "_total_timesteps",
    "_num_timesteps_at_start",
    "_episode_num",
    "_n_updates",
    "_current_progress_remaining",
)


def model_state(model: Any) -> dict[str, Any]:
    """Return what a model is between two iterations.

    :param model: a ``RecurrentPPO``; its environment is not held, nor its logger
    """
    buffer = model.rollout_buffer
    return {
        "counters": {name: getattr(model, name) for name in _COUNTERS},
        "elapsed": time.time_ns() - model.start_time,
        "weights": tensors_to_arrays(model.policy.state_dict()),
        "optimizer": tensors_to_arrays(model.policy.optimizer.state_dict()),
        "is_training_mode": model.policy.training,
        "exploration": _exploration(model.policy.action_dist),
        "last_obs": model._last_obs,
        "last_original_obs": getattr(model, "_last_original_obs", None),
        "last_episode_starts": model._last_episode_starts,
        "last_lstm_states": _states(model._last_lstm_states),
        "carried_state": _states(buffer.carried_state),
        "episode_start_carry": buffer.episode_start_carry,
        "ep_info_buffer": list(model.ep_info_buffer or ()),
        "ep_success_buffer": list(model.ep_success_buffer or ()),
        "random": random_state(model),
    }


def set_model_state(model: Any, state: Mapping[str, Any]) -> None:
    """Put a model where it was, all but its random streams: these come last, when nothing draws.

    :param model: made with the same arguments
    :param state: what :func:`model_state` returned
    """
    for name in _COUNTERS:
        setattr(model, name, state["counters"][name])
    model.start_time = time.time_ns() - state["elapsed"]
    policy, buffer, device = model.policy, model.rollout_buffer, model.device
    policy.load_state_dict(arrays_to_tensors(state["weights"], device))
    policy.optimizer.load_state_dict(arrays_to_tensors(state["optimizer"], device))
    policy.train(state["is_training_mode"])
    for name, array in (state["exploration"] or {}).items():
        setattr(policy.action_dist, name, th.as_tensor(array, device=device))
    model._last_obs = state["last_obs"]
    model._last_original_obs = state["last_original_obs"]
    model._last_episode_starts = state["last_episode_starts"]
    model._last_lstm_states = _to_states(state["last_lstm_states"], device)
    buffer._carried_state = _to_states(state["carried_state"], device)
    buffer.episode_start_carry = state["episode_start_carry"]
    for name in ("ep_info_buffer", "ep_success_buffer"):
        setattr(model, name, deque(state[name], maxlen=model._stats_window_size))


def restart_episodes(model: Any) -> None:
    """Begin new episodes, where environments could not be put back where they were."""
    model._last_obs = model.env.reset()
    model._last_episode_starts = np.ones(model.n_envs, dtype=bool)
    model._last_lstm_states = None
    model.rollout_buffer._carried_state = None
    model.rollout_buffer.episode_start_carry = np.ones(model.n_envs, dtype=bool)


def random_state(model: Any) -> dict[str, Any]:
    """Return where all streams of random numbers are that a training may draw from."""
    version, numbers, gauss = random.getstate()
    acting = model.policy._acting_noise
    name, keys, pos, has_gauss, cached = np.random.get_state()  # noqa: NPY002, users draw from it
    found = {
        "python": {"version": version, "numbers": list(numbers), "gauss": gauss},
        "numpy": {"name": name, "keys": keys, "pos": pos, "has_gauss": has_gauss,
                  "cached": cached},
        "torch": th.get_rng_state().numpy(),
        "collecting": model._action_noise.get_state(),
        "acting": None if acting is None else acting.get_state(),
        "shuffling": model.rollout_buffer._generator.bit_generator.state,
        "action_space": model.action_space.np_random.bit_generator.state,
    }  # fmt: skip
    if th.cuda.is_available():
        found["cuda"] = [generator.numpy() for generator in th.cuda.get_rng_state_all()]
    return found


def set_random_state(model: Any, state: Mapping[str, Any]) -> None:
    """Put all streams of random numbers where they were."""
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["numbers"]), python["gauss"]))
    np.random.set_state(  # noqa: NPY002
        (numpy["name"], numpy["keys"], numpy["pos"], numpy["has_gauss"], numpy["cached"])
    )
    th.set_rng_state(th.from_numpy(np.ascontiguousarray(state["torch"])))
    model._action_noise.set_state(state["collecting"])
    if state["acting"] is not None:
        model.policy.seed_actions(state["acting"]["seed"])
        model.policy._acting_noise.set_state(state["acting"])
    model.rollout_buffer._generator.bit_generator.state = state["shuffling"]
    model.action_space.np_random.bit_generator.state = state["action_space"]
    if "cuda" in state and th.cuda.is_available():
        th.cuda.set_rng_state_all([th.from_numpy(array) for array in state["cuda"]])


def tensors_to_arrays(tree: Any) -> Any:
    """Turn the tensors of a tree into arrays; keys become texts."""
    return _mapped(tree, lambda part: _array(part) if isinstance(part, th.Tensor) else part)


def arrays_to_tensors(tree: Any, device: th.device) -> Any:
    """Turn the arrays of a tree into tensors; keys of digits become numbers, as torch has them."""

    def tensor(part: Any) -> Any:
        if not isinstance(part, np.ndarray):
            return part
        return th.tensor(part, device=device)

    return _mapped(tree, tensor, lambda key: int(key) if key.isdigit() else key)


def _mapped(
    tree: Any, function: Callable[[Any], Any], rename: Callable[[str], Any] = lambda key: key
) -> Any:
    if isinstance(tree, Mapping):
        return {rename(str(key)): _mapped(part, function, rename) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_mapped(part, function, rename) for part in tree]
    return function(tree)


def _array(tensor: th.Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy().copy()
    return array


def _states(states: RNNStates | None) -> Any:
    """Return the arrays of a memory's state; the critic's is None where it is the actor's."""
    if states is None:
        return None
    pi, vf = states
    return {"pi": [*map(_array, pi)], "vf": None if vf is pi else [*map(_array, vf)]}


def _to_states(state: Any, device: th.device) -> RNNStates | None:
    if state is None:
        return None
    pi = tuple(th.tensor(array, device=device) for array in state["pi"])
    if state["vf"] is None:
        return RNNStates(pi, pi)
    return RNNStates(pi, tuple(th.tensor(array, device=device) for array in state["vf"]))


def _exploration(distribution: Any) -> dict[str, Any] | None:
    """Return gSDE's matrices, which evaluations draw actions by until they are drawn anew."""
    names = ("exploration_mat", "exploration_matrices")
    found = {name: getattr(distribution, name, None) for name in names}
    return {
        name: _array(part) for name, part in found.items() if isinstance(part, th.Tensor)
    } or None

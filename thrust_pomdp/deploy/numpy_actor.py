"""Act with a model that ``StatefulActor.export("model.npz")`` wrote, with NumPy and nothing else.

This file can be copied to where there is no torch; it imports NumPy alone::

    actor = NumpyActor("model.npz")
    while True:
        action = actor.act(reading, blanked=sensor_is_silent)

"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Version of the files that this reads.
FORMAT = 1

Array = NDArray[Any]
Weights = dict[str, Array]


class NumpyActor:
    """Acts for an exported model and keeps memory, frames and the previous action itself.

    Observations are raw, as the environment or the robot gives them; single ones, or a batch.

    :param path: the file
    :raises ValueError: if it is none of this version
    """

    def __init__(self, path: str | Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        program = json.loads(str(arrays.pop("program", '{"format": null}')))
        if program["format"] != FORMAT:
            raise ValueError(
                f"path must be a file of format {FORMAT} written by StatefulActor.export, got "
                f"{path} of format {program['format']}"
            )
        self._take(program, arrays)

    @classmethod
    def of(cls, program: dict[str, Any], arrays: Mapping[str, Array]) -> NumpyActor:
        """Make an actor of what a file holds."""
        actor = cls.__new__(cls)
        actor._take(program, dict(arrays))
        return actor

    def _take(self, program: dict[str, Any], arrays: dict[str, Array]) -> None:
        self.program, self._arrays = program, arrays
        self._inputs = {port["name"]: port for port in program["inputs"]}
        self._obs = [port for port in program["inputs"] if port["kind"] == "obs"]
        self._blanked = [port for port in program["inputs"] if port["kind"] == "blanked"]
        self._operations: list[tuple[Any, ...]] = [
            (
                _OPERATIONS[operation["kind"]],
                operation["inputs"],
                operation["outputs"],
                {part: arrays[name] for part, name in operation["arrays"].items()},
                operation["options"],
            )
            for operation in program["operations"]
        ]
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next observation starts an episode."""
        self._state: dict[str, Array] | None = None
        self._previous: Array | None = None

    def set_previous_action(self, action: Any) -> None:
        """Tell what was done in the end, if not what :meth:`act` returned last."""
        shape = tuple(self.program["action"]["shape"])
        self._previous = np.array(action).reshape(-1, *shape)

    def act(
        self,
        obs: Any,
        *,
        episode_start: Any = None,
        blanked: Any = None,
        reward: Any = None,
        action_masks: Any = None,
        noise: Any = None,
    ) -> Array:
        """Return the action for an observation, or the actions for a batch of them.

        :param obs: ``[*obs_shape]`` or ``[n_envs, *obs_shape]``; of Dict observations a dict
        :param episode_start: flag, ``[n_envs]`` of a batch: whose observation is the first of an
            episode. After :meth:`reset` it is of all
        :param blanked: what is blanked: one flag, ``[n_envs]`` of a batch, or flags of the
            observation's shape; of Dict observations a dict of these. None if nothing is told
        :param reward: what came with the observation, if the model sees its previous reward
        :param action_masks: what may be done, ``[width]`` or ``[n_envs, width]``
        :param noise: numbers that decide the action: a uniform one from [0, 1) for each choice or
            bit, a standard normal one for each continuous dimension; None for the most likely one
        :raises ValueError: for what does not fit
        """
        given = self._batches(obs)
        first = self._obs[0]
        is_single = given[first["name"]].ndim == len(first["shape"])
        if is_single:
            given = {name: array[None] for name, array in given.items()}
        n_envs = len(given[first["name"]])
        state = self.initial_state(n_envs) if self._state is None else self._state
        start = np.ones(n_envs, bool)
        if self._state is not None:
            start[:] = False if episode_start is None else episode_start
        given["start"] = start
        if blanked is not None:
            given.update(self._flags(blanked, n_envs, is_single))
        if self._previous is not None:
            given["previous_action"] = self._previous
        others = {"previous_reward": reward, "action_masks": action_masks, "noise": noise}
        for name, value in others.items():
            if value is not None and name in self._inputs:
                given[name] = np.asarray(value).reshape(n_envs, *self._inputs[name]["shape"])
        outputs, self._state = self.step(given, state)
        action = outputs["action"]
        self._previous = action.copy()
        #: What else came out of the last step, by name.
        self.outputs = outputs
        return action[0] if is_single else action

    def _batches(self, obs: Any) -> dict[str, Array]:
        if not self.program["obs"]["is_dict"]:
            return {"obs": np.asarray(obs)}
        keys = [port["key"] for port in self._obs]
        if not isinstance(obs, Mapping) or not set(keys) <= set(obs):
            raise ValueError(f"obs must be a dict with the keys {keys}, got {obs!r}")
        return {port["name"]: np.asarray(obs[port["key"]]) for port in self._obs}

    def _flags(self, blanked: Any, n_envs: int, is_single: bool) -> dict[str, Array]:
        found = {}
        for port in self._blanked:
            flags: Any = blanked
            if isinstance(blanked, Mapping):
                flags = blanked.get(port["key"], False)
            array, shape = np.asarray(flags, bool), tuple(port["shape"])
            if array.ndim and is_single:
                array = array[None]
            if array.ndim <= 1:
                array = array.reshape(-1, *(1,) * len(shape))
            found[port["name"]] = np.broadcast_to(array, (n_envs, *shape))
        return found

    def initial_state(self, n_envs: int) -> dict[str, Array]:
        """Return the state of environments that remember nothing, by name."""
        return {
            state["name"]: np.zeros(_state_shape(state, n_envs), state["dtype"])
            for state in self.program["states"]
        }

    def step(
        self, inputs: Mapping[str, Any], state: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Do one step, as a pure function.

        :param inputs: by name: ``obs`` (or ``obs_KEY`` of each key), ``start``, and those that the
            model has of ``blanked``, ``previous_action``, ``previous_reward``, ``action_masks`` and
            ``noise``, each ``[n_envs, *shape]``
        :param state: by name, as :meth:`initial_state` has it
        :return: ``action`` and what else comes out, and the state after the step
        :raises ValueError: for inputs that are missing or do not fit
        """
        values = self._values(inputs)
        for part in self.program["states"]:
            array = state[part["name"]]
            layers = array if part["has_layers"] else (array,)
            values.update(zip(part["before"], layers, strict=True))
        for function, names, outputs, arrays, options in self._operations:
            made = function([values.get(name) for name in names], arrays, options)
            values.update(zip(outputs, made if isinstance(made, tuple) else (made,), strict=True))
        after = {}
        for part in self.program["states"]:
            parts = [values[name] for name in part["after"]]
            after[part["name"]] = np.stack(parts) if part["has_layers"] else parts[0]
        return {port["name"]: values[port["value"]] for port in self.program["outputs"]}, after

    def _values(self, inputs: Mapping[str, Any]) -> dict[str | None, Array]:
        n_envs = len(inputs[self._obs[0]["name"]])
        values: dict[str | None, Array] = {}
        for name, port in self._inputs.items():
            shape = (n_envs, *port["shape"])
            array = inputs.get(name)
            if array is None and port["kind"] in ("blanked", "action_masks", "noise"):
                if port["kind"] == "blanked" and self.program["obs"]["guess"]:
                    array = _looks_blank(inputs[name.replace("blanked", "obs", 1)])
                    values[port["value"]] = np.broadcast_to(array, shape)
                continue
            if array is None:
                if port["kind"] == "start" or not np.all(inputs["start"]):
                    raise ValueError(f"inputs must have {name}, which this model needs")
                array = np.zeros(shape, port["dtype"])
            array = np.asarray(array)
            if array.shape != shape:
                raise ValueError(f"{name} must be of shape {shape}, got {array.shape}")
            # Readings are rounded as the model's are; whole numbers stay as they are.
            is_kept = port["kind"] == "noise" or array.dtype.kind in "iu"
            values[port["value"]] = array if is_kept else array.astype(port["dtype"])
        self._check_finite(values)
        return values

    def _check_finite(self, values: Mapping[str | None, Array]) -> None:
        """Refuse readings that would spoil the memory; what is blanked may be anything."""
        flags = {port["key"]: values.get(port["value"]) for port in self._blanked}
        for port in self._obs:
            bad = ~np.isfinite(values[port["value"]])
            if bad.any():
                blanked = flags.get(port["key"])
                if blanked is None or (bad & ~blanked).any():
                    raise ValueError(f"{port['name']} must be finite where it is not blanked")


def _state_shape(state: dict[str, Any], n_envs: int) -> tuple[int, ...]:
    if state["has_layers"]:
        return (len(state["before"]), n_envs, *state["shape"])
    return (n_envs, *state["shape"])


def _looks_blank(obs: Any) -> Array:
    array = np.asarray(obs)
    axes = tuple(range(1, array.ndim))
    blank: Array = np.logical_not(array.any(axis=axes, keepdims=True))
    return blank


# Operations: inputs [n_envs, *shape], weights, options -> outputs.


def _reset(x: list[Array], w: Weights, o: Any) -> Any:
    start = x[1].reshape(-1, *(1,) * (x[0].ndim - 1))
    return np.where(start, np.zeros((), x[0].dtype), x[0])


def _normalize(x: list[Array], w: Weights, o: Any) -> Any:
    numbers = x[0].astype(o["precision"])
    scaled = (numbers - w["mean"]) / w["std"]
    scaled = np.minimum(np.maximum(scaled, -o["clip"]), o["clip"]).astype(np.float32)
    return scaled if x[1] is None else np.where(x[1], np.float32(0), scaled)


def _blank(x: list[Array], w: Weights, o: Any) -> Any:
    return x[0] if x[1] is None else np.where(x[1], w["blank"], x[0])


def _one_hot(x: list[Array], w: Weights, o: Any) -> Any:
    numbers = x[0].reshape(len(x[0]), -1)
    marks = [
        (numbers[:, place, None] - start) == np.arange(size)
        for place, (size, start) in enumerate(zip(o["sizes"], o["starts"], strict=True))
    ]
    return np.concatenate(marks, axis=1).astype(np.float32)


def _scale(x: list[Array], w: Weights, o: Any) -> Any:
    scaled = (x[0] - w["centre"]) / w["width"]
    return np.minimum(np.maximum(scaled, w["low"]), w["high"])


def _slice(x: list[Array], w: Weights, o: Any) -> Any:
    return x[0][(slice(None),) * (o["axis"] + 1) + (slice(o["begin"], o["end"]),)]


def _dense(x: list[Array], w: Weights, o: Any) -> Any:
    product = x[0] @ w["weight"].T
    return product + w["bias"] if "bias" in w else product


def _sigmoid(x: Array) -> Any:
    return np.float32(0.5) * (np.float32(1) + np.tanh(np.float32(0.5) * x))


def _negative(x: Array) -> Any:
    return np.expm1(np.minimum(x, np.float32(0)))


def _gelu(x: Array) -> Any:
    # Of the two forms that there are the one by tanh: NumPy has no error function.
    slope, cube = np.float32(0.7978845608028654), np.float32(0.044715)
    return np.float32(0.5) * x * (np.float32(1) + np.tanh(slope * (x + cube * x * x * x)))


_ACTIVATIONS: dict[str, Callable[[Array, Any], Any]] = {
    "gelu": lambda x, o: _gelu(x),
    "tanh": lambda x, o: np.tanh(x),
    "relu": lambda x, o: np.maximum(x, np.float32(0)),
    "sigmoid": lambda x, o: _sigmoid(x),
    "silu": lambda x, o: x * _sigmoid(x),
    "softsign": lambda x, o: x / (np.float32(1) + np.abs(x)),
    "elu": lambda x, o: np.where(x > 0, x, np.float32(o["slope"]) * _negative(x)),
    "leaky_relu": lambda x, o: np.where(x > 0, x, np.float32(o["slope"]) * x),
}


def _layer_norm(x: list[Array], w: Weights, o: Any) -> Any:
    deviation = x[0] - x[0].mean(axis=-1, keepdims=True)
    spread = np.square(deviation).mean(axis=-1, keepdims=True)
    scaled = deviation / np.sqrt(spread + np.float32(o["epsilon"]))
    return scaled * w.get("weight", np.float32(1)) + w.get("bias", np.float32(0))


def _conv(x: list[Array], w: Weights, o: Any) -> Any:
    kernel, (down, right) = w["weight"], o["stride"]
    windows = np.lib.stride_tricks.sliding_window_view(x[0], kernel.shape[2:], axis=(2, 3))
    windows = windows[:, :, ::down, ::right]
    product = np.tensordot(windows, kernel, axes=((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)
    return product + w["bias"][:, None, None] if "bias" in w else product


def _gates(x: Array, w: Weights, kind: str) -> Any:
    return _dense([x], {"weight": w[f"weight_{kind}"], **_bias(w, kind)}, {})


def _bias(w: Weights, kind: str) -> dict[str, Array]:
    return {"bias": w[f"bias_{kind}"]} if f"bias_{kind}" in w else {}


def _lstm(x: list[Array], w: Weights, o: Any) -> Any:
    gates = _gates(x[0], w, "ih") + _gates(x[1], w, "hh")
    enters, keeps, new, told = np.split(gates, 4, axis=1)
    cell = _sigmoid(keeps) * x[2] + _sigmoid(enters) * np.tanh(new)
    return _sigmoid(told) * np.tanh(cell), cell


def _gru(x: list[Array], w: Weights, o: Any) -> Any:
    reset, keeps, new = np.split(_gates(x[0], w, "ih"), 3, axis=1)
    reset_h, keeps_h, new_h = np.split(_gates(x[1], w, "hh"), 3, axis=1)
    new = np.tanh(new + _sigmoid(reset + reset_h) * new_h)
    return new + _sigmoid(keeps + keeps_h) * (x[1] - new)


def _rnn(x: list[Array], w: Weights, o: Any) -> Any:
    return _ACTIVATIONS[o["function"]](_gates(x[0], w, "ih") + _gates(x[1], w, "hh"), {})


def _glu(x: list[Array], w: Weights, o: Any) -> Any:
    shown, gate = np.split(x[0], 2, axis=1)
    return shown * _sigmoid(gate)


def _min_gru(x: list[Array], w: Weights, o: Any) -> Any:
    gate, new = np.split(x[0], 2, axis=1)
    return _sigmoid(-gate) * x[1] + _sigmoid(gate) * new


def _lru(x: list[Array], w: Weights, o: Any) -> Any:
    (a, b), (c, d) = np.split(w["factor"], 2), np.split(x[1], 2, axis=1)
    return x[0] + np.concatenate((a * c - b * d, a * d + b * c), axis=1)


def _attention(x: list[Array], w: Weights, o: Any) -> Any:
    # The last of some steps sees those of its episode; all but the steps has an axis of heads.
    steps, count = _layer_norm([x[0]], {p: w[p] for p in ("weight", "bias")}, o), x[1]
    query = np.tensordot(steps[:, -1], w["query"], axes=(1, 2))
    looked_for = np.einsum("nhd,hde->nhe", query + w["content_bias"], w["key"])
    scores = np.einsum("nhe,nce->nhc", looked_for, steps)
    scores += np.einsum("nhd,hdc->nhc", query + w["position_bias"], w["positions"])
    age = np.arange(steps.shape[1])[::-1]
    scores = scores / np.float32(np.sqrt(query.shape[2]))
    scores = np.where(age > count[:, None, None], np.float32(-np.inf), scores)
    counts = np.exp(scores - scores.max(axis=2, keepdims=True))
    seen = np.einsum("nhc,nce->nhe", counts / counts.sum(axis=2, keepdims=True), steps)
    return np.einsum("nhe,hde->nhd", seen, w["value"]).reshape(len(seen), -1)


def _gate(x: list[Array], w: Weights, o: Any) -> Any:
    stream, update = x
    reset, change, new = np.split(update @ w["of_update"].T, 3, axis=1)
    reset_by_stream, change_by_stream = np.split(stream @ w["of_stream"].T, 2, axis=1)
    kept = _sigmoid(reset + reset_by_stream) * stream
    change = _sigmoid(change + change_by_stream - w["bias"])
    return stream + change * (np.tanh(new + kept @ w["of_reset"].T) - stream)


def _chosen(logits: Array, uniform: Array | None) -> Any:
    if uniform is None:
        return logits.argmax(axis=1)
    above = logits - logits.max(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        log_probs = above - np.log(np.exp(above).sum(axis=1, keepdims=True))
    sums = np.exp(log_probs).astype(np.float64).cumsum(axis=1)
    # The second condition is for a product that is rounded up to the total.
    below = (sums <= uniform[:, None] * sums[:, -1:]) & (sums < sums[:, -1:])
    return below.sum(axis=1)


def _choices(x: list[Array], w: Weights, o: Any) -> Any:
    logits, noise, masks = x
    if masks is not None:
        logits = np.where(masks, logits, np.float32(-np.inf))
    factors = np.split(logits, np.cumsum(o["sizes"])[:-1], axis=1)
    chosen = [
        _chosen(factor, None if noise is None else noise[:, place])
        for place, factor in enumerate(factors)
    ]
    return np.stack(chosen, axis=1)


def _bits(x: list[Array], w: Weights, o: Any) -> Any:
    logits, noise, masks = x
    ones = logits > 0 if noise is None else noise < _sigmoid(logits)
    if masks is not None:
        may_be_0, may_be_1 = np.moveaxis(masks.reshape(*ones.shape, 2), 2, 0)
        ones = np.where(may_be_0 & may_be_1, ones, may_be_1)
    return ones.astype(np.int8)


def _gaussian(x: list[Array], w: Weights, o: Any) -> Any:
    return x[0] if x[1] is None else x[0] + x[1].astype(np.float32) * w["std"]


def _unscale(x: list[Array], w: Weights, o: Any) -> Any:
    return w["low"] + np.float32(0.5) * (x[0] + np.float32(1)) * (w["high"] - w["low"])


_OPERATIONS: dict[str, Callable[[list[Array], Any, Any], Any]] = {
    "add": lambda x, w, o: x[0] + x[1],
    "attention": _attention,
    "activation": lambda x, w, o: _ACTIVATIONS[o["function"]](x[0], o),
    "bits": _bits,
    "blank": _blank,
    "cast": lambda x, w, o: x[0].astype(np.float32),
    "choices": _choices,
    "clip": lambda x, w, o: np.minimum(np.maximum(x[0], w["low"]), w["high"]),
    "concat": lambda x, w, o: np.concatenate(x, axis=o["axis"] + 1),
    "constant": lambda x, w, o: np.repeat(w["numbers"][None], len(x[0]), axis=0),
    "conv": _conv,
    "count": lambda x, w, o: np.minimum(x[0] + 1, o["most"]),
    "dense": _dense,
    "divide": lambda x, w, o: x[0] / np.float32(o["by"]),
    "flatten": lambda x, w, o: x[0].reshape(len(x[0]), -1),
    "gate": _gate,
    "gaussian": _gaussian,
    "glu": _glu,
    "gru": _gru,
    "layer_norm": _layer_norm,
    "lru": _lru,
    "lstm": _lstm,
    "min_gru": _min_gru,
    "normalize": _normalize,
    "one_hot": _one_hot,
    "reset": _reset,
    "reshape": lambda x, w, o: x[0].reshape(len(x[0]), *o["shape"]),
    "rnn": _rnn,
    "scale": _scale,
    "slice": _slice,
    "transpose": lambda x, w, o: x[0].transpose(0, *(axis + 1 for axis in o["axes"])),
    "unscale": _unscale,
}

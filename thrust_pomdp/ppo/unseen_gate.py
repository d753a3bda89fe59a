"""What keeps steps that nobody looks at from being taken many at once: a part of the gate.

The loop (:mod:`thrust_pomdp.ppo.kernels_collecting`) computes what certain classes say: each must
be itself, as it was written, with nothing replaced on the object.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.envs.cartpole_physics import CartPolePhysics
from thrust_pomdp.envs.cartpole_vector import (
    FlickeringCartPoleVectorEnv,
    MaskedCartPoleVectorEnv,
)
from thrust_pomdp.envs.flicker import BlockStreams, FlickerProcesses
from thrust_pomdp.ppo.action_noise import ActionNoise
from thrust_pomdp.ppo.buffers import RecurrentRolloutBuffer
from thrust_pomdp.ppo.loop_arrays import Parts, carts_of_physics, has_blanks, parts_of
from thrust_pomdp.ppo.prepared_step import against_one_call, against_step
from thrust_pomdp.unmodified_classes import against_methods, against_object, remember
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible
from thrust_pomdp.vec_env.previous import VecPreviousAction
from thrust_pomdp.wrappers.actions import ActionEncoding
from thrust_pomdp.wrappers.appending import Appender
from thrust_pomdp.wrappers.frame_order import FrameOrder
from thrust_pomdp.wrappers.visible_statistics import ZeroWatch

#: Environments that the loop knows.
_VECTORS = (MaskedCartPoleVectorEnv, FlickeringCartPoleVectorEnv)

#: Methods of streams that the loop reads itself.
_STREAMS = ("prepare", "next_of", "next_of_all", "_refill")

for _cls in (
    *(RecurrentRolloutBuffer, ActionNoise, VecPreviousAction, ActionEncoding, Appender),
    *(VecNormalizeVisible, FrameOrder, RunningMeanStd, GymnasiumVecEnv),
    *(CartPolePhysics, BlockStreams, FlickerProcesses),
):
    remember(_cls)


def against_compiled_steps(policy: Any, env: VecEnv | None) -> str | None:
    """Say why steps of a policy in an environment are not taken many at once.

    Where they can be, they are as long as nobody looks at single ones, see
    :class:`~thrust_pomdp.ppo.unseen_steps.UnseenSteps`.
    """
    if env is None:
        return "there is no environment"
    reason = against_step(policy) or against_one_call(policy) or policy.against("predict_values")
    return reason or _against_env(env) or _against_sines()


def _against_env(env: VecEnv) -> str | None:
    """Say which part of an environment is not one that the loop knows, as it was written."""
    parts = parts_of(env)
    if parts is None or type(parts.vector) not in _VECTORS:
        what = env if parts is None else parts.vector
        return f"the environment has a {type(what).__name__}, which has no compiled loop"
    return (
        _against_previous(parts.previous)
        or _against_normaliser(parts.normaliser, parts.vector)
        or against_object(parts.venv, GymnasiumVecEnv)
        or _against_vector(parts)
    )


def _against_previous(layer: VecPreviousAction | None) -> str | None:
    if layer is None:
        return None
    reason = against_object(layer, VecPreviousAction)
    reason = reason or against_object(layer.encoding, ActionEncoding)
    reason = reason or against_object(layer._appender, Appender)
    if reason is None and not np.array_equal(layer.encoding(np.arange(2)), np.eye(2)):
        reason = "actions are not shown as one-hot vectors"
    return reason


def _against_normaliser(layer: VecNormalizeVisible | None, vector: Any) -> str | None:
    if layer is None:
        return None
    for thing, cls in (
        (layer, VecNormalizeVisible),
        (layer.ret_rms, RunningMeanStd),
        *(((layer.obs_rms, RunningMeanStd), (layer._order, FrameOrder)) if layer.norm_obs else ()),
    ):
        reason = against_object(thing, cls)
        if reason is not None:
            return reason
    if layer.update != "step":
        return "statistics take windows in at their end"
    if not layer.norm_obs:
        return None
    statistics: Any = layer.obs_rms
    assert layer._order is not None
    if not layer._order.is_idle or type(statistics.count) is not float:
        return "blank frames are not told apart by flags of whole frames"
    tells = has_blanks(vector)
    if layer.met_flags != tells or (layer.zero_is_blank and not tells):
        return "the environment has not told yet what is blank, or never does"
    watches = (layer._watches or {}).values() if layer.training else ()
    if any(watch._frames < ZeroWatch.FRAMES for watch in watches) or layer._watches == {}:
        return "the normaliser still looks whether frames are blank that nobody flags"
    return None


def _against_vector(parts: Parts) -> str | None:
    vector = parts.vector
    reason = against_object(vector, type(vector))
    reason = reason or against_object(vector.physics, CartPolePhysics)
    reason = reason or against_methods(vector.starts, _STREAMS, BlockStreams)
    if reason is None and isinstance(vector, FlickeringCartPoleVectorEnv):
        reason = against_object(vector._flicker, FlickerProcesses)
        reason = reason or against_methods(vector._flicker._streams, _STREAMS, BlockStreams)
    if reason is not None:
        return reason
    if "blanked" not in parts.venv._reset_told and has_blanks(vector):
        return "the environment has not told yet what is blank"
    if vector.single.expose_state:
        return "infos tell the whole state"
    if vector.autoreset_mode is not AutoresetMode.SAME_STEP or not vector._started:
        return "the environments have not been reset yet"
    return None


@functools.cache
def loops() -> Any:
    """Return the compiled loop."""
    return importlib.import_module("thrust_pomdp.ppo.kernels_collecting")


@functools.cache
def _against_sines() -> str | None:
    """Say that NumPy's sines, or whatever else of the equations, have other digits here."""
    n_carts = 1000
    physics = CartPolePhysics(CartPoleEnv(), n_carts)
    physics._rows[:] = np.random.default_rng(0).uniform(-3.0, 3.0, physics._rows.shape)
    actions = np.arange(n_carts) % 2
    rows, fallen = physics._rows.copy(), np.empty(n_carts, dtype=bool)
    nothing, counts = np.zeros((1, 4)), np.zeros(n_carts, dtype=np.int64)
    carts = carts_of_physics(physics, rows, counts, 0, nothing[0], counts, nothing, counts)
    for _ in range(3):
        physics.advance(actions)
        loops().advance(carts, actions, fallen)
    if np.array_equal(rows, physics._rows) and np.array_equal(fallen, physics.fallen()):
        return None
    return "NumPy's sines have other digits than those of compiled loops here"


def against_buffer(buffer: Any) -> str | None:
    """Say why several steps cannot be added to a buffer at once."""
    names = ("add", "add_steps", "_keep_states")
    reason = against_methods(buffer, names, RecurrentRolloutBuffer)
    if reason is None and (buffer.record_states or buffer._cut is not None):
        reason = "states are kept at more steps than a window's first"
    return reason


def against_last(model: Any) -> str | None:
    """Say why the loop cannot go on from what the model saw last."""
    obs, starts, n_envs = model._last_obs, model._last_episode_starts, model.n_envs
    shape = (n_envs, *model.observation_space.shape)
    if not isinstance(obs, np.ndarray) or obs.shape != shape or obs.dtype != np.float32:
        return "the last observations are not those of the environment"
    if starts.shape != (n_envs,) or model._action_noise.n_envs != n_envs:
        return "there are other numbers of environments"
    return None


def against_noise(model: Any) -> str | None:
    """Say why actions are not drawn from streams of numbers as they were written."""
    return against_object(model._action_noise, ActionNoise)

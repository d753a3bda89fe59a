"""The arrays on which the loop over many steps works, and what they are made of and go back to.

See :mod:`thrust_pomdp.ppo.kernels_collecting` for the loop. What environments and normalisers keep
in arrays is changed in place where it may be; the rest is put back by the ``leave`` functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.envs.cartpole_physics import CartPolePhysics
from thrust_pomdp.envs.cartpole_vector import FlickeringCartPoleVectorEnv, SensedCartPoleVectorEnv
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible
from thrust_pomdp.vec_env.previous import VecPreviousAction

#: Places of :attr:`Window.counts`.
STEPS, SAFE_STARTS, SAFE_FRAMES, ENDED = range(4)


class Carts(NamedTuple):
    """CartPoles, as :class:`thrust_pomdp.envs.cartpole_physics.CartPolePhysics` keeps them.

    :param rows: positions, velocities and accelerations, ``[6, n]``; changed in place
    :param semi_implicit: the integrator
    :param forces: of the two actions
    :param limits: of cart and pole, ``[2, n]``
    :param constants: gravity, mass of the pole, total mass, length, mass times length and 4/3,
        ``[6, n]``
    :param tau: the time step, for each of four rows, ``[4, n]``
    :param deadlines: at which step each episode reaches the time limit, int64 ``[n]``; changed
    :param limit: the time limit
    :param rewards: of each step, ``[n]``
    :param sensed: rows that are seen, int64
    :param start_items: start states drawn ahead, ``[.., 4]``
    :param start_next: where each environment's next one is; changed
    """

    rows: Any
    semi_implicit: bool
    forces: Any
    limits: Any
    constants: Any
    tau: Any
    deadlines: Any
    limit: int
    rewards: Any
    sensed: Any
    start_items: Any
    start_next: Any


class Blanking(NamedTuple):
    """A sensor that drops frames, as :class:`thrust_pomdp.envs.flicker.FlickerProcesses` is one.

    :param blanks: whether there is one
    :param blanked: flags of the latest frames, ``[n]``; changed
    :param thresholds: after a reset, a visible and a blank frame, ``[3, n]``
    :param items: uniform numbers drawn ahead
    :param next: where each environment's next one is; changed
    """

    blanks: bool
    blanked: Any
    thresholds: Any
    items: Any
    next: Any


class Normaliser(NamedTuple):
    """A normaliser, as :class:`thrust_pomdp.vec_env.normalize.VecNormalizeVisible` is one.

    :param obs: whether it normalises observations
    :param rewards: whether it normalises rewards
    :param training: whether it updates its statistics
    :param mean: of observations, ``[components]``; changed, and so is ``var``
    :param var: of observations
    :param scalars: counts of observations and returns, mean and variance of returns; changed
    :param returns: discounted, ``[n]``; changed
    :param gamma: discount of these
    :param epsilon: added to variances
    :param clip_obs: bound of observations
    :param clip_reward: bound of rewards
    """

    obs: bool
    rewards: bool
    training: bool
    mean: Any
    var: Any
    scalars: Any
    returns: Any
    gamma: float
    epsilon: float
    clip_obs: float
    clip_reward: float


class Window(NamedTuple):
    """What is kept of each step, ``[n_steps, n, ...]``, and what goes on.

    :param obs: that was acted on
    :param starts: whether it began an episode
    :param actions: that were taken
    :param rewards: with what truncated episodes would still have given
    :param values: estimated by the critic
    :param log_probs: of the actions
    :param blanked: flags of the frames that the step led to
    :param ended: environment and length of the episodes that ended, one after the other, int64
        ``[.., 2]``
    :param returns: sums of their raw rewards, ``[..]``
    :param sums: of the raw rewards of the present episodes, ``[n]``; changed
    :param began: number of the step before each one's first, int64 ``[n]``; changed
    :param told: flags of each episode's first frame, ``[n]``; changed
    :param last_obs: what is to be acted on, ``[n, ...]``; changed, and so is the next
    :param last_starts: whether it begins an episode, ``[n]``
    :param uniforms: numbers that choose the actions, float64 ``[n_steps, n]``
    :param counts: the environments' number of steps, how often streams can be read before their
        blocks are used up, and how many episodes have ended; changed
    """

    obs: Any
    starts: Any
    actions: Any
    rewards: Any
    values: Any
    log_probs: Any
    blanked: Any
    ended: Any
    returns: Any
    sums: Any
    began: Any
    told: Any
    last_obs: Any
    last_starts: Any
    uniforms: Any
    counts: Any


class Parts(NamedTuple):
    """The layers of an environment that the loop knows.

    :param previous: what appends the previous action, if anything does
    :param normaliser: what normalises, if anything does
    :param venv: SB3's form of the vector
    :param vector: the environments
    """

    previous: VecPreviousAction | None
    normaliser: VecNormalizeVisible | None
    venv: GymnasiumVecEnv
    vector: SensedCartPoleVectorEnv


def parts_of(env: VecEnv) -> Parts | None:
    """Part an environment into the layers that the loop knows; None if it has others."""
    layer: Any = env
    previous = layer if isinstance(layer, VecPreviousAction) else None
    layer = layer if previous is None else layer.venv
    normaliser = layer if isinstance(layer, VecNormalizeVisible) else None
    layer = layer if normaliser is None else layer.venv
    if not isinstance(layer, GymnasiumVecEnv):
        return None
    vector: Any = layer.env
    return Parts(previous, normaliser, layer, vector)


def has_blanks(vector: SensedCartPoleVectorEnv) -> bool:
    """Tell whether the sensors drop frames."""
    return isinstance(vector, FlickeringCartPoleVectorEnv)


def carts_of_physics(
    physics: CartPolePhysics,
    rows: NDArray[np.float64],
    deadlines: NDArray[np.int64],
    limit: int,
    rewards: NDArray[np.float64],
    sensed: NDArray[np.intp],
    start_items: NDArray[np.float64],
    start_next: NDArray[np.int64],
) -> Any:
    """Return carts as the loop takes them, with the equations' constants of their physics."""
    constants = (
        *(physics._gravity, physics._masspole, physics._total_mass),
        *(physics._length, physics._polemass_length, physics._four_thirds),
    )
    tau = physics._tau
    if physics._semi_implicit:
        tau = np.concatenate((physics._tau_of_two, physics._tau_of_two))
    return Carts(
        rows, physics._semi_implicit, physics._forces_of_actions, physics._limits,
        np.array(constants), tau, deadlines, limit, rewards, sensed, start_items, start_next,
    )  # fmt: skip


def carts_of(vector: SensedCartPoleVectorEnv) -> Any:
    """Return the environments as the loop takes them."""
    starts = vector.starts
    return carts_of_physics(
        vector.physics, vector.physics._rows, vector._deadlines, vector._limit, vector._rewards,
        vector._sensed_rows, starts._items, starts._next,
    )  # fmt: skip


def blanking_of(vector: SensedCartPoleVectorEnv) -> Any:
    """Return their sensors as the loop takes them."""
    n_envs = vector.num_envs
    if not isinstance(vector, FlickeringCartPoleVectorEnv):
        nobody, nothing = np.zeros(n_envs, dtype=bool), np.zeros((3, n_envs))
        return Blanking(False, nobody, nothing, nothing[0], np.zeros(0, np.int64))
    flicker = vector._flicker
    after_blank = flicker._after_visible if flicker._independent else flicker._after_blank
    after_reset = np.full(n_envs, flicker._after_reset)
    thresholds = np.stack((after_reset, flicker._after_visible, after_blank))
    streams = flicker._streams
    return Blanking(True, flicker.blanked.copy(), thresholds, streams._items, streams._next)


def statistics_of(layer: VecNormalizeVisible | None, n_envs: int) -> Any:
    """Return a normaliser as the loop takes it, one that does nothing where there is none."""
    nothing = np.zeros(0)
    if layer is None:
        return Normaliser(
            False, False, False, nothing, nothing, np.zeros(4), np.zeros(n_envs), 0.0, 0.0, 0.0, 0.0
        )
    obs: Any = layer.obs_rms if layer.norm_obs else None
    returns = layer.ret_rms
    scalars = np.array(
        [0.0 if obs is None else obs.count, returns.count, returns.mean, returns.var]
    )
    return Normaliser(
        bool(layer.norm_obs), bool(layer.norm_reward), bool(layer.training),
        nothing if obs is None else obs.mean.copy(), nothing if obs is None else obs.var.copy(),
        scalars, layer.returns.copy(),
        float(layer.gamma), float(layer.epsilon), float(layer.clip_obs), float(layer.clip_reward),
    )  # fmt: skip


def window_of(parts: Parts, model: Any, n_steps: int) -> Any:
    """Return where the steps are written, and what they go on from."""
    venv, vector, n_envs = parts.venv, parts.vector, parts.venv.num_envs
    shape = (n_steps, n_envs)
    # Room for an episode of every environment at each of eight steps, and at the last.
    n_episodes = (n_steps // 8 + 1) * n_envs
    return Window(
        obs=np.empty((n_steps, *model._last_obs.shape), np.float32),
        starts=np.empty(shape, bool),
        actions=np.empty(shape, np.int64),
        rewards=np.empty(shape, np.float32),
        values=np.empty(shape, np.float32),
        log_probs=np.empty(shape, np.float32),
        blanked=np.empty(shape, bool),
        ended=np.empty((n_episodes, 2), np.int64),
        returns=np.empty(n_episodes),
        sums=venv._returns,
        # By the environments' own number of steps, which is another one.
        began=venv._began + (vector._n_steps - venv._n_steps),
        told=venv._reset_told["blanked"] if has_blanks(vector) else np.zeros(n_envs, bool),
        last_obs=np.array(model._last_obs, order="C"),
        last_starts=np.array(model._last_episode_starts, dtype=bool),
        uniforms=model._action_noise.uniforms_ahead(n_steps),
        counts=np.array([vector._n_steps, 0, 0, 0]),
    )


def draw_ahead(vector: SensedCartPoleVectorEnv, counts: NDArray[np.int64]) -> None:
    """Draw random numbers for one step at least, as an ordinary step does at its beginning."""
    streams = {SAFE_STARTS: (vector.starts, 1)}
    if isinstance(vector, FlickeringCartPoleVectorEnv):
        streams[SAFE_FRAMES] = (vector._flicker._streams, 2)
    for place, (stream, n_calls) in streams.items():
        if counts[STEPS] > vector._n_steps:  # in the middle of a stretch
            stream._safe_calls = int(counts[place])
        stream.prepare(n_calls)
        counts[place] = stream._safe_calls


def leave_vector(parts: Parts, window: Any, blanking: Any, taken: int) -> None:
    """Leave the environments as the steps would have; most arrays were changed in place."""
    vector = parts.vector
    vector._n_steps += taken
    vector._ended = window.last_starts.copy()
    vector.starts._safe_calls = int(window.counts[SAFE_STARTS])
    if isinstance(vector, FlickeringCartPoleVectorEnv):
        flicker = vector._flicker
        flicker._streams._safe_calls = int(window.counts[SAFE_FRAMES])
        n_kept = vector._latest_flags.maxlen or 1
        for flags in window.blanked[max(taken - n_kept, 0) : taken]:
            flicker.blanked = flags.copy()
            vector._take_flags(flicker.blanked)
        parts.venv.blanked = flicker.blanked.copy()


def leave_venv(parts: Parts, window: Any, n_ended: int, taken: int) -> None:
    """Leave SB3's form of the vector as the steps would have."""
    venv = parts.venv
    venv._n_steps += taken
    if n_ended > 0:
        venv._began[:] = window.began - (parts.vector._n_steps - venv._n_steps)
        venv._reset_infos_stale = True
        if "_blanked" in venv._reset_told:
            venv._reset_told["_blanked"][window.ended[:n_ended, 0]] = True


def leave_statistics(layer: VecNormalizeVisible | None, statistics: Any) -> None:
    """Leave a normaliser as the steps would have."""
    if layer is None:
        return
    layer.returns = statistics.returns
    if not layer.training:
        return
    returns = layer.ret_rms
    n_frames, n_returns, mean, var = statistics.scalars
    returns.count, returns.mean, returns.var = float(n_returns), mean, var
    if layer.norm_obs:
        obs: Any = layer.obs_rms
        obs.count, obs.mean, obs.var = float(n_frames), statistics.mean, statistics.var

"""Many steps of acting, environments, normaliser and storing as one loop, compiled by Numba.

What each part computes is written elsewhere, in NumPy: CartPole in
:mod:`thrust_pomdp.envs.cartpole_physics`, episodes in :mod:`thrust_pomdp.envs.native_vector`, blank
frames in :mod:`thrust_pomdp.envs.flicker`, normalising in :mod:`thrust_pomdp.vec_env.normalize`.
Here it is again number by number, in the same order and precision, so that the digits are the
same; ``tests/unit/ppo/test_unseen_steps.py`` holds the two against each other. Everything is
compiled exactly. Import this file where Numba is in use only
(:func:`thrust_pomdp.recurrent.compiled.load_kernels`).
"""

from __future__ import annotations

import numpy as np

from thrust_pomdp.ppo.loop_arrays import ENDED, SAFE_FRAMES, SAFE_STARTS, STEPS
from thrust_pomdp.recurrent.jit import compile_exactly as _compile_exactly
from thrust_pomdp.recurrent.kernels_policy import OWN_MEMORY, policy_step, policy_values

_f32, _f64 = np.float32, np.float64


@_compile_exactly
def _advance(carts, i, action):  # type: ignore[no-untyped-def]
    """Integrate one cart over a step, and tell whether it has fallen."""
    rows, constants = carts.rows, carts.constants
    gravity, masspole, total_mass = constants[0, i], constants[1, i], constants[2, i]
    length, polemass_length, four_thirds = constants[3, i], constants[4, i], constants[5, i]
    theta, theta_dot = rows[1, i], rows[3, i]
    sin, cos = np.sin(theta), np.cos(theta)
    temp = (theta_dot * theta_dot * polemass_length * sin + carts.forces[action]) / total_mass
    inertia = (four_thirds - cos * cos * masspole / total_mass) * length
    theta_acc = (gravity * sin - cos * temp) / inertia
    rows[4, i] = temp - polemass_length * theta_acc * cos / total_mass
    rows[5, i] = theta_acc
    if carts.semi_implicit:
        for k in (2, 3, 0, 1):
            rows[k, i] += carts.tau[k, i] * rows[k + 2, i]
    else:
        for k in range(4):
            rows[k, i] += carts.tau[k, i] * rows[k + 2, i]
    return np.abs(rows[0, i]) > carts.limits[0, i] or np.abs(rows[1, i]) > carts.limits[1, i]


@_compile_exactly
def advance(carts, actions, fallen):  # type: ignore[no-untyped-def]
    """Integrate all carts over a step, and tell which have fallen."""
    for i in range(len(actions)):
        fallen[i] = _advance(carts, i, actions[i])


@_compile_exactly
def _sense(carts, blanking, i, frame):  # type: ignore[no-untyped-def]
    """Show one cart as its sensors do."""
    for k in range(len(frame)):
        frame[k] = _f32(carts.rows[carts.sensed[k], i])
        if blanking.blanks and blanking.blanked[i]:
            frame[k] = _f32(0)


@_compile_exactly
def _next_frame(blanking, i, restarted):  # type: ignore[no-untyped-def]
    """Draw whether one environment's next frame is blank."""
    before = 0 if restarted else 1 + blanking.blanked[i]
    blanking.blanked[i] = blanking.items[blanking.next[i]] < blanking.thresholds[before, i]
    blanking.next[i] += 1


@_compile_exactly
def _restart(carts, blanking, i, n_steps):  # type: ignore[no-untyped-def]
    """Begin one environment's next episode, first frame included."""
    carts.deadlines[i] = n_steps + carts.limit
    start = carts.start_items[carts.start_next[i]]
    carts.start_next[i] += 1
    rows = carts.rows
    rows[0, i], rows[2, i], rows[1, i], rows[3, i] = start[0], start[1], start[2], start[3]
    if blanking.blanks:
        _next_frame(blanking, i, True)


@_compile_exactly
def _sum(numbers):  # type: ignore[no-untyped-def]
    """Add float64 numbers up as NumPy does, in eight sums of 128 numbers at most."""
    n = len(numbers)
    if n < 8:
        total = 0.0
        for k in range(n):
            total += numbers[k]
        return total
    if n > 128:
        half = n // 2
        half -= half % 8
        return _sum(numbers[:half]) + _sum(numbers[half:])
    s = numbers[:8].copy()
    whole = n - n % 8
    for k in range(8, whole, 8):
        for j in range(8):
            s[j] += numbers[k + j]
    total = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))
    for k in range(whole, n):
        total += numbers[k]
    return total


@_compile_exactly
def _moments(mean, var, count, batch_mean, batch_squares, n):  # type: ignore[no-untyped-def]
    """Take in a batch's moments as SB3's ``RunningMeanStd.update_from_moments`` does."""
    delta, total = batch_mean - mean, count + n
    m_2 = var * count + batch_squares + delta * delta * count * n / total
    return mean + delta * n / total, m_2 / total


@_compile_exactly
def _update_obs(normaliser, frames, blanking):  # type: ignore[no-untyped-def]
    """Update the statistics of observations with the frames that are visible."""
    n_visible = 0
    for i in range(len(frames)):
        n_visible += not (blanking.blanks and blanking.blanked[i])
    if n_visible == 0:
        return
    for k in range(frames.shape[1]):
        # In float32, sums only divided in float64: as NumPy has it.
        total, squares = _f32(0), _f32(0)
        for i in range(len(frames)):
            if not (blanking.blanks and blanking.blanked[i]):
                total += frames[i, k]
        mean = _f32(_f64(total) / n_visible)
        for i in range(len(frames)):
            if not (blanking.blanks and blanking.blanked[i]):
                deviation = frames[i, k] - mean
                squares += deviation * deviation
        var = _f32(_f64(squares) / n_visible)
        normaliser.mean[k], normaliser.var[k] = _moments(
            normaliser.mean[k], normaliser.var[k], normaliser.scalars[0],
            _f64(mean), _f64(var * _f32(n_visible)), n_visible,
        )  # fmt: skip
    normaliser.scalars[0] += n_visible


@_compile_exactly
def _update_returns(normaliser, rewards):  # type: ignore[no-untyped-def]
    """Update the statistics of the discounted returns."""
    returns, n = normaliser.returns, len(rewards)
    for i in range(n):
        returns[i] = returns[i] * normaliser.gamma + _f64(rewards[i])
    mean = _sum(returns) / n
    squares = np.empty(n, dtype=np.float64)
    for i in range(n):
        squares[i] = (returns[i] - mean) * (returns[i] - mean)
    var = _sum(squares) / n
    normaliser.scalars[2], normaliser.scalars[3] = _moments(
        normaliser.scalars[2], normaliser.scalars[3], normaliser.scalars[1], mean, var * n, n
    )
    normaliser.scalars[1] += n


@_compile_exactly
def _clipped(number, bound):  # type: ignore[no-untyped-def]
    if number > bound:
        return bound
    return -bound if number < -bound else number  # a NaN stays one


@_compile_exactly
def _normalise(normaliser, frame, is_blank):  # type: ignore[no-untyped-def]
    for k in range(len(frame)):
        scale = np.sqrt(normaliser.var[k] + normaliser.epsilon)
        frame[k] = _f32(_clipped((frame[k] - normaliser.mean[k]) / scale, normaliser.clip_obs))
        if is_blank:
            frame[k] = _f32(0)


@_compile_exactly
def take_steps(policy, states, carts, blanking, normaliser, shows_actions, gamma, window, first):  # type: ignore[no-untyped-def]  # fmt: skip
    """Take steps until the window is full, or numbers drawn ahead, or room, may be used up.

    :param policy: a :class:`thrust_pomdp.recurrent.kernels_policy.Policy`
    :param states: of its memories, see :func:`~thrust_pomdp.recurrent.kernels_policy.policy_step`;
        changed
    :param carts: a :class:`~thrust_pomdp.ppo.loop_arrays.Carts`; so the next three
    :param blanking: its ``Blanking``
    :param normaliser: its ``Normaliser``
    :param shows_actions: whether the last action is appended to observations
    :param gamma: discount of what truncated episodes would still have given
    :param window: its ``Window``
    :param first: steps of it that have been taken
    :return: steps of it that are taken now
    """
    n_steps, n_envs = window.actions.shape
    n_seen = len(carts.sensed)
    obs, counts = window.last_obs, window.counts
    new_states = (
        np.empty_like(states[0]), np.empty_like(states[1]),
        np.empty_like(states[2]), np.empty_like(states[3]),
    )  # fmt: skip
    all_actions = np.empty((0, 0), dtype=np.bool_)
    logits = np.empty((n_envs, 2), dtype=np.float32)
    frames, rewards = np.empty((n_envs, n_seen), np.float32), np.empty(n_envs, np.float32)
    final_frames = np.zeros_like(obs)
    final_blanked = np.zeros(n_envs, dtype=np.bool_)
    truncated = np.empty(n_envs, dtype=np.int64)
    for t in range(first, n_steps):
        is_drawn = counts[SAFE_STARTS] >= 1 and (counts[SAFE_FRAMES] >= 2 or not blanking.blanks)
        if not is_drawn or counts[ENDED] + n_envs > len(window.returns):
            return t
        window.obs[t], window.starts[t] = obs, window.last_starts
        actions = window.actions[t]
        policy_step(
            policy, obs, states, window.last_starts, window.uniforms[t], all_actions, new_states,
            actions, window.values[t], window.log_probs[t], logits,
        )  # fmt: skip

        # The environments.
        counts[STEPS] += 1
        counts[SAFE_FRAMES] -= blanking.blanks
        n_truncated, n_ended = 0, counts[ENDED]
        for i in range(n_envs):
            fallen = _advance(carts, i, actions[i])
            late = carts.deadlines[i] <= counts[STEPS]
            window.sums[i] += carts.rewards[i]
            rewards[i] = _f32(carts.rewards[i])
            if blanking.blanks:
                _next_frame(blanking, i, False)
            window.last_starts[i] = fallen or late
            if fallen or late:
                if not fallen:
                    truncated[n_truncated] = i
                    final_blanked[n_truncated] = blanking.blanks and blanking.blanked[i]
                    _sense(carts, blanking, i, final_frames[n_truncated, :n_seen])
                    n_truncated += 1
                ended = counts[ENDED]
                window.ended[ended, 0] = i
                window.ended[ended, 1] = counts[STEPS] - window.began[i]
                window.returns[ended] = window.sums[i]
                window.sums[i], window.began[i] = 0.0, counts[STEPS]
                counts[ENDED] += 1
                _restart(carts, blanking, i, counts[STEPS])
                window.told[i] = blanking.blanked[i]
            _sense(carts, blanking, i, frames[i])
        if counts[ENDED] > n_ended:
            counts[SAFE_STARTS] -= 1
            counts[SAFE_FRAMES] -= blanking.blanks
        window.blanked[t] = blanking.blanked

        # The normaliser.
        if normaliser.training:
            if normaliser.obs:
                _update_obs(normaliser, frames, blanking)
            _update_returns(normaliser, rewards)
        for i in range(n_envs):
            if normaliser.obs:
                _normalise(normaliser, frames[i], blanking.blanks and blanking.blanked[i])
            if normaliser.rewards:
                scale = np.sqrt(normaliser.scalars[3] + normaliser.epsilon)
                rewards[i] = _f32(_clipped(_f64(rewards[i]) / scale, normaliser.clip_reward))
            if window.last_starts[i]:
                normaliser.returns[i] = 0.0

        # The previous action.
        for i in range(n_envs):
            obs[i, :n_seen] = frames[i]
            if shows_actions:
                obs[i, n_seen:] = _f32(0)
                if not window.last_starts[i]:
                    obs[i, n_seen + actions[i]] = _f32(1)

        # What truncated episodes would still have given.
        if n_truncated > 0:
            own = policy.critic == OWN_MEMORY
            new_hidden, new_cell = new_states[2 * own], new_states[2 * own + 1]
            hidden = np.empty((n_truncated, new_hidden.shape[1]), dtype=np.float32)
            cell = np.empty_like(hidden)
            for k in range(n_truncated):
                i = truncated[k]
                hidden[k], cell[k] = new_hidden[i], new_cell[i]
                if normaliser.obs:
                    _normalise(normaliser, final_frames[k, :n_seen], final_blanked[k])
                if shows_actions:
                    final_frames[k, n_seen:] = _f32(0)
                    final_frames[k, n_seen + actions[i]] = _f32(1)
            nowhere = np.zeros(n_truncated, dtype=np.bool_)
            values = policy_values(policy, final_frames[:n_truncated], hidden, cell, nowhere)
            for k in range(n_truncated):
                rewards[truncated[k]] += _f32(gamma) * values[k]
        window.rewards[t] = rewards
        for part in range(4):
            states[part][:] = new_states[part]
    return n_steps

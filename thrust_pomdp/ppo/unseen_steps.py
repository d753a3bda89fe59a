"""Steps that nobody looks at, many of them in one compiled call.

:class:`UnseenSteps` takes them for a model that collects, and leaves everything as if they had been
taken one by one: environments and their random streams, statistics, the rollout buffer, counters,
episodes. Each step at which somebody is called, and the last of a window, is an ordinary one, so
that what is shown there is made in the ordinary way. The loop is in
:mod:`thrust_pomdp.ppo.kernels_collecting`, what keeps it from being used in
:mod:`thrust_pomdp.ppo.unseen_gate`.
"""

from __future__ import annotations

import time
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.observations import check_finite
from thrust_pomdp.ppo.compiled_policy import CompiledPolicy
from thrust_pomdp.ppo.counting_callbacks import count_unseen, steps_unseen
from thrust_pomdp.ppo.loop_arrays import (
    ENDED,
    blanking_of,
    carts_of,
    draw_ahead,
    leave_statistics,
    leave_vector,
    leave_venv,
    parts_of,
    statistics_of,
    window_of,
)
from thrust_pomdp.ppo.prepared_step import WatchedStep
from thrust_pomdp.ppo.unseen_gate import (
    against_buffer,
    against_compiled_steps,
    against_last,
    against_noise,
    loops,
)
from thrust_pomdp.recurrent.sequences import RNNStates

#: Fewer steps than that are not worth looking whether they can be taken at once.
_FEWEST = 4

#: Steps, and numbers of their observations, that are taken at once: what is kept of them is copied.
_MOST_STEPS, _MOST_NUMBERS = 128, 2**20


class UnseenSteps:
    """Takes the steps of a window that nobody looks at.

    :param model: that collects; a :class:`~thrust_pomdp.ppo.collecting.CollectsWindows`
    :param env: its environment
    :param callback: called at each step at which it does more than count
    :param buffer: that is filled
    :param reason: why every step is an ordinary one, as far as is known already
    """

    def __init__(
        self, model: Any, env: VecEnv, callback: BaseCallback, buffer: Any, reason: str | None
    ) -> None:
        self._model, self._env, self._callback, self._buffer = model, env, callback, buffer
        #: Why every step is an ordinary one; None where there may be others.
        self.reason = reason or against_buffer(buffer)

    def take(self, step: Any, n_steps: int) -> int:
        """Take as many of the coming steps as nobody looks at, and return how many they were.

        :param step: the model's policy step
        :param n_steps: how many may be taken
        """
        if self.reason is not None or n_steps < _FEWEST:
            return 0
        n_steps = min(n_steps, steps_unseen(self._callback, self._env.num_envs))
        if n_steps < _FEWEST:
            return 0
        self.reason = self._against(step)
        if self.reason is not None:
            return 0
        n_taken = taken = self._take(step.compiled, n_steps)
        while n_taken < n_steps and taken > 0:
            taken = self._take(step.compiled, n_steps - n_taken)
            n_taken += taken
        return n_taken

    def _against(self, step: Any) -> str | None:
        """Say what somebody has changed since steps could be taken at once."""
        model, env = self._model, self._env
        reason = against_compiled_steps(model.policy, env)
        if reason is None and (type(step) is not WatchedStep or not step.looks_compiled()):
            reason = "the policy's step is not one compiled call"
        return reason or against_noise(model) or against_last(model)

    def _take(self, compiled: CompiledPolicy, n_steps: int) -> int:
        """Take steps in one call, and bring everything to where they have led."""
        model, buffer = self._model, self._buffer
        parts = parts_of(self._env)
        assert parts is not None
        n_envs = parts.venv.num_envs
        n_steps = min(n_steps, _MOST_STEPS, max(_MOST_NUMBERS // model._last_obs.size, 1))
        entering: RNNStates = model._last_lstm_states
        states = tuple(part.copy() for part in compiled.parts_of(entering, n_envs))
        blanking = blanking_of(parts.vector)
        statistics = statistics_of(parts.normaliser, n_envs)
        window = window_of(parts, model, n_steps)
        arguments = (
            compiled.arrays(), states, carts_of(parts.vector), blanking, statistics,
            parts.previous is not None, float(model.gamma), window,
        )  # fmt: skip
        taken, before = 0, -1
        while taken < n_steps and taken > before:
            draw_ahead(parts.vector, window.counts)
            before, taken = taken, loops().take_steps(*arguments, taken)
        if taken == 0:
            return 0
        n_ended = int(window.counts[ENDED])
        seconds = round(time.time() - parts.venv._start_time, 6)
        leave_vector(parts, window, blanking, taken)
        leave_venv(parts, window, n_ended, taken)
        leave_statistics(parts.normaliser, statistics)
        model._last_obs, model._last_episode_starts = window.last_obs, window.last_starts
        model._last_lstm_states = compiled.states_of(states)
        model._action_noise.advance(taken)
        model.num_timesteps += taken * model._n_envs_of_training()
        count_unseen(self._callback, taken, n_envs, n_ended)
        lengths, returns = window.ended[:n_ended, 1].tolist(), window.returns[:n_ended].tolist()
        for length, total in zip(lengths, returns, strict=True):
            model.ep_info_buffer.append({"r": round(total, 6), "l": length, "t": seconds})
        check_finite(window.obs[:taken], "observation", buffer.pos)
        check_finite(window.last_obs[None], "observation", buffer.pos + taken)
        check_finite(window.rewards[:taken], "reward", buffer.pos)
        buffer.add_steps(
            window.obs[:taken], window.actions[:taken], window.rewards[:taken],
            window.starts[:taken], window.values[:taken], window.log_probs[:taken], entering,
        )  # fmt: skip
        return taken

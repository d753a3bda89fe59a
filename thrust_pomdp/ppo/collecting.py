"""Collecting one window of every environment, with the memory that goes along."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import (
    obs_as_tensor,
)
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.observations import check_finite_obs, map_obs, stack_obs
from thrust_pomdp.ppo.action_noise import ActionNoise, drawing_from
from thrust_pomdp.ppo.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from thrust_pomdp.ppo.checks import (
    check_finite_outputs,
    check_finite_step,
)
from thrust_pomdp.ppo.code_between_steps import against_acting_alone, against_model
from thrust_pomdp.ppo.policies import (
    RecurrentActorCriticPolicy,
)
from thrust_pomdp.ppo.prepared_step import Step, WatchedStep
from thrust_pomdp.ppo.sequence_batch import map_states
from thrust_pomdp.ppo.unseen_steps import UnseenSteps
from thrust_pomdp.recurrent.sequences import LSTMState, RNNStates
from thrust_pomdp.unmodified_classes import against_methods, remember
from thrust_pomdp.vec_env.step_infos import StepInfos
from thrust_pomdp.vec_env.window_statistics import end_windows

#: Methods of a step that a subclass may override.
STEP_METHODS = (
    *("collect_rollouts", "_make_step", "_tell_more", "_update_info_buffer", "_actions_for_env"),
    *("_n_envs_of_training", "_bootstrap_truncated", "_values", "_as_tensors", "_as_floats"),
    "_reset_matrices",
)


@remember
class CollectsWindows(OnPolicyAlgorithm):
    """How :class:`~thrust_pomdp.ppo.recurrent_ppo.RecurrentPPO` fills its buffer."""

    policy: RecurrentActorCriticPolicy
    window_state: str
    _last_lstm_states: RNNStates | None
    #: The random numbers behind the actions of this process's environments.
    _action_noise: ActionNoise
    #: Whether nobody else's code runs between the steps of the present window.
    _acts_alone = False
    #: What acts in the present window.
    _acting_step: Step | None = None

    def _n_envs_of_training(self) -> int:
        """Return how many environments are trained in, those of other processes included."""
        return int(self.n_envs)

    def collect_rollouts(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutBuffer,
        n_rollout_steps: int,
    ) -> bool:
        """Fill the buffer with one window of every environment.

        :param env: the training environment
        :param callback: called at each step, and at the window's beginning and end
        :param rollout_buffer: the buffer to fill
        :param n_rollout_steps: steps of the window
        :return: False if the callback asked to stop
        """
        assert isinstance(rollout_buffer, (RecurrentRolloutBuffer, RecurrentDictRolloutBuffer))
        assert self._last_obs is not None
        assert self._last_episode_starts is not None
        self.policy.set_training_mode(False)
        # SB3 resets the environment on its own accord before the first window of a learn().
        rollout_buffer.episode_start_carry = self._last_episode_starts.astype(bool)
        rollout_buffer.reset()
        check_finite_step(self._last_obs, None, 0)
        if self.use_sde:
            self._reset_matrices(env.num_envs)
        callback.on_rollout_start()

        if self.window_state == "zero" or self._last_lstm_states is None:
            self._last_lstm_states = self.policy.zero_states(env.num_envs)
        lstm_states = self._last_lstm_states
        self._acts_alone = against_acting_alone(self, env, callback) is None
        acting, step = self.policy, self._next_step(env, rollout_buffer)
        unseen = UnseenSteps(self, env, callback, rollout_buffer, self._against_unseen_steps())
        n_steps = 0
        while n_steps < n_rollout_steps:
            if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
                self._reset_matrices(env.num_envs)
            if self.policy is not acting:  # a callback has put another in place
                acting, step = self.policy, self._next_step(env, rollout_buffer)
            if n_unseen := unseen.take(step, n_rollout_steps - n_steps - 1):
                n_steps, lstm_states = n_steps + n_unseen, self._last_lstm_states
            entering_states = lstm_states
            obs_tensor = self._as_tensors(self._last_obs)
            episode_starts = self._as_floats(self._last_episode_starts)
            with th.no_grad(), drawing_from(self._action_noise):
                actions_tensor, values, log_probs, lstm_states = step(
                    obs_tensor, entering_states, episode_starts
                )
            self._action_noise.advance()
            actions = actions_tensor.cpu().numpy()
            clipped_actions = self._actions_for_env(actions)
            new_obs, rewards, dones, infos = env.step(clipped_actions)
            check_finite_step(new_obs, rewards, n_steps + 1)
            self.num_timesteps += self._n_envs_of_training()

            # Users' callbacks read these local names; they are sb3_contrib's.
            callback.update_locals(locals())
            self._tell_more(callback)
            if not callback.on_step():
                self._last_obs = new_obs  # type: ignore[assignment]
                self._last_episode_starts = dones
                self._last_lstm_states = lstm_states
                return False
            self._update_info_buffer(infos, dones)
            n_steps += 1

            rewards = self._bootstrap_truncated(rewards, dones, infos, lstm_states, n_steps - 1)
            rollout_buffer.add(
                self._last_obs,
                actions,
                rewards,
                self._last_episode_starts,
                values,
                log_probs,
                lstm_states=entering_states,
            )
            self._last_obs = new_obs  # type: ignore[assignment]
            self._last_episode_starts = dones
            self._last_lstm_states = lstm_states
            # What their loop over the environments leaves for the next step's callbacks.
            idx, done_ = env.num_envs - 1, dones[-1]

        # The memory carried up to the cut, also where the next window starts from zero.
        values = self._final_values(new_obs, lstm_states, dones)
        check_finite_outputs(rollout_buffer)
        rollout_buffer.compute_returns_and_advantage(last_values=values, dones=dones)
        carried = lstm_states if self.window_state == "carry" else None
        rollout_buffer.seed_warm_start(n_steps - 1, carried, dones)
        self._acting_step = None
        self._end_window(env)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _end_window(self, env: VecEnv) -> None:
        """Let statistics that wait for it take in the window."""
        end_windows(env)

    def _final_values(self, obs: Any, states: RNNStates, dones: NDArray[Any]) -> th.Tensor:
        """Return the values of the observations after the last step, ``[n_envs]``."""
        with th.no_grad():
            return self._values(self._as_tensors(obs), states.vf, self._as_floats(dones))

    def _reset_matrices(self, n_envs: int) -> None:
        """Draw gSDE's exploration matrices anew, each from its environment's stream."""
        with drawing_from(self._action_noise):
            self.policy.reset_noise(n_envs)

    def _as_tensors(self, obs: Any) -> Any:
        """Return observations in torch's own memory, whatever memory they lie in.

        Matrix products round by that: the same seed would give other numbers from run to run.
        """
        return map_obs(th.clone, obs_as_tensor(obs, self.device))

    def _as_floats(self, flags: NDArray[Any]) -> th.Tensor:
        """Return flags as ``sb3_contrib`` hands them to policies and callbacks."""
        return th.as_tensor(flags.astype(np.float32), device=self.device)

    def _values(self, obs: Any, states: LSTMState, episode_starts: th.Tensor) -> th.Tensor:
        """Return values, as the policy predicts them, by the step that acts if it is the policy's.

        A callback may have put another policy in place since it acted.
        """
        step = self._acting_step
        if isinstance(step, WatchedStep) and step.policy is self.policy:
            return step.values(obs, states, episode_starts)
        return self.policy.predict_values(obs, states, episode_starts)

    def _against_unseen_steps(self) -> str | None:
        """Say whose code runs at each step, callbacks, policy and environments apart."""
        return against_methods(self, STEP_METHODS, CollectsWindows) or against_model(self)

    def _next_step(self, env: VecEnv, rollout_buffer: Any) -> Step:
        """Return what acts from here on."""
        self._acting_step = self._make_step(env, rollout_buffer)
        return self._acting_step

    def _make_step(self, env: VecEnv, rollout_buffer: Any) -> Step:
        """Return what acts while the buffer is filled."""
        return WatchedStep(self.policy, alone=self._acts_alone)

    def _tell_more(self, callback: BaseCallback) -> None:
        """Tell callbacks more of the step just taken than the local names."""

    def _update_info_buffer(
        self, infos: list[dict[str, Any]], dones: NDArray[np.bool_] | None = None
    ) -> None:
        """Take note of ended episodes, as SB3 does by looking into every info of every step."""
        if isinstance(infos, StepInfos) and dones is not None:
            # Only ended episodes have statistics here, and looking at the other infos builds them.
            ended = dones.nonzero()[0]
            infos, dones = [infos[idx] for idx in ended], dones[ended]
        super()._update_info_buffer(infos, dones)

    def _actions_for_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Bring sampled actions into the bounds of a Box space."""
        if not isinstance(self.action_space, spaces.Box):
            return actions
        if self.policy.squash_output:
            actions = self.policy.unscale_action(actions)
        else:
            actions = np.clip(actions, self.action_space.low, self.action_space.high)
        return actions

    def _bootstrap_truncated(
        self,
        rewards: NDArray[Any],
        dones: NDArray[Any],
        infos: list[dict[str, Any]],
        lstm_states: RNNStates,
        step: int,
    ) -> NDArray[Any]:
        """Add the discounted value of the final observation where an episode was cut off by time.

        The value is taken with the memory carried up to the final observation; the live memory is
        not advanced. See https://github.com/DLR-RM/stable-baselines3/issues/633
        """
        truncated = [
            idx
            for idx in dones.nonzero()[0].tolist()
            if infos[idx].get("TimeLimit.truncated", False)
            and infos[idx].get("terminal_observation") is not None
        ]
        if not truncated:
            return rewards
        for idx in truncated:
            name = f"final observation of environment {idx} at step {step} of the rollout"
            check_finite_obs(infos[idx]["terminal_observation"], name)
        final_obs = stack_obs([infos[idx]["terminal_observation"] for idx in truncated])
        rows = th.as_tensor(truncated, device=self.device)
        states = map_states(lstm_states, lambda tensor: tensor.index_select(1, rows))
        with th.no_grad():
            values = self._values(
                self.policy.obs_to_tensor(final_obs)[0],
                states.vf,
                th.zeros(len(truncated), device=self.device),
            )
        # A VecEnv of somebody else's may give whole numbers.
        rewards = np.array(rewards, dtype=np.result_type(rewards, np.float32))
        rewards[truncated] += self.gamma * values.flatten().cpu().numpy()
        return rewards

"""``predict``: a recurrent policy asked from outside, with its memory handed in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.type_aliases import PyTorchObs

from thrust_pomdp.arguments import (
    check_switch,
)
from thrust_pomdp.errors import MEMORY_IS_KEPT, ArgumentError, warn_user
from thrust_pomdp.observations import check_finite_obs, map_obs
from thrust_pomdp.ppo.action_noise import ACTING, ActionNoise, drawing_from, fresh_seed
from thrust_pomdp.ppo.network import RecurrentNetwork
from thrust_pomdp.recurrent.protocol import Memory
from thrust_pomdp.recurrent.sequences import LSTMState

#: So many calls of ``predict`` without a state are no accident.
_STATELESS_CALLS = 10


class PredictingPolicy(RecurrentNetwork):
    """What :class:`~thrust_pomdp.ppo.policies.RecurrentActorCriticPolicy` answers from outside."""

    #: The random numbers behind what is asked for from outside; made when first needed.
    _acting_noise: ActionNoise | None = None

    def seed_actions(self, seed: int) -> None:
        """Start the random numbers of :meth:`predict` anew.

        A model's ``set_random_seed`` does so too.

        :param seed: a whole number of at least 0
        """
        self._acting_noise = ActionNoise(seed, 1, purpose=ACTING)

    @contextmanager
    def sampling(self, n_envs: int) -> Iterator[None]:
        """Let the actions of one step that is asked for from outside be drawn inside.

        Each environment's random numbers are a stream of their own, which no other generator has a
        say in. It goes on by one step each time.

        :param n_envs: number of observations
        """
        if self._acting_noise is None:
            self.seed_actions(fresh_seed())
        noise = self._acting_noise
        assert noise is not None
        noise.n_envs = n_envs
        with drawing_from(noise):
            yield
        noise.advance()

    @abstractmethod
    def _predict(  # type: ignore[override]
        self,
        observation: PyTorchObs,
        lstm_states: LSTMState,
        episode_starts: th.Tensor,
        deterministic: bool = False,
    ) -> tuple[th.Tensor, LSTMState]:
        """Return the actions and the actor's states after the observation."""

    def obs_to_tensor(
        self, observation: NDArray[Any] | dict[str, NDArray[Any]]
    ) -> tuple[PyTorchObs, bool]:
        """Return observations as tensors in torch's own memory, and whether there were several.

        Matrix products round by where operands lie in memory, and NumPy's arrays lie anywhere.
        """
        obs, vectorized = super().obs_to_tensor(observation)
        return map_obs(th.clone, obs), vectorized

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: NDArray[Any] | tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
    ) -> tuple[NDArray[Any], Any]:
        """Return actions for observations, and the memory to hand in with the next ones.

        .. warning::
            Give back the state this returned, and ``episode_start=True`` with the first observation
            of an episode. Without them the policy forgets everything at every step; nothing fails,
            it only acts badly.

        >>> action, state = model.predict(obs, state, episode_start)  # doctest: +SKIP

        :param observation: one observation or ``[n_envs, *obs_shape]``
        :param state: hidden and cell state of an LSTM, each ``[n_layers, n_envs, hidden]``, or the
            state of a GRU or plain RNN, one such array; of a memory of one's own its parts, or the
            only one; None for zeros
        :param episode_start: ``[n_envs]``, true where memory is to be cleared first; default none
        :param deterministic: take the most likely action instead of sampling. Samples are drawn
            from random numbers of the policy's own, which :meth:`seed_actions` seeds
        :return: the actions and the new state
        :raises ValueError: if ``state`` or ``episode_start`` does not fit the observations, or the
            observations do not fit their space
        """
        self.set_training_mode(False)
        check_switch("deterministic", deterministic)
        self._warn_if_state_is_forgotten(state, episode_start)
        if isinstance(observation, tuple):
            raise ValueError(
                "observation is a tuple: Gymnasium's reset() returns (obs, info), of which "
                "predict() takes the first"
            )
        observation = self._checked_keys(observation)
        check_finite_obs(observation, "observation given to predict()")
        obs, vectorized = self.obs_to_tensor(observation)
        n_envs = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        with th.no_grad(), nullcontext() if deterministic else self.sampling(n_envs):
            actions, new_states = self._predict(
                obs,
                self._states_to_tensors(state, n_envs),
                self._starts_to_tensor(episode_start, n_envs),
                deterministic,
            )
        parts = tuple(tensor.cpu().numpy() for tensor in new_states)
        new_state = parts if len(parts) > 1 else parts[0]
        array = actions.cpu().numpy().reshape((-1, *(self.action_space.shape or ())))
        if isinstance(self.action_space, spaces.Box):
            if self.squash_output:
                array = self.unscale_action(array)
            else:
                array = np.clip(array, self.action_space.low, self.action_space.high)
        return (array if vectorized else array.squeeze(axis=0)), new_state

    def _checked_keys(self, observation: Any) -> Any:
        if not isinstance(self.observation_space, spaces.Dict):
            if isinstance(observation, dict):
                raise ArgumentError(
                    f"observation must be of the space {self.observation_space}, got a dict with "
                    f"the keys {list(observation)}"
                )
            return observation
        expected = list(self.observation_space.spaces)
        keys = list(observation) if isinstance(observation, dict) else type(observation).__name__
        if not isinstance(observation, dict) or set(expected) != set(keys):
            raise ValueError(f"observation must be a dict with the keys {expected}, got {keys}")
        return observation

    def _warn_if_state_is_forgotten(self, state: Any, episode_start: Any) -> None:
        """Warn once when call after call of ``predict`` comes without any memory."""
        if MEMORY_IS_KEPT.get():
            return
        if state is not None:
            self._stateless_calls = 0
        elif episode_start is None or not np.all(episode_start):
            # Where every observation starts an episode there is nothing to remember.
            self._stateless_calls += 1
        if self._stateless_calls == _STATELESS_CALLS and not self._warned_of_forgotten_state:
            self._warned_of_forgotten_state = True
            warn_user(
                f"predict() was called {_STATELESS_CALLS} times in a row without a state, so the "
                "policy forgot everything each time: hand in the state it returned and "
                "episode_start (`action, state = model.predict(obs, state, episode_start)`), or "
                "let thrust_pomdp.StatefulActor(model) keep it"
            )

    def _states_to_tensors(
        self, state: NDArray[Any] | tuple[NDArray[Any], ...] | None, n_envs: int
    ) -> LSTMState:
        zeros = self.zero_states(n_envs).pi
        if state is None:
            return zeros
        # A pair in one array is a pair.
        is_whole = isinstance(state, (tuple, list)) or np.ndim(state) > zeros[0].ndim
        parts: Any = state if is_whole else (state,)
        shapes = [np.shape(part) for part in parts]
        if shapes != [tuple(part.shape) for part in zeros]:
            raise ValueError(f"{self._expected_state(zeros)}, got {shapes}")
        if not all(np.isfinite(part).all() for part in parts):
            raise ValueError("state must be finite: the weights or an observation have spoilt it")
        return tuple(
            th.as_tensor(part, dtype=zero.dtype, device=zero.device).clone()
            for part, zero in zip(parts, zeros, strict=True)
        )

    def _expected_state(self, zeros: LSTMState) -> str:
        """Say what a state must be."""
        names, n_envs = self._state_names(self.lstm_actor), zeros[0].shape[1]
        first = tuple(zeros[0].shape)
        if isinstance(self.lstm_actor, Memory):
            shapes = ", ".join(
                f"{name} {tuple(part.shape)}" for name, part in zip(names, zeros, strict=True)
            )
            return f"state must be what predict() returned, {shapes} for {n_envs} observation(s)"
        pair = len(names) > 1
        return (
            f"state must be the {'(hidden, cell) pair' if pair else 'array'} that predict() "
            f"returned, {'each ' if pair else ''}of shape (n_layers, n_envs, hidden) = {first} "
            f"for {n_envs} observation(s)"
        )

    def _starts_to_tensor(self, episode_start: NDArray[Any] | None, n_envs: int) -> th.Tensor:
        if episode_start is None:
            return th.zeros(n_envs, device=self.device)
        starts = np.asarray(episode_start).reshape(-1)
        if starts.dtype.kind not in "biuf" or not np.isfinite(starts).all():
            raise ArgumentError(f"episode_start must be flags, got {episode_start!r}")
        starts = starts.astype(bool)
        if len(starts) != n_envs:
            raise ValueError(
                f"episode_start must have one flag per observation, {n_envs}, got {len(starts)}"
            )
        return th.as_tensor(starts.astype(np.float32), device=self.device)

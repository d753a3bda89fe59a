"""A rollout buffer that keeps each environment's window whole and in time order.

Storage has SB3's axes, ``[n_steps, n_envs, ...]``; batches are environment-major, ``[n_seq,
n_steps, ...]``::

    stored                      handed out
    step 0:  env0 env1 env2     env0:  step0 step1 ... step(n-1)
    step 1:  env0 env1 env2     env1:  step0 step1 ... step(n-1)
    ...                         env2:  step0 step1 ... step(n-1)

A minibatch is a set of whole rows on the right, so it needs neither padding nor masks. Of a
training's memory observations can be most, so they are held once: they lie in memory as on the
right from the beginning, and each minibatch is copied from there.
:mod:`thrust_pomdp.ppo.subsequences` cuts the rows on request.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer

from thrust_pomdp.arguments import check_count, check_flag, check_fraction
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.observations import map_obs
from thrust_pomdp.ppo.flat_samples import flat_samples
from thrust_pomdp.ppo.gae import gae
from thrust_pomdp.ppo.minibatch_sizes import minibatch_sizes, sizes_of
from thrust_pomdp.ppo.recorded_states import RecordedStates
from thrust_pomdp.ppo.sequence_batch import SequenceBatch, map_states
from thrust_pomdp.ppo.subsequences import StatesAfter, Subsequences
from thrust_pomdp.ppo.window_arrays import env_major_zeros, lent_env_major, on_host, put
from thrust_pomdp.recurrent.sequences import ResetLayout, RNNStates, zero_states
from thrust_pomdp.settings import check_device

Array = NDArray[Any]


class _SequenceStorage(RecordedStates):
    """What the Box and the Dict buffer add to SB3's; mixed in before the SB3 class.

    The SB3 class owns the arrays of the window; this one owns how they are filled, what connects a
    window to the next (the states that enter step 0 and the episode starts of step 0) and the
    change of layout.
    """

    # Provided by SB3's class.
    buffer_size: int
    n_envs: int
    pos: int
    full: bool
    gamma: float
    gae_lambda: float
    device: th.device
    action_space: spaces.Space[Any]
    observations: Any
    actions: Array
    rewards: Array
    values: Array
    log_probs: Array
    advantages: Array
    returns: Array
    episode_starts: Array

    #: Whether sequences may share the memory of what is stored.
    _lends = False

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        gae_lambda: float = 1,
        gamma: float = 0.99,
        n_envs: int = 1,
        *,
        record_states: bool = False,
        hidden_state_shape: Any = None,
    ) -> None:
        if hidden_state_shape is not None or isinstance(device, (tuple, list)):
            raise ValueError(
                "hidden_state_shape is sb3_contrib's: this buffer takes the shape of the states "
                "from the first add(); record_states=True keeps those of every step "
                "(hidden_states_pi and so on)"
            )
        buffer_size = check_count("buffer_size", buffer_size)
        n_envs = check_count("n_envs", n_envs)
        gamma, gae_lambda = check_fraction("gamma", gamma), check_fraction("gae_lambda", gae_lambda)
        self._check_spaces(observation_space, action_space)
        check_device(device)
        self.record_states = check_flag("record_states", record_states)
        # Two places: collection ends by seeding the next window while training still needs this
        # one's states.
        self._initial_state: RNNStates | None = None
        self._carried_state: RNNStates | None = None
        self._entering: RNNStates | None = None
        self._recorded: dict[str, Array] = {}
        self._cut: Subsequences | None = None
        self._batch: SequenceBatch | None = None
        self._generator = np.random.default_rng()
        super().__init__(  # type: ignore[call-arg]
            buffer_size, observation_space, action_space, device, gae_lambda, gamma, n_envs
        )
        self.episode_start_carry: NDArray[np.bool_] = np.ones(self.n_envs, dtype=bool)

    def _check_spaces(self, observation_space: Any, action_space: Any) -> None:
        kinds = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
        is_of_dicts = isinstance(self, DictRolloutBuffer)
        if not isinstance(observation_space, spaces.Dict if is_of_dicts else kinds):
            rule = (
                "a Dict" if is_of_dicts else "a Box, Discrete, MultiDiscrete or MultiBinary space"
            )
            other = RecurrentRolloutBuffer if is_of_dicts else RecurrentDictRolloutBuffer
            raise ArgumentError(
                f"observation_space must be {rule} for this buffer, got {observation_space!r}: "
                f"there is {other.__name__} too"
            )
        if not isinstance(action_space, kinds):
            raise ArgumentError(
                "action_space must be a Box, Discrete, MultiDiscrete or MultiBinary space, got "
                f"{action_space!r}"
            )

    def seed(self, seed: int | None) -> None:
        """Seed the shuffling of :meth:`to_minibatches`, which uses no global generator."""
        self._generator = np.random.default_rng(seed)

    def cut_windows(self, sequence_length: int, burn_in: int = 0) -> None:
        """Hand out subsequences from now on: see :mod:`thrust_pomdp.ppo.subsequences`.

        Each ``add`` must then be given the states. They are stored where subsequences start only.

        :param sequence_length: steps of a subsequence, a divisor of ``buffer_size``
        :param burn_in: steps to be run before each subsequence but a window's first; minibatches
            then hold them as ``burn_in``
        :raises ValueError: naming the argument, the rule and the value, or if the window has begun
        """
        if self.pos > 0:
            raise ValueError(
                f"the window has begun ({self.pos} steps): call cut_windows() before add()"
            )
        self._cut = Subsequences(self.buffer_size, sequence_length, burn_in)

    def reset(self) -> None:
        """Clear the window; the start flags and the states carried to step 0 survive it."""
        self._batch = None  # which may hold the last window's observations
        super().reset()  # type: ignore[misc]
        self.observations = map_obs(env_major_zeros, self.observations)
        self._initial_state = self._carried_state
        self._recorded = {}
        if isinstance(self.action_space, spaces.Box):
            # SB3 stores the space's dtype: a float16 space would round the action that was taken,
            # and its recomputed log-probability would belong to another one.
            self.actions = self.actions.astype(np.float32)

    def add(
        self,
        obs: Any,
        action: Array,
        reward: Array,
        episode_start: Array,
        value: th.Tensor,
        log_prob: th.Tensor,
        lstm_states: RNNStates | None = None,
    ) -> None:
        """Add one step of every environment.

        :param obs: ``[n_envs, *obs_shape]``, or a dict of such
        :param action: ``[n_envs, ...]``
        :param reward: ``[n_envs]``
        :param episode_start: ``[n_envs]``, whether the observation starts an episode
        :param value: the critic's estimate, ``n_envs`` numbers
        :param log_prob: log-probability of the action, ``[n_envs]``
        :param lstm_states: the states that **entered** the step, each ``[n_layers, n_envs,
            ...]``. The window's first ones are kept for training; all of them with
            ``record_states=True``.
        :raises ValueError: if the window is full, if the states have another number of
            environments, or if they are missing while states are recorded
        """
        if self.full:
            raise ValueError(
                f"the window is full ({self.buffer_size} steps): call reset() before add()"
            )
        if lstm_states is not None:
            self._keep_states(lstm_states)
        elif self.record_states:
            raise ValueError("record_states=True needs lstm_states in every call of add()")
        elif self._cut is not None:
            raise ValueError("cut_windows() needs lstm_states in every call of add()")
        step = self.pos
        if isinstance(self.observations, dict):
            for key, storage in self.observations.items():
                put("obs", storage[step], obs[key])
        else:
            put("obs", self.observations[step], obs)
        put("action", self.actions[step], action)
        put("reward", self.rewards[step], reward)
        put("episode_start", self.episode_starts[step], episode_start)
        put("value", self.values[step], on_host(value))
        put("log_prob", self.log_probs[step], on_host(log_prob))
        self.pos = step + 1
        self.full = self.pos == self.buffer_size
        self._batch = None

    def add_steps(
        self,
        obs: Array,
        actions: Array,
        rewards: Array,
        episode_starts: Array,
        values: Array,
        log_probs: Array,
        lstm_states: RNNStates,
    ) -> None:
        """Add several steps of every environment, as :meth:`add` adds one.

        :param obs: ``[n_steps, n_envs, *obs_shape]``; the others likewise
        :param lstm_states: the states that entered the first of these steps
        :raises ValueError: if there is no room for so many
        """
        begin, end = self.pos, self.pos + len(obs)
        if end > self.buffer_size:
            raise ValueError(f"the window has room for {self.buffer_size - begin} steps more")
        self._keep_states(lstm_states)
        for storage, given in (
            (self.observations, obs),
            (self.actions, actions),
            (self.rewards, rewards),
            (self.episode_starts, episode_starts),
            (self.values, values),
            (self.log_probs, log_probs),
        ):
            rows = storage[begin:end]
            rows[...] = given.reshape(rows.shape)
        self.pos = end
        self.full = end == self.buffer_size
        self._batch = None

    def _keep_states(self, states: RNNStates) -> None:
        n_envs = states.pi[0].shape[1]
        if n_envs != self.n_envs:
            raise ValueError(
                f"lstm_states must be of shape [n_layers, n_envs={self.n_envs}, hidden], "
                f"got {tuple(states.pi[0].shape)}"
            )
        self._entering = states
        if self.pos == 0:
            # None stands for zeros: the sequence layer need not look at them.
            remembers = any(bool(tensor.any()) for pair in states for tensor in pair)
            self._initial_state = map_states(states, _copy) if remembers else None
        if self._cut is not None:
            self._cut.keep(self.pos, states)
        if not self.record_states:
            return
        self._record(self.pos, states)

    @property
    def initial_state(self) -> RNNStates | None:
        """The states that entered step 0 of the window; None stands for zeros."""
        return self._initial_state

    @property
    def carried_state(self) -> RNNStates | None:
        """The states that :meth:`reset` lets enter step 0 of the next window; None for zeros."""
        return self._carried_state

    def seed_warm_start(
        self, last_step: int, final_state: RNNStates | None, dones: NDArray[np.bool_]
    ) -> None:
        """Carry the memory across the cut between this window and the next.

        Sets the states that enter step 0 of the next window and, in lockstep, the flags that say
        where that step starts an episode.

        :param last_step: index of the last step added, so that a flag of another step is noticed
        :param final_state: each environment's states after ``last_step``, ``[n_layers, n_envs,
            hidden]``; None for zeros (Strategy A)
        :param dones: ``[n_envs]``, whether the episode ended on ``last_step``, terminated or
            truncated; the states of these environments become zero
        :raises ValueError: if ``last_step`` is not the last step added or sizes do not fit
        """
        if last_step != self.pos - 1:
            raise ValueError(
                f"last_step must be the last step added, {self.pos - 1}, got {last_step}"
            )
        ended = np.asarray(dones).astype(bool)
        if ended.shape != (self.n_envs,):
            raise ValueError(f"dones must be of shape ({self.n_envs},), got {ended.shape}")
        if final_state is not None and final_state.pi[0].shape[1] != self.n_envs:
            raise ValueError(
                f"final_state must be of shape [n_layers, n_envs={self.n_envs}, hidden], "
                f"got {tuple(final_state.pi[0].shape)}"
            )
        self.episode_start_carry = ended.copy()
        self._carried_state = None
        if final_state is not None:
            where = th.from_numpy(ended).to(final_state.pi[0].device)
            self._carried_state = map_states(
                final_state, lambda part: zero_states((part.detach(),), where)[0]
            )

    def compute_returns_and_advantage(
        self, last_values: th.Tensor, dones: Array, valid_steps: int | None = None
    ) -> None:
        """Compute GAE(lambda) advantages and TD(lambda) returns (Schulman et al. 2016).

        The trace is cut wherever an episode ended. A truncated episode's value of its final
        observation has been added to its last reward by the caller, as SB3 does.

        :param last_values: value of the observation after the last step, ``[n_envs]``
        :param dones: whether the episode ended on the last step, ``[n_envs]``
        :param valid_steps: use only the first so many steps of the window
        """
        steps = self._checked_steps(valid_steps)
        for name, given in (("last_values", last_values.numel()), ("dones", np.size(dones))):
            if given != self.n_envs:
                raise ValueError(f"{name} must hold {self.n_envs} numbers, got {given}")
        last = last_values.detach().cpu().numpy().reshape(1, self.n_envs).astype(np.float32)
        ended = np.asarray(dones, dtype=np.float32).reshape(1, self.n_envs)
        self.advantages[:steps] = gae(
            self.rewards[:steps],
            np.concatenate((self.values[:steps], last)),
            1.0 - np.concatenate((self.episode_starts[1:steps], ended)),
            self.gamma,
            self.gae_lambda,
        )
        self.returns = self.advantages + self.values
        self._batch = None

    def _checked_steps(self, valid_steps: int | None) -> int:
        if valid_steps is None:
            if not self.full:
                raise ValueError(
                    f"the window has {self.pos} of {self.buffer_size} steps: fill it or pass "
                    "valid_steps"
                )
            return self.buffer_size
        if not 1 <= valid_steps <= self.pos:
            raise ValueError(
                f"valid_steps must lie between 1 and the {self.pos} steps added, got {valid_steps}"
            )
        return valid_steps

    def to_sequence_batch(self, valid_steps: int | None = None) -> SequenceBatch:
        """Return every environment's window as one sequence, in the order of the environments.

        :param valid_steps: only the first so many steps; the whole window when None
        :raises ValueError: if fewer steps have been added
        """
        steps = self._checked_steps(valid_steps)
        starts = self.episode_starts[:steps].T != 0
        state = self._initial_state
        return SequenceBatch(
            observations=map_obs(lambda part: self._windows_of(part[:steps]), self.observations),
            actions=self._env_major(self.actions[:steps]),
            old_values=self._env_major(self.values[:steps]),
            old_log_prob=self._env_major(self.log_probs[:steps]),
            advantages=self._env_major(self.advantages[:steps]),
            returns=self._env_major(self.returns[:steps]),
            episode_starts=th.as_tensor(starts.copy(), device=self.device),
            initial_state=None if state is None else map_states(state, self._to_device),
            layout=ResetLayout.from_episode_starts(starts, self.device),
        )

    def _to_device(self, tensor: th.Tensor) -> th.Tensor:
        return tensor.to(self.device)

    def _env_major(self, array: Array) -> th.Tensor:
        """Turn ``[n_steps, n_envs, ...]`` storage into a ``[n_envs, n_steps, ...]`` tensor."""
        # A copy in torch's memory, since matrix products round by where their operands lie.
        turned = th.as_tensor(array, device=self.device).transpose(0, 1)
        return turned.clone(memory_format=th.contiguous_format)

    def _windows_of(self, observations: Array) -> th.Tensor:
        """Do the same, without a copy where minibatches are going to be copied from it."""
        lent = lent_env_major(observations) if self._lends else None
        return self._env_major(observations) if lent is None else self._to_device(lent)

    def to_minibatches(
        self, envs_per_minibatch: int | Sequence[int], shuffle: bool = True
    ) -> Generator[SequenceBatch, None, None]:
        """Yield minibatches of whole windows; every environment comes exactly once.

        After :meth:`cut_windows` of subsequences, each of which comes exactly once.

        :param envs_per_minibatch: number of environments (subsequences) in a minibatch, the last
            one taking what is left; or the number in each
        :param shuffle: draw their order anew, else environment by environment in time order
        :raises ValueError: if ``envs_per_minibatch`` is below 1, numbers do not add up, or the
            window is not full
        """
        sizes = self._sizes(envs_per_minibatch)
        batch = self._sequences()
        n_seq = len(batch.returns)
        order = self._generator.permutation(n_seq) if shuffle else np.arange(n_seq)
        for rows in th.split(th.as_tensor(order, device=self.device), sizes):
            yield batch.select(rows)

    def _sizes(self, envs_per_minibatch: int | Sequence[int]) -> list[int]:
        """Return the numbers of sequences of an epoch's minibatches."""
        n_seq = len(self._sequences().returns)
        if isinstance(envs_per_minibatch, (list, tuple)):
            sizes = [check_count("envs_per_minibatch", size) for size in envs_per_minibatch]
            if sum(sizes) != n_seq:
                raise ValueError(f"envs_per_minibatch must add up to {n_seq}, got {sizes}")
            return sizes
        return sizes_of(n_seq, check_count("envs_per_minibatch", envs_per_minibatch))

    def _sequences(self) -> SequenceBatch:
        """Return what minibatches are drawn from."""
        if self._batch is None:
            self._lends = True
            try:
                windows = self.to_sequence_batch()
            finally:
                self._lends = False
            self._batch = windows if self._cut is None else self._cut.cut(windows)
        return self._batch

    def begin_epochs(self) -> None:
        """Look at the window anew: a program may have changed it since minibatches were drawn."""
        self._batch = None

    def refresh_states(self, states_after: StatesAfter) -> None:
        """Compute the states that subsequences start from anew, in one pass over the windows.

        :param states_after: runs the policy, with its present weights, over some steps
        :raises ValueError: if windows are not cut
        """
        if self._cut is None:
            raise ValueError("refresh_states() needs stored states: call cut_windows() first")
        self._batch = self._cut.refresh(self._sequences(), states_after)

    def get(self, batch_size: int | None = None) -> Any:  # SB3's samples have other fields
        """Yield shuffled minibatches in ``sb3_contrib``'s flat form, for programs that train by it.

        They are :class:`~thrust_pomdp.ppo.flat_samples.RecurrentRolloutBufferSamples`, made of
        whole sequences, so that there is no padding and ``mask`` is all ones.

        :param batch_size: time steps, see :func:`minibatch_sizes`; everything at once when None
        :raises ValueError: if sequences have burn-in steps, which :meth:`to_minibatches` hands out
        """
        if self._cut is None:  # whose states may have been refreshed
            self.begin_epochs()
        n_seq, length = self._sequences().returns.shape
        batches = self.to_minibatches(minibatch_sizes(batch_size, length, n_seq))
        return (flat_samples(batch, self._zero_states) for batch in batches)

    def _zero_states(self, n_seq: int) -> RNNStates | None:
        """Return states of ``n_seq`` sequences that remember nothing, if any were ever given."""
        if self._entering is None:
            return None

        def zeros(state: th.Tensor) -> th.Tensor:
            sizes = (state.shape[0], n_seq, *state.shape[2:])
            return th.zeros(sizes, dtype=state.dtype, device=self.device)

        return map_states(self._entering, zeros)


def _copy(tensor: th.Tensor) -> th.Tensor:
    return tensor.detach().clone()


class RecurrentRolloutBuffer(_SequenceStorage, RolloutBuffer):
    """Rollout buffer for recurrent policies.

    .. warning::
        The states to record are those that *entered* a step. Recording the ones after it trains
        on memories the policy did not have: nothing fails, and it learns badly.

    >>> import numpy as np, torch as th
    >>> from gymnasium import spaces
    >>> buffer = RecurrentRolloutBuffer(2, spaces.Box(-1, 1, (3,)), spaces.Discrete(2), n_envs=4)
    >>> for step in range(2):
    ...     obs, action, reward, start = np.zeros((4, 3)), np.zeros(4), np.ones(4), np.zeros(4)
    ...     buffer.add(obs, action, reward, start, value=th.zeros(4), log_prob=th.zeros(4))
    >>> buffer.compute_returns_and_advantage(last_values=th.zeros(4), dones=np.zeros(4))
    >>> [batch.returns.shape for batch in buffer.to_minibatches(3)]
    [torch.Size([3, 2]), torch.Size([1, 2])]

    :param buffer_size: steps of a window, ``n_steps``
    :param observation_space: as SB3's
    :param action_space: as SB3's
    :param device: device of the batches
    :param gae_lambda: trade-off of bias against variance in GAE
    :param gamma: discount factor
    :param n_envs: number of environments
    :param record_states: keep the recurrent states of every step (``hidden``, ``cell``,
        ``critic_hidden``, ``critic_cell``; ``recorded(name)`` of any memory), not only those that
        entered the window
    :raises ValueError: if ``buffer_size`` or ``n_envs`` is below 1
    """


class RecurrentDictRolloutBuffer(_SequenceStorage, DictRolloutBuffer):
    """:class:`RecurrentRolloutBuffer` for Dict observations; batches hold a dict of tensors."""

"""Recurrent PPO: SB3's PPO on whole windows, with memory that is the same in training as in acting.

``docs/sb3-contrib.md`` lists where it differs from ``sb3_contrib.RecurrentPPO``, on purpose, each
with the test that pins it.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import (
    FloatSchedule,
    set_random_seed,
)
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.arguments import check_seed
from thrust_pomdp.errors import warn_user
from thrust_pomdp.ppo.action_noise import ActionNoise, fresh_seed
from thrust_pomdp.ppo.asymmetric_policy import AsymmetricLstmPolicy
from thrust_pomdp.ppo.buffer_later import BufferLater
from thrust_pomdp.ppo.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from thrust_pomdp.ppo.checks import (
    check_env,
    check_evaluation_envs,
    check_policy_class,
    check_privileged_keys,
    warn_of_training_mode,
)
from thrust_pomdp.ppo.collecting import CollectsWindows
from thrust_pomdp.ppo.fast_paths import described, fast_paths
from thrust_pomdp.ppo.minibatch_sizes import minibatch_sizes, sizes_of
from thrust_pomdp.ppo.policies import (
    CnnLstmPolicy,
    MlpLstmPolicy,
    MultiInputLstmPolicy,
    RecurrentActorCriticPolicy,
)
from thrust_pomdp.ppo.resumable_learning import LearnsResumably, find_taking_up
from thrust_pomdp.ppo.resuming import resumed_seed
from thrust_pomdp.ppo.saving import SavesModels
from thrust_pomdp.ppo.subsequences import check_subsequences, largest_divisor
from thrust_pomdp.ppo.training import TrainsOnWindows
from thrust_pomdp.recurrent.sequences import RNNStates
from thrust_pomdp.settings import check_beforehand, check_learning, take_settings

SelfRecurrentPPO = TypeVar("SelfRecurrentPPO", bound="RecurrentPPO")

#: What becomes of the memory where one window ends and the next begins.
WINDOW_STATES = ("zero", "carry")


class RecurrentPPO(CollectsWindows, TrainsOnWindows, LearnsResumably, SavesModels):
    """Proximal Policy Optimization (clip version) with a recurrent policy.

    A drop-in for ``sb3_contrib.RecurrentPPO``: same arguments, log keys, callbacks and files.
    ``docs/sb3-contrib.md`` lists the deliberate differences.

    Paper: https://arxiv.org/abs/1707.06347

    >>> import thrust_pomdp
    >>> model = RecurrentPPO("MlpLstmPolicy", "FlickeringCartPole-v0", n_steps=64, batch_size=64)
    >>> model = model.learn(64)

    :param policy: ``"MlpLstmPolicy"``, ``"CnnLstmPolicy"``, ``"MultiInputLstmPolicy"``,
        ``"AsymmetricLstmPolicy"`` (its critic sees more than its actor) or a
        :class:`~thrust_pomdp.ppo.policies.RecurrentActorCriticPolicy` subclass
    :param env: the environment, its id, or a VecEnv
    :param learning_rate: a number or a function of the remaining progress (1 to 0)
    :param n_steps: steps of a window: of one rollout in one environment
    :param batch_size: minibatch size in time steps; None for all. Where it is at least ``n_steps``,
        minibatches are whole windows, as many minibatches as it asks for. Where it is smaller,
        windows are cut into subsequences of the largest divisor of ``n_steps`` that it holds, each
        from the state met while collecting; ``sequence_length=n_steps`` asks for whole windows
    :param n_epochs: passes over each rollout
    :param gamma: discount factor
    :param gae_lambda: trade-off of bias against variance in GAE
    :param clip_range: clipping of the probability ratio; a number or a schedule
    :param clip_range_vf: clipping of the value change, in units of the (scaled) return; None for
        no clipping
    :param normalize_advantage: normalise advantages in each minibatch
    :param ent_coef: weight of the entropy bonus
    :param vf_coef: weight of the value loss
    :param max_grad_norm: gradient clipping
    :param use_sde: generalised state-dependent exploration
    :param sde_sample_freq: steps between new noise matrices; -1 for one a rollout
    :param target_kl: stop the update when the approximate KL divergence exceeds 1.5 times this
    :param stats_window_size: episodes averaged in the rollout log
    :param tensorboard_log: folder of the TensorBoard log
    :param policy_kwargs: arguments of the policy
    :param verbose: 0 silent, 1 info, 2 debug
    :param seed: seed of the weights, the action sampling, the shuffling and the environment
    :param device: where the network runs
    :param _init_setup_model: build the network at once
    :param rollout_buffer_class: a subclass of
        :class:`~thrust_pomdp.ppo.buffers.RecurrentRolloutBuffer` (or of its Dict twin)
    :param rollout_buffer_kwargs: its further arguments
    :param envs_per_minibatch: whole windows in a minibatch; wins over ``batch_size``
    :param window_state: ``"zero"``: memory is zeroed at each window start, in collection and in
        training (Strategy A), and nowhere else: acting and evaluating never cut it. ``"carry"``:
        memory runs on across windows, and training starts from the state met while collecting.
    :param sequence_length: cut windows into subsequences of so many steps for training, each from
        the state met while collecting; a divisor of ``n_steps``. ``batch_size`` is then served by
        whole subsequences. None for whole windows.
    :param burn_in: steps before each subsequence that are run for their memory alone
    :param refresh_states: compute the stored states anew before each epoch but the first
    :raises ValueError: naming the argument, the rule and the value
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": MlpLstmPolicy,
        "CnnLstmPolicy": CnnLstmPolicy,
        "MultiInputLstmPolicy": MultiInputLstmPolicy,
        "AsymmetricLstmPolicy": AsymmetricLstmPolicy,
    }
    _said_what_runs = False
    policy: RecurrentActorCriticPolicy
    rollout_buffer: RecurrentRolloutBuffer
    #: Whether a file is being loaded, and whether its environment was made on the way.
    _is_loaded = _made_env = False
    #: Whether its buffer is made only once it has an environment.
    _buffer_comes_later = False
    #: Of the actions' random numbers, on the way to a file and from it.
    _noise_state: dict[str, int] | None = None

    def __init__(
        self,
        policy: str | type[RecurrentActorCriticPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 128,
        batch_size: int | None = 128,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule = 0.2,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: bool = True,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        envs_per_minibatch: int | None = None,
        window_state: str = "zero",
        sequence_length: int | None = None,
        burn_in: int = 0,
        refresh_states: bool = False,
    ) -> None:
        check_beforehand(verbose, use_sde, device, policy_kwargs)
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            n_steps=n_steps,
            gamma=gamma,
            gae_lambda=gae_lambda,
            ent_coef=ent_coef,
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,
            use_sde=use_sde,
            sde_sample_freq=sde_sample_freq,
            rollout_buffer_class=rollout_buffer_class,
            rollout_buffer_kwargs=rollout_buffer_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=False,
        )
        self.batch_size = batch_size
        self.n_epochs = n_epochs
        self.clip_range: Any = clip_range
        self.clip_range_vf: Any = clip_range_vf
        self.normalize_advantage = normalize_advantage
        self.target_kl = target_kl
        self.envs_per_minibatch = envs_per_minibatch
        self.window_state = window_state
        self.sequence_length = sequence_length
        self.burn_in = burn_in
        self.refresh_states = refresh_states
        self._last_lstm_states: RNNStates | None = None
        if _init_setup_model:
            self._setup_model()

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        # SB3's load() hands on an environment's id as it is.
        env = maybe_make_env(env, verbose)
        check_env(env)
        return OnPolicyAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    # Everything checked or derived lives here: SB3's load() calls it again with restored attributes
    # and another number of environments.
    def _setup_model(self) -> None:
        self._check_arguments()
        if self.rollout_buffer_class is None:
            self.rollout_buffer_class = self._right_buffer_class()
        buffer_class: Any = self.rollout_buffer_class
        if self._buffer_comes_later:
            self.rollout_buffer_class = BufferLater(buffer_class)  # type: ignore[assignment]
        super()._setup_model()
        self.rollout_buffer_class = buffer_class
        seed = self._first_seed()
        # Without a seed both follow SB3's set_random_seed(), where a program calls that. Asked for
        # after the weights are made, these numbers leave the weights as they were.
        self.rollout_buffer.seed(int(th.randint(2**31, ())) if seed is None else seed)
        self._start_noise(fresh_seed() if seed is None else seed)
        if self._noise_state is not None:
            self._action_noise.set_state(self._noise_state)
        for name in ("_is_loaded", "_made_env", "_noise_state"):
            vars(self).pop(name, None)
        length = self._cut_length()
        if length is not None or self.sequence_length is not None:
            self.rollout_buffer.cut_windows(length or self.n_steps, self.burn_in)
        self.rollout_buffer.state_names = self.policy.state_names()
        self._last_lstm_states = self.policy.zero_states(
            0 if self._buffer_comes_later else self.n_envs
        )
        if self._last_episode_starts is not None:
            # Loaded in mid-episode: memory is not saved, so what goes on must start afresh.
            self._last_episode_starts = np.ones(self.n_envs, dtype=bool)
        self.clip_range = FloatSchedule(self.clip_range)
        if self.clip_range_vf is not None:
            self.clip_range_vf = FloatSchedule(self.clip_range_vf)

    def _check_arguments(self) -> None:
        if getattr(self, "observation_space", None) is None:
            raise ValueError("env must be given to make a new model, got None")
        check_privileged_keys(self.env, self.policy_class, self.policy_kwargs)
        check_policy_class(self.policy_class, self.observation_space, self.policy_kwargs)
        take_settings(self)
        if self.window_state not in WINDOW_STATES:
            raise ValueError(
                f"window_state must be one of {WINDOW_STATES}, got {self.window_state!r}"
            )
        check_subsequences(
            self.n_steps,
            self._cut_length() or self.sequence_length,
            self.burn_in,
            self.refresh_states,
            self.envs_per_minibatch,
        )
        self._check_buffer_class()
        self._warn_if_batch_size_is_not_served()

    def _check_buffer_class(self) -> None:
        given: Any = self.rollout_buffer_class
        right = self._right_buffer_class()
        if given is not None and not (isinstance(given, type) and issubclass(given, right)):
            raise ValueError(
                f"rollout_buffer_class must be a subclass of {right.__name__} for the observation "
                f"space {self.observation_space}, got {given!r}"
            )

    def _right_buffer_class(self) -> type[Any]:
        is_dict = isinstance(self.observation_space, spaces.Dict)
        return RecurrentDictRolloutBuffer if is_dict else RecurrentRolloutBuffer

    def _cut_length(self) -> int | None:
        """Return the steps of the subsequences that windows are cut into; None for whole windows.

        A ``batch_size`` below a window is served by cutting, so that there are as many gradient
        steps as it asks for.
        """
        if self.sequence_length is not None:
            return None if self.sequence_length == self.n_steps else self.sequence_length
        if self.envs_per_minibatch is not None or self.batch_size is None:
            return None
        if self.batch_size >= self.n_steps:
            return None
        return largest_divisor(self.n_steps, self.batch_size)

    def _sequences_per_minibatch(self) -> int | list[int]:
        """Return how many windows, or subsequences of windows, make each minibatch."""
        if self.envs_per_minibatch is not None:
            return self.envs_per_minibatch
        sizes = self._minibatch_sizes(self._cut_length() or self.n_steps)
        return sizes[0] if sizes == sizes_of(sum(sizes), sizes[0]) else sizes

    def _minibatch_sizes(self, length: int) -> list[int]:
        """Return how many sequences of so many steps serve ``batch_size`` in each minibatch."""
        n_seq = self._n_envs_of_training() * (self.n_steps // length)
        return minibatch_sizes(self.batch_size, length, n_seq)

    def _warn_if_batch_size_is_not_served(self) -> None:
        """Warn where minibatches, or sequences, are not nearly what was asked for."""
        if self.envs_per_minibatch is not None or self.batch_size is None:
            return
        length = self._cut_length() or self.n_steps
        size = max(self._minibatch_sizes(length)) * length
        asked = min(self.batch_size, self.n_steps * self._n_envs_of_training())
        if size >= 2 * asked:
            warn_user(
                f"batch_size={self.batch_size} is served by whole sequences of {length} steps, so "
                f"by minibatches of {size}: take a sequence_length of at most batch_size"
            )
        elif self.sequence_length is None and 2 * length <= asked and length < self.n_steps:
            warn_user(
                f"batch_size={self.batch_size} cuts windows of n_steps={self.n_steps} into "
                f"subsequences of {length} steps, the largest divisor, and no gradient goes "
                "through memory further back: take an n_steps that batch_size divides, or "
                f"sequence_length={self.n_steps} for whole windows"
            )

    def _get_policy_from_name(self, policy_name: str) -> type[BasePolicy]:
        if policy_name in self.policy_aliases:
            return self.policy_aliases[policy_name]
        recurrent_name = policy_name.replace("Policy", "LstmPolicy")
        hint = (
            f'; "{policy_name}" has no memory, did you mean "{recurrent_name}"?'
            if recurrent_name in self.policy_aliases
            else ""
        )
        raise ValueError(
            f"policy must be one of {tuple(self.policy_aliases)} or a class, "
            f"got {policy_name!r}{hint}"
        )

    def set_random_seed(self, seed: int | None = None) -> None:
        """Seed the environment, the action sampling and the shuffling of minibatches.

        The random numbers behind actions start anew, those of collecting and those of ``predict``.
        """
        if self._is_loaded:
            self._seed_again()
            return
        seed = check_seed("seed", seed)
        super().set_random_seed(seed)
        if seed is not None and hasattr(self, "rollout_buffer"):
            self.rollout_buffer.seed(seed)
            self._start_noise(seed, self._action_noise.first_env)

    def _start_noise(self, seed: int, first_env: int = 0) -> None:
        """Start the random numbers behind actions: those of collecting, and those of acting."""
        self._action_noise = ActionNoise(seed, self.n_envs, first_env)
        self.policy.seed_actions(seed)

    def _first_seed(self) -> int | None:
        """Return the seed of a new model, or the one that a loaded model goes on from."""
        if self.seed is None or not self._is_loaded:
            return self.seed
        return resumed_seed(self.seed, self.num_timesteps)

    def _seed_again(self) -> None:
        """Seed what a loaded model samples with; an environment only if it was made for it."""
        seed = self._first_seed()
        if seed is None:
            return
        set_random_seed(seed, using_cuda=self.device.type == "cuda")
        self.action_space.seed(seed)
        if self._made_env and self.env is not None:
            self.env.seed(seed)

    def _excluded_save_params(self) -> list[str]:
        return [
            *super()._excluded_save_params(),
            "_last_lstm_states",
            "_said_what_runs",
            "_acts_alone",
            "_acting_step",
            "_action_noise",
            "_learn_calls",
        ]

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[int, BaseCallback]:
        total_timesteps, ready = super()._setup_learn(total_timesteps, callback, *args, **kwargs)
        assert self.env is not None
        check_evaluation_envs(ready, self.env)
        self._say_what_runs()
        return total_timesteps, ready

    def _say_what_runs(self) -> None:
        """Tell once of fast paths, and of what computes otherwise in training than in acting."""
        if self._said_what_runs:
            return
        self._said_what_runs = True
        warn_of_training_mode(self.policy)
        if self.verbose >= 1:
            print(described(self.fast_paths()))

    def fast_paths(self) -> dict[str, str]:
        """Tell of each fast path whether it is used now, else why not.

        A fast path (a compiled loop, the prepared step, a native vector environment) stands in for
        what the policy, its modules and the environment compute, and only as long as it is the
        same; changes that a program makes to them are noticed, and run.

        >>> model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1")
        >>> model.fast_paths()["native vector environment"]
        'the environment is a DummyVecEnv'
        """
        return fast_paths(self.policy, self.env, self.against_compiled_minibatch())

    def learn(
        self: SelfRecurrentPPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "RecurrentPPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfRecurrentPPO:
        """Train for at least ``total_timesteps`` environment steps; the arguments are SB3's.

        :raises ValueError: for arguments that cannot be
        """
        flags = {"reset_num_timesteps": reset_num_timesteps, "progress_bar": progress_bar}
        total_timesteps = check_learning(
            total_timesteps, callback, log_interval, tb_log_name, flags
        )
        checkpoint = find_taking_up(callback)
        if checkpoint is not None:
            self._learn_resumably(
                checkpoint, total_timesteps, callback, log_interval, tb_log_name,
                reset_num_timesteps, progress_bar,
            )  # fmt: skip
            return self
        return super().learn(
            total_timesteps=total_timesteps,
            callback=callback,
            log_interval=log_interval,
            tb_log_name=tb_log_name,
            reset_num_timesteps=reset_num_timesteps,
            progress_bar=progress_bar,
        )

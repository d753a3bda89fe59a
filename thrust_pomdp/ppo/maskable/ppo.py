"""Recurrent PPO for environments in which not every action can be taken at every step."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, TypeVar

from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.errors import warn_user
from thrust_pomdp.ppo.buffers import RecurrentRolloutBuffer
from thrust_pomdp.ppo.losses import Losses
from thrust_pomdp.ppo.maskable.buffers import (
    MaskableRecurrentDictRolloutBuffer,
    MaskableRecurrentRolloutBuffer,
)
from thrust_pomdp.ppo.maskable.masks import (
    MaskLayout,
    Masks,
    is_masking_supported,
    missing_action_masks,
)
from thrust_pomdp.ppo.maskable.policies import (
    MaskableAsymmetricLstmPolicy,
    MaskableCnnLstmPolicy,
    MaskableMlpLstmPolicy,
    MaskableMultiInputLstmPolicy,
    MaskableRecurrentActorCriticPolicy,
)
from thrust_pomdp.ppo.maskable.stepping import make_masked_step
from thrust_pomdp.ppo.policies import RecurrentActorCriticPolicy
from thrust_pomdp.ppo.prepared_step import Step, WatchedStep
from thrust_pomdp.ppo.recurrent_ppo import RecurrentPPO
from thrust_pomdp.ppo.sequence_batch import SequenceBatch
from thrust_pomdp.ppo.vocabulary import MODELS
from thrust_pomdp.safe_values import Vocabulary
from thrust_pomdp.vec_env.gymnasium_vec_env import ACTION_MASKS

SelfMaskableRecurrentPPO = TypeVar("SelfMaskableRecurrentPPO", bound="MaskableRecurrentPPO")


class MaskableRecurrentPPO(RecurrentPPO):
    """:class:`~thrust_pomdp.ppo.recurrent_ppo.RecurrentPPO` with action masks.

    For what may be done at each step it asks the environment's method ``action_masks()``, as
    ``sb3_contrib.MaskablePPO`` does; :mod:`thrust_pomdp.ppo.maskable.masks` tells what it is to
    return. A masked action has probability exactly 0: it is never sampled, never the most likely
    one, and no gradient flows to its logit. Training uses the masks that the actions were drawn
    with.

    Arguments are those of ``RecurrentPPO``; actions are Discrete, MultiDiscrete or MultiBinary.

    Paper: https://arxiv.org/abs/2006.14171

    .. warning::
        Acting needs masks too: ``predict(obs, state, episode_start, action_masks=masks)``, and
        :func:`thrust_pomdp.ppo.maskable.evaluate_policy` and
        :class:`thrust_pomdp.ppo.maskable.MaskableEvalCallback` in place of SB3's. Those of
        ``sb3_contrib`` do pass masks, but forget the memory at every step.

    >>> import gymnasium as gym
    >>> class Fenced(gym.Wrapper):
    ...     def action_masks(self):
    ...         position = self.unwrapped.state[0]
    ...         return [position > -1, position < 1]
    ...
    >>> model = MaskableRecurrentPPO("MlpLstmPolicy", Fenced(gym.make("CartPole-v1")))
    >>> model = model.learn(128)
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": MaskableMlpLstmPolicy,
        "CnnLstmPolicy": MaskableCnnLstmPolicy,
        "MultiInputLstmPolicy": MaskableMultiInputLstmPolicy,
        "AsymmetricLstmPolicy": MaskableAsymmetricLstmPolicy,
    }
    vocabulary: ClassVar[Vocabulary] = MODELS.extended(
        {
            "MaskableAsymmetricLstmPolicy": MaskableAsymmetricLstmPolicy,
            "MaskableCnnLstmPolicy": MaskableCnnLstmPolicy,
            "MaskableMlpLstmPolicy": MaskableMlpLstmPolicy,
            "MaskableMultiInputLstmPolicy": MaskableMultiInputLstmPolicy,
            "MaskableRecurrentDictRolloutBuffer": MaskableRecurrentDictRolloutBuffer,
            "MaskableRecurrentRolloutBuffer": MaskableRecurrentRolloutBuffer,
        }
    )
    policy: MaskableRecurrentActorCriticPolicy
    #: Whether the latest :meth:`learn` asked for masks.
    use_masking = True
    _warned_of_missing_masks = False
    #: The masks of the step just taken, ``[n_envs, width]``.
    _last_masks: Masks | None = None

    def _check_arguments(self) -> None:
        given: Any = self.policy_class
        # First, since a file of the plain algorithm brings a buffer class that is wrong too.
        is_recurrent = isinstance(given, type) and issubclass(given, RecurrentActorCriticPolicy)
        if is_recurrent and not issubclass(given, MaskableRecurrentActorCriticPolicy):
            raise ValueError(
                "policy must take action masks, as thrust_pomdp.MaskableMlpLstmPolicy does, got "
                f"{given.__name__}; put MaskableRecurrentActorCriticPolicy before the other bases "
                "of a class of your own"
            )
        super()._check_arguments()
        MaskLayout(self.action_space)

    def _right_buffer_class(self) -> type[Any]:
        is_dict = isinstance(self.observation_space, spaces.Dict)
        return MaskableRecurrentDictRolloutBuffer if is_dict else MaskableRecurrentRolloutBuffer

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_warned_of_missing_masks", "_last_masks"]

    def _setup_learn(
        self, total_timesteps: int, callback: MaybeCallback = None, *args: Any, **kwargs: Any
    ) -> tuple[int, BaseCallback]:
        if self.use_masking and self.env is not None and not is_masking_supported(self.env):
            raise missing_action_masks(self.env)
        return super()._setup_learn(total_timesteps, callback, *args, **kwargs)

    def _make_step(self, env: VecEnv, rollout_buffer: RecurrentRolloutBuffer) -> Step:
        self._last_masks = None
        if not self.use_masking:
            return WatchedStep(self.policy, alone=self._acts_alone)
        assert isinstance(
            rollout_buffer, (MaskableRecurrentRolloutBuffer, MaskableRecurrentDictRolloutBuffer)
        )
        return make_masked_step(self.policy, partial(self._next_masks, env, rollout_buffer))

    def _next_masks(
        self,
        env: VecEnv,
        buffer: MaskableRecurrentRolloutBuffer | MaskableRecurrentDictRolloutBuffer,
    ) -> Masks:
        """Ask the environments for the masks of the coming step, and keep them."""
        # Asked right before the action is drawn: after a reset the environment did by itself the
        # masks are those of the new episode's first frame, as the observation is.
        when = f" at step {buffer.pos} of the rollout"
        masks = self.policy.mask_layout.checked(env.env_method(ACTION_MASKS), when)
        buffer.keep_action_masks(masks)
        self._last_masks = masks
        return masks

    def _tell_more(self, callback: BaseCallback) -> None:
        # The names that callbacks written for sb3_contrib's MaskablePPO read.
        masking = {"action_masks": self._last_masks, "use_masking": self.use_masking}
        callback.update_locals(masking)

    def _losses(self, batch: SequenceBatch, *args: Any) -> Losses:
        with self.policy.masked_by(batch.action_masks):
            return super()._losses(batch, *args)

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: Any = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[NDArray[Any], Any]:
        """Return actions for observations, and the memory to hand in with the next ones.

        >>> masks = get_action_masks(env)  # doctest: +SKIP
        >>> action, state = model.predict(obs, state, start, action_masks=masks)  # doctest: +SKIP

        :param observation: one observation or ``[n_envs, *obs_shape]``
        :param state: what the last call returned; None for zeros
        :param episode_start: ``[n_envs]``, true where memory is to be cleared first; default none
        :param deterministic: take the most likely action instead of sampling
        :param action_masks: ``[n_envs, width]``, or ``[width]`` for one observation
        :return: the actions and the new state
        :raises ValueError: if something does not fit the observations, or nothing is allowed
        """
        if action_masks is None and self.use_masking and not self._warned_of_missing_masks:
            self._warned_of_missing_masks = True
            warn_user(
                "predict() was called without action_masks, so it takes every action for an "
                "allowed one: hand in action_masks=thrust_pomdp.ppo.maskable.get_action_masks(env)"
                "; "
                "for evaluating there are evaluate_policy and MaskableEvalCallback in "
                "thrust_pomdp.ppo.maskable"
            )
        return self.policy.predict(
            observation, state, episode_start, deterministic, action_masks=action_masks
        )

    def learn(  # type: ignore[override]
        self: SelfMaskableRecurrentPPO,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "MaskableRecurrentPPO",
        reset_num_timesteps: bool = True,
        use_masking: bool = True,
        progress_bar: bool = False,
    ) -> SelfMaskableRecurrentPPO:
        """Train for at least ``total_timesteps`` environment steps.

        The arguments, and their order, are those of ``sb3_contrib.MaskablePPO``.

        :param use_masking: ask the environment for masks; without, all actions are allowed
        :raises ValueError: if it has no method ``action_masks``, or returns what cannot be
        """
        self.use_masking = use_masking
        return super().learn(
            total_timesteps=total_timesteps,
            callback=callback,
            log_interval=log_interval,
            tb_log_name=tb_log_name,
            reset_num_timesteps=reset_num_timesteps,
            progress_bar=progress_bar,
        )

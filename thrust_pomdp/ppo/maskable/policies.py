"""Recurrent policies that take masks of actions.

Weights and their names are the plain policies'; only the distribution of actions knows of masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule

from thrust_pomdp import gate
from thrust_pomdp.ppo.asymmetric_policy import AsymmetricLstmPolicy
from thrust_pomdp.ppo.maskable.distributions import make_maskable_distribution
from thrust_pomdp.ppo.maskable.masks import MaskLayout
from thrust_pomdp.ppo.policies import (
    RecurrentActorCriticCnnPolicy,
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from thrust_pomdp.recurrent.sequences import ResetLayout, RNNStates


@gate.remember
class MaskableRecurrentActorCriticPolicy(RecurrentActorCriticPolicy):
    """:class:`~thrust_pomdp.ppo.policies.RecurrentActorCriticPolicy` with action masks.

    Every method that deals with actions takes ``action_masks``: one row per observation, laid out
    as :mod:`thrust_pomdp.ppo.maskable.masks` draws it. Without masks everything is allowed. The
    critic sees none.

    To give masks to a policy class of one's own, put this class before it::

        class MyMaskablePolicy(MaskableRecurrentActorCriticPolicy, MyPolicy): ...

    :raises ValueError: for Box actions
    """

    _masks: th.Tensor | None = None

    def _build(self, lr_schedule: Schedule) -> None:
        """Create the heads."""
        self.mask_layout = MaskLayout(self.action_space)
        self.action_dist = make_maskable_distribution(self.action_space)
        super()._build(lr_schedule)

    def against(self, *names: str) -> str | None:
        """Say which of these methods, for which faster ways stand in, is not as written here."""
        return gate.against_methods(self, names, MaskableRecurrentActorCriticPolicy)

    @contextmanager
    def masked_by(self, masks: th.Tensor | None) -> Iterator[None]:
        """Let masks hold for all that is computed inside.

        :param masks: ``[..., width]`` bool, and checked already; None leaves things as they are
        """
        outer = self._masks
        if masks is not None:
            self._masks = masks.reshape(-1, masks.shape[-1])
        try:
            yield
        finally:
            self._masks = outer

    def _checked(self, action_masks: Any) -> th.Tensor | None:
        """Return masks given by a user, in whatever shape, as ``[rows, width]``."""
        if action_masks is None:
            return None
        if isinstance(action_masks, th.Tensor) and gate.against_transforms() is not None:
            # Looked into, they would be numbers of the example in a graph that torch traces.
            return action_masks.reshape(-1, self.mask_layout.width) != 0
        if isinstance(action_masks, th.Tensor):
            action_masks = action_masks.detach().cpu().numpy()
        masks = self.mask_layout.checked(self.mask_layout.as_rows(action_masks))
        return th.as_tensor(masks, device=self.device)

    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> Distribution:
        logits = self.action_net(latent_pi)
        distribution: Any = self.action_dist
        masked: Distribution = distribution.proba_distribution(logits, self._masks)
        return masked

    def forward(  # type: ignore[override]
        self,
        obs: PyTorchObs,
        lstm_states: RNNStates | None = None,
        episode_starts: th.Tensor | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor, RNNStates]:
        """Act as :meth:`RecurrentActorCriticPolicy.forward` does.

        :param action_masks: ``[n_envs, width]``
        """
        with self.masked_by(self._checked(action_masks)):
            return super().forward(obs, lstm_states, episode_starts, deterministic)

    def evaluate_sequences(
        self,
        obs: PyTorchObs,
        actions: th.Tensor,
        initial_state: RNNStates | None,
        episode_starts: th.Tensor | ResetLayout,
        action_masks: Any = None,
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Evaluate windows as :meth:`RecurrentActorCriticPolicy.evaluate_sequences` does.

        :param action_masks: the masks that the actions were drawn with, ``[n_envs, n_steps,
            width]``
        """
        with self.masked_by(self._checked(action_masks)):
            return super().evaluate_sequences(obs, actions, initial_state, episode_starts)

    def evaluate_actions(  # type: ignore[override]
        self,
        obs: PyTorchObs,
        actions: th.Tensor,
        lstm_states: RNNStates,
        episode_starts: th.Tensor,
        action_masks: Any = None,
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Evaluate actions in ``sb3_contrib``'s flat form.

        :param action_masks: ``[n_seq * n_steps, width]``
        """
        with self.masked_by(self._checked(action_masks)):
            return super().evaluate_actions(obs, actions, lstm_states, episode_starts)

    def get_distribution(  # type: ignore[override]
        self,
        obs: PyTorchObs,
        lstm_states: Any,
        episode_starts: th.Tensor,
        action_masks: Any = None,
    ) -> tuple[Distribution, Any]:
        """Return the action distribution and the actor's states after the observation.

        :param action_masks: ``[n_envs, width]``
        """
        with self.masked_by(self._checked(action_masks)):
            return super().get_distribution(obs, lstm_states, episode_starts)

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: Any = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[NDArray[Any], Any]:
        """Act as :meth:`RecurrentActorCriticPolicy.predict` does.

        :param action_masks: ``[n_envs, width]``, or ``[width]`` for one observation
        :raises ValueError: also for masks that cannot be
        """
        with self.masked_by(self._checked(action_masks)):
            return super().predict(observation, state, episode_start, deterministic)


class MaskableRecurrentActorCriticCnnPolicy(
    MaskableRecurrentActorCriticPolicy, RecurrentActorCriticCnnPolicy
):
    """:class:`MaskableRecurrentActorCriticPolicy` for image observations."""


class MaskableRecurrentMultiInputActorCriticPolicy(
    MaskableRecurrentActorCriticPolicy, RecurrentMultiInputActorCriticPolicy
):
    """:class:`MaskableRecurrentActorCriticPolicy` for Dict observations."""


class MaskableAsymmetricLstmPolicy(MaskableRecurrentActorCriticPolicy, AsymmetricLstmPolicy):
    """:class:`MaskableRecurrentActorCriticPolicy` whose critic sees more than its actor."""


MaskableMlpLstmPolicy = MaskableRecurrentActorCriticPolicy
MaskableCnnLstmPolicy = MaskableRecurrentActorCriticCnnPolicy
MaskableMultiInputLstmPolicy = MaskableRecurrentMultiInputActorCriticPolicy

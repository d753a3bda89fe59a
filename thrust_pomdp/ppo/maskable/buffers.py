"""Rollout buffers that keep the masks the actions were drawn with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from thrust_pomdp.ppo.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from thrust_pomdp.ppo.maskable.masks import MaskLayout, Masks
from thrust_pomdp.ppo.sequence_batch import SequenceBatch


class _MaskStorage:
    """What the Box and the Dict buffer add to the plain ones; mixed in before them."""

    # Provided by the plain class.
    buffer_size: int
    n_envs: int
    pos: int
    action_space: spaces.Space[Any]
    #: The masks of each step, ``[n_steps, n_envs, width]`` bool.
    action_masks: Masks

    def reset(self) -> None:
        """Clear the window; until told otherwise everything is allowed."""
        width = MaskLayout(self.action_space).width
        self.action_masks = np.ones((self.buffer_size, self.n_envs, width), dtype=bool)
        super().reset()  # type: ignore[misc]

    def keep_action_masks(self, masks: Masks) -> None:
        """Keep the masks of the step that :meth:`add` is to be called for next.

        :param masks: ``[n_envs, width]``
        """
        self.action_masks[self.pos] = masks

    def to_sequence_batch(self, valid_steps: int | None = None) -> SequenceBatch:
        """Return every environment's window as one sequence, masks included."""
        batch: SequenceBatch = super().to_sequence_batch(valid_steps)  # type: ignore[misc]
        masks: th.Tensor = self._env_major(self.action_masks[: batch.returns.shape[1]])  # type: ignore[attr-defined]
        return batch._replace(action_masks=masks)


class MaskableRecurrentRolloutBuffer(_MaskStorage, RecurrentRolloutBuffer):
    """:class:`~thrust_pomdp.ppo.buffers.RecurrentRolloutBuffer` that keeps action masks."""


class MaskableRecurrentDictRolloutBuffer(_MaskStorage, RecurrentDictRolloutBuffer):
    """:class:`MaskableRecurrentRolloutBuffer` for Dict observations."""

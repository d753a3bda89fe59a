"""The recurrent states of every step of a window, where a buffer is asked to keep them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from thrust_pomdp.recurrent.sequences import RNNStates

Array = NDArray[Any]


class RecordedStates:
    """What a buffer gives of the states it recorded; mixed into it."""

    record_states: bool
    buffer_size: int
    #: Names of the parts of the actor's and of the critic's state, which only the policy knows.
    state_names: tuple[tuple[str, ...], tuple[str, ...]] = (("hidden", "cell"),) * 2
    #: By name, ``[n_steps, n_layers, n_envs, ...]``.
    _recorded: dict[str, Array]

    def _record(self, step: int, states: RNNStates) -> None:
        """Keep the states that entered a step."""
        pi_names, vf_names = self.state_names
        named = [*zip(pi_names, states.pi, strict=False),
                 *zip(map("critic_{}".format, vf_names), states.vf, strict=False)]  # fmt: skip
        for name, tensor in named:
            array = _on_host(tensor)
            if name not in self._recorded:
                self._recorded[name] = np.zeros((self.buffer_size, *array.shape), array.dtype)
            self._recorded[name][step] = array

    def recorded(self, name: str) -> Array:
        """Return what was recorded of one part of the state, as it entered each step.

        :param name: as the memory calls it, ``critic_`` before it for the critic's
        :return: ``[n_steps, n_layers, n_envs, ...]``
        :raises ValueError: if states are not recorded, or have no such part
        """
        if not self.record_states:
            raise ValueError(
                f"{name} is recorded on request only: make the buffer with record_states=True "
                "(rollout_buffer_kwargs=dict(record_states=True))"
            )
        if not self._recorded:
            raise ValueError(f"{name} is empty: nothing has been added yet")
        if name not in self._recorded:
            parts = ", ".join(self._recorded)
            raise ValueError(f"{name} is no part of this memory's state: recorded are {parts}")
        return self._recorded[name]

    @property
    def hidden(self) -> Array:
        """The actor's hidden states that entered each step, ``[n_steps, n_layers, n_envs, H]``."""
        return self.recorded("hidden")

    @property
    def cell(self) -> Array:
        """The actor's cell states that entered each step, ``[n_steps, n_layers, n_envs, H]``."""
        return self.recorded("cell")

    @property
    def critic_hidden(self) -> Array:
        """The critic's hidden states that entered each step, ``[n_steps, n_layers, n_envs, H]``."""
        return self.recorded("critic_hidden")

    @property
    def critic_cell(self) -> Array:
        """The critic's cell states that entered each step, ``[n_steps, n_layers, n_envs, H]``."""
        return self.recorded("critic_cell")

    # sb3_contrib's names of what is recorded.

    @property
    def hidden_states_pi(self) -> Array:
        """:attr:`hidden`, as ``sb3_contrib`` calls it."""
        return self.hidden

    @property
    def cell_states_pi(self) -> Array:
        """:attr:`cell`, as ``sb3_contrib`` calls it."""
        return self.cell

    @property
    def hidden_states_vf(self) -> Array:
        """:attr:`critic_hidden`, as ``sb3_contrib`` calls it."""
        return self.critic_hidden

    @property
    def cell_states_vf(self) -> Array:
        """:attr:`critic_cell`, as ``sb3_contrib`` calls it."""
        return self.critic_cell


def _on_host(tensor: th.Tensor) -> Array:
    return tensor.detach().cpu().numpy()

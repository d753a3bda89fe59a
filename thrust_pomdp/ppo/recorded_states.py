"""The recurrent states of every step of a window, where a buffer is asked to keep them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


class RecordedStates:
    """What a buffer gives of the states it recorded; mixed into it."""

    record_states: bool
    #: By name, ``[n_steps, n_layers, n_envs, hidden]``.
    _recorded: dict[str, Array]

    def _recorded_states(self, name: str) -> Array:
        if not self.record_states:
            raise ValueError(
                f"{name} is recorded on request only: make the buffer with record_states=True "
                "(rollout_buffer_kwargs=dict(record_states=True))"
            )
        if not self._recorded:
            raise ValueError(f"{name} is empty: nothing has been added yet")
        if name not in self._recorded:
            raise ValueError(
                f"{name} belongs to an LSTM: the state of a GRU or a plain RNN is "
                f"{name.replace('cell', 'hidden')} alone"
            )
        return self._recorded[name]

    @property
    def hidden(self) -> Array:
        """The actor's hidden states that entered each step, ``[n_steps, n_layers, n_envs, H]``."""
        return self._recorded_states("hidden")

    @property
    def cell(self) -> Array:
        """The actor's cell states that entered each step, ``[n_steps, n_layers, n_envs, H]``."""
        return self._recorded_states("cell")

    @property
    def critic_hidden(self) -> Array:
        """The critic's hidden states that entered each step, ``[n_steps, n_layers, n_envs, H]``."""
        return self._recorded_states("critic_hidden")

    @property
    def critic_cell(self) -> Array:
        """The critic's cell states that entered each step, ``[n_steps, n_layers, n_envs, H]``."""
        return self._recorded_states("critic_cell")

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

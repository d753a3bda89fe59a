"""One environment of a CartPole vector, to be read and painted as if it stood alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.envs.cartpole_physics import ALL_ROWS, CartPolePhysics
from thrust_pomdp.envs.env_of_vector import EnvOfVector, VectorOfEnvs


class VectorOfCartPoles(VectorOfEnvs, Protocol):
    """What is asked of the vector that a cart is one of."""

    physics: CartPolePhysics
    tell_painter: Callable[[int], None]


class CartPoleOfVector(EnvOfVector):
    """One cart of a vector; its ``state`` can be set with the effect it has on a single one."""

    not_shared = frozenset(
        {"state", "steps_beyond_terminated", "screen", "clock", "surf", "isopen"}
    )
    _vector_env: VectorOfCartPoles
    _idx: int

    @property
    def state(self) -> NDArray[np.float64]:
        """Cart position and velocity, pole angle and angular velocity, ``[4]`` float64."""
        return self._vector_env.physics.sensed(ALL_ROWS)[:, self._idx]

    def render(self) -> Any:
        """Paint the environment, ``[height, width, 3]`` uint8."""
        single, vector_env = self._vector_env.single, self._vector_env
        single.state = self.state
        vector_env.tell_painter(self._idx)
        return single.render()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state":
            self._vector_env.physics.put(np.array([self._idx]), np.asarray(value)[None])
        else:
            super().__setattr__(name, value)

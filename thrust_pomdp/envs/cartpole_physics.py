"""The equations of CartPole for many carts at once, equal to Gymnasium's to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from thrust_pomdp.stateful import Names, Stateful

Flags = NDArray[np.bool_]

#: Where the components of a state are kept, in Gymnasium's order: cart position and velocity, pole
#: angle and angular velocity. Its own inverse.
ALL_ROWS = np.array([0, 2, 1, 3])

#: Where cart position and pole angle are kept.
POSITION_ROWS = np.array([0, 1])


class CartPolePhysics(Stateful):
    """Gymnasium's CartPole equations for many carts, the last bit included.

    Every line does to arrays what :meth:`CartPoleEnv.step` does to numbers, in the same order: a
    regrouped product would differ in its last bit, and an unstable pole makes a different episode
    of it. For speed constants are arrays, since NumPy converts a Python number anew at each
    operation, and results go into arrays that are there already.

    :param cart: the environment whose constants and integrator are used
    :param n_envs: the number of carts
    """

    _no_state: Names = (
        *("_state", "_rates", "_positions", "_velocities", "_theta", "_theta_dot"),
        *("_x_acc", "_theta_acc"),
    )
    _fixed_state: Names = (
        *("_semi_implicit", "_forces_of_actions", "_limits", "_gravity", "_masspole"),
        *("_total_mass", "_length", "_polemass_length", "_four_thirds", "_tau", "_tau_of_two"),
    )
    _shaped_state: Names = ("_rows",)

    def __init__(self, cart: CartPoleEnv, n_envs: int) -> None:
        # Rows x, theta and their first and second derivatives, so that any four rows in a row hold
        # what the two above them change by: explicit Euler is one addition.
        self._name_rows(np.zeros((6, n_envs)))
        self._semi_implicit = cart.kinematics_integrator != "euler"
        self._forces_of_actions = np.array([-cart.force_mag, cart.force_mag])
        self._limits = np.repeat([[cart.x_threshold], [cart.theta_threshold_radians]], n_envs, 1)
        constants = (cart.gravity, cart.masspole, cart.total_mass, cart.length)
        self._gravity, self._masspole, self._total_mass, self._length = (
            np.full(n_envs, value) for value in constants
        )
        self._polemass_length = np.full(n_envs, cart.polemass_length)
        self._four_thirds = np.full(n_envs, 4.0 / 3.0)
        self._tau, self._tau_of_two = np.full((4, n_envs), cart.tau), np.full((2, n_envs), cart.tau)

    def _name_rows(self, rows: NDArray[np.float64]) -> None:
        self._rows, self._state, self._rates = rows, rows[:4], rows[2:]
        self._positions, self._velocities = rows[:2], rows[2:4]
        self._theta, self._theta_dot = rows[1], rows[3]
        self._x_acc, self._theta_acc = rows[4], rows[5]

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copy's rows must be views of one array, too.
        self.__dict__.update(state)
        self._name_rows(state["_rows"])

    def _after_state(self) -> None:
        self._name_rows(self._rows)

    def sensed(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return :data:`ALL_ROWS` or :data:`POSITION_ROWS` of the states, ``[n_rows, n_envs]``."""
        return self._state.take(rows, axis=0)

    def put(self, indices: NDArray[np.intp], states: NDArray[np.float64]) -> None:
        """Put some carts into states given in Gymnasium's order, ``[k, 4]``."""
        self._state[:, indices] = states.T[ALL_ROWS]

    def advance(self, actions: NDArray[np.integer[Any]]) -> None:
        """Integrate over one step of 0.02 s; actions are 0 or 1, ``[n_envs]``."""
        self._accelerate(self._forces_of_actions.take(actions))
        if self._semi_implicit:
            self._velocities += self._tau_of_two * self._rows[4:]
            self._positions += self._tau_of_two * self._velocities
        else:
            self._state += self._tau * self._rates

    def _accelerate(self, forces: NDArray[np.float64]) -> None:
        """Compute the accelerations of cart and pole (R. Florian, "Correct equations...", 2007)."""
        sin, cos = np.sin(self._theta), np.cos(self._theta)
        # temp = (force + polemass_length * theta_dot**2 * sin) / total_mass
        temp = np.square(self._theta_dot)
        temp *= self._polemass_length
        temp *= sin
        temp += forces
        temp /= self._total_mass
        # inertia = length * (4 / 3 - masspole * cos**2 / total_mass)
        inertia = np.square(cos)
        inertia *= self._masspole
        inertia /= self._total_mass
        np.subtract(self._four_thirds, inertia, inertia)
        inertia *= self._length
        # theta_acc = (gravity * sin - cos * temp) / inertia
        theta_acc = np.multiply(self._gravity, sin, self._theta_acc)
        theta_acc -= cos * temp
        theta_acc /= inertia
        # x_acc = temp - polemass_length * theta_acc * cos / total_mass
        reaction = self._polemass_length * theta_acc
        reaction *= cos
        reaction /= self._total_mass
        np.subtract(temp, reaction, self._x_acc)

    def fallen(self) -> Flags:
        """Tell which poles have left ±12° or carts ±2.4 m, ``[n_envs]``."""
        cart, pole = np.abs(self._positions) > self._limits
        fallen: Flags = cart | pole
        return fallen

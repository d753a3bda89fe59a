"""Controllers that know the equations: they predict what they do not see.

What such a controller believes follows from what it saw and did alone. It starts from the mean of
the start states, upright and at rest, and never sees the true state.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import ArrayLike, NDArray

from thrust_pomdp.envs.cartpole import check_integrator
from thrust_pomdp.envs.cartpole_physics import ALL_ROWS, CartPolePhysics
from thrust_pomdp.reference.control_laws import Flags, Floats, PushController, linear

#: Variance of a start state's components, uniform within ±0.05.
START_VARIANCE = 0.05**2 / 3

#: Variance added to the velocities at each step of 0.02 s. The equations are exact, so it is there
#: for what the observer leaves out, sin(theta) - theta and rounding to float32, and keeps an
#: observer without noise from dividing 0 by 0.
VELOCITY_DRIFT = 1e-8


class ModelController(PushController):
    """Pushes by the sign of a linear law on the believed state.

    ``gains``: one each for cart position and velocity, pole angle and angular velocity.

    :param gains: ``[4]`` or ``[4, n_envs]``
    :param kinematics_integrator: the environment's
    :param seed: of the random draws, of which a deterministic law makes no use
    """

    information = "exact model"

    def __init__(
        self, gains: ArrayLike, kinematics_integrator: str = "euler", seed: int | None = None
    ) -> None:
        super().__init__(gains, seed)
        self._cart = CartPoleEnv()
        self._cart.kinematics_integrator = check_integrator(kinematics_integrator)

    @property
    def belief(self) -> Floats:
        """The believed states, ``[n_envs, 4]`` in Gymnasium's order."""
        return self._physics.sensed(ALL_ROWS).T

    def _start(self) -> None:
        self._physics = CartPolePhysics(self._cart, self.n_envs)
        self._pushes: NDArray[np.int64] = np.zeros(self.n_envs, dtype=np.int64)
        self._starts = np.ones(self.n_envs, dtype=bool)

    def _forget(self, ended: Flags) -> None:
        self._starts |= ended

    def _remember(self, pushes_right: Flags) -> None:
        self._pushes = pushes_right.astype(np.int64)

    def _lean(self, frames: Floats, visible: Flags) -> Floats:
        self._physics.advance(self._pushes)
        fresh = np.flatnonzero(self._starts)
        if len(fresh) > 0:
            self._physics.put(fresh, np.zeros((len(fresh), 4)))
        self._correct(frames, visible)
        self._starts = np.zeros(self.n_envs, dtype=bool)
        return np.copysign(np.inf, linear(self.gains, self._physics.sensed(ALL_ROWS)))

    @abstractmethod
    def _correct(self, frames: Floats, visible: Flags) -> None:
        """Let what is seen correct what was predicted."""


class ExactModel(ModelController):
    """Takes over each visible frame, which is the state, and predicts through the blanks."""

    name = "exact model"

    def _correct(self, frames: Floats, visible: Flags) -> None:
        seen = np.flatnonzero(visible)
        self._physics.put(seen, frames[:, seen].T)


class ModelObserver(ModelController):
    """Observes the velocities from the positions: a Kalman filter around the exact prediction.

    Prediction is the environment's own step. Only the spread of its error is computed with the
    equations linearised about the upright pole, cart and pole apart. Without noise this sets the
    positions when they are seen and corrects the velocities by the innovation over the time since
    they were seen last.

    :param gains: ``[4]`` or ``[4, n_envs]``
    :param kinematics_integrator: the environment's
    :param noise: standard deviation of the noise on the observed positions
    :param seed: of the random draws, of which a deterministic law makes no use
    """

    name = "model observer"

    def __init__(
        self,
        gains: ArrayLike,
        kinematics_integrator: str = "euler",
        noise: float = 0.0,
        seed: int | None = None,
    ) -> None:
        super().__init__(gains, kinematics_integrator, seed)
        self._noise_variance = noise**2
        self._transition = transition(self._cart)

    def _start(self) -> None:
        super()._start()
        # Of position, of both, of velocity; for cart and pole: [3, 2, n_envs].
        self._spread: Floats = np.zeros((3, 2, self.n_envs))

    def _correct(self, frames: Floats, visible: Flags) -> None:
        position, both, velocity = self._predicted_spread()
        # Nothing is learnt from a blank frame.
        share = np.where(visible, 1.0 / (position + self._noise_variance), 0.0)
        state = self._physics.sensed(ALL_ROWS)
        innovation = frames - state[::2]
        state[::2] += share * position * innovation
        state[1::2] += share * both * innovation
        self._physics.put(np.arange(self.n_envs), state.T)
        self._spread = np.stack(
            [
                position - share * position * position,
                both - share * position * both,
                velocity - share * both * both,
            ]
        )

    def _predicted_spread(self) -> Floats:
        (f00, f01), (f10, f11) = self._transition
        p00, p01, p11 = self._spread
        predicted = np.stack(
            [
                f00 * f00 * p00 + 2 * f00 * f01 * p01 + f01 * f01 * p11,
                f00 * f10 * p00 + (f00 * f11 + f01 * f10) * p01 + f01 * f11 * p11,
                f10 * f10 * p00 + 2 * f10 * f11 * p01 + f11 * f11 * p11 + VELOCITY_DRIFT,
            ]
        )
        at_start = np.array([START_VARIANCE, 0.0, START_VARIANCE])[:, None, None]
        return np.where(self._starts, at_start, predicted)


def transition(cart: CartPoleEnv) -> Floats:
    """Return what one step does to position and velocity, linearised about the upright pole.

    :param cart: its constants and integrator
    :return: ``[2, 2, 2, 1]``: to position or velocity, from position or velocity, cart or pole
    """
    tau, inertia = cart.tau, cart.length * (4 / 3 - cart.masspole / cart.total_mass)
    # Gravity topples the pole, nothing pulls the cart.
    pull = np.array([[0.0], [cart.gravity / inertia]]) * tau
    one = np.ones((2, 1))
    if cart.kinematics_integrator == "euler":
        return np.array([[one, tau * one], [pull, one]])
    return np.array([[one + tau * pull, tau * one], [pull, one]])

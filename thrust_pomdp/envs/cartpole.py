"""CartPole seen through imperfect sensors: velocities hidden, frames blanked, or both."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_flag
from thrust_pomdp.envs.cartpole_picture import Window, add_senses
from thrust_pomdp.envs.flicker import FlickerLaw, FlickerProcess
from thrust_pomdp.envs.rendering import STRIP_FRAMES, Picture
from thrust_pomdp.stateful import Names, StatefulEnv
from thrust_pomdp.unmodified_classes import remember

#: Gymnasium's explicit Euler integration, and the semi-implicit one of some other CartPoles.
INTEGRATORS = ("euler", "semi-implicit euler")

#: Cart position and pole angle, the two components a camera or an encoder measures.
POSITIONS = (0, 2)

#: Options of a reset.
START_OPTIONS = {"low", "high"}

Observation = NDArray[np.float32]
Info = dict[str, Any]


def check_integrator(kinematics_integrator: str) -> str:
    """Return the name of the integrator.

    :raises ValueError: if Gymnasium's CartPole does not know it (it would silently take the
        semi-implicit one)
    """
    if kinematics_integrator not in INTEGRATORS:
        raise ValueError(
            f"kinematics_integrator must be one of {INTEGRATORS}, got {kinematics_integrator!r}"
        )
    return kinematics_integrator


def check_start_options(options: dict[str, Any] | None) -> None:
    """Refuse reset options that would have no effect (Gymnasium's CartPole ignores them).

    :raises ValueError: for anything but ``low`` and ``high``, the bounds of the start state
    """
    if options is not None and not (isinstance(options, dict) and set(options) <= START_OPTIONS):
        raise ValueError(
            "options must be None or a dict of 'low' and 'high', the bounds of the start state, "
            f"got {options!r}"
        )


# Its physics are run, and stood in for, here.
remember(CartPoleEnv)


@remember
class SensedCartPoleEnv(StatefulEnv, CartPoleEnv):
    """CartPole with an observation of our own; physics and seeds are Gymnasium's."""

    _no_state: Names = ("screen", "clock", "surf", "isopen", "_window")
    _fixed_state: Names = ("hide_velocities", "expose_state", "kinematics_integrator")

    def __init__(
        self,
        hide_velocities: bool,
        kinematics_integrator: str,
        expose_state: bool,
        render_mode: str | None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        self.kinematics_integrator = check_integrator(kinematics_integrator)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(
                f"render_mode must be None or one of {self.metadata['render_modes']}, "
                f"got {render_mode!r}"
            )
        self.hide_velocities = check_flag("hide_velocities", hide_velocities)
        self.expose_state = check_flag("expose_state", expose_state)
        # Flags of the episode's latest frames, kept for the picture only.
        self._flags: deque[bool] = deque(maxlen=STRIP_FRAMES)
        self._window = Window(self.metadata["render_fps"])
        if self.hide_velocities:
            assert isinstance(self.observation_space, spaces.Box)
            high = self.observation_space.high[list(POSITIONS)]
            self.observation_space = spaces.Box(-high, high, dtype=np.float32)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Advance the physics by one step of 0.02 s and sense the outcome."""
        state, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return self._sense(state, info), float(reward), terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start a new episode, exactly as ``CartPole-v1`` does for the same seed and options.

        :raises ValueError: for options that ``CartPole-v1`` would ignore
        """
        check_start_options(options)
        state, info = super().reset(seed=seed, options=options)
        return self._sense(state, info), info

    def render(self) -> Picture | None:
        """Paint the true cart and what the agent saw of it.

        :return: ``[400, 600, 3]`` uint8; None in human mode, which shows it in a window
        """
        if self.render_mode != "human":
            return self._picture()
        # Gymnasium's own human mode would show its picture before anything is added to it.
        self.render_mode = "rgb_array"
        try:
            picture = self._picture()
        finally:
            self.render_mode = "human"
        if picture is not None:
            self._window.show(picture)
        return None

    def _picture(self) -> Picture | None:
        picture = super().render()  # type: ignore[no-untyped-call]
        return None if picture is None else add_senses(picture, self._flags, self.hide_velocities)

    def _sense(self, state: Observation, info: Info) -> Observation:
        if self.expose_state:
            info["state"] = state.copy()
        return state[list(POSITIONS)] if self.hide_velocities else state


@remember
class MaskedCartPoleEnv(SensedCartPoleEnv):
    """CartPole without its velocities: the agent sees where things are, not how they move.

    ## Description

    Gymnasium's ``CartPole-v1`` (Barto, Sutton and Anderson 1983) with the two velocities dropped
    from the observation. One frame no longer determines what the pole does next, two frames do:
    the smallest step from a fully observed task to one that needs memory.

    ## Action space

    ``Discrete(2)``: 0 pushes the cart to the left, 1 to the right, with a force of 10 N.

    ## Observation space

    ``Box`` of shape ``(2,)``, float32. The velocities are dropped, not set to zero.

    | index | observation   | min        | max       | unit |
    |-------|---------------|------------|-----------|------|
    | 0     | cart position | -4.8       | 4.8       | m    |
    | 1     | pole angle    | -0.418     | 0.418     | rad  |

    ## Reward, start and end

    As ``CartPole-v1``, bit for bit for the same seed and actions: +1 per step, the last one
    included; start state uniform in ±0.05; the episode terminates when the pole leaves ±12° or the
    cart ±2.4 m and is truncated after 500 steps.

    ## Arguments

    :param kinematics_integrator: ``"euler"`` (explicit, Gymnasium's) or ``"semi-implicit euler"``.
        They are different tasks: under the former a memoryless policy keeps the pole up for about
        50 steps, under the latter for several hundred, because explicit integration feeds energy
        into a loop that reacts to positions only.
    :param expose_state: add the true observation of ``CartPole-v1`` as ``info["state"]``, float32
        of shape ``(4,)``
    :param render_mode: ``None``, ``"human"`` or ``"rgb_array"``; the true cart is shown
    :raises ValueError: for an unknown integrator

    ```python
    >>> import gymnasium as gym, thrust_pomdp
    >>> env = gym.make("MaskedCartPole-v0")
    >>> env.reset(seed=0)[0].shape
    (2,)

    ```

    ## Version history

    * v0: initial version
    """

    def __init__(
        self,
        kinematics_integrator: str = "euler",
        expose_state: bool = False,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(True, kinematics_integrator, expose_state, render_mode)


@remember
class FlickeringCartPoleEnv(SensedCartPoleEnv):
    """CartPole through a sensor that drops whole frames.

    ## Description

    Gymnasium's ``CartPole-v1`` whose observation is replaced by zeros with probability
    ``flicker_prob``, independently (M. Hausknecht and P. Stone, "Deep Recurrent Q-Learning for
    Partially Observable MDPs", 2015) or, with ``burst_len``, in runs of blank frames. While the
    sensor is blank a policy without memory knows nothing at all; one with memory can go on
    predicting from what it saw and did.

    | id                                 | ``flicker_prob`` | ``burst_len`` | ``hide_velocities`` |
    |------------------------------------|------------------|---------------|---------------------|
    | ``FlickeringCartPole-v0``          | 0.5              | None          | False               |
    | ``FlickeringCartPole-p75-v0``      | 0.75             | None          | False               |
    | ``BurstFlickeringCartPole-v0``     | 0.5              | 4             | False               |
    | ``BurstFlickeringCartPole-L8-v0``  | 0.5              | 8             | False               |
    | ``BurstFlickeringCartPole-L16-v0`` | 0.5              | 16            | False               |
    | ``MaskedFlickeringCartPole-v0``    | 0.5              | None          | True                |

    The longer the sensor is blank, the less a single bit of memory helps: a controller that
    alternates its last action on blank frames comes close to an exact model in the first of these
    tasks and no longer does in the harder ones, ``p75``, ``L8``, ``L16`` and the masked one.

    ## Action space

    ``Discrete(2)``: 0 pushes the cart to the left, 1 to the right, with a force of 10 N.

    ## Observation space

    ``Box`` of shape ``(4,)``, float32, or ``(2,)`` with ``hide_velocities``; all zeros when blank.

    | index | observation           | min    | max   | unit  | with ``hide_velocities`` |
    |-------|-----------------------|--------|-------|-------|--------------------------|
    | 0     | cart position         | -4.8   | 4.8   | m     | index 0                  |
    | 1     | cart velocity         | -inf   | inf   | m/s   | dropped                  |
    | 2     | pole angle            | -0.418 | 0.418 | rad   | index 1                  |
    | 3     | pole angular velocity | -inf   | inf   | rad/s | dropped                  |

    ``info["blanked"]``, a bool, tells on ``reset`` and ``step`` whether the frame was blank.

    ## Blanking law

    See :class:`~thrust_pomdp.envs.flicker.FlickerLaw`. The first frame of an episode is blank with
    probability ``flicker_prob``. An environment seeded with ``s`` draws one uniform number per
    frame from a stream of its own: the same seed gives the same numbers whatever the actions are,
    and the start states are never disturbed. ``reset()`` without a seed continues the stream.

    ## Reward, start and end

    As ``CartPole-v1``, bit for bit for the same seed and actions: +1 per step, the last one
    included; start state uniform in ±0.05; the episode terminates when the pole leaves ±12° or the
    cart ±2.4 m and is truncated after 500 steps.

    ## Arguments

    :param flicker_prob: stationary share of blank frames, in [0, 1]
    :param burst_len: mean length of a run of blank frames, >= 1; None blanks each frame
        independently of the others
    :param hide_velocities: observe positions only
    :param kinematics_integrator: ``"euler"`` (explicit, Gymnasium's) or ``"semi-implicit euler"``
    :param expose_state: add the true observation of ``CartPole-v1`` as ``info["state"]``, float32
        of shape ``(4,)``
    :param render_mode: ``None``, ``"human"`` or ``"rgb_array"``; the true cart is shown, faded and
        framed while the agent is blind, above the flags of the latest frames
    :raises ValueError: for probabilities outside [0, 1], a burst that cannot exist, or an unknown
        integrator

    ```python
    >>> import gymnasium as gym, thrust_pomdp
    >>> env = gym.make("FlickeringCartPole-v0", flicker_prob=1.0)
    >>> obs, info = env.reset(seed=0)
    >>> obs.tolist(), info["blanked"]
    ([0.0, 0.0, 0.0, 0.0], True)

    ```

    ## Version history

    * v0: initial version
    """

    #: For layers around it, whose streams are to differ (see ``flicker.blanking_layers``).
    n_blanking_layers = 1

    def __init__(
        self,
        flicker_prob: float = 0.5,
        burst_len: float | None = None,
        hide_velocities: bool = False,
        kinematics_integrator: str = "euler",
        expose_state: bool = False,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(hide_velocities, kinematics_integrator, expose_state, render_mode)
        self._flicker = FlickerProcess(FlickerLaw(flicker_prob, burst_len))

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Advance the physics by one step of 0.02 s and look through the flickering sensor."""
        obs, reward, terminated, truncated, info = super().step(action)
        return (
            self._blank(obs, info, self._flicker.next_frame()),
            reward,
            terminated,
            truncated,
            info,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start a new episode; a seed restarts the blanking stream too, no seed continues it."""
        obs, info = super().reset(seed=seed, options=options)
        if seed is not None:
            self._flicker.seed(seed)
        self._flags.clear()
        return self._blank(obs, info, self._flicker.first_frame()), info

    def render(self) -> Picture | None:
        """Paint the true cart, faded and framed while the agent is blind, and its latest frames.

        :return: ``[400, 600, 3]`` uint8; None in human mode, in which ``reset`` and ``step`` show
            it as soon as the sensor has looked (Gymnasium calls this before that)
        """
        return None if self.render_mode == "human" else super().render()

    def _blank(self, obs: Observation, info: Info, blanked: bool) -> Observation:
        info["blanked"] = blanked
        if self.render_mode is not None:
            self._flags.append(blanked)
        if self.render_mode == "human":
            super().render()
        return np.zeros_like(obs) if blanked else obs

"""The position-only CartPoles of POPGym, for comparison with its published tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from thrust_pomdp.arguments import check_count
from thrust_pomdp.envs.cartpole import POSITIONS, Info, Observation, SensedCartPoleEnv
from thrust_pomdp.envs.cartpole_picture import add_ghost
from thrust_pomdp.envs.noise import SensorNoise, check_sigma
from thrust_pomdp.envs.rendering import Picture
from thrust_pomdp.stateful import Names
from thrust_pomdp.unmodified_classes import remember


@remember
class PositionOnlyCartPoleEnv(SensedCartPoleEnv):
    """POPGym's CartPole without velocities: the same task, reward scale and length.

    ## Description

    Gymnasium's ``CartPole-v1`` of which only positions are observed, as in the benchmark POPGym
    (S. Morad et al., "POPGym: Benchmarking Partially Observable Reinforcement Learning", ICLR 2023;
    there ``PositionOnlyCartPole``, in its first releases ``StatelessCartPole``). It is
    ``MaskedCartPole-v0`` with POPGym's episode lengths and rewards.

    | id                                    | ``max_episode_length`` |
    |---------------------------------------|------------------------|
    | ``POPGymPositionOnlyCartPoleEasy-v0`` | 200                    |
    | ``...Medium-v0``                      | 400                    |
    | ``...Hard-v0``                        | 600                    |

    ## Action space

    ``Discrete(2)``: 0 pushes the cart to the left, 1 to the right, with a force of 10 N.

    ## Observation space

    ``Box`` of shape ``(2,)``, float32.

    | index | observation   | min        | max       | unit |
    |-------|---------------|------------|-----------|------|
    | 0     | cart position | -4.8       | 4.8       | m    |
    | 1     | pole angle    | -0.418     | 0.418     | rad  |

    ## Reward

    ``1 / max_episode_length`` per step, the last one included: a full episode returns 1.

    ## Start and end

    The start state is that of ``CartPole-v1`` for the same seed, uniform in ±0.05. The episode
    terminates when the pole leaves ±12° or the cart ±2.4 m. The environment itself truncates it
    after ``max_episode_length`` steps, so that length and reward scale cannot disagree; a time
    limit given to ``gym.make`` comes on top.

    ## POPGym, and what is other here

    Equal: physics (explicit Euler), observations and their bounds, rewards, truncation, and both
    flags when the pole falls at the very last step. Other: every constructor takes all arguments
    (those of POPGym's Medium and Hard drop theirs, ``render_mode`` too); a step after the end pays
    0 and not -1. POPGym's published agents, its "MLP" included, also see their previous action and
    a flag on the first frame, by wrappers of its training script; its environment shows neither.

    ## Arguments

    :param max_episode_length: steps after which the episode is truncated, >= 1
    :param expose_state: add the true observation of ``CartPole-v1`` as ``info["state"]``, float32
        of shape ``(4,)``
    :param render_mode: ``None``, ``"human"`` or ``"rgb_array"``
    :raises ValueError: for a bad argument

    ```python
    >>> import gymnasium as gym, thrust_pomdp
    >>> env = gym.make("POPGymPositionOnlyCartPoleMedium-v0")
    >>> obs, info = env.reset(seed=0)
    >>> env.step(0)[1]
    0.0025

    ```

    ## Version history

    * v0: initial version
    """

    _fixed_state: Names = ("max_episode_length",)

    def __init__(
        self,
        max_episode_length: int = 200,
        expose_state: bool = False,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(True, "euler", expose_state, render_mode)
        self.max_episode_length = check_count("max_episode_length", max_episode_length)
        self._n_steps = 0

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Advance the physics by one step of 0.02 s and sense the positions."""
        obs, reward, terminated, _, info = super().step(action)
        self._n_steps += 1
        truncated = self._n_steps >= self.max_episode_length
        return obs, reward / self.max_episode_length, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start a new episode, exactly as ``CartPole-v1`` does for the same seed and options."""
        self._n_steps = 0
        return super().reset(seed=seed, options=options)


@remember
class NoisyPositionOnlyCartPoleEnv(PositionOnlyCartPoleEnv):
    """POPGym's CartPole without velocities, its positions seen through Gaussian noise.

    ## Description

    :class:`PositionOnlyCartPoleEnv` with a normal number added to each component of every frame,
    the first one included (POPGym's ``NoisyPositionOnlyCartPole``, in its first releases
    ``NoisyStatelessCartPole``). An episode ends beyond 0.21 rad, so a standard deviation of 0.1
    hides most of what a single frame could tell; memory can average.

    | id                                         | ``noise_sigma`` | ``max_episode_length`` |
    |--------------------------------------------|-----------------|------------------------|
    | ``POPGymNoisyPositionOnlyCartPoleEasy-v0`` | 0.1             | 200                    |
    | ``...Medium-v0``                           | 0.2             | 200                    |
    | ``...Hard-v0``                             | 0.3             | 200                    |

    ## Action space

    ``Discrete(2)``: 0 pushes the cart to the left, 1 to the right, with a force of 10 N.

    ## Observation space

    ``Box`` of shape ``(2,)``, float32. The sum of truth and noise is clipped to these bounds.

    | index | observation                   | min        | max       | unit |
    |-------|-------------------------------|------------|-----------|------|
    | 0     | cart position, with noise     | -4.8       | 4.8       | m    |
    | 1     | pole angle, with noise        | -0.418     | 0.418     | rad  |

    ## Noise

    Independent for each component and frame. An environment seeded with ``s`` draws it from a
    stream of its own: the same seed gives the same numbers whatever the actions are, and the start
    states are never disturbed. ``reset()`` without a seed continues the stream.

    ## Reward

    ``1 / max_episode_length`` per step, the last one included: a full episode returns 1.

    ## Start and end

    As :class:`PositionOnlyCartPoleEnv`: judged by the true state, never by what is observed.

    ## POPGym, and what is other here

    Equal: as for :class:`PositionOnlyCartPoleEnv`, and the law of the noise, its clipping and its
    rounding to float32. Other: POPGym draws the noise from the generator of the start states, so
    that there the start of the second episode depends on the length of the first; its ids' classes
    take no arguments.

    ## Arguments

    :param noise_sigma: standard deviation of the noise, in m and in rad, >= 0
    :param max_episode_length: steps after which the episode is truncated, >= 1
    :param expose_state: add the true observation of ``CartPole-v1`` as ``info["state"]``, float32
        of shape ``(4,)``
    :param render_mode: ``None``, ``"human"`` or ``"rgb_array"``; the true cart is shown, and as an
        outline the cart that the agent saw
    :raises ValueError: for a bad argument

    ```python
    >>> import gymnasium as gym, thrust_pomdp
    >>> env = gym.make("POPGymNoisyPositionOnlyCartPoleHard-v0")
    >>> env.reset(seed=0)[0].shape, env.unwrapped.noise_sigma
    ((2,), 0.3)

    ```

    ## Version history

    * v0: initial version
    """

    _no_state: Names = ("_low", "_high")
    _fixed_state: Names = ("noise_sigma",)

    def __init__(
        self,
        noise_sigma: float = 0.1,
        max_episode_length: int = 200,
        expose_state: bool = False,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(max_episode_length, expose_state, render_mode)
        self.noise_sigma = check_sigma("noise_sigma", noise_sigma)
        assert isinstance(self.observation_space, spaces.Box)
        self._low, self._high = self.observation_space.low, self.observation_space.high
        self._noise = SensorNoise(self.noise_sigma, len(self._high))

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Advance the physics by one step of 0.02 s and sense the positions, with noise."""
        obs, reward, terminated, truncated, info = super().step(action)
        return self._noisy(obs), reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start a new episode; a seed restarts the noise too, no seed continues it."""
        obs, info = super().reset(seed=seed, options=options)
        if seed is not None:
            self._noise.seed(seed)
        return self._noisy(obs), info

    def render(self) -> Picture | None:
        """Paint the true cart, and the outline of the one that the agent saw.

        :return: ``[400, 600, 3]`` uint8; None in human mode, in which ``reset`` and ``step`` show
            it as soon as the sensor has looked (Gymnasium calls this before that)
        """
        return None if self.render_mode == "human" else super().render()

    def _picture(self) -> Picture | None:
        picture = super()._picture()
        if picture is None or self.noise_sigma == 0.0:
            return picture
        positions = np.asarray(self.state, dtype=np.float32)[list(POSITIONS)]
        seen = clipped(positions + self._noise.latest, self._low, self._high)
        return add_ghost(picture, seen.tolist(), self.x_threshold, 2 * self.length)

    def _noisy(self, obs: Observation) -> Observation:
        seen = clipped(obs + self._noise.next_frame(), self._low, self._high)
        if self.render_mode == "human":
            super().render()
        return seen


def clipped(frames: Observation, low: Observation, high: Observation) -> Observation:
    """Do ``np.clip``, which takes twice as long on so few numbers."""
    inside: Observation = np.minimum(np.maximum(frames, low), high)
    return inside

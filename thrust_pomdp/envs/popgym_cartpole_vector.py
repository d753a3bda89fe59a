"""POPGym's position-only CartPoles for many environments at once, equal to the single ones."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from thrust_pomdp.envs.cartpole_vector import SensedCartPoleVectorEnv
from thrust_pomdp.envs.native_vector import Flags, Indices, Observations
from thrust_pomdp.envs.noise import SensorNoises
from thrust_pomdp.envs.popgym_cartpole import (
    NoisyPositionOnlyCartPoleEnv,
    PositionOnlyCartPoleEnv,
    clipped,
)
from thrust_pomdp.stateful import Names
from thrust_pomdp.unmodified_classes import remember


@remember
class _POPGymVectorEnv(SensedCartPoleVectorEnv):
    """Rewards and episode lengths of POPGym."""

    default_max_episode_steps = None

    def __init__(
        self,
        single: PositionOnlyCartPoleEnv,
        num_envs: int,
        autoreset_mode: str,
        max_episode_steps: int | None,
    ) -> None:
        super().__init__(single, num_envs, autoreset_mode, max_episode_steps)
        # The environment's own end, and the time limit that the user may have put around it.
        self._limit = min(self._limit, single.max_episode_length)
        self._rewards /= single.max_episode_length


@remember
class PositionOnlyCartPoleVectorEnv(_POPGymVectorEnv):
    """Many :class:`PositionOnlyCartPoleEnv`, with the numbers of single ones.

    For the same seed or list of seeds it gives, bit for bit, what Gymnasium's ``SyncVectorEnv`` of
    single environments gives: observations, rewards (float64), flags and infos.

    >>> import gymnasium as gym, thrust_pomdp
    >>> envs = gym.make_vec("POPGymPositionOnlyCartPoleHard-v0", 3)
    >>> envs.reset(seed=0)[0].shape
    (3, 2)

    :param num_envs: the number of environments, >= 1
    :param max_episode_length: steps after which an episode is truncated, >= 1
    :param expose_state: add the true observations as ``infos["state"]``, ``[num_envs, 4]`` float32
    :param render_mode: None or ``"rgb_array"``
    :param autoreset_mode: ``"NextStep"`` or ``"SameStep"``, a string
    :param max_episode_steps: a time limit on top; None or -1 sets none
    :raises ValueError: for a bad argument
    """

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_length: int = 200,
        expose_state: bool = False,
        render_mode: str | None = None,
        autoreset_mode: str = "NextStep",
        max_episode_steps: int | None = None,
    ) -> None:
        single = PositionOnlyCartPoleEnv(max_episode_length, expose_state, render_mode)
        super().__init__(single, num_envs, autoreset_mode, max_episode_steps)


@remember
class NoisyPositionOnlyCartPoleVectorEnv(_POPGymVectorEnv):
    """Many :class:`NoisyPositionOnlyCartPoleEnv`, with the numbers of single ones.

    Every environment has its own streams of start states and of noise. For the same seed or list of
    seeds it gives, bit for bit, what Gymnasium's ``SyncVectorEnv`` of single environments gives.

    >>> import gymnasium as gym, thrust_pomdp
    >>> envs = gym.make_vec("POPGymNoisyPositionOnlyCartPoleEasy-v0", 3)
    >>> envs.reset(seed=0)[0].shape
    (3, 2)

    :param num_envs: the number of environments, >= 1
    :param noise_sigma: standard deviation of the noise, in m and in rad, >= 0
    :param max_episode_length: steps after which an episode is truncated, >= 1
    :param expose_state: add the true observations as ``infos["state"]``, ``[num_envs, 4]`` float32
    :param render_mode: None or ``"rgb_array"``
    :param autoreset_mode: ``"NextStep"`` or ``"SameStep"``, a string
    :param max_episode_steps: a time limit on top; None or -1 sets none
    :raises ValueError: for a bad argument
    """

    def __init__(
        self,
        num_envs: int = 1,
        noise_sigma: float = 0.1,
        max_episode_length: int = 200,
        expose_state: bool = False,
        render_mode: str | None = None,
        autoreset_mode: str = "NextStep",
        max_episode_steps: int | None = None,
    ) -> None:
        single = NoisyPositionOnlyCartPoleEnv(
            noise_sigma, max_episode_length, expose_state, render_mode
        )
        super().__init__(single, num_envs, autoreset_mode, max_episode_steps)
        assert isinstance(single.observation_space, spaces.Box)
        self._low, self._high = single.observation_space.low, single.observation_space.high
        self._noises = SensorNoises(single.noise_sigma, len(self._high), self.num_envs)

    _no_state: Names = ("_low", "_high")

    def _seed_one(self, idx: int, seed: int) -> None:
        super()._seed_one(idx, seed)
        self._noises.seed(idx, seed)

    def tell_painter(self, idx: int) -> None:
        """Let the single environment, which paints, know what the sensors of one of many did."""
        super().tell_painter(idx)
        self.single._noise.latest = self._noises.latest[idx]

    def _draw_frames(self, restarted: Flags | None) -> None:
        self._noises.next_frames()

    def _observe(self) -> Observations:
        return self._noisy(super()._observe(), self._noises.latest)

    def _sense_starts(self, indices: Indices, starts: NDArray[np.float64]) -> Observations:
        noise = self._noises.first_frames(indices)
        return self._noisy(super()._sense_starts(indices, starts), noise)

    def _noisy(self, obs: Observations, noise: NDArray[np.float32]) -> Observations:
        return clipped(obs + noise, self._low, self._high)

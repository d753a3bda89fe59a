"""Partially observable environments (NumPy and Gymnasium only)."""

from thrust_pomdp.envs.cartpole import FlickeringCartPoleEnv, MaskedCartPoleEnv
from thrust_pomdp.envs.flicker import FlickerLaw, FlickerProcess
from thrust_pomdp.envs.popgym_cartpole import NoisyPositionOnlyCartPoleEnv, PositionOnlyCartPoleEnv
from thrust_pomdp.envs.tmaze import ActiveTMazeEnv, TMazeEnv

__all__ = [
    "ActiveTMazeEnv",
    "FlickerLaw",
    "FlickerProcess",
    "FlickeringCartPoleEnv",
    "MaskedCartPoleEnv",
    "NoisyPositionOnlyCartPoleEnv",
    "PositionOnlyCartPoleEnv",
    "TMazeEnv",
]

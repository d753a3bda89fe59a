"""Partially observable environments (NumPy and Gymnasium only)."""

from thrust_pomdp.envs.cartpole import FlickeringCartPoleEnv, MaskedCartPoleEnv
from thrust_pomdp.envs.flicker import FlickerLaw, FlickerProcess

__all__ = ["FlickerLaw", "FlickerProcess", "FlickeringCartPoleEnv", "MaskedCartPoleEnv"]

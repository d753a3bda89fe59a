"""The table of environment ids."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

_MASKED = "thrust_pomdp.envs.cartpole:MaskedCartPoleEnv"
_FLICKERING = "thrust_pomdp.envs.cartpole:FlickeringCartPoleEnv"

#: Single environment -> its native vector twin.
VECTOR_TWINS = {
    _MASKED: "thrust_pomdp.envs.cartpole_vector:MaskedCartPoleVectorEnv",
    _FLICKERING: "thrust_pomdp.envs.cartpole_vector:FlickeringCartPoleVectorEnv",
}

#: id -> (entry point, keyword arguments). All run for 500 steps, as ``CartPole-v1``.
ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "MaskedCartPole-v0": (_MASKED, {}),
    "FlickeringCartPole-v0": (_FLICKERING, {"flicker_prob": 0.5}),
    "BurstFlickeringCartPole-v0": (_FLICKERING, {"flicker_prob": 0.5, "burst_len": 4}),
    "MaskedFlickeringCartPole-v0": (_FLICKERING, {"flicker_prob": 0.5, "hide_velocities": True}),
}


def register_envs() -> None:
    """Register every id of this package with Gymnasium; ids already there are left alone.

    ``import thrust_pomdp`` calls this, and ``gym.make("thrust_pomdp:FlickeringCartPole-v0")``
    imports the package by itself, in spawn-started worker processes too.
    """
    for env_id, (entry_point, kwargs) in ENVIRONMENTS.items():
        if env_id not in gym.registry:
            gym.register(
                env_id,
                entry_point=entry_point,
                vector_entry_point=VECTOR_TWINS[entry_point],
                kwargs=dict(kwargs),
                max_episode_steps=500,
                reward_threshold=475.0,
            )

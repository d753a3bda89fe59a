"""Asking a model for actions on what the environments show in their first window."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from thrust_pomdp.conformance.observed import Array
from thrust_pomdp.conformance.probe import N_STEPS, shown, starts


def ask(model: Any, obs: Array, state: Any, flags: Array) -> tuple[Any, Any]:
    """Ask for the likeliest actions; all are allowed, where that is asked back."""
    masks = {}
    if "action_masks" in inspect.signature(model.predict).parameters:
        masks["action_masks"] = np.ones((len(obs), 2), dtype=bool)
    answer: tuple[Any, Any] = model.predict(
        obs, state=state, episode_start=flags, deterministic=True, **masks
    )
    return answer


def play(
    model: Any, state: Any = None, first: int = 0, forget: bool = False
) -> tuple[Array, list[Any]]:
    """Act on what the environments show in the first window.

    :param state: to begin with
    :param first: step to begin at
    :param forget: hand in no memory
    :return: actions ``[n_steps, n_envs]``, and the state after each step
    """
    obs, flags = shown(), starts()
    actions, states = [], []
    for time in range(first, N_STEPS):
        given = (None, np.ones_like(flags[time])) if forget else (state, flags[time])
        action, state = ask(model, obs[time], *given)
        actions.append(np.array(action))
        states.append(state)
    return np.array(actions), states


def led_by_memory(model: Any) -> int:
    """Return how many of the likeliest actions are others where nothing is remembered."""
    return int((play(model)[0] != play(model, forget=True)[0]).sum())

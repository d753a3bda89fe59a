"""Whether anybody else's code runs between two steps of collecting."""

from __future__ import annotations

import threading
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from thrust_pomdp.ppo.resumable_learning import TakesUpTraining
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.substitutes import against_later_infos

#: Threads of this package, which compute and change nothing.
_OWN_THREADS = "thrust_pomdp"


def against_acting_alone(model: Any, env: VecEnv, callback: BaseCallback) -> str | None:
    """Say whose code runs between two steps, and might change the policy there.

    Where there is none, weights need not be compared nor modules watched at each step of a window.

    :param model: that collects
    :param env: its environment
    :param callback: called at each step
    """
    if not type(model).__module__.startswith("thrust_pomdp.") or "_update_info_buffer" in vars(
        model
    ):
        return f"{type(model).__name__} is a class of its user's"
    if any(not thread.name.startswith(_OWN_THREADS) for thread in _other_threads()):
        return "other threads run"
    return _against_callback(callback) or _against_env(env)


def _other_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread is not threading.current_thread()]


def _against_callback(callback: BaseCallback) -> str | None:
    """Say which callback does something; SB3 makes one that does nothing of None."""
    if type(callback) is CallbackList and not vars(callback).keys() & {"on_step", "_on_step"}:
        return next(filter(None, map(_against_callback, callback.callbacks)), None)
    if type(callback) is ConvertCallback and callback.callback is None:
        return None
    is_ours = type(callback).__module__.startswith("thrust_pomdp.")
    if is_ours and isinstance(callback, TakesUpTraining) and "_on_step" not in vars(callback):
        return None  # does nothing between steps
    return f"a {type(callback).__name__} is called at each step"


def _against_env(env: VecEnv) -> str | None:
    """Say which part of an environment is not this package's."""
    while isinstance(env, VecEnvWrapper):
        if not type(env).__module__.startswith(("thrust_pomdp.", "stable_baselines3.")):
            return f"the environment has a {type(env).__name__} around it"
        env = env.venv
    if type(env) is not GymnasiumVecEnv:
        return f"the environment is a {type(env).__name__}"
    return against_later_infos(env.env)

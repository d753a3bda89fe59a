"""Whether anybody else's code runs between two steps of collecting."""

from __future__ import annotations

import threading
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from thrust_pomdp.ppo.counting_callbacks import NEVER, steps_unseen
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.substitutes import against_later_infos

#: Threads of this package, which compute and change nothing.
_OWN_THREADS = "thrust_pomdp"

#: Libraries whose threads write files and draw bars.
_LIBRARIES = ("rich", "tensorboard", "tqdm")


def against_acting_alone(model: Any, env: VecEnv, callback: BaseCallback) -> str | None:
    """Say whose code runs between two steps, and might change the policy there.

    Where there is none, weights need not be compared nor modules watched at each step of a window.

    :param model: that collects
    :param env: its environment
    :param callback: called at each step
    """
    return against_model(model) or against_callback(callback) or _against_env(env)


def against_model(model: Any) -> str | None:
    """Say whose code runs between two steps apart from callbacks and environments."""
    if not type(model).__module__.startswith("thrust_pomdp.") or "_update_info_buffer" in vars(
        model
    ):
        return f"{type(model).__name__} is a class of its user's"
    return "other threads run" if _other_threads() else None


def _other_threads() -> list[threading.Thread]:
    """Return the threads that may change things."""

    def is_other(thread: threading.Thread) -> bool:
        is_known = type(thread).__module__.partition(".")[0] in _LIBRARIES
        is_ours = thread.name.startswith(_OWN_THREADS) or thread is threading.current_thread()
        return not (is_known or is_ours)

    return list(filter(is_other, threading.enumerate()))


def against_callback(callback: BaseCallback) -> str | None:
    """Say which callback does something at steps."""
    if steps_unseen(callback, 1) == NEVER:
        return None
    if type(callback) is CallbackList:
        reason = next(filter(None, map(against_callback, callback.callbacks)), None)
        if reason is not None:
            return reason
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

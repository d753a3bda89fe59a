"""Reading and checking masks of actions.

An environment, or a wrapper of it, tells by a method ``action_masks()`` which actions may be taken
now. It answers by a row of flags, true where allowed, with all single choices one after the other::

    Discrete(3)              0 1 2
    MultiDiscrete([3, 2])    0 1 2 | 0 1          choice by choice
    MultiBinary(2)           0 1   | 0 1          for each bit: may it be 0, may it be 1

These are ``sb3_contrib``'s method and layout.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.vec_env.gymnasium_vec_env import ACTION_MASKS

Masks = NDArray[np.bool_]


class MaskLayout:
    """The layout of an action space's masks.

    >>> layout = MaskLayout(spaces.MultiDiscrete([3, 2]))
    >>> layout.checked([[1, 0, 0, 1, 1]]).tolist()
    [[True, False, False, True, True]]
    >>> layout.checked([[1, 0, 0, 0, 0]])
    Traceback (most recent call last):
    ValueError: action_masks of environment 0 must allow at least one value of choice 1, got none

    :param action_space: Discrete, MultiDiscrete or a MultiBinary vector
    :raises ValueError: for other spaces
    """

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self._space = action_space
        #: Number of values of each single choice.
        self.sizes = _sizes(action_space)
        #: Entries of a row.
        self.width = sum(self.sizes)
        self._first = np.cumsum([0, *self.sizes[:-1]])

    def as_rows(self, masks: Any) -> Any:
        """Return masks that a user gave, in whatever shape, as a sequence of rows.

        :param masks: of one observation or of several; windows are put one after the other
        """
        try:
            array = np.asarray(masks)
        except ValueError:
            return masks  # rows of unequal lengths
        if array.ndim < 2 or array.size == self.width:
            return [array]
        return array.reshape(-1, self.width) if array.shape[-1] == self.width else array

    def checked(self, masks: Any, when: str = "") -> Masks:
        """Return masks as bools, ``[n_envs, width]``.

        :param masks: for each environment ``width`` entries, in any shape: bools, or numbers that
            are 0 or 1
        :param when: for the message, such as ``" at step 3 of the rollout"``
        :raises ValueError: naming the environment, if its mask is of another size or type, or
            leaves nothing to choose
        """
        try:
            array = np.asarray(masks)
        except ValueError:
            array = np.empty(0)  # rows of unequal lengths
        if array.dtype != bool or array.size != len(masks) * self.width:
            array = np.stack([self._checked_row(row, env, when) for env, row in enumerate(masks)])
        array = np.ascontiguousarray(array.reshape(-1, self.width))
        if len(self.sizes) == 1:
            possible = array.any(axis=1, keepdims=True)
        else:
            possible = np.logical_or.reduceat(array, self._first, axis=1)
        if not possible.all():
            env, choice = np.argwhere(~possible)[0]
            raise ValueError(
                f"action_masks of environment {env}{when} must allow at least one "
                f"{self._name(choice)}, got none"
            )
        return array

    def _checked_row(self, row: Any, env: int, when: str) -> Masks:
        whose = f"action_masks of environment {env}{when}"
        try:
            array = np.asarray(row).reshape(-1)
        except ValueError:
            raise ValueError(f"{whose} must be one array of flags, got {row!r}") from None
        if array.dtype.kind not in "biuf":
            raise ValueError(
                f"{whose} must be bools, or numbers that are 0 or 1, got {row!r} of type "
                f"{array.dtype if isinstance(row, np.ndarray) else type(row).__name__}"
            )
        if len(array) != self.width:
            raise ValueError(
                f"{whose} must have {self.width} entries for {self._space}, got {len(array)}"
            )
        allowed: Masks = array == 1
        if not (allowed | (array == 0)).all():
            raise ValueError(f"{whose} must be bools, or numbers that are 0 or 1, got {row!r}")
        return allowed

    def _name(self, choice: int) -> str:
        if isinstance(self._space, spaces.Discrete):
            return "action"
        part = "bit" if isinstance(self._space, spaces.MultiBinary) else "choice"
        return f"value of {part} {choice}"


def _sizes(space: spaces.Space[Any]) -> list[int]:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return [int(size) for size in space.nvec]
    if isinstance(space, spaces.MultiBinary) and isinstance(space.n, int):
        return [2] * space.n
    raise ArgumentError(
        "action_space must be Discrete, MultiDiscrete or a MultiBinary vector for action masks, "
        f"got {space}; use RecurrentPPO, which takes no masks"
    )


def is_masking_supported(env: gym.Env[Any, Any] | VecEnv) -> bool:
    """Tell whether an environment has a method ``action_masks``.

    :param env: the environment; of a vectorised one all must have it
    """
    if isinstance(env, VecEnv):
        return env.has_attr(ACTION_MASKS)
    try:
        env.get_wrapper_attr(ACTION_MASKS)
    except AttributeError:
        return False
    return True


def get_action_masks(env: gym.Env[Any, Any] | VecEnv) -> Masks:
    """Return the masks of the actions that an environment is to take next.

    >>> from sb3_contrib.common.wrappers import ActionMasker  # doctest: +SKIP
    >>> env = ActionMasker(gym.make("CartPole-v1"), lambda env: [True, False])  # doctest: +SKIP
    >>> get_action_masks(env)  # doctest: +SKIP
    array([ True, False])

    :param env: an environment with a method ``action_masks``
    :return: ``[n_envs, width]`` bool; ``[width]`` for a single Gymnasium environment
    :raises ValueError: if it has none, or a mask cannot be; see :meth:`MaskLayout.checked`
    """
    if not is_masking_supported(env):
        raise missing_action_masks(env)
    layout = MaskLayout(env.action_space)
    if isinstance(env, VecEnv):
        return layout.checked(env.env_method(ACTION_MASKS))
    row: Masks = layout.checked([env.get_wrapper_attr(ACTION_MASKS)()])[0]
    return row


def missing_action_masks(env: Any) -> ValueError:
    """Return the error for an environment that tells no masks."""
    return ValueError(
        f"env must have a method action_masks() that returns what may be done now, got {env}: give "
        "it one, or put a wrapper around it that has one; to go without masks pass "
        "use_masking=False"
    )

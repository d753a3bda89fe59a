"""What the wrappers of single environments in this package have in common."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from thrust_pomdp.stateful import Names, Stateful


class Layer(Stateful, gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """A wrapper whose state, which is its own and not the environment's inside, can be taken out.

    :param env: the environment
    """

    _no_state: Names = ("env", "_cached_spec", "_metadata", "_saved_kwargs")

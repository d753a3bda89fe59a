"""What all wrappers of vectorised environments in this package have in common."""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.stateful import Names, Stateful

#: What every wrapper has one of, although SB3 takes it away from what it pickles.
_OF_ALL = frozenset({"venv", "class_attributes"})


class _Whole(ABCMeta):
    """Lets constructors assign what they like to their own objects."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made: Any = cls.__new__(cls, *args, **kwargs)  # type: ignore[arg-type]
        with own_attributes(made):
            made.__init__(*args, **kwargs)
        return made


@contextmanager
def own_attributes(wrapper: Any) -> Iterator[None]:
    """Let everything that is assigned to a wrapper meanwhile be its own."""
    vars(wrapper)["_keeps_all"] = True
    try:
        yield
    finally:
        vars(wrapper).pop("_keeps_all", None)


def check_venv(name: str, venv: Any) -> None:
    """Refuse what is no vectorised environment of SB3's, with what makes it one.

    :raises ValueError: naming the argument and the remedy
    """
    if isinstance(venv, VecEnv):
        return
    remedy = "make one by thrust_pomdp.make_vec_env(id, n_envs)"
    if isinstance(venv, VectorEnv):
        remedy = "thrust_pomdp.GymnasiumVecEnv makes one of a gymnasium.vector environment"
    elif isinstance(venv, gym.Env):
        remedy = "stable_baselines3's DummyVecEnv([lambda: env]) makes one of a single environment"
    raise ArgumentError(f"{name} must be a VecEnv, got {venv!r}: {remedy}")


class VecLayer(Stateful, VecEnvWrapper, metaclass=_Whole):
    """Base of the wrappers of this package: what can be read through it can be set through it.

    SB3's wrappers find the attributes of what is inside of them, but keep what is assigned:
    ``VecFrameStack(VecNormalize(venv), 2).training = False`` freezes nothing. Through the wrappers
    of this package an assignment goes where the name is read from, be that a wrapper of whomever
    or the environment in the middle. Names that the object or its class has are its own, and so are
    those that nothing inside has, those that begin with an underscore, and all that a constructor
    assigns. An assignment to what more than one wrapper inside has raises ``AttributeError``, as
    reading it does.

    >>> import thrust_pomdp
    >>> venv = thrust_pomdp.make_vec_env("FlickeringCartPole-v0", n_envs=2, normalize=True)
    >>> venv = thrust_pomdp.VecPreviousReward(thrust_pomdp.VecPreviousAction(venv))
    >>> venv.training = False
    >>> venv.venv.venv.training
    False
    """

    _keeps_all = False
    _no_state: Names = ("venv", "class_attributes", "metadata", "render_mode", "_keeps_all")
    _fixed_state: Names = ("num_envs",)

    def __setattr__(self, name: str, value: Any) -> None:
        owner = None if self._is_own(name) else owner_of(vars(self).get("venv"), name)
        if owner is None:
            super().__setattr__(name, value)
            return
        getattr(self, name)  # raises where it is ambiguous
        setattr(owner, name, value)

    def _is_own(self, name: str) -> bool:
        if name.startswith("_") or self._keeps_all or name in _OF_ALL:
            return True
        return name in vars(self) or hasattr(type(self), name)

    # Copying and pickling ask for these two, and would find those of a wrapper inside, or look for
    # what is inside of a copy that has nothing yet.

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, for a copy."""
        # A class's own dict, which is among them, cannot be copied.
        return {name: value for name, value in vars(self).items() if name != "class_attributes"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the attributes that :meth:`__getstate__` returned."""
        vars(self).update(state)
        self.class_attributes = dict(inspect.getmembers(type(self)))


def owner_of(venv: VecEnv | None, name: str) -> VecEnv | None:
    """Find what has an attribute, from the outside in; None if nothing does."""
    layer: Any = venv
    while isinstance(layer, VecEnvWrapper):
        if name in vars(layer) or hasattr(type(layer), name):
            return layer
        layer = vars(layer).get("venv")
    return layer if layer is not None and hasattr(layer, name) else None

"""One environment of a native vector, to be read and painted as if it stood alone."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import numpy as np
from gymnasium.envs.registration import EnvSpec


class VectorOfEnvs(Protocol):
    """What is asked of the vector that an environment is one of."""

    single: Any
    starts: Any
    seeds: Any
    max_episode_steps: Any
    spec: Any


class EnvOfVector(ABC):
    """One environment of a vector, for programs that read, set or paint single environments.

    ``np_random`` can be used with the effect that it has on a single environment. Constants can be
    read, but not set: the vector shares them.
    """

    #: What a single environment keeps for its own episode or window: not the vector's to tell.
    not_shared: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, vector_env: VectorOfEnvs, idx: int) -> None:
        # Around __setattr__, which asks the vector environment what may be set.
        self.__dict__.update(_vector_env=vector_env, _idx=idx)

    @property
    def unwrapped(self) -> EnvOfVector:
        """The environment itself."""
        return self

    @property
    def np_random(self) -> np.random.Generator:
        """The generator of the start states."""
        generator: np.random.Generator = self._vector_env.starts.generator(self._idx)
        return generator

    @property
    def np_random_seed(self) -> int:
        """The seed of the start states."""
        seed: int = self._vector_env.seeds[self._idx]
        return seed

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of a single environment."""
        metadata: dict[str, Any] = self._vector_env.single.metadata
        return metadata

    @property
    def spec(self) -> EnvSpec | None:
        """The specification of a single environment like this one."""
        spec: EnvSpec | None = copy.deepcopy(self._vector_env.spec)
        if spec is not None:
            for key in ("num_envs", "vectorization_mode", "autoreset_mode", "max_episode_steps"):
                spec.kwargs.pop(key, None)
            spec.max_episode_steps = self._vector_env.max_episode_steps
        return spec

    @abstractmethod
    def render(self) -> Any:
        """Paint the environment in the vector's ``render_mode``."""

    def close(self) -> None:  # noqa: B027 (nothing to do is what it does)
        """Do nothing: the vector environment owns what there is to close."""

    def get_wrapper_attr(self, name: str) -> Any:
        """Read an attribute, as from a wrapped single environment."""
        return getattr(self, name)

    def has_wrapper_attr(self, name: str) -> bool:
        """Tell whether it has an attribute, as a wrapped single environment does."""
        return hasattr(self, name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute, as through a wrapped single environment; tell whether it was set.

        :param name: its name
        :param value: its value
        :param force: set it where there is none of the name, too
        :raises AttributeError: for what all environments of the vector share
        """
        if force or hasattr(self, name):
            setattr(self, name, value)
            return True
        return False

    def __getattr__(self, name: str) -> Any:
        # Private names first: while it is being copied this object has no vector environment yet.
        if not name.startswith("_") and name not in self.not_shared:
            shared = vars(self._vector_env.single)
            if name in shared:
                return shared[name]
        raise AttributeError(
            f"an environment of a native vector has no attribute {name!r}; build the vector from "
            "single environments (vectorization_mode='sync', or vec_env_cls=DummyVecEnv with "
            "Stable-Baselines3) where a program needs all of theirs"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self._vector_env.single) or hasattr(type(self), name):
            raise AttributeError(f"{name!r} is shared by all environments of {self._vector_env}")
        self.__dict__[name] = value

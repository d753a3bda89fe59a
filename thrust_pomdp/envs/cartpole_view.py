"""One environment of a CartPole vector, to be read and painted as if it stood alone."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from thrust_pomdp.envs.cartpole_physics import ALL_ROWS

if TYPE_CHECKING:
    from thrust_pomdp.envs.cartpole_vector import SensedCartPoleVectorEnv

#: What a single environment keeps for its own episode or window.
_NOT_SHARED = {"state", "steps_beyond_terminated", "screen", "clock", "surf", "isopen"}


class CartPoleOfVector:
    """One environment of a vector, for programs that read, set or paint single environments.

    ``state`` can be set and ``np_random`` used, with the effect that they have on a single
    environment. Constants can be read, but not set: the vector shares them.
    """

    _vector_env: SensedCartPoleVectorEnv
    _idx: int

    def __init__(self, vector_env: SensedCartPoleVectorEnv, idx: int) -> None:
        # Around __setattr__, which asks the vector environment what may be set.
        self.__dict__.update(_vector_env=vector_env, _idx=idx)

    @property
    def unwrapped(self) -> CartPoleOfVector:
        """The environment itself."""
        return self

    @property
    def state(self) -> NDArray[np.float64]:
        """Cart position and velocity, pole angle and angular velocity, ``[4]`` float64."""
        return self._vector_env.physics.sensed(ALL_ROWS)[:, self._idx]

    @property
    def np_random(self) -> np.random.Generator:
        """The generator of the start states."""
        return self._vector_env.starts.generator(self._idx)

    @property
    def np_random_seed(self) -> int:
        """The seed of the start states."""
        return self._vector_env.seeds[self._idx]

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of a single environment."""
        return self._vector_env.single.metadata

    @property
    def spec(self) -> EnvSpec | None:
        """The specification of a single environment like this one."""
        spec = copy.deepcopy(self._vector_env.spec)
        if spec is not None:
            for key in ("num_envs", "vectorization_mode", "autoreset_mode", "max_episode_steps"):
                spec.kwargs.pop(key, None)
            spec.max_episode_steps = self._vector_env.max_episode_steps
        return spec

    def render(self) -> Any:
        """Paint the environment, ``[height, width, 3]`` uint8."""
        single, vector_env = self._vector_env.single, self._vector_env
        single.state = self.state
        single._flags.clear()
        single._flags.extend(vector_env.latest_flags(self._idx))
        return single.render()

    def close(self) -> None:
        """Do nothing: the vector environment owns what there is to close."""

    def get_wrapper_attr(self, name: str) -> Any:
        """Read an attribute, as from a wrapped single environment."""
        return getattr(self, name)

    def __getattr__(self, name: str) -> Any:
        # Private names first: while it is being copied this object has no vector environment yet.
        if not name.startswith("_") and name not in _NOT_SHARED:
            shared = vars(self._vector_env.single)
            if name in shared:
                return shared[name]
        raise AttributeError(
            f"an environment of a native vector has no attribute {name!r}; build the vector from "
            "single environments (vectorization_mode='sync', or vec_env_cls=DummyVecEnv with "
            "Stable-Baselines3) where a program needs all of theirs"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state":
            self._vector_env.physics.put(np.array([self._idx]), np.asarray(value)[None])
        elif name in vars(self._vector_env.single) or hasattr(type(self), name):
            raise AttributeError(f"{name!r} is shared by all environments of {self._vector_env}")
        else:
            self.__dict__[name] = value

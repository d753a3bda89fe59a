"""The last action and reward as part of the observation, for SB3's vectorised environments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium.vector import VectorWrapper
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from thrust_pomdp.stateful import Names
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.layer import VecLayer, check_venv
from thrust_pomdp.vec_env.step_infos import rows_of
from thrust_pomdp.wrappers import PreviousActionObservation, PreviousRewardObservation
from thrust_pomdp.wrappers.actions import PREVIOUS_ACTION, ActionEncoding
from thrust_pomdp.wrappers.appending import Appender, Encoding
from thrust_pomdp.wrappers.rewards import PREVIOUS_REWARD, RewardEncoding
from thrust_pomdp.wrappers.vector.previous import PreviousObservation as VectorPreviousObservation

#: Where SB3 puts the last frame of an episode.
_FINAL = "terminal_observation"


class VecPrevious(VecLayer):
    """Base of the wrappers that append something about the last step, zeros where there is none.

    ``terminal_observation`` holds what belongs to the step that led to it; the frame that an
    episode starts with has zeros. ``info["blanked"]`` goes on telling of the sensors; where it
    names single components it gets an entry of False for each number appended (and the infos of
    the step are then built, which otherwise wait until someone looks at them). Attributes of what
    is inside, such as ``blanked`` of a
    :class:`~thrust_pomdp.vec_env.gymnasium_vec_env.GymnasiumVecEnv`, are found from here and tell
        of the observation inside.

    :param venv: the vectorised environment
    :param encoding: of what is appended
    :param key: its key in observations that are or become dicts
    :raises ValueError: for a key that is taken
    """

    #: What is appended, for messages: ``"action"`` or ``"reward"``.
    appends: ClassVar[str]
    _no_state: Names = ("_appender", "encoding", "_flags_are_from_inside")
    _fixed_state: Names = ("key",)
    _shaped_state: Names = ("_actions",)

    def __init__(self, venv: VecEnv, encoding: Encoding, key: str) -> None:
        self._appender = Appender(venv.observation_space, encoding, key)
        super().__init__(venv, observation_space=self._appender.space)
        self.encoding, self.key = encoding, key
        # Others may put flags of their own into the infos, which only looking at these shows.
        self._flags_are_from_inside = all(map(_leaves_infos, layers(venv)))

    @property
    def makes_longer(self) -> bool:
        """Whether it makes a vector longer, instead of adding a key to a dict."""
        return self._appender.makes_longer

    def _last(self, rewards: NDArray[Any]) -> NDArray[np.float32]:
        """Return what is encoded of the step just made, ``[num_envs, size]``, a new array."""
        raise NotImplementedError

    def reset(self) -> VecEnvObs:
        """Reset all environments; there is no step yet."""
        obs = self.venv.reset()
        shown: VecEnvObs = self._appender.append(obs, self.encoding.none(self.num_envs))
        return shown

    def step_wait(self) -> VecEnvStepReturn:
        """Step, and append what belongs to the step to what it led to."""
        obs, rewards, dones, infos = self.venv.step_wait()
        last = self._last(rewards)
        self._append_to_final_frames(infos, dones, last)
        last[dones] = 0.0
        self._extend_flags(infos)
        return self._appender.append(obs, last), rewards, dones, infos

    def _append_to_final_frames(
        self, infos: Any, dones: NDArray[np.bool_], last: NDArray[np.float32]
    ) -> None:
        indices = dones.nonzero()[0].tolist()
        rows = rows_of(infos, indices)
        told = [(idx, info) for idx, info in zip(indices, rows, strict=True) if _FINAL in info]
        if not told:
            return
        frames = [info[_FINAL] for _, info in told]
        longer = self._appender.append_to_each(frames, last[[idx for idx, _ in told]])
        for (_, info), frame in zip(told, longer, strict=True):
            info[_FINAL] = frame

    def _extend_flags(self, infos: Any) -> None:
        """Tell that what is appended is never blank, where flags are of components."""
        inside = self.venv.unwrapped
        if isinstance(inside, GymnasiumVecEnv) and self._flags_are_from_inside:
            # Most often its flags are of frames; to look at the infos would be to build them.
            if not inside.tells_blanked:
                return
            if inside.blanked is not None and inside.blanked.ndim == 1:
                return
        for info in infos:
            flags = info.get("blanked")
            if self._appender.names_components(flags):
                info["blanked"] = self._appender.extend_flags(flags)


class VecPreviousAction(VecPrevious):
    """Show agents what they did last: one-hot or scaled to [-1, 1], zeros at an episode's start.

    A ``Box`` vector gets longer by it and a ``Dict`` observation gets a key more; any other
    observation becomes a ``Dict`` with the keys ``"observation"`` and ``key``. How actions are
    encoded is told at :class:`~thrust_pomdp.wrappers.actions.ActionEncoding`, what becomes of final
    observations and of flags at :class:`VecPrevious`.

    .. warning::
        The previous action is one bit of memory or more, so an agent that sees it is not
        memoryless. Put this around the normaliser: inside, the action would be erased on exactly
        the frames where it is needed. ``VecNormalizeVisible`` refuses to be put around it.

    >>> import numpy as np, thrust_pomdp
    >>> env = thrust_pomdp.make_vec_env("FlickeringCartPole-v0", n_envs=2)
    >>> env = VecPreviousAction(thrust_pomdp.VecNormalizeVisible(env))
    >>> env.reset()[:, 4:].tolist(), env.step(np.array([0, 1]))[0][:, 4:].tolist()
    ([[0.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]])

    :param venv: vectorised environments with Discrete, MultiDiscrete, MultiBinary or Box actions
    :param key: the action's key in observations that are or become dicts
    :raises ValueError: for other action spaces, or a key that is taken
    """

    appends = "action"

    def __init__(self, venv: VecEnv, key: str = PREVIOUS_ACTION) -> None:
        check_venv("venv", venv)
        super().__init__(venv, ActionEncoding(venv.action_space), key)
        self._actions = self.encoding.none(self.num_envs)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Take the actions of the next step, ``[num_envs, *shape]``."""
        # Encoded now: the array is the caller's, who may fill it anew before step_wait.
        self._actions = self.encoding(actions)
        self.venv.step_async(actions)

    def _last(self, rewards: NDArray[Any]) -> NDArray[np.float32]:
        return self._actions


class VecPreviousReward(VecPrevious):
    """Show agents their last reward, as the environment gave it; zero at an episode's start.

    It is shown like the previous action (:class:`VecPreviousAction`), and the two can be stacked.
    A ``VecNormalize`` or ``VecNormalizeVisible`` inside that normalises rewards does not change
    what is shown: its scale is known in training only, so that an agent would meet other numbers
    when it acts.

    .. warning::
        Put this around the normaliser, which would erase the reward on blank frames and refuses to
        be put around it. Large rewards are large inputs: scale them in the environment.

    >>> import numpy as np, thrust_pomdp
    >>> env = thrust_pomdp.make_vec_env("FlickeringCartPole-v0", n_envs=2)
    >>> env = VecPreviousReward(thrust_pomdp.VecNormalizeVisible(env))
    >>> env.reset()[:, 4:].tolist(), env.step(np.array([0, 1]))[0][:, 4:].tolist()
    ([[0.0], [0.0]], [[1.0], [1.0]])

    :param venv: vectorised environments
    :param key: the reward's key in observations that are or become dicts
    :raises ValueError: for a key that is taken
    """

    appends = "reward"

    def __init__(self, venv: VecEnv, key: str = PREVIOUS_REWARD) -> None:
        check_venv("venv", venv)
        super().__init__(venv, RewardEncoding(), key)

    def _last(self, rewards: NDArray[Any]) -> NDArray[np.float32]:
        return self.encoding(original_rewards(self.venv, rewards))


def _leaves_infos(layer: VecEnvWrapper) -> bool:
    """Tell whether a wrapper is known to leave what the infos tell of blank frames alone."""
    return type(layer).__module__.partition(".")[0] in ("thrust_pomdp", "stable_baselines3")


def original_rewards(venv: VecEnv, rewards: NDArray[Any]) -> NDArray[Any]:
    """Return the rewards of the last step before anything normalised them, ``[num_envs]``.

    :param venv: what was stepped
    :param rewards: what it returned; they are returned again where nothing inside normalises
    """
    for layer in layers(venv):
        if isinstance(layer, VecNormalize):
            rewards = layer.old_reward
    return rewards


def layers(venv: VecEnv) -> Iterator[VecEnvWrapper]:
    """Go through the wrappers of a vectorised environment, from the outside in."""
    while isinstance(venv, VecEnvWrapper):
        yield venv
        venv = venv.venv


class Appended(NamedTuple):
    """The previous action or reward in what a vectorised environment shows.

    :param by: what shows it, the name of a class
    :param what: ``"action"`` or ``"reward"``
    :param key: its key in Dict observations
    """

    by: str
    what: str
    key: str


def previous_inside(venv: VecEnv) -> list[Appended]:
    """Find the previous action and reward in what a vectorised environment shows."""
    found = [
        Appended(type(layer).__name__, layer.appends, layer.key)
        for layer in layers(venv)
        if isinstance(layer, VecPrevious)
    ]
    base = venv.unwrapped
    inner: Any = base.env if isinstance(base, GymnasiumVecEnv) else None
    while isinstance(inner, VectorWrapper):
        if isinstance(inner, VectorPreviousObservation):
            key = getattr(inner, f"previous_{inner.appends}_key")
            found.append(Appended(type(inner).__name__, inner.appends, key))
        inner = inner.env
    return found + _previous_in_single_envs(base)


def _previous_in_single_envs(base: VecEnv) -> list[Appended]:
    found = []
    for wrapper in (PreviousActionObservation, PreviousRewardObservation):
        try:
            is_wrapped = any(base.env_is_wrapped(wrapper))
        except NotImplementedError:
            return []  # environments of others that cannot be looked into
        if is_wrapped:
            key = base.get_attr(f"previous_{wrapper.appends}_key", 0)[0]
            found.append(Appended(wrapper.__name__, wrapper.appends, key))
    return found

"""The last action as part of the observation, for SB3's vectorised environments."""

from __future__ import annotations

from typing import Any

from gymnasium.vector import VectorWrapper
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from thrust_pomdp.vec_env import GymnasiumVecEnv
from thrust_pomdp.wrappers import PreviousActionObservation, vector
from thrust_pomdp.wrappers.actions import PREVIOUS_ACTION, ActionAppender, ActionEncoding


class VecPreviousAction(VecEnvWrapper):
    """Show agents what they did last: one-hot or scaled to [-1, 1], zeros at an episode's start.

    A ``Box`` vector gets longer by it and a ``Dict`` observation gets a key more; any other
    observation becomes a ``Dict`` with the keys ``"observation"`` and ``key``. How actions are
    encoded is told at :class:`~thrust_pomdp.wrappers.actions.ActionEncoding`.

    ``terminal_observation`` holds the action that led to it; the frame that an episode starts with
    has zeros. ``info["blanked"]`` goes on telling of the sensors; where it names single components
    it gets an entry of False for each number appended (and the infos of the step are then built,
    which otherwise wait until someone looks at them). Attributes of what is inside, such as
    ``blanked`` of a :class:`~thrust_pomdp.vec_env.GymnasiumVecEnv`, are found from here and tell of
    the observation inside.

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

    def __init__(self, venv: VecEnv, key: str = PREVIOUS_ACTION) -> None:
        if not isinstance(venv, VecEnv):
            raise ValueError(f"venv must be a VecEnv, got {venv!r}")
        self._encoding = ActionEncoding(venv.action_space)
        self._appender = ActionAppender(venv.observation_space, self._encoding, key)
        super().__init__(venv, observation_space=self._appender.space)
        #: The action's key in Dict observations, for what is put around this wrapper.
        self.previous_action_key = key
        self._last = self._encoding.none(self.num_envs)

    def reset(self) -> VecEnvObs:
        """Reset all environments; there are no actions yet."""
        obs = self.venv.reset()
        shown: VecEnvObs = self._appender.append(obs, self._encoding.none(self.num_envs))
        return shown

    def step_async(self, actions: NDArray[Any]) -> None:
        """Take the actions of the next step, ``[num_envs, *shape]``."""
        # Encoded now: the array is the caller's, who may fill it anew before step_wait.
        self._last = self._encoding(actions)
        self.venv.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        """Step, and append the actions to what they led to."""
        obs, rewards, dones, infos = self.venv.step_wait()
        last = self._last
        for idx in dones.nonzero()[0].tolist():
            info = infos[idx]
            if "terminal_observation" in info:
                final = self._appender.append(info["terminal_observation"], last[idx].copy())
                info["terminal_observation"] = final
        last[dones] = 0.0
        self._extend_flags(infos)
        return self._appender.append(obs, last), rewards, dones, infos

    def _extend_flags(self, infos: Any) -> None:
        """Tell that the actions are never blank, where flags are of components."""
        inside = self.venv.unwrapped
        if isinstance(inside, GymnasiumVecEnv):
            # Most often its flags are of frames; to look at the infos would be to build them.
            if not inside.tells_blanked:
                return
            if inside.blanked is not None and inside.blanked.ndim == 1:
                return
        for info in infos:
            flags = info.get("blanked")
            if self._appender.names_components(flags):
                info["blanked"] = self._appender.extend_flags(flags)


def previous_action_inside(venv: VecEnv) -> tuple[str, str] | None:
    """Find the previous action in what a vectorised environment shows.

    :return: what shows it, and its key in Dict observations; None if nothing does
    """
    layer = venv
    while isinstance(layer, VecEnvWrapper):
        if isinstance(layer, VecPreviousAction):
            return VecPreviousAction.__name__, layer.previous_action_key
        layer = layer.venv
    name = PreviousActionObservation.__name__
    inner: Any = layer.env if isinstance(layer, GymnasiumVecEnv) else None
    while isinstance(inner, VectorWrapper):
        if isinstance(inner, vector.PreviousActionObservation):
            return name, inner.previous_action_key
        inner = inner.env
    try:
        is_wrapped = any(layer.env_is_wrapped(PreviousActionObservation))
    except NotImplementedError:
        return None  # environments of others that cannot be looked into
    return (name, layer.get_attr("previous_action_key", 0)[0]) if is_wrapped else None

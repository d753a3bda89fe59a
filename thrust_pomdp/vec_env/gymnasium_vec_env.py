"""Gymnasium's vector environments as Stable-Baselines3's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from numpy.typing import NDArray
from stable_baselines3.common import env_util
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import (
    VecEnvIndices,
    VecEnvObs,
    VecEnvStepReturn,
)

from thrust_pomdp.arguments import check_count
from thrust_pomdp.errors import ArgumentError, warn_user
from thrust_pomdp.stateful import Changes, Names, Stateful
from thrust_pomdp.states import State, packed_entries, unpacked
from thrust_pomdp.vec_env.step_infos import EndedEpisodes, Infos, StepInfos, copy_rows, info_rows
from thrust_pomdp.vec_env.substitutes import against_keeping_arrays, against_later_infos

Flags = NDArray[np.bool_]

#: The method by which environments tell what may be done now; a vector environment that has it
#: itself answers for all of its environments at once, ``[num_envs, ...]``.
ACTION_MASKS = "action_masks"


class GymnasiumVecEnv(Stateful, VecEnv):
    """Any Gymnasium ``VectorEnv`` with same-step auto-reset, as an SB3 ``VecEnv``.

    For the same seeds and actions it gives what SB3's ``DummyVecEnv`` of Monitor-wrapped single
    environments gives: observations, float32 rewards, dones, and infos with
    ``terminal_observation``, ``TimeLimit.truncated`` and Monitor's ``episode`` (raw rewards). Seeds
    and options are used at the next reset only.

    Around a native vector of this package nothing is done per environment on a step where none
    ended: the infos are built when someone looks at them
    (:class:`~thrust_pomdp.vec_env.step_infos.StepInfos`). Other vectors may fill their arrays anew
    or change the objects in their infos, so that these are copied at each step, as SB3 does.

    >>> import gymnasium as gym, thrust_pomdp
    >>> envs = gym.make_vec("FlickeringCartPole-v0", 2, autoreset_mode="SameStep")
    >>> venv = GymnasiumVecEnv(envs)
    >>> venv.reset().shape, venv.blanked.shape
    ((2, 4), (2,))

    .. warning::
        On a step that ended an episode ``infos[i]["blanked"]`` describes the terminal frame, as
        all of that info does. :attr:`blanked` and ``reset_infos[i]`` describe the frame returned,
        the first of the next episode.

    :param env: the vector environment
    :raises ValueError: if it is none, or resets at another time. In next-step mode one step per
        episode ignores its action and returns what SB3 would store as a transition.
    """

    #: Flags of the frames last returned, those of reset frames included: bool ``[num_envs]``, or
    #: ``[num_envs, *shape]`` where single components are blanked. None where the environments do
    #: not tell, or tell in another form (see the infos).
    blanked: Flags | None
    #: Whether the last step or reset told of anything blanked, in whatever form.
    tells_blanked: bool

    _no_state: Names = (
        *("env", "_base", "metadata", "render_mode", "_nobody", "_arrays_are_ours"),
        *("_infos_can_wait", "_reset_told", "_reset_infos"),
    )
    _fixed_state: Names = ("num_envs",)
    _shaped_state: Names = ("_returns", "_began", "_n_steps")

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        _check_same_step(env)
        self.env = env
        # Typed Any: what looks into single environments is no part of VectorEnv's interface.
        self._base: Any = env.unwrapped
        # What the latest reset of each environment told, in Gymnasium's form, and whether
        # reset_infos has yet to be made of it.
        self._reset_told: Infos = {}
        self._reset_infos_stale = False
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self.metadata = env.metadata
        # SB3 relies on arrays being the caller's to keep; of most vectors that is not known.
        self._arrays_are_ours = against_keeping_arrays(env) is None
        self._infos_can_wait = against_later_infos(env) is None
        self._returns = np.zeros(self.num_envs)
        # The step before the first of every environment's episode, so that steps need no counting.
        self._began = np.zeros(self.num_envs, dtype=np.int64)
        self._n_steps = 0
        self._nobody = [None] * self.num_envs
        self._start_time = time.time()
        self._was_reset = False
        self.blanked, self.tells_blanked = None, False
        self.actions: NDArray[Any] | None = None

    # ------------------------------------------------------------------------- reset and step

    def reset(self) -> VecEnvObs:
        """Reset all environments, with the seeds and options set since the last reset."""
        self._returns[:] = 0.0
        self._began[:] = self._n_steps
        groups = _groups(self._options)
        if len(groups) == 1:
            obs, infos = self.env.reset(seed=self._seed(), options=self._options[0] or None)
            infos = self._kept(infos)
            self._take_reset_infos(infos, np.arange(self.num_envs))
            self._take_flags(infos)
        else:
            obs = self._reset_by_options(groups)
        self._was_reset = True
        self._reset_seeds()
        self._reset_options()
        return self._owned(obs)  # type: ignore[no-any-return]

    def _reset_by_options(self, groups: list[list[int]]) -> Any:
        """Reset groups of environments that share their options, one after the other."""
        seed, obs = self._seed(), None
        if not self._was_reset:
            # A mask needs a vector that has been reset once. Nothing is lost: seeds start the
            # streams anew below, and without seeds they are fresh entropy.
            self.env.reset(seed=seed)
        for group in groups:
            mask = np.zeros(self.num_envs, dtype=bool)
            mask[group] = True
            obs, infos = self.env.reset(
                seed=seed, options={**self._options[group[0]], "reset_mask": mask}
            )
            self._take_reset_infos(self._kept(infos), np.array(group))
        flags = [info.get("blanked") for info in self.reset_infos]
        regular = all(isinstance(flag, (bool, np.ndarray)) for flag in flags)
        self.blanked = np.array(flags, dtype=bool) if regular else None
        self.tells_blanked = any(flag is not None for flag in flags)
        return obs

    def _take_flags(self, infos: Infos) -> None:
        self.blanked, self.tells_blanked = _blanked(infos), "blanked" in infos

    @property
    def reset_infos(self) -> list[Infos]:
        """Infos of the latest reset of every environment, an automatic one included."""
        # Most often nobody asks; a dict made at every end of an episode would be thrown away.
        if self._reset_infos_stale:
            self._reset_infos = info_rows(self._reset_told, range(self.num_envs))
            self._reset_infos_stale = False
        return self._reset_infos

    @reset_infos.setter
    def reset_infos(self, infos: list[Infos]) -> None:
        self._reset_infos, self._reset_infos_stale = infos, False

    def _take_reset_infos(self, infos: Infos, indices: NDArray[np.intp]) -> None:
        copy_rows(infos, self._reset_told, indices)
        self._reset_infos_stale = True

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed the next reset: environment ``i`` gets ``seed + i``; None for random seeds."""
        return super().seed(None if seed is None else check_count("seed", seed, minimum=0))

    def _seed(self) -> Any:
        """Return the seeds in the form that most vector environments take: one number."""
        first = self._seeds[0]
        if first is None and all(seed is None for seed in self._seeds):
            return None
        if isinstance(first, int) and self._seeds == list(range(first, first + self.num_envs)):
            return first
        return self._seeds

    def step_async(self, actions: NDArray[Any]) -> None:
        """Take the actions of the next step, ``[num_envs, *shape]``."""
        self.actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments; those that ended return the first frame of the next episode."""
        obs, rewards, terminations, truncations, infos = self.env.step(self.actions)
        infos = self._kept(infos)
        self._returns += rewards
        self._n_steps += 1
        dones = terminations | truncations
        ended = dones.nonzero()[0]
        episodes = self._end_episodes(ended, terminations, infos) if len(ended) > 0 else None
        self._take_flags(infos)
        step_infos: list[Infos] = StepInfos(self._nobody, infos, episodes)
        if not self._infos_can_wait:
            step_infos = list(step_infos)
        return self._owned(obs), rewards.astype(np.float32), dones, step_infos

    def _end_episodes(
        self, ended: NDArray[np.intp], terminations: Flags, infos: Infos
    ) -> EndedEpisodes:
        """Take note of what ended and of how the next episodes began, and count anew."""
        self._take_reset_infos(infos, ended)
        returns, began = self._returns[ended], self._began[ended]
        seconds = time.time() - self._start_time
        final = infos["final_obs"], infos.get("final_info", {})
        # By position: keywords take longer than all the look-ups above.
        episodes = EndedEpisodes(
            ended, terminations, returns, began, self._n_steps, seconds, *final
        )
        self._returns[ended] = 0.0
        self._began[ended] = self._n_steps
        return episodes

    def _kept(self, infos: Infos) -> Infos:
        """Return infos that tell of this step for ever, whatever the environments do later."""
        return infos if self._infos_can_wait else deepcopy(infos)

    def _owned(self, obs: Any) -> Any:
        """Return observations that the next step will not overwrite."""
        if self._arrays_are_ours:
            return obs
        if isinstance(obs, dict):
            return {key: self._owned(part) for key, part in obs.items()}
        if isinstance(obs, tuple):
            return tuple(self._owned(part) for part in obs)
        return obs.copy()

    def get_state(self) -> State:
        """Return sums, pending seeds and the infos of resets; ``vec_state`` adds the vector's.

        Entries of infos that are no arrays, numbers, texts and the like are left out.
        """
        infos = [packed_entries(self._reset_told, ""), packed_entries(self._reset_infos, "")]
        return {**super().get_state(), "reset_infos": infos}

    def prepare_state(self, state: Any, where: str) -> Changes:
        """Check what :meth:`get_state` returned, and return what is to be done to take it over."""
        rest = dict(state) if isinstance(state, dict) else {}
        infos = unpacked(rest.pop("reset_infos", None), f"{where}, 'reset_infos'")
        if not isinstance(infos, list) or len(infos) != 2:
            raise ValueError(f"state['reset_infos'] of {where} must be a pair, got {infos!r}")
        names = ("_reset_told", "_reset_infos")
        changes = super().prepare_state(rest, where)
        return [*changes, lambda: vars(self).update(zip(names, infos, strict=True))]

    def close(self) -> None:
        """Close the vector environment."""
        self.env.close()

    # ------------------------------------------------------------------------------ rendering

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """Paint every environment, ``[height, width, 3]`` uint8 each."""
        if self.render_mode != "rgb_array":
            warn_user(
                f"render_mode must be 'rgb_array' to obtain images, it is {self.render_mode!r}"
            )
            return [None] * self.num_envs
        return list(self.env.render() or ())  # type: ignore[arg-type]

    # --------------------------------------------------------- looking into single environments

    @property
    def envs(self) -> list[Any]:
        """The single environments, as SB3's ``DummyVecEnv`` has them.

        Those of a native vector show their state; stepping one by itself is not what they are for.

        :raises AttributeError: if the vector environment has none to look into
        """
        envs = getattr(self._base, "envs", None)
        if envs is None:
            raise self._no_single_envs("envs cannot be listed")
        return list(envs)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Read an attribute of some environments, all by default.

        :raises AttributeError: if they have none of that name, or cannot be looked into
        """
        envs, base = self._single_envs(indices), self._base
        if envs is not None:
            return [env.get_wrapper_attr(attr_name) for env in envs]
        if hasattr(base, "get_attr"):
            values = base.get_attr(attr_name)
        elif attr_name in _SHARED:
            values = [getattr(base, _SHARED[attr_name])] * self.num_envs
        else:
            raise self._no_single_envs(f"attribute {attr_name!r} cannot be read")
        return [values[idx] for idx in self._get_indices(indices)]

    def has_attr(self, attr_name: str) -> bool:
        """Tell whether all environments have an attribute."""
        if attr_name == ACTION_MASKS and self._vector_masks() is not None:
            return True
        return super().has_attr(attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of some environments, all by default, to one value.

        It is set where :meth:`get_attr` reads it: on the wrapper that has it, or on the outermost
        where none has.

        :raises AttributeError: if they cannot be looked into
        """
        envs, base = self._single_envs(indices), self._base
        if envs is not None:
            for env in envs:
                env.set_wrapper_attr(attr_name, value)
            return
        if not hasattr(base, "set_attr"):
            raise self._no_single_envs(f"attribute {attr_name!r} cannot be set")
        chosen = set(self._get_indices(indices))
        others = (
            [None] * self.num_envs if len(chosen) == self.num_envs else base.get_attr(attr_name)
        )
        base.set_attr(attr_name, [value if i in chosen else old for i, old in enumerate(others)])

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """Call a method of some environments, all by default.

        :raises AttributeError: if they have none of that name, or cannot be looked into
        """
        vector_masks = self._vector_masks() if method_name == ACTION_MASKS else None
        if vector_masks is not None:
            masks = vector_masks()
            return [masks[idx] for idx in self._get_indices(indices)]
        envs, base = self._single_envs(indices), self._base
        if envs is not None:
            methods = [env.get_wrapper_attr(method_name) for env in envs]
            return [method(*method_args, **method_kwargs) for method in methods]
        everyone = set(self._get_indices(indices)) == set(range(self.num_envs))
        if not (everyone and hasattr(base, "call")):
            raise self._no_single_envs(f"method {method_name!r} cannot be called")
        return list(base.call(method_name, *method_args, **method_kwargs))

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Tell which environments have a wrapper around them.

        True for ``Monitor``, whose work is done here; what cannot be looked into has none.
        """
        envs = self._single_envs(indices)
        if wrapper_class is Monitor or envs is None:
            return [wrapper_class is Monitor for _ in self._get_indices(indices)]
        return [env_util.is_wrapped(env, wrapper_class) for env in envs]

    def _vector_masks(self) -> Callable[[], Any] | None:
        """Find the method by which the vector environment itself tells masks, if it has one."""
        layer: Any = self.env
        while not hasattr(layer, ACTION_MASKS) and isinstance(layer, VectorWrapper):
            layer = layer.env
        return getattr(layer, ACTION_MASKS, None)

    def _single_envs(self, indices: VecEnvIndices) -> list[Any] | None:
        envs = getattr(self._base, "envs", None)
        return None if envs is None else [envs[idx] for idx in self._get_indices(indices)]

    def _no_single_envs(self, what: str) -> AttributeError:
        return AttributeError(
            f"{what}: {self.env} does not give access to single environments; use "
            "Stable-Baselines3's make_vec_env if a program needs it"
        )


#: What a vector environment tells about its single ones, and under which name.
_SHARED = {
    "action_space": "single_action_space",
    "observation_space": "single_observation_space",
    "metadata": "metadata",
    "render_mode": "render_mode",
}


def _check_same_step(env: Any) -> None:
    if not isinstance(env, VectorEnv):
        hint = ""
        if isinstance(env, VecEnv):
            hint = ", which is a VecEnv already"
        elif isinstance(env, gym.Env):
            hint = ": stable_baselines3's DummyVecEnv([lambda: env]) is for single environments"
        raise ArgumentError(f"env must be a gymnasium.vector.VectorEnv, got {env!r}{hint}")
    mode = env.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.SAME_STEP:
        raise ValueError(
            "env must reset ended episodes in the same step (AutoresetMode.SAME_STEP), since "
            "Stable-Baselines3 takes what the step after an end returns for a transition of the "
            f"next episode; got autoreset_mode {mode} from {env}. Use "
            "thrust_pomdp.make_vec_env(id, n), or gymnasium.make_vec(id, n, "
            "vectorization_mode='sync', vector_kwargs={'autoreset_mode': AutoresetMode.SAME_STEP})"
        )


def _groups(all_options: list[dict[str, Any]]) -> list[list[int]]:
    """Put environments that share their options together.

    :return: their indices in order; the groups in the order of their first ones
    """
    of_key: dict[Any, list[int]] = {}
    others: list[list[int]] = []
    for idx, options in enumerate(all_options):
        try:
            # Equal where the dicts are: of both numbers, 1 and 1.0 are one.
            of_key.setdefault(frozenset(options.items()), []).append(idx)
        except TypeError:  # lists and arrays have no hash
            same = (group for group in others if _same_options(options, all_options[group[0]]))
            group = next(same, [])
            if not group:
                others.append(group)
            group.append(idx)
    return sorted([*of_key.values(), *others])


def _same_options(one: dict[str, Any], other: dict[str, Any]) -> bool:
    try:
        return one is other or bool(one == other)
    except ValueError:
        # Arrays of equal shape; if in doubt each environment is reset for itself.
        return False


def _blanked(infos: Infos) -> Flags | None:
    """Find the frame flags of a step, if every environment tells them in the same form."""
    flags, told = infos.get("blanked"), infos.get("_blanked")
    if not isinstance(flags, np.ndarray) or flags.dtype.kind != "b":
        return None
    if told is not None and np.count_nonzero(told) < len(told):
        return None
    return flags

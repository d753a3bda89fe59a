"""What the wrappers of a VecEnv do to observations, done once more to raw ones.

A model was trained on what a stack of wrappers showed it; whoever has raw observations only (a
robot, a single environment) must show it the same. :func:`layers_of` reads the stack of a VecEnv,
:func:`standard_layers` builds the one of :func:`~thrust_pomdp.make_vec_env` without any VecEnv, and
:class:`ObservationPipeline` shows raw observations through either, bit for bit as the VecEnv would.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import (
    VecCheckNan,
    VecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)

from thrust_pomdp.arguments import check_count, check_flag
from thrust_pomdp.deploy.blank_values import BlankFiller
from thrust_pomdp.deploy.observation_layers import (
    KnownAxes,
    Layer,
    Normalized,
    Previous,
    SpaceAxes,
    Stacked,
    StepContext,
    Transposed,
    load_normalizer,
)
from thrust_pomdp.observations import check_shapes, map_obs
from thrust_pomdp.vec_env.normalize import VecNormalizeVisible
from thrust_pomdp.vec_env.previous import VecPrevious, layers
from thrust_pomdp.vec_env.privileged import VecPrivilegedInfo, VecUnprivileged
from thrust_pomdp.wrappers.actions import PREVIOUS_ACTION, ActionEncoding
from thrust_pomdp.wrappers.appending import OBSERVATION
from thrust_pomdp.wrappers.rewards import PREVIOUS_REWARD, RewardEncoding
from thrust_pomdp.wrappers.visible_statistics import flags_of_batch


@functools.singledispatch
def layer_of(wrapper: Any) -> Layer | None:
    """Return what a VecEnv's wrapper does to observations; None for one that leaves them alone.

    Register a wrapper of your own, one that is derived from those known here too where it changes
    what ``reset`` or ``step_wait`` returns::

        @thrust_pomdp.deploy.observation_pipeline.layer_of.register
        def _(wrapper: MyVecEnvWrapper) -> Layer | None:
            return lambda obs, context: wrapper.change(obs)

    :raises ValueError: for a wrapper of which it is not known
    """
    raise _not_known(wrapper)


def _not_known(wrapper: Any) -> ValueError:
    name = type(wrapper).__name__
    return ValueError(
        f"env has a {name} around it, and what that does to observations is not known: act on what "
        "env itself returns, or tell it by thrust_pomdp.deploy.observation_pipeline.layer_of."
        "register"
    )


@layer_of.register(VecCheckNan)
@layer_of.register(VecMonitor)
@layer_of.register(VecVideoRecorder)
@layer_of.register(VecPrivilegedInfo)  # what it adds is for the critic, which acts in nothing
@layer_of.register(VecUnprivileged)
def _unchanged(wrapper: Any) -> None:
    return None


@layer_of.register(VecNormalize)
@layer_of.register(VecNormalizeVisible)
def _normalized(wrapper: VecNormalize) -> Layer:
    return Normalized(wrapper)


@layer_of.register
def _previous(wrapper: VecPrevious) -> Layer:
    key = None if wrapper.makes_longer else wrapper.key
    return Previous(wrapper.encoding, wrapper.appends, key)


@layer_of.register
def _stacked(wrapper: VecFrameStack) -> Layer:
    stack = wrapper.stacked_obs
    subs = getattr(stack, "sub_stacked_observations", {None: stack})
    axes = {key: sub.stack_dimension for key, sub in subs.items()}
    return Stacked(stack.n_stack, KnownAxes(axes))


@layer_of.register
def _transposed(wrapper: VecTransposeImage) -> Layer | None:
    if type(wrapper) is not VecTransposeImage:
        return lambda obs, context: wrapper.transpose_observations(obs)
    if wrapper.skip:
        return None
    return Transposed(getattr(wrapper, "image_space_keys", None))


def layers_of(env: VecEnv) -> list[Layer]:
    """Return what the wrappers of a VecEnv do to observations, from the inside out.

    :raises ValueError: for what is no VecEnv, and for wrappers of which it is not known
    """
    if not isinstance(env, VecEnv):
        raise ValueError(f"env must be the VecEnv that the model was trained on, got {env!r}")
    found = [_layer_of_known(wrapper) for wrapper in layers(env)]
    return [layer for layer in reversed(found) if layer is not None]


def _layer_of_known(wrapper: Any) -> Layer | None:
    """Return what a wrapper does, unless it does otherwise than the class it is known by."""
    kind = type(wrapper)
    known = next(base for base in kind.__mro__ if base in layer_of.registry)
    for name in ("reset", "step_wait"):
        replaced = getattr(kind, name, None) is not getattr(known, name, None)
        if known is not object and (replaced or name in vars(wrapper)):
            raise _not_known(wrapper)
    return layer_of(wrapper)


def standard_layers(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    normalizer: VecNormalize | str | Path | None,
    previous_action: bool,
    previous_reward: bool,
    frame_stack: int,
    trusted: bool = True,
) -> list[Layer]:
    """Return the layers in the order of :func:`~thrust_pomdp.make_vec_env`, from the inside out.

    :param observation_space: what the model takes
    :param action_space: of the model
    :param normalizer: the normaliser, or the file that it was saved to
    :param previous_action: whether the model sees its last action
    :param previous_reward: whether it sees its last reward
    :param frame_stack: how many observations it sees at once
    :param trusted: whether to unpickle a file of the normaliser's
    :raises ValueError: for arguments that cannot be
    """
    in_dict = isinstance(observation_space, spaces.Dict)
    found: list[Layer] = []
    if normalizer is not None:
        found.append(Normalized(load_normalizer(normalizer, trusted)))
    if check_flag("previous_action", previous_action):
        key = PREVIOUS_ACTION if in_dict else None
        found.append(Previous(ActionEncoding(action_space), "action", key))
    if check_flag("previous_reward", previous_reward):
        found.append(Previous(RewardEncoding(), "reward", PREVIOUS_REWARD if in_dict else None))
    if check_count("frame_stack", frame_stack) > 1:
        found.append(Stacked(frame_stack, SpaceAxes(observation_space)))
    return found


class ObservationPipeline:
    """Shows raw observations as a model has learnt to see them, of one environment or of several.

    :param layers: what to do to observations, from the inside out
    :param observation_space: what the model takes
    :param action_space: of the model
    :param blank: what a blank looks like, as :func:`~thrust_pomdp.deploy.blank_values.blank_of`
        finds it
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        blank: Any = None,
    ) -> None:
        #: What is done to observations, from the inside out.
        self.layers = list(layers)
        #: What a blank looks like, None where it is not known.
        self.looks_of_blank = blank
        self._space = observation_space
        self._action_shape = action_space.shape or ()
        self._actions: NDArray[Any] | None = None

    def forget(self) -> None:
        """Forget everything: the next observation starts an episode in every environment."""
        self._actions = None

    def remember(self, actions: Any) -> None:
        """Take what was done about the last observations."""
        # A copy: the array is the caller's, who may fill it anew.
        self._actions = np.array(actions).reshape(-1, *self._action_shape)

    def show(
        self, obs: Any, starts: NDArray[np.bool_] | None, reward: Any, blanked: Any, action: Any
    ) -> Any:
        """Show one observation, or a batch of them.

        :param obs: as the innermost environment gave it
        :param starts: whose observation starts an episode, ``[n]``; None for nobody
        :param reward: what came with it, a number or ``[n]``
        :param blanked: what of it is blanked, a flag or one for each: it is shown as a blank
        :param action: what led to it, if not the actions remembered
        :raises ValueError: for what does not fit the model, or the environments that were before
        """
        is_single = self._is_single(obs)
        batch = self._as_batch(obs, is_single)
        n_envs = len(next(iter(batch.values())) if isinstance(batch, dict) else batch)
        flags = [blanked] if is_single else flags_of_batch(blanked, n_envs)
        batch = self._looks(obs)(batch, flags)
        context = StepContext(
            self._last_actions(action, n_envs),
            None if reward is None else _of_each("reward", reward, (n_envs,)),
            self._starts(starts, n_envs),
            flags,
        )
        for layer in self.layers:
            batch = layer(batch, context)
        check_shapes(batch, self._space, "what is shown of the observation: the model takes")
        return map_obs(lambda part: part[0], batch) if is_single else batch

    def blank(self, obs: Any, blanked: Any) -> Any:
        """Show what is told to be blank as a blank, and do nothing else.

        :param obs: one observation, or a batch of them
        :param blanked: a flag, or one for each
        :raises ValueError: for flags that do not fit
        """
        is_single = self._is_single(obs)
        batch = self._as_batch(obs, is_single)
        n_envs = len(next(iter(batch.values())) if isinstance(batch, dict) else batch)
        flags = [blanked] if is_single else flags_of_batch(blanked, n_envs)
        batch = self._looks(obs)(batch, flags)
        return map_obs(lambda part: part[0], batch) if is_single else batch

    def _looks(self, obs: Any) -> BlankFiller:
        space = self._space if isinstance(obs, Mapping) else self._part(obs)[1]
        return BlankFiller(space, self.looks_of_blank)

    def _starts(self, starts: NDArray[np.bool_] | None, n_envs: int) -> NDArray[np.bool_]:
        if self._actions is None:
            return np.ones(n_envs, dtype=bool)
        if len(self._actions) != n_envs:
            raise ValueError(
                f"obs must be of {len(self._actions)} environment(s) as before, got {n_envs}: "
                "call reset() first"
            )
        if starts is None:
            return np.zeros(n_envs, dtype=bool)
        return _of_each("episode_start", starts, (n_envs,))

    def _last_actions(self, action: Any, n_envs: int) -> NDArray[Any] | None:
        if action is None:
            return self._actions
        return _of_each("action", action, (n_envs, *self._action_shape))

    def _part(self, obs: Any) -> tuple[Any, spaces.Space[Any]]:
        """Return an array of an observation, and the model's space for it."""
        if isinstance(obs, Mapping) and isinstance(self._space, spaces.Dict):
            for key in obs:
                if key in self._space.spaces:
                    return obs[key], self._space[key]
        elif not isinstance(obs, (Mapping, tuple)):
            if not isinstance(self._space, spaces.Dict):
                return obs, self._space
            if OBSERVATION in self._space.spaces:
                return obs, self._space[OBSERVATION]
        raise ValueError(f"obs must be an observation for {self._space}, got {obs!r}")

    def _is_single(self, obs: Any) -> bool:
        part, space = self._part(obs)
        ndim = np.ndim(part) - len(space.shape or ())
        if ndim not in (0, 1):
            raise ValueError(
                f"obs must be one observation or a batch of them, of {len(space.shape or ())} "
                f"axes each, got an array of shape {np.shape(part)}"
            )
        return ndim == 0

    def _as_batch(self, obs: Any, is_single: bool) -> Any:
        def as_batch(part: Any, space: Any) -> NDArray[Any]:
            array = np.asarray(part)
            if space is not None and array.dtype.kind == space.dtype.kind == "f":
                # A reading in Python's floats, rounded as the environment's are.
                array = array.astype(space.dtype, copy=False)
            return array[None] if is_single else array

        if not isinstance(obs, Mapping):
            return as_batch(*self._part(obs))
        known = self._space.spaces  # type: ignore[attr-defined]
        return {key: as_batch(part, known.get(key)) for key, part in obs.items()}


def _of_each(name: str, values: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array with something for each environment."""
    array = np.asarray(values)
    if array.size != np.prod(shape):
        raise ValueError(f"{name} must be of shape {shape}, got {array.shape}")
    return array.reshape(shape)

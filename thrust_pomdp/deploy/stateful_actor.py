"""Acting with a recurrent model without handling its memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_count, check_flag, check_kind, check_switch
from thrust_pomdp.errors import MEMORY_IS_KEPT, ArgumentError

if TYPE_CHECKING:
    from gymnasium import spaces
    from stable_baselines3.common.vec_env import VecEnv, VecNormalize

    from thrust_pomdp.array_files import File
    from thrust_pomdp.deploy.observation_layers import Layer


class _Predictor(Protocol):
    @property
    def observation_space(self) -> spaces.Space[Any]: ...

    @property
    def action_space(self) -> spaces.Space[Any]: ...

    def predict(
        self, observation: Any, state: Any, episode_start: Any, deterministic: bool
    ) -> tuple[NDArray[Any], Any]: ...


class StatefulActor:
    """Acts for a model or a policy and keeps the memory itself.

    For one environment call :meth:`reset` whenever the environment is reset; for several, hand in
    what ended as ``episode_start``:

    >>> actor = StatefulActor(model, deterministic=True)  # doctest: +SKIP
    >>> obs = vec_env.reset()  # doctest: +SKIP
    >>> dones = None  # doctest: +SKIP
    >>> for _ in range(1000):  # doctest: +SKIP
    ...     obs, rewards, dones, infos = vec_env.step(actor.act(obs, episode_start=dones))

    That is for observations as the model was trained on. **Raw observations**, such as a robot has,
    go through what was around the training environment: :meth:`like` reads it off the VecEnv, the
    keywords here name it. The actor remembers the previous action itself.

    >>> model = RecurrentPPO.load("model.zip")  # doctest: +SKIP
    >>> actor = StatefulActor(
    ...     model, deterministic=True, normalizer="normalizer.pkl", previous_action=True
    ... )  # doctest: +SKIP
    >>> action = actor.act(reading)  # doctest: +SKIP

    :meth:`save` writes all of that to one file, which anybody can :meth:`load` without running it:

    >>> StatefulActor.like(model, venv, deterministic=True).save("actor")  # doctest: +SKIP
    >>> actor = StatefulActor.load("actor")  # doctest: +SKIP

    .. warning::
        A normaliser's file may be a pickle, which can run any code when it is loaded: load only
        what you trust, or pass ``trusted=False``, with which only what ``save_safe`` wrote is read.

    :param model: anything with SB3's ``predict``
    :param deterministic: take the most likely action instead of sampling
    :param normalizer: the ``VecNormalizeVisible`` or ``VecNormalize`` of the training, or its file;
        its statistics are not updated
    :param previous_action: whether the model sees its last action, by ``VecPreviousAction``
    :param previous_reward: whether it sees its last reward, by ``VecPreviousReward``
    :param frame_stack: how many observations it sees at once, by ``VecFrameStack``
    :param trusted: whether to unpickle the normaliser's file
    :raises ValueError: for arguments that cannot be
    """

    def __init__(
        self,
        model: _Predictor,
        deterministic: bool = False,
        *,
        normalizer: VecNormalize | str | Path | None = None,
        previous_action: bool = False,
        previous_reward: bool = False,
        frame_stack: int = 1,
        trusted: bool = True,
    ) -> None:
        _check_model(model, "predict")
        self.model = model
        self.deterministic = check_switch("deterministic", deterministic)
        self._state: Any = None
        self._pipeline: Any = None
        previous_action = check_flag("previous_action", previous_action)
        previous_reward = check_flag("previous_reward", previous_reward)
        frame_stack = check_count("frame_stack", frame_stack)
        if normalizer is not None or previous_action or previous_reward or frame_stack > 1:
            _check_model(model, "observation_space", "action_space")
            from thrust_pomdp.deploy.observation_pipeline import standard_layers

            self._look_through(
                standard_layers(
                    _acting_space(model),
                    model.action_space,
                    normalizer,
                    previous_action,
                    previous_reward,
                    frame_stack,
                    trusted,
                )
            )

    @classmethod
    def like(cls, model: _Predictor, env: VecEnv, deterministic: bool = False) -> StatefulActor:
        """Make an actor for raw observations, which sees them as a VecEnv shows them.

        :param model: anything with SB3's ``predict``
        :param env: the VecEnv that the model was trained on, or one like it; what its wrappers do
            is done to the raw observations, with statistics as they are when the actor acts
        :param deterministic: take the most likely action instead of sampling
        :raises ValueError: for what is no VecEnv, and for wrappers of which it is not known what
            they do
        """
        from thrust_pomdp.deploy.blank_values import blank_of
        from thrust_pomdp.deploy.observation_pipeline import layers_of

        actor = cls(model, deterministic)
        layers = layers_of(env)
        actor._look_through(layers, blank_of(env))
        return actor

    def save(self, path: File) -> None:
        """Save the policy and what it is shown to a file of arrays and JSON, which runs nothing.

        What is remembered of an episode is not saved.

        :param path: a path, which gets ``.safetensors`` where it has no suffix, or an opened file
        :raises ValueError: for a model that acts otherwise than by a policy of SB3's kind
        """
        from thrust_pomdp.deploy.actor_files import write_actor

        write_actor(path, self.model, self.deterministic, self._pipeline)

    @classmethod
    def load(
        cls,
        path: File,
        custom_objects: dict[str, Any] | None = None,
        device: Any = "auto",
    ) -> Self:
        """Load what :meth:`save` wrote; nothing of it is run, and no environment is needed.

        :param path: the file
        :param custom_objects: what the file cannot hold because it is your program's, by name:
            ``{"policy_class": MyPolicy, "features_extractor_class": MyExtractor}``
        :param device: where the policy acts
        :raises ValueError: naming the file and the reason, if it is damaged, holds something else
            or sizes that do not fit, or needs what ``custom_objects`` does not have
        :raises FileNotFoundError: if there is none
        """
        from thrust_pomdp.deploy.actor_files import read_actor

        check_kind("custom_objects", custom_objects, dict, "a dict")
        saved = read_actor(path, custom_objects, device)
        actor = cls(saved.policy, saved.deterministic)
        if saved.layers is not None:
            actor._look_through(saved.layers, saved.blank)
        return actor

    def _look_through(self, layers: list[Layer], blank: Any = None) -> None:
        from thrust_pomdp.deploy.observation_pipeline import ObservationPipeline

        _check_model(self.model, "observation_space", "action_space")
        self._pipeline = ObservationPipeline(
            layers, _acting_space(self.model), self.model.action_space, blank
        )

    def reset(self) -> None:
        """Forget everything: the next observation starts an episode in every environment."""
        self._state = None
        if self._pipeline is not None:
            self._pipeline.forget()

    def act(
        self,
        obs: Any,
        episode_start: Any = None,
        *,
        reward: Any = None,
        blanked: Any = None,
        action: Any = None,
        action_masks: Any = None,
        noise: Any = None,
    ) -> NDArray[Any]:
        """Return the actions for the observations.

        The keywords are for raw observations; what the model does not see is not looked at.

        :param obs: one observation or ``[n_envs, *obs_shape]``
        :param episode_start: ``[n_envs]``, or one flag for one environment: true where the
            observation is the first of an episode; None where none is, and right after
            :meth:`reset`
        :param reward: what came with the observation, ``[n_envs]`` or one number; it is needed if
            the model sees its previous reward, but for the first observation of an episode
        :param blanked: what of the observation is blanked, as ``info["blanked"]`` tells: a flag or
            bools for components, or a dict of these by key; for several environments one for each.
            What is blanked is shown as a blank, whatever the reading holds: as what the
            ``FlickerObservation`` shows that :meth:`like` found inside of the environment, else as
            zeros (a ``Discrete`` or ``MultiDiscrete`` number as its last value, which is that
            wrapper's symbol for blank). If None, nothing is; what a normaliser that has met flags
            then does is told at its ``normalize_obs``
        :param action: what was done in the end, if not what :meth:`act` returned last
        :param action_masks: what may be done, for a model that takes masks
        :param noise: numbers that decide the action, ``[n_envs, width]`` or ``[width]``: a uniform
            one from [0, 1) for each categorical choice (where it falls on the cumulated
            probabilities) or bit (whether it is below its probability), a standard normal one for
            each continuous dimension. None for the actor's own way. What :meth:`export` writes acts
            alike
        :raises ValueError: if the number of environments changed without a :meth:`reset`, or the
            arguments do not fit the model or the observation
        """
        if episode_start is not None:
            episode_start = np.atleast_1d(np.asarray(episode_start, dtype=bool))
        if self._pipeline is not None:
            obs = self._pipeline.show(obs, episode_start, reward, blanked, action)
        elif blanked is not None:
            obs = self._blank(obs, blanked)
        masks = {} if action_masks is None else {"action_masks": action_masks}
        actions = self._predict(obs, episode_start, masks, noise)
        if self._pipeline is not None:
            self._pipeline.remember(actions)
        return actions

    def export(
        self,
        path: str | Path,
        *,
        outputs: Sequence[str] = (),
        name: str | None = None,
        normalizer_dtype: str = "float64",
    ) -> None:
        """Write one step of this actor as a file for where there is no torch.

        What is around the model (normaliser, previous action and reward, stacked frames) is in it.
        What is written is tried against :meth:`act` first. See the page on deployment.

        :param path: where to; its suffix says what: ``.onnx``; ``.npz`` for NumPy
            (``thrust_pomdp/deploy/numpy_actor.py``); ``.h``, C99; ``.js`` or ``.mjs``, an ES module
        :param outputs: what else is to come out of a step: ``"action_logits"``, or ``"mean"`` and
            ``"log_std"``; ``"value"``; ``"belief"``, which a grounded memory tells of the state
        :param name: what functions and classes are named after; default the file's
        :param normalizer_dtype: in which a normaliser computes, ``"float64"`` as while training, or
            ``"float32"`` for machines without it
        :raises ValueError: for what cannot be exported, naming it
        :raises OSError: naming the file, if it cannot be written
        """
        from thrust_pomdp.deploy.export import export_actor

        export_actor(self, path, outputs=outputs, name=name, normalizer_dtype=normalizer_dtype)

    def _predict(
        self, obs: Any, episode_start: Any, masks: dict[str, Any], noise: Any
    ) -> NDArray[Any]:
        predict: Any = self.model.predict
        actions: NDArray[Any]
        deterministic = self.deterministic and noise is None
        token = MEMORY_IS_KEPT.set(True)
        try:
            with self._decided_by(noise, obs):
                actions, self._state = predict(
                    obs, self._state, episode_start, deterministic, **masks
                )
        finally:
            MEMORY_IS_KEPT.reset(token)
        return actions

    def _decided_by(self, noise: Any, obs: Any) -> AbstractContextManager[None]:
        """Let the next action be decided by given numbers, if there are any."""
        if noise is None:
            return nullcontext()
        from thrust_pomdp.deploy.given_noise import acting_by

        _check_model(self.model, "observation_space", "action_space")
        space = _acting_space(self.model)
        part = obs
        if isinstance(obs, dict):
            key = next(iter(obs))
            part, space = obs[key], space[key]
        is_single = np.ndim(part) == len(space.shape or ())
        return acting_by(self.model, noise, 1 if is_single else len(part))

    def _blank(self, obs: Any, blanked: Any) -> Any:
        """Show what is blanked as zeros, where nothing else is done to observations."""
        from thrust_pomdp.deploy.observation_pipeline import ObservationPipeline

        sight = ObservationPipeline([], _acting_space(self.model), self.model.action_space)
        return sight.blank(obs, blanked)


def _check_model(model: Any, *needed: str) -> None:
    """Refuse what cannot act, with what to do about it.

    :param needed: names of methods and attributes
    :raises ValueError: naming the remedy
    """
    if isinstance(model, (str, os.PathLike)):
        raise ArgumentError(
            f"model must be a model, got the path {str(model)!r}: load it first, as by "
            "thrust_pomdp.RecurrentPPO.load(path)"
        )
    if isinstance(model, type):
        raise ArgumentError(f"model must be a model, got the class {model.__name__}: make one")
    for name in needed:
        if not hasattr(model, name):
            raise ArgumentError(
                f"model must be a model or policy of Stable-Baselines3's kind, with {name}, got "
                f"{model!r}"
            )


def _acting_space(model: _Predictor) -> Any:
    """Return the space of what a model needs to see to act."""
    policy = getattr(model, "policy", model)
    return getattr(policy, "acting_space", model.observation_space)

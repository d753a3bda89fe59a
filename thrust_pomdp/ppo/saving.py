"""How ``RecurrentPPO`` is saved and loaded: as arrays and JSON, and as SB3's zip file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv

from thrust_pomdp import array_files
from thrust_pomdp.arguments import check_file, check_kind, check_switch
from thrust_pomdp.array_files import File, SafeFileError
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.ppo.action_noise import ActionNoise
from thrust_pomdp.ppo.asymmetric_policy import explain_missing_keys
from thrust_pomdp.ppo.model_files import (
    attributes_of_zip,
    be_ready_to_train,
    build,
    read_model,
    write_model,
)
from thrust_pomdp.ppo.resuming import PrivilegedStatistics, give_statistics, statistics_of
from thrust_pomdp.ppo.vocabulary import RECURRENT
from thrust_pomdp.safe_values import Vocabulary
from thrust_pomdp.settings import check_device

SelfSavesModels = TypeVar("SelfSavesModels", bound="SavesModels")


class SavesModels(OnPolicyAlgorithm):
    """How ``RecurrentPPO`` is saved and loaded, and what goes with it."""

    #: What files written by :meth:`save_safe` may name.
    vocabulary: ClassVar[Vocabulary] = RECURRENT
    _privileged_statistics: PrivilegedStatistics | None = None
    _action_noise: ActionNoise
    _noise_state: dict[str, int] | None

    def save(self, path: Any, exclude: Any = None, include: Any = None) -> None:
        """Save the model to a zip file of SB3's; the arguments are SB3's.

        With it go the statistics of ``VecPrivilegedInfo`` around its environment, without which
        its critic could not go on, and how far the random numbers behind its actions have come.

        .. warning::
            Such a file contains pickles: who loads it runs what is in it. :meth:`save_safe` writes
            one that nobody needs to trust.
        """
        if not isinstance(path, (str, os.PathLike)) and not hasattr(path, "write"):
            raise ArgumentError(f"path must be a path or a file to write to, got {path!r}")
        self._take_statistics()
        with self._noise_noted():
            super().save(path, exclude, include)

    def save_safe(self, path: File, exclude: Any = None) -> None:
        """Save the model to a file of arrays and JSON, which anybody can load without running it.

        It holds what :meth:`save` does, the optimiser included. What is no data, such as a policy
        class, a features extractor or a schedule of your own, stays in your program: hand it in
        by ``custom_objects`` when you load.

        >>> import thrust_pomdp, io
        >>> file = io.BytesIO()
        >>> thrust_pomdp.RecurrentPPO("MlpLstmPolicy", "CartPole-v1").save_safe(file)
        >>> size = file.seek(0)
        >>> model = thrust_pomdp.RecurrentPPO.load_safe(file)

        :param path: a path, which gets ``.safetensors`` where it has no suffix, or an opened file
        :param exclude: names of attributes to leave out
        :raises ValueError: for anything else
        """
        if not isinstance(path, (str, os.PathLike)) and not hasattr(path, "write"):
            raise ArgumentError(f"path must be a path or a file to write to, got {path!r}")
        self._take_statistics()
        with self._noise_noted():
            write_model(path, self, self.vocabulary, exclude)

    @contextmanager
    def _noise_noted(self) -> Iterator[None]:
        """Have how far the random numbers of the actions have come among the attributes."""
        self._noise_state = self._action_noise.get_state()
        try:
            yield
        finally:
            del self._noise_state

    @classmethod
    def load_safe(
        cls: type[SelfSavesModels],
        path: File,
        env: GymEnv | str | None = None,
        custom_objects: dict[str, Any] | None = None,
        device: th.device | str = "auto",
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfSavesModels:
        """Load what :meth:`save_safe` wrote; nothing of the file is run.

        Training goes on as it does after :meth:`load`.

        :param path: the file
        :param env: the environment to go on with; not needed for acting
        :param custom_objects: what the file cannot hold because it is your program's, by name:
            ``{"policy_class": MyPolicy, "features_extractor_class": MyExtractor, "learning_rate":
            my_schedule}``. Attributes that are named here replace those of the file
        :param device: where the network runs
        :param force_reset: let training begin by a reset of the environment
        :param kwargs: attributes to change
        :raises ValueError: naming the file and the reason, if it is damaged, holds something else
            or sizes that do not fit, or needs what ``custom_objects`` does not have
        :raises FileNotFoundError: if there is none
        """
        if not isinstance(path, (str, os.PathLike)) and not hasattr(path, "read"):
            raise ArgumentError(f"path must be a path or an opened file, got {path!r}")
        check_kind("custom_objects", custom_objects, dict, "a dict")
        check_device(device)
        model = read_model(
            cls, path, cls.vocabulary, env, custom_objects, device, force_reset, **kwargs
        )
        model._give_statistics()
        return model

    @classmethod
    def load(
        cls: type[SelfSavesModels],
        path: Any,
        env: Any = None,
        *args: Any,
        trusted: bool = True,
        **kwargs: Any,
    ) -> SelfSavesModels:
        """Load a model from a zip file of SB3's; the arguments are SB3's.

        Training goes on by random numbers of its own: those behind its actions go on from where
        they were, unless another ``seed`` is given; ``predict`` and shuffling are seeded from the
        model's seed and its number of steps, so that loading twice gives the same, but not what has
        been before. An environment is left as its owner seeded it; one that is made here, of an id,
        is seeded likewise.

        .. warning::
            Such a file contains pickles, which run whatever code whoever wrote it has put in. Load
            only what you trust, or pass ``trusted=False``: then nothing is unpickled. The spaces
            are those of ``env``, which must be given; the policy is the one that the weights are
            of, or ``custom_objects["policy_class"]``; so are schedules, which the file may have in
            plain words. What is needed beyond that is named.

        :param trusted: whether to unpickle what is in the file
        :raises ValueError: if the file holds no model, or one of another library
        """
        check_file("path", path)
        check_device(kwargs.get("device", args[0] if args else "auto"))
        _refuse_safe_file(path)
        if not check_switch("trusted", trusted):
            return _load_untrusted(cls, path, env, *args, **kwargs)
        # SB3 makes attributes of the keywords that it does not know, before it sets up the model.
        kwargs = {**kwargs, "_is_loaded": True, "_made_env": isinstance(env, str)}
        if "seed" in kwargs:
            kwargs["_noise_state"] = None
        try:
            model = super().load(path, env, *args, **kwargs)
        except AssertionError as error:
            if "found in the saved file" not in str(error):
                raise
            raise ArgumentError(
                f"path must be a file saved by RecurrentPPO.save, got {path}"
            ) from error
        except ValueError as error:
            if "Observation spaces do not match" in str(error):
                saved = load_from_zip_file(path, device="cpu")[0] or {}
                explain_missing_keys(error, saved.get("policy_class"), saved.get("policy_kwargs"))
            raise
        model._give_statistics()
        return model

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """Set the environment to go on with; the arguments are SB3's.

        A ``VecPrivilegedInfo`` that has seen nothing yet gets the statistics of the model's.
        """
        self._take_statistics()
        try:
            super().set_env(env, force_reset)
        except AssertionError as error:  # of another number of environments
            raise ArgumentError(str(error)) from None
        be_ready_to_train(self)
        self._give_statistics()

    def privileged_statistics(self) -> PrivilegedStatistics:
        """Return what is known of the statistics that the critic was trained on, by key."""
        self._take_statistics()
        return self._privileged_statistics or {}

    def _take_statistics(self) -> None:
        if self.env is not None and (known := statistics_of(self.env)):
            self._privileged_statistics = {**(self._privileged_statistics or {}), **known}

    def _give_statistics(self) -> None:
        if self.env is not None:
            give_statistics(self.env, self._privileged_statistics or {}, self.num_timesteps > 0)


def _refuse_safe_file(path: Any) -> None:
    is_file = isinstance(path, (str, os.PathLike)) and os.path.isfile(path)
    if is_file and array_files.is_safe_file(path):
        raise ArgumentError(f"path must be a zip file, {path} is of save_safe: use load_safe")


def _load_untrusted(
    algorithm: type[SelfSavesModels],
    path: Any,
    env: Any,
    device: th.device | str = "auto",
    custom_objects: dict[str, Any] | None = None,
    print_system_info: bool = False,
    force_reset: bool = True,
    **changes: Any,
) -> SelfSavesModels:
    """Load a zip file of SB3's without unpickling anything."""
    is_made_here = isinstance(env, str)
    given = dict(custom_objects or {})
    if env is not None:
        env = algorithm._wrap_env(env)
    attributes, parameters = attributes_of_zip(algorithm, path, env, device, given, changes)
    if "window_state" not in attributes:
        raise SafeFileError(
            f"{path} must be a file saved by RecurrentPPO.save: from_sb3_contrib reads those of "
            "sb3_contrib.RecurrentPPO"
        )
    model = build(
        algorithm, path, attributes, parameters, env, device, force_reset, changes, is_made_here
    )
    model._give_statistics()
    return model

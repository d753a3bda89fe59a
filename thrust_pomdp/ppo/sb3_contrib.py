"""Weights to and from ``sb3_contrib.RecurrentPPO``."""

from __future__ import annotations

import io
import json
import pathlib
import zipfile
from typing import TYPE_CHECKING, Any

import torch as th
from stable_baselines3.common.save_util import load_from_zip_file, open_path
from stable_baselines3.common.type_aliases import GymEnv
from torch import nn

from thrust_pomdp.arguments import check_file, check_switch
from thrust_pomdp.array_files import SafeFileError
from thrust_pomdp.errors import warn_user
from thrust_pomdp.ppo.model_files import attributes_of_zip, build
from thrust_pomdp.ppo.policies import (
    CnnLstmPolicy,
    MlpLstmPolicy,
    MultiInputLstmPolicy,
    RecurrentActorCriticPolicy,
)
from thrust_pomdp.ppo.recurrent_ppo import RecurrentPPO
from thrust_pomdp.ppo.untrusted import policy_of
from thrust_pomdp.settings import check_device

if TYPE_CHECKING:
    import sb3_contrib

_ALIASES = {
    "CnnLstmPolicy": CnnLstmPolicy,
    "MlpLstmPolicy": MlpLstmPolicy,
    "MultiInputLstmPolicy": MultiInputLstmPolicy,
}

#: Attributes that belong to a run or to the other library's classes and are made anew.
_NOT_CARRIED_OVER = (
    "policy_class",
    "rollout_buffer_class",
    "rollout_buffer_kwargs",
    "_last_lstm_states",
    "_last_obs",
    "_last_episode_starts",
    "_last_original_obs",
)

#: What only our models have.
_OURS_ALONE = (
    "envs_per_minibatch",
    "window_state",
    "sequence_length",
    "burn_in",
    "refresh_states",
    "_privileged_statistics",
    "_noise_state",
)


def from_sb3_contrib(
    path: str | pathlib.Path | io.BufferedIOBase,
    env: GymEnv | str | None = None,
    device: th.device | str = "auto",
    window_state: str = "carry",
    *,
    policy: type[RecurrentActorCriticPolicy] | None = None,
    trusted: bool = True,
    **kwargs: Any,
) -> RecurrentPPO:
    """Load a file saved by ``sb3_contrib.RecurrentPPO``.

    The model has the same weights, optimiser state and settings, and gives the same actions, values
    and log-probabilities. Training goes on by random numbers of its own, as it does after
    :meth:`~thrust_pomdp.ppo.recurrent_ppo.RecurrentPPO.load`. ``sb3_contrib`` need not be
    installed.

    .. warning::
        Such a file contains pickles, which run whatever code whoever wrote it has put in. Load only
        what you trust, or pass ``trusted=False``: then nothing is unpickled. The spaces are those
        of ``env``, which must be given; schedules are read where the file has them in plain words,
        and what is needed beyond that is named, to be passed as a keyword.

    >>> import io, sb3_contrib
    >>> theirs, file = sb3_contrib.RecurrentPPO("MlpLstmPolicy", "CartPole-v1"), io.BytesIO()
    >>> theirs.save(file)
    >>> model = from_sb3_contrib(file, env="CartPole-v1")

    :param path: the file
    :param env: the environment to go on with; not needed for acting
    :param device: where the network runs
    :param window_state: what further training does at the cut between windows; their way by default
    :param policy: the policy's class; None for the one of this package that the weights are of
    :param trusted: whether to unpickle what is in the file
    :param kwargs: attributes to change, as in SB3's ``load``
    :raises ValueError: if the file holds something else, such as weights without memory
    """
    check_file("path", path)
    check_device(device)
    if not check_switch("trusted", trusted):
        return _without_pickles(path, env, device, window_state, policy, kwargs)
    # Their classes are replaced, not run: the placeholder keeps them from being unpickled.
    data, params, _ = load_from_zip_file(
        path, device=device, custom_objects=dict.fromkeys(_NOT_CARRIED_OVER)
    )
    weights: Any = (params or {}).get("policy", {})
    _refuse_without_memory(weights, path)
    if data is None or "lstm_actor.weight_ih_l0" not in weights or "window_state" in data:
        raise ValueError(
            f"path must be a file saved by sb3_contrib.RecurrentPPO (RecurrentPPO.load reads those "
            f"of thrust_pomdp), got {path}"
        )
    if policy is None:
        _warn_of_own_policy(path)
    made_env = isinstance(env, str)
    if env is not None:
        env = RecurrentPPO._wrap_env(env, data["verbose"])  # type: ignore[arg-type]
        data["n_envs"] = env.num_envs
    model = RecurrentPPO(
        policy or policy_of(_ALIASES, "sb3_contrib", weights, data["observation_space"]),
        env,  # type: ignore[arg-type]
        device=device,
        _init_setup_model=False,
        window_state=window_state,
    )
    if env is not None:
        _check_spaces(model, data)
    for name, value in data.items():
        if name not in _NOT_CARRIED_OVER:
            setattr(model, name, value)
    _check_changes(model, kwargs)
    vars(model).update(kwargs)
    model._is_loaded, model._made_env = True, made_env
    model._setup_model()
    model.set_parameters(params, exact_match=True, device=device)
    if model.use_sde:
        model.policy.reset_noise()
    return model


def _check_changes(model: RecurrentPPO, changes: dict[str, Any]) -> None:
    for name in changes:
        if not hasattr(model, name):
            raise ValueError(f"{name!r} is no attribute of RecurrentPPO that could be changed")


def _without_pickles(
    path: Any,
    env: Any,
    device: th.device | str,
    window_state: str,
    policy: Any,
    changes: dict[str, Any],
) -> RecurrentPPO:
    """Load a file without running anything of it."""
    made_env = isinstance(env, str)
    if env is not None:
        env = RecurrentPPO._wrap_env(env)
    given = {} if policy is None else {"policy_class": policy}
    attributes, parameters = attributes_of_zip(RecurrentPPO, path, env, device, given, changes)
    weights = parameters["policy"]
    _refuse_without_memory(weights, path)
    if "lstm_actor.weight_ih_l0" not in weights or "window_state" in attributes:
        raise SafeFileError(
            f"path must be a file saved by sb3_contrib.RecurrentPPO (RecurrentPPO.load reads those "
            f"of thrust_pomdp), got {path}"
        )
    left_out = {*_NOT_CARRIED_OVER, *_OURS_ALONE} - {"policy_class"}
    kept = {name: value for name, value in attributes.items() if name not in left_out}
    kept["window_state"] = window_state
    fresh = RecurrentPPO("MlpLstmPolicy", None, _init_setup_model=False)  # type: ignore[arg-type]
    _check_changes(fresh, changes)
    return build(
        RecurrentPPO, path, kept, parameters, env, device, True, changes, is_made_here=made_env
    )


def _refuse_without_memory(weights: dict[str, th.Tensor], path: Any) -> None:
    """Refuse a file of ``PPO``, ``MaskablePPO`` and the like: no memory can be made of it."""
    if "action_net.weight" in weights and "lstm_actor.weight_ih_l0" not in weights:
        raise ValueError(
            f"path must be a file of a policy with memory, got {path}, which holds the weights of "
            "a policy without (saved by PPO, MaskablePPO or A2C): train a RecurrentPPO, or with "
            "action masks a MaskableRecurrentPPO, anew on the same environment. Of the old network "
            "only what comes before the memory fits: the weights of the features_extractor, such "
            "as a CNN's, by policy.features_extractor.load_state_dict"
        )


def _warn_of_own_policy(path: Any) -> None:
    """Tell of a policy class that somebody derived from theirs: its methods are not taken over."""
    file = open_path(path, "r", suffix="zip")
    with zipfile.ZipFile(file) as archive:
        saved = json.loads(archive.read("data"))["policy_class"]
    if file is not path:
        file.close()
    module = str(saved.get("__module__"))
    if module.partition(".")[0] != "sb3_contrib":
        warn_user(
            f"the file's policy class is one of {module}, not one of sb3_contrib's, and is not "
            "run: the model has its weights, and acts as sb3_contrib's own policy would with them"
        )


def _check_spaces(model: RecurrentPPO, data: dict[str, Any]) -> None:
    for name in ("observation_space", "action_space"):
        if getattr(model, name) != data[name]:
            raise ValueError(
                f"env must have the {name} of the saved model, {data[name]}, "
                f"got {getattr(model, name)}"
            )


def to_sb3_contrib(model: RecurrentPPO) -> sb3_contrib.RecurrentPPO:
    """Turn a model into one of ``sb3_contrib``, to act with it or to save it over there.

    >>> theirs = to_sb3_contrib(RecurrentPPO("MlpLstmPolicy", "CartPole-v1"))
    >>> theirs.save("for_them.zip")  # doctest: +SKIP

    :param model: the model; it is not changed
    :return: a model without an environment; it gives the same actions, values and log-probabilities
    :raises ImportError: if ``sb3_contrib`` is not installed
    """
    try:
        from sb3_contrib import RecurrentPPO as Theirs
        from sb3_contrib.ppo_recurrent import policies as their_policies
    except ImportError as error:
        raise ImportError("to_sb3_contrib needs sb3-contrib: pip install sb3-contrib") from error

    if not isinstance(model, RecurrentPPO):
        raise ValueError(f"model must be a thrust_pomdp.RecurrentPPO, got {model!r}")
    classes: dict[type[RecurrentActorCriticPolicy], Any] = {
        MlpLstmPolicy: their_policies.MlpLstmPolicy,
        CnnLstmPolicy: their_policies.CnnLstmPolicy,
        MultiInputLstmPolicy: their_policies.MultiInputLstmPolicy,
    }
    if type(model.policy) not in classes:
        raise ValueError(
            f"model must have one of the policies {[cls.__name__ for cls in classes]}, "
            f"got {type(model.policy).__name__}"
        )
    _check_theirs_has_it(model.policy)
    theirs = Theirs(
        classes[type(model.policy)],
        env=None,  # type: ignore[arg-type]
        device=model.device,
        _init_setup_model=False,
    )
    left_out = {*model._excluded_save_params(), *_NOT_CARRIED_OVER, *_OURS_ALONE}
    for name, value in vars(model).items():
        if name not in left_out:
            setattr(theirs, name, value)
    theirs.policy_kwargs = dict(model.policy_kwargs)
    if theirs.policy_kwargs.pop("shared_lstm_critic_gradient", False):
        # The same modules and numbers; over there the value loss would no longer train the LSTM.
        theirs.policy_kwargs.update(shared_lstm=True, enable_critic_lstm=False)
    for name in ("rnn_class", "forget_bias", "layer_norm"):
        theirs.policy_kwargs.pop(name, None)  # what they do by default, or did to the weights
    theirs._setup_model()
    parameters: Any = model.get_parameters()
    theirs.set_parameters(parameters, exact_match=True, device=model.device)
    return theirs


def _check_theirs_has_it(policy: RecurrentActorCriticPolicy) -> None:
    """Refuse what the other library's networks do not consist of."""
    if policy.rnn_class is not nn.LSTM:
        is_torchs = issubclass(policy.rnn_class, nn.RNNBase)
        name = f"{'nn.' if is_torchs else ''}{policy.rnn_class.__name__}"
        raise ValueError(
            f"model must have rnn_class=nn.LSTM, got {name}: "
            "sb3_contrib's policies have an LSTM or nothing"
        )
    if policy.layer_norm or policy.encoder_arch:
        raise ValueError(
            "model must have neither layer_norm nor net_arch['encoder']: sb3_contrib's policies "
            "have no such layers"
        )

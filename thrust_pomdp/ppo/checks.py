"""What is refused before it does harm, with messages a user can act on."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EventCallback
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize
from torch import nn

from thrust_pomdp.errors import ArgumentError, warn_user
from thrust_pomdp.observations import check_finite, named_parts
from thrust_pomdp.ppo.asymmetric_policy import CRITIC_ONLY, AsymmetricLstmPolicy, check_critic_only
from thrust_pomdp.ppo.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from thrust_pomdp.ppo.policies import (
    RecurrentActorCriticCnnPolicy,
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from thrust_pomdp.recurrent.protocol import Memory
from thrust_pomdp.vec_env.privileged import VecPrivilegedInfo, VecUnprivileged, wrappers_of_kind

#: Side of the smallest image that the three layers of SB3's NatureCNN make something of.
_SMALLEST_IMAGE = 36

#: What SB3 can act in, and turn into features, alone or as values of a Dict.
_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def check_env(env: Any) -> None:
    """Refuse what is no environment, or has spaces that SB3 does not know and would trip over.

    :param env: a Gymnasium environment or a VecEnv
    :raises ValueError: naming what is wrong
    """
    if not isinstance(env, (gym.Env, VecEnv)):
        raise ArgumentError(
            f"env must be a Gymnasium environment, its id, or a VecEnv, got {env!r}"
        )
    space = env.observation_space
    subspaces = list(space.values()) if isinstance(space, spaces.Dict) else [space]
    for subspace in subspaces:
        if not isinstance(subspace, (*_SPACES, spaces.Dict)):
            raise ArgumentError(
                "observation_space must be a Box, Discrete, MultiDiscrete or MultiBinary space, or "
                f"a Dict of these, got {space}"
            )
        _check_shape("observation_space", subspace)
    if not isinstance(env.action_space, _SPACES):
        raise ArgumentError(
            "action_space must be a Box, Discrete, MultiDiscrete or MultiBinary space, "
            f"got {env.action_space}"
        )
    _check_shape("action_space", env.action_space)
    _check_action_bounds(env.action_space)


def _check_shape(name: str, space: spaces.Space[Any]) -> None:
    if isinstance(space, spaces.Discrete) and space.start != 0:
        raise ArgumentError(f"{name} must be a Discrete space that starts at 0, got {space}")
    if isinstance(space, spaces.MultiDiscrete) and (space.nvec.ndim != 1 or space.start.any()):
        raise ArgumentError(f"{name} must be a MultiDiscrete vector that starts at 0, got {space}")
    if isinstance(space, spaces.Box) and space.shape == ():
        raise ArgumentError(f"{name} must be a Box of at least one dimension, got {space}")


def _check_action_bounds(space: spaces.Space[Any]) -> None:
    if isinstance(space, spaces.MultiBinary) and not isinstance(space.n, int):
        raise ArgumentError(f"action_space must be a MultiBinary vector, got {space}")
    if isinstance(space, spaces.Box) and not np.isfinite([space.low, space.high]).all():
        raise ArgumentError(f"action_space must be a Box with finite bounds, got {space}")


def check_policy_class(
    policy_class: Any, observation_space: spaces.Space[Any], policy_kwargs: dict[str, Any]
) -> None:
    """Refuse a policy class that is not one of ours, or of the wrong family for the observations.

    :param policy_class: the class
    :param observation_space: of the environment
    :param policy_kwargs: the policy's arguments; with an extractor of their own any family will do
    :raises ValueError: naming the class and the remedy
    """
    name = getattr(policy_class, "__name__", repr(policy_class))
    if not (
        isinstance(policy_class, type) and issubclass(policy_class, RecurrentActorCriticPolicy)
    ):
        _refuse_policy_class(policy_class, name)
    if issubclass(policy_class, AsymmetricLstmPolicy):
        check_critic_only(observation_space, policy_kwargs.get("critic_only", CRITIC_ONLY))
    if "features_extractor_class" in policy_kwargs or _chooses_by_itself(policy_class):
        return
    scaled = not policy_kwargs.get("normalize_images", True)
    right = None
    if isinstance(observation_space, spaces.Dict):
        if not issubclass(policy_class, RecurrentMultiInputActorCriticPolicy):
            right = "MultiInputLstmPolicy"
    elif issubclass(policy_class, RecurrentMultiInputActorCriticPolicy):
        right = "MlpLstmPolicy or CnnLstmPolicy"
    elif issubclass(policy_class, RecurrentActorCriticCnnPolicy) and not is_image_space(
        observation_space, check_channels=False, normalized_image=scaled
    ):
        right = "MlpLstmPolicy"
    if right is not None:
        raise ArgumentError(
            f"policy must be {right} for the observation space {observation_space}, got {name}"
        )
    if issubclass(
        policy_class, (RecurrentActorCriticCnnPolicy, RecurrentMultiInputActorCriticPolicy)
    ):
        _check_sizes_of_images(observation_space, scaled)


def _check_sizes_of_images(space: spaces.Space[Any], scaled: bool) -> None:
    """Refuse images that SB3's CNN has no room for."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    for key, part in parts.items():
        if not is_image_space(part, check_channels=False, normalized_image=scaled):
            continue
        shape = part.shape or ()
        height, width = shape[1:] if is_image_space_channels_first(part) else shape[:2]  # type: ignore[arg-type]
        if min(height, width) < _SMALLEST_IMAGE:
            what = f"images of key {key!r}" if key else "images"
            raise ArgumentError(
                f"observation_space must have {what} of at least {_SMALLEST_IMAGE} x "
                f"{_SMALLEST_IMAGE} pixels for SB3's NatureCNN, got {height} x {width}: enlarge "
                "them (gymnasium.wrappers.ResizeObservation), pass a features_extractor_class of "
                "your own in policy_kwargs, or flatten them (gymnasium.wrappers.FlattenObservation)"
                " for MlpLstmPolicy"
            )


def _chooses_by_itself(policy_class: Any) -> bool:
    """Tell whether a class has a constructor of its own, which may choose any extractor."""
    families = (
        RecurrentActorCriticPolicy,
        RecurrentActorCriticCnnPolicy,
        RecurrentMultiInputActorCriticPolicy,
        AsymmetricLstmPolicy,
    )
    return all(policy_class.__init__ is not family.__init__ for family in families)


def check_privileged_keys(
    env: VecEnv | None, policy_class: Any, policy_kwargs: dict[str, Any]
) -> None:
    """Refuse an actor that would see what an environment shows for the critic alone.

    It would learn well, and be worth nothing where nobody tells it the state.

    :raises ValueError: naming the keys and the remedy
    """
    keys = (
        set()
        if env is None
        else {x.privileged_key for x in wrappers_of_kind(env, VecPrivilegedInfo)}
    )
    if isinstance(policy_class, type) and issubclass(policy_class, AsymmetricLstmPolicy):
        keys -= set(policy_kwargs.get("critic_only", CRITIC_ONLY))
    if keys:
        raise ValueError(
            f"policy must hide from the actor what VecPrivilegedInfo shows, {sorted(keys)}: use "
            f'"AsymmetricLstmPolicy" with policy_kwargs=dict(critic_only=...) naming all of these'
        )


def _refuse_policy_class(policy_class: Any, name: str) -> None:
    theirs = [
        ancestor.__name__
        for ancestor in getattr(policy_class, "__mro__", ())
        if ancestor.__module__.startswith("sb3_contrib")
    ]
    counterpart = next((_COUNTERPARTS[each] for each in theirs if each in _COUNTERPARTS), None)
    if counterpart is None:
        raise ValueError(
            f"policy must be a recurrent policy, such as thrust_pomdp.MlpLstmPolicy, got {name}, "
            "which has no memory"
        )
    if counterpart.startswith("Maskable"):
        raise ValueError(
            f"policy is sb3_contrib's {name}, which has no memory, and whose code cannot be run "
            f"here: give MaskableRecurrentPPO thrust_pomdp.{counterpart}, which takes masks and "
            "remembers, and train anew; weights without memory cannot be loaded"
        )
    raise ValueError(
        f"policy is sb3_contrib's {name}, whose code cannot be run here: use "
        f"thrust_pomdp.{counterpart}, and thrust_pomdp.from_sb3_contrib(path) to load a file "
        "that was saved over there"
    )


#: ``sb3_contrib``'s policy classes, and the names under which this package has theirs.
_COUNTERPARTS = {
    "RecurrentActorCriticPolicy": "MlpLstmPolicy",
    "RecurrentActorCriticCnnPolicy": "CnnLstmPolicy",
    "RecurrentMultiInputActorCriticPolicy": "MultiInputLstmPolicy",
    "MaskableActorCriticPolicy": "MaskableMlpLstmPolicy",
    "MaskableActorCriticCnnPolicy": "MaskableCnnLstmPolicy",
    "MaskableMultiInputActorCriticPolicy": "MaskableMultiInputLstmPolicy",
}


def check_evaluation_envs(callback: BaseCallback, env: VecEnv) -> None:
    """Refuse an ``EvalCallback`` on the training environment, or with another normaliser.

    Evaluating resets the environment in mid-window: training would go on from observations that are
    no longer the environment's. A plain ``VecNormalize`` shows blanks as something else than zero.
    In neither case anything would fail.

    :raises ValueError: naming the remedy
    """
    for member in _flatten(callback):
        eval_env = getattr(member, "eval_env", None)
        if not isinstance(eval_env, VecEnv):
            continue
        if _base_envs(eval_env) & _base_envs(env):
            raise ValueError(
                "eval_env is the training environment, which an evaluation would reset in the "
                "middle of a rollout: make another one for the EvalCallback"
            )
        _check_layers(env, eval_env)
        ours, theirs = unwrap_vec_normalize(env), unwrap_vec_normalize(eval_env)
        if ours is not None and theirs is not None and type(ours) is not type(theirs):
            raise ValueError(
                f"eval_env must be normalised as the training environment is, by "
                f"{type(ours).__name__}, got {type(theirs).__name__}"
            )
        _check_blanks(ours, theirs)


def _check_blanks(ours: Any, theirs: Any) -> None:
    """Refuse an evaluation that takes other frames for blank than the training does."""
    rules = [getattr(normalizer, "zero_is_blank", None) for normalizer in (ours, theirs)]
    if None not in rules and rules[0] != rules[1]:
        raise ValueError(
            f"eval_env must be normalised as the training environment is, with zero_is_blank="
            f"{rules[0]}, got {rules[1]}"
        )


def _check_layers(env: VecEnv, eval_env: VecEnv) -> None:
    """Refuse an evaluation that a privileged layer more on the training side would break.

    SB3 copies the statistics of normalisers layer by layer.
    """
    n_missing = len(wrappers_of_kind(env, VecPrivilegedInfo)) - len(
        wrappers_of_kind(eval_env, VecUnprivileged)
    )
    if n_missing > 0 and unwrap_vec_normalize(env) is not None:
        raise ValueError(
            "eval_env must be wrapped in as many layers as the training environment for its "
            "normaliser's statistics to be copied: put thrust_pomdp.VecUnprivileged around it "
            "where training has VecPrivilegedInfo"
        )


def _flatten(callback: BaseCallback | None) -> list[BaseCallback]:
    """List a callback and all callbacks inside it."""
    if callback is None:
        return []
    members = callback.callbacks if isinstance(callback, CallbackList) else []
    child = callback.callback if isinstance(callback, EventCallback) else None
    return [callback, *(inner for part in (*members, child) for inner in _flatten(part))]


def _base_envs(env: VecEnv) -> set[int]:
    """Identify what is stepped in the end: the innermost VecEnv and its Gymnasium envs."""
    base = env.unwrapped
    return {id(base), *(id(single.unwrapped) for single in getattr(base, "envs", ()))}


def check_finite_step(obs: Any, rewards: NDArray[Any] | None, step: int) -> None:
    """Keep what is not finite from being acted on and from reaching the weights.

    :param obs: ``[n_envs, *obs_shape]``, or a dict of such
    :param rewards: ``[n_envs]``
    :param step: step of the rollout that the observations come before
    :raises ValueError: naming what is not finite, the environment and the step
    """
    for name, part in named_parts("observation", obs):
        check_finite(part[None], name, step)
    if rewards is not None:
        check_finite(rewards[None], "reward", step - 1)


def check_finite_outputs(buffer: RecurrentRolloutBuffer | RecurrentDictRolloutBuffer) -> None:
    """Notice weights that have diverged.

    :param buffer: a collected window; its observations and rewards are finite
    :raises ValueError: naming the environment and the step of the rollout
    """
    for name in ("values", "log_probs"):
        check_finite(
            getattr(buffer, name), f"{name} (the policy's weights have diverged; the policy)"
        )


def warn_of_training_mode(policy: RecurrentActorCriticPolicy) -> None:
    """Warn of modules that compute otherwise in training mode than while collecting.

    PPO's ratio is then not 1 before the first update: the log-probabilities that training computes
    are those of another network. Dropout of ``lstm_kwargs`` has been warned of already.
    """
    is_told = policy.lstm_kwargs.get("dropout") and isinstance(policy.lstm_actor, nn.RNNBase)
    told = (policy.lstm_actor, policy.lstm_critic) if is_told else ()
    names = [
        f"{name or 'the policy'} ({type(module).__name__})"
        for name, module in policy.named_modules()
        if module not in told and depends_on_mode(module)
    ]
    if names:
        warn_user(
            "the first pass of training will differ from what was collected, since these modules "
            f"compute otherwise in training mode: {', '.join(names)}; PPO takes the difference for "
            "a change of the policy. Use LayerNorm for BatchNorm, and no dropout"
        )


def depends_on_mode(module: nn.Module) -> bool:
    """Tell whether a module computes otherwise in training mode than in evaluation mode."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.MultiheadAttention):
        return bool(module.dropout > 0)
    if isinstance(module, nn.RNNBase) and type(module).forward in _FORWARDS:
        return module.dropout > 0 and module.num_layers > 1
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return module.track_running_stats  # without, each is normalised by its own in both modes
    if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.RReLU)):
        return True
    # A user's own: one that asks in which mode it is.
    if type(module).__module__.startswith("torch.nn.modules"):
        return False
    methods = ("forward", "step", "windows") if isinstance(module, Memory) else ("forward",)
    codes = (getattr(getattr(type(module), name), "__code__", None) for name in methods)
    return any("training" in getattr(code, "co_names", ()) for code in codes)


_FORWARDS = (nn.LSTM.forward, nn.GRU.forward, nn.RNN.forward)

"""Looking inside: what a recurrent model remembers, thinks a state is worth, and would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import check_for_correct_spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
from torch.distributions import Normal

from thrust_pomdp.arguments import check_count, check_switch
from thrust_pomdp.errors import ArgumentError
from thrust_pomdp.ppo.maskable.masks import (
    Masks,
    get_action_masks,
    is_masking_supported,
    missing_action_masks,
)
from thrust_pomdp.ppo.maskable.policies import MaskableRecurrentActorCriticPolicy
from thrust_pomdp.ppo.policies import RecurrentActorCriticPolicy
from thrust_pomdp.ppo.recurrent_ppo import RecurrentPPO
from thrust_pomdp.ppo.resuming import lent_statistics
from thrust_pomdp.recurrent.sequences import LSTMState, RNNStates
from thrust_pomdp.vec_env.layer import check_venv
from thrust_pomdp.vec_env.previous import layers, original_rewards
from thrust_pomdp.vec_env.privileged import VecPrivilegedInfo
from thrust_pomdp.wrappers.visible_statistics import key_flags

Array = NDArray[Any]


@dataclass(frozen=True)
class Trace:
    """What happened in and around a model, step by step: row ``t`` belongs to observation ``t``.

    :param observations: as the model saw them, ``[n_steps, n_envs, *obs_shape]``, or a dict of such
    :param actions: as the environments received them, ``[n_steps, n_envs, *action_shape]``
    :param rewards: what the actions earned, before a normaliser scaled it, ``[n_steps, n_envs]``
    :param episode_starts: whose observation is the first of an episode, bool ``[n_steps, n_envs]``
    :param blanked: what of an observation is blanked, bool ``[n_steps, n_envs]``, with further axes
        where single components are told of, or a dict by key; None where no environment tells
    :param env_states: the environments' ``info["state"]``, ``[n_steps, n_envs, ...]``; None where
        one does not tell it
    :param states: the actor's state after the observation, what it acts by: its parts by name,
        ``[n_steps, n_layers, n_envs, ...]``
    :param critic_states: the critic's; None where the critic has no memory of its own
    :param values: estimated from the observation on, ``[n_steps, n_envs]``
    :param log_prob: of the actions drawn, ``[n_steps, n_envs]``
    :param probabilities: of each action, ``[n_steps, n_envs, n_actions]``; of MultiDiscrete actions
        a tuple with an array for each dimension; of MultiBinary actions that of each bit being one,
        ``[n_steps, n_envs, n_bits]``; None of Box actions. What a mask forbids has exactly 0.
    :param mean: of the Gaussian that Box actions are drawn from, before they are clipped or
        squashed, ``[n_steps, n_envs, action_dim]``; None of other actions
    :param std: its standard deviation
    :param action_masks: what might be done, bool ``[n_steps, n_envs, width]``, laid out as
        :mod:`thrust_pomdp.ppo.maskable.masks` draws it; None where the model acts without masks
    """

    observations: Any
    actions: Array
    rewards: Array
    episode_starts: NDArray[np.bool_]
    blanked: Any
    env_states: Array | None
    states: dict[str, Array]
    critic_states: dict[str, Array] | None
    values: Array
    log_prob: Array
    probabilities: Any
    mean: Array | None
    std: Array | None
    action_masks: NDArray[np.bool_] | None = None

    @property
    def hidden(self) -> Array:
        """The actor's hidden state, ``[n_steps, n_layers, n_envs, hidden]``.

        :raises ValueError: if the memory is one of its own, without a part of this name
        """
        if "hidden" not in self.states:
            raise ValueError(
                f"hidden is no part of this memory's state: states has {', '.join(self.states)}"
            )
        return self.states["hidden"]

    @property
    def cell(self) -> Array | None:
        """The actor's cell state; None where the memory has none."""
        return self.states.get("cell")

    @property
    def critic_hidden(self) -> Array | None:
        """The critic's hidden state; None where it has no memory of its own, or no such part."""
        return (self.critic_states or {}).get("hidden")

    @property
    def critic_cell(self) -> Array | None:
        """The critic's cell state; None where it has no memory of its own, or no such part."""
        return (self.critic_states or {}).get("cell")

    @property
    def blind(self) -> NDArray[np.bool_]:
        """Where all of an observation is blanked, ``[n_steps, n_envs]``; False where untold."""
        parts = list(self.blanked.values()) if isinstance(self.blanked, dict) else [self.blanked]
        if self.blanked is None:
            return np.zeros(self.episode_starts.shape, dtype=bool)
        whole = [part.reshape(*part.shape[:2], -1).all(axis=2) for part in parts]
        return np.asarray(np.logical_and.reduce(whole))


def look_inside(model: Any, env: Any, n_steps: int, deterministic: bool = False) -> Trace:
    """Let a model act, and return what happens inside.

    The environment is reset first and left where it is in the end, so use another than one on which
    training is to go on. Memory is carried as it must be: zero at each episode's start,
    never cut inside an episode. A ``VecNormalize`` or ``VecPrivilegedInfo`` around the environment
    keeps its statistics; a fresh ``VecPrivilegedInfo`` shows the critic what those of the model's
    environment would. A model that was trained with action masks gets them from the environment
    here too.

    >>> import thrust_pomdp
    >>> env = thrust_pomdp.make_vec_env("FlickeringCartPole-v0", n_envs=2, normalize=True)
    >>> model = thrust_pomdp.RecurrentPPO("MlpLstmPolicy", env, n_steps=64)
    >>> trace = look_inside(model, env, n_steps=100)
    >>> trace.hidden.shape, trace.probabilities.shape, trace.blanked.shape
    ((100, 1, 2, 256), (100, 2, 2), (100, 2))

    :param model: a model with a recurrent policy of this package, or the policy
    :param env: an environment or VecEnv as the model sees it, with its normaliser
    :param n_steps: steps of each environment
    :param deterministic: take the most likely actions instead of sampling
    :raises ValueError: for a policy without memory, an environment that does not fit or tells no
        masks where the model acts by them, or a number of steps below 1
    """
    policy = getattr(model, "policy", model)
    if not isinstance(policy, RecurrentActorCriticPolicy):
        raise ArgumentError(
            "model must have a recurrent policy of thrust_pomdp to look into, got "
            f"{type(policy).__name__ if hasattr(policy, 'predict') else repr(model)}"
        )
    n_steps = check_count("n_steps", n_steps)
    deterministic = check_switch("deterministic", deterministic)
    venv = _as_vec_env(env)
    _check_fits(policy, venv)
    uses_masks = _uses_masks(model, policy)
    if uses_masks and not is_masking_supported(venv):
        raise missing_action_masks(venv)
    with _as_trained(model, venv), frozen_statistics(venv), th.no_grad():
        return _trace(list(_steps(policy, venv, n_steps, deterministic, uses_masks)))


def _as_trained(model: Any, venv: VecEnv) -> AbstractContextManager[None]:
    """Show a critic what a fresh ``VecPrivilegedInfo`` would show it otherwise scaled."""
    if not isinstance(model, RecurrentPPO):
        return nullcontext()  # a policy alone, of which nothing more is known
    return lent_statistics(venv, model.privileged_statistics(), model.num_timesteps > 0)


def _uses_masks(model: Any, policy: RecurrentActorCriticPolicy) -> bool:
    is_maskable = isinstance(policy, MaskableRecurrentActorCriticPolicy)
    return is_maskable and getattr(model, "use_masking", True)


def _as_vec_env(env: Any) -> VecEnv:
    if isinstance(env, gym.Env):
        return DummyVecEnv([lambda: env])
    check_venv("env", env)
    venv: VecEnv = env
    return venv


def _check_fits(policy: RecurrentActorCriticPolicy, venv: VecEnv) -> None:
    # Images may have their channels first or last: as a model's constructor turns them.
    turned = BaseAlgorithm._wrap_env(venv, verbose=0, monitor_wrapper=False)
    try:
        check_for_correct_spaces(turned, policy.observation_space, policy.action_space)
    except ValueError as error:
        raise ValueError(
            f"env must show what the model was trained on: {error}. Wrap it as the training "
            "environment was: normaliser, previous action and reward, stack"
        ) from None


@contextmanager
def frozen_statistics(venv: VecEnv) -> Iterator[None]:
    """Keep the statistics of all normalisers around a VecEnv as they are."""
    # From the outside in: the switch of a VecPrivilegedInfo is for those inside, too.
    normalizers = [
        layer for layer in layers(venv) if isinstance(layer, (VecNormalize, VecPrivilegedInfo))
    ]
    before = [normalizer.training for normalizer in normalizers]
    for normalizer in normalizers:
        normalizer.training = False
    try:
        yield
    finally:
        for normalizer, training in zip(normalizers, before, strict=True):
            normalizer.training = training


def _steps(
    policy: RecurrentActorCriticPolicy,
    venv: VecEnv,
    n_steps: int,
    deterministic: bool,
    uses_masks: bool,
) -> Iterator[dict[str, Any]]:
    """Act, and tell of each step what a trace holds, of all environments."""
    policy.set_training_mode(False)
    obs, infos = venv.reset(), venv.unwrapped.reset_infos
    starts, states = np.ones(venv.num_envs, dtype=bool), policy.zero_states(venv.num_envs)
    for _ in range(n_steps):
        masks = get_action_masks(venv) if uses_masks else None
        with _masked(policy, masks):
            row, states = _act(policy, obs, states, starts, deterministic)
        row.update(
            observations=obs,
            action_masks=masks,
            probabilities=_allowed(row["probabilities"], masks, policy.action_space),
            episode_starts=starts,
            blanked=[info.get("blanked") for info in infos],
            env_states=[info.get("state") for info in infos],
        )
        obs, rewards, starts, infos = venv.step(row["actions"])
        row["rewards"] = original_rewards(venv, rewards).copy()
        # An info of a step that ended an episode describes the last frame, not the one returned.
        firsts = venv.unwrapped.reset_infos
        infos = [firsts[idx] if start else infos[idx] for idx, start in enumerate(starts)]
        yield row


def _act(
    policy: RecurrentActorCriticPolicy,
    obs: Any,
    states: RNNStates,
    starts: NDArray[np.bool_],
    deterministic: bool,
) -> tuple[dict[str, Any], RNNStates]:
    """Do what ``predict`` does, and tell what came up on the way."""
    tensor, _ = policy.obs_to_tensor(obs)
    start_flags = th.as_tensor(starts, device=policy.device)
    distribution, _ = policy.get_distribution(tensor, states.pi, start_flags)
    row = _chances(distribution.distribution)
    with nullcontext() if deterministic else policy.sampling(len(starts)):
        actions, values, log_prob, states = policy.forward(
            tensor, states, start_flags, deterministic
        )
    row["actions"] = _for_env(policy, _array(actions))
    row["values"], row["log_prob"] = _array(values).reshape(-1), _array(log_prob)
    pi_names, vf_names = policy.state_names()
    row["states"] = _by_name(pi_names, states.pi)
    has_own = states.vf is not states.pi
    row["critic_states"] = _by_name(vf_names, states.vf) if has_own else None
    return row, states


def _by_name(names: tuple[str, ...], states: LSTMState) -> dict[str, Array]:
    return {name: _array(part) for name, part in zip(names, states, strict=False)}


@contextmanager
def _masked(policy: RecurrentActorCriticPolicy, masks: Masks | None) -> Iterator[None]:
    """Let masks hold for all that a policy computes meanwhile."""
    if masks is None:
        yield
        return
    assert isinstance(policy, MaskableRecurrentActorCriticPolicy)
    with policy.masked_by(th.as_tensor(masks, device=policy.device)):
        yield


def _allowed(probabilities: Any, masks: Masks | None, space: spaces.Space[Any]) -> Any:
    """Make bits certain that may have one value only, of which the logits know nothing."""
    if masks is None or not isinstance(space, spaces.MultiBinary):
        return probabilities
    may_be_0, may_be_1 = np.moveaxis(masks.reshape(len(masks), -1, 2), 2, 0)
    return np.where(may_be_0 & may_be_1, probabilities, may_be_1.astype(probabilities.dtype))


def _array(tensor: th.Tensor) -> Array:
    return np.array(tensor.cpu().numpy())


def _chances(distribution: Any) -> dict[str, Any]:
    """Read probabilities, or mean and standard deviation, off torch's distributions."""
    nothing = dict.fromkeys(("probabilities", "mean", "std"))
    if isinstance(distribution, Normal):
        return {**nothing, "mean": _array(distribution.mean), "std": _array(distribution.stddev)}
    if isinstance(distribution, (list, tuple)):
        return {**nothing, "probabilities": tuple(_array(part.probs) for part in distribution)}
    return {**nothing, "probabilities": _array(distribution.probs)}


def _for_env(policy: RecurrentActorCriticPolicy, actions: Array) -> Array:
    """Bring actions into their space, as ``predict`` does."""
    space = policy.action_space
    if not isinstance(space, spaces.Box):
        return actions
    if policy.squash_output:
        return np.asarray(policy.unscale_action(actions))
    return np.clip(actions, space.low, space.high)


def _trace(rows: Sequence[dict[str, Any]]) -> Trace:
    columns = {field.name: [row[field.name] for row in rows] for field in fields(Trace)}
    blanked, env_states = columns.pop("blanked"), columns.pop("env_states")
    return Trace(
        blanked=_flags(blanked),
        env_states=None if _lacks(env_states) else np.array(env_states),
        **{name: _stacked(column) for name, column in columns.items()},
    )


def _stacked(column: Sequence[Any]) -> Any:
    """Stack what a trace holds of each step: arrays, tuples or dicts of arrays, or nothing."""
    first = column[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {key: _stacked([part[key] for part in column]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked(parts) for parts in zip(*column, strict=True))
    return np.stack(column)


def _lacks(column: Sequence[Sequence[Any]]) -> bool:
    return any(entry is None for row in column for entry in row)


def _flags(column: Sequence[Sequence[Any]]) -> Any:
    """Make arrays of flags ``[n_steps][n_envs]``; what is not told of is visible."""
    told = [flag for row in column for flag in row]
    if all(flag is None for flag in told):
        return None
    keys = dict.fromkeys(key for flag in told if isinstance(flag, Mapping) for key in flag)
    if keys:
        return {key: _flags([key_flags(row, key) for row in column]) for key in keys}
    flags = [np.asarray(flag, dtype=bool) for flag in told]  # None is False
    shape = max((flag.shape for flag in flags), key=len)
    whole = np.array([np.broadcast_to(flag, shape) for flag in flags])
    return whole.reshape(len(column), len(column[0]), *shape)

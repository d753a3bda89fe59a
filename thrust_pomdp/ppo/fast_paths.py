"""What stands in for what a model's user wrote, and why something does not."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.ppo.channels_last import against_channels_last, images_of
from thrust_pomdp.ppo.losses import against_loop
from thrust_pomdp.ppo.policies import RecurrentActorCriticPolicy
from thrust_pomdp.ppo.prepared_step import (
    against_compiled_cell,
    against_compiled_heads,
    against_one_call,
    against_step,
)
from thrust_pomdp.ppo.unseen_gate import against_compiled_steps
from thrust_pomdp.recurrent.compiled import against_loops
from thrust_pomdp.recurrent.memory import against_compiled_memory
from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
from thrust_pomdp.vec_env.substitutes import against_later_infos, against_native_class

#: What is said of a fast path that is taken.
USED = "used"


def fast_paths(
    policy: RecurrentActorCriticPolicy, env: VecEnv | None, against_minibatch: str | None
) -> dict[str, str]:
    """Tell of each fast path whether it is used now, else why not.

    :param policy: the policy
    :param env: the training environment, if there is one
    :param against_minibatch: why a minibatch is not one compiled call, None where it is
    :return: name of the path -> ``"used"``, or the reason why what the user wrote runs
    """
    against_prepared = against_step(policy)
    layers = {"actor": policy.lstm_actor}
    if policy.lstm_critic is not None:
        layers["critic"] = policy.lstm_critic
    reasons: dict[str, str | None] = {"prepared step": against_prepared}
    for name, rnn in layers.items():
        reasons[f"compiled memory, {name}, step"] = against_prepared or against_compiled_cell(rnn)
        reasons[f"compiled memory, {name}, windows"] = against_compiled_memory(rnn)
    reasons["compiled heads"] = against_prepared or against_compiled_heads(policy)
    reasons["compiled step"] = against_prepared or against_one_call(policy)
    reasons["compiled loss"] = (
        policy.against_windows() or against_loop(policy.action_dist) or _against_numbers(policy)
    )
    reasons["compiled minibatch"] = against_minibatch
    reasons["images with channels last"] = policy.against("extract_features") or next(
        filter(None, map(against_channels_last, images_of(policy.features_extractor))), None
    )
    reasons["many steps at once"] = against_compiled_steps(policy, env)
    reasons["fused optimizer"] = _against_fused(policy.optimizer)
    reasons["native vector environment"] = _against_native(env)
    reasons["infos built when looked at"] = _against_later_infos(env)
    return {name: USED if reason is None else reason for name, reason in reasons.items()}


def _against_numbers(policy: RecurrentActorCriticPolicy) -> str | None:
    """Say why the loss's numbers will not be such as the compiled loop takes."""
    return against_loops(*policy.value_net.parameters(), *policy.action_net.parameters())


def _against_fused(optimizer: Any) -> str | None:
    if optimizer.defaults.get("fused"):
        return None
    return f"the {type(optimizer).__name__} has no fused form, or was given one of its own"


def _against_native(env: VecEnv | None) -> str | None:
    if env is None:
        return "there is no environment"
    base = env.unwrapped
    if not isinstance(base, GymnasiumVecEnv):
        return f"the environment is a {type(base).__name__}"
    return against_native_class(base.env.unwrapped)


def _against_later_infos(env: VecEnv | None) -> str | None:
    base = None if env is None else env.unwrapped
    if isinstance(base, GymnasiumVecEnv):
        return against_later_infos(base.env)
    return _against_native(env)


def described(paths: dict[str, str]) -> str:
    """Return lines for people to read."""
    width = max(map(len, paths))
    return "\n".join(f"{name:{width}} | {said}" for name, said in paths.items())

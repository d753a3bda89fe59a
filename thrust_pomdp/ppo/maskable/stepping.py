"""A masked policy's step while collecting, prepared as the plain policies' is."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch as th
from torch import nn
from torch.nn.functional import linear

from thrust_pomdp.ppo.action_noise import row_uniforms
from thrust_pomdp.ppo.maskable.distributions import MaskableCategoricalDistribution
from thrust_pomdp.ppo.maskable.masks import Masks
from thrust_pomdp.ppo.maskable.policies import MaskableRecurrentActorCriticPolicy
from thrust_pomdp.ppo.prepared_step import Heads, WatchedStep, against_compiled_heads
from thrust_pomdp.recurrent.compiled import CompiledCategoricalHeads, check_shapes, load_kernels
from thrust_pomdp.recurrent.sequences import RNNStates

#: () -> the masks of the coming step, ``[n_envs, width]``, checked
NextMasks = Callable[[], Masks]


def make_masked_step(
    policy: MaskableRecurrentActorCriticPolicy, next_masks: NextMasks
) -> WatchedStep:
    """Return the fastest way to call ``policy.forward`` for one step, masks included.

    :param policy: as for :class:`thrust_pomdp.ppo.prepared_step.WatchedStep`
    :param next_masks: called once in each step
    """

    def step(
        obs: Any, states: RNNStates, episode_starts: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor, RNNStates]:
        with policy.masked_by(_to_tensor(next_masks(), episode_starts)):
            acted: tuple[th.Tensor, th.Tensor, th.Tensor, RNNStates] = policy(
                obs, states, episode_starts
            )
            return acted

    def heads(same: MaskableRecurrentActorCriticPolicy) -> Heads:
        return _make_masked_heads(same, next_masks)

    return WatchedStep(policy, heads, step, next_masks=next_masks)


def _make_masked_heads(policy: MaskableRecurrentActorCriticPolicy, next_masks: NextMasks) -> Heads:
    action_net, value_net, distribution = policy.action_net, policy.value_net, policy.action_dist
    assert isinstance(action_net, nn.Linear)
    assert isinstance(distribution, MaskableCategoricalDistribution)
    if against_compiled_heads(policy) is None:
        kernels = load_kernels()
        assert kernels is not None
        return CompiledMaskedHeads(
            kernels, action_net, value_net, distribution, row_uniforms, next_masks
        )
    pi_weights, vf_weights = ((net.weight, net.bias) for net in (action_net, value_net))

    def act(memory_pi: th.Tensor, memory_vf: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        values = linear(memory_vf, *vf_weights)
        masks = _to_tensor(next_masks(), memory_pi)
        masked = distribution.proba_distribution(linear(memory_pi, *pi_weights), masks)
        actions = masked.sample()
        return actions, values, masked.log_prob(actions)

    return act


def _to_tensor(masks: Masks, like: th.Tensor) -> th.Tensor:
    return th.from_numpy(masks).to(like.device)


class CompiledMaskedHeads(CompiledCategoricalHeads):
    """Linear heads of actor and critic, and the draw of an action that is allowed.

    :param kernels: the compiled loops
    :param action_net: the actor's head, with a bias; its weights must keep their memory
    :param value_net: the critic's head, likewise
    :param distribution: is told logits and masks of each step
    :param uniforms: draws a number from [0, 1) for each of so many rows, float64
    :param next_masks: called once in each step
    """

    def __init__(
        self,
        kernels: ModuleType,
        action_net: nn.Linear,
        value_net: nn.Linear,
        distribution: MaskableCategoricalDistribution,
        uniforms: Callable[[int], Any],
        next_masks: NextMasks,
    ) -> None:
        super().__init__(kernels, action_net, value_net, distribution, uniforms)
        self._next_masks = next_masks

    def _run(self, uniforms: Any, *arrays: Any) -> None:
        masks, logits = self._next_masks(), arrays[-1]
        check_shapes(action_masks=(masks, logits.shape))
        self._kernels.masked_categorical_heads(*self._views, masks, uniforms, *arrays)
        self._distribution.proba_distribution(th.from_numpy(logits), th.from_numpy(masks))

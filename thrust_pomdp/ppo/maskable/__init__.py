"""Action masks together with memory: the recurrent counterpart of ``sb3_contrib.MaskablePPO``."""

from thrust_pomdp.ppo.maskable.evaluation import MaskableEvalCallback, evaluate_policy
from thrust_pomdp.ppo.maskable.masks import get_action_masks, is_masking_supported
from thrust_pomdp.ppo.maskable.policies import (
    MaskableAsymmetricLstmPolicy,
    MaskableCnnLstmPolicy,
    MaskableMlpLstmPolicy,
    MaskableMultiInputLstmPolicy,
    MaskableRecurrentActorCriticPolicy,
)
from thrust_pomdp.ppo.maskable.ppo import MaskableRecurrentPPO

__all__ = [
    "MaskableAsymmetricLstmPolicy",
    "MaskableCnnLstmPolicy",
    "MaskableEvalCallback",
    "MaskableMlpLstmPolicy",
    "MaskableMultiInputLstmPolicy",
    "MaskableRecurrentActorCriticPolicy",
    "MaskableRecurrentPPO",
    "evaluate_policy",
    "get_action_masks",
    "is_masking_supported",
]

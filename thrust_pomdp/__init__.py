"""Environments that need memory, and a recurrent PPO for Stable-Baselines3 that is exact and fast.

Importing the package registers its environment ids and loads NumPy and Gymnasium only. What needs
torch and Stable-Baselines3 is imported when it is first used, so that environment workers do not
pay for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from thrust_pomdp.envs.registration import register_envs
from thrust_pomdp.moved import keep_old_names

if TYPE_CHECKING:
    from thrust_pomdp.analysis.trace import Trace, look_inside
    from thrust_pomdp.analysis.trace_figure import longest_burst, plot_burst
    from thrust_pomdp.checkpoint.training_checkpoint import TrainingCheckpoint
    from thrust_pomdp.deploy.stateful_actor import StatefulActor
    from thrust_pomdp.ppo.asymmetric_policy import AsymmetricLstmPolicy
    from thrust_pomdp.ppo.averaging import AverageWeights
    from thrust_pomdp.ppo.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
    from thrust_pomdp.ppo.maskable import (
        MaskableCnnLstmPolicy,
        MaskableMlpLstmPolicy,
        MaskableMultiInputLstmPolicy,
        MaskableRecurrentPPO,
    )
    from thrust_pomdp.ppo.policies import (
        CnnLstmPolicy,
        MlpLstmPolicy,
        MultiInputLstmPolicy,
        RecurrentActorCriticPolicy,
    )
    from thrust_pomdp.ppo.recurrent_ppo import RecurrentPPO
    from thrust_pomdp.ppo.sb3_contrib import from_sb3_contrib, to_sb3_contrib
    from thrust_pomdp.recurrent.sequences import RNNStates
    from thrust_pomdp.vec_env.gymnasium_vec_env import GymnasiumVecEnv
    from thrust_pomdp.vec_env.make import make_vec_env
    from thrust_pomdp.vec_env.normalize import VecNormalizeVisible
    from thrust_pomdp.vec_env.previous import VecPreviousAction, VecPreviousReward
    from thrust_pomdp.vec_env.privileged import VecPrivilegedInfo, VecUnprivileged
    from thrust_pomdp.wrappers import (
        ElementDropoutObservation,
        ExposeObservation,
        FlickerObservation,
        MaskObservation,
        NormalizeVisibleObservation,
        PreviousActionObservation,
        PreviousRewardObservation,
        StateObservation,
    )

__version__ = "0.2.0.dev0"

#: Public names and the modules they live in; loaded on first use.
_LAZY = {
    "AsymmetricLstmPolicy": "ppo.asymmetric_policy",
    "AverageWeights": "ppo.averaging",
    "CnnLstmPolicy": "ppo.policies",
    "ElementDropoutObservation": "wrappers",
    "ExposeObservation": "wrappers",
    "FlickerObservation": "wrappers",
    "GymnasiumVecEnv": "vec_env.gymnasium_vec_env",
    "MaskObservation": "wrappers",
    "MaskableCnnLstmPolicy": "ppo.maskable",
    "MaskableMlpLstmPolicy": "ppo.maskable",
    "MaskableMultiInputLstmPolicy": "ppo.maskable",
    "MaskableRecurrentPPO": "ppo.maskable",
    "MlpLstmPolicy": "ppo.policies",
    "MultiInputLstmPolicy": "ppo.policies",
    "NormalizeVisibleObservation": "wrappers",
    "PreviousActionObservation": "wrappers",
    "PreviousRewardObservation": "wrappers",
    "RNNStates": "recurrent.sequences",
    "RecurrentActorCriticPolicy": "ppo.policies",
    "RecurrentDictRolloutBuffer": "ppo.buffers",
    "RecurrentPPO": "ppo.recurrent_ppo",
    "RecurrentRolloutBuffer": "ppo.buffers",
    "StateObservation": "wrappers",
    "StatefulActor": "deploy.stateful_actor",
    "Trace": "analysis.trace",
    "TrainingCheckpoint": "checkpoint.training_checkpoint",
    "VecNormalizeVisible": "vec_env.normalize",
    "VecPreviousAction": "vec_env.previous",
    "VecPreviousReward": "vec_env.previous",
    "VecPrivilegedInfo": "vec_env.privileged",
    "VecUnprivileged": "vec_env.privileged",
    "from_sb3_contrib": "ppo.sb3_contrib",
    "longest_burst": "analysis.trace_figure",
    "look_inside": "analysis.trace",
    "make_vec_env": "vec_env.make",
    "plot_burst": "analysis.trace_figure",
    "to_sb3_contrib": "ppo.sb3_contrib",
}

__all__ = [
    "AsymmetricLstmPolicy",
    "AverageWeights",
    "CnnLstmPolicy",
    "ElementDropoutObservation",
    "ExposeObservation",
    "FlickerObservation",
    "GymnasiumVecEnv",
    "MaskObservation",
    "MaskableCnnLstmPolicy",
    "MaskableMlpLstmPolicy",
    "MaskableMultiInputLstmPolicy",
    "MaskableRecurrentPPO",
    "MlpLstmPolicy",
    "MultiInputLstmPolicy",
    "NormalizeVisibleObservation",
    "PreviousActionObservation",
    "PreviousRewardObservation",
    "RNNStates",
    "RecurrentActorCriticPolicy",
    "RecurrentDictRolloutBuffer",
    "RecurrentPPO",
    "RecurrentRolloutBuffer",
    "StateObservation",
    "StatefulActor",
    "Trace",
    "TrainingCheckpoint",
    "VecNormalizeVisible",
    "VecPreviousAction",
    "VecPreviousReward",
    "VecPrivilegedInfo",
    "VecUnprivileged",
    "from_sb3_contrib",
    "longest_burst",
    "look_inside",
    "make_vec_env",
    "plot_burst",
    "register_envs",
    "to_sb3_contrib",
]

keep_old_names()
register_envs()


# Not for type checkers, which would take any misspelt name for one that this finds.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            return getattr(importlib.import_module(f"thrust_pomdp.{_LAZY[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

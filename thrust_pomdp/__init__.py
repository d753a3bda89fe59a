"""Environments that need memory, and a recurrent PPO for Stable-Baselines3 that is exact and fast.

Importing the package registers its environment ids and loads NumPy and Gymnasium only. What needs
torch and Stable-Baselines3 is imported when it is first used, so that environment workers do not
pay for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from thrust_pomdp.registration import register_envs

if TYPE_CHECKING:
    from thrust_pomdp.acting import StatefulActor
    from thrust_pomdp.asymmetric import AsymmetricLstmPolicy
    from thrust_pomdp.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
    from thrust_pomdp.inside import Trace, look_inside
    from thrust_pomdp.inside_figure import longest_burst, plot_burst
    from thrust_pomdp.interop import from_sb3_contrib, to_sb3_contrib
    from thrust_pomdp.maskable import (
        MaskableCnnLstmPolicy,
        MaskableMlpLstmPolicy,
        MaskableMultiInputLstmPolicy,
        MaskableRecurrentPPO,
    )
    from thrust_pomdp.policies import (
        CnnLstmPolicy,
        MlpLstmPolicy,
        MultiInputLstmPolicy,
        RecurrentActorCriticPolicy,
    )
    from thrust_pomdp.ppo import RecurrentPPO
    from thrust_pomdp.recurrent.sequences import RNNStates
    from thrust_pomdp.vec.env import GymnasiumVecEnv
    from thrust_pomdp.vec.making import make_vec_env
    from thrust_pomdp.vec.normalize import VecNormalizeVisible
    from thrust_pomdp.vec.previous import VecPreviousAction, VecPreviousReward
    from thrust_pomdp.vec.privileged import VecPrivilegedInfo, VecUnprivileged
    from thrust_pomdp.wrappers import (
        ElementDropoutObservation,
        ExposeObservation,
        FlickerObservation,
        MaskObservation,
        NormalizeVisibleObservation,
        PreviousActionObservation,
        PreviousRewardObservation,
    )

__version__ = "0.1.0"

#: Public names and the modules they live in; loaded on first use.
_LAZY = {
    "AsymmetricLstmPolicy": "asymmetric",
    "CnnLstmPolicy": "policies",
    "ElementDropoutObservation": "wrappers",
    "ExposeObservation": "wrappers",
    "FlickerObservation": "wrappers",
    "GymnasiumVecEnv": "vec.env",
    "MaskObservation": "wrappers",
    "MaskableCnnLstmPolicy": "maskable",
    "MaskableMlpLstmPolicy": "maskable",
    "MaskableMultiInputLstmPolicy": "maskable",
    "MaskableRecurrentPPO": "maskable",
    "MlpLstmPolicy": "policies",
    "MultiInputLstmPolicy": "policies",
    "NormalizeVisibleObservation": "wrappers",
    "PreviousActionObservation": "wrappers",
    "PreviousRewardObservation": "wrappers",
    "RNNStates": "recurrent.sequences",
    "RecurrentActorCriticPolicy": "policies",
    "RecurrentDictRolloutBuffer": "buffers",
    "RecurrentPPO": "ppo",
    "RecurrentRolloutBuffer": "buffers",
    "StatefulActor": "acting",
    "Trace": "inside",
    "VecNormalizeVisible": "vec.normalize",
    "VecPreviousAction": "vec.previous",
    "VecPreviousReward": "vec.previous",
    "VecPrivilegedInfo": "vec.privileged",
    "VecUnprivileged": "vec.privileged",
    "from_sb3_contrib": "interop",
    "longest_burst": "inside_figure",
    "look_inside": "inside",
    "make_vec_env": "vec.making",
    "plot_burst": "inside_figure",
    "to_sb3_contrib": "interop",
}

__all__ = [
    "AsymmetricLstmPolicy",
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
    "StatefulActor",
    "Trace",
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

register_envs()


# Not for type checkers, which would take any misspelt name for one that this finds.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            return getattr(importlib.import_module(f"thrust_pomdp.{_LAZY[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The wrappers of :mod:`thrust_pomdp.wrappers` for vector environments (NumPy and Gymnasium only).

They go around any ``gymnasium.vector.VectorEnv`` and give, bit for bit, what Gymnasium's
``SyncVectorEnv`` of singly wrapped environments gives for the same seeds: observations, rewards,
flags and infos, in every auto-reset mode.
"""

from thrust_pomdp.wrappers.vector.blanking import ElementDropoutObservation, FlickerObservation
from thrust_pomdp.wrappers.vector.mask import MaskObservation
from thrust_pomdp.wrappers.vector.previous_action import PreviousActionObservation
from thrust_pomdp.wrappers.vector.previous_reward import PreviousRewardObservation

__all__ = [
    "ElementDropoutObservation",
    "FlickerObservation",
    "MaskObservation",
    "PreviousActionObservation",
    "PreviousRewardObservation",
]

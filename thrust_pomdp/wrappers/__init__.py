"""Imperfect sensors for any environment (NumPy and Gymnasium only).

Single environments are wrapped by the classes here, ``gymnasium.vector`` environments by those of
the same names in :mod:`thrust_pomdp.wrappers.vector`, which give the same bits many times faster
(``ExposeObservation``, ``StateObservation`` and the normaliser are for single ones only).

**Order**: what blanks, then the normaliser, then the previous action and reward, then a
stack of frames.

It imports the ground floor, ``envs``, NumPy and Gymnasium. Start reading in ``blanking.py`` and
``plan.py``, where what is blanked by which draws is decided; a new wrapper is a file here and, for
vectors, one in ``vector/``.
"""

from thrust_pomdp.wrappers.blanking import ElementDropoutObservation, FlickerObservation
from thrust_pomdp.wrappers.expose import ExposeObservation, StateObservation
from thrust_pomdp.wrappers.mask import MaskObservation
from thrust_pomdp.wrappers.normalize import NormalizeVisibleObservation
from thrust_pomdp.wrappers.previous_action import PreviousActionObservation
from thrust_pomdp.wrappers.previous_reward import PreviousRewardObservation

__all__ = [
    "ElementDropoutObservation",
    "ExposeObservation",
    "FlickerObservation",
    "MaskObservation",
    "NormalizeVisibleObservation",
    "PreviousActionObservation",
    "PreviousRewardObservation",
    "StateObservation",
]

"""The reference ladder: what is reached without memory, with little of it, and with all there is.

Scripted controllers of each class of information play an environment through its public interface;
what they reach is known before anything is trained. See ``docs/ladder.md``.

It imports the ground floor, ``envs``, ``wrappers`` and ``vec_env``, NumPy and Gymnasium. Start
reading in ``rungs.py``, then ``laws.py``, the controllers.
"""

from thrust_pomdp.reference.catalogue import controllers
from thrust_pomdp.reference.control_laws import Controller, RandomController
from thrust_pomdp.reference.episodes import play
from thrust_pomdp.reference.figures import LADDER, LADDERS, Ladder, stored_ladder
from thrust_pomdp.reference.rungs import Rung, ladder, measure, normalized

__all__ = [
    "LADDER",
    "LADDERS",
    "Controller",
    "Ladder",
    "RandomController",
    "Rung",
    "controllers",
    "ladder",
    "measure",
    "normalized",
    "play",
    "stored_ladder",
]

"""The reference ladder: what each kind of controller reaches on an environment.

Mean episode length, at most 500, of scripted controllers found by a search within a class of simple
laws (push right with probability ``sigmoid(b u)`` on visible frames, ``u`` linear in the
observation; 20,000 episodes). A figure of 500 is the maximum; any other is a lower bound for its
class of information, not a proof of the optimum, and a trained network of the same class may exceed
it a little.
"""

from __future__ import annotations

from typing import NamedTuple


class Rung(NamedTuple):
    """One rung of the ladder.

    :param controller: what the controller knows
    :param mean_length: mean episode length it reaches, in steps
    """

    controller: str
    mean_length: float


_RANDOM = Rung("random", 22.2)

#: Environment id, with its default arguments -> rungs from floor to ceiling.
LADDER: dict[str, tuple[Rung, ...]] = {
    "MaskedCartPole-v0": (
        _RANDOM,
        Rung("best memoryless found", 52.6),
        Rung("previous action only", 148.0),
        Rung("two frames", 500.0),
    ),
    "FlickeringCartPole-v0": (
        _RANDOM,
        Rung("best memoryless found", 208.0),
        Rung("previous action only", 497.0),
        Rung("exact model", 500.0),
    ),
    "BurstFlickeringCartPole-v0": (
        _RANDOM,
        Rung("best memoryless found", 105.8),
        Rung("previous action only", 478.3),
        Rung("exact model", 500.0),
    ),
    "MaskedFlickeringCartPole-v0": (
        _RANDOM,
        Rung("best memoryless found", 42.0),
        Rung("previous action only", 118.0),
        Rung("model observer", 500.0),
    ),
}

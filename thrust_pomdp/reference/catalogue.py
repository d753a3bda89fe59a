"""Which controllers there are for an environment."""

from __future__ import annotations

from typing import Any

from thrust_pomdp.reference.laws import Controller, RandomController
from thrust_pomdp.reference.tasks import LAWS, gains_for, law_maker, make_single, task_of


def controllers(env_id: str, seed: int | None = 0, **env_kwargs: Any) -> list[Controller]:
    """Return the scripted controllers of an environment, from the least informed to the most.

    >>> [controller.information for controller in controllers("FlickeringCartPole-v0")]
    ['nothing', 'memoryless', 'previous action', 'two frames', 'exact model']

    Gains come from a search. Where none was made for these arguments, the stored gains that do best
    here are taken; :attr:`Controller.source` tells which.

    :param env_id: an id of this package
    :param seed: of the controllers' random draws; None takes fresh entropy
    :param env_kwargs: arguments of the environment
    :raises ValueError: for an environment of another package
    """
    task = task_of(make_single(env_id, **env_kwargs))
    found: list[Controller] = [RandomController(2, seed)]
    for law in LAWS:
        gains, source = gains_for(env_id, task, law, **env_kwargs)
        controller = law_maker(task, law)(gains)
        controller.seed(seed)
        controller.source = source
        found.append(controller)
    return found

"""Which controllers there are for an environment."""

from __future__ import annotations

from typing import Any

from thrust_pomdp.envs.cartpole import SensedCartPoleEnv
from thrust_pomdp.envs.known_tasks import against_our_class, find_spec
from thrust_pomdp.envs.repeat_previous import RepeatPreviousEnv
from thrust_pomdp.envs.tmaze import TMazeEnv
from thrust_pomdp.reference.control_laws import Controller, RandomController
from thrust_pomdp.reference.episodes import make_single
from thrust_pomdp.reference.repeat_controllers import (
    AllCards,
    LastCard,
    PreviousAnswer,
    TwoCards,
)
from thrust_pomdp.reference.tasks import LAWS, gains_for, law_maker, task_of
from thrust_pomdp.reference.tmaze_controllers import (
    MemorylessInMaze,
    PreviousActionInMaze,
    Recaller,
    TwoFramesInMaze,
)


def controllers(env_id: str, seed: int | None = 0, **env_kwargs: Any) -> list[Controller]:
    """Return the scripted controllers of an environment, from the least informed to the most.

    >>> [controller.information for controller in controllers("FlickeringCartPole-v0")]
    ['nothing', 'memoryless', 'previous action', 'two frames', 'exact model']

    Gains come from a search. Where none was made for these arguments, the stored gains that do best
    here are taken; :attr:`~thrust_pomdp.reference.control_laws.Controller.source` tells which.

    :param env_id: an id of this package, or one of your own of its environments
    :param seed: of the controllers' random draws; None takes fresh entropy
    :param env_kwargs: arguments of the environment
    :raises ValueError: for an environment of another package, or one of this package that was
        wrapped, derived from or changed: these know the model of what was written
    """
    env: Any = make_single(env_id, **env_kwargs).unwrapped
    reason = against_our_class(find_spec(env_id))
    if reason is not None:
        raise ValueError(
            f"env_id must name an environment of this package, for others there are no scripted "
            f"controllers, got {env_id!r}: {reason}"
        )
    found: list[Controller] = [RandomController(int(env.action_space.n))]
    if isinstance(env, TMazeEnv):
        found += [MemorylessInMaze(), PreviousActionInMaze()]
        found += [TwoFramesInMaze(env.corridor_length), Recaller()]
    elif isinstance(env, RepeatPreviousEnv):
        task = env.k, env.num_decks
        found += [LastCard(*task), PreviousAnswer(env.k), TwoCards(*task), AllCards(*task)]
    else:
        found += _cartpole_controllers(env_id, env, **env_kwargs)
    for controller in found:
        controller.seed(seed)
    return found


def _cartpole_controllers(
    env_id: str, cart: SensedCartPoleEnv, **env_kwargs: Any
) -> list[Controller]:
    task, found = task_of(cart), []
    for law in LAWS:
        gains, source = gains_for(env_id, task, law, **env_kwargs)
        controller = law_maker(task, law)(gains)
        controller.source = source
        found.append(controller)
    return list(found)

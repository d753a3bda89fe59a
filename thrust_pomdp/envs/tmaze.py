"""T-mazes: a cue at the start tells which way to turn at the end of a corridor."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_count, check_flag, check_no_options
from thrust_pomdp.envs.tmaze_view import Scene, picture, text
from thrust_pomdp.stateful import Names, StatefulEnv
from thrust_pomdp.unmodified_classes import remember

Observation = NDArray[np.float32]
Info = dict[str, Any]

#: Cell that shows the cue; the corridor's other cells follow, the junction is number
#: ``corridor_length``.
CUE_CELL = 0

#: Where an active agent starts: it may pass the cue by.
CROSSROADS = -1


def cue_of(uniform: float | NDArray[np.float64]) -> Any:
    """Turn uniform numbers into cues, -1 or 1 with equal probability.

    A float takes one draw of the generator (an integer half of one), so that a vector of mazes can
    draw ahead.
    """
    return np.where(np.asarray(uniform) < 0.5, -1, 1)


@remember
class TMazeEnv(StatefulEnv, gym.Env[Observation, np.int64]):
    """A corridor whose end can only be passed well by an agent that remembers its start.

    ## Description

    The T-maze of B. Bakker ("Reinforcement Learning with Long Short-Term Memory", NIPS 2001),
    reduced to what is asked of memory. At the first frame a cue tells on which side of the far
    junction the goal lies. Then the agent walks down a corridor in which all cells look alike, and
    at the junction it turns left or right. The junction looks the same for both cues, and neither
    reward nor info tells of the cue before the turn, so a policy without memory takes the correct
    turn exactly half of the time, whatever it does.

    Unlike in Bakker's maze the agent walks on by itself: what is left to learn is to remember.

    ## Action space

    ``Discrete(2)``: 0 turns left, 1 turns right. An action matters at the junction only.

    ## Observation space

    ``Box`` of shape ``(3,)``, float32.

    | index | observation | values                                            |
    |-------|-------------|---------------------------------------------------|
    | 0     | cue         | -1 or 1 at the first frame of an episode, else 0  |
    | 1     | corridor    | 1 in the corridor, the first cell included, else 0 |
    | 2     | junction    | 1 at the junction, else 0                         |

    The frame returned after the turn is that of the junction once more.

    ## Reward

    At the turn 1 for the correct side and -1 for the other one: action 0 is correct after cue -1,
    action 1 after cue 1. 0 at all other steps. So a memoryless policy has a mean return of exactly
    0, an agent that remembers of 1; the share of correct turns is ``(1 + return) / 2``.

    ## Start and end

    Both cues are equally likely. An episode terminates after exactly ``corridor_length + 1`` steps
    and is never truncated: there is no time limit, unless one is given to ``gym.make``.

    ## Arguments

    :param corridor_length: steps from the cue to the junction, >= 1: for how many steps the cue is
        to be remembered
    :param expose_state: add the true state as ``info["state"]``, float32 ``[3]``: what is seen,
        with the cue in every cell; for critics that may know more than the actor
    :param render_mode: ``None``, ``"ansi"`` (text) or ``"rgb_array"``; both show where the goal is
    :raises ValueError: for a bad argument

    ``reset`` takes no options.

    ```python
    >>> import gymnasium as gym, thrust_pomdp
    >>> env = gym.make("TMaze-v0", corridor_length=2)
    >>> obs, _ = env.reset(seed=0)
    >>> obs.tolist()
    [1.0, 1.0, 0.0]
    >>> [env.step(1)[0].tolist() for _ in range(2)]
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    >>> env.step(1)[1:3]
    (1.0, True)

    ```

    ## Version history

    * v0: initial version
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's declaration)
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 4,
    }
    #: The cell in which an episode starts.
    first_cell = CUE_CELL
    _fixed_state: Names = ("corridor_length", "expose_state")

    def __init__(
        self,
        corridor_length: int = 10,
        render_mode: str | None = None,
        expose_state: bool = False,
    ) -> None:
        self.corridor_length = check_count("corridor_length", corridor_length)
        self.expose_state = check_flag("expose_state", expose_state)
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(
                f"render_mode must be None or one of {self.metadata['render_modes']}, "
                f"got {render_mode!r}"
            )
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(
            np.array([-1, 0, 0], dtype=np.float32), np.ones(3, dtype=np.float32)
        )
        # No cue, and behind the junction: before the first reset there is nothing to paint, and no
        # step to take.
        self._cue = 0
        self._cell = self.corridor_length + 1
        # The last turn, for the picture.
        self._turn: int | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start a new episode with a new cue.

        :raises ValueError: for options, of which there are none
        """
        check_no_options(options, "a T-maze")
        super().reset(seed=seed)
        self._cue = int(cue_of(self.np_random.random()))
        self._cell, self._turn = self.first_cell, None
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Walk on by one cell or, at the junction, turn.

        :raises ValueError: for an action that is neither 0 nor 1
        """
        if not self.action_space.contains(action):
            raise ValueError(f"action must be 0 or 1, got {action!r}")
        if self._cell > self.corridor_length:
            raise gym.error.ResetNeeded("call reset before the first step of an episode")
        at_junction = self._cell == self.corridor_length
        reward = 0.0
        if at_junction:
            self._turn = int(action)
            reward = 1.0 if (action == 1) == (self._cue == 1) else -1.0
        self._cell += int(stride(self._cell, action))
        return self._observe(), reward, at_junction, False, self._info()

    def _observe(self) -> Observation:
        return observe(self._cell, self._cue, self.corridor_length)

    def _info(self) -> Info:
        if not self.expose_state:
            return {}
        return {"state": state_of(self._cell, self._cue, self.corridor_length)}

    def render(self) -> Any:
        """Draw the maze from above; no random number is drawn.

        :return: text, or an array ``[height, width, 3]`` uint8; None without a render mode
        """
        if self.render_mode is None:
            gym.logger.warn(
                "render was called without a render_mode; give one to gym.make, for instance "
                "render_mode='rgb_array'"
            )
            return None
        if self._cue == 0:
            raise gym.error.ResetNeeded("call reset before render")
        scene = Scene(self.corridor_length, self.first_cell, self._cell, self._cue, self._turn)
        return text(scene) if self.render_mode == "ansi" else picture(scene)


@remember
class ActiveTMazeEnv(TMazeEnv):
    """A T-maze in which the agent must first step aside to see the cue that it has to remember.

    ## Description

    :class:`TMazeEnv` with the cue one step off the way (after the active T-maze of T. Ni et al.,
    "When Do Transformers Shine in RL?", NeurIPS 2023). The agent starts at a crossroads that looks
    like the corridor. There it walks on, or steps aside into the cell with the cue, from where the
    way leads back into the corridor. So it has to learn to look before there is anything to
    remember, and that looking is worth anything shows only at the far junction.

    A policy that does not look knows nothing of the cue, one that looks and has no memory forgot
    it: both take the correct turn exactly half of the time.

    ## Action space

    ``Discrete(2)``. At the crossroads 0 walks on and 1 steps aside to the cue; at the junction 0
    turns left and 1 right; elsewhere an action does not matter.

    ## Observation space

    ``Box`` of shape ``(3,)``, float32.

    | index | observation | values                                                        |
    |-------|-------------|---------------------------------------------------------------|
    | 0     | cue         | -1 or 1 in the cell with the cue, else 0                      |
    | 1     | corridor    | 1 in the corridor, at the crossroads and at the cue, else 0   |
    | 2     | junction    | 1 at the junction, else 0                                     |

    The frame returned after the turn is that of the junction once more.

    ## Reward

    At the turn 1 for the correct side and -1 for the other one: action 0 is correct after cue -1,
    action 1 after cue 1. 0 at all other steps. Looking costs one step and nothing else: the best
    return is 1 with a look, discounted one step more, and 0 on average without.

    ## Start and end

    Both cues are equally likely; the cue is drawn whether the agent looks or not. An episode
    terminates after ``corridor_length + 1`` steps, or one more for an agent that looked: the agent
    walks on by itself, so nobody runs out of time. It is never truncated: there is no time limit,
    unless one is given to ``gym.make``.

    ## Arguments

    :param corridor_length: steps from the cue, or from the crossroads, to the junction, >= 1
    :param expose_state: add the true state as ``info["state"]``, float32 ``[3]``: what is seen,
        with the cue in every cell; for critics that may know more than the actor
    :param render_mode: ``None``, ``"ansi"`` (text) or ``"rgb_array"``; both show where the goal is
    :raises ValueError: for a bad argument

    ``reset`` takes no options.

    ```python
    >>> import gymnasium as gym, thrust_pomdp
    >>> env = gym.make("ActiveTMaze-v0", corridor_length=1)
    >>> env.reset(seed=0)[0].tolist()
    [0.0, 1.0, 0.0]
    >>> [env.step(1)[0].tolist() for _ in range(2)]  # look, and back into the corridor
    [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    >>> env.step(1)[1:3]
    (1.0, True)

    ```

    ## Version history

    * v0: initial version
    """

    first_cell = CROSSROADS


def stride(cell: Any, action: Any) -> Any:
    """Return by how many cells an action leads on: from the crossroads 0 leads past the cue."""
    return 1 + ((cell == CROSSROADS) & (action == 0))


def observe(cell: Any, cue: Any, corridor_length: int) -> Observation:
    """Return what is seen in some cells, ``[*cells, 3]`` float32.

    Never all zeros, which a normaliser with ``zero_is_blank=True`` would take for a blank.

    >>> observe(np.array([0, 1, 2]), cue=-1, corridor_length=2).tolist()
    [[-1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]

    :param cell: numbers of the cells; behind the junction still the junction is seen
    :param cue: -1 or 1
    :param corridor_length: number of the junction's cell
    """
    obs = np.empty((*np.shape(cell), 3), dtype=np.float32)
    obs[..., 0] = (cell == CUE_CELL) * cue
    obs[..., 1] = cell < corridor_length
    obs[..., 2] = cell >= corridor_length
    return obs


def state_of(cell: Any, cue: Any, corridor_length: int) -> Observation:
    """Return what would be seen if the cue were everywhere, ``[*cells, 3]`` float32."""
    state = observe(cell, cue, corridor_length)
    state[..., 0] = cue
    return state

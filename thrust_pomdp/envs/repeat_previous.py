"""Cards dealt one by one, of which an earlier one's suit is to be told."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from thrust_pomdp.arguments import check_count, check_flag, check_no_options
from thrust_pomdp.envs.repeat_previous_view import Scene, picture, text
from thrust_pomdp.stateful import Names, StatefulEnv
from thrust_pomdp.unmodified_classes import remember

Observation = NDArray[np.float32]
Info = dict[str, Any]

#: Suits of a deck, and its cards of each.
N_SUITS, CARDS_PER_SUIT = 4, 13

#: What is seen of a suit.
_FRAMES = np.eye(N_SUITS, dtype=np.float32)


@remember
class RepeatPreviousEnv(StatefulEnv, gym.Env[Observation, np.int64]):
    """Cards are dealt one by one, and the suit of the k-th latest one is to be told.

    ## Description

    POPGym's RepeatPrevious (S. Morad et al., "POPGym: Benchmarking Partially Observable
    Reinforcement Learning", ICLR 2023). Decks of 52 cards are shuffled together, and at every step
    the next card is shown. The agent names the suit of the k-th latest card, the one on show being
    the first: it must keep ``k`` suits in order, and replace one at each step. Nothing the agent
    does changes what comes.

    It deals the cards that POPGym 1.0.7 deals for the same seed, and pays and ends as it does. Two
    things are told in another form: a suit is shown as one of four numbers being 1, where POPGym
    has ``Discrete(4)`` (of which Stable-Baselines3 makes these numbers), and ``k`` below 1 is
    refused, for which POPGym asks for another card.

    ## Action space

    ``Discrete(4)``: the suit, 0 spades, 1 diamonds, 2 clubs, 3 hearts.

    ## Observation space

    ``Box`` of shape ``(4,)``, float32; the one of the card on show is 1.

    | index | observation | values                                   |
    |-------|-------------|------------------------------------------|
    | 0     | spades      | 1 if the card on show is a spade, else 0 |
    | 1     | diamonds    | 1 if it is a diamond, else 0             |
    | 2     | clubs       | 1 if it is a club, else 0                |
    | 3     | hearts      | 1 if it is a heart, else 0               |

    ## Reward

    ``1 / (52 num_decks - k)`` for the right suit and minus that for a wrong one, so that the return
    is between -1 and 1; 0 as long as fewer than ``k`` cards were dealt.

    Cards dealt are gone, so the suits seen lately are a little less likely to be the answer: who
    sees the last ``n`` cards only, ``n < k``, does best to name the suit least seen among them. For
    ``n = 1`` the answer is right in 13 of 51 cases (one deck), a return of -0.490.

    ## Start and end

    A freshly shuffled pack. An episode terminates after exactly ``52 num_decks - 1`` steps, when
    the last card is dealt, and is never truncated: there is no time limit, unless one is given to
    ``gym.make``.

    ## Arguments

    :param num_decks: decks of 52 cards that are shuffled together, >= 1
    :param k: which of the latest cards to name; 1 is the one on show, ``num_decks * 52 - 1`` the
        most
    :param expose_state: add the true state as ``info["state"]``, float32 ``[8]``: the card on show
        and the one that is asked for, zeros where none is; for critics that may know more than the
        actor
    :param render_mode: ``None``, ``"ansi"`` (text) or ``"rgb_array"``; both show what is asked
    :raises ValueError: for a bad argument

    ``reset`` takes no options.

    ```python
    >>> import gymnasium as gym, thrust_pomdp
    >>> env = gym.make("POPGymRepeatPreviousEasy-v0", k=2)
    >>> obs, _ = env.reset(seed=0)
    >>> int(obs.argmax()), env.step(0)[1]  # hearts; with one card nothing is asked yet
    (3, 0.0)
    >>> env.step(3)[1] == 1 / 50  # the card before the one on show
    True

    ```

    ## Version history

    * v0: initial version
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium's declaration)
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 4,
    }
    _fixed_state: Names = ("num_decks", "k", "reward_scale", "expose_state")

    def __init__(
        self,
        num_decks: int = 1,
        k: int = 4,
        render_mode: str | None = None,
        expose_state: bool = False,
    ) -> None:
        self.expose_state = check_flag("expose_state", expose_state)
        self.num_decks = check_count("num_decks", num_decks)
        n_cards = N_SUITS * CARDS_PER_SUIT * self.num_decks
        self.k = check_count("k", k)
        if self.k >= n_cards:
            raise ValueError(f"k must be less than the {n_cards} cards that there are, got {k}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(
                f"render_mode must be None or one of {self.metadata['render_modes']}, "
                f"got {render_mode!r}"
            )
        self.render_mode = render_mode
        #: What a right answer pays.
        self.reward_scale = 1 / (n_cards - self.k)
        self.action_space = spaces.Discrete(N_SUITS)
        self.observation_space = spaces.Box(0.0, 1.0, (N_SUITS,), np.float32)
        #: The suits in the order of dealing, ``[n_cards]``, and how many are dealt.
        self._suits = np.zeros(n_cards, dtype=np.int64)
        self._n_dealt = 0
        # The last answer, for the picture.
        self._answer: int | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Shuffle, and deal the first card.

        :raises ValueError: for options, of which there are none
        """
        check_no_options(options, "a game of cards")
        super().reset(seed=seed)
        self._suits = shuffled(self.np_random, len(self._suits))
        self._n_dealt, self._answer = 1, None
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, Info]:
        """Take an answer, and deal the next card.

        :raises ValueError: for an action other than 0 to 3
        """
        if not self.action_space.contains(action):
            raise ValueError(f"action must be 0, 1, 2 or 3, got {action!r}")
        n_cards, n_dealt = len(self._suits), self._n_dealt
        if n_dealt in (0, n_cards):
            raise gym.error.ResetNeeded("call reset before the first step of an episode")
        reward, self._answer = 0.0, None
        if n_dealt >= self.k:
            self._answer = int(action)
            right = self._answer == self._suits[n_dealt - self.k]
            reward = self.reward_scale if right else -self.reward_scale
        self._n_dealt += 1
        return self._observe(), reward, self._n_dealt == n_cards, False, self._info()

    def _observe(self) -> Observation:
        obs: Observation = _FRAMES[self._suits[self._n_dealt - 1]].copy()
        return obs

    def _info(self) -> Info:
        if not self.expose_state:
            return {}
        dealt = np.array([self._n_dealt])
        return {"state": states_of(self._suits[None], dealt, self.k)[0]}

    def render(self) -> Any:
        """Draw the latest cards, what is asked, and the last answer; no random number is drawn.

        :return: text, or an array ``[height, width, 3]`` uint8; None without a render mode
        """
        if self.render_mode is None:
            gym.logger.warn(
                "render was called without a render_mode; give one to gym.make, for instance "
                "render_mode='rgb_array'"
            )
            return None
        if self._n_dealt == 0:
            raise gym.error.ResetNeeded("call reset before render")
        scene = Scene(self._suits[: self._n_dealt].tolist(), self.k, self._answer)
        return text(scene) if self.render_mode == "ansi" else picture(scene)


def shuffled(rng: np.random.Generator, n_cards: int) -> NDArray[np.int64]:
    """Shuffle a pack as POPGym does, and return the suits in the order of dealing, ``[n_cards]``.

    Card number ``c`` is of suit ``c % 4``, and the pack is dealt from its end.
    """
    cards = np.arange(n_cards)
    rng.shuffle(cards)
    return cards[::-1] % N_SUITS


def frames_of(suits: NDArray[np.int64]) -> Observation:
    """Return what is seen of some cards, ``[n, 4]`` float32, a fresh array.

    >>> frames_of(np.array([2])).tolist()
    [[0.0, 0.0, 1.0, 0.0]]
    """
    return _FRAMES.take(suits, axis=0)


def states_of(suits: NDArray[np.int64], n_dealt: NDArray[np.int64], k: int) -> NDArray[np.float32]:
    """Return the card on show and the one that is asked for, zeros where none is, ``[n, 8]``.

    >>> states_of(np.array([[2, 3, 1]]), np.array([2]), k=2).tolist()
    [[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]]

    :param suits: in the order of dealing, ``[n, n_cards]``
    :param n_dealt: how many are dealt, ``[n]``
    :param k: which of the latest cards is asked for
    """
    rows = np.arange(len(suits))
    asked = frames_of(suits[rows, n_dealt - k])
    asked[n_dealt < k] = 0.0
    return np.concatenate([frames_of(suits[rows, n_dealt - 1]), asked], axis=1)

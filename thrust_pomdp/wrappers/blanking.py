"""Sensors that drop frames, keys or single components of a single environment's observation."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from thrust_pomdp.envs.flicker import blanking_layers
from thrust_pomdp.envs.rendering import STRIP_FRAMES, paint_sensor
from thrust_pomdp.stateful import Names
from thrust_pomdp.wrappers.blank_flags import union_flags
from thrust_pomdp.wrappers.blank_symbols import observation_space_of
from thrust_pomdp.wrappers.blanking_plan import BlankingPlan, as_json, dropout_plan, flicker_plan
from thrust_pomdp.wrappers.layer import Layer


class BlankingObservation(Layer):
    """Blanks an environment's observations by a plan; base of the two wrappers below.

    :param env: the environment
    :param plan: what is blanked, how often and by which draws
    """

    _no_state: Names = ("_plan", "_blanks", "_layout", "_painted")
    _fixed_state: Names = ("n_blanking_layers",)

    def __init__(self, env: gym.Env[Any, Any], plan: BlankingPlan) -> None:
        gym.Wrapper.__init__(self, env)
        depth = blanking_layers(env)
        #: How many layers blank, from here inwards; each draws from a stream of its own.
        self.n_blanking_layers = depth + 1
        self._plan, self._process = plan, plan.process(depth)
        self._blanks, self._layout = plan.blanks, plan.layout
        # Whether the sensor showed nothing at the latest frames of the episode, for the picture.
        self._blind: deque[bool] = deque(maxlen=STRIP_FRAMES)
        self._painted = env.render_mode is not None
        if self._blanks.space is not env.observation_space:
            self.observation_space = self._blanks.space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; a seed restarts the blanking stream too, no seed continues it."""
        obs, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            self._process.seed(seed)
        self._blind.clear()
        return self._show(obs, info, self._process.first_frame())

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and look at it through the sensor."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        shown, told = self._show(obs, info, self._process.next_frame())
        return shown, reward, terminated, truncated, told

    def _show(self, obs: Any, info: dict[str, Any], drawn: Any) -> tuple[Any, dict[str, Any]]:
        flags = self._layout.flags(drawn)
        told = union_flags(info.get("blanked"), flags, self.env.observation_space)
        if self._painted:
            self._blind.append(_shows_nothing(told))
        # In a new dict: one that the environment hands out again would tell of the frame before.
        return self._blanks.show(obs, flags), {**info, "blanked": told}

    def render(self) -> Any:
        """Paint the environment, faded and framed while the sensor shows nothing.

        Below lie the latest frames, hollow where they showed something and solid where they did
        not. Pictures only: what opens a window of its own shows the truth; to watch through the
        sensor put :class:`gymnasium.wrappers.HumanRendering` around this wrapper.
        """
        picture = self.env.render()
        if self._blind and isinstance(picture, np.ndarray) and picture.ndim == 3:
            return paint_sensor(picture, list(self._blind))
        return picture


def _shows_nothing(flags: Any) -> bool:
    """Tell whether all that a sensor can blank was blanked."""
    if isinstance(flags, Mapping):
        return all(_shows_nothing(flag) for flag in flags.values())
    return bool(np.all(flags))


class FlickerObservation(BlankingObservation):
    """A sensor that drops whole frames of any environment's observation.

    Frames are replaced by zeros with probability ``flicker_prob``, independently (M. Hausknecht and
    P. Stone, "Deep Recurrent Q-Learning for Partially Observable MDPs", 2015) or, with
    ``burst_len``, in runs of blank frames; see :class:`~thrust_pomdp.envs.flicker.FlickerLaw`.

    **Spaces.** ``Box`` (vectors, images), ``Discrete``, ``MultiDiscrete``, ``MultiBinary``, and
    ``Dict`` of these. Where 0 is a real value like any other, blank is a symbol of its own and the
    space grows by it: a ``Discrete(n)`` becomes a ``Discrete(n + 1)`` whose last value means blank,
    entries of a ``MultiDiscrete`` likewise, and a ``MultiBinary`` becomes a ``MultiDiscrete`` of
    0, 1 and 2 = blank (one of several axes a ``Box`` of these numbers, which networks take). Layers
    on one another add a symbol each.

    **Flags.** ``info["blanked"]`` tells on ``reset`` and ``step`` whether the frame was blank: a
    bool; where ``keys`` or ``separately`` are given, a dict of bools. What layers further in have
    blanked is in it.

    **Stream.** An environment seeded with ``s`` draws one uniform number per frame, with
    ``separately`` one for each of the ``K`` keys: the ``j``-th key, in the order of the observation
    space, takes number ``f * K + j`` for frame ``f``, the frames that ``reset`` returns counted.
    The stream is a pure function of ``s`` and of how many layers blank below this one; the
    environment's own generator is never touched. ``FlickerObservation(gym.make("CartPole-v1"))``
    equals ``FlickeringCartPole-v0`` bit for bit. ``reset()`` without a seed continues it.

    .. warning::
        Put normalisers and whatever tells the agent something about itself, such as its last
        action, outside of it: inside, it would be blanked with the rest.

    >>> import gymnasium as gym
    >>> env = FlickerObservation(gym.make("CartPole-v1"), flicker_prob=1.0)
    >>> obs, info = env.reset(seed=0)
    >>> obs.tolist(), info["blanked"]
    ([0.0, 0.0, 0.0, 0.0], True)

    :param env: the environment
    :param flicker_prob: stationary share of blank frames, in [0, 1]
    :param burst_len: mean length of a run of blank frames, >= 1; None blanks each frame
        independently of the others
    :param keys: keys of a Dict observation to blank; all by default
    :param separately: blank each key of a Dict observation by its own draw, not all together
    :param blank_value: what a blank Box shows instead of zeros: a number or an array within its
        bounds; for Dict observations a mapping from keys to these will do too
    :raises ValueError: for probabilities outside [0, 1], a burst that cannot exist, keys that are
        not there, and spaces that cannot be blanked
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        flicker_prob: float = 0.5,
        burst_len: float | None = None,
        keys: Sequence[str] | None = None,
        separately: bool = False,
        blank_value: Any = None,
    ) -> None:
        space = observation_space_of(env)
        plan = flicker_plan(space, flicker_prob, burst_len, keys, separately, blank_value)
        gym.utils.RecordConstructorArgs.__init__(
            self,
            flicker_prob=plan.law.flicker_prob,
            burst_len=plan.law.burst_len,
            keys=as_json(keys),
            separately=bool(separately),
            blank_value=as_json(blank_value),
        )
        super().__init__(env, plan)


class ElementDropoutObservation(BlankingObservation):
    """Sensors that fail one by one: each component of the observation is blank by its own draw.

    Components are blank with probability ``dropout_prob``, independently of one another and of
    other frames. What a blank component shows, and which spaces can be blanked, is as for
    :class:`FlickerObservation`; each entry of a ``MultiDiscrete`` or ``MultiBinary`` is a
    component, a ``Discrete`` number is one.

    **Flags.** ``info["blanked"]`` is a bool array of the observation's shape, new for each frame
    (a bool for a ``Discrete`` number); for Dict observations a dict of these.

    **Stream.** The ``j``-th of ``n`` components takes number ``f * n + j`` for frame ``f``, in C
    order, key after key in the order of the observation space.

    >>> import gymnasium as gym
    >>> env = ElementDropoutObservation(gym.make("CartPole-v1"), dropout_prob=1.0)
    >>> env.reset(seed=0)[1]["blanked"].tolist()
    [True, True, True, True]

    :param env: the environment
    :param dropout_prob: share of blank components, in [0, 1]
    :param keys: keys of a Dict observation whose components are blanked; all by default
    :param blank_value: what a blank component of a Box shows instead of 0, as for
        :class:`FlickerObservation`
    :raises ValueError: for probabilities outside [0, 1], keys that are not there, and spaces that
        cannot be blanked
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        dropout_prob: float = 0.5,
        keys: Sequence[str] | None = None,
        blank_value: Any = None,
    ) -> None:
        plan = dropout_plan(observation_space_of(env), dropout_prob, keys, blank_value)
        gym.utils.RecordConstructorArgs.__init__(
            self,
            dropout_prob=plan.law.flicker_prob,
            keys=as_json(keys),
            blank_value=as_json(blank_value),
        )
        super().__init__(env, plan)

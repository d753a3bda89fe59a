"""Whether ``info["blanked"]`` tells of the frame that is shown, where wrappers lie in between.

What blanks tells of the frame as it was there. A wrapper further out that stacks frames, delays
them or adds something shows another one, and leaves the flag: a normaliser would then erase what
is visible and count blanks for data. Here is known which wrappers do that (NumPy and Gymnasium
only), and how to notice it of those of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorActionWrapper, VectorRewardWrapper, VectorWrapper
from numpy.typing import NDArray

from thrust_pomdp.stateful import Names, Stateful
from thrust_pomdp.wrappers.blank_flags import spread
from thrust_pomdp.wrappers.visible_statistics import Mask

#: Attribute by which a wrapper (class or object) says that the flags it passes on are of the
#: frames that it shows.
DECLARED = "flags_are_of_shown_frames"

_STACKS = "shows several frames at once"
_PIXELS = "adds a picture, which nothing blanks"
_TIME = "adds the time, which nothing blanks"
_MAX = "shows the maximum of two frames"

#: What shows other frames than the flags tell of, by package and name (of vector wrappers too).
_HARMFUL = {
    ("gymnasium", "FrameStackObservation"): _STACKS,
    ("gymnasium", "DelayObservation"): "shows an earlier frame",
    ("gymnasium", "TimeAwareObservation"): _TIME,
    ("gymnasium", "MaxAndSkipObservation"): _MAX,
    ("gymnasium", "AtariPreprocessing"): "shows the game's screen, whatever was blanked",
    ("gymnasium", "AddRenderObservation"): _PIXELS,
    ("stable_baselines3", "MaxAndSkipEnv"): _MAX,
    ("stable_baselines3", "VecFrameStack"): _STACKS,
    ("sb3_contrib", "TimeFeatureWrapper"): _TIME,
}

#: What leaves observations as they are, beside what can be seen to do so.
_ONLOOKERS = {
    "gymnasium": {
        "Autoreset", "HumanRendering", "NormalizeReward", "OrderEnforcing", "PassiveEnvChecker",
        "RecordEpisodeStatistics", "RecordVideo", "RenderCollection", "RepeatAction",
        "StickyAction", "TimeLimit", "VectorizeTransformAction", "VectorizeTransformReward",
    },
    "stable_baselines3": {
        "ClipRewardEnv", "EpisodicLifeEnv", "Monitor", "NoopResetEnv", "StickyActionEnv",
        "VecCheckNan", "VecMonitor", "VecVideoRecorder",
    },
    "thrust_pomdp": {"ExposeObservation"},
}  # fmt: skip

#: What shows a function of the frame of which the flags tell.
_FUNCTIONS = {
    "gymnasium": {
        "AddWhiteNoise", "DtypeObservation", "FilterObservation", "FlattenObservation",
        "GrayscaleObservation", "NormalizeObservation", "ObstructView", "RescaleObservation",
        "ReshapeObservation", "ResizeObservation",
    },
    "stable_baselines3": {"VecExtractDictObs", "VecNormalize", "VecTransposeImage", "WarpFrame"},
}  # fmt: skip

#: Of these what they add is in keys of its own, which may be left out of normalising.
_ADDS_KEYS = (_TIME, _PIXELS)
#: Keys that they give an observation that was no Dict.
_RENAMED = {"obs", "state"}

#: What changes an array's shape only, in C order, so that flags of components can follow.
_RESHAPES = {"FlattenObservation", "ReshapeObservation"}
#: What moves or merges components.
_MOVES = {"GrayscaleObservation", "ResizeObservation", "VecTransposeImage", "WarpFrame"}

_STEPS = (gym.Wrapper, gym.ActionWrapper, gym.RewardWrapper,
          VectorWrapper, VectorActionWrapper, VectorRewardWrapper)  # fmt: skip


class FramePath(NamedTuple):
    """What lies between what is shown and what tells flags, for one environment.

    :param n_blanking: layers of this package that blank, in all
    :param blanking: name of the innermost
    :param harmful: the first wrapper that shows other frames, and what it does, if nothing unknown
        lies further out
    :param unknown: the first wrapper of which nothing is known, if nothing harmful does
    :param reshapes: whether an array's shape is changed, and nothing else that flags must follow
    """

    n_blanking: int = 0
    blanking: str = ""
    harmful: tuple[str, str] | None = None
    unknown: str | None = None
    reshapes: bool = False


def layers_inwards(env: Any) -> Iterator[Any]:
    """Go through an environment's wrappers, single or vector, and end with the environment."""
    while isinstance(env, (gym.Wrapper, VectorWrapper)):
        yield env
        env = env.env
    yield env


def path_of(
    layers: Sequence[Any], keys: Collection[str] | None = None, n_hidden: int = 0
) -> FramePath:
    """Look at the layers of one environment.

    :param layers: from the outside in; the last is the environment
    :param keys: keys of a Dict observation to which flags are applied; None for all
    :param n_hidden: layers of this package that blank inside of an environment that cannot be
        looked into
    """
    blanking = [idx for idx, layer in enumerate(layers) if n_blanking_at(layer)]
    between = layers[: blanking[-1]] if blanking else layers[:-1]
    harmful, unknown = _first_of_note(between, keys)
    if not blanking and n_hidden and not (harmful or unknown):
        unknown = f"what is inside of {type(layers[-1]).__name__}"
    names = {type(layer).__name__ for layer in between}
    return FramePath(
        n_blanking_at(layers[blanking[0]]) if blanking else n_hidden,
        type(layers[blanking[-1]]).__name__ if blanking else "what blanks",
        harmful,
        unknown,
        bool(names & _RESHAPES) and not names & _MOVES,
    )


def n_blanking_at(layer: Any) -> int:
    """Return how many layers of this package blank from one inwards, if it is one of them."""
    is_one = "n_blanking_layers" in vars(layer) or hasattr(type(layer), "n_blanking_layers")
    return int(layer.n_blanking_layers) if is_one else 0


def _first_of_note(
    between: Sequence[Any], keys: Collection[str] | None
) -> tuple[tuple[str, str] | None, str | None]:
    for layer in between:
        if n_blanking_at(layer) or getattr(layer, DECLARED, False):
            continue
        harm = _harm(layer, keys)
        if harm is not None:
            return (type(layer).__name__, harm), None
        if not _is_harmless(layer):
            return None, type(layer).__name__
    return None, None


def _harm(layer: Any, keys: Collection[str] | None) -> str | None:
    """Tell what a wrapper does that makes flags wrong; None for what is not known to do that."""
    for kind in type(layer).__mro__:
        harm = _HARMFUL.get((kind.__module__.partition(".")[0], kind.__name__))
        if harm in _ADDS_KEYS and keys is not None and not _added(layer) & set(keys):
            return None
        if harm is not None:
            return harm
    return None


def _added(layer: Any) -> set[str]:
    """Name the keys that a wrapper adds to an observation."""
    outside, inside = layer.observation_space, layer.env.observation_space
    if not isinstance(outside, spaces.Dict):
        return set()
    return set(outside) - (set(inside) if isinstance(inside, spaces.Dict) else _RENAMED)


def _is_harmless(layer: Any) -> bool:
    package, name = _name_of(layer)
    return (
        package == "thrust_pomdp"
        or name in _FUNCTIONS.get(package, ())
        or leaves_observations(layer)
    )


def leaves_observations(layer: Any) -> bool:
    """Tell whether a wrapper is known to show what is inside as it is."""
    package, name = _name_of(layer)
    # Some override nothing that observations and infos pass through.
    kind = type(layer)
    return name in _ONLOOKERS.get(package, ()) or any(
        getattr(kind, "step", None) is plain.step and getattr(kind, "reset", None) is plain.reset
        for plain in _STEPS
    )


def _name_of(layer: Any) -> tuple[str, str]:
    """Return the package and name of a class; one derived from a known one may do anything."""
    kind = type(layer)
    return kind.__module__.partition(".")[0], kind.__name__


class FrameOrder(Stateful):
    """Refuses flags that tell of other frames than are shown, at once or as soon as it shows.

    :param paths: of each environment
    :param normalizer: the name of what applies the flags
    :raises ValueError: naming the wrapper, the reason and the right order
    """

    _no_state: Names = (
        *("_paths", "_normalizer", "_reshapes", "_harmed", "_untrusted", "_watched", "is_idle"),
    )

    def __init__(self, paths: Sequence[FramePath], normalizer: str) -> None:
        self._paths, self._normalizer = paths, normalizer
        for path in paths:
            if path.harmful is not None and path.n_blanking:
                raise ValueError(self._wrong_order(path))
        self._reshapes = any(path.reshapes for path in paths)
        self._harmed = [idx for idx, path in enumerate(paths) if path.harmful is not None]
        self._untrusted = [
            idx for idx, path in enumerate(paths) if path.unknown is not None and path.n_blanking
        ]
        # Several layers may show several values for blank.
        self._watched = [idx for idx in self._untrusted if paths[idx].n_blanking == 1]
        #: Whether there is nothing to check or to bring into shape.
        self.is_idle = not (self._reshapes or self._harmed or self._untrusted)
        #: What each environment shows where it is flagged, and where that is known.
        self._shown: dict[str | None, tuple[NDArray[Any], NDArray[np.bool_]]] = {}

    def carried(self, flags: Sequence[Any], frames: Any) -> Sequence[Any]:
        """Bring flags of components into the shape of their frames, ``[n, *shape]``."""
        if not self._reshapes or isinstance(frames, dict):
            return flags
        shape, size = frames.shape[1:], frames[0].size
        return [
            flag.reshape(shape) if isinstance(flag, np.ndarray) and flag.size == size > 1 else flag
            for flag in flags
        ]

    def check_flags(self, flags: Sequence[Any], may_lack: bool) -> None:
        """Refuse flags that came through what shows other frames, and flags that were lost.

        :param flags: one for each environment
        :param may_lack: whether it has been said what blanks look like without flags
        :raises ValueError: naming what is in between
        """
        for idx in self._harmed:
            if flags[idx] is not None:
                raise ValueError(self._wrong_order(self._paths[idx]))
        for idx in [] if may_lack else self._untrusted:
            if flags[idx] is None:
                path = self._paths[idx]
                raise ValueError(
                    f"info['blanked'] of {path.blanking} must reach {self._normalizer}, and "
                    f"{path.unknown} does not pass it on: it must return the infos that it gets, "
                    "those of resets too"
                )

    def check_frames(self, key: str | None, frames: Any, mask: Mask) -> None:
        """Refuse flagged frames that differ from one another: they are not what was blanked.

        :param key: of a Dict observation
        :param frames: ``[n_envs, *shape]``
        :param mask: of what is flagged
        :raises ValueError: naming what is in between
        """
        rows = self._watched
        if not rows or not mask[rows].any():
            return
        frames = np.asarray(frames)[rows]
        flagged = np.broadcast_to(spread(mask[rows], frames.ndim), frames.shape)
        shown, known = self._shown.setdefault(
            key, (frames.copy(), np.zeros(frames.shape, dtype=bool))
        )
        new = flagged & ~known
        shown[new] = frames[new]
        known |= new
        differ = flagged & (frames != shown) & ((frames == frames) | (shown == shown))
        if differ.any():
            idx = int(differ.reshape(len(rows), -1).any(axis=1).argmax())
            raise ValueError(self._contradiction(self._paths[rows[idx]]))

    def _wrong_order(self, path: FramePath) -> str:
        assert path.harmful is not None
        name, reason = path.harmful
        return (
            f"{self._normalizer} must not be put around {name} with blanked frames inside: "
            f"info['blanked'] tells of the frame in there, and {name} {reason}. Put {name} inside "
            f"of what blanks, or outside of {self._normalizer}"
        )

    def _contradiction(self, path: FramePath) -> str:
        return (
            f"info['blanked'] must tell of the frame that is shown, and of those that it calls "
            f"blank not all are the same: {path.unknown} shows others than {path.blanking} does. "
            "What stacks, delays or adds to frames goes inside of what blanks, or outside of "
            f"{self._normalizer}. If the flags are right set the attribute {DECLARED} = True on "
            "the wrapper"
        )


def refuse_frame_order(env: gym.Env[Any, Any], normalizer: str) -> FrameOrder:
    """Look at the wrappers of a single environment that is to be normalised.

    :raises ValueError: if its flags are known to tell of other frames than are shown
    """
    return FrameOrder([path_of(list(layers_inwards(env)))], normalizer)

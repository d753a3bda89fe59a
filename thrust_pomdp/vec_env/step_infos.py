"""The infos of a vector step: from one dict of arrays to one dict per environment, when needed.

Gymnasium's vector environments tell ``{"speed": [3.0, 0.0], "_speed": [True, False]}``, SB3 hands
out ``[{"speed": 3.0}, {}]``. :func:`info_rows` turns the former into the latter; :class:`StepInfos`
does so once someone looks, since most infos are never looked at.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Infos = dict[str, Any]

#: Where Gymnasium puts the last frame of an episode that ended with a reset in the same step.
FINAL_KEYS = frozenset({"final_obs", "_final_obs", "final_info", "_final_info"})


def info_rows(infos: Infos, indices: Sequence[int] | NDArray[np.intp]) -> list[Infos]:
    """Split the infos of a vector into one dict for each of some environments.

    >>> speeds = {"speed": np.array([3.0, 0.0]), "_speed": np.array([True, False])}
    >>> info_rows(speeds, [0, 1])
    [{'speed': 3.0}, {}]

    :param infos: Gymnasium's: an array per key over all environments, a bool array under ``_key``
        telling who has it, nested dicts likewise
    :param indices: the environments wanted
    :return: fresh dicts, one per index; the environments' final observation and info are left out
    """
    chosen = np.asarray(indices, dtype=np.intp)
    rows: list[Infos] = [{} for _ in range(len(chosen))]
    for key, values in infos.items():
        if key in FINAL_KEYS or (key.startswith("_") and key[1:] in infos):
            continue
        told = infos.get(f"_{key}")
        has_key = None if told is None else told[chosen].tolist()
        for position, entry in enumerate(_entries(values, chosen)):
            if has_key is None or has_key[position]:
                rows[position][key] = entry
    return rows


def _entries(values: Any, chosen: NDArray[np.intp]) -> Sequence[Any]:
    """Pick some environments' entries of one key."""
    if isinstance(values, dict):
        return info_rows(values, chosen)
    if not isinstance(values, np.ndarray) or values.ndim == 0:
        return [values] * len(chosen)
    picked = values[chosen]
    # Of these Gymnasium made arrays of Python's own numbers; list() would give NumPy's.
    if picked.ndim == 1 and picked.dtype in (np.bool_, np.int64, np.float64, np.object_):
        entries: list[Any] = picked.tolist()
        return entries
    return list(picked)


def copy_rows(infos: Infos, target: Infos, indices: NDArray[np.intp]) -> None:
    """Copy some environments' part of a vector's infos into another's, in place.

    What ``target`` knows of the other environments stays, and its arrays are its own. Without keys
    of Gymnasium's form ``_key`` everyone is taken to have what ``key`` tells.
    """
    for key, values in infos.items():
        if key in FINAL_KEYS:
            continue
        if isinstance(values, dict):
            copy_rows(values, target.setdefault(key, {}), indices)
        elif isinstance(values, np.ndarray) and values.ndim > 0:
            if key not in target:
                target[key] = np.zeros_like(values)
            target[key][indices] = values[indices]
        else:
            target[key] = values
    for key in target:
        if key not in infos and key.startswith("_"):
            target[key][indices] = False


class EndedEpisodes(NamedTuple):
    """What is to be said of the episodes that ended at one step.

    :param indices: the environments, ``[k]``
    :param terminations: who of all environments terminated, ``[n_envs]``; the others that ended
        were truncated
    :param returns: sums of raw rewards, ``[k]``
    :param began: number of the step before each episode's first, ``[k]``
    :param n_steps: number of this step
    :param seconds: time since the environments were made
    :param final_obs: last observations by environment, as Gymnasium gives them
    :param final_info: last infos, as Gymnasium gives them
    """

    indices: NDArray[np.intp]
    terminations: NDArray[np.bool_]
    returns: NDArray[np.float64]
    began: NDArray[np.int64]
    n_steps: int
    seconds: float
    final_obs: Any
    final_info: Infos

    def rows(self) -> list[Infos]:
        """Build their infos, with the keys that SB3 and its Monitor add."""
        rows = info_rows(self.final_info, self.indices)
        seconds = round(self.seconds, 6)
        columns = (self.indices, self.terminations[self.indices], self.returns, self.began)
        for row, idx, terminated, episode_return, began in zip(
            rows, *(column.tolist() for column in columns), strict=True
        ):
            length = self.n_steps - began
            row["TimeLimit.truncated"] = not terminated
            row["terminal_observation"] = _final_obs(self.final_obs, idx)
            row["episode"] = {"r": round(episode_return, 6), "l": length, "t": seconds}
        return rows


def _final_obs(final_obs: Any, idx: int) -> Any:
    if isinstance(final_obs, dict):
        return {key: _final_obs(part, idx) for key, part in final_obs.items()}
    return final_obs[idx]


def rows_of(infos: list[Infos], indices: Sequence[int]) -> list[Infos]:
    """Return the dicts of some environments, ``[infos[idx] for idx in indices]``.

    :param indices: all of environments whose episodes ended, or all of others
    """
    if type(infos) is not StepInfos or len(indices) == 0:
        return [infos[idx] for idx in indices]
    infos[indices[0]]  # builds those of all that are like it
    return list(map(list.__getitem__, itertools.repeat(infos), indices))


class StepInfos(list[Infos]):
    """The infos of one step, a list of dicts that are built when they are looked at.

    Looking at an environment whose episode ended builds the dicts of all those, looking at another
    the dicts of all others. To Python code it is a list: it can be sliced, changed, compared,
    copied and pickled (copies are plain lists), and its dicts belong to this step alone.

    .. warning::
        C code that reads a list's memory without asking it, such as ``json.dumps``, finds None for
        what nobody has looked at yet. ``list(infos)`` is safe everywhere.

    :param nobody: a None for each environment
    :param infos: Gymnasium's infos of the step; kept until the dicts are built
    :param episodes: what ended at the step, if anything
    """

    __slots__ = ("_episodes", "_infos", "_running")

    def __init__(self, nobody: list[None], infos: Infos, episodes: EndedEpisodes | None) -> None:
        super().__init__(nobody)  # type: ignore[arg-type]
        # Each is let go when its dicts have been built.
        self._infos: Infos | None = infos
        self._episodes = self._running = episodes

    def column(self, key: str) -> NDArray[Any] | None:
        """Return what is told under a key of the frames returned, without building the dicts.

        Of an environment that was reset in this step that is its new frame, which its dict here
        tells nothing of.

        :return: ``[n_envs, ...]``, which others may hold too; None if it is not there for all
            environments, or can only be had from the dicts
        """
        infos = self._infos or {}
        values, told = infos.get(key), infos.get(f"_{key}")
        everyone = told is None or np.count_nonzero(told) == len(self)
        if not isinstance(values, np.ndarray) or values.dtype == object or not everyone:
            return None
        return values if values.shape[:1] == (len(self),) else None

    def _build_ended(self) -> None:
        if self._episodes is not None:
            episodes, self._episodes = self._episodes, None
            self._fill(episodes.indices, episodes.rows())

    def _build_running(self) -> None:
        if self._infos is None:
            return
        running = np.ones(len(self), dtype=bool)
        if self._running is not None:
            running[self._running.indices] = False
        indices = running.nonzero()[0]
        rows = info_rows(self._infos, indices)
        for row in rows:
            row["TimeLimit.truncated"] = False
        self._infos = self._running = None
        self._fill(indices, rows)

    def _fill(self, indices: NDArray[np.intp], rows: list[Infos]) -> None:
        for idx, row in zip(indices.tolist(), rows, strict=True):
            list.__setitem__(self, idx, row)

    def _build_all(self) -> None:
        self._build_ended()
        self._build_running()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            self._build_all()
            return list.__getitem__(self, key)
        row = list.__getitem__(self, key)
        if row is not None:
            return row
        if self._episodes is not None and operator.index(key) % len(self) in self._episodes.indices:
            self._build_ended()
        else:
            self._build_running()
        return list.__getitem__(self, key)

    def __radd__(self, other: list[Any]) -> list[Any]:
        return other + list(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(list(self), dtype=dtype)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return list, (list(self),)


def _after_building(name: str) -> Callable[..., Any]:
    """Make the list method of that name, to be run on a list that is complete."""
    method = getattr(list, name)

    @functools.wraps(method)
    def call(self: StepInfos, *args: Any, **kwargs: Any) -> Any:
        self._build_all()
        return method(self, *args, **kwargs)

    return call


# Whatever reads or changes a list, except its length, which is right from the start.
for _name in (
    *("__iter__", "__reversed__", "__contains__", "__repr__", "__setitem__", "__delitem__"),
    *("__add__", "__iadd__", "__mul__", "__rmul__", "__imul__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove"),
    *("reverse", "sort"),
):
    setattr(StepInfos, _name, _after_building(_name))

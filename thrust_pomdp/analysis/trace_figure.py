"""A picture of what happens inside a model while a run of frames is blank."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thrust_pomdp.analysis.trace import Trace
from thrust_pomdp.arguments import check_count, check_kind
from thrust_pomdp.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.floating[Any]]

#: Okabe and Ito's colours, which everyone can tell apart.
_BLUE, _VERMILION, _GREEN = "#0072B2", "#D55E00", "#009E73"
_LINES = (_BLUE, _VERMILION, _GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000")

#: Dashes, for those who see no colours; with seven colours no two of 28 lines are alike.
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))

#: Inches: readable at half of its size.
_WIDTH = 8.6


class Burst(NamedTuple):
    """A run of blank frames inside one episode.

    :param env: the environment
    :param start: the step of its first blank frame
    :param stop: the step after its last one
    """

    env: int
    start: int
    stop: int


def longest_burst(trace: Trace) -> Burst:
    """Find the longest run of blank frames inside an episode; the first of several.

    :raises ValueError: if no frame is blank
    """
    _check_trace(trace)
    best = Burst(0, 0, 0)
    for env in range(trace.blind.shape[1]):
        start = 0
        for step, (blind, first) in enumerate(
            zip(trace.blind[:, env].tolist(), trace.episode_starts[:, env].tolist(), strict=True)
        ):
            if not blind:
                start = step + 1
            elif first:
                start = step
            if step + 1 - start > best.stop - best.start:
                best = Burst(env, start, step + 1)
    if best.stop == 0:
        raise ValueError("trace must have a blank frame, as info['blanked'] tells; it has none")
    return best


def plot_burst(
    trace: Trace,
    path: Path | str | None = None,
    *,
    burst: Burst | None = None,
    margin: int = 15,
    signal: Floats | None = None,
    signal_label: str = "signal",
    action_names: Sequence[str] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw what the model remembers, would do and expects, around a run of blank frames.

    Time goes to the right, blank frames are shaded. The units of the last layer's hidden state are
    sorted by their share in what varies most (the first principal component).

    >>> figure = plot_burst(trace, "burst.png")  # doctest: +SKIP

    :param trace: what :func:`~thrust_pomdp.look_inside` returned
    :param path: of a picture to be written, in a format that matplotlib knows
    :param burst: the run of blank frames; the longest one by default
    :param margin: steps shown before and after it, as far as the episode goes
    :param signal: something that is true whether it is seen or not, ``[n_steps]`` of the burst's
        environment, such as an angle out of ``trace.env_states``
    :param signal_label: its name and unit
    :param action_names: of Discrete actions
    :param title: above it all
    :raises ValueError: if no frame is blank, or an argument does not fit the trace
    :raises ImportError: without matplotlib, with the command that installs it
    """
    figure_class = _figure_class()
    _check_trace(trace)
    margin = check_count("margin", margin)
    burst = longest_burst(trace) if burst is None else _checked_burst(trace, burst)
    signal = None if signal is None else _checked_signal(trace, signal)
    check_kind("path", path, (str, os.PathLike), "the path of a picture")
    for name, text in (("signal_label", signal_label), ("title", title)):
        check_kind(name, text, str, "text")
    _check_names(action_names)
    view = _View.around(trace, burst, margin)
    ratios = [1.0] * (2 + (signal is not None)) + [2.2]
    figure = figure_class(figsize=(_WIDTH, 1.35 * sum(ratios) + 0.9), dpi=150, layout="constrained")
    panels = list(figure.subplots(len(ratios), 1, sharex=True, height_ratios=ratios))
    figure.suptitle(_title(burst) if title is None else title, fontsize=13)
    heat_map = panels[-1]
    if signal is not None:
        _draw_signal(panels.pop(0), view, signal, signal_label)
    _draw_actions(panels[0], view, action_names)
    panels[1].plot(view.at, view.of(trace.values), color=_BLUE)
    panels[1].set_ylabel("value")
    _draw_hidden(figure, heat_map, view)
    for axes in figure.axes[: len(ratios) - 1]:
        _shade(axes, view)
    if path is not None:
        figure.savefig(path)
    return figure


def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError('pictures need matplotlib: pip install "thrust-pomdp[compare]"') from None
    return Figure


def _check_trace(trace: Any) -> None:
    if not isinstance(trace, Trace):
        raise ArgumentError(f"trace must be what look_inside returned, got {trace!r}")


def _checked_burst(trace: Trace, burst: Any) -> Burst:
    n_steps, n_envs = trace.values.shape
    try:
        env, start, stop = map(operator.index, burst)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"burst must be three whole numbers (env, start, stop), got {burst!r}"
        ) from None
    if not (0 <= env < n_envs and 0 <= start < stop <= n_steps):
        raise ArgumentError(
            f"burst must lie within {n_steps} steps of {n_envs} environment(s), got {burst}"
        )
    return Burst(env, start, stop)


def _checked_signal(trace: Trace, signal: Any) -> Floats:
    numbers = np.asarray(signal)
    if numbers.dtype.kind not in "biuf":
        raise ArgumentError(f"signal must be numbers, got {signal!r}")
    if numbers.shape != trace.values.shape[:1]:
        raise ArgumentError(
            f"signal must be of shape {trace.values.shape[:1]}, got {numbers.shape}"
        )
    return numbers


def _check_names(names: Any) -> None:
    is_list = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    if names is not None and not is_list:
        raise ArgumentError(f"action_names must be a list of names, got {names!r}")


def _title(burst: Burst) -> str:
    n_blank = burst.stop - burst.start
    return f"Through {n_blank} blank frame{'s' if n_blank > 1 else ''} in a row"


class _View(NamedTuple):
    """The steps shown of one environment.

    :param trace: of what
    :param env: the environment
    :param rows: the steps
    :param at: how far into the episode they are, ``[n]``
    """

    trace: Trace
    env: int
    rows: slice
    at: NDArray[np.intp]

    @classmethod
    def around(cls, trace: Trace, burst: Burst, margin: int) -> _View:
        starts = trace.episode_starts[:, burst.env].nonzero()[0]
        began = int(starts[starts <= burst.start].max())
        ends = [*starts[starts >= burst.stop].tolist(), len(trace.values)]
        first, last = max(began, burst.start - margin), min(ends[0], burst.stop + margin)
        return cls(trace, burst.env, slice(first, last), np.arange(first, last) - began)

    def of(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of an array ``[n_steps, n_envs, ...]``."""
        return array[self.rows, self.env]

    @property
    def blind(self) -> NDArray[np.bool_]:
        return self.of(self.trace.blind)


def _shade(axes: Any, view: _View) -> None:
    for step in view.at[view.blind].tolist():
        axes.axvspan(step - 0.5, step + 0.5, color="0.88", linewidth=0, zorder=0)
    axes.margins(x=0)
    axes.tick_params(labelsize=11)
    axes.yaxis.label.set_size(11)


def _look(idx: int) -> dict[str, Any]:
    """Return how the line of one of several actions is drawn."""
    return {"color": _LINES[idx % len(_LINES)], "linestyle": _DASHES[idx % len(_DASHES)]}


def _legend(axes: Any) -> None:
    """Put the legend above the panel, where it hides nothing, as many names in a row as fit."""
    labels = axes.get_legend_handles_labels()[1]
    # Inches at this size: a line's sample with its gaps, and a letter; beside panels are labels.
    columns = max(int((_WIDTH - 1.7) / (0.67 + 0.085 * max(map(len, labels)))), 1)
    style: dict[str, Any] = {"fontsize": 10, "frameon": False, "borderpad": 0, "borderaxespad": 0.2}
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=columns, **style)
    figure, n_more_rows = axes.figure, (len(labels) - 1) // columns
    figure.set_figheight(figure.get_figheight() + 0.21 * n_more_rows)


def _draw_signal(axes: Any, view: _View, signal: Floats, label: str) -> None:
    shown = signal[view.rows]
    axes.plot(view.at, shown, color="0.35", linewidth=1.2, label="true")
    seen = ~view.blind
    axes.plot(view.at[seen], shown[seen], ".", color=_BLUE, markersize=7, label="seen")
    _legend(axes)
    axes.set_ylabel(label)


def _draw_actions(axes: Any, view: _View, names: Sequence[str] | None) -> None:
    trace = view.trace
    if trace.mean is not None and trace.std is not None:
        _draw_gaussian(axes, view.at, view.of(trace.mean), view.of(trace.std))
        return
    if isinstance(trace.probabilities, tuple):
        taken = view.of(trace.actions)
        for idx, part in enumerate(trace.probabilities):
            chosen = np.take_along_axis(view.of(part), taken[:, idx : idx + 1], axis=1)
            axes.plot(view.at, chosen, **_look(idx), label=f"of {idx}")
        axes.set_ylabel("P(action taken)")
    else:
        _draw_probabilities(axes, view, names)
    axes.set_ylim(-0.06, 1.06)
    if len(axes.lines) > 1:
        _legend(axes)


def _draw_probabilities(axes: Any, view: _View, names: Sequence[str] | None) -> None:
    chances, taken = view.of(view.trace.probabilities), view.of(view.trace.actions)
    names = [str(idx) for idx in range(chances.shape[1])] if names is None else names
    if len(names) != chances.shape[1]:
        raise ValueError(f"action_names must be {chances.shape[1]} names, got {list(names)}")
    if taken.ndim == 1 and chances.shape[1] == 2:
        # Two actions say the same: one line, and what was drawn as dots.
        axes.plot(view.at, chances[:, 1], color=_BLUE, label="probability")
        axes.plot(view.at, taken, ".", color=_VERMILION, markersize=5, label="taken")
        axes.set_ylabel(f"P({names[1]})")
        return
    for idx in range(chances.shape[1]):
        axes.plot(view.at, chances[:, idx], **_look(idx), label=names[idx])
    axes.set_ylabel("P(action)" if taken.ndim == 1 else "P(bit is one)")


def _draw_gaussian(axes: Any, at: NDArray[np.intp], mean: Floats, std: Floats) -> None:
    for idx in range(mean.shape[1]):
        look = _look(idx)
        low, high = mean[:, idx] - std[:, idx], mean[:, idx] + std[:, idx]
        axes.plot(at, mean[:, idx], **look, label=f"of {idx}")
        axes.fill_between(at, low, high, color=look["color"], alpha=0.2, linewidth=0)
    axes.set_ylabel("action\n(mean ± std)")
    if mean.shape[1] > 1:
        _legend(axes)


def _draw_hidden(figure: Figure, axes: Any, view: _View) -> None:
    name, states = _shown_part(view.trace)
    hidden = states[view.rows, -1, view.env].reshape(len(view.at), -1).astype(float)
    units = hidden[:, _order(hidden)].T
    # A few units that saturate would leave all others pale.
    most = max(float(np.quantile(np.abs(units), 0.99)), 1e-6)
    shown = axes.imshow(
        units, aspect="auto", cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest",
        extent=(view.at[0] - 0.5, view.at[-1] + 0.5, len(units), 0),
    )  # fmt: skip
    bar = figure.colorbar(shown, ax=axes, pad=0.01, aspect=15, extend="both")
    bar.set_label("activity", size=11)
    bar.ax.tick_params(labelsize=10)
    # Shading would hide what is shown: blank frames are a bar above it.
    for step in view.at[view.blind].tolist():
        axes.axvspan(step - 0.5, step + 0.5, 1.0, 1.03, color="0.2", linewidth=0, clip_on=False)
    axes.set_ylabel(f"{name} units\n(layer {states.shape[1]}, sorted)", size=11)
    axes.set_xlabel("step of the episode; shaded: blank frames", size=11)
    axes.tick_params(labelsize=11)


def _shown_part(trace: Trace) -> tuple[str, Floats]:
    """Return name and numbers of the part of the memory to draw: the first that holds reals."""
    parts = trace.states.items()
    reals = (part for part in parts if np.issubdtype(part[1].dtype, np.floating))
    return next(reals, next(iter(parts)))


def _order(hidden: Floats) -> NDArray[np.intp]:
    """Sort units by their share in the first principal component, ``[n_steps, n_units]``."""
    centred = hidden - hidden.mean(axis=0)
    _, _, components = np.linalg.svd(centred, full_matrices=False)
    first = components[0]
    # The sign of a component is arbitrary: make its greatest entry positive.
    order: NDArray[np.intp] = np.argsort(first * np.sign(first[np.abs(first).argmax()]))
    return order

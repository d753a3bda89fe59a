"""Sweeps: trained models, or trainings, over a grid of environment parameters.

Hausknecht and Stone (2015, https://arxiv.org/abs/1507.06527) trained at one blank rate and played
at others, to see whether memory degrades gracefully; :class:`EvaluationTask` does that for a run of
a comparison.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from thrust_pomdp.experiment import atomic_write
from thrust_pomdp.experiment.arms import ARM_LABELS
from thrust_pomdp.experiment.engines import Finished
from thrust_pomdp.experiment.folder import model_file, normalizer_file
from thrust_pomdp.experiment.runs import RunSpec

#: Parameter -> its values; one or two parameters.
Grid = Mapping[str, Sequence[Any]]

#: How actions are chosen.
KINDS = ("most likely", "sampled")


class Cell(NamedTuple):
    """What a run reaches at one point of the grid.

    :param arm: the run's arm
    :param seed: its number
    :param parameters: the environment's, at this point
    :param most_likely: mean return with most likely actions; NaN where there is no such environment
    :param sampled: mean return with sampled actions
    """

    arm: str
    seed: int
    parameters: dict[str, Any]
    most_likely: float
    sampled: float


def grid_points(grid: Grid) -> list[dict[str, Any]]:
    """Return the points of a grid.

    >>> grid_points({"flicker_prob": [0.5], "burst_len": [2, 4]})
    [{'flicker_prob': 0.5, 'burst_len': 2}, {'flicker_prob': 0.5, 'burst_len': 4}]

    :raises ValueError: unless it has one or two parameters, each with values, none of them twice
    """
    if not 1 <= len(grid) <= 2:
        raise ValueError(f"grid must have one or two parameters, got {', '.join(grid) or 'none'}")
    for name, values in grid.items():
        if not values or any(list(values).count(value) > 1 for value in values):
            raise ValueError(f"grid needs different values of {name}, got {list(values)}")
    return [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]


def point_label(parameters: Mapping[str, Any]) -> str:
    """Return what a point is called in the names of files.

    >>> point_label({"flicker_prob": 0.5, "burst_len": None})
    'flicker_prob=0.5-burst_len=None'
    """
    text = "-".join(f"{name}={value}" for name, value in parameters.items())
    return "".join(char if char.isalnum() or char in "=.-_+" else "_" for char in text)


@dataclass(frozen=True)
class EvaluationTask:
    """Play a finished run's model at every point of a grid.

    :param stem: the run's files without their endings
    :param spec: the run
    :param algorithm: ``module:class`` of the model
    :param points: the points
    :param episodes: fresh episodes with most likely actions, and with sampled ones
    :param trusted: whether what is pickled in the run's folder may be loaded
    """

    stem: Path
    spec: RunSpec
    algorithm: str
    points: tuple[dict[str, Any], ...]
    episodes: tuple[int, int]
    trusted: bool = False

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.spec.name

    def do(self, report: Callable[[int], None]) -> Finished:
        """Play; the result is a list of two means for each point."""
        import torch as th

        from thrust_pomdp.experiment import saved_models

        th.set_num_threads(1)
        path = model_file(self.stem)
        model = saved_models.load_run_model(path, self.algorithm, self.trusted)
        path = normalizer_file(self.stem)
        normalizer = None
        if path.exists():
            normalizer = saved_models.load_run_normalizer(path, self.trusted)
        means = []
        for number, point in enumerate(self.points):
            means.append(self._means(model, normalizer, point))
            report(number + 1)
        return Finished(self.name, means, {})

    def _means(self, model: Any, normalizer: Any, point: dict[str, Any]) -> list[float]:
        from thrust_pomdp.experiment.training import play_fresh

        spec = replace(self.spec, env_kwargs={**self.spec.env_kwargs, **point})
        # Each point from the same generator state, so that none depends on those before it.
        model.set_random_seed(spec.evaluation_seed)
        return [
            float(np.mean(play_fresh(spec, model, normalizer, n_episodes, deterministic)))
            for n_episodes, deterministic in zip(self.episodes, (True, False), strict=True)
        ]


def write_csv(found: Sequence[Cell], path: Path) -> None:
    """Write a line per run and point; nothing in its means where there is no such environment."""
    names = list(dict.fromkeys(name for cell in found for name in cell.parameters))
    rows = [
        [
            cell.arm,
            cell.seed,
            *(str(cell.parameters[name]) for name in names),
            *(_number(mean) for mean in (cell.most_likely, cell.sampled)),
        ]
        for cell in found
    ]
    atomic_write.write_csv(path, ["arm", "seed", *names, "most_likely", "sampled"], rows)


def _number(mean: float) -> str:
    return "" if np.isnan(mean) else f"{mean:.2f}"


def mean_table(found: Sequence[Cell], arm: str, grid: Grid, kind: str) -> np.ndarray[Any, Any]:
    """Return an arm's means over its runs, ``[values of the first parameter, of the second]``.

    NaN where there is no such environment. A grid of one parameter has one column.
    """
    names = list(grid)
    sizes = [len(grid[name]) for name in names] + [1] * (2 - len(names))
    sums, counts = np.zeros(sizes), np.zeros(sizes)
    for cell in found:
        if cell.arm == arm:
            at = [list(grid[name]).index(cell.parameters[name]) for name in names]
            index = (*at, *[0] * (2 - len(names)))
            sums[index] += cell.most_likely if kind == KINDS[0] else cell.sampled
            counts[index] += 1
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / counts)


def heat_map(
    found: Sequence[Cell],
    grid: Grid,
    kind: str,
    title: str,
    path: Path,
    trained_at: Mapping[str, Any] | None = None,
) -> None:
    """Draw an arm's means over the grid, a panel for each arm.

    :param found: the means of runs
    :param grid: the grid
    :param kind: of :data:`KINDS`
    :param title: above the panels
    :param path: of the PNG file
    :param trained_at: the point that gets a frame, where the runs were trained
    """
    from matplotlib.figure import Figure

    arms = list(dict.fromkeys(cell.arm for cell in found))
    tables = {arm: mean_table(found, arm, grid, kind) for arm in arms}
    rows, columns = next(iter(tables.values())).shape
    size = (1.6 + len(arms) * (0.7 + 0.62 * max(columns, 3)), 1.5 + 0.45 * max(rows, 3))
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    panels = figure.subplots(1, len(arms), squeeze=False, sharey=True)[0]
    most = max((np.nanmax(t) for t in tables.values() if not np.isnan(t).all()), default=1.0)
    least = min((np.nanmin(t) for t in tables.values() if not np.isnan(t).all()), default=0.0)
    for axes, arm in zip(panels, arms, strict=True):
        shown = axes.imshow(tables[arm], vmin=min(least, 0.0), vmax=most, aspect="auto")
        _label(axes, tables[arm], grid, (min(least, 0.0) + most) / 2)
        axes.set_title(ARM_LABELS.get(arm, arm), fontsize=9)
        is_framed = _frame(axes, grid, trained_at)
    figure.colorbar(shown, ax=panels, label="mean return", shrink=0.9)
    n_runs = len({cell.seed for cell in found})
    about = f"{title}, {kind} actions, " + ("1 run" if n_runs == 1 else f"mean of {n_runs} runs")
    about += "\nframed: where they were trained" if is_framed else ""
    figure.suptitle(about, x=0.01, ha="left", fontsize=9)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    atomic_write.write_atomically(path, drawn.getvalue())


def _label(axes: Any, means: np.ndarray[Any, Any], grid: Grid, middle: float) -> None:
    """Write the values into the cells and the parameters beside them."""
    names = list(grid)
    axes.set_facecolor("0.9")  # shows where there is no such environment
    for (row, column), mean in np.ndenumerate(means):
        text = "" if np.isnan(mean) else f"{mean:.3g}"
        colour = "white" if mean < middle else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
    axes.set_yticks(range(means.shape[0]), [str(value) for value in grid[names[0]]])
    axes.set_ylabel(names[0])
    axes.label_outer()
    if len(names) == 2:
        axes.set_xticks(range(means.shape[1]), [str(value) for value in grid[names[1]]])
        axes.set_xlabel(names[1])
    else:
        axes.set_xticks([])


def _frame(axes: Any, grid: Grid, trained_at: Mapping[str, Any] | None) -> bool:
    """Frame the point where the runs were trained; tell whether it is one of the grid."""
    from matplotlib.patches import Rectangle

    if trained_at is None:
        return False
    # An argument that was not given is None, as it is for the environments here.
    point = {name: trained_at.get(name) for name in grid}
    is_there = all(point[name] in values for name, values in grid.items())
    if is_there:
        row, *column = (list(values).index(point[name]) for name, values in grid.items())
        corner = ((column[0] if column else 0) - 0.5, row - 0.5)
        style: dict[str, Any] = {"edgecolor": "#D55E00", "linewidth": 2.5, "clip_on": False}
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, **style))
    return is_there


def possible_points(
    points: Iterable[dict[str, Any]], check: Callable[[dict[str, Any]], None]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Split points into those with an environment, and the reasons why there is none at others.

    :param check: raises ValueError where there is none
    :raises ValueError: if there is none anywhere
    """
    found, reasons = [], {}
    for point in points:
        try:
            check(point)
            found.append(point)
        except ValueError as error:
            reasons[point_label(point)] = str(error)
    if not found:
        raise ValueError(
            f"there is no environment at any point of the grid: {reasons.popitem()[1]}"
        )
    return found, reasons

"""Progress bars of many tasks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from thrust_pomdp.experiment.console import ignore_output_errors
from thrust_pomdp.experiment.engines import IDLE_SECONDS, Event, Progress, Started


class ProgressBars:
    """Progress bars of the whole and of each task, and lines above them.

    :param totals: the tasks to come, and how far each goes
    :param count: tasks in all, those finished before included
    :param unit: what the totals count
    :param last: what a task does once it has come so far
    """

    def __init__(
        self, totals: Mapping[str, int], count: int, unit: str = "step", last: str = "evaluating"
    ) -> None:
        from tqdm import tqdm

        self._tqdm = tqdm
        self._totals, self._unit, self._last = dict(totals), unit, last
        self._width = max(map(len, totals), default=0)
        self._said = ""
        self._bars = {
            "": tqdm(total=count, initial=count - len(totals), desc="all", unit="run",
                     disable=None)  # no bars where nobody watches
        }  # fmt: skip

    def show(self, event: Event) -> None:
        """Show what has happened to a run."""
        if isinstance(event, Started):
            self._bars[event.name] = self._tqdm(
                total=self._totals[event.name],
                desc=f"{event.name:<{self._width}}",
                unit=self._unit,
                unit_scale=True,
                leave=False,
                disable=None,
            )
        elif isinstance(event, Progress):
            self._advance(self._bars[event.name], event)
        else:
            self._bars.pop(event.name).close()
            self._bars[""].update()

    def _advance(self, bar: Any, event: Progress) -> None:
        if event.timesteps >= bar.total:
            bar.set_description(f"{event.name:<{self._width}} ({self._last})")
        bar.update(min(event.timesteps, bar.total) - bar.n)

    def write(self, line: str) -> None:
        """Write a line above the bars."""
        with ignore_output_errors():
            self._tqdm.write(line)

    def write_once(self, line: str) -> None:
        """Write a line unless it is the one said last."""
        if line != self._said:
            self._said = line
            self.write(line)

    def wait(self) -> None:
        """Let a moment pass."""
        time.sleep(IDLE_SECONDS)

    def close(self) -> None:
        """Take the bars away."""
        for bar in self._bars.values():
            bar.close()

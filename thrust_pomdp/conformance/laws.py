"""What is asked of memory while it collects and trains, each as a function of a trial.

A law raises ``AssertionError`` where it is broken, saying how that shows, and
``NotObservableError`` where it cannot be looked at; it may return something worth telling.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from thrust_pomdp.conformance.observed import Array, Outputs
from thrust_pomdp.conformance.probe import (
    N_ENVS,
    N_STEPS,
    N_WINDOWS,
    PLACES,
    TERMINATED,
    TRUNCATED,
    Place,
)
from thrust_pomdp.conformance.report import NotObservableError
from thrust_pomdp.conformance.trial import EVERYWHERE, TELLS_T, TOLERANCE, Trial

#: What a run tells of the same places, and where it comes from.
_PASSES = (("acted", "while collecting"), ("trained", "in training"))
#: Windows of changed environments that each tells of.
_WINDOWS = {"acted": N_WINDOWS, "trained": 1}


def where(place: Place) -> str:
    """Name a place."""
    return f"step {place.time} of environment {place.env} (step {place.step} of its episode)"


def remembers(trial: Trial) -> None:
    """Look whether outputs depend on what the episode showed before."""
    assert trial.remembers(), (
        "two episodes that differ in their first observation give the same log-probabilities and "
        "values afterwards"
    )


def first_pass(trial: Trial) -> str:
    """Look whether training that learns nothing computes what was collected."""
    most = 0.0
    for window in range(N_WINDOWS):
        acted, trained = trial.outputs("acted", window), trial.outputs("trained", window)
        for name, one, two in (
            ("value", acted.values, trained.values),
            ("probability of the first action", acted.firsts, trained.firsts),
        ):
            # NaN is no small difference.
            error = np.nan_to_num(np.abs(one - two), nan=np.inf)
            most = max(most, float(error.max()))
            at = np.unravel_index(error.argmax(), error.shape)
            place = PLACES[window * N_STEPS + at[0]][at[1]]
            assert error.max() <= TOLERANCE, (
                f"{name} at {where(place)} was {one[at]:.6f} while collecting and is {two[at]:.6f} "
                f"in training; so it is at {(error > TOLERANCE).sum()} of {error.size} steps"
            )
    uses = trial.small().said.uses
    # How often a step is used is another law's question.
    error = np.where(np.round(uses) == 1, np.abs(uses - 1), 0)
    at = np.unravel_index(error.argmax(), error.shape)
    assert error.max() <= 10 * TOLERANCE, (
        f"in small minibatches the ratio at {where(PLACES[N_STEPS + at[0]][at[1]])} is "
        f"{uses[at]:.6f} before anything is learnt, not 1"
    )
    return f"largest difference {most:.0e}"


def _after(end: str, window: int) -> Iterator[list[Place]]:
    """Yield the places of each episode that follows one which ended so, if it began in a window."""
    for env in range(N_ENVS):
        column = [row[env] for row in PLACES[window * N_STEPS : (window + 1) * N_STEPS]]
        for first in column:
            if first.step == 0 and first.before == end and first.story in "AX":
                yield [place for place in column if place.began == first.began]


def _at(array: Array, place: Place) -> float:
    return float(array[place.time % N_STEPS, place.env])


def _depends(trial: Trial, name: str, window: int, place: Place) -> bool:
    """Tell whether an output in story A changes with what X showed before."""
    if place.story != "A" or window >= _WINDOWS[name]:
        return False
    one, two = trial.outputs(name, window), trial.outputs(name, window, EVERYWHERE)
    return any(
        not abs(_at(getattr(one, kind), place) - _at(getattr(two, kind), place)) <= TOLERANCE
        for kind in ("values", "firsts")
    )


def _against_reset(trial: Trial, end: str) -> str | None:
    """Say how memory outlives episodes that end so."""
    for name, told in _PASSES:
        for window in range(N_WINDOWS):
            for episode in _after(end, window):
                kept = [p for p in episode[1:] if _depends(trial, name, window, p)]
                if kept:
                    return (
                        f"{told}, {where(kept[-1])} depends on what was shown before the "
                        f"environment {end} the episode at step {episode[0].began - 1}"
                    )
                first = episode[0]
                if first.began == window * N_STEPS and not _is_right_at(trial, name, first):
                    return (
                        f"{told}, {where(first)} depends on more than that episode has shown: the "
                        f"episode before was {end} on the last step of a window"
                    )
    return None


def _is_right_at(trial: Trial, name: str, place: Place) -> bool:
    return trial.is_right(trial.outputs(name, place.time // N_STEPS), place)


def reset_on_terminated(trial: Trial) -> None:
    """Look whether memory is cleared after an episode that was terminated."""
    _reset_on(trial, TERMINATED)


def reset_on_truncated(trial: Trial) -> None:
    """Look whether memory is cleared after an episode that was truncated."""
    _reset_on(trial, TRUNCATED)


def _reset_on(trial: Trial, end: str) -> None:
    trial.needs_memory()
    reason = _against_reset(trial, end)
    # A reset one step late shows at the start of windows too; it has a law of its own.
    if reason is not None and "last step of a window" in reason and _against_the_step(trial):
        raise NotObservableError("memory is cleared a step too late or too early")
    assert reason is None, reason


def reset_at_the_right_step(trial: Trial) -> None:
    """Look whether memory is cleared with an episode's first observation, no step off."""
    trial.needs_memory()
    reason = _against_the_step(trial)
    if reason is not None and all(_against_reset(trial, e) for e in (TERMINATED, TRUNCATED)):
        within = [_kept_within(trial, end) for end in (TERMINATED, TRUNCATED)]
        if all(within):
            raise NotObservableError("memory is not cleared")
    assert reason is None, reason


def _kept_within(trial: Trial, end: str) -> bool:
    return any(
        _depends(trial, name, window, place)
        for name, _ in _PASSES
        for window in range(N_WINDOWS)
        for episode in _after(end, window)
        for place in episode[1:]
    )


def _against_the_step(trial: Trial) -> str | None:
    """Say how memory is cleared at another step than the first of an episode."""
    for name, told in _PASSES:
        for end in (TERMINATED, TRUNCATED):
            if _kept_within(trial, end):
                continue
            for window in range(N_WINDOWS):
                for episode in _after(end, window):
                    if _depends(trial, name, window, episode[0]):
                        return (
                            f"{told}, {where(episode[0])} still depends on the episode before: "
                            "memory is cleared too late"
                        )
        for row in PLACES:
            for place in row:
                reason = _against_place(trial, name, place)
                if reason is not None:
                    return f"{told}, {reason}"
    return None


def _against_place(trial: Trial, name: str, place: Place) -> str | None:
    """Say how a place shows that memory was cleared one step early, or late."""
    window = place.time // N_STEPS
    began_inside = place.began >= window * N_STEPS and place.story in "AX"
    if not began_inside or _is_right_at(trial, name, place):
        return None
    before = [row[place.env] for row in PLACES[place.began : place.time]]
    if place.last and len(before) > 1 and all(_is_right_at(trial, name, p) for p in before):
        return (
            f"{where(place)}, the last, no longer depends on the steps before: memory is cleared "
            "too early"
        )
    if len(before) == 1 and _is_right_at(trial, name, before[0]):
        return (
            f"{where(place)} no longer depends on the first of that episode: memory is cleared too "
            "late"
        )
    return None


def no_leak(trial: Trial) -> None:
    """Look whether an episode changes a bit of the next one, or of the gradient that one gives."""
    trial.needs_memory()
    one, two = trial.training(), trial.training(EVERYWHERE)
    for window in range(N_WINDOWS):
        told_a = _story_a(window)
        same = told_a & (one.windows[window].actions == two.windows[window].actions).reshape(
            told_a.shape
        )
        for part, asked in (("values", told_a), ("log_probs", same)):
            differ = (
                getattr(one.windows[window], part) != getattr(two.windows[window], part)
            ) & asked
            if differ.any():
                at = np.argwhere(differ)[0]
                place = PLACES[window * N_STEPS + at[0]][at[1]]
                raise AssertionError(
                    f"{part} at {where(place)} change, if only in the last bits, with what an "
                    "earlier episode showed"
                )
        for name, gradient in one.gradients[window].items():
            other = two.gradients[window].get(name)
            if not same[told_a].all():
                raise NotObservableError(
                    "it took other actions in episodes that showed the same, so that gradients "
                    "cannot be compared"
                )
            assert other is not None, f"{name} has a gradient in one of two trainings only"
            assert bool((gradient == other).all()), (
                f"the gradient of {name} that some episodes give changes with what the episodes "
                "before them showed"
            )


def _story_a(window: int) -> Array:
    rows = PLACES[window * N_STEPS : (window + 1) * N_STEPS]
    return np.array([[place.story == "A" for place in row] for row in rows])


def from_window_to_window(trial: Trial) -> str:
    """Look whether memory goes on from window to window, or else starts from zero there."""
    trial.needs_memory()
    found = set()
    for name, told in _PASSES:
        outputs = trial.outputs(name, 1)
        for policy, matches in (("carried on", _carried), ("zero", _from_zero)):
            if matches(trial, outputs):
                found.add(policy)
                break
        else:
            raise AssertionError(
                f"{told}, an episode that goes on in the second window is known there neither from "
                "its beginning nor from the window's"
            )
    assert len(found) == 1, "memory is carried on in one pass, and starts from zero in the other"
    return f"memory is {found.pop()} at a window's start".replace("is zero", "starts from zero")


#: The environment whose episode goes on from window to window.
_GOES_ON = 0


def _carried(trial: Trial, outputs: Outputs) -> bool:
    rows = PLACES[N_STEPS : N_STEPS + 4]
    return all(trial.is_right(outputs, row[_GOES_ON]) for row in rows)


def _from_zero(trial: Trial, outputs: Outputs) -> bool:
    time, env = TELLS_T
    return all(
        np.abs(part[:4, _GOES_ON] - part[time : time + 4, env]).max() <= TOLERANCE
        for part in outputs
    )


def axis_order_of_state(trial: Trial) -> None:
    """Look whether an environment's memory is its own while collecting."""
    trial.needs_memory()
    stay_apart(trial, "acted", "while collecting")


def stay_apart(trial: Trial, name: str, told: str) -> None:
    """Look whether what environment 0 is shown changes the outputs of others.

    :param name: ``"acted"`` or ``"trained"``
    :param told: the same, in words
    """
    for window in range(_WINDOWS[name]):
        before, after = trial.outputs(name, window), trial.outputs(name, window, (0,))
        for first, second in zip(before, after, strict=True):
            differ = ~(np.abs(first - second) <= TOLERANCE)
            differ[:, 0] = False
            if differ.any():
                at = np.argwhere(differ)[0]
                place = PLACES[window * N_STEPS + at[0]][at[1]]
                raise AssertionError(
                    f"{told}, {where(place)} depends on what environment 0 was shown"
                )

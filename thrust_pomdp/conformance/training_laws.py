"""What is asked of the numbers that training is given: bootstraps, layouts, uses, repetition."""

from __future__ import annotations

import numpy as np

from thrust_pomdp.conformance.laws import stay_apart, where
from thrust_pomdp.conformance.observed import Array, Collected
from thrust_pomdp.conformance.probe import (
    N_ENVS,
    N_STEPS,
    N_WINDOWS,
    PLACES,
    TRUNCATED,
    Place,
    rewards,
    starts,
)
from thrust_pomdp.conformance.report import NotObservableError
from thrust_pomdp.conformance.trial import GAE_LAMBDA, GAMMA, TOLERANCE, Trial, Weights

#: Of sums over a window.
_SUM_TOLERANCE = 20 * TOLERANCE


def _window(array: Array, window: int) -> Array:
    return array[window * N_STEPS : (window + 1) * N_STEPS]


def _next_value(trial: Trial, place: Place) -> float | None:
    """Return the value of what follows a place, known from an episode that goes on there.

    :return: None where the place itself is not as in that episode, so that its memory is another
    """
    window = place.time // N_STEPS
    if place.began < window * N_STEPS or place.story not in "AX":
        return None
    run = trial.outputs("acted", window)
    own = [row[place.env] for row in PLACES[place.began : place.time + 1]]
    values = trial.reference(place.story).values
    if not all(trial.is_right(run, p) for p in own) or place.step + 1 >= len(values):
        return None
    return float(values[place.step + 1])


def bootstrap_at_truncation(trial: Trial) -> None:
    """Look whether last returns have the value of what follows where episodes were truncated only.

    The value is that of an episode which showed the same and went on: it knows the whole episode.
    """
    judged = 0
    for window in range(N_WINDOWS):
        returns, reward = trial.acting().windows[window].returns, _window(rewards(), window)
        for row in _window(np.array(PLACES, dtype=object), window):
            for place in (Place(*cells) for cells in row):
                if not place.last:
                    continue
                at = place.time % N_STEPS, place.env
                value: float | None = 0.0
                if place.end == TRUNCATED:
                    value = _next_value(trial, place)
                    judged += value is not None
                if value is None:
                    continue
                right = reward[at] + GAMMA * value
                assert abs(returns[at] - right) <= _SUM_TOLERANCE, _wrong_return(
                    place, float(returns[at]), float(reward[at]), value
                )
    if not judged:
        raise NotObservableError("no truncated episode is known as far as its last step")


def _wrong_return(place: Place, found: float, reward: float, value: float) -> str:
    told = f"{where(place)} was {place.end} with the reward {reward:g}; its return is {found:.5f}"
    if place.end != TRUNCATED:
        return f"{told}: nothing is to be added"
    right = reward + GAMMA * value
    if abs(found - reward) <= _SUM_TOLERANCE:
        return f"{told}: the value of the final observation is missing (with it {right:.5f})"
    return (
        f"{told}, not {right:.5f}: it is not the value of the final observation, known with all "
        "that the episode showed"
    )


def returns_and_advantages(trial: Trial) -> None:
    """Look whether both are GAE's sums, with the value at a window's end, cut at episode ends."""
    for window in range(N_WINDOWS):
        found = trial.acting().windows[window]
        following = _following_values(trial, window, found)
        for env in range(N_ENVS):
            known = 0.0
            for step in reversed(range(N_STEPS)):
                place = PLACES[window * N_STEPS + step][env]
                value = following[step, env]
                if np.isnan(value):
                    known = np.nan
                    continue
                at = step, env
                delta = rewards()[place.time, env] + GAMMA * value - found.values[at]
                known = delta + (0 if place.last else GAMMA * GAE_LAMBDA * known)
                if np.isnan(known):
                    continue
                for name, array, right in (
                    ("advantage", found.advantages, known),
                    ("return", found.returns, known + found.values[at]),
                ):
                    at_end = " at the window's end" * (step == N_STEPS - 1)
                    assert abs(array[at] - right) <= _SUM_TOLERANCE, (
                        f"the {name} of {where(place)}{at_end} is {array[at]:.5f}, by its "
                        f"definition {right:.5f}"
                    )


def _following_values(trial: Trial, window: int, found: Collected) -> Array:
    """Return the value of what follows each step; NaN where it cannot be known."""
    following = np.full((N_STEPS, N_ENVS), np.nan)
    for step, env in np.ndindex(N_STEPS, N_ENVS):
        place = PLACES[window * N_STEPS + step][env]
        if place.last or step == N_STEPS - 1:
            ended = place.last and place.end != TRUNCATED
            value = 0.0 if ended else _next_value(trial, place)
            following[step, env] = np.nan if value is None else value
        else:
            following[step, env] = found.values[step + 1, env]
    return following


def axis_order_of_batch(trial: Trial) -> None:
    """Look whether what is stored and trained on belongs to its environment and step."""
    run = trial.training()
    for window, found in enumerate(run.windows):
        ended = np.array([[p.last and p.end == TRUNCATED for p in row] for row in PLACES])
        for name, stored, right, asked in (
            ("observations", found.observations, run.shown, None),
            ("actions", found.actions, run.done, None),
            ("episode starts", found.episode_starts, starts(), None),
            ("rewards", found.rewards, rewards(), ~ended),
        ):
            right = _window(right, window)
            differ = stored.reshape(right.shape) != right
            differ = differ.reshape(N_STEPS, N_ENVS, -1).any(axis=2)
            if asked is not None:
                differ &= _window(asked, window)
            if differ.any():
                at = np.argwhere(differ)[0]
                raise AssertionError(
                    f"the buffer's {name} at step {at[0]} of environment {at[1]} in window "
                    f"{window} are not those of that environment then"
                )
        _aligned(run.trained[window].firsts, run.acted[window].firsts, found, window)
    if trial.remembers():
        stay_apart(trial, "trained", "in training")


def _aligned(trained: Array, acted: Array, found: Collected, window: int) -> None:
    """Look whether advantages and old log-probabilities meet in training.

    The advantage of a step that meets another's log-probability gives half of its ratio.
    """
    is_first = found.actions.reshape(N_STEPS, N_ENVS) == 0
    with np.errstate(all="ignore"):
        now, before = (np.where(is_first, p, 1 - p) for p in (trained, acted))
        halved = np.abs(now / before - 0.5) <= 10 * TOLERANCE
    if halved.mean() > 0.5:
        raise AssertionError(
            f"in training the advantages of window {window} meet the log-probabilities of other "
            f"steps, {halved.sum()} of {halved.size} times"
        )


def one_use(trial: Trial) -> str:
    """Look whether each step is used once an epoch, in small minibatches."""
    said, number, size = trial.small()
    counts = np.round(said.uses)
    # A ratio or a value that is off is no other number of uses.
    agree = (np.abs(said.uses - counts) <= 1e-2) & (np.abs(said.value_uses - counts) <= 1e-2)
    wrong = np.argwhere(agree & (counts != 1))
    assert not len(wrong), (
        f"the losses of an epoch have {where(PLACES[N_STEPS + wrong[0][0]][wrong[0][1]])} "
        f"{int(counts[tuple(wrong[0])])} times, {len(wrong)} of {counts.size} steps not once"
    )
    if not agree.mean() > 0.5:
        raise NotObservableError(
            "ratios or values are others in training than while collecting, or the losses that are "
            "logged are not means over minibatches of equal size"
        )
    # The losses are means over minibatches, in which it does not show if all come twice.
    assert round(number * size) == N_STEPS * N_ENVS, (
        f"an epoch over {N_STEPS * N_ENVS} steps is {number} minibatches of {size:.0f}"
    )
    return f"{number} minibatches of {size:.0f} steps"


def determinism(trial: Trial) -> None:
    """Look whether a seed gives the same weights, to the last bit, and another others."""
    one, two = trial.learnt(0), trial.learnt(0, again=True)
    assert equal_weights(one, two), (
        "two trainings with the same seed and the same environments end at different weights"
    )
    assert not equal_weights(one, trial.learnt(1)), (
        "trainings with two seeds end at the same weights: the seed is not used"
    )


def equal_weights(one: Weights, two: Weights) -> bool:
    """Tell whether two trainings came to the same weights."""
    return one.keys() == two.keys() and all(bool((one[n] == two[n]).all()) for n in one)

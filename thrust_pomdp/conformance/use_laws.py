"""What is asked of a model in use: acting with memory, saving and loading."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np

from thrust_pomdp.conformance.acting import ask, play
from thrust_pomdp.conformance.laws import where
from thrust_pomdp.conformance.observed import Array, AtWindowsEnd, collected, outputs
from thrust_pomdp.conformance.probe import N_ENVS, N_STEPS, PLACES, make_env, shown, starts
from thrust_pomdp.conformance.report import NotObservableError
from thrust_pomdp.conformance.training_laws import equal_weights
from thrust_pomdp.conformance.trial import TOLERANCE, Trial, learn

#: Probabilities nearer to one half say nothing about which action is the likelier.
_UNDECIDED = 1e-3
#: Actions that must differ where memory is left out, for actions to say anything about memory.
_FEWEST = 3
_PREDICT = "predict(obs, state, episode_start, deterministic=True)"


def memory_at_evaluation(trial: Trial) -> None:
    """Look whether ``predict`` acts by the memory that training has, and leaves training alone."""
    trial.needs_memory()
    model, acted = trial.acting().model, trial.outputs("acted", 0)
    actions, states = play(model)
    decided = np.abs(acted.firsts - 0.5) > _UNDECIDED
    likelier = np.where(acted.firsts > 0.5, 0, 1)
    for time, env in np.argwhere(decided & (actions != likelier)):
        raise AssertionError(
            f"{_PREDICT} on what was shown while collecting takes action {actions[time, env]} at "
            f"{where(PLACES[time][env])}, where the policy's is {likelier[time, env]} with "
            f"probability {np.abs(acted.firsts[time, env] - likelier[time, env]):.3f}"
        )
    again, states_again = play(model)
    assert _same((actions, states), (again, states_again)), (
        f"{_PREDICT} answers otherwise when it is asked the same again"
    )
    _starts_afresh(model, states[-1])
    _environments_apart(model, states)
    if (actions != play(model, forget=True)[0])[decided].sum() < _FEWEST:
        raise NotObservableError("its likeliest actions hardly depend on what it remembers")
    if equal_weights(trial.learnt(0), trial.learnt(0, again=True)):  # else it says nothing
        assert equal_weights(trial.learnt(0), trial.learnt(0, watch=True)), (
            f"a callback that calls {_PREDICT} at each step changes what is learnt"
        )


def _starts_afresh(model: Any, state: Any) -> None:
    """Look whether an episode start, and no state, both mean no memory."""
    obs = shown()[1]
    flags = np.ones(N_ENVS, dtype=bool)
    fresh = ask(model, obs, None, flags)
    for told, given in (
        ("episode_start=True clears no memory", (state, flags)),
        ("state=None is not a memory of nothing", (None, ~flags)),
    ):
        assert _close(ask(model, obs, *given), fresh), f"predict(): {told}"


def _environments_apart(model: Any, states: list[Any]) -> None:
    """Look whether environments acted for together remember what they do when alone."""
    obs, flags = shown(), starts()
    for env in range(N_ENVS):
        state = None
        for time in range(N_STEPS):
            alone = slice(env, env + 1)
            _, state = ask(model, obs[time, alone], state, flags[time, alone])
            for part, whole in zip(_parts(state), _parts(states[time]), strict=True):
                if whole.ndim < 2 or whole.shape[1] != N_ENVS:
                    raise NotObservableError(
                        f"the state of predict() is not [n_layers, n_envs={N_ENVS}, ...] as SB3's, "
                        f"but {whole.shape}"
                    )
                assert np.abs(part[:, 0] - whole[:, env]).max() <= 10 * TOLERANCE, (
                    f"predict() remembers {where(PLACES[time][env])} otherwise when it acts for "
                    f"{N_ENVS} environments than for that one alone"
                )


def _parts(state: Any) -> tuple[Array, ...]:
    return tuple(np.asarray(p) for p in (state if isinstance(state, (tuple, list)) else (state,)))


def _same(one: Any, two: Any) -> bool:
    """Tell whether actions and states of two plays are equal to the last bit."""
    return bool((one[0] == two[0]).all()) and all(
        (a == b).all()
        for first, second in zip(one[1], two[1], strict=True)
        for a, b in zip(_parts(first), _parts(second), strict=True)
    )


def _close(one: Any, two: Any) -> bool:
    """Tell whether two answers of ``predict`` are equal, and the states but for rounding."""
    return bool((np.asarray(one[0]) == np.asarray(two[0])).all()) and all(
        np.abs(a - b).max() <= TOLERANCE
        for a, b in zip(_parts(one[1]), _parts(two[1]), strict=True)
    )


def save_and_load(trial: Trial) -> None:
    """Look whether a loaded model acts on with the memory handed to it, and trains afresh."""
    model = trial.acting().model
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.zip")
        model.save(path)
        loaded = type(model).load(path, env=make_env())
    before, after = (m.get_parameters()["policy"] for m in (model, loaded))
    changed = [name for name in before if name not in after or _differs(before[name], after[name])]
    assert not changed, f"of the loaded model these weights are others: {', '.join(changed)}"
    middle = N_STEPS // 2
    states = play(model)[1]
    for state, first, told in (
        (None, 0, "from an episode's start"),
        (states[middle - 1], middle, "in mid-episode, given the state of the saved one,"),
    ):
        assert _same(play(model, state, first), play(loaded, state, first)), (
            f"the loaded model, acting on {told} does otherwise than the saved one"
        )
    _collects_afresh(trial, loaded)


def _collects_afresh(trial: Trial, loaded: Any) -> None:
    callback = AtWindowsEnd(lambda model: outputs(collected(model.rollout_buffer)))
    learn(loaded, callback, n_windows=1)
    for row in PLACES[:N_STEPS]:
        for place in row:
            assert trial.is_right(callback.found[0], place), (
                f"the loaded model collects anew, and {where(place)} is not known as it was in the "
                "first training: memory does not start from nothing"
            )


def _differs(one: Any, two: Any) -> bool:
    return one.shape != two.shape or not bool((one == two).all())

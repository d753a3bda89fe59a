"""The trainings that laws look at, each done when a law first asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from thrust_pomdp.conformance.acting import led_by_memory
from thrust_pomdp.conformance.observed import (
    CLIP_RANGE_VF,
    Array,
    AtWindowsEnd,
    Collected,
    Minibatches,
    Outputs,
    collected,
    gradients_of,
    minibatches_of,
    outputs,
    recomputed,
)
from thrust_pomdp.conformance.probe import (
    LATE,
    N_ENVS,
    N_STEPS,
    N_WINDOWS,
    PLACES,
    Place,
    make_env,
    shown,
)
from thrust_pomdp.conformance.report import NotObservableError
from thrust_pomdp.errors import ArgumentError

T = TypeVar("T")
MakeModel = Callable[..., Any]
#: Numbers of the environments where X shows other vectors.
Others = tuple[int, ...]
Weights = dict[str, th.Tensor]
EVERYWHERE: Others = tuple(range(N_ENVS))

#: Largest difference of two numbers that are the same but for rounding.
TOLERANCE = 2e-5
#: Discounting of the trainings; both exact in float32.
GAMMA, GAE_LAMBDA = 0.75, 0.5
#: Steps of a minibatch, where there are several.
BATCH_SIZE = 8
#: Differences that no rounding makes.
_SEEN = 50 * TOLERANCE
#: Weights that are drawn at most, and actions of 64 that memory is to decide.
_DRAWS, _ENOUGH_ACTIONS = 20, 12
#: Step of the second window, and environment, where T begins.
TELLS_T = 4, 1
#: Environment that tells story A from the first step, and the one that tells X.
_TELLS_A, _TELLS_X = 3, 0


class Run(NamedTuple):
    """A training with learning rate 0.

    :param windows: as they were collected
    :param acted: what the policy made of them while collecting
    :param trained: what it made of them in training, if that was asked; where X shows other
        vectors, of the first window alone
    :param gradients: of each window: what the steps of story A alone give, if that was asked
    :param shown: observations of the environments, ``[n_steps, n_envs, ...]`` of all windows
    :param done: actions that they were given, ``[n_steps, n_envs]`` of all windows
    :param model: after it
    """

    windows: list[Collected]
    acted: list[Outputs]
    trained: list[Outputs]
    gradients: list[Weights]
    shown: Array
    done: Array
    model: Any


class Trial:
    """What an algorithm is tried by.

    :param make_model: makes it
    """

    def __init__(self, make_model: MakeModel) -> None:
        self._make_model = make_model
        self._known: dict[Any, Any] = {}

    def once(self, name: Any, find: Callable[[], T]) -> T:
        """Find something, or fail to, once."""
        if name not in self._known:
            try:
                self._known[name] = find()
            except Exception as error:
                self._known[name] = error
        found = self._known[name]
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    def make(self, env: VecEnv, **kwargs: Any) -> Any:
        """Make a model with its own weights."""
        arguments: dict[str, Any] = {
            "learning_rate": 0.0,
            "n_steps": N_STEPS,
            "batch_size": N_STEPS * N_ENVS,
            "n_epochs": 1,
            "gamma": GAMMA,
            "gae_lambda": GAE_LAMBDA,
            "clip_range": 1e6,
            "clip_range_vf": CLIP_RANGE_VF,
            "normalize_advantage": False,
            "ent_coef": 0.0,
            "vf_coef": 0.5,
            "max_grad_norm": 1e9,
            "seed": 0,
        }
        try:
            model = self._make_model(env, **{**arguments, **kwargs})
        except TypeError as error:
            raise ArgumentError(
                "make_model(env, **kwargs) must hand kwargs on to an algorithm that takes the "
                f"arguments of SB3's PPO, here {', '.join(arguments)}: {error}"
            ) from error
        for name in ("learn", "predict", "train", "policy", "save", "get_parameters"):
            if not hasattr(model, name):
                raise ArgumentError(
                    f"make_model must return an algorithm of SB3's kind, with {name}, got {model!r}"
                )
        return model

    def name(self) -> str:
        """Return the name of what is made."""
        kind = type(self.make(make_env()))
        return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"

    def make_sensitive(self, env: VecEnv, **kwargs: Any) -> Any:
        """Make a model whose outputs depend much on what it remembers; always the same weights."""
        model = self.make(env, **kwargs)
        chosen = self.once("weights", lambda: _sensitive(model))
        model.set_parameters({**model.get_parameters(), "policy": chosen})
        return model

    def acting(self, other: Others = ()) -> Run:
        """Return a training on the environments as they are drawn in :mod:`.probe`.

        What it says of training may be left out.

        :param other: environments where X shows other vectors
        """
        whole = self._known.get(("run", other, True))
        if isinstance(whole, Run):
            return whole
        return self.once(("run", other, False), lambda: self._run(other, False))

    def training(self, other: Others = ()) -> Run:
        """Return the same, with what was computed in training."""
        return self.once(("run", other, True), lambda: self._run(other, True))

    def outputs(self, name: str, window: int, other: Others = ()) -> Outputs:
        """Return what the policy made of a window.

        :param name: ``"acted"`` or ``"trained"``
        """
        run = self.training(other) if name == "trained" else self.acting(other)
        found: Outputs = getattr(run, name)[window]
        return found

    def _run(self, other: Others, asked: bool) -> Run:
        env = make_env(other)
        model = self.make_sensitive(env)

        def look(model: Any) -> Any:
            window = collected(model.rollout_buffer)
            if not asked:
                return window, outputs(window), None, {}
            at = len(callback.found) * N_STEPS
            # One window of the changed environments is enough, and this takes the time.
            trained = None if at and other else recomputed(model)
            told_a = np.array([[p.story == "A" for p in row] for row in PLACES[at : at + N_STEPS]])
            return window, outputs(window), trained, gradients_of(model, told_a)

        callback = AtWindowsEnd(look)
        learn(model, callback)
        actions = np.array(env.get_attr("actions")).T
        windows, acted, trained, gradients = map(list, zip(*callback.found, strict=True))
        return Run(windows, acted, trained, gradients, shown(other), actions, model)

    def small(self) -> Minibatches:
        """Return what training says of each step of the second window, in small minibatches."""

        def find() -> Minibatches:
            model = self.make_sensitive(make_env(), batch_size=BATCH_SIZE)
            callback = AtWindowsEnd(lambda model: minibatches_of(model) if callback.found else None)
            learn(model, callback)
            told: Minibatches = callback.found[-1]
            return told

        return self.once("small", find)

    def learnt(self, seed: int, again: bool = False, watch: bool = False) -> Weights:
        """Return the weights that a training comes to.

        :param seed: of the model
        :param again: do it a second time
        :param watch: ask for actions, as an evaluation would, while it collects
        """

        def find() -> Weights:
            np.random.seed(seed + 17 + again + watch)  # noqa: NPY002
            th.manual_seed(seed + 23 + again + watch)
            model = self.make(
                make_env(), learning_rate=1e-2, batch_size=BATCH_SIZE, n_epochs=2, seed=seed
            )
            learn(model, _Watching() if watch else None)
            return {name: w.clone() for name, w in model.get_parameters()["policy"].items()}

        return self.once(("learnt", seed, again, watch), find)

    def reference(self, story: str) -> Outputs:
        """Return what the policy makes of a story it is told from the first step of all."""
        acted, env = self.acting().acted[0], _TELLS_X if story == "X" else _TELLS_A
        length = sum(row[env].began == 0 for row in PLACES[:N_STEPS])
        return Outputs(acted.values[:length, env], acted.firsts[:length, env])

    def is_right(self, run: Outputs, place: Place) -> bool:
        """Tell whether an output at a place is that of the reference."""
        right = self.reference(place.story)
        row = place.time % N_STEPS, place.env
        return bool(
            abs(run.values[row] - right.values[place.step]) <= TOLERANCE
            and abs(run.firsts[row] - right.firsts[place.step]) <= TOLERANCE
        )

    def needs_memory(self) -> None:
        """Refuse to judge a policy that remembers nothing.

        :raises NotObservableError: where it does not
        """
        if not self.remembers():
            raise NotObservableError("it remembers nothing")

    def remembers(self) -> bool:
        """Tell whether what was shown before changes outputs: where X is told, or T, but not A."""
        told, other = self.reference("A"), self.reference("X")
        anew, at = self.outputs("acted", 1), TELLS_T
        return any(
            bool((np.abs(one - two) > _SEEN).any())
            for one, two in (
                *((one[1:3], two[1:3]) for one, two in zip(told, other, strict=True)),
                # By then a memory that is cleared a step late has been cleared.
                *(
                    (one[LATE + 2 : LATE + 5], two[at[0] + 2 : at[0] + 5, at[1]])
                    for one, two in zip(told, anew, strict=True)
                ),
            )
        )


class _Watching(BaseCallback):
    """Asks for an action at each step, as an evaluation in the midst of training would."""

    def __init__(self) -> None:
        super().__init__()
        self._state: Any = None

    def _on_step(self) -> bool:
        _, self._state = self.model.predict(shown()[0], self._state, deterministic=True)
        return True


def learn(model: Any, callback: BaseCallback | None, n_windows: int = N_WINDOWS) -> None:
    """Train for some windows.

    :raises NotObservableError: if the callback did not see each of them
    """
    model.learn(n_windows * N_STEPS * N_ENVS, callback=callback)
    if isinstance(callback, AtWindowsEnd) and len(callback.found) != n_windows:
        raise NotObservableError(
            f"callbacks were told of {len(callback.found)} windows' ends, not of {n_windows}"
        )


def _sensitive(model: Any) -> Weights:
    """Return weights at which what is remembered changes outputs by much more than rounding.

    At first SB3's action head has weights of 0.01, and no fault shows in a log-probability. Among
    some draws it is the first at which memory decides enough of the likeliest actions.
    """
    parameters = model.get_parameters()
    first, best, most = parameters["policy"], {}, -1
    for seed in range(_DRAWS):
        drawn = _moved(model, first, seed)
        model.set_parameters({**parameters, "policy": drawn})
        try:
            led = led_by_memory(model)
        except Exception:  # that is the law's to judge
            return drawn
        if led > most:
            best, most = drawn, led
        if most >= _ENOUGH_ACTIONS:
            break
    return best


def _moved(model: Any, weights: Weights, seed: int) -> Weights:
    generator = th.Generator().manual_seed(seed)
    named = {name for name, _ in model.policy.named_parameters()}
    moved = {}
    for name, weight in weights.items():
        noise = th.randn(weight.shape, generator=generator).to(weight.device)
        scale = 1.5 / weight.shape[-1] ** 0.5 if weight.ndim > 1 else 0.1
        is_moved = name in named and weight.is_floating_point()
        moved[name] = weight + scale * noise if is_moved else weight.clone()
    return moved

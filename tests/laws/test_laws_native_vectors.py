"""Native vectors: bit for bit what Gymnasium's synchronous vector of single envs gives."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
from hypothesis import strategies as st
from vectors import MODES, assert_same, assert_same_reset, native, synchronous

from laws.budget import case, law
from laws.strategies import SEEDS
from thrust_pomdp.envs import native_vector
from thrust_pomdp.envs.flicker import FlickerProcesses
from thrust_pomdp.envs.noise import SensorNoises

INTEGRATORS = st.sampled_from(["euler", "semi-implicit euler"])
FLICKER = st.one_of(
    st.fixed_dictionaries({"flicker_prob": st.sampled_from([0.5, 0.0, 1.0, 0.9])}),
    st.fixed_dictionaries(
        {"flicker_prob": st.sampled_from([0.5, 0.1]), "burst_len": st.sampled_from([1, 4, 8.5])}
    ),
)
CARTPOLE = st.fixed_dictionaries(
    {}, optional={"kinematics_integrator": INTEGRATORS, "expose_state": st.booleans()}
)
LENGTH = st.fixed_dictionaries(
    {}, optional={"max_episode_length": st.integers(1, 30), "expose_state": st.booleans()}
)
CORRIDOR = st.fixed_dictionaries(
    {}, optional={"corridor_length": st.integers(1, 6), "expose_state": st.booleans()}
)
#: Ids, and what may be said of them.
KWARGS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "MaskedCartPole-v0": CARTPOLE,
    "FlickeringCartPole-v0": st.builds(lambda a, b: {**a, **b}, CARTPOLE, FLICKER),
    "BurstFlickeringCartPole-v0": CARTPOLE,
    "MaskedFlickeringCartPole-v0": CARTPOLE,
    "POPGymPositionOnlyCartPoleEasy-v0": LENGTH,
    "POPGymNoisyPositionOnlyCartPoleEasy-v0": st.builds(
        lambda a, b: {**a, **b},
        LENGTH,
        st.fixed_dictionaries({}, optional={"noise_sigma": st.sampled_from([0.0, 0.2, 3.0])}),
    ),
    "TMaze-v0": CORRIDOR,
    "ActiveTMaze-v0": CORRIDOR,
    "POPGymRepeatPreviousEasy-v0": st.fixed_dictionaries(
        {}, optional={"k": st.integers(1, 51), "expose_state": st.booleans()}
    ),
}


@case
class Reset:
    seed: Any
    mask: str | None
    options: tuple[tuple[str, Any], ...]


@case
class Steps:
    #: At most so many, or until an episode ends at the last of them.
    count: int
    until_an_end: bool
    policy: str
    seed: int


@case
class Play:
    env_id: str
    kwargs: tuple[tuple[str, Any], ...]
    mode: str
    n_envs: int
    max_episode_steps: int | None
    #: Random numbers drawn ahead for each env; as many as steps would take too many steps.
    ahead: int
    first: Reset
    program: tuple[Any, ...]


@st.composite
def resets(draw: st.DrawFn, env_id: str, n_envs: int, may_mask: bool) -> Reset:
    mask = None
    if may_mask and draw(st.booleans()):
        mask = draw(st.text("01", min_size=n_envs, max_size=n_envs).filter(lambda m: "1" in m))
    one = SEEDS | st.just(10**20)
    options: tuple[tuple[str, Any], ...] = ()
    if "CartPole" in env_id and draw(st.integers(0, 3)) == 0:
        options = (("low", -0.02), ("high", draw(st.sampled_from([0.03, 0.2]))))
    return Reset(
        seed=draw(
            st.none() | one | st.lists(st.none() | one, min_size=n_envs, max_size=n_envs).map(tuple)
        ),
        mask=mask,
        options=options,
    )


@st.composite
def plays(draw: st.DrawFn) -> Play:
    env_id = draw(st.sampled_from(list(KWARGS)))
    n_envs = draw(st.integers(1, 4))
    # The first seeds everyone: after fresh entropy there is nothing to compare.
    seeds = SEEDS | st.lists(SEEDS, min_size=n_envs, max_size=n_envs).map(tuple)
    steps = st.builds(
        Steps,
        count=st.integers(1, 25),
        until_an_end=st.booleans(),
        policy=st.sampled_from(["random", "balance", "left"]),
        seed=SEEDS,
    )
    return Play(
        env_id=env_id,
        kwargs=tuple(draw(KWARGS[env_id]).items()),
        mode=draw(st.sampled_from(MODES)),
        n_envs=n_envs,
        max_episode_steps=draw(st.none() | st.integers(1, 20)),
        ahead=draw(st.sampled_from([7, 2, 1000])),
        first=Reset(seed=draw(seeds), mask=None, options=()),
        program=tuple(
            draw(st.lists(steps | resets(env_id, n_envs, may_mask=True), min_size=1, max_size=6))
        ),
    )


def reset_both(ours: Any, theirs: Any, reset: Reset) -> None:
    options: dict[str, Any] = dict(reset.options)
    if reset.mask is not None:
        options["reset_mask"] = np.array([flag == "1" for flag in reset.mask])
    seed = list(reset.seed) if isinstance(reset.seed, tuple) else reset.seed
    assert_same_reset(ours, theirs, {"seed": seed, "options": options or None})


def choose(steps: Steps, theirs: Any, rng: np.random.Generator) -> np.ndarray:
    if steps.policy == "left":
        return np.zeros(theirs.num_envs, dtype=np.int64)
    if steps.policy == "random" or not hasattr(theirs.envs[0].unwrapped, "theta_threshold_radians"):
        return rng.integers(theirs.single_action_space.n, size=theirs.num_envs)
    states = np.array([env.unwrapped.state for env in theirs.envs])
    return (states @ [0.05, 0.1, 1.0, 0.4] > 0).astype(np.int64)


@law(plays(), fixed=400, long=2500)
def test_a_native_vector_is_the_synchronous_one(case: Play) -> None:
    kwargs = dict(case.kwargs)
    if case.max_episode_steps is not None:
        kwargs["max_episode_steps"] = case.max_episode_steps
    with (
        mock.patch.object(FlickerProcesses, "BLOCK", case.ahead),
        mock.patch.object(SensorNoises, "BLOCK", case.ahead),
        mock.patch.object(native_vector, "STARTS_AHEAD", case.ahead),
    ):
        vectors = [
            make(case.env_id, case.mode, case.n_envs, **kwargs) for make in (native, synchronous)
        ]
    ours, theirs = vectors
    try:
        assert ours.single_observation_space == theirs.single_observation_space
        assert ours.action_space == theirs.action_space
        reset_both(ours, theirs, case.first)
        for part in case.program:
            if isinstance(part, Reset):
                reset_both(ours, theirs, part)
                continue
            rng = np.random.default_rng(part.seed)
            for _ in range(part.count):
                actions = choose(part, theirs, rng)
                outcome = ours.step(actions)
                assert_same(outcome, theirs.step(actions))
                if part.until_an_end and (outcome[2] | outcome[3]).any():
                    break
        assert ours.np_random_seed == theirs.np_random_seed
        states = [[rng.bit_generator.state for rng in envs.np_random] for envs in vectors]
        assert states[0] == states[1]
    finally:
        for envs in vectors:
            envs.close()

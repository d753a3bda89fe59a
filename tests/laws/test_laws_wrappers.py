"""Wrappers: single, vector and SB3 forms give the same, and so do orders said to be equal."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import strategies as st
from sensor_envs import ACTIONS, OBSERVATIONS, AnyEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from vectors import assert_same, assert_same_reset

import thrust_pomdp
from laws.budget import case, law
from laws.strategies import SEEDS
from laws.test_laws_blanking import probabilities
from thrust_pomdp import wrappers
from thrust_pomdp.wrappers import vector

ALL = {**OBSERVATIONS}
KEYS = {"dict": ["bits", "camera", "gyro", "mode"]}

Layer = tuple[str, tuple[tuple[str, Any], ...]]


@st.composite
def layers(draw: st.DrawFn, kind: str) -> Layer:
    name = draw(
        st.sampled_from(["Flicker", "ElementDropout", "Mask", "PreviousAction", "PreviousReward"])
    )
    options: dict[str, Any] = {}
    keys = st.lists(st.sampled_from(KEYS.get(kind, ["observation"])), min_size=1, unique=True)
    position = st.integers(0, 3)
    if name == "Flicker":
        p, length = draw(probabilities())
        options = {"flicker_prob": p, "burst_len": length}
        if draw(st.integers(0, 3)) == 0:
            options["separately"] = True
        if draw(st.integers(0, 3)) == 0:
            options["blank_value"] = 1
    if name == "ElementDropout":
        options = {"dropout_prob": draw(st.sampled_from([0.4, 0.0, 1.0]))}
    if name in ("Flicker", "ElementDropout") and draw(st.integers(0, 2)) == 0:
        options["keys"] = draw(keys)
    if name == "Mask":
        what = draw(st.sampled_from(["drop", "zero"]))
        if kind == "dict":
            options[what] = draw(
                keys | st.fixed_dictionaries({"gyro": st.lists(position, min_size=1, max_size=2)})
            )
        else:
            options[what] = draw(st.lists(position, min_size=1, max_size=2))
        if draw(st.integers(0, 3)) == 0:
            options["axis"] = 0
    if name.startswith("Previous") and draw(st.integers(0, 3)) == 0:
        options["key"] = "done"
    return f"{name}Observation", tuple(options.items())


@case
class Stack:
    observation: str
    action: str
    layers: tuple[Layer, ...]
    mode: str
    n_envs: int
    #: Steps before each reset, and whom it resets: None for all.
    program: tuple[tuple[int, str | None, int | None], ...]
    seed: int


@st.composite
def stacks(draw: st.DrawFn) -> Stack:
    observation, n_envs = draw(st.sampled_from(list(OBSERVATIONS))), draw(st.integers(1, 3))
    mask = st.text("01", min_size=n_envs, max_size=n_envs).filter(lambda flags: "1" in flags)
    part = st.tuples(st.integers(1, 12), st.none() | mask, st.none() | SEEDS)
    return Stack(
        observation=observation,
        action=draw(st.sampled_from(list(ACTIONS))),
        layers=tuple(draw(st.lists(layers(observation), min_size=1, max_size=4))),
        mode=draw(st.sampled_from([mode.name for mode in AutoresetMode])),
        n_envs=n_envs,
        program=tuple(draw(st.lists(part, min_size=1, max_size=4))),
        seed=draw(SEEDS),
    )


def wrap(env: Any, module: Any, layers_: tuple[Layer, ...]) -> Any:
    for name, options in layers_:
        env = getattr(module, name)(env, **dict(options))
    return env


def made(make: Any) -> tuple[Any, str | None]:
    """Return what was made, or the words with which it was refused."""
    try:
        return make(), None
    except ValueError as error:
        return None, str(error)


@law(stacks(), fixed=300, long=2000)
def test_vector_wrappers_are_the_synchronous_vector_of_single_ones(case: Stack) -> None:
    """Or both refuse, in the same words."""
    mode = AutoresetMode[case.mode]

    def bare() -> gym.Env[Any, Any]:
        return AnyEnv(case.observation, case.action)

    ours, refusal = made(
        lambda: wrap(SyncVectorEnv([bare] * case.n_envs, autoreset_mode=mode), vector, case.layers)
    )
    theirs, refusal_of_single = made(
        lambda: SyncVectorEnv(
            [lambda: wrap(bare(), wrappers, case.layers)] * case.n_envs, autoreset_mode=mode
        )
    )
    assert refusal == refusal_of_single
    if refusal is not None:
        return
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.observation_space == theirs.observation_space
    theirs.action_space.seed(case.seed)
    assert_same_reset(ours, theirs, {"seed": case.seed})
    for n_steps, flags, seed in case.program:
        for _ in range(n_steps):
            actions = theirs.action_space.sample()
            outcome = ours.step(actions)
            assert_same(outcome, theirs.step(actions))
            assert ours.observation_space.contains(outcome[0])
            ended = outcome[2] | outcome[3]
            if mode is AutoresetMode.DISABLED and ended.any():
                assert_same_reset(ours, theirs, {"options": {"reset_mask": ended}})
        options = None
        if flags is not None:
            options = {"reset_mask": np.array([flag == "1" for flag in flags])}
        assert_same_reset(ours, theirs, {"seed": seed, "options": options})


@case
class Cart:
    flicker_prob: float
    burst_len: float | None
    policy: str
    n_steps: int
    seed: int


CARTS = st.builds(
    lambda law_, policy, n_steps, seed: Cart(*law_, policy, n_steps, seed), probabilities(),
    st.sampled_from(["balance", "random"]), st.integers(1, 60), SEEDS,
)  # fmt: skip


def episodes(env: gym.Env[Any, Any], case: Cart) -> list[Any]:
    """Play on over ends of episodes, the actions being a function of the true state."""
    rng = np.random.default_rng(case.seed)
    told = [env.reset(seed=case.seed)]
    for _ in range(case.n_steps):
        state = np.asarray(env.unwrapped.state)
        push = state @ [0.05, 0.1, 1.0, 0.4] > 0 if case.policy == "balance" else rng.integers(2)
        obs, reward, terminated, truncated, info = env.step(int(push))
        told.append((obs, float(reward), terminated, truncated, info))
        if terminated or truncated:
            told.append(env.reset())
    return told


def assert_all_same(case: Cart, *envs: gym.Env[Any, Any]) -> None:
    first, *others = (episodes(env, case) for env in envs)
    for other in others:
        assert len(first) == len(other)
        for ours, theirs in zip(first, other, strict=True):
            assert_same(ours, theirs)


@law(CARTS, fixed=60, long=500)
def test_the_ids_are_cartpole_in_wrappers_in_either_order(case: Cart) -> None:
    """Whole frames are dropped from what is masked, or masked from what is dropped: the same."""
    law_ = {"flicker_prob": case.flicker_prob, "burst_len": case.burst_len}

    def flicker(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return wrappers.FlickerObservation(env, **law_)

    def mask(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return wrappers.MaskObservation(env, drop=[1, 3])

    def cartpole() -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1")

    flickering, masked = "FlickeringCartPole-v0", "MaskedFlickeringCartPole-v0"
    assert_all_same(case, gym.make(flickering, **law_), flicker(cartpole()))
    assert_all_same(
        case, gym.make(masked, **law_), mask(flicker(cartpole())), flicker(mask(cartpole())),
        mask(gym.make(flickering, **law_)),
    )  # fmt: skip
    first, second = episodes(gym.make("MaskedCartPole-v0"), case), episodes(mask(cartpole()), case)
    for (ours, *_), (theirs, *_) in zip(first, second, strict=True):
        assert_same(ours, theirs)


@case
class Seen:
    env_id: str
    normalize: Any
    previous_action: bool
    previous_reward: bool
    frame_stack: int
    n_envs: int
    n_steps: int
    seed: int


IDS = [
    "MaskedCartPole-v0", "FlickeringCartPole-v0", "BurstFlickeringCartPole-v0",
    "MaskedFlickeringCartPole-v0", "POPGymNoisyPositionOnlyCartPoleEasy-v0", "TMaze-v0",
    "ActiveTMaze-v0", "POPGymRepeatPreviousEasy-v0",
]  # fmt: skip
SEEN = st.builds(
    Seen, env_id=st.sampled_from(IDS),
    normalize=st.sampled_from([False, True, (("norm_reward", False),), (("norm_obs", False),)]),
    previous_action=st.booleans(), previous_reward=st.booleans(), frame_stack=st.integers(1, 3),
    n_envs=st.integers(1, 4), n_steps=st.integers(1, 60), seed=SEEDS,
)  # fmt: skip


def assert_same_vec_envs(ours: VecEnv, theirs: VecEnv, n_steps: int, seed: int) -> None:
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert_same(ours.reset(), theirs.reset())
    rng = np.random.default_rng(seed)
    for _ in range(n_steps):
        actions = rng.integers(ours.action_space.n, size=ours.num_envs)
        *outcome, infos = ours.step(actions)
        *expected, infos_of_theirs = theirs.step(actions)
        assert_same(tuple(outcome), tuple(expected))
        for mine, other in zip(infos, infos_of_theirs, strict=True):
            for key in ("blanked", "terminal_observation", "TimeLimit.truncated"):
                assert (key in mine) == (key in other), key
                if key in mine:
                    assert_same(mine[key], other[key])
            assert ("episode" in mine) == ("episode" in other)
            if "episode" in mine:
                assert [mine["episode"][k] for k in "rl"] == [other["episode"][k] for k in "rl"]
    ours.close()
    theirs.close()


@law(SEEN, fixed=80, long=700)
def test_make_vec_env_is_its_layers_around_single_environments(case: Seen) -> None:
    """Native or one by one, by its keywords or by hand in the order that is documented."""
    normalize = dict(case.normalize) if isinstance(case.normalize, tuple) else case.normalize
    sizes = {"n_envs": case.n_envs, "seed": case.seed}
    layers_: dict[str, Any] = {
        "normalize": normalize,
        "previous_action": case.previous_action,
        "previous_reward": case.previous_reward,
        "frame_stack": case.frame_stack,
    }
    ours = thrust_pomdp.make_vec_env(case.env_id, **sizes, **layers_)
    theirs = thrust_pomdp.make_vec_env(case.env_id, **sizes, **layers_, vec_env_cls=DummyVecEnv)
    assert_same_vec_envs(ours, theirs, case.n_steps, case.seed)
    ours = thrust_pomdp.make_vec_env(case.env_id, **sizes, **layers_)
    by_hand = thrust_pomdp.make_vec_env(case.env_id, **sizes)
    if normalize:
        options = normalize if isinstance(normalize, dict) else {}
        by_hand = thrust_pomdp.VecNormalizeVisible(by_hand, **options)
    if case.previous_action:
        by_hand = thrust_pomdp.VecPreviousAction(by_hand)
    if case.previous_reward:
        by_hand = thrust_pomdp.VecPreviousReward(by_hand)
    if case.frame_stack > 1:
        from thrust_pomdp.vec_env.stacked import VecStackedFrames

        by_hand = VecStackedFrames(by_hand, case.frame_stack)
    assert_same_vec_envs(ours, by_hand, case.n_steps, case.seed)


@case
class Previous:
    observation: str
    action: str
    order: tuple[str, ...]
    n_envs: int
    n_steps: int
    seed: int


@law(
    st.builds(
        Previous, observation=st.sampled_from(list(OBSERVATIONS)),
        action=st.sampled_from(list(ACTIONS)),
        order=st.sampled_from(
            [("Action",), ("Reward",), ("Action", "Reward"), ("Reward", "Action")]
        ),
        n_envs=st.integers(1, 3), n_steps=st.integers(1, 30), seed=SEEDS,
    ),
    fixed=80, long=600,
)  # fmt: skip
def test_previous_action_and_reward_around_the_vector_or_around_each_env(case: Previous) -> None:
    def single() -> gym.Env[Any, Any]:
        env: Any = AnyEnv(case.observation, case.action)
        for what in case.order:
            env = getattr(wrappers, f"Previous{what}Observation")(env)
        return env

    ours: VecEnv = DummyVecEnv([lambda: AnyEnv(case.observation, case.action)] * case.n_envs)
    for what in case.order:
        ours = getattr(thrust_pomdp, f"VecPrevious{what}")(ours)
    theirs = DummyVecEnv([single] * case.n_envs)
    assert ours.observation_space == theirs.observation_space
    ours.seed(case.seed)
    theirs.seed(case.seed)
    assert_same_obs(ours.reset(), theirs.reset())
    theirs.action_space.seed(case.seed)
    for _ in range(case.n_steps):
        actions = np.array([theirs.action_space.sample() for _ in range(case.n_envs)])
        obs, *others, infos = ours.step(actions)
        expected, *others_of_theirs, infos_of_theirs = theirs.step(actions)
        assert_same_obs(obs, expected)
        assert_same(tuple(others), tuple(others_of_theirs))
        for mine, other in zip(infos, infos_of_theirs, strict=True):
            assert ("terminal_observation" in mine) == ("terminal_observation" in other)
            if "terminal_observation" in mine:
                assert_same_obs(mine["terminal_observation"], other["terminal_observation"])


@law(SEEN, fixed=60, long=400)
def test_previous_action_and_reward_are_what_the_env_received_and_gave(case: Seen) -> None:
    """Behind whatever is seen: the action one-hot, the reward as it was, zeros at a start."""
    normalize = dict(case.normalize) if isinstance(case.normalize, tuple) else case.normalize
    sizes = {"n_envs": case.n_envs, "seed": case.seed}
    venv = thrust_pomdp.make_vec_env(
        case.env_id, **sizes, normalize=normalize, previous_action=True, previous_reward=True
    )
    bare = thrust_pomdp.make_vec_env(case.env_id, **sizes)
    assert not venv.reset()[:, -3:].any()
    bare.reset()
    rng, n_actions = np.random.default_rng(case.seed), int(bare.action_space.n)
    for _ in range(case.n_steps):
        actions = rng.integers(n_actions, size=case.n_envs)
        obs, _, dones, infos = venv.step(actions)
        rewards = bare.step(actions)[1]
        expected = np.column_stack((np.eye(n_actions, dtype=np.float32)[actions], rewards))
        n_last = n_actions + 1
        shown = np.array([
            info["terminal_observation"][-n_last:] if done else row[-n_last:]
            for row, done, info in zip(obs, dones, infos, strict=True)
        ])  # fmt: skip
        assert np.array_equal(shown, expected)
        assert not obs[dones, -n_last:].any()


def assert_same_obs(ours: Any, theirs: Any) -> None:
    """Compare bit for bit; of dicts the class is SB3's business."""
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs)
        for key in theirs:
            assert_same_obs(ours[key], theirs[key])
    else:
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
